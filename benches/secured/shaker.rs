//! A client that only makes TLS handshakes, like OpenSSL's s_time, but with the code of mailrun's source.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use mailrun_net::{ClientTls, Handshake, SessionResumption, Socket, Stream, TlsVersions, Trust, worker};
use rustix::net::{Shutdown, shutdown};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::bench::{Bench, Side};
use super::handshakes::{Kind, Version};
use crate::party::Party;

/// First argument that makes this program run as the client instead of the bench.
const ROLE: &str = "tls-shaker";

/// Time for which the client makes handshakes.
const RUN: Duration = Duration::from_millis(800);

/// How a connection ends after the handshake.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parting {
    /// The client closes the connection at once, as s_time does.
    AtOnce,
    /// The client shuts down its side and reads until the server closes the connection, in order to receive the tickets
    /// that a server sends after a handshake of TLS 1.3.
    Heard,
}

/// What the client prints as JSON before it exits.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) handshakes: u64,
    pub(crate) resumed: u64,
    pub(crate) seconds: f64,
    pub(crate) cipher: String,
}

/// Starts the client, which makes its handshakes in `sessions` parallel sessions.
pub(crate) fn start(
    bench: &Bench,
    version: Version,
    kind: Kind,
    parting: Parting,
    sessions: u32,
    to: SocketAddr,
) -> anyhow::Result<Party> {
    let mut command: Command = bench.command(Side::Client, std::env::current_exe()?);
    let version = if version == Version::Tls13 { "1.3" } else { "1.2" };
    let kind = if kind == Kind::Full { "full" } else { "resumed" };
    let parting = if parting == Parting::AtOnce { "at-once" } else { "heard" };
    command.args([ROLE, &to.to_string(), version, kind, parting, &sessions.to_string()]);
    Party::start(command)
}

/// Parses the client's report. Fails if handshakes were not of the requested kind. If the kind is `Resumed`, up to two
/// full handshakes per session are allowed, because there is no ticket at first.
pub(crate) fn report(said: &str, kind: Kind, sessions: u32) -> anyhow::Result<Report> {
    let report: Report = serde_json::from_str(said).context("the shaker's report")?;
    ensure!(report.handshakes > u64::from(sessions), "the shaker made {} handshakes", report.handshakes);
    match kind {
        Kind::Full => ensure!(report.resumed == 0, "{} handshakes were resumed", report.resumed),
        Kind::Resumed => {
            let full = report.handshakes - report.resumed;
            ensure!(full <= 2 * u64::from(sessions), "{full} of {} handshakes were full ones", report.handshakes);
        }
    }
    Ok(report)
}

/// Runs the client if the first argument is `ROLE`. Returns `None` if this process is the bench itself.
pub(crate) fn play(arguments: &[String]) -> Option<anyhow::Result<()>> {
    (arguments.get(1)? == ROLE).then(|| shake_for_a_while(&arguments[2..]))
}

fn shake_for_a_while(words: &[String]) -> anyhow::Result<()> {
    let [to, version, kind, parting, sessions] = words else { bail!("the shaker takes five words") };
    let to: SocketAddr = to.parse()?;
    let versions = if version == "1.3" { TlsVersions::Only13 } else { TlsVersions::Only12 };
    let resumption = if kind == "full" { SessionResumption::Off } else { SessionResumption::On };
    let parting = if parting == "heard" { Parting::Heard } else { Parting::AtOnce };
    let tls = ClientTls::with_versions(versions, "localhost", &Trust::Anybody, None, resumption)?;
    let began = Instant::now();
    let mut report = worker::run(move |_| shake_side_by_side(sessions.parse().unwrap_or(1), to, tls, parting))??;
    report.seconds = began.elapsed().as_secs_f64();
    serde_json::to_writer(std::io::stdout(), &report)?;
    Ok(())
}

/// Makes handshakes in `sessions` parallel sessions until the time `RUN` is over.
async fn shake_side_by_side(sessions: usize, to: SocketAddr, tls: ClientTls, parting: Parting) -> io::Result<Report> {
    let until = Instant::now() + RUN;
    let report = Rc::new(RefCell::new(Report::default()));
    let (ended, mut ends) = mpsc::unbounded_channel();
    for _ in 0..sessions {
        let report = Rc::clone(&report);
        let tls = tls.clone();
        let ended = ended.clone();
        worker::spawn_local(async move {
            let mut outcome = Ok(());
            while outcome.is_ok() && Instant::now() < until {
                outcome = shake(to, &tls, parting).await.map(|handshake| report.borrow_mut().count(handshake));
            }
            // Ignore the error. The receiver has stopped only if another session has already failed.
            let _ = ended.send(outcome);
        });
    }
    drop(ended);
    while let Some(outcome) = ends.recv().await {
        outcome?;
    }
    Ok(report.take())
}

impl Report {
    fn count(&mut self, handshake: Handshake) {
        self.handshakes += 1;
        self.resumed += u64::from(handshake.resumed);
        self.cipher = handshake.cipher;
    }
}

async fn shake(to: SocketAddr, tls: &ClientTls, parting: Parting) -> io::Result<Handshake> {
    let mut stream = Stream::from(Socket::connect(to).await?);
    let handshake = stream.connect_tls(tls).await?;
    if parting == Parting::Heard {
        next_turn().await;
        shutdown(&stream, Shutdown::Write)?;
        let mut room = [0; 4096];
        // Ignore an error while closing, because the handshake is already complete.
        while poll_fn(|_| stream.poll_read(&mut room)).await.is_ok_and(|count| count > 0) {}
    }
    Ok(handshake)
}

/// Waits for the next turn of the event loop, because the loop may send this turn's data only at the end of the turn.
async fn next_turn() {
    let mut has_waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
