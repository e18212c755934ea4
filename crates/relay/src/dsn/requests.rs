//! Requests for notifications: what the writer of a notification has of its worker, and how many are written at a time.
use crate::config::Config;
use crate::delivery::handles::{DeliveryResources, DeliverySink, after_panic};
use crate::message::Message;
use crate::message::envelope::RecipientFate;
use crate::message::fetch::Fetched;
use crate::message::recipients::RecipientGroup;
use crate::qmgr::{DsnEvent, MessageId, PendingDsn};
use mailrun_spool::{Spool, Stored};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// DSNs that are written at a time. Each holds its message in memory for as long as the spool is full.
const MAX_DSN_TASKS: u32 = 32;

/// Messages whose senders are to be notified: taken from the queue, and given back to it. The worker implements this.
pub(crate) trait DsnRequests: Sized + 'static {
    /// The configuration in force.
    fn config(&self) -> Arc<Config>;

    /// The time since the Unix epoch at that moment of the event loop's clock.
    fn unix_time(&self, now: Duration) -> Duration;

    /// Reports whether some recipient of the message is still in the queue.
    fn is_queued(&self, id: MessageId) -> bool;

    /// Reads a message from the spool.
    fn fetch(&self, id: MessageId) -> impl Future<Output = Fetched>;

    /// Queues a message that is in the spool: the receipt proves it.
    fn enqueue(self: &Rc<Self>, stored: &Stored, message: &Message, groups: Vec<RecipientGroup>);

    /// Gives a message back whose sender has been notified.
    fn dsn_stored(self: &Rc<Self>, pending: PendingDsn);

    /// Gives a message back whose sender cannot be notified.
    fn dsn_failed(self: &Rc<Self>, pending: PendingDsn, fates: &[(u16, RecipientFate)]);

    fn spool(&self) -> &Spool;

    fn sink(&self) -> &DeliverySink;

    fn resources(&self) -> &DeliveryResources;

    fn dsn_tasks(&self) -> &DsnTasks;
}

/// The tasks that write DSNs, and the DSNs that wait until fewer are being written.
#[derive(Default)]
pub(crate) struct DsnTasks {
    pending: RefCell<VecDeque<(MessageId, DsnEvent)>>,
    running: Cell<u32>,
}

impl DsnTasks {
    /// Reports whether one more may run; if not, its event waits for its turn.
    pub(crate) fn admit(&self, id: MessageId, event: DsnEvent) -> Option<DsnEvent> {
        if self.running.get() < MAX_DSN_TASKS {
            return Some(event);
        }
        self.pending.borrow_mut().push_back((id, event));
        None
    }

    pub(crate) fn next(&self) -> Option<(MessageId, DsnEvent)> {
        self.pending.borrow_mut().pop_front()
    }
}

/// One of the tasks that write DSNs, counted while this lives.
pub(crate) struct DsnTask<R: DsnRequests> {
    requests: Rc<R>,
    /// Continues with the DSNs that wait if the task panics.
    continue_with: fn(&Rc<R>, MessageId, DsnEvent),
}

impl<R: DsnRequests> DsnTask<R> {
    pub(crate) fn new(requests: &Rc<R>, continue_with: fn(&Rc<R>, MessageId, DsnEvent)) -> Self {
        let running = &requests.dsn_tasks().running;
        running.set(running.get() + 1);
        Self { requests: Rc::clone(requests), continue_with }
    }
}

impl<R: DsnRequests> Drop for DsnTask<R> {
    fn drop(&mut self) {
        let running = &self.requests.dsn_tasks().running;
        running.set(running.get() - 1);
        let continue_with = self.continue_with;
        // However one DSN ended its task, the others that wait have their turn.
        after_panic(&self.requests, move |requests| {
            if let Some((id, event)) = requests.dsn_tasks().next() {
                continue_with(requests, id, event);
            }
        });
    }
}

/// A DSN whose message stays in the spool until the DSN is stored. If its task panics, the message goes back.
pub(crate) struct DsnGuard<R: DsnRequests> {
    requests: Rc<R>,
    id: MessageId,
    event: Option<DsnEvent>,
    give_up: fn(&Rc<R>, MessageId, DsnEvent),
}

impl<R: DsnRequests> DsnGuard<R> {
    pub(crate) fn new(
        requests: &Rc<R>,
        id: MessageId,
        event: DsnEvent,
        give_up: fn(&Rc<R>, MessageId, DsnEvent),
    ) -> Self {
        Self { requests: Rc::clone(requests), id, event: Some(event), give_up }
    }

    /// Hands it on.
    pub(crate) fn release(mut self) -> DsnEvent {
        self.event.take().expect("it is released once, and by value")
    }
}

impl<R: DsnRequests> Deref for DsnGuard<R> {
    type Target = DsnEvent;

    fn deref(&self) -> &DsnEvent {
        self.event.as_ref().expect("it is released once, and by value")
    }
}

impl<R: DsnRequests> Drop for DsnGuard<R> {
    fn drop(&mut self) {
        let Some(event) = self.event.take() else { return };
        let id = self.id;
        let give_up = self.give_up;
        after_panic(&self.requests, move |requests| give_up(requests, id, event));
    }
}
