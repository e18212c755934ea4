//! A session of IMAP4rev1 (RFC 3501) that reports the messages that are new in a mailbox.
//!
//! ```text
//! greeting → [CAPABILITY] → [STARTTLS → CAPABILITY] → AUTHENTICATE or LOGIN → [CAPABILITY] → EXAMINE
//!   → [UID FETCH: what came while there was no connection]
//!   → IDLE … EXISTS → DONE → UID FETCH → [UID STORE → UID EXPUNGE] → IDLE …
//!   → IDLE … nothing for some seconds → DONE → NOOP → IDLE …
//!     or, to a server without IDLE: wait → NOOP … EXISTS → UID FETCH → …
//! ```
//! The commands and the parsing of responses come from `imap-next`. This file decides which command comes next, and
//! bounds what a server may send.
use crate::session::{
    Announced, Event, Identity, MAX_RESPONSE_BYTES, Message, NO_MECHANISM, PLAIN_LOGIN, SessionError, Step,
    WatchOptions, exchange_error, mechanism, printable,
};
use imap_next::client::{Client, Error, Event as ClientEvent, Options};
use imap_next::imap_types::auth::{AuthMechanism, AuthenticateData};
use imap_next::imap_types::command::{Command, CommandBody};
use imap_next::imap_types::core::{AString, Tag, Vec1};
use imap_next::imap_types::fetch::{MacroOrMessageDataItemNames, MessageDataItem, MessageDataItemName, Section};
use imap_next::imap_types::flag::{Flag, StoreResponse, StoreType};
use imap_next::imap_types::mailbox::Mailbox;
use imap_next::imap_types::response::{
    Capability, Code, CommandContinuationRequest, Data, Greeting, GreetingKind, Status, StatusBody, StatusKind,
};
use imap_next::imap_types::secret::Secret;
use imap_next::imap_types::sequence::SequenceSet;
use imap_next::{Interrupt, Io, State};
use mailrun_sasl::client::ClientExchange;
use mailrun_sasl::{Credentials, Mechanism, Mechanisms, Nonce};
use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of announcements (EXISTS) that a session remembers until it has fetched the messages. If there are
/// more, it reports the messages of the further announcements without a time (`Announced::Unknown`).
const MAX_ANNOUNCEMENTS: usize = 1024;
/// Maximum number of messages that are deleted with one command.
const MAX_DELETED: usize = 500;

/// Records which messages of a mailbox have been reported, so that the next session reports only new messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// UIDVALIDITY of the mailbox (RFC 3501 §2.3.1.1). While it stays the same, a UID stands for the same message.
    validity: u32,
    /// Messages with lower UIDs are not reported, because they have been reported or are older than the first session.
    next_uid: u32,
    /// UIDs from `next_uid` on that were reported. They can have gaps, because servers send messages in any order.
    reported: BTreeSet<u32>,
    /// Messages that the driver wants to delete and that the server has not deleted yet.
    to_delete: BTreeSet<u32>,
}

impl Position {
    /// Creates a position that lets a session report the messages with UIDs from `next_uid` on, and no older messages.
    pub fn new(validity: u32, next_uid: u32) -> Self {
        Self { validity, next_uid, ..Self::default() }
    }
}

/// The number of messages in the mailbox, as the server announced it, and the time of the announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Announcement {
    up_to: u32,
    at: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Offer {
    mechanisms: Mechanisms,
    idle: bool,
    initial_response: bool,
    start_tls: bool,
    login_disabled: bool,
    deletes_by_uid: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Greeting,
    Capability,
    StartTls,
    TlsStarted,
    Login,
    CapabilityAfterLogin,
    Open,
    Fetch,
    /// IDLE was sent, and the server has not answered yet.
    IdleStart,
    Idle,
    IdleEnd,
    /// Without IDLE, the session pauses before it asks for new messages with the next NOOP.
    Pause,
    Noop,
    Flag,
    Expunge,
}

