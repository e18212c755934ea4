//! Stages and errors of a record in one form, which SMTP and MADES share.
use mailrun_journey::record::{ErrorRow, LatencyMs, MadesStage, MadesTrouble, Record, StageRow};
use mailrun_journey::stage::Stage;

#[derive(Clone, Copy, Debug)]
pub struct StageFigures<'a> {
    pub name: &'a str,
    pub party: &'a str,
    /// Stage from which latency counts. Empty if unknown.
    pub since: &'a str,
    pub count: u64,
    pub failed: u64,
    /// Bytes of the messages, if somebody counted them.
    pub bytes: Option<u64>,
    /// Seconds from the first message to the last message that reached this stage.
    pub duration_s: f64,
    /// Messages per second over `duration_s`.
    pub rate_per_s: f64,
    /// Messages per second over the time in which load was offered.
    pub offered_rate_per_s: Option<f64>,
    pub latency: Option<LatencyMs>,
    pub histogram: Option<&'a str>,
    pub service_histogram: Option<&'a str>,
}

impl StageFigures<'_> {
    /// Returns the rate over the time of the load. If that time is unknown, returns the rate over
    /// the time of the stage.
    pub fn rate(&self) -> f64 {
        self.offered_rate_per_s.unwrap_or(self.rate_per_s)
    }
}

/// Returns the stages in order. A MADES run has stages of its own.
pub(crate) fn stages(record: &Record) -> Vec<StageFigures<'_>> {
    match &record.mades {
        Some(own) if !own.stages.is_empty() => own.stages.iter().map(of_mades).collect(),
        _ => record.stages.iter().map(of_smtp).collect(),
    }
}

/// Returns the last stage that messages reached. Its figures stand for the whole run.
pub fn final_stage(record: &Record) -> Option<StageFigures<'_>> {
    if record.mades.is_some() {
        return stages(record).into_iter().rev().find(|stage| stage.count > 0);
    }
    crate::headline::final_stage(record).map(of_smtp)
}

fn of_smtp(row: &StageRow) -> StageFigures<'_> {
    StageFigures {
        name: row.name.name(),
        party: &row.party,
        since: row.since.map_or("", Stage::name),
        count: row.count,
        failed: row.failed,
        bytes: Some(row.bytes),
        duration_s: row.duration_s,
        rate_per_s: row.rate_per_s,
        offered_rate_per_s: row.offered_rate_per_s,
        latency: row.latency_ms,
        histogram: row.histogram.as_deref(),
        service_histogram: row.service_histogram.as_deref(),
    }
}

fn of_mades(row: &MadesStage) -> StageFigures<'_> {
    StageFigures {
        name: &row.name,
        party: "mades",
        since: if row.latency_ms.is_some() { Stage::Created.name() } else { "" },
        count: row.count,
        failed: row.missing,
        bytes: None,
        duration_s: row.duration_s,
        rate_per_s: row.rate_per_s,
        offered_rate_per_s: row.offered_rate_per_s,
        latency: row.latency_ms,
        histogram: row.histogram.as_deref(),
        service_histogram: None,
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ErrorFigures<'a> {
    /// Phase of the dialogue in which the error occurred. For MADES, the kind of trouble.
    pub(crate) phase: &'a str,
    /// Reply code. Empty if there was no reply.
    pub(crate) code: String,
    pub(crate) text: &'a str,
    pub(crate) count: u64,
    pub(crate) first_s: Option<f64>,
    pub(crate) last_s: Option<f64>,
    /// Recipient of the first message with this error.
    pub(crate) sample: Option<&'a str>,
}

pub(crate) fn errors(record: &Record) -> Vec<ErrorFigures<'_>> {
    match &record.mades {
        Some(own) => own.troubles.iter().map(of_trouble).collect(),
        None => record.errors.iter().map(of_error).collect(),
    }
}

fn of_error(row: &ErrorRow) -> ErrorFigures<'_> {
    ErrorFigures {
        phase: row.phase.name(),
        code: if row.code == 0 { String::new() } else { row.code.to_string() },
        text: &row.text,
        count: row.count,
        first_s: row.first_s,
        last_s: row.last_s,
        sample: row.sample.as_deref(),
    }
}

fn of_trouble(row: &MadesTrouble) -> ErrorFigures<'_> {
    ErrorFigures {
        phase: &row.kind,
        code: row.code.clone(),
        text: &row.text,
        count: row.count,
        first_s: None,
        last_s: None,
        sample: None,
    }
}
