//! The options `--trace` and `--report` of mailrun when it is called as `smtp-source`, `go-smtp-source` or `smtp-sink`.
//! `mailrun sink` and mailrun as `smtp-sink` recognise each message and recipient, and report changes and duplicates.
use crate::party::{Sink, low_port, mailrun, numbers, wait_until};
use crate::relay::Den;
use crate::smtp_pair::{Client, Running, Who, user};
use mailrun_measurement::record::LedgerRow;
use mailrun_measurement::trace::{RecipientNumbering, ZeroPhase};
use mailrun_measurement::{ClockId, RunId, Trace};
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Runs a source against our sink, and returns the sink's ledger.
fn ledger_of(words: &[&str]) -> LedgerRow {
    let sink = Sink::start(&[]);
    let ended = mailrun(&[words, &[&sink.address()]].concat());
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{words:?}");
    let record = sink.stop();
    assert!(record.errors.is_empty(), "{words:?}: {:?}", record.errors);
    assert_eq!(record.stages.first().map(|row| row.latency_ms.is_some()), Some(true), "{words:?}: no latency");
    record.ledger
}

fn assert_recognised(words: &[&str], units: u64) {
    let ledger = ledger_of(words);
    let seen = [ledger.delivered, ledger.duplicates, ledger.corrupt, ledger.foreign, ledger.untimed, ledger.overflow];
    assert_eq!(seen, [Some(units), Some(0), Some(0), Some(0), Some(0), Some(0)], "{words:?}");
}

