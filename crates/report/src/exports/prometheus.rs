//! Writes the final figures of a run as metrics, in the text formats of Prometheus (0.0.4) and
//! OpenMetrics (1.0).
//!
//! Times are in seconds and sizes in bytes, which are the base units of Prometheus. Texts of peers are never used as
//! labels, because each new reply text would create a new time series.
use crate::fates::units;
use crate::figures::errors;
use crate::headline::Headline;
use mailrun_measurement::record::{LatencyMs, Outcome, Party, Record, StageRow};
use mailrun_measurement::{Latencies, Stage};
use mailrun_text::metrics_text::{Exposition, MetricsText, label_text};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Upper bounds of the latency buckets in microseconds, from 100 µs to 10 min. Each decade has three buckets.
const BUCKETS_US: [u64; 21] = [
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    600_000_000,
];

type LatencyFigure = fn(&LatencyMs) -> f64;

const QUANTILES: [(&str, LatencyFigure); 7] = [
    ("0", |times| times.min),
    ("0.5", |times| times.p50),
    ("0.9", |times| times.p90),
    ("0.95", |times| times.p95),
    ("0.99", |times| times.p99),
    ("0.999", |times| times.p999),
    ("1", |times| times.max),
];

pub(super) fn metrics(record: &Record, exposition: Exposition) -> String {
    let mut out = MetricsText::new("mailrun_run_", exposition);
    run(&mut out, record);
    verdict(&mut out, record);
    ledger(&mut out, record);
    let stages = distinct_stages(record);
    stage_counts(&mut out, &stages);
    stage_times(&mut out, &stages);
    phases(&mut out, record);
    error_counts(&mut out, record);
    thresholds(&mut out, record);
    parties(&mut out, record);
    out.finish()
}

fn summary(out: &mut MetricsText, name: &str, labels: &[(&str, &str)], times: &LatencyMs, count: u64) {
    for (quantile, of) in &QUANTILES {
        out.sample(name, &[labels, &[("quantile", quantile)]].concat(), of(times) / 1e3);
    }
    out.sample(&format!("{name}_sum"), labels, times.mean / 1e3 * count as f64);
    out.sample(&format!("{name}_count"), labels, count);
}

fn histogram(out: &mut MetricsText, name: &str, labels: &[(&str, &str)], times: &Latencies) {
    let bucket = format!("{name}_bucket");
    for bound in BUCKETS_US.map(Duration::from_micros) {
        let le = bound.as_secs_f64().to_string();
        out.sample(&bucket, &[labels, &[("le", le.as_str())]].concat(), times.count_within(bound));
    }
    out.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), times.count());
    let mean_ms = times.summary().map_or(0.0, |summary| summary.mean);
    out.sample(&format!("{name}_sum"), labels, mean_ms / 1e3 * times.count() as f64);
    out.sample(&format!("{name}_count"), labels, times.count());
}

fn run(out: &mut MetricsText, record: &Record) {
    out.family("info", "gauge", "the run: always 1");
    let info = [
        ("run_id", record.run_id.as_str()),
        ("name", &record.name),
        ("version", &record.version),
        ("commit", record.commit.as_deref().unwrap_or_default()),
        ("protocol", &record.workload.protocol),
        ("target", &record.workload.target),
        ("os", &record.host.os),
        ("cpu", &record.host.cpu_model),
    ];
    out.sample("info", &info, 1);
    if let Ok(started) = record.started_at.parse::<jiff::Timestamp>() {
        out.gauge("start_time_seconds", "time at which the run began, in seconds since 1970", started.as_second());
    }
    out.gauge("duration_seconds", "from the first message created to the last event", record.duration_s);
    if let Some(offered_s) = record.offered_s {
        out.gauge("offered_seconds", "time in which load was offered", offered_s);
    }
}

fn verdict(out: &mut MetricsText, record: &Record) {
    let Headline::Judged(outcome) = Headline::of(record) else { return };
    out.family("verdict", "gauge", "outcome of the run: 1 for the one that it has");
    let all = [
        ("pass", Outcome::Pass),
        ("fail", Outcome::Fail),
        ("invalid", Outcome::Invalid),
        ("inconclusive", Outcome::Inconclusive),
    ];
    for (word, other) in all {
        out.sample("verdict", &[("outcome", word)], u8::from(other == outcome));
    }
}

