use crate::trial::{SearchTrial, TrialOutcome};
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GoalFinding {
    /// Both bounds, as close to each other as requested.
    Found,
    /// The highest rate of the search meets the goal.
    HighestRateHeld,
    /// Generator or sink is the bottleneck above the lower bound.
    GeneratorLimit,
    /// The lowest rate of the search misses the goal.
    LowestRateMissed,
    /// Not even the lowest rate could be offered.
    Void,
    /// The search ended earlier.
    Unfinished,
}

impl GoalFinding {
    /// Reports whether a completed search found a rate that meets the goal.
    pub fn has_capacity(self) -> bool {
        matches!(self, Self::Found | Self::HighestRateHeld | Self::GeneratorLimit)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GoalOutcome {
    pub finding: GoalFinding,
    /// The relevant lower bound: the largest load below `upper_per_s` that meets the goal.
    pub lower_per_s: Option<f64>,
    /// The relevant upper bound: the smallest load that misses the goal.
    pub upper_per_s: Option<f64>,
    /// The conditional throughput: the rate reached at the lower bound.
    pub throughput_per_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchEnding {
    Complete,
    TimeLimit,
    /// Mail was lost or changed.
    MailLost,
    /// Not even the lowest rate could be offered.
    Void,
    Stopped,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TrialEntry {
    pub trial: SearchTrial,
    pub outcome: TrialOutcome,
    /// Whether the trial met each goal. Empty if it judges nothing.
    pub met: Vec<bool>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SearchResult {
    pub ending: SearchEnding,
    pub goals: Vec<GoalOutcome>,
    /// Rate reached flat out.
    pub flat_out_per_s: Option<f64>,
    pub trials: Vec<TrialEntry>,
    /// Seconds of all trials, including waits.
    pub spent_s: f64,
}

impl SearchResult {
    /// The rate that meets every goal, or `None` if a goal has none.
    pub fn capacity_per_s(&self) -> Option<f64> {
        let rates: Option<Vec<f64>> = self.goals.iter().map(|goal| goal.throughput_per_s).collect();
        rates?.into_iter().reduce(f64::min)
    }

    pub fn has_capacity(&self) -> bool {
        self.goals.iter().all(|goal| goal.finding.has_capacity())
    }
}
