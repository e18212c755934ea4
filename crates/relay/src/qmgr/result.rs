//! Updates the queue after delivery attempts, and when messages become too old. Recipients are then
//! finished, deferred or expired.
use std::sync::Arc;
use std::time::Duration;

use super::entry::{
    EntryFlags, EntryIndex, EntryLinks, EntryRefusals, EntryState, ListKind, MessageId, NO_ENTRY, QueueEnd, QueueEntry,
    RecipientNumbers,
};
use super::queue::{DeliveryRequest, MailQueue, NewEntry, millis};
use crate::message::envelope::{Confirmation, DeliveryRefusal, Fact, RecipientFate};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryResult {
    /// All recipients were accepted, and no DSN is due.
    Delivered,
    All(RecipientStatus),
    /// Each recipient has a status, in the order of the request. If the list is shorter, the server
    /// did not answer for the last recipients.
    Each(Vec<RecipientStatus>),
    /// Each recipient has a status, in the order of the request. Unlike with `Each`, at least one reply was about the
    /// session, such as 421. Deferred recipients are therefore tried again at once in another session. After a second
    /// such result in a row, they wait as usual.
    SessionFault(Vec<RecipientStatus>),
    /// The session was lost after the final dot. The message may have been delivered, but is tried
    /// again, because a duplicate is better than a loss (RFC 5321 §4.5.4.1).
    Unknown,
    /// The session was lost or had to close before the final dot, so the server has not accepted the message.
    Unsent,
    /// A fault in the relay's own code ended the delivery (a panic). The message may have been delivered, but is tried
    /// again.
    Panicked(DeliveryRefusal),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecipientStatus {
    Delivered,
    Confirmed(Confirmation),
    Failed(DeliveryRefusal),
    /// The server answered with 4xx, or did not answer.
    Deferred(DeliveryRefusal),
}

/// The actions that the worker must perform for the queue, in this order: write `facts` with `Spool::note`, store the
/// DSN in the spool and then call `dsn_stored`, and call `Spool::done` if `done` is set.
#[must_use = "what is not written down is done again after a restart"]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Actions {
    pub(crate) id: MessageId,
    pub(crate) facts: Vec<Fact>,
    pub(crate) dsn: Option<DsnEvent>,
    pub(crate) done: bool,
}

/// An event about which the sender may have to be notified. The caller decides whether the sender
/// wants a DSN and can get it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DsnEvent {
    /// The message was delivered to these recipients, or has failed for good. The caller must pass `pending` to
    /// `dsn_stored` after it has stored the DSN, or at once if the sender wants none.
    Settled {
        pending: PendingDsn,
        fates: Vec<(u16, RecipientFate)>,
        /// Unix time, in seconds, of the delivery attempt that decided the recipients' fate. `None` if they expired
        /// between two attempts, or if their fate was decided before a restart.
        attempted_unix_s: Option<u64>,
    },
    /// These recipients have waited so long that a delay notice is due. Each is listed with the reason for the delay.
    /// The caller must call `delay_dsn_stored` when the DSN is stored, or if the sender wants no DSN. Otherwise, the
    /// notice is due again after a restart.
    Delayed { recipients: Vec<(u16, Option<Arc<DeliveryRefusal>>)>, expires_unix_s: u64 },
}

#[must_use = "a pending DSN that does not come back keeps its message in the spool"]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PendingDsn {
    entry: EntryIndex,
    pub(crate) id: MessageId,
}

/// Tells whether deferred recipients are tried again at once, or after the usual wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextTry {
    Now,
    Scheduled,
}

/// If this many connections in a row have returned a message unsent, the message is deferred, as after a failed
/// attempt. Without a limit, a message that makes servers end their sessions would stay at the head of its list
/// forever.
const MAX_UNSENT_TRIES: u8 = 3;

