//! A session: takes up messages, connects for them, and drives the dialogue over its connection.
use super::course::{Course, Task};
use super::dialogue::{Desk, Dialogue, Stage, Turn};
use super::message::reason;
use super::reply::ReplyReader;
use super::voice::{Fatal, log};
use crate::personality::outgoing::{Outgoing, Written};
use net::{Alarm, Outbox, Socket, Stream, clock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

/// Limit of the wait for a connection, for a reply, or for room to write (RFC 5321 §4.5.3.2). The original waits for
/// ever.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs session `number` to its end, which it reports to the course.
pub(super) async fn run(course: Rc<Course>, number: u64) {
    let outcome = if course.options.keeps { keep(&course, number).await } else { send_each(&course).await };
    course.leave(outcome);
}

/// Sends each message on a connection of its own.
async fn send_each(course: &Rc<Course>) -> Result<(), Fatal> {
    while let Some(task) = course.take_up() {
        let number = task.number;
        course.keep_pace().await;
        course.verbose(|| format!("Opening a SMTP session ({number})..."));
        let mut line = match connect(course).await {
            Ok(stream) => Line::new(course, stream, task),
            Err(why) => {
                course.give_up(&format!("unable to connect to the server: {why}"));
                continue;
            }
        };
        if let Err(why) = line.converse().await {
            match line.dialogue.stage(course) {
                Stage::Greeting => {
                    course.give_up(&format!("unable to connect to the server: {why}"));
                    continue;
                }
                Stage::Sending(what) => return Err(Fatal(format!("unable to send a mail:{what}: {why}"))),
                Stage::Quitting => log(&format!("unable to quit a session: {why}")),
            }
        }
        course.verbose(|| format!("The SMTP session ({number}) has been closed."));
    }
    Ok(())
}

/// `-d`: sends all messages of the session on one connection.
async fn keep(course: &Rc<Course>, session: u64) -> Result<(), Fatal> {
    let Some(first) = course.take_up() else { return Ok(()) };
    course.keep_pace().await;
    course.verbose(|| format!("Opening a SMTP session ({session})..."));
    let opening = |why: String| Fatal(format!("opening a SMTP session: {why}"));
    let mut line = Line::new(course, connect(course).await.map_err(opening)?, first);
    loop {
        let turn = line.converse().await.map_err(|why| match line.dialogue.stage(course) {
            Stage::Greeting => opening(why),
            Stage::Sending(what) => Fatal(format!("unable to send a mail:{what}: {why}")),
            Stage::Quitting => Fatal(format!("unable to quit a session:{why}")),
        })?;
        if turn == Turn::Close {
            break;
        }
        match course.take_up() {
            Some(task) => {
                course.keep_pace().await;
                line.next = Some(task);
            }
            None => line.is_leaving = true,
        }
    }
    course.verbose(|| format!("The SMTP session ({}) has been closed.", course.count_closed()));
    Ok(())
}

/// Connects to the first reachable address of the target, one session at a time as the original does.
async fn connect(course: &Course) -> Result<(Stream, SocketAddr), String> {
    let _pass = course.gate.enter().await;
    let addresses = course.target.addresses().await.map_err(|why| format!("dial tcp: {why}"))?;
    let mut first = None;
    for address in addresses {
        match connect_to(address).await {
            Ok(socket) => return Ok((socket.into(), address)),
            Err((call, error)) => {
                first.get_or_insert((call, address, error));
            }
        }
    }
    let (call, address, error) =
        first.ok_or_else(|| format!("dial tcp: lookup {}: no such host", course.target.host))?;
    Err(format!("dial tcp {}: {call}: {}", course.target.named(address), reason(&error)))
}

async fn connect_to(address: SocketAddr) -> Result<Socket, (&'static str, io::Error)> {
    let descriptor = socket(address).map_err(|error| ("socket", error.into()))?;
    let made = match rustix::net::connect(&descriptor, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {
            Alarm::default().limit(clock::now() + PATIENCE, Socket::from_connecting(descriptor)).await
        }
        Err(error) => Some(Err(error.into())),
    };
    made.unwrap_or_else(|| Err(Errno::TIMEDOUT.into())).map_err(|error| ("connect", error))
}

/// Creates a socket that resets the connection when it is closed, so that no port is left in TIME_WAIT.
fn socket(address: SocketAddr) -> rustix::io::Result<std::os::fd::OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let descriptor = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_linger(&descriptor, Some(Duration::ZERO))?;
    sockopt::set_tcp_nodelay(&descriptor, true)?;
    Ok(descriptor)
}

/// A connection and its dialogue.
struct Line {
    course: Rc<Course>,
    stream: Stream,
    peer: SocketAddr,
    dialogue: Dialogue,
    reader: ReplyReader,
    /// Bytes of replies that came before they were asked for.
    early: Vec<u8>,
    outgoing: Outgoing,
    /// The message to begin on the free connection.
    next: Option<Task>,
    /// Set if QUIT is to be sent.
    is_leaving: bool,
    /// The turn at which the conversation pauses once all is written.
    parting: Option<Turn>,
    alarm: Alarm,
    deadline: Duration,
}

