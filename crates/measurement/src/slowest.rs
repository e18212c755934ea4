//! Keeps the slowest messages of a run in a heap of limited size. For nearly all messages, a single comparison shows
//! that they are not among the slowest.
use crate::record::SlowPhase;
use crate::reply_text::ReplyText;
use crate::stage::Phase;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

pub const MAX_SLOWEST: usize = 50;

/// The slowest of many messages, each with facts that help to explain why it was slow.
///
/// Once the heap is full, the floor is the latency of the fastest message in it. A message that took no longer than the
/// floor cannot be among the slowest, because [`MAX_SLOWEST`] others took at least as long. When a worker thread hands
/// over its counts, it clears the heap but keeps the floor.
#[derive(Clone, Debug)]
pub struct Slowest<T> {
    floor: Duration,
    heap: BinaryHeap<Reverse<TimedEntry<T>>>,
}

/// A message and its latency. Entries are ordered by the latency alone, so `T` needs no order.
#[derive(Clone, Debug)]
struct TimedEntry<T> {
    took: Duration,
    what: T,
}

impl<T> PartialEq for TimedEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.took == other.took
    }
}

impl<T> Eq for TimedEntry<T> {}

impl<T> PartialOrd for TimedEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for TimedEntry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.took.cmp(&other.took)
    }
}

impl<T> Default for Slowest<T> {
    fn default() -> Self {
        Self { floor: Duration::ZERO, heap: BinaryHeap::new() }
    }
}

impl<T: Clone> Slowest<T> {
    /// True if a message that took this long may be among the slowest, so that [`Self::insert`] must be called.
    #[inline]
    pub fn admits(&self, latency: Duration) -> bool {
        latency > self.floor
    }

    /// Adds a message for which [`Self::admits`] has returned true. If the heap already holds [`MAX_SLOWEST`] messages,
    /// the message replaces the fastest of them.
    #[cold]
    #[inline(never)]
    pub fn insert(&mut self, took: Duration, what: T) {
        let entry = Reverse(TimedEntry { took, what });
        if self.heap.len() < MAX_SLOWEST {
            self.heap.push(entry);
        } else if let Some(mut fastest) = self.heap.peek_mut()
            && fastest.0.took < took
        {
            *fastest = entry;
        }
        if self.heap.len() >= MAX_SLOWEST {
            self.floor = self.heap.peek().map_or(Duration::ZERO, |fastest| fastest.0.took).max(self.floor);
        }
    }

    pub fn merge(&mut self, other: &Self) {
        for Reverse(entry) in &other.heap {
            if self.admits(entry.took) {
                self.insert(entry.took, entry.what.clone());
            }
        }
    }

    /// Removes all messages. The floor stays, so that [`Self::admits`] still rejects messages that cannot be among the
    /// slowest of the run.
    pub fn clear(&mut self) {
        self.heap.clear();
    }

    pub fn sorted(&self) -> Vec<(Duration, T)> {
        let mut entries: Vec<_> = self.heap.iter().map(|Reverse(entry)| (entry.took, entry.what.clone())).collect();
        entries.sort_by_key(|(latency, _)| Reverse(*latency));
        entries
    }
}

/// Durations in microseconds of the phases of a message's dialogue. The type allocates no memory.
///
/// The phases do not overlap. The time between two replies belongs to the phase of the later reply, even if the
/// commands were sent in a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessagePhases([u32; Phase::ALL.len()]);

impl MessagePhases {
    /// Adds `elapsed` to the duration of a phase. A phase may occur repeatedly (RCPT). The sum saturates at 2^32 µs (71
    /// minutes).
    #[inline]
    pub fn add(&mut self, phase: Phase, elapsed: Duration) {
        let microseconds = elapsed.as_secs().saturating_mul(1_000_000).saturating_add(elapsed.subsec_micros().into());
        let total = &mut self.0[phase as usize];
        *total = total.saturating_add(u32::try_from(microseconds).unwrap_or(u32::MAX));
    }

    /// Returns a row of the run record for each phase, in the order in which phases occur in a dialogue. Leaves out
    /// phases that took no time.
    pub fn rows(&self) -> Vec<SlowPhase> {
        let timed = Phase::ALL.into_iter().zip(self.0).filter(|(_, microseconds)| *microseconds > 0);
        timed.map(|(name, microseconds)| SlowPhase { name, ms: f64::from(microseconds) / 1e3 }).collect()
    }
}

/// Facts that the source knows about a slow message. Its latency counts from `since` to the server's 250.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowTransaction {
    pub message: u64,
    pub since: Duration,
    pub began: Duration,
    pub phases: MessagePhases,
    pub bytes: u64,
    pub recipients: u32,
    pub reply: Option<ReplyText>,
}

/// Facts that the sink knows about a slow message. Its latency counts from `created` to the arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowDelivery {
    pub message: u64,
    pub created: Duration,
    pub bytes: u64,
    pub recipients: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn phases_add_up_and_those_without_time_have_no_row() {
        let mut phases = MessagePhases::default();
        phases.add(Phase::Rcpt, Duration::from_micros(1500));
        phases.add(Phase::Rcpt, Duration::from_micros(500));
        phases.add(Phase::Mail, Duration::MAX);
        let rows: Vec<_> = phases.rows().into_iter().map(|row| (row.name, row.ms)).collect();
        assert_eq!(rows, [(Phase::Mail, f64::from(u32::MAX) / 1e3), (Phase::Rcpt, 2.0)]);
    }

    proptest! {
        /// Two workers hand over their heaps at every tick. The merged heap must contain the highest of all latencies.
        #[test]
        fn the_slowest_are_those_of_all(times in prop::collection::vec(0..400_u64, 0..600), tick in 1..200_usize) {
            let mut workers = [Slowest::default(), Slowest::default()];
            let mut total = Slowest::default();
            for (number, time) in times.iter().enumerate() {
                let worker = &mut workers[number % 2];
                let latency = Duration::from_nanos(*time);
                if worker.admits(latency) {
                    worker.insert(latency, number);
                }
                if number % tick == 0 {
                    total.merge(worker);
                    worker.clear();
                }
            }
            workers.iter().for_each(|worker| total.merge(worker));
            let mut expected: Vec<u64> = times.iter().copied().filter(|time| *time > 0).collect();
            expected.sort_unstable_by_key(|time| Reverse(*time));
            expected.truncate(MAX_SLOWEST);
            let slowest = total.sorted();
            let found_times: Vec<u64> = slowest.iter().map(|(latency, _)| latency.subsec_nanos().into()).collect();
            prop_assert_eq!(found_times, expected);
            prop_assert!(slowest.iter().all(|(latency, number)| times[*number] == u64::from(latency.subsec_nanos())));
        }
    }
}
