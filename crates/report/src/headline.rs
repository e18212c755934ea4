//! The facts that a reader must see first: the outcome of the run, the number of messages that were delivered, and the
//! rate.
use super::figures::{final_stage, stage_latency};
use mailrun_measurement::judge;
use mailrun_measurement::record::{Cause, LedgerRow, Outcome, Record, StageRow};
use mailrun_text::numbers::{counted, known, memory, octets, rate, seconds};
use mailrun_text::table::plain;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Headline {
    Judged(Outcome),
    /// The record comes from a sink alone, which knows how many messages it received but not how many were sent. The
    /// run is therefore not judged.
    Received,
    /// The record covers the part of a load that one of several machines sent. Only all parts together are judged.
    Sent,
}

impl Headline {
    pub(crate) fn of(record: &Record) -> Self {
        let unjudged = if record.shard.is_some() { Self::Sent } else { Self::Received };
        record.verdict.outcome.map_or(unjudged, Self::Judged)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Judged(outcome) => outcome.name(),
            Self::Received => "RECEIVED",
            Self::Sent => "SENT",
        }
    }
}

pub(crate) fn reasons(record: &Record) -> impl Iterator<Item = &String> {
    record.verdict.reasons.iter().filter(|reason| **reason != record.verdict.why)
}

/// Returns the counts of messages, for example `199,800 of 200,000 messages delivered · 200 lost`.
pub(crate) fn counts(record: &Record) -> String {
    let ledger = &record.ledger;
    let several = record.workload.recipients > 1;
    let noun = if several { "copies" } else { "messages" };
    let mut parts = vec![match Headline::of(record) {
        Headline::Received => received(record),
        _ if ledger.delivered.is_none() => {
            format!("{} of {} {noun} accepted", known(ledger.accepted), known(ledger.created))
        }
        _ => format!("{} of {} {noun} delivered", known(ledger.delivered), known(ledger.created)),
    }];
    parts.extend(failure_counts(ledger));
    if several {
        let each = record.workload.recipients_varied.as_ref().map(|varied| plain(&varied.expression));
        parts.push(format!("{} recipients each", each.unwrap_or_else(|| record.workload.recipients.to_string())));
    }
    parts.join(" · ")
}

fn received(record: &Record) -> String {
    let delivered = final_stage(record).map_or(0, |row| row.count);
    format!("{} received", counted(delivered, "message"))
}

fn failure_counts(ledger: &LedgerRow) -> Vec<String> {
    let kinds = [
        (ledger.lost, "lost"),
        (ledger.not_delivered, "not delivered"),
        (ledger.duplicates, "duplicate"),
        (ledger.corrupt, "corrupt"),
        (ledger.rejected, "rejected"),
        (ledger.failed, "failed"),
        (ledger.in_doubt, "in doubt"),
        (ledger.bounced, "bounced"),
        (ledger.expired, "expired"),
        (ledger.queued, "queued"),
        (ledger.in_flight.filter(|_| ledger.delivered.is_some()), "in flight"),
        (ledger.foreign, "foreign"),
        (ledger.converted, "converted to 7 bits"),
    ];
    let some = kinds.into_iter().filter_map(|(number, name)| Some((number.filter(|n| *n > 0)?, name)));
    some.map(|(number, name)| format!("{} {name}", mailrun_text::numbers::count(number))).collect()
}

/// Returns the main figures of the last observed stage: its rate, bytes per second, median latency, 99th percentile of
/// latency, and duration. If deliveries were observed but no message arrived, returns only the duration.
pub(crate) fn figures(record: &Record) -> String {
    let Some(last) = arrived_stage(record) else { return seconds(record.duration_s) };
    let mut parts: Vec<String> = last.rate_per_s.map(|per_s| format!("{} msg/s", rate(per_s))).into_iter().collect();
    parts.extend(match record.mades {
        Some(_) => Some(format!("{} each", octets(record.workload.message_bytes))),
        None => last.bytes_per_s().map(|bytes| format!("{}/s", memory(bytes as u64))),
    });
    if let (Some(times), Some(since)) = (last.latency_ms, last.since) {
        parts.push(format!("p50 {}", stage_latency(last, times.p50)));
        parts.push(format!("p99 {} ({} to {})", stage_latency(last, times.p99), since.name(), last.name.name()));
    }
    parts.push(seconds(record.offered_s.unwrap_or(last.duration_s)));
    parts.join(" · ")
}

