//! The dialogue of smtp-sink: bytes in, replies and observations out; no socket, no clock.
//!
//! ```text
//!  greet ──▶ Command ── DATA: 354 ──▶ Body ── CRLF.CRLF ──▶ Command, at "."
//!             │    ▲ ▲                  ▲
//!             │    │ └─ AUTH's steps    │ -H
//!   -W, -H, -A│    │                    │
//!             ▼    └──────┐             │
//!           Step::Pause ──┴─ resume ────┘
//! ```
//! The end of a message counts as a command `.`, so that faults and delays apply to it as to the others; and a
//! client may send `.` at any other time too.
use super::body::EndOfData;
use super::commands::{Command, Delay, Reject, Rule};
use super::options::Settings;
use super::replies;
use std::rc::Rc;

/// The longest command, its CRLF included.
const LINE_BYTES: usize = 2048;
/// Replies to one `.` that are written at a time: LMTP requires one for each recipient, and there may be millions.
const REPLIES_AT_A_TIME: i32 = 4096;

/// Observer of a session, which counts, prints or stores its events.
pub(super) trait Witness {
    /// A command line, up to its first NUL.
    fn heard(&mut self, line: &[u8]);
    /// A command that is to be logged.
    fn logged(&mut self, word: &[u8], rest: &[u8]);
    /// HELO, EHLO or LHLO was accepted, and ended the transaction.
    fn greeted(&mut self, command: Command, rest: &[u8]);
    /// MAIL began a transaction.
    fn began(&mut self, rest: &[u8]);
    /// RCPT was accepted.
    fn addressed(&mut self, rest: &[u8]);
    /// DATA was accepted.
    fn data(&mut self);
    /// Bytes of the message as they came, its end included.
    fn content(&mut self, octets: &[u8]);
    /// The message is complete.
    fn received(&mut self);
    /// `.` was accepted: the sink is now responsible for the last complete message, if there is one.
    fn accepted(&mut self);
    /// RSET ended the transaction, if there was one.
    fn abandoned(&mut self);
    /// QUIT was accepted.
    fn quit(&mut self);
    /// A line is longer than any command.
    fn overlong(&mut self);
    /// Reports whether no more messages are wanted.
    fn has_enough(&self) -> bool;
    /// Time for which a reply is held back, in seconds.
    fn wait(&mut self, delay: Delay) -> u32;
}

/// The driver's next step. Replies are written first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Read, and call [`Dialogue::receive`].
    Read,
    /// Call [`Dialogue::receive`] again with the rest of the input.
    GoOn,
    /// Read nothing for that many seconds, then call [`Dialogue::resume`].
    Pause(u32),
    /// Close the connection.
    Close,
}

/// Meaning of the next bytes.
#[derive(Debug)]
enum Awaits {
    Command,
    Body(EndOfData),
    /// A response to a challenge, and the number of challenges that follow it.
    Response {
        more: u8,
    },
}

/// Work after a pause.
#[derive(Debug)]
enum Pending {
    Answer(Command, Vec<u8>),
    Body,
    Violation,
}

/// A session.
#[derive(Debug)]
pub(super) struct Dialogue {
    settings: Rc<Settings>,
    awaits: Awaits,
    in_mail: bool,
    /// Recipients accepted. The original counts them down for LMTP's replies and ends below zero; MAIL resets the
    /// count.
    recipients: i32,
    /// Replies to `.` that are not written yet.
    owed: (i32, Option<Reject>),
    /// An incomplete line.
    held: Vec<u8>,
    pending: Option<Pending>,
}

impl Dialogue {
    pub(super) fn new(settings: Rc<Settings>) -> Self {
        Self {
            settings,
            awaits: Awaits::Command,
            in_mail: false,
            recipients: 0,
            owed: (0, None),
            held: Vec::new(),
            pending: None,
        }
    }

    /// Greets a client that has connected.
    pub(super) fn greet(&mut self, out: &mut Vec<u8>, witness: &mut impl Witness) -> Step {
        self.consider(Command::Connect, b"connect", b"", out, witness)
    }

