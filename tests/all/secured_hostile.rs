//! Malformed input around TLS and AUTH. Injected commands are dropped, garbage ends one session, and overlong input is
//! refused. The other side goes on serving in bounded memory, and its counts are right.
use crate::party::{Process, Sink, accepted, errors, peer, run, source, took, wait_until};
use crate::secured::{Files, MODES, PASSWORD, Secured, USER, handshakes_in_all};
use crate::wire::Wire;
use mailrun_measurement::Phase;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::thread;

/// Limit for the sink's peak memory. It is more than the program needs, and less than an endless client sends.
const MEMORY_BYTES: u64 = 64 << 20;

/// A real ClientHello, taken from our source.
fn client_hello() -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let words = ["source", &to, "--tls", "implicit", "--insecure", "--messages", "1", "--timeout", "30s"];
    let _source = Process::start(env!("CARGO_BIN_EXE_mailrun"), &words);
    let (mut stream, _) = listener.accept().unwrap();
    let mut hello = vec![0; 5];
    stream.read_exact(&mut hello).unwrap();
    let length = usize::from(u16::from_be_bytes([hello[3], hello[4]]));
    hello.resize(5 + length, 0);
    stream.read_exact(&mut hello[5..]).unwrap();
    assert_eq!((hello[0], hello[5]), (22, 1), "a handshake record with a ClientHello");
    hello
}

/// A client just before its TLS handshake.
fn before_tls(mode: &str, address: SocketAddr) -> Wire {
    if mode == "implicit" {
        return Wire::connect(address);
    }
    let mut wire = Wire::greeted(address);
    assert!(wire.say("EHLO client.example").contains("STARTTLS"));
    assert!(wire.say("STARTTLS").starts_with("220 "));
    wire
}

/// Checks that the sink still accepts mail over TLS.
fn deliver(host: &Secured, mode: &str, messages: u64) {
    let number = messages.to_string();
    let words = ["--tls", mode, "--cacert", &host.ca, "--messages", &number, "--sessions", "2"];
    let ours = source(&host.sink.address(), &words);
    assert_eq!((ours.ended.code, accepted(&ours.record)), (Some(0), messages), "{:?}", ours.record.errors);
}

fn has_counted(sink: &Sink, errors: u64) {
    wait_until("the sink to have counted what went wrong", || {
        (sink.ask("/status")["errors"].as_u64().unwrap() >= errors).then_some(())
    });
}

/// Ends the sink. Exactly `failed` handshakes must have failed, and exactly `messages` messages must have arrived.
fn counts(host: Secured, failed: u64, messages: u64) {
    has_counted(&host.sink, failed);
    let peak = host.sink.process.peak_bytes();
    assert!(peak < MEMORY_BYTES, "{peak}");
    let theirs = host.sink.stop();
    let counts = (errors(&theirs, Phase::Tls, 0), handshakes_in_all(&theirs), took(&theirs).messages);
    assert_eq!(counts, (failed, messages, messages), "{:?}", theirs.errors);
    assert_eq!(theirs.errors.iter().map(|row| row.count).sum::<u64>(), failed, "{:?}", theirs.errors);
    assert_eq!(took(&theirs).connections, failed + messages);
}

#[test]
fn sockets_that_vanish_in_the_handshake_are_counted_and_harm_nobody() {
    let hello = client_hello();
    for mode in MODES {
        let host = Secured::start(mode, &[]);
        let vanish = |number: usize| {
            let mut wire = before_tls(mode, host.sink.smtp);
            wire.send(&hello[..hello.len() * number / 239]);
            if number == 239 {
                assert!(wire.hears_within(crate::party::LIMIT), "the whole of it has its answer");
            }
            match number % 3 {
                0 => wire.reset(),
                1 => wire.half_close(),
                _ => {}
            }
        };
        // First open 240 sockets one after another. Then open as many from four threads at once.
        (0..240).for_each(vanish);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..60).for_each(vanish));
            }
        });
        deliver(&host, mode, 10);
        counts(host, 480, 10);
    }
}

#[test]
fn sockets_that_stay_and_say_nothing_run_out_of_time() {
    let hello = client_hello();
    for mode in MODES {
        let host = Secured::start(mode, &["--idle-timeout", "4s"]);
        let mut stalled: Vec<Wire> = (0..60).map(|_| before_tls(mode, host.sink.smtp)).collect();
        for wire in stalled.iter_mut().take(30) {
            wire.send(&hello[..hello.len() / 2]);
        }
        deliver(&host, mode, 5);
        stalled.iter_mut().for_each(|wire| assert_eq!(wire.reply(), None));
        counts(host, 60, 5);
    }
}

