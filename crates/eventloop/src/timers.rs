//! The timers of a worker: one timerfd for all of them, to the microsecond, set only if an earlier one comes.
use crate::clock;
use crate::reactor::Reactor;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Key of a timer: the time at which it is due, and a number of its own.
type TimerKey = (Duration, u64);

/// All timers of a worker.
pub(crate) struct Timers {
    timerfd: OwnedFd,
    /// The task that each wakes.
    tasks: RefCell<BTreeMap<TimerKey, usize>>,
    /// Time that the timerfd is set to.
    armed_for: Cell<Option<Duration>>,
    next_number: Cell<u64>,
}

impl Timers {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timerfd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { timerfd, tasks: RefCell::default(), armed_for: Cell::default(), next_number: Cell::default() })
    }

    /// Descriptor to watch: it becomes readable, edge by edge, when a timer is due.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.timerfd.as_fd()
    }

    fn set(&self, at: Duration, task: usize) -> TimerKey {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        self.tasks.borrow_mut().insert((at, number), task);
        (at, number)
    }

    fn cancel(&self, key: TimerKey) {
        self.tasks.borrow_mut().remove(&key);
    }

    /// Sets the timerfd so that the loop wakes for the earliest timer.
    pub(crate) fn arm(&self) -> io::Result<()> {
        let Some(first) = self.tasks.borrow().first_key_value().map(|((at, _), _)| *at) else { return Ok(()) };
        if self.armed_for.get().is_some_and(|at| at <= first) {
            return Ok(());
        }
        // A time of zero would disarm it.
        let at = first.max(Duration::from_nanos(1));
        let at = Timespec { tv_sec: at.as_secs() as i64, tv_nsec: i64::from(at.subsec_nanos()) as _ };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        rustix::time::timerfd_settime(&self.timerfd, TimerfdTimerFlags::ABSTIME, &once)?;
        self.armed_for.set(Some(first));
        Ok(())
    }

    /// Returns the tasks that are due after the timerfd has fired.
    pub(crate) fn fire(&self) -> Vec<usize> {
        self.armed_for.set(None);
        let mut tasks = self.tasks.borrow_mut();
        let later = tasks.split_off(&(clock::now() + Duration::from_nanos(1), 0));
        std::mem::replace(&mut *tasks, later).into_values().collect()
    }
}

/// A timer that gets its deadline at each poll and is set again only when it fires: a deadline that moves with every
/// message costs nothing. It belongs to the task that polls it.
#[derive(Default)]
pub struct Timer(Option<ArmedTimer>);

struct ArmedTimer {
    key: TimerKey,
    reactor: Rc<Reactor>,
}

impl Timer {
    /// Ready once `deadline` has passed; never without one. The task is polled again then. `now` is a time read since
    /// the task was last polled.
    pub fn poll_due(&mut self, deadline: Option<Duration>, now: Duration) -> Poll<()> {
        let Some(deadline) = deadline else { return Poll::Pending };
        if self.0.as_ref().is_some_and(|ArmedTimer { key: (at, _), .. }| now < *at && *at <= deadline) {
            return Poll::Pending;
        }
        if now >= deadline {
            return Poll::Ready(());
        }
        self.arm(deadline);
        Poll::Pending
    }

    fn arm(&mut self, deadline: Duration) {
        let reactor = self.0.take().map_or_else(Reactor::current, |armed| armed.cancel());
        let key = reactor.timers.set(deadline, reactor.current_task());
        self.0 = Some(ArmedTimer { key, reactor });
    }

    /// Runs `work` until `deadline`; `None` if it has not ended by then.
    pub async fn timeout_at<T>(&mut self, deadline: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.poll_due(Some(deadline), clock::now()).map(|()| None),
        })
        .await
    }
}

impl ArmedTimer {
    fn cancel(self) -> Rc<Reactor> {
        self.reactor.timers.cancel(self.key);
        self.reactor
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.take().map(ArmedTimer::cancel);
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Timer").field(&self.0.as_ref().map(|armed| armed.key.0)).finish()
    }
}

/// Sleeps until that time of [`clock::now`], to the microsecond. Only on a worker's thread.
pub async fn sleep_until(deadline: Duration) {
    let mut timer = Timer::default();
    poll_fn(|_| timer.poll_due(Some(deadline), clock::now())).await;
}

/// Sleeps for that long. Only on a worker's thread.
pub async fn sleep(time: Duration) {
    sleep_until(clock::now() + time).await;
}
