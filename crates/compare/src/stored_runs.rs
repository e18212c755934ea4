//! The comparison of stored runs with stored runs.
use crate::finding::{MetricFinding, MetricVerdict};
use crate::metric::{ComparedMetric, Gain, RunValues};
use crate::ranks::median;
use crate::run_figures::{RunFigure, defect, difference, figures, wrong_mail};
use crate::settings::CompareSettings;
use crate::unpaired::compare_runs;
use anyhow::{Result, bail};
use journey::record::Record;
use report::printable::printable;
use serde::Serialize;

/// Name of the format of the JSON.
const COMPARISON_FORMAT: &str = "mailrun-compare/1";
/// Percent of the interval's confidence.
const CONFIDENCE_PERCENT: f64 = 95.0;

/// Outcome of a comparison that something was asked of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonOutcome {
    /// Nothing is known to be worse than allowed.
    NoRegression,
    /// A figure is worse than allowed.
    Regression,
    /// A run lost, duplicated or corrupted mail.
    MailLost,
    /// It is not known.
    Undecided,
}

/// A comparison, as it is written in JSON.
#[derive(Debug, Serialize)]
pub struct StoredComparison {
    /// Name of the format.
    pub format: &'static str,
    /// Always false: the runs belong to no rounds.
    pub paired: bool,
    /// Runs that count.
    pub runs: usize,
    /// Runs that they are compared with.
    pub against: usize,
    /// Share within which two are the same.
    pub margin: f64,
    /// Confidence of the intervals.
    pub confidence_percent: f64,
    /// Runs that do not count, with the reason.
    pub left_out: Vec<String>,
    /// Runs of the side that is judged that lost, duplicated or corrupted mail.
    pub unsound_runs: usize,
    /// Figures that some of the runs do not have, or that are 0.
    pub not_compared: Vec<String>,
    /// Metrics that all runs have.
    pub metrics: Vec<MetricRow>,
}

/// A metric of the comparison.
#[derive(Debug, Serialize)]
pub struct MetricRow {
    /// Name with the unit.
    pub name: String,
    /// The direction in which it gets better.
    pub higher_is_better: bool,
    /// Median of the runs that are compared with.
    pub against_median: f64,
    /// Median of the runs.
    pub median: f64,
    /// The runs divided by those that they are compared with: Hodges and Lehmann's estimate.
    pub ratio: f64,
    /// Interval of the ratio; `null` if there are too few runs.
    pub interval: Option<(f64, f64)>,
    /// The probability of so clear a difference in any metric, if there is none in truth.
    pub adjusted_p: f64,
    /// better, worse, same, undecided, too few runs.
    pub verdict: &'static str,
    /// The whole interval is beyond the margin.
    pub is_beyond_margin: bool,
    /// Runs to add on each side until it is decided, about.
    pub more_runs: Option<usize>,
    #[serde(skip)]
    finding: MetricFinding,
}

/// A run with the path that names it.
pub type NamedRun = (String, Record);

/// Compares the runs with those of `against`; `margin` is the share within which two figures are the same.
///
/// # Errors
/// If they are of different loads or hosts, or no run of a side counts.
pub fn compare_stored(runs: &[NamedRun], against: &[NamedRun], margin: f64) -> Result<StoredComparison> {
    let all: Vec<&NamedRun> = against.iter().chain(runs).collect();
    refuse_repeated(&all)?;
    refuse_mixed(&all)?;
    let left_out =
        all.iter().filter_map(|(name, record)| Some(format!("{}: {}", printable(name), printable(&defect(record)?))));
    let left_out: Vec<String> = left_out.collect();
    let counted = |side: &[NamedRun]| {
        let sound = side.iter().filter(|(_, record)| defect(record).is_none());
        sound.map(|(_, record)| figures(record)).collect::<Vec<_>>()
    };
    let old = counted(against);
    let new = counted(runs);
    if old.is_empty() || new.is_empty() {
        let side = if old.is_empty() { "--against" } else { "RUN" };
        bail!("no run of {side} can be used: {}", left_out.join("; "));
    }
    let (metrics, not_compared) = metrics(&old, &new, margin);
    Ok(StoredComparison {
        format: COMPARISON_FORMAT,
        paired: false,
        runs: new.len(),
        against: old.len(),
        margin,
        confidence_percent: CONFIDENCE_PERCENT,
        left_out,
        unsound_runs: runs.iter().filter(|(_, record)| wrong_mail(record).is_some()).count(),
        not_compared,
        metrics,
    })
}

