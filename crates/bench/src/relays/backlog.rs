//! The scenario `relay-backlog`. A relay accepts mail while its next hop is down. Then the relay is
//! stopped and started again, and then the next hop comes back.
//!
//! ```text
//! nobody listens where the relay sends to                                     the sink listens there
//! relay ── source: all accepted ── SIGTERM ── relay again ── ready, all queued ── queue retry all ── all delivered
//!          memory, disk             how long        how long                          how long, each once?
//! ```
use super::goals::{self, Goal, GoalResult};
use super::operation::{self, RelayStatusClient};
use super::scenario::{LoadShape, ScenarioOptions, ScenarioRun};
use crate::directory::RunDirectory;
use crate::engine::{RunFlaws, TextReport, shown};
use crate::gather::{self, BenchFault};
use crate::launch::{ReadySignal, RelayLaunch, free_port};
use crate::parties::{PartyCommand, PartyProcess};
use crate::plan::BenchOptions;
use crate::relay::{Relay, RelayDurability};
use crate::supervisor::{Completeness, Supervisor};
use crate::usage::{self, DiskUsage, MemoryCurve};
use anyhow::{Context, Result, ensure};
use mailrun_journey::account::Topology;
use mailrun_journey::record::{Ending, Record, Role, Workload};
use mailrun_journey::trace::RunId;
use mailrun_party::host_sampler::HostSampler;
use mailrun_party::interrupt::StopRequest;
use mailrun_party::outputs;
use mailrun_text::numbers::{count, counted, memory, octets, rate, seconds};
use mailrun_text::table::{Align, Table};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Minimum time limit until the restarted relay is ready. The limit is longer than usual targets,
/// so that the report can say by how much a target is missed.
const MIN_READY_TIMEOUT: Duration = Duration::from_secs(300);
/// Time limit for `queue retry`.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct BacklogOptions {
    pub scenario: ScenarioOptions,
    pub durability: RelayDurability,
    pub shape: LoadShape,
    pub messages: u64,
    pub memory_target: Option<MemoryTarget>,
    pub ready_target: Option<ReadyTarget>,
}

/// Limit for the relay's peak memory. It applies only to runs of at most `messages` messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryTarget {
    pub bytes: u64,
    pub messages: u64,
}

/// Limit for the time until the restarted relay is ready. It applies only to runs of at most
/// `messages` messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyTarget {
    pub time: Duration,
    pub messages: u64,
}

/// Results so far. A phase that was not reached is `None`.
#[derive(Clone, Debug, Default)]
struct BacklogResults {
    fill: Option<FillPhase>,
    restart: Option<RestartPhase>,
    drain: Option<DrainPhase>,
}

