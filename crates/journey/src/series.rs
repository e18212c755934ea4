//! A row for each second of a run, made from the collector's ticks.
//!
//! A tick holds the values of all counters and the latencies since the last tick; it belongs to the second in which the
//! middle of its interval lies, so a tick that comes at 3.0003 s still counts for second 2.
use crate::latencies::Latencies;
use crate::record::SeriesRow;
use std::collections::BTreeMap;
use std::time::Duration;

/// Rows before the resolution is halved: 10 hours of seconds, 2.3 MB.
const MAX_ROWS: usize = 36_000;
/// A tick that comes later than this after the last one (the party slept) counts as if it covered only this.
const MAX_TICK_INTERVAL: Duration = Duration::from_secs(1);

/// The rows of a run so far.
///
/// After `MAX_ROWS` rows each two become one and from then on a row covers twice as long; `second` is its start.
/// Quantiles cannot be added, so such a row keeps the worse one.
#[derive(Clone, Debug)]
pub struct Series {
    origin: Duration,
    /// Rows that end before this are left out, because of the warm-up.
    from: Duration,
    last_tick: Duration,
    last_counters: SeriesCounters,
    width_s: u64,
    rows: Vec<SeriesRow>,
    /// Messages by the second in which they were due, which may be long before the tick that reports them.
    created: BTreeMap<u64, u64>,
    current: SeriesRow,
    latencies: Latencies,
}

/// Values of a party's counters at a tick, since the run began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeriesCounters {
    /// Messages handed over.
    pub sent: u64,
    /// Messages accepted.
    pub accepted: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Errors.
    pub errors: u64,
    /// Time at which the newest message that has arrived was created, or due.
    pub newest_created: Option<Duration>,
}

impl Series {
    /// Begins at the whole second at or before `origin`, so that the series of parties on one host line up.
    pub fn new(origin: Duration) -> Self {
        let origin = Duration::from_secs(origin.as_secs());
        Self {
            origin,
            from: origin,
            last_tick: origin,
            last_counters: SeriesCounters::default(),
            width_s: 1,
            rows: Vec::new(),
            created: BTreeMap::new(),
            current: SeriesRow::default(),
            latencies: Latencies::default(),
        }
    }

    /// Leaves out rows that end before that time and count no message: those of a warm-up. The others keep their place:
    /// the first remaining row has the number of its second.
    #[must_use]
    pub fn omit_before(self, then: Duration) -> Self {
        Self { from: then.max(self.origin), ..self }
    }

    /// Time at which second 0 begins, as in the run record.
    pub fn origin_ns(&self) -> u64 {
        self.origin.as_secs() * 1_000_000_000
    }

    /// Takes a tick: the current values of the counters, and the latencies since the last tick.
    ///
    /// `queued` stays 0: it can be computed only with the counts of both ends, as [`crate::merge`] does.
    pub fn add(&mut self, now: Duration, counters: SeriesCounters, latencies: &Latencies) {
        self.advance_to(self.second_of(now));
        let before = std::mem::replace(&mut self.last_counters, counters);
        self.current.sent += counters.sent.saturating_sub(before.sent);
        self.current.accepted += counters.accepted.saturating_sub(before.accepted);
        self.current.delivered += counters.delivered.saturating_sub(before.delivered);
        self.current.errors += counters.errors.saturating_sub(before.errors);
        let age_ms = counters.newest_created.map(|created| now.saturating_sub(created).as_secs_f64() * 1e3);
        self.current.oldest_ms = greater(self.current.oldest_ms, age_ms);
        self.latencies.merge(latencies);
        self.last_tick = now;
    }

    /// Adds messages that were created, or at open loop due, in that second of the clock.
    pub fn add_created(&mut self, second: u64, messages: u64) {
        let second = second.saturating_sub(self.origin.as_secs());
        *self.created.entry(second / self.width_s * self.width_s).or_default() += messages;
    }

    /// All rows, the current one included.
    pub fn rows(&self) -> Vec<SeriesRow> {
        let mut rows = self.rows.clone();
        append(&mut rows, self.current_row());
        let mut rows = self.with_created(rows);
        let first = (self.from - self.origin).as_secs();
        // A tick that reaches beyond the warm-up may fall into its last second.
        rows.retain(|row| {
            row.second + self.width_s > first || row.created + row.sent + row.accepted + row.delivered > 0
        });
        rows
    }

