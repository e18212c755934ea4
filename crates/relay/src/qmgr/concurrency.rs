//! Opening and closing of connections, and the backoff of destinations that cannot be reached.
//!
//! A destination gets as many connections as its backlog is worth. None is closed because the backlog shrank: that is
//! left to the idle time-out of connections, so that their number never flaps. If connections are scarce, a destination
//! may open another only if it would then have no more than stay free ("dynamic threshold", Choudhury and Hahne 1998):
//! the busiest destination leaves half to the others, and a destination that has none gets one as long as there is one.
//! If there is none, idle connections are closed, and connections that have had their share give way.
//!
//! Destinations that never answer must not take all connections: strangers choose the domains that mail goes to, and an
//! attempt may last minutes. So an attempt is on *trial* until its session is free for a message, and trials have limits
//! by the destination's `Standing`.
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use super::destination::{DestinationOrigin, DestinationQueue};
use super::{DestinationId, EntryState, ListKind, MailQueue, NO_ENTRY, millis};
use crate::message::envelope::DeliveryRefusal;

/// A connection to a destination, or an attempt at one. Its owner gives it back by `closed`.
#[must_use = "a slot that is not given back counts against the limits for ever"]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConnectionSlot {
    pub(crate) destination: DestinationId,
    /// It found nothing to do.
    is_idle: bool,
    /// It must say QUIT, in favour of a destination that has no connection.
    must_quit: bool,
    /// It says QUIT: it takes nothing any more, but still has its connection.
    is_quitting: bool,
    /// No session has come about yet.
    trial: Option<Standing>,
}

impl ConnectionSlot {
    /// Reports whether nothing is known of the destination: an attempt should be short, since others wait.
    pub(crate) fn is_first_trial(&self) -> bool {
        matches!(self.trial, Some(Standing::New | Standing::Configured))
    }
}

/// What is known of a destination; the first are served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It answered the last time, or is on this host.
    Proven,
    /// The configuration names it.
    Configured,
    /// A domain that mail was addressed to.
    New,
    /// It could not be reached the last time.
    Failed,
}

impl Standing {
    const ALL: [Self; 4] = [Self::Proven, Self::Configured, Self::New, Self::Failed];

    /// Trials of all destinations, of `limit` connections, up to which such a destination may have another.
    fn trial_limit(self, limit: u32) -> u32 {
        match self {
            Self::Proven => limit,
            Self::Configured => limit - limit / 8,
            Self::New | Self::Failed => limit - limit / 4,
        }
    }
}

/// Action for the driver to carry out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConnectionAction {
    /// Connect to this slot's destination.
    Open(ConnectionSlot),
    /// One of the destination's waiting connections is to `take`.
    Wake(DestinationId),
    /// One of the destination's waiting connections is to close: others have waited for a connection.
    Close(DestinationId),
}

/// Reason why a connection is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DisconnectReason {
    /// It had nothing more to do, or the session ended in the usual way.
    Finished,
    /// No session came about, or it ended before anything could be delivered.
    Unreachable(DeliveryRefusal),
}

/// Destinations for which an action may be due, in turn. Each is in a list once at most, and is checked again before it
/// is used.
#[derive(Default)]
pub(super) struct ConnectionLists {
    /// Have work and an idle connection.
    wakeable: VecDeque<DestinationId>,
    /// Have work and no connection, by standing.
    unserved: [VecDeque<DestinationId>; Standing::ALL.len()],
    /// The next trial of a new destination goes to the newest, not the oldest.
    prefers_newest: bool,
    /// Trials by the standing of their destinations.
    trials: [u32; Standing::ALL.len()],
    /// Have something to do, and perhaps not enough connections.
    scalable: VecDeque<DestinationId>,
    /// Have connections that wait.
    idle: VecDeque<DestinationId>,
    /// All connections.
    pub(super) open: u32,
    /// Those among them that were told to close.
    closing: u32,
}

impl ConnectionLists {
    /// Destinations of a standing are served in their order. Of new ones every second is the newest: a domain that answers
    /// does not wait until all that came before it have shown that they don't.
    fn next_unserved(&self, standing: Standing) -> Option<DestinationId> {
        let list = &self.unserved[standing as usize];
        if standing == Standing::New && self.prefers_newest { list.back() } else { list.front() }.copied()
    }

    fn pop_unserved(&mut self, standing: Standing) {
        let list = &mut self.unserved[standing as usize];
        if standing == Standing::New && self.prefers_newest {
            list.pop_back()
        } else {
            list.pop_front()
        };
    }
}

