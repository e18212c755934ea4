//! The bench: starts the parties of a run as processes, watches them, and folds what they wrote into one record.
//!
//! ```text
//! plan ─→ directory ─→ course ──────────────────────────────────────────→ gather ─→ run.json, report.md
//!          (files)      sink, relay up → source runs → drain → stop        (records + ledgers → account → verdict)
//! ```
//!
//! A run never disturbs itself: the parties are processes of their own, measured by `probe` from outside, and this
//! process does nothing but wait, draw a bar four times a second and, at the end, the sums.
mod course;
mod directory;
mod far_sink;
mod gather;
pub(crate) mod mades;
pub(crate) mod mades_compare;
mod parties;
mod plan;
mod progress;
#[cfg(test)]
mod rehearsal;
pub(crate) mod relays;
pub(crate) mod tables;

use crate::interrupt::{Asked, Interrupted};
use crate::party;
use crate::surroundings::Sight;
use anyhow::{Context, Result};
use course::{Arrived, Course};
use directory::RunDirectory;
use far_sink::FarSink;
use gather::{PartyFinds, SinkFinds, Whose};
use journey::account::Between;
use journey::record::{Ending, Record, Role};
use journey::trace::RunId;
use parties::{Order, Process};
pub(crate) use plan::{BenchOptions, Preflight, Target, Tracing};
use relays::{Contestant, Disk, MemoryCurve, Store};
use std::path::{Path, PathBuf};

/// Result of a bench.
#[derive(Debug)]
pub(crate) struct BenchOutcome {
    /// All that the run learned.
    pub(crate) record: Record,
    /// Directory of its files.
    pub(crate) directory: PathBuf,
    /// Bytes that the disk below the relay's directory wrote meanwhile, for everybody on the host; only with a relay.
    pub(crate) disk_bytes: Option<u64>,
    /// The relay's memory, where there was one that the bench started.
    pub(in crate::bench) relay_memory: MemoryCurve,
    /// Disk space that the relay's directory took.
    pub(in crate::bench) store: Store,
    /// The first file of the run that could not be written, and why.
    pub(crate) unwritten: Option<anyhow::Error>,
}

/// Runs the bench to its end, or until SIGINT or SIGTERM; either way there is a report.
///
/// # Errors
///
/// If it could not run: a party did not start, nothing listens, the directory cannot be made; or the user wants no report.
pub(crate) fn run(options: BenchOptions) -> Result<BenchOutcome> {
    let program = std::env::current_exe().context("cannot find mailrun's own program file")?;
    run_with(&program, &options)
}

/// Runs the bench with `program` as source and sink.
fn run_with(program: &Path, options: &BenchOptions) -> Result<BenchOutcome> {
    let started_at = jiff::Timestamp::now();
    let far_sink = options.target.far_sink().map(FarSink::reach).transpose()?;
    let mut directory = RunDirectory::create(options.out.as_deref(), &options.name, started_at)?;
    let conducted = conduct(program, options, far_sink.as_ref(), &directory, started_at);
    let (finds, complaint) = conducted.inspect_err(|_| directory.discard())?;
    let (disk_bytes, store) = (finds.disk_bytes, finds.store);
    let relay = finds.watched.iter().find(|party| party.role == Role::Relay);
    let relay_memory = relay.map(|party| party.memory.clone()).unwrap_or_default();
    let record = gather::record(options, started_at, finds);
    let unwritten = directory.keep(&record).err().or(complaint);
    let directory = directory.path().to_owned();
    Ok(BenchOutcome { record, directory, disk_bytes, relay_memory, store, unwritten })
}

/// Sends the load from end to end and collects what each party wrote; with the first complaint of a party that could not
/// write its files.
fn conduct(
    program: &Path,
    options: &BenchOptions,
    far_sink: Option<&FarSink>,
    directory: &RunDirectory,
    started_at: jiff::Timestamp,
) -> Result<(gather::Finds, Option<anyhow::Error>)> {
    let run = party::fresh_run_id()?;
    let sight = Sight::now();
    let disk = options.relay().and_then(|_| Disk::under(directory.path()));
    let mut course = Course::new(options)?;
    let target = match &options.target {
        Target::Server { address, .. } => address.clone(),
        Target::OwnSink => course.start_sink(Order::sink(program, options, run, directory))?,
        Target::Relay(_) => {
            let sink = course.start_sink(Order::sink(program, options, run, directory))?;
            start_relay(program, options, directory, &sink, &mut course)?
        }
    };
    let at_start = relays::taken(&directory.spool());
    let complaint = course.follow_source(Order::source(program, options, run, directory, &target))?;
    let (source, complaint) = source_finds(options, run, directory, started_at, &mut course, complaint)?;
    let far_end = far_end(options, run, directory, far_sink, &source, &mut course)?;
    let complaint = complaint.or(far_end.complaint);
    let between = match options.target {
        Target::OwnSink => Between::Nothing,
        Target::Relay(_) | Target::Server { .. } => Between::Server,
    };
    let sink = match options.target {
        Target::OwnSink | Target::Relay(_) => Whose::Own,
        Target::Server { .. } => Whose::Other,
    };
    let deaths = course.deaths().to_vec();
    let is_dead = |role: Role| deaths.iter().any(|(whose, _)| *whose == role);
    let server_ended = (is_dead(Role::Relay) || is_dead(Role::Sink)).then_some(Ending::ServerEnded);
    let interrupted = (course.asked() != Asked::Nothing).then_some(Ending::Interrupted);
    let ending = interrupted.or(server_ended).or(far_end.lost);
    let mut relay = options.relay().and_then(|relay| gather::relay(relay, directory, far_end.arrived));
    let may_have_mail = far_end.arrived == Arrived::NotAll || is_dead(Role::Relay);
    if may_have_mail && options.relay().is_some_and(Contestant::is_own) {
        relay.iter_mut().for_each(|relay| relay.look_into_queue(relays::queued(program, directory, run)));
    }
    let disk_bytes = disk.and_then(|disk| disk.written_since());
    let store = Store { at_start, at_end: relays::taken(&directory.spool()) };
    let (watched, around) = (course.finish(), sight.until_now());
    let arrivals = far_end.finds;
    let finds = gather::Finds {
        run,
        source,
        relay,
        disk_bytes,
        store,
        arrivals,
        between,
        sink,
        ending,
        deaths,
        watched,
        around,
    };
    Ok((finds, complaint))
}

