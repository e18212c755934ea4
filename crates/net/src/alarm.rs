//! One timer a session, re-armed only when it fires: a deadline that moves with every message costs nothing. An
//! alarm belongs to one task: only its first poll after arming says whom to wake.
use crate::clock;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that is asked for a deadline each time anew.
#[derive(Debug, Default)]
pub struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    /// When `sleep` fires; no later than any deadline it was asked for since.
    armed_for: Duration,
}

impl Alarm {
    /// Ready once `deadline` has passed; never without one. The task is woken then. `now` is a time read since the
    /// task was last woken: before the timer is due it cannot have fired, so it need not be asked.
    pub fn poll_due(&mut self, cx: &mut Context<'_>, deadline: Option<Duration>, now: Duration) -> Poll<()> {
        let Some(deadline) = deadline else { return Poll::Pending };
        if self.sleep.is_none() || self.armed_for > deadline {
            self.arm(deadline);
        } else if now < self.armed_for {
            return Poll::Pending;
        }
        loop {
            let sleep = self.sleep.as_mut().expect("armed above");
            std::task::ready!(sleep.as_mut().poll(cx));
            if clock::now() >= deadline {
                self.sleep = None;
                return Poll::Ready(());
            }
            self.arm(deadline);
        }
    }

    fn arm(&mut self, deadline: Duration) {
        let at = Instant::now() + deadline.saturating_sub(clock::now());
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().reset(at),
            None => self.sleep = Some(Box::pin(sleep_until(at))),
        }
        self.armed_for = deadline;
    }

    /// Runs `work` until `deadline`; `None` when it has not ended by then.
    pub async fn limit<T>(&mut self, deadline: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.poll_due(cx, Some(deadline), clock::now()).map(|()| None),
        })
        .await
    }
}
