//! Drives a client session over its connection, for a caller that has many sessions. The [`MessageSource`] decides what
//! to send, and this module reads and writes.
use crate::outbox::Outbox;
use crate::server_session::handshake_timeout;
use crate::stream::Stream;
use crate::tls::Handshake;
use crate::tls_setup::ClientTls;
use crate::worker::{IoBuffers, WorkerBuffers};
use mailrun_eventloop::{Timer, clock};
use mailrun_smtp::client::{ChunkPosition, Client, Event, GaveUp, Verb, Violation, Want};
use mailrun_smtp::envelope::Envelope;
use std::future::poll_fn;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// What a session does next, as [`MessageSource::poll_next`] decides: begin a transaction, quit or wait.
#[derive(Debug)]
pub enum NextAction {
    /// Begin a transaction, to send a message with this envelope.
    Transaction(Arc<Envelope>),
    /// Send QUIT. If replies are still outstanding, the session asks the source again when they have arrived, and only
    /// then sends QUIT.
    Quit,
    /// Begin no transaction until the server has replied to the current message, and then ask the source again.
    Nothing,
}

/// Supplies the messages that a session sends. The argument `now` is the time ([`crate::clock::now`]) of the read or
/// write that led to the call.
pub trait MessageSource {
    /// Returns the next action of a session that can begin a transaction. If `early` is true, a new transaction would
    /// be pipelined, because the server has not replied to the last message yet. `Pending` leaves the session idle
    /// until its task is woken.
    fn poll_next(&mut self, cx: &mut Context<'_>, client: &Client, early: bool, now: Duration) -> Poll<NextAction>;
    /// Called when the server has answered DATA with 354. Appends the message, with dot-stuffing and the end of data.
    fn render(&mut self, outbox: &mut Outbox);
    /// Reports that all output was handed to the kernel. The argument `now` is the time after the write if the output
    /// contained a message. For commands alone, `now` is the time before the write, because such a write is too short
    /// to read the clock again.
    fn written(&mut self, now: Duration);
    /// Reports that the session is about to write this output to the server, so that the source can show the client's
    /// commands to a user. Does nothing by default.
    fn sending(&mut self, outbox: &Outbox) {
        let _ = outbox;
    }
    /// Reports a reply of the server, after the session has handled it.
    fn replied(&mut self, event: &Event<'_>, now: Duration);
    /// Returns the size of the message in bytes, which BDAT announces if the server offers CHUNKING (RFC 3030).
    fn message_bytes(&self) -> u64 {
        0
    }
    /// Appends the message for BDAT, without dot-stuffing and without the end of data. It must have as many bytes as
    /// [`MessageSource::message_bytes`] returned, because BDAT has announced this size.
    fn render_chunk(&mut self, outbox: &mut Outbox) {
        let _ = outbox;
    }
    /// Reports that the TLS handshake is complete, with the parameters that it agreed on.
    fn tls_established(&mut self, handshake: &Handshake) {
        let _ = handshake;
    }
}

/// Tells when a client begins TLS, and with which settings.
#[derive(Clone, Debug)]
pub enum ClientSecurity {
    /// The client begins TLS before the greeting (RFC 8314).
    Implicit(ClientTls),
    /// The client begins TLS after the server has accepted STARTTLS (RFC 3207).
    OnDemand(ClientTls),
}

/// Reason why a client session ended, as [`ClientSession::run`] returns it.
#[derive(Debug)]
pub enum SessionEnd {
    /// The session ended after QUIT, or because the server sent 421 or a refusal as its greeting.
    Closed,
    /// The server did not offer a required extension, or refused it, so the session sent QUIT before its first
    /// transaction.
    GaveUp(GaveUp),
    /// The connection broke while the session waited for the reply to this command.
    Lost(Option<Verb>, io::Error),
    /// The reply to this command did not arrive in time. `None` means that the session waited for no
    /// reply, for example because TLS was to begin.
    Timeout(Option<Verb>),
    /// The server violated the protocol while the session waited for the reply to this command.
    Violated(Option<Verb>, Violation),
    /// The TLS handshake failed, or was not complete in time.
    TlsFailed(io::Error),
}

enum PauseReason {
    Ended(SessionEnd),
    /// The server has accepted STARTTLS and all output is written, so the TLS handshake must begin.
    ForTls,
}

/// Drives one client session over its connection, with the messages that its [`MessageSource`] supplies.
pub struct ClientSession<'a, C: MessageSource> {
    stream: Stream,
    client: Client,
    source: &'a mut C,
    timer: &'a mut Timer,
    reply_timeout: Duration,
    worker_buffers: WorkerBuffers,
    /// Time of the last event: the end of the last read or, in an idle session, the wake-up of its task.
    now: Duration,
    /// Set if the session has read nothing from the connection since its task was woken. `now` may then be old, so the
    /// check for a time-out must read the clock.
    is_woken: bool,
    /// Set if writing the output takes noticeable time, because it contains a message or needs several writes. The
    /// session then reads the clock after the write.
    has_message: bool,
    /// Set while a message waits for the worker to write it together with the output of other sessions. The session
    /// learns the time of this write only in the worker's next turn.
    is_write_batched: bool,
    /// Number of messages that have not been handed to the kernel completely yet. If a reply accepts such a message,
    /// the server has violated the protocol, because it cannot have received the whole message.
    unwritten_messages: usize,
    unsent: Option<Box<Outbox>>,
    security: Option<ClientSecurity>,
}

impl<'a, C: MessageSource> ClientSession<'a, C> {
    /// Creates a session on a new connection. The caller must run it with [`ClientSession::run`].
    pub fn new(
        stream: impl Into<Stream>,
        client: Client,
        source: &'a mut C,
        timer: &'a mut Timer,
        reply_timeout: Duration,
        worker_buffers: WorkerBuffers,
    ) -> Self {
        let stream = stream.into();
        stream.time_writes();
        Self {
            stream,
            client,
            source,
            timer,
            reply_timeout,
            worker_buffers,
            now: clock::now(),
            is_woken: false,
            has_message: false,
            is_write_batched: false,
            unwritten_messages: 0,
            unsent: None,
            security: None,
        }
    }

