//! A worker: a thread with an event loop.
pub use crate::reactor::FdTable;
use crate::reactor::{self, Reactor};
use std::future::Future;
use std::io;
use std::thread::JoinHandle;

/// Number of tasks of this process that ended by a panic: each is a defect, with details on standard error. The others
/// continue, so a program that reports on its tasks has to ask for it.
pub fn failed_tasks() -> u64 {
    reactor::failed_tasks()
}

/// Starts a worker thread that runs the future of `work` and everything it spawns with [`spawn_local`]. Tasks that still
/// run when it ends are dropped.
///
/// # Errors
/// Those of starting a thread; the thread's own are those of [`run`].
pub fn spawn<T, W>(
    name: &str,
    fd_table: FdTable,
    work: impl FnOnce() -> W + Send + 'static,
) -> io::Result<JoinHandle<io::Result<T>>>
where
    T: Send + 'static,
    W: Future<Output = T> + 'static,
{
    std::thread::Builder::new().name(name.to_owned()).spawn(move || Reactor::run(fd_table, work()))
}

/// Runs `work` as a worker on this thread.
///
/// # Errors
/// Those of making an event loop: descriptors have run out.
pub fn run<T: 'static>(work: impl Future<Output = T> + 'static) -> io::Result<T> {
    Reactor::run(FdTable::Shared, work)
}

/// Adds a task to the worker that runs on this thread.
///
/// # Panics
/// If the thread is no worker.
pub fn spawn_local(task: impl Future<Output = ()> + 'static) {
    Reactor::current().spawn(task);
}

/// Half of the processors, at least one: the other half is for the peer, which usually runs on this host.
pub fn default_count() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

#[cfg(test)]
mod tests {
    use super::{FdTable, failed_tasks, spawn, spawn_local};

    #[test]
    fn a_task_that_panics_ends_alone_and_is_counted() {
        let before = failed_tasks();
        let thread = spawn("two", FdTable::Shared, || async {
            let (give, mut take) = tokio::sync::mpsc::channel(2);
            let other = give.clone();
            spawn_local(async move {
                let _held = give;
                panic!("a test's own panic");
            });
            spawn_local(async move { other.send(7).await.expect("somebody listens") });
            [take.recv().await, take.recv().await]
        });
        assert_eq!(thread.expect("a thread").join().expect("no panic").expect("a loop"), [Some(7), None]);
        assert_eq!(failed_tasks() - before, 1);
    }
}
