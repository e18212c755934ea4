//! `mailrun bench` with a relay between source and sink: ours, a private Postfix, a user's command, or one that was
//! already running. Also the published contest of several relays, and the scenarios that compare a relay with its
//! targets.
use crate::party::{
    Bench, BenchRun, Ended, Process, Sink, bench_as_typed, fates, is_root, low_port, mailrun, peer, skip, stage,
    wait_until,
};
use crate::recipes::has_control_groups;
use crate::relay::{MAILRUN, Relay};
use mailrun_measurement::Stage;
use mailrun_measurement::record::{Arrival, EventKind, Party, Record, Role};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A fake relay that copies bytes to the sink and back. Its last argument may be the number of seconds for which it
/// holds back replies, or `hoard` to use ever more memory.
const PIPE: &str = r#"import socket, sys, threading, time
host, port = sys.argv[1].split(":"); to = sys.argv[2].split(":")
open(sys.argv[3] + "/was-here", "w").close()
fault = sys.argv[4] if len(sys.argv) > 4 else "0"; kept = []
delay = 0 if fault == "hoard" else float(fault)
def pipe(a, b, wait):
    try:
        while (data := a.recv(65536)):
            if wait: time.sleep(wait)
            if fault == "hoard": kept.append(b"x" * 65536)
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError: pass
server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((host, int(port))); server.listen(100)
while True:
    client, _ = server.accept()
    sink = socket.create_connection((to[0], int(to[1])))
    for way in ((client, sink, 0), (sink, client, delay)):
        threading.Thread(target=pipe, args=way, daemon=True).start()
"#;

fn relay(record: &Record) -> &Party {
    record.parties.iter().find(|party| party.role == Role::Relay).expect("a relay took part")
}

/// Asserts that all messages went through the relay once, and that the report shows the relay with its cost.
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
    // The relay writes each message of 400 bytes to disk before it replies 250.
    assert!(party.write_bytes.is_some_and(|bytes| bytes >= 500 * 400), "{party:?}");
    let delivered = stage(&record, Stage::Delivered).latency_ms.unwrap();
    assert!(delivered.min > 0.0 && run.ended.out.contains("\n delivered "), "{delivered:?}");
}

#[test]
fn our_relay_may_promise_less_and_is_told_so() {
    let run = bench_as_typed(&["--relay", "mailrun:memory", "--messages", "200", "--sessions", "5"]);
    let record = expect_relayed(&run, "mailrun:memory", "memory", 200);
    let words = &relay(&record).command;
    assert!(words.windows(2).any(|pair| pair == ["--durability", "memory"]), "{words:?}");
    assert!(run.file("report.md").contains("do not survive the end of the relay"));
}

#[test]
fn what_is_lost_behind_the_relay_is_found_out() {
    let words = ["--messages", "200", "--sessions", "5", "--fault", "drop 0.1", "--seed", "3", "--lost-after", "1s"];
    let run = bench_as_typed(&words);
    let record = run.record_of(0);
    let lost = record.ledger.lost.unwrap();
    assert!((1..100).contains(&lost) && !record.verdict.closed);
    assert_eq!(fates(&record.ledger), [200, 200 - lost, lost, 0, 0]);
    assert_eq!(record.ledger.queued, Some(0), "the relay has none of them");
    let said = record.verdict.reasons.iter().any(|reason| *reason == format!("As ordered, lost: {lost}."));
    assert!(said && !run.path().join("relay.spool").exists(), "{:?}", record.verdict);
}

fn postfix_is_there() -> bool {
    let is_there = peer("postfix").is_some();
    if is_there && !is_root() {
        skip("postfix", "only root may start one");
    }
    is_there && is_root()
}

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
    // Postfix consists of dozens of processes. All of them must be counted, because its master alone uses only a
    // hundredth of this time.
    assert!(party.user_s.unwrap() + party.sys_s.unwrap() > 0.05, "{party:?}");
    assert!(party.command.last().unwrap().starts_with("exec "), "as in its recipe: {:?}", party.command);
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

