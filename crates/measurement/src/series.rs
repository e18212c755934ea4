//! The time series of a run: a row of counts and latencies for each second. Seconds count from the run's zero, the
//! moment at which the load began.
//!
//! Workers count each event in the second of its timestamp ([`crate::seconds`]). An event that a worker hands over late
//! therefore still belongs to the second in which it happened.
use crate::latencies::Latencies;
use crate::record::SeriesRow;
use crate::seconds::{Arrivals, PARTS, SECOND, SecondTally};
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of rows of a run: 10 hours at one row per second, in 5 MB of memory. In a longer run, each row covers
/// more seconds.
const MAX_ROWS: usize = 36_000;
/// For this many of the latest seconds, the percentiles are not computed yet, because a worker may still hand over
/// latencies of these seconds.
const MAX_OPEN: usize = 4;

/// Rows of a run so far, each for a second or, in a long run, for several seconds.
///
/// When there would be more than `MAX_ROWS` rows, every two neighbouring rows are joined, and from then on a row covers
/// twice the time. The field `second` of a row is the second at which the row begins. The quantiles of two rows cannot
/// be added, so a joined row keeps the greater of both. For the same reason, if latencies come after the quantiles of
/// their second were computed, the row keeps the greater of the old and the new quantile.
#[derive(Clone, Debug)]
pub struct Series {
    zero: Duration,
    /// Rows that end before this time belong to the warm-up. They are left out of the series, unless they count
    /// messages.
    from: Duration,
    width_s: u64,
    rows: BTreeMap<u64, SeriesRow>,
    open: BTreeMap<u64, OpenSecond>,
    /// Creation time (closed loop) or due time (open loop) of the newest message that arrived in a completed second.
    newest: Option<Duration>,
    first_open: u64,
}

/// A second whose percentiles are not computed yet, because more latencies may be added.
#[derive(Clone, Debug, Default)]
struct OpenSecond {
    latencies: Latencies,
    arrivals: [Option<Arrivals>; PARTS],
}

impl Series {
    pub fn new(zero: Duration) -> Self {
        Self { zero, from: zero, width_s: 1, rows: BTreeMap::new(), open: BTreeMap::new(), newest: None, first_open: 0 }
    }

    /// Leaves out the rows of the warm-up, which ends at `then`. A row that counts messages stays, so that the sum of
    /// all rows is complete. The seconds of the remaining rows still count from the beginning of the run.
    #[must_use]
    pub fn omit_before(self, then: Duration) -> Self {
        Self { from: then.max(self.zero), ..self }
    }

    pub fn zero(&self) -> Duration {
        self.zero
    }

    /// Adds the events that one worker counted in a second. The counts of several workers for the same second are
    /// summed.
    ///
    /// `queued` stays 0 here, because [`crate::merge`] computes it later from the counts of the source and of the sink.
    pub fn add(&mut self, tally: &SecondTally) {
        let second = self.second_of(tally.begin);
        let row = self.row(second);
        row.sent += tally.sent;
        row.accepted += tally.accepted;
        row.delivered += tally.delivered;
        row.errors += tally.errors;
        if tally.latencies.count() == 0 && tally.arrivals.iter().all(Option::is_none) {
            return;
        }
        let open = self.open.entry(second).or_default();
        open.latencies.merge(&tally.latencies);
        for (known, arrivals) in open.arrivals.iter_mut().zip(tally.arrivals) {
            match (known.as_mut(), arrivals) {
                (Some(known), Some(arrivals)) => known.merge(arrivals),
                (None, arrivals) => *known = arrivals,
                (Some(_), None) => {}
            }
        }
        if self.open.len() > MAX_OPEN {
            self.close_first(None);
        }
    }

    /// Adds messages that were created (closed loop) or due (open loop) in the second that begins at `begin`.
    pub fn add_created(&mut self, begin: Duration, messages: u64) {
        let second = self.second_of(begin);
        self.row(second).created += messages;
    }

