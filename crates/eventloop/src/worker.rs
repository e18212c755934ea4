//! A worker: a thread with its own event loop, on which all of its tasks run.
use crate::busy_poll;
use crate::reactor::{self, Reactor, WorkerOptions};
use std::future::{Future, poll_fn};
use std::io;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

/// Returns the number of tasks of this process that ended with a panic. Each panic is a bug, and its
/// details are on standard error. The other tasks continue, so a program must query this number to
/// report panics.
pub fn failed_tasks() -> u64 {
    reactor::failed_tasks()
}

/// Returns the total time that the workers of this process have spent in busy polling. During this
/// time, they occupied a processor without doing work.
pub fn busy_polled() -> Duration {
    busy_poll::looked()
}

/// Starts a worker thread that runs the future of `work`, and all tasks that it spawns with
/// [`spawn_local`]. Tasks that are still running when the future ends are dropped.
///
/// # Errors
/// Fails if the thread cannot be started. Joining the thread returns the errors of [`run`].
pub fn spawn<T, W>(
    name: &str,
    options: WorkerOptions,
    work: impl FnOnce() -> W + Send + 'static,
) -> io::Result<JoinHandle<io::Result<T>>>
where
    T: Send + 'static,
    W: Future<Output = T> + 'static,
{
    std::thread::Builder::new().name(name.to_owned()).spawn(move || Reactor::run(options, work()))
}

/// Runs `work` on this thread, together with the tasks that it spawns. Drops these tasks when `work` ends.
///
/// # Errors
/// Fails if the event loop cannot be made because there are no more file descriptors.
pub fn run_with<T: 'static>(options: WorkerOptions, work: impl Future<Output = T> + 'static) -> io::Result<T> {
    Reactor::run(options, work)
}

/// Runs `work` on this thread, together with the tasks that it spawns, like [`run_with`], but with default options.
///
/// # Errors
/// Fails if the event loop cannot be made because there are no more file descriptors.
pub fn run<T: 'static>(work: impl Future<Output = T> + 'static) -> io::Result<T> {
    Reactor::run(WorkerOptions::default(), work)
}

/// Adds a task to the worker that runs on this thread.
///
/// # Panics
/// Panics if this thread does not run a worker.
pub fn spawn_local(task: impl Future<Output = ()> + 'static) {
    Reactor::current().spawn(task);
}

/// Lets the other tasks of this worker have their turn before the current task continues. In
/// contrast, [`crate::sleep`] with a time of zero returns at once.
///
/// # Panics
/// Panics if this thread does not run a worker.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|_| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        Reactor::current().poll_again();
        Poll::Pending
    })
    .await;
}

/// Returns half the number of processors, but at least one. The other half is for the peer, which
/// usually runs on this host.
pub fn default_count() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

#[cfg(test)]
mod tests {
    use super::{busy_polled, failed_tasks, run, run_with, spawn, spawn_local, yield_now};
    use crate::{Acceptor, BusyPoll, Socket, WorkerOptions, clock, listener, sleep};
    use std::time::Duration;

    #[test]
    fn a_task_that_panics_ends_alone_and_is_counted() {
        let before = failed_tasks();
        let thread = spawn("two", WorkerOptions::default(), || async {
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

    #[test]
    fn a_task_that_yields_lets_the_others_work() {
        let turns = run(async {
            let (give, mut take) = tokio::sync::mpsc::unbounded_channel();
            for name in ["a", "b"] {
                let give = give.clone();
                spawn_local(async move {
                    for _ in 0..3 {
                        give.send(name).expect("somebody listens");
                        yield_now().await;
                    }
                });
            }
            drop(give);
            let mut turns = String::new();
            while let Some(name) = take.recv().await {
                turns.push_str(name);
            }
            turns
        });
        assert_eq!(turns.expect("a loop"), "ababab");
    }

    async fn exchange(count: usize) -> usize {
        let listener = listener::listen("127.0.0.1:0".parse().expect("an address")).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let acceptor = Acceptor::new(listener).expect("an acceptor");
        spawn_local(async move {
            let (descriptor, _) = acceptor.accept().await.expect("a connection");
            let socket = Socket::from_accepted(descriptor).expect("a socket");
            let mut room = [0; 8];
            while let Ok(count @ 1..) = socket.read(&mut room).await {
                socket.write_all(&room[..count]).await.expect("a peer");
            }
        });
        let socket = Socket::connect(address).await.expect("a connection");
        let mut room = [0; 8];
        for _ in 0..count {
            socket.write_all(b"x").await.expect("a peer");
            assert_eq!(socket.read(&mut room).await.expect("a peer"), 1);
        }
        count
    }

    #[test]
    fn busy_polling_changes_nothing_but_the_sleep() {
        for busy_poll in [BusyPoll::Off, BusyPoll::For(Duration::from_millis(1))] {
            let options = WorkerOptions { busy_poll, ..WorkerOptions::default() };
            assert_eq!(run_with(options, exchange(200)).expect("a loop"), 200, "{busy_poll:?}");
        }
    }

    #[test]
    fn the_time_of_busy_polling_is_counted_and_ends() {
        let before = busy_polled();
        let look = Duration::from_millis(5);
        let options = WorkerOptions { busy_poll: BusyPoll::For(look), ..WorkerOptions::default() };
        let began = clock::now();
        let work = async { sleep(Duration::from_millis(100)).await };
        run_with(options, work).expect("a loop");
        let polled = busy_polled() - before;
        assert!(polled >= look && clock::now() - began >= Duration::from_millis(100), "{polled:?}");
    }
}
