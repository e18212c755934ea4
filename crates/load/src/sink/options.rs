use super::capabilities::CapabilityOptions;
use super::dump::DumpTarget;
use super::mailboxes::MailboxOptions;
use super::rulebook::Rulebook;
use mailrun_measurement::RunId;
use mailrun_net::BusyPoll;
use mailrun_process::dialogue_output::DialogueOptions;
use mailrun_process::outputs::Outputs;
use mailrun_smtp::Limits;

/// Number of file descriptors that the sink needs for everything except its sessions, which need
/// one each.
pub(super) const RESERVED_DESCRIPTORS: u64 = 64;

#[derive(Clone, Debug)]
pub struct SinkOptions {
    pub name: String,
    /// Address on which the sink listens, as HOST:PORT or unix:PATH.
    pub listen: String,
    /// Mailboxes that the sink watches instead of listening, or `None` to listen.
    pub mailboxes: Option<MailboxOptions>,
    /// Address on which the status is served over HTTP, as HOST:PORT.
    pub http: Option<String>,
    /// Number of messages after which the sink ends, or `None` for no limit.
    pub messages: Option<u64>,
    pub workers: usize,
    /// How long workers poll for events before they sleep. Polling avoids the delay of waking up.
    pub busy_poll: BusyPoll,
    pub sessions: usize,
    pub limits: Limits,
    pub hello: String,
    pub rules: Rulebook,
    /// Seed of random choices, used only if the rules have no seed of their own.
    pub seed: u64,
    /// File or directory where messages are stored, or `None` to store none.
    pub dump: Option<DumpTarget>,
    /// Where the commands and replies of sessions are shown, or `None` to show none.
    pub dialogue: Option<DialogueOptions>,
    pub run: Option<RunId>,
    pub capabilities: CapabilityOptions,
    pub outputs: Outputs,
}
