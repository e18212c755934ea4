//! Through the relay to the next hop: each recipient gets the message once and byte for byte, over every route and in
//! spite of faults.
use crate::party::{Process, Sink, low_port, mailrun, numbers, peer, run, source, undisturbed, wait_until};
use crate::postfix::{Deliver, Postfix};
use crate::recorder::{Listen, Recorder, Script};
use crate::relay::{
    Den, MAILRUN, QUICK, Relay, all_to, await_kept, await_recipients, closes, expect, introduced, kept,
};
use crate::relay::{mailbox, metric, submit};
use crate::rows::each;
use crate::secured::{Files, PASSWORD, USER};
use crate::stand_in::{Act, At, Moment, StandIn};
use serde_json::Value;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum size of a spool that has no mail: one segment in use, at most four free ones that are kept for reuse, and
/// other files. Each segment has 8 MiB, an eighth of the limit that `Den` sets.
const FLOOR_BYTES: u64 = ((5 * 8) << 20) + (1 << 20);

#[test]
fn every_unit_arrives_once_however_it_was_sent() {
    let sink = Sink::start(&[]);
    let den = Den::to(&sink.address(), "workers = 2\n");
    let relay = den.open();
    let rows: [(&[&str], u64); 9] = [
        (&["--messages", "300", "--sessions", "10"], 300),
        (&["--messages", "500", "--sessions", "10", "--reuse"], 500),
        (&["--messages", "500", "--sessions", "10", "--reuse", "--pipelining", "group"], 500),
        (&["--messages", "500", "--sessions", "10", "--reuse", "--pipelining", "stream"], 500),
        (&["--messages", "100", "--sessions", "5", "--recipients", "7"], 700),
        (&["--messages", "4", "--sessions", "2", "--recipients", "350"], 1400),
        (&["--messages", "60", "--sessions", "6", "--message-size", "64k"], 60),
        (&["--messages", "60", "--sessions", "6", "--message-size", "1k..300k", "--chunking", "--reuse"], 60),
        (&["--messages", "60", "--sessions", "6", "--mime", "--to", "pelé@пример.example", "--reuse=3"], 60),
    ];
    for (words, units) in rows {
        closes(&relay, &sink, words, units);
    }
    assert!(relay.process.peak_bytes() < 256 << 20, "{}", relay.process.peak_bytes());
    relay.stop();
    assert_eq!(sink.took().recipients, rows.iter().map(|(_, units)| units).sum::<u64>());
    assert!(den.spool_bytes() <= FLOOR_BYTES, "{}", den.spool_bytes());
}

#[test]
fn lmtp_is_spoken_over_tcp_and_over_a_unix_socket() {
    let sink = Sink::start(&["--lmtp"]);
    let den = Den::new(&all_to(&format!("lmtp:{}", sink.address())));
    let relay = den.open();
    closes(&relay, &sink, &["--messages", "200", "--sessions", "10", "--recipients", "3"], 600);
    relay.stop();
    assert_eq!(sink.took().recipients, 600);

    let files = Files::new();
    let socket = files.path("lmtp.sock");
    let dump = files.path("dump");
    let listen = format!("unix:{socket}");
    let words = ["sink", "--listen", &listen, "--lmtp", "--dump-file", &dump, "--live", "json"];
    let process = Process::start(MAILRUN, &words);
    wait_until("the sink to listen", || fs::exists(&socket).unwrap().then_some(()));
    let den = Den::new(&all_to(&format!("lmtp:{listen}")));
    let relay = den.open();
    let ours = source(&relay.address(), &["--messages", "100", "--sessions", "5", "--recipients", "2"]);
    assert_eq!(ours.ended.code, Some(0), "{:?}", ours.ended);
    let kept = await_kept(&dump, 100);
    assert_eq!(kept.iter().map(|one| one.recipients.len()).sum::<usize>(), 200);
    relay.stop();
    drop(process);
}

#[test]
fn each_recipient_of_lmtp_has_its_own_fate() {
    let files = Files::new();
    let dump = files.path("dump");
    let rules = ["--fault", ". to late@c.example: soft reject 1", "--fault", ". to never@c.example: hard reject 1"];
    let sink = Sink::start(&[&["--lmtp", "--dump-file", &dump], &rules[..]].concat());
    let den = Den::to(&format!("lmtp:{}", sink.address()), QUICK);
    let relay = den.open();
    let mut wire = introduced(&relay);
    let to = ["<good@c.example>", "<late@c.example>", "<never@c.example>"];
    assert!(submit(&mut wire, "<sender@b.example>", &to, "Subject: x\r\n\r\nx\r\n").starts_with("250 2.0.0"));
    // Two messages must arrive: one for the good recipient, and a bounce for the recipient with the hard reject.
    let first = await_kept(&dump, 2);
    assert!(first.iter().any(|one| one.recipients == ["good@c.example"]), "{first:?}");
    let bounce = first.iter().find(|one| one.recipients == ["sender@b.example"]).unwrap();
    assert!(bounce.sender.is_empty() && bounce.text().contains("never@c.example"), "{}", bounce.text());
    assert!(!bounce.text().contains("good@c.example") && !bounce.text().contains("late@c.example"));
    let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
    agent.put(format!("{}/rules", sink.url())).send("{\"rules\": []}").unwrap();
    let all = await_kept(&dump, 3);
    assert_eq!(all[2].recipients, ["late@c.example"], "only the one that was put off comes again");
    relay.stop();
    assert_eq!(kept(&dump).len(), 3);
}

#[test]
fn tls_and_auth_are_spoken_both_ways() {
    for (mode, tls, listen) in [("starttls", "required", "listen"), ("implicit", "implicit", "listen_tls")] {
        let files = Files::new();
        let [certificate, key] = files.certificate("it", &["localhost", "127.0.0.1"]);
        let users = files.users();
        let password = files.keep("password", PASSWORD);
        let sink = Sink::start(&[
            "--tls",
            mode,
            "--tls-cert",
            &certificate,
            "--tls-key",
            &key,
            "--auth-users",
            &users,
            "--auth-required",
        ]);
        let text = format!(
            "{listen} = [\"127.0.0.1:0\"]\n{}networks = [\"10.0.0.0/8\"]\n\
             tls.cert = \"{certificate}\"\ntls.key = \"{key}\"\nauth.users = \"{users}\"\n\
             [[route]]\nto = \"*\"\nsmtp = \"{}\"\ntls = \"{tls}\"\ncacert = \"{certificate}\"\nuser = \"{USER}\"\n\
             password_file = \"{password}\"\n",
            if listen == "listen" { "" } else { "listen = []\n" },
            sink.address()
        );
        let den = Den::with(files, &text);
        let relay = den.open();
        let base = ["--tls", mode, "--cacert", &certificate, "--messages", "60", "--sessions", "6"];
        let login = ["--user", USER, "--password-file", &password];
        closes(&relay, &sink, &[&base[..], &login].concat(), 60);
        for mechanism in ["plain", "login", "cram-md5", "scram-sha-256"] {
            closes(&relay, &sink, &[&base[..], &login, &["--reuse", "--auth-mechanism", mechanism]].concat(), 60);
        }
        let stranger = source(&relay.address(), &base);
        assert_eq!(crate::party::accepted(&stranger.record), 0, "{mode}: a stranger's mail is not relayed");
        relay.stop();
        let theirs = sink.stop();
        assert!(crate::secured::handshakes_in_all(&theirs) >= 1, "{mode}");
        assert_eq!(crate::party::took(&theirs).recipients, 300);
    }
}

