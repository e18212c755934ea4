//! In the scenario `backlog`, a relay accepts mail while its next hop is down or holds mail back. Then the bench
//! restarts the relay. Finally the next hop takes mail again, and the relay delivers its queue.
//!
//! ```text
//! nobody listens where the relay sends to                                    the sink listens there
//! relay ── source: all accepted ── SIGTERM ── relay again ── ready, all queued ── queue flushed ── all delivered
//!          memory, disk             how long        how long                       first, last      each once?
//! ```
//!
//! The bench does not restart a relay that it did not start, and does not know how much memory and disk space this
//! relay uses. Several relays are measured one after the other (`backlog_comparison`).
use super::fresh_mail::{FreshFigures, FreshMail};
use super::goals::{self, Goal, GoalResult};
use super::operation::{self, RelayStatusClient};
use super::scenario::{LoadShape, ScenarioOptions, ScenarioRun};
use crate::directory::RunDirectory;
use crate::engine::{RunFlaws, TextReport, shown};
use crate::gather::{self, BenchFault};
use crate::launch::{self, ReadySignal, RelayLaunch, free_port};
use crate::parties::{PartyCommand, PartyProcess};
use crate::plan::BenchOptions;
use crate::progress::LatestProgress;
use crate::recipe::{Places, Recipe, ServerCommand, next_hop};
use crate::relay::{Relay, RelayDurability};
use crate::remote_sink::RemoteSink;
use crate::supervisor::{Completeness, Supervisor};
use crate::usage::{self, DiskUsage, MemoryCurve};
use anyhow::{Context, Result, bail, ensure};
use mailrun_measurement::account::Topology;
use mailrun_measurement::record::{Ending, EventKind, EventRow, Record, Recovery, Role, SeriesRow, Workload};
use mailrun_measurement::recovery::recovery;
use mailrun_measurement::trace::RunId;
use mailrun_process::host_sampler::HostSampler;
use mailrun_process::interrupt::StopRequest;
use mailrun_process::outputs;
use mailrun_process::party_options::PartyOptions;
use mailrun_text::numbers::{count, counted, memory, octets, rate, seconds};
use mailrun_text::table::{Align, Table};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The bench waits at least this long for the restarted relay to become ready. This is longer than usual targets, so
/// that the report can say by how much a relay misses its target.
const MIN_READY_TIMEOUT: Duration = Duration::from_secs(300);
/// Time limit for `mailrun queue retry`, which only asks the relay to retry and does not wait for deliveries.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct BacklogOptions {
    pub scenario: ScenarioOptions,
    pub relay: Relay,
    pub shape: LoadShape,
    pub messages: u64,
    /// If nothing is delivered for this long, the bench stops waiting for the rest of the backlog.
    pub lost_after: Duration,
    /// Fresh messages per second that are sent while the relay delivers the backlog. `None` if no fresh mail is sent.
    pub fresh_per_s: Option<f64>,
    /// If set, the bench makes the relay retry its queue when the next hop is back, with the recipe's `queue.flush` or
    /// with `mailrun queue retry`. Otherwise the relay retries by itself.
    pub flushes: bool,
    /// How the next hop holds mail back while the queue fills. `None` means that nothing listens at its address.
    pub receiver: Option<BacklogReceiver>,
    pub memory_target: Option<MemoryTarget>,
    pub ready_target: Option<ReadyTarget>,
}

/// Rules by which the sink, which is the relay's next hop, holds mail back so that the relay's queue fills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BacklogReceiver {
    /// A fault rule of the sink holds mail back, for example by deferring the mail.
    Rule(String),
    /// The sink enforces the limits that a large mail provider documents. The string names this provider, for example
    /// `gmail`.
    Like(String),
}

impl BacklogOptions {
    /// Describes how the next hop holds mail back, such as `is down`, for the titles of reports.
    pub(super) fn next_hop_text(&self) -> String {
        match &self.receiver {
            None => "is down".to_owned(),
            Some(BacklogReceiver::Rule(rule)) => format!("has the rule {rule:?}"),
            Some(BacklogReceiver::Like(name)) => format!("has rules like those of {name}"),
        }
    }

    /// Returns the sink options that make the next hop hold mail back. There are no options if the next hop is down
    /// while the queue fills, because no sink runs then.
    fn sink_options(&self) -> PartyOptions {
        let options = PartyOptions::default();
        match &self.receiver {
            None => options,
            Some(BacklogReceiver::Rule(rule)) => options.with("fault", rule),
            Some(BacklogReceiver::Like(name)) => options.with("rules-like", name),
        }
    }
}

/// Limit for the peak memory of mailrun's own relay. It applies only to runs of at most `messages` messages, because a
/// longer queue takes more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryTarget {
    pub bytes: u64,
    pub messages: u64,
}

/// Limit for the time until mailrun's own relay is ready after a restart. It applies only to runs of at most
/// `messages` messages, because the relay takes longer to read a longer queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyTarget {
    pub time: Duration,
    pub messages: u64,
}

/// Results of the phases, with `None` for each phase that was not reached.
#[derive(Clone, Debug, Default)]
pub(super) struct BacklogResults {
    pub(super) fill: Option<FillPhase>,
    pub(super) restart: Option<RestartPhase>,
    pub(super) drain: Option<DrainPhase>,
}

#[derive(Debug)]
pub(super) struct MeasuredBacklog {
    pub(super) report: TextReport,
    pub(super) results: BacklogResults,
    pub(super) recovery: Option<Recovery>,
    /// Messages accepted per second in the first and in the last tenth of the time in which the queue was filled.
    pub(super) accepted_per_s: Option<[f64; 2]>,
    /// Targets that the relay missed, and what the verdict of the run reports, such as lost mail.
    pub(super) flaws: RunFlaws,
}

