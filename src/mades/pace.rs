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
    stopped_at: Option<Duration>,
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
            stopped_at: None,
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
        self.stopped_at.is_some() || self.is_given_out() || self.until.is_some_and(|until| now >= until)
    }

    /// No more messages from now on.
    pub(super) fn stop(&mut self, now: Duration) {
        self.stopped_at.get_or_insert(now);
    }

    /// When the offer ended, of which the last message was created, and the last answer heard, at those times. Open loop:
    /// when no more messages were due, or the last was taken up. Closed loop: when the last attempt ended.
    pub(super) fn offered_until(&self, last_created: Duration, last_heard: Duration) -> Option<Duration> {
        let ended = self.until.into_iter().chain(self.stopped_at).min();
        match &self.schedule {
            Some(schedule) if self.is_given_out() => {
                Some(last_created.max(schedule.due().min(ended.unwrap_or(Duration::MAX))))
            }
            Some(_) => ended,
            None if self.is_given_out() => Some(last_heard),
            None => ended.map(|ended| ended.max(last_heard)),
        }
    }

    fn is_given_out(&self) -> bool {
        self.given >= self.messages
    }

    /// Whether messages have times at which they are due.
    pub(super) fn is_open_loop(&self) -> bool {
        self.schedule.is_some()
    }
}
