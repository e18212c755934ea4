//! The report of a scenario: a title, tables, remarks below them, and the conclusion.
use super::conclusion::{Conclusion, Defects};
use mailrun_process::host;
use mailrun_text::numbers::counted;
use mailrun_text::table::{Table, plain};
use std::path::PathBuf;

/// Width of a report in a file, in columns. It is enough for every column of a table.
const FILE_WIDTH: usize = 160;

#[derive(Clone, Debug)]
pub struct TextReport {
    pub(super) title: String,
    pub(super) tables: Vec<Table>,
    /// Table with the figures of each run. Only the record shows it, while the text shows summaries (`tables`).
    pub(super) runs: Option<Table>,
    pub(super) remarks: Vec<String>,
    /// Names of the run directories, which are in the same directory as the report's record.
    pub(super) run_directories: Vec<String>,
    /// Text of the whole report without the conclusion, as it is written to a file.
    pub(crate) text: String,
    pub conclusion: Conclusion,
    /// File with the whole report, or `None` if no file has it.
    pub(crate) file: Option<PathBuf>,
}

impl TextReport {
    /// Makes a report, and adds a description of the host to its title.
    pub(crate) fn new(title: &str, tables: Vec<Table>, remarks: Vec<String>, conclusion: Conclusion) -> Self {
        let title = plain(&format!("{title} · {}", host_description()));
        Self::stored(title, tables, remarks, conclusion)
    }

    /// Makes the report of a benchmark outside the scenarios, with targets of its own. The result is FAIL if targets
    /// were `missed`, and otherwise PASS with the reason `pass`.
    pub fn of_targets(title: &str, tables: Vec<Table>, remarks: Vec<String>, missed: Vec<String>, pass: &str) -> Self {
        let conclusion = Conclusion::of(&Defects { missed, ..Defects::default() }, pass, true);
        Self::new(title, tables, remarks, conclusion)
    }

    /// Makes the report of a stored comparison. Its title already describes the host, so `title` is kept as it is.
    pub(super) fn stored(title: String, tables: Vec<Table>, remarks: Vec<String>, conclusion: Conclusion) -> Self {
        let (text, run_directories) = (String::new(), Vec::new());
        let mut report = Self { title, tables, runs: None, remarks, run_directories, text, conclusion, file: None };
        report.text = report.layout(FILE_WIDTH, |sentence| vec![sentence.to_owned()]);
        report
    }

    /// Adds the figures of each run, which the text of the report leaves out.
    pub(crate) fn with_runs(self, runs: Option<Table>) -> Self {
        Self { runs, ..self }
    }

    /// Adds the names of the run directories, so that the record lists them.
    pub(crate) fn with_run_directories(self, run_directories: Vec<String>) -> Self {
        Self { run_directories, ..self }
    }

    /// Formats the title, the tables and the remarks, but not the conclusion. `wrap` breaks sentences into lines.
    pub(super) fn layout(&self, width: usize, wrap: impl Fn(&str) -> Vec<String>) -> String {
        let mut lines = wrap(&self.title);
        lines.push(String::new());
        for table in self.tables.iter().filter(|table| !table.is_empty()) {
            lines.extend([table.terminal(width), String::new()]);
        }
        lines.extend(self.remarks.iter().flat_map(|remark| wrap(remark)));
        lines.join("\n")
    }

    #[cfg(test)]
    pub(crate) fn is_good(&self) -> bool {
        self.conclusion.outcome == mailrun_measurement::record::Outcome::Pass
    }
}

/// Describes the host for a report's title, such as `AMD EPYC, 2 cores, Linux 6.18.44, processors
/// kept awake`.
fn host_description() -> String {
    let host = host::facts(None);
    let cores = counted(u64::from(host.cores), "core");
    let awake = host.keep_awake.map(|state| format!(", {}", state.words())).unwrap_or_default();
    plain(&format!("{}, {cores}, Linux {}{awake}", host.cpu_model, host.kernel))
}
