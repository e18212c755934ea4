//! Limits the number of DSNs that are written at the same time.
use crate::qmgr::{DsnEvent, MessageId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Maximum number of DSNs that are written at the same time. Each keeps its message in memory for
/// as long as the spool is full.
const MAX_DSN_TASKS: u32 = 32;

#[derive(Default)]
pub(crate) struct DsnTasks {
    pending: RefCell<VecDeque<(MessageId, DsnEvent)>>,
    running: Cell<u32>,
}

impl DsnTasks {
    /// Returns the event if another task may run. Otherwise the event waits for its turn.
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
