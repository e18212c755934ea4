//! Calls to the workers: a queue lives on its worker's thread, so other threads send a closure there.
//!
//! A call is answered in one turn of the worker's event loop, between sessions and couriers. So callers keep it short,
//! and read page by page.
use super::office::Office;
use std::fmt;
use std::rc::Rc;
use std::sync::mpsc::{Receiver as Answers, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// A worker answers within a turn; one that has not by then is stuck, or the host is.
const PATIENCE: Duration = Duration::from_secs(10);
/// Questions that may wait for one worker.
const WAITING: usize = 64;

type Question = Box<dyn FnOnce(&Rc<Office>) + Send>;

/// The ways to all workers.
#[derive(Default)]
pub(super) struct Inquiries(Mutex<Vec<Sender<Question>>>);

/// A worker that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silent {
    /// It has ended, or is about to.
    Gone,
    /// It has too many calls, or it is stuck.
    Busy,
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the relay is shutting down"),
            Self::Busy => write!(f, "a worker does not answer within {} s", PATIENCE.as_secs()),
        }
    }
}

impl Inquiries {
    /// Adds a worker that can be called: the receiving end, for [`answer`].
    pub(super) fn join(&self) -> Receiver<Question> {
        let (give, take) = channel(WAITING);
        self.ways().push(give);
        take
    }

    /// Number of workers.
    pub(super) fn workers(&self) -> usize {
        self.ways().len()
    }

    /// Calls a worker; blocks until it answers.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        worker: usize,
        question: impl FnOnce(&Rc<Office>) -> T + Send + 'static,
    ) -> Result<T, Silent> {
        let answers = self.send(worker, question)?;
        heard(&answers, Instant::now() + PATIENCE)
    }

    /// Calls all workers, and returns their answers in the workers' order; blocks until all have answered. They work at
    /// the same time.
    pub(super) fn ask_all<T: Send + 'static>(
        &self,
        question: impl Fn(&Rc<Office>) -> T + Clone + Send + 'static,
    ) -> Vec<Result<T, Silent>> {
        let asked: Vec<_> = (0..self.workers()).map(|worker| self.send(worker, question.clone())).collect();
        let latest = Instant::now() + PATIENCE;
        asked.into_iter().map(|answers| heard(&answers?, latest)).collect()
    }

    fn send<T: Send + 'static>(
        &self,
        worker: usize,
        question: impl FnOnce(&Rc<Office>) -> T + Send + 'static,
    ) -> Result<Answers<T>, Silent> {
        let (tell, told) = sync_channel(1);
        let way = self.ways().get(worker).cloned().ok_or(Silent::Gone)?;
        let question = Box::new(move |office: &Rc<Office>| {
            // The caller may have given up.
            let _ = tell.try_send(question(office));
        });
        match way.try_send(question) {
            Ok(()) => Ok(told),
            Err(tokio::sync::mpsc::error::TrySendError::Full(_)) => Err(Silent::Busy),
            Err(tokio::sync::mpsc::error::TrySendError::Closed(_)) => Err(Silent::Gone),
        }
    }

    fn ways(&self) -> MutexGuard<'_, Vec<Sender<Question>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn heard<T>(answers: &Answers<T>, latest: Instant) -> Result<T, Silent> {
    answers.recv_timeout(latest.saturating_duration_since(Instant::now())).map_err(|error| match error {
        RecvTimeoutError::Timeout => Silent::Busy,
        RecvTimeoutError::Disconnected => Silent::Gone,
    })
}

/// Answers the calls to this worker, for as long as it lives.
pub(super) async fn answer(office: Rc<Office>, mut questions: Receiver<Question>) {
    while let Some(question) = questions.recv().await {
        question(&office);
    }
}