    /// Takes bytes from the front of `input`: all of them, unless the step says otherwise.
    pub(super) fn receive(&mut self, input: &mut &[u8], out: &mut Vec<u8>, witness: &mut impl Witness) -> Step {
        loop {
            if self.owed.0 > 0 {
                self.pay(out);
                if self.owed.0 > 0 {
                    return Step::GoOn;
                }
            }
            if input.is_empty() {
                return Step::Read;
            }
            let step = match &mut self.awaits {
                Awaits::Body(_) if witness.has_enough() => Step::Close,
                Awaits::Body(end) => match end.find(input) {
                    None => {
                        witness.content(std::mem::take(input));
                        Step::Read
                    }
                    Some(length) => self.end_message(take(input, length), out, witness),
                },
                Awaits::Command | Awaits::Response { .. } => self.take_line(input, out, witness),
            };
            if step != Step::Read {
                return step;
            }
        }
    }

    /// Continues after a pause.
    pub(super) fn resume(&mut self, out: &mut Vec<u8>, witness: &mut impl Witness) -> Step {
        match self.pending.take() {
            Some(Pending::Answer(command, rest)) => self.answer(command, &rest, out, witness),
            Some(Pending::Violation) => {
                out.extend_from_slice(replies::VIOLATION);
                Step::Close
            }
            Some(Pending::Body) | None => Step::Read,
        }
    }

    /// Reports whether a client waits for the reply to its message.
    pub(super) fn owes_verdict(&self) -> bool {
        matches!(self.pending, Some(Pending::Answer(Command::Dot, _)))
    }

    fn end_message(&mut self, last: &[u8], out: &mut Vec<u8>, witness: &mut impl Witness) -> Step {
        witness.content(last);
        self.awaits = Awaits::Command;
        self.in_mail = false;
        witness.received();
        self.obey(b".", out, witness)
    }

    /// Takes one line; CRLF ends it, a bare LF does not.
    fn take_line(&mut self, input: &mut &[u8], out: &mut Vec<u8>, witness: &mut impl Witness) -> Step {
        if self.held.is_empty()
            && let Some(end) = line_end(&input[..input.len().min(LINE_BYTES)])
        {
            let line = take(input, end);
            return self.hear(&line[..end - 2], out, witness);
        }
        let room = LINE_BYTES - self.held.len();
        let reach = memchr::memchr(b'\n', input).map_or(input.len(), |at| at + 1);
        if reach > room {
            witness.overlong();
            return Step::Close;
        }
        self.held.extend_from_slice(take(input, reach));
        if !self.held.ends_with(b"\r\n") {
            return Step::Read;
        }
        let line = std::mem::take(&mut self.held);
        self.hear(&line[..line.len() - 2], out, witness)
    }

    fn hear(&mut self, line: &[u8], out: &mut Vec<u8>, witness: &mut impl Witness) -> Step {
        if let Awaits::Response { more } = self.awaits {
            witness.heard(text_of(line));
            self.respond(line, more, out);
            return Step::Read;
        }
        self.obey(text_of(line), out, witness)
    }

    fn obey(&mut self, line: &[u8], out: &mut Vec<u8>, witness: &mut impl Witness) -> Step {
        witness.heard(line);
        let Some((word, rest)) = split(line) else {
            out.extend_from_slice(replies::EMPTY);
            return Step::Read;
        };
        let known = Command::named(word).filter(|command| self.settings.rules[*command].is_enabled);
        let Some(command) = known else {
            out.extend_from_slice(replies::UNKNOWN);
            return Step::Read;
        };
        if witness.has_enough() && !matches!(command, Command::Dot | Command::Quit) {
            out.extend_from_slice(replies::GOODBYE);
            return Step::Close;
        }
        self.consider(command, word, rest, out, witness)
    }

