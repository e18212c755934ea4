//! The published tables as scenarios: go-smtp-source's `bench.sh` and `bench_check.sh`, with whoever of its field is
//! installed.
//!
//! ```text
//! contenders ─→ cases ─→ course: for each run a new sink, a source, its costs ─→ sheet
//!  (who is there)  (rows)           sinks    timed   deliveries (the check)       (the table)
//! ```
//!
//! The table says what each source cost; the check proves that each message came to each of its recipients, once.
mod cases;
mod conclusion;
mod contestants;
mod deliveries;
mod delivery_check;
mod report;
mod runner;
mod screen;
mod sinks;
mod timed;

pub(in crate::bench) use cases::order;
pub(crate) use conclusion::Conclusion;
pub(in crate::bench) use conclusion::{Defects, conclude, conclude_runs, strip_mark};
pub(in crate::bench) use contestants::peer;
pub(in crate::bench) use timed::{Costs, TimedChild};

use super::scenario::{RoundOrder, SinkTool, SourceTool};
use ::report::numbers::counted;
use ::report::table::{Table, plain};
use anyhow::Result;
use party::host;
use party::live::LiveMode;
use std::path::PathBuf;
use std::time::Duration;

/// Checks that are made at the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryCheck {
    /// No checks: a sink's work for them is not to be measured.
    None,
    /// Every delivery, once.
    EveryDelivery,
}

/// Options of the scenario.
#[derive(Clone, Debug)]
pub(crate) struct TableOptions {
    /// Messages of a run.
    pub(crate) messages: u64,
    /// Sources and sinks, as far as they are installed.
    pub(crate) tools: Vec<SourceTool>,
    pub(crate) receivers: Vec<SinkTool>,
    /// Runs of each row; figures are their medians.
    pub(crate) rounds: u32,
    pub(crate) order: RoundOrder,
    /// Sessions, a group of rows each.
    pub(crate) sessions: Vec<u32>,
    /// Recipients of a message, likewise.
    pub(crate) recipients: Vec<u32>,
    pub(crate) check: DeliveryCheck,
    /// The longest that a run may take.
    pub(crate) limit: Duration,
    /// More options for mailrun's sink, word by word.
    pub(crate) sink_options: Vec<String>,
    /// Progress output while it runs.
    pub(crate) live: LiveMode,
}

/// Columns of a sheet in a file: room enough for every figure.
const FILE_WIDTH: usize = 160;

/// Tables that are ready to be read.
#[derive(Clone, Debug)]
pub(crate) struct TextReport {
    title: String,
    tables: Vec<Table>,
    remarks: Vec<String>,
    /// All of it but the conclusion, as it stands in a file.
    pub(crate) text: String,
    /// Conclusion of the whole.
    pub(crate) conclusion: Conclusion,
    /// The file that has all of it.
    pub(in crate::bench) file: Option<PathBuf>,
}

impl TextReport {
    /// Tables with a title, which the host stands beside, and what must be known besides.
    pub(in crate::bench) fn new(title: &str, tables: Vec<Table>, remarks: Vec<String>, conclusion: Conclusion) -> Self {
        let title = plain(&format!("{title} · {}", host_description()));
        let mut sheet = Self { title, tables, remarks, text: String::new(), conclusion, file: None };
        sheet.text = sheet.layout(FILE_WIDTH, |sentence| vec![sentence.to_owned()]);
        sheet
    }

    fn layout(&self, width: usize, sentence: impl Fn(&str) -> Vec<String>) -> String {
        let mut lines = sentence(&self.title);
        lines.push(String::new());
        for table in self.tables.iter().filter(|table| !table.is_empty()) {
            lines.extend([table.terminal(width), String::new()]);
        }
        lines.extend(self.remarks.iter().flat_map(|remark| sentence(remark)));
        lines.join("\n")
    }

    /// Reports whether all runs succeeded, and everything was seen that was asked for.
    #[cfg(test)]
    pub(in crate::bench) fn is_good(&self) -> bool {
        self.conclusion.outcome == journey::record::Outcome::Pass
    }
}

/// Host of the measurement, for a table's title: `AMD EPYC, 2 cores, Linux 6.18.44`.
pub(crate) fn host_description() -> String {
    let host = host::facts();
    let cores = counted(u64::from(host.cores), "core");
    plain(&format!("{}, {cores}, Linux {}", host.cpu_model, host.kernel))
}

/// Runs a table to its end, or until SIGINT or SIGTERM; either way there is a table of what was run.
///
/// # Errors
///
/// If it could not run at all. A peer that fails or hangs is named in the table.
pub(crate) fn run(options: &TableOptions) -> Result<TextReport> {
    let finds = runner::run_all(options)?;
    Ok(match options.check {
        DeliveryCheck::None => report::figures(&finds, options),
        DeliveryCheck::EveryDelivery => report::check_report(&finds, options),
    })
}
