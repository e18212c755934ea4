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

use super::destination::DestinationQueue;
use super::{DestinationId, EntryState, ListKind, MailQueue, NO_ENTRY, millis};
use crate::message::envelope::DeliveryRefusal;

/// A connection to a hop, or an attempt at one. Its owner gives it back by `Queue::closed`.
#[must_use = "a courier that is not given back counts against the limits for ever"]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConnectionSlot {
    pub(crate) destination: DestinationId,
    /// It found nothing to do.
    is_idle: bool,
    /// It has to leave.
    must_quit: bool,
    /// It says QUIT: it takes nothing any more, but still has its connection.
    is_quitting: bool,
}

/// Call for the driver to carry out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConnectionAction {
    /// Connect to this courier's hop.
    Open(ConnectionSlot),
    /// One of the hop's waiting couriers is to `take`.
    Wake(DestinationId),
    /// One of the hop's waiting couriers is to close: others have waited for a connection.
    Close(DestinationId),
}

/// Reason why a courier is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    /// It had nothing more to do, or the session ended in the usual way.
    Finished,
    /// No session came about, or it ended before anything could be delivered.
    Unreachable(DeliveryRefusal),
}

/// Hops that may want a call, in turn. Each is in a list once at most, and is checked again before it is used.
#[derive(Default)]
pub(super) struct ConnectionLists {
    /// Have work and an idle courier.
    wakeable: VecDeque<DestinationId>,
    /// Have work and no courier.
    unserved: VecDeque<DestinationId>,
    /// Have something to do, and perhaps not enough couriers.
    scalable: VecDeque<DestinationId>,
    /// Have couriers that wait.
    idle: VecDeque<DestinationId>,
    /// All couriers.
    pub(super) open: u32,
    /// Those among them that were dismissed or have to leave.
    closing: u32,
}

/// Messages that a hop may send, after the last connection that it got, before it must give one up to a hop that has
/// none: often enough to be fair, seldom enough that connections pay.
const FAIR_SHARE_LIMIT: u32 = 20;
/// Growing hops that are checked in one call.
const MAX_SCALABLE_CHECKS: usize = 16;
/// Sessions in succession that may end without having delivered anything, before the hop counts as unreachable.
const MAX_FAILED_SESSIONS: u32 = 3;
/// Letters that are given up at once when a hop is shut.
const MAX_DROPPED_MESSAGES: usize = 10_000;

impl<L: Clone> MailQueue<L> {
    /// Returns the next call: open, wake or dismiss. The driver asks until it is `None`, after each event.
    pub(crate) fn next_connection_action(&mut self, now: Duration) -> Option<ConnectionAction> {
        let now_ms = millis(now);
        if let Some(hop) = self.next_to_wake() {
            return Some(ConnectionAction::Wake(hop));
        }
        let free = self.options.concurrency_limit.saturating_sub(self.connections.open);
        let starving = self.first_unserved(now_ms);
        if free == 0 {
            starving?;
            return self.next_to_close();
        }
        let hop = match starving {
            Some(hop) => {
                self.connections.unserved.pop_front();
                self.destination(hop).listed.unserved = false;
                hop
            }
            None => self.first_scalable(free, now_ms)?,
        };
        Some(ConnectionAction::Open(self.open(hop)))
    }

    fn open(&mut self, key: DestinationId) -> ConnectionSlot {
        self.connections.open += 1;
        let hop = self.destination(key);
        (hop.connections, hop.served) = (hop.connections + 1, 0);
        self.update_lists(key);
        ConnectionSlot { destination: key, is_idle: false, must_quit: false, is_quitting: false }
    }

    fn next_to_wake(&mut self) -> Option<DestinationId> {
        while let Some(key) = self.connections.wakeable.pop_front() {
            self.destination(key).listed.wakeable = false;
            if self.can_wake(key) {
                let hop = self.destination(key);
                (hop.idle, hop.woken) = (hop.idle - 1, hop.woken + 1);
                self.update_lists(key);
                return Some(key);
            }
        }
        None
    }

    fn can_wake(&self, key: DestinationId) -> bool {
        let hop = &self.destinations[key.0 as usize];
        let is_in_memory = hop.ready.first != NO_ENTRY && self.entries[hop.ready.first].message.is_some();
        is_in_memory && hop.idle > 0 && hop.woken.saturating_mul(hop.batch_size) < hop.count(EntryState::Ready)
    }