#[test]
fn tls_is_used_where_it_is_offered_and_done_without_where_it_fails() {
    // The sink's certificate is self-signed. Opportunistic TLS does not verify it.
    let sink = Sink::start(&["--tls", "starttls"]);
    let den = Den::to(&sink.address(), "");
    let relay = den.open();
    closes(&relay, &sink, &["--messages", "20", "--sessions", "2"], 20);
    relay.stop();
    let theirs = sink.stop();
    assert!(crate::secured::handshakes_in_all(&theirs) >= 1);
    // This server offers STARTTLS, but the handshake fails on its first connection.
    let broken = StandIn::start(|moment| match moment.at {
        At::Hello => Some(Act::Say("250-stand-in\r\n250-STARTTLS\r\n250 8BITMIME")),
        At::Other if moment.connection == 0 => Some(Act::Say("220 Go on\r\nthis is no handshake")),
        _ => None,
    });
    let den = Den::to(&broken.address(), QUICK);
    let relay = den.open();
    assert!(submit(&mut introduced(&relay), "<a@b.example>", &["<c@d.example>"], "x\r\n").starts_with("250"));
    wait_until("the message in the clear", || (broken.taken() == 1).then_some(()));
    relay.stop();
}

#[test]
fn insecure_needs_tls_verifies_nothing_and_is_warned_of() {
    let sink = Sink::start(&["--tls", "starttls"]);
    let den = Den::new(&format!("[[route]]\nto = \"*\"\nsmtp = \"{}\"\ninsecure = true\n", sink.address()));
    let relay = den.open();
    closes(&relay, &sink, &["--messages", "5"], 5);
    let warning = format!("smtp:{}: insecure = true: the certificate is not verified", sink.address());
    assert!(relay.process.complained().contains(&warning), "{}", relay.process.complained());
    relay.stop();
    assert!(crate::secured::handshakes_in_all(&sink.stop()) >= 1);
    // With `insecure`, the relay must not send mail to a server without TLS.
    let plain = Sink::start(&[]);
    let den = Den::new(&format!("{QUICK}[[route]]\nto = \"*\"\nsmtp = \"{}\"\ninsecure = true\n", plain.address()));
    let relay = den.open();
    assert!(submit(&mut introduced(&relay), "<a@b.example>", &["<c@d.example>"], "x\r\n").starts_with("250"));
    let why = "the server does not offer STARTTLS";
    wait_until(why, || relay.process.complained().contains(why).then_some(()));
    relay.stop();
    assert_eq!(crate::party::took(&plain.stop()).recipients, 0);
}

/// Messages with unusual lines, each without its final dot.
const MESSAGES: [&[u8]; 8] = [
    b"Subject: dots\r\n\r\n.\r\n..\r\n...\r\n.a\r\n..a\r\n \r\n.\r\n",
    b".Header: begins with a dot\r\n\r\nx\r\n",
    b"\r\nno header\r\n",
    b"Subject: eight bits\r\n\r\n\xc3\xa4\xff\xfe\x80\r\n",
    b"Subject: \xc3\xa4\r\n\r\nin the header\r\n",
    b"Subject: blanks\r\n\r\n \t \r\n\r\n\r\n",
    b"only a header\r\n",
    b"",
];

fn stuffed(message: &[u8]) -> Vec<u8> {
    let lines = message.split_inclusive(|byte| *byte == b'\n');
    lines.flat_map(|line| [if line.starts_with(b".") { ".".as_bytes() } else { b"" }, line].concat()).collect()
}

#[test]
fn every_octet_is_as_it_was() {
    let files = Files::new();
    let dump = files.path("dump");
    let sink = Sink::start(&["--dump-file", &dump]);
    let relay = Den::to(&sink.address(), "");
    let relay = relay.open();
    let mut wire = introduced(&relay);
    let mut expected = Vec::new();
    for message in MESSAGES {
        let reply = submit(&mut wire, "<a@b.example> BODY=8BITMIME", &["<data@d.example>"], stuffed(message));
        assert!(reply.starts_with("250 2.0.0"), "{reply}");
        expected.push(message.to_vec());
        // Send the message in one chunk, and then again in chunks of three bytes. Both times, the last chunk is empty.
        for size in [message.len().max(1), 3] {
            expect(&mut wire, "MAIL FROM:<a@b.example> BODY=8BITMIME", "250");
            expect(&mut wire, "RCPT TO:<bdat@d.example>", "250");
            for chunk in message.chunks(size) {
                wire.send(format!("BDAT {}\r\n", chunk.len()));
                wire.send(chunk);
                assert!(wire.reply().unwrap().starts_with("250"));
            }
            expect(&mut wire, "BDAT 0 LAST", "250 2.0.0");
            expected.push(message.to_vec());
        }
    }
    // Unlike DATA, BDAT can carry a last line without a line end.
    expect(&mut wire, "MAIL FROM:<a@b.example>", "250");
    expect(&mut wire, "RCPT TO:<bdat@d.example>", "250");
    wire.send("BDAT 5 LAST\r\n\r\n.ab");
    assert!(wire.reply().unwrap().starts_with("250 2.0.0"));
    expected.push(b"\r\n.ab".to_vec());
    let mut arrived: Vec<Vec<u8>> =
        await_kept(&dump, expected.len()).iter().map(|one| one.as_sent().to_vec()).collect();
    arrived.sort();
    expected.sort();
    assert_eq!(arrived, expected);
    relay.stop();
}

#[test]
fn the_trace_is_in_the_form_of_the_standard() {
    let files = Files::new();
    let dump = files.path("dump");
    let sink = Sink::start(&["--dump-file", &dump]);
    let den = Den::to(&sink.address(), "");
    let relay = den.open();
    let mut wire = introduced(&relay);
    submit(&mut wire, "<a@b.example>", &["<c@d.example>"], "Subject: x\r\n\r\nx\r\n");
    let header = await_kept(&dump, 1)[0].text();
    let header = header.split("Subject:").next().unwrap().to_owned();
    let message = mail_parser::MessageParser::default().parse(header.as_bytes()).unwrap();
    let received = message.received().expect("a Received field that others can read");
    assert!(received.date().is_some() && received.id().is_some(), "{header}");
    for word in ["from client.example ([127.0.0.1])", "by relay.example", "with ESMTP", "for <c@d.example>"] {
        assert!(header.contains(word), "{word}: {header}");
    }
    relay.stop();
}

#[test]
fn utf8_addresses_go_where_they_are_understood_and_back_where_not() {
    let files = Files::new();
    let dump = files.path("dump");
    let sink = Sink::start(&["--dump-file", &dump]);
    let old = StandIn::start(|_| None);
    let text = format!("[[route]]\nto = \"old.example\"\nsmtp = \"{}\"\n{}", old.address(), all_to(&sink.address()));
    let den = Den::new(&text);
    let relay = den.open();
    let mut wire = introduced(&relay);
    let to = ["<pelé@пример.example>"];
    let message = "Subject: ä\r\n\r\nx\r\n";
    assert!(submit(&mut wire, "<jürgen@b.example> SMTPUTF8", &to, message).starts_with("250 2.0.0"));
    let first = await_kept(&dump, 1);
    assert_eq!(
        (first[0].sender.as_str(), first[0].recipients[0].as_str()),
        ("jürgen@b.example", "pelé@пример.example")
    );
    assert!(first[0].text().contains("with UTF8SMTP"), "{}", first[0].text());
    assert!(submit(&mut wire, "<jürgen@b.example> SMTPUTF8", &["<x@old.example>"], message).starts_with("250 2.0.0"));
    let bounce = &await_kept(&dump, 2)[1];
    assert!(bounce.recipients == ["jürgen@b.example"] && bounce.text().contains("5.6.7"), "{}", bounce.text());
    assert!(wire.say("MAIL FROM:<jürgen@b.example>").starts_with('5'), "not without SMTPUTF8");
    assert_eq!(old.taken(), 0);
    relay.stop();
}

