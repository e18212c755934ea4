//! Everything that the bench is told.
use super::stages::Mode;
use super::watcher::Watcher;
use crate::load::spread::Spread;
use crate::load::stages::Offer;
use crate::party::Live;
use ::mades::Broker;
use ::mades::api::Queues;
use journey::RunId;
use journey::record::Arrival;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// Environment variable with the password of the user at a broker.
pub(crate) const PASSWORD_VARIABLE: &str = "MAILRUN_PASSWORD";

/// What payloads consist of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PayloadKind {
    /// Octets that no compression shortens, and a trace.
    Random,
    /// Such octets and nothing else.
    Bare,
    /// A market document, which compresses well.
    Xml,
    /// A file, as it is.
    File(PathBuf),
}

impl PayloadKind {
    /// As it is typed.
    pub(crate) fn typed(&self) -> String {
        match self {
            Self::Random | Self::Bare => "random".to_owned(),
            Self::Xml => "xml".to_owned(),
            Self::File(path) => path.to_string_lossy().into_owned(),
        }
    }
}

/// What is done with messages that are in the queues before the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftovers {
    /// They are somebody's: they are left there.
    Kept,
    /// They are taken out.
    Purged,
}

/// Everything that the bench is told.
#[derive(Clone, Debug)]
pub(crate) struct MadesOptions {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) outbox: Broker,
    pub(crate) inbox: Broker,
    pub(crate) queues: Queues,
    pub(crate) messages: Option<u64>,
    pub(crate) duration: Option<Duration>,
    pub(crate) sizes: Spread,
    pub(crate) payload: PayloadKind,
    pub(crate) receiver: String,
    pub(crate) message_type: String,
    /// The program that messages say they are from.
    pub(crate) sender_application: String,
    /// The priority that messages say they have; without one they say nothing, and have the usual 4.
    pub(crate) priority: Option<u8>,
    /// What the first message's number is.
    pub(crate) first_number: u64,
    pub(crate) is_durable: bool,
    /// Messages created and not at their end.
    pub(crate) max_in_transit: usize,
    /// Transfers handed over and not settled.
    pub(crate) window: u32,
    /// Messages that the broker may send ahead, a queue.
    pub(crate) credit: u32,
    /// Open loop: what is offered whatever the endpoint does.
    pub(crate) offer: Option<Offer>,
    pub(crate) arrival: Arrival,
    pub(crate) seed: u64,
    /// How long a message is waited for.
    pub(crate) timeout: Duration,
    /// How long after the last answer the queues are listened to, for what comes twice or late.
    pub(crate) linger: Duration,
    /// How long a lost connection is tried again.
    pub(crate) reconnect: Duration,
    pub(crate) leftovers: Leftovers,
    pub(crate) run: Option<RunId>,
    /// Where results go.
    pub(crate) out: Option<PathBuf>,
    pub(crate) live: Live,
    /// Who looks on.
    pub(crate) watcher: Option<Rc<dyn Watcher>>,
    /// The command line without passwords.
    pub(crate) command: Vec<String>,
    /// What is asked of the run.
    pub(crate) thresholds: Vec<journey::threshold::Threshold>,
    /// The same; a run that misses it ends at once.
    pub(crate) abort_on: Vec<journey::threshold::Threshold>,
}

impl MadesOptions {
    /// How long messages may be created.
    pub(super) fn limit(&self) -> Option<Duration> {
        let stages = self.offer.as_ref().and_then(Offer::length);
        self.duration.into_iter().chain(stages).min()
    }

    /// The rate that was asked for, where the run can be held to one.
    pub(super) fn rate_per_s(&self) -> Option<f64> {
        let offer = self.offer.as_ref()?;
        let is_whole = offer.length().is_none() || (self.messages.is_none() && self.limit() == offer.length());
        is_whole.then(|| offer.mean_per_s(0.0))
    }
}
