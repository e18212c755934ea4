//! Converts the counts of a load into a report for a master. In the master's statistics, `Aggregated` and the first row
//! count whole messages. Each further row has the times of one stage or phase of the messages, for example `sent`.
//!
//! All times come from histograms, so a master's percentiles agree with the exact percentiles to two digits.
use crate::source::LoadCounts;
use mailrun_locust::{ErrorEntry, ExactHistogram, StatsEntry, StatsReport};
use mailrun_measurement::{Latencies, Phase};
use std::collections::BTreeMap;

const NS_PER_MS: f64 = 1e6;
/// Shortest time that a report to the master contains, 10 µs. Shorter measured times are reported as 10 µs, so that the
/// report lists few different times.
const SHORTEST_MS: f64 = 0.01;
const PROTOCOL: &str = "SMTP";

#[derive(Clone, Copy, Debug)]
pub(super) struct ReportTimes {
    pub(super) start_s: f64,
    pub(super) now_s: f64,
    pub(super) offset_s: i64,
}

pub(super) fn report(counts: &LoadCounts, times: ReportTimes) -> StatsReport {
    let message = message_entry(counts, times);
    let mut entries = Vec::new();
    if message.requests > 0 {
        entries.push(message.clone());
    }
    let stages = [("sent", &counts.sent_times), ("message service", &counts.service_times)];
    let phases = Phase::ALL.into_iter().map(|phase| (phase.name(), &counts.phases.0[phase as usize]));
    let rows = stages.into_iter().chain(phases).filter(|(_, latencies)| latencies.count() > 0);
    entries.extend(rows.map(|(name, latencies)| part_entry(name, latencies, times)));
    let all = [("message", &counts.accepted_times)];
    StatsReport {
        total: StatsEntry { name: "Aggregated".to_owned(), method: String::new(), ..message },
        entries,
        errors: errors(counts),
        histograms: all.into_iter().filter_map(|(tag, times)| exact(tag, times)).collect(),
        counts: vec![
            ("created", counts.created),
            ("accepted", counts.accepted),
            ("rejected", counts.rejected),
            ("failed", counts.failed),
            ("connections", counts.connections),
        ],
        ..StatsReport::default()
    }
}

fn exact(tag: &str, times: &Latencies) -> Option<ExactHistogram> {
    Some(ExactHistogram { tag: tag.to_owned(), count: times.count(), encoded: times.encoded()? })
}

/// Makes the row of whole messages, each timed from its start to its last reply. As in Locust,
/// failed messages count as requests.
fn message_entry(counts: &LoadCounts, times: ReportTimes) -> StatsEntry {
    let mut all = counts.accepted_times.clone();
    all.merge(&counts.ended_times);
    let by_second = |count: fn(&(u64, u64)) -> u64| -> BTreeMap<u64, u64> {
        let second = |second: u64| second.saturating_add_signed(times.offset_s);
        let rows = counts.ended_by_second.iter().map(|(at, counts)| (second(*at), count(counts)));
        rows.filter(|(_, count)| *count > 0).collect()
    };
    StatsEntry {
        requests: counts.ended(),
        failures: counts.rejected + counts.failed,
        bytes: counts.bytes,
        per_second: by_second(|counts| counts.0),
        failed_per_second: by_second(|counts| counts.1),
        ..timed_entry("message", &all, times)
    }
}

fn part_entry(name: &str, latencies: &Latencies, times: ReportTimes) -> StatsEntry {
    let second = times.now_s as u64;
    StatsEntry {
        requests: latencies.count(),
        per_second: BTreeMap::from([(second, latencies.count())]),
        ..timed_entry(name, latencies, times)
    }
}