impl Waiting {
    fn step(self) -> Step {
        match self {
            Self::Greeting => Step::Greeting,
            Self::Capability | Self::CapabilityAfterLogin => Step::Capability,
            Self::StartTls | Self::TlsStarted => Step::StartTls,
            Self::Login => Step::Login,
            Self::Open => Step::Open,
            Self::Fetch => Step::Fetch,
            Self::IdleStart | Self::Idle | Self::IdleEnd | Self::Pause | Self::Noop => Step::Watch,
            Self::Flag | Self::Expunge => Step::Delete,
        }
    }
}

/// A session with an IMAP server, which watches one mailbox.
#[derive(Debug)]
pub struct ImapSession {
    options: Arc<WatchOptions>,
    identity: Identity,
    folder: String,
    /// Set if the driver may call `delete`. The mailbox is then opened with SELECT instead of EXAMINE.
    deletes: bool,
    is_encrypted: bool,
    client: Client,
    waiting: Waiting,
    deadline: Duration,
    tag_count: u32,
    tag: Option<Tag<'static>>,
    offer: Option<Offer>,
    exchange: Option<ClientExchange>,
    position: Position,
    /// Set if `position` is valid, because it comes from the last session or because this session has opened the
    /// mailbox. A session that begins without a position skips the messages that are already there, unless the options
    /// ask for them.
    has_position: bool,
    /// UIDVALIDITY and UIDNEXT from the server's answer to SELECT or EXAMINE.
    opened: Position,
    exists: u32,
    announcements: VecDeque<Announcement>,
    /// Set if messages were announced that have not been fetched.
    has_news: bool,
    /// Number of bytes since the last complete response, limited so that an endless response cannot use up memory.
    unparsed: usize,
    deleting: Vec<NonZeroU32>,
    /// Time before which the session deletes nothing. It lies in the future only if the server has just refused a
    /// deletion.
    deletes_from: Duration,
    is_watching: bool,
}

impl ImapSession {
    /// Creates a session on a new connection. `position` comes from the last session's [`ImapSession::into_position`].
    /// If `position` is `None`, messages that are already there are skipped, unless the options ask for them. If
    /// `deletes` is set, the mailbox is opened for writing, so that [`ImapSession::delete`] can be used.
    pub fn new(
        options: Arc<WatchOptions>,
        (credentials, nonce): (Credentials, Nonce),
        folder: &str,
        position: Option<Position>,
        deletes: bool,
        is_encrypted: bool,
        now: Duration,
    ) -> Self {
        Self {
            client: client(&options, false),
            deadline: now + options.reply_timeout,
            options,
            identity: Identity { credentials, nonce },
            folder: folder.to_owned(),
            deletes,
            is_encrypted,
            waiting: Waiting::Greeting,
            tag_count: 0,
            tag: None,
            offer: None,
            exchange: None,
            has_position: position.is_some(),
            position: position.unwrap_or_default(),
            opened: Position::default(),
            exists: 0,
            announcements: VecDeque::new(),
            has_news: false,
            unparsed: 0,
            deleting: Vec::new(),
            deletes_from: Duration::ZERO,
            is_watching: false,
        }
    }

    /// Ends the session, and returns the position after the last reported message for the next session. Returns `None`
    /// if the mailbox has never been open.
    pub fn into_position(self) -> Option<Position> {
        self.has_position.then_some(self.position)
    }

    /// Returns what the session is doing or waiting for at present.
    pub fn step(&self) -> Step {
        self.waiting.step()
    }

    /// Returns the time at which the driver must call [`ImapSession::tick`]. Any other method can change this time, so
    /// the driver must ask again after each call.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Asks for the deletion of a message that was reported. The session deletes the message as soon as no other
    /// message waits to be fetched. If the session is waiting for mail, its deadline becomes earlier, so that the
    /// driver calls `tick` in time. A deletion that fails is tried again, by the next session if the connection breaks.
    ///
    /// The message stays in the mailbox if as many messages as the option `messages` allows already wait for their
    /// deletion. It also stays, but is marked as deleted, if the server does not offer UIDPLUS (RFC 4315).
    pub fn delete(&mut self, uid: u32) {
        if self.deletes && self.position.to_delete.len() < self.options.messages {
            self.position.to_delete.insert(uid);
            if matches!(self.waiting, Waiting::Idle | Waiting::Pause) {
                self.deadline = self.deletes_from;
            }
        }
    }