impl<M: Clone> MailQueue<M> {
    pub(crate) fn finish_delivery(
        &mut self,
        request: DeliveryRequest<M>,
        result: DeliveryResult,
        now: Duration,
    ) -> Actions {
        let DeliveryRequest { entry: at, destination, message, .. } = request;
        let now_ms = millis(now);
        let actions = match result {
            DeliveryResult::Unsent => self.requeue_unsent(at, message, now_ms),
            DeliveryResult::Delivered => {
                self.mark_reachable(at);
                self.settle_all(at, RecipientFate::Delivered)
            }
            DeliveryResult::All(status) => {
                self.mark_reachable(at);
                let statuses = vec![status; self.entries[at].recipients.len()];
                self.apply_statuses(at, statuses, NextTry::Scheduled, now_ms)
            }
            DeliveryResult::Each(statuses) => {
                self.mark_reachable(at);
                self.apply_statuses(at, statuses, NextTry::Scheduled, now_ms)
            }
            DeliveryResult::SessionFault(statuses) => {
                self.count_failed_session(at);
                let entry = &mut self.entries[at];
                // Try again at once after a first session fault, but wait after a second one in a row. Otherwise, a
                // server that always fails would get the message again and again without a pause.
                let next_try = if entry.unsent_tries == 0 { NextTry::Now } else { NextTry::Scheduled };
                entry.unsent_tries = u8::from(next_try == NextTry::Now);
                self.apply_statuses(at, statuses, next_try, now_ms)
            }
            DeliveryResult::Unknown => self.apply_statuses(at, Vec::new(), NextTry::Scheduled, now_ms),
            DeliveryResult::Panicked(refusal) => {
                let statuses = vec![RecipientStatus::Deferred(refusal); self.entries[at].recipients.len()];
                self.apply_statuses(at, statuses, NextTry::Scheduled, now_ms)
            }
        };
        self.update_lists(destination);
        actions
    }

    /// Records that the destination has answered, so its earlier failures no longer count.
    fn mark_reachable(&mut self, at: EntryIndex) {
        self.entries[at].unsent_tries = 0;
        let destination = self.entries[at].destination;
        let destination = self.destination(destination);
        (destination.failures, destination.failed_sessions) = (0, 0);
    }

    fn count_failed_session(&mut self, at: EntryIndex) {
        let destination = self.entries[at].destination;
        let failed_sessions = &mut self.destination(destination).failed_sessions;
        *failed_sessions = failed_sessions.saturating_add(1);
    }

    fn requeue_unsent(&mut self, at: EntryIndex, message: M, now_ms: u64) -> Actions {
        let entry = &mut self.entries[at];
        entry.unsent_tries = entry.unsent_tries.saturating_add(1);
        let is_to_stay = !entry.flags.remove_requested && !entry.flags.hold_requested && entry.expires_ms > now_ms;
        let id = entry.id;
        let times = entry.unsent_tries;
        self.count_failed_session(at);
        if times >= MAX_UNSENT_TRIES || !is_to_stay {
            self.entries[at].unsent_tries = 0;
            let refusal = DeliveryRefusal::new(0, None, "sessions end before the message is sent", "");
            let statuses = vec![RecipientStatus::Deferred(refusal); self.entries[at].recipients.len()];
            return self.apply_statuses(at, statuses, NextTry::Scheduled, now_ms);
        }
        self.leave_state(at);
        self.entries[at].message = Some(message);
        self.make_ready(at, QueueEnd::Front);
        Actions { id, facts: Vec::new(), dsn: None, done: false }
    }

    /// Finishes recipients with a final status, and defers all others, including recipients without a status. If the
    /// entry has expired, its deferred recipients are finished as well.
    fn apply_statuses(
        &mut self,
        at: EntryIndex,
        statuses: Vec<RecipientStatus>,
        next_try: NextTry,
        now_ms: u64,
    ) -> Actions {
        if self.entries[at].flags.remove_requested {
            return self.settle_all(at, RecipientFate::Removed);
        }
        let numbers = self.entries[at].recipients.to_vec();
        let no_answer =
            || RecipientStatus::Deferred(DeliveryRefusal::new(0, None, "the session ended without an answer", ""));
        let statuses = statuses.into_iter().chain(std::iter::repeat_with(no_answer));
        let mut fates = Vec::new();
        let mut waiting = Vec::new();
        for (number, status) in numbers.into_iter().zip(statuses) {
            match status {
                RecipientStatus::Delivered => fates.push((number, RecipientFate::Delivered)),
                RecipientStatus::Confirmed(how) => fates.push((number, RecipientFate::Confirmed(how))),
                RecipientStatus::Failed(refusal) => fates.push((number, RecipientFate::Failed(refusal))),
                RecipientStatus::Deferred(refusal) => waiting.push((number, refusal)),
            }
        }
        if self.entries[at].expires_ms <= now_ms {
            let expired = waiting.drain(..).map(|(number, refusal)| (number, RecipientFate::Expired(Some(refusal))));
            fates.extend(expired);
        }
        if waiting.is_empty() {
            let attempted_unix_s = Some(self.unix_s(now_ms));
            return self.settle(at, fates, attempted_unix_s);
        }
        self.defer_recipients(at, fates, waiting, next_try, now_ms)
    }

