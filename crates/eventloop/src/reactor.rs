//! A worker's event loop: one epoll, and the tasks that wait for its events.
//!
//! ```text
//! epoll ─ events ─▶ sources (what sockets can do now; batch.rs reads for them) ─▶ the tasks that own them are polled
//! timerfd ───────▶ timers ──────────────────────────────▶ the tasks that are due
//! wake queue (wakers) ─────────────────────────────────────▶ the tasks that were woken
//! ```
//! This runtime exists for one reason: when an event arrives, the loop directly polls the task that waits for the
//! event, without a queue, a lock or a waker in between. Tokio could not do that
//! (`docs/decisions/0004-an-event-loop-of-our-own.md`). A task is an ordinary future and may await anything that wakes
//! it.
use crate::batch::{BATCH_EVENTS, MAX_READ_AHEAD, ReadAhead, WriteBatch};
use crate::busy_poll::{self, BusyPoll};
use crate::clock;
use crate::timers::Timers;
use crate::wake_queue::WakeQueue;
use nix::sched::{CloneFlags, unshare};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const MAX_EVENTS: usize = 1024;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Maximum number of reads or accepts that a task may make before other tasks have their turn.
const TASK_BUDGET: u32 = 64;
/// Number of input bytes that count as one more read, so that 256 KiB use up the whole [`TASK_BUDGET`]. The turn of a
/// task therefore stays short even if many peers send faster than their tasks can work.
const BUDGETED_BYTES: usize = 4096;
const MAIN_TASK: usize = 0;
const TIMER_TOKEN: u64 = u64::MAX;
const WAKE_TOKEN: u64 = u64::MAX - 1;

static FAILED_TASKS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn failed_tasks() -> u64 {
    FAILED_TASKS.load(Ordering::Relaxed)
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Reactor>>> = const { RefCell::new(None) };
}

pub(crate) struct Reactor {
    epoll: OwnedFd,
    busy_poll: BusyPoll,
    wake_queue: Arc<WakeQueue>,
    pub(crate) timers: Timers,
    sources: RefCell<Slab<IoSource>>,
    read_ahead: RefCell<ReadAhead>,
    write_batch: RefCell<WriteBatch>,
    /// Time at which the loop read the input for the tasks of the current batch. All these tasks share the time, which
    /// saves reading the clock for each of them.
    batch_read_at: Cell<Duration>,
    /// Time at which the loop read the input that a task received last. `None` if the task made the system call itself,
    /// or if the input was left over from an earlier turn.
    input_at: Cell<Option<Duration>>,
    tasks: RefCell<Slab<Option<Task>>>,
    /// Tasks to be polled without an event, for example new tasks, and tasks that used up the budget of their turn.
    ready_tasks: RefCell<Vec<usize>>,
    current_task: Cell<usize>,
    budget: Cell<u32>,
    /// Set when the main task has ended. From then on no other task is polled, not even for an event of the same batch,
    /// because the worker's result is already known.
    finished: Cell<bool>,
    /// Counter that gives each source its own generation number. A new source may reuse the key of a removed source. An
    /// event has the key and the generation of its source, so that late events of a removed source can be ignored.
    next_generation: Cell<u32>,
}

/// A descriptor that epoll watches. Epoll is edge-triggered, so the source remembers what the
/// descriptor can do now.
struct IoSource {
    task: usize,
    generation: u32,
    readable: bool,
    writable: bool,
    /// Set if the peer has closed the connection, or if the connection has failed. Reads then return the remaining
    /// input, followed by the end of the connection or an error.
    ended: bool,
    /// Set if the task wanted to read when there was no input. When input arrives, the loop reads once for this task
    /// before polling it. The loop reads again only after the task has taken this input. Input therefore stays in
    /// order, and a slow task keeps only one read in memory.
    awaits_input: bool,
    /// Set if the last input was too large for the loop to read it before polling the task. The task then reads such
    /// input directly into its own buffer.
    comes_in_bulk: bool,
    buffered: Option<BufferedRead>,
    descriptor: Option<Rc<OwnedFd>>,
    /// Set while the task's last output waits to be sent. The loop sends it after polling all tasks of the batch.
    is_write_batched: bool,
    /// Set if the task wants to know when the kernel received its output.
    is_timed: bool,
    /// Time at which a batch finished writing the task's output, or `None` if the write has failed or is not
    /// complete.
    written_at: Option<Duration>,
    cold: Option<Box<ColdFields>>,
}

