//! A sink commits exactly the faults that its rules order, as often as it reports. It saves messages byte for byte.
use crate::party::{Sink, accepted, bench, errors, fates, mailrun, source, took, wait_until};
use crate::postfix::{Deliver, Postfix};
use crate::rows::each;
use crate::wire::Wire;
use mailrun_measurement::record::MissingFate;
use mailrun_measurement::trace::{RecipientNumbering, ZeroPhase, checksum};
use mailrun_measurement::{ClockId, Phase, RunId, Trace};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const HELLO: &str = "EHLO client.example\r\n";
const ENVELOPE: &str = "MAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.com>\r\nDATA\r\n";
const MESSAGE: &str = "Subject: x\r\n\r\nHello.\r\n.\r\n";

/// Per command: its name in a rule, the commands before it, the command itself, and the usual reply.
const COMMANDS: [(&str, &[&str], &str, &str); 10] = [
    ("helo", &[], "HELO a", "250 "),
    ("ehlo", &[], "EHLO a", "250-"),
    ("mail", &["EHLO a"], "MAIL FROM:<a@b>", "250 2.1.0"),
    ("rcpt", &["EHLO a", "MAIL FROM:<a@b>"], "RCPT TO:<c@d>", "250 2.1.5"),
    ("data", &["EHLO a", "MAIL FROM:<a@b>", "RCPT TO:<c@d>"], "DATA", "354 "),
    (".", &["EHLO a", "MAIL FROM:<a@b>", "RCPT TO:<c@d>", "DATA"], "x\r\n.", "250 2.0.0"),
    ("rset", &["EHLO a"], "RSET", "250 2.0.0"),
    ("noop", &[], "NOOP", "250 2.0.0"),
    ("vrfy", &[], "VRFY a", "252 "),
    ("quit", &[], "QUIT", "221 "),
];

/// Replaces the rules over HTTP. Returns the status and the body.
fn put(sink: &Sink, text: &str) -> (u16, Value) {
    let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).http_status_as_error(false).build().into();
    let mut response = agent.put(format!("{}/rules", sink.url())).send(text).unwrap();
    let said = response.body_mut().read_to_string().unwrap();
    (response.status().as_u16(), serde_json::from_str(&said).unwrap_or(Value::Null))
}

pub(crate) fn put_rules(sink: &Sink, rules: &[&str]) {
    let (status, said) = put(sink, &serde_json::json!({ "rules": rules }).to_string());
    assert_eq!((status, &said["rules"]), (200, &serde_json::json!(rules)));
}

fn acted(sink: &Sink, rule: &str) -> u64 {
    let status = sink.ask("/status");
    let rows = status["rules"].as_array().unwrap();
    let row = rows.iter().find(|row| row["rule"] == rule).unwrap_or_else(|| panic!("{rule}: {status}"));
    row["acted"].as_u64().unwrap()
}

/// Opens a session and sends `lines`. The sink must accept each of them.
fn after(sink: &Sink, lines: &[&str]) -> Wire {
    let mut wire = Wire::greeted(sink.smtp);
    lines.iter().for_each(|line| assert!(wire.say(line).starts_with(['2', '3']), "{line}"));
    wire
}

/// Sends a message. Returns the reply to its end, or `None` if the connection was closed.
fn deliver(wire: &mut Wire, message: &str) -> Option<String> {
    for line in ["MAIL FROM:<a@example.com>", "RCPT TO:<b@example.com>", "DATA"] {
        assert!(wire.say(line).starts_with(['2', '3']), "{line}");
    }
    wire.send(message);
    wire.reply()
}

#[test]
fn every_command_is_refused_in_smtp_sinks_words_and_the_session_goes_on() {
    let sink = Sink::start(&[]);
    let mut refused = 0;
    for (name, before, line, usual) in COMMANDS {
        for (action, reply) in [
            ("soft reject", "450 4.3.0 Error: command failed\r\n"),
            ("hard reject", "554 5.3.0 Error: command failed\r\n"),
            ("soft reject \"451 4.7.1 Come: back\"", "451 4.7.1 Come: back\r\n"),
        ] {
            let rule = format!("{name}: {action}");
            put_rules(&sink, &[]);
            let mut wire = after(&sink, before);
            put_rules(&sink, &[&rule]);
            assert_eq!(wire.say(line), reply, "{rule}");
            assert_eq!(acted(&sink, &rule), 1);
            refused += 1;
            put_rules(&sink, &[]);
            if name == "." {
                assert!(wire.say("MAIL FROM:<a@b>").starts_with("250"), "{rule}: the transaction is over");
            } else {
                assert!(wire.say(line).starts_with(usual), "{rule}: nothing has changed by it");
            }
        }
    }
    let record = sink.stop();
    assert_eq!(record.errors.iter().map(|row| row.count).sum::<u64>(), refused);
    assert!(record.errors.iter().all(|row| row.text.starts_with("on purpose: ")), "{:?}", record.errors);
    let faults = &record.parties[0].faults;
    assert!(faults.contains(&"'rcpt: hard reject' (once, no longer active)".to_owned()), "{faults:?}");
    assert_eq!(took(&record).messages, 0, "a message that was refused does not count");
}

#[test]
fn a_greeting_may_be_refused_too() {
    let sink = Sink::start(&["--fault", "connect: hard reject \"554 5.7.1 Not you\""]);
    let mut turned_away = Wire::connect(sink.smtp);
    turned_away.send("MAIL FROM:<a@b>\r\nQUIT\r\n");
    let replies = ["554 5.7.1 Not you\r\n", "503 5.5.1 No service here: send QUIT\r\n", "221 2.0.0 Bye\r\n"];
    assert_eq!(turned_away.replies(), replies);
    put_rules(&sink, &["connect: hang up"]);
    assert!(Wire::connect(sink.smtp).replies().is_empty());
    put_rules(&sink, &["connect: reset"]);
    assert!(Wire::connect(sink.smtp).is_cut());
    let record = sink.stop();
    assert_eq!((errors(&record, Phase::Banner, 554), errors(&record, Phase::Banner, 0)), (1, 2));
}

