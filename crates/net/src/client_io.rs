//! One asynchronous interface for blocking and non-blocking connections, so that both kinds of clients share their
//! code. Futures of a blocking connection block the thread and are ready at the first poll, so they need no event loop.
use crate::stream::Stream;
use crate::tls::{blocking_tls_error, with_handshake_fault};
use crate::tls_setup::ClientTls;
use mailrun_eventloop::{Endpoint, Socket, Timer, clock};
use rustls::{ClientConnection, StreamOwned};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(crate) trait ClientIo {
    /// Waits until there is input, and reads the available bytes. Returns 0 at the end of the connection.
    async fn read(&mut self, room: &mut [u8]) -> io::Result<usize>;
    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    async fn start_tls(&mut self, setup: &ClientTls) -> io::Result<()>;
    fn is_encrypted(&self) -> bool;
    /// Returns true if the peer has reset the connection, for example by closing the socket before it had read
    /// everything.
    fn is_reset(&self) -> bool;
}

/// Runs a future without an event loop. The future must use a [`BlockingIo`], whose reads and writes block the thread,
/// so that one poll is enough.
pub(crate) fn run_blocking<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("a blocking connection blocks"),
    }
}

#[derive(Debug)]
pub(crate) enum BlockingIo {
    Plain(TcpStream),
    Tls(Box<BlockingTls>),
}

/// TLS on a connection whose calls block. This is a separate type so that its `Drop` can send a close alert.
pub(crate) struct BlockingTls(StreamOwned<ClientConnection, TcpStream>);

impl fmt::Debug for BlockingTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BlockingTls").field(&self.0.sock).finish()
    }
}

impl BlockingIo {
    /// Connects to the first of the addresses that accepts the connection.
    pub(crate) fn connect(addresses: impl ToSocketAddrs, timeout: Duration) -> io::Result<Self> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in addresses.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    socket.set_read_timeout(Some(timeout))?;
                    socket.set_write_timeout(Some(timeout))?;
                    return Ok(Self::Plain(socket));
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

impl ClientIo for BlockingIo {
    async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(room),
            Self::Tls(tls) => tls.0.read(room).map_err(blocking_tls_error),
        }
    }

    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.write_all(bytes),
            Self::Tls(tls) => {
                tls.0.write_all(bytes).map_err(blocking_tls_error)?;
                tls.0.flush().map_err(blocking_tls_error)
            }
        }
    }

    async fn start_tls(&mut self, setup: &ClientTls) -> io::Result<()> {
        let Self::Plain(socket) = self else { return Err(io::ErrorKind::AlreadyExists.into()) };
        let connection = ClientConnection::new(setup.config(), setup.name()).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, socket.try_clone()?);
        while stream.conn.is_handshaking() {
            let result = stream.conn.complete_io(&mut stream.sock).map_err(blocking_tls_error);
            result.map_err(|error| with_handshake_fault(error, setup))?;
        }
        *self = Self::Tls(Box::new(BlockingTls(stream)));
        Ok(())
    }

    fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    fn is_reset(&self) -> bool {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &tls.0.sock,
        };
        matches!(socket.take_error(), Ok(Some(_)))
    }
}

impl Drop for BlockingTls {
    /// Sends a close alert, if the socket accepts it.
    fn drop(&mut self) {
        self.0.conn.send_close_notify();
        // Ignore an error, because a peer that is gone needs no alert.
        let _ = self.0.conn.write_tls(&mut self.0.sock);
    }
}

#[derive(Debug)]
pub(crate) struct AsyncIo {
    stream: Stream,
    timer: Timer,
    timeout: Duration,
}

impl AsyncIo {
    /// Connects within `timeout`, which also limits each later read and write.
    pub(crate) async fn connect(server: &Endpoint, timeout: Duration) -> io::Result<Self> {
        let mut timer = Timer::default();
        let connected = timer.timeout_at(clock::now() + timeout, Socket::connect_to(None, server)).await;
        let socket = connected.ok_or(io::ErrorKind::TimedOut)??;
        Ok(Self { stream: socket.into(), timer, timeout })
    }

    fn deadline(&self) -> Duration {
        clock::now() + self.timeout
    }
}

impl ClientIo for AsyncIo {
    async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let deadline = self.deadline();
        let read = poll_fn(|_| self.stream.poll_read(room));
        self.timer.timeout_at(deadline, read).await.ok_or(io::ErrorKind::TimedOut)?
    }

    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let deadline = self.deadline();
        self.timer.timeout_at(deadline, self.stream.write_all(bytes)).await.ok_or(io::ErrorKind::TimedOut)?
    }

    async fn start_tls(&mut self, setup: &ClientTls) -> io::Result<()> {
        let deadline = self.deadline();
        let handshake = self.timer.timeout_at(deadline, self.stream.connect_tls(setup)).await;
        handshake.ok_or(io::ErrorKind::TimedOut)?.map(|_| ())
    }

    fn is_encrypted(&self) -> bool {
        self.stream.is_encrypted()
    }

    fn is_reset(&self) -> bool {
        self.stream.is_reset()
    }
}
