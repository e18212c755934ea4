//! Reads the records that earlier runs wrote to disk, and stores copies of them as baselines.
//!
//! ```text
//! RUN/run.json, or a run.json ─┐
//! DIR/*/run.json               ┼→ reading ─→ Record, or an error of one line ─→ audits: the last audit of a server
//! DIR/comparison.json          ┘             TextReport
//! mailrun-baselines/NAME/*/run.json ←→ baselines
//! ```
mod audits;
mod baselines;
mod reading;

pub(crate) use audits::{description as audit_description, last_audit, outcome as audit_outcome};
pub use baselines::{BaselineDirectory, BaselineName, ExistingBaseline};
pub use reading::{StoredReport, StoredRun, newest_run, read_report, read_run, read_runs, run_file_stem};