fn timed_entry(name: &str, latencies: &Latencies, times: ReportTimes) -> StatsEntry {
    let summary = latencies.summary();
    let mut rounded: BTreeMap<u64, u64> = BTreeMap::new();
    let mut total_ms = 0.0;
    for (ns, count) in latencies.buckets() {
        let ms = ns as f64 / NS_PER_MS;
        total_ms += ms * count as f64;
        *rounded.entry(two_digits(ms).to_bits()).or_default() += count;
    }
    StatsEntry {
        name: name.to_owned(),
        method: PROTOCOL.to_owned(),
        total_ms,
        max_ms: summary.as_ref().map_or(0.0, |summary| summary.max),
        min_ms: summary.as_ref().map(|summary| summary.min),
        times: rounded.into_iter().map(|(ms, count)| (f64::from_bits(ms), count)).collect(),
        start_s: times.start_s,
        last_s: summary.map(|_| times.now_s),
        ..StatsEntry::default()
    }
}

/// Rounds a time to two significant digits, so that the report lists few different times.
fn two_digits(ms: f64) -> f64 {
    let ms = ms.max(SHORTEST_MS);
    let unit_exponent = ms.log10().floor() as i32 - 1;
    // Divide by 10 rather than multiply by 0.1, because 12 / 10 is the same number as Python's 1.2,
    // but 12 * 0.1 is slightly larger.
    match u32::try_from(-unit_exponent) {
        Ok(decimals) => {
            let scale = 10_f64.powi(decimals as i32);
            (ms * scale).round() / scale
        }
        Err(_) => {
            let unit = 10_f64.powi(unit_exponent);
            (ms / unit).round() * unit
        }
    }
}

fn errors(counts: &LoadCounts) -> Vec<ErrorEntry> {
    let row = |row: mailrun_measurement::record::ErrorRow| ErrorEntry {
        name: row.phase.name().to_owned(),
        method: PROTOCOL.to_owned(),
        error: if row.code == 0 { row.text } else { format!("{} at {}", row.code, row.phase.name()) },
        occurrences: row.count,
    };
    counts.errors.rows(0).into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const TIMES: ReportTimes = ReportTimes { start_s: 1_000.0, now_s: 1_003.0, offset_s: 60 };

    #[test]
    fn numbers_keep_two_digits() {
        let pairs = [
            (0.0, 0.01),
            (0.0123, 0.012),
            (1.2345, 1.2),
            (9.96, 10.0),
            (12.6, 13.0),
            (123.4, 120.0),
            (98_765.0, 99_000.0),
        ];
        for (ms, rounded) in pairs {
            assert_eq!(two_digits(ms), rounded, "{ms}");
        }
    }

    #[test]
    fn every_message_is_in_the_aggregate_once() {
        let mut counts = LoadCounts { accepted: 1_000, rejected: 2, failed: 1, ..LoadCounts::default() };
        (1..=1_000).for_each(|us| counts.accepted_times.record(Duration::from_micros(us * 37)));
        (1..=3).for_each(|ms| counts.ended_times.record(Duration::from_millis(ms)));
        counts.ended_by_second.insert(500, (1_003, 3));
        let report = report(&counts, TIMES);
        let times: u64 = report.total.times.iter().map(|(_, count)| count).sum();
        assert_eq!((report.total.requests, report.total.failures, times), (1_003, 3, 1_003));
        assert_eq!(report.total.per_second, BTreeMap::from([(560, 1_003)]));
        assert_eq!((report.entries.len(), report.histograms[0].count), (1, 1_000));
        assert!(report.total.times.len() < 200, "{}", report.total.times.len());
        let again = Latencies::decode(&report.histograms[0].encoded).unwrap();
        assert_eq!(again.summary(), counts.accepted_times.summary());
    }

    #[test]
    fn a_quiet_interval_is_a_report_without_rows() {
        let report = report(&LoadCounts::default(), TIMES);
        assert!(report.entries.is_empty() && report.histograms.is_empty() && report.errors.is_empty());
        assert_eq!((report.total.requests, report.total.min_ms), (0, None));
    }
}