#[test]
fn requests_for_notifications_are_checked() {
    let sink = Sink::start(&[]);
    let mut wire = Wire::greeted(sink.smtp);
    assert!(wire.say("EHLO me").starts_with("250"));
    assert!(wire.say("MAIL FROM:<a@b> ENVID=a+2").starts_with("501 5.5.4"));
    assert!(wire.say("MAIL FROM:<a@b> ENVID=a+2B").starts_with("250"));
    assert!(wire.say("RCPT TO:<c@d> ORCPT=root").starts_with("501 5.5.4"));
    assert!(wire.say("RCPT TO:<c@d> ORCPT=rfc822;root").starts_with("250"));
}

#[test]
fn a_connection_is_closed_or_cut_at_every_command() {
    let sink = Sink::start(&[]);
    for (name, before, line, _) in COMMANDS {
        let mut silent = after(&sink, before);
        let mut told = after(&sink, before);
        let mut reset = after(&sink, before);
        let line = format!("{line}\r\n");
        put_rules(&sink, &[&format!("{name}: hang up")]);
        silent.send(&line);
        assert!(!silent.is_cut(), "{name}: closed, and not a word");
        put_rules(&sink, &[&format!("{name}: hang up \"421 4.0.0 Enough\"")]);
        told.send(&line);
        assert_eq!(told.replies(), ["421 4.0.0 Enough\r\n"], "{name}");
        put_rules(&sink, &[&format!("{name}: reset")]);
        reset.send(&line);
        assert!(reset.is_cut(), "{name}");
        put_rules(&sink, &[]);
    }
    assert_eq!(sink.took().messages, 0);
}

/// The only test of real delays, which runs alone on the machine. The crate `load` tests other delays with a virtual
/// clock.
#[test]
fn delays_are_held_and_add_up() {
    let sink = Sink::start(&["--fault", "*: delay 60ms", "--fault", "rcpt: tarpit 20ms", "--fault", "delay 90ms"]);
    let begun = Instant::now();
    let mut wire = Wire::greeted(sink.smtp);
    let mut expected = 60;
    for (line, more) in [("EHLO a", 60), ("MAIL FROM:<a@b>", 60), ("RCPT TO:<c@d>", 120), ("DATA", 60), ("x\r\n.", 150)]
    {
        assert!(wire.say(line).starts_with(['2', '3']));
        expected += more;
        assert!(begun.elapsed() >= Duration::from_millis(expected), "{line}: {:?}", begun.elapsed());
    }
    // The delays of pipelined commands must add up.
    wire.send("NOOP\r\nNOOP\r\nQUIT\r\n");
    assert_eq!(wire.replies().len(), 3);
    assert!(begun.elapsed() >= Duration::from_millis(expected + 180));
    assert_eq!(sink.took().messages, 1);
}

#[test]
fn an_abort_after_354_is_told_and_the_message_does_not_count() {
    let sink = Sink::start(&["--fault", "data: abort after 100ms"]);
    let mut wire = after(&sink, &["EHLO a", "MAIL FROM:<a@b>", "RCPT TO:<c@d>", "DATA"]);
    assert_eq!(wire.replies(), ["550 This violates SMTP\r\n"]);
    let record = sink.stop();
    assert_eq!((took(&record).messages, errors(&record, Phase::Data, 550)), (0, 1));
}

#[test]
fn a_connection_is_cut_at_the_octet_of_the_message_that_was_asked_for() {
    let sink = Sink::start(&["--fault", "data: reset at 1000"]);
    let mut wire = after(&sink, &["EHLO a", "MAIL FROM:<a@b>", "RCPT TO:<c@d>", "DATA"]);
    wire.send("0123456789abc\r\n".repeat(66));
    assert!(!wire.hears_within(Duration::from_millis(100)), "990 octets");
    wire.send("01234567\r\n");
    assert!(wire.is_cut());
    let mut wire = after(&sink, &["EHLO a"]);
    assert!(deliver(&mut wire, MESSAGE).unwrap().starts_with("250"), "a shorter message is whole");
    // Send the whole message and the next command in one segment.
    let mut wire = after(&sink, &["EHLO a", "MAIL FROM:<a@b>", "RCPT TO:<c@d>", "DATA"]);
    wire.send(["0123456789abc\r\n".repeat(200).as_str(), ".\r\nNOOP\r\n"].concat());
    assert!(wire.is_cut());
    assert_eq!(acted(&sink, "data: reset at 1000"), 2);
    assert_eq!(sink.took().messages, 1);
}

#[test]
fn a_message_is_read_slowly_and_the_sender_feels_it() {
    let sink = Sink::start(&["--fault", "data: read 1k/s"]);
    let mut wire = after(&sink, &["EHLO a", "MAIL FROM:<a@b>", "RCPT TO:<c@d>", "DATA"]);
    let block = "0123456789abc\r\n".repeat(1 << 16);
    assert!((0..64).any(|_| !wire.takes_within(&block, Duration::from_millis(300))), "60 MB are not taken");
    assert!(sink.process.peak_bytes() < 48 << 20, "{}", sink.process.peak_bytes());
}

#[test]
fn a_rate_limit_holds_over_sessions_and_may_end_them() {
    let rule = "mail: limit 0.001/s burst 5 \"421 4.7.0 Too fast\"";
    let sink = Sink::start(&["--fault", rule, "--workers", "2"]);
    let mut wires: Vec<Wire> = (0..8).map(|_| after(&sink, &["EHLO a"])).collect();
    let replies: Vec<String> = wires.iter_mut().map(|wire| wire.say("MAIL FROM:<a@b>")).collect();
    assert_eq!(replies.iter().filter(|reply| reply.starts_with("250")).count(), 5);
    for (wire, reply) in wires.iter_mut().zip(&replies).filter(|(_, reply)| !reply.starts_with("250")) {
        assert_eq!((reply.as_str(), wire.replies().len()), ("421 4.7.0 Too fast\r\n", 0), "and the session is over");
    }
    assert_eq!(acted(&sink, rule), 3);
}

