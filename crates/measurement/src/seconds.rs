//! Counts events by the second of the run in which they happened, according to their own timestamps.
//!
//! A worker counts each event in the second that contains its time, and hands the seconds over with its tally.
//! [`crate::Series`] adds up the seconds of all workers.
use crate::latencies::Latencies;
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Number of equal parts into which a second is divided to measure freshness. For each part, a worker keeps only the
/// time of the first arrival, and the creation time of the newest message that arrived. Freshness is computed from
/// these times, so it is exact only to the length of a part.
pub(crate) const PARTS: usize = 10;
/// Maximum number of time steps that [`EventTimes`] keeps. When there are more, the length of a step doubles.
const MAX_TIMES: usize = 36_000;

/// Returns the beginning of the second of the run that contains `at`. Seconds of a run do not begin at whole seconds of
/// the clock, so the caller must pass the beginning of any second of the run as `zero`.
pub fn second_of(at: Duration, zero: Duration) -> Duration {
    const NS_PER_S: u32 = 1_000_000_000;
    let part_ns = (at.subsec_nanos() + NS_PER_S - zero.subsec_nanos()) % NS_PER_S;
    at.saturating_sub(Duration::from_nanos(part_ns.into()))
}

#[derive(Clone, Debug, Default)]
pub struct SecondTally {
    pub begin: Duration,
    pub sent: u64,
    pub accepted: u64,
    pub delivered: u64,
    pub errors: u64,
    /// Latencies until messages reached the last stage that the process observes: accepted at a source, delivered at a
    /// sink.
    pub latencies: Latencies,
    /// Arrivals in each tenth of the second, from which the age of the newest message is computed.
    pub(crate) arrivals: [Option<Arrivals>; PARTS],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrivals {
    pub(crate) first: Duration,
    /// Time at which the newest of the arrived messages was created (closed loop) or due (open loop).
    pub(crate) newest: Duration,
}

impl Arrivals {
    pub(crate) fn merge(&mut self, other: Self) {
        self.first = self.first.min(other.first);
        self.newest = self.newest.max(other.newest);
    }
}

impl SecondTally {
    pub fn new(begin: Duration) -> Self {
        Self { begin, ..Self::default() }
    }

    /// Records that a message arrived at `at`, which must be in this second. `created` is the time at which the message
    /// was created (closed loop) or due (open loop).
    #[inline]
    pub fn arrive(&mut self, at: Duration, created: Duration) {
        let part = at.saturating_sub(self.begin).subsec_millis() as usize * PARTS / 1_000;
        let one = Arrivals { first: at, newest: created };
        match &mut self.arrivals[part] {
            Some(known) => known.merge(one),
            none => *none = Some(one),
        }
    }

    fn clear(&mut self) {
        let mut latencies = std::mem::take(self).latencies;
        latencies.clear();
        self.latencies = latencies;
    }
}

/// Counts of a worker thread since it last handed over its counts, separately for each second. Usually, there are only
/// one or two seconds, because a worker hands over its counts about four times a second.
#[derive(Clone, Debug, Default)]
pub struct Seconds {
    /// Each of the first `used` tallies counts the events of one second. The others are empty, and are kept only so
    /// that their memory can be reused.
    tallies: Vec<SecondTally>,
    used: usize,
}

impl Seconds {
    /// Returns the counts of the second that contains `at`. `zero` is the start of the run, or of any of its seconds.
    #[inline]
    pub fn at(&mut self, at: Duration, zero: Duration) -> &mut SecondTally {
        let index = self.index(at, zero);
        &mut self.tallies[index]
    }

    /// Returns the index of the second that contains `at`. The index is valid until the seconds are cleared.
    #[inline]
    pub(crate) fn index(&mut self, at: Duration, zero: Duration) -> usize {
        let contains = |tally: &SecondTally| at.checked_sub(tally.begin).is_some_and(|since| since < SECOND);
        match self.tallies[..self.used].iter().rposition(contains) {
            Some(index) => index,
            None => self.open(second_of(at, zero)),
        }
    }

