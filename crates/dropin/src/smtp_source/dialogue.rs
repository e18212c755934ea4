//! The dialogue in lock step: a reply comes in, the next command goes out. No sockets, no clock.
//!
//! ```text
//! Greeting ─▶ Hello ─▶ Mail ─▶ Recipient … ─▶ Data ─▶ EndOfData ─▶ (next message) Mail
//!                       │          │             │         └───────▶ Quit
//!                       └──────────┴── with -A ──┴─▶ Reset ─────────▶ either
//! ```
//! An unexpected reply ends the program; with `-A` it is a warning, a refused transaction is reset, and 421 or
//! 521 end the connection.
use super::errors::Diagnostic;
use super::message::RenderContext;
use super::reply::Reply;
use super::run_state::SmtpSourceRun;
use crate::printable::printable;
use mailrun_net::Outbox;
use std::time::Duration;

/// The reply that is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SmtpSourceState {
    Greeting,
    Hello,
    Mail,
    Recipient,
    Data,
    EndOfData,
    Reset,
    Quit,
}

/// The next step after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SmtpSourceStep {
    /// Send the written commands, if there are any, and wait.
    Wait,
    /// The same, where the written data ends with a message.
    Message,
    /// The transaction is over; the connection is free for another.
    Idle,
    /// Close.
    Close,
}

/// The text of a reply that ends the program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnexpectedReply(pub(super) String);

/// Output of the dialogue: commands to send, and messages to print.
pub(super) struct SmtpSourceOutput<'a> {
    pub(super) run: &'a SmtpSourceRun,
    pub(super) out: &'a mut Outbox,
    pub(super) diagnostics: &'a mut Vec<Diagnostic>,
    /// The connection's descriptor, for the Message-Id.
    pub(super) descriptor: i32,
    /// Time at which the message was taken up, if it is measured.
    pub(super) began: Option<Duration>,
}

