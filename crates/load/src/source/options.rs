//! Options of a source, and checks of them.
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
    /// HOST:PORT, or unix:PATH.
    pub to: String,
    pub messages: Option<u64>,
    pub duration: Option<Duration>,
    pub sessions: u32,
    pub workers: usize,
    pub busy_poll: BusyPoll,
    /// Size of a message in bytes, or `None` for the default. Ignored with `file` and `corpus`.
    pub sizes: Option<Distribution>,
    /// Number of recipients of a message: addresses of a single pattern, or as many as there are
    /// patterns.
    pub recipients: Distribution,
    pub reuse: Option<Distribution>,
    pub think: Option<Distribution>,
    pub pipelining: Pipelining,
    pub from: AddressPattern,
    pub recipient_patterns: Vec<AddressPattern>,
    /// How the recipients of a message are told apart.
    pub recipient_tags: RecipientTags,
    pub body_parameter: BodyParameter,
    pub dsn_parameters: DsnParameters,
    /// Subject of generated messages. With `None`, plain messages have no subject, and MIME
    /// messages have a generated one.
    pub subject: Option<String>,
    pub file: Option<PathBuf>,
    pub corpus: Option<CorpusOptions>,
    /// Set if generated messages are MIME messages with attachments.
    pub mime: bool,
    /// Open loop: the load that is offered, however slow the server is.
    pub offered_rate: Option<OfferedRate>,
    /// Messages of this time at the beginning are sent, but not timed.
    pub warm_up: Option<Duration>,
    pub arrival: Arrival,
    pub connect_timeout: Duration,
    pub timeout: Duration,
    pub seed: u64,
    pub hello: String,
    pub trace_headers: TraceHeaders,
    /// Set if messages tell programs that answer mail to be quiet (`Auto-Submitted`, RFC 3834).
    pub auto_submitted: bool,
    /// Id of the run, or `None` for a new id.
    pub run: Option<RunId>,
    /// Part of a load that several machines send, or `None` for the whole load. Until the run
    /// begins, the numbers of messages and sessions and the rate are sums over all parts.
    pub shard: Option<SourceShard>,
    pub allowed_targets: AllowedTargets,
    pub transport: TransportOptions,
    pub thresholds: Vec<Threshold>,
    pub abort_on: Vec<Threshold>,
    /// The run ends after this time without a server.
    pub give_up_timeout: Duration,
    /// The trial message before the load.
    pub preflight: Preflight,
    pub dialogue: DialogueOutput,
    pub outputs: Outputs,
    /// Control of the load while it runs. Without a control, `sessions` and the plan decide.
    pub control: Option<Arc<LoadControl>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preflight {
    /// The source tries one connection before the load.
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialogueOutput {
    Nowhere,
    /// On standard output. Only for a single message.
    Stdout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceHeaders {
    On,
    /// Without a trace, the sink cannot tell what became of a message.
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedTargets {
    Local,
    /// Any address may be loaded, because the user has declared that the target is theirs.
    Public,
}

/// How the BODY parameter of MAIL is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyParameter {
    /// By the content: BODY=8BITMIME if it is needed.
    #[default]
    Automatic,
    /// BODY=BINARYMIME if the server offers it and BDAT, without which it is not allowed (RFC 3030
    /// §3).
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

    /// Returns these options with the part's own number of messages and sessions. There are at most
    /// as many workers as sessions, because a worker without a session would send nothing of its
    /// schedule.
    ///
    /// # Errors
    ///
    /// If one of the parts would have no messages or no sessions.
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

    /// Refuses options that contradict each other.
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

    /// Returns the number of recipients of the message with this number.
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

    /// Returns the schedules of all workers. There are none in a closed loop, or if somebody else
    /// controls the load.
    pub(super) fn schedules(&self, began: Duration) -> Vec<ArrivalSchedule> {
        let offer = self.offered_rate.as_ref().filter(|_| self.control.is_none());
        let schedule = |offer: &OfferedRate| {
            (0..self.workers).map(|number| self.schedule(offer.clone(), began, number, self.workers)).collect()
        };
        offer.map(schedule).unwrap_or_default()
    }

    /// Returns how many messages are due within this time after the load began, or in total without
    /// a time. Returns `None` in a closed loop, or if somebody else controls the load.
    pub(super) fn due_within(&self, end: Option<Duration>) -> Option<u64> {
        let offer = self.offered_rate.as_ref().filter(|_| self.control.is_none())?;
        let workers = self.workers;
        let due = |end| {
            let schedule = |number| self.schedule(offer.clone(), Duration::ZERO, number, workers);
            (0..workers).map(|number| schedule(number).due_before(end)).sum::<u64>()
        };
        end.map(due).into_iter().chain(self.messages).min()
    }

    /// Returns the requested rate, if the run can be held to a rate. It cannot if a number of
    /// messages cuts the stages short.
    pub(super) fn rate_per_s(&self) -> Option<f64> {
        let offer = self.offered_rate.as_ref()?;
        let is_whole = offer.length().is_none() || (self.messages.is_none() && self.time_limit() == offer.length());
        is_whole.then(|| self.part().rate(offer.mean_per_s(self.warm_up.unwrap_or_default().as_secs_f64())))
    }

    /// Returns the stages with the rates of this part of the load.
    pub(super) fn own_stages(&self) -> Vec<OfferedStage> {
        let part = self.part();
        let own = |stage: OfferedStage| OfferedStage {
            from_per_s: part.rate(stage.from_per_s),
            to_per_s: part.rate(stage.to_per_s),
            ..stage
        };
        self.offered_rate.as_ref().map(OfferedRate::stages).unwrap_or_default().into_iter().map(own).collect()
    }

    /// Returns when the next message after `messages` others would be due in an open loop, counted
    /// from the start of the run.
    pub(super) fn due_after(&self, messages: u64) -> Duration {
        let position = self.part().position(messages);
        let due_s = self.offered_rate.as_ref().map_or(0.0, |offer| offer.due_s(position as f64));
        Duration::try_from_secs_f64(due_s).unwrap_or_default()
    }
}
