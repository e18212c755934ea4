//! A worker's office: its queue, and the state that reception and couriers share. Everything here runs on one thread.
//!
//! ```text
//! reception ─ accept ─▶ queue ─ calls ─▶ couriers ─ outcome ─▶ queue ─ effects ─▶ spool: notes, notices, done
//! ```
use crate::config::Config;
use crate::context::RelayContext;
use crate::delivery::destinations::Destinations;
use crate::delivery::handles::{DeliveryGuard, NextMessage, SlotGuard, after_panic};
use crate::delivery::smtp;
use crate::delivery_log::DeliveryLog;
use crate::dsn::generate;
use crate::log_target::LOG_TARGET;
use crate::message::Message;
use crate::message::envelope::MessageEnvelope;
use crate::message::envelope::{Fact, RecipientFate, encode_note};
use crate::message::received;
use crate::qmgr::{
    Actions, ConnectionAction, ConnectionSlot, DestinationId, DisconnectReason, EntryProgress, MessageKind, NewEntry,
};
use crate::qmgr::{DeliveryResult, DsnEvent, MailQueue, MessageId, NextRequest, Options, RecipientNumbers};
use crate::routing::NextHop;
use crate::smtpd::login;
use net::{WorkerBuffers, clock};
use spool::{Id, NewMessage, Stored, StoredEnvelope};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// A worker's office.
pub(super) struct RelayWorker {
    pub(super) context: Arc<RelayContext>,
    config: RefCell<Arc<Config>>,
    config_version: Cell<u64>,
    pub(super) queue: RefCell<MailQueue<Message>>,
    pub(super) destinations: RefCell<Destinations>,
    /// Couriers' buffers; those of the sessions are the server's.
    pub(super) buffers: WorkerBuffers,
    /// Couriers that wait, by hop.
    waiting_slots: RefCell<HashMap<DestinationId, VecDeque<(SlotWaiter, Waker)>>>,
    /// Couriers that are out.
    open_connections: Cell<u32>,
    /// Notices that wait until fewer are being written.
    pending_dsns: RefCell<VecDeque<(MessageId, DsnEvent)>>,
    dsn_tasks: Cell<u32>,
    /// More was due than could be done in one turn, and a task is doing the rest.
    is_behind: Cell<bool>,
    is_closing: Cell<bool>,
    /// Unix time at the zero of [`clock::now`].
    unix_origin: Duration,
    pub(super) date_cache: RefCell<received::DateCache>,
    /// Log of deliveries.
    pub(super) delivery_log: DeliveryLog,
    /// Number that seeds are made from.
    seed_counter: Cell<u64>,
}

/// Notices that are written at a time. Each holds its message in memory for as long as the spool is full.
const MAX_DSN_TASKS: u32 = 32;

/// State of a courier.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotWaiter(Rc<Cell<WaiterState>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WaiterState {
    /// Busy.
    #[default]
    Busy,
    /// On the list of couriers that wait.
    Waiting,
    /// It has to close.
    Closing,
}

impl SlotWaiter {
    /// Cancels the wait; its entry in the list becomes stale.
    pub(super) fn cancel(&mut self) {
        if self.0.get() == WaiterState::Waiting {
            self.0.set(WaiterState::Busy);
            *self = Self::default();
        }
    }

    pub(super) fn must_close(&self) -> bool {
        self.0.get() == WaiterState::Closing
    }
}

/// Tells whether more is due.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DueWork {
    More,
    Done,
}

/// The part of a message that could be read from the spool.
pub(super) enum Fetched {
    Whole(Message),
    /// The message with an empty body, and why that could not be read.
    EnvelopeOnly(Message, String),
    /// The reason.
    Unreadable(String),
}

/// Recipients of a message at one hop.
pub(super) struct RecipientGroup {
    /// The hop itself: its number may be another hop's by the time that the message is stored.
    pub(super) next_hop: NextHop,
    /// Recipients by their numbers in the envelope.
    pub(super) recipients: Vec<u16>,
}

