use super::{label_test, rank_sum};
use crate::finding::{CompareSettings, LogEstimate, MetricFinding};
use crate::metric::{ComparedMetric, Gain, RunValues};
use crate::ranks::middle;
use crate::run_figures::{
    NamedRun, RunFigure, SHARE_UNIT, defect, failure_shares, failures, figures, side_facts, wrong_mail,
};
use crate::selection::{self, ComparableRuns, RunSide, SideLines};
use anyhow::{Result, bail};
use mailrun_measurement::record::{Cause, Outcome, Record};
use mailrun_report::comparison::{ComparedFigure, ComparedSide, ComparisonPage, RunCurves, percent};
use mailrun_text::printable::printable;
use serde::Serialize;
use std::collections::BTreeSet;

const COMPARISON_FORMAT: &str = "mailrun-compare/1";
const CONFIDENCE_PERCENT: f64 = 95.0;

const METHOD: [&str; 4] = [
    "The sides were measured at different times: a change of the host in between looks like a difference.",
    "The ratio is the median of the ratios of all pairs of runs (Hodges and Lehmann), the 95 % interval that of the \
     inverted test of Mann and Whitney.",
    "Better and worse are proven for all figures together: chance alone would show so clear a difference in any of them in \
     at most 5 of 100 comparisons (permutation of the runs, max-T).",
    "A verdict takes five runs a side. Runs that lost, duplicated or corrupted mail, ended early or were INVALID do not \
     count.",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonOutcome {
    /// The measurements show for every figure that it is not worse than allowed.
    NoRegression,
    /// At least one figure is worse than allowed.
    Regression,
    /// A judged run lost, duplicated or corrupted mail.
    MailLost,
    /// A judged run failed for a cause that no reference run has, such as rejected mail or a missed requirement. In a
    /// comparison of rounds, a contestant failed.
    RunFailed,
    /// A metric that all reference runs have is missing in at least one judged run.
    MetricMissing,
    Undecided,
}

#[derive(Debug, Serialize)]
pub struct StoredComparison {
    pub format: &'static str,
    /// Always false: each judged run is compared with every reference run, because stored runs share no rounds. In a
    /// `RoundComparison`, this field is true.
    pub paired: bool,
    pub runs: usize,
    pub against: usize,
    /// Share by which two figures may differ and still count as the same: 0.02 for 2 %.
    pub margin: f64,
    pub confidence_percent: f64,
    /// One line for each run that could not be read, has another load or host, or was named twice.
    pub refused: Vec<String>,
    /// One line for each run that is left out because it is unusable, for example because it ended early.
    pub left_out: SideLines,
    /// Number of judged runs that lost, duplicated or corrupted mail.
    pub unsound_runs: usize,
    /// A line for each judged run that failed for a cause that no reference run has, such as a missed threshold.
    pub failed_runs: Vec<String>,
    /// A line for each side that has failed runs. It says how many runs failed, and why the first of them failed.
    #[serde(skip)]
    pub fail_remarks: Vec<String>,
    /// Names of figures that cannot be compared, because in some runs they are missing, 0 or infinite. A ratio to such
    /// a value does not exist.
    pub not_compared: Vec<String>,
    /// Names of figures that all reference runs have, but at least one judged run lacks. A run lacks a figure if its
    /// value is missing, is a rate of 0, or is a time longer than the run waited.
    pub missing: Vec<String>,
    pub metrics: Vec<MetricRow>,
    /// The side of the reference runs, then the side of the judged runs, with the curves that the comparison's page
    /// draws for each run.
    #[serde(skip)]
    pub sides: Vec<ComparedSide>,
}

impl ComparisonOutcome {
    /// Returns `Regression` if a figure is worse by at least `limit` (0.05 for 5 %), and `NoRegression` if the
    /// measurements rule that out for all figures. Otherwise, or if there are no figures, returns `Undecided`.
    pub(crate) fn of_findings<'a, I: Iterator<Item = &'a MetricFinding>>(findings: impl Fn() -> I, limit: f64) -> Self {
        if findings().any(|finding| finding.is_regression(limit)) {
            return Self::Regression;
        }
        let is_open = findings().next().is_none() || findings().any(|finding| finding.may_be_regression(limit));
        if is_open { Self::Undecided } else { Self::NoRegression }
    }
}

#[derive(Debug, Serialize)]
pub struct MetricRow {
    /// Name of the metric with its unit, for example `delivered p99, ms`.
    pub name: String,
    pub higher_is_better: bool,
    pub against_values: Vec<f64>,
    pub values: Vec<f64>,
    pub against_median: f64,
    pub median: f64,
    /// Hodges–Lehmann estimate of the ratio of the judged runs to the reference runs.
    pub ratio: f64,
    /// Confidence interval of the ratio, or `null` if there are too few runs.
    pub interval: Option<(f64, f64)>,
    /// Adjusted p-value: probability that chance alone would make some metric differ as clearly as this one does.
    pub adjusted_p: f64,
    /// Verdict in words: better, worse, same, undecided or too few runs.
    pub verdict: &'static str,
    pub is_beyond_margin: bool,
    /// Estimated number of further runs per side that an undecided metric needs for a verdict.
    pub more_runs: Option<usize>,
    #[serde(skip)]
    finding: MetricFinding,
}

/// Compares the judged runs with the reference runs. `margin` is the share by which two figures may differ and still
/// count as the same: 0.02 for 2 %. If not all runs have the same load and host, one load and host is chosen, and the
/// other runs are refused.
///
/// # Errors
/// Fails if the two sides have no load and host in common, or if all runs of a side are unusable. If the judged runs
/// are unusable because the server lost mail or failed, the comparison succeeds, and its outcome reports the failure.
pub fn compare_stored(judged: &RunSide, reference: &RunSide, margin: f64) -> Result<StoredComparison> {
    let chosen = selection::choose(judged, reference)?;
    let defect_line = |run: &&NamedRun| Some(format!("{}: {}", printable(&run.0), printable(&defect(&run.1)?)));
    let defect_lines = |side: &[&NamedRun]| side.iter().filter_map(defect_line).collect::<Vec<String>>();
    let left_out = SideLines { against: defect_lines(&chosen.reference), runs: defect_lines(&chosen.runs) };
    let sound = |side: &[&NamedRun]| -> Vec<Record> {
        side.iter().filter(|run| defect(&run.1).is_none()).map(|run| run.1.clone()).collect()
    };
    let old = sound(&chosen.reference);
    let new = sound(&chosen.runs);
    let unsound_runs = chosen.runs.iter().filter(|run| wrong_mail(&run.1).is_some()).count();
    let failed_runs = failed_runs(&chosen);
    if old.is_empty() || (new.is_empty() && unsound_runs == 0 && failed_runs.is_empty()) {
        let (side, lines) = if old.is_empty() { (reference, &left_out.against) } else { (judged, &left_out.runs) };
        bail!("no run of {} can be used: {}", side.name, selection::reasons(lines));
    }
    let kinds: BTreeSet<Cause> = old.iter().flat_map(failures).map(|(cause, _)| cause).collect();
    let of_run = |record: &Record| [figures(record), failure_shares(record, &kinds)].concat();
    let of_side = |records: &[Record]| records.iter().map(of_run).collect::<Vec<_>>();
    let FigureRows { metrics, not_compared, missing } = figure_rows(&of_side(&old), &of_side(&new), margin);
    Ok(StoredComparison {
        format: COMPARISON_FORMAT,
        paired: false,
        runs: new.len(),
        against: old.len(),
        margin,
        confidence_percent: CONFIDENCE_PERCENT,
        refused: chosen.refused,
        left_out,
        unsound_runs,
        failed_runs,
        fail_remarks: [("runs", &chosen.runs), ("runs that they are compared with", &chosen.reference)]
            .into_iter()
            .filter_map(|(side, runs)| fail_remark(side, runs))
            .collect(),
        not_compared,
        missing,
        metrics,
        sides: vec![shown_side(reference, "against", &old), shown_side(judged, "runs", &new)],
    })
}

fn failed_runs(chosen: &ComparableRuns<'_>) -> Vec<String> {
    let known: BTreeSet<Cause> =
        chosen.reference.iter().flat_map(|run| failures(&run.1)).map(|(cause, _)| cause).collect();
    let line = |run: &&NamedRun| {
        let new = failures(&run.1).into_iter().filter(|(cause, _)| !known.contains(cause));
        let texts: Vec<String> = new.map(|(_, text)| text).collect();
        (!texts.is_empty()).then(|| printable(&format!("{}: {}", run.0, texts.join(", "))).into_owned())
    };
    chosen.runs.iter().filter_map(line).collect()
}

/// Says how many runs of a side ended with FAIL, and why the first of them failed. Returns `None` if no run failed.
fn fail_remark(side: &str, runs: &[&NamedRun]) -> Option<String> {
    let failed: Vec<_> = runs.iter().filter(|run| run.1.verdict.outcome == Some(Outcome::Fail)).collect();
    let (name, record) = failed.first()?;
    let text = format!("{} of {} {side} FAILED; {name}: {}", failed.len(), runs.len(), record.verdict.why);
    Some(printable(&text).into_owned())
}

fn shown_side(side: &RunSide, other_name: &str, records: &[Record]) -> ComparedSide {
    let all: Vec<&Record> = records.iter().collect();
    ComparedSide {
        name: if side.title.is_empty() { other_name.to_owned() } else { side.title.clone() },
        facts: side_facts(&all),
        runs: records.iter().map(RunCurves::of).collect(),
    }
}

/// A metric has a row in `metrics` if all runs have a usable value for it. Otherwise, `not_compared` has its name. If
/// no reference run lacks the value, but a judged run does, `missing` has the name as well.
struct FigureRows {
    metrics: Vec<MetricRow>,
    not_compared: Vec<String>,
    missing: Vec<String>,
}

fn figure_rows(old: &[Vec<RunFigure>], new: &[Vec<RunFigure>], margin: f64) -> FigureRows {
    let mut names: Vec<&ComparedMetric> = Vec::new();
    for figure in old.iter().chain(new).flatten() {
        if !names.contains(&&figure.metric) {
            names.push(&figure.metric);
        }
    }
    let mut family = Vec::new();
    let mut of_metrics = Vec::new();
    let mut not_compared = Vec::new();
    let mut missing = Vec::new();
    for metric in names {
        let values = |side: &[Vec<RunFigure>]| {
            let of_run =
                |run: &Vec<RunFigure>| run.iter().find(|figure| figure.metric == *metric).map(|figure| figure.value);
            side.iter().map(of_run).collect::<Option<Vec<f64>>>()
        };
        let (of_old, of_new) = (values(old), values(new));
        if !metric.is_lacking_in(of_old.as_deref()) && metric.is_lacking_in(of_new.as_deref()) {
            missing.push(printable(&metric.name).into_owned());
        }
        let both = of_old.zip(of_new).filter(|(_, new)| !new.is_empty());
        match both.and_then(|(a, b)| Some((RunValues::new(metric.clone(), &a, &b).ok()?, (a, b)))) {
            Some((values, sides)) => {
                family.push(values);
                of_metrics.push(sides);
            }
            None => not_compared.push(printable(&metric.name).into_owned()),
        }
    }
    let settings = CompareSettings { margin, ..CompareSettings::default() };
    let findings = compare_runs(&family, &settings);
    let rows = findings.into_iter().zip(of_metrics).map(|(finding, sides)| MetricRow::new(finding, sides));
    FigureRows { metrics: rows.collect(), not_compared, missing }
}

impl MetricRow {
    fn new(finding: MetricFinding, (against_values, values): (Vec<f64>, Vec<f64>)) -> Self {
        Self {
            name: printable(&finding.metric.name).into_owned(),
            higher_is_better: finding.metric.gain == Gain::Higher,
            against_median: middle(&against_values),
            median: middle(&values),
            against_values,
            values,
            ratio: finding.ratio,
            interval: finding.interval,
            adjusted_p: finding.adjusted_p,
            verdict: finding.verdict.word("too few runs"),
            is_beyond_margin: finding.is_beyond_margin,
            more_runs: finding.verdict.more_rounds(),
            finding,
        }
    }
}

impl MetricRow {
    fn shown(&self) -> ComparedFigure {
        ComparedFigure {
            name: self.name.clone(),
            side: 1,
            higher_is_better: self.higher_is_better,
            reference_values: self.against_values.clone(),
            values: self.values.clone(),
            reference_median: self.against_median,
            median: self.median,
            ratio: self.ratio,
            interval: self.interval,
            verdict: self.finding.verdict,
            is_beyond_margin: self.is_beyond_margin,
        }
    }
}

impl StoredComparison {
    /// Returns the comparison as a page. With a `limit`, the page says whether a figure got worse by at least this
    /// share.
    pub fn page(&self, limit: Option<f64>) -> ComparisonPage {
        let left_out = self.left_out.iter().map(|run| format!("Left out: {run}"));
        let missing = (!self.not_compared.is_empty())
            .then(|| format!("Not compared, as not all runs have a value: {}", self.not_compared.join(", ")));
        ComparisonPage {
            title: format!("stored runs: {}, against {}", self.runs, self.against),
            outcome: limit.map(|limit| self.judged(limit)),
            is_paired: false,
            margin: self.margin,
            sides: self.sides.clone(),
            figures: self.metrics.iter().map(MetricRow::shown).collect(),
            refused: self.refused.clone(),
            remarks: self.fail_remarks.iter().cloned().chain(left_out).chain(missing).collect(),
            method: METHOD.map(str::to_owned).to_vec(),
        }
    }

    fn judged(&self, limit: f64) -> (Outcome, String) {
        let share = percent(limit);
        match self.outcome(limit) {
            ComparisonOutcome::Regression => {
                let worse = self.metrics.iter().filter(|row| row.finding.is_regression(limit));
                let names: Vec<&str> = worse.map(|row| row.name.as_str()).collect();
                (Outcome::Fail, format!("worse by {share} or more: {}", names.join("; ")))
            }
            ComparisonOutcome::MailLost => {
                (Outcome::Fail, format!("{} of the runs lost, duplicated or corrupted mail", self.unsound_runs))
            }
            ComparisonOutcome::RunFailed => {
                let reasons = selection::reasons(&self.failed_runs);
                (Outcome::Fail, format!("{reasons}; none of the runs that they are compared with did"))
            }
            ComparisonOutcome::MetricMissing => (
                Outcome::Fail,
                format!(
                    "missing, 0 or beyond all times in some of the runs, and in none that they are compared with: {}",
                    self.missing.join("; ")
                ),
            ),
            ComparisonOutcome::NoRegression => (Outcome::Pass, format!("no figure is worse by {share} or more")),
            ComparisonOutcome::Undecided => {
                let wanted = |count: usize, side: &str| {
                    let more = MIN_RUNS.saturating_sub(count);
                    (more > 0).then(|| format!("{more} more of {side}"))
                };
                let wanted = [wanted(self.runs, "the runs"), wanted(self.against, "those that they are compared with")];
                let wanted: Vec<String> = wanted.into_iter().flatten().collect();
                let todo = match wanted.is_empty() {
                    true => "make more runs".to_owned(),
                    false => {
                        format!("a verdict takes {MIN_RUNS} runs a side that count, so make {}", wanted.join(" and "))
                    }
                };
                (Outcome::Inconclusive, format!("a figure may be worse by {share} or more: {todo}"))
            }
        }
    }

    /// Returns the outcome for `--fail-on-regression`. The first of these that applies decides: lost or wrong mail, a
    /// failure that no reference run had, a missing metric. Otherwise, the outcome depends on whether a figure got
    /// worse by at least `limit` (0.05 for 5 %).
    pub fn outcome(&self, limit: f64) -> ComparisonOutcome {
        if self.unsound_runs > 0 {
            return ComparisonOutcome::MailLost;
        }
        if !self.failed_runs.is_empty() {
            return ComparisonOutcome::RunFailed;
        }
        if !self.missing.is_empty() {
            return ComparisonOutcome::MetricMissing;
        }
        // Look at the shares of failed mail only if a metric is a regression. Otherwise, a single failed message could
        // make the outcome `Undecided`, because it neither proves nor rules out a regression.
        let worse = self.metrics.iter().any(|row| row.finding.is_regression(limit));
        let figures = || self.metrics.iter().filter(|row| worse || !row.name.ends_with(SHARE_UNIT));
        ComparisonOutcome::of_findings(|| figures().map(|row| &row.finding), limit)
    }
}

/// Minimum number of runs on each side for a verdict, whatever `CompareSettings::min_rounds` says.
pub(crate) const MIN_RUNS: usize = 5;

/// Compares the runs of B with the runs of A, the reference. The caller must choose the metrics in `family` before
/// seeing the results, because the p-values are adjusted only for the number of these metrics. If a metric has more
/// runs than another, the surplus runs are ignored. If the host changed between the runs, the comparison cannot tell
/// this change from a difference between A and B.
pub fn compare_runs(family: &[RunValues], settings: &CompareSettings) -> Vec<MetricFinding> {
    let of_a = family.iter().map(|values| values.a.len()).min().unwrap_or_default();
    let of_b = family.iter().map(|values| values.b.len()).min().unwrap_or_default();
    let logs: Vec<(&[f64], &[f64])> = family.iter().map(|values| (&values.a[..of_a], &values.b[..of_b])).collect();
    let all_p = label_test::adjusted_p(&logs, settings.draws, settings.seed);
    let metrics = family.len();
    let findings = family.iter().zip(logs).zip(all_p).map(|((values, (a, b)), adjusted_p)| {
        let (middle, interval) = rank_sum::shift(a, b, settings.level());
        let rounds = of_a.min(of_b);
        let estimate = LogEstimate { middle, interval, adjusted_p, rounds, min_rounds: MIN_RUNS, metrics };
        MetricFinding::new(values.metric.clone(), &estimate, settings)
    });
    findings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::judge;
    use mailrun_measurement::mades::{Mades, MadesMarket, MadesShape};
    use mailrun_measurement::reason::Reason;
    use mailrun_measurement::record::{
        CorpusRow, Ending, ExhaustedRow, KeepAwake, OfferedStage, Resource, Varied, Verdict, WarmUp,
    };
    use mailrun_measurement::stage::Stage;

    /// Returns one side of a comparison: for each rate, a copy of the sample record with this rate in all stages.
    fn side(name: &str, rates: &[f64]) -> RunSide {
        let run = |(place, per_s): (usize, &f64)| {
            let mut record = mailrun_report::sample::held();
            for row in &mut record.stages {
                row.rate_per_s = Some(*per_s);
            }
            record.run_id = format!("{name}-{place}-{per_s}");
            (format!("{name}/{place}"), record)
        };
        RunSide {
            name: name.to_owned(),
            title: String::new(),
            runs: rates.iter().enumerate().map(run).collect(),
            unreadable: Vec::new(),
        }
    }

    #[test]
    fn the_page_names_every_key() {
        let comparison = compare_stored(&side("b", &[800.0, 810.0]), &side("a", &[1000.0, 1010.0]), 0.02).unwrap();
        crate::round_comparison::tests::assert_documented(&serde_json::to_value(comparison).unwrap());
    }

    #[test]
    fn a_slower_server_is_worse_and_a_regression() {
        let against = side("a", &[1000.0, 1010.0, 990.0, 1005.0, 995.0, 1002.0]);
        let runs = side("b", &[800.0, 810.0, 790.0, 805.0, 795.0, 802.0]);
        let comparison = compare_stored(&runs, &against, 0.02).unwrap();
        let row = &comparison.metrics[0];
        assert_eq!((row.name.as_str(), row.verdict, row.is_beyond_margin), ("delivered, msg/s", "worse", true));
        assert!((row.ratio - 0.8).abs() < 0.01, "{row:?}");
        assert_eq!(comparison.outcome(0.05), ComparisonOutcome::Regression);
        assert_eq!(comparison.outcome(0.30), ComparisonOutcome::NoRegression);
        let back = compare_stored(&against, &runs, 0.02).unwrap();
        assert_eq!(back.metrics[0].verdict, "better");
        assert_eq!(back.outcome(0.05), ComparisonOutcome::NoRegression);
    }

    #[test]
    fn four_runs_have_ratios_and_no_verdict() {
        let four = side("b", &[1000.0, 1010.0, 990.0, 1005.0]);
        let others = side("a", &[1001.0, 1011.0, 991.0, 1006.0]);
        let comparison = compare_stored(&four, &others, 0.02).unwrap();
        assert!(comparison.metrics.iter().all(|row| row.verdict == "too few runs"), "{comparison:?}");
        assert_eq!(comparison.outcome(0.05), ComparisonOutcome::Undecided);
        let wanted = "a verdict takes 5 runs a side that count, so make 1 more of the runs and 1 more of those that they are compared with";
        assert!(comparison.judged(0.05).1.ends_with(wanted), "{}", comparison.judged(0.05).1);
    }

    #[test]
    fn a_rate_of_0_and_a_time_beyond_all_others_are_worse_and_never_left_out_in_silence() {
        let against = side("a", &[1000.0; 6]);
        let stopped = compare_stored(&side("b", &[0.0; 6]), &against, 0.02).unwrap();
        assert_eq!(
            (stopped.missing, stopped.not_compared),
            (vec!["delivered, msg/s".to_owned()], vec!["delivered, msg/s".to_owned()])
        );
        let mut late = side("c", &[1000.0; 6]);
        for (_, record) in &mut late.runs {
            let times = record.stages[2].latency_ms.as_mut().unwrap();
            (times.p99, times.max) = (f64::INFINITY, f64::INFINITY);
        }
        let late = compare_stored(&late, &against, 0.02).unwrap();
        assert_eq!(
            (late.missing.as_slice(), late.outcome(0.05)),
            (&["delivered p99, ms".to_owned()][..], ComparisonOutcome::MetricMissing)
        );
        assert!(
            late.judged(0.05).1.starts_with("missing, 0 or beyond all times in some of the runs"),
            "{}",
            late.judged(0.05).1
        );
        let mended = compare_stored(&against, &side("d", &[0.0; 6]), 0.02).unwrap();
        assert!(mended.missing.is_empty() && mended.not_compared == ["delivered, msg/s"], "{mended:?}");
    }

    #[test]
    fn a_run_of_another_load_protocol_or_host_is_refused_and_the_others_count() {
        let against = side("a", &[1000.0; 6]);
        let mut runs = side("b", &[1001.0; 9]);
        runs.runs[0].1.workload.sessions = 7;
        runs.runs[3].1 = mailrun_report::sample::mades();
        runs.runs[3].1.run_id = "another".to_owned();
        runs.runs[5].1.host.cores = 99;
        runs.runs[6].1.host.keep_awake = Some(KeepAwake::On);
        runs.runs[7].1.host.keep_awake = Some(KeepAwake::Unavailable);
        runs.unreadable.push("b/9 is damaged".to_owned());
        let comparison = compare_stored(&runs, &against, 0.02).unwrap();
        assert_eq!((comparison.runs, comparison.against), (5, 6));
        assert_eq!(comparison.refused.len(), 5, "{:?}", comparison.refused);
        assert_eq!(comparison.refused[0], "b/9 is damaged");
        for (line, words) in comparison.refused[1..].iter().zip([
            "number of sessions of b/0 is 7, that",
            "protocol of b/3",
            "number of cores of b/5",
            "--keep-awake of b/6 is on, that of a/0 is off",
        ]) {
            assert!(line.starts_with(&format!("the {words}")) && line.lines().count() == 1, "{line}");
        }
    }

    /// Runs can be compared if their loads differ only in the number of messages, the duration, the seed or the
    /// addresses. If a run differs in anything else, it is refused with a line that names the difference.
    #[test]
    fn each_part_of_the_load_must_be_the_same() {
        let varied = || Some(Varied { expression: "1..5".to_owned(), least: 1.0, mean: 3.0, most: 5.0 });
        let stage = || OfferedStage { length_s: 60.0, to_per_s: 1000.0, ..OfferedStage::default() };
        let corpus = || CorpusRow { messages: 3, bytes: 1_200, ..CorpusRow::default() };
        type Change<'a> = (&'a str, &'a dyn Fn(&mut Record));
        let mail: [Change<'_>; 11] = [
            ("the message size of b/1 is 1..5 (mean: 400 bytes)", &|run| run.workload.sizes_varied = varied()),
            ("the number of recipients of b/1 is 1..5", &|run| run.workload.recipients_varied = varied()),
            ("the messages per connection of b/1 is 1..5", &|run| run.workload.reuse_varied = varied()),
            ("the chunking of b/1 is BDAT, that of a/0 is none", &|run| run.workload.chunking = true),
            ("the DSN of b/1 is ORCPT", &|run| run.workload.dsn = Some("ORCPT".to_owned())),
            ("the rate of b/1 is 0/s to 1000/s in 60 s", &|run| run.workload.stages.push(stage())),
            ("the pause after each message of b/1 is 1..5", &|run| run.workload.think_ms = varied()),
            ("the warm-up of b/1 is 5 s", &|run| run.warm_up = Some(WarmUp { length_s: 5.0, ..WarmUp::default() })),
            ("the corpus of b/1 is 3 messages of 1,200 bytes", &|run| run.workload.corpus = Some(corpus())),
            ("the number of MIME messages of b/1 is 64", &|run| run.workload.mime_messages = Some(64)),
            ("", &|run| {
                let load = &mut run.workload;
                (load.messages, load.duration_limit_s, load.seed) = (None, Some(9.0), 9);
                (load.target, load.from, load.rcpt) = ("t".to_owned(), "f".to_owned(), "r".to_owned());
            }),
        ];
        fn mades(run: &mut Record) -> &mut Mades {
            run.mades.as_mut().unwrap()
        }
        let market = || MadesMarket {
            shapes: vec![MadesShape { name: "heartbeat every 5m".to_owned(), ..MadesShape::default() }],
            acceleration: 60,
            ..MadesMarket::default()
        };
        let over_mades: [Change<'_>; 7] = [
            ("the mode of b/1 is tracing, that of a/0 is endpoint", &|run| mades(run).mode = "tracing".to_owned()),
            ("the message type of b/1 is X", &|run| mades(run).message_type = "X".to_owned()),
            ("the payload of b/1 is xml", &|run| mades(run).payload = "xml".to_owned()),
            ("the durability of b/1 is not durable", &|run| mades(run).durable = false),
            ("the window of b/1 is 1, that of a/0 is 128", &|run| mades(run).window = 1),
            ("the market of b/1 is heartbeat every 5m (60 times", &|run| mades(run).market = Some(market())),
            ("the sender of acknowledgements of b/1", &|run| mades(run).acknowledgements = Some(Default::default())),
        ];
        let of_mades = |name: &str| {
            let mut side = side(name, &[1000.0; 3]);
            for (place, (_, record)) in side.runs.iter_mut().enumerate() {
                *record = Record { ledger: record.ledger.clone(), ..mailrun_report::sample::mades() };
                record.run_id = format!("{name}-{place}");
            }
            side
        };
        let of_mail = |name: &str| side(name, &[1000.0; 3]);
        let check = |of: &dyn Fn(&str) -> RunSide, (line, change): &Change<'_>| {
            let mut runs = of("b");
            change(&mut runs.runs[1].1);
            let refused = compare_stored(&runs, &of("a"), 0.02).unwrap().refused;
            let is_expected = if line.is_empty() { refused.is_empty() } else { refused.len() == 1 };
            assert!(is_expected && refused.concat().starts_with(line), "{line}: {refused:?}");
        };
        mail.iter().for_each(|change| check(&of_mail, change));
        over_mades.iter().for_each(|change| check(&of_mades, change));
    }

    #[test]
    fn the_load_of_most_runs_counts_and_not_that_of_the_first() {
        let mut against = side("a", &[1000.0; 6]);
        against.runs[0].1.workload.sessions = 7;
        let comparison = compare_stored(&side("b", &[1001.0; 5]), &against, 0.02).unwrap();
        assert_eq!((comparison.runs, comparison.against), (5, 5));
        assert!(comparison.refused[0].starts_with("the number of sessions of a/0 is 7"), "{:?}", comparison.refused);
    }

    #[test]
    fn sides_without_a_common_load_are_refused_in_a_line() {
        let against = side("a", &[1000.0; 5]);
        let mut runs = side("b", &[1001.0; 5]);
        runs.runs.iter_mut().for_each(|(_, record)| record.workload.sessions = 7);
        let error = compare_stored(&runs, &against, 0.02).unwrap_err().to_string();
        assert!(error.starts_with("no run of b is like one of a: the number of sessions of b/0 is 7"), "{error}");
        assert!(error.ends_with("; and 2 more") && error.lines().count() == 1, "{error}");
        runs.runs.clear();
        runs.unreadable.push("cannot read b: no".to_owned());
        let error = compare_stored(&runs, &against, 0.02).unwrap_err().to_string();
        assert_eq!(error, "no run of b can be used: cannot read b: no");
    }

    #[test]
    fn an_error_about_a_side_shows_the_runs_of_that_side() {
        let mut against = side("a", &[1000.0; 8]);
        against.unreadable = (0..3).map(|number| format!("cannot read a/{number}")).collect();
        for (_, record) in &mut against.runs[..3] {
            record.ledger.lost = Some(3);
        }
        let mut runs = side("b", &[1001.0; 5]);
        runs.runs.iter_mut().for_each(|(_, record)| record.verdict.valid = false);
        let error = |runs: &RunSide| compare_stored(runs, &against, 0.02).unwrap_err().to_string();
        let unusable = error(&runs);
        assert!(unusable.starts_with("no run of b can be used: b/0: INVALID"), "{unusable}");
        assert!(unusable.ends_with("; and 2 more"), "{unusable}");
        runs.runs.iter_mut().for_each(|(_, record)| record.workload.sessions = 7);
        let unlike = error(&runs);
        let expected = "no run of b is like one of a: the number of sessions of b/0 is 7";
        assert!(unlike.starts_with(expected) && unlike.ends_with("; and 2 more"), "{unlike}");
        runs.runs.clear();
        runs.unreadable.push("cannot read b".to_owned());
        assert_eq!(error(&runs), "no run of b can be used: cannot read b");
    }

    #[test]
    fn a_run_counts_once() {
        let mut runs = side("a", &[1000.0; 6]);
        let again = runs.runs[2].clone();
        runs.runs.push(again);
        let against = side("b", &[1000.0; 5]);
        let comparison = compare_stored(&runs, &against, 0.02).unwrap();
        assert_eq!((comparison.runs, comparison.refused), (6, vec!["a/2 is the same run as a/2".to_owned()]));
        let error = compare_stored(&runs, &runs, 0.02).unwrap_err().to_string();
        assert!(error.starts_with("no run of a can be used: a/0 is the same run as a/0; a/1 is the same"), "{error}");
    }

    #[test]
    fn a_run_that_lost_mail_does_not_count_and_is_named() {
        let against = side("a", &[1000.0; 6]);
        let mut runs = side("b", &[1001.0; 6]);
        runs.runs[2].1.ledger.lost = Some(3);
        let comparison = compare_stored(&runs, &against, 0.02).unwrap();
        assert_eq!((comparison.runs, comparison.against), (5, 6));
        assert_eq!(comparison.left_out.runs, ["b/2: 3 lost"]);
        assert_eq!(serde_json::to_value(&comparison).unwrap()["left_out"], serde_json::json!(["b/2: 3 lost"]));
        assert_eq!(comparison.outcome(5.0), ComparisonOutcome::MailLost);
        runs.runs.iter_mut().for_each(|(_, record)| record.ledger.lost = Some(3));
        let comparison = compare_stored(&runs, &against, 0.02).unwrap();
        assert_eq!((comparison.runs, comparison.metrics.len()), (0, 0));
        assert_eq!(comparison.outcome(5.0), ComparisonOutcome::MailLost);
        runs.runs.iter_mut().for_each(|(_, record)| record.ledger.lost = Some(0));
        runs.runs.iter_mut().for_each(|(_, record)| record.verdict.valid = false);
        let error = compare_stored(&runs, &against, 0.02).unwrap_err().to_string();
        assert!(error.starts_with("no run of b can be used: b/0: INVALID"), "{error}");
    }

    #[test]
    fn a_run_that_ended_early_is_left_out_with_the_reason() {
        let left_out = |ending: Ending| {
            let mut runs = side("b", &[1001.0; 6]);
            runs.runs[2].1.ending = Some(ending);
            compare_stored(&runs, &side("a", &[1000.0; 6]), 0.02).unwrap().left_out.runs.concat()
        };
        assert_eq!(left_out(Ending::Complete), "");
        assert_eq!(left_out(Ending::Interrupted), "b/2: it was interrupted");
        assert_eq!(left_out(Ending::Aborted), "b/2: a threshold of --abort-on was missed");
        for (ending, party) in [
            (Ending::GaveUp, "the source gave up"),
            (Ending::ServerEnded, "a server that the bench had started ended"),
            (Ending::SinkEnded, "the sink ended"),
        ] {
            assert!(left_out(ending).starts_with(&format!("b/2: {party}")), "{ending:?}: {}", left_out(ending));
        }
    }

    /// Returns the judge's verdict on a run with these causes. The text of each reason is the name of its cause.
    fn verdict(causes: &[Cause]) -> Verdict {
        judge::decide(causes.iter().map(|cause| Reason::new(*cause, format!("{cause:?}."))).collect(), "")
    }

    #[test]
    fn a_run_that_fails_as_none_of_the_others_did_is_a_regression() {
        let mut against = side("a", &[1000.0; 6]);
        let mut runs = side("b", &[1001.0; 6]);
        let outcome = |runs: &RunSide, against: &RunSide| {
            let comparison = compare_stored(runs, against, 0.02).unwrap();
            (comparison.outcome(0.05), comparison.judged(0.05).1)
        };
        assert_eq!(outcome(&runs, &against).0, ComparisonOutcome::NoRegression);
        runs.runs[2].1.ledger.rejected = Some(3);
        let (actual, reason) = outcome(&runs, &against);
        assert_eq!(actual, ComparisonOutcome::RunFailed);
        assert_eq!(reason, "b/2: 3 rejected; none of the runs that they are compared with did");
        against.runs[0].1.ledger.rejected = Some(1);
        assert_eq!(outcome(&runs, &against).0, ComparisonOutcome::NoRegression, "one of the others rejected mail too");
        runs.runs[2].1.ledger.failed = Some(1_000);
        assert!(outcome(&runs, &against).1.starts_with("b/2: 1,000 failed;"));
        runs.runs[2].1.ending = Some(Ending::GaveUp);
        assert_eq!(outcome(&runs, &against).0, ComparisonOutcome::RunFailed, "a run that does not count is judged");
        let mut missed = side("b", &[1001.0; 6]);
        missed.runs[1].1.verdict = verdict(&[Cause::ThresholdMissed]);
        assert!(outcome(&missed, &against).1.starts_with("b/1: FAIL ThresholdMissed;"));
        let remarks = compare_stored(&against, &missed, 0.02).unwrap().page(None).remarks;
        assert_eq!(remarks[0], "1 of 6 runs that they are compared with FAILED; b/1: ThresholdMissed.");
    }

    #[test]
    fn a_failure_is_excused_only_by_a_failure_of_the_same_cause() {
        use ComparisonOutcome::{NoRegression, RunFailed};
        let missed = [Cause::ThresholdMissed];
        let both = [Cause::RateMissed, Cause::ThresholdMissed];
        let none: [Cause; 0] = [];
        for (reference, judged, expected) in [
            (&none[..], &missed[..], RunFailed),
            (&missed[..], &missed[..], NoRegression),
            (&both[..1], &[Cause::Died][..], RunFailed),
            (&both[..1], &both[..], RunFailed),
            (&both[..], &missed[..], NoRegression),
            // A run that missed a threshold on a busy host is INVALID and not FAIL, so it does not count as failed.
            (&none[..], &[Cause::HostBusy, Cause::ThresholdMissed][..], NoRegression),
            (&none[..], &[Cause::Remark][..], NoRegression),
        ] {
            let (mut against, mut runs) = (side("a", &[1000.0; 6]), side("b", &[1001.0; 6]));
            // Each run has one rejected message, but the verdicts do not count it as a failure. This imitates runs with
            // a threshold that allows a rejected message.
            for (_, record) in against.runs.iter_mut().chain(&mut runs.runs) {
                record.ledger.rejected = Some(1);
            }
            against.runs[4].1.verdict = verdict(reference);
            runs.runs[2].1.verdict = verdict(judged);
            let comparison = compare_stored(&runs, &against, 0.02).unwrap();
            assert_eq!(comparison.outcome(0.05), expected, "{reference:?} {judged:?}: {:?}", comparison.failed_runs);
        }
    }

    #[test]
    fn mail_that_mailrun_itself_could_not_send_or_receive_is_no_failure_of_the_server() {
        let sound = |name: &str| side(name, &[1000.0; 6]);
        let exhausted = |name: &str, causes: &[Cause]| {
            let mut side = sound(name);
            let record = &mut side.runs[2].1;
            let row = ExhaustedRow {
                party: "source".to_owned(),
                resource: Resource::Ports,
                count: 500,
                limit: None,
                needed: None,
            };
            record.exhausted.push(row);
            record.ledger.failed = Some(500);
            record.verdict = verdict(causes);
            side
        };
        let outcome = |runs: &RunSide, against: &RunSide| compare_stored(runs, against, 0.02).unwrap().outcome(0.05);
        let ours = [Cause::Exhausted];
        assert_eq!(outcome(&exhausted("b", &ours), &sound("a")), ComparisonOutcome::NoRegression);
        let mut failing = sound("b");
        failing.runs[3].1.ledger.failed = Some(7);
        assert_eq!(outcome(&failing, &exhausted("a", &ours)), ComparisonOutcome::RunFailed);
        // This source ran out of ports, but the server caused some of the failures, so the run failed.
        let theirs = exhausted("b", &[Cause::Failed, Cause::Exhausted]);
        assert_eq!(outcome(&theirs, &sound("a")), ComparisonOutcome::RunFailed);
        // Mail is missing because mailrun ran out of a resource, so it must not count as lost by the server.
        let mut lost = sound("b");
        lost.runs[2].1.ledger.lost = Some(9);
        lost.runs[2].1.verdict = verdict(&ours);
        assert_eq!(outcome(&lost, &sound("a")), ComparisonOutcome::NoRegression);
        lost.runs[2].1.verdict = verdict(&[Cause::Lost, Cause::Exhausted]);
        assert_eq!(outcome(&lost, &sound("a")), ComparisonOutcome::MailLost);
    }

    #[test]
    fn a_clearly_higher_share_of_failures_is_a_regression() {
        let rejected = |name: &str, counts: [u64; 6]| {
            let mut side = side(name, &[1000.0; 6]);
            let runs = side.runs.iter_mut().zip(counts);
            runs.for_each(|((_, record), count)| record.ledger.rejected = Some(count));
            side
        };
        let against = rejected("a", [20, 25, 18, 22, 0, 21]);
        let outcome = |counts: [u64; 6]| compare_stored(&rejected("b", counts), &against, 0.02).unwrap().judged(0.05);
        let (actual, reason) = outcome([2_000, 2_500, 1_800, 2_200, 1_900, 2_100]);
        assert_eq!((actual, reason.as_str()), (Outcome::Fail, "worse by 5 % or more: rejected, % of mail"));
        // None of these lists is a regression. The counts of the first list are similar to the counts of the reference
        // runs, and the counts of the second list are all 0. In the third list, only one run of six has a far higher
        // count, and this one run may be chance.
        for counts in [[19, 26, 17, 23, 1, 22], [0; 6], [20, 25, 18, 22, 0, 2_000]] {
            assert_eq!(outcome(counts).0, Outcome::Pass, "{counts:?}");
        }
    }

    #[test]
    fn a_metric_that_only_the_runs_lack_is_a_regression() {
        let against = side("a", &[1000.0; 6]);
        let mut runs = side("b", &[1001.0; 6]);
        let accepted = |(_, record): &mut (String, Record)| record.stages.retain(|row| row.name != Stage::Delivered);
        runs.runs.iter_mut().for_each(accepted);
        let comparison = compare_stored(&runs, &against, 0.02).unwrap();
        assert_eq!(comparison.missing[0], "delivered, msg/s");
        assert_eq!(comparison.outcome(0.05), ComparisonOutcome::MetricMissing);
        let back = compare_stored(&against, &runs, 0.02).unwrap();
        assert!(!back.missing.contains(&"delivered, msg/s".to_owned()), "{:?}", back.missing);
    }
}
