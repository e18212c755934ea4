use crate::bounces;
use crate::domains;
use crate::load_stages;
use crate::overdue::complete_stages;
use crate::record::{
    ErrorRow, EventRow, LedgerRow, PartyUsage, Record, SeriesRow, SlowMessage, StageRow, UsageRow, Verdict,
};
use crate::rewrites;
use crate::series;
use crate::slowest::MAX_SLOWEST;
use crate::stage::Stage;
use crate::time_axis::align;
use std::collections::BTreeMap;

const NS_PER_S: i128 = 1_000_000_000;
/// Maximum time that a relay may go on delivering after the source's last second. Later rows of a sink are dropped,
/// because only a wrong clock of the sink's host can cause them.
const MAX_TAIL_S: u64 = 24 * 3600;

/// Combines the records of source and sink into the record of the run. `ledger` tells what became of the mail.
/// Identity, host, surroundings and workload come from the source.
///
/// The record of a sink on another host may contain any numbers, so sums saturate instead of overflowing. The verdict
/// remains empty, because it may depend on further processes, such as a relay. The caller must add these processes and
/// then call `judge::judge`.
pub fn merge_records(source: Record, sink: Option<Record>, ledger: LedgerRow) -> Record {
    let mut run = Record { ledger, verdict: Verdict::default(), ..source };
    let since = run.stages.iter().find_map(|row| row.since.filter(|_| row.name == Stage::Accepted));
    let mut far_load_stages = Vec::new();
    if let Some(mut sink) = sink {
        align(&mut sink, &run);
        run.series = join_series(&run, &sink);
        let clock = SinkClock::new(&run, &sink);
        run.domains = domains::join(run.domains, &sink.domains, run.ledger.delivered.is_some());
        run.slowest = clock.slowest(run.slowest, sink.slowest);
        run.usage.extend(clock.usage(sink.usage));
        run.events = join_events(run.events, clock.events(sink.events));
        let seen = |row| as_seen_from_source(row, since, &run.ledger);
        run.stages.extend(sink.stages.into_iter().map(seen));
        far_load_stages = sink.load_stages;
        run.errors = join_errors(run.errors, clock.errors(sink.errors));
        run.bounces = bounces::join(run.bounces, sink.bounces);
        run.rewrites = rewrites::join(run.rewrites, sink.rewrites);
        run.parties.extend(sink.parties);
        run.tls.extend(sink.tls);
        run.exhausted.extend(sink.exhausted);
        run.pauses.extend(sink.pauses);
        run.thresholds.extend(sink.thresholds);
        let until_s = sink.observed_until_s.map(|until_s| until_s + clock.shift_s);
        run.observed_until_s = run.observed_until_s.into_iter().chain(until_s).reduce(f64::max);
    }
    if run.ledger.delivered.is_some() && run.stage(Stage::Delivered).is_none() {
        // The sink watched for arrivals, but received nothing, so it has no row for the stage `delivered`. Add a row
        // with zero arrivals, because without a row it would seem that nobody watched.
        let nothing = as_seen_from_source(StageRow::new(Stage::Delivered, "sink"), None, &run.ledger);
        run.stages.push(nothing);
    }
    let seen = |row, ledger: &LedgerRow| as_seen_from_source(row, since, ledger);
    load_stages::join(&mut run.load_stages, &far_load_stages, seen);
    complete_stages(&mut run);
    let longest = run.stages.iter().map(|row| row.duration_s).fold(run.duration_s, f64::max);
    run.duration_s = longest;
    run
}

/// Adds facts to the sink's row that only the source knows: how many messages never arrived, and whether latencies
/// count from the creation or from the schedule.
fn as_seen_from_source(mut row: StageRow, since: Option<Stage>, ledger: &LedgerRow) -> StageRow {
    if matches!(row.name, Stage::Delivered | Stage::Announced) {
        let missing =
            [ledger.lost, ledger.not_delivered, ledger.bounced].into_iter().flatten().reduce(u64::saturating_add);
        row.missing = missing.unwrap_or(row.missing);
        row.since = row.since.and(since).or(row.since);
    }
    row
}

/// Converts times that a sink measured from its own origin to times since the run's origin.
struct SinkClock {
    /// Seconds from second 0 of the run to second 0 of the sink's record. Adding them converts a time of the sink to a
    /// time of the run.
    shift_s: f64,
    /// Latest time, in seconds since the run's origin, at which an event of the run can have happened.
    end_s: f64,
}