#[derive(Clone, Copy, Debug)]
struct FillPhase {
    messages: u64,
    took_s: f64,
    peak_bytes: u64,
    rss_bytes: u64,
    disk_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct RestartPhase {
    stop_s: f64,
    listen_s: f64,
    ready_s: f64,
    queued: u64,
    peak_bytes: u64,
    rss_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct DrainPhase {
    took_s: f64,
    peak_bytes: u64,
    rss_bytes: u64,
    disk_bytes: u64,
    completeness: Completeness,
}

/// Runs the scenario to its end, or stops early at SIGINT or SIGTERM. In both cases the report
/// shows the phases that were completed.
///
/// # Errors
/// Returns an error if the disk has too little space or if a party does not start.
pub fn run(options: &BacklogOptions) -> Result<TextReport> {
    let scenario = ScenarioRun::prepare(&options.scenario)?;
    let needed_bytes = needed_bytes(options.messages, &options.shape);
    usage::ensure_free(scenario.directory().path(), needed_bytes)?;
    scenario.print_line(&format!(
        "mailrun: the relay's spool needs up to {} of disk in {} ({} free), and is removed at the end",
        memory(needed_bytes),
        scenario.directory().path().display(),
        memory(usage::free_bytes(scenario.directory().path())?)
    ));
    let load = Workload { messages: Some(options.messages), ..Workload::default() };
    let bench = scenario.bench("", &Relay::Mailrun(options.durability), &options.shape, load);
    let outcome = BacklogRun::prepare(&scenario, &bench, options).and_then(BacklogRun::run);
    let (results, record, memory) = outcome.inspect_err(|_| scenario.directory().discard())?;
    let report = report(&results, &record, &memory, options);
    scenario.directory().write("memory.tsv", &memory.lines())?;
    let report = scenario.save(report)?;
    let mut directory = scenario.into_directory();
    directory.save(&record)?;
    // Keep the spool if messages are lost, because they may still be in the spool.
    if record.ledger.lost.unwrap_or_default() + record.ledger.not_delivered.unwrap_or_default() == 0 {
        directory.remove_spool()?;
    }
    Ok(report)
}

/// Returns the time limit until the restarted relay is ready: twice the target if that is longer
/// than the minimum.
fn ready_timeout(target: Option<ReadyTarget>) -> Duration {
    target.map_or(MIN_READY_TIMEOUT, |target| MIN_READY_TIMEOUT.max(target.time.saturating_mul(2)))
}

/// Returns an upper bound for the size of the spool. A record contains the message, its envelope
/// and 100 bytes (spool-format.md). Each batch starts at a new block and holds as many messages as
/// there are waiting sessions. Some segments are free or have just been begun.
fn needed_bytes(messages: u64, shape: &LoadShape) -> u64 {
    const BLOCK: u64 = 4096;
    const SEGMENT: u64 = 64 << 20;
    let each = shape.message_bytes + 512 + BLOCK / u64::from(shape.sessions.clamp(1, 8));
    messages * each * 51 / 50 + 6 * SEGMENT
}

struct BacklogRun<'g> {
    scenario: &'g ScenarioRun,
    bench: &'g BenchOptions,
    directory: &'g RunDirectory,
    supervisor: Supervisor,
    /// Address to which the relay forwards mail. The sink listens there only in the last phase.
    sink: SocketAddr,
    ready_timeout: Duration,
    results: BacklogResults,
    /// Faults that the scenario has caused so far, for the record.
    faults: Vec<BenchFault>,
}

impl<'g> BacklogRun<'g> {
    fn prepare(scenario: &'g ScenarioRun, bench: &'g BenchOptions, options: &BacklogOptions) -> Result<Self> {
        let directory = scenario.directory();
        // Nothing listens on this port until the sink is started, so the next hop is down.
        let sink = free_port()?;
        directory.write("relay.toml", &config(sink, bench, needed_bytes(options.messages, &options.shape)))?;
        let supervisor = Supervisor::new(bench)?;
        let ready_timeout = ready_timeout(options.ready_target);
        Ok(Self {
            scenario,
            bench,
            directory,
            supervisor,
            sink,
            ready_timeout,
            results: BacklogResults::default(),
            faults: Vec::new(),
        })
    }

    /// Runs all phases, or stops early if the user asks for it.
    fn run(mut self) -> Result<(BacklogResults, Record, MemoryCurve)> {
        let run = outputs::new_run_id()?;
        let started_at = jiff::Timestamp::now();
        let sampler = HostSampler::start();
        let source = self.fill(run)?;
        let outcome = self.restart_and_drain(run, gather::accepted_messages(&source.record));
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
        Ok((
            self.results,
            gather::record(self.bench, self.directory.path(), started_at, results),
            memory.unwrap_or_default(),
        ))
    }

    /// Sends all messages to the relay while its next hop is down.
    fn fill(&mut self, run: RunId) -> Result<gather::PartyResults> {
        let mut launch = self.launch();
        // Use other files for this output, so that the restarted relay does not overwrite them.
        let file = |name: &str| self.directory.path().join(name);
        (launch.command.stdout, launch.command.stderr) = (file("relay-before.stdout"), file("relay-before.stderr"));
        let relay = self.supervisor.start_relay(launch)?;
        self.faults.push(BenchFault::begins("the next hop does not listen"));
        let command = PartyCommand::source(self.scenario.program(), self.bench, run, self.directory, &relay);
        let complaint = self.supervisor.follow_source(command)?;
        self.supervisor.ensure_all_alive()?;
        complaint.map_or(Ok(()), Err)?;
        let source = gather::read_party(self.directory, Role::Source)?;
        self.record_fill(&source.record);
        Ok(source)
    }

    /// Restarts the relay, and then starts the sink that is its next hop.
    fn restart_and_drain(&mut self, run: RunId, accepted: u64) -> Result<()> {
        ensure!(self.is_uninterrupted(), "interrupted before the restart of the relay");
        self.restart_relay()?;
        let sink = self.sink.to_string();
        self.supervisor.start_sink(PartyCommand::sink_at(
            self.scenario.program(),
            self.bench,
            run,
            self.directory,
            &sink,
        ))?;
        self.faults.push(BenchFault::ends("the next hop listens"));
        self.drain(accepted)
    }

