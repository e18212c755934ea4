//! What a source's session still has to write: what a turn says goes out of the buffer that all sessions share, and what
//! the socket does not take of it waits in one of its own.
use net::{Outbox, Stream};
use std::io;

/// What waits.
#[derive(Default)]
pub(super) struct Outgoing {
    unsent: Option<Box<Outbox>>,
}

/// How far writing has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// There was nothing to write.
    Nothing,
    /// All there was.
    All,
    /// The socket takes no more for now; whether it took some.
    Partly { some: bool },
}

impl Outgoing {
    /// Lets that go out next.
    pub(super) fn hold(&mut self, outbox: Box<Outbox>) {
        self.unsent = Some(outbox);
    }

    /// Writes what waits, or what a turn has said.
    pub(super) fn flush(&mut self, said: &mut Outbox, stream: &mut Stream) -> io::Result<Written> {
        let mut some = false;
        if self.unsent.is_none() {
            if said.is_empty() {
                return Ok(Written::Nothing);
            }
            some = true;
            if said.write_to(stream)? {
                return Ok(Written::All);
            }
            self.hold(Box::new(std::mem::take(said)));
        }
        let unsent = self.unsent.as_mut().expect("set above");
        while stream.poll_writable().is_ready() {
            some = true;
            if unsent.write_to(stream)? {
                self.unsent = None;
                return Ok(Written::All);
            }
        }
        Ok(Written::Partly { some })
    }
}