impl Line {
    fn new(course: &Rc<Course>, (stream, peer): (Stream, SocketAddr), task: Task) -> Self {
        Self {
            stream,
            peer,
            dialogue: Dialogue::new(task),
            reader: ReplyReader::default(),
            early: Vec::new(),
            outgoing: Outgoing::default(),
            next: None,
            is_leaving: false,
            parting: None,
            alarm: Alarm::default(),
            deadline: Duration::ZERO,
            course: Rc::clone(course),
        }
    }

    /// Writes, reads and passes replies to the dialogue, until the connection is [`Turn::Free`] or to [`Turn::Close`].
    async fn converse(&mut self) -> Result<Turn, String> {
        loop {
            self.deadline = clock::now() + PATIENCE;
            let course = Rc::clone(&self.course);
            let turn = poll_fn(|_| self.poll(&course, &mut course.outbox.borrow_mut(), &mut course.input.borrow_mut()))
                .await?;
            if turn != Turn::Tls {
                return Ok(turn);
            }
            self.begin_tls().await?;
        }
    }

    async fn begin_tls(&mut self) -> Result<(), String> {
        // Plain text after the reply to STARTTLS must not be taken for the server's words under TLS (CVE-2011-0411).
        self.early = Vec::new();
        self.reader = ReplyReader::default();
        let course = Rc::clone(&self.course);
        let setup = course.tls.as_ref().expect("STARTTLS is said with -tls only");
        let shaken = self.alarm.limit(clock::now() + PATIENCE, self.stream.connect_tls(setup)).await;
        shaken.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())).map_err(|error| self.lost("read", &error))?;
        let mut own = Box::<Outbox>::default();
        self.dialogue.secured(&mut Desk { course: &course, out: &mut own });
        self.outgoing.hold(own);
        Ok(())
    }

    fn poll(&mut self, course: &Course, outbox: &mut Outbox, input: &mut [u8]) -> Poll<Result<Turn, String>> {
        if let Err(why) = self.resume(&mut Desk { course, out: outbox }) {
            return Poll::Ready(Err(why));
        }
        loop {
            match self.flush(outbox) {
                Ok(true) => {}
                Ok(false) => return self.poll_timeout(),
                Err(error) => {
                    // The next turn, probably another session's, must not send the rest of this one.
                    outbox.clear();
                    return Poll::Ready(Err(self.lost("write", &error)));
                }
            }
            if let Some(parting) = self.parting.take() {
                return Poll::Ready(Ok(parting));
            }
            let early = std::mem::take(&mut self.early);
            let taken = if early.is_empty() {
                match ready_or(self.stream.poll_read(input)) {
                    None => return self.poll_timeout(),
                    Some(Ok(0)) => Err("EOF".to_owned()),
                    Some(Err(error)) => Err(self.lost("read", &error)),
                    Some(Ok(count)) => self.take(&input[..count], &mut Desk { course, out: outbox }),
                }
            } else {
                self.take(&early, &mut Desk { course, out: outbox })
            };
            if let Err(why) = taken {
                // Earlier output is sent as far as possible at once.
                let _ = self.flush(outbox);
                outbox.clear();
                return Poll::Ready(Err(why));
            }
        }
    }

    /// Writes the commands that the session decided on while the connection was free.
    fn resume(&mut self, desk: &mut Desk<'_>) -> Result<(), String> {
        if let Some(task) = self.next.take() {
            self.dialogue.begin(task, desk)?;
        } else if std::mem::take(&mut self.is_leaving) {
            self.dialogue.quit(desk);
        }
        Ok(())
    }

    /// Handles every reply in `input`, until the dialogue pauses.
    fn take(&mut self, mut input: &[u8], desk: &mut Desk<'_>) -> Result<(), String> {
        while self.parting.is_none() {
            let Some(heard) = self.reader.next(&mut input) else { return Ok(()) };
            match self.dialogue.replied(heard, desk)? {
                Turn::Wait => {}
                // Without a pace the next message begins in the same write.
                Turn::Free if !desk.course.pace.is_limited() => match desk.course.take_up() {
                    Some(task) => drop(self.dialogue.begin(task, desk)?),
                    None => drop(self.dialogue.quit(desk)),
                },
                parting => self.parting = Some(parting),
            }
        }
        self.early = input.to_owned();
        Ok(())
    }

    /// Writes the outbox; returns true if nothing is left.
    fn flush(&mut self, outbox: &mut Outbox) -> io::Result<bool> {
        let written = self.outgoing.flush(outbox, &mut self.stream)?;
        if matches!(written, Written::All | Written::Partly { some: true }) {
            self.deadline = clock::now() + PATIENCE;
        }
        Ok(!matches!(written, Written::Partly { .. }))
    }

    fn poll_timeout(&mut self) -> Poll<Result<Turn, String>> {
        ready!(self.alarm.poll_due(Some(self.deadline), clock::now()));
        Poll::Ready(Err(format!("no reply within {} s", PATIENCE.as_secs())))
    }

    /// The original's error text for a broken connection.
    fn lost(&self, call: &str, error: &io::Error) -> String {
        if error.raw_os_error().is_none() {
            return reason(error);
        }
        let own = rustix::net::getsockname(self.stream.as_fd()).ok().and_then(|own| SocketAddr::try_from(own).ok());
        let own = own.map(|own| own.to_string()).unwrap_or_default();
        format!("{call} tcp {own}->{}: {call}: {}", self.peer, reason(error))
    }
}

fn ready_or<T>(poll: Poll<T>) -> Option<T> {
    match poll {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
