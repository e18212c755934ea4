//! `mailrun compare --contestant`: rounds of real load generators (contestants), in the right order and number. A
//! contestant that hangs, crashes, floods its output or is missing gets one line, and its process group is killed. The
//! others keep their results.
use crate::party::{Ended, MAILRUN, Process, Sink, low_port, mailrun, peer, wait_until};
use crate::recipes::processes_of;
use serde_json::Value;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use tempfile::TempDir;

/// Options that ask for 20 messages. The calibration of a comparison begins with this number, so it ends at once.
const SHORT: [&str; 4] = ["--messages", "20", "--sessions", "2"];

/// A contestant that runs a shell command before it sends.
fn contestant(name: &str, before: &str) -> String {
    format!(
        "{name}=sh -c '{before} exec {MAILRUN} source {{host}}:{{port}} --messages {{messages}} --sessions {{sessions}} \
         --message-size {{size}} --reuse --report none --live off'"
    )
}

fn compare(words: &[&str], place: &TempDir) -> (Ended, Value) {
    let json = place.path().join("compare.json");
    let ended = mailrun(&[&["compare"], &SHORT[..], &["--json", json.to_str().unwrap()], words].concat());
    let text = fs::read_to_string(&json).unwrap_or_else(|_| panic!("{ended:?}"));
    (ended, serde_json::from_str(&text).unwrap())
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn rounds_run_in_blocks_and_few_have_no_verdict() {
    let place = tempfile::tempdir().unwrap();
    let order = place.path().join("order");
    let noted = |name: &str| contestant(name, &format!("echo {name} >> {};", order.display()));
    let (ended, result) = compare(&["--contestant", &noted("a"), "--contestant", &noted("b"), "--rounds", "4"], &place);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!((&result["format"], &result["paired"]), (&"mailrun-compare/1".into(), &true.into()), "{result}");
    assert_eq!((&result["rounds"], &result["load"]["messages"]), (&4.into(), &20.into()), "{result}");
    assert_eq!(result["contestants"][1]["values"]["rate, msg/s"].as_array().unwrap().len(), 4, "{result}");
    let rows = result["comparisons"][0]["metrics"].as_array().unwrap();
    assert!(rows.len() == 2 && rows.iter().all(|row| row["verdict"] == "too few rounds"), "{result}");
    assert!(ended.out.contains("\nb against a: 4 rounds, too few for a verdict, which takes 20.\n"), "{ended:?}");
    // The bench repeats a round if the hypervisor took a quarter of the round's time. Repeated rounds change the order,
    // so check the order only if there are none.
    if result["invalid_rounds"] == 0 {
        assert!(lines(&order).concat().ends_with("abbabaababba"), "{:?}", lines(&order));
    }
}

#[test]
fn one_that_is_slower_is_found_at_the_first_look() {
    let place = tempfile::tempdir().unwrap();
    let quick = contestant("quick", "");
    // The slow contestant both computes and sleeps, so every metric must differ.
    let slow = contestant("slow", "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; sleep 0.1;");
    let words = ["--contestant", &quick, "--contestant", &slow, "--rounds", "40", "--until-decided"];
    let (ended, result) = compare(&[&words[..], &["--budget", "1h", "--fail-on-regression", "5%"]].concat(), &place);
    assert_eq!(
        (ended.code, &result["planned_rounds"], &result["rounds"]),
        (Some(1), &40.into(), &20.into()),
        "{ended:?}"
    );
    let rows = result["comparisons"][0]["metrics"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["verdict"] == "worse"), "{result}");
    assert!(ended.out.contains("slow is slower than quick: 0.") && ended.out.contains("\nFAIL a figure"), "{ended:?}");
}

