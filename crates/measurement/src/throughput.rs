//! The times at which messages reached a stage, and the rate that follows from them.
//!
//! ```text
//!  first arrival                        last due   95 % have arrived            the last one
//!  │                                    │          │                            │
//!  ├────────────── rate ───────────────────────────┤         a server that falls behind: its own rate
//!  ├────────────── rate ────────────────┤                    a server that keeps up: the rate of the load
//! ```
//! The rate is the number of messages that arrive in a period, divided by the length of the period. The period begins
//! with the first arrival, which does not count itself. It ends when 95 % of all messages have arrived, because a few
//! messages that are retried after a minute say nothing about the speed of a server. The period does not end before the
//! last message was due, because a load that becomes slower at its end would otherwise get the rate of its fast
//! beginning. `docs/decisions/0027-one-rate.md` compares this with other definitions.
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use std::io::{Read as _, Write as _};
use std::time::Duration;

/// A rate needs at least this many arrivals. With fewer arrivals, one or two messages would decide when the period of
/// the rate ends.
pub const MIN_ARRIVALS: u64 = 20;
/// The period over which a rate is computed ends when this share of the messages has arrived. The last messages are
/// left out, because they may have been retried after a minute.
const SHARE: f64 = 0.95;
/// Arrivals are counted by time steps, which are 2^20 ns (about 1 ms) long at first. When there are more than
/// `MAX_STEPS`, their length doubles.
const FIRST_SHIFT: u32 = 20;
/// [`Throughput::decode`] rejects steps of 2^48 ns (3 days) or more, and times after `MAX_NS` (36 years), because
/// computing with greater numbers could overflow.
const MAX_SHIFT: u32 = 48;
const MAX_NS: u64 = 1 << 60;
/// Maximum number of time steps in memory. When there are more, each pair of neighbours becomes one step. A long run
/// therefore keeps at least 2,048 steps, so the period of its rate is exact to about 1/2,000.
const MAX_STEPS: usize = 4096;
/// Maximum number of time steps that are written to a record. With more steps, their text would be the greater part of
/// the record. The text is read only to compute the joint rate of several records, as in `mailrun merge`. This rate is
/// exact to about 1/250. The rate in the record is more exact, because it is computed from up to [`MAX_STEPS`] steps.
const MAX_WRITTEN_STEPS: usize = 512;
/// Maximum length of a text that is decoded, so that a hostile record cannot take much memory. Texts of our own have at
/// most a tenth of this length.
const MAX_ENCODED_BYTES: usize = 1 << 17;
const MAX_INFLATED_BYTES: u64 = 1 << 17;

/// Counts messages by the time at which they reached a stage, in memory of limited size. Times are stored as integers,
/// in nanoseconds since the zero of the clock. Each message is compared with three of these times, and comparing
/// `Duration`s would cost more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throughput {
    steps: Steps,
    /// Time of the first arrival, or a value that is greater than any time if nothing has arrived.
    first_ns: u64,
    last_ns: u64,
    /// Latest due time (open loop) or creation time (closed loop) of an arrived message. The period over which a rate
    /// is computed does not end before this time.
    last_due_ns: u64,
}

impl Default for Throughput {
    fn default() -> Self {
        Self { steps: Steps::default(), first_ns: u64::MAX, last_ns: 0, last_due_ns: 0 }
    }
}

/// Counts events, such as arrivals, in time steps of equal length. Steps without events are left out. A step begins at
/// a multiple of its length, so that the steps of two workers can be added up.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Steps {
    /// A step is 2^`shift` nanoseconds long.
    shift: u32,
    /// Number of each step, counted from the zero of the clock, and how many events it has. Sorted by number.
    counts: Vec<(u64, u64)>,
}

impl Default for Steps {
    fn default() -> Self {
        Self { shift: FIRST_SHIFT, counts: Vec::new() }
    }
}

impl Steps {
    #[inline]
    fn add(&mut self, at_ns: u64) {
        let step = at_ns >> self.shift;
        match self.counts.last_mut() {
            Some((last, count)) if *last == step => *count += 1,
            Some((last, _)) if *last > step => self.merge(&Self { shift: self.shift, counts: vec![(step, 1)] }),
            _ => self.append(step),
        }
    }

    fn append(&mut self, step: u64) {
        self.counts.push((step, 1));
        self.limit(MAX_STEPS);
    }