/// Messages that a destination may send, after the last connection that it got, before it must give one up to a
/// destination that has none: often enough to be fair, seldom enough that connections pay.
const FAIR_SHARE_LIMIT: u32 = 20;
/// Scalable destinations that are checked for one action.
const MAX_SCALABLE_CHECKS: usize = 16;
/// Sessions in succession that may end without having delivered anything, before the destination counts as unreachable.
const MAX_FAILED_SESSIONS: u32 = 3;
/// Messages that are dropped from memory at once when a destination backs off.
const MAX_DROPPED_MESSAGES: usize = 10_000;

impl<M: Clone> MailQueue<M> {
    /// Returns the next action: open, wake or close. The driver asks until it is `None`, after each event.
    pub(crate) fn next_connection_action(&mut self, now: Duration) -> Option<ConnectionAction> {
        let now_ms = millis(now);
        if let Some(destination) = self.next_to_wake() {
            return Some(ConnectionAction::Wake(destination));
        }
        let free = self.options.concurrency_limit.saturating_sub(self.connections.open);
        let unserved = self.first_unserved(now_ms);
        if free == 0 {
            unserved?;
            return self.next_to_close();
        }
        let destination = match unserved {
            Some((standing, destination)) => {
                self.connections.pop_unserved(standing);
                self.connections.prefers_newest ^= standing == Standing::New;
                self.destination(destination).listed.unserved = false;
                destination
            }
            None => self.first_scalable(free, now_ms)?,
        };
        Some(ConnectionAction::Open(self.open(destination)))
    }

    fn open(&mut self, key: DestinationId) -> ConnectionSlot {
        self.connections.open += 1;
        let destination = self.destination(key);
        (destination.connections, destination.served) = (destination.connections + 1, 0);
        let standing = destination.standing();
        self.connections.trials[standing as usize] += 1;
        self.update_lists(key);
        ConnectionSlot { destination: key, is_idle: false, must_quit: false, is_quitting: false, trial: Some(standing) }
    }

    /// The connection has a session.
    pub(super) fn end_trial(&mut self, slot: &mut ConnectionSlot) {
        if let Some(standing) = slot.trial.take() {
            self.connections.trials[standing as usize] -= 1;
        }
    }

    /// Reports whether destinations of that standing may have another trial. Those that failed keep a quarter of the
    /// connections from new ones, and have half of all at most.
    fn permits_trial(&self, standing: Standing) -> bool {
        let limit = self.options.concurrency_limit;
        let trials = &self.connections.trials;
        let failed = trials[Standing::Failed as usize];
        let is_within_share = standing != Standing::Failed || failed < limit - limit / 2;
        // Connections of proven destinations take none of the others' share: they end by themselves.
        let others = trials.iter().sum::<u32>() - trials[Standing::Proven as usize];
        standing == Standing::Proven || is_within_share && others < standing.trial_limit(limit)
    }

    fn next_to_wake(&mut self) -> Option<DestinationId> {
        while let Some(key) = self.connections.wakeable.pop_front() {
            self.destination(key).listed.wakeable = false;
            if self.can_wake(key) {
                let destination = self.destination(key);
                (destination.idle, destination.woken) = (destination.idle - 1, destination.woken + 1);
                self.update_lists(key);
                return Some(key);
            }
        }
        None
    }

    fn can_wake(&self, key: DestinationId) -> bool {
        let destination = &self.destinations[key.0 as usize];
        let is_in_memory =
            destination.ready.first != NO_ENTRY && self.entries[destination.ready.first].message.is_some();
        is_in_memory
            && destination.idle > 0
            && destination.woken.saturating_mul(destination.batch_size) < destination.count(EntryState::Ready)
    }

    /// The next destination to get its first connection, of the best standing that may have one.
    /// Destinations that no longer wait are passed over.
    fn first_unserved(&mut self, now_ms: u64) -> Option<(Standing, DestinationId)> {
        let [proven, configured, new, failed] = Standing::ALL;
        // Those that failed have their turn however many new ones come.
        let failed_trials = self.connections.trials[failed as usize];
        let order = match failed_trials < self.options.concurrency_limit / 4 {
            true => [proven, configured, failed, new],
            false => Standing::ALL,
        };
        order.into_iter().find_map(|standing| {
            let may_try = !self.connections.unserved[standing as usize].is_empty() && self.permits_trial(standing);
            if may_try { Some((standing, self.first_unserved_of(standing, now_ms)?)) } else { None }
        })
    }

