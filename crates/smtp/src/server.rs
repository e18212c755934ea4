//! The server's side of a session: commands in, events out, answers back in.
//!
//! ```text
//! ExpectHello ──EHLO──▶ ExpectMail ──MAIL──▶ ExpectRecipient ──DATA──▶ ExpectMessage ──<CRLF>.<CRLF>──┐
//!    ▲                     ▲  ▲                 │ RCPT … RCPT │                                        │
//!    │                     │  └────── RSET ─────┘             └──BDAT──▶ ExpectChunk ──BDAT … LAST─────┤
//!    │                     │                                              │ RSET                        │
//!    │                     ├──────────────────────────────────────────────┘                             │
//!    │                     └───────────────────────────────── ExpectDelivery (LMTP) ◀──or at once───────┘
//!    │                     │
//!    │                     ├──AUTH──▶ Authenticate ──235, 5yz──▶ ExpectMail
//!    ├──── tls_started ────┴──STARTTLS──▶ ExpectTls
//!    └──── XCLIENT, from there and from ExpectHello
//!
//! greeting refused ──▶ ExpectQuit: 503 to all else (RFC 5321 §3.1)
//! any state ──a BDAT that is refused──▶ Skip: its octets ──▶ that state, or ExpectMail
//! any state ── QUIT, 421, too many errors, another protocol, time-out ──▶ Closed
//! ```
//! An event that [asks](Event::asks) waits for [`Server::answer`]; until then no further event comes, so that replies
//! leave in the order of their commands (RFC 2920 §3.2). The session answers all other commands by itself.
use crate::chunk::{self, ChunkReader, ContentKind};
use crate::command::{BodyType, Chunk, Command, Hello, Mail, Recipient};
use crate::data::{DataPiece, DataReader, LineFault};
use crate::extensions::Extensions;
use crate::foreign;
use crate::line::{LineReader, ReadLine};
use crate::login::{Auth, AuthState};
use crate::reply::{Reply, ReplySeverity, say};
use crate::reply_reason::ReplyReason;
use crate::sasl::{Mechanism, Nonce, Secret};
use crate::xclient::Xclient;
use std::sync::Arc;
use std::time::Duration;

pub use crate::settings::{Offer, Protocol, Requires, ServerSettings};