    /// Adds the steps of `other`, for example the arrivals at a worker since its last tick. Does not touch the steps of
    /// `self` before the first step of `other`, so that merging does not become slower during a long run.
    fn merge(&mut self, other: &Self) {
        let Some((first, _)) = other.counts.first() else { return };
        while self.shift < other.shift {
            self.double();
        }
        let coarser = self.shift - other.shift;
        if self.counts.last().is_none_or(|(last, _)| *last <= first >> coarser) {
            other.counts.iter().for_each(|(step, count)| self.push((step >> coarser, *count)));
            return self.limit(MAX_STEPS);
        }
        let at = self.counts.partition_point(|(step, _)| *step < first >> coarser);
        let known = self.counts.split_off(at);
        let mut known = known.into_iter().peekable();
        for (step, count) in other.counts.iter().map(|(step, count)| (step >> coarser, *count)) {
            while let Some(earlier) = known.next_if(|(earlier, _)| *earlier <= step) {
                self.push(earlier);
            }
            self.push((step, count));
        }
        known.for_each(|later| self.push(later));
        self.limit(MAX_STEPS);
    }

    fn limit(&mut self, most: usize) {
        while self.counts.len() > most {
            self.double();
        }
    }

    /// Adds `count` events to a step, which must be the last step in `counts` or a later one.
    fn push(&mut self, (step, count): (u64, u64)) {
        match self.counts.last_mut() {
            Some((last, known)) if *last == step => *known = known.saturating_add(count),
            _ => self.counts.push((step, count)),
        }
    }

    fn double(&mut self) {
        self.shift += 1;
        let halves = std::mem::take(&mut self.counts);
        halves.into_iter().for_each(|(step, count)| self.push((step >> 1, count)));
    }

    /// Returns the beginning of each step in nanoseconds, with the number of its events.
    fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts.iter().map(|(step, count)| (step << self.shift, *count))
    }

    fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Returns the same counts with times converted by `to`, which must preserve the order of times.
    fn moved(&self, to: impl Fn(u64) -> u64) -> Self {
        // After the conversion, an old step may overlap two new steps. Count its events in the new step that contains
        // its middle, because the old step overlaps this step most.
        let middle = (1_u64 << self.shift) / 2;
        let mut moved = Self { shift: self.shift, counts: Vec::new() };
        self.iter().for_each(|(at_ns, count)| moved.push((to(at_ns + middle) >> self.shift, count)));
        moved
    }

    fn clear(&mut self) {
        self.counts.clear();
    }
}

impl Throughput {
    #[inline]
    pub fn record(&mut self, at: Duration, due: Duration) {
        let at_ns = ns(at);
        self.first_ns = self.first_ns.min(at_ns);
        self.last_ns = self.last_ns.max(at_ns);
        self.last_due_ns = self.last_due_ns.max(ns(due));
        self.steps.add(at_ns);
    }

    pub fn merge(&mut self, other: &Self) {
        self.first_ns = self.first_ns.min(other.first_ns);
        self.last_ns = self.last_ns.max(other.last_ns);
        self.last_due_ns = self.last_due_ns.max(other.last_due_ns);
        self.steps.merge(&other.steps);
    }

    pub fn clear(&mut self) {
        (self.first_ns, self.last_ns, self.last_due_ns) = (u64::MAX, 0, 0);
        self.steps.clear();
    }

    fn is_empty(&self) -> bool {
        self.first_ns == u64::MAX
    }

    pub fn last(&self) -> Option<Duration> {
        (!self.is_empty()).then(|| Duration::from_nanos(self.last_ns))
    }

    /// Returns the messages per second that reached the stage, or `None` if fewer than [`MIN_ARRIVALS`] messages did.
    pub fn per_s(&self) -> Option<f64> {
        let total = self.steps.total();
        if total < MIN_ARRIVALS {
            return None;
        }
        let most = (total as f64 * SHARE).ceil() as u64;
        let mut arrived = 0_u64;
        let mut end_ns = 0;
        for (begin_ns, count) in self.steps.iter() {
            if arrived >= most && begin_ns > self.last_due_ns {
                break;
            }
            arrived = arrived.saturating_add(count);
            end_ns = begin_ns.saturating_add(1 << self.steps.shift);
        }
        // If all messages are counted, measure until the last message. Otherwise, measure until the end of the last
        // counted step, because `arrived` includes all messages of this step.
        let end_ns = if arrived < total { end_ns } else { self.last_ns };
        let elapsed_s = end_ns.saturating_sub(self.first_ns) as f64 / 1e9;
        (elapsed_s > 0.0).then(|| (arrived - 1) as f64 / elapsed_s)
    }

