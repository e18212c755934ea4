use thiserror::Error;

/// Default time limit of a search, as in RFC 9971's implementation.
const DEFAULT_TIME_LIMIT_S: f64 = 1_200.0;
const DEFAULT_MIN_RATE_PER_S: f64 = 1.0;
const DEFAULT_MAX_RATE_PER_S: f64 = 1_000_000.0;
const RATE_LIMIT_PER_S: f64 = 1e9;
/// Minimum number of messages per trial. With fewer messages, a loss ratio of 1 % would be a matter of chance.
const DEFAULT_MIN_MESSAGES: f64 = 500.0;
/// Maximum factor by which a trial is lengthened at a low rate, to reach the minimum number of messages.
const MAX_LENGTHENING: f64 = 4.0;
/// Minimum length of a trial as a multiple of a goal's latency limit. Within this time, the queue of a server that is
/// overloaded by 5 % grows until messages miss the limit.
const TRIAL_LIMITS: f64 = 20.0;
/// If a goal's latency limit makes trials longer, there must be time for this number of trials at each rate. By
/// default, half of the trials may be bad, so with three trials, a single stall does not make a load bad.
const MIN_TRIALS: f64 = 3.0;
/// Minimum of the setting `width`, 0.1 %. Closer bounds would make no sense, because rates are rounded to six digits.
const MIN_WIDTH: f64 = 0.001;
const MAX_TRIALS: f64 = 100_000.0;

/// A goal that a load must meet: at most this share of its messages may be missing, rejected or late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapacityGoal {
    pub(crate) loss_ratio: f64,
}

impl CapacityGoal {
    /// Makes a goal from the share of messages that may be lost. For example, the share is 0.01 for `p99 < LIMIT`,
    /// because a message that is later than the limit counts as lost.
    ///
    /// # Errors
    /// Fails if the ratio is negative, or not less than 1.
    pub fn new(loss_ratio: f64) -> Result<Self, SearchError> {
        if (0.0..1.0).contains(&loss_ratio) { Ok(Self { loss_ratio }) } else { Err(SearchError::LossRatio(loss_ratio)) }
    }