/// Resources that the relay uses at the end of a phase. All fields are `None` if the bench did not start the relay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RelayUse {
    pub(super) rss_bytes: Option<u64>,
    pub(super) peak_bytes: Option<u64>,
    pub(super) disk_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FillPhase {
    pub(super) messages: u64,
    pub(super) took_s: f64,
    pub(super) relay: RelayUse,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RestartPhase {
    pub(super) stop_s: f64,
    pub(super) listen_s: f64,
    pub(super) ready: Option<ReadyPhase>,
    pub(super) relay: RelayUse,
}

/// Time until mailrun's own relay was ready after a restart, and the number of queued messages that it then reported.
/// Other relays report neither, so the bench can only wait for their greeting.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadyPhase {
    took_s: f64,
    queued: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct DrainPhase {
    /// Time from the start of this phase until the first message of the backlog arrived. `None` if no message arrived.
    pub(super) first_s: Option<f64>,
    /// Time from the start of this phase until the last arrival or, if no message arrived, the whole time that the
    /// bench waited.
    pub(super) took_s: f64,
    /// Messages of the backlog that arrived after the next hop was back.
    pub(super) messages: u64,
    pub(super) relay: RelayUse,
    pub(super) completeness: Completeness,
    pub(super) fresh: Option<FreshFigures>,
}

impl DrainPhase {
    /// Returns the time until the whole backlog was delivered, or `None` if some of it did not arrive.
    pub(super) fn all_delivered_s(self) -> Option<f64> {
        (self.completeness == Completeness::All).then_some(self.took_s)
    }
}

/// Records when the first and the last message of the backlog arrived.
#[derive(Clone, Copy, Debug)]
struct ArrivalTimes {
    /// Number of messages that had arrived before the drain phase began.
    before: u64,
    arrived: u64,
    /// Time from the beginning of the drain phase to the first arrival.
    first: Option<Duration>,
    last: Option<Duration>,
}

impl ArrivalTimes {
    fn new(before: u64) -> Self {
        Self { before, arrived: before, first: None, last: None }
    }

    /// Takes the number of messages that have arrived in total by the time `at`, which counts from the beginning of the
    /// drain phase. If the number has grown, `at` is recorded as the time of an arrival.
    fn note(&mut self, arrived: u64, at: Duration) {
        if arrived > self.arrived {
            self.arrived = arrived;
            self.first = self.first.or(Some(at));
            self.last = Some(at);
        }
    }

    fn messages(self) -> u64 {
        self.arrived - self.before
    }
}

/// Runs the scenario until it is complete, or until SIGINT or SIGTERM. The report covers the phases that were
/// completed.
///
/// # Errors
/// Returns an error if the relay has no queue that survives a restart, if the disk has too little space, or if a
/// process does not start.
pub fn run(options: &BacklogOptions) -> Result<TextReport> {
    check(&options.relay)?;
    Ok(measure(options)?.report)
}

/// Checks that the relay forwards mail to a next hop, that its queue survives a restart, and that the programs of its
/// recipe are installed.
///
/// # Errors
/// Returns an error that says why the relay cannot be measured.
pub(super) fn check(relay: &Relay) -> Result<()> {
    match relay {
        Relay::None => bail!("a backlog needs a relay"),
        Relay::Mailrun(RelayDurability::Memory) => {
            bail!("mailrun:memory has its queue in memory, so that the restart would lose it")
        }
        relay if relay.has_mailboxes() => {
            bail!("{relay} delivers to mailboxes, so that it has no next hop for which mail could wait")
        }
        relay => launch::check(relay),
    }
}

/// Runs the scenario, and writes its report and its record. The caller must have called `check` for the relay.
///
/// # Errors
/// Returns an error if the disk has too little space, or if a process does not start.
pub(super) fn measure(options: &BacklogOptions) -> Result<MeasuredBacklog> {
    let scenario = ScenarioRun::prepare(&options.scenario)?;
    let (needed_bytes, place) = (needed_bytes(options), scenario.directory().path());
    if needed_bytes > 0 {
        usage::ensure_free(place, needed_bytes)?;
        scenario.print_line(&format!(
            "mailrun: the relay's spool needs up to {} of disk in {} ({} free), and is removed at the end",
            memory(needed_bytes),
            place.display(),
            memory(usage::free_bytes(place)?)
        ));
    }
    let load = Workload { messages: Some(options.messages), ..Workload::default() };
    let bench = scenario.bench("", &options.relay, &options.shape, load);
    let sink_options = options.sink_options();
    let bench = BenchOptions { lost_after: Some(options.lost_after), sink_options, ..bench };
    let outcome = BacklogRun::prepare(&scenario, &bench, options).and_then(BacklogRun::run);
    let (results, record, memory) = outcome.inspect_err(|_| scenario.directory().discard())?;
    let goals = goals(&results, &record, options);
    let mut flaws = RunFlaws::of(&record, None);
    let report = report(&results, &record, &memory, options, (&goals, &flaws));
    flaws.add(goals::defects(&goals));
    scenario.directory().write("memory.tsv", &memory.lines())?;
    let report = scenario.save(report)?;
    let mut directory = scenario.into_directory();
    directory.save(&record)?;
    // Keep the spool if messages are lost, because they may still be in the spool.
    if record.ledger.lost.unwrap_or_default() + record.ledger.not_delivered.unwrap_or_default() == 0 {
        directory.remove_spool()?;
    }
    let accepted_per_s = accept_rates(&record.series);
    Ok(MeasuredBacklog { report, results, recovery: record.recovery, accepted_per_s, flaws })
}

/// Returns how long the bench waits for the restarted relay to become ready: twice the target, but at least
/// `MIN_READY_TIMEOUT`.
fn ready_timeout(target: Option<ReadyTarget>) -> Duration {
    target.map_or(MIN_READY_TIMEOUT, |target| MIN_READY_TIMEOUT.max(target.time.saturating_mul(2)))
}

/// Returns an upper bound for the size of the queue on disk. In the spool of mailrun's relay, the record of a message
/// takes the size of the message and its envelope plus 100 bytes (spool-format.md). The relay writes records in
/// batches, with one message of each waiting session in a batch. Each batch begins with a new block, so the rest of the
/// previous block stays unused. The bound also includes segments that are free or have just been begun. For other
/// relays, the bound assumes three files for each message, and rounds the size of each file up to whole blocks.
fn needed_bytes(options: &BacklogOptions) -> u64 {
    const BLOCK: u64 = 4096;
    const SEGMENT: u64 = 64 << 20;
    let BacklogOptions { relay, messages, shape, .. } = options;
    let each = match relay {
        Relay::Mailrun(_) => shape.message_bytes + 512 + BLOCK / u64::from(shape.sessions.clamp(1, 8)),
        Relay::None | Relay::Running { .. } => return 0,
        Relay::Recipe(_) | Relay::Command(_) => shape.message_bytes + 512 + 3 * BLOCK,
    };
    messages * each * 51 / 50 + 6 * SEGMENT
}

/// Kind of the relay, which decides how the bench starts the relay and makes it retry its queue.
enum BacklogServer<'g> {
    /// mailrun's own relay, which reports when it is ready and how many messages are queued.
    Own,
    Recipe {
        recipe: &'g Recipe,
        places: Box<Places>,
        command: ServerCommand,
    },
    /// A server that the user gave as a command line. The bench knows nothing more about it.
    Command,
    /// A server that was already running at this address.
    Running(&'g str),
}

struct BacklogRun<'g> {
    scenario: &'g ScenarioRun,
    bench: &'g BenchOptions,
    directory: &'g RunDirectory,
    supervisor: Supervisor,
    server: BacklogServer<'g>,
    /// Address to which the relay forwards mail. If the options have no `receiver`, nothing listens at this address
    /// until the last phase.
    sink: String,
    /// Address at which the relay accepts mail. It may change when the relay is restarted.
    address: String,
    options: &'g BacklogOptions,
    results: BacklogResults,
    faults: Vec<BenchFault>,
}