    /// Encodes the times, counted from `origin`, as text: variable-length numbers, deflated, Base64. Returns `None` if
    /// nothing arrived.
    pub fn encoded(&self, origin: Duration) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        let mut steps = self.steps.moved(|at_ns| at_ns.saturating_sub(ns(origin)));
        steps.limit(MAX_WRITTEN_STEPS);
        let Steps { shift, counts } = steps;
        let ends = [self.first_ns, self.last_ns, self.last_due_ns].map(|at_ns| at_ns.saturating_sub(ns(origin)));
        let mut bytes = Vec::new();
        ends.into_iter().chain([u64::from(shift)]).for_each(|number| write_number(&mut bytes, number));
        let mut before = 0;
        for (step, count) in counts {
            [step - before, count].into_iter().for_each(|number| write_number(&mut bytes, number));
            before = step;
        }
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&bytes).ok()?;
        Some(STANDARD.encode(encoder.finish().ok()?))
    }

    /// Decodes a text that [`Self::encoded`] has made, or returns `None` for any other text. `origin` is the time on
    /// the caller's clock from which the times of the text count.
    pub fn decode(text: &str, origin: Duration) -> Option<Self> {
        let text = Some(text).filter(|text| text.len() <= MAX_ENCODED_BYTES)?;
        let deflated = STANDARD.decode(text).ok()?;
        let mut bytes = Vec::new();
        ZlibDecoder::new(deflated.as_slice()).take(MAX_INFLATED_BYTES).read_to_end(&mut bytes).ok()?;
        let mut rest = bytes.as_slice();
        let mut number = || read_number(&mut rest);
        let [first, last, last_due] = [number()?, number()?, number()?];
        let shift = u32::try_from(number()?).ok().filter(|shift| *shift < MAX_SHIFT)?;
        let mut steps = Steps { shift, counts: Vec::new() };
        let mut step = 0_u64;
        while let (Some(distance), Some(count), true) = (number(), number(), steps.counts.len() < MAX_STEPS) {
            // Reject a text with a time later than `MAX_NS`, because later computations could overflow 64 bits.
            step = step.checked_add(distance).filter(|step| *step <= MAX_NS >> shift)?;
            steps.push((step, count));
        }
        if [first, last, last_due].iter().any(|at| *at > MAX_NS) {
            return None;
        }
        let moved = |at_ns: u64| at_ns.saturating_add(ns(origin));
        let steps = steps.moved(moved);
        Some(Self { steps, first_ns: moved(first), last_ns: moved(last), last_due_ns: moved(last_due) })
    }
}

/// Returns a time in nanoseconds. 64 bits hold 584 years, so a time of a clock always fits.
pub(crate) fn ns(at: Duration) -> u64 {
    at.as_secs().wrapping_mul(1_000_000_000).wrapping_add(at.subsec_nanos().into())
}

/// Writes a number in groups of seven bits, the lowest group first. The highest bit is set in each byte except the
/// last.
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

    fn due(count: u32, per_s: f64) -> impl Iterator<Item = f64> {
        (0..count).map(move |number| f64::from(number) / per_s)
    }

    /// Simulates a server that delivers messages in order, at most `per_s` per second. Returns when each message was
    /// due and when the server delivers it.
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
        // From 10 s on, the load is slow, and the processor sleeps between messages. Each message then takes 1 ms
        // instead of 0.1 ms.
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
            prop_assert_eq!((sum.first_ns, sum.last_ns, sum.last_due_ns), (whole.first_ns, whole.last_ns, whole.last_due_ns));
            let is_near = |one: &Throughput, other: &Throughput| match (one.per_s(), other.per_s()) {
                (Some(one), Some(other)) => (one / other - 1.0).abs() < 0.06,
                (one, other) => one == other,
            };
            prop_assert!(is_near(&sum, &whole), "{:?} {:?}", sum.per_s(), whole.per_s());
            let read = Throughput::decode(&whole.encoded(origin).unwrap(), origin).unwrap();
            prop_assert_eq!((read.first_ns, read.last_ns, read.last_due_ns), (whole.first_ns, whole.last_ns, whole.last_due_ns));
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