fn is_positive(reply: &str) -> bool {
    matches!(reply.as_bytes(), [b'2', b'0'..=b'9', b'0'..=b'9', b' ' | b'-', ..])
}

#[test]
fn garbage_in_place_of_a_handshake_ends_that_session_only() {
    let hello = client_hello();
    let changed = |at: usize, to: u8| {
        let mut hello = hello.clone();
        hello[at] = to;
        hello
    };
    let garbage = [
        b"EHLO client.example\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        vec![0; 70_000],
        vec![0xff; 200_000],
        vec![22; 5_000],
        // A record of the maximum length.
        [&[22, 3, 1, 0x40, 0][..], &[1; 0x4000]].concat(),
        // A record that is far too long.
        [&[22, 3, 1, 0xff, 0xff][..], &[1; 0xffff]].concat(),
        // An alert.
        vec![21, 3, 1, 0, 2, 2, 40],
        // Application data, which nobody may send before the handshake.
        vec![23, 3, 3, 0, 4, 1, 2, 3, 4],
        // A handshake message that declares 16 MB and comes in pieces of one byte.
        [&[22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff][..], &[22, 3, 1, 0, 1, 0].repeat(3000)].concat(),
        // A ClientHello that is shorter than it declares.
        changed(6, 1),
        // A handshake message that claims to be a ServerHello instead of a ClientHello.
        changed(5, 2),
        // A session id that is too long.
        changed(43, 255),
        // A second ClientHello.
        [hello.clone(), vec![22, 3, 3, 0, 5, 1, 0, 0, 1, 0]].concat(),
    ];
    for mode in MODES {
        let host = Secured::start(mode, &[]);
        for octets in &garbage {
            let mut wire = before_tls(mode, host.sink.smtp);
            // Ignore the error, because the server may close the connection before it has read everything.
            let _ = wire.try_send(octets);
            wire.half_close();
            let rest = wire.replies();
            // The server may answer with TLS records. Their bytes may look like a line that begins with the digit 2, so
            // compare whole reply codes.
            assert!(rest.iter().all(|reply| !is_positive(reply)), "{rest:?}");
        }
        deliver(&host, mode, 5);
        counts(host, garbage.len() as u64, 5);
    }
}

/// Sends STARTTLS with a transaction behind it in the same segment, then continues under TLS as if nothing had
/// happened.
const INJECTOR: &str = r#"
import socket, ssl, sys
port, ca = int(sys.argv[1]), sys.argv[2]
plain = socket.create_connection(("127.0.0.1", port), timeout=30)
def hears(reader):
    line = reader.readline()
    while line[3:4] == b"-":
        line = reader.readline()
    return line[:3].decode()
reader = plain.makefile("rb", buffering=0)
assert hears(reader) == "220"
plain.sendall(b"EHLO client.example\r\n")
assert hears(reader) == "250"
injected = b"EHLO evil.example\r\nMAIL FROM:<evil@example.com>\r\nRCPT TO:<b@example.com>\r\n"
plain.sendall(b"STARTTLS\r\n" + injected * 10)
assert hears(reader) == "220"
secure = ssl.create_default_context(cafile=ca).wrap_socket(plain, server_hostname="localhost")
reader = secure.makefile("rb", buffering=0)
def say(line):
    secure.sendall(line + b"\r\n")
    return hears(reader)
said = [say(b"MAIL FROM:<a@example.com>"), say(b"EHLO client.example"), say(b"RCPT TO:<b@example.com>")]
said += [say(b"MAIL FROM:<a@example.com>"), say(b"RCPT TO:<b@example.com>"), say(b"DATA")]
said += [say(b"Subject: x\r\n\r\nhello\r\n."), say(b"STARTTLS"), say(b"QUIT")]
print(*said)
"#;

#[test]
fn what_is_injected_behind_starttls_is_dropped_and_the_session_begins_anew() {
    let Some(program) = peer("python3") else { return };
    let host = Secured::start("starttls", &[]);
    let ended = run(&program, &["-c", INJECTOR, &host.sink.smtp.port().to_string(), &host.ca]);
    // The first MAIL and the first RCPT get 503, because under TLS there was no EHLO and no MAIL before them. No reply
    // may belong to the injected commands.
    assert_eq!((ended.code, ended.out.trim()), (Some(0), "503 250 503 250 250 354 250 503 221"), "{}", ended.err);
    let theirs = host.sink.stop();
    assert_eq!((took(&theirs).messages, took(&theirs).recipients, handshakes_in_all(&theirs)), (1, 1, 1));
}

