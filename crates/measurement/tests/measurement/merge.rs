//! Tests of merging the parties' records into the record of the run.
use crate::sample::{self, second};
use mailrun_measurement::merge::merge_records;
use mailrun_measurement::record::{
    ErrorRow, EventKind, EventRow, LedgerRow, PartyUsage, Record, SeriesRow, SlowMessage, UsageRow,
};
use mailrun_measurement::stage::{Phase, Stage};

const S: u64 = 1_000_000_000;

#[test]
fn seconds_are_joined_by_the_hosts_clock() {
    let mut source = sample::source();
    let mut sink = sample::sink();
    (source.origin_ns, sink.origin_ns) = (1000 * S, 998 * S);
    source.series = vec![
        SeriesRow { sent: 6, accepted: 5, p99_ms: 1.0, errors: 1, ..second(0) },
        SeriesRow { sent: 4, accepted: 5, p99_ms: 1.0, ..second(1) },
    ];
    let delivered = |number, delivered| SeriesRow { delivered, p50_ms: 7.0, p99_ms: 9.0, ..second(number) };
    sink.series = vec![delivered(0, 99), second(1), delivered(2, 3), delivered(3, 5), delivered(4, 2), second(5)];
    let run = merge_records(source, Some(sink), LedgerRow::default());
    let joined: Vec<_> = run
        .series
        .iter()
        .map(|row| (row.second, row.sent, row.accepted, row.delivered, row.queued, row.errors, row.p99_ms))
        .collect();
    let expected = [(0, 6, 5, 3, 2, 1, 9.0), (1, 4, 5, 5, 2, 0, 9.0), (2, 0, 0, 2, 0, 0, 9.0)];
    assert_eq!(joined, expected, "before the run and idle after it are left out");
    assert_eq!(run.origin_ns, 1000 * S);
}

#[test]
fn a_run_begins_after_its_warm_up() {
    let mut source = sample::source();
    let mut sink = sample::sink();
    (source.origin_ns, sink.origin_ns) = (1000 * S, 998 * S);
    source.series = vec![SeriesRow { accepted: 5, ..second(3) }, SeriesRow { accepted: 5, ..second(4) }];
    let delivered = |number| SeriesRow { delivered: number / 5 * 5, errors: 1, ..second(number) };
    sink.series = (0..7).map(delivered).collect();
    let run = merge_records(source, Some(sink), LedgerRow::default());
    let joined: Vec<_> = run.series.iter().map(|row| (row.second, row.delivered, row.errors)).collect();
    assert_eq!(joined, [(3, 5, 1), (4, 5, 1)]);
}

#[test]
fn a_sink_on_another_host_adds_no_seconds() {
    let mut source = sample::source();
    let mut sink = sample::sink();
    sink.origin_ns = 10_000_000 * S;
    source.series = vec![SeriesRow { sent: 1, ..second(0) }];
    sink.series = vec![SeriesRow { delivered: 1, ..second(0) }];
    let run = merge_records(source, Some(sink), LedgerRow::default());
    assert_eq!(run.series, [SeriesRow { sent: 1, ..second(0) }]);
}

#[test]
fn without_a_sink_the_record_is_the_sources() {
    let mut source = sample::source();
    source.series = vec![SeriesRow { accepted: 1, p99_ms: 1.0, ..second(0) }];
    let run = merge_records(source.clone(), None, source.ledger.clone());
    assert_eq!(run, source);
}

#[test]
fn parties_stages_and_errors_are_joined() {
    let mut source = sample::source();
    let mut sink = sample::sink();
    let error =
        |code, count| ErrorRow { phase: Phase::Reply, code, text: "cut".to_owned(), count, ..ErrorRow::default() };
    source.errors = vec![error(0, 2)];
    sink.errors = vec![error(451, 1), error(0, 1)];
    sink.stages[0].duration_s = 12.5;
    source.stages[1].since = Some(Stage::Scheduled);
    let ledger = LedgerRow { lost: Some(4), ..LedgerRow::default() };
    let run = merge_records(source, Some(sink), ledger.clone());
    assert_eq!(run.parties.iter().map(|party| party.name.as_str()).collect::<Vec<_>>(), ["source", "sink"]);
    assert_eq!(run.errors, [error(0, 3), error(451, 1)]);
    assert_eq!((run.duration_s, run.ledger.clone()), (12.5, ledger));
    let delivered = run.stage(Stage::Delivered).unwrap();
    assert_eq!((delivered.missing, delivered.since), (4, Some(Stage::Scheduled)), "open loop: the trace is dated so");
}

