//! A worker that serves sessions: a thread of [`mailrun_eventloop`], and the buffers that its sessions share.
use crate::outbox::Outbox;
pub use mailrun_eventloop::worker::{
    busy_polled, default_count, failed_tasks as failed_sessions, spawn_local, yield_now,
};
use mailrun_eventloop::{PageAlignedBuffer, WorkerOptions};
use std::cell::{RefCell, RefMut};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::thread::JoinHandle;

/// Maximum number of bytes of one read. It is large enough that a 10 MB message needs few system calls. It is small
/// enough that the bytes stay in the second-level cache while the session looks for the end of data and the line
/// endings, and computes the checksum.
pub(crate) const READ_BYTES: usize = 256 * 1024;

/// An input buffer and an output buffer, which all sessions of a worker share to save memory. A session borrows them
/// while its task runs, but not while it waits.
#[derive(Clone, Debug)]
pub struct WorkerBuffers(Rc<RefCell<IoBuffers>>);

#[derive(Debug)]
pub(crate) struct IoBuffers {
    pub(crate) input: PageAlignedBuffer,
    pub(crate) outbox: Outbox,
}

impl Default for IoBuffers {
    fn default() -> Self {
        Self { input: PageAlignedBuffer::new(READ_BYTES), outbox: Outbox::default() }
    }
}

impl Default for WorkerBuffers {
    fn default() -> Self {
        Self(Rc::new(RefCell::new(IoBuffers::default())))
    }
}

impl WorkerBuffers {
    /// Calls `turn`, in which a session uses the buffers. Afterwards, or after a panic, drops the output that is left
    /// in them, because otherwise the worker's next session would send it to another peer.
    pub(crate) fn with<T>(&self, turn: impl FnOnce(&mut IoBuffers) -> T) -> T {
        turn(&mut LentBuffers(self.0.borrow_mut()).0)
    }
}

struct LentBuffers<'a>(RefMut<'a, IoBuffers>);

impl Drop for LentBuffers<'_> {
    fn drop(&mut self) {
        self.0.outbox.clear();
    }
}

/// Starts a worker thread ([`mailrun_eventloop::worker::spawn`]), and gives its buffers to `work`.
///
/// # Errors
/// Fails if the thread cannot be started.
pub fn spawn<T, W>(
    name: &str,
    options: WorkerOptions,
    work: impl FnOnce(WorkerBuffers) -> W + Send + 'static,
) -> io::Result<JoinHandle<io::Result<T>>>
where
    T: Send + 'static,
    W: Future<Output = T> + 'static,
{
    mailrun_eventloop::worker::spawn(name, options, || work(WorkerBuffers::default()))
}

/// Runs `work` as a worker on this thread ([`mailrun_eventloop::worker::run`]), with buffers for its sessions.
///
/// # Errors
/// Fails if the event loop cannot be made because there are no more file descriptors.
pub fn run<T: 'static, W: Future<Output = T> + 'static>(work: impl FnOnce(WorkerBuffers) -> W) -> io::Result<T> {
    run_with(WorkerOptions::default(), work)
}

/// Runs `work` as a worker on this thread like [`run`], but with the given options, for example for busy polling.
///
/// # Errors
/// Fails if the event loop cannot be made because there are no more file descriptors.
pub fn run_with<T: 'static, W: Future<Output = T> + 'static>(
    options: WorkerOptions,
    work: impl FnOnce(WorkerBuffers) -> W,
) -> io::Result<T> {
    mailrun_eventloop::worker::run_with(options, work(WorkerBuffers::default()))
}
