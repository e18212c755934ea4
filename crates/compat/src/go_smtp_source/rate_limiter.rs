//! The rate limit of `-q`, in recipients per second. Each message takes one token per recipient.
use std::cell::Cell;
use std::time::Duration;

/// Token bucket that holds as many tokens as a message has recipients. The bucket is full at the start. Each message
/// empties it, so the next message must wait until the bucket is full again.
#[derive(Debug)]
pub(super) struct RateLimiter {
    /// Time that the empty bucket takes to fill. Zero means that there is no limit.
    interval: Duration,
    full_at: Cell<Duration>,
}

impl RateLimiter {
    pub(super) fn new(rate: f64, recipients: i64) -> Self {
        let seconds = if rate > 0.0 { recipients as f64 / rate } else { 0.0 };
        // At a very low rate, the interval between messages overflows, and the next message is then never due.
        let interval = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        Self { interval, full_at: Cell::new(Duration::ZERO) }
    }

    pub(super) fn is_limited(&self) -> bool {
        !self.interval.is_zero()
    }

    /// Returns the time at which the caller may send, `now` or later. The next caller gets a time that is at least
    /// `interval` later.
    pub(super) fn reserve(&self, now: Duration) -> Duration {
        let due = self.full_at.get().max(now);
        self.full_at.set(due.saturating_add(self.interval));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(number: f64) -> Duration {
        Duration::from_secs_f64(number)
    }

    #[test]
    fn the_first_goes_at_once_and_each_after_the_time_of_its_recipients() {
        let pace = RateLimiter::new(10.0, 5);
        let now = seconds(100.0);
        let due: Vec<Duration> = (0..3).map(|_| pace.reserve(now)).collect();
        assert_eq!(due, [now, seconds(100.5), seconds(101.0)]);
        assert_eq!(pace.reserve(seconds(200.0)), seconds(200.0), "what was not used is not saved up");
        assert_eq!(pace.reserve(seconds(200.1)), seconds(200.5));
    }

    #[test]
    fn no_limit_is_none() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let pace = RateLimiter::new(rate, 5);
            assert!(!pace.is_limited(), "{rate}");
            assert_eq!((pace.reserve(seconds(1.0)), pace.reserve(seconds(1.0))), (seconds(1.0), seconds(1.0)));
        }
        let slow = RateLimiter::new(1e-300, 1);
        assert_eq!((slow.reserve(seconds(1.0)), slow.reserve(seconds(1.0))), (seconds(1.0), Duration::MAX));
    }
}
