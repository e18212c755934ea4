//! Sends the commands that smtp-source would send, and reacts to replies as smtp-source does. An unexpected reply ends
//! the program. With `-A`, the program only prints a warning, resets a refused transaction, and ends the connection
//! after 421 or 521.
use super::options::SendDelay;
use super::reply::{self, Reply};
use super::run_state::SmtpSourceRun;
use crate::source::connect::connect;
use crate::source::dialect::{
    Diagnostic, Dialect, DialogueState, Extensions, Failure, FailureCause, MessageTask, OpenConnection, RenderContext,
    SharedState, Verdict,
};
use crate::stderr::{FatalError, printable};
use mailrun_net::{Outbox, clock};
use mailrun_process::reason::reason;
use std::io;
use std::time::Duration;

const CONNECT_RETRY_DELAY: Duration = Duration::from_micros(10);
/// Pause after a failed attempt to connect to a unix-domain socket whose listen queue was full.
const QUEUE_FULL_DELAY: Duration = Duration::from_millis(1);

impl SmtpSourceRun {
    fn hello(&self) -> &'static str {
        if self.options.speaks_lmtp { "LHLO" } else { "HELO" }
    }

    fn task(&self) -> MessageTask {
        MessageTask { number: 0, began: self.start_time() }
    }

    fn activity(&self, state: DialogueState) -> String {
        match state {
            DialogueState::Greeting => "reading server greeting".to_owned(),
            DialogueState::Mail => "sending sender".to_owned(),
            DialogueState::Recipient => "sending recipient".to_owned(),
            DialogueState::Data => "sending DATA command".to_owned(),
            DialogueState::EndOfData | DialogueState::Reset | DialogueState::Quit => "sending message".to_owned(),
            _ => format!("sending {}", self.hello()),
        }
    }
}

impl Dialect for SmtpSourceRun {
    fn shared(&self) -> &SharedState {
        &self.shared
    }

    fn reason(error: &io::Error) -> String {
        reason(error)
    }

    /// Returns the session's first message. Does not reduce the number of remaining messages, because
    /// `assign_first_messages` has already done so for all sessions.
    async fn first_message(&self) -> Option<MessageTask> {
        Some(self.task())
    }

    async fn next_message(&self) -> Option<MessageTask> {
        let pause = self.pause();
        if !pause.is_zero() {
            mailrun_net::sleep(pause).await;
        }
        Dialect::take_message(self)
    }

    fn take_message(&self) -> Option<MessageTask> {
        self.take_one().then(|| self.task())
    }

    fn waits_between_messages(&self) -> bool {
        self.options.delay != SendDelay::None
    }

    fn keeps_connection(&self) -> bool {
        self.options.reuses_connection && self.remaining() > 0
    }

    fn recipients_each(&self) -> i64 {
        self.options.recipients.into()
    }

    fn speaks_lmtp(&self) -> bool {
        self.options.speaks_lmtp
    }

    fn connect_attempts(&self) -> u32 {
        self.options.connect_attempts
    }

    async fn connect(
        &self,
        _session: u64,
        _task: MessageTask,
        attempts: &mut u32,
    ) -> Result<Option<OpenConnection>, FatalError> {
        let _permit = self.shared.connect_semaphore.acquire().await;
        let patient_until = clock::now() + self.options.timeout;
        loop {
            let (call, error) = match connect(&self.target, self.options.window).await {
                Ok(socket) => return Ok(Some(OpenConnection { stream: socket.into(), peer: None })),
                Err(failed) => failed,
            };
            if error.kind() == io::ErrorKind::WouldBlock && clock::now() < patient_until {
                mailrun_net::sleep(QUEUE_FULL_DELAY).await;
                continue;
            }
            let text = format!("{call}: {}", reason(&error));
            if *attempts == 1 || call == "socket" {
                return Err(FatalError(text));
            }
            *attempts -= 1;
            self.stderr.warn(&text);
            mailrun_net::sleep(CONNECT_RETRY_DELAY).await;
        }
    }

