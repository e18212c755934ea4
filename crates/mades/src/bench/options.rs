//! Options of the bench.
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

/// Contents of the payloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    /// Incompressible bytes, and a trace.
    Random,
    /// Incompressible bytes alone.
    Bare,
    /// A market document, which compresses well.
    Xml,
    /// A file, unchanged.
    File(PathBuf),
}

impl PayloadKind {
    /// The option's value as the user writes it.
    pub fn typed(&self) -> String {
        match self {
            Self::Random | Self::Bare => "random".to_owned(),
            Self::Xml => "xml".to_owned(),
            Self::File(path) => path.to_string_lossy().into_owned(),
        }
    }
}

/// Treatment of messages that are in the queues before the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// They belong to another application and are left there.
    Kept,
    /// They are removed.
    Purged,
}

/// A first message before the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadesPreflight {
    /// One message is sent, and the run begins when it was answered.
    On,
    /// The load begins at once.
    Off,
}

/// Acknowledgement documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcknowledgementOptions {
    /// The bench sends them, as the receiving business application.
    Sent {
        /// Their message type.
        message_type: String,
        /// Outbox of the receiving endpoint, at the broker of the inbox. Without one, the endpoint sends to itself: the way
        /// back is that of the messages.
        far_outbox: Option<String>,
    },
    /// The receiver sends them.
    Awaited {
        /// The sender's inbox is at the broker of the outbox, because the receiver's is at another.
        is_far: bool,
    },
}

impl AcknowledgementOptions {
    /// Reports whether they come into an inbox that the messages do not come into.
    pub(super) fn are_far(&self) -> bool {
        match self {
            Self::Sent { far_outbox, .. } => far_outbox.is_some(),
            Self::Awaited { is_far } => *is_far,
        }
    }
}

/// All options of the bench.
#[derive(Clone, Debug)]
pub struct MadesOptions {
    /// Name of the run.
    pub name: String,
    /// Part of the chain that is measured.
    pub mode: MadesMode,
    /// Broker of the outbox.
    pub outbox: Broker,
    /// Broker of the inbox.
    pub inbox: Broker,
    /// Names of the endpoint's queues.
    pub queues: EndpointQueueNames,
    /// Number of messages; `None` if the duration decides.
    pub messages: Option<u64>,
    /// Length of the run; `None` if the number of messages decides.
    pub duration: Option<Duration>,
    /// Sizes of the payloads.
    pub sizes: Distribution,
    /// Content of the payloads.
    pub payload: PayloadKind,
    /// Code of the receiver.
    pub receiver: String,
    /// Message type, for ECP and EDX.
    pub message_type: String,
    /// The sender application that messages name.
    pub sender_application: String,
    /// The priority that messages carry; without one the protocol's default of 4 applies.
    pub priority: Option<u8>,
    /// The first message's number.
    pub first_number: u64,
    /// Durable messages: the broker keeps them over a restart.
    pub is_durable: bool,
    /// Largest number of messages created and not finished.
    pub max_in_transit: usize,
    /// Largest number of transfers handed over and not settled.
    pub window: u32,
    /// Messages that the broker may send ahead, per queue.
    pub credit: u32,
    /// Open loop: the load that is offered whatever the endpoint does.
    pub offer: Option<OfferedRate>,
    /// Open loop: the documents of a market, at its times.
    pub market: Option<MarketLoad>,
    /// Distribution of messages over time.
    pub arrival: Arrival,
    /// Seed of all random choices.
    pub seed: u64,
    /// Time after which a message is given up.
    pub timeout: Duration,
    /// Time after the last answer for which the queues are still read, for late messages and duplicates.
    pub linger: Duration,
    /// Time for which reconnecting a lost connection is tried.
    pub reconnect: Duration,
    /// Treatment of messages that are in the queues before the run.
    pub leftovers: Leftovers,
    /// A first message before the load.
    pub preflight: MadesPreflight,
    /// Acknowledgement documents; `None` if there are none.
    pub acknowledgement: Option<AcknowledgementOptions>,
    /// Identifier of the run; a new one if `None`.
    pub run: Option<RunId>,
    /// Directory for results.
    pub out: Option<PathBuf>,
    /// Form of the progress reports.
    pub live: LiveMode,
    /// Observer of the run.
    pub observer: Option<Rc<dyn RunObserver>>,
    /// The command line without passwords.
    pub command: Vec<String>,
    /// Thresholds that the run is judged by.
    pub thresholds: Vec<mailrun_journey::threshold::Threshold>,
    /// Thresholds that end the run at once if it misses them.
    pub abort_on: Vec<mailrun_journey::threshold::Threshold>,
}

impl MadesOptions {
    /// The way of the messages.
    pub fn path(&self) -> MessagePath {
        let is_on = self.acknowledgement.is_some();
        let acknowledgement = if is_on { AcknowledgementMode::On } else { AcknowledgementMode::Off };
        MessagePath { mode: self.mode, acknowledgement }
    }

    /// Queue that the bench puts acknowledgements into.
    pub(super) fn acknowledgement_outbox(&self) -> Option<&str> {
        let AcknowledgementOptions::Sent { far_outbox, .. } = self.acknowledgement.as_ref()? else { return None };
        match self.mode {
            MadesMode::Tracing => None,
            // The broker alone: into the queue that the messages go into.
            MadesMode::Amqp => Some(&self.queues.inbox),
            MadesMode::Endpoint | MadesMode::Toolbox => Some(far_outbox.as_ref().unwrap_or(&self.queues.outbox)),
        }
    }

    /// Time for which messages may be created.
    pub(super) fn limit(&self) -> Option<Duration> {
        let stages = self.offer.as_ref().and_then(OfferedRate::length);
        self.duration.into_iter().chain(stages).min()
    }

    /// The requested rate, if the run can be held to one.
    pub(super) fn rate_per_s(&self) -> Option<f64> {
        let offer = self.offer.as_ref()?;
        let is_whole = offer.length().is_none() || (self.messages.is_none() && self.limit() == offer.length());
        is_whole.then(|| offer.mean_per_s(0.0))
    }
}
