//! The messages under way, found by their number: a table of fixed size, made once.
//!
//! A message's place is its number's lower bits, as in a ring; where that is taken it is the next free one (linear
//! probing), so that a straggler holds nobody up. Numbers follow each other, so nearly every message is found where it is
//! looked for first, and nothing is allocated, hashed or locked.
use super::stages::Stage;
use std::time::Duration;

/// A message under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) sequence: u64,
    /// Where its latencies count from: when it was due at open loop, else when it was created.
    pub(super) since: Duration,
    /// When its time-out began to run.
    pub(super) created: Duration,
    /// When it reached each stage, in nanoseconds; 0 where it has not. Nothing happens in a host's first nanosecond.
    times_ns: [u64; Stage::ALL.len()],
    /// The endpoint's own id of it, cut down to a number; 0 where none was told.
    pub(super) peer_id: u64,
    /// Whether its transfer waits for the broker's word.
    pub(super) is_unsettled: bool,
}

impl Slot {
    pub(super) fn new(sequence: u64, since: Duration, created: Duration) -> Self {
        let times_ns = [0; Stage::ALL.len()];
        let mut slot = Self { sequence, since, created, times_ns, peer_id: 0, is_unsettled: false };
        slot.reach(Stage::Created, created);
        slot
    }

    pub(super) fn time(&self, stage: Stage) -> Option<Duration> {
        Some(self.times_ns[stage as usize]).filter(|ns| *ns > 0).map(Duration::from_nanos)
    }

    pub(super) fn reach(&mut self, stage: Stage, now: Duration) {
        self.times_ns[stage as usize] = now.as_nanos() as u64;
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Slots {
    places: Box<[Option<Slot>]>,
    count: usize,
    limit: usize,
}

impl Slots {
    /// Room for `limit` messages.
    pub(super) fn new(limit: usize) -> Self {
        // At most half full, so that a free place is never far.
        let places = (limit.max(1) * 2).next_power_of_two();
        Self { places: vec![None; places].into(), count: 0, limit: limit.max(1) }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn has_room(&self) -> bool {
        self.count < self.limit
    }

    /// Puts a message in. There must be room, and it must not be there.
    pub(super) fn insert(&mut self, slot: Slot) {
        debug_assert!(self.has_room() && self.find(slot.sequence).is_none());
        let mut at = self.home(slot.sequence);
        while self.places[at].is_some() {
            at = self.after(at);
        }
        self.places[at] = Some(slot);
        self.count += 1;
    }

    pub(super) fn find(&self, sequence: u64) -> Option<&Slot> {
        self.places[self.place(sequence)?].as_ref()
    }

    pub(super) fn find_mut(&mut self, sequence: u64) -> Option<&mut Slot> {
        let at = self.place(sequence)?;
        self.places[at].as_mut()
    }

    /// Takes a message out.
    pub(super) fn remove(&mut self, sequence: u64) -> Option<Slot> {
        let at = self.place(sequence)?;
        let removed = self.places[at].take();
        self.count -= 1;
        self.close_gap(at);
        removed
    }

    /// All of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.places.iter().flatten()
    }

    /// All of them, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.places.iter_mut().flatten()
    }

    fn home(&self, sequence: u64) -> usize {
        sequence as usize & (self.places.len() - 1)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }

    fn place(&self, sequence: u64) -> Option<usize> {
        let mut at = self.home(sequence);
        while let Some(slot) = &self.places[at] {
            if slot.sequence == sequence {
                return Some(at);
            }
            at = self.after(at);
        }
        None
    }

    /// Moves those back that had gone further because the place was taken: a search ends at the first free one.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.places.len() - 1;
        let mut at = self.after(gap);
        while let Some(slot) = self.places[at] {
            let from_home = (at.wrapping_sub(self.home(slot.sequence))) & mask;
            let from_gap = at.wrapping_sub(gap) & mask;
            if from_home >= from_gap {
                self.places[gap] = self.places[at].take();
                gap = at;
            }
            at = self.after(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn slot(sequence: u64) -> Slot {
        Slot::new(sequence, Duration::ZERO, Duration::from_nanos(sequence))
    }

    #[test]
    fn a_straggler_holds_nobody_up() {
        let mut slots = Slots::new(10);
        slots.insert(slot(3));
        for sequence in 4..10_000 {
            slots.insert(slot(sequence));
            assert!(slots.find(3).is_some() && slots.find(sequence).is_some());
            assert_eq!(slots.remove(sequence).map(|slot| slot.sequence), Some(sequence));
        }
        assert_eq!(slots.count(), 1);
    }

    #[test]
    fn it_takes_no_more_than_its_limit() {
        let mut slots = Slots::new(3);
        (0..3).for_each(|sequence| slots.insert(slot(sequence * 8)));
        assert!(!slots.has_room());
        slots.remove(8);
        assert!(slots.has_room());
    }

    proptest! {
        /// Whatever comes and goes, it holds what a set holds.
        #[test]
        fn it_holds_what_a_set_holds(steps in proptest::collection::vec((0_u64..80, any::<bool>()), 1..400)) {
            let mut slots = Slots::new(16);
            let mut set = BTreeSet::new();
            for (sequence, comes) in steps {
                if comes && set.len() < 16 && set.insert(sequence) {
                    slots.insert(slot(sequence));
                } else if !comes {
                    prop_assert_eq!(slots.remove(sequence).is_some(), set.remove(&sequence));
                }
                prop_assert_eq!(slots.count(), set.len());
                prop_assert!((0..80).all(|sequence| slots.find(sequence).is_some() == set.contains(&sequence)));
            }
        }
    }
}
