//! Values as people type them: `10s`, `64k`, `0.001`, `2s,500ms`.
use crate::sink::Stall;
use std::time::Duration;

/// A time: `250ms`, `10s`, `1m`, `1h30m`; a bare number is seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; say it like 250ms, 10s or 1m");
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| wrong());
    }
    let span: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(span).map_err(|_| wrong())
}

/// A time that is not nought.
pub(super) fn some_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("{text:?}: it must be more than nought")),
        duration => Ok(duration),
    }
}

/// Octets: `400`, `64k`, `10M`, `1G`; k is 1024.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size; say it like 400, 64k or 10M (k is 1024)");
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
pub(super) fn probability(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=1.0).contains(&number) => Ok(number),
        _ => Err(format!("{text:?} is no probability; say it like 0.001")),
    }
}

/// Messages a second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    match text.trim_end_matches("/s").parse::<f64>() {
        Ok(number) if (0.001..=1e7).contains(&number) => Ok(number),
        _ => Err(format!("{text:?} is no rate; say it like 500, messages a second")),
    }
}

/// A stall: `AT,FOR`.
pub(super) fn stall(text: &str) -> Result<Stall, String> {
    let (at, length) = text.split_once(',').ok_or_else(|| format!("{text:?} is no stall; say it like 2s,1s"))?;
    Ok(Stall { at: duration(at.trim())?, length: some_duration(length.trim())? })
}

/// A number of at least one.
pub(super) fn some(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(0) | Err(_) => Err(format!("{text:?} is no number of one or more")),
        Ok(number) => Ok(number),
    }
}

/// Parallel sessions.
pub(super) fn sessions(text: &str) -> Result<u32, String> {
    match some(text)? {
        number @ 1..=1_000_000 => Ok(number as u32),
        _ => Err(format!("{text:?}: a million sessions is the most")),
    }
}

/// Threads.
pub(super) fn workers(text: &str) -> Result<usize, String> {
    match some(text)? {
        number @ 1..=1024 => Ok(number as usize),
        _ => Err(format!("{text:?}: 1024 workers are the most")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_people_type_them() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("10000ms"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(bytes("64k"), Ok(65_536));
        assert_eq!(bytes("10M"), Ok(10 << 20));
        assert_eq!(probability("0.001"), Ok(0.001));
        assert_eq!(rate("500/s"), Ok(500.0));
        let stall_read = Stall { at: Duration::from_secs(2), length: Duration::from_millis(500) };
        assert_eq!(stall("2s,500ms"), Ok(stall_read));
    }

    #[test]
    fn nonsense_is_told_apart_from_values() {
        for text in ["", "x", "-1s", "-1", "1e300", "nan"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for text in ["", "k", "1.5k", "99999999999999999999", "20000000000G", "5x"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        for text in ["2", "-0.1", "nan", ""] {
            assert!(probability(text).is_err(), "{text}");
        }
        for text in ["0", "-1", "inf", "nan", "x"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert!(stall("2s").is_err() && stall("2s,0s").is_err() && some("0").is_err() && some("-1").is_err());
    }
}
