//! Record of what the simulator did, per message and in total: the truth that a bench's report is compared with.
use mailrun_journey::Latencies;
use mailrun_journey::record::LatencyMs;
use serde::{Serialize, Serializer};
use std::fmt;
use std::time::Duration;
use uuid::Uuid;

/// Fate of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageFate {
    /// The message is still under way.
    #[default]
    Unfinished,
    /// It is in B's inbox and A has reported it.
    Delivered,
    /// It was answered with an error.
    Refused,
    /// It was lost on purpose.
    Lost,
    /// It was reported as failed.
    Failed,
    /// It was a connectivity test, and answered.
    Traced,
    /// The broker did not accept the report about it.
    Undeliverable,
}

/// The counts that a message belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DocumentKind {
    /// Any message that does not acknowledge another.
    #[default]
    Message,
    /// The acknowledgement document of a message: B's application has sent it, or it names that message in
    /// `baCorrelationID`.
    Acknowledgement,
}

/// Bit that makes another number of an acknowledgement's, which is that of its message.
const ACKNOWLEDGEMENT_BIT: u64 = 1 << 63;

impl DocumentKind {
    /// The number by which chance decides about a document, from that of its message. Chance decides about an acknowledgement
    /// again: with the number of its message it would have the same fate.
    pub(crate) fn chance_number(self, number: u64) -> u64 {
        match self {
            Self::Message => number,
            Self::Acknowledgement => number ^ ACKNOWLEDGEMENT_BIT,
        }
    }

    /// Most messages are: the record does not say so.
    fn is_message(&self) -> bool {
        *self == Self::Message
    }
}

/// Faults injected into a message: any of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InjectedFaults {
    /// Refused with an error.
    pub reject: bool,
    /// Not replied to.
    pub no_reply: bool,
    /// Lost.
    pub drop: bool,
    /// Reported as failed.
    pub fail: bool,
    /// Put into the inbox twice.
    pub duplicate: bool,
    /// One byte was changed.
    pub corrupt: bool,
    /// Held back so that others overtake it.
    pub reorder: bool,
    /// It is an acknowledgement document that rejects its message.
    pub reject_document: bool,
}

impl InjectedFaults {
    fn names(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.reject, "reject"),
            (self.no_reply, "no_reply"),
            (self.drop, "drop"),
            (self.fail, "fail"),
            (self.duplicate, "duplicate"),
            (self.corrupt, "corrupt"),
            (self.reorder, "reorder"),
            (self.reject_document, "reject_document"),
        ];
        all.into_iter().filter_map(|(done, name)| done.then_some(name))
    }
}

impl fmt::Display for InjectedFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.names().enumerate().try_for_each(|(place, name)| {
            let comma = if place > 0 { "," } else { "" };
            write!(f, "{comma}{name}")
        })
    }
}

/// Record of one message. Times are nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MessageRecord {
    /// Its number in its run; none if it was not made by a bench.
    pub seq: Option<u64>,
    /// Its run.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "in_words")]
    pub run: Option<Uuid>,
    /// Set for an acknowledgement document; its number is that of the message which it acknowledges.
    #[serde(skip_serializing_if = "DocumentKind::is_message")]
    pub kind: DocumentKind,
    /// Taken out of the outbox, or sent by B's application.
    #[serde(serialize_with = "nanoseconds")]
    pub consumed: Duration,
    /// Its reply settled: ECP's at once, EDX's at the end.
    #[serde(serialize_with = "optional_nanoseconds")]
    pub replied: Option<Duration>,
    /// Settled in the inbox.
    #[serde(serialize_with = "optional_nanoseconds")]
    pub inboxed: Option<Duration>,
    /// Its event DELIVERED, or of a connectivity test the one event, settled.
    #[serde(serialize_with = "optional_nanoseconds")]
    pub delivered: Option<Duration>,
    /// Its event RECEIVED settled.
    #[serde(serialize_with = "optional_nanoseconds")]
    pub received: Option<Duration>,
    /// Fate of the message.
    pub fate: MessageFate,
    /// Faults injected into it.
    #[serde(serialize_with = "as_text")]
    pub fault: InjectedFaults,
}

fn nanoseconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_nanos() as u64)
}

fn optional_nanoseconds<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_nanos() as u64).serialize(serializer)
}