#[test]
fn a_conversion_of_a_long_message_delays_no_other_client() {
    let old = StandIn::start(|moment| (moment.at == At::Hello).then_some(Act::Say("250-old\r\n250 PIPELINING")));
    let den = Den::new(&format!("workers = 1\nlimits.max_junk_commands = 1000000\n{}", all_to(&old.address())));
    let relay = den.open();
    // The message has many nested multiparts, and many lines that look like their delimiters, so its conversion takes
    // long.
    let nested: String = (0..49)
        .map(|depth| format!("Content-Type: multipart/mixed; boundary=\"b{depth}\"\r\n\r\n--b{depth}\r\n"))
        .collect();
    let body = "--b\r\n".repeat(2 << 20);
    let message = format!("Subject: long\r\nMIME-Version: 1.0\r\n{nested}\r\ncaf\u{e9}\r\n{body}--b48--\r\n");
    let took = |relay: &Relay| {
        let taken = old.taken();
        let mut wires = [introduced(relay), introduced(relay)];
        let reply = submit(&mut wires[0], "<a@b.example> BODY=8BITMIME", &["<x@old.example>"], &message);
        assert!(reply.starts_with("250 2.0.0"), "{reply}");
        let began = Instant::now();
        let mut longest = Duration::ZERO;
        while old.taken() == taken {
            let asked = Instant::now();
            expect(&mut wires[1], "RSET", "250");
            longest = longest.max(asked.elapsed());
            // Wait in between, because a session may send only 1,000 commands without mail.
            std::thread::sleep(Duration::from_millis(50));
        }
        (longest, began.elapsed())
    };
    // The relay has only one worker. If the conversion ran on this worker, one reply would take most of the total time.
    undisturbed(|| took(&relay), |(longest, whole)| *longest * 4 < *whole);
    relay.stop();
}

#[test]
fn eight_bits_go_where_they_are_understood_and_back_where_not() {
    let files = Files::new();
    let dump = files.path("dump");
    let sink = Sink::start(&["--dump-file", &dump]);
    let old = StandIn::start(|moment| (moment.at == At::Hello).then_some(Act::Say("250-old\r\n250 PIPELINING")));
    let text = format!("[[route]]\nto = \"old.example\"\nsmtp = \"{}\"\n{}", old.address(), all_to(&sink.address()));
    let den = Den::new(&text);
    let relay = den.open();
    let mut wire = introduced(&relay);
    let mut send = |from: &str, to: &[&str], message: &str| {
        let reply = submit(&mut wire, from, to, message);
        assert!(reply.starts_with("250 2.0.0"), "{from} {to:?}: {reply}");
    };
    // `accents` has a DKIM signature, because the relay does not convert signed messages.
    let plain = "Subject: x\r\n\r\nx\r\n";
    let accents = "DKIM-Signature: v=1\r\nSubject: x\r\n\r\ncaf\u{e9}\r\n";
    // The old server can get all three messages. The first declares 8BITMIME, but is ASCII. The second has 8-bit text,
    // but does not declare it. The third declares SMTPUTF8, but does not need it.
    send("<one@b.example> BODY=8BITMIME", &["<x@old.example>"], plain);
    send("<two@b.example>", &["<x@old.example>"], accents);
    send("<three@b.example> SMTPUTF8 BODY=8BITMIME", &["<x@old.example>"], plain);
    wait_until("what may go there", || (old.taken() == 3).then_some(()));
    assert!(kept(&dump).is_empty(), "nobody is told");
    // This message declares 8BITMIME and has 8-bit text. For the old server, it must bounce.
    send("<four@b.example> BODY=8BITMIME", &["<x@old.example>", "<y@new.example>"], accents);
    let both = await_kept(&dump, 2);
    let there = both.iter().find(|one| one.recipients == ["y@new.example"]).unwrap();
    assert_eq!(there.as_sent(), accents.as_bytes());
    let bounce = both.iter().find(|one| one.recipients == ["four@b.example"]).unwrap().text();
    for words in
        ["Final-Recipient: rfc822; x@old.example", "Action: failed", "Status: 5.6.3", "8BITMIME", "its body is signed"]
    {
        assert!(bounce.contains(words), "{words}: {bounce}");
    }
    assert!(!bounce.contains("y@new.example"), "{bounce}");
    // This message fails too, but it has a null sender, so nobody may get a notice.
    send("<> BODY=8BITMIME", &["<x@old.example>"], accents);
    send("<last@b.example>", &["<z@new.example>"], plain);
    assert_eq!(await_kept(&dump, 3)[2].recipients, ["z@new.example"]);
    relay.stop();
    assert_eq!((old.taken(), kept(&dump).len()), (3, 3));
}

/// Returns the commands and messages that a server without 8BITMIME and SMTPUTF8 has received. They must be ASCII.
fn heard(server: Recorder) -> String {
    String::from_utf8(server.finish().into_iter().flat_map(|heard| heard.octets).collect()).expect("it is ASCII")
}

#[test]
fn eight_bits_are_encoded_for_a_server_that_does_not_take_them() {
    let place = tempfile::tempdir().unwrap();
    for lmtp in ["", "lmtp:"] {
        let hello = if lmtp.is_empty() { "EHLO" } else { "LHLO" };
        let script = Script::default().say(hello, 0, "250-old\r\n250 PIPELINING");
        let old = Recorder::start(Listen::V4, script, place.path());
        let den = Den::to(&format!("{lmtp}127.0.0.1:{}", old.port), "http = \"127.0.0.1:0\"\n");
        let relay = den.open();
        let mut wire = introduced(&relay);
        let text = "Subject: x\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n\
            viele sch\u{f6}ne Gr\u{fc}\u{df}e\r\n";
        for from in ["<a@b.example> BODY=8BITMIME", "<a@b.example>"] {
            assert!(submit(&mut wire, from, &["<c@d.example>"], text).starts_with("250 2.0.0"));
        }
        let large = format!("Subject: x\r\n\r\n{}", "\u{430}\u{431}\u{432}\r\n".repeat(200_000));
        assert!(submit(&mut wire, "<a@b.example> BODY=8BITMIME", &["<c@d.example>"], &large).starts_with("250 2.0.0"));
        wait_until("all of them", || (metric(&relay, "converted_total") == 3).then_some(()));
        relay.stop();
        let heard = heard(old);
        assert!(!heard.contains("BODY="), "{}", &heard[..2000]);
        assert_eq!(
            heard.matches("\r\nX-MIME-Autoconverted: from 8bit to 7bit by relay.example\r\nReceived: ").count(),
            3
        );
        let quoted = "Content-Transfer-Encoding: quoted-printable\r\n\r\nviele sch=C3=B6ne Gr=C3=BC=C3=9Fe\r\n.\r\n";
        assert_eq!(heard.matches(quoted).count(), 2, "{}", &heard[..3000]);
        assert!(heard.contains("Content-Transfer-Encoding: base64\r\n\r\n0LDQsdCyDQ"));
    }
}

#[test]
fn a_sink_counts_what_was_converted_beside_what_is_corrupt() {
    use mailrun_measurement::trace::{ClockId, RecipientNumbering, RunId, Trace, ZeroPhase, checksum};
    let sink = Sink::start(&[]);
    let body = "viele Gr\u{fc}\u{df}e\r\n".as_bytes();
    let run = RunId([7; 16]);
    let converted = |sequence: u64| {
        let created = Duration::from_secs(1);
        let trace = Trace {
            run,
            sequence,
            zero: ZeroPhase::default(),
            numbering: RecipientNumbering::TAG,
            created,
            clock: ClockId(9),
            checksum: checksum(body),
        };
        let mut line = vec![0; Trace::HEADER_BYTES];
        trace.write(&mut line);
        let message = [b"Received: by a\r\n".as_slice(), &line, b"\r\n", body].concat();
        String::from_utf8(mailrun_mime::to_seven_bit(&message, "relay.example").unwrap().unwrap()).unwrap()
    };
    let mut wire = crate::wire::Wire::greeted(sink.address().parse().unwrap());
    assert!(wire.say("EHLO client.example").starts_with("250"));
    for message in [converted(0), converted(1), converted(2).replace("=C3=BC", "=C3=BD")] {
        assert!(submit(&mut wire, "<a@b.example>", &["<c@d.example>"], message).starts_with("250"));
    }
    wait_until("all three", || (sink.ask("/status")["messages"] == 3).then_some(()));
    let record = sink.ask(&format!("/record/{run}"));
    assert_eq!(record["ledger"]["delivered"], 3);
    assert_eq!((&record["ledger"]["converted"], &record["ledger"]["corrupt"]), (&2.into(), &1.into()), "{record}");
}

