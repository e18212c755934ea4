//! The bench: starts the parties of a run as processes, watches them, and folds what they wrote into one record.
//!
//! ```text
//! plan ─→ directory ─→ supervisor ──────────────────────────────────────→ gather ─→ run.json, report.md, report.html
//!          (files)      sink, relay up → source runs → drain → stop        (records + ledgers → account → verdict)
//! ```
//!
//! A run never disturbs itself: the parties are processes of their own, measured by `mailrun_party::process_usage` from outside, and this
//! process does nothing but wait, draw a bar four times a second and, at the end, the sums.
#![allow(missing_docs)] // only the command line uses it: a field whose name says all has no sentence

pub mod audit;
mod built_in;
pub mod capacity;
#[doc(hidden)]
pub mod checks;
pub mod contestant;
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
mod relay_keeper;
pub mod relays;
mod remote_sink;
pub mod rounds;
pub mod scenario;
mod shards;
mod sink_clocks;
pub mod stored;
mod supervisor;
pub mod tables;
#[cfg(test)]
mod tests;
mod toml_file;
mod usage;

use anyhow::Result;
pub use built_in::{BUILT_IN, BuiltInScenario, load_scenario};
use contestant::Contestant;
pub use directory::RESULTS_DIRECTORY;
use directory::RunDirectory;
pub use engine::{Conclusion, TextReport};
use gather::{PartyResults, SinkOwner, SinkResults};
use mailrun_journey::account::Topology;
use mailrun_journey::record::{Ending, Record, Role, Surroundings};
use mailrun_journey::trace::RunId;
use mailrun_party::host_processes::HostProcesses;
use mailrun_party::host_sampler::HostSampler;
use mailrun_party::interrupt::{Interrupted, StopRequest};
use mailrun_party::outputs;
use parties::{PartyCommand, PartyProcess};
pub use plan::{BenchOptions, BenchPreflight, BenchTarget, SyscallCounting, TrustedCertificate};
use relay_keeper::RelayKeeper;
use remote_sink::RemoteSink;
pub use shards::{MergeOptions, merge};
use sink_clocks::SinkClocks;
use std::path::{Path, PathBuf};
use supervisor::{Completeness, Supervisor};
pub use toml_file::is_toml_file;
use usage::{DiskCounter, DiskUsage, MemoryCurve};

#[derive(Debug)]
pub struct BenchOutcome {
    /// All that the run learned.
    pub record: Record,
    /// Directory of its files.
    pub directory: PathBuf,
    /// Bytes that the disk below the relay's directory wrote meanwhile, for everybody on the host; only with a relay.
    pub(crate) disk_bytes: Option<u64>,
    /// The relay's memory, where there was one that the bench started.
    pub(crate) relay_memory: MemoryCurve,
    /// Disk space that the relay's directory took.
    pub(crate) disk_usage: DiskUsage,
    /// The first file of the run that could not be written, and why.
    pub unwritten: Option<anyhow::Error>,
}

