//! Runs a session: moves bytes between its socket and the dialogue, and records the dialogue's events. All decisions
//! are made in the dialogue.
use super::commands::{Command, ReplyDelay};
use super::dialogue::{DialogueObserver, SmtpSinkDialogue, SmtpSinkStep};
use super::dump::{DiskError, SessionDump};
use super::sink::SmtpSink;
use super::traced::TracedMessageReader;
use mailrun_net::{Socket, Timer, clock};
use rustix::fd::OwnedFd;
use std::future::{pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

pub(super) async fn serve(sink: Rc<SmtpSink>, descriptor: OwnedFd, client: Option<SocketAddr>) {
    if sink.settings.verbosity > 0 {
        sink.stderr.print(format!("connect ({})", name_of(client)));
    }
    // `from_accepted` fails if the kernel has no memory to watch another descriptor. The connection is then closed.
    if let Ok(socket) = Socket::from_accepted(descriptor) {
        let mut session = Session {
            dialogue: SmtpSinkDialogue::new(Rc::clone(&sink.settings)),
            dump: SessionDump::new(sink.dump_context.clone(), client),
            trace: SessionTrace::default(),
            timer: Timer::default(),
            unhandled_input: Vec::new(),
            socket,
            sink: Rc::clone(&sink),
        };
        session.drive().await;
        session.close().await;
    }
    sink.session_ended();
}

fn name_of(client: Option<SocketAddr>) -> String {
    match client {
        None => "AF_LOCAL local".to_owned(),
        Some(SocketAddr::V4(address)) => format!("AF_INET {}", address.ip()),
        Some(SocketAddr::V6(address)) => format!("AF_INET6 {}", address.ip()),
    }
}

enum WaitResult<T> {
    Ready(T),
    TimedOut,
}

/// For `--trace`: the message that is arriving, and a message that is complete but not accepted yet.
#[derive(Default)]
struct SessionTrace {
    reading: Option<Box<TracedMessageReader>>,
    complete: Option<Box<TracedMessageReader>>,
}

struct Session {
    sink: Rc<SmtpSink>,
    socket: Socket,
    dialogue: SmtpSinkDialogue,
    dump: SessionDump,
    trace: SessionTrace,
    timer: Timer,
    /// Bytes that were read but not handled yet, for example because the dialogue has paused.
    unhandled_input: Vec<u8>,
}

impl Session {
    async fn drive(&mut self) {
        let mut step = self.run_step(|dialogue, out, recorder| dialogue.greet(out, recorder)).await;
        loop {
            if !self.write(step).await {
                return;
            }
            step = match step {
                SmtpSinkStep::Close => return,
                SmtpSinkStep::Read => match self.read().await {
                    Some(step) => step,
                    None => return,
                },
                SmtpSinkStep::Continue => self.handle_rest().await,
                SmtpSinkStep::Pause(seconds) => self.pause(seconds).await,
            };
        }
    }

    /// Counts the session before closing the connection, so that a client that sees the connection closed already finds
    /// the session counted.
    async fn close(mut self) {
        if let Err(error) = self.dump.abandon() {
            self.sink.fail(&error);
        }
        let mut counters = self.sink.counters.borrow_mut();
        counters.count_session();
        counters.print();
    }

    /// Runs one step of the dialogue, and leaves its replies in the sink's write buffer. If the run has ended, this
    /// future never completes, so that the session sends no more replies.
    async fn run_step(
        &mut self,
        act: impl FnOnce(&mut SmtpSinkDialogue, &mut Vec<u8>, &mut SessionRecorder<'_>) -> SmtpSinkStep,
    ) -> SmtpSinkStep {
        let Self { sink, dialogue, dump, trace, .. } = self;
        let step =
            run_and_hold(&mut SessionRecorder { sink, dump, trace }, |out, recorder| act(dialogue, out, recorder));
        self.halt_if_ended().await;
        step
    }

    async fn halt_if_ended(&self) {
        if self.sink.has_ended() {
            pending::<()>().await;
        }
    }

    async fn write(&mut self, step: SmtpSinkStep) -> bool {
        let out = self.sink.take_write_buffer();
        let result = if out.is_empty() { WaitResult::Ready(Ok(())) } else { self.write_out(&out).await };
        self.sink.recycle_write_buffer(out);
        match result {
            WaitResult::Ready(Ok(())) => return true,
            // Ignore the error, because the connection is about to be closed anyway.
            WaitResult::Ready(Err(_)) if step == SmtpSinkStep::Close => {}
            WaitResult::Ready(Err(_)) => self.sink.stderr.warn("lost connection"),
            WaitResult::TimedOut => self.sink.stderr.warn("write timeout"),
        }
        false
    }

    async fn write_out(&mut self, out: &[u8]) -> WaitResult<io::Result<()>> {
        let Self { sink, socket, timer, .. } = self;
        let mut write = pin!(socket.write_all(out));
        with_timeout(timer, sink.settings.timeout_s, |context| write.as_mut().poll(context)).await
    }

    async fn read(&mut self) -> Option<SmtpSinkStep> {
        let Self { sink, socket, dialogue, dump, trace, timer, unhandled_input } = self;
        let result = with_timeout(timer, sink.settings.timeout_s, |_| {
            sink.with_read_buffer(|buffer| {
                let count = match ready!(socket.poll_read(buffer)) {
                    Ok(0) | Err(_) => return Poll::Ready(None),
                    Ok(count) => count,
                };
                let mut input = &buffer[..count];
                let recorder = &mut SessionRecorder { sink, dump, trace };
                let step = run_and_hold(recorder, |out, recorder| dialogue.receive(&mut input, out, recorder));
                unhandled_input.extend_from_slice(input);
                Poll::Ready(Some(step))
            })
        })
        .await;
        self.halt_if_ended().await;
        match result {
            WaitResult::TimedOut => {
                self.sink.stderr.warn("read timeout");
                None
            }
            WaitResult::Ready(step) => {
                if matches!(step, None | Some(SmtpSinkStep::Close)) {
                    self.log_disconnect();
                }
                step
            }
        }
    }

    async fn handle_rest(&mut self) -> SmtpSinkStep {
        let rest = std::mem::take(&mut self.unhandled_input);
        let mut input = rest.as_slice();
        let step = self.run_step(|dialogue, out, recorder| dialogue.receive(&mut input, out, recorder)).await;
        self.unhandled_input.extend_from_slice(input);
        if step == SmtpSinkStep::Close {
            self.log_disconnect();
        }
        step
    }

    async fn pause(&mut self, seconds: u32) -> SmtpSinkStep {
        let guard = self.dialogue.owes_message_reply().then(|| self.sink.track_pending_reply());
        mailrun_net::sleep(Duration::from_secs(seconds.into())).await;
        let step = self.run_step(|dialogue, out, recorder| dialogue.resume(out, recorder)).await;
        drop(guard);
        // Before reading more, handle the input that came together with the delayed command, because the client may be
        // waiting for the replies to that input.
        if step == SmtpSinkStep::Read { SmtpSinkStep::Continue } else { step }
    }

    fn log_disconnect(&self) {
        if self.sink.settings.verbosity > 0 {
            self.sink.stderr.print("disconnect");
        }
    }
}

async fn with_timeout<T>(
    timer: &mut Timer,
    timeout_s: u32,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> WaitResult<T> {
    let mut deadline = None;
    poll_fn(|context| {
        if let Poll::Ready(value) = poll(context) {
            return Poll::Ready(WaitResult::Ready(value));
        }
        let now = clock::now();
        let deadline = *deadline.get_or_insert_with(|| now + Duration::from_secs(timeout_s.into()));
        timer.poll_due(Some(deadline), now).map(|()| WaitResult::TimedOut)
    })
    .await
}

/// Runs one step of the dialogue, whose replies go into the sink's write buffer. Prints new counts before the replies
/// can be sent, so that a client that has received the reply to its message already finds the message counted.
fn run_and_hold<'s>(
    recorder: &mut SessionRecorder<'s>,
    act: impl FnOnce(&mut Vec<u8>, &mut SessionRecorder<'s>) -> SmtpSinkStep,
) -> SmtpSinkStep {
    let sink = recorder.sink;
    let mut out = sink.take_write_buffer();
    let step = act(&mut out, recorder);
    sink.keep_unsent(out);
    sink.counters.borrow_mut().print();
    step
}

/// Records the events of a session in the counters, the dump files, the statistics of traced mail and the logs.
struct SessionRecorder<'a> {
    sink: &'a SmtpSink,
    dump: &'a mut SessionDump,
    trace: &'a mut SessionTrace,
}

impl SessionRecorder<'_> {
    fn write_dump(&mut self, write: impl FnOnce(&mut SessionDump) -> Result<(), DiskError>) {
        if let Err(error) = write(self.dump) {
            self.sink.fail(&error);
        }
    }
}

impl DialogueObserver for SessionRecorder<'_> {
    fn line_received(&mut self, line: &[u8]) {
        if self.sink.settings.verbosity > 0 {
            self.sink.stderr.print(line);
        }
    }

    fn log_command(&mut self, word: &[u8], rest: &[u8]) {
        self.sink.syslog.log(word, rest);
    }

    fn greeted(&mut self, command: Command, rest: &[u8]) {
        self.write_dump(|dump| dump.greeted(command, rest));
    }

    fn mail_accepted(&mut self, rest: &[u8]) {
        self.write_dump(|dump| dump.begin(rest));
        if self.sink.trace_stats.is_some() {
            *self.trace = SessionTrace { reading: Some(Box::default()), complete: None };
        }
    }

    fn rcpt_accepted(&mut self, rest: &[u8]) {
        self.write_dump(|dump| dump.recipient(rest));
        if let Some(reader) = &mut self.trace.reading {
            reader.add_recipient(rest);
        }
    }

    fn data_accepted(&mut self) {
        self.write_dump(SessionDump::write_received_header);
    }

    fn content(&mut self, octets: &[u8]) {
        self.write_dump(|dump| dump.content(octets));
        if let Some(reader) = &mut self.trace.reading {
            reader.content(octets);
        }
    }

    fn message_complete(&mut self) {
        self.write_dump(SessionDump::finish);
        if self.trace.reading.is_some() {
            self.trace.complete = self.trace.reading.take();
        }
        let mut counters = self.sink.counters.borrow_mut();
        counters.count_message();
        if counters.reached_message_limit() {
            self.sink.wake_acceptor();
        }
    }

    fn message_accepted(&mut self) {
        if let Some((reader, stats)) = self.trace.complete.take().zip(self.sink.trace_stats.as_ref()) {
            stats.borrow_mut().record(&reader.into_message());
        }
    }

    fn transaction_reset(&mut self) {
        self.write_dump(SessionDump::abandon);
    }

    fn quit_accepted(&mut self) {
        self.sink.counters.borrow_mut().count_quit();
    }

    fn line_too_long(&mut self) {
        self.sink.stderr.warn("command line too long");
    }

    fn reached_message_limit(&self) -> bool {
        self.sink.reached_message_limit()
    }

    fn delay_seconds(&mut self, delay: ReplyDelay) -> u32 {
        if delay.odds == 0 {
            return delay.seconds;
        }
        let times =
            std::iter::repeat_with(|| self.sink.rng.percent()).take_while(|number| *number < delay.odds).count();
        delay.seconds.saturating_mul(times as u32)
    }
}
