//! Decides which messages stay in memory, and which are read next.
//!
//! A new message stays in memory if its destination's messages, including the new one, take at most as much memory as
//! is free. Even the destination with the longest backlog thus takes at most half of the memory budget. Mail for
//! healthy destinations is therefore hardly ever read from disk. A destination keeps only as many messages in memory as
//! its connections can send while the next ones are read, because more would only enlarge the process.
//!
//! Messages that were dropped from memory are read from the spool before their turn, in the order of the spool's log.
//! If an entry is deferred or held, or its destination is unreachable, its message is not in memory. If several entries
//! share a message, each of them counts its full size, so the actual use never exceeds the count.
use std::time::Duration;

use super::commands::OperatorCommand;
use super::entry::{DestinationId, EntryIndex, EntryState, ListKind, MessageId, NO_ENTRY};
use super::queue::MailQueue;
use super::result::Actions;

/// Maximum number of messages that are being read for one destination at a time.
const MAX_LOADING: u32 = 64;

/// Maximum number of bytes of messages in memory per destination. More would not help, because
/// messages can be read from the page cache as fast as a network accepts them.
const MAX_DESTINATION_BYTES: u64 = 12 << 20;

impl<M: Clone> MailQueue<M> {
    /// Adds to `ids` the messages that must be read from the spool next, in the order of the spool's log. For each of
    /// these messages, the caller must then call `loaded`, or `hold_unreadable` if the message cannot be read.
    pub(crate) fn messages_to_read(&mut self, ids: &mut Vec<MessageId>) {
        let from = ids.len();
        while let Some(destination) = self.memory.unread.pop_front() {
            self.destination(destination).listed.unread = false;
            self.read_ahead(destination, ids);
        }
        ids[from..].sort_unstable();
        ids.dedup();
    }

    pub(crate) fn loaded(&mut self, id: MessageId, message: &M) {
        let mut at = self.messages.get(&id).copied().unwrap_or(NO_ENTRY);
        while at != NO_ENTRY {
            let entry = &mut self.entries[at];
            let destination = entry.destination;
            if std::mem::take(&mut entry.flags.loading) {
                entry.message = Some(message.clone());
                self.destination(destination).loading -= 1;
                self.update_lists(destination);
            }
            at = self.entries.next(at, ListKind::Message);
        }
    }

    /// Holds a message that cannot be read from the spool. An operator can then notice it, and no other message waits
    /// behind it.
    pub(crate) fn hold_unreadable(&mut self, id: MessageId, now: Duration) -> Option<Actions> {
        self.apply_command(OperatorCommand::Hold, id, now)
    }

    fn read_ahead(&mut self, key: DestinationId, ids: &mut Vec<MessageId>) {
        loop {
            let destination = &self.destinations[key.0 as usize];
            let at = destination.next_unread;
            if at == NO_ENTRY || destination.loading >= MAX_LOADING {
                return;
            }
            let entry = &self.entries[at];
            if entry.message.is_none() && !entry.flags.loading {
                // Always read the destination's first message, even if memory is short, because all other messages of
                // the destination wait behind it.
                if at != destination.ready.first && !self.fits(key, entry.message_bytes) {
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

    fn fits(&self, key: DestinationId, message_bytes: u32) -> bool {
        let free = self.options.message_bytes.saturating_sub(self.memory.used_bytes);
        let share = free.min(MAX_DESTINATION_BYTES);
        self.destinations[key.0 as usize].message_bytes.saturating_add(u64::from(message_bytes)) <= share
    }

    /// Keeps a new entry's message in memory if there is room and the message will be sent soon.
    pub(super) fn keep_message(&mut self, at: EntryIndex, message: Option<M>, now_ms: u64) {
        let destination = self.entries[at].destination;
        let bytes = self.entries[at].message_bytes;
        let is_wanted =
            self.destination(destination).backoff_until_ms <= now_ms || self.destination(destination).connections > 0;
        if message.is_some() && is_wanted && self.fits(destination, bytes) {
            self.entries[at].message = message;
            self.charge_message(at);
        }
    }

    fn charge_message(&mut self, at: EntryIndex) {
        let entry = &mut self.entries[at];
        entry.flags.in_budget = true;
        let destination = entry.destination;
        let bytes = u64::from(entry.message_bytes);
        self.memory.used_bytes += bytes;
        self.destination(destination).message_bytes += bytes;
    }

    /// Removes an entry's message from memory, and no longer counts its size. A delivery agent that has already taken
    /// the message keeps it.
    pub(super) fn drop_message(&mut self, at: EntryIndex) {
        let entry = &mut self.entries[at];
        entry.message = None;
        if std::mem::take(&mut entry.flags.in_budget) {
            let destination = entry.destination;
            let bytes = u64::from(entry.message_bytes);
            self.memory.used_bytes -= bytes;
            self.destination(destination).message_bytes -= bytes;
        }
    }

    /// If the destination has a connection and ready messages that are not in memory, adds the destination to the list
    /// from which `messages_to_read` chooses. After a failed attempt to connect, the next connection must first be
    /// established. Otherwise, each attempt to reach a dead destination would read part of its backlog from the spool.
    pub(super) fn update_read_list(&mut self, key: DestinationId) {
        let destination = self.destination(key);
        let is_served = destination.connections > 0 && (destination.failures == 0 || destination.has_connected);
        let is_wanted = is_served
            && destination.next_unread != NO_ENTRY
            && destination.loading < MAX_LOADING
            && destination.count(EntryState::Ready) > 0;
        if is_wanted && !destination.listed.unread {
            destination.listed.unread = true;
            self.memory.unread.push_back(key);
        }
    }
}
