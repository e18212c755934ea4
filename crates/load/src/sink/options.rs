use super::capabilities::CapabilityOptions;
use super::dump::DumpTarget;
use super::mailboxes::MailboxOptions;
use super::rulebook::Rulebook;
use mailrun_measurement::RunId;
use mailrun_net::BusyPoll;
use mailrun_process::dialogue_output::DialogueOptions;
use mailrun_process::outputs::Outputs;
use mailrun_smtp::Limits;

/// File descriptors for everything except sessions.
pub(super) const RESERVED_DESCRIPTORS: u64 = 64;

#[derive(Clone, Debug)]
pub struct SinkOptions {
    pub name: String,
    /// HOST:PORT, or unix:PATH.
    pub listen: String,
    /// Mailboxes to watch instead of listening.
    pub mailboxes: Option<MailboxOptions>,
    /// HOST:PORT of the status over HTTP.
    pub http: Option<String>,
    /// The sink ends after this number of messages.
    pub messages: Option<u64>,
    pub workers: usize,
    /// How long the workers poll for events before they sleep.
    pub busy_poll: BusyPoll,
    pub sessions: usize,
    pub limits: Limits,
    pub hello: String,
    pub rules: Rulebook,
    /// Seed of random choices, if the rules have none.
    pub seed: u64,
    /// Where messages are stored, if they are.
    pub dump: Option<DumpTarget>,
    /// Where the dialogues of sessions are shown, if they are.
    pub dialogue: Option<DialogueOptions>,
    pub run: Option<RunId>,
    pub capabilities: CapabilityOptions,
    pub outputs: Outputs,
}
