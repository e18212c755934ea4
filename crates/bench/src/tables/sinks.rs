//! The sinks of a table: a new one for each run on a free loopback port, with room for every session.
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

/// Limit of the time in which a sink begins to listen, and in which it ends when asked.
const SINK_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause in a dump's growth after which no more is expected: the source has ended and the sink is one hop away.
const QUIET_TIMEOUT: Duration = Duration::from_secs(1);
/// smtp-sink's own limit of 256 sessions is not what is to be measured.
const MIN_SESSIONS: u32 = 2000;
/// The length of its queue; the kernel may allow less (net.core.somaxconn).
const BACKLOG: &str = "4096";
/// User that smtp-sink switches to where it is started as root: it insists on switching.
const NOBODY: &str = "nobody";
/// Separator in smtp-sink's dump. Every separator could occur in a message; this one is unlikely to.
const SEPARATOR: &str = "== mailrun bench: the next message ==";

/// Says whether a sink keeps the messages that it takes.
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
    /// Fault options of mailrun's sink.
    pub(crate) faults: &'a PartyOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportedCounts {
    pub(crate) messages: u64,
    pub(crate) recipients: u64,
}

/// A sink that takes mail.
#[derive(Debug)]
pub(crate) struct TableSink {
    receiver: SinkTool,
    process: TimedChild,
    address: SocketAddr,
    directory: TempDir,
}

impl TableSink {
    /// Starts it and waits until it listens.
    pub(crate) fn start(launch: SinkLaunch<'_>) -> Result<Self> {
        match launch.receiver {
            SinkTool::Mailrun => Self::start_own(launch),
            SinkTool::SmtpSink => Self::start_smtp_sink(launch),
        }
    }

    /// Address at which it takes mail.
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
            // Its names are templates of strftime(3), and relative to a directory they have no sign of those.
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

    /// The messages that it has kept, once no more come or `messages` are there.
    pub(super) fn deliveries(&self, messages: u64) -> Result<Deliveries> {
        let mut length = 0;
        let mut quiet_since = Instant::now();
        loop {
            let kept = self.read_dump()?;
            let now = fs::metadata(dump_file(&self.directory)).map_or(0, |metadata| metadata.len());
            if now != length {
                (length, quiet_since) = (now, Instant::now());
            }
            if kept.messages >= messages || quiet_since.elapsed() >= QUIET_TIMEOUT {
                return Ok(kept);
            }
            std::thread::sleep(QUIET_TIMEOUT / 10);
        }
    }

    fn read_dump(&self) -> Result<Deliveries> {
        let path = dump_file(&self.directory);
        let file = match File::open(&path) {
            Ok(file) => std::io::BufReader::new(file),
            // Made with the first message.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Deliveries::default()),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let kept = match self.receiver {
            SinkTool::SmtpSink => deliveries::of_smtp_sink(file, SEPARATOR),
            SinkTool::Mailrun => deliveries::of_mailrun(file),
        };
        kept.with_context(|| format!("cannot read {}", path.display()))
    }

    /// Stops it: its costs, and its counts, if it reports them.
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

/// The counts of the last progress report: a sink reports once more when all is counted.
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
