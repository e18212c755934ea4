//! Formats numbers for readers: units, rounding and thousands separators.
//!
//! Figures have about four significant digits, so that a reader can compare the numbers of a column
//! at a glance. Rounding never makes a false claim: 199,999 of 200,000 is not 100 %.
//!
//! All reports use the following units. Bytes have binary units (B, KiB = 1,024 B, MiB, GiB), as in options (`4k` is
//! 4,096 bytes). Rates are per second. Latencies in tables are in ms, with the same number of decimals in a column.
//! Times in sentences have a suitable unit (µs, ms, s). Shares are in per cent. Some tables show throughput in MB/s of
//! 1,000,000 bytes, for example because they also show published figures.

pub use crate::words::{counted, grouped as count};

pub const UNKNOWN: &str = "unknown";

/// Text for a figure that has no value, such as a rate over a time of zero.
const NONE: &str = "–";

/// Formats a count, or returns `unknown` for a count that nobody has observed.
pub fn known(number: Option<u64>) -> String {
    number.map_or_else(|| UNKNOWN.to_owned(), count)
}

/// Formats a figure with about four significant digits, for example `0.012`, `1.423`, `54.32`,
/// `543.2` or `54,321`.
pub fn figure(value: f64) -> String {
    if !value.is_finite() || value < 0.0 {
        return NONE.to_owned();
    }
    // Each limit is the point at which rounding adds a digit, so that 9.9996 becomes 10.00 and not 10.000.
    match value {
        v if v < 0.000_000_5 => "0".to_owned(),
        // Show six decimals, because the lowest rate, one per hour, is 0.000278 per second.
        v if v < 0.000_5 => format!("{v:.6}"),
        v if v < 9.999_5 => format!("{v:.3}"),
        v if v < 99.995 => format!("{v:.2}"),
        v if v < 999.95 => format!("{v:.1}"),
        // The cast is exact enough, because no measured number reaches 2^64.
        v => count(v.round() as u64),
    }
}

pub fn rate(per_second: f64) -> String {
    figure(per_second)
}

/// Formats bytes per second as MB/s (1,000,000 bytes), for example beside published figures.
pub fn megabytes(bytes_per_second: f64) -> String {
    figure(bytes_per_second / 1e6)
}

/// Returns the number of decimals for a column of milliseconds, given its largest value: three (a
/// resolution of 1 µs) below 100 ms, and none from 100 s on.
pub fn decimals_of_millis(largest: f64) -> usize {
    match largest {
        v if v < 99.999_5 => 3,
        v if v < 999.995 => 2,
        v if v < 99_999.95 => 1,
        _ => 0,
    }
}

/// Returns the number of decimals for a column of figures, so that the largest figure has about
/// four significant digits.
pub fn decimals_of_figures(largest: f64) -> usize {
    match largest {
        v if v < 9.999_5 => 3,
        v if v < 99.995 => 2,
        v if v < 999.95 => 1,
        _ => 0,
    }
}

/// Formats a value with thousands separators and with `decimals` digits after the point, for example `12,345.60`.
pub fn fixed(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    let text = format!("{:.decimals$}", value.abs());
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    // Numbers from 2^64 on do not fit into `u64`, so they get no thousands separators.
    let whole = whole.parse::<u64>().map_or_else(|_| whole.to_owned(), count);
    // A negative value that rounds to zero gets no sign, so that it is not shown as -0.
    let sign = if value < 0.0 && text.bytes().any(|digit| (b'1'..=b'9').contains(&digit)) { "-" } else { "" };
    if part.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part}") }
}

/// Formats a latency with its unit, for example `850 µs`, `1.42 ms` or `2.31 s`.
pub fn latency(milliseconds: f64) -> String {
    match milliseconds {
        ms if !ms.is_finite() || ms < 0.0 => NONE.to_owned(),
        ms if ms < 0.999_5 => format!("{:.0} µs", ms * 1e3),
        ms if ms < 99.95 => format!("{ms:.2} ms"),
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms => seconds(ms / 1e3),
    }
}

/// Formats a duration, for example `3.68 s`, `2 min 03 s` or `17 h 46 min`.
pub fn seconds(value: f64) -> String {
    match value {
        v if !v.is_finite() || v < 0.0 => NONE.to_owned(),
        v if v < 99.995 => format!("{v:.2} s"),
        v if v < 3_599.5 => {
            let whole = v.round() as u64;
            format!("{} min {:02} s", whole / 60, whole % 60)
        }
        v => {
            let minutes = (v / 60.0).round() as u64;
            format!("{} h {:02} min", count(minutes / 60), minutes % 60)
        }
    }
}

/// Formats an amount of memory, disk space or transferred data, for example `13.4 MiB`.
pub fn memory(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1_024.0 * 0.9995 && unit + 1 < UNITS.len() {
        value /= 1_024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} {}", UNITS[0]),
        _ if value < 99.95 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{} {}", count(value.round() as u64), UNITS[unit]),
    }
}