#[test]
fn a_recipient_that_needs_smtputf8_does_not_keep_the_message_from_the_others() {
    let files = Files::new();
    let dump = files.path("dump");
    let home = Sink::start(&["--dump-file", &dump]);
    for (lmtp, hello) in [("", "EHLO"), ("lmtp:", "LHLO")] {
        let script = Script::default().say(hello, 0, "250-old\r\n250-8BITMIME\r\n250-DSN\r\n250 PIPELINING");
        // The next hop defers the second recipient, and accepts the message for the others.
        let script = script.say("RCPT", 2, "450 4.2.2 The box is full");
        let place = tempfile::tempdir().unwrap();
        let old = Recorder::start(Listen::V4, script, place.path());
        let key = if lmtp.is_empty() { "smtp" } else { "lmtp" };
        let to = "to = [\"old.example\", \"xn--bcher-kva.example\"]";
        let route = format!("[[route]]\n{to}\n{key} = \"127.0.0.1:{}\"\n", old.port);
        let den = Den::new(&format!("{QUICK}{route}{}", all_to(&home.address())));
        let relay = den.open();
        let before = kept(&dump).len();
        let to = [
            "<pel\u{e9}@old.example>",
            "<one@old.example>",
            "<jos\u{e9}@old.example>",
            "<two@old.example> ORCPT=utf-8;b\\x{F6}b@old.example",
            "<three@old.example>",
            "<four@b\u{fc}cher.example>",
        ];
        let mut wire = introduced(&relay);
        let reply = submit(&mut wire, "<sender@b.example> SMTPUTF8", &to, "Subject: x\r\n\r\nx\r\n");
        assert!(reply.starts_with("250 2.0.0"), "{reply}");
        let bounce = await_kept(&dump, before + 1).pop().unwrap();
        assert_eq!(bounce.recipients, ["sender@b.example"]);
        let message = mail_parser::MessageParser::default().parse(&bounce.octets).unwrap();
        let text = message.body_text(0).unwrap();
        assert!(text.contains("pel\u{e9}@old.example") && text.contains("jos\u{e9}@old.example"), "{text}");
        assert!(!text.contains("one@old.example") && !text.contains("two@") && !text.contains("three@"), "{text}");
        assert!(bounce.octets.is_ascii() && bounce.text().contains("5.6.7"), "{}", bounce.text());
        wait_until("the one that was put off", || (old.times(".") == 2).then_some(()));
        relay.stop();
        let heard = heard(old);
        assert!(!heard.contains("SMTPUTF8"), "{heard}");
        let told: Vec<&str> = heard.lines().filter_map(|line| line.strip_prefix("RCPT TO:")).collect();
        let second = "<two@old.example> ORCPT=utf-8;b\\x{F6}b@old.example";
        assert_eq!(told, ["<one@old.example>", second, "<three@old.example>", "<four@xn--bcher-kva.example>", second]);
        assert_eq!(kept(&dump).len(), before + 1);
    }
}

#[test]
fn a_server_that_refuses_to_greet_is_skipped_or_believed() {
    let files = Files::new();
    let dump = files.path("dump");
    let home = Sink::start(&["--dump-file", &dump]);
    let stern = StandIn::start(|moment| (moment.at == At::Greeting).then_some(Act::Say("554 5.7.1 Not from there")));
    let willing = StandIn::start(|_| None);
    let servers = [vec![stern.address(), willing.address()], vec![stern.address()], vec![stern.address()]];
    for (servers, word) in servers.into_iter().zip(["skip", "skip", "fail"]) {
        let route = format!("[[route]]\nto = \"far.example\"\nsmtp = {servers:?}\n");
        let text = format!(
            "{QUICK}delivery.greeting_5xx = \"{word}\"\nhttp = \"127.0.0.1:0\"\n{route}{}",
            all_to(&home.address())
        );
        let den = Den::new(&text);
        let relay = den.open();
        let mut wire = introduced(&relay);
        let message = "Subject: x\r\n\r\nx\r\n";
        assert!(submit(&mut wire, "<sender@b.example>", &["<x@far.example>"], message).starts_with("250 2.0.0"));
        match (servers.len(), word) {
            (2, _) => wait_until("the second server", || (willing.taken() == 1).then_some(())),
            (_, "skip") => wait_until("several tries", || (metric(&relay, "unreachable_total") >= 3).then_some(())),
            _ => {
                let bounce = await_kept(&dump, 1)[0].text();
                for words in
                    ["Status: 5.7.1", "Diagnostic-Code: smtp; 554 5.7.1 Not from there", "Remote-MTA: dns; [127.0.0.1]"]
                {
                    assert!(bounce.contains(words), "{words}: {bounce}");
                }
            }
        }
        relay.stop();
    }
    assert_eq!((willing.taken(), kept(&dump).len()), (1, 1));
}

#[test]
fn binary_messages_are_neither_asked_for_nor_taken() {
    let den = Den::new("[[route]]\nto = \"*\"\ndiscard = true\n");
    let relay = den.open();
    let mut wire = relay.greeted();
    let offer = expect(&mut wire, "EHLO client.example", "250");
    assert!(offer.contains("CHUNKING") && offer.contains("8BITMIME") && !offer.contains("BINARYMIME"), "{offer}");
    expect(&mut wire, "MAIL FROM:<a@b.example> BODY=BINARYMIME", "50");
    relay.stop();
}

#[test]
fn mailboxes_aliases_and_routes_share_the_mail_out() {
    let files = Files::new();
    let dump = files.path("dump");
    let other = files.path("other");
    let sink = Sink::start(&["--dump-file", &dump]);
    let elsewhere = Sink::start(&["--dump-file", &other]);
    files.keep("mailboxes", "ann\nbob\nkeeper\n");
    files.keep(
        "aliases",
        "team: ann, bob, far@far.example\nann: ann, keeper\nnobody: .\npostmaster: ann\nhalf: nobody, bob\n",
    );
    let text = format!(
        "local.domains = [\"home.example\"]\nlocal.users = \"mailboxes\"\nlocal.aliases = \"aliases\"\n\
         local.maildir = \"mail/{{user}}\"\n[[route]]\nto = [\"far.example\", \".far.example\"]\nsmtp = \"{}\"\n\
         [[route]]\nto = \"gone.example\"\ndiscard = true\n{}",
        elsewhere.address(),
        all_to(&sink.address())
    );
    let den = Den::with(files, &text);
    let relay = den.open();
    let mut wire = introduced(&relay);
    let to =
        ["<team@home.example>", "<Nobody@HOME.example>", "<x@sub.far.example>", "<y@gone.example>", "<z@any.example>"];
    assert!(submit(&mut wire, "<a@b.example>", &to, "Subject: all\r\n\r\n..dot\r\n").starts_with("250 2.0.0"));
    assert!(
        submit(&mut wire, "<a@b.example>", &["<half@home.example>"], "Subject: two\r\n\r\nx\r\n").starts_with("250")
    );
    expect(&mut wire, "MAIL FROM:<a@b.example>", "250");
    expect(&mut wire, "RCPT TO:<unknown@home.example>", "550 5.1.1");
    expect(&mut wire, "RSET", "250");
    let boxes = [("ann", 1), ("bob", 2), ("keeper", 1)];
    for (name, count) in boxes {
        let path = den.path(&format!("mail/{name}"));
        let mail = wait_until("mail in a box", || Some(mailbox(&path)).filter(|mail| mail.len() >= count));
        assert_eq!(mail.len(), count, "{name}");
        let all = mail.iter().find(|one| one.contains("Subject: all")).unwrap();
        assert!(all.starts_with("Return-Path: <a@b.example>"), "{all}");
        assert!(all.contains("\n.dot"), "dots are as they were: {all}");
    }
    await_recipients(&elsewhere, 2);
    let mut recipients: Vec<String> = kept(&other).iter().flat_map(|one| one.recipients.clone()).collect();
    recipients.sort();
    assert_eq!(recipients, ["far@far.example", "x@sub.far.example"]);
    assert_eq!(await_kept(&dump, 1)[0].recipients, ["z@any.example"]);
    relay.stop();
    assert_eq!((kept(&dump).len(), fs::read_dir(den.path("mail")).unwrap().count()), (1, 3));
}

