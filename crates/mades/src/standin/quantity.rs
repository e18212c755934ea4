//! Quantities as people write them in a plan: `250ms`, `5s..10s`, `64k`.
use std::time::Duration;

/// The longest time that a plan may name.
const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// A time: `250ms`, `10s`, `1m`, `1h30m`; a bare number is seconds.
///
/// # Errors
/// What is wrong with it, and what would be right.
pub fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a valid time; use something like 250ms, 10s or 1m");
    let time = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?,
        Err(_) => {
            let span: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
            Duration::try_from(span).map_err(|_| wrong())?
        }
    };
    if time > LONGEST { Err(format!("{text:?} is more than a week")) } else { Ok(time) }
}

/// Octets: `400`, `64k`, `10M`, `1G`; k is 1024.
///
/// # Errors
/// What is wrong with it, and what would be right.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: Option<u64> = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kb" | "kib" => Some(1 << 10),
        "m" | "mb" | "mib" => Some(1 << 20),
        "g" | "gb" | "gib" => Some(1 << 30),
        _ => None,
    };
    let number = digits.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    number.ok_or_else(|| format!("{text:?} is not a valid size; use something like 400, 64k or 10M (k is 1024)"))
}

/// From one time to another: `10s..15s`.
pub(super) fn span(text: &str) -> Result<(Duration, Duration), String> {
    let wrong = || format!("{text:?} is not a valid span of time; use something like 10s..15s");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let (from, to) = (time(from.trim())?, time(to.trim())?);
    if from < to { Ok((from, to)) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_people_write_them() {
        assert_eq!(time("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(time("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(bytes("64k"), Ok(65_536));
        assert_eq!(span("10s..15s"), Ok((Duration::from_secs(10), Duration::from_secs(15))));
    }

    #[test]
    fn nonsense_is_told_apart_from_quantities() {
        for text in ["", "x", "-1", "-1s", "1e300", "nan", "8d", "300h"] {
            assert!(time(text).is_err(), "{text}");
        }
        for text in ["", "k", "1.5k", "5x", "20000000000G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        for text in ["", "10s", "15s..10s", "10s..10s", "..", "a..b"] {
            assert!(span(text).is_err(), "{text}");
        }
    }
}
