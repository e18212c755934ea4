//! Messages that were due but did not reach a stage in time: they never arrived, or arrived after their time-out.
//!
//! In percentiles, such a message counts as infinitely late, because its latency exceeds any limit. For example:
//!
//! ```text
//! 390 of 400 arrived, 10 never did     p50  20 ms   of all 400
//!                                      p99  > 3 s   it falls among the 10
//! ```
//! A message certainly exceeds a limit if it is lost, or if the run waited for it longer than the limit. If the run
//! waited less, and the message may still be in a queue, nobody knows whether it exceeds the limit.
use crate::latencies::Latencies;
use crate::record::{LatencyMs, MissingFate, MissingMessage, Record, SeriesRow, StageRow};
use crate::series;
use crate::stage::Stage;
use std::time::Duration;

/// Returns the number of messages that were due, whether or not a session created them. In a closed loop, a message is
/// due when a session creates it, so this is the number of created messages.
pub fn due(record: &Record) -> Option<u64> {
    record.stage(Stage::Created).map(|row| row.count).max(record.due)
}

/// Returns the number of messages that were due but did not reach this stage in time. A duplicate of another message
/// does not replace an absent message.
pub fn absent(record: &Record, row: &StageRow) -> u64 {
    let in_time = row.count.saturating_sub(row.late.saturating_add(arrived_again(record, row)));
    due(record).unwrap_or_default().saturating_sub(in_time)
}

/// Returns how many messages were sent but did not reach the stage in time. Messages that were due but never sent are
/// left out, because the source may be at fault.
pub fn sent_in_vain(record: &Record, row: &StageRow) -> u64 {
    absent(record, row).saturating_sub(crate::account::unsent(record))
}

/// Returns the number of duplicates in `row.count`. Over MADES, this is 0, because `row.count` leaves duplicates out.
pub(crate) fn arrived_again(record: &Record, row: &StageRow) -> u64 {
    if record.mades.is_none() { row.duplicates } else { 0 }
}

/// Returns the number of absent messages that might have reached the stage within `limit` if the run had waited longer.
/// Lost messages are left out, so the result counts only messages that may still be in a queue or in flight.
pub fn undecided(record: &Record, row: &StageRow, limit: Duration) -> u64 {
    let absent = absent(record, row);
    let open = open(record, row.name);
    let Some(until_s) = record.observed_until_s.filter(|_| absent.min(open) > 0) else { return absent.min(open) };
    let width_s = series::width(&record.series);
    let end_s = |row: &SeriesRow| (row.second.saturating_add(width_s) as f64).min(load_end_s(record));
    let young = record.series.iter().filter(|row| end_s(row) > until_s - limit.as_secs_f64());
    let is_old = |message: &&MissingMessage| {
        let answered_s = message.answered_s.unwrap_or(f64::INFINITY);
        message.fate == MissingFate::NotSeen && answered_s <= until_s - limit.as_secs_f64()
    };
    let units = |message: &MissingMessage| u64::from(message.recipient_count.max(1));
    let old = record.missing.iter().filter(|_| is_of_far_end(row.name)).filter(is_old).map(units).sum();
    // Messages in `old` can no longer arrive in time. `old` and `open` include the warm-up, but `absent` does not. So
    // subtract `old` from `open`. If it were subtracted from `absent`, a message of the warm-up would hide a message of
    // the load.
    let young = young.fold(0, |sum: u64, row| sum.saturating_add(row.created));
    absent.min(open.saturating_sub(old)).min(young)
}

/// Returns the end of the load in seconds since `origin_ns`, or infinity if it is unknown.
fn load_end_s(record: &Record) -> f64 {
    let warm_up_s = record.warm_up.map_or(0.0, |warm_up| warm_up.length_s);
    record.offered_s.map_or(f64::INFINITY, |offered_s| warm_up_s + offered_s)
}

/// Returns the number of messages that may still reach a stage, because they are in flight or in a queue.
fn open(record: &Record, stage: Stage) -> u64 {
    let ledger = &record.ledger;
    let in_flight = ledger.in_flight.unwrap_or_default();
    if is_of_far_end(stage) {
        let counts = [ledger.queued, ledger.not_delivered].into_iter().flatten();
        return counts.fold(in_flight, u64::saturating_add);
    }
    // Without a sink, `in_flight` includes accepted messages. Subtract them, because they have passed all stages of the
    // source.
    if ledger.delivered.is_none() { in_flight.saturating_sub(ledger.accepted.unwrap_or_default()) } else { in_flight }
}