impl RelayWorker {
    pub(super) fn start(setting: Arc<RelayContext>) -> Rc<Self> {
        let config = setting.config();
        let edition = setting.config_version();
        let origin = clock::wall().saturating_sub(clock::now());
        let workers = worker_count(&config);
        let share = |all: u32| all.div_ceil(workers).max(1);
        let options = Options {
            schedule: config.retry.clone(),
            reconnect: config.retry.backoff.for_destinations(),
            destination_concurrency_limit: share(config.delivery.per_destination),
            concurrency_limit: share(config.delivery.overall),
            message_bytes: config.spool.memory_bytes / u64::from(workers),
            seed: setting.seed,
            origin_unix: origin,
        };
        Rc::new(Self {
            config: RefCell::new(config),
            config_version: Cell::new(edition),
            delivery_log: DeliveryLog::new(setting.delivery_log_writer.clone()),
            context: setting,
            queue: RefCell::new(MailQueue::new(options)),
            destinations: RefCell::default(),
            buffers: WorkerBuffers::default(),
            waiting_slots: RefCell::default(),
            open_connections: Cell::new(0),
            pending_dsns: RefCell::default(),
            dsn_tasks: Cell::new(0),
            is_behind: Cell::new(false),
            is_closing: Cell::new(false),
            unix_origin: origin,
            date_cache: RefCell::new(received::DateCache::new()),
            seed_counter: Cell::new(0),
        })
    }

    /// The hop's number. One that has a limit of its own keeps it.
    pub(super) fn destination_id(&self, hop: &NextHop) -> DestinationId {
        let (key, is_new) = self.destinations.borrow_mut().id(hop);
        if let Some(most) = hop.connections().filter(|_| is_new) {
            self.queue.borrow_mut().set_concurrency_limit(key, most.div_ceil(worker_count(&self.config.borrow())));
        }
        key
    }

