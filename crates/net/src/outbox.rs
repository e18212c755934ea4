//! What a turn has to write: bytes, and at most one long message body among them, which is not copied.
use crate::socket::Socket;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Bytes on their way to a peer.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// A shared body, and where among `bytes` it belongs.
    body: Option<(usize, Arc<[u8]>)>,
    written: usize,
}

impl Outbox {
    /// Where short pieces go.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Puts a long body behind what is there, without copying it; a second one in the same turn is copied.
    pub fn append_shared(&mut self, body: &Arc<[u8]>) {
        if self.body.is_none() {
            self.body = Some((self.bytes.len(), Arc::clone(body)));
        } else {
            self.bytes.extend_from_slice(body);
        }
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.body.is_none()
    }

    /// Forgets everything; the memory stays.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.body = None;
        self.written = 0;
    }

    /// Writes what the socket takes; true once all is written. Then it is empty again.
    ///
    /// # Errors
    /// Those of `writev`, but for `WouldBlock`.
    pub fn write_to(&mut self, socket: &Socket) -> io::Result<bool> {
        let total = self.bytes.len() + self.body.as_ref().map_or(0, |(_, body)| body.len());
        while self.written < total {
            match self.write_once(socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.clear();
        Ok(true)
    }

    fn write_once(&self, socket: &Socket) -> io::Result<usize> {
        let Some((at, body)) = &self.body else {
            return socket.try_write(&self.bytes[self.written..]);
        };
        let mut skip = self.written;
        let slices = [&self.bytes[..*at], body, &self.bytes[*at..]].map(|part| {
            let part_skip = skip.min(part.len());
            skip -= part_skip;
            IoSlice::new(&part[part_skip..])
        });
        socket.try_write_vectored(&slices)
    }
}
