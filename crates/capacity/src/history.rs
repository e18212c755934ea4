//! Keeps the trials of a search for each load, and classifies the load as good, bad or undecided (RFC 9971 §6.4).
use crate::settings::{CapacityGoal, SearchLevel, SearchSettings};
use crate::trial::TrialFigures;

/// If this number of trials in a row at a load is void, because something other than the server was the bottleneck, the
/// load counts as impossible to offer.
const MAX_VOIDS: u32 = 3;
/// Relative tolerance when sums of durations are compared, because floating-point sums have rounding errors.
const ROUNDING: f64 = 1e-9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadClass {
    /// Enough trials at the load met the goal, so the load is a lower bound of the capacity.
    Lower,
    /// Too many trials at the load missed the goal, so the load is an upper bound of the capacity.
    Upper,
    Undecided,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LoadBounds {
    pub(crate) lower: Option<f64>,
    pub(crate) upper: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
struct TrialGrade {
    loss_ratio: f64,
    is_good: bool,
}

#[derive(Clone, Debug)]
struct MeasuredTrial {
    duration_s: f64,
    delivered_per_s: f64,
    grades: Vec<TrialGrade>,
}

#[derive(Clone, Debug)]
struct MeasuredLoad {
    rate_per_s: f64,
    trials: Vec<MeasuredTrial>,
    voids_in_a_row: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TrialHistory {
    loads: Vec<MeasuredLoad>,
    /// Goals that a confirmation trial missed. Each entry has the goal's index and a rate. This rate and all higher
    /// rates count as bad for the goal.
    refuted: Vec<(usize, f64)>,
}

impl TrialHistory {
    /// Adds a trial, and returns for each goal whether the trial met it.
    pub(crate) fn add(
        &mut self,
        rate_per_s: f64,
        duration_s: f64,
        figures: &TrialFigures,
        goals: &[CapacityGoal],
    ) -> Vec<bool> {
        let is_backlogged = figures.is_backlogged(rate_per_s);
        let grade = |(at, goal): (usize, &CapacityGoal)| {
            let loss_ratio = figures.loss_ratio(at);
            TrialGrade { loss_ratio, is_good: loss_ratio <= goal.loss_ratio && !is_backlogged }
        };
        let grades: Vec<TrialGrade> = goals.iter().enumerate().map(grade).collect();
        let is_good = grades.iter().map(|grade| grade.is_good).collect();
        let load = self.load(rate_per_s);
        load.voids_in_a_row = 0;
        load.trials.push(MeasuredTrial { duration_s, delivered_per_s: figures.delivered_per_s, grades });
        is_good
    }

    /// Counts a void trial, in which something other than the server was the bottleneck. Returns true if the last
    /// `MAX_VOIDS` trials at this load were void.
    pub(crate) fn add_void(&mut self, rate_per_s: f64) -> bool {
        let load = self.load(rate_per_s);
        load.voids_in_a_row += 1;
        load.voids_in_a_row >= MAX_VOIDS
    }

    /// Marks this load and all higher loads as bad for each goal that the confirmation trial missed. The confirmation
    /// trial outweighs all trials of the search, even good ones at these loads.
    pub(crate) fn refute(&mut self, rate_per_s: f64, met: &[bool]) {
        self.load(rate_per_s);
        let missed = met.iter().enumerate().filter(|(_, met)| !**met);
        self.refuted.extend(missed.map(|(goal, _)| (goal, rate_per_s)));
    }

    fn load(&mut self, rate_per_s: f64) -> &mut MeasuredLoad {
        let at = self.loads.partition_point(|load| load.rate_per_s < rate_per_s);
        if self.loads.get(at).is_none_or(|load| load.rate_per_s > rate_per_s) {
            self.loads.insert(at, MeasuredLoad { rate_per_s, trials: Vec::new(), voids_in_a_row: 0 });
        }
        &mut self.loads[at]
    }

    fn classes(
        &self,
        goal: usize,
        level: SearchLevel,
        exceed_ratio: f64,
    ) -> impl DoubleEndedIterator<Item = (f64, LoadClass)> {
        let refuted = self.refuted.iter().filter(move |(of, _)| *of == goal);
        let refuted_from = refuted.map(|(_, rate)| *rate).fold(f64::INFINITY, f64::min);
        self.loads.iter().map(move |load| match load.rate_per_s {
            rate if rate >= refuted_from => (rate, LoadClass::Upper),
            rate => (rate, load.class(goal, level, exceed_ratio)),
        })
    }

    /// Returns the smallest bad load for a goal as the upper bound, and the largest good load below it as the lower
    /// bound. A good load above the upper bound (loss inversion) is ignored.
    pub(crate) fn bounds(&self, goal: usize, level: SearchLevel, exceed_ratio: f64) -> LoadBounds {
        let mut bounds = LoadBounds::default();
        for (rate, class) in self.classes(goal, level, exceed_ratio) {
            match class {
                LoadClass::Lower => bounds.lower = Some(rate),
                LoadClass::Upper => {
                    bounds.upper = Some(rate);
                    break;
                }
                LoadClass::Undecided => {}
            }
        }
        bounds
    }

    pub(crate) fn count(&self, goal: usize, level: SearchLevel, exceed_ratio: f64, wanted: LoadClass) -> usize {
        self.classes(goal, level, exceed_ratio).filter(|(_, class)| *class == wanted).count()
    }

    /// Returns the loads within an interval that have been tried but need more trials to count as good or bad.
    pub(crate) fn undecided(
        &self,
        goal: usize,
        level: SearchLevel,
        exceed_ratio: f64,
        between: (f64, f64),
    ) -> impl Iterator<Item = f64> {
        let is_meant = move |(rate, class): &(f64, LoadClass)| {
            *class == LoadClass::Undecided && between.0 < *rate && *rate < between.1
        };
        self.classes(goal, level, exceed_ratio).filter(is_meant).map(|(rate, _)| rate)
    }

    /// Returns the highest rate that the server delivered in any trial at this load.
    pub(crate) fn delivered_per_s(&self, rate_per_s: f64) -> Option<f64> {
        let load = self.loads.iter().find(|load| load.rate_per_s == rate_per_s)?;
        let finite = load.trials.iter().map(|trial| trial.delivered_per_s).filter(|rate| rate.is_finite());
        finite.reduce(f64::max)
    }

    /// Returns the conditional throughput (RFC 9971) at a good load. First leaves out the worst trials, up to the share
    /// of trials that may be bad (the exceed ratio). The throughput is the load minus the loss of the worst trial that
    /// is left.
    pub(crate) fn throughput(&self, goal: usize, rate_per_s: f64, settings: &SearchSettings) -> Option<f64> {
        let load = self.loads.iter().find(|load| load.rate_per_s == rate_per_s)?;
        let graded = load.trials.iter().map(|trial| (trial.grades[goal].loss_ratio, trial.duration_s));
        let mut losses: Vec<(f64, f64)> = graded.collect();
        losses.sort_by(|one, other| one.0.total_cmp(&other.0));
        let whole_s = losses.iter().map(|(_, duration_s)| duration_s).sum::<f64>().max(settings.sum_s);
        let mut left_s = whole_s * (1.0 - settings.exceed_ratio);
        let mut loss_ratio = losses.first()?.0;
        for (ratio, duration_s) in losses {
            if left_s <= whole_s * ROUNDING {
                break;
            }
            loss_ratio = ratio;
            left_s -= duration_s;
        }
        Some(rate_per_s * (1.0 - loss_ratio))
    }
}

impl MeasuredLoad {
    /// Classifies the load by the total durations of its good and of its bad trials. The load counts as good or bad as
    /// soon as no result of the remaining trials could change that. For example, if half of 35 s may be bad, four good
    /// trials of 5 s are enough.
    fn class(&self, goal: usize, level: SearchLevel, exceed_ratio: f64) -> LoadClass {
        let sum = |is_good: bool| {
            let trials = self.trials.iter().filter(move |trial| trial.grades[goal].is_good == is_good);
            trials.map(|trial| trial.duration_s).sum::<f64>()
        };
        let good_s = sum(true);
        let bad_s = sum(false);
        let whole_s = (good_s + bad_s).max(level.sum_s);
        let granted_s = whole_s * (exceed_ratio + ROUNDING);
        let at_worst = whole_s - good_s <= granted_s;
        let at_best = bad_s <= granted_s;
        match (at_worst, at_best) {
            (true, true) => LoadClass::Lower,
            (false, false) => LoadClass::Upper,
            _ => LoadClass::Undecided,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVEL: SearchLevel = SearchLevel { sum_s: 35.0, width: 0.02 };

    fn history(trials: &[(f64, f64)]) -> TrialHistory {
        let goal = CapacityGoal::new(0.01).unwrap();
        let mut history = TrialHistory::default();
        for (rate, loss) in trials {
            history.add(*rate, 5.0, &TrialFigures::new(vec![*loss], rate * (1.0 - loss)), &[goal]);
        }
        history
    }

    #[test]
    fn a_load_is_decided_as_soon_as_the_rest_cannot_change_it() {
        let class = |losses: &[f64]| {
            let trials: Vec<_> = losses.iter().map(|loss| (100.0, *loss)).collect();
            history(&trials).loads[0].class(0, LEVEL, 0.5)
        };
        assert_eq!(class(&[0.0; 3]), LoadClass::Undecided);
        assert_eq!(class(&[0.0; 4]), LoadClass::Lower);
        assert_eq!(class(&[1.0; 3]), LoadClass::Undecided);
        assert_eq!(class(&[1.0; 4]), LoadClass::Upper);
        assert_eq!(class(&[0.0, 1.0, 0.0, 1.0, 0.0, 1.0]), LoadClass::Undecided);
        assert_eq!(class(&[0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]), LoadClass::Lower);
        let one = SearchLevel { sum_s: 5.0, ..LEVEL };
        assert_eq!(history(&[(1.0, 0.0)]).loads[0].class(0, one, 0.0), LoadClass::Lower);
        assert_eq!(history(&[(1.0, 0.0), (1.0, 0.1)]).loads[0].class(0, one, 0.0), LoadClass::Upper);
    }

    #[test]
    fn a_good_load_above_a_bad_one_is_no_bound() {
        let one = SearchLevel { sum_s: 5.0, ..LEVEL };
        let inverted = history(&[(100.0, 0.0), (200.0, 0.5), (300.0, 0.0), (400.0, 0.5)]);
        assert_eq!(inverted.bounds(0, one, 0.0), LoadBounds { lower: Some(100.0), upper: Some(200.0) });
    }

    #[test]
    fn the_throughput_is_what_got_through() {
        let settings = SearchSettings::default();
        let losses = [0.004, 0.0, 0.9, 0.002, 0.8, 0.006, 0.7];
        let history = history(&losses.map(|loss| (1_000.0, loss)));
        // By default, half of the trial time may be bad, so leave out the worst three of the seven trials of 5 s. The
        // worst of the other four trials lost 0.6 % of 1,000 messages per second, so 994 got through.
        let throughput = history.throughput(0, 1_000.0, &settings).unwrap();
        assert!((throughput - 994.0).abs() < 1e-6, "{throughput}");
        assert_eq!(history.throughput(0, 7.0, &settings), None);
    }

    #[test]
    fn three_voids_in_a_row_are_a_ceiling() {
        let mut history = TrialHistory::default();
        assert!(!history.add_void(5.0) && !history.add_void(5.0));
        history.add(5.0, 5.0, &TrialFigures::new(vec![0.0], 5.0), &[CapacityGoal::new(0.0).unwrap()]);
        assert!(!history.add_void(5.0) && !history.add_void(5.0) && history.add_void(5.0));
        assert_eq!(history.bounds(0, LEVEL, 0.5), LoadBounds::default());
    }
}