    /// Sets when the session begins TLS. With `None`, which is the default, it never does.
    #[must_use]
    pub fn with_security(self, security: Option<ClientSecurity>) -> Self {
        Self { security, ..self }
    }

    /// Limits the number of bytes in each write of a long message, to imitate clients with small buffers. `None` means
    /// no limit.
    #[must_use]
    pub fn with_write_limit(mut self, limit: Option<NonZeroUsize>) -> Self {
        self.stream.limit_writes(limit);
        self
    }

    /// Runs the session until it ends, and returns the reason why it ended.
    pub async fn run(mut self) -> SessionEnd {
        if let Some(ClientSecurity::Implicit(setup)) = self.security.clone()
            && let Err(ended) = self.begin_tls(&setup).await
        {
            return ended;
        }
        loop {
            let pause = poll_fn(|cx| {
                let worker_buffers = self.worker_buffers.clone();
                worker_buffers.with(|buffers| self.poll(cx, buffers))
            });
            match (pause.await, self.security.clone()) {
                (PauseReason::Ended(ended), _) => {
                    if self.is_write_batched {
                        // Write the batch now, so that the source learns whether the message was written. If it was,
                        // the server may have received it.
                        self.stream.flush_batch();
                        self.report_batched();
                    }
                    return self.client.gave_up().map_or(ended, SessionEnd::GaveUp);
                }
                (PauseReason::ForTls, Some(ClientSecurity::OnDemand(setup))) => {
                    if let Err(ended) = self.begin_tls(&setup).await {
                        return ended;
                    }
                }
                (PauseReason::ForTls, _) => return SessionEnd::TlsFailed(io::ErrorKind::Unsupported.into()),
            }
        }
    }

    async fn begin_tls(&mut self, setup: &ClientTls) -> Result<(), SessionEnd> {
        // Implicit TLS begins while the session waits for the greeting, so the greeting's time limit applies. After
        // STARTTLS, `reply_timeout` applies.
        let latest = self.client.deadline(self.reply_timeout).unwrap_or_else(|| clock::now() + self.reply_timeout);
        let timeout = latest.saturating_sub(clock::now());
        let handshake = match self.timer.timeout_at(latest, Box::pin(self.stream.connect_tls(setup))).await {
            Some(Ok(handshake)) => handshake,
            Some(Err(error)) => return Err(SessionEnd::TlsFailed(error)),
            None => return Err(SessionEnd::TlsFailed(handshake_timeout(timeout))),
        };
        self.source.tls_established(&handshake);
        let worker_buffers = self.worker_buffers.clone();
        let written = worker_buffers.with(|buffers| {
            self.client.tls_started(clock::now(), buffers.outbox.bytes());
            self.flush(&mut buffers.outbox)
        });
        written.map(|_| ()).map_err(|error| self.lost(error))
    }

