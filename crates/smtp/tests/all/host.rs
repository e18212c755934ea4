//! A server session with an application that records all events. Fuzz targets include this file by
//! path.
#![allow(dead_code)] // Each place that includes this file uses only a part of it

use mailrun_smtp::checks::SplitMix64;
use mailrun_smtp::command::{Hello, Mail, Recipient};
use mailrun_smtp::limits::Limits;
use mailrun_smtp::login::Proof;
use mailrun_smtp::reply::Reply;
use mailrun_smtp::reply_reason::ReplyReason;
use mailrun_smtp::sasl::scram::Keys;
use mailrun_smtp::sasl::{Mechanism, Secret};
use mailrun_smtp::server::{Event, Server, ServerSettings};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// A recorded [`Event`] that owns its text. The blocks of a message's content are joined, because they depend on how
/// the bytes arrived. The blocks of a refused message are dropped, because the session may pass on only some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordedEvent {
    Hello(Hello, Vec<u8>),
    Mail {
        sender: Vec<u8>,
        size: Option<u64>,
        text: String,
    },
    Recipient {
        address: Vec<u8>,
        text: String,
    },
    Data,
    Message(Vec<u8>),
    /// In LMTP, the question whether the application accepts the message for this recipient.
    Delivery(Vec<u8>),
    Discarded(ReplyReason),
    Reset,
    Verify(Vec<u8>),
    StartTls,
    /// Mechanism, user name, and the secret if the client sent it, for example the password of PLAIN.
    Auth(Mechanism, String, Option<Vec<u8>>),
    Authenticated,
    NotAuthenticated,
    Xclient(String),
}

/// Passwords of the application's users, from the examples of RFC 2195 and RFC 7677.
fn password(name: &str) -> Option<&'static str> {
    match name {
        "tim" => Some("tanstaaftanstaaf"),
        "user" => Some("pencil"),
        _ => None,
    }
}

pub(crate) struct RecordingServer {
    pub(crate) server: Server,
    pub(crate) events: Vec<RecordedEvent>,
    pub(crate) out: Vec<u8>,
    pub(crate) refuse: fn(&RecordedEvent) -> Option<Reply>,
    message: Vec<u8>,
    /// Accepted recipients of the current transaction.
    accepted: Vec<Vec<u8>>,
}

impl RecordingServer {
    /// Creates a session that has sent its greeting. The application refuses an event if `refuse` returns a reply to
    /// it.
    pub(crate) fn new(identity: &Arc<ServerSettings>, refuse: fn(&RecordedEvent) -> Option<Reply>) -> Self {
        Self::greeting(None, identity, refuse)
    }

    /// Like [`Self::new`], but if `instead` is given, the session has sent this reply in place of its greeting.
    pub(crate) fn greeting(
        instead: Option<&Reply>,
        identity: &Arc<ServerSettings>,
        refuse: fn(&RecordedEvent) -> Option<Reply>,
    ) -> Self {
        let mut server = Server::new(identity.clone(), Duration::ZERO);
        let mut out = Vec::new();
        match instead {
            Some(reply) => server.answer(reply, Duration::ZERO, &mut out),
            None => server.grant(Duration::ZERO, &mut out),
        }
        Self { server, events: Vec::new(), out, refuse, message: Vec::new(), accepted: Vec::new() }
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self::new(&Arc::new(ServerSettings::new("test", limits)), |_| None)
    }

    /// Passes a block to the session, records the events, and answers the questions among them.
    pub(crate) fn receive(&mut self, block: &[u8], now: Duration) {
        let mut input = block;
        while let Some(event) = self.server.next_event(&mut input, now, &mut self.out) {
            let asks = event.asks();
            let is_nonce = event == Event::Nonce;
            let is_lookup = matches!(event, Event::Auth(auth) if auth.is_lookup());
            let event = note(event, &mut self.message, &self.accepted);
            assert_eq!(asks, self.server.awaits_answer());
            if is_nonce {
                self.server.answer_nonce(b"eighteen octets ok", now, &mut self.out);
            } else if is_lookup {
                let secret = event.as_ref().and_then(secret_of);
                self.server.answer_secret(secret.as_ref(), now, &mut self.out);
            } else if asks {
                let answer = event.as_ref().and_then(|event| wrong_password(event).or_else(|| (self.refuse)(event)));
                match &answer {
                    Some(refusal) => self.server.answer(refusal, now, &mut self.out),
                    None => self.server.grant(now, &mut self.out),
                }
                self.keep(event.as_ref(), answer.is_none());
            }
            self.events.extend(event);
        }
        let is_over = self.server.is_closed();
        assert!(input.is_empty() || is_over, "a block is read to its end");
    }

    /// If the event is a recipient that the application accepted (`yes`), adds it to the accepted recipients. MAIL
    /// empties their list, because it begins a new transaction.
    fn keep(&mut self, event: Option<&RecordedEvent>, yes: bool) {
        match event {
            Some(RecordedEvent::Mail { .. }) => self.accepted.clear(),
            Some(RecordedEvent::Recipient { address, .. }) if yes => self.accepted.push(address.clone()),
            _ => {}
        }
    }
}

