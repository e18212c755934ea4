//! Reads the PROXY header, in which a proxy names the real client, at the beginning of a connection.
use mailrun_eventloop::Socket;
use mailrun_smtp::proxy::{self, MAX_V1_BYTES, ProxyHeader, ProxyHeaderError};
use std::future::poll_fn;
use std::io;

/// Number of bytes by which the memory for a PROXY header grows as the header arrives. The memory is not allocated at
/// once, because a sender may announce a header of 64 KB and then send nothing.
const STEP_BYTES: usize = 4096;

/// Tells whether connections come through a proxy that names the real client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Proxied {
    /// Clients connect directly, so a session has no PROXY header.
    #[default]
    No,
    /// A proxy passes on the connections, and begins each with a PROXY header of version 1 or 2.
    Yes,
}

/// Reads the PROXY header, but no byte after it, because the TLS layer must read the handshake that may follow.
///
/// # Errors
/// Returns the errors of the connection, and `InvalidData` if the connection does not begin with a
/// header.
pub(crate) async fn take_header(socket: &Socket) -> io::Result<ProxyHeader> {
    let length = header_length(socket).await?;
    let mut header = Vec::new();
    while header.len() < length {
        let read = header.len();
        header.resize(length.min(read + STEP_BYTES), 0);
        let count = socket.read(&mut header[read..]).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        header.truncate(read + count);
    }
    match proxy::parse(&header) {
        Ok(Some((header, _))) => Ok(header),
        Ok(None) => Err(bad(ProxyHeaderError::Malformed)),
        Err(error) => Err(bad(error)),
    }
}

/// Determines the length of the header from the first bytes. Only peeks at them, because bytes that
/// follow the header must stay in the socket.
async fn header_length(socket: &Socket) -> io::Result<usize> {
    let mut first = [0; MAX_V1_BYTES];
    loop {
        let seen = poll_fn(|_| socket.poll_peek(&mut first)).await?;
        match proxy::length(&first[..seen]).map_err(bad)? {
            Some(length) => return Ok(length),
            None if seen == 0 || socket.has_ended() => return Err(io::ErrorKind::UnexpectedEof.into()),
            None => socket.wait_for_more(),
        }
    }
}

fn bad(error: ProxyHeaderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
