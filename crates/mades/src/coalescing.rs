//! A stream whose writes are gathered: the frames of one pass of the scheduler leave in one system call.
//!
//! fe2o3-amqp writes and flushes every frame by itself, so a message would cost a packet on each side. Here a write is
//! put aside and a task of the stream's own, woken by the first of them, writes all that has gathered by the time the
//! scheduler comes to it:
//!
//! ```text
//! engine ── poll_write ──▶ pending ──▶ pump (its own task) ──▶ socket
//!        ◀── poll_read ─── arrived ◀──────── one large read ── socket
//! ```
//!
//! **A write is never made to wait.** The engine is one task for both directions: if it waited for a peer that is
//! itself waiting for us to read, both would wait for ever. Whoever hands over messages waits instead
//! ([`StreamStats::writable`]), so little is pending. [`FrameValidator`] checks what is read before the engine has it, and
//! `ErrorWatch` what the engine writes: an error of the peer that we report is the last thing that is written, and no
//! more is read.
use crate::error::Error;
use crate::frame_validator::ErrorWatch;
use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

pub use crate::frame_validator::FrameValidator;

/// Limit of one read. fe2o3-amqp by itself would ask for 8 KiB.
const READ_LIMIT: usize = 64 * 1024;
/// A write of as much goes straight to the socket, a read into as much room straight from it: neither is copied.
const MIN_DIRECT_BYTES: usize = 32 * 1024;
/// Limit of pending bytes above which a task that hands over messages waits.
const PENDING_SOFT_LIMIT: usize = 128 * 1024;
/// Limit of pending bytes: a peer at which more gathers has not been reading for very long.
const PENDING_HARD_LIMIT: usize = 256 * 1024 * 1024;
/// Capacity that an emptied buffer keeps.
const MAX_IDLE_CAPACITY: usize = 1024 * 1024;
/// Limit of the time in which a stream that nobody holds any more writes what is pending.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// A stream with writes gathered and reads large.
#[derive(Debug)]
pub struct Coalescing<Io> {
    shared: Arc<SharedStream<Io>>,
}

/// Counts the traffic of a stream, and lets tasks wait for room in it.
#[derive(Clone, Debug, Default)]
pub struct StreamStats(Arc<StreamCounters>);

#[derive(Debug, Default)]
struct StreamCounters {
    pending_bytes: AtomicUsize,
    written_bytes: AtomicU64,
    writes: AtomicU64,
    read_bytes: AtomicU64,
    reads: AtomicU64,
    is_ended: AtomicUsize,
    first_bytes: AtomicU64,
    drained: Notify,
    links: Mutex<HashMap<String, LinkInfo>>,
    peer_error: OnceLock<Error>,
}

/// A link, for the text of an error.
#[derive(Debug)]
struct LinkInfo {
    queue: String,
    max_message_bytes: Option<u64>,
}

impl StreamStats {
    /// Handed over and not yet written to the socket.
    pub fn pending_bytes(&self) -> usize {
        self.0.pending_bytes.load(Relaxed)
    }

    /// Bytes written to the socket.
    pub fn written_bytes(&self) -> u64 {
        self.0.written_bytes.load(Relaxed)
    }

    /// Number of system calls that wrote them.
    pub fn writes(&self) -> u64 {
        self.0.writes.load(Relaxed)
    }

    /// Bytes read from the socket.
    pub fn read_bytes(&self) -> u64 {
        self.0.read_bytes.load(Relaxed)
    }

    /// Number of system calls that read any of them.
    pub fn reads(&self) -> u64 {
        self.0.reads.load(Relaxed)
    }

    /// Waits until little is pending, or the stream has come to its end.
    pub async fn writable(&self) {
        while self.pending_bytes() > PENDING_SOFT_LIMIT && self.0.is_ended.load(Relaxed) == 0 {
            let mut notified = std::pin::pin!(self.0.drained.notified());
            notified.as_mut().enable();
            if self.pending_bytes() <= PENDING_SOFT_LIMIT || self.0.is_ended.load(Relaxed) != 0 {
                return;
            }
            notified.await;
        }
    }

    /// Registers a link by its name on the wire: its queue, and the largest message that is accepted from there.
    pub(crate) fn register_link(&self, name: &str, queue: &str, max_message_bytes: Option<u64>) {
        let link = LinkInfo { queue: queue.to_owned(), max_message_bytes };
        self.links().insert(name.to_owned(), link);
    }

    fn links(&self) -> MutexGuard<'_, HashMap<String, LinkInfo>> {
        self.0.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer's fault, if that is why the connection is over; every task on the connection reports the same.
    pub(crate) fn peer_error_or(&self, fallback: Error) -> Error {
        self.0.peer_error.get().cloned().unwrap_or(fallback)
    }

