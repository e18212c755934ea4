//! The bench starts the processes of a run (source, relay and sink), watches them, and merges their
//! files into one record.
//!
//! ```text
//! plan ─→ directory ─→ supervisor ─────────────────────────────────→ gather ─→ run.json, reports
//!          (files)      sink, relay up → source runs → drain → stop   (records, account, verdict)
//! ```
//!
//! The bench must not disturb the run that it measures. Source, relay and sink are processes of their
//! own, and `mailrun_process::process_usage` measures them from outside. The bench's process only
//! waits, updates the terminal a few times per second, and computes the results at the end.
#![allow(missing_docs)] // only the command line uses this crate, so clear names suffice

pub mod audit;
mod built_in;
pub mod capacity;
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
mod directory;
mod engine;
mod gather;
mod launch;
pub mod mades;
pub mod mades_compare;
mod parties;
pub mod placement;
mod plan;
pub mod profiles;
mod programs;
mod progress;
pub mod recipe;
pub mod relay;
mod relay_keeper;
pub mod relays;
mod remote_sink;
pub mod rounds;
pub mod scenario;
mod shards;
pub mod stored;
mod supervisor;
pub mod tables;
#[cfg(test)]
mod tests;
mod toml_file;
mod usage;

use anyhow::Result;
pub use built_in::{BUILT_IN, BuiltInScenario, load_scenario};
pub use directory::RESULTS_DIRECTORY;
use directory::RunDirectory;
pub use engine::{Conclusion, RoundOrder, TextReport};
use gather::{PartyResults, SinkOwner, SinkResults};
use mailrun_measurement::account::Topology;
use mailrun_measurement::record::{Ending, LedgerRow, Record, Role};
use mailrun_measurement::trace::RunId;
use mailrun_process::host_sampler::HostSampler;
use mailrun_process::host_watch::{HostWatch, Parties};
use mailrun_process::interrupt::{Interrupted, StopRequest};
use mailrun_process::outputs;
use parties::{PartyCommand, PartyProcess};
pub use plan::{BenchOptions, BenchPreflight, BenchTarget, SyscallCounting, TrustedCertificate};
use progress::LatestProgress;
use relay::Relay;
use relay_keeper::RelayKeeper;
use remote_sink::{PolledCount, RemoteSink, SinkClocks};
pub use shards::{MergeOptions, merge};
use std::path::{Path, PathBuf};
use supervisor::{Completeness, Supervisor};
pub use toml_file::is_toml_file;
use usage::{DiskCounter, DiskUsage, MemoryCurve};

#[derive(Debug)]
pub struct BenchOutcome {
    pub record: Record,
    pub directory: PathBuf,
    /// Bytes that all processes of the host together wrote during the run to the disk that has the run directory.
    /// `None` if the run has no relay.
    pub(crate) disk_bytes: Option<u64>,
    /// Memory usage of the relay over time, which is empty if the bench started no relay.
    pub(crate) relay_memory: MemoryCurve,
    pub(crate) disk_usage: DiskUsage,
    /// First error in writing the run's files, or the error of the round that ended an audit early.
    pub unwritten: Option<anyhow::Error>,
}

impl BenchOutcome {
    /// Makes the outcome of a merge of records. The relay's use of disk and memory is unknown, because only the bench
    /// of a single run measures it.
    fn of_merge(record: Record, directory: PathBuf) -> Self {
        Self {
            record,
            directory,
            disk_bytes: None,
            relay_memory: MemoryCurve::default(),
            disk_usage: DiskUsage::default(),
            unwritten: None,
        }
    }
}

/// Runs the bench until it is done, or until SIGINT or SIGTERM. A load that a signal cuts short still gets a report.
///
/// # Errors
///
/// Returns an error if a process does not start, if nothing listens at the target, or if the directory cannot be
/// created. Also returns an error if the user interrupts the run before the load, or if a third signal asks to end
/// without a report.
pub fn run(options: BenchOptions) -> Result<BenchOutcome> {
    let program = programs::own_program()?;
    run_with(&program, &options)
}

/// Makes a single run, with a relay of its own. `program` is the mailrun executable, which the bench starts as source
/// and as sink.
fn run_with(program: &Path, options: &BenchOptions) -> Result<BenchOutcome> {
    run_in_series(program, options, &mut RelayKeeper::EachRun)
}

