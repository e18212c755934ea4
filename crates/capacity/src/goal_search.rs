//! Searches for the highest load that meets a single goal. If there are several goals, the search for each of them uses
//! all trials to choose its next load, because each trial is judged for all goals.
//!
//! ```text
//! no bound           the estimate, or the middle of the bounds of the level before
//! a good load only   the upper bound of the level before, else upwards, each step twice the last
//! a bad load only    the lower bound of the level before, else downwards likewise
//! both, too far      the middle
//! both, near         the next level; after the last the end
//! ```
//! Distances are logarithmic: a step from 100 to 110 is as long as a step from 1,000 to 1,100.
use crate::history::{LoadBounds, LoadClass, TrialHistory};
use crate::result::{GoalFinding, GoalOutcome};
use crate::settings::{SearchLevel, SearchSettings};

const MAX_DOUBLINGS: usize = 20;
/// To divide an interval, the search prefers a load near the middle that already has trials, because such a load may
/// need fewer new trials. A load counts as near if its distance from the middle is at most a quarter of the interval.
const MIDDLE: f64 = 0.25;
/// Relative tolerance for the width of an interval. The two bounds are rounded to six digits, so the interval may be
/// slightly wider than requested.
const ROUNDING: f64 = 1e-4;
/// After an overloaded trial, the search continues at the rate that the server delivered, but not below this share of
/// the trial's load.
const MAX_FALL: f64 = 0.25;

#[derive(Clone, Debug)]
pub(crate) struct SearchFacts {
    pub(crate) settings: SearchSettings,
    pub(crate) levels: Vec<SearchLevel>,
    pub(crate) history: TrialHistory,
    /// Lowest load that the generator could not offer.
    pub(crate) ceiling: Option<f64>,
    /// Rate that was reached when each session sent as fast as it could (the flat-out trial). The search tries this
    /// rate first. `None` in a bisection, which has no flat-out trial.
    pub(crate) flat_out_per_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum NextLoad {
    Measure(f64),
    /// The search has a result at its present precision (`SearchLevel`), and needs no more trials for it.
    Settled(GoalFinding),
}

#[derive(Clone, Debug)]
pub(crate) struct GoalSearch {
    goal: usize,
    level: usize,
    /// Bounds of the capacity that the search found on the previous level, with lower precision. To save trials, the
    /// search on the current level begins between them.
    hint: LoadBounds,
    finding: Option<GoalFinding>,
}

impl GoalSearch {
    pub(crate) fn new(goal: usize, hint: LoadBounds) -> Self {
        Self { goal, level: 0, hint, finding: None }
    }

    /// Returns the level of precision and the load of the next trial that the search needs. Levels that need no more
    /// trials are skipped. Returns `None` if the search needs no trial now. A later call can return a trial again, if a
    /// trial for another goal shows that a lower load is already bad.
    pub(crate) fn advance(&mut self, facts: &SearchFacts) -> Option<(usize, f64)> {
        loop {
            let bounds = self.bounds(facts);
            self.finding = None;
            match self.next_load(bounds, facts) {
                NextLoad::Measure(rate) => return Some((self.level, rate)),
                NextLoad::Settled(finding) if self.level + 1 == facts.levels.len() => {
                    self.finding = Some(finding);
                    return None;
                }
                NextLoad::Settled(_) => {
                    self.hint = bounds;
                    self.level += 1;
                }
            }
        }
    }

    /// Returns the result so far, at any point of the search.
    pub(crate) fn outcome(&self, facts: &SearchFacts) -> GoalOutcome {
        // Each level of the search bounds the capacity more precisely than the level before, so begin with the last
        // level. Use an upper or lower bound of an earlier level only if no later level has found such a bound. Skip a
        // bound that contradicts the opposite bound, for example a lower bound above the upper bound.
        let mut lower: Option<f64> = None;
        let mut upper: Option<f64> = None;
        for level in facts.levels[..=self.level].iter().rev() {
            let known = facts.history.bounds(self.goal, *level, facts.settings.exceed_ratio);
            upper = upper.or(known.upper.filter(|upper| lower.is_none_or(|lower| lower < *upper)));
            lower = lower.or(known.lower.filter(|lower| upper.is_none_or(|upper| *lower < upper)));
        }
        let throughput = |lower: f64| facts.history.throughput(self.goal, lower, &facts.settings);
        GoalOutcome {
            finding: self.finding.unwrap_or(GoalFinding::Unfinished),
            lower_per_s: lower,
            upper_per_s: upper,
            throughput_per_s: lower.and_then(throughput),
        }
    }

