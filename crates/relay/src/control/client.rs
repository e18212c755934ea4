//! The client of the control socket. It sends an operator's request to a running relay, and hands
//! over the replies as they arrive.
use crate::control::protocol::{ControlReply, ControlRequest};
use crate::control::socket;
use anyhow::{Context, Result, anyhow, bail};
use mailrun_process::reason::reason;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Maximum time for which the client waits for a reply. It is longer than the time for which the relay waits for its
/// workers, so that the client still receives an error about a worker that does not answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

pub struct ControlClient(BufReader<UnixStream>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlOutcome {
    Done,
    Refused(String),
    /// The closure that the caller passed to [`ControlClient::send`] returned `Break`, so the remaining replies were
    /// not read.
    Stopped,
}

impl ControlClient {
    /// Connects to the relay that listens on this control socket.
    ///
    /// # Errors
    /// Fails if no relay answers on the socket.
    pub fn connect(control: &Path) -> Result<Self> {
        let stream = socket::connect(control, REPLY_TIMEOUT).map_err(|error| {
            anyhow!("no relay answers at {} ({}); check that it is running", control.display(), reason(&error))
        })?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a request and calls `each` with every reply except the last. After `Break`, the remaining replies are not
    /// read, so the connection cannot be used for another request.
    ///
    /// # Errors
    /// Fails if the relay's answer is incomplete, so that the caller does not know whether the relay has executed the
    /// request. If `each` itself fails, for example because standard output is closed, it must store its error and
    /// return `Break`. This function does not return errors of `each`.
    pub fn send(
        &mut self,
        request: &ControlRequest,
        mut each: impl FnMut(ControlReply) -> ControlFlow<()>,
    ) -> Result<ControlOutcome> {
        let mut line = serde_json::to_vec(request).context("a request is always JSON")?;
        line.push(b'\n');
        // A relay with too many connections sends a reply and disconnects without reading the request. Sending the
        // request may then fail, so read the reply even after an error.
        let sent = self.0.get_mut().write_all(&line);
        loop {
            line.clear();
            let received = self.0.read_until(b'\n', &mut line);
            if !line.ends_with(b"\n") {
                bail!(no_answer(sent.and(received.map(drop)).err()));
            }
            match serde_json::from_slice(&line).context("the relay is of another version than this program")? {
                ControlReply::End => return Ok(ControlOutcome::Done),
                ControlReply::Error { text } => return Ok(ControlOutcome::Refused(text)),
                reply => {
                    if each(reply).is_break() {
                        return Ok(ControlOutcome::Stopped);
                    }
                }
            }
        }
    }
}

/// Explains why there was no complete reply, and how the operator can find out whether the relay
/// has executed the command.
fn no_answer(error: Option<io::Error>) -> String {
    let reason = match error {
        Some(error) if error.kind() == io::ErrorKind::WouldBlock => {
            format!("no answer for {} seconds", REPLY_TIMEOUT.as_secs())
        }
        Some(error) => reason(&error),
        None => "it has closed the connection".to_owned(),
    };
    format!("the relay has not answered the command ({reason}); `mailrun queue list` shows whether it was executed")
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: &[u8] = b"{\"is\":\"end\"}\n";

    /// Sends a request to a relay that writes `reply` and closes the connection. If `reads` is
    /// false, the relay does not wait for the request.
    fn outcome(reply: &[u8], reads: bool) -> Result<ControlOutcome> {
        let (ours, mut theirs) = UnixStream::pair()?;
        let reply = reply.to_owned();
        let relay = std::thread::spawn(move || {
            if reads {
                let _ = BufReader::new(&theirs).read_until(b'\n', &mut Vec::new());
            }
            theirs.write_all(&reply).unwrap();
        });
        if !reads {
            relay.join().unwrap();
        }
        let mut client = ControlClient(BufReader::new(ours));
        client.send(&ControlRequest::Stats, |_| ControlFlow::Continue(()))
    }

    #[test]
    fn a_command_succeeds_only_if_the_relay_has_answered_it() {
        let refusal = b"{\"is\":\"error\",\"text\":\"too many\"}\n";
        for reads in [false, true] {
            for reply in [&b""[..], b"{\"is\":\"changed\",\"messages\":1}\n", &END[..END.len() - 1]] {
                let error = format!("{:#}", outcome(reply, reads).unwrap_err());
                assert!(error.starts_with("the relay has not answered the command ("), "{reads} {reply:?}: {error}");
            }
            assert_eq!(outcome(END, reads).unwrap(), ControlOutcome::Done);
            assert_eq!(outcome(refusal, reads).unwrap(), ControlOutcome::Refused("too many".to_owned()));
        }
    }
}