/// Checks that sessions which get the same bytes in different blocks report the same events and send the same replies.
/// Also checks that a session without further input ends at its deadline. If `greeting` is given, it replaces the usual
/// greeting. The application refuses recipients that begin with "no".
pub(crate) fn check(greeting: Option<&Reply>, identity: &Arc<ServerSettings>, bytes: &[u8], seed: u64) {
    let now = Duration::from_secs(1);
    let mut whole = RecordingServer::greeting(greeting, identity, refuse);
    whole.receive(bytes, now);
    for blocks in [bytes.chunks(1).collect(), SplitMix64(seed).cut(bytes)] {
        let mut cut = RecordingServer::greeting(greeting, identity, refuse);
        blocks.iter().for_each(|block| cut.receive(block, now));
        assert_eq!(cut.events, whole.events);
        assert_eq!(String::from_utf8_lossy(&cut.out), String::from_utf8_lossy(&whole.out));
        assert_eq!(cut.server.is_closed(), whole.server.is_closed());
        assert_eq!(cut.server.injected_bytes(), whole.server.injected_bytes());
        assert_eq!(cut.server.is_authenticated(), whole.server.is_authenticated());
    }
    if let Some(deadline) = whole.server.deadline() {
        whole.server.tick(deadline, &mut whole.out);
        assert!(whole.server.is_closed());
    }
}

fn refuse(event: &RecordedEvent) -> Option<Reply> {
    matches!(event, RecordedEvent::Recipient { address, .. } if address.starts_with(b"no"))
        .then(|| Reply::new(550, "5.1.1 no"))
}

fn secret_of(event: &RecordedEvent) -> Option<Secret> {
    let RecordedEvent::Auth(mechanism, name, None) = event else { return None };
    match mechanism {
        Mechanism::ScramSha256 if name == "user" => Some(Secret::Keys(KEYS.clone())),
        _ => password(name).map(|password| Secret::Password(password.to_owned())),
    }
}

/// SCRAM keys of the user `user`, derived only once because this is slow. Their salt is the nonce in base64, which a
/// session also uses as salt when it derives keys from a password.
static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    Keys::derive("pencil", b"ZWlnaHRlZW4gb2N0ZXRzIG9r", 4096).expect("a password, a salt, enough iterations")
});

fn wrong_password(event: &RecordedEvent) -> Option<Reply> {
    let RecordedEvent::Auth(_, name, Some(shown)) = event else { return None };
    let is_right = password(name).is_some_and(|password| Secret::Password(password.to_owned()).is(shown));
    (!is_right).then(|| Reply::new(535, "5.7.8 wrong"))
}

fn note(event: Event<'_>, message: &mut Vec<u8>, recipients: &[Vec<u8>]) -> Option<RecordedEvent> {
    Some(match event {
        Event::Hello(kind, name) => RecordedEvent::Hello(kind, name.to_vec()),
        Event::Mail(Mail { sender, size, body, smtp_utf8, returns, envelope_id, auth }) => {
            let text = format!("{body:?} {smtp_utf8} {returns:?} {envelope_id:?} {auth:?}");
            RecordedEvent::Mail { sender: sender.as_bytes().to_vec(), size, text }
        }
        Event::Recipient(Recipient { path, notify, original }) => {
            RecordedEvent::Recipient { address: path.as_bytes().to_vec(), text: format!("{notify:?} {original:?}") }
        }
        Event::Data => {
            message.clear();
            RecordedEvent::Data
        }
        Event::Block(block) => {
            assert!(!block.is_empty(), "a block has octets");
            message.extend_from_slice(block);
            return None;
        }
        Event::Message { bytes } => {
            assert_eq!(bytes, message.len() as u64, "what was handed on is what was counted");
            RecordedEvent::Message(std::mem::take(message))
        }
        Event::Delivery { recipient } => RecordedEvent::Delivery(recipients[recipient as usize].clone()),
        Event::Discarded(verdict) => {
            message.clear();
            RecordedEvent::Discarded(verdict)
        }
        Event::Reset => RecordedEvent::Reset,
        Event::Verify(who) => RecordedEvent::Verify(who.to_vec()),
        Event::StartTls => RecordedEvent::StartTls,
        Event::Auth(auth) => {
            let shown = if let Proof::Shown(secret) = auth.proof { Some(secret.to_vec()) } else { None };
            RecordedEvent::Auth(auth.mechanism, auth.name.to_owned(), shown)
        }
        Event::Authenticated => RecordedEvent::Authenticated,
        Event::NotAuthenticated => RecordedEvent::NotAuthenticated,
        Event::Xclient(xclient) => RecordedEvent::Xclient(format!("{:?}", xclient.attributes().collect::<Vec<_>>())),
        Event::Noop | Event::Quit | Event::Nonce | Event::Proof(_) | Event::Answered => return None,
    })
}