/// Events of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Asks: EHLO, HELO or LHLO, with the client's own name.
    Hello(Hello, &'a [u8]),
    /// Asks: MAIL.
    Mail(Mail<'a>),
    /// Asks: RCPT.
    Recipient(Recipient<'a>),
    /// Asks: DATA, or the first BDAT: a message begins. The default answer to DATA is 354; for a BDAT a positive answer
    /// is not sent, and any other is sent after its bytes have been read.
    Data,
    /// Bytes of the message, unstuffed.
    Block(&'a [u8]),
    /// Asks: the message is complete; a positive answer takes responsibility for it (RFC 5321 §6.1). In LMTP any answer
    /// but the default one is repeated for each recipient; after the default one [`Event::Delivery`] follows.
    Message {
        /// Bytes of the message, unstuffed.
        bytes: u64,
    },
    /// Asks, in LMTP: the result of the message for the recipient of that number, from 0, counted over the accepted
    /// ones.
    Delivery {
        /// The recipient's number.
        recipient: u32,
    },
    /// The message ended and was refused; the transaction is over.
    Discarded(ReplyReason),
    /// Asks: RSET; if granted, the transaction, if there was one, is over. (A granted [`Event::Hello`] ends it too.)
    Reset,
    /// Asks: NOOP.
    Noop,
    /// Asks: QUIT; if granted, the session ends.
    Quit,
    /// Asks: VRFY; the default answer is 252.
    Verify(&'a [u8]),
    /// Asks: STARTTLS. If granted, the session [wants TLS](Server::wants_tls).
    StartTls,
    /// Asks: AUTH by a mechanism that needs a nonce: [`Server::answer_nonce`]. Any other answer refuses.
    Nonce,
    /// Asks: whether name and secret belong together, or for the secret; see [`Auth::proof`]. The default answer refuses.
    Auth(Auth<'a>),
    /// Asks, if a secret was looked up before the client's proof came: whether the proof may be checked. Any refusal
    /// ends the exchange, and does not reveal whether the proof was right.
    Proof(Auth<'a>),
    /// AUTH succeeded: the client proved its identity.
    Authenticated,
    /// AUTH failed.
    NotAuthenticated,
    /// Asks: XCLIENT, which names the real client; the default answer refuses. If granted, the session begins anew with a greeting.
    Xclient(Xclient<'a>),
    /// The session took a step by itself, and answered if that was a command.
    Answered,
}

impl Event<'_> {
    /// Reports whether it waits for [`Server::answer`].
    pub fn asks(&self) -> bool {
        !matches!(
            self,
            Self::Block(_) | Self::Discarded(_) | Self::Answered | Self::Authenticated | Self::NotAuthenticated
        )
    }
}

/// States of the session, by what it waits for.
#[derive(Debug)]
enum State {
    ExpectHello,
    ExpectMail,
    ExpectRecipient(TransactionState),
    ExpectMessage { reader: DataReader, since: Duration, recipients: u32 },
    ExpectChunk { reader: ChunkReader, since: Duration, recipients: u32 },
    ExpectDelivery { next: u32, recipients: u32 },
    ExpectTls,
    Authenticate(Box<AuthState>),
    Skip(Box<SkippedChunk>),
    ExpectQuit,
    Closed,
}

/// A transaction before its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TransactionState {
    accepted: u32,
    refused: u32,
    addresses: Addresses,
    content_kind: ContentKind,
}

impl TransactionState {
    fn new(mail: &Mail<'_>) -> Self {
        let addresses = if mail.smtp_utf8 { Addresses::Utf8 } else { Addresses::Ascii };
        let octets = if mail.body == BodyType::Binary { ContentKind::Any } else { ContentKind::Lines };
        Self { accepted: 0, refused: 0, addresses, content_kind: octets }
    }
}

/// Form of the addresses of a transaction, by its MAIL (RFC 6531 §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addresses {
    Ascii,
    Utf8,
}

/// Remaining bytes of a chunk that is refused: they are read nevertheless (RFC 3030 §2).
#[derive(Debug)]
struct SkippedChunk {
    left: u64,
    since: Duration,
    then: State,
    say: ChunkRefusal,
    /// Number of replies: LMTP has one for each recipient.
    times: u32,
}

/// Reply after a chunk that was skipped.
#[derive(Debug)]
enum ChunkRefusal {
    /// The command was out of order.
    Command(ReplyReason),
    /// The message was refused.
    Message(ReplyReason),
    /// The application refused with this reply.
    Said(Reply),
}

/// The question that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenQuestion {
    Nothing,
    Greeting,
    Hello(Hello),
    Mail(TransactionState),
    Recipient,
    Data,
    Chunk(Chunk),
    Message,
    Delivery,
    Verify,
    Reset,
    Noop,
    Quit,
    StartTls,
    Nonce,
    Check,
    Secret,
    Proof,
    Xclient { is_logged_in: bool },
}

impl OpenQuestion {
    /// The reply that refuses where an application that says nothing must let nobody in.
    fn default_refusal(self) -> Option<&'static Reply> {
        match self {
            Self::Check => Some(ReplyReason::NotAuthenticated.reply()),
            Self::Secret => Some(ReplyReason::AuthUnavailable.reply()),
            Self::Xclient { .. } => Some(ReplyReason::XclientNotPermitted.reply()),
            _ => None,
        }
    }
}

/// The server's side of a session.
#[derive(Debug)]
pub struct Server {
    lines: LineReader,
    core: ServerCore,
}

impl Server {
    /// Creates a session: it asks for the greeting, so the first call is [`Server::answer`].
    pub fn new(identity: Arc<ServerSettings>, now: Duration) -> Self {
        let dialogue = ServerCore {
            settings: identity,
            state: State::ExpectHello,
            asked: OpenQuestion::Greeting,
            errors: 0,
            unknown: 0,
            idle_commands: 0,
            failed_logins: 0,
            junk_commands: 0,
            has_open_mail: false,
            gave_up: None,
            last_received: now,
            last_message: now,
            injected: 0,
            has_quit: false,
            is_over_tls: false,
            is_authenticated: false,
        };
        Self { lines: LineReader::default(), core: dialogue }
    }

    /// Takes one event off the front of `input`. Replies of the session itself go to `out`. `None` needs more bytes, or
    /// an answer, or [TLS](Server::wants_tls), or is the end: see [`Server::is_closed`].
    pub fn next_event<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Option<Event<'s>> {
        if self.core.asked != OpenQuestion::Nothing {
            return None;
        }
        match &mut self.core.state {
            State::ExpectHello | State::ExpectMail | State::ExpectRecipient(_) | State::ExpectQuit => {}
            State::ExpectMessage { reader, .. } => {
                let piece = reader.next(input)?;
                return Some(self.core.piece(piece, now, out));
            }
            State::ExpectChunk { reader, .. } if reader.is_open() => {
                let piece = reader.next(input)?;
                return Some(self.core.chunk_piece(piece, now, out));
            }
            State::ExpectChunk { .. } => {}
            State::ExpectDelivery { next, .. } => {
                self.core.asked = OpenQuestion::Delivery;
                return Some(Event::Delivery { recipient: *next });
            }
            State::Authenticate(_) => return self.next_of_login(input, now, out),
            State::ExpectTls => {
                self.core.injected += input.len() as u64;
                *input = &[];
                return None;
            }
            State::Skip(_) => return self.core.skip_on(input, now, out),
            State::Closed => return None,
        }
        if self.lines.is_at_start() && foreign::begins_otherwise(*input.first()?) {
            // At once: a ClientHello may lack a line's end.
            return Some(self.core.give_up(ReplyReason::OtherProtocol, out));
        }
        let line = self.lines.next(input, self.core.settings.line_bytes());
        let command = match line {
            ReadLine::Partial => return None,
            ReadLine::Whole(line) => Command::parse(line).map_err(|verdict| refusal(line, verdict)),
            ReadLine::BareLf(line) => Err(refusal(line, ReplyReason::BareLineFeed)),
            ReadLine::TooLong => Err(ReplyReason::LineTooLong),
        };
        Some(self.core.command(command, now, out))
    }

    /// Returns the next event of an exchange of AUTH: a question, its end, or the next response.
    fn next_of_login<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Option<Event<'s>> {
        if self.core.login_has_news() {
            return Some(self.core.login_news(out));
        }
        let line = match self.lines.next(input, crate::sasl::MAX_EXCHANGE_LINE_BYTES) {
            ReadLine::Partial => return None,
            ReadLine::Whole(line) => Ok(line),
            ReadLine::BareLf(_) => Err(ReplyReason::BareLineFeed),
            ReadLine::TooLong => Err(ReplyReason::ResponseTooLong),
        };
        self.core.last_received = now;
        self.core.response(line, out);
        Some(Event::Answered)
    }

    /// Answers the open question. `None` gives the answer that lets the session continue, except to [`Event::Auth`] and
    /// [`Event::Xclient`], which it refuses: nobody is logged in unless the application says so. A 421 ends it. After any
    /// other refusal to greet the session waits for QUIT and answers 503 to everything else (RFC 5321 §3.1), within its
    /// limits.
    pub fn answer(&mut self, answer: Option<&Reply>, now: Duration, out: &mut Vec<u8>) {
        self.core.answer(answer, now, out);
    }

    /// Says yes to the open question, with the usual reply: as [`Server::answer`] with `None`, and also to
    /// [`Event::Auth`] with a shown secret and to [`Event::Xclient`]. Where a [secret is awaited](Server::awaits_secret)
    /// there is nothing to say yes to, and the login is refused.
    pub fn grant(&mut self, now: Duration, out: &mut Vec<u8>) {
        match self.core.asked {
            OpenQuestion::Check => self.core.answer(Some(ReplyReason::Authenticated.reply()), now, out),
            OpenQuestion::Xclient { .. } => {
                let settings = Arc::clone(&self.core.settings);
                self.core.answer(Some(&settings.greeting), now, out);
            }
            _ => self.core.answer(None, now, out),
        }
    }

    /// Answers [`Event::Nonce`].
    pub fn answer_nonce(&mut self, nonce: &Nonce, now: Duration, out: &mut Vec<u8>) {
        if self.core.asked == OpenQuestion::Nonce {
            self.core.asked = OpenQuestion::Nothing;
            self.core.last_received = now;
            self.core.begin_login(nonce, out);
        }
    }

    /// Answers an [`Event::Auth`] that asks for the secret; `None` if the name is unknown.
    pub fn answer_secret(&mut self, secret: Option<&Secret>, now: Duration, out: &mut Vec<u8>) {
        if self.core.asked == OpenQuestion::Secret {
            self.core.asked = OpenQuestion::Nothing;
            self.core.last_received = now;
            self.core.know(secret, out);
        }
    }

    /// Reports whether it waits for [`Server::answer_secret`].
    pub fn awaits_secret(&self) -> bool {
        self.core.asked == OpenQuestion::Secret
    }

    /// Reports whether STARTTLS was granted: send `out`, then begin TLS, then call [`Server::tls_started`]. Bytes in
    /// the clear behind STARTTLS are dropped ([`Server::injected_bytes`]).
    pub fn wants_tls(&self) -> bool {
        matches!(self.core.state, State::ExpectTls)
    }

    /// Notes that TLS has begun: the session begins anew, without a greeting (RFC 3207 §4.2). If TLS began before the
    /// greeting this is called before the greeting is answered.
    pub fn tls_started(&mut self, now: Duration) {
        if self.wants_tls() || self.core.asked == OpenQuestion::Greeting {
            self.lines = LineReader::default();
            self.core.state = State::ExpectHello;
            self.core.is_over_tls = true;
            self.core.is_authenticated = false;
            self.core.last_received = now;
        }
    }

    /// Bytes in the clear behind STARTTLS that were dropped: no honest client sends any (CVE-2011-0411).
    pub fn injected_bytes(&self) -> u64 {
        self.core.injected
    }

    /// Reports whether the session is over TLS.
    pub fn is_over_tls(&self) -> bool {
        self.core.is_over_tls
    }

    /// Reports whether AUTH succeeded.
    pub fn is_authenticated(&self) -> bool {
        self.core.is_authenticated
    }

    /// Time at which [`Server::tick`] has work to do: none while an answer is awaited, for then the peer is not to
    /// blame for the silence.
    pub fn deadline(&self) -> Option<Duration> {
        self.core.deadline()
    }

    /// Ends the session with 421 if it has been silent, or without a message, for too long.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<u8>) {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            let is_silent = now >= self.core.last_received + self.core.settings.limits.idle_timeout;
            let is_in_message = self.core.message_since().is_some();
            let verdict =
                if is_silent || is_in_message { ReplyReason::Timeout } else { ReplyReason::TooLongWithoutMessage };
            self.close(verdict, out);
        }
    }

    /// Ends the session with the verdict's reply. An open question stays without an answer.
    pub fn close(&mut self, verdict: ReplyReason, out: &mut Vec<u8>) {
        self.hang_up(Some(verdict.reply()), out);
    }

    /// Ends the session without a reply, or with one that is not 421. An open question stays without an answer.
    pub fn hang_up(&mut self, final_reply: Option<&Reply>, out: &mut Vec<u8>) {
        if !self.is_closed() {
            out.extend_from_slice(final_reply.map_or(&[], Reply::wire));
            self.core.state = State::Closed;
            self.core.asked = OpenQuestion::Nothing;
        }
    }

    /// Reports whether the session is over: nothing more is read; send `out`, then close the connection.
    pub fn is_closed(&self) -> bool {
        matches!(self.core.state, State::Closed)
    }

    /// The reason why the session gave the client up, if it did: another protocol, too many errors, commands without
    /// mail. An endless message is reported by [`Event::Discarded`].
    pub fn gave_up(&self) -> Option<ReplyReason> {
        self.core.gave_up
    }

    /// Reports whether the client ended the session, with QUIT.
    pub fn has_quit(&self) -> bool {
        self.core.has_quit
    }

    /// Reports whether the session waits for [`Server::answer`].
    pub fn awaits_answer(&self) -> bool {
        self.core.asked != OpenQuestion::Nothing
    }
}

