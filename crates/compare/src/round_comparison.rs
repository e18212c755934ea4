//! Compares contestants that ran in rounds. Each contestant is compared with the reference.
use super::flip_test;
use crate::exact_row::ExactRow;
use crate::finding::{CompareSettings, LogEstimate, MetricFinding, MetricVerdict};
use crate::metric::{ComparedMetric, Gain, RoundRatios};
use crate::ranks::middle;
use crate::run_figures::RunFigure;
use crate::signed_rank;
use crate::stored_runs::ComparisonOutcome;
use mailrun_measurement::record::KeepAwake;
use mailrun_text::printable::printable;
use mailrun_text::table::plain;
use serde::Serialize;
use std::collections::BTreeMap;

const COMPARISON_FORMAT: &str = "mailrun-compare/1";

/// Figures of a contestant in the valid rounds after the warm-up.
#[derive(Clone, Debug, Default)]
pub struct RoundSamples {
    pub name: String,
    pub description: String,
    /// Figures of the contestant's run in each round. A contestant that failed has fewer runs than the others.
    pub runs: Vec<Vec<RunFigure>>,
    /// Largest peak memory of any run of the contestant, in bytes.
    pub max_rss_bytes: Option<u64>,
    pub failure: Option<String>,
}

impl RoundSamples {
    /// Returns the values of a metric in all rounds, or `None` if a round has no value.
    fn values(&self, metric: &ComparedMetric) -> Option<Vec<f64>> {
        let of_run = |run: &Vec<RunFigure>| Some(run.iter().find(|figure| figure.metric == *metric)?.value);
        self.runs.iter().map(of_run).collect()
    }

    fn metrics(&self) -> impl Iterator<Item = &ComparedMetric> {
        self.runs.first().into_iter().flatten().map(|figure| &figure.metric)
    }