#[test]
fn a_greylist_takes_a_triplet_that_comes_back() {
    let sink = Sink::start(&["--fault", "rcpt: greylist 300ms"]);
    let mut wire = after(&sink, &["EHLO a", "MAIL FROM:<a@b>"]);
    let no = "450 4.7.1 Error: greylisted, try again later\r\n";
    assert_eq!(wire.say("RCPT TO:<c@d>"), no);
    wait_until("the triplet to be taken", || wire.say("RCPT TO:<c@d>").starts_with("250").then_some(()));
    assert_eq!(wire.say("RCPT TO:<e@d>"), no, "another recipient");
    let mut other = after(&sink, &["EHLO a", "MAIL FROM:<x@b>"]);
    assert_eq!(other.say("RCPT TO:<c@d>"), no, "another sender");
    let mut again = after(&sink, &["EHLO a", "MAIL FROM:<a@b>"]);
    assert!(again.say("RCPT TO:<c@d>").starts_with("250"), "the same again, in another session");
}

#[test]
fn a_domain_has_so_many_transactions_open_and_no_more() {
    let sink = Sink::start(&["--fault", "rcpt: domain cap 1", "--workers", "2"]);
    let no = "451 4.7.1 Error: too many transactions for this domain\r\n";
    let mut first = after(&sink, &["EHLO a", "MAIL FROM:<a@b>", "RCPT TO:<c@d.example>", "RCPT TO:<e@D.example>"]);
    let mut second = after(&sink, &["EHLO a", "MAIL FROM:<a@b>"]);
    assert_eq!(second.say("RCPT TO:<c@d.example>"), no);
    assert!(second.say("RCPT TO:<c@other.example>").starts_with("250"));
    first.send("DATA\r\n");
    assert!(first.reply().unwrap().starts_with("354"));
    assert_eq!(second.say("RCPT TO:<c@d.example>"), no);
    first.send(MESSAGE);
    assert!(first.reply().unwrap().starts_with("250"));
    assert!(second.say("RCPT TO:<c@d.example>").starts_with("250"), "the message was answered");
    let mut third = after(&sink, &["EHLO a", "MAIL FROM:<a@b>"]);
    assert_eq!(third.say("RCPT TO:<c@d.example>"), no);
    assert!(second.say("RSET").starts_with("250"));
    assert!(third.say("RCPT TO:<c@d.example>").starts_with("250"), "the transaction was given up");
    drop(third);
    second.say("MAIL FROM:<a@b>");
    wait_until("a session that went to be missed", || {
        second.say("RCPT TO:<c@d.example>").starts_with("250").then_some(())
    });
    assert_eq!(sink.took().messages, 1);
}

#[test]
fn recipients_say_their_reply_only_where_that_was_asked_for() {
    let addresses = ["450-user@b.example", "550@b.example", "user@b.example", "4500@b.example", "421@b.example"];
    let codes = |words: &[&str]| -> Vec<String> {
        let sink = Sink::start(words);
        let mut wire = after(&sink, &["EHLO a", "MAIL FROM:<a@b>"]);
        addresses.map(|address| wire.say(&format!("RCPT TO:<{address}>"))[..3].to_owned()).to_vec()
    };
    assert_eq!(codes(&["--fault", "directed"]), ["450", "550", "250", "250", "421"]);
    assert_eq!(codes(&["--fault", "rcpt: directed"]), ["450", "550", "250", "250", "421"]);
    assert_eq!(codes(&[]), ["250"; 5]);
    let sink = Sink::start(&["--fault", "directed"]);
    let mut wire = after(&sink, &["EHLO a", "MAIL FROM:<a@b>", "RCPT TO:<c@d>"]);
    assert_eq!(wire.say("RCPT TO:<552-x@d>"), "552 5.0.0 Requested by the recipient address\r\n");
    wire.say("DATA");
    wire.send(MESSAGE);
    assert!(wire.reply().unwrap().starts_with("250"));
    let took = sink.took();
    assert_eq!((took.messages, took.recipients), (1, 1), "a recipient that was refused does not count");
}

#[test]
fn rules_change_in_the_middle_of_a_session() {
    let sink = Sink::start(&["--fault", "rcpt: soft reject", "--workers", "2"]);
    let mut wires = [after(&sink, &["EHLO a", "MAIL FROM:<a@b>"]), after(&sink, &["EHLO a", "MAIL FROM:<a@b>"])];
    let mut say = |code: &str| wires.iter_mut().for_each(|wire| assert!(wire.say("RCPT TO:<c@d>").starts_with(code)));
    say("450");
    let toml = "# at once\nseed = 9\nrules = ['rcpt: hard reject', \".: drop 0\"]\n";
    assert_eq!(put(&sink, toml).0, 200);
    say("554");
    let shown = sink.ask("/rules");
    assert_eq!(shown, serde_json::json!({ "seed": 9, "rules": ["rcpt: hard reject", ".: drop 0"] }));
    put_rules(&sink, &[]);
    say("250");
    assert_eq!(put(&sink, &shown.to_string()), (200, shown), "what is shown can be put");
    say("554");
    for (text, why) in [
        ("rules = [\n  'rctp: drop']", "rules:2:4: \"rctp\" is not a command"),
        ("{\"rules\": [\"rcpt: drop\"]}", "rules: rule 1, column 7: this is only for ."),
        ("rules = 5", "rules:1:9: invalid type"),
    ] {
        let (status, said) = put(&sink, text);
        assert!(status == 400 && said["error"].as_str().unwrap().starts_with(why), "{said}");
    }
    assert_eq!(put(&sink, &" ".repeat((1 << 20) + 1)).0, 413);
    say("554");
    assert_eq!((acted(&sink, "rcpt: hard reject"), acted(&sink, "rcpt: soft reject")), (6, 2));
}

#[test]
fn a_session_that_has_had_its_messages_is_closed() {
    let sink = Sink::start(&["--rules-like", "yahoo"]);
    let mut wire = after(&sink, &["EHLO a"]);
    for message in 0..20 {
        assert!(wire.say("MAIL FROM:<a@b>").starts_with("250"), "message {message}");
        assert!(wire.say("RCPT TO:<c@d>").starts_with("250") && wire.say("DATA").starts_with("354"));
        assert!(wire.say("x\r\n.").starts_with("250"), "message {message}");
    }
    wire.send("MAIL FROM:<a@b>\r\n");
    assert_eq!(wire.reply(), None, "the connection is closed without a reply");
    assert!(after(&sink, &["EHLO a"]).say("MAIL FROM:<a@b>").starts_with("250"), "a new session begins anew");
    assert_eq!(acted(&sink, "mail: session cap 20"), 1);
    put_rules(&sink, &["session cap 1 \"421 4.7.0 Enough\""]);
    let mut wire = after(&sink, &["EHLO a", "MAIL FROM:<a@b>", "RSET"]);
    assert!(wire.say("MAIL FROM:<a@b>").starts_with("421 4.7.0 Enough"));
    assert_eq!(wire.reply(), None);
}

