//! Compares mailrun, called under the name `smtp-sink`, with Postfix's smtp-sink, byte for byte. If mailrun differs on
//! purpose, the tests expect what docs/drop-in.md says.
use crate::party::{is_root, low_port, peer, undisturbed};
use crate::smtp_pair::{Case, Running, Talk, Who, compare, reply_times, tell_compared, user};

const COMMANDS: [&str; 15] = [
    "connect", "helo", "ehlo", "lhlo", "xclient", "xforward", "auth", "mail", "rcpt", "data", ".", "rset", "noop",
    "vrfy", "quit",
];

/// A message with every irregularity in dots and line ends, followed by its final dot.
const BODY: &str = "Subject: x\r\n\r\n..dots\r\nbare\nlf \r cr\r\n\n.\n.\r\n\r\n.";

/// Every command once, and the usual mistakes.
const SCRIPT: [&str; 22] = [
    "EHLO cl.example",
    "HELO cl.example",
    "LHLO cl.example",
    "XCLIENT NAME=a",
    "XFORWARD NAME=b",
    "VRFY u",
    "noop x y",
    "RSET",
    "RCPT TO:<early@a>",
    "DATA",
    "MAIL FROM:<a@b>",
    "MAIL FROM:<nested@b>",
    "DATA",
    "RCPT TO:<c@d>",
    "RCPT TO:<e@f>",
    "DATA",
    BODY,
    "WHAT",
    "",
    "MAIL FROM:<unfinished@b>",
    "\t Rset",
    "QUIT",
];

/// Two clients that send the script: the first command by command, the second all at once.
fn talks() -> Vec<Talk> {
    vec![Talk::lines(&SCRIPT), Talk::pipelined(&SCRIPT)]
}

#[test]
fn every_fault_at_every_command() {
    let mut cases = Vec::new();
    for flag in ["-q", "-Q", "-f", "-r"] {
        for command in COMMANDS {
            for dialect in ["-c", "-e", "-L"] {
                cases.push(Case::new(&["-vc", dialect, flag, command], &talks()));
            }
        }
    }
    compare("faults", cases);
}

#[test]
fn faults_that_meet() {
    let mut cases = Vec::new();
    let pairs = [("-q", "-Q"), ("-q", "-f"), ("-q", "-r"), ("-Q", "-f"), ("-Q", "-r"), ("-f", "-r")];
    for command in COMMANDS {
        for (one, two) in pairs {
            cases.push(Case::new(&["-vc", two, command, one, command], &talks()));
        }
        if command != "connect" {
            let delay = format!("{command}:1");
            cases.push(Case::new(&["-vc", "-W", &delay, "-f", command], &talks()));
        }
    }
    for flag in ["-q", "-Q", "-f", "-r"] {
        let login = ["EHLO x", "AUTH PLAIN AGEAYg==", "auth login", "NOOP", "QUIT"];
        cases.push(Case::new(&["-vc", flag, "auth"], &[Talk::lines(&login), Talk::pipelined(&login)]));
        for list in ["mail,rcpt", "MAIL rcpt\tData", " ,,quit, ", ""] {
            cases.push(Case::new(&["-v", flag, list], &talks()));
        }
        for list in ["ehlo,lhlo;", "mail,nonsense", "starttls"] {
            cases.push(Case::new(&["-v", flag, list], &[]).until_it_ends());
        }
    }
    compare("faults that meet", cases);
}

#[test]
fn texts_of_errors() {
    let mut cases = Vec::new();
    for text in ["450 no", "421 4.3.2 later", "451", "450 \u{e9} %s %n \\r\\n"] {
        cases.push(Case::new(&["-b", text, "-r", "mail"], &talks()));
        cases.push(Case::new(&["-b", text, "-r", "connect,.", "-f", "rset", "-L"], &talks()));
    }
    cases.push(Case::new(&["-b", "450-more", "-r", "mail"], &talks()[1..]));
    for text in ["550 5.7.1 no", "500"] {
        cases.push(Case::new(&["-B", text, "-f", "connect,data"], &talks()));
        cases.push(Case::new(&["-B", text, "-f", ".", "-r", ".", "-L"], &talks()));
    }
    for text in ["4500 x", "55", "", "x"] {
        cases.push(Case::new(&["-b", text], &[]).until_it_ends());
        cases.push(Case::new(&["-B", text], &[]).until_it_ends());
    }
    compare("texts of errors", cases);
}

