//! The SMTP dialogue of smtp-sink, as a state machine without a socket or a clock. It takes the bytes that a client has
//! sent, returns replies, and reports events.
//!
//! ```text
//!  greet ──▶ Command ── DATA: 354 ──▶ Body ── CRLF.CRLF ──▶ Command, at "."
//!             │    ▲ ▲                  ▲
//!             │    │ └─ AUTH's steps    │ -H
//!   -W, -H, -A│    │                    │
//!             ▼    └──────┐             │
//!           Step::Pause ──┴─ resume ────┘
//! ```
//! The end of a message is treated as a command named `.`, so that faults and delays can be requested for it as for any
//! other command. A client may also send `.` as a command at any other time.
use super::body::EndOfData;
use super::commands::{Command, CommandRule, Reject, ReplyDelay};
use super::options::Settings;
use super::replies;
use std::rc::Rc;

/// Maximum length of a command, including its CRLF.
const MAX_LINE_BYTES: usize = 2048;
/// Maximum number of replies to the end of a message that are written at once. The limit bounds memory, because an LMTP
/// server replies once for each recipient, and a message may have millions of recipients.
const REPLY_BATCH_LIMIT: i32 = 4096;

/// Receives the events of a session, for example to count, print or store them.
pub(super) trait DialogueObserver {
    /// Called for each line outside of messages, and with `.` at the end of a message. `line` is cut at its first NUL.
    fn line_received(&mut self, line: &[u8]);
    fn log_command(&mut self, word: &[u8], rest: &[u8]);
    /// Called when HELO, EHLO or LHLO was accepted, which ends any transaction.
    fn greeted(&mut self, command: Command, rest: &[u8]);
    fn mail_accepted(&mut self, rest: &[u8]);
    fn rcpt_accepted(&mut self, rest: &[u8]);
    fn data_accepted(&mut self);
    /// Passes a piece of a message to the observer, for example to store it. The last piece contains the end of data.
    fn content(&mut self, octets: &[u8]);
    fn message_complete(&mut self);
    /// Called when the sink answers a `.` with success. If the `.` ended a message, the sink is now responsible for
    /// that message.
    fn message_accepted(&mut self);
    fn transaction_reset(&mut self);
    fn quit_accepted(&mut self);
    fn line_too_long(&mut self);
    /// Returns true if the limit of `-M` is reached, so the sink should not accept any more messages.
    fn reached_message_limit(&self) -> bool;
    /// Returns for how many seconds to delay a reply. If `delay.odds` is not 0, the number is random.
    fn delay_seconds(&mut self, delay: ReplyDelay) -> u32;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SmtpSinkStep {
    Read,
    /// Call [`SmtpSinkDialogue::receive`] again with the rest of the input, without reading more.
    Continue,
    /// Read nothing for this number of seconds, and then call [`SmtpSinkDialogue::resume`].
    Pause(u32),
    Close,
}

/// Determines how the next bytes of the client are interpreted.
#[derive(Debug)]
enum SmtpSinkState {
    Command,
    Body(EndOfData),
    /// The next line is the client's response to a challenge of AUTH. `more` is the number of challenges that follow.
    Response {
        more: u8,
    },
}

#[derive(Debug)]
enum DeferredAction {
    Answer(Command, Vec<u8>),
    Body,
    Violation,
}

#[derive(Debug)]
pub(super) struct SmtpSinkDialogue {
    settings: Rc<Settings>,
    state: SmtpSinkState,
    in_transaction: bool,
    /// Number of accepted recipients since MAIL. The number is signed because Postfix's smtp-sink, in LMTP, subtracts
    /// one for each reply to a message, and the result may be negative.
    recipients: i32,
    /// Number of replies to `.` that must still be written, and the error that they report, if any.
    owed_replies: (i32, Option<Reject>),
    partial_line: Vec<u8>,
    deferred: Option<DeferredAction>,
}

impl SmtpSinkDialogue {
    pub(super) fn new(settings: Rc<Settings>) -> Self {
        Self {
            settings,
            state: SmtpSinkState::Command,
            in_transaction: false,
            recipients: 0,
            owed_replies: (0, None),
            partial_line: Vec::new(),
            deferred: None,
        }
    }

