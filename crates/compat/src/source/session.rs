//! Runs a session: takes up messages, connects to send them, and passes the bytes between the socket and the dialogue.
use super::dialect::{Dialect, Failure, FailureCause, MessageTask, OpenConnection};
use super::dialogue::{Dialogue, Output, Step};
use crate::reply_reader::{ReplyReader, ReplyTooLong};
use crate::stderr::FatalError;
use mailrun_net::{Outbox, Stream, Timer, clock};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// Runs session `number` until no message is left. Sends a fatal error to `fatal_errors`, which ends the program.
pub(super) async fn run<D: Dialect>(run: Rc<D>, number: u64, fatal_errors: UnboundedSender<FatalError>) {
    if let Err(fatal) = send(&run, number).await {
        // Ignore the error: the receiver is gone only if an earlier fatal error has already ended the run.
        let _ = fatal_errors.send(fatal);
    }
}

async fn send<D: Dialect>(run: &Rc<D>, number: u64) -> Result<(), FatalError> {
    let mut attempts = run.connect_attempts();
    let mut timer = Timer::default();
    let mut free: Option<Connection<D>> = None;
    let mut next = run.first_message().await;
    while let Some(task) = next {
        let opened = match free.take() {
            Some(connection) => Some((connection, Some(Queued::Begin(task)))),
            None => run
                .connect(number, task, &mut attempts)
                .await?
                .map(|open| (Connection::new(open, run, std::mem::take(&mut timer), task), None)),
        };
        if let Some((mut connection, queued)) = opened {
            match connection.drive(queued).await {
                Ok(Step::Idle) => free = Some(connection),
                outcome => timer = connection.close(outcome)?,
            }
        }
        next = run.next_message().await;
    }
    if let Some(mut connection) = free {
        let outcome = connection.drive(Some(Queued::Quit)).await;
        connection.close(outcome)?;
    }
    Ok(())
}

enum Queued {
    Begin(MessageTask),
    SecureHello,
    Quit,
}

struct Connection<D: Dialect> {
    run: Rc<D>,
    stream: Stream,
    peer: Option<SocketAddr>,
    dialogue: Dialogue,
    reader: ReplyReader,
    /// Bytes of replies that arrived before the dialogue could handle them.
    read_ahead: Vec<u8>,
    pending_output: PendingOutput,
    queued: Option<Queued>,
    /// Number of messages that were added to the output. It returns to zero when all output has been written.
    messages: u32,
    /// Step at which the dialogue pauses, such as the start of TLS. The session performs it once all output is written.
    final_step: Option<Step>,
    timer: Timer,
    deadline: Duration,
}

impl<D: Dialect> Connection<D> {
    fn new(open: OpenConnection, run: &Rc<D>, timer: Timer, task: MessageTask) -> Self {
        Self {
            run: Rc::clone(run),
            stream: open.stream,
            peer: open.peer,
            dialogue: Dialogue::new(task),
            reader: ReplyReader::default(),
            read_ahead: Vec::new(),
            pending_output: PendingOutput::default(),
            queued: None,
            messages: 0,
            final_step: None,
            timer,
            deadline: Duration::ZERO,
        }
    }

    /// Ends the connection, and reports a failure to the dialect. Returns the timer, so that the next connection can
    /// reuse it.
    fn close(self, outcome: Result<Step, FailureCause>) -> Result<Timer, FatalError> {
        match outcome {
            Ok(_) => self.run.connection_closed(self.dialogue.task()),
            Err(cause) => {
                let local = rustix::net::getsockname(self.stream.as_fd()).ok();
                self.run.handle_failure(Failure {
                    task: self.dialogue.task(),
                    state: self.dialogue.state(),
                    cause,
                    local: local.and_then(|address| SocketAddr::try_from(address).ok()),
                    peer: self.peer,
                })?;
            }
        }
        Ok(self.timer)
    }

    /// Passes bytes between the socket and the dialogue. Returns [`Step::Idle`] when the connection is free for another
    /// message, or [`Step::Close`] when it must be closed.
    async fn drive(&mut self, mut queued: Option<Queued>) -> Result<Step, FailureCause> {
        let run = Rc::clone(&self.run);
        loop {
            self.queued = queued.take();
            self.deadline = clock::now() + run.shared().timeout;
            let step = poll_fn(|_| {
                let shared = run.shared();
                self.poll(&*run, &mut shared.outbox.borrow_mut(), &mut shared.input.borrow_mut())
            })
            .await?;
            if step != Step::StartTls {
                return Ok(step);
            }
            self.begin_tls(&*run).await?;
            queued = Some(Queued::SecureHello);
        }
    }

    async fn begin_tls(&mut self, run: &D) -> Result<(), FailureCause> {
        // Discard plain text that arrived together with the reply to STARTTLS. An attacker may have injected this text,
        // so that the client takes it for a reply under TLS. CVE-2011-0411 describes the same attack on a server.
        self.read_ahead = Vec::new();
        self.reader = ReplyReader::default();
        let setup = run.shared().tls.as_ref().expect("STARTTLS is sent only with TLS");
        let deadline = clock::now() + run.shared().timeout;
        let handshake = self.timer.timeout_at(deadline, self.stream.connect_tls(setup)).await;
        let handshake = handshake.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
        handshake.map(drop).map_err(|error| FailureCause::Io("read", error))
    }