#[test]
fn what_is_put_off_comes_again() {
    let rules = ["rcpt: greylist 500ms", "mail: soft reject 30%", ".: soft reject 30%", "rcpt: soft reject 30%"];
    each(&rules, |rule| {
        let sink = Sink::start(&["--fault", rule]);
        let relay = Den::to(&sink.address(), QUICK);
        let relay = relay.open();
        closes(&relay, &sink, &["--messages", "60", "--sessions", "6", "--recipients", "2"], 120);
        relay.stop();
    });
}

#[test]
fn a_next_hop_that_falters_loses_nothing() {
    for rule in
        ["connect: hang up 20%", "rcpt: hang up 10%", "data: reset 10%", ".: hang up 10%", "data: reset at 100 10%"]
    {
        let sink = Sink::start(&["--fault", rule]);
        let den = Den::to(&sink.address(), QUICK);
        let relay = den.open();
        let ours = source(&relay.address(), &["--messages", "100", "--sessions", "5", "--reuse"]);
        assert_eq!(ours.ended.code, Some(0), "{:?}", ours.ended);
        let delivered = wait_until(rule, || {
            let ledger = sink.ask("/ledger");
            let run = ledger.as_array()?.first()?.clone();
            (run["delivered"] == 100).then_some(run)
        });
        assert_eq!(delivered["corrupt"], 0, "{rule}");
        relay.stop();
    }
}

#[test]
fn a_next_hop_that_takes_its_leave_amid_several_messages_has_each_once() {
    let sink = Sink::start(&["--fault", "mail: hang up \"421 4.7.0 Enough\" 10%"]);
    let den = Den::to(&sink.address(), QUICK);
    let relay = den.open();
    let words = ["--messages", "300", "--sessions", "20", "--reuse", "--pipelining", "stream"];
    let ours = source(&relay.address(), &words);
    assert_eq!(ours.ended.code, Some(0), "{:?}", ours.ended);
    await_recipients(&sink, 300);
    relay.stop();
    let record = sink.stop();
    assert_eq!((record.ledger.delivered, record.ledger.duplicates), (Some(300), Some(0)));
}

/// An LMTP server accepts a message for both recipients. It breaks the connection when it reads the next MAIL, which
/// the relay sent together with this message. The server's replies must count, although they have no enhanced codes to
/// show which command they answer.
#[test]
fn lmtp_replies_that_came_before_the_connection_broke_count() {
    for act in [Act::Close, Act::Reset] {
        let are_queued = Arc::new(AtomicBool::new(false));
        let is_broken = Arc::new(AtomicBool::new(false));
        let (may_greet, broken) = (Arc::clone(&are_queued), Arc::clone(&is_broken));
        let hop = StandIn::start(move |now: Moment| match now.at {
            At::Greeting => {
                wait_until("messages in the queue", || may_greet.load(Ordering::SeqCst).then_some(()));
                None
            }
            At::Mail if now.connection == 0 && now.before > 0 => {
                broken.store(true, Ordering::SeqCst);
                Some(act)
            }
            At::Mail | At::Recipient => Some(Act::Say("250 Ok")),
            At::Message => Some(Act::Say("250 Ok\r\n250 Ok")),
            _ => None,
        });
        let settings = format!("{QUICK}workers = 1\nhttp = \"127.0.0.1:0\"\ndelivery.per_destination = 1\n");
        let den = Den::to(&format!("lmtp:{}", hop.address()), &settings);
        let relay = den.open();
        let mut wire = introduced(&relay);
        for _ in 0..4 {
            let reply =
                submit(&mut wire, "<a@b.example>", &["<c@c.example>", "<d@c.example>"], "Subject: x\r\n\r\nx\r\n");
            assert!(reply.starts_with("250 2.0.0"), "{reply}");
        }
        are_queued.store(true, Ordering::SeqCst);
        wait_until("an empty queue", || (metric(&relay, "spool_messages") == 0).then_some(()));
        relay.stop();
        assert_eq!((hop.taken(), is_broken.load(Ordering::SeqCst)), (4, true), "{act:?}");
    }
}

/// On the first connection, the next hop refuses the first recipient and then answers 503 to some or all later
/// commands. The later messages and the bounce must go over another connection.
#[test]
fn a_next_hop_that_has_lost_track_of_the_session_loses_nothing() {
    for lost in [&[At::Reset, At::Mail][..], &[At::Reset], &[At::Mail], &[At::Recipient], &[At::Data], &[At::Message]] {
        let hop = StandIn::start(move |now: Moment| match now.at {
            _ if now.connection > 0 => None,
            At::Recipient if now.before == 0 => Some(Act::Say("550 5.1.1 No such user")),
            at if at == At::Reset || now.before > 0 || at == At::Message => {
                lost.contains(&at).then_some(Act::Say("503 5.5.1 Bad sequence of commands"))
            }
            _ => None,
        });
        let den = Den::to(&hop.address(), "workers = 1\nhttp = \"127.0.0.1:0\"\ndelivery.per_destination = 1\n");
        let relay = den.open();
        let mut wire = introduced(&relay);
        for _ in 0..4 {
            let reply = submit(&mut wire, "<sender@b.example>", &["<someone@c.example>"], "Subject: x\r\n\r\nx\r\n");
            assert!(reply.starts_with("250 2.0.0"), "{reply}");
        }
        wait_until("three messages and a bounce", || (hop.taken() == 4).then_some(()));
        assert_eq!(metric(&relay, "failed_total"), 1, "{lost:?}");
        relay.stop();
    }
}

/// After a reply that concerns the session and not the message, for example 421, the relay must try once on a new
/// connection, before the retry schedule applies. No message may bounce.
#[test]
fn a_reply_about_the_session_is_followed_by_a_try_in_another() {
    let closing = "421 4.3.2 Closing";
    let at_mail = ["500 5.5.2 What?", "502 5.5.1 What?", "503 5.5.1 What?", "530 5.7.0 TLS first"];
    let cases = [At::Mail, At::Recipient, At::Data, At::Message].map(|at| (at, closing)).into_iter();
    for (at, reply) in cases.chain(at_mail.map(|reply| (At::Mail, reply))) {
        let hop = StandIn::start(move |now| (now.connection == 0 && now.at == at).then_some(Act::Say(reply)));
        let den = Den::to(&hop.address(), "http = \"127.0.0.1:0\"\n");
        let relay = den.open();
        let mut wire = introduced(&relay);
        submit(&mut wire, "<sender@b.example>", &["<someone@c.example>"], "Subject: x\r\n\r\nx\r\n");
        wait_until(reply, || (hop.taken() == 1).then_some(()));
        assert_eq!(metric(&relay, "failed_total"), 0, "{reply} to {at:?}");
        relay.stop();
    }
}

