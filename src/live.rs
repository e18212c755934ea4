//! What a party says on its standard output while it runs, for whoever started it (`--live json`): one JSON object a
//! line.
//!
//! ```text
//! {"event":"listening","smtp":["127.0.0.1:40001"],"http":null}     a sink, first
//! {"event":"ready","amqp":["127.0.0.1:40002"]}                     a MADES endpoint, first
//! {"event":"progress","elapsed_s":1.25,"accepted":67000,…}         both, every 250 ms
//! {"event":"unwritten","record":{…}}                               both, where the record cannot be written to its file
//! {"event":"done"}                                                 both, last
//! ```
use journey::record::Record;
use serde::{Deserialize, Serialize};

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Event {
    /// The sink takes mail.
    Listening {
        /// Addresses for mail.
        smtp: Vec<String>,
        /// Address of the status, where it was asked for.
        http: Option<String>,
    },
    /// The MADES endpoint attends to its outbox.
    Ready {
        /// Where it listens itself, if it does.
        amqp: Vec<String>,
    },
    /// How far it is.
    Progress(Progress),
    /// The record, which could not be written to its file.
    Unwritten {
        /// As it would stand there.
        record: Box<Record>,
    },
    /// Its files are written; it exits next.
    Done,
    /// Something a newer party says.
    #[serde(other)]
    Unknown,
}

/// How far a party is. What it does not know is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Progress {
    /// Since it began its work.
    pub(crate) elapsed_s: f64,
    /// Messages created.
    pub(crate) created: u64,
    /// Messages handed over.
    pub(crate) sent: u64,
    /// Messages accepted.
    pub(crate) accepted: u64,
    /// Messages delivered.
    pub(crate) delivered: u64,
    /// Recipients of those that are accepted, or delivered.
    pub(crate) recipients: u64,
    /// Message octets.
    pub(crate) bytes: u64,
    /// Refusals, cut connections, time-outs.
    pub(crate) errors: u64,
    /// Sessions that may be open.
    pub(crate) sessions: u64,
    /// Messages to create in all.
    pub(crate) goal_messages: u64,
    /// Seconds for which messages are created.
    pub(crate) goal_s: f64,
    /// Messages under way.
    pub(crate) open: u64,
    /// How long those are still waited for if nothing more comes, once no more are created.
    pub(crate) waits_s: f64,
    /// Median latency of late.
    pub(crate) p50_ms: f64,
    /// 99th percentile likewise.
    pub(crate) p99_ms: f64,
}

impl Event {
    /// The line, without its end.
    pub(crate) fn to_line(&self) -> String {
        serde_json::to_string(self).expect("an event has no keys that JSON lacks")
    }

    /// Reads a line; `None` if it is not an event.
    pub(crate) fn from_line(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let progress = Progress { elapsed_s: 1.25, accepted: 67_000, p99_ms: 3.5, ..Progress::default() };
        let http = Some("127.0.0.1:2".to_owned());
        let events =
            [Event::Listening { smtp: vec!["127.0.0.1:1".to_owned()], http }, Event::Progress(progress), Event::Done];
        for event in events {
            assert_eq!(Event::from_line(&event.to_line()), Some(event));
        }
    }

    #[test]
    fn absent_is_nought_and_unknown_is_no_error() {
        let event = Event::from_line(r#"{"event":"progress","accepted":5}"#);
        assert_eq!(event, Some(Event::Progress(Progress { accepted: 5, ..Progress::default() })));
        assert_eq!(Event::from_line(r#"{"event":"weather","sun":true}"#), Some(Event::Unknown));
        assert_eq!(Event::from_line("hello"), None);
    }
}
