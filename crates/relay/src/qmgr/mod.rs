//! The queue of one worker, which decides which message is delivered next. It uses no clock, socket
//! or file.
//!
//! ```text
//!  put ──▶ destination 1: ready ▸▸▸▸   slots ●●●    take ──▶ DeliveryRequest ──▶ finish_delivery ──▶ Actions: notes,
//!          destination 2: ready ▸      slots ●                                                          DSNs, done
//!          destination 3: ready ▸▸▸▸▸  in backoff          retries, ages: timer wheels, moved by `tick`
//! ```
//! After each event, the driver must call `tick` if `deadline` has passed, then
//! `next_connection_action` until it returns `None`, and then `messages_to_read`. A slot is the
//! permission to have one connection. Its owner calls `take` when it is connected, and again
//! whenever it has room. It may have several requests at a time, because the next MAIL travels with
//! the last body.
//!
//! The queue promises the following, and has a test for each promise. No entry is lost. No entry is
//! on two connections at once. The limits of connections are kept. A destination that is slow, dead
//! or never answers does not delay others, because connections and memory are shared so that the
//! destination with the most leaves as much for the next (`concurrency`, `memory`). The age of an
//! entry is checked in every state.
//!
//! | file | what it is |
//! |---|---|
//! | `entry` | an entry and its states |
//! | `entries` | the table of entries, and the lists through the table |
//! | `timer_wheel` | timers through the table |
//! | `destination` | the queue's state of a next hop |
//! | `concurrency` | opens and closes connections, with backoff |
//! | `memory` | decides which messages stay in memory, and which are read |
//! | `moves` | moves an entry from one state to another |
//! | `result` | applies delivery results, and the age of messages |
//! | `commands` | executes an operator's commands: hold, release, remove, retry |
//! | `stats` | the view of the queue that operators get |
mod commands;
mod concurrency;
mod destination;
mod entries;
mod entry;
mod memory;
mod moves;
mod result;
pub(crate) mod retry;
mod stats;
mod timer_wheel;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod model;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

pub use commands::OperatorCommand;
pub(crate) use concurrency::{ConnectionAction, ConnectionSlot, DisconnectReason};
pub(crate) use destination::DestinationOrigin;
use destination::DestinationQueue;
use entries::EntryTable;
pub use entry::EntryState;
pub(crate) use entry::{DestinationId, MessageId, RecipientNumbers, TRANSACTION_RECIPIENTS};
use entry::{EntryFlags, EntryIndex, EntryLinks, ListKind, NO_ENTRY, QueueEntry};
use moves::QueueEnd;
pub(crate) use result::{Actions, DeliveryResult, DsnEvent, PendingDsn, RecipientStatus};
pub(crate) use stats::{DestinationStats, ListedEntry, QueueTotals};
use timer_wheel::TimerWheel;

use crate::message::envelope::DeliveryRefusal;
use crate::qmgr::retry::{Backoff, RetrySchedule};

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) schedule: RetrySchedule,
    pub(crate) reconnect: Backoff,
    /// Maximum number of connections per destination, like Postfix's
    /// `default_destination_concurrency_limit`.
    pub(crate) destination_concurrency_limit: u32,
    pub(crate) concurrency_limit: u32,
    /// Maximum number of bytes of messages in memory. Other messages are read from the spool when
    /// their turn comes.
    pub(crate) message_bytes: u64,
    /// Seed of the random spread of delays.
    pub(crate) seed: u64,
    /// Unix time at which `now` is zero.
    pub(crate) origin_unix: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            schedule: RetrySchedule::default(),
            reconnect: Backoff::FOR_MESSAGES.for_destinations(),
            destination_concurrency_limit: 20,
            concurrency_limit: 1_000,
            message_bytes: 64 << 20,
            seed: 0,
            origin_unix: Duration::ZERO,
        }
    }
}