    /// A connection that is lost after QUIT is not an error, because all its messages are done.
    fn handle_failure(&self, Failure { state, cause, .. }: Failure) -> Result<(), FatalError> {
        let what = match cause {
            FailureCause::Refused(text) => return Err(FatalError(text)),
            FailureCause::EndlessReply => "endless reply",
            _ if state == DialogueState::Quit => return Ok(()),
            FailureCause::Timeout => "timeout",
            FailureCause::End | FailureCause::Io(..) => "lost connection",
        };
        Err(FatalError(format!("{what} while {}", self.activity(state))))
    }

    fn write_hello(&self, state: DialogueState, out: &mut Vec<u8>) -> bool {
        if self.options.is_old_mode || state != DialogueState::Hello {
            return false;
        }
        [self.hello(), " ", &self.hostname].iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
        true
    }

    fn write_sender(&self, _: Extensions, out: &mut Vec<u8>) -> Result<(), String> {
        ["MAIL FROM:<", &self.sender, ">"].iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
        Ok(())
    }

    fn write_recipient(&self, _: MessageTask, sent: i64, out: &mut Vec<u8>) -> Result<Option<u32>, String> {
        let number = self.recipient.next_number(self.options.recipients - sent as u32);
        out.extend_from_slice(b"RCPT TO:<");
        self.recipient.write(number, out);
        out.push(b'>');
        Ok(number)
    }

    fn write_message(&self, place: RenderContext, out: &mut Outbox) {
        self.message.render(place, self.remaining(), &self.recipient, out);
    }

    fn command_written(&self, line: &[u8], diagnostics: &mut Vec<Diagnostic>) {
        if self.options.is_verbose {
            diagnostics.push(Diagnostic::Info(printable(line)));
        }
    }

    fn messages_sent(&self, count: u32) {
        self.count_sent(count);
    }

    fn is_last_line(_first: &[u8], line: &[u8]) -> bool {
        reply::is_last_line(line)
    }

    fn judge(&self, state: DialogueState, wire: &[u8], diagnostics: &mut Vec<Diagnostic>) -> Result<Verdict, String> {
        let reply = Reply { wire };
        if self.options.is_verbose {
            diagnostics.extend(reply.lines().map(|line| Diagnostic::Info(format!("<<< {}", printable(line)))));
        }
        let code = reply.code();
        let rejected = match state {
            DialogueState::Quit => return Ok(Verdict::Accepted),
            DialogueState::Data if code == 354 => return Ok(Verdict::Accepted),
            _ if state != DialogueState::Data && code / 100 == 2 => return Ok(Verdict::Accepted),
            DialogueState::Greeting => "rejected at server banner",
            DialogueState::Mail => "sender rejected",
            DialogueState::Recipient => "recipient rejected",
            DialogueState::Data => "data rejected",
            DialogueState::EndOfData => "end of data rejected",
            DialogueState::Reset => "rset rejected",
            _ if self.options.speaks_lmtp => "LHLO rejected",
            _ => "HELO rejected",
        };
        let text = format!("{rejected}: {code} {}", printable(&reply.text()));
        if !self.options.tolerates_errors {
            return Err(text);
        }
        diagnostics.push(Diagnostic::Warning(text));
        // Like Postfix's smtp-source with `-A`, send commands even after a 421 or 521 greeting.
        let is_closing = matches!(code, 421 | 521) && state != DialogueState::Greeting;
        Ok(if is_closing { Verdict::Closing } else { Verdict::Rejected })
    }

