//! Compares mailrun, called under the name `smtp-source`, with Postfix's smtp-source. Both run the same command lines
//! against the same scripted server, and the tests compare every byte on the wire, stdout, stderr and the exit status.
//!
//! The process id, descriptor and date in headers and the program's path are masked. Debug lines of Postfix's library
//! are ignored. Intended differences have their own tests below, and `docs/drop-in.md` names each.
use crate::party::{Ended, Process, mailrun, peer, run, wait_until};
use crate::recorder::{Deaf, Heard, Listen, Recorder, Script};
use crate::rows::all_hold_by;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Number of cases that run at the same time. Most of them wait while the original sleeps for a second after a fatal
/// error.
const TOGETHER: usize = 12;

/// Lines that the original's library prints with `-v`.
const LIBRARY: [&str; 6] =
    ["name_mask: ", "smtp_stream_setup: ", "vstream_tweak_tcp: ", "fd=", "smtp_get: ", "smtp_flush: "];

/// How to compare the sessions of two runs, although their order and their shares of the messages may vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Compares everything in order, because there is only one session.
    Exact,
    /// Compares the connections in any order. Ignores the number of remaining messages, which is part of the Message-Id
    /// and is all that distinguishes the connections.
    Connections,
    /// Compares the lines of all connections together, because each run may send a line on another connection.
    Lines,
}

#[derive(Clone, Debug)]
struct Case {
    words: Vec<String>,
    /// Address to which the program sends, as on its command line. `{port}` stands for the port of the test's own
    /// server, and `{path}` for the path of its socket. With `{none}`, the program gets no address.
    to: String,
    listen: Option<Listen>,
    script: Script,
    order: Order,
    zone: Option<&'static str>,
}

fn case_of(words: &[&str]) -> Case {
    Case {
        words: words.iter().map(|word| (*word).to_owned()).collect(),
        to: "127.0.0.1:{port}".to_owned(),
        listen: Some(Listen::V4),
        script: Script::default(),
        order: Order::Exact,
        zone: None,
    }
}

fn case(line: &str) -> Case {
    case_of(&line.split_whitespace().collect::<Vec<_>>())
}

impl Case {
    fn to(self, to: &str) -> Self {
        Self { to: to.to_owned(), ..self }
    }

    fn at(self, listen: Listen, to: &str) -> Self {
        Self { listen: Some(listen), ..self.to(to) }
    }

    /// Sets a target at which nobody listens.
    fn nobody(self, to: &str) -> Self {
        Self { listen: None, ..self.to(to) }
    }

    fn heard(self, script: Script) -> Self {
        Self { script, ..self }
    }

    fn order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    fn play(&self, program: &Program) -> Seen {
        let place = tempfile::tempdir().unwrap();
        let recorder = self.listen.map(|listen| Recorder::start(listen, self.script.clone(), place.path()));
        let deaf = Deaf::bind();
        let (port, path) = recorder.as_ref().map_or((deaf.port, place.path()), |peer| (peer.port, &peer.path));
        let to = self.to.replace("{port}", &port.to_string()).replace("{path}", path.to_str().unwrap());
        let words: Vec<&str> = program.own.iter().copied().chain(self.words.iter().map(String::as_str)).collect();
        let to = Some(to.as_str()).filter(|to| *to != "{none}");
        let words: Vec<&str> = words.into_iter().chain(to).collect();
        let ended = match self.zone {
            None => run(&program.path, &words),
            Some(zone) => run("/usr/bin/env", &[&[zone, program.path.as_str()], words.as_slice()].concat()),
        };
        let heard = recorder.map(Recorder::finish).unwrap_or_default();
        Seen::of(ended, &heard, &program.path, self.order)
    }
}

/// One of the two programs. `own` has options that only our program knows, which come before the options of the case.
struct Program {
    path: String,
    own: Vec<&'static str>,
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
        let err = ended.err.replace(program, "smtp-source");
        let is_library = |line: &&str| {
            LIBRARY.iter().any(|start| line.strip_prefix("smtp-source: ").is_some_and(|said| said.starts_with(start)))
        };
        let err = err.lines().filter(|line| !is_library(line)).map(str::to_owned).collect();
        let mut wire: Vec<String> = heard.iter().map(|heard| transcript(heard, order)).collect();
        if order == Order::Lines {
            wire = wire.iter().flat_map(|all| all.split_inclusive('\n')).map(str::to_owned).collect();
        }
        if order != Order::Exact {
            wire.sort_unstable();
        }
        Self { wire, out: ended.out, err, code: ended.code }
    }
}

