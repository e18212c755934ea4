//! `mailrun bench` as a user runs it: its ledger balances, its files exist, and a run that cannot start says why in one
//! line.
use crate::party::{
    Bench, MAILRUN, Process, Sink, accepted, bench, errors, fates, low_port, mailrun, may_be_believed, source, stage,
    wait_until,
};
use crate::rows::is_refusal;
use mailrun_measurement::record::{Arrival, LedgerRow, MissingFate, Pipelining, Role};
use mailrun_measurement::{Phase, Stage};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;

/// If a script starts a sink and a bench at the same time, the bench must wait for the sink. The bench must also find
/// the address of `localhost` at which the sink listens, although nothing listens there at first.
#[test]
fn a_bench_waits_for_a_server_that_is_just_starting() {
    for host in ["127.0.0.1", "localhost"] {
        let port = low_port();
        let server = format!("{host}:{port}");
        let bench = Process::start(MAILRUN, &["bench", &server, "--messages", "5", "--quiet"]);
        let is_refused = || fs::read_dir(format!("/proc/{}/task", bench.id())).is_ok_and(|tasks| tasks.count() > 1);
        wait_until("the bench to start its source", || is_refused().then_some(()));
        let sink = Sink::start_at(&format!("127.0.0.1:{port}"), &[]);
        let ended = bench.finish();
        assert_eq!((ended.code, sink.took().messages), (Some(0), 5), "{host}: {ended:?}");
    }
}

#[test]
fn a_small_run_closes_and_leaves_its_files() {
    let run = bench(&["--messages", "500", "--sessions", "10", "--label", "small"]);
    let record = run.record_of(0);
    assert_eq!(fates(&record.ledger), [500, 500, 0, 0, 0]);
    assert!(record.verdict.closed && may_be_believed(&record), "{:?}", record.verdict);
    assert_eq!((record.name.as_str(), record.workload.messages), ("small", Some(500)));
    for name in [Stage::Created, Stage::Sent, Stage::Accepted, Stage::Delivered] {
        let row = stage(&record, name);
        assert_eq!((row.count, row.bytes > 0 || name == Stage::Created), (500, true), "{row:?}");
    }
    let timed = [Stage::Sent, Stage::Accepted, Stage::Delivered].map(|name| stage(&record, name).latency_ms.unwrap());
    assert!(timed.iter().all(|ms| 0.0 < ms.min && ms.min <= ms.p50 && ms.p50 <= ms.p99 && ms.p99 <= ms.max));
    for role in [Role::Source, Role::Sink] {
        let party = record.parties.iter().find(|party| party.role == role).unwrap();
        assert!(party.max_rss_bytes.is_some() && party.user_s.is_some(), "{party:?}");
    }
    assert!(record.errors.is_empty(), "{:?}", record.errors);
    let report = run.file("report.md");
    let word = if record.verdict.valid { "**PASS** 500 delivered, none lost" } else { "**INVALID**" };
    assert!(report.contains(word) && report.contains("small"), "{report}");
    let page = run.file("report.html");
    let word = if record.verdict.valid { "</span> PASS</strong>" } else { "</span> INVALID</strong>" };
    assert!(page.starts_with("<!doctype html>") && page.contains(word) && page.contains(&record.run_id), "{page}");
    let word = if record.verdict.valid { "PASS 500 delivered, none lost" } else { "INVALID " };
    assert!(run.ended.out.contains(word), "{}", run.ended.out);
    for name in ["source.hlog", "sink.hlog"] {
        assert!(run.file(name).starts_with('#'), "{name}");
    }
}

#[test]
fn run_json_is_valid_against_the_schema() {
    let validator = jsonschema::validator_for(&crate::manual::schema()).unwrap();
    let closed = bench(&["--messages", "100", "--sessions", "3"]);
    let lossy = bench(&["--rate", "200", "--duration", "500ms", "--fault", "drop 0.5", "--recipients", "2"]);
    for text in [closed.file("run.json"), lossy.file("run.json"), closed.file("source.json"), lossy.file("sink.json")] {
        let record: Value = serde_json::from_str(&text).unwrap();
        let faults: Vec<String> = validator.iter_errors(&record).map(|error| error.to_string()).collect();
        assert!(faults.is_empty(), "{faults:#?}\n{text}");
        assert_eq!(record["format"], "mailrun-run/1");
    }
    let mut broken: Value = serde_json::from_str(&closed.file("run.json")).unwrap();
    broken["ledger"]["lost"] = "none".into();
    assert!(!validator.is_valid(&broken), "the schema says no to what is wrong");
}

