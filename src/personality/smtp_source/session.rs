//! A session: takes up messages, connects for them, and drives the dialogue over its connection.
use super::complaints::{Fatal, Remark};
use super::connection;
use super::course::Course;
use super::dialogue::{Desk, Dialogue, Turn};
use super::options::Delay;
use super::reply::ReplyReader;
use crate::personality::outgoing::{Outgoing, Written};
use net::{Alarm, Outbox, Stream, clock};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

/// Runs one session to its end, which it reports to the course. Its first message is taken up already.
pub(super) async fn run(course: Rc<Course>) {
    let outcome = send(&course).await;
    course.leave(outcome);
}

async fn send(course: &Rc<Course>) -> Result<(), Fatal> {
    let mut attempts = course.options.connect_attempts;
    let mut alarm = Alarm::default();
    let mut free: Option<Line> = None;
    loop {
        let began = course.stopwatch();
        let mut line = match free.take() {
            Some(line) => line.with(Dialogue::begin),
            None => {
                Line::new(connection::open(course, &mut attempts).await?.into(), course, std::mem::take(&mut alarm))
            }
        };
        line.began = began;
        match line.converse().await? {
            Turn::Free => free = Some(line),
            _ => alarm = line.alarm,
        }
        let pause = course.pause();
        if !pause.is_zero() {
            net::sleep(pause).await;
        }
        if !course.take_up() {
            break;
        }
    }
    match free {
        // Another session took the last message while this one paused: the original ends silently.
        Some(line) => line.with(Dialogue::quit).converse().await.map(drop),
        None => Ok(()),
    }
}

/// A connection and its dialogue.
struct Line {
    course: Rc<Course>,
    stream: Stream,
    dialogue: Dialogue,
    reader: ReplyReader,
    /// Bytes of replies that came before they were asked for.
    early: Vec<u8>,
    outgoing: Outgoing,
    /// Messages in the data that is being written.
    messages: u32,
    /// The turn at which the conversation ends once all is written.
    parting: Option<Turn>,
    alarm: Alarm,
    deadline: Duration,
    /// Time at which the message was taken up.
    began: Option<Duration>,
}

impl Line {
    fn new(stream: Stream, course: &Rc<Course>, alarm: Alarm) -> Self {
        Self {
            stream,
            dialogue: Dialogue::new(),
            reader: ReplyReader::default(),
            early: Vec::new(),
            outgoing: Outgoing::default(),
            messages: 0,
            parting: None,
            alarm,
            deadline: clock::now() + course.options.patience,
            began: None,
            course: Rc::clone(course),
        }
    }

    /// Writes a command without waiting for a reply; [`Line::converse`] sends it.
    fn with(mut self, say: fn(&mut Dialogue, &mut Desk<'_>) -> Turn) -> Self {
        let course = Rc::clone(&self.course);
        let mut remarks = Vec::new();
        let mut own = Box::<Outbox>::default();
        let mut desk = desk(&self.stream, &course, &mut own, &mut remarks, self.began);
        say(&mut self.dialogue, &mut desk);
        remarks.iter().for_each(|remark| remark.say(&course.voice));
        self.outgoing.hold(own);
        self
    }

    /// Writes, reads and passes replies to the dialogue, until it is [`Turn::Free`] or to [`Turn::Close`].
    async fn converse(&mut self) -> Result<Turn, Fatal> {
        let course = Rc::clone(&self.course);
        poll_fn(|_| self.poll(&course, &mut course.outbox.borrow_mut(), &mut course.input.borrow_mut())).await
    }

    fn poll(&mut self, course: &Course, outbox: &mut Outbox, input: &mut [u8]) -> Poll<Result<Turn, Fatal>> {
        loop {
            match self.flush(course, outbox) {
                Ok(true) => {}
                Ok(false) => return self.poll_timeout(course),
                Err(_) => {
                    // The next turn, probably another session's, must not send the rest of this one.
                    outbox.clear();
                    return Poll::Ready(self.part_from(course, "lost connection"));
                }
            }
            if let Some(parting) = self.parting.take() {
                return Poll::Ready(Ok(parting));
            }
            let early = std::mem::take(&mut self.early);
            let taken = if early.is_empty() {
                match self.stream.poll_read(input) {
                    Poll::Pending => return self.poll_timeout(course),
                    Poll::Ready(Err(_) | Ok(0)) => return Poll::Ready(self.part_from(course, "lost connection")),
                    Poll::Ready(Ok(count)) => self.take(course, &input[..count], outbox),
                }
            } else {
                self.take(course, &early, outbox)
            };
            if let Err(fatal) = taken {
                return Poll::Ready(Err(fatal));
            }
        }
    }

    /// Handles every reply in `input`, until the dialogue pauses.
    fn take(&mut self, course: &Course, mut input: &[u8], outbox: &mut Outbox) -> Result<(), Fatal> {
        let mut remarks = Vec::new();
        while self.parting.is_none() {
            let mut desk = desk(&self.stream, course, outbox, &mut remarks, self.began);
            let turn = match self.reader.next(&mut input) {
                Ok(Some(reply)) => self.dialogue.replied(&reply, &mut desk).map_err(|refusal| Fatal(refusal.0)),
                Ok(None) => return Ok(()),
                Err(endless) => Err(Fatal(format!("{endless} while {}", self.dialogue.deed(course)))),
            };
            for _ in 0..self.dialogue.take_delivered() {
                course.accepted(self.began);
            }
            match &turn {
                Ok(Turn::Wait) | Err(_) => {}
                Ok(Turn::Message) => self.messages += 1,
                // Without a pause between messages the next begins in the same write.
                Ok(Turn::Free) if course.options.delay == Delay::None && course.take_up() => {
                    self.began = course.stopwatch();
                    self.dialogue.begin(&mut desk);
                }
                Ok(parting) => self.parting = Some(*parting),
            }
            remarks.drain(..).for_each(|remark| remark.say(&course.voice));
            turn?;
        }
        self.early = input.to_owned();
        Ok(())
    }

    /// Writes the outbox; returns true if nothing is left.
    fn flush(&mut self, course: &Course, outbox: &mut Outbox) -> io::Result<bool> {
        let written = self.outgoing.flush(outbox, &mut self.stream)?;
        if matches!(written, Written::All | Written::Partly { some: true }) {
            self.deadline = clock::now() + course.options.patience;
        }
        if written == Written::All {
            (0..std::mem::take(&mut self.messages)).for_each(|_| course.count_sent());
        }
        Ok(!matches!(written, Written::Partly { .. }))
    }

    fn poll_timeout(&mut self, course: &Course) -> Poll<Result<Turn, Fatal>> {
        ready!(self.alarm.poll_due(Some(self.deadline), clock::now()));
        Poll::Ready(self.part_from(course, "timeout"))
    }

    /// Handles the loss of the connection. After QUIT it does not matter.
    fn part_from(&self, course: &Course, how: &str) -> Result<Turn, Fatal> {
        if self.dialogue.is_over() {
            return Ok(Turn::Close);
        }
        Err(Fatal(format!("{how} while {}", self.dialogue.deed(course))))
    }
}

fn desk<'a>(
    stream: &Stream,
    course: &'a Course,
    out: &'a mut Outbox,
    remarks: &'a mut Vec<Remark>,
    began: Option<Duration>,
) -> Desk<'a> {
    Desk { course, out, remarks, descriptor: stream.as_fd().as_raw_fd(), began }
}
