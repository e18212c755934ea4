//! MADES on real brokers: ActiveMQ Artemis, which an ECP endpoint has inside, and RabbitMQ. The endpoint pair and the
//! bench are two clients of the broker, like an endpoint and a business application.
//!
//! `make test-slow PART=brokers` runs this file.
use crate::mades::{QUEUES, left_in, put};
use crate::party::{MAILRUN, Process, is_root, low_port, mailrun, peer, skip, wait_until};
use crate::stand_in_endpoint::Endpoint;
use mailrun_measurement::account::fates_sum;
use mailrun_measurement::record::{Mades, Record};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// A broker started by the test. It is killed when dropped.
struct Node {
    script: &'static str,
    /// Tar file of the Debian root that has the broker, or `None` if the broker runs directly on this host.
    root: Option<&'static str>,
    place: TempDir,
    /// Ports of the broker. The first port is for AMQP 1.0.
    ports: Vec<u16>,
}

impl Node {
    /// Starts ActiveMQ Artemis. Returns `None`, and notes the skipped test, if it cannot be installed here.
    fn artemis() -> Option<Self> {
        peer("java")?;
        let fetched = run("start-artemis.sh", &["--fetch"]);
        if !fetched.status.success() {
            skip("Artemis", &String::from_utf8_lossy(&fetched.stderr));
            return None;
        }
        Some(Self::start("start-artemis.sh", None, 1))
    }

    /// Starts this host's RabbitMQ. Returns `None`, and notes the skipped test, if it is not installed.
    fn rabbitmq() -> Option<Self> {
        peer("rabbitmq-server")?;
        Some(Self::start("start-rabbitmq.sh", None, 3))
    }

    /// Starts RabbitMQ 4 of Debian 13, which speaks AMQP 1.0 without a plugin. Returns `None`, and notes the skipped
    /// test, if it cannot run here.
    fn rabbitmq_4() -> Option<Self> {
        let tar = concat!(env!("CARGO_MANIFEST_DIR"), "/target/roots/rabbitmq-trixie.tar");
        if !is_root() || !Path::new(tar).is_file() {
            skip("RabbitMQ 4", "it needs root, and packaging/tests/debian-root.sh rabbitmq trixie");
            return None;
        }
        Some(Self::start("start-rabbitmq.sh", Some(tar), 3))
    }

    fn start(script: &'static str, root: Option<&'static str>, ports: usize) -> Self {
        let ports = std::iter::repeat_with(low_port).take(ports).collect();
        let node = Self { script, root, place: tempfile::tempdir().unwrap(), ports };
        node.run();
        node
    }

    fn directory(&self) -> String {
        self.place.path().join("broker").to_str().unwrap().to_owned()
    }

    fn run(&self) {
        let directory = self.directory();
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        let words: Vec<&str> = [&directory].into_iter().chain(&ports).map(String::as_str).collect();
        let root = self.root.map(|tar| ("RABBITMQ_ROOT", tar));
        let started = script(self.script).args(words).envs(root).output().unwrap();
        assert!(started.status.success(), "{started:?}");
    }

    /// Kills the broker, as a failing host would.
    fn kill(&self) {
        assert!(run(self.script, &["--kill", &self.directory()]).status.success());
    }

    fn url(&self) -> String {
        format!("amqp://endpoint:password@127.0.0.1:{}", self.ports[0])
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Ignore a failure here, because the test's own error matters more.
        let _ = run(self.script, &["--kill", &self.directory()]);
    }
}

fn script(name: &str) -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name))
}

fn run(name: &str, words: &[&str]) -> Output {
    script(name).args(words).output().unwrap()
}

/// A running `mailrun mades` at a broker.
struct Bench {
    process: Process,
    place: TempDir,
}

impl Bench {
    fn start(url: &str, words: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        // Without --no-preflight, the endpoint pair would count the preflight message as well.
        let fixed =
            ["mades", "--no-preflight", "--broker", url, "--live", "json", "--out", place.path().to_str().unwrap()];
        let words: Vec<&str> = fixed.into_iter().chain(words.split_whitespace()).collect();
        Self { process: Process::start(MAILRUN, &words), place }
    }