/// Result of a read that the loop made for a task before polling it.
enum BufferedRead {
    /// Position of the input in the memory of [`ReadAhead`]. An empty range means that the connection has ended.
    Read(Range<usize>),
    Failed(Errno),
}

/// Leftover input, unsent output and an error, which few sources have. They are in a separate allocation, so that the
/// other sources stay small.
#[derive(Default)]
struct ColdFields {
    /// Input that was read ahead for the task, but that the task did not take in its turn.
    input: Vec<u8>,
    /// Batched output that the socket has not accepted yet. It is sent when the socket becomes
    /// writable.
    unsent: Vec<u8>,
    /// Error of a batched write, or of a read that the loop made for a task that did not ask for input in its turn. The
    /// next read or write returns this error.
    error: Option<Errno>,
}

impl IoSource {
    fn cold(&mut self) -> &mut ColdFields {
        self.cold.get_or_insert_default()
    }

    fn has_unsent(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| !cold.unsent.is_empty())
    }

    /// Returns true if a read may succeed, because there is input, or the connection has ended or failed.
    fn has_input(&self) -> bool {
        let has_kept = || self.cold.as_ref().is_some_and(|cold| !cold.input.is_empty());
        self.readable || self.buffered.is_some() || has_kept()
    }

    fn update_readiness(&mut self, flags: EventFlags) {
        let ended = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        self.ended |= ended;
        self.readable |= ended || flags.contains(EventFlags::IN);
        self.writable |= flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
        if self.writable && self.has_unsent() {
            self.flush_unsent();
        }
    }

    fn fill_read_ahead(&mut self, read_ahead: &mut ReadAhead) {
        let Some(descriptor) = &self.descriptor else { return };
        self.awaits_input = false;
        let room = read_ahead.room();
        let room_bytes = room.len();
        self.buffered = match retry_on_intr(|| recv(descriptor, &mut *room, RecvFlags::empty())) {
            Ok((_, count)) => {
                self.comes_in_bulk = count == room_bytes;
                self.readable = self.ended || self.comes_in_bulk;
                Some(BufferedRead::Read(read_ahead.read(count)))
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                None
            }
            Err(error) => Some(BufferedRead::Failed(error)),
        };
    }

    fn flush_unsent(&mut self) {
        let (Some(cold), Some(descriptor)) = (&mut self.cold, &self.descriptor) else { return };
        while !cold.unsent.is_empty() {
            match retry_on_intr(|| send(descriptor, &cold.unsent, SendFlags::NOSIGNAL)) {
                Ok(count) => drop(cold.unsent.drain(..count)),
                Err(Errno::AGAIN) => {
                    self.writable = false;
                    return;
                }
                Err(error) => {
                    cold.error = Some(error);
                    cold.unsent.clear();
                }
            }
        }
        self.written_at = cold.error.is_none().then(clock::now);
    }
}

struct Task {
    work: Pin<Box<dyn Future<Output = ()>>>,
    waker: Waker,
}

impl ColdFields {
    /// Moves input that is left over from an earlier turn into `room`. Returns `None` if there is no such input.
    fn take_input(&mut self, room: &mut [u8]) -> Option<Result<usize, Errno>> {
        let count = self.input.len().min(room.len());
        room[..count].copy_from_slice(&self.input[..count]);
        drop(self.input.drain(..count));
        (count > 0).then_some(Ok(count))
    }
}

/// Returns the source with this token, which consists of a key and a generation. Returns `None` if the source was
/// removed, even if a newer source has the same key, because its generation differs.
fn find_source(sources: &mut Slab<IoSource>, token: u64) -> Option<&mut IoSource> {
    sources.get_mut(token as u32 as usize).filter(|source| source.generation == (token >> 32) as u32)
}