    #[cold]
    fn open(&mut self, begin: Duration) -> usize {
        if self.used == self.tallies.len() {
            self.tallies.push(SecondTally::default());
        }
        self.tallies[self.used].begin = begin;
        self.used += 1;
        self.used - 1
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut SecondTally> {
        self.tallies[..self.used].get_mut(index)
    }

    pub fn iter(&self) -> impl Iterator<Item = &SecondTally> {
        self.tallies[..self.used].iter()
    }

    /// Removes all seconds. Keeps the memory of two seconds, because a worker rarely counts more before it clears them.
    pub fn clear(&mut self) {
        self.tallies.truncate(2);
        self.tallies.iter_mut().for_each(SecondTally::clear);
        self.used = 0;
    }
}

/// Number of messages that were due in each second of the run. Messages become due in order, so nearly all of them
/// count in the last entry of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueSeconds(Vec<(Duration, u64)>);

impl DueSeconds {
    /// Counts a message that was due at `due`. `zero` is the start of the run, or of any of its seconds.
    #[inline]
    pub fn add(&mut self, due: Duration, zero: Duration) {
        match self.0.last_mut() {
            Some((begin, count)) if due.checked_sub(*begin).is_some_and(|since| since < SECOND) => *count += 1,
            _ => self.0.push((second_of(due, zero), 1)),
        }
    }

    pub fn drain(&mut self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.0.drain(..)
    }

    /// Returns the beginning of each second and the number of messages that were due in it. If messages were not
    /// counted in order, a second may occur more than once.
    pub fn iter(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.0.iter().copied()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Times of events that belong to no particular run, such as a sink's errors. Events are counted by time steps, which
/// are 1/128 s long at first. When there would be more than `MAX_TIMES` steps, all steps become twice as long.
#[derive(Clone, Debug, Default)]
pub struct EventTimes {
    halvings: u32,
    counts: BTreeMap<u64, u64>,
}

impl EventTimes {
    const STEP_NS: u64 = crate::trace::ZeroPhase::STEP.as_nanos() as u64;

    pub fn add(&mut self, at: Duration) {
        self.add_steps((at.as_nanos() / u128::from(Self::STEP_NS)) as u64, 1);
    }

    pub fn merge(&mut self, other: &Self) {
        other.counts.iter().for_each(|(step, count)| self.add_steps(*step, *count));
    }

    /// Returns the beginning of each time step in which events happened, with the number of these events.
    pub fn iter(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.counts.iter().map(|(step, count)| (Duration::from_nanos(step.saturating_mul(Self::STEP_NS)), *count))
    }

    fn add_steps(&mut self, step: u64, count: u64) {
        *self.counts.entry(step >> self.halvings << self.halvings).or_default() += count;
        if self.counts.len() > MAX_TIMES {
            self.halvings += 1;
            for (step, count) in std::mem::take(&mut self.counts) {
                self.add_steps(step, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn an_event_belongs_to_the_second_of_the_run_that_contains_it() {
        let mut seconds = Seconds::default();
        for at in [10_300, 11_299, 11_300, 10_999, 12_299] {
            seconds.at(ms(at), ms(3_300)).sent += 1;
        }
        let counts: Vec<_> = seconds.iter().map(|second| (second.begin, second.sent)).collect();
        assert_eq!(counts, [(ms(10_300), 3), (ms(11_300), 2)]);
        seconds.at(ms(10_300), ms(3_300)).latencies.record(ms(1));
        seconds.clear();
        assert_eq!(seconds.iter().count(), 0);
        let second = seconds.at(ms(20_000), ms(0));
        assert_eq!((second.begin, second.sent, second.latencies.count()), (ms(20_000), 0, 0));
    }

    #[test]
    fn events_of_no_run_are_bounded_and_all_counted() {
        let mut times = EventTimes::default();
        let mut worker = EventTimes::default();
        worker.add(ms(1_005));
        worker.add(ms(1_006));
        times.merge(&worker);
        assert_eq!(times.iter().collect::<Vec<_>>(), [(ms(1_000), 2)]);
        let seconds = 3 * MAX_TIMES as u64;
        (0..seconds).for_each(|second| times.add(Duration::from_secs(second)));
        assert!(times.counts.len() <= MAX_TIMES);
        assert_eq!(times.iter().map(|(_, count)| count).sum::<u64>(), seconds + 2);
    }
}
