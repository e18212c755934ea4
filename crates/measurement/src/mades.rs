//! Fields of a run record that only MADES has: the steps between the stages of the Business
//! Application API, the loads of a market, and errors with the endpoint's codes.
use crate::record::{LatencyMs, StageRow};
use serde::{Deserialize, Serialize};

/// The part of a record that only a run over MADES has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mades {
    /// endpoint, toolbox, amqp or tracing.
    pub mode: String,
    /// URL of the outbox; without the password.
    pub outbox_url: String,
    /// URL of the inbox.
    pub inbox_url: String,
    /// The brokers, as they name themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub brokers: Vec<MadesBroker>,
    /// Queues with their purpose and name.
    pub queues: Vec<MadesQueue>,
    /// Recipient of the messages.
    pub receiver: String,
    /// Type of the messages that are sent.
    pub message_type: String,
    /// True if messages are durable.
    pub durable: bool,
    /// Content of the messages: random, xml, or a file.
    pub payload: String,
    /// Largest number of messages that are created and not at their end.
    pub max_in_transit: u64,
    /// Largest number of transfers that are handed over and not settled.
    pub window: u64,
    /// Time after which a message is given up.
    pub timeout_s: f64,
    /// The shorter time that was asked for, if a threshold (`within`) needs a longer one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_timeout_s: Option<f64>,
    /// Mean number of messages under way over the run.
    pub in_transit_mean: f64,
    /// The steps from each to the next.
    pub hops: Vec<MadesHop>,
    /// Faults, by kind and code.
    pub troubles: Vec<MadesTrouble>,
    /// Times without a connection.
    pub outages: Vec<MadesOutage>,
    /// Messages that came twice because a connection was cut before the broker learned that the bench had them.
    pub redelivered: u64,
    /// Messages of others that came from the queues and were given back.
    pub released: u64,
    /// Messages removed from the queues before the run, because --purge asked for it.
    pub purged: u64,
    /// Messages that came out of the inbox after one that was created later.
    pub reordered: u64,
    /// Messages that were due, or could have been created, and had to wait for a place in transit or in the window.
    pub waited_for_room: u64,
    /// Time of the endpoint's last reply, event or delivery, since the run began; `null` if there was none.
    pub last_answer_s: Option<f64>,
    /// Time in which the broker gave no credit for a message that was to be sent; `null` if it always did.
    pub no_credit: Option<MadesNoCredit>,
    /// The market whose documents and times are the load, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub market: Option<MadesMarket>,
    /// The acknowledgement documents that the receiving application sent back, if it was to send any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledgements: Option<MadesAcknowledgements>,
    /// Counts of the stand-in for the endpoints itself, if there was one whose counts are known to be true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truth: Option<MadesTruth>,
}

/// A broker, as its open names it (AMQP 1.0 part 2 §2.7.1). Empty texts: it did not say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesBroker {
    /// outbox or inbox.
    pub side: String,
    /// Its container-id.
    pub container: String,
    /// Name of the product.
    pub product: String,
    /// Version of the product.
    pub version: String,
}

/// The load of a market.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesMarket {
    /// The shapes, in the order of the options.
    pub shapes: Vec<MadesShape>,
    /// Seconds of the market in one of the run.
    pub acceleration: u32,
    /// Time zone of the market.
    pub time_zone: String,
    /// Messages that were due and never created, because there was no room for them or no connection.
    pub missed: u64,
    /// For each quarter-hour of the market a row of each shape that had messages due in it.
    pub windows: Vec<MadesWindow>,
}

/// A shape of a market's load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesShape {
    /// The shape as it was typed: `heartbeat every 5m`.
    pub name: String,
    /// Type of its messages.
    pub message_type: String,
    /// Its messages that were due, created or not.
    pub due: Option<u64>,
    /// The stages of its messages, as in the run.
    pub stages: Vec<StageRow>,
}

