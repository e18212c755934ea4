//! Sleeping to the microsecond: tokio's timers tick in milliseconds, which at open loop would be the latency.
use net::clock;
use rustix::fd::OwnedFd;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::io;
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// A kernel timer.
pub(super) struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    /// Makes one; within a runtime.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(deprecated, reason = "its successor is unsafe for descriptors that may be closed; this one is owned")]
        let registered = AsyncFd::new(timer)?;
        Ok(Self(registered))
    }

    /// Sleeps until that time of the monotonic clock; by the runtime's coarser timer where the kernel's fails.
    pub(super) async fn sleep_until(&self, due: Duration) {
        while let Some(left) = due.checked_sub(clock::now()).filter(|left| !left.is_zero()) {
            if self.wait(due).await.is_err() {
                tokio::time::sleep(left).await;
            }
        }
    }

    async fn wait(&self, due: Duration) -> io::Result<()> {
        let at = Timespec { tv_sec: due.as_secs() as i64, tv_nsec: i64::from(due.subsec_nanos()) as _ };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        rustix::time::timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::ABSTIME, &once)?;
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}
