//! Compares mailrun, called under the name `go-smtp-source`, with the original go-smtp-source. Both run the same
//! command lines against the same scripted server, and the tests compare every byte on the wire, stdout, stderr and the
//! exit status.
//!
//! The original is a `go-smtp-source` on PATH. Message-Ids, dates, the client's port and the program's path are masked.
//! Lines of stderr are compared in any order, because the original writes them from several goroutines. Intended
//! differences have their own tests below, and `docs/drop-in.md` names each.
use crate::party::{Ended, Sink, mailrun, peer, run};
use crate::recorder::{Deaf, Heard, Listen, Recorder, Script};
use crate::rows::all_hold_by;
use std::collections::HashSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// Number of cases that run at the same time.
const TOGETHER: usize = 4;

/// How to compare the sessions of two runs, although their order and their shares of the messages vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Each connection must match one of the original's connections, but the order of the connections may vary.
    Connections,
    /// Each connection must match one of the original's connections, but it does not matter whether a connection was
    /// closed or reset, because the recording server may notice the end only at its next write.
    Octets,
    /// Compares the lines of all connections together, because each run may send a line on another connection.
    Lines,
}

#[derive(Clone, Debug)]
struct Case {
    words: Vec<String>,
    /// Server to which the program sends. `{port}` in it stands for the port of the test's own server.
    to: Option<String>,
    listen: Option<Listen>,
    script: Script,
    order: Order,
    zone: &'static str,
}

/// Reply to EHLO with the extensions that the scripted server offers by default.
const OFFERS: &str = "250-peer.example\r\n250-SIZE 1000\r\n250-8BITMIME\r\n250 HELP";

fn case_of(words: &[&str]) -> Case {
    Case {
        words: words.iter().map(|word| (*word).to_owned()).collect(),
        to: Some("127.0.0.1:{port}".to_owned()),
        listen: Some(Listen::V4),
        script: Script::default().say("EHLO", 0, OFFERS),
        order: Order::Connections,
        zone: "TZ=UTC",
    }
}

fn case(line: &str) -> Case {
    case_of(&line.split_whitespace().collect::<Vec<_>>())
}

impl Case {
    fn to(self, to: Option<&str>) -> Self {
        Self { to: to.map(str::to_owned), ..self }
    }

    /// Sets a target at which nobody listens.
    fn nobody(self, to: Option<&str>) -> Self {
        Self { listen: None, ..self.to(to) }
    }

    fn heard(self, script: Script) -> Self {
        Self { script, ..self }
    }

    /// Runs one of the two programs. Returns its output and what the server heard.
    fn run(&self, program: &str) -> (Ended, Vec<Heard>) {
        let place = tempfile::tempdir().unwrap();
        let recorder = self.listen.map(|listen| Recorder::start(listen, self.script.clone(), place.path()));
        let deaf = Deaf::bind();
        let port = recorder.as_ref().map_or(deaf.port, |peer| peer.port).to_string();
        let to = self.to.as_ref().map(|to| to.replace("{port}", &port));
        // The original starts a gops agent, which writes a file of its own. Keep this file in the test's directory.
        let agent = format!("GOPS_CONFIG_DIR={}", place.path().display());
        let own = [self.zone, &agent, program];
        let words = own.into_iter().chain(self.words.iter().map(String::as_str)).chain(to.as_deref());
        let ended = run("/usr/bin/env", &words.collect::<Vec<_>>());
        (ended, recorder.map(Recorder::finish).unwrap_or_default())
    }

