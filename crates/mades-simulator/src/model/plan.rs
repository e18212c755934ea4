//! The plan of the simulator, with all settings that a plan file or the command line can give.
use super::capacity::Capacity;
use super::delay::DelayDistribution;
use super::outage::Outage;
use super::quantity::{self, PlanTime};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EndpointMode {
    /// ECP: sends reply, inbox message, events DELIVERED and RECEIVED
    #[default]
    Endpoint,
    /// EDX: sends inbox message, then a reply with the final status
    Toolbox,
    /// ECP's connectivity tests: answers each test with a reply and one event
    Tracing,
}

/// State that the simulator reports in the event about a connectivity test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum TracingValue {
    /// The event says TRACING, as the protocol prescribes for a connectivity test.
    #[default]
    Tracing,
    /// The event says DELIVERED. go-mades-bench needs this state: if the event says TRACING, it waits forever.
    Delivered,
}

/// When the simulator sends the event RECEIVED about a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ReceivedOn {
    /// RECEIVED is sent once the message is in the inbox queue. ECP's own interface does the same.
    #[default]
    Inbox,
    /// RECEIVED is sent once the application has accepted the message; only with --embedded.
    Consume,
}

/// A part of a message's route: from the outbox to the reply, from endpoint A to the inbox of endpoint B, or the way of
/// B's report back to A.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Leg {
    /// Delay that is added after a message has passed the limits in `capacity`.
    pub delay: DelayDistribution,
    pub capacity: Capacity,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Probability that the message is refused with an error reply. go-mades-bench crashes on such a reply.
    #[serde(deserialize_with = "quantity::probability")]
    pub reject: f64,
    pub reject_code: String,
    pub reject_message: String,
    /// Probability that the sender gets no reply although the message is accepted and forwarded.
    #[serde(deserialize_with = "quantity::probability")]
    pub no_reply: f64,
    /// Probability that the message is lost silently between A and B.
    #[serde(deserialize_with = "quantity::probability")]
    pub drop: f64,
    /// Probability that a message fails: it does not reach endpoint B, and endpoint A reports FAILED to the sender in
    /// an event or a status document.
    #[serde(deserialize_with = "quantity::probability")]
    pub fail: f64,
    #[serde(deserialize_with = "quantity::probability")]
    pub duplicate: f64,
    #[serde(deserialize_with = "quantity::probability")]
    pub corrupt: f64,
    /// Probability that the message is delayed, so that other messages overtake it.
    #[serde(deserialize_with = "quantity::probability")]
    pub reorder: f64,
    pub reorder_by: PlanTime,
    #[serde(deserialize_with = "quantity::probability")]
    pub reject_documents: f64,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            reject: 0.0,
            reject_code: "ECP-STANDIN-001".to_owned(),
            reject_message: "the stand-in is configured to reject this message".to_owned(),
            no_reply: 0.0,
            drop: 0.0,
            fail: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            reorder: 0.0,
            reorder_by: PlanTime(Duration::from_millis(50)),
            reject_documents: 0.0,
        }
    }
}