/// Makes one run of a series. `keeper` decides whether this run starts a new relay or uses the relay of the run before.
fn run_in_series(program: &Path, options: &BenchOptions, keeper: &mut RelayKeeper) -> Result<BenchOutcome> {
    let started_at = jiff::Timestamp::now();
    let remote_sink = options.target.remote_sink().map(RemoteSink::connect).transpose()?;
    let bounces_sink = options.bounces_to.as_deref().map(RemoteSink::connect).transpose()?;
    let far_end = FarEnd {
        bounces: bounces_sink.clone().filter(|_| remote_sink.is_none()),
        sink: remote_sink.map(|sink| sink.lost_after(options.lost_after).with_bounces_at(bounces_sink)),
    };
    let remote_sink = far_end.sink.as_ref();
    let clocks = SinkClocks::measure(options, remote_sink)?;
    let mut directory = RunDirectory::create(options.out.as_deref(), &options.name, started_at)?;
    let outcome = run_parties(program, options, &far_end, &directory, started_at, keeper);
    let (results, complaint) = outcome.inspect_err(|_| directory.discard())?;
    let disk_bytes = results.disk_bytes;
    let disk_usage = results.disk_usage;
    let relay = results.observations.iter().find(|party| party.role == Role::Relay);
    let relay_memory = relay.map(|party| party.memory.clone()).unwrap_or_default();
    let mut record = gather::record(options, directory.path(), started_at, results);
    clocks.finish(&mut record, remote_sink);
    let unwritten = directory.save(&record).and_then(|()| keeper.settle(options, &record)).err().or(complaint);
    let directory = directory.path().to_owned();
    Ok(BenchOutcome { record, directory, disk_bytes, relay_memory, disk_usage, unwritten })
}

/// Starts all processes of a run, sends the load, and collects what each process wrote. Also returns the first error of
/// a process that could not write its files.
fn run_parties(
    program: &Path,
    options: &BenchOptions,
    far_end: &FarEnd,
    directory: &RunDirectory,
    started_at: jiff::Timestamp,
    keeper: &mut RelayKeeper,
) -> Result<(gather::RunResults, Option<anyhow::Error>)> {
    let remote_sink = far_end.sink.as_ref();
    let run = options.run.map_or_else(outputs::new_run_id, Ok)?;
    let mut sampler = HostSampler::start();
    let disk = options.relay().and_then(|_| DiskCounter::under(directory.path()));
    let mut supervisor = keeper.supervisor(options)?;
    let target = match &options.target {
        BenchTarget::Server { address, .. } => address.clone(),
        BenchTarget::OwnSink => supervisor.start_sink(PartyCommand::sink(program, options, run, directory))?,
        BenchTarget::Relay(_) => keeper.start(program, options, run, directory, &mut supervisor, &mut sampler)?,
    };
    let of_relay = keeper.relay_directory(directory);
    let at_start = usage::used_bytes(&of_relay.spool());
    let on_the_way: Vec<String> =
        std::iter::once(target.clone()).chain(remote_sink.map(|sink| sink.authority().to_owned())).collect();
    let host_watch = HostWatch::start(Parties::Children, &on_the_way);
    far_end.bounces.iter().chain(remote_sink).for_each(|sink| sink.announce(run));
    let watch = remote_sink.map(|sink| sink.watch(run, supervisor.events()));
    let complaint = supervisor.follow_source(PartyCommand::source(program, options, run, directory, &target))?;
    drop(watch);
    let host_load = host_watch.finish();
    let (source, complaint) = source_results(options, run, directory, started_at, &mut supervisor, complaint)?;
    let far_end = collect_deliveries(options, run, directory, far_end, &source, keeper, &mut supervisor)?;
    let complaint = complaint.or(far_end.exit_error);
    let deaths = supervisor.deaths().to_vec();
    let is_dead = |role: Role| deaths.iter().any(|(whose, _)| *whose == role);
    let server_ended = (is_dead(Role::Relay) || is_dead(Role::Sink)).then_some(Ending::ServerEnded);
    let interrupted = (supervisor.asked() != StopRequest::Nothing).then_some(Ending::Interrupted);
    let ending = interrupted.or(server_ended).or(far_end.ending);
    let quiet_timeout = remote_sink.map_or_else(|| supervisor.quiet_timeout(), RemoteSink::quiet_timeout);
    let quiet_timeout = Some(quiet_timeout).filter(|_| ending.is_none());
    let mut relay = gather::relay(options, of_relay, far_end.completeness);
    let may_have_mail = far_end.completeness == Completeness::NotAll || is_dead(Role::Relay);
    if may_have_mail && options.relay().is_some_and(Relay::is_own) {
        relay.iter_mut().for_each(|relay| relay.record_queue(gather::relay_queue(program, of_relay, run)));
    }
    let disk_bytes = disk.and_then(|disk| disk.written_since());
    let disk_usage = DiskUsage { at_start, at_end: usage::used_bytes(&of_relay.spool()) };
    let load_started_at = supervisor.load_started_at();
    let observations = keeper.finish_run(supervisor);
    let mut surroundings = sampler.finish();
    host_load.fill(&mut surroundings);
    let arrivals = far_end.results;
    let results = gather::RunResults {
        run,
        source,
        relay,
        disk_bytes,
        disk_usage,
        arrivals,
        between: topology(&options.target),
        sink: sink_owner(&options.target),
        ending,
        quiet_timeout,
        deaths,
        faults: Vec::new(),
        load_started_at,
        observations,
        surroundings,
        own_s: sampler.own_s(),
    };
    Ok((results, complaint))
}

