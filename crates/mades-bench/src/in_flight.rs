//! A table of the messages in flight, indexed by message number. Its size is fixed, and its memory is allocated once.
//!
//! The lower bits of a message's number select its slot, as in a ring buffer. If a slow message still occupies that
//! slot, the new message goes to the next free slot (linear probing), so that it need not wait. The numbers are
//! consecutive, so nearly every message is in its own slot and is found without hashing.
use super::stages::MessageStage;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InFlightEntry {
    pub(super) sequence: u64,
    /// Time at which the latencies of the message begin: the due time in an open loop, otherwise the creation time.
    pub(super) since: Duration,
    /// Time of creation, from which the time-out counts.
    pub(super) created: Duration,
    /// Time in nanoseconds at which the message reached each stage, or 0 for a stage that it has not reached. A real
    /// time is never 0, because the clock counts from the start of the host.
    times_ns: [u64; MessageStage::ALL.len()],
    /// Hash of the id that the endpoint gave the message, or 0 if there is none.
    pub(super) peer_id: u64,
    pub(super) is_unsettled: bool,
}

impl InFlightEntry {
    pub(super) fn new(sequence: u64, since: Duration, created: Duration) -> Self {
        let times_ns = [0; MessageStage::ALL.len()];
        let mut entry = Self { sequence, since, created, times_ns, peer_id: 0, is_unsettled: false };
        entry.reach(MessageStage::Created, created);
        entry
    }

    pub(super) fn time(&self, stage: MessageStage) -> Option<Duration> {
        Some(self.times_ns[stage as usize]).filter(|ns| *ns > 0).map(Duration::from_nanos)
    }

    pub(super) fn reach(&mut self, stage: MessageStage, now: Duration) {
        self.times_ns[stage as usize] = now.as_nanos() as u64;
    }
}

#[derive(Debug)]
pub(super) struct InFlightTable {
    entries: Box<[Option<InFlightEntry>]>,
    count: usize,
    limit: usize,
}

impl InFlightTable {
    pub(super) fn new(limit: usize) -> Self {
        // Keep the table at most half full, so that the search for a free slot is short.
        let places = (limit.max(1) * 2).next_power_of_two();
        Self { entries: vec![None; places].into(), count: 0, limit: limit.max(1) }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn has_room(&self) -> bool {
        self.count < self.limit
    }

    /// Adds a message that is being sent. The table must have room for the message, and must not contain its number
    /// yet.
    pub(super) fn insert(&mut self, entry: InFlightEntry) {
        debug_assert!(self.has_room() && self.find(entry.sequence).is_none());
        let mut at = self.home(entry.sequence);
        while self.entries[at].is_some() {
            at = self.next_index(at);
        }
        self.entries[at] = Some(entry);
        self.count += 1;
    }

    pub(super) fn find(&self, sequence: u64) -> Option<&InFlightEntry> {
        self.entries[self.position(sequence)?].as_ref()
    }

    pub(super) fn find_mut(&mut self, sequence: u64) -> Option<&mut InFlightEntry> {
        let at = self.position(sequence)?;
        self.entries[at].as_mut()
    }

    pub(super) fn remove(&mut self, sequence: u64) -> Option<InFlightEntry> {
        let at = self.position(sequence)?;
        let removed = self.entries[at].take();
        self.count -= 1;
        self.close_gap(at);
        removed
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &InFlightEntry> {
        self.entries.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut InFlightEntry> {
        self.entries.iter_mut().flatten()
    }

    fn home(&self, sequence: u64) -> usize {
        sequence as usize & (self.entries.len() - 1)
    }

    fn next_index(&self, at: usize) -> usize {
        (at + 1) & (self.entries.len() - 1)
    }

    fn position(&self, sequence: u64) -> Option<usize> {
        let mut at = self.home(sequence);
        while let Some(entry) = &self.entries[at] {
            if entry.sequence == sequence {
                return Some(at);
            }
            at = self.next_index(at);
        }
        None
    }

    /// Closes the gap that a removed message leaves. A message in a later slot moves into the free slot if its number
    /// selects the free slot or a slot before it. Otherwise, a search for that message would end too early, at the free
    /// slot.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.entries.len() - 1;
        let mut at = self.next_index(gap);
        while let Some(entry) = self.entries[at] {
            let from_home = (at.wrapping_sub(self.home(entry.sequence))) & mask;
            let from_gap = at.wrapping_sub(gap) & mask;
            if from_home >= from_gap {
                self.entries[gap] = self.entries[at].take();
                gap = at;
            }
            at = self.next_index(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn slot(sequence: u64) -> InFlightEntry {
        InFlightEntry::new(sequence, Duration::ZERO, Duration::from_nanos(sequence))
    }

    #[test]
    fn a_straggler_holds_nobody_up() {
        let mut table = InFlightTable::new(10);
        table.insert(slot(3));
        for sequence in 4..10_000 {
            table.insert(slot(sequence));
            assert!(table.find(3).is_some() && table.find(sequence).is_some());
            assert_eq!(table.remove(sequence).map(|entry| entry.sequence), Some(sequence));
        }
        assert_eq!(table.count(), 1);
    }

    #[test]
    fn it_takes_no_more_than_its_limit() {
        let mut table = InFlightTable::new(3);
        (0..3).for_each(|sequence| table.insert(slot(sequence * 8)));
        assert!(!table.has_room());
        table.remove(8);
        assert!(table.has_room());
    }

    proptest! {
        #[test]
        fn it_holds_what_a_set_holds(steps in proptest::collection::vec((0_u64..80, any::<bool>()), 1..400)) {
            let mut table = InFlightTable::new(16);
            let mut set = BTreeSet::new();
            for (sequence, comes) in steps {
                if comes && set.len() < 16 && set.insert(sequence) {
                    table.insert(slot(sequence));
                } else if !comes {
                    prop_assert_eq!(table.remove(sequence).is_some(), set.remove(&sequence));
                }
                prop_assert_eq!(table.count(), set.len());
                prop_assert!((0..80).all(|sequence| table.find(sequence).is_some() == set.contains(&sequence)));
            }
        }
    }
}
