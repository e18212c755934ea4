//! `mailrun mades`, `mailrun mades-endpoint` and `mailrun bench mades` as a user runs them. The bench must see exactly
//! what the simulated endpoints did, and it must report faults of its surroundings.
use crate::party::{Ended, LIMIT, MAILRUN, Process, ended_so, low_port, mailrun, undisturbed, wait_until};
use crate::rows::each;
use crate::stand_in_endpoint::Endpoint;
use mailrun_mades::api::{OutgoingProperties, Submission, payload};
use mailrun_mades::{Broker, Connection, IncomingDelivery, ReceiverOptions, SenderOptions, Uuid};
use mailrun_mades_simulator::embedded::{self, ListenOptions, ListenerAuth, MemoryQueues, QueueLimits, Writer};
use mailrun_measurement::account::fates_sum;
use mailrun_measurement::record::{Arrival, Ending, Mades, MadesHop, Record, StageRow};
use mailrun_measurement::{Latencies, Stage};
use std::fs;
use std::future::Future;
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Time that a busy machine may add to a median, in milliseconds. The tests know the true median, because the simulated
/// endpoints were told their delays.
const TOLERANCE_MS: f64 = 30.0;
const SECRET: &str = "geheim-4711";

struct Run {
    ended: Ended,
    record: Record,
    report: String,
    _place: TempDir,
}

impl Run {
    fn of(words: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let ended = mailrun(&[words, &["--out", place.path().to_str().unwrap()]].concat());
        Self::left(ended, place)
    }

    fn left(ended: Ended, place: TempDir) -> Self {
        let text = fs::read_to_string(place.path().join("run.json")).unwrap_or_else(|_| panic!("no record: {ended:?}"));
        let report = fs::read_to_string(place.path().join("report.md")).unwrap();
        let page = fs::read_to_string(place.path().join("report.html")).unwrap();
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"), "{page}");
        Self { ended, record: serde_json::from_str(&text).unwrap(), report, _place: place }
    }

    fn mades(&self) -> &Mades {
        self.record.mades.as_ref().unwrap()
    }

    fn stage(&self, name: &str) -> &StageRow {
        self.record.stages.iter().find(|row| row.name.name() == name).unwrap()
    }

    fn hop(&self, to: &str) -> &MadesHop {
        self.mades().hops.iter().find(|row| row.to == to).unwrap()
    }

    fn trouble(&self, kind: &str) -> u64 {
        self.mades().troubles.iter().filter(|row| row.kind == kind).map(|row| row.count).sum()
    }

    /// Asserts that the bench counted the same as the simulated endpoints. Returns the count with this name.
    fn agreed(&self, name: &str) -> u64 {
        let counts = &self.mades().truth.as_ref().unwrap().counts;
        for row in counts {
            assert_eq!(row.done, row.seen, "{}: {counts:?}", row.name);
        }
        counts.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("{name} in {counts:?}")).done
    }
}

/// Runs `mailrun bench mades WORDS`.
fn rehearse(words: &str) -> Run {
    let words: Vec<&str> = ["bench", "mades"].into_iter().chain(words.split_whitespace()).collect();
    Run::of(&words)
}

/// Runs `mailrun mades WORDS` against this broker.
fn bench(url: &str, words: &str) -> Run {
    let words: Vec<&str> = ["mades", "--broker", url].into_iter().chain(words.split_whitespace()).collect();
    Run::of(&words)
}

#[test]
fn every_mode_closes_its_account_at_a_closed_loop() {
    for (mode, last, stages) in
        [("endpoint", "RECEIVED", 7), ("toolbox", "replied", 5), ("amqp", "inbox", 4), ("tracing", "TRACING", 5)]
    {
        // Mode amqp has no endpoint to which a preset could apply.
        let preset = if mode == "amqp" { "" } else { "--preset ideal" };
        let load = "--messages 150 --max-in-transit 20 --max-unsettled 8 --payload-size 10..2k --payload xml";
        let run = rehearse(&format!("--mode {mode} {preset} {load}"));
        assert!(ended_so(run.ended.code, 0, &run.record), "{mode}: {:?}", run.ended);
        assert!(run.record.verdict.closed, "{mode}: {:?}", run.record.verdict);
        assert_eq!(run.record.stages.iter().map(|row| row.count).collect::<Vec<_>>(), vec![150; stages], "{mode}");
        assert_eq!(run.record.stages.last().unwrap().name.name(), last);
        assert!(run.mades().in_transit_mean <= 20.0);
        assert!(run.report.contains("## Stages") && run.report.contains("## Waterfall"), "{}", run.report);
        // In mode amqp, the stand-in is idle, so it has no counts that a section `Truth` could show.
        assert_eq!(run.report.contains("## Truth"), mode != "amqp");
        let parties: Vec<&str> = run.record.parties.iter().map(|party| party.name.as_str()).collect();
        assert_eq!(parties, ["mades", "mades-endpoint"]);
        assert!(run.record.host.disk.is_some(), "{:?}", run.record.host);
        assert!(run.record.stages.iter().all(|row| row.service_ms.is_none()), "closed loop: {:?}", run.record.stages);
        slowest_took_longest(&run.record, mode);
    }
}

#[test]
fn acknowledgements_come_back_to_the_senders_inbox_and_are_a_stage_of_their_own() {
    for (mode, stages) in [("endpoint", 8), ("toolbox", 6), ("amqp", 5)] {
        let preset = if mode == "amqp" { "" } else { "--preset ideal --network-delay 40ms" };
        let load = "--acknowledge --acknowledge-type ACK --messages 60 --max-in-transit 20";
        let run = rehearse(&format!("--mode {mode} {preset} {load} --threshold acknowledged.within(60s)>=100%"));
        assert!(ended_so(run.ended.code, 0, &run.record), "{mode}: {:?}", run.ended);
        assert_eq!(run.record.stages.iter().map(|row| row.count).collect::<Vec<_>>(), vec![60; stages], "{mode}");
        assert_eq!(run.record.stages.last().unwrap().name.name(), "acknowledged");
        let back = run.mades().acknowledgements.as_ref().unwrap();
        assert_eq!((back.sent, back.accepted, back.message_type.as_str()), (60, 60, "ACK"), "{mode}: {back:?}");
        let ledger = &run.record.ledger;
        assert_eq!((ledger.created, ledger.delivered, ledger.foreign), (Some(60), Some(60), Some(0)), "{mode}");
        assert!(
            run.report.contains("inbox → acknowledged") && run.report.contains("by a document to"),
            "{}",
            run.report
        );
        if mode == "amqp" {
            continue;
        }
        assert_eq!(back.receiver, "mailrun-endpoint-a", "the sender's code");
        assert_eq!((run.agreed("acknowledgements taken"), run.agreed("acknowledgements delivered")), (60, 60));
        let times = run.mades().truth.as_ref().unwrap().times.last().unwrap().clone();
        let done_ms = times.done_ms.unwrap();
        let seen_ms = times.seen_ms.unwrap();
        // The bench cannot see a message before the stand-in has sent it, and sending takes at least the delay of the
        // stand-in's network.
        assert!(done_ms.min >= 40.0 && seen_ms.min >= 40.0 && seen_ms.p50 >= done_ms.p50, "{mode}: {times:?}");
    }
}

#[test]
fn what_happens_to_acknowledgements_on_their_way_is_in_counts_of_their_own_and_fails_the_run() {
    let faults = "--drop 5% --reject 5% --fail 5% --duplicate 5% --corrupt 5% --reorder 10%";
    each(&["endpoint", "toolbox"], |mode| {
        let load = "--acknowledge --message-timeout 3s --rate 150 --duration 2s";
        let run = rehearse(&format!("--mode {mode} --seed 5 {load} {faults}"));
        assert!(ended_so(run.ended.code, 0, &run.record), "{mode}: {:?}", run.ended);
        assert_eq!(run.record.ledger.in_flight, Some(0));
        for name in ["taken", "refused", "failed", "delivered", "changed, each copy"] {
            assert!(run.agreed(&format!("acknowledgements {name}")) > 0, "{mode}: none {name}, so it was not tested");
        }
        let acknowledged = run.stage("acknowledged");
        assert!(
            acknowledged.missing > run.record.ledger.lost.unwrap() && acknowledged.duplicates > 0,
            "{acknowledged:?}"
        );
    });
    let endpoint = Endpoint::embedded(&["--drop", "20%", "--seed", "3"]);
    let run = bench(&endpoint.url, "--acknowledge --messages 60 --message-timeout 2s");
    assert_eq!(run.ended.code, Some(1), "nobody ordered it here: {:?}", run.ended);
    let reasons = &run.record.verdict.reasons;
    let missing =
        |reason: &String| reason.contains("never reached the stage acknowledged: ") && reason.contains(" sent");
    assert!(reasons.iter().any(missing), "{reasons:?}");
    assert_eq!(QUEUES.map(|queue| left_in(&endpoint.url, queue)), [0, 0, 0]);
}

