//! Clock errors of times that are measured across two hosts. For example, the time of a delivery begins on the clock of
//! the source's host and ends on the clock of the sink's host.
//!
//! If source and sink run on the same host, without a reboot in between, they share a clock and there is no error.
//! Otherwise, the difference of the clocks is either measured by an exchange of messages or unknown. chrony's estimates
//! for both hosts give another bound, which is used if it is smaller. Times are never corrected. Instead, the report
//! states the bound. The run is invalid if an error of this size could change whether a threshold is met.
use crate::reason::Reason;
use crate::record::{Cause, Record};
use crate::stage::Stage;
use crate::threshold::{arrived_median_ms, clock_scale_ms};
use std::time::Duration;

/// A clock error is acceptable if it is at most the measured time divided by this number.
const ERROR_SHARE: f64 = 10.0;

/// Maximum error of a time that was measured between two hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockError {
    /// Times have no clock error, because source and sink use the same clock.
    #[default]
    None,
    /// The clock error is at most the measured difference of the clocks plus the uncertainty of the measurement.
    Bound {
        /// Measured difference of the clocks, without its sign.
        difference: Duration,
        uncertainty: Duration,
    },
    /// The clock error of a time is at most this duration, according to chrony's estimates for both hosts.
    ByChrony(Duration),
    Unknown,
}

impl ClockError {
    /// Returns the maximum clock error of times that begin on the source's host and end on the sink's host.
    pub fn between(source: &Record, sink_boot: &str) -> Self {
        let Some(clock) = &source.clock else { return Self::Unknown };
        if clock.boot == sink_boot {
            return Self::None;
        }
        let Some(sink) = clock.sinks.iter().find(|sink| sink.boot == sink_boot) else { return Self::Unknown };
        match sink.chrony_bound_ns {
            Some(bound_ns) => Self::ByChrony(Duration::from_nanos(bound_ns)),
            None => Self::Bound {
                difference: Duration::from_nanos(sink.difference_ns.unsigned_abs()),
                uncertainty: Duration::from_nanos(sink.error_ns),
            },
        }
    }

    #[must_use]
    pub fn or_larger(self, other: Self) -> Self {
        if self.size() < other.size() { other } else { self }
    }

    fn size(self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Bound { difference, uncertainty } => difference.saturating_add(uncertainty),
            Self::ByChrony(bound) => bound,
            Self::Unknown => Duration::MAX,
        }
    }
}

/// Returns a sentence for the verdict that states the maximum clock error of times from source to sink. The run is
/// invalid if a threshold concerns such times and the error is more than a tenth of their median or, for freshness, of
/// the maximum age.
pub fn clock_reason(record: &Record, error: ClockError) -> Option<Reason> {
    let median_ms = arrived_median_ms(record, Stage::Delivered)?;
    let known = describe(error)?;
    let is_small_beside =
        |time_ms: f64| error != ClockError::Unknown && error.size().as_secs_f64() * 1e3 * ERROR_SHARE <= time_ms;
    let mut scales = record.thresholds.iter().filter_map(|row| clock_scale_ms(record, row));
    let (cause, rest) = if scales.any(|time_ms| !is_small_beside(time_ms)) {
        (
            Cause::Clocks,
            "too much for a threshold on them. Set the clocks by NTP, and name the sink to each source with --sink.",
        )
    } else if is_small_beside(median_ms) {
        (Cause::Remark, "less than a tenth of their median.")
    } else {
        (Cause::Remark, "too much to rely on them. Accepted times are exact.")
    };
    Some(Reason::new(cause, format!("{known}: {rest}")))
}

/// Describes the clock error of delivered times, and how it was found. Returns `None` if there is no error.
fn describe(error: ClockError) -> Option<String> {
    let size = time(error.size());
    Some(match error {
        ClockError::None => return None,
        ClockError::Bound { difference, uncertainty } => format!(
            "Delivered times are wrong by up to {size}, for the clocks of the hosts differ by {} ± {} (by an exchange of messages)",
            time(difference),
            time(uncertainty)
        ),
        ClockError::ByChrony(_) => format!(
            "Delivered times are wrong by up to {size}, for the clocks of the hosts differ by no more (by chrony's estimates)"
        ),
        ClockError::Unknown => "Delivered times compare clocks of different hosts, whose error is not known".to_owned(),
    })
}

