//! Parses `--shape`, which says when each document of an electricity balancing market is due.
//!
//! ```text
//! quarter-hour                             100 bid documents of 4,000 time series at the start of each quarter-hour
//! quarter-hour:20x500                      20 of 500
//! heartbeat 12m,7m30s,3m before quarter    a document without time series, before the end of each quarter-hour
//! heartbeat every 5m                       the same at each five minutes of the day
//! every 10s                                a document of one time series
//! every 10s; type ACE; received.within(30s) >= 99%      with a message type and conditions of its own
//! ```
use jiff::tz::TimeZone;
use mailrun_measurement::threshold::{RunProtocol, Threshold};
use mailrun_text::quantities::duration;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Maximum number of messages in a burst of bids, and maximum number of time series in each message.
const MAX_BIDS: u32 = 1_000;
const MAX_TIME_SERIES: u32 = 20_000;
/// Default number of messages in a burst, and default number of time series in each message. They are the maximum that
/// the Nordic market accepts for a quarter-hour (mFRR EAM).
const USUAL_BIDS: u32 = 100;
const USUAL_TIME_SERIES: u32 = 4_000;
pub const MAX_ACCELERATION: u32 = 1_000;
pub(super) const QUARTER_HOUR: Duration = Duration::from_secs(15 * 60);
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarketDocument {
    /// A bid document with this number of time series.
    Bids(u32),
    /// An activation document without time series.
    Heartbeat,
    Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShapeTimes {
    /// This number of messages is due at the start of each quarter-hour.
    Burst(u32),
    /// A message is due at each of these times before the end of each quarter-hour, for example 12 and 3 minutes before
    /// the end.
    BeforeQuarter(Vec<Duration>),
    /// A message is due at each multiple of this time since midnight. The time must divide a day into equal parts.
    Every(Duration),
}

#[derive(Clone, Debug, PartialEq)]
pub struct MarketShape {
    typed: String,
    /// Text of `--shape` before the first semicolon, for example `quarter-hour:20x500`.
    pub(super) name: String,
    pub(super) document: MarketDocument,
    pub(super) times: ShapeTimes,
    /// Message type, if it differs from the message type of the run.
    message_type: Option<String>,
    thresholds: Vec<Threshold>,
}

impl MarketShape {
    pub fn thresholds(&self) -> &[Threshold] {
        &self.thresholds
    }

    pub(super) fn message_type<'a>(&'a self, of_run: &'a str) -> &'a str {
        self.message_type.as_deref().unwrap_or(of_run)
    }

    pub(super) fn per_day(&self) -> u64 {
        let quarters = DAY.as_secs() / QUARTER_HOUR.as_secs();
        match &self.times {
            ShapeTimes::Burst(messages) => quarters * u64::from(*messages),
            ShapeTimes::BeforeQuarter(times) => quarters * times.len() as u64,
            ShapeTimes::Every(time) => DAY.as_secs() / time.as_secs(),
        }
    }
}

impl FromStr for MarketShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        let (document, times) = schedule(&name)?;
        let mut shape =
            Self { typed: text.trim().to_owned(), name, document, times, message_type: None, thresholds: Vec::new() };
        for part in parts {
            match part.strip_prefix("type ") {
                Some(name) if shape.message_type.is_none() => shape.message_type = Some(name.trim().to_owned()),
                Some(_) => return Err(format!("{text:?} has two message types; use two shapes")),
                None => shape.thresholds.push(threshold(part)?),
            }
        }
        Ok(shape)
    }
}

/// Reads the text of `--shape` before the first semicolon. The caller must have replaced all white space between words
/// with single spaces.
fn schedule(text: &str) -> Result<(MarketDocument, ShapeTimes), String> {
    let unknown = || {
        format!(
            "{text:?} is not a shape; use quarter-hour, quarter-hour:20x500, 'heartbeat every 5m', 'heartbeat \
             12m,7m30s,3m before quarter' or 'every 10s'"
        )
    };
    if let Some(bids) = text.strip_prefix("quarter-hour") {
        let (messages, time_series) = match bids.strip_prefix(':').and_then(|numbers| numbers.split_once('x')) {
            Some((messages, time_series)) => (
                number(messages, MAX_BIDS, "messages of a burst")?,
                number(time_series, MAX_TIME_SERIES, "time series of a message")?,
            ),
            None if bids.is_empty() => (USUAL_BIDS, USUAL_TIME_SERIES),
            None => return Err(unknown()),
        };
        return Ok((MarketDocument::Bids(time_series), ShapeTimes::Burst(messages)));
    }
    let (document, times) = match text.strip_prefix("heartbeat ") {
        Some(times) => (MarketDocument::Heartbeat, times),
        None => (MarketDocument::Value, text),
    };
    if let Some(time) = times.strip_prefix("every ") {
        return Ok((document, ShapeTimes::Every(every(time)?)));
    }
    let times = times.strip_suffix(" before quarter").filter(|_| document == MarketDocument::Heartbeat);
    let times = times.ok_or_else(unknown)?.split(',').map(|time| before(time.trim()));
    Ok((document, ShapeTimes::BeforeQuarter(times.collect::<Result<_, _>>()?)))
}