    fn poll(&mut self, cx: &mut Context<'_>, buffers: &mut IoBuffers) -> Poll<PauseReason> {
        // The worker writes the output of all its sessions together at the end of a turn. Tell the source if a message
        // of an earlier turn has been written since.
        self.report_batched();
        if self.client.wants() == Want::Transaction {
            self.now = clock::now();
        }
        self.is_woken = true;
        loop {
            if self.unsent.is_none() {
                self.advance(cx, &mut buffers.outbox);
            }
            match self.flush(&mut buffers.outbox) {
                Ok(true) => {}
                Ok(false) => return self.poll_timeout().map(|pause| self.read_rest(buffers.input.bytes(), pause)),
                Err(error) => {
                    return Poll::Ready(PauseReason::Ended(self.write_failed(buffers.input.bytes(), error)));
                }
            }
            match self.client.wants() {
                Want::Close => return Poll::Ready(PauseReason::Ended(SessionEnd::Closed)),
                Want::Tls => return Poll::Ready(PauseReason::ForTls),
                _ => {}
            }
            let room = buffers.input.bytes();
            let outcome = match self.stream.poll_read(room) {
                Poll::Pending => return self.poll_timeout(),
                Poll::Ready(outcome) => outcome,
            };
            let progress = match outcome {
                Ok(0) => Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.process_replies(&room[..count], buffers.outbox.bytes()),
                Err(error) => Err(self.lost(error)),
            };
            if let Err(ended) = progress {
                return Poll::Ready(PauseReason::Ended(ended));
            }
        }
    }

    /// Begins transactions and renders messages until the session needs input from the server.
    fn advance(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) {
        // With BDAT and several messages in transit, do not wait for replies. Render each message right after its MAIL
        // and RCPT, and begin the next transaction.
        while self.step(cx, outbox) && self.client.bursts() && self.client.wants() == Want::Chunk {}
    }

    /// Renders the message of the current transaction, and begins the next transaction if that is allowed and the
    /// source has a message. Returns true if a transaction has begun.
    fn step(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) -> bool {
        let mut early = false;
        if self.client.wants() == Want::Message {
            self.source.render(outbox);
            self.has_message = true;
            self.unwritten_messages += 1;
            self.client.message_sent(self.now);
            early = self.client.may_begin_early();
        } else if self.client.wants() == Want::Chunk {
            self.client.chunk(self.source.message_bytes(), ChunkPosition::Last, self.now, outbox.bytes());
            self.source.render_chunk(outbox);
            self.has_message = true;
            self.unwritten_messages += 1;
            early = self.client.may_hold_back(outbox.length()) && self.client.may_begin_early();
        }
        if !early && self.client.wants() != Want::Transaction {
            return false;
        }
        let now = self.now;
        match self.source.poll_next(cx, &self.client, early, now) {
            Poll::Ready(NextAction::Transaction(envelope)) => {
                self.client.begin(envelope, now, outbox.bytes());
                return true;
            }
            Poll::Ready(NextAction::Quit) if !early => self.client.quit(now, outbox.bytes()),
            Poll::Ready(NextAction::Quit | NextAction::Nothing) | Poll::Pending => {}
        }
        false
    }

    /// Writes as much of the output as the connection accepts, and keeps the rest. Returns true if nothing is left.
    fn flush(&mut self, outbox: &mut Outbox) -> io::Result<bool> {
        if self.unsent.is_none() {
            if outbox.is_empty() {
                return Ok(true);
            }
            self.source.sending(outbox);
            if outbox.write_to(&mut self.stream)? {
                self.report_written();
                return Ok(true);
            }
            self.has_message = true;
            self.unsent = Some(Box::new(std::mem::take(outbox)));
        }
        let unsent = self.unsent.as_mut().expect("set above");
        while self.stream.poll_writable().is_ready() {
            if unsent.write_to(&mut self.stream)? {
                self.unsent = None;
                self.report_written();
                return Ok(true);
            }
            self.client.progressed(clock::now());
        }
        Ok(false)
    }

