//! Tests of mailrun, called under the name `smtp-sink`, that need no comparison with Postfix's smtp-sink: intended
//! differences (docs/drop-in.md), behaviour that a comparison of bytes does not show, and hostile clients.
use crate::party::{LIMIT, is_root, low_port, mailrun, peer, run, skip, wait_until};
use crate::smtp_pair::{Client, Running, Talk, Who, user};
use rustix::net::sockopt::set_socket_linger;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::thread;
use std::time::{Duration, Instant};

const ENVELOPE: &str = "MAIL FROM:<a>\r\nRCPT TO:<b>\r\nDATA\r\n";
const MESSAGE: &str = "MAIL FROM:<a>\r\nRCPT TO:<b>\r\nDATA\r\nx\r\n.\r\n";
/// Limit for the sink's peak memory. The program itself takes 20 MB of it.
const MEMORY_BYTES: u64 = 60 << 20;

/// Starts a sink with these options. Returns the sink and its address.
fn start(who: Who, options: &[&str]) -> (Running, String) {
    let address = format!("127.0.0.1:{}", low_port());
    let words = [user(), options, &[&address, "100"]].concat().into_iter().map(str::to_owned).collect::<Vec<_>>();
    let mut running = Running::start(who, &words);
    if !options.contains(&"-c") {
        drop(running.client(&address).expect("it listens"));
    }
    (running, address)
}

fn ours(options: &[&str]) -> (Running, String) {
    start(Who::Ours, options)
}

/// Sends everything at once after the greeting. Returns the greeting and all replies, escaped.
fn hear(address: &str, octets: impl AsRef<[u8]>) -> String {
    let mut client = wait_until("a sink to listen", || Client::connect(address, "".as_ref()).ok());
    client.reply();
    client.send(octets);
    client.finish()
}

fn both() -> Vec<Who> {
    if peer("smtp-sink").is_some() { vec![Who::Original, Who::Ours] } else { vec![Who::Ours] }
}