#[test]
fn acknowledgements_of_a_receiver_at_another_broker_go_back_through_its_outbox() {
    let a = Endpoint::embedded(&["--prefix", "unused"]);
    let b = Endpoint::embedded(&["--prefix", "unused"]);
    let there = Endpoint::start(&["--broker", &a.url, "--inbox-broker", &b.url]);
    let words = format!("--inbox-broker {} --acknowledge --messages 40 --message-timeout 2s", b.url);
    let one_way = bench(&a.url, &words);
    let told = "40 acknowledgements sent, and none came back: does an endpoint read ecp.endpoint.outbox and send to";
    let reasons = &one_way.record.verdict.reasons;
    assert_eq!((one_way.ended.code, one_way.record.ledger.delivered), (Some(1), Some(40)), "{:?}", one_way.ended);
    assert!(reasons.iter().any(|reason| reason.contains(told)), "{reasons:?}");
    let back = Endpoint::start(&["--broker", &b.url, "--inbox-broker", &a.url]);
    let words = words.replace("2s", "30s");
    let both_ways = bench(&a.url, &words);
    assert!(ended_so(both_ways.ended.code, 0, &both_ways.record), "{:?}", both_ways.ended);
    assert_eq!((both_ways.stage("acknowledged").count, both_ways.stage("acknowledged").missing), (40, 0));
    drop((there, back));
}

#[test]
fn documents_of_the_receiver_are_known_by_the_mrid_that_they_acknowledge() {
    for mode in ["endpoint", "toolbox"] {
        for payload in ["xml", "random"] {
            let load = format!("--payload {payload} --await-acknowledgements --messages 60 --max-in-transit 20");
            let way =
                "--preset ideal --network-delay 20ms --document-delay 50ms --threshold acknowledged.within(60s)>=100%";
            let run = rehearse(&format!("--mode {mode} {load} {way}"));
            assert!(ended_so(run.ended.code, 0, &run.record), "{mode}: {:?}", run.ended);
            let last = run.record.stages.last().unwrap();
            assert_eq!((last.name.name(), last.count, last.missing), ("acknowledged", 60, 0), "{mode} {payload}");
            assert_eq!(run.agreed("acknowledgements put into the inbox"), 60);
            // The acknowledgement of the preflight message does not count as foreign.
            assert_eq!(run.record.ledger.foreign, Some(0), "{:?}", run.mades().acknowledgements);
            assert!(run.mades().acknowledgements.as_ref().unwrap().way_back_ms.is_some());
            assert!(run.report.contains("by a document of ecp-endpoint"), "{}", run.report);
        }
    }
}

#[test]
fn what_happens_to_documents_of_the_receiver_is_in_counts_of_their_own_and_fails_the_run() {
    let faults =
        "--drop 5% --reject 5% --fail 5% --no-reply 5% --duplicate 5% --corrupt 5% --reorder 10% --reject-documents 5%";
    each(&["endpoint", "toolbox"], |mode| {
        let load = "--payload xml --await-acknowledgements --message-timeout 3s --rate 150 --duration 2s";
        let run = rehearse(&format!("--mode {mode} --seed 5 {load} {faults}"));
        assert!(ended_so(run.ended.code, 0, &run.record), "{mode}: {:?}", run.ended);
        assert_eq!(run.record.ledger.in_flight, Some(0));
        for name in ["acknowledgements put there twice", "rejecting acknowledgements", "not acknowledged"] {
            assert!(run.agreed(name) > 0, "{mode}: none {name}, so it was not tested");
        }
        let rejections = run.mades().troubles.iter().find(|row| row.kind == "rejecting acknowledgement").unwrap();
        assert_eq!((rejections.code.as_str(), rejections.text.as_str()), ("A02", "Message fully rejected"));
    });
    let endpoint = Endpoint::embedded(&["--acknowledgement-documents", "--reject-documents", "20%", "--seed", "3"]);
    let load = "--payload xml --await-acknowledgements --messages 60 --message-timeout 5s";
    let run = bench(&endpoint.url, &format!("{load} --threshold acknowledged.within(1m)>=95%"));
    let rejecting = run.mades().acknowledgements.as_ref().unwrap().rejecting;
    let told = format!(
        "Rejected by acknowledgement documents: {rejecting} messages (rejecting acknowledgement A02 {rejecting} times)."
    );
    assert!(run.ended.code == Some(1) && run.record.verdict.reasons.contains(&told), "{:?}", run.record.verdict);
    assert_eq!((run.stage("acknowledged").count, run.stage("acknowledged").missing), (60 - rejecting, 0));
    assert!(!run.record.thresholds[0].passed, "a rejected message is not acknowledged: {:?}", run.record.thresholds);
    let silent = Endpoint::embedded(&[]);
    let run = bench(&silent.url, "--payload xml --await-acknowledgements --messages 3 --message-timeout 1s");
    let told = "Missing: 3 messages never reached the stage acknowledged: does ecp-endpoint send acknowledgement documents, and do \
                they come into ecp.endpoint.inbox?";
    assert!(run.record.verdict.reasons.iter().any(|reason| reason == told), "{:?}", run.record.verdict);
}

#[test]
fn documents_of_a_receiver_at_another_broker_come_to_the_senders() {
    let a = Endpoint::embedded(&["--prefix", "unused"]);
    let b = Endpoint::embedded(&["--prefix", "unused"]);
    let pair = Endpoint::start(&["--broker", &a.url, "--inbox-broker", &b.url, "--acknowledgement-documents"]);
    let words = "--payload xml --await-acknowledgements --messages 40 --message-timeout 30s";
    let run = bench(&a.url, &format!("--inbox-broker {} {words}", b.url));
    assert!(ended_so(run.ended.code, 0, &run.record), "{:?}", run.ended);
    assert_eq!((run.stage("acknowledged").count, run.record.ledger.foreign), (40, Some(0)));
    drop(pair);
}

#[test]
fn a_document_for_no_message_and_one_that_cannot_be_read_have_their_names() {
    let endpoint = Endpoint::embedded(&["--acknowledgement-documents"]);
    let document = |about: &str| {
        let about = format!("<received_MarketDocument.mRID>{about}</received_MarketDocument.mRID>");
        format!(
            "<Acknowledgement_MarketDocument>{about}<Reason><code>A01</code></Reason></Acknowledgement_MarketDocument>"
        )
    };
    let run_id = "0123456789abcdef0123456789abcdef";
    // Before the run, put three documents into the inbox. The first document is about message 100 of the run, which is
    // never sent. The second is about a foreign message, and the third is broken.
    let texts =
        [document("0123456789ab8def8000000000000064"), document("DOC-1"), document("DOC-2").replace("mRID", "id")];
    at_the_broker(async {
        let mut connection = connect(&endpoint.url).await;
        let mut inbox = connection.attach_sender(&SenderOptions::new("ecp.endpoint.inbox", 10)).await.unwrap();
        for (number, text) in texts.iter().enumerate() {
            let properties = OutgoingProperties::new("ecp-endpoint", "ACK");
            let mut template = properties.template(Uuid::from_u128(77), payload(text.clone().into_bytes()));
            inbox.send(template.fill(number as u64, 0)).await.unwrap().await.unwrap();
        }
    });
    let words = "--no-preflight --payload xml --await-acknowledgements --rate 20 --messages 10 --message-timeout 5s";
    let run = bench(&endpoint.url, &format!("{words} --run-id {run_id}"));
    let back = run.mades().acknowledgements.as_ref().unwrap();
    assert_eq!((back.unknown, back.unreadable, back.rejecting), (2, 1, 0), "{back:?}");
    let acknowledged = run.stage("acknowledged");
    assert_eq!((acknowledged.count, acknowledged.duplicates, acknowledged.missing), (10, 0, 0), "{acknowledged:?}");
    assert_eq!(run.ended.code, Some(0), "others may have their documents there: {:?}", run.ended);
    let codes: Vec<_> =
        run.mades().troubles.iter().map(|row| (row.kind.as_str(), row.code.as_str(), row.count)).collect();
    assert_eq!(codes, [("acknowledgement", "unknown document", 2), ("acknowledgement", "unreadable", 1)]);
    // The bench must return the document about the foreign message and the broken document to the queue.
    assert_eq!(left_in(&endpoint.url, "ecp.endpoint.inbox"), 2);
}