#[test]
fn whoever_cannot_be_measured_has_one_line_and_the_others_their_results() {
    let place = tempfile::tempdir().unwrap();
    let pids = place.path().join("pids");
    let hang = format!(
        "hang=sh -c 'echo $$ >> {0}; sleep 600 & echo $! >> {0}; wait {{port}}{{messages}}; wait'",
        pids.display()
    );
    let few = contestant("few", "").replace("{messages}", "3 --subject {messages}");
    let flood =
        format!("flood={MAILRUN} source {{host}}:{{port}} --duration 100s --reuse --subject {{messages}} --live off");
    let garbage =
        "garbage=sh -c 'head -c 200000 /dev/urandom; head -c 200000 /dev/urandom >&2; exit 3' {port} {messages}";
    let others = ["missing=/no/such/program {port} {messages}".to_owned(), hang, few, flood, garbage.to_owned()];
    let good = ["a", "b"].map(|name| contestant(name, ""));
    let words = others.iter().chain(&good).flat_map(|typed| ["--contestant", typed]);
    let (ended, result) = compare(&words.chain(["--rounds", "2"]).collect::<Vec<_>>(), &place);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    for (name, why) in [
        ("missing", "cannot start /no/such/program"),
        ("hang", "it did not end within 10.00 s and was killed: the sink had 0 of "),
        ("few", "the sink has 3 of "),
        ("flood", "it sent "),
        ("garbage", "it ended with exit status: 3"),
    ] {
        let said = ended.err.lines().filter(|line| line.starts_with(&format!("mailrun: {name}: {why}")));
        assert_eq!(said.count(), 1, "{name}: {ended:?}");
    }
    assert_eq!((&result["reference"], &result["comparisons"][0]["contestant"]), (&"a".into(), &"b".into()), "{result}");
    assert_eq!(result["comparisons"][0]["rounds"], 2, "{result}");
    let left: Vec<String> = lines(&pids).into_iter().filter(|pid| is_running(pid)).collect();
    assert!(left.is_empty() && lines(&pids).len() == 2, "{left:?}");
}

