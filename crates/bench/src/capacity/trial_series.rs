//! The interface between the search, which orders trials, and the benches, which carry them out.
use super::judgement::TrialSubject;
use anyhow::Result;
use mailrun_capacity::SearchTrial;
use mailrun_measurement::record::{Arrival, Record};
use std::path::Path;

pub(super) struct TrialOrder<'a> {
    pub(super) trial: SearchTrial,
    pub(super) name: &'a str,
    /// Text for the progress line.
    pub(super) title: String,
    pub(super) directory: &'a Path,
    /// Arrival pattern of trials with a rate. A trial without a rate runs flat out and ignores it.
    pub(super) arrival: Arrival,
    pub(super) seed: u64,
    pub(super) is_first: bool,
}

/// Kind of bench that carries out the trials of a search, one after the other.
pub(super) trait TrialSeries {
    /// Runs a trial and returns its record.
    ///
    /// # Errors
    /// If the trial cannot run, or if its files cannot be written. The error is `Interrupted` if
    /// the user interrupted the trial before it had a record.
    fn run(&mut self, order: TrialOrder<'_>) -> Result<Record>;

    fn subject(&self) -> TrialSubject;

    /// Ends the series, and returns remarks on it for the report.
    ///
    /// # Errors
    /// If a relay that still runs does not stop.
    fn finish(&mut self) -> Result<Vec<String>>;
}
