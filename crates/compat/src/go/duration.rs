//! Durations and times in the format in which Go prints them: `25m27.035791317s`, `1.5ms`, `2022-11-22T11:16:58+01:00`.
use jiff::Zoned;
use std::time::Duration;

const MICROSECOND: u128 = 1_000;
const MILLISECOND: u128 = 1_000_000;
const SECOND: u128 = 1_000_000_000;

/// Formats a duration to the nanosecond. A duration of at least a second is given in hours, minutes and seconds, and a
/// shorter duration in milliseconds, microseconds or nanoseconds.
pub(crate) fn duration(time: Duration) -> String {
    let nanoseconds = time.as_nanos();
    match nanoseconds {
        0 => "0s".to_owned(),
        1..MICROSECOND => format!("{nanoseconds}ns"),
        MICROSECOND..MILLISECOND => decimal(nanoseconds, MICROSECOND) + "µs",
        MILLISECOND..SECOND => decimal(nanoseconds, MILLISECOND) + "ms",
        _ => {
            let minutes = time.as_secs() / 60;
            let seconds = decimal(nanoseconds % (60 * SECOND), SECOND);
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{seconds}s"),
                (0, minutes) => format!("{minutes}m{seconds}s"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

/// Formats a duration as [`duration`] does, but rounded to whole milliseconds. Half a millisecond is rounded up.
pub(crate) fn rounded_to_milliseconds(time: Duration) -> String {
    let milliseconds = (time.as_nanos() + MILLISECOND / 2) / MILLISECOND;
    duration(Duration::from_millis(u64::try_from(milliseconds).unwrap_or(u64::MAX)))
}

fn decimal(number: u128, unit: u128) -> String {
    let width = unit.ilog10() as usize;
    let text = format!("{}.{:0width$}", number / unit, number % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a time to the second (RFC 3339). If the offset from UTC is zero, it is written as `Z`.
pub(crate) fn timestamp(time: &Zoned) -> String {
    let zone = if time.offset().is_zero() { "Z" } else { "%:z" };
    time.strftime(&format!("%Y-%m-%dT%H:%M:%S{zone}")).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_are_written_as_go_writes_them() {
        // Each row has a number of nanoseconds, and what Go 1.26 prints for it: in full, and rounded to milliseconds.
        let rows = [
            (0, "0s", "0s"),
            (1, "1ns", "0s"),
            (999, "999ns", "0s"),
            (1_000, "1µs", "0s"),
            (1_001, "1.001µs", "0s"),
            (1_500, "1.5µs", "0s"),
            (100_000, "100µs", "0s"),
            (499_999, "499.999µs", "0s"),
            (500_000, "500µs", "1ms"),
            (1_499_999, "1.499999ms", "1ms"),
            (1_500_000, "1.5ms", "2ms"),
            (999_999_999, "999.999999ms", "1s"),
            (1_000_000_000, "1s", "1s"),
            (59_999_500_000, "59.9995s", "1m0s"),
            (61_000_000_000, "1m1s", "1m1s"),
            (3_600_000_000_000, "1h0m0s", "1h0m0s"),
            (3_723_004_005_006, "1h2m3.004005006s", "1h2m3.004s"),
            (90_000_000_000_000, "25h0m0s", "25h0m0s"),
        ];
        for (nanoseconds, whole, rounded) in rows {
            let time = Duration::from_nanos(nanoseconds);
            assert_eq!((duration(time).as_str(), rounded_to_milliseconds(time).as_str()), (whole, rounded));
        }
    }

    #[test]
    fn points_of_time() {
        for (written, expected) in [
            ("2022-11-22T11:16:58.123456789+01:00[+01:00]", "2022-11-22T11:16:58+01:00"),
            ("2022-11-22T11:16:58+00:00[+00:00]", "2022-11-22T11:16:58Z"),
            ("2022-11-22T11:16:58-03:30[-03:30]", "2022-11-22T11:16:58-03:30"),
        ] {
            assert_eq!(timestamp(&written.parse().unwrap()), expected);
        }
    }

    proptest! {
        #[test]
        fn no_digit_is_lost(nanoseconds: u64) {
            let text = duration(Duration::from_nanos(nanoseconds));
            let mut rest = text.as_str();
            let mut sum = 0.0;
            for (unit, seconds) in [("h", 3600.0), ("ms", 1e-3), ("m", 60.0), ("µs", 1e-6), ("ns", 1e-9), ("s", 1.0)] {
                if unit == "m" && rest.contains("ms") {
                    continue;
                }
                if let Some((number, behind)) = rest.split_once(unit) {
                    sum += number.parse::<f64>().unwrap() * seconds;
                    rest = behind;
                }
            }
            prop_assert_eq!(rest, "");
            prop_assert!((sum - nanoseconds as f64 / 1e9).abs() <= sum * 1e-12, "{} {}", text, nanoseconds);
        }
    }
}
