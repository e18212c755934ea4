//! A connection with or without TLS. Both kinds have the same interface, so that a session need not distinguish them.
use crate::proxy_header::take_header;
use crate::tls::{Handshake, TlsLayer, with_handshake_fault, with_scratch};
use crate::tls_setup::{ClientTls, ServerTls};
use mailrun_eventloop::Socket;
use mailrun_smtp::proxy::ProxyHeader;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::num::NonZeroUsize;
use std::task::Poll;
use std::time::Duration;

/// A connection, plain or under TLS. Only the task that made the connection may use it, because events of the
/// connection wake only this task.
pub struct Stream {
    socket: Socket,
    tls: Option<Box<TlsLayer>>,
    /// Maximum number of bytes that one write of a long message sends, or `None` for no limit.
    write_limit: Option<NonZeroUsize>,
}

impl From<Socket> for Stream {
    fn from(socket: Socket) -> Self {
        Self { socket, tls: None, write_limit: None }
    }
}

impl Stream {
    /// Begins TLS as the client, and waits until the handshake is complete.
    ///
    /// # Errors
    /// Returns the errors of the connection, and `InvalidData` if the peer is not trusted or does not speak TLS. If the
    /// user can repair the fault, the error contains a [`mailrun_tls_verify::HandshakeFault`]. After any error, the
    /// connection must not be used.
    pub async fn connect_tls(&mut self, setup: &ClientTls) -> io::Result<Handshake> {
        let outcome = self.handshake(Box::new(TlsLayer::client(setup)?)).await;
        outcome.map_err(|error| with_handshake_fault(error, setup))
    }

    /// Begins TLS as the server, and waits until the handshake is complete.
    ///
    /// # Errors
    /// Returns the same errors as [`Stream::connect_tls`].
    pub async fn accept_tls(&mut self, setup: &ServerTls) -> io::Result<Handshake> {
        self.handshake(Box::new(TlsLayer::server(setup)?)).await
    }

    pub(crate) async fn take_proxy_header(&self) -> io::Result<ProxyHeader> {
        take_header(&self.socket).await
    }

    async fn handshake(&mut self, tls: Box<TlsLayer>) -> io::Result<Handshake> {
        // Box the future of the handshake, which would otherwise make every session larger.
        Box::pin(self.tls.insert(tls).complete_handshake(&self.socket)).await
    }

    /// Reads the available bytes, or returns 0 at the end of the connection. If there are no bytes, the task is polled
    /// again when some arrive.
    ///
    /// # Errors
    /// Fails if the connection is broken, or if the peer violates TLS.
    pub fn poll_read(&mut self, room: &mut [u8]) -> Poll<io::Result<usize>> {
        match &mut self.tls {
            None => self.socket.poll_read(room),
            Some(tls) => with_scratch(|scratch| tls.poll_read(&self.socket, room, scratch)),
        }
    }