fn topology(target: &BenchTarget) -> Topology {
    match target {
        BenchTarget::OwnSink => Topology::Direct,
        BenchTarget::Relay(_) | BenchTarget::Server { .. } => Topology::Server,
    }
}

fn sink_owner(target: &BenchTarget) -> SinkOwner {
    match target {
        BenchTarget::OwnSink | BenchTarget::Relay(_) => SinkOwner::Own,
        BenchTarget::Server { .. } => SinkOwner::Other,
    }
}

/// Returns the results of the source. Normally, they are read from the files that the source wrote. A source that
/// cannot write files sends its record to the bench over its standard output instead. If a process died and the source
/// left no files, the results come from the source's last progress report. Otherwise, missing files are an error.
fn source_results(
    options: &BenchOptions,
    run: RunId,
    directory: &RunDirectory,
    started_at: jiff::Timestamp,
    supervisor: &mut Supervisor,
    complaint: Option<anyhow::Error>,
) -> Result<(PartyResults, Option<anyhow::Error>)> {
    if let Some(record) = supervisor.take_unwritten(Role::Source) {
        return Ok((PartyResults { record, units: None, bounced: Default::default() }, complaint));
    }
    let progress = supervisor.source_progress();
    let is_stopped = supervisor.asked() != StopRequest::Nothing;
    match (gather::read_party(directory, Role::Source), complaint) {
        (Ok(results), complaint) => Ok((results, complaint)),
        (Err(_), _) if is_stopped && progress.created == 0 => Err(Interrupted::BEFORE_LOAD.into()),
        (Err(_), complaint) if !supervisor.deaths().is_empty() => Ok((
            gather::source_from_progress(options, run, started_at, supervisor.load_started_at(), &progress),
            complaint,
        )),
        (Err(_), Some(complaint)) => Err(complaint),
        (Err(error), None) => Err(error),
    }
}

/// Sinks that the bench did not start, and whose results it requests over HTTP.
struct FarEnd {
    sink: Option<RemoteSink>,
    /// Second sink, which the user has named with `--bounces-to` and which receives bounces. If `sink` is set, this is
    /// `None`, because the `RemoteSink` in `sink` then asks the second sink as well.
    bounces: Option<RemoteSink>,
}

struct RemoteEnd {
    /// Deliveries as the sink recorded them. `None` if no sink observed deliveries, or if the sink no longer answers.
    results: Option<SinkResults>,
    completeness: Completeness,
    /// Set if a sink that the bench did not start no longer answers.
    ending: Option<Ending>,
    /// First error of a process that could not write its files.
    exit_error: Option<anyhow::Error>,
}

fn collect_deliveries(
    options: &BenchOptions,
    run: RunId,
    directory: &RunDirectory,
    far_end: &FarEnd,
    source: &PartyResults,
    keeper: &RelayKeeper,
    supervisor: &mut Supervisor,
) -> Result<RemoteEnd> {
    let empty_end = RemoteEnd { results: None, completeness: Completeness::All, ending: None, exit_error: None };
    match (&options.target, &far_end.sink) {
        (BenchTarget::OwnSink | BenchTarget::Relay(_), _) => {
            let bounces = far_end.bounces.as_ref().map(|sink| (sink, run));
            let (arrived, complaint) = drain(supervisor, options, run, source, bounces, keeper)?;
            let record = supervisor.take_unwritten(Role::Sink);
            let results = match (record, gather::read_party(directory, Role::Sink)) {
                (Some(record), _) => Some(SinkResults { record: Some(record), ..SinkResults::default() }),
                (None, Ok(results)) => Some(results.into()),
                (None, Err(_)) if !supervisor.deaths().is_empty() => None,
                (None, Err(error)) => return Err(complaint.unwrap_or(error)),
            };
            let mut results = if options.has_trace() { results } else { results.map(SinkResults::without_deliveries) };
            let both = results.as_mut().zip(far_end.bounces.as_ref());
            let error = both.and_then(|(own, second)| second.add_bounces(run, own).err());
            let ending = error.map(|error| end_without_sink(&error, supervisor));
            Ok(RemoteEnd { results, completeness: arrived, ending, exit_error: complaint })
        }
        (BenchTarget::Server { .. }, Some(sink)) => {
            let units = source.units.clone().unwrap_or_default();
            match sink.await_arrivals(run, &units, supervisor) {
                Ok(results) => Ok(RemoteEnd { results: Some(results), ..empty_end }),
                Err(error) => Ok(RemoteEnd { ending: Some(end_without_sink(&error, supervisor)), ..empty_end }),
            }
        }
        (BenchTarget::Server { .. }, None) => Ok(empty_end),
    }
}

