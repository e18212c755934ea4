//! Drives a server session over its connection. The [`Handler`] makes all decisions, and the `smtp` crate implements
//! the protocol.
use crate::client_limits::{Admission, ClientLimit};
use crate::dialogue_log::SessionDialogue;
use crate::handler::{Answer, CloseReason, Handler, LoginOutcome, ReadLimit};
use crate::proxy_header::Proxied;
use crate::session_slot::{ClientClass, SessionSlot};
use crate::stream::Stream;
use crate::tls_setup::{ServerSecurity, ServerTls};
use crate::worker::{IoBuffers, READ_BYTES, WorkerBuffers};
use mailrun_eventloop::{Timer, clock};
use mailrun_smtp::proxy::ProxyHeader;
use mailrun_smtp::reply::Reply;
use mailrun_smtp::reply_reason::ReplyReason;
use mailrun_smtp::sasl::{NONCE_BYTES, Nonce};
use mailrun_smtp::server::{Event, Server, ServerSettings};
use mailrun_smtp::xclient::ClientAddress;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

/// Tells whether a client may connect. `Ok(None)` means that no limits apply to the client, and `Err` names the limit
/// that the client has exceeded.
pub(crate) type ClientAdmission = Result<Option<Admission>, ClientLimit>;

pub(crate) type AdmitClient = Rc<dyn Fn(IpAddr) -> ClientAdmission>;

/// Longest wait for the client to close the connection after the last reply. A client that reads
/// the reply closes at once.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes that the server reads and drops between its last reply and the client's close. 16 MiB covers
/// the buffers of both ends.
const MAX_LINGER_BYTES: usize = 16 << 20;
/// Maximum number of bytes of one read outside of a message. The limit is low, because pipelined commands that wait for
/// the answer to an earlier command are stored in memory that no budget limits.
const COMMAND_READ_BYTES: usize = 8 * 1024;

type PendingAnswer = Pin<Box<dyn Future<Output = Answer>>>;

pub(crate) struct ServerSession<H: Handler> {
    stream: Stream,
    server: Server,
    security: ServerSecurity,
    handler: H,
    worker_buffers: WorkerBuffers,
    timer: Timer,
    /// Set while the handler decides about RSET or EHLO, which end the transaction if they are accepted.
    resets: bool,
    /// Set while the handler decides about a message, or in LMTP about one of its recipients.
    decides_message: bool,
    /// Client that an XCLIENT command names, until the handler has accepted or refused the command.
    named_client: Option<ClientAddress>,
    /// Input after a command that the handler has not answered yet. Processed when the answer has arrived.
    backlog: Vec<u8>,
    unsent: Vec<u8>,
    close_reason: Option<CloseReason>,
    /// Counts the client's connection and commands against its limits. `None` if the client has no limits.
    admission: Option<Admission>,
    admit: AdmitClient,
    slot: SessionSlot,
    /// Set if the server must close the connection without waiting for the client to close it, because the handler
    /// asked for that, or because the greeting has refused the client before the client has sent anything.
    is_aborted: bool,
    /// Maximum time for which a client may send nothing, or may leave replies unread.
    idle_timeout: Duration,
    /// Time at which the server gives up on a client that does not read its replies. `None` while no reply is waiting.
    flushed_by: Option<Duration>,
    /// Time of the last read. Until the task sleeps, the check for a time-out uses this time instead of reading the
    /// clock.
    now: Option<Duration>,
    dialogue: Option<Box<SessionDialogue>>,
}

impl<H: Handler> ServerSession<H> {
    pub(crate) fn new(
        stream: Stream,
        handler: H,
        settings: Arc<ServerSettings>,
        security: ServerSecurity,
        desk: WorkerBuffers,
        admit: AdmitClient,
        slot: SessionSlot,
    ) -> Self {
        let idle_timeout = settings.limits.idle_timeout;
        let server = Server::new(settings, clock::now());
        Self {
            stream,
            server,
            security,
            handler,
            worker_buffers: desk,
            timer: Timer::default(),
            resets: false,
            decides_message: false,
            named_client: None,
            backlog: Vec::new(),
            unsent: Vec::new(),
            close_reason: None,
            admission: None,
            admit,
            slot,
            is_aborted: false,
            idle_timeout,
            flushed_by: None,
            now: None,
            dialogue: None,
        }
    }

