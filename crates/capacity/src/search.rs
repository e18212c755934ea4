//! The search as a state machine by value: it asks for a trial, is told the outcome, and ends with a result.
use crate::goal_search::{GoalSearch, SearchView};
use crate::history::{LoadBounds, TrialHistory};
use crate::result::{GoalFinding, SearchEnding, SearchResult, TrialEntry};
use crate::settings::{CapacityGoal, SearchError, SearchLevel, SearchSettings, SearchStart};
use crate::trial::{SearchTrial, TrialFigures, TrialLoad, TrialOutcome};

/// A search that waits for nothing.
#[derive(Clone, Debug)]
pub struct CapacitySearch {
    settings: SearchSettings,
    levels: Vec<SearchLevel>,
    goals: Vec<CapacityGoal>,
    searches: Vec<GoalSearch>,
    history: TrialHistory,
    trials: Vec<TrialEntry>,
    is_started: bool,
    ceiling: Option<f64>,
    flat_out_per_s: Option<f64>,
    spent_s: f64,
    ending: Option<SearchEnding>,
}

/// The next step of a search.
#[derive(Debug)]
pub enum SearchStep {
    /// A trial is needed.
    Measure(PendingTrial),
    /// The search is over.
    Finished(SearchResult),
}

/// A search that waits for the outcome of its trial.
#[derive(Clone, Debug)]
pub struct PendingTrial {
    search: CapacitySearch,
    trial: SearchTrial,
}

impl PendingTrial {
    /// The trial to carry out.
    pub fn trial(&self) -> SearchTrial {
        self.trial
    }

    /// The result as far as it is known.
    pub fn so_far(&self) -> SearchResult {
        self.search.result(SearchEnding::Stopped)
    }

    /// Takes the outcome.
    pub fn report(self, outcome: TrialOutcome) -> CapacitySearch {
        let mut search = self.search;
        search.take(self.trial, outcome);
        search
    }
}

impl CapacitySearch {
    /// Begins a search.
    ///
    /// # Errors
    ///
    /// If the settings contradict each other, or there is no goal.
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
            levels: settings.levels(),
            searches: (0..goals.len()).map(|goal| GoalSearch::new(goal, hint)).collect(),
            is_started: settings.start == SearchStart::Bisection,
            settings,
            goals,
            history: TrialHistory::default(),
            trials: Vec::new(),
            ceiling: None,
            flat_out_per_s: None,
            spent_s: 0.0,
            ending: None,
        })
    }

    /// Takes the next step.
    pub fn next_step(mut self) -> SearchStep {
        let is_over =
            self.spent_s >= self.settings.time_limit_s || self.trials.len() as u64 >= self.settings.max_trials();
        // Also at the end: so each goal's finding is that of all trials.
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
                    TrialLoad::FlatOut => self.settings.trial_s,
                    TrialLoad::RatePerS(rate) => self.settings.trial_length_s(rate),
                };
                SearchStep::Measure(PendingTrial { trial: SearchTrial { load, duration_s }, search: self })
            }
        }
    }

    /// The load that the goals want next: the coarsest level first, in it the smallest load, which every goal learns from.
    fn wanted_load(&mut self) -> Option<TrialLoad> {
        if !self.is_started {
            return Some(TrialLoad::FlatOut);
        }
        let view = SearchView {
            settings: &self.settings,
            levels: &self.levels,
            history: &self.history,
            ceiling: self.ceiling,
            estimate: self.flat_out_per_s,
        };
        let wishes = self.searches.iter_mut().filter_map(|search| search.advance(&view));
        let next = wishes.min_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
        next.map(|(_, rate)| TrialLoad::RatePerS(rate))
    }

    fn take(&mut self, trial: SearchTrial, outcome: TrialOutcome) {
        let spent_s = match &outcome {
            TrialOutcome::Measured(figures) => figures.spent_s,
            TrialOutcome::Void { spent_s, .. } => *spent_s,
            TrialOutcome::MailLost | TrialOutcome::Stopped => 0.0,
        };
        // `max` takes the length of the trial for a time that is no number.
        self.spent_s += trial.duration_s.max(spent_s.min(self.settings.time_limit_s));
        let met = match (&outcome, trial.load) {
            (TrialOutcome::MailLost, _) => self.end(SearchEnding::MailLost),
            (TrialOutcome::Stopped, _) => self.end(SearchEnding::Stopped),
            (TrialOutcome::Measured(TrialFigures { delivered_per_s, .. }), TrialLoad::FlatOut)
            | (TrialOutcome::Void { delivered_per_s, .. }, TrialLoad::FlatOut) => self.begin(*delivered_per_s),
            (TrialOutcome::Measured(figures), TrialLoad::RatePerS(rate)) => {
                self.history.add(rate, trial.duration_s, figures, &self.goals)
            }
            (TrialOutcome::Void { .. }, TrialLoad::RatePerS(rate)) => {
                if self.history.add_void(rate) {
                    self.ceiling = Some(self.ceiling.map_or(rate, |ceiling| ceiling.min(rate)));
                }
                Vec::new()
            }
        };
        self.trials.push(TrialEntry { trial, outcome, met });
    }

    /// Takes what got through flat out: the first rate to try. Of a server that took nothing the lowest is tried.
    fn begin(&mut self, delivered_per_s: f64) -> Vec<bool> {
        self.is_started = true;
        self.flat_out_per_s = Some(delivered_per_s).filter(|rate| rate.is_finite() && *rate >= 0.0);
        Vec::new()
    }

    fn end(&mut self, ending: SearchEnding) -> Vec<bool> {
        self.ending = Some(ending);
        Vec::new()
    }

    /// Ending of a search that wants no more trials.
    fn natural_ending(&self) -> SearchEnding {
        let is_void = |goal: &crate::result::GoalOutcome| goal.finding == GoalFinding::Void;
        if self.result(SearchEnding::Complete).goals.iter().any(is_void) {
            SearchEnding::Void
        } else {
            SearchEnding::Complete
        }
    }

    fn result(&self, ending: SearchEnding) -> SearchResult {
        let view = SearchView {
            settings: &self.settings,
            levels: &self.levels,
            history: &self.history,
            ceiling: self.ceiling,
            estimate: self.flat_out_per_s,
        };
        SearchResult {
            ending,
            goals: self.searches.iter().map(|search| search.outcome(&view)).collect(),
            flat_out_per_s: self.flat_out_per_s,
            trials: self.trials.clone(),
            spent_s: self.spent_s,
        }
    }
}