    fn set_peer_error(&self, error: Error) {
        let _ = self.0.peer_error.set(error);
    }

    /// Records an error that we have reported to the peer as the reason why the connection is over.
    fn record_local_error(&self, local_error: &crate::frame_validator::LocalError) {
        let links = self.links();
        let link = local_error.link.as_ref().and_then(|name| links.get(name));
        let error = match link {
            Some(LinkInfo { queue, max_message_bytes: Some(limit) }) if local_error.is_size_exceeded() => {
                Error::Oversized { queue: queue.clone(), limit: *limit }
            }
            link => local_error.to_error(link.map(|link| link.queue.as_str())),
        };
        drop(links);
        self.set_peer_error(error);
    }

    /// The first bytes that the peer sent, at most 8: they show which protocol it speaks.
    pub(crate) fn first_bytes(&self) -> Vec<u8> {
        let octets = self.0.first_bytes.load(Relaxed).to_be_bytes();
        let count = (self.read_bytes() as usize).min(octets.len());
        octets[..count].to_vec()
    }

    fn set_pending(&self, bytes: usize) {
        let before = self.0.pending_bytes.swap(bytes, Relaxed);
        if before > PENDING_SOFT_LIMIT && bytes <= PENDING_SOFT_LIMIT {
            self.0.drained.notify_waiters();
        }
    }

    fn set_ended(&self) {
        self.0.is_ended.store(1, Relaxed);
        self.0.drained.notify_waiters();
    }
}

#[derive(Debug)]
struct SharedStream<Io> {
    state: Mutex<StreamState<Io>>,
    stats: StreamStats,
}

#[derive(Debug)]
struct StreamState<Io> {
    io: Io,
    pending: Vec<u8>,
    written_position: usize,
    read_buffer: Vec<u8>,
    read_position: usize,
    validator: FrameValidator,
    error_watch: ErrorWatch,
    pump: Option<Waker>,
    is_closing: bool,
    is_dropped: bool,
    /// The peer has hung up.
    is_peer_closed: bool,
    failure: Option<io::ErrorKind>,
}

impl<Io: AsyncRead + AsyncWrite + Unpin + Send + 'static> Coalescing<Io> {
    /// Around that stream. The task that writes is spawned on the runtime that this is called in; it ends with the
    /// stream.
    pub fn new(io: Io) -> (Self, StreamStats) {
        let stats = StreamStats::default();
        let state = StreamState {
            io,
            pending: Vec::new(),
            written_position: 0,
            read_buffer: Vec::new(),
            read_position: 0,
            validator: FrameValidator::default(),
            error_watch: ErrorWatch::default(),
            pump: None,
            is_closing: false,
            is_dropped: false,
            is_peer_closed: false,
            failure: None,
        };
        let shared = Arc::new(SharedStream { state: Mutex::new(state), stats: stats.clone() });
        tokio::spawn(pump(Arc::clone(&shared)));
        (Self { shared }, stats)
    }
}

