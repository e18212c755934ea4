//! A worker's event loop: one epoll, and the tasks that wait on it.
//!
//! ```text
//! epoll ─ event ─▶ source (what the socket can do now) ─▶ the task that owns it is polled
//! timerfd ───────▶ timers ──────────────────────────────▶ the tasks that are due
//! bell (wakers) ──────────────────────────────────────────▶ the tasks that were woken
//! ```
//! A runtime for one purpose: an event polls its task directly, with no queue, no lock and no waker between. That is
//! why it is here and tokio is not (`docs/decisions/0004-an-event-loop-of-our-own.md`). A task is an ordinary future
//! and may await anything that wakes it.
use crate::bell::Bell;
use crate::timers::Timers;
use nix::sched::{CloneFlags, unshare};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Events taken at a time.
const EVENTS: usize = 1024;
/// Reads or accepts a task may make before the others have their turn.
const BUDGET: u32 = 64;
/// The task that the loop was started for.
const MAIN: usize = 0;
/// The event of the timerfd.
const TIMER: u64 = u64::MAX;
/// The event of the bell.
const BELL: u64 = u64::MAX - 1;

thread_local! {
    /// The loop that runs on this thread.
    static CURRENT: RefCell<Option<Rc<Reactor>>> = const { RefCell::new(None) };
    /// Where records are read and decrypted; made when the first TLS connection reads.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Octets of TLS records that one read may bring, and a record that was begun before it.
const SCRATCH_BYTES: usize = 128 * 1024;

/// Lends the worker's buffer for TLS records.
pub(crate) fn with_scratch<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.resize(SCRATCH_BYTES, 0);
        work(scratch)
    })
}

/// An event loop.
pub(crate) struct Reactor {
    epoll: OwnedFd,
    bell: Arc<Bell>,
    pub(crate) timers: Timers,
    sources: RefCell<Slab<Source>>,
    tasks: RefCell<Slab<Option<Task>>>,
    /// Tasks to be polled though nothing happened to them: new ones, and those whose budget ran out.
    eager: RefCell<Vec<usize>>,
    /// The task that is being polled.
    turn: Cell<usize>,
    budget: Cell<u32>,
    /// What the loop runs for has ended. No other task is polled then, not even for an event of the same batch: what it
    /// did, nobody would count any more.
    finished: Cell<bool>,
    /// How many sources there have been: an event that names an older one is stale.
    stamps: Cell<u32>,
}

/// A descriptor that is watched, edge by edge.
struct Source {
    task: usize,
    stamp: u32,
    readable: bool,
    writable: bool,
    /// The peer has closed, or the connection failed: what is read last may be followed by nothing but the end.
    ended: bool,
}

struct Task {
    work: Pin<Box<dyn Future<Output = ()>>>,
    waker: Waker,
}

/// Whose the table of a worker's descriptors is.
///
/// The kernel counts each use of a descriptor in a table that threads share, by two atomic operations a system call;
/// a table of its own makes a worker 5 to 8 % faster in the modes with the fewest calls a message (measured). Then a
/// descriptor that was made on one thread means nothing on another: none may be handed over after the worker has
/// begun, and those of before stay open, for the other table, until the process ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Files {
    /// All threads' together.
    #[default]
    Shared,
    /// The worker's own.
    Private,
}

/// How a descriptor is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// A connection: both ways.
    Connection,
    /// A connection that is being made: it can be written to when it stands.
    Connecting,
    /// A listener.
    Listener,
}

impl Reactor {
    /// The loop that runs on this thread.
    pub(crate) fn current() -> Rc<Self> {
        CURRENT.with_borrow(|current| current.clone()).expect("sockets, timers and tasks live on worker threads only")
    }

