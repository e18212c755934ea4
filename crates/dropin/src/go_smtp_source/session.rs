//! A session: takes up messages, connects for them, and drives the dialogue over its connection.
use super::dialogue::{GoSourceDialogue, GoSourceOutput, GoSourceStep, SessionPhase};
use super::message::MessageTask;
use super::output::{GoFatalError, log};
use super::reason::reason;
use super::reply::GoReplyReader;
use super::run_state::GoSourceRun;
use crate::pending_output::{FlushStatus, PendingOutput};
use mailrun_net::{Outbox, Socket, Stream, Timer, clock};
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
const REPLY_TIMEOUT: Duration = Duration::from_secs(300);

/// Runs session `number` to its end, which it reports to the run.
pub(super) async fn run(run: Rc<GoSourceRun>, number: u64) {
    let outcome =
        if run.options.reuses_connection { send_on_one_connection(&run, number).await } else { send_each(&run).await };
    run.finish_session(outcome);
}

/// Opens a new connection for each message and sends it there.
async fn send_each(run: &Rc<GoSourceRun>) -> Result<(), GoFatalError> {
    while let Some(task) = run.take_message() {
        let number = task.number;
        run.wait_for_rate().await;
        run.verbose(|| format!("Opening a SMTP session ({number})..."));
        let mut connection = match connect(run).await {
            Ok(stream) => Connection::new(run, stream, task),
            Err(why) => {
                run.fail_message(&format!("unable to connect to the server: {why}"));
                continue;
            }
        };
        if let Err(why) = connection.drive().await {
            match connection.dialogue.phase(run) {
                SessionPhase::Greeting => {
                    run.fail_message(&format!("unable to connect to the server: {why}"));
                    continue;
                }
                SessionPhase::Sending(what) => {
                    return Err(GoFatalError(format!("unable to send a mail:{what}: {why}")));
                }
                SessionPhase::Quitting => log(&format!("unable to quit a session: {why}")),
            }
        }
        run.verbose(|| format!("The SMTP session ({number}) has been closed."));
    }
    Ok(())
}

/// `-d`: sends all messages of the session on one connection.
async fn send_on_one_connection(run: &Rc<GoSourceRun>, session: u64) -> Result<(), GoFatalError> {
    let Some(first) = run.take_message() else { return Ok(()) };
    run.wait_for_rate().await;
    run.verbose(|| format!("Opening a SMTP session ({session})..."));
    let opening = |why: String| GoFatalError(format!("opening a SMTP session: {why}"));
    let mut connection = Connection::new(run, connect(run).await.map_err(opening)?, first);
    loop {
        let turn = connection.drive().await.map_err(|why| match connection.dialogue.phase(run) {
            SessionPhase::Greeting => opening(why),
            SessionPhase::Sending(what) => GoFatalError(format!("unable to send a mail:{what}: {why}")),
            SessionPhase::Quitting => GoFatalError(format!("unable to quit a session:{why}")),
        })?;
        if turn == GoSourceStep::Close {
            break;
        }
        match run.take_message() {
            Some(task) => {
                run.wait_for_rate().await;
                connection.next = Some(task);
            }
            None => connection.sends_quit = true,
        }
    }
    run.verbose(|| format!("The SMTP session ({}) has been closed.", run.count_closed()));
    Ok(())
}

/// Connects to the first reachable address of the target, one session at a time as the original does.
async fn connect(run: &GoSourceRun) -> Result<(Stream, SocketAddr), String> {
    let _pass = run.connect_semaphore.acquire().await;
    let addresses = run.target.addresses().await.map_err(|why| format!("dial tcp: {why}"))?;
    let mut first = None;
    for address in addresses {
        match connect_to(address).await {
            Ok(socket) => return Ok((socket.into(), address)),
            Err((call, error)) => {
                first.get_or_insert((call, address, error));
            }
        }
    }
    let (call, address, error) = first.ok_or_else(|| format!("dial tcp: lookup {}: no such host", run.target.host))?;
    Err(format!("dial tcp {}: {call}: {}", run.target.display_name(address), reason(&error)))
}

async fn connect_to(address: SocketAddr) -> Result<Socket, (&'static str, io::Error)> {
    let descriptor = new_socket(address).map_err(|error| ("socket", error.into()))?;
    let made = match rustix::net::connect(&descriptor, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {
            Timer::default().timeout_at(clock::now() + REPLY_TIMEOUT, Socket::from_connecting(descriptor)).await
        }
        Err(error) => Some(Err(error.into())),
    };
    made.unwrap_or_else(|| Err(Errno::TIMEDOUT.into())).map_err(|error| ("connect", error))
}

/// Creates a socket that resets the connection when it is closed, so that no port is left in TIME_WAIT.
fn new_socket(address: SocketAddr) -> rustix::io::Result<std::os::fd::OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let descriptor = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_linger(&descriptor, Some(Duration::ZERO))?;
    sockopt::set_tcp_nodelay(&descriptor, true)?;
    Ok(descriptor)
}

/// A connection and its dialogue.
struct Connection {
    run: Rc<GoSourceRun>,
    stream: Stream,
    peer: SocketAddr,
    dialogue: GoSourceDialogue,
    reader: GoReplyReader,
    /// Bytes of replies that came before they were asked for.
    read_ahead: Vec<u8>,
    pending_output: PendingOutput,
    /// The message to begin on the free connection.
    next: Option<MessageTask>,
    /// Set if QUIT is to be sent.
    sends_quit: bool,
    /// The turn at which the conversation pauses once all is written.
    final_step: Option<GoSourceStep>,
    timer: Timer,
    deadline: Duration,
}

