//! The part of a run record that only a run over MADES has: times between the stages of the Business Application API,
//! loads that imitate an electricity market, and errors with the endpoint's codes.
use crate::record::{LatencyMs, StageRow};
use serde::{Deserialize, Serialize};

/// Settings and results of a run over MADES, in addition to the figures that all protocols share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mades {
    /// What the run measured: endpoint (ECP), toolbox (EDX), tracing (connectivity tests) or amqp (only the broker).
    pub mode: String,
    /// URL of the outbox's broker, without the password.
    pub outbox_url: String,
    /// URL of the inbox's broker, without the password.
    pub inbox_url: String,
    /// Names and versions of the brokers, as the brokers reported them when a connection opened.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub brokers: Vec<MadesBroker>,
    /// Queues at the brokers that the run used, for example its outbox and its inbox.
    pub queues: Vec<MadesQueue>,
    /// Component code of the receiving endpoint, to which the run addressed all messages.
    pub receiver: String,
    /// Business type of the messages that the run sent.
    pub message_type: String,
    /// True if messages were sent as durable, so that a broker keeps them over a restart.
    pub durable: bool,
    /// Content of the messages: random, xml, or a file.
    pub payload: String,
    /// Maximum number of messages that may be under way at a time: created, but neither completed nor given up.
    pub max_in_transit: u64,
    /// Maximum number of messages that the bench sends to the broker before the broker has confirmed (settled) them.
    pub window: u64,
    /// Time after which the bench gives up on a message, in seconds.
    pub timeout_s: f64,
    /// Time-out of a message in seconds, as the user requested it. Present only if the bench raised it to `timeout_s`,
    /// because a threshold (`within`) gives messages more time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_timeout_s: Option<f64>,
    /// Number of messages that were under way at a time, averaged over the whole run.
    pub in_transit_mean: f64,
    /// Time that messages took from each stage to the next, for example from sent to settled (confirmed by the broker).
    pub hops: Vec<MadesHop>,
    /// Faults during the run, counted by kind and code.
    pub troubles: Vec<MadesTrouble>,
    /// Periods in which the bench had no connection to a broker; at most the first 100.
    pub outages: Vec<MadesOutage>,
    /// Messages that the broker delivered again, because a connection was cut before the broker learned that the bench
    /// had received them.
    pub redelivered: u64,
    /// Number of times that the bench received another sender's message from a queue and returned it to the queue.
    pub released: u64,
    /// Number of messages that were removed from the queues before the run, because --purge asked for it.
    pub purged: u64,
    /// Messages that came out of the inbox after another message that had been created later.
    pub reordered: u64,
    /// Messages that the bench created late, because `max_in_transit` or `window` was reached when they were due.
    pub waited_for_room: u64,
    /// Time of the endpoint's last reply, event or delivery, in seconds since the run began; `null` if there was none.
    pub last_answer_s: Option<f64>,
    /// Time in which a message could not be sent, because the broker gave no credit (AMQP's permission to send); `null`
    /// if the broker always gave credit.
    pub no_credit: Option<MadesNoCredit>,
    /// The load, if it imitates the documents of a market (`--shape`); `null` for any other load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub market: Option<MadesMarket>,
    /// Acknowledgement documents, with which the receiving application answers messages; `null` if the run used none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledgements: Option<MadesAcknowledgements>,
    /// Counts of `mailrun mades-endpoint`, which simulated the endpoints, for comparison with the bench's counts;
    /// `null` if it was not used, or if it crashed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truth: Option<MadesTruth>,
}

/// A broker, as it describes itself when a connection opens (AMQP 1.0 part 2 §2.7.1). Properties that the broker did
/// not send are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesBroker {
    /// Side of the run that uses the broker: outbox or inbox.
    pub side: String,
    /// Name by which the broker identifies itself (container-id).
    pub container: String,
    /// Name of the broker's product, for example `apache-activemq-artemis`.
    pub product: String,
    /// Version of the broker's product, for example `2.40.0`.
    pub version: String,
}

