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
//! **A write is never made to wait.** The engine is one task for both directions: if it waited for a peer that is itself
//! waiting for us to read, both would wait for ever. Whoever hands over messages waits instead ([`Gauge::room`]), so what
//! is pending stays small. [`Guard`] looks at what is read before the engine does, and `Plaints` at what the engine says: a
//! complaint of ours about the peer is the last thing that is written, and no more is read.
use crate::error::Error;
use crate::guard::Plaints;
use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

pub use crate::guard::Guard;

/// Limit of one read. fe2o3-amqp by itself would ask for 8 KiB.
const READ_BYTES: usize = 64 * 1024;
/// A write of as much goes straight to the socket, a read into as much room straight from it: neither is copied.
const DIRECT_BYTES: usize = 32 * 1024;
/// Limit of pending bytes above which a task that hands over messages waits.
const ROOM_BYTES: usize = 128 * 1024;
/// Limit of pending bytes: a peer at which more gathers has not been reading for very long.
const LIMIT_BYTES: usize = 256 * 1024 * 1024;
/// Capacity that an emptied buffer keeps.
const KEPT_BYTES: usize = 1024 * 1024;
/// Limit of the time in which a stream that nobody holds any more writes what is pending.
const LINGER: Duration = Duration::from_secs(5);

/// A stream with writes gathered and reads large.
#[derive(Debug)]
pub struct Coalescing<Io> {
    shared: Arc<Shared<Io>>,
}

/// Counts the traffic of a stream, and lets tasks wait for room in it.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    pending_bytes: AtomicUsize,
    written_bytes: AtomicU64,
    writes: AtomicU64,
    read_bytes: AtomicU64,
    reads: AtomicU64,
    is_over: AtomicUsize,
    greeting: AtomicU64,
    room: Notify,
    links: Mutex<HashMap<String, Link>>,
    blame: OnceLock<Error>,
}

/// A link, for the text of an error.
#[derive(Debug)]
struct Link {
    queue: String,
    max_message_bytes: Option<u64>,
}

impl Gauge {
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
    pub async fn room(&self) {
        while self.pending_bytes() > ROOM_BYTES && self.0.is_over.load(Relaxed) == 0 {
            let mut notified = std::pin::pin!(self.0.room.notified());
            notified.as_mut().enable();
            if self.pending_bytes() <= ROOM_BYTES || self.0.is_over.load(Relaxed) != 0 {
                return;
            }
            notified.await;
        }
    }

    /// Registers a link by its name on the wire: its queue, and the largest message that is accepted from there.
    pub(crate) fn note_link(&self, name: &str, queue: &str, max_message_bytes: Option<u64>) {
        let link = Link { queue: queue.to_owned(), max_message_bytes };
        self.links().insert(name.to_owned(), link);
    }

    fn links(&self) -> MutexGuard<'_, HashMap<String, Link>> {
        self.0.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer's fault, if that is why the connection is over; every task on the connection reports the same.
    pub(crate) fn blamed(&self, otherwise: Error) -> Error {
        self.0.blame.get().cloned().unwrap_or(otherwise)
    }

    fn blame(&self, error: Error) {
        let _ = self.0.blame.set(error);
    }

    /// Records an error that we have reported to the peer as the reason why the connection is over.
    fn complain(&self, plaint: &crate::guard::Plaint) {
        let links = self.links();
        let link = plaint.link.as_ref().and_then(|name| links.get(name));
        let error = match link {
            Some(Link { queue, max_message_bytes: Some(limit) }) if plaint.is_of_size() => {
                Error::Oversized { queue: queue.clone(), limit: *limit }
            }
            link => plaint.error(link.map(|link| link.queue.as_str())),
        };
        drop(links);
        self.blame(error);
    }

    /// The first bytes that the peer sent, at most 8: they show which protocol it speaks.
    pub(crate) fn greeting(&self) -> Vec<u8> {
        let octets = self.0.greeting.load(Relaxed).to_be_bytes();
        let count = (self.read_bytes() as usize).min(octets.len());
        octets[..count].to_vec()
    }

