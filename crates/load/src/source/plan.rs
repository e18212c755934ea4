//! Hands out the message numbers and decides when the run ends. The plan is the only shared state that workers change
//! while they send, and each message costs only one atomic write to it.
use mailrun_lock::lock;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct LoadPlan {
    end: u64,
    until: Option<Duration>,
    next: AtomicU64,
    stopped: AtomicBool,
    /// True once a connection has been established. From then on, a failed connection counts as an
    /// error and does not end the run.
    connected: AtomicBool,
    /// Reason why the run could not begin, or `None` if the run has begun or may still begin.
    failure: Mutex<Option<String>>,
    /// Resource that this process lacked when a session could not connect. If only some sessions
    /// lack it, the run goes on. If all sessions lack it, the run cannot begin.
    resource_failure: Mutex<Option<String>>,
}

impl LoadPlan {
    /// Creates a plan that hands out the message numbers in `numbers` to the sessions, one after another. If `until` is
    /// given, the plan hands out no more numbers after that time on the monotonic clock.
    pub(super) fn new(numbers: Range<u64>, until: Option<Duration>) -> Self {
        Self {
            end: numbers.end,
            until,
            next: AtomicU64::new(numbers.start),
            stopped: AtomicBool::new(false),
            connected: AtomicBool::new(false),
            failure: Mutex::new(None),
            resource_failure: Mutex::new(None),
        }
    }

    pub(super) fn claim(&self, now: Duration) -> Option<u64> {
        if self.is_over(now) {
            return None;
        }
        let sequence = self.next.fetch_add(1, Ordering::Relaxed);
        (sequence < self.end).then_some(sequence)
    }

    /// Returns true if the plan hands out no more numbers, because it has handed out all of them, because the time
    /// limit is over, or because the load was stopped.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.stopped.load(Ordering::Relaxed)
            || self.until.is_some_and(|until| now >= until)
            || self.next.load(Ordering::Relaxed) >= self.end
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.end
    }

    pub(super) fn next_number(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    pub(super) fn until(&self) -> Option<Duration> {
        self.until
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn record_connected(&self) {
        if !self.connected.load(Ordering::Relaxed) {
            self.connected.store(true, Ordering::Relaxed);
        }
    }

    /// Records that a connection could not be established. If no connection was ever established, this ends the run.
    pub(super) fn record_unreachable(&self, reason: &str) {
        if !self.connected.load(Ordering::Relaxed) {
            lock(&self.failure).get_or_insert_with(|| reason.to_owned());
            self.stop();
        }
    }

    /// Records that a connection could not be established because this process lacked a resource. Other sessions may
    /// have got the resource, so the run goes on. If no session ever connects, [`Self::failure`] returns this reason.
    pub(super) fn record_resource_failure(&self, reason: &str) {
        if !self.connected.load(Ordering::Relaxed) {
            lock(&self.resource_failure).get_or_insert_with(|| reason.to_owned());
        }
    }

    /// Returns the reason why the run could not begin, or `None` if it began.
    pub(super) fn failure(&self) -> Option<String> {
        let failure = lock(&self.failure).clone();
        let is_reached = self.connected.load(Ordering::Relaxed);
        let resource_failure = || lock(&self.resource_failure).clone().filter(|_| !is_reached);
        failure.or_else(resource_failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    #[test]
    fn every_number_is_given_once_and_no_more_than_asked_for() {
        let plan = LoadPlan::new(7..10, None);
        let claimed: Vec<_> = (0..5).map(|_| plan.claim(NOW)).collect();
        assert_eq!(claimed, [Some(7), Some(8), Some(9), None, None]);
        assert!(plan.is_over(NOW));
    }

    #[test]
    fn time_and_stop_end_it() {
        let plan = LoadPlan::new(0..u64::MAX, Some(NOW * 2));
        assert!(plan.claim(NOW).is_some());
        assert_eq!(plan.claim(NOW * 2), None);
        let plan = LoadPlan::new(0..u64::MAX, None);
        plan.stop();
        assert_eq!(plan.claim(NOW), None);
    }

    #[test]
    fn only_a_first_connection_that_fails_is_hopeless() {
        let plan = LoadPlan::new(0..u64::MAX, None);
        plan.record_connected();
        plan.record_unreachable("refused");
        assert_eq!(plan.failure(), None);
        let plan = LoadPlan::new(0..u64::MAX, None);
        plan.record_unreachable("refused");
        assert_eq!(plan.failure().as_deref(), Some("refused"));
        assert!(plan.is_over(NOW));
    }

    #[test]
    fn what_one_session_lacks_is_hopeless_only_where_no_other_had_it() {
        let plan = LoadPlan::new(0..u64::MAX, None);
        plan.record_resource_failure("too many open files");
        assert!(!plan.is_over(NOW), "another session may do better");
        assert_eq!(plan.failure().as_deref(), Some("too many open files"));
        plan.record_connected();
        assert_eq!(plan.failure(), None);
    }
}
