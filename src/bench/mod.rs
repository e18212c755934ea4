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

use crate::interrupt::Asked;
use crate::party;
use crate::surroundings::Sight;
use anyhow::{Context, Result};
use course::{Arrived, Course};
use directory::RunDirectory;
use far_sink::FarSink;
use gather::Whose;
use journey::account::Between;
use journey::record::{Ending, Record, Role};
use parties::{Order, Process};
pub(crate) use plan::{BenchOptions, Preflight, Target, Tracing};
use relays::{Contestant, Disk, MemoryCurve, Store};
use std::path::{Path, PathBuf};

/// What a bench leaves.
#[derive(Clone, Debug)]
pub(crate) struct BenchOutcome {
    /// All that the run learned.
    pub(crate) record: Record,
    /// Where it is written down.
    pub(crate) directory: PathBuf,
    /// What the disk under it wrote meanwhile, for everybody on the host; where there was a relay.
    pub(crate) disk_bytes: Option<u64>,
    /// The relay's memory, where there was one that the bench started.
    pub(in crate::bench) relay_memory: MemoryCurve,
    /// What its directory took of the disk.
    pub(in crate::bench) store: Store,
}

/// Runs the bench to its end, or until SIGINT or SIGTERM; either way there is a report.
///
/// # Errors
///
/// If it could not run: a party did not start or died, nothing listens, the directory cannot be written.
pub(crate) fn run(options: BenchOptions) -> Result<BenchOutcome> {
    let program = std::env::current_exe().context("cannot find mailrun's own program file")?;
    run_with(&program, &options)
}

/// Runs the bench with `program` as source and sink.
fn run_with(program: &Path, options: &BenchOptions) -> Result<BenchOutcome> {
    let started_at = jiff::Timestamp::now();
    let far_sink = options.target.far_sink().map(FarSink::reach).transpose()?;
    let mut directory = RunDirectory::create(options.out.as_deref(), &options.name, started_at)?;
    let result = conduct(program, options, far_sink.as_ref(), &directory).and_then(|finds| {
        let (disk_bytes, store) = (finds.disk_bytes, finds.store);
        let relay = finds.watched.iter().find(|party| party.role == Role::Relay);
        let relay_memory = relay.map(|party| party.memory.clone()).unwrap_or_default();
        let record = gather::record(options, started_at, finds);
        directory.keep(&record)?;
        Ok(BenchOutcome { record, directory: directory.path().to_owned(), disk_bytes, relay_memory, store })
    });
    result.inspect_err(|_| directory.discard())
}

/// Sends the load from end to end and collects what each party wrote.
fn conduct(
    program: &Path,
    options: &BenchOptions,
    far_sink: Option<&FarSink>,
    directory: &RunDirectory,
) -> Result<gather::Finds> {
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
    course.follow_source(Order::source(program, options, run, directory, &target))?;
    let source = gather::party(directory, Role::Source)?;
    let mut lost_sink = None;
    let (arrivals, arrived) = match (&options.target, far_sink) {
        (Target::OwnSink | Target::Relay(_), _) => {
            let arrived = drain(&mut course, options, gather::accepted_messages(&source.record))?;
            (Some(gather::party(directory, Role::Sink)?.into()), arrived)
        }
        (Target::Server { .. }, Some(sink)) => match sink.await_arrivals(run, &source.units, &mut course) {
            Ok(finds) => (Some(finds), Arrived::All),
            // The source's figures stand, whatever became of the sink.
            Err(error) => {
                course.say(&format!("{error:#}"));
                lost_sink = Some(Ending::SinkEnded);
                (None, Arrived::All)
            }
        },
        (Target::Server { .. }, None) => (None, Arrived::All),
    };
    let between = match options.target {
        Target::OwnSink => Between::Nothing,
        Target::Relay(_) | Target::Server { .. } => Between::Server,
    };
    let sink = match options.target {
        Target::OwnSink | Target::Relay(_) => Whose::Own,
        Target::Server { .. } => Whose::Other,
    };
    let ending = (course.asked() != Asked::Nothing).then_some(Ending::Interrupted).or(lost_sink);
    let mut relay = options.relay().and_then(|relay| gather::relay(relay, directory, arrived));
    if arrived == Arrived::NotAll && options.relay().is_some_and(Contestant::is_own) {
        relay.iter_mut().for_each(|relay| relay.look_into_queue(relays::queued(program, directory, run)));
    }
    let disk_bytes = disk.and_then(|disk| disk.written_since());
    let store = Store { at_start, at_end: relays::taken(&directory.spool()) };
    let (watched, around) = (course.finish(), sight.until_now());
    Ok(gather::Finds { run, source, relay, disk_bytes, store, arrivals, between, sink, ending, watched, around })
}

/// Starts the relay, if it is not running already; where it takes mail.
fn start_relay(
    program: &Path,
    options: &BenchOptions,
    directory: &RunDirectory,
    sink: &str,
    course: &mut Course,
) -> Result<String> {
    let relay = options.relay().context("there is no relay to be started")?;
    if let Contestant::Running { address, .. } = relay {
        return Ok(address.clone());
    }
    let starting = relays::prepare(relay, &options.tracing, program, directory, sink)?;
    let started = course.start_relay(starting.context("there is no relay to be started")?);
    started.map_err(|error| match relays::last_complaint(directory) {
        Some(complaint) => anyhow::anyhow!("{error:#}; its log says: {complaint}"),
        None => error,
    })
}

/// Waits for what is under way, then stops the relay and after it the sink, which takes what the relay still has in
/// hand.
fn drain(course: &mut Course, options: &BenchOptions, accepted: u64) -> Result<Arrived> {
    let arrived = course.await_arrivals(accepted)?;
    course.rest_relay()?;
    course.stop_relay(match options.tracing {
        Tracing::Off => Process::terminate,
        Tracing::Strace(_) => Process::terminate_children,
    })?;
    course.stop_sink()?;
    Ok(arrived)
}
