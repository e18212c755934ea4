//! The queue against a naive model: random lists of operations, after each of which the counts are checked. At the end
//! everything is delivered, and no message may be missing.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::entry::{NO_ENTRY, STATE_COUNT};
use super::*;
use crate::message::envelope::{Fact, MessageProgress, RecipientFate, encode_note};

/// Small enough that everything happens: hops are full, memory is short, messages are late and expire.
const DESTINATIONS: u32 = 4;
const DESTINATION_CONCURRENCY_LIMIT: u32 = 3;
const CONCURRENCY_LIMIT: u32 = 5;
const MEMORY_LIMIT: u64 = 1_000;
const MAX_MESSAGE_BYTES: u32 = 400;

#[derive(Clone, Copy, Debug)]
enum ModelStep {
    Put { hop: u32, recipients: u16, second: bool, bytes: u32, held: bool, notice: bool },
    Connect,
    Take(u8),
    Answer(u8, u8),
    Close(u8, bool),
    Quit(u8),
    Read(u8),
    Advance(u16),
    Command(u8, u8),
    StoreDsn(u8),
}

fn step() -> impl Strategy<Value = ModelStep> {
    prop_oneof![
        5 => (0..DESTINATIONS, 1..5_u16, any::<bool>(), 1..MAX_MESSAGE_BYTES, 0..10_u8, 0..5_u8).prop_map(
            |(hop, recipients, second, bytes, held, notice)| {
                ModelStep::Put { hop, recipients, second, bytes, held: held == 0, notice: notice == 0 }
            }
        ),
        6 => Just(ModelStep::Connect),
        4 => any::<u8>().prop_map(ModelStep::Take),
        6 => (any::<u8>(), 0..12_u8).prop_map(|(which, how)| ModelStep::Answer(which, how)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(which, dead)| ModelStep::Close(which, dead)),
        1 => any::<u8>().prop_map(ModelStep::Quit),
        4 => any::<u8>().prop_map(ModelStep::Read),
        2 => (0..3_000_u16).prop_map(ModelStep::Advance),
        1 => (0..4_u8, any::<u8>()).prop_map(|(order, which)| ModelStep::Command(order, which)),
        2 => any::<u8>().prop_map(ModelStep::StoreDsn),
    ]
}

/// A recipient, as the model sees it.
#[derive(Debug, Default)]
struct ModelRecipient {
    destination: u32,
    in_flight: bool,
    not_before: Duration,
    settled: bool,
    /// Was answered 2xx.
    delivered: bool,
    /// A notice about it is being written.
    dsn_pending: bool,
}

#[derive(Debug)]
struct ModelMessage {
    recipients: Vec<ModelRecipient>,
    held: bool,
    removed: bool,
    done: bool,
    progress: MessageProgress,
    expires: Duration,
}

/// A connection, and the messages that it carries.
struct ModelConnection {
    slot: ConnectionSlot,
    is_idle: bool,
    is_quitting: bool,
    requests: Vec<DeliveryRequest<Arc<u64>>>,
}

struct QueueModel {
    queue: MailQueue<Arc<u64>>,
    now: Duration,
    messages: BTreeMap<u64, ModelMessage>,
    connections: Vec<ModelConnection>,
    pending_dsns: Vec<(PendingDsn, Vec<u16>)>,
    reads: BTreeSet<u64>,
}

fn refusal(code: u16) -> DeliveryRefusal {
    DeliveryRefusal::new(code, None, "no", "hop.example")
}

fn options() -> Options {
    let backoff = Backoff { initial: Duration::from_millis(800), max: Duration::from_secs(4) };
    Options {
        schedule: RetrySchedule {
            backoff,
            lifetime: Duration::from_secs(60),
            notice_lifetime: Duration::from_secs(30),
            delay_notice: Some(Duration::from_secs(10)),
        },
        reconnect: Backoff { initial: Duration::from_millis(500), max: Duration::from_secs(2) },
        destination_concurrency_limit: DESTINATION_CONCURRENCY_LIMIT,
        concurrency_limit: CONCURRENCY_LIMIT,
        message_bytes: MEMORY_LIMIT,
        seed: 5,
        origin_unix: Duration::from_secs(1_000_000),
    }
}

