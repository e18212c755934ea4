//! Distributions of measured times, and a log file that has the distribution of each interval. Each distribution is an
//! HdrHistogram of nanoseconds from 1 µs to 1 h with three digits.
//!
//! Each worker records into its own distribution. At regular intervals, the collector adds this distribution to the sum
//! of all workers, and then the worker empties it. A distribution takes two words of memory until the first time is
//! recorded. Then its size depends on its largest value: 16 KB at 1 ms, 96 KB at 1 s.
use crate::record::LatencyMs;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, IntervalLogWriterError, Tag};
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use std::io::{self, Read as _, Write};
use std::time::{Duration, SystemTime};

/// Shortest time that the histogram distinguishes, 1 µs. Shorter times read as 0 or as 1 µs.
const LOWEST_NS: u64 = 1_000;
/// Longest time that the histogram distinguishes, 1 h.
pub(crate) const HIGHEST_NS: u64 = 3_600_000_000_000;
/// Value that is recorded for every time of more than 1 h. It is 1 % above 1 h, because the histogram would otherwise
/// put it into the same bucket as 1 h and count it as within 1 h.
const LONGER_NS: u64 = HIGHEST_NS + HIGHEST_NS / 100;
const NS_PER_MS: f64 = 1e6;
/// Maximum length of a text that is decoded, so that a hostile text cannot use up memory. Our own texts have at most a
/// tenth of this length.
const MAX_ENCODED_BYTES: usize = 1 << 20;
/// Maximum length of a decompressed histogram. A histogram with three digits that covers all 64-bit values has at most
/// half of this length.
const MAX_INFLATED_BYTES: u64 = 1 << 20;
/// Number of bytes in the header of a compressed histogram. The header consists of a cookie and the number of
/// compressed bytes.
const DEFLATED_HEADER_BYTES: usize = 8;
/// First bytes of a histogram in the format V2. Decoders choose the format by these bytes.
const COOKIE: [u8; 4] = [0x1c, 0x84, 0x93, 0x13];
/// Length of the header of a decompressed histogram in bytes. The header contains the number of bytes that follow it.
const HEADER_BYTES: usize = 40;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Precision {
    #[default]
    Three,
    Two,
}

impl Precision {
    fn number(self) -> u8 {
        match self {
            Self::Three => 3,
            Self::Two => 2,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latencies {
    histogram: Option<Box<Histogram<u64>>>,
    digits: Precision,
}

impl Latencies {
    /// Creates a distribution with two significant digits instead of three, which takes an eighth of the memory. Use it
    /// for durations that are recorded several times per message, because larger histograms would push a server's own
    /// data out of the processor's caches.
    pub fn coarse() -> Self {
        Self { histogram: None, digits: Precision::Two }
    }

    pub fn record(&mut self, time: Duration) {
        self.record_ns(time.as_secs().saturating_mul(1_000_000_000).saturating_add(time.subsec_nanos().into()));
    }

    pub(crate) fn record_ns(&mut self, nanoseconds: u64) {
        let nanoseconds = if nanoseconds > HIGHEST_NS { LONGER_NS } else { nanoseconds };
        self.histogram_mut().record(nanoseconds).expect("it resizes itself and an hour fits");
    }

    pub fn merge(&mut self, other: &Self) {
        if let Some(other) = other.recorded() {
            self.histogram_mut().add(other).expect("it resizes itself and both end at an hour");
        }
    }

    pub fn clear(&mut self) {
        if let Some(histogram) = self.histogram.as_mut().filter(|histogram| !histogram.is_empty()) {
            histogram.reset();
        }
    }

    pub fn count(&self) -> u64 {
        self.recorded().map_or(0, |histogram| histogram.len())
    }

    /// Returns the number of recorded times from `from` (inclusive) to `to` (exclusive), with the precision of the
    /// histogram. Times of more than 1 h are not counted, because their length is unknown.
    pub fn count_between(&self, from: Duration, to: Duration) -> u64 {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(HIGHEST_NS).min(HIGHEST_NS);
        let from = ns(from);
        let to = ns(to).saturating_sub(1);
        // A range beyond the longest recorded time contains no times. Without this filter, hdrhistogram would return
        // the count of the bucket with the longest time.
        let reached = self.recorded().filter(|histogram| histogram.max() >= from && to >= from);
        reached.map_or(0, |histogram| histogram.count_between(from, to))
    }

    /// Returns the minimum, mean, quantiles and maximum in milliseconds, or `None` if no time was recorded.
    pub fn summary(&self) -> Option<LatencyMs> {
        let histogram = self.recorded()?;
        Some(LatencyMs {
            min: in_ms(histogram.min()),
            mean: histogram.mean() / NS_PER_MS,
            p50: self.quantile_ms(0.5),
            p90: self.quantile_ms(0.9),
            p95: self.quantile_ms(0.95),
            p99: self.quantile_ms(0.99),
            p999: self.quantile_ms(0.999),
            max: in_ms(histogram.max()),
        })
    }

    /// Returns a percentile in milliseconds, for example the 99th percentile for a `quantile` of 0.99. Returns 0 if no
    /// time was recorded.
    pub fn quantile_ms(&self, quantile: f64) -> f64 {
        self.recorded().map_or(0.0, |histogram| in_ms(histogram.value_at_quantile(quantile)))
    }

    /// Returns the standard deviation in milliseconds, or 0 if no time was recorded.
    pub fn stddev_ms(&self) -> f64 {
        self.recorded().map_or(0.0, |histogram| histogram.stdev() / NS_PER_MS)
    }

    /// Returns the recorded times in nanoseconds with their counts, in ascending order. Each time is the upper end of
    /// its bucket in the histogram.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let recorded = self.recorded().into_iter().flat_map(|histogram| histogram.iter_recorded());
        recorded.map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()))
    }

