//! Reproduces the table in the README of go-smtp-source with the sources and sinks that are installed here, by the
//! method of that project's `bench.sh`.
//!
//! ```text
//! contestants ─→ cases ─→ (engine::run_all) ─→ runs: a new sink, a source, its costs ─→ report
//!  (commands)     (rows)                                                                   (the table)
//! ```
//!
//! The table shows the CPU time, the memory and the rate of each source.
mod cases;
mod contestants;
mod report;
mod runs;

use super::engine::{RunPlan, TextReport, run_all};
use super::programs::InstalledPrograms;
use anyhow::Result;
use cases::cases;
pub use cases::{SinkTool, SourceTool, TableOptions};
use mailrun_process::interrupt::{Interrupt, StopRequest};
use runs::TableComparison;
pub(super) use runs::TableSink;

/// Measures all rows of the table, or stops early at SIGINT or SIGTERM. The report shows all runs that were made.
///
/// # Errors
///
/// Returns an error if none of the sources or none of the sinks is installed. A program that fails or hangs causes no
/// error, but the report names it.
pub fn run(options: &TableOptions) -> Result<TextReport> {
    let sources = InstalledPrograms::find(&options.tools)?;
    let sinks = InstalledPrograms::find(&options.receivers)?;
    let left_out = [sources.notes(), sinks.notes()].concat();
    let tools = sources.list();
    let cases = cases(&tools, &sinks.list(), &options.sessions, &options.recipients);
    let plan = RunPlan { compared: tools.len(), rounds: options.rounds, order: options.order, live: options.live };
    let interrupt = Interrupt::watch()?;
    let is_stopped = || interrupt.requested() != StopRequest::Nothing;
    let results = run_all(&TableComparison { options, sources, sinks }, cases, plan, &is_stopped);
    Ok(report::figures(&results, left_out, options))
}