/// This next hop is faulty. It drops every second message of a connection without a reply, if the relay has already
/// sent further commands behind the message. The relay must not take the reply to the next MAIL for the missing reply,
/// whether or not replies have enhanced codes.
#[test]
fn a_next_hop_that_leaves_out_replies_loses_nothing() {
    for has_codes in [true, false] {
        let is_late = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_late);
        let hop = StandIn::start(move |now: Moment| match now.at {
            At::Message if now.is_ahead && now.before % 2 == 1 => {
                seen.fetch_or(now.connection > 0, Ordering::SeqCst);
                Some(Act::Say(""))
            }
            At::Mail | At::Recipient | At::Message if !has_codes => Some(Act::Say("250 Ok")),
            _ => None,
        });
        let den = Den::to(&hop.address(), &format!("{QUICK}workers = 1\ndelivery.per_destination = 1\n"));
        let relay = den.open();
        let ours = source(&relay.address(), &["--messages", "200", "--sessions", "20"]);
        assert_eq!(ours.ended.code, Some(0), "{:?}", ours.ended);
        wait_until("all of it", || (hop.taken() >= 200).then_some(()));
        relay.stop();
        assert!(hop.taken() <= 202, "{} for 200 messages", hop.taken());
        assert!(!is_late.load(Ordering::SeqCst), "a hop that has left out a reply gets one message at a time");
    }
}

#[test]
fn a_lost_reply_makes_a_duplicate_and_no_loss() {
    let sink = Sink::start(&["--fault", ".: lose reply 20%"]);
    let den = Den::to(&sink.address(), QUICK);
    let relay = den.open();
    let ours = source(&relay.address(), &["--messages", "200", "--sessions", "5", "--reuse"]);
    assert_eq!(ours.ended.code, Some(0), "{:?}", ours.ended);
    // The relay may try again only after the last message has arrived for the first time.
    wait_until("all of it and a duplicate", || {
        let ledger = &sink.ask("/ledger")[0];
        (ledger["delivered"] == 200 && ledger["duplicates"].as_u64()? > 0).then_some(())
    });
    relay.stop();
    let lost = numbers(sink.ask("/status")["rules"][0]["acted"].to_string().as_str())[0];
    let record = sink.stop();
    let duplicates = record.ledger.duplicates.unwrap();
    assert!(duplicates <= lost, "{duplicates} duplicates of {lost} lost replies");
}

#[test]
fn a_next_hop_that_is_down_has_its_mail_when_it_comes() {
    let address = format!("127.0.0.1:{}", low_port());
    let den = Den::to(&address, QUICK);
    let relay = den.open();
    let ours = source(&relay.address(), &["--messages", "300", "--sessions", "5", "--reuse"]);
    assert_eq!(ours.ended.code, Some(0), "{:?}", ours.ended);
    let sink = Sink::start_at(&address, &[]);
    await_recipients(&sink, 300);
    relay.stop();
    let record = sink.stop();
    assert_eq!((record.ledger.delivered, record.ledger.duplicates), (Some(300), Some(0)));
}

#[test]
fn a_second_host_takes_what_the_first_does_not() {
    let sink = Sink::start(&[]);
    let text = format!("[[route]]\nto = \"*\"\nsmtp = [\"127.0.0.1:{}\", \"{}\"]\n", low_port(), sink.address());
    let den = Den::new(&text);
    let relay = den.open();
    closes(&relay, &sink, &["--messages", "20", "--sessions", "2"], 20);
    relay.stop();
}

#[test]
fn a_slow_next_hop_delays_no_other() {
    // No test waits for 10 minutes, so this test would fail if another hop waited for the slow hop.
    let slow = Sink::start(&["--fault", ".: delay 10m"]);
    let dead = format!("127.0.0.1:{}", low_port());
    let quick = Sink::start(&[]);
    let text = format!(
        "{QUICK}delivery.overall = 8\ndelivery.per_destination = 4\n[[route]]\nto = \"slow.example\"\nsmtp = \"{}\"\n\
         [[route]]\nto = \"dead.example\"\nsmtp = \"{dead}\"\n{}",
        slow.address(),
        all_to(&quick.address())
    );
    let den = Den::new(&text);
    let relay = den.open();
    let words = ["--messages", "200", "--sessions", "5", "--reuse", "--to"];
    for domain in ["slow.example", "dead.example"] {
        let ours = source(&relay.address(), &[&words[..], &[&format!("x@{domain}")]].concat());
        assert_eq!(ours.ended.code, Some(0), "{:?}", ours.ended);
    }
    closes(&relay, &quick, &[&words[..], &["x@quick.example"]].concat(), 200);
    assert_eq!(slow.ask("/ledger").as_array().unwrap().len(), 0, "the slow one is slow");
}

#[test]
fn a_next_hop_that_does_not_answer_quit_keeps_nothing_waiting() {
    let hop = StandIn::start(|moment| (moment.at == At::Quit).then_some(Act::Silence));
    let den = Den::to(&hop.address(), "http = \"127.0.0.1:0\"\n");
    let relay = den.open_with(&["--http", "127.0.0.1:0"]);
    let mut wire = introduced(&relay);
    let mut send = |number: u64| {
        assert!(submit(&mut wire, "<a@b.example>", &["<c@d.example>"], "x\r\n").starts_with("250 2.0.0"));
        wait_until("it to be taken", || (hop.taken() == number).then_some(()));
    };
    send(1);
    // The relay keeps the connection open for five seconds in case there is more mail. Then it sends QUIT.
    wait_until("the connection to be given up", || (hop.quits() == 1).then_some(()));
    send(2);
    // The relay waits ten seconds for the reply to QUIT, so its first connection (`couriers` in the metrics) is still
    // open.
    assert_eq!(metric(&relay, "couriers"), 2);
    assert_eq!(metric(&relay, "unreachable_total"), 0);
    relay.kill(); // A stop would wait for both replies.
}

/// Ends a relay during a run whose next hop refuses half the mail. A restarted relay must deliver the rest.
fn restarted(end: fn(Relay)) {
    let ended = || {
        let sink = Sink::start(&["--fault", "mail: soft reject 50%"]);
        let den = Den::to(&sink.address(), QUICK);
        let relay = den.open();
        let words = ["--messages", "1000", "--sessions", "10", "--reuse", "--recipients", "2"];
        let ours = source(&relay.address(), &words);
        assert_eq!(ours.ended.code, Some(0), "{:?}", ours.ended);
        end(relay);
        let delivered = sink.ask("/ledger")[0]["delivered"].as_u64().unwrap_or(0);
        (den, sink, delivered)
    };
    // The relay must end before it has delivered all mail. Repeat the run if the machine stalled and the relay
    // therefore had time to deliver everything.
    let (den, sink, _) = undisturbed(ended, |(.., delivered)| *delivered < 2000);
    let relay = den.open_with(&["--http", "127.0.0.1:0"]);
    // Duplicates are allowed: a killed relay may deliver a message again if it had not yet recorded the delivery.
    let run = wait_until("all of it", || {
        let run = sink.ask("/ledger")[0].clone();
        (run["delivered"] == 2000 && metric(&relay, "spool_messages") == 0).then_some(run)
    });
    assert_eq!((&run["corrupt"], &run["foreign"]), (&Value::from(0), &Value::from(0)));
    relay.stop();
    // After another restart, the spool must be empty, and the relay must deliver nothing again.
    let relay = den.open_with(&["--http", "127.0.0.1:0"]);
    expect(&mut relay.greeted(), "NOOP", "250");
    assert_eq!((metric(&relay, "spool_messages"), metric(&relay, "delivered_total")), (0, 0));
    relay.stop();
}

