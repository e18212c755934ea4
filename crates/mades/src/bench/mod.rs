//! The bench of the Business Application API of MADES: sends messages through an endpoint pair, or a broker, and times
//! every stage of each.
//!
//! ```text
//! pace (when) ─→ sender ──▶ outbox ─ ─ endpoint pair ─ ─▶ outbox.reply, send.event, inbox ──▶ receivers
//!                  │                                                                            │
//!                  └────────────→ books: account (slots, register), waterfall, troubles ←───────┘
//!                                   │ fifty times a second
//!                                collector ─→ time-outs, live line, series, record
//! ```
//! Everything is on one thread. `account` and the modules that it uses are pure.
mod arrivals;
mod figures;
mod history;
mod in_flight;
mod observer;
mod options;
mod pacer;
mod payload;
mod receiver;
mod redelivery;
mod report;
mod run_state;
mod sender;
mod side;
mod stages;
mod supervisor;
mod timer_fd;
mod tracker;
mod troubles;
mod verdict;
mod waterfall;

pub use observer::{RunObserver, RunView};
pub use options::{Leftovers, MadesOptions, PayloadKind};
pub use stages::{MadesMode, MessageStage};

use ::report::{markdown, page};
use anyhow::{Context, Result};
use journey::record::Record;
use net::clock;
use party::host_sampler::HostSampler;
use party::interrupt::{Interrupt, Interrupted, StopRequest};
use party::outputs::{FinishedRun, IntervalRecorder, cannot_write, new_run_id, write_record};
use payload::Payloads;
use run_state::MadesRunState;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use supervisor::RunSupervisor;
use timer_fd::TimerFd;
use tokio::task::{JoinSet, LocalSet};

/// Time limit for closing connections at the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(12);

/// Runs the bench to its end, or until SIGINT or SIGTERM; either way there is a record.
///
/// # Errors
/// If it could not run: no broker, wrong credentials, no such queue, a file that cannot be read or written.
pub fn run(options: MadesOptions) -> Result<FinishedRun> {
    let run = options.run.map_or_else(new_run_id, Ok)?;
    let payloads = Payloads::new(&options.payload, &options.sizes, options.seed, run)?;
    if let Some(directory) = &options.out {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let interrupt = Interrupt::watch()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start an event loop")?;
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, execute(options, run, payloads, &interrupt))
}

async fn execute(
    options: MadesOptions,
    run: journey::RunId,
    payloads: Payloads,
    interrupt: &Interrupt,
) -> Result<FinishedRun> {
    let timer = Rc::new(TimerFd::new()?);
    let (open, purged) = tokio::select! {
        opened = side::open_all(side::sides(&options), options.leftovers) => opened?,
        () = interrupt.wait_for(StopRequest::Stop) => return Err(Interrupted::BEFORE_LOAD.into()),
    };
    let started_at = jiff::Timestamp::now();
    let now = clock::now();
    let sampler = HostSampler::start();
    let hlog = options.out.as_ref().map(|directory| directory.join("latency.hlog"));
    let recorder = IntervalRecorder::begin(now, options.mode.last().name(), hlog.as_deref())?;
    let out = options.out.clone();
    let run_state = Rc::new(MadesRunState::new(options, run, payloads, now));
    let mut collector = RunSupervisor::begin(&run_state, recorder);
    let mut sides = JoinSet::new();
    for (side, links) in open {
        sides.spawn_local(side::maintain(side, links, Rc::clone(&run_state), Rc::clone(&timer)));
    }
    let ending = collector.run(&run_state, interrupt).await;
    let unlogged = collector.finish(&run_state);
    let surroundings = sampler.finish();
    run_state.end();
    // Tells the broker which messages were taken; a broker that does not answer is not waited for.
    tokio::select! {
        () = async { while sides.join_next().await.is_some() {} } => {}
        () = tokio::time::sleep(CLOSE_TIMEOUT) => {}
        () = interrupt.wait_for(StopRequest::StopNow) => {}
    }
    let series = &collector.interval_recorder.series;
    let stalls = collector.stalls(&run_state);
    let missed_threshold = collector.missed_threshold.as_ref();
    let usage = &collector.usage_sampler;
    let results =
        report::MadesResults { started_at, series, usage, stalls, missed_threshold, surroundings, purged, ending };
    let record = report::record(&run_state, results);
    let unwritten = out.and_then(|directory| write_files(&directory, &record).err()).or(unlogged);
    collector.publish(&record, unwritten.as_ref());
    Ok(FinishedRun { record, write_error: unwritten })
}

/// Writes the run's own files.
fn write_files(directory: &Path, record: &Record) -> Result<()> {
    write_record(&directory.join("run.json"), record)?;
    for (name, text) in [("report.md", markdown(record)), ("report.html", page(record, None))] {
        let path = directory.join(name);
        fs::write(&path, text).map_err(|error| cannot_write(&path, &error))?;
    }
    Ok(())
}
