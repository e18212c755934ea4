//! Mean and median of the latencies of a stage. Both are exact enough for the report, which prints whole milliseconds.
use std::time::Duration;

/// Upper end of the histogram: one hour. Longer latencies count as one hour, so the reported median is never higher.
const MAX_LATENCY_MS: usize = 3_600_000;

#[derive(Clone, Debug, Default)]
pub(super) struct LatencyHistogram {
    count: u64,
    sum_ns: u128,
    by_ms: Vec<u64>,
}

impl LatencyHistogram {
    pub(super) fn record(&mut self, time: Duration) {
        self.count += 1;
        self.sum_ns += time.as_nanos();
        let nearest =
            usize::try_from((time.as_nanos() + 500_000) / 1_000_000).unwrap_or(MAX_LATENCY_MS).min(MAX_LATENCY_MS);
        if self.by_ms.len() <= nearest {
            self.by_ms.resize(nearest + 1, 0);
        }
        self.by_ms[nearest] += 1;
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the mean latency, or zero if no latency was recorded.
    pub(super) fn mean(&self) -> Duration {
        let mean_ns = self.sum_ns.checked_div(u128::from(self.count)).unwrap_or(0);
        Duration::from_nanos(u64::try_from(mean_ns).unwrap_or(u64::MAX))
    }

    /// Returns the median latency. For an even number of messages, it is the mean of the two values in the middle.
    pub(super) fn median(&self) -> Duration {
        if self.count == 0 {
            return Duration::ZERO;
        }
        let lower = self.value_at_rank((self.count - 1) / 2);
        let upper = self.value_at_rank(self.count / 2);
        Duration::from_micros(500 * (lower + upper))
    }

    /// Returns the latency in milliseconds of the message with rank `place`, where the fastest message has rank 0.
    fn value_at_rank(&self, place: u64) -> u64 {
        let mut count_so_far = 0;
        let position = self.by_ms.iter().position(|count| {
            count_so_far += count;
            count_so_far > place
        });
        position.unwrap_or_default() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(times_ms: impl IntoIterator<Item = u64>) -> LatencyHistogram {
        let mut times = LatencyHistogram::default();
        times_ms.into_iter().for_each(|ms| times.record(Duration::from_millis(ms)));
        times
    }

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn samples_below_the_first_count_in_the_median() {
        // go-mades-bench ignores all latencies that are shorter than the first latency. Here it would ignore 1,999 of
        // 2,000 latencies, and print a median of 0. Our median must include all latencies.
        let times = of([60].into_iter().chain((0..1999).map(|number| 3 + number % 3)));
        assert_eq!(times.median(), ms(4));
        assert_eq!(times.count(), 2000);
    }

    #[test]
    fn the_mean_does_not_freeze() {
        // For each message, go-mades-bench adds (latency − mean) / count to its mean, in whole nanoseconds. After some
        // millions of messages, this quotient is less than 1 ns and becomes zero, so the mean no longer changes.
        let mut times = LatencyHistogram::default();
        for time in [ms(10), ms(14)] {
            (0..1_000_000).for_each(|_| times.record(time));
        }
        assert_eq!((times.mean(), times.median()), (ms(12), ms(12)));
        // After five million samples of 10 ms and five million samples of 14 ms, go-mades-bench prints a mean of 10 ms
        // instead of 12 ms. Create this state directly, because recording ten million samples would take too long.
        let half = 5_000_000;
        let times = LatencyHistogram { count: 2 * half, sum_ns: u128::from(half) * 24_000_000, by_ms: Vec::new() };
        assert_eq!(times.mean(), ms(12));
    }

    #[test]
    fn a_median_is_in_the_middle_and_not_below_it() {
        // go-mades-bench prints 1 ms as the median of 1, 100 and 100 ms, although 100 ms is in the middle.
        assert_eq!(of([1, 100, 100]).median(), ms(100));
        assert_eq!(of([3, 4]).median(), Duration::from_micros(3500));
        assert_eq!(of([7]).median(), ms(7));
        assert_eq!(of([100, 1, 2]).median(), ms(2));
    }

    #[test]
    fn a_value_never_seen_before_costs_no_search() {
        // To record a new value, go-mades-bench searches all smaller values. Our histogram must find the place at once.
        // This test records 3.6 million values, which would take very long with a search.
        let times = of((0..=3_600_000).rev());
        assert_eq!(times.median(), Duration::from_secs(1800));
        assert_eq!(times.mean(), Duration::from_secs(1800));
    }

    #[test]
    fn nothing_and_too_much() {
        assert_eq!((of([]).mean(), of([]).median()), (Duration::ZERO, Duration::ZERO));
        let mut times = LatencyHistogram::default();
        times.record(Duration::MAX);
        assert_eq!(times.median(), Duration::from_secs(3600));
        assert_eq!(times.by_ms.len(), MAX_LATENCY_MS + 1);
    }

    proptest! {
        #[test]
        fn mean_and_median_are_those_of_the_sorted_list(mut times_ms in prop::collection::vec(0..2000u64, 1..200)) {
            let times = of(times_ms.iter().copied());
            times_ms.sort_unstable();
            let lower = times_ms[(times_ms.len() - 1) / 2];
            let upper = times_ms[times_ms.len() / 2];
            prop_assert_eq!(times.median(), Duration::from_micros(500 * (lower + upper)));
            let mean = times_ms.iter().sum::<u64>() * 1_000_000 / times_ms.len() as u64;
            prop_assert_eq!(times.mean(), Duration::from_nanos(mean));
            prop_assert!(times.median() <= 2 * times.mean() + Duration::from_micros(500), "no negative times");
        }
    }
}