impl<'g> BacklogRun<'g> {
    fn prepare(scenario: &'g ScenarioRun, bench: &'g BenchOptions, options: &'g BacklogOptions) -> Result<Self> {
        let directory = scenario.directory();
        // Choose an address for the relay's next hop, but do not listen there yet. Until the sink is started at this
        // address, the relay must queue its mail.
        let sink = match &options.relay {
            Relay::Running { sink, .. } => sink.clone(),
            _ => free_port()?.to_string(),
        };
        let server = match &options.relay {
            Relay::Recipe(recipe) => {
                let places =
                    Places::in_directory(directory.spool(), free_port()?, next_hop(&sink)?, scenario.program());
                BacklogServer::Recipe { recipe, command: recipe.prepare(&places)?, places: Box::new(places) }
            }
            Relay::Running { address, .. } => BacklogServer::Running(address),
            Relay::Command(_) => BacklogServer::Command,
            Relay::Mailrun(_) | Relay::None => {
                directory.write("relay.toml", &config(&sink, bench, needed_bytes(options)))?;
                BacklogServer::Own
            }
        };
        let supervisor = Supervisor::new(bench)?;
        Ok(Self {
            scenario,
            bench,
            directory,
            supervisor,
            server,
            sink,
            address: String::new(),
            options,
            results: BacklogResults::default(),
            faults: Vec::new(),
        })
    }

    fn run(mut self) -> Result<(BacklogResults, Record, MemoryCurve)> {
        let run = outputs::new_run_id()?;
        let started_at = jiff::Timestamp::now();
        let sampler = HostSampler::start();
        let source = self.fill(run)?;
        let outcome = self.restart_and_drain(run, &source);
        if self.is_uninterrupted() {
            outcome?;
        }
        let complaints = [self.supervisor.stop_relay(PartyProcess::terminate)?, self.supervisor.stop_sink()?];
        self.supervisor.ensure_all_alive()?;
        complaints.into_iter().flatten().try_for_each(Err)?;
        let arrivals = self.results.drain.map(|_| gather::read_party(self.directory, Role::Sink)).transpose()?;
        let ending = (!self.is_uninterrupted()).then_some(Ending::Interrupted);
        let arrived = self.results.drain.map_or(Completeness::NotAll, |drained| drained.completeness);
        let mut relay = gather::relay(self.bench, self.directory, arrived);
        let may_have_mail = arrivals.is_some() && arrived == Completeness::NotAll;
        if may_have_mail && self.bench.relay().is_some_and(Relay::is_own) {
            let queue = || gather::relay_queue(self.scenario.program(), self.directory, run);
            relay.iter_mut().for_each(|relay| relay.record_queue(queue()));
        }
        let observations = self.supervisor.finish();
        let memory = observations.iter().find(|party| party.role == Role::Relay).map(|party| party.memory.clone());
        let surroundings = sampler.finish();
        let between = Topology::Server;
        let disk_bytes = None;
        let disk_usage = DiskUsage::default();
        let results = gather::RunResults {
            run,
            source,
            relay,
            disk_bytes,
            disk_usage,
            arrivals: arrivals.map(Into::into),
            between,
            sink: gather::SinkOwner::Own,
            ending,
            quiet_timeout: None,
            deaths: Vec::new(),
            faults: self.faults,
            load_started_at: Duration::ZERO,
            observations,
            surroundings,
            own_s: sampler.own_s(),
        };
        let mut record = gather::record(self.bench, self.directory.path(), started_at, results);
        add_recovery(&mut record);
        Ok((self.results, record, memory.unwrap_or_default()))
    }

    /// Sends all messages to the relay while its next hop is down or holds mail back.
    fn fill(&mut self, run: RunId) -> Result<gather::PartyResults> {
        // Name this relay's output files `relay-before`, because the restarted relay would otherwise overwrite them.
        match self.server {
            BacklogServer::Running(address) => address.clone_into(&mut self.address),
            _ => self.start_relay("relay-before")?,
        }
        if self.options.receiver.is_some() {
            self.start_sink(run)?;
            self.faults.push(BenchFault::begins("the next hop has a rule"));
        } else {
            self.faults.push(BenchFault::begins("the next hop does not listen"));
        }
        let command = PartyCommand::source(self.scenario.program(), self.bench, run, self.directory, &self.address);
        let complaint = self.supervisor.follow_source(command)?;
        self.supervisor.ensure_all_alive()?;
        complaint.map_or(Ok(()), Err)?;
        let source = gather::read_party(self.directory, Role::Source)?;
        self.record_fill(&source.record);
        Ok(source)
    }

    /// Restarts the relay, unless the bench did not start it. Then makes the next hop take mail again, by starting the
    /// sink or by removing the rules of a running sink, and waits until the relay has delivered its queue.
    fn restart_and_drain(&mut self, run: RunId, source: &gather::PartyResults) -> Result<()> {
        ensure!(self.is_uninterrupted(), "interrupted before the restart of the relay");
        if !matches!(self.server, BacklogServer::Running(_)) {
            self.restart_relay()?;
        }
        if self.options.receiver.is_some() {
            self.remote_sink()?.clear_rules()?;
            self.faults.push(BenchFault::ends("the next hop has no rule"));
        } else {
            self.start_sink(run)?;
            self.faults.push(BenchFault::ends("the next hop listens"));
        }
        self.drain(run, source)
    }