    pub fn add_errors(&mut self, at: Duration, errors: u64) {
        let second = at.saturating_sub(self.zero).as_secs();
        self.row(second).errors += errors;
    }

    /// Adds a row for the last complete second before `now`, so that idle seconds at the end have rows as well.
    pub fn reach(&mut self, now: Duration) {
        if let Some(second) = now.saturating_sub(self.zero).as_secs().checked_sub(1) {
            self.row(second);
        }
    }

    /// Returns all rows up to the last second in which something happened or that [`Self::reach`] has added. `now` is
    /// the end of the observation. If the last second has not ended by then, the age of the newest message is taken at
    /// `now`.
    pub fn rows(&self, now: Duration) -> Vec<SeriesRow> {
        let mut all = self.clone();
        while !all.open.is_empty() {
            all.close_first(Some(now));
        }
        all.fill_gaps();
        let first = (self.from - self.zero).as_secs();
        // Leave out rows of the warm-up. But keep rows that count messages, so that the sum of all rows is complete.
        let belongs = |row: &SeriesRow| {
            row.second + all.width_s > first || row.created + row.sent + row.accepted + row.delivered > 0
        };
        all.rows.into_values().filter(belongs).collect()
    }

    /// Returns how many whole seconds after the start of the run a second begins. `begin` may be wrong by up to half a
    /// second, so the result is rounded.
    fn second_of(&self, begin: Duration) -> u64 {
        (begin + SECOND / 2).saturating_sub(self.zero).as_secs()
    }

    fn row(&mut self, second: u64) -> &mut SeriesRow {
        if self.rows.len() >= MAX_ROWS && !self.rows.contains_key(&(second / self.width_s * self.width_s)) {
            self.halve();
        }
        let second = second / self.width_s * self.width_s;
        self.rows.entry(second).or_insert_with(|| SeriesRow { second, ..SeriesRow::default() })
    }

    /// Computes the percentiles of the first second that does not have them yet, and completes its row. `now` is the
    /// end of the observation, or `None` while the run goes on. If the second has not ended by then, the age of the
    /// newest message is taken at `now`.
    fn close_first(&mut self, now: Option<Duration>) {
        let Some((second, open)) = self.open.pop_first() else { return };
        let zero = self.zero;
        let end = |second: u64| zero + Duration::from_secs(second + 1);
        let age_ms = |at: Duration, newest: Duration| at.saturating_sub(newest).as_secs_f64() * 1e3;
        let mut oldest_ms: f64 = 0.0;
        let mut newest = self.newest;
        // The newest message reaches its greatest age just before a newer message arrives, or at the end of the second.
        for arrivals in open.arrivals.into_iter().flatten() {
            oldest_ms = newest.map_or(oldest_ms, |newest| oldest_ms.max(age_ms(arrivals.first, newest)));
            newest = newest.max(Some(arrivals.newest));
        }
        let end_of_this = now.map_or(end(second), |now| now.min(end(second)));
        let oldest_ms = newest.map(|newest| oldest_ms.max(age_ms(end_of_this, newest)));
        if let Some(newest) = self.newest {
            // No message arrived from the second `first_open` until `second`, so the newest message only grew older.
            // For each of these seconds, store the message's age at the end of the second.
            for silent in self.first_open..second {
                let oldest_ms = Some(age_ms(end(silent), newest));
                join(self.row(silent), &SeriesRow { oldest_ms, ..SeriesRow::default() });
            }
        }
        self.newest = newest;
        self.first_open = self.first_open.max(second + 1);
        let times = open.latencies.summary();
        let time = |read: fn(&crate::record::LatencyMs) -> f64| times.as_ref().map_or(0.0, read);
        let closed = SeriesRow {
            p50_ms: time(|times| times.p50),
            p95_ms: time(|times| times.p95),
            p99_ms: time(|times| times.p99),
            p999_ms: time(|times| times.p999),
            max_ms: time(|times| times.max),
            oldest_ms,
            ..SeriesRow::default()
        };
        join(self.row(second), &closed);
    }

