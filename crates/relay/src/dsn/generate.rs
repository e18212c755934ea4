//! Sends DSNs about the outcome or the delay of a message, and decides who is notified of what. A DSN is stored in the
//! spool like any other mail before the original message is removed.
use crate::config::{Config, DsnTarget, LoggedIn};
use crate::delivery::maildir;
use crate::dsn::facts::{DsnAction, DsnFacts, DsnRecipient};
use crate::dsn::report::{Dsn, compose};
use crate::fault_log::LOG_TARGET;
use crate::message::Message;
use crate::message::envelope::{
    Confirmation, DeliveryRefusal, EnvelopeRecipient, MessageEnvelope, RecipientFate, WithProtocol,
};
use crate::message::fetch::{Fetched, store_from_reserve};
use crate::message::recipients::RecipientGroup;
use crate::qmgr::{DsnEvent, MessageId};
use crate::routing::{Access, ResolvedRoute};
use crate::worker::{RelayWorker, after_panic};
use jiff::Timestamp;
use mailrun_net::clock;
use mailrun_process::planned_panic::planned_panic;
use mailrun_smtp::Path;
use mailrun_smtp::command::BodyType;
use mailrun_smtp::dsn::Notify;
use mailrun_smtp::reply::EnhancedStatusCode;
use mailrun_spool::Id;
use std::ops::Deref;
use std::path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Maximum size, in bytes, of a failed message that its DSN returns whole. Of a larger message, the DSN returns only
/// the header. The value is the default of Postfix's `bounce_size_limit`.
const MAX_RETURNED_BYTES: usize = 50_000;
/// Longest pause before the relay tries again to store a DSN in a Maildir.
const MAX_MAILDIR_PAUSE: Duration = Duration::from_secs(30);

const DSN_PANIC_TEXT: &str = "writing its notification failed because of a bug in mailrun";

/// Sends the DSNs about an event, such as a failed delivery, in a separate task. If too many tasks are writing DSNs,
/// the event waits for its turn. To save memory, `message` is then dropped, and read from the spool again later.
pub(crate) fn send(worker: &Rc<RelayWorker>, id: MessageId, event: DsnEvent, message: Option<Message>) {
    let Some(event) = worker.dsn_tasks.admit(id, event) else { return };
    let worker = Rc::clone(worker);
    let task = DsnTask::new(&worker);
    mailrun_net::worker::spawn_local(async move {
        generate(&worker, id, event, message).await;
        while let Some((id, event)) = worker.dsn_tasks.next() {
            generate(&worker, id, event, None).await;
        }
        drop(task);
    });
}

async fn generate(worker: &Rc<RelayWorker>, id: MessageId, event: DsnEvent, message: Option<Message>) {
    let event = DsnGuard::new(worker, id, event);
    planned_panic("notice");
    let is_late = matches!(*event, DsnEvent::Delayed { .. });
    if is_late && !worker.is_queued(id) {
        // The message was delivered while the DSN waited for its turn, so nobody needs a notice of its delay.
        return;
    }
    let fetched = match message {
        Some(message) => Fetched::Whole(message),
        None => worker.fetch(id).await,
    };
    let message = match fetched {
        Fetched::Whole(message) => message,
        Fetched::EnvelopeOnly(message, error) => {
            tracing::error!(target: LOG_TARGET, %id, %error, "a message cannot be read from the spool; its sender is notified without it");
            message
        }
        Fetched::Unreadable(error) => return give_up(worker, id, event.release(), &error),
    };
    let sent = send_all(worker, id, &event, &message).await;
    match (event.release(), sent) {
        (DsnEvent::Settled { pending, .. }, Ok(())) => worker.dsn_stored(pending),
        (DsnEvent::Delayed { recipients, .. }, Ok(())) => {
            let numbers = recipients.into_iter().map(|(number, _)| number).collect();
            let actions = worker.queue.borrow().delay_dsn_stored(id, numbers);
            if let Some(actions) = actions {
                worker.apply_actions(actions, None);
            }
        }
        (event, Err(sent)) => send_later(worker, id, event, sent),
    }
}