    /// Returns the name of the first metric, and the estimated ratio of this contestant's values to the reference's
    /// values. Both are shown while the comparison runs.
    pub fn ratio_so_far(&self, reference: &Self) -> Option<(String, f64)> {
        let metric = reference.metrics().next()?;
        let pairs: Vec<(f64, f64)> = reference.values(metric)?.into_iter().zip(self.values(metric)?).collect();
        let ratios = RoundRatios::new(metric.clone(), &pairs).ok().filter(|_| !pairs.is_empty())?;
        let (middle, _) = signed_rank::estimate(&ratios.logs, 1.0);
        Some((metric.name.clone(), middle.exp()))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RoundLoad {
    pub messages: u64,
    pub sessions: u32,
    pub message_bytes: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct RoundCourse {
    pub planned_rounds: usize,
    pub rounds: usize,
    pub invalid_rounds: usize,
    /// Reasons why rounds were invalid, each reason once.
    pub invalid: Vec<String>,
    pub elapsed_s: f64,
    /// Set if the time limit ended the comparison before all rounds were run.
    pub is_budget_spent: bool,
    pub interrupted: bool,
    /// Set if a contestant was compared with itself (`--self`), which shows the noise of the host.
    pub is_self: bool,
    /// Whether the processors were kept from sleeping. `None`, or `null` in JSON, means that this is unknown.
    pub keep_awake: Option<KeepAwake>,
    pub notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct RoundComparison {
    pub format: &'static str,
    /// Always true: each run of a contestant is compared with the reference's run of the same round. In a
    /// `StoredComparison`, this field is false.
    pub paired: bool,
    pub reference: String,
    pub load: RoundLoad,
    #[serde(flatten)]
    pub course: RoundCourse,
    /// Relative difference up to which two contestants count as the same: 0.02 for 2 %.
    pub margin: f64,
    pub confidence_percent: f64,
    /// Minimum number of rounds for a verdict. With fewer, the verdict is "too few rounds".
    pub min_rounds: usize,
    pub contestants: Vec<ContestantRow>,
    /// One comparison with the reference for each contestant except the reference itself.
    pub comparisons: Vec<ContestantComparison>,
    pub counts: Vec<ExactRow>,
}

#[derive(Debug, Serialize)]
pub struct ContestantRow {
    pub name: String,
    pub description: String,
    pub rounds: usize,
    pub max_rss_bytes: Option<u64>,
    pub failure: Option<String>,
    /// The contestant's values of each metric, one value for each round. The keys are the names of the metrics.
    pub values: BTreeMap<String, Vec<f64>>,
}

#[derive(Debug, Serialize)]
pub struct ContestantComparison {
    pub contestant: String,
    /// Number of rounds in which both the contestant and the reference ran.
    pub rounds: usize,
    /// Comparison of each metric for which both sides have a value in all rounds.
    pub metrics: Vec<PairedMetric>,
    /// Names of metrics that cannot be compared, because in some rounds they are missing, 0 or infinite. A ratio to
    /// such a value does not exist.
    pub not_compared: Vec<String>,
    /// Names of the metrics that the reference has in all rounds, but this contestant lacks in some. A contestant lacks
    /// a metric if its value is missing, is a rate of 0, or is a time longer than the run waited.
    pub missing: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct PairedMetric {
    /// Name of the metric with its unit, for example `delivered p99, ms`.
    pub name: String,
    pub higher_is_better: bool,
    pub against_median: f64,
    pub median: f64,
    /// Hodges–Lehmann estimate of the ratio of the contestant to the reference, from all rounds.
    pub ratio: f64,
    /// Confidence interval of the ratio, or `null` if there are too few rounds.
    pub interval: Option<(f64, f64)>,
    /// Adjusted p-value: probability that chance alone would make some metric differ as clearly as this one does.
    pub adjusted_p: f64,
    /// Verdict in words: better, worse, same, undecided or too few rounds.
    pub verdict: &'static str,
    pub is_beyond_margin: bool,
    /// Estimated number of further rounds that an undecided metric needs for a verdict.
    pub more_rounds: Option<usize>,
    /// Smallest difference that this number of rounds can show, as a share: 0.02 for 2 %.
    pub resolution: Option<f64>,
    #[serde(skip)]
    pub finding: MetricFinding,
}

impl RoundComparison {
    /// Compares all contestants with the reference, which is the contestant at index `reference` or, if that has no
    /// rounds, the first contestant with rounds. Each comparison gets an equal share of `settings.risk`, so that more
    /// contestants do not cause more false alarms.
    pub fn new(
        contestants: &[RoundSamples],
        reference: usize,
        load: RoundLoad,
        course: RoundCourse,
        settings: &CompareSettings,
    ) -> Self {
        let has_runs = |contestant: &&RoundSamples| !contestant.runs.is_empty();
        let wanted = contestants.get(reference).filter(has_runs);
        let chosen = wanted.or_else(|| contestants.iter().find(has_runs));
        let name = chosen.map(|chosen| chosen.name.clone()).unwrap_or_default();
        let others = || {
            let is_other = |one: &&RoundSamples| chosen.is_some_and(|chosen| !std::ptr::eq(*one, chosen));
            contestants.iter().filter(has_runs).filter(is_other)
        };
        let risk = settings.risk / others().count().max(1) as f64;
        let settings = CompareSettings { risk, ..settings.clone() };
        let compared = |one: &RoundSamples| chosen.map(|chosen| ContestantComparison::new(one, chosen, &settings));
        Self {
            format: COMPARISON_FORMAT,
            paired: true,
            reference: printable(&name).into_owned(),
            load,
            course,
            margin: settings.margin,
            confidence_percent: (1.0 - settings.level()) * 100.0,
            min_rounds: settings.min_rounds,
            comparisons: others().filter_map(compared).collect(),
            counts: Vec::new(),
            contestants: contestants.iter().map(ContestantRow::new).collect(),
        }
    }

    pub fn is_decided(&self) -> bool {
        let is_open =
            |row: &PairedMetric| matches!(row.finding.verdict, MetricVerdict::Undecided { .. } | MetricVerdict::TooFew);
        !self.comparisons.is_empty() && !self.rows().any(is_open)
    }

    pub fn failures(&self) -> impl Iterator<Item = String> {
        let failed = self.contestants.iter().filter_map(|one| Some((&one.name, one.failure.as_ref()?)));
        failed.map(|(name, reason)| plain(&format!("{name}: {reason}")))
    }

    /// Returns the outcome for `--fail-on-regression`. If a contestant lacks a metric that the reference has, the
    /// outcome is `MetricMissing`. Otherwise, the outcome depends on whether a figure of a contestant is worse than the
    /// reference's by at least `limit` (0.05 for 5 %). If this is ruled out but a contestant failed, the outcome is
    /// `RunFailed`.
    pub fn outcome(&self, limit: f64) -> ComparisonOutcome {
        if self.missing().next().is_some() {
            return ComparisonOutcome::MetricMissing;
        }
        match ComparisonOutcome::of_findings(|| self.rows().map(|row| &row.finding), limit) {
            ComparisonOutcome::NoRegression if self.failures().next().is_some() => ComparisonOutcome::RunFailed,
            outcome => outcome,
        }
    }

    pub(crate) fn missing(&self) -> impl Iterator<Item = String> {
        let of_one = |one: &'_ ContestantComparison| {
            (!one.missing.is_empty()).then(|| format!("{} of {}", one.missing.join("; "), one.contestant))
        };
        self.comparisons.iter().filter_map(of_one)
    }

    fn rows(&self) -> impl Iterator<Item = &PairedMetric> {
        self.comparisons.iter().flat_map(|comparison| &comparison.metrics)
    }
}

impl ContestantRow {
    fn new(contestant: &RoundSamples) -> Self {
        let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for figure in contestant.runs.iter().flatten() {
            values.entry(printable(&figure.metric.name).into_owned()).or_default().push(figure.value);
        }
        Self {
            name: printable(&contestant.name).into_owned(),
            description: printable(&contestant.description).into_owned(),
            rounds: contestant.runs.len(),
            max_rss_bytes: contestant.max_rss_bytes,
            failure: contestant.failure.as_deref().map(|reason| printable(reason).into_owned()),
            values,
        }
    }

    pub(crate) fn medians(&self) -> impl Iterator<Item = (&str, f64)> {
        self.values.iter().map(|(name, values)| (name.as_str(), middle(values)))
    }
}

impl ContestantComparison {
    pub fn new(one: &RoundSamples, reference: &RoundSamples, settings: &CompareSettings) -> Self {
        let rounds = one.runs.len().min(reference.runs.len());
        let mut family = Vec::new();
        let mut medians = Vec::new();
        let mut not_compared = Vec::new();
        let mut missing = Vec::new();
        for metric in reference.metrics() {
            let in_rounds = |side: &RoundSamples| {
                let mut values = side.values(metric)?;
                values.truncate(rounds);
                Some(values)
            };
            let (of_reference, of_one) = (in_rounds(reference), in_rounds(one));
            if !metric.is_lacking_in(of_reference.as_deref()) && metric.is_lacking_in(of_one.as_deref()) {
                missing.push(printable(&metric.name).into_owned());
            }
            let ratios = of_reference.zip(of_one).and_then(|(a, b)| {
                let paired: Vec<(f64, f64)> = a.iter().copied().zip(b.iter().copied()).collect();
                let ratios = RoundRatios::new(metric.clone(), &paired).ok()?;
                Some(((middle(&a), middle(&b)), ratios))
            });
            match ratios {
                Some((of_both, ratios)) => {
                    medians.push(of_both);
                    family.push(ratios);
                }
                None => not_compared.push(printable(&metric.name).into_owned()),
            }
        }
        let findings = compare_rounds(&family, settings);
        let metrics = findings.into_iter().zip(medians).map(|(finding, medians)| PairedMetric::new(finding, medians));
        Self {
            contestant: printable(&one.name).into_owned(),
            rounds,
            metrics: metrics.collect(),
            not_compared,
            missing,
        }
    }
}

impl PairedMetric {
    fn new(finding: MetricFinding, (against_median, median): (f64, f64)) -> Self {
        Self {
            name: printable(&finding.metric.name).into_owned(),
            higher_is_better: finding.metric.gain == Gain::Higher,
            against_median,
            median,
            ratio: finding.ratio,
            interval: finding.interval,
            adjusted_p: finding.adjusted_p,
            verdict: finding.verdict.word("too few rounds"),
            is_beyond_margin: finding.is_beyond_margin,
            more_rounds: finding.verdict.more_rounds(),
            // The ratio's interval reaches from about ratio / f to ratio · f, where f is √(upper / lower). The interval
            // shows a difference if it excludes 1. This requires a ratio above f or below 1 / f, so f − 1 is about the
            // smallest difference that can be seen.
            resolution: finding.interval.map(|(lower, upper)| (upper / lower).sqrt() - 1.0),
            finding,
        }
    }
}

/// Compares contestant B with A, the reference contestant. The caller must choose the metrics in `family` before seeing
/// the results, because the p-values are adjusted only for the number of these metrics. If a metric has more rounds
/// than another, the surplus rounds are ignored.
pub fn compare_rounds(family: &[RoundRatios], settings: &CompareSettings) -> Vec<MetricFinding> {
    let rounds = family.iter().map(|ratios| ratios.logs.len()).min().unwrap_or_default();
    let logs: Vec<&[f64]> = family.iter().map(|ratios| &ratios.logs[..rounds]).collect();
    let all_p = flip_test::adjusted_p(&logs, settings.draws, settings.seed);
    let metrics = family.len();
    let findings = family.iter().zip(logs).zip(all_p).map(|((ratios, logs), adjusted_p)| {
        let (middle, interval) = signed_rank::estimate(logs, settings.level());
        let estimate = LogEstimate { middle, interval, adjusted_p, rounds, min_rounds: settings.min_rounds, metrics };
        MetricFinding::new(ratios.metric.clone(), &estimate, settings)
    });
    findings.collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use mailrun_measurement::record::Outcome;
    use mailrun_measurement::seeded::SeededRng;
    use serde_json::Value;
    use std::fs;

    pub(crate) const LOAD: RoundLoad = RoundLoad { messages: 1_000, sessions: 10, message_bytes: 400 };

    /// Makes a contestant whose figures vary at random by up to 5 % around `rate` and `cpu`.
    pub(crate) fn contestant(name: &str, rounds: usize, rate: f64, cpu: f64) -> RoundSamples {
        let mut random = SeededRng::new(5, 1_u64, name.len() as u64 + rate as u64);
        let mut noise = || 0.95 + 0.1 * random.unit();
        let figure = |name: &str, gain: Gain, value: f64| RunFigure {
            metric: ComparedMetric { name: name.to_owned(), gain },
            value,
        };
        let run = |_| {
            vec![figure("rate, msg/s", Gain::Higher, rate * noise()), figure("CPU, µs/msg", Gain::Lower, cpu * noise())]
        };
        RoundSamples {
            name: name.to_owned(),
            description: format!("{name} {{host}} {{port}}"),
            runs: (0..rounds).map(run).collect(),
            max_rss_bytes: Some(4 << 20),
            failure: None,
        }
    }

    pub(crate) fn compare(contestants: &[RoundSamples]) -> RoundComparison {
        let rounds = contestants.iter().map(|contestant| contestant.runs.len()).max().unwrap_or_default();
        let course = RoundCourse { planned_rounds: rounds, rounds, elapsed_s: 97.0, ..RoundCourse::default() };
        RoundComparison::new(contestants, 0, LOAD, course, &CompareSettings::default())
    }

    fn verdicts(comparison: &ContestantComparison) -> Vec<&'static str> {
        comparison.metrics.iter().map(|row| row.verdict).collect()
    }

    /// Asserts that the page names each key of the value. The keys below `values` are names of metrics, which the page
    /// does not list.
    pub(crate) fn assert_documented(value: &Value) {
        let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/compare.md")).unwrap();
        let (_, keys) = page.split_once("`mailrun-compare/1`").unwrap();
        let missing: Vec<&str> = names(value).into_iter().filter(|name| !keys.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/compare.md does not name {missing:?}");
    }

    fn names(value: &Value) -> Vec<&str> {
        match value {
            Value::Object(entries) => entries
                .iter()
                .flat_map(|(name, value)| {
                    let below = if name == "values" { Vec::new() } else { names(value) };
                    [vec![name.as_str()], below].concat()
                })
                .collect(),
            Value::Array(values) => values.iter().flat_map(names).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn the_page_names_every_key() {
        let mut comparison = compare(&[contestant("a", 40, 1000.0, 50.0), contestant("bb", 40, 500.0, 25.0)]);
        comparison.counts.extend(ExactRow::new("bb", "fsync per message", vec![1.0], vec![2.0]));
        assert_documented(&serde_json::to_value(comparison).unwrap());
    }

    #[test]
    fn half_the_rate_is_worse_and_half_the_time_is_better() {
        let pair = [contestant("a", 40, 1000.0, 50.0), contestant("bb", 40, 500.0, 25.0)];
        let compared = compare(&pair);
        assert_eq!(verdicts(&compared.comparisons[0]), ["worse", "better"]);
        let rate = &compared.comparisons[0].metrics[0];
        assert!((rate.ratio - 0.5).abs() < 0.02 && rate.is_beyond_margin, "{rate:?}");
        assert_eq!(compared.outcome(0.05), ComparisonOutcome::Regression);
        assert_eq!(compared.outcome(1.5), ComparisonOutcome::NoRegression);
        assert!(compared.is_decided());
        let back = compare(&[pair[1].clone(), pair[0].clone()]);
        assert_eq!((back.reference.as_str(), verdicts(&back.comparisons[0])), ("bb", vec!["better", "worse"]));
        let so_far = pair[1].ratio_so_far(&pair[0]).unwrap();
        assert!(so_far.0 == "rate, msg/s" && (so_far.1 - rate.ratio).abs() < 1e-9, "{so_far:?}");
    }

    #[test]
    fn few_rounds_have_ratios_and_no_verdict() {
        let compared = compare(&[contestant("a", 19, 1000.0, 50.0), contestant("bb", 19, 500.0, 25.0)]);
        assert_eq!(verdicts(&compared.comparisons[0]), ["too few rounds", "too few rounds"]);
        assert!(!compared.is_decided());
        assert_eq!(compared.outcome(0.05), ComparisonOutcome::Undecided);
        assert_eq!(compare(&[]).outcome(0.05), ComparisonOutcome::Undecided);
    }

    #[test]
    fn one_that_was_given_up_counts_as_far_as_it_ran() {
        let mut third = contestant("ccc", 25, 1000.0, 50.0);
        third.failure = Some("it hung".to_owned());
        let absent = RoundSamples { name: "none".to_owned(), failure: Some("no".to_owned()), ..Default::default() };
        let two = [contestant("a", 40, 1000.0, 50.0), contestant("bb", 40, 1000.0, 50.0)];
        let all = [absent, two[0].clone(), two[1].clone(), third];
        let compared = compare(&all);
        assert!(compared.failures().count() == 2 && compared.reference == "a", "{compared:?}");
        let rounds: Vec<usize> = compared.comparisons.iter().map(|one| one.rounds).collect();
        assert_eq!(rounds, [40, 25]);
        // Two comparisons share the 5 % risk of a false alarm, so each interval has a confidence of 97.5 %.
        assert!((compared.confidence_percent - 97.5).abs() < 1e-9);
    }

    #[test]
    fn a_metric_that_is_zero_or_missing_is_named_and_not_compared() {
        let mut pair = [contestant("a", 40, 1000.0, 50.0), contestant("bb", 40, 1000.0, 50.0)];
        pair[1].runs[7][1].value = 0.0;
        let compared = compare(&pair);
        assert_eq!(compared.comparisons[0].not_compared, ["CPU, µs/msg"]);
        assert_eq!(compared.comparisons[0].metrics.len(), 1);
        assert_ne!(compared.outcome(0.05), ComparisonOutcome::MetricMissing);
        pair[1].runs[7].pop();
        let compared = compare(&pair);
        assert_eq!(compared.comparisons[0].not_compared, ["CPU, µs/msg"]);
        assert_eq!(compared.outcome(0.05), ComparisonOutcome::MetricMissing);
        assert_eq!(compared.missing().collect::<Vec<_>>(), ["CPU, µs/msg of bb"]);
    }

    #[test]
    fn a_rate_of_0_and_a_time_beyond_all_others_are_a_regression_unless_the_reference_has_them_too() {
        let pair = || [contestant("a", 40, 1000.0, 50.0), contestant("bb", 40, 1000.0, 50.0)];
        for (place, value, name) in [(0, 0.0, "rate, msg/s"), (1, f64::INFINITY, "CPU, µs/msg")] {
            let mut bad = pair();
            bad[1].runs[7][place].value = value;
            let compared = compare(&bad);
            assert_eq!(compared.comparisons[0].missing, [name]);
            assert_eq!(compared.comparisons[0].not_compared, [name]);
            assert_eq!(compared.outcome(0.05), ComparisonOutcome::MetricMissing);
            let (outcome, reason) = compared.page(Some(0.05)).outcome.unwrap();
            let expected = format!("missing, 0 or beyond all times in some rounds, and in none of a: {name} of bb");
            assert_eq!((outcome, reason), (Outcome::Fail, expected));
            bad[0].runs[9][place].value = value;
            assert!(compare(&bad).comparisons[0].missing.is_empty(), "the reference has such a {name}, too");
        }
    }

    #[test]
    fn the_resolution_is_the_width_of_the_interval() {
        let compared = compare(&[contestant("a", 40, 1000.0, 50.0), contestant("bb", 40, 1000.0, 50.0)]);
        let row = &compared.comparisons[0].metrics[0];
        let (lower, upper) = row.interval.unwrap();
        let resolution = row.resolution.unwrap();
        assert!(((1.0 + resolution).powi(2) - upper / lower).abs() < 1e-9 && resolution < 0.05, "{row:?}");
    }
}