/// Formats a time in the largest fitting unit of s, ms and us, for example 0.0015 s as `1.5 ms`.
fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 1e-3 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.0} us", seconds * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Latencies;
    use crate::record::{ClockRow, LatencyMs, SinkClockRow, StageRow, ThresholdRow};

    fn source(sinks: Vec<SinkClockRow>) -> Record {
        Record { clock: Some(ClockRow { boot: "a".to_owned(), unix_offset_ns: 0, sinks }), ..Record::empty() }
    }

    #[test]
    fn one_boot_is_exact_a_measured_clock_has_a_bound_and_any_other_none() {
        let sink = SinkClockRow {
            boot: "b".to_owned(),
            difference_ns: -300,
            error_ns: 20,
            exchanges: 16,
            ..Default::default()
        };
        let by_chrony = SinkClockRow { boot: "d".to_owned(), chrony_bound_ns: Some(310), ..sink.clone() };
        let source = source(vec![sink, by_chrony]);
        assert_eq!(ClockError::between(&source, "a"), ClockError::None);
        let bound = ClockError::Bound { difference: Duration::from_nanos(300), uncertainty: Duration::from_nanos(20) };
        assert_eq!(ClockError::between(&source, "b"), bound);
        assert_eq!(ClockError::between(&source, "c"), ClockError::Unknown);
        assert_eq!(ClockError::between(&Record::empty(), "a"), ClockError::Unknown, "an older record");
        let chrony = ClockError::ByChrony(Duration::from_nanos(310));
        assert_eq!(ClockError::between(&source, "d"), chrony);
        assert_eq!((bound.or_larger(chrony), chrony.or_larger(ClockError::Unknown)), (bound, ClockError::Unknown));
        assert!(describe(chrony).unwrap().contains("by chrony"));
        assert!(describe(bound).unwrap().contains("by an exchange"));
        assert_eq!(bound.or_larger(ClockError::None), bound);
        assert_eq!(bound.or_larger(ClockError::Unknown), ClockError::Unknown);
        assert_eq!(ClockError::None.or_larger(bound), bound);
    }

    #[test]
    fn a_threshold_is_not_judged_by_clocks_that_may_decide_it() {
        let cause = |expression: &str, difference_s: u64| {
            let delivered = StageRow {
                latency_ms: Some(LatencyMs { p50: 50.0, ..LatencyMs::default() }),
                ..StageRow::new(Stage::Delivered, "sink")
            };
            let row = ThresholdRow { expression: expression.to_owned(), ..ThresholdRow::default() };
            let record = Record { stages: vec![delivered], thresholds: vec![row], ..Record::empty() };
            let difference = Duration::from_secs(difference_s);
            clock_reason(&record, ClockError::Bound { difference, uncertainty: Duration::ZERO }).unwrap().cause
        };
        for (expression, difference_s, expected) in [
            ("delivered.p99 < 1s", 1, Cause::Clocks),
            ("delivered .within(60s) >= 95%", 1, Cause::Clocks),
            ("delivered.rate > 10/s", 1, Cause::Remark),
            ("accepted.p99 < 1s", 1, Cause::Remark),
            ("delivered.p99 < 1s", 0, Cause::Remark),
            ("fresh(30s) >= 98%", 60, Cause::Clocks),
            ("fresh(30s) >= 98%", 3, Cause::Remark),
        ] {
            assert_eq!(cause(expression, difference_s), expected, "{expression}, {difference_s} s");
        }
    }

    #[test]
    fn each_stage_has_the_median_of_what_arrived_as_its_scale() {
        // Most messages of this run never arrive, so the median over all messages (`p50`) is infinite. The ten messages
        // that arrive reach `delivered` after 50 ms and `announced` after 10 s.
        let stage = |name, ms| {
            let mut times = Latencies::default();
            (0..10).for_each(|_| times.record(Duration::from_millis(ms)));
            let latency_ms = Some(LatencyMs { p50: f64::INFINITY, ..times.summary().unwrap() });
            StageRow { count: 10, latency_ms, histogram: times.encoded(), ..StageRow::new(name, "sink") }
        };
        let stages = vec![stage(Stage::Announced, 10_000), stage(Stage::Delivered, 50)];
        let bound = |ms| ClockError::Bound { difference: Duration::from_millis(ms), uncertainty: Duration::ZERO };
        for (expression, error, expected) in [
            ("delivered.p10 < 1s", bound(4), Cause::Remark),
            ("delivered.p10 < 1s", bound(6), Cause::Clocks),
            ("delivered.p10 < 1s", ClockError::Unknown, Cause::Clocks),
            ("announced.p10 < 1min", bound(900), Cause::Remark),
            ("announced.p10 < 1min", bound(1_100), Cause::Clocks),
            ("announced.within(1min) >= 10%", bound(1_100), Cause::Clocks),
            ("announced.rate > 10/s", bound(1_100), Cause::Remark),
            ("fresh(30s) >= 98%", ClockError::Unknown, Cause::Clocks),
        ] {
            let thresholds = vec![ThresholdRow { expression: expression.to_owned(), ..ThresholdRow::default() }];
            let record = Record { stages: stages.clone(), thresholds, ..Record::empty() };
            let reason = clock_reason(&record, error).unwrap();
            assert_eq!(reason.cause, expected, "{expression}, {error:?}");
            assert!(error != ClockError::Unknown || !reason.text.contains("less than a tenth"), "{}", reason.text);
        }
    }
}