impl SmtpSourceOutput<'_> {
    fn write_command(&mut self, parts: &[&[u8]]) {
        let out = self.out.bytes();
        let start = out.len();
        parts.iter().for_each(|part| out.extend_from_slice(part));
        if self.run.options.is_verbose {
            self.diagnostics.push(Diagnostic::Info(printable(&out[start..])));
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Treatment of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyCheck {
    Accepted,
    /// The reply is an error.
    Rejected,
    /// The reply is an error, and the connection is over.
    Closing,
}

/// One connection's dialogue.
#[derive(Debug)]
pub(super) struct SmtpSourceDialogue {
    state: SmtpSourceState,
    /// Recipients still to be sent.
    recipients_left: u32,
    recipients_accepted: u32,
    /// The last recipient's number.
    number: Option<u32>,
    /// Replies to the end of data that are still to come.
    replies_due: u32,
    /// Set while no reply has refused the message.
    is_delivered: bool,
    /// Messages accepted since the last call of `take_delivered`.
    delivered: u32,
}

impl SmtpSourceDialogue {
    /// Creates the dialogue of an open connection: the server is to greet.
    pub(super) fn new() -> Self {
        let awaits = SmtpSourceState::Greeting;
        Self {
            state: awaits,
            recipients_left: 0,
            recipients_accepted: 0,
            number: None,
            replies_due: 0,
            is_delivered: false,
            delivered: 0,
        }
    }

    /// Begins a message on a connection that is free.
    pub(super) fn begin(&mut self, output: &mut SmtpSourceOutput<'_>) -> SmtpSourceStep {
        output.write_command(&[b"MAIL FROM:<", output.run.sender.as_bytes(), b">"]);
        self.wait_for(SmtpSourceState::Mail)
    }

    /// Ends a connection that is free.
    pub(super) fn quit(&mut self, output: &mut SmtpSourceOutput<'_>) -> SmtpSourceStep {
        output.write_command(&[b"QUIT"]);
        self.wait_for(SmtpSourceState::Quit)
    }

    /// Reports whether all is done, except for a reply that does not matter.
    pub(super) fn is_over(&self) -> bool {
        self.state == SmtpSourceState::Quit
    }

    /// The current activity, for error texts.
    pub(super) fn activity(&self, run: &SmtpSourceRun) -> String {
        match self.state {
            SmtpSourceState::Greeting => "reading server greeting".to_owned(),
            SmtpSourceState::Hello => format!("sending {}", greeting_command(run)),
            SmtpSourceState::Mail => "sending sender".to_owned(),
            SmtpSourceState::Recipient => "sending recipient".to_owned(),
            SmtpSourceState::Data => "sending DATA command".to_owned(),
            SmtpSourceState::EndOfData | SmtpSourceState::Reset | SmtpSourceState::Quit => "sending message".to_owned(),
        }
    }

    /// Takes the number of messages accepted since the last call.
    pub(super) fn take_delivered(&mut self) -> u32 {
        std::mem::take(&mut self.delivered)
    }

    /// Handles a reply.
    ///
    /// # Errors
    /// If the reply is unexpected, and `-A` was not given.
    pub(super) fn handle_reply(
        &mut self,
        reply: &Reply<'_>,
        output: &mut SmtpSourceOutput<'_>,
    ) -> Result<SmtpSourceStep, UnexpectedReply> {
        if output.run.options.is_verbose {
            output.diagnostics.extend(reply.lines().map(|line| Diagnostic::Info(format!("<<< {}", printable(line)))));
        }
        match self.state {
            SmtpSourceState::Greeting => self.greeting_received(reply, output),
            SmtpSourceState::Hello => {
                if check_reply(reply, greeting_command(output.run), is_positive, output)? == ReplyCheck::Closing {
                    return Ok(SmtpSourceStep::Close);
                }
                Ok(self.begin(output))
            }
            SmtpSourceState::Mail => match check_reply(reply, "sender", is_positive, output)? {
                ReplyCheck::Accepted => {
                    self.recipients_left = output.run.options.recipients;
                    self.recipients_accepted = 0;
                    Ok(self.write_rcpt(output))
                }
                refused => Ok(self.abort_transaction(refused, output)),
            },
            SmtpSourceState::Recipient => self.rcpt_replied(reply, output),
            SmtpSourceState::Data => match check_reply(reply, "data", |code| code == 354, output)? {
                ReplyCheck::Accepted => Ok(self.send_message(output)),
                refused => Ok(self.abort_transaction(refused, output)),
            },
            SmtpSourceState::EndOfData => self.message_replied(reply, output),
            SmtpSourceState::Reset => match check_reply(reply, "rset", is_positive, output)? {
                ReplyCheck::Closing => Ok(SmtpSourceStep::Close),
                _ => Ok(self.finish_transaction(output)),
            },
            SmtpSourceState::Quit => Ok(SmtpSourceStep::Close),
        }
    }

    /// With `-A` the dialogue continues after any greeting.
    fn greeting_received(
        &mut self,
        reply: &Reply<'_>,
        output: &mut SmtpSourceOutput<'_>,
    ) -> Result<SmtpSourceStep, UnexpectedReply> {
        if !is_positive(reply.code) {
            reject("rejected at server banner", reply, output)?;
        }
        if output.run.options.is_old_mode {
            return Ok(self.begin(output));
        }
        let run = output.run;
        output.write_command(&[greeting_command(run).as_bytes(), b" ", run.hostname.as_bytes()]);
        Ok(self.wait_for(SmtpSourceState::Hello))
    }

    fn write_rcpt(&mut self, output: &mut SmtpSourceOutput<'_>) -> SmtpSourceStep {
        let recipient = &output.run.recipient;
        self.number = recipient.next_number(self.recipients_left);
        self.recipients_left -= 1;
        let mut address = std::mem::take(&mut *output.run.address.borrow_mut());
        address.clear();
        recipient.write(self.number, &mut address);
        output.write_command(&[b"RCPT TO:<", &address, b">"]);
        *output.run.address.borrow_mut() = address;
        self.wait_for(SmtpSourceState::Recipient)
    }

    fn rcpt_replied(
        &mut self,
        reply: &Reply<'_>,
        output: &mut SmtpSourceOutput<'_>,
    ) -> Result<SmtpSourceStep, UnexpectedReply> {
        match check_reply(reply, "recipient", is_positive, output)? {
            ReplyCheck::Accepted => self.recipients_accepted += 1,
            ReplyCheck::Rejected => {}
            ReplyCheck::Closing => return Ok(SmtpSourceStep::Close),
        }
        if self.recipients_left > 0 {
            return Ok(self.write_rcpt(output));
        }
        if self.recipients_accepted == 0 {
            return Ok(self.abort_transaction(ReplyCheck::Rejected, output));
        }
        output.write_command(&[b"DATA"]);
        Ok(self.wait_for(SmtpSourceState::Data))
    }

    fn send_message(&mut self, output: &mut SmtpSourceOutput<'_>) -> SmtpSourceStep {
        let SmtpSourceOutput { run, descriptor, began, .. } = *output;
        let place = RenderContext { descriptor, remaining: run.remaining(), number: self.number, began };
        run.message.render(place, &run.recipient, output.out);
        if run.options.is_verbose {
            output.diagnostics.push(Diagnostic::Info(".".to_owned()));
        }
        // RFC 2033 §4.2: one reply for each recipient that was accepted. The original waits for one for each that was
        // sent, and so for ever if one was refused.
        self.replies_due = if run.options.speaks_lmtp { self.recipients_accepted } else { 1 };
        self.is_delivered = true;
        self.state = SmtpSourceState::EndOfData;
        SmtpSourceStep::Message
    }

    fn message_replied(
        &mut self,
        reply: &Reply<'_>,
        output: &mut SmtpSourceOutput<'_>,
    ) -> Result<SmtpSourceStep, UnexpectedReply> {
        match check_reply(reply, "end of data", is_positive, output)? {
            ReplyCheck::Accepted => {}
            ReplyCheck::Rejected => self.is_delivered = false,
            ReplyCheck::Closing => return Ok(SmtpSourceStep::Close),
        }
        self.replies_due -= 1;
        if self.replies_due > 0 {
            return Ok(SmtpSourceStep::Wait);
        }
        self.delivered += u32::from(self.is_delivered);
        Ok(self.finish_transaction(output))
    }

    /// Ends a transaction that failed.
    fn abort_transaction(&mut self, check: ReplyCheck, output: &mut SmtpSourceOutput<'_>) -> SmtpSourceStep {
        if check == ReplyCheck::Closing {
            return SmtpSourceStep::Close;
        }
        output.write_command(&[b"RSET"]);
        self.wait_for(SmtpSourceState::Reset)
    }

    /// Ends a transaction.
    fn finish_transaction(&mut self, output: &mut SmtpSourceOutput<'_>) -> SmtpSourceStep {
        if output.run.options.reuses_connection && output.run.remaining() > 0 {
            SmtpSourceStep::Idle
        } else {
            self.quit(output)
        }
    }

    fn wait_for(&mut self, awaits: SmtpSourceState) -> SmtpSourceStep {
        self.state = awaits;
        SmtpSourceStep::Wait
    }
}

fn greeting_command(run: &SmtpSourceRun) -> &'static str {
    if run.options.speaks_lmtp { "LHLO" } else { "HELO" }
}

fn is_positive(code: u16) -> bool {
    code / 100 == 2
}

fn check_reply(
    reply: &Reply<'_>,
    what: &str,
    is_good: impl Fn(u16) -> bool,
    output: &mut SmtpSourceOutput<'_>,
) -> Result<ReplyCheck, UnexpectedReply> {
    if is_good(reply.code) {
        return Ok(ReplyCheck::Accepted);
    }
    reject(&format!("{what} rejected"), reply, output)?;
    Ok(if matches!(reply.code, 421 | 521) { ReplyCheck::Closing } else { ReplyCheck::Rejected })
}

fn reject(what: &str, reply: &Reply<'_>, output: &mut SmtpSourceOutput<'_>) -> Result<(), UnexpectedReply> {
    let text = format!("{what}: {} {}", reply.code, printable(&reply.text()));
    if !output.run.options.tolerates_errors {
        return Err(UnexpectedReply(text));
    }
    output.diagnostics.push(Diagnostic::Warning(text));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smtp_source::reply::PostfixReplyReader;

    /// Runs replies through a dialogue: returns its commands, its messages, and its result.
    fn run_dialogue(
        line: &str,
        replies: &[&str],
    ) -> (Vec<String>, Vec<Diagnostic>, Result<SmtpSourceStep, UnexpectedReply>) {
        let words: Vec<String> = line.split_whitespace().chain(["127.0.0.1:9"]).map(str::to_owned).collect();
        let run = SmtpSourceRun::for_tests(&words);
        let mut dialogue = SmtpSourceDialogue::new();
        let mut out = Outbox::default();
        let mut diagnostics = Vec::new();
        let mut last = Ok(SmtpSourceStep::Wait);
        for reply in replies {
            let wire = format!("{reply}\r\n");
            let mut reader = PostfixReplyReader::default();
            let mut input = wire.as_bytes();
            let reply = reader.next(&mut input).unwrap().unwrap();
            let mut output = SmtpSourceOutput {
                run: &run,
                out: &mut out,
                diagnostics: &mut diagnostics,
                descriptor: 5,
                began: None,
            };
            last = dialogue.handle_reply(&reply, &mut output);
        }
        let said = String::from_utf8_lossy(out.bytes()).into_owned();
        let said = said.split_terminator("\r\n").map(str::to_owned).collect();
        (said, diagnostics, last)
    }

    const ONE: [&str; 4] = ["HELO h", "MAIL FROM:<a>", "RCPT TO:<b>", "DATA"];
    const PLAIN: &str = "-f a -t b -M h";

    #[test]
    fn a_message_in_lock_step() {
        let replies = ["220", "250", "250", "250", "354", "250", "221"];
        let (said, diagnostics, last) = run_dialogue(PLAIN, &replies);
        assert_eq!(said[..4], ONE);
        assert_eq!(said[said.len() - 2..], [".", "QUIT"]);
        assert_eq!((diagnostics, last), (vec![], Ok(SmtpSourceStep::Close)));
        assert_eq!(run_dialogue(PLAIN, &replies[..5]).2, Ok(SmtpSourceStep::Message));
        assert_eq!(run_dialogue(&format!("{PLAIN} -d -m 2"), &replies[..6]).2, Ok(SmtpSourceStep::Idle));
        assert_eq!(run_dialogue("-o -f a -t b", &["220", "250", "250", "354"]).0[3], "La de da de da 1.");
    }

    #[test]
    fn what_should_not_be_ends_the_program() {
        let good = ["220", "250", "250", "250", "354", "250"];
        let rows = [
            (0, "554 no", "rejected at server banner: 554 no"),
            (1, "421 no", "HELO rejected: 421 no"),
            (2, "550-a\r\n550 b", "sender rejected: 550 a?b"),
            (3, "hello", "recipient rejected: 0 hello"),
            (4, "250 ok", "data rejected: 250 ok"),
            (5, "354", "end of data rejected: 354 "),
        ];
        for (at, reply, said) in rows {
            let replies = [&good[..at], &[reply]].concat();
            assert_eq!(run_dialogue(PLAIN, &replies).2, Err(UnexpectedReply(said.to_owned())));
        }
    }

    /// The matrix of reference §1.3: the commands after a refusal, and after the end.
    #[test]
    fn refusals_are_tolerated_with_a() {
        let rows: [(&str, &[&str], &str, SmtpSourceStep); 9] = [
            ("", &["554"], "HELO h", SmtpSourceStep::Wait),
            ("", &["421"], "HELO h", SmtpSourceStep::Wait),
            ("", &["220", "550"], "MAIL FROM:<a>", SmtpSourceStep::Wait),
            ("", &["220", "250", "550"], "RSET", SmtpSourceStep::Wait),
            ("", &["220", "250", "250", "550"], "RSET", SmtpSourceStep::Wait),
            ("-r 2", &["220", "250", "250", "550", "250"], "DATA", SmtpSourceStep::Wait),
            ("", &["220", "250", "250", "250", "554"], "RSET", SmtpSourceStep::Wait),
            ("", &["220", "250", "250", "250", "354", "550"], "QUIT", SmtpSourceStep::Wait),
            ("-d -m 2", &["220", "250", "550", "250"], "RSET", SmtpSourceStep::Idle),
        ];
        for (options, replies, said, turn) in rows {
            let (all, diagnostics, last) = run_dialogue(&format!("-A {PLAIN} {options}"), replies);
            assert_eq!((all.last().map(String::as_str), last), (Some(said), Ok(turn)), "{replies:?}");
            assert_eq!(diagnostics.len(), 1, "{diagnostics:?}");
        }
        for code in ["421 x", "521 x"] {
            for good in 1..6 {
                let replies = [&["220", "250", "250", "250", "354"][..good], &[code]].concat();
                assert_eq!(run_dialogue(&format!("-A {PLAIN}"), &replies).2, Ok(SmtpSourceStep::Close), "{replies:?}");
            }
        }
    }

    #[test]
    fn lmtp_hears_one_reply_for_each_recipient_that_was_accepted() {
        let before = ["220", "250", "250", "250", "550", "250", "354"];
        let line = format!("-L -A {PLAIN} -r 3");
        let (said, _, last) = run_dialogue(&line, &[&before[..], &["250"]].concat());
        assert_eq!(
            (said[0].as_str(), said.last().map(String::as_str), last),
            ("LHLO h", Some("."), Ok(SmtpSourceStep::Wait))
        );
        let (said, ..) = run_dialogue(&line, &[&before[..], &["250", "250"]].concat());
        assert_eq!(said.last().map(String::as_str), Some("QUIT"));
    }

    #[test]
    fn verbose_says_all_that_passes() {
        let diagnostics = run_dialogue(&format!("-v {PLAIN}"), &["220-a\r\n220 b"]).1;
        let info = |text: &str| Diagnostic::Info(text.to_owned());
        assert_eq!(diagnostics, [info("<<< 220-a"), info("<<< 220 b"), info("HELO h")]);
    }
}
