//! Parsers of quantities as people write them in options, rules and files, with a function for each
//! kind.
//!
//! ```text
//! count         500  10k  1M  10_000       k is 1000
//! bytes         400  64k  10M  1G          k is 1024
//! duration      250ms  10s  1m  1h30m      a bare number is seconds
//! rate          500  500/s  500/m  30k/h   a bare number is per second
//! probability   1%  0.01
//! percent       1%
//! interval      10s..15s
//! ```
//! The parsers also accept a number as Rust's `Display` writes it, and a `Duration` as `Debug` writes it, and return
//! the same value. Each error names the fault and, if possible, a valid form, for example `1000` for `1e3`. If a value
//! is too large, the error shows the largest valid value.
use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Highest number that [`count`] accepts. An `f64` represents every whole number up to this limit exactly, and 1000
/// times the limit fits into 64 bits.
pub const MAX_COUNT: u64 = 1_000_000_000_000_000;
/// Largest size in bytes, which users write as 1024T.
pub const MAX_BYTES: u64 = 1 << 50;
/// Longest time: 10,000 days, whose nanoseconds still fit into 64 bits.
pub const MAX_DURATION: Duration = Duration::from_secs(10_000 * 86_400);
pub const MAX_RATE_PER_S: f64 = 1e7;
/// Lowest rate above zero that can be given, in messages per second: one message per hour.
pub const MIN_RATE_PER_S: f64 = 1.0 / 3_600.0;

/// Parses a whole number such as `500`, `10k`, `1M` or `10_000`, where k is 1000.
pub fn count(text: &str) -> Result<u64, String> {
    let (number, factor) = split_thousands(text);
    let Some(decimal) = Decimal::parse(number) else {
        let what = "is not a valid count; use something like 500, 10k or 1M (k is 1000)";
        return Err(refusal(text, what, count_form));
    };
    match decimal.exactly(factor) {
        None => Err(format!("{text:?} is not a whole number")),
        Some(number) => {
            u64::try_from(number).ok().filter(|number| *number <= MAX_COUNT).ok_or_else(|| too_large(text, MAX_COUNT))
        }
    }
}

/// Parses a count of at least one and at most `max`.
pub fn count_up_to(text: &str, max: u64) -> Result<u64, String> {
    match positive(text, count)? {
        number if number > max => Err(too_large(text, max)),
        number => Ok(number),
    }
}

/// Parses a size in bytes such as `400`, `64k`, `10M`, `1G` or `1T`, where k is 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let error = || {
        let what = "is not a valid size; use something like 400, 64k or 10M (k is 1024)";
        refusal(text, what, plain_form)
    };
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[number.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(error()),
    };
    let number = Decimal::parse(number).and_then(|number| number.exactly(1 << shift)).ok_or_else(error)?;
    let number = u64::try_from(number).ok().filter(|number| *number <= MAX_BYTES);
    number.ok_or_else(|| too_large(text, "1024T"))
}

/// Parses a time such as `250ms`, `10s`, `1m`, `1h30m` or `2d`. A bare number means seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let Some(nanoseconds) = nanoseconds(text) else {
        if text.strip_prefix('-').is_some_and(|rest| nanoseconds(rest).is_some()) {
            return Err(format!("{text:?}: must not be negative"));
        }
        return Err(match plain_form(text) {
            Some(form) => format!("{text:?}: write {form}s"),
            None => format!("{text:?} is not a valid time; use something like 250ms, 10s or 1m"),
        });
    };
    match u64::try_from(nanoseconds).map(Duration::from_nanos) {
        Ok(time) if time <= MAX_DURATION => Ok(time),
        _ => Err(too_large(text, "10000d")),
    }
}

/// Parses a rate such as `500`, `500/s`, `500/m`, `30k/h` or `1/10s`, and returns it per second. The
/// rate may be zero, and at most ten million per second.
pub fn rate(text: &str) -> Result<f64, String> {
    let what = "is not a valid rate; use something like 500, 500/s, 500/m, 30k/h or 1/10s";
    let error = || refusal(text, what, |text| text.split('/').next().and_then(plain_form));
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let seconds = match unit {
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        // Refuse a time without a unit, as in `5/10`, because it does not say which unit is meant.
        time if time.ends_with(|letter: char| letter.is_ascii_digit()) => return Err(error()),
        time => match duration(time) {
            Ok(time) if !time.is_zero() => time.as_secs_f64(),
            _ => return Err(error()),
        },
    };
    let (number, factor) = split_thousands(number);
    // Check the form first, because the parser of `f64` also accepts signs, exponents and `inf`.
    Decimal::parse(number).ok_or_else(error)?;
    let number: f64 = number.replace('_', "").parse().map_err(|_| error())?;
    match number * factor as f64 / seconds {
        rate if rate > MAX_RATE_PER_S => Err(too_large(text, "10M/s")),
        rate if rate > 0.0 && rate < MIN_RATE_PER_S => Err(format!("{text:?} is too small; at least 1/h")),
        rate => Ok(rate),
    }
}