/// The verdict on a line that is no command: that of another protocol ends the session, whatever else is wrong with it.
fn refusal(line: &[u8], verdict: ReplyReason) -> ReplyReason {
    if foreign::is_foreign(line) { ReplyReason::OtherProtocol } else { verdict }
}

/// State of a session except its half-read line.
#[derive(Debug)]
struct ServerCore {
    settings: Arc<ServerSettings>,
    state: State,
    asked: OpenQuestion,
    errors: u32,
    /// Unknown commands before EHLO, over the whole session.
    unknown: u32,
    idle_commands: u32,
    failed_logins: u32,
    junk_commands: u32,
    /// MAIL was granted, and neither RSET nor the end of its message has come since.
    has_open_mail: bool,
    gave_up: Option<ReplyReason>,
    last_received: Duration,
    /// The end of the last message, or the beginning of the session, plus the application's time since then.
    last_message: Duration,
    /// Bytes dropped behind STARTTLS.
    injected: u64,
    /// The client sent QUIT.
    has_quit: bool,
    is_over_tls: bool,
    is_authenticated: bool,
}

impl ServerCore {
    fn deadline(&self) -> Option<Duration> {
        if matches!(self.state, State::Closed) || self.asked != OpenQuestion::Nothing {
            return None;
        }
        let limits = &self.settings.limits;
        let idle = self.last_received + limits.idle_timeout;
        Some(match self.message_since() {
            Some(since) => idle.min(since + limits.message_timeout),
            None => idle.min(self.last_message.saturating_add(limits.no_message_timeout)),
        })
    }

    /// Time at which the message that is being read began.
    fn message_since(&self) -> Option<Duration> {
        match &self.state {
            State::ExpectMessage { since, .. } | State::ExpectChunk { since, .. } => Some(*since),
            State::Skip(skip) => Some(skip.since),
            _ => None,
        }
    }

    fn offers(&self) -> &Extensions {
        self.settings.offers(self.is_over_tls)
    }

    fn say(&self, verdict: ReplyReason, out: &mut Vec<u8>) {
        out.extend_from_slice(verdict.reply().wire());
    }