#[test]
fn receivers_whose_rules_a_sink_can_have_are_listed_with_their_sources() {
    for command in ["sink", "bench"] {
        let list = mailrun(&[command, "--rules-like", "list"]);
        assert_eq!((list.code, list.err.as_str()), (Some(0), ""), "{list:?}");
        let names: Vec<&str> = list.out.lines().filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(names, ["exchange", "exim", "gmail", "postgrey", "yahoo"], "{}", list.out);
        assert_eq!(list.out.matches("Source").count(), names.len(), "{}", list.out);
    }
    // A source that sends at most 20 messages per connection never meets Yahoo's limit. If it tries to send more, the
    // sink closes the connection, and the source connects again.
    for (reuse, closed) in [("--reuse=20", 0), ("--reuse=21", 2)] {
        let words = ["--relay", "none", "--rules-like", "yahoo", "--messages", "42", "--sessions", "1", reuse];
        let record = bench(&words).record_of(0);
        assert_eq!(record.ledger.accepted, Some(42), "{reuse}");
        let closings =
            record.errors.iter().filter(|row| (row.phase, row.code) == (Phase::Mail, 0)).map(|row| row.count);
        assert_eq!(closings.sum::<u64>(), closed, "{reuse}: {:?}", record.errors);
    }
}

#[test]
fn what_is_wrong_with_rules_is_said_with_its_place() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("rules.toml");
    fs::write(&file, "seed = 1\nrules = [\n  \"rcpt: soft rejekt\",\n]\n").unwrap();
    let file = file.to_str().unwrap();
    for (words, expected) in [
        (["sink", "--fault", "rctp: soft reject"], "column 1: \"rctp\" is not a command".to_owned()),
        (
            ["sink", "--rules", file],
            format!("{file}:3:10: \"soft rejekt\" is not an action; did you mean \"soft reject\"?"),
        ),
        (["sink", "--rules", "/nonexistent"], "cannot read /nonexistent".to_owned()),
        (["bench", "--fault", ".: lose"], "column 4: \"lose\" is not an action".to_owned()),
        (["sink", "--dump-dir", "/dev/null/x"], "cannot create /dev/null/x".to_owned()),
        (["sink", "--dump-file", "/dev/null/x"], "cannot create /dev/null".to_owned()),
    ] {
        let ended = mailrun(&words);
        assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{words:?}: {}", ended.err);
        assert!(ended.err.contains(&expected), "{words:?}: {}", ended.err);
    }
}

/// Plays twenty successive sessions against rules that act at random. Returns a pattern of each session's replies, in
/// which `x` is a refusal, and the number of refusals.
fn met(words: &[&str]) -> (Vec<String>, u64) {
    let rule = "rcpt: soft reject 0.3";
    let sink = Sink::start(&[&["--fault", rule, "--fault", "noop: hang up 0.1"], words].concat());
    let session = |_| {
        let mut wire = after(&sink, &["EHLO a", "MAIL FROM:<a@b>"]);
        let mut pattern: String =
            (0..20).map(|_| &wire.say("RCPT TO:<c@d>")[..1] == "4").map(|no| if no { 'x' } else { '.' }).collect();
        for _ in 0..10 {
            wire.send("NOOP\r\n");
            pattern.push(if wire.reply().is_some() { '.' } else { return pattern });
        }
        pattern
    };
    let patterns: Vec<String> = (0..20).map(session).collect();
    let refused = patterns.iter().map(|pattern| pattern.matches('x').count() as u64).sum();
    assert_eq!(acted(&sink, rule), refused, "what the clients saw");
    assert_eq!(errors(&sink.stop(), Phase::Rcpt, 450), refused);
    (patterns, refused)
}

#[test]
fn the_same_seed_does_the_same_to_the_same_sessions() {
    let (first, refused) = met(&["--seed", "7"]);
    assert!((80..160).contains(&refused), "three in ten of 400: {refused}");
    assert_eq!(met(&["--seed", "7", "--workers", "3"]).0, first);
    assert_ne!(met(&["--seed", "8"]).0, first);
}

#[test]
fn our_source_ends_with_the_right_counts_whatever_the_sink_does() {
    const RULES: [&str; 19] = [
        "connect: hang up 0.2",
        "ehlo: soft reject 0.2",
        "mail: soft reject 0.2",
        "rcpt: hard reject 0.2",
        "rcpt: hang up 0.2",
        "data: hard reject 0.2",
        "data: abort 0.2",
        "data: reset at 100 0.2",
        "data: read 50k/s",
        ".: soft reject 0.2",
        ".: hang up 0.2",
        ".: lose reply 0.2",
        ".: drop 0.2",
        "*: delay 5ms 0.2",
        "*: reset 0.05",
        "*: hang up \"421 4.0.0 x\" 0.05",
        "mail: limit 30/s burst 1",
        "rcpt: domain cap 2",
        "*: tarpit 1ms",
    ];
    each(&RULES, |&rule| {
        let sink = Sink::start(&["--fault", rule]);
        let words = ["--messages", "100", "--sessions", "5", "--reuse=10", "--pipelining", "group"];
        let record = source(&sink.address(), &words).record;
        let acted = acted(&sink, rule);
        let status = sink.ask("/status");
        let heard = accepted(&record);
        let in_doubt = record.ledger.in_doubt.unwrap();
        let refused = record.ledger.rejected.unwrap() + record.ledger.failed.unwrap() + in_doubt;
        match rule {
            // The source has sent the whole message, but gets no reply. So the message must count as in doubt.
            ".: hang up 0.2" | ".: lose reply 0.2" => {
                assert_eq!((in_doubt, record.ledger.failed), (acted, Some(0)), "{rule}");
                assert!(record.verdict.why.starts_with("In doubt: "), "{rule}: {}", record.verdict.why);
                assert!(record.missing.iter().all(|message| message.fate == MissingFate::InDoubt), "{rule}");
            }
            // The messages are so short that the source has sent a whole message when the sink resets the connection.
            // So the message must count as in doubt.
            "data: reset at 100 0.2" => assert_eq!((in_doubt, record.ledger.failed), (acted, Some(0)), "{rule}"),
            rule if rule.starts_with('*') => {}
            _ => assert_eq!(in_doubt, 0, "{rule}: {:?}", record.errors),
        }
        assert_eq!((record.ledger.created, heard + refused), (Some(100), 100), "{rule}: {:?}", record.ledger);
        let took = sink.took().messages;
        let expected = match rule {
            ".: lose reply 0.2" => heard + acted,
            ".: drop 0.2" => heard - acted,
            _ => heard,
        };
        assert_eq!(took, expected, "{rule}: {acted} times; {status}");
        assert!(acted > 0, "{rule}");
    });
}