    pub fn loss_ratio(self) -> f64 {
        self.loss_ratio
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStart {
    /// Begin with a trial in which each session sends as fast as the server allows. The rate that this trial reaches is
    /// the first rate to try.
    FlatOut,
    /// Begin in the middle between the lowest and the highest rate (RFC 2544).
    Bisection,
}

/// A level of precision. A search passes through several levels, from coarse to fine. A coarse level needs only few
/// trials to find rough bounds of the capacity, and the next level searches between these bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchLevel {
    /// Total duration in seconds of the trials that judge a load on this level. A load counts as good or bad sooner if
    /// the remaining trials could not change that.
    pub sum_s: f64,
    /// The search on this level ends when the distance of its bounds is at most this share of the upper bound.
    pub width: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SearchSettings {
    pub trial_s: f64,
    /// Total duration in seconds of the trials that judge a load on the last, finest level.
    pub sum_s: f64,
    /// A load is good if its bad trials take at most this share of the total trial time `sum_s`.
    pub exceed_ratio: f64,
    /// The search ends when the distance of its bounds is at most this share of the upper bound.
    pub width: f64,
    pub min_rate_per_s: f64,
    pub max_rate_per_s: f64,
    /// Minimum number of messages per trial. At a low rate, a trial takes up to four times as long to reach this
    /// number.
    pub min_messages: f64,
    /// Longest latency limit of the goals, or 0 if there is none. A trial takes at least twenty times this limit, so
    /// that messages miss the limit in an overload. If three such trials do not fit into the time for one load, trials
    /// keep their usual length. Only the growth of the backlog then reveals an overload.
    pub goal_limit_s: f64,
    pub time_limit_s: f64,
    /// Number of coarse levels that the search passes through before it searches with the precision of `width`. On each
    /// coarse level, the bounds may be twice as far apart as on the next level, which saves trials.
    pub coarse_levels: u32,
    pub start: SearchStart,
}

impl Default for SearchSettings {
    /// Each load is judged by several trials of 5 s, 35 s in total, because a stall may spoil a single trial. A load is
    /// good if trials that missed the goal take at most half of this time. The search ends when the bounds are at most
    /// 2 % apart.
    fn default() -> Self {
        Self {
            trial_s: 5.0,
            sum_s: 35.0,
            exceed_ratio: 0.5,
            width: 0.02,
            min_rate_per_s: DEFAULT_MIN_RATE_PER_S,
            max_rate_per_s: DEFAULT_MAX_RATE_PER_S,
            min_messages: DEFAULT_MIN_MESSAGES,
            goal_limit_s: 0.0,
            time_limit_s: DEFAULT_TIME_LIMIT_S,
            coarse_levels: 2,
            start: SearchStart::FlatOut,
        }
    }
}

impl SearchSettings {
    /// Returns settings for a quick search, with trials of 2 s, 10 s in total at each load, and bounds up to 5 % apart.
    pub fn quick() -> Self {
        Self { trial_s: 2.0, sum_s: 10.0, width: 0.05, ..Self::default() }
    }

    /// Returns settings for a search as in RFC 2544: a bisection with one trial of 60 s per load. A load is good only
    /// if this trial meets the goal.
    pub fn rfc2544() -> Self {
        Self {
            trial_s: 60.0,
            sum_s: 60.0,
            exceed_ratio: 0.0,
            time_limit_s: 3.0 * DEFAULT_TIME_LIMIT_S,
            coarse_levels: 0,
            start: SearchStart::Bisection,
            ..Self::default()
        }
    }

    /// Returns the levels of precision, from coarse to fine. The first level judges a load by one trial, and the last
    /// by trials of `sum_s` seconds in total. The bounds on each level must be twice as close as on the level before.
    pub fn levels(&self) -> Vec<SearchLevel> {
        let coarse = self.coarse_levels.min(8);
        let level = |at: u32| {
            let share = if coarse == 0 { 1.0 } else { f64::from(at) / f64::from(coarse) };
            let sum_s = self.trial_s * (self.sum_s / self.trial_s).powf(share);
            let width = self.width * 2.0_f64.powi((coarse - at).cast_signed());
            SearchLevel { sum_s, width: width.min(0.5).max(self.width) }
        };
        (0..=coarse).map(level).collect()
    }

    pub fn trial_length_s(&self, rate_per_s: f64) -> f64 {
        let longest_s = self.trial_s * MAX_LENGTHENING;
        let for_limit_s = if self.holds_limit(self.goal_limit_s) { self.goal_limit_s * TRIAL_LIMITS } else { 0.0 };
        (self.min_messages / rate_per_s).clamp(self.trial_s, longest_s).max(for_limit_s)
    }

    /// Returns true if trials can last long enough for an overload to make messages later than this limit. If trials of
    /// the usual length are too short, three longer trials must fit into the time for a load. With fewer trials, a
    /// single stall could make the load bad.
    pub fn holds_limit(&self, limit_s: f64) -> bool {
        limit_s * TRIAL_LIMITS <= self.trial_s.max(self.sum_s / MIN_TRIALS)
    }

    pub fn max_trials(&self) -> u64 {
        (self.time_limit_s / self.trial_s).min(MAX_TRIALS) as u64 + 1
    }

    pub(crate) fn check(&self) -> Result<(), SearchError> {
        let is_length = |value: f64| value.is_finite() && value > 0.0;
        let is_rate = |value: f64| value > 0.0 && value <= RATE_LIMIT_PER_S;
        match () {
            () if !is_length(self.trial_s) => Err(SearchError::TrialLength(self.trial_s)),
            () if !(is_length(self.sum_s) && self.sum_s >= self.trial_s) => {
                Err(SearchError::Sum { sum_s: self.sum_s, trial_s: self.trial_s })
            }
            () if !(0.0..1.0).contains(&self.exceed_ratio) => Err(SearchError::ExceedRatio(self.exceed_ratio)),
            () if !(MIN_WIDTH..=0.5).contains(&self.width) => Err(SearchError::Width(self.width)),
            () if !(is_rate(self.min_rate_per_s) && is_rate(self.max_rate_per_s))
                || self.min_rate_per_s >= self.max_rate_per_s =>
            {
                Err(SearchError::Rates { min: self.min_rate_per_s, max: self.max_rate_per_s })
            }
            () if !(self.min_messages >= 0.0 && self.min_messages.is_finite()) => {
                Err(SearchError::MinMessages(self.min_messages))
            }
            () if !is_length(self.time_limit_s) => Err(SearchError::TimeLimit(self.time_limit_s)),
            () => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum SearchError {
    #[error("a goal's loss ratio is from 0 to less than 1, and not {0}")]
    LossRatio(f64),
    #[error("a search needs at least one goal")]
    NoGoal,
    #[error("a trial needs a length, and {0} s is none")]
    TrialLength(f64),
    #[error("a load is judged by at least one trial: {sum_s} s is less than a trial of {trial_s} s")]
    Sum { sum_s: f64, trial_s: f64 },
    #[error("the exceed ratio is from 0 to less than 1, and not {0}")]
    ExceedRatio(f64),
    #[error("the width is from 0.1 % to 50 %, and not {}", *.0 * 100.0)]
    Width(f64),
    #[error("the lowest rate ({min}/s) has to be above zero and below the highest ({max}/s, at most 1e9)")]
    Rates { min: f64, max: f64 },
    #[error("a trial's least number of messages cannot be {0}")]
    MinMessages(f64),
    #[error("a search needs a time limit, and {0} s is none")]
    TimeLimit(f64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_go_from_one_trial_to_the_whole() {
        let levels = SearchSettings::default().levels();
        let text: Vec<String> = levels.iter().map(|level| format!("{:.1} s {:.2}", level.sum_s, level.width)).collect();
        assert_eq!(text, ["5.0 s 0.08", "13.2 s 0.04", "35.0 s 0.02"]);
        let one = SearchSettings::rfc2544().levels();
        assert_eq!(one, [SearchLevel { sum_s: 60.0, width: 0.02 }]);
        let wide = SearchSettings { width: 0.4, ..SearchSettings::default() }.levels();
        assert!(wide.iter().all(|level| level.width <= 0.5), "{wide:?}");
    }

    #[test]
    fn a_trial_at_a_low_rate_is_longer() {
        let settings = SearchSettings::default();
        for (rate, length_s) in [(10_000.0, 5.0), (100.0, 5.0), (50.0, 10.0), (1.0, 20.0)] {
            assert!((settings.trial_length_s(rate) - length_s).abs() < 1e-9, "{rate}");
        }
    }

    #[test]
    fn a_trial_is_twenty_limits_long_where_that_is_possible() {
        for (goal_limit_s, length_s, is_held) in
            [(0.1, 5.0, true), (0.5, 10.0, true), (0.6, 5.0, false), (1.0, 5.0, false), (60.0, 5.0, false)]
        {
            let settings = SearchSettings { goal_limit_s, ..SearchSettings::default() };
            assert!((settings.trial_length_s(9_000.0) - length_s).abs() < 1e-9, "{goal_limit_s}");
            assert_eq!(settings.holds_limit(goal_limit_s), is_held, "{goal_limit_s}");
        }
    }

    #[test]
    fn settings_that_cannot_be_are_refused() {
        let changes: [fn(&mut SearchSettings); 12] = [
            |s| s.trial_s = 0.0,
            |s| s.trial_s = f64::NAN,
            |s| s.sum_s = 4.0,
            |s| s.sum_s = f64::INFINITY,
            |s| s.exceed_ratio = 1.0,
            |s| s.exceed_ratio = -0.1,
            |s| s.width = 0.0,
            |s| s.width = 0.6,
            |s| s.min_rate_per_s = 0.0,
            |s| s.max_rate_per_s = 1.0,
            |s| s.max_rate_per_s = f64::NAN,
            |s| s.time_limit_s = -1.0,
        ];
        for change in changes {
            let mut settings = SearchSettings::default();
            assert_eq!(settings.check(), Ok(()));
            change(&mut settings);
            let error = settings.check().expect_err(&format!("{settings:?}"));
            assert!(error.to_string().len() > 20, "{error}");
        }
        for ratio in [1.0, -0.1, f64::NAN] {
            assert!(CapacityGoal::new(ratio).is_err(), "{ratio}");
        }
    }
}
