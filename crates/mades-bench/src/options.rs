use super::market::MarketLoad;
use super::stages::{AcknowledgementMode, MadesMode, MessagePath, RunObserver};
use mailrun_mades::Broker;
use mailrun_mades::api::EndpointQueueNames;
use mailrun_measurement::RunId;
use mailrun_measurement::record::Arrival;
use mailrun_process::live::LiveMode;
use mailrun_schedule::distribution::Distribution;
use mailrun_schedule::offered_rate::OfferedRate;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    /// A trace header, followed by incompressible bytes. The receiver uses the trace to recognise the message and to
    /// check its bytes.
    Random,
    /// Incompressible bytes without a trace, as go-mades-bench sends them.
    Bare,
    /// A market document in XML, which compresses well.
    Xml,
    File(PathBuf),
}

impl PayloadKind {
    /// Returns the value of `--payload` as the user types it.
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
    /// Messages that are in the queues before the run stay there, because other applications may need them.
    Kept,
    /// The bench deletes all messages in the queues before the run, even those of other applications.
    Purged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadesPreflight {
    /// The bench sends one message first, and begins the load when the endpoint has answered this message.
    On,
    Off,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcknowledgementOptions {
    /// The bench plays the receiving business application, and sends the acknowledgements.
    Sent {
        message_type: String,
        /// Queue name of the receiving endpoint's outbox, which is at the same broker as the inbox. If this is `None`,
        /// the same endpoint sends and receives, so the acknowledgements go into the same outbox as the messages.
        far_outbox: Option<String>,
    },
    Awaited {
        /// Set if the receiver's inbox is at another broker than the sender's outbox. The bench then reads
        /// acknowledgements from an inbox at the broker of the outbox.
        is_far: bool,
    },
}

impl AcknowledgementOptions {
    /// Returns true if the acknowledgements arrive in another inbox than the messages.
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
    /// Number of messages to send, or `None` if the duration ends the load.
    pub messages: Option<u64>,
    /// Length of the load, or `None` if the number of messages ends the load.
    pub duration: Option<Duration>,
    pub sizes: Distribution,
    pub payload: PayloadKind,
    pub receiver: String,
    pub message_type: String,
    pub sender_application: String,
    /// Priority of the messages, or `None` for the default priority of the protocol, which is 4.
    pub priority: Option<u8>,
    pub first_number: u64,
    /// Set if the broker must keep the messages over a restart.
    pub is_durable: bool,
    /// Maximum number of messages in flight, which means created but not finished.
    pub max_in_transit: usize,
    /// Maximum number of transfers that the broker has not confirmed yet.
    pub window: u32,
    /// Link credit for each queue: number of messages that the broker may send before the bench settles the first one.
    pub credit: u32,
    /// Rate at which messages become due in an open loop, whatever the speed of the endpoint.
    pub offer: Option<OfferedRate>,
    /// The documents of a market, as an open loop: each kind of document is due at its own times of the day.
    pub market: Option<MarketLoad>,
    pub arrival: Arrival,
    pub seed: u64,
    /// If a message is not finished this long after its creation, the bench gives it up.
    pub timeout: Duration,
    /// Time for which the bench goes on reading the queues after the last answer, to see late messages and duplicates.
    pub linger: Duration,
    /// Time limit for restoring a lost connection.
    pub reconnect: Duration,
    pub leftovers: Leftovers,
    pub preflight: MadesPreflight,
    pub acknowledgement: Option<AcknowledgementOptions>,
    /// Id that the run must have, or `None` to choose a new id.
    pub run: Option<RunId>,
    pub out: Option<PathBuf>,
    pub live: LiveMode,
    /// Address at which live metrics are served over HTTP, or `None` to serve none.
    pub http: Option<SocketAddr>,
    pub observer: Option<Rc<dyn RunObserver>>,
    /// Command line for the record, without passwords.
    pub command: Vec<String>,
    pub thresholds: Vec<mailrun_measurement::threshold::Threshold>,
    /// Thresholds that end the run as soon as they are missed.
    pub abort_on: Vec<mailrun_measurement::threshold::Threshold>,
}

impl MadesOptions {
    pub fn path(&self) -> MessagePath {
        let is_on = self.acknowledgement.is_some();
        let acknowledgement = if is_on { AcknowledgementMode::On } else { AcknowledgementMode::Off };
        MessagePath { mode: self.mode, acknowledgement }
    }

    /// Returns the queue to which the bench sends acknowledgements, or `None` if it sends none.
    pub(super) fn acknowledgement_outbox(&self) -> Option<&str> {
        let AcknowledgementOptions::Sent { far_outbox, .. } = self.acknowledgement.as_ref()? else { return None };
        match self.mode {
            MadesMode::Tracing => None,
            // Without an endpoint to forward acknowledgements, the bench writes them into the queue that it reads.
            MadesMode::Amqp => Some(&self.queues.inbox),
            MadesMode::Endpoint | MadesMode::Toolbox => Some(far_outbox.as_ref().unwrap_or(&self.queues.outbox)),
        }
    }

    pub(super) fn limit(&self) -> Option<Duration> {
        let stages = self.offer.as_ref().and_then(OfferedRate::length);
        self.duration.into_iter().chain(stages).min()
    }

    /// Returns the mean of the requested rate, or `None` if the user requested no rate. Also returns `None` if the rate
    /// changes in stages and the load may end before the last stage, because the mean is then unknown.
    pub(super) fn rate_per_s(&self) -> Option<f64> {
        let offer = self.offer.as_ref()?;
        let is_whole = offer.length().is_none() || (self.messages.is_none() && self.limit() == offer.length());
        is_whole.then(|| offer.mean_per_s(0.0))
    }
}
