//! Tests the queue against a simple model, a map from each message to the state of its recipients. Random operations
//! are applied to both, and the counts are compared after each operation. At the end, all destinations accept
//! everything, and no message may be missing.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::entry::{ListKind, NO_ENTRY, STATE_COUNT};
use super::retry::{Backoff, RetrySchedule};
use super::*;
use crate::message::envelope::{DeliveryRefusal, Fact, MessageProgress, RecipientFate, encode_note};

/// The test has few destinations and low limits, so that destinations fill up, memory runs out, and messages are
/// delayed and expire.
const DESTINATIONS: u32 = 4;
const DESTINATION_CONCURRENCY_LIMIT: u32 = 3;
const CONCURRENCY_LIMIT: u32 = 5;
const MEMORY_LIMIT: u64 = 1_000;
const MAX_MESSAGE_BYTES: u32 = 400;

#[derive(Clone, Copy, Debug)]
enum ModelStep {
    Put { destination: u32, recipients: u16, second: bool, bytes: u32, held: bool, dsn: bool },
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
            |(destination, recipients, second, bytes, held, dsn)| {
                ModelStep::Put { destination, recipients, second, bytes, held: held == 0, dsn: dsn == 0 }
            }
        ),
        6 => Just(ModelStep::Connect),
        4 => any::<u8>().prop_map(ModelStep::Take),
        6 => (any::<u8>(), 0..13_u8).prop_map(|(which, how)| ModelStep::Answer(which, how)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(which, dead)| ModelStep::Close(which, dead)),
        1 => any::<u8>().prop_map(ModelStep::Quit),
        4 => any::<u8>().prop_map(ModelStep::Read),
        2 => (0..3_000_u16).prop_map(ModelStep::Advance),
        1 => (0..4_u8, any::<u8>()).prop_map(|(command, which)| ModelStep::Command(command, which)),
        2 => any::<u8>().prop_map(ModelStep::StoreDsn),
    ]
}

