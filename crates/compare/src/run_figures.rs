//! Prepares stored runs for a comparison: checks whether they have the same load and host, decides which of them count,
//! and extracts the figures to compare.
use crate::metric::{ComparedMetric, Gain};
use mailrun_measurement::judge;
use mailrun_measurement::record::{Ending, KeepAwake, Outcome, Record};
use mailrun_measurement::stage::Stage;
use mailrun_report::final_stage;
use mailrun_text::words::{counted, grouped};
use std::collections::BTreeSet;

/// Path and record of a stored run.
pub type NamedRun = (String, Record);

/// Name and value of a fact that must be the same in all runs of a comparison, such as the message size.
pub(super) type RunTrait = (&'static str, String);

#[derive(Clone, Debug)]
pub struct RunFigure {
    pub metric: ComparedMetric,
    pub value: f64,
}

/// Returns the first difference between the loads or hosts of two runs: the name of the fact, and both values.
pub fn difference(left: &Record, right: &Record) -> Option<(&'static str, String, String)> {
    let pairs = traits(left).into_iter().zip(traits(right));
    pairs.into_iter().find(|(left, right)| left.1 != right.1).map(|(left, right)| (left.0, left.1, right.1))
}

/// Returns the facts about a run's load and host. They must be the same in two runs, because otherwise their figures
/// cannot be compared.
pub(super) fn traits(record: &Record) -> Vec<RunTrait> {
    let load = &record.workload;
    let host = &record.host;
    let number = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), |value| value.to_string());
    vec![
        ("protocol", if record.mades.is_some() { "MADES".to_owned() } else { load.protocol.clone() }),
        ("message size", counted(load.message_bytes, "byte")),
        ("number of sessions", load.sessions.to_string()),
        ("number of recipients", load.recipients.to_string()),
        ("messages per connection", load.reuse.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string())),
        ("pipelining", format!("{:?}", load.pipelining).to_lowercase()),
        ("TLS", load.tls.clone()),
        ("arrival", format!("{:?}", load.arrival).to_lowercase()),
        ("rate", number(load.rate_per_s)),
        ("processor", host.cpu_model.clone()),
        ("number of cores", host.cores.to_string()),
        ("--keep-awake", if host.keep_awake == Some(KeepAwake::On) { "on" } else { "off" }.to_owned()),
    ]
}

