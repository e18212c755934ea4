//! Decides whether two contestants differ, from the ratios between their runs. The statistics of `mailrun compare`
//! judge all ratios of a table row together.
use super::runner::Contestant;
use super::spread::MedianRange;
use mailrun_compare::{
    CompareSettings, ComparedMetric, ContestantComparison, Gain, MetricVerdict, PairedMetric, RoundSamples, RunFigure,
};
use mailrun_report::comparison::percent;
use mailrun_text::numbers::counted;

/// Minimum number of rounds for a verdict. The limit is low because the runs are too long to be
/// repeated dozens of times.
const MIN_ROUNDS: usize = 6;

/// Column of ratios between a contestant and its base, the contestant that it is compared with. Each ratio divides the
/// value of a contestant's run by the value of its base's run in the same round.
pub(crate) struct RatioColumn<M> {
    pub(crate) title: &'static str,
    gain: Gain,
    value: fn(&M) -> Option<f64>,
}

impl<M> RatioColumn<M> {
    /// Makes a column for a figure of which higher values are better, such as a rate.
    pub(crate) const fn higher(title: &'static str, value: fn(&M) -> Option<f64>) -> Self {
        Self { title, gain: Gain::Higher, value }
    }

    /// Makes a column for a figure of which lower values are better, such as CPU time.
    pub(crate) const fn lower(title: &'static str, value: fn(&M) -> Option<f64>) -> Self {
        Self { title, gain: Gain::Lower, value }
    }
}

fn two_places(value: f64) -> String {
    format!("{value:.2}")
}

pub(crate) struct RatioVerdict {
    comparison: ContestantComparison,
    margin: f64,
}

impl RatioVerdict {
    /// Compares a contestant with its base, in the rounds in which both did all of their work. A
    /// ratio that is missing in one of these rounds is left out of the verdict.
    pub(crate) fn of<C, M>(one: &Contestant<C, M>, base: &Contestant<C, M>, ratios: &[RatioColumn<M>]) -> Self {
        let figures = |run: &M| {
            let figure = |ratio: &RatioColumn<M>| {
                let metric = ComparedMetric { name: ratio.title.to_owned(), gain: ratio.gain };
                Some(RunFigure { metric, value: (ratio.value)(run)? })
            };
            ratios.iter().filter_map(figure).collect::<Vec<RunFigure>>()
        };
        let (runs, base_runs) = one.pairs(base).map(|(run, base)| (figures(run), figures(base))).unzip();
        let samples = |runs| RoundSamples { runs, ..RoundSamples::default() };
        let settings = CompareSettings { min_rounds: MIN_ROUNDS, ..CompareSettings::default() };
        let comparison = ContestantComparison::new(&samples(runs), &samples(base_runs), &settings);
        Self { comparison, margin: settings.margin }
    }

    /// Formats a ratio as an estimate with its interval. If there are too few rounds for an estimate, formats the
    /// median and the range instead.
    pub(crate) fn cell<C, M>(&self, ratio: &RatioColumn<M>, one: &Contestant<C, M>, base: &Contestant<C, M>) -> String {
        let metric = self.comparison.metrics.iter().find(|metric| metric.name == ratio.title);
        let estimate = metric.and_then(|metric| Some(MedianRange::of_interval(metric.ratio, metric.interval?)));
        estimate.unwrap_or_else(|| one.ratio(base, ratio.value)).render(two_places)
    }

    /// Returns the verdict in words, or `None` if there is nothing to compare.
    pub(super) fn note(&self) -> Option<String> {
        let ContestantComparison { metrics, rounds, .. } = &self.comparison;
        if metrics.is_empty() {
            return None;
        }
        if *rounds < MIN_ROUNDS {
            let rounds = counted(*rounds as u64, "round");
            return Some(format!("{rounds}, too few for a verdict, which takes {MIN_ROUNDS}"));
        }
        Some(metrics.iter().map(|metric| self.words(metric)).collect::<Vec<String>>().join("; "))
    }

    fn words(&self, metric: &PairedMetric) -> String {
        let PairedMetric { name, verdict, .. } = metric;
        match metric.finding.verdict {
            MetricVerdict::Same => format!("{name} {verdict}, within {}", percent(self.margin)),
            MetricVerdict::Undecided { more_rounds } => {
                format!("{name} {verdict}, about {} more", counted(more_rounds as u64, "round"))
            }
            _ => format!("{name} {verdict}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::runner::ComparedRun;
    use super::*;

    fn contestant(name: &str, values: &[f64]) -> Contestant<(), f64> {
        let runs = values.iter().copied().map(ComparedRun::Sound).collect();
        Contestant { runs, ..Contestant::new(name.to_owned(), ()) }
    }

    const TIME: [RatioColumn<f64>; 1] = [RatioColumn::lower("× time", |run| Some(*run))];

    #[test]
    fn six_rounds_decide_and_five_do_not() {
        let ours = contestant("ours", &[1.0, 1.1, 1.2, 1.3, 1.4, 1.5]);
        let theirs = contestant("theirs", &[2.0, 2.3, 2.1, 2.5, 2.6, 2.9]);
        let verdict = RatioVerdict::of(&ours, &theirs, &TIME);
        assert_eq!(verdict.note().as_deref(), Some("× time better"));
        let back = RatioVerdict::of(&theirs, &ours, &TIME);
        assert_eq!(back.note().as_deref(), Some("× time worse"));
        assert!(verdict.cell(&TIME[0], &ours, &theirs).starts_with("0.52 (0.48–0.57"), "{:?}", verdict.comparison);
        let few = contestant("ours", &[1.0, 1.1, 1.2, 1.3, 1.4]);
        let verdict = RatioVerdict::of(&few, &theirs, &TIME);
        assert_eq!(verdict.note().as_deref(), Some("5 rounds, too few for a verdict, which takes 6"));
        assert!(verdict.cell(&TIME[0], &few, &theirs).starts_with("0.52 (0.48–0.57"), "the ends of five");
    }

    #[test]
    fn nothing_to_compare_has_no_verdict() {
        let ours = contestant("ours", &[1.0]);
        assert_eq!(RatioVerdict::of(&ours, &contestant("theirs", &[]), &TIME).note(), None);
    }

    #[test]
    fn rounds_that_say_both_are_undecided() {
        let ours = contestant("ours", &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
        let theirs = contestant("theirs", &[1.5; 6]);
        let note = RatioVerdict::of(&ours, &theirs, &TIME).note().unwrap();
        assert!(note.starts_with("× time undecided, about "), "{note}");
    }
}