#[test]
fn twenty_thousand_over_a_hundred_sessions_are_all_accounted_for() {
    let record = bench(&["--messages", "20000", "--sessions", "100", "--reuse"]).record_of(0);
    assert_eq!(fates(&record.ledger), [20_000, 20_000, 0, 0, 0]);
    assert!(record.verdict.closed);
    let connections = record.phases.iter().find(|row| row.name == Phase::Connect).unwrap().count;
    assert_eq!(connections, 100, "connections are used again");
}

#[test]
fn every_pipelining_mode_delivers_all() {
    for (word, mode) in [("off", Pipelining::Off), ("group", Pipelining::Group), ("stream", Pipelining::Stream)] {
        for reuse in [None, Some("--reuse"), Some("--reuse=7")] {
            let words = ["--messages", "300", "--sessions", "5", "--pipelining", word];
            let record = bench(&[&words, reuse.as_slice()].concat()).record_of(0);
            assert_eq!(fates(&record.ledger), [300, 300, 0, 0, 0], "{word} {reuse:?}");
            assert_eq!(record.workload.pipelining, mode);
        }
    }
}

#[test]
fn messages_of_every_size_arrive_whole() {
    for (size, octets, messages) in [("300", 300, "200"), ("64k", 65_536, "100"), ("10M", 10 << 20, "4")] {
        let words =
            ["--messages", messages, "--sessions", "2", "--reuse", "--message-size", size, "--pipelining", "stream"];
        let record = bench(&words).record_of(0);
        let delivered = stage(&record, Stage::Delivered);
        assert_eq!(delivered.bytes, octets * delivered.count, "{size}");
        assert_eq!(record.ledger.corrupt, Some(0));
    }
}

#[test]
fn every_corrupt_message_is_found_and_said() {
    for more in [&["--relay", "none"][..], &["--message-size", "300"], &["--message-size", "20k", "--mime"]] {
        let run = bench(&[&["--messages", "1000", "--sessions", "20", "--fault", "corrupt 100%"], more].concat());
        let record = run.record_of(0);
        assert_eq!((record.ledger.delivered, record.ledger.corrupt), (Some(1000), Some(1000)), "{more:?}");
        let expected = "1,000 delivered, none lost, 1,000 corrupt (as ordered)";
        assert!(!record.verdict.valid || record.verdict.why == expected, "{}", record.verdict.why);
    }
}

#[test]
fn each_recipient_of_a_message_is_a_unit_of_its_own() {
    let record = bench(&["--messages", "100", "--sessions", "4", "--recipients", "25"]).record_of(0);
    assert_eq!(fates(&record.ledger), [2500, 2500, 0, 0, 0]);
    assert_eq!(stage(&record, Stage::Delivered).count, 100);
}

#[test]
fn a_sink_that_was_told_to_drop_is_found_out_and_named_with_the_count() {
    let words = ["--messages", "20000", "--sessions", "100", "--reuse", "--fault", "drop 0.001", "--seed", "1"];
    let run = bench(&words);
    let record = run.record_of(0);
    let lost = record.ledger.lost.unwrap();
    assert!((1..100).contains(&lost), "one in a thousand of 20,000: {lost}");
    assert_eq!(fates(&record.ledger), [20_000, 20_000 - lost, lost, 0, 0]);
    assert!(!record.verdict.closed);
    let named = format!("As ordered, lost: {lost}.");
    assert!(record.verdict.reasons.iter().any(|reason| reason.contains(&named)), "{:?}", record.verdict);
    assert!(run.ended.out.contains(&named), "{}", run.ended.out);
    assert!(run.file("report.md").contains(&named));
    for name in ["source.ledger", "sink.ledger"] {
        assert!(!run.file_bytes(name).is_empty(), "{name} says which ones");
    }
}

#[test]
fn messages_that_did_not_arrive_are_listed_with_the_servers_replies() {
    for (fault, fate, reply) in
        [("drop 20%", MissingFate::NotSeen, "250 2."), ("reject 20%", MissingFate::Rejected, "554 ")]
    {
        let words = ["--relay", "none", "--messages", "300", "--sessions", "5", "--pipelining", "stream", "--reuse"];
        let run = bench(&[&words[..], &["--recipients", "2", "--fault", fault, "--seed", "1"]].concat());
        let record = run.record_of(0);
        assert!((20..100).contains(&record.missing.len()), "{fault}: {}", record.missing.len());
        for message in &record.missing {
            let text = message.reply.as_deref().unwrap_or_default();
            assert!(message.fate == fate && text.starts_with(reply), "{fault}: {message:?}");
            assert_eq!((message.recipient_count, message.recipients.len()), (2, 2), "{fault}");
        }
        assert!(record.slowest.iter().all(|slow| slow.reply.as_deref().is_some_and(|reply| reply.starts_with("250"))));
        assert!(run.file("report.html").contains("Messages that did not arrive"));
    }
}

