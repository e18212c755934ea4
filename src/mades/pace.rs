//! When the next message is to be created: at once where the loop is closed, at its time where it is open; and when no
//! more are.
use super::options::MadesOptions;
use crate::load::pacing::Schedule;
use std::time::Duration;

/// How many messages, until when, and when each is due.
#[derive(Debug)]
pub(super) struct Pace {
    messages: u64,
    until: Option<Duration>,
    is_stopped: bool,
    schedule: Option<Schedule>,
    given: u64,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Create a message, whose latencies count from then.
    Create(Duration),
    /// Wait until then.
    Wait(Duration),
    /// There is no more to create.
    Nothing,
}

impl Pace {
    pub(super) fn new(options: &MadesOptions, now: Duration) -> Self {
        let schedule = |offer| Schedule::new(options.arrival, offer, now, 0, 1, options.seed);
        Self {
            messages: options.messages.unwrap_or(u64::MAX),
            until: options.limit().map(|limit| now + limit),
            is_stopped: false,
            schedule: options.offer.clone().map(schedule),
            given: 0,
        }
    }

    /// What is to be done now, if there is room for a message.
    pub(super) fn next(&self, now: Duration) -> Next {
        if self.is_over(now) {
            return Next::Nothing;
        }
        match self.schedule.as_ref().map(Schedule::due) {
            None => Next::Create(now),
            Some(due) if due > now => Next::Wait(due),
            Some(due) => Next::Create(due),
        }
    }

    /// A message was created.
    pub(super) fn advance(&mut self) {
        self.given += 1;
        if let Some(schedule) = &mut self.schedule {
            schedule.advance();
        }
    }

    /// No message will be created any more.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.is_stopped || self.given >= self.messages || self.until.is_some_and(|until| now >= until)
    }

    /// No more messages from now on.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Whether messages have times at which they are due.
    pub(super) fn is_open_loop(&self) -> bool {
        self.schedule.is_some()
    }
}