#[test]
fn what_the_stand_in_does_wrong_the_bench_sees_exactly() {
    let faults =
        "--drop 5% --reject 5% --fail 5% --no-reply 5% --reject-code E77 --message-timeout 3s --rate 150 --duration 2s";
    each(&["endpoint", "toolbox", "tracing"], |mode| {
        let mode = *mode;
        // In mode tracing, messages never reach an inbox, so the faults of an inbox do not apply.
        let of_an_inbox = if mode == "tracing" { "" } else { "--duplicate 5% --corrupt 5% --reorder 10%" };
        let run = rehearse(&format!("--mode {mode} --seed 5 {faults} {of_an_inbox}"));
        // The user ordered all faults, and the bench's counts equal the stand-in's, so the run passes.
        assert!(ended_so(run.ended.code, 0, &run.record), "{mode}: {:?}", run.ended);
        assert!(run.record.verdict.reasons.iter().any(|reason| reason.starts_with("As ordered (")), "{mode}");
        assert!(!run.record.verdict.closed && fates_sum(&run.record.ledger), "{mode}: {:?}", run.record.ledger);
        assert_eq!(run.record.ledger.in_flight, Some(0));
        for name in ["refused", "failed", "lost", "not replied to"] {
            assert!(run.agreed(name) > 0, "{mode}: none {name}, so it was not tested");
        }
        if mode != "tracing" {
            for name in ["put there twice", "changed, each copy", "overtaken"] {
                assert!(run.agreed(name) > 0, "{mode}: none {name}, so it was not tested");
            }
        }
        if mode != "toolbox" {
            let refusals = run.mades().troubles.iter().find(|row| row.kind == "error reply").unwrap();
            assert_eq!((refusals.code.as_str(), refusals.count), ("E77", run.agreed("refused")));
        }
        assert!(run.trouble("time-out") >= run.agreed("lost"), "{:?}", run.mades().troubles);
    });
}

#[test]
fn what_an_endpoint_does_wrong_fails_the_run() {
    let faults = ["--reject", "5%", "--drop", "5%", "--duplicate", "5%", "--corrupt", "5%", "--fail", "5%"];
    let endpoint = Endpoint::embedded(&[&faults[..], &["--seed", "5"]].concat());
    let run = bench(&endpoint.url, "--messages 300 --message-timeout 2s");
    assert_eq!(run.ended.code, Some(1), "{:?}", run.ended);
    let reasons = run.record.verdict.reasons.concat();
    for text in [" rejected", "never arrived", "more than once", "Corrupt: ", "given up by the endpoint"] {
        assert!(reasons.contains(text), "{text}: {reasons}");
    }
}

#[test]
fn each_step_takes_as_long_as_the_stand_in_was_told() {
    let way = "--preset ideal --accept-delay 60ms --network-delay 150ms --acknowledge-delay 90ms --receive-delay 70ms";
    let look = || {
        let run = rehearse(&format!("{way} --rate 40 --duration 3s"));
        assert!(ended_so(run.ended.code, 0, &run.record), "{:?}", run.ended);
        let hops = [("inbox", 150.0), ("DELIVERED", 90.0), ("RECEIVED", 70.0)];
        let hops = hops.map(|(to, told_ms)| (to, run.hop(to).latency_ms.unwrap().p50, told_ms));
        let mut times = Vec::new();
        assert_eq!(run.mades().truth.as_ref().unwrap().times.len(), 4);
        for row in &run.mades().truth.as_ref().unwrap().times {
            let done = row.done_ms.unwrap();
            let seen = row.seen_ms.unwrap();
            // The bench cannot see a step before the stand-in has done it. Allow 0.2 %, because the histograms round
            // times.
            for (done, seen) in [(done.p50, seen.p50), (done.min, seen.min)] {
                assert!(seen >= done * 0.998, "{}: {seen} of {done}", row.stage);
                times.push((row.stage.clone(), seen, done));
            }
        }
        (hops, times)
    };
    // A busy machine adds delay, so repeat the run until the times are right once.
    undisturbed(look, |(hops, times)| {
        let in_time = hops.iter().all(|(_, p50, told_ms)| (p50 - told_ms).abs() <= TOLERANCE_MS);
        in_time && times.iter().all(|(_, seen, done)| *seen <= done + 2.0 * TOLERANCE_MS)
    });
}

#[test]
fn an_open_loop_offers_what_it_says() {
    let run = rehearse("--preset ideal --stage 1s:50/s --stage 1s:50/s..150/s --arrival poisson --max-unsettled 64");
    assert!(ended_so(run.ended.code, 0, &run.record), "{:?}", run.ended);
    let created = run.record.ledger.created.unwrap();
    assert!((90..220).contains(&created), "{created} of some 150");
    assert!(run.record.lag_ms.is_some());
    for row in run.record.stages.iter().filter(|row| row.name != Stage::Created) {
        let service = row.service_ms.unwrap_or_else(|| panic!("open loop: {row:?}"));
        assert!(service.mean <= row.latency_ms.unwrap().mean, "{row:?}");
        assert_eq!(Latencies::decode(row.service_histogram.as_ref().unwrap()).unwrap().count(), created, "{row:?}");
    }
    assert!(
        run.record.slowest.iter().all(|message| Some(message.waited_ms) <= message.accepted_ms),
        "{:?}",
        run.record.slowest
    );
}

/// Asserts that the record lists the 50 slowest of 150 messages, each with its times and its receiver.
fn slowest_took_longest(record: &Record, mode: &str) {
    let slowest = &record.slowest;
    assert_eq!(slowest.len(), 50, "{mode}");
    assert!(slowest.is_sorted_by(|one, other| one.delivered_ms >= other.delivered_ms), "{mode}: {slowest:?}");
    let delivered = record.stage(Stage::Delivered).unwrap().latency_ms.unwrap();
    // The histogram keeps three digits, so its maximum may differ a little from the exact time.
    let longest_ms = slowest[0].delivered_ms.unwrap();
    assert!((longest_ms - delivered.max).abs() <= longest_ms * 0.002 + 0.001, "{mode}: {longest_ms} {delivered:?}");
    for message in slowest {
        let phases_ms: f64 = message.phases.iter().map(|phase| phase.ms).sum();
        assert!(phases_ms + message.waited_ms <= message.accepted_ms.unwrap() + 0.01, "{mode}: {message:?}");
        assert!(message.message < 150 && message.bytes > 0 && message.created_s >= 0.0, "{mode}: {message:?}");
        assert_eq!((message.recipients.len(), message.recipient_count), (1, 1), "{mode}: {message:?}");
    }
}

#[test]
fn an_interrupted_run_reports_and_serves_metrics_until_then() {
    let endpoint = Endpoint::embedded(&[]);
    let http = format!("127.0.0.1:{}", low_port());
    let place = tempfile::tempdir().unwrap();
    let out = place.path().to_str().unwrap().to_owned();
    let words = ["mades", "--broker", &endpoint.url, "--rate", "100", "--live", "json", "--out", &out];
    let process = Process::start(MAILRUN, &[words.as_slice(), &["--duration", "50s", "--http", &http]].concat());
    wait_until("messages", || process.said().contains("\"created\":1").then_some(()));
    wait_until("messages of the last stage in the metrics", || {
        let text = ureq::get(&format!("http://{http}/metrics")).call().ok()?.body_mut().read_to_string().ok()?;
        let line = text.lines().find(|line| line.starts_with("mailrun_mades_stage_seconds_count{stage="))?;
        let count: u64 = line.rsplit_once(' ')?.1.parse().ok()?;
        (count > 0).then_some(())
    });
    process.interrupt_group();
    let run = Run::left(process.finish(), place);
    assert_eq!(run.ended.code, Some(130), "{:?}", run.ended);
    assert!(run.record.ledger.created.unwrap() < 4_000 && fates_sum(&run.record.ledger));
    assert!(run.record.verdict.reasons.iter().any(|reason| reason.contains("interrupted")), "{:?}", run.record.verdict);
    assert!(endpoint.stop().out.contains("done"));
}

