//! Writes the latency distributions of a run as an interval log, which tools for HdrHistogram can read. Each stage and
//! each phase has one line for the whole run, tagged with its name.
use mailrun_measurement::record::Record;
use mailrun_measurement::{IntervalLog, Latencies};
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, SystemTime};

pub(super) fn hlog(record: &Record) -> String {
    // Ignore errors, because writing to memory cannot fail.
    let bytes = log(record).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn log(record: &Record) -> io::Result<Vec<u8>> {
    let mut log = IntervalLog::begin(Vec::new(), started(record))?;
    let length = Duration::try_from_secs_f64(record.duration_s).unwrap_or_default();
    for (tag, text) in distributions(record) {
        if let Some(times) = Latencies::decode(text) {
            log.write(&tag, Duration::ZERO, length, &times)?;
        }
    }
    log.finish()
}

/// Returns the start of the run, or 1970 if the start is unknown or earlier, because the format has no earlier times.
fn started(record: &Record) -> SystemTime {
    let start_time = record.started_at.parse::<jiff::Timestamp>().map(SystemTime::from);
    start_time.map_or(SystemTime::UNIX_EPOCH, |time| time.max(SystemTime::UNIX_EPOCH))
}

/// Returns the encoded distributions, each tagged with the name of its stage or phase. If two stages have the same
/// name, the tag of the second one also contains the name of the process that measured it.
fn distributions(record: &Record) -> Vec<(String, &str)> {
    let mut tags = BTreeSet::new();
    let mut rows = Vec::new();
    for row in &record.stages {
        let name = row.name.name();
        let name = if tags.insert(name) { name.to_owned() } else { format!("{name}-{}", row.party) };
        rows.extend(row.histogram.as_deref().map(|text| (name.clone(), text)));
        rows.extend(row.service_histogram.as_deref().map(|text| (format!("{name}-service"), text)));
    }
    let phases = record.phases.iter().filter_map(|row| Some((row.name.name().to_owned(), row.histogram.as_deref()?)));
    rows.extend(phases);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_distribution_is_a_line_with_its_name() {
        let mut times = Latencies::default();
        times.record(Duration::from_millis(7));
        let mut record = sample::held();
        record.stages[1].histogram = times.encoded();
        record.stages[1].service_histogram = times.encoded();
        record.phases[0].histogram = times.encoded();
        record.phases[1].histogram = Some("nonsense".to_owned());
        let text = hlog(&record);
        let tags: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("Tag=")?.split(',').next()).collect();
        assert_eq!(tags, ["accepted", "accepted-service", "connect"]);
        assert!(text.contains("#[StartTime: 1795230012"), "{text}");
    }

    #[test]
    fn a_record_without_distributions_is_a_log_without_lines() {
        for started_at in ["", "1969-01-01T00:00:00Z", "9999-12-30T00:00:00Z"] {
            let record = Record { started_at: started_at.to_owned(), duration_s: f64::MAX, ..sample::held() };
            assert!(hlog(&record).starts_with("#[Histogram log format version 1.3]"));
        }
    }
}
