//! The client of the control socket. It sends an operator's request to a running relay, and hands
//! over the replies as they arrive.
use crate::control::protocol::{ControlReply, ControlRequest};
use crate::control::socket;
use anyhow::{Context, Result, anyhow, bail};
use mailrun_party::reason::reason;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Maximum wait for a reply. It is longer than the time that the relay itself waits for its
/// workers.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

pub struct ControlClient(BufReader<UnixStream>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlOutcome {
    Done,
    Refused(String),
}

impl ControlClient {
    /// Connects to the relay that listens on this control socket.
    ///
    /// # Errors
    /// Fails if no relay is running there.
    pub fn connect(control: &Path) -> Result<Self> {
        let stream = socket::connect(control, REPLY_TIMEOUT).map_err(|error| {
            anyhow!("no relay answers at {} ({}); check that it is running", control.display(), reason(&error))
        })?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a request and calls `each` with every reply except the last.
    ///
    /// # Errors
    /// Fails if the relay ends meanwhile, or if `each` fails.
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
