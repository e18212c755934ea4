//! The offered rate over time. It is constant, or consists of consecutive stages, each with a constant rate or a ramp.
//!
//! ```text
//! 10s:100/s          100 messages a second, for ten seconds
//! 60s:100/s..1000/s  from 100 a second to 1,000, changing evenly
//! 5s:0/s             a pause
//! ```
//! This module does no I/O. It computes when the n-th message of the whole run is due, by inverting the function that
//! counts the messages due by a given time.
use mailrun_measurement::record::OfferedStage;
use mailrun_text::quantities::{duration, rate};
use std::time::Duration;

const MAX_NAME: usize = 40;

#[derive(Clone, Debug, PartialEq)]
pub struct RateStage {
    /// Name that the user has given to the stage, such as `peak`, or `None` for a stage without a name.
    pub name: Option<String>,
    pub(crate) length: Duration,
    pub from_per_s: f64,
    pub to_per_s: f64,
}

impl RateStage {
    /// Parses a stage, for example `10s:100/s`, `10s:100/s..1000/s` or `peak=10s:500/s`.
    ///
    /// # Errors
    /// Returns an error that says what is wrong with `text` and shows the correct form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let error =
            || format!("{text:?} is not a valid stage; use something like 10s:100/s, or 60s:100/s..1000/s for a ramp");
        let (name, unnamed) = match text.split_once('=') {
            Some((name, rest)) => (Some(checked_name(name.trim())?), rest),
            None => (None, text),
        };
        let (length, rates) = unnamed.split_once(':').ok_or_else(error)?;
        let within = |reason: String| format!("{text:?}: {reason}");
        let length = duration(length.trim()).map_err(within)?;
        if length.is_zero() || length > Duration::from_secs(366 * 86_400) {
            return Err(format!("{text:?}: a stage must last more than zero and at most a year"));
        }
        let (from, to) = rates.split_once("..").unwrap_or((rates, rates));
        let read = |text: &str| rate(text.trim()).map_err(within);
        Ok(Self { name, length, from_per_s: read(from)?, to_per_s: read(to)? })
    }

    /// Returns the name by which a threshold refers to the stage: the user's name for it or, if it has none, its
    /// number, counted from 1. `place` is the index of the stage in the load, counted from 0.
    pub fn name_at(&self, place: usize) -> String {
        self.summary().name_at(place)
    }

    /// Returns the stage in the syntax that [`Self::parse`] reads, always with both rates, for example
    /// `10s:100/s..100/s`.
    pub fn expression(&self) -> String {
        let name = self.name.as_ref().map(|name| format!("{name}=")).unwrap_or_default();
        format!("{name}{:?}:{}/s..{}/s", self.length, self.from_per_s, self.to_per_s)
    }

    pub(crate) fn summary(&self) -> OfferedStage {
        let length_s = self.length.as_secs_f64();
        OfferedStage { name: self.name.clone(), length_s, from_per_s: self.from_per_s, to_per_s: self.to_per_s }
    }

    fn rate_at(&self, time_s: f64) -> f64 {
        let passed = time_s / self.length.as_secs_f64();
        self.from_per_s * (1.0 - passed) + self.to_per_s * passed
    }

    /// Returns the number of messages that are due in the first `time_s` seconds of the stage.
    fn due_within(&self, time_s: f64) -> f64 {
        let slope = (self.to_per_s - self.from_per_s) / self.length.as_secs_f64();
        time_s * (self.from_per_s + slope * time_s / 2.0)
    }

    /// Returns the time by which the first `messages` messages of the stage are due, in seconds after its start. This
    /// is the inverse of `due_within`.
    fn time_of(&self, messages: f64) -> f64 {
        let slope = (self.to_per_s - self.from_per_s) / self.length.as_secs_f64();
        let speed = self.from_per_s + (self.from_per_s * self.from_per_s + 2.0 * slope * messages).max(0.0).sqrt();
        // Do not use the textbook solution of the quadratic equation: it divides by the slope, which may be zero, and
        // loses precision if the slope is small.
        if speed > 0.0 { (2.0 * messages / speed).min(self.length.as_secs_f64()) } else { 0.0 }
    }
}

