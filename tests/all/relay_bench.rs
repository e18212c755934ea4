//! `mailrun bench` with a relay between source and sink: ours, a private Postfix, a command of the user's, one that was
//! running already; and the published contest of several.
use crate::party::{
    Bench, BenchRun, Ended, Process, Sink, bench_as_typed, fates, is_root, low_port, mailrun, peer, skip, stage,
    wait_until,
};
use journey::Stage;
use journey::record::{Party, Record, Role};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A relay that is none: it passes on what it hears, byte for byte, and the sink answers through it. What it is told
/// stands in its arguments.
const PIPE: &str = r#"import socket, sys, threading
host, port = sys.argv[1].split(":"); to = sys.argv[2].split(":")
open(sys.argv[3] + "/was-here", "w").close()
def pipe(a, b):
    try:
        while (data := a.recv(65536)): b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError: pass
server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((host, int(port))); server.listen(100)
while True:
    client, _ = server.accept()
    sink = socket.create_connection((to[0], int(to[1])))
    for pair in ((client, sink), (sink, client)):
        threading.Thread(target=pipe, args=pair, daemon=True).start()
"#;

fn relay(record: &Record) -> &Party {
    record.parties.iter().find(|party| party.role == Role::Relay).expect("a relay took part")
}

/// All went through the relay, each message once, and it is told with what it cost.
fn expect_relayed(run: &BenchRun, name: &str, durability: &str, messages: u64) -> Record {
    let record = run.record_of(0);
    assert_eq!(fates(&record.ledger), [messages, messages, 0, 0, 0]);
    assert!(record.verdict.closed, "{:?}", record.verdict);
    let roles: Vec<Role> = record.parties.iter().map(|party| party.role).collect();
    assert_eq!(roles, [Role::Source, Role::Relay, Role::Sink]);
    let party = relay(&record);
    assert_eq!((party.name.as_str(), party.durability.as_str()), (name, durability));
    assert!(stage(&record, Stage::Accepted).count == messages && stage(&record, Stage::Delivered).count == messages);
    let report = run.file("report.md");
    for word in ["## Relay", "drained", "per 1,000 messages", durability] {
        assert!(report.contains(word) && report.contains(name), "{word} in\n{report}");
    }
    assert!(!run.path().join("relay.spool").exists(), "what it kept is gone");
    record
}

fn expect_costs(party: &Party) {
    let cpu_s = party.user_s.unwrap() + party.sys_s.unwrap();
    assert!(cpu_s > 0.0 && party.max_rss_bytes.is_some_and(|bytes| bytes > 1 << 20), "{party:?}");
    assert!(party.write_bytes.is_some() && !party.command.is_empty(), "{party:?}");
}

#[test]
fn without_arguments_mail_goes_through_our_relay() {
    let run = bench_as_typed(&["--messages", "500", "--sessions", "10"]);
    let record = expect_relayed(&run, "mailrun", "sync", 500);
    let party = relay(&record);
    expect_costs(party);
    // Every message was on disk before it was answered.
    assert!(party.write_bytes.is_some_and(|bytes| bytes >= 500 * 400), "{party:?}");
    let delivered = stage(&record, Stage::Delivered).latency_ms.unwrap();
    assert!(delivered.min > 0.0 && run.ended.out.contains("flight"), "{delivered:?}");
}

#[test]
fn our_relay_may_promise_less_and_is_told_so() {
    let run = bench_as_typed(&["--relay", "mailrun:memory", "--messages", "200", "--sessions", "5"]);
    let record = expect_relayed(&run, "mailrun:memory", "memory", 200);
    let words = &relay(&record).command;
    assert!(words.windows(2).any(|pair| pair == ["--durability", "memory"]), "{words:?}");
    assert!(run.file("report.md").contains("survives nothing"));
}

#[test]
fn what_is_lost_behind_the_relay_is_found_out() {
    let words = ["--messages", "200", "--sessions", "5", "--drop", "0.1", "--seed", "3"];
    let run = bench_as_typed(&words);
    let record = run.record_of(1);
    let lost = record.ledger.lost.unwrap();
    assert!((1..100).contains(&lost) && !record.verdict.closed);
    assert_eq!(fates(&record.ledger), [200, 200 - lost, lost, 0, 0]);
    let said = record.verdict.reasons.iter().any(|reason| reason.contains("may still be with it"));
    assert!(said && run.path().join("relay.spool").exists(), "{:?}", record.verdict);
}

#[test]
fn what_a_source_agrees_on_with_its_server_needs_a_direct_way() {
    let run = bench_as_typed(&["--messages", "50", "--sessions", "5", "--tls", "starttls"]);
    let record = run.record_of(0);
    assert_eq!(fates(&record.ledger), [50, 50, 0, 0, 0]);
    assert_eq!(record.parties.len(), 2, "no relay is between");
}

