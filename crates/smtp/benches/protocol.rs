//! Criterion micro-benchmarks of the protocol core: commands, replies, dot-stuffing, and whole
//! sessions in memory, in ns and MB/s.
//!
//! `cargo bench -p mailrun-smtp --bench protocol` runs them. A word after `--` selects benchmarks
//! by name. Only Criterion reads a clock, and nothing uses a socket or a disk, so the figures are
//! the cost of the protocol alone.
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, measurement::WallTime};
use mailrun_smtp::client::{Client, Outcome, PipelineMode, Want};
use mailrun_smtp::command::Command;
use mailrun_smtp::data::{DataPiece, DataReader, END_OF_DATA, stuff};
use mailrun_smtp::reply::{Reply, ReplyReader};
use mailrun_smtp::server::{Event, Server, ServerSettings};
use mailrun_smtp::{Envelope, Extensions, Limits};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// Time that is passed to all calls. The clock stands still in these sessions, because they need no time-outs.
const NOW: Duration = Duration::ZERO;
/// Length of a message line in bytes, including `<CRLF>`.
const LINE_BYTES: usize = 80;
const MESSAGE_BYTES: usize = 1 << 20;
const SESSION_MESSAGE_BYTES: usize = 4096;
/// Maximum number of bytes that mailrun's network code reads from a socket at a time.
const BLOCK_BYTES: usize = 256 * 1024;
/// Maximum length of a message line in bytes, including `<CRLF>` (RFC 5321 §4.5.3.1.6).
const LINE_LIMIT: usize = 1000;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    bench_commands(&mut criterion);
    bench_replies(&mut criterion);
    bench_stuffing(&mut criterion);
    bench_reading(&mut criterion);
    bench_sessions(&mut criterion);
    criterion.final_summary();
}

fn measure<T>(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, bytes: usize, mut iteration: impl FnMut() -> T) {
    group.throughput(Throughput::BytesDecimal(bytes as u64));
    group.bench_function(BenchmarkId::from_parameter(name), |bencher| bencher.iter(|| black_box(iteration())));
}

/// Measures how long it takes to parse a command line, separately for each command.
fn bench_commands(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("command");
    let lines: [(&str, &[u8]); 5] = [
        ("HELO", b"HELO client.example.com"),
        ("EHLO", b"EHLO client.example.com"),
        ("MAIL", b"MAIL FROM:<from@example.com> SIZE=4096 BODY=8BITMIME"),
        ("RCPT", b"RCPT TO:<recipient@example.com>"),
        ("DATA", b"DATA"),
    ];
    for (name, line) in lines {
        assert!(Command::parse(line).is_ok(), "{name}");
        measure(&mut group, name, line.len() + 2, || Command::parse(black_box(line)).is_ok());
    }
    group.finish();
}

/// Measures how long a client takes to read a server's reply.
fn bench_replies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reply");
    let offered = Reply::new(250, &Extensions::all(1 << 30).render("mx.example.com"));
    let accepted = Reply::new(250, "2.0.0 Ok: queued as 4FzYxW1ZbVz9sQ");
    for (name, wire) in [("250", accepted.wire()), ("EHLO", offered.wire())] {
        measure(&mut group, name, wire.len(), || read_reply(black_box(wire)));
    }
    measure(&mut group, "EHLO, byte by byte", offered.wire().len(), || {
        let mut reader = ReplyReader::default();
        let mut pieces = offered.wire().chunks(1);
        let last = pieces.next_back();
        for mut piece in pieces {
            assert!(matches!(reader.next(&mut piece), Ok(None)));
        }
        last.is_some_and(|mut piece| matches!(reader.next(&mut piece), Ok(Some(_))))
    });
    group.finish();
}

fn read_reply(mut wire: &[u8]) -> u16 {
    let mut reader = ReplyReader::default();
    let reply = reader.next(&mut wire).expect("it is a reply");
    reply.expect("it is whole").code()
}