/// A new entry for one destination, or an entry from before a restart. `M` is the message in memory
/// with its envelope, and should be cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct NewEntry<M> {
    pub(crate) id: MessageId,
    pub(crate) destination: DestinationId,
    pub(crate) recipients: RecipientNumbers,
    /// The message. `None` if it is only in the spool.
    pub(crate) message: Option<M>,
    pub(crate) message_bytes: u32,
    pub(crate) received_unix_s: u64,
    pub(crate) kind: MessageKind,
    pub(crate) progress: EntryProgress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    Mail,
    /// A message with an empty sender address.
    Dsn,
}

impl MessageKind {
    pub(crate) fn of_sender(sender: &[u8]) -> Self {
        if sender.is_empty() { Self::Dsn } else { Self::Mail }
    }
}

/// Progress of an entry, from the notes about it (`RecipientProgress`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EntryProgress {
    pub(crate) attempts: u32,
    /// Unix time of the next attempt in seconds. 0 means at once.
    pub(crate) next_unix_s: u64,
    pub(crate) held: bool,
    pub(crate) delay_dsn_stored: bool,
    pub(crate) refusal: Option<DeliveryRefusal>,
}

/// An entry for a delivery agent, which must return it with `finish_delivery`. Until then, the
/// queue does nothing with the entry.
#[must_use = "a request that does not come back is never delivered"]
#[derive(Debug)]
pub(crate) struct DeliveryRequest<M> {
    entry: EntryIndex,
    pub(crate) id: MessageId,
    pub(crate) destination: DestinationId,
    pub(crate) recipients: RecipientNumbers,
    pub(crate) message: M,
    pub(crate) attempts: u32,
}

#[derive(Debug)]
pub(crate) enum NextRequest<M> {
    Deliver(DeliveryRequest<M>),
    /// There is no message now. The connection is woken when there is one
    /// (`ConnectionAction::Wake`).
    Wait,
    /// Another destination waits for a connection, so this one must send QUIT and close.
    Close,
}

pub(crate) struct MailQueue<M> {
    options: Options,
    entries: EntryTable<M>,
    messages: HashMap<MessageId, EntryIndex, foldhash::fast::RandomState>,
    destinations: Vec<DestinationQueue>,
    retry_timers: TimerWheel,
    age_timers: TimerWheel,
    connections: concurrency::ConnectionLists,
    memory: memory::MessageMemory,
    backoff_ends: BinaryHeap<Reverse<(u64, DestinationId)>>,
}

/// Maximum number of timers that are handled per `tick`, so that a million timers that are due at
/// once do not stall a worker's sessions.
const MAX_TICK_TIMERS: usize = 1_000;

impl<M: Clone> MailQueue<M> {
    pub(crate) fn new(options: Options) -> Self {
        // The grain may round the first wait up by at most a sixteenth. A second is precise enough
        // for any wait.
        let grain_ms = (millis(options.schedule.backoff.initial) / 16).clamp(1, 1_000);
        Self {
            connections: concurrency::ConnectionLists::default(),
            memory: memory::MessageMemory::default(),
            retry_timers: TimerWheel::new(grain_ms, ListKind::State),
            age_timers: TimerWheel::new(grain_ms, ListKind::Age),
            entries: EntryTable::new(),
            messages: HashMap::default(),
            destinations: Vec::new(),
            backoff_ends: BinaryHeap::new(),
            options,
        }
    }

    /// Adds the recipients for one destination. Each entry gets at most as many recipients as one
    /// transaction may have.
    pub(crate) fn put(&mut self, arrival: NewEntry<M>, now: Duration) {
        let now_ms = millis(now);
        if arrival.recipients.len() <= TRANSACTION_RECIPIENTS {
            if !arrival.recipients.is_empty() {
                self.put_entry(arrival, now_ms);
            }
            return;
        }
        for numbers in arrival.recipients.to_vec().chunks(TRANSACTION_RECIPIENTS) {
            self.put_entry(NewEntry { recipients: RecipientNumbers::new(numbers), ..arrival.clone() }, now_ms);
        }
    }

