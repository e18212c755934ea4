//! `mailrun bench mades-compare`: go-mades-bench and `mailrun mades` in the same work at the same broker, by turns.
//!
//! ```text
//! contestants ─→ cases ─→ (engine::run_all) ─→ runs: an environment, a contestant, its costs ─→ report
//!  (commands)     (rows)                        environment: the stand-in, embedded or on a broker
//!                                               reported: what the contestant itself reports
//! ```
//! Rates are each contestant's own (from its first message to the last that came to its end), for go-mades-bench spends
//! four seconds and more of each run on waiting; processor time is the kernel's account of the whole process.
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

impl CompareMode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Amqp => "amqp",
            Self::Endpoint => "endpoint",
            Self::Toolbox => "toolbox",
            Self::Tracing => "tracing",
        }
    }
}

/// A broker that is running.
#[derive(Clone)]
pub struct CompareBroker {
    pub url: String,
    pub user: String,
    pub password: String,
    /// Certificates to trust, for contestants that verify any.
    pub cacert: Option<PathBuf>,
}

impl std::fmt::Debug for CompareBroker {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Neither the password nor a URL that may hold one.
        out.debug_struct("Broker").field("user", &self.user).field("cacert", &self.cacert).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
pub struct CompareOptions {
    pub mode: CompareMode,
    /// Messages of a run.
    pub messages: u64,
    pub message_bytes: u64,
    /// Programs to compare, as far as they are installed.
    pub tools: Vec<MadesTool>,
    /// Runs of each row; figures are their medians.
    pub rounds: u32,
    pub order: RoundOrder,
    pub windows: Vec<SendWindow>,
    /// Messages under way, where the window is the same for all.
    pub max_in_transit: u32,
    /// `None`: the embedded stand-in, a new one for each run.
    pub broker: Option<CompareBroker>,
    /// Prefix of the queues' names.
    pub prefix: String,
    /// The share of messages that the stand-in loses.
    pub drop: f64,
    /// The longest that a run may take.
    pub max_time: Duration,
    /// Progress output while it runs.
    pub live: LiveMode,
}

/// Runs the comparison to its end, or until SIGINT or SIGTERM; either way there is a table of what was run.
///
/// # Errors
///
/// If it could not run at all. A contestant that fails or hangs is named in the table.
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