#[test]
fn what_cannot_run_says_so_in_a_line() {
    let guarded = Endpoint::guarded("u", SECRET);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("amqp://{}", silent.local_addr().unwrap());
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("amqp://{nobody}");
    let wrong = format!("amqp://u:{SECRET}-wrong@{}", &guarded.url[7..]);
    let no_tls = guarded.url.replace("amqp:", "amqps:");
    for (words, what) in [
        (vec!["--broker", "http://127.0.0.1"], "amqp:// or amqps://"),
        (vec!["--broker", "amqp://127.0.0.1:99999"], "not a broker URL"),
        (vec!["--broker", "amqp://8.8.8.8"], "--allow-public"),
        (vec!["--broker", &nobody], "nothing listens at"),
        (vec!["--broker", &wrong], "check user and password"),
        (vec!["--broker", &guarded.url], "u"),
        (vec!["--broker", &no_tls, "--insecure"], "TLS"),
        (vec!["--broker", &silent, "--connect-timeout", "500ms"], "took longer than 0.5 s"),
        (vec!["--user", "u", "--password-file", "/nowhere/at/all"], "/nowhere/at/all"),
        (vec!["--payload", "/nowhere/at/all"], "/nowhere/at/all"),
    ] {
        let ended = mailrun(&[&["mades", "--messages", "1"], words.as_slice()].concat());
        assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
        assert!(ended.err.contains(what), "{words:?}: {what} in {ended:?}");
        assert!(ended.err.starts_with("mailrun: ") && ended.err.lines().count() == 1, "{ended:?}");
        assert!(!ended.err.contains(SECRET) && ended.out.is_empty(), "{ended:?}");
    }
}

#[test]
fn a_queue_that_no_endpoint_reads_is_named_before_the_load() {
    let endpoint = Endpoint::embedded(&[]);
    let [prefix, mode] = [["--prefix", "wrong"], ["--mode", "toolbox"]];
    let cases = [(prefix, "does an endpoint read wrong.outbox?"), (mode, "does a toolbox read edx.endpoint.outbox?")];
    each(&cases, |(words, outbox)| {
        let ended =
            mailrun(&[&["mades", "--broker", &endpoint.url, "--messages", "100", "--quiet"], &words[..]].concat());
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended:?}");
        let last = ended.err.lines().last().unwrap_or_default();
        assert!(last.starts_with("mailrun: no reply came to ") && last.contains(outbox), "{ended:?}");
    });
    endpoint.stop();
}

#[test]
fn the_first_message_is_in_no_figure_and_leaves_nothing_behind() {
    let endpoint = Endpoint::embedded(&[]);
    for mode in ["endpoint", "tracing", "amqp"] {
        let run = bench(&endpoint.url, &format!("--mode {mode} --messages 20"));
        let ledger = &run.record.ledger;
        assert_eq!((run.ended.code, ledger.created), (Some(0), Some(20)), "{mode}: {:?}", run.ended);
        assert_eq!((ledger.delivered, ledger.foreign), (Some(20), Some(0)), "{mode}: {ledger:?}");
    }
    // A message that the endpoint rejects counts as answered.
    let rejecting = Endpoint::embedded(&["--reject", "100%"]);
    let run = bench(&rejecting.url, "--messages 10");
    assert_eq!((run.ended.code, run.record.ledger.rejected), (Some(1), Some(10)), "{:?}", run.ended);
}

#[test]
fn passwords_are_written_nowhere() {
    let endpoint = Endpoint::guarded("u", SECRET);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), format!("{SECRET}\n")).unwrap();
    let in_url = endpoint.url.replace("//", &format!("//u:{SECRET}@"));
    let path = file.path().to_str().unwrap();
    for (url, words) in
        [(&endpoint.url, format!("--user u --password-file {path}")), (&in_url, "--durable=false".to_owned())]
    {
        let run = bench(url, &format!("--messages 20 {words}"));
        assert!(ended_so(run.ended.code, 0, &run.record), "{:?}", run.ended);
        let record = serde_json::to_string(&run.record).unwrap();
        for text in [&run.ended.out, &run.ended.err, &run.report, &record] {
            assert!(!text.contains(SECRET), "{text}");
        }
    }
    let ended = endpoint.stop();
    assert!(!ended.out.contains(SECRET) && !ended.err.contains(SECRET), "{ended:?}");
}

pub(crate) fn at_the_broker<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async { tokio::time::timeout(LIMIT, work).await.expect("the broker answers in time") })
}

async fn connect(url: &str) -> Connection {
    Connection::open(&Broker::new(url.parse().unwrap(), "somebody")).await.unwrap()
}

/// Puts messages that do not belong to the run into a queue.
pub(crate) fn put(url: &str, queue: &str, count: u64) {
    at_the_broker(async {
        let mut connection = connect(url).await;
        let mut outlet = connection.attach_sender(&SenderOptions::new(queue, 1)).await.unwrap();
        let mut template =
            OutgoingProperties::new("r", "t").template(Uuid::from_bytes([7; 16]), payload(*b"somebody's"));
        for number in 0..count {
            let settled = outlet.send(template.fill(number, 0)).await.unwrap().await.unwrap();
            assert_eq!(settled, mailrun_mades::Disposition::Accepted);
        }
        outlet.close().await.unwrap();
    });
}

/// Removes all messages from a queue, and returns their number.
pub(crate) fn left_in(url: &str, queue: &str) -> u64 {
    at_the_broker(async {
        let mut connection = connect(url).await;
        let mut inlet = connection.attach_receiver(&ReceiverOptions::new(queue, 100)).await.unwrap();
        let mut count = 0;
        while let Ok(arrival) = tokio::time::timeout(Duration::from_millis(700), inlet.next()).await {
            match arrival.unwrap() {
                IncomingDelivery::Delivery(delivery) => inlet.accept(delivery.handle).unwrap(),
                IncomingDelivery::Undecodable { why, .. } => panic!("{why}"),
            }
            count += 1;
        }
        let _ = inlet.close().await;
        count
    })
}

pub(crate) const QUEUES: [&str; 3] = ["ecp.endpoint.outbox.reply", "ecp.endpoint.send.event", "ecp.endpoint.inbox"];

#[test]
fn what_is_somebody_elses_stays_his() {
    let endpoint = Endpoint::embedded(&[]);
    QUEUES.iter().zip([3, 2, 4]).for_each(|(queue, count)| put(&endpoint.url, queue, count));
    let run = bench(&endpoint.url, "--messages 100 --max-in-transit 10");
    assert!(ended_so(run.ended.code, 0, &run.record), "{:?}", run.ended);
    assert_eq!((run.record.ledger.foreign, run.record.ledger.delivered), (Some(9), Some(100)));
    let foreign: Vec<u64> = run.mades().queues.iter().map(|queue| queue.foreign).collect();
    assert_eq!(foreign, [0, 3, 2, 4], "outbox, reply, event, inbox");
    assert_eq!(QUEUES.map(|queue| left_in(&endpoint.url, queue)), [3, 2, 4]);
}

#[test]
fn a_purge_is_asked_for() {
    let endpoint = Endpoint::embedded(&[]);
    QUEUES.iter().zip([3, 2, 4]).for_each(|(queue, count)| put(&endpoint.url, queue, count));
    let run = bench(&endpoint.url, "--messages 20 --purge");
    assert_eq!(
        (run.ended.code, run.mades().purged, run.record.ledger.foreign),
        (Some(0), 9, Some(0)),
        "{:?}",
        run.ended
    );
    assert_eq!(QUEUES.map(|queue| left_in(&endpoint.url, queue)), [0, 0, 0]);
}

