//! The table of all queue entries, and linked lists of these entries. The links are fields of the entries, so the lists
//! need no allocation, and entries never move in memory.
use std::ops::{Index as At, IndexMut};

use super::entry::{EntryIndex, EntryLinks, EntryRefusals, ListKind, NO_ENTRY, QueueEntry};

/// Number of queue entries in each separately allocated chunk of the table. The table grows by whole chunks, so its
/// entries never have to be copied.
const CHUNK_ENTRIES: usize = 1_024;

pub(super) struct EntryTable<M> {
    chunks: Vec<Vec<QueueEntry<M>>>,
    /// First unused slot, which the next new entry gets. The unused slots form a linked list, in which they use the
    /// links of `ListKind::State`.
    free: EntryIndex,
    live: usize,
}

#[derive(Clone, Copy)]
pub(super) struct EntryList {
    pub(super) first: EntryIndex,
    pub(super) last: EntryIndex,
}

impl EntryList {
    pub(super) const EMPTY: Self = Self { first: NO_ENTRY, last: NO_ENTRY };

    pub(super) fn is_empty(&self) -> bool {
        self.first == NO_ENTRY
    }
}

impl<M> EntryTable<M> {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), free: NO_ENTRY, live: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// Returns the number of slots in the table, used and unused.
    pub(super) fn slot_count(&self) -> EntryIndex {
        self.chunks.last().map_or(0, |last| ((self.chunks.len() - 1) * CHUNK_ENTRIES + last.len()) as EntryIndex)
    }

    pub(super) fn insert(&mut self, entry: QueueEntry<M>) -> EntryIndex {
        self.live += 1;
        if self.free != NO_ENTRY {
            let at = self.free;
            self.free = self[at].links[ListKind::State as usize].next;
            self[at] = entry;
            return at;
        }
        let at = self.slot_count();
        assert!(at < NO_ENTRY, "the table holds no more than 4 thousand million entries");
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK_ENTRIES => last.push(entry),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK_ENTRIES);
                chunk.push(entry);
                self.chunks.push(chunk);
            }
        }
        at
    }

    /// Frees the slot of an entry. The entry must not be in any list.
    pub(super) fn free(&mut self, at: EntryIndex) {
        self.live -= 1;
        if self.live == 0 {
            // No entry is left, so free the memory. Keep one chunk, so that normal traffic does not
            // need to allocate memory again.
            self.chunks.truncate(1);
            self.chunks.iter_mut().for_each(Vec::clear);
            self.free = NO_ENTRY;
            return;
        }
        let free = self.free;
        let entry = &mut self[at];
        (entry.message, entry.refusals) = (None, EntryRefusals::default());
        entry.links[ListKind::State as usize] = EntryLinks { previous: at, next: free };
        self.free = at;
    }

    /// Returns true if a slot holds an entry. The link `previous` of an unused slot leads to the slot itself, which
    /// never happens in an entry.
    pub(super) fn is_live(&self, at: EntryIndex) -> bool {
        at < self.slot_count() && self[at].links[ListKind::State as usize].previous != at
    }

    pub(super) fn next(&self, at: EntryIndex, kind: ListKind) -> EntryIndex {
        self[at].links[kind as usize].next
    }

    pub(super) fn push_back(&mut self, list: &mut EntryList, kind: ListKind, at: EntryIndex) {
        self[at].links[kind as usize] = EntryLinks { previous: list.last, next: NO_ENTRY };
        match list.last {
            NO_ENTRY => list.first = at,
            last => self[last].links[kind as usize].next = at,
        }
        list.last = at;
    }

    pub(super) fn push_front(&mut self, list: &mut EntryList, kind: ListKind, at: EntryIndex) {
        self[at].links[kind as usize] = EntryLinks { previous: NO_ENTRY, next: list.first };
        match list.first {
            NO_ENTRY => list.last = at,
            first => self[first].links[kind as usize].previous = at,
        }
        list.first = at;
    }

    pub(super) fn unlink(&mut self, list: &mut EntryList, kind: ListKind, at: EntryIndex) {
        let EntryLinks { previous: before, next: after } = self[at].links[kind as usize];
        match before {
            NO_ENTRY => list.first = after,
            before => self[before].links[kind as usize].next = after,
        }
        match after {
            NO_ENTRY => list.last = before,
            after => self[after].links[kind as usize].previous = before,
        }
        self[at].links[kind as usize] = EntryLinks { previous: NO_ENTRY, next: NO_ENTRY };
    }
}

impl<M> At<EntryIndex> for EntryTable<M> {
    type Output = QueueEntry<M>;

    fn index(&self, at: EntryIndex) -> &QueueEntry<M> {
        &self.chunks[at as usize / CHUNK_ENTRIES][at as usize % CHUNK_ENTRIES]
    }
}

impl<M> IndexMut<EntryIndex> for EntryTable<M> {
    fn index_mut(&mut self, at: EntryIndex) -> &mut QueueEntry<M> {
        &mut self.chunks[at as usize / CHUNK_ENTRIES][at as usize % CHUNK_ENTRIES]
    }
}
