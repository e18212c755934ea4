//! The simulator's record of each message, and the totals of all messages. The bench's own counts are compared with
//! this record.
use mailrun_measurement::Latencies;
use mailrun_measurement::record::LatencyMs;
use serde::{Serialize, Serializer};
use std::fmt;
use std::time::Duration;
use uuid::Uuid;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageFate {
    #[default]
    Unfinished,
    /// The message is in the receiving endpoint's inbox, and the sending endpoint has reported that, unless a fault
    /// suppressed its report.
    Delivered,
    Refused,
    Lost,
    Failed,
    Traced,
    /// The broker or the receiver's application rejected the message, or the broker rejected the reply or an event
    /// about the message.
    Undeliverable,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DocumentKind {
    #[default]
    Message,
    /// An acknowledgement: a document that the receiver's application sends, or a message of the bench whose
    /// `baCorrelationID` names the message that it acknowledges.
    Acknowledgement,
}

/// Bit that is flipped in the number of an acknowledgement before its random faults are drawn. An acknowledgement has
/// the same number as the acknowledged message, so both would otherwise always have the same faults.
const ACKNOWLEDGEMENT_BIT: u64 = 1 << 63;

impl DocumentKind {
    /// Returns the number on which random decisions about a document depend. An acknowledgement gets another number
    /// than the message that it acknowledges, because the same number would always give both the same faults.
    pub(crate) fn chance_number(self, number: u64) -> u64 {
        match self {
            Self::Message => number,
            Self::Acknowledgement => number ^ ACKNOWLEDGEMENT_BIT,
        }
    }

    /// Used by serde to leave out the kind `Message`, which most records have.
    fn is_message(&self) -> bool {
        *self == Self::Message
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InjectedFaults {
    pub reject: bool,
    pub no_reply: bool,
    pub drop: bool,
    pub fail: bool,
    pub duplicate: bool,
    pub corrupt: bool,
    pub reorder: bool,
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

/// Record of one message, with times in nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MessageRecord {
    /// Number of the message in its run, or `None` if no bench sent the message.
    pub seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "in_words")]
    pub run: Option<Uuid>,
    /// Distinguishes an acknowledgement from the message that it acknowledges, which has the same number.
    #[serde(skip_serializing_if = "DocumentKind::is_message")]
    pub kind: DocumentKind,
    /// Time at which the message was taken from the outbox or, for a document, sent by the receiver's application.
    #[serde(serialize_with = "nanoseconds")]
    pub consumed: Duration,
    /// Time at which the reply was stored in its queue: the broker has then accepted it. An ECP endpoint replies before
    /// all other steps, and an EDX toolbox after them.
    #[serde(serialize_with = "optional_nanoseconds")]
    pub replied: Option<Duration>,
    #[serde(serialize_with = "optional_nanoseconds")]
    pub inboxed: Option<Duration>,
    /// Time at which the event DELIVERED or, in a connectivity test, the event TRACING was stored in its queue.
    #[serde(serialize_with = "optional_nanoseconds")]
    pub delivered: Option<Duration>,
    #[serde(serialize_with = "optional_nanoseconds")]
    pub received: Option<Duration>,
    pub fate: MessageFate,
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

/// Counts of what happened in a simulation, with which the bench's own counts are compared. Each message in `consumed`
/// also counts under one of the six fates, such as `delivered`, unless it is unfinished.
#[derive(Clone, Debug, Default)]
pub struct SimulationTotals {
    /// Number of messages that were still in the outbox at the end. Always 0 if the outbox is at a broker and not in
    /// the memory of the simulator, because the simulator cannot ask a broker for this number.
    pub waiting: u64,
    pub consumed: u64,
    pub bytes: u64,
    /// Number of messages that endpoint B put into its inbox and endpoint A reported to the sender as received. A
    /// message also counts if a fault suppressed this report.
    pub delivered: u64,
    pub refused: u64,
    pub lost: u64,
    pub failed: u64,
    pub traced: u64,
    /// Number of messages that the broker or the receiver rejected, or whose reply or event the broker rejected.
    pub undeliverable: u64,
    pub replies: u64,
    /// Number of messages that endpoint B put into its inbox, including duplicates.
    pub inboxed: u64,
    pub events_delivered: u64,
    pub events_received: u64,
    pub events_failed: u64,
    pub events_tracing: u64,
    pub unanswered: u64,
    pub duplicated: u64,
    pub corrupted: u64,
    /// Number of messages that are put into the inbox with changed content. Both copies of a duplicated message count.
    pub corrupt_copies: u64,
    /// Number of messages whose failure was not reported, because a fault suppressed the reply of the EDX toolbox.
    pub failed_silently: u64,
    pub held_back: u64,
    /// Number of messages that were put into the inbox after a message of the same run with a higher number.
    pub overtaken: u64,
    /// Number of acknowledgement documents in the inbox that reject their message. Duplicates are not counted.
    pub rejecting: u64,
    /// Times from when a message was taken from the outbox until its reply was stored in the reply queue.
    pub to_reply: Latencies,
    pub to_inbox: Latencies,
    /// Times from when a message was taken from the outbox until the event DELIVERED or, in a connectivity test, the
    /// event TRACING was stored in the event queue.
    pub to_delivered: Latencies,
    pub to_received: Latencies,
    /// Counts of acknowledgement documents, which no other count includes. `None` if the run had no
    /// acknowledgement documents.
    pub acknowledgements: Option<Box<Self>>,
}

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
    pub fn unfinished(&self) -> u64 {
        let finished = self.delivered + self.refused + self.lost + self.failed + self.traced + self.undeliverable;
        self.consumed.saturating_sub(finished)
    }

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

    pub(super) fn of_mut(&mut self, kind: DocumentKind) -> &mut Self {
        match kind {
            DocumentKind::Message => self,
            DocumentKind::Acknowledgement => self.acknowledgements.get_or_insert_default(),
        }
    }

    /// Returns the last line of the message log: `{"totals": …}`.
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
