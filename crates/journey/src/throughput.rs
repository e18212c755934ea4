//! The times at which messages reached a stage, and the rate that follows from them.
//!
//! ```text
//!  first arrival                        last due   95 % have arrived            the last one
//!  │                                    │          │                            │
//!  ├────────────── rate ───────────────────────────┤         a server that falls behind: its own rate
//!  ├────────────── rate ────────────────┤                    a server that keeps up: the rate of the load
//! ```
//! The rate is the number of messages that arrived after the first, divided by the time that this
//! took. The time ends when 95 % have arrived, because a few messages that are tried again after a
//! minute say nothing about the speed of a server. It does not end before the last message was due,
//! because a load that becomes slower at its end would otherwise be read as its fast beginning.
//! `docs/decisions/0027-one-rate.md` compares this with other definitions.
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use std::io::{Read as _, Write as _};
use std::time::Duration;

/// Fewer arrivals have no rate: the end of the time would depend on one or two messages.
pub const MIN_ARRIVALS: u64 = 20;
/// Share of the arrivals after which the time ends.
const SHARE: f64 = 0.95;
/// Length of a step at first, as a power of two in nanoseconds (16 µs). Steps double when there are
/// too many of them.
const FIRST_SHIFT: u32 = 14;
/// Maximum number of steps. The rate is therefore exact to a 2,000th of the time.
const MAX_STEPS: usize = 4096;
/// Longest text that is read. Texts that we write have at most a tenth of this length.
const MAX_ENCODED_BYTES: usize = 1 << 17;
const MAX_INFLATED_BYTES: u64 = 1 << 17;

/// Counts messages by the time at which they reached a stage, in memory of fixed size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Throughput {
    steps: Steps,
    first: Option<Duration>,
    last: Option<Duration>,
    /// Time at which the last of the messages was due or, in a closed loop, created.
    last_due: Option<Duration>,
}

/// Number of events in each step of time. A step begins at a multiple of its length, so that the
/// steps of two workers can be added.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Steps {
    /// Length of a step as a power of two in nanoseconds.
    shift: u32,
    /// Number of the first step, counted from the zero of the clock.
    base: u64,
    counts: Vec<u64>,
}

impl Default for Steps {
    fn default() -> Self {
        Self { shift: FIRST_SHIFT, base: 0, counts: Vec::new() }
    }
}

impl Steps {
    #[inline]
    fn add(&mut self, at_ns: u64, count: u64) {
        let step = (at_ns >> self.shift).wrapping_sub(self.base);
        match self.counts.get_mut(usize::try_from(step).unwrap_or(usize::MAX)) {
            Some(known) => *known = known.saturating_add(count),
            None => self.add_outside(at_ns, count),
        }
    }

    /// Adds events before the first step or after the last.
    #[cold]
    fn add_outside(&mut self, at_ns: u64, count: u64) {
        if self.counts.is_empty() {
            self.base = at_ns >> self.shift;
        }
        loop {
            let step = at_ns >> self.shift;
            let begin = self.base.min(step);
            let end = (self.base + self.counts.len() as u64).max(step + 1);
            if end - begin <= MAX_STEPS as u64 {
                let missing = (self.base - begin) as usize;
                self.counts.splice(0..0, std::iter::repeat_n(0, missing));
                self.base = begin;
                self.counts.resize((end - begin) as usize, 0);
                let known = &mut self.counts[(step - begin) as usize];
                *known = known.saturating_add(count);
                return;
            }
            self.double();
        }
    }

    /// Doubles the length of the steps.
    fn double(&mut self) {
        let base = self.base >> 1;
        let mut counts = vec![0_u64; self.counts.len() / 2 + 1];
        for (step, count) in (self.base..).zip(&self.counts) {
            let known = &mut counts[((step >> 1) - base) as usize];
            *known = known.saturating_add(*count);
        }
        while counts.last() == Some(&0) {
            counts.pop();
        }
        *self = Self { shift: self.shift + 1, base, counts };
    }

