//! A session of POP3 (RFC 1939) that lists a mailbox, fetches what is new, and ends. A server locks the mailbox as long
//! as a session lasts, so sessions are short, and the driver starts a new session at each interval.
//!
//! ```text
//! greeting → CAPA → [STLS → CAPA] → AUTH or USER, PASS → UIDL → [DELE n: what the last session has not deleted]
//!   → for each new message: LIST n, TOP n 0 or RETR n, [DELE n] → QUIT
//! ```
use crate::session::{
    Announced, Event, Identity, MAX_RESPONSE_BYTES, Message, NO_MECHANISM, PLAIN_LOGIN, SessionError, Step,
    WatchOptions, exchange_error, mechanism, printable,
};
use mailrun_sasl::client::ClientExchange;
use mailrun_sasl::{Credentials, Mechanism, Mechanisms, Nonce, decode, encode};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Maximum length of a line, in bytes. RFC 1939 allows 512 bytes in replies, but the lines of messages are longer.
const MAX_LINE_BYTES: usize = MAX_RESPONSE_BYTES;
/// Maximum length of a unique identifier (RFC 1939 §7).
const MAX_ID_BYTES: usize = 70;

/// Unique identifiers of the messages that were reported or must be deleted. With them, the next session can continue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Messages that the next session does not report, because they have been reported already or were in the mailbox
    /// before the first session.
    known: HashSet<Box<[u8]>>,
    /// Messages that the driver wants to delete and that the server has not deleted yet. A server undoes deletions if
    /// the session breaks before QUIT, so a message stays in this set until QUIT succeeds or the server no longer lists
    /// it.
    to_delete: HashSet<Box<[u8]>>,
    /// Messages that the server has refused to send, with its explanation. Another client may have deleted them, but
    /// only the list of the next session shows whether they are gone.
    refused: BTreeMap<Box<[u8]>, String>,
}

impl Listing {
    /// Forgets messages that the server no longer lists, so that the sets do not grow. If the server still lists a
    /// message that it refused to send, reports the refusal.
    fn compare(&mut self, listed: &HashSet<Box<[u8]>>, events: &mut Vec<Event>) {
        self.known.retain(|id| listed.contains(id));
        let wanted = self.to_delete.len();
        self.to_delete.retain(|id| listed.contains(id));
        // Messages that are no longer listed were deleted, even if the server never confirmed that. For example, the
        // connection of an earlier session may have broken after QUIT.
        let deleted = (wanted - self.to_delete.len()) as u64;
        if deleted > 0 {
            events.push(Event::Deleted(deleted));
        }
        for (id, text) in std::mem::take(&mut self.refused) {
            if listed.contains(&id) {
                events.push(Event::NotFetched(SessionError::Refused { step: Step::Fetch, text }));
            }
        }
    }
}

/// Capabilities that the server offers (RFC 2449).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Offer {
    mechanisms: Mechanisms,
    user: bool,
    start_tls: bool,
    top: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NewMessage {
    number: u32,
    id: Box<[u8]>,
    at: Duration,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Greeting,
    Capabilities,
    CapabilityLine,
    StartTls,
    TlsStarted,
    Login,
    User,
    Password,
    List,
    ListLine,
    Size,
    Content,
    ContentLine,
    /// The session has reported the first of the new messages, and waits until the driver calls
    /// [`PopSession::handled`].
    Driver,
    Delete,
    Quit,
    Closed,
}

impl Waiting {
    fn step(self) -> Step {
        match self {
            Self::Greeting => Step::Greeting,
            Self::Capabilities | Self::CapabilityLine => Step::Capability,
            Self::StartTls | Self::TlsStarted => Step::StartTls,
            Self::Login | Self::User | Self::Password => Step::Login,
            Self::List | Self::ListLine => Step::Open,
            Self::Size | Self::Content | Self::ContentLine | Self::Driver => Step::Fetch,
            Self::Delete => Step::Delete,
            Self::Quit | Self::Closed => Step::Quit,
        }
    }
}