#[test]
fn a_command_that_becomes_a_daemon_is_named_and_nothing_of_it_runs_on() {
    if !has_control_groups() {
        return skip("a relay that becomes a daemon", "no control group of version 2 can be made here");
    }
    let place = tempfile::tempdir().unwrap();
    // In the first case, the command ends before the server listens. In the second case, it ends during the load.
    let during_load = "until grep -q '\"accepted\":[1-9]' $3/../source.stdout 2>/dev/null; do sleep 0.1; done";
    for (start_after_s, until, code) in [(60, "sleep 0.2", 2), (0, during_load, 1)] {
        // The daemon has another environment and another process group than the command, but the same standard output.
        let text = format!(
            "#!/bin/sh\nsetsid env -i /bin/sh -c \"sleep {start_after_s}; exec {MAILRUN} relay --listen $1 --to $2 \
             --spool $3/spool\" &\n{until}\n"
        );
        let command = format!("{} {{listen}} {{to}} {{spool}}", script(place.path(), "daemon", &text));
        let run = bench_as_typed(&["--relay", &command, "--duration", "60s", "--sessions", "2"]);
        assert_eq!(run.ended.code, Some(code), "{:?}", run.ended);
        let said = format!("{} {}", run.ended.out, run.ended.err);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_named = said.contains("became a daemon: its command ended and left ");
        assert!(is_named && said.contains("must stay in the foreground"), "{said}");
        assert_eq!(processes_with(run.path()), 0, "nothing of it runs on");
    }
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
    let record = bench.finish().record_of(130);
    let [created, delivered, lost, ..] = fates(&record.ledger);
    assert!(created > 0 && delivered > 0 && lost == 0 && record.verdict.closed, "{:?}", record.ledger);
    assert!(record.verdict.reasons.iter().any(|reason| reason.contains("interrupted")), "{:?}", record.verdict);
}

#[test]
fn ctrl_c_lets_a_running_relay_deliver_to_a_sink_elsewhere() {
    // The sink delays its replies, so mail is still on its way from the relay to the sink at Ctrl-C.
    let sink = Sink::start(&["--fault", ".: delay 1s"]);
    let place = tempfile::tempdir().unwrap();
    let spool = place.path().join("spool");
    let words = ["relay", "--listen", "127.0.0.1:0", "--to", &sink.address(), "--spool", spool.to_str().unwrap()];
    let relay = Relay::listening(Process::start(MAILRUN, &[&words[..], &["--live", "json"]].concat()));
    let bench = Bench::start(&[&relay.address(), "--sink", sink.url(), "--rate", "10", "--duration", "60s"]);
    bench.await_accepted();
    bench.process.interrupt_group();
    let record = bench.finish().record_of(130);
    let [created, delivered, ..] = fates(&record.ledger);
    assert!(created > 0 && delivered == created && record.verdict.closed, "{:?}", record.ledger);
    relay.stop();
}

#[test]
fn a_relay_that_is_running_hands_on_to_our_sink() {
    let Some(python) = peer("python3") else { return };
    let place = tempfile::tempdir().unwrap();
    let pipe = script(place.path(), "pipe.py", PIPE);
    let address = |port: u16| format!("127.0.0.1:{port}");
    let relay = address(low_port());
    let sink = address(low_port());
    let process = Process::start(&python, &[&pipe, &relay, &sink, place.path().to_str().unwrap()]);
    wait_until("the relay to listen", || fs::metadata(place.path().join("was-here")).ok());
    let words = [relay.as_str(), "--sink-listen", &sink, "--messages", "100", "--sessions", "4"];
    let run = bench_as_typed(&words);
    let record = run.record_of(0);
    assert_eq!(fates(&record.ledger), [100, 100, 0, 0, 0]);
    let party = record.parties.iter().find(|party| party.role == Role::Relay).unwrap();
    assert_eq!((party.name.as_str(), party.user_s), (relay.as_str(), None), "what it used is not known");
    assert!(run.file("report.md").contains("unknown: the relay was not started by this bench"));
    drop(process);
}