    fn is_uninterrupted(&self) -> bool {
        self.supervisor.asked() == StopRequest::Nothing
    }

    fn launch(&self) -> RelayLaunch {
        let file = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
        let config = file(self.directory.path().join("relay.toml"));
        let record = file(self.directory.party_files(Role::Relay).record);
        let words = ["relay", "--config", &config, "--json", &record, "--live", "json"].map(str::to_owned);
        RelayLaunch {
            command: PartyCommand::relay(self.scenario.program(), words.to_vec(), self.directory),
            ready_signal: ReadySignal::Reported,
            ready_within: self.ready_timeout,
        }
    }

    fn record_fill(&mut self, source: &Record) {
        let stage = source.stage(mailrun_journey::Stage::Accepted);
        let usage = self.supervisor.sample_relay();
        let accepted = FillPhase {
            messages: gather::accepted_messages(source),
            took_s: stage.map_or(0.0, |row| row.duration_s),
            peak_bytes: usage.max_rss_bytes.unwrap_or_default(),
            rss_bytes: usage.rss_bytes.unwrap_or_default(),
            disk_bytes: usage::used_bytes(&self.directory.spool()),
        };
        self.results.fill = Some(accepted);
        self.supervisor.print_line(&format!(
            "{} accepted in {}; the relay uses {} of memory, {} of disk",
            counted(accepted.messages, "message"),
            seconds(accepted.took_s),
            memory(accepted.rss_bytes),
            memory(accepted.disk_bytes)
        ));
    }

    /// Stops the relay and starts it again with the same spool.
    fn restart_relay(&mut self) -> Result<()> {
        let stopping = Instant::now();
        self.faults.push(BenchFault::begins("the relay is stopped"));
        let complaint = self.supervisor.stop_relay(PartyProcess::terminate)?;
        self.supervisor.ensure_all_alive()?;
        complaint.map_or(Ok(()), Err)?;
        let stop_s = stopping.elapsed().as_secs_f64();
        let restarted_at = Instant::now();
        self.supervisor.start_relay(self.launch())?;
        let listen_s = restarted_at.elapsed().as_secs_f64();
        let status = self.status()?;
        self.supervisor.await_relay("the relay reads its spool", self.ready_timeout, || status.is_ready())?;
        let ready_s = restarted_at.elapsed().as_secs_f64();
        self.faults.push(BenchFault::ends("the relay is ready again"));
        let usage = self.supervisor.sample_relay();
        let restart = RestartPhase {
            stop_s,
            listen_s,
            ready_s,
            queued: status.queued().context("the relay does not report how many messages are queued")?,
            peak_bytes: usage.max_rss_bytes.unwrap_or_default(),
            rss_bytes: usage.rss_bytes.unwrap_or_default(),
        };
        self.results.restart = Some(restart);
        let queued = counted(restart.queued, "message");
        self.supervisor.print_line(&format!("started again: ready after {}, {queued} queued", seconds(ready_s)));
        Ok(())
    }

    fn status(&self) -> Result<RelayStatusClient> {
        RelayStatusClient::at(self.supervisor.relay_http().context("the relay did not report its HTTP address")?)
    }

