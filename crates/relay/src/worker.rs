//! A worker executes the decisions of its queue on one thread. It hands messages to delivery agents and DSN tasks,
//! returns their results to the queue, and stores in the spool what became of each recipient.
//!
//! If a task panics, the work that the task holds goes back to the queue. Otherwise the message would stay in flight
//! until a restart, and the connection would count against the limits forever. A separate task returns the work after
//! unwinding, because the panic may have come from the queue itself. When a worker ends, its tasks are dropped without
//! a panic and return nothing. The next start then finds their messages in the spool.
//!
//! ```text
//! smtpd ─ enqueue ─▶ queue ─ tasks ─▶ agents: deliveries ─ results ─▶ queue ─ actions ─▶ spool: notes, done
//!                                     └ DSNs ◀─ tasks ──────────────────────┘
//! ```
use super::dsn::DsnTasks;
use super::fault_log::LOG_TARGET;
use super::worker_share::{DeliveryResources, DeliverySink};
use crate::config::Config;
use crate::context::RelayContext;
use crate::delivery::destinations::Destinations;
use crate::delivery::slots::{SlotWaiter, WaitingSlots, WakeReason};
use crate::delivery_log::DeliveryLog;
use crate::message::envelope::{DeliveryRefusal, Fact, RecipientFate, encode_note};
use crate::message::fetch::{self, Fetched};
use crate::message::recipients::RecipientGroup;
use crate::message::{Message, received};
use crate::qmgr::{
    Actions, ConnectionAction, ConnectionSlot, DeliveryRequest, DeliveryResult, DestinationId, DisconnectReason,
    DsnEvent, EntryProgress, MailQueue, MessageId, MessageKind, NewEntry, NextRequest, PendingDsn, RecipientNumbers,
};
use crate::routing::NextHop;
use mailrun_net::{WorkerBuffers, clock};
use mailrun_spool::{Id, Stored};
use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Text for operators and senders about a delivery that panicked.
const DELIVERY_PANIC_TEXT: &str = "the delivery failed because of a bug in mailrun";

/// The worker corrects its Unix time if it differs from the wall clock by more than this.
const MAX_CLOCK_DRIFT: Duration = Duration::from_secs(1);

pub(crate) struct RelayWorker {
    pub(crate) context: Arc<RelayContext>,
    config: RefCell<Arc<Config>>,
    config_version: Cell<u64>,
    pub(crate) queue: RefCell<MailQueue<Message>>,
    pub(crate) sink: DeliverySink,
    pub(crate) resources: DeliveryResources,
    tasks: UnboundedSender<WorkerTask>,
    waiting_slots: WaitingSlots,
    open_connections: Cell<u32>,
    pub(crate) dsn_tasks: DsnTasks,
    /// Set while a separate task does due work that was too much for one tick. Later ticks then do not start a second
    /// task.
    is_behind: Cell<bool>,
    is_closing: Cell<bool>,
    /// Unix time at which [`clock::now`] is zero. This time changes if somebody sets the host's clock. It also changes
    /// if the host is suspended, because [`clock::now`] stands still meanwhile.
    unix_origin: Cell<Duration>,
    pub(crate) date_cache: RefCell<received::DateCache>,
    seed_counter: Cell<u64>,
}

/// A delivery or a DSN that is due. The worker sends it to `delivery::serve`, which starts a task for it.
pub(crate) enum WorkerTask {
    Deliver(SlotGuard),
    SendDsn(MessageId, DsnEvent, Option<Message>),
}

pub(crate) type WorkerTasks = UnboundedReceiver<WorkerTask>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum DueWork {
    More,
    Done,
}