    fn report_written(&mut self) {
        if !std::mem::take(&mut self.has_message) {
            self.source.written(self.now);
        } else if self.stream.is_write_batched() {
            self.is_write_batched = true;
        } else {
            self.unwritten_messages = 0;
            self.source.written(clock::now());
        }
    }

    /// Tells the source when the worker has written the batched output, so that the source can measure latency from
    /// this time. Does nothing while the socket has not accepted all of the output, or if the write has failed.
    fn report_batched(&mut self) {
        if !self.is_write_batched || self.stream.is_write_batched() || !self.stream.is_flushed() {
            return;
        }
        self.is_write_batched = false;
        if let Some(written_at) = self.stream.written_at() {
            self.unwritten_messages = 0;
            self.source.written(written_at);
        }
    }

    fn process_replies(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Result<(), SessionEnd> {
        let now = self.stream.input_at();
        self.now = now;
        self.is_woken = false;
        let has_ended = self.stream.has_ended();
        loop {
            // Servers reply in the order of the messages, so this reply is about the oldest message without a reply. If
            // this message is not completely written yet, the reply comes too early.
            let is_early = self.unwritten_messages > 0 && self.client.awaited_messages() <= self.unwritten_messages;
            let is_last = has_ended && self.client.awaits_last_reply_to_message();
            match self.client.next_event(&mut input, now, out) {
                Ok(Some(event)) if is_early && is_acceptance(&event) => {
                    return Err(SessionEnd::Violated(Some(event.to), Violation::Early(event.reply.code())));
                }
                Ok(Some(event)) if is_last && is_acceptance(&event) && self.stream.is_reset() => {
                    return Err(SessionEnd::Violated(Some(event.to), Violation::Reset(event.reply.code())));
                }
                Ok(Some(event)) => self.source.replied(&event, now),
                Ok(None) => return Ok(()),
                Err(violation) => return Err(SessionEnd::Violated(self.client.waits_for(), violation)),
            }
        }
    }

    fn lost(&self, error: io::Error) -> SessionEnd {
        SessionEnd::Lost(self.client.waits_for(), error)
    }

    /// Called when output could not be written in time. Processes the last replies before the session ends.
    fn read_rest(&mut self, input: &mut [u8], pause: PauseReason) -> PauseReason {
        match self.stream.try_read(input) {
            Ok(count) if count > 0 => {
                self.process_replies(&input[..count], &mut Vec::new()).map_or_else(PauseReason::Ended, |()| pause)
            }
            Ok(_) | Err(_) => pause,
        }
    }

    /// Reads the rest of the input after a failed write, because the server may have sent a reason before it closed,
    /// such as `552`, `421` or a TLS alert.
    fn write_failed(&mut self, input: &mut [u8], error: io::Error) -> SessionEnd {
        let outcome = match self.stream.try_read(input) {
            Ok(count) if count > 0 => self.process_replies(&input[..count], &mut Vec::new()),
            // The server has sent a TLS alert, or input that is not TLS. Report this error, because it tells the user
            // more than the failed write.
            Err(alert) if alert.kind() == io::ErrorKind::InvalidData => return self.lost(alert),
            Ok(_) | Err(_) => Ok(()),
        };
        outcome.err().unwrap_or_else(|| self.lost(error))
    }

    fn poll_timeout(&mut self) -> Poll<PauseReason> {
        if self.is_woken {
            self.now = clock::now();
        }
        ready!(self.timer.poll_due(self.client.deadline(self.reply_timeout), self.now));
        Poll::Ready(PauseReason::Ended(SessionEnd::Timeout(self.client.waits_for())))
    }
}

/// Returns true if the reply accepts a message, for all recipients or in LMTP for one of them.
pub(crate) fn is_acceptance(event: &Event<'_>) -> bool {
    matches!(event.to, Verb::Message | Verb::Delivery(_)) && event.reply.is_positive()
}

#[cfg(test)]
mod tests {
    use super::{ClientSession, MessageSource, NextAction, SessionEnd};
    use crate::{Answer, Handler, Outbox, Server, Socket, Timer, clock};
    use mailrun_smtp::client::{Chunking, Client, Event, Options, PipelineMode, Protocol, Verb, Violation};
    use mailrun_smtp::data;
    use mailrun_smtp::envelope::Envelope;
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::sync::{Arc, mpsc};
    use std::task::{Context, Poll};
    use std::time::Duration;