fn rows<'t>(ended: &'t Ended, name: &str) -> Vec<&'t str> {
    // Rows of a table are indented, and remarks are not.
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
    for (name, tables) in [("none", 3), ("mailrun:write", 4), ("mailrun", 3)] {
        let rows = rows(&ended, name);
        assert_eq!(rows.len(), tables, "{name} in\n{}", ended.out);
        assert!(rows[0].ends_with("closed"), "{rows:?}");
    }
    assert!(ended.out.contains("not measured (--syscalls measures"), "{}", ended.out);
    let table = fs::read_to_string(out.path().join("table.txt")).unwrap();
    assert_eq!(table, ended.out);
    let runs = fs::read_dir(out.path()).unwrap().flatten().filter(|entry| entry.path().join("run.json").is_file());
    assert_eq!(runs.count(), 6);
    let one = fs::read_to_string(out.path().join("round-1-3-mailrun/run.json")).unwrap();
    let record: Record = serde_json::from_str(&one).unwrap();
    assert_eq!((record.workload.reuse, record.workload.message_bytes), (Some(1), 400));
    assert!(record.workload.rcpt.matches(".example").count() == 5 && record.verdict.closed);
    // Write a smaller comparison to the same directory. It must delete the runs of the earlier comparison.
    let words = ["bench", "relay-400", "--messages", "50", "--sessions", "5", "--rounds", "1", "--compare"];
    let ended = mailrun(&[&words[..], &["none,mailrun", "--out", out.path().to_str().unwrap()]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let left = fs::read_dir(out.path()).unwrap().flatten().filter(|entry| entry.path().is_dir());
    let mut left: Vec<_> = left.map(|entry| entry.file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["round-1-1-none", "round-1-2-mailrun"]);
}

#[test]
fn a_contest_may_reuse_connections_and_pipeline() {
    let words = ["--messages", "200", "--sessions", "5", "--rounds", "1", "--reuse", "--pipelining", "stream"];
    let (ended, out) = contest("relay-400", &words);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("connections reused, one round trip per message"), "{}", ended.out);
    let text = fs::read_to_string(out.path().join("round-1-1-mailrun/run.json")).unwrap();
    let record: Record = serde_json::from_str(&text).unwrap();
    assert_eq!((record.workload.reuse, record.verdict.closed), (None, true));
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
    // A message needs at least four calls: the relay reads and writes at least once on each of its two connections.
    // Several messages share one sync.
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
    // This server accepts mail but does not pass it on, so nothing arrives at the bench's sink.
    let sink = Sink::start(&[]);
    let listen = format!("127.0.0.1:{}", low_port());
    let words = [&sink.address(), "--sink-listen", &listen, "--messages", "20", "--sessions", "2"];
    let words = [words.as_slice(), &["--lost-after", "700ms"]].concat();
    let run = bench_as_typed(&words);
    let record = run.record_of(3);
    assert_eq!((record.ledger.accepted, record.ledger.lost, record.ledger.not_delivered), (Some(20), None, Some(20)));
    let said = "20 of 20 messages were not delivered within 0.7 s: lost or still in the server's queue.";
    assert!(record.verdict.why.starts_with(said), "{:?}", record.verdict);
    assert!(run.ended.out.contains("INCONCLUSIVE 20 of 20 messages were not delivered"), "{}", run.ended.out);
    assert!(!record.verdict.closed);
    assert_eq!(sink.took().messages, 20);
}

/// Returns the exit status. Returns `expected` instead if the run is INVALID, because then the source on this machine
/// was the bottleneck.
fn status(ended: &Ended, expected: i32) -> i32 {
    let last = ended.out.lines().last().unwrap_or_default();
    let is_invalid = ended.code == Some(3) && last.starts_with("INVALID ");
    if is_invalid { expected } else { ended.code.unwrap_or(-1) }
}

/// Returns the verdicts on a scenario's targets, in the order of the output.
fn verdicts(ended: &Ended) -> Vec<&str> {
    let verdict = |line: &'_ str| ["PASS", "INCONCLUSIVE", "FAIL"].into_iter().find(|word| line.ends_with(word));
    ended.out.lines().filter_map(verdict).collect()
}

fn record_in(out: &Path, place: &str) -> Record {
    serde_json::from_str(&fs::read_to_string(out.join(place).join("run.json")).unwrap()).unwrap()
}

/// A command that starts the fake relay with a fault.
fn faulty_pipe(place: &Path, fault: &str) -> Option<String> {
    let python = peer("python3")?;
    Some(format!("{python} {} {{listen}} {{to}} {{spool}} {fault}", script(place, "pipe.py", PIPE)))
}