/// Refuses a run that is named twice: it would count as two.
fn refuse_repeated(all: &[&NamedRun]) -> Result<()> {
    for (place, (name, record)) in all.iter().enumerate() {
        let is_same = |(_, other): &&&NamedRun| !record.run_id.is_empty() && other.run_id == record.run_id;
        let same = all[..place].iter().find(is_same);
        if let Some((other, _)) = same {
            bail!("{} and {} are one run: name each run once", printable(other), printable(name));
        }
    }
    Ok(())
}

/// Refuses runs whose loads or hosts differ.
fn refuse_mixed(all: &[&NamedRun]) -> Result<()> {
    let Some((first, rest)) = all.split_first() else { return Ok(()) };
    for (name, record) in rest {
        if let Some((what, left, right)) = difference(&first.1, record) {
            bail!(
                "the {what} of {} is {}, that of {} is {}: runs of different loads or hosts cannot be compared",
                printable(&first.0),
                printable(&left),
                printable(name),
                printable(&right)
            );
        }
    }
    Ok(())
}

/// The rows of the metrics that all runs have, and the names of the others.
fn metrics(old: &[Vec<RunFigure>], new: &[Vec<RunFigure>], margin: f64) -> (Vec<MetricRow>, Vec<String>) {
    let mut names: Vec<&ComparedMetric> = Vec::new();
    for figure in old.iter().chain(new).flatten() {
        if !names.contains(&&figure.metric) {
            names.push(&figure.metric);
        }
    }
    let mut family = Vec::new();
    let mut medians = Vec::new();
    let mut not_compared = Vec::new();
    for metric in names {
        let values = |side: &[Vec<RunFigure>]| {
            let of_run =
                |run: &Vec<RunFigure>| run.iter().find(|figure| figure.metric == *metric).map(|figure| figure.value);
            side.iter().map(of_run).collect::<Option<Vec<f64>>>()
        };
        let both = values(old).zip(values(new));
        let ratios =
            both.and_then(|(a, b)| Some((median_of(&a), median_of(&b), RunValues::new(metric.clone(), &a, &b).ok()?)));
        match ratios {
            Some((of_old, of_new, ratios)) => {
                medians.push((of_old, of_new));
                family.push(ratios);
            }
            None => not_compared.push(printable(&metric.name).into_owned()),
        }
    }
    let settings = CompareSettings { margin, ..CompareSettings::default() };
    let findings = compare_runs(&family, &settings);
    let rows = findings.into_iter().zip(medians).map(|(finding, medians)| MetricRow::new(finding, medians));
    (rows.collect(), not_compared)
}

fn median_of(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    median(&sorted)
}

impl MetricRow {
    fn new(finding: MetricFinding, (against_median, median): (f64, f64)) -> Self {
        Self {
            name: printable(&finding.metric.name).into_owned(),
            higher_is_better: finding.metric.gain == Gain::Higher,
            against_median,
            median,
            ratio: finding.ratio,
            interval: finding.interval,
            adjusted_p: finding.adjusted_p,
            verdict: word(finding.verdict),
            is_beyond_margin: finding.is_beyond_margin,
            more_runs: match finding.verdict {
                MetricVerdict::Undecided { more_rounds } => Some(more_rounds),
                _ => None,
            },
            finding,
        }
    }
}

fn word(verdict: MetricVerdict) -> &'static str {
    match verdict {
        MetricVerdict::Better => "better",
        MetricVerdict::Worse => "worse",
        MetricVerdict::Same => "same",
        MetricVerdict::Undecided { .. } => "undecided",
        MetricVerdict::TooFew => "too few runs",
    }
}

