//! The sink of a live comparison: one process that takes the mail of all contestants, and is asked for its count.
use crate::engine::TimedChild;
use crate::programs::own_program;
use crate::remote_sink::RemoteSink;
use anyhow::{Context, Result};
use mailrun_journey::record::Record;
use mailrun_party::live::LiveEvent;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Limit of the time in which it begins to listen.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of the questions for its count.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Pause in arrivals after which no more are expected from a load generator; the sink counts every quarter of a second.
const QUIET_TIMEOUT: Duration = Duration::from_millis(1000);
/// The same for a server in between, which may wait before it tries again.
const SERVER_QUIET_TIMEOUT: Duration = Duration::from_secs(10);

/// Place of the sink that counts deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoundSinkPlace {
    /// A free port.
    Own,
    /// An address that servers deliver to.
    Listen(String),
    /// It is running already, with its status at this URL.
    Running(String),
}

/// A sink that runs for the whole comparison.
#[derive(Debug)]
pub(super) struct RoundSink {
    /// The process; a sink that was running already has none.
    process: Option<TimedChild>,
    client: RemoteSink,
    address: Option<SocketAddr>,
    quiet_timeout: Duration,
    _directory: Option<TempDir>,
}

impl RoundSink {
    /// Starts or finds it.
    pub(super) fn new(place: &RoundSinkPlace) -> Result<Self> {
        match place {
            RoundSinkPlace::Own => Self::start("127.0.0.1:0", QUIET_TIMEOUT),
            RoundSinkPlace::Listen(address) => Self::start(address, SERVER_QUIET_TIMEOUT),
            RoundSinkPlace::Running(url) => Self::connect(url),
        }
    }

    /// Starts it and waits until it listens.
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

    /// Finds one that is running.
    fn connect(url: &str) -> Result<Self> {
        let client = RemoteSink::connect(url)?;
        Ok(Self { process: None, client, address: None, quiet_timeout: SERVER_QUIET_TIMEOUT, _directory: None })
    }

    /// Address at which the bench's own takes mail.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Its record of a run; `None` if it has seen nothing of it.
    pub(super) fn record(&self, run: &str) -> Option<Record> {
        self.client.record(run.parse().ok()?).ok()?
    }

    /// Messages that it has taken, as of a quarter of a second ago.
    pub(super) fn messages(&self) -> Result<u64> {
        self.client.messages()
    }

    /// Fails if it has ended.
    pub(super) fn ensure_running(&mut self) -> Result<()> {
        self.process.as_mut().map_or(Ok(()), |process| process.ensure_running("the sink"))
    }

    /// Waits until it has taken `wanted` messages, or no more come; returns the count.
    pub(super) fn await_messages(&self, wanted: u64) -> Result<u64> {
        let mut seen = self.messages()?;
        let mut quiet_since = Instant::now();
        while seen < wanted && quiet_since.elapsed() < self.quiet_timeout {
            std::thread::sleep(POLL_INTERVAL);
            let now = self.messages()?;
            if now != seen {
                seen = now;
                quiet_since = Instant::now();
            }
        }
        Ok(seen)
    }

    /// Waits until no more messages come; returns the count.
    pub(super) fn await_quiet(&self) -> Result<u64> {
        self.await_messages(u64::MAX)
    }
}
