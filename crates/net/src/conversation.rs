//! Drives a client session for a caller that has many of them: writes, reads, reports. It decides nothing.
use crate::clock;
use crate::outbox::Outbox;
use crate::session::no_handshake;
use crate::stream::Stream;
use crate::timers::Alarm;
use crate::tls::Handshake;
use crate::tls_setup::ClientTls;
use crate::worker::{Buffers, Desk};
use smtp::client::{Client, Event, GaveUp, Part, Verb, Violation, Want};
use smtp::envelope::Envelope;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Output of this size is written at once and not held back for another message, so that the peer can begin.
const BURST_BYTES: usize = 16 * 1024;

/// Requests of a caller to a session that is free.
#[derive(Debug)]
pub enum Next {
    /// Send a message with this envelope.
    Transaction(Arc<Envelope>),
    /// Send QUIT.
    Quit,
}

/// A source of messages. `now` is [`crate::clock::now`] at the read or write in question.
pub trait Caller {
    /// The session is free, or, if `early`, will be when the message just rendered is answered. `Pending` leaves it
    /// idle until the task is woken.
    fn poll_next(&mut self, cx: &mut Context<'_>, client: &Client, early: bool, now: Duration) -> Poll<Next>;
    /// The peer waits for the message: its bytes, dot-stuffed, and the end of data.
    fn render(&mut self, outbox: &mut Outbox);
    /// All output has been handed to the kernel. `now` was read after that if the output held a message, and before if
    /// it held only commands: their time is too short to be worth reading the clock.
    fn written(&mut self, now: Duration);
    /// A reply came in.
    fn replied(&mut self, event: &Event<'_>, now: Duration);
    /// Length of the message, for a peer that takes it in a chunk (RFC 3030).
    fn message_bytes(&self) -> u64 {
        0
    }
    /// Renders the message as it is, not dot-stuffed and without end of data: as many bytes as
    /// [`Caller::message_bytes`] returned.
    fn render_chunk(&mut self, outbox: &mut Outbox) {
        let _ = outbox;
    }
    /// TLS has begun.
    fn encrypted(&mut self, handshake: &Handshake) {
        let _ = handshake;
    }
}

/// The time at which TLS begins.
#[derive(Clone, Debug)]
pub enum ClientSecurity {
    /// Before the greeting (RFC 8314).
    Implicit(ClientTls),
    /// On the session's request: STARTTLS (RFC 3207).
    OnDemand(ClientTls),
}

/// Reasons why a conversation ended.
#[derive(Debug)]
pub enum Ended {
    /// After QUIT, or because the peer said 421 or refused to greet.
    Closed,
    /// The peer lacks, or refused, an extension that is required: the session sent QUIT before it sent anything else.
    GaveUp(GaveUp),
    /// The connection broke while this reply was awaited.
    Lost(Option<Verb>, io::Error),
    /// This reply did not come in time.
    Timeout(Option<Verb>),
    /// The peer does not speak SMTP.
    Violated(Option<Verb>, Violation),
    /// TLS could not be started.
    NotEncrypted(io::Error),
}

/// Reasons why a conversation pauses.
enum Pause {
    Over(Ended),
    /// All is written, and TLS is to begin.
    ForTls,
}

/// A connection and its protocol state.
pub struct Conversation<'a, C: Caller> {
    stream: Stream,
    client: Client,
    caller: &'a mut C,
    alarm: &'a mut Alarm,
    patience: Duration,
    desk: Desk,
    /// Time of this turn: of the last read, or of the last wake-up.
    now: Duration,
    /// Nothing has been read since the task was woken, so `now` may be long ago.
    is_woken: bool,
    /// The output holds a message, or takes more than one write: the clock is read when it has been written.
    has_message: bool,
    /// A message waits to be written with the others of the turn. The time of its write is known at the next turn.
    is_gathered: bool,
    /// Output that the connection has not taken yet.
    unsent: Option<Box<Outbox>>,
    security: Option<ClientSecurity>,
}

impl<'a, C: Caller> Conversation<'a, C> {
    /// Creates a conversation on a connection that has just been made.
    pub fn new(
        stream: impl Into<Stream>,
        client: Client,
        caller: &'a mut C,
        alarm: &'a mut Alarm,
        patience: Duration,
        desk: Desk,
    ) -> Self {
        let stream = stream.into();
        stream.time_writes();
        Self {
            stream,
            client,
            caller,
            alarm,
            patience,
            desk,
            now: clock::now(),
            is_woken: false,
            has_message: false,
            is_gathered: false,
            unsent: None,
            security: None,
        }
    }

    /// Sets TLS for it.
    #[must_use]
    pub fn secured(self, security: Option<ClientSecurity>) -> Self {
        Self { security, ..self }
    }

