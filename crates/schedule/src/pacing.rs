//! Computes when the next message is due in an open loop. The schedule does not depend on how fast the server replies,
//! so that slow replies do not delay later messages and hide their latency (coordinated omission; Gil Tene, "How NOT to
//! Measure Latency", 2013).
//!
//! This module does no I/O: a schedule depends only on its arguments, such as the offered rate and a seed. Every
//! message has a position in the whole run, and `offered_rate` computes when that position is due. Each of n workers
//! takes every n-th position, so that the workers together send the whole run. With Poisson arrivals, each worker
//! instead moves on by a random distance, which is n positions on average. The workers together still have the whole
//! rate, because independent Poisson processes add up to a Poisson process.
use super::offered_rate::OfferedRate;
use mailrun_measurement::record::Arrival;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::time::Duration;

/// The times at which the messages of one worker are due.
#[derive(Debug)]
pub struct ArrivalSchedule {
    began: Duration,
    /// The current offered rate, and behind it the rates that will replace it one after another. This queue is never
    /// empty.
    offers: VecDeque<OfferSegment>,
    /// Number of messages that the caller has taken, each with a call of [`Self::advance`].
    issued: u64,
    /// Position of the next message in the whole run.
    position: f64,
    /// Time at which the next message is due, in seconds since `began`.
    next_s: f64,
    worker: usize,
    workers: usize,
    /// Delay of all messages with constant arrivals, as a fraction of the gap between two consecutive messages of all
    /// workers together. Hosts have different delays, so that they do not all send at the same moments.
    phase: f64,
    random: Option<StdRng>,
}

/// An offered rate, and where it starts to apply: at `from_s` seconds after the start of the load. The position in the
/// whole run that is due at this time is `from_position`.
#[derive(Debug)]
struct OfferSegment {
    from_s: f64,
    from_position: f64,
    offer: OfferedRate,
}