fn messages() -> [(&'static str, Vec<u8>); 3] {
    [
        ("plain", message(b'X', LINE_BYTES, MESSAGE_BYTES)),
        ("dotted", message(b'.', LINE_BYTES, MESSAGE_BYTES)),
        ("short lines", message(b'X', 4, MESSAGE_BYTES)),
    ]
}

/// Makes a message of about `bytes` bytes, whose lines have `line` bytes each and begin with the byte `first`.
fn message(first: u8, line: usize, bytes: usize) -> Vec<u8> {
    let mut text = vec![b'X'; line - 2];
    text[0] = first;
    text.extend_from_slice(b"\r\n");
    text.iter().copied().cycle().take(bytes / line * line).collect()
}

fn on_the_wire(message: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    stuff(message, &mut wire);
    wire.extend_from_slice(END_OF_DATA);
    wire
}

/// Measures dot-stuffing, as a sender applies it to a message.
fn bench_stuffing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("stuff");
    for (name, message) in messages() {
        let mut out = Vec::with_capacity(2 * message.len());
        measure(&mut group, name, message.len(), || {
            out.clear();
            stuff(black_box(&message), &mut out);
            out.len()
        });
    }
    group.finish();
}

/// Measures how a receiver reads a message: it removes dot-stuffing, finds the end of data and checks the lines.
fn bench_reading(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("unstuff");
    for (name, message) in messages() {
        let wire = on_the_wire(&message);
        let expected = message.len() as u64;
        for (cut, block) in [("", BLOCK_BYTES), (", blocks of 1 KB", 1024), (", byte by byte", 1)] {
            assert_eq!(read_message(&wire, block), expected, "{name}{cut}");
            measure(&mut group, &format!("{name}{cut}"), wire.len(), || read_message(black_box(&wire), block));
        }
    }
    group.finish();
}

/// Reads a message in blocks of `block_bytes` bytes. Returns the length of its content in bytes.
fn read_message(wire: &[u8], block_bytes: usize) -> u64 {
    let mut reader = DataReader::new(LINE_LIMIT);
    let mut is_ended = false;
    for mut block in wire.chunks(block_bytes) {
        while let Some(piece) = reader.next(&mut block) {
            is_ended |= matches!(black_box(piece), DataPiece::End);
        }
    }
    assert!(is_ended && reader.fault().is_none());
    reader.bytes()
}

/// Measures the server's side and the client's side of sessions, from the greeting to QUIT. Most sessions have one
/// message.
fn bench_sessions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("session");
    let settings = Arc::new(ServerSettings::new("mx.example.com", Limits::default()));
    let content = message(b'X', LINE_BYTES, SESSION_MESSAGE_BYTES);
    let commands: [&[u8]; 4] = [
        b"EHLO client.example.com\r\n",
        b"MAIL FROM:<from@example.com>\r\n",
        b"RCPT TO:<to@example.com>\r\n",
        b"DATA\r\n",
    ];
    let wire = on_the_wire(&content);
    let lock_step = [commands.as_slice(), &[&wire, b"QUIT\r\n"]].concat();
    let dialogue = lock_step.concat();
    let expected = content.len() as u64;
    assert_eq!(serve(&settings, &lock_step), expected);
    measure(&mut group, "server, a read per command", dialogue.len(), || serve(&settings, black_box(&lock_step)));
    measure(&mut group, "server, all in one read", dialogue.len(), || serve(&settings, black_box(&[&dialogue])));
    measure(&mut group, "server, byte by byte", dialogue.len(), || {
        let bytes: Vec<&[u8]> = black_box(&dialogue).chunks(1).collect();
        serve(&settings, &bytes)
    });
    let transaction = [commands[1], commands[2], commands[3], &wire].concat();
    let burst = [commands[0], &transaction.repeat(16), b"QUIT\r\n"].concat();
    assert_eq!(serve(&settings, &[&burst]), 16 * expected);
    measure(&mut group, "server, burst of 16 messages", burst.len(), || serve(&settings, black_box(&[&burst])));
    for (name, mode) in [("client, lock-step", PipelineMode::Off), ("client, groups", PipelineMode::Group)] {
        let session = ClientSession::new(mode, &settings, &wire);
        measure(&mut group, name, session.sent_bytes, || session.run());
    }
    group.finish();
}