    fn start_sink(&mut self, run: RunId) -> Result<()> {
        let program = self.scenario.program();
        self.supervisor.start_sink(PartyCommand::sink_at(program, self.bench, run, self.directory, &self.sink))?;
        Ok(())
    }

    fn remote_sink(&self) -> Result<RemoteSink> {
        RemoteSink::connect(self.supervisor.http_of(Role::Sink).context("the sink did not report its HTTP address")?)
    }

    fn is_uninterrupted(&self) -> bool {
        self.supervisor.asked() == StopRequest::Nothing
    }

    fn start_relay(&mut self, output: &str) -> Result<()> {
        let mut launch = self.launch()?;
        let file = |kind: &str| self.directory.path().join(format!("{output}.{kind}"));
        (launch.command.stdout, launch.command.stderr) = (file("stdout"), file("stderr"));
        self.address = self.supervisor.start_relay(launch).map_err(|error| match &self.server {
            BacklogServer::Recipe { recipe, places, .. } => recipe.start_error(&error, &places.directory),
            _ => error,
        })?;
        Ok(())
    }

    fn launch(&self) -> Result<RelayLaunch> {
        let program = self.scenario.program();
        if let BacklogServer::Recipe { recipe, places, command } = &self.server {
            return Ok(launch::launch_server(recipe, command.clone(), places, self.directory));
        }
        if let (BacklogServer::Command, Some(relay)) = (&self.server, self.bench.relay()) {
            let launch = launch::prepare(relay, self.bench, program, self.directory, &self.sink)?;
            return launch.context("no relay can be started");
        }
        let file = |path: PathBuf| path.to_string_lossy().into_owned();
        let config = file(self.directory.path().join("relay.toml"));
        let record = file(self.directory.party_files(Role::Relay).record);
        let words = ["relay", "--config", &config, "--json", &record, "--live", "json"].map(str::to_owned);
        Ok(RelayLaunch {
            command: PartyCommand::relay(program, words.to_vec(), self.directory),
            ready_signal: ReadySignal::Reported,
            ready_within: ready_timeout(self.options.ready_target),
        })
    }

    fn relay_use(&mut self) -> RelayUse {
        if matches!(self.server, BacklogServer::Running(_)) {
            return RelayUse::default();
        }
        let usage = self.supervisor.sample_relay();
        let mail = match &self.server {
            BacklogServer::Recipe { places, .. } => places.state.clone(),
            _ => self.directory.spool(),
        };
        RelayUse {
            rss_bytes: usage.rss_bytes,
            peak_bytes: usage.max_rss_bytes,
            disk_bytes: Some(usage::used_bytes(&mail)),
        }
    }

    fn record_fill(&mut self, source: &Record) {
        let stage = source.stage(mailrun_measurement::Stage::Accepted);
        let accepted = FillPhase {
            messages: gather::accepted_messages(source),
            took_s: stage.map_or(0.0, |row| row.duration_s),
            relay: self.relay_use(),
        };
        self.results.fill = Some(accepted);
        self.supervisor.print_line(&format!(
            "{} accepted in {}; the relay uses {} of memory, {} of disk",
            counted(accepted.messages, "message"),
            seconds(accepted.took_s),
            shown(accepted.relay.rss_bytes, memory),
            shown(accepted.relay.disk_bytes, memory)
        ));
    }

    /// Stops the relay and starts it again with the same spool.
    fn restart_relay(&mut self) -> Result<()> {
        let stopping = Instant::now();
        self.faults.push(BenchFault::begins("the relay is stopped"));
        let complaint = self.supervisor.stop_relay(PartyProcess::terminate)?;
        self.supervisor.ensure_all_alive()?;
        match (&self.server, complaint) {
            (_, None) => {}
            (BacklogServer::Own, Some(complaint)) => return Err(complaint),
            // Relays other than mailrun may leave processes behind, which the bench has now killed. For example, Exim
            // may end before its delivery processes. Print this and go on, because the mail of killed processes stays
            // in the queue.
            (_, Some(complaint)) => self.supervisor.print_line(&format!("{complaint:#}; they were killed")),
        }
        let stop_s = stopping.elapsed().as_secs_f64();
        let restarted_at = Instant::now();
        self.start_relay("relay")?;
        let listen_s = restarted_at.elapsed().as_secs_f64();
        let ready = match self.server {
            BacklogServer::Own => Some(self.await_ready(restarted_at)?),
            _ => None,
        };
        self.faults.push(BenchFault::ends("the relay is ready again"));
        self.results.restart = Some(RestartPhase { stop_s, listen_s, ready, relay: self.relay_use() });
        let ready_s = ready.map_or(listen_s, |ready| ready.took_s);
        let queued = ready.map(|ready| format!(", {} queued", counted(ready.queued, "message"))).unwrap_or_default();
        self.supervisor.print_line(&format!("started again: ready after {}{queued}", seconds(ready_s)));
        Ok(())
    }

    fn await_ready(&mut self, restarted_at: Instant) -> Result<ReadyPhase> {
        let status = self.status()?;
        let timeout = ready_timeout(self.options.ready_target);
        self.supervisor.await_relay("the relay reads its spool", timeout, || status.is_ready())?;
        let took_s = restarted_at.elapsed().as_secs_f64();
        let queued = status.queued().context("the relay does not report how many messages are queued")?;
        Ok(ReadyPhase { took_s, queued })
    }

    fn status(&self) -> Result<RelayStatusClient> {
        RelayStatusClient::at(
            self.supervisor.http_of(Role::Relay).context("the relay did not report its HTTP address")?,
        )
    }

