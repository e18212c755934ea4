use crate::trial::{SearchTrial, TrialOutcome};
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GoalFinding {
    /// The search found a lower and an upper bound of the capacity, which are as close to each other as requested.
    Found,
    /// The highest rate of the search meets the goal, so the capacity may be above the range that was searched.
    HighestRateHeld,
    /// At rates above the lower bound, the generator, the sink or the host could not keep up, so the server may be
    /// faster.
    GeneratorLimit,
    /// The lowest rate of the search misses the goal, so the capacity is below the range that was searched.
    LowestRateMissed,
    /// Not even the lowest rate could be offered, so the search says nothing about the server.
    Void,
    /// The search ended before this goal's bounds were close enough.
    Unfinished,
}

impl GoalFinding {
    /// Returns true if the search was completed and found a rate that meets the goal.
    pub fn has_capacity(self) -> bool {
        matches!(self, Self::Found | Self::HighestRateHeld | Self::GeneratorLimit)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GoalOutcome {
    pub finding: GoalFinding,
    /// Highest load that met the goal and is below `upper_per_s` (the relevant lower bound of RFC 9971).
    pub lower_per_s: Option<f64>,
    /// Relevant upper bound of RFC 9971: the smallest load that misses the goal.
    pub upper_per_s: Option<f64>,
    /// Conditional throughput of RFC 9971: the rate that was reached at the lower bound.
    pub throughput_per_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchEnding {
    Complete,
    TimeLimit,
    /// Mail was lost or changed in a trial. A server must not do this at any rate, so the search ended.
    MailLost,
    /// Not even the lowest rate could be offered, so at least one goal has no result.
    Void,
    Stopped,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TrialEntry {
    pub trial: SearchTrial,
    pub outcome: TrialOutcome,
    /// Says for each goal whether the trial met it. Empty for trials that are not judged, such as void trials and the
    /// first trial, in which each session sends as fast as it can.
    pub met: Vec<bool>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SearchResult {
    pub ending: SearchEnding,
    pub goals: Vec<GoalOutcome>,
    /// Rate that was reached when each session sent as fast as it could. `None` if the search was a bisection, which
    /// has no such trial.
    pub flat_out_per_s: Option<f64>,
    pub trials: Vec<TrialEntry>,
    /// Total duration of all trials in seconds, including the waits for the last deliveries.
    pub spent_s: f64,
}

impl SearchResult {
    /// Returns the highest rate that meets every goal, or `None` if there is a goal that no tried rate meets.
    pub fn capacity_per_s(&self) -> Option<f64> {
        let rates: Option<Vec<f64>> = self.goals.iter().map(|goal| goal.throughput_per_s).collect();
        rates?.into_iter().reduce(f64::min)
    }

    pub fn has_capacity(&self) -> bool {
        self.goals.iter().all(|goal| goal.finding.has_capacity())
    }
}