impl SinkClock {
    fn new(run: &Record, sink: &Record) -> Self {
        let end = tail_end_s(run);
        Self { shift_s: (i128::from(sink.origin_ns) - i128::from(run.origin_ns)) as f64 / 1e9, end_s: end as f64 }
    }

    /// Converts a time of the sink to a time of the run. A time before the run becomes 0. A time more than
    /// [`MAX_TAIL_S`] before or after the run becomes `None`, because it must come from a wrong clock of another host.
    fn time(&self, at_s: f64) -> Option<f64> {
        let at_s = at_s + self.shift_s;
        (-(MAX_TAIL_S as f64)..=self.end_s).contains(&at_s).then(|| at_s.max(0.0))
    }

    fn errors(&self, rows: Vec<ErrorRow>) -> Vec<ErrorRow> {
        let time = |at_s: Option<f64>| at_s.and_then(|at_s| self.time(at_s));
        rows.into_iter().map(|row| ErrorRow { first_s: time(row.first_s), last_s: time(row.last_s), ..row }).collect()
    }

    fn events(&self, rows: Vec<EventRow>) -> Vec<EventRow> {
        rows.into_iter().filter_map(|row| Some(EventRow { at_s: self.time(row.at_s)?, ..row })).collect()
    }

    /// Combines the source's list of the messages that took longest to be accepted with the sink's list of the messages
    /// that took longest to arrive. If the sink's list is full, all other messages that arrived were faster, so
    /// messages that are only in the source's list are left out.
    fn slowest(&self, accepted: Vec<SlowMessage>, arrived: Vec<SlowMessage>) -> Vec<SlowMessage> {
        let is_cut = arrived.len() >= MAX_SLOWEST;
        let mut accepted: BTreeMap<u64, SlowMessage> =
            accepted.into_iter().map(|message| (message.message, message)).collect();
        let mut joined: BTreeMap<u64, SlowMessage> = BTreeMap::new();
        for arrival in arrived {
            let created_s = (arrival.created_s + self.shift_s).max(0.0);
            let new = || accepted.remove(&arrival.message).unwrap_or(SlowMessage { created_s, ..arrival.clone() });
            let message = joined.entry(arrival.message).or_insert_with(new);
            message.delivered_ms = message.delivered_ms.into_iter().chain(arrival.delivered_ms).reduce(f64::max);
        }
        let others = accepted.into_values().filter(|_| !is_cut);
        let mut messages: Vec<SlowMessage> = joined.into_values().chain(others).collect();
        sort_slowest(&mut messages);
        messages
    }

    fn usage(&self, parties: Vec<PartyUsage>) -> Vec<PartyUsage> {
        let row = |row: UsageRow| {
            let at_s = row.second as f64 + self.shift_s;
            (0.0..=self.end_s).contains(&at_s).then(|| UsageRow { second: at_s.round() as u64, ..row })
        };
        let party =
            |usage: PartyUsage| PartyUsage { seconds: usage.seconds.into_iter().filter_map(row).collect(), ..usage };
        parties.into_iter().map(party).filter(|usage| !usage.seconds.is_empty()).collect()
    }
}

fn tail_end_s(run: &Record) -> u64 {
    run.series.last().map_or(0, |row| row.second).saturating_add(MAX_TAIL_S)
}

pub(crate) fn join_errors(mut errors: Vec<ErrorRow>, more: Vec<ErrorRow>) -> Vec<ErrorRow> {
    for row in more {
        match errors.iter_mut().find(|known| (known.phase, known.code, &known.text) == (row.phase, row.code, &row.text))
        {
            Some(known) => {
                known.count = known.count.saturating_add(row.count);
                known.first_s = known.first_s.into_iter().chain(row.first_s).reduce(f64::min);
                known.last_s = known.last_s.into_iter().chain(row.last_s).reduce(f64::max);
                known.sample = known.sample.take().or(row.sample);
            }
            None => errors.push(row),
        }
    }
    errors
}

