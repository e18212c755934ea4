//! Makes one run record from the records of its parties.
use crate::record::{ErrorRow, LedgerRow, Record, SeriesRow, StageRow, Verdict};
use crate::rows::offered_rate;
use crate::stage::Stage;
use std::collections::BTreeMap;

const NS_PER_S: u64 = 1_000_000_000;
/// Time after the source's last second in which a relay may still deliver. Later rows come from another host's clock.
const MAX_TAIL_S: u64 = 24 * 3600;

/// Joins the records of source and sink into the run's record, with the settled ledger. The verdict is left open: the
/// caller may still fill in parties that it watched, and then call `judge::judge`.
///
/// Identity, host, its surroundings and workload are taken from the source.
pub fn merge_records(source: Record, sink: Option<Record>, ledger: LedgerRow) -> Record {
    let mut run = Record { ledger, verdict: Verdict::default(), ..source };
    if let Some(sink) = sink {
        run.series = join_series(&run, &sink);
        let since = run.stages.iter().find_map(|row| row.since.filter(|_| row.name == Stage::Accepted));
        let offered_s = run.offered_s;
        let seen = |row| as_seen_from_source(row, since, offered_s, &run.ledger);
        run.stages.extend(sink.stages.into_iter().map(seen));
        run.errors = join_errors(run.errors, sink.errors);
        run.parties.extend(sink.parties);
        run.tls.extend(sink.tls);
        run.exhausted.extend(sink.exhausted);
        run.pauses.extend(sink.pauses);
        run.thresholds.extend(sink.thresholds);
    }
    let longest = run.stages.iter().map(|row| row.duration_s).fold(run.duration_s, f64::max);
    run.duration_s = longest;
    run
}

/// Adds to the sink's stage what only the source knows: the messages that never arrived, the time in which load was
/// offered, and whether the time in the trace is that of creation or of the schedule.
fn as_seen_from_source(
    mut row: StageRow,
    since: Option<Stage>,
    offered_s: Option<f64>,
    ledger: &LedgerRow,
) -> StageRow {
    row.offered_rate_per_s = offered_rate(row.count, offered_s);
    if row.name == Stage::Delivered {
        row.failed = ledger.lost.unwrap_or(row.failed);
        row.since = row.since.and(since).or(row.since);
    }
    row
}

fn join_errors(mut errors: Vec<ErrorRow>, more: Vec<ErrorRow>) -> Vec<ErrorRow> {
    for row in more {
        match errors.iter_mut().find(|known| (known.phase, known.code, &known.text) == (row.phase, row.code, &row.text))
        {
            Some(known) => known.count += row.count,
            None => errors.push(row),
        }
    }
    errors
}

/// Joins both series by the host's absolute second: sent and accepted are the source's, delivered and latencies the
/// sink's. Rows of the sink outside the run, which begins after the warm-up, or on another host's clock, are left out.
fn join_series(source: &Record, sink: &Record) -> Vec<SeriesRow> {
    let origin = source.origin_ns / NS_PER_S;
    let begin = source.series.first().map_or(u64::MAX, |row| row.second);
    let end = source.series.last().map_or(0, |row| row.second) + MAX_TAIL_S;
    let mut seconds: BTreeMap<u64, SeriesRow> = BTreeMap::new();
    for row in &source.series {
        seconds.insert(row.second, SeriesRow { delivered: 0, p50_ms: 0.0, p99_ms: 0.0, ..row.clone() });
    }
    for row in &sink.series {
        let second = (sink.origin_ns / NS_PER_S + row.second).checked_sub(origin);
        if let Some(second) = second.filter(|second| *second <= end && (*second >= begin || row.delivered > 0)) {
            let joined = seconds.entry(second).or_insert_with(|| SeriesRow { second, ..SeriesRow::default() });
            joined.delivered += row.delivered;
            joined.errors += row.errors;
            joined.p50_ms = row.p50_ms;
            joined.p99_ms = row.p99_ms;
        }
    }
    with_queue(trimmed(seconds.into_values().collect()))
}

/// Removes the idle seconds after the last event (a sink continues to run).
fn trimmed(mut rows: Vec<SeriesRow>) -> Vec<SeriesRow> {
    let is_idle = |row: &SeriesRow| row.sent + row.accepted + row.delivered + row.errors == 0;
    while rows.last().is_some_and(is_idle) {
        rows.pop();
    }
    rows
}

/// Fills in the messages that were accepted and not yet delivered at the end of each row.
fn with_queue(mut rows: Vec<SeriesRow>) -> Vec<SeriesRow> {
    let mut accepted = 0;
    let mut delivered = 0;
    for row in &mut rows {
        accepted += row.accepted;
        delivered += row.delivered;
        row.queued = accepted.saturating_sub(delivered);
    }
    rows
}