    /// Applies the options for this command: log, hang up, say goodbye, reject, delay, in this order.
    fn consider(
        &mut self,
        command: Command,
        word: &[u8],
        rest: &[u8],
        out: &mut Vec<u8>,
        witness: &mut impl Witness,
    ) -> Step {
        let rule: Rule = self.settings.rules[command];
        if rule.is_plain() {
            return self.answer(command, rest, out, witness);
        }
        if rule.is_logged {
            witness.logged(word, rest);
        }
        if rule.hangs_up {
            return Step::Close;
        }
        if rule.says_goodbye {
            out.extend_from_slice(replies::GOODBYE);
            return Step::Close;
        }
        if let Some(reject) = rule.rejects() {
            self.reject(command, reject, out);
            return Step::Read;
        }
        match rule.delay.map(|delay| witness.wait(delay)) {
            None | Some(0) => self.answer(command, rest, out, witness),
            Some(seconds) => {
                self.pending = Some(Pending::Answer(command, rest.to_vec()));
                Step::Pause(seconds)
            }
        }
    }

    fn reject(&mut self, command: Command, reject: Reject, out: &mut Vec<u8>) {
        if command == Command::Dot {
            self.owe(Some(reject), out);
        } else {
            out.extend_from_slice(self.settings.replies.error(reject));
        }
    }

    fn answer(&mut self, command: Command, rest: &[u8], out: &mut Vec<u8>, witness: &mut impl Witness) -> Step {
        match command {
            Command::Mail => self.mail(rest, out, witness),
            Command::Rcpt => self.rcpt(rest, out, witness),
            Command::Data => return self.data(out, witness),
            Command::Dot => {
                self.owe(None, out);
                witness.accepted();
            }
            Command::Quit => {
                out.extend_from_slice(replies::BYE);
                witness.quit();
                return Step::Close;
            }
            Command::Connect => out.extend_from_slice(&self.settings.replies.greeting),
            Command::Helo | Command::Ehlo | Command::Lhlo => {
                self.in_mail = false;
                let replies = &self.settings.replies;
                out.extend_from_slice(if command == Command::Helo { &replies.helo } else { &replies.ehlo });
                witness.greeted(command, rest);
            }
            Command::Rset => {
                self.in_mail = false;
                out.extend_from_slice(replies::RESET);
                witness.abandoned();
            }
            Command::Auth => self.authenticate(rest, out),
            Command::Noop | Command::Vrfy | Command::Xclient | Command::Xforward => {
                out.extend_from_slice(replies::HEARD);
            }
        }
        Step::Read
    }

    fn mail(&mut self, rest: &[u8], out: &mut Vec<u8>, witness: &mut impl Witness) {
        if self.in_mail {
            out.extend_from_slice(replies::NESTED_MAIL);
            return;
        }
        self.in_mail = true;
        self.recipients = 0;
        out.extend_from_slice(replies::MAIL_TAKEN);
        witness.began(rest);
    }

    fn rcpt(&mut self, rest: &[u8], out: &mut Vec<u8>, witness: &mut impl Witness) {
        if !self.in_mail {
            out.extend_from_slice(replies::NEED_MAIL);
            return;
        }
        self.recipients = self.recipients.saturating_add(1);
        out.extend_from_slice(replies::RCPT_TAKEN);
        witness.addressed(rest);
    }

    fn data(&mut self, out: &mut Vec<u8>, witness: &mut impl Witness) -> Step {
        if !self.in_mail || self.recipients == 0 {
            out.extend_from_slice(replies::NEED_RCPT);
            return Step::Read;
        }
        out.extend_from_slice(replies::GO_AHEAD);
        witness.data();
        if let Some(seconds) = self.settings.abort_after {
            self.pending = Some(Pending::Violation);
            return Step::Pause(seconds);
        }
        self.awaits = Awaits::Body(EndOfData::new());
        match self.settings.body_delay {
            0 => Step::Read,
            seconds => {
                self.pending = Some(Pending::Body);
                Step::Pause(seconds)
            }
        }
    }