fn in_words<S: Serializer>(run: &Option<Uuid>, serializer: S) -> Result<S::Ok, S::Error> {
    run.map(|run| run.to_string()).serialize(serializer)
}

fn as_text<S: Serializer>(faults: &InjectedFaults, serializer: S) -> Result<S::Ok, S::Error> {
    let done = faults.names().next().is_some();
    done.then(|| faults.to_string()).serialize(serializer)
}

/// Counts of the whole run. `consumed` is the sum of the six fates and of what is unfinished.
#[derive(Clone, Debug, Default)]
pub struct SimulationTotals {
    /// Messages that were still in the outbox at the end, if its broker is our own.
    pub waiting: u64,
    /// Messages taken out of the outbox.
    pub consumed: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Fate: in the inbox, and reported.
    pub delivered: u64,
    /// Fate: answered with an error.
    pub refused: u64,
    /// Fate: lost on purpose.
    pub lost: u64,
    /// Fate: reported as failed.
    pub failed: u64,
    /// Fate: connectivity tests.
    pub traced: u64,
    /// Fate: the broker did not accept the report.
    pub undeliverable: u64,
    /// Replies settled.
    pub replies: u64,
    /// Messages settled in the inbox, duplicates among them.
    pub inboxed: u64,
    /// Events DELIVERED.
    pub events_delivered: u64,
    /// Events RECEIVED.
    pub events_received: u64,
    /// Events FAILED.
    pub events_failed: u64,
    /// Events of connectivity tests.
    pub events_tracing: u64,
    /// Not replied to on purpose.
    pub unanswered: u64,
    /// Put into the inbox twice.
    pub duplicated: u64,
    /// Messages with a changed byte.
    pub corrupted: u64,
    /// Changed messages in the inbox, each copy counted.
    pub corrupt_copies: u64,
    /// Failed without a word: a toolbox's reply, the only one, was to be missing.
    pub failed_silently: u64,
    /// Held back.
    pub held_back: u64,
    /// Put into the inbox after a message of the same run with a higher number.
    pub overtaken: u64,
    /// Put into the inbox, as a document that rejects its message; duplicates are not counted.
    pub rejecting: u64,
    /// Out of the outbox to the reply settled.
    pub to_reply: Latencies,
    /// Out of the outbox to the inbox.
    pub to_inbox: Latencies,
    /// Out of the outbox to DELIVERED, or the event of a connectivity test.
    pub to_delivered: Latencies,
    /// Out of the outbox to RECEIVED.
    pub to_received: Latencies,
    /// The same of acknowledgement documents, which are in no other count; none if there were none.
    pub acknowledgements: Option<Box<Self>>,
}

/// The totals, as the last line of the record has them.
#[derive(Serialize)]
struct TotalsLine {
    waiting: u64,
    consumed: u64,
    bytes: u64,
    delivered: u64,
    refused: u64,
    lost: u64,
    failed: u64,
    traced: u64,
    undeliverable: u64,
    unfinished: u64,
    replies: u64,
    inboxed: u64,
    events: EventCounts,
    unanswered: u64,
    duplicated: u64,
    corrupted: u64,
    corrupt_copies: u64,
    failed_silently: u64,
    held_back: u64,
    overtaken: u64,
    rejecting: u64,
    latency_ms: TotalsLatencies,
    #[serde(skip_serializing_if = "Option::is_none")]
    acknowledgements: Option<Box<Self>>,
}

#[derive(Serialize)]
struct EventCounts {
    delivered: u64,
    received: u64,
    failed: u64,
    tracing: u64,
}

#[derive(Serialize)]
struct TotalsLatencies {
    replied: Option<LatencyMs>,
    inboxed: Option<LatencyMs>,
    delivered: Option<LatencyMs>,
    received: Option<LatencyMs>,
}

impl SimulationTotals {
    /// Messages that are on their way.
    pub fn unfinished(&self) -> u64 {
        let finished = self.delivered + self.refused + self.lost + self.failed + self.traced + self.undeliverable;
        self.consumed.saturating_sub(finished)
    }

    /// Counts a finished message.
    pub(super) fn count_fate(&mut self, record: &MessageRecord) {
        let fate = match record.fate {
            MessageFate::Unfinished => return,
            MessageFate::Delivered => &mut self.delivered,
            MessageFate::Refused => &mut self.refused,
            MessageFate::Lost => &mut self.lost,
            MessageFate::Failed => &mut self.failed,
            MessageFate::Traced => &mut self.traced,
            MessageFate::Undeliverable => &mut self.undeliverable,
        };
        *fate += 1;
    }