impl QueueModel {
    fn new() -> Self {
        Self {
            queue: MailQueue::new(options()),
            now: Duration::from_secs(1),
            messages: BTreeMap::new(),
            connections: Vec::new(),
            pending_dsns: Vec::new(),
            reads: BTreeSet::new(),
        }
    }

    fn apply(&mut self, step: ModelStep) {
        match step {
            ModelStep::Put { hop, recipients, second, bytes, held, notice } => {
                self.put(hop, recipients, second, bytes, held, notice);
            }
            ModelStep::Connect => self.connect(),
            ModelStep::Take(which) => self.take(which),
            ModelStep::Answer(which, how) => self.answer(which, how),
            ModelStep::Close(which, dead) => self.close(which, dead),
            ModelStep::Quit(which) => self.quit(which),
            ModelStep::Read(most) => self.read(usize::from(most % 4)),
            ModelStep::Advance(ms) => self.advance(Duration::from_millis(u64::from(ms))),
            ModelStep::Command(order, which) => self.command(order, which),
            ModelStep::StoreDsn(which) => self.store_dsn(which),
        }
    }

    fn put(&mut self, hop: u32, count: u16, second: bool, bytes: u32, held: bool, notice: bool) {
        let id = self.messages.len() as u64 + 1;
        let received_unix_s = 1_000_000 + self.now.as_secs();
        let lifetime = if notice { 30 } else { 60 };
        // Even recipients to one hop, odd ones to the next, or all to one.
        let hop_of = |number: u16| if second { (hop + u32::from(number % 2)) % DESTINATIONS } else { hop };
        let fated = (0..count)
            .map(|number| ModelRecipient { destination: hop_of(number), ..ModelRecipient::default() })
            .collect::<Vec<_>>();
        let mut progress = MessageProgress::new(fated.len());
        progress.held = held;
        for hop in (0..DESTINATIONS).map(DestinationId) {
            let numbers: Vec<u16> = (0..count).filter(|number| hop_of(*number) == hop.0).collect();
            let arrival = NewEntry {
                id: MessageId(id),
                destination: hop,
                recipients: RecipientNumbers::new(&numbers),
                message: Some(Arc::new(id)),
                message_bytes: bytes,
                received_unix_s,
                kind: if notice { MessageKind::Dsn } else { MessageKind::Mail },
                progress: EntryProgress { held, ..EntryProgress::default() },
            };
            self.queue.put(arrival, self.now);
        }
        let expires = Duration::from_secs(self.now.as_secs() + lifetime);
        self.messages
            .insert(id, ModelMessage { recipients: fated, held, removed: false, done: false, progress, expires });
    }

    fn connect(&mut self) {
        while let Some(call) = self.queue.next_connection_action(self.now) {
            match call {
                ConnectionAction::Open(courier) => {
                    let of_hop =
                        self.connections.iter().filter(|live| live.slot.destination == courier.destination).count();
                    assert!(of_hop < DESTINATION_CONCURRENCY_LIMIT as usize, "a hop's limit is kept");
                    assert!(self.connections.len() < CONCURRENCY_LIMIT as usize, "the limit of all is kept");
                    self.connections.push(ModelConnection {
                        slot: courier,
                        is_idle: false,
                        is_quitting: false,
                        requests: Vec::new(),
                    });
                }
                ConnectionAction::Wake(hop) => {
                    let at = self.waiting(hop);
                    self.connections[at].is_idle = false;
                    self.take_at(at);
                }
                ConnectionAction::Close(hop) => {
                    let at = self.waiting(hop);
                    self.close_at(at, DisconnectReason::Finished);
                }
            }
        }
    }

    fn waiting(&self, hop: DestinationId) -> usize {
        let mut all = self.connections.iter();
        all.position(|live| live.slot.destination == hop && live.is_idle).expect("only who waits is called")
    }

    fn take(&mut self, which: u8) {
        if !self.connections.is_empty() {
            self.take_at(usize::from(which) % self.connections.len());
        }
    }