    fn play(&self, program: &str) -> Seen {
        let (ended, heard) = self.run(program);
        Seen::of(ended, &heard, program, self.order)
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    wire: Vec<String>,
    out: String,
    err: Vec<String>,
    code: Option<i32>,
}

impl Seen {
    fn of(ended: Ended, heard: &[Heard], program: &str, order: Order) -> Self {
        let mut err: Vec<String> = ended.err.replace(program, "go-smtp-source").lines().map(mask_log).collect();
        err.sort_unstable();
        let mut wire: Vec<String> = heard.iter().map(transcript).collect();
        if order == Order::Lines {
            wire = wire.iter().flat_map(|all| all.split_inclusive('\n')).map(str::to_owned).collect();
        }
        if order == Order::Octets {
            wire.iter_mut().for_each(|all| *all = all.replace("<closed>", "<reset>"));
        }
        wire.sort_unstable();
        Self { wire, out: ended.out, err, code: ended.code }
    }
}

/// Returns every byte that the server heard, and how the connection ended. Masks everything that differs between runs.
fn transcript(heard: &Heard) -> String {
    let text: String = heard.octets.iter().map(|byte| char::from(*byte)).collect();
    let lines = text.split_inclusive('\n').map(|line| {
        if let Some(date) = line.strip_prefix("Date: ") {
            return format!("Date: {}", mask_date(date));
        }
        if let Some((id, rest)) = line.strip_prefix("Message-Id: <").and_then(|id| id.split_once('@')) {
            assert!(id.split('.').all(|part| part.len() >= 4 && part.bytes().all(|c| c.is_ascii_hexdigit())), "{line}");
            return format!("Message-Id: <ID@{rest}");
        }
        line.to_owned()
    });
    lines.collect::<String>() + "<" + heard.end + ">\n"
}

/// Masks digits and the names of days and months. The format and the zone stay.
fn mask_date(date: &str) -> String {
    let zone = date.rfind(' ').unwrap_or(0);
    let masked = date[..zone].chars().map(|c| match c {
        '0'..='9' => '9',
        'a'..='z' | 'A'..='Z' => 'x',
        other => other,
    });
    masked.collect::<String>() + &date[zone..]
}

/// Masks the date and time of a log line, and ports.
fn mask_log(line: &str) -> String {
    let is_time = |c: char| c.is_ascii_digit() || matches!(c, '/' | ':' | ' ');
    let line = match line.split_at_checked("2026/01/02 03:04:05 ".len()) {
        Some((time, rest)) if time.chars().all(is_time) && time.contains('/') => format!("TIME {rest}"),
        _ => line.to_owned(),
    };
    let mut masked = String::new();
    for (place, piece) in line.split("127.0.0.1:").enumerate() {
        if place > 0 {
            masked.push_str("127.0.0.1:");
            let digits = piece.bytes().take_while(u8::is_ascii_digit).count();
            masked.push_str(if digits > 3 { "PORT" } else { &piece[..digits] });
            masked.push_str(&piece[digits..]);
        } else {
            masked.push_str(piece);
        }
    }
    masked
}

#[test]
fn masks_hide_what_changes_and_nothing_else() {
    assert_eq!(mask_date("Sat, 07 Nov 2026 01:54:01 CET\r\n"), "xxx, 99 xxx 9999 99:99:99 CET\r\n");
    let line = "2026/11/21 07:35:46 read tcp 127.0.0.1:5123->127.0.0.1:25: no 12345";
    assert_eq!(mask_log(line), "TIME read tcp 127.0.0.1:PORT->127.0.0.1:25: no 12345");
    assert_eq!(mask_log("Usage of x:"), "Usage of x:");
    let octets = b"Message-Id: <1ce5.0003@localhost>\r\nMessage-Ids: <1>\r\n".to_vec();
    let expected = "Message-Id: <ID@localhost>\r\nMessage-Ids: <1>\r\n<reset>\n";
    assert_eq!(transcript(&Heard { octets, end: "reset" }), expected);
}

/// Makes a link to mailrun with the original's name, and returns the link's path.
fn ours(place: &Path) -> String {
    let linked = mailrun(&["install-links", place.to_str().unwrap()]);
    assert_eq!(linked.code, Some(0), "{linked:?}");
    place.join("go-smtp-source").to_str().unwrap().to_owned()
}

#[test]
fn every_option_is_the_originals_octet_for_octet() {
    let place = tempfile::tempdir().unwrap();
    let Some(original) = peer("go-smtp-source") else { return };
    let ours = ours(place.path());
    let cases = [plain(), subjects(), sessions(), offers(), refusals(), broken_connections(), misuse()].concat();
    assert!(cases.len() > 300, "{}", cases.len());
    all_hold_by(TOGETHER, &cases, |case| {
        let theirs = case.play(&original);
        let own = case.play(&ours);
        (theirs != own).then(|| format!("{case:?}\n  original {theirs:?}\n  ours     {own:?}"))
    });
    // Write to the terminal directly: the test harness shows the output of a test only if it fails.
    let _ = writeln!(io::stderr(), "go-smtp-source conformance: {} cases identical with {original}", cases.len());
}

fn plain() -> Vec<Case> {
    let lines = "\n-m 3\n-d\n-d -m 3\n--m=3 --d=true\n-m 0x2 -d=1\n-d=false\n-m 0\n-s 0\n-f a@b.c\n-t d@e.f\n-f= -t=\n\
                 -f é@b -t ü@c\n-r 0\n-r -1\n-r 2\n-r 3 -m 2\n-r 3 -m 3 -d\n-r 2 -t x\n-r 2 -S %d -m 2\n-l 0\n-l 1\n-l 2\n\
                 -l 79\n-l 80\n-l 81\n-l 82\n-l 161\n-l 162\n-l 1000\n-l 70000\n-l -5\n-l 100 -d -m 2\n-l 100 -r 2 -m 2\n\
                 -q 0\n-q -1\n-q 1000 -m 3\n-q 1e6 -r 2 -d -m 3\n-q 5_0.5\n-q inf\n-q nan -m 2\n-resolve-once\n-v\n-v -m 3\n\
                 -v -r 3 -m 2\n-v -d\n-v -d -m 3\n-v -d -r 2\n-v=false\n-v -r 0\n-F=\n-tls=false\n-resolve-once=0 -d -m 2";
    let mut cases: Vec<Case> = lines.split('\n').map(case).collect();
    cases.push(case_of(&["-f", "<a b>", "-t", "c d"]));
    cases.push(case_of(&["-t", "%d@%s", "-f", "%d", "-r", "2"]));
    cases.push(case_of(&["-f", "a\nb"]));
    cases.push(case_of(&["-t", "a\rb", "-r", "2"]));
    cases.push(case("-resolve-once").to(Some("localhost:{port}")));
    cases.push(case("-resolve-once -d -m 2").to(Some("127.0.0.1:{port}")));
    cases.push(case("--"));
    for zone in ["TZ=Europe/Berlin", "TZ=America/Sao_Paulo", "TZ=Asia/Kolkata", "TZ="] {
        cases.push(Case { zone, ..case("") });
    }
    cases
}

const FORMATS: &str = "x|%d|a %d b|%5d!|%-5d!|%05d!|%-05d!|%+d|% d|%.4d|%8.4d!|%08.4d!|%-8.4d!|%x|%X|%#x|%#X|%o|%#o|%O|%#O|\
    %b|%#b|%c|%5c!|%05c!|%q|%+q|%#q|%U|%#U|%8U!|%.6U|%v|%+v|%#v|%5v!|%T|%.2T|%5T!|%05T!|%s|%5s|%05s|%p|%w|%t|%e|%g|%|%5|%!|\
    %d%d|%[1]d|%[1]d%[1]x|%[2]d|%[1]|%[|%[]d|%[1]5d|%[1].3d|%[x]d|%*d|%*[1]d!|%[1]*[1]d!|%.*[1]d|%.*d|%9999999d|\
    %.9999999d!|%é|%.0d|%+05d|% 05d|%x%%|a%!(EXTRA b|%#+d|%.d|%6.d|%[1]c%|%[3]*.[2]*[1]d|%[0]d|%-+5d!|%#05x|%#8x!|%#.4o|\
    %#.4O|100%|100%%|%%d|%d%%|%.-3d|%[1]%|%+.3x|% x|%+q%%|%[1]d %d|%z%[1]z|%00005d";

fn subjects() -> Vec<Case> {
    let mut cases: Vec<Case> = FORMATS.split('|').map(|format| case_of(&["-S", format, "-m", "2", "-d"])).collect();
    for format in ["", " ", "\n.dot", "two\nlines", "cr\rlf", "tail\r", "é"] {
        cases.push(case_of(&["-S", format]));
    }
    cases.push(case_of(&["-S", "%q %[1]U %[1]c", "-m", "40", "-d"]));
    cases
}

fn sessions() -> Vec<Case> {
    let lines = |line: &str| Case { order: Order::Lines, ..case(line) };
    vec![
        case("-s 4 -m 8"),
        case("-s 4 -m 8 -S %d -r 2"),
        case("-s 9 -m 3"),
        case("-s 3 -m 9 -q 1000"),
        lines("-d -s 3 -m 60 -r 2"),
        lines("-d -s 2 -m 40 -S %d"),
        case("-m 20 -l 5000"),
    ]
}

fn offers() -> Vec<Case> {
    let replies = [
        "250 peer",
        "250-peer\r\n250 8BITMIME",
        "250-peer\r\n250 SMTPUTF8",
        "250-peer\r\n250-SMTPUTF8\r\n250 8BITMIME",
        "250-peer\r\n250 8bitmime",
        "250-8BITMIME\r\n250 SMTPUTF8 x",
        "250-peer\r\n250 8BITMIME ",
        "250-peer\r\n250 STARTTLS",
        "250-peer\r\n251 x\r\n250 8BITMIME",
        "250-peer\r\n8BITMIME\r\n250 x",
        "500 no",
        "502-no\r\n502 8BITMIME",
        "421 no",
        "251-peer\r\n251 8BITMIME",
        "250",
        "nothing at all",
        "",
    ];
    let mut cases = Vec::new();
    for reply in replies {
        for line in ["", "-d -m 2"] {
            cases.push(case(line).heard(Script::default().say("EHLO", 0, reply)));
        }
    }
    let banner = |reply| Script::default().say("EHLO", 0, OFFERS).say("banner", 0, reply);
    cases.extend(["220-a\r\n220 b", "220 ", "220-a\r\nb\r\n220 c"].map(|reply| case("").heard(banner(reply))));
    cases
}

fn refusals() -> Vec<Case> {
    let replies = [
        "250 ok",
        "251 ok",
        "259 ok",
        "220 ok",
        "354 go",
        "421 no",
        "450-a\r\n450 b",
        "550 5.1.1 no",
        "550-a\r\nother\r\n551 x\r\n550 c",
        "xyz",
        "abc d \"q\" \\ é",
        "250",
        "550",
        "099 x",
        "1000 x",
        "",
        "550 ",
    ];
    let mut cases = Vec::new();
    for reply in replies {
        for verb in ["HELO", "MAIL", "RCPT", "DATA", ".", "QUIT"] {
            let script = if verb == "HELO" { Script::default() } else { Script::default().say("EHLO", 0, OFFERS) };
            cases.push(case("").heard(script.clone().say(verb, 0, reply)));
            cases.push(case("-d -r 2 -m 3").heard(script.clone().say(verb, if verb == "QUIT" { 1 } else { 2 }, reply)));
        }
        // Leave out 220, because TLS would begin after it, and the recorder does not support TLS.
        if !reply.starts_with("220") {
            let script = Script::default().say("EHLO", 0, OFFERS).say("STARTTLS", 0, reply);
            cases.push(case("-tls").heard(script.clone()));
            cases.push(case("-tls -d").heard(script));
            cases.push(case("-tls").heard(Script::default().say("HELO", 0, reply).say("STARTTLS", 0, "454 no")));
        }
    }
    cases
}

fn broken_connections() -> Vec<Case> {
    let mut cases = Vec::new();
    for verb in ["MAIL", "RCPT", "DATA", ".", "QUIT"] {
        for line in ["", "-d", "-tls=f -r 2"] {
            let offers = Script::default().say("EHLO", 0, OFFERS);
            cases.push(case(line).heard(offers.clone().close(verb, 0)));
            cases.push(case(line).heard(offers.reset(verb, 0)));
        }
    }
    for verb in ["MAIL", "RCPT"] {
        let two = Script::default().say("EHLO", 0, OFFERS).say(verb, 0, "250 one\r\n250 two");
        cases.push(Case { order: Order::Octets, ..case("").heard(two) });
    }
    cases
}

fn misuse() -> Vec<Case> {
    let lines = "-x\n-m x\n-m\n-d=maybe\n-=x\n--=x\n---m\n-m 99999999999999999999\n-m 08\n-m 1__0\n-m=\n-q x\n-q=1e999\n-q 0x1\n\
                 -h\n-help\n--h\n-h=1\n-dv\n-md\n-tls=T=x\n-v=\n-s a -x\n-r 1.5\n-l 1e3\n-resolve\n-F /none h:1\n-F / h:1\n\
                 h\na:b:c\n[::1\n[::1]\n[a]b:1\na[b:1\na]b:1\n[a]:b:c\n::1\n--\n\n-\n-d\n-F /none\n-m 2 h -x\n-S\n-f\n-t\n-F\n-l\n\
                 -r\n-s\n-q\n-resolve-once :1";
    let mut cases: Vec<Case> = lines.split('\n').map(|line| case(line).nobody(None)).collect();
    cases.push(case("-d").nobody(Some("127.0.0.1:1")));
    cases.push(case("-d").nobody(Some("127.0.0.1:zz")));
    cases.push(case("-d").nobody(Some("127.0.0.1:")));
    cases.push(case("-d").nobody(Some("127.0.0.1:99999")));
    cases.push(case("-d").nobody(Some("127.0.0.1:{port}")));
    cases.push(case("-d").nobody(Some(":1")));
    cases.push(case_of(&[""]).nobody(None));
    cases
}

/// Runs our program alone, for the differences in the table of `docs/drop-in.md`.
fn own(case: &Case) -> (Ended, Vec<Heard>) {
    let place = tempfile::tempdir().unwrap();
    case.run(&ours(place.path()))
}

fn text_of(heard: &Heard) -> String {
    String::from_utf8_lossy(&heard.octets).into_owned()
}

#[test]
fn every_message_has_an_id_of_its_own() {
    for line in ["-m 5", "-m 5 -d", "-m 9 -s 3 -d"] {
        let (ended, heard) = own(&case(line));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let all: String = heard.iter().map(text_of).collect();
        let ids: Vec<&str> = all.lines().filter(|line| line.starts_with("Message-Id: ")).collect();
        let different: HashSet<&&str> = ids.iter().collect();
        assert!(ids.len() >= 5 && different.len() == ids.len(), "{ids:?}");
    }
}

#[test]
fn a_file_is_encoded_once() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("file");
    let rows: [(&[u8], &str); 4] = [
        (b"Subject: x\n\n.dot\n..\nend", "Subject: x\r\n\r\n..dot\r\n...\r\nend\r\n.\r\n"),
        (b"a\r\nb\r\n", "a\r\nb\r\n.\r\n"),
        (b"one\n", "one\r\n.\r\n"),
        (b"", "\r\n.\r\n"),
    ];
    for (text, expected) in rows {
        fs::write(&path, text).unwrap();
        let (ended, heard) = own(&case_of(&["-F", path.to_str().unwrap(), "-m", "2", "-d"]));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let said = text_of(&heard[0]);
        let messages: Vec<&str> = said.split("DATA\r\n").skip(1).collect();
        assert_eq!(
            messages,
            [
                format!("{expected}MAIL FROM:<from@example.com> BODY=8BITMIME\r\nRCPT TO:<to@example.com>\r\n"),
                format!("{expected}QUIT\r\n")
            ]
        );
    }
}

