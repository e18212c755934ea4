//! go-smtp-source's commands, as Go's net/smtp sends them, and its reaction to replies. An unexpected reply ends the
//! connection and, after most commands, the whole program.
use super::message::HOSTNAME;
use super::reply::{self, ParsedReply};
use super::run_state::{GoSourceRun, REPLY_TIMEOUT};
use crate::go::{log, reason};
use crate::host_port::EndpointAddress;
use crate::source::connect::connect;
use crate::source::dialect::{
    Diagnostic, Dialect, DialogueState, Extensions, Failure, FailureCause, MessageTask, OpenConnection, RenderContext,
    SharedState, Verdict,
};
use crate::stderr::FatalError;
use mailrun_net::{Outbox, Socket, Timer, clock};
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;

/// Error text of net/smtp for a line that contains CR or LF. Such a line could smuggle in another command.
const LINE_BREAK_ERROR: &str = "smtp: A line must not contain CR or LF";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionPhase {
    Greeting,
    Sending(&'static str),
    Quitting,
}

impl GoSourceRun {
    fn phase(&self, state: DialogueState) -> SessionPhase {
        SessionPhase::Sending(match state {
            DialogueState::Greeting => return SessionPhase::Greeting,
            DialogueState::Quit => return SessionPhase::Quitting,
            DialogueState::Mail => "unable to start SMTP transaction",
            DialogueState::Recipient => "unable to issue RCPT",
            DialogueState::Data => "unable to start DATA",
            DialogueState::EndOfData => "unable to commit the SMTP transaction",
            _ if self.options.uses_tls => "unable to issue STARTTLS",
            _ => "unable to say hello",
        })
    }

    /// Connects to the first address of the target that can be reached. As in go-smtp-source, only one session connects
    /// at a time.
    async fn dial(&self) -> Result<OpenConnection, String> {
        let _permit = self.shared.connect_semaphore.acquire().await;
        let addresses = self.target.addresses().await.map_err(|error| format!("dial tcp: {error}"))?;
        let mut first = None;
        for address in addresses {
            match connect_to(address).await {
                Ok(socket) => return Ok(OpenConnection { stream: socket.into(), peer: Some(address) }),
                Err((call, error)) => {
                    first.get_or_insert((call, address, error));
                }
            }
        }
        let (call, address, error) =
            first.ok_or_else(|| format!("dial tcp: lookup {}: no such host", self.target.host))?;
        Err(format!("dial tcp {}: {call}: {}", self.target.display_name(address), reason(&error)))
    }

    fn give_up_unconnected(&self, reason: &str) -> Result<(), FatalError> {
        if self.options.reuses_connection {
            return Err(FatalError(format!("opening a SMTP session: {reason}")));
        }
        self.fail_message(&format!("unable to connect to the server: {reason}"));
        Ok(())
    }
}

async fn connect_to(address: SocketAddr) -> Result<Socket, (&'static str, io::Error)> {
    let target = EndpointAddress::Inet(address);
    let connected = Timer::default().timeout_at(clock::now() + REPLY_TIMEOUT, connect(&target, None)).await;
    connected.unwrap_or_else(|| Err(("connect", Errno::TIMEDOUT.into())))
}

impl Dialect for GoSourceRun {
    fn shared(&self) -> &SharedState {
        &self.shared
    }

    fn reason(error: &io::Error) -> String {
        reason(error)
    }

    async fn first_message(&self) -> Option<MessageTask> {
        self.next_message().await
    }

    async fn next_message(&self) -> Option<MessageTask> {
        let number = self.take_one()?;
        self.wait_for_rate().await;
        Some(self.task(number))
    }

    fn take_message(&self) -> Option<MessageTask> {
        self.take_one().map(|number| self.task(number))
    }

    fn waits_between_messages(&self) -> bool {
        self.rate_limiter.is_limited()
    }

    fn keeps_connection(&self) -> bool {
        self.options.reuses_connection
    }

    fn recipients_each(&self) -> i64 {
        self.options.recipients_each()
    }

    async fn connect(
        &self,
        session: u64,
        task: MessageTask,
        _attempts: &mut u32,
    ) -> Result<Option<OpenConnection>, FatalError> {
        if self.options.reuses_connection {
            self.verbose(|| format!("Opening a SMTP session ({session})..."));
        } else {
            self.verbose(|| format!("Opening a SMTP session ({})...", task.number));
        }
        match self.dial().await {
            Ok(open) => Ok(Some(open)),
            Err(reason) => self.give_up_unconnected(&reason).map(|()| None),
        }
    }

    fn connection_closed(&self, task: MessageTask) {
        self.verbose(|| {
            let closed = if self.options.reuses_connection { self.count_closed() } else { task.number };
            format!("The SMTP session ({closed}) has been closed.")
        });
    }

    fn handle_failure(&self, failure: Failure) -> Result<(), FatalError> {
        let cause = match failure.cause {
            FailureCause::Refused(text) => text,
            FailureCause::EndlessReply => "endless reply".to_owned(),
            FailureCause::End => "EOF".to_owned(),
            FailureCause::Timeout => format!("no reply within {} s", REPLY_TIMEOUT.as_secs()),
            FailureCause::Io(_, error) if error.raw_os_error().is_none() => reason(&error),
            FailureCause::Io(call, error) => {
                let [local, peer] =
                    [failure.local, failure.peer].map(|end| end.map(|end| end.to_string()).unwrap_or_default());
                format!("{call} tcp {local}->{peer}: {call}: {}", reason(&error))
            }
        };
        match self.phase(failure.state) {
            SessionPhase::Greeting => self.give_up_unconnected(&cause),
            SessionPhase::Sending(what) => Err(FatalError(format!("unable to send a mail:{what}: {cause}"))),
            SessionPhase::Quitting if self.options.reuses_connection => {
                Err(FatalError(format!("unable to quit a session:{cause}")))
            }
            SessionPhase::Quitting => {
                log(&format!("unable to quit a session: {cause}"));
                self.connection_closed(failure.task);
                Ok(())
            }
        }
    }

    fn write_hello(&self, state: DialogueState, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(if state == DialogueState::OldHello { b"HELO " } else { b"EHLO " });
        out.extend_from_slice(HOSTNAME.as_bytes());
        true
    }

    fn write_sender(&self, extensions: Extensions, out: &mut Vec<u8>) -> Result<(), String> {
        let sender = one_line(&self.options.sender)?;
        let body = if extensions.takes_8bit { " BODY=8BITMIME" } else { "" };
        let utf8 = if extensions.takes_utf8 { " SMTPUTF8" } else { "" };
        ["MAIL FROM:<", sender, ">", body, utf8].iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
        Ok(())
    }

    fn write_recipient(&self, task: MessageTask, sent: i64, out: &mut Vec<u8>) -> Result<Option<u32>, String> {
        one_line(&self.options.recipient)?;
        out.extend_from_slice(b"RCPT TO:<");
        self.recipient(task.number, sent).iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
        out.push(b'>');
        Ok(None)
    }

    fn write_message(&self, place: RenderContext, out: &mut Outbox) {
        self.message.render(place.task, out);
    }

    fn is_last_line(first: &[u8], line: &[u8]) -> bool {
        reply::is_last_line(first, line)
    }

    fn judge(&self, state: DialogueState, wire: &[u8], _: &mut Vec<Diagnostic>) -> Result<Verdict, String> {
        let reply = ParsedReply::parse(wire);
        match reply {
            ParsedReply::Reply(code, _) if is_expected(state, code) => Ok(Verdict::Accepted),
            // A refused EHLO is no error, because the client then tries HELO.
            _ if state == DialogueState::Hello => Ok(Verdict::Rejected),
            _ => Err(reply.error_text()),
        }
    }

    /// Returns the extensions in the reply to EHLO. Keywords must be in upper case, as in net/smtp.
    fn extensions(&self, wire: &[u8]) -> Extensions {
        let ParsedReply::Reply(code, wire) = ParsedReply::parse(wire) else { return Extensions::default() };
        let offers = |keyword: &[u8]| {
            let mut lines = reply::texts(code, wire).skip(1);
            lines.any(|line| line.split(|&byte| byte == b' ').next() == Some(keyword))
        };
        Extensions { takes_8bit: offers(b"8BITMIME"), takes_utf8: offers(b"SMTPUTF8") }
    }
}

fn is_expected(state: DialogueState, code: u16) -> bool {
    match state {
        DialogueState::Greeting | DialogueState::StartTls => code == 220,
        DialogueState::Recipient => code / 10 == 25,
        DialogueState::Data => code == 354,
        DialogueState::Quit => code == 221,
        _ => code == 250,
    }
}

fn one_line(text: &str) -> Result<&str, String> {
    if text.contains(['\r', '\n']) { Err(LINE_BREAK_ERROR.to_owned()) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::source::dialogue::{Dialogue, Output, Step};
    use mailrun_net::worker;
    use std::time::Duration;

    fn run_dialogue(words: &[&str], replies: &[(u16, &str)]) -> (Vec<String>, Result<Step, String>, SessionPhase) {
        let run = GoSourceRun::for_tests(words);
        let mut dialogue = Dialogue::new(MessageTask { number: 1, began: None });
        let mut out = Outbox::default();
        let mut last = Ok(Step::Wait);
        for (code, text) in replies {
            let lines: Vec<&str> = text.split('\n').collect();
            let last_line = lines.len() - 1;
            let wire = lines
                .iter()
                .enumerate()
                .map(|(number, line)| format!("{code}{}{line}\r\n", if number == last_line { ' ' } else { '-' }));
            let mut output = Output { out: &mut out, diagnostics: &mut Vec::new(), descriptor: 0 };
            last = dialogue.handle_reply(wire.collect::<String>().as_bytes(), &run, &mut output);
            if last == Ok(Step::StartTls) {
                last = dialogue.tls_established(&run, &mut output);
            }
        }
        let commands = String::from_utf8(out.to_vec()).unwrap();
        (commands.split_terminator("\r\n").map(str::to_owned).collect(), last, run.phase(dialogue.state()))
    }

    const GOOD: [(u16, &str); 7] = [(220, "x"), (250, "x"), (250, "x"), (250, "x"), (354, "x"), (250, "x"), (221, "x")];

    #[test]
    fn the_wait_for_the_rate_comes_before_the_message() {
        let run = GoSourceRun::for_tests(&["--report", "-q", "5", "-m", "2"]);
        let before = clock::now();
        let tasks = async move { [run.next_message().await, run.next_message().await] };
        let began = worker::run(|_| tasks).unwrap().map(|task| task.unwrap().began.unwrap());
        // The recorded start must come after the rate limit's delay of 200 ms, which is not latency of the server.
        assert!(began[1] >= before + Duration::from_millis(200), "{before:?} {began:?}");
    }

    #[test]
    fn a_message_in_lock_step() {
        let (commands, last, _) = run_dialogue(&["-f", "a", "-t", "b"], &GOOD);
        assert_eq!(commands[..4], ["EHLO localhost", "MAIL FROM:<a>", "RCPT TO:<b>", "DATA"]);
        assert_eq!((commands[commands.len() - 2..].join(" "), last), (". QUIT".to_owned(), Ok(Step::Close)));
        assert_eq!(run_dialogue(&["-d"], &GOOD[..6]).1, Ok(Step::Idle));
    }

    #[test]
    fn numbered_recipients() {
        let (commands, ..) = run_dialogue(&["-r", "3", "-t", "b"], &GOOD[..3]);
        assert_eq!(commands.last().unwrap(), "RCPT TO:<1_b>");
        let (commands, ..) = run_dialogue(
            &["-r", "3", "-t", "b"],
            &[GOOD.as_slice()[..3].to_vec(), vec![(251, "x"), (259, "x"), (250, "x")]].concat(),
        );
        assert_eq!(commands[2..], ["RCPT TO:<1_b>", "RCPT TO:<2_b>", "RCPT TO:<3_b>", "DATA"]);
    }

    #[test]
    fn what_is_offered_is_used() {
        let offers = "me\n8BITMIME\nSMTPUTF8 x\nSIZE";
        let mail = |replies: &[(u16, &str)], words: &[&str]| run_dialogue(words, replies).0.pop().unwrap();
        assert_eq!(mail(&[(220, ""), (250, offers)], &[]), "MAIL FROM:<from@example.com> BODY=8BITMIME SMTPUTF8");
        assert_eq!(mail(&[(220, ""), (250, "8BITMIME\n8bitmime")], &[]), "MAIL FROM:<from@example.com>");
        let old = [(220, ""), (500, offers), (250, offers)];
        assert_eq!(run_dialogue(&[], &old).0, ["EHLO localhost", "HELO localhost", "MAIL FROM:<from@example.com>"]);
        let secured = [(220, ""), (250, offers), (220, ""), (250, "me\n8BITMIME")];
        let commands = ["EHLO localhost", "STARTTLS", "EHLO localhost", "MAIL FROM:<from@example.com> BODY=8BITMIME"];
        assert_eq!(run_dialogue(&["-tls"], &secured).0, commands);
    }

    #[test]
    fn what_should_not_be_ends_it() {
        let rows = [
            (0, 554, SessionPhase::Greeting),
            (2, 251, SessionPhase::Sending("unable to start SMTP transaction")),
            (3, 550, SessionPhase::Sending("unable to issue RCPT")),
            (4, 250, SessionPhase::Sending("unable to start DATA")),
            (5, 451, SessionPhase::Sending("unable to commit the SMTP transaction")),
            (6, 250, SessionPhase::Quitting),
        ];
        for (at, code, stage) in rows {
            let replies = [&GOOD[..at], &[(code, "no\nno")]].concat();
            let (_, last, at) = run_dialogue(&[], &replies);
            assert_eq!((last, at), (Err(format!("{code} \"no\\nno\"")), stage));
        }
        let hello = run_dialogue(&[], &[(220, ""), (500, ""), (502, "no")]);
        assert_eq!((hello.1, hello.2), (Err("502 \"no\"".to_owned()), SessionPhase::Sending("unable to say hello")));
        for replies in [&[(220, ""), (500, ""), (502, "no")][..], &[(220, ""), (250, ""), (502, "no")]] {
            let (_, last, stage) = run_dialogue(&["-tls"], replies);
            assert_eq!(
                (last, stage),
                (Err("502 \"no\"".to_owned()), SessionPhase::Sending("unable to issue STARTTLS"))
            );
        }
    }

    #[test]
    fn an_address_of_two_lines_is_not_said() {
        let (commands, last, _) = run_dialogue(&["-f", "a\r\nRSET"], &GOOD[..2]);
        assert_eq!((commands, last), (vec!["EHLO localhost".to_owned()], Err(LINE_BREAK_ERROR.to_owned())));
        let (commands, last, stage) = run_dialogue(&["-t", "a\nb"], &GOOD[..3]);
        assert_eq!((commands.len(), last), (2, Err(LINE_BREAK_ERROR.to_owned())));
        assert_eq!(stage, SessionPhase::Sending("unable to issue RCPT"));
    }
}
