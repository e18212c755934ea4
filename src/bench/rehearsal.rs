//! Runs of the bench with a shell script for a source, a relay and a sink: what the bench itself does, without any mail.
use super::plan::{BenchOptions, Preflight, Target, Tracing};
use super::relays::{Contestant, Durability};
use super::{BenchOutcome, run_with};
use crate::party::Live;
use crate::report::sample;
use anyhow::Result;
use journey::ledger::Ledger;
use journey::record::{LedgerRow, Record, Role, StageRow, Workload};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Units that the script's source says were accepted.
const UNITS: u64 = 1_000;

/// Copies prepared results to where it is told to write, says what a party says, and ends as told.
const SCRIPT: &str = r#"#!/bin/sh
here=$(dirname "$0")
role=$1
while [ $# -gt 1 ]; do
  case $1 in --json) json=$2 ;; --ledger) ledger=$2 ;; --to) to=$2 ;; esac
  shift
done
finish() { cp "$here/$role.json" "$json"; cp "$here/$role.ledger" "$ledger"; echo '{"event":"done"}'; exit 0; }
. "$here/$role.sh"
"#;

const GOOD_SINK: &str = r#"trap finish TERM
echo '{"event":"listening","smtp":["127.0.0.1:40001"],"http":null}'
echo '{"event":"progress","elapsed_s":1,"delivered":1000}'
while :; do sleep 0.02; done
"#;

const GOOD_SOURCE: &str = r#"echo '{"event":"progress","elapsed_s":1,"accepted":1000}'
finish
"#;

/// Has done half of its work itself and the other half by a child that has ended; keeps a file.
const GOOD_RELAY: &str = r#"trap 'exit 0' TERM
mkdir -p "$here/results/relay.spool"
i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done
(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done)
echo '{"event":"listening","smtp":["127.0.0.1:40002"],"http":null}'
while :; do sleep 0.05; done
"#;

/// Options for a run that nobody sees.
pub(super) fn options() -> BenchOptions {
    BenchOptions {
        name: "rehearsal".to_owned(),
        out: None,
        target: Target::OwnSink,
        workload: Workload { messages: Some(UNITS), ..Workload::default() },
        source_options: Vec::new(),
        sink_options: Vec::new(),
        tracing: Tracing::Off,
        trusts_own_sink: false,
        thresholds: Vec::new(),
        preflight: Preflight::On,
        live: Live::Off,
        command: vec!["mailrun".to_owned(), "bench".to_owned()],
    }
}

/// A ledger with sequence numbers 0 to `units`.
pub(super) fn ledger(units: u64) -> Ledger {
    let mut ledger = Ledger::default();
    for sequence in 0..units {
        ledger.mark(sequence, 0);
    }
    ledger
}

/// The same as a file.
pub(super) fn ledger_bytes(units: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    ledger(units).write_to(&mut bytes).expect("a vector takes all");
    bytes
}

struct Rehearsal {
    place: TempDir,
}

impl Rehearsal {
    /// `source` and `sink` are the rest of the script; of the accepted units `delivered` arrive.
    fn new(source: &str, sink: &str, delivered: u64) -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let write = |name: &str, bytes: &[u8]| fs::write(place.path().join(name), bytes).expect("written");
        write("mailrun", SCRIPT.as_bytes());
        write("source.sh", source.as_bytes());
        write("sink.sh", sink.as_bytes());
        write("source.ledger", &ledger_bytes(UNITS));
        write("sink.ledger", &ledger_bytes(delivered));
        write("source.json", &serde_json::to_vec(&source_record()).expect("JSON"));
        write("sink.json", &serde_json::to_vec(&sink_record(delivered)).expect("JSON"));
        let script = place.path().join("mailrun");
        fs::set_permissions(script, fs::Permissions::from_mode(0o755)).expect("made executable");
        Self { place }
    }

    /// The same with a relay between.
    fn relayed(source: &str, relay: &str, delivered: u64) -> Self {
        let rehearsal = Self::new(source, GOOD_SINK, delivered);
        fs::write(rehearsal.place.path().join("relay.sh"), relay).expect("written");
        rehearsal
    }

    fn results(&self) -> PathBuf {
        self.place.path().join("results")
    }

    fn run(&self) -> Result<BenchOutcome> {
        let options = BenchOptions { out: Some(self.results()), ..options() };
        run_with(&self.place.path().join("mailrun"), &options)
    }

    fn run_relayed(&self) -> Result<BenchOutcome> {
        let target = Target::Relay(Contestant::Mailrun(Durability::Sync));
        let options = BenchOptions { out: Some(self.results()), target, ..options() };
        run_with(&self.place.path().join("mailrun"), &options)
    }
}

fn source_record() -> Record {
    let mut record = sample::held();
    record.parties.retain(|party| party.role == Role::Source);
    record.stages = record.stages.into_iter().take(2).map(|row| StageRow { count: UNITS, ..row }).collect();
    record.ledger = LedgerRow {
        created: Some(UNITS),
        accepted: Some(UNITS),
        rejected: Some(0),
        failed: Some(0),
        in_flight: Some(UNITS),
        ..LedgerRow::default()
    };
    record
}

