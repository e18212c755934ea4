//! An operator's orders: hold, release, remove, retry; for one message, those of a hop, or all.
use std::collections::HashSet;
use std::time::Duration;

use super::entry::{EntryIndex, EntryState, ListKind, NO_ENTRY};
use super::{Actions, DestinationId, MailQueue, MessageId, QueueEnd, millis};
use crate::message::envelope::{Fact, RecipientFate};

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorCommand {
    /// Nothing is sent until it is released. It ages all the same.
    Hold,
    /// Makes it ready at once.
    Release,
    /// Forgets it, without a notice.
    Remove,
    /// Tries deferred messages at once, and hops that could not be reached.
    Retry,
}

/// Messages that an order applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "operators' orders come page by page, a message at a time"))]
pub(crate) enum MessageSelector {
    Message(MessageId),
    /// Messages that have recipients at that hop; held, released and removed as a whole.
    Destination(DestinationId),
    All,
}

impl<L: Clone> MailQueue<L> {
    /// Carries an order out, and gives the effects for each message that it changed; returns how many these were.
    pub(crate) fn apply_command(
        &mut self,
        order: OperatorCommand,
        which: MessageSelector,
        now: Duration,
        mut each: impl FnMut(Actions),
    ) -> usize {
        let mut changed = 0;
        for id in self.select_messages(which) {
            if let Some(effects) = self.apply_to_message(order, id, millis(now)) {
                changed += 1;
                each(effects);
            }
        }
        if let (OperatorCommand::Retry, MessageSelector::Destination(hop)) = (order, which)
            && self.destinations.len() > hop.0 as usize
        {
            self.end_backoff(hop);
        }
        changed
    }

    fn select_messages(&self, which: MessageSelector) -> Vec<MessageId> {
        match which {
            MessageSelector::Message(id) => vec![id],
            MessageSelector::All => {
                let mut all: Vec<MessageId> = self.messages.keys().copied().collect();
                // In the order of the log, in which they will be read.
                all.sort_unstable();
                all
            }
            MessageSelector::Destination(hop) => {
                let first = self.destinations.get(hop.0 as usize).map(|hop| hop.all.first).filter(|at| *at != NO_ENTRY);
                let next =
                    |at: &EntryIndex| Some(self.entries.next(*at, ListKind::Destination)).filter(|at| *at != NO_ENTRY);
                let mut seen = HashSet::new();
                let ids = std::iter::successors(first, next).map(|at| self.entries[at].id);
                ids.filter(|id| seen.insert(*id)).collect()
            }
        }
    }

    /// Carries out an order for one message; `None` if nothing changed.
    fn apply_to_message(&mut self, order: OperatorCommand, id: MessageId, now_ms: u64) -> Option<Actions> {
        let mut effects = Actions { id, facts: Vec::new(), dsn: None, done: false };
        let mut is_changed = false;
        for at in self.entries_of(id) {
            is_changed |= match order {
                OperatorCommand::Hold => self.hold(at),
                OperatorCommand::Release => self.release(at, &mut effects),
                OperatorCommand::Retry => self.retry(at, now_ms, &mut effects),
                OperatorCommand::Remove => self.remove(at, &mut effects),
            };
        }
        match order {
            OperatorCommand::Hold => effects.facts.push(Fact::Held),
            OperatorCommand::Release => effects.facts.push(Fact::Released),
            OperatorCommand::Remove | OperatorCommand::Retry => {}
        }
        is_changed.then_some(effects)
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

    fn release(&mut self, at: EntryIndex, effects: &mut Actions) -> bool {
        match self.entries[at].state {
            EntryState::Held => {
                self.requeue(at, effects);
                true
            }
            EntryState::InFlight => std::mem::take(&mut self.entries[at].flags.hold_requested),
            EntryState::Ready | EntryState::Deferred | EntryState::AwaitingDsn => false,
        }
    }

    fn retry(&mut self, at: EntryIndex, now_ms: u64, effects: &mut Actions) -> bool {
        let state = self.entries[at].state;
        let hop = self.entries[at].destination;
        let is_shut = self.destination(hop).backoff_until_ms > now_ms;
        match state {
            EntryState::Deferred => self.requeue(at, effects),
            EntryState::Ready => {}
            EntryState::InFlight | EntryState::Held | EntryState::AwaitingDsn => return false,
        }
        if is_shut {
            self.end_backoff(hop);
        }
        is_shut || state == EntryState::Deferred
    }

    /// Makes an entry ready at once, after a restart too.
    fn requeue(&mut self, at: EntryIndex, effects: &mut Actions) {
        let entry = &self.entries[at];
        if let Some(refusal) = &entry.refusal {
            let recipients = entry.recipients.to_vec();
            let attempts = entry.attempts;
            let refusal = (**refusal).clone();
            effects.facts.push(Fact::Deferred { recipients, attempts, next_unix_s: 0, refusal });
        }
        self.leave_state(at);
        self.make_ready(at, QueueEnd::Back);
        let hop = self.entries[at].destination;
        self.update_lists(hop);
    }

    fn remove(&mut self, at: EntryIndex, effects: &mut Actions) -> bool {
        match self.entries[at].state {
            EntryState::Ready | EntryState::Deferred | EntryState::Held => {
                let settled = self.settle_all(at, RecipientFate::Removed);
                effects.facts.extend(settled.facts);
                effects.done |= settled.done;
                if effects.done {
                    effects.facts.clear();
                }
                true
            }
            EntryState::InFlight => {
                let entry = &mut self.entries[at];
                let is_new = !std::mem::replace(&mut entry.flags.remove_requested, true);
                if is_new {
                    // If the relay ends before the courier comes back, the message is not delivered again.
                    let recipients = entry.recipients.to_vec();
                    effects.facts.push(Fact::Settled { recipients, fate: RecipientFate::Removed });
                }
                is_new
            }
            // Its notice is being written.
            EntryState::AwaitingDsn => false,
        }
    }
}