#[test]
fn latency_is_measured_at_half_of_what_is_sustained() {
    let words = ["--sessions", "10", "--step", "500ms", "--steps", "3", "--duration", "500ms", "--rounds", "2"];
    let (ended, out) = contest("relay-latency", &words);
    assert!(ended.out.contains("closed loop") && ended.out.contains("step 1"), "{}", ended.out);
    assert_eq!(fs::read_to_string(out.path().join("table.txt")).unwrap(), ended.out);
    let held: Vec<f64> = (1..=3)
        .filter(|step| {
            ended.out.lines().any(|line| line.contains(&format!("step {step} ")) && line.ends_with(" sustained"))
        })
        .map(|step| record_in(out.path(), &format!("step-{step}")).workload.rate_per_s.unwrap())
        .collect();
    let Some(highest) = held.into_iter().reduce(f64::max) else {
        // A busy host may sustain no rate at all. The scenario must then say so.
        assert!(ended.out.contains("no rate was sustained") && ended.code == Some(3), "{ended:?}");
        return;
    };
    let expected = i32::from(verdicts(&ended) != ["PASS", "PASS"]);
    assert_eq!(status(&ended, expected), expected, "{ended:?}");
    for round in ["round-1", "round-2"] {
        let record = record_in(out.path(), round);
        assert_eq!((record.workload.rate_per_s, record.workload.arrival), (Some(highest / 2.0), Arrival::Poisson));
        assert!(record.verdict.closed && record.workload.reuse.is_none(), "{:?}", record.verdict);
    }
}

#[test]
fn a_relay_that_keeps_its_senders_waiting_misses_the_target() {
    let place = tempfile::tempdir().unwrap();
    let Some(command) = faulty_pipe(place.path(), "0.03") else { return };
    let words = ["--relay", &command, "--rate", "50", "--duration", "1s", "--rounds", "1", "--sessions", "20"];
    let (ended, out) = contest("relay-latency", &words);
    assert_eq!((status(&ended, 1), verdicts(&ended)), (1, vec!["FAIL", "PASS"]), "{ended:?}");
    // The relay delays the replies to MAIL, RCPT, DATA and the message by 30 ms each, 120 ms in all.
    let accepted = stage(&record_in(out.path(), "round-1"), Stage::Accepted).latency_ms.unwrap();
    assert!(accepted.p50 >= 120.0, "{accepted:?}");
}

#[test]
fn a_backlog_is_kept_over_a_restart_and_delivered_once() {
    let words = ["--messages", "1500", "--message-size", "2k", "--sessions", "20"];
    let (ended, out) = contest("backlog", &words);
    assert_eq!((ended.code, verdicts(&ended)), (Some(0), vec!["PASS"; 3]), "{ended:?}");
    assert!(ended.out.contains("1,500 of 1,500 queued after"), "{}", ended.out);
    assert!(ended.out.contains("1,500 of 1,500 delivered, lost 0, 0 duplicates"), "{}", ended.out);
    assert!(ended.err.contains("of disk in") && ended.err.contains(" free)"), "{}", ended.err);
    let record = record_in(out.path(), "");
    assert_eq!(fates(&record.ledger), [1500, 1500, 0, 0, 0]);
    expect_costs(relay(&record));
    // The relay accepts all mail, then restarts, and only then delivers. So delivery must end later than acceptance.
    let delivered = stage(&record, Stage::Delivered);
    assert!(delivered.duration_s > stage(&record, Stage::Accepted).duration_s, "{:?}", record.stages);
    let curve = fs::read_to_string(out.path().join("memory.tsv")).unwrap();
    assert!(curve.lines().count() > 2, "{curve}");
    assert!(record.host.disk.is_some(), "{:?}", record.host);
    let faults = record.events.iter().filter(|event| matches!(event.kind, EventKind::FaultOn | EventKind::FaultOff));
    let faults: Vec<_> = faults.map(|event| (event.kind, event.text.as_str(), event.at_s)).collect();
    let kinds_and_texts: Vec<_> = faults.iter().map(|(kind, text, _)| (*kind, *text)).collect();
    let expected = [
        (EventKind::FaultOn, "the next hop does not listen"),
        (EventKind::FaultOn, "the relay is stopped"),
        (EventKind::FaultOff, "the relay is ready again"),
        (EventKind::FaultOff, "the next hop listens"),
    ];
    assert_eq!(kinds_and_texts, expected, "{faults:?}");
    let first_delivered = record.series.iter().find(|row| row.delivered > 0).unwrap().second;
    assert!(first_delivered as f64 + 1.0 > faults[3].2, "nothing was delivered before: {faults:?} {:?}", record.series);
    let page = fs::read_to_string(out.path().join("report.html")).unwrap();
    assert!(expected.iter().all(|(_, text)| page.contains(text)), "{page}");
    assert!(!out.path().join("relay.spool").exists() && out.path().join("relay-before.stderr").exists());
}

