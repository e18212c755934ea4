//! Opening and closing of connections, and the times when a hop is left alone.
//!
//! A hop gets as many couriers as its backlog is worth. None is closed because the backlog shrank: that is left to the
//! idle limit of connections, so that their number never flaps. If couriers are scarce, a hop may open another only if
//! it would then have no more than stay free ("dynamic threshold", Choudhury and Hahne 1998): the busiest hop leaves
//! half to the others, and a hop that has none gets one as long as there is one. If there is none, idle couriers are
//! dismissed, and couriers that have had their share leave.
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use super::hop::Hop;
use super::{HopKey, NONE, Queue, State, Thread, millis};
use crate::relay::envelope::Refusal;

/// A connection to a hop, or an attempt at one. Its owner gives it back by `Queue::closed`.
#[must_use = "a courier that is not given back counts against the limits for ever"]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Courier {
    pub(crate) hop: HopKey,
    /// It found nothing to do.
    waits: bool,
    /// It has to leave.
    leaves: bool,
    /// It says QUIT: it takes nothing any more, but still has its connection.
    parts: bool,
}

/// Call for the driver to carry out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Connect to this courier's hop.
    Open(Courier),
    /// One of the hop's waiting couriers is to `take`.
    Wake(HopKey),
    /// One of the hop's waiting couriers is to close: others have waited for a connection.
    Dismiss(HopKey),
}

/// Reason why a courier is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// It had nothing more to do, or the session ended in the usual way.
    Finished,
    /// No session came about, or it ended before anything could be delivered.
    Unreachable(Refusal),
}

/// Hops that may want a call, in turn. Each is in a list once at most, and is checked again before it is used.
#[derive(Default)]
pub(super) struct Calls {
    /// Have work and an idle courier.
    waking: VecDeque<HopKey>,
    /// Have work and no courier.
    starving: VecDeque<HopKey>,
    /// Have something to do, and perhaps not enough couriers.
    growing: VecDeque<HopKey>,
    /// Have couriers that wait.
    resting: VecDeque<HopKey>,
    /// All couriers.
    pub(super) open: u32,
    /// Those among them that were dismissed or have to leave.
    leaving: u32,
}

/// Messages that a hop may send, after the last connection that it got, before it must give one up to a hop that has
/// none: often enough to be fair, seldom enough that connections pay.
const SHARE: u32 = 20;
/// Growing hops that are checked in one call.
const GLANCES: usize = 16;
/// Sessions in succession that may end without having delivered anything, before the hop counts as unreachable.
const FRUITLESS: u32 = 3;
/// Letters that are given up at once when a hop is shut.
const DROPPED_LETTERS: usize = 10_000;

impl<L: Clone> Queue<L> {
    /// Returns the next call: open, wake or dismiss. The driver asks until it is `None`, after each event.
    pub(crate) fn wants_courier(&mut self, now: Duration) -> Option<Call> {
        let now_ms = millis(now);
        if let Some(hop) = self.next_to_wake() {
            return Some(Call::Wake(hop));
        }
        let free = self.options.couriers.saturating_sub(self.calls.open);
        let starving = self.first_starving(now_ms);
        if free == 0 {
            starving?;
            return self.next_to_dismiss();
        }
        let hop = match starving {
            Some(hop) => {
                self.calls.starving.pop_front();
                self.hop(hop).listed.starving = false;
                hop
            }
            None => self.first_growing(free, now_ms)?,
        };
        Some(Call::Open(self.open(hop)))
    }

    fn open(&mut self, key: HopKey) -> Courier {
        self.calls.open += 1;
        let hop = self.hop(key);
        (hop.couriers, hop.served) = (hop.couriers + 1, 0);
        self.heed(key);
        Courier { hop: key, waits: false, leaves: false, parts: false }
    }

    fn next_to_wake(&mut self) -> Option<HopKey> {
        while let Some(key) = self.calls.waking.pop_front() {
            self.hop(key).listed.waking = false;
            if self.can_wake(key) {
                let hop = self.hop(key);
                (hop.idle, hop.called) = (hop.idle - 1, hop.called + 1);
                self.heed(key);
                return Some(key);
            }
        }
        None
    }

