//! The end of a source's run: all sessions have finished, or one has met an error that ends the program.
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// The end that a run waits for. `F` is the error that ends the program.
#[derive(Debug)]
pub(super) struct SessionGroup<F> {
    remaining: Cell<u64>,
    fatal: RefCell<Option<F>>,
    waker: RefCell<Option<Waker>>,
}

impl<F> SessionGroup<F> {
    /// Creates the end for that many sessions.
    pub(super) fn new(sessions: u64) -> Self {
        Self { remaining: Cell::new(sessions), fatal: RefCell::new(None), waker: RefCell::new(None) }
    }

    /// Adds that many sessions.
    pub(super) fn set_count(&self, sessions: u64) {
        self.remaining.set(sessions);
    }

    /// Records that a session has finished, or ends the run.
    pub(super) fn finish_one(&self, outcome: Result<(), F>) {
        self.remaining.set(self.remaining.get() - 1);
        if let Err(fatal) = outcome {
            self.fatal.borrow_mut().get_or_insert(fatal);
        }
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Waits until all sessions have finished, or one has ended the run.
    pub(super) async fn wait(&self) -> Result<(), F> {
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