/// Writes until the stream is closed or abandoned, and what is pending then for a while longer.
async fn pump<Io: AsyncWrite + Unpin>(shared: Arc<SharedStream<Io>>) {
    std::future::poll_fn(|context| shared.poll_pump(context, PumpGoal::Dropped)).await;
    // A peer that does not read keeps nothing of us longer than that.
    let rest = std::future::poll_fn(|context| shared.poll_pump(context, PumpGoal::Written));
    let _ = tokio::time::timeout(LINGER_TIMEOUT, rest).await;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PumpGoal {
    Dropped,
    Written,
}

impl<Io> SharedStream<Io> {
    fn state(&self) -> MutexGuard<'_, StreamState<Io>> {
        // Nothing that is done under the lock can panic half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Io: AsyncWrite + Unpin> SharedStream<Io> {
    fn poll_pump(&self, context: &mut Context<'_>, until: PumpGoal) -> Poll<()> {
        let mut state = self.state();
        match state.poll_drain(context, &self.stats) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => {
                state.failure = Some(error.kind());
                self.stats.set_ended();
            }
            Poll::Pending if until == PumpGoal::Written => return Poll::Pending,
            Poll::Pending => {}
        }
        let is_over = state.is_dropped || state.failure.is_some();
        if is_over || until == PumpGoal::Written {
            return Poll::Ready(());
        }
        state.pump = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<Io: AsyncWrite + Unpin> StreamState<Io> {
    fn poll_drain(&mut self, context: &mut Context<'_>, stats: &StreamStats) -> Poll<io::Result<()>> {
        while self.written_position < self.pending.len() {
            let count = ready!(Pin::new(&mut self.io).poll_write(context, &self.pending[self.written_position..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written_position += count;
            stats.0.writes.fetch_add(1, Relaxed);
            stats.0.written_bytes.fetch_add(count as u64, Relaxed);
            stats.set_pending(self.pending.len() - self.written_position);
        }
        self.pending.clear();
        self.pending.shrink_to(MAX_IDLE_CAPACITY);
        self.written_position = 0;
        // Under TLS the last record may still be with the encryption.
        ready!(Pin::new(&mut self.io).poll_flush(context))?;
        if self.is_closing {
            let _ = ready!(Pin::new(&mut self.io).poll_shutdown(context));
        }
        Poll::Ready(Ok(()))
    }

    /// Takes bytes to be written: a large piece goes straight to the socket if nothing is pending.
    fn queue_write(&mut self, context: &mut Context<'_>, octets: &[u8], stats: &StreamStats) -> io::Result<()> {
        let mut rest = octets;
        if self.pending.is_empty()
            && octets.len() >= MIN_DIRECT_BYTES
            && let Poll::Ready(count) = Pin::new(&mut self.io).poll_write(context, octets)
        {
            let count = count?;
            stats.0.writes.fetch_add(1, Relaxed);
            stats.0.written_bytes.fetch_add(count as u64, Relaxed);
            rest = &octets[count..];
        }
        if self.written_position > MAX_IDLE_CAPACITY {
            self.pending.drain(..self.written_position);
            self.written_position = 0;
        }
        if self.pending.len() + rest.len() > PENDING_HARD_LIMIT {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read"));
        }
        self.pending.extend_from_slice(rest);
        // fe2o3-amqp also reports that a peer has hung up; that is reported already.
        if !self.is_peer_closed
            && let Some(local_error) = self.error_watch.observe(octets, &self.validator)
        {
            stats.record_local_error(local_error);
        }
        stats.set_pending(self.pending.len() - self.written_position);
        Ok(())
    }
}

impl<Io: AsyncRead + Unpin> StreamState<Io> {
    /// Reads what there is to where it is wanted: the rest of a large frame.
    fn poll_read_into(
        &mut self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
        stats: &StreamStats,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(context, into))?;
        let octets = &into.filled()[before..];
        self.is_peer_closed |= octets.is_empty();
        count_read(octets, stats);
        Poll::Ready(self.check(octets, stats))
    }

    /// Reads what there is into the stream's own buffer.
    fn poll_fill(&mut self, context: &mut Context<'_>, stats: &StreamStats) -> Poll<io::Result<()>> {
        self.read_buffer.resize(READ_LIMIT, 0);
        self.read_position = READ_LIMIT;
        let mut room = ReadBuf::new(&mut self.read_buffer);
        let outcome = Pin::new(&mut self.io).poll_read(context, &mut room);
        let count = room.filled().len();
        if matches!(outcome, Poll::Ready(Ok(()))) {
            self.read_buffer.truncate(count);
            self.read_position = 0;
            self.is_peer_closed |= count == 0;
            count_read(&self.read_buffer, stats);
            let arrived = std::mem::take(&mut self.read_buffer);
            let checked = self.check(&arrived, stats);
            self.read_buffer = arrived;
            checked?;
        }
        outcome
    }

    fn check(&mut self, octets: &[u8], stats: &StreamStats) -> io::Result<()> {
        self.validator
            .check(octets)
            .inspect_err(|error| stats.set_peer_error(Error::PeerMisbehaved { why: error.to_string() }))
    }
}

fn count_read(octets: &[u8], stats: &StreamStats) {
    let before = stats.0.read_bytes.fetch_add(octets.len() as u64, Relaxed) as usize;
    stats.0.reads.fetch_add(u64::from(!octets.is_empty()), Relaxed);
    for (at, octet) in (before..8).zip(octets) {
        stats.0.first_bytes.fetch_or(u64::from(*octet) << (56 - 8 * at), Relaxed);
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Coalescing<Io> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.state();
        // The engine asks again after each write: it is one task.
        if let Some(local_error) = state.error_watch.found() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, local_error.to_string())));
        }
        if state.read_position >= state.read_buffer.len() {
            if into.remaining() >= MIN_DIRECT_BYTES {
                return state.poll_read_into(context, into, &self.shared.stats);
            }
            ready!(state.poll_fill(context, &self.shared.stats))?;
        }
        let count = into.remaining().min(state.read_buffer.len() - state.read_position);
        let from = state.read_position;
        into.put_slice(&state.read_buffer[from..from + count]);
        state.read_position += count;
        Poll::Ready(Ok(()))
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Coalescing<Io> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.shared.state();
        if let Some(kind) = state.failure {
            return Poll::Ready(Err(kind.into()));
        }
        state.queue_write(context, octets, &self.shared.stats)?;
        if let Some(pump) = state.pump.take() {
            pump.wake();
        }
        Poll::Ready(Ok(octets.len()))
    }

    /// Returns at once: the bytes will be written in this pass.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.shared.state().failure {
            Some(kind) => Poll::Ready(Err(kind.into())),
            None => Poll::Ready(Ok(())),
        }
    }

    /// Returns at once: the end is written after what is pending.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.state();
        state.is_closing = true;
        if let Some(pump) = state.pump.take() {
            pump.wake();
        }
        Poll::Ready(Ok(()))
    }
}