    pub(crate) fn shown(mut self, dialogue: Option<Box<SessionDialogue>>) -> Self {
        self.dialogue = dialogue;
        self
    }

    pub(crate) fn admitted(mut self, admission: Option<Admission>) -> Self {
        self.admission = admission;
        self
    }

    pub(crate) async fn run(mut self, proxied: Proxied) {
        let outcome = match proxied {
            Proxied::No => self.serve().await,
            Proxied::Yes => match self.read_proxy_header().await {
                Ok(()) => self.serve().await,
                Err(error) => Err(error),
            },
        };
        let reason = match outcome {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => CloseReason::Timeout,
            Err(_) => CloseReason::Lost,
            Ok(parting) => parting,
        };
        self.notify_disconnect(reason);
        if reason == CloseReason::HungUp && !self.is_aborted {
            // Few sessions linger, so box the future. Otherwise, every session would reserve memory for it.
            Box::pin(self.linger()).await;
        }
    }

    fn notify_disconnect(&mut self, reason: CloseReason) {
        self.close_reason = Some(reason);
        if let Some(cause) = self.server.gave_up() {
            self.handler.gave_up(cause);
        }
        self.handler.disconnect(reason);
        if let Some(mut dialogue) = self.dialogue.take() {
            dialogue.closed(reason);
        }
    }

    /// Waits until the client has closed the connection, and drops everything that it still sends. If the server closed
    /// the socket with unread bytes, the kernel would reset the connection, and the client could lose the last reply
    /// before reading it (RFC 1122 §4.2.2.13).
    async fn linger(&mut self) {
        // If the shutdown fails, the connection is gone, and there is no client to wait for.
        if self.stream.shutdown_write().is_ok() {
            let latest = clock::now() + LINGER_TIMEOUT;
            let mut remaining = MAX_LINGER_BYTES;
            poll_fn(|_| self.poll_linger(latest, &mut remaining)).await;
        }
    }

    fn poll_linger(&mut self, latest: Duration, remaining: &mut usize) -> Poll<()> {
        let worker_buffers = self.worker_buffers.clone();
        worker_buffers.with(|buffers| {
            loop {
                match self.stream.poll_discard(buffers.input.bytes()) {
                    Poll::Ready(Ok(count @ 1..)) if count < *remaining => *remaining -= count,
                    Poll::Ready(_) => return Poll::Ready(()),
                    Poll::Pending => return self.timer.poll_due(Some(latest), clock::now()),
                }
            }
        })
    }

