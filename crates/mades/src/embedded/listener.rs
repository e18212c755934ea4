//! The listener: sockets, TLS, time limits. What is read goes to a desk, what the desk writes goes out in one write a
//! turn.
use super::conversation::IDLE_MS;
use super::desk::Desk;
use super::queues::Queues;
use super::sasl::Mechanisms;
use bytes::{Buf, BytesMut};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

/// Limit of the time from the connection to the open.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Limit of the time in which a peer takes our close.
const GOODBYE_LIMIT: Duration = Duration::from_secs(2);
/// Minimum of bytes that a read asks for.
const READ_BYTES: usize = 64 << 10;
/// Bytes waiting to be written from which on nothing is read: a peer that does not read is not read from.
const TOO_MUCH_TO_WRITE: usize = 4 << 20;
/// Pause after accept has failed, usually because there were no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Limit of a peer's silence: twice the interval that we announce. A peer that is silent for longer counts as gone.
const SILENCE_LIMIT: Duration = Duration::from_millis(2 * IDLE_MS as u64);

/// Options of a listener.
#[derive(Clone)]
pub struct ListenOptions {
    /// Mechanisms by which a peer may authenticate itself.
    pub mechanisms: Mechanisms,
    /// TLS from the first byte (`amqps`).
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// The largest message taken.
    pub message_bytes: u64,
    /// Connections at a time; more are closed at once.
    pub connections: usize,
    /// Its container-id.
    pub container: String,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            mechanisms: Mechanisms::Anybody,
            tls: None,
            message_bytes: 64 << 20,
            connections: 256,
            container: "mailrun-mades-endpoint".to_owned(),
        }
    }
}

/// Counters of a listener.
#[derive(Debug, Default)]
pub struct ListenerCounts {
    /// Connections that were taken.
    pub connections: AtomicU64,
    /// Connections closed at once: there were too many.
    pub turned_away: AtomicU64,
    /// Connections that ended without a close: cut, or with an error.
    pub broken: AtomicU64,
    /// Peers whose authentication failed or is missing.
    pub unauthenticated: AtomicU64,
}

impl ListenerCounts {
    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Serves connections until it is dropped; they end with it.
pub async fn serve(listener: TcpListener, queues: Queues, options: ListenOptions, counts: Arc<ListenerCounts>) {
    let places = Arc::new(Semaphore::new(options.connections));
    let mut sessions = JoinSet::new();
    loop {
        while sessions.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            ListenerCounts::count(&counts.turned_away);
            continue;
        };
        ListenerCounts::count(&counts.connections);
        let (queues, options, counts) = (queues.clone(), options.clone(), Arc::clone(&counts));
        sessions.spawn(async move {
            let end = welcome(stream, queues, &options).await;
            match end {
                Ok(End::Goodbye) => {}
                Ok(End::Unauthenticated) => ListenerCounts::count(&counts.unauthenticated),
                Ok(End::Misbehaved) | Err(_) => ListenerCounts::count(&counts.broken),
            }
            drop(place);
        });
    }
}

/// The end of a connection, if it is not an error of the network.
enum End {
    Goodbye,
    Unauthenticated,
    Misbehaved,
}