    fn first_unserved_of(&mut self, standing: Standing, now_ms: u64) -> Option<DestinationId> {
        let limit = self.options.destination_concurrency_limit;
        while let Some(key) = self.connections.next_unserved(standing) {
            let destination = &mut self.destinations[key.0 as usize];
            let is_served = destination.active_connections() > 0;
            let has_moved = destination.standing() != standing;
            if !is_served && !has_moved && destination.wants_connection(limit, now_ms) {
                return Some(key);
            }
            destination.listed.unserved = false;
            self.connections.pop_unserved(standing);
            if is_served || has_moved {
                self.update_lists(key);
            }
        }
        None
    }

    fn unserved_count(&self) -> u32 {
        let permitted = Standing::ALL.into_iter().filter(|standing| self.permits_trial(*standing));
        permitted.map(|standing| self.connections.unserved[standing as usize].len() as u32).sum()
    }

    fn first_scalable(&mut self, free: u32, now_ms: u64) -> Option<DestinationId> {
        let limit = self.options.destination_concurrency_limit;
        for _ in 0..self.connections.scalable.len().min(MAX_SCALABLE_CHECKS) {
            let key = self.connections.scalable.pop_front()?;
            let destination = &mut self.destinations[key.0 as usize];
            let standing = destination.standing();
            if !destination.wants_connection(limit, now_ms) {
                destination.listed.scalable = false;
            } else if self.destinations[key.0 as usize].connections < free && self.permits_trial(standing) {
                let destination = self.destination(key);
                destination.listed.scalable = false;
                return Some(key);
            } else {
                self.connections.scalable.push_back(key);
            }
        }
        None
    }

    /// Returns a destination with an idle connection while another destination has none.
    fn next_to_close(&mut self) -> Option<ConnectionAction> {
        while self.connections.closing < self.unserved_count() {
            let key = self.connections.idle.pop_front()?;
            let destination = self.destination(key);
            destination.listed.idle = false;
            if destination.idle > 0 {
                (destination.idle, destination.dismissed) = (destination.idle - 1, destination.dismissed + 1);
                self.connections.closing += 1;
                self.list_as_idle(key);
                return Some(ConnectionAction::Close(key));
            }
        }
        None
    }

    /// Reports whether this connection must close, since another destination has none and its own has had its share.
    pub(super) fn must_yield(&mut self, slot: &mut ConnectionSlot, now_ms: u64) -> bool {
        let is_full = self.connections.open >= self.options.concurrency_limit
            && self.destination(slot.destination).served >= FAIR_SHARE_LIMIT;
        let leaves =
            is_full && self.first_unserved(now_ms).is_some() && self.connections.closing < self.unserved_count();
        if leaves && !slot.must_quit {
            slot.must_quit = true;
            self.connections.closing += 1;
            // The destination's next connection has had its share only after as many more.
            self.destination(slot.destination).served = 0;
        }
        leaves || slot.must_quit
    }

    /// A connection found nothing to do.
    pub(super) fn mark_idle(&mut self, slot: &mut ConnectionSlot) {
        slot.is_idle = true;
        self.destination(slot.destination).idle += 1;
        self.list_as_idle(slot.destination);
    }

    fn list_as_idle(&mut self, key: DestinationId) {
        let destination = self.destination(key);
        if destination.idle > 0 && !destination.listed.idle {
            destination.listed.idle = true;
            self.connections.idle.push_back(key);
        }
    }

    /// A connection asks again, or closes. Idle connections are interchangeable; any that returns consumes one pending
    /// wake-up.
    pub(super) fn mark_busy(&mut self, slot: &mut ConnectionSlot) {
        if !std::mem::take(&mut slot.is_idle) {
            return;
        }
        let destination = &mut self.destinations[slot.destination.0 as usize];
        if destination.woken > 0 {
            destination.woken -= 1;
        } else if destination.dismissed > 0 {
            destination.dismissed -= 1;
            self.connections.closing -= 1;
        } else {
            destination.idle -= 1;
        }
    }

    /// A connection is about to close, by itself or because it was told to: it is not woken any more, and others are
    /// opened in its place. A peer may take minutes to close the connection.
    pub(crate) fn begin_quit(&mut self, slot: &mut ConnectionSlot) {
        self.mark_busy(slot);
        if !std::mem::replace(&mut slot.is_quitting, true) {
            self.destination(slot.destination).quitting += 1;
        }
        self.update_lists(slot.destination);
    }