    fn deletes_now(&self, now: Duration) -> bool {
        !self.position.to_delete.is_empty() && now >= self.deletes_from
    }

    /// Processes bytes that the driver has received from the server. Output for the server is appended to `out`, and
    /// reports for the driver to `events`.
    ///
    /// # Errors
    /// Returns a [`SessionError`] if the session must end, for example because the server refused the login.
    pub fn receive(
        &mut self,
        input: &[u8],
        now: Duration,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), SessionError> {
        self.unparsed = self.unparsed.saturating_add(input.len());
        self.client.enqueue_input(input);
        self.advance(now, out, events)?;
        if self.unparsed > self.options.response_bytes().saturating_add(MAX_RESPONSE_BYTES) {
            return Err(self.violation(format!("a response is longer than {} bytes", self.options.response_bytes())));
        }
        Ok(())
    }

    /// If the deadline has passed, interrupts IDLE, asks for messages, or gives up waiting for a reply.
    ///
    /// # Errors
    /// Returns a [`SessionError`] if the session must end, for example because a reply is overdue.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<u8>, events: &mut Vec<Event>) -> Result<(), SessionError> {
        if now < self.deadline {
            return Ok(());
        }
        match self.waiting {
            Waiting::Idle => self.end_idle(now),
            Waiting::Pause => self.command(CommandBody::Noop, Waiting::Noop, now),
            waiting => return Err(SessionError::Timeout { step: waiting.step(), after: self.options.reply_timeout }),
        }
        self.advance(now, out, events)
    }

    /// Continues after the driver has started TLS. Does nothing if the session has not asked for TLS.
    ///
    /// # Errors
    /// Returns a [`SessionError`] if the session cannot continue.
    pub fn tls_started(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), SessionError> {
        if self.waiting == Waiting::TlsStarted {
            // An attacker may have altered what the server sent before TLS (RFC 3501 §6.2.1). So start with a new
            // client and forget the capabilities.
            self.client = client(&self.options, true);
            self.is_encrypted = true;
            self.offer = None;
            self.unparsed = 0;
            self.command(CommandBody::Capability, Waiting::Capability, now);
            self.advance(now, out, events)?;
        }
        Ok(())
    }

    fn advance(&mut self, now: Duration, out: &mut Vec<u8>, events: &mut Vec<Event>) -> Result<(), SessionError> {
        // Do not interpret input that follows the permission to start TLS, because TLS does not protect this input.
        while self.waiting != Waiting::TlsStarted {
            match self.client.next() {
                Ok(event) => self.handle(event, now, events)?,
                Err(Interrupt::Io(Io::NeedMoreInput)) => break,
                Err(Interrupt::Io(Io::Output(bytes))) => out.extend_from_slice(&bytes),
                Err(Interrupt::Error(error)) if self.may_ignore(&error) => self.unparsed = 0,
                Err(Interrupt::Error(error)) => return Err(self.violation(describe(&error))),
            }
        }
        Ok(())
    }

    /// Returns true for an untagged response that the parser does not know, because servers send responses of
    /// extensions without being asked. Returns false for a FETCH response, because ignoring it would lose a message.
    fn may_ignore(&self, error: &Error) -> bool {
        let Error::MalformedMessage { discarded_bytes } = error else { return false };
        let bytes = discarded_bytes.declassify();
        let is_fetch = bytes.windows(5).take(40).any(|word| word.eq_ignore_ascii_case(b"FETCH"));
        self.waiting != Waiting::Greeting && bytes.starts_with(b"* ") && !is_fetch
    }

    fn handle(&mut self, event: ClientEvent, now: Duration, events: &mut Vec<Event>) -> Result<(), SessionError> {
        match event {
            ClientEvent::CommandSent { .. }
            | ClientEvent::AuthenticateStarted { .. }
            | ClientEvent::IdleCommandSent { .. }
            | ClientEvent::IdleDoneSent { .. } => return Ok(()),
            ClientEvent::GreetingReceived { greeting } => {
                self.unparsed = 0;
                return self.greeting(&greeting, now);
            }
            _ => self.unparsed = 0,
        }
        match event {
            ClientEvent::DataReceived { data } => self.data(data, now, events),
            ClientEvent::StatusReceived { status }
            | ClientEvent::AuthenticateStatusReceived { status, .. }
            | ClientEvent::IdleRejected { status, .. }
            | ClientEvent::CommandRejected { status, .. } => self.status(status, now, events),
            ClientEvent::AuthenticateContinuationRequestReceived { continuation_request, .. } => {
                self.challenge(continuation_request)
            }
            ClientEvent::IdleAccepted { .. } => {
                self.waiting = Waiting::Idle;
                self.deadline = now + self.options.idle_check;
                if self.has_news || self.deletes_now(now) {
                    self.end_idle(now);
                } else if !self.position.to_delete.is_empty() {
                    self.deadline = self.deadline.min(self.deletes_from);
                }
                Ok(())
            }
            ClientEvent::ContinuationRequestReceived { .. } => {
                Err(self.violation("it asks to continue where nothing is to continue".to_owned()))
            }
            // Unreachable, because the first `match` has already handled these events.
            ClientEvent::GreetingReceived { .. }
            | ClientEvent::CommandSent { .. }
            | ClientEvent::AuthenticateStarted { .. }
            | ClientEvent::IdleCommandSent { .. }
            | ClientEvent::IdleDoneSent { .. } => Ok(()),
        }
    }

    fn greeting(&mut self, greeting: &Greeting<'static>, now: Duration) -> Result<(), SessionError> {
        self.note_code(greeting.code.as_ref());
        match greeting.kind {
            GreetingKind::Bye => Err(SessionError::Closed { step: Step::Greeting, text: text(greeting.text.inner()) }),
            // After PREAUTH the session is already logged in, and STARTTLS is no longer permitted (RFC 3501 §7.1.4).
            GreetingKind::PreAuth if self.must_start_tls() => {
                Err(self.violation("it has logged the session in before TLS, which cannot be started now".to_owned()))
            }
            GreetingKind::PreAuth => {
                self.offer_or_ask(Waiting::CapabilityAfterLogin, now, Self::open);
                Ok(())
            }
            GreetingKind::Ok if self.offer.is_none() => {
                self.command(CommandBody::Capability, Waiting::Capability, now);
                Ok(())
            }
            GreetingKind::Ok => self.log_in(now),
        }
    }

    fn must_start_tls(&self) -> bool {
        self.options.starts_tls && !self.is_encrypted
    }

    /// Calls `next` if the capabilities are known. Otherwise asks the server for them, and enters the state `waiting`.
    fn offer_or_ask(&mut self, waiting: Waiting, now: Duration, next: fn(&mut Self, Duration)) {
        if self.offer.is_some() {
            next(self, now);
        } else {
            self.command(CommandBody::Capability, waiting, now);
        }
    }

    fn log_in(&mut self, now: Duration) -> Result<(), SessionError> {
        let offer = self.offer.unwrap_or_default();
        if self.must_start_tls() {
            if !offer.start_tls {
                return Err(SessionError::Refused {
                    step: Step::StartTls,
                    text: "the server does not offer STARTTLS".to_owned(),
                });
            }
            self.command(CommandBody::StartTLS, Waiting::StartTls, now);
            return Ok(());
        }
        let may_reveal = self.is_encrypted || self.options.allows_plain_login;
        let Identity { credentials, nonce } = &self.identity;
        let Some(chosen) = mechanism(offer.mechanisms, credentials, may_reveal)? else {
            return self.plain_login(offer, may_reveal, now);
        };
        let exchange = ClientExchange::new(chosen, credentials, Some(nonce)).map_err(exchange_error)?;
        let name = match chosen {
            Mechanism::Plain => AuthMechanism::Plain,
            Mechanism::Login => AuthMechanism::Login,
            Mechanism::Xoauth2 => AuthMechanism::XOAuth2,
            Mechanism::ScramSha256 => AuthMechanism::ScramSha256,
            Mechanism::CramMd5 => AuthMechanism::try_from("CRAM-MD5").map_err(|_| NO_MECHANISM)?,
        };
        let initial = exchange.initial().filter(|_| offer.initial_response).map(<[u8]>::to_vec);
        let exchange = if initial.is_some() { exchange.initial_sent() } else { exchange };
        self.exchange = Some(exchange);
        let initial_response = initial.map(|response| Secret::new(Cow::Owned(response)));
        self.command(CommandBody::Authenticate { mechanism: name, initial_response }, Waiting::Login, now);
        Ok(())
    }

    /// Logs in with LOGIN, because the server offers no SASL mechanism that the credentials permit.
    fn plain_login(&mut self, offer: Offer, may_reveal: bool, now: Duration) -> Result<(), SessionError> {
        let Credentials { name, secret, mechanisms } = &self.identity.credentials;
        if offer.login_disabled || !mechanisms.has(Mechanism::Login) {
            return Err(NO_MECHANISM);
        }
        if !may_reveal {
            return Err(PLAIN_LOGIN);
        }
        let characters = |_| SessionError::Login("the user or the password has characters that LOGIN forbids");
        let username = AString::try_from(name.clone()).map_err(characters)?;
        let password = Secret::new(AString::try_from(secret.clone()).map_err(characters)?);
        self.command(CommandBody::Login { username, password }, Waiting::Login, now);
        Ok(())
    }

    fn challenge(&mut self, request: CommandContinuationRequest<'static>) -> Result<(), SessionError> {
        let challenge = match request {
            CommandContinuationRequest::Base64(challenge) => challenge.into_owned(),
            CommandContinuationRequest::Basic(_) => Vec::new(),
        };
        let Some(exchange) = self.exchange.take() else {
            return Err(self.violation("a challenge came after the end of the login".to_owned()));
        };
        let (response, exchange) = exchange.respond(&challenge).map_err(exchange_error)?;
        self.exchange = Some(exchange);
        let response = AuthenticateData::Continue(Secret::new(Cow::Owned(response)));
        match self.client.set_authenticate_data(response) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.violation("a challenge came twice".to_owned())),
        }
    }

    fn open(&mut self, now: Duration) {
        // Forget message counts that arrived before this command. No mailbox was open then, so an attacker may have
        // inserted these counts.
        self.opened = Position::default();
        self.exists = 0;
        self.announcements.clear();
        self.has_news = false;
        let folder = Mailbox::try_from(self.folder.clone());
        let mailbox = folder.unwrap_or(Mailbox::Inbox);
        let command = if self.deletes { CommandBody::Select { mailbox } } else { CommandBody::Examine { mailbox } };
        self.command(command, Waiting::Open, now);
    }

    fn command(&mut self, body: CommandBody<'static>, waiting: Waiting, now: Duration) {
        self.tag_count = self.tag_count.wrapping_add(1);
        let tag = Tag::unvalidated(format!("m{}", self.tag_count));
        self.tag = Some(tag.clone());
        self.client.enqueue_command(Command { tag, body });
        self.waiting = waiting;
        self.deadline = now + self.options.reply_timeout;
    }

    fn end_idle(&mut self, now: Duration) {
        if self.client.set_idle_done().is_some() {
            self.waiting = Waiting::IdleEnd;
            self.deadline = now + self.options.reply_timeout;
        }
    }

    fn status(&mut self, status: Status<'static>, now: Duration, events: &mut Vec<Event>) -> Result<(), SessionError> {
        match status {
            Status::Bye(bye) => Err(SessionError::Closed { step: self.step(), text: text(bye.text.inner()) }),
            Status::Untagged(body) => {
                self.note_code(body.code.as_ref());
                Ok(())
            }
            Status::Tagged(tagged) => {
                let awaited = self.tag.take();
                if awaited.as_ref() != Some(&tagged.tag) {
                    let expected = awaited.map_or_else(|| "none".to_owned(), |tag| format!("{:?}", tag.as_ref()));
                    let problem = format!("a result has the tag {:?} instead of {expected}", tagged.tag.as_ref());
                    return Err(self.violation(printable(&problem)));
                }
                self.finished(tagged.body, now, events)
            }
        }
    }

    fn finished(
        &mut self,
        body: StatusBody<'static>,
        now: Duration,
        events: &mut Vec<Event>,
    ) -> Result<(), SessionError> {
        if body.kind != StatusKind::Ok {
            let refusal = SessionError::Refused { step: self.step(), text: text(body.text.inner()) };
            if self.step() != Step::Delete {
                return Err(refusal);
            }
            // Continue after a refused deletion, because the session can still watch for mail.
            events.push(Event::NotDeleted(refusal));
            self.deletes_from = now + self.options.deletion_retry;
            self.fetch_or_watch(now);
            return Ok(());
        }
        if self.waiting == Waiting::Login {
            // Forget the capabilities, because a server may offer others after the login (RFC 3501 §6.1.1).
            self.offer = None;
        }
        self.note_code(body.code.as_ref());
        match self.waiting {
            Waiting::Capability if self.offer.is_none() => {
                return Err(self.violation("it did not list its capabilities".to_owned()));
            }
            Waiting::Capability => self.log_in(now)?,
            Waiting::StartTls => {
                self.waiting = Waiting::TlsStarted;
                self.deadline = now + self.options.reply_timeout;
                events.push(Event::StartTls);
            }
            Waiting::Login => {
                if let Some(exchange) = self.exchange.take() {
                    exchange.accept().map_err(exchange_error)?;
                }
                self.offer_or_ask(Waiting::CapabilityAfterLogin, now, Self::open);
            }
            Waiting::CapabilityAfterLogin => self.open(now),
            Waiting::Open => self.opened(now, events)?,
            Waiting::Fetch => {
                self.fetched();
                self.delete_or_watch(now);
            }
            Waiting::Flag if self.offer.is_some_and(|offer| offer.deletes_by_uid) => self.expunge(now),
            // The server does not offer UIDPLUS, so only EXPUNGE could remove the marked message. Do not send EXPUNGE,
            // because it would also remove messages that other clients have marked.
            Waiting::Flag => {
                self.deletion_done();
                self.delete_or_watch(now);
            }
            Waiting::Expunge => {
                events.push(Event::Deleted(self.deletion_done()));
                self.delete_or_watch(now);
            }
            Waiting::IdleEnd | Waiting::Noop if self.has_news => self.fetch_or_watch(now),
            Waiting::IdleEnd if !self.deletes_now(now) => self.command(CommandBody::Noop, Waiting::Noop, now),
            Waiting::IdleEnd | Waiting::Noop => self.delete_or_watch(now),
            Waiting::IdleStart | Waiting::Idle => {
                return Err(self.violation("it ended IDLE by itself".to_owned()));
            }
            Waiting::Greeting | Waiting::TlsStarted | Waiting::Pause => {
                return Err(self.violation("a result came where none is awaited".to_owned()));
            }
        }
        Ok(())
    }

    fn opened(&mut self, now: Duration, events: &mut Vec<Event>) -> Result<(), SessionError> {
        if self.opened.next_uid == 0 || self.opened.validity == 0 {
            return Err(self.violation("it did not tell both UIDNEXT and UIDVALIDITY".to_owned()));
        }
        let opened = std::mem::take(&mut self.opened);
        // By default, the first session of a mailbox ignores the messages that are already there. A later session
        // fetches all messages that arrived since the previous session.
        let is_first = !self.has_position;
        let renumbered = !is_first && self.position.validity != opened.validity;
        let skips = is_first && !self.options.existing;
        if is_first && !skips {
            self.position = Position::new(opened.validity, 1);
            self.has_position = true;
        }
        if skips || renumbered {
            // If the server has changed the UIDVALIDITY, this session ends with an error. Store the new UIDVALIDITY, so
            // that the next session does not end for the same reason.
            let before = std::mem::replace(&mut self.position, opened);
            self.has_position = true;
            if renumbered {
                return Err(SessionError::Renumbered { before: before.validity, now: self.position.validity });
            }
            self.announcements.clear();
            self.has_news = false;
        } else {
            self.has_news = opened.next_uid > self.position.next_uid;
        }
        self.is_watching = true;
        events.push(Event::Watching { idle: self.uses_idle() });
        self.fetch_or_watch(now);
        Ok(())
    }

    fn uses_idle(&self) -> bool {
        self.options.poll.is_none() && self.offer.is_some_and(|offer| offer.idle)
    }

    fn fetch_or_watch(&mut self, now: Duration) {
        let first = NonZeroU32::new(self.position.next_uid);
        match first.filter(|_| self.has_news) {
            Some(first) => {
                self.has_news = false;
                let section = if self.options.whole {
                    None
                } else {
                    // The conversion cannot fail, because the name of the trace field is a valid atom in IMAP.
                    AString::try_from(self.options.trace_field)
                        .ok()
                        .map(|name| Section::HeaderFields(None, Vec1::from(name)))
                };
                let items = vec![
                    MessageDataItemName::Uid,
                    MessageDataItemName::Rfc822Size,
                    MessageDataItemName::BodyExt { section, partial: None, peek: true },
                ];
                let fetch = CommandBody::Fetch {
                    sequence_set: SequenceSet::from(first..),
                    macro_or_item_names: MacroOrMessageDataItemNames::MessageDataItemNames(items),
                    uid: true,
                };
                self.command(fetch, Waiting::Fetch, now);
            }
            None => self.watch(now),
        }
    }

    fn watch(&mut self, now: Duration) {
        if self.uses_idle() {
            self.command(CommandBody::Idle, Waiting::IdleStart, now);
        } else {
            self.waiting = Waiting::Pause;
            self.deadline = now + self.options.poll.unwrap_or(self.options.default_poll);
        }
    }

    /// After a complete fetch, sets `next_uid` to the UID after the last reported message. The UIDs in `reported` are
    /// then no longer needed, because all messages up to the last reported message have been reported.
    fn fetched(&mut self) {
        if let Some(last) = self.position.reported.last() {
            self.position.next_uid = self.position.next_uid.max(last.saturating_add(1));
        }
        self.position.reported.clear();
    }

    fn delete_or_watch(&mut self, now: Duration) {
        if !self.deletes_now(now) {
            return self.fetch_or_watch(now);
        }
        let to_delete = self.position.to_delete.iter().take(MAX_DELETED);
        self.deleting = to_delete.copied().filter_map(NonZeroU32::new).collect();
        let Ok(sequence_set) = SequenceSet::try_from(self.deleting.clone()) else { return self.fetch_or_watch(now) };
        let store = CommandBody::Store {
            sequence_set,
            kind: StoreType::Add,
            response: StoreResponse::Silent,
            flags: vec![Flag::Deleted],
            uid: true,
        };
        self.command(store, Waiting::Flag, now);
    }

    fn expunge(&mut self, now: Duration) {
        match SequenceSet::try_from(self.deleting.clone()) {
            Ok(sequence_set) => self.command(CommandBody::ExpungeUid { sequence_set }, Waiting::Expunge, now),
            Err(_) => self.fetch_or_watch(now),
        }
    }

    fn deletion_done(&mut self) -> u64 {
        let deleted = std::mem::take(&mut self.deleting);
        for uid in &deleted {
            self.position.to_delete.remove(&uid.get());
        }
        deleted.len() as u64
    }

    fn data(&mut self, data: Data<'static>, now: Duration, events: &mut Vec<Event>) -> Result<(), SessionError> {
        match data {
            Data::Capability(capabilities) => self.offer = Some(offer(capabilities.as_ref())),
            Data::Exists(count) => self.exists(count, now)?,
            Data::Expunge(number) => self.expunged(number.get())?,
            Data::Fetch { seq, items } => self.message(seq.get(), items.into_iter(), now, events)?,
            _ => {}
        }
        Ok(())
    }

    fn exists(&mut self, count: u32, now: Duration) -> Result<(), SessionError> {
        let is_open = self.is_watching;
        if is_open && count < self.exists {
            let before = self.exists;
            return Err(self.violation(format!("{count} messages exist after {before}, and it told of no deletion")));
        }
        if count > self.exists {
            if self.announcements.len() < MAX_ANNOUNCEMENTS {
                self.announcements.push_back(Announcement { up_to: count, at: now });
            }
            self.has_news = true;
        }
        self.exists = count;
        if self.has_news && self.waiting == Waiting::Idle {
            self.end_idle(now);
        }
        Ok(())
    }

    fn expunged(&mut self, number: u32) -> Result<(), SessionError> {
        if number > self.exists {
            let exists = self.exists;
            return Err(self.violation(format!("message {number} of {exists} was deleted")));
        }
        self.exists -= 1;
        // When a message is removed, the numbers of all later messages decrease by one (RFC 3501 §7.4.1).
        for announcement in self.announcements.iter_mut().filter(|announcement| announcement.up_to >= number) {
            announcement.up_to -= 1;
        }
        Ok(())
    }

    fn message(
        &mut self,
        number: u32,
        items: impl Iterator<Item = MessageDataItem<'static>>,
        now: Duration,
        events: &mut Vec<Event>,
    ) -> Result<(), SessionError> {
        let mut uid = None;
        let mut bytes = None;
        let mut content = None;
        for item in items {
            match item {
                MessageDataItem::Uid(number) => uid = Some(number.get()),
                MessageDataItem::Rfc822Size(size) => bytes = Some(u64::from(size)),
                MessageDataItem::BodyExt { data, .. } => {
                    content = Some(data.into_option().map(Cow::into_owned).unwrap_or_default());
                }
                _ => {}
            }
        }
        // Ignore a FETCH response without a UID or content, because servers also use FETCH to announce changed flags.
        let (Some(uid), Some(content)) = (uid, content) else { return Ok(()) };
        // `UID FETCH n:*` returns the last message even if its UID is below n (RFC 3501 §6.4.8), so skip old messages.
        if self.waiting != Waiting::Fetch || uid < self.position.next_uid || !self.position.reported.insert(uid) {
            return Ok(());
        }
        if self.position.reported.len() > self.options.messages {
            return Err(self.violation(format!("more than {} messages came at once", self.options.messages)));
        }
        let announced = self.announcements.iter().find(|announcement| announcement.up_to >= number);
        let announced = announced.map_or(Announced::Unknown, |announcement| Announced::At(announcement.at));
        while self.announcements.front().is_some_and(|announcement| announcement.up_to <= number) {
            self.announcements.pop_front();
        }
        self.deadline = now + self.options.reply_timeout;
        let bytes = bytes.unwrap_or(content.len() as u64);
        let id = uid.to_string().into_bytes();
        events.push(Event::Message(Message { uid, id, announced, bytes, content }));
        Ok(())
    }

    fn note_code(&mut self, code: Option<&Code<'static>>) {
        match code {
            Some(Code::Capability(capabilities)) => self.offer = Some(offer(capabilities.as_ref())),
            Some(Code::UidNext(uid)) => self.opened.next_uid = uid.get(),
            Some(Code::UidValidity(validity)) => self.opened.validity = validity.get(),
            _ => {}
        }
    }

    fn violation(&self, text: String) -> SessionError {
        SessionError::Violation { step: self.step(), text }
    }
}