    /// Makes the relay retry its whole queue if `flushes` is set, and starts the source of fresh mail if the options
    /// ask for it. Then waits until all messages are delivered or no more arrive.
    fn drain(&mut self, run: RunId, source: &gather::PartyResults) -> Result<()> {
        let began = Instant::now();
        // Read the number of arrivals before the retry and the fresh mail below, because both may cause deliveries at
        // once.
        let mut arrivals = ArrivalTimes::new(self.supervisor.settled());
        match &self.server {
            _ if !self.options.flushes => {}
            BacklogServer::Own => self.retry_all()?,
            BacklogServer::Recipe { recipe, places, .. } if !recipe.flush_queue(places)? => self
                .supervisor
                .print_line("the recipe has no queue.flush, so that the server delivers when it tries again by itself"),
            BacklogServer::Recipe { .. } | BacklogServer::Command | BacklogServer::Running(_) => {}
        }
        let start = |per_s: f64| {
            let sink = self.remote_sink()?;
            FreshMail::start(self.scenario.program(), self.directory.path(), &self.address, sink, per_s)
        };
        let fresh = self.options.fresh_per_s.map(start).transpose()?;
        let settled = |progress: &LatestProgress| {
            arrivals.note(progress.settled(), began.elapsed());
            progress.settled()
        };
        let completeness = crate::await_settled(&mut self.supervisor, run, source, None, settled)?;
        let first_s = arrivals.first.map(|first| first.as_secs_f64());
        let took_s = arrivals.last.unwrap_or_else(|| began.elapsed()).as_secs_f64();
        let fresh = fresh.map(|fresh| fresh.finish(&mut self.supervisor)).transpose()?;
        // The relay still frees segments of its spool after the last delivery, so wait before measuring the disk usage.
        self.supervisor.await_relay_idle()?;
        self.supervisor.ensure_all_alive()?;
        let relay = self.relay_use();
        let messages = arrivals.messages();
        self.results.drain = Some(DrainPhase { first_s, took_s, messages, relay, completeness, fresh });
        Ok(())
    }

    fn retry_all(&mut self) -> Result<()> {
        let mut command = operation::retry_all(self.scenario.program(), &self.directory.spool())?;
        let mut outcome = Ok(());
        self.supervisor.await_relay("the queue is retried", CONTROL_TIMEOUT, || {
            operation::is_done(&mut command).unwrap_or_else(|error| {
                outcome = Err(error);
                true
            })
        })?;
        outcome
    }
}

/// Finds out when the relay delivered at its full rate again after the next hop was back. Adds an event at that time to
/// the record.
fn add_recovery(record: &mut Record) {
    let is_back = |event: &&EventRow| event.kind == EventKind::FaultOff && event.text.starts_with("the next hop");
    let Some(back_s) = record.events.iter().rfind(is_back).map(|event| event.at_s) else { return };
    record.recovery = recovery(&record.series, back_s);
    if let Some(Recovery { after_s, .. }) = record.recovery {
        let at_s = back_s + after_s;
        let place = record.events.partition_point(|event| event.at_s <= at_s);
        let text = "the server delivers at its full rate again".to_owned();
        record.events.insert(place, EventRow { at_s, kind: EventKind::FullRate, text });
    }
}

/// Returns the text of the relay's configuration. It allows the spool to grow larger than the backlog, so that the
/// relay never answers 452 (insufficient storage).
fn config(sink: &str, bench: &BenchOptions, needed_bytes: u64) -> String {
    let durability = bench.relay().map_or_else(|| "sync".to_owned(), Relay::durability);
    let size = needed_bytes.max(10 << 30) / 4 * 5;
    format!(
        "listen = [\"127.0.0.1:0\"]\nhttp = \"127.0.0.1:0\"\nlog = \"warn\"\n\n[spool]\ndirectory = \"relay.spool\"\n\
         durability = \"{durability}\"\nmax_size = \"{size}\"\n\n[[route]]\nto = \"*\"\nsmtp = \"{sink}\"\n"
    )
}

/// Judges a run by its targets. The targets for memory and for the restart apply to mailrun's own relay only.
fn goals(results: &BacklogResults, record: &Record, options: &BacklogOptions) -> Vec<Goal> {
    let is_own = options.relay.is_own();
    let readiness = is_own.then(|| readiness_goal(results, options));
    let memory = options.memory_target.filter(|_| is_own).and_then(|target| memory_goal(results, target));
    let fresh = results.drain.and_then(|drained| drained.fresh).map(FreshFigures::goal);
    let account = account_goal(results, record, options.messages);
    readiness.into_iter().chain([account]).chain(memory).chain(fresh).collect()
}

fn report(
    results: &BacklogResults,
    record: &Record,
    curve: &MemoryCurve,
    options: &BacklogOptions,
    (goals, flaws): (&[Goal], &RunFlaws),
) -> TextReport {
    let title = format!(
        "{}: {} {}, accepted by {} (durability {}) while its next hop {}",
        options.scenario.name,
        count(options.messages),
        options.shape.description(std::slice::from_ref(&options.relay)),
        options.relay,
        options.relay.durability(),
        options.next_hop_text()
    );
    let fresh = results.drain.and_then(|drained| drained.fresh);
    let accepted_per_s = accept_rates(&record.series).map(|per_s| {
        let [first, last] = per_s.map(rate);
        format!("Accepted per second: {first} in the first tenth of the time, {last} in the last.")
    });
    let mut remarks: Vec<String> = accepted_per_s.into_iter().collect();
    let deepest = record.series.iter().map(|row| row.queued).max().filter(|deepest| *deepest > 0);
    remarks.extend(deepest.map(|deepest| format!("Deepest queue: {} (over time: report.html).", count(deepest))));
    if !matches!(options.relay, Relay::Running { .. }) {
        remarks.push(format!("RSS over time: {}  (all samples: memory.tsv)", curve.bars()));
    }
    remarks.extend(results.fill.and_then(cost_per_message));
    remarks.extend(flaws.notes.iter().cloned());
    let tables = [phases(results, record.recovery)].into_iter().chain(fresh.map(FreshFigures::table)).collect();
    goals::report(&title, tables, goals, flaws.defects(), remarks)
}

/// Returns the rates at which the relay accepted mail in the first and in the last tenth of the time in which it
/// accepted mail. The queue is long in the last tenth, so the two rates show whether a long queue slows the relay down.
/// Returns `None` if the time was shorter than three seconds.
fn accept_rates(series: &[SeriesRow]) -> Option<[f64; 2]> {
    let first = series.iter().find(|row| row.accepted > 0)?.second;
    // The relay accepted mail in only a part of the last second, so the last tenth of the time ends before that second.
    let last = series.iter().rfind(|row| row.accepted > 0)?.second;
    let length = last.checked_sub(first).filter(|length| *length >= 2)?.div_ceil(10);
    let per_s = |from: u64| {
        let within = series.iter().filter(|row| (from..from + length).contains(&row.second));
        within.map(|row| row.accepted).sum::<u64>() as f64 / length as f64
    };
    Some([per_s(first), per_s(last - length)])
}

