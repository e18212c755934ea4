//! Redirects mail for a mailbox that has become an alias. The mail goes to all members of the alias as a new message.
//! The new message is stored before the old one is finished, so that a crash loses no mail.
use crate::fault_log::{CommonFault, LOG_TARGET};
use crate::message::Message;
use crate::message::envelope::{EnvelopeRecipient, Fact, MessageEnvelope, RecipientFate};
use crate::message::fetch::{Fetched, store_from_reserve};
use crate::message::recipients::{RecipientGroup, RecipientList};
use crate::qmgr::{DsnEvent, MessageId, OperatorCommand};
use crate::routing::NextHop;
use crate::worker::RelayWorker;
use mailrun_net::clock;
use mailrun_spool::Stored;
use std::rc::Rc;
use std::sync::Arc;

/// Maximum number of messages that are redirected at the same time. The limit saves memory, because each of these
/// messages is in memory as a whole.
const MAX_CONCURRENT: usize = 16;

pub(crate) struct Redirect {
    pub(crate) id: MessageId,
    /// Position of the recipient in the envelope of the original message.
    pub(crate) recipient: u16,
    pub(crate) members: Vec<(Box<str>, NextHop)>,
    pub(crate) is_held: bool,
    /// A DSN that is never sent, and only keeps the original message in the spool while the DSN is pending. When the
    /// new message is stored, `redirect` removes the DSN from the queue.
    pub(crate) dsn: DsnEvent,
}

pub(crate) async fn redirect_all(worker: &Rc<RelayWorker>, mut all: Vec<Redirect>) {
    while !all.is_empty() {
        let some = all.split_off(all.len().saturating_sub(MAX_CONCURRENT));
        futures_util::future::join_all(some.into_iter().map(|one| redirect(worker, one))).await;
    }
}

async fn redirect(worker: &Rc<RelayWorker>, redirect: Redirect) {
    let Redirect { id, recipient, members, is_held, dsn } = redirect;
    let DsnEvent::Settled { pending, fates, .. } = dsn else { return };
    let message = match worker.fetch(id).await {
        Fetched::Whole(message) => message,
        Fetched::EnvelopeOnly(_, error) | Fetched::Unreadable(error) => {
            tracing::error!(target: LOG_TARGET, %id, %error, "a message cannot be read from the spool and is held");
            let actions = worker.queue.borrow_mut().dsn_failed(pending, &fates);
            return worker.apply_actions(actions, None);
        }
    };
    let Some((message, groups)) = with_members(worker, &message, recipient, members) else { return };
    let Some(stored) = store(worker, id, &message).await else { return };
    tracing::info!(target: LOG_TARGET, %id, to = %stored.id(), members = groups.len(),
        "a recipient is now an alias; its mail goes to the members"
    );
    worker.enqueue(&stored, &message, groups);
    // If an operator holds the old message, hold the new message as well, because it takes over the recipient.
    if is_held {
        let id = MessageId(stored.id().0);
        let actions = worker.queue.borrow_mut().apply_command(OperatorCommand::Hold, id, clock::now());
        if let Some(actions) = actions {
            worker.apply_actions(actions, None);
        }
    }
    // Finish the old recipient only after the new message is stored, so that a crash in between loses no mail.
    let mut actions = worker.queue.borrow_mut().dsn_stored(pending);
    if !actions.done {
        actions.facts.insert(0, Fact::Settled { recipients: vec![recipient], fate: RecipientFate::Delivered });
    }
    worker.apply_actions(actions, None);
}

/// Returns a copy of the message, addressed to the members of the alias, and the members grouped by next hop. The
/// members inherit the NOTIFY parameter of the recipient that they replace.
fn with_members(
    worker: &RelayWorker,
    message: &Message,
    recipient: u16,
    members: Vec<(Box<str>, NextHop)>,
) -> Option<(Message, Vec<RecipientGroup>)> {
    let replaced = message.envelope.recipients.get(usize::from(recipient))?;
    let mut list = RecipientList::default();
    for (address, next_hop) in members {
        let member = EnvelopeRecipient { address: address.as_bytes().to_vec(), ..replaced.clone() };
        list.add(&worker.config().router, member, next_hop);
    }
    let (recipients, groups) = list.into_parts();
    let envelope = MessageEnvelope { recipients, ..(*message.envelope).clone() };
    Some((Message { envelope: Arc::new(envelope), ..message.clone() }, groups))
}

/// Stores the new message. If the spool is full, waits for room. Returns `None` if the spool has failed. In that case,
/// the relay finds the original message again at its next start.
async fn store(worker: &RelayWorker, id: MessageId, message: &Message) -> Option<Stored> {
    let stored = store_from_reserve(&worker.context.spool, message.to_spool().ok()?).await;
    let log = |error: &mailrun_spool::Error| {
        if worker.context.fault_log.is_first(CommonFault::StoreForAlias, clock::now()) {
            tracing::error!(target: LOG_TARGET, %id, %error, "a message for the members of an alias could not be stored");
        }
    };
    stored.inspect_err(log).ok()
}