impl RelayWorker {
    /// Creates a worker and the receiver of its tasks. The caller must pass the receiver to `delivery::serve`, which
    /// runs the tasks. Otherwise, the worker delivers nothing.
    pub(crate) fn start(context: Arc<RelayContext>) -> (Rc<Self>, WorkerTasks) {
        let config = context.config();
        let config_version = context.config_version();
        let origin = clock::wall().saturating_sub(clock::now());
        let options = context.shares.queue_options(context.initial_config(), context.seed, origin);
        let resources = DeliveryResources {
            destinations: RefCell::default(),
            buffers: WorkerBuffers::default(),
            resolver: context.resolver.clone(),
            ca_files: Arc::clone(&context.ca_files),
            maildir_pool: context.maildir_pool.clone(),
            converter_pool: context.converter_pool.clone(),
            maildir_names: Arc::clone(&context.maildir_names),
            greeting_5xx: context.initial_config().delivery.greeting_5xx,
            has_own_name: context.initial_config().has_own_name,
        };
        // The channel needs no limit, because the queue limits the number of connections, and `DsnTasks` limits the
        // number of DSNs that are written at a time.
        let (sender, tasks) = unbounded_channel();
        let worker = Self {
            config: RefCell::new(config),
            config_version: Cell::new(config_version),
            sink: DeliverySink {
                counters: Arc::clone(&context.counters),
                log: DeliveryLog::new(context.delivery_log_writer.clone()),
            },
            context,
            queue: RefCell::new(MailQueue::new(options, clock::now())),
            resources,
            tasks: sender,
            waiting_slots: WaitingSlots::default(),
            open_connections: Cell::new(0),
            dsn_tasks: DsnTasks::default(),
            is_behind: Cell::new(false),
            is_closing: Cell::new(false),
            unix_origin: Cell::new(origin),
            date_cache: RefCell::new(received::DateCache::new()),
            seed_counter: Cell::new(0),
        };
        (Rc::new(worker), tasks)
    }

    /// Lets `delivery::serve` start a delivery or send a DSN. If `serve` has already ended because the worker is
    /// ending, the message stays in the spool until the next start.
    fn ask_for(&self, task: WorkerTask) {
        let _ = self.tasks.send(task);
    }

    pub(crate) fn destinations(&self) -> &RefCell<Destinations> {
        &self.resources.destinations
    }