impl<Io> Drop for Coalescing<Io> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_dropped = true;
        self.shared.stats.set_ended();
        if let Some(pump) = state.pump.take() {
            pump.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    fn limited<F: Future<Output = ()>>(test: F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), test).await.unwrap() });
    }

    #[test]
    fn the_writes_of_a_pass_leave_together_and_the_rest_when_there_is_room() {
        limited(async {
            let (ours, mut theirs) = duplex(1024);
            let (mut stream, stats) = Coalescing::new(ours);
            for _ in 0..100 {
                stream.write_all(b"12345678").await.unwrap();
                stream.flush().await.unwrap();
            }
            assert_eq!((stats.writes(), stats.pending_bytes()), (0, 800));
            let mut octets = vec![0; 800];
            theirs.read_exact(&mut octets).await.unwrap();
            assert_eq!((stats.writes(), stats.written_bytes(), stats.pending_bytes()), (1, 800, 0));

            // More than the peer takes at once: it is not waited for, and comes whole.
            let large: Vec<u8> = (0..500_000_u32).map(|number| number as u8).collect();
            stream.write_all(&large).await.unwrap();
            assert!(stats.pending_bytes() > PENDING_SOFT_LIMIT);
            let waiting = stats.clone();
            let room = tokio::spawn(async move { waiting.writable().await });
            let mut octets = vec![0; large.len()];
            theirs.read_exact(&mut octets).await.unwrap();
            assert!(octets == large);
            room.await.unwrap();
        });
    }

    #[test]
    fn what_is_pending_is_written_after_the_stream_is_closed_and_dropped() {
        limited(async {
            let (ours, mut theirs) = duplex(64);
            let (mut stream, stats) = Coalescing::new(ours);
            stream.write_all(&[b'x'; 1000]).await.unwrap();
            stream.shutdown().await.unwrap();
            drop(stream);
            let mut octets = Vec::new();
            theirs.read_to_end(&mut octets).await.unwrap();
            assert_eq!(octets.len(), 1000);
            stats.writable().await;
        });
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error_of_a_large_write_at_once_and_of_small_ones_in_the_next_pass() {
        limited(async {
            let (ours, theirs) = duplex(64);
            let (mut stream, _) = Coalescing::new(ours);
            drop(theirs);
            let large = stream.write_all(&[b'x'; MIN_DIRECT_BYTES]).await;
            assert_eq!(large.unwrap_err().kind(), io::ErrorKind::BrokenPipe);

            let (ours, theirs) = duplex(64);
            let (mut stream, stats) = Coalescing::new(ours);
            drop(theirs);
            for _ in 0..=PENDING_SOFT_LIMIT / 1024 {
                stream.write_all(&[b'x'; 1024]).await.unwrap();
            }
            stats.writable().await;
            let small = stream.write_all(b"x").await;
            assert_eq!(small.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        });
    }

    #[test]
    fn what_is_read_is_the_same_into_little_room_and_into_much_and_frames_that_lie_are_refused_in_both() {
        limited(async {
            let (ours, mut theirs) = duplex(300_000);
            let (mut stream, stats) = Coalescing::new(ours);
            let mut octets = 200_000_u32.to_be_bytes().to_vec();
            octets.extend((4..200_000_u32).map(|number| number as u8));
            theirs.write_all(&octets).await.unwrap();
            let mut read = vec![0; octets.len()];
            let (little, much) = read.split_at_mut(10);
            stream.read_exact(little).await.unwrap();
            stream.read_exact(much).await.unwrap();
            assert!(read == octets);
            assert_eq!((stats.read_bytes(), stats.reads()), (200_000, 2));
            theirs.write_all(&[0, 0, 0, 7]).await.unwrap();
            let lie = stream.read(&mut vec![0; MIN_DIRECT_BYTES]).await.unwrap_err();
            assert_eq!(lie.kind(), io::ErrorKind::InvalidData);
        });
    }

    #[test]
    fn the_first_octets_are_kept_however_they_come() {
        limited(async {
            let (ours, mut theirs) = duplex(64);
            let (mut stream, stats) = Coalescing::new(ours);
            assert_eq!(stats.first_bytes(), b"");
            for part in [&b"AMQ"[..], b"P\x00\x01", b"\x00\x00\0\0\0\x09"] {
                theirs.write_all(part).await.unwrap();
                stream.read_exact(&mut vec![0; part.len()]).await.unwrap();
            }
            assert_eq!(stats.first_bytes(), b"AMQP\0\x01\0\0");
        });
    }
}
