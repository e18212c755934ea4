//! Executes an operator's commands (hold, release, remove, retry) for one message, for the messages
//! of a destination, or for all messages.
use std::collections::HashSet;
use std::time::Duration;

use super::entry::{EntryIndex, EntryState, ListKind, NO_ENTRY};
use super::{Actions, DestinationId, MailQueue, MessageId, QueueEnd, millis};
use crate::message::envelope::{Fact, RecipientFate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorCommand {
    /// Stops delivery of the message until it is released. The message ages nevertheless.
    Hold,
    Release,
    /// Removes the message without a DSN.
    Remove,
    /// Tries deferred messages and unreachable destinations at once.
    Retry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "operators' commands come page by page, a message at a time"))]
pub(crate) enum MessageSelector {
    Message(MessageId),
    /// Messages that have recipients at this destination. They are held, released and removed as a
    /// whole.
    Destination(DestinationId),
    All,
}

impl<M: Clone> MailQueue<M> {
    /// Executes a command, and adds the actions for each changed message. Returns the number of
    /// changed messages.
    pub(crate) fn apply_command(
        &mut self,
        command: OperatorCommand,
        which: MessageSelector,
        now: Duration,
        mut each: impl FnMut(Actions),
    ) -> usize {
        let mut changed = 0;
        for id in self.select_messages(which) {
            if let Some(actions) = self.apply_to_message(command, id, millis(now)) {
                changed += 1;
                each(actions);
            }
        }
        if let (OperatorCommand::Retry, MessageSelector::Destination(destination)) = (command, which)
            && self.destinations.len() > destination.0 as usize
        {
            self.end_backoff(destination);
        }
        changed
    }

    fn select_messages(&self, which: MessageSelector) -> Vec<MessageId> {
        match which {
            MessageSelector::Message(id) => vec![id],
            MessageSelector::All => {
                let mut all: Vec<MessageId> = self.messages.keys().copied().collect();
                // Sort the messages by the order of the log, in which they will be read.
                all.sort_unstable();
                all
            }
            MessageSelector::Destination(destination) => {
                let first = self
                    .destinations
                    .get(destination.0 as usize)
                    .map(|destination| destination.all.first)
                    .filter(|at| *at != NO_ENTRY);
                let next =
                    |at: &EntryIndex| Some(self.entries.next(*at, ListKind::Destination)).filter(|at| *at != NO_ENTRY);
                let mut seen = HashSet::new();
                let ids = std::iter::successors(first, next).map(|at| self.entries[at].id);
                ids.filter(|id| seen.insert(*id)).collect()
            }
        }
    }

    /// Executes a command for one message. Returns `None` if nothing changed.
    fn apply_to_message(&mut self, command: OperatorCommand, id: MessageId, now_ms: u64) -> Option<Actions> {
        let mut actions = Actions { id, facts: Vec::new(), dsn: None, done: false };
        let mut is_changed = false;
        for at in self.entries_of(id) {
            is_changed |= match command {
                OperatorCommand::Hold => self.hold(at),
                OperatorCommand::Release => self.release(at, &mut actions),
                OperatorCommand::Retry => self.retry(at, now_ms, &mut actions),
                OperatorCommand::Remove => self.remove(at, &mut actions),
            };
        }
        match command {
            OperatorCommand::Hold => actions.facts.push(Fact::Held),
            OperatorCommand::Release => actions.facts.push(Fact::Released),
            OperatorCommand::Remove | OperatorCommand::Retry => {}
        }
        is_changed.then_some(actions)
    }

    fn hold(&mut self, at: EntryIndex) -> bool {
        match self.entries[at].state {
            EntryState::Ready | EntryState::Deferred => {
                self.leave_state(at);
                self.drop_message(at);
                self.enter_state(at, EntryState::Held);
                true
            }
            EntryState::InFlight => !std::mem::replace(&mut self.entries[at].flags.hold_requested, true),
            EntryState::Held | EntryState::AwaitingDsn => false,
        }
    }

    fn release(&mut self, at: EntryIndex, actions: &mut Actions) -> bool {
        match self.entries[at].state {
            EntryState::Held => {
                self.requeue(at, actions);
                true
            }
            EntryState::InFlight => std::mem::take(&mut self.entries[at].flags.hold_requested),
            EntryState::Ready | EntryState::Deferred | EntryState::AwaitingDsn => false,
        }
    }

    fn retry(&mut self, at: EntryIndex, now_ms: u64, actions: &mut Actions) -> bool {
        let state = self.entries[at].state;
        let destination = self.entries[at].destination;
        let is_in_backoff = self.destination(destination).backoff_until_ms > now_ms;
        match state {
            EntryState::Deferred => self.requeue(at, actions),
            EntryState::Ready => {}
            EntryState::InFlight | EntryState::Held | EntryState::AwaitingDsn => return false,
        }
        if is_in_backoff {
            self.end_backoff(destination);
        }
        is_in_backoff || state == EntryState::Deferred
    }

    /// Makes an entry ready at once, even after a restart.
    fn requeue(&mut self, at: EntryIndex, actions: &mut Actions) {
        let entry = &self.entries[at];
        if let Some(refusal) = &entry.refusal {
            let recipients = entry.recipients.to_vec();
            let attempts = entry.attempts;
            let refusal = (**refusal).clone();
            actions.facts.push(Fact::Deferred { recipients, attempts, next_unix_s: 0, refusal });
        }
        self.leave_state(at);
        self.make_ready(at, QueueEnd::Back);
        let destination = self.entries[at].destination;
        self.update_lists(destination);
    }

    fn remove(&mut self, at: EntryIndex, actions: &mut Actions) -> bool {
        match self.entries[at].state {
            EntryState::Ready | EntryState::Deferred | EntryState::Held => {
                let settled = self.settle_all(at, RecipientFate::Removed);
                actions.facts.extend(settled.facts);
                actions.done |= settled.done;
                if actions.done {
                    actions.facts.clear();
                }
                true
            }
            EntryState::InFlight => {
                let entry = &mut self.entries[at];
                let is_new = !std::mem::replace(&mut entry.flags.remove_requested, true);
                if is_new {
                    // If the relay ends before the result arrives, the message must not be
                    // delivered again.
                    let recipients = entry.recipients.to_vec();
                    actions.facts.push(Fact::Settled { recipients, fate: RecipientFate::Removed });
                }
                is_new
            }
            // The DSN about the entry is being written.
            EntryState::AwaitingDsn => false,
        }
    }
}