impl Connection {
    fn new(run: &Rc<GoSourceRun>, (stream, peer): (Stream, SocketAddr), task: MessageTask) -> Self {
        Self {
            stream,
            peer,
            dialogue: GoSourceDialogue::new(task),
            reader: GoReplyReader::default(),
            read_ahead: Vec::new(),
            pending_output: PendingOutput::default(),
            next: None,
            sends_quit: false,
            final_step: None,
            timer: Timer::default(),
            deadline: Duration::ZERO,
            run: Rc::clone(run),
        }
    }

    /// Writes, reads and passes replies to the dialogue, until the connection is [`GoSourceStep::Idle`] or to
    /// [`GoSourceStep::Close`].
    async fn drive(&mut self) -> Result<GoSourceStep, String> {
        loop {
            self.deadline = clock::now() + REPLY_TIMEOUT;
            let run = Rc::clone(&self.run);
            let turn = poll_fn(|_| self.poll(&run, &mut run.outbox.borrow_mut(), &mut run.input.borrow_mut())).await?;
            if turn != GoSourceStep::StartTls {
                return Ok(turn);
            }
            self.begin_tls().await?;
        }
    }

    async fn begin_tls(&mut self) -> Result<(), String> {
        // Plain text after the reply to STARTTLS must not be taken for the server's words under TLS (CVE-2011-0411).
        self.read_ahead = Vec::new();
        self.reader = GoReplyReader::default();
        let run = Rc::clone(&self.run);
        let setup = run.tls.as_ref().expect("STARTTLS is said with -tls only");
        let shaken = self.timer.timeout_at(clock::now() + REPLY_TIMEOUT, self.stream.connect_tls(setup)).await;
        shaken
            .unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| self.io_error_text("read", &error))?;
        let mut own = Box::<Outbox>::default();
        self.dialogue.tls_established(&mut GoSourceOutput { run: &run, out: &mut own });
        self.pending_output.hold(own);
        Ok(())
    }

    fn poll(&mut self, run: &GoSourceRun, outbox: &mut Outbox, input: &mut [u8]) -> Poll<Result<GoSourceStep, String>> {
        if let Err(why) = self.write_queued_command(&mut GoSourceOutput { run, out: outbox }) {
            return Poll::Ready(Err(why));
        }
        loop {
            match self.flush(outbox) {
                Ok(true) => {}
                Ok(false) => return self.poll_timeout(),
                Err(error) => {
                    // The next turn, probably another session's, must not send the rest of this one.
                    outbox.clear();
                    return Poll::Ready(Err(self.io_error_text("write", &error)));
                }
            }
            if let Some(close_reason) = self.final_step.take() {
                return Poll::Ready(Ok(close_reason));
            }
            let early = std::mem::take(&mut self.read_ahead);
            let taken = if early.is_empty() {
                match ready_value(self.stream.poll_read(input)) {
                    None => return self.poll_timeout(),
                    Some(Ok(0)) => Err("EOF".to_owned()),
                    Some(Err(error)) => Err(self.io_error_text("read", &error)),
                    Some(Ok(count)) => self.handle_input(&input[..count], &mut GoSourceOutput { run, out: outbox }),
                }
            } else {
                self.handle_input(&early, &mut GoSourceOutput { run, out: outbox })
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
    fn write_queued_command(&mut self, output: &mut GoSourceOutput<'_>) -> Result<(), String> {
        if let Some(task) = self.next.take() {
            self.dialogue.begin(task, output)?;
        } else if std::mem::take(&mut self.sends_quit) {
            self.dialogue.quit(output);
        }
        Ok(())
    }

    /// Handles every reply in `input`, until the dialogue pauses.
    fn handle_input(&mut self, mut input: &[u8], output: &mut GoSourceOutput<'_>) -> Result<(), String> {
        while self.final_step.is_none() {
            let Some(reply) = self.reader.next(&mut input) else { return Ok(()) };
            match self.dialogue.handle_reply(reply, output)? {
                GoSourceStep::Wait => {}
                // Without a pace the next message begins in the same write.
                GoSourceStep::Idle if !output.run.rate_limiter.is_limited() => match output.run.take_message() {
                    Some(task) => drop(self.dialogue.begin(task, output)?),
                    None => drop(self.dialogue.quit(output)),
                },
                close_reason => self.final_step = Some(close_reason),
            }
        }
        self.read_ahead = input.to_owned();
        Ok(())
    }

    /// Writes the outbox; returns true if nothing is left.
    fn flush(&mut self, outbox: &mut Outbox) -> io::Result<bool> {
        let written = self.pending_output.flush(outbox, &mut self.stream)?;
        if matches!(written, FlushStatus::All | FlushStatus::Partial { is_progress: true }) {
            self.deadline = clock::now() + REPLY_TIMEOUT;
        }
        Ok(!matches!(written, FlushStatus::Partial { .. }))
    }

    fn poll_timeout(&mut self) -> Poll<Result<GoSourceStep, String>> {
        ready!(self.timer.poll_due(Some(self.deadline), clock::now()));
        Poll::Ready(Err(format!("no reply within {} s", REPLY_TIMEOUT.as_secs())))
    }

    /// The original's error text for a broken connection.
    fn io_error_text(&self, call: &str, error: &io::Error) -> String {
        if error.raw_os_error().is_none() {
            return reason(error);
        }
        let own = rustix::net::getsockname(self.stream.as_fd()).ok().and_then(|own| SocketAddr::try_from(own).ok());
        let own = own.map(|own| own.to_string()).unwrap_or_default();
        format!("{call} tcp {own}->{}: {call}: {}", self.peer, reason(error))
    }
}

fn ready_value<T>(poll: Poll<T>) -> Option<T> {
    match poll {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
