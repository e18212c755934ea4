//! Runs that end early: interrupted twice, with a party killed, or with files that cannot be written.
use crate::party::{Bench, BenchRun, Ended, MAILRUN, Process, Sink, mailrun, peer, run, skip, undisturbed, wait_until};
use crate::recipes::processes_of;
use crate::stand_in_endpoint::Endpoint;
use mailrun_measurement::record::{Cause, Death, Ending, Outcome, Record, Role};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn await_load(bench: &Bench) {
    wait_until("messages to be accepted", || {
        let said = bench.file("source.stdout");
        said.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|event| event["accepted"].as_u64() > Some(0))
    });
}

/// Runs a bench, and kills its process `victim` with SIGKILL during the load.
fn bench_without(victim: &str, words: &[&str]) -> BenchRun {
    let bench = Bench::start(&[&["--duration", "60s", "--sessions", "4"], words].concat());
    await_load(&bench);
    bench.process.kill_child(victim);
    bench.finish()
}

fn death(record: &Record, role: Role) -> Death {
    record.parties.iter().find(|party| party.role == role).and_then(|party| party.died.clone()).expect("it died")
}

/// Asserts that the verdict is FAIL, and that its first sentence says which process died, when and how.
fn assert_died(run: &BenchRun, role: Role, name: &str) -> Record {
    let record = run.record_of(1);
    let verdict = &record.verdict;
    assert_eq!((verdict.outcome, verdict.causes[0]), (Some(Outcome::Fail), Cause::Died), "{verdict:?}");
    let death = death(&record, role);
    assert_eq!(death.how, "signal 9 (SIGKILL)");
    assert_eq!(verdict.why, format!("The {name} died at {:.1} s: signal 9 (SIGKILL).", death.at_s));
    let said = run.ended.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains(&verdict.why), "{}", run.ended.out);
    assert!(record.stages.iter().any(|row| row.count > 0), "what the source knows is there: {:?}", record.stages);
    record
}

#[test]
fn a_relay_that_is_killed_fails_the_run_and_its_queue_is_looked_into() {
    let record = assert_died(&bench_without("relay", &["--relay", "mailrun"]), Role::Relay, "relay");
    assert_eq!(record.ending, Some(Ending::ServerEnded));
    let ledger = &record.ledger;
    assert!(ledger.accepted > Some(0) && ledger.delivered.is_some(), "{ledger:?}");
    assert_eq!(ledger.lost, Some(0), "what was answered 250 is delivered or in the spool: {ledger:?}");
}

#[test]
fn a_sink_that_is_killed_fails_the_run() {
    for words in [&[][..], &["--relay", "mailrun"]] {
        let record = assert_died(&bench_without("sink", words), Role::Sink, "sink");
        assert_eq!(record.ending, Some(Ending::ServerEnded), "{words:?}");
        let ledger = &record.ledger;
        assert!(ledger.created > Some(0) && ledger.delivered.is_none(), "{words:?}: {ledger:?}");
    }
}

#[test]
fn a_source_that_is_killed_fails_the_run() {
    let record = assert_died(&bench_without("source", &[]), Role::Source, "source");
    assert!(record.ledger.accepted > Some(0) && record.ledger.delivered > Some(0), "{:?}", record.ledger);
}

fn bench_of_mades_at_work(out: &Path) -> Process {
    let words = ["bench", "mades", "--duration", "60s", "--rate", "50", "--out", out.to_str().unwrap()];
    let bench = Process::start(MAILRUN, &words);
    wait_until("messages", || {
        let said = fs::read_to_string(out.join("mades.stdout")).unwrap_or_default();
        let events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter(|event| event["delivered"].as_u64() > Some(0)).count().checked_sub(1)
    });
    bench
}

#[test]
fn an_endpoint_that_is_killed_fails_a_bench_of_mades() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let bench = bench_of_mades_at_work(&out);
    bench.kill_child("mades-endpoint");
    let ended = bench.finish();
    let record: Record = serde_json::from_str(&fs::read_to_string(out.join("run.json")).unwrap()).unwrap();
    assert_eq!((ended.code, record.verdict.outcome), (Some(1), Some(Outcome::Fail)), "{ended:?}");
    assert!(record.verdict.reasons.iter().any(|reason| reason.starts_with("The endpoint died at ")), "{ended:?}");
}

#[test]
fn an_endpoint_that_cannot_write_what_it_did_leaves_the_report() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let bench = bench_of_mades_at_work(&out);
    fs::create_dir(out.join("endpoint.json")).unwrap();
    bench.terminate();
    let ended = bench.finish();
    let record: Record = serde_json::from_str(&fs::read_to_string(out.join("run.json")).unwrap()).unwrap();
    assert_eq!(record.verdict.outcome, Some(Outcome::Fail), "{ended:?}");
    let reason = &record.verdict.reasons[0];
    assert!(reason.starts_with("The endpoint died at ") && reason.contains("endpoint.json"), "{reason}");
    assert!(out.join("report.md").exists(), "{ended:?}");
}

