//! Run records on disk: those of runs that were made before, by anybody.
//!
//! ```text
//! RUN/run.json, or a run.json ─┐
//! DIR/*/run.json               ┴→ read ─→ Record, or what is wrong with it in a line
//! mailrun-baselines/NAME/*/run.json ←→ baselines
//! ```
mod baselines;
mod reading;

pub use baselines::{BaselineDirectory, BaselineName, ExistingBaseline};
pub use reading::{StoredRun, newest_run, read_run, read_runs, run_file_stem};
