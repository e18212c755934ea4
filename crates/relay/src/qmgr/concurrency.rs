//! Opens and closes connections, and backs off from unreachable destinations.
//!
//! The longer the backlog of a destination, the more connections it gets. A connection is not
//! closed when the backlog shrinks, but when it has been idle for a while, so that the number of
//! connections does not fluctuate.
//!
//! A destination that already has connections may open another one only if more connections are still free than it
//! already has ("dynamic threshold", Choudhury and Hahne 1998). In this way, the busiest destination leaves half of the
//! connections to others. A destination without a connection gets one if any connection is free. Otherwise, the queue
//! closes idle connections, and a destination that has sent its fair share of messages gives up a connection.
//!
//! Destinations that never answer must not take all connections: an attempt to connect may last for minutes, and
//! strangers can choose the domains to which mail goes. A new connection is therefore on *trial* until its session can
//! take a message. The number of trials at a time is limited. The limit depends on the `Standing` of the destination,
//! that is, on whether its last attempts succeeded.
use std::cmp::Reverse;
use std::time::Duration;

use super::connections::{ConnectionAction, ConnectionSlot, DisconnectReason, Standing};
use super::destination::{DestinationOrigin, DestinationQueue};
use super::entry::{DestinationId, EntryState, ListKind, NO_ENTRY};
use super::queue::{MailQueue, millis};
use crate::message::envelope::DeliveryRefusal;

/// If no connection is free and another destination waits for one, a destination must give up a connection after it has
/// been sent this many messages. The count restarts when the destination gets or gives up a connection. The number is
/// small enough to be fair, and large enough to make a connection worthwhile.
const FAIR_SHARE_LIMIT: u32 = 20;
/// Maximum number of destinations that one call checks while it looks for a destination that may open another
/// connection. Without a limit, a long list would stall the worker.
const MAX_SCALABLE_CHECKS: usize = 16;
/// If this many messages in a row fail because of their sessions, the destination counts as unreachable.
const MAX_FAILED_SESSIONS: u32 = 3;
/// Maximum number of messages that are dropped from memory at once when a destination becomes unreachable. Without a
/// limit, a long list would stall the worker.
const MAX_DROPPED_MESSAGES: usize = 10_000;

impl<M: Clone> MailQueue<M> {
    /// Returns the next action that the worker must perform: open, wake or close a connection. After each event, the
    /// worker must call this until it returns `None`.
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

    /// Ends the trial period of a new connection, because the connection has a session or is closed. Another attempt to
    /// connect may then begin in its place.
    pub(super) fn end_trial(&mut self, slot: &mut ConnectionSlot) {
        if let Some(standing) = slot.trial.take() {
            self.connections.trials[standing as usize] -= 1;
        }
    }

    /// Returns true if another attempt to connect to a destination with this [`Standing`] may begin. An attempt to
    /// reach a new or failed destination must wait while three quarters of the connections are attempts to reach
    /// destinations that are not `Proven`. At most half of the connections may be attempts to reach failed
    /// destinations, so that a quarter remains for new destinations.
    fn permits_trial(&self, standing: Standing) -> bool {
        let limit = self.options.concurrency_limit;
        let trials = &self.connections.trials;
        let failed = trials[Standing::Failed as usize];
        let is_within_share = standing != Standing::Failed || failed < limit - limit / 2;
        // Do not count attempts to connect to proven destinations. These destinations answered the last time, so such
        // attempts usually end soon.
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

    /// Among the destinations without a connection, returns the one that gets the next connection. Destinations that
    /// are more likely to answer usually come first, unless too many attempts to connect to such destinations are
    /// running. Failed destinations come before new ones while they use less than a quarter of the connections.
    /// Destinations that no longer need a connection are removed from the lists.
    fn first_unserved(&mut self, now_ms: u64) -> Option<(Standing, DestinationId)> {
        let [proven, configured, new, failed] = Standing::ALL;
        // While failed destinations use less than a quarter of the connections, put them before new destinations.
        // Otherwise, they would have to wait as long as new destinations keep coming.
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

    /// Returns true if this connection must close, because its destination has sent its fair share of messages and
    /// another destination has no connection.
    pub(super) fn must_yield(&mut self, slot: &mut ConnectionSlot, now_ms: u64) -> bool {
        let is_full = self.connections.open >= self.options.concurrency_limit
            && self.destination(slot.destination).served >= FAIR_SHARE_LIMIT;
        let leaves =
            is_full && self.first_unserved(now_ms).is_some() && self.connections.closing < self.unserved_count();
        if leaves && !slot.must_quit {
            slot.must_quit = true;
            self.connections.closing += 1;
            // Reset the count, so that the destination can send `FAIR_SHARE_LIMIT` further messages before it must give
            // up another connection.
            self.destination(slot.destination).served = 0;
        }
        leaves || slot.must_quit
    }

    /// Records that a connection found no message to send. It can now be woken, or closed in favour
    /// of another destination.
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

    /// Records that an idle connection has asked the queue for a message, or is closing. If the queue has woken an idle
    /// connection of the destination, this connection counts as the woken one, because idle connections are
    /// interchangeable.
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

    /// Records that a connection is about to close, by itself or on request. From now on, the queue gives it no
    /// messages. It may open another connection instead, because the peer may take minutes to close this one.
    pub(crate) fn begin_quit(&mut self, slot: &mut ConnectionSlot) {
        self.mark_busy(slot);
        if !std::mem::replace(&mut slot.is_quitting, true) {
            self.destination(slot.destination).quitting += 1;
        }
        self.update_lists(slot.destination);
    }

    /// Records that a connection is closed. All its requests must have been returned with
    /// `finish_delivery`.
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

    /// Stops opening connections to a destination for a while, because it could not be reached. Established sessions
    /// continue, and queue entries stay unchanged. Further failures in that time belong to the same outage, and do not
    /// make the wait longer.
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

    /// Drops the messages of an unreachable destination, so that reachable destinations can use the memory. The spool
    /// still has the messages.
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

    /// Adds a destination to the lists to which it now belongs. There are lists of destinations that may need a new
    /// connection, that have an idle connection to wake, and that have messages to read from the spool. A destination
    /// that no longer belongs to a list may stay there, because it is checked again when its turn comes.
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

    /// Sets how many messages a connection of this destination takes at a time. The larger the batches, the fewer
    /// connections the queue wakes and opens.
    pub(crate) fn set_batch_size(&mut self, key: DestinationId, messages: u32) {
        if std::mem::replace(&mut self.destination(key).batch_size, messages.max(1)) != messages.max(1) {
            self.update_lists(key);
        }
    }

    /// Ends the backoff of a destination, so that the queue may connect to it at once, although the last attempts
    /// failed. An operator's command to retry uses this.
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

    pub(super) fn idle_connections(&self) -> u32 {
        self.idle + self.woken + self.dismissed
    }

    /// Returns the number of connections that can take messages, including connections that are still being opened. A
    /// connection that has sent QUIT is not counted.
    fn active_connections(&self) -> u32 {
        self.connections - self.quitting
    }
}
