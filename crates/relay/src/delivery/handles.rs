//! Two narrow handles, all that a delivery agent has of its worker: *requests*, by which it takes messages and gives
//! them back, and the *sink*, into which it counts and logs.
//!
//! Work that a task holds goes back to the queue if the task panics. So a message does not stay in flight until a
//! restart, and a connection does not count against the limits for ever. A panic may come from anywhere, the queue
//! itself included. So nothing is done while it unwinds: a task of its own gives the work back. At the end of a worker,
//! tasks are dropped without a panic, and their messages stay in the spool.
use crate::blocking_pool::BlockingPool;
use crate::config::RefusedGreeting;
use crate::counters::RelayCounters;
use crate::delivery::ca_files::CaFiles;
use crate::delivery::destinations::Destinations;
use crate::delivery::maildir::MaildirNames;
use crate::delivery::resolver::Resolver;
use crate::delivery::slots::SlotWaiter;
use crate::delivery_log::DeliveryLog;
use crate::log_target::LOG_TARGET;
use crate::message::Message;
use crate::message::envelope::DeliveryRefusal;
use crate::qmgr::{ConnectionSlot, DeliveryRequest, DeliveryResult, DestinationId, DisconnectReason};
use mailrun_net::WorkerBuffers;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// The reason that operators and senders see.
const DELIVERY_PANIC_TEXT: &str = "the delivery failed because of a bug in mailrun";

/// Requests for delivery: taken from the queue, and given back to it. The worker implements this; agents are compiled
/// for it, so that no call per message is indirect.
pub(crate) trait DeliveryRequests: Sized + 'static {
    /// The next message for a connection; without one the connection waits to be woken.
    fn next_message(
        self: &Rc<Self>,
        slot: &mut ConnectionSlot,
        waiter: &mut SlotWaiter,
        waker: &Waker,
        now: Duration,
    ) -> NextMessage<Self>;

    /// Reports whether the destination's next message is in memory.
    fn next_is_loaded(&self, destination: DestinationId) -> bool;

    /// Gives a message back, with the result of this try.
    fn finish_delivery(self: &Rc<Self>, request: DeliveryGuard<Self>, result: DeliveryResult);

    /// Marks a connection as one that takes no more messages: it is about to say QUIT.
    fn begin_quit(&self, slot: &mut ConnectionSlot);

    /// Gives a connection back.
    fn connection_closed(self: &Rc<Self>, slot: SlotGuard<Self>, reason: DisconnectReason);

    /// Sets the number of messages that a destination's connections take at a time.
    fn set_batch_size(&self, destination: DestinationId, messages: u32);

    /// Reports whether the relay is about to stop.
    fn is_closing(&self) -> bool;

    /// Name of this host.
    fn hostname(&self) -> Arc<str>;

    /// Returns another number each time, as a seed.
    fn next_seed(&self) -> u64;

    fn sink(&self) -> &DeliverySink;

    fn resources(&self) -> &DeliveryResources;
}

/// Sink of a worker's delivery agents.
pub(crate) struct DeliverySink {
    pub(crate) counters: Arc<RelayCounters>,
    pub(crate) log: DeliveryLog,
}

/// Resources that a worker's delivery agents share.
pub(crate) struct DeliveryResources {
    pub(crate) destinations: RefCell<Destinations>,
    /// Buffers of connections; those of sessions are the server's.
    pub(crate) buffers: WorkerBuffers,
    pub(crate) resolver: Resolver,
    pub(crate) ca_files: Arc<CaFiles>,
    pub(crate) maildir_pool: BlockingPool,
    pub(crate) converter_pool: BlockingPool,
    pub(crate) maildir_names: Arc<MaildirNames>,
    pub(crate) greeting_5xx: RefusedGreeting,
    pub(crate) has_own_name: bool,
}

/// Does something in a task of its own, if this task is panicking.
pub(crate) fn after_panic<R: 'static>(worker: &Rc<R>, work: impl FnOnce(&Rc<R>) + 'static) {
    if std::thread::panicking() {
        let worker = Rc::clone(worker);
        mailrun_net::worker::spawn_local(async move { work(&worker) });
    }
}

/// Work given to a delivery agent that asks for it.
pub(crate) enum NextMessage<R: DeliveryRequests> {
    Deliver(DeliveryGuard<R>),
    /// Nothing now: it is woken when there is something.
    Wait,
    /// Others have waited for a connection.
    Quit,
}

/// A request in a task's hands.
pub(crate) struct DeliveryGuard<R: DeliveryRequests> {
    requests: Rc<R>,
    request: Option<DeliveryRequest<Message>>,
}

impl<R: DeliveryRequests> DeliveryGuard<R> {
    pub(crate) fn new(requests: &Rc<R>, request: DeliveryRequest<Message>) -> Self {
        Self { requests: Rc::clone(requests), request: Some(request) }
    }

    /// Gives it back because its delivery panicked.
    pub(crate) fn panicked(self) {
        tracing::error!(target: LOG_TARGET, id = %self.id, "{DELIVERY_PANIC_TEXT}: the message goes back to the queue");
        let requests = Rc::clone(&self.requests);
        let result = DeliveryResult::Panicked(DeliveryRefusal::new(0, None, DELIVERY_PANIC_TEXT, ""));
        requests.finish_delivery(self, result);
    }

    /// Hands it on: its new owner gives it back.
    pub(crate) fn release(mut self) -> DeliveryRequest<Message> {
        self.request.take().expect("it is released once, and by value")
    }
}

impl<R: DeliveryRequests> Deref for DeliveryGuard<R> {
    type Target = DeliveryRequest<Message>;

    fn deref(&self) -> &DeliveryRequest<Message> {
        self.request.as_ref().expect("it is released once, and by value")
    }
}

impl<R: DeliveryRequests> Drop for DeliveryGuard<R> {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        after_panic(&self.requests, move |requests| Self::new(requests, request).panicked());
    }
}

/// A connection in its task's hands.
pub(crate) struct SlotGuard<R: DeliveryRequests> {
    requests: Rc<R>,
    slot: Option<ConnectionSlot>,
}

impl<R: DeliveryRequests> SlotGuard<R> {
    pub(crate) fn new(requests: &Rc<R>, slot: ConnectionSlot) -> Self {
        Self { requests: Rc::clone(requests), slot: Some(slot) }
    }

    /// Hands it on.
    pub(crate) fn release(mut self) -> ConnectionSlot {
        self.slot.take().expect("it is released once, and by value")
    }
}

impl<R: DeliveryRequests> Deref for SlotGuard<R> {
    type Target = ConnectionSlot;

    fn deref(&self) -> &ConnectionSlot {
        self.slot.as_ref().expect("it is released once, and by value")
    }
}

impl<R: DeliveryRequests> DerefMut for SlotGuard<R> {
    fn deref_mut(&mut self) -> &mut ConnectionSlot {
        self.slot.as_mut().expect("it is released once, and by value")
    }
}

impl<R: DeliveryRequests> Drop for SlotGuard<R> {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        after_panic(&self.requests, move |requests| {
            // The next hop is left alone for a while, so that its behaviour does not make one task after the other
            // panic.
            let reason = DisconnectReason::Unreachable(DeliveryRefusal::new(0, None, DELIVERY_PANIC_TEXT, ""));
            requests.connection_closed(Self::new(requests, slot), reason);
        });
    }
}