    /// The hop that has waited longest for its first courier; those that no longer do are passed over.
    fn first_unserved(&mut self, now_ms: u64) -> Option<DestinationId> {
        let limit = self.options.destination_concurrency_limit;
        while let Some(&key) = self.connections.unserved.front() {
            let hop = &mut self.destinations[key.0 as usize];
            if hop.active_connections() == 0 && hop.wants_connection(limit, now_ms) {
                return Some(key);
            }
            hop.listed.unserved = false;
            let is_served = hop.active_connections() > 0;
            self.connections.unserved.pop_front();
            if is_served {
                self.update_lists(key);
            }
        }
        None
    }

    fn first_scalable(&mut self, free: u32, now_ms: u64) -> Option<DestinationId> {
        let limit = self.options.destination_concurrency_limit;
        for _ in 0..self.connections.scalable.len().min(MAX_SCALABLE_CHECKS) {
            let key = self.connections.scalable.pop_front()?;
            let hop = &mut self.destinations[key.0 as usize];
            if !hop.wants_connection(limit, now_ms) {
                hop.listed.scalable = false;
            } else if hop.connections < free {
                hop.listed.scalable = false;
                return Some(key);
            } else {
                self.connections.scalable.push_back(key);
            }
        }
        None
    }

    /// Returns a hop with an idle courier while another hop has none.
    fn next_to_close(&mut self) -> Option<ConnectionAction> {
        while self.connections.closing < self.connections.unserved.len() as u32 {
            let key = self.connections.idle.pop_front()?;
            let hop = self.destination(key);
            hop.listed.idle = false;
            if hop.idle > 0 {
                (hop.idle, hop.dismissed) = (hop.idle - 1, hop.dismissed + 1);
                self.connections.closing += 1;
                self.list_as_idle(key);
                return Some(ConnectionAction::Close(key));
            }
        }
        None
    }

    /// Reports whether this courier has to leave, since another hop has none and its own has had its share.
    pub(super) fn must_yield(&mut self, courier: &mut ConnectionSlot, now_ms: u64) -> bool {
        let is_full = self.connections.open >= self.options.concurrency_limit
            && self.destination(courier.destination).served >= FAIR_SHARE_LIMIT;
        let leaves = is_full
            && self.first_unserved(now_ms).is_some()
            && self.connections.closing < self.connections.unserved.len() as u32;
        if leaves && !courier.must_quit {
            courier.must_quit = true;
            self.connections.closing += 1;
            // The hop's next courier has had its share only after as many more.
            self.destination(courier.destination).served = 0;
        }
        leaves || courier.must_quit
    }

    /// A courier found nothing to do.
    pub(super) fn mark_idle(&mut self, courier: &mut ConnectionSlot) {
        courier.is_idle = true;
        self.destination(courier.destination).idle += 1;
        self.list_as_idle(courier.destination);
    }

    fn list_as_idle(&mut self, key: DestinationId) {
        let hop = self.destination(key);
        if hop.idle > 0 && !hop.listed.idle {
            hop.listed.idle = true;
            self.connections.idle.push_back(key);
        }
    }

    /// A courier asks again, or closes. Idle couriers are interchangeable; any that returns consumes one pending
    /// wake-up.
    pub(super) fn mark_busy(&mut self, courier: &mut ConnectionSlot) {
        if !std::mem::take(&mut courier.is_idle) {
            return;
        }
        let hop = &mut self.destinations[courier.destination.0 as usize];
        if hop.woken > 0 {
            hop.woken -= 1;
        } else if hop.dismissed > 0 {
            hop.dismissed -= 1;
            self.connections.closing -= 1;
        } else {
            hop.idle -= 1;
        }
    }

    /// A courier is about to go, by itself or because it was dismissed: it is not called any more, and others are
    /// opened in its place. A peer may take minutes to close the connection.
    pub(crate) fn begin_quit(&mut self, courier: &mut ConnectionSlot) {
        self.mark_busy(courier);
        if !std::mem::replace(&mut courier.is_quitting, true) {
            self.destination(courier.destination).quitting += 1;
        }
        self.update_lists(courier.destination);
    }

