//! The pair of endpoints as a state machine: the fate of each message, and the time of each step. The caller reports
//! what it took out of the outbox and what it has done; the model gives the next steps. No clock, no socket.
//!
//! ```text
//! endpoint  taken ─▶ reply ─▶ accept ─▶ inbox ─▶ DELIVERED ─▶ RECEIVED
//! toolbox   taken ─▶ accept ─▶ inbox ─▶ reply
//! tracing   taken ─▶ reply ─▶ accept ─▶ event
//! ```
//! Each step is due when its leg's capacity and delay, and whatever is down, let it be; the next begins when the one
//! before has been done. The outbox delivery is accepted only when the reply is settled, so that nothing is lost
//! between. What chance decides is a function of the seed and the message's number.
use super::chance::{Chance, Purpose};
use super::delay::Delay;
use super::hop::Hop;
use super::outage::{self, Place};
use super::plan::{Mode, Plan, ReceivedOn};
use super::truth::{Fate, Story, Totals, Wrongs};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;
use uuid::Uuid;

/// Slower than this share of its speed, nothing starts.
const SLOWEST_START: f64 = 0.1;

/// A message on its way. One that has ended is never named again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    slot: u32,
    generation: u32,
}

impl Key {
    /// The key as one number, for callers that carry numbers.
    pub fn to_number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The key of that number.
    pub fn from_number(number: u64) -> Self {
        Self { slot: number as u32, generation: (number >> 32) as u32 }
    }
}

/// Reason why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The plan asks for it.
    Told,
    /// It has no receiver code.
    NoReceiver,
    /// Its receiver code is unknown.
    UnknownReceiver,
    /// It has no message type.
    NoType,
    /// Its body is no data.
    NoData,
    /// Its payload is longer than the plan allows.
    TooLong,
}

/// A step that the caller is to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Accept the delivery out of the outbox. It counts as done as soon as it is given.
    Accept,
    /// Send the reply.
    Reply(Reply),
    /// Put the message into B's inbox; `changed` selects the byte to change.
    Inbox {
        /// 0, or 1 for the duplicate.
        copy: u8,
        /// A number from which the byte's position follows.
        changed: Option<u64>,
    },
    /// Report an event.
    Event(Happened),
}

/// Outcome that a reply reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reply {
    /// ECP has taken it.
    Accepted,
    /// It is refused.
    Refused(Refusal),
    /// EDX: it has been received.
    Received,
    /// EDX: it has failed.
    Failed,
}

/// State that an event reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Happened {
    /// It is in B's inbox.
    Delivered,
    /// B's application has it.
    Received,
    /// It will not get there.
    Failed,
    /// The connectivity test has been there and back.
    Traced,
}

/// A message that was taken out of the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumed {
    /// Its number and its run, if it has them.
    pub identity: Option<(u64, Uuid)>,
    /// Decides its chances: its number, or one made of its id.
    pub number: u64,
    /// Bytes of payload.
    pub bytes: usize,
    /// Set if the message declares itself a connectivity test.
    pub tracing: bool,
    /// Defect of the message.
    pub flaw: Option<Refusal>,
}

#[derive(Debug)]
struct Journey<M> {
    content: M,
    consumed: Consumed,
    story: Story,
    tracing: bool,
    /// Steps that are due or being done, and the acceptance by B's application that is waited for.
    open: u8,
    accepting: bool,
    taken_by_receiver: bool,
}

#[derive(Debug)]
struct Slot<M> {
    generation: u32,
    journey: Option<Journey<M>>,
}

/// Due work: when, in which order, what.
type Due = Reverse<(Duration, u64, Key, Step)>;

/// The pair of endpoints. `M` is what the caller keeps of each message.
#[derive(Debug)]
pub struct Model<M> {
    plan: Plan,
    began: Duration,
    accept: Hop,
    network: Hop,
    acknowledge: Hop,
    due: BinaryHeap<Due>,
    order: u64,
    slots: Vec<Slot<M>>,
    free: Vec<u32>,
    stored_bytes: u64,
    accepting: u32,
    stories: VecDeque<Story>,
    keeps_stories: bool,
    totals: Totals,
    /// The highest number put into the inbox, and its run.
    furthest: Option<(Uuid, u64)>,
}

