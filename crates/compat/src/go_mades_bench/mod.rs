//! Imitates go-mades-bench, vennekilde's load generator for the MADES API. Flags and output lines are the same, but
//! mailrun's engine does the work. `docs/drop-in.md` lists the differences and their reasons.
//!
//! ```text
//! flags ─▶ options ─▶ plan ─▶ mailrun_mades_bench::run ─▶ every stage of every message ─▶ follower (flight times) ─▶ report
//! ```
mod latency;
mod observer;
mod options;
mod plan;
mod report;
mod stages;

use super::go::{self, EXIT_BAD_FLAG};
use super::host_port::PublicTargets;
use super::own_options::Invocation;
use super::stderr::FatalError;
use mailrun_measurement::record::Record;
use mailrun_process::interrupt::Interrupt;
use observer::{BenchObserver, RunOutcome};
use options::Options;
use std::process::ExitCode;
use std::rc::Rc;

/// Runs go-mades-bench and returns its exit status: 2 after a bad flag, and 1 after a fatal error. The status is also 1
/// if a message is missing or corrupt, unless the user interrupted the run. Otherwise it is 0.
pub(super) fn run(call: &Invocation) -> ExitCode {
    let options = match Options::parse(&call.arguments) {
        Ok(options) => options,
        Err(error) => return go::report_bad_flag(&error, &options::usage(&call.program)),
    };
    go::print(&(options.flags_line() + "\n"));
    let Some(mode) = stages::mode(&options.mode) else {
        go::log(&format!("unknown mode {:?}: endpoint, toolbox, amqp or tracing", options.mode));
        return ExitCode::from(EXIT_BAD_FLAG);
    };
    bench(&options, mode).unwrap_or_else(|fatal| {
        go::log(&fatal.to_string());
        ExitCode::FAILURE
    })
}

fn bench(options: &Options, mode: mailrun_mades_bench::MadesMode) -> Result<ExitCode, FatalError> {
    let fatal = |error: anyhow::Error| FatalError(format!("{error:#}"));
    let observer = Rc::new(BenchObserver::new(options, mode));
    let plan = plan::plan(
        options,
        mode,
        PublicTargets::from_environment(),
        Rc::clone(&observer) as Rc<dyn mailrun_mades_bench::RunObserver>,
    )?;
    // Leave SIGHUP unhandled, so that it ends this program without a report, as it ends go-mades-bench.
    let interrupt = Interrupt::watch_without_hangup().map_err(fatal)?;
    let record = mailrun_mades_bench::run(plan).map_err(fatal)?.record;
    observer.end();
    if observer.outcome() == RunOutcome::Interrupted {
        let signal = if interrupt.is_termination() { "Termination Signal" } else { "OS Interrupt" };
        go::print(&format!("Received {signal}\n"));
    }
    go::log("");
    go::log("Ran with flags: ");
    go::print(&(options.flags_line() + "\n"));
    go::log("Final Report");
    go::print(&observer.report());
    Ok(print_summary(options, &observer, &record))
}

/// Prints facts that go-mades-bench does not report: messages that are missing, were refused, arrived more than once,
/// or belong to other applications. Returns the exit status of the program.
fn print_summary(options: &Options, observer: &BenchObserver, record: &Record) -> ExitCode {
    let outcome = observer.outcome();
    if outcome == RunOutcome::GivenUp {
        go::log(&format!("gave up: nothing received for {} s", options.progress_timeout.as_secs()));
    }
    let missing = observer.missing();
    for (name, count) in &missing {
        go::log(&format!("{name}: {count} of {} msgs missing", options.messages));
    }
    let mades = record.mades.as_ref();
    for trouble in mades.into_iter().flat_map(|mades| &mades.troubles) {
        let code = if trouble.code.is_empty() { String::new() } else { format!(" {}", trouble.code) };
        go::log(&format!("{}{code}: {} times, first: {}", trouble.kind, trouble.count, trouble.text));
    }
    let duplicates: u64 = record.stages.iter().map(|stage| stage.duplicates).sum();
    if duplicates > 0 {
        go::log(&format!("{duplicates} msgs received more than once"));
    }
    let released = mades.map_or(0, |mades| mades.released);
    if released > 0 {
        // Count receptions and not messages, because this program returns foreign messages to the broker, which may
        // then send the same message again.
        go::log(&format!("msgs not from this run: received {released} times and left in their queues"));
    }
    let is_corrupt = record.ledger.corrupt.is_some_and(|corrupt| corrupt > 0);
    let held = outcome == RunOutcome::Interrupted || (missing.is_empty() && !is_corrupt);
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