    /// Waits for the end of the process, and asserts that the record knows the fate of every message. Returns the
    /// record and the exit status.
    fn finish(self) -> (Record, Option<i32>) {
        let ended = self.process.finish();
        let text = fs::read_to_string(self.place.path().join("run.json")).unwrap_or_else(|_| panic!("{ended:?}"));
        let record: Record = serde_json::from_str(&text).unwrap();
        assert!(fates_sum(&record.ledger), "{:?}", record.ledger);
        assert_eq!(record.ledger.in_flight, Some(0), "{:?}", record.ledger);
        (record, ended.code)
    }
}

fn counts(record: &Record) -> Vec<u64> {
    record.stages.iter().map(|row| row.count).collect()
}

/// A run, and the counts of the endpoint pair on the same broker.
struct MadesRun {
    record: Record,
    code: Option<i32>,
    truth: Value,
}

impl MadesRun {
    fn go(url: &str, mode: &str, words: &str, faults: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let truth = place.path().join("truth.jsonl");
        let edx = if mode == "toolbox" { vec!["--prefix", "edx.endpoint"] } else { vec![] };
        let fixed = ["--broker", url, "--mode", mode, "--log-messages", truth.to_str().unwrap()];
        let endpoint =
            Endpoint::start(&fixed.into_iter().chain(edx).chain(faults.split_whitespace()).collect::<Vec<_>>());
        let (record, code) = Bench::start(url, &format!("--mode {mode} {words}")).finish();
        // The endpoint pair may still wait for confirmations when the bench has ended, because the broker may deliver a
        // message to the bench before it confirms the message to the endpoint pair.
        wait_until("the endpoint pair to have done with each message", || {
            let stories = fs::read(&truth).unwrap().iter().filter(|octet| **octet == b'\n').count() as u64;
            (Some(stories) >= record.ledger.created).then_some(())
        });
        assert_eq!(endpoint.stop().code, Some(0));
        let written = fs::read_to_string(&truth).unwrap();
        let last: Value = serde_json::from_str(written.lines().last().unwrap()).unwrap();
        Self { record, code, truth: last["totals"].clone() }
    }

    fn mades(&self) -> &Mades {
        self.record.mades.as_ref().unwrap()
    }

    fn did(&self, name: &str) -> u64 {
        let done = name.split('.').fold(&self.truth, |value, name| &value[name]);
        done.as_u64().unwrap_or_else(|| panic!("{name} in {}", self.truth))
    }

    /// Asserts that the bench and the endpoint pair counted the same number of messages in each stage.
    fn agrees(&self) {
        for row in &self.record.stages {
            let done = self.did(match row.name.name() {
                "replied" => "replies",
                "inbox" => "inboxed",
                "DELIVERED" => "events.delivered",
                "RECEIVED" => "events.received",
                "TRACING" => "events.tracing",
                _ => "consumed",
            });
            assert_eq!(
                row.count + row.duplicates,
                done,
                "{}: {:?} {}",
                row.name.name(),
                self.record.stages,
                self.truth
            );
        }
        assert_eq!((self.did("unfinished"), self.did("undeliverable")), (0, 0), "{}", self.truth);
    }
}

fn through(url: &str, mode: &str, words: &str, messages: u64, stages: usize) {
    let run = MadesRun::go(url, mode, &format!("--messages {messages} {words}"), "");
    let record = &run.record;
    let ledger = &run.record.ledger;
    assert_eq!(run.code, Some(0), "{mode}: {ledger:?} {:?}", record.verdict);
    assert_eq!(counts(record), vec![messages; stages], "{mode}");
    assert_eq!((ledger.lost, ledger.duplicates), (Some(0), Some(0)), "{mode}: {ledger:?}");
    let brokers = &record.mades.as_ref().unwrap().brokers;
    let is_named = |product: &str| ["artemis", "rabbitmq"].iter().any(|name| product.to_lowercase().contains(name));
    let all_named = brokers.iter().all(|broker| is_named(&broker.product) && !broker.version.is_empty());
    assert!(!brokers.is_empty() && all_named, "{brokers:?}");
    run.agrees();
}

