//! Independent programs against ours. The counts must agree at both ends.
use crate::party::{
    Process, Sink, Took, accepted, bench, bench_as_typed, fates, is_root, low_port, numbers, peer, run, source,
    wait_until,
};
use crate::postfix::{Deliver, Postfix};
use mailrun_measurement::record::{LedgerRow, Outcome};
use std::fs;
use std::thread;
use std::time::Duration;

const MODES: [&str; 3] = ["off", "group", "stream"];

fn succeeds(program: &str, words: &[&str]) -> String {
    let ended = run(program, words);
    assert_eq!(ended.code, Some(0), "{program} {words:?}: {ended:?}");
    ended.out
}

#[test]
fn smtp_source_sends_to_our_sink() {
    let Some(program) = peer("smtp-source") else { return };
    let table: [(&[&str], u64, u64, u64); 5] = [
        (&["-m", "200"], 200, 200, 200),
        (&["-m", "200", "-s", "10", "-d"], 200, 200, 10),
        (&["-m", "100", "-s", "5", "-r", "3"], 100, 300, 100),
        (&["-m", "50", "-s", "5", "-d", "-l", "65536"], 50, 50, 5),
        (&["-m", "50", "-N", "-M", "client.example"], 50, 50, 50),
    ];
    for (words, messages, recipients, connections) in table {
        let sink = Sink::start(&[]);
        succeeds(&program, &[words, &["-f", "a@example.com", "-t", "b@example.com", &sink.address()]].concat());
        let took = sink.took();
        let Took { bytes, .. } = took;
        assert_eq!(took, Took { messages, recipients, bytes, connections }, "{words:?}");
        assert!(bytes > messages * 100 && (!words.contains(&"-l") || bytes > messages * 65_536), "{words:?}: {bytes}");
    }
}

#[test]
fn swaks_sends_to_our_sink() {
    let Some(program) = peer("swaks") else { return };
    let sink = Sink::start(&[]);
    let host = sink.smtp.ip().to_string();
    let port = sink.smtp.port().to_string();
    let base = ["--server", &host, "--port", &port, "--from", "a@example.com", "--helo", "client.example"];
    let rest: [&[&str]; 4] = [
        &["--to", "b@example.com"],
        &["--to", "b@example.com,c@example.com,d@example.com", "--pipeline"],
        &["--to", "b@example.com", "--pipeline", "--body", ".\n..\n.leading\nlast"],
        &["--to", "b@example.com", "--protocol", "SMTP"],
    ];
    for words in rest {
        succeeds(&program, &[&base, words].concat());
    }
    let took = sink.took();
    assert_eq!((took.messages, took.recipients, took.connections), (4, 6, 4));
}