/// Selects whether a worker shares its table of file descriptors with other threads.
///
/// If threads share the table, the kernel counts each use of a descriptor, with two atomic
/// operations per system call. With a table of its own, a worker is 5 to 8 % faster if it makes few
/// system calls per message (measured).
///
/// A worker with a table of its own cannot use descriptors that other threads open later, and they cannot use its
/// descriptors. Do not pass descriptors between such a worker and other threads after the worker has begun. Descriptors
/// that were open before are in both tables. If the worker closes them, they stay open in the shared table until the
/// process ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FdTable {
    /// All threads of the process share one table of descriptors.
    #[default]
    Shared,
    /// The worker has its own table of descriptors. If the kernel refuses that, the table remains shared.
    Private,
}

/// Options of a worker, which are set when its thread starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerOptions {
    /// Whether the worker shares its table of descriptors with other threads.
    pub fd_table: FdTable,
    /// Time for which the worker looks for events before it sleeps.
    pub busy_poll: BusyPoll,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceKind {
    Connection,
    /// A socket that is still connecting. It becomes writable when the connection is established.
    Connecting,
    Listener,
}

impl Reactor {
    pub(crate) fn current() -> Rc<Self> {
        CURRENT.with_borrow(|current| current.clone()).expect("sockets, timers and tasks live on worker threads only")
    }

