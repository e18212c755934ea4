//! A session: drives the dialogue over its socket, and handles the dialogue's observations. It decides nothing.
use super::commands::{Command, Delay};
use super::dialogue::{Dialogue, Step, Witness};
use super::dump::{Capture, DiskError};
use super::register::Reading;
use super::sink::Sink;
use net::{Alarm, Socket, clock};
use rustix::fd::OwnedFd;
use std::future::{pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Serves a client to its end.
pub(super) async fn serve(sink: Rc<Sink>, descriptor: OwnedFd, client: Option<SocketAddr>) {
    if sink.settings.verbosity > 0 {
        sink.voice.say(format!("connect ({})", name_of(client)));
    }
    // This fails if the kernel has no memory for another descriptor.
    if let Ok(socket) = Socket::adopt(descriptor) {
        let mut session = Session {
            dialogue: Dialogue::new(Rc::clone(&sink.settings)),
            capture: Capture::new(sink.archive.clone(), client),
            trace: Tracking::default(),
            alarm: Alarm::default(),
            rest: Vec::new(),
            socket,
            sink: Rc::clone(&sink),
        };
        session.converse().await;
        session.part().await;
    }
    sink.leave();
}

fn name_of(client: Option<SocketAddr>) -> String {
    match client {
        None => "AF_LOCAL local".to_owned(),
        Some(SocketAddr::V4(address)) => format!("AF_INET {}", address.ip()),
        Some(SocketAddr::V6(address)) => format!("AF_INET6 {}", address.ip()),
    }
}

/// Result of a wait.
enum Waited<T> {
    Came(T),
    TimedOut,
}

/// Messages under `--trace`: the one that is being read, and the one that is complete and not accepted yet.
#[derive(Default)]
struct Tracking {
    reading: Option<Box<Reading>>,
    complete: Option<Box<Reading>>,
}

struct Session {
    sink: Rc<Sink>,
    socket: Socket,
    dialogue: Dialogue,
    capture: Capture,
    trace: Tracking,
    alarm: Alarm,
    /// Bytes that were read and not taken yet, because the dialogue paused.
    rest: Vec<u8>,
}

impl Session {
    async fn converse(&mut self) {
        let mut step = self.turn(|dialogue, out, scribe| dialogue.greet(out, scribe)).await;
        loop {
            if !self.write(step).await {
                return;
            }
            step = match step {
                Step::Close => return,
                Step::Read => match self.read().await {
                    Some(step) => step,
                    None => return,
                },
                Step::GoOn => self.go_on().await,
                Step::Pause(seconds) => self.pause(seconds).await,
            };
        }
    }

    /// Ends the session. It is counted before the connection is closed, so that a client that sees the close also sees
    /// the count.
    async fn part(mut self) {
        if let Err(error) = self.capture.abandon() {
            self.sink.break_off(&error);
        }
        let mut counters = self.sink.counters.borrow_mut();
        counters.count_session();
        counters.print();
    }

    /// Runs one step of the dialogue, and leaves its replies in the sink's buffer.
    async fn turn(&mut self, act: impl FnOnce(&mut Dialogue, &mut Vec<u8>, &mut Scribe<'_>) -> Step) -> Step {
        let Self { sink, dialogue, capture, trace, .. } = self;
        let step = take_turn(&mut Scribe { sink, capture, trace }, |out, scribe| act(dialogue, out, scribe));
        self.stop_at_end().await;
        step
    }

    /// Waits for the end of the run; then the task is dropped and writes nothing more.
    async fn stop_at_end(&self) {
        if self.sink.has_ended() {
            pending::<()>().await;
        }
    }

    /// Writes the replies; returns false if the session is over.
    async fn write(&mut self, step: Step) -> bool {
        let out = self.sink.take_out();
        let waited = if out.is_empty() { Waited::Came(Ok(())) } else { self.write_out(&out).await };
        self.sink.give_back(out);
        match waited {
            Waited::Came(Ok(())) => return true,
            // The connection is closed anyway.
            Waited::Came(Err(_)) if step == Step::Close => {}
            Waited::Came(Err(_)) => self.sink.voice.warn("lost connection"),
            Waited::TimedOut => self.sink.voice.warn("write timeout"),
        }
        false
    }

    async fn write_out(&mut self, out: &[u8]) -> Waited<io::Result<()>> {
        let Self { sink, socket, alarm, .. } = self;
        let mut write = pin!(socket.write_all(out));
        within(alarm, sink.settings.timeout_s, |context| write.as_mut().poll(context)).await
    }

    /// Reads and handles input; `None` if the session is over.
    async fn read(&mut self) -> Option<Step> {
        let Self { sink, socket, dialogue, capture, trace, alarm, rest } = self;
        let waited = within(alarm, sink.settings.timeout_s, |_| {
            sink.lend_room(|room| {
                let count = match ready!(socket.poll_read(room)) {
                    Ok(0) | Err(_) => return Poll::Ready(None),
                    Ok(count) => count,
                };
                let mut input = &room[..count];
                let scribe = &mut Scribe { sink, capture, trace };
                let step = take_turn(scribe, |out, scribe| dialogue.receive(&mut input, out, scribe));
                rest.extend_from_slice(input);
                Poll::Ready(Some(step))
            })
        })
        .await;
        self.stop_at_end().await;
        match waited {
            Waited::TimedOut => {
                self.sink.voice.warn("read timeout");
                None
            }
            Waited::Came(step) => {
                if matches!(step, None | Some(Step::Close)) {
                    self.remark_parting();
                }
                step
            }
        }
    }

    /// Handles the rest of the input.
    async fn go_on(&mut self) -> Step {
        let rest = std::mem::take(&mut self.rest);
        let mut input = rest.as_slice();
        let step = self.turn(|dialogue, out, scribe| dialogue.receive(&mut input, out, scribe)).await;
        self.rest.extend_from_slice(input);
        if step == Step::Close {
            self.remark_parting();
        }
        step
    }

    async fn pause(&mut self, seconds: u32) -> Step {
        let expectant = self.dialogue.owes_verdict().then(|| self.sink.expect_verdict());
        net::sleep(Duration::from_secs(seconds.into())).await;
        let step = self.turn(|dialogue, out, scribe| dialogue.resume(out, scribe)).await;
        drop(expectant);
        // Input that came with the delayed command is still to be handled.
        if step == Step::Read { Step::GoOn } else { step }
    }

    fn remark_parting(&self) {
        if self.sink.settings.verbosity > 0 {
            self.sink.voice.say("disconnect");
        }
    }
}

/// Polls until it is ready, or the time-out is over.
async fn within<T>(alarm: &mut Alarm, timeout_s: u32, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Waited<T> {
    let mut deadline = None;
    poll_fn(|context| {
        if let Poll::Ready(came) = poll(context) {
            return Poll::Ready(Waited::Came(came));
        }
        let now = clock::now();
        let deadline = *deadline.get_or_insert_with(|| now + Duration::from_secs(timeout_s.into()));
        alarm.poll_due(Some(deadline), now).map(|()| Waited::TimedOut)
    })
    .await
}

/// Runs a step of the dialogue. Its replies are added to the sink's buffer, and its counts are printed before the
/// client can read the reply.
fn take_turn<'s>(scribe: &mut Scribe<'s>, act: impl FnOnce(&mut Vec<u8>, &mut Scribe<'s>) -> Step) -> Step {
    let sink = scribe.sink;
    let mut out = sink.take_out();
    let step = act(&mut out, scribe);
    sink.hold(out);
    sink.counters.borrow_mut().print();
    step
}

/// Records the dialogue's observations: counters, dumps, traces, the log, the terminal.
struct Scribe<'a> {
    sink: &'a Sink,
    capture: &'a mut Capture,
    trace: &'a mut Tracking,
}

impl Scribe<'_> {
    /// Stores a part of the message, if messages are stored.
    fn keep(&mut self, write: impl FnOnce(&mut Capture) -> Result<(), DiskError>) {
        if let Err(error) = write(self.capture) {
            self.sink.break_off(&error);
        }
    }
}

impl Witness for Scribe<'_> {
    fn heard(&mut self, line: &[u8]) {
        if self.sink.settings.verbosity > 0 {
            self.sink.voice.say(line);
        }
    }

    fn logged(&mut self, word: &[u8], rest: &[u8]) {
        self.sink.syslog.log(word, rest);
    }

    fn greeted(&mut self, command: Command, rest: &[u8]) {
        self.keep(|capture| capture.greeted(command, rest));
    }

    fn began(&mut self, rest: &[u8]) {
        self.keep(|capture| capture.begin(rest));
        if self.sink.register.is_some() {
            *self.trace = Tracking { reading: Some(Box::default()), complete: None };
        }
    }

    fn addressed(&mut self, rest: &[u8]) {
        self.keep(|capture| capture.address(rest));
        if let Some(reading) = &mut self.trace.reading {
            reading.address(rest);
        }
    }

    fn data(&mut self) {
        self.keep(Capture::head);
    }

    fn content(&mut self, octets: &[u8]) {
        self.keep(|capture| capture.content(octets));
        if let Some(reading) = &mut self.trace.reading {
            reading.content(octets);
        }
    }

    fn received(&mut self) {
        self.keep(Capture::finish);
        if self.trace.reading.is_some() {
            self.trace.complete = self.trace.reading.take();
        }
        let mut counters = self.sink.counters.borrow_mut();
        counters.count_message();
        if counters.has_messages() {
            self.sink.wake_door();
        }
    }

    fn accepted(&mut self) {
        if let Some((reading, register)) = self.trace.complete.take().zip(self.sink.register.as_ref()) {
            register.borrow_mut().enter(&reading.letter());
        }
    }

    fn abandoned(&mut self) {
        self.keep(Capture::abandon);
    }

    fn quit(&mut self) {
        self.sink.counters.borrow_mut().count_quit();
    }

    fn overlong(&mut self) {
        self.sink.voice.warn("command line too long");
    }

    fn has_enough(&self) -> bool {
        self.sink.has_enough()
    }

    fn wait(&mut self, delay: Delay) -> u32 {
        if delay.odds == 0 {
            return delay.seconds;
        }
        let times = std::iter::repeat_with(|| self.sink.dice.roll()).take_while(|number| *number < delay.odds).count();
        delay.seconds.saturating_mul(times as u32)
    }
}
