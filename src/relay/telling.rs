//! Notices to senders, of the outcome of a message or of its delay, stored in the spool like any other mail before the
//! message itself is done.
use super::bounce::{self, Action, Facts};
use super::config::{Config, LoggedIn, NoticeTarget};
use super::defect::NoticeInHand;
use super::envelope::{Confirmation, Envelope, Fate, Recipient, Refusal, With};
use super::letter::Letter;
use super::maildir;
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
use std::path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A message that failed comes back whole up to this size.
const WHOLE_BYTES: usize = 50_000;
/// Before a notice that the spool had no room for is tried again.
const BREATH: Duration = Duration::from_secs(5);
/// Before a notice that a Maildir did not take is tried again.
const REFILE_INTERVAL: Duration = Duration::from_secs(30);

/// Generates a notice, stores it in the spool, then releases the original.
pub(super) async fn tell(office: &Rc<Office>, id: MessageId, notice: Notice, letter: Option<Letter>) {
    let notice = NoticeInHand::new(office, id, notice);
    planned_panic("notice");
    let is_late = matches!(*notice, Notice::Late { .. });
    if is_late && office.queue.borrow().show(id, clock::now()).is_empty() {
        // The message was delivered while this waited for its turn.
        return;
    }
    let fetched = match letter {
        Some(letter) => Fetched::Whole(letter),
        None => office.fetch(id).await,
    };
    let letter = match fetched {
        Fetched::Whole(letter) => letter,
        Fetched::EnvelopeOnly(letter, error) => {
            tracing::error!(%id, %error, "a message cannot be read from the spool; its sender is notified without it");
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

/// No notice can be sent, for that reason.
pub(super) fn cannot_tell(office: &Rc<Office>, id: MessageId, notice: Notice, error: &str) {
    let Notice::Settled { ticket, fates } = notice else {
        return tracing::error!(%id, %error, "the sender cannot be notified that the message is delayed");
    };
    if fates.iter().any(|(_, fate)| fate.is_failure()) {
        tracing::error!(
            %id, %error,
            "the sender cannot be notified that the message was not delivered: the message is held; `mailrun queue \
             release` retries, `remove` deletes it"
        );
    } else {
        tracing::error!(%id, %error, "the sender cannot be notified that the message was delivered");
    }
    let effects = office.queue.borrow_mut().cannot_tell(ticket, &fates);
    office.carry_out(effects, None);
    office.attend();
}

/// In place of a client's name in the envelope of a notice to the postmaster: it causes no further notice, however
/// aliases lead on from there.
const TO_POSTMASTER: &[u8] = b"postmaster";

fn is_to_postmaster(envelope: &Envelope) -> bool {
    envelope.with == With::Local && envelope.client_name == TO_POSTMASTER
}

/// Addressee of a notice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Addressee<'c> {
    Sender,
    /// Another addressee, in place of the sender.
    Other(&'c NoticeTarget),
}

/// A message that a notice is about.
struct Told<'a> {
    config: &'a Config,
    id: MessageId,
    letter: &'a Letter,
    /// ORCPT of each recipient.
    originals: Vec<Option<Vec<u8>>>,
    now: Timestamp,
}

/// Sends the notices to the addressees that the configuration names.
async fn send(office: &Rc<Office>, id: MessageId, notice: &Notice, letter: &Letter) {
    let config = office.config();
    let originals = letter.envelope.recipients.iter().map(original).collect();
    let now = timestamp(office.unix(clock::now()));
    let told = Told { config: &config, id, letter, originals, now };
    for (recipients, addressee) in told.groups(notice) {
        told.send(office, &recipients, addressee).await;
    }
}

impl<'a> Told<'a> {
    /// Groups recipients by the addressee of their notice; those without a notice are left out.
    fn groups(&'a self, notice: &'a Notice) -> Vec<(Vec<bounce::Recipient<'a>>, Addressee<'a>)> {
        let fates = match notice {
            Notice::Settled { fates, .. } => fates,
            Notice::Late { recipients, refusal, expires_unix_s } => {
                let until = timestamp(Duration::from_secs(*expires_unix_s));
                let late = |number: &u16| self.recipient(*number, Action::Delayed { until }, refusal.as_deref());
                return vec![(recipients.iter().map(late).collect(), Addressee::Sender)];
            }
        };
        let of_fates = |is_failure: bool| {
            let fates = fates.iter().filter(move |(_, fate)| fate.is_failure() == is_failure);
            fates.filter_map(|(number, fate)| {
                let (action, refusal) = action_of(fate)?;
                Some(self.recipient(*number, action, refusal))
            })
        };
        let dsn = &self.config.dsn;
        let failed: Vec<_> = of_fates(true).collect();
        let mut succeeded: Vec<_> = of_fates(false).collect();
        let envelope = &self.letter.envelope;
        let login = if envelope.user.is_some() { LoggedIn::Yes } else { LoggedIn::No };
        if !dsn.success.is_for(envelope.client_address, login, &self.config.networks) {
            succeeded.clear();
        }
        if envelope.sender.is_empty() {
            self.warn_of_double_bounces(&failed);
            let is_again = is_to_postmaster(envelope);
            let target = dsn.double_bounces.as_ref().filter(|target| !is_again || **target != NoticeTarget::Postmaster);
            return target.map(|target| (failed, Addressee::Other(target))).into_iter().collect();
        }
        match &dsn.failures {
            None => vec![([failed, succeeded].concat(), Addressee::Sender)],
            Some(target) => vec![(failed, Addressee::Other(target)), (succeeded, Addressee::Sender)],
        }
    }

    fn warn_of_double_bounces(&self, failed: &[bounce::Recipient<'_>]) {
        for failed in failed {
            tracing::warn!(
                id = %Id(self.id.0),
                to = %failed.address.escape_ascii(),
                reason = %failed.text.escape_ascii(),
                "a notification could not be delivered, and its recipient will not be notified"
            );
        }
    }

    fn recipient(&'a self, number: u16, action: Action, refusal: Option<&'a Refusal>) -> bounce::Recipient<'a> {
        recipient(&self.letter.envelope, &self.originals, number, action, refusal, self.now)
    }

    async fn send(&self, office: &Rc<Office>, recipients: &[bounce::Recipient<'_>], addressee: Addressee<'_>) {
        let Some(notice) = self.written(recipients, addressee) else { return };
        if let Addressee::Other(NoticeTarget::Maildir(root)) = addressee {
            return self.file(office, root, notice).await;
        }
        match addressed(office, self.config, notice, addressee) {
            Some((letter, errands)) => store(office, self.id, letter, errands).await,
            None => {
                tracing::warn!(id = %Id(self.id.0), "its sender cannot be notified: no route to the address");
                let other = self.config.dsn.double_bounces.as_ref().filter(|_| addressee == Addressee::Sender);
                if let Some(other) = other {
                    Box::pin(self.send(office, recipients, Addressee::Other(other))).await;
                }
            }
        }
    }

    fn written(&self, recipients: &[bounce::Recipient<'_>], addressee: Addressee<'_>) -> Option<bounce::Notice> {
        let envelope = &self.letter.envelope;
        let id = Id(self.id.0).to_string();
        let postmaster = self.config.dsn.postmaster.as_bytes();
        let is_double = envelope.sender.is_empty();
        let addressee = match addressee {
            Addressee::Other(NoticeTarget::Postmaster) => postmaster,
            Addressee::Other(NoticeTarget::Maildir(_)) if is_double => postmaster,
            Addressee::Sender | Addressee::Other(NoticeTarget::Maildir(_)) => &envelope.sender,
        };
        let facts = Facts {
            id: &id,
            host: &self.config.hostname,
            sender: &envelope.sender,
            addressee,
            envelope_id: envelope.envelope_id.as_deref(),
            returns: envelope.returns,
            smtp_utf8: envelope.smtp_utf8,
            arrived: timestamp(self.letter.received),
            message: &self.letter.body,
        };
        // Notices are sent with NOTIFY=NEVER so that no server notifies their sender. A double bounce ignores it.
        let mut recipients = recipients.to_vec();
        recipients.iter_mut().filter(|_| is_double).for_each(|recipient| recipient.notify = None);
        bounce::notice(&facts, &recipients, WHOLE_BYTES, self.now)
    }

    /// Puts a notice into a Maildir; until it is there the message is not done with.
    async fn file(&self, office: &Rc<Office>, root: &Arc<path::Path>, notice: bounce::Notice) {
        let notice = Arc::new(notice);
        loop {
            let (names, root) = (Arc::clone(&office.setting.mailbox_names), Arc::clone(root));
            let notice = Arc::clone(&notice);
            let deliver = move || {
                let letter = maildir::Letter { sender: b"", recipient: &notice.recipient, message: &notice.message };
                maildir::deliver(&root, &names, clock::wall(), &letter).map(|_| ())
            };
            match office.setting.porters.done(deliver).await {
                Some(Ok(())) => return office.setting.census.notices.add(1),
                Some(Err(failure)) => {
                    tracing::error!(id = %Id(self.id.0), %failure, "a notification cannot be stored in the Maildir; \
                                                                    it is retried");
                }
                None => {
                    tracing::error!(id = %Id(self.id.0), "a notification cannot be stored in the Maildir; it is \
                                                          retried")
                }
            }
            net::sleep(REFILE_INTERVAL).await;
        }
    }
}

/// Stores a notice; until it is stored the message is not done with.
async fn store(office: &Rc<Office>, id: MessageId, letter: Letter, errands: Vec<Errand>) {
    let Ok(envelope) = letter.envelope.encode() else { return };
    loop {
        let received_ns = u64::try_from(letter.received.as_nanos()).unwrap_or(u64::MAX);
        let draft = Draft { received_ns, envelope: envelope.clone(), body: Arc::clone(&letter.body) };
        // Storing the notice finishes a message: a full spool has to have room for that.
        match office.setting.spool.store_from_reserve(draft).await {
            Ok(stored) => {
                office.setting.census.notices.add(1);
                return office.accept(&stored, &letter, errands);
            }
            // Deliveries meanwhile make room.
            Err(spool::Error::Full) => net::sleep(BREATH).await,
            Err(error) => {
                tracing::error!(id = %Id(id.0), %error, "a notification could not be stored");
                // The message itself is still in the spool; after a restart its sender is notified.
                return std::future::pending().await;
            }
        }
    }
}

/// Action that a notice reports for a fate, and its reason.
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

/// The notice as mail of our own: its envelope, and its recipients' hops.
fn addressed(
    office: &Office,
    config: &Config,
    notice: bounce::Notice,
    addressee: Addressee<'_>,
) -> Option<(Letter, Vec<Errand>)> {
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
    let client_name = if addressee == Addressee::Sender { Vec::new() } else { TO_POSTMASTER.to_vec() };
    let envelope = Envelope {
        client_name,
        smtp_utf8: notice.smtp_utf8,
        body: if notice.smtp_utf8 { BodyType::EightBitMime } else { BodyType::SevenBit },
        ..Envelope::local(b"", recipients)
    };
    let received = office.unix(clock::now());
    Some((Letter { envelope: Arc::new(envelope), body: notice.message.into(), received }, errands))
}

fn timestamp(unix: Duration) -> Timestamp {
    i64::try_from(unix.as_secs()).ok().and_then(|second| Timestamp::from_second(second).ok()).unwrap_or(Timestamp::MAX)
}