#[test]
fn a_queue_that_is_full_of_somebody_elses_is_named_and_left_alone() {
    let endpoint = Endpoint::embedded(&[]);
    put(&endpoint.url, QUEUES[2], 40);
    let run =
        bench(&endpoint.url, "--no-preflight --mode amqp --credit 10 --rate 20 --duration 20s --message-timeout 2s");
    assert_eq!(run.ended.code, Some(1), "{:?}", run.ended);
    assert_eq!(run.trouble("queue in use"), 1, "{:?}", run.mades().troubles);
    // The run must stop long before its 20 s are over. It must not receive and release the foreign messages in a busy
    // loop.
    assert!(run.record.ledger.created.unwrap() < 300, "{:?}", run.record.ledger);
    assert!(run.mades().released < 5 * 10 * 30, "{} given back", run.mades().released);
    let lost = run.record.ledger.lost.unwrap();
    assert_eq!(left_in(&endpoint.url, QUEUES[2]), 40 + lost, "his, and behind them ours");
    assert!(give_up_reason(&run).contains("too many messages of other senders"), "{:?}", run.record.verdict);
}

#[test]
fn a_run_that_a_foreign_queue_cut_short_does_not_pass() {
    let endpoint = Endpoint::embedded(&[]);
    put(&endpoint.url, QUEUES[2], 60);
    // The credit of 100 is enough for the 60 foreign messages and the run's own messages, so everything that the run
    // sends arrives. The only fault is that the run ends before it has sent all its messages.
    let words = "--no-preflight --mode amqp --credit 100 --rate 10/m --duration 60s --message-timeout 2s";
    let run = bench(&endpoint.url, words);
    let reason = give_up_reason(&run);
    assert!(reason.contains("too many messages of other senders") && reason.contains("were never sent"), "{reason}");
}

/// Options of a run in which no message gets through. If the run waited for the time-out of each message, it would take
/// a minute.
const IN_VAIN: &str = "--no-preflight --messages 2000 --max-in-transit 10 --message-timeout 300ms";

fn give_up_reason(run: &Run) -> &str {
    assert_eq!((run.ended.code, run.record.ending), (Some(1), Some(Ending::GaveUp)), "{:?}", run.ended);
    assert!(fates_sum(&run.record.ledger), "{:?}", run.record.ledger);
    assert!(run.record.ledger.created < Some(2000), "{:?}", run.record.ledger);
    let reason = run.record.verdict.reasons.iter().find(|reason| reason.starts_with("The run was given up ("));
    reason.unwrap_or_else(|| panic!("{:?}", run.record.verdict))
}

#[test]
fn a_run_without_credit_is_given_up() {
    // The queue has room for five messages, and nobody removes any, so the broker soon gives no more credit.
    let endpoint = Endpoint::embedded(&["--outage", "A.down 0s..10m", "--max-queue-messages", "5"]);
    let run = bench(&endpoint.url, &format!("{IN_VAIN} --reconnect-timeout 1s"));
    let reason = give_up_reason(&run);
    assert!(reason.contains("the broker gave no credit for"), "{reason}");
    assert_eq!((run.record.ledger.delivered, run.record.ledger.in_flight), (Some(0), Some(0)));
    assert!(run.trouble("time-out") > 0, "{:?}", run.mades().troubles);
}

#[test]
fn a_run_that_nobody_answers_is_given_up() {
    let endpoint = Endpoint::embedded(&["--outage", "A.down 0s..10m"]);
    let run = bench(&endpoint.url, &format!("{IN_VAIN} --reconnect-timeout 1s"));
    let reason = give_up_reason(&run);
    assert!(reason.contains("no message was answered for"), "{reason}");
}

#[test]
fn an_outage_counts_from_the_first_message() {
    const OUTAGE: [&str; 2] = ["--outage", "A.down 0s..1s"];
    let broker = Endpoint::embedded(&["--prefix", "unused"]);
    let endpoints =
        [Endpoint::embedded(&OUTAGE), Endpoint::start(&[["--broker", &broker.url].as_slice(), &OUTAGE].concat())];
    // Wait longer than the outage of 1 s. If it counted from the start of the endpoints, it would then be over before
    // the first message.
    thread::sleep(Duration::from_millis(1200));
    for url in [&endpoints[0].url, &broker.url] {
        let run = bench(url, "--no-preflight --messages 5");
        let record = &run.record;
        let latency = record.stage(Stage::Delivered).and_then(|row| row.latency_ms).unwrap();
        // Later messages may be created within the outage, and wait for less time than the first.
        assert!(record.ledger.delivered == Some(5) && latency.max >= 900.0, "{:?}", run.ended);
    }
}

#[test]
fn a_run_with_a_duration_waits_for_a_silent_endpoint() {
    let endpoint = Endpoint::embedded(&["--outage", "A.down 1s..3s"]);
    let words = "--no-preflight --rate 40 --duration 4s --message-timeout 300ms --reconnect-timeout 300ms";
    let run = bench(&endpoint.url, words);
    assert_eq!((run.record.ending, run.record.ledger.created), (Some(Ending::Complete), Some(160)), "{:?}", run.ended);
}

#[test]
fn messages_that_a_stopped_endpoint_leaves_in_the_outbox_wait() {
    let broker = Endpoint::embedded(&["--prefix", "unused"]);
    let endpoint = Endpoint::start(&["--broker", &broker.url]);
    let place = tempfile::tempdir().unwrap();
    let out = place.path().to_str().unwrap().to_owned();
    let words = ["mades", "--broker", &broker.url, "--no-preflight", "--rate", "40", "--duration", "3s"];
    let words = [&words[..], &["--message-timeout", "1s", "--live", "json", "--out", &out]].concat();
    let process = Process::start(MAILRUN, &words);
    wait_until("messages", || process.said().contains("\"delivered\":2").then_some(()));
    endpoint.stop();
    let run = Run::left(process.finish(), place);
    let ledger = &run.record.ledger;
    assert_eq!(run.ended.code, Some(1), "{:?}", run.ended);
    assert!(ledger.queued > Some(10) && ledger.lost < Some(10) && fates_sum(ledger), "{ledger:?}");
    let why = &run.record.verdict.why;
    assert!(
        why.starts_with("The endpoint stopped answering at ") && why.contains(" wait in ecp.endpoint.outbox"),
        "{why}"
    );
    assert_eq!(Some(left_in(&broker.url, "ecp.endpoint.outbox")), ledger.queued, "they are still there");
}

#[test]
fn an_endpoint_that_stops_is_named_with_the_second() {
    let endpoint = Endpoint::embedded(&["--outage", "A.down 1s..10m"]);
    let run = bench(&endpoint.url, "--no-preflight --rate 40 --duration 4s --message-timeout 1s");
    assert_eq!(run.ended.code, Some(1), "{:?}", run.ended);
    let why = &run.record.verdict.why;
    assert!(why.starts_with("The endpoint stopped answering at ") && why.contains(" did not arrive"), "{why}");
}