#[test]
fn messages_that_were_not_sent_are_told() {
    let said = |ended: &Ended| ended.err.lines().map(mask_log).collect::<Vec<_>>();
    let (ended, _) = own(&case("-m 3").nobody(Some("127.0.0.1:1")));
    let refused = "TIME unable to connect to the server: dial tcp 127.0.0.1:1: connect: connection refused";
    assert_eq!(
        (ended.code, said(&ended)),
        (
            Some(1),
            [&[refused; 3][..], &["TIME 3 of 3 messages were not sent"]]
                .concat()
                .into_iter()
                .map(str::to_owned)
                .collect()
        )
    );
    let banner = |nth| Script::default().say("EHLO", 0, OFFERS).say("banner", nth, "554 no");
    let (ended, heard) = own(&case("-m 3").heard(banner(2)));
    assert_eq!((ended.code, heard.len()), (Some(1), 3), "one is lost, the others are sent");
    let lines = ["TIME unable to connect to the server: 554 \"no\"", "TIME 1 of 3 messages were not sent"];
    assert_eq!(said(&ended), lines);
    let (ended, _) = own(&case("-d").heard(banner(1)));
    assert_eq!((ended.code, said(&ended)), (Some(1), vec!["TIME opening a SMTP session: 554 \"no\"".to_owned()]));
}