    fn bounds(&self, facts: &SearchFacts) -> LoadBounds {
        facts.history.bounds(self.goal, facts.levels[self.level], facts.settings.exceed_ratio)
    }

    fn next_load(&self, bounds: LoadBounds, facts: &SearchFacts) -> NextLoad {
        let lowest = facts.settings.min_rate_per_s;
        if bounds.upper.is_some_and(|upper| upper <= lowest) {
            return NextLoad::Settled(GoalFinding::LowestRateMissed);
        }
        if facts.ceiling.is_some_and(|ceiling| ceiling <= lowest) {
            return NextLoad::Settled(GoalFinding::Void);
        }
        let ceiling = self.ceiling(bounds, facts);
        match (bounds.lower, bounds.upper) {
            (lower, upper) if ceiling.is_some_and(|ceiling| upper.is_none_or(|upper| ceiling < upper)) => {
                self.below_ceiling(lower, ceiling.unwrap_or(lowest), facts)
            }
            (Some(lower), Some(upper)) => self.between(lower, upper, facts),
            (Some(lower), None) => self.above(lower, facts),
            (None, Some(upper)) => self.below(upper, facts),
            (None, None) => self.first(facts),
        }
    }

    /// Returns the lowest load that the generator could not offer, if there is one. But if the upper bound of the
    /// previous level is even lower and still has to be judged on the current level, returns `None`, because the search
    /// must try that bound first.
    fn ceiling(&self, bounds: LoadBounds, facts: &SearchFacts) -> Option<f64> {
        let is_open = |hint: f64| bounds.upper.is_none() && bounds.lower.is_none_or(|lower| lower < hint);
        facts.ceiling.filter(|ceiling| !self.hint.upper.is_some_and(|hint| hint < *ceiling && is_open(hint)))
    }

    /// Searches for the capacity below the load `ceiling`, which was too high for the generator. The result is only a
    /// lower bound of the server's capacity, so the search ends with the precision of its first, coarsest level.
    fn below_ceiling(&self, lower: Option<f64>, ceiling: f64, facts: &SearchFacts) -> NextLoad {
        match lower {
            Some(lower) if is_near(lower, ceiling, facts.levels[0].width) => {
                NextLoad::Settled(GoalFinding::GeneratorLimit)
            }
            Some(lower) => NextLoad::Measure(self.middle(lower, ceiling, facts)),
            None => match self.hint.lower.filter(|hint| *hint < ceiling) {
                Some(hint) => NextLoad::Measure(hint),
                None => self.step_down(ceiling, facts),
            },
        }
    }

    fn between(&self, lower: f64, upper: f64, facts: &SearchFacts) -> NextLoad {
        if is_near(lower, upper, self.width(facts)) {
            NextLoad::Settled(GoalFinding::Found)
        } else {
            NextLoad::Measure(self.middle(lower, upper, facts))
        }
    }

    fn above(&self, lower: f64, facts: &SearchFacts) -> NextLoad {
        let highest = facts.settings.max_rate_per_s;
        match self.hint.upper.filter(|hint| *hint > lower) {
            _ if lower >= highest => NextLoad::Settled(GoalFinding::HighestRateHeld),
            Some(hint) if is_near(lower, hint, self.width(facts)) => NextLoad::Measure(hint),
            Some(hint) => NextLoad::Measure(self.middle(lower, hint, facts)),
            None => NextLoad::Measure(rounded(lower * self.step(LoadClass::Lower, facts)).min(highest)),
        }
    }

