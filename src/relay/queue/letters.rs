//! Choice of the messages to keep in memory, and of those to read.
//!
//! A new message stays in memory if its hop then has no more there than stays free: the hop with the longest backlog
//! leaves half of the budget to the others, and a healthy one is hardly ever read from disk. A message that was dropped
//! is read ahead of its turn, in the order of the log. Deferred, held and unreachable entries have no letter in memory.
//! An entry counts its letter even if another entry of the same message has it too, so that no more is in use than is
//! counted.
use std::collections::VecDeque;
use std::time::Duration;

use super::entry::{Index, NONE, State};
use super::{Effects, HopKey, MessageId, Order, Queue, Thread, Which};

/// Letters that are being read for one hop at a time.
const ASKED: u32 = 64;

/// Counts of the memory in use.
#[derive(Default)]
pub(super) struct Letters {
    pub(super) used_bytes: u64,
    /// Hops that may need letters read.
    reading: VecDeque<HopKey>,
}

impl<L: Clone> Queue<L> {
    /// Adds the messages to read from the spool next, in the order of its log; `loaded` or `unreadable` answers each.
    pub(crate) fn wants_letters(&mut self, ids: &mut Vec<MessageId>) {
        let from = ids.len();
        while let Some(hop) = self.letters.reading.pop_front() {
            self.hop(hop).listed.reading = false;
            self.ask_ahead(hop, ids);
        }
        ids[from..].sort_unstable();
        ids.dedup();
    }

    /// A message has been read.
    pub(crate) fn loaded(&mut self, id: MessageId, letter: &L) {
        let mut at = self.messages.get(&id).copied().unwrap_or(NONE);
        while at != NONE {
            let entry = &mut self.entries[at];
            let hop = entry.hop;
            if std::mem::take(&mut entry.marks.asked) {
                entry.letter = Some(letter.clone());
                self.hop(hop).asked -= 1;
                self.heed(hop);
            }
            at = self.entries.after(at, Thread::Message);
        }
    }

    /// Holds a message that cannot be read: nothing waits for it, and an operator sees it.
    pub(crate) fn unreadable(&mut self, id: MessageId, now: Duration) -> Option<Effects> {
        let mut held = None;
        self.order(Order::Hold, Which::Message(id), now, |effects| held = Some(effects));
        held
    }

    fn ask_ahead(&mut self, key: HopKey, ids: &mut Vec<MessageId>) {
        loop {
            let hop = &self.hops[key.0 as usize];
            let at = hop.ahead;
            if at == NONE || hop.asked >= ASKED {
                return;
            }
            let entry = &self.entries[at];
            if entry.letter.is_none() && !entry.marks.asked {
                // The first is always read, however little memory is left: all others wait behind it.
                if at != hop.ready.first && !self.fits(key, entry.letter_bytes) {
                    return;
                }
                ids.push(entry.id);
                self.entries[at].marks.asked = true;
                self.count_letter(at);
                self.hop(key).asked += 1;
            }
            self.hop(key).ahead = self.entries.after(at, Thread::State);
        }
    }

    /// Reports whether the hop's share has room for that many more bytes.
    fn fits(&self, key: HopKey, letter_bytes: u32) -> bool {
        let free = self.options.letter_bytes.saturating_sub(self.letters.used_bytes);
        self.hops[key.0 as usize].letter_bytes.saturating_add(u64::from(letter_bytes)) <= free
    }

    /// Keeps the letter of a new entry, if there is room and it is wanted soon.
    pub(super) fn keep_letter(&mut self, at: Index, letter: Option<L>, now_ms: u64) {
        let (hop, bytes) = (self.entries[at].hop, self.entries[at].letter_bytes);
        let is_wanted = self.hop(hop).shut_until_ms <= now_ms || self.hop(hop).couriers > 0;
        if letter.is_some() && is_wanted && self.fits(hop, bytes) {
            self.entries[at].letter = letter;
            self.count_letter(at);
        }
    }

    fn count_letter(&mut self, at: Index) {
        let entry = &mut self.entries[at];
        entry.marks.counted = true;
        let (hop, bytes) = (entry.hop, u64::from(entry.letter_bytes));
        self.letters.used_bytes += bytes;
        self.hop(hop).letter_bytes += bytes;
    }

    /// Drops an entry's letter, here or in a courier's hands.
    pub(super) fn drop_letter(&mut self, at: Index) {
        let entry = &mut self.entries[at];
        entry.letter = None;
        if std::mem::take(&mut entry.marks.counted) {
            let (hop, bytes) = (entry.hop, u64::from(entry.letter_bytes));
            self.letters.used_bytes -= bytes;
            self.hop(hop).letter_bytes -= bytes;
        }
    }

    /// Notes that a hop may want something read: a courier is there to send it, or will be once connected. After a
    /// failed try, the connection comes first: otherwise each try of a dead hop would cost reading a part of its
    /// backlog.
    pub(super) fn heed_reading(&mut self, key: HopKey) {
        let hop = self.hop(key);
        let is_served = hop.couriers > 0 && (hop.failures == 0 || hop.is_asked);
        let is_wanted = is_served && hop.ahead != NONE && hop.asked < ASKED && hop.count(State::Ready) > 0;
        if is_wanted && !hop.listed.reading {
            hop.listed.reading = true;
            self.letters.reading.push_back(key);
        }
    }
}