    /// Runs `work` on this thread, together with the tasks that it spawns. Drops the tasks that
    /// remain when `work` ends.
    pub(crate) fn run<T: 'static>(options: WorkerOptions, work: impl Future<Output = T> + 'static) -> io::Result<T> {
        let reactor = Rc::new(Self::new(options)?);
        let before = CURRENT.replace(Some(Rc::clone(&reactor)));
        let done = Rc::new(Cell::new(None));
        let result = Rc::clone(&done);
        reactor.spawn(async move {
            result.set(Some(work.await));
            Self::current().finished.set(true);
        });
        let outcome = reactor.run_until(&done);
        // Write the batch after dropping the tasks, because a session may write a last reply when it is dropped.
        reactor.drop_tasks();
        reactor.flush_batch();
        CURRENT.set(before);
        outcome
    }

    fn new(options: WorkerOptions) -> io::Result<Self> {
        // Other threads write to the wake queue's descriptor, so create it while they still share the descriptor table.
        let wake_queue = Arc::new(WakeQueue::new()?);
        if options.fd_table == FdTable::Private {
            // Ignore an error, because the worker still works with a shared descriptor table, only more slowly.
            let _ = unshare(CloneFlags::CLONE_FILES);
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timers = Timers::new()?;
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, wake_queue.descriptor(), EventData::new_u64(WAKE_TOKEN), edge)?;
        epoll::add(&epoll, timers.descriptor(), EventData::new_u64(TIMER_TOKEN), edge)?;
        Ok(Self {
            epoll,
            busy_poll: options.busy_poll,
            wake_queue,
            timers,
            sources: RefCell::default(),
            read_ahead: RefCell::default(),
            write_batch: RefCell::default(),
            batch_read_at: Cell::default(),
            input_at: Cell::default(),
            tasks: RefCell::default(),
            ready_tasks: RefCell::default(),
            current_task: Cell::default(),
            budget: Cell::default(),
            finished: Cell::default(),
            next_generation: Cell::default(),
        })
    }

    /// Adds a task, which is polled for the first time before the loop sleeps.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        let slot = tasks.vacant_entry();
        let key = slot.key();
        slot.insert(Some(Task { work: Box::pin(work), waker: WakeQueue::waker(&self.wake_queue, key) }));
        self.ready_tasks.borrow_mut().push(key);
    }

    pub(crate) fn current_task(&self) -> usize {
        self.current_task.get()
    }

    /// Polls the current task again after other tasks have had their turn.
    pub(crate) fn poll_again(&self) {
        self.ready_tasks.borrow_mut().push(self.current_task());
    }

    fn run_until<T>(&self, done: &Cell<Option<T>>) -> io::Result<T> {
        let mut events = Vec::with_capacity(MAX_EVENTS);
        let mut ready = Vec::new();
        let mut woken = Vec::new();
        loop {
            // Take the list of ready tasks before polling, because polled tasks may add tasks for the next round.
            std::mem::swap(&mut *self.ready_tasks.borrow_mut(), &mut ready);
            for batch in ready.chunks(BATCH_EVENTS) {
                batch.iter().for_each(|task| self.poll(*task));
                self.flush_batch();
                self.poll_woken(&mut woken);
            }
            ready.clear();
            self.poll_woken(&mut woken);
            if let Some(result) = done.take() {
                return Ok(result);
            }
            self.wait(&mut events)?;
            for batch in events.chunks(BATCH_EVENTS) {
                self.begin_batch(batch);
                batch.iter().for_each(|event| self.dispatch(event));
                self.keep_unread(batch);
                self.flush_batch();
                self.poll_woken(&mut woken);
            }
        }
    }

    /// Polls the tasks that were woken. The loop calls this after each batch. A task that another thread wakes
    /// therefore waits only for the current batch and for tasks that were woken earlier, even if hundreds of other
    /// connections have input.
    fn poll_woken(&self, woken: &mut Vec<usize>) {
        self.wake_queue.drain(woken);
        if woken.is_empty() {
            return;
        }
        for task in woken.drain(..) {
            self.poll(task);
        }
        self.flush_batch();
    }

    /// Sleeps until an event arrives. If there is work to do at once, only takes the events that have already arrived.
    fn wait(&self, events: &mut Vec<Event>) -> io::Result<()> {
        self.timers.arm()?;
        let is_busy = self.wake_queue.has_woken() || !self.ready_tasks.borrow().is_empty();
        events.clear();
        if is_busy {
            return self.take_events(events, Some(&AT_ONCE));
        }
        match self.busy_poll.limit() {
            Some(limit) if self.look_for_events(events, limit)? => Ok(()),
            _ => self.take_events(events, None),
        }
    }

    /// Asks epoll again and again, without sleeping, until there is an event or a woken task, or
    /// until `limit` has passed. Returns true if there is something to do.
    fn look_for_events(&self, events: &mut Vec<Event>, limit: Duration) -> io::Result<bool> {
        self.take_events(events, Some(&AT_ONCE))?;
        if !events.is_empty() {
            return Ok(true);
        }
        let start = clock::now();
        loop {
            self.take_events(events, Some(&AT_ONCE))?;
            let now = clock::now();
            let has_found = !events.is_empty() || self.wake_queue.has_woken();
            if has_found || now - start >= limit {
                busy_poll::add_look(now - start, limit);
                return Ok(has_found);
            }
        }
    }

    /// Waits for events until `timeout` is over, or forever without a timeout.
    fn take_events(&self, events: &mut Vec<Event>, timeout: Option<&Timespec>) -> io::Result<()> {
        match epoll::wait(&self.epoll, spare_capacity(events), timeout) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn dispatch(&self, event: &Event) {
        match event.data.u64() {
            WAKE_TOKEN => {}
            TIMER_TOKEN => {
                for task in self.timers.fire() {
                    self.poll(task);
                }
            }
            token => {
                let task = find_source(&mut self.sources.borrow_mut(), token).map(|source| source.task);
                if let Some(task) = task {
                    self.poll(task);
                }
            }
        }
    }

    /// Records what each source with an event can do now, and reads for the tasks that wait for its input.
    fn begin_batch(&self, batch: &[Event]) {
        let mut sources = self.sources.borrow_mut();
        let mut read_ahead = self.read_ahead.borrow_mut();
        read_ahead.begin();
        for event in batch {
            let Some(source) = find_source(&mut sources, event.data.u64()) else { continue };
            source.update_readiness(event.flags);
            if batch.len() > 1 && source.awaits_input && source.readable && !source.comes_in_bulk {
                source.fill_read_ahead(&mut read_ahead);
            }
        }
        if batch.len() > 1 {
            self.batch_read_at.set(clock::now());
        }
    }

    /// Stores input that tasks did not take in this turn, until they read again.
    fn keep_unread(&self, batch: &[Event]) {
        if batch.len() == 1 {
            return;
        }
        let mut sources = self.sources.borrow_mut();
        for event in batch {
            let Some(source) = find_source(&mut sources, event.data.u64()) else { continue };
            match source.buffered.take() {
                None => {}
                // An empty read means that the connection has ended. There is nothing to keep, because the next read
                // reports the end again.
                Some(BufferedRead::Read(place)) if place.is_empty() => source.readable = true,
                Some(BufferedRead::Read(place)) => {
                    let read_ahead = self.read_ahead.borrow();
                    source.cold().input.extend_from_slice(read_ahead.bytes(place));
                }
                Some(BufferedRead::Failed(error)) => source.cold().error = Some(error),
            }
        }
    }

    pub(crate) fn flush_batch(&self) {
        if self.write_batch.borrow().is_empty() {
            return;
        }
        let mut sources = self.sources.borrow_mut();
        self.write_batch.borrow_mut().drain(|piece, bytes| {
            let source = find_source(&mut sources, piece.token);
            // If earlier output of this socket is still unsent, append this output to it, so that the order is kept.
            if let Some(source) = source.filter(|source| source.has_unsent()) {
                source.is_write_batched = false;
                source.cold().unsent.extend_from_slice(bytes);
                return;
            }
            let outcome = retry_on_intr(|| send(&piece.descriptor, bytes, SendFlags::NOSIGNAL));
            let Some(source) = find_source(&mut sources, piece.token) else { return };
            source.is_write_batched = false;
            source.written_at = None;
            match outcome {
                Ok(count) if count == bytes.len() => source.written_at = source.is_timed.then(clock::now),
                Ok(count) => {
                    source.cold().unsent.extend_from_slice(&bytes[count..]);
                    source.flush_unsent();
                }
                Err(Errno::AGAIN) => {
                    source.cold().unsent.extend_from_slice(bytes);
                    source.writable = false;
                }
                Err(error) => {
                    // Store the error until the task has read everything that the peer had sent before the error.
                    source.cold().error = Some(error);
                    source.readable = true;
                    self.ready_tasks.borrow_mut().push(source.task);
                }
            }
        });
    }

    fn poll(&self, key: usize) {
        if self.finished.get() {
            return;
        }
        // Skip a task that has ended in the meantime, or is already being polled.
        let Some(mut task) = self.tasks.borrow_mut().get_mut(key).and_then(Option::take) else { return };
        self.current_task.set(key);
        self.budget.set(TASK_BUDGET);
        let mut context = Context::from_waker(&task.waker);
        match catch_unwind(AssertUnwindSafe(|| task.work.as_mut().poll(&mut context))) {
            Ok(Poll::Pending) => self.tasks.borrow_mut()[key] = Some(task),
            Ok(Poll::Ready(())) => drop(self.tasks.borrow_mut().remove(key)),
            // Pass on a panic of the main task, because the worker has no result without this task.
            Err(panic) if key == MAIN_TASK => {
                FAILED_TASKS.fetch_add(1, Ordering::Relaxed);
                resume_unwind(panic)
            }
            // A panic of a session's task ends only this session. The panic hook has already reported it.
            Err(_) => {
                FAILED_TASKS.fetch_add(1, Ordering::Relaxed);
                drop(self.tasks.borrow_mut().remove(key));
            }
        }
    }

    fn drop_tasks(&self) {
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        // Drop the tasks after the borrow has ended, because a dropped task may use the loop and borrow `tasks` again.
        drop(tasks);
    }

    pub(crate) fn register_connection(&self, descriptor: &Rc<OwnedFd>, kind: SourceKind) -> io::Result<usize> {
        let key = self.register(descriptor, kind)?;
        self.sources.borrow_mut()[key].descriptor = Some(Rc::clone(descriptor));
        Ok(key)
    }

    pub(crate) fn register(&self, descriptor: impl AsFd, watch: SourceKind) -> io::Result<usize> {
        let generation = self.next_generation.get().wrapping_add(1);
        self.next_generation.set(generation);
        let source = IoSource {
            task: self.current_task(),
            generation,
            readable: false,
            writable: watch == SourceKind::Connection,
            ended: false,
            awaits_input: false,
            comes_in_bulk: false,
            buffered: None,
            descriptor: None,
            is_write_batched: false,
            is_timed: false,
            written_at: None,
            cold: None,
        };
        let key = self.sources.borrow_mut().insert(source);
        let flags = match watch {
            SourceKind::Connection | SourceKind::Connecting => {
                EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET
            }
            SourceKind::Listener => EventFlags::IN | EventFlags::ET,
        };
        let token = u64::from(generation) << 32 | key as u64;
        epoll::add(&self.epoll, descriptor, EventData::new_u64(token), flags).inspect_err(|_| self.deregister(key))?;
        Ok(key)
    }

    /// Forgets a descriptor that is about to be closed. The kernel removes it from the epoll when
    /// it is closed.
    pub(crate) fn deregister(&self, key: usize) {
        self.sources.borrow_mut().remove(key);
    }

    /// Returns true if a read may succeed and the task may still read in this turn. If there is input, but the task has
    /// used up its reads, the loop polls the task again in a later turn.
    pub(crate) fn may_read(&self, key: usize) -> bool {
        let source = &self.sources.borrow()[key];
        if !source.has_input() {
            return false;
        }
        let remaining = self.budget.get();
        if remaining == 0 {
            self.poll_again();
            return false;
        }
        self.budget.set(remaining - 1);
        true
    }

    /// Records that a read into a buffer of `room` bytes returned `count` bytes. If the buffer was not filled, the
    /// socket has no more input, except perhaps the end of the connection.
    pub(crate) fn did_read(&self, key: usize, count: usize, room: usize) {
        let source = &mut self.sources.borrow_mut()[key];
        source.comes_in_bulk = count > MAX_READ_AHEAD;
        if count < room {
            source.readable = source.ended;
        }
        self.budget.set(self.budget.get().saturating_sub((count / BUDGETED_BYTES) as u32));
    }

    /// Returns the stored error, if any, of a batched write or of a read that the loop made for the task.
    pub(crate) fn error(&self, key: usize) -> Option<Errno> {
        self.sources.borrow()[key].cold.as_ref()?.error
    }

    /// Makes the next read try a system call, because there may be input that no event has reported
    /// yet.
    pub(crate) fn mark_readable(&self, key: usize) {
        self.sources.borrow_mut()[key].readable = true;
    }

    /// Records that there is nothing to read until the next event reports input.
    pub(crate) fn clear_readable(&self, key: usize) {
        self.sources.borrow_mut()[key].readable = false;
    }

    /// Records that the task waits for input, so that the loop may read for it. Does nothing if there already is input,
    /// because the task then waits only for its next turn.
    pub(crate) fn await_input(&self, key: usize) {
        let source = &mut self.sources.borrow_mut()[key];
        source.awaits_input = !source.has_input();
    }

    /// Copies input that was read ahead for the task into `room`, and returns the number of copied
    /// bytes. Returns `None` if there is no such input.
    pub(crate) fn take_read_ahead(&self, key: usize, room: &mut [u8]) -> Option<Result<usize, Errno>> {
        let mut sources = self.sources.borrow_mut();
        let source = &mut sources[key];
        source.awaits_input = false;
        // First return the input that was kept from an earlier batch, because it arrived before this batch.
        if let Some(kept) = source.cold.as_mut().and_then(|cold| cold.take_input(room)) {
            self.input_at.set(None);
            return Some(kept);
        }
        match source.buffered.take() {
            Some(BufferedRead::Read(place)) => {
                self.input_at.set(Some(self.batch_read_at.get()));
                let count = place.len().min(room.len());
                room[..count].copy_from_slice(self.read_ahead.borrow().bytes(place.start..place.start + count));
                if count < place.len() {
                    source.buffered = Some(BufferedRead::Read(place.start + count..place.end));
                }
                Some(Ok(count))
            }
            Some(BufferedRead::Failed(error)) => Some(Err(error)),
            None => {
                self.input_at.set(None);
                None
            }
        }
    }

    pub(crate) fn input_at(&self) -> Duration {
        self.input_at.get().unwrap_or_else(clock::now)
    }

    /// Adds a write to the current batch. The loop sends the bytes after polling all tasks of the batch. If that fails,
    /// the loop polls the task again, and a later read or write returns the error.
    pub(crate) fn batch_write(&self, key: usize, descriptor: &Rc<OwnedFd>, bytes: &[u8]) -> Result<(), Errno> {
        let mut sources = self.sources.borrow_mut();
        let source = &mut sources[key];
        if let Some(error) = source.cold.as_mut().and_then(|cold| cold.error) {
            return Err(error);
        }
        if !source.writable || source.has_unsent() {
            return Err(Errno::AGAIN);
        }
        source.is_write_batched = true;
        let token = u64::from(source.generation) << 32 | key as u64;
        self.write_batch.borrow_mut().push(token, descriptor, bytes);
        Ok(())
    }

    /// Writes all batched output, so that the bytes which the task writes next come after its earlier bytes. Fails with
    /// `AGAIN` if the socket has not accepted all of the earlier bytes.
    pub(crate) fn flush_before_write(&self, key: usize) -> Result<(), Errno> {
        self.flush_batch();
        match self.sources.borrow()[key].cold.as_deref() {
            Some(ColdFields { error: Some(error), .. }) => Err(*error),
            Some(cold) if !cold.unsent.is_empty() => Err(Errno::AGAIN),
            _ => Ok(()),
        }
    }

    pub(crate) fn is_flushed(&self, key: usize) -> bool {
        !self.sources.borrow()[key].has_unsent()
    }

    pub(crate) fn is_write_batched(&self, key: usize) -> bool {
        self.sources.borrow()[key].is_write_batched
    }

    pub(crate) fn time_writes(&self, key: usize) {
        self.sources.borrow_mut()[key].is_timed = true;
    }

    pub(crate) fn written_at(&self, key: usize) -> Option<Duration> {
        self.sources.borrow()[key].written_at
    }

    pub(crate) fn may_write(&self, key: usize) -> bool {
        let source = &self.sources.borrow()[key];
        source.writable && !source.has_unsent()
    }

    /// Records that the socket accepts no output until an event says that it does.
    pub(crate) fn clear_writable(&self, key: usize) {
        self.sources.borrow_mut()[key].writable = false;
    }

    pub(crate) fn has_ended(&self, key: usize) -> bool {
        self.sources.borrow()[key].ended
    }
}