    pub(super) fn greet(&mut self, out: &mut Vec<u8>, observer: &mut impl DialogueObserver) -> SmtpSinkStep {
        self.apply_rule(Command::Connect, b"connect", b"", out, observer)
    }

    /// Processes the start of `input`, removes the processed bytes from it, and writes the replies to `out`. If the
    /// returned step is not `Read`, `input` may still contain bytes, which the caller must pass again.
    pub(super) fn receive(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        observer: &mut impl DialogueObserver,
    ) -> SmtpSinkStep {
        loop {
            if self.owed_replies.0 > 0 {
                self.write_owed_replies(out);
                if self.owed_replies.0 > 0 {
                    return SmtpSinkStep::Continue;
                }
            }
            if input.is_empty() {
                return SmtpSinkStep::Read;
            }
            let step = match &mut self.state {
                SmtpSinkState::Body(_) if observer.reached_message_limit() => SmtpSinkStep::Close,
                SmtpSinkState::Body(end) => match end.find(input) {
                    None => {
                        observer.content(std::mem::take(input));
                        SmtpSinkStep::Read
                    }
                    Some(length) => self.end_message(take(input, length), out, observer),
                },
                SmtpSinkState::Command | SmtpSinkState::Response { .. } => self.take_line(input, out, observer),
            };
            if step != SmtpSinkStep::Read {
                return step;
            }
        }
    }

    pub(super) fn resume(&mut self, out: &mut Vec<u8>, observer: &mut impl DialogueObserver) -> SmtpSinkStep {
        match self.deferred.take() {
            Some(DeferredAction::Answer(command, rest)) => self.answer(command, &rest, out, observer),
            Some(DeferredAction::Violation) => {
                out.extend_from_slice(replies::VIOLATION);
                SmtpSinkStep::Close
            }
            Some(DeferredAction::Body) | None => SmtpSinkStep::Read,
        }
    }

    /// Returns true if the client has sent a complete message whose reply is still delayed because of the option `-W`.
    pub(super) fn owes_message_reply(&self) -> bool {
        matches!(self.deferred, Some(DeferredAction::Answer(Command::Dot, _)))
    }

    fn end_message(&mut self, last: &[u8], out: &mut Vec<u8>, observer: &mut impl DialogueObserver) -> SmtpSinkStep {
        observer.content(last);
        self.state = SmtpSinkState::Command;
        self.in_transaction = false;
        observer.message_complete();
        self.handle_command(b".", out, observer)
    }

    /// Handles one line, if a whole line has arrived. Only CRLF ends a line, not a bare LF.
    fn take_line(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        observer: &mut impl DialogueObserver,
    ) -> SmtpSinkStep {
        if self.partial_line.is_empty()
            && let Some(end) = line_end(&input[..input.len().min(MAX_LINE_BYTES)])
        {
            let line = take(input, end);
            return self.handle_line(&line[..end - 2], out, observer);
        }
        let room = MAX_LINE_BYTES - self.partial_line.len();
        let reach = memchr::memchr(b'\n', input).map_or(input.len(), |at| at + 1);
        if reach > room {
            observer.line_too_long();
            return SmtpSinkStep::Close;
        }
        self.partial_line.extend_from_slice(take(input, reach));
        if !self.partial_line.ends_with(b"\r\n") {
            return SmtpSinkStep::Read;
        }
        let line = std::mem::take(&mut self.partial_line);
        self.handle_line(&line[..line.len() - 2], out, observer)
    }

    fn handle_line(&mut self, line: &[u8], out: &mut Vec<u8>, observer: &mut impl DialogueObserver) -> SmtpSinkStep {
        if let SmtpSinkState::Response { more } = self.state {
            observer.line_received(until_nul(line));
            self.respond(line, more, out);
            return SmtpSinkStep::Read;
        }
        self.handle_command(until_nul(line), out, observer)
    }

