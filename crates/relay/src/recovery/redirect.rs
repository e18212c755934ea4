//! Redirects mail that waits for a mailbox which has become an alias since: it goes to all the alias's targets as a new
//! message, which is stored before the old one is done.
use crate::log_target::LOG_TARGET;
use crate::message::Message;
use crate::message::envelope::{EnvelopeRecipient, Fact, MessageEnvelope, RecipientFate};
use crate::qmgr::{Actions, DsnEvent, MessageId, MessageSelector, OperatorCommand};
use crate::routing::NextHop;
use crate::worker::{Fetched, RecipientGroup, RelayWorker};
use net::clock;
use spool::{NewMessage, Stored};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Messages that are redirected at a time: each is in memory meanwhile.
const MAX_CONCURRENT: usize = 16;
/// Before a message that the spool has no room for is stored again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A recipient of a message, and those who take its place.
pub(crate) struct Redirect {
    pub(crate) id: MessageId,
    /// Its number in the envelope.
    pub(crate) recipient: u16,
    pub(crate) members: Vec<(Box<str>, NextHop)>,
    pub(crate) is_held: bool,
    /// Keeps the message from being done with before the other one is stored.
    pub(crate) dsn: DsnEvent,
}

/// Redirects them, some at a time.
pub(crate) async fn redirect_all(office: &Rc<RelayWorker>, mut all: Vec<Redirect>) {
    while !all.is_empty() {
        let some = all.split_off(all.len().saturating_sub(MAX_CONCURRENT));
        futures_util::future::join_all(some.into_iter().map(|one| redirect(office, one))).await;
    }
}

async fn redirect(office: &Rc<RelayWorker>, redirect: Redirect) {
    let Redirect { id, recipient, members, is_held, dsn: notice } = redirect;
    let DsnEvent::Settled { pending: ticket, fates } = notice else { return };
    let letter = match office.fetch(id).await {
        Fetched::Whole(letter) => letter,
        Fetched::EnvelopeOnly(_, error) | Fetched::Unreadable(error) => {
            tracing::error!(target: LOG_TARGET, %id, %error, "a message cannot be read from the spool and is held");
            let effects = office.queue.borrow_mut().dsn_failed(ticket, &fates);
            return office.apply_actions(effects, None);
        }
    };
    let Some((letter, errands)) = with_members(&letter, recipient, members) else { return };
    let Some(stored) = store(office, id, &letter).await else { return };
    tracing::info!(target: LOG_TARGET, %id, to = %stored.id(), members = errands.len(),
        "a recipient is now an alias; its mail goes to the members"
    );
    office.enqueue(&stored, &letter, errands);
    if is_held {
        hold(office, MessageId(stored.id().0));
    }
    let mut effects = office.queue.borrow_mut().dsn_stored(ticket);
    if !effects.done {
        effects.facts.insert(0, Fact::Settled { recipients: vec![recipient], fate: RecipientFate::Delivered });
    }
    office.apply_actions(effects, None);
}

/// The message with the members as recipients, which inherit the sender's NOTIFY, and their hops.
fn with_members(
    letter: &Message,
    recipient: u16,
    members: Vec<(Box<str>, NextHop)>,
) -> Option<(Message, Vec<RecipientGroup>)> {
    let replaced = letter.envelope.recipients.get(usize::from(recipient))?;
    let mut recipients = Vec::new();
    let mut errands = Vec::new();
    for (number, (address, hop)) in (0_u16..).zip(members) {
        recipients.push(EnvelopeRecipient { address: address.as_bytes().to_vec(), ..replaced.clone() });
        errands.push(RecipientGroup { next_hop: hop, recipients: vec![number] });
    }
    let envelope = MessageEnvelope { recipients, ..(*letter.envelope).clone() };
    Some((Message { envelope: Arc::new(envelope), ..letter.clone() }, errands))
}

/// Stores it, as soon as there is room; `None` if the spool has failed, and the next start finds the message again.
async fn store(office: &RelayWorker, id: MessageId, letter: &Message) -> Option<Stored> {
    let envelope = letter.envelope.encode().ok()?;
    let received_ns = u64::try_from(letter.received.as_nanos()).unwrap_or(u64::MAX);
    loop {
        let draft = NewMessage { received_ns, envelope: envelope.clone(), body: Arc::clone(&letter.body) };
        match office.context.spool.store_from_reserve(draft).await {
            Ok(stored) => return Some(stored),
            Err(spool::Error::Full) => net::sleep(RETRY_INTERVAL).await,
            Err(error) => {
                tracing::error!(target: LOG_TARGET, %id, %error, "a message for the members of an alias could not be stored");
                return None;
            }
        }
    }
}

fn hold(office: &Rc<RelayWorker>, id: MessageId) {
    let mut all: Vec<Actions> = Vec::new();
    office.queue.borrow_mut().apply_command(
        OperatorCommand::Hold,
        MessageSelector::Message(id),
        clock::now(),
        |effects| all.push(effects),
    );
    all.into_iter().for_each(|effects| office.apply_actions(effects, None));
}