#[cfg(test)]
mod tests {
    use super::{Reactor, WorkerOptions};
    use crate::batch::{BATCH_EVENTS, MAX_READ_AHEAD};
    use crate::socket::Socket;
    use crate::worker::yield_now;
    use std::cell::{Cell, RefCell};
    use std::future::poll_fn;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;
    use std::task::{Poll, Waker};

    /// Number of connections that have input at the same time. Their events fill several batches.
    const CONNECTIONS: usize = 3 * BATCH_EVENTS;

    fn pair() -> (Socket, UnixStream) {
        let (one, other) = UnixStream::pair().expect("sockets");
        one.set_nonblocking(true).expect("an option");
        other.set_nonblocking(true).expect("an option");
        (Socket::from_accepted(one.into()).expect("watched"), other)
    }

    /// A task that is woken through its waker, as if another thread had woken it. It records how many other tasks were
    /// polled before it.
    #[derive(Default)]
    struct Call {
        waker: RefCell<Option<Waker>>,
        polled: Cell<usize>,
        polled_before: Cell<Option<usize>>,
    }

    impl Call {
        /// Starts the task, and returns when it waits to be woken.
        async fn start() -> Rc<Self> {
            let call = Rc::new(Self::default());
            let served = Rc::clone(&call);
            Reactor::current().spawn(poll_fn(move |context| {
                if served.waker.borrow_mut().replace(context.waker().clone()).is_none() {
                    return Poll::Pending;
                }
                served.polled_before.set(Some(served.polled.get()));
                Poll::Ready(())
            }));
            yield_now().await;
            assert!(call.waker.borrow().is_some());
            call
        }