    fn handle_command(&mut self, line: &[u8], out: &mut Vec<u8>, observer: &mut impl DialogueObserver) -> SmtpSinkStep {
        observer.line_received(line);
        let Some((word, rest)) = split(line) else {
            out.extend_from_slice(replies::EMPTY_COMMAND);
            return SmtpSinkStep::Read;
        };
        let known = Command::named(word).filter(|command| self.settings.rules[*command].is_enabled);
        let Some(command) = known else {
            out.extend_from_slice(replies::UNKNOWN_COMMAND);
            return SmtpSinkStep::Read;
        };
        if observer.reached_message_limit() && !matches!(command, Command::Dot | Command::Quit) {
            out.extend_from_slice(replies::SERVICE_CLOSING);
            return SmtpSinkStep::Close;
        }
        self.apply_rule(command, word, rest, out, observer)
    }

    /// Does what the options request for this command, in this order: logs it, disconnects, sends 421 and disconnects,
    /// rejects the command, or delays the reply.
    fn apply_rule(
        &mut self,
        command: Command,
        word: &[u8],
        rest: &[u8],
        out: &mut Vec<u8>,
        observer: &mut impl DialogueObserver,
    ) -> SmtpSinkStep {
        let rule: CommandRule = self.settings.rules[command];
        if rule.is_plain() {
            return self.answer(command, rest, out, observer);
        }
        if rule.is_logged {
            observer.log_command(word, rest);
        }
        if rule.hangs_up {
            return SmtpSinkStep::Close;
        }
        if rule.sends_421 {
            out.extend_from_slice(replies::SERVICE_CLOSING);
            return SmtpSinkStep::Close;
        }
        if let Some(reject) = rule.rejects() {
            self.reject(command, reject, out);
            return SmtpSinkStep::Read;
        }
        match rule.delay.map(|delay| observer.delay_seconds(delay)) {
            None | Some(0) => self.answer(command, rest, out, observer),
            Some(seconds) => {
                self.deferred = Some(DeferredAction::Answer(command, rest.to_vec()));
                SmtpSinkStep::Pause(seconds)
            }
        }
    }

    fn reject(&mut self, command: Command, reject: Reject, out: &mut Vec<u8>) {
        if command == Command::Dot {
            self.reply_to_message(Some(reject), out);
        } else {
            out.extend_from_slice(self.settings.replies.error(reject));
        }
    }

    fn answer(
        &mut self,
        command: Command,
        rest: &[u8],
        out: &mut Vec<u8>,
        observer: &mut impl DialogueObserver,
    ) -> SmtpSinkStep {
        match command {
            Command::Mail => self.mail(rest, out, observer),
            Command::Rcpt => self.rcpt(rest, out, observer),
            Command::Data => return self.data(out, observer),
            Command::Dot => {
                self.reply_to_message(None, out);
                observer.message_accepted();
            }
            Command::Quit => {
                out.extend_from_slice(replies::BYE);
                observer.quit_accepted();
                return SmtpSinkStep::Close;
            }
            Command::Connect => out.extend_from_slice(&self.settings.replies.greeting),
            Command::Helo | Command::Ehlo | Command::Lhlo => {
                self.in_transaction = false;
                let replies = &self.settings.replies;
                out.extend_from_slice(if command == Command::Helo { &replies.helo } else { &replies.ehlo });
                observer.greeted(command, rest);
            }
            Command::Rset => {
                self.in_transaction = false;
                out.extend_from_slice(replies::RSET_OK);
                observer.transaction_reset();
            }
            Command::Auth => self.authenticate(rest, out),
            Command::Noop | Command::Vrfy | Command::Xclient | Command::Xforward => {
                out.extend_from_slice(replies::OK);
            }
        }
        SmtpSinkStep::Read
    }

    fn mail(&mut self, rest: &[u8], out: &mut Vec<u8>, observer: &mut impl DialogueObserver) {
        if self.in_transaction {
            out.extend_from_slice(replies::NESTED_MAIL);
            return;
        }
        self.in_transaction = true;
        self.recipients = 0;
        out.extend_from_slice(replies::MAIL_OK);
        observer.mail_accepted(rest);
    }

