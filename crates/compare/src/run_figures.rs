//! Prepares stored runs for a comparison: checks whether they have the same load and host, decides which of them count,
//! and extracts the figures to compare.
use crate::metric::{ComparedMetric, Gain};
use mailrun_measurement::judge;
use mailrun_measurement::mades::Mades;
use mailrun_measurement::record::{
    Cause, CorpusRow, Ending, KeepAwake, OfferedStage, Outcome, Record, Varied, Verdict, Workload,
};
use mailrun_measurement::stage::Stage;
use mailrun_report::final_stage;
use mailrun_text::words::{counted, grouped};
use std::collections::BTreeSet;

/// Path and record of a stored run.
pub type NamedRun = (String, Record);

/// Name and value of a fact that must be the same in all runs of a comparison, such as the message size.
pub(super) type RunTrait = (&'static str, String);

/// Text that stands for a missing property of a load: a closed loop, for example, has no rate.
const NONE: &str = "none";

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

/// Returns facts about a run's load and host, such as message size and processor. Runs are compared only if all these
/// facts are the same, because other loads or hosts give other figures.
pub(super) fn traits(record: &Record) -> Vec<RunTrait> {
    // Name every field instead of using `..`, so that this code does not compile if somebody adds a field. Whoever adds
    // a field must decide whether it has to be the same in all runs. The fields that are ignored here do not change the
    // work that a message causes.
    let Workload {
        messages: _,
        duration_limit_s: _,
        target: _,
        seed: _,
        from: _,
        rcpt: _,
        recipients,
        sessions,
        message_bytes,
        reuse,
        pipelining,
        chunking,
        tls,
        arrival,
        rate_per_s,
        protocol,
        sizes_varied,
        recipients_varied,
        reuse_varied,
        think_ms,
        corpus,
        mime_messages,
        stages,
        dsn,
    } = &record.workload;
    let host = &record.host;
    let or_none = |value: Option<String>| value.unwrap_or_else(|| NONE.to_owned());
    let varied = |number: &Option<Varied>| number.as_ref().map(|number| number.expression.clone());
    let size = counted(*message_bytes, "byte");
    let reuse = reuse.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
    let rate = rate_per_s.map(|rate| rate.to_string());
    let held = |row: &CorpusRow| format!("{} of {}", counted(row.messages, "message"), counted(row.bytes, "byte"));
    let mut traits = vec![
        ("protocol", if record.mades.is_some() { "MADES".to_owned() } else { protocol.clone() }),
        ("message size", varied(sizes_varied).map_or(size.clone(), |sizes| format!("{sizes} (mean: {size})"))),
        ("number of sessions", sessions.to_string()),
        ("number of recipients", varied(recipients_varied).unwrap_or_else(|| recipients.to_string())),
        ("messages per connection", varied(reuse_varied).unwrap_or(reuse)),
        ("pipelining", format!("{pipelining:?}").to_lowercase()),
        ("chunking", if *chunking { "BDAT" } else { NONE }.to_owned()),
        ("TLS", tls.clone()),
        ("DSN", or_none(dsn.clone())),
        ("arrival", format!("{arrival:?}").to_lowercase()),
        ("rate", if stages.is_empty() { or_none(rate) } else { staged_rate(stages) }),
        ("pause after each message", or_none(varied(think_ms))),
        ("warm-up", or_none(record.warm_up.map(|warm_up| format!("{} s", warm_up.length_s)))),
        ("corpus", or_none(corpus.as_ref().map(held))),
        ("number of MIME messages", or_none(mime_messages.map(|number| number.to_string()))),
        ("processor", host.cpu_model.clone()),
        ("number of cores", host.cores.to_string()),
        ("--keep-awake", if host.keep_awake == Some(KeepAwake::On) { "on" } else { "off" }.to_owned()),
    ];
    traits.extend(record.mades.iter().flat_map(mades_traits));
    traits
}

/// Describes a rate that changes, for example `100/s to 1000/s in 60 s, 1000/s to 1000/s in 10 s`.
fn staged_rate(stages: &[OfferedStage]) -> String {
    let text = |stage: &OfferedStage| {
        let OfferedStage { name: _, length_s, from_per_s, to_per_s } = stage;
        format!("{from_per_s}/s to {to_per_s}/s in {length_s} s")
    };
    stages.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Returns the facts about a load that only a run over MADES has, such as the type of its messages. The maximum number
/// of messages in transit is missing here, because `traits` reports it as the number of sessions.
fn mades_traits(mades: &Mades) -> Vec<RunTrait> {
    let market = mades.market.as_ref().map(|market| {
        let shapes: Vec<&str> = market.shapes.iter().map(|shape| shape.name.as_str()).collect();
        format!("{} ({} times as fast)", shapes.join(", "), market.acceleration)
    });
    let sender = mades.acknowledgements.as_ref().map(|documents| format!("{:?}", documents.sender).to_lowercase());
    vec![
        ("mode", mades.mode.clone()),
        ("message type", mades.message_type.clone()),
        ("payload", mades.payload.clone()),
        ("durability", if mades.durable { "durable" } else { "not durable" }.to_owned()),
        ("window", mades.window.to_string()),
        ("market", market.unwrap_or_else(|| NONE.to_owned())),
        ("sender of acknowledgements", sender.unwrap_or_else(|| NONE.to_owned())),
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
        .filter(|(name, value)| !["processor", "number of cores", "--keep-awake"].contains(name) && value != NONE)
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
    if let Some(reason) = record.ending.and_then(early_end) {
        return Some(reason.to_owned());
    }
    let behind = judge::behind_schedule(record);
    behind.or_else(|| (!record.verdict.valid).then(|| format!("INVALID: {}", record.verdict.why)))
}

/// Says why a load ended before its planned end. Returns `None` if the load was complete.
fn early_end(ending: Ending) -> Option<&'static str> {
    match ending {
        Ending::Complete => None,
        Ending::Interrupted => Some("it was interrupted"),
        Ending::GaveUp => Some("the source gave up on the server, which was gone or did not answer"),
        Ending::Aborted => Some("a threshold of --abort-on was missed"),
        Ending::ServerEnded => Some("a server that the bench had started ended unexpectedly"),
        Ending::SinkEnded => Some("the sink ended, or no longer answered"),
    }
}

/// How much of a run's mail failed in one way, for example because the server rejected it. If the verdict blames the
/// server for these failures, `cause` is among the verdict's causes.
struct FaultCount {
    cause: Cause,
    word: &'static str,
    count: u64,
}

/// Returns `counts`, but with 0 for faults that are not the server's. In an INVALID run, the source, the sink or the
/// host may have caused a fault, for example because the source ran out of ports. In such a run, a fault counts only if
/// the verdict blames the server for it.
fn faults_of_server(
    record: &Record,
    counts: impl IntoIterator<Item = (Cause, &'static str, Option<u64>)>,
) -> impl Iterator<Item = FaultCount> {
    let verdict = &record.verdict;
    let is_blamed = move |cause: Cause| verdict.valid || causes_of_fail(verdict).any(|(known, _)| known == cause);
    let fault = move |(cause, word, count): (Cause, &'static str, Option<u64>)| {
        let count = if is_blamed(cause) { count.unwrap_or_default() } else { 0 };
        FaultCount { cause, word, count }
    };
    counts.into_iter().map(fault)
}

/// Returns the causes for which a run counts as FAIL, each with its reason, the most important first. Stops at the
/// first cause that makes the run INVALID, because such a cause excuses all that follow: for example, a busy host
/// excuses a missed threshold.
fn causes_of_fail(verdict: &Verdict) -> impl Iterator<Item = (Cause, &String)> {
    let causes = verdict.causes.iter().copied().zip(&verdict.reasons);
    causes.take_while(|(cause, _)| cause.outcome() == Some(Outcome::Fail))
}

/// Describes the mail that a server lost, duplicated or corrupted. Returns `None` if there was no such mail.
pub(super) fn wrong_mail(record: &Record) -> Option<String> {
    let ledger = &record.ledger;
    let counts = [
        (Cause::Lost, "lost", ledger.lost),
        (Cause::NotDelivered, "not delivered", ledger.not_delivered),
        (Cause::Duplicates, "duplicated", ledger.duplicates),
        (Cause::Corrupt, "corrupt", ledger.corrupt),
    ];
    let wrong = faults_of_server(record, counts).find(|fault| fault.count > 0)?;
    Some(format!("{} {}", wrong.count, wrong.word))
}

fn failure_counts(record: &Record) -> impl Iterator<Item = FaultCount> {
    let ledger = &record.ledger;
    let counts = [
        (Cause::Rejected, "rejected", ledger.rejected),
        (Cause::Failed, "failed", ledger.failed),
        (Cause::InDoubt, "in doubt", ledger.in_doubt),
        (Cause::Bounced, "bounced", ledger.bounced),
        (Cause::Expired, "given up", ledger.expired),
    ];
    faults_of_server(record, counts)
}

/// Suffix of the names of metrics that are shares of failed mail, for example `rejected, % of mail`.
pub(super) const SHARE_UNIT: &str = ", % of mail";

/// Returns the percentage of a run's mail that failed in each of the ways in `kinds`, such as `Cause::Rejected`. Half a
/// message is added to each count, because a share of 0 would have no ratio to others.
pub(super) fn failure_shares(record: &Record, kinds: &BTreeSet<Cause>) -> Vec<RunFigure> {
    let created = record.ledger.created.unwrap_or_default() as f64;
    let wanted = failure_counts(record).filter(|failure| kinds.contains(&failure.cause));
    let figure = |FaultCount { word, count, .. }: FaultCount| RunFigure {
        metric: ComparedMetric { name: format!("{word}{SHARE_UNIT}"), gain: Gain::Lower },
        value: 100.0 * (count as f64 + 0.5) / (created + 1.0),
    };
    wanted.map(figure).collect()
}

/// Returns the ways in which a run failed, each with a text for the user. Failed mail is included even if a threshold
/// tolerates it, with a text such as `12 rejected`. For any other cause of a FAIL, the text has the verdict's reason,
/// such as `FAIL Threshold missed: accepted.p99 < 50ms; it was 61.2 ms`.
pub(super) fn failures(record: &Record) -> Vec<(Cause, String)> {
    let counts = failure_counts(record).filter(|failure| failure.count > 0);
    let mut failures: Vec<(Cause, String)> =
        counts.map(|failure| (failure.cause, format!("{} {}", grouped(failure.count), failure.word))).collect();
    for (cause, reason) in causes_of_fail(&record.verdict) {
        if !failures.iter().any(|(known, _)| *known == cause) {
            failures.push((cause, format!("FAIL {}", reason.trim_end_matches('.'))));
        }
    }
    failures
}

/// Returns the figures of a run that are compared. For the last stage that messages reached, these are the rate and the
/// latency percentiles. Further figures are the 99th percentile of the time until messages were accepted, and the
/// processor time per message of each process, such as the source or the relay.
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
            let messages = record.with_warm_up(last.count);
            add(format!("{} CPU, µs/msg", party.name), Gain::Lower, work_s * 1e6 / messages as f64);
        }
    }
    figures
}