impl BenchOutcome {
    /// Result of merging what several machines sent.
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

/// Runs the bench to its end, or until SIGINT or SIGTERM; either way there is a report.
///
/// # Errors
///
/// If it could not run: a party did not start, nothing listens, the directory cannot be made; or the user wants no report.
pub fn run(options: BenchOptions) -> Result<BenchOutcome> {
    let program = programs::own_program()?;
    run_with(&program, &options)
}

/// Runs the bench with `program` as source and sink.
fn run_with(program: &Path, options: &BenchOptions) -> Result<BenchOutcome> {
    run_in_series(program, options, &mut RelayKeeper::EachRun)
}

/// Runs the bench as one of several runs, which may share a relay.
fn run_in_series(program: &Path, options: &BenchOptions, keeper: &mut RelayKeeper) -> Result<BenchOutcome> {
    let started_at = jiff::Timestamp::now();
    let remote_sink = options.target.remote_sink().map(RemoteSink::connect).transpose()?;
    let remote_sink = remote_sink.map(|sink| sink.lost_after(options.lost_after));
    let clocks = SinkClocks::measure(options, remote_sink.as_ref())?;
    let mut directory = RunDirectory::create(options.out.as_deref(), &options.name, started_at)?;
    let outcome = run_parties(program, options, remote_sink.as_ref(), &directory, started_at, keeper);
    let (results, complaint) = outcome.inspect_err(|_| directory.discard())?;
    let disk_bytes = results.disk_bytes;
    let disk_usage = results.disk_usage;
    let relay = results.observations.iter().find(|party| party.role == Role::Relay);
    let relay_memory = relay.map(|party| party.memory.clone()).unwrap_or_default();
    let mut record = gather::record(options, directory.path(), started_at, results);
    clocks.finish(&mut record, remote_sink.as_ref());
    let unwritten = directory.save(&record).and_then(|()| keeper.settle(&record)).err().or(complaint);
    let directory = directory.path().to_owned();
    Ok(BenchOutcome { record, directory, disk_bytes, relay_memory, disk_usage, unwritten })
}

/// Sends the load from end to end and collects what each party wrote; with the first complaint of a party that could not
/// write its files.
fn run_parties(
    program: &Path,
    options: &BenchOptions,
    remote_sink: Option<&RemoteSink>,
    directory: &RunDirectory,
    started_at: jiff::Timestamp,
    keeper: &mut RelayKeeper,
) -> Result<(gather::RunResults, Option<anyhow::Error>)> {
    let run = options.run.map_or_else(outputs::new_run_id, Ok)?;
    let sampler = HostSampler::start();
    let disk = options.relay().and_then(|_| DiskCounter::under(directory.path()));
    let mut supervisor = keeper.supervisor(options)?;
    let target = match &options.target {
        BenchTarget::Server { address, .. } => address.clone(),
        BenchTarget::OwnSink => supervisor.start_sink(PartyCommand::sink(program, options, run, directory))?,
        BenchTarget::Relay(_) => keeper.start(program, options, run, directory, &mut supervisor)?,
    };
    let of_relay = keeper.relay_directory(directory);
    let at_start = usage::used_bytes(&of_relay.spool());
    let processes = HostProcesses::start();
    let watch = remote_sink.map(|sink| sink.watch(run, supervisor.events()));
    let complaint = supervisor.follow_source(PartyCommand::source(program, options, run, directory, &target))?;
    drop(watch);
    let processes = processes.finish();
    let (source, complaint) = source_results(options, run, directory, started_at, &mut supervisor, complaint)?;
    let far_end = collect_deliveries(options, run, directory, remote_sink, &source, keeper, &mut supervisor)?;
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
    if may_have_mail && options.relay().is_some_and(Contestant::is_own) {
        relay.iter_mut().for_each(|relay| relay.record_queue(gather::relay_queue(program, of_relay, run)));
    }
    let disk_bytes = disk.and_then(|disk| disk.written_since());
    let disk_usage = DiskUsage { at_start, at_end: usage::used_bytes(&of_relay.spool()) };
    let load_started_at = supervisor.load_started_at();
    let observations = keeper.finish_run(supervisor);
    let surroundings = Surroundings { processes, ..sampler.finish() };
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
    };
    Ok((results, complaint))
}

/// Servers between source and sink.
fn topology(target: &BenchTarget) -> Topology {
    match target {
        BenchTarget::OwnSink => Topology::Direct,
        BenchTarget::Relay(_) | BenchTarget::Server { .. } => Topology::Server,
    }
}

/// Owner of the sink: the bench, where the target is its own.
fn sink_owner(target: &BenchTarget) -> SinkOwner {
    match target {
        BenchTarget::OwnSink | BenchTarget::Relay(_) => SinkOwner::Own,
        BenchTarget::Server { .. } => SinkOwner::Other,
    }
}

