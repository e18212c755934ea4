//! Tests of the bench with a shell script instead of mailrun's source, relay and sink. They check what the bench itself
//! does, and no mail is sent.
use super::plan::{BenchOptions, BenchPreflight, BenchTarget};
use super::relay::{Relay, RelayDurability};
use super::relay_keeper::RelayKeeper;
use super::{BenchOutcome, run_in_series, run_with};
use anyhow::Result;
use mailrun_measurement::ledger::Ledger;
use mailrun_measurement::record::{
    Cause, Death, Ending, EventKind, LedgerRow, Outcome, Record, Role, StageRow, ThresholdRow, Workload,
};
use mailrun_measurement::threshold::Fate;
use mailrun_process::live::LiveMode;
use mailrun_report::sample;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Number of messages that the script reports as accepted when it acts as the source.
const UNITS: u64 = 1_000;

/// Script that the bench starts as source, relay and sink. It runs the commands that the test has written for its role
/// into `ROLE.sh`. These commands can call the function `finish`, which copies prepared results to the paths in the
/// options, and exits.
const SCRIPT: &str = r#"#!/bin/sh
here=$(dirname "$0")
role=$1
options=
[ "$2" = --options ] && read -r options
value() { echo "$options" | sed -n "s/.*\"$1\":\[\"\([^\"]*\)\".*/\1/p"; }
json=$(value json) ledger=$(value ledger) to=$(value arguments)
while [ $# -gt 1 ]; do
  case $1 in --to) to=$2 ;; esac
  shift
done
finish() { cp "$here/$role.json" "$json"; cp "$here/$role.ledger" "$ledger"; echo '{"event":"done"}'; exit 0; }
. "$here/$role.sh"
"#;

const GOOD_SINK: &str = r#"trap finish TERM
echo '{"event":"listening","smtp":["127.0.0.1:40001"],"http":null}'
echo '{"event":"progress","elapsed_s":1,"delivered":1000,"settled":1000}'
while :; do sleep 0.02; done
"#;

const GOOD_SOURCE: &str = r#"echo '{"event":"progress","elapsed_s":1,"accepted":1000}'
finish
"#;

/// A relay that does half of its work itself and the other half in a child process that has ended, because the bench
/// must count the CPU time of both. It leaves a directory behind as its spool, which the bench must delete.
const GOOD_RELAY: &str = r#"trap 'exit 0' TERM
mkdir -p "$here/results/relay.spool"
i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done
(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done)
echo '{"event":"listening","smtp":["127.0.0.1:40002"],"http":null}'
while :; do sleep 0.2; done
"#;

/// Sets one of a record's counts of units (messages for one recipient). For example, `Fate::Lost` sets the number of
/// lost units.
pub(super) fn set_fate(record: &mut Record, fate: Fate, units: u64) {
    let ledger = &mut record.ledger;
    let field = match fate {
        Fate::Lost => &mut ledger.lost,
        Fate::NotDelivered => &mut ledger.not_delivered,
        Fate::Duplicates => &mut ledger.duplicates,
        Fate::Corrupt => &mut ledger.corrupt,
        Fate::Rejected => &mut ledger.rejected,
        Fate::Failed => &mut ledger.failed,
        Fate::InDoubt => &mut ledger.in_doubt,
        Fate::Bounced => &mut ledger.bounced,
        Fate::Rewritten => &mut ledger.rewritten,
        Fate::Copied => &mut ledger.copied,
    };
    *field = Some(units);
}

/// Replaces all thresholds in a record with a single one, which the run has met.
pub(super) fn set_threshold(record: &mut Record, expression: &str) {
    record.thresholds =
        vec![ThresholdRow { expression: expression.to_owned(), passed: true, ..ThresholdRow::default() }];
}

/// Options for a run with `UNITS` messages and without progress output.
pub(super) fn options() -> BenchOptions {
    BenchOptions {
        name: "rehearsal".to_owned(),
        workload: Workload { messages: Some(UNITS), ..Workload::default() },
        preflight: BenchPreflight::On,
        live: LiveMode::Off,
        command: vec!["mailrun".to_owned(), "bench".to_owned()],
        ..BenchOptions::default()
    }
}

/// Returns a ledger with the sequence numbers 0 to `units` - 1.
pub(super) fn ledger(units: u64) -> Ledger {
    let mut ledger = Ledger::default();
    for sequence in 0..units {
        ledger.mark(sequence, 0);
    }
    ledger
}