/// A load that imitates the documents that participants of an electricity market send, and how many of these messages
/// were sent and arrived in time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesMarket {
    /// Kinds of messages that make up the load (`--shape`), in the order in which the user gave them.
    pub shapes: Vec<MadesShape>,
    /// Number of seconds of market time that pass in one second of the run.
    pub acceleration: u32,
    /// Time zone of the market, for example `Europe/Oslo`. The quarter-hours of the market begin by the clock of this
    /// zone.
    pub time_zone: String,
    /// Messages that were due but never created, because too many were under way or there was no connection.
    pub missed: u64,
    /// What became of the messages that were due in each quarter-hour of the market's clock. Each quarter-hour has a
    /// row for each kind of message in `shapes`.
    pub windows: Vec<MadesWindow>,
}

/// A kind of message in a market's load: messages of one type that become due by one rule, such as every 5 minutes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesShape {
    /// The message type and the rule as the user typed them (`--shape`), for example `heartbeat every 5m`.
    pub name: String,
    /// Business type of the shape's messages, for example `HEARTBEAT`.
    pub message_type: String,
    /// Messages of this kind that were due, even if the bench could not create them.
    pub due: Option<u64>,
    /// Counts and latencies of the messages of this kind: a row for each stage on their way, for example `inbox`.
    pub stages: Vec<StageRow>,
}

/// What became of the messages of one shape (kind of message) that were due in one quarter-hour of market time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesWindow {
    /// Start of the quarter-hour on the market's clock with its offset, for example `2026-03-29T03:00:00+02:00`.
    pub begin: String,
    /// Start of the quarter-hour in seconds since the run began; 0 if it started before the run.
    pub from_s: f64,
    /// Name of the shape whose messages this row counts, for example `heartbeat every 5m`.
    pub shape: String,
    /// Messages that were due in the quarter-hour.
    pub due: u64,
    /// Messages that were due in the quarter-hour and were created.
    pub created: u64,
    /// Messages that arrived in the inbox. A tracing message counts as arrived when the bench got the event that
    /// reports its arrival.
    pub arrived: u64,
    /// Messages that reached the last stage of their way, before or after their time-out.
    pub completed: u64,
    /// Messages that reached the last stage of their way only after their time-out.
    pub late: u64,
    /// Longest time, in milliseconds, from when a message was due until it reached its last stage. Messages that
    /// reached this stage after their time-out are left out.
    pub slowest_ms: f64,
}

/// Who answers the messages of a run with acknowledgement documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum AcknowledgementSender {
    /// The bench takes the role of the receiving application and sends the acknowledgement documents.
    #[default]
    Bench,
    /// The receiver of the messages sends the documents, so the bench does not know what happened to them on their way.
    Receiver,
}

/// Counts and times of the acknowledgement documents, with which the receiving application answers messages. The bench
/// takes the role of this application, or waits for the documents of the real one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesAcknowledgements {
    /// Who sent the acknowledgement documents: the bench or the real receiver of the messages.
    pub sender: AcknowledgementSender,
    /// Name of the queue into which the bench put its documents; an empty name if the receiver sent the documents.
    pub outbox: String,
    /// Component code to which the bench addressed its documents: the sender's code in the messages that arrived. If
    /// the receiver sent the documents, this is the receiver's own code instead.
    pub receiver: String,
    /// Message type of the documents that the bench sent; empty if the receiver sent the documents.
    pub message_type: String,
    /// Acknowledgement documents that the bench sent, one for each message that arrived unchanged.
    pub sent: u64,
    /// Documents of the bench that the broker accepted.
    pub accepted: u64,
    /// Sent documents that the broker returned.
    pub returned: u64,
    /// Sent documents that the endpoint rejected with an error reply or a status.
    pub refused: u64,
    /// Sent documents that the endpoint gave up on, with an event FAILED or a final status of that name.
    pub failed: u64,
    /// Documents that were changed on their way to the sender's inbox. Each changed copy counts here. A changed
    /// document does not acknowledge its message.
    pub corrupt: u64,
    /// Messages whose document has a reason code other than A01 (accepted), so they count as not acknowledged.
    pub rejecting: u64,
    /// Documents that acknowledge no message of this run.
    pub unknown: u64,
    /// Acknowledgement documents that could not be read. The bench returned them to their queue.
    pub unreadable: u64,
    /// Time from a message's arrival in the inbox to the arrival of its acknowledgement.
    pub way_back_ms: Option<LatencyMs>,
}