/// Prints the error of a sink that does not answer after the load. The run goes on without the figures of this sink,
/// because the figures of the other processes are worth a report.
fn end_without_sink(error: &anyhow::Error, supervisor: &mut Supervisor) -> Ending {
    supervisor.print_line(&format!("{error:#}"));
    Ending::SinkEnded
}

/// Waits for messages that are under way. Then stops the relay, unless the next run needs it, and stops the sink last,
/// because the relay may still deliver mail to it. But a sink that watches the relay's mailboxes is stopped before the
/// relay, so that its connections do not break. Returns whether all messages have arrived, and the first error of a
/// process that could not write its files.
fn drain(
    supervisor: &mut Supervisor,
    options: &BenchOptions,
    run: RunId,
    source: &PartyResults,
    bounces: Option<(&RemoteSink, RunId)>,
    keeper: &RelayKeeper,
) -> Result<(Completeness, Option<anyhow::Error>)> {
    let mut bounced = PolledCount::new(bounces);
    let arrived = match &source.units {
        Some(_) if options.has_trace() => {
            let settled = |progress: &LatestProgress| progress.settled().saturating_add(bounced.settled());
            await_settled(supervisor, run, source, bounces.map(|(second, _)| second), settled)?
        }
        _ => supervisor.await_arrivals(gather::accepted_messages(&source.record))?,
    };
    supervisor.await_relay_idle()?;
    let of_watching_sink = options.mailboxes().map(|_| supervisor.stop_sink()).transpose()?.flatten();
    let of_relay = match &options.syscall_counting {
        _ if keeper.keeps(options, arrived, supervisor) => None,
        SyscallCounting::Off => supervisor.stop_relay(PartyProcess::terminate)?,
        SyscallCounting::Strace(_) => supervisor.stop_relay(PartyProcess::terminate_children)?,
    };
    let of_relay = of_relay.map(|error| match options.relay() {
        Some(Relay::Recipe(recipe)) => recipe.server_error(&format!("{error:#}")),
        _ => error,
    });
    let of_sink = supervisor.stop_sink()?;
    Ok((arrived, of_watching_sink.or(of_relay).or(of_sink)))
}

/// Waits until every accepted message has been delivered or has bounced, or until no more messages arrive. `settled`
/// returns how many messages of this run have been delivered or have bounced, counted once per recipient. `bounces` is
/// a second sink, which receives the notifications of undelivered mail.
fn await_settled(
    supervisor: &mut Supervisor,
    run: RunId,
    source: &PartyResults,
    bounces: Option<&RemoteSink>,
    settled: impl FnMut(&LatestProgress) -> u64,
) -> Result<Completeness> {
    let Some(units) = &source.units else {
        return supervisor.await_count(gather::accepted_messages(&source.record), settled);
    };
    // The sink's count may include messages for which the source got no 250. If there are such messages, do not compare
    // counts, but ask the sink which messages it has.
    let LedgerRow { rejected, failed, in_doubt, .. } = source.record.ledger;
    let has_strangers = [rejected, failed, in_doubt].into_iter().flatten().any(|count| count > 0);
    let own = supervisor.http_of(Role::Sink).filter(|_| has_strangers).map(RemoteSink::connect);
    let own = own.map(|sink| sink.map(|sink| sink.with_bounces_at(bounces.cloned())));
    // Ignore a sink that does not answer now, because its failure is reported when its results are read.
    let are_all_there = || match &own {
        Some(Ok(sink)) => sink.has_all(run, units).unwrap_or(false),
        Some(Err(_)) => false,
        None => true,
    };
    supervisor.await_all(units.count(), settled, are_all_there)
}
