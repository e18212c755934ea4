//! Choice of the messages to keep in memory, and of those to read.
//!
//! A new message stays in memory if its hop then has no more there than stays free: the hop with the longest backlog
//! leaves half of the budget to the others, and a healthy one is hardly ever read from disk. A message that was dropped
//! is read ahead of its turn, in the order of the log. Deferred, held and unreachable entries have no letter in memory.
//! An entry counts its letter even if another entry of the same message has it too, so that no more is in use than is
//! counted.
use std::collections::VecDeque;
use std::time::Duration;

use super::entry::{EntryIndex, EntryState, NO_ENTRY};
use super::{Actions, DestinationId, ListKind, MailQueue, MessageId, MessageSelector, OperatorCommand};

/// Letters that are being read for one hop at a time.
const MAX_LOADING: u32 = 64;

/// Counts of the memory in use.
#[derive(Default)]
pub(super) struct MessageMemory {
    pub(super) used_bytes: u64,
    /// Hops that may need letters read.
    unread: VecDeque<DestinationId>,
}

impl<L: Clone> MailQueue<L> {
    /// Adds the messages to read from the spool next, in the order of its log; `loaded` or `unreadable` answers each.
    pub(crate) fn messages_to_read(&mut self, ids: &mut Vec<MessageId>) {
        let from = ids.len();
        while let Some(hop) = self.memory.unread.pop_front() {
            self.destination(hop).listed.unread = false;
            self.read_ahead(hop, ids);
        }
        ids[from..].sort_unstable();
        ids.dedup();
    }

    /// A message has been read.
    pub(crate) fn loaded(&mut self, id: MessageId, letter: &L) {
        let mut at = self.messages.get(&id).copied().unwrap_or(NO_ENTRY);
        while at != NO_ENTRY {
            let entry = &mut self.entries[at];
            let hop = entry.destination;
            if std::mem::take(&mut entry.flags.loading) {
                entry.message = Some(letter.clone());
                self.destination(hop).loading -= 1;
                self.update_lists(hop);
            }
            at = self.entries.next(at, ListKind::Message);
        }
    }

    /// Holds a message that cannot be read: nothing waits for it, and an operator sees it.
    pub(crate) fn hold_unreadable(&mut self, id: MessageId, now: Duration) -> Option<Actions> {
        let mut held = None;
        self.apply_command(OperatorCommand::Hold, MessageSelector::Message(id), now, |effects| held = Some(effects));
        held
    }

    fn read_ahead(&mut self, key: DestinationId, ids: &mut Vec<MessageId>) {
        loop {
            let hop = &self.destinations[key.0 as usize];
            let at = hop.next_unread;
            if at == NO_ENTRY || hop.loading >= MAX_LOADING {
                return;
            }
            let entry = &self.entries[at];
            if entry.message.is_none() && !entry.flags.loading {
                // The first is always read, however little memory is left: all others wait behind it.
                if at != hop.ready.first && !self.fits(key, entry.message_bytes) {
                    return;
                }
                ids.push(entry.id);
                self.entries[at].flags.loading = true;
                self.charge_message(at);
                self.destination(key).loading += 1;
            }
            self.destination(key).next_unread = self.entries.next(at, ListKind::State);
        }
    }

    /// Reports whether the hop's share has room for that many more bytes.
    fn fits(&self, key: DestinationId, letter_bytes: u32) -> bool {
        let free = self.options.message_bytes.saturating_sub(self.memory.used_bytes);
        self.destinations[key.0 as usize].message_bytes.saturating_add(u64::from(letter_bytes)) <= free
    }

    /// Keeps the letter of a new entry, if there is room and it is wanted soon.
    pub(super) fn keep_message(&mut self, at: EntryIndex, letter: Option<L>, now_ms: u64) {
        let hop = self.entries[at].destination;
        let bytes = self.entries[at].message_bytes;
        let is_wanted = self.destination(hop).backoff_until_ms <= now_ms || self.destination(hop).connections > 0;
        if letter.is_some() && is_wanted && self.fits(hop, bytes) {
            self.entries[at].message = letter;
            self.charge_message(at);
        }
    }

    fn charge_message(&mut self, at: EntryIndex) {
        let entry = &mut self.entries[at];
        entry.flags.in_budget = true;
        let hop = entry.destination;
        let bytes = u64::from(entry.message_bytes);
        self.memory.used_bytes += bytes;
        self.destination(hop).message_bytes += bytes;
    }

    /// Drops an entry's letter, here or in a courier's hands.
    pub(super) fn drop_message(&mut self, at: EntryIndex) {
        let entry = &mut self.entries[at];
        entry.message = None;
        if std::mem::take(&mut entry.flags.in_budget) {
            let hop = entry.destination;
            let bytes = u64::from(entry.message_bytes);
            self.memory.used_bytes -= bytes;
            self.destination(hop).message_bytes -= bytes;
        }
    }

    /// Notes that a hop may want something read: a courier is there to send it, or will be once connected. After a
    /// failed try, the connection comes first: otherwise each try of a dead hop would cost reading a part of its
    /// backlog.
    pub(super) fn update_read_list(&mut self, key: DestinationId) {
        let hop = self.destination(key);
        let is_served = hop.connections > 0 && (hop.failures == 0 || hop.has_connected);
        let is_wanted =
            is_served && hop.next_unread != NO_ENTRY && hop.loading < MAX_LOADING && hop.count(EntryState::Ready) > 0;
        if is_wanted && !hop.listed.unread {
            hop.listed.unread = true;
            self.memory.unread.push_back(key);
        }
    }
}