/// Parses a probability from 0 to 1, or a share from 0% to 100%, and returns a number from 0 to 1.
pub fn probability(text: &str) -> Result<f64, String> {
    if text.ends_with('%') {
        return percent(text).map(|percent| percent / 100.0);
    }
    let error = |reason: &str| format!("{text:?} is not a valid probability; {reason}");
    match signed_number(text) {
        Some(number) if (0.0..=1.0).contains(&number) => Ok(number),
        Some(number) if number < 0.0 => Err(error("it must not be negative")),
        Some(percent) if percent <= 100.0 => Err(error(&format!("write {percent}% or {}", percent / 100.0))),
        _ => Err(error("use something like 0.01 or 1%")),
    }
}

/// Parses a share from 0% to 100%, and returns it in percent.
pub fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').map(str::trim_end).and_then(signed_number) {
        Some(number) if (0.0..=100.0).contains(&number) => Ok(number),
        Some(number) if number < 0.0 => Err(format!("{text:?}: must not be negative")),
        Some(_) => Err(format!("{text:?} is more than 100%")),
        None => Err(format!("{text:?} is not a valid share; use something like 95% or 0.1%")),
    }
}

/// Parses a finite number, which may have a minus sign and an exponent. The callers refuse negative
/// numbers with an error of their own.
fn signed_number(text: &str) -> Option<f64> {
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-'));
    text.parse().ok().filter(|number: &f64| is_number && number.is_finite())
}

/// Removes the commas between thousands, as in `1,000/s`. The parsers of this module refuse all
/// commas, because in an option a comma separates the parts of a list.
pub fn without_commas(text: &str) -> Cow<'_, str> {
    let (number, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != ',').unwrap_or(text.len()));
    match plain_form(number) {
        Some(digits) => Cow::Owned(digits + rest),
        None => Cow::Borrowed(text),
    }
}

/// Parses an interval such as `10s..15s`. The first time must be earlier than the second.
pub fn interval(text: &str) -> Result<(Duration, Duration), String> {
    let (from, to) = text.split_once("..").ok_or_else(|| no_interval(text))?;
    let from = duration(from.trim())?;
    let to = duration(to.trim())?;
    if from < to { Ok((from, to)) } else { Err(format!("{text:?}: write the earlier time first, as in 10s..15s")) }
}

/// Returns the error for an interval without `..`. If the text is a time and a length, such as
/// `10s,5s`, the error suggests the same interval as `10s..15s`.
fn no_interval(text: &str) -> String {
    if let Some((at, length)) = text.split_once(',')
        && let (Ok(at), Ok(length)) = (duration(at.trim()), duration(length.trim()))
        && !length.is_zero()
    {
        return format!("{text:?}: write {at:?}..{:?}", at + length);
    }
    format!("{text:?} is not a valid interval; use something like 10s..15s")
}

/// Parses a quantity with `read`, for example [`duration`], and refuses zero and negative values.
pub fn positive<T: Default + PartialEq>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<T, String> {
    if text.strip_prefix('-').is_some_and(|rest| read(rest).is_ok()) {
        return Err(format!("{text:?}: must be positive"));
    }
    match read(text)? {
        quantity if quantity == T::default() => Err(format!("{text:?}: must be more than zero")),
        quantity => Ok(quantity),
    }
}

/// Splits a number from its suffix k, M or G, which are powers of 1000.
fn split_thousands(text: &str) -> (&str, u128) {
    let factor = match text.chars().next_back() {
        Some('k' | 'K') => 1_000,
        Some('M') => 1_000_000,
        Some('G') => 1_000_000_000,
        _ => return (text, 1),
    };
    (&text[..text.len() - 1], factor)
}

fn nanoseconds(text: &str) -> Option<u128> {
    if let Some(seconds) = Decimal::parse(text) {
        return Some(seconds.about(1_000_000_000));
    }
    let mut sum = 0_u128;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c| !is_of_number(c))?);
        let after = after.trim_start();
        let (unit, after) = after.split_at(after.find(|c: char| is_of_number(c) || c == ' ').unwrap_or(after.len()));
        sum = sum.saturating_add(Decimal::parse(number)?.about(nanoseconds_of(unit)?));
        rest = after.trim_start();
    }
    (!text.is_empty()).then_some(sum)
}

