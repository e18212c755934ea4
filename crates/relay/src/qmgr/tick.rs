//! Does the work that is due: ends of backoffs, retries, and the age of messages.
use std::cmp::Reverse;
use std::time::Duration;

use super::entry::{EntryIndex, EntryState, QueueEnd};
use super::queue::{MailQueue, millis};
use super::result::Actions;

/// Maximum number of timers that are handled per `tick`, so that a million timers that are due at
/// once do not stall a worker's sessions.
pub(super) const MAX_TICK_TIMERS: usize = 1_000;

impl<M: Clone> MailQueue<M> {
    /// Does a limited part of the due work. If work is left, the deadline stays in the past.
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
