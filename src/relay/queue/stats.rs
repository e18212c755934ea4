//! The operator's view: hops with their numbers, entries page by page.
use std::sync::Arc;
use std::time::Duration;

use super::entry::{Index, NONE, State};
use super::{HopKey, MessageId, Queue, Recipients, millis};
use crate::relay::envelope::Refusal;

/// A hop's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HopStats {
    pub(crate) hop: HopKey,
    /// Entries that wait for a courier.
    pub(crate) ready: u32,
    /// Entries that wait for their time.
    pub(crate) deferred: u32,
    pub(crate) in_flight: u32,
    pub(crate) held: u32,
    /// Settled, with a notice to write.
    pub(crate) telling: u32,
    /// Connections, and attempts at one.
    pub(crate) couriers: u32,
    /// Connections that do nothing.
    pub(crate) idle: u32,
    /// Unix time at which the oldest entry was received.
    pub(crate) oldest_unix_s: Option<u64>,
    /// Time on the queue's clock before which no connection is tried. In the past, or zero: it can be reached.
    pub(crate) shut_until: Duration,
    /// Its last reply, or the reason why there was none.
    pub(crate) refusal: Option<Arc<Refusal>>,
}

/// The queue's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) messages: usize,
    pub(crate) entries: usize,
    pub(crate) couriers: u32,
    /// Messages in memory, or being read into it.
    pub(crate) letter_bytes: u64,
}

/// An entry as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedEntry {
    pub(crate) id: MessageId,
    pub(crate) hop: HopKey,
    pub(crate) recipients: Recipients,
    pub(crate) state: State,
    pub(crate) attempts: u32,
    pub(crate) received_unix_s: u64,
    /// Unix time of the next try, if it is deferred, or waits for its hop.
    pub(crate) next_unix_s: Option<u64>,
    pub(crate) expires_unix_s: u64,
    /// Reason why it has not been delivered: its own last refusal, or the one that keeps its hop shut.
    pub(crate) refusal: Option<Arc<Refusal>>,
    /// It is ready, but its hop could not be reached and is left alone for a while.
    pub(crate) hop_is_shut: bool,
}

/// Some of the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) entries: Vec<ListedEntry>,
    /// Position at which the next page begins.
    pub(crate) next: Option<u32>,
}

impl<L: Clone> Queue<L> {
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            messages: self.messages.len(),
            entries: self.entries.len(),
            couriers: self.calls.open,
            letter_bytes: self.letters.used_bytes,
        }
    }

    /// Every hop that has something to show.
    pub(crate) fn hops(&self) -> impl Iterator<Item = HopStats> + '_ {
        let keys = (0..).map(HopKey);
        let busy = keys.zip(&self.hops).filter(|(_, hop)| !hop.all.is_empty() || hop.couriers > 0);
        busy.map(|(key, hop)| HopStats {
            hop: key,
            ready: hop.count(State::Ready),
            deferred: hop.count(State::Deferred),
            in_flight: hop.count(State::InFlight),
            held: hop.count(State::Held),
            telling: hop.count(State::Telling),
            couriers: hop.couriers,
            idle: hop.resting(),
            oldest_unix_s: (!hop.all.is_empty()).then(|| self.entries[hop.all.first].received_unix_s),
            shut_until: Duration::from_millis(hop.shut_until_ms),
            refusal: hop.refusal.clone(),
        })
    }

    /// Visits no more than `most` places from `from` on: a list of a million is shown in many short turns, and needs no
    /// lock. Entries that come and go meanwhile may be missing or be seen twice.
    pub(crate) fn page(&self, from: u32, most: u32, now: Duration) -> Page {
        let end = from.saturating_add(most.max(1)).min(self.entries.places());
        let live = (from..end).filter(|at| self.entries.is_live(*at));
        let next = (end < self.entries.places()).then_some(end);
        Page { entries: live.map(|at| self.listed(at, millis(now))).collect(), next }
    }

    /// The entries of one message.
    pub(crate) fn show(&self, id: MessageId, now: Duration) -> Vec<ListedEntry> {
        self.of_message(id).into_iter().map(|at| self.listed(at, millis(now))).collect()
    }

    fn listed(&self, at: Index, now_ms: u64) -> ListedEntry {
        debug_assert!(at != NONE && self.entries.is_live(at));
        let entry = &self.entries[at];
        let hop = &self.hops[entry.hop.0 as usize];
        let hop_is_shut = entry.state == State::Ready && hop.shut_until_ms > now_ms;
        let next_ms = match entry.state {
            State::Deferred => Some(entry.due_ms),
            State::Ready if hop_is_shut => Some(hop.shut_until_ms),
            State::Ready | State::InFlight | State::Held | State::Telling => None,
        };
        ListedEntry {
            id: entry.id,
            hop: entry.hop,
            recipients: entry.recipients.clone(),
            state: entry.state,
            attempts: entry.attempts,
            received_unix_s: entry.received_unix_s,
            next_unix_s: next_ms.map(|when_ms| self.unix_s(when_ms)),
            expires_unix_s: self.unix_s(entry.expires_ms),
            refusal: hop.shut_by.as_ref().filter(|_| hop_is_shut).or(entry.refusal.as_ref()).cloned(),
            hop_is_shut,
        }
    }
}
