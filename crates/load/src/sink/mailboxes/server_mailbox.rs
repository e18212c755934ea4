//! Watches a mailbox over a connection to its server. If the connection breaks, a new connection is opened, whose
//! session finds the messages that have arrived in the meantime.
use super::options::WatchedMailbox;
use super::watcher::{TRACE_FIELD, Watcher, read_trace};
use mailrun_mailbox::imap::{ImapSession, Position};
use mailrun_mailbox::pop::{Listing, PopSession};
use mailrun_mailbox::{Event, MailboxUrl, Scheme, SessionError, Step, WatchOptions};
use mailrun_measurement::Phase;
use mailrun_net::{ClientTls, Endpoint, Socket, Stream, Timer, clock, sleep};
use mailrun_process::reason::reason;
use mailrun_smtp::sasl::Credentials;
use mailrun_tls_verify::{HandshakeFault, Remedies};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Maximum number of connections that are being set up at the same time. A server would otherwise be flooded with
/// logins.
const MAX_STARTING: usize = 64;
/// Pause after a connection has failed. It doubles with each further failure, up to `LONGEST_RETRY`.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// Options that the error message suggests if a certificate is not accepted.
pub(super) const REMEDIES: Remedies = Remedies {
    trust: "--mailbox-cacert FILE",
    name: "write NAME as the host in --mailbox",
    insecure: "--mailbox-insecure",
};
/// Time limit for the connection and, separately, for the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// State of the mailbox at the end of the last session, from which the next session can tell which messages are new.
enum Memory {
    Imap(Option<Position>),
    Pop(Option<Listing>),
}

enum Session {
    Imap(Box<ImapSession>),
    Pop(Box<PopSession>),
}

enum SessionEnd {
    /// A POP3 session has read all new messages. The next session begins after the polling interval.
    Done,
    Network(Phase, io::Error),
    Server(SessionError),
}

impl From<SessionError> for SessionEnd {
    fn from(error: SessionError) -> Self {
        Self::Server(error)
    }
}

pub(super) struct ServerMailbox {
    watcher: Watcher,
    scheme: Scheme,
    folder: String,
    credentials: Credentials,
    endpoint: Endpoint,
    tls: Option<ClientTls>,
    options: Arc<WatchOptions>,
    memory: Memory,
    timer: Timer,
}

impl ServerMailbox {
    pub(super) fn new(watcher: Watcher, mailbox: &WatchedMailbox, endpoint: Endpoint, tls: Option<ClientTls>) -> Self {
        let shared = &watcher.shared.options;
        let (scheme, folder) = match &mailbox.url {
            MailboxUrl::Server { scheme, folder, .. } => (*scheme, folder.clone()),
            MailboxUrl::Maildir(_) => (Scheme::Imap, String::new()),
        };
        let options = WatchOptions {
            starts_tls: scheme.starts_tls(),
            allows_plain_login: shared.allows_plain_login(&endpoint),
            whole: shared.whole,
            existing: shared.existing,
            poll: shared.poll,
            ..WatchOptions::new(TRACE_FIELD)
        };
        Self {
            memory: if scheme.is_imap() { Memory::Imap(None) } else { Memory::Pop(None) },
            credentials: mailbox.credentials.clone().unwrap_or_else(|| Credentials::new("", "")),
            watcher,
            scheme,
            folder,
            endpoint,
            tls,
            options: Arc::new(options),
            timer: Timer::default(),
        }
    }

    /// Watches the mailbox until the task is dropped. Returns early if the mailbox cannot be opened the first time.
    pub(super) async fn run(mut self) {
        let mut retry = FIRST_RETRY;
        loop {
            let began = clock::now();
            let end = self.session().await;
            let pause = match end {
                SessionEnd::Done => self.options.poll.unwrap_or(self.options.default_poll),
                SessionEnd::Network(phase, error) => {
                    self.watcher.failed(phase, &network_reason(&error));
                    retry
                }
                SessionEnd::Server(error) => {
                    if matches!(error, SessionError::Renumbered { .. }) {
                        self.watcher.renumbered();
                    }
                    self.watcher.failed(phase(error.step()), &error.to_string());
                    retry
                }
            };
            if !self.watcher.has_opened.get() {
                return;
            }
            let has_lasted = clock::now().saturating_sub(began) > LONGEST_RETRY;
            retry = if has_lasted { FIRST_RETRY } else { (retry * 2).min(LONGEST_RETRY) };
            sleep(pause).await;
        }
    }

