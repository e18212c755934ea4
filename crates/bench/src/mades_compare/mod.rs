//! `mailrun bench mades-compare` runs go-mades-bench, `mailrun mades` and clients of plain AMQP 1.0 in turn, with the
//! same work on the same broker.
//!
//! ```text
//! contestants ─→ cases ─→ (engine::run_all) ─→ runs: environment, contestant, costs ─→ report
//!  (commands)     (rows)                        environment: simulated endpoint, embedded or on a broker
//!                                               reported, reported_amqp: what the contestant itself reports
//! ```
//! Each rate is a figure that the contestant itself reports. It covers the time from the contestant's first message to
//! the last message that was finished. A rate over the whole run would be unfair, because go-mades-bench spends four
//! seconds or more of each run waiting. CPU time is the kernel's figure for the whole process.
mod contestants;
mod environment;
mod options;
mod report;
mod reported;
mod reported_amqp;
mod runs;

use super::engine::{RunPlan, TextReport, run_all};
use super::programs::{InstalledPrograms, own_program};
use anyhow::Result;
use mailrun_process::interrupt::{Interrupt, StopRequest};
pub use options::{CompareBroker, CompareMode, CompareOptions, MadesTool, SendWindow};
use runs::MadesComparison;

/// Runs the comparison until it is done, or until SIGINT or SIGTERM. The report's table shows the
/// runs that were made until then.
///
/// # Errors
///
/// Fails if no run can be made at all. If a single contestant fails or hangs, the table says so instead.
pub fn run(options: &CompareOptions) -> Result<TextReport> {
    let programs = InstalledPrograms::find(&options.tools)?.keep(contestants::does_run)?;
    let left_out = programs.notes();
    let tools = programs.list();
    let cases = contestants::cases(&tools, &options.windows);
    let plan = RunPlan { compared: tools.len(), rounds: options.rounds, order: options.order, live: options.live };
    let interrupt = Interrupt::watch()?;
    let is_stopped = || interrupt.requested() != StopRequest::Nothing;
    let results = run_all(&MadesComparison { options, own: own_program()?, programs }, cases, plan, &is_stopped);
    Ok(report::of(&results, left_out, options))
}
