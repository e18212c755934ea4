//! A timer that wakes its task, and a function with which a task sleeps.
use crate::clock;
use crate::reactor::Reactor;
use crate::timers::TimerKey;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// A timer that wakes one task. Each poll passes the current deadline, but the timer is set again only if it has fired
/// or the deadline is earlier than before. A deadline that moves further away with each message therefore costs
/// nothing. Only one task may poll a timer.
#[derive(Default)]
pub struct Timer(Option<ArmedTimer>);

struct ArmedTimer {
    key: TimerKey,
    reactor: Rc<Reactor>,
}

impl Timer {
    /// Returns `Ready` if `now` is at or after `deadline`. Otherwise the task is polled again at the deadline. Without
    /// a deadline, returns `Pending` and does not set the timer. `now` may be somewhat old, for example the time of a
    /// batch's input.
    pub fn poll_due(&mut self, deadline: Option<Duration>, now: Duration) -> Poll<()> {
        let Some(deadline) = deadline else { return Poll::Pending };
        if now >= deadline {
            return Poll::Ready(());
        }
        // If the timer has fired since the caller read `now`, set it again, or the task would sleep forever.
        if !self.0.as_ref().is_some_and(|timer| timer.key.0 <= deadline && !timer.has_fired()) {
            self.arm(deadline);
        }
        Poll::Pending
    }

    fn arm(&mut self, deadline: Duration) {
        let reactor = self.0.take().map_or_else(Reactor::current, |rule_state| rule_state.cancel());
        let key = reactor.timers.set(deadline, reactor.current_task());
        self.0 = Some(ArmedTimer { key, reactor });
    }

    /// Runs `work` until `deadline`. If `work` has not ended by then, drops it and returns `None`.
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
    fn has_fired(&self) -> bool {
        self.reactor.timers.has_fired(self.key)
    }

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
        f.debug_tuple("Timer").field(&self.0.as_ref().map(|rule_state| rule_state.key.0)).finish()
    }
}

/// Suspends the task until [`clock::now`] reaches `deadline`, precise to a microsecond. Must be called on a worker's
/// thread, because the worker's timers wake the task.
pub async fn sleep_until(deadline: Duration) {
    let mut timer = Timer::default();
    poll_fn(|_| timer.poll_due(Some(deadline), clock::now())).await;
}

/// Suspends the task for the duration `time`. Must be called on a worker's thread, because the worker's timers wake the
/// task.
pub async fn sleep(time: Duration) {
    sleep_until(clock::now() + time).await;
}

#[cfg(test)]
mod tests {
    use super::{Timer, sleep};
    use crate::clock;
    use crate::reactor::{Reactor, WorkerOptions};
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;
    use std::task::Poll;
    use std::time::Duration;

    #[test]
    fn a_timer_that_has_fired_is_set_again_by_a_task_whose_time_is_older() {
        let work = async {
            let is_done = Rc::new(Cell::new(false));
            let done = Rc::clone(&is_done);
            Reactor::current().spawn(async move {
                let read_at = clock::now();
                let mut timer = Timer::default();
                let mut polls = 0;
                poll_fn(|_| {
                    polls += 1;
                    match polls {
                        1 => timer.poll_due(Some(read_at + Duration::from_millis(5)), read_at),
                        // The timer has fired since `read_at`, so `poll_due` must set it again to wake this task.
                        2 => timer.poll_due(Some(read_at + Duration::from_millis(10)), read_at),
                        _ => Poll::Ready(()),
                    }
                })
                .await;
                done.set(true);
            });
            // Wait up to five seconds, because the machine may be busy.
            for _ in 0..1000 {
                if is_done.get() {
                    return true;
                }
                sleep(Duration::from_millis(5)).await;
            }
            false
        };
        assert!(Reactor::run(WorkerOptions::default(), work).expect("a loop"), "the task was never polled again");
    }
}