    /// The rows with the messages created in each.
    fn with_created(&self, rows: Vec<SeriesRow>) -> Vec<SeriesRow> {
        let mut seconds: BTreeMap<u64, SeriesRow> = rows.into_iter().map(|row| (row.second, row)).collect();
        for (&second, &messages) in &self.created {
            let row = seconds.entry(second).or_insert_with(|| SeriesRow { second, ..SeriesRow::default() });
            row.created += messages;
        }
        seconds.into_values().collect()
    }

    fn second_of(&self, now: Duration) -> u64 {
        let covered = now.saturating_sub(self.last_tick).min(MAX_TICK_INTERVAL);
        let second = (now - covered / 2).saturating_sub(self.origin).as_secs();
        second / self.width_s * self.width_s
    }

    /// Ends the current row if `second` is after it.
    fn advance_to(&mut self, second: u64) {
        if second < self.current.second + self.width_s {
            return;
        }
        let ended = self.current_row();
        append(&mut self.rows, ended);
        self.latencies.clear();
        if self.rows.len() >= MAX_ROWS {
            self.halve();
        }
        self.current = SeriesRow { second: second / self.width_s * self.width_s, ..SeriesRow::default() };
    }

    fn current_row(&self) -> SeriesRow {
        let mut row = self.current.clone();
        if let Some(summary) = self.latencies.summary() {
            row.p50_ms = summary.p50;
            row.p95_ms = summary.p95;
            row.p99_ms = summary.p99;
            row.p999_ms = summary.p999;
            row.max_ms = summary.max;
        }
        row
    }

    fn halve(&mut self) {
        self.width_s *= 2;
        let mut halved: Vec<SeriesRow> = Vec::with_capacity(MAX_ROWS);
        for mut row in self.rows.drain(..) {
            row.second = row.second / self.width_s * self.width_s;
            append(&mut halved, row);
        }
        self.rows = halved;
        for (second, messages) in std::mem::take(&mut self.created) {
            *self.created.entry(second / self.width_s * self.width_s).or_default() += messages;
        }
    }
}

/// Adds a row, to the last one if both begin in the same second.
fn append(rows: &mut Vec<SeriesRow>, row: SeriesRow) {
    match rows.last_mut().filter(|last| last.second == row.second) {
        Some(last) => join(last, &row),
        None => rows.push(row),
    }
}

fn join(row: &mut SeriesRow, next: &SeriesRow) {
    row.sent += next.sent;
    row.accepted += next.accepted;
    row.delivered += next.delivered;
    row.errors += next.errors;
    row.p50_ms = row.p50_ms.max(next.p50_ms);
    row.p95_ms = row.p95_ms.max(next.p95_ms);
    row.p99_ms = row.p99_ms.max(next.p99_ms);
    row.p999_ms = row.p999_ms.max(next.p999_ms);
    row.max_ms = row.max_ms.max(next.max_ms);
    row.oldest_ms = greater(row.oldest_ms, next.oldest_ms);
}