#[test]
fn what_the_original_hangs_or_crashes_on_ends() {
    for line in ["-m -1", "-s -1", "-l 2147483648"] {
        let (ended, _) = own(&case(line));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.err.starts_with("invalid value ") && ended.err.contains("\nUsage of "), "{}", ended.err);
    }
    assert_eq!(own(&case("-d -s 0 -m 2")).0.code, Some(0), "the original waits for ever");
    let (ended, _) = own(&case("").heard(Script::default().say("EHLO", 0, OFFERS).say("MAIL", 0, "abc-d")));
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("invalid response code: \"abc-d\""), "{}", ended.err);
    let (ended, _) = own(&case("").heard(Script::default().repeat("EHLO", 0, b"250-x\r\n")));
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("unable to say hello: endless reply"), "{}", ended.err);
}

#[test]
fn addresses_that_the_original_cannot_reach() {
    let (ended, heard) = own(&Case { listen: Some(Listen::V6), ..case("").to(Some("[::1]:{port}")) });
    assert_eq!((ended.code, heard.len()), (Some(0), 1), "{ended:?}");
    let (ended, _) = own(&case("").nobody(Some("8.8.8.8:25")));
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.err.contains("8.8.8.8: public address") && ended.err.contains("MAILRUN_ALLOW_PUBLIC=1"),
        "{}",
        ended.err
    );
}