    /// Returns the number that identifies a next hop in the queue. A new next hop gets a number and, if its route
    /// limits connections, this worker's share of that limit.
    pub(crate) fn destination_id(&self, next_hop: &NextHop) -> DestinationId {
        let (id, is_new) = self.destinations().borrow_mut().id(next_hop);
        if is_new {
            self.queue.borrow_mut().set_origin(id, next_hop.origin());
        }
        if let Some(limit) = next_hop.connections().filter(|_| is_new) {
            self.queue.borrow_mut().set_concurrency_limit(id, self.context.shares.share(limit));
        }
        id
    }

    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.borrow())
    }

    pub(crate) fn unix_time(&self, now: Duration) -> Duration {
        self.unix_origin.get() + now
    }

    pub(crate) async fn fetch(&self, id: MessageId) -> Fetched {
        fetch::fetch(&self.context.spool, &self.context.spool_pool, Id(id.0)).await
    }

    /// Queues a message for delivery. The receipt `stored` proves that the message is in the spool.
    pub(crate) fn enqueue(self: &Rc<Self>, stored: &Stored, message: &Message, groups: Vec<RecipientGroup>) {
        let now = clock::now();
        let message_bytes = message.memory_bytes();
        for RecipientGroup { next_hop, recipients } in groups {
            let entry = NewEntry {
                id: MessageId(stored.id().0),
                destination: self.destination_id(&next_hop),
                recipients: RecipientNumbers::new(&recipients),
                message: Some(message.clone()),
                message_bytes,
                received_unix_s: message.received.as_secs(),
                kind: MessageKind::of_sender(&message.envelope.sender),
                progress: EntryProgress::default(),
            };
            self.queue.borrow_mut().put(entry, now);
        }
        self.drive();
    }

    /// Opens, wakes and closes connections as the queue demands, and starts to read the messages that the queue wants
    /// in memory. The queue does nothing by itself, so this must be called after each change of the queue.
    pub(crate) fn drive(self: &Rc<Self>) {
        // Start no new delivery while the relay stops, because the messages that are left in the queue are safe in the
        // spool.
        while !self.is_closing.get() {
            let action = self.queue.borrow_mut().next_connection_action(clock::now());
            match action {
                Some(ConnectionAction::Open(slot)) => self.spawn_delivery(slot),
                Some(ConnectionAction::Wake(destination)) => self.waiting_slots.wake(destination, WakeReason::Message),
                Some(ConnectionAction::Close(destination)) => self.waiting_slots.wake(destination, WakeReason::Close),
                None => break,
            }
        }
        let mut ids = Vec::new();
        self.queue.borrow_mut().messages_to_read(&mut ids);
        for id in ids {
            let worker = Rc::clone(self);
            mailrun_net::worker::spawn_local(async move { worker.fetch_for_queue(id).await });
        }
    }

    fn spawn_delivery(self: &Rc<Self>, slot: ConnectionSlot) {
        self.open_connections.set(self.open_connections.get() + 1);
        let slot = SlotGuard::new(self, slot);
        self.ask_for(WorkerTask::Deliver(slot));
    }

    pub(crate) fn tick(self: &Rc<Self>) {
        if self.config_version.get() != self.context.config_version() {
            self.config_version.set(self.context.config_version());
            *self.config.borrow_mut() = self.context.config();
        }
        self.sink.log.flush();
        self.update_unix_origin();
        self.forget_destinations();
        if self.do_due() == DueWork::More && !self.is_behind.replace(true) {
            let worker = Rc::clone(self);
            mailrun_net::worker::spawn_local(async move {
                // Yield between the parts of the due work. Otherwise, the sessions of this thread would have to wait
                // until all of it is done.
                while worker.do_due() == DueWork::More {
                    mailrun_net::worker::yield_now().await;
                }
                worker.is_behind.set(false);
            });
        }
    }

    /// Corrects the worker's Unix time if it differs from the wall clock by more than `MAX_CLOCK_DRIFT`, for example
    /// after the host was suspended. Otherwise, new mail would be dated in the past, and would expire too early after a
    /// restart. Smaller differences come from corrections by NTP and are ignored.
    fn update_unix_origin(&self) {
        let origin = clock::wall().saturating_sub(clock::now());
        if origin.abs_diff(self.unix_origin.get()) > MAX_CLOCK_DRIFT {
            self.unix_origin.set(origin);
            self.queue.borrow_mut().set_unix_origin(origin);
        }
    }

    fn do_due(self: &Rc<Self>) -> DueWork {
        let now = clock::now();
        let mut all = Vec::new();
        self.queue.borrow_mut().tick(now, &mut all);
        all.drain(..).for_each(|actions| self.apply_actions(actions, None));
        self.drive();
        let deadline = self.queue.borrow().deadline();
        if deadline.is_some_and(|deadline| deadline <= now) { DueWork::More } else { DueWork::Done }
    }

    /// Forgets next hops without mail, so that their numbers can be reused. Otherwise, every domain to which mail was
    /// ever sent would take memory.
    fn forget_destinations(&self) {
        let mut queue = self.queue.borrow_mut();
        let now = clock::now();
        let forgotten = self.destinations().borrow_mut().forget_idle(|id| queue.is_idle(id, now));
        for id in forgotten {
            queue.forget_destination(id);
            self.waiting_slots.remove(id);
        }
    }

    /// Executes the actions that the queue returned for a message: stores the new state of recipients, starts a DSN,
    /// and removes a finished message from the spool.
    pub(crate) fn apply_actions(self: &Rc<Self>, actions: Actions, message: Option<Message>) {
        let Actions { id, facts, dsn, done } = actions;
        self.count_facts(&facts);
        self.store_note(Id(id.0), &facts);
        if let Some(event) = dsn {
            self.ask_for(WorkerTask::SendDsn(id, event, message));
        }
        if done {
            self.context.spool.done(Id(id.0));
        }
    }

    pub(crate) fn send_dsn(self: &Rc<Self>, id: MessageId, event: DsnEvent) {
        self.ask_for(WorkerTask::SendDsn(id, event, None));
    }

    fn count_facts(&self, facts: &[Fact]) {
        for fact in facts {
            match fact {
                // Count only real deferrals. If `next_unix_s` is 0, an operator's command has made the recipients due
                // at once.
                Fact::Deferred { recipients, next_unix_s: 1.., .. } => {
                    self.sink.counters.deferred.add(recipients.len() as u64)
                }
                Fact::Settled { recipients, fate: RecipientFate::Expired(_) } => {
                    self.sink.counters.expired.add(recipients.len() as u64);
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

    async fn fetch_for_queue(self: Rc<Self>, id: MessageId) {
        match self.fetch(id).await {
            Fetched::Whole(message) => self.queue.borrow_mut().loaded(id, &message),
            Fetched::EnvelopeOnly(_, error) => {
                self.hold_unreadable(id, &error, "its sender is notified when it expires")
            }
            Fetched::Unreadable(error) => self.hold_unreadable(id, &error, "its envelope cannot be read either"),
        }
        self.drive();
    }

    fn hold_unreadable(self: &Rc<Self>, id: MessageId, error: &str, then: &str) {
        tracing::error!(target: LOG_TARGET, %id, %error, "a message cannot be read from the spool and is held; {then}");
        let actions = self.queue.borrow_mut().hold_unreadable(id, clock::now());
        if let Some(actions) = actions {
            self.apply_actions(actions, None);
        }
    }

    /// Stops the delivery connections from taking further messages, because the relay is shutting down.
    pub(crate) fn close(&self) {
        self.is_closing.set(true);
        self.waiting_slots.close_all();
    }

    pub(crate) fn flush_log(&self) {
        self.sink.log.flush();
    }

    pub(crate) fn open_connections(&self) -> u32 {
        self.open_connections.get()
    }

    /// Returns the next message for a connection. If there is none, `waker` is called when the
    /// connection should try again.
    pub(crate) fn next_message(
        self: &Rc<Self>,
        slot: &mut ConnectionSlot,
        waiter: &mut SlotWaiter,
        waker: &Waker,
        now: Duration,
    ) -> NextMessage {
        waiter.cancel();
        let next = self.queue.borrow_mut().take(slot, now);
        match next {
            NextRequest::Deliver(request) => NextMessage::Deliver(DeliveryGuard::new(self, request)),
            NextRequest::Close => NextMessage::Quit,
            NextRequest::Wait => {
                self.waiting_slots.add(slot.destination, waiter, waker);
                NextMessage::Wait
            }
        }
    }

    pub(crate) fn next_is_loaded(&self, destination: DestinationId) -> bool {
        self.queue.borrow().next_is_loaded(destination)
    }

    pub(crate) fn finish_delivery(self: &Rc<Self>, request: DeliveryGuard, result: DeliveryResult) {
        if DeliveryLog::is_enabled() {
            let name = self.destinations().borrow().name(request.destination);
            self.sink.log.record(name, &request, &result, self.unix_time(clock::now()));
        }
        if matches!(result, DeliveryResult::Delivered | DeliveryResult::All(_) | DeliveryResult::Each(_)) {
            let name = || self.destinations().borrow().name(request.destination);
            if let Some(attempts) = self.context.unreachable.remove(name) {
                tracing::info!(target: LOG_TARGET, hop = %name(), attempts, "can be reached again");
            }
        }
        let message = (result != DeliveryResult::Delivered).then(|| request.message.clone());
        let actions = self.queue.borrow_mut().finish_delivery(request.release(), result, clock::now());
        self.apply_actions(actions, message);
        self.drive();
    }

    /// Marks a connection that is about to send QUIT, so that the queue gives it no more messages.
    pub(crate) fn begin_quit(&self, slot: &mut ConnectionSlot) {
        self.queue.borrow_mut().begin_quit(slot);
    }

    pub(crate) fn connection_closed(self: &Rc<Self>, slot: SlotGuard, reason: DisconnectReason) {
        self.open_connections.set(self.open_connections.get() - 1);
        if let DisconnectReason::Unreachable(refusal) = &reason {
            self.sink.counters.unreachable.add(1);
            let destination = self.destinations().borrow().name(slot.destination);
            if self.context.unreachable.add(&destination) {
                tracing::warn!(target: LOG_TARGET, hop = %destination, reason = %refusal.text, "cannot be reached");
            }
        }
        self.queue.borrow_mut().closed(slot.release(), reason, clock::now());
        self.drive();
    }

    /// Tells the queue how many messages a connection to this destination takes at a time. With larger batches, the
    /// queue opens fewer connections.
    pub(crate) fn set_batch_size(&self, destination: DestinationId, messages: u32) {
        self.queue.borrow_mut().set_batch_size(destination, messages);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.get()
    }

    pub(crate) fn hostname(&self) -> Arc<str> {
        self.config.borrow().hostname.as_str().into()
    }

    /// Returns a different seed at each call. Each connection looks up the servers of its next hop with a seed of its
    /// own, so that connections spread over servers of equal preference.
    pub(crate) fn next_seed(&self) -> u64 {
        self.seed_counter.set(self.seed_counter.get() + 1);
        self.context.seed.wrapping_add(self.seed_counter.get())
    }

    pub(crate) fn is_queued(&self, id: MessageId) -> bool {
        !self.queue.borrow().show(id, clock::now()).is_empty()
    }

    pub(crate) fn dsn_stored(self: &Rc<Self>, pending: PendingDsn) {
        let actions = self.queue.borrow_mut().dsn_stored(pending);
        self.apply_actions(actions, None);
        self.drive();
    }

    pub(crate) fn dsn_failed(self: &Rc<Self>, pending: PendingDsn, fates: &[(u16, RecipientFate)]) {
        let actions = self.queue.borrow_mut().dsn_failed(pending, fates);
        self.apply_actions(actions, None);
        self.drive();
    }
}

/// If the current task is panicking, runs `work` in a new task. Destructors call this, because they must not call the
/// queue during unwinding: the panic may have come from the queue itself.
pub(crate) fn after_panic(worker: &Rc<RelayWorker>, work: impl FnOnce(&Rc<RelayWorker>) + 'static) {
    if std::thread::panicking() {
        let worker = Rc::clone(worker);
        mailrun_net::worker::spawn_local(async move { work(&worker) });
    }
}

pub(crate) enum NextMessage {
    Deliver(DeliveryGuard),
    /// The queue has no message for this connection. The worker wakes the connection when there is a message.
    Wait,
    /// The connection must close, because another destination waits for a connection.
    Quit,
}

/// Guard around a delivery request that a task has taken from the queue. If the task panics, the guard gives the
/// request back to the queue.
pub(crate) struct DeliveryGuard {
    worker: Rc<RelayWorker>,
    request: Option<DeliveryRequest<Message>>,
}

impl DeliveryGuard {
    pub(crate) fn new(worker: &Rc<RelayWorker>, request: DeliveryRequest<Message>) -> Self {
        Self { worker: Rc::clone(worker), request: Some(request) }
    }

    pub(crate) fn panicked(self) {
        tracing::error!(target: LOG_TARGET, id = %self.id, "{DELIVERY_PANIC_TEXT}: the message goes back to the queue");
        let worker = Rc::clone(&self.worker);
        let result = DeliveryResult::Panicked(DeliveryRefusal::new(0, None, DELIVERY_PANIC_TEXT, ""));
        worker.finish_delivery(self, result);
    }

    /// Takes the delivery request out of the guard. The caller must then give the request back to the queue itself,
    /// because the guard no longer does so if the task panics.
    pub(crate) fn release(mut self) -> DeliveryRequest<Message> {
        self.request.take().expect("it is released once, and by value")
    }
}

impl Deref for DeliveryGuard {
    type Target = DeliveryRequest<Message>;

    fn deref(&self) -> &DeliveryRequest<Message> {
        self.request.as_ref().expect("it is released once, and by value")
    }
}

impl Drop for DeliveryGuard {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        after_panic(&self.worker, move |worker| Self::new(worker, request).panicked());
    }
}

/// Guard around a connection slot that a task holds. If the task panics, the guard gives the slot back to the queue.
pub(crate) struct SlotGuard {
    worker: Rc<RelayWorker>,
    slot: Option<ConnectionSlot>,
}

impl SlotGuard {
    pub(crate) fn new(worker: &Rc<RelayWorker>, slot: ConnectionSlot) -> Self {
        Self { worker: Rc::clone(worker), slot: Some(slot) }
    }

    pub(crate) fn release(mut self) -> ConnectionSlot {
        self.slot.take().expect("it is released once, and by value")
    }
}

impl Deref for SlotGuard {
    type Target = ConnectionSlot;

    fn deref(&self) -> &ConnectionSlot {
        self.slot.as_ref().expect("it is released once, and by value")
    }
}

impl DerefMut for SlotGuard {
    fn deref_mut(&mut self) -> &mut ConnectionSlot {
        self.slot.as_mut().expect("it is released once, and by value")
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        after_panic(&self.worker, move |worker| {
            // Treat the next hop as unreachable for a while. Otherwise, its behaviour could cause one panic after
            // another.
            let reason = DisconnectReason::Unreachable(DeliveryRefusal::new(0, None, DELIVERY_PANIC_TEXT, ""));
            worker.connection_closed(Self::new(worker, slot), reason);
        });
    }
}
