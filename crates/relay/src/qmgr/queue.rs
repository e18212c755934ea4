use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use super::connections::{ConnectionLists, ConnectionSlot};
use super::destination::{DestinationOrigin, DestinationQueue};
use super::entries::EntryTable;
use super::entry::{
    DestinationId, EntryFlags, EntryIndex, EntryLinks, EntryRefusals, EntryState, ListKind, MessageId, NO_ENTRY,
    QueueEnd, QueueEntry, RecipientNumbers, TRANSACTION_RECIPIENTS,
};
use super::retry::{Backoff, RetrySchedule};
use super::timer_wheel::TimerWheel;
use crate::message::envelope::DeliveryRefusal;

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
    /// Seed of the random factors by which the delays between attempts are multiplied.
    pub(crate) seed: u64,
    /// Unix time at which the queue's clock (`now`) is zero.
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

/// One message with those of its recipients that share a destination. For new mail, `progress` has its default value,
/// which means no attempts so far. After a restart, `progress` comes from the spool. `M` is the message in memory with
/// its envelope, and should be cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct NewEntry<M> {
    pub(crate) id: MessageId,
    pub(crate) destination: DestinationId,
    pub(crate) recipients: RecipientNumbers,
    /// The message itself, or `None` if it is only in the spool.
    pub(crate) message: Option<M>,
    pub(crate) message_bytes: u32,
    pub(crate) received_unix_s: u64,
    pub(crate) kind: MessageKind,
    pub(crate) progress: EntryProgress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    Mail,
    /// A message with an empty sender address, about which no DSN may be sent.
    Dsn,
}

impl MessageKind {
    pub(crate) fn of_sender(sender: &[u8]) -> Self {
        if sender.is_empty() { Self::Dsn } else { Self::Mail }
    }
}

/// Progress of an entry before a restart, read from the notes about its recipients in the spool (`RecipientProgress`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EntryProgress {
    pub(crate) attempts: u32,
    /// Unix time of the next attempt in seconds. 0 means that the entry is due at once.
    pub(crate) next_unix_s: u64,
    pub(crate) held: bool,
    pub(crate) delay_dsn_stored: bool,
    /// The last refusal of each recipient, in the order of the entry's recipients. Empty if no
    /// recipient has been refused.
    pub(crate) refusals: Vec<DeliveryRefusal>,
}

/// An entry for a delivery agent, which must return it with `finish_delivery`. Until then, the queue neither retries
/// the entry nor lets it expire.
#[must_use = "a request that does not come back is never delivered"]
#[derive(Debug)]
pub(crate) struct DeliveryRequest<M> {
    pub(super) entry: EntryIndex,
    pub(crate) id: MessageId,
    pub(crate) destination: DestinationId,
    pub(crate) recipients: RecipientNumbers,
    pub(crate) message: M,
    pub(crate) attempts: u32,
}

#[derive(Debug)]
pub(crate) enum NextRequest<M> {
    Deliver(DeliveryRequest<M>),
    /// The queue has no message for this connection, and wakes the connection when there is one
    /// (`ConnectionAction::Wake`).
    Wait,
    /// Another destination waits for a connection, so this one must send QUIT and close.
    Close,
}

#[derive(Default)]
pub(super) struct MessageMemory {
    pub(super) used_bytes: u64,
    /// Destinations that may have messages to be read from the spool.
    pub(super) unread: VecDeque<DestinationId>,
}

pub(crate) struct MailQueue<M> {
    pub(super) options: Options,
    pub(super) entries: EntryTable<M>,
    pub(super) messages: HashMap<MessageId, EntryIndex, foldhash::fast::RandomState>,
    pub(super) destinations: Vec<DestinationQueue>,
    pub(super) retry_timers: TimerWheel,
    pub(super) age_timers: TimerWheel,
    pub(super) connections: ConnectionLists,
    pub(super) memory: MessageMemory,
    pub(super) backoff_ends: BinaryHeap<Reverse<(u64, DestinationId)>>,
}

impl<M: Clone> MailQueue<M> {
    pub(crate) fn new(options: Options, now: Duration) -> Self {
        // A grain is the resolution of the timers, so a timer fires up to one grain late. A grain of 1/16 of the first
        // wait makes even this wait hardly longer. Limit the grain to one second, so that long first waits are still
        // precise.
        let grain_ms = (millis(options.schedule.backoff.initial) / 16).clamp(1, 1_000);
        Self {
            connections: ConnectionLists::default(),
            memory: MessageMemory::default(),
            retry_timers: TimerWheel::new(grain_ms, ListKind::State, millis(now)),
            age_timers: TimerWheel::new(grain_ms, ListKind::Age, millis(now)),
            entries: EntryTable::new(),
            messages: HashMap::default(),
            destinations: Vec::new(),
            backoff_ends: BinaryHeap::new(),
            options,
        }
    }

