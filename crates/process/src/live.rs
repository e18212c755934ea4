//! How a source, a sink or another process of a run reports its progress. With `--live json`, the process prints events
//! on standard output, one JSON object per line, for the process that started it.
//!
//! ```text
//! {"event":"listening","smtp":["127.0.0.1:40001"],"http":null}     a sink, first
//! {"event":"ready","amqp":["127.0.0.1:40002"]}                     a MADES endpoint, first
//! {"event":"progress","elapsed_s":1.25,"accepted":67000,…}         all parties, every 250 ms
//! {"event":"error","text":"450 at rcpt: 4.2.0 Greylisted"}         all parties, when the latest error is a different one
//! {"event":"unwritten","record":"{…}"}                             all parties, if the record cannot be written to its file
//! {"event":"done"}                                                 all parties, last
//! ```
use mailrun_measurement::Latencies;
use serde::{Deserialize, Serialize};

/// Form in which a process reports its progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LiveMode {
    /// The dashboard if standard error is a terminal that is large enough, and otherwise the progress line.
    #[value(skip)]
    Auto,
    /// The dashboard if it can be drawn, and otherwise the progress line.
    #[value(skip)]
    Dashboard,
    /// Progress on standard error: on a terminal a line that changes, elsewhere a new line every five seconds.
    #[default]
    Line,
    /// JSON lines on standard output, for the bench.
    Json,
    /// The process reports no progress, for example because of `--quiet`.
    Off,
}

/// A progress event, which a process prints as one line of JSON for the bench that started it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
#[expect(clippy::large_enum_variant, reason = "nearly all events are of the large variant, and none is stored")]
pub enum LiveEvent {
    Listening {
        /// Addresses on which the sink accepts mail.
        smtp: Vec<String>,
        /// Address of the status server, if one was requested.
        http: Option<String>,
    },
    /// The MADES endpoint has started, and serves its outbox.
    Ready {
        /// Addresses on which the endpoint listens. Empty if it does not listen.
        amqp: Vec<String>,
    },
    /// The process reports its counts, rates and latencies so far, every 250 ms.
    Progress(LiveProgress),
    /// An error has occurred. A process reports an error only if it differs from the error that it reported before.
    Error {
        /// Code, phase and text of the error. The text comes from a peer, so it may contain anything.
        text: String,
    },
    /// The process could not write its record to the file.
    Unwritten {
        /// The record as JSON text. It is embedded as a string, so that only a reader who needs the
        /// record has to parse it.
        record: String,
    },
    /// The process has written its files and exits next.
    Done,
    /// An event of a newer version, which this version ignores.
    #[serde(other)]
    Unknown,
}

/// Counts, rates and latencies of a process so far. A figure that the process does not know is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveProgress {
    pub elapsed_s: f64,
    /// Number of messages that should have been sent by now according to the schedule of an open loop. 0 in a closed
    /// loop, which has no schedule.
    pub due: u64,
    pub created: u64,
    /// Messages that the source has handed over to the server, answered or not.
    pub sent: u64,
    pub accepted: u64,
    /// Messages that have reached the sink, including copies and mail that is not of the run.
    pub delivered: u64,
    /// Rates in messages per second, computed as in a record (`Throughput::per_s`). A rate is 0 if the process has seen
    /// too few of these messages so far, or cannot see them at all. For example, a source cannot see deliveries.
    pub sent_per_s: f64,
    pub accepted_per_s: f64,
    pub delivered_per_s: f64,
    /// Recipients of the messages that were accepted or, for a sink, delivered.
    pub recipients: u64,
    /// For a sink: pairs of message and recipient of its run that were delivered or bounced. Unlike
    /// `delivered`, it counts neither copies nor notifications nor mail of others.
    pub settled: u64,
    /// For a sink: number of mailboxes that it should watch but that are not open at present, so that it cannot see
    /// mail in them.
    pub closed: u64,
    /// Bytes of all accepted messages or, for a sink, of all delivered messages.
    pub bytes: u64,
    /// Number of refusals, broken connections and time-outs.
    pub errors: u64,
    /// For a sink: number of those `errors` that the sink caused on purpose, because the user's rules demand them.
    pub ordered: u64,
    /// Number of sessions that the source may have open at a time.
    pub sessions: u64,
    /// Number of messages to create, or 0 if there is no such limit.
    pub goal_messages: u64,
    /// Seconds for which messages are created, or 0 if there is no such limit.
    pub goal_s: f64,
    /// Messages that a source has created or a relay has queued, and whose fate is not yet known.
    pub open: u64,
    /// Seconds for which the process still waits for outstanding messages if nothing more arrives.
    /// 0 while messages are being created.
    pub waits_s: f64,
    pub rejected: u64,
    /// Messages that were neither accepted nor rejected, because their session failed.
    pub failed: u64,
    /// Percentiles of the latencies that the process has measured since its previous report.
    pub now: LiveTimes,
    /// Percentiles of the latency since the start of the run.
    pub run: LiveTimes,
}

