//! What a run over the Business Application API of MADES has beside what every run has: stages of its own, the steps
//! between them, and troubles with the endpoint's own codes.
//!
//! The record's common stages say the same in common words, so that protocols can be compared: accepted is settled,
//! delivered is inbox (of a tracing message: its event), notified is the last event or the final reply.
use crate::record::LatencyMs;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The part of a record that only a run over MADES has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Mades {
    /// endpoint, toolbox, amqp or tracing.
    pub mode: String,
    /// Where the outbox is; without the password.
    pub outbox_url: String,
    /// Where the inbox is.
    pub inbox_url: String,
    /// Queues: of each what it is for, and its name.
    pub queues: Vec<MadesQueue>,
    /// Who the messages are for.
    pub receiver: String,
    /// Their type.
    pub message_type: String,
    /// Whether messages are durable.
    pub durable: bool,
    /// What the messages consist of: random, xml, or a file.
    pub payload: String,
    /// Messages created and not at their end, at most.
    pub max_in_transit: u64,
    /// Transfers handed over and not settled, at most.
    pub window: u64,
    /// After that a message is not waited for any more.
    pub timeout_s: f64,
    /// Messages under way, in the mean over the run.
    pub in_transit_mean: f64,
    /// The stages, in order.
    pub stages: Vec<MadesStage>,
    /// The steps from each to the next.
    pub hops: Vec<MadesHop>,
    /// What went wrong, by kind and code.
    pub troubles: Vec<MadesTrouble>,
    /// Times without a connection.
    pub outages: Vec<MadesOutage>,
    /// Messages that came twice because a connection was cut before the broker knew that the bench had them.
    pub redelivered: u64,
    /// Somebody else's messages that came from the queues and were given back.
    pub released: u64,
    /// Messages removed from the queues before the run, because --purge asked for it.
    pub purged: u64,
    /// Messages that came out of the inbox after one that was created later.
    #[serde(default)]
    pub reordered: u64,
    /// Messages that were due, or could have been created, and had to wait for a place in transit or in the window.
    #[serde(default)]
    pub waited_for_room: u64,
    /// What the stand-in for the endpoints says it did, where there was one that is known to tell the truth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truth: Option<MadesTruth>,
}

/// What a stand-in did, beside what was seen of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MadesTruth {
    /// What can be counted.
    pub counts: Vec<MadesCount>,
    /// How long messages took to each stage.
    pub times: Vec<MadesTimes>,
}

/// A number that both know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MadesCount {
    /// Of what.
    pub name: String,
    /// How many the stand-in made.
    pub done: u64,
    /// How many the bench saw.
    pub seen: u64,
}

/// Times that both know.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MadesTimes {
    /// The stage.
    pub stage: String,
    /// Since the stand-in took the message out of the outbox.
    pub done_ms: Option<LatencyMs>,
    /// Since the message was created, or was due, as the bench saw it.
    pub seen_ms: Option<LatencyMs>,
}

/// A queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MadesQueue {
    /// outbox, reply, event or inbox.
    pub role: String,
    /// Its name at the broker.
    pub name: String,
    /// Somebody else's messages that came from it, and were given back.
    #[serde(default)]
    pub foreign: u64,
}

/// A stage of the journey.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MadesStage {
    /// created, sent, settled, replied, inbox, DELIVERED, RECEIVED or TRACING.
    pub name: String,
    /// Messages that reached it.
    pub count: u64,
    /// Messages that did not, though nobody said why.
    pub missing: u64,
    /// Arrivals after a message's first.
    pub duplicates: u64,
    /// Messages that reached it after their time-out; these have no latency.
    pub late: u64,
    /// `count / duration_s`.
    pub rate_per_s: f64,
    /// `count` over the time in which load was offered; `null` in older records.
    #[serde(default)]
    pub offered_rate_per_s: Option<f64>,
    /// From the first message created to the last that reached this stage.
    pub duration_s: f64,
    /// Since it was created; at open loop since it was due. `null` where nothing was timed.
    pub latency_ms: Option<LatencyMs>,
    /// The same as an HdrHistogram of nanoseconds (V2, deflated, base64), as it stands in interval logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,
}

/// A step from one stage to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MadesHop {
    /// The stage it begins at.
    pub from: String,
    /// The stage it ends at.
    pub to: String,
    /// Messages that were timed at both.
    pub count: u64,
    /// Messages that reached the second stage first; they count as a step of no length.
    pub overtaken: u64,
    /// How long it took; `null` where nothing was timed.
    pub latency_ms: Option<LatencyMs>,
}

/// Something that went wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MadesTrouble {
    /// In a word or two: error reply, FAILED, time-out, …
    pub kind: String,
    /// The peer's own code; empty where it gave none.
    pub code: String,
    /// What was said first.
    pub text: String,
    /// How often.
    pub count: u64,
}

/// A time without a connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MadesOutage {
    /// outbox or inbox.
    pub side: String,
    /// Seconds since the run began.
    pub began_s: f64,
    /// How long.
    pub lasted_s: f64,
    /// Whether it lasted until the run ended, or the connection was given up.
    #[serde(default)]
    pub to_the_end: bool,
    /// How the connection ended.
    pub why: String,
}
