//! Quantities as people write them, in options and in rules: `250ms`, `64k`, `0.001`.
use std::time::Duration;

/// A time: `250ms`, `10s`, `1m`, `1h30m`; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a valid time; use something like 250ms, 10s or 1m");
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| wrong());
    }
    let span: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(span).map_err(|_| wrong())
}

/// Octets: `400`, `64k`, `10M`, `1G`; k is 1024.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a valid size; use something like 400, 64k or 10M (k is 1024)");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => return Err(wrong()),
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(wrong)
}

/// A probability, from 0 to 1.
pub(crate) fn probability(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=1.0).contains(&number) => Ok(number),
        _ => Err(format!("{text:?} is not a valid probability; use something like 0.001")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_people_write_them() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("10000ms"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(bytes("64k"), Ok(65_536));
        assert_eq!(bytes("10M"), Ok(10 << 20));
        assert_eq!(probability("0.001"), Ok(0.001));
    }

    #[test]
    fn nonsense_is_told_apart_from_quantities() {
        for text in ["", "x", "-1s", "-1", "1e300", "nan"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for text in ["", "k", "1.5k", "99999999999999999999", "20000000000G", "5x"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        for text in ["2", "-0.1", "nan", ""] {
            assert!(probability(text).is_err(), "{text}");
        }
    }
}