/// A session with a POP3 server. It lists the mailbox once, fetches the new messages, and ends.
#[derive(Debug)]
pub struct PopSession {
    options: Arc<WatchOptions>,
    identity: Identity,
    is_encrypted: bool,
    waiting: Waiting,
    deadline: Duration,
    /// The beginning of a line from the server whose end has not arrived yet.
    line: Vec<u8>,
    offer: Offer,
    exchange: Option<ClientExchange>,
    /// Record of earlier sessions. In a first session, it may be `None` until the server has listed the mailbox.
    listing: Option<Listing>,
    listed: HashSet<Box<[u8]>>,
    new: VecDeque<NewMessage>,
    content: Vec<u8>,
    /// Numbers and identifiers of the messages for which DELE is sent next.
    deletions: VecDeque<(u32, Box<[u8]>)>,
    /// Messages that the server has marked after DELE, and will delete at QUIT.
    marked: Vec<Box<[u8]>>,
    response_bytes: usize,
}

impl PopSession {
    /// Creates a session that expects the greeting first. `listing` comes from the last session's
    /// [`PopSession::into_listing`]. If it is `None`, existing messages are skipped, unless the options ask for them.
    pub fn new(
        options: Arc<WatchOptions>,
        (credentials, nonce): (Credentials, Nonce),
        listing: Option<Listing>,
        is_encrypted: bool,
        now: Duration,
    ) -> Self {
        let listing = listing.or_else(|| options.existing.then(Listing::default));
        Self {
            deadline: now + options.reply_timeout,
            options,
            identity: Identity { credentials, nonce },
            is_encrypted,
            waiting: Waiting::Greeting,
            line: Vec::new(),
            offer: Offer::default(),
            exchange: None,
            listing,
            listed: HashSet::new(),
            new: VecDeque::new(),
            content: Vec::new(),
            deletions: VecDeque::new(),
            marked: Vec::new(),
            response_bytes: 0,
        }
    }

    /// Ends the session, and returns which messages it has reported or still has to delete, so that the next session
    /// can continue. Returns `None` if the mailbox has never been listed.
    pub fn into_listing(self) -> Option<Listing> {
        self.listing
    }

    /// Returns what the session is doing or waiting for at present.
    pub fn step(&self) -> Step {
        self.waiting.step()
    }

    /// Returns the time at which the driver must call [`PopSession::tick`]. Any other method can change this time, so
    /// the driver must ask again after each call.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Processes bytes that the driver has received from the server. Output for the server is appended to `out`, and
    /// reports for the driver to `events`. The driver must call [`PopSession::handled`] for a reported message before
    /// it passes more input, because further input before that call counts as a violation of the protocol.
    ///
    /// # Errors
    /// Returns a [`SessionError`] if the session must end, for example because the server refused the login.
    pub fn receive(
        &mut self,
        mut input: &[u8],
        now: Duration,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), SessionError> {
        while !input.is_empty() && !matches!(self.waiting, Waiting::TlsStarted | Waiting::Closed) {
            if self.waiting == Waiting::Driver {
                return Err(self.violation("it answers without a question".to_owned()));
            }
            let end = input.iter().position(|octet| *octet == b'\n');
            let (part, rest) = input.split_at(end.map_or(input.len(), |end| end + 1));
            input = rest;
            if self.line.len() + part.len() > MAX_LINE_BYTES {
                return Err(self.violation(format!("a line is longer than {MAX_LINE_BYTES} bytes")));
            }
            self.line.extend_from_slice(part);
            if end.is_some() {
                let line = std::mem::take(&mut self.line);
                let text = line.strip_suffix(b"\n").unwrap_or(&line);
                self.take_line(text.strip_suffix(b"\r").unwrap_or(text), now, out, events)?;
                self.line = line;
                self.line.clear();
            }
        }
        Ok(())
    }

    /// Ends the session if a reply is overdue.
    ///
    /// # Errors
    /// Returns [`SessionError::Timeout`] if the deadline has passed.
    pub fn tick(&mut self, now: Duration) -> Result<(), SessionError> {
        if now < self.deadline || self.waiting == Waiting::Closed {
            return Ok(());
        }
        Err(SessionError::Timeout { step: self.step(), after: self.options.reply_timeout })
    }

    /// Continues after the driver has started TLS. Asks for the capabilities again, because the earlier answer was not
    /// protected.
    pub fn tls_started(&mut self, now: Duration, out: &mut Vec<u8>) {
        if self.waiting == Waiting::TlsStarted {
            self.line.clear();
            self.is_encrypted = true;
            self.offer = Offer::default();
            self.command(b"CAPA", Waiting::Capabilities, now, out);
        }
    }

