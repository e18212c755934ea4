//! Runs of a comparison: whether their loads and hosts are the same, which of them count, and their figures.
use crate::metric::{ComparedMetric, Gain};
use journey::record::{Ending, LatencyMs, Record};
use journey::stage::Stage;

/// A figure of a run.
#[derive(Clone, Debug)]
pub(super) struct RunFigure {
    pub(super) metric: ComparedMetric,
    pub(super) value: f64,
}

/// The first difference between the loads or the hosts of two runs: its name, and both values.
pub(super) fn difference(left: &Record, right: &Record) -> Option<(&'static str, String, String)> {
    let pairs = traits(left).into_iter().zip(traits(right));
    pairs.into_iter().find(|(left, right)| left.1 != right.1).map(|(left, right)| (left.0, left.1, right.1))
}

/// Facts that must be the same for figures to be comparable.
fn traits(record: &Record) -> Vec<(&'static str, String)> {
    let load = &record.workload;
    let host = &record.host;
    let number = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), |value| value.to_string());
    vec![
        ("protocol", if record.mades.is_some() { "MADES".to_owned() } else { load.protocol.clone() }),
        ("message size", format!("{} bytes", load.message_bytes)),
        ("number of sessions", load.sessions.to_string()),
        ("number of recipients", load.recipients.to_string()),
        ("messages per connection", load.reuse.map_or_else(|| "no limit".to_owned(), |most| most.to_string())),
        ("pipelining", format!("{:?}", load.pipelining).to_lowercase()),
        ("TLS", load.tls.clone()),
        ("arrival", format!("{:?}", load.arrival).to_lowercase()),
        ("rate", number(load.rate_per_s)),
        ("processor", host.cpu_model.clone()),
        ("number of cores", host.cores.to_string()),
    ]
}

/// The reason why a run does not count; `None` if it does.
pub(super) fn defect(record: &Record) -> Option<String> {
    if let Some(wrong) = wrong_mail(record) {
        return Some(wrong);
    }
    if record.ending.is_some_and(|ending| ending != Ending::Complete) {
        return Some("it was interrupted".to_owned());
    }
    (!record.verdict.valid).then(|| format!("INVALID: {}", record.verdict.why))
}

/// Mail that a run lost, duplicated or corrupted, in words.
pub(super) fn wrong_mail(record: &Record) -> Option<String> {
    let ledger = &record.ledger;
    let wrong = [("lost", ledger.lost), ("duplicated", ledger.duplicates), ("corrupt", ledger.corrupt)];
    let (what, count) = wrong.into_iter().find_map(|(what, count)| Some((what, count.filter(|count| *count > 0)?)))?;
    Some(format!("{count} {what}"))
}

/// The figures of a run: rate and percentiles of the last stage that messages reached, the 99th percentile until 250, and
/// the processor time of each party.
pub(super) fn figures(record: &Record) -> Vec<RunFigure> {
    let mut figures = Vec::new();
    let mut add = |name: String, gain: Gain, value: f64| {
        figures.push(RunFigure { metric: ComparedMetric { name, gain }, value });
    };
    let Some((name, per_s, times, count)) = last_stage(record) else { return figures };
    add(format!("{name}, msg/s"), Gain::Higher, per_s);
    if let Some(times) = times {
        for (quantile, ms) in [("p50", times.p50), ("p90", times.p90), ("p99", times.p99)] {
            add(format!("{name} {quantile}, ms"), Gain::Lower, ms);
        }
    }
    let accepted = record.stages.iter().find(|row| row.name == Stage::Accepted && row.count > 0);
    if let Some(times) = accepted.filter(|row| row.name.name() != name).and_then(|row| row.latency_ms) {
        add("accepted p99, ms".to_owned(), Gain::Lower, times.p99);
    }
    for party in &record.parties {
        if let (Some(user_s), Some(sys_s)) = (party.user_s, party.sys_s) {
            add(format!("{} CPU, µs/msg", party.name), Gain::Lower, (user_s + sys_s) * 1e6 / count as f64);
        }
    }
    figures
}

/// Name, rate, latency and count of the last stage that messages reached.
fn last_stage(record: &Record) -> Option<(String, f64, Option<LatencyMs>, u64)> {
    if let Some(mades) = &record.mades {
        let row = mades.stages.iter().rev().find(|row| row.count > 0)?;
        return Some((row.name.clone(), row.offered_rate_per_s.unwrap_or(row.rate_per_s), row.latency_ms, row.count));
    }
    let reached = |name: Stage| record.stages.iter().find(|row| row.name == name && row.count > 0);
    let row = [Stage::Delivered, Stage::Accepted, Stage::Sent].into_iter().find_map(reached)?;
    Some((row.name.name().to_owned(), row.offered_rate_per_s.unwrap_or(row.rate_per_s), row.latency_ms, row.count))
}
