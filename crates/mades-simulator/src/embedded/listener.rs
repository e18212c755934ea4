//! The sockets, TLS and time limits of the listener. A `BrokerSession` processes the input of each connection.
use super::queues::MemoryQueues;
use super::session::{Admission, BrokerSession};
use bytes::{Buf, BytesMut};
use futures_util::future::BoxFuture;
use mailrun_amqp::{ConnectionError, IDLE_TIMEOUT_MS, ListenerAuth};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

/// Time within which a new connection must complete TLS, the login and its open frame.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for writing the remaining output when a connection ends. The peer then has the same time to disconnect.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of excess connections that the listener closes with an error at the same time. It closes further
/// excess connections at once, without an error.
const MAX_REFUSALS: usize = 16;
/// Time within which an excess connection must complete TLS, the login and its open frame.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);
const MIN_READ_BYTES: usize = 64 << 10;
/// Reading pauses while more bytes than this wait to be written, so that a peer that sends but does not read cannot use
/// up the memory.
const PENDING_OUTPUT_LIMIT: usize = 4 << 20;
/// Pause after the listener could not accept a connection, usually because the process has no file descriptors left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// A peer counts as gone after this time without a frame. It is twice the idle timeout that the
/// listener announces.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(2 * IDLE_TIMEOUT_MS as u64);

/// Returns a TLS configuration (TLS 1.2 and 1.3) with the certificate chain and the key in these
/// files. Clients need no certificate.
///
/// # Errors
/// Fails if one of the files cannot be read or is invalid. The error names the file.
pub fn tls_from_pem(chain: &Path, key: &Path) -> Result<Arc<ServerConfig>, String> {
    let failure = |path: &Path, reason: &dyn std::fmt::Display| format!("{}: {reason}", path.display());
    let certificates: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(chain).and_then(Iterator::collect).map_err(|error| failure(chain, &error))?;
    if certificates.is_empty() {
        return Err(failure(chain, &"it contains no certificate"));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| failure(key, &error))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for both versions");
    let config = builder.with_no_client_auth().with_single_cert(certificates, secret);
    config.map(Arc::new).map_err(|error| failure(key, &error))
}

#[derive(Clone)]
pub struct ListenOptions {
    pub mechanisms: ListenerAuth,
    pub tls: Option<Arc<ServerConfig>>,
    pub max_message_bytes: u64,
    /// Maximum number of connections at the same time. An excess connection is closed with an error, but only once it
    /// is open, because a client cannot read the error earlier.
    pub max_connections: usize,
    pub container: String,
}

impl ListenOptions {
    /// Makes options without TLS. The caller must choose the authentication, because there is no safe default.
    pub fn new(mechanisms: ListenerAuth) -> Self {
        Self {
            mechanisms,
            tls: None,
            max_message_bytes: 64 << 20,
            max_connections: 256,
            container: "mailrun-mades-endpoint".to_owned(),
        }
    }
}

#[derive(Debug, Default)]
pub struct ListenerCounts {
    pub connections: AtomicU64,
    pub refused: AtomicU64,
    /// Number of connections that ended without a close frame, because they were cut or failed.
    pub aborted: AtomicU64,
    pub unauthenticated: AtomicU64,
}

