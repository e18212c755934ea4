//! The time at which the next message is to be created: at once at closed loop, at its scheduled time at open loop; and
//! the end of creation.
use super::options::MadesOptions;
use super::shape_schedule::ShapeSchedule;
use mailrun_workload::pacing::ArrivalSchedule;
use std::rc::Rc;
use std::time::Duration;

/// Time after the end in which a message of a market that was due before it may still be created.
const GRACE: Duration = Duration::from_secs(1);
/// End of a load at a rate in which messages that were due and not created are no evidence that the sender was behind.
const LAST_MOMENTS: Duration = Duration::from_millis(100);

/// The number of messages, the end of creation, and the time at which each message is due.
#[derive(Debug)]
pub(super) struct LoadPacer {
    messages: u64,
    deadline: Option<Duration>,
    stopped_at: Option<Duration>,
    schedule: Option<LoadSchedule>,
    created: u64,
    /// The same schedule, which does not wait for the sender, and the messages of it that have become due.
    watched: Option<LoadSchedule>,
    due: u64,
}

/// The times of an open loop.
#[derive(Debug)]
enum LoadSchedule {
    /// At a rate.
    Rate(Box<ArrivalSchedule>),
    /// Those of a market: when the run began, and the number of the next message.
    Market { schedule: Rc<ShapeSchedule>, began: Duration, next: u64 },
}

impl LoadSchedule {
    fn new(options: &MadesOptions, now: Duration, market: Option<Rc<ShapeSchedule>>) -> Option<Self> {
        if let Some(schedule) = market {
            return Some(Self::Market { schedule, began: now, next: 0 });
        }
        let offer = options.offer.clone()?;
        let schedule = ArrivalSchedule::new(options.arrival, offer, now, 0, 1, options.seed);
        Some(Self::Rate(Box::new(schedule)))
    }

    /// Time at which the next message is due.
    fn due(&self) -> Duration {
        match self {
            Self::Rate(schedule) => schedule.due(),
            Self::Market { schedule, began, next } => began.saturating_add(schedule.due(*next)),
        }
    }

    fn advance(&mut self) {
        match self {
            Self::Rate(schedule) => schedule.advance(),
            Self::Market { next, .. } => *next += 1,
        }
    }

    /// Time after `until` in which the next message may still be created.
    fn grace(&self, until: Duration) -> Duration {
        if matches!(self, Self::Market { .. }) && self.due() < until { GRACE } else { Duration::ZERO }
    }
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacerAction {
    /// Create a message; its latencies count from that time.
    Create(Duration),
    /// Wait until that time.
    Wait(Duration),
    /// Create no more messages.
    Stop,
}

impl LoadPacer {
    pub(super) fn new(options: &MadesOptions, now: Duration, market: Option<Rc<ShapeSchedule>>) -> Self {
        Self {
            messages: options.messages.unwrap_or(u64::MAX),
            deadline: options.limit().map(|limit| now + limit),
            stopped_at: None,
            watched: LoadSchedule::new(options, now, market.clone()),
            due: 0,
            schedule: LoadSchedule::new(options, now, market),
            created: 0,
        }
    }

    /// The next step, if there is room for a message.
    pub(super) fn next(&self, now: Duration) -> PacerAction {
        if self.is_over(now) {
            return PacerAction::Stop;
        }
        match self.schedule.as_ref().map(LoadSchedule::due) {
            None => PacerAction::Create(now),
            Some(due) if due > now => PacerAction::Wait(due),
            Some(due) => PacerAction::Create(due),
        }
    }

    /// Records that a message was created.
    pub(super) fn advance(&mut self) {
        self.created += 1;
        if let Some(schedule) = &mut self.schedule {
            schedule.advance();
        }
    }

    /// Reports whether no message will be created any more.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        let is_past = |until: Duration| {
            now >= until + self.schedule.as_ref().map_or(Duration::ZERO, |schedule| schedule.grace(until))
        };
        self.stopped_at.is_some() || self.is_exhausted() || self.deadline.is_some_and(is_past)
    }

    /// Reports whether the creation of messages ends at a certain time, or has ended.
    pub(super) fn is_limited(&self, now: Duration) -> bool {
        self.deadline.is_some() || self.is_over(now)
    }

    /// Stops the creation of messages from now on.
    pub(super) fn stop(&mut self, now: Duration) {
        self.stopped_at.get_or_insert(now);
    }

    /// Time at which the creation of messages was stopped, if it was.
    pub(super) fn stopped_at(&self) -> Option<Duration> {
        self.stopped_at
    }

    /// Messages that have become due, at closed loop those that were created.
    pub(super) fn due(&mut self, now: Duration) -> u64 {
        let until = self.deadline.into_iter().chain(self.stopped_at).fold(now, Duration::min);
        if let Some(schedule) = &mut self.watched {
            while self.due < self.messages && schedule.due() < until {
                schedule.advance();
                self.due += 1;
            }
        }
        self.due.max(self.created)
    }

    /// Messages that were due at open loop and not created: until the end of the load, or until it was stopped on purpose. The
    /// schedule is at its end then.
    pub(super) fn missed(&mut self, is_given_up: bool) -> u64 {
        let Some(next) = &mut self.schedule else { return 0 };
        let stopped_at = self.stopped_at.filter(|_| !is_given_up);
        let left = self.messages - self.created;
        let Some(ended) = self.deadline.into_iter().chain(stopped_at).min() else { return left };
        // The load may end before the sender wakes for the last message.
        if next.due() >= ended.saturating_sub(LAST_MOMENTS) && matches!(next, LoadSchedule::Rate(_)) {
            return 0;
        }
        let mut missed = 0;
        while missed < left && next.due() < ended {
            next.advance();
            missed += 1;
        }
        missed
    }

    /// Time at which the offer ended, given the times of the last created message and the last answer. Open loop: when
    /// no more messages were due, or the last was taken up. Closed loop: when the last attempt ended.
    pub(super) fn offered_until(&self, last_created: Duration, last_heard: Duration) -> Option<Duration> {
        let ended = self.deadline.into_iter().chain(self.stopped_at).min();
        match &self.schedule {
            Some(schedule) if self.is_exhausted() => {
                Some(last_created.max(schedule.due().min(ended.unwrap_or(Duration::MAX))))
            }
            Some(_) => ended,
            None if self.is_exhausted() => Some(last_heard),
            None => ended.map(|ended| ended.max(last_heard)),
        }
    }

    fn is_exhausted(&self) -> bool {
        self.created >= self.messages
    }

    /// Reports whether messages have scheduled times.
    pub(super) fn is_open_loop(&self) -> bool {
        self.schedule.is_some()
    }
}
