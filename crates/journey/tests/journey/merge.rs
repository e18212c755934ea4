//! Tests of folding: the parties' records joined into the run's.
use crate::sample::{self, second};
use mailrun_journey::merge::merge_records;
use mailrun_journey::record::{ErrorRow, LedgerRow, SeriesRow};
use mailrun_journey::stage::{Phase, Stage};

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
    assert_eq!((run.duration_s, run.ledger), (12.5, ledger));
    let delivered = run.stages.iter().find(|row| row.name == Stage::Delivered).unwrap();
    assert_eq!((delivered.failed, delivered.since), (4, Some(Stage::Scheduled)), "open loop: the trace is dated so");
}