fn is_of_number(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, '.' | '_')
}

fn nanoseconds_of(unit: &str) -> Option<u128> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" | "sec" | "second" | "seconds" => 1_000_000_000,
        "m" | "min" | "minute" | "minutes" => 60_000_000_000,
        "h" | "hour" | "hours" => 3_600_000_000_000,
        "d" | "day" | "days" => 86_400_000_000_000,
        _ => return None,
    })
}

/// Number of decimal places that a [`Decimal`] keeps. Further digits are dropped.
const DECIMAL_PLACES: usize = 18;
const ONE: u128 = 1_000_000_000_000_000_000;
/// Maximum of `Decimal::whole`, so that the product with any unit fits into 128 bits. A higher number is stored as this
/// maximum, but is still refused, because no quantity may be that large.
const MAX_WHOLE: u128 = 1 << 70;

#[derive(Clone, Copy, Debug)]
struct Decimal {
    whole: u128,
    /// Fractional part, in units of 10^-18.
    fraction: u128,
}

impl Decimal {
    fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let is_without_whole = whole.is_empty() && text.starts_with('.');
        if !is_digits(fraction) || !(is_without_whole || is_digits(whole)) {
            return None;
        }
        let digits =
            |text: &'_ str| text.bytes().filter(u8::is_ascii_digit).map(|byte| u128::from(byte - b'0')).collect();
        let whole: Vec<u128> = digits(whole);
        let mut fraction: Vec<u128> = digits(fraction);
        fraction.resize(DECIMAL_PLACES, 0);
        let number = |digits: Vec<u128>| digits.into_iter().fold(0, |sum, digit| (sum * 10 + digit).min(MAX_WHOLE));
        Some(Self { whole: number(whole), fraction: number(fraction) })
    }

    /// Returns the number times `factor` if the product is a whole number. For example, 0.5k is 512
    /// bytes, but 0.3k is not a whole number of bytes.
    fn exactly(self, factor: u128) -> Option<u128> {
        (self.fraction * factor).is_multiple_of(ONE).then(|| self.about(factor))
    }

    /// Returns the number times `factor`, rounded down.
    fn about(self, factor: u128) -> u128 {
        (self.whole * factor).saturating_add(self.fraction * factor / ONE)
    }
}

fn is_digits(text: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_digit();
    text.starts_with(is_digit) && text.ends_with(is_digit) && text.chars().all(|c| is_digit(c) || c == '_')
}

fn too_large(text: &str, max: impl std::fmt::Display) -> String {
    format!("{text:?} is too large; at most {max}")
}

/// Returns the error for an invalid quantity. If `form` returns a valid way to write the quantity, the error suggests
/// it. Otherwise the error ends with `what`, a description of the fault. Negative numbers have an error of their own.
fn refusal(text: &str, what: &str, form: impl Fn(&str) -> Option<String>) -> String {
    let rest = text.strip_prefix('-');
    if rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return format!("{text:?}: must not be negative");
    }
    match form(text) {
        Some(form) => format!("{text:?}: write {form}"),
        None => format!("{text:?} {what}"),
    }
}

/// Returns how to write a count that has an exponent or commas, for example `1000000 or 1M` for
/// `1e6`.
fn count_form(text: &str) -> Option<String> {
    let digits = plain_form(text)?;
    let number = count(&digits).ok()?;
    let short = [(1_000_000_000, 'G'), (1_000_000, 'M'), (1_000, 'k')];
    let short = short.into_iter().find(|(unit, _)| number > 0 && number % unit == 0);
    Some(match short {
        Some((unit, letter)) => format!("{digits} or {}{letter}", number / unit),
        None => digits,
    })
}

/// If a number with an exponent is in this range, the error suggests writing it without an exponent, for example `1000`
/// for `1e3`. Numbers outside of the range would have too many digits.
const SHOWN: RangeInclusive<f64> = 1e-9..=1e15;

