//! Freshness: the share of time in which the newest message that has arrived is younger than a limit. It is computed
//! separately for each window of the run.
//!
//! ```text
//! age of the newest   ╱│  ╱│      ╱│     it grows by a second each second, and an arrival of a newer message cuts it
//!                    ╱ │ ╱ │   ╱╱  │
//! limit ────────────╱──│╱──│─╱─────│──
//!                  ╱   ╱   │╱      │     above the limit: not fresh
//! ```
//! Freshness is computed from the rows of a record, each of which has the greatest age in its second
//! ([`SeriesRow::oldest_ms`]). If this age exceeds the limit by 0.3 s, for example, 0.3 s of the second count as not
//! fresh. If it exceeds the limit by more than a second, the whole second counts as not fresh. The record has arrival
//! times only to a tenth of a second. Each time that the age passes the limit, the time that counts as fresh may
//! therefore be 0.1 s too long.
use crate::account;
use crate::record::{Ending, FreshWindow, Record, SeriesRow};
use crate::series::step;
use std::time::Duration;

/// If the last window is shorter than this share of a full window, it is joined to the window before it. Without this
/// rule, a few seconds at the end of a run could be its worst window.
const MIN_WINDOW_SHARE: f64 = 0.5;
/// Maximum number of rows that are added up to the planned end of a load that stopped early: one for each second of a
/// week. Without this limit, a wrong time in a record could add any number of rows.
const MAX_UNSENT_ROWS: usize = 7 * 24 * 3600;

/// Limit for the age of the newest message, and the length of the windows in which freshness is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreshnessLimit {
    /// The run is fresh while the newest message that has arrived is younger than this.
    pub age: Duration,
    /// Length of each part of the run for which freshness is computed, or `None` to compute it for the whole run.
    pub window: Option<Duration>,
}

/// Returns the windows of a run, or `None` if arrivals were not observed or if the run is shorter than a window.
///
/// The first window begins with the first second in which a message was due. The last window ends with the last such
/// second, because no newer message can arrive after the load. But if the load stopped early, the last window ends with
/// the planned end of the load, because messages that were due but never sent belong to the load. Until the first
/// message arrives, the time since the beginning of the first window counts as the age of the newest message.
pub(crate) fn windows(record: &Record, limit: FreshnessLimit) -> Option<Vec<FreshWindow>> {
    let delivered = record.ledger.delivered?;
    let rows = with_unsent(judged(&record.series)?, record);
    let is_unseen = delivered > 0 && record.series.iter().all(|row| row.oldest_ms.is_none());
    if is_unseen || is_shorter_than_window(record, limit) {
        return None;
    }
    let (begin, end) = span(&rows)?;
    let window_s = limit.window.map_or(f64::INFINITY, |window| window.as_secs_f64());
    let mut windows: Vec<FreshWindow> = Vec::new();
    let mut age_s = 0.0;
    for (at, row) in rows.iter().enumerate() {
        let row_end = rows.get(at + 1).map_or(end, |next| next.second);
        let span_s = row_end.saturating_sub(row.second) as f64;
        age_s = row.oldest_ms.map_or(age_s + span_s, |ms| ms / 1e3);
        let from_s =
            begin as f64 + (row.second.saturating_sub(begin) as f64 / window_s).floor().max(0.0) * finite(window_s);
        let is_rest = (end as f64 - from_s) < window_s * MIN_WINDOW_SHARE && window_s.is_finite();
        let is_same = |last: &FreshWindow| is_rest || (last.from_s - from_s).abs() < 1e-6;
        if !windows.last().is_some_and(is_same) {
            windows.push(FreshWindow { from_s, ..FreshWindow::default() });
        }
        if let Some(window) = windows.last_mut() {
            add(window, row, row_end as f64);
            window.stale_s += (age_s - limit.age.as_secs_f64()).clamp(0.0, span_s);
        }
    }
    windows.iter_mut().for_each(finish);
    Some(windows)
}

pub(crate) fn is_shorter_than_window(record: &Record, limit: FreshnessLimit) -> bool {
    let seen_s = judged(&record.series).and_then(span).map_or(0, |(begin, end)| end.saturating_sub(begin));
    let length_s = record.offered_s.unwrap_or_default().max(seen_s as f64);
    limit.window.is_some_and(|window| length_s < window.as_secs_f64())
}

/// Returns the percentage of fresh time in the window with the lowest percentage, or `None` if there are no windows.
pub(crate) fn worst(windows: &[FreshWindow]) -> Option<f64> {
    windows.iter().map(|window| window.fresh_percent).min_by(f64::total_cmp)
}