    fn set_pending(&self, bytes: usize) {
        let before = self.0.pending_bytes.swap(bytes, Relaxed);
        if before > ROOM_BYTES && bytes <= ROOM_BYTES {
            self.0.room.notify_waiters();
        }
    }

    fn end(&self) {
        self.0.is_over.store(1, Relaxed);
        self.0.room.notify_waiters();
    }
}

#[derive(Debug)]
struct Shared<Io> {
    state: Mutex<State<Io>>,
    gauge: Gauge,
}

#[derive(Debug)]
struct State<Io> {
    io: Io,
    pending: Vec<u8>,
    sent: usize,
    arrived: Vec<u8>,
    taken: usize,
    guard: Guard,
    plaints: Plaints,
    pump: Option<Waker>,
    is_closing: bool,
    is_abandoned: bool,
    /// The peer has hung up.
    is_hung_up: bool,
    failure: Option<io::ErrorKind>,
}

impl<Io: AsyncRead + AsyncWrite + Unpin + Send + 'static> Coalescing<Io> {
    /// Around that stream. The task that writes is spawned on the runtime that this is called in; it ends with the
    /// stream.
    pub fn new(io: Io) -> (Self, Gauge) {
        let gauge = Gauge::default();
        let state = State {
            io,
            pending: Vec::new(),
            sent: 0,
            arrived: Vec::new(),
            taken: 0,
            guard: Guard::default(),
            plaints: Plaints::default(),
            pump: None,
            is_closing: false,
            is_abandoned: false,
            is_hung_up: false,
            failure: None,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), gauge: gauge.clone() });
        tokio::spawn(pump(Arc::clone(&shared)));
        (Self { shared }, gauge)
    }
}

/// Writes until the stream is closed or abandoned, and what is pending then for a while longer.
async fn pump<Io: AsyncWrite + Unpin>(shared: Arc<Shared<Io>>) {
    std::future::poll_fn(|context| shared.poll_pump(context, Until::Abandoned)).await;
    // A peer that does not read keeps nothing of us longer than that.
    let rest = std::future::poll_fn(|context| shared.poll_pump(context, Until::Written));
    let _ = tokio::time::timeout(LINGER, rest).await;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    Abandoned,
    Written,
}