/// Returns a remark about the memory and the disk space that each queued message takes.
fn cost_per_message(accepted: FillPhase) -> Option<String> {
    let per = |bytes: Option<u64>| bytes?.checked_div(accepted.messages).map(octets);
    Some(format!(
        "A queued message takes {} of memory and {} of disk, including what an empty relay uses.",
        per(accepted.relay.rss_bytes)?,
        per(accepted.relay.disk_bytes)?
    ))
}

fn phases(results: &BacklogResults, recovery: Option<Recovery>) -> Table {
    let right = |title| (title, Align::Right);
    let columns = [("phase", Align::Left), right("messages"), right("took"), right("msg/s")];
    let [phase, messages, elapsed, per_s] = columns;
    let mut table =
        Table::new([phase, messages, elapsed, per_s, right("RSS then"), right("RSS peak"), right("disk then")]);
    let mut rated_row = |phase: &str, messages: Option<u64>, took_s: f64, per_s: Option<f64>, relay: RelayUse| {
        let RelayUse { rss_bytes, peak_bytes, disk_bytes } = relay;
        let places = [rss_bytes, peak_bytes, disk_bytes].map(|bytes| shown(bytes, memory));
        let cells = [phase.to_owned(), shown(messages, count), seconds(took_s), shown(per_s, rate)];
        table.row(cells.into_iter().chain(places).collect());
    };
    let mut row = |phase: &str, messages: Option<u64>, took_s: f64, relay: RelayUse| {
        rated_row(phase, messages, took_s, messages.map(|messages| messages as f64 / took_s), relay);
    };
    let Some(FillPhase { messages, took_s, relay }) = results.fill else { return table };
    row("accepted, next hop held back", Some(messages), took_s, relay);
    if let Some(RestartPhase { stop_s, listen_s, ready, relay }) = results.restart {
        let queued = ready.map(|ready| ready.queued);
        let then = RelayUse { disk_bytes: None, ..relay };
        row("stopped by SIGTERM", queued, stop_s, RelayUse::default());
        match ready {
            None => row("started again: greets", None, listen_s, then),
            Some(ready) => {
                row("started again: listens", queued, listen_s, RelayUse::default());
                row("started again: ready", queued, ready.took_s, then);
            }
        }
    }
    if let Some(DrainPhase { first_s, took_s, messages, relay, .. }) = results.drain {
        if let Some(first_s) = first_s {
            row("first delivered, next hop back", None, first_s, RelayUse::default());
        }
        row("delivered, next hop back", Some(messages), took_s, relay);
        if let Some(Recovery { after_s, full_rate_per_s, .. }) = recovery {
            rated_row("at its full rate again", None, after_s, Some(full_rate_per_s), RelayUse::default());
        }
    }
    table
}

/// Checks that the restarted relay was ready in time and still had every message in its queue.
fn readiness_goal(results: &BacklogResults, options: &BacklogOptions) -> Goal {
    let target = options.ready_target;
    let wanted = target.map_or_else(
        || "all queued".to_owned(),
        |target| format!("all queued, < {} up to {}", seconds(target.time.as_secs_f64()), count(target.messages)),
    );
    let ready = results.restart.and_then(|restart| restart.ready);
    let Some((accepted, ready)) = results.fill.zip(ready) else {
        return Goal::new("ready after a restart", wanted, GoalResult::Unknown("stopped before".to_owned()));
    };
    let value =
        format!("{} of {} queued after {}", count(ready.queued), count(accepted.messages), seconds(ready.took_s));
    let is_quick =
        target.is_none_or(|target| ready.took_s < target.time.as_secs_f64() || accepted.messages > target.messages);
    // If the options have a `receiver`, the sink runs from the start and may have accepted mail before the restart. So
    // the queue may have fewer messages than the relay accepted.
    let is_whole = options.receiver.is_some() || ready.queued == accepted.messages;
    Goal::condition("ready after a restart", is_whole && is_quick, value, wanted)
}

/// Checks the peak memory of mailrun's relay before and after the restart. Returns `None` if the relay accepted more
/// messages than `target.messages`, because the target then does not apply.
fn memory_goal(results: &BacklogResults, target: MemoryTarget) -> Option<Goal> {
    let accepted = results.fill.filter(|accepted| accepted.messages <= target.messages)?;
    let later = [results.restart.map(|restart| restart.relay), results.drain.map(|drained| drained.relay)];
    let uses = later.into_iter().flatten().chain([accepted.relay]);
    let peak_bytes = uses.filter_map(|relay| relay.peak_bytes).max().unwrap_or_default();
    let wanted = format!("< {} up to {}", memory(target.bytes), count(target.messages));
    let value = format!("{} with {} queued", memory(peak_bytes), count(accepted.messages));
    Some(Goal::condition("RSS of the relay, at its peak", peak_bytes < target.bytes, value, wanted))
}

fn account_goal(results: &BacklogResults, record: &Record, messages: u64) -> Goal {
    let what = "every message accounted for";
    let wanted = "all delivered, lost 0";
    if results.drain.is_none() {
        return Goal::new(what, wanted, GoalResult::Unknown("stopped before".to_owned()));
    }
    let ledger = &record.ledger;
    let number = |field: Option<u64>| field.unwrap_or_default();
    let accepted = number(ledger.accepted);
    let refused = match accepted == messages {
        true => String::new(),
        false => format!("{} of {} accepted, ", count(accepted), count(messages)),
    };
    let value = format!(
        "{refused}{} of {} delivered, lost {}, {}",
        count(number(ledger.delivered)),
        count(accepted),
        count(number(ledger.lost)),
        counted(number(ledger.duplicates), "duplicate")
    );
    let missing = number(ledger.lost) + number(ledger.corrupt);
    let (queued, not_delivered) = (number(ledger.queued), number(ledger.not_delivered));
    // Lost or changed mail fails this target. Duplicates do not, because SMTP cannot rule them out (RFC 1047).
    let is_good = ledger.delivered == ledger.accepted && accepted == messages && missing == 0;
    let is_open = accepted == messages && queued + not_delivered > 0;
    if !is_good && missing == 0 && (record.ending == Some(Ending::Interrupted) || is_open) {
        // If the bench could not read the queue, nobody knows where the missing mail is, so call it "not delivered".
        let rest = if not_delivered > 0 { "not delivered" } else { "queued" };
        let value = format!("{value}, {} {rest}", count(queued + not_delivered));
        return Goal::new(what, wanted, GoalResult::Unknown(value));
    }
    Goal::account(what, is_good, value, wanted)
}

