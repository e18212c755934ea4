//! The client's side of a session: replies in, commands out.
//!
//! ```text
//! Greeting ─▶ Hello ─▶ Ready ──begin──▶ MAIL ─▶ RCPT … ─▶ DATA ─354─▶ the caller writes the message
//!                        ▲                │        │        │             │ message_sent
//!                        └──── RSET ◀─────┴────────┴────────┘             ▼
//!                        └───────────────── reply to the final dot ◀── Message
//! ```
//! The session keeps the queue of replies it expects, so pipelined and lock-step dialogues are one machine: they
//! differ only in how many commands [`Client::begin`] writes at once. The caller asks [`Client::wants`] what the
//! session wants next, and writes the message itself, uncopied.
use crate::data::END;
use crate::envelope::Envelope;
use crate::extensions::Extensions;
use crate::reply::{Malformed, Received, ReplyReader};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What a reply answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// The connection.
    Greeting,
    /// EHLO, or HELO after it.
    Hello,
    /// MAIL.
    Mail,
    /// RCPT of that number.
    Recipient(u32),
    /// DATA.
    Data,
    /// The final dot.
    Message,
    /// RSET.
    Reset,
    /// QUIT.
    Quit,
}

/// A reply and what it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// What it answers.
    pub to: Verb,
    /// The reply.
    pub reply: Received<'a>,
    /// The transaction it belongs to is over.
    pub ends: Option<Outcome>,
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer took responsibility for the recipients it accepted.
    Accepted,
    /// It did not.
    Refused,
}

/// What the session wants of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Replies: read.
    Replies,
    /// A transaction to [begin](Client::begin), or [quit](Client::quit).
    Transaction,
    /// The message and its end of data, then [`Client::message_sent`].
    Message,
    /// Nothing more: close the connection.
    Close,
}

/// How far commands run ahead of replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pipelining {
    /// One command at a time.
    #[default]
    Off,
    /// MAIL, RCPT and DATA together, where the peer offers PIPELINING (RFC 2920).
    Group,
}

/// What a peer did that ends the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A line that is no reply.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A reply to nothing.
    #[error("the peer sent reply {0} to nothing")]
    Unasked(u16),
}

/// A session as the client sees it.
#[derive(Debug)]
pub struct Client {
    reader: ReplyReader,
    dialogue: Dialogue,
}

impl Client {
    /// A session on a connection that stands; the peer speaks first. `name` goes into EHLO.
    pub fn new(name: Arc<str>, pipelining: Pipelining, now: Duration) -> Self {
        let dialogue = Dialogue {
            name,
            pipelining,
            expected: VecDeque::from([Verb::Greeting]),
            extensions: Extensions::default(),
            greeting: Greeting::Ehlo,
            progress: Progress::Idle,
            envelope: None,
            accepted: 0,
            mail_stands: false,
            heard: now,
        };
        Self { reader: ReplyReader::default(), dialogue }
    }