    /// A connection is closed. Its requests were given back by `finish_delivery` before.
    pub(crate) fn closed(&mut self, mut slot: ConnectionSlot, reason: DisconnectReason, now: Duration) {
        self.mark_busy(&mut slot);
        self.end_trial(&mut slot);
        self.connections.open -= 1;
        self.connections.closing -= u32::from(slot.must_quit);
        let destination = self.destination(slot.destination);
        destination.connections -= 1;
        destination.quitting -= u32::from(slot.is_quitting);
        match reason {
            DisconnectReason::Unreachable(refusal) => self.back_off(slot.destination, refusal, millis(now)),
            DisconnectReason::Finished if destination.failed_sessions >= MAX_FAILED_SESSIONS => {
                let refusal = DeliveryRefusal::new(0, None, "sessions end before anything is delivered", "");
                self.back_off(slot.destination, refusal, millis(now));
            }
            DisconnectReason::Finished => {}
        }
        self.update_lists(slot.destination);
    }

    /// Opens no connection to a destination for a while. Its connections that have a session go on, and its entries
    /// stay as they are. Further failures meanwhile belong to the same outage.
    fn back_off(&mut self, key: DestinationId, refusal: DeliveryRefusal, now_ms: u64) {
        let reconnect = self.options.reconnect;
        let seed = self.options.seed;
        let destination = self.destination(key);
        destination.backoff_reason = Some(destination.share_refusal(refusal));
        (destination.failed_sessions, destination.has_connected) = (0, false);
        let has_nobody = destination.connections == 0;
        let is_in_backoff = destination.backoff_until_ms > now_ms;
        if !is_in_backoff {
            destination.failures = destination.failures.saturating_add(1);
            let wait_ms = millis(reconnect.delay(seed, u64::from(key.0), destination.failures)).max(1);
            destination.backoff_until_ms = now_ms.saturating_add(wait_ms);
            let until_ms = destination.backoff_until_ms;
            self.backoff_ends.push(Reverse((until_ms, key)));
        }
        if has_nobody {
            self.drop_messages(key);
        }
    }

    /// Gives the memory of a destination that cannot be reached to those that can.
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
        let destination = self.destination(key);
        destination.next_unread = destination.ready.first;
    }

    /// Puts a destination that has changed on the lists for its possible actions.
    pub(super) fn update_lists(&mut self, key: DestinationId) {
        let limit = self.options.destination_concurrency_limit;
        let can_wake = self.can_wake(key);
        let destination = &mut self.destinations[key.0 as usize];
        if can_wake && !destination.listed.wakeable {
            destination.listed.wakeable = true;
            self.connections.wakeable.push_back(key);
        }
        if !destination.ready.is_empty()
            && destination.idle == 0
            && destination.connections < destination.concurrency_limit.unwrap_or(limit)
        {
            let (is_listed, list) = match destination.active_connections() {
                0 => {
                    let standing = destination.standing();
                    (&mut destination.listed.unserved, &mut self.connections.unserved[standing as usize])
                }
                _ => (&mut destination.listed.scalable, &mut self.connections.scalable),
            };
            if !std::mem::replace(is_listed, true) {
                list.push_back(key);
            }
        }
        self.update_read_list(key);
    }

    /// Sets how many messages a connection of this destination takes at a time: another is woken, or opened, only for
    /// more.
    pub(crate) fn set_batch_size(&mut self, key: DestinationId, messages: u32) {
        if std::mem::replace(&mut self.destination(key).batch_size, messages.max(1)) != messages.max(1) {
            self.update_lists(key);
        }
    }

    /// Allows a try of the destination at once, whatever its failures.
    pub(super) fn end_backoff(&mut self, key: DestinationId) {
        self.destination(key).backoff_until_ms = 0;
        self.update_lists(key);
    }
}

impl DestinationQueue {
    fn standing(&self) -> Standing {
        match self.origin {
            _ if self.failures > 0 => Standing::Failed,
            _ if self.has_answered => Standing::Proven,
            DestinationOrigin::Local => Standing::Proven,
            DestinationOrigin::Configured => Standing::Configured,
            DestinationOrigin::Domain => Standing::New,
        }
    }

    /// Connections that do nothing: for statistics.
    pub(super) fn idle_connections(&self) -> u32 {
        self.idle + self.woken + self.dismissed
    }

    /// Connections that take messages, or will.
    fn active_connections(&self) -> u32 {
        self.connections - self.quitting
    }
}