/// Facts about the source: from its files, else from its last progress, else from what was seen of it. A source that
/// could not run has none of these.
fn source_finds(
    options: &BenchOptions,
    run: RunId,
    directory: &RunDirectory,
    started_at: jiff::Timestamp,
    course: &mut Course,
    complaint: Option<anyhow::Error>,
) -> Result<(PartyFinds, Option<anyhow::Error>)> {
    if let Some(record) = course.take_unwritten(Role::Source) {
        return Ok((PartyFinds { record, units: None }, complaint));
    }
    let said = course.source_progress();
    let is_stopped = course.asked() != Asked::Nothing;
    match (gather::party(directory, Role::Source), complaint) {
        (Ok(finds), complaint) => Ok((finds, complaint)),
        (Err(_), _) if is_stopped && said.created == 0 => Err(Interrupted::BEFORE_LOAD.into()),
        (Err(_), complaint) if !course.deaths().is_empty() => {
            Ok((gather::source_as_seen(options, run, started_at, &said), complaint))
        }
        (Err(_), Some(complaint)) => Err(complaint),
        (Err(error), None) => Err(error),
    }
}

/// Facts from the far end of the chain.
struct FarEnd {
    /// `None` if the far end was not observed, or its observer is gone.
    finds: Option<SinkFinds>,
    arrived: Arrived,
    /// A sink that the bench did not start is gone.
    lost: Option<Ending>,
    /// A party could not write its files.
    complaint: Option<anyhow::Error>,
}

/// Waits for what is under way, and asks the observer of the far end.
fn far_end(
    options: &BenchOptions,
    run: RunId,
    directory: &RunDirectory,
    far_sink: Option<&FarSink>,
    source: &PartyFinds,
    course: &mut Course,
) -> Result<FarEnd> {
    let nobody = FarEnd { finds: None, arrived: Arrived::All, lost: None, complaint: None };
    match (&options.target, far_sink) {
        (Target::OwnSink | Target::Relay(_), _) => {
            let (arrived, complaint) = drain(course, options, gather::accepted_messages(&source.record))?;
            let record = course.take_unwritten(Role::Sink);
            let finds = match (record, gather::party(directory, Role::Sink)) {
                (Some(record), _) => Some(SinkFinds { record: Some(record), units: None }),
                (None, Ok(finds)) => Some(finds.into()),
                (None, Err(_)) if !course.deaths().is_empty() => None,
                (None, Err(error)) => return Err(complaint.unwrap_or(error)),
            };
            Ok(FarEnd { finds, arrived, complaint, ..nobody })
        }
        (Target::Server { .. }, Some(sink)) => {
            let units = source.units.clone().unwrap_or_default();
            match sink.await_arrivals(run, &units, course) {
                Ok(finds) => Ok(FarEnd { finds: Some(finds), ..nobody }),
                // The source's figures stand, whatever became of the sink.
                Err(error) => {
                    course.say(&format!("{error:#}"));
                    Ok(FarEnd { lost: Some(Ending::SinkEnded), ..nobody })
                }
            }
        }
        (Target::Server { .. }, None) => Ok(nobody),
    }
}

/// Starts the relay, if it is not running already; where it takes mail.
fn start_relay(
    program: &Path,
    options: &BenchOptions,
    directory: &RunDirectory,
    sink: &str,
    course: &mut Course,
) -> Result<String> {
    let relay = options.relay().context("no relay can be started")?;
    if let Contestant::Running { address, .. } = relay {
        return Ok(address.clone());
    }
    let starting = relays::prepare(relay, options, program, directory, sink)?;
    let started = course.start_relay(starting.context("no relay can be started")?);
    options.listener.forget(directory);
    started.map_err(|error| match relays::last_complaint(directory) {
        Some(complaint) => anyhow::anyhow!("{error:#}; its log says: {complaint}"),
        None => error,
    })
}

/// Waits for what is under way, then stops the relay and after it the sink, which takes what the relay still has in
/// hand. With the first complaint of one that could not write its files.
fn drain(course: &mut Course, options: &BenchOptions, accepted: u64) -> Result<(Arrived, Option<anyhow::Error>)> {
    let arrived = course.await_arrivals(accepted)?;
    course.rest_relay()?;
    let of_relay = course.stop_relay(match options.tracing {
        Tracing::Off => Process::terminate,
        Tracing::Strace(_) => Process::terminate_children,
    })?;
    let of_sink = course.stop_sink()?;
    Ok((arrived, of_relay.or(of_sink)))
}