#[test]
fn a_wrong_inbox_is_found_before_the_load() {
    let endpoint = Endpoint::embedded(&[]);
    let ended = mailrun(&["mades", "--broker", &endpoint.url, "--inbox", "other.inbox", "--messages", "10"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let said = "a first message was delivered, as an event says, and nothing came out of other.inbox within 5 s: check --inbox";
    assert!(ended.err.contains(said), "{ended:?}");
}

#[test]
fn a_broker_that_gives_no_credit_is_named_and_not_the_benchs_own_limit() {
    let endpoint = Endpoint::embedded(&["--max-queue-messages", "5", "--accept-rate", "20"]);
    let run = bench(&endpoint.url, "--no-preflight --rate 60 --duration 3s --message-timeout 20s");
    let reasons = run.record.verdict.reasons.join("\n");
    assert!(
        reasons.contains("the broker gave no credit for ") && !reasons.contains("Raise --max-in-transit"),
        "{reasons}"
    );
}

#[test]
fn two_brokers_are_one_way() {
    let a = Endpoint::embedded(&["--prefix", "unused"]);
    let b = Endpoint::embedded(&["--prefix", "unused"]);
    let pair = Endpoint::start(&["--broker", &a.url, "--inbox-broker", &b.url]);
    let run = bench(&a.url, &format!("--inbox-broker {} --messages 100 --max-in-transit 10", b.url));
    assert_eq!((run.ended.code, run.record.ledger.delivered), (Some(0), Some(100)), "{:?}", run.ended);
    assert_eq!((&run.mades().outbox_url, &run.mades().inbox_url), (&a.url, &b.url));
    drop(pair);
}

#[test]
fn a_broker_that_restarts_is_an_outage_with_its_length() {
    let endpoint = Endpoint::embedded(&[]);
    let url = endpoint.url.clone();
    let place = tempfile::tempdir().unwrap();
    let out = place.path().to_str().unwrap().to_owned();
    let words = ["mades", "--broker", &url, "--rate", "40", "--duration", "5s", "--message-timeout", "2s"];
    let process = Process::start(MAILRUN, &[words.as_slice(), &["--live", "json", "--out", &out]].concat());
    wait_until("messages", || process.said().contains("\"created\":2").then_some(()));
    endpoint.stop();
    thread::sleep(Duration::from_millis(300)); // The run must measure an outage of this length
    let again = Endpoint::start(&["--embedded", "--listen", &url["amqp://".len()..]]);
    let run = Run::left(process.finish(), place);
    let sides: Vec<&str> = run.mades().outages.iter().map(|outage| outage.side.as_str()).collect();
    assert!(sides.contains(&"outbox") && sides.contains(&"inbox"), "{sides:?}");
    assert!(
        run.mades().outages.iter().all(|outage| (0.2..30.0).contains(&outage.lasted_s)),
        "{:?}",
        run.mades().outages
    );
    assert!(fates_sum(&run.record.ledger) && run.record.ledger.in_flight == Some(0), "{:?}", run.record.ledger);
    // The broker keeps messages in memory, so it loses the messages that are in flight when it ends.
    let created = run.record.ledger.created.unwrap();
    let delivered = run.record.ledger.delivered.unwrap();
    assert!(created > 150 && delivered + 60 > created, "{:?}", run.record.ledger);
    assert!(run.report.contains("## Outages"), "{}", run.report);
    assert_eq!(run.stage("created").count, created);
    drop(again);
}

#[test]
fn the_stand_in_writes_down_the_truth() {
    let place = tempfile::tempdir().unwrap();
    let truth = place.path().join("truth.jsonl");
    let words =
        format!("--rate 50 --messages 60 --message-timeout 2s --drop 0.1 --seed 3 --log-messages {}", truth.display());
    let run = rehearse(&words);
    let lines = lines(&truth);
    assert_eq!(lines.len(), 61, "a line a message, and the totals");
    let lost = lines.iter().filter(|line| line["fate"] == "lost").count() as u64;
    assert_eq!((run.agreed("lost"), lines[60]["totals"]["lost"].as_u64()), (lost, Some(lost)));
    assert!(lost > 0 && lines[..60].iter().all(|line| line["consumed"].as_u64().is_some()));
}

/// Starts a broker in this process. Returns its URL.
fn broker(queues: MemoryQueues, options: ListenOptions) -> String {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            embedded::serve(listener, queues, options, Default::default()).await;
        });
    });
    format!("amqp://{}", told.recv().unwrap())
}

#[test]
fn a_message_larger_than_is_taken_ends_the_run_in_time_and_its_queue_is_named() {
    let queues = MemoryQueues::new(QueueLimits { messages: 1_000, bytes: 1 << 30 });
    let mut octets = Vec::new();
    Writer::new(&mut octets).described_binary(0x75, &vec![7; (64 << 20) + 1]);
    queues.put(queues.get_or_create("ecp.endpoint.outbox.reply").unwrap(), octets.into(), None).unwrap();
    let url = broker(queues, ListenOptions::new(ListenerAuth::Any));
    let told = "ecp.endpoint.outbox.reply contains a message larger than 67108864 bytes";
    let place = tempfile::tempdir().unwrap();
    // The time-out is 6 s, because a debug build needs some time for a message of 64 MB.
    let words = "--no-preflight --messages 1 --message-timeout 6s --linger-time 100ms --out";
    let words: Vec<&str> = ["mades", "--broker", &url].into_iter().chain(words.split_whitespace()).collect();
    let ended = mailrun(&[words, vec![place.path().to_str().unwrap()]].concat());
    if ended.code == Some(2) {
        // The bench ends with status 2 if the message arrives before the bench has attached to its other queues.
        assert!(ended.err.contains(told), "{ended:?}");
        return;
    }
    let run = Run::left(ended, place);
    assert_eq!(run.ended.code, Some(1), "{:?}", run.ended);
    assert!(fates_sum(&run.record.ledger) && run.record.ledger.in_flight == Some(0), "{:?}", run.record.ledger);
    let troubles: Vec<&str> = run.mades().troubles.iter().map(|row| row.text.as_str()).collect();
    assert!(troubles.iter().any(|text| text.contains(told)), "{troubles:?}");
    // The report on the terminal shows only the beginning of the text.
    assert!(run.ended.out.contains("outbox: ecp.endpoint.outbox.reply contains a"), "{:?}", run.ended);
    assert!(!run.ended.out.contains("cores"), "the one message took no time: {:?}", run.ended);
}

#[test]
fn a_message_larger_than_the_broker_permits_is_returned_and_the_connection_stays() {
    let options = ListenOptions { max_message_bytes: 10_000, ..ListenOptions::new(ListenerAuth::Any) };
    let url = broker(MemoryQueues::new(QueueLimits::default()), options);
    let told = "ecp.endpoint.inbox accepts messages of at most 10000 bytes; this one has 20";
    let words = ["mades", "--broker", &url, "--mode", "amqp", "--payload-size", "20k", "--messages", "50"];
    let ended = mailrun(&words);
    assert!(ended.code == Some(2) && ended.err.contains(told), "{ended:?}");
    let run = Run::of(&[&words[..], &["--no-preflight"]].concat());
    assert_eq!(run.ended.code, Some(1), "{:?}", run.ended);
    let ledger = &run.record.ledger;
    assert_eq!((ledger.created, ledger.rejected, ledger.accepted), (Some(50), Some(50), Some(0)), "{ledger:?}");
    let [trouble] = &run.mades().troubles[..] else { panic!("{:?}", run.mades().troubles) };
    assert_eq!(
        (trouble.kind.as_str(), trouble.code.as_str(), trouble.count),
        ("returned by the broker", "too large", 50)
    );
    assert!(trouble.text.starts_with(told), "{trouble:?}");
    assert!(run.mades().outages.is_empty(), "{:?}", run.mades().outages);
}

#[test]
fn a_market_has_its_documents_at_their_times() {
    const HEARTBEAT: &str = "heartbeat 12m,7m30s,3m before quarter";
    // With this acceleration, a quarter-hour takes three seconds and has nine messages. The run begins within a
    // quarter-hour, and covers the next two in full.
    let beats = format!("{HEARTBEAT}; type HEARTBEAT; received.within(60s) >= 99%");
    let run = Run::of(
        &[
            &["bench", "mades", "--shape", "quarter-hour:3x40; type BID", "--shape", &beats, "--shape"][..],
            &["heartbeat every 5m; inbox.count <= 5", "--accelerate", "300", "--messages", "18", "--preset", "ideal"],
            &["--time-zone", "Europe/Oslo", "--threshold", "received.within(60s)>=99%"],
        ]
        .concat(),
    );
    assert!(ended_so(run.ended.code, 1, &run.record), "six are more than five: {:?}", run.ended);
    let results: Vec<(&str, bool)> =
        run.record.thresholds.iter().map(|row| (row.expression.as_str(), row.passed)).collect();
    let of_beats = format!("{HEARTBEAT}: received.within(60s) >= 99%");
    assert_eq!(
        results,
        [
            ("received.within(60s)>=99%", true),
            (of_beats.as_str(), true),
            ("heartbeat every 5m: inbox.count <= 5", false)
        ]
    );
    let market = run.mades().market.as_ref().unwrap();
    assert_eq!((market.acceleration, market.time_zone.as_str(), market.missed), (300, "Europe/Oslo", 0));
    let shapes: Vec<_> =
        market.shapes.iter().map(|row| (row.name.as_str(), row.message_type.as_str(), row.stages[6].count)).collect();
    let expected =
        [("quarter-hour:3x40", "BID", 6), (HEARTBEAT, "HEARTBEAT", 6), ("heartbeat every 5m", "TEST-MESSAGE", 6)];
    assert_eq!(shapes, expected);
    assert_eq!(run.record.workload.arrival, Arrival::Market);
    let ledger = &run.record.ledger;
    assert_eq!((ledger.delivered, ledger.corrupt), (Some(18), Some(0)), "{ledger:?}");
    let sizes = run.record.workload.sizes_varied.as_ref().unwrap();
    assert!(sizes.least < 2_000.0 && sizes.most > 40.0 * 900.0, "{sizes:?}");
    let [outbox, inbox] = &run.mades().brokers[..] else { panic!("{:?}", run.mades().brokers) };
    assert_eq!((outbox.side.as_str(), inbox.side.as_str()), ("outbox", "inbox"));
    assert_eq!((inbox.product.as_str(), inbox.version.as_str()), ("mailrun", env!("CARGO_PKG_VERSION")));
    assert!(run.report.contains(&format!("; mailrun {}", inbox.version)), "{}", run.report);
    let arrival = format!(
        "open loop, at the times of a market: quarter-hour:3x40, {HEARTBEAT}, heartbeat every 5m; times in Europe/Oslo; 300 \
         times as fast"
    );
    assert!(run.report.contains(&arrival), "{}", run.report);
    assert!(run.report.contains("## Shapes") && run.report.contains("## Windows"), "{}", run.report);
}