    /// The answer to `.`: one, or with LMTP one for each recipient.
    fn owe(&mut self, reject: Option<Reject>, out: &mut Vec<u8>) {
        if !self.settings.is_lmtp {
            out.extend_from_slice(self.verdict(reject));
            return;
        }
        self.owed = (self.recipients.max(0), reject);
        self.recipients = if self.recipients > 0 { -1 } else { self.recipients.saturating_sub(1) };
        self.pay(out);
    }

    fn pay(&mut self, out: &mut Vec<u8>) {
        let (owed, reject) = self.owed;
        let now = owed.min(REPLIES_AT_A_TIME);
        for _ in 0..now {
            out.extend_from_slice(self.verdict(reject));
        }
        self.owed.0 = owed - now;
    }

    fn verdict(&self, reject: Option<Reject>) -> &[u8] {
        match reject {
            Some(reject) => self.settings.replies.error(reject),
            None if self.settings.is_lmtp => replies::DELIVERED,
            None => replies::HEARD,
        }
    }

    /// AUTH PLAIN and AUTH LOGIN (RFC 4954 §4), for any user: the original answers 250 to the first line, which no
    /// client accepts as a login.
    fn authenticate(&mut self, rest: &[u8], out: &mut Vec<u8>) {
        let (mechanism, initial) = split(rest).unwrap_or_default();
        let has_initial = split(initial).is_some();
        if mechanism.eq_ignore_ascii_case(b"PLAIN") {
            self.challenge(if has_initial { None } else { Some((replies::CHALLENGE, 0)) }, out);
        } else if mechanism.eq_ignore_ascii_case(b"LOGIN") {
            self.challenge(Some(if has_initial { (replies::PASSWORD, 0) } else { (replies::USERNAME, 1) }), out);
        } else {
            out.extend_from_slice(replies::NO_MECHANISM);
        }
    }

    fn respond(&mut self, line: &[u8], more: u8, out: &mut Vec<u8>) {
        if line == b"*" {
            self.awaits = Awaits::Command;
            out.extend_from_slice(replies::CANCELLED);
        } else {
            self.challenge((more > 0).then_some((replies::PASSWORD, 0)), out);
        }
    }

    /// Sends the next challenge, or success.
    fn challenge(&mut self, next: Option<(&[u8], u8)>, out: &mut Vec<u8>) {
        self.awaits = next.map_or(Awaits::Command, |(_, more)| Awaits::Response { more });
        out.extend_from_slice(next.map_or(replies::LOGGED_IN, |(challenge, _)| challenge));
    }
}

/// Takes `length` bytes from the front.
fn take<'i>(input: &mut &'i [u8], length: usize) -> &'i [u8] {
    let (taken, rest) = input.split_at(length);
    *input = rest;
    taken
}

/// The length of the line that `bytes` starts with, CRLF included.
fn line_end(bytes: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', bytes).find(|&at| at > 0 && bytes[at - 1] == b'\r').map(|at| at + 1)
}

/// A line up to its first NUL, where a C string ends.
fn text_of(line: &[u8]) -> &[u8] {
    memchr::memchr(0, line).map_or(line, |end| &line[..end])
}