#[test]
fn open_loop_is_recorded_as_such() {
    let record =
        bench(&["--rate", "100", "--duration", "1s", "--sessions", "20", "--", "--arrival", "poisson"]).record_of(0);
    assert_eq!((record.workload.arrival, record.workload.rate_per_s), (Arrival::Poisson, Some(100.0)));
    assert_eq!(stage(&record, Stage::Accepted).since, Some(Stage::Scheduled));
}

#[test]
fn a_server_without_a_sink_behind_it_leaves_delivery_unknown() {
    let sink = Sink::start(&[]);
    let run = bench(&[&sink.address(), "--messages", "200", "--sessions", "5"]);
    let record = run.record_of(0);
    assert_eq!((record.ledger.accepted, record.ledger.delivered, record.ledger.lost), (Some(200), None, None));
    assert!(!record.verdict.closed, "nobody has seen them arrive");
    for text in [&run.ended.out, &run.file("report.md"), &run.file("run.json")] {
        assert!(text.contains("Delivery is unknown"), "{text}");
    }
    assert_eq!(sink.took().messages, 200);
}

#[test]
fn a_sink_that_saw_nothing_is_said_to_have_seen_nothing() {
    let [server, elsewhere] = [Sink::start(&[]), Sink::start(&[])];
    let run = bench(&[&server.address(), "--sink", elsewhere.url(), "--messages", "20", "--lost-after", "500ms"]);
    assert!(run.ended.out.contains("The sink has seen nothing"), "{}", run.ended.out);
    assert!(!run.ended.out.contains("is kept"), "{}", run.ended.out);
}

#[test]
fn a_single_message_shows_its_dialogue() {
    let sink = Sink::start(&[]);
    let shown = mailrun(&["source", &sink.address(), "--messages", "1", "--verbose"]);
    for line in [" -> MAIL FROM:<from@example.com>", " -> .\n<-  250 2.", "<-  221 "] {
        assert!(shown.out.contains(line), "{line}: {}", shown.out);
    }
    assert!(shown.out.trim_end().lines().last().is_some_and(|line| line.starts_with("PASS 1 accepted")), "{shown:?}");
    assert_eq!(sink.took().connections, 1, "there is no test connection");
}

#[test]
fn a_sink_at_the_far_end_closes_the_ledger() {
    let sink = Sink::start(&[]);
    let words = [&sink.address(), "--sink", sink.url(), "--messages", "300", "--sessions", "5"];
    let record = bench(&[words.as_slice(), &["--recipients", "3"]].concat()).record_of(0);
    assert_eq!(fates(&record.ledger), [900, 900, 0, 0, 0]);
    assert!(record.verdict.closed);
    let second = bench(&words).record_of(0);
    assert_eq!(fates(&second.ledger), [300, 300, 0, 0, 0], "a sink keeps runs apart");
    assert_eq!(second.ledger.foreign, Some(0), "the first run's messages came before");
    assert_eq!(sink.ask("/ledger").as_array().unwrap().len(), 2);
    assert_eq!(sink.ask(&format!("/ledger/{}", second.run_id))["delivered"], 300);
    assert_eq!(sink.ask(&format!("/record/{}", second.run_id))["format"], "mailrun-run/1");
    assert_eq!(sink.took().messages, 600);
}

#[test]
fn the_seconds_of_a_sink_have_every_message_as_soon_as_its_counts_have_it() {
    let sink = Sink::start(&[]);
    // The sink gets mail of four runs. The record of each run must count only this run's 20 messages.
    for all in [20, 40, 60, 80] {
        let run = source(&sink.address(), &["--messages", "20", "--sessions", "2"]).record.run_id;
        wait_until("all counted", || (sink.ask("/status")["messages"] == all).then_some(()));
        let record = sink.ask(&format!("/record/{run}"));
        let seconds = record["series"].as_array().unwrap().iter().map(|row| row["delivered"].as_u64().unwrap());
        assert_eq!(seconds.sum::<u64>(), 20);
    }
}

