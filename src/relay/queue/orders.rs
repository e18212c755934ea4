//! An operator's orders: hold, release, remove, retry; for one message, those of a hop, or all.
use std::collections::HashSet;
use std::time::Duration;

use super::entry::{Index, NONE, State, Thread};
use super::{Effects, End, HopKey, MessageId, Queue, millis};
use crate::relay::envelope::{Fact, Fate};

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
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
pub(crate) enum Which {
    Message(MessageId),
    /// Messages that have recipients at that hop; held, released and removed as a whole.
    Hop(HopKey),
    All,
}

impl<L: Clone> Queue<L> {
    /// Carries an order out, and gives the effects for each message that it changed; returns how many these were.
    pub(crate) fn order(&mut self, order: Order, which: Which, now: Duration, mut each: impl FnMut(Effects)) -> usize {
        let mut changed = 0;
        for id in self.meant(which) {
            if let Some(effects) = self.order_one(order, id, millis(now)) {
                changed += 1;
                each(effects);
            }
        }
        if let (Order::Retry, Which::Hop(hop)) = (order, which)
            && self.hops.len() > hop.0 as usize
        {
            self.reopen_now(hop);
        }
        changed
    }

    fn meant(&self, which: Which) -> Vec<MessageId> {
        match which {
            Which::Message(id) => vec![id],
            Which::All => {
                let mut all: Vec<MessageId> = self.messages.keys().copied().collect();
                // In the order of the log, in which they will be read.
                all.sort_unstable();
                all
            }
            Which::Hop(hop) => {
                let first = self.hops.get(hop.0 as usize).map(|hop| hop.all.first).filter(|at| *at != NONE);
                let next = |at: &Index| Some(self.entries.after(*at, Thread::Hop)).filter(|at| *at != NONE);
                let mut seen = HashSet::new();
                let ids = std::iter::successors(first, next).map(|at| self.entries[at].id);
                ids.filter(|id| seen.insert(*id)).collect()
            }
        }
    }

    /// Carries out an order for one message; `None` if nothing changed.
    fn order_one(&mut self, order: Order, id: MessageId, now_ms: u64) -> Option<Effects> {
        let mut effects = Effects { id, facts: Vec::new(), notice: None, done: false };
        let mut is_changed = false;
        for at in self.of_message(id) {
            is_changed |= match order {
                Order::Hold => self.hold(at),
                Order::Release => self.release(at, &mut effects),
                Order::Retry => self.retry(at, now_ms, &mut effects),
                Order::Remove => self.remove(at, &mut effects),
            };
        }
        match order {
            Order::Hold => effects.facts.push(Fact::Held),
            Order::Release => effects.facts.push(Fact::Released),
            Order::Remove | Order::Retry => {}
        }
        is_changed.then_some(effects)
    }

    fn hold(&mut self, at: Index) -> bool {
        match self.entries[at].state {
            State::Ready | State::Deferred => {
                self.leave(at);
                self.drop_letter(at);
                self.enter(at, State::Held);
                true
            }
            State::InFlight => !std::mem::replace(&mut self.entries[at].marks.hold, true),
            State::Held | State::Telling => false,
        }
    }

    fn release(&mut self, at: Index, effects: &mut Effects) -> bool {
        match self.entries[at].state {
            State::Held => {
                self.again(at, effects);
                true
            }
            State::InFlight => std::mem::take(&mut self.entries[at].marks.hold),
            State::Ready | State::Deferred | State::Telling => false,
        }
    }

    fn retry(&mut self, at: Index, now_ms: u64, effects: &mut Effects) -> bool {
        let (state, hop) = (self.entries[at].state, self.entries[at].hop);
        let is_shut = self.hop(hop).shut_until_ms > now_ms;
        match state {
            State::Deferred => self.again(at, effects),
            State::Ready => {}
            State::InFlight | State::Held | State::Telling => return false,
        }
        if is_shut {
            self.reopen_now(hop);
        }
        is_shut || state == State::Deferred
    }

    /// Makes an entry ready at once, after a restart too.
    fn again(&mut self, at: Index, effects: &mut Effects) {
        let entry = &self.entries[at];
        if let Some(refusal) = &entry.refusal {
            let (recipients, attempts, refusal) = (entry.recipients.to_vec(), entry.attempts, (**refusal).clone());
            effects.facts.push(Fact::Deferred { recipients, attempts, next_unix_s: 0, refusal });
        }
        self.leave(at);
        self.make_ready(at, End::Back);
        let hop = self.entries[at].hop;
        self.heed(hop);
    }

    fn remove(&mut self, at: Index, effects: &mut Effects) -> bool {
        match self.entries[at].state {
            State::Ready | State::Deferred | State::Held => {
                let settled = self.settle_alike(at, Fate::Removed);
                effects.facts.extend(settled.facts);
                effects.done |= settled.done;
                if effects.done {
                    effects.facts.clear();
                }
                true
            }
            State::InFlight => {
                let entry = &mut self.entries[at];
                let is_new = !std::mem::replace(&mut entry.marks.remove, true);
                if is_new {
                    // If the relay ends before the courier comes back, the message is not delivered again.
                    let recipients = entry.recipients.to_vec();
                    effects.facts.push(Fact::Settled { recipients, fate: Fate::Removed });
                }
                is_new
            }
            // Its notice is being written.
            State::Telling => false,
        }
    }
}