    const MESSAGES: usize = 20;

    #[derive(Default)]
    struct RecordingSource {
        rendered: Vec<Duration>,
        written: Vec<Duration>,
        accepted: usize,
        is_rendered: bool,
    }

    impl MessageSource for RecordingSource {
        fn poll_next(&mut self, _: &mut Context<'_>, _: &Client, _: bool, _: Duration) -> Poll<NextAction> {
            let envelope = Envelope::new("a@example.org", "", ["b@example.org"]).expect("an envelope");
            Poll::Ready(if self.rendered.len() < MESSAGES {
                NextAction::Transaction(Arc::new(envelope))
            } else {
                NextAction::Quit
            })
        }

        fn render(&mut self, outbox: &mut Outbox) {
            data::stuff(b"Subject: x\r\n\r\nx\r\n", outbox.bytes());
            outbox.bytes().extend_from_slice(data::END_OF_DATA);
            self.rendered.push(clock::now());
            self.is_rendered = true;
        }

        fn written(&mut self, now: Duration) {
            if std::mem::take(&mut self.is_rendered) {
                self.written.push(now);
            }
        }

        fn replied(&mut self, event: &Event<'_>, _: Duration) {
            let is_end = event.to == Verb::Message && event.reply.is_positive();
            self.accepted += usize::from(is_end);
            assert!(!is_end || !self.is_rendered, "a message is answered that was not said to be written");
        }
    }

    struct AcceptAll;

    impl Handler for AcceptAll {
        fn message(&mut self, _bytes: u64, _now: Duration) -> Answer {
            Answer::Yes
        }
    }

    #[test]
    fn a_message_is_written_after_it_was_rendered_however_often_the_task_is_polled() {
        let server = Server::new(|| |_peer| AcceptAll).start(([127, 0, 0, 1], 0).into()).expect("a server");
        let address = server.address();
        let work = move |worker_buffers: crate::WorkerBuffers| async move {
            let mut source = RecordingSource::default();
            let mut timer = Timer::default();
            let socket = Socket::connect(address).await.expect("connects");
            let client = Client::new("test".into(), PipelineMode::Group, clock::now());
            let reply_timeout = Duration::from_secs(10);
            let ended = {
                let talk =
                    ClientSession::new(socket, client, &mut source, &mut timer, reply_timeout, worker_buffers).run();
                let mut talk = pin!(talk);
                // Poll the session a second time before its output is written, as if a timer had woken the session.
                poll_fn(|cx| match talk.as_mut().poll(cx) {
                    Poll::Pending => talk.as_mut().poll(cx),
                    ready => ready,
                })
                .await
            };
            assert!(matches!(ended, SessionEnd::Closed), "{ended:?}");
            source
        };
        let thread = crate::worker::spawn("notary", crate::WorkerOptions::default(), work).expect("a thread");
        let notary = thread.join().expect("no panic").expect("a loop");
        assert_eq!((notary.accepted, notary.written.len()), (MESSAGES, MESSAGES));
        let pairs = notary.rendered.iter().zip(&notary.written);
        assert!(pairs.clone().all(|(rendered, written)| written >= rendered), "{:?}", pairs.collect::<Vec<_>>());
    }

    struct LargeMessage {
        bytes: usize,
        accepted: usize,
        rendered: usize,
        /// Channel that is closed after the peer has closed its connection. If set, the client waits until this channel
        /// is closed before it reads the reply to the message.
        closed: Option<mpsc::Receiver<()>>,
    }

    /// Size in bytes of a message that is larger than the buffers of a connection.
    const LARGE_BYTES: usize = 32 << 20;
    /// Size in bytes of a message that fits into the buffers of a connection, but is larger than
    /// the peer reads at once.
    const MEDIUM_BYTES: usize = 32 << 10;

