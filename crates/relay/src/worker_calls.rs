//! Lets other threads call a worker. The queue of a worker lives on the worker's thread, so a
//! caller sends a closure to that thread.
//!
//! A call waits until the worker's event loop has finished its current batch: at most 64 sessions and deliveries, and
//! the tasks that were woken before the call. Sessions have to wait during a call. Calls must therefore be short. For
//! example, to list the queue, a caller makes one call for each page of the list.
use crate::context::RelayContext;
use crate::worker::RelayWorker;
use mailrun_lock::lock;
use std::fmt;
use std::rc::Rc;
use std::sync::mpsc::{Receiver as Answers, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Maximum time that a caller waits for a worker's answer. A worker normally answers within milliseconds, because each
/// task that runs before the call reads at most half a megabyte. If there is no answer after this time, the worker or
/// the host is stuck.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_PENDING_CALLS: usize = 64;

type WorkerCall = Box<dyn FnOnce(&Rc<RelayWorker>) + Send>;

pub(crate) struct RunningRelay {
    pub(crate) context: Arc<RelayContext>,
    pub(crate) workers: WorkerCalls,
}

#[derive(Default)]
pub(crate) struct WorkerCalls(Mutex<Vec<Sender<WorkerCall>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerUnavailable {
    Stopped,
    /// Too many calls are already waiting for the worker, or the worker is stuck.
    Busy,
}

impl fmt::Display for WorkerUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("the relay is shutting down"),
            Self::Busy => write!(f, "a worker does not answer within {} s", CALL_TIMEOUT.as_secs()),
        }
    }
}

impl WorkerCalls {
    /// Adds a worker, so that other threads can call it. The worker must pass the returned receiver to [`serve_calls`].
    pub(crate) fn register(&self) -> Receiver<WorkerCall> {
        let (give, take) = channel(MAX_PENDING_CALLS);
        self.senders().push(give);
        take
    }

    pub(crate) fn count(&self) -> usize {
        self.senders().len()
    }

    /// Runs `call` on the thread of a worker and blocks until `call` returns, but at most for [`CALL_TIMEOUT`].
    pub(crate) fn call<T: Send + 'static>(
        &self,
        worker: usize,
        call: impl FnOnce(&Rc<RelayWorker>) -> T + Send + 'static,
    ) -> Result<T, WorkerUnavailable> {
        let answers = self.send(worker, call)?;
        receive_answer(&answers, Instant::now() + CALL_TIMEOUT)
    }

    /// Calls all workers at the same time and blocks until all have answered, but at most for [`CALL_TIMEOUT`]. The
    /// answers are in the order of the workers.
    pub(crate) fn call_all<T: Send + 'static>(
        &self,
        call: impl Fn(&Rc<RelayWorker>) -> T + Clone + Send + 'static,
    ) -> Vec<Result<T, WorkerUnavailable>> {
        let pending: Vec<_> = (0..self.count()).map(|worker| self.send(worker, call.clone())).collect();
        let latest = Instant::now() + CALL_TIMEOUT;
        pending.into_iter().map(|answers| receive_answer(&answers?, latest)).collect()
    }

    fn send<T: Send + 'static>(
        &self,
        worker: usize,
        call: impl FnOnce(&Rc<RelayWorker>) -> T + Send + 'static,
    ) -> Result<Answers<T>, WorkerUnavailable> {
        let (sender, receiver) = sync_channel(1);
        let worker_sender = self.senders().get(worker).cloned().ok_or(WorkerUnavailable::Stopped)?;
        let call = Box::new(move |to: &Rc<RelayWorker>| {
            // Ignore the error, because the caller may no longer be waiting for the answer.
            let _ = sender.try_send(call(to));
        });
        match worker_sender.try_send(call) {
            Ok(()) => Ok(receiver),
            Err(tokio::sync::mpsc::error::TrySendError::Full(_)) => Err(WorkerUnavailable::Busy),
            Err(tokio::sync::mpsc::error::TrySendError::Closed(_)) => Err(WorkerUnavailable::Stopped),
        }
    }

    fn senders(&self) -> MutexGuard<'_, Vec<Sender<WorkerCall>>> {
        lock(&self.0)
    }
}

fn receive_answer<T>(answers: &Answers<T>, latest: Instant) -> Result<T, WorkerUnavailable> {
    answers.recv_timeout(latest.saturating_duration_since(Instant::now())).map_err(|error| match error {
        RecvTimeoutError::Timeout => WorkerUnavailable::Busy,
        RecvTimeoutError::Disconnected => WorkerUnavailable::Stopped,
    })
}

pub(crate) async fn serve_calls(worker: Rc<RelayWorker>, mut calls: Receiver<WorkerCall>) {
    while let Some(call) = calls.recv().await {
        call(&worker);
    }
}