    /// Handles a command, or a fault, in the current state.
    fn command<'a>(
        &mut self,
        command: Result<Command<'a>, ReplyReason>,
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Event<'a> {
        self.last_received = now;
        self.idle_commands += 1;
        if self.idle_commands > self.settings.limits.idle_commands {
            return self.give_up(ReplyReason::TooManyCommands, out);
        }
        match command {
            Ok(command) if self.is_too_much_junk(&command) => self.give_up(ReplyReason::TooManyCommands, out),
            Ok(Command::Chunk(chunk)) => self.chunk(chunk, now, out),
            Ok(command) => match self.in_order(&command) {
                Ok(()) => self.take(command, out),
                Err(verdict) => self.refuse(verdict, out),
            },
            Err(verdict) => self.refuse(verdict, out),
        }
    }

    /// Counts a command that has nothing to do with mail, and reports whether there have been too many. A client whose
    /// message failed has to send RSET: that is not counted.
    fn is_too_much_junk(&mut self, command: &Command<'_>) -> bool {
        let is_junk = match command {
            Command::Noop | Command::Verify(_) | Command::Help | Command::Hello(..) => true,
            Command::Reset => !std::mem::take(&mut self.has_open_mail),
            _ => false,
        };
        self.junk_commands += u32::from(is_junk);
        is_junk && self.junk_commands > self.settings.limits.junk_commands
    }

    fn take<'a>(&mut self, command: Command<'a>, out: &mut Vec<u8>) -> Event<'a> {
        let (asked, event) = match command {
            Command::Hello(kind, name) => (OpenQuestion::Hello(kind), Event::Hello(kind, name)),
            Command::Mail(mail) => (OpenQuestion::Mail(TransactionState::new(&mail)), Event::Mail(mail)),
            Command::Recipient(recipient) => (OpenQuestion::Recipient, Event::Recipient(recipient)),
            Command::Data => (OpenQuestion::Data, Event::Data),
            Command::Verify(who) => (OpenQuestion::Verify, Event::Verify(who)),
            Command::Noop => (OpenQuestion::Noop, Event::Noop),
            Command::Reset => (OpenQuestion::Reset, Event::Reset),
            Command::Quit => (OpenQuestion::Quit, Event::Quit),
            Command::StartTls => (OpenQuestion::StartTls, Event::StartTls),
            Command::Xclient(xclient) => {
                (OpenQuestion::Xclient { is_logged_in: xclient.is_logged_in() }, Event::Xclient(xclient))
            }
            Command::Auth(mechanism, initial) => return self.auth(mechanism, initial, out),
            Command::Help | Command::Chunk(_) => return self.answered(ReplyReason::Help, out),
        };
        self.asked = asked;
        event
    }

    fn answered<'a>(&mut self, verdict: ReplyReason, out: &mut Vec<u8>) -> Event<'a> {
        self.say(verdict, out);
        Event::Answered
    }

    /// Refuses a command. Recipients beyond the limit are no error: the sender will send the others later (RFC 5321
    /// §4.5.3.1.10), so closing the connection would lose the message for the accepted ones. RCPT or BDAT after a
    /// refused MAIL or BDAT is what a pipelining client sends in good faith (RFC 2920 §3.1, RFC 3030 §4.2).
    fn refuse<'a>(&mut self, verdict: ReplyReason, out: &mut Vec<u8>) -> Event<'a> {
        let verdict = match verdict {
            ReplyReason::BadChunk if !self.offers().chunking => ReplyReason::NotImplemented,
            ReplyReason::BadChunk | ReplyReason::OtherProtocol => return self.give_up(verdict, out),
            _ if matches!(self.state, State::ExpectQuit) => ReplyReason::NoService,
            verdict => verdict,
        };
        if !self.bears(verdict) {
            return self.give_up(ReplyReason::TooManyCommands, out);
        }
        if let State::ExpectRecipient(TransactionState { refused, .. }) = &mut self.state
            && matches!(verdict, ReplyReason::BadRecipient | ReplyReason::PathTooLong | ReplyReason::NeedsSmtpUtf8)
        {
            *refused += 1;
        }
        self.answered(verdict, out)
    }

    /// Counts an error, and reports whether the limit still permits it.
    fn bears(&mut self, verdict: ReplyReason) -> bool {
        let is_error = !matches!(verdict, ReplyReason::TooManyRecipients | ReplyReason::MailFirst);
        self.errors += u32::from(is_error);
        let is_unknown = verdict == ReplyReason::UnknownCommand && matches!(self.state, State::ExpectHello);
        self.unknown += u32::from(is_unknown);
        let limits = &self.settings.limits;
        self.errors <= limits.errors && self.unknown <= limits.unknown_before_hello
    }

    fn give_up<'a>(&mut self, verdict: ReplyReason, out: &mut Vec<u8>) -> Event<'a> {
        self.state = State::Closed;
        self.gave_up = Some(verdict);
        self.answered(verdict, out)
    }

    /// The largest number of bytes of a message that are read.
    fn most_bytes(&self) -> u64 {
        let limits = &self.settings.limits;
        limits.message_bytes.saturating_mul(limits.oversize_factor.max(1))
    }

    /// Handles a piece of the message. Bytes beyond the size limit are read and dropped, because the sender reads a
    /// reply only at the end; at many times the limit the session ends, for that end may never come.
    fn piece<'a>(&mut self, piece: DataPiece<'a>, now: Duration, out: &mut Vec<u8>) -> Event<'a> {
        self.last_received = now;
        let State::ExpectMessage { reader, recipients, .. } = &self.state else { return Event::Answered };
        let bytes = reader.bytes();
        let flaw = reader.fault();
        let limit = self.settings.limits.message_bytes;
        match piece {
            DataPiece::Content(_) if bytes > self.most_bytes() => self.overwhelmed(ReplyReason::MessageEndless, out),
            DataPiece::Content(_) if bytes > limit => Event::Answered,
            DataPiece::Content(content) => Event::Block(content),
            DataPiece::End if bytes > limit => self.discard(ReplyReason::MessageTooBig, self.answers(*recipients), out),
            DataPiece::End => self.whole(bytes, flaw, *recipients, out),
        }
    }

    /// Handles the end of the message.
    fn whole<'a>(&mut self, bytes: u64, flaw: Option<LineFault>, recipients: u32, out: &mut Vec<u8>) -> Event<'a> {
        let times = self.answers(recipients);
        match flaw {
            Some(LineFault::BareLineEnding) => self.discard(ReplyReason::BareLineEnding, times, out),
            Some(LineFault::LineTooLong) => self.discard(ReplyReason::LineTooLong, times, out),
            None => {
                self.asked = OpenQuestion::Message;
                Event::Message { bytes }
            }
        }
    }

    /// Number of replies to the end of a message (RFC 2033 §4.2).
    fn answers(&self, recipients: u32) -> u32 {
        if self.settings.protocol == Protocol::Lmtp { recipients.max(1) } else { 1 }
    }

    fn discard<'a>(&mut self, verdict: ReplyReason, times: u32, out: &mut Vec<u8>) -> Event<'a> {
        self.state = State::ExpectMail;
        self.has_brought_mail();
        (0..times).for_each(|_| self.say(verdict, out));
        Event::Discarded(verdict)
    }

    fn overwhelmed<'a>(&mut self, verdict: ReplyReason, out: &mut Vec<u8>) -> Event<'a> {
        self.state = State::Closed;
        self.say(verdict, out);
        Event::Discarded(verdict)
    }

    fn answer(&mut self, answer: Option<&Reply>, now: Duration, out: &mut Vec<u8>) {
        let asked = std::mem::replace(&mut self.asked, OpenQuestion::Nothing);
        if asked == OpenQuestion::Nothing {
            return;
        }
        // The application's time is not counted against the peer.
        self.last_message += now.saturating_sub(self.last_received);
        self.last_received = now;
        let answer = answer.or_else(|| asked.default_refusal());
        match asked {
            OpenQuestion::Message if self.settings.protocol == Protocol::Lmtp => self.deliver(answer, out),
            OpenQuestion::Chunk(chunk) => self.begin_chunks(chunk, answer, now, out),
            OpenQuestion::Nonce | OpenQuestion::Check | OpenQuestion::Secret | OpenQuestion::Proof => {
                self.login_answered(asked, answer, out)
            }
            _ => {
                let reply = answer.unwrap_or_else(|| self.default_reply(asked));
                out.extend_from_slice(reply.wire());
                self.step(asked, reply.kind(), now);
            }
        }
        if answer.is_some_and(|reply| reply.code() == 421) {
            self.state = State::Closed;
        }
    }

    /// Sets the state after an answer.
    fn step(&mut self, asked: OpenQuestion, kind: ReplySeverity, now: Duration) {
        let positive = matches!(kind, ReplySeverity::Completion | ReplySeverity::Intermediate);
        match asked {
            OpenQuestion::Greeting if !positive => self.state = State::ExpectQuit,
            OpenQuestion::Hello(_) if positive => self.state = State::ExpectMail,
            OpenQuestion::Reset if positive && !matches!(self.state, State::ExpectHello) => {
                self.state = State::ExpectMail
            }
            OpenQuestion::Quit if positive => {
                self.has_quit = true;
                self.state = State::Closed;
            }
            OpenQuestion::Mail(transaction) if positive => {
                self.has_open_mail = true;
                self.state = State::ExpectRecipient(transaction);
            }
            OpenQuestion::Recipient => {
                // An accepted recipient is progress: a message may have as many as the limit says.
                self.idle_commands -= u32::from(positive);
                if let State::ExpectRecipient(TransactionState { accepted, refused, .. }) = &mut self.state {
                    *(if positive { accepted } else { refused }) += 1;
                }
            }
            OpenQuestion::Data if kind == ReplySeverity::Intermediate => {
                let reader = DataReader::new(self.settings.limits.text_line_bytes);
                let State::ExpectRecipient(TransactionState { accepted, .. }) = self.state else { return };
                self.state = State::ExpectMessage { reader, since: now, recipients: accepted };
            }
            OpenQuestion::Message => self.settled(),
            OpenQuestion::Delivery => match &mut self.state {
                State::ExpectDelivery { next, recipients } if *next + 1 < *recipients => *next += 1,
                _ => self.settled(),
            },
            OpenQuestion::StartTls if positive => self.state = State::ExpectTls,
            OpenQuestion::Xclient { is_logged_in } if positive => {
                self.is_authenticated = is_logged_in;
                self.state = State::ExpectHello;
            }
            _ => {}
        }
    }

    /// Notes that a message has had its last reply.
    fn settled(&mut self) {
        self.state = State::ExpectMail;
        self.has_brought_mail();
        self.errors = 0;
    }

    /// Notes that a message has come, accepted or not: the counts of commands without mail begin anew.
    fn has_brought_mail(&mut self) {
        self.idle_commands = 0;
        self.junk_commands = 0;
        self.has_open_mail = false;
        self.last_message = self.last_received;
    }

    /// Handles the answers for each recipient in LMTP, which the application gives for all at once or for each.
    fn deliver(&mut self, answer: Option<&Reply>, out: &mut Vec<u8>) {
        let (State::ExpectMessage { recipients, .. } | State::ExpectChunk { recipients, .. }) = self.state else {
            return;
        };
        match answer {
            None => self.state = State::ExpectDelivery { next: 0, recipients },
            Some(reply) => {
                let times = if reply.code() == 421 { 1 } else { recipients };
                (0..times).for_each(|_| out.extend_from_slice(reply.wire()));
                self.settled();
            }
        }
    }

    /// The replies that let a session continue.
    fn default_reply(&self, asked: OpenQuestion) -> &Reply {
        match asked {
            OpenQuestion::Greeting | OpenQuestion::Xclient { .. } => &self.settings.greeting,
            OpenQuestion::Hello(Hello::Extended | Hello::Lmtp) => self.settings.ehlo(self.is_over_tls),
            OpenQuestion::Hello(Hello::Plain) => &self.settings.helo,
            OpenQuestion::Mail(_) => say!("250 2.1.0 Ok"),
            OpenQuestion::Recipient => say!("250 2.1.5 Ok"),
            OpenQuestion::Data => say!("354 End data with <CR><LF>.<CR><LF>"),
            OpenQuestion::Reset => ReplyReason::Reset.reply(),
            OpenQuestion::Noop => ReplyReason::Noop.reply(),
            OpenQuestion::Quit => ReplyReason::Quit.reply(),
            OpenQuestion::Verify => say!("252 2.5.2 Cannot VRFY user, but will take mail and try"),
            OpenQuestion::StartTls => say!("220 2.0.0 Ready to start TLS"),
            OpenQuestion::Message | OpenQuestion::Delivery | OpenQuestion::Chunk(_) | OpenQuestion::Nothing => {
                say!("250 2.0.0 Ok")
            }
            OpenQuestion::Nonce | OpenQuestion::Check | OpenQuestion::Secret | OpenQuestion::Proof => {
                ReplyReason::Authenticated.reply()
            }
        }
    }
}