/// Returns the facts that a report shows about one side: when its runs were measured, with which versions of mailrun,
/// on which host and with which load. All of `records` must have the same load and host.
pub fn side_facts(records: &[&Record]) -> Vec<(&'static str, String)> {
    let Some(first) = records.first() else { return Vec::new() };
    let mut times: Vec<&str> = records.iter().map(|record| record.started_at.as_str()).collect();
    times.sort_unstable();
    let mut versions: Vec<&str> = records.iter().map(|record| record.version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    let measured = match times.as_slice() {
        [first, .., last] => format!("{first} to {last}"),
        _ => times.concat(),
    };
    let host = &first.host;
    let cores = counted(u64::from(host.cores), "core");
    let facts = format!("{}, {cores}, {}, {}", host.cpu_model, host.os, host.kernel);
    let awake = host.keep_awake.map(KeepAwake::words);
    let load: Vec<String> = traits(first)
        .into_iter()
        .filter(|(name, value)| !["processor", "number of cores", "--keep-awake"].contains(name) && value != "none")
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    vec![
        ("measured", measured),
        ("mailrun", versions.join(", ")),
        ("host", [facts.as_str()].into_iter().chain(awake).collect::<Vec<_>>().join(", ")),
        ("load", load.join(", ")),
    ]
}

/// Returns the reason why a run is unusable for a comparison, such as an interruption, or `None` if it is usable.
pub fn defect(record: &Record) -> Option<String> {
    if let Some(fault) = wrong_mail(record) {
        return Some(fault);
    }
    if record.ending.is_some_and(|ending| ending != Ending::Complete) {
        return Some("it was interrupted".to_owned());
    }
    let behind = judge::behind_schedule(record);
    behind.or_else(|| (!record.verdict.valid).then(|| format!("INVALID: {}", record.verdict.why)))
}

/// Describes the mail that a run lost, duplicated or corrupted. Returns `None` if there was no such mail.
pub(super) fn wrong_mail(record: &Record) -> Option<String> {
    let ledger = &record.ledger;
    let counts = [
        ("lost", ledger.lost),
        ("not delivered", ledger.not_delivered),
        ("duplicated", ledger.duplicates),
        ("corrupt", ledger.corrupt),
    ];
    let (what, count) = counts.into_iter().find_map(|(what, count)| Some((what, count.filter(|count| *count > 0)?)))?;
    Some(format!("{count} {what}"))
}

fn failure_counts(record: &Record) -> impl Iterator<Item = (&'static str, u64)> {
    let ledger = &record.ledger;
    let counts = [
        ("rejected", ledger.rejected),
        ("failed", ledger.failed),
        ("in doubt", ledger.in_doubt),
        ("bounced", ledger.bounced),
        ("given up", ledger.expired),
    ];
    counts.into_iter().map(|(kind, count)| (kind, count.unwrap_or_default()))
}

/// Suffix of the names of metrics that are shares of failed mail, for example `rejected, % of mail`.
pub(super) const SHARE_UNIT: &str = ", % of mail";

/// Returns, for each of `kinds` such as `rejected`, the share of a run's mail that failed in this way. Half a message
/// is added to each count, because a share of 0 would have no ratio to others.
pub(super) fn failure_shares(record: &Record, kinds: &BTreeSet<&'static str>) -> Vec<RunFigure> {
    let created = record.ledger.created.unwrap_or_default() as f64;
    let wanted = failure_counts(record).filter(|(kind, _)| kinds.contains(kind));
    let figure = |(kind, count): (&str, u64)| RunFigure {
        metric: ComparedMetric { name: format!("{kind}{SHARE_UNIT}"), gain: Gain::Lower },
        value: 100.0 * (count as f64 + 0.5) / (created + 1.0),
    };
    wanted.map(figure).collect()
}

/// Returns the kinds of failures in a run, each with a text for the user, such as `12 rejected`. If no mail failed, but
/// the verdict is FAIL, the only kind is `FAIL`.
pub(super) fn failures(record: &Record) -> Vec<(&'static str, String)> {
    let counts = failure_counts(record).filter(|(_, count)| *count > 0);
    let mut failures: Vec<_> = counts.map(|(kind, count)| (kind, format!("{} {kind}", grouped(count)))).collect();
    if failures.is_empty() && record.verdict.outcome == Some(Outcome::Fail) {
        failures.push(("FAIL", format!("FAIL {}", record.verdict.why)));
    }
    failures
}

/// Returns the figures of a run that are compared. These are the rate and the latency percentiles of the last stage
/// that messages reached, the 99th percentile of the time until messages were accepted, and the processor time of each
/// party per message.
pub fn figures(record: &Record) -> Vec<RunFigure> {
    let mut figures = Vec::new();
    let mut add = |name: String, gain: Gain, value: f64| {
        figures.push(RunFigure { metric: ComparedMetric { name, gain }, value });
    };
    let Some(last) = final_stage(record) else { return figures };
    let name = last.name.name();
    if let Some(per_s) = last.rate_per_s {
        add(format!("{name}, msg/s"), Gain::Higher, per_s);
    }
    if let Some(times) = last.latency_ms {
        for (quantile, ms) in [("p50", times.p50), ("p90", times.p90), ("p99", times.p99)] {
            add(format!("{name} {quantile}, ms"), Gain::Lower, ms);
        }
    }
    let accepted = record.stage(Stage::Accepted).filter(|row| row.count > 0 && row.name != last.name);
    if let Some(times) = accepted.and_then(|row| row.latency_ms) {
        add("accepted p99, ms".to_owned(), Gain::Lower, times.p99);
    }
    for party in &record.parties {
        if let Some(work_s) = party.work_s() {
            add(format!("{} CPU, µs/msg", party.name), Gain::Lower, work_s * 1e6 / last.count as f64);
        }
    }
    figures
}
