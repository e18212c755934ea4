//! Queues the messages that a former run left in the spool, after the relay has restarted. Each message keeps its
//! progress, such as the number of attempts.
mod redirect;

use super::fault_log::LOG_TARGET;
use crate::message::envelope::{MessageEnvelope, MessageProgress, RecipientFate, RecipientProgress};
use crate::message::memory_bytes;
use crate::qmgr::{DestinationId, EntryProgress, MessageId, MessageKind, NewEntry, RecipientNumbers};
use crate::recovery::redirect::{Redirect, redirect_all};
use crate::routing::{NextHop, ResolvedRoute};
use crate::worker::RelayWorker;
use mailrun_net::clock;
use mailrun_process::planned_panic::planned_panic;
use mailrun_smtp::Path;
use mailrun_spool::{Cost, Damage, RecoveredMessage};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Number of messages that a worker queues before it lets its sessions continue.
const BATCH_MESSAGES: usize = 500;

/// Maximum number of log lines about damage for each log level. More lines would tell an operator nothing new.
const MAX_DAMAGE_LINES: usize = 200;

/// Logs each damaged place of the spool, with its position and what is lost there. The line has the level `warn`, or
/// `info` if nothing is lost or an earlier start has already logged the damage.
pub(crate) fn log_damage(damage: &[Damage], directory: &std::path::Path) {
    let is_new = |one: &&Damage| one.cost != Cost::Nothing && !one.is_known;
    let (new, other): (Vec<&Damage>, Vec<&Damage>) = damage.iter().partition(is_new);
    for one in other.iter().take(MAX_DAMAGE_LINES) {
        tracing::info!(target: LOG_TARGET, "the spool: {one}");
    }
    if other.len() > MAX_DAMAGE_LINES {
        let more = other.len() - MAX_DAMAGE_LINES;
        tracing::info!(target: LOG_TARGET, "the spool: {more} more damaged places that lose nothing or are known");
    }
    for one in new.iter().take(MAX_DAMAGE_LINES) {
        tracing::warn!(target: LOG_TARGET, "the spool: {one}");
    }
    if new.len() > MAX_DAMAGE_LINES {
        let more = new.len() - MAX_DAMAGE_LINES;
        tracing::warn!(target: LOG_TARGET, "the spool: {more} more damaged places; `mailrun spool check` names them all");
    }
    if new.iter().any(|one| one.is_alarming()) {
        let copies = directory.join("quarantine");
        tracing::warn!(target: LOG_TARGET, copies = %copies.display(), "the spool is damaged: undamaged mail is used, the rest was copied");
    }
}

/// Queues messages of the former run in batches until no message is left. All workers run this at
/// the same time, each with its own batches.
pub(crate) async fn requeue(worker: Rc<RelayWorker>) {
    let mut redirects = Vec::new();
    loop {
        let share = worker.context.take_backlog(BATCH_MESSAGES);
        if share.is_empty() {
            return redirect_all(&worker, redirects).await;
        }
        for message in share {
            match message {
                Ok(message) => requeue_catching_panic(&worker, &message, &mut redirects),
                Err(error) => tracing::error!(target: LOG_TARGET, %error, "a message of an earlier run cannot be read"),
            }
        }
        worker.drive();
        // Yield after each batch, so that sessions, deliveries and calls from other threads do not have to wait for the
        // whole recovery.
        mailrun_net::worker::yield_now().await;
    }
}

/// Queues one message of the former run. If this code panics, the message stays in the spool until the next start, and
/// the other messages are still queued.
fn requeue_catching_panic(worker: &Rc<RelayWorker>, left: &RecoveredMessage, redirects: &mut Vec<Redirect>) {
    let resumed = catch_unwind(AssertUnwindSafe(|| requeue_message(worker, left, redirects)));
    if resumed.is_err() {
        tracing::error!(target: LOG_TARGET, id = %left.id, "a bug in mailrun: the message stays in the spool until the next start");
    }
}