    /// Adds a message for its recipients at one destination to the queue. If the recipients are too many for one
    /// transaction, they get several entries.
    pub(crate) fn put(&mut self, mut arrival: NewEntry<M>, now: Duration) {
        let now_ms = millis(now);
        if arrival.recipients.len() <= TRANSACTION_RECIPIENTS {
            if !arrival.recipients.is_empty() {
                self.put_entry(arrival, now_ms);
            }
            return;
        }
        // Take the refusals out of `arrival`, because each clone below would otherwise copy the refusals of all
        // recipients.
        let mut refusals = std::mem::take(&mut arrival.progress.refusals).into_iter();
        for numbers in arrival.recipients.to_vec().chunks(TRANSACTION_RECIPIENTS) {
            let mut part = NewEntry { recipients: RecipientNumbers::new(numbers), ..arrival.clone() };
            part.progress.refusals = refusals.by_ref().take(numbers.len()).collect();
            self.put_entry(part, now_ms);
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

    /// Creates an entry and schedules its age check. The caller must then set the entry's first state.
    pub(super) fn create_entry(&mut self, arrival: NewEntry<M>, delay_dsn_stored: bool) -> EntryIndex {
        let schedule = &self.options.schedule;
        let lifetime = match arrival.kind {
            MessageKind::Mail => schedule.lifetime,
            MessageKind::Dsn => schedule.notice_lifetime,
        };
        // Schedule no delay notice for a DSN, because no DSN may be written about a DSN (RFC 5321
        // §4.5.5).
        let late = schedule.delay_notice.filter(|_| !delay_dsn_stored && arrival.kind == MessageKind::Mail);
        let received = Duration::from_secs(arrival.received_unix_s);
        let expires_ms = self.since_origin(received.saturating_add(lifetime));
        let age_check_ms =
            late.map_or(expires_ms, |late| self.since_origin(received.saturating_add(late)).min(expires_ms));
        let refused = arrival.recipients.iter().zip(arrival.progress.refusals);
        let refusals = self.share_refusals(arrival.destination, refused);
        let at = self.entries.insert(QueueEntry {
            links: [EntryLinks { previous: NO_ENTRY, next: NO_ENTRY }; 4],
            slots: [0; 2],
            destination: arrival.destination,
            id: arrival.id,
            recipients: arrival.recipients,
            message: None,
            message_bytes: arrival.message_bytes,
            attempts: arrival.progress.attempts,
            refusals,
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

    /// Converts the refusals of an entry's recipients to the form in which the entry stores them. To save memory, equal
    /// refusals share one copy.
    pub(super) fn share_refusals(
        &mut self,
        key: DestinationId,
        refused: impl IntoIterator<Item = (u16, DeliveryRefusal)>,
    ) -> EntryRefusals {
        let destination = self.destination(key);
        let shared = refused.into_iter().map(|(number, refusal)| (number, destination.share_refusal(refusal)));
        EntryRefusals::new(shared.collect())
    }

    /// Returns the next message for a connection that can take one, or tells the connection to wait or to close.
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

    /// Returns the time at which `tick` must be called next, or `None` if no timer is set.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let reopen = self.backoff_ends.peek().map(|Reverse((when_ms, _))| *when_ms);
        let all = [self.retry_timers.deadline_ms(), self.age_timers.deadline_ms(), reopen];
        all.into_iter().flatten().min().map(Duration::from_millis)
    }

    /// Returns true if the destination can be forgotten, because it has no entry, no connection and
    /// no backoff.
    pub(crate) fn is_idle(&self, destination: DestinationId, now: Duration) -> bool {
        self.destinations.get(destination.0 as usize).is_none_or(|destination| {
            destination.all.is_empty() && destination.connections == 0 && destination.backoff_until_ms <= millis(now)
        })
    }

    /// Forgets an idle destination, whose number may be reused from then on.
    pub(crate) fn forget_destination(&mut self, key: DestinationId) {
        if let Some(destination) = self.destinations.get_mut(key.0 as usize) {
            debug_assert!(destination.all.is_empty() && destination.connections == 0);
            // Keep `listed`, because the destination's number may still be in a list, such as the list of destinations
            // without a connection. The queue checks the destination again when it takes the number from the list.
            *destination = DestinationQueue { listed: destination.listed, ..DestinationQueue::new() };
        }
    }

    /// Sets a destination's own connection limit (at least one), which replaces the general limit.
    pub(crate) fn set_concurrency_limit(&mut self, key: DestinationId, limit: u32) {
        self.add_destination(key);
        self.destination(key).concurrency_limit = Some(limit.max(1));
    }

    /// Sets whether a destination is local, configured, or a domain that any sender can choose. Attempts to reach such
    /// domains may use only a part of the connections. A destination whose origin was never set counts as local.
    pub(crate) fn set_origin(&mut self, key: DestinationId, origin: DestinationOrigin) {
        self.add_destination(key);
        self.destination(key).origin = origin;
    }

    pub(super) fn add_destination(&mut self, key: DestinationId) {
        if self.destinations.len() <= key.0 as usize {
            self.destinations.resize_with(key.0 as usize + 1, DestinationQueue::new);
        }
    }

    pub(super) fn destination(&mut self, key: DestinationId) -> &mut DestinationQueue {
        &mut self.destinations[key.0 as usize]
    }

    /// Sets the Unix time at which the queue's clock was zero. The worker calls this after the host was suspended or
    /// its time was set. The timers of existing entries do not change, because they use the queue's clock, so no entry
    /// is retried or expires early.
    pub(crate) fn set_unix_origin(&mut self, origin: Duration) {
        self.options.origin_unix = origin;
    }

    /// Converts Unix time to the queue's clock. A time before the clock's origin becomes 0.
    pub(super) fn queue_ms(&self, unix_s: u64) -> u64 {
        self.since_origin(Duration::from_secs(unix_s))
    }

    pub(super) fn since_origin(&self, unix: Duration) -> u64 {
        millis(unix.saturating_sub(self.options.origin_unix))
    }

    pub(super) fn unix_s(&self, when_ms: u64) -> u64 {
        self.options.origin_unix.saturating_add(Duration::from_millis(when_ms)).as_secs()
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
