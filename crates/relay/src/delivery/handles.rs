//! Work that a task held goes back to the queue if the task panics. So a message does not stay in flight until a
//! restart, and a connection does not count against the limits for ever.
//!
//! A panic may come from anywhere, the queue itself included. So nothing is done while it unwinds: a task of its own
//! gives the work back. At the end of a worker, tasks are dropped without a panic, and their messages stay in the
//! spool.
use crate::dsn::generate;
use crate::log_target::LOG_TARGET;
use crate::message::Message;
use crate::message::envelope::DeliveryRefusal;
use crate::qmgr::{ConnectionSlot, DeliveryRequest, DeliveryResult, DisconnectReason, DsnEvent, MessageId};
use crate::worker::RelayWorker;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// The reason that operators and senders see.
const DELIVERY_PANIC_TEXT: &str = "the delivery failed because of a bug in mailrun";
/// The same of notices.
const DSN_PANIC_TEXT: &str = "writing its notification failed because of a bug in mailrun";

/// Does something in a task of its own, if this task is panicking.
pub(crate) fn after_panic(office: &Rc<RelayWorker>, work: impl FnOnce(&Rc<RelayWorker>) + 'static) {
    if std::thread::panicking() {
        let office = Rc::clone(office);
        net::worker::spawn_local(async move { work(&office) });
    }
}

/// Work given to a delivery task that asks for it.
pub(crate) enum NextMessage {
    Deliver(DeliveryGuard),
    /// Nothing now: it is called when there is something.
    Wait,
    /// Others have waited for a connection.
    Quit,
}

/// An assignment in a task's hands.
pub(crate) struct DeliveryGuard {
    worker: Rc<RelayWorker>,
    request: Option<DeliveryRequest<Message>>,
}

impl DeliveryGuard {
    pub(crate) fn new(office: &Rc<RelayWorker>, assignment: DeliveryRequest<Message>) -> Self {
        Self { worker: Rc::clone(office), request: Some(assignment) }
    }

    /// Hands it on: its new owner gives it back.
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
        let Some(assignment) = self.request.take() else { return };
        after_panic(&self.worker, move |office| {
            tracing::error!(target: LOG_TARGET, id = %assignment.id, "{DELIVERY_PANIC_TEXT}: the message goes back to the queue");
            let outcome = DeliveryResult::Panicked(DeliveryRefusal::new(0, None, DELIVERY_PANIC_TEXT, ""));
            office.finish_delivery(Self::new(office, assignment), outcome);
        });
    }
}

/// A courier in its task's hands.
pub(crate) struct SlotGuard {
    worker: Rc<RelayWorker>,
    slot: Option<ConnectionSlot>,
}

impl SlotGuard {
    pub(crate) fn new(office: &Rc<RelayWorker>, courier: ConnectionSlot) -> Self {
        Self { worker: Rc::clone(office), slot: Some(courier) }
    }

    /// Hands it on.
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
        let Some(courier) = self.slot.take() else { return };
        after_panic(&self.worker, move |office| {
            // The hop is left alone for a while, so that its behaviour does not make one task after the other panic.
            let closing = DisconnectReason::Unreachable(DeliveryRefusal::new(0, None, DELIVERY_PANIC_TEXT, ""));
            office.connection_closed(Self::new(office, courier), closing);
        });
    }
}

/// A notice whose message stays in the spool until the notice is stored.
pub(crate) struct DsnGuard {
    worker: Rc<RelayWorker>,
    id: MessageId,
    dsn: Option<DsnEvent>,
}

impl DsnGuard {
    pub(crate) fn new(office: &Rc<RelayWorker>, id: MessageId, notice: DsnEvent) -> Self {
        Self { worker: Rc::clone(office), id, dsn: Some(notice) }
    }

    /// Hands it on.
    pub(crate) fn release(mut self) -> DsnEvent {
        self.dsn.take().expect("it is released once, and by value")
    }
}

impl Deref for DsnGuard {
    type Target = DsnEvent;

    fn deref(&self) -> &DsnEvent {
        self.dsn.as_ref().expect("it is released once, and by value")
    }
}

impl Drop for DsnGuard {
    fn drop(&mut self) {
        let Some(notice) = self.dsn.take() else { return };
        let id = self.id;
        after_panic(&self.worker, move |office| generate::generation_failed(office, id, notice, DSN_PANIC_TEXT));
    }
}