    fn merge(&mut self, other: &Self) {
        while self.shift < other.shift && !other.counts.is_empty() {
            self.double();
        }
        for (at_ns, count) in other.iter().filter(|(_, count)| *count > 0) {
            self.add(at_ns, count);
        }
    }

    /// Returns the beginning of each step in nanoseconds, with the number of its events.
    fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (self.base..).zip(&self.counts).map(|(step, count)| (step << self.shift, *count))
    }

    fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Removes all events, and keeps the memory and the length of a step.
    fn clear(&mut self) {
        self.counts.clear();
    }
}

impl Throughput {
    /// Counts a message that reached the stage.
    #[inline]
    pub fn record(&mut self, at: Duration, due: Duration) {
        self.due(due);
        self.first = Some(self.first.map_or(at, |first| first.min(at)));
        self.last = self.last.max(Some(at));
        self.steps.add(ns(at), 1);
    }

    /// Notes when a message was due. Only messages that never reach the stage need this call.
    #[inline]
    pub fn due(&mut self, due: Duration) {
        self.last_due = self.last_due.max(Some(due));
    }

    pub fn merge(&mut self, other: &Self) {
        self.first = self.first.into_iter().chain(other.first).min();
        self.last = self.last.max(other.last);
        self.last_due = self.last_due.max(other.last_due);
        self.steps.merge(&other.steps);
    }

    pub fn clear(&mut self) {
        (self.first, self.last, self.last_due) = (None, None, None);
        self.steps.clear();
    }

    pub fn last(&self) -> Option<Duration> {
        self.last
    }

    /// Returns the messages per second that reached the stage, or `None` if they were too few.
    pub fn per_s(&self) -> Option<f64> {
        let total = self.steps.total();
        let (first, last) = self.first.zip(self.last).filter(|_| total >= MIN_ARRIVALS)?;
        let most = (total as f64 * SHARE).ceil() as u64;
        let last_due = ns(self.last_due.unwrap_or_default());
        let mut arrived = 0_u64;
        let mut end_ns = 0;
        for (begin_ns, count) in self.steps.iter() {
            if arrived >= most && begin_ns > last_due {
                break;
            }
            arrived = arrived.saturating_add(count);
            end_ns = begin_ns.saturating_add(1 << self.steps.shift);
        }
        // All messages of the last step count, so the time ends with it, unless no message came so late.
        let end_ns = if arrived < total { end_ns } else { ns(last) };
        let elapsed_s = end_ns.saturating_sub(ns(first)) as f64 / 1e9;
        (elapsed_s > 0.0).then(|| (arrived - 1) as f64 / elapsed_s)
    }

