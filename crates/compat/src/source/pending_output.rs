//! Output of a source's session. A turn writes from the buffer that all sessions share. What the
//! socket does not accept is kept in a buffer of the session's own.
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
    /// The socket accepts no more for now. `is_progress` is true if it accepted a part.
    Partial {
        is_progress: bool,
    },
}

impl PendingOutput {
    fn hold(&mut self, outbox: Box<Outbox>) {
        self.unsent = Some(outbox);
    }

    /// Writes the output that is still waiting or, if there is none, the output of this turn.
    pub(super) fn flush(&mut self, outbox: &mut Outbox, stream: &mut Stream) -> io::Result<FlushStatus> {
        let mut some = false;
        if self.unsent.is_none() {
            if outbox.is_empty() {
                return Ok(FlushStatus::Nothing);
            }
            some = true;
            if outbox.write_to(stream)? {
                return Ok(FlushStatus::All);
            }
            self.hold(Box::new(std::mem::take(outbox)));
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
