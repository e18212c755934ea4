//! Writes a run record in the formats of CI systems, monitoring, spreadsheets and HDR tools.
//!
//! ```text
//! Record ─→ bounded (peer texts cut) ─→ figures (stages and errors, over SMTP and MADES alike)
//!        ─→ csv | junit | prometheus | hlog | github | action_benchmark | share
//! ```
//!
//! The output depends only on the record, so the same record always gives the same output. The record contains texts of
//! peers, which may be hostile, so each format escapes them in its own way.
mod action_benchmark;
mod bounded;
mod csv;
mod github;
mod hlog;
mod junit;
mod private_words;
mod prometheus;
#[cfg(test)]
mod properties;
mod share;

pub use csv::CsvTable;
pub use github::annotations;

use super::ending::TextStyle;
use crate::{ReportLength, histograms, markdown, page, render};
use action_benchmark::Direction;
use bounded::bounded;
use mailrun_measurement::record::Record;
use mailrun_text::metrics_text::Exposition;

const TEXT_WIDTH: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    Html,
    Text,
    Short,
    Hist,
    Markdown,
    Json,
    Csv(CsvTable),
    Junit,
    Prometheus,
    OpenMetrics,
    Hlog,
    Github,
    /// Rates, as input for `customBiggerIsBetter` of github-action-benchmark.
    ActionBenchmarkBigger,
    /// Latencies, as input for `customSmallerIsBetter` of github-action-benchmark.
    ActionBenchmarkSmaller,
    Share,
    ShareShort,
}

impl ExportFormat {
    /// Formats that users can choose by name, in the order of the documentation.
    pub const NAMED: [Self; 16] = [
        Self::Html,
        Self::Markdown,
        Self::Text,
        Self::Short,
        Self::Hist,
        Self::Json,
        Self::Csv(CsvTable::Series),
        Self::Junit,
        Self::Prometheus,
        Self::OpenMetrics,
        Self::Hlog,
        Self::Github,
        Self::ActionBenchmarkBigger,
        Self::ActionBenchmarkSmaller,
        Self::Share,
        Self::ShareShort,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Html => "html",
            Self::Text => "text",
            Self::Short => "short",
            Self::Hist => "hist",
            Self::Markdown => "md",
            Self::Json => "json",
            Self::Csv(_) => "csv",
            Self::Junit => "junit",
            Self::Prometheus => "prometheus",
            Self::OpenMetrics => "openmetrics",
            Self::Hlog => "hlog",
            Self::Github => "github",
            Self::ActionBenchmarkBigger => "action-benchmark-bigger",
            Self::ActionBenchmarkSmaller => "action-benchmark-smaller",
            Self::Share => "share",
            Self::ShareShort => "share-short",
        }
    }

    /// Returns the format with this name, or `None` if the name is unknown. Each CSV table has a name of its own, for
    /// example `csv:stages` for the table of stages.
    pub fn named(name: &str) -> Option<Self> {
        if let Some(table) = name.strip_prefix("csv:") {
            return CsvTable::named(table).map(Self::Csv);
        }
        Self::NAMED.into_iter().find(|format| format.name() == name)
    }

    pub fn file_extension(self) -> &'static str {
        match self {
            Self::Html => "html",
            Self::Text | Self::Short | Self::Hist | Self::ShareShort => "txt",
            Self::Markdown | Self::Github | Self::Share => "md",
            Self::Json => "json",
            Self::Csv(_) => "csv",
            Self::Junit => "xml",
            Self::Prometheus => "prom",
            Self::OpenMetrics => "om",
            Self::Hlog => "hlog",
            Self::ActionBenchmarkBigger => "bigger.json",
            Self::ActionBenchmarkSmaller => "smaller.json",
        }
    }

    pub fn takes_several_runs(self) -> bool {
        !matches!(self, Self::Html | Self::Json | Self::Prometheus | Self::OpenMetrics | Self::Hlog)
    }

    /// Returns a report about these runs in this format. A format for a single run, such as JSON, uses only the first
    /// run.
    pub fn render(self, records: &[Record]) -> String {
        match (self, records.first()) {
            (_, None) => return String::new(),
            (Self::Json, Some(record)) => return json(record),
            (Self::Html, Some(record)) => return page(record, None),
            _ => {}
        }
        let bounded: Vec<Record> = records.iter().map(bounded).collect();
        let one_after_another = |render: &dyn Fn(&Record) -> String| {
            bounded.iter().map(|record| render(record).trim_end().to_owned() + "\n").collect::<Vec<_>>().join("\n")
        };
        let single = |render: &dyn Fn(&Record) -> String| bounded.first().map(render).unwrap_or_default();
        match self {
            Self::Text => one_after_another(&|record| text(record, ReportLength::Full)),
            Self::Short => one_after_another(&|record| text(record, ReportLength::Short)),
            Self::Hist => one_after_another(&|record| histograms(record, TEXT_WIDTH)),
            Self::Markdown => one_after_another(&markdown),
            Self::Html | Self::Json => String::new(),
            Self::Csv(table) => csv::csv(&bounded, table),
            Self::Junit => junit::junit(&bounded),
            Self::Prometheus => single(&|record| prometheus::metrics(record, Exposition::Prometheus)),
            Self::OpenMetrics => single(&|record| prometheus::metrics(record, Exposition::OpenMetrics)),
            Self::Hlog => single(&hlog::hlog),
            Self::Github => one_after_another(&github::summary),
            Self::ActionBenchmarkBigger => action_benchmark::benchmarks(&bounded, Direction::BiggerIsBetter),
            Self::ActionBenchmarkSmaller => action_benchmark::benchmarks(&bounded, Direction::SmallerIsBetter),
            Self::Share => one_after_another(&share::share),
            Self::ShareShort => one_after_another(&share::share_short),
        }
    }
}

fn text(record: &Record, extent: ReportLength) -> String {
    render(record, extent, TEXT_WIDTH, TextStyle::Plain, None)
}

/// Writes the whole record as JSON. All texts stay as they are, because JSON can escape every character.
fn json(record: &Record) -> String {
    record.to_json().map(|text| text + "\n").unwrap_or_default()
}