/// A server for one connection. It sends further replies in the same segment as its 220 to STARTTLS.
fn injecting_server() -> (SocketAddr, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).split(b'\n');
        stream.write_all(b"220 evil.example\r\n").unwrap();
        lines.next();
        stream.write_all(b"250-evil.example\r\n250 STARTTLS\r\n").unwrap();
        lines.next();
        stream.write_all(b"220 go on\r\n250-evil.example\r\n250 AUTH PLAIN\r\n").unwrap();
        let rest = lines.next();
        assert!(rest.is_none_or(|line| line.is_err()), "the source says nothing more");
    };
    (address, thread::spawn(serve))
}

#[test]
fn a_server_that_injects_behind_its_220_gets_no_mail_and_no_password() {
    let files = Files::new();
    let (address, server) = injecting_server();
    let password = files.keep("password", PASSWORD);
    let login = ["--user", USER, "--password-file", &password, "--messages", "1", "--timeout", "20s"];
    let ours = source(&address.to_string(), &[["--tls", "starttls", "--insecure"].as_slice(), &login].concat());
    assert_eq!((ours.ended.code, accepted(&ours.record)), (Some(1), 0));
    assert_eq!(errors(&ours.record, Phase::Tls, 0), 1, "{:?}", ours.record.errors);
    assert!(ours.record.errors[0].text.contains("plain text followed the reply to STARTTLS"));
    server.join().unwrap();
}

/// A server for one connection that breaks TLS within a message, and closes with most of it unread.
const BREAKER: &str = r#"
import socket, ssl, sys, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
plain, _ = listener.accept()
raw = plain.dup()
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
secure = context.wrap_socket(plain, server_side=True)
for reply in [b"220 a", b"250 a", b"250 ok", b"250 ok", b"354 go on"]:
    secure.sendall(reply + b"\r\n")
    if reply[:3] != b"354":
        secure.recv(1000)
raw.recv(1, socket.MSG_PEEK)
raw.sendall(bytes([21, 3, 3, 0, 2, 2, 40]))
# Time for it to be noticed, for the source looks at what it was told of.
"#;

#[test]
fn what_breaks_tls_while_a_message_is_written_is_told_and_not_the_broken_connection() {
    let Some(program) = peer("python3") else { return };
    let files = Files::new();
    let [certificate, key] = files.certificate("server", &["localhost"]);
    let mut server =
        Command::new(program).args(["-c", BREAKER, &certificate, &key]).stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let address = format!("127.0.0.1:{}", port.trim());
    let words = ["--tls", "implicit", "--insecure", "--messages", "1", "--message-size", "30m", "--timeout", "20s"];
    let ours = source(&address, &words);
    assert!(server.wait().unwrap().success());
    assert_eq!((ours.ended.code, accepted(&ours.record)), (Some(1), 0));
    let errors = &ours.record.errors;
    assert!(errors.len() == 1 && errors[0].text.contains("TLS"), "{errors:?}");
}

/// A sink that requires its only user to log in.
fn sink_with_users(files: &Files) -> Sink {
    Sink::start(&["--auth-users", &files.users(), "--auth-required"])
}

fn begin(sink: &Sink) -> Wire {
    let mut wire = Wire::greeted(sink.smtp);
    assert!(wire.say("EHLO client.example").contains("AUTH "));
    wire
}

/// Checks that the right password still works.
fn log_in(sink: &Sink, files: &Files) {
    let password = files.keep("password", PASSWORD);
    let words = ["--messages", "1", "--user", USER, "--password-file", &password];
    assert_eq!(source(&sink.address(), &words).ended.code, Some(0));
}

