//! The sinks of a table. Each run starts a new sink on a free loopback port, with enough room for
//! all sessions.
use super::deliveries::{self, Deliveries};
use crate::engine::{Costs, TimedChild};
use crate::launch::free_port;
use crate::scenario::SinkTool;
use anyhow::{Context, Result};
use mailrun_party::live::{LiveEvent, LiveProgress};
use mailrun_party::party_options::PartyOptions;
use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time that a sink has to start listening, and time that it has to exit when asked.
const SINK_TIMEOUT: Duration = Duration::from_secs(30);
/// If the file of saved messages does not grow for this long, nothing more is expected: the source
/// has ended, and the sink is only one hop away.
const QUIET_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum for smtp-sink's limit of sessions. Its default of 256 would distort the measurement.
const MIN_SESSIONS: u32 = 2000;
/// Length of smtp-sink's listen queue. The kernel may use less (net.core.somaxconn).
const BACKLOG: &str = "4096";
/// User to which smtp-sink switches. If it is started as root, it insists on a user to switch to.
const NOBODY: &str = "nobody";
/// Separator between the messages that smtp-sink saves. A message could contain the separator, but
/// is unlikely to.
const SEPARATOR: &str = "== mailrun bench: the next message ==";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DumpMode {
    Nothing,
    Dump,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SinkLaunch<'a> {
    pub(crate) receiver: SinkTool,
    pub(crate) program: &'a Path,
    pub(crate) sessions: u32,
    pub(crate) dump_mode: DumpMode,
    /// Options that make mailrun's sink simulate faults.
    pub(crate) faults: &'a PartyOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportedCounts {
    pub(crate) messages: u64,
    pub(crate) recipients: u64,
}

/// A running sink.
#[derive(Debug)]
pub(crate) struct TableSink {
    receiver: SinkTool,
    process: TimedChild,
    address: SocketAddr,
    directory: TempDir,
}

impl TableSink {
    /// Starts a sink and waits until it listens.
    pub(crate) fn start(launch: SinkLaunch<'_>) -> Result<Self> {
        match launch.receiver {
            SinkTool::Mailrun => Self::start_own(launch),
            SinkTool::SmtpSink => Self::start_smtp_sink(launch),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn start_own(launch: SinkLaunch<'_>) -> Result<Self> {
        let directory = directory()?;
        let mut command = Command::new(launch.program);
        command.args(["sink", "--listen", "127.0.0.1:0"]).args(launch.faults.words()).current_dir(directory.path());
        if launch.dump_mode == DumpMode::Dump {
            command.arg("--dump-file").arg(dump_file(&directory));
        }
        let listening = |event| match event {
            LiveEvent::Listening { smtp, .. } => smtp.first()?.parse().ok(),
            _ => None,
        };
        let output = stdout_file(&directory);
        let (process, address) =
            TimedChild::start_reporting(command, &output, "mailrun sink", SINK_TIMEOUT, listening)?;
        Ok(Self { receiver: launch.receiver, process, address, directory })
    }

    fn start_smtp_sink(launch: SinkLaunch<'_>) -> Result<Self> {
        let directory = directory()?;
        let mut command = Command::new(launch.program);
        if rustix::process::geteuid().is_root() {
            let user = nix::unistd::User::from_name(NOBODY).ok().flatten();
            let user =
                user.with_context(|| format!("smtp-sink cannot run as root, and the user {NOBODY} does not exist"))?;
            chown(directory.path(), Some(user.uid.as_raw()), None)
                .context("cannot change the owner of a directory to the user of smtp-sink")?;
            command.args(["-u", NOBODY]);
        }
        if launch.dump_mode == DumpMode::Dump {
            // smtp-sink expands the file name with strftime(3). A name relative to the directory
            // cannot contain a `%`.
            command.args(["-S", &format!("{SEPARATOR}\\n"), "-D", "dump"]);
        }
        let address = free_port()?;
        command.args(["-m", &launch.sessions.saturating_mul(2).max(MIN_SESSIONS).to_string()]);
        command.args([&address.to_string(), BACKLOG]);
        command.current_dir(directory.path()).stdout(Stdio::null());
        let mut process = TimedChild::start(command)?;
        process.await_ready("smtp-sink", SINK_TIMEOUT, || {
            let mut stream = TcpStream::connect(address).ok()?;
            stream.write_all(b"QUIT\r\n").ok()
        })?;
        Ok(Self { receiver: launch.receiver, process, address, directory })
    }

    /// Reads the messages that the sink has saved. Waits until there are `messages` of them, or
    /// until no more arrive.
    pub(super) fn deliveries(&self, messages: u64) -> Result<Deliveries> {
        let mut length = 0;
        let mut quiet_since = Instant::now();
        loop {
            let deliveries = self.read_dump()?;
            let now = fs::metadata(dump_file(&self.directory)).map_or(0, |metadata| metadata.len());
            if now != length {
                (length, quiet_since) = (now, Instant::now());
            }
            if deliveries.messages >= messages || quiet_since.elapsed() >= QUIET_TIMEOUT {
                return Ok(deliveries);
            }
            std::thread::sleep(QUIET_TIMEOUT / 10);
        }
    }

    fn read_dump(&self) -> Result<Deliveries> {
        let path = dump_file(&self.directory);
        let file = match File::open(&path) {
            Ok(file) => std::io::BufReader::new(file),
            // The sink creates the file with the first message.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Deliveries::default()),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let deliveries = match self.receiver {
            SinkTool::SmtpSink => deliveries::of_smtp_sink(file, SEPARATOR),
            SinkTool::Mailrun => deliveries::of_mailrun(file),
        };
        deliveries.with_context(|| format!("cannot read {}", path.display()))
    }

    /// Stops the sink. Returns its costs, and its counts if it reports them.
    pub(crate) fn stop(mut self) -> Result<(Costs, Option<ReportedCounts>)> {
        self.process.ensure_running("the sink")?;
        let (_, costs) = self.process.stop(SINK_TIMEOUT)?;
        let output = fs::read_to_string(stdout_file(&self.directory)).unwrap_or_default();
        Ok((costs, last_counts(&output)))
    }
}

fn directory() -> Result<TempDir> {
    tempfile::Builder::new().prefix("mailrun-table-").tempdir().context("cannot create a temporary directory")
}

fn stdout_file(directory: &TempDir) -> PathBuf {
    directory.path().join("stdout")
}

fn dump_file(directory: &TempDir) -> PathBuf {
    directory.path().join("dump")
}

/// Returns the counts of the last progress report. A sink sends a last report when everything is
/// counted.
fn last_counts(output: &str) -> Option<ReportedCounts> {
    output.lines().rev().find_map(|line| match LiveEvent::from_line(line) {
        Some(LiveEvent::Progress(LiveProgress { delivered, recipients, .. })) => {
            Some(ReportedCounts { messages: delivered, recipients })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts() {
        let output = "{\"event\":\"listening\",\"smtp\":[\"127.0.0.1:1\"],\"http\":null}\n\
            {\"event\":\"progress\",\"delivered\":5,\"recipients\":15}\n\
            {\"event\":\"progress\",\"delivered\":7,\"recipients\":21}\n{\"event\":\"done\"}\n";
        assert_eq!(last_counts(output), Some(ReportedCounts { messages: 7, recipients: 21 }));
        assert_eq!(last_counts("nonsense"), None);
    }
}