/// True if only the receiving side, such as a sink, can see that a message reached the stage.
pub fn is_of_far_end(stage: Stage) -> bool {
    !matches!(stage, Stage::Created | Stage::Sent | Stage::Accepted | Stage::Settled | Stage::Replied)
}

/// Returns a lower bound in milliseconds for the latency of every absent message, or 0 if no bound is known.
pub fn bound_ms(record: &Record, row: &StageRow, times: Option<&Latencies>) -> f64 {
    if let Some(mades) = &record.mades {
        return mades.timeout_s * 1e3;
    }
    let waited_s = record.observed_until_s.map_or(0.0, |until_s| (until_s - load_end_s(record)).max(0.0));
    let is_open = absent(record, row).min(open(record, row.name)) > 0;
    // If absent messages can still arrive, they may turn out faster than the slowest arrival so far. In that case, do
    // not use the slowest arrival as a bound.
    let longest_ms = times.filter(|_| !is_open).and_then(Latencies::summary).map_or(0.0, |times| times.max);
    longest_ms.max(waited_s * 1e3)
}

/// Returns the mean and the percentiles of the latencies in `times` and of `absent` further messages, which count as
/// infinitely late. If `absent` is not 0, the mean is infinite, and so is each percentile that falls among the absent
/// messages. Returns `None` if there are no messages at all.
pub fn summary(times: Option<&Latencies>, absent: u64) -> Option<LatencyMs> {
    let known = times.and_then(Latencies::summary);
    if absent == 0 {
        return known;
    }
    let never = f64::INFINITY;
    let quantile = |share: f64| times.map_or(never, |times| quantile_ms(times, share, absent));
    Some(LatencyMs {
        min: known.map_or(never, |known| known.min),
        mean: never,
        p50: quantile(0.5),
        p90: quantile(0.9),
        p95: quantile(0.95),
        p99: quantile(0.99),
        p999: quantile(0.999),
        max: never,
    })
}

/// Returns a percentile in milliseconds, for example the 99th percentile for a `share` of 0.99. The result is infinite
/// if the percentile falls among the `absent` messages.
pub fn quantile_ms(times: &Latencies, share: f64, absent: u64) -> f64 {
    let count = times.count();
    let of_known = share * (1.0 + absent as f64 / count.max(1) as f64);
    if count == 0 || of_known > 1.0 { f64::INFINITY } else { times.quantile_ms(of_known) }
}

/// Computes the latencies of each stage again at the end of a run, so that messages which never arrived count as
/// infinitely late. The caller must set the ledger before, because it tells how many of these messages may still be in
/// a queue.
pub fn complete_stages(record: &mut Record) {
    let is_timed = record.stages.iter().any(|row| row.histogram.is_some());
    let since = record.stages.iter().rev().find_map(|row| row.since);
    let is_closed = !crate::account::is_open_loop(record);
    let complete = |row: &StageRow| {
        let times = row.histogram.as_deref().and_then(Latencies::decode);
        let absent = absent(record, row);
        let is_left = row.name == Stage::Created && is_closed;
        // If messages arrived but none of them has a usable time, compute no latencies. A summary would describe only
        // the absent messages, whose latencies are infinite.
        let is_untimed = times.is_none() && (row.count > 0 || !is_timed);
        let latency_ms = if is_left || is_untimed { row.latency_ms } else { summary(times.as_ref(), absent) };
        let is_beyond = latency_ms.is_some_and(|times| times.max.is_infinite());
        let beyond_ms = is_beyond.then(|| bound_ms(record, row, times.as_ref()));
        (latency_ms, beyond_ms)
    };
    let completed: Vec<_> = record.stages.iter().map(complete).collect();
    for (row, (latency_ms, beyond_ms)) in record.stages.iter_mut().zip(completed) {
        (row.latency_ms, row.beyond_ms) = (latency_ms, beyond_ms);
        row.since = row.since.or(since.filter(|_| latency_ms.is_some()));
    }
    for mut row in std::mem::take(&mut record.load_stages) {
        let mut part = row.as_run(record);
        complete_stages(&mut part);
        row.stages = part.stages;
        record.load_stages.push(row);
    }
}
