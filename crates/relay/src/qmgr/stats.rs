//! The operator's view: destinations with their numbers, entries page by page.
use std::sync::Arc;
use std::time::Duration;

use super::entry::{EntryIndex, EntryState, NO_ENTRY};
use super::{DestinationId, MailQueue, MessageId, RecipientNumbers, millis};
use crate::message::envelope::DeliveryRefusal;

/// A destination's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DestinationStats {
    pub(crate) destination: DestinationId,
    /// Entries that wait for a connection.
    pub(crate) ready: u32,
    /// Entries that wait for their time.
    pub(crate) deferred: u32,
    pub(crate) in_flight: u32,
    pub(crate) held: u32,
    /// Settled, with a DSN to write.
    pub(crate) awaiting_dsn: u32,
    /// Connections, and attempts at one.
    pub(crate) connections: u32,
    /// Connections that do nothing.
    pub(crate) idle: u32,
    /// Unix time at which the oldest entry was received.
    pub(crate) oldest_unix_s: Option<u64>,
    /// Time on the queue's clock before which no connection is tried. In the past, or zero: it can be reached.
    pub(crate) backoff_until: Duration,
    /// Its last reply, or the reason why there was none.
    pub(crate) refusal: Option<Arc<DeliveryRefusal>>,
}

/// The queue's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueTotals {
    pub(crate) messages: usize,
    pub(crate) entries: usize,
    pub(crate) connections: u32,
    /// Messages in memory, or being read into it.
    pub(crate) message_bytes: u64,
}

/// An entry as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedEntry {
    pub(crate) id: MessageId,
    pub(crate) destination: DestinationId,
    pub(crate) recipients: RecipientNumbers,
    pub(crate) state: EntryState,
    pub(crate) attempts: u32,
    pub(crate) received_unix_s: u64,
    /// Unix time of the next try, if it is deferred, or waits for its destination.
    pub(crate) next_unix_s: Option<u64>,
    pub(crate) expires_unix_s: u64,
    /// Reason why it has not been delivered: its own last refusal, or the reason for the backoff of its destination.
    pub(crate) refusal: Option<Arc<DeliveryRefusal>>,
    /// It is ready, but its destination could not be reached and is in backoff.
    pub(crate) is_in_backoff: bool,
}

/// Some of the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryPage {
    pub(crate) entries: Vec<ListedEntry>,
    /// Position at which the next page begins.
    pub(crate) next: Option<u32>,
}

impl<M: Clone> MailQueue<M> {
    pub(crate) fn totals(&self) -> QueueTotals {
        QueueTotals {
            messages: self.messages.len(),
            entries: self.entries.len(),
            connections: self.connections.open,
            message_bytes: self.memory.used_bytes,
        }
    }

    /// Every destination that has something to show.
    pub(crate) fn destination_stats(&self) -> impl Iterator<Item = DestinationStats> + '_ {
        let keys = (0..).map(DestinationId);
        let busy = keys
            .zip(&self.destinations)
            .filter(|(_, destination)| !destination.all.is_empty() || destination.connections > 0);
        busy.map(|(key, destination)| DestinationStats {
            destination: key,
            ready: destination.count(EntryState::Ready),
            deferred: destination.count(EntryState::Deferred),
            in_flight: destination.count(EntryState::InFlight),
            held: destination.count(EntryState::Held),
            awaiting_dsn: destination.count(EntryState::AwaitingDsn),
            connections: destination.connections,
            idle: destination.idle_connections(),
            oldest_unix_s: (!destination.all.is_empty()).then(|| self.entries[destination.all.first].received_unix_s),
            backoff_until: Duration::from_millis(destination.backoff_until_ms),
            refusal: destination.refusal.clone(),
        })
    }

    /// Visits no more than `most` places from `from` on: a list of a million is shown in many short turns, and needs no
    /// lock. Entries that come and go meanwhile may be missing or be seen twice.
    pub(crate) fn page(&self, from: u32, most: u32, now: Duration) -> EntryPage {
        let end = from.saturating_add(most.max(1)).min(self.entries.slot_count());
        let live = (from..end).filter(|at| self.entries.is_live(*at));
        let next = (end < self.entries.slot_count()).then_some(end);
        EntryPage { entries: live.map(|at| self.listed(at, millis(now))).collect(), next }
    }

    /// The entries of one message.
    pub(crate) fn show(&self, id: MessageId, now: Duration) -> Vec<ListedEntry> {
        self.entries_of(id).into_iter().map(|at| self.listed(at, millis(now))).collect()
    }

    fn listed(&self, at: EntryIndex, now_ms: u64) -> ListedEntry {
        debug_assert!(at != NO_ENTRY && self.entries.is_live(at));
        let entry = &self.entries[at];
        let destination = &self.destinations[entry.destination.0 as usize];
        let is_in_backoff = entry.state == EntryState::Ready && destination.backoff_until_ms > now_ms;
        let next_ms = match entry.state {
            EntryState::Deferred => Some(entry.due_ms),
            EntryState::Ready if is_in_backoff => Some(destination.backoff_until_ms),
            EntryState::Ready | EntryState::InFlight | EntryState::Held | EntryState::AwaitingDsn => None,
        };
        ListedEntry {
            id: entry.id,
            destination: entry.destination,
            recipients: entry.recipients.clone(),
            state: entry.state,
            attempts: entry.attempts,
            received_unix_s: entry.received_unix_s,
            next_unix_s: next_ms.map(|when_ms| self.unix_s(when_ms)),
            expires_unix_s: self.unix_s(entry.expires_ms),
            refusal: destination.backoff_reason.as_ref().filter(|_| is_in_backoff).or(entry.refusal.as_ref()).cloned(),
            is_in_backoff,
        }
    }
}