async fn welcome(stream: TcpStream, queues: Queues, options: &ListenOptions) -> io::Result<End> {
    // A disposition that waits for the peer's delayed ACK is the classic false result of this field.
    stream.set_nodelay(true)?;
    let until = Instant::now() + HANDSHAKE_LIMIT;
    let desk = Desk::new(queues, options.mechanisms.clone(), &options.container, options.message_bytes);
    match &options.tls {
        None => converse(stream, desk, until).await,
        Some(config) => {
            let stream = timeout(HANDSHAKE_LIMIT, TlsAcceptor::from(Arc::clone(config)).accept(stream)).await;
            converse(stream.map_err(|_| io::ErrorKind::TimedOut)??, desk, until).await
        }
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite, mut desk: Desk, until: Instant) -> io::Result<End> {
    let (reader, writer) = tokio::io::split(stream);
    let (mut reader, mut writer) = (reader, writer);
    let end = exchange(&mut reader, &mut writer, &mut desk, until).await;
    desk.close();
    end
}

/// Reads, lets the desk work, and writes, until one side closes.
async fn exchange(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    desk: &mut Desk,
    until: Instant,
) -> io::Result<End> {
    let mut input = BytesMut::with_capacity(READ_BYTES);
    let told = desk.told();
    let mut wake = std::pin::pin!(sleep_until(until));
    let (mut flushed, mut opened) = (true, false);
    let mut times = Times { until, wrote_at: Instant::now(), read_at: Instant::now() };
    loop {
        if let Err(fault) = desk.turn(&mut input) {
            return goodbye(writer, desk, &fault).await;
        }
        if desk.conversation().is_closed() {
            farewell(writer, desk).await?;
            return Ok(End::Goodbye);
        }
        if !opened && desk.conversation().is_open() {
            opened = true;
            wake.as_mut().reset(times.wrote_at);
        }
        let waiting = desk.out().remaining();
        input.reserve(READ_BYTES);
        tokio::select! {
            read = reader.read_buf(&mut input), if waiting < TOO_MUCH_TO_WRITE => {
                if read? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                times.read_at = Instant::now();
            }
            written = put_out(writer, desk), if waiting > 0 || !flushed => {
                flushed = written? == Written::All;
                times.wrote_at = Instant::now();
            }
            () = told.notified() => {}
            () = &mut wake => {
                let next = on_time(desk, &times).ok_or(io::ErrorKind::TimedOut)?;
                wake.as_mut().reset(next);
            }
        }
    }
}

#[derive(PartialEq)]
enum Written {
    Part,
    All,
}

/// Writes once; when all is written, makes sure that TLS keeps nothing back.
async fn put_out(writer: &mut (impl AsyncWrite + Unpin), desk: &mut Desk) -> io::Result<Written> {
    if !desk.out().has_remaining() {
        return writer.flush().await.map(|()| Written::All);
    }
    match writer.write_buf(desk.out()).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        _ => Ok(Written::Part),
    }
}

/// Time of the last activity, and the deadline of the handshake.
struct Times {
    until: Instant,
    wrote_at: Instant,
    read_at: Instant,
}

/// Sends a heartbeat if it is time, and returns the time of the next. None: the handshake has taken too long, or the
/// peer has been silent for too long.
fn on_time(desk: &mut Desk, times: &Times) -> Option<Instant> {
    let now = Instant::now();
    let conversation = desk.conversation();
    if !conversation.is_open() {
        return (now < times.until).then_some(times.until);
    }
    let gone = times.read_at + SILENCE_LIMIT;
    if now >= gone {
        return None;
    }
    let Some(idle) = conversation.heartbeat_ms() else { return Some(gone) };
    // Half of what the peer bears, so that a late one is in time.
    let rhythm = Duration::from_millis(u64::from(idle.max(2) / 2));
    if now < times.wrote_at + rhythm {
        return Some(gone.min(times.wrote_at + rhythm));
    }
    conversation.beat();
    Some(gone.min(now + rhythm))
}

/// Closes the connection, and reports the peer's error in the close.
async fn goodbye(
    writer: &mut (impl AsyncWrite + Unpin),
    desk: &mut Desk,
    fault: &super::conversation::Fault,
) -> io::Result<End> {
    use super::conversation::Fault;
    let end = match fault {
        Fault::Refused | Fault::Unauthenticated => End::Unauthenticated,
        Fault::Header(_) | Fault::Malformed(_) | Fault::Protocol(_) => End::Misbehaved,
    };
    desk.conversation().say_close(Some(("amqp:connection:framing-error", &fault.to_string())));
    farewell(writer, desk).await?;
    Ok(end)
}

/// Writes what is left, for a while.
async fn farewell(writer: &mut (impl AsyncWrite + Unpin), desk: &mut Desk) -> io::Result<()> {
    let write = async {
        while desk.out().has_remaining() {
            writer.write_buf(desk.out()).await?;
        }
        writer.shutdown().await
    };
    timeout(GOODBYE_LIMIT, write).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