    fn rcpt(&mut self, rest: &[u8], out: &mut Vec<u8>, observer: &mut impl DialogueObserver) {
        if !self.in_transaction {
            out.extend_from_slice(replies::NEED_MAIL);
            return;
        }
        self.recipients = self.recipients.saturating_add(1);
        out.extend_from_slice(replies::RCPT_OK);
        observer.rcpt_accepted(rest);
    }

    fn data(&mut self, out: &mut Vec<u8>, observer: &mut impl DialogueObserver) -> SmtpSinkStep {
        if !self.in_transaction || self.recipients == 0 {
            out.extend_from_slice(replies::NEED_RCPT);
            return SmtpSinkStep::Read;
        }
        out.extend_from_slice(replies::START_DATA);
        observer.data_accepted();
        if let Some(seconds) = self.settings.abort_after {
            self.deferred = Some(DeferredAction::Violation);
            return SmtpSinkStep::Pause(seconds);
        }
        self.state = SmtpSinkState::Body(EndOfData::new());
        match self.settings.body_delay {
            0 => SmtpSinkStep::Read,
            seconds => {
                self.deferred = Some(DeferredAction::Body);
                SmtpSinkStep::Pause(seconds)
            }
        }
    }

    fn reply_to_message(&mut self, reject: Option<Reject>, out: &mut Vec<u8>) {
        if !self.settings.is_lmtp {
            out.extend_from_slice(self.message_reply(reject));
            return;
        }
        self.owed_replies = (self.recipients.max(0), reject);
        self.recipients = if self.recipients > 0 { -1 } else { self.recipients.saturating_sub(1) };
        self.write_owed_replies(out);
    }

    fn write_owed_replies(&mut self, out: &mut Vec<u8>) {
        let (owed, reject) = self.owed_replies;
        let now = owed.min(REPLY_BATCH_LIMIT);
        for _ in 0..now {
            out.extend_from_slice(self.message_reply(reject));
        }
        self.owed_replies.0 = owed - now;
    }

    fn message_reply(&self, reject: Option<Reject>) -> &[u8] {
        match reject {
            Some(reject) => self.settings.replies.error(reject),
            None if self.settings.is_lmtp => replies::DELIVERED,
            None => replies::OK,
        }
    }

    /// Accepts AUTH PLAIN and AUTH LOGIN (RFC 4954 §4) for any user. Postfix's smtp-sink replies with 250 to the first
    /// line, but no client accepts that as a login.
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
            self.state = SmtpSinkState::Command;
            out.extend_from_slice(replies::CANCELLED);
        } else {
            self.challenge((more > 0).then_some((replies::PASSWORD, 0)), out);
        }
    }

    fn challenge(&mut self, next: Option<(&[u8], u8)>, out: &mut Vec<u8>) {
        self.state = next.map_or(SmtpSinkState::Command, |(_, more)| SmtpSinkState::Response { more });
        out.extend_from_slice(next.map_or(replies::LOGGED_IN, |(challenge, _)| challenge));
    }
}

fn take<'i>(input: &mut &'i [u8], length: usize) -> &'i [u8] {
    let (bytes, rest) = input.split_at(length);
    *input = rest;
    bytes
}

fn line_end(bytes: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', bytes).find(|&at| at > 0 && bytes[at - 1] == b'\r').map(|at| at + 1)
}

/// Cuts a line at its first NUL, because Postfix's smtp-sink treats the line as a C string.
fn until_nul(line: &[u8]) -> &[u8] {
    memchr::memchr(0, line).map_or(line, |end| &line[..end])
}

fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_blank = |octet: &u8| matches!(octet, b' ' | b'\t');
    let line = &line[line.iter().position(|octet| !is_blank(octet))?..];
    let end = line.iter().position(is_blank).unwrap_or(line.len());
    Some((&line[..end], line.get(end + 1..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_options::Invocation;
    use proptest::prelude::*;

    #[derive(Default)]
    struct EventTranscript {
        text: String,
        content: Vec<u8>,
        messages: usize,
        wanted: Option<usize>,
    }

    impl EventTranscript {
        fn note(&mut self, what: &str, rest: &[u8]) {
            self.text.push_str(&format!("{what} {};", rest.escape_ascii()));
        }
    }

    impl DialogueObserver for EventTranscript {
        fn line_received(&mut self, _: &[u8]) {}

        fn log_command(&mut self, word: &[u8], rest: &[u8]) {
            self.note("log", &[word, b" ", rest].concat());
        }

        fn greeted(&mut self, _: Command, rest: &[u8]) {
            self.note("hello", rest);
        }

        fn mail_accepted(&mut self, rest: &[u8]) {
            self.note("mail", rest);
        }

        fn rcpt_accepted(&mut self, rest: &[u8]) {
            self.note("rcpt", rest);
        }

        fn data_accepted(&mut self) {
            self.note("data", b"");
        }

        fn content(&mut self, octets: &[u8]) {
            self.content.extend_from_slice(octets);
        }

        fn message_complete(&mut self) {
            let content = std::mem::take(&mut self.content);
            self.note("message", &content);
            self.messages += 1;
        }

        fn message_accepted(&mut self) {}

        fn transaction_reset(&mut self) {
            self.note("rset", b"");
        }

        fn quit_accepted(&mut self) {
            self.note("quit", b"");
        }

        fn line_too_long(&mut self) {
            self.note("overlong", b"");
        }

        fn reached_message_limit(&self) -> bool {
            self.wanted.is_some_and(|wanted| self.messages >= wanted)
        }

        fn delay_seconds(&mut self, delay: ReplyDelay) -> u32 {
            delay.seconds
        }
    }

    /// Runs a dialogue with `options`, in which the client sends `blocks` one after the other. Returns a transcript of
    /// the replies, with marks for pauses and for the end, and a transcript of the observed events.
    fn run_dialogue(options: &[&str], blocks: &[&[u8]], wanted: Option<usize>) -> (String, String) {
        let arguments = [options, &[":1", "1"]].concat().into_iter().map(str::to_owned).collect();
        let settings = Settings::read(&Invocation { program: "x".to_owned(), arguments }).unwrap();
        let mut dialogue = SmtpSinkDialogue::new(Rc::new(settings));
        let mut out = Vec::new();
        let mut transcript = EventTranscript { wanted, ..EventTranscript::default() };
        let mut step = dialogue.greet(&mut out, &mut transcript);
        let mut blocks = blocks.iter();
        let mut input: &[u8] = &[];
        loop {
            step = match step {
                SmtpSinkStep::Close => {
                    out.extend_from_slice(b"(closed)");
                    break;
                }
                SmtpSinkStep::Read | SmtpSinkStep::Continue => {
                    if step == SmtpSinkStep::Read && input.is_empty() {
                        let Some(block) = blocks.next() else { break };
                        input = block;
                    }
                    dialogue.receive(&mut input, &mut out, &mut transcript)
                }
                SmtpSinkStep::Pause(seconds) => {
                    out.extend_from_slice(format!("({seconds} s)").as_bytes());
                    match dialogue.resume(&mut out, &mut transcript) {
                        SmtpSinkStep::Read => SmtpSinkStep::Continue,
                        step => step,
                    }
                }
            };
            assert!(dialogue.partial_line.len() <= MAX_LINE_BYTES, "memory stays bounded");
        }
        let replies = String::from_utf8(out).unwrap().replace("\r\n", "|");
        (replies.replace("220 smtp-sink ESMTP|", ""), transcript.text)
    }

    const GO: &str = "354 End data with <CR><LF>.<CR><LF>|";

    #[test]
    fn a_table_of_dialogues_is_the_same_however_it_is_cut() {
        let mail = "MAIL FROM:<a>\r\nRCPT TO:<b>\r\nDATA\r\n.x\r\n.\r\n";
        let accepted = format!("250 2.1.0 Ok|250 2.1.5 Ok|{GO}250 2.0.0 Ok|");
        let remarked = "mail FROM:<a>;rcpt TO:<b>;data ;message .x\\r\\n.\\r\\n;";
        let rows: [(&[&str], String, String, &str); 7] = [
            (&[], format!("{mail}QUIT\r\nNOOP\r\n"), format!("{accepted}221 Bye|(closed)"), "quit ;"),
            (&["-f", "."], mail.into(), accepted.replace("250 2.0.0 Ok", "500 5.3.0 Error: command failed"), ""),
            (&["-W", ".:3"], mail.into(), accepted.replace("250 2.0.0", "(3 s)250 2.0.0"), ""),
            (&["-H", "2"], mail.into(), accepted.replace(GO, &format!("{GO}(2 s)")), ""),
            (&["-q", "quit"], format!("{mail}QUIT\r\n"), format!("{accepted}(closed)"), ""),
            (
                &["-Q", "quit"],
                format!("{mail}QUIT\r\n"),
                format!("{accepted}421 4.0.0 Server closing connection|(closed)"),
                "",
            ),
            (&["-s", "quit"], format!("{mail}quit x\r\n"), format!("{accepted}221 Bye|(closed)"), "log quit x;quit ;"),
        ];
        for (options, input, output, more) in rows {
            let expected = (output, format!("{remarked}{more}"));
            assert_eq!(run_dialogue(options, &[input.as_bytes()], None), expected, "{options:?}");
            assert_eq!(
                run_dialogue(options, &input.as_bytes().chunks(1).collect::<Vec<_>>(), None),
                expected,
                "{options:?}"
            );
        }
    }

    #[test]
    fn who_has_enough_takes_no_more() {
        let mail = "MAIL FROM:<a>\r\nRCPT TO:<b>\r\nDATA\r\n.\r\n";
        let accepted = format!("250 2.1.0 Ok|250 2.1.5 Ok|{GO}250 2.0.0 Ok|");
        let (output, _) = run_dialogue(&[], &[mail.repeat(2).as_bytes()], Some(1));
        assert_eq!(output, format!("{accepted}421 4.0.0 Server closing connection|(closed)"));
        let (output, _) = run_dialogue(&[], &[mail.as_bytes(), b"QUIT\r\n"], Some(1));
        assert_eq!(output, format!("{accepted}221 Bye|(closed)"));
    }

    #[test]
    fn a_reply_for_each_of_many_recipients_comes_in_portions() {
        let input = ["MAIL\r\n".to_owned(), "RCPT\r\n".repeat(10_000), "DATA\r\n.\r\nNOOP\r\n".to_owned()].concat();
        let (output, _) = run_dialogue(&["-L"], &[input.as_bytes()], None);
        assert_eq!(output.matches("250 2.2.0 Ok|").count(), 10_000);
        assert!(output.ends_with("250 2.2.0 Ok|250 2.0.0 Ok|"));
    }

    #[test]
    fn the_longest_line_is_taken_and_a_longer_one_is_not() {
        let line = |length: usize| [b"NOOP ".as_slice(), &vec![b'x'; length - 7], b"\r\n"].concat();
        for length in [1, 100, 2048, 3000] {
            let (output, remarked) = run_dialogue(&[], &line(2048).chunks(length).collect::<Vec<_>>(), None);
            assert_eq!((output.as_str(), remarked.as_str()), ("250 2.0.0 Ok|", ""));
            let (output, remarked) = run_dialogue(&[], &line(2049).chunks(length).collect::<Vec<_>>(), None);
            assert_eq!((output.as_str(), remarked.as_str()), ("(closed)", "overlong ;"));
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
        fn any_cut_gives_the_same(wire in words(), one in 0usize..200, two in 0usize..200, lmtp: bool) {
            let options: &[&str] = if lmtp { &["-L", "-W", "rset:1"] } else { &["-r", "noop"] };
            let first = one.min(two).min(wire.len());
            let second = one.max(two).min(wire.len());
            let whole = run_dialogue(options, &[&wire], None);
            prop_assert_eq!(run_dialogue(options, &[&wire[..first], &wire[first..second], &wire[second..]], None), whole);
        }

        #[test]
        fn any_octets_are_taken(wire in proptest::collection::vec(any::<u8>(), 0..300)) {
            let (output, _) = run_dialogue(&[], &[&wire, b"\r\n.\r\n"], None);
            prop_assert!(output.ends_with('|') || output.ends_with("(closed)"));
        }
    }
}