impl<M> Model<M> {
    /// Begins at that time. With `keeps_stories` each message's story is to be taken by `next_story`.
    pub fn new(plan: Plan, began: Duration, keeps_stories: bool) -> Self {
        Self {
            accept: Hop::new(&plan.accept.capacity),
            network: Hop::new(&plan.network.capacity),
            acknowledge: Hop::new(&plan.acknowledge.capacity),
            plan,
            began,
            due: BinaryHeap::new(),
            order: 0,
            slots: Vec::new(),
            free: Vec::new(),
            stored_bytes: 0,
            accepting: 0,
            stories: VecDeque::new(),
            keeps_stories,
            totals: Totals::default(),
            furthest: None,
        }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Counts so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Messages on their way.
    pub fn stored(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Reports whether another message may be taken out of the outbox now.
    pub fn wants(&self, now: Duration) -> bool {
        let room =
            self.stored() < self.plan.max_stored_messages as usize && self.stored_bytes < self.plan.max_stored_size;
        room && self.accepting < self.plan.credit && self.up(Place::A, now) == now
    }

    /// Time of the next step, if nothing else happens.
    pub fn deadline(&self, now: Duration) -> Option<Duration> {
        let due = self.due.peek().map(|Reverse((at, ..))| *at);
        let up = Some(self.up(Place::A, now)).filter(|at| *at > now);
        due.into_iter().chain(up).min()
    }

    /// Takes a message that was taken out of the outbox.
    pub fn consume(&mut self, consumed: Consumed, content: M, now: Duration) -> Key {
        self.totals.consumed += 1;
        self.totals.bytes += consumed.bytes as u64;
        self.stored_bytes += consumed.bytes as u64;
        self.accepting += 1;
        let fault = self.wrongs(&consumed);
        let story = Story {
            seq: consumed.identity.map(|(sequence, _)| sequence),
            run: consumed.identity.map(|(_, run)| run),
            consumed: now,
            fault,
            ..Story::default()
        };
        let tracing = consumed.tracing || self.plan.mode == Mode::Tracing;
        let key = self.store(Journey {
            content,
            consumed,
            story,
            tracing: tracing && self.plan.mode != Mode::Toolbox,
            open: 0,
            accepting: true,
            taken_by_receiver: false,
        });
        let at = self.accepted_at(&consumed, now);
        self.push(at, key, self.first_step(&consumed, fault));
        key
    }

    /// Content that the caller keeps of a message.
    pub fn content(&self, key: Key) -> Option<&M> {
        self.journey(key).map(|journey| &journey.content)
    }

    /// The same, to be changed.
    pub fn content_mut(&mut self, key: Key) -> Option<&mut M> {
        self.journey_mut(key).map(|journey| &mut journey.content)
    }

    /// The next step that is due. Everything but `Step::Accept` is reported back by `done` or `gave_up`.
    pub fn next_step(&mut self, now: Duration) -> Option<(Key, Step)> {
        self.due.peek().filter(|Reverse((at, ..))| *at <= now)?;
        let Reverse((_, _, key, step)) = self.due.pop()?;
        if step == Step::Accept {
            self.accept_now(key, now);
        }
        Some((key, step))
    }

    /// A step has been done, and settled where something was sent.
    pub fn done(&mut self, key: Key, step: Step, now: Duration) {
        if self.journey(key).is_none() {
            return;
        }
        match step {
            Step::Accept => return,
            Step::Reply(reply) => self.replied(key, reply, now),
            Step::Inbox { copy: 0, .. } => self.inboxed(key, now),
            Step::Inbox { .. } => {
                self.totals.inboxed += 1;
                self.totals.duplicated += 1;
            }
            Step::Event(happened) => self.reported(key, happened, now),
        }
        self.close(key);
    }

    /// A step cannot be done: its receiver will not have the message. The message's way ends.
    pub fn gave_up(&mut self, key: Key, step: Step, now: Duration) {
        if let Some(journey) = self.journey_mut(key) {
            if !matches!(step, Step::Inbox { copy: 1.., .. }) {
                journey.story.fate = Fate::Undeliverable;
            }
            if journey.accepting
                && !self.due.iter().any(|Reverse((_, _, other, step))| *other == key && *step == Step::Accept)
            {
                self.push(now, key, Step::Accept);
            }
            self.close(key);
        }
    }

    /// B's application has accepted a message from the inbox.
    pub fn taken_by_receiver(&mut self, key: Key, now: Duration) {
        let waits = self.waits_for_receiver();
        let Some(journey) = self.journey_mut(key).filter(|journey| waits && !journey.taken_by_receiver) else { return };
        journey.taken_by_receiver = true;
        // Nothing waits for it until it is reported to be in the inbox.
        let (waited_for, delivered) = (journey.story.inboxed.is_some(), journey.story.delivered.is_some());
        if delivered {
            self.push_received(key, now);
        }
        if waited_for {
            self.close(key);
        }
    }

    fn waits_for_receiver(&self) -> bool {
        self.plan.received_on == ReceivedOn::Consume && self.plan.mode == Mode::Endpoint
    }

    /// The record of the next finished message.
    pub fn next_story(&mut self) -> Option<Story> {
        self.stories.pop_front()
    }

    /// The stories of the messages that are not.
    pub fn unfinished(&self) -> impl Iterator<Item = &Story> {
        self.slots.iter().filter_map(|slot| slot.journey.as_ref()).map(|journey| &journey.story)
    }
}

/// Decisions by chance and by time.
impl<M> Model<M> {
    /// Faults that chance gives to a message.
    fn wrongs(&self, consumed: &Consumed) -> Wrongs {
        let faults = &self.plan.faults;
        let happens = |purpose, probability| self.chance(purpose, consumed.number).happens(probability);
        if consumed.flaw.is_some() {
            return Wrongs::default();
        }
        if happens(Purpose::Error, faults.reject) {
            return Wrongs { reject: true, ..Wrongs::default() };
        }
        let no_reply = happens(Purpose::NoReply, faults.no_reply);
        let drop = happens(Purpose::Loss, faults.drop);
        let fail = !drop && happens(Purpose::Failure, faults.fail);
        let tracing = (consumed.tracing || self.plan.mode == Mode::Tracing) && self.plan.mode != Mode::Toolbox;
        // What never gets to the inbox is not changed on the way there.
        let arrives = !drop && !fail && !tracing;
        Wrongs {
            reject: false,
            no_reply,
            drop,
            fail,
            duplicate: arrives && happens(Purpose::Duplicate, faults.duplicate),
            corrupt: arrives && consumed.bytes > 0 && happens(Purpose::Corruption, faults.corrupt),
            reorder: arrives && happens(Purpose::Reordering, faults.reorder),
        }
    }

    fn first_step(&self, consumed: &Consumed, fault: Wrongs) -> Step {
        match (consumed.flaw, self.plan.mode) {
            (Some(flaw), _) => Step::Reply(Reply::Refused(flaw)),
            (None, _) if fault.reject => Step::Reply(Reply::Refused(Refusal::Told)),
            (None, Mode::Toolbox) => Step::Accept,
            (None, _) if fault.no_reply => Step::Accept,
            (None, _) => Step::Reply(Reply::Accepted),
        }
    }

    fn chance(&self, purpose: Purpose, number: u64) -> Chance {
        Chance::new(self.plan.seed, purpose, number)
    }

    fn up(&self, place: Place, at: Duration) -> Duration {
        up(&self.plan, self.began, place, at)
    }

    fn slowness(&self, now: Duration) -> f64 {
        let lasts = self.plan.slow_start.0;
        if lasts.is_zero() {
            return 1.0;
        }
        let ran = now.saturating_sub(self.began);
        let since = ran.saturating_sub(outage::up_since(&self.plan.outages, Place::A, ran));
        1.0 / (since.as_secs_f64() / lasts.as_secs_f64()).clamp(SLOWEST_START, 1.0)
    }

    fn delay(&self, delay: &Delay, purpose: Purpose, number: u64, now: Duration) -> Duration {
        delay.of(self.chance(purpose, number), number).mul_f64(self.slowness(now))
    }

    fn accepted_at(&mut self, consumed: &Consumed, now: Duration) -> Duration {
        let slowness = self.slowness(now);
        let (plan, began) = (&self.plan, self.began);
        let through = self.accept.pass(now, consumed.bytes, slowness, |at| up(plan, began, Place::A, at));
        let at = through + self.delay(&self.plan.accept.delay, Purpose::Accept, consumed.number, now);
        self.up(Place::A, at)
    }

    /// Time at which what leaves A now is at B.
    fn across(&mut self, consumed: &Consumed, now: Duration) -> Duration {
        let slowness = self.slowness(now);
        let (plan, began) = (&self.plan, self.began);
        let through = self.network.pass(now, consumed.bytes, slowness, |at| up(plan, began, Place::Network, at));
        let at = through + self.delay(&self.plan.network.delay, Purpose::Network, consumed.number, now);
        self.up(Place::Network, at)
    }

    /// Time at which A learns what B reports now.
    fn back(&mut self, consumed: &Consumed, now: Duration) -> Duration {
        let slowness = self.slowness(now);
        let (plan, began) = (&self.plan, self.began);
        let through = self.acknowledge.pass(now, 0, slowness, |at| up(plan, began, Place::B, at));
        let at = through + self.delay(&self.plan.acknowledge.delay, Purpose::Acknowledge, consumed.number, now);
        self.up(Place::A, self.up(Place::Network, at))
    }

    fn push(&mut self, at: Duration, key: Key, step: Step) {
        if let Some(journey) = self.journey_mut(key) {
            journey.open += 1;
            self.order += 1;
            self.due.push(Reverse((at, self.order, key, step)));
        }
    }

    fn push_received(&mut self, key: Key, now: Duration) {
        let Some(journey) = self.journey(key) else { return };
        let at = now + self.delay(&self.plan.receive, Purpose::Receive, journey.consumed.number, now);
        self.push(self.up(Place::A, at), key, Step::Event(Happened::Received));
    }
}

fn up(plan: &Plan, began: Duration, place: Place, at: Duration) -> Duration {
    if plan.outages.is_empty() { at } else { began + outage::up_at(&plan.outages, place, at.saturating_sub(began)) }
}

/// One thing after the other.
impl<M> Model<M> {
    fn accept_now(&mut self, key: Key, now: Duration) {
        let Some(journey) = self.journey_mut(key) else { return };
        let first = journey.accepting && journey.story.replied.is_none();
        let goes_on = first && journey.story.fate == Fate::Unfinished;
        if std::mem::take(&mut journey.accepting) {
            self.accepting -= 1;
        }
        if goes_on {
            if self.plan.mode != Mode::Toolbox {
                self.totals.unanswered += 1;
            }
            self.go_on(key, now);
        }
        self.close(key);
    }

    /// Takes the message on from A.
    fn go_on(&mut self, key: Key, now: Duration) {
        let Some(journey) = self.journey(key) else { return };
        let (consumed, fault, tracing) = (journey.consumed, journey.story.fault, journey.tracing);
        if fault.drop {
            return self.seal(key, Fate::Lost);
        }
        let at = self.across(&consumed, now);
        if tracing {
            let there_and_back = at + (at - now);
            let happened = if fault.fail { Happened::Failed } else { Happened::Traced };
            return self.push(self.up(Place::A, there_and_back), key, Step::Event(happened));
        }
        if fault.fail {
            let back = self.delay(&self.plan.acknowledge.delay, Purpose::Acknowledge, consumed.number, now);
            let at = self.up(Place::A, self.up(Place::Network, at + back));
            return match self.plan.mode {
                Mode::Toolbox => self.push_status(key, at, Reply::Failed),
                _ => self.push(at, key, Step::Event(Happened::Failed)),
            };
        }
        self.push_inbox(key, &consumed, fault, at, now);
    }

    fn push_inbox(&mut self, key: Key, consumed: &Consumed, fault: Wrongs, at: Duration, now: Duration) {
        let number = consumed.number;
        let late = self.chance(Purpose::Lateness, number).unit();
        let late = if fault.reorder { self.plan.faults.reorder_by.0.mul_f64(late) } else { Duration::ZERO };
        let changed = fault.corrupt.then(|| self.chance(Purpose::Corruption, !number).draw());
        self.totals.corrupted += u64::from(fault.corrupt);
        self.totals.corrupt_copies += u64::from(fault.corrupt) * (1 + u64::from(fault.duplicate));
        self.totals.held_back += u64::from(fault.reorder);
        let at = self.up(Place::B, at + late);
        self.push(at, key, Step::Inbox { copy: 0, changed });
        if fault.duplicate {
            let again = at + self.delay(&self.plan.network.delay, Purpose::Again, number, now);
            self.push(self.up(Place::B, again), key, Step::Inbox { copy: 1, changed });
        }
    }

    /// A toolbox's one reply, which may be missing.
    fn push_status(&mut self, key: Key, at: Duration, reply: Reply) {
        let silent = self.journey(key).is_some_and(|journey| journey.story.fault.no_reply);
        if silent {
            self.totals.unanswered += 1;
            self.totals.failed_silently += u64::from(reply == Reply::Failed);
            self.seal(key, if reply == Reply::Failed { Fate::Failed } else { Fate::Delivered });
        } else {
            self.push(at, key, Step::Reply(reply));
        }
    }

    fn replied(&mut self, key: Key, reply: Reply, now: Duration) {
        self.totals.replies += 1;
        let Some(journey) = self.journey_mut(key) else { return };
        journey.story.replied = Some(now);
        let since = now.saturating_sub(journey.story.consumed);
        self.totals.to_reply.record(since);
        match reply {
            Reply::Accepted => {
                self.push(now, key, Step::Accept);
                self.go_on(key, now);
            }
            Reply::Refused(_) => {
                self.seal(key, Fate::Refused);
                self.push(now, key, Step::Accept);
            }
            Reply::Received => self.seal(key, Fate::Delivered),
            Reply::Failed => self.seal(key, Fate::Failed),
        }
    }

    fn inboxed(&mut self, key: Key, now: Duration) {
        self.totals.inboxed += 1;
        let Some(journey) = self.journey_mut(key) else { return };
        journey.story.inboxed = Some(now);
        let (consumed, since) = (journey.consumed, now.saturating_sub(journey.story.consumed));
        let waits = self.waits_for_receiver();
        if let Some(journey) = self.journey_mut(key).filter(|journey| waits && !journey.taken_by_receiver) {
            journey.open += 1;
        }
        self.totals.to_inbox.record(since);
        self.note_order(&consumed);
        let at = self.back(&consumed, now);
        match self.plan.mode {
            Mode::Toolbox => self.push_status(key, at, Reply::Received),
            _ => self.push(at, key, Step::Event(Happened::Delivered)),
        }
    }

    fn note_order(&mut self, consumed: &Consumed) {
        let Some((sequence, run)) = consumed.identity else { return };
        match &mut self.furthest {
            Some((same, furthest)) if *same == run => {
                self.totals.overtaken += u64::from(sequence < *furthest);
                *furthest = sequence.max(*furthest);
            }
            furthest => *furthest = Some((run, sequence)),
        }
    }

    fn reported(&mut self, key: Key, happened: Happened, now: Duration) {
        let Some(journey) = self.journey_mut(key) else { return };
        let since = now.saturating_sub(journey.story.consumed);
        match happened {
            Happened::Delivered => {
                journey.story.delivered = Some(now);
                let received = journey.taken_by_receiver;
                self.totals.events_delivered += 1;
                self.totals.to_delivered.record(since);
                if !self.waits_for_receiver() || received {
                    self.push_received(key, now);
                }
            }
            Happened::Received => {
                journey.story.received = Some(now);
                self.totals.events_received += 1;
                self.totals.to_received.record(since);
                self.seal(key, Fate::Delivered);
            }
            Happened::Failed => {
                self.totals.events_failed += 1;
                self.seal(key, Fate::Failed);
            }
            Happened::Traced => {
                journey.story.delivered = Some(now);
                self.totals.events_tracing += 1;
                self.totals.to_delivered.record(since);
                self.seal(key, Fate::Traced);
            }
        }
    }

    /// Sets the fate of a message, unless one is set already.
    fn seal(&mut self, key: Key, fate: Fate) {
        if let Some(journey) = self.journey_mut(key).filter(|journey| journey.story.fate == Fate::Unfinished) {
            journey.story.fate = fate;
        }
    }
}

/// The store.
impl<M> Model<M> {
    fn store(&mut self, journey: Journey<M>) -> Key {
        match self.free.pop() {
            Some(slot) => {
                let place = &mut self.slots[slot as usize];
                place.journey = Some(journey);
                Key { slot, generation: place.generation }
            }
            None => {
                self.slots.push(Slot { generation: 0, journey: Some(journey) });
                Key { slot: self.slots.len() as u32 - 1, generation: 0 }
            }
        }
    }

    fn journey(&self, key: Key) -> Option<&Journey<M>> {
        let slot = self.slots.get(key.slot as usize).filter(|slot| slot.generation == key.generation)?;
        slot.journey.as_ref()
    }

    fn journey_mut(&mut self, key: Key) -> Option<&mut Journey<M>> {
        let slot = self.slots.get_mut(key.slot as usize).filter(|slot| slot.generation == key.generation)?;
        slot.journey.as_mut()
    }

    /// Counts one open step less; with the last of them the message is finished.
    fn close(&mut self, key: Key) {
        let Some(journey) = self.journey_mut(key) else { return };
        journey.open -= 1;
        if journey.open > 0 {
            return;
        }
        let slot = &mut self.slots[key.slot as usize];
        slot.generation = slot.generation.wrapping_add(1);
        let Some(journey) = slot.journey.take() else { return };
        self.free.push(key.slot);
        self.stored_bytes -= journey.consumed.bytes as u64;
        self.totals.finish(&journey.story);
        if self.keeps_stories {
            self.stories.push_back(journey.story);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Leg, Time};
    use super::super::{Capacity, Outage};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const RUN: Uuid = Uuid::from_u128(7);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn message(number: u64) -> Consumed {
        Consumed { identity: Some((number, RUN)), number, bytes: 100, tracing: false, flaw: None }
    }

    fn constant(delay: u64) -> Leg {
        Leg { delay: Delay::constant(ms(delay)), ..Leg::default() }
    }

    fn plan(change: impl FnOnce(&mut Plan)) -> Plan {
        let mut plan = Plan::default();
        change(&mut plan);
        plan.check().unwrap();
        plan
    }

    /// Takes every step as soon as it is due, and gives the steps with their times. What is in the inbox is taken
    /// from there at once.
    fn run_to_rest(model: &mut Model<()>, mut now: Duration) -> Vec<(u64, Step)> {
        let mut log = Vec::new();
        loop {
            while let Some((key, step)) = model.next_step(now) {
                log.push((now.as_millis() as u64, step));
                model.done(key, step, now);
                if matches!(step, Step::Inbox { .. }) {
                    model.taken_by_receiver(key, now);
                }
            }
            match model.deadline(now).filter(|at| *at > now) {
                Some(at) if model.stored() > 0 => now = at,
                _ => return log,
            }
        }
    }

    fn story_of(plan: Plan, consumed: Consumed) -> (Story, Vec<(u64, Step)>) {
        let mut model = Model::new(plan, Duration::ZERO, true);
        model.consume(consumed, (), Duration::ZERO);
        let log = run_to_rest(&mut model, Duration::ZERO);
        (model.next_story().expect("the story is over"), log)
    }

    const INBOX: Step = Step::Inbox { copy: 0, changed: None };

    #[test]
    fn an_endpoint_replies_accepts_delivers_and_reports() {
        let plan = plan(|plan| {
            (plan.accept, plan.network, plan.acknowledge) = (constant(1), constant(20), constant(300));
            plan.receive = Delay::constant(ms(4000));
        });
        let (story, log) = story_of(plan, message(5));
        let expected = [
            (1, Step::Reply(Reply::Accepted)),
            (1, Step::Accept),
            (21, INBOX),
            (321, Step::Event(Happened::Delivered)),
            (4321, Step::Event(Happened::Received)),
        ];
        assert_eq!(log, expected);
        assert_eq!((story.seq, story.fate, story.fault), (Some(5), Fate::Delivered, Wrongs::default()));
        assert_eq!((story.replied, story.inboxed), (Some(ms(1)), Some(ms(21))));
        assert_eq!((story.delivered, story.received), (Some(ms(321)), Some(ms(4321))));
    }

    #[test]
    fn a_toolbox_replies_when_all_is_over() {
        let plan = plan(|plan| {
            plan.mode = Mode::Toolbox;
            (plan.accept, plan.network, plan.acknowledge) = (constant(1), constant(20), constant(300));
        });
        let (story, log) = story_of(plan, message(5));
        assert_eq!(log, [(1, Step::Accept), (21, INBOX), (321, Step::Reply(Reply::Received))]);
        assert_eq!((story.fate, story.replied, story.delivered), (Fate::Delivered, Some(ms(321)), None));
    }

    #[test]
    fn a_connectivity_test_goes_there_and_back_and_into_no_inbox() {
        for (mode, says_so) in [(Mode::Tracing, false), (Mode::Endpoint, true)] {
            let plan = plan(|plan| (plan.mode, plan.network) = (mode, constant(20)));
            let (story, log) = story_of(plan, Consumed { tracing: says_so, ..message(5) });
            let expected = [(0, Step::Reply(Reply::Accepted)), (0, Step::Accept), (40, Step::Event(Happened::Traced))];
            assert_eq!(log, expected);
            assert_eq!((story.fate, story.inboxed), (Fate::Traced, None));
        }
    }

    #[test]
    fn each_fault_shows_as_itself() {
        let of = |change: fn(&mut Plan)| story_of(plan(change), message(5));
        let (story, log) = of(|plan| plan.faults.reject = 1.0);
        assert_eq!(log, [(0, Step::Reply(Reply::Refused(Refusal::Told))), (0, Step::Accept)]);
        assert_eq!((story.fate, story.fault.reject), (Fate::Refused, true));

        let (story, log) = of(|plan| plan.faults.drop = 1.0);
        assert_eq!(log, [(0, Step::Reply(Reply::Accepted)), (0, Step::Accept)]);
        assert_eq!((story.fate, story.fault.drop), (Fate::Lost, true));

        let (story, log) = of(|plan| plan.faults.fail = 1.0);
        assert_eq!(log[2..], [(0, Step::Event(Happened::Failed))]);
        assert_eq!((story.fate, story.inboxed), (Fate::Failed, None));

        let (story, log) = of(|plan| (plan.mode, plan.faults.fail) = (Mode::Toolbox, 1.0));
        assert_eq!(log, [(0, Step::Accept), (0, Step::Reply(Reply::Failed))]);
        assert_eq!(story.fate, Fate::Failed);

        let (story, log) = of(|plan| plan.faults.no_reply = 1.0);
        assert_eq!(log[..2], [(0, Step::Accept), (0, INBOX)]);
        assert_eq!((story.fate, story.replied, story.fault.no_reply), (Fate::Delivered, None, true));

        let (story, log) = of(|plan| plan.faults.duplicate = 1.0);
        let copies = log.iter().filter(|(_, step)| matches!(step, Step::Inbox { .. })).count();
        assert_eq!((copies, story.fate), (2, Fate::Delivered));

        let (_, log) = of(|plan| plan.faults.corrupt = 1.0);
        assert!(matches!(log[2], (0, Step::Inbox { copy: 0, changed: Some(_) })), "{log:?}");
    }

    #[test]
    fn a_flaw_is_refused_by_its_name() {
        let (story, log) = story_of(Plan::default(), Consumed { flaw: Some(Refusal::NoType), ..message(1) });
        assert_eq!(log[0].1, Step::Reply(Reply::Refused(Refusal::NoType)));
        assert_eq!((story.fate, story.fault), (Fate::Refused, Wrongs::default()));
    }

    #[test]
    fn what_is_down_waits_for_its_end() {
        let plan = plan(|plan| {
            plan.network = constant(10);
            plan.outages = ["net.down 0s..1s", "B.down 500ms..2s", "A.down 2s..3s"]
                .map(|text| Outage::parse(text).unwrap())
                .to_vec();
        });
        let (_, log) = story_of(plan.clone(), message(1));
        let times: Vec<u64> = log.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [0, 0, 2000, 3000, 3000], "reply, accept, inbox, delivered, received");
        let model = Model::<()>::new(plan, Duration::ZERO, false);
        assert!(model.wants(ms(1999)) && !model.wants(ms(2000)) && model.wants(ms(3000)));
        assert_eq!(model.deadline(ms(2500)), Some(ms(3000)));
    }

    #[test]
    fn capacities_queue_and_slow_starts_are_slow() {
        let rate = Capacity { rate_per_s: Some(100.0), ..Capacity::default() };
        let limited = plan(|plan| plan.network.capacity = rate.clone());
        let mut model = Model::new(limited.clone(), Duration::ZERO, true);
        (0..3).for_each(|number| {
            model.consume(message(number), (), Duration::ZERO);
        });
        let log = run_to_rest(&mut model, Duration::ZERO);
        let inbox: Vec<u64> = log.iter().filter(|(_, step)| *step == INBOX).map(|(at, _)| *at).collect();
        assert_eq!(inbox, [10, 20, 30]);
        let slow = Plan { slow_start: Time(Duration::from_secs(10)), ..limited };
        let (story, _) = story_of(slow, message(1));
        assert_eq!(story.inboxed, Some(ms(100)));
    }

    #[test]
    fn no_more_is_taken_than_may_be_held() {
        let plan = plan(|plan| (plan.credit, plan.max_stored_messages, plan.accept) = (2, 3, constant(10)));
        let mut model = Model::new(plan, Duration::ZERO, false);
        let first = model.consume(message(0), (), Duration::ZERO);
        assert!(model.wants(Duration::ZERO));
        model.consume(message(1), (), Duration::ZERO);
        assert!(!model.wants(Duration::ZERO), "both are unaccepted");
        let step = Step::Reply(Reply::Accepted);
        assert_eq!(model.next_step(ms(10)), Some((first, step)));
        model.done(first, step, ms(10));
        while let Some((key, step)) = model.next_step(ms(10)) {
            assert!(key == first || step != Step::Accept);
        }
        assert!(model.wants(ms(10)));
        model.consume(message(2), (), ms(10));
        assert!(!model.wants(ms(10)), "the store is full");
    }

    #[test]
    fn received_may_wait_for_the_receiver() {
        let plan = plan(|plan| plan.received_on = ReceivedOn::Consume);
        let mut model = Model::new(plan, Duration::ZERO, true);
        let key = model.consume(message(1), (), Duration::ZERO);
        while let Some((key, step)) = model.next_step(Duration::ZERO) {
            model.done(key, step, Duration::ZERO);
        }
        assert_eq!((model.next_story(), model.deadline(Duration::ZERO)), (None, None));
        model.taken_by_receiver(Key::from_number(key.to_number()), ms(700));
        model.taken_by_receiver(key, ms(900));
        run_to_rest(&mut model, ms(700));
        assert_eq!(model.next_story().and_then(|story| story.received), Some(ms(700)));
        model.taken_by_receiver(key, ms(900));
        assert_eq!(model.stored(), 0, "a key that has ended names nothing");
    }

    #[test]
    fn what_nobody_will_have_is_accounted_for() {
        let mut model = Model::new(Plan::default(), Duration::ZERO, true);
        let key = model.consume(message(1), (), Duration::ZERO);
        let (_, step) = model.next_step(Duration::ZERO).unwrap();
        model.gave_up(key, step, Duration::ZERO);
        assert_eq!(model.next_step(Duration::ZERO), Some((key, Step::Accept)));
        assert_eq!(model.next_story().map(|story| story.fate), Some(Fate::Undeliverable));
        assert_eq!((model.stored(), model.totals().unfinished()), (0, 0));
    }

    fn any_plan() -> impl Strategy<Value = Plan> {
        let mode = prop_oneof![Just(Mode::Endpoint), Just(Mode::Toolbox), Just(Mode::Tracing)];
        let on = prop_oneof![Just(ReceivedOn::Inbox), Just(ReceivedOn::Consume)];
        (mode, on, any::<u64>(), proptest::array::uniform7(0.0f64..0.5), 0u64..50).prop_map(
            |(mode, on, seed, p, delay)| {
                plan(|plan| {
                    (plan.mode, plan.received_on, plan.seed) = (mode, on, seed);
                    let faults = &mut plan.faults;
                    (faults.reject, faults.no_reply, faults.drop, faults.fail) = (p[0], p[1], p[2], p[3]);
                    (faults.duplicate, faults.corrupt, faults.reorder) = (p[4], p[5], p[6]);
                    (plan.network, plan.acknowledge) = (constant(delay), constant(delay / 2));
                    plan.outages = vec![Outage::parse("net.down 10ms..30ms").unwrap()];
                })
            },
        )
    }

    fn stories(plan: &Plan, numbers: impl Iterator<Item = u64>) -> (BTreeMap<u64, (Fate, Wrongs)>, Totals) {
        let mut model = Model::new(plan.clone(), Duration::ZERO, true);
        numbers.for_each(|number| {
            model.consume(message(number), (), Duration::ZERO);
        });
        run_to_rest(&mut model, Duration::ZERO);
        let mut stories = BTreeMap::new();
        while let Some(story) = model.next_story() {
            stories.insert(story.seq.unwrap(), (story.fate, story.fault));
        }
        (stories, model.totals().clone())
    }

    proptest! {
        #[test]
        fn fates_sum_and_depend_on_the_number_alone(plan in any_plan()) {
            let (forth, totals) = stories(&plan, 0..100);
            let (back, _) = stories(&plan, (0..100).rev());
            prop_assert_eq!(&forth, &back);
            prop_assert_eq!((forth.len(), totals.consumed, totals.unfinished()), (100, 100, 0));
            let count = |fate| forth.values().filter(|(other, _)| *other == fate).count() as u64;
            let counted = [Fate::Delivered, Fate::Refused, Fate::Lost, Fate::Failed, Fate::Traced].map(count);
            let total = [totals.delivered, totals.refused, totals.lost, totals.failed, totals.traced];
            prop_assert_eq!(counted, total);
            prop_assert_eq!(counted.iter().sum::<u64>(), 100);
            let with = |wrong: fn(&Wrongs) -> bool| forth.values().filter(|(_, wrongs)| wrong(wrongs)).count() as u64;
            prop_assert_eq!(totals.duplicated, with(|wrongs| wrongs.duplicate));
            prop_assert_eq!(totals.corrupted, with(|wrongs| wrongs.corrupt));
            prop_assert_eq!(totals.refused, with(|wrongs| wrongs.reject));
            prop_assert_eq!(totals.lost, with(|wrongs| wrongs.drop));
            prop_assert_eq!(totals.inboxed, if plan.mode == Mode::Tracing { 0 } else { totals.delivered + totals.duplicated });
        }
    }
}
