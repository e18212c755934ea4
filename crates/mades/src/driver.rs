//! Drives a client's connection: reads and writes the stream, and watches the deadlines of the connection.
//!
//! In each pass, the driver writes the output that has gathered and reads the available input. The input wakes tasks,
//! and their output is written in the next pass with one system call. If the socket takes no more output, the driver
//! still reads input.
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

const MIN_READ_BYTES: usize = 64 << 10;
/// Maximum number of reads in a pass, so that other tasks get a turn.
const MAX_READS: usize = 16;
const MAX_SLICES: usize = 64;
/// Reading pauses while more bytes than this wait to be written, so that a peer that sends but does
/// not read cannot use up the memory.
const READ_PAUSE_BYTES: usize = 4 << 20;
/// Time for writing the rest of the output after the connection has ended or the client has begun to close it.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_TIMER_DELAY: Duration = Duration::from_millis(1);

pub(crate) async fn drive<Io: AsyncRead + AsyncWrite + Unpin>(
    client: Arc<SharedClient>,
    io: Io,
    idle_timeout: Duration,
) {
    let mut driver = ConnectionDriver::new(client, io, idle_timeout);
    std::future::poll_fn(|context| driver.poll(context)).await;
    // Ignore an error of the shutdown, because the peer may already be gone.
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
    /// Set if the stream has passed all written bytes to the socket. TLS may keep bytes back until it is flushed.
    is_flushed: bool,
    timer: Pin<Box<Sleep>>,
    /// Interval at which heartbeats are sent, or `None` until the connection is open, because the interval depends on
    /// the peer's idle timeout.
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

    /// Makes one pass of writing and reading. Returns `Ready` when the connection has ended, and its output is flushed
    /// or can no longer be written.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let client = Arc::clone(&self.client);
        let mut state = client.state();
        state.set_driver(context);
        state.prepare_output();
        let outcome = self.write(&mut state, context);
        if let Err(error) = outcome {
            client.end(&mut state, &ConnectionFailure::Io(error));
            return Poll::Ready(());
        }
        state.wake_senders();
        if !state.is_over() {
            self.read(&mut state, context);
        }
        self.keep_times(&mut state, context)
    }

    fn write(&mut self, state: &mut AmqpClientState, context: &mut Context<'_>) -> io::Result<()> {
        let output = state.amqp().output();
        while output.has_remaining() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let filled = output.chunks_vectored(&mut slices);
            match Pin::new(&mut self.io).poll_write_vectored(context, &slices[..filled]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    output.advance(count);
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
                    // Wake this task, so that its next `poll` writes the answers to the received input.
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
        Poll::Ready(Ok(()))
    }

    /// Sends a heartbeat when one is due, and ends the connection when the peer has been silent for too long. Returns
    /// `Ready` when the connection has ended and its output is written, or when the time for writing it has passed.
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
            // Send a heartbeat after half of the peer's idle timeout, because a heartbeat may be late. Treat a timeout
            // below 2 ms as 2 ms, so that the interval is at least 1 ms.
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
            // Wake this task, so that its next `poll` writes what `on_timer` has added, for example a heartbeat.
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Handles the deadlines that have passed, and returns the next deadline.
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