/// Asserts that the relay `which` keeps its whole backlog over a restart, and then delivers each message once.
fn expect_backlog_kept(which: &str, name: &str) -> BacklogRun {
    let words = ["--relay", which, "--messages", "400", "--message-size", "2k", "--sessions", "10"];
    let (ended, out) = contest("backlog", &words);
    assert_eq!((status(&ended, 0), verdicts(&ended)), (0, vec!["PASS"]), "{ended:?}");
    for said in ["400 of 400 delivered, lost 0", "started again: greets", "first delivered, next hop back"] {
        assert!(ended.out.contains(said), "{said} in {}", ended.out);
    }
    assert!(ended.out.contains(&format!("accepted by {name} (durability sync)")), "{}", ended.out);
    let record = record_in(out.path(), "");
    assert_eq!(fates(&record.ledger), [400, 400, 0, 0, 0]);
    expect_costs(relay(&record));
    let back = record.events.iter().find(|event| event.text == "the next hop listens").unwrap();
    // Until the next hop is back, the relay delivers nothing, so its queue must hold all accepted messages. On a fast
    // host, the next hop may be back within a second, and `before` is then empty.
    let before = record.series.iter().filter(|row| row.second as f64 + 1.0 <= back.at_s);
    let accepted = before.scan(0, |sum, row| {
        *sum += row.accepted;
        Some((*sum, row.queued))
    });
    assert!(accepted.into_iter().all(|(accepted, queued)| accepted == queued), "{:?}", record.series);
    let first = record.series.iter().find(|row| row.delivered > 0).unwrap().second;
    assert!(first as f64 + 1.0 > back.at_s, "nothing was delivered before: {back:?} {:?}", record.series);
    assert!(!out.path().join("relay.spool").exists(), "the mail is gone");
    BacklogRun { said: ended.err, place: out }
}

struct BacklogRun {
    said: String,
    place: tempfile::TempDir,
}

#[test]
fn a_recipe_has_its_backlog_flushed() {
    let place = tempfile::tempdir().unwrap();
    let recipe = place.path().join("our.toml");
    // With a wait of an hour between attempts, only the recipe's flush command can get the mail delivered in time.
    let text = mailrun(&["recipe", "show", "mailrun"]).out;
    let slow = text.replace("retry.first = \"1s\"", "retry.first = \"1h\"").replace("\"5s\"", "\"2h\"");
    assert_ne!(text, slow);
    fs::write(&recipe, slow).unwrap();
    expect_backlog_kept(recipe.to_str().unwrap(), "our");
}

#[test]
fn a_recipe_without_a_flush_delivers_when_it_tries_again() {
    let place = tempfile::tempdir().unwrap();
    let recipe = place.path().join("our.toml");
    let text = mailrun(&["recipe", "show", "mailrun"]).out;
    let without: String =
        text.lines().filter(|line| !line.starts_with("flush")).map(|line| line.to_owned() + "\n").collect();
    fs::write(&recipe, without).unwrap();
    let run = expect_backlog_kept(recipe.to_str().unwrap(), "our");
    assert!(run.said.contains("the recipe has no queue.flush"), "{}", run.said);
}

#[test]
fn fresh_mail_is_measured_while_a_backlog_is_delivered() {
    let words = ["--messages", "600", "--sessions", "10", "--fresh", "50", "--relay", "mailrun:write"];
    let (ended, out) = contest("backlog", &words);
    assert_eq!((status(&ended, 0), verdicts(&ended)), (0, vec!["PASS"; 4]), "{ended:?}");
    assert!(ended.out.contains("600 of 600 delivered, lost 0, 0 duplicates"), "fresh mail is not of it: {}", ended.out);
    assert_eq!(fates(&record_in(out.path(), "").ledger), [600, 600, 0, 0, 0]);
    let fresh: Record = serde_json::from_str(&fs::read_to_string(out.path().join("fresh.json")).unwrap()).unwrap();
    let accepted = fresh.ledger.accepted.unwrap();
    assert!(accepted > 0 && ended.out.contains(&format!("{accepted} of {accepted} delivered")), "{}", ended.out);
    let rows: Vec<&str> =
        ended.out.lines().skip_while(|line| !line.contains("fresh mail during the delivery")).collect();
    // The row may have "–" instead of the rate, because a fast host delivers the backlog too quickly to give a rate.
    assert!(rows.iter().any(|row| row.starts_with(" delivered ") && row.matches('–').count() <= 1), "{}", ended.out);
}