/// Facts about the source: from its files, else from its last progress, else from what was seen of it. A source that
/// could not run has none of these.
fn source_results(
    options: &BenchOptions,
    run: RunId,
    directory: &RunDirectory,
    started_at: jiff::Timestamp,
    supervisor: &mut Supervisor,
    complaint: Option<anyhow::Error>,
) -> Result<(PartyResults, Option<anyhow::Error>)> {
    if let Some(record) = supervisor.take_unwritten(Role::Source) {
        return Ok((PartyResults { record, units: None }, complaint));
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

/// Facts from the far end of the chain.
struct RemoteEnd {
    /// `None` if the far end was not observed, or its observer is gone.
    results: Option<SinkResults>,
    completeness: Completeness,
    /// A sink that the bench did not start is gone.
    ending: Option<Ending>,
    /// A party could not write its files.
    exit_error: Option<anyhow::Error>,
}

/// Waits for what is under way, and asks the observer of the far end.
fn collect_deliveries(
    options: &BenchOptions,
    run: RunId,
    directory: &RunDirectory,
    remote_sink: Option<&RemoteSink>,
    source: &PartyResults,
    keeper: &RelayKeeper,
    supervisor: &mut Supervisor,
) -> Result<RemoteEnd> {
    let nobody = RemoteEnd { results: None, completeness: Completeness::All, ending: None, exit_error: None };
    match (&options.target, remote_sink) {
        (BenchTarget::OwnSink | BenchTarget::Relay(_), _) => {
            let (arrived, complaint) = drain(supervisor, options, gather::accepted_messages(&source.record), keeper)?;
            let record = supervisor.take_unwritten(Role::Sink);
            let results = match (record, gather::read_party(directory, Role::Sink)) {
                (Some(record), _) => Some(SinkResults { record: Some(record), units: None }),
                (None, Ok(results)) => Some(results.into()),
                (None, Err(_)) if !supervisor.deaths().is_empty() => None,
                (None, Err(error)) => return Err(complaint.unwrap_or(error)),
            };
            let results = if options.has_trace() { results } else { results.map(SinkResults::without_deliveries) };
            Ok(RemoteEnd { results, completeness: arrived, exit_error: complaint, ..nobody })
        }
        (BenchTarget::Server { .. }, Some(sink)) => {
            let units = source.units.clone().unwrap_or_default();
            match sink.await_arrivals(run, &units, supervisor) {
                Ok(results) => Ok(RemoteEnd { results: Some(results), ..nobody }),
                // The source's figures stand, whatever became of the sink.
                Err(error) => {
                    supervisor.print_line(&format!("{error:#}"));
                    Ok(RemoteEnd { ending: Some(Ending::SinkEnded), ..nobody })
                }
            }
        }
        (BenchTarget::Server { .. }, None) => Ok(nobody),
    }
}

/// Waits for what is under way, then stops the relay, unless it is kept, and after it the sink, which takes what the relay
/// still has in hand. With the first complaint of one that could not write its files.
fn drain(
    supervisor: &mut Supervisor,
    options: &BenchOptions,
    accepted: u64,
    keeper: &RelayKeeper,
) -> Result<(Completeness, Option<anyhow::Error>)> {
    let arrived = supervisor.await_arrivals(accepted)?;
    supervisor.await_relay_idle()?;
    let of_relay = match &options.syscall_counting {
        _ if keeper.keeps(options, arrived, supervisor) => None,
        SyscallCounting::Off => supervisor.stop_relay(PartyProcess::terminate)?,
        SyscallCounting::Strace(_) => supervisor.stop_relay(PartyProcess::terminate_children)?,
    };
    let of_relay = of_relay.map(|error| match options.relay() {
        Some(Contestant::Recipe(recipe)) => recipe.server_error(&format!("{error:#}")),
        _ => error,
    });
    let of_sink = supervisor.stop_sink()?;
    Ok((arrived, of_relay.or(of_sink)))
}