/// Returns the contents of a ledger file with the sequence numbers 0 to `units` - 1.
pub(super) fn ledger_bytes(units: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    ledger(units).write_to(&mut bytes).expect("a vector takes all");
    bytes
}

/// Starts an HTTP server that answers each request with the status and the body that `answer` returns for its path.
pub(super) fn serve(answer: impl Fn(&str) -> (u16, Vec<u8>) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let request = lines.next().unwrap_or_default();
            let _ = lines.by_ref().find(String::is_empty);
            let (status, body) = answer(request.split(' ').nth(1).unwrap_or_default());
            let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = (&stream).write_all(head.as_bytes()).and_then(|()| (&stream).write_all(&body));
        }
    });
    address
}

struct BenchFixture {
    place: TempDir,
}

impl BenchFixture {
    /// Writes the script and the prepared results into a new directory. `source` and `sink` are the shell commands that
    /// the script runs when it acts as the source or as the sink. In the sink's results, the first `delivered` units
    /// have arrived.
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

    /// Does the same as `new`, with a relay between the source and the sink.
    fn relayed(source: &str, relay: &str, delivered: u64) -> Self {
        let fixture = Self::new(source, GOOD_SINK, delivered);
        fs::write(fixture.place.path().join("relay.sh"), relay).expect("written");
        fixture
    }

    fn results(&self) -> PathBuf {
        self.place.path().join("results")
    }

    fn run(&self) -> Result<BenchOutcome> {
        let options = BenchOptions { out: Some(self.results()), ..options() };
        run_with(&self.place.path().join("mailrun"), &options)
    }