    fn take_line(
        &mut self,
        line: &[u8],
        now: Duration,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), SessionError> {
        match self.waiting {
            Waiting::CapabilityLine | Waiting::ListLine | Waiting::ContentLine => {
                self.response_bytes += line.len() + 2;
                return match line {
                    b"." => self.lines_ended(now, out, events),
                    [b'.', unstuffed @ ..] => self.list_line(unstuffed, now),
                    line => self.list_line(line, now),
                };
            }
            Waiting::Login if line.starts_with(b"+ ") || line == b"+" => return self.challenge(line, now, out),
            _ => {}
        }
        if let Some(refusal) = line.strip_prefix(b"-ERR") {
            return self.refused(refusal, now, out, events);
        }
        let Some(text) = line.strip_prefix(b"+OK") else {
            let sample = printable(&String::from_utf8_lossy(&line[..line.len().min(80)]));
            return Err(self.violation(format!("{sample:?} is neither +OK nor -ERR")));
        };
        self.accepted(text, now, out, events)
    }

    fn refused(
        &mut self,
        text: &[u8],
        now: Duration,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), SessionError> {
        let text = printable(&String::from_utf8_lossy(text));
        match self.waiting {
            // The server refuses CAPA, which is an extension. Assume that the server supports USER and TOP, because
            // only CAPA could tell.
            Waiting::Capabilities => {
                self.offer.user = true;
                self.offer.top = true;
                self.log_in(now, out)
            }
            // Another session may have deleted the message after it was listed. So report this refusal only if the
            // next session finds the message in the list.
            Waiting::Size | Waiting::Content => {
                if let (Some(message), Some(listing)) = (self.new.pop_front(), &mut self.listing) {
                    listing.refused.insert(message.id, text);
                }
                self.next_command(now, out);
                Ok(())
            }
            // Continue until QUIT although this deletion was refused. Without QUIT, the server would undo all other
            // deletions.
            Waiting::Delete => {
                self.deletions.pop_front();
                events.push(Event::NotDeleted(SessionError::Refused { step: self.step(), text }));
                self.next_command(now, out);
                Ok(())
            }
            Waiting::Greeting => Err(SessionError::Closed { step: self.step(), text }),
            _ => Err(SessionError::Refused { step: self.step(), text }),
        }
    }

    fn accepted(
        &mut self,
        text: &[u8],
        now: Duration,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), SessionError> {
        match self.waiting {
            Waiting::Greeting => self.command(b"CAPA", Waiting::Capabilities, now, out),
            Waiting::Capabilities => self.expect_lines(Waiting::CapabilityLine),
            Waiting::StartTls => {
                self.waiting = Waiting::TlsStarted;
                events.push(Event::StartTls);
            }
            Waiting::User => {
                let command = [b"PASS ", self.identity.credentials.secret.as_bytes()].concat();
                self.command(&command, Waiting::Password, now, out);
            }
            Waiting::Login | Waiting::Password => {
                if let Some(exchange) = self.exchange.take() {
                    exchange.accept().map_err(exchange_error)?;
                }
                self.command(b"UIDL", Waiting::List, now, out);
            }
            Waiting::List => self.expect_lines(Waiting::ListLine),
            Waiting::Size => {
                let text = String::from_utf8_lossy(text);
                let size = text.split_ascii_whitespace().nth(1).and_then(|size| size.parse().ok());
                let (Some(size), Some(message)) = (size, self.new.front_mut()) else {
                    return Err(self.violation("it did not tell the size of a message".to_owned()));
                };
                message.bytes = size;
                let number = message.number;
                let fetch = if self.options.whole { format!("RETR {number}") } else { format!("TOP {number} 0") };
                self.command(fetch.as_bytes(), Waiting::Content, now, out);
            }
            Waiting::Content => self.expect_lines(Waiting::ContentLine),
            Waiting::Delete => {
                self.marked.extend(self.deletions.pop_front().map(|(_, id)| id));
                self.next_command(now, out);
            }
            Waiting::Quit => {
                // The server deletes marked messages only after QUIT (RFC 1939 §6), so report the deletions only now.
                if let (Some(listing), false) = (&mut self.listing, self.marked.is_empty()) {
                    for id in &self.marked {
                        listing.to_delete.remove(id);
                    }
                    events.push(Event::Deleted(self.marked.len() as u64));
                }
                self.waiting = Waiting::Closed;
                events.push(Event::Done);
            }
            Waiting::TlsStarted
            | Waiting::Driver
            | Waiting::CapabilityLine
            | Waiting::ListLine
            | Waiting::ContentLine
            | Waiting::Closed => {}
        }
        Ok(())
    }

