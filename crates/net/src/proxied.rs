//! The PROXY header before a session's first octet: read off a connection that a proxy passes on.
use crate::socket::Socket;
use smtp::proxy::{Header, LONGEST_V2_BYTES, parse};
use std::future::poll_fn;
use std::io;

/// Takes the header, and not an octet more: what follows may be a TLS handshake.
///
/// # Errors
/// Those of the connection; `InvalidData` where it does not begin with a header.
pub(crate) async fn take_header(socket: &Socket) -> io::Result<Header> {
    // On the heap: a session whose connections have no header is not to pay for it.
    let mut room = vec![0; LONGEST_V2_BYTES];
    loop {
        let seen = poll_fn(|_| socket.poll_peek(&mut room)).await?;
        match parse(&room[..seen]) {
            Ok(Some((_, length))) if length > seen => return Err(io::ErrorKind::InvalidData.into()),
            Ok(Some((header, length))) => {
                socket.read(&mut room[..length]).await?;
                return Ok(header);
            }
            Ok(None) if seen == 0 || socket.has_ended() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(None) => socket.wait_for_more(),
            Err(bad) => return Err(io::Error::new(io::ErrorKind::InvalidData, bad)),
        }
    }
}
