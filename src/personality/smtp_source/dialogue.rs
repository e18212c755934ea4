//! The dialogue in lock step: a reply comes in, the next command goes out. No sockets, no clock.
//!
//! ```text
//! Greeting ─▶ Hello ─▶ Mail ─▶ Recipient … ─▶ Data ─▶ EndOfData ─▶ (next message) Mail
//!                       │          │             │         └───────▶ Quit
//!                       └──────────┴── with -A ──┴─▶ Reset ─────────▶ either
//! ```
//! An unexpected reply ends the program; with `-A` it is a warning, a refused transaction is reset, and 421 or
//! 521 end the connection.
use super::complaints::Remark;
use super::course::Course;
use super::message::Place;
use super::reply::Reply;
use crate::personality::printable::printable;
use net::Outbox;
use std::time::Duration;

/// The reply that is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
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
pub(super) enum Turn {
    /// Send the written commands, if there are any, and wait.
    Wait,
    /// The same, where the written data ends with a message.
    Message,
    /// The transaction is over; the connection is free for another.
    Free,
    /// Close.
    Close,
}

/// The text of a reply that ends the program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) String);

/// Output of the dialogue: commands to send, and messages to print.
pub(super) struct Desk<'a> {
    pub(super) course: &'a Course,
    pub(super) out: &'a mut Outbox,
    pub(super) remarks: &'a mut Vec<Remark>,
    /// The connection's descriptor, for the Message-Id.
    pub(super) descriptor: i32,
    /// Time at which the message was taken up, if it is measured.
    pub(super) began: Option<Duration>,
}

