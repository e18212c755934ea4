//! `mailrun bench` without a server, in every mode of connection. Each message must go once from
//! the source through our own relay to the sink.
use crate::party::{Ended, mailrun};
use crate::rows::each;
use crate::secured::{Files, PASSWORD, USER};
use mailrun_measurement::record::{Outcome, Record, Role};
use std::fs;

fn bench(out: &str, words: &[&str]) -> Ended {
    mailrun(&[&["bench", "--messages", "40", "--sessions", "4", "--out", out], words].concat())
}

fn record(out: &str) -> Record {
    serde_json::from_str(&fs::read_to_string(format!("{out}/run.json")).unwrap()).unwrap()
}

fn goes_through_the_relay(words: &[&str]) -> Files {
    let files = Files::new();
    let password = files.keep("password", PASSWORD);
    let out = files.path("out");
    let is_login = words.contains(&"--user");
    let login = if is_login { vec!["--password-file", password.as_str()] } else { Vec::new() };
    let ended = bench(&out, &[words, &login].concat());
    assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
    let record = record(&out);
    let roles: Vec<Role> = record.parties.iter().map(|party| party.role).collect();
    assert!(roles.contains(&Role::Relay) && roles.contains(&Role::Sink), "{words:?}: {roles:?}");
    assert_ne!(record.verdict.outcome, Some(Outcome::Fail), "{words:?}: {:?}", record.verdict);
    let ledger = &record.ledger;
    assert_eq!((ledger.delivered, ledger.duplicates), (Some(40), Some(0)), "{words:?}: {ledger:?}");
    files
}

#[test]
fn every_mode_goes_through_the_relay() {
    const MODES: [&[&str]; 16] = [
        &[],
        &["--tls", "starttls"],
        &["--tls", "implicit"],
        &["--tls", "starttls", "--tls-name", "mx.example"],
        &["--tls", "implicit", "--insecure", "--", "--no-tls-resumption"],
        &["--user", USER],
        &["--user", USER, "--tls", "starttls", "--auth-mechanism", "plain"],
        &["--user", USER, "--auth-mechanism", "scram-sha-256"],
        &["--", "--proxy-protocol", "v1"],
        &["--tls", "implicit", "--", "--proxy-protocol", "v2"],
        &["--", "--xclient", "NAME=client.example", "--xclient", "ADDR=192.0.2.1"],
        &["--lmtp"],
        &["--lmtp", "--tls", "starttls"],
        &["--chunking"],
        &["--relay", "mailrun:write", "--tls", "starttls"],
        &["--reuse", "--pipelining", "stream", "--tls", "implicit", "--user", USER],
    ];
    each(&MODES, |words| {
        let files = goes_through_the_relay(words);
        for secret in ["out/relay-users", "out/relay-key.pem"] {
            assert!(!fs::exists(files.path(secret)).unwrap(), "{words:?}: {secret} is left");
        }
    });
}

#[test]
fn what_the_relay_cannot_do_is_refused_before_the_run() {
    let files = Files::new();
    let out = files.path("out");
    let ca = files.certificate("ca", &["localhost"])[0].clone();
    for (words, why) in [
        (
            &["--chunking", "--", "--binarymime"][..],
            "the relay that bench starts takes no binary messages; add --relay none",
        ),
        (&["--tls", "starttls", "--cacert", &ca], "has a certificate of its own; add --relay none"),
        (&["--lmtp", "--tls", "implicit"], "--lmtp cannot be used with --tls implicit"),
        (&["--relay", "postfix", "--tls", "starttls"], "--tls cannot be used with the postfix that bench starts"),
        (&["--relay", "mta {to} {listen}", "--lmtp"], "--lmtp cannot be used with the mta that bench starts"),
    ] {
        let ended = bench(&out, words);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{words:?}: {ended:?}");
        assert!(ended.err.contains(why) && ended.err.lines().count() == 1, "{words:?}: {ended:?}");
        assert!(!fs::exists(&out).unwrap(), "{words:?}");
    }
}

#[test]
fn without_a_relay_the_sink_takes_it_all() {
    let files = Files::new();
    let out = files.path("out");
    let ended = bench(&out, &["--relay", "none", "--chunking", "--tls", "implicit", "--", "--binarymime"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(record(&out).parties.iter().all(|party| party.role != Role::Relay));
}