    async fn session(&mut self) -> SessionEnd {
        let starting = &self.watcher.shared.starting;
        while starting.get() >= MAX_STARTING {
            sleep(Duration::from_millis(2)).await;
        }
        starting.set(starting.get() + 1);
        let mut is_starting = true;
        let end = self.session_with(&mut is_starting).await;
        self.started(&mut is_starting);
        end
    }

    /// Records that the setup of this connection is over, so that another connection may be set up. Only the first call
    /// for a connection has an effect.
    fn started(&self, is_starting: &mut bool) {
        if std::mem::take(is_starting) {
            let starting = &self.watcher.shared.starting;
            starting.set(starting.get() - 1);
        }
    }

    async fn session_with(&mut self, is_starting: &mut bool) -> SessionEnd {
        let mut stream = match self.connect().await {
            Ok(stream) => stream,
            Err(end) => return end,
        };
        let identity = (self.credentials.clone(), mailrun_net::nonce());
        let options = Arc::clone(&self.options);
        let is_encrypted = stream.is_encrypted();
        let now = clock::now();
        let mut session = match &mut self.memory {
            Memory::Imap(position) => {
                let deletes = self.watcher.shared.options.deletes.is_some();
                let position = position.take();
                let session = ImapSession::new(options, identity, &self.folder, position, deletes, is_encrypted, now);
                Session::Imap(Box::new(session))
            }
            Memory::Pop(listing) => {
                Session::Pop(Box::new(PopSession::new(options, identity, listing.take(), is_encrypted, now)))
            }
        };
        let end = self.drive(&mut session, &mut stream, is_starting).await;
        self.memory = match session {
            Session::Imap(session) => Memory::Imap(session.into_position()),
            Session::Pop(session) => Memory::Pop(session.into_listing()),
        };
        end
    }

    async fn connect(&mut self) -> Result<Stream, SessionEnd> {
        let deadline = clock::now() + CONNECT_TIMEOUT;
        let connected = self.timer.timeout_at(deadline, Socket::connect_to(None, &self.endpoint)).await;
        let connected = connected.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
        let mut stream = Stream::from(connected.map_err(|error| SessionEnd::Network(Phase::Connect, error))?);
        self.watcher.shared.state.tally.borrow_mut().connections += 1;
        if self.scheme.is_implicit_tls() {
            self.start_tls(&mut stream).await?;
        }
        Ok(stream)
    }

    async fn start_tls(&mut self, stream: &mut Stream) -> Result<(), SessionEnd> {
        let Some(tls) = &self.tls else { return Ok(()) };
        let handshake = self.timer.timeout_at(clock::now() + CONNECT_TIMEOUT, stream.connect_tls(tls)).await;
        let handshake = handshake.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
        let mut tally = self.watcher.shared.state.tally.borrow_mut();
        match handshake {
            Ok(handshake) => {
                tally.handshakes.add(&handshake.version, &handshake.cipher, handshake.resumed);
                Ok(())
            }
            Err(error) => {
                tally.handshakes.failed += 1;
                Err(SessionEnd::Network(Phase::Tls, error))
            }
        }
    }

    async fn drive(&mut self, session: &mut Session, stream: &mut Stream, is_starting: &mut bool) -> SessionEnd {
        let mut out = Vec::new();
        let mut events = Vec::new();
        loop {
            let result = self.turn(session, stream, &mut out, &mut events).await;
            // Events before an error still count, because their messages have arrived.
            for event in std::mem::take(&mut events) {
                if matches!(event, Event::Watching { .. }) {
                    self.started(is_starting);
                }
                match self.handle(event, session, stream, &mut out, &mut events).await {
                    Ok(false) => {}
                    Ok(true) => return SessionEnd::Done,
                    Err(end) => return end,
                }
            }
            if let Err(end) = result {
                return end;
            }
        }
    }

