//! When the next message is due at open loop: a schedule that the server's pace cannot bend, which is what keeps
//! coordinated omission out (G. Tene, "How NOT to Measure Latency", 2013).
//!
//! Pure: a schedule is a function of its rate and its seed. A worker has one of its own with its share of the
//! rate: interleaved constant schedules make the whole, and independent Poisson processes add up to one.
use journey::record::Arrival;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// When messages are due.
#[derive(Debug)]
pub(super) struct Schedule {
    began: Duration,
    /// Between two messages of this worker, in the mean.
    gap_s: f64,
    /// Messages given out.
    given: u64,
    /// When the next is due, in seconds since `began`.
    next_s: f64,
    /// Where in the whole schedule this worker's first message stands, in gaps.
    phase: f64,
    random: Option<StdRng>,
}

impl Schedule {
    /// The schedule of worker `number` of `workers`, for `rate_per_s` of all together, beginning at `began`.
    pub(super) fn new(
        arrival: Arrival,
        rate_per_s: f64,
        began: Duration,
        number: usize,
        workers: usize,
        seed: u64,
    ) -> Self {
        let mut schedule = Self {
            began,
            gap_s: workers as f64 / rate_per_s,
            given: 0,
            next_s: 0.0,
            phase: number as f64 / workers as f64,
            random: (arrival == Arrival::Poisson).then(|| StdRng::seed_from_u64(seed.wrapping_add(number as u64))),
        };
        schedule.next_s = match schedule.exponential() {
            Some(gap_s) => gap_s,
            None => schedule.phase * schedule.gap_s,
        };
        schedule
    }

    /// When the next message is due.
    pub(super) fn due(&self) -> Duration {
        self.began + Duration::from_secs_f64(self.next_s)
    }

    /// The next message has been given out.
    pub(super) fn advance(&mut self) {
        self.given += 1;
        self.next_s = match self.exponential() {
            Some(gap_s) => self.next_s + gap_s,
            // From the count and not by adding: a sum of a million rounded gaps would drift.
            None => (self.given as f64 + self.phase) * self.gap_s,
        };
    }

    /// An exponentially distributed gap, for a Poisson process.
    fn exponential(&mut self) -> Option<f64> {
        let uniform: f64 = self.random.as_mut()?.random();
        Some(-(1.0 - uniform).ln() * self.gap_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(arrival: Arrival, rate: f64, number: usize, workers: usize, count: usize) -> Vec<f64> {
        let mut schedule = Schedule::new(arrival, rate, Duration::ZERO, number, workers, 7);
        (0..count)
            .map(|_| {
                let due = schedule.due().as_secs_f64();
                schedule.advance();
                due
            })
            .collect()
    }

    #[test]
    fn workers_interleave_to_the_whole_rate() {
        let mut all: Vec<f64> = (0..4).flat_map(|number| times(Arrival::Constant, 1000.0, number, 4, 250)).collect();
        all.sort_by(f64::total_cmp);
        for (at, due) in all.iter().enumerate() {
            assert!((due - at as f64 / 1000.0).abs() < 1e-9, "{at} at {due}");
        }
    }

    #[test]
    fn constant_does_not_drift() {
        let last = times(Arrival::Constant, 3000.0, 0, 1, 3_000_001).pop().unwrap();
        assert!((last - 1000.0).abs() < 1e-6);
    }

    #[test]
    fn poisson_has_the_mean_and_the_spread_of_its_rate() {
        let due = times(Arrival::Poisson, 1000.0, 0, 1, 100_000);
        let gaps: Vec<f64> = due.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((mean * 1000.0 - 1.0).abs() < 0.02, "mean {mean}");
        assert!((deviation / mean - 1.0).abs() < 0.02, "an exponential's deviation is its mean: {deviation}");
        assert_eq!(due, times(Arrival::Poisson, 1000.0, 0, 1, 100_000), "a seed gives the same again");
    }
}
