//! Operates a running relay of the scenario as an administrator does: reads its status over HTTP, and gives it orders
//! with `mailrun queue`, which uses the relay's control socket.
use anyhow::{Context, Result, bail};
use mailrun_process::http_client::{Bytes, HttpClient};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time limit for an answer of the relay. An idle relay answers immediately, so a relay that takes longer is too busy
/// and counts as not ready.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum size of an answer of the relay. Even the metrics of a relay with many destinations are smaller.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct RelayStatusClient(HttpClient);

impl RelayStatusClient {
    /// Creates a client of the relay's status server, whose `address` is HOST:PORT.
    pub(super) fn at(address: &str) -> Result<Self> {
        HttpClient::new(address, RESPONSE_TIMEOUT, MAX_RESPONSE_BYTES).map(Self)
    }

    /// Returns true if the relay listens and has loaded the queue that it had when it was stopped.
    pub(super) fn is_ready(&self) -> bool {
        self.body_of("/ready").is_some()
    }

    /// Returns the number of messages in the relay's queue, or `None` if the relay does not answer.
    pub(super) fn queued(&self) -> Option<u64> {
        gauge(str::from_utf8(&self.body_of("/metrics")?).ok()?, "mailrun_relay_queue_messages")
    }

    fn body_of(&self, path: &str) -> Option<Bytes> {
        let answer = self.0.get(path).ok()?;
        answer.status.is_success().then_some(answer.body)
    }
}

/// Reads the value of a gauge without labels from metrics in Prometheus' text format.
fn gauge(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Starts `mailrun queue retry all`, which makes the relay retry all waiting messages now.
pub(super) fn retry_all(program: &Path, spool: &Path) -> Result<Child> {
    let mut command = Command::new(program);
    command.args(["queue", "retry", "all", "--spool"]).arg(spool);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("cannot start mailrun queue")
}

/// Returns true if `mailrun queue` has finished, or an error if it has failed.
pub(super) fn is_done(order: &mut Child) -> Result<bool> {
    match order.try_wait().context("cannot wait for mailrun queue")? {
        None => Ok(false),
        Some(status) if status.success() => Ok(true),
        Some(status) => bail!("mailrun queue retry all failed: {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_is_found_by_its_whole_name() {
        let text = "# HELP mailrun_relay_queue_messages messages in the queue\nmailrun_relay_queue_messages_x 7\n\
                    mailrun_relay_queue_messages 1000000\n";
        assert_eq!(gauge(text, "mailrun_relay_queue_messages"), Some(1_000_000));
        assert_eq!(gauge(text, "mailrun_relay_queue"), None);
        assert_eq!(gauge("", "x"), None);
    }

    #[test]
    fn nobody_there_is_not_ready() {
        let nobody = RelayStatusClient::at("127.0.0.1:1").expect("an address");
        assert!(!nobody.is_ready() && nobody.queued().is_none());
    }
}
