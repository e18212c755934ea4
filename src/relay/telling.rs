//! Notices to senders: what became of a message, or that it is late, stored in the spool like any other mail before the
//! message itself is done with.
use super::bounce::{self, Action, Facts};
use super::config::Config;
use super::defect::NoticeInHand;
use super::envelope::{Confirmation, Envelope, Fate, Recipient, Refusal};
use super::letter::Letter;
use super::office::{Errand, Fetched, Office};
use super::queue::{MessageId, Notice};
use super::routing::{Routed, Standing};
use crate::planned_panic::planned_panic;
use jiff::Timestamp;
use net::clock;
use smtp::Path;
use smtp::command::BodyType;
use smtp::dsn::Notify;
use smtp::reply::Enhanced;
use spool::{Draft, Id};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A message that failed comes back whole up to this size.
const WHOLE_BYTES: usize = 50_000;
/// Before a notice that the spool had no room for is tried again.
const BREATH: Duration = Duration::from_secs(5);

/// Writes a notice and stores it; the message that it is about is told of.
pub(super) async fn tell(office: &Rc<Office>, id: MessageId, notice: Notice, letter: Option<Letter>) {
    let notice = NoticeInHand::new(office, id, notice);
    planned_panic("notice");
    let is_late = matches!(*notice, Notice::Late { .. });
    if is_late && office.queue.borrow().show(id, clock::now()).is_empty() {
        // It has been delivered while this waited for its turn.
        return;
    }
    let fetched = match letter {
        Some(letter) => Fetched::Whole(letter),
        None => office.fetch(id).await,
    };
    let letter = match fetched {
        Fetched::Whole(letter) => letter,
        Fetched::EnvelopeOnly(letter, error) => {
            tracing::error!(%id, %error, "a message cannot be read from the spool: its sender is told without it");
            letter
        }
        Fetched::Nothing(error) => return cannot_tell(office, id, notice.release(), &error),
    };
    send(office, id, &notice, &letter).await;
    if let Notice::Settled { ticket, .. } = notice.release() {
        let effects = office.queue.borrow_mut().told(ticket);
        office.carry_out(effects, None);
        office.attend();
    }
}

/// Nobody can be told, for that reason.
pub(super) fn cannot_tell(office: &Rc<Office>, id: MessageId, notice: Notice, error: &str) {
    let Notice::Settled { ticket, fates } = notice else {
        return tracing::error!(%id, %error, "the sender is not told that its message is late");
    };
    if fates.iter().any(|(_, fate)| fate.is_failure()) {
        tracing::error!(
            %id, %error,
            "the sender cannot be told that its message was not delivered: it is held; `mailrun queue release` tries it \
             again, `remove` gives it up"
        );
    } else {
        tracing::error!(%id, %error, "the sender is not told that its message was delivered");
    }
    let effects = office.queue.borrow_mut().cannot_tell(ticket, &fates);
    office.carry_out(effects, None);
    office.attend();
}

/// Sends the notice to the message's sender, unless nobody is to be told.
async fn send(office: &Rc<Office>, id: MessageId, notice: &Notice, letter: &Letter) {
    let config = office.config();
    let Some(written) = written(office, &config, id, notice, letter) else { return };
    let Some((letter, errands)) = addressed(office, &config, written) else {
        return tracing::warn!(id = %Id(id.0), "its sender cannot be told: no route leads there");
    };
    let Ok(envelope) = letter.envelope.encode() else { return };
    loop {
        let received_ns = u64::try_from(letter.received.as_nanos()).unwrap_or(u64::MAX);
        let draft = Draft { received_ns, envelope: envelope.clone(), body: Arc::clone(&letter.body) };
        // What is told is done with: a full spool has to have room for that.
        match office.setting.spool.store_from_reserve(draft).await {
            Ok(stored) => {
                office.setting.census.notices.add(1);
                return office.accept(&stored, &letter, errands);
            }
            // What is delivered meanwhile makes room.
            Err(spool::Error::Full) => net::sleep(BREATH).await,
            Err(error) => {
                tracing::error!(id = %Id(id.0), %error, "a notice could not be stored");
                // The message itself is in the spool still; after a restart its sender is told.
                return std::future::pending().await;
            }
        }
    }
}