#[test]
fn a_bench_of_mades_that_is_killed_has_its_report() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let bench = bench_of_mades_at_work(&out);
    bench.kill_child("mades");
    let ended = bench.finish();
    let record: Record = serde_json::from_str(&fs::read_to_string(out.join("run.json")).unwrap()).unwrap();
    assert_eq!((ended.code, record.verdict.outcome), (Some(1), Some(Outcome::Fail)), "{ended:?}");
    let death = death(&record, Role::Source);
    assert_eq!((death.how.as_str(), record.verdict.causes[0]), ("signal 9 (SIGKILL)", Cause::Died));
    assert_eq!(record.verdict.why, format!("The bench died at {:.1} s: signal 9 (SIGKILL).", death.at_s));
    assert!(ended.out.lines().last().is_some_and(|line| line == format!("FAIL {}", record.verdict.why)), "{ended:?}");
    let said = ended.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("(mode endpoint), at most 100,000 in transit, open loop at 50.00 msg/s"), "{ended:?}");
    assert!(said.contains("! The bench last reported at ") && said.contains(" created, "), "{ended:?}");
    assert!(record.ledger.delivered > Some(0) && !record.verdict.closed && !record.verdict.valid, "{record:?}");
    assert!(fs::read_to_string(out.join("report.md")).unwrap().contains(&record.verdict.why));
}

#[test]
fn a_broker_that_is_killed_fails_the_run() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let endpoint = Endpoint::embedded(&["--network-delay", "50ms"]);
    let words = ["mades", "--broker", &endpoint.url, "--rate", "200", "--duration", "60s", "--live", "json"];
    let patience = ["--reconnect-timeout", "300ms", "--message-timeout", "1s", "--out", out.to_str().unwrap()];
    let bench = Process::start(MAILRUN, &[&words[..], &patience].concat());
    wait_until("messages to arrive", || bench.said().contains("\"delivered\":1").then_some(()));
    drop(endpoint);
    let ended = bench.finish();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let record: Record = serde_json::from_str(&fs::read_to_string(out.join("run.json")).unwrap()).unwrap();
    assert!(record.verdict.causes.contains(&Cause::ServerGone), "{:?}", record.verdict);
    let report = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(report.contains(" lost at ") && report.contains("did not come back"), "{report}");
}

/// Interrupts a run twice under load. The run must still report, and end with status 130.
fn interrupt_twice(process: Process) -> Ended {
    process.terminate();
    wait_until("the signal to be heard", || (process.pending_signals() == 0).then_some(()));
    process.terminate();
    let ended = process.finish();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(ended.out.contains("interrupted") || ended.out.contains("INCONCLUSIVE"), "{ended:?}");
    ended
}

#[test]
fn a_second_signal_still_reports() {
    let sink = Sink::start(&["--fault", ".: delay 60s 50%"]);
    let to = sink.address();
    let load = ["--duration", "60s", "--sessions", "4", "--no-preflight"];
    let source = Process::start(MAILRUN, &[["source", &to].as_slice(), &load].concat());
    wait_until("its connections", || (sink.ask("/status")["connections"].as_u64() >= Some(4)).then_some(()));
    interrupt_twice(source);
    let bench = Bench::start(&[&[to.as_str()], &load[..4]].concat());
    await_load(&bench);
    interrupt_twice(bench.process);
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let words = ["bench", "mades", "--duration", "60s", "--rate", "50", "--message-timeout", "60s", "--drop", "0.5"];
    let bench = Process::start(MAILRUN, &[words.as_slice(), &["--out", out.to_str().unwrap()]].concat());
    wait_until("messages", || {
        let said = fs::read_to_string(out.join("mades.stdout")).unwrap_or_default();
        said.contains("\"delivered\":").then_some(())
    });
    interrupt_twice(bench);
}

#[test]
fn a_signal_ends_the_wait_for_what_does_not_come() {
    let words = ["--relay", "mailrun", "--messages", "50", "--sessions", "2", "--fault", "rcpt: soft reject"];
    let bench = Bench::start(&words);
    wait_until("the source to end", || bench.file("source.stdout").contains("\"done\"").then_some(()));
    bench.process.terminate();
    let run = bench.finish();
    let record = run.record_of(130);
    assert_eq!((record.ledger.accepted, record.ledger.queued, record.ledger.lost), (Some(50), Some(50), Some(0)));
}

