//! Values as people type them: `10s`, `64k`, `0.001`, `2s,500ms`.
pub(super) use crate::quantities::{bytes, duration, probability};
use crate::source::{Pattern, RateStage, Spread};
use std::time::Duration;

/// A time that is not nought.
pub(super) fn some_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("{text:?}: must be more than zero")),
        duration => Ok(duration),
    }
}

/// The largest message that can be asked for: it is held in memory.
const LARGEST: u64 = 2 << 30;

/// Octets of a message: a number, a range, a list by weight or a log-normal distribution.
pub(super) fn sizes(text: &str) -> Result<Spread, String> {
    let spread = Spread::parse(text, bytes)?;
    if spread.most() > LARGEST { Err(format!("{text:?}: a message can have at most 2G")) } else { Ok(spread) }
}

/// Recipients of a message, likewise.
pub(super) fn recipients(text: &str) -> Result<Spread, String> {
    counts(text, 1000)
}

/// Messages of a connection, likewise; 0, or nothing, is as many as there are.
pub(super) fn reuse(text: &str) -> Result<Reuse, String> {
    if text == "0" { Ok(Reuse(None)) } else { counts(text, u64::MAX).map(|most| Reuse(Some(most))) }
}

/// How many messages a connection carries.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reuse(pub(super) Option<Spread>);

fn counts(text: &str, limit: u64) -> Result<Spread, String> {
    let spread =
        Spread::parse(text, |word| word.parse().map_err(|_| format!("{word:?} is not a whole number of at least 1")))?;
    match (spread.least(), spread.most()) {
        (0, _) => Err(format!("{text:?} begins at 0; the minimum is 1")),
        (_, most) if most > limit => Err(format!("{text:?} is more than {limit}")),
        _ => Ok(spread),
    }
}

/// Times, likewise, in nanoseconds.
pub(super) fn times(text: &str) -> Result<Spread, String> {
    let day = Duration::from_secs(86_400);
    let nanoseconds = |word: &str| match duration(word)? {
        time if time > day => Err(format!("{word:?} is more than a day")),
        time => Ok(time.as_nanos() as u64),
    };
    Spread::parse(text, nanoseconds)
}

/// A stage of the run: `10s:100/s`, `60s:100/s..1000/s`.
pub(super) fn stage(text: &str) -> Result<RateStage, String> {
    RateStage::parse(text, duration)
}

/// An address, or a pattern of addresses.
pub(super) fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::parse(text)
}

/// Messages a second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    match text.trim_end_matches("/s").parse::<f64>() {
        Ok(number) if (0.001..=1e7).contains(&number) => Ok(number),
        _ => Err(format!("{text:?} is not a rate; use something like 500 (messages per second)")),
    }
}

/// A stall: `AT,FOR`, as a rule says it.
pub(super) fn stall(text: &str) -> Result<String, String> {
    let (at, length) =
        text.split_once(',').ok_or_else(|| format!("{text:?} is not a valid stall; use something like 2s,1s"))?;
    let (at, length) = (duration(at.trim())?, some_duration(length.trim())?);
    Ok(format!("{at:?},{length:?}"))
}

/// A name to greet with: it stands in a line of the dialogue, and is to be no second one.
pub(super) fn hello(text: &str) -> Result<String, String> {
    match text {
        "" => Err("the name must not be empty".to_owned()),
        _ if text.chars().any(char::is_control) => Err(format!("{text:?} contains a control character")),
        _ => Ok(text.to_owned()),
    }
}

/// Octets that are not none.
pub(super) fn some_bytes(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err(format!("{text:?}: must be more than zero")),
        bytes => Ok(bytes),
    }
}

/// A number of at least one.
pub(super) fn some(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(0) | Err(_) => Err(format!("{text:?} is not a whole number of at least 1")),
        Ok(number) => Ok(number),
    }
}

/// Parallel sessions.
pub(super) fn sessions(text: &str) -> Result<u32, String> {
    match some(text)? {
        number @ 1..=1_000_000 => Ok(number as u32),
        _ => Err(format!("{text:?} is more than a million sessions")),
    }
}

/// Threads.
pub(super) fn workers(text: &str) -> Result<usize, String> {
    match some(text)? {
        number @ 1..=1024 => Ok(number as usize),
        _ => Err(format!("{text:?} is more than 1024 workers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_people_type_them() {
        assert_eq!(some_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(rate("500/s"), Ok(500.0));
        assert_eq!(stall("2, 500ms").as_deref(), Ok("2s,500ms"));
    }

    #[test]
    fn distributions_are_read_in_their_units() {
        assert_eq!(sizes("400..64k").map(|sizes| sizes.most()), Ok(65_536));
        assert_eq!(sizes("64k").map(|sizes| sizes.only()), Ok(Some(65_536)));
        assert_eq!(times("100ms..2s").map(|times| (times.least(), times.most())), Ok((100_000_000, 2_000_000_000)));
        assert_eq!(recipients("1..5").map(|counts| counts.mean()), Ok(3.0));
        assert_eq!(reuse("0"), Ok(Reuse(None)));
        assert_eq!(reuse("1..20").map(|reuse| reuse.0.map(|reuse| reuse.most())), Ok(Some(20)));
        for (why, named) in [
            (sizes("3G").map(drop), "2G"),
            (sizes("5x").map(drop), "5x"),
            (sizes("400..").map(drop), "not a valid size"),
            (recipients("0").map(drop), "minimum is 1"),
            (recipients("0..5").map(drop), "minimum is 1"),
            (recipients("1001").map(drop), "1000"),
            (recipients("1..many").map(drop), "many"),
            (reuse("x").map(drop), "\"x\""),
            (times("2d").map(drop), "2d"),
            (times("1h..48h").map(drop), "a day"),
            (stage("10s").map(drop), "not a valid stage"),
            (pattern("u{1..").map(drop), "has an unpaired"),
        ] {
            let why = why.expect_err(named);
            assert!(why.contains(named), "{why}");
        }
    }

    #[test]
    fn nonsense_is_told_apart_from_values() {
        for text in ["0", "-1", "inf", "nan", "x"] {
            assert!(rate(text).is_err(), "{text}");
        }
        for text in ["", "a\r\nNOOP", "a\nb", "a\0b", "a\u{7f}"] {
            assert!(hello(text).is_err(), "{text:?}");
        }
        assert_eq!((hello("mx.example").as_deref(), some_bytes("0").is_err()), (Ok("mx.example"), true));
        assert!(stall("2s").is_err() && stall("2s,0s").is_err() && some("0").is_err() && some("-1").is_err());
    }
}