impl ListenerCounts {
    fn increment(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Accepts and serves connections until the returned future is dropped, which also ends all connections.
pub fn serve(
    listener: TcpListener,
    queues: MemoryQueues,
    options: ListenOptions,
    counts: Arc<ListenerCounts>,
) -> BoxFuture<'static, ()> {
    Box::pin(accept_connections(listener, queues, options, counts))
}

/// Does the work of [`serve`], which boxes the future of this function. The future is therefore compiled only once, in
/// this crate, and not in each crate that calls `serve`.
async fn accept_connections(
    listener: TcpListener,
    queues: MemoryQueues,
    options: ListenOptions,
    counts: Arc<ListenerCounts>,
) {
    let slots = Arc::new(Semaphore::new(options.max_connections));
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
    let mut sessions = JoinSet::new();
    loop {
        while sessions.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let slot = Arc::clone(&slots).try_acquire_owned();
        let queues = queues.clone();
        let options = options.clone();
        let Ok(slot) = slot else {
            ListenerCounts::increment(&counts.refused);
            if let Ok(refusal) = Arc::clone(&refusals).try_acquire_owned() {
                sessions.spawn(async move {
                    let _ = accept_connection(stream, queues, &options, Admission::Refused).await;
                    drop(refusal);
                });
            }
            continue;
        };
        ListenerCounts::increment(&counts.connections);
        let counts = Arc::clone(&counts);
        sessions.spawn(async move {
            let end = accept_connection(stream, queues, &options, Admission::Granted).await;
            match end {
                Ok(ConnectionEnd::Closed) => {}
                Ok(ConnectionEnd::Unauthenticated) => ListenerCounts::increment(&counts.unauthenticated),
                Ok(ConnectionEnd::ProtocolError) | Err(_) => ListenerCounts::increment(&counts.aborted),
            }
            drop(slot);
        });
    }
}

enum ConnectionEnd {
    Closed,
    Unauthenticated,
    ProtocolError,
}

async fn accept_connection(
    stream: TcpStream,
    queues: MemoryQueues,
    options: &ListenOptions,
    admission: Admission,
) -> io::Result<ConnectionEnd> {
    // Nagle's algorithm would let a disposition wait for the peer's delayed ACK, which would
    // distort measurements.
    stream.set_nodelay(true)?;
    let limit = match admission {
        Admission::Granted => HANDSHAKE_TIMEOUT,
        Admission::Refused => REFUSAL_TIMEOUT,
    };
    let handshake_deadline = Instant::now() + limit;
    let mechanisms = options.mechanisms.clone();
    let session = BrokerSession::new(queues, mechanisms, &options.container, options.max_message_bytes, admission);
    match &options.tls {
        None => serve_connection(stream, session, handshake_deadline).await,
        Some(config) => {
            let stream = timeout(limit, TlsAcceptor::from(Arc::clone(config)).accept(stream)).await;
            let stream = stream.map_err(|_| io::ErrorKind::TimedOut)??;
            serve_connection(stream, session, handshake_deadline).await
        }
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite,
    mut session: BrokerSession,
    handshake_deadline: Instant,
) -> io::Result<ConnectionEnd> {
    let (reader, writer) = tokio::io::split(stream);
    let mut reader = reader;
    let mut writer = writer;
    let end = run_connection(&mut reader, &mut writer, &mut session, handshake_deadline).await;
    session.close();
    // Read until the peer disconnects, because the kernel resets a connection that is closed with unread bytes, and the
    // peer might then lose the close frame.
    let _ = timeout(CLOSE_TIMEOUT, tokio::io::copy(&mut reader, &mut tokio::io::sink())).await;
    end
}

async fn run_connection(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    session: &mut BrokerSession,
    handshake_deadline: Instant,
) -> io::Result<ConnectionEnd> {
    let mut input = BytesMut::with_capacity(MIN_READ_BYTES);
    let notify = session.notify();
    let mut wake = std::pin::pin!(sleep_until(handshake_deadline));
    let mut flushed = true;
    let mut opened = false;
    let mut times = ConnectionTimes { handshake_deadline, wrote_at: Instant::now(), read_at: Instant::now() };
    loop {
        if let Err(fault) = session.process(&mut input) {
            flush_and_shut_down(writer, session).await?;
            return Ok(end_of(&fault));
        }
        if session.connection().is_closed() {
            flush_and_shut_down(writer, session).await?;
            return Ok(ConnectionEnd::Closed);
        }
        if !opened && session.connection().is_open() {
            opened = true;
            wake.as_mut().reset(times.wrote_at);
        }
        let waiting = session.output().remaining();
        input.reserve(MIN_READ_BYTES);
        tokio::select! {
            read = reader.read_buf(&mut input), if waiting < PENDING_OUTPUT_LIMIT => {
                if read? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                times.read_at = Instant::now();
            }
            written = write_output(writer, session), if waiting > 0 || !flushed => {
                flushed = written? == WriteProgress::All;
                times.wrote_at = Instant::now();
            }
            () = notify.notified() => {}
            () = &mut wake => {
                let Some(next) = on_timer(session, &times) else {
                    flush_and_shut_down(writer, session).await?;
                    return Err(io::ErrorKind::TimedOut.into());
                };
                wake.as_mut().reset(next);
            }
        }
    }
}

#[derive(PartialEq)]
enum WriteProgress {
    Part,
    All,
}

/// Writes once, which may leave bytes for the next call. If no bytes are left, flushes the writer instead, because TLS
/// may still hold some bytes back.
async fn write_output(
    writer: &mut (impl AsyncWrite + Unpin),
    session: &mut BrokerSession,
) -> io::Result<WriteProgress> {
    if !session.output().has_remaining() {
        return writer.flush().await.map(|()| WriteProgress::All);
    }
    match writer.write_buf(session.output()).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        _ => Ok(WriteProgress::Part),
    }
}

struct ConnectionTimes {
    handshake_deadline: Instant,
    wrote_at: Instant,
    read_at: Instant,
}

/// Sends a heartbeat if one is due, and returns the time of the next check. If the handshake took
/// too long or the peer was silent for too long, closes the connection and returns `None`.
fn on_timer(session: &mut BrokerSession, times: &ConnectionTimes) -> Option<Instant> {
    let now = Instant::now();
    let connection = session.connection();
    if !connection.is_open() {
        if now < times.handshake_deadline {
            return Some(times.handshake_deadline);
        }
        connection.time_out_handshake();
        return None;
    }
    let silence_deadline = times.read_at + SILENCE_TIMEOUT;
    if now >= silence_deadline {
        connection.time_out_silence();
        return None;
    }
    let Some(idle) = connection.peer_idle_timeout_ms() else { return Some(silence_deadline) };
    // Send a heartbeat after half of the peer's idle timeout, so that even a delayed heartbeat arrives in time.
    let heartbeat_interval = Duration::from_millis(u64::from(idle.max(2) / 2));
    if now < times.wrote_at + heartbeat_interval {
        return Some(silence_deadline.min(times.wrote_at + heartbeat_interval));
    }
    connection.send_heartbeat();
    Some(silence_deadline.min(now + heartbeat_interval))
}

fn end_of(fault: &ConnectionError) -> ConnectionEnd {
    match fault {
        ConnectionError::Refused | ConnectionError::Unauthenticated | ConnectionError::Login(_) => {
            ConnectionEnd::Unauthenticated
        }
        ConnectionError::Header(_)
        | ConnectionError::Framing(_)
        | ConnectionError::Malformed(_)
        | ConnectionError::Violation(_) => ConnectionEnd::ProtocolError,
    }
}

async fn flush_and_shut_down(writer: &mut (impl AsyncWrite + Unpin), session: &mut BrokerSession) -> io::Result<()> {
    let write = async {
        while session.output().has_remaining() {
            writer.write_buf(session.output()).await?;
        }
        writer.shutdown().await
    };
    timeout(CLOSE_TIMEOUT, write).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::{MemoryQueues, QueueLimits};
    use tokio::io::duplex;

    fn session() -> BrokerSession {
        let queues = MemoryQueues::new(QueueLimits::default());
        BrokerSession::new(queues, ListenerAuth::Any, "test", 1000, Admission::Granted)
    }

    fn says(output: &[u8], text: &str) -> bool {
        output.windows(text.len()).any(|octets| octets == text.as_bytes())
    }

    #[test]
    fn who_never_opens_the_connection_reads_why_it_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for greeting in [&[][..], b"AMQP\x00\x01\x00\x00"] {
                let (mut peer, ours) = duplex(1 << 16);
                peer.write_all(greeting).await.unwrap();
                let served = serve_connection(ours, session(), Instant::now() + Duration::from_millis(50));
                let mut output = Vec::new();
                let (end, read) = tokio::join!(served, async {
                    let read = peer.read_to_end(&mut output).await;
                    drop(peer);
                    read
                });
                assert!(end.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut));
                read.unwrap();
                assert!(output.starts_with(b"AMQP\x00\x01\x00\x00") && says(&output, "the handshake took too long"));
            }
        });
    }

    #[test]
    fn who_is_silent_for_too_long_reads_that() {
        let mut session = session();
        let open = [0, 0, 0, 16, 2, 0, 0, 0, 0, 0x53, 0x10, 0xc0, 3, 1, 0xa1, 0];
        session.process(&mut [&b"AMQP\x00\x01\x00\x00"[..], &open].concat().as_slice().into()).unwrap();
        let now = Instant::now();
        let times = ConnectionTimes { handshake_deadline: now, wrote_at: now, read_at: now - SILENCE_TIMEOUT };
        assert_eq!(on_timer(&mut session, &times), None);
        let length = session.output().remaining();
        let output = session.output().copy_to_bytes(length);
        assert!(says(&output, "amqp:resource-limit-exceeded") && says(&output, "the peer was silent for too long"));
    }
}
