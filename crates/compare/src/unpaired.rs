//! Compares stored runs, which were made at different times. The host may have changed in between, and nothing here can
//! detect that.
use crate::finding::{LogEstimate, MetricFinding};
use crate::label_test;
use crate::metric::RunValues;
use crate::rank_sum;
use crate::settings::CompareSettings;

/// With fewer runs on a side, there is no verdict, whatever the settings say.
pub(crate) const MIN_RUNS: usize = 5;

/// Compares the runs of B with those of A in a family of metrics that was chosen beforehand. All metrics should have
/// the same runs; if one has fewer, only the common ones count.
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
