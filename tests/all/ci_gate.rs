//! A CI gate as users write it: a script under `sh -eu` that runs a bench and releases only if the bench passes.
//! The modules `verdict`, `thresholds`, `endings` and `mades` test which runs pass. The crates `measurement` and
//! `mades` test the same on records alone.
use crate::party::{Ended, MAILRUN, Process, Sink, low_port, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

/// The script of a CI job. Its first argument is mailrun, and the others are mailrun's arguments.
const SCRIPT: &str = "#!/bin/sh
mailrun=$1
shift
\"$mailrun\" \"$@\"
echo the build is released
";
const RELEASED: &str = "the build is released";

/// Thresholds that a healthy server meets on any machine.
const EASY: [&str; 8] = [
    "--threshold",
    "accepted.p99 < 30s",
    "--threshold",
    "accepted.rate > 1/s",
    "--threshold",
    "rejected <= 0.1%",
    "--threshold",
    "delivered.within(60s) >= 100%",
];

struct Job {
    process: Process,
    place: TempDir,
}

impl Job {
    /// Starts `mailrun bench --out DIR WORDS…` within the script.
    fn start(words: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let script = place.path().join("gate.sh");
        fs::write(&script, SCRIPT).unwrap();
        let out = place.path().join("out");
        let own = ["-eu", script.to_str().unwrap(), MAILRUN, "bench", "--out", out.to_str().unwrap()];
        Self { process: Process::start("sh", &[&own, words].concat()), place }
    }

    /// Sends SIGTERM to mailrun alone, as `docker stop` or a cancelled CI job does.
    fn terminate_child(&self) {
        wait_until("the load to begin", || {
            let said = fs::read_to_string(self.place.path().join("out/source.stdout")).unwrap_or_default();
            let mut events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            events.find(|event| event["accepted"].as_u64() > Some(0))
        });
        self.process.signal_child("bench", Signal::TERM);
    }

    fn finish(self) -> Ended {
        self.process.finish()
    }
}

fn job(words: &[&str]) -> Ended {
    Job::start(words).finish()
}

fn assert_open(ended: &Ended) {
    assert!(ended.code == Some(0) && ended.out.contains("PASS ") && ended.out.contains(RELEASED), "{ended:?}");
}

/// Asserts that the script did not release, and that it ended with the bench's exit status and printed its reason.
fn assert_shut(ended: &Ended, code: i32, reason: &str) {
    let said = [ended.out.as_str(), &ended.err].concat().split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(ended.code, Some(code), "{reason}: {said}");
    assert!(said.contains(reason) && !said.contains(RELEASED), "{reason}: {said}");
}

#[test]
fn a_server_in_good_health_passes() {
    let sink = Sink::start(&[]);
    let words = [&sink.address(), "--sink", sink.url(), "--messages", "300", "--sessions", "5"];
    assert_open(&job(&words));
    assert_open(&job(&[words.as_slice(), &EASY].concat()));
}

#[test]
fn the_gate_is_shut_with_the_status_of_the_bench() {
    let sink = Sink::start(&["--fault", "rcpt: hard reject 5%"]);
    let to = sink.address();
    let words = [to.as_str(), "--messages", "200", "--sessions", "5"];
    assert_shut(&job(&words), 1, "FAIL The server rejected ");
    let nobody = format!("127.0.0.1:{}", low_port());
    assert_shut(&job(&[&nobody, "--messages", "50"]), 2, "Connection refused");
    let unseen = ["--threshold", "rejected <= 50%", "--threshold", "delivered.p99 < 1m"];
    assert_shut(&job(&[words.as_slice(), &unseen].concat()), 3, "no sink watched the far end");
    let running = Job::start(&[to.as_str(), "--duration", "60s", "--sessions", "2"]);
    running.terminate_child();
    assert_shut(&running.finish(), 130, "The run was interrupted before its end");
}
