//! Counts sessions, to limit the number of sessions of a server, and to let a worker that stops wait for its sessions.
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientClass {
    Exempt,
    Limited,
}

/// Counts the sessions of all workers against one limit. The kernel may give one worker many more connections than
/// another, so a share of the limit for each worker would refuse clients too early.
#[derive(Debug)]
pub(crate) struct SessionSlots {
    open: AtomicUsize,
    limit: usize,
}

impl SessionSlots {
    pub(crate) fn new(limit: usize) -> Self {
        Self { open: AtomicUsize::new(0), limit }
    }

    /// Returns the limit for this class. The last quarter of the sessions is reserved for exempt clients.
    fn limit(&self, client: ClientClass) -> usize {
        match client {
            ClientClass::Exempt => self.limit,
            ClientClass::Limited => self.limit - self.limit / 4,
        }
    }
}

/// Sessions of one worker. Each open session holds a reference, so the number of references tells whether any are open.
#[derive(Debug, Default)]
pub(crate) struct WorkerSessions {
    /// Each session whose handler is deciding about a message holds a reference to this.
    deciding: Rc<()>,
    is_closing: Cell<bool>,
}

impl WorkerSessions {
    /// Returns true if sessions are open, that is, if anyone but the worker itself holds a reference.
    pub(crate) fn are_open(self: &Rc<Self>) -> bool {
        Rc::strong_count(self) > 1
    }

    pub(crate) fn are_deciding(&self) -> bool {
        Rc::strong_count(&self.deciding) > 1
    }

    /// Makes the sessions stop reading, so that no further message arrives while the worker waits
    /// for decisions.
    pub(crate) fn close(&self) {
        self.is_closing.set(true);
    }
}

/// Counts one open session against the limit of the server until it is dropped, which also happens after a panic.
#[derive(Debug)]
pub(crate) struct SessionSlot {
    slots: Arc<SessionSlots>,
    worker: Rc<WorkerSessions>,
}

impl SessionSlot {
    /// Counts another session, or returns `None` if the limit for clients of this class is reached.
    pub(crate) fn acquire(slots: &Arc<SessionSlots>, worker: &Rc<WorkerSessions>, client: ClientClass) -> Option<Self> {
        // Count the session first, and undo that if it exceeds the limit: after a check in advance, another worker
        // could open the last session.
        let before = slots.open.fetch_add(1, Ordering::Relaxed);
        let slot = Self { slots: Arc::clone(slots), worker: Rc::clone(worker) };
        (before < slots.limit(client)).then_some(slot)
    }

    /// Returns true if the session may continue with a client of this class. The session of a proxy is counted before
    /// the proxy names its client, whose class may differ.
    pub(crate) fn suits(&self, client: ClientClass) -> bool {
        self.slots.open.load(Ordering::Relaxed) <= self.slots.limit(client)
    }

    /// Returns true if the session must read no more, because its worker is about to end.
    pub(crate) fn is_closing(&self) -> bool {
        self.worker.is_closing.get()
    }

    /// Returns a guard that the session holds while its handler decides about a message. The worker
    /// does not end before it is dropped, except after a time limit.
    pub(crate) fn begin_decision(&self) -> Rc<()> {
        Rc::clone(&self.worker.deciding)
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        self.slots.open.fetch_sub(1, Ordering::Relaxed);
    }
}