#[cfg(test)]
mod tests {
    use super::super::scenario::sample_options;
    use super::*;
    use mailrun_measurement::record::{Outcome, Pipelining};
    use mailrun_report::sample;

    fn options(messages: u64) -> BacklogOptions {
        BacklogOptions {
            scenario: sample_options("backlog"),
            relay: Relay::Mailrun(RelayDurability::Sync),
            shape: LoadShape { sessions: 100, message_bytes: 65_536, reuse: None, pipelining: Pipelining::Off },
            messages,
            lost_after: Duration::from_secs(60),
            fresh_per_s: None,
            flushes: true,
            receiver: None,
            memory_target: Some(MemoryTarget { bytes: 256 << 20, messages: 100_000 }),
            ready_target: Some(ReadyTarget { time: Duration::from_secs(10), messages: 1_000_000 }),
        }
    }

    fn results(messages: u64, ready_s: f64, peak_bytes: u64) -> BacklogResults {
        let relay = RelayUse {
            rss_bytes: Some(peak_bytes / 2),
            peak_bytes: Some(peak_bytes),
            disk_bytes: Some(messages * 70_000),
        };
        let ready = Some(ReadyPhase { took_s: ready_s, queued: messages });
        BacklogResults {
            fill: Some(FillPhase { messages, took_s: 10.0, relay }),
            restart: Some(RestartPhase { stop_s: 0.1, listen_s: 0.5, ready, relay }),
            drain: Some(DrainPhase {
                first_s: Some(0.25),
                took_s: 5.0,
                messages,
                relay,
                completeness: Completeness::All,
                fresh: None,
            }),
        }
    }

    fn judged_report(results: &BacklogResults, record: &Record, messages: u64) -> TextReport {
        judged_report_of(results, record, &options(messages))
    }

    fn judged_report_of(results: &BacklogResults, record: &Record, options: &BacklogOptions) -> TextReport {
        let goals = goals(results, record, options);
        report(results, record, &MemoryCurve::default(), options, (&goals, &RunFlaws::of(record, None)))
    }

    /// Returns the record of a run in which all messages were accepted and delivered.
    fn whole(messages: u64) -> Record {
        let mut record = sample::relayed();
        let number = Some(messages);
        (record.ledger.created, record.ledger.accepted, record.ledger.delivered) = (number, number, number);
        record
    }

    #[test]
    fn what_is_small_quick_and_whole_passes() {
        let good = judged_report(&results(100_000, 2.0, 200 << 20), &whole(100_000), 100_000);
        assert!(good.is_good() && good.text.matches("PASS").count() == 3, "{}", good.text);
        assert!(good.text.contains("200 MiB with 100,000 queued"), "{}", good.text);
        let fat = judged_report(&results(100_000, 2.0, 256 << 20), &whole(100_000), 100_000);
        assert!(!fat.is_good() && fat.text.matches("FAIL").count() == 1, "{}", fat.text);
        let slow = judged_report(&results(1_000_000, 10.0, 400 << 20), &whole(1_000_000), 1_000_000);
        assert!(!slow.is_good() && slow.text.matches("FAIL").count() == 1, "{}", slow.text);
        assert!(!slow.text.contains("at its peak"), "of a million no memory is promised: {}", slow.text);
    }

    #[test]
    fn a_queue_that_lacks_something_and_a_loss_are_missed() {
        let mut lacks = results(1_000, 1.0, 1 << 20);
        let ready = Some(ReadyPhase { took_s: 1.0, queued: 999 });
        lacks.restart = lacks.restart.map(|restart| RestartPhase { ready, ..restart });
        let lacks = judged_report(&lacks, &whole(1_000), 1_000);
        assert!(!lacks.is_good() && lacks.text.contains("999 of 1,000 queued"), "{}", lacks.text);
        let lossy = judged_report(&results(200_000, 1.0, 1 << 20), &sample::lossy(), 200_000);
        assert!(!lossy.is_good() && lossy.text.contains("lost 200"), "{}", lossy.text);
        let mut doubled = whole(1_000);
        (doubled.ledger.duplicates, doubled.verdict.closed) = (Some(3), false);
        let doubled = judged_report(&results(1_000, 1.0, 1 << 20), &doubled, 1_000);
        assert!(doubled.is_good() && doubled.text.contains("3 duplicates"), "{}", doubled.text);
    }

    #[test]
    fn refused_mail_and_an_invalid_run_do_not_pass() {
        let refused = judged_report(&results(999, 1.0, 1 << 20), &whole(999), 1_000);
        assert!(!refused.is_good() && refused.text.matches("FAIL").count() == 1, "{}", refused.text);
        assert!(refused.text.contains("999 of 1,000 accepted, 999 of 999 delivered"), "{}", refused.text);
        let mut busy = whole(1_000);
        (busy.verdict.outcome, busy.verdict.why) = (Some(Outcome::Invalid), "The source was the limit.".to_owned());
        let busy = judged_report(&results(1_000, 1.0, 1 << 20), &busy, 1_000);
        assert_eq!(busy.conclusion.line(), "INVALID The source was the limit.");
    }

    #[test]
    fn mail_in_the_queue_is_not_lost() {
        let mut queued = sample::relayed();
        (queued.ledger.delivered, queued.ledger.queued) = (Some(199_990), Some(10));
        let judged = judged_report(&results(200_000, 1.0, 1 << 20), &queued, 200_000);
        assert!(!judged.is_good() && judged.text.matches("INCONCLUSIVE").count() == 1, "{}", judged.text);
        assert!(judged.text.contains("lost 0, 0 duplicates, 10 queued"), "{}", judged.text);
        // One message is lost now, so the report must say FAIL, although other mail is still queued.
        (queued.ledger.delivered, queued.ledger.lost) = (Some(199_989), Some(1));
        let judged = judged_report(&results(200_000, 1.0, 1 << 20), &queued, 200_000);
        assert!(!judged.is_good() && judged.text.matches("FAIL").count() == 1, "{}", judged.text);
        let mut interrupted = sample::relayed();
        (interrupted.ending, interrupted.ledger.queued) = (Some(Ending::Interrupted), Some(0));
        let judged = judged_report(&results(200_000, 1.0, 1 << 20), &interrupted, 300_000);
        assert!(!judged.is_good() && judged.text.matches("INCONCLUSIVE").count() == 1, "{}", judged.text);
    }