/// Checks of the order of commands (RFC 5321 §4.1.4), and of the offer.
impl ServerCore {
    fn in_order(&self, command: &Command<'_>) -> Result<(), ReplyReason> {
        self.admitted(command)?;
        match command {
            Command::Mail(mail) => self.mail_in_order(mail),
            Command::Recipient(recipient) => self.recipient_in_order(recipient),
            Command::Data => self.data_in_order(),
            Command::Hello(kind, _) => self.hello_in_order(*kind),
            Command::StartTls | Command::Auth(..) | Command::Xclient(_) => self.extension_in_order(command),
            _ => Ok(()),
        }
    }

    /// Checks the requirements of the server (RFC 3207 §4, RFC 4954 §6); only QUIT is admitted after a refusal to
    /// greet.
    fn admitted(&self, command: &Command<'_>) -> Result<(), ReplyReason> {
        if matches!(self.state, State::ExpectQuit) && !matches!(command, Command::Quit) {
            return Err(ReplyReason::NoService);
        }
        let requires = &self.settings.requires;
        let is_free = matches!(command, Command::Hello(..) | Command::Noop | Command::Quit | Command::StartTls);
        if requires.tls && !self.is_over_tls && !is_free {
            return Err(ReplyReason::NeedsTls);
        }
        let is_free = is_free || matches!(command, Command::Reset | Command::Auth(..) | Command::Xclient(_));
        if requires.auth && !self.is_authenticated && !is_free && !matches!(self.state, State::ExpectHello) {
            return Err(ReplyReason::NeedsAuth);
        }
        Ok(())
    }