#[test]
fn a_relay_that_is_stopped_goes_on_where_it_was() {
    restarted(|relay| {
        relay.stop();
    });
}

#[test]
fn a_relay_that_is_killed_loses_nothing() {
    restarted(Relay::kill);
}

#[test]
fn a_relay_is_stopped_while_mail_comes_in_and_nothing_answered_is_lost() {
    let sink = Sink::start(&[]);
    let port = low_port();
    let den = Den::to(&sink.address(), &format!("listen = [\"127.0.0.1:{port}\"]\n{QUICK}"));
    let relay = den.open();
    let to = relay.address();
    let running = std::thread::spawn(move || source(&to, &["--duration", "3s", "--sessions", "10", "--reuse"]));
    await_recipients(&sink, 50);
    relay.stop();
    let relay = den.open();
    let record = running.join().unwrap().record;
    let accepted = crate::party::accepted(&record);
    let delivered = wait_until("what was answered 250", || {
        let delivered = sink.ask("/ledger")[0]["delivered"].as_u64()?;
        (delivered >= accepted).then_some(delivered)
    });
    assert!(delivered <= record.ledger.created.unwrap(), "{delivered} of {accepted}");
    relay.stop();
    assert_eq!(sink.stop().ledger.duplicates, Some(0), "a relay that is stopped in order sends nothing twice");
}

#[test]
fn members_of_an_alias_have_their_copies_after_a_restart_once() {
    let files = Files::new();
    let dump = files.path("dump");
    let address = format!("127.0.0.1:{}", low_port());
    files.keep("boxes", "ann\nbob\nkeeper\n");
    files.keep("aliases", "team: ann, bob\nann: ann, keeper\npostmaster: keeper\n");
    let local = "local.domains = [\"home.example\"]\nlocal.users = \"boxes\"\nlocal.aliases = \"aliases\"\n";
    let den = Den::with(files, &format!("{QUICK}{local}local.lmtp = \"{address}\"\n"));
    let relay = den.open();
    let to = ["<team@home.example>", "<Postmaster>"];
    assert!(submit(&mut introduced(&relay), "<a@b.example>", &to, "Subject: x\r\n\r\nx\r\n").starts_with("250"));
    wait_until("the first try", || relay.process.complained().contains("cannot be reached").then_some(()));
    relay.kill();
    let relay = den.open();
    let sink = Sink::start_at(&address, &["--lmtp", "--dump-file", &dump]);
    await_recipients(&sink, 3);
    relay.stop();
    let mut all: Vec<String> = kept(&dump).iter().flat_map(|one| one.recipients.clone()).collect();
    all.sort();
    assert_eq!(all, ["ann@home.example", "bob@home.example", "keeper@home.example"]);
}

#[test]
fn a_destination_that_cannot_be_reached_is_logged_once_until_it_can() {
    let address = format!("127.0.0.1:{}", low_port());
    let den = Den::to(&address, QUICK);
    let relay = den.open_with(&["--http", "127.0.0.1:0"]);
    let send = || {
        let reply = submit(&mut introduced(&relay), "<a@b.example>", &["<c@d.example>"], "Subject: x\r\n\r\nx\r\n");
        assert!(reply.starts_with("250 2.0.0"), "{reply}");
    };
    (0..5).for_each(|_| send());
    wait_until("several tries", || (metric(&relay, "unreachable_total") >= 3).then_some(()));
    let sink = Sink::start_at(&address, &[]);
    await_recipients(&sink, 5);
    wait_until("the note", || relay.process.complained().contains("can be reached again").then_some(()));
    drop(sink);
    send();
    let count = |text: &str| relay.process.complained().matches(text).count();
    wait_until("the other note", || (count("cannot be reached") == 2).then_some(()));
    assert_eq!(count("can be reached again"), 1);
    // A server that rejects mail counts as reached.
    let sink = Sink::start_at(&address, &["--fault", "rcpt: reject \"550 5.1.1 Not here\""]);
    wait_until("the note of a rejection", || (count("can be reached again") == 2).then_some(()));
    relay.stop();
    drop(sink);
}

#[test]
fn the_id_in_received_is_the_queue_id() {
    let files = Files::new();
    let dump = files.path("dump");
    let sink = Sink::start(&["--dump-file", &dump]);
    for durability in ["sync", "memory"] {
        let den = Den::to(&sink.address(), &format!("spool.durability = \"{durability}\"\n"));
        let relay = den.open();
        let before = fs::metadata(&dump).map_or(0, |_| kept(&dump).len());
        let mut ids = Vec::new();
        for bytes in [0, 1_000, 200_000] {
            let text = format!("Subject: x\r\n\r\n{}", "0123456789 0123456789\r\n".repeat(bytes / 23));
            let reply = submit(&mut introduced(&relay), "<a@b.example>", &["<c@d.example>"], text);
            let id = reply.trim_end().strip_prefix("250 2.0.0 Ok: queued as ").expect("a queue id").to_owned();
            ids.push(id);
        }
        await_recipients(&sink, (before + ids.len()) as u64);
        let texts: Vec<String> = kept(&dump)[before..].iter().map(|one| one.text()).collect();
        for id in ids {
            let of_id = texts.iter().filter(|text| text.split(';').next().unwrap().contains(&format!("id {id}")));
            assert_eq!(of_id.count(), 1, "{id}");
        }
        relay.stop();
    }
}

/// A relay for home.example whose LMTP server is down, so that mail for its mailboxes waits.
struct Waiting {
    den: Den,
    mailboxes: String,
    dump: String,
    party: Sink,
    party_dump: String,
}

impl Waiting {
    fn new(aliases: &str) -> Self {
        let files = Files::new();
        let dump = files.path("dump");
        let party_dump = files.path("party-dump");
        let mailboxes = format!("127.0.0.1:{}", low_port());
        let party = Sink::start(&["--dump-file", &party_dump]);
        files.keep("boxes", "ann\nbob\n");
        files.keep("aliases", aliases);
        let local = "local.domains = [\"home.example\"]\nlocal.users = \"boxes\"\nlocal.aliases = \"aliases\"\n";
        let text = format!("{QUICK}{local}local.lmtp = \"{mailboxes}\"\n{}", all_to(&party.address()));
        Self { den: Den::with(files, &text), mailboxes, dump, party, party_dump }
    }

    /// Starts the relay, submits a message for an address, and waits until the first delivery attempt has failed.
    fn submit(&self, to: &str) -> Relay {
        let relay = self.den.open();
        let reply = submit(&mut introduced(&relay), "<a@b.example>", &[to], "Subject: x\r\n\r\nfor one\r\n");
        assert!(reply.starts_with("250"), "{reply}");
        wait_until("the first try", || relay.process.complained().contains("cannot be reached").then_some(()));
        relay
    }

    /// Starts the LMTP server, and waits until it has mail for `mailboxes` recipients and the other next hop has mail
    /// for `party` recipients. Asserts that the queue is then empty. Returns the recipients of both servers.
    fn delivered(&self, relay: Relay, mailboxes: u64, party: u64) -> [Vec<String>; 2] {
        let sink = Sink::start_at(&self.mailboxes, &["--lmtp", "--dump-file", &self.dump]);
        await_recipients(&sink, mailboxes);
        await_recipients(&self.party, party);
        relay.stop();
        // After another start, the queue must be empty.
        let relay = self.den.open();
        let listed = mailrun(&["queue", "--spool", &self.den.path("spool"), "--json", "list"]);
        assert_eq!((listed.code, listed.out.as_str()), (Some(0), ""), "{listed:?}");
        relay.stop();
        [&self.dump, &self.party_dump].map(|dump| {
            let mut all: Vec<String> = kept(dump).iter().flat_map(|one| one.recipients.clone()).collect();
            all.sort();
            all
        })
    }
}

