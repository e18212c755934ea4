//! Parses distributions of numbers that vary from message to message, such as sizes, and draws numbers from them.
//!
//! ```text
//! 400                      always the same
//! 400..64k                 any of these, evenly; both ends are among them
//! 400:80,4k..64k:15,1m:5   by weight; each part is a number or a range, and without a weight has 1
//! lognormal:4k,1.2         half of them below 4k, their logarithms normal with deviation 1.2; values below a hundredth
//!                          of the median, or above a hundred times it, are clamped
//! lognormal:4k,1.2,1m      the same, at most 1m
//! ```
//! To draw a number, 64 random bits select a quantile of the distribution, and all quantiles are equally likely. A few
//! evenly spaced quantiles, for example 64 of them, therefore represent the whole distribution.
use mailrun_measurement::record::Varied;

pub use mailrun_measurement::seeded::{SeededRng, scale};
/// A log-normal number is never smaller than the median divided by this factor. Unless the user gives a maximum, it is
/// also never larger than the median times this factor.
const MAX_MEDIAN_FACTOR: f64 = 100.0;
/// Maximum deviation (sigma) of a log-normal distribution. At this deviation, a third of the numbers would be more than
/// 148 times (e⁵) smaller or larger than the median if they were not clamped.
const MAX_SIGMA: f64 = 5.0;
const MAX_PARTS: usize = 1_000;

#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    expression: String,
    kind: DistributionKind,
}