    fn print(&self, diagnostic: &Diagnostic) {
        match diagnostic {
            Diagnostic::Info(text) => self.stderr.print(text),
            Diagnostic::Warning(text) => self.stderr.warn(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::dialogue::{Dialogue, Output, Step};

    fn run_dialogue(line: &str, replies: &[&str]) -> (Vec<String>, Vec<Diagnostic>, Result<Step, String>) {
        let words: Vec<String> = line.split_whitespace().chain(["127.0.0.1:9"]).map(str::to_owned).collect();
        let run = SmtpSourceRun::for_tests(&words);
        let mut dialogue = Dialogue::new(run.task());
        let mut out = Outbox::default();
        let mut diagnostics = Vec::new();
        let mut last = Ok(Step::Wait);
        for reply in replies {
            let mut output = Output { out: &mut out, diagnostics: &mut diagnostics, descriptor: 5 };
            last = dialogue.handle_reply(format!("{reply}\r\n").as_bytes(), &run, &mut output);
        }
        let commands = String::from_utf8_lossy(out.bytes()).into_owned();
        let commands = commands.split_terminator("\r\n").map(str::to_owned).collect();
        (commands, diagnostics, last)
    }

    const ONE: [&str; 4] = ["HELO h", "MAIL FROM:<a>", "RCPT TO:<b>", "DATA"];
    const PLAIN: &str = "-f a -t b -M h";

    #[test]
    fn a_message_in_lock_step() {
        let replies = ["220", "250", "250", "250", "354", "250", "221"];
        let (commands, diagnostics, last) = run_dialogue(PLAIN, &replies);
        assert_eq!(commands[..4], ONE);
        assert_eq!(commands[commands.len() - 2..], [".", "QUIT"]);
        assert_eq!((diagnostics, last), (vec![], Ok(Step::Close)));
        assert_eq!(run_dialogue(PLAIN, &replies[..5]).2, Ok(Step::Message));
        assert_eq!(run_dialogue(&format!("{PLAIN} -d -m 2"), &replies[..6]).2, Ok(Step::Idle));
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
        for (at, reply, expected) in rows {
            let replies = [&good[..at], &[reply]].concat();
            assert_eq!(run_dialogue(PLAIN, &replies).2, Err(expected.to_owned()));
        }
    }

    /// Each row has options, replies (exactly one is a refusal), the client's last command, and the next step.
    #[test]
    fn refusals_are_tolerated_with_a() {
        let rows: [(&str, &[&str], &str, Step); 9] = [
            ("", &["554"], "HELO h", Step::Wait),
            ("", &["421"], "HELO h", Step::Wait),
            ("", &["220", "550"], "MAIL FROM:<a>", Step::Wait),
            ("", &["220", "250", "550"], "RSET", Step::Wait),
            ("", &["220", "250", "250", "550"], "RSET", Step::Wait),
            ("-r 2", &["220", "250", "250", "550", "250"], "DATA", Step::Wait),
            ("", &["220", "250", "250", "250", "554"], "RSET", Step::Wait),
            ("", &["220", "250", "250", "250", "354", "550"], "QUIT", Step::Wait),
            ("-d -m 2", &["220", "250", "550", "250"], "RSET", Step::Idle),
        ];
        for (options, replies, expected, turn) in rows {
            let (all, diagnostics, last) = run_dialogue(&format!("-A {PLAIN} {options}"), replies);
            assert_eq!((all.last().map(String::as_str), last), (Some(expected), Ok(turn)), "{replies:?}");
            assert_eq!(diagnostics.len(), 1, "{diagnostics:?}");
        }
        for code in ["421 x", "521 x"] {
            for good in 1..6 {
                let replies = [&["220", "250", "250", "250", "354"][..good], &[code]].concat();
                assert_eq!(run_dialogue(&format!("-A {PLAIN}"), &replies).2, Ok(Step::Close), "{replies:?}");
            }
        }
    }

    #[test]
    fn lmtp_hears_one_reply_for_each_recipient_that_was_accepted() {
        let before = ["220", "250", "250", "250", "550", "250", "354"];
        let line = format!("-L -A {PLAIN} -r 3");
        let (lines, _, last) = run_dialogue(&line, &[&before[..], &["250"]].concat());
        assert_eq!((lines[0].as_str(), lines.last().map(String::as_str), last), ("LHLO h", Some("."), Ok(Step::Wait)));
        let (lines, ..) = run_dialogue(&line, &[&before[..], &["250", "250"]].concat());
        assert_eq!(lines.last().map(String::as_str), Some("QUIT"));
    }

    #[test]
    fn verbose_says_all_that_passes() {
        let diagnostics = run_dialogue(&format!("-v {PLAIN}"), &["220-a\r\n220 b"]).1;
        let info = |text: &str| Diagnostic::Info(text.to_owned());
        assert_eq!(diagnostics, [info("<<< 220-a"), info("<<< 220 b"), info("HELO h")]);
    }
}
