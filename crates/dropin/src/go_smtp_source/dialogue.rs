//! The commands of a connection, one after each reply, as Go's net/smtp sends them. No sockets, no clock.
//!
//! ```text
//! Greeting ─▶ Hello ─▶ (StartTls ─▶ SecureHello) ─▶ Mail ─▶ Recipient … ─▶ Data ─▶ EndOfData ─▶ Quit, or Mail again
//!               └▶ OldHello ┘
//! ```
//! An unexpected reply ends it.
use super::message::{HOSTNAME, MessageTask};
use super::reply::ParsedReply;
use super::run_state::GoSourceRun;
use mailrun_net::Outbox;

/// Error text of net/smtp for a line with CR or LF.
const LINE_BREAK_ERROR: &str = "smtp: A line must not contain CR or LF";

/// The reply that is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoSourceState {
    Greeting,
    Hello,
    /// HELO, after EHLO was not understood.
    OldHello,
    StartTls,
    SecureHello,
    Mail,
    Recipient,
    Data,
    EndOfData,
    Quit,
}

/// The next step after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoSourceStep {
    /// Send the written commands, and wait.
    Wait,
    /// Begin TLS, then call [`GoSourceDialogue::secured`].
    StartTls,
    /// The message was accepted; the connection is free for another.
    Idle,
    /// Close.
    Close,
}

/// The step at which an error occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionPhase {
    /// There is no session yet.
    Greeting,
    /// A call of net/smtp, in the original's words.
    Sending(&'static str),
    /// All messages are sent.
    Quitting,
}

/// Output of the dialogue, and the shared state.
pub(super) struct GoSourceOutput<'a> {
    pub(super) run: &'a GoSourceRun,
    pub(super) out: &'a mut Outbox,
}

impl GoSourceOutput<'_> {
    fn write_command(&mut self, parts: &[&str]) {
        let out = self.out.bytes();
        parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
        out.extend_from_slice(b"\r\n");
    }
}

/// One connection's dialogue.
#[derive(Debug)]
pub(super) struct GoSourceDialogue {
    state: GoSourceState,
    /// Set if the server offers 8BITMIME, which MAIL uses.
    takes_8bit: bool,
    takes_utf8: bool,
    /// The message that is under way.
    task: MessageTask,
    /// Number of its recipients that have been sent.
    recipients_sent: i64,
}

impl GoSourceDialogue {
    /// Creates the dialogue of an open connection, for that message: the server is to greet.
    pub(super) fn new(task: MessageTask) -> Self {
        Self { state: GoSourceState::Greeting, takes_8bit: false, takes_utf8: false, task, recipients_sent: 0 }
    }

    /// The current step, for error texts.
    pub(super) fn phase(&self, run: &GoSourceRun) -> SessionPhase {
        SessionPhase::Sending(match self.state {
            GoSourceState::Greeting => return SessionPhase::Greeting,
            GoSourceState::Quit => return SessionPhase::Quitting,
            GoSourceState::Hello | GoSourceState::OldHello | GoSourceState::StartTls | GoSourceState::SecureHello => {
                if run.options.uses_tls {
                    "unable to issue STARTTLS"
                } else {
                    "unable to say hello"
                }
            }
            GoSourceState::Mail => "unable to start SMTP transaction",
            GoSourceState::Recipient => "unable to issue RCPT",
            GoSourceState::Data => "unable to start DATA",
            GoSourceState::EndOfData => "unable to commit the SMTP transaction",
        })
    }

    /// Begins a message on a connection that is free.
    ///
    /// # Errors
    /// If the sender is not a single line.
    pub(super) fn begin(&mut self, task: MessageTask, output: &mut GoSourceOutput<'_>) -> Result<GoSourceStep, String> {
        self.task = task;
        self.recipients_sent = 0;
        self.state = GoSourceState::Mail;
        let sender = one_line(&output.run.options.sender)?;
        let body = if self.takes_8bit { " BODY=8BITMIME" } else { "" };
        let utf8 = if self.takes_utf8 { " SMTPUTF8" } else { "" };
        output.write_command(&["MAIL FROM:<", sender, ">", body, utf8]);
        Ok(GoSourceStep::Wait)
    }

