//! The queue of one worker: decides which message is delivered next. Pure: no clock, no socket, no file.
//!
//! ```text
//!  put ──▶ hop 1: ready ▸▸▸▸   couriers ●●●    take ──▶ Assignment ──▶ outcome ──▶ Effects: notes, notices, done
//!          hop 2: ready ▸      couriers ●
//!          hop 3: ready ▸▸▸▸▸  shut: cannot be reached        deferred, alarms: timer wheels, moved by `tick`
//! ```
//! The driver's duties after each event: `tick` if `deadline` has come, then `wants_courier` until it is `None`, then
//! `wants_letters`. A courier is a connection. It calls `take` when it is connected and whenever it has room; it may
//! have several assignments at a time (the next MAIL travels with the last body).
//!
//! Promises, each with a test: no entry is lost; no entry is in two couriers' hands; no more couriers than the limits;
//! a hop that is slow, dead or never answers delays no other, because couriers and memory are shared so that the hop
//! with the most leaves as much for the next (`couriers`, `letters`); an entry's age is checked in every state.
//!
//! | file | what it is |
//! |---|---|
//! | `entry` | an entry and its states |
//! | `entries` | the table of entries and the lists through it |
//! | `wheel` | timers through the table |
//! | `hop` | the queue's state of a next hop |
//! | `couriers` | opening and closing of connections, and hops that are left alone |
//! | `letters` | the messages to keep in memory, and those to read |
//! | `moves` | an entry's way from state to state |
//! | `outcome` | effects of an answer, and of age |
//! | `orders` | an operator's orders: hold, release, remove, retry |
//! | `stats` | the operator's view |
mod couriers;
mod entries;
mod entry;
mod hop;
mod letters;
mod moves;
mod orders;
mod outcome;
mod stats;
mod wheel;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod model;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

pub(crate) use couriers::{Call, Closing, Courier};
use entries::Entries;
use entry::{Entry, Index, Link, Marks, NONE, Thread};
pub(crate) use entry::{MessageId, Recipients, State, TRANSACTION_RECIPIENTS};
use hop::Hop;
pub(crate) use hop::HopKey;
use moves::End;
pub(crate) use orders::{Order, Which};
#[cfg(test)]
use outcome::Ticket;
pub(crate) use outcome::{Answer, Effects, Notice, Outcome};
pub(crate) use stats::{HopStats, ListedEntry, Totals};
use wheel::Wheel;

use crate::relay::envelope::Refusal;
use crate::relay::retry::{Backoff, Schedule};

/// Options of the queue.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) schedule: Schedule,
    /// Pauses before a hop that cannot be reached is tried again.
    pub(crate) reconnect: Backoff,
    /// Couriers of one hop at a time; Postfix's `default_destination_concurrency_limit`.
    pub(crate) hop_couriers: u32,
    /// Couriers of all hops.
    pub(crate) couriers: u32,
    /// Bytes of messages kept in memory; the rest is read from the spool when its turn comes.
    pub(crate) letter_bytes: u64,
    /// Seed for the spread of delays.
    pub(crate) seed: u64,
    /// Unix time at the zero of `now`.
    pub(crate) origin_unix: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            schedule: Schedule::default(),
            reconnect: Backoff::OF_MESSAGES.of_hops(),
            hop_couriers: 20,
            couriers: 1_000,
            letter_bytes: 64 << 20,
            seed: 0,
            origin_unix: Duration::ZERO,
        }
    }
}

/// A new entry for one hop, or one from before a restart. `L` is the message in memory, with its envelope: something
/// cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Arrival<L> {
    pub(crate) id: MessageId,
    pub(crate) hop: HopKey,
    pub(crate) recipients: Recipients,
    /// `None` if it is in the spool only.
    pub(crate) letter: Option<L>,
    /// Bytes that the letter takes in memory.
    pub(crate) letter_bytes: u32,
    pub(crate) received_unix_s: u64,
    pub(crate) kind: Kind,
    /// Progress before a restart; new ones have none.
    pub(crate) before: Before,
}

/// Kind of a message, as the queue treats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Mail,
    /// A message with a null reverse path.
    Notice,
}

/// Progress of an entry by its notes (`envelope::Standing`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Before {
    pub(crate) attempts: u32,
    /// 0 for at once.
    pub(crate) next_unix_s: u64,
    pub(crate) held: bool,
    pub(crate) late_told: bool,
    pub(crate) refusal: Option<Refusal>,
}