    /// Tells the relay to retry the whole queue, now that the next hop is back. Waits until all
    /// messages are delivered.
    fn drain(&mut self, accepted: u64) -> Result<()> {
        let began = Instant::now();
        let mut command = operation::retry_all(self.scenario.program(), &self.directory.spool())?;
        let mut outcome = Ok(());
        self.supervisor.await_relay("the queue is retried", CONTROL_TIMEOUT, || {
            operation::is_done(&mut command).unwrap_or_else(|error| {
                outcome = Err(error);
                true
            })
        })?;
        outcome?;
        let arrived = self.supervisor.await_arrivals(accepted)?;
        let took_s = began.elapsed().as_secs_f64();
        // After the last delivery the relay still frees segments. Wait for that before measuring
        // the disk usage.
        self.supervisor.await_relay_idle()?;
        self.supervisor.ensure_all_alive()?;
        let usage = self.supervisor.sample_relay();
        let drained = DrainPhase {
            took_s,
            peak_bytes: usage.max_rss_bytes.unwrap_or_default(),
            rss_bytes: usage.rss_bytes.unwrap_or_default(),
            disk_bytes: usage::used_bytes(&self.directory.spool()),
            completeness: arrived,
        };
        self.results.drain = Some(drained);
        Ok(())
    }
}

/// Writes the relay's configuration. The spool's maximum size is larger than the backlog, so that
/// the relay never answers 452 (insufficient storage).
fn config(sink: SocketAddr, bench: &BenchOptions, needed_bytes: u64) -> String {
    let durability = bench.relay().map_or_else(|| "sync".to_owned(), Relay::durability);
    let size = needed_bytes.max(10 << 30) / 4 * 5;
    format!(
        "listen = [\"127.0.0.1:0\"]\nhttp = \"127.0.0.1:0\"\nlog = \"warn\"\n\n[spool]\ndirectory = \"relay.spool\"\n\
         durability = \"{durability}\"\nmax_size = \"{size}\"\n\n[[route]]\nto = \"*\"\nsmtp = \"{sink}\"\n"
    )
}

fn report(results: &BacklogResults, record: &Record, curve: &MemoryCurve, options: &BacklogOptions) -> TextReport {
    let title = format!(
        "{}: {} {}, accepted by mailrun relay (durability {}) while its next hop is down",
        options.scenario.name,
        count(options.messages),
        options.shape.description(&[]),
        options.durability.option_value()
    );
    let memory = options.memory_target.and_then(|target| memory_goal(results, target));
    let account = account_goal(results, record, options.messages);
    let goals: Vec<Goal> = [readiness_goal(results, options.ready_target), account].into_iter().chain(memory).collect();
    let flaws = RunFlaws::of(record, None);
    let mut remarks = vec![format!("RSS over time: {}  (all samples: memory.tsv)", curve.bars())];
    remarks.extend(results.fill.map(cost_per_message).into_iter().flatten());
    remarks.extend(flaws.notes.iter().cloned());
    goals::report(&title, vec![phases(results)], &goals, flaws.defects(), remarks)
}

/// Writes a remark about the memory and the disk space that each queued message takes.
fn cost_per_message(accepted: FillPhase) -> Option<String> {
    let per = |bytes: u64| bytes.checked_div(accepted.messages).map(octets);
    Some(format!(
        "A queued message takes {} of memory and {} of disk, including what an empty relay uses.",
        per(accepted.rss_bytes)?,
        per(accepted.disk_bytes)?
    ))
}

fn phases(results: &BacklogResults) -> Table {
    let right = |title| (title, Align::Right);
    let columns = [("phase", Align::Left), right("messages"), right("took"), right("msg/s")];
    let [phase, messages, elapsed, per_s] = columns;
    let mut table =
        Table::new([phase, messages, elapsed, per_s, right("RSS then"), right("RSS peak"), right("disk then")]);
    let mut row = |phase: &str, messages: u64, took_s: f64, places: [Option<u64>; 3]| {
        let places = places.map(|bytes| shown(bytes, memory));
        let cells = [phase.to_owned(), count(messages), seconds(took_s), rate(messages as f64 / took_s)];
        table.row(cells.into_iter().chain(places).collect());
    };
    if let Some(FillPhase { messages, took_s, peak_bytes, rss_bytes, disk_bytes }) = results.fill {
        row("accepted, next hop down", messages, took_s, [Some(rss_bytes), Some(peak_bytes), Some(disk_bytes)]);
    }
    if let Some(RestartPhase { stop_s, listen_s, ready_s, queued, peak_bytes, rss_bytes }) = results.restart {
        row("stopped by SIGTERM", queued, stop_s, [None; 3]);
        row("started again: listens", queued, listen_s, [None; 3]);
        row("started again: ready", queued, ready_s, [Some(rss_bytes), Some(peak_bytes), None]);
    }
    if let (Some(DrainPhase { took_s, peak_bytes, rss_bytes, disk_bytes, .. }), Some(accepted)) =
        (results.drain, results.fill)
    {
        row(
            "delivered, next hop back",
            accepted.messages,
            took_s,
            [Some(rss_bytes), Some(peak_bytes), Some(disk_bytes)],
        );
    }
    table
}

/// Checks that the restarted relay was ready in time and still had every message in its queue.
fn readiness_goal(results: &BacklogResults, target: Option<ReadyTarget>) -> Goal {
    let wanted = target.map_or_else(
        || "all queued".to_owned(),
        |target| format!("all queued, < {} up to {}", seconds(target.time.as_secs_f64()), count(target.messages)),
    );
    let Some((accepted, restart)) = results.fill.zip(results.restart) else {
        return Goal::new("ready after a restart", wanted, GoalResult::Unknown("stopped before".to_owned()));
    };
    let value =
        format!("{} of {} queued after {}", count(restart.queued), count(accepted.messages), seconds(restart.ready_s));
    let is_quick =
        target.is_none_or(|target| restart.ready_s < target.time.as_secs_f64() || accepted.messages > target.messages);
    Goal::condition("ready after a restart", restart.queued == accepted.messages && is_quick, value, wanted)
}

/// Checks the peak memory of the relay before and after the restart. Returns `None` if there were
/// more messages than the target is for.
fn memory_goal(results: &BacklogResults, target: MemoryTarget) -> Option<Goal> {
    let accepted = results.fill.filter(|accepted| accepted.messages <= target.messages)?;
    let later = results.restart.map(|restart| restart.peak_bytes).max(results.drain.map(|drained| drained.peak_bytes));
    let peak_bytes = later.unwrap_or_default().max(accepted.peak_bytes);
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
    // Duplicates are allowed but counted (RFC 1047). Lost and changed messages are not allowed.
    let is_good = ledger.delivered == ledger.accepted && accepted == messages && missing == 0;
    let is_open = accepted == messages && queued + not_delivered > 0;
    if !is_good && missing == 0 && (record.ending == Some(Ending::Interrupted) || is_open) {
        // Either the queue was read, or it is not known which mail is in it.
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
    use mailrun_journey::record::{Outcome, Pipelining};
    use mailrun_report::sample;

    fn options(messages: u64) -> BacklogOptions {
        BacklogOptions {
            scenario: sample_options("relay-backlog"),
            durability: RelayDurability::Sync,
            shape: LoadShape { sessions: 100, message_bytes: 65_536, reuse: None, pipelining: Pipelining::Off },
            messages,
            memory_target: Some(MemoryTarget { bytes: 256 << 20, messages: 100_000 }),
            ready_target: Some(ReadyTarget { time: Duration::from_secs(10), messages: 1_000_000 }),
        }
    }

    fn results(messages: u64, ready_s: f64, peak_bytes: u64) -> BacklogResults {
        let rss_bytes = peak_bytes / 2;
        let disk_bytes = messages * 70_000;
        BacklogResults {
            fill: Some(FillPhase { messages, took_s: 10.0, peak_bytes, rss_bytes, disk_bytes }),
            restart: Some(RestartPhase {
                stop_s: 0.1,
                listen_s: 0.5,
                ready_s,
                queued: messages,
                peak_bytes,
                rss_bytes,
            }),
            drain: Some(DrainPhase {
                took_s: 5.0,
                peak_bytes,
                rss_bytes,
                disk_bytes: 0,
                completeness: Completeness::All,
            }),
        }
    }

    fn judged_report(results: &BacklogResults, record: &Record, messages: u64) -> TextReport {
        report(results, record, &MemoryCurve::default(), &options(messages))
    }

    /// Makes the record of a run in which that many messages were accepted and delivered.
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
        lacks.restart = lacks.restart.map(|restart| RestartPhase { queued: 999, ..restart });
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
        // A message that is neither delivered nor queued is lost, whatever else is queued.
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
    fn the_wait_for_readiness_is_longer_than_its_target() {
        assert_eq!(ready_timeout(None), Duration::from_secs(300));
        let of = |seconds: u64| ready_timeout(Some(ReadyTarget { time: Duration::from_secs(seconds), messages: 1 }));
        assert_eq!((of(10), of(600)), (Duration::from_secs(300), Duration::from_secs(1_200)));
    }

    #[test]
    fn the_disk_that_is_needed_is_more_than_the_messages() {
        let needed = needed_bytes(100_000, &options(100_000).shape);
        assert!((6_600_000_000..7_300_000_000).contains(&needed), "{needed}");
        let bench = options(1).scenario.bench(
            "d".into(),
            &Relay::Mailrun(RelayDurability::Write),
            &options(1).shape,
            Workload::default(),
        );
        let config = config(SocketAddr::from(([127, 0, 0, 1], 9)), &bench, 100 << 30);
        assert!(config.contains("durability = \"write\"") && config.contains("smtp = \"127.0.0.1:9\""), "{config}");
        assert!(config.contains(&format!("max_size = \"{}\"", 125_u64 << 30)), "{config}");
    }
}