#[test]
fn a_sink_that_is_told_twice_to_end_reports() {
    let sink = Process::start(MAILRUN, &["sink", "--listen", "127.0.0.1:0"]);
    wait_until("the sink to listen", || sink.complained().contains("listening on").then_some(()));
    sink.terminate();
    sink.terminate();
    let ended = sink.finish();
    assert!(ended.code == Some(0) && ended.out.contains("0 messages"), "{ended:?}");
}

#[test]
fn a_third_signal_ends_it_at_once() {
    let sink = Sink::start(&["--fault", ".: delay 60s"]);
    let bench = Bench::start(&[&sink.address(), "--duration", "60s", "--sessions", "2"]);
    wait_until("the source", || bench.file("source.stdout").contains("progress").then_some(()));
    for _ in 0..3 {
        bench.process.terminate();
        wait_until("the signal to be heard", || (bench.process.pending_signals() == 0).then_some(()));
    }
    let ended = bench.finish().ended;
    assert_eq!(ended.code, Some(130), "{ended:?}");
}

#[test]
fn a_closed_terminal_ends_a_bench_with_its_report_and_its_relay() {
    let relay = format!("{MAILRUN} relay --listen {{listen}} --to {{to}} --spool {{spool}}");
    let bench = Bench::start(&["--relay", &relay, "--duration", "60s", "--rate", "50"]);
    await_load(&bench);
    // When a terminal closes, both the shell and the kernel may send SIGHUP. So send it several times.
    for _ in 0..3 {
        bench.process.hang_up();
        wait_until("the signal to be heard", || (bench.process.pending_signals() == 0).then_some(()));
    }
    let run = bench.finish();
    run.record_of(130);
    assert!(run.ended.out.contains("interrupted"), "{:?}", run.ended);
    assert_eq!(processes_of(run.path()), 0, "the relay runs on");
}

#[test]
fn a_signal_before_the_load_is_130_with_a_line() {
    // This server accepts a connection but never greets.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = silent.local_addr().unwrap().to_string();
    let source = Process::start(MAILRUN, &["source", &to, "--messages", "5"]);
    let _connection = silent.accept().unwrap();
    source.terminate();
    let ended = source.finish();
    assert_eq!(
        (ended.code, ended.err.as_str()),
        (Some(130), "mailrun: interrupted before the first message\n"),
        "{ended:?}"
    );
}

#[test]
fn what_cannot_be_written_at_the_end_is_told_after_the_report() {
    let sink = Sink::start(&[]);
    for option in ["--json", "--ledger", "--hlog"] {
        let ended = mailrun(&["source", &sink.address(), "--messages", "50", "--sessions", "2", option, "/dev/full"]);
        assert_eq!(ended.code, Some(2), "{option}: {ended:?}");
        assert_eq!(ended.err.trim(), "mailrun: cannot write /dev/full: No space left on device", "{option}");
        assert!(ended.out.contains("PASS"), "{option}: {ended:?}");
    }
}

/// Options with which a source writes each of its outputs to a file in the directory `place`.
fn outputs_in(place: &Path) -> Vec<String> {
    let path = |name: &str| place.join(name).display().to_string();
    let mut words = vec!["--json".to_owned(), path("run.json"), "--ledger".to_owned(), path("ledger")];
    words.extend(["--hlog".to_owned(), path("hlog")]);
    for format in ["html", "junit", "csv"] {
        words.extend(["--export".to_owned(), format!("{format}={}", path(format))]);
    }
    words
}

const OUTPUTS: [&str; 6] = ["run.json", "ledger", "hlog", "html", "junit", "csv"];