#[test]
fn a_receiver_that_is_limited_makes_a_backlog_too() {
    let rule = "mail: limit 20/s burst 1 \"421 4.7.0 Later\"";
    let words = ["--messages", "400", "--message-size", "2k", "--sessions", "10", "--receiver", rule];
    let (ended, out) = contest("backlog", &words);
    assert_eq!((status(&ended, 0), verdicts(&ended)), (0, vec!["PASS"; 3]), "{ended:?}");
    assert!(ended.out.contains("while its next hop has the rule"), "{}", ended.out);
    let record = record_in(out.path(), "");
    assert_eq!(fates(&record.ledger), [400, 400, 0, 0, 0]);
    let refused: u64 = record.series.iter().map(|row| row.errors).sum();
    assert!(refused > 0, "the relay was told to come later: {:?}", record.series);
    let back = record.events.iter().find(|event| event.text == "the next hop has no rule").unwrap();
    // The recovery is quick, because the bench flushes the queue and the relay need not wait for its next attempt.
    let recovery = record.recovery.unwrap();
    assert!(recovery.back_s == back.at_s && recovery.after_s < 30.0 && recovery.full_rate_per_s > 20.0, "{recovery:?}");
    let again = record.events.iter().find(|event| event.kind == EventKind::FullRate).unwrap();
    assert!((again.at_s - back.at_s - recovery.after_s).abs() < 1e-6, "{again:?} {recovery:?}");
    assert!(ended.out.contains("at its full rate again"), "{}", ended.out);
}

#[test]
fn backlogs_of_several_relays_are_in_one_table() {
    let words = ["--messages", "300", "--sessions", "10", "--fresh", "20", "--compare", "mailrun:write,mailrun"];
    let (ended, out) = contest("backlog", &words);
    assert_eq!(status(&ended, 0), 0, "{ended:?}");
    assert!(ended.out.starts_with("backlog: 300 messages of 64 KiB over 10 sessions"), "{}", ended.out);
    for name in ["mailrun:write", "mailrun"] {
        let rows = rows(&ended, name);
        assert!(rows.len() == 2 && rows[0].ends_with("closed"), "{name}: {rows:?} in {}", ended.out);
        assert!(!rows[1].contains('–'), "the fresh mail of each is measured: {rows:?}");
    }
    for place in ["1-mailrun-write", "2-mailrun"] {
        let record = record_in(out.path(), place);
        assert_eq!(fates(&record.ledger), [300, 300, 0, 0, 0], "{place}");
        assert!(
            out.path().join(place).join("report.html").is_file()
                && !out.path().join(place).join("relay.spool").exists()
        );
    }
    assert_eq!(fs::read_to_string(out.path().join("table.txt")).unwrap(), ended.out);
}

#[test]
fn a_private_postfix_keeps_its_backlog() {
    if postfix_is_there() {
        let run = expect_backlog_kept("postfix", "postfix");
        assert_eq!(processes_with(run.place.path()), 0, "nothing of it runs on");
    }
}

/// Writes a file (a recipe) from which the bench can start a Postfix that retries after 20 s. Returns the paths of the
/// recipe and of Postfix's log.
fn postfix_that_retries_soon(place: &Path) -> (PathBuf, PathBuf) {
    let (recipe, log) = (place.join("our.toml"), place.join("log"));
    let text = mailrun(&["recipe", "show", "postfix"]).out;
    let soon = "queue_run_delay = 5s\nminimal_backoff_time = 20s\nmaximal_backoff_time = 30s\nmessage_size_limit = 0";
    let text = text.replace("maillog_file = {dir}/log", &format!("maillog_file = {}", log.display()));
    let text = text.replace("maillog_file_prefixes = {dir}", &format!("maillog_file_prefixes = {}", place.display()));
    let text = text.replace("message_size_limit = 0", soon);
    assert!(text.contains(soon) && text.matches(place.to_str().unwrap()).count() == 2, "{text}");
    fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&recipe, text).unwrap();
    (recipe, log)
}

/// Returns the seconds since the full hour, from a text that contains the time of day.
fn second_of_hour(text: &str) -> f64 {
    let minutes = text.find(':').unwrap() + 1;
    let digits = |from: usize| text[from..from + 2].parse::<f64>().unwrap();
    digits(minutes) * 60.0 + digits(minutes + 3)
}