#[test]
fn a_lost_reply_reads_delivered_and_not_accepted() {
    let words = ["--messages", "300", "--sessions", "5", "--reuse", "--fault", ".: lose reply 0.2", "--seed", "3"];
    let run = bench(&words);
    let record = run.record_of(0);
    let lost_replies = errors(&record, Phase::Reply, 0);
    let [created, delivered, lost, duplicates, corrupt] = fates(&record.ledger);
    assert_eq!([created, delivered, lost, duplicates, corrupt], [300, 300, 0, 0, 0], "each arrived, and once");
    let unheard = 300 - record.ledger.accepted.unwrap();
    assert!((20..120).contains(&unheard), "{unheard}");
    let remark = format!("{unheard} messages arrived although the source got no 250 for them");
    assert!(record.verdict.reasons.iter().any(|reason| reason.starts_with(&remark)), "{:?}", record.verdict);
    // Each lost reply counts twice: at the source, which never got it, and at the sink, which dropped it on purpose.
    assert_eq!(lost_replies, 2 * unheard, "{:?}", record.errors);
    assert!(record.errors.iter().any(|row| row.text == "on purpose: .: lose reply 0.2" && row.count == unheard));
    assert!(record.missing.is_empty(), "all of them arrived: {:?}", record.missing);
    let told = format!("'.: lose reply 0.2' ({unheard} times)");
    assert!(record.parties.iter().any(|party| party.faults == [told.as_str()]));
    assert!(run.file("report.md").contains(&told), "{}", run.file("report.md"));
}

fn traced(run: RunId, sequence: u64) -> String {
    let body = "Hello.\r\n";
    let trace = Trace {
        run,
        sequence,
        zero: ZeroPhase::default(),
        numbering: RecipientNumbering::TAG,
        created: Duration::ZERO,
        clock: ClockId(1),
        checksum: checksum(body.as_bytes()),
    };
    let mut header = vec![0; Trace::HEADER_BYTES];
    trace.write(&mut header);
    [&String::from_utf8(header).unwrap(), "Subject: x\r\n\r\n", body, ".\r\n"].concat()
}

#[test]
fn a_sender_that_tries_again_after_a_lost_reply_makes_a_duplicate() {
    let sink = Sink::start(&["--fault", ".: lose reply 0.5", "--seed", "2"]);
    let run = RunId([7; 16]);
    let mut lost = 0;
    for sequence in 0..40 {
        // Send the message again until a reply comes, as a relay must do (RFC 5321 §4.5.4.1).
        while deliver(&mut after(&sink, &["EHLO a"]), &traced(run, sequence)).is_none() {
            lost += 1;
        }
    }
    assert!((10..90).contains(&lost), "{lost}");
    assert_eq!(acted(&sink, ".: lose reply 0.5"), lost);
    wait_until("the counts", || (sink.ask("/status")["messages"] == 40 + lost).then_some(()));
    let ledger = sink.ask(&format!("/ledger/{run}"));
    assert_eq!(
        (&ledger["delivered"], &ledger["duplicates"], &ledger["corrupt"]),
        (&40.into(), &lost.into(), &0.into())
    );
}

#[test]
fn lost_replies_behind_a_real_relay_read_duplicates() {
    let rule = ".: lose reply 0.2";
    let sink = Sink::start(&["--fault", rule]);
    let Some(postfix) = Postfix::start(Deliver::To(sink.smtp.port()), &[Vec::new()]) else { return };
    let ours = source(&postfix.address(), &["--messages", "60", "--sessions", "3", "--reuse"]);
    assert_eq!(accepted(&ours.record), 60);
    wait_until("Postfix to hear 250 for all", || {
        postfix.flush();
        (postfix.sent() == 60).then_some(())
    });
    let lost = acted(&sink, rule);
    assert!(lost > 0);
    wait_until("the counts", || (sink.ask("/status")["messages"] == 60 + lost).then_some(()));
    let ledger = &sink.ask("/ledger")[0];
    assert_eq!((&ledger["delivered"], &ledger["duplicates"]), (&60.into(), &lost.into()), "one for each lost reply");
}