    fn take_at(&mut self, at: usize) {
        if self.connections[at].requests.len() >= 2 || self.connections[at].is_quitting {
            return;
        }
        self.connections[at].is_idle = false;
        match self.queue.take(&mut self.connections[at].slot, self.now) {
            NextRequest::Deliver(assignment) => {
                let message = self.messages.get_mut(&assignment.id.0).unwrap();
                assert!(!message.held && !message.removed && !message.done);
                assert_eq!(*assignment.message, assignment.id.0, "the message is the one");
                for number in assignment.recipients.iter() {
                    let fated = &mut message.recipients[usize::from(number)];
                    assert!(!fated.settled && !fated.in_flight, "nobody is in two couriers' hands, or delivered again");
                    assert_eq!(fated.destination, assignment.destination.0);
                    assert!(fated.not_before <= self.now, "not before its time");
                    fated.in_flight = true;
                }
                self.connections[at].requests.push(assignment);
            }
            NextRequest::Wait => self.connections[at].is_idle = true,
            NextRequest::Close => self.close_at(at, DisconnectReason::Finished),
        }
    }

    fn answer(&mut self, which: u8, how: u8) {
        let busy: Vec<usize> =
            (0..self.connections.len()).filter(|at| !self.connections[*at].requests.is_empty()).collect();
        if !busy.is_empty() {
            self.answer_at(busy[usize::from(which) % busy.len()], how);
        }
    }

    fn answer_at(&mut self, at: usize, how: u8) {
        let assignment = self.connections[at].requests.remove(0);
        let count = assignment.recipients.len();
        let mixed = [
            RecipientStatus::Delivered,
            RecipientStatus::Deferred(refusal(451)),
            RecipientStatus::Failed(refusal(550)),
            RecipientStatus::Confirmed(crate::message::envelope::Confirmation::Relayed),
        ];
        let each = |from: usize| (0..count).map(|at| mixed[(at + from) % 4].clone()).collect::<Vec<_>>();
        let outcome = match how {
            0..=3 => DeliveryResult::Delivered,
            4 => DeliveryResult::All(RecipientStatus::Deferred(refusal(450))),
            5 => DeliveryResult::All(RecipientStatus::Failed(refusal(554))),
            6 => DeliveryResult::Unknown,
            7 => DeliveryResult::Unsent,
            8 => DeliveryResult::Each(each(1)[..count - 1].to_vec()),
            9 => DeliveryResult::Panicked(refusal(0)),
            _ => DeliveryResult::Each(each(usize::from(how))),
        };
        let answers = match &outcome {
            DeliveryResult::Delivered => vec![RecipientStatus::Delivered; count],
            DeliveryResult::All(answer) => vec![answer.clone(); count],
            DeliveryResult::Each(answers) => answers.clone(),
            DeliveryResult::Unknown | DeliveryResult::Unsent | DeliveryResult::Panicked(_) => Vec::new(),
        };
        let id = assignment.id;
        let attempts = assignment.attempts + 1;
        let wait =
            options().schedule.backoff.delay(5, id.0 ^ u64::from(assignment.destination.0).rotate_left(32), attempts);
        let message = self.messages.get_mut(&id.0).unwrap();
        for (at, number) in assignment.recipients.iter().enumerate() {
            let fated = &mut message.recipients[usize::from(number)];
            fated.in_flight = false;
            match answers.get(at) {
                Some(RecipientStatus::Delivered | RecipientStatus::Confirmed(_)) => fated.delivered = true,
                Some(RecipientStatus::Failed(_)) => {}
                None if outcome == DeliveryResult::Unsent => {}
                Some(RecipientStatus::Deferred(_)) | None => {
                    fated.not_before = Duration::from_millis((self.now + wait).as_millis() as u64);
                }
            }
        }
        let effects = self.queue.finish_delivery(assignment, outcome, self.now);
        self.apply_actions(effects);
    }

    fn close(&mut self, which: u8, dead: bool) {
        if !self.connections.is_empty() {
            let closing = if dead { DisconnectReason::Unreachable(refusal(421)) } else { DisconnectReason::Finished };
            self.close_at(usize::from(which) % self.connections.len(), closing);
        }
    }

    fn quit(&mut self, which: u8) {
        if !self.connections.is_empty() {
            let at = usize::from(which) % self.connections.len();
            let live = &mut self.connections[at];
            (live.is_idle, live.is_quitting) = (false, true);
            self.queue.begin_quit(&mut live.slot);
        }
    }

    fn close_at(&mut self, at: usize, closing: DisconnectReason) {
        while !self.connections[at].requests.is_empty() {
            self.answer_at(at, 7);
        }
        let live = self.connections.remove(at);
        self.queue.closed(live.slot, closing, self.now);
    }