    #[test]
    fn what_was_stopped_before_is_not_judged() {
        let cut = BacklogResults { restart: None, drain: None, ..results(500, 1.0, 1 << 20) };
        let cut = judged_report(&cut, &sample::unwatched(), 1_000);
        assert!(!cut.is_good() && cut.text.matches("INCONCLUSIVE").count() == 2, "{}", cut.text);
    }

    #[test]
    fn what_did_not_arrive_is_neither_counted_nor_waited_for_in_the_rate() {
        let mut arrivals = ArrivalTimes::new(10);
        for (arrived, at_s) in [(10, 1), (11, 2), (11, 3), (500, 58), (500, 238)] {
            arrivals.note(arrived, Duration::from_secs(at_s));
        }
        assert_eq!([arrivals.first, arrivals.last], [2, 58].map(|s| Some(Duration::from_secs(s))));
        assert_eq!(arrivals.messages(), 490);
        let mut incomplete = results(1_000, 1.0, 1 << 20);
        let drain = incomplete.drain.unwrap();
        assert_eq!(drain.all_delivered_s(), Some(5.0));
        let drain = DrainPhase { messages: 900, completeness: Completeness::NotAll, ..drain };
        assert_eq!(drain.all_delivered_s(), None);
        incomplete.drain = Some(drain);
        let text = phases(&incomplete, None).terminal(200);
        let row = text.lines().find(|line| line.trim_start().starts_with("delivered, next hop back")).unwrap();
        assert!(["900", "5.00 s", "180"].into_iter().all(|cell| row.contains(cell)), "{text}");
    }

    #[test]
    fn a_server_of_mailboxes_has_no_backlog() {
        let error = check(&"dovecot".parse().unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("dovecot delivers to mailboxes"), "{error}");
    }

    #[test]
    fn the_wait_for_readiness_is_longer_than_its_target() {
        assert_eq!(ready_timeout(None), Duration::from_secs(300));
        let of = |seconds: u64| ready_timeout(Some(ReadyTarget { time: Duration::from_secs(seconds), messages: 1 }));
        assert_eq!((of(10), of(600)), (Duration::from_secs(300), Duration::from_secs(1_200)));
    }

    #[test]
    fn the_disk_that_is_needed_is_more_than_the_messages() {
        let needed = needed_bytes(&options(100_000));
        assert!((6_600_000_000..7_300_000_000).contains(&needed), "{needed}");
        let of = |relay: &str| needed_bytes(&BacklogOptions { relay: relay.parse().unwrap(), ..options(100_000) });
        assert!(of("postfix") > needed && of("postfix") < 2 * needed, "{}", of("postfix"));
        let running = Relay::Running { address: "127.0.0.1:25".to_owned(), sink: "127.0.0.1:26".to_owned() };
        assert_eq!(needed_bytes(&BacklogOptions { relay: running, ..options(100_000) }), 0);
        let relay = Relay::Mailrun(RelayDurability::Write);
        let bench = options(1).scenario.bench("d".into(), &relay, &options(1).shape, Workload::default());
        let config = config("127.0.0.1:9", &bench, 100 << 30);
        assert!(config.contains("durability = \"write\"") && config.contains("smtp = \"127.0.0.1:9\""), "{config}");
        assert!(config.contains(&format!("max_size = \"{}\"", 125_u64 << 30)), "{config}");
    }

    #[test]
    fn another_relay_has_its_account_and_no_targets_of_ours() {
        let mut of_postfix = results(1_000, 1.0, 300 << 20);
        of_postfix.restart = of_postfix.restart.map(|restart| RestartPhase { ready: None, ..restart });
        let options = BacklogOptions { relay: "postfix".parse().unwrap(), ..options(1_000) };
        let judged = judged_report_of(&of_postfix, &whole(1_000), &options);
        assert!(judged.is_good() && judged.text.matches("PASS").count() == 1, "{}", judged.text);
        for words in
            ["accepted by postfix (durability sync)", "started again: greets", "first delivered, next hop back"]
        {
            assert!(judged.text.contains(words), "{words} in {}", judged.text);
        }
        let unobserved = BacklogResults {
            fill: of_postfix.fill.map(|fill| FillPhase { relay: RelayUse::default(), ..fill }),
            restart: None,
            ..of_postfix
        };
        let relay = Relay::Running { address: "mx.example:25".to_owned(), sink: "127.0.0.1:26".to_owned() };
        let judged = judged_report_of(&unobserved, &whole(1_000), &BacklogOptions { relay, ..options });
        assert!(judged.is_good() && !judged.text.contains("RSS over time"), "{}", judged.text);
        assert!(!judged.text.contains("started again") && !judged.text.contains("A queued message"), "{}", judged.text);
    }

    #[test]
    fn the_rate_of_a_long_queue_is_compared_with_that_of_a_short_one() {
        let row = |second, accepted| SeriesRow { second, accepted, ..SeriesRow::default() };
        let falling = |seconds: u64| -> Vec<SeriesRow> {
            let rows = (0..seconds).map(|second| row(second + 5, 1_000 - second));
            [row(4, 0)].into_iter().chain(rows).chain([row(seconds + 5, 3), row(seconds + 6, 0)]).collect()
        };
        for (seconds, expected) in [
            (0, None),
            (1, None),
            (2, Some([1000.0, 999.0])),
            (10, Some([1000.0, 991.0])),
            // A tenth of 20 s is 2 s. The first two seconds have 1,000 and 999 messages, so their mean is 999.5.
            (20, Some([999.5, 981.5])),
        ] {
            assert_eq!(accept_rates(&falling(seconds)), expected, "{seconds} s");
        }
        assert_eq!(accept_rates(&[]), None);
    }
}