/// Sorts messages by the time to their last known stage, the slowest first, and keeps the first `MAX_SLOWEST`.
pub(crate) fn sort_slowest(messages: &mut Vec<SlowMessage>) {
    messages.sort_by(|one, other| other.latency_ms().total_cmp(&one.latency_ms()));
    messages.truncate(MAX_SLOWEST);
}

pub fn join_events(events: Vec<EventRow>, more: Vec<EventRow>) -> Vec<EventRow> {
    let mut joined = events;
    joined.extend(more);
    joined.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
    joined
}

/// Combines the source's and the sink's rows of the same second. Sent and accepted messages come from the source,
/// delivered messages and latencies from the sink. Rows of the sink before the source's first row are left out if they
/// have no delivery, because the sink may have been started before the load. Rows of the sink that are too late are
/// also left out, because only a wrong clock can explain them.
fn join_series(source: &Record, sink: &Record) -> Vec<SeriesRow> {
    let shift = (i128::from(sink.origin_ns) - i128::from(source.origin_ns) + NS_PER_S / 2).div_euclid(NS_PER_S);
    let begin = source.series.first().map_or(u64::MAX, |row| row.second);
    let end = tail_end_s(source);
    // Rows of long runs cover several seconds, and may begin at different seconds in sink and source, so align them.
    let width = series::width(&source.series).max(series::width(&sink.series));
    let mut seconds: BTreeMap<u64, SeriesRow> = BTreeMap::new();
    let mut add = |second: u64, row: SeriesRow| {
        let second = second / width * width;
        series::join(seconds.entry(second).or_insert_with(|| SeriesRow { second, ..SeriesRow::default() }), &row);
    };
    for row in &source.series {
        add(row.second, with_latencies_of(&SeriesRow::default(), SeriesRow { delivered: 0, ..row.clone() }));
    }
    for row in &sink.series {
        let second = u64::try_from(i128::from(row.second) + shift).ok();
        if let Some(second) = second.filter(|second| *second <= end && (*second >= begin || row.delivered > 0)) {
            let SeriesRow { delivered, errors, .. } = *row;
            add(second, with_latencies_of(row, SeriesRow { delivered, errors, ..SeriesRow::default() }));
        }
    }
    with_queue(trimmed(seconds.into_values().collect()))
}

fn with_latencies_of(other: &SeriesRow, row: SeriesRow) -> SeriesRow {
    SeriesRow {
        p50_ms: other.p50_ms,
        p95_ms: other.p95_ms,
        p99_ms: other.p99_ms,
        p999_ms: other.p999_ms,
        max_ms: other.max_ms,
        oldest_ms: other.oldest_ms,
        ..row
    }
}

/// Removes rows at the end that have neither messages nor errors. A sink adds such rows after the load has ended.
fn trimmed(mut rows: Vec<SeriesRow>) -> Vec<SeriesRow> {
    let is_idle = |row: &SeriesRow| {
        [row.created, row.sent, row.accepted, row.delivered, row.errors].iter().all(|count| *count == 0)
    };
    while rows.last().is_some_and(is_idle) {
        rows.pop();
    }
    rows
}

/// Computes the queue of each row: the number of messages that were accepted but not yet delivered at the end of the
/// row.
pub fn with_queue(mut rows: Vec<SeriesRow>) -> Vec<SeriesRow> {
    let mut accepted: u64 = 0;
    let mut delivered: u64 = 0;
    for row in &mut rows {
        accepted = accepted.saturating_add(row.accepted);
        delivered = delivered.saturating_add(row.delivered);
        row.queued = accepted.saturating_sub(delivered);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_long_run_have_one_grid() {
        let row = |second: u64, created, delivered, oldest_ms| SeriesRow {
            second,
            created,
            delivered,
            oldest_ms,
            ..SeriesRow::default()
        };
        let record = |rows: Vec<SeriesRow>| Record { series: rows, ..Record::empty() };
        // Each row covers two seconds. The source's rows begin at even seconds, and the sink's rows at odd seconds.
        let source = record((0..20_000).map(|at| row(2 * at, 200, 0, None)).collect());
        let sink = record((0..20_000).map(|at| row(2 * at + 1, 0, 200, Some(150.0))).collect());
        let joined = join_series(&source, &sink);
        assert_eq!(joined.len(), 20_000);
        assert!(joined.iter().all(|row| (row.created, row.delivered, row.oldest_ms) == (200, 200, Some(150.0))));
    }
}