#[test]
fn a_run_is_told_only_what_happened_since_it_was_announced() {
    let sink = Sink::start(&[]);
    let earlier = [".: soft reject", "data: delay 1ms"];
    put_rules(&sink, &earlier);
    // This client stays connected until the end, because the sink would count its disconnection in the run.
    let mut stranger = after(&sink, &["EHLO a"]);
    assert!(deliver(&mut stranger, MESSAGE).is_some_and(|reply| reply.starts_with("450")));
    wait_until("the first client", || (sink.ask("/status")["errors"] == 1).then_some(()));
    let later = "rcpt: soft reject \"450 4.2.0 later\"";
    put_rules(&sink, &[later]);
    let run = "000102030405060708090a0b0c0d0e0f";
    let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
    assert_eq!(agent.put(format!("{}/ledger/{run}", sink.url())).send_empty().unwrap().status(), 200);
    let record =
        || -> mailrun_measurement::Record { serde_json::from_value(sink.ask(&format!("/record/{run}"))).unwrap() };
    let party = |record: &mailrun_measurement::Record| record.parties[0].clone();
    let quiet = party(&record()).reception.unwrap();
    assert_eq!((quiet.connections, quiet.ended.len(), quiet.rules.len()), (0, 0, 0), "{quiet:?}");
    let mut wire = after(&sink, &["EHLO a", "MAIL FROM:<a@b>"]);
    assert!(wire.say("RCPT TO:<c@d>").starts_with("450"));
    drop(wire);
    put_rules(&sink, &[]);
    let mut wire = after(&sink, &["EHLO a"]);
    assert!(deliver(&mut wire, "Received: x\r\nFrom: <a@b>\r\nsubject: strange\r\n\r\nHello.\r\n.\r\n").is_some());
    wire.say("QUIT");
    drop(wire);
    let record = wait_until("both clients", || {
        let record = record();
        let ended: u64 = party(&record).reception.unwrap().ended.iter().map(|row| row.count).sum();
        (ended == 2).then_some(record)
    });
    let errors: Vec<_> = record.errors.iter().map(|row| (row.phase, row.code, row.count)).collect();
    assert_eq!(errors, [(Phase::Rcpt, 450, 1)], "the errors are there although nothing of the run arrived");
    let party = party(&record);
    let reception = party.reception.unwrap();
    assert_eq!((reception.connections, reception.untraced), (2, 1));
    let ended: Vec<_> = reception.ended.iter().map(|row| (row.phase, row.count)).collect();
    assert_eq!(ended, [(Phase::Rcpt, 1), (Phase::Reply, 1)]);
    assert_eq!(reception.untraced_from.as_deref(), Some("<a@b>"));
    assert_eq!(reception.untraced_subject.as_deref(), Some("strange"));
    assert_eq!(party.faults, [format!("'{later}' (once, no longer active)")]);
    assert_eq!(party.ordered.unwrap().replies, 1);
    let events: Vec<&str> = record.events.iter().map(|event| event.text.as_str()).collect();
    assert_eq!(events, [later], "only the end of the rule that was active in the run");
}

#[test]
fn a_sink_that_rejects_everything_names_its_rule() {
    let sink = Sink::start(&["--fault", "rcpt: soft reject \"450 4.2.0 later\""]);
    let Some(postfix) = Postfix::start(Deliver::To(sink.smtp.port()), &[Vec::new()]) else { return };
    let words = [&postfix.address(), "--sink", sink.url(), "--messages", "20", "--sessions", "2", "--lost-after", "1s"];
    let run = bench(&words);
    let record = run.record_of(3);
    let said = record.verdict.reasons.join("\n");
    assert!(
        said.contains("and took no message of this run, by its rules: rcpt: soft reject \"450 4.2.0 later\" ("),
        "{said}"
    );
    assert!(said.contains("--lost-after") && !said.contains("has seen nothing"), "{said}");
    assert!(record.errors.iter().any(|row| (row.phase, row.code) == (Phase::Rcpt, 450)), "{:?}", record.errors);
}

#[test]
fn a_server_that_removes_the_trace_is_suspected() {
    let sink = Sink::start(&[]);
    let Some(postfix) = Postfix::start(Deliver::Stripped(sink.smtp.port()), &[Vec::new()]) else { return };
    let words = [&postfix.address(), "--sink", sink.url(), "--messages", "20", "--sessions", "2", "--lost-after", "3s"];
    let said = bench(&words).record_of(3).verdict.reasons.join("\n");
    let expected = "20 messages without a trace arrived (the first has From: ";
    assert!(said.contains(expected) && said.contains("): does the server remove X-Mailrun?"), "{said}");
    assert!(!said.contains("has seen nothing") && !said.contains("took no message"), "{said}");
}

/// Messages, each as the sink must save it and in its form on the wire.
fn corpus() -> Vec<(Vec<u8>, Vec<u8>)> {
    let long = "0123456789 größe\r\n".repeat(20_000);
    let texts = ["Subject: x\r\n\r\nHello.\r\n", ".\r\n..\r\n.x\r\n\r\n", "", "From me\r\n\r\n>From you\r\n", &long];
    let stuffed = |text: &str| {
        let lines = text
            .split_inclusive("\r\n")
            .map(|line| if line.starts_with('.') { [".", line].concat() } else { line.to_owned() });
        [lines.collect::<String>().as_bytes(), b".\r\n"].concat()
    };
    texts.iter().map(|text| (text.as_bytes().to_vec(), stuffed(text))).collect()
}

/// Sends the corpus, together with half a message and a refused one.
fn send_corpus(sink: &Sink) {
    for (_, wire_form) in corpus() {
        let lines = ["EHLO client.example", "MAIL FROM:<a@b> BODY=8BITMIME", "RCPT TO:<c@d>", "RCPT TO:<e@d>", "DATA"];
        let mut wire = after(sink, &lines);
        // Send the message in pieces of about the size of a packet, as it would arrive over a network. The size is odd,
        // so pieces end within the lines of 20 bytes.
        wire_form.chunks(1399).for_each(|piece| wire.send(piece));
        assert!(wire.reply().unwrap().starts_with("250"));
        let mut half = after(sink, &lines);
        half.send("0123456789\r\n".repeat(10_000));
        let mut refused = after(sink, &lines);
        refused.send("bare\nline\r\n.\r\n");
        assert!(refused.reply().unwrap().starts_with("550"));
    }
}

/// The contents of a directory's files, in the order of their names.
fn files(directory: &Path) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn messages_are_kept_byte_for_byte_in_files_of_their_own() {
    let expected: Vec<Vec<u8>> = corpus().into_iter().map(|(kept, _)| kept).collect();
    for option in ["--dump-dir", "--maildir"] {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("kept");
        let sink = Sink::start(&[option, root.to_str().unwrap()]);
        send_corpus(&sink);
        assert_eq!(sink.took().messages, expected.len() as u64);
        let directory = if option == "--dump-dir" { root.clone() } else { root.join("new") };
        let mut kept = files(&directory);
        // The sink names a file when it writes the first bytes. It writes a short message only when the message ends,
        // so the order of the files may vary.
        let sort = |files: &mut Vec<Vec<u8>>| files.sort_by_key(Vec::len);
        sort(&mut kept);
        let mut expected = expected.clone();
        sort(&mut expected);
        assert!(kept == expected, "{option}: {:?}", kept.iter().map(Vec::len).collect::<Vec<_>>());
        assert!(option == "--dump-dir" || files(&root.join("tmp")).is_empty());
    }
}

