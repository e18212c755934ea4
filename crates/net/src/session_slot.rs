//! Counts sessions, so that a server can limit their number, and a stopping worker can wait for its sessions.
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientClass {
    Exempt,
    Limited,
}

/// Counts the sessions of all workers against one limit. With a separate limit for each worker, a server would refuse
/// clients too early, because the kernel may give one worker many more connections than another.
#[derive(Debug)]
pub(crate) struct SessionSlots {
    open: AtomicUsize,
    limit: usize,
}

impl SessionSlots {
    pub(crate) fn new(limit: usize) -> Self {
        Self { open: AtomicUsize::new(0), limit }
    }

    /// Returns the number of open sessions up to which clients of this class are accepted. Only exempt clients may use
    /// the last quarter of the sessions.
    fn limit(&self, client: ClientClass) -> usize {
        match client {
            ClientClass::Exempt => self.limit,
            ClientClass::Limited => self.limit - self.limit / 4,
        }
    }
}

/// State that a worker shares with its sessions. Each open session holds a reference, so the number of references tells
/// whether sessions are open.
#[derive(Debug, Default)]
pub(crate) struct WorkerSessions {
    /// Each session whose handler is deciding about a message holds a clone of this `Rc`, so that the worker can count
    /// these sessions.
    deciding: Rc<()>,
    is_closing: Cell<bool>,
}

impl WorkerSessions {
    /// Returns true if sessions are open. Each open session holds a reference in addition to the worker's own.
    pub(crate) fn are_open(self: &Rc<Self>) -> bool {
        Rc::strong_count(self) > 1
    }

    pub(crate) fn are_deciding(&self) -> bool {
        Rc::strong_count(&self.deciding) > 1
    }

    /// Makes the sessions stop reading, so that no further message arrives while the worker waits for decisions.
    pub(crate) fn close(&self) {
        self.is_closing.set(true);
    }
}

/// Counts one session against the limit of the server. The count ends when this value is dropped, even by a panic.
#[derive(Debug)]
pub(crate) struct SessionSlot {
    slots: Arc<SessionSlots>,
    worker: Rc<WorkerSessions>,
}

impl SessionSlot {
    /// Counts another session, or returns `None` if the limit for clients of this class is reached.
    pub(crate) fn acquire(slots: &Arc<SessionSlots>, worker: &Rc<WorkerSessions>, client: ClientClass) -> Option<Self> {
        // Count the session first. If it exceeds the limit, `slot` is dropped, which undoes this. If the limit were
        // checked first, another worker could open the last session in between.
        let before = slots.open.fetch_add(1, Ordering::Relaxed);
        let slot = Self { slots: Arc::clone(slots), worker: Rc::clone(worker) };
        (before < slots.limit(client)).then_some(slot)
    }

    /// Returns true if the number of open sessions, including this one, is within the limit for clients of this class.
    /// Used for proxies: the session was admitted with the class of the proxy, but the client that the proxy names may
    /// be of another class.
    pub(crate) fn suits(&self, client: ClientClass) -> bool {
        self.slots.open.load(Ordering::Relaxed) <= self.slots.limit(client)
    }

    /// Returns true if the session must read no more, because its worker is about to end.
    pub(crate) fn is_closing(&self) -> bool {
        self.worker.is_closing.get()
    }

    /// Returns a guard that the session holds while its handler decides about a message. The worker ends when all such
    /// guards are dropped, or after a time limit.
    pub(crate) fn begin_decision(&self) -> Rc<()> {
        Rc::clone(&self.worker.deciding)
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        self.slots.open.fetch_sub(1, Ordering::Relaxed);
    }
}