/// Returns the name of a stage if it is valid. A name must not contain a colon, because a colon follows the name in a
/// threshold. It must not be a number, because a stage without a name is named by its number.
fn checked_name(name: &str) -> Result<String, String> {
    let is_letter = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    let is_number = name.chars().all(|c| c.is_ascii_digit());
    match name.chars().count() {
        1..=MAX_NAME if name.chars().all(is_letter) && !is_number => Ok(name.to_owned()),
        _ => Err(format!(
            "{name:?} is not a name of a stage: it has 1 to {MAX_NAME} letters, digits, dots, dashes or underscores, and is not a number"
        )),
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum OfferedRate {
    /// Messages per second, which stay the same until the run ends.
    Constant(f64),
    /// Stages that follow one another, each with its own length and rate. The run ends with the last stage.
    Stages(Vec<RateStage>),
}

impl OfferedRate {
    /// Returns the time at which the message at `position` is due, in seconds since the start of the load. Positions
    /// are counted from 0. If the position is beyond the last stage, the message is due when that stage ends.
    pub fn due_s(&self, position: f64) -> f64 {
        let stages = match self {
            Self::Constant(rate_per_s) => return position / rate_per_s,
            Self::Stages(stages) => stages,
        };
        let mut begins_s = 0.0;
        let mut left = position;
        for stage in stages {
            let length_s = stage.length.as_secs_f64();
            let messages = stage.due_within(length_s);
            if left < messages {
                return begins_s + stage.time_of(left);
            }
            begins_s += length_s;
            left -= messages;
        }
        begins_s
    }

    /// Returns the number of messages that are due in the first `time_s` seconds of the load.
    pub(crate) fn due_by(&self, time_s: f64) -> f64 {
        let stages = match self {
            Self::Constant(rate_per_s) => return rate_per_s * time_s,
            Self::Stages(stages) => stages,
        };
        let mut left_s = time_s;
        let mut due = 0.0;
        for stage in stages {
            let length_s = stage.length.as_secs_f64();
            due += stage.due_within(left_s.clamp(0.0, length_s));
            left_s -= length_s;
        }
        due
    }

    /// Returns the total length of the stages, or `None` for a constant rate, which has no end.
    pub fn length(&self) -> Option<Duration> {
        match self {
            Self::Constant(_) => None,
            Self::Stages(stages) => Some(stages.iter().map(|stage| stage.length).sum()),
        }
    }

    /// Returns the time at which each stage ends, if the first stage begins at `began`. Returns an empty list for a
    /// constant rate, which has no stages.
    pub fn stage_ends(&self, began: Duration) -> Vec<Duration> {
        let Self::Stages(stages) = self else { return Vec::new() };
        let ends = stages.iter().scan(began, |end, stage| {
            *end += stage.length;
            Some(*end)
        });
        ends.collect()
    }

    /// Returns the mean rate from `from_s` to the end of the load in messages per second, or 0 after the end of the
    /// load.
    pub fn mean_per_s(&self, from_s: f64) -> f64 {
        let stages = match self {
            Self::Constant(rate_per_s) => return *rate_per_s,
            Self::Stages(stages) => stages,
        };
        let mut begins_s = 0.0;
        let mut messages = 0.0;
        let mut counted_s = 0.0;
        for stage in stages {
            let length_s = stage.length.as_secs_f64();
            let skipped_s = (from_s - begins_s).clamp(0.0, length_s);
            let rest_s = length_s - skipped_s;
            // Multiply the stage's remaining time by the mean rate in that time to get the remaining messages. Do not
            // subtract the messages so far from the stage's total. Near the end of the stage, both numbers are almost
            // equal, so their difference would be mostly rounding error.
            messages += rest_s * (stage.rate_at(skipped_s) + stage.to_per_s) / 2.0;
            counted_s += rest_s;
            begins_s += length_s;
        }
        if counted_s > 0.0 { messages / counted_s } else { 0.0 }
    }

    /// Returns the stages as the run record stores them, or an empty list for a constant rate, which has no stages.
    pub fn stages(&self) -> Vec<OfferedStage> {
        match self {
            Self::Constant(_) => Vec::new(),
            Self::Stages(stages) => stages.iter().map(RateStage::summary).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stages(typed: &[&str]) -> OfferedRate {
        OfferedRate::Stages(typed.iter().map(|text| RateStage::parse(text).unwrap()).collect())
    }

    #[test]
    fn a_table_of_stages() {
        let second = Duration::from_secs(1);
        for (text, length, from_per_s, to_per_s) in [
            ("10s:100/s", second * 10, 100.0, 100.0),
            ("10s:100", second * 10, 100.0, 100.0),
            ("60s:100/s..1000/s", second * 60, 100.0, 1_000.0),
            ("60s:1000..0.5", second * 60, 1_000.0, 0.5),
            ("5s:0/s", second * 5, 0.0, 0.0),
            ("1m:600/m..36k/h", second * 60, 10.0, 10.0),
            ("peak-1=10s:100/s", second * 10, 100.0, 100.0),
            ("peak-1 = 10s:100..0", second * 10, 100.0, 0.0),
        ] {
            let read = RateStage::parse(text).unwrap();
            let name = text.contains("peak").then(|| "peak-1".to_owned());
            assert_eq!(read, RateStage { name, length, from_per_s, to_per_s }, "{text}");
            assert_eq!(RateStage::parse(&read.expression()).unwrap(), read, "{}", read.expression());
        }
        for (text, named) in [
            ("", "not a valid stage"),
            ("10s", "not a valid stage"),
            ("x:100", "not a valid time"),
            ("0s:100", "more than zero"),
            ("40000000s:1", "a year"),
            ("10s:20M/s", "at most 10M/s"),
            ("10s:", "not a valid rate"),
            ("10s:x", "not a valid rate"),
            ("10s:-1", "must not be negative"),
            ("10s:nan", "not a valid rate"),
            ("10s:1e9", "write 1000000000"),
            ("10s:1..", "not a valid rate"),
            ("10s:1..2..3", "not a valid rate"),
            ("=10s:1", "not a name of a stage"),
            ("a b=10s:1", "not a name of a stage"),
            ("a:b=10s:1", "not a name of a stage"),
            ("a<b=10s:1", "not a name of a stage"),
            ("12=10s:1", "is not a number"),
            ("a=10s", "not a valid stage"),
        ] {
            let error = RateStage::parse(text).expect_err(text);
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn the_mean_of_a_rest_of_no_length_is_a_rate_of_the_stage() {
        // Fuzzing found this case: because of rounding, the sum of the stages' lengths as f64 can slightly exceed the
        // exact end of the load. The mean must then still be 0 or the rate of the stages.
        for count in 1..12 {
            let offer = stages(&vec!["60s10ms:100000/s"; count]);
            let end_s = offer.length().unwrap().as_secs_f64();
            for from_s in [end_s, end_s - f64::EPSILON * end_s, end_s - 1e-9] {
                let mean = offer.mean_per_s(from_s);
                assert!(mean == 0.0 || (mean - 100_000.0).abs() < 1e-3, "{count}: {mean}");
            }
        }
    }

    #[test]
    fn stages_follow_each_other() {
        let offer = stages(&["10s:100/s", "5s:0/s", "10s:0/s..200/s"]);
        // The third stage's rate rises from zero, so only 250 of its 1,000 messages are due in its first half.
        for (position, due_s) in
            [(0.0, 0.0), (1.0, 0.01), (999.0, 9.99), (1_000.0, 15.0), (1_250.0, 20.0), (2_000.0, 25.0)]
        {
            assert!((offer.due_s(position) - due_s).abs() < 1e-9, "{position}: {}", offer.due_s(position));
        }
        assert_eq!(offer.due_s(1e9), 25.0, "nothing is due after the end");
        assert_eq!(offer.length(), Some(Duration::from_secs(25)));
        assert_eq!(offer.mean_per_s(0.0), 80.0);
        assert!((offer.mean_per_s(20.0) - 150.0).abs() < 1e-9);
        assert_eq!(offer.stages().len(), 3);
    }

    #[test]
    fn a_steady_rate_has_no_end() {
        let offer = OfferedRate::Constant(50.0);
        assert_eq!((offer.due_s(100.0), offer.length(), offer.mean_per_s(3.0)), (2.0, None, 50.0));
        assert!(offer.stages().is_empty());
    }

    proptest! {
        #[test]
        fn due_times_rise_and_are_the_inverse_of_the_count(
            parts in proptest::collection::vec((1_u64..100, 0_u32..2_000, 0_u32..2_000), 1..6),
            share in 0.0_f64..1.0,
        ) {
            let stages: Vec<RateStage> = parts.iter().map(|(length, from, to)| RateStage {
                name: None, length: Duration::from_secs(*length), from_per_s: f64::from(*from), to_per_s: f64::from(*to),
            }).collect();
            let total: f64 = stages.iter().map(|stage| stage.due_within(stage.length.as_secs_f64())).sum();
            let offer = OfferedRate::Stages(stages.clone());
            let position = total * share;
            let due_s = offer.due_s(position);
            prop_assert!(due_s >= 0.0 && due_s <= offer.length().unwrap().as_secs_f64());
            prop_assert!(offer.due_s(position + 1.0) >= due_s);
            // The message at `position` is due at `due_s`, so exactly `position` messages must be due before it.
            let mut begins_s = 0.0;
            let mut counted = 0.0;
            for stage in &stages {
                let length_s = stage.length.as_secs_f64();
                counted += stage.due_within((due_s - begins_s).clamp(0.0, length_s));
                begins_s += length_s;
            }
            prop_assert!((counted - position).abs() < 1e-3 * (1.0 + position), "{counted} for {position}");
        }
    }
}
