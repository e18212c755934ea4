//! `mailrun bench mades-compare` runs go-mades-bench and `mailrun mades` by turns, with the same
//! work on the same broker.
//!
//! ```text
//! contestants ─→ cases ─→ (engine::run_all) ─→ runs: environment, contestant, costs ─→ report
//!  (commands)     (rows)                        environment: the stand-in, embedded or on a broker
//!                                               reported: what the contestant itself reports
//! ```
//! Each rate is the one that the contestant reports, from its first message to the last one that
//! was finished. A rate over the whole run would be unfair, because go-mades-bench spends four
//! seconds or more of each run waiting. CPU time is what the kernel counts for the whole process.
mod contestants;
mod environment;
mod queues;
mod report;
mod reported;
mod runs;

use super::engine::{RunPlan, TextReport, run_all};
use super::programs::{InstalledPrograms, own_program};
pub use super::scenario::{CompareMode, SendWindow};
use super::scenario::{MadesTool, RoundOrder};
use anyhow::Result;
use mailrun_party::interrupt::{Interrupt, StopRequest};
use mailrun_party::live::LiveMode;
use runs::MadesComparison;
use std::path::PathBuf;
use std::time::Duration;

/// A broker that is already running.
#[derive(Clone)]
pub struct CompareBroker {
    pub url: String,
    pub user: String,
    pub password: String,
    /// Certificates to trust, for contestants that verify certificates.
    pub cacert: Option<PathBuf>,
}

impl std::fmt::Debug for CompareBroker {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omit the password, and the URL, which may contain one.
        out.debug_struct("Broker").field("user", &self.user).field("cacert", &self.cacert).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
pub struct CompareOptions {
    pub mode: CompareMode,
    pub messages: u64,
    pub message_bytes: u64,
    /// Programs to compare. Those that are not installed are left out.
    pub tools: Vec<MadesTool>,
    /// Number of runs of each row. The figures are the medians of these runs.
    pub rounds: u32,
    pub order: RoundOrder,
    pub windows: Vec<SendWindow>,
    /// Maximum number of messages under way, if all contestants get the same window.
    pub max_in_transit: u32,
    /// `None` starts the embedded stand-in, and a new one for each run.
    pub broker: Option<CompareBroker>,
    pub prefix: String,
    /// Share of the messages that the stand-in loses.
    pub drop: f64,
    /// A run that takes longer than this fails.
    pub max_time: Duration,
    pub live: LiveMode,
}

/// Runs the comparison until it is done, or until SIGINT or SIGTERM. In both cases, the report has
/// a table of the runs that were made.
///
/// # Errors
///
/// If no run can be made at all. If a single contestant fails or hangs, the table says so instead.
pub fn run(options: &CompareOptions) -> Result<TextReport> {
    let programs = InstalledPrograms::find(&options.tools)?;
    let missing = programs.missing.clone();
    let tools = programs.list();
    let cases = contestants::cases(&tools, &options.windows);
    let plan = RunPlan { compared: tools.len(), rounds: options.rounds, order: options.order, live: options.live };
    let interrupt = Interrupt::watch()?;
    let is_stopped = || interrupt.requested() != StopRequest::Nothing;
    let results = run_all(&MadesComparison { options, own: own_program()?, programs }, cases, plan, &is_stopped);
    Ok(report::of(&results, &missing, options))
}
