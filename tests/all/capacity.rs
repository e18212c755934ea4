//! `mailrun capacity`: trials of the bench find what a limited server takes, and lost mail, overload and Ctrl-C have their
//! own endings.
use crate::party::{Ended, MAILRUN, Process, Sink, mailrun, skip, wait_until};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A search that takes seconds: trials of 200 ms, five for each load.
const SHORT: [&str; 6] = ["--quick", "--trial", "200ms", "--confirm", "200ms", "--reuse"];

fn capacity(words: &[&str], out: &Path) -> (Ended, Value) {
    let ended = mailrun(&[&["capacity"], words, &["--out", out.to_str().unwrap()]].concat());
    let json = fs::read_to_string(out.join("capacity.json")).unwrap_or_else(|_| panic!("{ended:?}"));
    (ended, serde_json::from_str(&json).unwrap())
}

#[test]
fn a_server_with_a_limit_reads_that_limit() {
    let place = tempfile::tempdir().unwrap();
    let sink = Sink::start(&["--fault", "mail: limit 400/s burst 40"]);
    let server = sink.address();
    let words = [&[server.as_str(), "--goal", "rejected <= 2%", "--peak", "600/s", "--json", "-"], &SHORT[..]].concat();
    let (ended, written) = capacity(&words, place.path());
    let result: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&result, &result["format"]), (&written, &"mailrun-capacity/1".into()));
    assert!(!result["trials"].as_array().unwrap().is_empty(), "{result}");
    if ended.code == Some(3) || result["goals"][0]["finding"] != "found" {
        // A machine that is busy with other tests cannot always offer the rate.
        return skip("mailrun capacity", &format!("{}", result["capacity"]["verdict"]));
    }
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let rate = result["capacity"]["rate_per_s"].as_f64().unwrap();
    // Without the limit it is thousands. A machine that stands still now and then makes bursts, of which some are refused.
    assert!((100.0..=800.0).contains(&rate), "{rate}: {result}");
    let plan = &result["plan"];
    assert!((plan["stable_per_s"].as_f64().unwrap() - rate * 0.6).abs() < 0.01, "{plan}");
    assert!(plan["instances"].as_u64().unwrap() >= 1, "{plan}");
    let text = fs::read_to_string(place.path().join("capacity.txt")).unwrap();
    assert!(text.contains("rejected <= 2%") && text.contains("good  bad  void") && text.contains("Plan: "), "{text}");
    assert!(text.lines().last().unwrap().starts_with("CAPACITY  "), "{text}");
}

#[test]
fn a_goal_that_is_missed_at_the_lowest_rate_fails() {
    let place = tempfile::tempdir().unwrap();
    let sink = Sink::start(&["--reject", "100%"]);
    let server = sink.address();
    let words = [&[server.as_str(), "--min-rate", "500/s", "--max-rate", "800/s"], &SHORT[..]].concat();
    let (ended, result) = capacity(&words, place.path());
    if ended.code == Some(3) {
        // A machine that is busy with other tests cannot always offer the rate.
        return skip("mailrun capacity", &format!("{}", result["capacity"]["verdict"]));
    }
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.ends_with("FAIL  Missed at 500/s: accepted.within(60s) >= 100%\n"), "{ended:?}");
    assert_eq!(
        (&result["capacity"]["rate_per_s"], &result["goals"][0]["finding"]),
        (&Value::Null, &"lowest_rate_missed".into())
    );
}

#[test]
fn changed_mail_ends_the_search() {
    let place = tempfile::tempdir().unwrap();
    let sink = Sink::start(&["--corrupt", "20%"]);
    let server = sink.address();
    let words = [&[server.as_str(), "--sink", sink.url(), "--goal", "delivered.p99 < 1s"], &SHORT[..]].concat();
    let (ended, result) = capacity(&words, place.path());
    assert_eq!((ended.code, result["trials"].as_array().map(Vec::len)), (Some(1), Some(1)), "{ended:?}");
    let verdict = ended.out.lines().last().unwrap();
    assert!(verdict.starts_with("FAIL  Corrupt: "), "{ended:?}");
}

#[test]
fn ctrl_c_prints_what_is_known() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let running = Process::start(MAILRUN, &["capacity", "--trial", "500ms", "--out", out.to_str().unwrap()]);
    wait_until("the second trial", || out.join("trial-002").is_dir().then_some(()));
    running.interrupt_group();
    let ended = running.finish();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(ended.out.lines().last().unwrap().starts_with("Interrupted"), "{ended:?}");
    assert!(ended.out.contains("flat out (closed loop): "), "{ended:?}");
    let result: Value = serde_json::from_str(&fs::read_to_string(out.join("capacity.json")).unwrap()).unwrap();
    assert_eq!(result["capacity"]["ending"], "stopped", "{result}");
}

#[test]
fn what_a_search_cannot_have_is_refused_in_one_line() {
    for (words, said) in [
        (vec!["--rate", "100/s"], "--rate has no effect on a search"),
        (vec!["--duration", "5s"], "--duration has no effect on a search"),
        (vec!["--goal", "delivered.rate > 5/s"], "a goal is a percentile, max or within()"),
        (vec!["127.0.0.1:1", "--goal", "delivered.p99 < 1s"], "nobody sees deliveries"),
        (vec!["--rfc2544"], "--max-rate"),
        (vec!["--min-rate", "50/s", "--max-rate", "50/s"], "--min-rate must be below --max-rate"),
        (vec!["--quick", "--rfc2544", "--max-rate", "9/s"], "cannot be used"),
        (vec!["--peak", "1/s", "--safety", "0"], "--safety must be above zero"),
    ] {
        let ended = mailrun(&[&["capacity"], &words[..]].concat());
        assert!(ended.code == Some(2) && ended.out.is_empty(), "{words:?}: {ended:?}");
        assert!(ended.err.lines().count() == 1 && ended.err.contains(said), "{words:?}: {ended:?}");
    }
}