impl ArrivalSchedule {
    /// Creates the schedule of worker `number` of `workers`. `offer` is the rate of all workers
    /// together, and `began` the start of the load.
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
            offers: VecDeque::from([OfferSegment { from_s: 0.0, from_position: 0.0, offer }]),
            issued: 0,
            position: 0.0,
            next_s: 0.0,
            worker: number,
            workers,
            phase: 0.0,
            random: (arrival == Arrival::Poisson).then(|| StdRng::seed_from_u64(seed.wrapping_add(number as u64))),
        };
        schedule.compute_next();
        schedule
    }

    /// Delays all messages of constant arrivals by a fraction, such as 0.5, of the gap between two consecutive messages
    /// of all workers together. Has no effect on Poisson arrivals, because their times are random anyway.
    #[must_use]
    pub fn with_phase(mut self, phase: f64) -> Self {
        if self.random.is_none() {
            self.phase = phase;
            self.position += phase;
            self.next_s = self.due_s();
        }
        self
    }

    /// Changes the offered rate at the time `at`. Messages that are due before this time keep their times.
    pub fn change(&mut self, at: Duration, offer: OfferedRate) {
        let at_s = at.saturating_sub(self.began).as_secs_f64();
        let last = &self.offers[self.offers.len() - 1];
        let from_s = at_s.max(last.from_s);
        let from_position = last.from_position + last.offer.due_by(from_s - last.from_s);
        self.offers.push_back(OfferSegment { from_s, from_position, offer });
        self.next_s = self.due_s();
    }

    /// Counts the messages that are due before `at`, from the first message of the schedule on. The caller must not
    /// have called [`Self::advance`], because the count would then be wrong.
    pub fn due_before(mut self, at: Duration) -> u64 {
        // Limit `at` to the end of the load. After the last message, `due` always returns this end. With a later `at`,
        // the loop below would therefore run forever.
        let at = self.offers[0].offer.length().map_or(at, |length| at.min(self.began.saturating_add(length)));
        if self.random.is_none() {
            let positions = self.offers[0].offer.due_by(at.saturating_sub(self.began).as_secs_f64()) - self.position;
            // Rounding may make this count too high, so subtract two messages. The loop below counts the rest exactly.
            self.issued = ((positions / self.workers as f64).ceil().max(0.0) as u64).saturating_sub(2);
            self.compute_next();
        }
        while self.due() < at {
            self.advance();
        }
        self.issued
    }

    /// Returns the time at which the next message is due, or `Duration::MAX` at a rate of 0.
    pub fn due(&self) -> Duration {
        self.began.saturating_add(Duration::try_from_secs_f64(self.next_s).unwrap_or(Duration::MAX))
    }

    /// Moves on to the next message, so that [`Self::due`] returns the time of that message.
    pub fn advance(&mut self) {
        self.issued += 1;
        self.compute_next();
    }

    fn compute_next(&mut self) {
        self.position = match self.exponential_gap() {
            Some(gap) => self.position + gap,
            // Compute each position from the number of issued messages. If each message added a gap to the previous
            // position, the rounding errors of a million messages would add up.
            None => (self.issued * self.workers as u64 + self.worker as u64) as f64 + self.phase,
        };
        self.next_s = self.due_s();
    }

    /// Returns the time at which the current position is due, in seconds since `began`. First removes rates from
    /// `offers` that no longer apply at this position, because a later rate has replaced them.
    fn due_s(&mut self) -> f64 {
        while self.offers.get(1).is_some_and(|next| next.from_position <= self.position) {
            self.offers.pop_front();
        }
        let now = &self.offers[0];
        now.from_s + now.offer.due_s(self.position - now.from_position)
    }

    /// Draws the distance to the worker's next position from an exponential distribution, which gives Poisson arrivals.
    /// Returns `None` for constant arrivals.
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
        let ramp = RateStage::parse("10s:0/s..200/s").unwrap();
        for arrival in [Arrival::Constant, Arrival::Poisson] {
            let offer = OfferedRate::Stages(vec![ramp.clone()]);
            let mut all: Vec<f64> =
                (0..4).flat_map(|number| due_times(arrival, offer.clone(), number, 4, 400)).collect();
            all.retain(|due| *due < 10.0);
            all.sort_by(f64::total_cmp);
            // The rate rises from 0, so only a quarter of the 1,000 messages are due in the first half of the ramp. The
            // bounds are wide because a Poisson count deviates from its mean by about the square root of the mean.
            let early = all.iter().filter(|due| **due < 5.0).count();
            assert!(all.len().abs_diff(1_000) < 100 && early.abs_diff(250) < 50, "{} {early}", all.len());
        }
    }

    #[test]
    fn a_changed_rate_keeps_every_position_and_what_is_overdue() {
        let changes = [(2.0, 100.0), (4.0, 0.0), (5.0, 30.0)].map(|(at_s, rate)| (Duration::from_secs_f64(at_s), rate));
        let mut all = Vec::new();
        for number in 0..3 {
            let mut schedule =
                ArrivalSchedule::new(Arrival::Constant, OfferedRate::Constant(10.0), Duration::ZERO, number, 3, 7)
                    .with_phase(0.5);
            // Worker 0 learns of a rate change only after it has taken all earlier messages. The other workers learn of
            // all changes before they take any message. Messages must be due at the same times in both cases.
            for (at, rate) in changes {
                while number == 0 && schedule.due() < at {
                    all.push(schedule.due().as_secs_f64());
                    schedule.advance();
                }
                schedule.change(at, OfferedRate::Constant(rate));
            }
            while schedule.due() < Duration::from_secs(6) {
                all.push(schedule.due().as_secs_f64());
                schedule.advance();
            }
        }
        all.sort_by(f64::total_cmp);
        let within = |from: f64, to: f64| all.iter().filter(|due| (from..to).contains(*due)).count();
        assert_eq!([within(0.0, 2.0), within(2.0, 4.0), within(4.0, 5.0), within(5.0, 6.0)], [20, 200, 0, 30]);
        assert!((all[0] - 0.05).abs() < 1e-9 && (all[20] - 2.005).abs() < 1e-9, "{:?}", &all[..21]);
    }

    #[test]
    fn nothing_is_due_at_a_rate_of_zero() {
        for arrival in [Arrival::Constant, Arrival::Poisson] {
            let offer = OfferedRate::Constant(0.0);
            let mut schedule = ArrivalSchedule::new(arrival, offer, Duration::from_secs(9), 0, 1, 7);
            assert_eq!(schedule.due(), Duration::MAX);
            schedule.change(Duration::from_secs(10), OfferedRate::Constant(1.0));
            assert!(schedule.due() >= Duration::from_secs(10) && schedule.due() < Duration::from_secs(60));
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

    #[test]
    fn the_messages_due_before_a_time_are_those_that_the_schedule_gives_out_until_then() {
        let stages = ["2s:0/s..500/s", "1s:500/s", "2s:500/s..0/s"].map(|text| RateStage::parse(text).unwrap());
        for offer in
            [OfferedRate::Constant(150.0), OfferedRate::Constant(1_000.0 / 3.0), OfferedRate::Stages(stages.into())]
        {
            for (arrival, worker, phase) in
                [(Arrival::Constant, 0, 0.0), (Arrival::Constant, 1, 0.25), (Arrival::Poisson, 1, 0.0)]
            {
                let schedule =
                    || ArrivalSchedule::new(arrival, offer.clone(), Duration::ZERO, worker, 2, 9).with_phase(phase);
                for tenths in 0..45 {
                    let end = Duration::from_millis(tenths * 100);
                    let mut walked = schedule();
                    let mut count = 0;
                    while walked.due() < end {
                        walked.advance();
                        count += 1;
                    }
                    assert_eq!(schedule().due_before(end), count, "{offer:?} {arrival:?} {worker} {end:?}");
                }
            }
        }
    }
}