    /// Runs it until it ends.
    pub async fn run(mut self) -> Ended {
        if let Some(ClientSecurity::Implicit(setup)) = self.security.clone()
            && let Err(ended) = self.begin_tls(&setup).await
        {
            return ended;
        }
        loop {
            let pause = poll_fn(|cx| {
                let desk = self.desk.clone();
                desk.lend(|buffers| self.poll(cx, buffers))
            });
            match (pause.await, self.security.clone()) {
                (Pause::Over(ended), _) => {
                    if std::mem::take(&mut self.is_gathered) {
                        self.caller.written(clock::now());
                    }
                    return self.client.gave_up().map_or(ended, Ended::GaveUp);
                }
                (Pause::ForTls, Some(ClientSecurity::OnDemand(setup))) => {
                    if let Err(ended) = self.begin_tls(&setup).await {
                        return ended;
                    }
                }
                (Pause::ForTls, _) => return Ended::NotEncrypted(io::ErrorKind::Unsupported.into()),
            }
        }
    }

    async fn begin_tls(&mut self, setup: &ClientTls) -> Result<(), Ended> {
        let latest = clock::now() + self.patience;
        let handshake = match self.alarm.limit(latest, Box::pin(self.stream.connect_tls(setup))).await {
            Some(Ok(handshake)) => handshake,
            Some(Err(error)) => return Err(Ended::NotEncrypted(error)),
            None => return Err(Ended::NotEncrypted(no_handshake(self.patience))),
        };
        self.caller.encrypted(&handshake);
        let desk = self.desk.clone();
        desk.lend(|buffers| self.client.tls_started(clock::now(), buffers.outbox.bytes()));
        self.write_now(&desk).map_err(|error| self.lost(error))
    }

    /// Writes the content of the shared outbox to the connection before another session has its turn.
    fn write_now(&mut self, desk: &Desk) -> io::Result<()> {
        desk.lend(|buffers| self.flush(&mut buffers.outbox)).map(|_| ())
    }

    fn poll(&mut self, cx: &mut Context<'_>, buffers: &mut Buffers) -> Poll<Pause> {
        // If the task is polled twice in one turn, for example by a timer, the output has not been written yet.
        if self.is_gathered && !self.stream.is_gathered() {
            self.is_gathered = false;
            self.caller.written(self.stream.written_at());
        }
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
                Ok(false) => return self.poll_timeout(),
                Err(error) => {
                    // The worker's next turn probably belongs to another session, which must not send the rest of this
                    // output.
                    buffers.outbox.clear();
                    return Poll::Ready(Pause::Over(self.cut_off(buffers.input.bytes(), error)));
                }
            }
            match self.client.wants() {
                Want::Close => return Poll::Ready(Pause::Over(Ended::Closed)),
                Want::Tls => return Poll::Ready(Pause::ForTls),
                _ => {}
            }
            let room = buffers.input.bytes();
            let outcome = match self.stream.poll_read(room) {
                Poll::Pending => return self.poll_timeout(),
                Poll::Ready(outcome) => outcome,
            };
            let taken = match outcome {
                Ok(0) => Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.take(&room[..count], buffers.outbox.bytes()),
                Err(error) => Err(self.lost(error)),
            };
            if let Err(ended) = taken {
                buffers.outbox.clear();
                return Poll::Ready(Pause::Over(ended));
            }
        }
    }

    /// Does what the session wants, as far as possible without the peer.
    fn advance(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) {
        // If the session sends in bursts, a message that was begun is written at once, and the next one behind it.
        while self.step(cx, outbox) && self.client.bursts() && self.client.wants() == Want::Chunk {}
    }

    /// Writes the message that is due, and begins the next one if there is any. Returns whether it began one.
    fn step(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) -> bool {
        let mut early = false;
        if self.client.wants() == Want::Message {
            self.caller.render(outbox);
            self.has_message = true;
            self.client.message_sent(self.now);
            early = self.client.may_begin_early();
        } else if self.client.wants() == Want::Chunk {
            self.client.chunk(self.caller.message_bytes(), Part::Last, self.now, outbox.bytes());
            self.caller.render_chunk(outbox);
            self.has_message = true;
            let has_room = !self.client.bursts() || outbox.length() < BURST_BYTES;
            early = has_room && self.client.may_begin_early();
        }
        if !early && self.client.wants() != Want::Transaction {
            return false;
        }
        let now = self.now;
        match self.caller.poll_next(cx, &self.client, early, now) {
            Poll::Ready(Next::Transaction(envelope)) => {
                self.client.begin(envelope, now, outbox.bytes());
                return true;
            }
            Poll::Ready(Next::Quit) if !early => self.client.quit(now, outbox.bytes()),
            Poll::Ready(Next::Quit) | Poll::Pending => {}
        }
        false
    }

    /// Writes the output; true once nothing is left to write.
    fn flush(&mut self, outbox: &mut Outbox) -> io::Result<bool> {
        if self.unsent.is_none() {
            if outbox.is_empty() {
                return Ok(true);
            }
            if outbox.write_to(&mut self.stream)? {
                self.written();
                return Ok(true);
            }
            self.has_message = true;
            self.unsent = Some(Box::new(std::mem::take(outbox)));
        }
        let unsent = self.unsent.as_mut().expect("set above");
        while self.stream.poll_writable().is_ready() {
            if unsent.write_to(&mut self.stream)? {
                self.unsent = None;
                self.written();
                return Ok(true);
            }
            self.client.progressed(clock::now());
        }
        Ok(false)
    }

    fn written(&mut self) {
        if !std::mem::take(&mut self.has_message) {
            self.caller.written(self.now);
        } else if self.stream.is_gathered() {
            self.is_gathered = true;
        } else {
            self.caller.written(clock::now());
        }
    }

    /// Handles every reply in `input`.
    fn take(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Result<(), Ended> {
        let now = self.stream.input_at();
        self.now = now;
        self.is_woken = false;
        loop {
            let waited_for = self.client.waits_for();
            match self.client.next_event(&mut input, now, out) {
                Ok(Some(event)) => self.caller.replied(&event, now),
                Ok(None) => return Ok(()),
                Err(violation) => return Err(Ended::Violated(waited_for, violation)),
            }
        }
    }

    fn lost(&self, error: io::Error) -> Ended {
        Ended::Lost(self.client.waits_for(), error)
    }

    /// Handles a failed write. The peer may have sent a reason before it closed: `552`, `421`, or a TLS alert.
    fn cut_off(&mut self, input: &mut [u8], error: io::Error) -> Ended {
        let taken = match self.stream.try_read(input) {
            Ok(count) if count > 0 => self.take(&input[..count], &mut Vec::new()),
            // Under TLS, the input is an alert, or no record. It says more than the broken pipe.
            Err(alert) if alert.kind() == io::ErrorKind::InvalidData => return self.lost(alert),
            Ok(_) | Err(_) => Ok(()),
        };
        taken.err().unwrap_or_else(|| self.lost(error))
    }

    fn poll_timeout(&mut self) -> Poll<Pause> {
        if self.is_woken {
            self.now = clock::now();
        }
        ready!(self.alarm.poll_due(self.client.deadline(self.patience), self.now));
        Poll::Ready(Pause::Over(Ended::Timeout(self.client.waits_for())))
    }
}