#[test]
fn a_response_of_200_kb_is_refused_and_an_endless_one_costs_no_memory() {
    let files = Files::new();
    let sink = sink_with_users(&files);
    let long = "QUFB".repeat(50_000);
    let mut refused = 0;
    for mechanism in ["PLAIN", "LOGIN", "CRAM-MD5", "SCRAM-SHA-256", "XOAUTH2"] {
        let mut wire = begin(&sink);
        assert!(wire.say(&format!("AUTH {mechanism}")).starts_with("334 "), "{mechanism}");
        let reply = wire.say(&long);
        assert!(reply.starts_with("500 "), "{mechanism}: {reply}");
        refused += 1;
        let reply = wire.say(&format!("AUTH {mechanism} {long}"));
        assert!(reply.starts_with("500 "), "{mechanism}, with the command: {reply}");
        assert!(
            wire.say("MAIL FROM:<a@example.com>").starts_with("530 "),
            "the session goes on, and nobody is logged in"
        );
        assert!(wire.say("QUIT").starts_with("221 "));
        let mut endless = begin(&sink);
        assert!(endless.say(&format!("AUTH {mechanism}")).starts_with("334 "));
        let block = vec![b'A'; 1 << 20];
        // Ignore errors, because the sink may close the connection.
        let _ = (0..32).try_for_each(|_| endless.try_send(&block));
    }
    log_in(&sink, &files);
    assert!(sink.process.peak_bytes() < MEMORY_BYTES, "{}", sink.process.peak_bytes());
    let theirs = sink.stop();
    assert_eq!((took(&theirs).messages, errors(&theirs, Phase::Auth, 535)), (1, refused), "{:?}", theirs.errors);
}

#[test]
fn responses_that_are_none_are_refused() {
    let files = Files::new();
    let sink = sink_with_users(&files);
    // Nobody can log in with these responses. Some are not base64, some do not belong to the mechanism, and some have
    // no name or a name that is not UTF-8. "*" cancels the login.
    let rows = [
        ("AUTH PLAIN", "!!!!"),
        ("AUTH PLAIN", "QUFB"),
        ("AUTH PLAIN", "AABhbm4="),
        ("AUTH PLAIN", "AP/+/QBwYXNz"),
        ("AUTH LOGIN", "="),
        ("AUTH CRAM-MD5", "YW5u"),
        ("AUTH CRAM-MD5", "YW5uIDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw"),
        ("AUTH SCRAM-SHA-256", "biwsbj1hbm4="),
        ("AUTH SCRAM-SHA-256", "cD10bHMtdW5pcXVlLCxuPWFubixyPXg="),
        ("AUTH XOAUTH2", "dXNlcj1hbm4="),
        ("AUTH XOAUTH2", "*"),
        ("AUTH PLAIN", "*"),
    ];
    for (command, response) in rows {
        let mut wire = begin(&sink);
        assert!(wire.say(command).starts_with("334"), "{command}");
        let reply = wire.say(response);
        assert!(reply.starts_with('5'), "{command} {response}: {reply}");
        assert!(wire.say("MAIL FROM:<a@example.com>").starts_with("530 "), "{command} {response}");
    }
    for command in ["AUTH", "AUTH NTLM", "AUTH PLAIN ====", "AUTH PLAIN a b", "AUTH \u{1}"] {
        let reply = begin(&sink).say(command);
        assert!(reply.starts_with('5'), "{command}: {reply}");
    }
    log_in(&sink, &files);
    let theirs = sink.stop();
    assert_eq!(
        (took(&theirs).messages, errors(&theirs, Phase::Auth, 535)),
        (1, rows.len() as u64),
        "{:?}",
        theirs.errors
    );
}

#[test]
fn a_flood_of_logins_is_cut_off_and_counted() {
    let files = Files::new();
    let sink = sink_with_users(&files);
    let flood = |()| {
        let mut wire = begin(&sink);
        // Log in as `ann` with a wrong password a thousand times, without waiting for replies.
        let _ = wire.try_send("AUTH PLAIN AGFubgB3cm9uZw==\r\n".repeat(1000));
        let replies = wire.replies();
        let refused = replies.iter().filter(|reply| reply.starts_with("535 ")).count();
        // A session may have twenty errors. If commands are still in transit when it ends, the client may not get the
        // last replies.
        assert!((1..=21).contains(&refused), "{refused}: {:?}", replies.last());
        assert!(replies.len() <= refused + 1, "after the last there is no more than a farewell: {:?}", replies.last());
        refused as u64
    };
    let refused: u64 = thread::scope(|scope| {
        let floods: Vec<_> = (0..8).map(|_| scope.spawn(|| (0..5).map(|_| flood(())).sum::<u64>())).collect();
        floods.into_iter().map(|flood| flood.join().unwrap()).sum()
    });
    log_in(&sink, &files);
    assert!(sink.process.peak_bytes() < MEMORY_BYTES, "{}", sink.process.peak_bytes());
    let theirs = sink.stop();
    assert_eq!((took(&theirs).messages, took(&theirs).connections), (1, 41));
    let counted = errors(&theirs, Phase::Auth, 535);
    assert!(counted == 40 * 21 && refused <= counted, "{counted} counted, {refused} heard: {:?}", theirs.errors);
}