/// Reports whether a process runs. A killed process that nobody has waited for does not count.
fn is_running(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

#[test]
fn the_last_one_left_keeps_its_warm_up() {
    let place = tempfile::tempdir().unwrap();
    let good = contestant("good", "");
    let words = ["--contestant", &good, "--contestant", "missing=/no/such/program {port} {messages}"];
    let (ended, result) = compare(&words, &place);
    assert_eq!((ended.code, &result["rounds"]), (Some(2), &0.into()), "{ended:?}");
    assert!(ended.out.contains("\ngood alone, median of 1 run: CPU, µs/msg "), "{ended:?}");
    assert!(ended.out.contains("\ngood has its warm-up run only.\n"), "{ended:?}");
    assert!(
        ended
            .err
            .ends_with("mailrun: missing: cannot start /no/such/program: No such file or directory (os error 2)\n"),
        "{ended:?}"
    );
}

#[test]
fn an_invalid_round_is_repeated_and_counted() {
    let place = tempfile::tempdir().unwrap();
    let runs = place.path().join("runs");
    // The first three runs of contestant b do not count. Let its fifth run fail, which counts.
    let fifth = format!("echo x >> {0}; if [ $(wc -l < {0}) = 5 ]; then exit 1; fi;", runs.display());
    let words = ["--contestant", &contestant("a", ""), "--contestant", &contestant("b", &fifth), "--rounds", "4"];
    let (ended, result) = compare(&words, &place);
    assert_eq!((ended.code, &result["rounds"]), (Some(0), &4.into()), "{ended:?}");
    assert!(result["invalid_rounds"].as_u64() >= Some(1), "{result}");
    let reasons = result["invalid"].as_array().unwrap();
    assert!(reasons.iter().any(|why| why == "b: it ended with exit status: 1: no output"), "{result}");
    assert!(ended.out.contains(" repeated: "), "{ended:?}");
}

#[test]
fn a_contestant_against_itself_shows_the_noise() {
    let place = tempfile::tempdir().unwrap();
    let (ended, result) = compare(&["--self", "--rounds", "6"], &place);
    assert_eq!((ended.code, &result["is_self"]), (Some(0), &true.into()), "{ended:?}");
    let rows = result["comparisons"][0]["metrics"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["rate, msg/s", "CPU, µs/msg", "accepted p50, ms", "accepted p99, ms"]);
    assert!(rows.iter().all(|row| row["resolution"].as_f64() > Some(0.0)), "{result}");
    assert!(ended.out.contains("\nNoise floor of this host"), "{ended:?}");
}

#[test]
fn ctrl_c_prints_what_is_known() {
    let place = tempfile::tempdir().unwrap();
    let runs = place.path().join("runs");
    let noted = contestant("b", &format!("echo x >> {};", runs.display()));
    let good = contestant("a", "");
    let words = [&["compare"], &SHORT[..], &["--contestant", &good, "--contestant", &noted]].concat();
    let running = Process::start(MAILRUN, &words);
    // Before its counted runs, contestant b runs three times: once for calibration and twice in the first block.
    wait_until("some rounds", || (lines(&runs).len() > 7).then_some(()));
    running.interrupt_group();
    let ended = running.finish();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(ended.out.contains("\nInterrupted after ") && ended.out.contains("b against a: "), "{ended:?}");
}

fn metric_names(result: &Value) -> Vec<&str> {
    let rows = result["comparisons"][0]["metrics"].as_array().unwrap();
    rows.iter().map(|row| row["name"].as_str().unwrap()).collect()
}

#[test]
fn servers_are_compared_by_our_source_and_their_bytes_are_counted() {
    let place = tempfile::tempdir().unwrap();
    let sink = Sink::start(&[]);
    let servers = ["a", "b"].map(|name| format!("{name}={}", sink.address()));
    let words = ["--contestant", servers[0].as_str(), "--contestant", &servers[1], "--rounds", "2", "--counts"];
    let (ended, result) = compare(&words, &place);
    assert_eq!((ended.code, &result["rounds"]), (Some(0), &2.into()), "{ended:?}");
    assert_eq!(metric_names(&result), ["rate, msg/s", "accepted p50, ms", "accepted p99, ms"]);
    assert!(ended.out.contains("\nAccepted only: nobody saw deliveries (--sink, --sink-listen).\n"), "{ended:?}");
    let rows = result["counts"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["bytes sent a message", "bytes received a message"], "{result}");
    assert!(rows.iter().all(|row| row["change"] == "none"), "{result}");
}

#[test]
fn servers_deliver_to_the_sink_that_is_started_for_them() {
    let place = tempfile::tempdir().unwrap();
    let [sink, listen] = [(); 2].map(|()| format!("127.0.0.1:{}", low_port()));
    let spool = place.path().join("spool");
    let relay =
        Process::start(MAILRUN, &["relay", "--listen", &listen, "--to", &sink, "--spool", spool.to_str().unwrap()]);
    wait_until("the relay to listen", || TcpStream::connect(&listen).ok());
    let servers = ["a", "b"].map(|name| format!("{name}={listen}"));
    let words = ["--contestant", servers[0].as_str(), "--contestant", &servers[1], "--rounds", "2"];
    let (ended, result) = compare(&[&words[..], &["--sink-listen", &sink, "--to", "ann@a.example"]].concat(), &place);
    assert_eq!((ended.code, &result["rounds"]), (Some(0), &2.into()), "{ended:?}");
    assert_eq!(metric_names(&result)[3..], ["delivered p50, ms", "delivered p99, ms"], "{ended:?}");
    drop(relay);
}

#[test]
fn a_server_that_rejects_mail_or_is_not_there_is_named() {
    let place = tempfile::tempdir().unwrap();
    let good = Sink::start(&[]);
    let bad = Sink::start(&["--fault", "reject 100%"]);
    let typed = [format!("good={}", good.address()), format!("bad={}", bad.address()), "away=127.0.0.1:1".to_owned()];
    let words = typed.iter().flat_map(|typed| ["--contestant", typed]).collect::<Vec<_>>();
    let (ended, _) = compare(&words, &place);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("mailrun: bad: it accepted 0 of "), "{ended:?}");
    assert!(ended.err.contains("mailrun: away: ") && ended.out.contains("\ngood alone"), "{ended:?}");
}

