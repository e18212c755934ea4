//! The source: offers load, measures the time of every phase and stage, and accounts for every
//! message.
//!
//! ```text
//! plan (how many, until when) ─→ worker × n ─ session × m ─ connection ─→ the server under test
//!   pacing (when)                    │ a tally, four times a second
//!   message, envelopes (what)        ▼
//!                                collector ─→ live line, series, interval log, record
//! ```
mod addresses;
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
mod collector;
mod control;
mod corpus;
mod dialogue;
mod domains;
mod dsn_parameters;
mod envelopes;
mod file_lines;
mod live_figures;
mod load_session;
mod message;
mod message_set;
mod mime;
mod plan;
mod preflight;
mod recipients;
mod reply_log;
mod report;
mod session_loop;
mod shard_start;
mod transport;
mod worker;
mod worker_state;

pub use addresses::AddressPattern;
pub(crate) use control::NUMBERS_LOG2;
pub use control::{LoadControl, LoadCounts};
pub use corpus::{CorpusOptions, InvalidMessagePolicy};
pub use dsn_parameters::DsnParameters;
pub use envelopes::BodyParameter;
pub use mailrun_workload::distribution::Distribution;
pub use mailrun_workload::offered_rate::{OfferedRate, RateStage};
pub use mailrun_workload::shard::{PlanHash, Shard};
pub use recipients::{RecipientTags, check_recipients};
pub use shard_start::SourceShard;
pub use transport::{AddressRange, ProxyVersion, TransportOptions};

use anyhow::{Context, Result, anyhow, bail};
use collector::SourceCollector;
use domains::RecipientDomains;
use envelopes::Envelopes;
use mailrun_journey::RunId;
use mailrun_journey::record::{Arrival, MAX_SLOW_RECIPIENTS, OfferedStage, Pipelining, ServerRow, Workload};
use mailrun_journey::threshold::Threshold;
use mailrun_net::{BusyPoll, Endpoint, clock};
use mailrun_party::interrupt::Interrupt;
use mailrun_party::local_address::is_local_address;
use mailrun_party::output_file;
use mailrun_party::outputs::{FinishedRun, Outputs};
use mailrun_party::party_options::value_name;
use mailrun_party::reason::reason;
use mailrun_party::tls_mode::TlsMode;
use mailrun_workload::{distribution, pacing, random};
use message::TraceStamp;
use message_set::{MessageSet, MessageSetSummary, PreparedMessages};
use plan::LoadPlan;
use preflight::PreflightCheck;
use random::RandomStream;
use recipients::Recipients;
use reply_log::ReplyLog;
use shard_start::ShardStart;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use transport::Transport;

/// File descriptors for everything except sessions.
const RESERVED_DESCRIPTORS: u64 = 64;
/// If a server has several addresses, each has this long to accept a connection before the next
/// address is tried.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between the choice of a run's zero and the start of its load. The workers start during this
/// time.
const SETUP_TIME: Duration = Duration::from_millis(2);

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
    /// Id of the run, or `None` for a new id.
    pub run: Option<RunId>,
    /// Part of a load that several machines send, or `None` for the whole load. Until the run
    /// begins, the numbers of messages and sessions and the rate are those of all parts together.
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

/// State that a whole run shares. The workers only read it.
#[derive(Debug)]
struct SourceContext {
    options: SourceOptions,
    server: Endpoint,
    transport: Transport,
    messages: MessageSet,
    summary: MessageSetSummary,
    envelopes: Envelopes,
    /// Domains of the recipients, or `None` if there is only one.
    domains: Option<RecipientDomains>,
    plan: LoadPlan,
    /// Set if this load is a part of a divided load.
    shard_start: Option<ShardStart>,
    began: Duration,
    /// Time of second 0 in the record: when the load began or, for a shard, when all shards were to
    /// begin.
    zero: Duration,
    /// Messages created before this time are accounted for, but not timed.
    warm_up_until: Duration,
    /// The server's description of itself in the reply to the trial connection.
    introduction: Option<ServerRow>,
    /// Replies kept by workers that have ended.
    replies: Mutex<Vec<ReplyLog>>,
}

