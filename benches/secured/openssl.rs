//! Runs OpenSSL's programs: s_server, s_time, s_client and speed.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::bench::{Bench, Side};
use super::handshakes::{Kind, Version};
use crate::party::Party;

/// Name by which `openssl speed` knows the cipher that all runs use ([`Version::cipher`]).
const CIPHER: &str = "aes-256-gcm";

const RECORD_OCTETS: &str = "16384";

/// Duration of s_time in seconds. s_time counts whole seconds of the clock, and so runs for one to two seconds.
const SECONDS: &str = "2";

impl Version {
    fn option(self) -> &'static str {
        match self {
            Self::Tls13 => "-tls1_3",
            Self::Tls12 => "-tls1_2",
        }
    }

    /// Returns the options that allow only the measured cipher, which is the first that rustls offers.
    fn cipher_options(self) -> [&'static str; 2] {
        match self {
            Self::Tls13 => ["-ciphersuites", "TLS_AES_256_GCM_SHA384"],
            Self::Tls12 => ["-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"],
        }
    }
}

/// Starts s_server and discards what it receives. Its standard input is a pipe that stays open, because s_server would
/// spin at the end of its input.
pub(crate) fn start_server(bench: &Bench, version: Version) -> anyhow::Result<(Party, SocketAddr)> {
    // s_server cannot report which port the kernel has chosen, so find a free port here, and let
    // s_server listen on it.
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let mut command = bench.command(Side::Server, "openssl");
    command.args(["s_server", "-quiet", "-accept", &address.to_string(), version.option()]);
    command.args(version.cipher_options());
    command.arg("-cert").arg(bench.certificate()).arg("-key").arg(bench.key());
    let party = Party::start_between(Stdio::piped(), command, nowhere()?)?;
    let limit = Instant::now() + Duration::from_secs(10);
    while !answers(address) {
        let ended = party.ends_within(Duration::from_millis(20))?;
        ensure!(!ended && Instant::now() < limit, "s_server does not listen: {}", party.complaint());
    }
    Ok((party, address))
}

fn nowhere() -> anyhow::Result<File> {
    Ok(File::options().read(true).write(true).open("/dev/null")?)
}

/// Returns true if the server accepts connections. Sends something other than TLS, so that the server closes this
/// connection at once.
fn answers(address: SocketAddr) -> bool {
    TcpStream::connect(address).and_then(|mut stream| stream.write_all(b"QUIT\r\n")).is_ok()
}

/// Starts s_time, which makes one handshake after the other, each on a new connection.
pub(crate) fn start_s_time(bench: &Bench, version: Version, kind: Kind, to: SocketAddr) -> anyhow::Result<Party> {
    let mut command = bench.command(Side::Client, "openssl");
    let kind = match kind {
        Kind::Full => "-new",
        Kind::Resumed => "-reuse",
    };
    command.args(["s_time", "-connect", &to.to_string(), kind, version.option(), "-time", SECONDS]);
    command.args(version.cipher_options());
    Party::start(command)
}

/// Returns the number of connections from s_time's output. Fails if their handshakes were not of the requested kind,
/// but allows two full handshakes among resumed ones. The output has a letter for each connection, `r` for a resumed
/// one, and then `951 connections in 0.84s; …`.
pub(crate) fn connections(said: &str, kind: Kind) -> anyhow::Result<u64> {
    let line = said.lines().find(|line| line.contains(" connections in ")).context("s_time gave no count")?;
    let count: u64 = line.split_whitespace().next().context("no count")?.parse()?;
    let resumed = said.lines().filter(|line| line.bytes().all(|mark| mark == b'r')).map(str::len).sum::<usize>() as u64;
    ensure!(count > 0, "s_time made no connection");
    match kind {
        Kind::Full => ensure!(resumed == 0, "s_time resumed {resumed} of {count}"),
        Kind::Resumed => ensure!(resumed + 2 >= count, "s_time resumed only {resumed} of {count}"),
    }
    Ok(count)
}

/// Starts s_client, which sends the content of the file to the server.
pub(crate) fn start_s_client(bench: &Bench, version: Version, file: File, to: SocketAddr) -> anyhow::Result<Party> {
    let mut command = bench.command(Side::Client, "openssl");
    command.args(["s_client", "-quiet", "-no_ign_eof", "-connect", &to.to_string(), version.option()]);
    command.args(version.cipher_options());
    Party::start_between(file.into(), command, nowhere()?)
}

/// Measures how many octets per second a core can encrypt if it does nothing else. The octets are encrypted in records
/// of 16 KiB, the largest that TLS allows.
pub(crate) fn speed(bench: &Bench) -> anyhow::Result<f64> {
    let mut command: Command = bench.command(Side::Client, "openssl");
    command.args(["speed", "-mr", "-seconds", "1", "-bytes", RECORD_OCTETS, "-evp", CIPHER]);
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    // The line looks like +F:22:AES-256-GCM:2908012543.99 and ends with the octets per second.
    let line = said.lines().find(|line| line.starts_with("+F:")).with_context(|| format!("speed said {said}"))?;
    Ok(line.rsplit(':').next().context("no figure")?.parse()?)
}
