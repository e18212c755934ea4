//! Extracts the figures of one run of a profile from the bench's record: the rate, the latency until the reply 250, the
//! CPU costs, and what went wrong.
use crate::engine::{BenchFigures, RunFlaws, excused_units, unexcused_faults};
use anyhow::{Result, bail};
use mailrun_measurement::record::{LatencyMs, Record, Role, StageRow};
use mailrun_measurement::threshold::Fate;
use mailrun_measurement::{Phase, Stage};
use mailrun_text::numbers::count;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProfileMeasurement {
    /// Messages that were accepted after the warm-up.
    pub(super) messages: u64,
    pub(super) rate_per_s: f64,
    pub(super) bytes_per_s: f64,
    /// Time until the server replies to the message with 250. If each message has a new connection, the time includes
    /// connecting. If connections are reused, the time starts when a session takes the message. `None` for smtplib,
    /// which does not report latencies.
    pub(super) accept: Option<LatencyMs>,
    /// Mean time from sending QUIT until the server's reply.
    pub(super) quit_ms: Option<f64>,
    /// CPU time of the source, in milliseconds per million bytes of messages.
    pub(super) source_cpu_ms: Option<f64>,
    /// CPU time of the sink, in ms per million bytes of messages. `None` if the bench did not start the sink.
    pub(super) sink_cpu_ms: Option<f64>,
    pub(super) flaws: RunFlaws,
}

impl BenchFigures for ProfileMeasurement {
    fn flaws(&self) -> &RunFlaws {
        &self.flaws
    }
}

impl ProfileMeasurement {
    /// Takes the figures from the record of a run. `messages` is the expected number of messages, or `None` if the run
    /// had a time limit, so that no number can be expected.
    ///
    /// # Errors
    /// Returns an error if no message was accepted after the warm-up.
    pub(super) fn of(record: &Record, messages: Option<u64>) -> Result<Self> {
        let row = record.stage(Stage::Accepted).filter(|row| row.count > 0);
        let Some((row, accept)) = row.and_then(|row| Some((row, row.latency_ms?))) else {
            bail!("{}", silence(record))
        };
        // A record has no rate if fewer than 20 messages were sent, as in some runs of large messages. In that case,
        // compute the mean rate here.
        let rate_per_s = row.rate_per_s.unwrap_or(row.count as f64 / row.duration_s);
        let quit = record.phases.iter().find(|phase| phase.name == Phase::Quit);
        Ok(Self {
            messages: row.count,
            rate_per_s,
            bytes_per_s: rate_per_s * row.bytes as f64 / row.count as f64,
            accept: Some(accept),
            quit_ms: quit.map(|quit| quit.latency_ms.mean),
            source_cpu_ms: cpu_ms_per_megabyte(record, Role::Source, row),
            sink_cpu_ms: cpu_ms_per_megabyte(record, Role::Sink, row),
            flaws: RunFlaws::of(record, fault(record, messages)),
        })
    }

    pub(super) fn of_client(
        messages: u64,
        bytes: u64,
        elapsed_s: f64,
        client_cpu_s: f64,
        sink_cpu_s: Option<f64>,
    ) -> Self {
        let per_megabyte = |cpu_s: f64| cpu_s * 1e9 / bytes as f64;
        Self {
            messages,
            rate_per_s: messages as f64 / elapsed_s,
            bytes_per_s: bytes as f64 / elapsed_s,
            accept: None,
            quit_ms: None,
            source_cpu_ms: Some(per_megabyte(client_cpu_s)),
            sink_cpu_ms: sink_cpu_s.map(per_megabyte),
            flaws: RunFlaws::default(),
        }
    }
}

/// Explains why a run has no figures, for example because all its messages were sent in the warm-up.
fn silence(record: &Record) -> String {
    match (record.errors.first(), record.ledger.accepted.unwrap_or_default()) {
        (Some(error), 0) => format!("no message was accepted; first error: {} {}", error.code, error.text),
        (None, 0) => "no message was accepted".to_owned(),
        (_, accepted) => {
            format!("all {} messages were sent in the warm-up; a shorter --warm-up leaves some", count(accepted))
        }
    }
}

/// Returns the CPU time of the source or the sink per million bytes of accepted messages. The CPU time includes the
/// warm-up, but `accepted` does not. So the bytes of the warm-up are estimated from the mean size of a message, and
/// added.
fn cpu_ms_per_megabyte(record: &Record, role: Role, accepted: &StageRow) -> Option<f64> {
    let party = record.parties.iter().find(|party| party.role == role)?;
    let mean_bytes = accepted.bytes as f64 / accepted.count as f64;
    let bytes = mean_bytes * record.with_warm_up(accepted.count) as f64;
    (bytes > 0.0).then_some(party.work_s()? * 1e9 / bytes)
}