/// The original announces AUTH but answers it with 250, which clients do not accept as a login. Ours must answer 235.
#[test]
fn clients_can_log_in() {
    let (_sink, address) = ours(&[]);
    let rows = [
        ("AUTH PLAIN AGEAYg==\r\n", "235 2.7.0 Authentication successful"),
        ("auth plain\r\nAGEAYg==\r\n", "334 \\r\\n235 2.7.0 Authentication successful"),
        (
            "AUTH LOGIN\r\nYQ==\r\nYg==\r\n",
            "334 VXNlcm5hbWU6\\r\\n334 UGFzc3dvcmQ6\\r\\n235 2.7.0 Authentication successful",
        ),
        ("AUTH LOGIN YQ==\r\nYg==\r\n", "334 UGFzc3dvcmQ6\\r\\n235 2.7.0 Authentication successful"),
        ("AUTH LOGIN\r\n*\r\n", "334 VXNlcm5hbWU6\\r\\n501 5.7.0 Authentication cancelled"),
        ("AUTH CRAM-MD5\r\n", "504 5.5.4 Unrecognized authentication type"),
        ("AUTH\r\n", "504 5.5.4 Unrecognized authentication type"),
    ];
    for (said, heard) in rows {
        let expected = format!("220 smtp-sink ESMTP\\r\\n{heard}\\r\\n250 2.0.0 Ok\\r\\n");
        assert_eq!(hear(&address, [said, "NOOP\r\n"].concat()), expected, "{said}");
    }
    let Some(python) = peer("python3") else { return };
    let (host, port) = address.split_once(':').unwrap();
    let script = "import smtplib, sys\nfor auth in ('auth_plain', 'auth_login'):\n  s = smtplib.SMTP(sys.argv[1], sys.argv[2])\n  \
                  s.ehlo()\n  s.user, s.password = 'a', 'b'\n  assert s.auth(auth[5:].upper(), getattr(s, auth))[0] == 235\n  \
                  s.sendmail('a@b', ['c@d'], 'x')\n  s.quit()\ns = smtplib.SMTP(sys.argv[1], sys.argv[2]); s.login('a', 'b'); s.quit()\n";
    let ended = run(&python, &["-c", script, host, port]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// If only part of a command has arrived, the original withholds the replies to earlier commands until it has the rest.
/// Ours must reply to the earlier commands at once.
#[test]
fn replies_do_not_wait_for_the_rest_of_a_command() {
    let (_sink, address) = ours(&[]);
    let mut client = wait_until("a sink to listen", || Client::connect(&address, "".as_ref()).ok());
    assert!(client.reply() && client.send("NOOP\r\nNO") && client.reply(), "the reply to NOOP");
    client.send("OP\r\nMAIL FROM:<a>\r\nRCPT TO:<b>\r\nDATA\r\nbegun");
    assert!((0..4).all(|_| client.reply()), "the reply to DATA, though its message has begun");
    client.send("\r\n.\r\n");
    assert!(client.reply() && client.finish().ends_with("354 End data with <CR><LF>.<CR><LF>\\r\\n250 2.0.0 Ok\\r\\n"));
}

/// With -M, the original exits before it answers the last message. Ours must answer this message first.
#[test]
fn after_the_last_message_every_client_has_its_answer() {
    let (mut sink, address) = ours(&["-c", "-M", "3"]);
    let heard = hear(&address, [MESSAGE.repeat(3).as_str(), "QUIT\r\n"].concat());
    assert!(heard.ends_with("250 2.0.0 Ok\\r\\n221 Bye\\r\\n") && heard.matches("354").count() == 3, "{heard}");
    assert_eq!((sink.code(), sink.said("out").ends_with("sess=1 quit=1 mesg=3\r")), (Some(0), true));

    let (mut sink, address) = ours(&["-M", "1", "-W", ".:2"]);
    let mut idle = sink.client(&address).unwrap();
    idle.reply();
    let heard = hear(&address, [MESSAGE, MESSAGE].concat());
    assert!(heard.ends_with("250 2.0.0 Ok\\r\\n421 4.0.0 Server closing connection\\r\\n"), "{heard}");
    assert_eq!((sink.code(), idle.finish().as_str()), (Some(0), "220 smtp-sink ESMTP\\r\\n"));

    let Some(source) = peer("smtp-source") else { return };
    for options in [&["-s", "1"][..], &["-s", "10"], &["-s", "10", "-d"]] {
        let (mut sink, address) = ours(&["-M", "50"]);
        let ended = run(&source, &[options, &["-m", "50", &address]].concat());
        assert_eq!((ended.code, sink.code()), (Some(0), Some(0)), "{options:?}: {ended:?}");
    }
}

/// With -n, the original counts QUITs only if it also shows them (-c). Ours must always count them.
#[test]
fn sessions_are_counted_without_being_shown() {
    let (mut sink, address) = ours(&["-n", "2"]);
    hear(&address, "NOOP\r\n");
    hear(&address, "QUIT\r\n");
    assert!(!sink.has_ended(), "who leaves without QUIT is not counted, as in the original");
    assert!(hear(&address, "QUIT\r\n").ends_with("221 Bye\\r\\n"));
    assert_eq!((sink.code(), sink.said("out").as_str()), (Some(0), ""));
}

/// During a delay by -w, -W, -H or -A, the original goes on with input that it has already read. Ours must wait.
#[test]
fn nothing_is_taken_during_a_delay() {
    let ok = "250 2.1.0 Ok|250 2.1.5 Ok|354 End data with <CR><LF>.<CR><LF>|";
    let all = [ENVELOPE, "x\r\n.\r\nQUIT\r\n"].concat();
    let taken = format!("{ok}250 2.0.0 Ok|221 Bye|");
    let aborted = format!("{ok}550 This violates SMTP|");
    let at_least = |options: &[&str], said: &str, expected: &str, seconds: u64| {
        let (mut sink, address) = ours(options);
        let before = Instant::now();
        let heard = hear(&address, said);
        let took = before.elapsed();
        let replies = heard.replace("220 smtp-sink ESMTP\\r\\n", "").replace("\\r\\n", "|");
        assert!(
            replies == expected && took.as_secs() >= seconds,
            "{options:?}: {heard:?} in {took:?}; ended: {}, {:?}",
            sink.has_ended(),
            sink.said("err")
        );
    };
    thread::scope(|scope| {
        scope.spawn(|| at_least(&["-W", "mail:1"], &all, &taken, 1));
        scope.spawn(|| at_least(&["-w", "1", "-H", "1"], &all, &taken, 2));
        scope.spawn(|| at_least(&["-A", "1"], &all, &aborted, 1));
        scope.spawn(|| at_least(&["-w", "1", "-A", "1"], &all, &aborted, 2));
        // A delay must not count towards the idle timeout.
        scope.spawn(|| {
            at_least(&["-t", "1", "-W", "noop:2"], "NOOP\r\nNOOP\r\n", "250 2.0.0 Ok|250 2.0.0 Ok|", 4);
        });
        // A delay must not apply to errors. Otherwise, the client would get its reply only after an hour.
        scope.spawn(|| {
            let refused = "500 5.3.0 Error: command failed|250 2.0.0 Ok|";
            at_least(&["-W", "connect:3600", "-f", "connect"], "NOOP\r\n", refused, 0);
        });
    });
}

/// The original reads 99999 as 34463, loops forever on an empty template, and answers 250 although the disk is full.
#[test]
fn what_cannot_be_done_is_said() {
    let ended = mailrun(&[&["smtp-sink"], user(), &["127.0.0.1:99999", "10"]].concat());
    let said = "smtp-sink: fatal: 127.0.0.1:99999: Servname not supported for ai_socktype\n";
    assert_eq!((ended.code, ended.err.as_str()), (Some(1), said));

    let (sink, address) = ours(&["-d", ""]);
    assert!(hear(&address, [MESSAGE, "QUIT\r\n"].concat()).ends_with("250 2.0.0 Ok\\r\\n221 Bye\\r\\n"));
    assert_eq!(fs::read_dir(sink.place.path()).unwrap().count(), 1, "a file named by its number alone");

    let (mut sink, address) = ours(&["-D", ""]);
    hear(&address, MESSAGE);
    assert_eq!(
        (sink.code(), sink.said("err").as_str()),
        (Some(1), "smtp-sink: fatal: open : No such file or directory\n")
    );

    let (mut sink, address) = ours(&["-D", "/dev/full"]);
    let heard = hear(&address, [MESSAGE, "QUIT\r\n"].concat());
    assert!(!heard.contains("250 2.0.0"), "nothing is promised that was not kept: {heard}");
    assert_eq!(sink.code(), Some(1));
    assert_eq!(sink.said("err"), "smtp-sink: fatal: append file /dev/full: No space left on device\n");
}

#[test]
fn a_link_and_a_first_word_both_call_it() {
    let place = tempfile::tempdir().unwrap();
    let link = place.path().join("smtp-sink");
    symlink(env!("CARGO_BIN_EXE_mailrun"), &link).unwrap();
    let link = link.to_str().unwrap();
    let usage = |called: &str| format!("{called}: fatal: usage: {called} [-468acCeEFLpPv] ");
    let ended = run(link, &[]);
    assert!(ended.code == Some(1) && ended.err.starts_with(&usage(link)), "{ended:?}");
    let ended = mailrun(&["smtp-sink"]);
    assert!(ended.code == Some(1) && ended.err.starts_with(&usage("smtp-sink")), "{ended:?}");
}

#[test]
fn sessions_beyond_the_limit_wait_in_the_queue() {
    for who in both() {
        let (mut sink, address) = start(who, &["-m", "2"]);
        let mut held: Vec<Client> = (0..2).map(|_| sink.client(&address).unwrap()).collect();
        assert!(held.iter_mut().all(Client::reply));
        let mut third = TcpStream::connect(&address).unwrap();
        third.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert!(third.read(&mut [0]).is_err(), "{who:?}: no greeting yet");
        third.set_read_timeout(Some(LIMIT)).unwrap();
        assert!(held.pop().unwrap().finish().starts_with("220 "));
        assert_eq!(third.read(&mut [0; 3]).unwrap(), 3, "{who:?}");
    }
}

#[test]
fn privileges_are_left_behind() {
    if !is_root() {
        return skip("smtp-sink -u -R", "only root has privileges to leave behind");
    }
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
    for who in both() {
        let (sink, address) = start(who, &["-R", root.path().to_str().unwrap()]);
        // Wait for a reply, because the sink listens before it drops its privileges, but replies only after that.
        hear(&address, "QUIT\r\n");
        let status = fs::read_to_string(format!("/proc/{}/status", sink.id())).unwrap();
        let ids = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        assert_eq!(ids("Uid:"), "65534\t65534\t65534\t65534", "{who:?}");
        assert_eq!((ids("Gid:").as_str(), ids("Groups:").as_str()), ("65534\t65534\t65534\t65534", "65534"), "{who:?}");
        assert_eq!(fs::read_link(format!("/proc/{}/root", sink.id())).unwrap(), root.path(), "{who:?}");
        assert_eq!(fs::read_link(format!("/proc/{}/cwd", sink.id())).unwrap(), root.path(), "{who:?}");
    }
}

#[test]
fn commands_are_logged() {
    if !is_root() {
        return skip("smtp-sink -s", "only root can give it a log of its own (-R)");
    }
    let mut logs = Vec::new();
    for who in both() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("dev");
        fs::create_dir(&device).unwrap();
        for path in [root.path(), &device] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        let log = UnixDatagram::bind(device.join("log")).unwrap();
        fs::set_permissions(device.join("log"), Permissions::from_mode(0o666)).unwrap();
        log.set_read_timeout(Some(LIMIT)).unwrap();
        let options = ["-c", "-s", "connect,noop,.,mail,quit", "-f", "noop", "-R", root.path().to_str().unwrap()];
        let (sink, address) = start(who, &options);
        hear(&address, [&format!("nOOp a\tb\u{e9}{}\r\nRSET\r\n", "x".repeat(200)), MESSAGE, "QUIT\r\n"].concat());
        let mut lines = Vec::new();
        for _ in 0..5 {
            let mut block = [0; 2048];
            let count = log.recv(&mut block).unwrap();
            let line = block[..count].escape_ascii().to_string().replace(&sink.id().to_string(), "PID");
            let date = line.find(" smtp-sink[PID]: ").unwrap_or_else(|| panic!("{who:?}: {line}"));
            assert_eq!(date, "<22>Nov  1 00:00:00".len(), "{who:?}: {line}");
            lines.push([&line[..4], &line[date..]].concat());
        }
        logs.push(lines);
    }
    assert!(logs[0][1].ends_with(&format!("nOOp a?b??{}", "x".repeat(95))), "{:?}", logs[0]);
    assert!(logs.windows(2).all(|pair| pair[0] == pair[1]), "{logs:#?}");
}

#[test]
fn endless_input_costs_no_memory() {
    let (sink, address) = ours(&["-D", "all"]);
    for start in ["", "NOOP ", "MAIL FROM:<", "AUTH LOGIN\r\n", ENVELOPE] {
        let mut client = Client::connect(&address, "".as_ref()).unwrap();
        client.send(start);
        // The sink may close the connection, after which the kernel refuses further writes.
        let block = vec![b'x'; 1 << 20];
        let _ = (0..64).all(|_| client.send(&block));
        client.finish();
    }
    let (lmtp, lmtp_address) = ours(&["-L"]);
    let mut stream = TcpStream::connect(&lmtp_address).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    stream.write_all(b"MAIL FROM:<a>\r\n").unwrap();
    let recipients = "RCPT TO:<b>\r\n".repeat(100_000);
    let held_up = (0..200).find(|_| stream.write_all(recipients.as_bytes()).is_err());
    assert!(held_up.is_some(), "nobody reads the replies: the sink stops reading as well");
    let mut client = Client::connect(&lmtp_address, "".as_ref()).unwrap();
    assert!(client.reply() && client.say("NOOP"), "others are served");
    for sink in [&sink, &lmtp] {
        assert!(sink.peak_bytes() < MEMORY_BYTES, "{}", sink.peak_bytes());
    }
    assert!(hear(&address, MESSAGE).ends_with("250 2.0.0 Ok\\r\\n"));
    assert_eq!(fs::read_dir(sink.place.path()).unwrap().count(), 1, "what was not finished is gone");
}

#[test]
fn a_client_that_reads_nothing_is_left() {
    let (sink, address) = ours(&["-t", "1"]);
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    let group = MESSAGE.repeat(1000);
    wait_until("the connection to be closed on", || stream.write_all(group.as_bytes()).err());
    wait_until("a warning", || sink.said("err").contains("smtp-sink: warning: write timeout\n").then_some(()));
    assert!(sink.peak_bytes() < MEMORY_BYTES, "{}", sink.peak_bytes());
}

#[test]
fn idle_slow_and_vanishing_clients_are_counted_right() {
    let (sink, address) = ours(&["-c", "-m", "1200"]);
    let idle: Vec<Client> =
        (0..1000).map(|_| wait_until("room in the queue", || Client::connect(&address, "".as_ref()).ok())).collect();
    let mut slow = Client::connect(&address, "".as_ref()).unwrap();
    slow.reply();
    assert!([MESSAGE, "QUIT\r\n"].concat().bytes().all(|octet| slow.send([octet])));
    let stages =
        ["", "NO", "NOOP\r\n", "MAIL FROM:<a>\r\n", ENVELOPE, &ENVELOPE.replace("DATA", "data\r\nx\r\n.\r"), MESSAGE];
    for stage in stages {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.read_exact(&mut [0; 21]).unwrap();
        stream.write_all(stage.as_bytes()).unwrap();
        set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    }
    assert!(slow.finish().ends_with("250 2.0.0 Ok\\r\\n221 Bye\\r\\n"));
    let counts = |wanted: &str| wait_until(wanted, || sink.said("out").ends_with(wanted).then_some(()));
    let sessions =
        |text: String| text.rsplit("sess=").next().and_then(|rest| crate::party::numbers(rest).first().copied());
    wait_until("those that left to be counted", || (sessions(sink.said("out")) == Some(8)).then_some(()));
    // The last client sends a whole message and disconnects at once. The sink may or may not have read this message.
    let with_last = crate::party::numbers(sink.said("out").rsplit("mesg=").next().unwrap())[0];
    assert!((1..=2).contains(&with_last), "{with_last}");
    assert!(sink.peak_bytes() < MEMORY_BYTES, "{}", sink.peak_bytes());
    for client in idle {
        assert_eq!(client.finish(), "220 smtp-sink ESMTP\\r\\n");
    }
    counts(&format!("sess=1008 quit=1 mesg={with_last}\r"));
}

#[test]
fn talks_are_held_to_their_end() {
    // Check the comparison itself, which must notice if a client gets no reply to its last command.
    let (_sink, address) = ours(&["-q", "noop"]);
    let mut client = Client::connect(&address, "".as_ref()).unwrap();
    assert!(client.reply() && client.say("RSET") && !client.say("NOOP"));
    assert!(matches!(Talk::lines(&["a"]), Talk::InTurn(pieces) if pieces == [b"a\r\n"]));
}