/// Load shapes, each with a number of messages. With `ACCELERATED`, the shape sends this number in a few seconds.
const SHAPES: [(&str, u64); 4] = [
    ("quarter-hour:3x40", 10),
    ("heartbeat 12m,7m30s,3m before quarter", 10),
    ("heartbeat every 5m", 10),
    ("every 10s", 200),
];
const ACCELERATED: &str = "--accelerate 900";

/// Runs a load shape against simulated endpoints that lose messages and send acknowledgement documents. If `pause` is
/// given, the endpoints pause for this time during the run. Returns the run and the endpoints' log.
fn run_of_shape(shape: &str, load: &str, pause: Option<Duration>) -> (Run, Vec<serde_json::Value>) {
    let place = tempfile::tempdir().unwrap();
    let truth = place.path().join("truth.jsonl");
    let faults = "--drop 20% --duplicate 10% --reject-documents 20% --acknowledgement-documents --document-delay 20ms";
    let faults: Vec<&str> = faults.split_whitespace().collect();
    let log = ["--preset", "ideal", "--log-messages", truth.to_str().unwrap()];
    let endpoint = Endpoint::embedded(&[&log, &faults[..]].concat());
    let stages = ["replied", "inbox", "delivered-event", "received", "acknowledged"];
    let conditions = stages.map(|stage| format!("; {stage}.within(60s) >= 1%")).concat();
    let shape = format!("{shape}{conditions}; acknowledged.count >= 1");
    let words = ["mades", "--broker", &endpoint.url, "--shape", &shape, "--no-preflight", "--await-acknowledgements"];
    let out = place.path().join("out");
    let words =
        [&words, &load.split_whitespace().collect::<Vec<_>>()[..], &["--live", "json", "--out", out.to_str().unwrap()]];
    let process = Process::start(MAILRUN, &words.concat());
    if let Some(pause) = pause {
        let is_sending = |line: &str| line.contains("\"created\":") && !line.contains("\"created\":0");
        wait_until("messages", || process.said().lines().any(is_sending).then_some(()));
        endpoint.pause(pause);
    }
    let ended = process.finish();
    let kept = tempfile::tempdir().unwrap();
    for name in ["run.json", "report.md", "report.html"] {
        fs::copy(out.join(name), kept.path().join(name)).unwrap_or_else(|why| panic!("{why}: {ended:?}"));
    }
    endpoint.stop();
    (Run::left(ended, kept), lines(&truth))
}

/// Asserts that the run, each of its windows and each threshold agree with `truth`, the log of the simulated endpoints,
/// message by message and acknowledgement by acknowledgement.
fn agrees_with(run: &Run, shape: &str, truth: &[serde_json::Value]) {
    let of_kind = |is_document: bool| {
        let lines = truth.iter().filter(|line| line["seq"].is_u64() && line["kind"].is_string() == is_document);
        let mut lines: Vec<_> = lines.collect();
        lines.sort_by_key(|line| line["seq"].as_u64());
        lines
    };
    let done = of_kind(false);
    let documents = of_kind(true);
    let created = run.record.ledger.created.unwrap();
    assert_eq!(done.len() as u64, created, "{shape}");
    let rejects = |line: &serde_json::Value| line["fault"].as_str().unwrap_or_default().contains("reject_document");
    let came = |line: &serde_json::Value| line["inboxed"].is_u64();
    let accepting: Vec<u64> = documents
        .iter()
        .filter(|line| came(line) && !rejects(line))
        .map(|line| line["seq"].as_u64().unwrap())
        .collect();
    let rejecting = documents.iter().filter(|line| came(line) && rejects(line)).count() as u64;
    let back = run.mades().acknowledgements.as_ref().unwrap();
    let stage = run.stage("acknowledged");
    assert_eq!((stage.count, back.rejecting), (accepting.len() as u64, rejecting), "{shape}: {documents:?}");
    // A message that the broker did not settle in time and that did not arrive has failed. No acknowledgement is
    // expected for it.
    let failed = run.record.ledger.failed.unwrap();
    assert_eq!(stage.missing + failed, created - stage.count - rejecting, "{shape}");
    assert_eq!((back.unknown, back.unreadable), (0, 0), "{shape}");
    let copies = truth.last().unwrap()["totals"]["acknowledgements"]["duplicated"].as_u64();
    assert_eq!(Some(stage.duplicates), copies, "{shape}");

    let windows = &run.mades().market.as_ref().unwrap().windows;
    assert!(windows.len() >= 2 && windows.is_sorted_by_key(|window| window.from_s), "{windows:?}");
    let mut rest = &done[..];
    let mut late = 0;
    for window in windows {
        assert_eq!((window.shape.as_str(), window.created), (shape, window.due), "{windows:?}");
        let (of_window, later) = rest.split_at(window.due as usize);
        rest = later;
        let arrived = of_window.iter().filter(|line| came(line)).count() as u64;
        let numbers = of_window.iter().map(|line| line["seq"].as_u64().unwrap());
        let completed = numbers.filter(|number| accepting.binary_search(number).is_ok()).count() as u64;
        assert_eq!((window.arrived, window.completed), (arrived, completed), "{shape}: {window:?} {of_window:?}");
        late += window.late;
        let from_ns = run.record.origin_ns + (window.from_s * 1e9) as u64;
        assert!(of_window.iter().all(|line| line["consumed"].as_u64() >= Some(from_ns)), "{window:?}");
    }
    assert!(rest.is_empty(), "{windows:?}");
    assert_eq!(late, stage.late, "{shape}");
    let lost = done.iter().filter(|line| line["fate"] == "lost").count() as u64;
    assert_eq!(run.record.ledger.lost, Some(lost - failed), "{shape}");

    let with = |key: &str| done.iter().filter(|line| line[key].is_u64()).count() as u64;
    let counts = [with("replied"), with("inboxed"), with("delivered"), with("received"), stage.count];
    let names = ["replied", "inbox", "DELIVERED", "RECEIVED", "acknowledged"];
    let rows = &run.record.thresholds;
    assert_eq!(rows.len(), 6, "{rows:?}");
    for ((count, name), row) in counts.into_iter().zip(names).zip(rows) {
        assert_eq!(run.stage(name).count, count, "{shape}: {name}");
        // Subtract the late messages, because a stage that was reached after the time-out has no latency.
        let share = 100.0 * (count - run.stage(name).late) as f64 / created as f64;
        assert!((row.value.unwrap() - share).abs() < 1e-9, "{shape}: {row:?}, not {share}");
    }
    assert_eq!((rows[5].value, rows[5].passed), (Some(stage.count as f64), stage.count > 0), "{rows:?}");
}

#[test]
fn each_shape_is_what_the_endpoint_did() {
    each(&SHAPES, |(shape, messages)| {
        let load = format!("{ACCELERATED} --messages {messages} --message-timeout 3s");
        let (run, truth) = run_of_shape(shape, &load, None);
        assert_eq!(run.record.ledger.created, Some(*messages), "{shape}: {:?}", run.ended);
        agrees_with(&run, shape, &truth);
    });
}

#[test]
fn each_shape_is_what_the_endpoint_did_also_when_that_stands_still() {
    each(&SHAPES, |(shape, messages)| {
        // The endpoint pauses for 1.5 s. Messages that the bench sends during this pause may be answered only after
        // their time limit.
        let load = format!("{ACCELERATED} --messages {messages} --message-timeout 700ms --linger-time 3s");
        let (run, truth) = run_of_shape(shape, &load, Some(Duration::from_millis(1_500)));
        assert_eq!(run.record.ledger.created, Some(*messages), "{shape}: {:?}", run.ended);
        agrees_with(&run, shape, &truth);
    });
}

