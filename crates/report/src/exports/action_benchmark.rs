//! JSON for github-action-benchmark: a list of `{name, unit, value, range, extra}`. Rates and latencies are in separate
//! lists, because the tool applies one rule to a whole list: either bigger or smaller values are better.
use crate::figures::stage_latency;
use crate::headline::Headline;
use mailrun_measurement::record::Record;
use mailrun_text::printable::printable;
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    BiggerIsBetter,
    SmallerIsBetter,
}

/// Returns the JSON list for one direction: the rates of all runs for `BiggerIsBetter`, or their latencies for
/// `SmallerIsBetter`.
pub(super) fn benchmarks(records: &[Record], direction: Direction) -> String {
    let rows: Vec<Value> = records.iter().flat_map(|record| of_run(record, direction)).collect();
    serde_json::to_string_pretty(&rows).map(|text| text + "\n").unwrap_or_default()
}

fn of_run(record: &Record, direction: Direction) -> Vec<Value> {
    match direction {
        Direction::BiggerIsBetter => rates(record),
        Direction::SmallerIsBetter => latencies(record),
    }
}

fn rates(record: &Record) -> Vec<Value> {
    let rated = record.stages.iter().filter_map(|stage| Some((stage.name.name(), stage.rate_per_s?)));
    rated.map(|(name, per_s)| row(record, &format!("{name} rate"), "msg/s", per_s, None)).collect()
}

fn latencies(record: &Record) -> Vec<Value> {
    let mut rows = Vec::new();
    for stage in &record.stages {
        let Some(times) = stage.latency_ms else { continue };
        let percentiles = [("p50", times.p50), ("p95", times.p95), ("p99", times.p99)];
        // If messages never arrived, a percentile may be infinite. Leave it out, because JSON has no infinity.
        for (name, value) in percentiles.into_iter().filter(|(_, value)| value.is_finite()) {
            let range = format!("{}..{}", times.min, stage_latency(stage, times.max));
            rows.push(row(record, &format!("{} {name}", stage.name.name()), "ms", value, Some(range)));
        }
    }
    rows
}

fn row(record: &Record, figure: &str, unit: &str, value: f64, range: Option<String>) -> Value {
    let run = printable(&record.name);
    let verdict = format!("{} {}", Headline::of(record).name(), printable(&record.verdict.why));
    let extra = format!("{}\nrun {}\nmailrun {}", verdict.trim_end(), printable(&record.run_id), record.version);
    let mut row =
        json!({ "name": format!("{run}: {}", printable(figure)), "unit": unit, "value": value, "extra": extra });
    if let Some(range) = range {
        row["range"] = range.into();
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn list(direction: Direction) -> Vec<Value> {
        serde_json::from_str(&benchmarks(&[sample::held()], direction)).unwrap()
    }

    #[test]
    fn rates_are_better_when_bigger() {
        let rows = list(Direction::BiggerIsBetter);
        assert_eq!(rows.len(), 3);
        assert_eq!((&rows[2]["name"], &rows[2]["unit"]), (&json!("quick: delivered rate"), &json!("msg/s")));
        assert_eq!(rows[2]["value"], json!(54_321.0));
    }

    #[test]
    fn latencies_are_better_when_smaller() {
        let rows = list(Direction::SmallerIsBetter);
        assert_eq!(rows.len(), 9);
        assert_eq!((&rows[1]["name"], &rows[1]["value"]), (&json!("quick: sent p95"), &json!(2.5)));
        assert_eq!(rows[1]["range"], json!("0.012..12.50 ms"));
        assert!(rows[1]["extra"].as_str().unwrap().starts_with("PASS 200,000 delivered"));
    }
}
