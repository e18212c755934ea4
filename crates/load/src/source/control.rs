//! Lets other code, such as a worker of a Locust master, control a running load: set the number of users, end the load,
//! and take the counts so far. A user is a session or, in an open loop, a share of the rate.
//!
//! The collector passes on the counts of each worker four times per second, so the control costs nothing per message.
use super::plan::LoadPlan;
use mailrun_lock::lock;
use mailrun_measurement::errors::Errors;
use mailrun_measurement::tally::PhaseTimes;
use mailrun_measurement::{Latencies, SourceTally};
use mailrun_net::clock;
use mailrun_process::interrupt::Interrupt;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Number of low bits of a message number, with which each host counts its own messages. The higher bits identify the
/// host, so that hosts that share a load never use the same number.
pub(crate) const NUMBERS_LOG2: u32 = 30;

#[derive(Clone, Debug, Default)]
pub struct LoadCounts {
    pub connections: u64,
    pub created: u64,
    pub accepted: u64,
    pub rejected: u64,
    pub failed: u64,
    pub bytes: u64,
    /// Times from when a message was created (closed loop) or due (open loop) until it was accepted.
    pub accepted_times: Latencies,
    /// Times from when a message was created (closed loop) or due (open loop) until its last byte
    /// was handed to the kernel.
    pub sent_times: Latencies,
    /// Open loop only: times from when a session took a message up until it was accepted.
    pub service_times: Latencies,
    /// Times from when a message was created (closed loop) or due (open loop) until it was rejected or failed.
    pub ended_times: Latencies,
    pub phases: PhaseTimes,
    pub errors: Errors,
    /// For each second of Unix time, the number of messages that ended, and how many of them were not accepted. A
    /// message may count up to a quarter of a second late, because workers report four times per second.
    pub ended_by_second: BTreeMap<u64, (u64, u64)>,
}

impl LoadCounts {
    fn add(&mut self, tally: &SourceTally) {
        self.connections += tally.connections;
        self.created += tally.created;
        self.accepted += tally.accepted;
        self.rejected += tally.rejected;
        self.failed += tally.failed;
        self.bytes += tally.bytes_accepted;
        self.accepted_times.merge(&tally.accepted_latency);
        self.sent_times.merge(&tally.sent_latency);
        self.service_times.merge(&tally.accepted_service);
        self.ended_times.merge(&tally.ended_latency);
        for (ours, theirs) in self.phases.0.iter_mut().zip(&tally.phases.0) {
            ours.merge(theirs);
        }
        self.errors.merge(&tally.errors);
        let unaccepted_count = tally.rejected + tally.failed;
        if tally.accepted + unaccepted_count > 0 {
            let second = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let counts = self.ended_by_second.entry(second).or_default();
            *counts = (counts.0 + tally.accepted + unaccepted_count, counts.1 + unaccepted_count);
        }
    }

    pub fn ended(&self) -> u64 {
        self.accepted + self.rejected + self.failed
    }
}

#[derive(Debug)]
pub struct LoadControl {
    users: Mutex<UserTarget>,
    /// Copy of the number of users, so that sessions can read it for each message without a lock.
    sessions: AtomicU32,
    first_message: u64,
    interrupt: Interrupt,
    /// Time at which the load stops waiting for messages in transit, or `None` until `drain` is called.
    drain_deadline: Mutex<Option<Duration>>,
    counts: Mutex<LoadCounts>,
    plan: OnceLock<Weak<LoadPlan>>,
    next_message: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UserTarget {
    pub(super) users: u32,
    pub(super) since: Duration,
}

impl LoadControl {
    /// Creates a control for a load that begins with `users` users. The load's messages are numbered from
    /// `first_message`, so that several hosts can use different numbers.
    pub fn new(users: u32, first_message: u64, interrupt: Interrupt) -> Self {
        Self {
            users: Mutex::new(UserTarget { users, since: clock::now() }),
            sessions: AtomicU32::new(users),
            first_message,
            interrupt,
            drain_deadline: Mutex::default(),
            counts: Mutex::default(),
            plan: OnceLock::new(),
            next_message: AtomicU64::new(first_message),
        }
    }

    /// Changes the number of users of the running load. In a closed loop, more sessions start, or surplus sessions end
    /// after their current message. In an open loop, the rate changes.
    pub fn set_users(&self, users: u32) {
        let mut target = lock(&self.users);
        if target.users != users {
            *target = UserTarget { users, since: clock::now() };
        }
        self.sessions.store(users, Ordering::Relaxed);
    }

    /// Ends the load, so that no more messages begin. Messages in transit have at most `limit` to
    /// finish. Further calls can only shorten this time.
    pub fn drain(&self, limit: Duration) {
        let until = clock::now() + limit;
        let mut deadline = lock(&self.drain_deadline);
        *deadline = Some(deadline.map_or(until, |earlier| earlier.min(until)));
        if let Some(plan) = self.plan() {
            plan.stop();
        }
    }

    pub fn take_counts(&self) -> LoadCounts {
        std::mem::take(&mut *lock(&self.counts))
    }

    pub fn next_message(&self) -> u64 {
        if let Some(plan) = self.plan() {
            self.next_message.fetch_max(plan.next_number(), Ordering::Relaxed);
        }
        self.next_message.load(Ordering::Relaxed)
    }

    pub(super) fn sessions(&self) -> u32 {
        self.sessions.load(Ordering::Relaxed)
    }

    pub(super) fn users(&self) -> UserTarget {
        *lock(&self.users)
    }

    pub(super) fn first_message(&self) -> u64 {
        self.first_message
    }

    /// Returns the message numbers that this load may use. The range ends before the first number of the next host, so
    /// that two hosts never use the same number.
    pub(super) fn message_numbers(&self) -> Range<u64> {
        let next_host = (self.first_message >> NUMBERS_LOG2) + 1;
        self.first_message..next_host << NUMBERS_LOG2
    }

    pub(super) fn interrupt(&self) -> Interrupt {
        self.interrupt
    }

    pub(super) fn drain_deadline(&self) -> Option<Duration> {
        *lock(&self.drain_deadline)
    }

    /// Gives this control the plan of a load that is about to begin, so that [`Self::drain`] can stop the load. If
    /// `drain` was called earlier, the load stops at once.
    pub(super) fn attach(&self, plan: &Arc<LoadPlan>) {
        let _ = self.plan.set(Arc::downgrade(plan));
        if self.drain_deadline().is_some() {
            plan.stop();
        }
    }

    pub(super) fn add(&self, tally: &SourceTally) {
        lock(&self.counts).add(tally);
        self.next_message();
    }

    fn plan(&self) -> Option<Arc<LoadPlan>> {
        self.plan.get().and_then(Weak::upgrade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_can_be_shortened_but_not_prolonged() {
        let control = LoadControl::new(1, 0, Interrupt::watch().unwrap());
        assert_eq!(control.drain_deadline(), None);
        control.drain(Duration::from_secs(60));
        let first = control.drain_deadline();
        control.drain(Duration::from_secs(600));
        assert_eq!(control.drain_deadline(), first);
        control.drain(Duration::ZERO);
        assert!(control.drain_deadline() < first);
    }

    #[test]
    fn message_numbers_end_where_those_of_the_next_host_begin() {
        let numbers = |first| LoadControl::new(1, first, Interrupt::watch().unwrap()).message_numbers();
        let host = 1 << NUMBERS_LOG2;
        assert_eq!(numbers(0), 0..host);
        assert_eq!(numbers(host), host..2 * host);
        assert_eq!(numbers(3 * host + 7), 3 * host + 7..4 * host, "after an earlier load of the same host");
    }
}
