//! All timers of a worker share one timerfd. It is precise to a microsecond, and is set again only if a timer is due
//! earlier than the time to which it is set.
use crate::clock;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

/// Key of a timer: its time, and a number that distinguishes timers with the same time.
pub(crate) type TimerKey = (Duration, u64);

pub(crate) struct Timers {
    timerfd: OwnedFd,
    tasks: RefCell<BTreeMap<TimerKey, usize>>,
    /// Time to which the timerfd is set. `None` before the first timer, and after the timerfd has
    /// fired.
    armed_for: Cell<Option<Duration>>,
    /// Time at which timers last fired. All timers that were due by then have fired.
    fired_until: Cell<Duration>,
    next_number: Cell<u64>,
}

impl Timers {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timerfd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self {
            timerfd,
            tasks: RefCell::default(),
            armed_for: Cell::default(),
            fired_until: Cell::default(),
            next_number: Cell::default(),
        })
    }

    /// Returns the descriptor that becomes readable when a timer is due. It must be registered as edge-triggered,
    /// because it is never read.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.timerfd.as_fd()
    }

    pub(crate) fn set(&self, at: Duration, task: usize) -> TimerKey {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        self.tasks.borrow_mut().insert((at, number), task);
        (at, number)
    }

    pub(crate) fn cancel(&self, key: TimerKey) {
        self.tasks.borrow_mut().remove(&key);
    }

    /// Sets the timerfd to the earliest timer, so that it wakes the loop.
    pub(crate) fn arm(&self) -> io::Result<()> {
        let Some(first) = self.tasks.borrow().first_key_value().map(|((at, _), _)| *at) else { return Ok(()) };
        if self.armed_for.get().is_some_and(|at| at <= first) {
            return Ok(());
        }
        // A time of zero would disarm the timerfd, so use at least one nanosecond.
        let at = first.max(Duration::from_nanos(1));
        let at = Timespec { tv_sec: at.as_secs() as i64, tv_nsec: i64::from(at.subsec_nanos()) as _ };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        rustix::time::timerfd_settime(&self.timerfd, TimerfdTimerFlags::ABSTIME, &once)?;
        self.armed_for.set(Some(first));
        Ok(())
    }

    /// Returns true if the timer has fired, so that its task must set it again. Also returns true for a pending timer
    /// that was set for a time before the last call of `fire`. Setting such a timer again does no harm.
    pub(crate) fn has_fired(&self, key: TimerKey) -> bool {
        key.0 <= self.fired_until.get()
    }

    /// Returns the tasks whose timers are due. Must be called after the timerfd has fired.
    pub(crate) fn fire(&self) -> Vec<usize> {
        let now = clock::now();
        self.armed_for.set(None);
        self.fired_until.set(now);
        let mut tasks = self.tasks.borrow_mut();
        let later = tasks.split_off(&(now + Duration::from_nanos(1), 0));
        std::mem::replace(&mut *tasks, later).into_values().collect()
    }
}
