//! The result of a search: bounds and throughput of each goal, and all trials.
use crate::trial::{SearchTrial, TrialOutcome};
use serde::Serialize;

/// Finding for a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GoalFinding {
    /// Both bounds, as near to each other as asked for.
    Found,
    /// The highest rate of the search meets the goal.
    HighestRateHeld,
    /// The generator or the sink is the limit above the lower bound.
    GeneratorLimit,
    /// The lowest rate of the search misses the goal.
    LowestRateMissed,
    /// Not even the lowest rate could be offered.
    Void,
    /// The search ended before.
    Unfinished,
}

impl GoalFinding {
    /// Reports whether there is a rate that meets the goal, at the end of a search that came to its end.
    pub fn has_capacity(self) -> bool {
        matches!(self, Self::Found | Self::HighestRateHeld | Self::GeneratorLimit)
    }
}

/// Result for a goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GoalOutcome {
    /// The finding.
    pub finding: GoalFinding,
    /// The relevant lower bound: the largest load that meets the goal below `upper_per_s`.
    pub lower_per_s: Option<f64>,
    /// The relevant upper bound: the smallest load that misses the goal.
    pub upper_per_s: Option<f64>,
    /// The conditional throughput: what got through at the lower bound.
    pub throughput_per_s: Option<f64>,
}

/// Reason why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchEnding {
    /// Every goal has its finding.
    Complete,
    /// Its time is over.
    TimeLimit,
    /// Mail was lost or came changed.
    MailLost,
    /// Not even the lowest rate could be offered.
    Void,
    /// The user stopped it.
    Stopped,
}

/// A trial of the search.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialEntry {
    /// The trial as it was asked for.
    pub trial: SearchTrial,
    /// The outcome.
    pub outcome: TrialOutcome,
    /// Tells for each goal whether the trial met it; empty if it judges nothing.
    pub met: Vec<bool>,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchResult {
    /// Reason of the end.
    pub ending: SearchEnding,
    /// One for each goal, in their order.
    pub goals: Vec<GoalOutcome>,
    /// Rate that got through flat out.
    pub flat_out_per_s: Option<f64>,
    /// All trials in their order.
    pub trials: Vec<TrialEntry>,
    /// Seconds of all trials, waits included.
    pub spent_s: f64,
}

impl SearchResult {
    /// The capacity: the rate that meets every goal. `None` if there is none for one of them.
    pub fn capacity_per_s(&self) -> Option<f64> {
        let rates: Option<Vec<f64>> = self.goals.iter().map(|goal| goal.throughput_per_s).collect();
        rates?.into_iter().reduce(f64::min)
    }

    /// Reports whether every goal has a rate that meets it.
    pub fn has_capacity(&self) -> bool {
        self.goals.iter().all(|goal| goal.finding.has_capacity())
    }
}