    fn poll(&mut self, run: &D, outbox: &mut Outbox, input: &mut [u8]) -> Poll<Result<Step, FailureCause>> {
        if let Some(queued) = self.queued.take()
            && let Err(cause) = self.write_queued(queued, run, outbox)
        {
            return Poll::Ready(Err(cause));
        }
        loop {
            match self.flush(run, outbox) {
                Ok(true) => {}
                Ok(false) => return self.poll_timeout(),
                Err(error) => {
                    // Discard the unsent bytes, because all sessions share this buffer, and the next session that runs
                    // would send them on its own connection.
                    outbox.clear();
                    return Poll::Ready(Err(FailureCause::Io("write", error)));
                }
            }
            if let Some(step) = self.final_step.take() {
                return Poll::Ready(Ok(step));
            }
            let early = std::mem::take(&mut self.read_ahead);
            let handled = if early.is_empty() {
                match self.stream.poll_read(input) {
                    Poll::Pending => return self.poll_timeout(),
                    Poll::Ready(Ok(0)) => Err(FailureCause::End),
                    Poll::Ready(Err(error)) => Err(FailureCause::Io("read", error)),
                    Poll::Ready(Ok(count)) => self.handle_input(run, &input[..count], outbox),
                }
            } else {
                self.handle_input(run, &early, outbox)
            };
            if let Err(cause) = handled {
                // Try to send the commands that were written before the failure, because the connection is closed next.
                let _ = self.flush(run, outbox);
                outbox.clear();
                return Poll::Ready(Err(cause));
            }
        }
    }

    fn write_queued(&mut self, queued: Queued, run: &D, outbox: &mut Outbox) -> Result<(), FailureCause> {
        let mut diagnostics = Vec::new();
        let descriptor = self.stream.as_fd().as_raw_fd();
        let mut output = Output { out: outbox, diagnostics: &mut diagnostics, descriptor };
        let step = match queued {
            Queued::Begin(task) => self.dialogue.begin(task, run, &mut output),
            Queued::SecureHello => self.dialogue.tls_established(run, &mut output),
            Queued::Quit => Ok(self.dialogue.quit(run, &mut output)),
        };
        diagnostics.iter().for_each(|diagnostic| run.print(diagnostic));
        step.map(drop).map_err(FailureCause::Refused)
    }

    /// Handles the replies in `input` until the dialogue pauses or `input` ends.
    fn handle_input(&mut self, run: &D, mut input: &[u8], outbox: &mut Outbox) -> Result<(), FailureCause> {
        let mut diagnostics = Vec::new();
        let descriptor = self.stream.as_fd().as_raw_fd();
        while self.final_step.is_none() {
            let reply = match self.reader.next(&mut input, D::is_last_line) {
                Ok(Some(reply)) => reply,
                Ok(None) => return Ok(()),
                Err(ReplyTooLong) => return Err(FailureCause::EndlessReply),
            };
            let mut output = Output { out: outbox, diagnostics: &mut diagnostics, descriptor };
            let mut step = self.dialogue.handle_reply(reply, run, &mut output);
            if step == Ok(Step::Idle) && !run.waits_between_messages() {
                step = match run.take_message() {
                    Some(task) => self.dialogue.begin(task, run, &mut output),
                    None => Ok(self.dialogue.quit(run, &mut output)),
                };
            }
            diagnostics.drain(..).for_each(|diagnostic| run.print(&diagnostic));
            match step.map_err(FailureCause::Refused)? {
                Step::Wait => {}
                Step::Message => self.messages += 1,
                step => self.final_step = Some(step),
            }
        }
        self.read_ahead = input.to_owned();
        Ok(())
    }

    /// Writes the bytes that the socket did not accept earlier, or else the shared buffer `outbox`. Returns true if no
    /// bytes are left to write.
    fn flush(&mut self, run: &D, outbox: &mut Outbox) -> io::Result<bool> {
        let written = self.pending_output.flush(outbox, &mut self.stream)?;
        if matches!(written, FlushStatus::All | FlushStatus::Partial { is_progress: true }) {
            self.deadline = clock::now() + run.shared().timeout;
        }
        if written == FlushStatus::All {
            run.messages_sent(std::mem::take(&mut self.messages));
        }
        Ok(!matches!(written, FlushStatus::Partial { .. }))
    }

    fn poll_timeout(&mut self) -> Poll<Result<Step, FailureCause>> {
        ready!(self.timer.poll_due(Some(self.deadline), clock::now()));
        Poll::Ready(Err(FailureCause::Timeout))
    }
}

/// Output that a session's socket has not accepted yet. All sessions write from one shared buffer, so each session
/// moves such bytes to a buffer of its own.
#[derive(Default)]
pub(super) struct PendingOutput {
    unsent: Option<Box<Outbox>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushStatus {
    Nothing,
    All,
    /// The socket accepts no more bytes for now. If `is_progress` is set, at least one write was tried, so the timeout
    /// starts again.
    Partial {
        is_progress: bool,
    },
}

impl PendingOutput {
    fn hold(&mut self, outbox: Box<Outbox>) {
        self.unsent = Some(outbox);
    }

    /// Writes the bytes that the socket did not accept earlier. If there are none, writes the shared buffer `outbox`.
    pub(super) fn flush(&mut self, outbox: &mut Outbox, stream: &mut Stream) -> io::Result<FlushStatus> {
        let mut some = false;
        if self.unsent.is_none() {
            if outbox.is_empty() {
                return Ok(FlushStatus::Nothing);
            }
            some = true;
            if outbox.write_to(stream)? {
                return Ok(FlushStatus::All);
            }
            self.hold(Box::new(std::mem::take(outbox)));
        }
        let unsent = self.unsent.as_mut().expect("set above");
        while stream.poll_writable().is_ready() {
            some = true;
            if unsent.write_to(stream)? {
                self.unsent = None;
                return Ok(FlushStatus::All);
            }
        }
        Ok(FlushStatus::Partial { is_progress: some })
    }
}