impl Faults {
    fn probabilities(&self) -> [(&'static str, f64); 8] {
        [
            ("reject", self.reject),
            ("no_reply", self.no_reply),
            ("drop", self.drop),
            ("fail", self.fail),
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
            ("reorder", self.reorder),
            ("reject_documents", self.reject_documents),
        ]
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimulatorPlan {
    pub mode: EndpointMode,
    pub tracing_value: TracingValue,
    pub received_on: ReceivedOn,
    pub seed: u64,
    /// Component codes of endpoint B, or an empty list to accept every receiver code.
    pub receivers: Vec<String>,
    pub sender_code: String,
    /// Delay and capacity of endpoint A from taking a message from the outbox to sending its reply.
    pub accept: Leg,
    /// Delay and capacity of the network, over which a message goes from endpoint A to the inbox of endpoint B.
    pub network: Leg,
    /// Delay and capacity of B's report that makes A send the event DELIVERED or, in mode `toolbox`, the reply.
    pub acknowledge: Leg,
    pub receive: DelayDistribution,
    /// Set if B's application sends an acknowledgement document to A's inbox for each message.
    pub acknowledgement_documents: bool,
    /// Time that B's application takes from receiving a message to sending its acknowledgement document.
    pub document_delay: DelayDistribution,
    pub faults: Faults,
    pub outages: Vec<Outage>,
    /// Time that endpoint A needs to reach full speed, from the first message and after each outage of endpoint A. It
    /// begins with a tenth of its full speed, so all delays are ten times as long at first.
    pub slow_start: PlanTime,
    #[serde(deserialize_with = "quantity::size")]
    pub max_payload_size: u64,
    /// Maximum number of messages that endpoint A has taken from the outbox and not yet accepted.
    #[serde(deserialize_with = "quantity::count")]
    pub credit: u32,
    /// While the pair of endpoints holds this many unfinished messages, it takes no more messages from the outbox.
    #[serde(deserialize_with = "quantity::count")]
    pub max_stored_messages: u32,
    /// While the unfinished messages in the pair of endpoints have this many bytes or more, the pair takes no more
    /// messages from the outbox.
    #[serde(deserialize_with = "quantity::size")]
    pub max_stored_size: u64,
}

const DEFAULT_MAX_PAYLOAD_SIZE: u64 = 64 << 20;
/// Number of bytes by which a message may exceed the payload limit, because it has other sections besides the payload.
/// A payload slightly above the limit fits as well, so that it gets an error reply instead of ending the link.
const MESSAGE_SIZE_ROOM: u64 = 1 << 20;

impl Default for SimulatorPlan {
    fn default() -> Self {
        Self {
            mode: EndpointMode::Endpoint,
            tracing_value: TracingValue::Tracing,
            received_on: ReceivedOn::Inbox,
            seed: 1,
            receivers: Vec::new(),
            sender_code: "mailrun-endpoint-a".to_owned(),
            accept: Leg::default(),
            network: Leg::default(),
            acknowledge: Leg::default(),
            receive: DelayDistribution::default(),
            acknowledgement_documents: false,
            document_delay: DelayDistribution::default(),
            faults: Faults::default(),
            outages: Vec::new(),
            slow_start: PlanTime::default(),
            max_payload_size: DEFAULT_MAX_PAYLOAD_SIZE,
            credit: 200,
            max_stored_messages: 1_000_000,
            max_stored_size: 1 << 30,
        }
    }
}

pub const PRESETS: [&str; 3] = ["ideal", "ecp-2022", "custom-1563"];

impl SimulatorPlan {
    /// Returns a built-in plan, or `None` if there is no plan of this name.
    ///
    /// In the plan `ideal`, the endpoints have no delays and no rate limits. The plan `ecp-2022` has the rates of the
    /// run against ECP that go-mades-bench published: 10.8 replies, 7.3 messages and 6.5 acknowledgements per second.
    /// The plan `custom-1563` imitates another implementation, for which a run with up to 5,000 messages in flight was
    /// published: 1,563 messages per second, and 1.6 s from the inbox to the event.
    pub fn preset(name: &str) -> Option<Self> {
        let rate = |rate| Capacity { rate_per_s: Some(rate), ..Capacity::default() };
        let leg = |per_s| Leg { capacity: rate(per_s), delay: DelayDistribution::default() };
        match name {
            "ideal" => Some(Self::default()),
            "ecp-2022" => Some(Self { accept: leg(10.8), network: leg(7.3), acknowledge: leg(6.5), ..Self::default() }),
            "custom-1563" => Some(Self {
                network: leg(1563.0),
                acknowledge: Leg { delay: DelayDistribution::constant(Duration::from_millis(1600)), ..Leg::default() },
                ..Self::default()
            }),
            _ => None,
        }
    }

    pub fn delays_mut(&mut self) -> [&mut DelayDistribution; 5] {
        [
            &mut self.accept.delay,
            &mut self.network.delay,
            &mut self.acknowledge.delay,
            &mut self.receive,
            &mut self.document_delay,
        ]
    }

    /// Returns the maximum size in bytes of a message in the outbox. It exceeds `max_payload_size`, because the
    /// endpoint must receive a payload that is too long to answer it with an error reply. A message above this maximum
    /// size ends the AMQP link.
    pub fn max_message_bytes(&self) -> u64 {
        self.max_payload_size.max(DEFAULT_MAX_PAYLOAD_SIZE).saturating_add(MESSAGE_SIZE_ROOM)
    }

    /// Checks the ranges of probabilities, capacities and limits, because numbers in a plan are
    /// deserialized without a check.
    ///
    /// # Errors
    /// Fails for the first invalid setting. The error names the setting.
    pub fn check(&self) -> Result<(), String> {
        for (name, probability) in self.faults.probabilities() {
            if !(0.0..=1.0).contains(&probability) {
                return Err(format!(
                    "faults.{name}: {probability} is not a valid probability; use something like 0.001"
                ));
            }
        }
        self.accept.capacity.check("accept")?;
        self.network.capacity.check("network")?;
        self.acknowledge.capacity.check("acknowledge")?;
        if self.credit == 0 || self.max_stored_messages == 0 || self.max_stored_size == 0 {
            return Err("credit, max_stored_messages and max_stored_size must be more than 0".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_sound_and_have_their_names() {
        for name in PRESETS {
            assert_eq!(SimulatorPlan::preset(name).map(|plan| plan.check()), Some(Ok(())), "{name}");
        }
        assert_eq!(SimulatorPlan::preset("other"), None);
    }

    #[test]
    fn what_is_wrong_is_said_by_name() {
        let with = |change: fn(&mut SimulatorPlan)| {
            let mut plan = SimulatorPlan::default();
            change(&mut plan);
            plan.check().unwrap_err()
        };
        assert!(with(|plan| plan.faults.drop = 1.5).contains("faults.drop"));
        assert!(with(|plan| plan.faults.reject = f64::NAN).contains("faults.reject"));
        assert!(with(|plan| plan.network.capacity.workers = Some(0)).contains("network"));
        assert!(with(|plan| plan.accept.capacity.rate_per_s = Some(0.0)).contains("accept"));
        assert!(
            with(|plan| plan.accept.capacity.work = PlanTime(Duration::from_millis(1))).contains("requires workers")
        );
        assert!(with(|plan| plan.credit = 0).contains("credit"));
    }

    #[test]
    fn a_plan_is_read_as_it_is_written() {
        let mut plan = SimulatorPlan::preset("ecp-2022").unwrap();
        plan.outages = vec![Outage::parse("A.down 10s..15s").unwrap()];
        plan.receive = DelayDistribution::parse("exp:57ms").unwrap();
        plan.faults.drop = 0.25;
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<SimulatorPlan>(&text).unwrap(), plan);
        assert!(
            serde_json::from_str::<SimulatorPlan>(r#"{"faults": {"lost": 1}}"#).is_err(),
            "an unknown knob is no knob"
        );
    }
}
