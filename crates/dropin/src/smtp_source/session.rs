//! A session: takes up messages, connects for them, and drives the dialogue over its connection.
use super::connection;
use super::dialogue::{SmtpSourceDialogue, SmtpSourceOutput, SmtpSourceStep};
use super::errors::{Diagnostic, FatalError};
use super::options::SendDelay;
use super::reply::PostfixReplyReader;
use super::run_state::SmtpSourceRun;
use crate::pending_output::{FlushStatus, PendingOutput};
use mailrun_net::{Outbox, Stream, Timer, clock};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

/// Runs one session to its end, which it reports to the run. Its first message is taken up already.
pub(super) async fn run(run: Rc<SmtpSourceRun>) {
    let outcome = send(&run).await;
    run.finish_session(outcome);
}

async fn send(run: &Rc<SmtpSourceRun>) -> Result<(), FatalError> {
    let mut attempts = run.options.connect_attempts;
    let mut timer = Timer::default();
    let mut free: Option<Connection> = None;
    loop {
        let began = run.start_time();
        let mut connection = match free.take() {
            Some(connection) => connection.queue_command(SmtpSourceDialogue::begin),
            None => {
                Connection::new(connection::open(run, &mut attempts).await?.into(), run, std::mem::take(&mut timer))
            }
        };
        connection.began = began;
        match connection.drive().await? {
            SmtpSourceStep::Idle => free = Some(connection),
            _ => timer = connection.timer,
        }
        let pause = run.pause();
        if !pause.is_zero() {
            mailrun_net::sleep(pause).await;
        }
        if !run.take_message() {
            break;
        }
    }
    match free {
        // Another session took the last message while this one paused: the original ends silently.
        Some(connection) => connection.queue_command(SmtpSourceDialogue::quit).drive().await.map(drop),
        None => Ok(()),
    }
}

/// A connection and its dialogue.
struct Connection {
    run: Rc<SmtpSourceRun>,
    stream: Stream,
    dialogue: SmtpSourceDialogue,
    reader: PostfixReplyReader,
    /// Bytes of replies that came before they were asked for.
    read_ahead: Vec<u8>,
    pending_output: PendingOutput,
    /// Messages in the data that is being written.
    messages: u32,
    /// The turn at which the conversation ends once all is written.
    final_step: Option<SmtpSourceStep>,
    timer: Timer,
    deadline: Duration,
    /// Time at which the message was taken up.
    began: Option<Duration>,
}

impl Connection {
    fn new(stream: Stream, run: &Rc<SmtpSourceRun>, timer: Timer) -> Self {
        Self {
            stream,
            dialogue: SmtpSourceDialogue::new(),
            reader: PostfixReplyReader::default(),
            read_ahead: Vec::new(),
            pending_output: PendingOutput::default(),
            messages: 0,
            final_step: None,
            timer,
            deadline: clock::now() + run.options.timeout,
            began: None,
            run: Rc::clone(run),
        }
    }

