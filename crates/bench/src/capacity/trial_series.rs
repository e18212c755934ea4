//! The trials of a search, as the search orders them and as each kind of bench carries them out.
use super::judgement::TrialSubject;
use anyhow::Result;
use mailrun_capacity::SearchTrial;
use mailrun_journey::record::{Arrival, Record};
use std::path::Path;

pub(super) struct TrialOrder<'a> {
    pub(super) trial: SearchTrial,
    pub(super) name: &'a str,
    /// Name in the progress line.
    pub(super) title: String,
    pub(super) directory: &'a Path,
    /// Arrivals where a rate is asked for.
    pub(super) arrival: Arrival,
    pub(super) seed: u64,
    pub(super) is_first: bool,
}

/// A kind of bench that carries out trials one after the other.
pub(super) trait TrialSeries {
    /// Runs a trial; its record, or `None` if it was interrupted before there was any.
    ///
    /// # Errors
    /// If it could not run, or its files cannot be written.
    fn run(&mut self, order: TrialOrder<'_>) -> Result<Option<Record>>;

    /// Target of the load.
    fn subject(&self) -> TrialSubject;

    /// Ends the series; gives remarks on it.
    ///
    /// # Errors
    /// If what runs does not stop.
    fn finish(&mut self) -> Result<Vec<String>>;
}