/// Describes what went wrong in a run. Returns `None` if all expected messages were accepted and none was lost or
/// changed. Failures for which a threshold is set do not count, because the threshold judges them.
fn fault(record: &Record, messages: Option<u64>) -> Option<String> {
    let ledger = &record.ledger;
    let accepted = ledger.accepted.unwrap_or_default();
    let wanted = messages.or(ledger.created).unwrap_or_default();
    let faults: Vec<(Fate, u64)> = unexcused_faults(record).collect();
    // If the reply to a message is lost, the message does not count as accepted, but it may still be delivered. So use
    // the greater of the two counts.
    let taken = accepted.max(ledger.delivered.unwrap_or_default());
    if faults.is_empty() && taken + excused_units(record, &[Stage::Accepted]) == wanted {
        return None;
    }
    let mut parts = vec![format!("of {} messages {} were accepted", count(wanted), count(accepted))];
    parts.extend(faults.into_iter().map(|(fate, number)| format!("{} {}", fate.name(), count(number))));
    parts.extend(record.errors.first().map(|error| format!("first error: {} {}", error.code, error.text)));
    Some(parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests;
    use mailrun_measurement::record::WarmUp;
    use mailrun_report::sample;

    #[test]
    fn figures_are_those_of_the_record() {
        let record = sample::held();
        let measured = ProfileMeasurement::of(&record, Some(200_000)).unwrap();
        let accepted = record.stage(Stage::Accepted).unwrap();
        assert_eq!((measured.messages, Some(measured.rate_per_s)), (accepted.count, accepted.rate_per_s));
        assert_eq!(measured.accept, accepted.latency_ms);
        assert_eq!((measured.flaws.fault, measured.flaws.invalid), (None, None));
        assert!(measured.source_cpu_ms.is_some_and(|ms| ms > 0.0) && measured.sink_cpu_ms.is_some());
        let warm_up = Some(WarmUp { length_s: 3.684, created: 200_000, accepted: 200_000 });
        let warmed_up = ProfileMeasurement::of(&Record { warm_up, ..record }, None).unwrap();
        assert_eq!(
            (warmed_up.source_cpu_ms, warmed_up.sink_cpu_ms),
            (measured.source_cpu_ms.map(|ms| ms / 2.0), measured.sink_cpu_ms.map(|ms| ms / 2.0)),
            "the CPU time includes the warm-up"
        );
    }

    #[test]
    fn what_is_missing_is_said_and_what_a_threshold_allows_is_not() {
        let short = ProfileMeasurement::of(&sample::held(), Some(200_001)).unwrap();
        assert_eq!(short.flaws.fault.as_deref(), Some("of 200,001 messages 200,000 were accepted"));
        assert_eq!(ProfileMeasurement::of(&sample::held(), None).unwrap().flaws.fault, None, "a time was its end");
        let lossy = ProfileMeasurement::of(&sample::lossy(), Some(200_000)).unwrap();
        assert!(lossy.flaws.fault.is_some_and(|fault| fault.contains("lost 200")));
        let mut refused = sample::held();
        refused.ledger.accepted = Some(199_000);
        refused.ledger.rejected = Some(1_000);
        let fault = ProfileMeasurement::of(&refused, Some(200_000)).unwrap().flaws.fault.unwrap();
        assert!(fault.contains("199,000 were accepted, rejected 1,000"), "{fault}");
        for fate in Fate::ALL.into_iter().filter(|fate| fate.is_fault()) {
            let mut record = sample::held();
            let missing = if fate.missed_stage() == Some(Stage::Accepted) { 1_000 } else { 0 };
            (record.ledger.accepted, record.ledger.delivered) = (Some(200_000 - missing), Some(199_000));
            tests::set_fate(&mut record, fate, 1_000);
            assert!(ProfileMeasurement::of(&record, Some(200_000)).unwrap().flaws.fault.is_some(), "{}", fate.name());
            tests::set_threshold(&mut record, &format!("{} <= 1%", fate.name()));
            assert_eq!(ProfileMeasurement::of(&record, Some(200_000)).unwrap().flaws.fault, None, "{}", fate.name());
        }
    }

    #[test]
    fn a_run_without_an_accepted_message_has_no_figures() {
        let mut record = sample::held();
        record.stages.retain(|row| row.name != Stage::Accepted);
        let error = ProfileMeasurement::of(&record, None).unwrap_err().to_string();
        assert!(error.contains("shorter --warm-up"), "{error}");
        record.ledger.accepted = Some(0);
        assert_eq!(ProfileMeasurement::of(&record, None).unwrap_err().to_string(), "no message was accepted");
    }
}
