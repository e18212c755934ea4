#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunSnapshot {
    /// What runs, for the title of the dashboard: the command and the name that the user gave to the run, if any, such
    /// as `bench · relay`. In a series of runs, the current run, such as `run 3 of 16: postfix`.
    pub title: String,
    /// The server and the load in a few words, separated by ` · `, such as `127.0.0.1:2525 · 1,000/s`.
    pub subject: String,
    pub thresholds: Vec<ThresholdState>,
    /// Text that says what the run waits for after its last message, or `None` if the run does not wait.
    pub wait: Option<String>,
    pub elapsed_s: f64,
    /// Number of messages that the run creates, or 0 if it has no such limit.
    pub goal_messages: u64,
    /// Time in seconds for which the run creates messages, or 0 if it has no such limit.
    pub goal_s: f64,
    pub messages: MessageCounts,
    /// Number of accepted messages that are not delivered yet. Without a sink, the number of messages in transit.
    pub queue: u64,
    pub stages: Vec<StageTimes>,
    pub errors: u64,
    /// Text of the latest error, or empty. The text may come from a peer, so it must be made printable before it is
    /// shown.
    pub last_error: String,
    pub parties: Vec<PartyLoad>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThresholdState {
    pub expression: String,
    /// Current value of the figure that the threshold limits, or empty if the value is unknown.
    pub value: String,
    /// True if the threshold is met, and false if it is missed. `None` as long as this is undecided.
    pub passed: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts {
    /// Number of messages that should have been created by now. In an open loop, it exceeds `created` if the source
    /// falls behind.
    pub due: u64,
    pub created: u64,
    pub sent: u64,
    pub accepted: u64,
    /// Number of delivered messages, or `None` without a sink.
    pub delivered: Option<u64>,
    pub rejected: u64,
    /// Number of messages whose SMTP session failed.
    pub failed: u64,
    /// Number of messages in transit, or `None` if it must be computed from the other counts.
    pub in_transit: Option<u64>,
}

impl MessageCounts {
    pub(crate) fn all(&self) -> u64 {
        self.due.max(self.created)
    }

    pub(crate) fn unsent(&self) -> u64 {
        self.all() - self.created
    }

    /// Returns the number of messages without a final result, including messages that are due but not created yet.
    pub fn outstanding(&self) -> u64 {
        let created = self.in_transit.unwrap_or_else(|| self.created.saturating_sub(self.settled()));
        created + self.unsent()
    }

    /// Returns the number of messages at the last observed stage: delivered or, without a sink, accepted.
    pub(crate) fn done(&self) -> u64 {
        self.delivered.unwrap_or(self.accepted)
    }

    /// Returns the number of messages for which the run no longer waits, because they were delivered, were rejected, or
    /// failed. Without a sink, accepted messages count as delivered.
    pub fn settled(&self) -> u64 {
        self.done() + self.rejected + self.failed
    }

    pub(crate) fn done_word(&self) -> &'static str {
        if self.delivered.is_some() { "delivered" } else { "accepted" }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageTimes {
    pub name: String,
    /// Latency percentiles since the last report. The field `run` has the percentiles since the start of the run.
    pub now: TimesMs,
    pub run: TimesMs,
}

/// Latency percentiles in milliseconds, all of them 0 until a latency has been measured.
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
    pub name: String,
    /// CPU use in cores: 1.5 means one and a half busy cores.
    pub cores: f64,
    pub memory_bytes: u64,
}