    /// Ends a connection that is free.
    pub(super) fn quit(&mut self, output: &mut GoSourceOutput<'_>) -> GoSourceStep {
        output.write_command(&["QUIT"]);
        self.wait_for(GoSourceState::Quit)
    }

    /// Continues after the TLS handshake.
    pub(super) fn tls_established(&mut self, output: &mut GoSourceOutput<'_>) {
        output.write_command(&["EHLO ", HOSTNAME]);
        self.state = GoSourceState::SecureHello;
    }

    /// Handles a reply.
    ///
    /// # Errors
    /// If the reply is unexpected: its text.
    pub(super) fn handle_reply(
        &mut self,
        reply: ParsedReply<'_>,
        output: &mut GoSourceOutput<'_>,
    ) -> Result<GoSourceStep, String> {
        let text = match reply {
            ParsedReply::Reply(code, text) if self.state.expects(code) => text,
            _ if self.state == GoSourceState::Hello && reply != ParsedReply::TooLong => {
                output.write_command(&["HELO ", HOSTNAME]);
                return Ok(self.wait_for(GoSourceState::OldHello));
            }
            wrong => return Err(wrong.error_text()),
        };
        match self.state {
            GoSourceState::Greeting => {
                output.write_command(&["EHLO ", HOSTNAME]);
                Ok(self.wait_for(GoSourceState::Hello))
            }
            GoSourceState::Hello | GoSourceState::OldHello => {
                if self.state == GoSourceState::Hello {
                    self.read_extensions(text);
                }
                if !output.run.options.uses_tls {
                    return self.begin(self.task, output);
                }
                output.write_command(&["STARTTLS"]);
                Ok(self.wait_for(GoSourceState::StartTls))
            }
            GoSourceState::StartTls => Ok(GoSourceStep::StartTls),
            GoSourceState::SecureHello => {
                self.read_extensions(text);
                self.begin(self.task, output)
            }
            GoSourceState::Mail => self.write_rcpt(output),
            GoSourceState::Recipient if self.recipients_sent < output.run.options.recipients_each() => {
                self.write_rcpt(output)
            }
            GoSourceState::Recipient => {
                output.write_command(&["DATA"]);
                Ok(self.wait_for(GoSourceState::Data))
            }
            GoSourceState::Data => {
                output.run.message.render(self.task, output.out);
                Ok(self.wait_for(GoSourceState::EndOfData))
            }
            GoSourceState::EndOfData => {
                output.run.accepted(self.task);
                Ok(if output.run.options.reuses_connection { GoSourceStep::Idle } else { self.quit(output) })
            }
            GoSourceState::Quit => Ok(GoSourceStep::Close),
        }
    }

    /// Reads the lines after the first of a reply to EHLO; case matters, as it does to net/smtp.
    fn read_extensions(&mut self, text: &[u8]) {
        let offers = |keyword: &[u8]| {
            let mut lines = text.split(|&byte| byte == b'\n').skip(1);
            lines.any(|line| line.split(|&byte| byte == b' ').next() == Some(keyword))
        };
        self.takes_8bit = offers(b"8BITMIME");
        self.takes_utf8 = offers(b"SMTPUTF8");
    }

    fn write_rcpt(&mut self, output: &mut GoSourceOutput<'_>) -> Result<GoSourceStep, String> {
        self.state = GoSourceState::Recipient;
        one_line(&output.run.options.recipient)?;
        let [before, number, behind] = output.run.recipient(self.task.number, self.recipients_sent);
        output.write_command(&["RCPT TO:<", &before, &number, &behind, ">"]);
        self.recipients_sent += 1;
        Ok(GoSourceStep::Wait)
    }

