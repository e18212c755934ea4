//! Counts measured times in a few fixed buckets, in the form in which Prometheus scrapes them.
use crate::latencies::Latencies;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Upper bounds of the buckets in seconds, from a relay on the same host (5 ms) to greylisting and retries (half an
/// hour). There are few bounds, because Prometheus stores a separate time series for each combination of bound,
/// measured stage (such as `delivered`) and route of the mail.
pub const BOUNDS_S: [f64; 15] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

/// Number of measured times in each bucket, and the sum of all times. The last bucket counts times beyond the last
/// bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buckets {
    counts: [u64; BOUNDS_S.len() + 1],
    sum_ns: u64,
}

impl Buckets {
    pub fn record(&mut self, time: Duration) {
        self.add(time, 1);
    }

    /// Counts the times of a histogram. The histogram rounds times up, so a time just below a bound may count in the
    /// next bucket.
    pub fn record_all(&mut self, latencies: &Latencies) {
        latencies.buckets().for_each(|(ns, count)| self.add(Duration::from_nanos(ns), count));
    }

    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    pub fn sum_s(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    fn add(&mut self, time: Duration, count: u64) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS_S.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS_S.len());
        self.counts[bucket] += count;
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns = self.sum_ns.saturating_add(ns.saturating_mul(count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_in_the_first_bucket_that_holds_it() {
        let mut buckets = Buckets::default();
        [0, 5, 6, 1_000, 3_600_000].iter().for_each(|ms| buckets.record(Duration::from_millis(*ms)));
        assert_eq!(buckets.counts(), [2, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert!((buckets.sum_s() - 3_601.011).abs() < 1e-9, "{}", buckets.sum_s());
        let mut latencies = Latencies::default();
        [20, 20, 40].iter().for_each(|ms| latencies.record(Duration::from_millis(*ms)));
        let mut buckets = Buckets::default();
        buckets.record_all(&latencies);
        assert_eq!(buckets.counts()[..4], [0, 0, 2, 1]);
    }
}