    fn can_wake(&self, key: HopKey) -> bool {
        let hop = &self.hops[key.0 as usize];
        let is_in_memory = hop.ready.first != NONE && self.entries[hop.ready.first].letter.is_some();
        is_in_memory && hop.idle > 0 && hop.called.saturating_mul(hop.batch) < hop.count(State::Ready)
    }

    /// The hop that has waited longest for its first courier; those that no longer do are passed over.
    fn first_starving(&mut self, now_ms: u64) -> Option<HopKey> {
        let limit = self.options.hop_couriers;
        while let Some(&key) = self.calls.starving.front() {
            let hop = &mut self.hops[key.0 as usize];
            if hop.serving() == 0 && hop.wants_another(limit, now_ms) {
                return Some(key);
            }
            hop.listed.starving = false;
            let is_served = hop.serving() > 0;
            self.calls.starving.pop_front();
            if is_served {
                self.heed(key);
            }
        }
        None
    }

    fn first_growing(&mut self, free: u32, now_ms: u64) -> Option<HopKey> {
        let limit = self.options.hop_couriers;
        for _ in 0..self.calls.growing.len().min(GLANCES) {
            let key = self.calls.growing.pop_front()?;
            let hop = &mut self.hops[key.0 as usize];
            if !hop.wants_another(limit, now_ms) {
                hop.listed.growing = false;
            } else if hop.couriers < free {
                hop.listed.growing = false;
                return Some(key);
            } else {
                self.calls.growing.push_back(key);
            }
        }
        None
    }

    /// Returns a hop with an idle courier while another hop has none.
    fn next_to_dismiss(&mut self) -> Option<Call> {
        while self.calls.leaving < self.calls.starving.len() as u32 {
            let key = self.calls.resting.pop_front()?;
            let hop = self.hop(key);
            hop.listed.resting = false;
            if hop.idle > 0 {
                (hop.idle, hop.dismissed) = (hop.idle - 1, hop.dismissed + 1);
                self.calls.leaving += 1;
                self.list_as_resting(key);
                return Some(Call::Dismiss(key));
            }
        }
        None
    }

    /// Reports whether this courier has to leave, since another hop has none and its own has had its share.
    pub(super) fn makes_room(&mut self, courier: &mut Courier, now_ms: u64) -> bool {
        let is_full = self.calls.open >= self.options.couriers && self.hop(courier.hop).served >= SHARE;
        let leaves =
            is_full && self.first_starving(now_ms).is_some() && self.calls.leaving < self.calls.starving.len() as u32;
        if leaves && !courier.leaves {
            courier.leaves = true;
            self.calls.leaving += 1;
            // The hop's next courier has had its share only after as many more.
            self.hop(courier.hop).served = 0;
        }
        leaves || courier.leaves
    }

    /// A courier found nothing to do.
    pub(super) fn rest(&mut self, courier: &mut Courier) {
        courier.waits = true;
        self.hop(courier.hop).idle += 1;
        self.list_as_resting(courier.hop);
    }

    fn list_as_resting(&mut self, key: HopKey) {
        let hop = self.hop(key);
        if hop.idle > 0 && !hop.listed.resting {
            hop.listed.resting = true;
            self.calls.resting.push_back(key);
        }
    }

    /// A courier asks again, or closes. Idle couriers are interchangeable; any that returns consumes one pending
    /// wake-up.
    pub(super) fn back_from_rest(&mut self, courier: &mut Courier) {
        if !std::mem::take(&mut courier.waits) {
            return;
        }
        let hop = &mut self.hops[courier.hop.0 as usize];
        if hop.called > 0 {
            hop.called -= 1;
        } else if hop.dismissed > 0 {
            hop.dismissed -= 1;
            self.calls.leaving -= 1;
        } else {
            hop.idle -= 1;
        }
    }

    /// A courier is about to go, by itself or because it was dismissed: it is not called any more, and others are
    /// opened in its place. A peer may take minutes to close the connection.
    pub(crate) fn parts(&mut self, courier: &mut Courier) {
        self.back_from_rest(courier);
        if !std::mem::replace(&mut courier.parts, true) {
            self.hop(courier.hop).parting += 1;
        }
        self.heed(courier.hop);
    }

