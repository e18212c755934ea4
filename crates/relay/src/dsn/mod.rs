//! Delivery status notifications (DSNs; RFC 3464, RFC 3461), like Postfix's bounce(8).
//!
//! | file | what it does |
//! |---|---|
//! | `generate` | decides who gets a DSN, and stores it before the original is done |
//! | `report` | composes a DSN |
//! | `facts` | the facts that a DSN reports |
//! | `part` | a MIME part of a DSN |
//! | `explanation` | the part that people read |
//! | `status` | the part that programs read |
//! | `returned` | the part that returns the message |
//! | `text` | makes texts of other hosts safe for a DSN |
mod explanation;
pub(crate) mod facts;
pub(crate) mod generate;
mod part;
pub(crate) mod report;
mod returned;
mod status;
mod text;
use super::qmgr::{DsnEvent, MessageId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

#[cfg(test)]
mod read_back;

/// Maximum number of tasks that write DSNs at the same time. It limits the use of memory, because a task keeps its
/// message in memory while it waits for room in a full spool.
const MAX_DSN_TASKS: u32 = 32;

#[derive(Default)]
pub(crate) struct DsnTasks {
    pending: RefCell<VecDeque<(MessageId, DsnEvent)>>,
    running: Cell<u32>,
}

impl DsnTasks {
    /// Returns the event if the caller may write its DSNs at once, because fewer than `MAX_DSN_TASKS` tasks are
    /// running. Otherwise returns `None`, and keeps the event until `next` returns it.
    pub(crate) fn admit(&self, id: MessageId, event: DsnEvent) -> Option<DsnEvent> {
        if self.running.get() < MAX_DSN_TASKS {
            return Some(event);
        }
        self.pending.borrow_mut().push_back((id, event));
        None
    }

    pub(crate) fn begin(&self) {
        self.running.set(self.running.get() + 1);
    }

    pub(crate) fn end(&self) {
        self.running.set(self.running.get() - 1);
    }

    pub(crate) fn next(&self) -> Option<(MessageId, DsnEvent)> {
        self.pending.borrow_mut().pop_front()
    }
}