#[derive(Clone, Debug, PartialEq)]
enum DistributionKind {
    Range(ValueRange),
    Weighted { parts: Vec<(u64, ValueRange)>, total: u64 },
    LogNormal { median: f64, sigma: f64, most: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ValueRange {
    least: u64,
    most: u64,
}

impl ValueRange {
    fn quantile(self, position: u64) -> u64 {
        self.least + scale(position, self.most - self.least + 1)
    }

    fn mean(self) -> f64 {
        (self.least as f64 + self.most as f64) / 2.0
    }
}

impl Distribution {
    pub fn constant(number: u64) -> Self {
        Self {
            expression: number.to_string(),
            kind: DistributionKind::Range(ValueRange { least: number, most: number }),
        }
    }

    /// Parses a distribution such as `64k:80,1m:20`. `read` parses a single number with its unit.
    ///
    /// # Errors
    /// Returns an error that says what is wrong with `text` and shows the correct form.
    pub fn parse(text: &str, read: impl Fn(&str) -> Result<u64, String>) -> Result<Self, String> {
        let shape = match text.strip_prefix("lognormal:") {
            Some(rest) => parse_log_normal(rest, &read)?,
            None => parse_weighted(text, &read)?,
        };
        Ok(Self { expression: text.to_owned(), kind: shape })
    }

    /// Returns the text of the distribution, in the syntax that [`Self::parse`] reads.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Returns the only number that the distribution can draw, or `None` if its numbers vary.
    pub fn as_constant(&self) -> Option<u64> {
        (self.min() == self.max()).then(|| self.min())
    }

    pub fn min(&self) -> u64 {
        match &self.kind {
            DistributionKind::Range(range) => range.least,
            DistributionKind::Weighted { parts, .. } => parts.iter().map(|(_, range)| range.least).min().unwrap_or(0),
            DistributionKind::LogNormal { median, .. } => (median / MAX_MEDIAN_FACTOR) as u64,
        }
    }

    pub fn max(&self) -> u64 {
        match &self.kind {
            DistributionKind::Range(range) => range.most,
            DistributionKind::Weighted { parts, .. } => parts.iter().map(|(_, range)| range.most).max().unwrap_or(0),
            DistributionKind::LogNormal { most, .. } => *most,
        }
    }

    pub fn mean(&self) -> f64 {
        match &self.kind {
            DistributionKind::Range(range) => range.mean(),
            DistributionKind::Weighted { parts, total } => {
                parts.iter().map(|(weight, range)| *weight as f64 * range.mean()).sum::<f64>() / *total as f64
            }
            // Approximate the mean by the average of many evenly spaced quantiles. The formula for the mean of a
            // log-normal distribution does not apply, because the numbers are clamped at both ends.
            DistributionKind::LogNormal { .. } => {
                self.quantiles(1 << 14).map(|number| number as f64).sum::<f64>() / 16_384.0
            }
        }
    }

    /// Returns true for a log-normal distribution, whose numbers are clamped to its bounds. A caller that needs larger
    /// numbers may then raise all smaller ones to its own minimum, because this only moves the lower bound.
    pub fn is_clamped(&self) -> bool {
        matches!(self.kind, DistributionKind::LogNormal { .. })
    }

    /// Returns the expression, range and mean of the distribution for the run record. Numbers below `min` count as
    /// `min`, because the caller raises them, for example to the size of the smallest possible message.
    pub fn summary_from(&self, min: u64) -> Varied {
        let summary = self.summary_in(1.0);
        if self.min() >= min {
            return summary;
        }
        let mean = self.quantiles(1 << 14).map(|number| number.max(min) as f64).sum::<f64>() / 16_384.0;
        Varied { least: min as f64, mean, ..summary }
    }

    /// Draws a random value for the message with this number. The same seed, purpose and number always give the same
    /// value.
    pub fn sample(&self, seed: u64, purpose: RandomStream, number: u64) -> u64 {
        match &self.kind {
            DistributionKind::Range(range) if range.least == range.most => range.least,
            _ => self.quantile(SeededRng::new(seed, purpose, number).next_u64()),
        }
    }

    /// Returns the quantile of the distribution for the share `position` / 2^64. For example, a position of 2^63 gives
    /// the median.
    fn quantile(&self, position: u64) -> u64 {
        match &self.kind {
            DistributionKind::Range(range) => range.quantile(position),
            DistributionKind::Weighted { parts, total } => weighted_quantile(parts, *total, position),
            DistributionKind::LogNormal { median, sigma, most } => {
                let share = (position as f64 + 0.5) / 2_f64.powi(64);
                // Keep the share away from 0 and 1, because the normal quantile is infinite there.
                let number = median * (sigma * normal_quantile(share.clamp(1e-18, 1.0 - 1e-16))).exp();
                (number.round() as u64).clamp(self.min(), *most)
            }
        }
    }

    /// Returns `count` evenly spaced quantiles, which together represent the distribution.
    pub fn quantiles(&self, count: u64) -> impl Iterator<Item = u64> {
        let gap = u64::MAX / count.max(1);
        (0..count).map(move |place| self.quantile(place * gap + gap / 2))
    }

    /// Describes the distribution for the run record. Returns `None` if the number does not vary.
    pub fn summary(&self) -> Option<Varied> {
        self.as_constant().is_none().then(|| self.summary_in(1.0))
    }

    /// Describes the distribution for the run record. Divides each value by `unit` to convert it, for example by 1e6 to
    /// convert nanoseconds to milliseconds.
    pub fn summary_in(&self, unit: f64) -> Varied {
        Varied {
            expression: self.expression.clone(),
            least: self.min() as f64 / unit,
            mean: self.mean() / unit,
            most: self.max() as f64 / unit,
        }
    }
}

/// Maps a 64-bit position, usually a random number, to a number from one of the weighted ranges. Each range takes up a
/// part of the positions in proportion to its weight, and its numbers are spread evenly over this part.
fn weighted_quantile(parts: &[(u64, ValueRange)], total: u64, position: u64) -> u64 {
    let mut place = u128::from(position) * u128::from(total);
    for (weight, range) in parts {
        let width = u128::from(*weight) << 64;
        if place < width {
            return range.quantile((place / u128::from(*weight)) as u64);
        }
        place -= width;
    }
    parts.last().map_or(0, |(_, range)| range.most)
}

fn parse_log_normal(text: &str, read: &impl Fn(&str) -> Result<u64, String>) -> Result<DistributionKind, String> {
    let error = || {
        format!(
            "lognormal:{text} is not a valid distribution; use something like lognormal:4k,1.2 (median, deviation of \
             the logarithm)"
        )
    };
    let mut words = text.split(',').map(str::trim);
    let (Some(median), Some(sigma)) = (words.next(), words.next()) else { return Err(error()) };
    let median = read(median)?;
    let sigma: f64 = sigma.parse().map_err(|_| error())?;
    let max = words.next().map(read).transpose()?;
    if words.next().is_some() {
        return Err(error());
    }
    if median == 0 || !(0.0..=MAX_SIGMA).contains(&sigma) || sigma == 0.0 {
        return Err(format!(
            "lognormal:{text}: the median must be more than zero, and the deviation at most {MAX_SIGMA}"
        ));
    }
    match max {
        Some(most) if most < median => Err(format!("lognormal:{text}: the maximum is below the median")),
        Some(most) => Ok(DistributionKind::LogNormal { median: median as f64, sigma, most }),
        None => Ok(DistributionKind::LogNormal {
            median: median as f64,
            sigma,
            most: median.saturating_mul(MAX_MEDIAN_FACTOR as u64),
        }),
    }
}

/// Parses a list of weighted parts, such as `64k:80,1m:20`. Returns a `Range` for a single part without a weight.
fn parse_weighted(text: &str, read: &impl Fn(&str) -> Result<u64, String>) -> Result<DistributionKind, String> {
    let words: Vec<&str> = text.split(',').map(str::trim).collect();
    if let [word] = words[..]
        && !word.contains(':')
    {
        return parse_range(word, read).map(DistributionKind::Range);
    }
    if words.len() > MAX_PARTS {
        return Err(format!("the list has {} parts; at most {MAX_PARTS} are possible", words.len()));
    }
    let parts: Vec<(u64, ValueRange)> =
        words.into_iter().map(|word| parse_weighted_part(word, read)).collect::<Result<_, _>>()?;
    let total = parts.iter().map(|(weight, _)| weight).sum();
    Ok(DistributionKind::Weighted { parts, total })
}

fn parse_weighted_part(word: &str, read: &impl Fn(&str) -> Result<u64, String>) -> Result<(u64, ValueRange), String> {
    let (part, weight) = word.rsplit_once(':').unwrap_or((word, "1"));
    Ok((parse_weight(weight).ok_or_else(|| weight_error(word, weight))?, parse_range(part, read)?))
}

/// Parses a weight, a whole number from 1 to a billion.
pub fn parse_weight(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|weight| (1..=1_000_000_000).contains(weight))
}

pub fn weight_error(word: &str, weight: &str) -> String {
    format!("{word:?}: {weight:?} is not a weight; a weight is a whole number of at least 1, as in 400:80,64k:20")
}

fn parse_range(word: &str, read: &impl Fn(&str) -> Result<u64, String>) -> Result<ValueRange, String> {
    let Some((min, max)) = word.split_once("..") else {
        let number = read(word)?;
        return Ok(ValueRange { least: number, most: number });
    };
    let range = ValueRange { least: read(min.trim())?, most: read(max.trim())? };
    if range.least > range.most {
        return Err(format!("{word:?}: write the smaller value first"));
    }
    // Refuse a range that ends at `u64::MAX`. If it begins at 0, the number of its values does not fit into a u64.
    if range.most == u64::MAX { Err(format!("the range {word:?} is too wide")) } else { Ok(range) }
}

/// Quantile function of the normal distribution, for shares greater than 0 and less than 1. The rational approximations
/// by Peter Acklam (2003) have a relative error below 1.2e-9.
fn normal_quantile(share: f64) -> f64 {
    const CENTRE: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.38357751867269e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const CENTRE_BELOW: [f64; 6] = [
        -5.447609879822406e1,
        1.615858368580409e2,
        -1.556989798598866e2,
        6.680131188771972e1,
        -1.328068155288572e1,
        1.0,
    ];
    const TAIL: [f64; 6] = [
        -7.784894002430293e-3,
        -3.223964580411365e-1,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141465968,
        2.938163982698783,
    ];
    const TAIL_BELOW: [f64; 5] =
        [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416, 1.0];
    const TAIL_SHARE: f64 = 0.02425;
    let polynomial = |terms: &[f64], x: f64| terms.iter().fold(0.0, |sum, term| sum * x + term);
    let tail = |share: f64| {
        let x = (-2.0 * share.ln()).sqrt();
        polynomial(&TAIL, x) / polynomial(&TAIL_BELOW, x)
    };
    if share < TAIL_SHARE {
        tail(share)
    } else if share > 1.0 - TAIL_SHARE {
        -tail(1.0 - share)
    } else {
        let x = share - 0.5;
        x * polynomial(&CENTRE, x * x) / polynomial(&CENTRE_BELOW, x * x)
    }
}

/// Purpose of a random number: what it decides about a message, for example its size. The random number depends only on
/// the seed, the purpose and the number of the message, so the same seed gives the same mail, whichever session sends a
/// message. Random numbers for different purposes are independent. For example, the size of a message tells nothing
/// about its recipients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomStream {
    /// Chooses which message of a fixed set, such as a corpus, is sent. For a generated message, chooses the length.
    Message = 1,
    /// Chooses how many recipients the message has. `Recipient` chooses their addresses.
    Recipients,
    /// Chooses how many messages the session sends over the connection that it opens for this message.
    Reuse,
    /// Chooses how long the session pauses after the message.
    Think,
    Sender,
    Recipient,
    Words,
    /// Chooses the envelope ID, with which the server names the message in a notification (DSN, RFC 3461).
    EnvelopeId,
}

