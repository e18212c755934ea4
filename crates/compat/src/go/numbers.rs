//! Parses numbers and truth values as Go's flag package does: `0x10`, `0b1`, `0o7`, `017`, `1_000`, `true` and `T`.

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadNumber {
    #[error("parse error")]
    Syntax,
    #[error("value out of range")]
    Range,
}

/// Parses a 64-bit integer in the base that its prefix selects, for example base 16 for `0x`.
pub(crate) fn integer(text: &str) -> Result<i64, BadNumber> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let (base, plain) = plain_digits(digits)?;
    i64::from_str_radix(&format!("{sign}{plain}"), base).map_err(|_| BadNumber::Range)
}

pub(crate) fn unsigned(text: &str) -> Result<u64, BadNumber> {
    let (base, plain) = plain_digits(text)?;
    u64::from_str_radix(&plain, base).map_err(|_| BadNumber::Range)
}

/// Splits a number into its base, which the prefix selects, and its digits without underscores.
fn plain_digits(digits: &str) -> Result<(u32, String), BadNumber> {
    let lower = digits.to_ascii_lowercase();
    let (base, rest) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        _ if lower.len() > 1 && lower.starts_with('0') => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    let has_prefix = rest.len() < lower.len();
    if !are_grouped(rest, has_prefix) {
        return Err(BadNumber::Syntax);
    }
    let plain = rest.replace('_', "");
    if plain.is_empty() || !plain.chars().all(|digit| digit.is_digit(base)) {
        return Err(BadNumber::Syntax);
    }
    Ok((base, plain))
}

/// Returns true if each underscore of a Go number is between digits (`1_000`), or follows the prefix (`0x_ff`).
fn are_grouped(digits: &str, has_prefix: bool) -> bool {
    !digits.contains("__") && !digits.ends_with('_') && (has_prefix || !digits.starts_with('_'))
}

/// Parses a decimal number, `inf` or `nan`. Hexadecimal floats, which Go accepts, are not supported (see
/// `docs/drop-in.md`).
pub(crate) fn float(text: &str) -> Result<f64, BadNumber> {
    let is_grouped = text.split(|c: char| !c.is_ascii_digit() && c != '_').all(|run| are_grouped(run, false));
    if !is_grouped {
        return Err(BadNumber::Syntax);
    }
    let plain = text.replace('_', "");
    let value: f64 = plain.parse().map_err(|_| BadNumber::Syntax)?;
    let is_named = plain.contains(['n', 'N']);
    if value.is_infinite() && !is_named { Err(BadNumber::Range) } else { Ok(value) }
}

pub(crate) fn boolean(text: &str) -> Result<bool, BadNumber> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(BadNumber::Syntax),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn integers_in_gos_bases() {
        use BadNumber::{Range, Syntax};
        let rows = [
            ("0", Ok(0)),
            ("+2", Ok(2)),
            ("-0x1F", Ok(-31)),
            ("0b101", Ok(5)),
            ("0o17", Ok(15)),
            ("017", Ok(15)),
            ("0_2", Ok(2)),
            ("1_000", Ok(1000)),
            ("0x_f", Ok(15)),
            ("9223372036854775807", Ok(i64::MAX)),
            ("-9223372036854775808", Ok(i64::MIN)),
            ("9223372036854775808", Err(Range)),
            ("08", Err(Syntax)),
            ("1_", Err(Syntax)),
            ("_1", Err(Syntax)),
            ("1__0", Err(Syntax)),
            ("0x", Err(Syntax)),
            ("--1", Err(Syntax)),
            ("+-1", Err(Syntax)),
            ("1e3", Err(Syntax)),
            (" 1", Err(Syntax)),
            ("", Err(Syntax)),
        ];
        for (text, expected) in rows {
            assert_eq!(integer(text), expected, "{text}");
        }
    }

    #[test]
    fn unsigned_integers_have_no_sign() {
        use BadNumber::{Range, Syntax};
        let most = [("18446744073709551615", Ok(u64::MAX)), ("0xffff_ffff_ffff_ffff", Ok(u64::MAX)), ("017", Ok(15))];
        let bad = [("18446744073709551616", Err(Range)), ("+1", Err(Syntax)), ("-1", Err(Syntax)), ("", Err(Syntax))];
        for (text, expected) in most.into_iter().chain(bad) {
            assert_eq!(unsigned(text), expected, "{text}");
        }
    }

    #[test]
    fn floats_and_booleans() {
        for (text, value) in [("1", 1.0), ("1_0.5", 10.5), (".5", 0.5), ("-1e3", -1000.0), ("+inf", f64::INFINITY)] {
            assert_eq!(float(text), Ok(value), "{text}");
        }
        assert!(float("NaN").unwrap().is_nan());
        assert_eq!(float("1e999"), Err(BadNumber::Range));
        for text in ["", "x", "0x1", "1_", "_1", "1 "] {
            assert_eq!(float(text), Err(BadNumber::Syntax), "{text}");
        }
        assert_eq!((boolean("T"), boolean("False"), boolean("yes")), (Ok(true), Ok(false), Err(BadNumber::Syntax)));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(number: i64) {
            prop_assert_eq!(integer(&number.to_string()), Ok(number));
            prop_assert_eq!(integer(&format!("{}0x{:x}", if number < 0 { "-" } else { "" }, number.unsigned_abs())), Ok(number));
        }
    }
}
