//! Makes one run of a table: starts a new sink, runs a source with a time limit, and measures the CPU time and memory
//! of both. Each sink listens on a free loopback port, and can serve all sessions at the same time.
use super::cases::{SinkTool, SourceTool, TableCase, TableOptions};
use super::contestants::command;
use crate::engine::{ComparedRun, Comparison, Costs, RunTurn, TimedChild, miscount};
use crate::launch::free_port;
use crate::programs::InstalledPrograms;
use anyhow::{Context, Result};
use mailrun_process::live::{LiveEvent, LiveProgress};
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

#[derive(Clone, Debug)]
pub(super) struct TableMeasurement {
    pub(super) source: Costs,
    pub(super) sink: Costs,
    /// Number of messages that the sink itself has counted. `None` for smtp-sink, which reports no count.
    pub(super) arrived: Option<u64>,
}

pub(super) struct TableComparison<'o> {
    pub(super) options: &'o TableOptions,
    pub(super) sources: InstalledPrograms<SourceTool>,
    pub(super) sinks: InstalledPrograms<SinkTool>,
}

impl Comparison for TableComparison<'_> {
    type Case = TableCase;
    type Measurement = TableMeasurement;

    fn name(&self, case: &TableCase) -> String {
        case.description()
    }

    fn run(&self, case: &TableCase, turn: &mut RunTurn<'_>) -> Result<Option<ComparedRun<TableMeasurement>>> {
        let TableOptions { messages, limit, .. } = *self.options;
        let sink = TableSink::start(case.receiver, self.sinks.path(case.receiver)?, case.sessions)?;
        let mut command = command(self.sources.path(case.tool)?, case, messages, sink.address());
        command.stdout(Stdio::null());
        let mut source = TimedChild::start(command)?;
        let Some((status, costs)) = turn.await_exit(&mut source, limit, || None, || Ok(()))? else { return Ok(None) };
        if !status.success() {
            return Err(source.exit_error(status));
        }
        let (sink, arrived) = sink.stop()?;
        let measured = TableMeasurement { source: costs, sink, arrived };
        let fault = measured.arrived.and_then(|arrived| miscount(arrived, messages));
        Ok(Some(ComparedRun::of(measured, fault)))
    }
}

/// Maximum time that a sink may take to start listening, and to exit when asked.
const SINK_TIMEOUT: Duration = Duration::from_secs(30);
/// The table sets the session limit of smtp-sink (`-m`) at least to this number. At its default limit of 256 sessions,
/// smtp-sink accepts no further connection until a session ends.
const MIN_SESSIONS: u32 = 2000;
/// Length of smtp-sink's listen queue. The kernel may use less (net.core.somaxconn).
const BACKLOG: &str = "4096";
/// User to which smtp-sink switches, because smtp-sink insists on this if it is started as root.
const NOBODY: &str = "nobody";

/// A running sink. Dropping this value kills the sink's process.
#[derive(Debug)]
pub(crate) struct TableSink {
    process: TimedChild,
    address: SocketAddr,
    directory: TempDir,
}

impl TableSink {
    pub(crate) fn start(tool: SinkTool, program: &Path, sessions: u32) -> Result<Self> {
        match tool {
            SinkTool::Mailrun => Self::start_own(program),
            SinkTool::SmtpSink => Self::start_smtp_sink(program, sessions),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn start_own(program: &Path) -> Result<Self> {
        let directory = directory()?;
        let mut command = Command::new(program);
        command.args(["sink", "--listen", "127.0.0.1:0"]).current_dir(directory.path());
        let listening = |event| match event {
            LiveEvent::Listening { smtp, .. } => smtp.first()?.parse().ok(),
            _ => None,
        };
        let output = stdout_file(&directory);
        let (process, address) =
            TimedChild::start_reporting(command, &output, "mailrun sink", SINK_TIMEOUT, listening)?;
        Ok(Self { process, address, directory })
    }

    fn start_smtp_sink(program: &Path, sessions: u32) -> Result<Self> {
        let directory = directory()?;
        let mut command = Command::new(program);
        if rustix::process::geteuid().is_root() {
            let user = nix::unistd::User::from_name(NOBODY).ok().flatten();
            let user =
                user.with_context(|| format!("smtp-sink cannot run as root, and the user {NOBODY} does not exist"))?;
            chown(directory.path(), Some(user.uid.as_raw()), None)
                .context("cannot change the owner of a directory to the user of smtp-sink")?;
            command.args(["-u", NOBODY]);
        }
        let address = free_port()?;
        command.args(["-m", &sessions.saturating_mul(2).max(MIN_SESSIONS).to_string()]);
        command.args([&address.to_string(), BACKLOG]);
        command.current_dir(directory.path()).stdout(Stdio::null());
        let mut process = TimedChild::start(command)?;
        process.await_ready("smtp-sink", SINK_TIMEOUT, || {
            let mut stream = TcpStream::connect(address).ok()?;
            stream.write_all(b"QUIT\r\n").ok()
        })?;
        Ok(Self { process, address, directory })
    }

    /// Stops the sink. Returns its costs and, if the sink reports it, the number of received messages.
    pub(crate) fn stop(mut self) -> Result<(Costs, Option<u64>)> {
        self.process.ensure_running("the sink")?;
        let (_, costs) = self.process.stop(SINK_TIMEOUT)?;
        let output = fs::read_to_string(stdout_file(&self.directory)).unwrap_or_default();
        Ok((costs, last_count(&output)))
    }
}

fn directory() -> Result<TempDir> {
    tempfile::Builder::new().prefix("mailrun-table-").tempdir().context("cannot create a temporary directory")
}

fn stdout_file(directory: &TempDir) -> PathBuf {
    directory.path().join("stdout")
}

/// Returns the number of messages in the last progress report of a sink. This number is complete, because a sink sends
/// a last report after it has counted everything.
fn last_count(output: &str) -> Option<u64> {
    output.lines().rev().find_map(|line| match LiveEvent::from_line(line) {
        Some(LiveEvent::Progress(LiveProgress { delivered, .. })) => Some(delivered),
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
        assert_eq!(last_count(output), Some(7));
        assert_eq!(last_count("nonsense"), None);
    }
}