    /// Defers the recipients in `waiting`, and records the fates of all other recipients.
    fn defer_recipients(
        &mut self,
        at: EntryIndex,
        fates: Vec<(u16, RecipientFate)>,
        waiting: Vec<(u16, DeliveryRefusal)>,
        next_try: NextTry,
        now_ms: u64,
    ) -> Actions {
        self.leave_state(at);
        self.drop_message(at);
        let id = self.entries[at].id;
        let destination = self.entries[at].destination;
        let numbers: Vec<u16> = waiting.iter().map(|(number, _)| *number).collect();
        let refusals = self.share_refusals(destination, waiting);
        let entry = &mut self.entries[at];
        entry.recipients = RecipientNumbers::new(&numbers);
        entry.refusals = refusals;
        entry.attempts = entry.attempts.saturating_add(u32::from(next_try == NextTry::Scheduled));
        let attempts = entry.attempts;
        let is_held = std::mem::take(&mut entry.flags.hold_requested);
        // Derive the random part of the wait from message and destination, so that entries of one
        // message that fail together are retried at different times.
        let subject = id.0 ^ u64::from(destination.0).rotate_left(32);
        let due_ms = match next_try {
            NextTry::Now => now_ms,
            NextTry::Scheduled => {
                now_ms.saturating_add(millis(self.options.schedule.backoff.delay(self.options.seed, subject, attempts)))
            }
        };
        if is_held {
            self.enter_state(at, EntryState::Held);
        } else {
            self.defer(at, due_ms);
        }
        let mut facts = facts_of(&fates);
        facts.extend(self.entries[at].deferred_facts(self.unix_s(due_ms)));
        let fates = needing_dsn(fates);
        let dsn = (!fates.is_empty()).then(|| {
            let part = self.split_settled(at, &fates);
            let attempted_unix_s = Some(self.unix_s(now_ms));
            DsnEvent::Settled { pending: PendingDsn { entry: part, id }, fates, attempted_unix_s }
        });
        Actions { id, facts, dsn, done: false }
    }

    /// Moves finished recipients to an entry of their own, which waits for their DSN. The remaining recipients of the
    /// entry wait for their next attempt.
    fn split_settled(&mut self, at: EntryIndex, fates: &[(u16, RecipientFate)]) -> EntryIndex {
        let whole = &self.entries[at];
        let part = QueueEntry {
            links: [EntryLinks { previous: NO_ENTRY, next: NO_ENTRY }; 4],
            slots: [0; 2],
            destination: whole.destination,
            id: whole.id,
            recipients: numbers_of(fates),
            message: None,
            message_bytes: whole.message_bytes,
            attempts: whole.attempts,
            refusals: EntryRefusals::default(),
            received_unix_s: whole.received_unix_s,
            due_ms: 0,
            age_check_ms: 0,
            expires_ms: whole.expires_ms,
            state: EntryState::AwaitingDsn,
            flags: EntryFlags { delay_dsn_stored: true, ..EntryFlags::default() },
            unsent_tries: 0,
        };
        let part = self.entries.insert(part);
        self.link(part);
        self.enter_state(part, EntryState::AwaitingDsn);
        part
    }