    /// The counts for messages of that kind.
    pub(super) fn of_mut(&mut self, kind: DocumentKind) -> &mut Self {
        match kind {
            DocumentKind::Message => self,
            DocumentKind::Acknowledgement => self.acknowledgements.get_or_insert_default(),
        }
    }

    /// The line that ends a record: `{"totals": …}`.
    pub fn to_line(&self) -> String {
        serde_json::json!({ "totals": self.line() }).to_string()
    }

    fn line(&self) -> TotalsLine {
        TotalsLine {
            waiting: self.waiting,
            consumed: self.consumed,
            bytes: self.bytes,
            delivered: self.delivered,
            refused: self.refused,
            lost: self.lost,
            failed: self.failed,
            traced: self.traced,
            undeliverable: self.undeliverable,
            unfinished: self.unfinished(),
            replies: self.replies,
            inboxed: self.inboxed,
            events: EventCounts {
                delivered: self.events_delivered,
                received: self.events_received,
                failed: self.events_failed,
                tracing: self.events_tracing,
            },
            unanswered: self.unanswered,
            duplicated: self.duplicated,
            corrupted: self.corrupted,
            corrupt_copies: self.corrupt_copies,
            failed_silently: self.failed_silently,
            held_back: self.held_back,
            overtaken: self.overtaken,
            rejecting: self.rejecting,
            latency_ms: TotalsLatencies {
                replied: self.to_reply.summary(),
                inboxed: self.to_inbox.summary(),
                delivered: self.to_delivered.summary(),
                received: self.to_received.summary(),
            },
            acknowledgements: self.acknowledgements.as_ref().map(|totals| Box::new(totals.line())),
        }
    }
}

impl MessageRecord {
    /// The line of the record.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).expect("a story has no keys that JSON lacks")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_is_a_line() {
        let record = MessageRecord {
            seq: Some(7),
            consumed: Duration::from_nanos(5),
            replied: Some(Duration::from_nanos(6)),
            fate: MessageFate::Lost,
            fault: InjectedFaults { drop: true, no_reply: true, ..InjectedFaults::default() },
            ..MessageRecord::default()
        };
        let line = r#"{"seq":7,"consumed":5,"replied":6,"inboxed":null,"delivered":null,"received":null,"fate":"lost","fault":"no_reply,drop"}"#;
        assert_eq!(record.to_line(), line);
    }

    #[test]
    fn totals_are_a_line_with_what_is_unfinished() {
        let mut totals = SimulationTotals { consumed: 5, ..SimulationTotals::default() };
        totals.count_fate(&MessageRecord { fate: MessageFate::Delivered, ..MessageRecord::default() });
        totals.count_fate(&MessageRecord { fate: MessageFate::Refused, ..MessageRecord::default() });
        totals.to_reply.record(Duration::from_millis(2));
        let value: serde_json::Value = serde_json::from_str(&totals.to_line()).unwrap();
        let totals = &value["totals"];
        assert_eq!((totals["unfinished"].as_u64(), totals["delivered"].as_u64()), (Some(3), Some(1)));
        assert!(totals["latency_ms"]["replied"]["p50"].as_f64().unwrap() >= 2.0);
        assert!(totals["latency_ms"]["inboxed"].is_null() && totals.get("acknowledgements").is_none());
    }

    #[test]
    fn acknowledgements_have_totals_and_lines_of_their_own() {
        let mut totals = SimulationTotals { consumed: 5, ..SimulationTotals::default() };
        totals.of_mut(DocumentKind::Acknowledgement).consumed = 4;
        let value: serde_json::Value = serde_json::from_str(&totals.to_line()).unwrap();
        let back = &value["totals"]["acknowledgements"];
        assert_eq!((value["totals"]["consumed"].as_u64(), back["consumed"].as_u64()), (Some(5), Some(4)));
        let record = MessageRecord { kind: DocumentKind::Acknowledgement, ..MessageRecord::default() };
        assert!(record.to_line().contains(r#""kind":"acknowledgement""#), "{}", record.to_line());
    }
}
