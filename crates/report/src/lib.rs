//! Turns run records into the reports that people read, and into formats of other programs.
//!
//! ```text
//! Record ─→ headline   outcome, counts, rate                   ┐
//!        ├→ sections   stages, phases, seconds, ledger, hosts ┼→ terminal (--report full) | markdown (report.md)
//!        ├→ short      the same in 23 lines                   ┴→ terminal (--report short)
//!        ├→ histogram  latencies as bars                     ─→ report --format hist
//!        ├→ html       the same with curves                   ─→ report.html
//!        └→ exports    formats of other programs: CSV, JUnit, Prometheus, …
//! ```
//!
//! `headline` and `sections` decide what a report says, and `terminal` and `markdown` only lay it out. A section
//! without figures is left out, so the report of a sink alone, for example, is shorter.
#![allow(missing_docs)] // only crates that other programs embed document every public item

mod audit;
pub mod capacity;
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
pub mod comparison;
pub mod core_capacity;
mod disturbances;
mod ending;
pub mod exports;
mod fates;
mod figures;
mod freshness;
mod headline;
mod histogram;
mod html;
mod mades;
mod markdown;
mod parties;
pub mod relay;
mod seconds;
mod sections;
mod server;
pub mod short;
mod stages;
mod terminal;
mod workload;

#[cfg(any(test, feature = "sample"))]
pub mod sample;
#[cfg(any(test, feature = "sample"))]
pub mod sample_capacity;
#[cfg(any(test, feature = "sample"))]
pub mod sample_comparison;
#[cfg(any(test, feature = "sample"))]
mod sample_load;
#[cfg(any(test, feature = "sample"))]
pub mod sample_runs;

pub use ending::{TextStyle, outcome_word};
pub use figures::final_stage;
pub use histogram::histograms;
pub use html::{capacity_page, comparison_page, page};
pub use markdown::markdown;
#[cfg(test)]
pub(crate) use terminal::terminal;
pub use workload::{load_in_short, quoted};

use mailrun_measurement::record::Record;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportLength {
    Verdict,
    Short,
    Full,
}

/// Returns the report for a terminal or file that is `width` columns wide. `details` is the path of the complete
/// report, which the short one mentions.
pub fn render(record: &Record, extent: ReportLength, width: usize, style: TextStyle, details: Option<&str>) -> String {
    match extent {
        ReportLength::Verdict => ending::verdict_alone(record, style),
        ReportLength::Short => short::short(record, width, style, details),
        ReportLength::Full => terminal::full(record, width, style, details),
    }
}