#[cfg(test)]
mod tests {
    use super::{Caller, Conversation, Ended, Next};
    use crate::{Alarm, Handler, Outbox, Server, Socket, clock};
    use smtp::client::{Client, Event, Pipelining, Verb};
    use smtp::data;
    use smtp::envelope::Envelope;
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};
    use std::time::Duration;

    const MESSAGES: usize = 20;

    /// Sends messages one after the other, and notes when each was rendered and when it was reported as written.
    #[derive(Default)]
    struct Notary {
        rendered: Vec<Duration>,
        written: Vec<Duration>,
        accepted: usize,
        is_rendered: bool,
    }

    impl Caller for Notary {
        fn poll_next(&mut self, _: &mut Context<'_>, _: &Client, _: bool, _: Duration) -> Poll<Next> {
            let envelope = Envelope::new("a@example.org", "", ["b@example.org"]).expect("an envelope");
            Poll::Ready(if self.rendered.len() < MESSAGES { Next::Transaction(Arc::new(envelope)) } else { Next::Quit })
        }

        fn render(&mut self, outbox: &mut Outbox) {
            data::stuff(b"Subject: x\r\n\r\nx\r\n", outbox.bytes());
            outbox.bytes().extend_from_slice(data::END);
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

    struct Taker;

    impl Handler for Taker {}

    #[test]
    fn a_message_is_written_after_it_was_rendered_however_often_the_task_is_polled() {
        let server = Server::new(|| |_peer| Taker).start(([127, 0, 0, 1], 0).into()).expect("a server");
        let address = server.address();
        let work = move |desk: crate::Desk| async move {
            let mut notary = Notary::default();
            let mut alarm = Alarm::default();
            let socket = Socket::connect(address).await.expect("connects");
            let client = Client::new("test".into(), Pipelining::Group, clock::now());
            let patience = Duration::from_secs(10);
            let ended = {
                let talk = Conversation::new(socket, client, &mut notary, &mut alarm, patience, desk).run();
                let mut talk = pin!(talk);
                // A timer or another task may wake a session in the turn in which it wrote: then it is polled again
                // before its output is written.
                poll_fn(|cx| match talk.as_mut().poll(cx) {
                    Poll::Pending => talk.as_mut().poll(cx),
                    ready => ready,
                })
                .await
            };
            assert!(matches!(ended, Ended::Closed), "{ended:?}");
            notary
        };
        let thread = crate::worker::spawn("notary", crate::Files::Shared, work).expect("a thread");
        let notary = thread.join().expect("no panic").expect("a loop");
        assert_eq!((notary.accepted, notary.written.len()), (MESSAGES, MESSAGES));
        let pairs = notary.rendered.iter().zip(&notary.written);
        assert!(pairs.clone().all(|(rendered, written)| written >= rendered), "{:?}", pairs.collect::<Vec<_>>());
    }
}