#[test]
fn announcements() {
    const LETTERS: [&str; 10] = ["-e", "-P", "-L", "-8", "-a", "-E", "-N", "-p", "-C", "-F"];
    let mut cases = vec![Case::new(&[], &talks()), Case::new(&["-8aECFNp"], &talks())];
    for (at, one) in LETTERS.iter().enumerate() {
        cases.push(Case::new(&[one], &talks()));
        cases.extend(LETTERS[at + 1..].iter().map(|two| Case::new(&[two, one], &talks())));
    }
    for name in ["mx.example", "", "a b", "%s"] {
        for letter in ["-e", "-P", "-L"] {
            cases.push(Case::new(&["-h", name], &talks()));
            cases.push(Case::new(&[letter, "-h", name, "-d", "x"], &talks()));
        }
    }
    compare("announcements", cases);
}

/// Input that no ordinary client sends.
fn odd_input() -> Vec<Vec<u8>> {
    let line = |length: usize| [b"NOOP ".as_slice(), &vec![b'x'; length - 7], b"\r\n"].concat();
    let data = b"MAIL FROM:<a>\r\nRCPT TO:<b>\r\nDATA\r\n".as_slice();
    let message = |body: &[u8]| [data, body, b"NOOP\r\nQUIT\r\n"].concat();
    vec![
        line(2047),
        line(2048),
        line(2049),
        [line(2048), line(2048), line(2049), line(10)].concat(),
        vec![b'x'; 2048],
        vec![b'x'; 2049],
        [vec![b'\n'; 2046], b"\r\nNOOP\r\n".to_vec()].concat(),
        [vec![b'\n'; 2047], b"\r\nNOOP\r\n".to_vec()].concat(),
        b"NOOP\nNOOP\r\nNOOP\r\r\nNOOP\rNOOP\r\n\n\r\n\r\n \r\n\t\t\r\n".to_vec(),
        b"NOOP\0x\r\n\0NOOP\r\n\0\r\nMAIL FROM:<a\0b>\r\nQUIT\0\r\n".to_vec(),
        b"\xff\xfe\r\nnoop\xc3\xa9\r\nNOOP \xc3\xa9\x01\x7f\r\n\x1b[31mNOOP\r\n".to_vec(),
        b"QUIT\r\nNOOP\r\nMAIL FROM:<a>\r\n".to_vec(),
        b"QUIT now\r\n".to_vec(),
        b"NOOP".to_vec(),
        b"NOOP\r".to_vec(),
        b"".to_vec(),
        b".\r\n. \r\n.x\r\n..\r\n.\r\nDATA\r\n.\r\n".to_vec(),
        message(b".\r\n"),
        message(b"\r\n.\r\n"),
        message(b"a\r\n..\r\n.a\r\n.\r\n"),
        message(b"a\n.\nb\n.\r\nc\r\n.\nd\r.\r\r\n.\r\r\n.\r\n"),
        message(b"\r\r\n.\r\n"),
        message(&[[b'x'; 70_000].as_slice(), b"\r\n.\r\n"].concat()),
        message(&[b"0123456789abcdef\r\n".repeat(9000).as_slice(), b".\r\n"].concat()),
        [data, b"never ended\r\n."].concat(),
        [data, b"x\r\n.\r\n", data, b"y\r\n.\r\n", b"DATA\r\nRCPT TO:<z>\r\nMAIL FROM:<z>\r\nDATA\r\n"].concat(),
        [data, b"x\r\n.\r\n.\r\n"].concat(),
        b"MAIL FROM:<a>\r\nEHLO x\r\nRCPT TO:<b>\r\nMAIL FROM:<a>\r\nHELO x\r\nDATA\r\nMAIL\r\nRCPT\r\nDATA\r\n.\r\n"
            .to_vec(),
        b"MAIL FROM:<a>\r\nRCPT TO:<b>\r\n.\r\nDATA\r\n.\r\nRCPT TO:<c>\r\nDATA\r\nMAIL FROM:<d>\r\n.\r\n".to_vec(),
        b"MAIL FROM:<a>\r\nRCPT TO:<b>\r\nRSET\r\nDATA\r\nMAIL FROM:<a>\r\nDATA\r\nLHLO x\r\n".to_vec(),
        b"xforward\r\nXFORWARDX\r\nXCLIENT\tA=b\r\nconnect\r\nSTARTTLS\r\nBDAT 3 LAST\r\nHELP\r\nEXPN x\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        b"NOOP\r\n".repeat(3000),
        [b"LHLO x\r\nMAIL FROM:<a>\r\n".to_vec(), b"RCPT TO:<b>\r\n".repeat(3000), b"DATA\r\n.\r\nQUIT\r\n".to_vec()]
            .concat(),
    ]
}

