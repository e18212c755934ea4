//! Output of a source's session: a turn writes from the buffer that all sessions share, and the part that the socket
//! does not accept waits in a buffer of the session's own.
use mailrun_net::{Outbox, Stream};
use std::io;

#[derive(Default)]
pub(super) struct PendingOutput {
    unsent: Option<Box<Outbox>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushStatus {
    Nothing,
    All,
    /// The socket accepts no more for now. `is_progress` tells whether it accepted a part.
    Partial {
        is_progress: bool,
    },
}

impl PendingOutput {
    fn hold(&mut self, outbox: Box<Outbox>) {
        self.unsent = Some(outbox);
    }

    /// Writes the output that waits, or that of a turn.
    pub(super) fn flush(&mut self, said: &mut Outbox, stream: &mut Stream) -> io::Result<FlushStatus> {
        let mut some = false;
        if self.unsent.is_none() {
            if said.is_empty() {
                return Ok(FlushStatus::Nothing);
            }
            some = true;
            if said.write_to(stream)? {
                return Ok(FlushStatus::All);
            }
            self.hold(Box::new(std::mem::take(said)));
        }
        let unsent = self.unsent.as_mut().expect("set above");
        while stream.poll_writable().is_ready() {
            some = true;
            if unsent.write_to(stream)? {
                self.unsent = None;
                return Ok(FlushStatus::All);
            }
        }
        Ok(FlushStatus::Partial { is_progress: some })
    }
}