/// Whether a private Postfix can be had.
fn postfix_is_there() -> bool {
    let is_there = peer("postfix").is_some();
    if is_there && !is_root() {
        skip("postfix", "only root may start one");
    }
    is_there && is_root()
}

/// The processes that have that path in their command line.
fn processes_with(path: &Path) -> usize {
    let path = path.to_str().unwrap();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(path)).count()
}

#[test]
fn a_private_postfix_is_set_up_measured_and_removed() {
    if !postfix_is_there() {
        return;
    }
    let run = bench_as_typed(&["--relay", "postfix", "--messages", "200", "--sessions", "20"]);
    let record = expect_relayed(&run, "postfix", "sync", 200);
    let party = relay(&record);
    expect_costs(party);
    // Its work is done by dozens of processes: what the master alone uses is a hundredth of that.
    assert!(party.user_s.unwrap() + party.sys_s.unwrap() > 0.05, "{party:?}");
    assert!(party.command[0].ends_with("/master"), "{:?}", party.command);
    assert_eq!(processes_with(run.path()), 0, "nothing of it runs on");
}

fn script(place: &Path, name: &str, text: &str) -> String {
    let path = place.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_command_is_told_where_to_listen_and_where_to_send() {
    let Some(python) = peer("python3") else { return };
    let place = tempfile::tempdir().unwrap();
    let pipe = script(place.path(), "pipe.py", PIPE);
    let command = format!("{python} {pipe} {{listen}} {{to}} {{spool}}");
    let run = bench_as_typed(&["--relay", &command, "--messages", "100", "--sessions", "4"]);
    let record = expect_relayed(&run, "python3", "unknown", 100);
    expect_costs(relay(&record));
    assert!(relay(&record).command.last().unwrap().ends_with("relay.spool"));
}

#[test]
fn a_command_that_fails_is_one_line() {
    let place = tempfile::tempdir().unwrap();
    for (text, why) in [
        ("#!/bin/sh\necho 'no such queue' >&2; exit 75\n", "the relay could not run: no such queue"),
        ("#!/bin/sh\nexit 0\n", "the relay ended before it listened"),
    ] {
        let command = format!("{} {{to}}", script(place.path(), "relay", text));
        let ended = bench_as_typed(&["--relay", &command, "--messages", "10"]).ended;
        expect_one_line(&ended, why);
    }
    let ended = bench_as_typed(&["--relay", "/nowhere/mta {to}", "--messages", "10"]).ended;
    expect_one_line(&ended, "/nowhere/mta");
}

fn expect_one_line(ended: &Ended, why: &str) {
    assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{ended:?}");
    assert!(ended.err.starts_with("mailrun: ") && ended.err.contains(why), "{ended:?}");
}

#[test]
fn ctrl_c_stops_the_source_and_lets_the_relay_deliver() {
    let bench = Bench::start(&["--relay", "mailrun", "--duration", "60s", "--sessions", "5"]);
    wait_until("messages to be accepted", || {
        let said = bench.file("source.stdout");
        said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find(|event| event["accepted"] != 0)
    });
    bench.process.interrupt_group();
    let record = bench.finish().record_of(0);
    let [created, delivered, lost, ..] = fates(&record.ledger);
    assert!(created > 0 && delivered > 0 && lost == 0 && record.verdict.closed, "{:?}", record.ledger);
    assert!(record.verdict.reasons.iter().any(|reason| reason.contains("interrupted")), "{:?}", record.verdict);
}

#[test]
fn a_relay_that_is_running_hands_on_to_our_sink() {
    let Some(python) = peer("python3") else { return };
    let place = tempfile::tempdir().unwrap();
    let pipe = script(place.path(), "pipe.py", PIPE);
    let address = |port: u16| format!("127.0.0.1:{port}");
    let (relay, sink) = (address(low_port()), address(low_port()));
    let process = Process::start(&python, &[&pipe, &relay, &sink, place.path().to_str().unwrap()]);
    wait_until("the relay to listen", || fs::metadata(place.path().join("was-here")).ok());
    let words = ["--relay-address", &relay, "--sink-listen", &sink, "--messages", "100", "--sessions", "4"];
    let run = bench_as_typed(&words);
    let record = run.record_of(0);
    assert_eq!(fates(&record.ledger), [100, 100, 0, 0, 0]);
    let party = record.parties.iter().find(|party| party.role == Role::Relay).unwrap();
    assert_eq!((party.name.as_str(), party.user_s), (relay.as_str(), None), "what it used is not known");
    assert!(run.file("report.md").contains("not seen"));
    drop(process);
}

/// The lines of a contest's table that begin with that name.
fn rows<'t>(ended: &'t Ended, name: &str) -> Vec<&'t str> {
    // A remark begins at the edge.
    let of_table = ended.out.lines().filter(|line| line.starts_with(' '));
    of_table.filter(|line| line.split_whitespace().next() == Some(name)).collect()
}

