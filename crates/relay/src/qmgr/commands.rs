use super::entry::{DestinationId, EntryIndex, EntryState, MessageId, QueueEnd};
use super::queue::{MailQueue, millis};
use super::result::Actions;
use crate::message::envelope::{Fact, RecipientFate};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperatorCommand {
    /// Stops delivery of the message until it is released. Meanwhile, the message can expire.
    Hold,
    Release,
    /// Removes the message without notifying its sender.
    Remove,
    /// Tries deferred messages and unreachable destinations at once.
    Retry,
}

impl<M: Clone> MailQueue<M> {
    /// Executes an operator's command for all recipients of a message. Returns `None` if no queue entry changed.
    pub(crate) fn apply_command(&mut self, command: OperatorCommand, id: MessageId, now: Duration) -> Option<Actions> {
        self.apply_command_at(command, id, None, now)
    }

    /// Executes an operator's command for one message. If `only` names a destination, the command applies only to the
    /// recipients there. Returns `None` if no queue entry changed. `Hold` and `Release` ignore `only`, because the
    /// spool can only record that a whole message is held.
    pub(crate) fn apply_command_at(
        &mut self,
        command: OperatorCommand,
        id: MessageId,
        only: Option<DestinationId>,
        now: Duration,
    ) -> Option<Actions> {
        let only = only.filter(|_| matches!(command, OperatorCommand::Remove | OperatorCommand::Retry));
        let mut actions = Actions { id, facts: Vec::new(), dsn: None, done: false };
        let mut is_changed = false;
        for at in self.entries_of(id) {
            if only.is_some_and(|only| self.entries[at].destination != only) {
                continue;
            }
            is_changed |= match command {
                OperatorCommand::Hold => self.hold(at),
                OperatorCommand::Release => self.release(at, &mut actions),
                OperatorCommand::Retry => self.retry(at, millis(now), &mut actions),
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

    /// Makes a queue entry ready at once, and adds a note for the spool, so that the entry is also ready after a
    /// restart.
    fn requeue(&mut self, at: EntryIndex, actions: &mut Actions) {
        actions.facts.extend(self.entries[at].deferred_facts(0));
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
                    // Record the removal at once, so that the message is not delivered again if the
                    // relay ends before the result arrives.
                    let recipients = entry.recipients.to_vec();
                    actions.facts.push(Fact::Settled { recipients, fate: RecipientFate::Removed });
                }
                is_new
            }
            // It is too late to remove this entry, because its DSN is already being written.
            EntryState::AwaitingDsn => false,
        }
    }
}

/// Each call of `tick` handles at most this many retries and as many age checks. Without a limit, a million timers that
/// are due at once would stall a worker's sessions.
pub(super) const MAX_TICK_TIMERS: usize = 1_000;

impl<M: Clone> MailQueue<M> {
    /// Ends all backoffs whose time is over, and handles up to `MAX_TICK_TIMERS` due retries and as many age checks. If
    /// more are due, `deadline` stays in the past, so that the worker soon calls this function again.
    pub(crate) fn tick(&mut self, now: Duration, actions: &mut Vec<Actions>) {
        let now_ms = millis(now);
        while self.backoff_ends.peek().is_some_and(|Reverse((when_ms, _))| *when_ms <= now_ms) {
            if let Some(Reverse((_, destination))) = self.backoff_ends.pop() {
                self.update_lists(destination);
            }
        }
        for _ in 0..MAX_TICK_TIMERS {
            let Some(at) = self.retry_timers.pop(&mut self.entries, now_ms) else { break };
            self.retry_due(at, now_ms);
        }
        for _ in 0..MAX_TICK_TIMERS {
            let Some(at) = self.age_timers.pop(&mut self.entries, now_ms) else { break };
            self.entries[at].flags.age_timer_set = false;
            actions.extend(self.check_age(at, now_ms));
        }
    }

    fn retry_due(&mut self, at: EntryIndex, now_ms: u64) {
        let due_ms = self.entries[at].due_ms;
        let destination = self.entries[at].destination;
        self.destination(destination).counts[EntryState::Deferred as usize] -= 1;
        if due_ms > now_ms {
            self.defer(at, due_ms);
        } else {
            self.make_ready(at, QueueEnd::Back);
            self.update_lists(destination);
        }
    }
}
