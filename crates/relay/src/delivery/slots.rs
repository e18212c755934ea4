use crate::qmgr::DestinationId;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

/// Time for which an unused connection is kept open, so that the next message need not connect
/// again.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default)]
pub(crate) struct SlotWaiter(Rc<Cell<WaiterState>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WaiterState {
    #[default]
    Busy,
    Waiting,
    Closing,
}

impl SlotWaiter {
    /// Records that the connection no longer waits for a message, so that `wake` does not choose it. Its entry stays in
    /// the list of waiting connections until a later `add` or `wake` removes it.
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

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WakeReason {
    Message,
    /// The connection must close, so that another destination can have a connection.
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

#[derive(Default)]
pub(crate) struct WaitingSlots(RefCell<HashMap<DestinationId, VecDeque<(SlotWaiter, Waker)>>>);

impl WaitingSlots {
    pub(crate) fn add(&self, destination: DestinationId, waiter: &mut SlotWaiter, waker: &Waker) {
        *waiter = SlotWaiter::default();
        waiter.0.set(WaiterState::Waiting);
        let mut lists = self.0.borrow_mut();
        let list = lists.entry(destination).or_default();
        // Remove the entries of connections that no longer wait for a message. Otherwise, they would stay in the list
        // forever if the queue never wakes a connection of this destination.
        while list.front().is_some_and(|(waiter, _)| waiter.0.get() != WaiterState::Waiting) {
            list.pop_front();
        }
        list.push_back((waiter.clone(), waker.clone()));
    }

    pub(crate) fn wake(&self, destination: DestinationId, reason: WakeReason) {
        let mut lists = self.0.borrow_mut();
        let Some(list) = lists.get_mut(&destination) else { return };
        while let Some((waiter, waker)) = list.pop_front() {
            if waiter.0.get() == WaiterState::Waiting {
                waiter.0.set(reason.state());
                waker.wake();
                return;
            }
        }
    }

    pub(crate) fn close_all(&self) {
        let mut lists = self.0.borrow_mut();
        for (waiter, waker) in lists.drain().flat_map(|(_, list)| list) {
            if waiter.0.get() == WaiterState::Waiting {
                waiter.0.set(WaiterState::Closing);
                waker.wake();
            }
        }
    }

    pub(crate) fn remove(&self, destination: DestinationId) {
        self.0.borrow_mut().remove(&destination);
    }
}