    /// Runs `work` and the tasks it spawns on this thread; those that are left when `work` ends are dropped.
    pub(crate) fn run<T: 'static>(files: Files, work: impl Future<Output = T> + 'static) -> io::Result<T> {
        let reactor = Rc::new(Self::new(files)?);
        let before = CURRENT.replace(Some(Rc::clone(&reactor)));
        let done = Rc::new(Cell::new(None));
        let result = Rc::clone(&done);
        reactor.spawn(async move {
            result.set(Some(work.await));
            Self::current().finished.set(true);
        });
        let outcome = reactor.turn_until(&done);
        reactor.drop_tasks();
        CURRENT.set(before);
        outcome
    }

    fn new(files: Files) -> io::Result<Self> {
        // Other threads ring the bell: its descriptor has to be in their table too.
        let bell = Arc::new(Bell::new()?);
        if files == Files::Private {
            // Where it is not allowed the table stays shared, which is only slower.
            let _ = unshare(CloneFlags::CLONE_FILES);
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timers = Timers::new()?;
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, bell.descriptor(), EventData::new_u64(BELL), edge)?;
        epoll::add(&epoll, timers.descriptor(), EventData::new_u64(TIMER), edge)?;
        Ok(Self {
            epoll,
            bell,
            timers,
            sources: RefCell::default(),
            tasks: RefCell::default(),
            eager: RefCell::default(),
            turn: Cell::default(),
            budget: Cell::default(),
            finished: Cell::default(),
            stamps: Cell::default(),
        })
    }

    /// Adds a task; it is polled soon.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        let slot = tasks.vacant_entry();
        let key = slot.key();
        slot.insert(Some(Task { work: Box::pin(work), waker: Bell::waker(&self.bell, key) }));
        self.eager.borrow_mut().push(key);
    }

    /// The task that is being polled.
    pub(crate) fn turn(&self) -> usize {
        self.turn.get()
    }

    fn turn_until<T>(&self, done: &Cell<Option<T>>) -> io::Result<T> {
        let mut events = Vec::with_capacity(EVENTS);
        let mut woken = Vec::new();
        loop {
            std::mem::swap(&mut *self.eager.borrow_mut(), &mut woken);
            self.bell.answer(&mut woken);
            for task in woken.drain(..) {
                self.poll(task);
            }
            if let Some(result) = done.take() {
                return Ok(result);
            }
            self.wait(&mut events)?;
            for event in &events {
                self.dispatch(event);
            }
        }
    }

    /// Sleeps until something happens, unless something is to be done at once.
    fn wait(&self, events: &mut Vec<Event>) -> io::Result<()> {
        self.timers.arm()?;
        let is_busy = self.bell.has_rung() || !self.eager.borrow().is_empty();
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        events.clear();
        match epoll::wait(&self.epoll, spare_capacity(events), is_busy.then_some(&at_once)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn dispatch(&self, event: &Event) {
        match event.data.u64() {
            BELL => {}
            TIMER => {
                for task in self.timers.fire() {
                    self.poll(task);
                }
            }
            name => {
                if let Some(task) = self.note(name, event.flags) {
                    self.poll(task);
                }
            }
        }
    }

    /// Notes what a source can do now; whose it is, unless it is gone.
    fn note(&self, name: u64, flags: EventFlags) -> Option<usize> {
        let mut sources = self.sources.borrow_mut();
        let source = sources.get_mut(name as u32 as usize).filter(|source| source.stamp == (name >> 32) as u32)?;
        let ended = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        source.ended |= ended;
        source.readable |= ended || flags.contains(EventFlags::IN);
        source.writable |= flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
        Some(source.task)
    }

    fn poll(&self, key: usize) {
        if self.finished.get() {
            return;
        }
        // Polled by a stale wake: the task is gone.
        let Some(mut task) = self.tasks.borrow_mut().get_mut(key).and_then(Option::take) else { return };
        self.turn.set(key);
        self.budget.set(BUDGET);
        let mut context = Context::from_waker(&task.waker);
        match catch_unwind(AssertUnwindSafe(|| task.work.as_mut().poll(&mut context))) {
            Ok(Poll::Pending) => self.tasks.borrow_mut()[key] = Some(task),
            Ok(Poll::Ready(())) => drop(self.tasks.borrow_mut().remove(key)),
            Err(panic) if key == MAIN => resume_unwind(panic),
            // A session that panicked has said so on standard error and is over; the others are not to suffer for it.
            Err(_) => drop(self.tasks.borrow_mut().remove(key)),
        }
    }

    fn drop_tasks(&self) {
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        drop(tasks);
    }

    /// Watches a descriptor for the task that is being polled.
    pub(crate) fn watch(&self, descriptor: impl AsFd, watch: Watch) -> io::Result<usize> {
        let stamp = self.stamps.get().wrapping_add(1);
        self.stamps.set(stamp);
        let writable = watch == Watch::Connection;
        let source = Source { task: self.turn(), stamp, readable: false, writable, ended: false };
        let key = self.sources.borrow_mut().insert(source);
        let flags = match watch {
            Watch::Connection | Watch::Connecting => {
                EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET
            }
            Watch::Listener => EventFlags::IN | EventFlags::ET,
        };
        let name = u64::from(stamp) << 32 | key as u64;
        epoll::add(&self.epoll, descriptor, EventData::new_u64(name), flags).inspect_err(|_| self.forget(key))?;
        Ok(key)
    }

    /// Forgets a descriptor that is about to be closed, which takes it out of the epoll.
    pub(crate) fn forget(&self, key: usize) {
        self.sources.borrow_mut().remove(key);
    }

    /// Whether a read is worth a try, and the task's turn not over: then it comes again by itself.
    pub(crate) fn may_read(&self, key: usize) -> bool {
        if !self.sources.borrow()[key].readable {
            return false;
        }
        let left = self.budget.get();
        if left == 0 {
            self.eager.borrow_mut().push(self.turn());
            return false;
        }
        self.budget.set(left - 1);
        true
    }

    /// A read brought less than there was room for: all has been read, but for the end where it has come.
    pub(crate) fn ran_short(&self, key: usize) {
        let source = &mut self.sources.borrow_mut()[key];
        source.readable = source.ended;
    }

    /// There is nothing to read.
    pub(crate) fn ran_dry(&self, key: usize) {
        self.sources.borrow_mut()[key].readable = false;
    }

    /// Whether a write is worth a try.
    pub(crate) fn may_write(&self, key: usize) -> bool {
        self.sources.borrow()[key].writable
    }

    /// The socket takes nothing more.
    pub(crate) fn ran_full(&self, key: usize) {
        self.sources.borrow_mut()[key].writable = false;
    }

    /// Whether the connection has failed, or the peer closed.
    pub(crate) fn has_ended(&self, key: usize) -> bool {
        self.sources.borrow()[key].ended
    }
}
