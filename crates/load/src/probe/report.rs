//! Writes the daily report of a route. As for any other run, there is a `run.json`, and a `report.md` for people.
use super::account::{Day, ProbeStage};
use super::options::RouteOptions;
use anyhow::{Context, Result};
use jiff::Timestamp;
use mailrun_measurement::account::Topology;
use mailrun_measurement::judge::{VerdictInputs, judge};
use mailrun_measurement::record::{Ending, LedgerRow, Record, Role, StageRow, Workload};
use mailrun_measurement::{RunId, Stage};
use mailrun_process::output_file;
use mailrun_process::outputs::{new_record, own_party, write_record};
use std::path::{Path, PathBuf};

const SECONDS_PER_DAY: i64 = 86_400;

/// Writes the report of a day into its own directory below `reports`. `day` is the number of days since 1 January 1970.
/// `route` is `None` if the configuration no longer has the route.
pub(super) fn write(
    reports: &Path,
    (name, route): (&str, Option<&RouteOptions>),
    run: RunId,
    (day, figures): (u64, &Day),
) -> Result<PathBuf> {
    let begin = i64::try_from(day).unwrap_or(i64::MAX).saturating_mul(SECONDS_PER_DAY);
    let begin = Timestamp::from_second(begin).context("the day is in no calendar")?;
    let directory = reports.join(begin.strftime("%F").to_string()).join(file_name(name));
    let record = record(name, route, run, begin, figures);
    let path = directory.join("run.json");
    output_file::check(&path)?;
    write_record(&path, &record)?;
    output_file::write(&directory.join("report.md"), mailrun_report::markdown(&record))?;
    Ok(directory)
}

/// Replaces the characters of a route's name that are not safe in a file name, such as slashes.
fn file_name(name: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.@".contains(letter);
    let name: String = name.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect();
    if name.starts_with('.') { format!("_{name}") } else { name }
}

fn record(name: &str, route: Option<&RouteOptions>, run: RunId, begin: Timestamp, day: &Day) -> Record {
    let counts = day.counts;
    let workload = Workload {
        recipients: 1,
        sessions: 1,
        rate_per_s: route.map(|route| 1.0 / route.interval.as_secs_f64()),
        protocol: "smtp".to_owned(),
        target: route.map_or_else(|| name.to_owned(), |route| route.server.clone()),
        from: route.map(|route| route.from.clone()).unwrap_or_default(),
        rcpt: route.map(|route| route.to.clone()).unwrap_or_default(),
        ..Workload::default()
    };
    let mut record = new_record(Some(run), name, begin, workload, None);
    record.zero_at = begin.strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string();
    record.duration_s = SECONDS_PER_DAY as f64;
    record.observed_until_s = Some(record.duration_s);
    record.ending = Some(Ending::Complete);
    record.parties = vec![own_party(Role::Source, "probe", 1, Vec::new())];
    // Record deliveries if the probe has looked for at least some of the day's messages in a sink or mailbox. If it has
    // looked for none of them, it does not know what became of them.
    let seen_count = counts.delivered + counts.bounced + counts.missing() + counts.repeated;
    let is_watched = counts.unwatched == 0 || seen_count > 0;
    let stages = [
        (Stage::Created, None, counts.created, 0),
        (Stage::Accepted, Some(ProbeStage::Accepted), counts.accepted, counts.rejected + counts.failed),
        (Stage::Announced, Some(ProbeStage::Announced), day.latencies[ProbeStage::Announced as usize].count(), 0),
        (Stage::Delivered, Some(ProbeStage::Delivered), counts.delivered, 0),
    ];
    for (stage, timed, count, failed) in stages {
        let is_seen = match stage {
            Stage::Announced => count > 0,
            Stage::Delivered => is_watched,
            _ => true,
        };
        let times = timed.map(|timed| &day.latencies[timed as usize]);
        let latency_ms = times.and_then(|times| times.summary());
        if is_seen {
            record.stages.push(StageRow {
                count,
                failed,
                duration_s: record.duration_s,
                since: latency_ms.map(|_| Stage::Scheduled),
                latency_ms,
                histogram: times.and_then(|times| times.encoded()),
                ..StageRow::new(stage, "probe")
            });
        }
    }
    let seen = |count| is_watched.then_some(count);
    record.ledger = LedgerRow {
        created: Some(counts.created),
        accepted: Some(counts.accepted),
        rejected: Some(counts.rejected),
        failed: Some(counts.failed),
        in_doubt: Some(counts.in_doubt),
        delivered: seen(counts.delivered),
        bounced: seen(counts.bounced),
        lost: seen(counts.missing()),
        duplicates: seen(counts.repeated),
        // Accepted mail of a route without a sink or mailbox stays in flight, because nobody looks for its arrival.
        in_flight: Some(counts.unwatched),
        ..record.ledger
    };
    record.verdict = judge(&record, &VerdictInputs { topology: Topology::Server, ordered: None, quiet_timeout: None });
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::account::Counts;
    use mailrun_measurement::record::Outcome;
    use std::time::Duration;

    #[test]
    fn a_day_is_reported_like_a_run() {
        let root = tempfile::tempdir().unwrap();
        let mut day = Day {
            counts: Counts {
                created: 20,
                accepted: 18,
                rejected: 2,
                delivered: 17,
                lost: 2,
                late: 1,
                ..Counts::default()
            },
            ..Day::default()
        };
        (0..17).for_each(|number| {
            day.latencies[ProbeStage::Delivered as usize].record(Duration::from_millis(100 + number))
        });
        let route = RouteOptions::example();
        let place = write(root.path(), ("a/../b", Some(&route)), RunId([1; 16]), (20_786, &day)).unwrap();
        assert_eq!(place, root.path().join("2026-11-29/a_.._b"));
        let record = Record::from_json(&std::fs::read(place.join("run.json")).unwrap()).unwrap();
        assert!(mailrun_measurement::account::fates_sum(&record.ledger), "{:?}", record.ledger);
        assert_eq!(record.ledger.lost, Some(1), "the late one is put right");
        let min_ms = record.stage(Stage::Delivered).and_then(|stage| stage.latency_ms).map(|times| times.min.round());
        assert_eq!(min_ms, Some(100.0));
        let text = std::fs::read_to_string(place.join("report.md")).unwrap();
        assert!(text.contains("**FAIL**") && text.contains("lost"), "{text}");
        day.counts = Counts { created: 3, accepted: 3, unwatched: 3, ..Counts::default() };
        let place = write(root.path(), (".hidden", None), RunId([1; 16]), (0, &day)).unwrap();
        assert_eq!(place, root.path().join("1970-01-01/_.hidden"));
        let record = Record::from_json(&std::fs::read(place.join("run.json")).unwrap()).unwrap();
        assert_eq!((record.ledger.delivered, record.ledger.lost), (None, None), "nobody has looked");
        assert_eq!(record.verdict.outcome, Some(Outcome::Pass), "{:?}", record.verdict);
        day.counts = Counts { created: 6, accepted: 6, unwatched: 3, delivered: 2, lost: 1, ..Counts::default() };
        let place = write(root.path(), ("c", None), RunId([1; 16]), (0, &day)).unwrap();
        let record = Record::from_json(&std::fs::read(place.join("run.json")).unwrap()).unwrap();
        let ledger = &record.ledger;
        assert_eq!((ledger.delivered, ledger.lost, ledger.in_flight), (Some(2), Some(1), Some(3)), "a sink came late");
        assert!(mailrun_measurement::account::fates_sum(ledger), "{ledger:?}");
    }
}
