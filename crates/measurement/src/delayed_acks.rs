//! Detects delayed ACKs in measured durations. Their sign is that many durations are about 40 ms, but few are slightly
//! shorter.
//!
//! A host delays an ACK by 40 ms (Linux: TCP_DELACK_MIN), because it may soon have data with which to send the ACK. A
//! peer that writes a reply or a message in small pieces without TCP_NODELAY waits for that ACK before it sends the
//! next piece (Nagle, RFC 896), so both wait for each other. A pause of the whole server may also make many replies
//! 40 ms late, but in many sessions at the same time. Durations that overlap therefore count only once.
use crate::latencies::Latencies;
use crate::record::PauseRow;
use crate::stage::Phase;
use std::ops::Range;
use std::time::Duration;

/// Durations below this limit contain no delayed ACK. If more than half of all durations are this short, the peer is
/// usually fast, so many waits of about 40 ms must have a special cause.
const SHORT: Duration = Duration::from_millis(10);
/// Range of durations that may be delayed ACKs. A delayed ACK takes 40 to 44 ms, because the timer of a 250 Hz kernel
/// may be up to 4 ms late. It seems slightly shorter if our measurement started late.
const WITHIN_MS: Range<u64> = 38..45;
/// Durations just below `WITHIN_MS`, for comparison. If they are nearly as frequent as durations in `WITHIN_MS`, both
/// belong to a broad tail of slow replies and are no delayed ACKs.
const BEFORE_MS: Range<u64> = 31..38;
const AFTER_MS: Range<u64> = 45..52;
const MIN_SHARE: f64 = 0.01;
/// Minimum number of possible delayed ACKs (waits of about 40 ms) that do not overlap each other. Fewer waits may be
/// chance, or a few pauses of the whole server.
const MIN_COUNT: u64 = 10;
/// Waits of about 40 ms (`WITHIN_MS`) must be at least this many times as frequent as waits just below (`BEFORE_MS`).
const MIN_RATIO: u64 = 3;

/// Counts waits of about 40 ms (possible delayed ACKs). Waits that overlap count once, because a pause of the whole
/// server causes many such waits at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimesApart {
    count: u64,
    until: Duration,
}

impl TimesApart {
    /// Counts the wait from `began` to `ended` if it is as long as a delayed ACK (`WITHIN_MS`) and begins after the
    /// last counted wait ended.
    pub fn record(&mut self, began: Duration, ended: Duration) {
        let time = ended.saturating_sub(began);
        if time >= SHORT && WITHIN_MS.contains(&whole_ms(time)) && began >= self.until {
            *self = Self { count: self.count + 1, until: ended };
        }
    }

    pub fn merge(&mut self, other: &Self) {
        *self = Self { count: self.count + other.count, until: self.until.max(other.until) };
    }
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Counts how many durations of a phase, such as the wait for a reply, are short, just below 40 ms, about 40 ms, and
/// just above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayedAcks {
    all: u64,
    short: u64,
    before: u64,
    within: u64,
    after: u64,
    apart: TimesApart,
}

impl DelayedAcks {
    /// Counts the duration from `began` to `ended` as short, just below 40 ms, about 40 ms or just above. Durations of
    /// about 40 ms may be delayed ACKs, so `apart` counts them as well, unless they overlap.
    pub fn record(&mut self, began: Duration, ended: Duration) {
        self.all += 1;
        let time = ended.saturating_sub(began);
        if time < SHORT {
            self.short += 1;
            return;
        }
        self.apart.record(began, ended);
        let ms = whole_ms(time);
        self.before += u64::from(BEFORE_MS.contains(&ms));
        self.within += u64::from(WITHIN_MS.contains(&ms));
        self.after += u64::from(AFTER_MS.contains(&ms));
    }