impl SourceContext {
    /// Returns the recipients that lists of messages name, which may be only some of the message's
    /// recipients.
    fn named_recipients(&self, number: u64, recipients: u32) -> Vec<String> {
        let mut recipients = self.envelopes.recipients_of(number, recipients);
        recipients.truncate(MAX_SLOW_RECIPIENTS);
        recipients
    }
}

/// Offers the load to its end, or until SIGINT or SIGTERM. In both cases, it returns a record.
///
/// # Errors
///
/// If the load could not run, for example because nothing listens, a file cannot be read, or the
/// options contradict each other.
pub fn run(options: SourceOptions) -> Result<FinishedRun> {
    let numbers = match &options.control {
        Some(control) => control.first_message()..u64::MAX,
        None => options.part().numbers(options.messages),
    };
    let options = options.divided()?;
    let run = options.run.map_or_else(mailrun_party::outputs::new_run_id, Ok)?;
    let server = resolve(&options.to, options.allowed_targets)?;
    options.check(&server)?;
    options.outputs.check_writable()?;
    mailrun_net::open_files::raise(u64::from(options.sessions) + RESERVED_DESCRIPTORS);
    let started_at = jiff::Timestamp::now();
    let recipients = Recipients::new(&options.recipient_patterns, options.recipients.max(), options.recipient_tags)?;
    let stamp = TraceStamp::new(run, options.trace_headers, clock_for(&server), recipients.numbering());
    let PreparedMessages { messages: mail, summary: about } = PreparedMessages::new(&options, stamp, run, started_at)?;
    let envelopes = Envelopes::new(&options, run, recipients, &mail);
    let interrupt = match &options.control {
        Some(control) => control.interrupt().clone(),
        None => Interrupt::watch()?,
    };
    let approach = Transport::new(&options.transport, options.pipelining, host_part(&options.to))?;
    let approach = approach.with_notifications(options.dsn_parameters.notifications());
    let trial = Arc::new(PreflightCheck { options, server, transport: approach, messages: mail, envelopes });
    let introduction = match trial.options.preflight {
        Preflight::On => trial.check(&interrupt)?,
        Preflight::Off => None,
    };
    let PreflightCheck { options, server, transport: approach, messages: mut mail, envelopes } =
        Arc::into_inner(trial).context("the test connection has not ended")?;
    let shard_start = options.shard.as_ref().map(|shard| shard.wait(&interrupt)).transpose()?;
    let host_watch = collector::watch_host(&options);
    let now = shard_start.map_or_else(|| stamp.next_zero(clock::now() + SETUP_TIME), |start| start.began);
    let zero = shard_start.map_or(now, |start| stamp.last_zero(start.planned()));
    mail.set_zero(zero);
    let plan = LoadPlan::new(numbers, options.time_limit().map(|limit| now + limit));
    let warm_until = options.warm_up.map_or(Duration::ZERO, |length| now + length);
    let domains = RecipientDomains::of(&options.recipient_patterns);
    let setting = Arc::new(SourceContext {
        options,
        server,
        transport: approach,
        messages: mail,
        summary: about,
        envelopes,
        domains,
        plan,
        shard_start,
        began: now,
        zero,
        warm_up_until: warm_until,
        introduction,
        replies: Mutex::default(),
    });
    if let Some(control) = &setting.options.control {
        control.attach(&setting);
    }
    let mut collector = SourceCollector::begin(&setting, run, started_at, now, host_watch)?;
    let workers = worker::start(&setting)?;
    collector.collect(workers, &interrupt)?;
    let ledger = setting.options.outputs.ledger.as_deref().filter(|ledger| output_file::is_file(ledger));
    if let (Some(ledger), Ok(logs)) = (ledger, setting.replies.lock()) {
        // Ignore an error: reports will merely lack the replies.
        let _ = reply_log::write(&setting, &logs, &ledger.with_extension("replies"));
    }
    Ok(collector.finish())
}