    fn expect_lines(&mut self, waiting: Waiting) {
        self.waiting = waiting;
        self.response_bytes = 0;
        self.content.clear();
    }

    fn list_line(&mut self, line: &[u8], now: Duration) -> Result<(), SessionError> {
        match self.waiting {
            Waiting::CapabilityLine => {
                if self.response_bytes > MAX_RESPONSE_BYTES {
                    return Err(self.violation("it lists too many capabilities".to_owned()));
                }
                self.note_capability(line);
            }
            Waiting::ListLine => self.note_message(line, now)?,
            _ => {
                // A line of a message does not extend the deadline. Otherwise, a server could prolong the session with
                // an endless message.
                if self.options.whole && self.response_bytes > self.options.message_bytes {
                    let limit = self.options.message_bytes;
                    return Err(self.violation(format!("a message is longer than {limit} bytes")));
                }
                if self.options.whole || self.content.len() + line.len() < MAX_RESPONSE_BYTES {
                    self.content.extend_from_slice(line);
                    self.content.extend_from_slice(b"\r\n");
                }
            }
        }
        Ok(())
    }

    fn note_capability(&mut self, line: &[u8]) {
        let mut words = line.splitn(2, |octet| *octet == b' ');
        let name = words.next().unwrap_or_default();
        if name.eq_ignore_ascii_case(b"SASL") {
            self.offer.mechanisms = Mechanisms::parse(words.next().unwrap_or_default());
        } else if name.eq_ignore_ascii_case(b"USER") {
            self.offer.user = true;
        } else if name.eq_ignore_ascii_case(b"STLS") {
            self.offer.start_tls = true;
        } else if name.eq_ignore_ascii_case(b"TOP") {
            self.offer.top = true;
        }
    }

    fn note_message(&mut self, line: &[u8], now: Duration) -> Result<(), SessionError> {
        let mut words = line.splitn(2, |octet| *octet == b' ');
        let number = words.next().and_then(|number| std::str::from_utf8(number).ok()?.parse::<u32>().ok());
        let id = words.next().filter(|id| (1..=MAX_ID_BYTES).contains(&id.len()));
        let (Some(number), Some(id)) = (number, id) else {
            return Err(self.violation("a line of its list is no number with an identifier".to_owned()));
        };
        if self.listed.len() >= self.options.messages {
            return Err(self.violation(format!("the mailbox has more than {} messages", self.options.messages)));
        }
        let id: Box<[u8]> = id.into();
        // If several messages have the same identifier, use only the first, because the identifier must tell a message
        // from all others.
        if let (true, Some(listing)) = (self.listed.insert(id.clone()), &self.listing) {
            if listing.to_delete.contains(&id) {
                self.deletions.push_back((number, id));
            } else if !listing.known.contains(&id) {
                self.new.push_back(NewMessage { number, id, at: now, bytes: 0 });
            }
        }
        Ok(())
    }

    fn lines_ended(&mut self, now: Duration, out: &mut Vec<u8>, events: &mut Vec<Event>) -> Result<(), SessionError> {
        match self.waiting {
            Waiting::CapabilityLine => self.log_in(now, out)?,
            Waiting::ListLine => {
                let listed = std::mem::take(&mut self.listed);
                events.push(Event::Watching { idle: false });
                match &mut self.listing {
                    None => self.listing = Some(Listing { known: listed, ..Listing::default() }),
                    Some(listing) => listing.compare(&listed, events),
                }
                self.next_command(now, out);
            }
            _ => {
                let Some(message) = self.new.front().cloned() else { return Ok(()) };
                if let Some(listing) = &mut self.listing {
                    listing.known.insert(message.id.clone());
                }
                let content = std::mem::take(&mut self.content);
                let announced = Announced::At(message.at);
                events.push(Event::Message(Message {
                    uid: message.number,
                    id: message.id.into_vec(),
                    announced,
                    bytes: message.bytes,
                    content,
                }));
                // Wait until the driver calls `handled`, because its argument tells whether to delete this message.
                self.waiting = Waiting::Driver;
                self.deadline = now + self.options.reply_timeout;
            }
        }
        Ok(())
    }

