//! What all runs of the TLS bench share: a certificate, a core for the server, and another core for the client.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use mailrun_net::Certificate;

use crate::party::Party;
use crate::processor::processor_time;

const MAILRUN: &str = env!("CARGO_BIN_EXE_mailrun");

/// Time limit of a run. A run normally takes a few seconds, so a run that reaches the limit has hung.
const RUN_LIMIT: Duration = Duration::from_secs(120);

/// Side of a TLS connection. If the bench can pin processes, each side has a processor core of its own.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Server,
    Client,
}

/// What all runs have in common: the directory with the certificate, whether each side is pinned to a core, and the
/// version of OpenSSL.
pub(crate) struct Bench {
    directory: tempfile::TempDir,
    is_pinned: bool,
    openssl_version: String,
}

/// Result of a client's run: its output, its duration, and the processor time of both sides.
pub(crate) struct Run {
    pub(crate) said: String,
    pub(crate) wall: Duration,
    pub(crate) client_time: Duration,
    pub(crate) server_time: Duration,
}

impl Bench {
    /// Creates the bench with a new self-signed certificate (ECDSA on P-256).
    pub(crate) fn new() -> anyhow::Result<Self> {
        let Ok(version) = Command::new("openssl").arg("version").output() else {
            bail!("openssl is not installed (Debian: apt-get install openssl)");
        };
        let directory = tempfile::tempdir()?;
        let certificate = Certificate::self_signed(&["localhost", "127.0.0.1"])?;
        std::fs::write(directory.path().join("certificate.pem"), certificate.to_pem())?;
        std::fs::write(directory.path().join("key.pem"), certificate.key_to_pem())?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let is_pinned = cores > 1 && Command::new("taskset").arg("--version").output().is_ok();
        let openssl_version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
        Ok(Self { directory, is_pinned, openssl_version })
    }

    pub(crate) fn openssl_version(&self) -> &str {
        &self.openssl_version
    }

    pub(crate) fn cores(&self) -> &'static str {
        if self.is_pinned { "on a core each" } else { "NOT PINNED: no taskset, or one core only" }
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.path().join("certificate.pem")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.directory.path().join("key.pem")
    }

    /// Returns the path of a file that is deleted at the end of the bench.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns a command that runs the program. If the sides are pinned to cores, the command is `taskset`, which binds
    /// the program to the side's core. `taskset` replaces itself by the program, so both have the same process id.
    pub(crate) fn command(&self, side: Side, program: impl AsRef<OsStr>) -> Command {
        if !self.is_pinned {
            return Command::new(program);
        }
        let core = match side {
            Side::Server => "0",
            Side::Client => "1",
        };
        let mut command = Command::new("taskset");
        command.args(["-c", core]).arg(program);
        command
    }

    /// Starts mailrun's sink. `tls` is the value of the option `--tls`: `implicit`, which means TLS from the first
    /// octet on, or `none`.
    pub(crate) fn start_sink(&self, tls: &str) -> anyhow::Result<(Party, SocketAddr)> {
        let mut command = self.command(Side::Server, MAILRUN);
        command.args(["sink", "--listen", "127.0.0.1:0", "--live", "json", "--workers", "1", "--tls", tls]);
        if tls != "none" {
            command.arg("--tls-cert").arg(self.certificate()).arg("--tls-key").arg(self.key());
        }
        Party::start_listening(command)
    }

    pub(crate) fn source(&self) -> Command {
        let mut command = self.command(Side::Client, MAILRUN);
        command.arg("source");
        command
    }

    /// Starts the client, waits for it to end, and measures the processor time of both sides during the run.
    pub(crate) fn attend(&self, server: &Party, client: impl FnOnce() -> anyhow::Result<Party>) -> anyhow::Result<Run> {
        let server_before = processor_time(server.pid())?;
        let began = std::time::Instant::now();
        let client = client()?;
        ensure!(client.ends_within(RUN_LIMIT)?, "a client did not end within {} s", RUN_LIMIT.as_secs());
        let wall = began.elapsed();
        let client_time = processor_time(client.pid())?;
        let server_time = processor_time(server.pid()).context("the server ended")?.saturating_sub(server_before);
        Ok(Run { said: client.reap()?, wall, client_time, server_time })
    }
}