#[test]
fn times_of_the_sink_count_from_the_runs_origin() {
    let mut source = sample::source();
    let mut sink = sample::sink();
    (source.origin_ns, sink.origin_ns) = (1000 * S, 998 * S);
    source.series = vec![second(0), SeriesRow { sent: 1, ..second(9) }];
    let error = |first_s, last_s, sample: &str| ErrorRow {
        text: "cut".to_owned(),
        count: 2,
        first_s: Some(first_s),
        last_s: Some(last_s),
        sample: Some(sample.to_owned()),
        ..ErrorRow::default()
    };
    source.errors = vec![error(2.0, 4.0, "a@example.org")];
    sink.errors = vec![error(3.5, 7.0, "b@example.org")];
    let event = |at_s, kind| EventRow { at_s, kind, text: String::new() };
    source.events = vec![event(1.0, EventKind::WarmUpEnded), event(6.0, EventKind::Stopped)];
    sink.events = vec![event(5.0, EventKind::FaultOn), event(1e9, EventKind::FaultOff)];
    let usage = |party: &str, seconds: &[u64]| PartyUsage {
        party: party.to_owned(),
        seconds: seconds.iter().map(|second| UsageRow { second: *second, ..UsageRow::default() }).collect(),
    };
    source.usage = vec![usage("source", &[0, 1])];
    sink.usage = vec![usage("sink", &[0, 1, 2, 3])];
    let run = merge_records(source, Some(sink), LedgerRow::default());
    let row = &run.errors[0];
    assert_eq!((row.count, row.first_s, row.last_s), (4, Some(1.5), Some(5.0)));
    assert_eq!(row.sample.as_deref(), Some("a@example.org"));
    let events: Vec<_> = run.events.iter().map(|row| (row.at_s, row.kind)).collect();
    let expected = [(1.0, EventKind::WarmUpEnded), (3.0, EventKind::FaultOn), (6.0, EventKind::Stopped)];
    assert_eq!(events, expected, "a time of another host's clock is left out");
    assert_eq!(run.usage, [usage("source", &[0, 1]), usage("sink", &[0, 1])]);
}

#[test]
fn slow_messages_are_those_that_took_longest_to_arrive() {
    let mut source = sample::source();
    let mut sink = sample::sink();
    let message = |message, accepted_ms, delivered_ms| SlowMessage {
        message,
        accepted_ms,
        delivered_ms,
        created_s: 1.0,
        ..SlowMessage::default()
    };
    source.slowest = vec![message(7, Some(9.0), None), message(8, Some(5.0), None)];
    sink.slowest = vec![message(7, None, Some(30.0)), message(9, None, Some(35.0)), message(7, None, Some(40.0))];
    sink.origin_ns = source.origin_ns + 2_000_000_000;
    let shown = |run: &Record| -> Vec<_> {
        run.slowest.iter().map(|row| (row.message, row.accepted_ms, row.delivered_ms)).collect()
    };
    let run = merge_records(source.clone(), Some(sink.clone()), LedgerRow::default());
    let expected = [(7, Some(9.0), Some(40.0)), (9, None, Some(35.0)), (8, Some(5.0), None)];
    assert_eq!(shown(&run), expected, "8 did not arrive, because the sink has room for more");
    assert_eq!(run.slowest[1].created_s, 3.0, "the sink's times count from its own beginning");
    // The sink's list of slowest messages is full now. Message 8 may be missing there because it arrived faster.
    sink.slowest = (100..150).map(|number| message(number, None, Some(number as f64))).collect();
    let run = merge_records(source.clone(), Some(sink), LedgerRow::default());
    assert_eq!((run.slowest.len(), shown(&run)[0]), (50, (149, None, Some(149.0))));
    assert!(run.slowest.iter().all(|row| row.delivered_ms.is_some()));
    let run = merge_records(source, None, LedgerRow::default());
    assert_eq!(shown(&run), [(7, Some(9.0), None), (8, Some(5.0), None)], "nobody watched deliveries");
}
