//! The pair of endpoints as a state machine, which decides the fate of each message and the time of each step. The
//! caller reports which messages it has taken from the outbox and which steps are done, and the model returns the next
//! steps. The model has no clock and no socket.
//!
//! ```text
//! endpoint  taken ─▶ reply ─▶ accept ─▶ inbox ─▶ DELIVERED ─▶ RECEIVED
//! toolbox   taken ─▶ accept ─▶ inbox ─▶ reply
//! tracing   taken ─▶ reply ─▶ accept ─▶ event
//! document  inbox ─▶ acknowledge ─▶ document
//! ```
//! Before a step is due, its message must pass the capacity limit and the delay of the part of the route that leads to
//! the step. An outage of that part delays the step. A step begins only when the previous step is done. An ECP endpoint
//! accepts a message from the outbox only after the broker has accepted the endpoint's reply, so that the message
//! cannot be lost between the two. Each random decision depends only on the seed and the number of the message.
use super::capacity::CapacityLimiter;
use super::delay::{DelayDistribution, RandomDecision, SeededRng};
use super::outage::{self, OutageTarget};
use super::plan::{EndpointMode, ReceivedOn, SimulatorPlan};
use super::truth::{DocumentKind, InjectedFaults, MessageFate, MessageRecord, SimulationTotals};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;
use uuid::Uuid;

/// Speed of endpoint A at the beginning of a slow start, as a fraction of its full speed.
const MIN_START_SPEED: f64 = 0.1;

/// Identifies a message in transit. After the message is finished, its key is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageKey {
    slot: u32,
    generation: u32,
}