    /// Takes one reply off the front of `input`; the commands that follow from it go to `out`. `None` needs more
    /// bytes. A session that is over takes no more replies: what still comes is passed over.
    ///
    /// # Errors
    /// [`Violation`], after which the connection is of no more use.
    pub fn next_event<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event<'s>>, Violation> {
        if self.dialogue.progress == Progress::Closed {
            *input = &[];
            return Ok(None);
        }
        let read = self.reader.next(input).inspect_err(|_| self.dialogue.progress = Progress::Closed)?;
        let Some(reply) = read else { return Ok(None) };
        self.dialogue.heard = now;
        let Some(to) = self.dialogue.expected.pop_front() else {
            let (to, ends) = self.dialogue.interrupted(&reply)?;
            return Ok(Some(Event { to, reply, ends }));
        };
        let ends = self.dialogue.step(to, &reply, out);
        if reply.code() == 421 {
            self.dialogue.progress = Progress::Closed;
        }
        Ok(Some(Event { to, reply, ends }))
    }

    /// Begins a transaction: MAIL, or MAIL, RCPT and DATA where that is agreed.
    pub fn begin(&mut self, envelope: Arc<Envelope>, now: Duration, out: &mut Vec<u8>) {
        self.dialogue.heard = now;
        self.dialogue.begin(envelope, out);
    }

    /// The message and its end of data have been written.
    pub fn message_sent(&mut self, now: Duration) {
        if self.dialogue.progress == Progress::Closed {
            return;
        }
        self.dialogue.heard = now;
        self.dialogue.expected.push_back(Verb::Message);
        self.dialogue.progress = Progress::Idle;
        self.dialogue.mail_stands = false;
    }

    /// Part of a message went out: the peer is not silent, it is being talked to.
    pub fn progressed(&mut self, now: Duration) {
        self.dialogue.heard = now;
    }

    /// Says QUIT.
    pub fn quit(&mut self, now: Duration, out: &mut Vec<u8>) {
        self.dialogue.heard = now;
        self.dialogue.send(b"QUIT\r\n", Verb::Quit, out);
        self.dialogue.progress = Progress::Closing;
    }

    /// What the session wants next.
    pub fn wants(&self) -> Want {
        match self.dialogue.progress {
            Progress::Closed => Want::Close,
            Progress::GoAhead => Want::Message,
            Progress::Idle if self.dialogue.expected.is_empty() => Want::Transaction,
            _ => Want::Replies,
        }
    }

    /// Whether the next transaction may [begin](Client::begin) in the same write as the message just
    /// [sent](Client::message_sent): RFC 2920 §3.1 lets MAIL follow the end of data.
    pub fn may_begin_early(&self) -> bool {
        self.dialogue.groups() && matches!(self.dialogue.progress, Progress::Idle)
    }

    /// What the peer's EHLO offered.
    pub fn extensions(&self) -> &Extensions {
        &self.dialogue.extensions
    }

    /// The reply that is waited for, if any.
    pub fn waits_for(&self) -> Option<Verb> {
        self.dialogue.expected.front().copied()
    }

    /// When `patience` with the peer ends, if anything is waited for.
    pub fn deadline(&self, patience: Duration) -> Option<Duration> {
        (!self.dialogue.expected.is_empty()).then(|| self.dialogue.heard + patience)
    }
}

/// Where in the current transaction the session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// None is open.
    Idle,
    /// Commands are out.
    Asking,
    /// 354 was read.
    GoAhead,
    /// QUIT is out.
    Closing,
    /// It is over.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greeting {
    Ehlo,
    Helo,
}

#[derive(Debug)]
struct Dialogue {
    name: Arc<str>,
    pipelining: Pipelining,
    expected: VecDeque<Verb>,
    extensions: Extensions,
    greeting: Greeting,
    progress: Progress,
    envelope: Option<Arc<Envelope>>,
    /// Recipients of the current transaction that the peer took.
    accepted: u32,
    /// MAIL was accepted, so a failed transaction needs RSET before the next.
    mail_stands: bool,
    heard: Duration,
}

impl Dialogue {
    fn groups(&self) -> bool {
        self.pipelining == Pipelining::Group && self.extensions.pipelining
    }

    fn send(&mut self, command: &[u8], verb: Verb, out: &mut Vec<u8>) {
        out.extend_from_slice(command);
        self.expected.push_back(verb);
    }

    fn begin(&mut self, envelope: Arc<Envelope>, out: &mut Vec<u8>) {
        self.accepted = 0;
        self.mail_stands = false;
        self.progress = Progress::Asking;
        if self.groups() {
            out.extend_from_slice(envelope.group());
            self.expected.push_back(Verb::Mail);
            self.expected.extend((0..envelope.recipients()).map(|number| Verb::Recipient(number as u32)));
            self.expected.push_back(Verb::Data);
        } else {
            self.send(envelope.mail(), Verb::Mail, out);
        }
        self.envelope = Some(envelope);
    }