/// The greater of two numbers, of which each may be unknown.
fn greater(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(ms: u64) -> Latencies {
        let mut latencies = Latencies::default();
        latencies.record(Duration::from_millis(ms));
        latencies
    }

    fn sent(sent: u64) -> SeriesCounters {
        SeriesCounters { sent, ..SeriesCounters::default() }
    }

    #[test]
    fn ticks_belong_to_the_second_they_cover() {
        let mut series = Series::new(Duration::from_millis(10_900));
        assert_eq!(series.origin_ns(), 10_000_000_000);
        for (tick_ms, count) in [(10_950, 1), (11_000, 2), (11_250, 5), (11_999, 6), (12_009, 9), (12_300, 10)] {
            series.add(Duration::from_millis(tick_ms), sent(count), &one(count));
        }
        let rows: Vec<_> = series.rows().iter().map(|row| (row.second, row.sent)).collect();
        assert_eq!(rows, [(0, 2), (1, 4), (2, 4)], "what came from 11.999 to 12.009 is second 2's");
    }

    #[test]
    fn a_tick_that_is_a_little_late_stays_in_its_second() {
        let mut series = Series::new(Duration::ZERO);
        for tick in 1..=8 {
            series.add(Duration::from_micros(tick * 250_300), sent(tick), &one(tick));
        }
        let rows: Vec<_> = series.rows().iter().map(|row| (row.second, row.sent)).collect();
        assert_eq!(rows, [(0, 4), (1, 4)]);
    }

    #[test]
    fn quantiles_are_of_their_second_alone() {
        let mut series = Series::new(Duration::ZERO);
        let counters = |messages, errors| SeriesCounters {
            sent: messages,
            accepted: messages,
            delivered: messages,
            errors,
            newest_created: None,
        };
        series.add(Duration::from_millis(900), counters(1, 0), &one(100));
        series.add(Duration::from_millis(1900), counters(2, 1), &one(5));
        series.add(Duration::from_millis(2900), counters(2, 1), &Latencies::default());
        let rows = series.rows();
        for row in &rows {
            let rising = [row.p50_ms, row.p95_ms, row.p99_ms, row.p999_ms];
            assert!(rising.is_sorted() && rising.iter().all(|ms| (ms - row.max_ms).abs() < 0.1), "{row:?}");
        }
        let p99: Vec<_> = rows.iter().map(|row| row.p99_ms.round()).collect();
        assert_eq!(p99, [100.0, 5.0, 0.0], "a second in which nothing came has no latency");
        assert_eq!((rows[1].accepted, rows[1].delivered, rows[1].errors), (1, 1, 1));
    }

    #[test]
    fn rows_of_the_warm_up_are_left_out_and_the_others_keep_their_second() {
        let origin = Duration::from_millis(10_300);
        let mut series = Series::new(origin).omit_before(origin + Duration::from_millis(2_500));
        for second in 0..5 {
            let now = Duration::from_millis(10_900 + second * 1000);
            // An event that is no message continues to be counted: an error.
            let counters = SeriesCounters { errors: second + 1, ..sent(second.saturating_sub(2)) };
            series.add(now, counters, &one(5));
        }
        let rows: Vec<_> = series.rows().iter().map(|row| (row.second, row.sent, row.errors)).collect();
        assert_eq!(rows, [(2, 0, 1), (3, 1, 1), (4, 1, 1)], "second 2 is part of the warm-up and part of the run");
        assert_eq!(series.origin_ns(), 10_000_000_000);
        let mut early = Series::new(origin).omit_before(Duration::from_millis(12_010));
        early.add(Duration::from_millis(11_850), sent(0), &one(5));
        early.add(Duration::from_millis(12_100), sent(1), &one(5));
        let rows: Vec<_> = early.rows().iter().map(|row| (row.second, row.sent)).collect();
        assert_eq!(rows, [(1, 1)], "no message is lost with its tick");
        let nothing = Series::new(origin).omit_before(Duration::ZERO);
        assert_eq!(nothing.rows().len(), 1);
    }

    #[test]
    fn a_long_run_halves_its_resolution_and_loses_no_count() {
        let mut series = Series::new(Duration::ZERO);
        let seconds = 2 * MAX_ROWS as u64 + 7;
        for second in 0..seconds {
            let slow = if second == 5 { one(700) } else { Latencies::default() };
            series.add(Duration::from_millis(second * 1000 + 500), sent(second + 1), &slow);
            series.add_created(second, 1);
        }
        let rows = series.rows();
        assert!(rows.len() <= MAX_ROWS + 1, "{}", rows.len());
        assert_eq!(rows.iter().map(|row| row.sent).sum::<u64>(), seconds);
        assert_eq!(rows.iter().map(|row| row.created).sum::<u64>(), seconds);
        let slowest = rows.iter().map(|row| row.max_ms).fold(0.0, f64::max);
        assert!((slowest - 700.0).abs() < 1.0, "halving keeps the maximum: {slowest}");
        assert!(rows.windows(2).all(|pair| pair[0].second < pair[1].second));
    }
    #[test]
    fn messages_are_created_in_the_second_in_which_they_were_due() {
        let mut series = Series::new(Duration::from_millis(10_900));
        series.add(Duration::from_millis(12_250), sent(1), &one(1));
        series.add_created(10, 3);
        series.add_created(12, 2);
        series.add_created(10, 1);
        series.add_created(13, 5);
        let rows: Vec<_> = series.rows().iter().map(|row| (row.second, row.created, row.sent)).collect();
        assert_eq!(rows, [(0, 4, 0), (1, 0, 1), (2, 2, 0), (3, 5, 0)]);
    }
}
