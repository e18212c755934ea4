//! Figures of one run through a relay: times, rates, costs and faults.
use crate::engine::{BenchFigures, RunFlaws, excused_units, unexcused_faults};
use anyhow::{Context, Result};
use mailrun_measurement::Stage;
use mailrun_measurement::record::{Cause, LatencyMs, Record};
use mailrun_measurement::threshold::Fate;
use mailrun_report::relay::{self, RelayFigures};
use mailrun_text::numbers::count;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct RelayMeasurement {
    pub(super) figures: RelayFigures,
    /// Milliseconds of CPU time of all processes of the relay per 1,000 messages. `None` if the
    /// relay's processes could not be observed.
    pub(super) cpu_ms_per_1000: Option<f64>,
    /// Bytes per message that the kernel charged to the relay's processes for their writes. The kernel charges whole
    /// pages or folios.
    pub(super) written_per_message: Option<f64>,
    /// Bytes per message that were written to the disk, including the writes of all other processes on the host.
    pub(super) disk_per_message: Option<f64>,
    pub(super) max_rss_bytes: Option<u64>,
    pub(super) accepted: Option<LatencyMs>,
    /// Latency until the mailbox server told the sink about the message, for example during IMAP IDLE. `None` if the
    /// sink watched no mailboxes.
    pub(super) announced: Option<LatencyMs>,
    /// Latency until the message was delivered. A message in a mailbox is delivered when the sink can read it.
    pub(super) delivered: Option<LatencyMs>,
    pub(super) flaws: RunFlaws,
}

impl BenchFigures for RelayMeasurement {
    fn flaws(&self) -> &RunFlaws {
        &self.flaws
    }
}

impl RelayMeasurement {
    /// Takes the figures from the record of a run. Returns an error if the record has no figures of
    /// acceptance or delivery.
    pub(super) fn of(record: &Record, disk_bytes: Option<u64>, messages: u64) -> Result<Self> {
        let figures = RelayFigures::of(record).context("the record has no figures of delivery")?;
        let relay = relay::party(record);
        let written_bytes = relay.and_then(|party| party.write_bytes).filter(|_| figures.accepted > 0);
        let latency = |stage| record.stage(stage).and_then(|row| row.latency_ms);
        let all_accepted = record.with_warm_up(figures.accepted);
        let each = |bytes: u64| bytes as f64 / all_accepted as f64;
        let is_rate = |(_, cause): &(&String, &Cause)| **cause == Cause::RateMissed;
        let rate = record.verdict.reasons.iter().zip(&record.verdict.causes).find(is_rate);
        let mut flaws = RunFlaws::of(record, fault(record, messages));
        flaws.missed.extend(rate.map(|(text, _)| text.clone()));
        Ok(Self {
            cpu_ms_per_1000: relay.and_then(|party| relay::cpu_ms_per_1000(party, all_accepted)),
            written_per_message: written_bytes.map(each),
            disk_per_message: disk_bytes.filter(|_| figures.accepted > 0).map(each),
            accepted: latency(Stage::Accepted),
            announced: latency(Stage::Announced),
            delivered: latency(Stage::Delivered),
            max_rss_bytes: relay.and_then(|party| party.max_rss_bytes),
            flaws,
            figures,
        })
    }
}