/// Formats the size of a message. Multiples of 1 KiB or 1 MiB are shown exactly (`64 KiB`). Other
/// sizes are shown in bytes if they are below 10,000 bytes (`400 B`), and otherwise rounded
/// (`97.7 KiB`).
pub fn octets(bytes: u64) -> String {
    let whole = |unit: u64| bytes >= unit && bytes.is_multiple_of(unit);
    match bytes {
        b if whole(1 << 20) => format!("{} MiB", count(b >> 20)),
        b if whole(1 << 10) => format!("{} KiB", count(b >> 10)),
        b if b < 10_000 => format!("{} B", count(b)),
        b => memory(b),
    }
}

/// Returns the median, or `None` if there are no values. For an even number of values, the median
/// is the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Formats `part` of `whole` in per cent, for example `99.90 %`. Only exact shares are shown as
/// `100 %` or `0 %`, because a reader would take these for all or none.
pub fn share(part: u64, whole: u64) -> String {
    match (part, whole) {
        (_, 0) => NONE.to_owned(),
        (0, _) => "0 %".to_owned(),
        (part, whole) if part == whole => "100 %".to_owned(),
        (part, whole) => {
            let percent = part as f64 / whole as f64 * 100.0;
            match percent {
                p if p < 0.01 => "< 0.01 %".to_owned(),
                p if p > 99.99 && p < 100.0 => "> 99.99 %".to_owned(),
                p => format!("{p:.2} %"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        let rows = [(0, "0"), (999, "999"), (1_000, "1,000"), (200_000, "200,000"), (1_234_567, "1,234,567")];
        for (number, text) in rows {
            assert_eq!(count(number), text);
        }
        assert_eq!(known(None), "unknown");
    }

    #[test]
    fn figures_keep_about_four_digits() {
        let rows = [
            (0.0, "0"),
            (1.0 / 3600.0, "0.000278"),
            (0.012_4, "0.012"),
            (1.423, "1.423"),
            (9.999_6, "10.00"),
            (54.321, "54.32"),
            (99.996, "100.0"),
            (543.21, "543.2"),
            (999.96, "1,000"),
            (54_321.4, "54,321"),
            (f64::NAN, "–"),
            (f64::INFINITY, "–"),
        ];
        for (value, text) in rows {
            assert_eq!(figure(value), text, "{value}");
        }
    }

    #[test]
    fn a_column_has_as_many_decimals_all_down() {
        assert_eq!([0.012, 10.13].map(|ms| fixed(ms, decimals_of_millis(10.13))), ["0.012", "10.130"]);
        assert_eq!([0.156, 12_345.6].map(|ms| fixed(ms, decimals_of_millis(12_345.6))), ["0.2", "12,345.6"]);
        assert_eq!(fixed(54_321.4, decimals_of_figures(54_321.4)), "54,321");
        assert_eq!([fixed(-1.5, 1), fixed(-0.001, 1), fixed(f64::NAN, 1)], ["-1.5", "0.0", "–"]);
    }

    #[test]
    fn times_choose_their_unit() {
        let rows = [(0.0, "0 µs"), (0.85, "850 µs"), (0.9997, "1.00 ms"), (1.42, "1.42 ms"), (250.0, "250 ms")];
        for (ms, text) in rows {
            assert_eq!(latency(ms), text);
        }
        assert_eq!(latency(2_310.0), "2.31 s");
        let rows = [(3.684, "3.68 s"), (123.0, "2 min 03 s"), (63_960.0, "17 h 46 min"), (3_599.9, "1 h 00 min")];
        for (value, text) in rows {
            assert_eq!(seconds(value), text);
        }
    }

    #[test]
    fn bytes_choose_their_unit() {
        assert_eq!(memory(0), "0 B");
        assert_eq!(memory(14_050_918), "13.4 MiB");
        assert_eq!(memory(25_769_803_776), "24.0 GiB");
        assert_eq!(octets(400), "400 B");
        assert_eq!(octets(65_536), "64 KiB");
        assert_eq!(octets(10_485_760), "10 MiB");
        assert_eq!(octets(3_000), "3,000 B");
        assert_eq!(octets(33_750), "33.0 KiB");
        assert_eq!(octets(10_000_000), "9.5 MiB");
        assert_eq!(octets(1_234_567_890), "1.1 GiB");
        assert_eq!(memory(1_099_511_627_776_000), "1,000 TiB");
    }

    #[test]
    fn a_share_is_never_rounded_into_all_or_nothing() {
        assert_eq!(share(200_000, 200_000), "100 %");
        assert_eq!(share(199_999, 200_000), "> 99.99 %");
        assert_eq!(share(1, 200_000), "< 0.01 %");
        assert_eq!(share(0, 200_000), "0 %");
        assert_eq!(share(199_800, 200_000), "99.90 %");
        assert_eq!(share(1, 0), "–");
    }
}
