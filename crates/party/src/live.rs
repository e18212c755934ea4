//! Progress of a party: its form, and the events that a party prints on its standard output while it runs, for the
//! process that started it (`--live json`), one JSON object per line.
//!
//! ```text
//! {"event":"listening","smtp":["127.0.0.1:40001"],"http":null}     a sink, first
//! {"event":"ready","amqp":["127.0.0.1:40002"]}                     a MADES endpoint, first
//! {"event":"progress","elapsed_s":1.25,"accepted":67000,…}         both, every 250 ms
//! {"event":"error","text":"450 at rcpt: 4.2.0 Greylisted"}         both, when another kind of error is the latest
//! {"event":"unwritten","record":"{…}"}                             both, if the record cannot be written to its file
//! {"event":"done"}                                                 both, last
//! ```
use mailrun_journey::Latencies;
use serde::{Deserialize, Serialize};

/// Form of a party's progress reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LiveMode {
    /// The dashboard where a person sits before a terminal that is large enough, else the line.
    #[value(skip)]
    Auto,
    /// The dashboard wherever it can be drawn, else the line.
    #[value(skip)]
    Dashboard,
    /// A line on standard error: on a terminal one that changes, elsewhere one every five seconds.
    #[default]
    Line,
    /// JSON lines on standard output, for the bench.
    Json,
    /// No reports.
    Off,
}

/// An event: one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum LiveEvent {
    /// The sink accepts connections.
    Listening {
        /// Addresses for mail.
        smtp: Vec<String>,
        /// Address of the status, if that was asked for.
        http: Option<String>,
    },
    /// The MADES endpoint serves its outbox.
    Ready {
        /// Addresses that it listens on, if it does.
        amqp: Vec<String>,
    },
    /// Progress.
    Progress(LiveProgress),
    /// The latest error.
    Error {
        /// Code, phase and text; the text is a peer's.
        text: String,
    },
    /// The record, which could not be written to its file.
    Unwritten {
        /// The text for that file. As a text it is parsed by whoever wants the record, and not with each event.
        record: String,
    },
    /// Its files are written; it exits next.
    Done,
    /// An event of a newer version.
    #[serde(other)]
    Unknown,
}

/// Progress of a party. An unknown figure is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveProgress {
    /// Time since it began its work.
    pub elapsed_s: f64,
    /// Messages due, at open loop; 0 at closed loop.
    pub due: u64,
    /// Messages created.
    pub created: u64,
    /// Messages handed over.
    pub sent: u64,
    /// Messages accepted.
    pub accepted: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Recipients of accepted, or delivered, messages.
    pub recipients: u64,
    /// Bytes of messages.
    pub bytes: u64,
    /// Refusals, cut connections, time-outs.
    pub errors: u64,
    /// Sessions that may be open.
    pub sessions: u64,
    /// Messages to create in all.
    pub goal_messages: u64,
    /// Seconds for which messages are created.
    pub goal_s: f64,
    /// Messages under way.
    pub open: u64,
    /// Time for which messages under way are still waited for if nothing more comes, once no more are created.
    pub waits_s: f64,
    /// Recent median latency.
    pub p50_ms: f64,
    /// Recent 99th percentile of the latency.
    pub p99_ms: f64,
    /// Messages rejected.
    pub rejected: u64,
    /// Messages whose session failed.
    pub failed: u64,
    /// Recent percentiles of the latency: all of them.
    pub now: LiveTimes,
    /// The same of the whole run.
    pub run: LiveTimes,
}

/// Percentiles of a latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveTimes {
    /// Median.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
    /// Longest.
    pub max_ms: f64,
}

impl LiveTimes {
    /// The percentiles of these latencies.
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
    /// Reports whether a person is to see the progress.
    pub fn is_shown(self) -> bool {
        matches!(self, Self::Auto | Self::Dashboard | Self::Line)
    }
}

impl LiveEvent {
    /// Formats the line, without its end.
    pub(crate) fn to_line(&self) -> String {
        serde_json::to_string(self).expect("an event has no keys that JSON lacks")
    }

    /// Parses a line; `None` if it is not an event.
    pub fn from_line(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let progress = LiveProgress { elapsed_s: 1.25, accepted: 67_000, p99_ms: 3.5, ..LiveProgress::default() };
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
    fn absent_is_nought_and_unknown_is_no_error() {
        let event = LiveEvent::from_line(r#"{"event":"progress","accepted":5}"#);
        assert_eq!(event, Some(LiveEvent::Progress(LiveProgress { accepted: 5, ..LiveProgress::default() })));
        assert_eq!(LiveEvent::from_line(r#"{"event":"weather","sun":true}"#), Some(LiveEvent::Unknown));
        assert_eq!(LiveEvent::from_line("hello"), None);
    }
}
