//! The queue's state of a next hop: its entries, its connections, and whether it can be reached.
use std::sync::Arc;

use super::entries::EntryList;
use super::entry::{EntryIndex, EntryState, NO_ENTRY, STATE_COUNT};
use crate::message::envelope::DeliveryRefusal;

/// Rate at which the number of connections grows with the backlog. By KumoMTA's curve, `limit · (1 − e^(−0.023 ·
/// backlog))`: one for a single message, half of the limit at 30 waiting, all but one in twenty at 130.
const CONCURRENCY_GROWTH: f64 = 0.023;

/// Who chose the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DestinationOrigin {
    /// It is on this host, and needs no connection.
    Local,
    /// The configuration names its servers.
    Configured,
    /// It is the domain of a recipient.
    Domain,
}

/// State of a destination.
pub(super) struct DestinationQueue {
    pub(super) ready: EntryList,
    pub(super) all: EntryList,
    /// Number of entries in each state.
    pub(super) counts: [u32; STATE_COUNT],
    /// Connections that are open or about to be.
    pub(super) connections: u32,
    /// Its own limit of connections; `None` for the limit of all destinations.
    pub(super) concurrency_limit: Option<u32>,
    /// Connections that found nothing to do.
    pub(super) idle: u32,
    /// Connections that were idle, and have been woken.
    pub(super) woken: u32,
    /// Connections that were idle, and have been told to close.
    pub(super) dismissed: u32,
    /// Connections that have said QUIT, until the peer closes them.
    pub(super) quitting: u32,
    /// Messages that one of them takes at a time.
    pub(super) batch_size: u32,
    /// Messages taken since a connection was opened.
    pub(super) served: u32,
    pub(super) origin: DestinationOrigin,
    /// It has had a session.
    pub(super) has_answered: bool,
    /// Failures to reach it, in succession.
    pub(super) failures: u32,
    /// A connection has asked for messages since this was last cleared: it is connected.
    pub(super) has_connected: bool,
    /// Times in succession that a message came back unsent.
    pub(super) failed_sessions: u32,
    /// Time before which no connection is opened.
    pub(super) backoff_until_ms: u64,
    /// Reason for the backoff.
    pub(super) backoff_reason: Option<Arc<DeliveryRefusal>>,
    /// Its last reply, or the reason why there was none.
    pub(super) refusal: Option<Arc<DeliveryRefusal>>,
    /// Bytes of messages in memory that are for this destination.
    pub(super) message_bytes: u64,
    /// The first ready entry that has not been checked yet for whether its message must be read.
    pub(super) next_unread: EntryIndex,
    /// Messages that are being read.
    pub(super) loading: u32,
    pub(super) listed: ListMembership,
}

/// The lists of destinations that it is in.
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

    /// Number of connections that its backlog is worth.
    fn wanted_connections(&self, limit: u32) -> u32 {
        let backlog = f64::from(self.count(EntryState::Ready)) + f64::from(self.count(EntryState::InFlight));
        let backlog = backlog / f64::from(self.batch_size);
        let wanted = f64::from(limit) * (1.0 - (-CONCURRENCY_GROWTH * backlog).exp());
        (wanted.ceil() as u32).clamp(1, limit)
    }

    /// Reports whether one more connection should be opened: something waits, no connection is idle, and the
    /// destination is not in backoff. After a failure to reach it, one connection tries first.
    pub(super) fn wants_connection(&self, limit: u32, now_ms: u64) -> bool {
        let limit = self.concurrency_limit.unwrap_or(limit);
        let is_possible = !self.ready.is_empty() && self.idle == 0 && self.backoff_until_ms <= now_ms;
        let most = if self.failures > 0 { 1 } else { limit };
        let serving = self.connections - self.quitting;
        // The curve is checked last: it is the only costly condition here.
        is_possible && self.connections < limit && serving < most && serving < self.wanted_connections(limit)
    }

    /// Shares the text of a refusal with the last entry that got the same one.
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
