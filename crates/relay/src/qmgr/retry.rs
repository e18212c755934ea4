//! Delays between attempts to deliver a message or to reach a destination. Each delay is twice the one before, up to a
//! maximum. It is multiplied by a random factor, so that messages that failed together are not retried together.
use mailrun_measurement::seeded::splitmix64;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    pub(crate) initial: Duration,
    /// Maximum wait, before the random factor lengthens it by up to a quarter.
    pub(crate) max: Duration,
}

impl Backoff {
    /// Delays between attempts to deliver a message: Postfix's defaults (`minimal_backoff_time`,
    /// `maximal_backoff_time`). RFC 5321 §4.5.4.1 recommends waits of 30 minutes in general, and shorter ones at first.
    pub(crate) const FOR_MESSAGES: Self = Self { initial: Duration::from_secs(300), max: Duration::from_secs(4_000) };

    /// Derives the backoff of an unreachable destination from the backoff of its messages. The first wait is 1/60 of
    /// the messages' first wait, and the longest is 1/6 of their longest. By default these are 5 s and 11 min. A
    /// destination is tried more often than a message, because an attempt costs only one connection, however many
    /// messages wait. Mail should also be delivered soon after a server has restarted. The first wait is at least a
    /// second, so that a dead server is not tried all the time, but never longer than the messages' first wait.
    pub(crate) fn for_destinations(&self) -> Self {
        let first = (self.initial / 60).max(self.initial.min(Duration::from_secs(1)));
        Self { initial: first, max: (self.max / 6).max(first) }
    }

    /// Returns the wait after attempt number `attempt`, counted from 1. It is `initial`, doubled
    /// for each earlier attempt and limited to `max`. The result is multiplied by a random factor
    /// between 3/4 and 5/4, which depends only on the three arguments.
    pub(crate) fn delay(&self, seed: u64, subject: u64, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        let plain = self.initial.saturating_mul(1 << doublings).min(self.max.max(self.initial));
        let draw = splitmix64(seed ^ splitmix64(subject ^ splitmix64(u64::from(attempt))));
        let spread = plain / 2;
        // `share` is a random number below 65,536, so `spread / 65_536 * share` is less than `spread` and cannot
        // overflow. 16 bits are precise enough for a wait.
        let share = u32::from((draw >> 48) as u16);
        (plain - plain / 4).saturating_add(spread / 65_536 * share)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RetrySchedule {
    pub(crate) backoff: Backoff,
    /// Age at which the relay gives up an undelivered message. RFC 5321 §4.5.4.1 requires at least 4 to 5 days.
    pub(crate) lifetime: Duration,
    pub(crate) notice_lifetime: Duration,
    /// Age at which the sender is notified of the delay. `None` means never.
    pub(crate) delay_notice: Option<Duration>,
}

impl Default for RetrySchedule {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(86_400);
        let delay_notice = Some(Duration::from_secs(4 * 3_600));
        Self { backoff: Backoff::FOR_MESSAGES, lifetime: DAY * 5, notice_lifetime: DAY * 5, delay_notice }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let schedule = Backoff::FOR_MESSAGES;
        let middles = [300, 600, 1_200, 2_400, 4_000, 4_000, 4_000];
        for (attempt, middle) in (1..).zip(middles) {
            for subject in 0..200 {
                let wait = schedule.delay(1, subject, attempt);
                let range = seconds(middle) * 3 / 4..=seconds(middle) * 5 / 4;
                assert!(range.contains(&wait), "try {attempt}: {wait:?} is not in {range:?}");
            }
        }
    }

    #[test]
    fn a_hop_is_looked_after_more_often_than_a_message() {
        let milliseconds = Duration::from_millis;
        let rows = [
            // First and longest wait of a message, and first and longest wait of its destination, in milliseconds.
            ([300_000, 4_000_000], [5_000, 666_666]),
            ([300_000, 3_600_000], [5_000, 600_000]),
            ([30_000, 60_000], [1_000, 10_000]),
            ([200, 500], [200, 200]),
            ([900, 60_000], [900, 10_000]),
            ([7_200_000, 7_200_000], [120_000, 1_200_000]),
        ];
        for (messages, destinations) in rows {
            let [first, longest] = messages.map(milliseconds);
            let derived = Backoff { initial: first, max: longest }.for_destinations();
            assert_eq!([derived.initial, derived.max].map(|wait| wait.as_millis()), destinations, "{messages:?}");
        }
    }

    #[test]
    fn what_fails_together_comes_back_apart() {
        let schedule = Backoff::FOR_MESSAGES;
        let mut waits: Vec<u64> = (0..1_000).map(|subject| schedule.delay(7, subject, 1).as_secs()).collect();
        let mean = waits.iter().sum::<u64>() / 1_000;
        waits.sort_unstable();
        waits.dedup();
        // The waits are random whole seconds from 225 s to 375 s. A thousand waits should have nearly all of these 150
        // values.
        assert!(waits.len() > 120, "{} different waits", waits.len());
        assert!((290..310).contains(&mean), "{mean}");
        assert_eq!(schedule.delay(7, 3, 2), schedule.delay(7, 3, 2));
        assert_ne!(schedule.delay(7, 3, 2), schedule.delay(8, 3, 2));
    }

    proptest! {
        #[test]
        fn any_schedule_gives_a_wait_within_its_bounds(
            first in 0..100_000_u64, longest in 0..1_000_000_u64, seed: u64, subject: u64, attempt: u32,
        ) {
            let schedule = Backoff { initial: seconds(first), max: seconds(longest) };
            let wait = schedule.delay(seed, subject, attempt);
            prop_assert!(wait >= seconds(first) * 3 / 4);
            prop_assert!(wait <= seconds(longest.max(first)) * 5 / 4);
            let of_destinations = schedule.for_destinations();
            prop_assert!(of_destinations.initial <= schedule.initial && of_destinations.max >= of_destinations.initial);
            prop_assert!(of_destinations.max <= schedule.max.max(schedule.initial));
        }
    }
}