    /// Encodes the distribution as text, as in an [`IntervalLog`] (HdrHistogram V2, deflated, Base64). Returns `None`
    /// if the distribution is empty.
    pub fn encoded(&self) -> Option<String> {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(self.recorded()?, &mut bytes).ok()?;
        Some(STANDARD.encode(bytes))
    }

    /// Decodes a text that [`Self::encoded`] has made, or returns `None` for any other text.
    pub fn decode(text: &str) -> Option<Self> {
        let text = Some(text).filter(|text| text.len() <= MAX_ENCODED_BYTES)?;
        let bytes = inflated(&STANDARD.decode(text).ok()?)?;
        let mut histogram: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).ok()?;
        let digits =
            [Precision::Two, Precision::Three].into_iter().find(|digits| digits.number() == histogram.sigfig())?;
        // Let the histogram extend its range, because the caller may add times that are longer than all decoded times.
        histogram.auto(true);
        Some(Self { histogram: Some(Box::new(histogram)), digits })
    }

    /// Returns the number of recorded times that are at most `limit`, with the precision of the histogram.
    pub fn count_within(&self, limit: Duration) -> u64 {
        self.count_between(Duration::ZERO, limit.saturating_add(Duration::from_nanos(1)))
    }

    fn recorded(&self) -> Option<&Histogram<u64>> {
        self.histogram.as_deref().filter(|histogram| !histogram.is_empty())
    }

    fn histogram_mut(&mut self) -> &mut Histogram<u64> {
        let digits = self.digits;
        self.histogram.get_or_insert_with(|| Box::new(empty_histogram(digits)))
    }
}

fn empty_histogram(digits: Precision) -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(LOWEST_NS, 2 * LOWEST_NS, digits.number())
        .expect("the bounds are constants that fit");
    histogram.auto(true);
    histogram
}

fn in_ms(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / NS_PER_MS
}

/// HdrHistogram interval log (`.hlog`), which every HdrHistogram tool can read. It has a line for each interval and
/// tag. A tag names what was timed, such as `accepted`. All values are nanoseconds.
pub struct IntervalLog<W: Write> {
    to: W,
    serializer: V2DeflateSerializer,
}