    fn wait_for(&mut self, awaits: GoSourceState) -> GoSourceStep {
        self.state = awaits;
        GoSourceStep::Wait
    }
}

impl GoSourceState {
    fn expects(self, code: u16) -> bool {
        match self {
            Self::Greeting | Self::StartTls => code == 220,
            Self::Hello | Self::OldHello | Self::SecureHello | Self::Mail | Self::EndOfData => code == 250,
            Self::Recipient => code / 10 == 25,
            Self::Data => code == 354,
            Self::Quit => code == 221,
        }
    }
}

fn one_line(text: &str) -> Result<&str, String> {
    if text.contains(['\r', '\n']) { Err(LINE_BREAK_ERROR.to_owned()) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs replies through a dialogue: returns its commands, its result, and its step.
    fn run_dialogue(
        words: &[&str],
        replies: &[(u16, &str)],
    ) -> (Vec<String>, Result<GoSourceStep, String>, SessionPhase) {
        let run = GoSourceRun::for_tests(words);
        let mut dialogue = GoSourceDialogue::new(MessageTask { number: 1, began: None });
        let mut out = Outbox::default();
        let mut last = Ok(GoSourceStep::Wait);
        for (code, text) in replies {
            let mut output = GoSourceOutput { run: &run, out: &mut out };
            last = dialogue.handle_reply(ParsedReply::Reply(*code, text.as_bytes()), &mut output);
            if last == Ok(GoSourceStep::StartTls) {
                dialogue.tls_established(&mut output);
            }
        }
        let said = String::from_utf8(out.to_vec()).unwrap();
        (said.split_terminator("\r\n").map(str::to_owned).collect(), last, dialogue.phase(&run))
    }

    const GOOD: [(u16, &str); 7] = [(220, "x"), (250, "x"), (250, "x"), (250, "x"), (354, "x"), (250, "x"), (221, "x")];

    #[test]
    fn a_message_in_lock_step() {
        let (said, last, _) = run_dialogue(&["-f", "a", "-t", "b"], &GOOD);
        assert_eq!(said[..4], ["EHLO localhost", "MAIL FROM:<a>", "RCPT TO:<b>", "DATA"]);
        assert_eq!((said[said.len() - 2..].join(" "), last), (". QUIT".to_owned(), Ok(GoSourceStep::Close)));
        assert_eq!(run_dialogue(&["-d"], &GOOD[..6]).1, Ok(GoSourceStep::Idle));
    }

    #[test]
    fn numbered_recipients() {
        let (said, ..) = run_dialogue(&["-r", "3", "-t", "b"], &GOOD[..3]);
        assert_eq!(said.last().unwrap(), "RCPT TO:<1_b>");
        let (said, ..) = run_dialogue(
            &["-r", "3", "-t", "b"],
            &[GOOD.as_slice()[..3].to_vec(), vec![(251, "x"), (259, "x"), (250, "x")]].concat(),
        );
        assert_eq!(said[2..], ["RCPT TO:<1_b>", "RCPT TO:<2_b>", "RCPT TO:<3_b>", "DATA"]);
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
        let said = ["EHLO localhost", "STARTTLS", "EHLO localhost", "MAIL FROM:<from@example.com> BODY=8BITMIME"];
        assert_eq!(run_dialogue(&["-tls"], &secured).0, said);
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
        let (said, last, _) = run_dialogue(&["-f", "a\r\nRSET"], &GOOD[..2]);
        assert_eq!((said, last), (vec!["EHLO localhost".to_owned()], Err(LINE_BREAK_ERROR.to_owned())));
        let (said, last, stage) = run_dialogue(&["-t", "a\nb"], &GOOD[..3]);
        assert_eq!((said.len(), last), (2, Err(LINE_BREAK_ERROR.to_owned())));
        assert_eq!(stage, SessionPhase::Sending("unable to issue RCPT"));
    }
}
