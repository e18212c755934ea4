//! Options of a sink.
use super::capabilities::CapabilityOptions;
use super::dump::DumpTarget;
use super::rulebook::Rulebook;
use mailrun_journey::RunId;
use mailrun_net::BusyPoll;
use mailrun_party::outputs::Outputs;
use mailrun_smtp::Limits;

/// Descriptors used for other things than sessions.
pub(super) const RESERVED_DESCRIPTORS: u64 = 64;

#[derive(Clone, Debug)]
pub struct SinkOptions {
    pub name: String,
    /// HOST:PORT, or unix:PATH.
    pub listen: String,
    /// HOST:PORT of the status over HTTP.
    pub http: Option<String>,
    /// Number of messages after which it ends.
    pub messages: Option<u64>,
    pub workers: usize,
    /// Time that the workers poll for events before they sleep.
    pub busy_poll: BusyPoll,
    /// Largest number of concurrent sessions.
    pub sessions: usize,
    /// Limits of a session.
    pub limits: Limits,
    pub hello: String,
    pub rules: Rulebook,
    /// The seed of random choices, if the rules name none.
    pub seed: u64,
    /// Storage of messages, if they are stored.
    pub dump: Option<DumpTarget>,
    pub run: Option<RunId>,
    pub capabilities: CapabilityOptions,
    pub outputs: Outputs,
}
