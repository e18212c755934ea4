//! Measures the measurement itself: the report must show exactly the faults that a sink was told to produce.
use crate::party::{BenchRun, bench, fates, stage, took, undisturbed};
use mailrun_measurement::record::{LatencyMs, Outcome, Record};
use mailrun_measurement::{Phase, Stage};

/// Delay in milliseconds that a busy machine may add.
const ALLOWANCE_MS: f64 = 200.0;

fn latency(record: &Record, name: Stage) -> LatencyMs {
    stage(record, name).latency_ms.unwrap()
}

fn phase(record: &Record, name: Phase) -> LatencyMs {
    record.phases.iter().find(|row| row.name == name).unwrap().latency_ms
}

/// Returns the record of a run whose sink was told to lose, change or repeat messages. Asserts that the record has the
/// same counts as the sink's own record, and that its ledger does not close. The run must pass nevertheless, because
/// the user ordered these faults.
fn found_out(run: &BenchRun) -> Record {
    let record = run.record_of(0);
    let own: Record = serde_json::from_str(&run.file("sink.json")).unwrap();
    let ours = &record.ledger;
    let its = &own.ledger;
    assert_eq!((ours.delivered, ours.duplicates, ours.corrupt), (its.delivered, its.duplicates, its.corrupt));
    assert_eq!(ours.foreign, Some(0));
    assert_eq!(took(&own).recipients, its.delivered.unwrap() + its.duplicates.unwrap());
    assert_eq!(ours.accepted, ours.created, "all of it was answered 250");
    assert!(!record.verdict.closed);
    assert!(record.verdict.reasons.iter().any(|reason| reason.contains("As ordered")), "{:?}", record.verdict);
    record
}

#[test]
fn a_known_delay_reads_as_that_delay() {
    let look = || {
        let record = bench(&["--messages", "200", "--sessions", "4", "--reuse", "--fault", "delay 20ms"]).record_of(0);
        for name in [Stage::Accepted, Stage::Delivered] {
            let ms = latency(&record, name);
            assert!(ms.min >= 19.9, "nothing is faster than the delay (the histogram has 3 digits): {ms:?}");
        }
        let p50 = [Stage::Accepted, Stage::Delivered].map(|name| latency(&record, name).p50);
        let elsewhere = [phase(&record, Phase::Mail).min, latency(&record, Stage::Sent).min];
        (p50, phase(&record, Phase::Reply).p50, elsewhere)
    };
    undisturbed(look, |(p50, reply, elsewhere)| {
        let reads_so = p50.iter().all(|p50| (20.0..20.0 + ALLOWANCE_MS).contains(p50));
        // Only the reply to the dot is delayed. The source measures from the moment at which it knows that it has sent
        // the message. The sink's delay may begin a little earlier, so the measured time may be a little shorter.
        reads_so && *reply >= 15.0 && elsewhere.iter().all(|min| *min < 20.0)
    });
}

#[test]
fn a_longer_delay_reads_longer() {
    let of = |delay| {
        let record = bench(&["--messages", "60", "--sessions", "3", "--reuse", "--fault", delay]).record_of(0);
        latency(&record, Stage::Accepted).p50
    };
    let is_right = |[short, long]: &[f64; 2]| (300.0 - 50.0..300.0 + ALLOWANCE_MS).contains(&(long - short));
    undisturbed(|| ["delay 10ms", "delay 310ms"].map(of), is_right);
}

#[test]
fn a_stall_shows_at_open_loop() {
    let words = ["--rate", "200", "--duration", "4s", "--sessions", "30", "--reuse", "--fault", "stall 1s..2500ms"];
    // Repeat the run if the source itself was late, because this machine was then too busy.
    let record = undisturbed(|| bench(&words).record_of(0), |record| record.lag_ms.unwrap().max < 1000.0);
    let ms = latency(&record, Stage::Accepted);
    // An eighth of all messages are due in the first half second of the stall, and wait at least one second.
    assert!(ms.p90 >= 900.0 && ms.p99 >= 1200.0 && ms.max >= 1400.0, "{ms:?}");
    assert!((stage(&record, Stage::Created).latency_ms.unwrap().max) >= 1000.0, "the slip is reported");
    // The messages waited for a free session because of the sink. The report must say so, and this wait must not count
    // as the source's own lag.
    let is_said = record.verdict.reasons.iter().any(|reason| reason.contains("for a free session"));
    assert!(is_said, "{:?}", record.verdict);
}

