//! CPU time and resident memory of a process for each second, computed from more frequent samples.
use crate::process_usage;
use mailrun_measurement::record::{PartyUsage, UsageRow};
use std::collections::BTreeMap;
use std::time::Duration;

const NS_PER_S: u64 = 1_000_000_000;

/// Maximum number of rows: one per second for 10 hours. In a longer run, each row covers 2 seconds,
/// then 4, and so on.
const MAX_ROWS: usize = 36_000;

/// Minimum time, in seconds, that the samples of a row must cover before `latest` returns the row. Over a shorter time,
/// the kernel's ticks of 10 ms would distort the figure.
const MIN_COVERED_S: f64 = 0.4;

/// CPU time and memory that a process uses in each second. The CPU time between two samples counts for the second that
/// contains their midpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsageSampler {
    /// Time of the last sample, and the CPU time in seconds that the process had used by then.
    last: Option<(Duration, f64)>,
    /// Number of seconds that a row covers. It doubles whenever there are more than `MAX_ROWS` rows. The default, 0,
    /// stands for 1.
    width_s: u64,
    rows: Vec<UsageInterval>,
}

/// Usage of the process during the time that one row covers. This time begins at `second` of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct UsageInterval {
    second: u64,
    used_s: f64,
    /// Seconds that the samples covered, which may be less than the row's whole time.
    covered_s: f64,
    rss_bytes: u64,
}

impl UsageSampler {
    /// Takes a first sample of this process. The usage is known only after the second sample, because it is the
    /// difference between two samples.
    pub fn of_own_process(now: Duration) -> Self {
        let mut sampler = Self::default();
        sampler.sample_own(now);
        sampler
    }

    pub fn sample_own(&mut self, now: Duration) {
        let own = process_usage::own_sample();
        self.add(now, own.used_s, own.rss_bytes);
    }

    /// Adds a sample of the process that was taken at the time `now`. `used_s` is the CPU time since the process
    /// started, and `rss_bytes` its resident memory, if known.
    pub fn add(&mut self, now: Duration, used_s: f64, rss_bytes: Option<u64>) {
        let Some((before, used_before_s)) = self.last.replace((now, used_s)) else { return };
        let covered = now.saturating_sub(before);
        if covered.is_zero() {
            return;
        }
        let known = self.rows.last().map_or(0, |row| row.rss_bytes);
        self.append(UsageInterval {
            second: (now - covered / 2).as_secs(),
            used_s: (used_s - used_before_s).max(0.0),
            covered_s: covered.as_secs_f64(),
            rss_bytes: rss_bytes.unwrap_or(known),
        });
        if self.rows.len() > MAX_ROWS {
            self.halve();
        }
    }

    /// Adds the samples of a later process with the same role, for example a relay that was started
    /// again.
    #[must_use]
    pub fn then(mut self, later: Self) -> Self {
        while self.width() < later.width() {
            self.halve();
        }
        later.rows.into_iter().for_each(|row| self.append(row));
        Self { last: later.last, ..self }
    }

    /// Returns the rows for the run record. Their seconds count from `origin_ns`. If `origin_ns` is not a whole second
    /// of the clock, each row gets proportional shares of the two clock seconds that it overlaps. Returns `None` if
    /// there are no rows.
    pub fn party(&self, name: &str, origin_ns: u64) -> Option<PartyUsage> {
        let origin_s = origin_ns / NS_PER_S;
        let later_share = (origin_ns % NS_PER_S) as f64 / 1e9 / self.width() as f64;
        let mut intervals: BTreeMap<u64, UsageInterval> = BTreeMap::new();
        for interval in &self.rows {
            let Some(second) = interval.second.checked_sub(origin_s) else { continue };
            let before = second.checked_sub(self.width()).map(|before| (before, later_share));
            for (second, share) in
                before.into_iter().chain([(second, 1.0 - later_share)]).filter(|(_, share)| *share > 0.0)
            {
                let row = intervals.entry(second).or_default();
                row.used_s += interval.used_s * share;
                row.covered_s += interval.covered_s * share;
                row.rss_bytes = interval.rss_bytes;
            }
        }
        let row = |(second, row): (u64, UsageInterval)| UsageRow {
            second,
            cores: row.used_s / row.covered_s,
            rss_bytes: row.rss_bytes,
        };
        let seconds: Vec<UsageRow> = intervals.into_iter().map(row).collect();
        (!seconds.is_empty()).then(|| PartyUsage { party: name.to_owned(), seconds })
    }

