//! A timer wheel for queue entries. Adding and removing a timer takes constant time, because each slot is a list that
//! is linked through the entries themselves. A grain is the time that one slot covers. A timer fires at most one grain
//! late. It fires early only if it is set more than one turn of the wheel in advance.
//!
//! ```text
//! slot   … 17   18   19   20 …        an entry due at 18.3 grains is in slot 19,
//!                ▲ current            and comes out when slot 19 is reached
//! ```
//! An entry that is due later than one turn of the wheel waits in the last slot. When that slot is reached, the entry
//! comes out early, and the caller inserts it again.
use super::entries::{EntryList, EntryTable};
use super::entry::{EntryIndex, ListKind};

/// If a slot covers a second, a turn of the wheel takes 68 minutes. Most entries are due earlier, so they are inserted
/// only once.
const SLOT_COUNT: u64 = 4_096;
const WORD_BITS: u64 = 64;

pub(super) struct TimerWheel {
    slots: Vec<EntryList>,
    /// One bit per slot, which is set if the slot is not empty.
    occupied: Vec<u64>,
    grain_ms: u64,
    current_grain: u64,
    list: ListKind,
}

impl TimerWheel {
    /// Creates an empty wheel whose current slot is the slot of `now_ms`. If the wheel began at time 0, `pop` would
    /// first have to catch up with all turns since then, and would return each entry early in each of these turns.
    pub(super) fn new(grain_ms: u64, kind: ListKind, now_ms: u64) -> Self {
        let slots = vec![EntryList::EMPTY; SLOT_COUNT as usize];
        let grain_ms = grain_ms.max(1);
        Self {
            slots,
            occupied: vec![0; (SLOT_COUNT / WORD_BITS) as usize],
            grain_ms,
            current_grain: now_ms / grain_ms,
            list: kind,
        }
    }

    pub(super) fn insert<M>(&mut self, entries: &mut EntryTable<M>, at: EntryIndex, when_ms: u64) {
        let grain = when_ms.div_ceil(self.grain_ms).clamp(self.current_grain, self.current_grain + SLOT_COUNT - 1);
        let slot = grain % SLOT_COUNT;
        entries[at].slots[self.list as usize] = slot as u16;
        entries.push_back(&mut self.slots[slot as usize], self.list, at);
        self.occupied[(slot / WORD_BITS) as usize] |= 1 << (slot % WORD_BITS);
    }

    pub(super) fn remove<M>(&mut self, entries: &mut EntryTable<M>, at: EntryIndex) {
        let slot = u64::from(entries[at].slots[self.list as usize]);
        let list = &mut self.slots[slot as usize];
        entries.unlink(list, self.list, at);
        if list.is_empty() {
            self.occupied[(slot / WORD_BITS) as usize] &= !(1 << (slot % WORD_BITS));
        }
    }

    /// Removes and returns the next entry whose slot has been reached. If the entry was inserted more than one turn of
    /// the wheel before it is due, it may not be due yet, and the caller must insert it again.
    pub(super) fn pop<M>(&mut self, entries: &mut EntryTable<M>, now_ms: u64) -> Option<EntryIndex> {
        let reached = now_ms / self.grain_ms;
        match self.next_grain() {
            Some(grain) if grain <= reached => {
                self.current_grain = grain;
                let at = self.slots[(grain % SLOT_COUNT) as usize].first;
                self.remove(entries, at);
                Some(at)
            }
            _ => {
                self.current_grain = self.current_grain.max(reached + 1);
                None
            }
        }
    }

    /// Returns the earliest time at which `pop` returns an entry, or `None` if the wheel is empty.
    pub(super) fn deadline_ms(&self) -> Option<u64> {
        self.next_grain().map(|grain| grain * self.grain_ms)
    }

    fn next_grain(&self) -> Option<u64> {
        let start = self.current_grain % SLOT_COUNT;
        let words = SLOT_COUNT / WORD_BITS;
        // `occupied` has one bit for each slot, in words of 64 bits. The search begins at the current slot and goes
        // once around the wheel. It reads the word of the current slot twice: first the current and later slots, and
        // at the end the earlier slots.
        (0..=words).find_map(|step| {
            let word = (start / WORD_BITS + step) % words;
            let mask = match step {
                0 => u64::MAX << (start % WORD_BITS),
                _ if step == words => !(u64::MAX << (start % WORD_BITS)),
                _ => u64::MAX,
            };
            let bits = self.occupied[word as usize] & mask;
            (bits != 0).then(|| {
                let slot = word * WORD_BITS + u64::from(bits.trailing_zeros());
                self.current_grain + (slot + SLOT_COUNT - start) % SLOT_COUNT
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::qmgr::entry::{EntryFlags, EntryLinks, EntryRefusals, EntryState, NO_ENTRY, QueueEntry};
    use crate::qmgr::{DestinationId, MessageId, RecipientNumbers};

    fn entry(id: u64) -> QueueEntry<()> {
        QueueEntry {
            links: [EntryLinks { previous: NO_ENTRY, next: NO_ENTRY }; 4],
            slots: [0; 2],
            destination: DestinationId(0),
            id: MessageId(id),
            recipients: RecipientNumbers::new(&[]),
            message: None,
            message_bytes: 0,
            attempts: 0,
            refusals: EntryRefusals::default(),
            received_unix_s: 0,
            due_ms: 0,
            age_check_ms: 0,
            expires_ms: 0,
            state: EntryState::Deferred,
            flags: EntryFlags::default(),
            unsent_tries: 0,
        }
    }

    proptest! {
        #[test]
        fn what_is_due_comes_out_never_early_and_a_grain_late_at_most(
            steps in prop::collection::vec((0..3_u8, 0..200_000_u64), 1..200), grain in 1..50_u64,
            start in prop_oneof![Just(0), any::<u32>().prop_map(u64::from)],
        ) {
            let mut wheel = TimerWheel::new(grain, ListKind::State, start);
            let mut entries = EntryTable::new();
            let mut model = BTreeMap::new();
            let mut now = start;
            for (kind, number) in steps {
                match kind {
                    0 => {
                        let at = entries.insert(entry(number));
                        wheel.insert(&mut entries, at, now + number);
                        model.insert(at, now + number);
                    }
                    1 => if let Some(&at) = model.keys().nth(number as usize % model.len().max(1)) {
                        wheel.remove(&mut entries, at);
                        model.remove(&at);
                    },
                    _ => {
                        now += number / 20;
                        while let Some(at) = wheel.pop(&mut entries, now) {
                            let due = model[&at];
                            if due > now {
                                wheel.insert(&mut entries, at, due);
                            } else {
                                model.remove(&at);
                            }
                        }
                        prop_assert!(model.values().all(|due| due + grain > now));
                    }
                }
                let next = model.values().min().copied();
                prop_assert_eq!(wheel.deadline_ms().is_some(), next.is_some());
                // The deadline must never come too late. It may come too early if the next entry is due more than one
                // turn of the wheel later.
                prop_assert!(wheel.deadline_ms().zip(next).is_none_or(|(deadline, next)| deadline < next.max(now) + grain + 1));
            }
        }
    }
}
