//! Measures how much memory sessions take: the resident memory of mailrun's source and sink with a thousand idle and
//! ten thousand busy sessions.
//!
//! `cargo bench --bench memory`. Exit status: 0 if source and sink stay within all limits, 1 if a limit is exceeded, 2
//! if the bench could not run.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench reports to the terminal")]

#[path = "ruler/party.rs"]
mod party;
#[path = "ruler/resident.rs"]
mod resident;
#[path = "ruler/stalled.rs"]
mod stalled;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mailrun_text::table::{Align, Table, right};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use party::Party;
use resident::{Resident, open_descriptors};
use stalled::Stalled;

const MAILRUN: &str = env!("CARGO_BIN_EXE_mailrun");

const MEGABYTE: u64 = 1024 * 1024;
const IDLE_SESSIONS: usize = 1_000;
const IDLE_LIMIT_BYTES: u64 = 16 * MEGABYTE;
const BUSY_SESSIONS: usize = 10_000;
const BUSY_LIMIT_BYTES: u64 = 64 * MEGABYTE;
/// Number of messages that the busy sessions send together. It is so large that the first sessions are still busy when
/// the last one opens.
const BUSY_MESSAGES: u64 = 400_000;
/// Number of descriptors that a program may need in addition to one per session. If the hard limit on open files is too
/// low for both, the busy sessions are not measured.
const OTHER_DESCRIPTORS: u64 = 100;

const PATIENCE: Duration = Duration::from_secs(20);
const RUN_LIMIT: Duration = Duration::from_secs(180);
const SAMPLE_EVERY: Duration = Duration::from_millis(20);
/// Pause before the memory is read, because a program may still have work to do after its last session became idle.
const SETTLE: Duration = Duration::from_millis(600);

fn main() -> ExitCode {
    if cfg!(debug_assertions) {
        println!("memory: a debug build measures nothing; run `cargo bench --bench memory`");
        return ExitCode::SUCCESS;
    }
    match measure() {
        Ok(rows) => report(&rows),
        Err(error) => {
            eprintln!("memory: {error:#}");
            ExitCode::from(2)
        }
    }
}

struct Row {
    situation: &'static str,
    process: &'static str,
    sessions: usize,
    resident: Resident,
    limit_bytes: u64,
}

impl Row {
    fn is_within_limit(&self) -> bool {
        self.resident.peak < self.limit_bytes
    }
}

fn measure() -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let descriptors = getrlimit(Resource::Nofile);
    if descriptors.maximum.is_none_or(|most| most >= BUSY_SESSIONS as u64 + OTHER_DESCRIPTORS) {
        // Measure 10,000 sessions before the limit on open files is raised below. The programs under test then inherit
        // the original limit and must raise it themselves.
        rows.extend(busy().context("10,000 sessions")?);
    } else {
        println!("SKIPPED: 10,000 sessions: the hard limit on open files is {:?} (ulimit -Hn)", descriptors.maximum);
    }
    setrlimit(Resource::Nofile, Rlimit { current: descriptors.maximum, maximum: descriptors.maximum })?;
    rows.extend(idle_sink().context("idle sessions at the sink")?);
    rows.push(idle_source().context("idle sessions at the source")?);
    Ok(rows)
}

fn start_sink() -> anyhow::Result<(Party, SocketAddr)> {
    let mut command = Command::new(MAILRUN);
    command.args(["sink", "--listen", "127.0.0.1:0", "--live", "json"]);
    Party::start_listening(command)
}

fn start_source(to: SocketAddr, sessions: usize, messages: u64) -> anyhow::Result<Party> {
    let mut command = Command::new(MAILRUN);
    command.args(["source", &to.to_string(), "--reuse"]);
    command.args(["--sessions", &sessions.to_string(), "--messages", &messages.to_string()]);
    Party::start(command)
}

/// Samples the memory of a busy source and sink until the source has ended.
fn busy() -> anyhow::Result<[Row; 2]> {
    eprintln!("{BUSY_SESSIONS} sessions, {BUSY_MESSAGES} messages");
    let (sink, address) = start_sink()?;
    let source = start_source(address, BUSY_SESSIONS, BUSY_MESSAGES)?;
    let limit = Instant::now() + RUN_LIMIT;
    let mut at_source = Resident::default();
    let mut at_sink = Resident::default();
    let mut sessions = 0;
    while !source.ends_within(SAMPLE_EVERY)? {
        ensure!(Instant::now() < limit, "the source did not end within {} s", RUN_LIMIT.as_secs());
        at_source = Resident::of(source.pid()).unwrap_or(at_source);
        at_sink = Resident::of(sink.pid()).unwrap_or(at_sink);
        sessions = sessions.max(open_descriptors(sink.pid()));
    }
    source.reap()?;
    ensure!(sessions >= BUSY_SESSIONS, "only {sessions} descriptors were open at once: too few messages, or refused");
    at_sink = Resident::of(sink.pid()).unwrap_or(at_sink);
    sink.stop()?;
    let row = |process, resident| Row {
        situation: "busy",
        process,
        sessions: BUSY_SESSIONS,
        resident,
        limit_bytes: BUSY_LIMIT_BYTES,
    };
    Ok([row("source", at_source), row("sink", at_sink)])
}

