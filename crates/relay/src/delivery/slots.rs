//! Connections that wait for a message, by destination: a list from which the worker wakes or closes one.
use crate::qmgr::DestinationId;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

/// Time for which an unused connection is kept.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// State of a connection that may wait for a message.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotWaiter(Rc<Cell<WaiterState>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WaiterState {
    #[default]
    Busy,
    /// On the list of connections that wait.
    Waiting,
    /// It has to close.
    Closing,
}

impl SlotWaiter {
    /// Cancels the wait; its entry in the list becomes stale.
    pub(crate) fn cancel(&mut self) {
        if self.0.get() == WaiterState::Waiting {
            self.0.set(WaiterState::Busy);
            *self = Self::default();
        }
    }

    pub(crate) fn must_close(&self) -> bool {
        self.0.get() == WaiterState::Closing
    }
}

/// Reason for which a connection that waits is woken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WakeReason {
    /// There is a message for it.
    Message,
    /// Another destination needs the connection.
    Close,
}

impl WakeReason {
    fn state(self) -> WaiterState {
        match self {
            Self::Message => WaiterState::Busy,
            Self::Close => WaiterState::Closing,
        }
    }
}

/// The connections that wait, by destination.
#[derive(Default)]
pub(crate) struct WaitingSlots(RefCell<HashMap<DestinationId, VecDeque<(SlotWaiter, Waker)>>>);

impl WaitingSlots {
    /// Lists a connection that waits.
    pub(crate) fn add(&self, destination: DestinationId, waiter: &mut SlotWaiter, waker: &Waker) {
        *waiter = SlotWaiter::default();
        waiter.0.set(WaiterState::Waiting);
        let mut waiting = self.0.borrow_mut();
        let list = waiting.entry(destination).or_default();
        // A connection that was closed by its own side was never woken, and its entry would stay there for ever.
        while list.front().is_some_and(|(waiter, _)| waiter.0.get() != WaiterState::Waiting) {
            list.pop_front();
        }
        list.push_back((waiter.clone(), waker.clone()));
    }

    /// Wakes one of a destination's connections that wait.
    pub(crate) fn wake(&self, destination: DestinationId, reason: WakeReason) {
        let mut waiting = self.0.borrow_mut();
        let Some(list) = waiting.get_mut(&destination) else { return };
        while let Some((waiter, waker)) = list.pop_front() {
            if waiter.0.get() == WaiterState::Waiting {
                waiter.0.set(reason.state());
                waker.wake();
                return;
            }
        }
    }

    /// Closes all connections that wait.
    pub(crate) fn close_all(&self) {
        let mut waiting = self.0.borrow_mut();
        for (waiter, waker) in waiting.drain().flat_map(|(_, list)| list) {
            if waiter.0.get() == WaiterState::Waiting {
                waiter.0.set(WaiterState::Closing);
                waker.wake();
            }
        }
    }

    /// Forgets a destination.
    pub(crate) fn remove(&self, destination: DestinationId) {
        self.0.borrow_mut().remove(&destination);
    }
}
