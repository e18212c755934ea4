//! A child process that takes part in a bench. The bench can read its output and wait for its end, and never leaves it
//! running.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// Time limit for a sink to report its address, and for any process to stop.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running child process. Dropping the value kills the process, so that a failed bench leaves
/// nothing running.
pub(crate) struct Party {
    command: String,
    child: Child,
    end: OwnedFd,
    stderr: File,
    stdout: File,
}

impl Party {
    /// Starts a process without input. `reap` returns its output after its end.
    pub(crate) fn start(command: Command) -> anyhow::Result<Self> {
        Self::start_between(Stdio::null(), command, tempfile::tempfile()?)
    }

    /// Like `start`, but with an input and with a file for the output. The file may be /dev/null.
    pub(crate) fn start_between(input: Stdio, mut command: Command, stdout: File) -> anyhow::Result<Self> {
        command.stdout(stdout.try_clone()?);
        Self::spawn(input, command, stdout)
    }

    /// Starts a process and waits for its first line of output, `{"event":"listening","smtp":["ADDRESS"],…}`. Returns
    /// the process and the address in this line.
    pub(crate) fn start_listening(mut command: Command) -> anyhow::Result<(Self, SocketAddr)> {
        command.stdout(Stdio::piped());
        let mut party = Self::spawn(Stdio::null(), command, tempfile::tempfile()?)?;
        let stdout = party.child.stdout.take().context("stdout is piped")?;
        let Ok(line) = first_line(stdout).recv_timeout(PATIENCE) else {
            bail!("{} did not say where it listens: {}", party.command, party.complaint());
        };
        let address = listening_address(&line).with_context(|| format!("{} said {line}", party.command))?;
        Ok((party, address))
    }

    fn spawn(input: Stdio, mut command: Command, stdout: File) -> anyhow::Result<Self> {
        let stderr = tempfile::tempfile()?;
        command.stdin(input).stderr(stderr.try_clone()?);
        let name = format!("{:?}", command).replace('"', "");
        let child = command.spawn().with_context(|| format!("could not start {name}"))?;
        let end = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        Ok(Self { command: name, child, end, stderr, stdout })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the process to end. Returns false if it is still running after `limit`. Its CPU time in /proc can be
    /// read until `reap` or `stop` is called.
    pub(crate) fn ends_within(&self, limit: Duration) -> anyhow::Result<bool> {
        let timeout = Timespec { tv_sec: i64::try_from(limit.as_secs())?, tv_nsec: limit.subsec_nanos().into() };
        Ok(poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&timeout))? > 0)
    }

    /// Waits for the process to end and returns its output. Fails unless its exit status is 0.
    pub(crate) fn reap(mut self) -> anyhow::Result<String> {
        let status = self.child.wait()?;
        ensure!(status.success(), "{} ended with {status}: {}", self.command, self.complaint());
        read_back(&self.stdout)
    }

    /// Sends SIGTERM and waits for the process to end. The caller has to judge the exit status.
    pub(crate) fn stop(mut self) -> anyhow::Result<ExitStatus> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        ensure!(self.ends_within(PATIENCE)?, "{} did not stop on SIGTERM", self.command);
        Ok(self.child.wait()?)
    }

    /// Returns what the process wrote on standard error.
    pub(crate) fn complaint(&self) -> String {
        read_back(&self.stderr).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        // If the child was already waited for, both calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a thread that reads the output. The receiver gets the first line. The thread reads on after that, because the
/// process would block if its pipe filled up.
fn first_line(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Ignore the error, because the caller may drop the receiver after the first line.
            let _ = sender.send(line);
        }
    });
    receiver
}

fn listening_address(line: &str) -> anyhow::Result<SocketAddr> {
    let event: serde_json::Value = serde_json::from_str(line)?;
    let address = event["smtp"][0].as_str().context("no address in it")?;
    Ok(address.parse()?)
}

fn read_back(mut file: &File) -> anyhow::Result<String> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text)
}