    fn hello_in_order(&self, kind: Hello) -> Result<(), ReplyReason> {
        match (self.settings.protocol, kind) {
            (Protocol::Lmtp, Hello::Extended | Hello::Plain) => Err(ReplyReason::NeedsLhlo),
            (Protocol::Smtp, Hello::Lmtp) => Err(ReplyReason::NeedsEhlo),
            _ => Ok(()),
        }
    }

    fn mail_in_order(&self, mail: &Mail<'_>) -> Result<(), ReplyReason> {
        let offers = self.offers();
        match &self.state {
            State::ExpectHello => Err(ReplyReason::HelloFirst),
            State::ExpectRecipient(_) | State::ExpectChunk { .. } => Err(ReplyReason::NestedMail),
            _ if mail.size.is_some_and(|size| size > self.settings.limits.message_bytes) => {
                Err(ReplyReason::MessageTooBig)
            }
            _ if mail.sender.is_internationalized() && !mail.smtp_utf8 => Err(ReplyReason::NeedsSmtpUtf8),
            _ if mail.body == BodyType::Binary && !offers.binary_mime => Err(ReplyReason::BadParameter),
            _ if (mail.returns.is_some() || mail.envelope_id.is_some()) && !offers.dsn => {
                Err(ReplyReason::UnknownParameter)
            }
            _ if mail.auth.is_some() && self.settings.extensions_over_tls.auth.is_empty() => {
                Err(ReplyReason::UnknownParameter)
            }
            _ => Ok(()),
        }
    }

    fn recipient_in_order(&self, recipient: &Recipient<'_>) -> Result<(), ReplyReason> {
        let transaction = match &self.state {
            State::ExpectHello => return Err(ReplyReason::HelloFirst),
            State::ExpectRecipient(transaction) => transaction,
            State::ExpectChunk { .. } => return Err(ReplyReason::MessageBegun),
            _ => return Err(ReplyReason::MailFirst),
        };
        if transaction.addresses == Addresses::Ascii && recipient.path.is_internationalized() {
            return Err(ReplyReason::NeedsSmtpUtf8);
        }
        if (recipient.notify.is_some() || recipient.original.is_some()) && !self.offers().dsn {
            return Err(ReplyReason::UnknownParameter);
        }
        // RFC 6533 §3: that form is for servers that offer SMTPUTF8, whatever MAIL said.
        if recipient.original.is_some_and(|it| it.is_internationalized()) && !self.offers().smtp_utf8 {
            return Err(ReplyReason::BadParameter);
        }
        if transaction.accepted as usize >= self.settings.limits.recipients {
            return Err(ReplyReason::TooManyRecipients);
        }
        Ok(())
    }

    fn data_in_order(&self) -> Result<(), ReplyReason> {
        match &self.state {
            State::ExpectHello => Err(ReplyReason::HelloFirst),
            State::ExpectChunk { .. } => Err(ReplyReason::MessageBegun),
            State::ExpectRecipient(transaction) => match self.has_recipients(transaction) {
                Ok(()) if transaction.content_kind == ContentKind::Any => Err(ReplyReason::BinaryNeedsChunks),
                outcome => outcome,
            },
            _ => Err(ReplyReason::MailFirst),
        }
    }

    /// Checks that there are recipients. LMTP has 503 if no recipient was accepted (RFC 2033 §4.2), whatever the
    /// reason.
    fn has_recipients(&self, transaction: &TransactionState) -> Result<(), ReplyReason> {
        match transaction {
            TransactionState { accepted: 1.., .. } => Ok(()),
            TransactionState { refused: 1.., .. } if self.settings.protocol == Protocol::Smtp => {
                Err(ReplyReason::NoValidRecipients)
            }
            _ => Err(ReplyReason::RecipientFirst),
        }
    }

    fn chunk_in_order(&self, chunk: Chunk) -> Result<(), ReplyReason> {
        self.admitted(&Command::Chunk(chunk))?;
        match &self.state {
            State::ExpectHello => Err(ReplyReason::HelloFirst),
            State::ExpectChunk { .. } => Ok(()),
            State::ExpectRecipient(transaction) => self.has_recipients(transaction),
            _ => Err(ReplyReason::MailFirst),
        }
    }

    /// Checks the order of STARTTLS, AUTH and XCLIENT: none of them is allowed within a transaction.
    fn extension_in_order(&self, command: &Command<'_>) -> Result<(), ReplyReason> {
        let offers = self.offers();
        let is_offered = match command {
            Command::StartTls => offers.starttls || self.is_over_tls && self.settings.extensions.starttls,
            Command::Auth(..) => !self.settings.extensions_over_tls.auth.is_empty(),
            _ => !offers.xclient.is_empty(),
        };
        match (&self.state, command) {
            _ if !is_offered => Err(ReplyReason::NotImplemented),
            (State::ExpectRecipient(_) | State::ExpectChunk { .. }, _) => Err(ReplyReason::NestedMail),
            (_, Command::StartTls) if self.is_over_tls => Err(ReplyReason::TlsActive),
            (State::ExpectHello, Command::StartTls | Command::Auth(..)) => Err(ReplyReason::HelloFirst),
            (_, Command::Auth(..)) if self.is_authenticated => Err(ReplyReason::AlreadyAuthenticated),
            (_, Command::Auth(mechanism, _)) => self.mechanism_in_order(*mechanism),
            _ => Ok(()),
        }
    }

