//! A bench whose sink watches mailboxes. The mailboxes are Maildirs, which a second sink fills like a mail server. The
//! tests of IMAP are in the crate `load`, where `sink/mailboxes/stand_in.rs` plays an IMAP server.
use crate::party::{MAILRUN, Sink, bench_as_typed, is_root, mailrun, peer, stage};
use crate::secured::Files;
use mailrun_bench::recipe::Recipe;
use mailrun_measurement::Stage;
use mailrun_measurement::record::Role;
use std::fs;
use std::process::Command;

#[test]
fn mail_is_delivered_when_it_can_be_read_in_the_mailbox() {
    let files = Files::new();
    let inbox = files.path("inbox");
    let server = Sink::start(&["--maildir", &inbox]);
    let mailbox = format!("maildir:{inbox}");
    let load = ["--rate", "100", "--messages", "50", "--threshold", "announced.count >= 50"];
    let run = bench_as_typed(&[&[&server.address(), "--mailbox", &mailbox, "--whole"], load.as_slice()].concat());
    let record = run.record_of(0);
    let ledger = &record.ledger;
    assert_eq!(
        (ledger.delivered, ledger.duplicates, ledger.corrupt, ledger.lost),
        (Some(50), Some(0), Some(0), Some(0))
    );
    let [announced, delivered] = [Stage::Announced, Stage::Delivered].map(|name| stage(&record, name));
    assert_eq!((announced.count, delivered.count), (50, 50));
    assert_eq!(announced.since, delivered.since, "both count from when a message was due");
    assert!(announced.latency_ms.unwrap().p50 <= delivered.latency_ms.unwrap().p50);
    let sink = record.parties.iter().find(|party| party.role == Role::Sink).unwrap();
    let watched = sink.reception.as_ref().unwrap().mailboxes.as_ref().unwrap();
    assert_eq!((watched.count, watched.idle, watched.poll_ms, watched.whole), (1, 0, Some(10.0), true));
    assert!(run.file("report.md").contains("asked for new mail every 10.00 ms"), "{}", run.file("report.md"));
    let one = fs::read_dir(format!("{inbox}/new")).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&one).unwrap();
    assert!(text.lines().any(|line| line.trim_end() == "Auto-Submitted: auto-generated"), "{text}");
    // A second run must skip the mail of the first run, and delete only its own mail.
    let words = [&server.address(), "--mailbox", &mailbox, "--expunge", "--messages", "20", "--sessions", "2"];
    let record = bench_as_typed(&words).record_of(0);
    assert_eq!((record.ledger.delivered, record.ledger.foreign, record.ledger.corrupt), (Some(20), Some(0), None));
    assert_eq!(fs::read_dir(format!("{inbox}/new")).unwrap().count(), 50);
    server.stop();
}

/// The server that the bench starts, its users and its sink are all private. Of the tests that run for every commit,
/// only this one uses a real IMAP server.
#[test]
fn a_private_dovecot_takes_mail_that_is_read_in_its_mailboxes() {
    let Some(_) = peer("dovecot").filter(|_| is_root()) else { return };
    let files = Files::new();
    let recipe = files.path("ten.toml");
    // Use ten mailboxes instead of a hundred, because each login takes about 30 ms.
    fs::write(&recipe, Recipe::built_in_text("dovecot").unwrap().replace("{0..99}", "{0..9}")).unwrap();
    let run = bench_as_typed(&["--relay", &recipe, "--messages", "100", "--sessions", "4", "--reuse", "--expunge"]);
    let record = run.record_of(0);
    assert_eq!((record.ledger.delivered, record.ledger.duplicates), (Some(100), Some(0)), "{:?}", record.verdict);
    let sink = record.parties.iter().find(|party| party.role == Role::Sink).unwrap();
    let watched = sink.reception.as_ref().unwrap().mailboxes.as_ref().unwrap();
    assert_eq!((watched.count, watched.idle, watched.broken, watched.deleted), (10, 10, 0, 100), "{watched:?}");
    let server = record.parties.iter().find(|party| party.role == Role::Relay).unwrap();
    assert_eq!((server.name.as_str(), server.durability.as_str()), ("ten", "sync"));
}

#[test]
fn a_mailbox_that_cannot_be_watched_ends_the_bench_before_the_load() {
    let server = Sink::start(&[]);
    for (words, expected) in [
        (&["--mailbox", "maildir:/nowhere"][..], "cannot watch maildir:/nowhere: the directory cannot be read"),
        (&["--mailbox", "imap://ann@127.0.0.1:1"], "--mailbox requires a password: use --mailbox-password-file FILE"),
        (&["--mailbox", "imap://ann:secret@127.0.0.1:1"], "a password does not belong into a URL"),
        (&["--mailbox", "maildir:/a", "--sink-listen", "127.0.0.1:0"], "the mailboxes are the sink"),
        (&["--mailbox", "maildir:/a", "--fault", "drop"], "cannot be used with --mailbox"),
    ] {
        let ended = mailrun(&[&["bench", &server.address(), "--messages", "5", "--report", "none"], words].concat());
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
        assert!(ended.err.contains(expected), "{words:?}: {}", ended.err);
    }
    assert_eq!(server.stop().stages.iter().map(|row| row.count).sum::<u64>(), 0, "no mail was sent");
}

#[test]
fn each_command_names_its_own_options_if_the_system_trusts_nobody() {
    let files = Files::new();
    let nobody = files.keep("nobody.pem", "");
    for (words, [trust, insecure]) in [
        (&["sink", "--mailbox", "imaps://ann@127.0.0.1:1"][..], ["--mailbox-cacert", "--mailbox-insecure"]),
        (&["source", "127.0.0.1:1", "--tls", "starttls"], ["--cacert", "--insecure"]),
        (&["mades", "--broker", "amqps://127.0.0.1:1"], ["--cacert", "--insecure"]),
    ] {
        let ended = Command::new(MAILRUN)
            .args(words)
            .envs([("SSL_CERT_FILE", nobody.as_str()), ("SSL_CERT_DIR", "/nowhere"), ("MAILRUN_MAILBOX_PASSWORD", "x")])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&ended.stderr).into_owned();
        let said = format!(
            "this system has no trusted certificates; use {trust} FILE (PEM) for the trusted certificates, or {insecure} to"
        );
        assert!(ended.status.code() == Some(2) && error.contains(&said), "{words:?}: {error}");
    }
}
