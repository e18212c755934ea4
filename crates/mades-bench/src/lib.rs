//! Measures MADES endpoints (ECP, EDX) and their brokers through MADES's Business Application API. The bench sends
//! messages through an endpoint pair or a broker, and times every stage of each message.
//!
//! ```text
//! pacer (when) ─→ sender ──▶ outbox ─ ─ endpoint pair ─ ─▶ reply, event and inbox queues ──▶ receiver
//!                   │                                                                          │
//!                   └────────→ tracker (in_flight, history), waterfall, troubles ←─────────────┘
//!                                │ fifty times a second
//!                              monitor ─→ time-outs, live line, series, record
//! ```
//! Everything runs on one thread. `tracker` and the modules that it uses do no I/O.
#![allow(missing_docs)] // only crates that other programs embed document every public item

mod acknowledgement;
mod acknowledgement_document;
mod acknowledgement_sender;
mod arrivals;
mod document_id;
mod history;
mod in_flight;
mod market;
mod market_document;
mod monitored;
mod options;
mod outbox;
mod pacer;
mod payload;
mod preflight;
mod receiver;
mod redelivery;
mod report;
mod run_payloads;
mod run_state;
mod sender;
mod shape_schedule;
mod shape_stats;
mod side;
#[cfg(test)]
mod situations;
mod stages;
mod timer_fd;
mod tracker;
mod troubles;
mod verdict;
mod waterfall;

pub use market::{MAX_ACCELERATION, MarketLoad, MarketShape};
pub use options::{AcknowledgementOptions, Leftovers, MadesOptions, MadesPreflight, PayloadKind};
pub use stages::{AcknowledgementMode, MadesMode, MessagePath, MessageStage, RunObserver, RunView};

use anyhow::{Context, Result, bail};
use mailrun_dashboard::monitor::{LoadHost, Monitor};
use mailrun_dashboard::progress_output::ProgressOutput;
use mailrun_measurement::record::{Ending, Record};
use mailrun_net::clock;
use mailrun_process::interrupt::{Interrupt, Interrupted, StopRequest};
use mailrun_process::live::LiveEvent;
use mailrun_process::live_line::NonTerminalOutput;
use mailrun_process::live_metrics::MeasuredParty;
use mailrun_process::output_file;
use mailrun_process::outputs::{FinishedRun, IntervalRecorder, new_run_id, write_record};
use mailrun_process::start_wait::StartWait;
use mailrun_report::{markdown, page};
use monitored::MadesLoad;
use run_payloads::RunPayloads;
use run_state::MadesRunState;
use shape_schedule::ShapeSchedule;
use side::{BrokerSide, OpenLinks, RunSides};
use std::fs;
use std::path::Path;
use std::rc::Rc;
use timer_fd::TimerFd;
use tokio::task::LocalSet;

/// Runs the bench until the run ends, or until SIGINT or SIGTERM arrives during the load. In both cases returns a
/// record of the run, and also writes the record if an output directory is given.
///
/// # Errors
/// Fails if the run cannot start, for example because a broker or a queue is missing, the credentials are wrong, a file
/// cannot be read or written, or a signal arrives before the load.
pub fn run(options: MadesOptions) -> Result<FinishedRun> {
    let run = options.run.map_or_else(new_run_id, Ok)?;
    check_first_due(&options)?;
    let payloads = RunPayloads::new(&options, run)?;
    if let Some(directory) = &options.out {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let interrupt = Interrupt::watch()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start an event loop")?;
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, execute(options, run, payloads, &interrupt))
}

/// Refuses a load of market documents (`--shape`) whose time limit comes before its first message is due, because the
/// run would send nothing.
fn check_first_due(options: &MadesOptions) -> Result<()> {
    let Some((load, limit)) = options.market.as_ref().zip(options.duration) else { return Ok(()) };
    let first = ShapeSchedule::new(load, jiff::Timestamp::now()).due(0);
    if first >= limit {
        bail!(
            "no message is due within {} s; the first is due in {:.1} s: use a longer --duration, or --accelerate",
            limit.as_secs_f64(),
            first.as_secs_f64()
        );
    }
    Ok(())
}