const NEW_ALIAS: &str = "bob: third@party.example, ann\npostmaster: ann\n";

#[test]
fn a_new_alias_leaves_mail_that_waits_for_the_mailbox_to_the_mailbox() {
    // The relay reads the aliases again at a restart and at a reload.
    for how in ["restart", "reload"] {
        let waiting = Waiting::new("postmaster: ann\n");
        let mut relay = waiting.submit("<bob@home.example>");
        waiting.den.files.keep("aliases", NEW_ALIAS);
        if how == "restart" {
            relay.stop();
            relay = waiting.den.open();
        } else {
            relay.process.hang_up();
            // Send new mail until the new alias applies to it.
            wait_until("the new alias", || {
                let to = ["<bob@home.example>"];
                assert!(submit(&mut introduced(&relay), "<a@b.example>", &to, "x\r\n").starts_with("250"));
                (!kept(&waiting.party_dump).is_empty()).then_some(())
            });
            let by_alias = kept(&waiting.party_dump).iter().flat_map(|one| one.recipients.clone()).collect::<Vec<_>>();
            assert!(by_alias.iter().all(|to| to == "third@party.example"), "{by_alias:?}");
            let sink = Sink::start_at(&waiting.mailboxes, &["--lmtp", "--dump-file", &waiting.dump]);
            wait_until("the mail for bob", || {
                kept(&waiting.dump).iter().any(|one| one.recipients == ["bob@home.example"]).then_some(())
            });
            relay.stop();
            drop(sink);
            continue;
        }
        let [mailboxes, party] = waiting.delivered(relay, 1, 0);
        assert_eq!((mailboxes, party), (vec!["bob@home.example".to_owned()], Vec::new()), "{how}");
    }
}

#[test]
fn a_mailbox_that_has_become_an_alias_sends_what_waits_for_it_to_all_members_under_their_addresses() {
    let waiting = Waiting::new("postmaster: ann\n");
    waiting.submit("<bob@home.example>").stop();
    waiting.den.files.keep("aliases", NEW_ALIAS);
    waiting.den.files.keep("boxes", "ann\n");
    let relay = waiting.den.open();
    let [mailboxes, party] = waiting.delivered(relay, 1, 1);
    assert_eq!(mailboxes, ["ann@home.example"]);
    assert_eq!(party, ["third@party.example"]);
    assert!(kept(&waiting.party_dump)[0].text().contains("for one"));
}

#[test]
fn what_is_held_for_a_mailbox_that_has_become_an_alias_is_held_for_its_members() {
    let waiting = Waiting::new("postmaster: ann\n");
    let relay = waiting.submit("<bob@home.example>");
    let queue = |words: &[&str]| mailrun(&[&["queue", "--spool", &waiting.den.path("spool")], words].concat());
    assert_eq!(queue(&["hold", "all"]).out, "1 message held\n");
    relay.stop();
    waiting.den.files.keep("aliases", NEW_ALIAS);
    waiting.den.files.keep("boxes", "ann\n");
    let relay = waiting.den.open();
    wait_until("two that are held", || {
        let listed = queue(&["--json", "list", "--state", "held"]);
        (listed.out.lines().count() == 2).then_some(())
    });
    assert_eq!(queue(&["release", "all"]).out, "1 message released\n");
    let [mailboxes, party] = waiting.delivered(relay, 1, 1);
    assert_eq!((mailboxes.len(), party.len()), (1, 1));
}

#[test]
fn members_of_an_alias_that_is_gone_have_what_came_while_it_was_there() {
    let waiting = Waiting::new("list: bob, ann\npostmaster: ann\n");
    waiting.submit("<list@home.example>").stop();
    waiting.den.files.keep("aliases", "postmaster: ann\n");
    let relay = waiting.den.open();
    let [mailboxes, party] = waiting.delivered(relay, 2, 0);
    assert_eq!((mailboxes, party.len()), (vec!["ann@home.example".to_owned(), "bob@home.example".to_owned()], 0));
}

#[test]
fn mail_is_kept_in_memory_or_by_the_kernel_where_that_is_wanted() {
    for how in ["write", "memory"] {
        let sink = Sink::start(&[]);
        let den = Den::to(&sink.address(), &format!("spool.durability = \"{how}\"\n"));
        let relay = den.open();
        closes(&relay, &sink, &["--messages", "300", "--sessions", "10", "--reuse"], 300);
        relay.stop();
    }
}

#[test]
fn more_than_memory_holds_is_read_again_from_the_spool() {
    let address = format!("127.0.0.1:{}", low_port());
    let den = Den::to(&address, &format!("spool.max_memory = \"1M\"\n{QUICK}"));
    let relay = den.open();
    let words = ["--messages", "400", "--sessions", "4", "--reuse", "--message-size", "64k"];
    let ours = source(&relay.address(), &words);
    assert_eq!(ours.ended.code, Some(0), "{:?}", ours.ended);
    let peak = relay.process.peak_bytes();
    assert!(peak < 25 << 20 << 1, "{peak}: 25 MB are queued");
    let sink = Sink::start_at(&address, &[]);
    await_recipients(&sink, 400);
    relay.stop();
    let record = sink.stop();
    assert_eq!((record.ledger.delivered, record.ledger.corrupt), (Some(400), Some(0)));
}

#[test]
fn postfix_sends_to_us_and_takes_from_us() {
    let sink = Sink::start(&[]);
    let Some(behind) = Postfix::start(Deliver::To(sink.smtp.port()), &[Vec::new()]) else { return };
    let den = Den::to(&behind.address(), "");
    let relay = den.open();
    let Some(before) = Postfix::start(Deliver::To(relay.smtp[0].port()), &[Vec::new()]) else { return };
    let to = before.address();
    let base = [&to, "--sink", sink.url(), "--sessions", "5", "--reuse"];
    for (words, units) in [
        (&["--messages", "200"][..], 200),
        (&["--messages", "40", "--recipients", "60"], 2400),
        (&["--messages", "20", "--message-size", "300k"], 20),
    ] {
        let record = crate::party::bench(&[&base, words].concat()).record_of(0);
        assert_eq!(crate::party::fates(&record.ledger), [units, units, 0, 0, 0], "{words:?}");
    }
    relay.stop();
}

#[test]
fn swaks_sends_to_us() {
    let Some(program) = peer("swaks") else { return };
    let files = Files::new();
    let dump = files.path("dump");
    let sink = Sink::start(&["--dump-file", &dump]);
    let [certificate, key] = files.certificate("it", &["localhost"]);
    let users = files.users();
    let text = format!(
        "tls.cert = \"{certificate}\"\ntls.key = \"{key}\"\nauth.users = \"{users}\"\n{}",
        all_to(&sink.address())
    );
    let den = Den::with(files, &text);
    let relay = den.open();
    let port = relay.smtp[0].port().to_string();
    let base = ["--server", "127.0.0.1", "--port", &port, "--from", "a@b.example", "--helo", "client.example"];
    let rest: [&[&str]; 4] = [
        &["--to", "b@example.com,c@example.com", "--pipeline"],
        &["--to", "b@example.com", "--body", ".\n..\n.leading\nlast"],
        &["--to", "b@example.com", "--tls"],
        &["--to", "b@example.com", "--auth", "CRAM-MD5", "--auth-user", USER, "--auth-password", PASSWORD],
    ];
    for words in rest {
        let ended = run(&program, &[&base, words].concat());
        assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
    }
    let all = await_kept(&dump, 4);
    assert!(all.iter().any(|one| one.text().contains("\r\n\r\n.\r\n..\r\n.leading\r\nlast")));
    assert!(all.iter().any(|one| one.text().contains("with ESMTPS\r\n")), "over TLS");
    assert!(all.iter().any(|one| one.text().contains("with ESMTPA\r\n")), "logged in");
    relay.stop();
}
