//! Output that waits to be written: bytes and at most one long message body, which is shared instead of copied.
use crate::stream::Stream;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Bytes that wait to be sent to a peer, in the order in which they were appended.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    body: Option<SharedBody>,
    written: usize,
}

#[derive(Debug)]
struct SharedBody {
    at: usize,
    shared: Arc<[u8]>,
    length: usize,
}

impl SharedBody {
    fn bytes(&self) -> &[u8] {
        &self.shared[..self.length]
    }
}

impl Outbox {
    /// Returns the buffer to which callers append short pieces, such as commands and replies.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a long body without copying it. A second long body is copied, because an outbox holds only one of them.
    pub fn append_shared(&mut self, body: &Arc<[u8]>) {
        self.append_beginning(body, body.len());
    }

    /// Appends the first `length` bytes of a body, and panics if the body is shorter.
    pub fn append_beginning(&mut self, body: &Arc<[u8]>, length: usize) {
        if self.body.is_none() && length <= body.len() {
            self.body = Some(SharedBody { at: self.bytes.len(), shared: Arc::clone(body), length });
        } else {
            self.bytes.extend_from_slice(&body[..length]);
        }
    }

    /// Removes the last `count` bytes, which must all be in the piece that was appended last.
    pub fn drop_last(&mut self, count: usize) {
        match &mut self.body {
            Some(body) if body.at == self.bytes.len() => body.length -= count.min(body.length),
            _ => self.bytes.truncate(self.bytes.len().saturating_sub(count)),
        }
    }

    /// Returns the number of bytes that wait to be sent.
    pub fn length(&self) -> usize {
        self.bytes.len() + self.body.as_ref().map_or(0, |body| body.length)
    }

    /// Appends the content of another outbox. The long body of `other` is copied only if this
    /// outbox already has a long body.
    pub fn append(&mut self, other: Self) {
        match other.body {
            None => self.bytes.extend_from_slice(&other.bytes),
            Some(body) => {
                self.bytes.extend_from_slice(&other.bytes[..body.at]);
                self.append_beginning(&body.shared, body.length);
                self.bytes.extend_from_slice(&other.bytes[body.at..]);
            }
        }
    }

    /// Copies the whole content into one piece, as it will be written.
    pub fn to_vec(&self) -> Vec<u8> {
        match &self.body {
            Some(body) => [&self.bytes[..body.at], body.bytes(), &self.bytes[body.at..]].concat(),
            None => self.bytes.clone(),
        }
    }

    /// Returns true if no output waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.body.is_none()
    }

    /// Removes the content, but keeps the memory for further output.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.body = None;
        self.written = 0;
    }

    /// Writes as much as the connection accepts. Returns true if everything was written and the outbox is now empty.
    /// Returns false if the connection accepts no more now.
    ///
    /// # Errors
    /// Fails with the error of `writev`, except for `WouldBlock`, which is no error here.
    pub fn write_to(&mut self, stream: &mut Stream) -> io::Result<bool> {
        let total = self.bytes.len() + self.body.as_ref().map_or(0, |body| body.length);
        while self.written < total {
            match self.write_once(stream) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        if !stream.flush()? {
            return Ok(false);
        }
        self.clear();
        Ok(true)
    }

    fn write_once(&self, stream: &mut Stream) -> io::Result<usize> {
        let Some(body) = &self.body else {
            return stream.try_write(&self.bytes[self.written..]);
        };
        let mut skip = self.written;
        let slices = [&self.bytes[..body.at], body.bytes(), &self.bytes[body.at..]].map(|part| {
            let part_skip = skip.min(part.len());
            skip -= part_skip;
            IoSlice::new(&part[part_skip..])
        });
        stream.try_write_vectored(&slices)
    }
}
