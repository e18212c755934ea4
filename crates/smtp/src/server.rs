//! The server's side of a session: commands in, events out, answers back in.
//!
//! ```text
//! ExpectHello ──EHLO──▶ ExpectMail ──MAIL──▶ ExpectRecipient ──DATA──▶ ExpectMessage
//!                          ▲  ▲                 │ RCPT … RCPT             │
//!                          │  └────── RSET ─────┘                        │
//!                          └──────────────── <CRLF>.<CRLF> ──────────────┘
//! any state ── QUIT, 421, too many errors, time-out ──▶ Closed
//! ```
//! An event that [asks](Event::asks) waits for [`Server::answer`]; until then no further event comes, so that
//! replies leave in the order of their commands (RFC 2920 §3.2). All else the session answers by itself.
use crate::address::Path;
use crate::command::{Command, Hello, LONGEST_LINE_BYTES, Mail};
use crate::data::{DataReader, Flaw, Piece};
use crate::extensions::Extensions;
use crate::limits::Limits;
use crate::line::{Line, LineReader};
use crate::reply::{Kind, Reply, say};
use crate::verdict::Verdict;
use std::sync::Arc;
use std::time::Duration;

/// What all sessions of a server share: its limits, and the replies that bear its name.
#[derive(Clone, Debug)]
pub struct Identity {
    /// How much of anything.
    pub limits: Limits,
    /// What EHLO offers.
    pub extensions: Extensions,
    greeting: Reply,
    helo: Reply,
    ehlo: Reply,
}

impl Identity {
    /// A server of that name with those limits, offering everything this crate speaks.
    pub fn new(name: &str, limits: Limits) -> Self {
        let extensions = Extensions::all(limits.message_bytes);
        Self {
            greeting: Reply::new(220, &format!("{name} ESMTP mailrun")),
            helo: Reply::new(250, name),
            ehlo: Reply::new(250, &extensions.render(name)),
            limits,
            extensions,
        }
    }
}

/// What happened in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Asks: EHLO or HELO, and the name the client gives itself.
    Hello(Hello, &'a [u8]),
    /// Asks: MAIL.
    Mail(Mail<'a>),
    /// Asks: RCPT.
    Recipient(Path<'a>),
    /// Asks: DATA; the default answer is 354.
    Data,
    /// Octets of the message, unstuffed.
    Block(&'a [u8]),
    /// Asks: the message is whole; a positive answer takes responsibility for it (RFC 5321 §6.1).
    Message {
        /// Octets of the message, unstuffed.
        bytes: u64,
    },
    /// The message ended and was refused; the transaction is over.
    Discarded(Verdict),
    /// RSET: the transaction, if there was one, is over. (A granted [`Event::Hello`] ends it too.)
    Reset,
    /// Asks: VRFY; the default answer is 252.
    Verify(&'a [u8]),
    /// The session answered a command by itself.
    Answered,
}

impl Event<'_> {
    /// Whether it waits for [`Server::answer`].
    pub fn asks(&self) -> bool {
        !matches!(self, Self::Block(_) | Self::Discarded(_) | Self::Reset | Self::Answered)
    }
}

/// What the session waits for.
#[derive(Debug)]
enum State {
    ExpectHello,
    ExpectMail,
    ExpectRecipient { accepted: usize, refused: usize, addresses: Addresses },
    ExpectMessage { reader: DataReader, since: Duration },
    Closed,
}

/// What MAIL said of the addresses of its transaction (RFC 6531 §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addresses {
    Ascii,
    Utf8,
}

/// The question that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    Greeting,
    Hello(Hello),
    Mail(Addresses),
    Recipient,
    Data,
    Message,
    Verify,
}

/// A session as the server sees it.
#[derive(Debug)]
pub struct Server {
    lines: LineReader,
    dialogue: Dialogue,
}

impl Server {
    /// A session that has just begun: it asks for the greeting, so the first call is [`Server::answer`].
    pub fn new(identity: Arc<Identity>, now: Duration) -> Self {
        let dialogue = Dialogue {
            identity,
            state: State::ExpectHello,
            asked: Asked::Greeting,
            errors: 0,
            idle_commands: 0,
            heard: now,
            has_quit: false,
        };
        Self { lines: LineReader::default(), dialogue }
    }

    /// Takes one event off the front of `input`. Replies the session gives by itself go to `out`. `None` needs
    /// more bytes, or an answer, or is the end: see [`Server::is_closed`].
    pub fn next_event<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Option<Event<'s>> {
        if self.dialogue.asked != Asked::Nothing || self.is_closed() {
            return None;
        }
        if let State::ExpectMessage { reader, .. } = &mut self.dialogue.state {
            let piece = reader.next(input)?;
            return Some(self.dialogue.piece(piece, now, out));
        }
        let line = self.lines.next(input, LONGEST_LINE_BYTES);
        let command = match line {
            Line::Partial => return None,
            Line::Whole(line) => Command::parse(line),
            Line::BareLf => Err(Verdict::BareLineFeed),
            Line::TooLong => Err(Verdict::LineTooLong),
        };
        Some(self.dialogue.command(command, now, out))
    }

    /// Answers the open question; `None` gives the answer that lets the session go on. A 421 ends it.
    pub fn answer(&mut self, answer: Option<&Reply>, now: Duration, out: &mut Vec<u8>) {
        self.dialogue.answer(answer, now, out);
    }

    /// When [`Server::tick`] has something to do: never while an answer is awaited, for then it is not the peer that
    /// is silent.
    pub fn deadline(&self) -> Option<Duration> {
        self.dialogue.deadline()
    }

    /// Ends the session with 421 if it has been silent for too long.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<u8>) {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            self.close(Verdict::Timeout, out);
        }
    }

    /// Ends the session with a last word. A question that is open stays without answer.
    pub fn close(&mut self, verdict: Verdict, out: &mut Vec<u8>) {
        if !self.is_closed() {
            self.dialogue.say(verdict, out);
            self.dialogue.state = State::Closed;
            self.dialogue.asked = Asked::Nothing;
        }
    }

    /// Nothing more is to be read; what is in `out` is to be sent, then the connection closed.
    pub fn is_closed(&self) -> bool {
        matches!(self.dialogue.state, State::Closed)
    }

    /// Whether it was the client that ended the session, with QUIT.
    pub fn has_quit(&self) -> bool {
        self.dialogue.has_quit
    }

    /// Whether the session waits for [`Server::answer`].
    pub fn awaits_answer(&self) -> bool {
        self.dialogue.asked != Asked::Nothing
    }
}