impl MessageKey {
    pub fn to_number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    pub fn from_number(number: u64) -> Self {
        Self { slot: number as u32, generation: (number >> 32) as u32 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalReason {
    /// The message is valid, but belongs to the random share of messages that the plan refuses (`reject`).
    Injected,
    NoReceiver,
    UnknownReceiver,
    NoType,
    /// The message has no payload, because its body does not consist of data sections (AMQP 1.0 §3.2.6).
    NoData,
    TooLong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndpointStep {
    Accept,
    Reply(ReplyKind),
    /// The caller must put the message into B's inbox. If `changed` is set, it must first change a byte of the payload.
    Inbox {
        /// 0 for the message itself, and 1 for its duplicate.
        copy: u8,
        /// Number that selects the byte to change, or `None` to leave the payload as it is.
        changed: Option<u64>,
    },
    Event(SendEventKind),
    /// The caller must write the acknowledgement document of B's application, and pass it to `acknowledge`.
    Acknowledge {
        rejects: bool,
    },
    Document {
        /// 0 for the document itself, and 1 for its duplicate.
        copy: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplyKind {
    Accepted,
    Refused(RefusalReason),
    /// An EDX toolbox reports, as the final status, that the message was received.
    Received,
    /// An EDX toolbox reports, as the final status, that the message failed.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SendEventKind {
    Delivered,
    Received,
    Failed,
    Traced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumedMessage {
    pub identity: Option<(u64, Uuid)>,
    /// Number on which random decisions about the message depend: its number in the run or, if no bench sent the
    /// message, a number that is derived from its id.
    pub number: u64,
    pub bytes: usize,
    pub tracing: bool,
    pub kind: DocumentKind,
    pub flaw: Option<RefusalReason>,
}

#[derive(Debug)]
struct SimulatedMessage<M> {
    content: M,
    consumed: ConsumedMessage,
    record: MessageRecord,
    tracing: bool,
    /// Number of steps that are scheduled or in progress, including the wait until B's application accepts or rejects
    /// the message.
    open_steps: u8,
    accepting: bool,
    receiver: ReceiverAnswer,
}

/// Whether B's application has accepted or rejected the message. Used only if the event RECEIVED waits for this answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiverAnswer {
    Outstanding,
    Taken,
    Rejected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    InboxOfB,
    InboxOfA,
}

impl Arrival {
    fn place(self) -> OutageTarget {
        match self {
            Self::InboxOfB => OutageTarget::B,
            Self::InboxOfA => OutageTarget::A,
        }
    }

    fn step(self, copy: u8, changed: Option<u64>) -> EndpointStep {
        match self {
            Self::InboxOfB => EndpointStep::Inbox { copy, changed },
            Self::InboxOfA => EndpointStep::Document { copy },
        }
    }
}

#[derive(Debug)]
struct MessageSlot<M> {
    generation: u32,
    message: Option<SimulatedMessage<M>>,
}

/// A scheduled step: its time, a serial number that orders steps with the same time, its message, and the step itself.
type DueStep = Reverse<(Duration, u64, MessageKey, EndpointStep)>;

/// The simulated pair of endpoints. The caller stores a value of type `M`, such as the content, with each message.
#[derive(Debug)]
pub struct Simulator<M> {
    plan: SimulatorPlan,
    /// Time from which outages and the slow start count, or `None` before the first message.
    started_at: Option<Duration>,
    accept: CapacityLimiter,
    network: CapacityLimiter,
    acknowledge: CapacityLimiter,
    due_steps: BinaryHeap<DueStep>,
    order: u64,
    slots: Vec<MessageSlot<M>>,
    free: Vec<u32>,
    stored_bytes: u64,
    accepting: u32,
    records: VecDeque<MessageRecord>,
    keeps_records: bool,
    totals: SimulationTotals,
    /// Run and number of the highest-numbered message that has reached the inbox. If a message of this run arrives
    /// later and has a lower number, it was overtaken.
    highest_sequence: Option<(Uuid, u64)>,
}

impl<M> Simulator<M> {
    /// Creates a simulator. If `keeps_records` is set, `next_record` returns the record of each finished message.
    pub fn new(plan: SimulatorPlan, keeps_records: bool) -> Self {
        Self {
            accept: CapacityLimiter::new(&plan.accept.capacity),
            network: CapacityLimiter::new(&plan.network.capacity),
            acknowledge: CapacityLimiter::new(&plan.acknowledge.capacity),
            plan,
            started_at: None,
            due_steps: BinaryHeap::new(),
            order: 0,
            slots: Vec::new(),
            free: Vec::new(),
            stored_bytes: 0,
            accepting: 0,
            records: VecDeque::new(),
            keeps_records,
            totals: SimulationTotals::default(),
            highest_sequence: None,
        }
    }

    pub fn plan(&self) -> &SimulatorPlan {
        &self.plan
    }

    pub fn totals(&self) -> &SimulationTotals {
        &self.totals
    }

    pub fn stored(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Sets the time from which outages and the slow start count. Must be called when the first message waits in the
    /// outbox. If the time counted from the start of the simulator instead, outages would come too early in a run that
    /// begins long after that.
    pub fn start_at_first_message(&mut self, now: Duration) {
        self.started_at.get_or_insert(now);
    }

    /// Returns true if the caller may take another message from the outbox now.
    pub fn has_capacity(&self, now: Duration) -> bool {
        let room =
            self.stored() < self.plan.max_stored_messages as usize && self.stored_bytes < self.plan.max_stored_size;
        room && self.accepting < self.plan.credit && self.when_up(OutageTarget::A, now) == now
    }

    /// Returns the time of the next step, or the end of endpoint A's present outage if that comes first. Returns `None`
    /// if no step is scheduled and endpoint A is up.
    pub fn deadline(&self, now: Duration) -> Option<Duration> {
        let due = self.due_steps.peek().map(|Reverse((at, ..))| *at);
        let up = Some(self.when_up(OutageTarget::A, now)).filter(|at| *at > now);
        due.into_iter().chain(up).min()
    }

    /// Adds a message that the caller took from the outbox. Draws its faults at random, and schedules its first step.
    pub fn consume(&mut self, consumed: ConsumedMessage, content: M, now: Duration) -> MessageKey {
        self.accepting += 1;
        let fault = self.draw_faults(&consumed);
        let record = self.count_consumed(&consumed, fault, now);
        let tracing = consumed.tracing || self.plan.mode == EndpointMode::Tracing;
        let key = self.store(SimulatedMessage {
            content,
            consumed,
            record,
            tracing: tracing && self.plan.mode != EndpointMode::Toolbox,
            open_steps: 0,
            accepting: true,
            receiver: ReceiverAnswer::Outstanding,
        });
        let at = self.accepted_at(&consumed, now);
        self.push(at, key, self.first_step(&consumed, fault));
        key
    }

    pub fn content(&self, key: MessageKey) -> Option<&M> {
        self.message(key).map(|message| &message.content)
    }

    pub fn content_mut(&mut self, key: MessageKey) -> Option<&mut M> {
        self.message_mut(key).map(|message| &mut message.content)
    }

    /// Returns the next step that is due. The caller must report every step with `step_done` or `step_failed`.
    pub fn next_step(&mut self, now: Duration) -> Option<(MessageKey, EndpointStep)> {
        self.due_steps.peek().filter(|Reverse((at, ..))| *at <= now)?;
        let Reverse((_, _, key, step)) = self.due_steps.pop()?;
        Some((key, step))
    }

    /// Tells the simulator that a step from `next_step` is done. A step that sends a message is done only when that
    /// message is stored in its queue: the broker must have accepted it.
    pub fn step_done(&mut self, key: MessageKey, step: EndpointStep, now: Duration) {
        if self.message(key).is_none() {
            return;
        }
        match step {
            EndpointStep::Accept => return self.accepted(key, now),
            EndpointStep::Acknowledge { .. } => {}
            EndpointStep::Document { copy } => self.document_arrived(key, copy, now),
            EndpointStep::Reply(reply) => self.replied(key, reply, now),
            EndpointStep::Inbox { copy: 0, .. } => self.inboxed(key, now),
            EndpointStep::Inbox { .. } => {
                let totals = self.totals_of(key);
                totals.inboxed += 1;
                totals.duplicated += 1;
            }
            EndpointStep::Event(kind) => self.reported(key, kind, now),
        }
        self.close_step(key);
    }

    /// Tells the simulator that a step from `next_step` failed because the broker rejected the message that the step
    /// sent. The simulator then schedules no further step, except the acceptance of the message from the outbox.
    pub fn step_failed(&mut self, key: MessageKey, step: EndpointStep, now: Duration) {
        if let Some(message) = self.message_mut(key) {
            if !matches!(step, EndpointStep::Inbox { copy: 1.., .. } | EndpointStep::Document { copy: 1.. }) {
                message.record.fate = MessageFate::Undeliverable;
            }
            if message.accepting
                && !self
                    .due_steps
                    .iter()
                    .any(|Reverse((_, _, other, step))| *other == key && *step == EndpointStep::Accept)
            {
                self.push(now, key, EndpointStep::Accept);
            }
            self.close_step(key);
        }
    }

    pub fn taken_by_receiver(&mut self, key: MessageKey, now: Duration) {
        let Some(message) = self.unanswered_by_receiver(key) else { return };
        message.receiver = ReceiverAnswer::Taken;
        if message.record.delivered.is_some() {
            self.push_received(key, now);
        }
        self.push_acknowledge(key, now);
        self.close_wait_for_receiver(key);
    }

    /// Tells the simulator that the application at endpoint B took the message from its inbox and rejected it. The
    /// message is never reported as RECEIVED, and gets no acknowledgement document.
    pub fn rejected_by_receiver(&mut self, key: MessageKey) {
        let Some(message) = self.unanswered_by_receiver(key) else { return };
        message.receiver = ReceiverAnswer::Rejected;
        self.set_fate(key, MessageFate::Undeliverable);
        self.close_wait_for_receiver(key);
    }

    /// Returns the message if the application at endpoint B still has to accept or reject it. Returns `None` if the
    /// event RECEIVED does not wait for the application.
    fn unanswered_by_receiver(&mut self, key: MessageKey) -> Option<&mut SimulatedMessage<M>> {
        let waits = self.waits_for_receiver();
        self.message_mut(key).filter(|message| waits && message.receiver == ReceiverAnswer::Outstanding)
    }

    /// Ends the open step in which a message waits for the application at endpoint B. This step begins when the caller
    /// reports that the message is in the inbox. If the application answers before this report, there is no open step.
    fn close_wait_for_receiver(&mut self, key: MessageKey) {
        if self.message(key).is_some_and(|message| message.record.inboxed.is_some()) {
            self.close_step(key);
        }
    }

    fn count_consumed(&mut self, consumed: &ConsumedMessage, fault: InjectedFaults, now: Duration) -> MessageRecord {
        let totals = self.totals.of_mut(consumed.kind);
        totals.consumed += 1;
        totals.bytes += consumed.bytes as u64;
        self.stored_bytes += consumed.bytes as u64;
        MessageRecord {
            seq: consumed.identity.map(|(sequence, _)| sequence),
            run: consumed.identity.map(|(_, run)| run),
            kind: consumed.kind,
            consumed: now,
            fault,
            ..MessageRecord::default()
        }
    }

    /// Adds the acknowledgement document that B's application wrote about a message. `bytes` is the length of the
    /// document. The step `Acknowledge`, which asked for the document, is then done.
    pub fn acknowledge(&mut self, key: MessageKey, rejects: bool, bytes: usize, content: M, now: Duration) {
        let Some(message) = self.message(key) else { return };
        let consumed = ConsumedMessage {
            number: DocumentKind::Acknowledgement.chance_number(message.consumed.number),
            bytes,
            tracing: false,
            kind: DocumentKind::Acknowledgement,
            ..message.consumed
        };
        let drawn = self.draw_faults(&consumed);
        // Never corrupt an acknowledgement document, because its receiver could no longer recognise it as such.
        let fault = InjectedFaults { no_reply: false, corrupt: false, reject_document: rejects, ..drawn };
        let record = self.count_consumed(&consumed, fault, now);
        let document = self.store(SimulatedMessage {
            content,
            consumed,
            record,
            tracing: false,
            open_steps: 1,
            accepting: false,
            receiver: ReceiverAnswer::Outstanding,
        });
        match fault {
            InjectedFaults { reject: true, .. } => self.set_fate(document, MessageFate::Refused),
            InjectedFaults { drop: true, .. } => self.set_fate(document, MessageFate::Lost),
            InjectedFaults { fail: true, .. } => self.set_fate(document, MessageFate::Failed),
            _ => {
                let at = self.after_network(&consumed, now);
                self.push_arrival(document, &consumed, fault, Arrival::InboxOfA, at, now);
            }
        }
        self.close_step(document);
        self.close_step(key);
    }

    fn waits_for_receiver(&self) -> bool {
        self.plan.received_on == ReceivedOn::Consume && self.plan.mode == EndpointMode::Endpoint
    }

    pub fn next_record(&mut self) -> Option<MessageRecord> {
        self.records.pop_front()
    }

    pub fn unfinished(&self) -> impl Iterator<Item = &MessageRecord> {
        self.slots.iter().filter_map(|slot| slot.message.as_ref()).map(|message| &message.record)
    }
}

/// Draws the faults of each message, and computes when its steps are due.
impl<M> Simulator<M> {
    fn draw_faults(&self, consumed: &ConsumedMessage) -> InjectedFaults {
        let faults = &self.plan.faults;
        let happens = |purpose, probability| self.chance(purpose, consumed.number).happens(probability);
        if consumed.flaw.is_some() {
            return InjectedFaults::default();
        }
        if happens(RandomDecision::Error, faults.reject) {
            return InjectedFaults { reject: true, ..InjectedFaults::default() };
        }
        let no_reply = happens(RandomDecision::NoReply, faults.no_reply);
        let drop = happens(RandomDecision::Loss, faults.drop);
        let fail = !drop && happens(RandomDecision::Failure, faults.fail);
        let tracing =
            (consumed.tracing || self.plan.mode == EndpointMode::Tracing) && self.plan.mode != EndpointMode::Toolbox;
        // A message that never reaches the inbox must not count as duplicated, corrupted or reordered, because nobody
        // can observe such a fault.
        let arrives = !drop && !fail && !tracing;
        InjectedFaults {
            reject: false,
            no_reply,
            drop,
            fail,
            duplicate: arrives && happens(RandomDecision::Duplicate, faults.duplicate),
            corrupt: arrives && consumed.bytes > 0 && happens(RandomDecision::Corruption, faults.corrupt),
            reorder: arrives && happens(RandomDecision::Reordering, faults.reorder),
            reject_document: false,
        }
    }

    fn first_step(&self, consumed: &ConsumedMessage, fault: InjectedFaults) -> EndpointStep {
        match (consumed.flaw, self.plan.mode) {
            (Some(flaw), _) => EndpointStep::Reply(ReplyKind::Refused(flaw)),
            (None, _) if fault.reject => EndpointStep::Reply(ReplyKind::Refused(RefusalReason::Injected)),
            (None, EndpointMode::Toolbox) => EndpointStep::Accept,
            (None, _) if fault.no_reply => EndpointStep::Accept,
            (None, _) => EndpointStep::Reply(ReplyKind::Accepted),
        }
    }

    fn chance(&self, purpose: RandomDecision, number: u64) -> SeededRng {
        SeededRng::new(self.plan.seed, purpose, number)
    }

    fn when_up(&self, place: OutageTarget, at: Duration) -> Duration {
        when_up(&self.plan, self.started_at, place, at)
    }

    /// Returns the factor by which a slow start multiplies all delays: 10 when endpoint A has just come up, and 1 once
    /// the time `slow_start` has passed.
    fn slowdown(&self, now: Duration) -> f64 {
        let lasts = self.plan.slow_start.0;
        if lasts.is_zero() {
            return 1.0;
        }
        let ran = now.saturating_sub(self.started_at.unwrap_or(now));
        let since = ran.saturating_sub(outage::up_since(&self.plan.outages, OutageTarget::A, ran));
        1.0 / (since.as_secs_f64() / lasts.as_secs_f64()).clamp(MIN_START_SPEED, 1.0)
    }

    fn delay(&self, delay: &DelayDistribution, purpose: RandomDecision, number: u64, now: Duration) -> Duration {
        delay.sample(self.chance(purpose, number), number).mul_f64(self.slowdown(now))
    }

    fn accepted_at(&mut self, consumed: &ConsumedMessage, now: Duration) -> Duration {
        let slowdown = self.slowdown(now);
        let plan = &self.plan;
        let began = self.started_at;
        let through = self.accept.admit(now, consumed.bytes, slowdown, |at| when_up(plan, began, OutageTarget::A, at));
        let at = through + self.delay(&self.plan.accept.delay, RandomDecision::Accept, consumed.number, now);
        self.when_up(OutageTarget::A, at)
    }

    /// Returns the time at which a message that leaves one endpoint at the time `now` arrives at the other endpoint.
    fn after_network(&mut self, consumed: &ConsumedMessage, now: Duration) -> Duration {
        let slowdown = self.slowdown(now);
        let plan = &self.plan;
        let began = self.started_at;
        let through =
            self.network.admit(now, consumed.bytes, slowdown, |at| when_up(plan, began, OutageTarget::Network, at));
        let at = through + self.delay(&self.plan.network.delay, RandomDecision::Network, consumed.number, now);
        self.when_up(OutageTarget::Network, at)
    }

    /// Returns the time at which a report that B sends now arrives at A.
    fn arrival_at_a(&mut self, consumed: &ConsumedMessage, now: Duration) -> Duration {
        let slowdown = self.slowdown(now);
        let plan = &self.plan;
        let began = self.started_at;
        let through = self.acknowledge.admit(now, 0, slowdown, |at| when_up(plan, began, OutageTarget::B, at));
        let at = through + self.delay(&self.plan.acknowledge.delay, RandomDecision::Acknowledge, consumed.number, now);
        self.when_up(OutageTarget::A, self.when_up(OutageTarget::Network, at))
    }

    fn push(&mut self, at: Duration, key: MessageKey, step: EndpointStep) {
        if let Some(message) = self.message_mut(key) {
            message.open_steps += 1;
            self.order += 1;
            self.due_steps.push(Reverse((at, self.order, key, step)));
        }
    }

    fn push_received(&mut self, key: MessageKey, now: Duration) {
        let Some(message) = self.message(key) else { return };
        let at = now + self.delay(&self.plan.receive, RandomDecision::Receive, message.consumed.number, now);
        self.push(self.when_up(OutageTarget::A, at), key, EndpointStep::Event(SendEventKind::Received));
    }
}

fn when_up(plan: &SimulatorPlan, began: Option<Duration>, place: OutageTarget, at: Duration) -> Duration {
    began.map_or(at, |began| began + outage::up_at(&plan.outages, place, at.saturating_sub(began)))
}

impl<M> Simulator<M> {
    fn accepted(&mut self, key: MessageKey, now: Duration) {
        let Some(message) = self.message_mut(key) else { return };
        // Usually, the reply comes first, and `replied` has forwarded the message. Forward the message here if there is
        // no reply yet: an EDX toolbox replies only at the end, and a fault can suppress the reply.
        let first = message.accepting && message.record.replied.is_none();
        let goes_on = first && message.record.fate == MessageFate::Unfinished;
        if std::mem::take(&mut message.accepting) {
            self.accepting -= 1;
        }
        if goes_on {
            if self.plan.mode != EndpointMode::Toolbox {
                self.totals_of(key).unanswered += 1;
            }
            self.forward(key, now);
        }
        self.close_step(key);
    }

    fn forward(&mut self, key: MessageKey, now: Duration) {
        let Some(message) = self.message(key) else { return };
        let consumed = message.consumed;
        let fault = message.record.fault;
        let tracing = message.tracing;
        if fault.drop {
            return self.set_fate(key, MessageFate::Lost);
        }
        let at = self.after_network(&consumed, now);
        if tracing {
            // The answer to a connectivity test takes as long on its way back as the test took on its way out.
            let there_and_back = at + (at - now);
            let event = if fault.fail { SendEventKind::Failed } else { SendEventKind::Traced };
            return self.push(self.when_up(OutageTarget::A, there_and_back), key, EndpointStep::Event(event));
        }
        if fault.fail {
            let back = self.delay(&self.plan.acknowledge.delay, RandomDecision::Acknowledge, consumed.number, now);
            let at = self.when_up(OutageTarget::A, self.when_up(OutageTarget::Network, at + back));
            return match self.plan.mode {
                EndpointMode::Toolbox => self.push_status(key, at, ReplyKind::Failed),
                _ => self.push(at, key, EndpointStep::Event(SendEventKind::Failed)),
            };
        }
        self.push_arrival(key, &consumed, fault, Arrival::InboxOfB, at, now);
    }

    fn push_arrival(
        &mut self,
        key: MessageKey,
        consumed: &ConsumedMessage,
        fault: InjectedFaults,
        arrival: Arrival,
        at: Duration,
        now: Duration,
    ) {
        let number = consumed.number;
        let lateness = self.chance(RandomDecision::Lateness, number).unit();
        let lateness = if fault.reorder { self.plan.faults.reorder_by.0.mul_f64(lateness) } else { Duration::ZERO };
        // The random value of `number` has already decided that the message is corrupted. The choice of the corrupted
        // byte must be independent of this decision, so use the random value of `!number`.
        let changed = fault.corrupt.then(|| self.chance(RandomDecision::Corruption, !number).next_u64());
        let totals = self.totals.of_mut(consumed.kind);
        totals.corrupted += u64::from(fault.corrupt);
        totals.corrupt_copies += u64::from(fault.corrupt) * (1 + u64::from(fault.duplicate));
        totals.held_back += u64::from(fault.reorder);
        let place = arrival.place();
        let at = self.when_up(place, at + lateness);
        self.push(at, key, arrival.step(0, changed));
        if fault.duplicate {
            let again = at + self.delay(&self.plan.network.delay, RandomDecision::Again, number, now);
            self.push(self.when_up(place, again), key, arrival.step(1, changed));
        }
    }

    /// If the plan wants acknowledgement documents, schedules a document for a message that B's application has
    /// received. A message that was changed on the way gets no acknowledgement.
    fn push_acknowledge(&mut self, key: MessageKey, now: Duration) {
        let Some(message) = self.message(key).filter(|_| self.plan.acknowledgement_documents) else { return };
        if message.consumed.kind == DocumentKind::Acknowledgement || message.record.fault.corrupt {
            return;
        }
        let number = message.consumed.number;
        let at = now + self.delay(&self.plan.document_delay, RandomDecision::Document, number, now);
        let rejects = self.chance(RandomDecision::DocumentRejection, number).happens(self.plan.faults.reject_documents);
        self.push(self.when_up(OutageTarget::B, at), key, EndpointStep::Acknowledge { rejects });
    }

    fn document_arrived(&mut self, key: MessageKey, copy: u8, now: Duration) {
        let Some(message) = self.message_mut(key) else { return };
        let rejects = message.record.fault.reject_document;
        if copy == 0 {
            message.record.inboxed = Some(now);
        }
        let since = now.saturating_sub(message.record.consumed);
        let totals = self.totals.of_mut(DocumentKind::Acknowledgement);
        totals.inboxed += 1;
        if copy > 0 {
            totals.duplicated += 1;
            return;
        }
        totals.rejecting += u64::from(rejects);
        totals.to_inbox.record(since);
        self.set_fate(key, MessageFate::Delivered);
    }

    /// Schedules the final reply of an EDX toolbox. If a fault suppresses the reply, sets the message's fate at once.
    fn push_status(&mut self, key: MessageKey, at: Duration, reply: ReplyKind) {
        let silent = self.message(key).is_some_and(|message| message.record.fault.no_reply);
        if silent {
            let totals = self.totals_of(key);
            totals.unanswered += 1;
            totals.failed_silently += u64::from(reply == ReplyKind::Failed);
            self.set_fate(key, if reply == ReplyKind::Failed { MessageFate::Failed } else { MessageFate::Delivered });
        } else {
            self.push(at, key, EndpointStep::Reply(reply));
        }
    }

    fn replied(&mut self, key: MessageKey, reply: ReplyKind, now: Duration) {
        let Some(message) = self.message_mut(key) else { return };
        message.record.replied = Some(now);
        let since = now.saturating_sub(message.record.consumed);
        let totals = self.totals_of(key);
        totals.replies += 1;
        totals.to_reply.record(since);
        match reply {
            ReplyKind::Accepted => {
                self.push(now, key, EndpointStep::Accept);
                self.forward(key, now);
            }
            ReplyKind::Refused(_) => {
                self.set_fate(key, MessageFate::Refused);
                self.push(now, key, EndpointStep::Accept);
            }
            ReplyKind::Received => self.set_fate(key, MessageFate::Delivered),
            ReplyKind::Failed => self.set_fate(key, MessageFate::Failed),
        }
    }

    fn inboxed(&mut self, key: MessageKey, now: Duration) {
        let Some(message) = self.message_mut(key) else { return };
        message.record.inboxed = Some(now);
        let consumed = message.consumed;
        let since = now.saturating_sub(message.record.consumed);
        let waits = self.waits_for_receiver();
        if let Some(message) = self.unanswered_by_receiver(key) {
            message.open_steps += 1;
        }
        let totals = self.totals.of_mut(consumed.kind);
        totals.inboxed += 1;
        totals.to_inbox.record(since);
        self.note_order(&consumed);
        if !waits {
            self.push_acknowledge(key, now);
        }
        let at = self.arrival_at_a(&consumed, now);
        match self.plan.mode {
            EndpointMode::Toolbox => self.push_status(key, at, ReplyKind::Received),
            _ => self.push(at, key, EndpointStep::Event(SendEventKind::Delivered)),
        }
    }

    fn note_order(&mut self, consumed: &ConsumedMessage) {
        let Some((sequence, run)) = consumed.identity.filter(|_| consumed.kind == DocumentKind::Message) else {
            return;
        };
        match &mut self.highest_sequence {
            Some((same, furthest)) if *same == run => {
                self.totals.overtaken += u64::from(sequence < *furthest);
                *furthest = sequence.max(*furthest);
            }
            furthest => *furthest = Some((run, sequence)),
        }
    }

    fn reported(&mut self, key: MessageKey, event: SendEventKind, now: Duration) {
        let Some(message) = self.message_mut(key) else { return };
        let since = now.saturating_sub(message.record.consumed);
        match event {
            SendEventKind::Delivered => {
                message.record.delivered = Some(now);
                let received = message.receiver == ReceiverAnswer::Taken;
                let totals = self.totals_of(key);
                totals.events_delivered += 1;
                totals.to_delivered.record(since);
                if !self.waits_for_receiver() || received {
                    self.push_received(key, now);
                }
            }
            SendEventKind::Received => {
                message.record.received = Some(now);
                let totals = self.totals_of(key);
                totals.events_received += 1;
                totals.to_received.record(since);
                self.set_fate(key, MessageFate::Delivered);
            }
            SendEventKind::Failed => {
                self.totals_of(key).events_failed += 1;
                self.set_fate(key, MessageFate::Failed);
            }
            SendEventKind::Traced => {
                message.record.delivered = Some(now);
                let totals = self.totals_of(key);
                totals.events_tracing += 1;
                totals.to_delivered.record(since);
                self.set_fate(key, MessageFate::Traced);
            }
        }
    }

    fn set_fate(&mut self, key: MessageKey, fate: MessageFate) {
        if let Some(message) = self.message_mut(key).filter(|message| message.record.fate == MessageFate::Unfinished) {
            message.record.fate = fate;
        }
    }
}

impl<M> Simulator<M> {
    fn store(&mut self, message: SimulatedMessage<M>) -> MessageKey {
        match self.free.pop() {
            Some(slot) => {
                let place = &mut self.slots[slot as usize];
                place.message = Some(message);
                MessageKey { slot, generation: place.generation }
            }
            None => {
                self.slots.push(MessageSlot { generation: 0, message: Some(message) });
                MessageKey { slot: self.slots.len() as u32 - 1, generation: 0 }
            }
        }
    }

    fn message(&self, key: MessageKey) -> Option<&SimulatedMessage<M>> {
        let slot = self.slots.get(key.slot as usize).filter(|slot| slot.generation == key.generation)?;
        slot.message.as_ref()
    }

    fn message_mut(&mut self, key: MessageKey) -> Option<&mut SimulatedMessage<M>> {
        let slot = self.slots.get_mut(key.slot as usize).filter(|slot| slot.generation == key.generation)?;
        slot.message.as_mut()
    }

    fn totals_of(&mut self, key: MessageKey) -> &mut SimulationTotals {
        let kind = self.message(key).map_or(DocumentKind::Message, |message| message.consumed.kind);
        self.totals.of_mut(kind)
    }

    fn close_step(&mut self, key: MessageKey) {
        let Some(message) = self.message_mut(key) else { return };
        message.open_steps -= 1;
        if message.open_steps > 0 {
            return;
        }
        let slot = &mut self.slots[key.slot as usize];
        slot.generation = slot.generation.wrapping_add(1);
        let Some(message) = slot.message.take() else { return };
        self.free.push(key.slot);
        self.stored_bytes -= message.consumed.bytes as u64;
        self.totals.of_mut(message.consumed.kind).count_fate(&message.record);
        if self.keeps_records {
            self.records.push_back(message.record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Leg;
    use super::super::quantity::PlanTime;
    use super::super::{Capacity, Outage};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const RUN: Uuid = Uuid::from_u128(7);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn message(number: u64) -> ConsumedMessage {
        ConsumedMessage {
            identity: Some((number, RUN)),
            number,
            bytes: 100,
            tracing: false,
            kind: DocumentKind::Message,
            flaw: None,
        }
    }

    fn constant(delay: u64) -> Leg {
        Leg { delay: DelayDistribution::constant(ms(delay)), ..Leg::default() }
    }

    fn plan(change: impl FnOnce(&mut SimulatorPlan)) -> SimulatorPlan {
        let mut plan = SimulatorPlan::default();
        change(&mut plan);
        plan.check().unwrap();
        plan
    }

    fn started(plan: SimulatorPlan, keeps_records: bool) -> Simulator<()> {
        let mut model = Simulator::new(plan, keeps_records);
        model.start_at_first_message(Duration::ZERO);
        model
    }

    /// Performs every step as soon as it is due, and returns the steps with their times. The application at endpoint B
    /// accepts each message as soon as it is in the inbox.
    fn run_to_rest(model: &mut Simulator<()>, mut now: Duration) -> Vec<(u64, EndpointStep)> {
        let mut log = Vec::new();
        loop {
            while let Some((key, step)) = model.next_step(now) {
                log.push((now.as_millis() as u64, step));
                match step {
                    EndpointStep::Acknowledge { rejects } => model.acknowledge(key, rejects, 10, (), now),
                    _ => model.step_done(key, step, now),
                }
                if matches!(step, EndpointStep::Inbox { .. }) {
                    model.taken_by_receiver(key, now);
                }
            }
            match model.deadline(now).filter(|at| *at > now) {
                Some(at) if model.stored() > 0 => now = at,
                _ => return log,
            }
        }
    }

    fn record_of(plan: SimulatorPlan, consumed: ConsumedMessage) -> (MessageRecord, Vec<(u64, EndpointStep)>) {
        let mut model = started(plan, true);
        model.consume(consumed, (), Duration::ZERO);
        let log = run_to_rest(&mut model, Duration::ZERO);
        (model.next_record().expect("the story is over"), log)
    }

    const INBOX: EndpointStep = EndpointStep::Inbox { copy: 0, changed: None };

    #[test]
    fn an_endpoint_replies_accepts_delivers_and_reports() {
        let plan = plan(|plan| {
            (plan.accept, plan.network, plan.acknowledge) = (constant(1), constant(20), constant(300));
            plan.receive = DelayDistribution::constant(ms(4000));
        });
        let (record, log) = record_of(plan, message(5));
        let expected = [
            (1, EndpointStep::Reply(ReplyKind::Accepted)),
            (1, EndpointStep::Accept),
            (21, INBOX),
            (321, EndpointStep::Event(SendEventKind::Delivered)),
            (4321, EndpointStep::Event(SendEventKind::Received)),
        ];
        assert_eq!(log, expected);
        assert_eq!(
            (record.seq, record.fate, record.fault),
            (Some(5), MessageFate::Delivered, InjectedFaults::default())
        );
        assert_eq!((record.replied, record.inboxed), (Some(ms(1)), Some(ms(21))));
        assert_eq!((record.delivered, record.received), (Some(ms(321)), Some(ms(4321))));
    }

    #[test]
    fn a_toolbox_replies_when_all_is_over() {
        let plan = plan(|plan| {
            plan.mode = EndpointMode::Toolbox;
            (plan.accept, plan.network, plan.acknowledge) = (constant(1), constant(20), constant(300));
        });
        let (record, log) = record_of(plan, message(5));
        assert_eq!(log, [(1, EndpointStep::Accept), (21, INBOX), (321, EndpointStep::Reply(ReplyKind::Received))]);
        assert_eq!((record.fate, record.replied, record.delivered), (MessageFate::Delivered, Some(ms(321)), None));
    }

    #[test]
    fn a_connectivity_test_goes_there_and_back_and_into_no_inbox() {
        for (mode, says_so) in [(EndpointMode::Tracing, false), (EndpointMode::Endpoint, true)] {
            let plan = plan(|plan| (plan.mode, plan.network) = (mode, constant(20)));
            let (record, log) = record_of(plan, ConsumedMessage { tracing: says_so, ..message(5) });
            let expected = [
                (0, EndpointStep::Reply(ReplyKind::Accepted)),
                (0, EndpointStep::Accept),
                (40, EndpointStep::Event(SendEventKind::Traced)),
            ];
            assert_eq!(log, expected);
            assert_eq!((record.fate, record.inboxed), (MessageFate::Traced, None));
        }
    }

    #[test]
    fn each_fault_shows_as_itself() {
        let of = |change: fn(&mut SimulatorPlan)| record_of(plan(change), message(5));
        let (record, log) = of(|plan| plan.faults.reject = 1.0);
        assert_eq!(
            log,
            [(0, EndpointStep::Reply(ReplyKind::Refused(RefusalReason::Injected))), (0, EndpointStep::Accept)]
        );
        assert_eq!((record.fate, record.fault.reject), (MessageFate::Refused, true));

        let (record, log) = of(|plan| plan.faults.drop = 1.0);
        assert_eq!(log, [(0, EndpointStep::Reply(ReplyKind::Accepted)), (0, EndpointStep::Accept)]);
        assert_eq!((record.fate, record.fault.drop), (MessageFate::Lost, true));

        let (record, log) = of(|plan| plan.faults.fail = 1.0);
        assert_eq!(log[2..], [(0, EndpointStep::Event(SendEventKind::Failed))]);
        assert_eq!((record.fate, record.inboxed), (MessageFate::Failed, None));

        let (record, log) = of(|plan| (plan.mode, plan.faults.fail) = (EndpointMode::Toolbox, 1.0));
        assert_eq!(log, [(0, EndpointStep::Accept), (0, EndpointStep::Reply(ReplyKind::Failed))]);
        assert_eq!(record.fate, MessageFate::Failed);

        let (record, log) = of(|plan| plan.faults.no_reply = 1.0);
        assert_eq!(log[..2], [(0, EndpointStep::Accept), (0, INBOX)]);
        assert_eq!((record.fate, record.replied, record.fault.no_reply), (MessageFate::Delivered, None, true));

        let (record, log) = of(|plan| plan.faults.duplicate = 1.0);
        let copies = log.iter().filter(|(_, step)| matches!(step, EndpointStep::Inbox { .. })).count();
        assert_eq!((copies, record.fate), (2, MessageFate::Delivered));

        let (_, log) = of(|plan| plan.faults.corrupt = 1.0);
        assert!(matches!(log[2], (0, EndpointStep::Inbox { copy: 0, changed: Some(_) })), "{log:?}");
    }

    #[test]
    fn a_flaw_is_refused_by_its_name() {
        let (record, log) =
            record_of(SimulatorPlan::default(), ConsumedMessage { flaw: Some(RefusalReason::NoType), ..message(1) });
        assert_eq!(log[0].1, EndpointStep::Reply(ReplyKind::Refused(RefusalReason::NoType)));
        assert_eq!((record.fate, record.fault), (MessageFate::Refused, InjectedFaults::default()));
    }

    #[test]
    fn what_is_down_waits_for_its_end() {
        let plan = plan(|plan| {
            plan.network = constant(10);
            plan.outages = ["net.down 0s..1s", "B.down 500ms..2s", "A.down 2s..3s"]
                .map(|text| Outage::parse(text).unwrap())
                .to_vec();
        });
        let (_, log) = record_of(plan.clone(), message(1));
        let times: Vec<u64> = log.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [0, 0, 2000, 3000, 3000], "reply, accept, inbox, delivered, received");
        let model = started(plan, false);
        assert!(model.has_capacity(ms(1999)) && !model.has_capacity(ms(2000)) && model.has_capacity(ms(3000)));
        assert_eq!(model.deadline(ms(2500)), Some(ms(3000)));
    }

    #[test]
    fn capacities_queue_and_slow_starts_are_slow() {
        let rate = Capacity { rate_per_s: Some(100.0), ..Capacity::default() };
        let limited = plan(|plan| plan.network.capacity = rate.clone());
        let mut model = started(limited.clone(), true);
        (0..3).for_each(|number| {
            model.consume(message(number), (), Duration::ZERO);
        });
        let log = run_to_rest(&mut model, Duration::ZERO);
        let inbox: Vec<u64> = log.iter().filter(|(_, step)| *step == INBOX).map(|(at, _)| *at).collect();
        assert_eq!(inbox, [10, 20, 30]);
        let slow = SimulatorPlan { slow_start: PlanTime(Duration::from_secs(10)), ..limited };
        let (record, _) = record_of(slow, message(1));
        assert_eq!(record.inboxed, Some(ms(100)));
    }

    #[test]
    fn no_more_is_taken_than_may_be_held() {
        let plan = plan(|plan| (plan.credit, plan.max_stored_messages, plan.accept) = (2, 3, constant(10)));
        let mut model = started(plan, false);
        let first = model.consume(message(0), (), Duration::ZERO);
        assert!(model.has_capacity(Duration::ZERO));
        model.consume(message(1), (), Duration::ZERO);
        assert!(!model.has_capacity(Duration::ZERO), "both are unaccepted");
        let step = EndpointStep::Reply(ReplyKind::Accepted);
        assert_eq!(model.next_step(ms(10)), Some((first, step)));
        model.step_done(first, step, ms(10));
        while let Some((key, step)) = model.next_step(ms(10)) {
            assert!(key == first || step != EndpointStep::Accept);
            if step == EndpointStep::Accept {
                model.step_done(key, step, ms(10));
            }
        }
        assert!(model.has_capacity(ms(10)));
        model.consume(message(2), (), ms(10));
        assert!(!model.has_capacity(ms(10)), "the store is full");
    }

    #[test]
    fn received_may_wait_for_the_receiver() {
        let plan = plan(|plan| plan.received_on = ReceivedOn::Consume);
        let mut model = started(plan, true);
        let key = model.consume(message(1), (), Duration::ZERO);
        while let Some((key, step)) = model.next_step(Duration::ZERO) {
            model.step_done(key, step, Duration::ZERO);
        }
        assert_eq!((model.next_record(), model.deadline(Duration::ZERO)), (None, None));
        model.taken_by_receiver(MessageKey::from_number(key.to_number()), ms(700));
        model.taken_by_receiver(key, ms(900));
        run_to_rest(&mut model, ms(700));
        assert_eq!(model.next_record().and_then(|record| record.received), Some(ms(700)));
        model.taken_by_receiver(key, ms(900));
        assert_eq!(model.stored(), 0, "a key that has ended names nothing");
    }

    #[test]
    fn a_message_that_the_receiver_rejects_is_finished_without_being_received() {
        let plan = plan(|plan| (plan.received_on, plan.acknowledgement_documents) = (ReceivedOn::Consume, true));
        // The receiver may reject a message before or after DELIVERED. In both cases, the message must end as
        // undeliverable.
        for is_early in [true, false] {
            let mut model = started(plan.clone(), true);
            model.consume(message(1), (), Duration::ZERO);
            let mut steps = Vec::new();
            while let Some((key, step)) = model.next_step(Duration::ZERO) {
                model.step_done(key, step, Duration::ZERO);
                steps.push(step);
                let rejects = match step {
                    EndpointStep::Inbox { .. } => is_early,
                    EndpointStep::Event(SendEventKind::Delivered) => !is_early,
                    _ => false,
                };
                if rejects {
                    model.rejected_by_receiver(key);
                    model.taken_by_receiver(key, Duration::ZERO);
                }
            }
            let record = model.next_record().unwrap_or_else(|| panic!("it is not finished: {steps:?}"));
            assert_eq!((record.fate, record.received), (MessageFate::Undeliverable, None), "{steps:?}");
            assert!(record.delivered.is_some() && model.stored() == 0, "{steps:?}");
            assert!(!steps.iter().any(|step| matches!(step, EndpointStep::Acknowledge { .. })), "{steps:?}");
        }
    }

    #[test]
    fn an_acknowledgement_goes_the_same_way_and_is_in_counts_of_its_own() {
        let plan = plan(|plan| (plan.network, plan.faults.drop) = (constant(20), 0.4));
        let mut model = started(plan, true);
        for number in 0..100 {
            model.consume(message(number), (), Duration::ZERO);
            let back = ConsumedMessage { kind: DocumentKind::Acknowledgement, number: !number, ..message(number) };
            model.consume(back, (), Duration::ZERO);
        }
        run_to_rest(&mut model, Duration::ZERO);
        let lost: BTreeMap<DocumentKind, u64> = std::iter::from_fn(|| model.next_record())
            .filter(|record| record.fate == MessageFate::Lost)
            .fold(BTreeMap::new(), |mut lost, record| {
                *lost.entry(record.kind).or_default() += 1;
                lost
            });
        let totals = model.totals();
        let back = totals.acknowledgements.as_deref().unwrap();
        assert_eq!((totals.consumed, back.consumed, totals.overtaken), (100, 100, 0));
        assert_eq!(
            lost,
            BTreeMap::from([(DocumentKind::Message, totals.lost), (DocumentKind::Acknowledgement, back.lost)])
        );
        assert_eq!((totals.inboxed + totals.lost, back.inboxed + back.lost), (100, 100));
        assert_eq!((back.unfinished(), back.to_inbox.count()), (0, back.inboxed));
    }

    #[test]
    fn the_document_of_the_receiver_leaves_when_it_has_the_message_and_comes_to_the_sender() {
        let documents = |change: fn(&mut SimulatorPlan)| {
            plan(|plan| {
                plan.acknowledgement_documents = true;
                plan.document_delay = DelayDistribution::constant(ms(500));
                (plan.network, plan.acknowledge) = (constant(20), constant(3000));
                change(plan);
            })
        };
        let documents_of = |plan: SimulatorPlan| {
            let mut model = started(plan, true);
            model.consume(message(5), (), Duration::ZERO);
            let log = run_to_rest(&mut model, Duration::ZERO);
            assert_eq!((model.stored(), model.stored_bytes), (0, 0));
            let records = std::iter::from_fn(|| model.next_record());
            let document = records.filter(|record| record.kind == DocumentKind::Acknowledgement).last();
            let steps = log
                .into_iter()
                .filter(|(_, step)| matches!(step, EndpointStep::Acknowledge { .. } | EndpointStep::Document { .. }));
            (document, steps.collect::<Vec<_>>())
        };
        let (document, steps) = documents_of(documents(|_| ()));
        let document = document.unwrap();
        assert_eq!(
            steps,
            [(520, EndpointStep::Acknowledge { rejects: false }), (540, EndpointStep::Document { copy: 0 })]
        );
        assert_eq!((document.seq, document.run, document.fate), (Some(5), Some(RUN), MessageFate::Delivered));
        assert_eq!((document.consumed, document.inboxed), (ms(520), Some(ms(540))));
        let (_, steps) = documents_of(documents(|plan| plan.mode = EndpointMode::Toolbox));
        assert_eq!(steps.len(), 2);
        // B would send the document at 520 ms, but is down until 1 s. A is down until 2 s and then receives the
        // document.
        let (_, steps) = documents_of(documents(|plan| {
            plan.outages = ["B.down 500ms..1s", "A.down 1010ms..2s"].map(|text| Outage::parse(text).unwrap()).to_vec();
        }));
        assert_eq!(steps.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1_000, 2_000]);
        let (document, _) = documents_of(documents(|plan| plan.faults.reject_documents = 1.0));
        assert!(document.unwrap().fault.reject_document);
        let (_, steps) = documents_of(documents(|plan| plan.faults.duplicate = 1.0));
        assert_eq!(steps[2].1, EndpointStep::Document { copy: 1 });
        let (document, _) = documents_of(documents(|plan| plan.faults.corrupt = 1.0));
        assert_eq!(document, None, "what arrives changed is not acknowledged");
        let (document, _) = documents_of(documents(|plan| plan.mode = EndpointMode::Tracing));
        assert_eq!(document, None);
    }

    #[test]
    fn a_receiver_acknowledges_when_it_takes_the_message_where_that_is_known() {
        let plan = plan(|plan| (plan.received_on, plan.acknowledgement_documents) = (ReceivedOn::Consume, true));
        let mut model = started(plan, true);
        let key = model.consume(message(1), (), Duration::ZERO);
        while let Some((key, step)) = model.next_step(Duration::ZERO) {
            assert!(!matches!(step, EndpointStep::Acknowledge { .. }));
            model.step_done(key, step, Duration::ZERO);
        }
        model.taken_by_receiver(key, ms(700));
        let log = run_to_rest(&mut model, ms(700));
        assert!(log.contains(&(700, EndpointStep::Document { copy: 0 })), "{log:?}");
        assert_eq!(model.stored(), 0);
    }

    #[test]
    fn documents_have_faults_of_their_own_and_all_are_accounted_for() {
        let plan = plan(|plan| {
            plan.acknowledgement_documents = true;
            let faults = &mut plan.faults;
            (faults.reject, faults.drop, faults.fail) = (0.1, 0.1, 0.1);
            (faults.duplicate, faults.corrupt, faults.reject_documents) = (0.1, 0.1, 0.3);
        });
        let mut model = started(plan, true);
        for number in 0..1_000 {
            model.consume(message(number), (), Duration::ZERO);
        }
        run_to_rest(&mut model, Duration::ZERO);
        let totals = model.totals().clone();
        let back = totals.acknowledgements.as_deref().unwrap();
        assert_eq!((back.consumed, back.unfinished()), (totals.delivered - totals.corrupted, 0));
        assert!([back.refused, back.lost, back.failed, back.duplicated, back.rejecting].iter().all(|count| *count > 0));
        assert_eq!(back.inboxed, back.delivered + back.duplicated);
        let records = std::iter::from_fn(|| model.next_record());
        let rejecting = records.filter(|record| record.fault.reject_document && record.inboxed.is_some()).count();
        assert_eq!((back.rejecting, model.stored()), (rejecting as u64, 0));
    }

    #[test]
    fn what_nobody_will_have_is_accounted_for() {
        let mut model = started(SimulatorPlan::default(), true);
        let key = model.consume(message(1), (), Duration::ZERO);
        let (_, step) = model.next_step(Duration::ZERO).unwrap();
        model.step_failed(key, step, Duration::ZERO);
        assert_eq!(model.next_step(Duration::ZERO), Some((key, EndpointStep::Accept)));
        assert!(model.content(key).is_some(), "the caller needs the delivery to accept it");
        model.step_done(key, EndpointStep::Accept, Duration::ZERO);
        assert_eq!(model.next_record().map(|record| record.fate), Some(MessageFate::Undeliverable));
        assert_eq!((model.stored(), model.totals().unfinished()), (0, 0));
    }

    fn any_plan() -> impl Strategy<Value = SimulatorPlan> {
        let mode = prop_oneof![Just(EndpointMode::Endpoint), Just(EndpointMode::Toolbox), Just(EndpointMode::Tracing)];
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

    fn records_of(
        plan: &SimulatorPlan,
        numbers: impl Iterator<Item = u64>,
    ) -> (BTreeMap<u64, (MessageFate, InjectedFaults)>, SimulationTotals) {
        let mut model = started(plan.clone(), true);
        numbers.for_each(|number| {
            model.consume(message(number), (), Duration::ZERO);
        });
        run_to_rest(&mut model, Duration::ZERO);
        let mut stories = BTreeMap::new();
        while let Some(record) = model.next_record() {
            stories.insert(record.seq.unwrap(), (record.fate, record.fault));
        }
        (stories, model.totals().clone())
    }

    proptest! {
        #[test]
        fn fates_sum_and_depend_on_the_number_alone(plan in any_plan()) {
            let (forth, totals) = records_of(&plan, 0..100);
            let (back, _) = records_of(&plan, (0..100).rev());
            prop_assert_eq!(&forth, &back);
            prop_assert_eq!((forth.len(), totals.consumed, totals.unfinished()), (100, 100, 0));
            let count = |fate| forth.values().filter(|(other, _)| *other == fate).count() as u64;
            let counted = [MessageFate::Delivered, MessageFate::Refused, MessageFate::Lost, MessageFate::Failed, MessageFate::Traced].map(count);
            let total = [totals.delivered, totals.refused, totals.lost, totals.failed, totals.traced];
            prop_assert_eq!(counted, total);
            prop_assert_eq!(counted.iter().sum::<u64>(), 100);
            let with = |is_set: fn(&InjectedFaults) -> bool| forth.values().filter(|(_, faults)| is_set(faults)).count() as u64;
            prop_assert_eq!(totals.duplicated, with(|faults| faults.duplicate));
            prop_assert_eq!(totals.corrupted, with(|faults| faults.corrupt));
            prop_assert_eq!(totals.refused, with(|faults| faults.reject));
            prop_assert_eq!(totals.lost, with(|faults| faults.drop));
            prop_assert_eq!(totals.inboxed, if plan.mode == EndpointMode::Tracing { 0 } else { totals.delivered + totals.duplicated });
        }
    }
}
