//! The line that `--report` prints for a source: messages, seconds, messages per second, and latency.
use jiff::Zoned;
use jiff::tz::TimeZone;
use mailrun_measurement::Latencies;
use mailrun_net::clock;
use std::cell::{Cell, RefCell};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Timing {
    began: Duration,
    accepted: Cell<u64>,
    latencies: RefCell<Latencies>,
}

impl Timing {
    pub(super) fn begin() -> Self {
        Self { began: clock::now(), accepted: Cell::default(), latencies: RefCell::default() }
    }

    pub(super) fn accepted(&self, taken_up: Option<Duration>) {
        self.accepted.set(self.accepted.get() + 1);
        if let Some(taken_up) = taken_up {
            self.latencies.borrow_mut().record(clock::now().saturating_sub(taken_up));
        }
    }

    /// Returns the line that `--report` prints, with the number of accepted messages, their rate and their latency.
    /// `messages` is the requested number, even if fewer were sent.
    pub(super) fn report(&self, messages: impl std::fmt::Display) -> String {
        self.report_at(messages, clock::now())
    }

    fn report_at(&self, messages: impl std::fmt::Display, now: Duration) -> String {
        let accepted = self.accepted.get();
        let pace = rate(accepted, now.saturating_sub(self.began));
        format!("{messages} messages, {accepted} accepted, {pace}, {}", latency(&self.latencies.borrow()))
    }
}

/// Formats a time and the rate of messages in this time, for example `2.000 s, 500 msg/s`.
pub(super) fn rate(messages: u64, time: Duration) -> String {
    let seconds = time.as_secs_f64().max(1e-9);
    format!("{seconds:.3} s, {:.0} msg/s", messages as f64 / seconds)
}

pub(super) fn latency(times: &Latencies) -> String {
    let [p50, p99] = [0.5, 0.99].map(|quantile| times.quantile_ms(quantile));
    format!("latency p50 {p50:.3} ms, p99 {p99:.3} ms")
}

/// Formats the current time with a template of strftime(3). As in the imitated programs, it is local time, or UTC if
/// the host has no time zone.
pub(super) fn local_time(template: &str) -> String {
    let now = Zoned::now();
    let now = if now.time_zone().is_unknown() { now.with_time_zone(TimeZone::UTC) } else { now };
    now.strftime(template).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_in_one_line() {
        let timing = Timing::begin();
        for _ in 0..3 {
            timing.accepted(Some(clock::now()));
        }
        let report = timing.report_at(4, timing.began + Duration::from_secs(2));
        assert!(report.starts_with("4 messages, 3 accepted, 2.000 s, 2 msg/s, latency p50 0.00"), "{report}");
    }
}
