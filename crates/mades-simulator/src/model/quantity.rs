//! Reads the quantities in a plan: `250ms`, `5s..10s`, `64k`, `1%`. A time is at most a week, and a number may be a
//! TOML number or a text with a unit.
pub use mailrun_text::quantities::bytes;
use mailrun_text::quantities::{self, count_up_to, duration, interval};
use serde::de::{Deserialize, Deserializer, Error};
use std::time::Duration;

const MAX_TIME: Duration = Duration::from_secs(7 * 86_400);

/// A time with its unit, such as `250ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PlanTime(pub Duration);

impl TryFrom<String> for PlanTime {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        time(&text).map(Self)
    }
}

impl From<PlanTime> for String {
    fn from(time: PlanTime) -> Self {
        format!("{:?}", time.0)
    }
}

/// Reads a time, for example `250ms`, `10s`, `1m` or `1h30m`. A number without a unit is in seconds.
///
/// # Errors
/// Fails if the text is not a time, or if the time is longer than a week. The error gives a correct example.
pub fn time(text: &str) -> Result<Duration, String> {
    at_most_a_week(text, duration(text)?)
}

/// Reads a span of time, for example `10s..15s`.
pub(super) fn span(text: &str) -> Result<(Duration, Duration), String> {
    let (from, to) = interval(text)?;
    Ok((from, at_most_a_week(text, to)?))
}

fn at_most_a_week(text: &str, time: Duration) -> Result<Duration, String> {
    if time > MAX_TIME { Err(format!("{text:?} is too large; at most a week")) } else { Ok(time) }
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum NumberOrText<T> {
    Number(T),
    Text(String),
}

fn read<'de, D, T>(plan: D, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    match NumberOrText::deserialize(plan)? {
        NumberOrText::Number(number) => Ok(number),
        NumberOrText::Text(text) => parse(&text).map_err(D::Error::custom),
    }
}

/// Reads a probability, for example `0.01` or `'1%'`.
pub(super) fn probability<'de, D: Deserializer<'de>>(plan: D) -> Result<f64, D::Error> {
    read(plan, quantities::probability)
}

/// Reads a number of bytes, for example `65536` or `'64k'`.
pub(super) fn size<'de, D: Deserializer<'de>>(plan: D) -> Result<u64, D::Error> {
    read(plan, bytes)
}

/// Reads a count, for example `10000` or `'10k'`.
pub(super) fn count<'de, D: Deserializer<'de>>(plan: D) -> Result<u32, D::Error> {
    read(plan, small_count)
}

/// Reads a count for an optional setting. If the key is missing, serde does not call this function.
pub(super) fn some_count<'de, D: Deserializer<'de>>(plan: D) -> Result<Option<u32>, D::Error> {
    read(plan, small_count).map(Some)
}

/// Reads a rate in messages per second, for example `10.8` or `'500/m'`.
pub(super) fn rate<'de, D: Deserializer<'de>>(plan: D) -> Result<Option<f64>, D::Error> {
    read(plan, quantities::rate).map(Some)
}

/// Reads a rate in bytes per second, for example `1e6` or `'1M'`.
pub(super) fn byte_rate<'de, D: Deserializer<'de>>(plan: D) -> Result<Option<f64>, D::Error> {
    read(plan, |text| bytes(text).map(|bytes| bytes as f64)).map(Some)
}

fn small_count(text: &str) -> Result<u32, String> {
    count_up_to(text, u64::from(u32::MAX)).map(|number| number as u32)
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
        for text in ["", "k", "1.0001k", "5x", "20000000000G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        for text in ["", "10s", "15s..10s", "10s..10s", "..", "a..b", "1s..8d"] {
            assert!(span(text).is_err(), "{text}");
        }
    }
}