async fn execute(
    options: MadesOptions,
    run: mailrun_measurement::RunId,
    payloads: RunPayloads,
    interrupt: &Interrupt,
) -> Result<FinishedRun> {
    let timer = Rc::new(TimerFd::new()?);
    let (open, purged) = tokio::select! {
        opened = open_queues(&options, run, interrupt) => opened?,
        () = interrupt.wait_for(StopRequest::Stop) => return Err(Interrupted::BEFORE_LOAD.into()),
    };
    let brokers = [&options.outbox.url, &options.inbox.url].map(|url| url.address());
    let has_rate = options.offer.is_some() || options.market.is_some();
    let host = LoadHost::observe(has_rate, &[&options.thresholds, &options.abort_on], &brokers);
    let started_at = jiff::Timestamp::now();
    let now = clock::now();
    let hlog = options.out.as_ref().map(|directory| directory.join("latency.hlog"));
    let recorder = IntervalRecorder::begin(now, options.path().last().name(), hlog.as_deref())?;
    let party = MeasuredParty { name: "mades", prefix: "mailrun_mades_", stage: options.path().last().name() };
    let output = ProgressOutput::new(options.live, NonTerminalOutput::Lines).with_metrics(options.http, party)?;
    let out = options.out.clone();
    let run_state = Rc::new(MadesRunState::new(options, run, payloads, now));
    let monitor = Monitor::new(MadesLoad::new(&run_state), recorder, output, now);
    let mut monitor = monitor.of_load(host, &run_state.options.abort_on, now);
    let sides = RunSides::start(open, &run_state, &timer);
    monitored::follow(&mut monitor, interrupt).await;
    let unlogged = monitor.finish(clock::now());
    let ending = match monitor.ending() {
        Ending::Complete if run_state.is_given_up() => Ending::GaveUp,
        ending => ending,
    };
    let surroundings = monitor.host.finish();
    sides.stop(&run_state, interrupt).await;
    // Take the time before the search for missing messages in the outbox, because the search is not part of the run.
    let observed_until = clock::now();
    if ending != Ending::Interrupted {
        outbox::find_waiting(&run_state).await;
    }
    let results = report::MadesResults {
        started_at,
        series: &monitor.recorder.series,
        usage: &monitor.run.usage_sampler,
        stalls: monitor.run.stalls(),
        missed_threshold: monitor.missed_threshold(),
        surroundings,
        purged,
        ending,
        observed_until,
    };
    let record = report::record(&run_state, results);
    let unwritten = out.and_then(|directory| write_files(&directory, &record).err());
    if unwritten.is_some() {
        monitor.output.events().unwritten(&record);
    }
    monitor.output.events().event(&LiveEvent::Done);
    Ok(FinishedRun { record, write_error: unwritten.or(unlogged) })
}

/// Purges the queues and runs the preflight check if the user wants them, and then attaches to the queues. Returns the
/// links and the number of purged messages.
async fn open_queues(
    options: &MadesOptions,
    run: mailrun_measurement::RunId,
    interrupt: &Interrupt,
) -> Result<(Vec<(BrokerSide, OpenLinks)>, u64)> {
    let sides = side::sides(options);
    let wait = match options.preflight {
        MadesPreflight::On => StartWait::begin(),
        MadesPreflight::Off => StartWait::none(),
    };
    let purged = match options.leftovers {
        Leftovers::Purged => side::purge_all(&sides, wait).await?,
        Leftovers::Kept => 0,
    };
    if options.preflight == MadesPreflight::On {
        preflight::check(options, run, interrupt, wait).await?;
    }
    Ok((side::open_all(sides, wait).await?, purged))
}

fn write_files(directory: &Path, record: &Record) -> Result<()> {
    write_record(&directory.join("run.json"), record)?;
    for (name, text) in [("report.md", markdown(record)), ("report.html", page(record, None))] {
        output_file::write(&directory.join(name), text)?;
    }
    Ok(())
}