fn ledger(out: &mut MetricsText, record: &Record) {
    out.family("units_total", "counter", "(message, recipient) pairs by fate, and the counts beside the fates");
    for (fate, units) in units(record) {
        if let Some(units) = units {
            out.sample("units_total", &[("fate", fate)], units);
        }
    }
}

/// Leaves out a row if an earlier row has the same stage and process, because a time series must not occur twice.
fn distinct_stages(record: &Record) -> Vec<&StageRow> {
    let mut seen = BTreeSet::new();
    record.stages.iter().filter(|row| seen.insert((row.name.name(), label_text(&row.party)))).collect()
}

fn stage_counts(out: &mut MetricsText, stages: &[&StageRow]) {
    out.family("stage_messages_total", "counter", "messages that reached a stage");
    for row in stages {
        out.sample("stage_messages_total", &stage_labels(row), row.count);
    }
    out.family("stage_failed_total", "counter", "messages that failed before a stage");
    for row in stages {
        out.sample("stage_failed_total", &stage_labels(row), row.failed);
    }
    out.family("stage_bytes_total", "counter", "message bytes that reached a stage");
    for row in stages {
        out.sample("stage_bytes_total", &stage_labels(row), row.bytes);
    }
    out.family("stage_messages_per_second", "gauge", "messages per second that reached a stage");
    for row in stages {
        if let Some(per_s) = row.rate_per_s {
            out.sample("stage_messages_per_second", &stage_labels(row), per_s);
        }
    }
}

fn stage_times(out: &mut MetricsText, stages: &[&StageRow]) {
    out.family("stage_latency_seconds", "summary", "latency of messages to a stage");
    for row in stages {
        if let Some(times) = row.latency_ms {
            let labels = timed_labels(row);
            // Write the number of latencies instead of the number of messages, because some messages have no latency.
            let timed = times_of(row).map_or(row.count, |times| times.count());
            summary(out, "stage_latency_seconds", &labels, &times, timed);
        }
    }
    out.family("stage_latency_distribution_seconds", "histogram", "latency of messages to a stage, by bucket");
    for row in stages {
        if let Some(times) = times_of(row) {
            histogram(out, "stage_latency_distribution_seconds", &timed_labels(row), &times);
        }
    }
}