    /// A courier is gone. Its assignments were given back by `outcome` before.
    pub(crate) fn closed(&mut self, mut courier: Courier, closing: Closing, now: Duration) {
        self.back_from_rest(&mut courier);
        self.calls.open -= 1;
        self.calls.leaving -= u32::from(courier.leaves);
        let hop = self.hop(courier.hop);
        hop.couriers -= 1;
        hop.parting -= u32::from(courier.parts);
        match closing {
            Closing::Unreachable(refusal) => self.shut(courier.hop, refusal, millis(now)),
            Closing::Finished if hop.fruitless >= FRUITLESS => {
                let refusal = Refusal::new(0, None, "sessions end before anything is delivered", "");
                self.shut(courier.hop, refusal, millis(now));
            }
            Closing::Finished => {}
        }
        self.heed(courier.hop);
    }

    /// Leaves a hop alone for a while. Its couriers that have a session go on, and its entries wait as they are: only
    /// no courier connects. Further failures meanwhile belong to the same outage.
    fn shut(&mut self, key: HopKey, refusal: Refusal, now_ms: u64) {
        let (reconnect, seed) = (self.options.reconnect, self.options.seed);
        let hop = self.hop(key);
        hop.shut_by = Some(hop.shared(refusal));
        (hop.fruitless, hop.is_asked) = (0, false);
        let (has_nobody, is_shut) = (hop.couriers == 0, hop.shut_until_ms > now_ms);
        if !is_shut {
            hop.failures = hop.failures.saturating_add(1);
            let wait_ms = millis(reconnect.wait(seed, u64::from(key.0), hop.failures)).max(1);
            hop.shut_until_ms = now_ms.saturating_add(wait_ms);
            let until_ms = hop.shut_until_ms;
            self.reopen.push(Reverse((until_ms, key)));
        }
        if has_nobody {
            self.drop_letters(key);
        }
    }

    /// Gives the memory of a hop that cannot be reached to those that can.
    fn drop_letters(&mut self, key: HopKey) {
        let mut at = self.hop(key).ready.first;
        for _ in 0..DROPPED_LETTERS {
            if at == NONE || self.hop(key).letter_bytes == 0 {
                break;
            }
            if !self.entries[at].marks.asked {
                self.drop_letter(at);
            }
            at = self.entries.after(at, Thread::State);
        }
        let hop = self.hop(key);
        hop.ahead = hop.ready.first;
    }

    /// Puts a hop that has changed on the lists for its possible calls.
    pub(super) fn heed(&mut self, key: HopKey) {
        let limit = self.options.hop_couriers;
        let can_wake = self.can_wake(key);
        let hop = &mut self.hops[key.0 as usize];
        if can_wake && !hop.listed.waking {
            hop.listed.waking = true;
            self.calls.waking.push_back(key);
        }
        if !hop.ready.is_empty() && hop.idle == 0 && hop.couriers < hop.most.unwrap_or(limit) {
            let (is_listed, list) = match hop.serving() {
                0 => (&mut hop.listed.starving, &mut self.calls.starving),
                _ => (&mut hop.listed.growing, &mut self.calls.growing),
            };
            if !std::mem::replace(is_listed, true) {
                list.push_back(key);
            }
        }
        self.heed_reading(key);
    }

    /// Sets how many messages a courier of this hop takes at a time: another is called, or opened, only for more.
    pub(crate) fn batch(&mut self, key: HopKey, messages: u32) {
        if std::mem::replace(&mut self.hop(key).batch, messages.max(1)) != messages.max(1) {
            self.heed(key);
        }
    }

    /// Allows a try of the hop at once, whatever its failures.
    pub(super) fn reopen_now(&mut self, key: HopKey) {
        self.hop(key).shut_until_ms = 0;
        self.heed(key);
    }
}

impl Hop {
    /// Couriers that do nothing: for statistics.
    pub(super) fn resting(&self) -> u32 {
        self.idle + self.called + self.dismissed
    }

    /// Couriers that take messages, or will.
    fn serving(&self) -> u32 {
        self.couriers - self.parting
    }
}