    fn read(&mut self, most: usize) {
        let mut ids = Vec::new();
        self.queue.messages_to_read(&mut ids);
        assert!(ids.is_sorted(), "in the order of the log");
        self.reads.extend(ids.iter().map(|id| id.0));
        for _ in 0..most {
            let Some(id) = self.reads.pop_first() else { break };
            self.queue.loaded(MessageId(id), &Arc::new(id));
        }
    }

    fn advance(&mut self, time: Duration) {
        self.now += time;
        let mut all = Vec::new();
        while self.queue.deadline().is_some_and(|deadline| deadline <= self.now) {
            self.queue.tick(self.now, &mut all);
        }
        all.into_iter().for_each(|effects| self.apply_actions(effects));
        // An entry that is too old is no longer in flight, wherever it was; late by a grain at most.
        let grain = Duration::from_millis(50);
        for (id, message) in self.messages.iter().filter(|(_, message)| message.expires + grain <= self.now) {
            let waits = message.recipients.iter().any(|fated| !fated.settled && !fated.in_flight);
            assert!(!waits || message.removed, "{id} is {message:?} at {:?}", self.now);
        }
    }

    fn command(&mut self, order: u8, which: u8) {
        let order = [OperatorCommand::Hold, OperatorCommand::Release, OperatorCommand::Remove, OperatorCommand::Retry]
            [usize::from(order)];
        let which = match which {
            0..20 => MessageSelector::All,
            20..40 => MessageSelector::Destination(DestinationId(u32::from(which) % DESTINATIONS)),
            _ => MessageSelector::Message(MessageId(u64::from(which) % (self.messages.len() as u64 + 1))),
        };
        if order == OperatorCommand::Remove && which == MessageSelector::All {
            return;
        }
        let mut all = Vec::new();
        let changed = self.queue.apply_command(order, which, self.now, |effects| all.push(effects));
        assert_eq!(changed, all.len());
        for effects in all {
            let message = self.messages.get_mut(&effects.id.0).unwrap();
            match order {
                OperatorCommand::Hold => message.held = true,
                OperatorCommand::Release => message.held = false,
                OperatorCommand::Remove => message.removed = true,
                OperatorCommand::Retry => {}
            }
            if matches!(order, OperatorCommand::Release | OperatorCommand::Retry) {
                message.recipients.iter_mut().for_each(|fated| fated.not_before = Duration::ZERO);
            }
            self.apply_actions(effects);
        }
    }

    fn store_dsn(&mut self, which: u8) {
        if !self.pending_dsns.is_empty() {
            let (ticket, recipients) = self.pending_dsns.remove(usize::from(which) % self.pending_dsns.len());
            let message = self.messages.get_mut(&ticket.id.0).unwrap();
            recipients.iter().for_each(|number| message.recipients[usize::from(*number)].dsn_pending = false);
            let effects = self.queue.dsn_stored(ticket);
            self.apply_actions(effects);
        }
    }

    /// Does what the driver would write into the spool, and updates the model by it.
    fn apply_actions(&mut self, effects: Actions) {
        let message = self.messages.get_mut(&effects.id.0).unwrap();
        assert!(!message.done, "nothing follows after `done`");
        message.progress.apply_note(&encode_note(&effects.facts).unwrap()).unwrap();
        for fact in &effects.facts {
            if let Fact::Settled { recipients, .. } = fact {
                recipients.iter().for_each(|number| message.recipients[usize::from(*number)].settled = true);
            }
        }
        match effects.dsn {
            Some(DsnEvent::Settled { pending: ticket, fates }) => {
                for (number, fate) in &fates {
                    let fated = &mut message.recipients[usize::from(*number)];
                    assert!(fate.needs_dsn() && fated.settled);
                    assert_eq!(matches!(fate, RecipientFate::Confirmed(_)), fated.delivered);
                    fated.dsn_pending = true;
                }
                self.pending_dsns.push((ticket, fates.iter().map(|(number, _)| *number).collect()));
            }
            Some(DsnEvent::Delayed { recipients, .. }) => {
                assert!(recipients.iter().all(|number| !message.recipients[usize::from(*number)].settled));
            }
            None => {}
        }
        if effects.done {
            message.done = true;
            // `done` replaces the facts that it makes superfluous.
            for fated in &mut message.recipients {
                assert!(!fated.in_flight && !fated.dsn_pending, "done before its time");
                assert!(fated.settled || fated.delivered || message.removed, "done with somebody left: {fated:?}");
                fated.settled = true;
            }
        } else {
            let stands = message.progress.recipients.iter().zip(&message.recipients);
            for (standing, fated) in stands {
                assert_eq!(standing.fate.is_some(), fated.settled, "the notes tell how far it is");
            }
        }
    }