    /// Records this fate for all recipients of the entry, and removes the entry. Nobody gets a DSN about it.
    pub(super) fn settle_all(&mut self, at: EntryIndex, fate: RecipientFate) -> Actions {
        let id = self.entries[at].id;
        let is_last = self.messages.get(&id) == Some(&at) && self.entries.next(at, ListKind::Message) == NO_ENTRY;
        // If this is the message's last entry, the spool removes the whole message. The fate of the recipients then
        // need not be recorded. Most messages have a single entry, so usually no list is allocated.
        let facts = if is_last {
            Vec::new()
        } else {
            vec![Fact::Settled { recipients: self.entries[at].recipients.to_vec(), fate }]
        };
        let done = self.remove_entry(at);
        Actions { id, facts, dsn: None, done }
    }

    fn settle(&mut self, at: EntryIndex, fates: Vec<(u16, RecipientFate)>, attempted_unix_s: Option<u64>) -> Actions {
        let id = self.entries[at].id;
        let facts = facts_of(&fates);
        let fates = needing_dsn(fates);
        if fates.is_empty() {
            let done = self.remove_entry(at);
            return Actions { id, facts: if done { Vec::new() } else { facts }, dsn: None, done };
        }
        self.leave_state(at);
        self.drop_message(at);
        self.cancel_age_check(at);
        self.entries[at].recipients = numbers_of(&fates);
        self.enter_state(at, EntryState::AwaitingDsn);
        Actions {
            id,
            facts,
            dsn: Some(DsnEvent::Settled { pending: PendingDsn { entry: at, id }, fates, attempted_unix_s }),
            done: false,
        }
    }

    /// Removes the entry of recipients whose DSN is now in the spool, or who need no DSN.
    pub(crate) fn dsn_stored(&mut self, pending: PendingDsn) -> Actions {
        let PendingDsn { entry: at, id } = pending;
        let recipients = self.entries[at].recipients.to_vec();
        let done = self.remove_entry(at);
        let facts = if done { Vec::new() } else { vec![Fact::DsnStored { recipients }] };
        Actions { id, facts, dsn: None, done }
    }

    /// Handles recipients about whom nobody can be notified, for example because the envelope is unreadable. Recipients
    /// to whom delivery has failed are held and do not expire, until an operator releases or removes them. Recipients
    /// who got the message are finished.
    pub(crate) fn dsn_failed(&mut self, pending: PendingDsn, fates: &[(u16, RecipientFate)]) -> Actions {
        let numbers = |has_failed: bool| -> Vec<u16> {
            fates.iter().filter(|(_, fate)| fate.is_failure() == has_failed).map(|(number, _)| *number).collect()
        };
        let failed = numbers(true);
        let delivered = numbers(false);
        if failed.is_empty() {
            return self.dsn_stored(pending);
        }
        let PendingDsn { entry: at, id } = pending;
        self.leave_state(at);
        self.entries[at].recipients = RecipientNumbers::new(&failed);
        self.enter_state(at, EntryState::Held);
        let facts = if delivered.is_empty() { Vec::new() } else { vec![Fact::DsnStored { recipients: delivered }] };
        Actions { id, facts, dsn: None, done: false }
    }

    /// Restores recipients whose delivery ended before a restart, but whose DSN may not be stored yet
    /// (`RecipientProgress::is_dsn_due`). Their entry can have any destination, because nothing is sent for it.
    pub(crate) fn restore_pending_dsn(&mut self, arrival: NewEntry<M>, fates: Vec<(u16, RecipientFate)>) -> DsnEvent {
        let id = arrival.id;
        let destination = arrival.destination;
        self.add_destination(destination);
        let at = self.create_entry(NewEntry { recipients: numbers_of(&fates), message: None, ..arrival }, true);
        self.cancel_age_check(at);
        self.enter_state(at, EntryState::AwaitingDsn);
        DsnEvent::Settled { pending: PendingDsn { entry: at, id }, fates, attempted_unix_s: None }
    }

    pub(super) fn check_age(&mut self, at: EntryIndex, now_ms: u64) -> Option<Actions> {
        let entry = &self.entries[at];
        let age_check_ms = entry.age_check_ms;
        let expires_ms = entry.expires_ms;
        let is_late = !entry.flags.delay_dsn_stored;
        if age_check_ms > now_ms {
            self.schedule_age_check(at, age_check_ms);
            return None;
        }
        if expires_ms <= now_ms {
            // Do not expire an entry while it is being delivered, because `finish_delivery` will check its age again.
            return if entry.state == EntryState::InFlight { None } else { Some(self.expire(at)) };
        }
        self.entries[at].flags.delay_dsn_stored = true;
        self.schedule_age_check(at, expires_ms);
        (is_late && !self.entries[at].flags.remove_requested).then(|| self.report_delay(at))
    }

