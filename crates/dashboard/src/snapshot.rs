//! Figures of a run at a moment.

/// Figures of a run at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunSnapshot {
    /// Name of the command, and of the run within a series.
    pub title: String,
    /// The server and the load in a few words.
    pub subject: String,
    /// Thresholds, each with its state so far.
    pub thresholds: Vec<ThresholdState>,
    /// The thing that is waited for, if no more messages are sent.
    pub wait: Option<String>,
    /// Time since the load began.
    pub elapsed_s: f64,
    /// Messages to create in all; 0: no limit.
    pub goal_messages: u64,
    /// Seconds for which messages are created; 0: no limit.
    pub goal_s: f64,
    /// Messages so far.
    pub messages: MessageCounts,
    /// Messages accepted and not yet delivered; where no sink reports, messages under way.
    pub queue: u64,
    /// Latencies of each stage.
    pub stages: Vec<StageTimes>,
    /// Number of errors.
    pub errors: u64,
    /// Text of the latest error; it may be a peer's. Empty: none.
    pub last_error: String,
    /// Processor and memory of each party.
    pub parties: Vec<PartyLoad>,
}

/// A threshold while the run lasts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThresholdState {
    /// The threshold as it was typed.
    pub expression: String,
    /// Its value so far; empty if that is unknown.
    pub value: String,
    /// Whether the value is within the limit; `None` if it is unknown.
    pub passed: Option<bool>,
}

/// Messages by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts {
    /// Messages due so far: at open loop more than were created if the source could not send them.
    pub due: u64,
    /// Messages created.
    pub created: u64,
    /// Messages handed over.
    pub sent: u64,
    /// Messages accepted.
    pub accepted: u64,
    /// Messages delivered; `None` where no sink reports.
    pub delivered: Option<u64>,
    /// Messages rejected.
    pub rejected: u64,
    /// Messages whose session failed.
    pub failed: u64,
    /// Messages under way, if whoever reports them counts them by itself.
    pub in_transit: Option<u64>,
}

impl MessageCounts {
    /// Messages due so far, created ones included.
    pub(crate) fn all(&self) -> u64 {
        self.due.max(self.created)
    }

    /// Messages that are due and not created.
    pub(crate) fn unsent(&self) -> u64 {
        self.all() - self.created
    }

    /// Messages of which nothing final is known yet, those that are due and unsent included.
    pub fn outstanding(&self) -> u64 {
        let settled = self.delivered.unwrap_or(self.accepted) + self.rejected + self.failed;
        let created = self.in_transit.unwrap_or_else(|| self.created.saturating_sub(settled));
        created + self.unsent()
    }

    /// Messages at the last stage that is seen.
    pub(crate) fn done(&self) -> u64 {
        self.delivered.unwrap_or(self.accepted)
    }

    /// Name of that stage.
    pub(crate) fn done_word(&self) -> &'static str {
        if self.delivered.is_some() { "delivered" } else { "accepted" }
    }
}

/// Latencies up to a stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageTimes {
    /// Name of the stage: accepted, delivered.
    pub name: String,
    /// Latencies since the last report.
    pub now: TimesMs,
    /// Latencies of the whole run.
    pub run: TimesMs,
}

/// Percentiles in milliseconds; 0: none yet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimesMs {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Longest.
    pub max: f64,
}

/// Resources of a party.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartyLoad {
    /// Name of the party: source, relay, sink.
    pub name: String,
    /// Processors that it uses: 1 is one core.
    pub cores: f64,
    /// Memory that it has.
    pub memory_bytes: u64,
}
