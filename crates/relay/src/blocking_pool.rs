//! Threads for work that blocks or takes long: reading the spool, delivering into Maildirs, and
//! converting long messages. The event loops hand such work over, so that no session has to wait
//! for it.
use mailrun_lock::lock;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

type BlockingTask = Box<dyn FnOnce() + Send>;

/// Handle through which an event loop gives work to a pool of threads. All clones of a handle share the pool's threads.
#[derive(Clone, Debug)]
pub(super) struct BlockingPool(Sender<BlockingTask>);

impl BlockingPool {
    /// Starts the pool's threads, which end when the last clone of the handle is dropped. Each kind
    /// of work has its own pool, so that one kind never waits for another.
    pub(super) fn start(name: &str, threads: usize) -> io::Result<Self> {
        let (give, take) = channel();
        let take = Arc::new(Mutex::new(take));
        for number in 0..threads {
            let take = Arc::clone(&take);
            std::thread::Builder::new().name(format!("{name}-{number}")).spawn(move || run_tasks(&take))?;
        }
        Ok(Self(give))
    }

    /// Runs `work` on a thread of the pool and returns the result, or `None` if the work panicked.
    /// If the caller drops the future, work that no thread has begun is skipped.
    pub(super) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        let work = Box::new(move || {
            if !sender.is_closed() {
                // Ignore the error, because the caller may have stopped waiting while the work ran.
                let _ = sender.send(work());
            }
        });
        self.0.send(work).ok()?;
        receiver.await.ok()
    }
}

fn run_tasks(take: &Mutex<Receiver<BlockingTask>>) {
    loop {
        let work = lock(take).recv();
        let Ok(work) = work else { return };
        // Catch panics, so that the thread continues. The panic is reported on standard error, and
        // the caller gets `None`.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    }
}