#[test]
fn odd_input_is_answered_alike() {
    let mut cases = Vec::new();
    for octets in odd_input() {
        for options in [["-vc", "-N"], ["-vc", "-L"], ["-c", "-dkept."]] {
            cases.push(Case::new(&options, &[Talk::AtOnce(octets.clone())]));
        }
    }
    compare("odd input", cases);
}

#[test]
fn input_is_the_same_however_it_is_cut() {
    let address = format!("127.0.0.1:{}", low_port());
    let words = [user(), &["-d", "kept.", &address, "10"]].concat().into_iter().map(str::to_owned).collect::<Vec<_>>();
    let mut ours = Running::start(Who::Ours, &words);
    for octets in odd_input().into_iter().filter(|octets| octets.len() < 6000) {
        let mut heard = |length: usize| {
            let mut client = ours.client(&address).unwrap();
            client.reply();
            octets.chunks(length).all(|piece| client.send(piece));
            client.finish()
        };
        let whole = heard(octets.len().max(1));
        for length in [1, 2, 3, 7] {
            assert_eq!(heard(length), whole, "{} in pieces of {length}", octets.escape_ascii());
        }
    }
}

#[test]
fn dumps() {
    const BEGIN: [&str; 4] = ["MAIL FROM: <a@b> X=Y", "RCPT TO:<c@d>", "RCPT TO <no colon>", "DATA"];
    let message = |before: &[&str]| Talk::lines(&[before, &BEGIN, &[BODY, "QUIT"]].concat());
    let mut several = vec!["EHLO first", "HELO  second\t x "];
    for _ in 0..3 {
        several.extend(["MAIL FROM::<a>", "RCPT TO:<b>", "DATA", ".", "MAIL FROM:<lost>", "RSET"]);
    }
    let talks = [
        message(&[]),
        message(&["HELO cl.example"]),
        message(&["EHLO cl.example"]),
        message(&["EHLO"]),
        message(&["LHLO \u{e9}\u{1}"]),
        Talk::lines(&several),
        Talk::pipelined(&several),
        Talk::lines(&[&BEGIN[..3], &["EHLO again", "DATA"]].concat()),
        Talk::AtOnce(b"MAIL FROM:<a>\r\nRCPT TO:<b>\r\nDATA\r\nno end\r\n".to_vec()),
        Talk::AtOnce(
            [b"MAIL FROM:<a>\r\nRCPT TO:<b>\r\nDATA\r\n".as_slice(), &b"line\r\n".repeat(40_000), b".\r\n"].concat(),
        ),
    ];
    let mut cases = Vec::new();
    for keep in ["-d", "-D"] {
        for template in ["kept", "a/%Y/b%%.", "%Q%f.%", "./x-%a%b-"] {
            for dialect in ["-c", "-L", "-e"] {
                cases.push(Case::new(&[keep, template, dialect], &talks));
            }
        }
        for start in ["From x\\n", "\\a\\b\\f\\r\\t\\v\\\\\\101\\0 cut", "", "\\"] {
            cases.push(Case::new(&[keep, "kept.", "-S", start, "-h", "mx.example"], &talks));
        }
        for fault in
            [["-f", "."], ["-r", "."], ["-q", "."], ["-Q", "."], ["-f", "data"], ["-r", "rcpt"], ["-q", "data"]]
        {
            cases.push(Case::new(&[keep, "kept.", fault[0], fault[1]], &talks));
        }
        cases.push(Case::at(&[keep, "kept."], "[::1]:PORT", "[::1]:PORT", &talks));
        cases.push(Case::at(&[keep, "kept."], "unix:socket", "unix:socket", &talks));
    }
    cases.push(Case::new(&["-d", "a", "-D", "b"], &[]).until_it_ends());
    compare("dumps", cases);
}