fn contest(shape: &str, words: &[&str]) -> (Ended, tempfile::TempDir) {
    let out = tempfile::tempdir().unwrap();
    fs::set_permissions(out.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let place = out.path().to_str().unwrap();
    let ended = mailrun(&[&["bench", shape, "--out", place], words].concat());
    (ended, out)
}

#[test]
fn the_contest_compares_relays_round_by_round() {
    let words = ["--messages", "200", "--sessions", "20", "--rounds", "2", "--compare", "none,mailrun:write,mailrun"];
    let (ended, out) = contest("relay-400", &words);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.starts_with("relay-400: 200 messages of 400 B over 20 sessions to 5 domains"), "{}", ended.out);
    for (name, tables) in [("none", 2), ("mailrun:write", 3), ("mailrun", 2)] {
        let rows = rows(&ended, name);
        assert_eq!(rows.len(), tables, "{name} in\n{}", ended.out);
        assert!(rows[0].ends_with("closed"), "{rows:?}");
    }
    assert!(ended.out.contains("not measured (--syscalls does"), "{}", ended.out);
    let table = fs::read_to_string(out.path().join("table.txt")).unwrap();
    assert_eq!(table, ended.out);
    let runs = fs::read_dir(out.path()).unwrap().flatten().filter(|entry| entry.path().join("run.json").is_file());
    assert_eq!(runs.count(), 6);
    let one = fs::read_to_string(out.path().join("round-1-3-mailrun/run.json")).unwrap();
    let record: Record = serde_json::from_str(&one).unwrap();
    assert_eq!((record.workload.reuse, record.workload.message_bytes), (Some(1), 400));
    assert!(record.workload.rcpt.matches(".example").count() == 5 && record.verdict.closed);
}

#[test]
fn system_calls_are_counted_where_strace_is() {
    let words = ["--messages", "100", "--sessions", "10", "--rounds", "1", "--syscalls"];
    let (ended, _out) = contest("relay-64k", &words);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let costs = rows(&ended, "mailrun")[1];
    if peer("strace").is_none() {
        assert!(costs.contains("not measured") && ended.out.contains("strace is not installed"), "{}", ended.out);
        return;
    }
    let number = |cell: &str| cell.replace(',', "").parse::<f64>().unwrap_or_else(|_| panic!("{costs}"));
    let cells: Vec<f64> = costs.split_whitespace().skip(1).take(3).map(number).collect();
    let [_, calls, syncs] = cells[..] else { panic!("{costs}") };
    // A message is at least read and written, in and out; a sync is shared by those that wait for it.
    assert!((4.0..1000.0).contains(&calls) && syncs > 0.0 && syncs < 4.0, "{}", ended.out);
}

#[test]
fn a_contest_with_postfix_has_ratios_to_it() {
    if !postfix_is_there() {
        return;
    }
    let words = ["--messages", "100", "--sessions", "10", "--rounds", "1", "--compare", "mailrun,postfix"];
    let (ended, _out) = contest("relay-64k", &words);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("100 messages of 64 KiB"), "{}", ended.out);
    let ratios = ended.out.lines().find(|line| line.contains("mailrun") && line.contains("postfix")).unwrap();
    let numbers: Vec<f64> = ratios.split_whitespace().skip(2).map(|cell| cell.parse().unwrap()).collect();
    assert!(numbers.len() == 4 && numbers.iter().all(|number| *number > 0.0), "{ratios}");
}

#[test]
fn a_contestant_that_fails_is_named_and_the_others_run() {
    let place = tempfile::tempdir().unwrap();
    let broken = script(place.path(), "broken", "#!/bin/sh\necho 'out of luck' >&2; exit 1\n");
    let compare = format!("{broken} {{to}},none");
    let words = ["--messages", "50", "--sessions", "5", "--rounds", "1", "--compare", &compare];
    let (ended, _out) = contest("relay-400", &words);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.contains("NOT OK: broken: the relay ended before it listened: out of luck"), "{}", ended.out);
    assert!(rows(&ended, "none")[0].ends_with("closed") && rows(&ended, "broken")[0].contains("NOT OK in 1 of 1"));
}

#[test]
fn a_sink_of_ones_own_is_no_relay() {
    // To take mail is not to hand it on: nothing arrives at the bench's sink, and it is said so.
    let sink = Sink::start(&[]);
    let listen = format!("127.0.0.1:{}", low_port());
    let words = ["--relay-address", &sink.address(), "--sink-listen", &listen, "--messages", "20", "--sessions", "2"];
    let record = bench_as_typed(&words).record_of(1);
    assert_eq!((record.ledger.accepted, record.ledger.lost), (Some(20), Some(20)));
    assert!(!record.verdict.closed);
    assert_eq!(sink.took().messages, 20);
}