    /// Encodes the times as a text, counted from `origin`: variable-length numbers, deflated, Base64.
    /// Returns `None` if nothing arrived.
    pub fn encoded(&self, origin: Duration) -> Option<String> {
        let relative = |at: Option<Duration>| ns(at.unwrap_or_default().saturating_sub(origin));
        let moved = self.moved(|at_ns| at_ns.saturating_sub(ns(origin)));
        let Steps { shift, base, counts } = &moved.steps;
        let ends = [Some(self.first?), self.last, self.last_due].map(relative);
        let mut bytes = Vec::new();
        let numbers = ends.into_iter().chain([u64::from(*shift), *base]).chain(counts.iter().copied());
        numbers.for_each(|number| write_number(&mut bytes, number));
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&bytes).ok()?;
        Some(STANDARD.encode(encoder.finish().ok()?))
    }

    /// Decodes the output of [`Self::encoded`]; `origin` is the time on the caller's clock that the
    /// times count from. Returns `None` for anything else.
    pub fn decode(text: &str, origin: Duration) -> Option<Self> {
        let text = Some(text).filter(|text| text.len() <= MAX_ENCODED_BYTES)?;
        let deflated = STANDARD.decode(text).ok()?;
        let mut bytes = Vec::new();
        ZlibDecoder::new(deflated.as_slice()).take(MAX_INFLATED_BYTES).read_to_end(&mut bytes).ok()?;
        let mut rest = bytes.as_slice();
        let mut number = || read_number(&mut rest);
        let [first, last, last_due] = [number()?, number()?, number()?];
        let (shift, base) = (u32::try_from(number()?).ok().filter(|shift| *shift < 48)?, number()?);
        let counts: Vec<u64> = std::iter::from_fn(number).take(MAX_STEPS).collect();
        // A time of centuries is none, and must not overflow when it is moved.
        let is_sound = base.checked_shl(shift).is_some_and(|begin| begin >> shift == base && begin < 1 << 60);
        if !is_sound || [first, last, last_due].iter().any(|at| *at >= 1 << 60) {
            return None;
        }
        let at = |at: u64| Some(origin + Duration::from_nanos(at));
        let read =
            Self { steps: Steps { shift, base, counts }, first: at(first), last: at(last), last_due: at(last_due) };
        Some(Self { steps: read.moved(|at_ns| at_ns.saturating_add(ns(origin))).steps, ..read })
    }

    /// Returns the same counts with the steps at other times. Ends stay as they are.
    fn moved(&self, to: impl Fn(u64) -> u64) -> Self {
        let mut steps = Steps { shift: self.steps.shift, ..Steps::default() };
        // The beginning of a step may fall into the end of another one, its middle does not.
        let middle = (1_u64 << self.steps.shift) / 2;
        self.steps
            .iter()
            .filter(|(_, count)| *count > 0)
            .for_each(|(at_ns, count)| steps.add(to(at_ns + middle), count));
        Self { steps, ..self.clone() }
    }
}

fn ns(at: Duration) -> u64 {
    at.as_secs().saturating_mul(1_000_000_000).saturating_add(at.subsec_nanos().into())
}

