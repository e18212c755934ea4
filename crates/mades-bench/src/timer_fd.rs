//! A timer with a precision of microseconds. The timers of tokio are only precise to a millisecond, which is the whole
//! interval between two messages at 1,000 messages per second.
use anyhow::{Context, Result};
use mailrun_net::clock;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::unix::AsyncFd;

#[derive(Debug)]
pub(super) struct TimerFd(AsyncFd<OwnedFd>);

impl TimerFd {
    pub(super) fn new() -> Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).context("cannot create a timer")?;
        // Use `AsyncFd::new` although it is deprecated, because its replacement needs unsafe code. It was deprecated
        // for types that return a different descriptor at each call, but `OwnedFd` always returns the same descriptor.
        #[expect(deprecated)]
        Ok(Self(AsyncFd::new(timer).context("cannot create a timer")?))
    }

    pub(super) async fn sleep_until(&self, due: Duration) {
        while clock::now() < due {
            let it_value = Timespec { tv_sec: due.as_secs() as i64, tv_nsec: due.subsec_nanos().into() };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let set = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value });
            if set.is_err() {
                return;
            }
            let Ok(mut ready) = self.0.readable().await else { return };
            // The timer need not be read after it has expired. When the timer is set again, the kernel forgets the
            // expiration, so the next wait does not end too early.
            ready.clear_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_wakes_in_time_and_not_before() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let timer = TimerFd::new().unwrap();
            for _ in 0..20 {
                let due = clock::now() + Duration::from_micros(300);
                timer.sleep_until(due).await;
                assert!(clock::now() >= due);
            }
            timer.sleep_until(Duration::from_nanos(1)).await;
        });
    }
}
