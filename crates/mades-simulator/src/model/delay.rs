//! Distributions from which the delays of messages are drawn. A plan writes a distribution in this notation:
//!
//! ```text
//! 10ms                  always the same time
//! 5ms..20ms             any time in this range, evenly distributed
//! exp:10ms              exponential, with this mean
//! lognormal:10ms,0.8    lognormal, with this median and this deviation of the logarithms
//! file:PATH             times from a file, one per line, which the messages take in the order of
//!                       their numbers, over and over
//! ```
use super::quantity;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub(super) use mailrun_measurement::seeded::{SeededRng, hash_text};
const MAX_SIGMA: f64 = 5.0;
/// Maximum of a random delay. A larger random value is replaced by this time.
const MAX_DELAY: Duration = Duration::from_secs(7 * 86_400);
const MAX_TIMES: usize = 10_000_000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DelayDistribution {
    text: String,
    shape: DelayShape,
}

#[derive(Clone, Debug, PartialEq)]
enum DelayShape {
    Constant(Duration),
    Uniform(Duration, Duration),
    Exponential(Duration),
    LogNormal(Duration, f64),
    /// Delays from a file. The messages take them in the order of their numbers, over and over. Until the file is read,
    /// the list is empty, and each delay is zero.
    Times(Vec<Duration>),
}

impl Default for DelayDistribution {
    fn default() -> Self {
        Self::constant(Duration::ZERO)
    }
}

impl DelayDistribution {
    pub fn constant(time: Duration) -> Self {
        Self { text: format!("{time:?}"), shape: DelayShape::Constant(time) }
    }

    /// Reads a delay in the notation of this module, for example `exp:10ms`.
    ///
    /// # Errors
    /// Fails if the text is not a delay. The error gives a correct example.
    pub fn parse(text: &str) -> Result<Self, String> {
        let shape = match text.split_once(':') {
            Some(("exp", mean)) => DelayShape::Exponential(quantity::time(mean)?),
            Some(("lognormal", rest)) => log_normal(rest)?,
            Some(("file", path)) if !path.is_empty() => DelayShape::Times(Vec::new()),
            Some((word, _)) => return Err(format!("{word:?} is not a distribution; use exp, lognormal or file")),
            None if text.contains("..") => {
                let (min, max) = quantity::span(text)?;
                DelayShape::Uniform(min, max)
            }
            None => DelayShape::Constant(quantity::time(text)?),
        };
        Ok(Self { text: text.to_owned(), shape })
    }

    pub fn expression(&self) -> &str {
        &self.text
    }

    pub fn file(&self) -> Option<&str> {
        match &self.shape {
            DelayShape::Times(_) => self.text.strip_prefix("file:"),
            _ => None,
        }
    }

    /// Reads the times of the distribution from the text of a file with one time per line. Empty
    /// lines and lines that begin with # are skipped.
    ///
    /// # Errors
    /// Fails if a line is not a time, or if there are no times or too many. The error names the line.
    pub fn read_times(&mut self, text: &str) -> Result<(), String> {
        let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let times = lines.map(|(number, line)| quantity::time(line).map_err(|error| format!("line {number}: {error}")));
        let times: Vec<Duration> = times.take(MAX_TIMES + 1).collect::<Result<_, _>>()?;
        match times.len() {
            0 => Err("it contains no time".to_owned()),
            1..=MAX_TIMES => {
                self.shape = DelayShape::Times(times);
                Ok(())
            }
            _ => Err(format!("at most {MAX_TIMES} times are possible")),
        }
    }

    pub(super) fn sample(&self, mut rng: SeededRng, number: u64) -> Duration {
        match &self.shape {
            DelayShape::Constant(time) => *time,
            DelayShape::Uniform(min, max) => *min + (*max - *min).mul_f64(rng.unit()),
            DelayShape::Exponential(mean) => scaled(*mean, -rng.unit().ln()),
            DelayShape::LogNormal(median, sigma) => scaled(*median, (sigma * normal(&mut rng)).exp()),
            DelayShape::Times(times) if times.is_empty() => Duration::ZERO,
            DelayShape::Times(times) => times[(number % times.len() as u64) as usize],
        }
    }
}

fn scaled(time: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(time.as_secs_f64() * factor).unwrap_or(MAX_DELAY).min(MAX_DELAY)
}

/// Returns a random number of the standard normal distribution (Box and Muller, 1958).
fn normal(rng: &mut SeededRng) -> f64 {
    let radius = rng.unit();
    let turn = rng.unit();
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * turn).cos()
}

