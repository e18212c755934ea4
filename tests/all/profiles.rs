//! `mailrun bench kotlin-profile`, `sizes` and `large-message` as a user runs them. All rows exist and their figures
//! agree, refused mail is no PASS, and a mistyped word is reported in one line.
use crate::party::{Ended, Sink, mailrun, peer};
use mailrun_measurement::Record;
use std::fs;
use std::path::Path;

/// Runs a scenario with only one round, and with a full report.
fn profile(words: &[&str], out: &Path) -> Ended {
    mailrun(&[&["bench"], words, &["--rounds", "1", "--report", "full", "--out", out.to_str().unwrap()]].concat())
}

/// The run must be a PASS, or INVALID if this machine was the bottleneck.
fn expect_measured(ended: &Ended) {
    let last = ended.out.lines().last().unwrap_or_default();
    let is_good = last.starts_with("PASS ") || last.starts_with("INVALID ");
    assert!(is_good && ended.code == Some(0), "{ended:?}");
}

/// Returns the rows of a table of the output, each as a list of cells. `table` counts the tables from 0.
fn rows(ended: &Ended, table: usize) -> Vec<Vec<String>> {
    let is_rule = |line: &&str| line.contains('─');
    let after = ended.out.lines().enumerate().filter(|(_, line)| is_rule(line)).nth(table).expect("a table").0 + 1;
    let cells =
        |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect();
    ended.out.lines().skip(after).take_while(|line| !line.is_empty()).map(cells).collect()
}

fn record(out: &Path, place: &str) -> Record {
    let text = fs::read(out.join(place).join("run.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn the_profile_of_the_guide_has_its_figures_and_its_records() {
    let out = tempfile::tempdir().unwrap();
    let ended = profile(&["kotlin-profile", "--messages", "80"], out.path());
    expect_measured(&ended);
    assert!(
        ended.out.starts_with("kotlin-profile: 80 messages per run over 8 sessions to mailrun's sink"),
        "{ended:?}"
    );
    let figures = rows(&ended, 0);
    assert_eq!((figures.len(), figures[0][0].as_str(), figures[0][1].as_str()), (1, "4 KiB", "80"), "{figures:?}");
    let times = rows(&ended, 1);
    assert!(times.len() == 1 && times[0].len() == 4, "{times:?}");
    let record = record(out.path(), "round-1-4096");
    assert_eq!((record.workload.sessions, record.workload.reuse), (8, Some(1)));
    assert_eq!((record.ledger.accepted, record.ledger.delivered), (Some(80), Some(80)));
    assert!(record.workload.message_bytes > 4_096, "the header is added to the body: {:?}", record.workload);
    assert!(fs::read_to_string(out.path().join("table.txt")).unwrap().contains("extrapolated"));
    let left = fs::read_dir(out.path()).unwrap().filter(|file| file.as_ref().unwrap().path().extension().is_some());
    assert_eq!(left.count(), 2, "the message is removed, table.txt and comparison.json stay");
}

#[test]
fn each_size_is_a_row() {
    let out = tempfile::tempdir().unwrap();
    let words = ["sizes", "--messages", "40", "--warm-up", "0s", "--duration", "60s", "--body-sizes", "2,256,64k"];
    let ended = profile(&words, out.path());
    expect_measured(&ended);
    let sizes: Vec<String> = rows(&ended, 0).into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(sizes, ["2 B", "256 B", "64 KiB"]);
}

#[test]
fn a_server_that_is_running_is_profiled_and_what_it_rejects_is_no_pass() {
    let sink = Sink::start(&[]);
    let out = tempfile::tempdir().unwrap();
    let server = sink.smtp.to_string();
    let words = ["kotlin-profile", server.as_str(), "--to", "ann@a.example", "--messages", "40"];
    expect_measured(&profile(&words, out.path()));
    assert_eq!(record(out.path(), "round-1-4096").workload.rcpt, "ann@a.example");
    let ended = profile(&[&words[..], &["--threshold", "accepted.p99 < 1us"]].concat(), out.path());
    assert!([Some(1), Some(3)].contains(&ended.code), "{ended:?}");
    drop(sink);
    let rejecting = Sink::start(&["--fault", "reject 1"]);
    let server = rejecting.smtp.to_string();
    let words = ["kotlin-profile", server.as_str(), "--messages", "20"];
    let ended = profile(&words, out.path());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.contains("NOT OK: 4 KiB: no message was accepted; first error: 554"), "{}", ended.out);
}

#[test]
fn a_large_message_has_a_row_and_a_ratio_for_each_cost() {
    let out = tempfile::tempdir().unwrap();
    let ended = profile(&["large-message", "--body-sizes", "100k", "--volume", "300k"], out.path());
    expect_measured(&ended);
    let costs: Vec<String> = rows(&ended, 0).into_iter().map(|row| row[1].clone()).collect();
    let own = ["plain", "chunking", "dots", "short-lines", "small-writes", "no-trace", "small-reads"];
    assert_eq!(costs[..7], own, "{}", ended.out);
    match peer("python3") {
        Some(_) => assert_eq!(costs[7..], ["smtplib"], "{}", ended.out),
        None => assert!(costs.len() == 7 && ended.out.contains("python3 is not installed"), "{}", ended.out),
    }
    assert_eq!(rows(&ended, 1).len(), costs.len() - 1, "{}", ended.out);
    let of = |cost: &str| record(out.path(), &format!("round-1-102400-{cost}"));
    assert!(own.iter().all(|cost| of(cost).ledger.accepted == Some(3)), "{}", ended.out);
    for cost in ["plain", "chunking", "dots", "short-lines", "small-writes"] {
        assert_eq!(of(cost).ledger.delivered, Some(3), "{cost}: each arrived as it was sent");
    }
    assert!(of("chunking").workload.chunking && !of("plain").workload.chunking);
    assert_eq!((of("plain").workload.sessions, of("plain").workload.reuse), (1, None));
}

#[test]
fn what_a_profile_cannot_do_is_refused_in_a_line() {
    for (words, why) in [
        (["kotlin-profile", "--body-sizes", "1"], "between 2 bytes and 256M"),
        (["large-message", "--costs", "magic"], "is not one of chunking, dots"),
        (["large-message", "--volume", "0"], "must be more than zero"),
        (["sizes", "smtps://127.0.0.1", "--quiet"], "SMTP without TLS"),
        (["sizes", "--sink-listen", "127.0.0.1:0"], "a server is required"),
    ] {
        let ended = mailrun(&[&["bench"], words.as_slice()].concat());
        assert_eq!((ended.code, ended.out.as_str(), ended.err.lines().count()), (Some(2), "", 1), "{ended:?}");
        assert!(ended.err.contains(why), "{why}: {ended:?}");
    }
}