impl<Io> Shared<Io> {
    fn state(&self) -> MutexGuard<'_, State<Io>> {
        // Nothing that is done under the lock can panic half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Io: AsyncWrite + Unpin> Shared<Io> {
    fn poll_pump(&self, context: &mut Context<'_>, until: Until) -> Poll<()> {
        let mut state = self.state();
        match state.poll_drain(context, &self.gauge) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => {
                state.failure = Some(error.kind());
                self.gauge.end();
            }
            Poll::Pending if until == Until::Written => return Poll::Pending,
            Poll::Pending => {}
        }
        let is_over = state.is_abandoned || state.failure.is_some();
        if is_over || until == Until::Written {
            return Poll::Ready(());
        }
        state.pump = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<Io: AsyncWrite + Unpin> State<Io> {
    fn poll_drain(&mut self, context: &mut Context<'_>, gauge: &Gauge) -> Poll<io::Result<()>> {
        while self.sent < self.pending.len() {
            let count = ready!(Pin::new(&mut self.io).poll_write(context, &self.pending[self.sent..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += count;
            gauge.0.writes.fetch_add(1, Relaxed);
            gauge.0.written_bytes.fetch_add(count as u64, Relaxed);
            gauge.set_pending(self.pending.len() - self.sent);
        }
        self.pending.clear();
        self.pending.shrink_to(KEPT_BYTES);
        self.sent = 0;
        // Under TLS the last record may still be with the encryption.
        ready!(Pin::new(&mut self.io).poll_flush(context))?;
        if self.is_closing {
            let _ = ready!(Pin::new(&mut self.io).poll_shutdown(context));
        }
        Poll::Ready(Ok(()))
    }

    /// Takes bytes to be written: a large piece goes straight to the socket if nothing is pending.
    fn take(&mut self, context: &mut Context<'_>, octets: &[u8], gauge: &Gauge) -> io::Result<()> {
        let mut rest = octets;
        if self.pending.is_empty()
            && octets.len() >= DIRECT_BYTES
            && let Poll::Ready(count) = Pin::new(&mut self.io).poll_write(context, octets)
        {
            let count = count?;
            gauge.0.writes.fetch_add(1, Relaxed);
            gauge.0.written_bytes.fetch_add(count as u64, Relaxed);
            rest = &octets[count..];
        }
        if self.sent > KEPT_BYTES {
            self.pending.drain(..self.sent);
            self.sent = 0;
        }
        if self.pending.len() + rest.len() > LIMIT_BYTES {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read"));
        }
        self.pending.extend_from_slice(rest);
        // fe2o3-amqp also reports that a peer has hung up; that is reported already.
        if !self.is_hung_up
            && let Some(plaint) = self.plaints.overhear(octets, &self.guard)
        {
            gauge.complain(plaint);
        }
        gauge.set_pending(self.pending.len() - self.sent);
        Ok(())
    }
}

impl<Io: AsyncRead + Unpin> State<Io> {
    /// Reads what there is to where it is wanted: the rest of a large frame.
    fn poll_read_into(
        &mut self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
        gauge: &Gauge,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(context, into))?;
        let octets = &into.filled()[before..];
        self.is_hung_up |= octets.is_empty();
        note_arrival(octets, gauge);
        Poll::Ready(self.check(octets, gauge))
    }

    /// Reads what there is into the stream's own buffer.
    fn poll_fill(&mut self, context: &mut Context<'_>, gauge: &Gauge) -> Poll<io::Result<()>> {
        self.arrived.resize(READ_BYTES, 0);
        self.taken = READ_BYTES;
        let mut room = ReadBuf::new(&mut self.arrived);
        let outcome = Pin::new(&mut self.io).poll_read(context, &mut room);
        let count = room.filled().len();
        if matches!(outcome, Poll::Ready(Ok(()))) {
            self.arrived.truncate(count);
            self.taken = 0;
            self.is_hung_up |= count == 0;
            note_arrival(&self.arrived, gauge);
            let arrived = std::mem::take(&mut self.arrived);
            let checked = self.check(&arrived, gauge);
            self.arrived = arrived;
            checked?;
        }
        outcome
    }

    fn check(&mut self, octets: &[u8], gauge: &Gauge) -> io::Result<()> {
        self.guard.check(octets).inspect_err(|error| gauge.blame(Error::PeerMisbehaved { why: error.to_string() }))
    }
}

fn note_arrival(octets: &[u8], gauge: &Gauge) {
    let before = gauge.0.read_bytes.fetch_add(octets.len() as u64, Relaxed) as usize;
    gauge.0.reads.fetch_add(u64::from(!octets.is_empty()), Relaxed);
    for (at, octet) in (before..8).zip(octets) {
        gauge.0.greeting.fetch_or(u64::from(*octet) << (56 - 8 * at), Relaxed);
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Coalescing<Io> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.state();
        // The engine asks again after each write: it is one task.
        if let Some(plaint) = state.plaints.found() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, plaint.to_string())));
        }
        if state.taken >= state.arrived.len() {
            if into.remaining() >= DIRECT_BYTES {
                return state.poll_read_into(context, into, &self.shared.gauge);
            }
            ready!(state.poll_fill(context, &self.shared.gauge))?;
        }
        let count = into.remaining().min(state.arrived.len() - state.taken);
        let from = state.taken;
        into.put_slice(&state.arrived[from..from + count]);
        state.taken += count;
        Poll::Ready(Ok(()))
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Coalescing<Io> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, octets: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.shared.state();
        if let Some(kind) = state.failure {
            return Poll::Ready(Err(kind.into()));
        }
        state.take(context, octets, &self.shared.gauge)?;
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
        state.is_abandoned = true;
        self.shared.gauge.end();
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
            let (mut stream, gauge) = Coalescing::new(ours);
            for _ in 0..100 {
                stream.write_all(b"12345678").await.unwrap();
                stream.flush().await.unwrap();
            }
            assert_eq!((gauge.writes(), gauge.pending_bytes()), (0, 800));
            let mut octets = vec![0; 800];
            theirs.read_exact(&mut octets).await.unwrap();
            assert_eq!((gauge.writes(), gauge.written_bytes(), gauge.pending_bytes()), (1, 800, 0));