    /// Reads even if no event has reported input, so that a failing session still finds replies that have just arrived.
    pub(crate) fn try_read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.tls.is_none() {
            return self.socket.try_read(room);
        }
        self.socket.mark_readable();
        match self.poll_read(room) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Writes as much as the connection accepts. Under TLS, accepted bytes may still wait to be
    /// sent by [`Stream::flush`].
    ///
    /// # Errors
    /// Returns an error of the system call `send` if the connection is broken. `WouldBlock` means that the connection
    /// accepts nothing now, so the caller must wait with [`Stream::poll_writable`].
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.socket.try_write(bytes),
            Some(tls) => tls.try_write(&self.socket, bytes),
        }
    }

    /// Writes all bytes, and waits while the connection accepts nothing.
    ///
    /// # Errors
    /// Returns the error of the system call `send` if the connection is broken. Some of the bytes may already have been
    /// sent.
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        poll_fn(|_| self.poll_write(&mut rest)).await
    }

    fn poll_write(&mut self, rest: &mut &[u8]) -> Poll<io::Result<()>> {
        loop {
            let outcome = match rest.is_empty() {
                false => self.try_write(rest).map(|count| *rest = &rest[count..]),
                true => match self.flush() {
                    Ok(true) => return Poll::Ready(Ok(())),
                    Ok(false) => Err(io::ErrorKind::WouldBlock.into()),
                    Err(error) => Err(error),
                },
            };
            match outcome {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.poll_writable().is_pending() {
                        return Poll::Pending;
                    }
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Writes as much of several pieces as the connection accepts. Under TLS or with a write limit, writes at most the
    /// first piece that is not empty.
    ///
    /// # Errors
    /// Fails if the connection is broken. As in [`Stream::try_write`], `WouldBlock` means that the connection accepts
    /// nothing now.
    pub(crate) fn try_write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let first = || pieces.iter().find(|piece| !piece.is_empty()).map(|piece| &**piece).unwrap_or_default();
        match (&mut self.tls, self.write_limit) {
            (None, None) => self.socket.try_write_vectored(pieces),
            (None, Some(limit)) => self.socket.try_write_vectored(&[IoSlice::new(at_most(first(), limit))]),
            (Some(_), _) if first().is_empty() => Ok(0),
            (Some(tls), limit) => tls.try_write(&self.socket, limit.map_or(first(), |limit| at_most(first(), limit))),
        }
    }

    pub(crate) fn limit_writes(&mut self, limit: Option<NonZeroUsize>) {
        self.write_limit = limit;
    }

    /// Sends the encrypted bytes that have not been sent yet. Returns true when all of them have been handed to the
    /// kernel, and false if the socket accepts no more now.
    ///
    /// # Errors
    /// Returns the error of the system call `send` if the connection is broken.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match &mut self.tls {
            None => Ok(true),
            Some(tls) => tls.flush(&self.socket),
        }
    }

    /// Returns false while output has to wait because the socket is full. Output that the worker sends at the end of
    /// its turn does not count as waiting.
    pub(crate) fn is_flushed(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.is_flushed()) && self.socket.is_flushed()
    }

    /// Returns the time ([`crate::clock::now`]) just after the last input was read.
    pub fn input_at(&self) -> Duration {
        self.socket.input_at()
    }

    /// Returns true if the last output is not sent yet, because the worker sends it at the end of its turn, together
    /// with the output of other sessions.
    pub(crate) fn is_write_batched(&self) -> bool {
        self.socket.is_write_batched()
    }

    /// Turns on the timing of writes ([`Stream::written_at`]). It is off by default, because it
    /// reads the clock after each write.
    pub(crate) fn time_writes(&self) {
        self.socket.time_writes();
    }

    /// Sends the batched output of all sessions now, before the end of the worker's turn.
    pub(crate) fn flush_batch(&self) {
        self.socket.flush_batch();
    }

    /// Returns the time just after the last batched output was written, or `None` if the write failed or is not timed.
    pub(crate) fn written_at(&self) -> Option<Duration> {
        self.socket.written_at()
    }

    /// Returns `Ready` when the connection may accept output again.
    pub fn poll_writable(&self) -> Poll<()> {
        self.socket.poll_writable()
    }

    /// Closes the sending direction, after a close alert under TLS. Bytes that the peer still sends
    /// can only be [discarded](Stream::poll_discard).
    ///
    /// # Errors
    /// Fails with the error of `send` or `shutdown`. `WouldBlock` means that the connection has not accepted all output
    /// yet.
    pub(crate) fn shutdown_write(&mut self) -> io::Result<()> {
        if let Some(mut tls) = self.tls.take() {
            tls.send_close_notify(&self.socket);
        }
        self.socket.shutdown_write()
    }

    /// Reads the available bytes and drops them, without decrypting them. Returns 0 at the end of the connection.
    ///
    /// # Errors
    /// Fails if the connection is broken, with the error of `recv`.
    pub(crate) fn poll_discard(&mut self, room: &mut [u8]) -> Poll<io::Result<usize>> {
        self.socket.poll_read(room)
    }

    pub(crate) fn reset_on_close(&self) {
        self.socket.reset_on_close();
    }

    /// Returns true if the peer has closed the connection, or if the connection has broken.
    pub(crate) fn has_ended(&self) -> bool {
        self.socket.has_ended()
    }

    /// Returns true if the peer has reset the connection, as an operating system does if a program closes a socket with
    /// unread bytes. This costs a system call only if the connection has ended.
    pub(crate) fn is_reset(&self) -> bool {
        self.socket.has_ended()
            && matches!(sockopt::socket_error(&self.socket), Ok(Err(Errno::CONNRESET | Errno::PIPE)))
    }

    /// Returns true if TLS has begun on the connection.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify(&self.socket);
        }
    }
}

fn at_most(bytes: &[u8], limit: NonZeroUsize) -> &[u8] {
    &bytes[..bytes.len().min(limit.get())]
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(if self.is_encrypted() { "Tls" } else { "Plain" }).field(&self.socket).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_write_of_several_pieces_has_at_most_the_bytes_that_are_allowed() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let work = move |_| async move {
            let mut stream = Stream::from(Socket::connect(address).await.expect("connects"));
            let body = [b'x'; 10_000];
            let pieces = [IoSlice::new(b""), IoSlice::new(&body), IoSlice::new(b"end")];
            let all = stream.try_write_vectored(&pieces).expect("an empty connection takes it");
            stream.limit_writes(NonZeroUsize::new(4096));
            let limited = stream.try_write_vectored(&pieces).expect("it takes more");
            let short = stream.try_write_vectored(&[IoSlice::new(b"end")]).expect("it takes more");
            [all, limited, short]
        };
        let thread = crate::worker::spawn("writer", crate::WorkerOptions::default(), work).expect("a thread");
        let written = thread.join().expect("no panic").expect("a loop");
        assert_eq!(written, [10_003, 4096, 3]);
    }
}