fn sink_record(delivered: u64) -> Record {
    let mut record = sample::sink_alone();
    record.stages[0].count = delivered;
    record.ledger.delivered = Some(delivered);
    record
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn a_run_is_folded_written_and_reported() {
    let rehearsal = Rehearsal::new(GOOD_SOURCE, GOOD_SINK, UNITS);
    let outcome = rehearsal.run().expect("it runs");
    let record = &outcome.record;
    assert!(record.verdict.closed, "{:?}", record.verdict);
    assert_eq!((record.ledger.delivered, record.ledger.lost), (Some(UNITS), Some(0)));
    assert_eq!(record.parties.len(), 2);
    assert!(record.parties.iter().all(|party| party.user_s.is_some() && party.command.len() > 5));
    assert_eq!(outcome.directory, rehearsal.results());
    let written: Record = serde_json::from_str(&read(&rehearsal.results().join("run.json"))).expect("a record");
    assert_eq!(&written, record);
    assert!(read(&rehearsal.results().join("report.md")).contains("**PASS**"));
    assert!(read(&rehearsal.results().join("source.stdout")).contains("done"));
    assert!(!rehearsal.results().join("sink.ledger").exists(), "a closed account keeps no ledgers");
}

#[test]
fn what_the_sink_lacks_is_lost() {
    let sink = GOOD_SINK.replace("\"delivered\":1000", "\"delivered\":990");
    let outcome = Rehearsal::new(GOOD_SOURCE, &sink, 990).run().expect("it runs");
    assert!(!outcome.record.verdict.closed);
    assert_eq!(outcome.record.ledger.lost, Some(10));
    assert!(outcome.record.verdict.reasons.iter().any(|reason| reason.starts_with("Lost: 10 of 1,000 ")));
}

#[test]
fn a_sink_that_cannot_start_says_why() {
    let sink = "echo 'mailrun: cannot listen on 127.0.0.1:25: permission denied' >&2; exit 2";
    let error = Rehearsal::new(GOOD_SOURCE, sink, 0).run().expect_err("it cannot");
    assert_eq!(error.to_string(), "the sink could not run: cannot listen on 127.0.0.1:25: permission denied");
}

#[test]
fn a_source_that_cannot_run_says_why() {
    let source = "echo 'mailrun: nothing listens on 127.0.0.1:40001' >&2; exit 2";
    let error = Rehearsal::new(source, GOOD_SINK, 0).run().expect_err("it cannot");
    assert_eq!(error.to_string(), "the source could not run: nothing listens on 127.0.0.1:40001");
}

#[test]
fn a_sink_that_dies_ends_the_run() {
    let sink = "echo '{\"event\":\"listening\",\"smtp\":[\"127.0.0.1:1\"],\"http\":null}'; sleep 0.2; kill -9 $$";
    let error = Rehearsal::new("sleep 600", sink, 0).run().expect_err("it cannot go on").to_string();
    assert!(error.starts_with("the sink died (signal: 9"), "{error}");
}

#[test]
fn a_party_without_results_is_an_error() {
    let error = Rehearsal::new("exit 0", GOOD_SINK, 0).run().expect_err("nothing was written").to_string();
    assert!(error.contains("source.json"), "{error}");
}

#[test]
fn a_relay_is_a_party_with_all_that_its_children_used() {
    // The source says whom it was told to send to.
    let source = GOOD_SOURCE.replace("finish", "echo \"$to\" > \"$here/target\"; finish");
    let rehearsal = Rehearsal::relayed(&source, GOOD_RELAY, UNITS);
    let outcome = rehearsal.run_relayed().expect("it runs");
    let record = &outcome.record;
    assert!(record.verdict.closed, "{:?}", record.verdict);
    let roles: Vec<Role> = record.parties.iter().map(|party| party.role).collect();
    assert_eq!(roles, [Role::Source, Role::Relay, Role::Sink]);
    let relay = &record.parties[1];
    assert_eq!((relay.name.as_str(), relay.durability.as_str()), ("mailrun", "sync"));
    let words = relay.command.join(" ");
    assert!(words.contains("relay --listen 127.0.0.1:0 --to 127.0.0.1:40001 --spool "), "{words}");
    assert!(relay.user_s.zip(relay.sys_s).is_some_and(|(user, sys)| user + sys > 0.0), "{relay:?}");
    assert_eq!(read(&rehearsal.place.path().join("target")), "127.0.0.1:40002\n");
    assert!(!rehearsal.results().join("relay.spool").exists(), "a closed account needs no spool");
}

#[test]
fn a_relay_that_dies_ends_the_run() {
    let relay = "echo '{\"event\":\"listening\",\"smtp\":[\"127.0.0.1:1\"],\"http\":null}'; sleep 0.2; kill -9 $$";
    let error = Rehearsal::relayed("sleep 600", relay, 0).run_relayed().expect_err("it cannot go on").to_string();
    assert!(error.starts_with("the relay died (signal: 9"), "{error}");
}

#[test]
fn a_relay_that_cannot_start_says_why() {
    let relay = "echo 'mailrun: another process has the spool' >&2; exit 2";
    let error = Rehearsal::relayed(GOOD_SOURCE, relay, 0).run_relayed().expect_err("it cannot").to_string();
    assert_eq!(error, "the relay could not run: another process has the spool");
}

#[test]
fn a_relay_that_knows_no_better_end_than_the_signals_has_stopped() {
    let relay = GOOD_RELAY.replace("trap 'exit 0' TERM\n", "");
    assert!(Rehearsal::relayed(GOOD_SOURCE, &relay, UNITS).run_relayed().is_ok());
    let fails = GOOD_RELAY.replace("exit 0", "echo \"mailrun: disk full\" >&2; exit 2");
    let error = Rehearsal::relayed(GOOD_SOURCE, &fails, UNITS).run_relayed().expect_err("it failed").to_string();
    assert_eq!(error, "the relay could not run: disk full");
}