#[test]
fn a_stall_hides_at_closed_loop_but_for_the_largest() {
    let words = ["--messages", "3000", "--sessions", "2", "--reuse", "--fault", "stall 200ms..1700ms"];
    // In a closed loop, each session waits for the server, so the stall delays only one message of each session. This
    // is fewer than one message in a hundred.
    let ms = undisturbed(|| latency(&bench(&words).record_of(0), Stage::Accepted), |ms| ms.p99 < 700.0);
    assert!(ms.max >= 1400.0, "a message a session sees it: {ms:?}");
}

#[test]
fn a_dropped_message_reads_lost() {
    let words = ["--messages", "3000", "--sessions", "10", "--reuse", "--fault", "drop 0.01", "--seed", "7"];
    let record = found_out(&bench(&words));
    let [created, delivered, lost, duplicates, corrupt] = fates(&record.ledger);
    assert!((1..200).contains(&lost), "one in a hundred: {lost}");
    assert_eq!((created, delivered + lost, duplicates, corrupt), (3000, 3000, 0, 0));
    let again = found_out(&bench(&[words.as_slice(), &["--pipelining", "stream"]].concat()));
    assert_eq!(again.ledger.lost, Some(lost), "the same seed drops the same messages, however they come");
}

#[test]
fn a_doubled_message_reads_duplicate() {
    let words = ["--messages", "3000", "--sessions", "10", "--reuse", "--fault", "duplicate 0.01"];
    let record = found_out(&bench(&words));
    let [created, delivered, lost, duplicates, corrupt] = fates(&record.ledger);
    assert!((1..200).contains(&duplicates), "one in a hundred: {duplicates}");
    assert_eq!((created, delivered, lost, corrupt), (3000, 3000, 0, 0));
}

#[test]
fn a_changed_byte_reads_corrupt() {
    let record = found_out(&bench(&["--messages", "3000", "--sessions", "10", "--reuse", "--fault", "corrupt 0.01"]));
    let [created, delivered, lost, duplicates, corrupt] = fates(&record.ledger);
    assert!((1..200).contains(&corrupt), "one in a hundred: {corrupt}");
    assert_eq!((created, delivered, lost, duplicates), (3000, 3000, 0, 0));
}

#[test]
fn what_happens_to_every_message_is_counted_for_every_message() {
    for (fault, expected) in
        [("drop", [40, 0, 40, 0, 0]), ("duplicate", [40, 40, 0, 40, 0]), ("corrupt", [40, 40, 0, 0, 40])]
    {
        for size in ["400", "200k"] {
            let run = bench(&["--messages", "40", "--sessions", "4", "--message-size", size, "--fault", fault]);
            assert_eq!(fates(&found_out(&run).ledger), expected, "{fault} {size}");
        }
    }
}

#[test]
fn faults_add_up() {
    let faults = ["--fault", "drop 0.1", "--fault", "duplicate 0.1", "--fault", "corrupt 0.1"];
    let load = ["--messages", "1000", "--sessions", "10", "--recipients", "2"];
    let record = found_out(&bench(&[load, faults].concat()));
    let [created, delivered, lost, duplicates, corrupt] = fates(&record.ledger);
    assert_eq!((created, delivered + lost), (2000, 2000));
    assert!(lost > 0 && duplicates > 0 && corrupt > 0, "{:?}", record.ledger);
    assert_eq!((lost % 2, duplicates % 2), (0, 0), "a message's two recipients share its fate");
}

#[test]
fn open_loop_offers_the_rate_that_was_asked_for() {
    for (arrival, spread) in [("constant", 20), ("poisson", 100)] {
        let words = ["--rate", "200", "--duration", "2s", "--sessions", "50", "--reuse", "--", "--arrival", arrival];
        // Repeat the run if the count is wrong: if the machine stalls at the end, the last messages are not sent.
        let created = undisturbed(
            || stage(&bench(&words).record_of(0), Stage::Created).clone(),
            |created| (400 - spread..=400 + spread).contains(&created.count),
        );
        assert_eq!((created.since, created.latency_ms.is_some()), (Some(Stage::Scheduled), true), "the slip is told");
    }
}

#[test]
fn an_open_loop_beyond_the_servers_pace_says_so() {
    // Two sessions at 100 ms per message reach 20/s of the requested 100/s.
    let words = ["--rate", "100", "--duration", "2s", "--sessions", "2", "--reuse", "--fault", "delay 100ms"];
    let record = bench(&words).record_of(3);
    assert!(!record.verdict.valid, "{:?}", record.verdict);
    assert!(record.verdict.reasons.iter().any(|reason| reason.contains("of the 100/s asked for")));
    assert_eq!(record.verdict.outcome, Some(Outcome::Invalid), "no server stood between");
    assert!(latency(&record, Stage::Accepted).max > 1000.0, "latency counts from when a message was due");
}