/// Writes a number in groups of seven bits, the lowest first. All but the last have the highest bit
/// set.
fn write_number(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn read_number(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// Counts messages by the times, in seconds, at which they were due and at which they arrived.
    fn throughput(messages: impl IntoIterator<Item = (f64, f64)>) -> Throughput {
        let mut throughput = Throughput::default();
        messages.into_iter().for_each(|(due, at)| throughput.record(s(1_000.0 + at), s(1_000.0 + due)));
        throughput
    }

    /// Times at which `count` messages are due at a constant rate, from 0 s on.
    fn due(count: u32, per_s: f64) -> impl Iterator<Item = f64> {
        (0..count).map(move |number| f64::from(number) / per_s)
    }

    /// Adds the time at which a server that takes `per_s` delivers each message, in order.
    fn queued(due: impl Iterator<Item = f64>, per_s: f64) -> impl Iterator<Item = (f64, f64)> {
        due.scan(0.0_f64, move |free, due| {
            *free = free.max(due) + 1.0 / per_s;
            Some((due, *free))
        })
    }

    #[test]
    fn the_rate_is_that_of_the_load_or_of_the_server_that_is_slower() {
        let after = |latency: f64| move |due: f64| (due, due + latency);
        let late = |count: usize, of: u32, by: f64| {
            due(of, 50.0).enumerate().map(move |(number, due)| (due, due + if number % count == 7 { by } else { 0.02 }))
        };
        let warm = queued(due(500, 50.0), 18.0).skip(250);
        let slower: Vec<f64> = due(10_000, 1_000.0).chain((0..100).map(|second| 10.0 + f64::from(second))).collect();
        // A processor that sleeps between messages makes the slow part of a load slower than the fast one.
        let slept = slower.clone().into_iter().map(|due| (due, due + if due < 10.0 { 0.000_1 } else { 0.001 }));
        let released = due(500, 50.0).enumerate().map(|(number, due)| (due, 20.0 + number as f64 / 5_000.0));
        for (situation, rate, throughput) in [
            ("a server that keeps up", 50.0, throughput(due(500, 50.0).map(after(0.02)))),
            ("a server that delivers 18/s", 18.0, throughput(queued(due(500, 50.0), 18.0))),
            ("one message is tried again after 30 s", 50.0, throughput(late(500, 500, 30.0))),
            ("100 messages at once, delivered evenly", 10.6, throughput(queued(due(100, 667.0), 100.0 / 9.4))),
            ("a constant latency of 1 s", 50.0, throughput(due(500, 50.0).map(after(1.0)))),
            ("18/s with a warm-up of 5 s before 5 s", 18.0, throughput(warm)),
            ("a load that becomes slow", 92.0, throughput(slower.into_iter().map(after(0.001)))),
            ("a load that becomes slow, and latencies with it", 92.0, throughput(slept)),
            ("2 % are greylisted for a minute", 49.0, throughput(late(50, 500, 60.0))),
            ("a queue that is released at once", 5_000.0, throughput(released)),
        ] {
            let found = throughput.per_s().unwrap();
            assert!((found / rate - 1.0).abs() < 0.02, "{situation}: {found}/s, not {rate}/s");
        }
        assert_eq!(throughput(due(19, 50.0).map(after(0.0))).per_s(), None, "too few");
        assert_eq!(throughput([(0.0, 1.0); 50]).per_s(), None, "no time passed");
    }

    #[test]
    fn short_runs_and_long_ones_have_their_rate() {
        for (count, per_s) in [(40, 100_000.0), (1_000, 20_000.0), (50_000, 0.1), (200_000, 40_000.0)] {
            let found = throughput(due(count, per_s).map(|due| (due, due))).per_s().unwrap();
            assert!((found / per_s - 1.0).abs() < 0.02, "{count} at {per_s}: {found}");
        }
    }

    proptest! {
        #[test]
        fn workers_and_texts_keep_all_arrivals(
            times in proptest::collection::vec((0_u64..5_000_000, 0_u64..90_000_000), 1..300),
            origin in 0_u64..2_000_000_000,
        ) {
            let origin = Duration::from_nanos(origin);
            let mut whole = Throughput::default();
            let mut workers = [Throughput::default(), Throughput::default(), Throughput::default()];
            for (number, (due, took)) in times.iter().enumerate() {
                let due = origin + Duration::from_micros(*due);
                let at = due + Duration::from_micros(*took);
                whole.record(at, due);
                workers[number % 3].record(at, due);
            }
            let mut sum = Throughput::default();
            workers.iter().for_each(|worker| sum.merge(worker));
            prop_assert_eq!(sum.steps.total(), times.len() as u64);
            prop_assert_eq!((sum.first, sum.last, sum.last_due), (whole.first, whole.last, whole.last_due));
            let is_near = |one: &Throughput, other: &Throughput| match (one.per_s(), other.per_s()) {
                (Some(one), Some(other)) => (one / other - 1.0).abs() < 0.06,
                (one, other) => one == other,
            };
            prop_assert!(is_near(&sum, &whole), "{:?} {:?}", sum.per_s(), whole.per_s());
            let read = Throughput::decode(&whole.encoded(origin).unwrap(), origin).unwrap();
            prop_assert_eq!((read.first, read.last, read.last_due), (whole.first, whole.last, whole.last_due));
            prop_assert_eq!(read.steps.total(), times.len() as u64);
            prop_assert!(is_near(&read, &whole), "{:?} {:?}", read.per_s(), whole.per_s());
        }

        #[test]
        fn any_text_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&bytes).unwrap();
            let text = STANDARD.encode(encoder.finish().unwrap());
            for origin in [Duration::ZERO, Duration::from_secs(1 << 33)] {
                if let Some(mut read) = Throughput::decode(&text, origin) {
                    let _ = read.per_s();
                    read.merge(&read.clone());
                    let _ = read.encoded(origin);
                }
            }
        }
    }
}