    /// Compares the counts with the table.
    fn check_invariants(&self) {
        let queue = &self.queue;
        let mut counts = vec![[0_u32; STATE_COUNT]; DESTINATIONS as usize];
        let mut asked = vec![0; DESTINATIONS as usize];
        let mut bytes = vec![0; DESTINATIONS as usize];
        let mut live = 0;
        for at in (0..queue.entries.slot_count()).filter(|at| queue.entries.is_live(*at)) {
            let entry = &queue.entries[at];
            let hop = entry.destination.0 as usize;
            live += 1;
            counts[hop][entry.state as usize] += 1;
            asked[hop] += u32::from(entry.flags.loading);
            bytes[hop] += if entry.flags.in_budget { u64::from(entry.message_bytes) } else { 0 };
            assert!(entry.message.is_none() || entry.flags.in_budget, "what is in memory is counted");
            assert!(entry.message.is_none() || entry.state == EntryState::Ready, "only who is ready keeps a letter");
        }
        assert_eq!(live, queue.entries.len());
        for (key, hop) in queue.destinations.iter().enumerate() {
            assert_eq!(
                (hop.counts, hop.loading, hop.message_bytes),
                (counts[key], asked[key], bytes[key]),
                "hop {key}"
            );
            let mine = || self.connections.iter().filter(|live| live.slot.destination.0 as usize == key);
            assert_eq!(hop.connections as usize, mine().count());
            assert_eq!(hop.quitting as usize, mine().filter(|live| live.is_quitting).count());
            assert_eq!(hop.idle_connections() as usize, mine().filter(|live| live.is_idle).count());
            let mut at = hop.ready.first;
            let mut ready = 0;
            while at != NO_ENTRY {
                ready += 1;
                at = queue.entries.next(at, ListKind::State);
            }
            assert_eq!(ready, hop.count(EntryState::Ready));
        }
        assert_eq!(queue.memory.used_bytes, bytes.iter().sum::<u64>());
        // One letter per hop may be read beyond the budget, and another be in flight meanwhile for each courier.
        let most = MEMORY_LIMIT + u64::from(MAX_MESSAGE_BYTES) * u64::from(DESTINATIONS + 2 * CONCURRENCY_LIMIT);
        assert!(queue.memory.used_bytes <= most, "{} bytes in memory", queue.memory.used_bytes);
    }

    /// Delivers everything to hops that accept all messages, and checks that none is missing.
    fn drain(&mut self) {
        self.command(1, 0);
        while let Some(at) = self.connections.iter().position(|live| live.is_quitting) {
            self.close_at(at, DisconnectReason::Finished);
        }
        for _ in 0..200 {
            for _ in 0..200 {
                self.connect();
                self.read(usize::MAX);
                for at in (0..self.connections.len()).rev() {
                    while !self.connections[at].requests.is_empty() {
                        self.answer_at(at, 0);
                    }
                    // It may be dismissed, and then it is gone.
                    self.take_at(at);
                }
                while !self.pending_dsns.is_empty() {
                    self.store_dsn(0);
                }
                self.check_invariants();
            }
            if self.messages.values().all(|message| message.done) {
                break;
            }
            self.advance(Duration::from_millis(1_000));
        }
        for (id, message) in &self.messages {
            assert!(message.done, "{id} is lost: {message:?}\n{:?}", self.queue.show(MessageId(*id), self.now));
        }
        assert_eq!((self.queue.totals().messages, self.queue.totals().message_bytes), (0, 0));
        for at in (0..self.connections.len()).rev() {
            self.close_at(at, DisconnectReason::Finished);
        }
        self.advance(Duration::from_secs(10));
        assert!(
            (0..DESTINATIONS).all(|hop| self.queue.is_idle(DestinationId(hop), self.now)),
            "nothing is left to remember"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_nothing_is_done_twice(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = QueueModel::new();
        for step in steps {
            world.apply(step);
            world.check_invariants();
        }
        world.drain();
    }
}