/// Messages whose lines begin with dots, with and without a header, and one whose last line has no end.
fn files() -> (tempfile::TempDir, Vec<String>) {
    let place = tempfile::tempdir().unwrap();
    let texts = ["Subject: x\n.a: b\n\n.\n..dots\n\nlast", "\nall of it is body\n.\n", "no empty line\n"];
    let write = |(number, text): (usize, &&str)| {
        let path = place.path().join(number.to_string());
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let paths = texts.iter().enumerate().map(write).collect();
    (place, paths)
}

#[test]
fn every_message_of_smtp_source_is_recognised() {
    let rows: [(&str, u64); 9] = [
        ("", 1),
        ("-m 200 -s 10", 200),
        ("-m 200 -s 10 -d -N -l 5000", 200),
        // This run has 2,100 recipients. With --trace, recipients have only 1,024 numbers, so the numbers wrap around.
        ("-m 700 -s 5 -d -r 3", 2100),
        ("-m 3 -r 1000 -d", 3000),
        ("-m 20 -d -l 100000 -S hello", 20),
        ("-m 20 -A -c -R 1 -s 20", 20),
        ("--dialect 3.8 -m 20 -N -t user7@example.com", 20),
        ("-m 10 -t user7@example.com", 10),
    ];
    for (line, units) in rows {
        let options: Vec<&str> = line.split_whitespace().collect();
        // Our own options, such as --dialect, must come before the original program's options.
        let own = if options.first() == Some(&"--dialect") { 2 } else { 0 };
        let words = [&["smtp-source", "--trace"], &options[..own], &["-f", "a@b"], &options[own..]].concat();
        if options.contains(&"-c") {
            let sink = Sink::start(&[]);
            let ended = mailrun(&[words.as_slice(), &[&sink.address()]].concat());
            assert!(ended.out.ends_with("20\r\n"), "{ended:?}");
            assert_eq!(sink.stop().ledger.delivered, Some(units));
        } else {
            assert_recognised(&words, units);
        }
    }
    let (_place, paths) = files();
    for path in &paths {
        assert_recognised(&["smtp-source", "--trace", "-m", "30", "-s", "3", "-d", "-F", path], 30);
    }
}

#[test]
fn every_message_of_go_smtp_source_is_recognised() {
    for (line, units) in [
        ("", 1),
        ("-m 200 -s 10", 200),
        ("-m 200 -s 10 -d -l 5000", 200),
        ("-m 700 -s 5 -d -r 3", 2100),
        ("-m 20 -d -l 100000 -S hello%d", 20),
    ] {
        let options: Vec<&str> = line.split_whitespace().collect();
        assert_recognised(&[&["go-smtp-source", "--trace"], options.as_slice()].concat(), units);
    }
    let (_place, paths) = files();
    for path in &paths {
        assert_recognised(&["go-smtp-source", "--trace", "-m", "30", "-s", "3", "-d", "-F", path], 30);
    }
}

#[test]
fn each_run_has_its_own_trace() {
    let sink = Sink::start(&[]);
    for source in ["smtp-source", "go-smtp-source", "smtp-source"] {
        assert_eq!(mailrun(&[source, "--trace", "-m", "5", &sink.address()]).code, Some(0));
    }
    // Wait, because the sink counts a message slightly after it has accepted it.
    let runs = wait_until("three runs of five messages", || {
        let counts = sink.ask("/ledger");
        let runs: Vec<[u64; 2]> = counts
            .as_array()?
            .iter()
            .map(|run| [&run["delivered"], &run["duplicates"]].map(|count| count.as_u64().unwrap()))
            .collect();
        (runs.iter().map(|[delivered, _]| delivered).sum::<u64>() == 15).then_some(runs)
    });
    assert_eq!(runs, [[5, 0]; 3]);
}

#[test]
fn without_trace_there_is_none() {
    let sink = Sink::start(&[]);
    for source in ["smtp-source", "go-smtp-source"] {
        assert_eq!(mailrun(&[source, "-m", "5", &sink.address()]).code, Some(0));
    }
    assert_eq!(sink.stop().ledger.delivered, None);
}

#[test]
fn what_a_trace_cannot_tell_apart_is_refused() {
    for (words, said) in [
        (&["smtp-source", "--trace", "--dialect", "3.8", "-r", "2"][..], "use --dialect 3.9"),
        (&["smtp-source", "--trace", "-r", "2", "-t", "a1@b"], "must not end in a digit"),
        (&["smtp-source", "--trace", "-r", "1025"], "1024 recipients"),
        (&["smtp-source", "--trace", "-S", "a\r\n\r\nb"], "empty line"),
        (&["go-smtp-source", "--trace", "-r", "2", "-t", "a1@b"], "must not end in a digit"),
        (&["go-smtp-source", "--trace", "-S", "a\n\nb"], "empty line"),
    ] {
        let ended = mailrun(&[words, &["127.0.0.1:9"]].concat());
        assert_eq!((ended.code, ended.err.contains(said)), (Some(1), true), "{words:?}: {ended:?}");
    }
}

/// Starts mailrun as smtp-sink, with `own` options that Postfix's smtp-sink does not have and with `options`. Returns
/// the sink and its address.
fn smtp_sink(own: &[&str], options: &[&str]) -> (Running, String) {
    let address = format!("127.0.0.1:{}", low_port());
    let words = [own, user(), options, &[&address, "100"]].concat();
    let mut running = Running::start(Who::Ours, &words.into_iter().map(str::to_owned).collect::<Vec<_>>());
    drop(running.client(&address).expect("it listens"));
    (running, address)
}

#[test]
fn smtp_sink_recognises_what_the_sources_send() {
    let (mut sink, address) = smtp_sink(&["--trace", "--report"], &["-M", "350"]);
    for words in [
        &["smtp-source", "--trace", "-m", "100", "-s", "5", "-d", "-r", "3"][..],
        &["go-smtp-source", "--trace", "-m", "100", "-s", "5", "-r", "2"],
        &["smtp-source", "-m", "20"],
        // This client sends no HELO and no header.
        &["smtp-source", "--trace", "-m", "30", "-o", "-d"],
        &["source", "--messages", "100", "--sessions", "3", "--message-size", "4000"],
    ] {
        let ended = mailrun(&[words, &[&address]].concat());
        // `mailrun source` finds no ledger with which to compare its own, but this is not an error.
        assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
    }
    assert_eq!(sink.code(), Some(0));
    let said = sink.said("err");
    let lines: Vec<&str> = said.lines().collect();
    let [report, trace] = lines[..] else { panic!("{said}") };
    let expected = "smtp-sink: trace: 330 messages recognised, 630 recipients, 0 duplicates, 0 corrupt, 20 foreign";
    assert_eq!(trace, expected);
    assert!(report.starts_with("smtp-sink: 350 messages, ") && report.contains(" msg/s, latency p50 "), "{report}");
}

#[test]
fn smtp_sink_recognises_what_a_relay_converted_for_it() {
    let (mut sink, address) = smtp_sink(&["--trace"], &["-8", "-M", "20"]);
    let place = tempfile::tempdir().unwrap();
    let part =
        "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\nviele Gr\u{fc}\u{df}e\r\n";
    let many = format!("Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n{part}--b\r\n\r\nplain\r\n--b--\r\n");
    fs::write(place.path().join("one.eml"), format!("Subject: x\r\n{many}")).unwrap();
    fs::write(place.path().join("two.eml"), "Subject: y\r\n\r\n\u{43f}\u{440}\u{438}\u{432}\u{435}\u{442}\r\n")
        .unwrap();
    let relay = Den::to(&address, "");
    let relay = relay.open();
    let corpus = place.path().to_str().unwrap();
    let words = ["source", &relay.address(), "--corpus", corpus, "--messages", "20", "--sessions", "2"];
    let ended = mailrun(&words);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(sink.code(), Some(0));
    let expected = "smtp-sink: trace: 20 messages recognised, 20 recipients, 0 duplicates, 0 corrupt, 0 foreign; 20 of them were \
        converted to 7 bits in transit\n";
    assert_eq!(sink.said("err"), expected);
    relay.stop();
}

/// A message with a trace, in its form on the wire and with the final dot.
fn message(sequence: u64, body: &str) -> String {
    message_of(sequence, body, ClockId::monotonic("elsewhere"), Duration::from_secs(1))
}

/// A message whose trace states that it was created at the time `created` of the clock `clock`.
fn message_of(sequence: u64, body: &str, clock: ClockId, created: Duration) -> String {
    let checksum = mailrun_measurement::trace::checksum(b".body\r\n");
    let (zero, numbering) = (ZeroPhase::default(), RecipientNumbering::TAG);
    let trace = Trace { run: RunId([7; 16]), sequence, zero, numbering, created, clock, checksum };
    let mut header = [0; Trace::HEADER_BYTES];
    trace.write(&mut header);
    format!("Received: by a relay\r\n{}Subject: x\r\n\r\n{body}\r\n.\r\n", std::str::from_utf8(&header).unwrap())
}

/// If a message seems to arrive before it was created, the sink must count it as negative, and not as a message without
/// a time.
#[test]
fn negative_times_between_hosts_are_counted() {
    let sink = Sink::start(&[]);
    let mut client = Client::connect(&sink.address(), "".as_ref()).unwrap();
    client.reply();
    assert!(client.say("HELO x"));
    let just_now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let hour_ahead = just_now + Duration::from_secs(3600);
    let there = ClockId::realtime("elsewhere");
    let messages =
        [message_of(0, "..body", there, hour_ahead), message_of(1, "..body", there, just_now), message(2, "..body")];
    for text in messages {
        ["MAIL FROM:<a@b>", "RCPT TO:<a0@b>", "DATA"].iter().for_each(|line| assert!(client.say(line), "{line}"));
        assert!(client.send(&text) && client.reply());
    }
    drop(client);
    let ledger = sink.stop().ledger;
    assert_eq!([ledger.delivered, ledger.negative, ledger.untimed], [Some(3), Some(1), Some(1)]);
}

/// Ends a sink by a signal. Returns its output.
fn end(sink: &mut Running) -> String {
    let id = rustix::process::Pid::from_raw(sink.id() as i32).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    assert_eq!(sink.code(), Some(0));
    sink.said("err")
}

#[test]
fn smtp_sink_tells_duplicates_and_damage() {
    let (mut sink, address) = smtp_sink(&["--trace"], &[]);
    let mut client = Client::connect(&address, "".as_ref()).unwrap();
    client.reply();
    let mut say = |recipients: &[&str], message: &str| {
        assert!(client.say("MAIL FROM:<a@b>"));
        recipients.iter().for_each(|recipient| assert!(client.say(&format!("RCPT TO:<{recipient}>"))));
        assert!(client.say("DATA") && client.send(message) && client.reply());
    };
    say(&["a0@b", "a1@b"], &message(0, "..body"));
    say(&["a0@b"], &message(1, "..body"));
    // Send the first message again. The recipient a1@b gets it for the second time, and a2@b for the first time.
    say(&["a1@b", "a2@b"], &message(0, "..body"));
    say(&["a0@b"], &message(2, "damaged"));
    say(&["a0@b"], "Subject: not ours\r\n\r\nx\r\n.\r\n");
    say(&["a0@b"], "X-Mailrun: v1 unreadable\r\n\r\nx\r\n.\r\n");
    let expected = "smtp-sink: trace: 3 messages recognised, 5 recipients, 1 duplicates, 1 corrupt, 2 foreign\n";
    assert_eq!(end(&mut sink), expected);
}

/// A message that a client sends again after a refusal must not count as a duplicate.
#[test]
fn smtp_sink_does_not_count_what_it_rejects() {
    let (mut sink, address) = smtp_sink(&["--trace"], &["-r", "."]);
    let mut client = Client::connect(&address, "".as_ref()).unwrap();
    client.reply();
    for _ in 0..2 {
        client.send(["MAIL FROM:<a>\r\nRCPT TO:<b>\r\nDATA\r\n", &message(0, "..body"), "NOOP\r\n"].concat());
        (0..5).for_each(|_| assert!(client.reply()));
    }
    let said = end(&mut sink);
    assert!(
        said.ends_with("trace: 0 messages recognised, 0 recipients, 0 duplicates, 0 corrupt, 0 foreign\n"),
        "{said}"
    );
}

#[test]
fn every_personality_reports() {
    let (mut sink, address) = smtp_sink(&["--report"], &[]);
    for (source, messages) in [("smtp-source", 20), ("go-smtp-source", 30)] {
        let ended = mailrun(&[source, "--report", "-d", "-s", "2", "-m", &messages.to_string(), &address]);
        assert_eq!((ended.code, ended.err.lines().count()), (Some(0), 1), "{ended:?}");
        let said = format!(" {messages} messages, {messages} accepted, ");
        assert!(ended.err.contains(&said) && ended.err.contains(" msg/s, latency p50 "), "{ended:?}");
    }
    let said = end(&mut sink);
    let counts = numbers(&said);
    assert!(said.starts_with("smtp-sink: 50 messages, ") && said.contains(" 4 QUITs, "), "{said}");
    assert!(said.lines().count() == 1 && !said.contains("latency") && counts.len() >= 5, "{said}");
}