/// Parses the time between two messages. It must divide a day into equal parts of whole seconds, because otherwise the
/// due times would differ from day to day.
fn every(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let divides_a_day = time.subsec_nanos() == 0 && DAY.as_secs().checked_rem(time.as_secs()) == Some(0);
    divides_a_day.then_some(time).ok_or_else(|| {
        format!("{text:?} does not divide a day into equal parts of whole seconds; use something like 10s, 5m or 1h")
    })
}

fn before(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let is_within = !time.is_zero() && time <= QUARTER_HOUR;
    is_within.then_some(time).ok_or_else(|| format!("{text:?} is not within a quarter-hour; use at most 15m"))
}

fn threshold(text: &str) -> Result<Threshold, String> {
    let threshold = Threshold::parse(text, RunProtocol::Mades).map_err(|fault| {
        format!(
            "{text:?}: {fault} (after a semicolon comes 'type NAME' or a condition like 'received.within(2min) >= 99%')"
        )
    })?;
    match threshold.source() {
        Some(_) => Ok(threshold),
        None => Err(format!("{text:?} concerns all messages and not one shape; use --threshold")),
    }
}

fn number(text: &str, max: u32, what: &str) -> Result<u32, String> {
    let is_plain = text.bytes().all(|digit| digit.is_ascii_digit());
    let number = text.parse().ok().filter(|number| is_plain && (1..=max).contains(number));
    number.ok_or_else(|| format!("{text:?} is not a number of {what}; use 1 to {max}"))
}

impl fmt::Display for MarketShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.typed)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct MarketLoad {
    pub shapes: Vec<MarketShape>,
    /// Number of seconds of market time that pass in a second of the run.
    pub acceleration: u32,
    pub time_zone: TimeZone,
}

impl MarketLoad {
    /// Returns how long an hour of market time takes in the run. This is less than an hour if the market's time is
    /// accelerated.
    pub fn hour(&self) -> Duration {
        4 * QUARTER_HOUR / self.acceleration
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_has_a_document_times_a_type_and_conditions() {
        let read = |text: &str| {
            let shape: MarketShape = text.parse().unwrap();
            assert_eq!(shape.to_string(), text);
            (shape.document, shape.times)
        };
        let minutes = |number: u64| Duration::from_secs(60 * number);
        let before = vec![minutes(12), Duration::from_secs(450), minutes(3)];
        for (text, document, times) in [
            ("quarter-hour", MarketDocument::Bids(4_000), ShapeTimes::Burst(100)),
            ("quarter-hour:20x500", MarketDocument::Bids(500), ShapeTimes::Burst(20)),
            (
                "heartbeat 12m,7m30s,3m before quarter",
                MarketDocument::Heartbeat,
                ShapeTimes::BeforeQuarter(before.clone()),
            ),
            ("heartbeat 12m, 7m30s,  3m before quarter", MarketDocument::Heartbeat, ShapeTimes::BeforeQuarter(before)),
            ("heartbeat every 5m", MarketDocument::Heartbeat, ShapeTimes::Every(minutes(5))),
            ("every 10s", MarketDocument::Value, ShapeTimes::Every(Duration::from_secs(10))),
        ] {
            assert_eq!(read(text), (document, times), "{text}");
        }
        let shape: MarketShape = "every  10s; type ACE; inbox.p99 < 5s;received.within(30s) >= 99%".parse().unwrap();
        assert_eq!((shape.name.as_str(), shape.message_type.as_deref()), ("every 10s", Some("ACE")));
        let expressions: Vec<&str> = shape.thresholds().iter().map(Threshold::expression).collect();
        assert_eq!(expressions, ["inbox.p99 < 5s", "received.within(30s) >= 99%"]);
        assert_eq!(shape.per_day(), 8_640);
    }

    #[test]
    fn what_is_no_shape_is_refused_with_what_to_use() {
        for (text, reason) in [
            ("", "use quarter-hour"),
            ("bids", "use quarter-hour"),
            ("quarter-hour:", "use quarter-hour"),
            ("quarter-hours", "use quarter-hour"),
            ("quarter-hour:0x1", "use 1 to 1000"),
            ("quarter-hour:1x20001", "use 1 to 20000"),
            ("quarter-hour:+1x1", "use 1 to 1000"),
            ("heartbeat", "use quarter-hour"),
            ("heartbeat 3m", "use quarter-hour"),
            ("3m before quarter", "use quarter-hour"),
            ("heartbeat 3m before hour", "use quarter-hour"),
            ("heartbeat 16m before quarter", "use at most 15m"),
            ("heartbeat 0s before quarter", "use at most 15m"),
            ("heartbeat ,3m before quarter", "is not a valid time"),
            ("every 7m", "use something like 10s"),
            ("every 0s", "use something like 10s"),
            ("every 500ms", "use something like 10s"),
            ("every 2d", "use something like 10s"),
            ("every week", "is not a valid time"),
            ("every 10s; typ ACE", "'type NAME' or a condition"),
            ("every 10s; type", "'type NAME' or a condition"),
            ("every 10s;", "'type NAME' or a condition"),
            ("every 10s; type A; type B", "use two shapes"),
            ("every 10s; lost <= 0", "use --threshold"),
            ("every 10s; fresh(30s) >= 98%", "use --threshold"),
        ] {
            let refused = text.parse::<MarketShape>().unwrap_err();
            assert!(refused.contains(reason), "{text}: {refused}");
        }
    }
}