    impl MessageSource for LargeMessage {
        fn poll_next(&mut self, _: &mut Context<'_>, _: &Client, _: bool, _: Duration) -> Poll<NextAction> {
            let envelope = Envelope::new("a@example.org", "", ["b@example.org"]).expect("an envelope");
            Poll::Ready(if self.rendered == 0 { NextAction::Transaction(Arc::new(envelope)) } else { NextAction::Quit })
        }

        fn render(&mut self, outbox: &mut Outbox) {
            self.render_chunk(outbox);
            outbox.bytes().extend_from_slice(data::END_OF_DATA);
        }

        fn message_bytes(&self) -> u64 {
            self.bytes as u64
        }

        fn render_chunk(&mut self, outbox: &mut Outbox) {
            self.rendered += 1;
            outbox.bytes().extend_from_slice(&b"A line of the message.........\r\n".repeat(self.bytes / 32));
        }

        fn written(&mut self, _: Duration) {
            if self.rendered > 0
                && let Some(closed) = self.closed.take()
            {
                let _ = closed.recv();
            }
        }

        fn replied(&mut self, event: &Event<'_>, _: Duration) {
            let is_end = matches!(event.to, Verb::Message | Verb::Delivery(_));
            self.accepted += usize::from(is_end && event.reply.is_positive());
        }
    }

    #[derive(Clone, Copy)]
    struct Peer {
        offer: &'static str,
        protocol: Protocol,
        reply: &'static str,
        reads_all: bool,
    }

    const PIPELINING: &str = "250-me\r\n250 PIPELINING\r\n";
    const CHUNKING: &str = "250-me\r\n250-PIPELINING\r\n250 CHUNKING\r\n";
    const ACCEPTED: &str = "250 2.0.0 taken\r\n";
    const REFUSED: &str = "552 5.3.4 too big\r\n";

    impl Peer {
        fn serve(self, listener: &std::net::TcpListener) {
            use std::io::{BufRead, BufReader, Write};
            let (mut wire, _) = listener.accept().expect("a client");
            let mut lines = BufReader::new(wire.try_clone().expect("a descriptor")).lines();
            let mut is_message = false;
            wire.write_all(b"220 hello\r\n").expect("written");
            while let Some(Ok(line)) = lines.next() {
                let answer = match line.get(..4) {
                    _ if is_message && self.reads_all && line != "." => continue,
                    _ if is_message => self.reply,
                    Some("EHLO" | "LHLO") => self.offer,
                    Some("DATA") => "354 go on\r\n",
                    Some("BDAT") => "",
                    _ => "250 2.1.0 ok\r\n",
                };
                wire.write_all(answer.as_bytes()).expect("written");
                if is_message {
                    return;
                }
                is_message = matches!(line.get(..4), Some("DATA" | "BDAT"));
            }
        }
    }

    /// Sends a message of `bytes` bytes to the peer. Returns how many replies accepted it, and how the session ended.
    /// If `waits` is set, the client reads the answer only after the peer has closed the connection.
    fn send_to(peer: Peer, bytes: usize, waits: bool) -> (usize, SessionEnd) {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let (close, closed) = mpsc::channel();
        let server = std::thread::spawn(move || {
            peer.serve(&listener);
            drop(close);
        });
        let work = move |worker_buffers: crate::WorkerBuffers| async move {
            let mut source = LargeMessage { bytes, accepted: 0, rendered: 0, closed: waits.then_some(closed) };
            let mut timer = Timer::default();
            let socket = Socket::connect(address).await.expect("connects");
            let options = Options { protocol: peer.protocol, chunking: Chunking::IfOffered, ..Options::default() };
            let client = Client::with_options("test".into(), Arc::new(options), None, clock::now());
            let timeout = Duration::from_secs(60);
            let ended = ClientSession::new(socket, client, &mut source, &mut timer, timeout, worker_buffers);
            let ended = ended.run().await;
            (source.accepted, ended)
        };
        let thread = crate::worker::spawn("early", crate::WorkerOptions::default(), work).expect("a thread");
        let outcome = thread.join().expect("no panic").expect("a loop");
        server.join().expect("no panic");
        outcome
    }