#[test]
fn a_run_that_cannot_start_leaves_no_file_and_an_older_one_as_it_was() {
    let place = tempfile::tempdir().unwrap();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let none = place.path().join("none").display().to_string();
    let path = |name: &str| place.path().join(name).display().to_string();
    let [json, html, truth] = ["run.json", "html", "truth"].map(path);
    let broker = format!("amqp://{closed}");
    let commands = [
        [vec!["source".to_owned(), closed.clone()], outputs_in(place.path())].concat(),
        ["compare", &none, &none, "--json", &json, "--html", &html].map(str::to_owned).to_vec(),
        ["mades-endpoint", "--broker", &broker, "--summary", &json, "--log-messages", &truth]
            .map(str::to_owned)
            .to_vec(),
    ];
    for is_older in [false, true] {
        if is_older {
            OUTPUTS.iter().chain(&["truth"]).for_each(|name| fs::write(path(name), "older").unwrap());
        }
        for command in &commands {
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let ended = mailrun(&words);
            assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
            let files: Vec<String> = fs::read_dir(place.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
                .collect();
            assert_eq!(files.len(), if is_older { OUTPUTS.len() + 1 } else { 0 }, "{words:?}: {files:?}");
            for name in files {
                assert_eq!(fs::read_to_string(path(&name)).unwrap(), "older", "{words:?}: {name}");
            }
        }
    }
}

#[test]
fn every_output_may_be_a_fifo_or_in_a_new_directory() {
    let sink = Sink::start(&[]);
    let place = tempfile::tempdir().unwrap();
    let pipes = place.path().join("pipes");
    fs::create_dir(&pipes).unwrap();
    let readers: Vec<_> = OUTPUTS
        .iter()
        .map(|name| {
            let path = pipes.join(name);
            assert_eq!(run("mkfifo", &[path.to_str().unwrap()]).code, Some(0));
            std::thread::spawn(move || fs::read(path).unwrap())
        })
        .collect();
    let source = |directory: &Path| {
        let words = outputs_in(directory);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ended = mailrun(&[&["source", &sink.address(), "--messages", "50"], &words[..]].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
    };
    source(&pipes);
    let piped: Vec<Vec<u8>> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
    let deep = place.path().join("deep/er");
    source(&deep);
    for (name, piped) in OUTPUTS.iter().zip(piped) {
        let file = fs::read(deep.join(name)).unwrap();
        let start = |bytes: &[u8]| bytes[..bytes.len().min(8)].to_vec();
        assert!(!piped.is_empty() && start(&piped) == start(&file), "{name}: {} bytes", piped.len());
    }
    let words = ["source", &sink.address(), "--messages", "5", "--json", "/dev/stdout", "--report", "none"];
    let ended = mailrun(&words);
    assert_eq!(Record::from_json(ended.out.as_bytes()).unwrap().ledger.created, Some(5), "{ended:?}");
}

#[test]
fn a_run_directory_that_is_removed_is_told_after_the_report() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let words = ["bench", "--relay", "none", "--duration", "2s", "--sessions", "2", "--out", out.to_str().unwrap()];
    let bench = Process::start(MAILRUN, &words);
    wait_until("the source", || {
        fs::read_to_string(out.join("source.stdout")).unwrap_or_default().contains("progress").then_some(())
    });
    fs::remove_dir_all(&out).unwrap();
    let ended = bench.finish();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.out.contains("accepted"), "{ended:?}");
    let named = format!("mailrun: cannot write {}/run.json: No such file or directory", out.display());
    assert_eq!(ended.err.lines().last(), Some(named.as_str()), "{ended:?}");
}

/// Runs a bench whose `--out` is on a small file system that fills up during the run.
fn bench_on_a_full_disk(words: &str) -> Option<Ended> {
    let unshare = peer("unshare")?;
    let place = tempfile::tempdir().unwrap();
    let disk = place.path().display();
    let script = format!(
        "mount -t tmpfs -o size=600m tmpfs {disk} && echo begun && \
         (until grep -q '\"accepted\":[1-9]' {disk}/out/source.stdout 2>/dev/null; do sleep 0.1; done; \
          for size in 400m 100m 50m 20m; do fallocate -l $size {disk}/fill-$size; done 2>/dev/null; \
          cat /dev/zero > {disk}/fill 2>/dev/null) & \
         wait_mount() {{ until grep -q {disk} /proc/mounts; do sleep 0.05; done; }}; wait_mount; \
         exec {MAILRUN} bench --out {disk}/out {words}"
    );
    let ended = run(&unshare, &["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
    if !ended.out.contains("begun") {
        skip("a mount namespace", ended.err.trim());
        return None;
    }
    Some(ended)
}

#[test]
fn a_disk_that_fills_up_is_named_and_the_report_is_printed() {
    // Repeat the run if the disk does not fill up in time, which happens on a busy host.
    let bench = |words: &str| {
        let is_full = |ended: &Option<Ended>| ended.as_ref().is_none_or(|ended| ended.code == Some(2));
        undisturbed(|| bench_on_a_full_disk(words), is_full)
    };
    let Some(ended) = bench("--relay none --duration 3s --sessions 2") else { return };
    assert!(ended.out.contains("accepted"), "{ended:?}");
    let last = ended.err.lines().last().unwrap();
    assert!(last.contains("cannot write ") && last.ends_with("No space left on device"), "{ended:?}");
    let Some(ended) = bench("--relay mailrun --duration 4s --sessions 20 --message-size 64k") else { return };
    assert!(
        !ended.err.contains("panicked")
            && !ended.err.contains("status 101")
            && ended.err.contains("No space left on device"),
        "{ended:?}"
    );
    assert!(ended.out.contains("accepted"), "{ended:?}");
}