    async fn read_proxy_header(&mut self) -> io::Result<()> {
        let latest = clock::now() + self.idle_timeout;
        let header = self.timer.timeout_at(latest, Box::pin(self.stream.take_proxy_header())).await;
        match header.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())) {
            Ok(header) => {
                self.handler.proxy_header(&header);
                let ProxyHeader::Proxied { source, .. } = header else { return Ok(()) };
                if let Some(dialogue) = &mut self.dialogue {
                    dialogue.client_is("the proxy's client", source);
                }
                self.admit_named(source.ip()).or_else(|reply| self.refuse_client(reply))
            }
            Err(error) => {
                self.handler.proxy_header_missing(&error);
                self.show_event("no PROXY header: ", &error);
                // Close without a reply, because a peer that does not send a valid PROXY header is not a proxy.
                self.server.hang_up(None, &mut Vec::new());
                Err(error)
            }
        }
    }

    /// Counts the session against the limits of the client that a proxy has named, and no longer against the limits of
    /// the proxy itself.
    fn admit_named(&mut self, address: IpAddr) -> Result<(), &'static Reply> {
        // Release the old admission first. If the proxy names the same client again, the session would otherwise count
        // twice.
        self.admission = None;
        self.admission = (self.admit)(address).map_err(ClientLimit::reply)?;
        if self.admission.is_some() { self.leave_reserved_slots() } else { Ok(()) }
    }

    /// Refuses a client that is not exempt if all remaining sessions are reserved for exempt clients. The server could
    /// not check this when it accepted the connection, because it knew only the proxy then, which may be exempt.
    fn leave_reserved_slots(&self) -> Result<(), &'static Reply> {
        if self.slot.suits(ClientClass::Limited) { Ok(()) } else { Err(ReplyReason::TooManySessions.reply()) }
    }

    /// Sends `reply` to a client that the server does not admit, and ends the session with an error.
    fn refuse_client(&mut self, reply: &Reply) -> io::Result<()> {
        self.turn(|session, buffers| {
            session.server.hang_up(Some(reply), buffers.outbox.bytes());
            None
        })?;
        Err(io::ErrorKind::ConnectionAborted.into())
    }

    async fn serve(&mut self) -> io::Result<CloseReason> {
        if let ServerSecurity::Implicit(setup) = self.security.clone() {
            // Close the connection without a reply, because the client could not read a reply before TLS begins.
            if exceeded(self.admission.as_ref(), ClientLimit::HandshakeRate, clock::now()).is_some() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            self.begin_tls(&setup).await?;
        }
        let now = clock::now();
        let greeting = self.handler.connect(now);
        let mut later = self.turn(|session, buffers| session.apply_answer(greeting, now, buffers.outbox.bytes()))?;
        // If the greeting refuses the client, do not linger before closing. The client has sent nothing yet, so closing
        // causes no reset.
        self.is_aborted |= self.server.is_closed();
        loop {
            if let Some(answer) = later.take() {
                let answer = self.wait_for(answer).await;
                later = self.turn(|session, buffers| session.resume(answer, buffers))?;
            } else if self.has_unsent() {
                poll_fn(|_| self.poll_flush()).await?;
            } else if self.server.wants_tls() {
                match self.security.clone() {
                    ServerSecurity::Implicit(setup) | ServerSecurity::Offered(setup) => self.begin_tls(&setup).await?,
                    ServerSecurity::None => return Err(io::ErrorKind::Unsupported.into()),
                }
            } else if self.server.is_closed() {
                return Ok(if self.server.has_quit() { CloseReason::Quit } else { CloseReason::HungUp });
            } else {
                later = poll_fn(|_| self.poll_turn()).await?;
            }
        }
    }

    /// Waits for the answer of an [`Answer::Later`]. If the answer decides about a message, a server that is stopping
    /// waits for it as well, because a client that got 421 instead would send the message again. The stopping server
    /// does not wait if the client has disconnected, because such a client sends the message again anyway.
    async fn wait_for(&self, mut answer: PendingAnswer) -> Answer {
        let mut decision = self.decides_message.then(|| self.slot.begin_decision());
        poll_fn(|cx| {
            if decision.is_some() && self.stream.has_ended() {
                decision = None;
            }
            answer.as_mut().poll(cx)
        })
        .await
    }

    async fn begin_tls(&mut self, setup: &ServerTls) -> io::Result<()> {
        match self.handler.handshake() {
            Answer::HangUp(_) => return Err(io::ErrorKind::ConnectionAborted.into()),
            Answer::Reset => {
                self.stream.reset_on_close();
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Answer::Yes | Answer::Reply(_) | Answer::Later(_) | Answer::Secret(_) => {}
        }
        let latest = clock::now() + self.idle_timeout;
        let outcome = self.timer.timeout_at(latest, Box::pin(self.stream.accept_tls(setup))).await;
        match outcome.unwrap_or_else(|| Err(handshake_timeout(self.idle_timeout))) {
            Ok(handshake) => {
                self.server.tls_started(clock::now());
                self.handler.tls_established(&handshake);
                if let Some(dialogue) = &mut self.dialogue {
                    dialogue.tls_started(&handshake);
                }
                Ok(())
            }
            Err(error) => {
                self.handler.tls_failed(&error);
                self.show_event("TLS failed: ", &error);
                // Do not return `error` itself. If it is a time-out, the handler already knows of it, and would count
                // it again when the session ends.
                Err(io::ErrorKind::ConnectionAborted.into())
            }
        }
    }

    fn show_event(&mut self, event: &str, error: &io::Error) {
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.event(&format!("{event}{error}"));
        }
    }

    fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || !self.stream.is_flushed()
    }

    /// Lends the worker's shared buffers to `work`, and then writes the output of `work`.
    fn turn(
        &mut self,
        work: impl FnOnce(&mut Self, &mut IoBuffers) -> Option<PendingAnswer>,
    ) -> io::Result<Option<PendingAnswer>> {
        let worker_buffers = self.worker_buffers.clone();
        worker_buffers.with(|buffers| {
            let later = work(self, buffers);
            self.write(buffers.outbox.bytes())?;
            Ok(later)
        })
    }

    fn poll_turn(&mut self) -> Poll<io::Result<Option<PendingAnswer>>> {
        if self.slot.is_closing() {
            return Poll::Pending;
        }
        let worker_buffers = self.worker_buffers.clone();
        worker_buffers.with(|buffers| {
            let room = buffers.input.bytes();
            let Some(limit) = ready!(self.poll_read_limit(buffers.outbox.bytes())) else {
                return Poll::Ready(self.write(buffers.outbox.bytes()).map(|()| None));
            };
            let most = if self.server.is_in_message() { READ_BYTES } else { COMMAND_READ_BYTES };
            let room = &mut room[..limit.clamp(1, most)];
            let count = match self.stream.poll_read(room) {
                Poll::Pending => return self.poll_timeout(buffers),
                Poll::Ready(outcome) => outcome?,
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            let input = &room[..count];
            if let Some(dialogue) = &mut self.dialogue {
                dialogue.client(input);
            }
            let now = self.stream.input_at();
            let out = buffers.outbox.bytes();
            self.now = Some(now);
            let later = self.process_input(input, now, out);
            self.write(out)?;
            Poll::Ready(Ok(later))
        })
    }

    /// Returns how many bytes the handler accepts next, or `None` if it accepts nothing more.
    fn poll_read_limit(&mut self, out: &mut Vec<u8>) -> Poll<Option<usize>> {
        loop {
            match self.handler.read_limit() {
                ReadLimit::All => return Poll::Ready(Some(usize::MAX)),
                ReadLimit::AtMost(limit) => return Poll::Ready(Some(limit)),
                ReadLimit::NotBefore(then) => ready!(self.timer.poll_due(Some(then), clock::now())),
                ReadLimit::Close(answer) => {
                    self.end(answer, out);
                    return Poll::Ready(None);
                }
            }
        }
    }

    fn poll_timeout(&mut self, buffers: &mut IoBuffers) -> Poll<io::Result<Option<PendingAnswer>>> {
        let now = self.now.take().unwrap_or_else(clock::now);
        ready!(self.timer.poll_due(self.server.deadline(), now));
        let out = buffers.outbox.bytes();
        self.server.tick(clock::now(), out);
        self.write(out)?;
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Handles the commands in `input`. If an answer takes time, returns its future and keeps the rest of the input in
    /// `backlog`, because replies must be sent in the order of the commands.
    fn process_input(&mut self, mut input: &[u8], now: Duration, out: &mut Vec<u8>) -> Option<PendingAnswer> {
        while let Some(event) = self.server.next_event(&mut input, now, out) {
            let asks = event.asks();
            self.resets = matches!(event, Event::Hello(..) | Event::Reset);
            self.decides_message = matches!(event, Event::Message { .. } | Event::Delivery { .. });
            self.named_client = if let Event::Xclient(xclient) = &event { xclient.address() } else { None };
            let exceeded_limit = limit_of(&event).and_then(|limit| exceeded(self.admission.as_ref(), limit, now));
            if let (Event::Authenticated, Some(admission)) = (&event, &mut self.admission) {
                admission.waive_rates();
            }
            let answer = match (exceeded_limit, event) {
                (Some(reply), _) => Answer::Reply(reply.clone()),
                (None, Event::Nonce) => {
                    self.server.answer_nonce(&nonce(), now, out);
                    continue;
                }
                (None, event) => call_handler(&mut self.handler, event, now),
            };
            if asks && let Some(later) = self.apply_answer(answer, now, out) {
                self.backlog = input.to_vec();
                return Some(later);
            }
        }
        None
    }

    /// Passes an answer to the session, or returns the future if the answer takes time.
    fn apply_answer(&mut self, answer: Answer, now: Duration, out: &mut Vec<u8>) -> Option<PendingAnswer> {
        let accepts = matches!(answer, Answer::Yes) || matches!(&answer, Answer::Reply(reply) if reply.is_positive());
        if accepts && let Err(reply) = self.take_named_client() {
            self.server.answer(reply, now, out);
            return None;
        }
        match answer {
            Answer::Yes => {
                self.server.grant(now, out);
                self.accepted();
            }
            Answer::Reply(reply) => {
                self.server.answer(&reply, now, out);
                if accepts {
                    self.accepted();
                }
            }
            Answer::Later(later) => return Some(later),
            Answer::Secret(secret) if self.server.awaits_secret() => {
                self.server.answer_secret(secret.as_ref(), now, out);
            }
            Answer::Secret(_) => self.end(Answer::HangUp(None), out),
            answer @ (Answer::HangUp(_) | Answer::Reset) => self.end(answer, out),
        }
        None
    }

    /// Admits the client that an XCLIENT names, after the handler has accepted the XCLIENT. Clients without a known
    /// address have no limits, because they would all share one allowance, and a single client could use it up.
    fn take_named_client(&mut self) -> Result<(), &'static Reply> {
        match self.named_client.take() {
            Some(ClientAddress::Known(address)) => self.admit_named(address),
            Some(ClientAddress::Unknown) => {
                self.admission = None;
                self.leave_reserved_slots()
            }
            None => Ok(()),
        }
    }

    /// Applies the effects of a command that the handler has accepted. Lifts the rate limits if the client is now
    /// logged in, for example because XCLIENT says so. Calls [`Handler::reset`] if the command was RSET or EHLO,
    /// because these end the transaction.
    fn accepted(&mut self) {
        if let Some(admission) = self.admission.as_mut().filter(|_| self.server.is_authenticated()) {
            admission.waive_rates();
        }
        if std::mem::take(&mut self.resets) {
            self.handler.reset(None);
        }
    }

    /// Ends the session as the handler asked. Does not wait for the client to close the connection, because the handler
    /// simulates a failing server.
    fn end(&mut self, answer: Answer, out: &mut Vec<u8>) {
        self.is_aborted = true;
        let final_reply = match answer {
            Answer::HangUp(final_reply) => final_reply,
            Answer::Reset => {
                self.stream.reset_on_close();
                None
            }
            Answer::Yes | Answer::Reply(_) | Answer::Later(_) | Answer::Secret(_) => None,
        };
        self.server.hang_up(final_reply.as_ref(), out);
    }

    /// Applies the handler's answer for which the session waited, and then handles the commands in `backlog`, which
    /// were read before the answer arrived.
    fn resume(&mut self, answer: Answer, buffers: &mut IoBuffers) -> Option<PendingAnswer> {
        let now = clock::now();
        let out = buffers.outbox.bytes();
        if let Some(later) = self.apply_answer(answer, now, out) {
            return Some(later);
        }
        let mut backlog = std::mem::take(&mut self.backlog);
        if self.slot.is_closing() {
            // The worker is stopping, so drop further commands. Still call `process_input`, because in LMTP, it asks
            // the handler for the replies to the message's other recipients.
            backlog.clear();
        }
        self.process_input(&backlog, now, out)
    }

    fn write(&mut self, out: &[u8]) -> io::Result<()> {
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.server(out);
        }
        let mut written_bytes = 0;
        while self.unsent.is_empty() && written_bytes < out.len() {
            match self.stream.try_write(&out[written_bytes..]) {
                Ok(count) => written_bytes += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.unsent.extend_from_slice(&out[written_bytes..]);
        Ok(())
    }

    /// Writes the rest of the output. If this takes longer than `idle_timeout`, because the client does not read its
    /// replies, fails with a time-out. The same limit applies to clients that send nothing.
    fn poll_flush(&mut self) -> Poll<io::Result<()>> {
        while self.has_unsent() {
            if self.stream.poll_writable().is_pending() {
                let now = clock::now();
                let deadline = *self.flushed_by.get_or_insert(now + self.idle_timeout);
                ready!(self.timer.poll_due(Some(deadline), now));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            let written = match self.unsent.is_empty() {
                true => self.stream.flush().map(|_| 0),
                false => self.stream.try_write(&self.unsent),
            };
            match written {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        self.unsent = Vec::new();
        self.flushed_by = None;
        Poll::Ready(Ok(()))
    }
}

pub(crate) fn handshake_timeout(timeout: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("TLS: no handshake within {timeout:?}"))
}

fn limit_of(event: &Event<'_>) -> Option<ClientLimit> {
    match event {
        Event::Mail(_) => Some(ClientLimit::MessageRate),
        Event::Recipient(_) => Some(ClientLimit::RecipientRate),
        Event::StartTls => Some(ClientLimit::HandshakeRate),
        Event::Nonce => Some(ClientLimit::LoginRate),
        // Skip mechanisms that need a nonce, because `Event::Nonce` has already counted the login.
        Event::Auth(auth) if !auth.mechanism.needs_server_nonce() => Some(ClientLimit::LoginRate),
        _ => None,
    }
}

fn exceeded(admission: Option<&Admission>, limit: ClientLimit, now: Duration) -> Option<&'static Reply> {
    admission?.take(limit, now).err().map(ClientLimit::reply)
}

/// Asks the handler how to answer an event of the protocol. The caller ignores the answer to events that only report
/// something, such as `Event::Block`.
fn call_handler<H: Handler>(handler: &mut H, event: Event<'_>, now: Duration) -> Answer {
    match event {
        Event::Hello(kind, name) => handler.hello(kind, name),
        Event::Mail(mail) => handler.mail(&mail),
        Event::Recipient(recipient) => handler.recipient_with(&recipient),
        Event::Data => handler.data(),
        Event::Message { bytes } => handler.message(bytes, now),
        Event::Verify(who) => handler.verify(who),
        Event::Block(block) => {
            handler.block(block);
            Answer::Yes
        }
        Event::Discarded(verdict) => {
            handler.reset(Some(verdict));
            Answer::Yes
        }
        Event::Reset => handler.rset(),
        Event::Noop => handler.noop(),
        Event::Quit => handler.quit(),
        Event::Delivery { recipient } => handler.delivery(recipient, now),
        Event::StartTls => handler.start_tls(),
        Event::Auth(auth) if auth.is_lookup() => handler.look_up(&auth),
        Event::Auth(auth) => handler.login(&auth),
        Event::Proof(auth) => handler.proof(&auth),
        Event::Xclient(xclient) => handler.xclient(&xclient),
        Event::Authenticated => {
            handler.login_ended(LoginOutcome::Succeeded);
            Answer::Yes
        }
        Event::NotAuthenticated => {
            handler.login_ended(LoginOutcome::Failed);
            Answer::Yes
        }
        Event::Nonce | Event::Answered => Answer::Yes,
    }
}

impl<H: Handler> Drop for ServerSession<H> {
    /// If the session has not ended, sends 421 (RFC 5321 §3.8), because only a stopping server drops such a session.
    fn drop(&mut self) {
        if self.close_reason.is_some() {
            return;
        }
        if !self.has_unsent() {
            // Ignore an error, because if the client is gone, nobody would read the reply.
            let _ = self.stream.try_write(ReplyReason::ShuttingDown.reply().wire());
            if let Some(dialogue) = &mut self.dialogue {
                dialogue.server(ReplyReason::ShuttingDown.reply().wire());
            }
        }
        self.handler.disconnect(CloseReason::ShuttingDown);
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.closed(CloseReason::ShuttingDown);
        }
    }
}

/// Creates a nonce for an AUTH exchange from the kernel's random numbers.
pub fn nonce() -> Nonce {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).expect("the kernel has random octets once it has booted");
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session_slot::{SessionSlots, WorkerSessions};
    use mailrun_eventloop::Socket;
    use mailrun_smtp::command::Mail;
    use mailrun_smtp::limits::Limits;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    struct Undecided {
        decides: bool,
        longest_block: usize,
        has_message: bool,
    }

    impl Handler for Undecided {
        fn mail(&mut self, _mail: &Mail<'_>) -> Answer {
            if self.decides { Answer::Yes } else { Answer::later(std::future::pending()) }
        }

        fn block(&mut self, block: &[u8]) {
            self.longest_block = self.longest_block.max(block.len());
        }

        fn message(&mut self, _bytes: u64, _now: Duration) -> Answer {
            self.has_message = true;
            Answer::Yes
        }
    }

    fn session(decides: bool, input: &str, worker_buffers: WorkerBuffers) -> (ServerSession<Undecided>, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connects");
        let (stream, _) = listener.accept().expect("a client");
        stream.set_nonblocking(true).expect("a socket");
        // This write cannot block, because the input fits into the buffers of the connection.
        client.write_all(input.as_bytes()).expect("written");
        let socket = Socket::from_accepted(stream.into()).expect("watched");
        let handler = Undecided { decides, longest_block: 0, has_message: false };
        let settings = Arc::new(ServerSettings::new("test", Limits::default()));
        let slots = Arc::new(SessionSlots::new(1));
        let slot = SessionSlot::acquire(&slots, &Rc::new(WorkerSessions::default()), ClientClass::Exempt);
        let admit: AdmitClient = Rc::new(|_| Ok(None));
        let mut session = ServerSession::new(
            socket.into(),
            handler,
            settings,
            ServerSecurity::None,
            worker_buffers,
            admit,
            slot.expect("a slot"),
        );
        session.server.grant(clock::now(), &mut Vec::new());
        (session, client)
    }

    #[test]
    fn input_behind_a_pending_answer_is_short_and_messages_are_read_in_long_blocks() {
        crate::worker::run(|worker_buffers| async move {
            let commands = format!("EHLO a\r\nMAIL FROM:<a@b>\r\n{}", "NOOP\r\n".repeat(10_000));
            let (mut waiting, _client) = session(false, &commands, worker_buffers.clone());
            let answer = poll_fn(|_| waiting.poll_turn()).await.expect("connected");
            assert!(answer.is_some());
            assert!((1..=COMMAND_READ_BYTES).contains(&waiting.backlog.len()), "{}", waiting.backlog.len());
            let envelope = "EHLO a\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n";
            let message = format!("{envelope}{}.\r\n", "0123456789abcdef\r\n".repeat(3_000));
            let (mut reading, _client) = session(true, &message, worker_buffers);
            while !reading.handler.has_message {
                poll_fn(|_| reading.poll_turn()).await.expect("connected");
            }
            assert!(reading.handler.longest_block > COMMAND_READ_BYTES, "{}", reading.handler.longest_block);
        })
        .expect("a loop");
    }
}
