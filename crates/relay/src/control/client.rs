//! The operator's side of the control socket. It sends a request to a running relay, and passes on the replies one by
//! one.
use crate::control::protocol::{ControlReply, ControlRequest};
use crate::control::socket;
use anyhow::{Context, Result, anyhow, bail};
use mailrun_party::reason::reason;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A relay gives up on its workers earlier.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

pub struct ControlClient(BufReader<UnixStream>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlOutcome {
    Done,
    Refused(String),
}

impl ControlClient {
    /// Connects to the relay with this control socket.
    ///
    /// # Errors
    /// If no relay is running there.
    pub fn connect(control: &Path) -> Result<Self> {
        let stream = socket::connect(control, REPLY_TIMEOUT).map_err(|error| {
            anyhow!("no relay answers at {} ({}); check that it is running", control.display(), reason(&error))
        })?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a request, and passes on each reply except the last.
    ///
    /// # Errors
    /// If the relay ends meanwhile, or `each` fails.
    pub fn send(
        &mut self,
        request: &ControlRequest,
        mut each: impl FnMut(ControlReply) -> Result<()>,
    ) -> Result<ControlOutcome> {
        let mut line = serde_json::to_vec(request).context("a request is always JSON")?;
        line.push(b'\n');
        self.0.get_mut().write_all(&line).context("the relay no longer listens")?;
        loop {
            line.clear();
            self.0.read_until(b'\n', &mut line).context("the relay does not answer")?;
            if line.is_empty() {
                bail!("the relay has closed the connection");
            }
            match serde_json::from_slice(&line).context("the relay is of another version than this program")? {
                ControlReply::End => return Ok(ControlOutcome::Done),
                ControlReply::Error { text } => return Ok(ControlOutcome::Refused(text)),
                reply => each(reply)?,
            }
        }
    }
}