    fn step(&mut self, to: Verb, reply: &Received<'_>, out: &mut Vec<u8>) -> Option<Outcome> {
        let yes = reply.code() / 100 == 2;
        match to {
            Verb::Greeting if yes => self.hello(out),
            Verb::Greeting => self.progress = Progress::Closed,
            Verb::Hello => self.greeted(reply, out),
            Verb::Mail => return self.mail_answered(yes, out),
            Verb::Recipient(number) => return self.recipient_answered(number, yes, out),
            Verb::Data => return self.data_answered(reply.code() == 354, out),
            Verb::Message => return Some(if yes { Outcome::Accepted } else { Outcome::Refused }),
            Verb::Reset if self.expected.is_empty() => self.progress = Progress::Idle,
            Verb::Reset => {}
            Verb::Quit => self.progress = Progress::Closed,
        }
        None
    }

    /// A reply that no command asked for. A refusal while the message is being written is the peer's last word on
    /// it (too big, time-out): the message can be neither finished nor recalled, so the session is over. A 421
    /// between messages is the peer taking its leave (RFC 5321 §3.8), as if it had been asked to.
    fn interrupted(&mut self, reply: &Received<'_>) -> Result<(Verb, Option<Outcome>), Violation> {
        match std::mem::replace(&mut self.progress, Progress::Closed) {
            Progress::GoAhead if !reply.is_positive() => Ok((Verb::Message, Some(Outcome::Refused))),
            Progress::Idle if reply.code() == 421 => Ok((Verb::Quit, None)),
            _ => Err(Violation::Unasked(reply.code())),
        }
    }

    fn hello(&mut self, out: &mut Vec<u8>) {
        let verb: &[u8] = if self.greeting == Greeting::Ehlo { b"EHLO " } else { b"HELO " };
        let line = [verb, self.name.as_bytes(), b"\r\n"].concat();
        self.send(&line, Verb::Hello, out);
    }

    /// EHLO refused for good falls back to HELO (RFC 5321 §3.2).
    fn greeted(&mut self, reply: &Received<'_>, out: &mut Vec<u8>) {
        match (reply.code() / 100, self.greeting) {
            (2, Greeting::Ehlo) => self.extensions = Extensions::parse(reply.lines()),
            (2, Greeting::Helo) => {}
            (5, Greeting::Ehlo) => {
                self.greeting = Greeting::Helo;
                self.hello(out);
            }
            _ => {
                self.send(b"QUIT\r\n", Verb::Quit, out);
                self.progress = Progress::Closing;
            }
        }
    }

    fn mail_answered(&mut self, yes: bool, out: &mut Vec<u8>) -> Option<Outcome> {
        self.mail_stands = yes;
        match (self.groups(), yes) {
            (true, _) => None,
            (false, true) => self.ask(0, out),
            (false, false) => self.refused(out),
        }
    }

    fn recipient_answered(&mut self, number: u32, yes: bool, out: &mut Vec<u8>) -> Option<Outcome> {
        self.accepted += u32::from(yes);
        if self.groups() { None } else { self.ask(number as usize + 1, out) }
    }

    /// Lock step: RCPT of that number, or DATA after the last.
    fn ask(&mut self, number: usize, out: &mut Vec<u8>) -> Option<Outcome> {
        let envelope = self.envelope.clone()?;
        if number < envelope.recipients() {
            self.send(envelope.recipient(number), Verb::Recipient(number as u32), out);
        } else if self.accepted > 0 {
            self.send(envelope.data(), Verb::Data, out);
        } else {
            return self.refused(out);
        }
        None
    }

    /// A peer that says 354 though it took no recipient gets an empty message (RFC 2920 §3.1).
    fn data_answered(&mut self, go_ahead: bool, out: &mut Vec<u8>) -> Option<Outcome> {
        if go_ahead && self.accepted > 0 {
            self.progress = Progress::GoAhead;
            return None;
        }
        if go_ahead {
            self.send(END, Verb::Reset, out);
            self.progress = Progress::Asking;
            return Some(Outcome::Refused);
        }
        self.refused(out)
    }