#[test]
fn messages_are_kept_byte_for_byte_in_one_file() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("all.dump");
    let sink = Sink::start(&["--dump-file", path.to_str().unwrap()]);
    send_corpus(&sink);
    assert_eq!(sink.took().messages, 5);
    let all = fs::read(&path).unwrap();
    let mut rest = all.as_slice();
    for (kept, _) in corpus() {
        let end = rest.iter().position(|octet| *octet == b'\n').unwrap();
        let head: Value = serde_json::from_slice(&rest[..end]).unwrap();
        assert_eq!((&head["hello"], &head["sender"]), (&"client.example".into(), &"a@b".into()));
        assert_eq!(head["recipients"], serde_json::json!(["c@d", "e@d"]));
        assert!(head["client"].as_str().unwrap().starts_with("127.0.0.1:"));
        let bytes = head["bytes"].as_u64().unwrap() as usize;
        assert!(rest[end + 1..end + 1 + bytes] == kept, "{bytes} octets");
        assert_eq!(rest[end + 1 + bytes], b'\n');
        rest = &rest[end + 2 + bytes..];
    }
    assert!(rest.is_empty());
}

#[test]
fn many_sessions_may_keep_mail_at_once() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("all.dump");
    let sink = Sink::start(&["--dump-file", path.to_str().unwrap(), "--workers", "2"]);
    let words = ["--messages", "200", "--sessions", "20", "--message-size", "100k", "--reuse=3"];
    assert_eq!(accepted(&source(&sink.address(), &words).record), 200);
    assert_eq!(sink.took().messages, 200);
    let all = fs::read(&path).unwrap();
    let mut rest = all.as_slice();
    let mut count = 0;
    while let Some(end) = rest.iter().position(|octet| *octet == b'\n') {
        let head: Value = serde_json::from_slice(&rest[..end]).unwrap();
        let bytes = head["bytes"].as_u64().unwrap() as usize;
        assert!(rest[end + 1..].starts_with(b"X-Mailrun: v1 "), "message {count}");
        rest = &rest[end + 2 + bytes..];
        count += 1;
    }
    assert_eq!(count, 200);
}

#[test]
fn a_message_that_cannot_be_kept_is_refused_and_the_sender_knows() {
    let sink = Sink::start(&["--dump-file", "/dev/full"]);
    let mut wire = after(&sink, &["EHLO a"]);
    for message in [MESSAGE.to_owned(), ["x\r\n".repeat(50_000).as_str(), ".\r\n"].concat()] {
        assert_eq!(deliver(&mut wire, &message).unwrap(), "452 4.3.1 Insufficient system storage\r\n");
    }
    let ours = source(&sink.address(), &["--messages", "20", "--sessions", "2", "--reuse"]);
    assert_eq!((accepted(&ours.record), errors(&ours.record, Phase::Reply, 452)), (0, 20));
    let record = sink.stop();
    assert_eq!((took(&record).messages, errors(&record, Phase::Reply, 452)), (0, 22));
    let row = record.errors.iter().find(|row| row.code == 452).unwrap();
    assert!(row.text.starts_with("the message could not be stored: "), "{}", row.text);
}

#[test]
fn a_directory_that_goes_and_comes_back_loses_nothing_that_was_acknowledged() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("kept");
    let sink = Sink::start(&["--dump-dir", root.to_str().unwrap()]);
    let mut wire = after(&sink, &["EHLO a"]);
    fs::remove_dir(&root).unwrap();
    assert!(deliver(&mut wire, MESSAGE).unwrap().starts_with("452"));
    fs::create_dir(&root).unwrap();
    assert!(deliver(&mut wire, MESSAGE).unwrap().starts_with("250"));
    assert_eq!(files(&root), [b"Subject: x\r\n\r\nHello.\r\n".to_vec()]);
    assert_eq!(sink.took().messages, 1);
}

#[test]
fn a_message_under_rules_is_kept_if_it_was_taken() {
    for (rule, kept) in [
        (".: soft reject", 0),
        (".: hang up", 0),
        (".: drop", 0),
        (".: lose reply", 1),
        (".: duplicate", 1),
        (".: delay 20ms", 1),
        ("data: reset at 5", 0),
    ] {
        let place = tempfile::tempdir().unwrap();
        let sink = Sink::start(&["--dump-dir", place.path().to_str().unwrap(), "--fault", rule]);
        deliver(&mut after(&sink, &["EHLO a"]), MESSAGE);
        wait_until(rule, || (acted(&sink, rule) == 1).then_some(()));
        let _ = sink.stop();
        assert_eq!(files(place.path()).len(), kept, "{rule}");
    }
}

#[test]
fn an_envelope_in_one_segment_meets_its_rules_in_order() {
    let sink = Sink::start(&["--fault", "rcpt to bad@: hard reject", "--fault", "data: delay 50ms"]);
    let mut wire = Wire::greeted(sink.smtp);
    wire.send([HELLO, "MAIL FROM:<a@b>\r\nRCPT TO:<bad@d>\r\nRCPT TO:<good@d>\r\nDATA\r\n"].concat());
    let codes: Vec<String> = (0..5).map(|_| wire.reply().unwrap()[..3].to_owned()).collect();
    assert_eq!(codes, ["250", "250", "554", "250", "354"]);
    wire.send([MESSAGE, ENVELOPE, MESSAGE, "QUIT\r\n"].concat());
    let codes: Vec<String> = wire.replies().iter().map(|reply| reply[..3].to_owned()).collect();
    assert_eq!(codes, ["250", "250", "250", "354", "250", "221"]);
    let took = sink.took();
    assert_eq!((took.messages, took.recipients), (2, 2));
}

#[test]
fn a_refused_ehlo_or_rset_leaves_the_transaction_as_it_is() {
    let sink = Sink::start(&["--fault", "ehlo: soft reject", "--fault", "rset: soft reject"]);
    let mut wire = after(&sink, &["HELO a", "MAIL FROM:<a@b>", "RCPT TO:<c@d>"]);
    assert!(wire.say("EHLO a").starts_with("450") && wire.say("RSET").starts_with("450"));
    for line in ["RCPT TO:<e@d>", "DATA"] {
        assert!(wire.say(line).starts_with(['2', '3']), "{line}");
    }
    wire.send(MESSAGE);
    assert!(wire.reply().unwrap().starts_with("250"));
    put_rules(&sink, &[]);
    for line in
        ["MAIL FROM:<a@b>", "RCPT TO:<c@d>", "RSET", "MAIL FROM:<a@b>", "RCPT TO:<c@d>", "EHLO a", "MAIL FROM:<a@b>"]
    {
        assert!(wire.say(line).starts_with("250"), "{line}");
    }
    let took = sink.took();
    assert_eq!((took.messages, took.recipients), (1, 2));
}