    fn put_entry(&mut self, mut arrival: NewEntry<M>, now_ms: u64) {
        let destination = arrival.destination;
        let held = arrival.progress.held;
        let delay_dsn_stored = arrival.progress.delay_dsn_stored;
        self.add_destination(destination);
        let due_ms = self.queue_ms(arrival.progress.next_unix_s);
        let message = arrival.message.take();
        let at = self.create_entry(arrival, delay_dsn_stored);
        if held {
            self.enter_state(at, EntryState::Held);
        } else if due_ms > now_ms {
            self.defer(at, due_ms);
        } else {
            self.keep_message(at, message, now_ms);
            self.make_ready(at, QueueEnd::Back);
        }
        self.update_lists(destination);
    }

    /// Creates the entry with its age check. The entry is not in the list of any state yet.
    fn create_entry(&mut self, arrival: NewEntry<M>, delay_dsn_stored: bool) -> EntryIndex {
        let schedule = &self.options.schedule;
        let lifetime = match arrival.kind {
            MessageKind::Mail => schedule.lifetime,
            MessageKind::Dsn => schedule.notice_lifetime,
        };
        // No DSN is written about a DSN (RFC 5321 §4.5.5).
        let late = schedule.delay_notice.filter(|_| !delay_dsn_stored && arrival.kind == MessageKind::Mail);
        let received = Duration::from_secs(arrival.received_unix_s);
        let expires_ms = self.since_origin(received.saturating_add(lifetime));
        let age_check_ms =
            late.map_or(expires_ms, |late| self.since_origin(received.saturating_add(late)).min(expires_ms));
        let at = self.entries.insert(QueueEntry {
            links: [EntryLinks { previous: NO_ENTRY, next: NO_ENTRY }; 4],
            slots: [0; 2],
            destination: arrival.destination,
            id: arrival.id,
            recipients: arrival.recipients,
            message: None,
            message_bytes: arrival.message_bytes,
            attempts: arrival.progress.attempts,
            refusal: arrival
                .progress
                .refusal
                .map(|refusal| self.destinations[arrival.destination.0 as usize].share_refusal(refusal)),
            received_unix_s: arrival.received_unix_s,
            due_ms: 0,
            age_check_ms,
            expires_ms,
            state: EntryState::Ready,
            flags: EntryFlags { delay_dsn_stored: late.is_none(), ..EntryFlags::default() },
            unsent_tries: 0,
        });
        self.link(at);
        self.schedule_age_check(at, age_check_ms);
        at
    }

    /// Returns the next message for a connection that is open and has room.
    pub(crate) fn take(&mut self, slot: &mut ConnectionSlot, now: Duration) -> NextRequest<M> {
        self.mark_busy(slot);
        self.end_trial(slot);
        let key = slot.destination;
        let destination = self.destination(key);
        (destination.has_connected, destination.has_answered) = (true, true);
        if self.must_yield(slot, millis(now)) {
            return NextRequest::Close;
        }
        let at = self.destination(key).ready.first;
        let message = if at == NO_ENTRY { None } else { self.entries[at].message.take() };
        let Some(message) = message else {
            self.mark_idle(slot);
            self.update_lists(key);
            return NextRequest::Wait;
        };
        self.leave_state(at);
        self.enter_state(at, EntryState::InFlight);
        let destination = self.destination(key);
        destination.served = destination.served.saturating_add(1);
        self.update_lists(key);
        let entry = &self.entries[at];
        let id = entry.id;
        let recipients = entry.recipients.clone();
        let attempts = entry.attempts;
        NextRequest::Deliver(DeliveryRequest { entry: at, id, destination: key, recipients, message, attempts })
    }

    pub(crate) fn next_is_loaded(&self, destination: DestinationId) -> bool {
        let first = self.destinations[destination.0 as usize].ready.first;
        first != NO_ENTRY && self.entries[first].message.is_some()
    }