/// Returns the rows from the first to the last row in which a message was due, or `None` if no message was due.
fn judged(rows: &[SeriesRow]) -> Option<&[SeriesRow]> {
    let first = rows.iter().position(|row| row.created > 0)?;
    let last = rows.iter().rposition(|row| row.created > 0)?;
    rows.get(first..=last)
}

/// If messages were due but never sent, adds rows up to the planned end of the load, or up to the time at which the
/// user or a threshold stopped it. A second without a row in the record gets a row without arrivals, in which the age
/// of the newest message keeps growing.
fn with_unsent(rows: &[SeriesRow], record: &Record) -> Vec<SeriesRow> {
    let mut rows = rows.to_vec();
    let is_cut_short = matches!(record.ending, Some(Ending::Interrupted | Ending::Aborted));
    let Some((begin, end)) = span(&rows).filter(|_| account::unsent(record) > 0) else { return rows };
    // The planned length counts from the start of the run. `offered_s` counts from the end of the warm-up, so add
    // `begin`.
    let planned_s = record.workload.duration_limit_s.filter(|_| !is_cut_short);
    let Some(end_s) = planned_s.or(record.offered_s.map(|offered_s| begin as f64 + offered_s)) else { return rows };
    let width = step(&rows);
    let missing = (end..end_s.ceil() as u64).step_by(width as usize).take(MAX_UNSENT_ROWS);
    rows.extend(missing.map(|second| {
        let known = record.series.iter().find(|row| row.second == second);
        known.cloned().unwrap_or(SeriesRow { second, ..SeriesRow::default() })
    }));
    rows
}

fn span(rows: &[SeriesRow]) -> Option<(u64, u64)> {
    Some((rows.first()?.second, rows.last()?.second.saturating_add(step(rows))))
}

/// Replaces an infinite length (one window for the whole run) by 0. The caller multiplies the length by the number of
/// earlier windows, which is then 0, and ∞ × 0 would be NaN.
fn finite(window_s: f64) -> f64 {
    if window_s.is_finite() { window_s } else { 0.0 }
}

fn add(window: &mut FreshWindow, row: &SeriesRow, row_end_s: f64) {
    window.to_s = row_end_s;
    window.created = window.created.saturating_add(row.created);
    window.delivered = window.delivered.saturating_add(row.delivered);
    window.errors = window.errors.saturating_add(row.errors);
    window.max_ms = window.max_ms.max(row.max_ms);
    window.oldest_ms = window.oldest_ms.max(row.oldest_ms.unwrap_or_default());
}