    /// The configuration in force.
    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.borrow())
    }

    /// The time since the Unix epoch at that moment of [`clock::now`].
    pub(super) fn unix_time(&self, now: Duration) -> Duration {
        self.unix_origin + now
    }

    /// Returns another number each time, as a seed.
    pub(super) fn next_seed(&self) -> u64 {
        self.seed_counter.set(self.seed_counter.get() + 1);
        self.context.seed.wrapping_add(self.seed_counter.get())
    }

    /// Takes up a message that is in the spool: the receipt proves it.
    pub(super) fn enqueue(self: &Rc<Self>, stored: &Stored, letter: &Message, errands: Vec<RecipientGroup>) {
        let kind = if letter.envelope.sender.is_empty() { MessageKind::Dsn } else { MessageKind::Mail };
        let now = clock::now();
        for RecipientGroup { next_hop: hop, recipients } in errands {
            let arrival = NewEntry {
                id: MessageId(stored.id().0),
                destination: self.destination_id(&hop),
                recipients: RecipientNumbers::new(&recipients),
                message: Some(letter.clone()),
                message_bytes: letter.memory_bytes(),
                received_unix_s: letter.received.as_secs(),
                kind,
                progress: EntryProgress::default(),
            };
            self.queue.borrow_mut().put(arrival, now);
        }
        self.drive();
    }

    /// Carries out the queue's calls; runs after each event of the queue.
    pub(super) fn drive(self: &Rc<Self>) {
        // Entries left when the relay stops stay in the spool.
        while !self.is_closing() {
            let call = self.queue.borrow_mut().next_connection_action(clock::now());
            match call {
                Some(ConnectionAction::Open(courier)) => self.spawn_delivery(courier),
                Some(ConnectionAction::Wake(hop)) => self.wake_waiter(hop, WaiterState::Busy),
                Some(ConnectionAction::Close(hop)) => self.wake_waiter(hop, WaiterState::Closing),
                None => break,
            }
        }
        let mut ids = Vec::new();
        self.queue.borrow_mut().messages_to_read(&mut ids);
        for id in ids {
            let office = Rc::clone(self);
            net::worker::spawn_local(async move { office.fetch_for_queue(id).await });
        }
    }

    fn spawn_delivery(self: &Rc<Self>, courier: ConnectionSlot) {
        self.open_connections.set(self.open_connections.get() + 1);
        let courier = SlotGuard::new(self, courier);
        net::worker::spawn_local(smtp::run(Rc::clone(self), courier));
    }

    /// Wakes one of a hop's couriers that wait.
    fn wake_waiter(&self, hop: DestinationId, to: WaiterState) {
        let mut waiting = self.waiting_slots.borrow_mut();
        let Some(list) = waiting.get_mut(&hop) else { return };
        while let Some((place, waker)) = list.pop_front() {
            if place.0.get() == WaiterState::Waiting {
                place.0.set(to);
                waker.wake();
                return;
            }
        }
    }

    /// The next message for a courier; without one it waits to be called.
    pub(super) fn next_message(
        self: &Rc<Self>,
        courier: &mut ConnectionSlot,
        place: &mut SlotWaiter,
        waker: &Waker,
        now: Duration,
    ) -> NextMessage {
        place.cancel();
        let taken = self.queue.borrow_mut().take(courier, now);
        match taken {
            NextRequest::Deliver(assignment) => NextMessage::Deliver(DeliveryGuard::new(self, assignment)),
            NextRequest::Close => NextMessage::Quit,
            NextRequest::Wait => {
                self.add_waiter(courier.destination, place, waker);
                NextMessage::Wait
            }
        }
    }

    /// Lists a courier that waits.
    fn add_waiter(&self, hop: DestinationId, place: &mut SlotWaiter, waker: &Waker) {
        *place = SlotWaiter::default();
        place.0.set(WaiterState::Waiting);
        let mut waiting = self.waiting_slots.borrow_mut();
        let list = waiting.entry(hop).or_default();
        // A courier that left by itself was never called, and its entry would stay there for ever.
        while list.front().is_some_and(|(place, _)| place.0.get() != WaiterState::Waiting) {
            list.pop_front();
        }
        list.push_back((place.clone(), waker.clone()));
    }

    /// An assignment comes back.
    pub(super) fn finish_delivery(self: &Rc<Self>, assignment: DeliveryGuard, outcome: DeliveryResult) {
        if DeliveryLog::is_enabled() {
            let hop = self.destinations.borrow().name(assignment.destination);
            self.delivery_log.record(hop, &assignment, &outcome, self.unix_time(clock::now()));
        }
        let letter = (outcome != DeliveryResult::Delivered).then(|| assignment.message.clone());
        let effects = self.queue.borrow_mut().finish_delivery(assignment.release(), outcome, clock::now());
        self.apply_actions(effects, letter);
        self.drive();
    }

    /// A courier is back.
    pub(super) fn connection_closed(self: &Rc<Self>, courier: SlotGuard, closing: DisconnectReason) {
        self.open_connections.set(self.open_connections.get() - 1);
        if let DisconnectReason::Unreachable(refusal) = &closing {
            self.context.counters.unreachable.add(1);
            let hop = self.destinations.borrow().name(courier.destination);
            tracing::warn!(target: LOG_TARGET, %hop, reason = %refusal.text, "cannot be reached");
        }
        self.queue.borrow_mut().closed(courier.release(), closing, clock::now());
        self.drive();
    }

    /// Does all that is due by now.
    pub(super) fn tick(self: &Rc<Self>) {
        if self.config_version.get() != self.context.config_version() {
            self.config_version.set(self.context.config_version());
            *self.config.borrow_mut() = self.context.config();
        }
        self.delivery_log.flush();
        login::log_summaries(&self.context);
        self.forget_destinations();
        if self.do_due() == DueWork::More && !self.is_behind.replace(true) {
            let office = Rc::clone(self);
            net::worker::spawn_local(async move {
                // Sessions have their turns in between.
                while office.do_due() == DueWork::More {
                    net::sleep(Duration::ZERO).await;
                }
                office.is_behind.set(false);
            });
        }
    }

    /// Does a part of what is due.
    fn do_due(self: &Rc<Self>) -> DueWork {
        let now = clock::now();
        let mut all = Vec::new();
        self.queue.borrow_mut().tick(now, &mut all);
        all.drain(..).for_each(|effects| self.apply_actions(effects, None));
        self.drive();
        let deadline = self.queue.borrow().deadline();
        if deadline.is_some_and(|deadline| deadline <= now) { DueWork::More } else { DueWork::Done }
    }

    /// Forgets hops that nothing is left to remember of; their numbers are given anew.
    fn forget_destinations(&self) {
        let mut queue = self.queue.borrow_mut();
        let now = clock::now();
        let forgotten = self.destinations.borrow_mut().forget_idle(|key| queue.is_idle(key, now));
        for key in forgotten {
            queue.forget_destination(key);
            self.waiting_slots.borrow_mut().remove(&key);
        }
    }

    /// Carries out effects: notes, notices, the end.
    pub(super) fn apply_actions(self: &Rc<Self>, effects: Actions, letter: Option<Message>) {
        let Actions { id, facts, dsn: notice, done } = effects;
        self.count_facts(&facts);
        self.store_note(Id(id.0), &facts);
        if let Some(notice) = notice {
            self.send_dsn(id, notice, letter);
        }
        if done {
            self.context.spool.done(Id(id.0));
        }
    }

    fn count_facts(&self, facts: &[Fact]) {
        for fact in facts {
            match fact {
                Fact::Deferred { recipients, .. } => self.context.counters.deferred.add(recipients.len() as u64),
                Fact::Settled { recipients, fate: RecipientFate::Expired(_) } => {
                    self.context.counters.expired.add(recipients.len() as u64);
                }
                _ => {}
            }
        }
    }

    fn store_note(&self, id: Id, facts: &[Fact]) {
        if facts.is_empty() {
            return;
        }
        match encode_note(facts) {
            Ok(note) => self.context.spool.note(id, &note),
            Err(error) => {
                tracing::error!(target: LOG_TARGET, %id, %error, "the delivery state could not be stored: some mail may be delivered twice")
            }
        }
    }

    /// Notifies the sender, in a task of its own. If many notices are due, the message is read again when its turn
    /// comes.
    pub(super) fn send_dsn(self: &Rc<Self>, id: MessageId, notice: DsnEvent, letter: Option<Message>) {
        if self.dsn_tasks.get() >= MAX_DSN_TASKS {
            return self.pending_dsns.borrow_mut().push_back((id, notice));
        }
        let office = Rc::clone(self);
        let teller = DsnTask::new(self);
        net::worker::spawn_local(async move {
            generate::generate(&office, id, notice, letter).await;
            while let Some((id, notice)) = office.next_pending_dsn() {
                generate::generate(&office, id, notice, None).await;
            }
            drop(teller);
        });
    }

    fn next_pending_dsn(&self) -> Option<(MessageId, DsnEvent)> {
        self.pending_dsns.borrow_mut().pop_front()
    }

    async fn fetch_for_queue(self: Rc<Self>, id: MessageId) {
        match self.fetch(id).await {
            Fetched::Whole(letter) => self.queue.borrow_mut().loaded(id, &letter),
            Fetched::EnvelopeOnly(_, error) => {
                self.hold_unreadable(id, &error, "its sender is notified when it expires")
            }
            Fetched::Unreadable(error) => self.hold_unreadable(id, &error, "its envelope cannot be read either"),
        }
        self.drive();
    }

    fn hold_unreadable(self: &Rc<Self>, id: MessageId, error: &str, then: &str) {
        tracing::error!(target: LOG_TARGET, %id, %error, "a message cannot be read from the spool and is held; {then}");
        let effects = self.queue.borrow_mut().hold_unreadable(id, clock::now());
        if let Some(effects) = effects {
            self.apply_actions(effects, None);
        }
    }

    /// A message from the spool.
    pub(super) async fn fetch(&self, id: MessageId) -> Fetched {
        let spool = self.context.spool.clone();
        let id = Id(id.0);
        let read = move || {
            spool.fetch(id).map_err(|error| {
                let envelope = spool.fetch_envelope(id);
                (error, envelope)
            })
        };
        let (draft, damage) = match self.context.spool_pool.run(read).await {
            Some(Ok(draft)) => (draft, None),
            Some(Err((error, Ok(StoredEnvelope { received_ns, envelope })))) => {
                (NewMessage { received_ns, envelope, body: Arc::default() }, Some(error))
            }
            Some(Err((error, Err(_)))) => return Fetched::Unreadable(error.to_string()),
            None => return Fetched::Unreadable("the thread that read it failed".to_owned()),
        };
        let envelope = match MessageEnvelope::decode(&draft.envelope) {
            Ok(envelope) => Arc::new(envelope),
            Err(error) => return Fetched::Unreadable(error.to_string()),
        };
        let letter = Message { envelope, body: draft.body, received: Duration::from_nanos(draft.received_ns) };
        match damage {
            None => Fetched::Whole(letter),
            Some(error) => Fetched::EnvelopeOnly(letter, error.to_string()),
        }
    }

    /// No courier takes anything new.
    pub(super) fn close(&self) {
        self.is_closing.set(true);
        let mut waiting = self.waiting_slots.borrow_mut();
        for (place, waker) in waiting.drain().flat_map(|(_, list)| list) {
            if place.0.get() == WaiterState::Waiting {
                place.0.set(WaiterState::Closing);
                waker.wake();
            }
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.get()
    }

    /// Couriers that are out.
    pub(super) fn open_connections(&self) -> u32 {
        self.open_connections.get()
    }
}

/// One of the tasks that write notices.
struct DsnTask(Rc<RelayWorker>);

impl DsnTask {
    fn new(office: &Rc<RelayWorker>) -> Self {
        office.dsn_tasks.set(office.dsn_tasks.get() + 1);
        Self(Rc::clone(office))
    }
}

impl Drop for DsnTask {
    fn drop(&mut self) {
        self.0.dsn_tasks.set(self.0.dsn_tasks.get() - 1);
        // However one notice ended its task, the others that wait have their turn.
        after_panic(&self.0, |office| {
            if let Some((id, notice)) = office.next_pending_dsn() {
                office.send_dsn(id, notice, None);
            }
        });
    }
}

/// Number of offices that share the limits: each listener has its own workers.
fn worker_count(config: &Config) -> u32 {
    let workers = config.workers.unwrap_or_else(net::worker::default_count).max(1);
    let listeners = config.listeners().count().max(1);
    u32::try_from(workers * listeners).unwrap_or(u32::MAX)
}
