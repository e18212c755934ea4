//! Counters of a relay since it started. The code that handles an event increments its counter, and
//! any thread can read all counters.
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(super) struct RelayCounter(AtomicU64);

impl RelayCounter {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct RelayCounters {
    pub(super) sessions: RelayCounter,
    pub(super) accepted: RelayCounter,
    pub(super) accepted_recipients: RelayCounter,
    pub(super) accepted_bytes: RelayCounter,
    pub(super) full: RelayCounter,
    /// Messages and recipients that the relay answered with 452, because too much mail was in memory.
    pub(super) crowded: RelayCounter,
    /// Messages that were rejected after their data for a reason other than a lack of room.
    pub(super) refused: RelayCounter,
    /// Sessions that the relay ended because the client spoke another protocol, or sent too many
    /// errors or too many commands without mail.
    pub(super) hung_up: RelayCounter,
    /// Recipients whose message was accepted by a next hop, stored in a Maildir, or discarded.
    pub(super) delivered: RelayCounter,
    /// Attempts that failed temporarily, counted separately for each recipient.
    pub(super) deferred: RelayCounter,
    pub(super) failed: RelayCounter,
    pub(super) expired: RelayCounter,
    pub(super) notices: RelayCounter,
    pub(super) converted: RelayCounter,
    pub(super) connections: RelayCounter,
    pub(super) unreachable: RelayCounter,
    pub(super) recovered: RelayCounter,
    pub(super) logins: RelayCounter,
    pub(super) logins_failed: RelayCounter,
    /// Logins that the relay refused without checking them, because too many had failed before or
    /// too many others were being checked.
    pub(super) logins_refused: RelayCounter,
    pub(super) login_locks: RelayCounter,
}

impl RelayCounters {
    pub(super) fn rows(&self) -> [(&'static str, &'static str, u64); 21] {
        [
            ("sessions", "connections accepted", self.sessions.value()),
            ("accepted", "messages answered 250", self.accepted.value()),
            ("accepted_recipients", "recipients of messages answered 250", self.accepted_recipients.value()),
            ("accepted_bytes", "bytes of messages answered 250", self.accepted_bytes.value()),
            ("full", "messages answered 452 because the spool was full", self.full.value()),
            ("crowded", "times 452 was answered because too much mail came in at once", self.crowded.value()),
            ("refused", "messages rejected at their end for other reasons", self.refused.value()),
            (
                "hung_up",
                "sessions ended because of another protocol, errors, or commands without mail",
                self.hung_up.value(),
            ),
            ("delivered", "recipients accepted by a next hop or delivered here", self.delivered.value()),
            ("deferred", "deferrals of recipients", self.deferred.value()),
            ("failed", "recipients rejected permanently", self.failed.value()),
            ("expired", "recipients that expired", self.expired.value()),
            ("notices", "notifications written to senders", self.notices.value()),
            ("converted", "messages delivered with their 8-bit parts encoded", self.converted.value()),
            ("connections", "connections to next hops", self.connections.value()),
            ("unreachable", "connections to next hops that failed", self.unreachable.value()),
            ("recovered", "messages found in the spool at the start", self.recovered.value()),
            ("logins", "successful logins", self.logins.value()),
            ("logins_failed", "logins with a wrong password or proof", self.logins_failed.value()),
            (
                "logins_refused",
                "logins rejected unchecked: too many had failed (421), or were being checked (454)",
                self.logins_refused.value(),
            ),
            ("login_locks", "times that an address or a user was locked out", self.login_locks.value()),
        ]
    }
}