#[derive(Debug, Default)]
struct ModelRecipient {
    destination: u32,
    in_flight: bool,
    not_before: Duration,
    settled: bool,
    delivered: bool,
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
        let mut queue = MailQueue::new(options(), Duration::from_secs(1));
        let origins = [DestinationOrigin::Local, DestinationOrigin::Configured, DestinationOrigin::Domain];
        (0..DESTINATIONS).zip(origins.into_iter().cycle()).for_each(|(number, origin)| {
            queue.set_origin(DestinationId(number), origin);
        });
        Self {
            queue,
            now: Duration::from_secs(1),
            messages: BTreeMap::new(),
            connections: Vec::new(),
            pending_dsns: Vec::new(),
            reads: BTreeSet::new(),
        }
    }

    fn apply(&mut self, step: ModelStep) {
        match step {
            ModelStep::Put { destination, recipients, second, bytes, held, dsn } => {
                self.put(destination, recipients, second, bytes, held, dsn);
            }
            ModelStep::Connect => self.connect(),
            ModelStep::Take(which) => self.take(which),
            ModelStep::Answer(which, how) => self.answer(which, how),
            ModelStep::Close(which, dead) => self.close(which, dead),
            ModelStep::Quit(which) => self.quit(which),
            ModelStep::Read(count) => self.read(usize::from(count % 4)),
            ModelStep::Advance(ms) => self.advance(Duration::from_millis(u64::from(ms))),
            ModelStep::Command(command, which) => self.command(command, which),
            ModelStep::StoreDsn(which) => self.store_dsn(which),
        }
    }

    fn put(&mut self, destination: u32, count: u16, second: bool, bytes: u32, held: bool, dsn: bool) {
        let id = self.messages.len() as u64 + 1;
        let received_unix_s = 1_000_000 + self.now.as_secs();
        let lifetime = if dsn { 30 } else { 60 };
        let destination_of =
            |number: u16| if second { (destination + u32::from(number % 2)) % DESTINATIONS } else { destination };
        let recipients = (0..count)
            .map(|number| ModelRecipient { destination: destination_of(number), ..ModelRecipient::default() })
            .collect::<Vec<_>>();
        let mut progress = MessageProgress::new(recipients.len());
        progress.held = held;
        for destination in (0..DESTINATIONS).map(DestinationId) {
            let numbers: Vec<u16> = (0..count).filter(|number| destination_of(*number) == destination.0).collect();
            let arrival = NewEntry {
                id: MessageId(id),
                destination,
                recipients: RecipientNumbers::new(&numbers),
                message: Some(Arc::new(id)),
                message_bytes: bytes,
                received_unix_s,
                kind: if dsn { MessageKind::Dsn } else { MessageKind::Mail },
                progress: EntryProgress { held, ..EntryProgress::default() },
            };
            self.queue.put(arrival, self.now);
        }
        let expires = Duration::from_secs(self.now.as_secs() + lifetime);
        self.messages.insert(id, ModelMessage { recipients, held, removed: false, done: false, progress, expires });
    }

    fn connect(&mut self) {
        while let Some(call) = self.queue.next_connection_action(self.now) {
            match call {
                ConnectionAction::Open(slot) => {
                    let of_destination =
                        self.connections.iter().filter(|live| live.slot.destination == slot.destination).count();
                    assert!(of_destination < DESTINATION_CONCURRENCY_LIMIT as usize, "a destination's limit is kept");
                    assert!(self.connections.len() < CONCURRENCY_LIMIT as usize, "the limit of all is kept");
                    self.connections.push(ModelConnection {
                        slot,
                        is_idle: false,
                        is_quitting: false,
                        requests: Vec::new(),
                    });
                }
                ConnectionAction::Wake(destination) => {
                    let at = self.waiting(destination);
                    self.connections[at].is_idle = false;
                    self.take_at(at);
                }
                ConnectionAction::Close(destination) => {
                    let at = self.waiting(destination);
                    self.close_at(at, DisconnectReason::Finished);
                }
            }
        }
    }

    fn waiting(&self, destination: DestinationId) -> usize {
        let mut all = self.connections.iter();
        all.position(|live| live.slot.destination == destination && live.is_idle).expect("only who waits is called")
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
            NextRequest::Deliver(request) => {
                let message = self.messages.get_mut(&request.id.0).unwrap();
                assert!(!message.held && !message.removed && !message.done);
                assert_eq!(*request.message, request.id.0, "the message is the one");
                for number in request.recipients.iter() {
                    let recipient = &mut message.recipients[usize::from(number)];
                    assert!(
                        !recipient.settled && !recipient.in_flight,
                        "nobody is in two connections at once, or delivered again"
                    );
                    assert_eq!(recipient.destination, request.destination.0);
                    assert!(recipient.not_before <= self.now, "not before its time");
                    recipient.in_flight = true;
                }
                self.connections[at].requests.push(request);
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
        let request = self.connections[at].requests.remove(0);
        let count = request.recipients.len();
        let mixed = [
            RecipientStatus::Delivered,
            RecipientStatus::Deferred(refusal(451)),
            RecipientStatus::Failed(refusal(550)),
            RecipientStatus::Confirmed(crate::message::envelope::Confirmation::Relayed),
        ];
        let each = |from: usize| (0..count).map(|at| mixed[(at + from) % 4].clone()).collect::<Vec<_>>();
        let result = match how {
            0..=3 => DeliveryResult::Delivered,
            4 => DeliveryResult::All(RecipientStatus::Deferred(refusal(450))),
            5 => DeliveryResult::All(RecipientStatus::Failed(refusal(554))),
            6 => DeliveryResult::Unknown,
            7 => DeliveryResult::Unsent,
            8 => DeliveryResult::Each(each(1)[..count - 1].to_vec()),
            9 => DeliveryResult::Panicked(refusal(0)),
            10 => DeliveryResult::SessionFault(vec![RecipientStatus::Deferred(refusal(503)); count]),
            _ => DeliveryResult::Each(each(usize::from(how))),
        };
        let statuses = match &result {
            DeliveryResult::Delivered => vec![RecipientStatus::Delivered; count],
            DeliveryResult::All(status) => vec![status.clone(); count],
            DeliveryResult::Each(statuses) => statuses.clone(),
            DeliveryResult::Unknown
            | DeliveryResult::Unsent
            | DeliveryResult::SessionFault(_)
            | DeliveryResult::Panicked(_) => Vec::new(),
        };
        let id = request.id;
        let attempts = request.attempts + 1;
        let wait =
            options().schedule.backoff.delay(5, id.0 ^ u64::from(request.destination.0).rotate_left(32), attempts);
        let message = self.messages.get_mut(&id.0).unwrap();
        for (at, number) in request.recipients.iter().enumerate() {
            let recipient = &mut message.recipients[usize::from(number)];
            recipient.in_flight = false;
            match statuses.get(at) {
                Some(RecipientStatus::Delivered | RecipientStatus::Confirmed(_)) => recipient.delivered = true,
                Some(RecipientStatus::Failed(_)) => {}
                None if matches!(result, DeliveryResult::Unsent | DeliveryResult::SessionFault(_)) => {}
                Some(RecipientStatus::Deferred(_)) | None => {
                    recipient.not_before = Duration::from_millis((self.now + wait).as_millis() as u64);
                }
            }
        }
        let actions = self.queue.finish_delivery(request, result, self.now);
        self.apply_actions(actions);
    }

    fn close(&mut self, which: u8, dead: bool) {
        if !self.connections.is_empty() {
            let reason = if dead { DisconnectReason::Unreachable(refusal(421)) } else { DisconnectReason::Finished };
            self.close_at(usize::from(which) % self.connections.len(), reason);
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

    fn close_at(&mut self, at: usize, reason: DisconnectReason) {
        while !self.connections[at].requests.is_empty() {
            self.answer_at(at, 7);
        }
        let live = self.connections.remove(at);
        self.queue.closed(live.slot, reason, self.now);
    }

    fn read(&mut self, limit: usize) {
        let mut ids = Vec::new();
        self.queue.messages_to_read(&mut ids);
        assert!(ids.is_sorted(), "in the order of the log");
        self.reads.extend(ids.iter().map(|id| id.0));
        for _ in 0..limit {
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
        all.into_iter().for_each(|actions| self.apply_actions(actions));
        // The queue's timers may fire up to 50 ms late, so an entry may stay 50 ms longer than its lifetime. Only an
        // entry in flight may stay longer, because its delivery must end first.
        let grain = Duration::from_millis(50);
        for (id, message) in self.messages.iter().filter(|(_, message)| message.expires + grain <= self.now) {
            let waits = message.recipients.iter().any(|recipient| !recipient.settled && !recipient.in_flight);
            assert!(!waits || message.removed, "{id} is {message:?} at {:?}", self.now);
        }
    }

    fn command(&mut self, command: u8, which: u8) {
        let command =
            [OperatorCommand::Hold, OperatorCommand::Release, OperatorCommand::Remove, OperatorCommand::Retry]
                [usize::from(command)];
        let destination = u32::from(which) % DESTINATIONS;
        let ids: Vec<u64> = match which {
            0..20 if command == OperatorCommand::Remove => return,
            0..20 => self.messages.keys().copied().collect(),
            20..40 => {
                let is_meant = |recipient: &ModelRecipient| recipient.destination == destination;
                let messages = self.messages.iter().filter(|(_, message)| message.recipients.iter().any(is_meant));
                messages.map(|(id, _)| *id).collect()
            }
            _ => vec![u64::from(which) % (self.messages.len() as u64 + 1)],
        };
        for id in ids {
            let Some(actions) = self.queue.apply_command(command, MessageId(id), self.now) else { continue };
            let message = self.messages.get_mut(&actions.id.0).unwrap();
            match command {
                OperatorCommand::Hold => message.held = true,
                OperatorCommand::Release => message.held = false,
                OperatorCommand::Remove => message.removed = true,
                OperatorCommand::Retry => {}
            }
            if matches!(command, OperatorCommand::Release | OperatorCommand::Retry) {
                message.recipients.iter_mut().for_each(|recipient| recipient.not_before = Duration::ZERO);
            }
            self.apply_actions(actions);
        }
    }

    fn store_dsn(&mut self, which: u8) {
        if !self.pending_dsns.is_empty() {
            let (pending, recipients) = self.pending_dsns.remove(usize::from(which) % self.pending_dsns.len());
            let message = self.messages.get_mut(&pending.id.0).unwrap();
            recipients.iter().for_each(|number| message.recipients[usize::from(*number)].dsn_pending = false);
            let actions = self.queue.dsn_stored(pending);
            self.apply_actions(actions);
        }
    }

    /// Applies the queue's actions to the model. In the relay, the worker records them in the spool instead.
    fn apply_actions(&mut self, actions: Actions) {
        let message = self.messages.get_mut(&actions.id.0).unwrap();
        assert!(!message.done, "nothing follows after `done`");
        message.progress.apply_note(&encode_note(&actions.facts).unwrap()).unwrap();
        for fact in &actions.facts {
            if let Fact::Settled { recipients, .. } = fact {
                recipients.iter().for_each(|number| message.recipients[usize::from(*number)].settled = true);
            }
        }
        match actions.dsn {
            Some(DsnEvent::Settled { pending, fates, .. }) => {
                for (number, fate) in &fates {
                    let recipient = &mut message.recipients[usize::from(*number)];
                    assert!(fate.needs_dsn() && recipient.settled);
                    assert_eq!(matches!(fate, RecipientFate::Confirmed(_)), recipient.delivered);
                    recipient.dsn_pending = true;
                }
                self.pending_dsns.push((pending, fates.iter().map(|(number, _)| *number).collect()));
            }
            Some(DsnEvent::Delayed { recipients, .. }) => {
                assert!(recipients.iter().all(|(number, _)| !message.recipients[usize::from(*number)].settled));
            }
            None => {}
        }
        if actions.done {
            message.done = true;
            // The spool removes a finished message as a whole, so the queue need not report the fates of its
            // recipients. Therefore, mark all recipients as settled here.
            for recipient in &mut message.recipients {
                assert!(!recipient.in_flight && !recipient.dsn_pending, "done before its time");
                assert!(
                    recipient.settled || recipient.delivered || message.removed,
                    "done with somebody left: {recipient:?}"
                );
                recipient.settled = true;
            }
        } else {
            let pairs = message.progress.recipients.iter().zip(&message.recipients);
            for (progress, recipient) in pairs {
                assert_eq!(progress.fate.is_some(), recipient.settled, "the notes tell how far it is");
            }
        }
    }

    fn check_invariants(&self) {
        let queue = &self.queue;
        let mut counts = vec![[0_u32; STATE_COUNT]; DESTINATIONS as usize];
        let mut loading = vec![0; DESTINATIONS as usize];
        let mut bytes = vec![0; DESTINATIONS as usize];
        let mut oldest = vec![None; DESTINATIONS as usize];
        let mut live = 0;
        for at in (0..queue.entries.slot_count()).filter(|at| queue.entries.is_live(*at)) {
            let entry = &queue.entries[at];
            let destination = entry.destination.0 as usize;
            live += 1;
            counts[destination][entry.state as usize] += 1;
            loading[destination] += u32::from(entry.flags.loading);
            let received_unix_s = entry.received_unix_s;
            oldest[destination] =
                Some(oldest[destination].map_or(received_unix_s, |oldest: u64| oldest.min(received_unix_s)));
            bytes[destination] += if entry.flags.in_budget { u64::from(entry.message_bytes) } else { 0 };
            assert!(entry.message.is_none() || entry.flags.in_budget, "what is in memory is counted");
            assert!(entry.message.is_none() || entry.state == EntryState::Ready, "only who is ready keeps a message");
        }
        assert_eq!(live, queue.entries.len());
        for (key, destination) in queue.destinations.iter().enumerate() {
            assert_eq!(
                (destination.counts, destination.loading, destination.message_bytes),
                (counts[key], loading[key], bytes[key]),
                "destination {key}"
            );
            assert_eq!(destination.ages.oldest_unix_s(), oldest[key], "destination {key}");
            let mine = || self.connections.iter().filter(|live| live.slot.destination.0 as usize == key);
            assert_eq!(destination.connections as usize, mine().count());
            assert_eq!(destination.quitting as usize, mine().filter(|live| live.is_quitting).count());
            assert_eq!(destination.idle_connections() as usize, mine().filter(|live| live.is_idle).count());
            let mut at = destination.ready.first;
            let mut ready = 0;
            while at != NO_ENTRY {
                ready += 1;
                at = queue.entries.next(at, ListKind::State);
            }
            assert_eq!(ready, destination.count(EntryState::Ready));
        }
        assert_eq!(queue.memory.used_bytes, bytes.iter().sum::<u64>());
        // Even if memory is full, the queue reads the first message of each destination. In addition, each connection
        // may have two messages in flight. Memory use may exceed `MEMORY_LIMIT` by all these messages.
        let limit = MEMORY_LIMIT + u64::from(MAX_MESSAGE_BYTES) * u64::from(DESTINATIONS + 2 * CONCURRENCY_LIMIT);
        assert!(queue.memory.used_bytes <= limit, "{} bytes in memory", queue.memory.used_bytes);
    }

    /// Lets all destinations accept everything that is left, and checks that no message is missing.
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
                    // `take_at` may remove the connection from `self.connections`. The loop runs backwards, so that
                    // this does not change the positions of the connections that are still to come.
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
            (0..DESTINATIONS).all(|destination| self.queue.is_idle(DestinationId(destination), self.now)),
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