    #[test]
    fn a_reply_before_the_whole_message_was_sent_accepts_nothing() {
        for (offer, protocol, reply) in [
            (PIPELINING, Protocol::Smtp, ACCEPTED),
            (CHUNKING, Protocol::Smtp, ACCEPTED),
            (PIPELINING, Protocol::Lmtp, ACCEPTED),
            (PIPELINING, Protocol::Smtp, REFUSED),
        ] {
            let (accepted, ended) = send_to(Peer { offer, protocol, reply, reads_all: false }, LARGE_BYTES, false);
            assert_eq!(accepted, 0, "{reply} {ended:?}");
            let is_early = matches!(ended, SessionEnd::Violated(_, Violation::Early(250)));
            // A lost connection is also a correct result, because the reset may arrive before the reply.
            assert!(is_early || reply == REFUSED || matches!(ended, SessionEnd::Lost(..)), "{ended:?}");
        }
    }

    #[test]
    fn a_reply_with_a_reset_of_the_connection_accepts_nothing() {
        for (offer, protocol) in
            [(PIPELINING, Protocol::Smtp), (CHUNKING, Protocol::Smtp), (PIPELINING, Protocol::Lmtp)]
        {
            let lazy = Peer { offer, protocol, reply: ACCEPTED, reads_all: false };
            let (accepted, ended) = send_to(lazy, MEDIUM_BYTES, true);
            assert_eq!(accepted, 0, "{ended:?}");
            assert!(matches!(ended, SessionEnd::Violated(_, Violation::Reset(250))), "{ended:?}");
        }
    }

    struct LateMessage {
        closed: mpsc::Receiver<()>,
        is_rendered: bool,
        is_written: bool,
    }

    impl MessageSource for LateMessage {
        fn poll_next(&mut self, _: &mut Context<'_>, _: &Client, _: bool, _: Duration) -> Poll<NextAction> {
            let envelope = Envelope::new("a@example.org", "", ["b@example.org"]).expect("an envelope");
            Poll::Ready(NextAction::Transaction(Arc::new(envelope)))
        }

        fn render(&mut self, outbox: &mut Outbox) {
            let _ = self.closed.recv();
            outbox.bytes().extend_from_slice(data::END_OF_DATA);
            self.is_rendered = true;
        }

        fn written(&mut self, _: Duration) {
            self.is_written |= self.is_rendered;
        }

        fn replied(&mut self, _: &Event<'_>, _: Duration) {}
    }

    #[test]
    fn a_message_that_the_connection_no_longer_takes_was_not_written() {
        use std::io::{BufRead, BufReader, Write};
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("an option");
        let (close, closed) = mpsc::channel();
        let server = std::thread::spawn(move || {
            let mut lines = BufReader::new(theirs.try_clone().expect("a descriptor")).lines();
            for answer in ["220 hello\r\n", PIPELINING, "250 ok\r\n", "250 ok\r\n", "354 go on\r\n"] {
                theirs.write_all(answer.as_bytes()).expect("written");
                if !answer.starts_with("354") {
                    lines.next().expect("a command").expect("read");
                }
            }
            drop((theirs, lines));
            drop(close);
        });
        let work = move |worker_buffers: crate::WorkerBuffers| async move {
            let mut source = LateMessage { closed, is_rendered: false, is_written: false };
            let mut timer = Timer::default();
            let socket = Socket::from_accepted(ours.into()).expect("watched");
            let client = Client::new("test".into(), PipelineMode::Off, clock::now());
            let timeout = Duration::from_secs(60);
            let ended = ClientSession::new(socket, client, &mut source, &mut timer, timeout, worker_buffers);
            let ended = ended.run().await;
            (source.is_rendered, source.is_written, ended)
        };
        let thread = crate::worker::spawn("late", crate::WorkerOptions::default(), work).expect("a thread");
        let (is_rendered, is_written, ended) = thread.join().expect("no panic").expect("a loop");
        server.join().expect("no panic");
        assert!(is_rendered && !is_written && matches!(ended, SessionEnd::Lost(..)), "{is_written} {ended:?}");
    }

    #[test]
    fn a_peer_that_closes_after_the_whole_message_has_accepted_it() {
        for protocol in [Protocol::Smtp, Protocol::Lmtp] {
            let brief = Peer { offer: PIPELINING, protocol, reply: ACCEPTED, reads_all: true };
            let (accepted, ended) = send_to(brief, MEDIUM_BYTES, true);
            assert_eq!(accepted, 1, "{ended:?}");
        }
    }
}