#[test]
fn counters_and_ends() {
    let quit = Talk::lines(&["NOOP", "QUIT"]);
    let message = Talk::lines(&["MAIL FROM:<a>", "RCPT TO:<b>", "DATA", ".", "QUIT"]);
    let leave = Talk::lines(&["MAIL FROM:<a>"]);
    let all = [quit.clone(), message.clone(), leave.clone(), message.clone(), quit.clone()];
    let mut cases = vec![
        Case::new(&["-c"], &all),
        Case::new(&["-cccv"], &all),
        Case::new(&["-c", "-n", "1"], std::slice::from_ref(&quit)).until_it_ends(),
        Case::new(&["-c", "-n", "4"], &all).until_it_ends(),
        Case::new(&["-c", "-n", "2x"], &[leave.clone(), message.clone(), quit.clone()]).until_it_ends(),
        Case::new(&["-c", "-n", "5"], &all),
        Case::new(&["-c", "-M", "3"], &all),
        Case::new(&["-c", "-n1", "-f", "quit"], &all),
        Case::new(&["-c", "-n1", "-q", "quit"], &all),
        Case::new(&["-c", "-m", "1"], &all),
        Case::new(&["-c", "-T", "4096"], &all),
        Case::new(&["-c", "-v", "-t", "1"], &all),
    ];
    cases.push(Case::new(&["-vv", "-h", "x"], &all));
    compare("counters and ends", cases);
}

#[test]
fn addresses() {
    let talk = [Talk::lines(&["NOOP", "QUIT"])];
    let v4 = ["PORT", ":PORT", "127.0.0.1:PORT", "inet:127.0.0.1:PORT", "[127.0.0.1]:PORT", "localhost:PORT"];
    let v4_odd =
        ["inet::PORT", "127.0.0.01:PORT", "127.0.0.1:+PORT", "127.0.0.1: PORT", "127.0.0.1:0PORT", "0.0.0.0:PORT"];
    let mut cases: Vec<Case> =
        [v4, v4_odd].concat().iter().map(|listen| Case::at(&["-v"], listen, "127.0.0.1:PORT", &talk)).collect();
    for listen in ["[::1]:PORT", "::1:PORT", "[ipv6:::1]:PORT", "[IPv6:::1]:PORT", "[::]:PORT"] {
        cases.push(Case::at(&["-v"], listen, "[::1]:PORT", &talk));
    }
    cases.push(Case::at(&["-v6"], ":PORT", "[::1]:PORT", &talk));
    cases.push(Case::at(&["-v64"], ":PORT", "127.0.0.1:PORT", &talk));
    for listen in ["unix:socket", "unix:./socket"] {
        cases.push(Case::at(&["-v"], listen, "unix:socket", &talk));
    }
    compare("addresses", cases);
}

