//! Options of the bench.
use super::observer::RunObserver;
use super::stages::MadesMode;
use crate::load::distribution::Distribution;
use crate::load::offered_rate::OfferedRate;
use crate::party::LiveMode;
use ::mades::Broker;
use ::mades::api::EndpointQueueNames;
use journey::RunId;
use journey::record::Arrival;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// Contents of the payloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PayloadKind {
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
    pub(crate) fn typed(&self) -> String {
        match self {
            Self::Random | Self::Bare => "random".to_owned(),
            Self::Xml => "xml".to_owned(),
            Self::File(path) => path.to_string_lossy().into_owned(),
        }
    }
}

/// Treatment of messages that are in the queues before the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftovers {
    /// They belong to another application and are left there.
    Kept,
    /// They are removed.
    Purged,
}

/// All options of the bench.
#[derive(Clone, Debug)]
pub(crate) struct MadesOptions {
    pub(crate) name: String,
    pub(crate) mode: MadesMode,
    pub(crate) outbox: Broker,
    pub(crate) inbox: Broker,
    pub(crate) queues: EndpointQueueNames,
    pub(crate) messages: Option<u64>,
    pub(crate) duration: Option<Duration>,
    pub(crate) sizes: Distribution,
    pub(crate) payload: PayloadKind,
    pub(crate) receiver: String,
    pub(crate) message_type: String,
    /// The sender application that messages name.
    pub(crate) sender_application: String,
    /// The priority that messages carry; without one the protocol's default of 4 applies.
    pub(crate) priority: Option<u8>,
    /// The first message's number.
    pub(crate) first_number: u64,
    pub(crate) is_durable: bool,
    /// Largest number of messages created and not finished.
    pub(crate) max_in_transit: usize,
    /// Largest number of transfers handed over and not settled.
    pub(crate) window: u32,
    /// Messages that the broker may send ahead, per queue.
    pub(crate) credit: u32,
    /// Open loop: the load that is offered whatever the endpoint does.
    pub(crate) offer: Option<OfferedRate>,
    pub(crate) arrival: Arrival,
    pub(crate) seed: u64,
    /// Time after which a message is given up.
    pub(crate) timeout: Duration,
    /// Time after the last answer for which the queues are still read, for late messages and duplicates.
    pub(crate) linger: Duration,
    /// Time for which reconnecting a lost connection is tried.
    pub(crate) reconnect: Duration,
    pub(crate) leftovers: Leftovers,
    pub(crate) run: Option<RunId>,
    /// Directory for results.
    pub(crate) out: Option<PathBuf>,
    pub(crate) live: LiveMode,
    /// Observer of the run.
    pub(crate) observer: Option<Rc<dyn RunObserver>>,
    /// The command line without passwords.
    pub(crate) command: Vec<String>,
    /// Thresholds that the run is judged by.
    pub(crate) thresholds: Vec<journey::threshold::Threshold>,
    /// Thresholds that end the run at once if it misses them.
    pub(crate) abort_on: Vec<journey::threshold::Threshold>,
}

impl MadesOptions {
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