    /// Time at which `tick` must be called next.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let reopen = self.backoff_ends.peek().map(|Reverse((when_ms, _))| *when_ms);
        let all = [self.retry_timers.deadline_ms(), self.age_timers.deadline_ms(), reopen];
        all.into_iter().flatten().min().map(Duration::from_millis)
    }

    /// Does a limited part of the due work. If work is left, the deadline stays in the past.
    pub(crate) fn tick(&mut self, now: Duration, actions: &mut Vec<Actions>) {
        let now_ms = millis(now);
        while self.backoff_ends.peek().is_some_and(|Reverse((when_ms, _))| *when_ms <= now_ms) {
            if let Some(Reverse((_, destination))) = self.backoff_ends.pop() {
                self.update_lists(destination);
            }
        }
        for _ in 0..MAX_TICK_TIMERS {
            let Some(at) = self.retry_timers.pop(&mut self.entries, now_ms) else { break };
            self.retry_due(at, now_ms);
        }
        for _ in 0..MAX_TICK_TIMERS {
            let Some(at) = self.age_timers.pop(&mut self.entries, now_ms) else { break };
            self.entries[at].flags.age_timer_set = false;
            actions.extend(self.check_age(at, now_ms));
        }
    }

    fn retry_due(&mut self, at: EntryIndex, now_ms: u64) {
        let due_ms = self.entries[at].due_ms;
        let destination = self.entries[at].destination;
        self.destination(destination).counts[EntryState::Deferred as usize] -= 1;
        if due_ms > now_ms {
            self.defer(at, due_ms);
        } else {
            self.make_ready(at, QueueEnd::Back);
            self.update_lists(destination);
        }
    }

    /// Returns true if the destination can be forgotten, because it has no entry, no connection and
    /// no backoff.
    pub(crate) fn is_idle(&self, destination: DestinationId, now: Duration) -> bool {
        self.destinations.get(destination.0 as usize).is_none_or(|destination| {
            destination.all.is_empty() && destination.connections == 0 && destination.backoff_until_ms <= millis(now)
        })
    }

    /// Forgets an idle destination. Its number may be reused from then on.
    pub(crate) fn forget_destination(&mut self, key: DestinationId) {
        if let Some(destination) = self.destinations.get_mut(key.0 as usize) {
            debug_assert!(destination.all.is_empty() && destination.connections == 0);
            // Lists may still contain the number, but a destination is always checked again before
            // a list entry is used.
            *destination = DestinationQueue { listed: destination.listed, ..DestinationQueue::new() };
        }
    }

    /// Sets a destination's own connection limit (at least one), which replaces the general limit.
    pub(crate) fn set_concurrency_limit(&mut self, key: DestinationId, limit: u32) {
        self.add_destination(key);
        self.destination(key).concurrency_limit = Some(limit.max(1));
    }

    /// Sets the origin of a destination. A destination without an origin is restricted only by its
    /// own limit.
    pub(crate) fn set_origin(&mut self, key: DestinationId, origin: DestinationOrigin) {
        self.add_destination(key);
        self.destination(key).origin = origin;
    }

    fn add_destination(&mut self, key: DestinationId) {
        if self.destinations.len() <= key.0 as usize {
            self.destinations.resize_with(key.0 as usize + 1, DestinationQueue::new);
        }
    }

    fn destination(&mut self, key: DestinationId) -> &mut DestinationQueue {
        &mut self.destinations[key.0 as usize]
    }

    /// Converts Unix time to the queue's clock.
    fn queue_ms(&self, unix_s: u64) -> u64 {
        self.since_origin(Duration::from_secs(unix_s))
    }

    fn since_origin(&self, unix: Duration) -> u64 {
        millis(unix.saturating_sub(self.options.origin_unix))
    }

    fn unix_s(&self, when_ms: u64) -> u64 {
        self.options.origin_unix.saturating_add(Duration::from_millis(when_ms)).as_secs()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