            // More than the peer takes at once: it is not waited for, and comes whole.
            let large: Vec<u8> = (0..500_000_u32).map(|number| number as u8).collect();
            stream.write_all(&large).await.unwrap();
            assert!(gauge.pending_bytes() > ROOM_BYTES);
            let waiting = gauge.clone();
            let room = tokio::spawn(async move { waiting.room().await });
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
            let (mut stream, gauge) = Coalescing::new(ours);
            stream.write_all(&[b'x'; 1000]).await.unwrap();
            stream.shutdown().await.unwrap();
            drop(stream);
            let mut octets = Vec::new();
            theirs.read_to_end(&mut octets).await.unwrap();
            assert_eq!(octets.len(), 1000);
            gauge.room().await;
        });
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error_of_a_large_write_at_once_and_of_small_ones_in_the_next_pass() {
        limited(async {
            let (ours, theirs) = duplex(64);
            let (mut stream, _) = Coalescing::new(ours);
            drop(theirs);
            let large = stream.write_all(&[b'x'; DIRECT_BYTES]).await;
            assert_eq!(large.unwrap_err().kind(), io::ErrorKind::BrokenPipe);

            let (ours, theirs) = duplex(64);
            let (mut stream, gauge) = Coalescing::new(ours);
            drop(theirs);
            for _ in 0..=ROOM_BYTES / 1024 {
                stream.write_all(&[b'x'; 1024]).await.unwrap();
            }
            gauge.room().await;
            let small = stream.write_all(b"x").await;
            assert_eq!(small.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        });
    }

    #[test]
    fn what_is_read_is_the_same_into_little_room_and_into_much_and_frames_that_lie_are_refused_in_both() {
        limited(async {
            let (ours, mut theirs) = duplex(300_000);
            let (mut stream, gauge) = Coalescing::new(ours);
            let mut octets = 200_000_u32.to_be_bytes().to_vec();
            octets.extend((4..200_000_u32).map(|number| number as u8));
            theirs.write_all(&octets).await.unwrap();
            let mut read = vec![0; octets.len()];
            let (little, much) = read.split_at_mut(10);
            stream.read_exact(little).await.unwrap();
            stream.read_exact(much).await.unwrap();
            assert!(read == octets);
            assert_eq!((gauge.read_bytes(), gauge.reads()), (200_000, 2));
            theirs.write_all(&[0, 0, 0, 7]).await.unwrap();
            let lie = stream.read(&mut vec![0; DIRECT_BYTES]).await.unwrap_err();
            assert_eq!(lie.kind(), io::ErrorKind::InvalidData);
        });
    }

    #[test]
    fn the_first_octets_are_kept_however_they_come() {
        limited(async {
            let (ours, mut theirs) = duplex(64);
            let (mut stream, gauge) = Coalescing::new(ours);
            assert_eq!(gauge.greeting(), b"");
            for part in [&b"AMQ"[..], b"P\x00\x01", b"\x00\x00\0\0\0\x09"] {
                theirs.write_all(part).await.unwrap();
                stream.read_exact(&mut vec![0; part.len()]).await.unwrap();
            }
            assert_eq!(gauge.greeting(), b"AMQP\0\x01\0\0");
        });
    }
}