    /// Computes the counts from a histogram of durations. A histogram does not tell which durations overlap. The caller
    /// must therefore record each duration in a [`TimesApart`] as well, and pass this count as `apart`.
    pub fn from_latencies(times: &Latencies, apart: TimesApart) -> Self {
        let between = |range: Range<u64>| {
            times.count_between(Duration::from_millis(range.start), Duration::from_millis(range.end))
        };
        Self {
            all: times.count(),
            short: times.count_between(Duration::ZERO, SHORT),
            before: between(BEFORE_MS),
            within: between(WITHIN_MS),
            after: between(AFTER_MS),
            apart,
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.all += other.all;
        self.short += other.short;
        self.before += other.before;
        self.within += other.within;
        self.after += other.after;
        self.apart.merge(&other.apart);
    }

    /// Returns the row of the run record that reports delayed ACKs, or `None` if the counts show no sign of them.
    pub fn row(&self, party: &str, phase: Phase) -> Option<PauseRow> {
        let Self { all, within, .. } = *self;
        self.is_delayed_ack().then(|| PauseRow { party: party.to_owned(), phase, count: within, of: all })
    }

    /// True if durations of about 40 ms are delayed ACKs. They must be more than 1 % of all durations, and at least 10
    /// of them must not overlap. Durations just below 40 ms must be at most a third as frequent, and durations just
    /// above at most as frequent. In addition, more than half of all durations must be short, or more than half about
    /// 40 ms.
    fn is_delayed_ack(&self) -> bool {
        let Self { all, short, before, within, after, apart } = *self;
        let is_frequent = apart.count >= MIN_COUNT && within as f64 > all as f64 * MIN_SHARE;
        let is_distinct = within >= before * MIN_RATIO && within >= after;
        let stands_out = short * 2 > all || within * 2 > all;
        is_frequent && is_distinct && stands_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_turn(times: &[(u64, u64)]) -> impl Iterator<Item = [Duration; 2]> {
        let mut now = Duration::ZERO;
        times.iter().flat_map(|(ms, count)| vec![*ms; *count as usize]).map(move |ms| {
            let began = now;
            now += Duration::from_millis(ms);
            [began, now]
        })
    }

    fn of(times: &[(u64, u64)]) -> DelayedAcks {
        let mut pauses = DelayedAcks::default();
        in_turn(times).for_each(|[began, ended]| pauses.record(began, ended));
        pauses
    }

    /// Waits for a reply as (milliseconds, count), and whether they must be reported as delayed ACKs.
    const TABLE: &[(&[(u64, u64)], bool)] = &[
        (&[], false),
        (&[(1, 1000)], false),
        // More than 1 % of all durations must look like delayed ACKs, so 11 of 1,000 are enough and 10 are not.
        (&[(1, 989), (41, 11)], true),
        (&[(1, 990), (41, 10)], false),
        // At least ten waits of about 40 ms are needed. Fewer may be chance, even if they are a large share of all
        // waits.
        (&[(1, 50), (41, 9)], false),
        (&[(1, 50), (41, 10)], true),
        // Only waits of 38 to 44 ms count. A delayed ACK takes 40 to 44 ms. If the measurement begins late, up to 2 ms
        // of this time are missing.
        (&[(1, 900), (37, 100)], false),
        (&[(1, 900), (38, 100)], true),
        (&[(1, 900), (44, 100)], true),
        (&[(1, 900), (45, 100)], false),
        // If more than half of all durations are below 10 ms, the server is fast. Slowness of the server then does not
        // explain waits of 41 ms. Exactly half is not enough.
        (&[(9, 501), (41, 499)], true),
        (&[(9, 500), (20, 400), (41, 100)], false),
        // If more than half of all durations are about 40 ms, they are reported even if no duration is below 10 ms.
        (&[(41, 1000)], true),
        (&[(20, 499), (41, 501)], true),
        (&[(20, 500), (41, 500)], false),
        // Delayed ACKs show as a peak from 38 to 44 ms, and slow replies as a broad distribution. For every three waits
        // in the peak, at most one wait may take 31 to 37 ms, and at most three waits may take 45 to 51 ms.
        (&[(1, 800), (33, 34), (41, 101), (48, 60)], false),
        (&[(1, 800), (33, 33), (41, 100), (48, 60)], true),
        (&[(1, 800), (41, 60), (48, 61)], false),
    ];

    #[test]
    fn a_cluster_at_40_ms_is_told_from_all_else() {
        for (times, expected) in TABLE {
            assert_eq!(of(times).row("source", Phase::Reply).is_some(), *expected, "{times:?}");
        }
    }

    #[test]
    fn a_distribution_gives_the_same_as_its_times() {
        for (times, expected) in TABLE {
            let mut latencies = Latencies::coarse();
            let mut apart = TimesApart::default();
            for [began, ended] in in_turn(times) {
                // Add 0.5 ms. The histogram keeps only two digits of a time, and might otherwise count 38.0 ms as less
                // than 38 ms.
                latencies.record(ended - began + Duration::from_micros(500));
                apart.record(began, ended);
            }
            assert_eq!(
                DelayedAcks::from_latencies(&latencies, apart).row("source", Phase::Reply).is_some(),
                *expected,
                "{times:?}"
            );
        }
    }

    #[test]
    fn pauses_of_the_whole_server_are_no_delayed_acks() {
        for (pauses, expected) in [(1, false), (9, false), (10, true)] {
            let mut times = of(&[(1, 2000)]);
            for at in 0..pauses {
                let began = Duration::from_millis(at * 100);
                // A pause of the server delays a hundred sessions at the same time. These hundred delays overlap, so
                // they must count as one.
                (0..100).for_each(|n| {
                    times.record(began + Duration::from_micros(n * 5), began + Duration::from_millis(41))
                });
            }
            assert_eq!(times.row("source", Phase::Data).is_some(), expected, "{pauses} pauses");
        }
    }

    #[test]
    fn merging_is_counting_both() {
        let mut merged = of(&[(1, 600), (33, 2), (41, 20), (48, 3)]);
        merged.merge(&of(&[(2, 300), (41, 5)]));
        let expected = of(&[(1, 600), (2, 300), (33, 2), (41, 25), (48, 3)]);
        let apart = TimesApart { count: expected.apart.count, ..merged.apart };
        assert_eq!(merged, DelayedAcks { apart, ..expected });
        let row = merged.row("sink", Phase::Body).unwrap();
        assert_eq!((row.count, row.of, row.party.as_str()), (25, 930, "sink"));
    }
}