/// Returns every byte that the server heard, and how the connection ended. Masks everything that differs between runs.
fn transcript(heard: &Heard, order: Order) -> String {
    let text: String = heard.octets.iter().map(|byte| char::from(*byte)).collect();
    let lines = text.split_inclusive('\n').map(|line| {
        if let Some(date) = line.strip_prefix("Date: ") {
            return format!("Date: {}", mask_date(date));
        }
        if let Some((process, rest)) = line.strip_prefix("Message-Id: <").and_then(|id| id.split_once('.')) {
            let (descriptor, rest) = rest.split_once('.').unwrap();
            assert!(is_hex(process) && is_hex(descriptor), "{line}");
            let (left, rest) = rest.split_once('@').unwrap();
            assert!(is_hex(left), "{line}");
            let left = if order == Order::Exact { left } else { "LEFT" };
            return format!("Message-Id: <PID.FD.{left}@{rest}");
        }
        line.to_owned()
    });
    lines.collect::<String>() + "<" + heard.end + ">\n"
}

fn is_hex(text: &str) -> bool {
    text.len() >= 4 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Masks digits and the names of days and months. The format and the zone stay.
fn mask_date(date: &str) -> String {
    let zone = date.find(['+', '-']).unwrap_or(date.len());
    let masked = date[..zone].chars().map(|c| match c {
        '0'..='9' => '9',
        'a'..='z' | 'A'..='Z' => 'x',
        other => other,
    });
    masked.collect::<String>() + &date[zone..]
}

#[test]
fn masks_hide_what_changes_and_nothing_else() {
    assert_eq!(mask_date("Sat,  7 Nov 2026 01:54:01 +0000 (UTC)\r\n"), "xxx,  9 xxx 9999 99:99:99 +0000 (UTC)\r\n");
    let octets = b"Message-Id: <1ce5.0003.00ff@vm>\r\nMessage-Ids: <1>\r\n".to_vec();
    let heard = Heard { octets, end: "reset" };
    let expected = "Message-Id: <PID.FD.00ff@vm>\r\nMessage-Ids: <1>\r\n<reset>\n";
    assert_eq!(transcript(&heard, Order::Exact), expected);
    assert_eq!(transcript(&heard, Order::Lines), expected.replace("00ff", "LEFT"));
}

/// Both programs, or `None` if the original is not installed.
fn both(place: &Path, own: &[&'static str]) -> Option<(Program, Program)> {
    let original = Program { path: peer("smtp-source")?, own: Vec::new() };
    Some((original, ours(place, own)))
}

/// Makes a link to mailrun with the original's name, through which the tests call our program.
fn ours(place: &Path, own: &[&'static str]) -> Program {
    let linked = mailrun(&["install-links", place.to_str().unwrap()]);
    assert_eq!(linked.code, Some(0), "{linked:?}");
    Program { path: place.join("smtp-source").to_str().unwrap().to_owned(), own: own.to_vec() }
}

fn compare(cases: &[Case], original: &Program, ours: &Program) {
    all_hold_by(TOGETHER, cases, |case| {
        let theirs = case.play(original);
        let own = case.play(ours);
        (theirs != own).then(|| format!("{case:?}\n  original {theirs:?}\n  ours     {own:?}"))
    });
    // Write to the terminal directly: the test harness shows the output of a test only if it fails.
    let text = format!("smtp-source conformance: {} cases identical with {}", cases.len(), original.path);
    let _ = writeln!(io::stderr(), "{text}");
}

#[test]
fn every_option_is_the_originals_octet_for_octet() {
    let place = tempfile::tempdir().unwrap();
    let Some((original, ours)) = both(place.path(), &["--dialect", "3.8"]) else { return };
    let files = Files::write();
    let cases = [
        plain_options(),
        bodies(),
        numbered_recipients(),
        several_sessions(),
        files.cases(),
        refusals(),
        tolerated_refusals(),
        broken_connections(),
        odd_replies(),
        addresses(),
        misuse(),
    ]
    .concat();
    assert!(cases.len() > 600, "{}", cases.len());
    compare(&cases, &original, &ours);
}

#[test]
fn without_numbers_the_dialects_are_one() {
    let place = tempfile::tempdir().unwrap();
    let Some((original, ours)) = both(place.path(), &[]) else { return };
    let files = Files::write();
    let is_numbered = |case: &Case| case.words.iter().any(|word| word == "-N" || word == "-r");
    let cases = [plain_options(), bodies(), several_sessions(), files.cases()].concat();
    let cases: Vec<Case> = cases.into_iter().filter(|case| !is_numbered(case)).collect();
    assert!(cases.len() > 90, "{}", cases.len());
    compare(&cases, &original, &ours);
}

const PLAIN: &[&str] = &[
    "",
    "-c",
    "-d",
    "-m 3",
    "-d -m 3",
    "-c -m 3",
    "-c -d -m 3",
    "-cdm2",
    "-v",
    "-v -v -d -m 2",
    "-v -L -r 2",
    "-o",
    "-o -d -m 2",
    "-o -S subject",
    "-o -L",
    "-L",
    "-L -r 3",
    "-L -d -m 2 -r 2",
    "-f a@b.example",
    "-t c@d.example",
    "-f a@b.example -t c@d.example -S subject",
    "-M name.example",
    "-M under_score",
    "-M [127.0.0.1]",
    "-M [IPv6:::1]",
    "-M name.example -f a@b.example",
    "-M name.example -L",
    "-T 4096",
    "-T 100000 -l 300000",
    "-A",
    "-A -d -m 2",
    "-C 5",
    "-4",
    "-4 -6 -4",
    "-w 1 -m 2",
    "-w 1 -m 2 -d",
    "-R 1 -m 2",
    "-R 1 -m 2 -d",
    "-m 5x",
    "-m 4294967297",
    "-- ",
];

fn plain_options() -> Vec<Case> {
    let words: [&[&str]; 9] = [
        &["-f", ""],
        &["-t", ""],
        &["-S", ""],
        &["-S", "two words"],
        &["-S", "Grüße"],
        &["-f", "Jürgen@b.example", "-v"],
        &["-S", "two\nlines", "-t", "a>b<c", "-v"],
        &["-m", " 2"],
        &["-M", "x", "-f", "", "-t", "b@c", "-S", "%s%d"],
    ];
    let zones = ["TZ=America/New_York", "TZ=Asia/Kolkata", "TZ=UTC0", "TZ=EST5EDT"];
    let plain = PLAIN.iter().copied().map(case).chain(words.into_iter().map(case_of));
    plain.chain(zones.map(|zone| Case { zone: Some(zone), ..case("") })).collect()
}

fn bodies() -> Vec<Case> {
    let lengths = ["1", "2", "79", "80", "81", "159", "160", "161", "200", "801", "1000", "16384", "100000", "3000000"];
    let single = lengths.map(|length| case(&format!("-l {length}")));
    let more = ["-l 5x", "-l 200 -o", "-l 200 -d -m 3", "-l 200 -S subject", "-l 100 -l 200", "-l 1000 -L -r 2"];
    single.into_iter().chain(more.map(case)).collect()
}

fn numbered_recipients() -> Vec<Case> {
    let counts =
        ["-N", "-N -m 3", "-N -d -m 3", "-N -r 2", "-N -r 3 -d -m 2", "-r 1", "-r 2", "-r 5", "-r 3 -d -m 2", "-Nr2"];
    let addresses = ["", "-t c@d", "-t c+@d", "-t c+", "-t a@b@c", "-t @d"];
    counts.iter().flat_map(|count| addresses.map(|address| case(&format!("{count} {address}")))).collect()
}

fn several_sessions() -> Vec<Case> {
    let connections =
        ["-s 3 -m 3", "-s 3 -m 9", "-s 5 -m 3", "-s 10 -m 40", "-s 3 -m 3 -d", "-s 3 -m 6 -l 1000", "-s 2 -m 4 -A"];
    let lines = [
        "-s 3 -m 9 -d",
        "-s 10 -m 100 -d",
        "-s 3 -m 6 -N",
        "-s 3 -m 6 -N -r 2 -d",
        "-s 4 -m 8 -d -c",
        "-s 2 -m 4 -L -d",
    ];
    let fewer = ["-s 3", "-s 100 -d", "-s 20 -m 2"];
    let of = |order: Order| move |line: &str| case(line).order(order);
    let all = connections.into_iter().map(of(Order::Connections)).chain(lines.into_iter().map(of(Order::Lines)));
    all.chain(fewer.into_iter().map(of(Order::Connections))).collect()
}

/// Messages to be sent with `-F`.
struct Files(TempDir);

impl Files {
    const ALL: [(&str, &[u8]); 9] = [
        ("plain", b"Subject: x\n\nbody\n"),
        ("dots", b".\n..\n.x\nx.\n...\n"),
        ("crlf", b"Subject: x\r\n\r\nbody\r\n.\r\n"),
        ("empty", b""),
        ("unfinished", b"Subject: x\n\nno end"),
        ("dot", b"."),
        ("lines", b"\n\n\n"),
        ("octets", b"a\0b\n\xff\xfe\r\r\n.\0\n"),
        ("mixed", b"a\r\nb\n.c\r\n"),
    ];

    fn write() -> Self {
        let place = tempfile::tempdir().unwrap();
        for (name, text) in Self::ALL {
            fs::write(place.path().join(name), text).unwrap();
        }
        let long = [b"x".repeat(100_000).as_slice(), b"\n", &b".y\n".repeat(100_000)].concat();
        fs::write(place.path().join("long"), long).unwrap();
        Self(place)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn cases(&self) -> Vec<Case> {
        let names = Self::ALL.map(|(name, _)| name).into_iter().chain(["long"]);
        let mut cases: Vec<Case> = names.map(|name| case_of(&["-F", &self.path(name)])).collect();
        let dots = self.path("dots");
        for with in ["-S subject", "-o", "-L -r 2", "-d -m 3", "-N -r 2", "-v"] {
            cases.push(case(&format!("-F {dots} {with}")));
        }
        cases.push(case(&format!("-F {} -F {dots}", self.path("plain"))));
        let place = self.0.path().to_str().unwrap();
        for bad in
            [format!("-F {place}"), "-F /nonexistent".to_owned(), format!("-F {dots} -l 5"), format!("-l 5 -F {dots}")]
        {
            cases.push(case(&bad));
        }
        cases
    }
}

const STAGES: [&str; 6] = ["banner", "HELO", "MAIL", "RCPT", "DATA", "."];

/// Without `-A`, any unexpected reply ends the program.
fn refusals() -> Vec<Case> {
    let mut cases = Vec::new();
    for stage in STAGES {
        for reply in ["550 5.1.1 no", "421 4.3.2 going", "354 what", "250-first\r\n451 last", "junk"] {
            if (stage, reply) != ("DATA", "354 what") {
                cases.push(case("-c").heard(Script::default().say(stage, 1, reply)));
            }
        }
        cases.push(case("-d -m 3 -c").heard(Script::default().say(stage, 2, "550 the second")).order(Order::Exact));
    }
    cases.push(case("-L").heard(Script::default().say("LHLO", 1, "500 no")));
    cases.push(case("-L -r 2").heard(Script::default().say(".", 1, "250 a\r\n550 b")));
    cases.push(case("-r 3").heard(Script::default().say("RCPT", 3, "550 the third")));
    cases.push(case("-o").heard(Script::default().say("banner", 1, "554 no")));
    cases.push(case("").heard(Script::default().say("QUIT", 1, "500 no matter")));
    cases.push(case("").heard(Script::default().say("DATA", 1, "250 not this")));
    cases
}

/// With `-A`, unexpected replies are only warnings.
fn tolerated_refusals() -> Vec<Case> {
    let mut cases = Vec::new();
    for stage in STAGES {
        for reply in ["550 5.1.1 no", "421 4.3.2 going", "521 gone", "junk", "550-a\r\n550-\r\n550 b"] {
            for line in ["-A", "-A -m 3", "-A -d -m 3", "-A -r 2 -c -m 2"] {
                cases.push(case(line).heard(Script::default().say(stage, 1, reply)));
            }
            cases.push(case("-A -m 2 -d").heard(Script::default().say(stage, 0, reply)));
        }
    }
    for reply in ["550 no", "421 going", "521 gone"] {
        let script = Script::default().say("MAIL", 1, "450 later").say("RSET", 1, reply);
        cases.push(case("-A -m 2").heard(script.clone()));
        cases.push(case("-A -m 2 -d").heard(script));
    }
    let some = Script::default().say("RCPT", 2, "550 the second");
    cases.push(case("-A -r 3").heard(some.clone()));
    cases.push(case("-A -r 3 -N -m 2 -d").heard(some));
    cases.push(case("-A -r 3").heard(Script::default().say("RCPT", 2, "421 the second")));
    cases.push(case("-A -r 3").heard(Script::default().say("RCPT", 0, "550 none")));
    cases.push(case("-A -L -r 3 -m 2").heard(Script::default().say(".", 1, "250 a\r\n550 b\r\n250 c")));
    cases.push(case("-A -L -r 3 -m 2").heard(Script::default().say(".", 1, "250 a\r\n421 b")));
    cases.push(case("-A -L").heard(Script::default().say("LHLO", 1, "421 no")));
    cases.push(case("-A -o").heard(Script::default().say("banner", 1, "421 no")));
    cases.push(case("-A -v").heard(Script::default().say("MAIL", 1, "550-a\r\n550 b")));
    cases
}

fn broken_connections() -> Vec<Case> {
    let mut cases = Vec::new();
    for line in ["", "-A", "-L -A", "-c -d -m 2"] {
        for stage in STAGES {
            let stage = if stage == "HELO" && line.contains("-L") { "LHLO" } else { stage };
            cases.push(case(line).heard(Script::default().close(stage, 1)));
            if stage != "banner" {
                cases.push(case(line).heard(Script::default().reset(stage, 1)));
            }
        }
    }
    cases.push(case("-A").heard(Script::default().say("MAIL", 1, "550 no").close("RSET", 1)));
    cases.push(case("-d -m 3").heard(Script::default().close(".", 2)));
    for line in ["", "-C 1", "-C 3", "-s 5", "-C 3 -s 5", "-c -m 3", "-6"] {
        cases.push(case(line).nobody(if line == "-6" { "[::1]:{port}" } else { "127.0.0.1:{port}" }));
        cases.push(case(line).nobody("unix:/nonexistent"));
    }
    cases
}

fn odd_replies() -> Vec<Case> {
    let long = |code: &str, length: usize| format!("{code} {}", "x".repeat(length));
    let say = |stage: &'static str, reply: &[u8]| case("").heard(Script::default().say_raw(stage, 1, reply));
    let mut cases = vec![
        say("banner", b"220\n"),
        say("banner", b"220\r\r\n"),
        say("banner", b"220 bare line feed\n"),
        say("banner", b"220x\r\n"),
        say("banner", b"299-a\r\n220-b\r\n200 c\r\n"),
        say("banner", b"550-a\r\n220 the last line counts\r\n"),
        say("banner", b"220-a\r\n550 the last line counts\r\n"),
        say("HELO", b"2500 four digits\r\n"),
        say("HELO", b"25 two digits\r\n"),
        say("HELO", b"042 leading zero\r\n"),
        say("HELO", b"-\r\n-\r\n550 x\r\n"),
        say("HELO", b"550 tab\there, bell\x07, bytes \xc3\xa4\xff\r\n"),
        say("HELO", b"550 cut\0here\r\n"),
        say("HELO", b"\r\n"),
        say("HELO", b" 250 blank first\r\n"),
        say("MAIL", b"550   three blanks   \r\n"),
    ];
    for length in [10_200, 10_233, 10_234, 10_235, 10_236, 10_237, 10_238, 10_239, 10_240, 10_241, 20_000] {
        cases.push(case("").heard(Script::default().say("MAIL", 1, &long("550", length))));
        cases.push(case("").heard(Script::default().say("MAIL", 1, &long("250", length))));
    }
    cases.push(case("").heard(Script::default().say("MAIL", 1, &format!("550-{0}\r\n550 {0}", "y".repeat(9000)))));
    cases.push(case("-v").heard(Script::default().say_raw("MAIL", 1, b"250-a\tb\r\n250-\x01\r\n250  c\r\n")));
    cases
}

const WRONG: &[&str] = &[
    "::1",
    ":25",
    "[::1",
    "[::1]x",
    "[ipv6:zz]",
    "[ipv6:zz",
    "localhost:1x",
    "localhost:nosuch",
    "nosuch.invalid:1",
    "nosuch.invalid:nosuch",
    "1",
    "12345",
    "",
    "inet:",
    "inet:inet:127.0.0.1:1",
    "[]:1",
    "127.0.0.1:-1",
    "127.1:1",
    "foo_bar-:1",
    "a:b:c",
    "[a.invalid]::",
    "[IPv6:1.2.3.4]:1",
    "UNIX:/x",
    "INET:127.0.0.1:1",
    "256.1.1.1:1",
    "127.0.0.1:SMTP",
    "127.0.0.1:0",
    "127.0.0.1:000{port}",
    "127.0.0.1:systat",
    "localhost:systat",
    "unix:",
    "-",
    "bücher:1",
];

fn addresses() -> Vec<Case> {
    let v4 = ["localhost:{port}", "inet:127.0.0.1:{port}", "[127.0.0.1]:{port}", "127.0.0.01:{port}", "0.0.0.0:{port}"];
    let more = ["127.0.0.1:0{port}", "127.0.0.1:+{port}", "127.0.0.1: {port}", "[localhost]:{port}"];
    let v6 = ["[::1]:{port}", "[ipv6:::1]:{port}", "inet:[IPv6:::1]:{port}", "[0:0:0:0:0:0:0:1]:{port}"];
    let mut cases: Vec<Case> = v4.into_iter().chain(more).map(|to| case("").to(to)).collect();
    cases.push(case("-4").to("localhost:{port}"));
    cases.extend(v6.map(|to| case("").at(Listen::V6, to)));
    cases.push(case("-6 -d -m 2").at(Listen::V6, "[::1]:{port}"));
    for line in ["", "-d -m 3", "-L -r 2", "-6", "-4", "-T 4096", "-l 300000", "-v", "-s 3 -m 3"] {
        let order = if line.contains("-s") { Order::Connections } else { Order::Exact };
        cases.push(case(line).at(Listen::Unix, "unix:{path}").order(order));
    }
    cases.extend(WRONG.iter().map(|to| case("").nobody(to)));
    let long = format!("unix:{}", "x".repeat(120));
    cases.push(case("").nobody(&long));
    cases.push(case("").nobody(&long[..5 + 107]));
    cases.push(case("").nobody(&long[..5 + 108]));
    for (line, to) in [("-4", "[::1]:1"), ("-6", "127.0.0.1:1"), ("-6", "localhost:nosuch"), ("-4 -6", "127.0.0.1:1")] {
        cases.push(case(line).nobody(to));
    }
    cases
}

const MISUSED: &[&str] = &[
    "-x",
    "-",
    "-m",
    "-m 0",
    "-m -1",
    "-m x",
    "-m 3000000000",
    "-l 0",
    "-l x",
    "-s 0",
    "-r 0",
    "-C 0",
    "-T 0",
    "-R 0",
    "-w 0",
    "-R 1 -w 1",
    "-w 1 -R 1",
    "-w 1 -w 2 -R 0",
    "-M -foo",
    "-M 123",
    "-M a..b",
    "-M a.",
    "-M .a",
    "-M a-.b",
    "-M [foo]",
    "-M [1.2.3.4",
    "-M [1.2.3.4]x",
    "-M [1.2.3]",
    "-M [1..3.4]",
    "-M [0.1.2.3]",
    "-M [1.2.3.256]",
    "-M []",
    "-M [ipv6:zz]",
    "-M [ipv6:1:2]",
    "-M [ipv6::::]",
    "-M [ipv6:1::2::3]",
    "-M [ipv6:1:2:3:4:5:6:7:8:9]",
    "-M [ipv6:12345::1]",
    "-M [ipv6:1:2.3.4.5]",
    "-M [ipv6:1:2:3:]",
    "-M [ipv6::1:2:3]",
    "-M [ipv6:::1g]",
    "-M [ipv6:1:2:3:4:5:6:7:1.2.3.4]",
    "-M [ipv6:::1.2.3.4:5]",
    "-M [ipv6:.1]",
    "-M [ipv6:]",
    "-M a/b",
    "-M ä",
    "-m 0 -x",
    "-x -m 0",
    "-dx",
    "-cf",
    "127.0.0.1:2",
    "-Y",
    "-q",
    "--hel",
    "-d --dialect 3.8",
    "-M aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "-M 1111111111111111111111111111111111111111111111111111111111111111",
];

fn misuse() -> Vec<Case> {
    let mut cases: Vec<Case> = MISUSED.iter().map(|line| case(line).nobody("127.0.0.1:{port}")).collect();
    cases.extend(["", "-d", "-m 1", "-f"].map(|line| case(line).nobody("{none}")));
    cases.push(case_of(&["-M", ""]).nobody("127.0.0.1:{port}"));
    cases.push(case_of(&["-M", &"abcd.".repeat(60)]).nobody("127.0.0.1:{port}"));
    cases.push(case_of(&["-M", &format!("{}x", "abcd.".repeat(60))]).nobody("127.0.0.1:{port}"));
    cases.push(case_of(&["-M", &format!("[{}]", "1".repeat(50))]).nobody("127.0.0.1:{port}"));
    cases
}

/// Runs a case with our program alone, in the newest dialect unless its arguments say otherwise.
fn own(place: &Path, case: &Case) -> (Seen, Vec<Heard>) {
    let program = ours(place, &[]);
    let recorder = Recorder::start(case.listen.unwrap(), case.script.clone(), place);
    let to = case.to.replace("{port}", &recorder.port.to_string()).replace("{path}", recorder.path.to_str().unwrap());
    let words: Vec<&str> = case.words.iter().map(String::as_str).chain([to.as_str()]).collect();
    let ended = run(&program.path, &words);
    let heard = recorder.finish();
    (Seen::of(ended, &heard, &program.path, case.order), heard)
}

/// Runs our program against a server with this script. Returns the exit status and the lines of standard error.
fn told(line: &str, script: Script) -> (Option<i32>, Vec<String>) {
    let place = tempfile::tempdir().unwrap();
    let (seen, _) = own(place.path(), &case(line).heard(script));
    (seen.code, seen.err)
}

/// Asserts that the original hangs: after two seconds it still runs, although it has nothing to wait for.
fn original_hangs(line: &str, script: Script) {
    let Some(path) = peer("smtp-source") else { return };
    let place = tempfile::tempdir().unwrap();
    let recorder = Recorder::start(Listen::V4, script, place.path());
    let to = format!("127.0.0.1:{}", recorder.port);
    let process = Process::start(&path, &line.split_whitespace().chain([to.as_str()]).collect::<Vec<_>>());
    thread::sleep(Duration::from_secs(2));
    process.terminate();
    assert_eq!(process.finish().code, None, "the original hangs: {line}");
    recorder.finish();
}

fn original_says(line: &str, script: Script) -> Option<(Option<i32>, Vec<String>)> {
    let program = Program { path: peer("smtp-source")?, own: Vec::new() };
    let seen = case(line).heard(script).play(&program);
    Some((seen.code, seen.err))
}

fn fatal(text: &str) -> (Option<i32>, Vec<String>) {
    (Some(1), vec![format!("smtp-source: fatal: {text}")])
}

const DONE: (Option<i32>, Vec<String>) = (Some(0), Vec::new());

/// Checks on the wire how the dialects (versions of Postfix) number recipients. The unit tests in `recipient.rs` check
/// more combinations of options.
#[test]
fn the_default_dialect_is_that_of_postfix_3_9() {
    let place = tempfile::tempdir().unwrap();
    let rows = [
        ("-N -m 2 -d -t c@d", vec!["RCPT TO:<c0@d>", "To: <c0@d>", "RCPT TO:<c1@d>", "To: <c1@d>"]),
        ("-r 2 -t c+@d", vec!["RCPT TO:<c+0@d>", "RCPT TO:<c+1@d>", "To: <c+1@d>"]),
        ("-r 1 -t c+", vec!["RCPT TO:<c+0>", "To: <c+0>"]),
        ("--dialect 3.8 -r 2 -t c@d", vec!["RCPT TO:<2c@d>", "RCPT TO:<c@d>", "To: <c@d>"]),
        ("-t c@d", vec!["RCPT TO:<c@d>", "To: <c@d>"]),
    ];
    for (line, expected) in rows {
        let (seen, _) = own(place.path(), &case(line));
        assert_eq!((seen.code, seen.err.len()), (Some(0), 0), "{seen:?}");
        let lines: Vec<&str> =
            seen.wire[0].lines().filter(|said| said.starts_with("RCPT") || said.starts_with("To:")).collect();
        assert_eq!(lines, expected, "{line}");
    }
}

/// Difference listed in docs/drop-in.md: "a server that does not reply to QUIT: closes, resets, or sends nothing".
#[test]
fn differs_where_quit_is_not_answered() {
    let lost = fatal("lost connection while sending message");
    for script in [Script::default().close("QUIT", 1), Script::default().reset("QUIT", 1)] {
        if let Some(theirs) = original_says("-m 2", script.clone()) {
            assert_eq!(theirs, lost);
        }
        assert_eq!(told("-m 2", script), DONE);
    }
    original_hangs("", Script::default().silent("QUIT", 1));
    assert_eq!(told("--timeout 1 -m 2", Script::default().silent("QUIT", 0)), DONE);
}

/// Difference listed in docs/drop-in.md: "LMTP, `-A`, a rejected recipient".
#[test]
fn differs_where_an_lmtp_recipient_is_refused() {
    let script = Script::default().say("RCPT", 2, "550 no");
    original_hangs("-L -A -r 3", script.clone());
    let warned = (Some(0), vec!["smtp-source: warning: recipient rejected: 550 no".to_owned()]);
    assert_eq!(told("-L -A -r 3 -m 2 -d", script), warned);
}

/// Difference listed in docs/drop-in.md: "a server that says nothing".
#[test]
fn differs_where_a_server_says_nothing() {
    let deeds = [
        ("banner", "reading server greeting"),
        ("HELO", "sending HELO"),
        ("MAIL", "sending sender"),
        ("RCPT", "sending recipient"),
        ("DATA", "sending DATA command"),
        (".", "sending message"),
    ];
    let begun = Script::default().say_raw("MAIL", 1, b"250-and\r\n250");
    let unread = Script::default().stall("DATA", 1, Duration::from_secs(10));
    // The timeouts are long enough that a busy machine answers everything else in time.
    let mut cases =
        vec![("--timeout 4", begun, "sending sender"), ("--timeout 4 -l 30000000", unread, "sending message")];
    for (stage, deed) in deeds {
        let script = Script::default().silent(stage, 1);
        cases.push(("--timeout 5", script.clone(), deed));
        cases.push(("--timeout 5.5 -A -s 3 -m 3", script, deed));
    }
    thread::scope(|scope| {
        scope.spawn(|| original_hangs("", Script::default().silent("MAIL", 1)));
        for (options, script, deed) in cases {
            scope.spawn(move || assert_eq!(told(options, script), fatal(&format!("timeout while {deed}"))));
        }
    });
}

/// Difference listed in docs/drop-in.md: "two replies at once".
#[test]
fn differs_where_two_replies_come_at_once() {
    let script = Script::default().say_raw("banner", 1, b"220 a\r\n250 b\r\n").silent("HELO", 1);
    original_hangs("", script.clone());
    assert_eq!(told("", script), DONE);
    // The second reply comes before the session pauses. It counts as the reply to the command after the pause.
    let early = Script::default().say_raw(".", 1, b"250 a\r\n250 b\r\n").silent("MAIL", 2);
    assert_eq!(told("--timeout 5 -d -w 1 -m 2", early), DONE);
}

/// Difference listed in docs/drop-in.md: "a reply above 64 KB".
#[test]
fn differs_where_a_reply_never_ends() {
    for endless in [b"250-and on and on\r\n".repeat(100), b"x".repeat(5000), vec![0; 5000], b"\n250-".repeat(900)] {
        let mut endless = endless;
        endless.insert(0, b'-');
        let script = Script::default().repeat("HELO", 1, &endless);
        assert_eq!(told("-A", script), fatal("endless reply while sending HELO"));
    }
}

/// Difference listed in docs/drop-in.md: "a message longer than the buffer to a server that reads slowly". While the
/// server reads nothing in one session, the other session must still send its message, which `-c` shows.
#[test]
fn differs_where_one_server_reads_slowly() {
    let place = tempfile::tempdir().unwrap();
    let program = ours(place.path(), &[]);
    let recorder = Recorder::start(Listen::V4, Script::default().hold("DATA", 1), place.path());
    let to = format!("127.0.0.1:{}", recorder.port);
    let process = Process::start(&program.path, &["-c", "-s", "2", "-m", "2", "-l", "30000000", &to]);
    wait_until("one message to be sent", || process.said().starts_with("1\r").then_some(()));
    recorder.go_on();
    let ended = process.finish();
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(0), "1\r2\r\n", ""));
    assert!(recorder.finish().iter().all(|heard| heard.octets.len() > 30_000_000));
}

/// Difference listed in docs/drop-in.md: "`-w`, `-R` after the last message".
#[test]
fn differs_in_not_waiting_after_the_last_message() {
    // Both pauses are longer than a test waits for a process, so the test would fail if the source paused at the end.
    assert_eq!(told("-w 600 -m 1", Script::default()), DONE);
    assert_eq!(told("-R 60000 -d -s 2 -m 2", Script::default()), DONE);
}

/// Difference listed in docs/drop-in.md: "`-d` with `-w` or `-R`, when another session took the last message".
#[test]
fn differs_in_saying_quit_when_no_message_is_left() {
    let place = tempfile::tempdir().unwrap();
    let (seen, heard) = own(place.path(), &case("-d -w 1 -s 3 -m 4").order(Order::Lines));
    assert_eq!((seen.code, heard.len()), (Some(0), 3));
    assert!(heard.iter().all(|heard| heard.octets.ends_with(b"QUIT\r\n") && heard.end == "reset"), "{heard:?}");
}

/// Differences listed in docs/drop-in.md: "a port above 65535" and "a public address".
#[test]
fn differs_in_where_it_will_not_go() {
    let place = tempfile::tempdir().unwrap();
    let program = ours(place.path(), &[]);
    let said = |to: &str| run(&program.path, &[to]).err.replace(&program.path, "smtp-source");
    assert_eq!(
        said("127.0.0.1:65536"),
        "smtp-source: fatal: 127.0.0.1:65536: Servname not supported for ai_socktype\n"
    );
    let public = said("192.0.3.1:25");
    assert!(
        public.starts_with("smtp-source: fatal: 192.0.3.1:25: public address")
            && public.contains("MAILRUN_ALLOW_PUBLIC=1")
    );
}

/// Difference listed in docs/drop-in.md: "a unix-domain server whose queue is full".
#[test]
fn differs_where_a_unix_domain_queue_is_full() {
    let place = tempfile::tempdir().unwrap();
    let many = case("-s 200 -m 200").at(Listen::ShortUnix, "unix:{path}").order(Order::Connections);
    let (seen, heard) = own(place.path(), &many);
    assert_eq!((seen.code, seen.err, heard.len()), (Some(0), Vec::new(), 200));
    let Some(path) = peer("smtp-source") else { return };
    let theirs = many.play(&Program { path, own: Vec::new() });
    assert_eq!((theirs.code, theirs.err), fatal("connect: Resource temporarily unavailable"));
}

#[test]
fn many_sessions_lose_nothing() {
    let place = tempfile::tempdir().unwrap();
    for line in ["-s 200 -m 1000", "-s 200 -m 2000 -d -N", "-s 50 -m 500 -d -c"] {
        let (seen, heard) = own(place.path(), &case(line).order(Order::Lines));
        let messages: u64 = line.split(' ').nth(3).unwrap().parse().unwrap();
        let ends = seen.wire.iter().filter(|said| *said == ".\r\n").count();
        assert_eq!((seen.code, ends as u64), (Some(0), messages), "{line}: {:?}", seen.err);
        assert!(heard.iter().all(|heard| heard.end == "reset"));
    }
}

#[test]
fn a_report_is_one_line_on_standard_error() {
    let (code, said) = told("--report -m 20 -d", Script::default());
    assert_eq!((code, said.len()), (Some(0), 1));
    assert!(said[0].starts_with("smtp-source: 20 messages, 20 accepted, "), "{said:?}");
    assert!(said[0].contains(" msg/s, latency p50 ") && said[0].contains(" p99 "), "{said:?}");
    let (_, said) = told("--report -A -m 3", Script::default().say("RCPT", 2, "550 no"));
    assert!(said[1].starts_with("smtp-source: 3 messages, 2 accepted, "), "{said:?}");
}

#[test]
fn it_is_called_by_word_or_by_link() {
    let place = tempfile::tempdir().unwrap();
    let program = ours(place.path(), &[]);
    let by_link = run(&program.path, &["-m", "0", "h"]);
    let by_word = mailrun(&["smtp-source", "-m", "0", "h"]);
    assert_eq!((by_word.code, by_word.err.as_str()), (Some(1), "smtp-source: fatal: bad message count: 0\n"));
    assert_eq!(by_link.err, format!("{}: fatal: bad message count: 0\n", program.path));
    for name in ["smtp-sink", "go-smtp-source"] {
        assert!(fs::symlink_metadata(place.path().join(name)).unwrap().is_symlink());
    }
    assert_eq!(ours(place.path(), &[]).path, program.path, "links are renewed");
}

/// Our own sink must accept the same traffic, which the other tests send to a scripted server.
#[test]
fn it_sends_to_our_sink() {
    let place = tempfile::tempdir().unwrap();
    let program = ours(place.path(), &[]);
    let sink = crate::party::Sink::start(&[]);
    let ended = run(&program.path, &["-s", "20", "-m", "500", "-d", "-r", "3", "-l", "2000", &sink.address()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let took = sink.took();
    assert_eq!((took.messages, took.recipients, took.connections), (500, 1500, 20));
}