    fn report_delay(&self, at: EntryIndex) -> Actions {
        let entry = &self.entries[at];
        let recipients = self.reasons(at).map(|(number, reason)| (number, reason.cloned())).collect();
        let dsn = DsnEvent::Delayed { recipients, expires_unix_s: self.unix_s(entry.expires_ms) };
        Actions { id: entry.id, facts: Vec::new(), dsn: Some(dsn), done: false }
    }

    /// Returns the actions that record in the spool that a delay notice is stored or unwanted. Without this record, the
    /// notice would be due again after a restart. Returns `None` if the message has left the queue, because the record
    /// is then useless.
    pub(crate) fn delay_dsn_stored(&self, id: MessageId, recipients: Vec<u16>) -> Option<Actions> {
        let facts = vec![Fact::DelayDsnStored { recipients }];
        self.messages.contains_key(&id).then_some(Actions { id, facts, dsn: None, done: false })
    }

    fn expire(&mut self, at: EntryIndex) -> Actions {
        let expired = self.reasons(at).map(|(number, reason)| {
            let refusal = reason.map(|refusal| (**refusal).clone());
            (number, RecipientFate::Expired(refusal))
        });
        let fates = expired.collect();
        self.settle(at, fates, None)
    }

    /// Returns why each recipient of an entry has not been delivered: the failure to reach the
    /// destination, or else the recipient's own last refusal.
    fn reasons(&self, at: EntryIndex) -> impl Iterator<Item = (u16, Option<&Arc<DeliveryRefusal>>)> {
        let entry = &self.entries[at];
        let destination = &self.destinations[entry.destination.0 as usize];
        let of_destination = destination.backoff_reason.as_ref().filter(|_| destination.failures > 0);
        entry.recipients.iter().map(move |number| (number, of_destination.or(entry.refusals.get(number))))
    }
}

impl<M> QueueEntry<M> {
    /// Returns facts for the spool about deferred recipients: the time of the next attempt, and the last refusal. One
    /// fact lists all recipients with the same refusal. Recipients that have not been refused get no fact.
    pub(super) fn deferred_facts(&self, next_unix_s: u64) -> impl Iterator<Item = Fact> {
        let attempts = self.attempts;
        let refused = self.recipients.iter().filter_map(|number| Some((number, self.refusals.get(number)?)));
        grouped(refused).into_iter().map(move |(refusal, recipients)| Fact::Deferred {
            recipients,
            attempts,
            next_unix_s,
            refusal: (**refusal).clone(),
        })
    }
}

fn numbers_of(fates: &[(u16, RecipientFate)]) -> RecipientNumbers {
    let numbers: Vec<u16> = fates.iter().map(|(number, _)| *number).collect();
    RecipientNumbers::new(&numbers)
}

fn needing_dsn(mut fates: Vec<(u16, RecipientFate)>) -> Vec<(u16, RecipientFate)> {
    fates.retain(|(_, fate)| fate.needs_dsn());
    fates
}

fn facts_of(fates: &[(u16, RecipientFate)]) -> Vec<Fact> {
    let groups = grouped(fates.iter().map(|(number, fate)| (*number, fate)));
    groups.into_iter().map(|(fate, recipients)| Fact::Settled { recipients, fate: fate.clone() }).collect()
}

/// Groups recipient numbers by a value, such as their refusal. The groups are in the order of their first recipients.
fn grouped<T: PartialEq>(pairs: impl IntoIterator<Item = (u16, T)>) -> Vec<(T, Vec<u16>)> {
    let mut groups: Vec<(T, Vec<u16>)> = Vec::new();
    for (number, value) in pairs {
        match groups.iter_mut().find(|(group, _)| *group == value) {
            Some((_, numbers)) => numbers.push(number),
            None => groups.push((value, vec![number])),
        }
    }
    groups
}
