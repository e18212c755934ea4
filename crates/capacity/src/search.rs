//! A state machine that searches for the capacity. It requests trials, the caller runs them and reports their outcomes,
//! and at the end the search returns a result.
use crate::goal_search::{GoalSearch, SearchFacts};
use crate::history::{LoadBounds, TrialHistory};
use crate::result::{GoalFinding, SearchEnding, SearchResult, TrialEntry};
use crate::settings::{CapacityGoal, SearchError, SearchSettings, SearchStart};
use crate::trial::{SearchTrial, TrialFigures, TrialLoad, TrialOutcome};

/// If a confirmation trial misses a goal, the rate that the server delivered in this trial and all higher rates count
/// as bad. If the server delivered less than 80 % of the trial's load, only rates from 80 % of the load upwards count
/// as bad.
const MAX_REFUTED: f64 = 0.8;

#[derive(Clone, Debug)]
pub struct CapacitySearch {
    goals: Vec<CapacityGoal>,
    facts: SearchFacts,
    searches: Vec<GoalSearch>,
    trials: Vec<TrialEntry>,
    is_started: bool,
    spent_s: f64,
    ending: Option<SearchEnding>,
}

#[derive(Debug)]
pub enum SearchStep {
    /// The caller must run the trial and report its outcome.
    Measure(SearchTrial),
    Finished(SearchResult),
}

impl CapacitySearch {
    /// # Errors
    /// Fails if a setting is out of range, if settings contradict each other, or if there is no goal.
    pub fn new(settings: SearchSettings, goals: Vec<CapacityGoal>) -> Result<Self, SearchError> {
        settings.check()?;
        if goals.is_empty() {
            return Err(SearchError::NoGoal);
        }
        let hint = match settings.start {
            SearchStart::FlatOut => LoadBounds::default(),
            SearchStart::Bisection => {
                LoadBounds { lower: Some(settings.min_rate_per_s), upper: Some(settings.max_rate_per_s) }
            }
        };
        Ok(Self {
            searches: (0..goals.len()).map(|goal| GoalSearch::new(goal, hint)).collect(),
            is_started: settings.start == SearchStart::Bisection,
            facts: SearchFacts {
                levels: settings.levels(),
                settings,
                history: TrialHistory::default(),
                ceiling: None,
                flat_out_per_s: None,
            },
            goals,
            trials: Vec::new(),
            spent_s: 0.0,
            ending: None,
        })
    }

    pub fn next_step(&mut self) -> SearchStep {
        let is_over = self.spent_s >= self.facts.settings.time_limit_s
            || self.trials.len() as u64 >= self.facts.settings.max_trials();
        // Call `wanted_load` even at the end, because it updates each goal's finding with the latest trials.
        let wanted = self.wanted_load();
        match (self.ending, wanted) {
            (Some(ending), _) => SearchStep::Finished(self.result(ending)),
            (None, None) => {
                let ending = self.natural_ending();
                SearchStep::Finished(self.result(ending))
            }
            (None, Some(_)) if is_over => SearchStep::Finished(self.result(SearchEnding::TimeLimit)),
            (None, Some(load)) => {
                let duration_s = match load {
                    TrialLoad::FlatOut => self.facts.settings.trial_s,
                    TrialLoad::RatePerS(rate) => self.facts.settings.trial_length_s(rate),
                };
                SearchStep::Measure(SearchTrial { load, duration_s })
            }
        }
    }