impl StoredComparison {
    /// The outcome for `--fail-on-regression`: whether a figure got worse by `limit`, 0.05 for 5 %.
    pub fn outcome(&self, limit: f64) -> ComparisonOutcome {
        if self.unsound_runs > 0 {
            return ComparisonOutcome::MailLost;
        }
        let findings = || self.metrics.iter().map(|row| &row.finding);
        if findings().any(|finding| finding.is_regression(limit)) {
            return ComparisonOutcome::Regression;
        }
        let may_be_worse = |finding: &MetricFinding| match (finding.verdict, finding.interval) {
            (MetricVerdict::TooFew, _) | (_, None) => true,
            (_, Some((lower, upper))) => match finding.metric.gain {
                Gain::Higher => 1.0 / lower >= 1.0 + limit,
                Gain::Lower => upper >= 1.0 + limit,
            },
        };
        if self.metrics.is_empty() || findings().any(may_be_worse) {
            return ComparisonOutcome::Undecided;
        }
        ComparisonOutcome::NoRegression
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of the sample's load whose rates are those, as a host would scatter them.
    fn side(rates: &[f64]) -> Vec<NamedRun> {
        let run = |(place, per_s): (usize, &f64)| {
            let mut record = report::sample::held();
            for row in &mut record.stages {
                row.rate_per_s = *per_s;
                row.offered_rate_per_s = Some(*per_s);
            }
            record.run_id = format!("{place}-{per_s}");
            (format!("run-{place}"), record)
        };
        rates.iter().enumerate().map(run).collect()
    }

    #[test]
    fn a_slower_server_is_worse_and_a_regression() {
        let against = side(&[1000.0, 1010.0, 990.0, 1005.0, 995.0, 1002.0]);
        let runs = side(&[800.0, 810.0, 790.0, 805.0, 795.0, 802.0]);
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
        let four = side(&[1000.0, 1010.0, 990.0, 1005.0]);
        let others = side(&[1001.0, 1011.0, 991.0, 1006.0]);
        let comparison = compare_stored(&four, &others, 0.02).unwrap();
        assert!(comparison.metrics.iter().all(|row| row.verdict == "too few runs"), "{comparison:?}");
        assert_eq!(comparison.outcome(0.05), ComparisonOutcome::Undecided);
    }

    #[test]
    fn runs_of_another_load_or_host_are_refused_in_a_line() {
        let against = side(&[1000.0; 5]);
        let mut runs = side(&[1001.0; 5]);
        runs[3].1.workload.sessions = 7;
        let error = compare_stored(&runs, &against, 0.02).unwrap_err().to_string();
        assert!(error.starts_with("the number of sessions of run-0 is ") && error.lines().count() == 1, "{error}");
        runs[3].1 = report::sample::mades();
        assert!(compare_stored(&runs, &against, 0.02).unwrap_err().to_string().starts_with("the protocol of"));
    }

    #[test]
    fn a_run_counts_once() {
        let runs = side(&[1000.0; 5]);
        let error = compare_stored(&runs, &runs, 0.02).unwrap_err().to_string();
        assert_eq!(error, "run-0 and run-0 are one run: name each run once");
    }

    #[test]
    fn a_run_that_lost_mail_does_not_count_and_is_named() {
        let against = side(&[1000.0; 6]);
        let mut runs = side(&[1001.0; 6]);
        runs[2].1.ledger.lost = Some(3);
        let comparison = compare_stored(&runs, &against, 0.02).unwrap();
        assert_eq!((comparison.runs, comparison.against), (5, 6));
        assert_eq!(comparison.left_out, ["run-2: 3 lost"]);
        assert_eq!(comparison.outcome(5.0), ComparisonOutcome::MailLost);
        runs.iter_mut().for_each(|(_, record)| record.ledger.lost = Some(3));
        let error = compare_stored(&runs, &against, 0.02).unwrap_err().to_string();
        assert!(error.starts_with("no run of RUN can be used: run-0: 3 lost"), "{error}");
    }
}