/// An entry in a courier's hands. It must come back by `Queue::outcome`: until then the entry waits for nothing else.
#[must_use = "an assignment that does not come back is never delivered"]
#[derive(Debug)]
pub(crate) struct Assignment<L> {
    at: Index,
    pub(crate) id: MessageId,
    pub(crate) hop: HopKey,
    pub(crate) recipients: Recipients,
    pub(crate) letter: L,
    /// Number of earlier tries.
    pub(crate) attempts: u32,
}

/// Answer to a courier that asks for work.
#[derive(Debug)]
pub(crate) enum Taken<L> {
    Message(Assignment<L>),
    /// Nothing now: it is called when there is something (`Call::Wake`).
    Wait,
    /// Others have waited for a connection: it is to say QUIT and close.
    Leave,
}

/// The queue of one worker.
pub(crate) struct Queue<L> {
    options: Options,
    entries: Entries<L>,
    /// The first entry of each message.
    messages: HashMap<MessageId, Index, foldhash::fast::RandomState>,
    hops: Vec<Hop>,
    due: Wheel,
    alarms: Wheel,
    calls: couriers::Calls,
    letters: letters::Letters,
    /// Times at which hops that are shut may be tried again.
    reopen: BinaryHeap<Reverse<(u64, HopKey)>>,
}

/// Timers that one `tick` handles: a million that are due at once must not stall a worker's sessions.
const TICK_ENTRIES: usize = 1_000;

impl<L: Clone> Queue<L> {
    pub(crate) fn new(options: Options) -> Self {
        // The spread loses a sixteenth of the first wait; a second is soon enough for any.
        let grain_ms = (millis(options.schedule.backoff.first) / 16).clamp(1, 1_000);
        Self {
            calls: couriers::Calls::default(),
            letters: letters::Letters::default(),
            due: Wheel::new(grain_ms, Thread::State),
            alarms: Wheel::new(grain_ms, Thread::Alarm),
            entries: Entries::new(),
            messages: HashMap::default(),
            hops: Vec::new(),
            reopen: BinaryHeap::new(),
            options,
        }
    }

    /// Puts in the recipients for one hop; a transaction's worth of recipients becomes an entry.
    pub(crate) fn put(&mut self, arrival: Arrival<L>, now: Duration) {
        let now_ms = millis(now);
        if arrival.recipients.len() <= TRANSACTION_RECIPIENTS {
            if !arrival.recipients.is_empty() {
                self.put_one(arrival, now_ms);
            }
            return;
        }
        for numbers in arrival.recipients.to_vec().chunks(TRANSACTION_RECIPIENTS) {
            self.put_one(Arrival { recipients: Recipients::new(numbers), ..arrival.clone() }, now_ms);
        }
    }

    fn put_one(&mut self, mut arrival: Arrival<L>, now_ms: u64) {
        let (hop, held, late_told) = (arrival.hop, arrival.before.held, arrival.before.late_told);
        if self.hops.len() <= hop.0 as usize {
            self.hops.resize_with(hop.0 as usize + 1, Hop::new);
        }
        let due_ms = self.on_clock(arrival.before.next_unix_s);
        let letter = arrival.letter.take();
        let at = self.admit(arrival, late_told);
        if held {
            self.enter(at, State::Held);
        } else if due_ms > now_ms {
            self.defer(at, due_ms);
        } else {
            self.keep_letter(at, letter, now_ms);
            self.make_ready(at, End::Back);
        }
        self.heed(hop);
    }

    /// Makes the entry, with its alarm; it is in no state's list yet.
    fn admit(&mut self, arrival: Arrival<L>, late_told: bool) -> Index {
        let schedule = &self.options.schedule;
        let lifetime = match arrival.kind {
            Kind::Mail => schedule.lifetime,
            Kind::Notice => schedule.notice_lifetime,
        };
        // No notice is written about a notice, late or not (RFC 5321 §4.5.5).
        let late = schedule.delay_notice.filter(|_| !late_told && arrival.kind == Kind::Mail);
        let received = Duration::from_secs(arrival.received_unix_s);
        let expires_ms = self.since_origin(received.saturating_add(lifetime));
        let alarm_ms = late.map_or(expires_ms, |late| self.since_origin(received.saturating_add(late)).min(expires_ms));
        let at = self.entries.insert(Entry {
            links: [Link { before: NONE, after: NONE }; 4],
            slots: [0; 2],
            hop: arrival.hop,
            id: arrival.id,
            recipients: arrival.recipients,
            letter: None,
            letter_bytes: arrival.letter_bytes,
            attempts: arrival.before.attempts,
            refusal: arrival.before.refusal.map(|refusal| self.hops[arrival.hop.0 as usize].shared(refusal)),
            received_unix_s: arrival.received_unix_s,
            due_ms: 0,
            alarm_ms,
            expires_ms,
            state: State::Ready,
            marks: Marks { late_told: late.is_none(), ..Marks::default() },
            given_back: 0,
        });
        self.join(at);
        self.set_alarm(at, alarm_ms);
        at
    }