    /// Runs trials until the search ends. If a confirmation trial then misses a goal, another call of this function
    /// continues the search.
    ///
    /// # Errors
    /// Returns the first error of `carry_out`, the caller's function that runs a trial.
    pub fn run<E>(
        &mut self,
        mut carry_out: impl FnMut(SearchTrial) -> Result<TrialOutcome, E>,
    ) -> Result<SearchResult, E> {
        loop {
            let before = self.searches.clone();
            let result = match self.next_step() {
                SearchStep::Finished(result) => Ok(result),
                SearchStep::Measure(trial) => match carry_out(trial) {
                    Ok(outcome) => {
                        self.report(trial, outcome);
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            // The last `next_step` may have moved the search for a goal to a higher precision. Undo that, because the
            // next call of `run` must continue with the lower precision if a confirmation trial misses the goal.
            self.searches = before;
            return result;
        }
    }

    /// Returns the result as if the search ended now.
    pub fn so_far(&self) -> SearchResult {
        self.result(SearchEnding::Stopped)
    }

    /// Adds a confirmation trial, which outweighs all trials of the search. If the confirmation trial misses a goal,
    /// the search for this goal continues below the trial's load. Returns true if the trial meets every goal.
    pub fn take_confirmation(&mut self, trial: SearchTrial, figures: &TrialFigures) -> bool {
        let TrialLoad::RatePerS(rate) = trial.load else { return true };
        let met = self.facts.history.add(rate, trial.duration_s, figures, &self.goals);
        // For each goal that the trial missed, mark all loads from the delivered rate upwards as bad, because the
        // server could deliver no more than that.
        let delivered_per_s = Some(figures.delivered_per_s).filter(|delivered| delivered.is_finite()).unwrap_or(rate);
        self.facts.history.refute(delivered_per_s.clamp(rate * MAX_REFUTED, rate), &met);
        met.iter().all(|met| *met)
    }

    /// Returns the load to try next. The search for each goal proposes a load and a level of precision. Of the
    /// proposals with the lowest precision, this function takes the smallest load, because a trial at this load narrows
    /// the search for every goal.
    fn wanted_load(&mut self) -> Option<TrialLoad> {
        if !self.is_started {
            return Some(TrialLoad::FlatOut);
        }
        let candidates = self.searches.iter_mut().filter_map(|search| search.advance(&self.facts));
        let next = candidates.min_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
        next.map(|(_, rate)| TrialLoad::RatePerS(rate))
    }

    pub fn report(&mut self, trial: SearchTrial, outcome: TrialOutcome) {
        let spent_s = match &outcome {
            TrialOutcome::Measured(figures) => figures.spent_s,
            TrialOutcome::Void { spent_s, .. } => *spent_s,
            TrialOutcome::MailLost | TrialOutcome::Stopped => 0.0,
        };
        // If the time that the trial took is unknown (NaN), `f64::max` returns the planned duration.
        self.spent_s += trial.duration_s.max(spent_s).min(self.facts.settings.time_limit_s);
        let met = match (&outcome, trial.load) {
            (TrialOutcome::MailLost, _) => self.end(SearchEnding::MailLost),
            (TrialOutcome::Stopped, _) => self.end(SearchEnding::Stopped),
            (TrialOutcome::Measured(TrialFigures { delivered_per_s, .. }), TrialLoad::FlatOut)
            | (TrialOutcome::Void { delivered_per_s, .. }, TrialLoad::FlatOut) => self.begin(*delivered_per_s),
            (TrialOutcome::Measured(figures), TrialLoad::RatePerS(rate)) => {
                self.facts.history.add(rate, trial.duration_s, figures, &self.goals)
            }
            (TrialOutcome::Void { .. }, TrialLoad::RatePerS(rate)) => {
                if self.facts.history.add_void(rate) {
                    let ceiling = self.facts.ceiling.map_or(rate, |ceiling| ceiling.min(rate));
                    self.facts.ceiling = Some(ceiling);
                }
                Vec::new()
            }
        };
        self.trials.push(TrialEntry { trial, outcome, met });
    }

    /// Takes the result of the first trial, in which each session sent as fast as it could. The search then tries the
    /// rate that the server delivered in this trial or, if nothing was delivered, the lowest rate of the settings.
    fn begin(&mut self, delivered_per_s: f64) -> Vec<bool> {
        self.is_started = true;
        self.facts.flat_out_per_s = Some(delivered_per_s).filter(|rate| rate.is_finite() && *rate >= 0.0);
        Vec::new()
    }

    fn end(&mut self, ending: SearchEnding) -> Vec<bool> {
        self.ending = Some(ending);
        Vec::new()
    }

    /// Returns the ending for the case that no goal needs more trials. It is `Void` if not even the lowest rate could
    /// be offered, else `Complete`.
    fn natural_ending(&self) -> SearchEnding {
        let is_void = |goal: &crate::result::GoalOutcome| goal.finding == GoalFinding::Void;
        if self.result(SearchEnding::Complete).goals.iter().any(is_void) {
            SearchEnding::Void
        } else {
            SearchEnding::Complete
        }
    }

    fn result(&self, ending: SearchEnding) -> SearchResult {
        SearchResult {
            ending,
            goals: self.searches.iter().map(|search| search.outcome(&self.facts)).collect(),
            flat_out_per_s: self.facts.flat_out_per_s,
            trials: self.trials.clone(),
            spent_s: self.spent_s,
        }
    }
}