#[test]
fn scenarios_are_compared_by_their_records() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("small.toml");
    let scenario = "measure = \"throughput\"\ntitle = \"A few messages\"\nparties = [\"mailrun\"]\nrounds = 3\n\
                    order = \"alternating\"\n\n[workload]\nmessages = 40\npublished_messages = 40\n\
                    message_size = \"400\"\nsessions = 2\nreuse = 1\npipelining = \"off\"\n";
    fs::write(&file, scenario).unwrap();
    let typed = ["a", "b"].map(|name| format!("{name}={}", file.display()));
    let json = place.path().join("compare.json");
    let words = ["compare", "--contestant", &typed[0], "--contestant", &typed[1], "--rounds", "1", "--json"];
    let ended = mailrun(&[&words[..], &[json.to_str().unwrap()]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let result: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!((&result["rounds"], &result["min_rounds"]), (&1.into(), &6.into()), "{result}");
    assert_eq!(result["comparisons"][0]["metrics"][0]["name"], "delivered, msg/s", "{result}");
    assert!(ended.out.starts_with("b against a: 1 round, in ") && ended.out.contains("which takes 6"), "{ended:?}");
}

#[test]
fn a_scenario_that_is_stopped_leaves_no_server() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("long.toml");
    let spool = place.path().join("spool");
    let scenario = format!(
        "measure = \"throughput\"\ntitle = \"Many messages\"\nrounds = 1\norder = \"alternating\"\n\
         parties = [\"{MAILRUN} relay --listen {{listen}} --to {{to}} --spool {}\"]\n\n[workload]\n\
         messages = 10_000_000\npublished_messages = 10_000_000\nmessage_size = \"400\"\nsessions = 2\nreuse = 1\n\
         pipelining = \"off\"\n",
        spool.display()
    );
    fs::write(&file, scenario).unwrap();
    let typed = ["a", "b"].map(|name| format!("{name}={}", file.display()));
    let words = ["compare", "--contestant", &typed[0], "--contestant", &typed[1], "--rounds", "1"];
    let compare = Process::start(MAILRUN, &words);
    wait_until("the relay", || spool.exists().then_some(()));
    compare.terminate();
    let ended = compare.finish();
    assert_eq!(processes_of(place.path()), 0, "{ended:?}");
}

#[test]
fn system_calls_are_counted_exactly() {
    if peer("strace").is_none() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let typed = ["a", "b"].map(|name| contestant(name, ""));
    let words = ["--contestant", &typed[0], "--contestant", &typed[1], "--rounds", "1", "--counts"];
    let (ended, result) = compare(&words, &place);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let rows = result["counts"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    let counts = ["system calls a message", "syncs a message", "bytes sent a message", "bytes received a message"];
    assert_eq!(names, counts, "{result}");
    assert!(rows[0]["values"].as_array().unwrap().len() == 2 && rows[0]["values"][0].as_f64() > Some(1.0), "{result}");
    assert_eq!((&rows[1]["change"], &rows[1]["values"][0]), (&"none".into(), &0.0.into()), "{result}");
    assert!(ended.out.contains("\nsyncs a message: b 0, as a.\n"), "{ended:?}");
    // For each message, the source sends the 400 bytes of the message, and also the commands and the header field with
    // the trace.
    assert!(rows[2]["values"][0].as_f64() > Some(400.0) && rows[2]["change"] == "none", "{result}");
    assert!(rows[3]["values"][0].as_f64() > Some(4.0), "{result}");
}
