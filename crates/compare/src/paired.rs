use crate::finding::{LogEstimate, MetricFinding};
use crate::flip_test;
use crate::metric::RoundRatios;
use crate::settings::CompareSettings;
use crate::signed_rank;

/// Compares B with A in a family of metrics that was chosen beforehand. All metrics should have the same rounds; if one
/// has fewer, only the common ones count.
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
