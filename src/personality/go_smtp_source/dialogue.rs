//! The commands of a connection, one after each reply, as Go's net/smtp sends them. No sockets, no clock.
//!
//! ```text
//! Greeting ─▶ Hello ─▶ (StartTls ─▶ SecureHello) ─▶ Mail ─▶ Recipient … ─▶ Data ─▶ EndOfData ─▶ Quit, or Mail again
//!               └▶ OldHello ┘
//! ```
//! An unexpected reply ends it.
use super::course::{Course, Task};
use super::message::HOSTNAME;
use super::reply::Heard;
use net::Outbox;

/// Error text of net/smtp for a line with CR or LF.
const TWO_LINES: &str = "smtp: A line must not contain CR or LF";

/// The reply that is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
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
pub(super) enum Turn {
    /// Send the written commands, and wait.
    Wait,
    /// Begin TLS, then call [`Dialogue::secured`].
    Tls,
    /// The message was accepted; the connection is free for another.
    Free,
    /// Close.
    Close,
}

/// The step at which an error occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is no session yet.
    Greeting,
    /// A call of net/smtp, in the original's words.
    Sending(&'static str),
    /// All messages are sent.
    Quitting,
}

/// Output of the dialogue, and the shared state.
pub(super) struct Desk<'a> {
    pub(super) course: &'a Course,
    pub(super) out: &'a mut Outbox,
}

impl Desk<'_> {
    fn say(&mut self, parts: &[&str]) {
        let out = self.out.bytes();
        parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
        out.extend_from_slice(b"\r\n");
    }
}

/// One connection's dialogue.
#[derive(Debug)]
pub(super) struct Dialogue {
    awaits: Awaits,
    /// Set if the server offers 8BITMIME, which MAIL uses.
    takes_8bit: bool,
    takes_utf8: bool,
    /// The message that is under way.
    task: Task,
    /// Number of its recipients that have been sent.
    named: i64,
}

impl Dialogue {
    /// Creates the dialogue of an open connection, for that message: the server is to greet.
    pub(super) fn new(task: Task) -> Self {
        Self { awaits: Awaits::Greeting, takes_8bit: false, takes_utf8: false, task, named: 0 }
    }

    /// The current step, for error texts.
    pub(super) fn stage(&self, course: &Course) -> Stage {
        Stage::Sending(match self.awaits {
            Awaits::Greeting => return Stage::Greeting,
            Awaits::Quit => return Stage::Quitting,
            Awaits::Hello | Awaits::OldHello | Awaits::StartTls | Awaits::SecureHello => {
                if course.options.uses_tls {
                    "unable to issue STARTTLS"
                } else {
                    "unable to say hello"
                }
            }
            Awaits::Mail => "unable to start SMTP transaction",
            Awaits::Recipient => "unable to issue RCPT",
            Awaits::Data => "unable to start DATA",
            Awaits::EndOfData => "unable to commit the SMTP transaction",
        })
    }

    /// Begins a message on a connection that is free.
    ///
    /// # Errors
    /// If the sender is not a single line.
    pub(super) fn begin(&mut self, task: Task, desk: &mut Desk<'_>) -> Result<Turn, String> {
        self.task = task;
        self.named = 0;
        self.awaits = Awaits::Mail;
        let sender = one_line(&desk.course.options.sender)?;
        let body = if self.takes_8bit { " BODY=8BITMIME" } else { "" };
        let utf8 = if self.takes_utf8 { " SMTPUTF8" } else { "" };
        desk.say(&["MAIL FROM:<", sender, ">", body, utf8]);
        Ok(Turn::Wait)
    }

    /// Ends a connection that is free.
    pub(super) fn quit(&mut self, desk: &mut Desk<'_>) -> Turn {
        desk.say(&["QUIT"]);
        self.wait_for(Awaits::Quit)
    }

    /// Continues after the TLS handshake.
    pub(super) fn secured(&mut self, desk: &mut Desk<'_>) {
        desk.say(&["EHLO ", HOSTNAME]);
        self.awaits = Awaits::SecureHello;
    }