/// Returns the last stage that messages reached, or `None` if deliveries were observed but no message arrived.
fn arrived_stage(record: &Record) -> Option<&StageRow> {
    final_stage(record).filter(|_| record.ledger.delivered != Some(0))
}

/// Returns the rate and the 99th percentile of latency, for example `5,343 msg/s, p99 44.20 ms`. Returns `None` if
/// neither is known.
pub(crate) fn rate_and_p99(record: &Record) -> Option<String> {
    let last = arrived_stage(record)?;
    let per_s = last.rate_per_s.map(|per_s| format!("{} msg/s", rate(per_s)));
    let p99 = last.latency_ms.map(|times| format!("p99 {}", stage_latency(last, times.p99)));
    let parts: Vec<String> = per_s.into_iter().chain(p99).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Returns the first reason for the outcome that is not a missed threshold, or `None` if missed thresholds are the only
/// reasons. A report that lists the thresholds uses this, so that it does not show the same problem twice.
pub(crate) fn reason_beside_thresholds(record: &Record) -> Option<&str> {
    let verdict = &record.verdict;
    let thresholds = judge::threshold_reasons(record);
    let causes_outcome = |(_, cause): &(&String, &Cause)| cause.outcome() == verdict.outcome;
    let others = verdict.reasons.iter().zip(&verdict.causes).filter(causes_outcome).map(|(text, _)| text);
    let mut all = std::iter::once(&verdict.why).chain(others).map(String::as_str);
    all.find(|text| !thresholds.iter().any(|reason| reason.text == *text))
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn outcome_of(record: &Record) -> &'static str {
        Headline::of(record).name()
    }

    #[test]
    fn a_closed_ledger_passes() {
        let record = sample::held();
        assert_eq!((outcome_of(&record), record.verdict.why.as_str()), ("PASS", "200,000 delivered, none lost"));
        assert_eq!(counts(&record), "200,000 of 200,000 messages delivered");
        let text = figures(&record);
        assert_eq!(text, "54,321 msg/s · 20.7 MiB/s · p50 1.42 ms · p99 3.10 ms (created to delivered) · 3.68 s");
    }

    #[test]
    fn the_rate_is_that_of_what_was_offered() {
        let mut record = sample::held();
        record.offered_s = Some(10.0);
        record.stages.iter_mut().for_each(|row| row.rate_per_s = Some(20_000.0));
        let text = figures(&record);
        assert!(text.starts_with("20,000 msg/s · 7.6 MiB/s") && text.ends_with("· 10.00 s"), "{text}");
    }

    #[test]
    fn what_was_lost_is_named() {
        let record = sample::lossy();
        assert_eq!(outcome_of(&record), "FAIL");
        assert!(counts(&record).contains("199,800 of 200,000 messages delivered · 200 lost"));
    }

    #[test]
    fn nobody_at_the_far_end_is_judged_by_what_was_accepted_and_says_so() {
        let record = sample::unwatched();
        assert_eq!(
            (outcome_of(&record), record.verdict.why.as_str()),
            ("PASS", "200,000 accepted (delivery not watched)")
        );
        assert_eq!(counts(&record), "200,000 of 200,000 messages accepted");
        assert!(figures(&record).contains("created to accepted"), "{}", figures(&record));
    }

    #[test]
    fn the_headline_repeats_no_reason() {
        let mut record = sample::lossy();
        record.verdict.reasons.push("More.".to_owned());
        assert_eq!(reasons(&record).collect::<Vec<_>>(), ["More."]);
        assert!(record.verdict.why.starts_with("Lost: 200 of 200,000 messages were accepted"));
    }

    #[test]
    fn a_sink_alone_says_what_it_received() {
        let record = sample::sink_alone();
        assert_eq!((outcome_of(&record), record.verdict.why.as_str()), ("RECEIVED", ""));
        assert!(counts(&record).starts_with("200,000 messages received"));
    }

    #[test]
    fn copies_are_told_from_messages() {
        let mut record = sample::held();
        record.workload.recipients = 2;
        record.ledger.created = Some(400_000);
        record.ledger.delivered = Some(400_000);
        let text = counts(&record);
        assert!(text.starts_with("400,000 of 400,000 copies delivered"), "{text}");
        assert!(text.ends_with("2 recipients each"), "{text}");
    }
}
