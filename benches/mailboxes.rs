//! Measures how many messages per second `mailrun sink` can read from mailboxes over IMAP. The server is a stand-in
//! whose replies cost as little as possible, so that the sink is the bottleneck.
//!
//! `cargo bench --bench mailboxes`. Exit status: 0 if all messages were counted, 2 if the bench could not run.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench reports to the terminal")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mailrun_measurement::record::{Record, Role};
use mailrun_measurement::trace::{RecipientNumbering, ZeroPhase, checksum};
use mailrun_measurement::{ClockId, RunId, Stage, Trace};
use mailrun_text::numbers::{figure, rate};
use mailrun_text::table::{Align, Table, right};

const MAILRUN: &str = env!("CARGO_BIN_EXE_mailrun");
const RUN: RunId = RunId([9; 16]);
const MAILBOXES: u64 = 100;
/// Number of messages in each mailbox.
const MESSAGES: u64 = 2_000;
/// Numbers of messages that the server announces at once. Each number is measured in a run of its own. With 1, the sink
/// has to end IDLE and send a FETCH for every single message.
const BATCHES: [u64; 3] = [1, 10, 100];
const RUN_LIMIT: Duration = Duration::from_secs(180);

fn main() -> ExitCode {
    match measure() {
        Ok(table) => {
            println!("{}", table.terminal(100));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("mailboxes: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn measure() -> anyhow::Result<Table> {
    if cfg!(debug_assertions) {
        println!("mailboxes: this is a debug build, whose figures are too low");
    }
    let mut table = Table::new([
        ("announced at once", Align::Right),
        right("messages"),
        right("messages/s"),
        right("sink, cores"),
        right("sink, us/message"),
    ]);
    for batch in BATCHES {
        let record = read_all(batch).with_context(|| format!("{batch} at once"))?;
        let delivered = record.stage(Stage::Delivered).context("nothing was delivered")?;
        ensure!(delivered.count == MAILBOXES * MESSAGES, "{} messages were counted", delivered.count);
        let per_s = delivered.rate_per_s.context("the run was too short for a rate")?;
        let sink = record.parties.iter().find(|party| party.role == Role::Sink);
        let cpu_s = sink.and_then(|sink| Some(sink.user_s? + sink.sys_s?)).context("the sink's CPU time is unknown")?;
        table.row(vec![
            batch.to_string(),
            delivered.count.to_string(),
            rate(per_s),
            figure(cpu_s * per_s / delivered.count as f64),
            figure(cpu_s * 1e6 / delivered.count as f64),
        ]);
    }
    Ok(table)
}

/// Runs `mailrun sink` until it has read all messages, and returns the run record that the sink has written.
fn read_all(batch: u64) -> anyhow::Result<Record> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || serve_all(&listener, batch));
    let place = tempfile::tempdir()?;
    let json = place.path().join("sink.json");
    let mut command = Command::new(MAILRUN);
    command.args(["sink", "--quiet", "--mailbox", &mailboxes_at(address), "--run-id", &RUN.to_string()]);
    command.args(["--max-messages", &(MAILBOXES * MESSAGES).to_string(), "--json"]).arg(&json);
    command.env("MAILRUN_MAILBOX_PASSWORD", "secret");
    let mut sink = command.spawn()?;
    let limit = Instant::now() + RUN_LIMIT;
    let status = loop {
        if let Some(status) = sink.try_wait()? {
            break status;
        }
        if Instant::now() > limit {
            sink.kill()?;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    ensure!(status.success(), "the sink ended with {status}");
    Ok(Record::from_json(&fs::read(&json)?)?)
}

fn mailboxes_at(address: SocketAddr) -> String {
    format!("imap://user{{0..{}}}@{address}", MAILBOXES - 1)
}

/// Serves each connection as a mailbox of its own: the first as mailbox 0, the second as mailbox 1, and so on.
fn serve_all(listener: &TcpListener, batch: u64) {
    for (mailbox, stream) in (0..).zip(listener.incoming()) {
        let Ok(stream) = stream else { return };
        // Ignore the error of a broken connection. The sink then waits for the missing messages until `RUN_LIMIT`, and
        // the benchmark fails.
        std::thread::spawn(move || serve(&stream, mailbox, batch).ok());
    }
}

/// Serves one mailbox. Each time the sink sends IDLE, the server announces the next `batch` messages.
fn serve(stream: &TcpStream, mailbox: u64, batch: u64) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut out = stream;
    out.write_all(b"* OK [CAPABILITY IMAP4rev1 SASL-IR IDLE AUTH=PLAIN] ready\r\n")?;
    let (mut announced, mut sent) = (0, 0);
    let mut lines = BufReader::new(stream).lines();
    while let Some(line) = lines.next().transpose()? {
        let (tag, command) = line.split_once(' ').unwrap_or((&line, ""));
        let mut reply = Vec::new();
        match command.split(' ').next().unwrap_or_default() {
            "AUTHENTICATE" => write!(reply, "{tag} OK [CAPABILITY IMAP4rev1 IDLE] in\r\n")?,
            "EXAMINE" => {
                write!(reply, "* 0 EXISTS\r\n* OK [UIDVALIDITY 1] v\r\n* OK [UIDNEXT 1] n\r\n{tag} OK open\r\n")?;
            }
            "IDLE" => {
                write!(reply, "+ idling\r\n")?;
                if sent < MESSAGES {
                    announced = (sent + batch).min(MESSAGES);
                    write!(reply, "* {announced} EXISTS\r\n")?;
                }
                out.write_all(&reply)?;
                if lines.next().transpose()?.as_deref() != Some("DONE") {
                    return Ok(());
                }
                reply.clear();
                write!(reply, "{tag} OK ended\r\n")?;
            }
            "UID" => {
                for number in sent + 1..=announced {
                    write_message(&mut reply, mailbox * MESSAGES + number - 1, number)?;
                }
                sent = announced;
                write!(reply, "{tag} OK fetched\r\n")?;
            }
            "NOOP" => write!(reply, "{tag} OK nothing\r\n")?,
            _ => write!(reply, "{tag} BAD unknown\r\n")?,
        }
        out.write_all(&reply)?;
    }
    Ok(())
}

fn write_message(reply: &mut Vec<u8>, sequence: u64, number: u64) -> std::io::Result<()> {
    let trace = Trace {
        run: RUN,
        sequence,
        zero: ZeroPhase::of(Duration::ZERO),
        numbering: RecipientNumbering::SINGLE,
        created: Duration::from_secs(1),
        clock: ClockId(7),
        checksum: checksum(b""),
    };
    let length = Trace::HEADER_BYTES + 2;
    write!(reply, "* {number} FETCH (UID {number} RFC822.SIZE 400 BODY[HEADER.FIELDS (X-Mailrun)] {{{length}}}\r\n")?;
    let start = reply.len();
    reply.resize(start + Trace::HEADER_BYTES, 0);
    trace.write(&mut reply[start..]);
    reply.extend_from_slice(b"\r\n)\r\n");
    Ok(())
}