    /// The next message for a courier that is connected and has room for one.
    pub(crate) fn take(&mut self, courier: &mut Courier, now: Duration) -> Taken<L> {
        self.back_from_rest(courier);
        let key = courier.hop;
        self.hop(key).is_asked = true;
        if self.makes_room(courier, millis(now)) {
            return Taken::Leave;
        }
        let at = self.hop(key).ready.first;
        let letter = if at == NONE { None } else { self.entries[at].letter.take() };
        let Some(letter) = letter else {
            self.rest(courier);
            self.heed(key);
            return Taken::Wait;
        };
        self.leave(at);
        self.enter(at, State::InFlight);
        let hop = self.hop(key);
        hop.served = hop.served.saturating_add(1);
        self.heed(key);
        let entry = &self.entries[at];
        let (id, recipients, attempts) = (entry.id, entry.recipients.clone(), entry.attempts);
        Taken::Message(Assignment { at, id, hop: key, recipients, letter, attempts })
    }

    /// Reports whether the hop's next message is in memory.
    pub(crate) fn has_letter(&self, hop: HopKey) -> bool {
        let first = self.hops[hop.0 as usize].ready.first;
        first != NONE && self.entries[first].letter.is_some()
    }

    /// Time at which `tick` has something to do.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let reopen = self.reopen.peek().map(|Reverse((when_ms, _))| *when_ms);
        let all = [self.due.deadline_ms(), self.alarms.deadline_ms(), reopen];
        all.into_iter().flatten().min().map(Duration::from_millis)
    }

    /// Does the work that is due by now, a bounded part of it at a time: while more is left, the deadline stays in the
    /// past.
    pub(crate) fn tick(&mut self, now: Duration, effects: &mut Vec<Effects>) {
        let now_ms = millis(now);
        while self.reopen.peek().is_some_and(|Reverse((when_ms, _))| *when_ms <= now_ms) {
            if let Some(Reverse((_, hop))) = self.reopen.pop() {
                self.heed(hop);
            }
        }
        for _ in 0..TICK_ENTRIES {
            let Some(at) = self.due.pop(&mut self.entries, now_ms) else { break };
            self.came_due(at, now_ms);
        }
        for _ in 0..TICK_ENTRIES {
            let Some(at) = self.alarms.pop(&mut self.entries, now_ms) else { break };
            self.entries[at].marks.alarmed = false;
            effects.extend(self.alarm(at, now_ms));
        }
    }

    fn came_due(&mut self, at: Index, now_ms: u64) {
        let (due_ms, hop) = (self.entries[at].due_ms, self.entries[at].hop);
        self.hop(hop).counts[State::Deferred as usize] -= 1;
        if due_ms > now_ms {
            self.defer(at, due_ms);
        } else {
            self.make_ready(at, End::Back);
            self.heed(hop);
        }
    }

    /// Reports whether the hop can be forgotten: no entry, no courier, and nothing that keeps it shut.
    pub(crate) fn is_idle(&self, hop: HopKey, now: Duration) -> bool {
        self.hops
            .get(hop.0 as usize)
            .is_none_or(|hop| hop.all.is_empty() && hop.couriers == 0 && hop.shut_until_ms <= millis(now))
    }

    /// Forgets a hop that is idle; its number may be another one's from now on.
    pub(crate) fn forget_hop(&mut self, key: HopKey) {
        if let Some(hop) = self.hops.get_mut(key.0 as usize) {
            debug_assert!(hop.all.is_empty() && hop.couriers == 0);
            // Lists still have its number; a hop is checked again before a list is believed.
            *hop = Hop { listed: hop.listed, ..Hop::new() };
        }
    }

    /// Sets a hop's own limit of couriers, at least one, in place of the limit of all hops.
    pub(crate) fn limit(&mut self, key: HopKey, most: u32) {
        if self.hops.len() <= key.0 as usize {
            self.hops.resize_with(key.0 as usize + 1, Hop::new);
        }
        self.hop(key).most = Some(most.max(1));
    }

    fn hop(&mut self, key: HopKey) -> &mut Hop {
        &mut self.hops[key.0 as usize]
    }

    /// A moment of the wall clock on the queue's.
    fn on_clock(&self, unix_s: u64) -> u64 {
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