impl<W: Write> IntervalLog<W> {
    /// Writes the header of the log. The times of its intervals count from `started`.
    pub fn begin(mut to: W, started: SystemTime) -> io::Result<Self> {
        let mut serializer = V2DeflateSerializer::new();
        IntervalLogWriterBuilder::new()
            .add_comment("[Histogram log format version 1.3]")
            .add_comment("mailrun: all values are nanoseconds")
            .with_start_time(started)
            .with_base_time(started)
            .begin_log_with(&mut to, &mut serializer)?;
        to.write_all(b"\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n")?;
        Ok(Self { to, serializer })
    }

    /// Writes the times of one interval. `from` is the time from the start of the log to the beginning of the interval.
    /// Commas, blanks and line ends in `tag` become `_`, because the format does not allow them in a tag.
    pub fn write(&mut self, tag: &str, from: Duration, length: Duration, times: &Latencies) -> io::Result<()> {
        let tag = tag.replace([',', ' ', '\r', '\n'], "_");
        let nothing;
        let histogram = match times.histogram.as_deref() {
            Some(histogram) => histogram,
            None => {
                nothing = empty_histogram(times.digits);
                &nothing
            }
        };
        // Create a new writer for each line, because a writer borrows `self.to` and so cannot be stored in `self`.
        IntervalLogWriterBuilder::new()
            .begin_log_with(&mut self.to, &mut self.serializer)?
            .write_histogram(histogram, from, length, Tag::new(&tag))
            .map_err(|error| match error {
                IntervalLogWriterError::IoError(error) => error,
                IntervalLogWriterError::SerializeError(error) => io::Error::other(error.to_string()),
            })
    }

    /// Flushes the output and returns the writer to which the log was written.
    pub fn finish(mut self) -> io::Result<W> {
        self.to.flush()?;
        Ok(self.to)
    }
}