    /// Adds rows for seconds in which nothing happened, unless the series would then have more than `MAX_ROWS` rows.
    fn fill_gaps(&mut self) {
        let ends = self.rows.keys().next().zip(self.rows.keys().next_back());
        let Some((first, last)) = ends.map(|(first, last)| (*first, *last)) else { return };
        if (last - first) / self.width_s < MAX_ROWS as u64 {
            (first..last).step_by(self.width_s as usize).for_each(|second| _ = self.row(second));
        }
    }

    fn halve(&mut self) {
        self.width_s *= 2;
        for (second, row) in std::mem::take(&mut self.rows) {
            let second = second / self.width_s * self.width_s;
            let joined = self.rows.entry(second).or_insert_with(|| SeriesRow { second, ..SeriesRow::default() });
            join(joined, &row);
        }
    }
}

/// Returns the number of seconds that each row covers. Only long series have rows of more than one second.
pub(crate) fn width(rows: &[SeriesRow]) -> u64 {
    if rows.len() < MAX_ROWS / 4 { 1 } else { step(rows) }
}

/// Returns the smallest number of seconds from the beginning of one row to the beginning of the next row.
pub(crate) fn step(rows: &[SeriesRow]) -> u64 {
    let steps = rows.windows(2).map(|pair| pair[1].second.saturating_sub(pair[0].second));
    steps.filter(|step| *step > 0).min().unwrap_or(1)
}

/// Adds the counts of `next` to `row`. Latencies and the age become the greater of both values. If the rows come from
/// different sinks, the caller must afterwards set `oldest_ms` to the lower of both ages, because the newest message
/// may have arrived at either sink.
pub(crate) fn join(row: &mut SeriesRow, next: &SeriesRow) {
    row.created = row.created.saturating_add(next.created);
    row.sent = row.sent.saturating_add(next.sent);
    row.accepted = row.accepted.saturating_add(next.accepted);
    row.delivered = row.delivered.saturating_add(next.delivered);
    row.errors = row.errors.saturating_add(next.errors);
    row.p50_ms = row.p50_ms.max(next.p50_ms);
    row.p95_ms = row.p95_ms.max(next.p95_ms);
    row.p99_ms = row.p99_ms.max(next.p99_ms);
    row.p999_ms = row.p999_ms.max(next.p999_ms);
    row.max_ms = row.max_ms.max(next.max_ms);
    row.oldest_ms = greater(row.oldest_ms, next.oldest_ms);
}

