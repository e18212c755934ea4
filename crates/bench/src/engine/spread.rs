//! Figures of several runs: their median and range, and ratios between two runs of the same round.
use super::runner::Contestant;
use mailrun_compare::middle;
use mailrun_text::numbers::{count, memory};

pub(crate) const MISSING: &str = "–";

pub(crate) fn shown<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| MISSING.to_owned(), show)
}

pub(crate) fn whole(value: f64) -> String {
    count(value.round() as u64)
}

pub(crate) fn bytes(value: f64) -> String {
    memory(value.round() as u64)
}

/// Least value, median and greatest value over the rounds. `None` if no round has a value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MedianRange(Option<[f64; 3]>);

impl MedianRange {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let ends = values.iter().copied().reduce(f64::min).zip(values.iter().copied().reduce(f64::max));
        Self(ends.map(|(min, max)| [min, middle(&values), max]))
    }

    pub(super) fn of_interval(middle: f64, (lower, upper): (f64, f64)) -> Self {
        Self(Some([lower, middle, upper]))
    }

    pub(crate) fn median(self, show: fn(f64) -> String) -> String {
        shown(self.0, |[_, median, _]| show(median))
    }

    pub(crate) fn is_median_below(self, limit: f64) -> bool {
        self.0.is_some_and(|[_, median, _]| median < limit)
    }

    /// Formats the median and the range, such as `12.3 (11.9–12.8)`. If both ends of the range look
    /// the same, only the median is shown.
    pub(crate) fn render(self, show: fn(f64) -> String) -> String {
        let Some(values) = self.0 else { return MISSING.to_owned() };
        let [min, median, max] = values.map(show);
        if min == max { median } else { format!("{median} ({min}–{max})") }
    }
}

impl<C, M> Contestant<C, M> {
    /// Returns the median and the range of a figure. Runs that did not do all of their work are left out.
    pub(super) fn spread(&self, value: impl Fn(&M) -> Option<f64>) -> MedianRange {
        MedianRange::of(self.runs.iter().filter_map(|run| value(run.sound()?)))
    }

    /// Returns the median and the range of ratios: a figure of this contestant, divided by the same figure of `base`.
    /// Each ratio compares two runs of the same round, so that a slow minute affects both.
    pub(super) fn ratio(&self, base: &Self, value: fn(&M) -> Option<f64>) -> MedianRange {
        MedianRange::of(self.pairs(base).filter_map(|(run, base)| Some(value(run)? / value(base)?)))
    }

    /// Returns the figures of this contestant and of `base` for each round in which both did all of
    /// their work.
    pub(super) fn pairs<'s>(&'s self, base: &'s Self) -> impl Iterator<Item = (&'s M, &'s M)> {
        self.runs.iter().zip(&base.runs).filter_map(|(run, base)| Some((run.sound()?, base.sound()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::runner::ComparedRun;
    use super::*;

    fn contestant(runs: &[Option<f64>]) -> Contestant<(), f64> {
        let run = |value: &Option<f64>| {
            value.map_or_else(|| ComparedRun::Faulty(1e9, "lost 1".to_owned()), ComparedRun::Sound)
        };
        Contestant { runs: runs.iter().map(run).collect(), ..Contestant::new(String::new(), ()) }
    }

    #[test]
    fn a_spread_is_of_the_sound_runs_and_a_ratio_of_rounds_in_which_both_were() {
        let show: fn(f64) -> String = |value| format!("{value:.1}");
        let ours = contestant(&[Some(4.0), Some(1.0), None, Some(8.0)]);
        let theirs = contestant(&[Some(2.0), None, Some(1.0), Some(1.0)]);
        assert_eq!(ours.spread(|value| Some(*value)).render(show), "4.0 (1.0–8.0)");
        assert_eq!(ours.ratio(&theirs, |value| Some(*value)).render(show), "5.0 (2.0–8.0)");
        assert_eq!(contestant(&[None]).spread(|value| Some(*value)).median(show), MISSING);
        assert_eq!(contestant(&[Some(1.0), Some(1.0)]).spread(|value| Some(*value)).render(show), "1.0");
    }
}