/// After a pause, tries again to send those DSNs about the event that could not be stored before. Meanwhile, the
/// message takes no memory, and other DSNs get their turn.
fn send_later(worker: &Rc<RelayWorker>, id: MessageId, mut event: DsnEvent, sent: usize) {
    if let (DsnEvent::Settled { fates, .. }, 1..) = (&mut event, sent) {
        // `send_all` has sent the DSN about failures, but could not store the DSN about successes. Remove the failed
        // recipients from the event, so that the next attempt does not report the failures again.
        fates.retain(|(_, fate)| !fate.is_failure());
    }
    let worker = Rc::clone(worker);
    let pause = worker.config().retry.backoff.initial.min(MAX_MAILDIR_PAUSE);
    mailrun_net::worker::spawn_local(async move {
        mailrun_net::sleep(pause).await;
        send(&worker, id, event, None);
    });
}

/// Logs that the sender cannot be notified. If delivery has ended for the recipients, also tells the queue, which then
/// holds or finishes them. The queue need not be told of a missing delay notice, because delivery goes on without it.
fn give_up(worker: &Rc<RelayWorker>, id: MessageId, event: DsnEvent, error: &str) {
    let DsnEvent::Settled { pending, fates, .. } = event else {
        return tracing::error!(target: LOG_TARGET, %id, %error, "the sender cannot be notified that the message is delayed");
    };
    if fates.iter().any(|(_, fate)| fate.is_failure()) {
        tracing::error!(target: LOG_TARGET, %id, %error,
            "the sender cannot be notified that the message was not delivered: the message is held; `mailrun queue \
             release` retries, `remove` deletes it"
        );
    } else {
        tracing::error!(target: LOG_TARGET, %id, %error, "the sender cannot be notified that the message was delivered");
    }
    worker.dsn_failed(pending, &fates);
}

/// Guard of a task that writes DSNs. The task counts as running until this guard is dropped, which also happens if the
/// task panics.
struct DsnTask {
    worker: Rc<RelayWorker>,
}

impl DsnTask {
    fn new(worker: &Rc<RelayWorker>) -> Self {
        worker.dsn_tasks.begin();
        Self { worker: Rc::clone(worker) }
    }
}

impl Drop for DsnTask {
    fn drop(&mut self) {
        self.worker.dsn_tasks.end();
        // If this task has panicked, it can no longer start the next waiting DSN. Start this DSN in a new task.
        after_panic(&self.worker, move |worker| {
            if let Some((id, event)) = worker.dsn_tasks.next() {
                send(worker, id, event, None);
            }
        });
    }
}

/// Guard of an event while a task writes the DSNs about it. The original message stays in the spool until the DSNs are
/// stored. If the task panics, dropping this guard makes the queue hold the failed recipients.
struct DsnGuard {
    worker: Rc<RelayWorker>,
    id: MessageId,
    event: Option<DsnEvent>,
}

impl DsnGuard {
    fn new(worker: &Rc<RelayWorker>, id: MessageId, event: DsnEvent) -> Self {
        Self { worker: Rc::clone(worker), id, event: Some(event) }
    }

    fn release(mut self) -> DsnEvent {
        self.event.take().expect("it is released once, and by value")
    }
}

impl Deref for DsnGuard {
    type Target = DsnEvent;

    fn deref(&self) -> &DsnEvent {
        self.event.as_ref().expect("it is released once, and by value")
    }
}

impl Drop for DsnGuard {
    fn drop(&mut self) {
        let Some(event) = self.event.take() else { return };
        let id = self.id;
        after_panic(&self.worker, move |worker| give_up(worker, id, event, DSN_PANIC_TEXT));
    }
}

/// Client name by which the relay recognises its own DSNs to the postmaster. If such a DSN cannot be delivered, the
/// postmaster gets no DSN about that. Unlike the recipient, the client name is never changed by an alias.
const TO_POSTMASTER: &[u8] = b"postmaster";

fn is_to_postmaster(envelope: &MessageEnvelope) -> bool {
    envelope.with == WithProtocol::Local && envelope.client_name == TO_POSTMASTER
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Addressee<'c> {
    Sender,
    Other(&'c DsnTarget),
}

struct OriginalMessage<'a> {
    config: &'a Config,
    id: MessageId,
    message: &'a Message,
    now: Timestamp,
}

