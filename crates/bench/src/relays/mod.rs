//! Scenarios that measure relays: comparisons, latency, backlogs and long runs.
//!
//! ```text
//! comparison ─→ (engine::run_all) ─→ measure ─→ report     relay-400, relay-64k, relay-100k: time to accept, time to deliver
//!   strace: counts system calls per message, in separate short runs
//!
//! scenario ─→ latency (capacity search)                    relay-latency: accept p99 at half the highest sustainable rate
//!         ├─→ backlog (operation, usage)                   backlog: a queue without a next hop, and a restart on it
//!         │    └─→ backlog_comparison                      the same of several relays, in one table
//!         └─→ soak (usage)                                 relay-soak: memory and disk over a million messages
//!             each with its goals: PASS or FAIL
//! ```
mod backlog;
mod backlog_comparison;
mod comparison;
mod fresh_mail;
mod goals;
mod latency;
mod measure;
mod operation;
mod report;
mod scenario;
mod soak;

pub use backlog::{BacklogOptions, BacklogReceiver, MemoryTarget, ReadyTarget, run as run_backlog};
pub use backlog_comparison::compare as compare_backlogs;
pub use comparison::RelayComparisonOptions;
pub use latency::{LatencyOptions, SustainedLimits, run as run_latency};
#[cfg(test)]
pub(super) use scenario::sample_options;
pub use scenario::{LoadShape, ScenarioOptions};
pub(super) use scenario::{ScenarioRun, reuse_text};
pub use soak::{MemoryGrowth, SoakOptions, run as run_soak};

use crate::engine::TextReport;
use crate::launch;
use anyhow::Result;

/// Runs a comparison of relays until it is complete, or until SIGINT or SIGTERM. The report covers the completed runs.
///
/// # Errors
///
/// Returns an error if no run could be started at all. A relay that fails is named in the table
/// instead.
pub fn run(options: &RelayComparisonOptions) -> Result<TextReport> {
    options.contestants.iter().try_for_each(launch::check)?;
    let scenario = ScenarioRun::prepare(&options.scenario)?;
    let results = comparison::run_all(options, &scenario);
    scenario.save(report::of(&results, options))
}