    fn mechanism_in_order(&self, mechanism: Option<Mechanism>) -> Result<(), ReplyReason> {
        let here = self.offers().auth;
        let over_tls = self.settings.extensions_over_tls.auth;
        match mechanism {
            Some(mechanism) if here.has(mechanism) => Ok(()),
            Some(mechanism) if over_tls.has(mechanism) => Err(ReplyReason::AuthNeedsTls),
            _ => Err(ReplyReason::UnknownMechanism),
        }
    }
}

/// Messages by BDAT (RFC 3030).
impl ServerCore {
    fn chunk<'a>(&mut self, chunk: Chunk, now: Duration, out: &mut Vec<u8>) -> Event<'a> {
        if !self.offers().chunking {
            return self.refuse(ReplyReason::NotImplemented, out);
        }
        let so_far = if let State::ExpectChunk { reader, .. } = &self.state { reader.bytes() } else { 0 };
        let total = so_far.saturating_add(chunk.bytes);
        let limit = self.settings.limits.message_bytes;
        if total > self.most_bytes() {
            return self.overwhelmed(ReplyReason::MessageTooBig, out);
        }
        if let Err(verdict) = self.chunk_in_order(chunk) {
            return self.skip(chunk, ChunkRefusal::Command(verdict), 1, now);
        }
        match &mut self.state {
            State::ExpectRecipient(TransactionState { accepted, .. }) if total > limit => {
                let times = *accepted;
                self.skip(chunk, ChunkRefusal::Message(ReplyReason::MessageTooBig), times, now)
            }
            State::ExpectChunk { recipients, .. } if total > limit => {
                let times = *recipients;
                self.skip(chunk, ChunkRefusal::Message(ReplyReason::MessageTooBig), times, now)
            }
            State::ExpectChunk { reader, .. } => {
                reader.begin(chunk);
                Event::Answered
            }
            _ => {
                self.asked = OpenQuestion::Chunk(chunk);
                Event::Data
            }
        }
    }

    /// Handles the application's answer to the first BDAT of a message.
    fn begin_chunks(&mut self, chunk: Chunk, answer: Option<&Reply>, now: Duration, out: &mut Vec<u8>) {
        let State::ExpectRecipient(TransactionState { accepted, content_kind: octets, .. }) = self.state else {
            return;
        };
        match answer {
            // It is the final reply: nothing more is read.
            Some(reply) if reply.code() == 421 => out.extend_from_slice(reply.wire()),
            Some(reply) if !reply.is_positive() => {
                // The chunks that follow in the pipeline must not be accepted as the message (RFC 3030 §2).
                self.state = State::ExpectMail;
                self.skip(chunk, ChunkRefusal::Said(reply.clone()), accepted, now);
            }
            _ => {
                let mut reader = ChunkReader::new(octets, self.settings.limits.text_line_bytes);
                reader.begin(chunk);
                self.state = State::ExpectChunk { reader, since: now, recipients: accepted };
            }
        }
    }

    /// Refuses a chunk after its bytes have been read; in LMTP with a reply for each recipient if it was the last.
    fn skip<'a>(&mut self, chunk: Chunk, say: ChunkRefusal, recipients: u32, now: Duration) -> Event<'a> {
        let then = std::mem::replace(&mut self.state, State::ExpectMail);
        let times = if chunk.last { self.answers(recipients) } else { 1 };
        self.state = State::Skip(Box::new(SkippedChunk { left: chunk.bytes, since: now, then, say, times }));
        Event::Answered
    }

    fn skip_on<'a>(&mut self, input: &mut &[u8], now: Duration, out: &mut Vec<u8>) -> Option<Event<'a>> {
        let State::Skip(skip) = &mut self.state else { return None };
        let length = usize::try_from(skip.left).map_or(input.len(), |left| left.min(input.len()));
        *input = &input[length..];
        skip.left -= length as u64;
        if length > 0 {
            self.last_received = now;
        }
        if skip.left > 0 {
            return None;
        }
        let State::Skip(skip) = std::mem::replace(&mut self.state, State::ExpectMail) else { return None };
        Some(match skip.say {
            ChunkRefusal::Command(verdict) => {
                self.state = skip.then;
                // If every RCPT was refused, so is every chunk that was already in the pipeline: these are no errors.
                let is_in_good_faith =
                    matches!(self.state, State::ExpectRecipient(TransactionState { refused: 1.., .. }));
                if is_in_good_faith { self.answered(verdict, out) } else { self.refuse(verdict, out) }
            }
            ChunkRefusal::Message(verdict) => self.discard(verdict, skip.times, out),
            ChunkRefusal::Said(reply) => {
                (0..skip.times).for_each(|_| out.extend_from_slice(reply.wire()));
                Event::Answered
            }
        })
    }

    fn chunk_piece<'a>(&mut self, piece: chunk::ChunkPiece<'a>, now: Duration, out: &mut Vec<u8>) -> Event<'a> {
        self.last_received = now;
        let State::ExpectChunk { reader, recipients, .. } = &self.state else { return Event::Answered };
        match piece {
            chunk::ChunkPiece::Content(content) => Event::Block(content),
            chunk::ChunkPiece::End(Chunk { last: true, .. }) => {
                self.whole(reader.bytes(), reader.fault(), *recipients, out)
            }
            chunk::ChunkPiece::End(chunk) => {
                // A chunk that is not empty is progress, as a recipient is.
                self.idle_commands -= u32::from(chunk.bytes > 0);
                self.answered(ReplyReason::ChunkAccepted, out)
            }
        }
    }
}

