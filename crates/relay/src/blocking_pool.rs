//! Threads for work that blocks or takes long, so that event loops need not wait: reading the spool, delivering into
//! Maildirs, converting long messages.
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

type BlockingTask = Box<dyn FnOnce() + Send>;

/// Handle of the threads. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct BlockingPool(Sender<BlockingTask>);

impl BlockingPool {
    /// Starts the threads, which end with the last handle. Each kind of work has its own pool, so that it never waits
    /// for another kind.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn start(name: &str, threads: usize) -> io::Result<Self> {
        let (give, take) = channel();
        let take = Arc::new(Mutex::new(take));
        for number in 0..threads {
            let take = Arc::clone(&take);
            std::thread::Builder::new().name(format!("{name}-{number}")).spawn(move || run_tasks(&take))?;
        }
        Ok(Self(give))
    }

    /// Runs work on a thread, unless the future is dropped before. Returns `None` if the work panicked.
    pub(super) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        let work = Box::new(move || {
            if !sender.is_closed() {
                // The caller may have gone meanwhile.
                let _ = sender.send(work());
            }
        });
        self.0.send(work).ok()?;
        receiver.await.ok()
    }
}

fn run_tasks(take: &Mutex<Receiver<BlockingTask>>) {
    loop {
        let work = take.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(work) = work else { return };
        // The panic is reported on standard error, the caller gets `None`, and the thread goes on.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    }
}