/// Describes what went wrong in a run. Returns `None` if every message was delivered exactly once. Failures for which a
/// threshold is set do not count, because the threshold judges them.
fn fault(record: &Record, messages: u64) -> Option<String> {
    let ledger = &record.ledger;
    let number = |field: Option<u64>| field.unwrap_or_default();
    let accepted = number(ledger.accepted);
    let delivered = number(ledger.delivered);
    let excused = excused_units(record, &[Stage::Accepted, Stage::Delivered]);
    // Count deliveries and not replies, because a message in doubt may have been delivered without a 250.
    if unexcused_faults(record).next().is_none() && delivered + excused == messages {
        return None;
    }
    let mut parts = vec![format!(
        "of {} messages {} were accepted and {} delivered",
        count(messages),
        count(accepted),
        count(delivered)
    )];
    let faults = Fate::ALL.into_iter().filter(|fate| fate.is_fault());
    let named = faults.map(|fate| (fate.count(ledger), fate.name().replace('_', " ")));
    let others = [(ledger.in_flight, "in flight".to_owned()), (ledger.overflow, "not recorded".to_owned())];
    let named = named.chain(others).map(|(field, name)| (number(field), name)).filter(|(number, _)| *number > 0);
    parts.extend(named.map(|(number, name)| format!("{name} {}", count(number))));
    parts.extend(record.errors.first().map(|error| format!("first error: {} {}", error.code, error.text)));
    Some(parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests;
    use mailrun_report::sample;

    #[test]
    fn a_run_that_held_has_figures_and_no_fault() {
        let measure = RelayMeasurement::of(&sample::relayed(), Some(200_000 * 512), 200_000).unwrap();
        assert_eq!((measure.cpu_ms_per_1000, measure.written_per_message), (Some(25.0), Some(1024.0)));
        assert_eq!(measure.disk_per_message, Some(512.0));
        assert_eq!((measure.flaws.fault, measure.figures.drain_s()), (None, 1.5));
    }

    #[test]
    fn what_is_missing_is_said() {
        let fault = RelayMeasurement::of(&sample::lossy(), None, 200_000).unwrap().flaws.fault.unwrap();
        assert_eq!(fault, "of 200,000 messages 200,000 were accepted and 199,800 delivered, lost 200");
        // The sink received all accepted messages, but the source sent one more, which was not accepted.
        let fault = RelayMeasurement::of(&sample::held(), None, 200_001).unwrap().flaws.fault.unwrap();
        assert!(fault.starts_with("of 200,001 messages 200,000 were accepted"), "{fault}");
    }

    #[test]
    fn what_a_threshold_allows_is_no_fault() {
        for fate in Fate::ALL.into_iter().filter(|fate| fate.is_fault()) {
            let mut record = sample::relayed();
            let missing = if fate.missed_stage().is_some() { 10 } else { 0 };
            record.ledger.delivered = Some(200_000 - missing);
            if fate.missed_stage() == Some(Stage::Accepted) {
                record.ledger.accepted = Some(200_000 - missing);
            }
            tests::set_fate(&mut record, fate, 10);
            let name = fate.name();
            let fault = |record: &Record| RelayMeasurement::of(record, None, 200_000).unwrap().flaws.fault;
            let text = fault(&record).unwrap_or_default();
            assert!(text.contains(&format!("{} 10", name.replace('_', " "))), "{text}");
            tests::set_threshold(&mut record, &format!("{name} <= 1%"));
            assert_eq!(fault(&record), None, "{name}");
            // The threshold excuses only messages that the ledger counts under this fate. A message that is missing
            // from all counts must still be a fault.
            record.ledger.delivered = record.ledger.delivered.map(|delivered| delivered - 1);
            assert!(fault(&record).is_some(), "{name}");
        }
        // Ten messages got no reply, but four of them were delivered. The other six are in doubt. The threshold allows
        // them, so the run has no fault.
        let mut record = sample::relayed();
        tests::set_threshold(&mut record, "in_doubt <= 1%");
        (record.ledger.accepted, record.ledger.delivered) = (Some(199_990), Some(199_994));
        record.ledger.in_doubt = Some(6);
        assert_eq!(RelayMeasurement::of(&record, None, 200_000).unwrap().flaws.fault, None);
    }

    #[test]
    fn mail_that_may_be_queued_is_no_fault_that_is_known() {
        let mut record = sample::lossy();
        record.ledger.not_delivered = record.ledger.lost.take();
        record.verdict.outcome = Some(mailrun_measurement::record::Outcome::Inconclusive);
        (record.verdict.causes, record.verdict.reasons) = (vec![Cause::NotDelivered], vec!["200 were not.".to_owned()]);
        let measured = RelayMeasurement::of(&record, None, 200_000).unwrap();
        assert!(measured.flaws.fault.unwrap().ends_with("not delivered 200"));
        assert_eq!(measured.flaws.undelivered.as_deref(), Some("200 were not."));
    }

    #[test]
    fn without_a_far_end_there_is_nothing_to_compare() {
        assert!(RelayMeasurement::of(&sample::unwatched(), None, 200_000).is_err());
    }

    #[test]
    fn what_the_verdict_says_of_a_run_is_kept() {
        let mut record = sample::held();
        record.verdict.valid = false;
        record.verdict.reasons = vec!["The sink was the limit.".to_owned()];
        assert_eq!(RelayMeasurement::of(&record, None, 200_000).unwrap().flaws.notes, ["The sink was the limit."]);
    }
}