fn log_normal(text: &str) -> Result<DelayShape, String> {
    let error = || format!("{text:?} is not a valid log-normal delay; use something like lognormal:10ms,0.8");
    let (median, sigma) = text.split_once(',').ok_or_else(error)?;
    let sigma: f64 = sigma.trim().parse().map_err(|_| error())?;
    if !(0.0..=MAX_SIGMA).contains(&sigma) {
        return Err(format!("{sigma}: a deviation must be between 0 and {MAX_SIGMA}"));
    }
    Ok(DelayShape::LogNormal(quantity::time(median.trim())?, sigma))
}

impl TryFrom<String> for DelayDistribution {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<DelayDistribution> for String {
    fn from(delay: DelayDistribution) -> Self {
        delay.text
    }
}

/// Purpose of a random decision, for example whether to lose a message. The result depends only on the seed, the
/// purpose and the number of the message, so a seed yields the same faults in whatever order the messages arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RandomDecision {
    Error = 1,
    NoReply,
    Loss,
    Failure,
    Duplicate,
    Corruption,
    Reordering,
    Accept,
    Network,
    Acknowledge,
    Receive,
    Again,
    Lateness,
    Document,
    DocumentRejection,
}

impl From<RandomDecision> for u64 {
    fn from(purpose: RandomDecision) -> Self {
        purpose as Self
    }
}

#[cfg(test)]
mod tests {
    use super::{RandomDecision, *};
    use proptest::prelude::*;

    fn drawn(text: &str) -> Vec<f64> {
        let delay = DelayDistribution::parse(text).unwrap();
        let of = |number| delay.sample(SeededRng::new(1, RandomDecision::Network, number), number).as_secs_f64() * 1e3;
        let mut times: Vec<f64> = (0..20_000).map(of).collect();
        times.sort_by(f64::total_cmp);
        times
    }

    #[test]
    fn distributions_have_their_mean_and_median() {
        let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
        assert_eq!(drawn("10ms")[19_999], 10.0);
        let even = drawn("5ms..15ms");
        assert!((even[0] - 5.0).abs() < 0.1 && (even[19_999] - 15.0).abs() < 0.1 && (mean(&even) - 10.0).abs() < 0.1);
        let exponential = drawn("exp:10ms");
        assert!((mean(&exponential) - 10.0).abs() < 0.3 && (exponential[10_000] - 6.93).abs() < 0.3);
        let log_normal = drawn("lognormal:10ms,0.5");
        assert!((log_normal[10_000] - 10.0).abs() < 0.3 && (log_normal[16_827] - 16.5).abs() < 0.6);
    }

    #[test]
    fn times_from_a_file_come_in_order_and_again() {
        let mut delay = DelayDistribution::parse("file:times.txt").unwrap();
        assert_eq!(delay.file(), Some("times.txt"));
        delay.read_times("# measured\n10ms\n\n 2s \n").unwrap();
        let times = [0, 1, 2].map(|number| delay.sample(SeededRng::new(1, RandomDecision::Network, number), number));
        assert_eq!(times, [10, 2000, 10].map(Duration::from_millis));
        assert!(delay.read_times("").unwrap_err().contains("contains no time"));
        assert!(delay.read_times("1s\nx").unwrap_err().starts_with("line 2"));
    }

    #[test]
    fn nonsense_is_told_apart_from_delays() {
        for text in
            ["", "x", "exp:", "exp:x", "lognormal:10ms", "lognormal:10ms,9", "lognormal:1,x", "file:", "2s..1s", "a:b"]
        {
            assert!(DelayDistribution::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_bounded_and_written_as_it_was(text in "(exp:|lognormal:|file:)?[0-9a-z.,]{0,12}", number: u64) {
            if let Ok(delay) = DelayDistribution::parse(&text) {
                prop_assert!(delay.sample(SeededRng::new(number, RandomDecision::Network, number), number) <= MAX_DELAY);
                prop_assert_eq!(String::from(delay), text);
            }
        }
    }

    #[test]
    fn purposes_have_draws_of_their_own() {
        let draw = |purpose| SeededRng::new(1, purpose, 7).next_u64();
        assert_eq!(draw(RandomDecision::Error), 0xcc48_a0e2_d1c7_7be6, "a seed goes on meaning what it meant");
        assert_ne!(draw(RandomDecision::Error), draw(RandomDecision::NoReply));
    }
}