    /// Returns the CPU usage in the last row, or in the row before it if the samples of the last row cover less than
    /// `MIN_COVERED_S`. The memory is always the memory in the last row.
    pub fn latest(&self) -> Option<UsageRow> {
        let is_settled = |row: &&UsageInterval| row.covered_s >= MIN_COVERED_S;
        let row = self.rows.iter().rev().take(2).find(is_settled)?;
        let rss_bytes = self.rows.last().map_or(row.rss_bytes, |last| last.rss_bytes);
        Some(UsageRow { second: row.second, cores: row.used_s / row.covered_s, rss_bytes })
    }

    fn width(&self) -> u64 {
        self.width_s.max(1)
    }

    fn append(&mut self, interval: UsageInterval) {
        let second = interval.second / self.width() * self.width();
        match self.rows.last_mut().filter(|last| last.second == second) {
            Some(last) => {
                last.used_s += interval.used_s;
                last.covered_s += interval.covered_s;
                last.rss_bytes = interval.rss_bytes;
            }
            None => self.rows.push(UsageInterval { second, ..interval }),
        }
    }

    fn halve(&mut self) {
        self.width_s = self.width() * 2;
        for row in std::mem::take(&mut self.rows) {
            self.append(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN_NS: u64 = 100_000_000_000;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(100_000 + number)
    }

    #[test]
    fn a_second_has_the_share_of_a_processor_that_its_samples_saw() {
        let mut sampler = UsageSampler::default();
        for (number, used_s, rss) in [
            (500, 7.0, Some(1)),
            (750, 7.25, Some(10)),
            (1_000, 7.25, Some(20)),
            (1_250, 7.75, None),
            (2_001, 7.75, Some(30)),
        ] {
            sampler.add(ms(number), used_s, rss);
        }
        let usage = sampler.party("sink", ORIGIN_NS).unwrap();
        let rows: Vec<_> = usage.seconds.iter().map(|row| (row.second, row.rss_bytes)).collect();
        assert_eq!((usage.party.as_str(), rows), ("sink", vec![(0, 20), (1, 30)]));
        assert!((usage.seconds[0].cores - 0.5).abs() < 1e-9 && (usage.seconds[1].cores - 0.5 / 1.001).abs() < 1e-9);
        assert_eq!(
            sampler.party("sink", ORIGIN_NS + 1_000_000_000).unwrap().seconds.len(),
            1,
            "what was before is left out"
        );
        assert_eq!(sampler.party("sink", 2 * ORIGIN_NS), None);
    }

    #[test]
    fn a_second_that_begins_between_two_of_the_clock_has_its_share_of_both() {
        let mut sampler = UsageSampler::default();
        for quarter in 0..=12_u32 {
            let used_s = [1.0, 0.0, 2.0].into_iter().enumerate();
            let used_s =
                used_s.map(|(second, cores)| cores * (f64::from(quarter) / 4.0 - second as f64).clamp(0.0, 1.0));
            sampler.add(ms(250 * u64::from(quarter)), used_s.sum(), Some(7));
        }
        let usage = sampler.party("sink", ORIGIN_NS + 250_000_000).unwrap();
        let rows: Vec<_> = usage.seconds.iter().map(|row| (row.second, row.cores)).collect();
        assert_eq!(rows, [(0, 0.75), (1, 0.5), (2, 2.0)]);
    }

    #[test]
    fn a_process_that_took_over_continues_the_rows() {
        let mut former = UsageSampler::default();
        let mut later = UsageSampler::default();
        former.add(ms(0), 5.0, Some(1));
        former.add(ms(900), 5.9, Some(1));
        later.add(ms(3_000), 0.0, Some(2));
        later.add(ms(3_500), 0.5, Some(2));
        let usage = former.then(later).party("relay", ORIGIN_NS).unwrap();
        let rows: Vec<_> = usage.seconds.iter().map(|row| (row.second, row.cores.round())).collect();
        assert_eq!(rows, [(0, 1.0), (3, 1.0)], "the start of the second process used no negative time");
    }

    #[test]
    fn a_long_run_stays_bounded_and_keeps_its_mean() {
        let mut sampler = UsageSampler::default();
        for second in 0..3 * MAX_ROWS as u64 {
            sampler.add(Duration::from_secs(second), second as f64 / 4.0, Some(second));
        }
        let usage = sampler.party("sink", 0).unwrap();
        assert!(usage.seconds.len() <= MAX_ROWS + 1, "{}", usage.seconds.len());
        assert!(usage.seconds.iter().all(|row| (row.cores - 0.25).abs() < 1e-9));
        assert!(usage.seconds.windows(2).all(|pair| pair[0].second < pair[1].second));
    }

    #[test]
    fn this_process_is_sampled() {
        let mut sampler = UsageSampler::of_own_process(ms(0));
        sampler.sample_own(ms(500));
        let usage = sampler.party("source", ORIGIN_NS).unwrap();
        assert!(usage.seconds[0].rss_bytes > 100_000, "{usage:?}");
    }
}
