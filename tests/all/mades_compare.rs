//! `mailrun bench mades-compare` as a user runs it. The table has rows for mailrun and for go-mades-bench, losses are
//! detected, and a tool that hangs is named.
use crate::party::{MAILRUN, mailrun, peer, run};
use std::os::unix::fs::PermissionsExt as _;
use std::{fs, thread};

fn compare(words: &str) -> (Option<i32>, String) {
    let words: Vec<&str> = ["bench", "mades-compare"].into_iter().chain(words.split_whitespace()).collect();
    let ended = mailrun(&words);
    (ended.code, ended.out)
}

fn row<'t>(text: &'t str, tool: &str) -> Vec<&'t str> {
    let line = text.lines().find(|line| line.trim_start().starts_with(tool));
    line.unwrap_or_else(|| panic!("no row of {tool}: {text}")).split_whitespace().collect()
}

/// Reports whether the original, go-mades-bench, took part. It must take part if it is in PATH or in target/peers.
fn is_compared(text: &str) -> bool {
    let is_missing = text.contains("not installed: go-mades-bench.");
    assert!(!(is_missing && peer("go-mades-bench").is_some()), "it is installed: {text}");
    !is_missing
}

#[test]
fn both_are_timed_in_the_same_work() {
    thread::scope(|scope| {
        for mode in ["endpoint", "toolbox", "tracing", "amqp"] {
            scope.spawn(move || both_are_timed_in(mode));
        }
    });
}

fn both_are_timed_in(mode: &str) {
    let (code, text) =
        compare(&format!("--mode {mode} --messages 100 --rounds 1 --windows 4,defaults --payload-size 500"));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with(&format!("mades-compare: mode {mode} at the embedded ")), "{text}");
    let own = row(&text, "mailrun mades");
    assert_eq!(own[2], "4", "{text}");
    assert!(own[3].replace(',', "").parse::<f64>().is_ok_and(|rate| rate > 1.0), "{text}");
    assert!(own[4].replace(',', "").parse::<f64>().is_ok_and(|micros| micros > 1.0), "{text}");
    if is_compared(&text) {
        assert_eq!(row(&text, "go-mades-bench")[1], "4", "{text}");
        let ratios = text.split("mailrun against").nth(1).unwrap();
        let rows = ratios.lines().filter(|line| line.trim_start().starts_with("go-mades-bench "));
        let windows: Vec<&str> = rows.take(2).filter_map(|row| row.split_whitespace().nth(1)).collect();
        assert_eq!(windows, ["4", "defaults"], "{text}");
    }
}

#[test]
fn a_lost_message_is_found_by_one_and_ends_the_other_by_the_limit() {
    let words = "--mode endpoint --drop 0.05 --messages 300 --rounds 1 --windows 4 --max-time 40s";
    let (code, text) = compare(words);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("NOT OK: mailrun mades, window 4: ") && text.contains(": Lost: "), "{text}");
    if is_compared(&text) {
        let hung =
            "NOT OK: go-mades-bench, window 4: it did not end within 40.00 s and was killed: Received event stood at ";
        assert!(text.contains(hung), "{text}");
    }
}

/// With RabbitMQ, go-mades-bench prints its report and then waits forever for an answer to its detach. The report must
/// count nevertheless.
#[test]
fn a_tool_that_does_not_end_after_its_report_counts() {
    let place = tempfile::tempdir().unwrap();
    let tool = place.path().join("go-mades-bench");
    let report = "=== Statistics\nReceived in inbox : 2307.618 msgs/s  6.923 mb/s  100/100 msgs  duration: 87ms\n";
    fs::write(&tool, format!("#!/bin/sh\nprintf '{report}'\nexec sleep 600\n")).unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let script = "PATH=$1:$PATH; shift; exec \"$@\"";
    let directory = place.path().to_str().unwrap();
    let words = ["-c", script, "sh", directory, MAILRUN, "bench", "mades-compare"];
    let more = ["--messages", "100", "--rounds", "1", "--windows", "4"];
    let ended = run("/bin/sh", &[words.as_slice(), &more].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(row(&ended.out, "go-mades-bench")[2], "2,308", "{ended:?}");
    let note = "go-mades-bench did not end by itself after its report in 1 run, and was killed 5 s later.";
    assert!(ended.out.contains(note), "{ended:?}");
}