fn finish(window: &mut FreshWindow) {
    let span_s = window.to_s - window.from_s;
    window.fresh_percent = if span_s > 0.0 { (1.0 - window.stale_s / span_s).clamp(0.0, 1.0) * 100.0 } else { 0.0 };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Stage;
    use crate::tally::SourceTally;

    /// Makes a run with one message per second. `ages_s` has the maximum age of the newest message in each second. The
    /// last row lies after the load, so `windows` must ignore the row, although its age is huge.
    fn record(ages_s: &[Option<f64>]) -> Record {
        let mut record = Record::empty();
        record.ledger.delivered = Some(ages_s.len() as u64);
        let row = |(second, age): (usize, &Option<f64>)| SeriesRow {
            second: second as u64 + 3,
            created: 1,
            delivered: 1,
            oldest_ms: age.map(|age| age * 1e3),
            ..SeriesRow::default()
        };
        record.series = ages_s.iter().enumerate().map(row).collect();
        let second = ages_s.len() as u64 + 3;
        record.series.push(SeriesRow { second, oldest_ms: Some(9e9), ..SeriesRow::default() });
        record
    }

    fn shares(record: &Record, age_s: f64, window_s: Option<u64>) -> Option<Vec<f64>> {
        let limit = FreshnessLimit { age: Duration::from_secs_f64(age_s), window: window_s.map(Duration::from_secs) };
        let windows = windows(record, limit)?;
        assert_eq!(windows.iter().map(|window| window.created).sum::<u64>(), record.series.len() as u64 - 1);
        assert!(windows.windows(2).all(|pair| (pair[0].to_s - pair[1].from_s).abs() < 1e-9), "{windows:?}");
        Some(windows.into_iter().map(|window| (window.fresh_percent * 100.0).round() / 100.0).collect())
    }

    #[test]
    fn a_gap_counts_from_where_the_limit_was_passed() {
        // No message arrives in seconds 4 to 6. The newest message is therefore 3.5 s old at the end of second 6.
        let record = record(&[1.0, 1.0, 1.0, 1.0, 1.5, 2.5, 3.5, 1.0, 1.0, 1.0].map(Some));
        assert_eq!(shares(&record, 2.0, None), Some(vec![85.0]), "0.5 s of second 5 and all of second 6");
        assert_eq!(shares(&record, 2.0, Some(5)), Some(vec![100.0, 70.0]));
        assert_eq!(shares(&record, 2.0, Some(7)), Some(vec![85.0]), "three seconds are less than half of seven");
        assert_eq!(shares(&record, 2.0, Some(6)), Some(vec![91.67, 75.0]));
        assert_eq!(shares(&record, 60.0, Some(1)), Some(vec![100.0; 10]));
        assert_eq!(shares(&record, 0.5, Some(4)), Some(vec![50.0, 12.5, 50.0]));
    }

    #[test]
    fn a_run_shorter_than_its_window_has_no_freshness() {
        let mut record = record(&[Some(1.0); 10]);
        assert_eq!(shares(&record, 2.0, Some(10)), Some(vec![100.0]));
        assert_eq!(shares(&record, 2.0, Some(11)), None);
        record.offered_s = Some(11.0);
        assert_eq!(shares(&record, 2.0, Some(11)), Some(vec![100.0]), "the last message was due before the end");
    }

    #[test]
    fn messages_that_were_due_and_never_sent_are_not_fresh() {
        let mut record = record(&[Some(1.0); 10]);
        record.series.pop();
        record.workload.duration_limit_s = Some(20.0);
        let tally = SourceTally { created: 10, ..SourceTally::default() };
        record.stages = tally.stages("source", Stage::Scheduled, Duration::ZERO);
        let fresh = |record: &Record| windows(record, FreshnessLimit { age: Duration::from_secs(2), window: None });
        assert_eq!(fresh(&record).unwrap()[0].fresh_percent, 100.0, "all that was due was sent");
        record.due = Some(20);
        // The load should last from 3 to 20 s, but stops at 13 s. The newest message is 1 s old at 13 s, and reaches
        // the limit of 2 s at 14 s. So 11 s of the 17 s, or 65 %, are fresh.
        let window = &fresh(&record).unwrap()[0];
        assert_eq!((window.fresh_percent.round(), window.from_s, window.to_s), (65.0, 3.0, 20.0));
        let length_s = record.workload.duration_limit_s.take();
        record.offered_s = Some(17.0);
        assert_eq!(fresh(&record).unwrap()[0].to_s, 20.0, "the offer began after the warm-up");
        record.workload.duration_limit_s = length_s;
        record.ending = Some(Ending::Interrupted);
        record.offered_s = Some(10.0);
        assert_eq!(fresh(&record).unwrap()[0].fresh_percent, 100.0, "the user ended it");
    }

    #[test]
    fn before_the_first_arrival_the_age_counts_from_the_beginning() {
        let late = record(&[None, None, None, None, Some(0.5), Some(1.0)]);
        assert_eq!(shares(&late, 2.0, None), Some(vec![66.67]));
    }

    #[test]
    fn a_second_without_a_tick_continues_the_one_before() {
        let paused = record(&[Some(1.0), None, None, None]);
        assert_eq!(shares(&paused, 2.0, None), Some(vec![50.0]), "1 s, 2 s, 3 s, 4 s");
    }

    #[test]
    fn who_saw_nothing_arrive_says_nothing() {
        let mut unseen = record(&[Some(1.0)]);
        unseen.ledger.delivered = None;
        assert_eq!(shares(&unseen, 2.0, None), None);
        let mut earlier = record(&[None, None]);
        earlier.series.pop();
        assert_eq!(windows(&earlier, FreshnessLimit { age: Duration::ZERO, window: None }), None, "an older record");
        let mut nothing = record(&[None; 4]);
        nothing.ledger.delivered = Some(0);
        assert_eq!(shares(&nothing, 2.0, None), Some(vec![50.0]), "only what came late can be known to be late");
    }

    #[test]
    fn rows_of_several_seconds_are_judged_by_their_length() {
        let mut wide = record(&[30.0, 50.0, 30.0, 30.0].map(Some));
        wide.series.iter_mut().for_each(|row| row.second = (row.second - 3) * 32);
        assert_eq!(shares(&wide, 34.0, None), Some(vec![87.5]), "16 s of 128 s");
    }
}