fn client(options: &WatchOptions, discard_greeting: bool) -> Client {
    let mut settings = Options::default();
    settings.max_response_size = u32::try_from(options.response_bytes()).unwrap_or(u32::MAX);
    settings.discard_greeting = discard_greeting;
    Client::new(settings)
}

fn offer(capabilities: &[Capability<'static>]) -> Offer {
    let mut offer = Offer::default();
    for capability in capabilities {
        match capability {
            Capability::Auth(name) => {
                let name = name.to_string();
                if let Some(mechanism) = Mechanism::parse(name.as_bytes()) {
                    offer.mechanisms = offer.mechanisms.with(mechanism);
                }
            }
            Capability::Idle => offer.idle = true,
            Capability::SaslIr => offer.initial_response = true,
            Capability::StartTls => offer.start_tls = true,
            Capability::LoginDisabled => offer.login_disabled = true,
            Capability::UidPlus => offer.deletes_by_uid = true,
            _ => {}
        }
    }
    offer
}

fn text(text: &str) -> String {
    printable(text)
}

fn describe(error: &Error) -> String {
    let (what, bytes) = match error {
        Error::ExpectedCrlfGotLf { discarded_bytes } => ("a line ends with LF alone", discarded_bytes),
        Error::MalformedMessage { discarded_bytes } => ("a response cannot be read", discarded_bytes),
        Error::ResponseTooLong { discarded_bytes } => ("a response is too long", discarded_bytes),
    };
    let sample = bytes.declassify();
    let sample = String::from_utf8_lossy(&sample[..sample.len().min(80)]);
    format!("{what}: {:?}", printable(&sample))
}