    fn below(&self, upper: f64, facts: &SearchFacts) -> NextLoad {
        match self.hint.lower.filter(|hint| *hint < upper) {
            Some(hint) if is_near(hint, upper, self.width(facts)) => NextLoad::Measure(hint),
            Some(hint) => NextLoad::Measure(self.middle(hint, upper, facts)),
            None => self.step_down(upper, facts),
        }
    }

    /// Returns the next load to try below the bad load `upper`, usually the load one step lower. If the overloaded
    /// server delivered even less, the first level continues at the delivered rate, but not below `MAX_FALL` times
    /// `upper`.
    fn step_down(&self, upper: f64, facts: &SearchFacts) -> NextLoad {
        let step = upper / self.step(LoadClass::Upper, facts);
        let delivered_per_s = facts.history.delivered_per_s(upper).filter(|_| self.level == 0);
        let target = delivered_per_s.map_or(step, |rate| rate.clamp((upper * MAX_FALL).min(step), step));
        NextLoad::Measure(rounded(target).max(facts.settings.min_rate_per_s))
    }

    fn first(&self, facts: &SearchFacts) -> NextLoad {
        let settings = &facts.settings;
        NextLoad::Measure(match (self.hint.lower, self.hint.upper) {
            (Some(lower), Some(upper)) if is_near(lower, upper, self.width(facts)) => lower,
            (Some(lower), Some(upper)) => self.middle(lower, upper, facts),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => {
                let middle = (settings.min_rate_per_s * settings.max_rate_per_s).sqrt();
                let estimate = facts.flat_out_per_s.unwrap_or(middle);
                let within = |rate: f64| rate.clamp(settings.min_rate_per_s, settings.max_rate_per_s);
                within(rounded(within(estimate)))
            }
        })
    }

    /// Returns the factor between a load and the next load to try above or below it. The first step is as long as the
    /// largest distance of the bounds at which this level ends. To reach a distant bound soon, each further step in
    /// that direction is twice as long.
    fn step(&self, class: LoadClass, facts: &SearchFacts) -> f64 {
        let level = facts.levels[self.level];
        let count = facts.history.count(self.goal, level, facts.settings.exceed_ratio, class);
        let doublings = count.saturating_sub(1).min(MAX_DOUBLINGS);
        let log = -(1.0 - self.width(facts)).ln() * (1_u64 << doublings) as f64;
        log.min(50.0).exp()
    }

    fn width(&self, facts: &SearchFacts) -> f64 {
        facts.levels[self.level].width
    }

    fn middle(&self, lower: f64, upper: f64, facts: &SearchFacts) -> f64 {
        let span = (upper / lower).ln();
        let distance = |rate: f64| ((rate / lower).ln() / span - 0.5).abs();
        let level = facts.levels[self.level];
        let rates = facts.history.undecided(self.goal, level, facts.settings.exceed_ratio, (lower, upper));
        let near = rates.filter(|rate| distance(*rate) <= MIDDLE);
        let nearest = near.min_by(|one, other| distance(*one).total_cmp(&distance(*other)));
        nearest.unwrap_or_else(|| rounded((lower * upper).sqrt()))
    }
}

fn is_near(lower: f64, upper: f64, width: f64) -> bool {
    1.0 - lower / upper <= width * (1.0 + ROUNDING)
}

fn rounded(rate: f64) -> f64 {
    if !(rate.is_finite() && rate > 0.0) {
        return rate;
    }
    let digits = 10.0_f64.powf(5.0 - rate.log10().floor());
    (rate * digits).round() / digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_six_digits() {
        for (rate, expected) in
            [(1.0, 1.0), (1_234.567_89, 1_234.57), (987_654.4, 987_654.0), (0.123_456_78, 0.123_457)]
        {
            assert!((rounded(rate) - expected).abs() < 1e-9, "{rate}: {}", rounded(rate));
            assert_eq!(rounded(rounded(rate)).to_bits(), rounded(rate).to_bits());
        }
    }

    #[test]
    fn near_is_a_share_of_the_upper_bound() {
        assert!(is_near(98.0, 100.0, 0.02) && is_near(100.0, 100.0, 0.02));
        assert!(!is_near(97.9, 100.0, 0.02));
    }
}
