//! Runs the contestants of a comparison in rounds, and writes the tables of the result.
//!
//! ```text
//! cases × rounds ─→ runner ───────────→ spread ───────────→ report ──→ text_report ─→ screen
//!                   one run at a time,  median, both ends,  tables,    all of it      what fits
//!                   by a Comparison     ratio of a round    faults
//! ```
//! The live comparison in the module `rounds` also uses `runner`, but has a time limit and a report of its own.
//!
//! A scenario implements `Comparison`, which says how one run of one case is made and measured. A
//! run is either one program, started as a `TimedChild`, or a complete run of the bench.
mod comparison_record;
mod conclusion;
mod ratio_verdict;
mod report;
mod run_flaws;
mod runner;
mod screen;
mod spread;
mod text_report;
mod timed;

pub(super) use comparison_record::{COMPARISON_FILE, COMPARISON_FORMAT, run_directories};
pub use conclusion::Conclusion;
pub(super) use conclusion::Defects;
pub(super) use ratio_verdict::{RatioColumn, RatioVerdict};
pub(super) use report::{
    RATIO_NOTE, RatioPair, ReportParts, ShownFigures, TableColumn, ratio_table, rounds_text, runs_table, table,
};
pub(super) use run_flaws::{BenchFigures, RunFlaws, excused_units, named_defects, run_remarks, unexcused_faults};
pub use runner::RoundOrder;
pub(super) use runner::{
    ComparedRun, Comparison, ComparisonResults, Contestant, NextRun, RoundBudget, RunPlan, RunTurn, RunTurns, miscount,
    run_all, run_rounds,
};
pub(super) use spread::{MISSING, MedianRange, bytes, shown, whole};
pub use text_report::TextReport;
pub(super) use timed::{Costs, TimedChild};