    /// Sends pending output, and then waits for input or for the session's deadline.
    async fn turn(
        &mut self,
        session: &mut Session,
        stream: &mut Stream,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), SessionEnd> {
        let phase_now = phase(session.step());
        if !out.is_empty() {
            let deadline = clock::now() + self.options.reply_timeout;
            let written = self.timer.timeout_at(deadline, stream.write_all(out)).await;
            let written = written.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
            written.map_err(|error| SessionEnd::Network(phase_now, error))?;
            out.clear();
        }
        let Self { watcher, timer, .. } = self;
        poll_fn(|_| {
            let mut room = watcher.shared.room.borrow_mut();
            match stream.poll_read(&mut room) {
                Poll::Ready(Ok(0)) => {
                    let end = io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection");
                    return Poll::Ready(Err(SessionEnd::Network(phase_now, end)));
                }
                Poll::Ready(Ok(count)) => {
                    let received = session.receive(&room[..count], stream.input_at(), out, events);
                    return Poll::Ready(received.map_err(SessionEnd::from));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(SessionEnd::Network(phase_now, error))),
                Poll::Pending => {}
            }
            let now = clock::now();
            match timer.poll_due(Some(session.deadline()), now) {
                Poll::Ready(()) => Poll::Ready(session.tick(now, out, events).map_err(SessionEnd::from)),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Handles an event of the session, and returns true if the session has ended normally.
    async fn handle(
        &mut self,
        event: Event,
        session: &mut Session,
        stream: &mut Stream,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<bool, SessionEnd> {
        match event {
            Event::StartTls => {
                self.start_tls(stream).await?;
                session.tls_started(clock::now(), out, events)?;
            }
            Event::Watching { idle } => {
                let interval = self.options.poll.unwrap_or(self.options.default_poll);
                self.watcher.opened((!idle).then_some(interval));
            }
            Event::Message(message) => {
                let result = read_trace(&message.content, self.options.whole);
                let deletes = self.watcher.count(&message.id, &result, message.announced, message.bytes);
                session.handled(message.uid, deletes, out);
            }
            Event::Deleted(count) => self.watcher.deleted(count),
            Event::NotDeleted(error) | Event::NotFetched(error) => {
                self.watcher.complain(phase(error.step()), &error.to_string());
            }
            Event::Done => return Ok(true),
        }
        Ok(false)
    }
}

impl Session {
    fn step(&self) -> Step {
        match self {
            Self::Imap(session) => session.step(),
            Self::Pop(session) => session.step(),
        }
    }

    fn deadline(&self) -> Duration {
        match self {
            Self::Imap(session) => session.deadline(),
            Self::Pop(session) => session.deadline(),
        }
    }

    fn receive(
        &mut self,
        input: &[u8],
        now: Duration,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), SessionError> {
        match self {
            Self::Imap(session) => session.receive(input, now, out, events),
            Self::Pop(session) => session.receive(input, now, out, events),
        }
    }

    fn tick(&mut self, now: Duration, out: &mut Vec<u8>, events: &mut Vec<Event>) -> Result<(), SessionError> {
        match self {
            Self::Imap(session) => session.tick(now, out, events),
            Self::Pop(session) => session.tick(now),
        }
    }

    fn tls_started(&mut self, now: Duration, out: &mut Vec<u8>, events: &mut Vec<Event>) -> Result<(), SessionError> {
        match self {
            Self::Imap(session) => session.tls_started(now, out, events),
            Self::Pop(session) => {
                session.tls_started(now, out);
                Ok(())
            }
        }
    }

    /// Tells the session that the message `uid` was counted. If `deletes` is set, the session deletes the message.
    fn handled(&mut self, uid: u32, deletes: bool, out: &mut Vec<u8>) {
        match self {
            Self::Imap(session) if deletes => session.delete(uid),
            Self::Imap(_) => {}
            Self::Pop(session) => session.handled(deletes, clock::now(), out),
        }
    }
}

/// Describes why the connection failed. For a certificate that is not accepted, names the options that help.
fn network_reason(error: &io::Error) -> String {
    let fault = error.get_ref().and_then(|inner| inner.downcast_ref::<HandshakeFault>());
    fault.map_or_else(|| reason(error), |fault| fault.with_remedy(&REMEDIES))
}

/// Returns the phase of SMTP under which an error in this step of IMAP or POP3 is counted.
fn phase(step: Step) -> Phase {
    match step {
        Step::Greeting => Phase::Banner,
        Step::Capability => Phase::Ehlo,
        Step::StartTls => Phase::Tls,
        Step::Login => Phase::Auth,
        Step::Open => Phase::Mail,
        Step::Watch => Phase::Data,
        Step::Fetch => Phase::Body,
        Step::Delete => Phase::Reply,
        Step::Quit => Phase::Quit,
    }
}