/// Everything of a session but its half-read line.
#[derive(Debug)]
struct Dialogue {
    identity: Arc<Identity>,
    state: State,
    asked: Asked,
    errors: u32,
    idle_commands: u32,
    heard: Duration,
    /// The client said QUIT.
    has_quit: bool,
}

impl Dialogue {
    fn deadline(&self) -> Option<Duration> {
        let limits = &self.identity.limits;
        match self.state {
            State::Closed => None,
            _ if self.asked != Asked::Nothing => None,
            State::ExpectMessage { since, .. } => Some((self.heard + limits.idle).min(since + limits.message_time)),
            _ => Some(self.heard + limits.idle),
        }
    }

    fn say(&self, verdict: Verdict, out: &mut Vec<u8>) {
        out.extend_from_slice(verdict.reply().wire());
    }

    /// A command, or what is wrong with it, in the state it meets.
    fn command<'a>(&mut self, command: Result<Command<'a>, Verdict>, now: Duration, out: &mut Vec<u8>) -> Event<'a> {
        self.heard = now;
        self.idle_commands += 1;
        if self.idle_commands > self.identity.limits.idle_commands {
            return self.give_up(out);
        }
        match command.and_then(|command| self.in_order(command)) {
            Ok(command) => self.take(command, out),
            Err(verdict) => self.refuse(verdict, out),
        }
    }

    /// Whether the command may come now (RFC 5321 §4.1.4).
    fn in_order<'a>(&self, command: Command<'a>) -> Result<Command<'a>, Verdict> {
        let limits = &self.identity.limits;
        match (&self.state, &command) {
            (State::ExpectHello, Command::Mail(_) | Command::Recipient(_) | Command::Data) => Err(Verdict::HelloFirst),
            (State::ExpectRecipient { .. }, Command::Mail(_)) => Err(Verdict::NestedMail),
            (State::ExpectMail, Command::Recipient(_) | Command::Data) => Err(Verdict::MailFirst),
            (_, Command::Mail(mail)) if mail.size.is_some_and(|size| size > limits.message_bytes) => {
                Err(Verdict::MessageTooBig)
            }
            (_, Command::Mail(mail)) if mail.sender.is_internationalized() && !mail.smtp_utf8 => {
                Err(Verdict::NeedsSmtpUtf8)
            }
            (State::ExpectRecipient { addresses: Addresses::Ascii, .. }, Command::Recipient(path))
                if path.is_internationalized() =>
            {
                Err(Verdict::NeedsSmtpUtf8)
            }
            (State::ExpectRecipient { accepted, .. }, Command::Recipient(_)) if *accepted >= limits.recipients => {
                Err(Verdict::TooManyRecipients)
            }
            (State::ExpectRecipient { accepted: 0, refused: 0, .. }, Command::Data) => Err(Verdict::RecipientFirst),
            (State::ExpectRecipient { accepted: 0, .. }, Command::Data) => Err(Verdict::NoValidRecipients),
            _ => Ok(command),
        }
    }

    fn take<'a>(&mut self, command: Command<'a>, out: &mut Vec<u8>) -> Event<'a> {
        let (asked, event) = match command {
            Command::Hello(kind, name) => (Asked::Hello(kind), Event::Hello(kind, name)),
            Command::Mail(mail) => (Asked::Mail(addresses_of(&mail)), Event::Mail(mail)),
            Command::Recipient(path) => (Asked::Recipient, Event::Recipient(path)),
            Command::Data => (Asked::Data, Event::Data),
            Command::Verify(who) => (Asked::Verify, Event::Verify(who)),
            Command::Noop => return self.answered(Verdict::Idle, out),
            Command::Help => return self.answered(Verdict::Help, out),
            Command::Reset => return self.reset(out),
            Command::Quit => {
                self.has_quit = true;
                self.state = State::Closed;
                return self.answered(Verdict::Bye, out);
            }
        };
        self.asked = asked;
        event
    }

    fn answered<'a>(&mut self, verdict: Verdict, out: &mut Vec<u8>) -> Event<'a> {
        self.say(verdict, out);
        Event::Answered
    }

    fn reset<'a>(&mut self, out: &mut Vec<u8>) -> Event<'a> {
        if !matches!(self.state, State::ExpectHello) {
            self.state = State::ExpectMail;
        }
        self.say(Verdict::Reset, out);
        Event::Reset
    }

    /// Recipients beyond the limit are no error: the sender is to send the others later (RFC 5321 §4.5.3.1.10), so
    /// hanging up on it would lose the message for those that were taken. RCPT after a refused MAIL is what a
    /// pipelining client sends in good faith (RFC 2920 §3.1).
    fn refuse<'a>(&mut self, verdict: Verdict, out: &mut Vec<u8>) -> Event<'a> {
        let is_error = !matches!(verdict, Verdict::TooManyRecipients | Verdict::MailFirst);
        self.errors += u32::from(is_error);
        if self.errors > self.identity.limits.errors {
            return self.give_up(out);
        }
        if let State::ExpectRecipient { refused, .. } = &mut self.state
            && matches!(verdict, Verdict::BadRecipient | Verdict::PathTooLong | Verdict::NeedsSmtpUtf8)
        {
            *refused += 1;
        }
        self.answered(verdict, out)
    }

    fn give_up<'a>(&mut self, out: &mut Vec<u8>) -> Event<'a> {
        self.state = State::Closed;
        self.answered(Verdict::TooManyCommands, out)
    }

    /// A piece of the message. What lies beyond the size limit is read and not handed on; at twice the limit
    /// the session ends, for such a sender need not be read to an end that may never come.
    fn piece<'a>(&mut self, piece: Piece<'a>, now: Duration, out: &mut Vec<u8>) -> Event<'a> {
        self.heard = now;
        let State::ExpectMessage { reader, .. } = &self.state else { return Event::Answered };
        let (bytes, flaw, limit) = (reader.bytes(), reader.flaw(), self.identity.limits.message_bytes);
        match piece {
            Piece::Content(_) if bytes > limit.saturating_mul(2) => {
                self.state = State::Closed;
                self.say(Verdict::MessageTooBig, out);
                Event::Discarded(Verdict::MessageTooBig)
            }
            Piece::Content(_) if bytes > limit => Event::Answered,
            Piece::Content(content) => Event::Block(content),
            Piece::End if bytes > limit => self.discard(Verdict::MessageTooBig, out),
            Piece::End => match flaw {
                Some(Flaw::BareLineEnding) => self.discard(Verdict::BareLineEnding, out),
                Some(Flaw::LineTooLong) => self.discard(Verdict::LineTooLong, out),
                None => {
                    self.asked = Asked::Message;
                    Event::Message { bytes }
                }
            },
        }
    }

    fn discard<'a>(&mut self, verdict: Verdict, out: &mut Vec<u8>) -> Event<'a> {
        self.state = State::ExpectMail;
        self.idle_commands = 0;
        self.say(verdict, out);
        Event::Discarded(verdict)
    }

    fn answer(&mut self, answer: Option<&Reply>, now: Duration, out: &mut Vec<u8>) {
        let asked = std::mem::replace(&mut self.asked, Asked::Nothing);
        if asked == Asked::Nothing {
            return;
        }
        self.heard = now;
        let reply = answer.unwrap_or_else(|| default_reply(asked, &self.identity));
        out.extend_from_slice(reply.wire());
        let (kind, is_last) = (reply.kind(), reply.code() == 421);
        self.step(asked, kind, now);
        if is_last {
            self.state = State::Closed;
        }
    }

    /// The state after an answer.
    fn step(&mut self, asked: Asked, kind: Kind, now: Duration) {
        let positive = matches!(kind, Kind::Completion | Kind::Intermediate);
        match asked {
            Asked::Greeting if !positive => self.state = State::Closed,
            Asked::Hello(_) if positive => self.state = State::ExpectMail,
            Asked::Mail(addresses) if positive => {
                self.state = State::ExpectRecipient { accepted: 0, refused: 0, addresses };
            }
            Asked::Recipient => {
                // A recipient that is taken is progress: a message may have as many as the limit says.
                self.idle_commands -= u32::from(positive);
                if let State::ExpectRecipient { accepted, refused, .. } = &mut self.state {
                    *(if positive { accepted } else { refused }) += 1;
                }
            }
            Asked::Data if kind == Kind::Intermediate => {
                let reader = DataReader::new(self.identity.limits.text_line_bytes);
                self.state = State::ExpectMessage { reader, since: now };
            }
            Asked::Message => {
                self.state = State::ExpectMail;
                self.idle_commands = 0;
                self.errors = 0;
            }
            _ => {}
        }
    }
}