fn requeue_message(worker: &Rc<RelayWorker>, left: &RecoveredMessage, redirects: &mut Vec<Redirect>) {
    planned_panic("restart");
    let envelope = match MessageEnvelope::decode(&left.envelope) {
        Ok(envelope) => envelope,
        Err(error) => {
            return tracing::error!(target: LOG_TARGET, id = %left.id, %error, "its envelope cannot be read; it stays in the spool");
        }
    };
    let mut progress = MessageProgress::new(envelope.recipients.len());
    for note in &left.notes {
        if let Err(error) = progress.apply_note(note) {
            tracing::error!(target: LOG_TARGET, id = %left.id, %error, "its delivery state cannot be read: some recipients may get it \
                                                    twice");
        }
    }
    worker.context.counters.recovered.add(1);
    let queued = requeue_recipients(worker, left, &envelope, &progress, redirects);
    let owed = requeue_dsns(worker, left, &envelope, &progress);
    // If no recipient and no DSN is left, the message was finished before a crash, but the spool lost the mark that
    // said so. Mark the message as finished again.
    if queued == RequeueResult::Nothing && !owed {
        worker.context.spool.done(left.id);
    }
}

/// Recipients of a message in groups. Each group becomes an entry of the queue, or several entries if it is too large
/// for one transaction. The recipients of a group have the same destination and the same progress, but their refusals
/// may differ.
#[derive(Default)]
struct RecipientGroups(HashMap<GroupKey, (Vec<u16>, EntryProgress)>);

/// Values that all recipients of a group share: destination, number of attempts, Unix time of the next attempt in
/// seconds, whether a DSN about the delay was stored, and whether there is a refusal.
type GroupKey = (DestinationId, u32, u64, bool, bool);

