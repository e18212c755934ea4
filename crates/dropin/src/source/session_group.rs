//! Detects the end of a run: all sessions have finished, or a session has met an error that ends
//! the program.
use crate::fatal_error::FatalError;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

#[derive(Debug, Default)]
pub(crate) struct SessionGroup {
    remaining: Cell<u64>,
    fatal: RefCell<Option<FatalError>>,
    waker: RefCell<Option<Waker>>,
}

impl SessionGroup {
    pub(super) fn set_count(&self, sessions: u64) {
        self.remaining.set(sessions);
    }

    pub(super) fn finish_one(&self, outcome: Result<(), FatalError>) {
        self.remaining.set(self.remaining.get() - 1);
        if let Err(fatal) = outcome {
            self.fatal.borrow_mut().get_or_insert(fatal);
        }
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    pub(super) async fn wait(&self) -> Result<(), FatalError> {
        poll_fn(|cx| {
            if let Some(fatal) = self.fatal.borrow_mut().take() {
                return Poll::Ready(Err(fatal));
            }
            if self.remaining.get() == 0 {
                return Poll::Ready(Ok(()));
            }
            self.waker.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }
}
