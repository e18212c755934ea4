//! `--dialogue` of the sink and the relay shows what clients and server said, but only in the sessions that the user
//! asked for.
use crate::party::{Sink, mailrun, wait_until};
use crate::relay::Den;
use crate::wire::Wire;
use std::fs;

/// Waits until a session has ended. Returns the log's lines without their times, and with `PORT` for the client's port.
fn ended(file: &str) -> Vec<String> {
    let text = wait_until("the end of a session", || {
        let text = fs::read_to_string(file).ok()?;
        text.lines().any(|line| line.contains("=== closed ")).then_some(text)
    });
    let (date, lines) = text.split_once('\n').unwrap();
    assert!(date.starts_with("=== 20") && date.ends_with(", times in UTC"), "{date}");
    let without_time = |line: &str| {
        let (time, line) = line.split_once(' ').unwrap();
        assert!(time.len() == 12 && time.as_bytes()[8] == b'.', "{line}");
        let digits = line.find("127.0.0.").map(|at| at + "127.0.0.1:".len());
        digits.map_or(line.to_owned(), |at| format!("{}PORT", &line[..at]))
    };
    lines.lines().map(without_time).collect()
}

#[test]
fn a_sink_shows_the_session_of_a_recipient() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("dialogue.log");
    let file = file.to_str().unwrap();
    let rule = "rcpt to @a.example: soft reject \"450 4.7.1 later\"";
    let sink = Sink::start(&["--dialogue", file, "--dialogue-of", "@a.example", "--fault", rule]);
    for (recipient, code) in [("ann@b.example", "250 "), ("ann@a.example", "450 ")] {
        let mut wire = Wire::greeted(sink.smtp);
        assert!(wire.say("HELO client.example").starts_with("250 "));
        assert!(wire.say("MAIL FROM:<c@c.example>").starts_with("250 "));
        assert!(wire.say(&format!("RCPT TO:<{recipient}>")).starts_with(code));
        assert!(wire.say("QUIT").starts_with("221 "));
    }
    let expected = [
        "#2 === client 127.0.0.1:PORT",
        "#2 <-  220 mailrun.example.com ESMTP mailrun",
        "#2  -> HELO client.example",
        "#2 <-  250 mailrun.example.com",
        "#2  -> MAIL FROM:<c@c.example>",
        "#2 <-  250 2.1.0 Ok",
        "#2  -> RCPT TO:<ann@a.example>",
        "#2 <-  450 4.7.1 later",
        "#2  -> QUIT",
        "#2 <-  221 2.0.0 Bye",
        "#2 === closed after QUIT",
    ];
    assert_eq!(ended(file), expected);
    sink.stop();
}

#[test]
fn a_sink_shows_a_client_that_cannot_do_tls() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("dialogue.log");
    let file = file.to_str().unwrap();
    let sink = Sink::start(&["--dialogue", file, "--dialogue-of", "127.0.0.2", "--tls", "starttls"]);
    let mut other = Wire::greeted(sink.smtp);
    let mut wire = Wire::connect_from([127, 0, 0, 2], sink.smtp);
    wire.reply();
    wire.say("EHLO client.example");
    assert!(wire.say("STARTTLS").starts_with("220 "));
    wire.send("this is no handshake\r\n");
    assert_eq!(wire.reply().filter(|line| line.starts_with(char::is_numeric)), None);
    drop(wire);
    let lines = ended(file);
    assert!(lines.iter().any(|line| line.contains("=== TLS failed: ")), "{lines:?}");
    assert!(lines.iter().all(|line| line.starts_with("#2 ")), "{lines:?}");
    other.say("QUIT");
    sink.stop();
}

#[test]
fn a_relay_shows_its_clients() {
    let den = Den::to("discard", "");
    let file = den.path("dialogue.log");
    let relay = den.open_with(&["--dialogue", &file]);
    let mut wire = relay.greeted();
    assert!(wire.say("MAIL FROM:<c@c.example>").starts_with("503 "));
    wire.say("QUIT");
    let lines = ended(&file);
    assert!(lines.contains(&"#1  -> MAIL FROM:<c@c.example>".to_owned()), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("#1 <-  503 ")), "{lines:?}");
    relay.stop();
}

#[test]
fn standard_output_has_one_use() {
    for (words, option) in [
        (&["sink", "--dialogue", "--json", "-"][..], "--json -"),
        (&["sink", "--live", "json", "--dialogue-of", "@a"][..], "--live json"),
        (&["relay", "--to", "discard", "--spool", "/nonexistent/spool", "--dialogue", "--json", "-"][..], "--json -"),
    ] {
        let ended = mailrun(words);
        assert_eq!(ended.code, Some(2), "{words:?}");
        let expected = format!("mailrun: {option} and --dialogue both want standard output; use --dialogue FILE\n");
        assert_eq!(ended.err, expected);
    }
}
