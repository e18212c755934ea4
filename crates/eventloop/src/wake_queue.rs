//! Queue of tasks that another task or another thread has woken.
use mailrun_lock::lock;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread::{self, ThreadId};

pub(crate) struct WakeQueue {
    woken: Mutex<Vec<usize>>,
    has_woken: AtomicBool,
    /// Wakes the event loop from its wait. Only other threads write to this descriptor, because the
    /// loop does not wait while its own thread runs a task.
    eventfd: OwnedFd,
    owner: ThreadId,
}

struct TaskWaker {
    queue: Arc<WakeQueue>,
    task: usize,
}

impl WakeQueue {
    /// Creates the queue for an event loop on the calling thread. The queue records this thread, because only wakes
    /// from other threads need a system call.
    pub(crate) fn new() -> io::Result<Self> {
        let eventfd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let owner = thread::current().id();
        Ok(Self { woken: Mutex::default(), has_woken: AtomicBool::new(false), eventfd, owner })
    }

    pub(crate) fn waker(queue: &Arc<Self>, task: usize) -> Waker {
        Arc::new(TaskWaker { queue: Arc::clone(queue), task }).into()
    }

    /// Returns the descriptor that becomes readable when another thread wakes a task. It must be
    /// registered as edge-triggered, because its counter is never read, so it stays readable.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    pub(crate) fn has_woken(&self) -> bool {
        self.has_woken.load(Ordering::Acquire)
    }

    /// Appends all tasks that were woken to `woken`, and empties the queue.
    pub(crate) fn drain(&self, woken: &mut Vec<usize>) {
        if self.has_woken() {
            let mut pending = lock(&self.woken);
            self.has_woken.store(false, Ordering::Release);
            woken.append(&mut pending);
        }
    }

    fn push(&self, task: usize) {
        let mut woken = lock(&self.woken);
        woken.push(task);
        // Only the first task since the last `drain` has to wake the loop.
        let is_first = !self.has_woken.swap(true, Ordering::AcqRel);
        drop(woken);
        if is_first && thread::current().id() != self.owner {
            // Ignore an error, because the write fails only if the counter is full, and then the
            // loop is already awake.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.queue.push(self.task);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.queue.push(self.task);
    }
}
