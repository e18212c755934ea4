//! Options of a source, and checks for combinations that make no sense.
use super::addresses::AddressPattern;
use super::control::LoadControl;
use super::corpus::CorpusOptions;
use super::dsn_parameters::DsnParameters;
use super::recipients::RecipientTags;
use super::shard_start::SourceShard;
use super::transport::TransportOptions;
use anyhow::{Result, bail};
use mailrun_measurement::RunId;
use mailrun_measurement::record::{Arrival, OfferedStage, Pipelining};
use mailrun_measurement::threshold::Threshold;
use mailrun_net::{BusyPoll, Endpoint};
use mailrun_process::outputs::Outputs;
use mailrun_schedule::distribution::{Distribution, RandomStream};
use mailrun_schedule::offered_rate::OfferedRate;
use mailrun_schedule::pacing::ArrivalSchedule;
use mailrun_schedule::shard::Shard;
use mailrun_smtp::Extensions;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct SourceOptions {
    pub name: String,
    /// Server to which the load is sent, as HOST:PORT or unix:PATH.
    pub to: String,
    pub messages: Option<u64>,
    pub duration: Option<Duration>,
    pub sessions: u32,
    pub workers: usize,
    pub busy_poll: BusyPoll,
    /// Size of the messages in bytes, or `None` for the default. `file` and `corpus` have their own
    /// sizes and take precedence.
    pub sizes: Option<Distribution>,
    /// Number of recipients of each message. With several `recipient_patterns`, the first recipient
    /// has the first pattern, the second recipient the second, and so on.
    pub recipients: Distribution,
    pub reuse: Option<Distribution>,
    pub think: Option<Distribution>,
    pub pipelining: Pipelining,
    pub from: AddressPattern,
    pub recipient_patterns: Vec<AddressPattern>,
    pub recipient_tags: RecipientTags,
    pub body_parameter: BodyParameter,
    pub dsn_parameters: DsnParameters,
    /// Subject of generated messages. With `None`, plain messages have no subject, and each MIME
    /// message has a generated one.
    pub subject: Option<String>,
    pub file: Option<PathBuf>,
    pub corpus: Option<CorpusOptions>,
    pub mime: bool,
    /// Rate of an open loop, which is offered however slow the server is, or `None` for a closed loop.
    pub offered_rate: Option<OfferedRate>,
    /// Length of the warm-up that begins the load. Its messages are sent but not timed.
    pub warm_up: Option<Duration>,
    pub arrival: Arrival,
    pub connect_timeout: Duration,
    pub timeout: Duration,
    pub seed: u64,
    pub hello: String,
    pub trace_headers: TraceHeaders,
    /// True if messages ask autoresponders not to answer (`Auto-Submitted`, RFC 3834).
    pub auto_submitted: bool,
    /// Id of the run, or `None` to give it a new one.
    pub run: Option<RunId>,
    /// Share of the load that this source sends, or `None` for the whole load. When the run begins, `messages` and
    /// `sessions` are reduced to this share. `offered_rate` stays the rate of the whole load, and each source takes its
    /// own due times from the schedule of the whole load.
    pub shard: Option<SourceShard>,
    pub allowed_targets: AllowedTargets,
    pub transport: TransportOptions,
    pub thresholds: Vec<Threshold>,
    pub abort_on: Vec<Threshold>,
    /// If messages fail for this long, and the server neither accepts nor rejects any, the run ends instead of waiting
    /// forever.
    pub give_up_timeout: Duration,
    pub preflight: Preflight,
    pub dialogue: DialogueOutput,
    pub outputs: Outputs,
    /// Lets another program, such as a Locust master, change the number of users and end the load.
    pub control: Option<Arc<LoadControl>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preflight {
    /// The source tries one connection before the load, so that a mistake is reported at once.
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialogueOutput {
    Nowhere,
    /// The dialogue is printed on standard output. This is only possible for a single message.
    Stdout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceHeaders {
    On,
    /// Messages have no trace header, so a sink cannot tell which of them have arrived.
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedTargets {
    Local,
    /// Any address is allowed, because the user has declared that the server is theirs.
    Public,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyParameter {
    /// BODY=8BITMIME if the content of the message needs it and the server offers it, and no parameter otherwise.
    #[default]
    Automatic,
    /// BODY=BINARYMIME if the server offers both BINARYMIME and BDAT, because it is not allowed without BDAT (RFC 3030
    /// §3). Otherwise the same as `Automatic`.
    Binary,
}

impl BodyParameter {
    pub(super) fn is_binary(self, extensions: &Extensions) -> bool {
        self == Self::Binary && extensions.binary_mime && extensions.chunking
    }
}

impl SourceOptions {
    pub(super) fn part(&self) -> Shard {
        self.shard.as_ref().map_or(Shard::WHOLE, |shard| shard.part)
    }

    /// If several sources share the load, reduces the numbers of messages and sessions to the share of this source.
    /// Also limits the number of workers to the number of sessions: in an open loop, a worker without a session could
    /// not send its part of the messages.
    ///
    /// # Errors
    ///
    /// Fails if one of the sources would have no messages or no sessions.
    pub(super) fn divided(mut self) -> Result<Self> {
        if let Some(shard) = &mut self.shard {
            shard.part.check_totals(self.messages, self.sessions).map_err(anyhow::Error::msg)?;
            let part = shard.part;
            shard.messages = self.messages;
            shard.sessions = self.sessions;
            self.messages = self.messages.map(|messages| part.share(messages));
            self.sessions = part.share(u64::from(self.sessions)) as u32;
        }
        self.workers = self.workers.min(self.sessions as usize).max(1);
        Ok(self)
    }

    pub(super) fn check(&self, server: &Endpoint) -> Result<()> {
        if self.transport.bind.is_some() && !server.ip().is_some_and(|address| address.is_ipv4()) {
            bail!("--bind has IPv4 addresses, but {} is not an IPv4 address", self.to);
        }
        self.transport.check_password(server)?;
        match (self.warm_up, self.time_limit()) {
            (Some(warm_up), Some(limit)) if warm_up >= limit => {
                bail!("--warm-up {warm_up:?} must be shorter than the run of {limit:?}")
            }
            _ => Ok(()),
        }
    }

    /// Chooses a random number of recipients for the message `number`. The result depends only on the seed and
    /// `number`, so repeated calls agree.
    pub(super) fn recipients(&self, number: u64) -> u32 {
        self.recipients.sample(self.seed, RandomStream::Recipients, number) as u32
    }

    pub(super) fn time_limit(&self) -> Option<Duration> {
        let stages = self.offered_rate.as_ref().and_then(OfferedRate::length);
        self.duration.into_iter().chain(stages).min()
    }

    pub(super) fn schedule(
        &self,
        offer: OfferedRate,
        began: Duration,
        number: usize,
        workers: usize,
    ) -> ArrivalSchedule {
        let part = self.part();
        let position = part.position(number as u64) as usize;
        ArrivalSchedule::new(self.arrival, offer, began, position, workers * part.count() as usize, self.seed)
    }

    /// Returns for each worker of an open loop the times at which its messages are due. Returns an
    /// empty list in a closed loop, and if a [`LoadControl`] can change the rate.
    pub(super) fn schedules(&self, began: Duration) -> Vec<ArrivalSchedule> {
        let offer = self.offered_rate.as_ref().filter(|_| self.control.is_none());
        let schedule = |offer: &OfferedRate| {
            (0..self.workers).map(|number| self.schedule(offer.clone(), began, number, self.workers)).collect()
        };
        offer.map(schedule).unwrap_or_default()
    }

    /// Returns how many messages of an open loop are due before `end`, which counts from the start of the load. The
    /// result is at most `messages`, the number of messages in the options. Without `end`, it is this number. Returns
    /// `None` in a closed loop, if a [`LoadControl`] can change the rate, or if there is neither `end` nor `messages`.
    pub(super) fn due_within(&self, end: Option<Duration>) -> Option<u64> {
        let offer = self.offered_rate.as_ref().filter(|_| self.control.is_none())?;
        let workers = self.workers;
        let due = |end| {
            let schedule = |number| self.schedule(offer.clone(), Duration::ZERO, number, workers);
            (0..workers).map(|number| schedule(number).due_before(end)).sum::<u64>()
        };
        end.map(due).into_iter().chain(self.messages).min()
    }

    /// Returns the mean rate in messages per second that this source should offer after the warm-up. Returns `None` in
    /// a closed loop, or if the load may end before its last stage, because the mean is then unknown.
    pub(super) fn rate_per_s(&self) -> Option<f64> {
        let offer = self.offered_rate.as_ref()?;
        let is_whole = offer.length().is_none() || (self.messages.is_none() && self.time_limit() == offer.length());
        is_whole.then(|| self.part().rate(offer.mean_per_s(self.warm_up.unwrap_or_default().as_secs_f64())))
    }

    /// Returns the stages of the load with the rates of this source. If several sources share the load, each rate is a
    /// share of the requested rate.
    pub(super) fn own_stages(&self) -> Vec<OfferedStage> {
        let part = self.part();
        let own = |stage: OfferedStage| OfferedStage {
            from_per_s: part.rate(stage.from_per_s),
            to_per_s: part.rate(stage.to_per_s),
            ..stage
        };
        self.offered_rate.as_ref().map(OfferedRate::stages).unwrap_or_default().into_iter().map(own).collect()
    }

    /// Returns when a message of this source is due, as time from the start of an open loop. `messages` is the number
    /// of this source's messages that are due before it.
    pub(super) fn due_after(&self, messages: u64) -> Duration {
        let position = self.part().position(messages);
        let due_s = self.offered_rate.as_ref().map_or(0.0, |offer| offer.due_s(position as f64));
        Duration::try_from_secs_f64(due_s).unwrap_or_default()
    }
}
