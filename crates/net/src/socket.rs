//! Reading and writing a socket: one system call each, by rustix. libc's `recv` and `send` are cancellation points,
//! which costs every call of a process with threads two atomic operations (measured: 0.6 µs a message in lock step).
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Reads what has come; 0 is the peer's end.
///
/// # Errors
/// Those of `recv`.
pub(crate) fn poll_read(stream: &TcpStream, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_read_ready(cx))?;
        let mut read = None;
        let outcome = stream.try_io(Interest::READABLE, || {
            let (_, count) = recv(stream, &mut *room, RecvFlags::empty())?;
            read = Some(count);
            // Less than there was room for: the socket is empty. Saying so here spares the call that would find out.
            if (1..room.len()).contains(&count) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match (read, outcome) {
            (Some(count), _) => return Poll::Ready(Ok(count)),
            (None, Err(error)) if is_passing(&error) => {}
            (None, outcome) => return Poll::Ready(outcome.map(|()| 0)),
        }
    }
}

/// Writes what the socket takes. It is asked at once and not the runtime, which knows nothing of a new socket until
/// its first event and would have the greeting wait for that.
///
/// # Errors
/// Those of `send`; `WouldBlock` where it takes nothing, and then the runtime knows that too.
pub(crate) fn try_write(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let write = || rustix::io::retry_on_intr(|| send(stream, bytes, SendFlags::NOSIGNAL));
    match write() {
        Err(Errno::AGAIN) => stream.try_io(Interest::WRITABLE, || write().map_err(Errno::into)),
        outcome => outcome.map_err(Errno::into),
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
