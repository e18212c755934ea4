//! Measures the difference between this host's clock and the clock of the Locust master, with several exchanges of
//! messages. The error of an exchange is at most half of its round trip, so only the exchange with the shortest round
//! trip counts.
use std::time::Duration;

const EXCHANGES: u32 = 8;
const INTERVAL: Duration = Duration::from_secs(30);
/// Time after which a question to the master counts as unanswered, so that another one may be sent.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Assumed maximum drift between two ordinary clocks: 50 µs per second. The possible error of a measurement grows at
/// this rate as the measurement ages.
const DRIFT: f64 = 50e-6;
/// Maximum difference of the clocks: ten years. A larger difference cannot come from a real clock and is discarded.
const MOST_OFFSET_S: f64 = 315_360_000.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MasterClockOffset {
    /// Seconds to add to this host's clock to get the master's time.
    pub offset_s: f64,
    /// Maximum error of the offset, in seconds.
    pub bound_s: f64,
}

#[derive(Debug, Default)]
pub struct MasterClockExchange {
    /// The question about the master's clock that is still unanswered: the Unix time that it contains, and the
    /// monotonic time at which it was sent.
    asked: Option<(f64, Duration)>,
    /// Number of exchanges that the current measurement of the clock still needs.
    left: u32,
    /// Result of the exchange with the shortest round trip in the current measurement, and the time of that exchange.
    best: Option<(Duration, MasterClockOffset)>,
    next: Duration,
    /// The latest complete measurement, with the time at which it was made.
    known: Option<(Duration, MasterClockOffset)>,
}

impl MasterClockExchange {
    /// Returns `unix_s` if the worker should now ask the master for the time on its clock. `unix_s` is this host's Unix
    /// time, which the question contains. The caller must send the question at once, because a delay would increase the
    /// measured round trip.
    pub fn question(&mut self, now: Duration, unix_s: f64) -> Option<f64> {
        let is_waiting = self.asked.is_some_and(|(_, at)| now.saturating_sub(at) < ANSWER_LIMIT);
        if is_waiting || (self.left == 0 && now < self.next) {
            return None;
        }
        if self.left == 0 {
            self.left = EXCHANGES;
            self.next = now + INTERVAL;
            self.best = None;
        }
        self.asked = Some((unix_s, now));
        Some(unix_s)
    }

    /// Computes the clock offset from a master's answer. `sent_s` repeats the time in the question, and `master_s` is
    /// the time on the master's clock when the question arrived. Ignores answers to earlier questions, because only the
    /// times of the latest question are known.
    pub fn answer(&mut self, sent_s: f64, master_s: f64, now: Duration) {
        let Some((asked_s, at)) = self.asked.filter(|(asked_s, _)| *asked_s == sent_s) else { return };
        self.asked = None;
        let round_trip = now.saturating_sub(at);
        let half_s = round_trip.as_secs_f64() / 2.0;
        let offset_s = master_s - (asked_s + half_s);
        if offset_s.abs() < MOST_OFFSET_S && self.best.is_none_or(|(_, best)| half_s < best.bound_s) {
            self.best = Some((now, MasterClockOffset { offset_s, bound_s: half_s }));
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.known = self.best.or(self.known);
        }
    }

    /// Returns the offset of the master's clock from this host's clock, or `None` before the first complete
    /// measurement. The maximum error grows with the age of the measurement, because clocks drift.
    pub fn estimate(&self, now: Duration) -> Option<MasterClockOffset> {
        let (at, estimate) = self.known?;
        let age_s = now.saturating_sub(at).as_secs_f64();
        Some(MasterClockOffset { bound_s: estimate.bound_s + age_s * DRIFT, ..estimate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    /// Measures the clock of a master that is 250 s ahead. `ways` has the travel times (ms) of each question and
    /// answer.
    fn measured(ways: &[(u64, u64)]) -> MasterClockExchange {
        let mut exchange = MasterClockExchange::default();
        let mut now = ms(0);
        for (there, back) in ways {
            let unix = |now: Duration| 1_000.0 + now.as_secs_f64();
            let sent = exchange.question(now, unix(now)).unwrap();
            let heard = now + ms(*there);
            assert_eq!(exchange.question(heard, unix(heard)), None, "one at a time");
            now = heard + ms(*back);
            exchange.answer(sent, unix(heard) + 250.0, now);
        }
        exchange
    }

    #[test]
    fn the_shortest_round_trip_counts() {
        let mut ways = vec![(40, 2); 7];
        ways.push((1, 2));
        let exchange = measured(&ways);
        let known = exchange.estimate(ms(297)).unwrap();
        assert!((known.offset_s - 250.0).abs() < 0.000_6 && (known.bound_s - 0.001_5).abs() < 1e-6, "{known:?}");
        let later = exchange.estimate(ms(100_297)).unwrap();
        assert!((later.bound_s - 0.006_5).abs() < 1e-6, "{later:?}");
    }

    #[test]
    fn a_measurement_needs_all_its_exchanges_and_is_made_again() {
        let mut exchange = measured(&[(1, 1); 7]);
        assert_eq!(exchange.estimate(ms(20)), None);
        // The worker asks again if the master has not answered for a second.
        assert!(exchange.question(ms(20), 5.0).is_some() && exchange.question(ms(30), 6.0).is_none());
        assert_eq!(exchange.question(ms(1_020), 7.0), Some(7.0));
        exchange.answer(5.0, 255.0, ms(1_021));
        assert_eq!(exchange.estimate(ms(1_021)), None, "that was the answer to another");
        exchange.answer(7.0, 257.0, ms(1_022));
        assert!(exchange.estimate(ms(1_022)).is_some());
        assert_eq!(exchange.question(ms(1_023), 8.0), None);
        assert!(exchange.question(ms(30_000), 9.0).is_some());
    }

    proptest! {
        #[test]
        fn the_truth_lies_within_the_bound(ways in proptest::collection::vec((0_u64..900, 0_u64..90), 8)) {
            let exchange = measured(&ways);
            let known = exchange.estimate(Duration::ZERO).unwrap();
            prop_assert!((known.offset_s - 250.0).abs() <= known.bound_s + 1e-9, "{known:?}");
        }

        #[test]
        fn any_answer_is_taken(sent in any::<f64>(), master in any::<f64>()) {
            let mut exchange = MasterClockExchange::default();
            for time in 0..9 {
                exchange.question(ms(time), sent);
                exchange.answer(sent, master, ms(time));
            }
            prop_assert!(exchange.estimate(ms(9)).is_none_or(|known| known.offset_s.is_finite()));
        }
    }
}
