//! A connection ([`Socket`]) and a listener ([`Acceptor`]), whose events the loop reports to tasks. Each read and each
//! write is one system call through rustix, and not through libc. In libc, `recv` and `send` are cancellation points,
//! which cost each call two atomic operations in a process with several threads (measured: 0.6 µs per message in lock
//! step).
use crate::batch::MAX_BATCHED_WRITE;
use crate::endpoint::Endpoint;
use crate::reactor::{Reactor, SourceKind};
use crate::timer::sleep;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, recv, send, sockopt,
};
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Pause before connecting again to a unix-domain socket whose queue of waiting connections is full.
const CONNECT_RETRY_DELAY: Duration = Duration::from_millis(1);

/// A connection, to be used only by the task that created it. Events of the connection wake only this task.
pub struct Socket {
    descriptor: Rc<OwnedFd>,
    key: usize,
    reactor: Rc<Reactor>,
}

impl Socket {
    /// Makes a socket from an accepted connection, and registers it with epoll for the current task.
    /// No other task may use the socket.
    ///
    /// # Errors
    /// Returns the errors of `epoll_ctl`.
    pub fn from_accepted(descriptor: OwnedFd) -> io::Result<Self> {
        Self::register(descriptor, SourceKind::Connection)
    }

    /// Connects to `address`, with TCP_NODELAY.
    ///
    /// # Errors
    /// Fails with the error of the system call `socket` or `connect`. If the connection is reset right after it was
    /// established, a later read reports the error.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::connect_from(None, address).await
    }

    /// Connects from the local address `own`. If `own` is `None`, the kernel chooses the local
    /// address.
    ///
    /// # Errors
    /// Returns the errors of [`Socket::connect`] and of `bind`.
    pub async fn connect_from(own: Option<IpAddr>, address: SocketAddr) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let descriptor = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&descriptor, true)?;
        if let Some(own) = own {
            rustix::net::bind(&descriptor, &SocketAddr::new(own, 0))?;
        }
        match rustix::net::connect(&descriptor, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => Self::from_connecting(descriptor).await,
            Err(error) => Err(error.into()),
        }
    }

    /// Connects to a TCP address or to a unix-domain socket. A TCP connection comes from the local address `own`, if
    /// there is one. If the listen queue of a unix-domain socket is full, tries again until it has room or the future
    /// is dropped.
    ///
    /// # Errors
    /// Returns the same errors as [`Socket::connect_from`].
    pub async fn connect_to(own: Option<IpAddr>, endpoint: &Endpoint) -> io::Result<Self> {
        let path = match endpoint {
            Endpoint::Tcp(address) => return Self::connect_from(own, *address).await,
            Endpoint::Unix(path) => SocketAddrUnix::new(path.as_path())?,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        loop {
            let descriptor = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            match rustix::net::connect(&descriptor, &path) {
                Ok(()) | Err(Errno::INPROGRESS) => return Self::from_connecting(descriptor).await,
                Err(Errno::AGAIN) => sleep(CONNECT_RETRY_DELAY).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes over a non-blocking descriptor on which the caller has called `connect`, and waits
    /// until the connection is established. This is for unix-domain sockets, and for callers that
    /// must set socket options before they connect.
    ///
    /// # Errors
    /// Returns the same errors as [`Socket::connect`].
    pub async fn from_connecting(descriptor: OwnedFd) -> io::Result<Self> {
        let socket = Self::register(descriptor, SourceKind::Connecting)?;
        poll_fn(|_| socket.poll_writable()).await;
        if socket.reactor.has_ended(socket.key)
            && let Err(error) = sockopt::socket_error(&socket.descriptor)?
            && !matches!(error, Errno::CONNRESET | Errno::PIPE)
        {
            return Err(error.into());
        }
        Ok(socket)
    }

    fn register(descriptor: OwnedFd, watch: SourceKind) -> io::Result<Self> {
        let reactor = Reactor::current();
        let descriptor = Rc::new(descriptor);
        let key = reactor.register_connection(&descriptor, watch)?;
        Ok(Self { descriptor, key, reactor })
    }

    /// Waits for input, and reads the bytes that are available. Returns 0 at the end of the
    /// connection.
    ///
    /// # Errors
    /// Fails with the error of the system call `recv`, or of an earlier batched write.
    pub async fn read(&self, room: &mut [u8]) -> io::Result<usize> {
        poll_fn(|_| self.poll_read(room)).await
    }

    /// Writes all bytes, and waits while the socket accepts none.
    ///
    /// # Errors
    /// Fails with the error of the system call `send`, for example if the peer has closed the connection.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.try_write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => poll_fn(|_| self.poll_writable()).await,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Looks at the available bytes without taking them, so that a later read returns them again.
    pub fn poll_peek(&self, room: &mut [u8]) -> Poll<io::Result<usize>> {
        if !self.reactor.may_read(self.key) {
            return Poll::Pending;
        }
        match retry_on_intr(|| recv(&*self.descriptor, &mut *room, RecvFlags::PEEK)) {
            Ok((_, count)) => Poll::Ready(Ok(count)),
            Err(Errno::AGAIN) => {
                self.reactor.clear_readable(self.key);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    /// Makes the loop poll the task again when more bytes arrive. A task calls this if [`Socket::poll_peek`] returned
    /// too few bytes.
    pub fn wait_for_more(&self) {
        self.reactor.clear_readable(self.key);
    }

    /// Returns true if the peer has closed the connection, or if the connection has failed.
    pub fn has_ended(&self) -> bool {
        self.reactor.has_ended(self.key)
    }

    /// Returns the local address, or `None` for a unix-domain socket.
    pub fn local_address(&self) -> Option<SocketAddr> {
        rustix::net::getsockname(&self.descriptor).ok()?.try_into().ok()
    }

    /// Closes the sending direction, so that the peer sees the end after all bytes that were written. The socket can
    /// still be read.
    ///
    /// # Errors
    /// Fails with the error of the system call `send` or `shutdown`. `WouldBlock` means that the socket has not
    /// accepted all output yet.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.reactor.flush_before_write(self.key)?;
        rustix::net::shutdown(&*self.descriptor, Shutdown::Write).map_err(Errno::into)
    }

    /// Makes the socket send a reset (RST) when it is closed. Output that has not reached the peer
    /// is then lost.
    pub fn reset_on_close(&self) {
        // Ignore an error: if SO_LINGER cannot be set, the connection is closed in the usual way, without a reset.
        let _ = sockopt::set_socket_linger(&self.descriptor, Some(Duration::ZERO));
    }

    /// Reads the available bytes, and returns their number, or 0 at the end of the connection. If no bytes are
    /// available, the task is polled again when some arrive.
    ///
    /// # Errors
    /// Fails with the error of the system call `recv`, or of an earlier batched write.
    pub fn poll_read(&self, room: &mut [u8]) -> Poll<io::Result<usize>> {
        if !self.reactor.may_read(self.key) {
            self.reactor.await_input(self.key);
            return Poll::Pending;
        }
        if let Some(read) = self.reactor.take_read_ahead(self.key, room) {
            return Poll::Ready(read.map_err(Errno::into));
        }
        match retry_on_intr(|| recv(&*self.descriptor, &mut *room, RecvFlags::empty())) {
            Ok((_, 0)) => Poll::Ready(self.eof_or_error()),
            Ok((_, count)) => {
                self.reactor.did_read(self.key, count, room.len());
                Poll::Ready(Ok(count))
            }
            Err(Errno::AGAIN) => {
                self.reactor.clear_readable(self.key);
                self.reactor.await_input(self.key);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    /// Called when a read finds no more bytes. If an earlier batched write has failed, returns its error, which was not
    /// known when the task wrote. Otherwise returns 0 for the end of the connection.
    fn eof_or_error(&self) -> io::Result<usize> {
        self.reactor.error(self.key).map_or(Ok(0), |error| Err(error.into()))
    }

    /// Returns the time at which the loop read the task's last input before polling the task. If the task made the
    /// system call itself, returns the current time ([`crate::clock::now`]).
    pub fn input_at(&self) -> Duration {
        self.reactor.input_at()
    }

    /// Reads even if no event has reported input, for example to get the last replies of a
    /// connection that has failed.
    ///
    /// # Errors
    /// Fails with the error of the system call `recv`. `WouldBlock` means that there is no input.
    pub fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        if let Some(read) = self.reactor.take_read_ahead(self.key, room) {
            return read.map_err(Errno::into);
        }
        let (_, count) = retry_on_intr(|| recv(&*self.descriptor, &mut *room, RecvFlags::empty()))?;
        Ok(count)
    }

    /// Makes the next read try a system call even if no event has reported input.
    pub fn mark_readable(&self) {
        self.reactor.mark_readable(self.key);
    }

    /// Writes as much as the socket accepts. A write of up to 2 KiB is sent at the end of the batch of events, with the
    /// writes of other tasks. If that fails, the loop polls the task again, and a later call returns the error.
    ///
    /// # Errors
    /// Fails with the error of the system call `send`, or of an earlier batched write. `WouldBlock` means that the
    /// socket accepts nothing now. [`Socket::poll_writable`] tells when it accepts output again.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() <= MAX_BATCHED_WRITE {
            self.reactor.batch_write(self.key, &self.descriptor, bytes)?;
            return Ok(bytes.len());
        }
        self.reactor.flush_before_write(self.key)?;
        self.try_io(|| send(&*self.descriptor, bytes, SendFlags::NOSIGNAL))
    }

    /// Writes several pieces in one system call, as far as the socket accepts them.
    ///
    /// # Errors
    /// Returns the same errors as [`Socket::try_write`]. `writev` needs no flag against SIGPIPE,
    /// because Rust programs ignore that signal.
    pub fn try_write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.reactor.flush_before_write(self.key)?;
        self.try_io(|| rustix::io::writev(&*self.descriptor, pieces))
    }

    /// Returns true if no output waits for space in the socket. Some output may still be in the current batch, and the
    /// loop sends it at the end of the batch.
    pub fn is_flushed(&self) -> bool {
        self.reactor.is_flushed(self.key)
    }

    /// Returns true if the last output waits to be sent with the output of other sessions, at the
    /// end of this batch of events.
    pub fn is_write_batched(&self) -> bool {
        self.reactor.is_write_batched(self.key)
    }

    /// Sends the batched output of all sessions now, before the end of the batch of events. If a
    /// write fails, the next read or write of its session returns the error.
    pub fn flush_batch(&self) {
        self.reactor.flush_batch();
    }

    /// Turns on the timing of writes ([`Socket::written_at`]). It is off by default, because it
    /// reads the clock after each write.
    pub fn time_writes(&self) {
        self.reactor.time_writes(self.key);
    }

    /// Returns the time at which the last batched output was handed to the kernel, if writes are
    /// timed. Returns `None` if the write has failed.
    pub fn written_at(&self) -> Option<Duration> {
        self.reactor.written_at(self.key)
    }

    fn try_io(&self, write: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
        let outcome = retry_on_intr(write);
        if outcome == Err(Errno::AGAIN) {
            self.reactor.clear_writable(self.key);
        }
        outcome.map_err(Errno::into)
    }

    /// Returns `Ready` if the socket may accept output, and no earlier output waits for space in
    /// it. Otherwise the task is polled again when the socket accepts output.
    pub fn poll_writable(&self) -> Poll<()> {
        if self.reactor.may_write(self.key) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.reactor.deregister(self.key);
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Socket").field(&self.descriptor).finish()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A listening socket, to be used only by the task that created it. New connections wake only this task.
pub struct Acceptor {
    listener: OwnedFd,
    key: usize,
    reactor: Rc<Reactor>,
}

impl Acceptor {
    /// Watches a listening socket for TCP or unix-domain connections. The socket must be
    /// non-blocking (see [`crate::listener::listen`]).
    ///
    /// # Errors
    /// Returns the errors of `epoll_ctl`.
    pub fn new(listener: impl Into<OwnedFd>) -> io::Result<Self> {
        let listener = listener.into();
        let reactor = Reactor::current();
        let key = reactor.register(&listener, SourceKind::Listener)?;
        Ok(Self { listener, key, reactor })
    }

    /// Returns the next connection, which belongs to no task yet. Pass it to
    /// [`Socket::from_accepted`] in the connection's own task. A client of a unix-domain socket has
    /// the address `0.0.0.0:0`.
    ///
    /// # Errors
    /// Fails with the error of the system call `accept`. If there are no more file descriptors, try again a little
    /// later.
    pub async fn accept(&self) -> io::Result<(OwnedFd, SocketAddr)> {
        let (descriptor, address) = poll_fn(|_| self.poll_accept()).await?;
        Ok((descriptor, address.unwrap_or_else(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))))
    }

    /// Returns the next connection and the address of its client, which is `None` for a unix-domain socket. If no
    /// connection is waiting, the task is polled again when one arrives.
    ///
    /// # Errors
    /// Fails with the error of the system call `accept`, as [`Acceptor::accept`] does.
    pub fn poll_accept(&self) -> Poll<io::Result<(OwnedFd, Option<SocketAddr>)>> {
        if !self.reactor.may_read(self.key) {
            return Poll::Pending;
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match retry_on_intr(|| rustix::net::acceptfrom_with(&self.listener, flags)) {
            Ok((descriptor, address)) => {
                Poll::Ready(Ok((descriptor, address.and_then(|address| address.try_into().ok()))))
            }
            Err(Errno::AGAIN) => {
                self.reactor.clear_readable(self.key);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Acceptor").field(&self.listener).finish()
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.reactor.deregister(self.key);
    }
}

const PAGE_BYTES: usize = 4096;

/// A page-aligned buffer for reads from a socket. `malloc` puts large buffers 16 bytes after the
/// start of a page, and the kernel's copy of 10 MB to such a buffer takes twice the processor time
/// (measured on AMD Zen: 4.2 ms instead of 1.9 ms).
#[derive(Debug)]
pub struct PageAlignedBuffer {
    memory: Vec<u8>,
    start: usize,
}

impl PageAlignedBuffer {
    /// Creates a buffer that contains `bytes` zeros.
    pub fn new(bytes: usize) -> Self {
        let memory = vec![0; bytes + PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        Self { memory, start }
    }

    /// Returns the bytes of the buffer, which begins at the start of a page.
    pub fn bytes(&mut self) -> &mut [u8] {
        let end = self.start + self.memory.len() - PAGE_BYTES;
        &mut self.memory[self.start..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_at_a_page_and_has_its_size() {
        for bytes in [1, 4096, 100_000] {
            let mut buffer = PageAlignedBuffer::new(bytes);
            assert_eq!(buffer.bytes().len(), bytes);
            assert_eq!(buffer.bytes().as_ptr().align_offset(PAGE_BYTES), 0);
        }
    }
}