/// Messages of a shape that were due in one quarter-hour of the market.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesWindow {
    /// Start of the quarter-hour on the market's clock, with its offset: `2026-03-29T03:00:00+02:00`.
    pub begin: String,
    /// The same in seconds since the run began; 0 if it began before the run.
    pub from_s: f64,
    /// Name of the shape.
    pub shape: String,
    /// Messages that were due.
    pub due: u64,
    /// Of these, created.
    pub created: u64,
    /// Arrived in the inbox; of tracing messages, the event.
    pub arrived: u64,
    /// Reached the last stage.
    pub completed: u64,
    /// Completed messages that came after their time-out.
    pub late: u64,
    /// Longest time from due to the last stage, of those that came before their time-out.
    pub slowest_ms: f64,
}

/// Sender of acknowledgement documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum AcknowledgementSender {
    /// The bench, as the receiving application.
    #[default]
    Bench,
    /// The receiver of the messages. What happened to its documents on their way is unknown.
    Receiver,
}

/// Acknowledgement documents, which the bench sent back as the receiving application, or awaited from the receiver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesAcknowledgements {
    /// Sender of the documents.
    pub sender: AcknowledgementSender,
    /// Queue that they went into; empty if the receiver sent them.
    pub outbox: String,
    /// Code that they were addressed to: the sender's, as the inbox had it. If the receiver sent them, its own.
    pub receiver: String,
    /// Their message type; empty if the receiver sent them.
    pub message_type: String,
    /// Documents sent: one for each message that arrived unchanged.
    pub sent: u64,
    /// Of these, accepted by the broker.
    pub accepted: u64,
    /// Returned by the broker.
    pub returned: u64,
    /// Rejected by the endpoint, with an error reply or a status.
    pub refused: u64,
    /// Given up by the endpoint: an event FAILED, or a final status of that name.
    pub failed: u64,
    /// Documents that came out of the sender's inbox changed; each copy counts, and acknowledges nothing.
    pub corrupt: u64,
    /// Messages whose document has a reason code other than A01. They are not in the stage acknowledged.
    pub rejecting: u64,
    /// Documents that acknowledge no message of this run.
    pub unknown: u64,
    /// Acknowledgement documents that could not be read.
    pub unreadable: u64,
    /// Time of the way back, from the inbox to the acknowledgement.
    pub way_back_ms: Option<LatencyMs>,
}

/// Counts of a stand-in, beside the bench's own counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesTruth {
    /// The counts.
    pub counts: Vec<MadesCount>,
    /// Times that messages took to each stage.
    pub times: Vec<MadesTimes>,
}

/// A number that both have counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesCount {
    /// Name of the number.
    pub name: String,
    /// Count of the stand-in.
    pub done: u64,
    /// Count of the bench.
    pub seen: u64,
}

/// Times that both have measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesTimes {
    /// The stage.
    pub stage: String,
    /// Since the stand-in took the message out of the outbox.
    pub done_ms: Option<LatencyMs>,
    /// Since the message was created, or was due, as the bench saw it.
    pub seen_ms: Option<LatencyMs>,
}

/// A queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesQueue {
    /// outbox, reply, event or inbox.
    pub role: String,
    /// Its name at the broker.
    pub name: String,
    /// Messages of others that came from it, and were given back.
    pub foreign: u64,
}

/// A step from one stage to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesHop {
    /// The stage it begins at.
    pub from: String,
    /// The stage it ends at.
    pub to: String,
    /// Messages that were timed at both.
    pub count: u64,
    /// Messages that reached the second stage first; they count as a step of zero length.
    pub overtaken: u64,
    /// Duration of the step; `null` if nothing was timed.
    pub latency_ms: Option<LatencyMs>,
}

/// A fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesTrouble {
    /// Kind in a word or two: error reply, FAILED, time-out, …
    pub kind: String,
    /// The peer's own code; empty if it gave none.
    pub code: String,
    /// The first text reported.
    pub text: String,
    /// Number of times.
    pub count: u64,
}

/// Time in which the broker let the bench send nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesNoCredit {
    /// Seconds since the run began, when a message first waited for credit.
    pub first_s: f64,
    /// Sum of all waits in seconds.
    pub total_s: f64,
}

/// A time without a connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesOutage {
    /// outbox or inbox.
    pub side: String,
    /// Seconds since the run began.
    pub began_s: f64,
    /// Length in seconds.
    pub lasted_s: f64,
    /// True if it lasted until the run ended, or the connection was given up.
    pub to_the_end: bool,
    /// Reason why the connection ended.
    pub why: String,
}