/// Counts and times of the simulated endpoints (`mailrun mades-endpoint`), for comparison with the bench's own counts
/// and times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesTruth {
    /// A row for each number that both the simulator and the bench counted, for example the number of reported events.
    pub counts: Vec<MadesCount>,
    /// A row for each stage, with the times until messages reached the stage. The simulator and the bench measured
    /// these times independently.
    pub times: Vec<MadesTimes>,
}

/// A number that the simulator of the endpoints and the bench counted independently, to reveal errors of the bench.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesCount {
    /// Name of what was counted, for example `reported DELIVERED`.
    pub name: String,
    /// Number that the simulator of the endpoints counted, and that the bench should have counted as well.
    pub done: u64,
    /// The same number as the bench counted it. If it differs from `done`, the bench may have counted wrongly.
    pub seen: u64,
}

/// Times until messages reached a stage, as measured by the simulator of the endpoints and by the bench.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesTimes {
    /// Name of the stage whose times the row compares, or `inbox → acknowledged` for the times of acknowledgements.
    pub stage: String,
    /// Times from when the simulator took a message out of the outbox until the message reached the stage, as the
    /// simulator measured them.
    pub done_ms: Option<LatencyMs>,
    /// Times from when a message was created (closed loop) or due (open loop) until it reached the stage, as the bench
    /// measured them.
    pub seen_ms: Option<LatencyMs>,
}

/// A queue at a broker that the run used, and how often the bench got another sender's message from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesQueue {
    /// Purpose of the queue: outbox, reply, event or inbox.
    pub role: String,
    /// Name of the queue at the broker, for example `ecp.endpoint.outbox.reply`.
    pub name: String,
    /// Number of times that the bench received another sender's message from this queue and returned it.
    pub foreign: u64,
}

/// Time that messages took from one stage to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesHop {
    /// Stage from which the time is measured, for example sent.
    pub from: String,
    /// Stage until which the time is measured, for example settled (confirmed by the broker).
    pub to: String,
    /// Messages for which the bench knows the times at both stages.
    pub count: u64,
    /// Messages that reached the stage `to` before the stage `from`. Their time counts as 0.
    pub overtaken: u64,
    /// Distribution of the times; `null` if no message was timed at both stages.
    pub latency_ms: Option<LatencyMs>,
}

/// A kind of fault, and how often it occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesTrouble {
    /// Kind of the fault in a word or two, for example `error reply`, `FAILED` or `time-out`.
    pub kind: String,
    /// Code that the peer or the bench gave for the fault; empty if there is none.
    pub code: String,
    /// Text of the first fault of this kind and code.
    pub text: String,
    /// Number of faults of this kind and code.
    pub count: u64,
}

/// Time in which the bench could not send, because the broker gave no credit, which is AMQP's permission to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesNoCredit {
    /// Time at which a message first waited for credit, in seconds since the run began.
    pub first_s: f64,
    /// Total time in which messages waited for credit, in seconds.
    pub total_s: f64,
}

/// A period in which the bench had no connection to a broker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadesOutage {
    /// Side whose connection was lost: outbox or inbox.
    pub side: String,
    /// Start of the outage in seconds since the run began.
    pub began_s: f64,
    /// Seconds until the connection was open again or, if `to_the_end` is true, until the bench stopped trying.
    pub lasted_s: f64,
    /// True if the outage lasted until the run ended or the bench gave up on the connection.
    pub to_the_end: bool,
    /// Reason why the connection ended, in the words of the peer or the system.
    pub why: String,
}