    fn run_relayed(&self) -> Result<BenchOutcome> {
        let target = BenchTarget::Relay(Relay::Mailrun(RelayDurability::Sync));
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
    let fixture = BenchFixture::new(GOOD_SOURCE, GOOD_SINK, UNITS);
    let outcome = fixture.run().expect("it runs");
    let record = &outcome.record;
    assert!(record.verdict.closed, "{:?}", record.verdict);
    assert_eq!((record.ledger.delivered, record.ledger.lost), (Some(UNITS), Some(0)));
    assert_eq!(record.parties.len(), 2);
    assert!(record.parties.iter().all(|party| party.user_s.is_some() && party.command.len() > 5));
    assert_eq!(outcome.directory, fixture.results());
    // Compare JSON texts instead of records, because parsing may change the last digit of a number.
    let written = read(&fixture.results().join("run.json"));
    assert_eq!(written, format!("{}\n", record.to_json().expect("JSON")));
    assert!(Record::from_json(written.as_bytes()).is_ok());
    assert!(read(&fixture.results().join("report.md")).contains("**PASS**"));
    assert!(read(&fixture.results().join("source.stdout")).contains("done"));
    assert!(!fixture.results().join("sink.ledger").exists(), "a closed account keeps no ledgers");
}

#[test]
fn what_the_sink_lacks_is_lost() {
    let sink = GOOD_SINK.replace(":1000", ":990");
    let outcome = BenchFixture::new(GOOD_SOURCE, &sink, 990).run().expect("it runs");
    assert!(!outcome.record.verdict.closed);
    assert_eq!(outcome.record.ledger.lost, Some(10));
    assert!(outcome.record.verdict.reasons.iter().any(|reason| reason.starts_with("Lost: 10 of 1,000 ")));
}

#[test]
fn a_sink_that_cannot_start_says_why() {
    let sink = "echo 'mailrun: cannot listen on 127.0.0.1:25: permission denied' >&2; exit 2";
    let error = BenchFixture::new(GOOD_SOURCE, sink, 0).run().expect_err("it cannot");
    assert_eq!(error.to_string(), "the sink could not run: cannot listen on 127.0.0.1:25: permission denied");
}

#[test]
fn a_source_that_cannot_run_says_why() {
    let source = "echo 'mailrun: nothing listens on 127.0.0.1:40001' >&2; exit 2";
    let error = BenchFixture::new(source, GOOD_SINK, 0).run().expect_err("it cannot");
    assert_eq!(error.to_string(), "nothing listens on 127.0.0.1:40001");
}

/// A source that has sent its messages, but keeps running until it is asked to stop.
const STOPPED_SOURCE: &str = r#"trap finish TERM
touch "$here/begun"
echo '{"event":"progress","elapsed_s":1,"created":1000,"accepted":1000,"recipients":1000}'
while :; do sleep 0.02; done
"#;

/// A party that says that it listens, and kills itself with SIGKILL as soon as the source has begun.
const DYING: &str = r#"echo '{"event":"listening","smtp":["127.0.0.1:1"],"http":null}'
until [ -e "$here/begun" ]; do sleep 0.02; done
kill -9 $$
"#;

fn death(record: &Record, role: Role) -> &Death {
    let party = record.parties.iter().find(|party| party.role == role).expect("it took part");
    party.died.as_ref().expect("it died")
}

/// Asserts that the run failed because this process died in the way `how`, for example by a signal, and that the death
/// is the first cause of the verdict.
fn assert_failed_by(record: &Record, role: Role, how: &str) {
    assert_eq!(death(record, role).how, how);
    assert_eq!((record.verdict.outcome, record.verdict.causes[0]), (Some(Outcome::Fail), Cause::Died));
    let name = if role == Role::Relay { "relay" } else { "sink" };
    assert!(record.verdict.why.starts_with(&format!("The {name} died at ")), "{}", record.verdict.why);
    assert!(record.verdict.why.contains(how), "{}", record.verdict.why);
}

#[test]
fn a_sink_that_dies_fails_the_run_and_the_sources_figures_stay() {
    let fixture = BenchFixture::new(STOPPED_SOURCE, DYING, 0);
    let record = fixture.run().expect("there is a report").record;
    assert_failed_by(&record, Role::Sink, "signal 9 (SIGKILL)");
    assert_eq!((record.ledger.accepted, record.ledger.delivered), (Some(UNITS), None));
    assert_eq!(record.ending, Some(Ending::ServerEnded));
    assert!(read(&fixture.results().join("report.md")).contains("The sink died at "));
}

#[test]
fn a_sink_that_dies_behind_a_relay_fails_the_run_and_the_sources_figures_stay() {
    let fixture = BenchFixture::relayed(STOPPED_SOURCE, GOOD_RELAY, 0);
    // The sink reports an HTTP address, as every sink behind a relay does, but nobody listens there any more.
    let sink = DYING.replace("\"http\":null", "\"http\":\"127.0.0.1:1\"");
    fs::write(fixture.place.path().join("sink.sh"), sink).expect("written");
    // Let the server reject one message. The bench then does not rely on the sink's count, but asks the sink which
    // messages it has.
    let mut source = source_record();
    source.ledger.created = Some(UNITS + 1);
    source.ledger.rejected = Some(1);
    fs::write(fixture.place.path().join("source.json"), serde_json::to_vec(&source).expect("JSON")).expect("written");
    let record = fixture.run_relayed().expect("there is a report").record;
    assert_failed_by(&record, Role::Sink, "signal 9 (SIGKILL)");
    assert_eq!((record.ledger.accepted, record.ledger.delivered), (Some(UNITS), None));
}

#[test]
fn a_second_sink_that_is_gone_at_the_end_leaves_the_report() {
    // The second sink answers `/status` before the load, but no later request for its results.
    let second = serve(|path| if path == "/status" { (200, b"{}".to_vec()) } else { (500, Vec::new()) });
    let fixture = BenchFixture::new(GOOD_SOURCE, GOOD_SINK, UNITS);
    let options = BenchOptions { out: Some(fixture.results()), bounces_to: Some(second.to_string()), ..options() };
    let outcome = run_with(&fixture.place.path().join("mailrun"), &options).expect("there is a report");
    let record = outcome.record;
    assert_eq!((record.ledger.accepted, record.ledger.delivered), (Some(UNITS), Some(UNITS)));
    assert_eq!((record.verdict.outcome, record.ending), (Some(Outcome::Inconclusive), Some(Ending::SinkEnded)));
}

#[test]
fn a_source_that_dies_leaves_what_it_had_said() {
    let source =
        STOPPED_SOURCE.replace("while :; do sleep 0.02; done", "echo 'out of memory' >&2; sleep 0.2; kill -9 $$");
    let record = BenchFixture::new(&source, GOOD_SINK, UNITS).run().expect("there is a report").record;
    assert_eq!(death(&record, Role::Source).said, "out of memory");
    let died = record.events.iter().find(|event| event.kind == EventKind::Died).expect("an event");
    assert!((0.0..100.0).contains(&died.at_s), "its time counts from the begin of the run: {died:?}");
    let reason = &record.verdict.why;
    assert!(
        reason.starts_with("The source died at ") && reason.ends_with("(SIGKILL); its last message: out of memory."),
        "{reason}"
    );
    assert_eq!((record.ledger.accepted, record.ledger.delivered), (Some(UNITS), Some(UNITS)));
    assert_eq!(record.verdict.outcome, Some(Outcome::Fail));
}

#[test]
fn a_record_that_could_not_be_written_is_reported_all_the_same() {
    let record = source_record().to_json().expect("JSON").replace('\'', "");
    let event = serde_json::json!({ "event": "unwritten", "record": record });
    let source = format!("printf '%s\\n' '{event}'; echo 'mailrun: cannot write source.json: disk full' >&2; exit 2");
    let outcome = BenchFixture::new(&source, GOOD_SINK, UNITS).run().expect("there is a report");
    let error = outcome.unwritten.expect("a file is missing").to_string();
    assert_eq!(error, "cannot write source.json: disk full");
    let record = outcome.record;
    assert_eq!((record.ledger.accepted, record.ledger.delivered), (Some(UNITS), None));
    assert!(record.parties.iter().all(|party| party.died.is_none()), "{:?}", record.parties);
}

#[test]
fn a_file_of_the_run_that_cannot_be_written_is_told_beside_the_report() {
    let source = GOOD_SOURCE.replace("finish", "mkdir \"$here/results/run.json\"; finish");
    let fixture = BenchFixture::new(&source, GOOD_SINK, UNITS);
    let outcome = fixture.run().expect("there is a report");
    let error = outcome.unwritten.expect("a file is missing").to_string();
    assert_eq!(error, format!("cannot write {}: Is a directory", fixture.results().join("run.json").display()));
    assert!(outcome.record.verdict.closed, "{:?}", outcome.record.verdict);
}

#[test]
fn a_party_without_results_is_an_error() {
    let error = BenchFixture::new("exit 0", GOOD_SINK, 0).run().expect_err("nothing was written").to_string();
    assert!(error.contains("source.json"), "{error}");
}

#[test]
fn a_relay_is_a_party_with_all_that_its_children_used() {
    // The source writes the address of the server to which it was told to send into the file `target`.
    let source = GOOD_SOURCE.replace("finish", "echo \"$to\" > \"$here/target\"; finish");
    let fixture = BenchFixture::relayed(&source, GOOD_RELAY, UNITS);
    let outcome = fixture.run_relayed().expect("it runs");
    let record = &outcome.record;
    assert!(record.verdict.closed, "{:?}", record.verdict);
    let roles: Vec<Role> = record.parties.iter().map(|party| party.role).collect();
    assert_eq!(roles, [Role::Source, Role::Relay, Role::Sink]);
    let relay = &record.parties[1];
    assert_eq!((relay.name.as_str(), relay.durability.as_str()), ("mailrun", "sync"));
    let words = relay.command.join(" ");
    assert!(words.contains("relay --listen 127.0.0.1:0 --to 127.0.0.1:40001 --spool "), "{words}");
    assert!(relay.user_s.zip(relay.sys_s).is_some_and(|(user, sys)| user + sys > 0.0), "{relay:?}");
    assert_eq!(read(&fixture.place.path().join("target")), "127.0.0.1:40002\n");
    assert!(!fixture.results().join("relay.spool").exists(), "a closed account needs no spool");
}

#[test]
fn a_relay_that_dies_fails_the_run_and_what_arrived_is_counted() {
    let record = BenchFixture::relayed(STOPPED_SOURCE, DYING, 400).run_relayed().expect("there is a report").record;
    assert_failed_by(&record, Role::Relay, "signal 9 (SIGKILL)");
    assert_eq!((record.ledger.accepted, record.ledger.delivered), (Some(UNITS), Some(400)));
    let at_s = death(&record, Role::Relay).at_s;
    assert!((0.0..100.0).contains(&at_s), "{at_s}");
}

#[test]
fn a_relay_that_cannot_start_says_why() {
    let relay = "echo 'mailrun: another process has the spool' >&2; exit 2";
    let error = BenchFixture::relayed(GOOD_SOURCE, relay, 0).run_relayed().expect_err("it cannot").to_string();
    assert_eq!(error, "the relay could not run: another process has the spool");
}

#[test]
fn a_relay_that_knows_no_better_end_than_the_signals_has_stopped() {
    let relay = GOOD_RELAY.replace("trap 'exit 0' TERM\n", "");
    let as_java = GOOD_RELAY.replace("exit 0", "exit 143");
    let as_postfix = GOOD_RELAY.replace("exit 0", "kill -ALRM $$");
    for relay in [relay, as_java, as_postfix] {
        let record = BenchFixture::relayed(GOOD_SOURCE, &relay, UNITS).run_relayed().expect("it runs").record;
        assert!(
            record.verdict.closed && record.parties.iter().all(|party| party.died.is_none()),
            "{:?}",
            record.parties
        );
    }
    let fails = GOOD_RELAY.replace("exit 0", "echo \"mailrun: disk full\" >&2; exit 2");
    let record = BenchFixture::relayed(GOOD_SOURCE, &fails, UNITS).run_relayed().expect("there is a report").record;
    assert_failed_by(&record, Role::Relay, "exit status 2");
    assert!(record.verdict.why.ends_with("its last message: disk full."), "{}", record.verdict.why);
}

/// A relay for several runs. It appends its process ID to the file `pids`, so that a test can count the relays that
/// were started. It exits with status 3 as soon as the test creates the file `die`.
const SERIES_RELAY: &str = r#"trap 'exit 0' TERM
echo $$ >> "$here/pids"
echo '{"event":"listening","smtp":["127.0.0.1:40002"],"http":null}'
while [ ! -e "$here/die" ]; do sleep 0.2; done
rm "$here/die"
exit 3
"#;

impl BenchFixture {
    fn run_in_series(&self, keeper: &mut RelayKeeper) -> BenchOutcome {
        let out = Some(self.results().join("run"));
        let target = BenchTarget::Relay(Relay::Mailrun(RelayDurability::Sync));
        let lost_after = Some(std::time::Duration::from_millis(300));
        let options = BenchOptions { out, target, lost_after, ..options() };
        run_in_series(&self.place.path().join("mailrun"), &options, keeper).expect("it runs")
    }