/// Sends the DSNs about an event, one to each addressee that the configuration names.
///
/// # Errors
/// Fails if a DSN cannot be stored in a Maildir at present. The error is the number of DSNs that were already sent, so
/// that the caller does not send them again.
async fn send_all(worker: &Rc<RelayWorker>, id: MessageId, event: &DsnEvent, message: &Message) -> Result<(), usize> {
    let config = worker.config();
    let now = timestamp(worker.unix_time(clock::now()));
    let original = OriginalMessage { config: &config, id, message, now };
    for (number, (recipients, addressee)) in original.groups(event).into_iter().enumerate() {
        if !original.send(worker, &recipients, addressee).await {
            return Err(number);
        }
    }
    Ok(())
}

impl<'a> OriginalMessage<'a> {
    /// Groups recipients by the addressee of their DSN. Recipients that need no DSN are left out.
    fn groups(&'a self, event: &'a DsnEvent) -> Vec<(Vec<DsnRecipient<'a>>, Addressee<'a>)> {
        let (fates, attempted_unix_s) = match event {
            DsnEvent::Settled { fates, attempted_unix_s, .. } => (fates, *attempted_unix_s),
            DsnEvent::Delayed { recipients, expires_unix_s } => {
                let until = timestamp(Duration::from_secs(*expires_unix_s));
                let late = recipients
                    .iter()
                    .map(|(number, refusal)| self.recipient(*number, DsnAction::Delayed { until }, refusal.as_deref()));
                return vec![(late.collect(), Addressee::Sender)];
            }
        };
        let last_attempt = attempted_unix_s.map(|unix_s| timestamp(Duration::from_secs(unix_s)));
        let of_fates = |is_failure: bool| {
            let fates = fates.iter().filter(move |(_, fate)| fate.is_failure() == is_failure);
            fates.filter_map(|(number, fate)| {
                let (action, refusal) = action_of(fate)?;
                Some(DsnRecipient { last_attempt, ..self.recipient(*number, action, refusal) })
            })
        };
        let dsn = &self.config.dsn;
        let failed: Vec<_> = of_fates(true).collect();
        let mut succeeded: Vec<_> = of_fates(false).collect();
        let envelope = &self.message.envelope;
        let login = if envelope.user.is_some() { LoggedIn::Yes } else { LoggedIn::No };
        // Do not report successful deliveries of mail from an unknown client. The client may have forged the sender
        // address, and the owner of this address would get DSNs about other people's mail.
        if !dsn.success.is_for(envelope.client, login, &self.config.networks) {
            succeeded.clear();
        }
        if envelope.sender.is_empty() {
            self.warn_of_double_bounces(&failed);
            // If the failed message was a DSN to the postmaster, send the postmaster no other DSN. It would fail, too.
            let is_again = is_to_postmaster(envelope);
            let target = dsn.double_bounces.as_ref().filter(|target| !is_again || **target != DsnTarget::Postmaster);
            return target.map(|target| (failed, Addressee::Other(target))).into_iter().collect();
        }
        match &dsn.failures {
            None => vec![([failed, succeeded].concat(), Addressee::Sender)],
            Some(target) => vec![(failed, Addressee::Other(target)), (succeeded, Addressee::Sender)],
        }
    }

    fn warn_of_double_bounces(&self, failed: &[DsnRecipient<'_>]) {
        for failed in failed {
            tracing::warn!(target: LOG_TARGET, id = %Id(self.id.0),
                to = %failed.address.escape_ascii(),
                reason = %failed.text.escape_ascii(),
                "a notification could not be delivered, and its recipient will not be notified"
            );
        }
    }

    fn recipient(&'a self, number: u16, action: DsnAction, refusal: Option<&'a DeliveryRefusal>) -> DsnRecipient<'a> {
        let recipient = &self.message.envelope.recipients[usize::from(number)];
        let own = match action {
            // A message that failed with a temporary refusal has expired, so report 5.4.7,
            // "delivery time expired" (RFC 3463 §3.5).
            DsnAction::Failed if refusal.is_none_or(|refusal| refusal.code < 500) => Some(EnhancedStatusCode(5, 4, 7)),
            _ => None,
        };
        DsnRecipient {
            address: &recipient.address,
            original: recipient.original.as_deref(),
            notify: recipient.notify,
            action,
            enhanced: own.or(refusal.and_then(|refusal| refusal.enhanced)),
            code: refusal.and_then(DeliveryRefusal::reply_code),
            text: refusal.map_or(b"", |refusal| refusal.text.as_bytes()),
            remote_mta: refusal.map(|refusal| refusal.by.as_str()).filter(|by| !by.is_empty()),
            last_attempt: None,
        }
    }