/// Returns the clock for traces: CLOCK_MONOTONIC if the sink is probably on this host, otherwise
/// Unix time.
fn clock_for(server: &Endpoint) -> message::TraceClock {
    if server.ip().is_none_or(|address| address.is_loopback()) {
        message::TraceClock::Monotonic
    } else {
        message::TraceClock::Wall
    }
}

/// Returns the part of an address before the port, without the brackets of IPv6.
fn host_part(to: &str) -> &str {
    to.rsplit_once(':').map_or(to, |(host, _)| host).trim_start_matches('[').trim_end_matches(']')
}

/// Looks up the server of a source and picks the first of its addresses that accepts a connection.
/// `localhost`, for example, has two addresses. Fails if `look_up` fails.
fn resolve(to: &str, reach: AllowedTargets) -> Result<Endpoint> {
    look_up(to, reach).map(first_reachable)
}

/// Returns the addresses of a server to which load may be sent. There is at least one.
///
/// # Errors
///
/// If the server has no address or only public addresses.
pub fn look_up(to: &str, reach: AllowedTargets) -> Result<Vec<Endpoint>> {
    let endpoints = Endpoint::resolve_all(to).map_err(|error| match to.starts_with("unix:") {
        true => anyhow!("{to}: {}", reason(&error)),
        false => anyhow!("{}", reason(&error)),
    })?;
    let is_allowed =
        |endpoint: &Endpoint| reach == AllowedTargets::Public || endpoint.ip().is_none_or(is_local_address);
    if let (false, Some(address)) = (endpoints.iter().any(is_allowed), endpoints[0].ip()) {
        bail!(
            "{address} is a public address; only loopback and private addresses are allowed by default. If the server \
             is yours, add --allow-public"
        );
    }
    Ok(endpoints.into_iter().filter(is_allowed).collect())
}

/// Returns the first address that accepts a connection, or the first of all if none does. A single
/// address is not tested.
fn first_reachable(mut endpoints: Vec<Endpoint>) -> Endpoint {
    let answers = |endpoint: &Endpoint| match endpoint {
        Endpoint::Tcp(address) => TcpStream::connect_timeout(address, PROBE_TIMEOUT).is_ok(),
        Endpoint::Unix(_) => true,
    };
    let position = if endpoints.len() > 1 { endpoints.iter().position(answers) } else { None };
    endpoints.swap_remove(position.unwrap_or_default())
}