/// Returns each second in which Postfix's log reports sent messages, as the second of the hour, with the number of
/// these messages.
fn sent_by_second(log: &str) -> Vec<(f64, u64)> {
    let mut seconds: Vec<(f64, u64)> = Vec::new();
    for line in log.lines().filter(|line| line.contains("status=sent")) {
        let second = second_of_hour(line);
        match seconds.last_mut() {
            Some((last, sent)) if *last == second => *sent += 1,
            _ => seconds.push((second, 1)),
        }
    }
    seconds
}

/// Runs a bench of a Postfix whose receiver defers mail by `rule`, so that mail waits in Postfix's queue. Postfix
/// retries by itself. The time at which it delivers at its full rate again must be the same in the report and in
/// Postfix's log.
fn expect_recovery_as_logged(rule: &str) {
    if !postfix_is_there() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (recipe, log) = postfix_that_retries_soon(place.path());
    let words = ["--relay", recipe.to_str().unwrap(), "--messages", "1000", "--message-size", "2k", "--sessions", "10"];
    let words = [&words[..], &["--receiver", rule, "--no-flush", "--lost-after", "60s"]].concat();
    let (ended, out) = contest("backlog", &words);
    assert_eq!((status(&ended, 0), verdicts(&ended)), (0, vec!["PASS"]), "{ended:?}");
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("status=deferred"), "the receiver held mail back: {log}");
    let record = record_in(out.path(), "");
    let recovery = record.recovery.unwrap();
    let zero = second_of_hour(&record.zero_at);
    let back = zero + recovery.back_s;
    // Postfix's log may be in another time zone than the record. Time zones differ by whole quarters of an hour, so
    // compare times modulo 900 s. Times in the log are whole seconds, so round `back` down.
    let after = |second: f64| (second - back.floor() + 10.0).rem_euclid(900.0) - 10.0;
    let sent = sent_by_second(&log);
    let since: Vec<(f64, u64)> = sent.iter().map(|(second, sent)| (after(*second), *sent)).collect();
    let rates: Vec<u64> = since.iter().filter(|(after, _)| *after >= 0.0).map(|(_, sent)| *sent).collect();
    // A second of the record may overlap two seconds of the log. Each second of the log may then have only half of the
    // deliveries, so a little less than half of the full rate is enough.
    let is_full = |sent: u64| sent as f64 >= recovery.full_rate_per_s * 0.45;
    let first = since.iter().find(|(after, sent)| *after >= 0.0 && is_full(*sent)).unwrap().0;
    assert!((first - recovery.after_s).abs() <= 2.0, "{first} s by the log {since:?}, {recovery:?}");
    assert!(rates.iter().sum::<u64>() > 500, "most of the mail was held back: {since:?}");
    assert!(recovery.after_s >= 1.0, "it did not try again at once: {recovery:?}");
}

#[test]
#[ignore = "slow: make test-slow PART=recipes"]
fn a_postfix_behind_a_receiver_that_limits_recovers_as_its_log_says() {
    expect_recovery_as_logged("mail: limit 10/s burst 1 \"421 4.7.0 Later\"");
}

#[test]
#[ignore = "slow: make test-slow PART=recipes"]
fn a_postfix_behind_a_greylist_recovers_as_its_log_says() {
    expect_recovery_as_logged("rcpt: greylist 1m");
}

#[test]
fn the_backlog_of_a_server_of_ones_own_is_delivered_without_a_restart() {
    let place = tempfile::tempdir().unwrap();
    let [relay, sink] = [low_port(), low_port()].map(|port| format!("127.0.0.1:{port}"));
    let config = place.path().join("relay.toml");
    let spool = place.path().join("spool");
    let text = format!(
        "listen = \"{relay}\"\nspool.directory = \"{}\"\nretry.first = \"1s\"\nretry.longest = \"2s\"\n[[route]]\n\
         to = \"*\"\nsmtp = \"{sink}\"\n",
        spool.display()
    );
    fs::write(&config, text).unwrap();
    let process = Process::start(MAILRUN, &["relay", "--config", config.to_str().unwrap()]);
    wait_until("the relay to listen", || std::net::TcpStream::connect(&relay).ok());
    // First send the relay mail that is not the bench's. The relay delivers it first, and the bench must not count it.
    let other = mailrun(&["source", &relay, "--messages", "200", "--sessions", "5", "--report", "none"]);
    assert_eq!(other.code, Some(0), "{other:?}");
    let words = [relay.as_str(), "--sink-listen", &sink, "--messages", "200", "--sessions", "5"];
    let (ended, out) = contest("backlog", &words);
    assert_eq!((status(&ended, 0), verdicts(&ended)), (0, vec!["PASS"]), "{ended:?}");
    assert!(ended.out.contains("200 of 200 delivered, lost 0"), "{}", ended.out);
    assert!(!ended.out.contains("started again") && !ended.out.contains("RSS over time"), "{}", ended.out);
    assert_eq!(fates(&record_in(out.path(), "").ledger), [200, 200, 0, 0, 0]);
    drop(process);
}

