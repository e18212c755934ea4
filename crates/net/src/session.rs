//! Drives a server session for its handler: read, ask, answer, write. It decides nothing.
use crate::clock;
use crate::handler::{Answer, Handler, Parting};
use crate::socket::Socket;
use crate::timers::Alarm;
use crate::worker::{Buffers, Desk};
use smtp::reply::Reply;
use smtp::server::{Event, Identity, Server};
use smtp::verdict::Verdict;
use std::future::Future;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

/// An answer that takes time.
type Later = Pin<Box<dyn Future<Output = Option<Reply>>>>;

/// A connection, its protocol state, and who answers for it.
pub(crate) struct Session<H: Handler> {
    socket: Socket,
    server: Server,
    handler: H,
    desk: Desk,
    alarm: Alarm,
    /// Read while an answer was not known yet.
    backlog: Vec<u8>,
    /// Written and not taken by the socket yet.
    unsent: Vec<u8>,
    parting: Option<Parting>,
    /// How long a peer may be silent, or leave its replies unread.
    patience: Duration,
    /// When a peer that does not read its replies is given up.
    flushed_by: Option<Duration>,
    /// The time of the last turn, until the task sleeps: what is read from the clock once is not read again.
    now: Option<Duration>,
}

impl<H: Handler> Session<H> {
    pub(crate) fn new(socket: Socket, handler: H, identity: Arc<Identity>, desk: Desk) -> Self {
        let patience = identity.limits.idle;
        let server = Server::new(identity, clock::now());
        Self {
            socket,
            server,
            handler,
            desk,
            alarm: Alarm::default(),
            backlog: Vec::new(),
            unsent: Vec::new(),
            parting: None,
            patience,
            flushed_by: None,
            now: None,
        }
    }

    /// Runs the session to its end.
    pub(crate) async fn run(mut self) {
        let outcome = self.dialogue().await;
        let parting = match outcome {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Parting::Timeout,
            Err(_) => Parting::Lost,
            Ok(parting) => parting,
        };
        self.parting = Some(parting);
    }

    async fn dialogue(&mut self) -> io::Result<Parting> {
        let now = clock::now();
        let greeting = self.handler.connect(now);
        let mut later = self.turn(|session, buffers| session.settle(greeting, now, buffers.outbox.bytes()))?;
        loop {
            if let Some(answer) = later.take() {
                let reply = answer.await;
                later = self.turn(|session, buffers| session.resume(reply.as_ref(), buffers))?;
            } else if !self.unsent.is_empty() {
                poll_fn(|_| self.poll_flush()).await?;
            } else if self.server.is_closed() {
                return Ok(if self.server.has_quit() { Parting::Quit } else { Parting::HungUp });
            } else {
                later = poll_fn(|_| self.poll_turn()).await?;
            }
        }
    }

    /// One turn with the shared buffers: `work` decides, then what it said is written.
    fn turn(&mut self, work: impl FnOnce(&mut Self, &mut Buffers) -> Option<Later>) -> io::Result<Option<Later>> {
        let desk = self.desk.clone();
        desk.lend(|buffers| {
            let later = work(self, buffers);
            self.write(buffers.outbox.bytes())?;
            Ok(later)
        })
    }

    /// Waits for bytes, then takes its turn with them.
    fn poll_turn(&mut self) -> Poll<io::Result<Option<Later>>> {
        let desk = self.desk.clone();
        desk.lend(|buffers| {
            let room = buffers.input.bytes();
            let count = match self.socket.poll_read(room) {
                Poll::Pending => return self.poll_timeout(buffers),
                Poll::Ready(outcome) => outcome?,
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            let input = &room[..count];
            let (now, out) = (clock::now(), buffers.outbox.bytes());
            self.now = Some(now);
            let later = self.digest(input, now, out);
            self.write(out)?;
            Poll::Ready(Ok(later))
        })
    }

    fn poll_timeout(&mut self, buffers: &mut Buffers) -> Poll<io::Result<Option<Later>>> {
        let now = self.now.take().unwrap_or_else(clock::now);
        ready!(self.alarm.poll_due(self.server.deadline(), now));
        let out = buffers.outbox.bytes();
        self.server.tick(clock::now(), out);
        self.write(out)?;
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Everything that `input` says, until an answer has to be waited for; what is left then is kept.
    fn digest(&mut self, mut input: &[u8], now: Duration, out: &mut Vec<u8>) -> Option<Later> {
        while let Some(event) = self.server.next_event(&mut input, now, out) {
            let asks = event.asks();
            let answer = ask(&mut self.handler, event, now);
            if asks && let Some(later) = self.settle(answer, now, out) {
                self.backlog = input.to_vec();
                return Some(later);
            }
        }
        None
    }

    /// Gives an answer to the session, or hands back the one that takes time.
    fn settle(&mut self, answer: Answer, now: Duration, out: &mut Vec<u8>) -> Option<Later> {
        match answer {
            Answer::Yes => self.server.answer(None, now, out),
            Answer::Reply(reply) => self.server.answer(Some(&reply), now, out),
            Answer::Later(later) => return Some(later),
        }
        None
    }

    /// Goes on after an answer that took time.
    fn resume(&mut self, reply: Option<&Reply>, buffers: &mut Buffers) -> Option<Later> {
        let (now, out) = (clock::now(), buffers.outbox.bytes());
        self.server.answer(reply, now, out);
        let backlog = std::mem::take(&mut self.backlog);
        self.digest(&backlog, now, out)
    }

    /// Writes what the socket takes and keeps the rest; `out` is empty afterwards.
    fn write(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let mut written = 0;
        while self.unsent.is_empty() && written < out.len() {
            match self.socket.try_write(&out[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    out.clear();
                    return Err(error);
                }
            }
        }
        self.unsent.extend_from_slice(&out[written..]);
        out.clear();
        Ok(())
    }

    /// Writes what was left over. A peer that does not read its replies is timed out like a silent one.
    fn poll_flush(&mut self) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            if self.socket.poll_writable().is_pending() {
                let now = clock::now();
                let deadline = *self.flushed_by.get_or_insert(now + self.patience);
                ready!(self.alarm.poll_due(Some(deadline), now));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            match self.socket.try_write(&self.unsent) {
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

/// Asks the handler; the answer to an event that does not ask is not used.
fn ask<H: Handler>(handler: &mut H, event: Event<'_>, now: Duration) -> Answer {
    match event {
        Event::Hello(kind, name) => {
            handler.reset(None);
            handler.hello(kind, name)
        }
        Event::Mail(mail) => handler.mail(&mail),
        Event::Recipient(path) => handler.recipient(&path),
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
        Event::Reset => {
            handler.reset(None);
            Answer::Yes
        }
        Event::Answered => Answer::Yes,
    }
}

impl<H: Handler> Drop for Session<H> {
    /// A session that is dropped before its end belongs to a server that stops: it says so (RFC 5321 §3.8).
    fn drop(&mut self) {
        if self.parting.is_none() && self.unsent.is_empty() {
            // The peer may be gone already; there is nobody left to tell.
            let _ = self.socket.try_write(Verdict::ShuttingDown.reply().wire());
        }
        self.handler.disconnect(self.parting.unwrap_or(Parting::ShuttingDown));
    }
}
