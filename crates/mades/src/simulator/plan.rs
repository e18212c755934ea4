//! Plan of the simulator: all its settings, as they are written in a plan file and on the command line.
use super::capacity::Capacity;
use super::delay::DelayDistribution;
use super::outage::Outage;
use super::plan_time::PlanTime;
use super::quantity;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The kind of endpoints in the pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EndpointMode {
    /// ECP: reply, inbox, events DELIVERED and RECEIVED
    #[default]
    Endpoint,
    /// EDX: inbox, and a reply with the final status
    Toolbox,
    /// ECP's connectivity tests: reply and one event
    Tracing,
}

/// Value that the event of a connectivity test reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum TracingValue {
    /// The value that the protocol prescribes.
    #[default]
    Tracing,
    /// The value that go-mades-bench needs: with TRACING it waits for ever.
    Delivered,
}

/// The time at which a message counts as received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ReceivedOn {
    /// The message is in the inbox, as ECP's own API has it.
    #[default]
    Inbox,
    /// The receiving application has accepted it from the inbox; only with queues of our own.
    Consume,
}

/// A part of the way: how long it takes, and what it can carry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Leg {
    /// Delay of a message that has been let through.
    pub delay: DelayDistribution,
    /// Limit of what is let through.
    pub capacity: Capacity,
}

/// Probabilities of faults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// The message is refused with an error reply (go-mades-bench dies of it).
    #[serde(deserialize_with = "quantity::probability")]
    pub reject: f64,
    /// Error code of that reply.
    pub reject_code: String,
    /// Text of that reply.
    pub reject_message: String,
    /// No reply is sent; the message goes its way.
    #[serde(deserialize_with = "quantity::probability")]
    pub no_reply: f64,
    /// The message is lost between A and B, silently.
    #[serde(deserialize_with = "quantity::probability")]
    pub drop: f64,
    /// It does not reach B, and A reports that: an event FAILED, a status document FAILED.
    #[serde(deserialize_with = "quantity::probability")]
    pub fail: f64,
    /// It is put into the inbox twice.
    #[serde(deserialize_with = "quantity::probability")]
    pub duplicate: f64,
    /// One byte of its payload is changed.
    #[serde(deserialize_with = "quantity::probability")]
    pub corrupt: f64,
    /// It comes later than its time, so that others overtake it.
    #[serde(deserialize_with = "quantity::probability")]
    pub reorder: f64,
    /// Limit of that delay.
    pub reorder_by: PlanTime,
    /// The acknowledgement document rejects the message.
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
    /// The probabilities, with their names.
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

/// All settings of the simulator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimulatorPlan {
    /// The kind of endpoints in the pair.
    pub mode: EndpointMode,
    /// Value that the event of a connectivity test reports.
    pub tracing_value: TracingValue,
    /// The time at which a message counts as received.
    pub received_on: ReceivedOn,
    /// Decides, with the message's number, what chance decides.
    pub seed: u64,
    /// Codes of endpoint B; any receiver code is taken if there are none.
    pub receivers: Vec<String>,
    /// Code of endpoint A.
    pub sender_code: String,
    /// The way from the outbox to the reply.
    pub accept: Leg,
    /// The way from the reply to B's inbox.
    pub network: Leg,
    /// The way from the inbox back to A: DELIVERED, or the toolbox's reply.
    pub acknowledge: Leg,
    /// Delay from DELIVERED to RECEIVED.
    pub receive: DelayDistribution,
    /// B's application sends an acknowledgement document for each message back into A's inbox.
    pub acknowledgement_documents: bool,
    /// Delay until it sends that document, from when it has the message.
    pub document_delay: DelayDistribution,
    /// Faults to inject.
    pub faults: Faults,
    /// Outages of the endpoints and of the network.
    pub outages: Vec<Outage>,
    /// Duration of a slow start: after each start of A everything is slower for that long, ten times at first, then
    /// less and less.
    pub slow_start: PlanTime,
    /// A longer payload is refused.
    #[serde(deserialize_with = "quantity::size")]
    pub max_payload_size: u64,
    /// Messages taken out of the outbox and not accepted yet.
    #[serde(deserialize_with = "quantity::count")]
    pub credit: u32,
    /// Messages that the pair keeps at a time; then it takes no more.
    #[serde(deserialize_with = "quantity::count")]
    pub max_stored_messages: u32,
    /// Bytes of them.
    #[serde(deserialize_with = "quantity::size")]
    pub max_stored_size: u64,
}

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
            max_payload_size: 64 << 20,
            credit: 200,
            max_stored_messages: 1_000_000,
            max_stored_size: 1 << 30,
        }
    }
}

/// Names of the plans that come with it.
pub const PRESETS: [&str; 3] = ["ideal", "ecp-2022", "custom-1563"];

impl SimulatorPlan {
    /// A plan that comes with it.
    ///
    /// `ideal` takes no time; `ecp-2022` is go-mades-bench's published run against ECP: 10.8 replies, 7.3 messages and
    /// 6.5 acknowledgements a second; `custom-1563` its run against another implementation: 1,563 messages a second,
    /// with 1.6 s from the inbox to the event at a window of 5,000.
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

    /// The delays that may need a file.
    pub fn delays_mut(&mut self) -> [&mut DelayDistribution; 5] {
        [
            &mut self.accept.delay,
            &mut self.network.delay,
            &mut self.acknowledge.delay,
            &mut self.receive,
            &mut self.document_delay,
        ]
    }

    /// Checks the plan.
    ///
    /// # Errors
    /// One sentence that names the knob.
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