    /// Sends the next command after a message was reported. The driver must call this for each [`Event::Message`]. If
    /// `deletes` is set, the session deletes the message. If the deletion fails, the next session tries again.
    pub fn handled(&mut self, deletes: bool, now: Duration, out: &mut Vec<u8>) {
        if self.waiting != Waiting::Driver {
            return;
        }
        let handled = self.new.pop_front().filter(|_| deletes);
        if let (Some(NewMessage { number, id, .. }), Some(listing)) = (handled, &mut self.listing) {
            listing.to_delete.insert(id.clone());
            self.deletions.push_back((number, id));
        }
        self.next_command(now, out);
    }

    fn next_command(&mut self, now: Duration, out: &mut Vec<u8>) {
        let (command, waiting) = match (self.deletions.front(), self.new.front()) {
            (Some((number, _)), _) => (format!("DELE {number}"), Waiting::Delete),
            (None, Some(message)) => (format!("LIST {}", message.number), Waiting::Size),
            (None, None) => ("QUIT".to_owned(), Waiting::Quit),
        };
        self.command(command.as_bytes(), waiting, now, out);
    }

    fn log_in(&mut self, now: Duration, out: &mut Vec<u8>) -> Result<(), SessionError> {
        if self.options.starts_tls && !self.is_encrypted {
            if !self.offer.start_tls {
                let text = "the server does not offer STLS".to_owned();
                return Err(SessionError::Refused { step: Step::StartTls, text });
            }
            self.command(b"STLS", Waiting::StartTls, now, out);
            return Ok(());
        }
        // TOP is optional (RFC 1939 §7). A server that supports TOP announces it even before the login (RFC 2449 §6.1).
        if !self.offer.top && !self.options.whole {
            let text = "the server does not offer TOP, which fetches headers; use --whole to fetch whole messages";
            return Err(SessionError::Refused { step: Step::Capability, text: text.to_owned() });
        }
        let may_reveal = self.is_encrypted || self.options.allows_plain_login;
        let Identity { credentials, nonce } = &self.identity;
        let Some(chosen) = mechanism(self.offer.mechanisms, credentials, may_reveal)? else {
            return self.plain_login(may_reveal, now, out);
        };
        let exchange = ClientExchange::new(chosen, credentials, Some(nonce)).map_err(exchange_error)?;
        let mut command = format!("AUTH {}", chosen.name());
        // The AUTH command may contain the client's first response (RFC 5034). But a command may have at most
        // 255 octets (RFC 2449 §4), so send a long response separately.
        let initial = exchange.initial().map(encode).filter(|response| command.len() + response.len() < 250);
        self.exchange = Some(match initial {
            Some(response) => {
                command = format!("{command} {response}");
                exchange.initial_sent()
            }
            None => exchange,
        });
        self.command(command.as_bytes(), Waiting::Login, now, out);
        Ok(())
    }

    fn plain_login(&mut self, may_reveal: bool, now: Duration, out: &mut Vec<u8>) -> Result<(), SessionError> {
        let Credentials { name, secret, mechanisms } = &self.identity.credentials;
        if !self.offer.user || !mechanisms.has(Mechanism::Login) {
            return Err(NO_MECHANISM);
        }
        if !may_reveal {
            return Err(PLAIN_LOGIN);
        }
        let is_one_word = !name.contains(|letter: char| letter.is_control() || letter == ' ');
        if !is_one_word || secret.contains(char::is_control) {
            return Err(SessionError::Login("the user or the password has characters that USER and PASS forbid"));
        }
        let command = format!("USER {name}");
        self.command(command.as_bytes(), Waiting::User, now, out);
        Ok(())
    }

    fn challenge(&mut self, line: &[u8], now: Duration, out: &mut Vec<u8>) -> Result<(), SessionError> {
        let challenge = decode(line.get(2..).unwrap_or_default());
        let (Some(challenge), Some(exchange)) = (challenge, self.exchange.take()) else {
            return Err(self.violation("a challenge is not in Base64".to_owned()));
        };
        let (response, exchange) = exchange.respond(&challenge).map_err(exchange_error)?;
        self.exchange = Some(exchange);
        self.command(encode(&response).as_bytes(), Waiting::Login, now, out);
        Ok(())
    }

    fn command(&mut self, command: &[u8], waiting: Waiting, now: Duration, out: &mut Vec<u8>) {
        out.extend_from_slice(command);
        out.extend_from_slice(b"\r\n");
        self.waiting = waiting;
        self.deadline = now + self.options.reply_timeout;
    }

    fn violation(&self, text: String) -> SessionError {
        SessionError::Violation { step: self.step(), text }
    }
}
