use super::market::MarketLoad;
use super::observer::RunObserver;
use super::stages::{AcknowledgementMode, MadesMode, MessagePath};
use crate::Broker;
use crate::api::EndpointQueueNames;
use mailrun_journey::RunId;
use mailrun_journey::record::Arrival;
use mailrun_party::live::LiveMode;
use mailrun_workload::distribution::Distribution;
use mailrun_workload::offered_rate::OfferedRate;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    /// Incompressible bytes with a trace.
    Random,
    /// Incompressible bytes without a trace.
    Bare,
    /// A market document, which compresses well.
    Xml,
    File(PathBuf),
}

impl PayloadKind {
    /// The option's value as the user types it.
    pub fn typed(&self) -> String {
        match self {
            Self::Random | Self::Bare => "random".to_owned(),
            Self::Xml => "xml".to_owned(),
            Self::File(path) => path.to_string_lossy().into_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// They belong to another application and stay there.
    Kept,
    /// They are removed.
    Purged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadesPreflight {
    /// Send one message, and begin the load when it was answered.
    On,
    Off,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcknowledgementOptions {
    /// The bench sends them, as the receiving business application.
    Sent {
        message_type: String,
        /// Outbox of the receiving endpoint, at the inbox's broker. If `None`, the endpoint sends to itself, over the
        /// same route as the messages.
        far_outbox: Option<String>,
    },
    Awaited {
        /// The sender's inbox is at the outbox's broker, because the receiver's inbox is at another broker.
        is_far: bool,
    },
}

impl AcknowledgementOptions {
    /// Reports whether they arrive in another inbox than the messages.
    pub(super) fn are_far(&self) -> bool {
        match self {
            Self::Sent { far_outbox, .. } => far_outbox.is_some(),
            Self::Awaited { is_far } => *is_far,
        }
    }
}

#[derive(Clone, Debug)]
pub struct MadesOptions {
    pub name: String,
    pub mode: MadesMode,
    pub outbox: Broker,
    pub inbox: Broker,
    pub queues: EndpointQueueNames,
    /// Number of messages, or `None` if the duration decides.
    pub messages: Option<u64>,
    /// Length of the run, or `None` if the number of messages decides.
    pub duration: Option<Duration>,
    pub sizes: Distribution,
    pub payload: PayloadKind,
    pub receiver: String,
    pub message_type: String,
    pub sender_application: String,
    /// Priority of the messages. If `None`, the protocol's default of 4 applies.
    pub priority: Option<u8>,
    pub first_number: u64,
    /// The broker keeps the messages over a restart.
    pub is_durable: bool,
    /// Maximum number of messages created but not finished.
    pub max_in_transit: usize,
    /// Maximum number of transfers sent but not settled.
    pub window: u32,
    /// Messages that the broker may send ahead, per queue.
    pub credit: u32,
    /// Open loop: the rate, regardless of how fast the endpoint is.
    pub offer: Option<OfferedRate>,
    /// Open loop: the documents of a market, at their times.
    pub market: Option<MarketLoad>,
    pub arrival: Arrival,
    pub seed: u64,
    /// Time after which a message counts as failed.
    pub timeout: Duration,
    /// Time for which the queues are read after the last answer, to see late messages and duplicates.
    pub linger: Duration,
    /// Time limit for reconnecting after a lost connection.
    pub reconnect: Duration,
    pub leftovers: Leftovers,
    pub preflight: MadesPreflight,
    pub acknowledgement: Option<AcknowledgementOptions>,
    /// Id of the run. If `None`, a new one is chosen.
    pub run: Option<RunId>,
    pub out: Option<PathBuf>,
    pub live: LiveMode,
    pub observer: Option<Rc<dyn RunObserver>>,
    /// The command line without passwords.
    pub command: Vec<String>,
    pub thresholds: Vec<mailrun_journey::threshold::Threshold>,
    /// Thresholds that end the run at once when missed.
    pub abort_on: Vec<mailrun_journey::threshold::Threshold>,
}

impl MadesOptions {
    pub fn path(&self) -> MessagePath {
        let is_on = self.acknowledgement.is_some();
        let acknowledgement = if is_on { AcknowledgementMode::On } else { AcknowledgementMode::Off };
        MessagePath { mode: self.mode, acknowledgement }
    }

    /// Queue to which the bench sends acknowledgements.
    pub(super) fn acknowledgement_outbox(&self) -> Option<&str> {
        let AcknowledgementOptions::Sent { far_outbox, .. } = self.acknowledgement.as_ref()? else { return None };
        match self.mode {
            MadesMode::Tracing => None,
            // Without endpoints, acknowledgements go into the same queue as the messages.
            MadesMode::Amqp => Some(&self.queues.inbox),
            MadesMode::Endpoint | MadesMode::Toolbox => Some(far_outbox.as_ref().unwrap_or(&self.queues.outbox)),
        }
    }

    pub(super) fn limit(&self) -> Option<Duration> {
        let stages = self.offer.as_ref().and_then(OfferedRate::length);
        self.duration.into_iter().chain(stages).min()
    }

    /// The requested rate, if the load has one.
    pub(super) fn rate_per_s(&self) -> Option<f64> {
        let offer = self.offer.as_ref()?;
        let is_whole = offer.length().is_none() || (self.messages.is_none() && self.limit() == offer.length());
        is_whole.then(|| offer.mean_per_s(0.0))
    }
}