/// Returns how to write a number without its exponent or its commas, for example `1000000` for `1e6` and `1000` for
/// `1,000`. Returns `None` for any other text.
fn plain_form(text: &str) -> Option<String> {
    if text.contains(',') {
        let mut groups = text.split(',');
        let is_first =
            groups.next().is_some_and(|group| is_digits(group) && group.len() <= 3 && !group.starts_with('0'));
        let is_number = is_first && groups.all(|group| is_digits(group) && group.len() == 3);
        return is_number.then(|| text.replace(',', ""));
    }
    let is_number = text.starts_with(|c: char| c.is_ascii_digit()) && text.contains(['e', 'E']);
    let number: f64 = text.parse().ok().filter(|number| is_number && SHOWN.contains(number))?;
    Some(number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_read_as_people_write_them() {
        for (text, number) in
            [("0", 0), ("500", 500), ("10k", 10_000), ("10K", 10_000), ("1M", 1_000_000), ("10_000", 10_000)]
        {
            assert_eq!(count(text), Ok(number), "{text}");
        }
        assert_eq!((count("1.5M"), count("2G")), (Ok(1_500_000), Ok(2_000_000_000)));
        for (text, number) in [("64k", 65_536), ("10M", 10 << 20), ("1.5k", 1_536), ("1_000", 1_000), ("1T", 1 << 40)] {
            assert_eq!(bytes(text), Ok(number), "{text}");
        }
        for (text, milliseconds) in [
            ("10s", 10_000),
            ("10000ms", 10_000),
            ("1.5", 1_500),
            (".5s", 500),
            ("1h30m", 5_400_000),
            ("1h 30 min", 5_400_000),
            ("2d", 172_800_000),
            ("1500µs", 1),
        ] {
            assert_eq!(duration(text).map(|time| time.as_millis()), Ok(milliseconds), "{text}");
        }
        for (text, per_s) in [
            ("500", 500.0),
            ("500/s", 500.0),
            ("600/m", 10.0),
            ("36k/h", 10.0),
            ("0", 0.0),
            ("1.5k", 1_500.0),
            ("1/10s", 0.1),
            ("30/1m30s", 1.0 / 3.0),
        ] {
            assert_eq!(rate(text), Ok(per_s), "{text}");
        }
        for (text, share) in [("0.001", 0.001), ("1%", 0.01), ("0.5 %", 0.005), ("100%", 1.0), ("1e-3", 0.001)] {
            assert_eq!(probability(text), Ok(share), "{text}");
        }
        let s = Duration::from_secs;
        assert_eq!((percent("95%"), percent("0.1 %")), (Ok(95.0), Ok(0.1)));
        for (text, plain) in [
            ("1,000", "1000"),
            ("12,345,678.5ms", "12345678.5ms"),
            ("1,000/s", "1000/s"),
            ("0,1", "0,1"),
            ("0,001", "0,001"),
            ("1,00", "1,00"),
            ("1000", "1000"),
            (",", ","),
        ] {
            assert_eq!(without_commas(text), plain);
        }
        assert_eq!(interval("10s..15s"), Ok((s(10), s(15))));
        assert_eq!(interval("0 .. 1m"), Ok((s(0), s(60))));
    }

    #[test]
    fn what_is_no_count_is_refused_with_what_to_write() {
        for (text, piece) in [
            ("", "\"\" is not a valid count; use something like 500, 10k or 1M (k is 1000)"),
            ("k", "\"k\" is not a valid count"),
            ("1m", "\"1m\" is not a valid count"),
            ("+5", "\"+5\" is not a valid count"),
            ("_5", "\"_5\" is not a valid count"),
            ("-1", "\"-1\": must not be negative"),
            ("-1k", "\"-1k\": must not be negative"),
            ("1e6", "\"1e6\": write 1000000 or 1M"),
            ("1,000", "\"1,000\": write 1000 or 1k"),
            ("12,345", "\"12,345\": write 12345"),
            ("1,5", "\"1,5\" is not a valid count"),
            ("0,001", "\"0,001\" is not a valid count"),
            ("1.5", "\"1.5\" is not a whole number"),
            ("1.5001k", "\"1.5001k\" is not a whole number"),
            ("99999999999999999999", "\"99999999999999999999\" is too large; at most 1000000000000000"),
            ("10000000G", "\"10000000G\" is too large; at most 1000000000000000"),
        ] {
            let error = count(text).expect_err(text);
            assert!(error.starts_with(piece), "{text}: {error}");
        }
        assert_eq!(count_up_to("1k", 1_000), Ok(1_000));
        for (text, piece) in [("0", "must be more than zero"), ("-5", "must be positive"), ("1001", "at most 1000")] {
            let error = count_up_to(text, 1_000).expect_err(text);
            assert!(error.ends_with(piece), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_no_size_or_time_is_refused_with_what_to_write() {
        for (text, expected) in [
            ("", "\"\" is not a valid size"),
            ("k", "\"k\" is not a valid size"),
            ("1.0001k", "\"1.0001k\" is not a valid size"),
            ("5x", "\"5x\" is not a valid size"),
            ("-1", "\"-1\": must not be negative"),
            ("1e6", "\"1e6\": write 1000000"),
            ("1,024", "\"1,024\": write 1024"),
            ("99999999999999999999", "\"99999999999999999999\" is too large; at most 1024T"),
            ("20000000000G", "\"20000000000G\" is too large; at most 1024T"),
        ] {
            let error = bytes(text).expect_err(text);
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        for (text, expected) in [
            ("", "\"\" is not a valid time; use something like 250ms, 10s or 1m"),
            ("x", "\"x\" is not a valid time"),
            ("5x", "\"5x\" is not a valid time"),
            ("1 2s", "\"1 2s\" is not a valid time"),
            ("nan", "\"nan\" is not a valid time"),
            ("--1s", "\"--1s\" is not a valid time"),
            ("-1s", "\"-1s\": must not be negative"),
            ("-1", "\"-1\": must not be negative"),
            ("1e3", "\"1e3\": write 1000s"),
            ("1e300", "\"1e300\" is not a valid time"),
            ("99999999999999h", "\"99999999999999h\" is too large; at most 10000d"),
            ("99999999999999999999999999999999999999999999d", "\"999"),
        ] {
            let error = duration(text).expect_err(text);
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_no_rate_share_or_interval_is_refused_with_what_to_write() {
        for (text, expected) in [
            ("", "\"\" is not a valid rate; use something like 500, 500/s, 500/m, 30k/h or 1/10s"),
            ("fast", "\"fast\" is not a valid rate"),
            ("5/d", "\"5/d\" is not a valid rate"),
            ("5/0s", "\"5/0s\" is not a valid rate"),
            ("5/10", "\"5/10\" is not a valid rate"),
            ("inf", "\"inf\" is not a valid rate"),
            ("-1", "\"-1\": must not be negative"),
            ("1e3", "\"1e3\": write 1000"),
            ("1,000/s", "\"1,000/s\": write 1000"),
            ("20M", "\"20M\" is too large; at most 10M/s"),
            ("0.0001", "\"0.0001\" is too small; at least 1/h"),
        ] {
            let error = rate(text).expect_err(text);
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        for (text, expected) in [
            ("", "use something like 0.01 or 1%"),
            ("nan", "use something like 0.01 or 1%"),
            ("5", "write 5% or 0.05"),
            ("-0.1", "it must not be negative"),
        ] {
            assert_eq!(probability(text), Err(format!("{text:?} is not a valid probability; {expected}")));
        }
        for (text, expected) in [
            ("inf%", "\"inf%\" is not a valid share; use something like 95% or 0.1%"),
            ("0,1%", "\"0,1%\" is not a valid share"),
            ("101%", "\"101%\" is more than 100%"),
            ("-1%", "\"-1%\": must not be negative"),
        ] {
            let error = probability(text).expect_err(text);
            assert!(error.starts_with(expected) && percent(text) == Err(error.clone()), "{text}: {error}");
        }
        for (text, expected) in [
            ("", "\"\" is not a valid interval; use something like 10s..15s"),
            ("10s", "\"10s\" is not a valid interval"),
            ("2s,1s", "\"2s,1s\": write 2s..3s"),
            ("0, 1500ms", "\"0, 1500ms\": write 0ns..1.5s"),
            ("2s,0s", "\"2s,0s\" is not a valid interval"),
            ("15s..10s", "\"15s..10s\": write the earlier time first"),
            ("10s..10s", "\"10s..10s\": write the earlier time first"),
            ("..", "\"\" is not a valid time"),
            ("1s..x", "\"x\" is not a valid time"),
        ] {
            let error = interval(text).expect_err(text);
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_displayed_is_read_back(
            number in 0..=MAX_COUNT,
            nanoseconds in 0..=MAX_DURATION.as_nanos() as u64,
            per_s in MIN_RATE_PER_S..=MAX_RATE_PER_S,
            share in 0.0..=1.0_f64,
        ) {
            let time = Duration::from_nanos(nanoseconds);
            prop_assert_eq!(count(&number.to_string()), Ok(number));
            prop_assert_eq!(bytes(&number.to_string()), Ok(number));
            prop_assert_eq!(duration(&format!("{time:?}")), Ok(time));
            prop_assert_eq!(rate(&per_s.to_string()), Ok(per_s));
            prop_assert_eq!(rate(&format!("{per_s}/s")), Ok(per_s));
            prop_assert_eq!(probability(&share.to_string()), Ok(share));
        }
    }
}
