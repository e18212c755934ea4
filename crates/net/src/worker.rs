//! A worker: a thread with an event loop, and the buffers that all its sessions share.
use crate::outbox::Outbox;
pub use crate::reactor::FdTable;
use crate::reactor::{self, Reactor};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::thread::JoinHandle;

/// Most bytes of one read. Large enough that a 10 MB message takes few system calls, small enough for the second-level
/// cache, in which end of data, line endings and checksum are then computed.
pub(crate) const READ_BYTES: usize = 256 * 1024;

/// Buffers that the sessions of a worker share: a session borrows them for one turn, and never while it waits.
#[derive(Clone, Debug)]
pub struct WorkerBuffers(Rc<RefCell<IoBuffers>>);

/// The shared buffers.
#[derive(Debug, Default)]
pub(crate) struct IoBuffers {
    pub(crate) input: PageAlignedBuffer,
    pub(crate) outbox: Outbox,
}

/// Buffer of reads, at the start of a page: the kernel's copy of 10 MB costs twice the processor time if it goes to 16
/// bytes past one (measured: 4.2 ms against 1.9 ms).
#[derive(Debug)]
pub(crate) struct PageAlignedBuffer {
    memory: Vec<u8>,
    start: usize,
}

/// Alignment that makes the kernel's copy fast.
const PAGE_BYTES: usize = 4096;

impl Default for PageAlignedBuffer {
    fn default() -> Self {
        let memory = vec![0; READ_BYTES + PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        Self { memory, start }
    }
}

impl PageAlignedBuffer {
    /// The buffer.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + READ_BYTES]
    }
}

impl Default for WorkerBuffers {
    fn default() -> Self {
        Self(Rc::new(RefCell::new(IoBuffers::default())))
    }
}

impl WorkerBuffers {
    /// Lends the buffers for one turn.
    pub(crate) fn with<T>(&self, turn: impl FnOnce(&mut IoBuffers) -> T) -> T {
        turn(&mut self.0.borrow_mut())
    }
}

/// Number of sessions of this process that ended by a panic: each is a defect, with details on standard error. The
/// others continue, so a program that reports on sessions has to ask for it.
pub fn failed_sessions() -> u64 {
    reactor::failed_tasks()
}

/// Starts a worker thread that runs `work` and everything it spawns with [`spawn_local`]. Tasks that still run when
/// `work` ends are dropped.
///
/// # Errors
/// Those of starting a thread.
pub fn spawn<T, W>(
    name: &str,
    fd_table: FdTable,
    work: impl FnOnce(WorkerBuffers) -> W + Send + 'static,
) -> io::Result<JoinHandle<io::Result<T>>>
where
    T: Send + 'static,
    W: Future<Output = T> + 'static,
{
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || Reactor::run(fd_table, work(WorkerBuffers::default())))
}

/// Runs `work` as a worker on this thread.
///
/// # Errors
/// Those of making an event loop: descriptors have run out.
pub fn run<T: 'static, W: Future<Output = T> + 'static>(work: impl FnOnce(WorkerBuffers) -> W) -> io::Result<T> {
    Reactor::run(FdTable::Shared, work(WorkerBuffers::default()))
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
    use super::{FdTable, failed_sessions, spawn, spawn_local};

    #[test]
    fn a_session_that_panics_ends_alone_and_is_counted() {
        let before = failed_sessions();
        let thread = spawn("two", FdTable::Shared, |_| async {
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
        assert_eq!(failed_sessions() - before, 1);
    }
}
