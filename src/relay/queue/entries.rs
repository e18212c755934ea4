//! The table of entries, and the lists threaded through it: nothing is allocated for a list, and nothing moves.
use std::ops::{Index as At, IndexMut};

use super::entry::{Entry, Index, Link, NONE, Thread};

/// Entries of one allocation: a table that grows by pieces never has to be copied.
const CHUNK: usize = 1_024;

/// The table.
pub(super) struct Entries<L> {
    chunks: Vec<Vec<Entry<L>>>,
    /// Free places, as a chain of `Thread::State`.
    free: Index,
    live: usize,
}

/// A list of entries.
#[derive(Clone, Copy)]
pub(super) struct List {
    pub(super) first: Index,
    pub(super) last: Index,
}

impl List {
    pub(super) const EMPTY: Self = Self { first: NONE, last: NONE };

    pub(super) fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

impl<L> Entries<L> {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), free: NONE, live: 0 }
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// One more than the highest place that was ever used.
    pub(super) fn places(&self) -> Index {
        self.chunks.last().map_or(0, |last| ((self.chunks.len() - 1) * CHUNK + last.len()) as Index)
    }

    /// Takes an entry in.
    pub(super) fn insert(&mut self, entry: Entry<L>) -> Index {
        self.live += 1;
        if self.free != NONE {
            let at = self.free;
            self.free = self[at].links[Thread::State as usize].after;
            self[at] = entry;
            return at;
        }
        let at = self.places();
        assert!(at < NONE, "the table holds no more than 4 thousand million entries");
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK => last.push(entry),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(entry);
                self.chunks.push(chunk);
            }
        }
        at
    }

    /// Frees a place; the entry is in no list any more.
    pub(super) fn free(&mut self, at: Index) {
        self.live -= 1;
        if self.live == 0 {
            // In whatever order places were freed, the table begins anew. A backlog's memory is freed but for one
            // piece, so that usual traffic allocates nothing.
            self.chunks.truncate(1);
            self.chunks.iter_mut().for_each(Vec::clear);
            self.free = NONE;
            return;
        }
        let free = self.free;
        let entry = &mut self[at];
        (entry.letter, entry.refusal) = (None, None);
        entry.links[Thread::State as usize] = Link { before: at, after: free };
        self.free = at;
    }

    /// Reports whether that place holds an entry: a free one names itself as its neighbour, which no list does.
    pub(super) fn is_live(&self, at: Index) -> bool {
        at < self.places() && self[at].links[Thread::State as usize].before != at
    }

    pub(super) fn after(&self, at: Index, thread: Thread) -> Index {
        self[at].links[thread as usize].after
    }

    pub(super) fn push_back(&mut self, list: &mut List, thread: Thread, at: Index) {
        self[at].links[thread as usize] = Link { before: list.last, after: NONE };
        match list.last {
            NONE => list.first = at,
            last => self[last].links[thread as usize].after = at,
        }
        list.last = at;
    }

    pub(super) fn push_front(&mut self, list: &mut List, thread: Thread, at: Index) {
        self[at].links[thread as usize] = Link { before: NONE, after: list.first };
        match list.first {
            NONE => list.last = at,
            first => self[first].links[thread as usize].before = at,
        }
        list.first = at;
    }

    pub(super) fn unlink(&mut self, list: &mut List, thread: Thread, at: Index) {
        let Link { before, after } = self[at].links[thread as usize];
        match before {
            NONE => list.first = after,
            before => self[before].links[thread as usize].after = after,
        }
        match after {
            NONE => list.last = before,
            after => self[after].links[thread as usize].before = before,
        }
        self[at].links[thread as usize] = Link { before: NONE, after: NONE };
    }
}

impl<L> At<Index> for Entries<L> {
    type Output = Entry<L>;

    fn index(&self, at: Index) -> &Entry<L> {
        &self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }
}

impl<L> IndexMut<Index> for Entries<L> {
    fn index_mut(&mut self, at: Index) -> &mut Entry<L> {
        &mut self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }
}