fn stage_labels(row: &StageRow) -> [(&'static str, &str); 2] {
    [("stage", row.name.name()), ("party", row.party.as_str())]
}

fn timed_labels(row: &StageRow) -> [(&'static str, &str); 3] {
    let [stage, party] = stage_labels(row);
    [stage, party, ("since", row.since.map_or("", Stage::name))]
}

fn times_of(row: &StageRow) -> Option<Latencies> {
    Latencies::decode(row.histogram.as_deref()?)
}

fn phases(out: &mut MetricsText, record: &Record) {
    let mut seen = BTreeSet::new();
    let rows: Vec<_> = record.phases.iter().filter(|row| seen.insert(row.name)).collect();
    out.family("phase_duration_seconds", "summary", "duration of a phase of the dialogue");
    for row in &rows {
        summary(out, "phase_duration_seconds", &[("phase", row.name.name())], &row.latency_ms, row.count);
    }
}

fn error_counts(out: &mut MetricsText, record: &Record) {
    let rows = errors(record);
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for row in &rows {
        let count = counts.entry((row.phase, &row.code)).or_default();
        *count = count.saturating_add(row.count);
    }
    out.family("errors_total", "counter", "errors by phase and reply code; no code: no reply");
    for ((phase, code), count) in counts {
        out.sample("errors_total", &[("phase", phase), ("code", code)], count);
    }
}

fn thresholds(out: &mut MetricsText, record: &Record) {
    let mut seen = BTreeSet::new();
    let rows: Vec<_> = record.thresholds.iter().filter(|row| seen.insert(label_text(&row.expression))).collect();
    out.family("threshold_passed", "gauge", "1 if the threshold was met");
    for row in &rows {
        out.sample("threshold_passed", &[("expression", row.expression.as_str())], u8::from(row.passed));
    }
    out.family("threshold_value", "gauge", "measured value, in the unit of the label");
    for row in &rows {
        if let Some(value) = row.value {
            out.sample("threshold_value", &[("expression", row.expression.as_str()), ("unit", &row.unit)], value);
        }
    }
}

fn parties(out: &mut MetricsText, record: &Record) {
    let mut seen = BTreeSet::new();
    let rows: Vec<&Party> = record.parties.iter().filter(|party| seen.insert(label_text(&party.name))).collect();
    out.family("party_cpu_seconds_total", "counter", "processor time of a party of the run");
    for party in &rows {
        for (mode, seconds) in [("user", party.user_s), ("system", party.sys_s)] {
            if let Some(seconds) = seconds {
                let labels = [("party", party.name.as_str()), ("role", party.role.name()), ("mode", mode)];
                out.sample("party_cpu_seconds_total", &labels, seconds);
            }
        }
    }
    out.family("party_busy_poll_seconds_total", "counter", "part of the processor time that went into busy polling");
    for party in &rows {
        if let Some(busy_poll) = &party.busy_poll {
            let labels = [("party", party.name.as_str()), ("role", party.role.name())];
            out.sample("party_busy_poll_seconds_total", &labels, busy_poll.looked_s);
        }
    }
    out.family("party_peak_memory_bytes", "gauge", "largest resident memory of a party");
    for party in &rows {
        if let Some(bytes) = party.max_rss_bytes {
            let labels = [("party", party.name.as_str()), ("role", party.role.name())];
            out.sample("party_peak_memory_bytes", &labels, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use mailrun_measurement::record::BusyPollRow;

    #[test]
    fn every_sample_belongs_to_a_family_and_is_there_once() {
        for record in [sample::held(), sample::lossy(), sample::mades(), sample::sink_alone()] {
            for exposition in [Exposition::Prometheus, Exposition::OpenMetrics] {
                let text = metrics(&record, exposition);
                let families: Vec<&str> = text
                    .lines()
                    .filter_map(|line| line.strip_prefix("# TYPE "))
                    .filter_map(|line| line.split(' ').next())
                    .collect();
                let mut seen = BTreeSet::new();
                for line in text.lines().filter(|line| !line.starts_with('#')) {
                    let (series, value) = line.rsplit_once(' ').unwrap();
                    assert!(seen.insert(series), "{series} twice");
                    assert!(value.parse::<f64>().is_ok(), "{line}");
                    assert!(families.iter().any(|family| series.starts_with(family)), "{line}");
                }
                assert_eq!(text.ends_with("# EOF\n"), exposition == Exposition::OpenMetrics);
            }
        }
    }

    #[test]
    fn figures_are_in_base_units() {
        let text = metrics(&sample::held(), Exposition::Prometheus);
        for line in [
            "mailrun_run_verdict{outcome=\"pass\"} 1",
            "mailrun_run_units_total{fate=\"delivered\"} 200000",
            "mailrun_run_stage_messages_total{stage=\"delivered\",party=\"sink\"} 200000",
            "mailrun_run_stage_latency_seconds{stage=\"accepted\",party=\"source\",since=\"created\",quantile=\"0.99\"} 0.0031",
            "mailrun_run_phase_duration_seconds_count{phase=\"mail\"} 200000",
            "mailrun_run_party_peak_memory_bytes{party=\"sink\",role=\"sink\"} 12582912",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn busy_polling_is_told_apart_where_it_is_on() {
        let mut record = sample::held();
        assert!(!metrics(&record, Exposition::Prometheus).contains("busy_poll_seconds_total{"));
        let name = record.parties[0].name.clone();
        record.parties[0].busy_poll = Some(BusyPollRow { mode: "50us".to_owned(), looked_s: 2.5 });
        let text = metrics(&record, Exposition::Prometheus);
        let line = format!("mailrun_run_party_busy_poll_seconds_total{{party=\"{name}\",role=\"source\"}} 2.5");
        assert!(text.contains(&line), "{line} in\n{text}");
    }

    #[test]
    fn buckets_grow_to_the_whole() {
        let mut record = sample::held();
        let mut times = Latencies::default();
        [80, 900, 40_000, 700_000_000].into_iter().for_each(|us| times.record(Duration::from_micros(us)));
        record.stages[0].histogram = times.encoded();
        let text = metrics(&record, Exposition::Prometheus);
        let buckets: Vec<f64> = text
            .lines()
            .filter(|line| line.contains("_distribution_seconds_bucket"))
            .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
            .collect();
        assert_eq!((buckets.first(), buckets.last()), (Some(&1.0), Some(&4.0)));
        assert!(buckets.windows(2).all(|pair| pair[0] <= pair[1]), "{buckets:?}");
    }
}
