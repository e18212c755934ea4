//! The time at which the next message is due at open loop. The server's pace cannot delay this schedule, which avoids
//! coordinated omission (G. Tene, "How NOT to Measure Latency", 2013).
//!
//! Pure: a schedule is a function of the offered rate and its seed. Every message has a position in the whole run, and
//! `stages` says when that is due. A worker takes every n-th position, and so the workers' schedules interleave to the
//! whole; at Poisson arrival its positions lie at random distances, of n in the mean, and independent Poisson processes
//! add up to one.
use super::offered_rate::OfferedRate;
use journey::record::Arrival;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// The times at which messages are due.
#[derive(Debug)]
pub struct ArrivalSchedule {
    began: Duration,
    offered_rate: OfferedRate,
    /// Messages given out.
    issued: u64,
    /// Position of the next message in the whole run.
    position: f64,
    /// Time at which the next message is due, in seconds since `began`.
    next_s: f64,
    worker: usize,
    workers: usize,
    random: Option<StdRng>,
}

impl ArrivalSchedule {
    /// The schedule of worker `number` of `workers`, for the `offer` of all together, beginning at `began`.
    pub fn new(
        arrival: Arrival,
        offer: OfferedRate,
        began: Duration,
        number: usize,
        workers: usize,
        seed: u64,
    ) -> Self {
        let mut schedule = Self {
            began,
            offered_rate: offer,
            issued: 0,
            position: 0.0,
            next_s: 0.0,
            worker: number,
            workers,
            random: (arrival == Arrival::Poisson).then(|| StdRng::seed_from_u64(seed.wrapping_add(number as u64))),
        };
        schedule.compute_next();
        schedule
    }

    /// Time at which the next message is due.
    pub fn due(&self) -> Duration {
        self.began + Duration::from_secs_f64(self.next_s)
    }

    /// Advances to the next message after one was given out.
    pub fn advance(&mut self) {
        self.issued += 1;
        self.compute_next();
    }

    /// Computes the position of the next message and the time at which it is due.
    fn compute_next(&mut self) {
        self.position = match self.exponential_gap() {
            Some(gap) => self.position + gap,
            // Computed from the count and not by adding: a sum of a million rounded gaps would drift.
            None => (self.issued * self.workers as u64 + self.worker as u64) as f64,
        };
        self.next_s = self.offered_rate.due_s(self.position);
    }

    /// An exponentially distributed gap in positions, for a Poisson process.
    fn exponential_gap(&mut self) -> Option<f64> {
        let uniform: f64 = self.random.as_mut()?.random();
        Some(-(1.0 - uniform).ln() * self.workers as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::offered_rate::RateStage;
    use super::*;

    fn times(arrival: Arrival, rate: f64, number: usize, workers: usize, count: usize) -> Vec<f64> {
        due_times(arrival, OfferedRate::Constant(rate), number, workers, count)
    }

    fn due_times(arrival: Arrival, offer: OfferedRate, number: usize, workers: usize, count: usize) -> Vec<f64> {
        let mut schedule = ArrivalSchedule::new(arrival, offer, Duration::ZERO, number, workers, 7);
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
    fn a_ramp_is_offered_by_all_workers_together() {
        let ramp = RateStage { length: Duration::from_secs(10), from_per_s: 0.0, to_per_s: 200.0 };
        for arrival in [Arrival::Constant, Arrival::Poisson] {
            let offer = OfferedRate::Stages(vec![ramp]);
            let mut all: Vec<f64> =
                (0..4).flat_map(|number| due_times(arrival, offer.clone(), number, 4, 400)).collect();
            all.retain(|due| *due < 10.0);
            all.sort_by(f64::total_cmp);
            // 1,000 in all, a quarter of them in the first half; a Poisson count scatters by its root.
            let early = all.iter().filter(|due| **due < 5.0).count();
            assert!(all.len().abs_diff(1_000) < 100 && early.abs_diff(250) < 50, "{} {early}", all.len());
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
