use std::collections::VecDeque;
use std::sync::Arc;

use super::entries::EntryList;
use super::entry::{EntryIndex, EntryState, NO_ENTRY, STATE_COUNT};
use crate::message::envelope::DeliveryRefusal;

/// Steepness of the curve by which the number of a destination's connections grows with its backlog. The curve,
/// `limit · (1 − e^(−0.023 · backlog))`, comes from KumoMTA. A single message gets one connection, 30 waiting messages
/// get half of the limit, and 130 waiting messages get 95 % of it.
const CONCURRENCY_GROWTH: f64 = 0.023;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DestinationOrigin {
    /// The destination needs no server, because mail for it is stored in a Maildir on this host or discarded.
    Local,
    /// The configuration names the destination's servers.
    Configured,
    /// The destination is the domain of a recipient, which any sender can choose.
    Domain,
}

pub(super) struct DestinationQueue {
    pub(super) ready: EntryList,
    pub(super) all: EntryList,
    pub(super) ages: EntryAges,
    pub(super) counts: [u32; STATE_COUNT],
    /// Number of connections that are open or being opened.
    pub(super) connections: u32,
    /// Connection limit of this destination. `None` means the general limit.
    pub(super) concurrency_limit: Option<u32>,
    pub(super) idle: u32,
    /// Number of idle connections that have been woken and have not asked for a message yet.
    pub(super) woken: u32,
    /// Number of idle connections that have been told to close and have not done so yet.
    pub(super) dismissed: u32,
    /// Number of connections that have sent QUIT and that the peer has not closed yet.
    pub(super) quitting: u32,
    /// Number of messages that each connection takes at a time.
    pub(super) batch_size: u32,
    /// Number of messages that the connections have taken since the destination last got or gave up a connection. When
    /// the number reaches `FAIR_SHARE_LIMIT`, the destination may have to give up a connection.
    pub(super) served: u32,
    pub(super) origin: DestinationOrigin,
    pub(super) has_answered: bool,
    /// Number of successive failures to reach the destination.
    pub(super) failures: u32,
    /// Set if a connection has asked for messages since the last failure, so the destination is
    /// reachable again.
    pub(super) has_connected: bool,
    /// Number of successive messages that failed because of the session and not because of the message. If it reaches
    /// `MAX_FAILED_SESSIONS`, the destination counts as unreachable.
    pub(super) failed_sessions: u32,
    pub(super) backoff_until_ms: u64,
    pub(super) backoff_reason: Option<Arc<DeliveryRefusal>>,
    /// The destination's last refusal, or the reason why there was no reply.
    pub(super) refusal: Option<Arc<DeliveryRefusal>>,
    pub(super) message_bytes: u64,
    /// Ready entry at which the next search for messages to read from the spool begins. The messages of all earlier
    /// entries are in memory or are being read.
    pub(super) next_unread: EntryIndex,
    pub(super) loading: u32,
    pub(super) listed: ListMembership,
}

/// Number of counters for which [`EntryAges`] keeps memory when its destination has no entries left. The rest of the
/// memory is freed, because a burst of mail may have needed much.
const SPARE_SECONDS: usize = 64;

/// Number of queue entries received in each second, in ascending order of the seconds. The first counter belongs to the
/// oldest entry, so this entry's age is known without a scan over all entries. After a restart, older entries may be
/// added after newer entries. But most mail is new, and is counted at the back, where no other counter has to be moved.
#[derive(Default)]
pub(super) struct EntryAges {
    seconds: VecDeque<(u64, u32)>,
}

impl EntryAges {
    pub(super) fn add(&mut self, received_unix_s: u64) {
        match self.position(received_unix_s) {
            Ok(at) => self.seconds[at].1 += 1,
            Err(at) => self.seconds.insert(at, (received_unix_s, 1)),
        }
    }

