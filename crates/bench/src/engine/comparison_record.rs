//! The record of a comparison: its report with the figures of each run, as JSON. `mailrun report` shows the report
//! again from this record.
use super::conclusion::Conclusion;
use super::text_report::TextReport;
use anyhow::{Context, Result};
use mailrun_measurement::record::Outcome;
use mailrun_text::table::{Align, Table, markdown_text, plain};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};

pub(crate) const COMPARISON_FORMAT: &str = "mailrun-comparison/1";

pub(crate) const COMPARISON_FILE: &str = "comparison.json";

#[derive(Serialize, Deserialize)]
struct ComparisonRecord<'a> {
    format: Cow<'a, str>,
    version: Cow<'a, str>,
    title: Cow<'a, str>,
    tables: Vec<StoredTable>,
    /// Table with the figures of each run. It is absent if every run has written a record of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    runs: Option<StoredTable>,
    remarks: Cow<'a, [String]>,
    /// Names of the run directories, which are in the same directory as this record.
    #[serde(default)]
    run_directories: Cow<'a, [String]>,
    outcome: Outcome,
    why: Cow<'a, str>,
    #[serde(default)]
    interrupted: bool,
}

#[derive(Serialize, Deserialize)]
struct StoredTable {
    columns: Vec<StoredColumn>,
    /// Titles of the columns that are left out if the terminal is too narrow, the least important first.
    #[serde(default)]
    leave_out: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct StoredColumn {
    title: String,
    align: StoredAlign,
    cells: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase", remote = "Align")]
enum AlignForm {
    Left,
    Right,
    Wrapped,
}

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct StoredAlign(#[serde(with = "AlignForm")] Align);

impl StoredTable {
    fn of(table: &Table) -> Self {
        let columns = table.column_cells().into_iter().map(|column| StoredColumn {
            title: column.title.into_owned(),
            align: StoredAlign(column.align),
            cells: column.cells.into_iter().map(|(text, _)| text).collect(),
        });
        let leave_out = table.left_out().iter().map(|title| title.clone().into_owned()).collect();
        Self { columns: columns.collect(), leave_out }
    }

    /// Restores the table from its columns. If the record is damaged and a column lacks cells, these cells stay empty.
    fn table(self) -> Table {
        let rows = self.columns.iter().map(|column| column.cells.len()).max().unwrap_or(0);
        let titles = self.columns.iter().map(|column| (plain(&column.title), column.align.0));
        let leave_out: Vec<String> = self.leave_out.iter().map(|title| plain(title)).collect();
        let mut table = Table::new(titles).leave_out(&leave_out);
        for row in 0..rows {
            let cell = |column: &StoredColumn| column.cells.get(row).cloned().unwrap_or_default();
            table.row(self.columns.iter().map(cell).collect::<Vec<String>>());
        }
        table
    }
}

/// Returns the run directories that the comparison record in `directory` lists, or none if there is no such record.
pub(crate) fn run_directories(directory: &Path) -> Vec<PathBuf> {
    let json = fs::read(directory.join(COMPARISON_FILE)).unwrap_or_default();
    let names = TextReport::from_json(&json).map(|report| report.run_directories).unwrap_or_default();
    // A new run deletes all directories that this function returns. So skip paths that are not directly in `directory`.
    let is_beside = |name: &String| Path::new(name).components().eq([Component::Normal(OsStr::new(name))]);
    names.into_iter().filter(is_beside).map(|name| directory.join(name)).collect()
}

impl TextReport {
    /// Returns the comparison's record as JSON.
    ///
    /// # Errors
    /// Returns an error if the report cannot be written as JSON.
    pub fn to_json(&self) -> Result<String> {
        let record = ComparisonRecord {
            format: COMPARISON_FORMAT.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            title: self.title.as_str().into(),
            tables: self.tables.iter().map(StoredTable::of).collect(),
            runs: self.runs.as_ref().map(StoredTable::of),
            remarks: self.remarks.as_slice().into(),
            run_directories: self.run_directories.as_slice().into(),
            outcome: self.conclusion.outcome,
            why: self.conclusion.why().into(),
            interrupted: self.conclusion.is_interrupted,
        };
        Ok(serde_json::to_string_pretty(&record).context("a comparison is always JSON")? + "\n")
    }

    /// Returns the figures of each run as a table for a terminal of `width` columns, if the report has them.
    pub fn runs(&self, width: usize) -> Option<String> {
        self.runs.as_ref().map(|runs| runs.terminal(width))
    }

    pub(crate) fn from_json(json: &[u8]) -> serde_json::Result<Self> {
        let record: ComparisonRecord<'_> = serde_json::from_slice(json)?;
        let mut conclusion = Conclusion::stored(record.outcome, plain(&record.why));
        conclusion.is_interrupted = record.interrupted;
        let tables = record.tables.into_iter().map(StoredTable::table).collect();
        let remarks = record.remarks.iter().map(|remark| plain(remark)).collect();
        let report = Self::stored(plain(&record.title), tables, remarks, conclusion);
        let report = report.with_run_directories(record.run_directories.into_owned());
        Ok(report.with_runs(record.runs.map(StoredTable::table)))
    }

    pub fn markdown(&self) -> String {
        let tables = self.tables.iter().chain(&self.runs).filter(|table| !table.is_empty()).map(Table::markdown);
        let remarks = self.remarks.iter().map(|remark| format!("- {}", markdown_text(remark)));
        let remarks = remarks.collect::<Vec<_>>().join("\n");
        let parts = std::iter::once(format!("## {}", markdown_text(&self.title)))
            .chain(tables)
            .chain(Some(remarks).filter(|text| !text.is_empty()))
            .chain([format!("**{}**", markdown_text(&self.conclusion.line()))]);
        parts.collect::<Vec<_>>().join("\n\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::super::conclusion::Defects;
    use super::*;
    use mailrun_report::{ReportLength, TextStyle};
    use proptest::prelude::*;

    fn report() -> TextReport {
        let mut table = Table::new([("tool", Align::Left), ("msg/s", Align::Right)]).leave_out(&["msg/s"]);
        table.row(vec!["a|b", "1,000"]);
        let mut runs = Table::new([("run", Align::Left), ("round", Align::Right), ("msg/s", Align::Right)]);
        runs.row(vec!["a|b", "1", "999.5"]);
        let conclusion = Conclusion::of(&Defects::default(), "1 run", false);
        TextReport::new("x: what", vec![table], vec!["A remark.".to_owned()], conclusion).with_runs(Some(runs))
    }

    fn text(report: &TextReport) -> String {
        report.render(None, ReportLength::Full, TextStyle::Plain)
    }

    #[test]
    fn a_stored_report_is_the_same_and_has_the_figures_of_each_run() {
        let report = report();
        let read = TextReport::from_json(report.to_json().unwrap().as_bytes()).unwrap();
        assert_eq!(text(&read), text(&report));
        assert!(read.runs(80).unwrap().ends_with(" a|b      1  999.5"), "{:?}", read.runs(80));
        assert!(!text(&report).contains("999.5"), "the screen has the medians alone: {}", text(&report));
        assert_eq!(read.to_json().unwrap(), report.to_json().unwrap());
        let markdown = read.markdown();
        assert!(markdown.starts_with("## x: what") && markdown.contains("\n| a\\|b |"), "{markdown}");
        assert!(markdown.ends_with("\n\n**PASS 1 run**\n"), "{markdown}");
    }

    #[test]
    fn control_characters_of_a_record_do_not_reach_the_terminal() {
        let json = report().to_json().unwrap();
        let hostile =
            json.replace("x: what", "x\\u001b[2J").replace("A remark.", "\\u202e").replace("msg/s", "\\u0007");
        let read = TextReport::from_json(hostile.as_bytes()).unwrap();
        let shown = text(&read) + &read.markdown();
        assert!(!shown.contains(['\u{1b}', '\u{202e}', '\u{7}']), "{shown:?}");
    }

    proptest! {
        #[test]
        fn a_damaged_record_is_an_error_or_a_report(at in 0_usize..2000, byte: u8) {
            let mut json = report().to_json().unwrap().into_bytes();
            let at = at % json.len();
            json[at] = byte;
            for json in [&json[..], &json[..at]] {
                if let Ok(read) = TextReport::from_json(json) {
                    let _ = text(&read) + &read.markdown();
                }
            }
        }
    }
}