/// Sends a message for these recipients, and waits for `replies` replies after its end. Returns their codes, which are
/// fewer if the connection closes.
fn deliver_to(wire: &mut Wire, recipients: &[&str], replies: usize) -> Vec<String> {
    let recipients = recipients.iter().map(|recipient| format!("RCPT TO:<{recipient}@example.com>"));
    for line in ["MAIL FROM:<a@example.com>".to_owned()].into_iter().chain(recipients).chain(["DATA".to_owned()]) {
        assert!(wire.say(&line).starts_with(['2', '3']), "{line}");
    }
    wire.send(MESSAGE);
    (0..replies).map_while(|_| wire.reply()).map(|reply| reply[..3].to_owned()).collect()
}

fn counts(sink: &Sink, expected: (u64, u64)) {
    let expected = [expected.0, expected.1].map(Value::from);
    wait_until("the counts", || {
        let status = sink.ask("/status");
        (["messages", "recipients"].map(|name| status[name].clone()) == expected).then_some(())
    });
}

#[test]
fn lmtp_recipients_are_refused_held_back_and_forgotten_each_by_itself_after_the_dot() {
    let place = tempfile::tempdir().unwrap();
    let kept = place.path().join("kept");
    let rules = [
        ". to no@: hard reject \"550 5.7.1 Not for no\"",
        ". to slow@example.com: delay 150ms",
        ". to lost@: drop",
        ". to twice@: duplicate",
        ".: directed",
    ];
    let faults = rules.iter().flat_map(|rule| ["--fault", rule]);
    let words: Vec<&str> = ["--lmtp", "--dump-file", kept.to_str().unwrap()].into_iter().chain(faults).collect();
    let sink = Sink::start(&words);
    let mut wire = Wire::greeted(sink.smtp);
    assert!(wire.say("LHLO a").starts_with("250"));
    assert_eq!(deliver_to(&mut wire, &["no", "b", "450-c", "lost", "d"], 5), ["550", "250", "450", "250", "250"]);
    counts(&sink, (1, 2));
    assert_eq!(deliver_to(&mut wire, &["slow", "slow", "twice"], 3), ["250"; 3]);
    counts(&sink, (2, 6));
    assert_eq!(deliver_to(&mut wire, &["no", "no"], 2), ["550"; 2], "nobody has it, and it does not count");
    assert_eq!(deliver_to(&mut wire, &["d"], 1), ["250"], "what nobody has anything against is as ever");
    assert_eq!([acted(&sink, rules[0]), acted(&sink, rules[1]), acted(&sink, rules[4])], [3, 2, 1]);
    let record = sink.stop();
    assert_eq!((took_of(&record), errors(&record, Phase::Reply, 550)), ((3, 7), 3), "{:?}", record.errors);
    let kept = String::from_utf8(fs::read(&kept).unwrap()).unwrap();
    let kept: Vec<&str> = kept.lines().filter(|line| line.starts_with("{\"bytes\"")).collect();
    let lists =
        [r#"["b@example.com","d@example.com"]"#, r#"["slow@example.com","slow@example.com","twice@example.com"]"#];
    assert!(kept.len() == 3 && kept.iter().zip(lists).all(|(line, list)| line.contains(list)), "{kept:?}");
}

fn took_of(record: &mailrun_measurement::record::Record) -> (u64, u64) {
    let took = took(record);
    (took.messages, took.recipients)
}

#[test]
fn an_lmtp_session_that_ends_at_a_recipient_has_answered_those_before_it() {
    for (rule, replies, counted) in [
        (". to cut@: hang up", ["250"].as_slice(), 1),
        (". to cut@: hang up \"451 4.0.0 Enough\"", &["250", "451"], 1),
        (". to cut@: soft reject \"421 4.0.0 Enough\"", &["250", "421"], 1),
        (". to cut@: lose reply", &["250"], 2),
        (". to cut@: reset", &[], 1),
    ] {
        let sink = Sink::start(&["--lmtp", "--fault", rule]);
        let mut wire = Wire::greeted(sink.smtp);
        assert!(wire.say("LHLO a").starts_with("250"));
        let heard = deliver_to(&mut wire, &["b", "cut", "c"], 3);
        // A reset discards replies that the client has not yet read.
        assert!(heard == replies || rule.ends_with("reset"), "{rule}: {heard:?}");
        let took = sink.took();
        assert_eq!((took.messages, took.recipients), (1, counted), "{rule}");
    }
}

#[test]
fn one_recipient_refused_after_the_dot_refuses_the_message_in_smtp() {
    let sink = Sink::start(&[
        "--fault",
        ". to no@: hard reject",
        "--fault",
        ". to *: delay 60ms",
        "--fault",
        ". to cut@: hang up \"421 4.0.0 Enough\"",
        "--fault",
        ". to lost@: drop",
    ]);
    let mut wire = after(&sink, &["EHLO a"]);
    assert_eq!(deliver_to(&mut wire, &["b", "no", "c"], 1), ["554"]);
    assert_eq!(acted(&sink, ". to *: delay 60ms"), 1, "who comes later is not asked for");
    assert_eq!(deliver_to(&mut wire, &["b", "lost", "c"], 1), ["250"]);
    assert_eq!(acted(&sink, ". to *: delay 60ms"), 4, "a delay for each");
    counts(&sink, (1, 2));
    assert_eq!(deliver_to(&mut wire, &["lost"], 1), ["250"]);
    counts(&sink, (1, 2));
    assert_eq!(deliver_to(&mut wire, &["b", "cut"], 2), ["421"]);
    let record = sink.stop();
    assert_eq!(took_of(&record), (1, 2));
    assert_eq!((errors(&record, Phase::Reply, 554), errors(&record, Phase::Reply, 421)), (1, 1));
}