fn greater(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: Duration = Duration::from_millis(10_300);

    fn second(number: u64, sent: u64, ms: Option<u64>) -> SecondTally {
        let mut tally = SecondTally::new(ZERO + Duration::from_secs(number));
        tally.sent = sent;
        if let Some(latency) = ms.map(Duration::from_millis) {
            tally.delivered = 1;
            tally.latencies.record(latency);
            tally.arrive(tally.begin, tally.begin.saturating_sub(latency));
        }
        tally
    }

    fn rows(series: &Series) -> Vec<(u64, u64)> {
        series.rows(ZERO + Duration::from_secs(99)).iter().map(|row| (row.second, row.sent)).collect()
    }

    #[test]
    fn what_is_handed_over_late_belongs_to_the_second_in_which_it_happened() {
        let mut series = Series::new(ZERO);
        for number in [0, 1, 0, 4, 3, 2, 9, 0] {
            series.add(&second(number, 1, Some(number + 1)));
        }
        series.add(&second(1, 0, Some(500)));
        let max_ms: Vec<_> = series.rows(ZERO + Duration::from_secs(99)).iter().map(|row| row.max_ms.round()).collect();
        assert_eq!(max_ms, [1.0, 500.0, 3.0, 4.0, 5.0, 0.0, 0.0, 0.0, 0.0, 10.0]);
        let sent: Vec<_> = rows(&series).into_iter().map(|(_, sent)| sent).collect();
        assert_eq!(sent, [3, 1, 1, 1, 1, 0, 0, 0, 0, 1], "seconds in which nothing happened have a row");
    }

    #[test]
    fn quantiles_are_of_their_second_alone() {
        let mut series = Series::new(ZERO);
        series.add(&second(0, 1, Some(100)));
        series.add(&second(1, 1, Some(5)));
        series.add_errors(ZERO + Duration::from_millis(1_999), 2);
        series.reach(ZERO + Duration::from_millis(3_001));
        let rows = series.rows(ZERO + Duration::from_secs(3));
        for row in &rows {
            let rising = [row.p50_ms, row.p95_ms, row.p99_ms, row.p999_ms];
            assert!(rising.is_sorted() && rising.iter().all(|ms| (ms - row.max_ms).abs() < 0.1), "{row:?}");
        }
        let figures: Vec<_> = rows.iter().map(|row| (row.p99_ms.round(), row.delivered, row.errors)).collect();
        assert_eq!(figures, [(100.0, 1, 0), (5.0, 1, 2), (0.0, 0, 0)], "a second in which nothing came has no latency");
    }

    #[test]
    fn the_age_of_the_newest_grows_until_a_newer_one_comes() {
        let mut series = Series::new(ZERO);
        let at = |ms| ZERO + Duration::from_millis(ms);
        let mut arrive = |arrived, created| {
            let mut tally = SecondTally::new(second_begin(arrived));
            tally.arrive(at(arrived), at(created));
            series.add(&tally);
        };
        [(400, 350), (3_450, 3_400), (3_460, 100), (3_980, 3_900), (4_100, 4_050)]
            .into_iter()
            .for_each(|(arrived, created)| arrive(arrived, created));
        let oldest = |now| series.rows(at(now)).iter().map(|row| row.oldest_ms.map(f64::round)).collect::<Vec<_>>();
        assert_eq!(oldest(4_300), [650.0, 1_650.0, 2_650.0, 3_100.0, 250.0].map(Some), "observed until 4.3 s");
        assert_eq!(oldest(9_000)[4], Some(950.0));
    }

    fn second_begin(ms: u64) -> Duration {
        ZERO + Duration::from_secs(ms / 1_000)
    }

    #[test]
    fn rows_of_the_warm_up_are_left_out_and_the_others_keep_their_second() {
        let mut series = Series::new(ZERO).omit_before(ZERO + Duration::from_millis(2_500));
        for number in 0..5 {
            // Seconds 0 and 1 belong to the warm-up and have only errors, so `rows` must leave their rows out.
            series.add_errors(ZERO + Duration::from_secs(number), number + 1);
            series.add(&second(number, number.saturating_sub(2), None));
        }
        assert_eq!(rows(&series), [(2, 0), (3, 1), (4, 2)], "second 2 is part of the warm-up and part of the run");
        assert_eq!(series.zero(), ZERO);
        let mut early = Series::new(ZERO).omit_before(ZERO + Duration::from_secs(2));
        early.add(&second(1, 1, None));
        assert_eq!(rows(&early), [(1, 1)], "no message is lost");
        assert!(Series::new(ZERO).rows(ZERO).is_empty());
    }

    #[test]
    fn a_long_run_halves_its_resolution_and_loses_no_count() {
        let mut series = Series::new(ZERO);
        let seconds = 2 * MAX_ROWS as u64 + 7;
        for number in 0..seconds {
            series.add(&second(number, 1, (number == 5).then_some(700)));
            series.add_created(ZERO + Duration::from_secs(number), 1);
        }
        let rows = series.rows(ZERO + Duration::from_secs(seconds));
        assert!(rows.len() <= MAX_ROWS, "{}", rows.len());
        assert_eq!(rows.iter().map(|row| row.sent).sum::<u64>(), seconds);
        assert_eq!(rows.iter().map(|row| row.created).sum::<u64>(), seconds);
        let slowest = rows.iter().map(|row| row.max_ms).fold(0.0, f64::max);
        assert!((slowest - 700.0).abs() < 1.0, "halving keeps the maximum: {slowest}");
        assert!(rows.windows(2).all(|pair| pair[0].second < pair[1].second));
    }
}
