//! Statistics of comparisons: is B faster than A, by how much, and is that more than this host's noise?
//!
//! If A and B run in turn, one pair in each round, [`compare_rounds`] compares the ratios of the pairs. If the runs
//! were stored at different times, [`compare_runs`] compares every run of A with every run of B.
//!
//! ```
//! use mailrun_compare::{CompareSettings, ComparedMetric, Gain, RoundRatios, compare_rounds};
//!
//! let pairs: Vec<(f64, f64)> = (0..20).map(|round| (1000.0 + f64::from(round), 1100.0 + f64::from(round))).collect();
//! let rate = ComparedMetric { name: "rate".to_owned(), gain: Gain::Higher };
//! let ratios = RoundRatios::new(rate, &pairs).unwrap();
//! let findings = compare_rounds(&[ratios], &CompareSettings::default());
//! assert!((findings[0].ratio - 1.1).abs() < 0.01 && findings[0].is_better());
//! ```
//!
//! `docs/compare.md` of mailrun gives the reasons for each step, with evidence from 280 runs of one program.
#![allow(missing_docs)] // only crates that other programs embed document every public item

mod exact_row;
mod finding;
mod flip_test;
mod label_test;
mod metric;
mod rank_sum;
mod ranks;
mod round_comparison;
mod round_schedule;
mod rounds_page;
mod run_figures;
mod selection;
mod signed_rank;
mod stored_runs;

pub use exact_row::{ExactChange, ExactRow};
pub use finding::{CompareSettings, LookPlan, MetricFinding, MetricVerdict};
pub use metric::{ComparedMetric, Gain, RatioError, RoundRatios, RunValues};
pub use ranks::middle;
pub use round_comparison::{
    ContestantComparison, ContestantRow, PairedMetric, RoundComparison, RoundCourse, RoundLoad, RoundSamples,
    compare_rounds,
};
pub use round_schedule::{RoundPlan, RoundSchedule, RoundTurning};
pub use run_figures::{NamedRun, RunFigure, defect, difference, figures, side_facts};
pub use selection::{RunSide, SideLines};
pub use stored_runs::{ComparisonOutcome, MetricRow, StoredComparison, compare_runs, compare_stored};