    /// A courier is gone. Its assignments were given back by `outcome` before.
    pub(crate) fn closed(&mut self, mut courier: ConnectionSlot, closing: DisconnectReason, now: Duration) {
        self.mark_busy(&mut courier);
        self.connections.open -= 1;
        self.connections.closing -= u32::from(courier.must_quit);
        let hop = self.destination(courier.destination);
        hop.connections -= 1;
        hop.quitting -= u32::from(courier.is_quitting);
        match closing {
            DisconnectReason::Unreachable(refusal) => self.back_off(courier.destination, refusal, millis(now)),
            DisconnectReason::Finished if hop.failed_sessions >= MAX_FAILED_SESSIONS => {
                let refusal = DeliveryRefusal::new(0, None, "sessions end before anything is delivered", "");
                self.back_off(courier.destination, refusal, millis(now));
            }
            DisconnectReason::Finished => {}
        }
        self.update_lists(courier.destination);
    }

    /// Leaves a hop alone for a while. Its couriers that have a session go on, and its entries wait as they are: only
    /// no courier connects. Further failures meanwhile belong to the same outage.
    fn back_off(&mut self, key: DestinationId, refusal: DeliveryRefusal, now_ms: u64) {
        let reconnect = self.options.reconnect;
        let seed = self.options.seed;
        let hop = self.destination(key);
        hop.backoff_reason = Some(hop.share_refusal(refusal));
        (hop.failed_sessions, hop.has_connected) = (0, false);
        let has_nobody = hop.connections == 0;
        let is_shut = hop.backoff_until_ms > now_ms;
        if !is_shut {
            hop.failures = hop.failures.saturating_add(1);
            let wait_ms = millis(reconnect.delay(seed, u64::from(key.0), hop.failures)).max(1);
            hop.backoff_until_ms = now_ms.saturating_add(wait_ms);
            let until_ms = hop.backoff_until_ms;
            self.backoff_ends.push(Reverse((until_ms, key)));
        }
        if has_nobody {
            self.drop_messages(key);
        }
    }

    /// Gives the memory of a hop that cannot be reached to those that can.
    fn drop_messages(&mut self, key: DestinationId) {
        let mut at = self.destination(key).ready.first;
        for _ in 0..MAX_DROPPED_MESSAGES {
            if at == NO_ENTRY || self.destination(key).message_bytes == 0 {
                break;
            }
            if !self.entries[at].flags.loading {
                self.drop_message(at);
            }
            at = self.entries.next(at, ListKind::State);
        }
        let hop = self.destination(key);
        hop.next_unread = hop.ready.first;
    }

    /// Puts a hop that has changed on the lists for its possible calls.
    pub(super) fn update_lists(&mut self, key: DestinationId) {
        let limit = self.options.destination_concurrency_limit;
        let can_wake = self.can_wake(key);
        let hop = &mut self.destinations[key.0 as usize];
        if can_wake && !hop.listed.wakeable {
            hop.listed.wakeable = true;
            self.connections.wakeable.push_back(key);
        }
        if !hop.ready.is_empty() && hop.idle == 0 && hop.connections < hop.concurrency_limit.unwrap_or(limit) {
            let (is_listed, list) = match hop.active_connections() {
                0 => (&mut hop.listed.unserved, &mut self.connections.unserved),
                _ => (&mut hop.listed.scalable, &mut self.connections.scalable),
            };
            if !std::mem::replace(is_listed, true) {
                list.push_back(key);
            }
        }
        self.update_read_list(key);
    }

    /// Sets how many messages a courier of this hop takes at a time: another is called, or opened, only for more.
    pub(crate) fn set_batch_size(&mut self, key: DestinationId, messages: u32) {
        if std::mem::replace(&mut self.destination(key).batch_size, messages.max(1)) != messages.max(1) {
            self.update_lists(key);
        }
    }

    /// Allows a try of the hop at once, whatever its failures.
    pub(super) fn end_backoff(&mut self, key: DestinationId) {
        self.destination(key).backoff_until_ms = 0;
        self.update_lists(key);
    }
}

impl DestinationQueue {
    /// Couriers that do nothing: for statistics.
    pub(super) fn idle_connections(&self) -> u32 {
        self.idle + self.woken + self.dismissed
    }

    /// Couriers that take messages, or will.
    fn active_connections(&self) -> u32 {
        self.connections - self.quitting
    }
}