        /// Counts a poll of another task. The first call wakes the task under test, which the loop must then poll after
        /// at most one batch of other tasks.
        fn count_task(&self) {
            if self.polled.replace(self.polled.get() + 1) == 0
                && let Some(waker) = &*self.waker.borrow()
            {
                waker.wake_by_ref();
            }
        }

        async fn assert_served_after_a_batch(&self) {
            while self.polled.get() < CONNECTIONS || self.polled_before.get().is_none() {
                yield_now().await;
            }
            let polled_before = self.polled_before.get().expect("the call was served");
            assert!(polled_before <= BATCH_EVENTS, "{polled_before} tasks were polled first");
        }
    }

    #[test]
    fn a_call_is_served_before_all_connections_with_input() {
        let work = async {
            let call = Call::start().await;
            let waiting = Rc::new(Cell::new(0));
            let mut peers = Vec::new();
            for _ in 0..CONNECTIONS {
                let (one, other) = UnixStream::pair().expect("sockets");
                one.set_nonblocking(true).expect("an option");
                peers.push(other);
                let call = Rc::clone(&call);
                let waiting = Rc::clone(&waiting);
                Reactor::current().spawn(async move {
                    let socket = Socket::from_accepted(one.into()).expect("watched");
                    waiting.set(waiting.get() + 1);
                    assert_eq!(socket.read(&mut [0; 8]).await.expect("read"), 1);
                    call.count_task();
                });
            }
            while waiting.get() < CONNECTIONS {
                yield_now().await;
            }
            // Write to all connections without yielding, so that the loop gets all their input in one batch.
            for peer in &mut peers {
                peer.write_all(b"x").expect("written");
            }
            call.assert_served_after_a_batch().await;
        };
        Reactor::run(WorkerOptions::default(), work).expect("a loop");
    }

