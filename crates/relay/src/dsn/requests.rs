//! The number of DSNs that are written at a time, and those that wait.
use crate::qmgr::{DsnEvent, MessageId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// DSNs that are written at a time. Each holds its message in memory for as long as the spool is full.
const MAX_DSN_TASKS: u32 = 32;

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

    /// Counts a task that begins.
    pub(crate) fn begin(&self) {
        self.running.set(self.running.get() + 1);
    }

    /// Counts a task that has ended.
    pub(crate) fn end(&self) {
        self.running.set(self.running.get() - 1);
    }

    pub(crate) fn next(&self) -> Option<(MessageId, DsnEvent)> {
        self.pending.borrow_mut().pop_front()
    }
}