    /// Handles a reply.
    ///
    /// # Errors
    /// If the reply is unexpected: its text.
    pub(super) fn replied(&mut self, heard: Heard<'_>, desk: &mut Desk<'_>) -> Result<Turn, String> {
        let text = match heard {
            Heard::Reply(code, text) if self.awaits.expects(code) => text,
            _ if self.awaits == Awaits::Hello && heard != Heard::Endless => {
                desk.say(&["HELO ", HOSTNAME]);
                return Ok(self.wait_for(Awaits::OldHello));
            }
            wrong => return Err(wrong.complaint()),
        };
        match self.awaits {
            Awaits::Greeting => {
                desk.say(&["EHLO ", HOSTNAME]);
                Ok(self.wait_for(Awaits::Hello))
            }
            Awaits::Hello | Awaits::OldHello => {
                if self.awaits == Awaits::Hello {
                    self.note_offers(text);
                }
                if !desk.course.options.uses_tls {
                    return self.begin(self.task, desk);
                }
                desk.say(&["STARTTLS"]);
                Ok(self.wait_for(Awaits::StartTls))
            }
            Awaits::StartTls => Ok(Turn::Tls),
            Awaits::SecureHello => {
                self.note_offers(text);
                self.begin(self.task, desk)
            }
            Awaits::Mail => self.say_recipient(desk),
            Awaits::Recipient if self.named < desk.course.options.recipients_each() => self.say_recipient(desk),
            Awaits::Recipient => {
                desk.say(&["DATA"]);
                Ok(self.wait_for(Awaits::Data))
            }
            Awaits::Data => {
                desk.course.message.render(self.task, desk.out);
                Ok(self.wait_for(Awaits::EndOfData))
            }
            Awaits::EndOfData => {
                desk.course.accepted(self.task);
                Ok(if desk.course.options.keeps { Turn::Free } else { self.quit(desk) })
            }
            Awaits::Quit => Ok(Turn::Close),
        }
    }

    /// Reads the lines after the first of a reply to EHLO; case matters, as it does to net/smtp.
    fn note_offers(&mut self, text: &[u8]) {
        let offers = |keyword: &[u8]| {
            let mut lines = text.split(|&byte| byte == b'\n').skip(1);
            lines.any(|line| line.split(|&byte| byte == b' ').next() == Some(keyword))
        };
        self.takes_8bit = offers(b"8BITMIME");
        self.takes_utf8 = offers(b"SMTPUTF8");
    }

    fn say_recipient(&mut self, desk: &mut Desk<'_>) -> Result<Turn, String> {
        self.awaits = Awaits::Recipient;
        one_line(&desk.course.options.recipient)?;
        let [before, number, behind] = desk.course.recipient(self.task.number, self.named);
        desk.say(&["RCPT TO:<", &before, &number, &behind, ">"]);
        self.named += 1;
        Ok(Turn::Wait)
    }

    fn wait_for(&mut self, awaits: Awaits) -> Turn {
        self.awaits = awaits;
        Turn::Wait
    }
}