#[test]
fn curl_sends_to_our_sink() {
    let Some(program) = peer("curl") else { return };
    let sink = Sink::start(&[]);
    let place = tempfile::tempdir().unwrap();
    let message = "Subject: curl\r\n\r\n.dots\r\n..\r\n.\r\nlast\r\n";
    let file = |name: &str, text: &str| {
        let path = place.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let url = format!("smtp://{}/client.example", sink.address());
    let to = ["--mail-from", "a@example.com", "--mail-rcpt", "b@example.com", "--mail-rcpt", "c@example.com"];
    let base = [["-sS", "--noproxy", "*", "--url", &url].as_slice(), &to, &["--upload-file"]].concat();
    succeeds(&program, &[base.as_slice(), &[&file("good.eml", message)]].concat());
    let refused = run(&program, &[base.as_slice(), &[&file("bare.eml", &message.replace('\r', ""))]].concat());
    assert_ne!(refused.code, Some(0), "bare line feeds are refused, and curl hears of it");
    let took = sink.took();
    assert_eq!((took.messages, took.recipients, took.bytes), (1, 2, message.len() as u64));
}

/// A Python client that prints how many bytes it sent, counted in the same way as the receiver counts them.
const SMTPLIB: &str = r#"
import smtplib, sys
host, port = sys.argv[1:]
messages = [
    b"Subject: plain\r\n\r\nHello.\r\n",
    b"Subject: dots\r\n\r\n.\r\n..\r\n...x\r\n.last\r\n",
    b"Subject: eight\r\n\r\nGr\xc3\xbc\xc3\x9fe \xff\xfe\r\n",
    b"Subject: large\r\n\r\n" + b"0123456789abcdef\r\n" * 300000,
    b"Subject: none\r\n\r\n",
]
with smtplib.SMTP(host, int(port), timeout=50) as smtp:
    for message in messages:
        refused = smtp.sendmail("a@example.com", ["b@example.com", "c@example.com"], message, ["BODY=8BITMIME"])
        assert refused == {}, refused
    assert smtp.noop()[0] == 250 and smtp.verify("b@example.com")[0] == 252 and smtp.rset()[0] == 250
    assert "size" in smtp.esmtp_features and smtp.has_extn("smtputf8")
print(len(messages), sum(map(len, messages)))
"#;

#[test]
fn smtplib_sends_to_our_sink() {
    let Some(program) = peer("python3") else { return };
    let sink = Sink::start(&[]);
    let host = sink.smtp.ip().to_string();
    let port = sink.smtp.port().to_string();
    let said = numbers(&succeeds(&program, &["-c", SMTPLIB, &host, &port]));
    let took = sink.took();
    assert_eq!((vec![took.messages, took.bytes], took.recipients, took.connections), (said, 10, 1));
}

#[test]
fn our_source_sends_to_smtp_sink() {
    let Some(program) = peer("smtp-sink") else { return };
    let user: &[&str] = if is_root() { &["-u", "nobody"] } else { &[] };
    for mode in MODES {
        for reuse in [None, Some("--reuse")] {
            let address = format!("127.0.0.1:{}", low_port());
            let sink = Process::start(&program, &[user, &["-c", &address, "100"]].concat());
            wait_until("smtp-sink to listen", || std::net::TcpStream::connect(&address).ok());
            let words = ["--messages", "200", "--sessions", "5", "--recipients", "2", "--pipelining", mode];
            let ours = source(&address, &[&words, reuse.as_slice()].concat());
            assert_eq!((ours.ended.code, accepted(&ours.record)), (Some(0), 200), "{mode} {reuse:?}");
            assert_eq!(ours.record.ledger.accepted, Some(400));
            // smtp-sink overwrites its status line, such as "sess=6 quit=5 mesg=200\r", in place. Read the latest.
            wait_until("smtp-sink to have counted them", || {
                let last = sink.said().trim_end_matches('\r').rsplit('\r').next().map(numbers)?;
                (last.get(1..)? == [if reuse.is_some() { 5 } else { 200 }, 200]).then_some(())
            });
        }
    }
}

#[test]
fn our_source_sends_to_postfix() {
    let Some(postfix) = Postfix::start(Deliver::Discard, &[Vec::new()]) else { return };
    let mut sent = 0;
    for mode in MODES {
        for reuse in [None, Some("--reuse=10")] {
            let words = ["--messages", "60", "--sessions", "4", "--recipients", "2", "--pipelining", mode];
            let ours = source(&postfix.address(), &[&words, reuse.as_slice()].concat());
            assert_eq!((ours.ended.code, accepted(&ours.record)), (Some(0), 60), "{mode} {reuse:?}: {:?}", ours.ended);
            assert!(ours.record.errors.is_empty(), "{:?}", ours.record.errors);
            sent += 120;
        }
    }
    wait_until("Postfix to have delivered them", || (postfix.sent() >= sent).then_some(()));
    assert_eq!(postfix.sent(), sent);
}

#[test]
fn a_ledger_closes_through_a_real_relay() {
    let sink = Sink::start(&[]);
    let Some(postfix) = Postfix::start(Deliver::To(sink.smtp.port()), &[Vec::new()]) else { return };
    let base = [&postfix.address(), "--sink", sink.url(), "--sessions", "8"];
    let record =
        bench(&[&base, ["--messages", "300", "--reuse", "--pipelining", "group"].as_slice()].concat()).record_of(0);
    assert_eq!(fates(&record.ledger), [300, 300, 0, 0, 0]);
    assert!(record.verdict.closed, "{:?}", record.verdict);
    let split = bench(&[&base, ["--messages", "40", "--recipients", "60"].as_slice()].concat()).record_of(0);
    assert_eq!(fates(&split.ledger), [2400, 2400, 0, 0, 0], "Postfix splits what has more than 50 recipients");
    let large = bench(&[&base, ["--messages", "20", "--message-size", "300k"].as_slice()].concat()).record_of(0);
    assert_eq!(fates(&large.ledger), [20, 20, 0, 0, 0]);
    assert_eq!(postfix.sent(), 300 + 2400 + 20);
    assert_eq!(sink.took().recipients, 300 + 2400 + 20);
}

#[test]
fn a_loss_behind_a_real_relay_is_found() {
    let sink = Sink::start(&["--fault", "drop 0.05", "--fault", "duplicate 0.05"]);
    let Some(postfix) = Postfix::start(Deliver::To(sink.smtp.port()), &[Vec::new()]) else { return };
    let words = [&postfix.address(), "--sink", sink.url(), "--sessions", "8", "--messages", "200", "--reuse"];
    let record = bench(&[&words[..], &["--lost-after", "2s"]].concat()).record_of(1);
    let LedgerRow { created, delivered, lost, not_delivered, duplicates, corrupt, .. } = record.ledger;
    assert_eq!((created, lost, corrupt), (Some(200), None, Some(0)), "Postfix may still have it in its queue");
    assert_eq!(delivered.unwrap() + not_delivered.unwrap(), 200);
    assert!(not_delivered > Some(0) && duplicates > Some(0), "{:?}", record.ledger);
    assert_eq!(postfix.sent(), 200, "Postfix was told that all of it arrived");
}

#[test]
fn mail_that_postfix_puts_off_is_not_delivered_and_its_queue_ids_are_named() {
    let sink = Sink::start(&["--fault", "rcpt: soft reject 20%"]);
    let Some(postfix) = Postfix::start(Deliver::To(sink.smtp.port()), &[Vec::new()]) else { return };
    let words =
        [&postfix.address(), "--sink", sink.url(), "--sessions", "5", "--messages", "100", "--lost-after", "3s"];
    let record = bench_as_typed(&words).record_of(3);
    let LedgerRow { created, accepted, delivered, lost, not_delivered, .. } = record.ledger;
    assert_eq!((created, accepted, lost), (Some(100), Some(100), None));
    let missing = not_delivered.unwrap();
    assert!(missing > 0 && delivered.unwrap() + missing == 100, "{:?}", record.ledger);
    let why = &record.verdict.why;
    assert!(
        why.contains("lost or still in Postfix's queue.") && why.contains("Look into the queue with `postqueue -p`."),
        "{why}"
    );
    assert_eq!(record.verdict.outcome, Some(Outcome::Inconclusive));
    // Postfix's log must say that each missing message was deferred.
    let ids = record.missing.iter().filter_map(|message| message.reply.as_ref()?.split("queued as ").nth(1));
    let ids: Vec<&str> = ids.map(|id| id.trim_end_matches(|end: char| !end.is_ascii_alphanumeric())).collect();
    assert_eq!(ids.len() as u64, missing, "{:?}", record.missing);
    for id in &ids {
        let deferred = format!("{id}: to=<");
        assert!(postfix.lines(&deferred).iter().any(|line| line.contains("status=deferred")), "{id}");
    }
    // The messages were not lost: Postfix delivers them later.
    wait_until("Postfix to deliver what it has put off", || {
        postfix.flush();
        thread::sleep(Duration::from_millis(500));
        ids.iter()
            .all(|id| postfix.lines(&format!("{id}: to=<")).iter().any(|line| line.contains("status=sent")))
            .then_some(())
    });
}

#[test]
fn recipients_that_postfix_rewrites_or_adds_are_named_and_no_duplicates() {
    let sink = Sink::start(&[]);
    let Some(postfix) = Postfix::start(Deliver::Rewritten(sink.smtp.port()), &[Vec::new()]) else { return };
    let base = [&postfix.address(), "--sink", sink.url(), "--sessions", "5", "--messages", "20", "--lost-after", "20s"];
    let mut sent_before = 0;
    for (words, copies, [rewritten, copied], said) in [
        (&["--to", "plain@bench.example"][..], 20, [0, 0], ""),
        (
            &["--to", "one@bench.example"],
            20,
            [20, 0],
            "20 recipients were rewritten: one@bench.example → other@x.example.",
        ),
        (&["--to", "two@bench.example"], 20, [20, 20], "20 recipients were rewritten: two@bench.example → "),
        (
            &["--to", "too@bench.example"],
            20,
            [0, 20],
            "20 copies arrived for addresses that were no recipients: too@bench.example → b@x.example.",
        ),
        (&["--to", "u{0..9}@bench.example", "--recipients", "3"], 60, [60, 0], "60 recipients were rewritten: u"),
        (
            &["--to", "bcc@bench.example"],
            20,
            [0, 20],
            "20 copies arrived for addresses that were no recipients: audit@x.example.",
        ),
        (&["--to", "bcc{0..9}@bench.example"], 20, [0, 20], "recipients: audit@x.example."),
        // Postfix marks its copies with NOTIFY=NEVER, but here all mail has this mark. The bench can recognize the
        // copies only by their address, because the bench has sent nothing to this address.
        (&["--to", "bcc@bench.example", "--", "--dsn-notify", "never"], 20, [0, 20], "20 copies arrived for"),
        (&["--to", "one@bench.example", "--", "--dsn-notify", "never"], 20, [20, 0], "20 recipients were rewritten: "),
    ] {
        let record = bench(&[&base, words].concat()).record_of(0);
        let ledger = &record.ledger;
        let fates = [ledger.created, ledger.accepted, ledger.delivered];
        assert_eq!(fates, [Some(copies); 3], "{words:?}: {ledger:?}");
        let beside = [ledger.rewritten, ledger.copied, ledger.duplicates, ledger.foreign];
        assert_eq!(beside, [rewritten, copied, 0, 0].map(Some), "{words:?}: {ledger:?}");
        // Postfix's log must have one delivery for each recipient and for each copy.
        let sent = postfix.sent();
        assert_eq!(sent - sent_before, copies + copied, "{words:?}");
        sent_before = sent;
        assert!(record.verdict.reasons.concat().contains(said), "{words:?}: {:?}", record.verdict);
        assert_eq!(record.rewrites.is_empty(), said.is_empty() || words.contains(&"never") && copied > 0, "{words:?}");
    }
    let words = ["--to", "one@bench.example", "--threshold", "rewritten <= 0"];
    let record = bench(&[&base[..], &words].concat()).record_of(1);
    assert_eq!(record.verdict.causes[0], mailrun_measurement::record::Cause::Rewritten, "{:?}", record.verdict);
}

#[test]
fn mail_that_postfix_gives_up_on_is_bounced_and_the_next_hop_is_quoted() {
    let sink = Sink::start(&["--fault", "rcpt: hard reject \"550 5.1.1 No such user\" 20%"]);
    let Some(postfix) = Postfix::start(Deliver::To(sink.smtp.port()), &[Vec::new()]) else { return };
    let base = [&postfix.address(), "--sink", sink.url(), "--sessions", "5", "--lost-after", "20s"];
    let mut before = 0;
    for (words, copies, allowed) in [
        (&["--messages", "200"][..], 200, false),
        (&["--messages", "100", "--recipients", "3", "--to", "u{0..9}@bench.example"], 300, true),
    ] {
        let threshold: &[&str] = if allowed { &["--threshold", "bounced <= 60%"] } else { &[] };
        let ended = bench(&[&base, words, threshold].concat());
        let record = ended.record_of(if allowed { 0 } else { 1 });
        let LedgerRow { created, accepted, delivered, bounced, not_delivered, foreign, .. } = record.ledger;
        assert_eq!((created, accepted, not_delivered, foreign), (Some(copies), Some(copies), Some(0), Some(0)));
        let bounced = bounced.unwrap();
        assert!(bounced > 0 && delivered.unwrap() + bounced == copies, "{:?}", record.ledger);
        // Postfix's log must have as many bounces as the bench's record.
        let logged = postfix.logged("status=bounced");
        assert_eq!(bounced, logged - before);
        before = logged;
        assert_eq!(record.bounces.iter().map(|row| row.count).sum::<u64>(), bounced);
        assert!(record.bounces[0].text.contains("550 5.1.1 No such user"), "{:?}", record.bounces);
        let why = &record.verdict.why;
        assert!(
            record.verdict.closed && (allowed || why.starts_with("Bounced: ") && why.contains("No such user")),
            "{why}"
        );
    }
}
