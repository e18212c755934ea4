//! All contestants of a live comparison send their mail to the same sink process. The bench asks this process how many
//! messages it has received.
use crate::engine::TimedChild;
use crate::programs::own_program;
use crate::remote_sink::RemoteSink;
use anyhow::{Context, Result};
use mailrun_measurement::record::Record;
use mailrun_process::live::LiveEvent;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const READY_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// If no message arrives for this long, the bench assumes that a load generator sends no more. This time must be longer
/// than a quarter of a second, the interval at which the sink updates its count.
const QUIET_TIMEOUT: Duration = Duration::from_millis(1000);
/// If no message arrives for this long, the bench assumes that a server delivers no more. This time is longer than for
/// load generators, because a server may wait before it retries a delivery.
const SERVER_QUIET_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoundSinkPlace {
    /// The bench starts a sink on a free port.
    Own,
    /// The bench starts a sink on this address, to which the servers deliver.
    Listen(String),
    /// A sink is already running, and serves its status at this URL.
    Running(String),
}

#[derive(Debug)]
pub(super) struct RoundSink {
    /// The sink's process, or `None` if the sink was already running.
    process: Option<TimedChild>,
    client: RemoteSink,
    address: Option<SocketAddr>,
    quiet_timeout: Duration,
    _directory: Option<TempDir>,
}

impl RoundSink {
    /// Starts a sink process, or connects to a sink that is already running.
    pub(super) fn new(place: &RoundSinkPlace) -> Result<Self> {
        match place {
            RoundSinkPlace::Own => Self::start("127.0.0.1:0", QUIET_TIMEOUT),
            RoundSinkPlace::Listen(address) => Self::start(address, SERVER_QUIET_TIMEOUT),
            RoundSinkPlace::Running(url) => Self::connect(url),
        }
    }

    fn start(listen: &str, quiet_timeout: Duration) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("mailrun-compare-").tempdir();
        let directory = directory.context("cannot create a temporary directory")?;
        let output = directory.path().join("sink.stdout");
        let mut command = Command::new(own_program()?);
        command.args(["sink", "--listen", listen, "--http", "127.0.0.1:0"]).current_dir(directory.path());
        let listening = |event| match event {
            LiveEvent::Listening { smtp, http } => Some((smtp.first()?.parse().ok()?, http?)),
            _ => None,
        };
        let (process, (address, http)) =
            TimedChild::start_reporting(command, &output, "the sink", READY_TIMEOUT, listening)?;
        let client = RemoteSink::connect(&http)?;
        let address = Some(address);
        Ok(Self { process: Some(process), client, address, quiet_timeout, _directory: Some(directory) })
    }

    fn connect(url: &str) -> Result<Self> {
        let client = RemoteSink::connect(url)?;
        Ok(Self { process: None, client, address: None, quiet_timeout: SERVER_QUIET_TIMEOUT, _directory: None })
    }

    /// Returns the address at which the sink accepts mail. `None` if the user gave only a running sink's status URL.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the sink's record of a run, or `None` if the sink has received nothing of the run.
    pub(super) fn record(&self, run: &str) -> Option<Record> {
        self.client.record(run.parse().ok()?).ok()?
    }

    /// Returns the number of messages that the sink has received. The sink updates this number
    /// every quarter of a second.
    pub(super) fn messages(&self) -> Result<u64> {
        self.client.messages()
    }

    pub(super) fn ensure_running(&mut self) -> Result<()> {
        self.process.as_mut().map_or(Ok(()), |process| process.ensure_running("the sink"))
    }

    /// Waits until the sink has received `wanted` messages in total or no more arrive, and returns
    /// the count.
    pub(super) fn await_messages(&self, wanted: u64) -> Result<u64> {
        let mut count = self.messages()?;
        let mut quiet_since = Instant::now();
        while count < wanted && quiet_since.elapsed() < self.quiet_timeout {
            std::thread::sleep(POLL_INTERVAL);
            let now = self.messages()?;
            if now != count {
                count = now;
                quiet_since = Instant::now();
            }
        }
        Ok(count)
    }

    pub(super) fn await_quiet(&self) -> Result<u64> {
        self.await_messages(u64::MAX)
    }
}