/// Inflates a histogram in the format V2. Returns `None` if it is too long, or if its header announces more bytes than
/// follow, because hdrhistogram's decoder would allocate memory for all announced bytes.
fn inflated(deflated: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let stream = deflated.get(DEFLATED_HEADER_BYTES..)?;
    ZlibDecoder::new(stream).take(MAX_INFLATED_BYTES).read_to_end(&mut bytes).ok()?;
    let announced = u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?);
    (bytes.starts_with(&COOKIE) && announced as usize + HEADER_BYTES <= bytes.len()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(times: impl IntoIterator<Item = Duration>) -> Latencies {
        let mut latencies = Latencies::default();
        times.into_iter().for_each(|time| latencies.record(time));
        latencies
    }

    fn close(value: f64, expected: f64) {
        assert!((value - expected).abs() <= expected * 0.001 + 0.001, "{value} is not about {expected}");
    }

    #[test]
    fn the_figures_are_those_of_what_was_recorded() {
        let summary = of((1..=1000).map(Duration::from_millis)).summary().unwrap();
        close(summary.min, 1.0);
        close(summary.mean, 500.5);
        close(summary.p50, 500.0);
        close(summary.p90, 900.0);
        close(summary.p95, 950.0);
        close(summary.p99, 990.0);
        close(summary.p999, 999.0);
        close(summary.max, 1000.0);
    }

    #[test]
    fn nothing_recorded_has_no_figures() {
        let mut latencies = of([Duration::from_secs(1)]);
        latencies.clear();
        for nothing in [Latencies::default(), latencies] {
            assert_eq!((nothing.summary(), nothing.count(), nothing.quantile_ms(0.99)), (None, 0, 0.0));
        }
    }

    #[test]
    fn what_lies_between_is_counted() {
        let latencies = of([1, 5, 39, 40, 44, 45, 900].map(Duration::from_millis));
        let between = |from, to| latencies.count_between(Duration::from_millis(from), Duration::from_millis(to));
        // The histogram keeps only three digits, so a time at the limit of a range might count on either side. None of
        // these ranges therefore begins or ends at a recorded time.
        assert_eq!([between(0, 10), between(38, 42), between(42, 48), between(48, 800)], [2, 2, 2, 0]);
        assert_eq!([between(901, 5000), between(10_000_000, 20_000_000), between(5, 5)], [0; 3]);
        assert_eq!(between(0, u64::MAX), 7);
        assert_eq!(Latencies::default().count_between(Duration::ZERO, Duration::MAX), 0);
    }

    #[test]
    fn what_was_encoded_is_read_as_it_was() {
        let times = of((1..=1000).map(Duration::from_millis));
        let again = Latencies::decode(&times.encoded().unwrap()).unwrap();
        assert_eq!(again.summary(), times.summary());
        assert_eq!(Latencies::default().encoded(), None);
        for nonsense in ["", "AAAA", "not base64", "HISTFAAAAAB42pNpmSzMwMDAxAABzFCaEUoz2X+AMAA="] {
            let _ = Latencies::decode(nonsense);
        }
        assert_eq!(Latencies::decode(&"A".repeat(MAX_ENCODED_BYTES + 4)), None);
    }

    #[test]
    fn buckets_have_every_time_once() {
        let times = of([10, 20, 20, 30].map(Duration::from_millis));
        let buckets: Vec<_> = times.buckets().collect();
        assert_eq!(buckets.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 2, 1]);
        buckets.iter().zip([10.0, 20.0, 30.0]).for_each(|((ns, _), ms)| close(*ns as f64 / NS_PER_MS, ms));
        assert_eq!(Latencies::default().buckets().count(), 0);
    }

    #[test]
    fn within_includes_its_limit() {
        let times = of([10, 20, 30].map(Duration::from_millis));
        let within = |ms| times.count_within(Duration::from_millis(ms));
        assert_eq!([within(9), within(10), within(20), within(29), within(40), within(u64::MAX)], [0, 1, 2, 2, 3, 3]);
        const HOUR: Duration = Duration::from_nanos(HIGHEST_NS);
        for mut times in [Latencies::default(), Latencies::coarse()] {
            [HOUR, HOUR + Duration::from_nanos(1), HOUR * 2].into_iter().for_each(|time| times.record(time));
            assert_eq!((times.count_within(HOUR), times.count_within(HOUR * 3)), (1, 1));
        }
    }

    #[test]
    fn times_of_more_than_an_hour_count_as_a_little_more() {
        let latencies = of([Duration::MAX, Duration::from_secs(7200)]);
        close(latencies.summary().unwrap().max, 3_636_000.0);
        assert_eq!(latencies.count(), 2);
    }

    #[test]
    fn merging_is_recording_both() {
        let short = of([Duration::from_micros(3)]);
        let long = of([Duration::from_secs(30)]);
        let mut merged = Latencies::default();
        merged.merge(&short);
        merged.merge(&long);
        merged.merge(&Latencies::default());
        let both = of([Duration::from_micros(3), Duration::from_secs(30)]);
        assert_eq!(merged.summary(), both.summary());
    }

    #[test]
    fn one_that_was_never_used_is_two_words() {
        assert_eq!(size_of::<Latencies>(), 2 * size_of::<usize>());
    }

    #[test]
    fn a_histogram_that_announces_more_than_it_has_is_not_read() {
        let text = |announced: u32, rest: usize| {
            let mut deflated = vec![0; DEFLATED_HEADER_BYTES];
            let mut writer = flate2::write::ZlibEncoder::new(&mut deflated, flate2::Compression::best());
            writer.write_all(&[&COOKIE[..], &announced.to_be_bytes(), &vec![0; rest]].concat()).unwrap();
            writer.finish().unwrap();
            deflated
        };
        let rest = HEADER_BYTES - 8;
        assert!(inflated(&text(100, rest + 100)).is_some());
        for (announced, rest) in [(101, rest + 100), (u32::MAX, rest), (4 << 20, rest + (4 << 20))] {
            assert_eq!(inflated(&text(announced, rest)), None, "{announced}");
        }
        let mut times = Latencies::default();
        times.record(Duration::from_millis(3));
        assert_eq!(Latencies::decode(&times.encoded().unwrap()), Some(times));
    }
}
