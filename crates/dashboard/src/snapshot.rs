#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunSnapshot {
    /// Name of the command, and of the run within a series.
    pub title: String,
    /// The server and the load in a few words.
    pub subject: String,
    pub thresholds: Vec<ThresholdState>,
    /// The event that the run waits for after the last message was sent.
    pub wait: Option<String>,
    pub elapsed_s: f64,
    /// Total number of messages, or 0 without a limit.
    pub goal_messages: u64,
    /// Seconds for which messages are created, or 0 without a limit.
    pub goal_s: f64,
    pub messages: MessageCounts,
    /// Messages accepted and not yet delivered or, without a sink, messages in transit.
    pub queue: u64,
    pub stages: Vec<StageTimes>,
    pub errors: u64,
    /// Text of the latest error, possibly from a peer, or empty.
    pub last_error: String,
    pub parties: Vec<PartyLoad>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThresholdState {
    /// The threshold as typed.
    pub expression: String,
    /// Current value of the threshold, or empty if it is unknown.
    pub value: String,
    /// Whether the value is within the limit, if known.
    pub passed: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts {
    /// Messages due so far. In an open loop, this exceeds `created` if the source falls behind.
    pub due: u64,
    pub created: u64,
    pub sent: u64,
    pub accepted: u64,
    /// Messages delivered, or `None` without a sink.
    pub delivered: Option<u64>,
    pub rejected: u64,
    /// Messages whose session failed.
    pub failed: u64,
    /// Messages in transit, if the process counts them itself.
    pub in_transit: Option<u64>,
}

impl MessageCounts {
    pub(crate) fn all(&self) -> u64 {
        self.due.max(self.created)
    }

    /// Messages that are due but not created.
    pub(crate) fn unsent(&self) -> u64 {
        self.all() - self.created
    }

    /// Messages without a final state, including those that are due but not sent.
    pub fn outstanding(&self) -> u64 {
        let created = self.in_transit.unwrap_or_else(|| self.created.saturating_sub(self.settled()));
        created + self.unsent()
    }

    /// Messages at the last observed stage.
    pub(crate) fn done(&self) -> u64 {
        self.delivered.unwrap_or(self.accepted)
    }

    /// Messages that the run need not wait for: those that are done, rejected or failed.
    pub fn settled(&self) -> u64 {
        self.done() + self.rejected + self.failed
    }

    pub(crate) fn done_word(&self) -> &'static str {
        if self.delivered.is_some() { "delivered" } else { "accepted" }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageTimes {
    /// Name of the stage: accepted or delivered.
    pub name: String,
    /// Latencies since the last report.
    pub now: TimesMs,
    pub run: TimesMs,
}

/// Percentiles in milliseconds. 0 means none yet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimesMs {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartyLoad {
    /// Name of the process: source, relay or sink.
    pub name: String,
    /// Processors used; 1 is one core.
    pub cores: f64,
    pub memory_bytes: u64,
}