#[test]
fn a_server_that_reads_slowly_gets_it_all() {
    let script = Script::default().say("EHLO", 0, OFFERS).stall("DATA", 0, Duration::from_millis(300));
    let (ended, heard) = own(&case("-l 30000001 -m 2 -s 2").heard(script));
    assert_eq!((ended.code, heard.len()), (Some(0), 2), "{ended:?}");
    for heard in heard {
        assert_eq!(heard.octets.iter().filter(|octet| **octet == b'X').count(), 30_000_000);
        assert!(heard.octets.ends_with(b"XX\r\n.\r\nQUIT\r\n"));
    }
}

/// A server that counts its concurrent connections. No session begins until a given number of clients are connected.
struct Counter {
    port: u16,
    most: Arc<AtomicUsize>,
}

impl Counter {
    fn start(together: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let most = Arc::new(AtomicUsize::new(0));
        let state = Arc::new((Mutex::new((0_usize, 0_usize)), Condvar::new()));
        let shared = Arc::clone(&most);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let most = Arc::clone(&shared);
                let state = Arc::clone(&state);
                thread::spawn(move || serve(&stream.unwrap(), together, &most, &state));
            }
        });
        Self { port, most }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// Serves one client, but only after `together` clients have connected. `state` holds the number of open connections,
