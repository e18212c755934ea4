//! Moves entries from state to state, and keeps the lists and counts consistent with the states.
use super::entry::{EntryIndex, EntryLinks, EntryState, ListKind, MessageId, NO_ENTRY, QueueEnd, QueueEntry};
use super::queue::MailQueue;

/// When the queue becomes empty, its map from queue ids to entries shrinks to a capacity of this many messages. A burst
/// of mail may have made the map much larger.
pub(super) const SPARE_MESSAGES: usize = 4_096;

impl<M: Clone> MailQueue<M> {
    /// Adds a new entry to the lists of its destination and of its message. The entry remains in these lists until it
    /// is removed, whatever its state.
    pub(super) fn link(&mut self, at: EntryIndex) {
        let QueueEntry { destination, id, received_unix_s, .. } = self.entries[at];
        let destination = &mut self.destinations[destination.0 as usize];
        destination.ages.add(received_unix_s);
        self.entries.push_back(&mut destination.all, ListKind::Destination, at);
        let before = self.messages.insert(id, at).unwrap_or(NO_ENTRY);
        self.entries[at].links[ListKind::Message as usize] = EntryLinks { previous: NO_ENTRY, next: before };
        if before != NO_ENTRY {
            self.entries[before].links[ListKind::Message as usize].previous = at;
        }
    }

    /// Removes an entry from the list of its current state. The caller must then put it into
    /// another state, or free it.
    pub(super) fn leave_state(&mut self, at: EntryIndex) {
        let entry = &mut self.entries[at];
        let destination = &mut self.destinations[entry.destination.0 as usize];
        destination.counts[entry.state as usize] -= 1;
        match entry.state {
            EntryState::Ready => {
                if std::mem::take(&mut entry.flags.loading) {
                    destination.loading -= 1;
                }
                if destination.next_unread == at {
                    destination.next_unread = self.entries.next(at, ListKind::State);
                }
                self.entries.unlink(&mut destination.ready, ListKind::State, at);
            }
            EntryState::Deferred => self.retry_timers.remove(&mut self.entries, at),
            EntryState::InFlight | EntryState::Held | EntryState::AwaitingDsn => {}
        }
    }

    /// Sets an entry's state, and adds 1 to its destination's count of entries in that state. If there is a list for
    /// the state, the caller must add the entry to the list.
    pub(super) fn enter_state(&mut self, at: EntryIndex, state: EntryState) {
        self.entries[at].state = state;
        let destination = self.entries[at].destination;
        self.destination(destination).counts[state as usize] += 1;
    }

    pub(super) fn make_ready(&mut self, at: EntryIndex, end: QueueEnd) {
        self.enter_state(at, EntryState::Ready);
        let entry = &self.entries[at];
        let destination = &mut self.destinations[entry.destination.0 as usize];
        let is_unread = entry.message.is_none();
        match end {
            QueueEnd::Back => self.entries.push_back(&mut destination.ready, ListKind::State, at),
            QueueEnd::Front => self.entries.push_front(&mut destination.ready, ListKind::State, at),
        }
        if is_unread && (destination.next_unread == NO_ENTRY || matches!(end, QueueEnd::Front)) {
            destination.next_unread = at;
        }
    }

    pub(super) fn defer(&mut self, at: EntryIndex, due_ms: u64) {
        self.enter_state(at, EntryState::Deferred);
        self.entries[at].due_ms = due_ms;
        self.retry_timers.insert(&mut self.entries, at, due_ms);
    }

    pub(super) fn schedule_age_check(&mut self, at: EntryIndex, when_ms: u64) {
        (self.entries[at].age_check_ms, self.entries[at].flags.age_timer_set) = (when_ms, true);
        self.age_timers.insert(&mut self.entries, at, when_ms);
    }

    pub(super) fn cancel_age_check(&mut self, at: EntryIndex) {
        if std::mem::take(&mut self.entries[at].flags.age_timer_set) {
            self.age_timers.remove(&mut self.entries, at);
        }
    }

    /// Removes an entry, whatever its state. Returns true if it was the last entry of its message.
    pub(super) fn remove_entry(&mut self, at: EntryIndex) -> bool {
        self.leave_state(at);
        self.cancel_age_check(at);
        self.drop_message(at);
        let QueueEntry { destination, id, received_unix_s, .. } = self.entries[at];
        let destination = &mut self.destinations[destination.0 as usize];
        destination.ages.remove(received_unix_s);
        self.entries.unlink(&mut destination.all, ListKind::Destination, at);
        let EntryLinks { previous: before, next: after } = self.entries[at].links[ListKind::Message as usize];
        if after != NO_ENTRY {
            self.entries[after].links[ListKind::Message as usize].previous = before;
        }
        match (before, after) {
            (NO_ENTRY, NO_ENTRY) => drop(self.messages.remove(&id)),
            (NO_ENTRY, after) => drop(self.messages.insert(id, after)),
            (before, after) => self.entries[before].links[ListKind::Message as usize].next = after,
        }
        self.entries.free(at);
        if self.messages.is_empty() && self.messages.capacity() > SPARE_MESSAGES {
            self.messages.shrink_to(SPARE_MESSAGES);
        }
        before == NO_ENTRY && after == NO_ENTRY
    }

    pub(super) fn entries_of(&self, id: MessageId) -> Vec<EntryIndex> {
        let first = self.messages.get(&id).copied();
        let next = |at: &EntryIndex| Some(self.entries.next(*at, ListKind::Message)).filter(|at| *at != NO_ENTRY);
        std::iter::successors(first, next).collect()
    }
}