impl Desk<'_> {
    fn say(&mut self, parts: &[&[u8]]) {
        let out = self.out.bytes();
        let start = out.len();
        parts.iter().for_each(|part| out.extend_from_slice(part));
        if self.course.options.is_verbose {
            self.remarks.push(Remark::Info(printable(&out[start..])));
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Treatment of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    Accepted,
    /// The reply is an error.
    Refused,
    /// The reply is an error, and the connection is over.
    Dismissed,
}

/// One connection's dialogue.
#[derive(Debug)]
pub(super) struct Dialogue {
    awaits: Awaits,
    /// Recipients still to be sent.
    left: u32,
    accepted: u32,
    /// The last recipient's number.
    number: Option<u32>,
    /// Replies to the end of data that are still to come.
    due: u32,
    /// Set while no reply has refused the message.
    is_delivered: bool,
    /// Messages accepted since the last call of `take_delivered`.
    delivered: u32,
}

impl Dialogue {
    /// Creates the dialogue of an open connection: the server is to greet.
    pub(super) fn new() -> Self {
        let awaits = Awaits::Greeting;
        Self { awaits, left: 0, accepted: 0, number: None, due: 0, is_delivered: false, delivered: 0 }
    }

    /// Begins a message on a connection that is free.
    pub(super) fn begin(&mut self, desk: &mut Desk<'_>) -> Turn {
        desk.say(&[b"MAIL FROM:<", desk.course.sender.as_bytes(), b">"]);
        self.wait_for(Awaits::Mail)
    }

    /// Ends a connection that is free.
    pub(super) fn quit(&mut self, desk: &mut Desk<'_>) -> Turn {
        desk.say(&[b"QUIT"]);
        self.wait_for(Awaits::Quit)
    }

    /// Reports whether all is done, except for a reply that does not matter.
    pub(super) fn is_over(&self) -> bool {
        self.awaits == Awaits::Quit
    }

    /// The current activity, for error texts.
    pub(super) fn deed(&self, course: &Course) -> String {
        match self.awaits {
            Awaits::Greeting => "reading server greeting".to_owned(),
            Awaits::Hello => format!("sending {}", hello_word(course)),
            Awaits::Mail => "sending sender".to_owned(),
            Awaits::Recipient => "sending recipient".to_owned(),
            Awaits::Data => "sending DATA command".to_owned(),
            Awaits::EndOfData | Awaits::Reset | Awaits::Quit => "sending message".to_owned(),
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
    pub(super) fn replied(&mut self, reply: &Reply<'_>, desk: &mut Desk<'_>) -> Result<Turn, Refusal> {
        if desk.course.options.is_verbose {
            desk.remarks.extend(reply.lines().map(|line| Remark::Info(format!("<<< {}", printable(line)))));
        }
        match self.awaits {
            Awaits::Greeting => self.greeted(reply, desk),
            Awaits::Hello => {
                if judge(reply, hello_word(desk.course), is_done, desk)? == Judgement::Dismissed {
                    return Ok(Turn::Close);
                }
                Ok(self.begin(desk))
            }
            Awaits::Mail => match judge(reply, "sender", is_done, desk)? {
                Judgement::Accepted => {
                    self.left = desk.course.options.recipients;
                    self.accepted = 0;
                    Ok(self.say_recipient(desk))
                }
                refused => Ok(self.back_out(refused, desk)),
            },
            Awaits::Recipient => self.heard_of_recipient(reply, desk),
            Awaits::Data => match judge(reply, "data", |code| code == 354, desk)? {
                Judgement::Accepted => Ok(self.send_message(desk)),
                refused => Ok(self.back_out(refused, desk)),
            },
            Awaits::EndOfData => self.heard_of_message(reply, desk),
            Awaits::Reset => match judge(reply, "rset", is_done, desk)? {
                Judgement::Dismissed => Ok(Turn::Close),
                _ => Ok(self.finish(desk)),
            },
            Awaits::Quit => Ok(Turn::Close),
        }
    }

    /// With `-A` the dialogue continues after any greeting.
    fn greeted(&mut self, reply: &Reply<'_>, desk: &mut Desk<'_>) -> Result<Turn, Refusal> {
        if !is_done(reply.code) {
            complain("rejected at server banner", reply, desk)?;
        }
        if desk.course.options.is_old {
            return Ok(self.begin(desk));
        }
        let course = desk.course;
        desk.say(&[hello_word(course).as_bytes(), b" ", course.hostname.as_bytes()]);
        Ok(self.wait_for(Awaits::Hello))
    }

    fn say_recipient(&mut self, desk: &mut Desk<'_>) -> Turn {
        let recipient = &desk.course.recipient;
        self.number = recipient.next_number(self.left);
        self.left -= 1;
        let mut address = std::mem::take(&mut *desk.course.address.borrow_mut());
        address.clear();
        recipient.write(self.number, &mut address);
        desk.say(&[b"RCPT TO:<", &address, b">"]);
        *desk.course.address.borrow_mut() = address;
        self.wait_for(Awaits::Recipient)
    }

    fn heard_of_recipient(&mut self, reply: &Reply<'_>, desk: &mut Desk<'_>) -> Result<Turn, Refusal> {
        match judge(reply, "recipient", is_done, desk)? {
            Judgement::Accepted => self.accepted += 1,
            Judgement::Refused => {}
            Judgement::Dismissed => return Ok(Turn::Close),
        }
        if self.left > 0 {
            return Ok(self.say_recipient(desk));
        }
        if self.accepted == 0 {
            return Ok(self.back_out(Judgement::Refused, desk));
        }
        desk.say(&[b"DATA"]);
        Ok(self.wait_for(Awaits::Data))
    }

    fn send_message(&mut self, desk: &mut Desk<'_>) -> Turn {
        let Desk { course, descriptor, began, .. } = *desk;
        let place = Place { descriptor, remaining: course.remaining(), number: self.number, began };
        course.message.render(place, &course.recipient, desk.out);
        if course.options.is_verbose {
            desk.remarks.push(Remark::Info(".".to_owned()));
        }
        // RFC 2033 §4.2: one reply for each recipient that was accepted. The original waits for one for each that was
        // sent, and so for ever if one was refused.
        self.due = if course.options.speaks_lmtp { self.accepted } else { 1 };
        self.is_delivered = true;
        self.awaits = Awaits::EndOfData;
        Turn::Message
    }

    fn heard_of_message(&mut self, reply: &Reply<'_>, desk: &mut Desk<'_>) -> Result<Turn, Refusal> {
        match judge(reply, "end of data", is_done, desk)? {
            Judgement::Accepted => {}
            Judgement::Refused => self.is_delivered = false,
            Judgement::Dismissed => return Ok(Turn::Close),
        }
        self.due -= 1;
        if self.due > 0 {
            return Ok(Turn::Wait);
        }
        self.delivered += u32::from(self.is_delivered);
        Ok(self.finish(desk))
    }

    /// Ends a transaction that failed.
    fn back_out(&mut self, judgement: Judgement, desk: &mut Desk<'_>) -> Turn {
        if judgement == Judgement::Dismissed {
            return Turn::Close;
        }
        desk.say(&[b"RSET"]);
        self.wait_for(Awaits::Reset)
    }

    /// Ends a transaction.
    fn finish(&mut self, desk: &mut Desk<'_>) -> Turn {
        if desk.course.options.keeps && desk.course.remaining() > 0 { Turn::Free } else { self.quit(desk) }
    }

    fn wait_for(&mut self, awaits: Awaits) -> Turn {
        self.awaits = awaits;
        Turn::Wait
    }
}

fn hello_word(course: &Course) -> &'static str {
    if course.options.speaks_lmtp { "LHLO" } else { "HELO" }
}

fn is_done(code: u16) -> bool {
    code / 100 == 2
}

fn judge(
    reply: &Reply<'_>,
    what: &str,
    is_good: impl Fn(u16) -> bool,
    desk: &mut Desk<'_>,
) -> Result<Judgement, Refusal> {
    if is_good(reply.code) {
        return Ok(Judgement::Accepted);
    }
    complain(&format!("{what} rejected"), reply, desk)?;
    Ok(if matches!(reply.code, 421 | 521) { Judgement::Dismissed } else { Judgement::Refused })
}

fn complain(what: &str, reply: &Reply<'_>, desk: &mut Desk<'_>) -> Result<(), Refusal> {
    let text = format!("{what}: {} {}", reply.code, printable(&reply.text()));
    if !desk.course.options.tolerates {
        return Err(Refusal(text));
    }
    desk.remarks.push(Remark::Warning(text));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::personality::smtp_source::reply::ReplyReader;

    /// Runs replies through a dialogue: returns its commands, its messages, and its result.
    fn play(line: &str, replies: &[&str]) -> (Vec<String>, Vec<Remark>, Result<Turn, Refusal>) {
        let words: Vec<String> = line.split_whitespace().chain(["127.0.0.1:9"]).map(str::to_owned).collect();
        let course = Course::for_tests(&words);
        let mut dialogue = Dialogue::new();
        let mut out = Outbox::default();
        let mut remarks = Vec::new();
        let mut last = Ok(Turn::Wait);
        for reply in replies {
            let wire = format!("{reply}\r\n");
            let mut reader = ReplyReader::default();
            let mut input = wire.as_bytes();
            let reply = reader.next(&mut input).unwrap().unwrap();
            let mut desk = Desk { course: &course, out: &mut out, remarks: &mut remarks, descriptor: 5, began: None };
            last = dialogue.replied(&reply, &mut desk);
        }
        let said = String::from_utf8_lossy(out.bytes()).into_owned();
        let said = said.split_terminator("\r\n").map(str::to_owned).collect();
        (said, remarks, last)
    }

    const ONE: [&str; 4] = ["HELO h", "MAIL FROM:<a>", "RCPT TO:<b>", "DATA"];
    const PLAIN: &str = "-f a -t b -M h";

    #[test]
    fn a_message_in_lock_step() {
        let replies = ["220", "250", "250", "250", "354", "250", "221"];
        let (said, remarks, last) = play(PLAIN, &replies);
        assert_eq!(said[..4], ONE);
        assert_eq!(said[said.len() - 2..], [".", "QUIT"]);
        assert_eq!((remarks, last), (vec![], Ok(Turn::Close)));
        assert_eq!(play(PLAIN, &replies[..5]).2, Ok(Turn::Message));
        assert_eq!(play(&format!("{PLAIN} -d -m 2"), &replies[..6]).2, Ok(Turn::Free));
        assert_eq!(play("-o -f a -t b", &["220", "250", "250", "354"]).0[3], "La de da de da 1.");
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
            assert_eq!(play(PLAIN, &replies).2, Err(Refusal(said.to_owned())));
        }
    }

    /// The matrix of reference §1.3: the commands after a refusal, and after the end.
    #[test]
    fn refusals_are_tolerated_with_a() {
        let rows: [(&str, &[&str], &str, Turn); 9] = [
            ("", &["554"], "HELO h", Turn::Wait),
            ("", &["421"], "HELO h", Turn::Wait),
            ("", &["220", "550"], "MAIL FROM:<a>", Turn::Wait),
            ("", &["220", "250", "550"], "RSET", Turn::Wait),
            ("", &["220", "250", "250", "550"], "RSET", Turn::Wait),
            ("-r 2", &["220", "250", "250", "550", "250"], "DATA", Turn::Wait),
            ("", &["220", "250", "250", "250", "554"], "RSET", Turn::Wait),
            ("", &["220", "250", "250", "250", "354", "550"], "QUIT", Turn::Wait),
            ("-d -m 2", &["220", "250", "550", "250"], "RSET", Turn::Free),
        ];
        for (options, replies, said, turn) in rows {
            let (all, remarks, last) = play(&format!("-A {PLAIN} {options}"), replies);
            assert_eq!((all.last().map(String::as_str), last), (Some(said), Ok(turn)), "{replies:?}");
            assert_eq!(remarks.len(), 1, "{remarks:?}");
        }
        for code in ["421 x", "521 x"] {
            for good in 1..6 {
                let replies = [&["220", "250", "250", "250", "354"][..good], &[code]].concat();
                assert_eq!(play(&format!("-A {PLAIN}"), &replies).2, Ok(Turn::Close), "{replies:?}");
            }
        }
    }

    #[test]
    fn lmtp_hears_one_reply_for_each_recipient_that_was_accepted() {
        let before = ["220", "250", "250", "250", "550", "250", "354"];
        let line = format!("-L -A {PLAIN} -r 3");
        let (said, _, last) = play(&line, &[&before[..], &["250"]].concat());
        assert_eq!((said[0].as_str(), said.last().map(String::as_str), last), ("LHLO h", Some("."), Ok(Turn::Wait)));
        let (said, ..) = play(&line, &[&before[..], &["250", "250"]].concat());
        assert_eq!(said.last().map(String::as_str), Some("QUIT"));
    }

    #[test]
    fn verbose_says_all_that_passes() {
        let remarks = play(&format!("-v {PLAIN}"), &["220-a\r\n220 b"]).1;
        let info = |text: &str| Remark::Info(text.to_owned());
        assert_eq!(remarks, [info("<<< 220-a"), info("<<< 220 b"), info("HELO h")]);
    }
}
