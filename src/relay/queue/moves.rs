//! An entry's way from state to state: every list and every count of entries changes here, and nowhere else.
use super::entry::{Index, Link, NONE, State, Thread};
use super::{MessageId, Queue};

/// Messages for which the index keeps room when the queue has run empty.
pub(super) const SPARE_MESSAGES: usize = 4_096;

/// End of a hop's line.
#[derive(Clone, Copy)]
pub(super) enum End {
    Front,
    Back,
}

impl<L: Clone> Queue<L> {
    /// Takes the entry into the lists of its hop and its message.
    pub(super) fn join(&mut self, at: Index) {
        let (hop, id) = (self.entries[at].hop, self.entries[at].id);
        self.entries.push_back(&mut self.hops[hop.0 as usize].all, Thread::Hop, at);
        let before = self.messages.insert(id, at).unwrap_or(NONE);
        self.entries[at].links[Thread::Message as usize] = Link { before: NONE, after: before };
        if before != NONE {
            self.entries[before].links[Thread::Message as usize].before = at;
        }
    }

    /// Takes an entry out of the state that it is in.
    pub(super) fn leave(&mut self, at: Index) {
        let entry = &mut self.entries[at];
        let hop = &mut self.hops[entry.hop.0 as usize];
        hop.counts[entry.state as usize] -= 1;
        match entry.state {
            State::Ready => {
                if std::mem::take(&mut entry.marks.asked) {
                    hop.asked -= 1;
                }
                if hop.ahead == at {
                    hop.ahead = self.entries.after(at, Thread::State);
                }
                self.entries.unlink(&mut hop.ready, Thread::State, at);
            }
            State::Deferred => self.due.remove(&mut self.entries, at),
            State::InFlight | State::Held | State::Telling => {}
        }
    }

    /// Takes it into a state that has no list.
    pub(super) fn enter(&mut self, at: Index, state: State) {
        self.entries[at].state = state;
        let hop = self.entries[at].hop;
        self.hop(hop).counts[state as usize] += 1;
    }

    pub(super) fn make_ready(&mut self, at: Index, end: End) {
        self.enter(at, State::Ready);
        let entry = &self.entries[at];
        let hop = &mut self.hops[entry.hop.0 as usize];
        let is_unread = entry.letter.is_none();
        match end {
            End::Back => self.entries.push_back(&mut hop.ready, Thread::State, at),
            End::Front => self.entries.push_front(&mut hop.ready, Thread::State, at),
        }
        if is_unread && (hop.ahead == NONE || matches!(end, End::Front)) {
            hop.ahead = at;
        }
    }

    pub(super) fn defer(&mut self, at: Index, due_ms: u64) {
        self.enter(at, State::Deferred);
        self.entries[at].due_ms = due_ms;
        self.due.insert(&mut self.entries, at, due_ms);
    }

    pub(super) fn set_alarm(&mut self, at: Index, when_ms: u64) {
        (self.entries[at].alarm_ms, self.entries[at].marks.alarmed) = (when_ms, true);
        self.alarms.insert(&mut self.entries, at, when_ms);
    }

    pub(super) fn clear_alarm(&mut self, at: Index) {
        if std::mem::take(&mut self.entries[at].marks.alarmed) {
            self.alarms.remove(&mut self.entries, at);
        }
    }

    /// Forgets an entry in any state; reports whether it was its message's last.
    pub(super) fn forget(&mut self, at: Index) -> bool {
        self.leave(at);
        self.clear_alarm(at);
        self.drop_letter(at);
        let (hop, id) = (self.entries[at].hop, self.entries[at].id);
        self.entries.unlink(&mut self.hops[hop.0 as usize].all, Thread::Hop, at);
        let Link { before, after } = self.entries[at].links[Thread::Message as usize];
        if after != NONE {
            self.entries[after].links[Thread::Message as usize].before = before;
        }
        match (before, after) {
            (NONE, NONE) => drop(self.messages.remove(&id)),
            (NONE, after) => drop(self.messages.insert(id, after)),
            (before, after) => self.entries[before].links[Thread::Message as usize].after = after,
        }
        self.entries.free(at);
        if self.messages.is_empty() && self.messages.capacity() > SPARE_MESSAGES {
            self.messages.shrink_to(SPARE_MESSAGES);
        }
        before == NONE && after == NONE
    }

    /// The entries of a message.
    pub(super) fn of_message(&self, id: MessageId) -> Vec<Index> {
        let first = self.messages.get(&id).copied();
        let next = |at: &Index| Some(self.entries.after(*at, Thread::Message)).filter(|at| *at != NONE);
        std::iter::successors(first, next).collect()
    }
}
