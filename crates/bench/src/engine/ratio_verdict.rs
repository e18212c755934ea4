//! The verdict on the ratios of two cases. It uses the statistics of `mailrun compare`, for all
//! ratios of a row together.
use super::runner::CaseSeries;
use super::spread::MedianRange;
use mailrun_compare::{
    CompareSettings, ComparedMetric, Gain, MetricFinding, MetricVerdict, RoundRatios, compare_rounds,
};
use mailrun_report::comparison::percent;
use mailrun_text::numbers::counted;

/// Minimum number of rounds for a verdict. The limit is low because the runs are too long to be
/// repeated dozens of times.
const MIN_ROUNDS: usize = 6;

/// Column of ratios between two runs of the same round, which `compare` computes. `gain` says
/// whether higher or lower ratios are better.
pub(crate) struct RatioColumn<M> {
    pub(crate) title: &'static str,
    pub(crate) gain: Gain,
    pub(crate) compare: fn(&M, &M) -> Option<f64>,
}

fn two_places(value: f64) -> String {
    format!("{value:.2}")
}

pub(crate) struct RatioVerdict {
    findings: Vec<MetricFinding>,
    /// Number of rounds in which both cases did all of their work.
    rounds: usize,
    margin: f64,
}

impl RatioVerdict {
    /// Compares a case with its base, in the rounds in which both did all of their work. A ratio
    /// that is missing in one of these rounds is left out of the verdict.
    pub(crate) fn of<C, M>(series: &CaseSeries<C, M>, base: &CaseSeries<C, M>, ratios: &[RatioColumn<M>]) -> Self {
        let pairs = || series.runs.iter().zip(&base.runs).filter_map(|(run, base)| Some((run.sound()?, base.sound()?)));
        let rounds = pairs().count();
        let family = ratios.iter().filter_map(|ratio| {
            let values: Option<Vec<(f64, f64)>> =
                pairs().map(|(run, base)| Some((1.0, (ratio.compare)(run, base)?))).collect();
            let metric = ComparedMetric { name: ratio.title.to_owned(), gain: ratio.gain };
            RoundRatios::new(metric, &values.filter(|values| !values.is_empty())?).ok()
        });
        let family: Vec<RoundRatios> = family.collect();
        let settings = CompareSettings { min_rounds: MIN_ROUNDS, ..CompareSettings::default() };
        Self { findings: compare_rounds(&family, &settings), rounds, margin: settings.margin }
    }

    /// Formats a ratio: the estimate with its interval or, if there are too few rounds for one, the
    /// median and the range.
    pub(crate) fn cell<C, M>(
        &self,
        ratio: &RatioColumn<M>,
        series: &CaseSeries<C, M>,
        base: &CaseSeries<C, M>,
    ) -> String {
        let finding = self.findings.iter().find(|finding| finding.metric.name == ratio.title);
        let estimate = finding.and_then(|finding| Some(MedianRange::of_interval(finding.ratio, finding.interval?)));
        estimate.unwrap_or_else(|| series.ratio(base, ratio.compare)).render(two_places)
    }

    /// Returns the verdict in words, or `None` if there is nothing to compare.
    pub(super) fn note(&self) -> Option<String> {
        if self.findings.is_empty() {
            return None;
        }
        if self.rounds < MIN_ROUNDS {
            let rounds = counted(self.rounds as u64, "round");
            return Some(format!("{rounds}, too few for a verdict, which takes {MIN_ROUNDS}"));
        }
        let words: Vec<String> = self.findings.iter().map(|finding| self.words(finding)).collect();
        Some(words.join("; "))
    }

    fn words(&self, finding: &MetricFinding) -> String {
        let verdict = match finding.verdict {
            MetricVerdict::Better => "better".to_owned(),
            MetricVerdict::Worse => "worse".to_owned(),
            MetricVerdict::Same => format!("same, within {}", percent(self.margin)),
            MetricVerdict::Undecided { more_rounds } => {
                format!("undecided, about {} more", counted(more_rounds as u64, "round"))
            }
            MetricVerdict::TooFew => "too few rounds".to_owned(),
        };
        format!("{} {verdict}", finding.metric.name)
    }
}

#[cfg(test)]
mod tests {
    use super::super::runner::ComparedRun;
    use super::*;

    fn series(name: &str, values: &[f64]) -> CaseSeries<(), f64> {
        let runs = values.iter().copied().map(ComparedRun::Sound).collect();
        CaseSeries { case: (), name: name.to_owned(), runs }
    }

    const TIME: [RatioColumn<f64>; 1] =
        [RatioColumn { title: "× time", gain: Gain::Lower, compare: |run, base| Some(run / base) }];

    #[test]
    fn six_rounds_decide_and_five_do_not() {
        let ours = series("ours", &[1.0, 1.1, 1.2, 1.3, 1.4, 1.5]);
        let theirs = series("theirs", &[2.0, 2.3, 2.1, 2.5, 2.6, 2.9]);
        let verdict = RatioVerdict::of(&ours, &theirs, &TIME);
        assert_eq!(verdict.note().as_deref(), Some("× time better"));
        let back = RatioVerdict::of(&theirs, &ours, &TIME);
        assert_eq!(back.note().as_deref(), Some("× time worse"));
        assert!(verdict.cell(&TIME[0], &ours, &theirs).starts_with("0.52 (0.48–0.57"), "{:?}", verdict.findings);
        let few = series("ours", &[1.0, 1.1, 1.2, 1.3, 1.4]);
        let verdict = RatioVerdict::of(&few, &theirs, &TIME);
        assert_eq!(verdict.note().as_deref(), Some("5 rounds, too few for a verdict, which takes 6"));
        assert!(verdict.cell(&TIME[0], &few, &theirs).starts_with("0.52 (0.48–0.57"), "the ends of five");
    }

    #[test]
    fn nothing_to_compare_has_no_verdict() {
        let ours = series("ours", &[1.0]);
        assert_eq!(RatioVerdict::of(&ours, &series("theirs", &[]), &TIME).note(), None);
    }

    #[test]
    fn rounds_that_say_both_are_undecided() {
        let ours = series("ours", &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
        let theirs = series("theirs", &[1.5; 6]);
        let note = RatioVerdict::of(&ours, &theirs, &TIME).note().unwrap();
        assert!(note.starts_with("× time undecided, about "), "{note}");
    }
}