    fn refused(&mut self, out: &mut Vec<u8>) -> Option<Outcome> {
        self.progress = Progress::Idle;
        if std::mem::take(&mut self.mail_stands) {
            self.send(b"RSET\r\n", Verb::Reset, out);
        }
        Some(Outcome::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    /// Runs a dialogue: `< reply` lines go in, what the client says is compared with the `> ` lines after it. A
    /// message is one `> (message)`.
    fn dialogue(pipelining: Pipelining, recipients: &[&str], messages: u32, script: &str) {
        let mut client = Client::new("me".into(), pipelining, NOW);
        let mut left = messages;
        let envelope = Arc::new(Envelope::new("a@b", "", recipients.iter().copied()).unwrap());
        let (mut said, mut expected) = (String::new(), String::new());
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(text) = line.strip_prefix("> ") {
                expected += &format!("{text}\n");
                continue;
            }
            assert_eq!(said, expected, "before {line}");
            let bytes = format!("{}\r\n", line.strip_prefix("< ").expect("a line is < or >"));
            let mut out = Vec::new();
            for byte in bytes.as_bytes().chunks(1) {
                let mut input = byte;
                client.next_event(&mut input, NOW, &mut out).expect("the script is well-formed");
            }
            match client.wants() {
                Want::Transaction if left > 0 => {
                    left -= 1;
                    client.begin(envelope.clone(), NOW, &mut out);
                }
                Want::Transaction => client.quit(NOW, &mut out),
                Want::Message => {
                    out.extend_from_slice(b"(message)\r\n");
                    client.message_sent(NOW);
                }
                Want::Replies | Want::Close => {}
            }
            said += &String::from_utf8(out).unwrap().replace("\r\n", "\n");
        }
        assert_eq!(said, expected);
    }

    const READY: &str = "< 220 hi\n> EHLO me\n< 250-x\n< 250 PIPELINING\n";

    #[test]
    fn lock_step_sends_one_command_at_a_time() {
        let rest = "> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n< 250 ok\n> DATA\n< 354 go\n> (message)\n< 250 ok\n> QUIT\n< 221 bye";
        dialogue(Pipelining::Off, &["c@d"], 1, &[READY, rest].concat());
    }

    #[test]
    fn a_group_goes_out_in_one_piece_and_only_where_offered() {
        let group = "> MAIL FROM:<a@b>\n> RCPT TO:<c@d>\n> DATA\n< 250 ok\n< 250 ok\n< 354 go\n> (message)\n< 250 ok\n> QUIT\n< 221 bye";
        dialogue(Pipelining::Group, &["c@d"], 1, &[READY, group].concat());
        let plain =
            "< 220 hi\n> EHLO me\n< 500 what\n> HELO me\n< 250 hi\n> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n";
        dialogue(Pipelining::Group, &["c@d"], 1, plain);
    }

    #[test]
    fn refusals_reset_only_what_stands() {
        let mail = "> MAIL FROM:<a@b>\n< 550 no\n> QUIT\n< 221 bye";
        dialogue(Pipelining::Off, &["c@d"], 1, &[READY, mail].concat());
        let all = "> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n< 550 no\n> RCPT TO:<e@f>\n< 450 no\n> RSET\n< 250 ok\n> QUIT\n< 221 bye";
        dialogue(Pipelining::Off, &["c@d", "e@f"], 1, &[READY, all].concat());
        let one = "> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n< 550 no\n> RCPT TO:<e@f>\n< 250 ok\n> DATA\n< 451 no\n> RSET\n< 250 ok\n> QUIT";
        dialogue(Pipelining::Off, &["c@d", "e@f"], 1, &[READY, one].concat());
        let group = "> MAIL FROM:<a@b>\n> RCPT TO:<c@d>\n> DATA\n< 250 ok\n< 550 no\n< 554 no\n> RSET\n< 250 ok\n> MAIL FROM:<a@b>\n> RCPT TO:<c@d>\n> DATA\n";
        dialogue(Pipelining::Group, &["c@d"], 2, &[READY, group].concat());
        let empty = "> MAIL FROM:<a@b>\n> RCPT TO:<c@d>\n> DATA\n< 250 ok\n< 550 no\n< 354 go\n> .\n< 554 no\n> QUIT\n";
        dialogue(Pipelining::Group, &["c@d"], 1, &[READY, empty].concat());
    }

    #[test]
    fn ehlo_put_off_is_not_answered_with_helo() {
        dialogue(Pipelining::Off, &["c@d"], 1, "< 220 hi\n> EHLO me\n< 450 not now\n> QUIT\n< 221 bye");
        dialogue(Pipelining::Off, &["c@d"], 1, "< 220 hi\n> EHLO me\n< 500 no\n> HELO me\n< 500 no\n> QUIT\n< 221 bye");
    }

    #[test]
    fn go_ahead_is_a_yes_to_data_only() {
        let mail = "> MAIL FROM:<a@b>\n< 354 go\n> QUIT\n< 221 bye";
        dialogue(Pipelining::Off, &["c@d"], 1, &[READY, mail].concat());
        let message =
            "> MAIL FROM:<a@b>\n< 250 ok\n> RCPT TO:<c@d>\n< 250 ok\n> DATA\n< 250 ok\n> RSET\n< 250 ok\n> QUIT\n";
        dialogue(Pipelining::Off, &["c@d"], 1, &[READY, message].concat());
    }

    #[test]
    fn a_421_or_a_refused_greeting_ends_it() {
        for bytes in ["554 no\r\n", "220 hi\r\n421 bye\r\n"] {
            let mut client = Client::new("me".into(), Pipelining::Off, NOW);
            let mut input = bytes.as_bytes();
            while client.next_event(&mut input, NOW, &mut Vec::new()).unwrap().is_some() {}
            assert_eq!(client.wants(), Want::Close);
        }
    }

    #[test]
    fn a_refusal_in_mid_message_is_the_answer_to_it_and_ends_the_session() {
        let mut client = Client::new("me".into(), Pipelining::Off, NOW);
        let mut input = b"220 hi\r\n250 x\r\n".as_slice();
        let mut out = Vec::new();
        while client.next_event(&mut input, NOW, &mut out).unwrap().is_some() {}
        client.begin(Arc::new(Envelope::new("a@b", "", ["c@d"]).unwrap()), NOW, &mut out);
        let mut input = b"250 ok\r\n250 ok\r\n354 go\r\n552 too big\r\n250 late\r\n".as_slice();
        for _ in 0..3 {
            assert_eq!(client.next_event(&mut input, NOW, &mut out).unwrap().unwrap().ends, None);
        }
        assert_eq!(client.wants(), Want::Message);
        let event = client.next_event(&mut input, NOW, &mut out).unwrap().unwrap();
        assert_eq!((event.to, event.reply.code(), event.ends), (Verb::Message, 552, Some(Outcome::Refused)));
        client.message_sent(NOW);
        assert_eq!(client.wants(), Want::Close);
        assert_eq!(client.next_event(&mut input, NOW, &mut out), Ok(None), "what comes later is passed over");
        assert!(input.is_empty());
    }

    #[test]
    fn nothing_a_peer_says_makes_a_session_grow() {
        let endless: [&[u8]; 4] = [b"2", b"250-and on\r\n", b"250 ", b"250\r"];
        for endless in endless {
            let mut client = Client::new("me".into(), Pipelining::Off, NOW);
            let mut outcome = Ok(());
            let block = endless.repeat(16);
            for _ in 0..10_000 {
                let mut input = block.as_slice();
                outcome = outcome.and(client.next_event(&mut input, NOW, &mut Vec::new()).map(|_| ()));
                assert!(client.reader.heap_bytes() <= 2 * crate::reply::MOST_BYTES);
            }
            assert_eq!(outcome, Err(Violation::Malformed(Malformed::TooLong)));
            assert_eq!(client.wants(), Want::Close, "nothing is wanted of such a peer");
        }
    }

    #[test]
    fn a_reply_to_nothing_is_a_violation() {
        let mut client = Client::new("me".into(), Pipelining::Off, NOW);
        let mut input = b"220 hi\r\n250 x\r\n250 again\r\n".as_slice();
        let mut out = Vec::new();
        assert!(client.next_event(&mut input, NOW, &mut out).unwrap().is_some());
        assert!(client.next_event(&mut input, NOW, &mut out).unwrap().is_some());
        assert_eq!(client.next_event(&mut input, NOW, &mut out), Err(Violation::Unasked(250)));
    }
}