fn addresses_of(mail: &Mail<'_>) -> Addresses {
    if mail.smtp_utf8 { Addresses::Utf8 } else { Addresses::Ascii }
}

/// The answers that let a session go on.
fn default_reply(asked: Asked, identity: &Identity) -> &Reply {
    match asked {
        Asked::Greeting => &identity.greeting,
        Asked::Hello(Hello::Extended) => &identity.ehlo,
        Asked::Hello(Hello::Plain) => &identity.helo,
        Asked::Mail(_) => say!("250 2.1.0 Ok"),
        Asked::Recipient => say!("250 2.1.5 Ok"),
        Asked::Data => say!("354 End data with <CR><LF>.<CR><LF>"),
        Asked::Message | Asked::Nothing => say!("250 2.0.0 Ok"),
        Asked::Verify => say!("252 2.5.2 Cannot VRFY user, but will take mail and try"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Duration = Duration::ZERO;

    /// A session that never gives up.
    fn patient() -> Server {
        let limits = Limits { errors: u32::MAX, idle_commands: u32::MAX, message_bytes: u64::MAX, ..Limits::default() };
        let mut server = Server::new(Arc::new(Identity::new("test", limits)), NOW);
        server.answer(None, NOW, &mut Vec::new());
        server
    }

    /// The most memory that the session held while it heard that many blocks.
    fn heap_bytes(server: &mut Server, block: &[u8], blocks: usize) -> usize {
        let (mut most, mut out) = (0, Vec::new());
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
        let endless: [&[u8]; 9] =
            [b"x", b"NOOP x", b"\r", b"\n", b"\0", b"NOOP\r\n", b"RCPT TO:<c@d>\r\n", b"VRFY <", b"xxxxx\r\nxxx"];
        let before: [&[u8]; 3] =
            [b"", b"EHLO a\r\nMAIL FROM:<a@b>\r\n", b"EHLO a\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n"];
        for (before, endless) in before.iter().flat_map(|before| endless.map(|endless| (before, endless))) {
            let mut server = patient();
            heap_bytes(&mut server, before, 1);
            let most = heap_bytes(&mut server, endless, 5_000);
            assert!(most <= 2 * LONGEST_LINE_BYTES, "{most} bytes for {:?}", String::from_utf8_lossy(endless));
        }
        assert!(size_of::<Server>() <= 256, "{} bytes a session", size_of::<Server>());
    }

    proptest! {
        #[test]
        fn a_block_of_anything_holds_one_line_at_most(block in proptest::collection::vec(any::<u8>(), 1..2000)) {
            prop_assert!(heap_bytes(&mut patient(), &block, 3) <= 2 * LONGEST_LINE_BYTES);
        }
    }
}
