//! Reads the results of a contestant from its last report or from its run record.
use crate::stored::read_run;
use anyhow::{Context, Result};
use mailrun_measurement::Stage;
use std::path::Path;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReportedResult {
    pub(super) rate_per_s: f64,
    pub(super) sent_per_s: Option<f64>,
    pub(super) latency: Option<ReportedLatency>,
    pub(super) fault: Option<String>,
}

/// Latency of the messages of a run, in milliseconds. Latencies of different tools cannot be compared, because each
/// tool measures latency in its own way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ReportedLatency {
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p90: Option<f64>,
    pub(super) p99: Option<f64>,
}

/// Rate and count of one stage, such as `Sent to outbox`, from the statistics that go-mades-bench prints.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StatisticsLine<'t> {
    pub(super) name: &'t str,
    pub(super) rate_per_s: f64,
    pub(super) count: u64,
    pub(super) limit: u64,
    pub(super) flight_time: Option<ReportedLatency>,
}

/// Parses a line such as `Sent to outbox    : 2371.734 msgs/s  7.115 mb/s  200/200 msgs …`.
pub(super) fn line(text: &str) -> Option<StatisticsLine<'_>> {
    let (name, rest) = text.split_once(": ")?;
    let mut words = rest.split_whitespace();
    let rate = words.next()?;
    if words.next()? != "msgs/s" {
        return None;
    }
    let (count, limit) = words.nth(2)?.split_once('/')?;
    let rate_per_s = rate.parse().ok()?;
    let (count, limit) = (count.parse().ok()?, limit.parse().ok()?);
    Some(StatisticsLine { name: name.trim(), rate_per_s, count, limit, flight_time: flight_time(rest) })
}

/// Parses the end of a line: `flight time: 0.003s (avg) 0.002s (median)`.
fn flight_time(text: &str) -> Option<ReportedLatency> {
    let (_, times) = text.split_once("flight time:")?;
    let mut words = times.split_whitespace();
    let mut next_ms = |name| {
        let seconds: f64 = words.next()?.strip_suffix('s')?.parse().ok()?;
        (words.next() == Some(name)).then_some(seconds * 1000.0)
    };
    let mean = next_ms("(avg)")?;
    Some(ReportedLatency { mean, p50: next_ms("(median)")?, p90: None, p99: None })
}

pub(super) fn last_table(output: &str) -> Vec<StatisticsLine<'_>> {
    let begin = output.rfind("=== Statistics").unwrap_or(output.len());
    output[begin..].lines().filter_map(line).collect()
}

/// Reads the results of go-mades-bench from its output.
///
/// # Errors
/// Fails if the output has no report.
pub(super) fn of_original(output: &str) -> Result<ReportedResult> {
    let lines = last_table(output);
    let last = lines.last().context("it printed no report")?;
    let short_line = lines.iter().find(|line| line.count != line.limit);
    let fault = short_line.map(|line| format!("{}: {} of {} messages", line.name, line.count, line.limit));
    Ok(ReportedResult {
        rate_per_s: last.rate_per_s,
        sent_per_s: lines.first().map(|line| line.rate_per_s),
        latency: last.flight_time,
        fault,
    })
}

/// Describes how far go-mades-bench had come when it was stopped.
pub(super) fn progress(output: &str) -> Option<String> {
    let lines = last_table(output);
    let last = lines.last()?;
    Some(format!("{} stood at {} of {} messages", last.name, last.count, last.limit))
}

/// Reads the results of `mailrun mades` from its run record.
///
/// # Errors
/// Fails if there is no valid record, or if the record has no stages of a MADES run.
pub(super) fn of_own(directory: &Path) -> Result<ReportedResult> {
    let record = read_run(&directory.join("run.json"))?;
    let last = record.stages.last().context("it wrote no stage")?;
    let fault = (!record.verdict.closed).then(|| record.verdict.reasons.first().cloned().unwrap_or_default());
    let rate_per_s = last.rate_per_s.context("too few messages arrived for a rate")?;
    let sent = record.stages.iter().find(|stage| stage.name == Stage::Sent);
    let latency = last.latency_ms.as_ref().map(|latency| ReportedLatency {
        mean: latency.mean,
        p50: latency.p50,
        p90: Some(latency.p90),
        p99: Some(latency.p99),
    });
    Ok(ReportedResult { rate_per_s, sent_per_s: sent.and_then(|stage| stage.rate_per_s), latency, fault })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REPORT: &str = "\
=== Statistics
Sent to outbox    : 0.000 msgs/s     0.000 mb/s  0/200 msgs          duration: 0s        flight time: 0.000s (avg) 0.000s (median)
==============================================================================
Duration         : 86.206368ms
=== Statistics
Sent to outbox    : 2371.734 msgs/s  7.115 mb/s  200/200 msgs        duration: 84ms      flight time: 0.003s (avg) 0.002s (median)
Received in inbox : 2307.618 msgs/s  6.923 mb/s  198/200 msgs        duration: 87ms      flight time: 0.005s (avg) 0.008s (median)
==============================================================================
";

    #[test]
    fn the_last_report_counts() {
        let findings = of_original(REPORT).unwrap();
        assert_eq!((findings.rate_per_s, findings.sent_per_s), (2307.618, Some(2371.734)));
        assert_eq!(findings.latency, Some(ReportedLatency { mean: 5.0, p50: 8.0, p90: None, p99: None }));
        assert_eq!(findings.fault.as_deref(), Some("Received in inbox: 198 of 200 messages"));
        assert_eq!(of_original(&REPORT.replace("198", "200")).unwrap().fault, None);
        assert_eq!(progress(REPORT).unwrap(), "Received in inbox stood at 198 of 200 messages");
        assert!(of_original("panic: no\n").is_err() && progress("").is_none());
    }

    #[test]
    fn lines_that_are_none() {
        for text in
            ["", "Duration : 1s", "a: 1 msgs/s 2 mb/s 3 msgs", "a: x msgs/s 2 mb/s 3/4 msgs", "a: 1 msgs/s 2 mb/s 3/"]
        {
            assert_eq!(line(text), None, "{text}");
        }
        let strange = line("Sent to outbox : +Inf msgs/s NaN mb/s 3/18446744073709551615 msgs x").unwrap();
        assert_eq!((strange.rate_per_s, strange.count, strange.limit), (f64::INFINITY, 3, u64::MAX));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(name in "[A-Z][a-z ]{0,15}[a-z]", rate in 0.0_f64..1e6, count: u64, limit: u64) {
            let text = format!("{name:18}: {rate:.3} msgs/s   1.000 mb/s  {count}/{limit} msgs  duration: 1s");
            let read = line(&text).unwrap();
            prop_assert_eq!((read.name, read.count, read.limit), (name.as_str(), count, limit));
            prop_assert!((read.rate_per_s - rate).abs() < 0.001);
        }

        #[test]
        fn any_text_is_read_or_not(text in "(=== Statistics\n)?[-a-z:/. 0-9\n]{0,80}") {
            let _ = (of_original(&text).is_ok(), progress(&text));
        }
    }
}