/// Runs the server's side of a session. `blocks` is the input that the server reads from the client. Returns the number
/// of message bytes.
fn serve(settings: &Arc<ServerSettings>, blocks: &[&[u8]]) -> u64 {
    let mut server = Server::new(Arc::clone(settings), NOW);
    let mut out = Vec::with_capacity(1024);
    server.grant(NOW, &mut out);
    let mut bytes = 0;
    for block in blocks {
        let mut input = *block;
        while let Some(event) = server.next_event(&mut input, NOW, &mut out) {
            match event {
                Event::Block(block) => bytes += black_box(block).len() as u64,
                event if event.asks() => server.grant(NOW, &mut out),
                _ => {}
            }
        }
    }
    assert!(server.has_quit() && black_box(&out).starts_with(b"220 "));
    bytes
}

/// The client's side of a session, with recorded replies of a server, so that only the client is measured.
struct ClientSession {
    name: Arc<str>,
    mode: PipelineMode,
    envelope: Arc<Envelope>,
    message: Vec<u8>,
    /// The server's replies. Each block contains the replies that the client gets each time it waits for the server.
    replies: Vec<Vec<u8>>,
    sent_bytes: usize,
}

impl ClientSession {
    /// Runs the session once against a server, and records the server's replies.
    fn new(mode: PipelineMode, settings: &Arc<ServerSettings>, message: &[u8]) -> Self {
        let envelope = Envelope::new("from@example.com", "", ["to@example.com"]).expect("both are mailboxes");
        let name = Arc::from("client.example.com");
        let message = message.to_vec();
        let mut session =
            Self { name, mode, envelope: Arc::new(envelope), message, replies: Vec::new(), sent_bytes: 0 };
        let mut server = Server::new(Arc::clone(settings), NOW);
        let mut greeting = Vec::new();
        server.grant(NOW, &mut greeting);
        let mut replies = vec![greeting];
        let mut sent_bytes = 0;
        session.drive(|out| {
            let mut answers = Vec::new();
            let mut input = out;
            sent_bytes += out.len();
            while let Some(event) = server.next_event(&mut input, NOW, &mut answers) {
                if event.asks() {
                    server.grant(NOW, &mut answers);
                }
            }
            if out.is_empty() {
                answers = replies[0].clone()
            } else {
                replies.push(answers.clone())
            }
            answers
        });
        session.replies = replies;
        session.sent_bytes = sent_bytes;
        session
    }

    fn run(&self) -> Outcome {
        let mut replies = self.replies.iter();
        self.drive(|_| replies.next().map(Vec::as_slice).unwrap_or_default())
    }

    /// Runs a client from the greeting to QUIT. `exchange` takes what the client sends, and returns the server's
    /// replies.
    fn drive<R: AsRef<[u8]>>(&self, mut exchange: impl FnMut(&[u8]) -> R) -> Outcome {
        let mut client = Client::new(Arc::clone(&self.name), self.mode, NOW);
        let mut out = Vec::with_capacity(2 * SESSION_MESSAGE_BYTES);
        let mut outcome = Outcome::Refused;
        let mut has_begun = false;
        loop {
            match client.wants() {
                Want::Transaction if has_begun => client.quit(NOW, &mut out),
                Want::Transaction => {
                    client.begin(Arc::clone(&self.envelope), NOW, &mut out);
                    has_begun = true;
                }
                Want::Message => {
                    out.extend_from_slice(&self.message);
                    client.message_sent(NOW);
                }
                Want::Close => return outcome,
                _ => {}
            }
            if client.wants() != Want::Replies {
                continue;
            }
            let replies = exchange(&out);
            out.clear();
            let mut input = replies.as_ref();
            assert!(!input.is_empty(), "the server fell silent");
            while let Some(event) = client.next_event(&mut input, NOW, &mut out).expect("the server speaks SMTP") {
                outcome = event.ends.unwrap_or(outcome);
            }
        }
    }
}
