//! Decides when the next message is created, and when creation ends. A closed loop creates a
//! message at once, and an open loop creates it at its scheduled time.
use super::options::MadesOptions;
use super::shape_schedule::ShapeSchedule;
use mailrun_schedule::pacing::ArrivalSchedule;
use std::rc::Rc;
use std::time::Duration;

/// A load of market documents (`--shape`) ends at its time limit. If a message was due before the limit, the bench may
/// still create it for this long afterwards.
const GRACE: Duration = Duration::from_secs(1);
/// In a load at a rate, messages that were due in this last part of the load do not count as missed if the sender has
/// created all earlier messages. The load may have ended before the sender woke up to create the last messages.
const LAST_MOMENTS: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct LoadPacer {
    messages: u64,
    deadline: Option<Duration>,
    stopped_at: Option<Duration>,
    schedule: Option<LoadSchedule>,
    created: u64,
    /// A copy of the schedule that advances with the clock, even if the sender is late. With it, the pacer counts in
    /// `due` how many messages have become due.
    watched: Option<LoadSchedule>,
    due: u64,
}

#[derive(Debug)]
enum LoadSchedule {
    Rate(Box<ArrivalSchedule>),
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

    /// Returns how long the bench may still create the next message after the load has ended at the time `until`. The
    /// result is zero, except for a market document (`--shape`) that was due before the end.
    fn grace(&self, until: Duration) -> Duration {
        if matches!(self, Self::Market { .. }) && self.due() < until { GRACE } else { Duration::ZERO }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacerAction {
    /// The caller must create a message now, and measure the message's latencies from the time in this variant.
    Create(Duration),
    Wait(Duration),
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

    /// Returns the next step: create a message, wait until a message is due, or stop. Before the caller creates a
    /// message, it must check that the limit of messages in flight allows another one.
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

    pub(super) fn advance(&mut self) {
        self.created += 1;
        if let Some(schedule) = &mut self.schedule {
            schedule.advance();
        }
    }

    pub(super) fn is_over(&self, now: Duration) -> bool {
        let is_past = |until: Duration| {
            now >= until + self.schedule.as_ref().map_or(Duration::ZERO, |schedule| schedule.grace(until))
        };
        self.stopped_at.is_some() || self.is_exhausted() || self.deadline.is_some_and(is_past)
    }

    /// Returns true if the load has a time limit, or has already ended.
    pub(super) fn is_limited(&self, now: Duration) -> bool {
        self.deadline.is_some() || self.is_over(now)
    }

    /// Ends the load early. Messages that would have been due after `now` do not count as missed, unless the run was
    /// given up.
    pub(super) fn stop(&mut self, now: Duration) {
        self.stopped_at.get_or_insert(now);
    }

    pub(super) fn stopped_at(&self) -> Option<Duration> {
        self.stopped_at
    }

    /// Returns the number of messages that have become due. In a closed loop, every created message counts as due.
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

    /// Returns the number of messages of an open loop that were due before the end of the load but were not created.
    /// The load ends at its deadline or when it is stopped. If the bench gave up the run, messages that were due after
    /// that and before the deadline also count as missed. Call this last, because it uses up the schedule.
    pub(super) fn missed(&mut self, is_given_up: bool) -> u64 {
        let Some(next) = &mut self.schedule else { return 0 };
        let stopped_at = self.stopped_at.filter(|_| !is_given_up);
        let remaining = self.messages - self.created;
        let Some(ended) = self.deadline.into_iter().chain(stopped_at).min() else { return remaining };
        if next.due() >= ended.saturating_sub(LAST_MOMENTS) && matches!(next, LoadSchedule::Rate(_)) {
            return 0;
        }
        let mut missed_count = 0;
        while missed_count < remaining && next.due() < ended {
            next.advance();
            missed_count += 1;
        }
        missed_count
    }

    /// Returns the time at which the offered load ended. If all messages were created, an open loop ends when one more
    /// message would have been due, and a closed loop ends with the last answer. Otherwise the load ends at its
    /// deadline or when it is stopped, but a closed loop does not end before its last answer.
    pub(super) fn offered_until(&self, last_created: Duration, last_heard: Duration) -> Option<Duration> {
        let end = self.deadline.into_iter().chain(self.stopped_at).min();
        match &self.schedule {
            Some(schedule) if self.is_exhausted() => {
                Some(last_created.max(schedule.due().min(end.unwrap_or(Duration::MAX))))
            }
            Some(_) => end,
            None if self.is_exhausted() => Some(last_heard),
            None => end.map(|end| end.max(last_heard)),
        }
    }

    fn is_exhausted(&self) -> bool {
        self.created >= self.messages
    }

    pub(super) fn is_open_loop(&self) -> bool {
        self.schedule.is_some()
    }
}