/// Measures the sink's memory when a thousand sessions have sent EHLO, and again after a message from each of them.
fn idle_sink() -> anyhow::Result<[Row; 2]> {
    eprintln!("{IDLE_SESSIONS} idle sessions at the sink");
    let (sink, address) = start_sink()?;
    let mut sessions = Vec::with_capacity(IDLE_SESSIONS);
    for _ in 0..IDLE_SESSIONS {
        let mut session = BufReader::new(TcpStream::connect(address)?);
        session.get_ref().set_read_timeout(Some(PATIENCE))?;
        session.get_ref().set_nodelay(true)?;
        expect_reply(&mut session, b'2')?;
        ask(&mut session, b"EHLO idle.example.com\r\n", b'2')?;
        sessions.push(session);
    }
    let greeted = settled(&sink)?;
    for session in &mut sessions {
        ask(session, b"MAIL FROM:<from@example.com>\r\n", b'2')?;
        ask(session, b"RCPT TO:<to@example.com>\r\n", b'2')?;
        ask(session, b"DATA\r\n", b'3')?;
        ask(session, &message(), b'2')?;
    }
    let used = settled(&sink)?;
    sink.stop()?;
    let row = |situation, resident| Row {
        situation,
        process: "sink",
        sessions: IDLE_SESSIONS,
        resident,
        limit_bytes: IDLE_LIMIT_BYTES,
    };
    Ok([row("idle after EHLO", greeted), row("idle after a message each", used)])
}

/// Measures the source's memory while each of a thousand sessions has sent a message and waits in vain for the reply.
fn idle_source() -> anyhow::Result<Row> {
    eprintln!("{IDLE_SESSIONS} idle sessions at the source");
    let (server, all_stalled) = Stalled::listen(IDLE_SESSIONS)?;
    let source = start_source(server.address, IDLE_SESSIONS, 100 * IDLE_SESSIONS as u64)?;
    if all_stalled.recv_timeout(3 * PATIENCE).is_err() {
        server.sessions().context(source.complaint())?;
        anyhow::bail!("the source did not open {IDLE_SESSIONS} sessions: {}", source.complaint());
    }
    let resident = settled(&source)?;
    source.stop()?;
    drop(server.sessions()?);
    Ok(Row {
        situation: "idle, answers stalled",
        process: "source",
        sessions: IDLE_SESSIONS,
        resident,
        limit_bytes: IDLE_LIMIT_BYTES,
    })
}

fn settled(party: &Party) -> anyhow::Result<Resident> {
    ensure!(!party.ends_within(SETTLE)?, "it ended by itself: {}", party.complaint());
    Resident::of(party.pid()).context("it ended by itself")
}

fn message() -> Vec<u8> {
    let mut message = b"From: <from@example.com>\r\nTo: <to@example.com>\r\nSubject: idle\r\n\r\n".to_vec();
    message.extend(b"La de da de da.\r\n".repeat(20));
    message.extend_from_slice(b".\r\n");
    message
}

fn ask(session: &mut BufReader<TcpStream>, words: &[u8], class: u8) -> anyhow::Result<()> {
    session.get_mut().write_all(words)?;
    expect_reply(session, class)
}

/// Reads a reply, which may have several lines. Fails unless its code begins with `class`.
fn expect_reply(session: &mut impl BufRead, class: u8) -> anyhow::Result<()> {
    loop {
        let mut line = String::new();
        session.read_line(&mut line)?;
        ensure!(line.as_bytes().first() == Some(&class), "the sink said {line:?}");
        if line.as_bytes().get(3) != Some(&b'-') {
            return Ok(());
        }
    }
}

fn report(rows: &[Row]) -> ExitCode {
    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / MEGABYTE as f64);
    let left = |title| (title, Align::Left);
    let mut table = Table::new([
        right("sessions"),
        left("situation"),
        left("process"),
        right("VmRSS"),
        right("VmHWM"),
        right("limit"),
        left("verdict"),
    ]);
    for row in rows {
        table.row(vec![
            row.sessions.to_string(),
            row.situation.to_owned(),
            row.process.to_owned(),
            megabytes(row.resident.now),
            megabytes(row.resident.peak),
            format!("< {}", megabytes(row.limit_bytes)),
            if row.is_within_limit() { "PASS" } else { "FAIL" }.to_owned(),
        ]);
    }
    println!("{}", table.terminal(usize::MAX));
    ExitCode::from(u8::from(!rows.iter().all(Row::is_within_limit)))
}
