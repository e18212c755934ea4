//! The published tables as scenarios. They repeat go-smtp-source's `bench.sh` and `bench_check.sh`
//! with those sources and sinks that are installed.
//!
//! ```text
//! contestants ─→ cases ─→ (engine::run_all) ─→ runs: a new sink, a source, its costs ─→ report
//!  (commands)     (rows)                        sinks   deliveries   measurement           (the table)
//! ```
//!
//! The table says how much each source costs. The check proves that each recipient received each
//! message once.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryCheck {
    /// No checks, because the sink's work for them would be measured as well.
    None,
    /// Checks that every recipient received every message once.
    EveryDelivery,
}

#[derive(Clone, Debug)]
pub struct TableOptions {
    pub messages: u64,
    /// Sources. Those that are not installed are left out.
    pub tools: Vec<SourceTool>,
    pub receivers: Vec<SinkTool>,
    /// Runs of each row. The figures are the medians of the runs.
    pub rounds: u32,
    pub order: RoundOrder,
    /// Numbers of sessions. Each number has its own group of rows.
    pub sessions: Vec<u32>,
    /// Numbers of recipients per message. Each number has its own group of rows.
    pub recipients: Vec<u32>,
    pub check: DeliveryCheck,
    /// Time limit for each run.
    pub limit: Duration,
    /// Additional options for mailrun's sink.
    pub sink_options: PartyOptions,
    pub live: LiveMode,
}

/// Runs a table to its end, or stops early at SIGINT or SIGTERM. In both cases the report shows the
/// runs that were made.
///
/// # Errors
///
/// Returns an error if no run could be started at all. A program that fails or hangs is named in
/// the table instead.
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