impl LiveProgress {
    /// Returns the number of errors of a source and its sink together. The source may count the faults that the sink
    /// makes on purpose (`ordered`) as errors of its own. To avoid counting them twice, only the larger of the source's
    /// `errors` and the sink's `ordered` is added to the sink's other errors. `ordered` is larger if a server between
    /// source and sink hides such faults from the source.
    pub fn errors_with_sink(&self, sink: &Self) -> u64 {
        sink.errors.saturating_sub(sink.ordered).saturating_add(self.errors.max(sink.ordered))
    }
}

/// Percentiles of a latency in milliseconds: from the median (`p50`) to the 99.9th percentile
/// (`p999`), and the longest latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveTimes {
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
}

impl LiveTimes {
    pub fn of(latencies: &Latencies) -> Self {
        Self {
            p50_ms: latencies.quantile_ms(0.5),
            p95_ms: latencies.quantile_ms(0.95),
            p99_ms: latencies.quantile_ms(0.99),
            p999_ms: latencies.quantile_ms(0.999),
            max_ms: latencies.quantile_ms(1.0),
        }
    }
}

impl LiveMode {
    /// Returns true if the progress is shown to a person, as a line or as the dashboard.
    pub fn is_shown(self) -> bool {
        matches!(self, Self::Auto | Self::Dashboard | Self::Line)
    }
}

impl LiveEvent {
    /// Formats the event as a line without a line end.
    pub(crate) fn to_line(&self) -> String {
        serde_json::to_string(self).expect("an event has no keys that JSON lacks")
    }

    /// Parses a line that a process has printed with `--live json`. Returns `None` if the line is not an event.
    pub fn from_line(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let now = LiveTimes { p99_ms: 3.5, ..LiveTimes::default() };
        let progress = LiveProgress { elapsed_s: 1.25, accepted: 67_000, now, ..LiveProgress::default() };
        let http = Some("127.0.0.1:2".to_owned());
        let events = [
            LiveEvent::Listening { smtp: vec!["127.0.0.1:1".to_owned()], http },
            LiveEvent::Progress(progress),
            LiveEvent::Done,
        ];
        for event in events {
            assert_eq!(LiveEvent::from_line(&event.to_line()), Some(event));
        }
    }

    #[test]
    fn a_fault_that_the_sink_was_ordered_to_make_counts_once() {
        let sink = LiveProgress { errors: 8, ordered: 7, ..LiveProgress::default() };
        // In the last row, a server between source and sink hides the sink's faults, so the source has seen no error.
        for (of_source, expected) in [(7, 8), (9, 10), (0, 8)] {
            let source = LiveProgress { errors: of_source, ..LiveProgress::default() };
            assert_eq!(source.errors_with_sink(&sink), expected, "{of_source} errors of the source");
        }
    }

    #[test]
    fn absent_is_nought_and_unknown_is_no_error() {
        let event = LiveEvent::from_line(r#"{"event":"progress","accepted":5}"#);
        assert_eq!(event, Some(LiveEvent::Progress(LiveProgress { accepted: 5, ..LiveProgress::default() })));
        assert_eq!(LiveEvent::from_line(r#"{"event":"weather","sun":true}"#), Some(LiveEvent::Unknown));
        assert_eq!(LiveEvent::from_line("hello"), None);
    }
}