    /// Returns the process IDs of all relays that were started so far.
    fn relays(&self) -> Vec<u32> {
        let pids = fs::read_to_string(self.place.path().join("pids")).expect("noted");
        pids.lines().map(|pid| pid.parse().expect("a number")).collect()
    }
}

#[test]
fn runs_in_a_series_have_one_relay_and_figures_of_their_own() {
    let fixture = BenchFixture::relayed(GOOD_SOURCE, SERIES_RELAY, UNITS);
    let mut keeper = RelayKeeper::in_directory(&fixture.results());
    for _ in 0..3 {
        let outcome = fixture.run_in_series(&mut keeper);
        let relay = outcome.record.parties.iter().find(|party| party.role == Role::Relay).expect("a relay");
        assert!(relay.user_s.is_some() && relay.died.is_none(), "{relay:?}");
        assert_eq!(outcome.record.verdict.outcome, Some(Outcome::Pass), "{:?}", outcome.record.verdict);
    }
    assert_eq!(fixture.relays().len(), 1);
    assert!(is_alive(fixture.relays()[0]));
    keeper.finish(&options()).expect("it stops");
    assert!(!is_alive(fixture.relays()[0]) && keeper.remarks().is_empty(), "{:?}", keeper.remarks());
}

#[test]
fn a_relay_that_died_between_two_runs_is_named_and_started_anew() {
    let fixture = BenchFixture::relayed(GOOD_SOURCE, SERIES_RELAY, UNITS);
    let mut keeper = RelayKeeper::in_directory(&fixture.results());
    fixture.run_in_series(&mut keeper);
    let first = fixture.relays()[0];
    fs::write(fixture.place.path().join("die"), "").expect("written");
    while is_alive(first) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let outcome = fixture.run_in_series(&mut keeper);
    assert_eq!(outcome.record.verdict.outcome, Some(Outcome::Pass), "{:?}", outcome.record.verdict);
    assert_eq!(fixture.relays().len(), 2);
    let remark = "The server died between two trials (exit status 3: no output), and was started anew.";
    assert_eq!(keeper.remarks(), [remark]);
    drop(keeper);
    assert!(!is_alive(fixture.relays()[1]), "out of scope it is gone");
}

#[test]
fn a_relay_that_keeps_mail_is_not_the_next_runs() {
    let fixture = BenchFixture::relayed(GOOD_SOURCE, SERIES_RELAY, UNITS - 1);
    let sink = GOOD_SINK.replace(":1000", ":999");
    fs::write(fixture.place.path().join("sink.sh"), sink).expect("written");
    let mut keeper = RelayKeeper::in_directory(&fixture.results());
    fixture.run_in_series(&mut keeper);
    assert!(!is_alive(fixture.relays()[0]));
    fixture.run_in_series(&mut keeper);
    assert_eq!(fixture.relays().len(), 2);
    assert_eq!(keeper.remarks(), ["The server was started anew 2 times, after trials that left mail in its queue."]);
}

/// Returns true if the process is running. A process that has exited but was not waited for (state
/// Z) counts as dead.
fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}
