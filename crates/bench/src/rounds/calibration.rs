//! Chooses the number of messages that each contestant sends in a round. The fastest contestant should take 0.25 to
//! 0.5 s. If a slow contestant would leave too little time for enough rounds, all contestants send fewer messages.
use std::time::Duration;

/// Time in seconds that the fastest contestant should take in a round. It is near the middle of `RIGHT_S`, so that a
/// number of messages chosen for this time is right even if the next run is a little faster or slower.
const GOAL_S: f64 = 0.36;
/// Acceptable range, in seconds, of the time that the fastest contestant takes in a round. The calibration accepts a
/// shorter time only if longer rounds would take too long in total (`FITS`).
const RIGHT_S: std::ops::RangeInclusive<f64> = 0.25..=0.5;
/// Number of rounds that should fit into half of the comparison's time. This number includes the rounds that a verdict
/// needs, and the first block of rounds, which is a warm-up and does not count.
const ROUNDS: f64 = 24.0;
/// The calibration divides half of the comparison's time by the time that `ROUNDS` rounds would take, and accepts
/// ratios in this range. If the ratio is smaller, it tries shorter rounds. If the ratio is larger and the fastest
/// contestant takes less time than `RIGHT_S`, it tries longer rounds.
const FITS: std::ops::RangeInclusive<f64> = 0.7..=1.5;
/// The calibration raises the number of messages at most by this factor from one run to the next. A short run consists
/// mostly of startup, which hides how long each message takes, so a larger step would be a guess.
const MAX_FACTOR: f64 = 20.0;
const MAX_MESSAGES: u64 = 1_000_000;
/// Number of messages in the calibration's first run. It is low because some contestants take a tenth of a second for
/// each message.
const FIRST_MESSAGES: u64 = 20;
/// The bench kills a run that takes this many times longer than expected, but not before `MIN_LIMIT` has passed.
const LIMIT_FACTOR: f64 = 10.0;
const MIN_LIMIT: Duration = Duration::from_secs(10);

/// Result of a step of the calibration: the next number of messages to try, or `Done` if the last number is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Calibration {
    Try(u64),
    Done,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTimes {
    pub(super) fastest_s: f64,
    pub(super) together_s: f64,
    pub(super) budget_s: f64,
}

/// Returns the number of messages of the calibration's first run. Each session sends at least one message, unless the
/// user wants fewer messages.
pub(super) fn first_messages(requested_count: Option<u64>, sessions: u32) -> u64 {
    let first_count = FIRST_MESSAGES.max(sessions.into());
    requested_count.map_or(first_count, |count| count.min(first_count))
}

/// Decides whether the calibration tries another number of messages. `times` are the times that the contestants took
/// for `messages` messages, and `requested_count` is the number of messages that the user wants, if any.
pub(super) fn next_step(requested_count: Option<u64>, sessions: u32, messages: u64, times: RoundTimes) -> Calibration {
    let min_count = u64::from(sessions).max(1);
    let fit_ratio = times.budget_s / 2.0 / (ROUNDS * times.together_s.max(1e-3));
    let is_right = (RIGHT_S.contains(&times.fastest_s) && fit_ratio >= *FITS.start())
        || (times.fastest_s < *RIGHT_S.start() && FITS.contains(&fit_ratio));
    let next = match requested_count {
        Some(count) => count,
        None if is_right => messages,
        None => {
            let factor = (GOAL_S / times.fastest_s.max(1e-3)).min(fit_ratio).min(MAX_FACTOR);
            ((messages as f64 * factor).round() as u64).clamp(min_count.min(MAX_MESSAGES), MAX_MESSAGES)
        }
    };
    if next == messages { Calibration::Done } else { Calibration::Try(next) }
}

/// Returns the time limit for a contestant's run of `messages` messages. The limit is computed from the number of
/// messages and the duration of the contestant's previous run (`last_run`).
pub(super) fn time_limit(last_run: Option<(u64, Duration)>, messages: u64) -> Duration {
    let Some((previous_count, elapsed)) = last_run else { return MIN_LIMIT };
    let growth = (messages as f64 / previous_count.max(1) as f64).max(1.0);
    Duration::from_secs_f64((elapsed.as_secs_f64() * growth * LIMIT_FACTOR).min(1e6)).max(MIN_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calibrates two simulated load generators. One starts in `start_s` and sends `rate` messages per second, and the
    /// other takes `times` times as long. Returns the chosen number of messages and how many numbers were tried.
    fn calibrated_beside(times: f64, start_s: f64, rate: f64) -> (u64, usize) {
        let mut messages = first_messages(None, 10);
        for steps in 1..20 {
            let fastest_s = start_s + messages as f64 / rate;
            let round_times = RoundTimes { fastest_s, together_s: fastest_s * (1.0 + times), budget_s: 120.0 };
            match next_step(None, 10, messages, round_times) {
                Calibration::Try(next) => messages = next,
                Calibration::Done => return (messages, steps),
            }
        }
        panic!("no end at {messages}");
    }

    fn calibrated(start_s: f64, rate: f64) -> (u64, usize) {
        calibrated_beside(1.0, start_s, rate)
    }

    #[test]
    fn a_slow_contestant_leaves_time_for_a_verdict() {
        for (start_s, rate) in [(0.002, 10_000.0), (0.05, 500.0), (0.2, 2_000.0)] {
            let (messages, steps) = calibrated_beside(20.0, start_s, rate);
            let together_s = 21.0 * (start_s + messages as f64 / rate);
            assert!(together_s * 20.0 < 120.0 && steps <= 8, "{start_s} {rate}: {messages} take {together_s} s");
        }
    }

    #[test]
    fn a_round_takes_a_quarter_to_half_of_a_second() {
        for (start_s, rate) in [(0.002, 10_000.0), (0.005, 60_000.0), (0.05, 500.0), (0.0, 60.0), (0.2, 2_000.0)] {
            let (messages, steps) = calibrated(start_s, rate);
            let elapsed_s = start_s + messages as f64 / rate;
            assert!((0.25..=0.5).contains(&elapsed_s) && steps <= 6, "{start_s} {rate}: {messages} take {elapsed_s} s");
        }
        // Each of the 10 sessions must send at least one message. At 5 messages per second, the round then takes 2 s,
        // although the usual limit is 0.5 s.
        assert_eq!(calibrated(0.0, 5.0).0, 10);
        assert_eq!(calibrated(0.0, 1e9).0, MAX_MESSAGES);
    }

    #[test]
    fn the_number_that_was_asked_for_is_tried_after_a_few() {
        assert_eq!([first_messages(Some(5), 10), first_messages(Some(900), 10)], [5, 20]);
        let times = |fastest_s| RoundTimes { fastest_s, together_s: 2.0 * fastest_s, budget_s: 60.0 };
        assert_eq!(next_step(Some(900), 10, 20, times(0.01)), Calibration::Try(900));
        assert_eq!(next_step(Some(900), 10, 900, times(30.0)), Calibration::Done);
    }

    #[test]
    fn a_limit_is_ten_times_the_time_and_ten_seconds_at_least() {
        let second = Duration::from_secs(1);
        assert_eq!(time_limit(None, 20), 10 * second);
        assert_eq!(time_limit(Some((20, second)), 200), 100 * second);
        assert_eq!(time_limit(Some((200, second / 4)), 200), 10 * second);
    }
}
