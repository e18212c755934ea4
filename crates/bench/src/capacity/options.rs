//! What a search for a capacity does.
use crate::BenchOptions;
use crate::mades::MadesBenchOptions;
use mailrun_capacity::{PlanningInputs, SearchSettings};
use mailrun_measurement::record::Arrival;
use mailrun_measurement::threshold::LossGoal;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct CapacityOptions {
    /// Load and target. Each trial sets its own rate, duration and directory.
    pub bench: BenchOptions,
    pub course: SearchCourse,
}

#[derive(Clone, Debug)]
pub struct MadesCapacityOptions {
    /// Load and target. Each trial sets its own rate, duration and directory.
    pub bench: MadesBenchOptions,
    pub course: SearchCourse,
}

/// Options of a search that apply to mail servers and MADES endpoints alike.
#[derive(Clone, Debug)]
pub struct SearchCourse {
    pub settings: SearchSettings,
    pub goals: Vec<LossGoal>,
    /// Duration of each trial of the confirmation. `None` skips the confirmation.
    pub confirm: Option<Duration>,
    pub arrival: Arrival,
    /// Seed of the first trial, and of the order in which the confirmation runs its loads.
    pub seed: u64,
    /// Demand for which the report plans servers. The search fills in its `capacity_per_s`.
    pub planning: PlanningInputs,
    /// Command line that the user typed, for the report.
    pub command: Vec<String>,
}