impl Awaits {
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
    if text.contains(['\r', '\n']) { Err(TWO_LINES.to_owned()) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs replies through a dialogue: returns its commands, its result, and its step.
    fn play(words: &[&str], replies: &[(u16, &str)]) -> (Vec<String>, Result<Turn, String>, Stage) {
        let course = Course::for_tests(words);
        let mut dialogue = Dialogue::new(Task { number: 1, began: None });
        let mut out = Outbox::default();
        let mut last = Ok(Turn::Wait);
        for (code, text) in replies {
            let mut desk = Desk { course: &course, out: &mut out };
            last = dialogue.replied(Heard::Reply(*code, text.as_bytes()), &mut desk);
            if last == Ok(Turn::Tls) {
                dialogue.secured(&mut desk);
            }
        }
        let said = String::from_utf8(out.to_vec()).unwrap();
        (said.split_terminator("\r\n").map(str::to_owned).collect(), last, dialogue.stage(&course))
    }

    const GOOD: [(u16, &str); 7] = [(220, "x"), (250, "x"), (250, "x"), (250, "x"), (354, "x"), (250, "x"), (221, "x")];

    #[test]
    fn a_message_in_lock_step() {
        let (said, last, _) = play(&["-f", "a", "-t", "b"], &GOOD);
        assert_eq!(said[..4], ["EHLO localhost", "MAIL FROM:<a>", "RCPT TO:<b>", "DATA"]);
        assert_eq!((said[said.len() - 2..].join(" "), last), (". QUIT".to_owned(), Ok(Turn::Close)));
        assert_eq!(play(&["-d"], &GOOD[..6]).1, Ok(Turn::Free));
    }

    #[test]
    fn numbered_recipients() {
        let (said, ..) = play(&["-r", "3", "-t", "b"], &GOOD[..3]);
        assert_eq!(said.last().unwrap(), "RCPT TO:<1_b>");
        let (said, ..) = play(
            &["-r", "3", "-t", "b"],
            &[GOOD.as_slice()[..3].to_vec(), vec![(251, "x"), (259, "x"), (250, "x")]].concat(),
        );
        assert_eq!(said[2..], ["RCPT TO:<1_b>", "RCPT TO:<2_b>", "RCPT TO:<3_b>", "DATA"]);
    }

    #[test]
    fn what_is_offered_is_used() {
        let offers = "me\n8BITMIME\nSMTPUTF8 x\nSIZE";
        let mail = |replies: &[(u16, &str)], words: &[&str]| play(words, replies).0.pop().unwrap();
        assert_eq!(mail(&[(220, ""), (250, offers)], &[]), "MAIL FROM:<from@example.com> BODY=8BITMIME SMTPUTF8");
        assert_eq!(mail(&[(220, ""), (250, "8BITMIME\n8bitmime")], &[]), "MAIL FROM:<from@example.com>");
        let old = [(220, ""), (500, offers), (250, offers)];
        assert_eq!(play(&[], &old).0, ["EHLO localhost", "HELO localhost", "MAIL FROM:<from@example.com>"]);
        let secured = [(220, ""), (250, offers), (220, ""), (250, "me\n8BITMIME")];
        let said = ["EHLO localhost", "STARTTLS", "EHLO localhost", "MAIL FROM:<from@example.com> BODY=8BITMIME"];
        assert_eq!(play(&["-tls"], &secured).0, said);
    }

    #[test]
    fn what_should_not_be_ends_it() {
        let rows = [
            (0, 554, Stage::Greeting),
            (2, 251, Stage::Sending("unable to start SMTP transaction")),
            (3, 550, Stage::Sending("unable to issue RCPT")),
            (4, 250, Stage::Sending("unable to start DATA")),
            (5, 451, Stage::Sending("unable to commit the SMTP transaction")),
            (6, 250, Stage::Quitting),
        ];
        for (at, code, stage) in rows {
            let replies = [&GOOD[..at], &[(code, "no\nno")]].concat();
            let (_, last, at) = play(&[], &replies);
            assert_eq!((last, at), (Err(format!("{code} \"no\\nno\"")), stage));
        }
        let hello = play(&[], &[(220, ""), (500, ""), (502, "no")]);
        assert_eq!((hello.1, hello.2), (Err("502 \"no\"".to_owned()), Stage::Sending("unable to say hello")));
        for replies in [&[(220, ""), (500, ""), (502, "no")][..], &[(220, ""), (250, ""), (502, "no")]] {
            let (_, last, stage) = play(&["-tls"], replies);
            assert_eq!((last, stage), (Err("502 \"no\"".to_owned()), Stage::Sending("unable to issue STARTTLS")));
        }
    }

    #[test]
    fn an_address_of_two_lines_is_not_said() {
        let (said, last, _) = play(&["-f", "a\r\nRSET"], &GOOD[..2]);
        assert_eq!((said, last), (vec!["EHLO localhost".to_owned()], Err(TWO_LINES.to_owned())));
        let (said, last, stage) = play(&["-t", "a\nb"], &GOOD[..3]);
        assert_eq!((said.len(), last), (2, Err(TWO_LINES.to_owned())));
        assert_eq!(stage, Stage::Sending("unable to issue RCPT"));
    }
}