/// and the number of all connections so far. `most` is updated to the highest number of open connections.
fn serve(stream: &TcpStream, together: usize, most: &AtomicUsize, state: &(Mutex<(usize, usize)>, Condvar)) {
    let mut counts = state.0.lock().unwrap();
    counts.0 += 1;
    counts.1 += 1;
    most.fetch_max(counts.0, Ordering::Relaxed);
    state.1.notify_all();
    drop(state.1.wait_while(counts, |counts| counts.1 < together).unwrap());
    let say = |text: &str| (&mut &*stream).write_all(text.as_bytes()).unwrap();
    say("220 x\r\n");
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap_or_default();
        match line.split(' ').next().unwrap() {
            "EHLO" | "MAIL" | "RCPT" | "." => say("250 x\r\n"),
            "DATA" => say("354 x\r\n"),
            "QUIT" => {
                // Decrease the number of open connections before the reply. After the reply, the client may connect
                // again at once.
                state.0.lock().unwrap().0 -= 1;
                return say("221 x\r\n");
            }
            _ => {}
        }
    }
}

#[test]
fn sessions_are_as_many_as_were_asked_for() {
    for (sessions, messages) in [(3, 12), (1, 4), (5, 5)] {
        let counter = Counter::start(sessions);
        let line = format!("go-smtp-source -s {sessions} -m {messages} {}", counter.address());
        let ended = mailrun(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(counter.most.load(Ordering::Relaxed), sessions, "{line}");
    }
}

#[test]
fn no_connection_waits_for_its_turn() {
    let counter = Counter::start(1);
    // The source sends a message with two recipients every half second, so one connection at a time is enough.
    let ended = mailrun(&["go-smtp-source", "-s", "3", "-m", "3", "-r", "2", "-q", "4", &counter.address()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(counter.most.load(Ordering::Relaxed), 1);
}

#[test]
fn starttls_with_our_sink() {
    let place = tempfile::tempdir().unwrap();
    let programs = [Some(ours(place.path())), peer("go-smtp-source")];
    for program in programs.into_iter().flatten() {
        for (line, messages, recipients) in
            [("-m 6 -s 2", 6, 6), ("-d -m 6 -s 2 -r 3", 6, 18), ("-l 300000 -m 2", 2, 2)]
        {
            let sink = Sink::start(&["--tls", "starttls"]);
            let address = sink.address();
            let agent = format!("GOPS_CONFIG_DIR={}", place.path().display());
            let own = [agent.as_str(), &program, "-tls"];
            let words: Vec<&str> = own.into_iter().chain(line.split(' ')).chain([address.as_str()]).collect();
            let ended = run("/usr/bin/env", &words);
            assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{program} {line}");
            let record = sink.stop();
            let took = crate::party::took(&record);
            assert_eq!((took.messages, took.recipients), (messages, recipients), "{program} {line}");
            assert!(!record.tls.is_empty(), "{program} {line}");
        }
    }
}