    pub(super) fn remove(&mut self, received_unix_s: u64) {
        let Ok(at) = self.position(received_unix_s) else { return };
        self.seconds[at].1 -= 1;
        if self.seconds[at].1 == 0 {
            self.seconds.remove(at);
        }
        if self.seconds.is_empty() {
            self.seconds.shrink_to(SPARE_SECONDS);
        }
    }

    pub(super) fn oldest_unix_s(&self) -> Option<u64> {
        self.seconds.front().map(|(second, _)| *second)
    }

    fn position(&self, received_unix_s: u64) -> Result<usize, usize> {
        self.seconds.binary_search_by_key(&received_unix_s, |(second, _)| *second)
    }
}

#[derive(Clone, Copy, Default)]
pub(super) struct ListMembership {
    pub(super) wakeable: bool,
    pub(super) unserved: bool,
    pub(super) scalable: bool,
    pub(super) idle: bool,
    pub(super) unread: bool,
}

impl DestinationQueue {
    pub(super) fn new() -> Self {
        Self {
            ready: EntryList::EMPTY,
            all: EntryList::EMPTY,
            ages: EntryAges::default(),
            counts: [0; STATE_COUNT],
            connections: 0,
            concurrency_limit: None,
            idle: 0,
            woken: 0,
            dismissed: 0,
            quitting: 0,
            batch_size: 1,
            served: 0,
            origin: DestinationOrigin::Local,
            has_answered: false,
            failures: 0,
            has_connected: false,
            failed_sessions: 0,
            backoff_until_ms: 0,
            backoff_reason: None,
            refusal: None,
            message_bytes: 0,
            next_unread: NO_ENTRY,
            loading: 0,
            listed: ListMembership::default(),
        }
    }

    pub(super) fn count(&self, state: EntryState) -> u32 {
        self.counts[state as usize]
    }

    /// Returns the number of connections that the backlog justifies, which is at least one.
    fn wanted_connections(&self, limit: u32) -> u32 {
        let backlog = f64::from(self.count(EntryState::Ready)) + f64::from(self.count(EntryState::InFlight));
        let backlog = backlog / f64::from(self.batch_size);
        let wanted = f64::from(limit) * (1.0 - (-CONCURRENCY_GROWTH * backlog).exp());
        (wanted.ceil() as u32).clamp(1, limit)
    }

    /// Returns true if another connection should be opened: mail waits, no connection is idle, and
    /// the destination is not in backoff. After a failure to reach the destination, a single
    /// connection tries first.
    pub(super) fn wants_connection(&self, limit: u32, now_ms: u64) -> bool {
        let limit = self.concurrency_limit.unwrap_or(limit);
        let is_possible = !self.ready.is_empty() && self.idle == 0 && self.backoff_until_ms <= now_ms;
        let max_serving = if self.failures > 0 { 1 } else { limit };
        let serving = self.connections - self.quitting;
        // Call `wanted_connections` last, because it is the only expensive condition.
        is_possible && self.connections < limit && serving < max_serving && serving < self.wanted_connections(limit)
    }

    /// Returns a copy of a refusal that entries can share. If the refusal is equal to the destination's previous one,
    /// returns the same copy as before, so that thousands of entries with the same refusal need only one copy.
    pub(super) fn share_refusal(&mut self, refusal: DeliveryRefusal) -> Arc<DeliveryRefusal> {
        match &self.refusal {
            Some(last) if **last == refusal => last.clone(),
            _ => {
                let refusal = Arc::new(refusal);
                self.refusal = Some(refusal.clone());
                refusal
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_grow_with_the_backlog_up_to_the_limit() {
        let mut destination = DestinationQueue::new();
        let rows = [(1, 1), (2, 1), (3, 2), (10, 5), (30, 10), (100, 18), (200, 20), (1_000_000, 20)];
        for (backlog, wanted) in rows {
            destination.counts[EntryState::Ready as usize] = backlog;
            assert_eq!(destination.wanted_connections(20), wanted, "{backlog} waiting");
        }
        assert_eq!(destination.wanted_connections(1), 1);
    }
}