#[test]
fn a_lossy_sink_at_the_far_end_is_found_out() {
    let sink = Sink::start(&["--fault", "drop 0.1", "--seed", "3"]);
    let words =
        [&sink.address(), "--sink", sink.url(), "--messages", "200", "--sessions", "5", "--lost-after", "500ms"];
    let strict = bench(&[&words[..], &["--threshold", "not_delivered <= 0"]].concat());
    assert!(strict.record_of(1).verdict.why.starts_with("Threshold missed: not_delivered <= 0; it was "));
    let record = bench(&words).record_of(3);
    let took = sink.took().messages - strict.record_of(1).ledger.delivered.unwrap();
    assert!((1..200).contains(&took));
    let LedgerRow { created, delivered, lost, not_delivered, .. } = record.ledger;
    assert_eq!((created, delivered, lost, not_delivered), (Some(200), Some(took), None, Some(200 - took)));
}

#[test]
fn ctrl_c_in_mid_run_still_reports() {
    let bench = Bench::start(&["--duration", "60s", "--sessions", "5"]);
    wait_until("messages to be accepted", || {
        let said = bench.file("source.stdout");
        said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find(|event| event["accepted"] != 0)
    });
    bench.process.interrupt_group();
    let run = bench.finish();
    let record = run.record_of(130);
    let [created, delivered, ..] = fates(&record.ledger);
    assert!(created > 0 && delivered > 0, "{:?}", record.ledger);
    assert!(record.verdict.closed, "{:?}", record.verdict);
    assert!(record.verdict.reasons.iter().any(|reason| reason.contains("interrupted")), "{:?}", record.verdict);
    assert!(run.file("report.md").contains("interrupted"));
    assert!(run.file("report.html").contains("interrupted"));
}

#[test]
fn runs_go_to_a_directory_of_their_own_where_none_is_named() {
    let place = tempfile::tempdir().unwrap();
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_mailrun"))
        .args(["bench", "--relay", "none", "--messages", "20", "--sessions", "2", "--label", "my run"])
        .current_dir(place.path())
        .output()
        .unwrap();
    assert!(status.status.success());
    let results: Vec<_> = fs::read_dir(place.path().join("mailrun-results")).unwrap().collect();
    assert_eq!(results.len(), 1);
    let directory = results[0].as_ref().unwrap().path();
    assert!(directory.to_str().unwrap().ends_with("-my-run"), "{}", directory.display());
    assert!(directory.join("run.json").is_file() && directory.join("report.md").is_file());
}

#[test]
fn an_address_that_is_taken_is_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for words in [&["sink", "--listen", &taken][..], &["sink", "--listen", "127.0.0.1:0", "--http", &taken]] {
        let ended = mailrun(words);
        assert!(is_refusal(&ended, ["cannot listen"]), "{words:?}: {ended:?}");
    }
}

/// The help must show an option's text unchanged and under the right heading, although clap replaces `{n}` in texts.
#[test]
fn help_says_what_was_written() {
    let source = mailrun(&["source", "--help"]).out;
    let heading = |option: &str| {
        let lines = source.lines().take_while(|line| !line.trim_start().starts_with(option));
        lines.filter(|line| !line.starts_with(' ') && line.ends_with(':')).last().unwrap_or_default().to_owned()
    };
    assert!(heading("--dsn-envid").starts_with("Notifications"), "{source}");
    assert_eq!([heading("--workers"), heading("--tls <"), heading("--json")], ["Load:", "Connection:", "Results:"]);
    let envid = source.split("--dsn-envid").nth(1).unwrap().split("--dsn-orcpt").next().unwrap();
    assert!(envid.split_whitespace().collect::<Vec<_>>().join(" ").contains("in braces is replaced by the"), "{envid}");
    let sink = mailrun(&["sink", "--help"]).out;
    for command in ["starttls", "tls", "auth"] {
        let commands = sink.lines().find(|line| line.trim_start().starts_with("COMMAND ")).unwrap();
        assert!(commands.split_whitespace().any(|word| word == command), "{command}: {commands}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for words in [["--help"].as_slice(), &["--version"], &["bench", "--help"], &["source", "-h"], &["sink", "--help"]] {
        let ended = mailrun(words);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{words:?}");
        assert!(!ended.out.is_empty());
    }
    assert_eq!(mailrun(&[]).code, Some(2));
}

#[test]
fn refusals_are_no_losses() {
    let sink = Sink::start(&["--max-recipients", "2"]);
    let words = [&sink.address(), "--sink", sink.url(), "--messages", "50", "--recipients", "5", "--reuse"];
    let record = bench(&words).record_of(1);
    assert_eq!(fates(&record.ledger), [250, 100, 0, 0, 0]);
    assert_eq!(record.ledger.rejected, Some(150));
    assert_eq!(errors(&record, Phase::Rcpt, 452), 150);
    assert_eq!(accepted(&record), 50);
}