#[test]
fn wrong_addresses() {
    let long = format!("unix:{}", "x".repeat(108));
    let wrong = [
        "",
        ":",
        "127.0.0.1:",
        "127.0.0.1",
        "25:",
        "[127.0.0.1]",
        "[127.0.0.1]:",
        "[127.0.0.1",
        "[127.0.0.1]x:25",
        "[127.0.0.1]25",
        "[]:25",
        "[ipv6:127.0.0.1]:25",
        "[ipv6:::1]",
        "[fe80::1%lo]:25",
        "127.0.0.1]:25",
        "1.2.3:25",
        "256.0.0.1:25",
        "0.1.2.3:25",
        "foo..bar:25",
        "foo-:25",
        "*:25",
        "12345678901234567890:25",
        "127.0.0.1:25x",
        "127.0.0.1:-5",
        "127.0.0.1:0x10",
        "127.0.0.1:nosuchservice",
        "127.0.0.1:SMTP",
        "inet:unix:/x",
        "nosuch.invalid:25",
        "a_b.invalid:25",
        "192.0.2.1:25",
        "unix:",
        "unix:/nonexistent/x",
        "unix:/proc",
        &long,
    ];
    let mut cases: Vec<Case> = wrong.iter().map(|listen| Case::refused(&[user(), &[listen, "10"]].concat())).collect();
    cases.push(Case::refused(&[user(), &["-6", "127.0.0.1:25", "10"]].concat()));
    cases.push(Case::refused(&[user(), &["-4", "[::1]:25", "10"]].concat()));
    cases.push(Case::refused(&[user(), &["-6", "localhost:25", "10"]].concat()));
    compare("wrong addresses", cases);
}

/// Wrong options, each followed by a valid address and backlog.
const WRONG_OPTIONS: [&[&str]; 38] = [
    &["-Z"],
    &["--hel"],
    &["-cZv"],
    &["-A", "x"],
    &["-A", ""],
    &["-A-1"],
    &["-A", "1x"],
    &["-H", "0"],
    &["-H", "x"],
    &["-m", "0"],
    &["-m", "-1"],
    &["-M", "x"],
    &["-n", ""],
    &["-t", "0"],
    &["-T", "0"],
    &["-w", "0"],
    &["-w", "x"],
    &["-W", ""],
    &["-W", ":"],
    &["-W", "mail"],
    &["-W", "mail:"],
    &["-W", "mail:0"],
    &["-W", "mail:x"],
    &["-W", "mail:1:100"],
    &["-W", "mail:1:-1"],
    &["-W", "nonsense:1"],
    &["-W", "DATA:-1"],
    &["-b", "x", "-Z"],
    &["-n", "x", "-Z"],
    &["-f", "nonsense"],
    &["-f", "mail:1"],
    &["-d", "a", "-D", "b", "-Z"],
    &["-u"],
    &["-n", "99999999999999999999"],
    &["-m", "4294967296"],
    &["-"],
    &["--", "-c"],
    &["x"],
];

/// Arguments with a missing address, backlog or value, or with too many.
const WRONG_WORDS: [&[&str]; 9] = [
    &[],
    &["127.0.0.1:1"],
    &["127.0.0.1:1", "0"],
    &["127.0.0.1:1", "x"],
    &["127.0.0.1:1", "-1"],
    &["127.0.0.1:1", "1", "2"],
    &["-c"],
    &["-W"],
    &["-b"],
];

#[test]
fn wrong_command_lines() {
    let at: &[&str] = &["127.0.0.1:1", "10"];
    let mut cases: Vec<Case> = Vec::new();
    cases.extend(WRONG_OPTIONS.iter().map(|options| Case::refused(&[user(), options, at].concat())));
    cases.extend(WRONG_WORDS.iter().map(|words| Case::refused(&[user(), words].concat())));
    cases.push(Case::refused(&["-u", "no such user", "127.0.0.1:PORT", "10"]));
    if is_root() {
        cases.push(Case::refused(at));
        cases.push(Case::refused(&["-u", "nobody", "-R", "/nonexistent", "127.0.0.1:PORT", "10"]));
    }
    compare("wrong command lines", cases);
}

