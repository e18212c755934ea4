//! A running relay of our own, as an operator sees it: its answers over HTTP, and orders over its control socket.
use anyhow::{Context, Result, bail};
use mailrun_party::http_client::{Bytes, HttpClient};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A relay answers at once, or is too busy to.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of the largest answer: the metrics of a relay with many destinations.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// Its HTTP side.
#[derive(Debug)]
pub(super) struct RelayStatusClient(HttpClient);

impl RelayStatusClient {
    /// The status server at HOST:PORT.
    pub(super) fn at(address: &str) -> Result<Self> {
        HttpClient::new(address, RESPONSE_TIMEOUT, MAX_RESPONSE_BYTES).map(Self)
    }

    /// Reports whether it listens and has loaded what a former run has left.
    pub(super) fn is_ready(&self) -> bool {
        self.body_of("/ready").is_some()
    }

    /// Messages in its queue; `None` if it does not report them.
    pub(super) fn queued(&self) -> Option<u64> {
        gauge(str::from_utf8(&self.body_of("/metrics")?).ok()?, "mailrun_relay_queue_messages")
    }

    /// Body of a successful answer.
    fn body_of(&self, path: &str) -> Option<Bytes> {
        let answer = self.0.get(path).ok()?;
        answer.status.is_success().then_some(answer.body)
    }
}

/// The value of a gauge without labels, in Prometheus' text format.
fn gauge(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// `mailrun queue retry all`: what waits for its next try is tried now.
pub(super) fn retry_all(program: &Path, spool: &Path) -> Result<Child> {
    let mut command = Command::new(program);
    command.args(["queue", "retry", "all", "--spool"]).arg(spool);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("cannot start mailrun queue")
}

/// Reports whether the order has been carried out.
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