    /// Sends the addressee a DSN about those recipients whose NOTIFY asks for one, if there are any. Returns false if
    /// the DSN cannot be stored in a Maildir at present.
    async fn send(&self, worker: &Rc<RelayWorker>, recipients: &[DsnRecipient<'_>], addressee: Addressee<'_>) -> bool {
        let Some(dsn_message) = self.build(recipients, addressee) else { return true };
        if let Addressee::Other(DsnTarget::Maildir(root)) = addressee {
            return self.store_in_maildir(worker, root, dsn_message).await;
        }
        match route_dsn(worker, self.config, dsn_message, addressee) {
            Some((message, groups)) => store(worker, self.id, message, groups).await,
            None => {
                tracing::warn!(target: LOG_TARGET, id = %Id(self.id.0), "its sender cannot be notified: no route to the address");
                let other = self.config.dsn.double_bounces.as_ref().filter(|_| addressee == Addressee::Sender);
                if let Some(other) = other {
                    return Box::pin(self.send(worker, recipients, Addressee::Other(other))).await;
                }
            }
        }
        true
    }

    fn build(&self, recipients: &[DsnRecipient<'_>], addressee: Addressee<'_>) -> Option<Dsn> {
        let envelope = &self.message.envelope;
        let id = Id(self.id.0).to_string();
        let postmaster = self.config.dsn.postmaster.as_bytes();
        let is_double = envelope.sender.is_empty();
        let addressee = match addressee {
            Addressee::Other(DsnTarget::Postmaster) => postmaster,
            Addressee::Other(DsnTarget::Maildir(_)) if is_double => postmaster,
            Addressee::Sender | Addressee::Other(DsnTarget::Maildir(_)) => &envelope.sender,
        };
        let facts = DsnFacts {
            id: &id,
            host: &self.config.hostname,
            sender: &envelope.sender,
            addressee,
            envelope_id: envelope.envelope_id.as_deref(),
            returns: envelope.returns,
            smtp_utf8: envelope.smtp_utf8,
            received_at: timestamp(self.message.received),
            message: &self.message.body,
        };
        // If `is_double` is true, the failed message is itself a DSN. Each DSN has NOTIFY=NEVER, so that no other
        // server reports its failure. Ignore this value here, because the addressee for double bounces must get a
        // report.
        let mut recipients = recipients.to_vec();
        recipients.iter_mut().filter(|_| is_double).for_each(|recipient| recipient.notify = None);
        compose(&facts, &recipients, MAX_RETURNED_BYTES, self.now)
    }

    /// Delivers a DSN into a Maildir. Returns false if that is not possible at present, so that the
    /// caller tries again later.
    async fn store_in_maildir(&self, worker: &Rc<RelayWorker>, root: &Arc<path::Path>, dsn_message: Dsn) -> bool {
        let names = Arc::clone(&worker.resources.maildir_names);
        let root = Arc::clone(root);
        let deliver = move || {
            let Dsn { recipient, message, .. } = &dsn_message;
            let message = maildir::MaildirMessage { sender: b"", recipient, body: message };
            maildir::deliver(&root, &names, clock::wall(), &message).map(|_| ())
        };
        let failure = match worker.resources.maildir_pool.run(deliver).await {
            Some(Ok(())) => {
                worker.sink.counters.notices.add(1);
                return true;
            }
            Some(Err(failure)) => failure.to_string(),
            None => "its delivery failed because of a bug in mailrun".to_owned(),
        };
        tracing::error!(target: LOG_TARGET, id = %self.id, %failure, "a notification cannot be stored in the Maildir; it is retried");
        false
    }
}

/// Stores a DSN in the spool. Returns only when it is stored, so that the caller keeps the original message until then.
async fn store(worker: &Rc<RelayWorker>, id: MessageId, message: Message, groups: Vec<RecipientGroup>) {
    let new_message = match message.to_spool() {
        Ok(new_message) => new_message,
        Err(error) => {
            tracing::error!(target: LOG_TARGET, id = %Id(id.0), %error, "a notification was dropped");
            return;
        }
    };
    match store_from_reserve(&worker.context.spool, new_message).await {
        Ok(stored) => {
            worker.sink.counters.notices.add(1);
            worker.enqueue(&stored, &message, groups);
        }
        Err(error) => {
            tracing::error!(target: LOG_TARGET, id = %Id(id.0), %error, "a notification could not be stored");
            // The spool has failed, so the DSN can be stored only after a restart. Never return. Otherwise, the caller
            // would remove the original message as if its sender had been notified.
            std::future::pending().await
        }
    }
}

fn action_of(fate: &RecipientFate) -> Option<(DsnAction, Option<&DeliveryRefusal>)> {
    Some(match fate {
        RecipientFate::Delivered | RecipientFate::Removed => return None,
        RecipientFate::Confirmed(Confirmation::Delivered) => (DsnAction::Delivered, None),
        RecipientFate::Confirmed(Confirmation::Relayed) => (DsnAction::Relayed, None),
        RecipientFate::Confirmed(Confirmation::Expanded) => (DsnAction::Expanded, None),
        RecipientFate::Failed(refusal) => (DsnAction::Failed, Some(refusal)),
        RecipientFate::Expired(refusal) => (DsnAction::Failed, refusal.as_ref()),
    })
}

/// Turns the DSN into a message with an envelope, and finds the next hops of its recipients.
/// Returns `None` if no route leads to the addressee.
fn route_dsn(
    worker: &RelayWorker,
    config: &Config,
    dsn_message: Dsn,
    addressee: Addressee<'_>,
) -> Option<(Message, Vec<RecipientGroup>)> {
    let null = Path::mailbox(b"").expect("the null path is a path");
    let to = Path::mailbox(&dsn_message.recipient).ok()?;
    // Route the DSN like mail of a trusted client, which may go to any domain, because the relay itself sends it.
    let members = match config.router.route(Access::Trusted, &null, &to).ok()? {
        ResolvedRoute::Direct(next_hop) => vec![(dsn_message.recipient.clone(), next_hop)],
        ResolvedRoute::Alias(members) => {
            members.into_iter().map(|(address, next_hop)| (address.as_bytes().to_vec(), next_hop)).collect()
        }
    };
    let mut recipients = Vec::new();
    let mut groups = Vec::new();
    for (number, (address, next_hop)) in members.into_iter().enumerate() {
        recipients.push(EnvelopeRecipient { address, original: None, notify: Some(Notify::NEVER) });
        groups.push(RecipientGroup { next_hop, recipients: vec![u16::try_from(number).ok()?] });
    }
    // Mark a DSN to the postmaster in its envelope. If this DSN fails, even after a restart, the relay sends the
    // postmaster no further DSN.
    let client_name = if addressee == Addressee::Sender { Vec::new() } else { TO_POSTMASTER.to_vec() };
    let envelope = MessageEnvelope {
        client_name,
        smtp_utf8: dsn_message.smtp_utf8,
        body: if dsn_message.smtp_utf8 { BodyType::EightBitMime } else { BodyType::SevenBit },
        ..MessageEnvelope::local(b"", recipients)
    };
    let received = worker.unix_time(clock::now());
    Some((Message { envelope: Arc::new(envelope), body: dsn_message.message.into(), received }, groups))
}

fn timestamp(unix: Duration) -> Timestamp {
    i64::try_from(unix.as_secs()).ok().and_then(|second| Timestamp::from_second(second).ok()).unwrap_or(Timestamp::MAX)
}