    /// Writes a command without waiting for a reply; [`Connection::converse`] sends it.
    fn queue_command(mut self, say: fn(&mut SmtpSourceDialogue, &mut SmtpSourceOutput<'_>) -> SmtpSourceStep) -> Self {
        let run = Rc::clone(&self.run);
        let mut diagnostics = Vec::new();
        let mut own = Box::<Outbox>::default();
        let mut output = dialogue_output(&self.stream, &run, &mut own, &mut diagnostics, self.began);
        say(&mut self.dialogue, &mut output);
        diagnostics.iter().for_each(|diagnostic| diagnostic.print(&run.stderr));
        self.pending_output.hold(own);
        self
    }

    /// Writes, reads and passes replies to the dialogue, until it is [`SmtpSourceStep::Idle`] or to
    /// [`SmtpSourceStep::Close`].
    async fn drive(&mut self) -> Result<SmtpSourceStep, FatalError> {
        let run = Rc::clone(&self.run);
        poll_fn(|_| self.poll(&run, &mut run.outbox.borrow_mut(), &mut run.input.borrow_mut())).await
    }

    fn poll(
        &mut self,
        run: &SmtpSourceRun,
        outbox: &mut Outbox,
        input: &mut [u8],
    ) -> Poll<Result<SmtpSourceStep, FatalError>> {
        loop {
            match self.flush(run, outbox) {
                Ok(true) => {}
                Ok(false) => return self.poll_timeout(run),
                Err(_) => {
                    // The next turn, probably another session's, must not send the rest of this one.
                    outbox.clear();
                    return Poll::Ready(self.connection_lost(run, "lost connection"));
                }
            }
            if let Some(close_reason) = self.final_step.take() {
                return Poll::Ready(Ok(close_reason));
            }
            let early = std::mem::take(&mut self.read_ahead);
            let taken = if early.is_empty() {
                match self.stream.poll_read(input) {
                    Poll::Pending => return self.poll_timeout(run),
                    Poll::Ready(Err(_) | Ok(0)) => return Poll::Ready(self.connection_lost(run, "lost connection")),
                    Poll::Ready(Ok(count)) => self.handle_input(run, &input[..count], outbox),
                }
            } else {
                self.handle_input(run, &early, outbox)
            };
            if let Err(fatal) = taken {
                return Poll::Ready(Err(fatal));
            }
        }
    }

    /// Handles every reply in `input`, until the dialogue pauses.
    fn handle_input(&mut self, run: &SmtpSourceRun, mut input: &[u8], outbox: &mut Outbox) -> Result<(), FatalError> {
        let mut diagnostics = Vec::new();
        while self.final_step.is_none() {
            let mut output = dialogue_output(&self.stream, run, outbox, &mut diagnostics, self.began);
            let turn = match self.reader.next(&mut input) {
                Ok(Some(reply)) => {
                    self.dialogue.handle_reply(&reply, &mut output).map_err(|refusal| FatalError(refusal.0))
                }
                Ok(None) => return Ok(()),
                Err(endless) => Err(FatalError(format!("{endless} while {}", self.dialogue.activity(run)))),
            };
            for _ in 0..self.dialogue.take_delivered() {
                run.accepted(self.began);
            }
            match &turn {
                Ok(SmtpSourceStep::Wait) | Err(_) => {}
                Ok(SmtpSourceStep::Message) => self.messages += 1,
                // Without a pause between messages the next begins in the same write.
                Ok(SmtpSourceStep::Idle) if run.options.delay == SendDelay::None && run.take_message() => {
                    self.began = run.start_time();
                    self.dialogue.begin(&mut output);
                }
                Ok(close_reason) => self.final_step = Some(*close_reason),
            }
            diagnostics.drain(..).for_each(|diagnostic| diagnostic.print(&run.stderr));
            turn?;
        }
        self.read_ahead = input.to_owned();
        Ok(())
    }

    /// Writes the outbox; returns true if nothing is left.
    fn flush(&mut self, run: &SmtpSourceRun, outbox: &mut Outbox) -> io::Result<bool> {
        let written = self.pending_output.flush(outbox, &mut self.stream)?;
        if matches!(written, FlushStatus::All | FlushStatus::Partial { is_progress: true }) {
            self.deadline = clock::now() + run.options.timeout;
        }
        if written == FlushStatus::All {
            (0..std::mem::take(&mut self.messages)).for_each(|_| run.count_sent());
        }
        Ok(!matches!(written, FlushStatus::Partial { .. }))
    }

    fn poll_timeout(&mut self, run: &SmtpSourceRun) -> Poll<Result<SmtpSourceStep, FatalError>> {
        ready!(self.timer.poll_due(Some(self.deadline), clock::now()));
        Poll::Ready(self.connection_lost(run, "timeout"))
    }

    /// Handles the loss of the connection. After QUIT it does not matter.
    fn connection_lost(&self, run: &SmtpSourceRun, how: &str) -> Result<SmtpSourceStep, FatalError> {
        if self.dialogue.is_over() {
            return Ok(SmtpSourceStep::Close);
        }
        Err(FatalError(format!("{how} while {}", self.dialogue.activity(run))))
    }
}

fn dialogue_output<'a>(
    stream: &Stream,
    run: &'a SmtpSourceRun,
    out: &'a mut Outbox,
    diagnostics: &'a mut Vec<Diagnostic>,
    began: Option<Duration>,
) -> SmtpSourceOutput<'a> {
    SmtpSourceOutput { run, out, diagnostics, descriptor: stream.as_fd().as_raw_fd(), began }
}