impl RecipientGroups {
    fn add(&mut self, destination: DestinationId, number: u16, recipient: &RecipientProgress, held: bool) {
        let RecipientProgress { attempts, next_unix_s, delay_dsn_stored, refusal, .. } = recipient;
        let key = (destination, *attempts, *next_unix_s, *delay_dsn_stored, refusal.is_some());
        let (numbers, progress) = self.0.entry(key).or_insert_with(|| {
            let progress = EntryProgress {
                attempts: *attempts,
                next_unix_s: *next_unix_s,
                held,
                delay_dsn_stored: *delay_dsn_stored,
                refusals: Vec::new(),
            };
            (Vec::new(), progress)
        });
        numbers.push(number);
        progress.refusals.extend(refusal.clone());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RequeueResult {
    Queued,
    Nothing,
}

fn requeue_recipients(
    worker: &Rc<RelayWorker>,
    left: &RecoveredMessage,
    envelope: &MessageEnvelope,
    progress: &MessageProgress,
    redirects: &mut Vec<Redirect>,
) -> RequeueResult {
    let mut groups = RecipientGroups::default();
    let mut queued = RequeueResult::Nothing;
    let open = progress.recipients.iter().enumerate().filter(|(_, recipient)| recipient.fate.is_none());
    for (number, recipient) in open {
        queued = RequeueResult::Queued;
        let destination = match reroute(worker, envelope, number) {
            ResolvedRoute::Direct(destination) => worker.destination_id(&destination),
            ResolvedRoute::Alias(members) => {
                redirects.push(redirect_of(worker, left, envelope, number as u16, members, progress.held));
                continue;
            }
        };
        groups.add(destination, number as u16, recipient, progress.held);
    }
    let now = clock::now();
    for ((destination, ..), (numbers, progress)) in groups.0 {
        let arrival = NewEntry {
            recipients: RecipientNumbers::new(&numbers),
            progress,
            ..new_entry(left, envelope, destination)
        };
        worker.queue.borrow_mut().put(arrival, now);
    }
    queued
}

/// Prepares the redirection of a recipient whose mailbox has become an alias. The recipient stays in the queue until a
/// new message to the members of the alias is stored.
fn redirect_of(
    worker: &Rc<RelayWorker>,
    left: &RecoveredMessage,
    envelope: &MessageEnvelope,
    recipient: u16,
    members: Vec<(Box<str>, NextHop)>,
    is_held: bool,
) -> Redirect {
    // Keep the old recipient in the queue until the new message to the alias's members is stored. Use the domain
    // `invalid` as its destination, so that nothing can be sent to its address meanwhile.
    let destination = worker.destination_id(&NextHop::unroutable());
    // If `redirect` cannot read the message, it passes this fate to `dsn_failed`. `dsn_failed` holds only recipients
    // that have failed, and finishes all others. So use a failure such as `Expired`, although nothing has expired.
    let fates = vec![(recipient, RecipientFate::Expired(None))];
    let dsn = worker.queue.borrow_mut().restore_pending_dsn(new_entry(left, envelope, destination), fates);
    Redirect { id: MessageId(left.id.0), recipient, members, is_held, dsn }
}

/// Queues the DSNs that the sender may not have received yet. Returns true if there are any.
fn requeue_dsns(
    worker: &Rc<RelayWorker>,
    left: &RecoveredMessage,
    envelope: &MessageEnvelope,
    progress: &MessageProgress,
) -> bool {
    let owed = progress.recipients.iter().enumerate().filter(|(_, recipient)| recipient.is_dsn_due());
    let fates: Vec<(u16, RecipientFate)> =
        owed.filter_map(|(number, recipient)| Some((number as u16, recipient.fate.clone()?))).collect();
    if fates.is_empty() {
        return false;
    }
    // The entry only waits for its DSN, so nothing is sent to this destination. The destination only determines where
    // operators find the entry when they list the queue.
    let destination = match reroute(worker, envelope, usize::from(fates[0].0)) {
        ResolvedRoute::Direct(destination) => destination,
        ResolvedRoute::Alias(_) => NextHop::unroutable(),
    };
    let destination = worker.destination_id(&destination);
    let dsn = worker.queue.borrow_mut().restore_pending_dsn(new_entry(left, envelope, destination), fates);
    worker.send_dsn(MessageId(left.id.0), dsn);
    true
}

fn new_entry(
    left: &RecoveredMessage,
    envelope: &MessageEnvelope,
    destination: DestinationId,
) -> NewEntry<crate::message::Message> {
    NewEntry {
        id: MessageId(left.id.0),
        destination,
        recipients: RecipientNumbers::new(&[]),
        message: None,
        message_bytes: memory_bytes(left.body_bytes, envelope),
        received_unix_s: left.received_ns / 1_000_000_000,
        kind: MessageKind::of_sender(&envelope.sender),
        progress: EntryProgress::default(),
    }
}

/// Routes a recipient by the current configuration. Does not check again whether the client may send to this recipient,
/// because this was checked when the message came in.
fn reroute(worker: &RelayWorker, envelope: &MessageEnvelope, number: usize) -> ResolvedRoute {
    let sender = Path::mailbox(&envelope.sender);
    let address = Path::mailbox(&envelope.recipients[number].address);
    let routed = match (sender, address) {
        (Ok(sender), Ok(address)) => worker.config().router.reroute(&sender, &address).ok(),
        _ => None,
    };
    routed.unwrap_or_else(|| ResolvedRoute::Direct(NextHop::unroutable()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;
    use crate::message::envelope::{DeliveryRefusal, EnvelopeRecipient};
    use mailrun_spool::Id;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn a_message_is_charged_the_same_memory_after_a_restart() {
        let recipient = EnvelopeRecipient { address: b"c@d.example".to_vec(), original: None, notify: None };
        let envelope = MessageEnvelope::local(b"a@b.example", vec![recipient; 100]);
        let left = RecoveredMessage {
            id: Id(1),
            received_ns: 0,
            envelope: envelope.encode().unwrap(),
            notes: Vec::new(),
            body_bytes: 1_000,
            is_body_damaged: false,
        };
        let recovered = new_entry(&left, &envelope, DestinationId(0));
        let message =
            Message { envelope: Arc::new(envelope), body: vec![b'x'; 1_000].into(), received: Duration::ZERO };
        assert_eq!(recovered.message_bytes, message.memory_bytes());
    }

    #[test]
    fn recipients_with_different_refusals_are_retried_together_and_keep_their_own() {
        let refusal = |text| Some(DeliveryRefusal::new(450, None, text, "mx.example"));
        let deferred = |text| RecipientProgress { attempts: 1, refusal: refusal(text), ..RecipientProgress::default() };
        let mut groups = RecipientGroups::default();
        groups.add(DestinationId(0), 3, &deferred("the box is full"), false);
        groups.add(DestinationId(0), 5, &deferred("greylisted"), false);
        groups.add(DestinationId(0), 7, &RecipientProgress { attempts: 1, ..RecipientProgress::default() }, false);
        let mut all: Vec<_> = groups.0.into_values().collect();
        all.sort_by_key(|(numbers, _)| numbers[0]);
        let [(numbers, progress), (other, none)] = all.try_into().unwrap();
        assert_eq!((numbers, other), (vec![3, 5], vec![7]));
        assert_eq!(progress.refusals, [refusal("the box is full"), refusal("greylisted")].map(Option::unwrap));
        assert!(none.refusals.is_empty());
    }
}