/// A dialogue with the delays that the sink's options must cause. `seconds` has the time before each reply.
struct Delayed {
    options: &'static [&'static str],
    pieces: &'static [&'static str],
    seconds: &'static [f64],
}

const ENVELOPE: [&str; 3] = ["MAIL FROM:<a>\r\n", "RCPT TO:<b>\r\n", "DATA\r\n"];

const DELAYED: [Delayed; 9] = [
    Delayed {
        options: &["-w", "1"],
        pieces: &[ENVELOPE[0], ENVELOPE[1], ENVELOPE[2], "x\r\n.\r\n"],
        seconds: &[0., 0., 0., 1., 0.],
    },
    Delayed {
        options: &["-W", "noop:2", "-W", "connect:1"],
        pieces: &["NOOP\r\n", "RSET\r\n"],
        seconds: &[1., 2., 0.],
    },
    Delayed { options: &["-W", ".:1", "-W", "quit:1"], pieces: &[".\r\n", "QUIT\r\n"], seconds: &[0., 1., 1.] },
    // With odds of 50, the sink draws random numbers for each command until a number is 50 or more. It waits a second
    // for each smaller number. For the six commands, glibc's unseeded rand() yields (84), (39, 78), (79), (91),
    // (19, 33, 76) and (27, 55).
    Delayed {
        options: &["-W", "noop:1:50"],
        pieces: &["NOOP\r\n", "NOOP\r\n", "NOOP\r\n", "NOOP\r\n", "NOOP\r\n", "NOOP\r\n"],
        seconds: &[0., 0., 1., 0., 0., 2., 1.],
    },
    Delayed { options: &["-W", "noop:1:1"], pieces: &["NOOP\r\n", "NOOP\r\n"], seconds: &[0., 0., 0.] },
    Delayed {
        options: &["-H", "1"],
        pieces: &[ENVELOPE[0], ENVELOPE[1], ENVELOPE[2], "x\r\n.\r\n"],
        seconds: &[0., 0., 0., 0., 1.],
    },
    Delayed {
        options: &["-A", "0"],
        pieces: &[ENVELOPE[0], ENVELOPE[1], ENVELOPE[2], ""],
        seconds: &[0., 0., 0., 0., 0.],
    },
    Delayed {
        options: &["-A", "2"],
        pieces: &[ENVELOPE[0], ENVELOPE[1], ENVELOPE[2], ""],
        seconds: &[0., 0., 0., 0., 2.],
    },
    Delayed { options: &["-t", "2"], pieces: &["NOOP\r\n", ""], seconds: &[0., 0., 2.] },
];

#[test]
fn delays() {
    let has_original = peer("smtp-sink").is_some();
    let held = |who, delayed: &Delayed| {
        // The original's clock has a resolution of one second, so it may reply up to a second early.
        let early = if who == Who::Original { 1.05 } else { 0.05 };
        let is_right = |(time, wanted): (&f64, &f64)| (wanted - early..wanted + 1.0).contains(time);
        let look = || reply_times(who, delayed.options, delayed.pieces);
        // Repeat the dialogue if the times are wrong, because a late client prolongs one wait and shortens the next.
        let (_, heard) = undisturbed(look, |(times, _)| {
            assert_eq!(times.len(), delayed.seconds.len());
            times.iter().zip(delayed.seconds).all(is_right)
        });
        heard
    };
    std::thread::scope(|scope| {
        for delayed in &DELAYED {
            scope.spawn(move || {
                let ours = held(Who::Ours, delayed);
                if has_original {
                    assert_eq!(ours, held(Who::Original, delayed), "{:?}", delayed.options);
                }
            });
        }
    });
    if has_original {
        tell_compared("delays", DELAYED.len());
    }
}