impl SourceOptions {
    /// Refuses options that contradict each other.
    fn check(&self, server: &Endpoint) -> Result<()> {
        if self.transport.bind.is_some() && !server.ip().is_some_and(|address| address.is_ipv4()) {
            bail!("--bind has IPv4 addresses, but {} is not an IPv4 address", self.to);
        }
        let is_near = server.ip().is_none_or(|address| address.to_canonical().is_loopback());
        if self.transport.exposes_password() && !is_near {
            bail!(
                "--user: the password would be sent unencrypted to {}; use --tls, or --auth-mechanism scram-sha-256 \
                 or cram-md5",
                self.to
            );
        }
        match (self.warm_up, self.time_limit()) {
            (Some(warm_up), Some(limit)) if warm_up >= limit => {
                bail!("--warm-up {warm_up:?} must be shorter than the run of {limit:?}")
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of recipients of the message with this number.
    fn recipients(&self, number: u64) -> u32 {
        self.recipients.sample(self.seed, RandomStream::Recipients, number) as u32
    }

    fn time_limit(&self) -> Option<Duration> {
        let stages = self.offered_rate.as_ref().and_then(OfferedRate::length);
        self.duration.into_iter().chain(stages).min()
    }

    fn schedule(&self, offer: OfferedRate, began: Duration, number: usize, workers: usize) -> pacing::ArrivalSchedule {
        let part = self.part();
        let position = part.position(number as u64) as usize;
        pacing::ArrivalSchedule::new(self.arrival, offer, began, position, workers * part.count() as usize, self.seed)
    }

    /// Returns the schedules of all workers. There are none in a closed loop, or if somebody else
    /// controls the load.
    fn schedules(&self, began: Duration) -> Vec<pacing::ArrivalSchedule> {
        let offer = self.offered_rate.as_ref().filter(|_| self.control.is_none());
        let schedule = |offer: &OfferedRate| {
            (0..self.workers).map(|number| self.schedule(offer.clone(), began, number, self.workers)).collect()
        };
        offer.map(schedule).unwrap_or_default()
    }

    /// Returns how many messages are due within this time after the load began, or in total without
    /// a time. Returns `None` in a closed loop, or if somebody else controls the load.
    fn due_within(&self, end: Option<Duration>) -> Option<u64> {
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
    fn rate_per_s(&self) -> Option<f64> {
        let offer = self.offered_rate.as_ref()?;
        let is_whole = offer.length().is_none() || (self.messages.is_none() && self.time_limit() == offer.length());
        is_whole.then(|| self.part().rate(offer.mean_per_s(self.warm_up.unwrap_or_default().as_secs_f64())))
    }

    /// Returns the stages with the rates of this part of the load.
    fn own_stages(&self) -> Vec<OfferedStage> {
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
    fn due_after(&self, messages: u64) -> Duration {
        let position = self.part().position(messages);
        let due_s = self.offered_rate.as_ref().map_or(0.0, |offer| offer.due_s(position as f64));
        Duration::try_from_secs_f64(due_s).unwrap_or_default()
    }

    fn workload(&self, about: &MessageSetSummary) -> Workload {
        Workload {
            messages: self.messages,
            duration_limit_s: self.time_limit().map(|limit| limit.as_secs_f64()),
            recipients: self.recipients.max() as u32,
            sessions: self.sessions,
            message_bytes: about.mean_bytes.round() as u64,
            reuse: self.reuse.as_ref().map(Distribution::max),
            pipelining: self.pipelining,
            chunking: self.transport.chunking == mailrun_smtp::client::Chunking::IfOffered,
            tls: value_name(self.transport.tls),
            arrival: self.arrival,
            rate_per_s: self.rate_per_s(),
            protocol: mailrun_party::outputs::protocol_name(self.transport.protocol).to_owned(),
            target: self.to.clone(),
            seed: self.seed,
            sizes_varied: about.sizes.clone(),
            recipients_varied: self.recipients.summary(),
            reuse_varied: self.reuse.as_ref().and_then(Distribution::summary),
            think_ms: self.think.as_ref().map(|think| think.summary_in(1e6)),
            from: self.from.expression().to_owned(),
            rcpt: addresses::expressions(&self.recipient_patterns),
            corpus: about.corpus.clone(),
            mime_messages: about.mime_messages,
            stages: self.own_stages(),
            dsn: self.dsn_parameters.description(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_stays_at_home_unless_told() {
        assert!(resolve("8.8.8.8:25", AllowedTargets::Local).is_err());
        assert!(resolve("8.8.8.8:25", AllowedTargets::Public).is_ok());
        assert!(resolve("nonsense", AllowedTargets::Local).is_err());
    }

    #[test]
    fn of_several_addresses_one_that_answers_is_taken() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let silent: std::net::SocketAddr = (std::net::Ipv6Addr::LOCALHOST, there.port()).into();
        let endpoints = [silent, there].map(Endpoint::Tcp);
        assert_eq!(first_reachable(endpoints.to_vec()), endpoints[1]);
        drop(listener);
        assert_eq!(first_reachable(endpoints.to_vec()), endpoints[0], "nobody answers: the first is tried again");
    }
}