impl From<RandomStream> for u64 {
    fn from(purpose: RandomStream) -> Self {
        purpose as Self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<u64, String> {
        let (digits, unit) = text.strip_suffix('k').map_or((text, 1), |digits| (digits, 1_024));
        digits.parse::<u64>().map(|number| number * unit).map_err(|_| format!("{text:?} is no number"))
    }

    fn spread(text: &str) -> Distribution {
        Distribution::parse(text, read).unwrap_or_else(|error| panic!("{error}"))
    }

    fn drawn(text: &str, count: u64) -> Vec<u64> {
        let spread = spread(text);
        let mut all: Vec<u64> = (0..count).map(|number| spread.sample(1, RandomStream::Message, number)).collect();
        all.sort_unstable();
        all
    }

    fn mean(numbers: &[u64]) -> f64 {
        numbers.iter().map(|number| *number as f64).sum::<f64>() / numbers.len() as f64
    }

    #[test]
    fn what_is_typed_has_its_bounds_and_mean() {
        for (text, min, max, mean) in [
            ("400", 400, 400, 400.0),
            ("400..64k", 400, 65_536, 32_968.0),
            ("7..7", 7, 7, 7.0),
            ("400:80,64k:15,1024k:5", 400, 1_048_576, 0.8 * 400.0 + 0.15 * 65_536.0 + 0.05 * 1_048_576.0),
            ("1,3", 1, 3, 2.0),
            ("0..10:1, 100:1", 0, 100, 52.5),
            ("5:9", 5, 5, 5.0),
        ] {
            let spread = spread(text);
            assert_eq!((spread.min(), spread.max()), (min, max), "{text}");
            assert!((spread.mean() - mean).abs() < 1e-6, "{text}: {}", spread.mean());
            assert_eq!(spread.expression(), text);
            assert_eq!(spread.summary().is_none(), min == max, "{text}");
        }
    }

    #[test]
    fn what_is_malformed_names_what_is_wrong() {
        for (text, named) in [
            ("", "\"\""),
            ("x", "\"x\""),
            ("9..4", "smaller value first"),
            ("1..", "\"\""),
            ("..4", "\"\""),
            ("1..2..3", "\"2..3\""),
            ("1:0,2", "weight"),
            ("1:-3", "weight"),
            ("1:x", "weight"),
            ("1:2:3", "1:2"),
            ("1,,2", "\"\""),
            ("0..18446744073709551615", "too wide"),
            ("lognormal:", "lognormal"),
            ("lognormal:4k", "median, deviation"),
            ("lognormal:4k,x", "median, deviation"),
            ("lognormal:0,1", "more than zero"),
            ("lognormal:4k,0", "deviation at most"),
            ("lognormal:4k,-1", "deviation at most"),
            ("lognormal:4k,nan", "deviation at most"),
            ("lognormal:4k,9", "deviation at most"),
            ("lognormal:4k,1,1k", "below the median"),
            ("lognormal:4k,1,8k,9k", "median, deviation"),
            ("lognormal:4k,1,400", "below the median"),
        ] {
            let error = Distribution::parse(text, read).expect_err(text);
            assert!(error.contains(named), "{text}: {error}");
        }
        assert!(Distribution::parse(&["1"; 2_000].join(","), read).is_err());
    }

    #[test]
    fn a_range_is_drawn_evenly() {
        let all = drawn("400..64k", 100_000);
        assert!((mean(&all) / 32_968.0 - 1.0).abs() < 0.01, "{}", mean(&all));
        for (share, expected) in [(0.1, 6_914.0), (0.5, 32_968.0), (0.9, 59_022.0)] {
            let quantile = all[(share * 1e5) as usize] as f64;
            assert!((quantile / expected - 1.0).abs() < 0.03, "{share}: {quantile}");
        }
        assert!(all[0] >= 400 && all[99_999] <= 65_536);
    }

    #[test]
    fn a_list_is_drawn_by_weight() {
        let all = drawn("400:80,64k:15,1024k:5", 100_000);
        let share = |size: u64| all.iter().filter(|number| **number == size).count() as f64 / 1e5;
        for (size, expected) in [(400, 0.80), (65_536, 0.15), (1_048_576, 0.05)] {
            assert!((share(size) - expected).abs() < 0.005, "{size}: {}", share(size));
        }
        let within = drawn("10..19:1,20..29:3", 100_000);
        assert!((mean(&within) - (14.5 + 3.0 * 24.5) / 4.0).abs() < 0.1, "{}", mean(&within));
    }

    #[test]
    fn a_log_normal_number_has_its_median_its_spread_and_its_bounds() {
        let all = drawn("lognormal:4k,1.2", 100_000);
        // The parameter σ is 1.2. In a log-normal distribution, 84.1 % of the numbers are below exp(σ) times the
        // median, and 15.9 % below exp(−σ) times the median. The mean is exp(σ²/2) times the median.
        for (share, factor) in [(0.5, 1.0), (0.841_345, 1.2_f64.exp()), (0.158_655, (-1.2_f64).exp())] {
            let quantile = all[(share * 1e5) as usize] as f64 / 4_096.0;
            assert!((quantile / factor - 1.0).abs() < 0.03, "{share}: {quantile} for {factor}");
        }
        let expected = 4_096.0 * (1.2_f64 * 1.2 / 2.0).exp();
        assert!((mean(&all) / expected - 1.0).abs() < 0.02, "{} for {expected}", mean(&all));
        assert!((spread("lognormal:4k,1.2").mean() / expected - 1.0).abs() < 0.01);
        let wide = drawn("lognormal:4k,5", 10_000);
        assert_eq!((wide[0], wide[9_999]), (40, 409_600), "drawn in to a hundredth and a hundred times");
        assert_eq!(drawn("lognormal:4k,5,8k", 1_000)[999], 8_192);
    }

    #[test]
    fn the_normal_quantile_is_the_tables() {
        for (share, expected) in
            [(0.5, 0.0), (0.841_344_746, 1.0), (0.975, 1.959_963_985), (0.999, 3.090_232_306), (1e-6, -4.753_424_309)]
        {
            assert!((normal_quantile(share) - expected).abs() < 1e-7, "{share}: {}", normal_quantile(share));
        }
    }

    #[test]
    fn a_small_set_stands_for_the_whole() {
        let few: Vec<u64> = spread("400..64k").quantiles(64).collect();
        assert!((mean(&few) / 32_968.0 - 1.0).abs() < 0.001, "{}", mean(&few));
        assert!(few.is_sorted() && few[0] < 1_024 && few[63] > 64_000);
    }

    proptest! {
        #[test]
        fn a_draw_stays_within_its_bounds(least in 0_u64..1 << 40, more in 0_u64..1 << 40, weight in 1_u64..1_000) {
            for text in [format!("{least}..{}", least + more), format!("{least}..{}:{weight},5:3,{more}", least + more)] {
                assert!(Distribution::parse(&text, mailrun_text::quantities::bytes).is_ok(), "{text}");
                crate::checks::spread::check(text.as_bytes());
            }
        }
    }

    #[test]
    fn purposes_have_draws_of_their_own() {
        let draw = |purpose| SeededRng::new(1, purpose, 7).next_u64();
        assert_eq!(draw(RandomStream::Message), 0xcc48_a0e2_d1c7_7be6, "a seed goes on meaning what it meant");
        assert_ne!(draw(RandomStream::Message), draw(RandomStream::Recipients));
    }
}