/// Asserts that a run passes if it sends a preflight message before the load. The endpoint pair must answer this
/// message, and no count of the run may include it.
fn answer_a_first_message(url: &str) {
    let endpoint = Endpoint::start(&["--broker", url]);
    let ended = mailrun(&["mades", "--broker", url, "--messages", "20", "--live", "off"]);
    assert!(ended.code == Some(0) && ended.out.ends_with("PASS 20 delivered, none lost\n"), "{ended:?}");
    assert_eq!(endpoint.stop().code, Some(0));
}

#[test]
fn a_stranger_with_the_number_or_the_port_of_a_broker_is_left_alone() {
    let stranger = Process::start("sleep", &["600"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    for script in ["start-artemis.sh", "start-rabbitmq.sh"] {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().to_str().unwrap();
        for word in ["--stop", "--kill"] {
            // This file says that the broker had the stranger's process id and started soon after the boot. The
            // stranger started later, so the script must see that it is not the broker.
            fs::write(place.path().join("pid"), format!("{} 1\n", stranger.id())).unwrap();
            assert!(run(script, &[word, directory]).status.success());
            let command = fs::read(format!("/proc/{}/cmdline", stranger.id())).unwrap();
            assert!(!command.is_empty(), "{script} {word} has ended the stranger");
        }
        let refused = run(script, &[directory, &port]);
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && error.contains(&format!(":{port} already")), "{refused:?}");
    }
}

#[test]
#[ignore = "slow: make test-slow PART=brokers"]
fn every_mode_closes_its_account_on_artemis() {
    let Some(artemis) = Node::artemis() else { return };
    through(&artemis.url(), "endpoint", "--max-in-transit 100", 1000, 7);
    through(&artemis.url(), "endpoint", "--max-in-transit 10 --payload-size 1M --credit 10", 30, 7);
    through(&artemis.url(), "toolbox", "--max-in-transit 100", 300, 5);
    through(&artemis.url(), "tracing", "--max-in-transit 100", 300, 5);
    answer_a_first_message(&artemis.url());
}

#[test]
#[ignore = "slow: make test-slow PART=brokers"]
fn every_mode_closes_its_account_on_rabbitmq() {
    if let Some(rabbit) = Node::rabbitmq() {
        close_every_mode_on(&rabbit);
    }
}

#[test]
#[ignore = "slow: make test-slow PART=brokers"]
fn every_mode_closes_its_account_on_rabbitmq_4() {
    if let Some(rabbit) = Node::rabbitmq_4() {
        close_every_mode_on(&rabbit);
    }
}

fn close_every_mode_on(rabbit: &Node) {
    through(&rabbit.url(), "endpoint", "--max-in-transit 100", 1000, 7);
    through(&rabbit.url(), "endpoint", "--max-in-transit 10 --payload-size 1M --credit 10", 30, 7);
    through(&rabbit.url(), "endpoint", "--max-in-transit 100 --durable=false --credit 1 --max-unsettled 1", 100, 7);
    through(&rabbit.url(), "toolbox", "--max-in-transit 100", 300, 5);
    through(&rabbit.url(), "tracing", "--max-in-transit 100", 300, 5);
    answer_a_first_message(&rabbit.url());
}

#[test]
#[ignore = "slow: make test-slow PART=brokers"]
fn what_goes_wrong_on_rabbitmq_is_told_as_it_was_done() {
    let Some(rabbit) = Node::rabbitmq() else { return };
    let faults = "--seed 5 --drop 0.05 --duplicate 0.05 --corrupt 0.05 --reject 0.05 --fail 0.05";
    let run =
        MadesRun::go(&rabbit.url(), "endpoint", "--messages 400 --max-in-transit 100 --message-timeout 5s", faults);
    assert_eq!(run.code, Some(1), "{:?}", run.record.verdict);
    let ledger = &run.record.ledger;
    for (seen, name) in [
        (ledger.created, "consumed"),
        (ledger.delivered, "delivered"),
        (ledger.rejected, "refused"),
        (ledger.expired, "failed"),
        (ledger.lost, "lost"),
        (ledger.duplicates, "duplicated"),
        (ledger.corrupt, "corrupt_copies"),
    ] {
        assert_eq!(seen, Some(run.did(name)), "{name}: {ledger:?} {}", run.truth);
        assert!(seen > Some(0), "none {name}, so it was not tested");
    }
    run.agrees();
}

#[test]
#[ignore = "slow: make test-slow PART=brokers"]
fn what_is_somebody_elses_stays_in_the_queues_of_rabbitmq() {
    let Some(rabbit) = Node::rabbitmq() else { return };
    let url = rabbit.url();
    QUEUES.iter().zip([3, 2, 4]).for_each(|(queue, count)| put(&url, queue, count));
    let run = MadesRun::go(&url, "endpoint", "--messages 100 --max-in-transit 10", "");
    assert_eq!((run.code, run.record.ledger.delivered), (Some(0), Some(100)), "{:?}", run.record.verdict);
    let foreign: Vec<u64> = run.mades().queues.iter().map(|queue| queue.foreign).collect();
    assert_eq!(foreign, [0, 3, 2, 4], "outbox, reply, event, inbox");
    assert_eq!(QUEUES.map(|queue| left_in(&url, queue)), [3, 2, 4]);
}

#[test]
#[ignore = "slow: make test-slow PART=brokers"]
fn what_rabbitmq_refuses_is_told_in_a_line() {
    let Some(rabbit) = Node::rabbitmq() else { return };
    for (user, sasl, told) in [
        ("endpoint:wrong@", "PLAIN", "rejected the login of endpoint;"),
        ("endpoint:password@", "SCRAM-SHA-256", "does not offer SASL SCRAM-SHA-256"),
        ("", "ANONYMOUS", "the broker requires a login: use --user"),
    ] {
        let url = rabbit.url().replace("endpoint:password@", user);
        let ended = mailrun(&["mades", "--broker", &url, "--auth-mechanism", sasl, "--messages", "1"]);
        assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{ended:?}");
        assert!(ended.err.contains(told), "{ended:?}");
    }
}

#[test]
#[ignore = "slow: make test-slow PART=brokers"]
fn artemis_is_killed_and_comes_back_and_nothing_is_lost_untold() {
    let Some(artemis) = Node::artemis() else { return };
    survive_a_kill(&artemis);
}

#[test]
#[ignore = "slow: make test-slow PART=brokers"]
fn rabbitmq_is_killed_and_comes_back_and_nothing_is_lost_untold() {
    let Some(rabbit) = Node::rabbitmq() else { return };
    survive_a_kill(&rabbit);
}

/// quiver takes part in the comparison only if it is installed.
#[test]
#[ignore = "slow: make test-slow PART=brokers"]
fn other_clients_are_compared_on_artemis() {
    let Some(artemis) = Node::artemis() else { return };
    let broker = format!("amqp://127.0.0.1:{}", artemis.ports[0]);
    let tools = "mailrun,quiver,quiver-python,artemis-perf";
    let ended = mailrun(
        &[
            ["bench", "mades-compare", "--compare", tools, "--broker", &broker].as_slice(),
            &["--windows", "128,defaults", "--messages", "10000", "--rounds", "1", "--max-time", "3m"],
        ]
        .concat(),
    );
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let left_out = ended.out.lines().filter_map(|line| line.strip_prefix("Not compared because ")?.split_once(": "));
    let missing: Vec<&str> = left_out.flat_map(|(_, list)| list.trim_end_matches('.').split(", ")).collect();
    for (tool, rows) in [("mailrun mades", 2), ("quiver", 1), ("quiver-python", 1), ("artemis-perf", 1)] {
        if missing.contains(&tool) {
            skip(tool, "it is not installed, or does not run here");
            continue;
        }
        // A row begins with the tool and its window. Skip the window, because it may be a number. The next column of
        // the first table is the rate.
        let figures = |line: &str| -> Option<Vec<f64>> {
            let words = line.trim_start().strip_prefix(tool)?.strip_prefix(' ')?.split_whitespace().skip(1);
            Some(words.filter_map(|word| word.replace(',', "").parse().ok()).collect())
        };
        let found: Vec<Vec<f64>> = ended.out.lines().filter_map(figures).filter(|line| line.len() > 1).collect();
        assert!(found.len() >= 2 * rows, "{tool}: {ended:?}");
        assert!(found.iter().flatten().all(|figure| *figure >= 0.0) && found[0][0] > 1.0, "{tool}: {found:?}");
    }
}

/// Kills and restarts the broker during a run. No accepted message may be lost, and the run must report the outage.
fn survive_a_kill(node: &Node) {
    const MESSAGES: u64 = 3000;
    const UNDER_WAY: u64 = 50;
    let endpoint = Endpoint::start(&["--broker", &node.url()]);
    let load = format!("--messages {MESSAGES} --max-in-transit {UNDER_WAY} --message-timeout 50s");
    let bench = Bench::start(&node.url(), &load);
    wait_until("messages to go through", || delivered(&bench.process.said()).filter(|count| *count > 200));
    node.kill();
    node.run();
    let (record, _) = bench.finish();
    assert_fates_of_the_killed(&record, MESSAGES, UNDER_WAY);
    let mades = record.mades.as_ref().unwrap();
    assert!(mades.outages.iter().any(|outage| outage.lasted_s > 0.0), "{:?}", mades.outages);
    assert!(record.stages.iter().all(|row| row.missing == 0), "{:?}", record.stages);
    // The endpoint pair sends unconfirmed messages again. These messages may arrive twice, but none may be missing.
    let twice = mades.redelivered + record.stages.iter().map(|row| row.duplicates).sum::<u64>();
    let told = record.verdict.reasons.iter().any(|reason| reason.to_lowercase().contains("duplicates"));
    assert_eq!(told, twice > 0, "{twice} came twice: {:?}", record.verdict.reasons);
    assert_eq!(endpoint.stop().code, Some(0));
}

/// The bench sends nothing twice. A message that was not settled when the broker was killed is either in the broker's
/// journal and arrives, or has failed. No accepted message is missing.
fn assert_fates_of_the_killed(record: &Record, messages: u64, under_way: u64) {
    let ledger = &record.ledger;
    let troubles = &record.mades.as_ref().unwrap().troubles;
    let said = format!("{ledger:?} {troubles:?}");
    let of = |count: Option<u64>| count.unwrap_or_else(|| panic!("{said}"));
    let without_a_settlement = of(ledger.failed) + of(ledger.rejected);
    assert_eq!((ledger.created, of(ledger.delivered) + without_a_settlement), (Some(messages), messages), "{said}");
    assert_eq!((of(ledger.lost), of(ledger.expired), of(ledger.corrupt)), (0, 0, 0), "{said}");
    // The record must report each message without a settlement. Their number must not exceed the number of messages in
    // flight.
    let is_of_these =
        |kind: &str, code: &str| (kind, code) == ("time-out", "settled") || kind == "returned by the broker";
    let told: u64 = troubles.iter().filter(|row| is_of_these(&row.kind, &row.code)).map(|row| row.count).sum();
    assert_eq!(of(ledger.accepted) + told, messages, "{said}");
    assert!(without_a_settlement <= told && told <= under_way, "{said}");
}

fn delivered(said: &str) -> Option<u64> {
    let last = said.lines().rfind(|line| line.contains("\"delivered\"") && line.ends_with('}'))?;
    let event: serde_json::Value = serde_json::from_str(last).ok()?;
    event["delivered"].as_u64()
}