    #[test]
    fn a_call_is_served_before_all_tasks_that_are_ready() {
        let work = async {
            let call = Call::start().await;
            for _ in 0..CONNECTIONS {
                let call = Rc::clone(&call);
                Reactor::current().spawn(async move { call.count_task() });
            }
            call.assert_served_after_a_batch().await;
        };
        Reactor::run(WorkerOptions::default(), work).expect("a loop");
    }

    #[test]
    fn no_more_is_read_ahead_of_a_task_than_it_has_asked_for() {
        let work = async {
            let mut peers = Vec::new();
            // The loop reads before the tasks run only if several connections have input, so use two connections.
            for _ in 0..2 {
                let (one, other) = UnixStream::pair().expect("sockets");
                one.set_nonblocking(true).expect("an option");
                peers.push(other);
                Reactor::current().spawn(async move {
                    let socket = Socket::from_accepted(one.into()).expect("watched");
                    assert!(socket.poll_read(&mut [0; 8]).is_pending());
                    std::future::pending().await
                });
            }
            yield_now().await;
            for _ in 0..10 {
                peers.iter_mut().for_each(|peer| peer.write_all(&[b'x'; 1000]).expect("written"));
                yield_now().await;
            }
            let reactor = Reactor::current();
            let sources = reactor.sources.borrow();
            for (_, source) in sources.iter() {
                let kept = source.cold.as_ref().map_or(0, |cold| cold.input.len());
                assert!(kept <= MAX_READ_AHEAD, "{kept} bytes");
            }
        };
        Reactor::run(WorkerOptions::default(), work).expect("a loop");
    }

    #[test]
    fn a_peer_that_never_stops_sending_does_not_keep_the_turn() {
        let work = async {
            let (socket, mut peer) = pair();
            let mut room = vec![0; 32 << 10];
            let mut turns = Vec::new();
            poll_fn(|_| {
                let mut read = 0;
                loop {
                    // Refill the socket before each read, so that the task always finds input.
                    while peer.write(&[b'x'; 4096]).is_ok() {}
                    match socket.poll_read(&mut room) {
                        Poll::Ready(count) => read += count.expect("read"),
                        Poll::Pending => break,
                    }
                    assert!(read <= 512 << 10, "{read} bytes in one turn");
                }
                turns.push(read);
                if turns.len() < 20 { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            let longest = turns.iter().max().expect("turns");
            assert!(*longest >= 128 << 10, "reads in bulk stay possible: {turns:?}");
        };
        Reactor::run(WorkerOptions::default(), work).expect("a loop");
    }
}