#[test]
fn a_backlog_that_does_not_fit_is_refused_before_it_begins() {
    let (ended, _out) = contest("backlog", &["--messages", "100000000", "--message-size", "64M"]);
    expect_one_line(&ended, "of disk in");
}

#[test]
fn a_backlog_that_is_stopped_says_how_far_it_came_and_leaves_no_mail() {
    let out = tempfile::tempdir().unwrap();
    let words =
        ["bench", "backlog", "--messages", "300000", "--message-size", "400", "--out", out.path().to_str().unwrap()];
    let process = Process::start(MAILRUN, &words);
    await_accepted(out.path());
    process.interrupt_group();
    let ended = process.finish();
    assert_eq!((ended.code, verdicts(&ended)), (Some(130), vec!["INCONCLUSIVE", "INCONCLUSIVE", "PASS"]), "{ended:?}");
    assert!(
        ended.out.contains("accepted, next hop held back") && !ended.out.contains("ready after 0"),
        "{}",
        ended.out
    );
    assert!(!out.path().join("relay.spool").exists() && out.path().join("run.json").exists());
}

fn await_accepted(out: &Path) {
    wait_until("messages to be accepted", || {
        let said = fs::read_to_string(out.join("source.stdout")).unwrap_or_default();
        let events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.into_iter().find(|event| event["accepted"].as_u64().is_some_and(|accepted| accepted > 0))
    });
}

#[test]
fn a_soak_finds_memory_flat_and_the_disk_given_back() {
    let (ended, out) = contest("relay-soak", &["--messages", "600", "--rate", "200", "--sessions", "20"]);
    assert_eq!((status(&ended, 0), verdicts(&ended)), (0, vec!["PASS"; 3]), "{ended:?}");
    let record = record_in(out.path(), "");
    assert_eq!(fates(&record.ledger), [600, 600, 0, 0, 0]);
    assert!(fs::read_to_string(out.path().join("memory.tsv")).unwrap().lines().count() > 2);
}

#[test]
fn a_relay_that_hoards_memory_is_found_out() {
    let place = tempfile::tempdir().unwrap();
    let Some(command) = faulty_pipe(place.path(), "hoard") else { return };
    let words = ["--relay", &command, "--messages", "1000", "--rate", "500", "--sessions", "4"];
    let (ended, _out) = contest("relay-soak", &words);
    // There is no third verdict about the disk, because only our own relay promises how much disk space it uses.
    assert_eq!((status(&ended, 1), verdicts(&ended)), (1, vec!["PASS", "FAIL"]), "{ended:?}");
}

#[test]
fn a_soak_that_is_stopped_delivers_what_was_accepted_and_claims_nothing() {
    let out = tempfile::tempdir().unwrap();
    let words = ["bench", "relay-soak", "--rate", "500", "--sessions", "5", "--out", out.path().to_str().unwrap()];
    let process = Process::start(MAILRUN, &words);
    await_accepted(out.path());
    process.interrupt_group();
    let ended = process.finish();
    assert_eq!((ended.code, verdicts(&ended)[0]), (Some(130), "INCONCLUSIVE"), "{ended:?}");
    assert!(ended.out.contains("all delivered"), "{}", ended.out);
    assert!(record_in(out.path(), "").verdict.closed);
}

#[test]
fn each_scenario_explains_itself_with_examples() {
    for name in ["relay-latency", "backlog", "relay-soak"] {
        let help = mailrun(&["bench", name, "--help"]);
        assert_eq!(help.code, Some(0));
        assert!(help.out.contains("target") && help.out.contains("Examples:"), "{}", help.out);
    }
}
