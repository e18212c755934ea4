//! The published tables as scenarios: go-smtp-source's `bench.sh` and `bench_check.sh`, with those of its sources and sinks that
//! are installed.
//!
//! ```text
//! contestants ─→ cases ─→ (engine::run_all) ─→ runs: a new sink, a source, its costs ─→ report
//!  (commands)     (rows)                        sinks   deliveries   measurement           (the table)
//! ```
//!
//! The table says what each source cost; the check proves that each message came to each of its recipients, once.
mod cases;
mod contestants;
mod deliveries;
mod measurement;
mod report;
mod runs;
mod sinks;

use super::engine::{RunPlan, TextReport, run_all};
use super::programs::InstalledPrograms;
use super::scenario::{RoundOrder, SinkTool, SourceTool};
use anyhow::Result;
use cases::cases;
use mailrun_party::interrupt::{Interrupt, StopRequest};
use mailrun_party::live::LiveMode;
use mailrun_party::party_options::PartyOptions;
use runs::TableComparison;
pub(super) use sinks::{DumpMode, SinkLaunch, TableSink};
use std::time::Duration;

/// Checks that are made at the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryCheck {
    /// No checks: a sink's work for them is not to be measured.
    None,
    /// Every delivery, once.
    EveryDelivery,
}

#[derive(Clone, Debug)]
pub struct TableOptions {
    /// Messages of a run.
    pub messages: u64,
    /// Sources and sinks, as far as they are installed.
    pub tools: Vec<SourceTool>,
    pub receivers: Vec<SinkTool>,
    /// Runs of each row; figures are their medians.
    pub rounds: u32,
    pub order: RoundOrder,
    /// Sessions, a group of rows each.
    pub sessions: Vec<u32>,
    /// Recipients of a message, likewise.
    pub recipients: Vec<u32>,
    pub check: DeliveryCheck,
    /// The longest that a run may take.
    pub limit: Duration,
    /// More options for mailrun's sink.
    pub sink_options: PartyOptions,
    /// Progress output while it runs.
    pub live: LiveMode,
}

/// Runs a table to its end, or until SIGINT or SIGTERM; either way there is a table of what was run.
///
/// # Errors
///
/// If it could not run at all. A peer that fails or hangs is named in the table.
pub fn run(options: &TableOptions) -> Result<TextReport> {
    let sources = InstalledPrograms::find(&options.tools)?;
    let sinks = InstalledPrograms::find(&options.receivers)?;
    let missing = [sources.missing.as_slice(), &sinks.missing].concat();
    let tools = sources.list();
    let cases = cases(&tools, &sinks.list(), &options.sessions, &options.recipients);
    let plan = RunPlan { compared: tools.len(), rounds: options.rounds, order: options.order, live: options.live };
    let interrupt = Interrupt::watch()?;
    let is_stopped = || interrupt.requested() != StopRequest::Nothing;
    let results = run_all(&TableComparison { options, sources, sinks }, cases, plan, &is_stopped);
    Ok(match options.check {
        DeliveryCheck::None => report::figures(&results, &missing, options),
        DeliveryCheck::EveryDelivery => report::check_report(&results, &missing, options),
    })
}
