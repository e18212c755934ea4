use std::sync::Arc;
use std::time::Duration;

use super::entry::{DestinationId, EntryIndex, EntryState, MessageId, NO_ENTRY, RecipientNumbers};
use super::queue::{MailQueue, millis};
use crate::message::envelope::DeliveryRefusal;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DestinationStats {
    pub(crate) destination: DestinationId,
    pub(crate) ready: u32,
    pub(crate) deferred: u32,
    pub(crate) in_flight: u32,
    pub(crate) held: u32,
    /// Number of queue entries whose delivery has ended, but whose DSN is not stored yet.
    pub(crate) awaiting_dsn: u32,
    pub(crate) connections: u32,
    pub(crate) idle: u32,
    pub(crate) oldest_unix_s: Option<u64>,
    /// Time, by the queue's clock, until which the relay opens no connection to the destination. If this time is in the
    /// past, the destination is not in backoff.
    pub(crate) backoff_until: Duration,
    pub(crate) refusal: Option<Arc<DeliveryRefusal>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueTotals {
    pub(crate) messages: usize,
    pub(crate) entries: usize,
    pub(crate) connections: u32,
    /// Total size, in bytes, of the messages in memory, including messages that are still being read from the spool.
    pub(crate) message_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedEntry {
    pub(crate) id: MessageId,
    pub(crate) destination: DestinationId,
    pub(crate) recipients: RecipientNumbers,
    pub(crate) state: EntryState,
    pub(crate) attempts: u32,
    pub(crate) received_unix_s: u64,
    /// Unix time, in seconds, of the entry's next attempt, or of the end of its destination's backoff. `None` if the
    /// entry waits for neither.
    pub(crate) next_unix_s: Option<u64>,
    pub(crate) expires_unix_s: u64,
    /// Reason why the entry has not been delivered. If the entry waits for the end of its destination's backoff, this
    /// is the reason for the backoff. Otherwise, it is the last refusal of the entry itself.
    pub(crate) refusal: Option<Arc<DeliveryRefusal>>,
    pub(crate) is_in_backoff: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryPage {
    pub(crate) entries: Vec<ListedEntry>,
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
            oldest_unix_s: destination.ages.oldest_unix_s(),
            backoff_until: Duration::from_millis(destination.backoff_until_ms),
            refusal: destination.refusal.clone(),
        })
    }

    /// Returns one page of the list of queue entries. The page covers at most `limit` slots of the entry table,
    /// beginning with slot `from`. A list of a million entries therefore takes many short calls, and the queue is not
    /// locked between them. Entries that come or go between two calls may be missing or appear twice.
    pub(crate) fn page(&self, from: u32, limit: u32, now: Duration) -> EntryPage {
        let end = from.saturating_add(limit.max(1)).min(self.entries.slot_count());
        let live = (from..end).filter(|at| self.entries.is_live(*at));
        let next = (end < self.entries.slot_count()).then_some(end);
        EntryPage { entries: live.map(|at| self.listed(at, millis(now))).collect(), next }
    }

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
            refusal: destination.backoff_reason.as_ref().filter(|_| is_in_backoff).or(entry.refusals.last()).cloned(),
            is_in_backoff,
        }
    }
}