/// The first word, and the text after the blank that follows it.
fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_blank = |octet: &u8| matches!(octet, b' ' | b'\t');
    let line = &line[line.iter().position(|octet| !is_blank(octet))?..];
    let end = line.iter().position(is_blank).unwrap_or(line.len());
    Some((&line[..end], line.get(end + 1..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::personality::Call;
    use proptest::prelude::*;

    /// Writes all observations into one string.
    #[derive(Default)]
    struct Notes {
        text: String,
        content: Vec<u8>,
        messages: usize,
        wanted: Option<usize>,
    }

    impl Notes {
        fn note(&mut self, what: &str, rest: &[u8]) {
            self.text.push_str(&format!("{what} {};", rest.escape_ascii()));
        }
    }

    impl Witness for Notes {
        fn heard(&mut self, _: &[u8]) {}

        fn logged(&mut self, word: &[u8], rest: &[u8]) {
            self.note("log", &[word, b" ", rest].concat());
        }

        fn greeted(&mut self, _: Command, rest: &[u8]) {
            self.note("hello", rest);
        }

        fn began(&mut self, rest: &[u8]) {
            self.note("mail", rest);
        }

        fn addressed(&mut self, rest: &[u8]) {
            self.note("rcpt", rest);
        }

        fn data(&mut self) {
            self.note("data", b"");
        }

        fn content(&mut self, octets: &[u8]) {
            self.content.extend_from_slice(octets);
        }

        fn received(&mut self) {
            let content = std::mem::take(&mut self.content);
            self.note("message", &content);
            self.messages += 1;
        }

        fn accepted(&mut self) {}

        fn abandoned(&mut self) {
            self.note("rset", b"");
        }

        fn quit(&mut self) {
            self.note("quit", b"");
        }

        fn overlong(&mut self) {
            self.note("overlong", b"");
        }

        fn has_enough(&self) -> bool {
            self.wanted.is_some_and(|wanted| self.messages >= wanted)
        }

        fn wait(&mut self, delay: Delay) -> u32 {
            delay.seconds
        }
    }

    /// All replies that a client receives, with the pauses, and all observations.
    fn hold(options: &[&str], blocks: &[&[u8]], wanted: Option<usize>) -> (String, String) {
        let arguments = [options, &[":1", "1"]].concat().into_iter().map(str::to_owned).collect();
        let settings = Settings::read(&Call { called: "x".to_owned(), arguments }).unwrap();
        let mut dialogue = Dialogue::new(Rc::new(settings));
        let mut out = Vec::new();
        let mut notes = Notes { wanted, ..Notes::default() };
        let mut step = dialogue.greet(&mut out, &mut notes);
        let mut blocks = blocks.iter();
        let mut input: &[u8] = &[];
        loop {
            step = match step {
                Step::Close => {
                    out.extend_from_slice(b"(closed)");
                    break;
                }
                Step::Read | Step::GoOn => {
                    if step == Step::Read && input.is_empty() {
                        let Some(block) = blocks.next() else { break };
                        input = block;
                    }
                    dialogue.receive(&mut input, &mut out, &mut notes)
                }
                Step::Pause(seconds) => {
                    out.extend_from_slice(format!("({seconds} s)").as_bytes());
                    match dialogue.resume(&mut out, &mut notes) {
                        Step::Read => Step::GoOn,
                        step => step,
                    }
                }
            };
            assert!(dialogue.held.len() <= LINE_BYTES, "memory stays bounded");
        }
        let heard = String::from_utf8(out).unwrap().replace("\r\n", "|");
        (heard.replace("220 smtp-sink ESMTP|", ""), notes.text)
    }

    const GO: &str = "354 End data with <CR><LF>.<CR><LF>|";

    #[test]
    fn a_table_of_dialogues_is_the_same_however_it_is_cut() {
        let mail = "MAIL FROM:<a>\r\nRCPT TO:<b>\r\nDATA\r\n.x\r\n.\r\n";
        let taken = format!("250 2.1.0 Ok|250 2.1.5 Ok|{GO}250 2.0.0 Ok|");
        let remarked = "mail FROM:<a>;rcpt TO:<b>;data ;message .x\\r\\n.\\r\\n;";
        let rows: [(&[&str], String, String, &str); 7] = [
            (&[], format!("{mail}QUIT\r\nNOOP\r\n"), format!("{taken}221 Bye|(closed)"), "quit ;"),
            (&["-f", "."], mail.into(), taken.replace("250 2.0.0 Ok", "500 5.3.0 Error: command failed"), ""),
            (&["-W", ".:3"], mail.into(), taken.replace("250 2.0.0", "(3 s)250 2.0.0"), ""),
            (&["-H", "2"], mail.into(), taken.replace(GO, &format!("{GO}(2 s)")), ""),
            (&["-q", "quit"], format!("{mail}QUIT\r\n"), format!("{taken}(closed)"), ""),
            (
                &["-Q", "quit"],
                format!("{mail}QUIT\r\n"),
                format!("{taken}421 4.0.0 Server closing connection|(closed)"),
                "",
            ),
            (&["-s", "quit"], format!("{mail}quit x\r\n"), format!("{taken}221 Bye|(closed)"), "log quit x;quit ;"),
        ];
        for (options, said, heard, more) in rows {
            let expected = (heard, format!("{remarked}{more}"));
            assert_eq!(hold(options, &[said.as_bytes()], None), expected, "{options:?}");
            assert_eq!(hold(options, &said.as_bytes().chunks(1).collect::<Vec<_>>(), None), expected, "{options:?}");
        }
    }

    #[test]
    fn who_has_enough_takes_no_more() {
        let mail = "MAIL FROM:<a>\r\nRCPT TO:<b>\r\nDATA\r\n.\r\n";
        let taken = format!("250 2.1.0 Ok|250 2.1.5 Ok|{GO}250 2.0.0 Ok|");
        let (heard, _) = hold(&[], &[mail.repeat(2).as_bytes()], Some(1));
        assert_eq!(heard, format!("{taken}421 4.0.0 Server closing connection|(closed)"));
        let (heard, _) = hold(&[], &[mail.as_bytes(), b"QUIT\r\n"], Some(1));
        assert_eq!(heard, format!("{taken}221 Bye|(closed)"));
    }

    #[test]
    fn a_reply_for_each_of_many_recipients_comes_in_portions() {
        let said = ["MAIL\r\n".to_owned(), "RCPT\r\n".repeat(10_000), "DATA\r\n.\r\nNOOP\r\n".to_owned()].concat();
        let (heard, _) = hold(&["-L"], &[said.as_bytes()], None);
        assert_eq!(heard.matches("250 2.2.0 Ok|").count(), 10_000);
        assert!(heard.ends_with("250 2.2.0 Ok|250 2.0.0 Ok|"));
    }

    #[test]
    fn the_longest_line_is_taken_and_a_longer_one_is_not() {
        let line = |length: usize| [b"NOOP ".as_slice(), &vec![b'x'; length - 7], b"\r\n"].concat();
        for length in [1, 100, 2048, 3000] {
            let (heard, remarked) = hold(&[], &line(2048).chunks(length).collect::<Vec<_>>(), None);
            assert_eq!((heard.as_str(), remarked.as_str()), ("250 2.0.0 Ok|", ""));
            let (heard, remarked) = hold(&[], &line(2049).chunks(length).collect::<Vec<_>>(), None);
            assert_eq!((heard.as_str(), remarked.as_str()), ("(closed)", "overlong ;"));
        }
    }

    fn words() -> impl Strategy<Value = Vec<u8>> {
        let word = proptest::sample::select(vec![
            "EHLO a\r\n",
            "MAIL FROM:<a>\r\n",
            "RCPT TO:<b>\r\n",
            "DATA\r\n",
            ".\r\n",
            "x\r\n",
            "\r",
            "\n",
            "\0",
            " ",
            "RSET\r\n",
            "AUTH LOGIN\r\n",
            "*\r\n",
            "QUIT\r\n",
            "..\r\n",
            "\r\n",
        ]);
        proptest::collection::vec(word, 0..30).prop_map(|words| words.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same(said in words(), one in 0usize..200, two in 0usize..200, lmtp: bool) {
            let options: &[&str] = if lmtp { &["-L", "-W", "rset:1"] } else { &["-r", "noop"] };
            let (one, two) = (one.min(two).min(said.len()), one.max(two).min(said.len()));
            let whole = hold(options, &[&said], None);
            prop_assert_eq!(hold(options, &[&said[..one], &said[one..two], &said[two..]], None), whole);
        }

        #[test]
        fn any_octets_are_taken(said in proptest::collection::vec(any::<u8>(), 0..300)) {
            let (heard, _) = hold(&[], &[&said, b"\r\n.\r\n"], None);
            prop_assert!(heard.ends_with('|') || heard.ends_with("(closed)"));
        }
    }
}