#[test]
fn each_shape_ends_with_its_duration() {
    each(&SHAPES, |(shape, _)| {
        let load = format!("{ACCELERATED} --duration 3s --message-timeout 5s");
        let (run, truth) = run_of_shape(shape, &load, Some(Duration::from_millis(500)));
        assert_eq!(run.record.ending, Some(Ending::Complete), "{shape}: {:?}", run.ended);
        let market = run.mades().market.as_ref().unwrap();
        let due: u64 = market.windows.iter().map(|window| window.due).sum();
        // The run covers three quarter-hours, the first and the last of them only in part.
        let expected = if *shape == "every 10s" { 269..=271 } else { 8..=10 };
        assert_eq!((market.missed, run.record.ledger.created), (0, Some(due)), "{shape}");
        assert!(expected.contains(&due), "{shape}: {due}");
        agrees_with(&run, shape, &truth);
    });
}

#[test]
fn a_ladder_of_sizes_ends_where_the_time_limit_is_crossed() {
    let endpoint = Endpoint::embedded(&["--preset", "ideal", "--network-bytes", "1M"]);
    let place = tempfile::tempdir().unwrap();
    let out = place.path().to_str().unwrap();
    // The stand-in takes a second for each megabyte of a message.
    let words = "--payload-ladder 500k..10M --messages 1 --message-timeout 4s";
    let words: Vec<&str> =
        ["mades", "--broker", &endpoint.url, "--out", out].into_iter().chain(words.split_whitespace()).collect();
    let ended = mailrun(&words);
    let said = "--message-timeout of 4 s is crossed at 5M: 1 of 1 message did not reach RECEIVED in time; 2M took";
    assert!(ended.code == Some(0) && ended.out.contains(said), "{ended:?}");
    let measured = ["500k", "1M", "2M", "5M", "10M"].map(|size| place.path().join(size).join("run.json").exists());
    assert_eq!(measured, [true, true, true, true, false]);
    assert!(ended.out.lines().any(|line| line.contains("10M") && line.ends_with("not measured")), "{ended:?}");
}

#[test]
fn a_ladder_that_is_interrupted_has_the_sizes_so_far() {
    let endpoint = Endpoint::embedded(&["--preset", "ideal", "--network-bytes", "2M"]);
    let place = tempfile::tempdir().unwrap();
    let words = "--payload-ladder 500k..20M --messages 1 --out";
    let words: Vec<&str> = ["mades", "--broker", &endpoint.url].into_iter().chain(words.split_whitespace()).collect();
    let process = Process::start(MAILRUN, &[&words[..], &[place.path().to_str().unwrap()]].concat());
    let first = place.path().join("1M").join("report.html");
    wait_until("the second size", || first.exists().then_some(()));
    process.terminate();
    let ended = process.finish();
    assert!(ended.code == Some(130) && ended.out.contains("  1M   1 of 1 "), "{ended:?}");
    assert!(ended.out.contains("was not crossed up to") && ended.out.contains("not measured"), "{ended:?}");
}

#[test]
fn an_endpoint_ends_in_order_when_its_terminal_closes() {
    let place = tempfile::tempdir().unwrap();
    let [summary, log] = ["summary", "log"].map(|name| place.path().join(name));
    let words = ["--summary", summary.to_str().unwrap(), "--log-messages", log.to_str().unwrap()];
    let ended = Endpoint::embedded(&words).hang_up();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let last = fs::read_to_string(log).unwrap().lines().last().map(str::to_owned).unwrap();
    assert_eq!(fs::read_to_string(summary).unwrap(), last + "\n", "the totals");
}

#[test]
fn a_ladder_ends_at_a_size_that_is_refused() {
    let endpoint = Endpoint::embedded(&["--preset", "ideal", "--max-payload-size", "150k"]);
    let words = ["mades", "--broker", &endpoint.url, "--payload-ladder", "100k..1M", "--messages", "2"];
    let ended = mailrun(&words);
    let said = "The ladder ended at 200k: Nothing was delivered: of 2 messages, 2 rejected (error reply ECP-STANDIN-105 2 times).";
    assert!(ended.code == Some(1) && ended.out.contains(said), "{ended:?}");
}

#[test]
fn a_payload_limit_above_the_usual_one_reaches_the_listener() {
    let limit_with = |words: &[&str]| {
        let endpoint = Endpoint::embedded(words);
        at_the_broker(async {
            let sender = SenderOptions::new("ecp.endpoint.outbox", 1);
            connect(&endpoint.url).await.attach_sender(&sender).await.unwrap().max_message_bytes().unwrap()
        })
    };
    assert!(limit_with(&["--max-payload-size", "100M"]) > 100 << 20);
    // The endpoint must answer a payload above its limit of 150 kB with an error reply. It can do so only if the link
    // accepts such a payload, so the limit of the link must be higher.
    assert!(limit_with(&["--max-payload-size", "150k"]) > 64 << 20);
}

#[test]
fn each_shape_has_its_message_type() {
    let endpoint = Endpoint::embedded(&[]);
    // Nobody reads this outbox, so the messages are still there after the run.
    Run::of(
        &[
            &["mades", "--broker", &endpoint.url, "--prefix", "idle", "--no-preflight", "--message-timeout", "1s"][..],
            &["--shape", "heartbeat every 5m; type BEAT", "--shape", "every 5m", "--message-type", "VALUE"],
            &["--accelerate", "1000", "--messages", "6"],
        ]
        .concat(),
    );
    let types = at_the_broker(async {
        let mut connection = connect(&endpoint.url).await;
        let mut outbox = connection.attach_receiver(&ReceiverOptions::new("idle.outbox", 10)).await.unwrap();
        let mut types = Vec::new();
        while types.len() < 6 {
            let IncomingDelivery::Delivery(delivery) = outbox.next().await.unwrap() else { panic!() };
            types.push(Submission::read(&delivery.message).message_type.unwrap().into_owned());
            outbox.accept(delivery.handle).unwrap();
        }
        types
    });
    assert_eq!(types, ["BEAT", "VALUE", "BEAT", "VALUE", "BEAT", "VALUE"]);
}

#[test]
fn an_outbox_that_nobody_reads_is_named_and_has_no_rate() {
    let endpoint = Endpoint::embedded(&[]);
    for (words, said) in [
        ("--prefix wrong", "No message reached stage replied: does an endpoint read wrong.outbox? (--prefix, --mode)"),
        (
            "--mode toolbox",
            "No message reached stage inbox: does a toolbox read edx.endpoint.outbox? (--prefix, --mode)",
        ),
    ] {
        let run =
            bench(&endpoint.url, &format!("--no-preflight --messages 10 --message-timeout 1s --report full {words}"));
        assert_eq!((run.ended.code, run.record.verdict.why.as_str()), (Some(1), said), "{:?}", run.ended);
        assert!(!run.ended.out.contains(" msg/s · "), "{}", run.ended.out);
    }
}

#[test]
fn a_run_that_is_refused_altogether_fails_unless_that_was_ordered_and_says_why() {
    let run = rehearse("--messages 40 --reject 1 --reject-code E77 --message-timeout 5s");
    assert!(ended_so(run.ended.code, 0, &run.record), "{:?}", run.ended);
    let endpoint = Endpoint::embedded(&["--reject", "1"]);
    let refused = bench(&endpoint.url, "--messages 40 --message-timeout 5s");
    assert_eq!(refused.ended.code, Some(1), "nobody ordered it here: {:?}", refused.ended);
    assert!(refused.ended.out.contains("FAIL Nothing was delivered"), "{:?}", refused.ended);
    let ledger = &run.record.ledger;
    assert_eq!((ledger.rejected, ledger.delivered, ledger.lost), (Some(40), Some(0), Some(0)), "{ledger:?}");
    assert!(run.record.verdict.closed && fates_sum(ledger), "every message has a fate: {:?}", run.record.verdict);
    let told = "Nothing was delivered: of 40 messages, 40 rejected (error reply E77 40 times).";
    assert!(run.record.verdict.reasons.iter().any(|reason| reason == told), "{:?}", run.record.verdict);
    assert!(run.ended.out.contains("Nothing was delivered"), "{:?}", run.ended);
}

fn lines(path: &Path) -> Vec<serde_json::Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
