//! The configuration files in the relay's help work when copied as they stand.
use crate::party::{Ended, MAILRUN, Process, Sink, mailrun, wait_until};
use crate::relay::{Relay, await_recipients};
use crate::secured::Files;
use std::fs;
use std::process::Command;

fn help(columns: &str) -> String {
    let shown = Command::new(MAILRUN).args(["relay", "--help"]).env("COLUMNS", columns).output().unwrap();
    String::from_utf8(shown.stdout).unwrap()
}

/// Returns the lines from the first one that begins with `first` to the next one that begins with `last`, as
/// sed would print them.
fn cut(help: &str, first: &str, last: &str) -> String {
    let from: Vec<&str> = help.lines().skip_while(|line| !line.starts_with(first)).collect();
    let end = from.iter().position(|line| line.starts_with(last)).expect("it has an end");
    from[..=end].iter().flat_map(|line| [line, "\n"]).collect()
}

/// Runs `relay --check` on a text, with the files that the manual's example names.
fn checked(text: &str) -> Ended {
    let files = Files::new();
    let [certificate, key] = files.certificate("it", &["localhost"]);
    fs::rename(&certificate, files.path("certificate.pem")).unwrap();
    fs::copy(files.path("certificate.pem"), files.path("ca.pem")).unwrap();
    fs::rename(&key, files.path("key.pem")).unwrap();
    for (name, text) in [
        ("users", "ann:secret\n"),
        ("mailboxes", "ann\npostmaster\n"),
        ("aliases", "sales: ann\n"),
        ("password", "secret\n"),
    ] {
        files.keep(name, text);
    }
    mailrun(&["relay", "--config", &files.keep("relay.toml", text), "--check"])
}

#[test]
fn the_file_with_every_key_is_accepted_as_it_is_copied() {
    for columns in ["80", "100"] {
        let ended = checked(&cut(&help(columns), "hostname", "port = "));
        assert_eq!(ended.code, Some(0), "{columns}: {ended:?}");
        assert!(ended.out.contains("configuration OK: listens on 127.0.0.1:2525"), "{ended:?}");
    }
}

fn example_shown(columns: &str) -> String {
    let help = help(columns);
    let (_, from_example) = help.split_once("All keys:\n").unwrap();
    from_example.split_once("\nLines of the alias file").unwrap().0.to_owned()
}

#[test]
fn the_relays_example_can_be_copied_from_its_help() {
    let expected: toml::Table = include_str!("../../crates/relay/src/config/example.toml").parse().unwrap();
    for columns in ["80", "100"] {
        let shown = example_shown(columns);
        let widest = shown.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{widest:?} columns of {columns}");
        let parsed = shown.parse::<toml::Table>();
        assert!(parsed.as_ref() == Ok(&expected), "at {columns} columns: {parsed:?}");
    }
}

#[test]
fn the_small_file_works_as_it_is() {
    let manual = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/relay.md")).unwrap();
    let sink = Sink::start(&[]);
    for columns in ["80", "100"] {
        let small = cut(&help(columns), "[spool]", "smtp = ");
        assert!(manual.contains(&small), "docs/relay.md has it too:\n{small}");
        assert_eq!(checked(&small).code, Some(0), "{small}");
        // Use another address, because other processes may listen on the example's address.
        let next_hop = small.replace("127.0.0.1:2526", &sink.address());
        assert_ne!(next_hop, small);
        let files = Files::new();
        let config = files.keep("relay.toml", &format!("listen = \"127.0.0.1:0\"\n{next_hop}"));
        let relay = Relay::listening(Process::start(MAILRUN, &["relay", "--config", &config, "--live", "json"]));
        let ended = mailrun(&["source", &relay.address(), "--messages", "3"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        relay.stop();
    }
    await_recipients(&sink, 6);
}

#[test]
fn public_servers_are_allowed_by_the_environment_too() {
    let files = Files::new();
    let config = files.keep("relay.toml", "spool.directory = \"s\"\n[[route]]\nto = \"*\"\nsmtp = \"8.8.8.8\"\n");
    let words = ["relay", "--config", &config, "--check"];
    let refused = mailrun(&words);
    assert!(refused.code == Some(2) && refused.out.contains("8.8.8.8 is a public address"), "{refused:?}");
    let allowed = Command::new(MAILRUN).args(words).env("MAILRUN_ALLOW_PUBLIC", "1").output().unwrap();
    assert_eq!(allowed.status.code(), Some(0), "{allowed:?}");
}

#[test]
fn verbose_logs_deliveries_and_quiet_says_nothing() {
    let sink = Sink::start(&[]);
    for (word, logs) in [("-v", true), ("-q", false)] {
        let files = Files::new();
        let spool = files.path("spool");
        let listen = format!("127.0.0.1:{}", crate::party::low_port());
        let words = ["relay", "--listen", &listen, "--to", &sink.address(), "--spool", &spool, word];
        let relay = Process::start(MAILRUN, &words);
        wait_until("a greeting", || std::net::TcpStream::connect(&listen).ok());
        let ended = mailrun(&["source", &listen, "--messages", "2"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        if logs {
            wait_until("a line of log", || relay.complained().contains("status=delivered").then_some(()));
        }
        relay.terminate();
        let ended = relay.finish();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!((ended.out.is_empty(), ended.err.is_empty()), (!logs, !logs), "{ended:?}");
    }
}
