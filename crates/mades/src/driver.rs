//! The driver of a client's connection: reads and writes its stream, and keeps its times. It decides nothing.
//!
//! In one pass it writes what has gathered, and reads what is there. What was read makes tasks ready to run, and what they
//! have to say is written in the next pass, in one system call. A write is never waited for: the driver reads meanwhile.
use crate::client_state::{AmqpClientState, SharedClient};
use crate::error::ConnectionFailure;
use bytes::{Buf, BytesMut};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Sleep};

/// Minimum of bytes that a read asks for.
const MIN_READ_BYTES: usize = 64 << 10;
/// Reads of one pass: other tasks have their turn after them.
const MAX_READS: usize = 16;
/// Pieces that one write takes.
const MAX_SLICES: usize = 64;
/// Bytes that wait to be written from which on nothing is read: a peer that does not read is not answered.
const READ_PAUSE_BYTES: usize = 4 << 20;
/// Limit of the time in which a connection that is over, or that nobody holds any more, writes what is left.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);
/// Least time between two looks at what is due.
const MIN_TIMER_DELAY: Duration = Duration::from_millis(1);

/// Drives a connection until it is over and its last bytes are written.
pub(crate) async fn drive<Io: AsyncRead + AsyncWrite + Unpin>(
    client: Arc<SharedClient>,
    io: Io,
    idle_timeout: Duration,
) {
    let mut driver = ConnectionDriver::new(client, io, idle_timeout);
    std::future::poll_fn(|context| driver.poll(context)).await;
    // A peer that is gone need not hear of the end.
    let shutdown = std::future::poll_fn(|context| Pin::new(&mut driver.io).poll_shutdown(context));
    let _ = tokio::time::timeout(LINGER_TIMEOUT, shutdown).await;
}

struct ConnectionDriver<Io> {
    client: Arc<SharedClient>,
    io: Io,
    input: BytesMut,
    idle_timeout: Duration,
    read_at: Instant,
    wrote_at: Instant,
    /// Written to the stream, which may keep it back until it is flushed: TLS does.
    is_flushed: bool,
    timer: Pin<Box<Sleep>>,
    /// Interval in which the peer wants to hear something; none before the connection is open.
    heartbeat_interval: Option<Duration>,
    linger_deadline: Option<Instant>,
}

impl<Io> Drop for ConnectionDriver<Io> {
    fn drop(&mut self) {
        self.client.abandon();
    }
}

impl<Io: AsyncRead + AsyncWrite + Unpin> ConnectionDriver<Io> {
    fn new(client: Arc<SharedClient>, io: Io, idle_timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            client,
            io,
            input: BytesMut::with_capacity(MIN_READ_BYTES),
            idle_timeout,
            read_at: now,
            wrote_at: now,
            is_flushed: true,
            timer: Box::pin(tokio::time::sleep_until(now)),
            heartbeat_interval: None,
            linger_deadline: None,
        }
    }

    /// One pass; ready when all is over.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let client = Arc::clone(&self.client);
        let mut state = client.state();
        state.set_driver(context);
        state.prepare_output();
        let written = self.write(&mut state, context);
        if let Err(error) = written {
            client.end(&mut state, &ConnectionFailure::Io(error));
            return Poll::Ready(());
        }
        state.wake_senders();
        if !state.is_over() {
            self.read(&mut state, context);
        }
        self.keep_times(&mut state, context)
    }

    /// Writes until all is written, or the stream takes no more.
    fn write(&mut self, state: &mut AmqpClientState, context: &mut Context<'_>) -> io::Result<()> {
        let output = state.amqp().output();
        while output.has_remaining() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let filled = output.chunks_vectored(&mut slices);
            match Pin::new(&mut self.io).poll_write_vectored(context, &slices[..filled]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    output.advance(count);
                    self.client.stats.count_write(count);
                    self.wrote_at = Instant::now();
                    self.is_flushed = false;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(()),
            }
        }
        if !self.is_flushed
            && let Poll::Ready(flushed) = Pin::new(&mut self.io).poll_flush(context)
        {
            flushed?;
            self.is_flushed = true;
        }
        Ok(())
    }

    /// Reads what is there, and lets the connection handle it.
    fn read(&mut self, state: &mut AmqpClientState, context: &mut Context<'_>) {
        for _ in 0..MAX_READS {
            if state.amqp().output().remaining() >= READ_PAUSE_BYTES {
                return;
            }
            match self.poll_read(state, context) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => {
                    self.read_at = Instant::now();
                    self.client.process(state, &mut self.input);
                    // Whatever there is to answer is written in the next pass.
                    context.waker().wake_by_ref();
                }
                Poll::Ready(Err(error)) => self.client.end(state, &ConnectionFailure::Io(error)),
            }
            if state.is_over() {
                context.waker().wake_by_ref();
                return;
            }
        }
        context.waker().wake_by_ref();
    }

    fn poll_read(&mut self, state: &mut AmqpClientState, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.reserve(MIN_READ_BYTES);
        let before = self.input.len();
        let count = std::task::ready!(std::pin::pin!(self.io.read_buf(&mut self.input)).poll(context))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        state.keep_first_bytes(&self.input[before..]);
        self.client.stats.count_read(count);
        Poll::Ready(Ok(()))
    }

    /// Sends a heartbeat when one is due; ends the connection when nothing was heard for too long; ends the driver when
    /// the connection is over and its last bytes are written, or cannot be.
    fn keep_times(&mut self, state: &mut AmqpClientState, context: &mut Context<'_>) -> Poll<()> {
        if state.is_over() && !state.amqp().output().has_remaining() && self.is_flushed {
            return Poll::Ready(());
        }
        if (state.is_over() || state.is_closing()) && self.linger_deadline.is_none() {
            let deadline = Instant::now() + LINGER_TIMEOUT;
            self.linger_deadline = Some(deadline);
            self.timer.as_mut().reset(deadline);
        }
        if self.heartbeat_interval.is_none() && state.amqp().is_open() {
            // Twice within the peer's limit: one of them may be late.
            let limit = state.amqp().peer_idle_timeout_ms().map(|limit| Duration::from_millis(u64::from(limit.max(2))));
            self.heartbeat_interval = Some(limit.map_or(self.idle_timeout, |limit| limit / 2));
            self.timer.as_mut().reset(Instant::now());
        }
        while self.timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            if self.linger_deadline.is_some_and(|deadline| deadline <= now) {
                return Poll::Ready(());
            }
            let next = self.on_timer(state, now);
            self.timer.as_mut().reset(self.linger_deadline.map_or(next, |deadline| deadline.min(next)));
            // What is due is written in the next pass.
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Does what is due; returns the next time at which something may be.
    fn on_timer(&mut self, state: &mut AmqpClientState, now: Instant) -> Instant {
        let silent_at = self.read_at + self.idle_timeout;
        if silent_at <= now && !state.is_over() {
            state.amqp().time_out_silence();
            self.client.end(state, &ConnectionFailure::Silent);
        }
        let mut next = silent_at;
        if let Some(interval) = self.heartbeat_interval {
            if self.wrote_at + interval <= now {
                state.amqp().send_heartbeat();
                self.wrote_at = now;
            }
            next = next.min(self.wrote_at + interval);
        }
        next.max(now + MIN_TIMER_DELAY)
    }
}