fn written(
    office: &Office,
    config: &Config,
    id: MessageId,
    notice: &Notice,
    letter: &Letter,
) -> Option<bounce::Notice> {
    let envelope = &letter.envelope;
    let now = timestamp(office.unix(clock::now()));
    let id = Id(id.0).to_string();
    let facts = Facts {
        id: &id,
        host: &config.hostname,
        sender: &envelope.sender,
        envelope_id: envelope.envelope_id.as_deref(),
        returns: envelope.returns,
        smtp_utf8: envelope.smtp_utf8,
        arrived: timestamp(letter.received),
        message: &letter.body,
    };
    let originals: Vec<Option<Vec<u8>>> = envelope.recipients.iter().map(original).collect();
    let told: Vec<bounce::Recipient<'_>> = match notice {
        Notice::Settled { fates, .. } => fates
            .iter()
            .filter_map(|(number, fate)| {
                let (action, refusal) = action_of(fate)?;
                Some(recipient(envelope, &originals, *number, action, refusal, now))
            })
            .collect(),
        Notice::Late { recipients, refusal, expires_unix_s } => {
            let until = timestamp(Duration::from_secs(*expires_unix_s));
            let late = |number: &u16| {
                recipient(envelope, &originals, *number, Action::Delayed { until }, refusal.as_deref(), now)
            };
            recipients.iter().map(late).collect()
        }
    };
    bounce::notice(&facts, &told, WHOLE_BYTES, now)
}

/// What a fate is called in a notice, and why it is so.
fn action_of(fate: &Fate) -> Option<(Action, Option<&Refusal>)> {
    Some(match fate {
        Fate::Delivered | Fate::Removed => return None,
        Fate::Confirmed(Confirmation::Delivered) => (Action::Delivered, None),
        Fate::Confirmed(Confirmation::Relayed) => (Action::Relayed, None),
        Fate::Confirmed(Confirmation::Expanded) => (Action::Expanded, None),
        Fate::Failed(refusal) => (Action::Failed, Some(refusal)),
        Fate::Expired(refusal) => (Action::Failed, refusal.as_ref()),
    })
}

fn recipient<'a>(
    envelope: &'a Envelope,
    originals: &'a [Option<Vec<u8>>],
    number: u16,
    action: Action,
    refusal: Option<&'a Refusal>,
    now: Timestamp,
) -> bounce::Recipient<'a> {
    let recipient = &envelope.recipients[usize::from(number)];
    let own = match action {
        // It was put off until its time ran out (RFC 3463 §3.5).
        Action::Failed if refusal.is_none_or(|refusal| refusal.code < 500) => Some(Enhanced(5, 4, 7)),
        _ => None,
    };
    bounce::Recipient {
        address: &recipient.address,
        original: originals[usize::from(number)].as_deref(),
        notify: recipient.notify,
        action,
        enhanced: own.or(refusal.and_then(|refusal| refusal.enhanced)),
        code: refusal.map(|refusal| refusal.code).filter(|code| *code > 0),
        text: refusal.map_or(b"", |refusal| refusal.text.as_bytes()),
        remote_mta: refusal.map(|refusal| refusal.by.as_str()).filter(|by| !by.is_empty()),
        last_attempt: Some(now),
    }
}

fn original(recipient: &Recipient) -> Option<Vec<u8>> {
    let original = recipient.original.as_ref()?;
    Some([original.kind.as_slice(), b";", original.address.as_slice()].concat())
}

/// The notice as mail of our own: its envelope, and where it goes.
fn addressed(office: &Office, config: &Config, notice: bounce::Notice) -> Option<(Letter, Vec<Errand>)> {
    let null = Path::mailbox(b"").expect("the null path is a path");
    let to = Path::mailbox(&notice.recipient).ok()?;
    let members = match config.router.route(Standing::Friend, &null, &to).ok()? {
        Routed::As(hop) => vec![(notice.recipient.clone(), hop)],
        Routed::Instead(members) => {
            members.into_iter().map(|(address, hop)| (address.as_bytes().to_vec(), hop)).collect()
        }
    };
    let (mut recipients, mut errands) = (Vec::new(), Vec::new());
    for (number, (address, hop)) in members.into_iter().enumerate() {
        recipients.push(Recipient { address, original: None, notify: Some(Notify::NEVER) });
        errands.push(Errand { hop, recipients: vec![u16::try_from(number).ok()?] });
    }
    let envelope = Envelope {
        smtp_utf8: notice.smtp_utf8,
        body: if notice.eight_bit { BodyType::EightBitMime } else { BodyType::SevenBit },
        ..Envelope::local(b"", recipients)
    };
    let received = office.unix(clock::now());
    Some((Letter { envelope: Arc::new(envelope), body: notice.message.into(), received }, errands))
}

fn timestamp(unix: Duration) -> Timestamp {
    i64::try_from(unix.as_secs()).ok().and_then(|second| Timestamp::from_second(second).ok()).unwrap_or(Timestamp::MAX)
}