/// AUTH (RFC 4954): replies and events of an exchange; [`AuthState`] has its states.
impl ServerCore {
    fn auth<'a>(&mut self, mechanism: Option<Mechanism>, initial: Option<&[u8]>, out: &mut Vec<u8>) -> Event<'a> {
        let Some(mechanism) = mechanism else { return self.refuse(ReplyReason::UnknownMechanism, out) };
        let Ok(login) = AuthState::new(mechanism, initial) else { return self.refuse(ReplyReason::BadResponse, out) };
        self.state = State::Authenticate(Box::new(login));
        if mechanism.needs_server_nonce() {
            self.asked = OpenQuestion::Nonce;
            return Event::Nonce;
        }
        self.begin_login(&[0; 18], out);
        Event::Answered
    }

    /// Changes the exchange, and returns the event that follows.
    fn with_login(&mut self, out: &mut Vec<u8>, change: impl FnOnce(&mut AuthState, &mut Vec<u8>)) {
        let State::Authenticate(login) = &mut self.state else { return };
        change(login, out);
        match login.outcome() {
            Some(Ok(())) => self.is_authenticated = true,
            Some(Err(Some(verdict))) => {
                if self.bears(verdict) {
                    self.say(verdict, out);
                } else {
                    self.give_up(ReplyReason::TooManyCommands, out);
                }
            }
            Some(Err(None)) | None => {}
        }
    }

    fn begin_login(&mut self, nonce: &Nonce, out: &mut Vec<u8>) {
        let identity = Arc::clone(&self.settings);
        self.with_login(out, |login, out| login.begin(nonce, &identity.name, out));
    }

    fn response(&mut self, line: Result<&[u8], ReplyReason>, out: &mut Vec<u8>) {
        self.with_login(out, |login, out| login.response(line, out));
    }

    fn know(&mut self, secret: Option<&Secret>, out: &mut Vec<u8>) {
        self.with_login(out, |login, out| login.provide_secret(secret, out));
    }

    fn login_answered(&mut self, asked: OpenQuestion, answer: Option<&Reply>, out: &mut Vec<u8>) {
        self.with_login(out, |login, out| match (asked, answer) {
            (OpenQuestion::Check, answer) => login.apply_verdict(answer, out),
            (OpenQuestion::Proof, None) => login.check_proof(out),
            (_, Some(reply)) if !reply.is_positive() => login.refused(reply, out),
            _ => login.unavailable(),
        });
    }

    fn login_has_news(&self) -> bool {
        matches!(&self.state, State::Authenticate(login) if login.has_event())
    }

    /// Returns the exchange's question, or its result.
    fn login_news(&mut self, out: &mut Vec<u8>) -> Event<'_> {
        let outcome = if let State::Authenticate(login) = &self.state { login.outcome() } else { None };
        if let Some(outcome) = outcome {
            self.state = State::ExpectMail;
            if self.is_authenticated {
                return Event::Authenticated;
            }
            let is_wrong = matches!(outcome, Err(None | Some(ReplyReason::NotAuthenticated)));
            self.failed_logins += u32::from(is_wrong);
            // A refusal by the application is an error like a refusal by the session itself.
            if outcome == Err(None) && !self.bears(ReplyReason::NotAuthenticated) {
                self.give_up(ReplyReason::TooManyCommands, out);
            } else if self.failed_logins >= self.settings.limits.login_failures {
                self.give_up(ReplyReason::TooManyLogins, out);
            }
            return Event::NotAuthenticated;
        }
        let State::Authenticate(login) = &self.state else { return Event::Answered };
        let Some(auth) = login.question() else { return Event::Answered };
        if login.holds_proof() {
            self.asked = OpenQuestion::Proof;
            return Event::Proof(auth);
        }
        self.asked = if auth.is_lookup() { OpenQuestion::Secret } else { OpenQuestion::Check };
        Event::Auth(auth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::sasl::MAX_EXCHANGE_LINE_BYTES;
    use proptest::prelude::*;

    const NOW: Duration = Duration::ZERO;

    /// A session without limits on errors and time.
    fn patient() -> Server {
        let limits = Limits {
            errors: u32::MAX,
            unknown_before_hello: u32::MAX,
            idle_commands: u32::MAX,
            junk_commands: u32::MAX,
            message_bytes: u64::MAX,
            ..Limits::default()
        };
        let mut offer = Offer::new(&limits);
        offer.extensions.auth = crate::sasl::Mechanisms::ALL;
        let mut server = Server::new(Arc::new(ServerSettings::with_offer("test", limits, offer)), NOW);
        server.answer(None, NOW, &mut Vec::new());
        server
    }

    /// The most memory that the session held while it received that many blocks.
    fn heap_bytes(server: &mut Server, block: &[u8], blocks: usize) -> usize {
        let mut most = 0;
        let mut out = Vec::new();
        for _ in 0..blocks {
            let mut input = block;
            while let Some(event) = server.next_event(&mut input, NOW, &mut out) {
                if event.asks() {
                    server.answer(None, NOW, &mut out);
                }
            }
            out.clear();
            most = most.max(server.lines.heap_bytes());
        }
        most
    }

    #[test]
    fn nothing_a_peer_says_makes_a_session_grow() {
        let endless: [&[u8]; 11] = [
            b"x",
            b"NOOP x",
            b"\r",
            b"\n",
            b"\0",
            b"NOOP\r\n",
            b"RCPT TO:<c@d>\r\n",
            b"VRFY <",
            b"xxxxx\r\nxxx",
            b"AUTH PLAIN x",
            b"BDAT 1000000\r\n",
        ];
        let before: [&[u8]; 5] = [
            b"",
            b"EHLO a\r\nMAIL FROM:<a@b>\r\n",
            b"EHLO a\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n",
            b"EHLO a\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nBDAT 99999999\r\n",
            b"EHLO a\r\nAUTH LOGIN\r\n",
        ];
        for (before, endless) in before.iter().flat_map(|before| endless.map(|endless| (before, endless))) {
            let mut server = patient();
            heap_bytes(&mut server, before, 1);
            let most = heap_bytes(&mut server, endless, 5_000);
            assert!(most <= 2 * MAX_EXCHANGE_LINE_BYTES, "{most} bytes for {:?}", String::from_utf8_lossy(endless));
        }
        assert!(size_of::<Server>() <= 256, "{} bytes a session", size_of::<Server>());
    }

    proptest! {
        #[test]
        fn a_block_of_anything_holds_one_line_at_most(block in proptest::collection::vec(any::<u8>(), 1..2000)) {
            prop_assert!(heap_bytes(&mut patient(), &block, 3) <= 2 * MAX_EXCHANGE_LINE_BYTES);
        }
    }
}
