//! Parts that several reports share: sections, the choice of the stage whose figures represent the whole run, the
//! format of latencies, and a common form for the errors of SMTP and MADES.
use mailrun_measurement::record::{ErrorRow, MadesTrouble, Record, StageRow};
use mailrun_measurement::stage::Stage;
use mailrun_text::numbers::latency;
use mailrun_text::table::Table;

/// Returns the last stage that any message reached. Its rate and latency are reported as the results of the run.
pub fn final_stage(record: &Record) -> Option<&StageRow> {
    record.stages.iter().rev().find(|row| row.count > 0 && row.name != Stage::Created)
}

/// Formats a latency of a stage, for example `1.42 ms`. An infinite latency belongs to messages that had not arrived
/// when the run stopped waiting. It is shown as a lower bound, for example `> 3.00 s`.
pub(crate) fn stage_latency(row: &StageRow, milliseconds: f64) -> String {
    match row.beyond_ms.filter(|_| milliseconds == f64::INFINITY) {
        Some(bound) if bound > 0.0 => format!("> {}", latency(bound)),
        Some(_) => "never".to_owned(),
        None => latency(milliseconds),
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ErrorFigures<'a> {
    /// Phase of the SMTP session in which the error occurred or, in a MADES run, the kind of trouble.
    pub(crate) phase: &'a str,
    /// Reply code, or an empty text if there was no reply.
    pub(crate) code: String,
    pub(crate) text: &'a str,
    pub(crate) count: u64,
    pub(crate) first_s: Option<f64>,
    pub(crate) last_s: Option<f64>,
    /// Recipient of the first message that had this error.
    pub(crate) sample: Option<&'a str>,
}

pub(crate) fn errors(record: &Record) -> Vec<ErrorFigures<'_>> {
    match &record.mades {
        Some(own) => own.troubles.iter().map(of_trouble).collect(),
        None => errors_once(record).map(of_error).collect(),
    }
}

/// Returns each error of the run once, even if both the source and the sink have counted it. Reports must not use
/// `record.errors` itself, because it contains such errors twice.
pub(crate) fn errors_once(record: &Record) -> impl Iterator<Item = &ErrorRow> {
    record.errors.iter().filter(|row| !is_reported_by_both(record, row))
}

/// Returns true if the sink caused the errors of this row on purpose, by a rule of the user, and the source has counted
/// them in another row. The caller then leaves out this row.
fn is_reported_by_both(record: &Record, row: &ErrorRow) -> bool {
    let is_same = |other: &ErrorRow| (other.phase, other.code) == (row.phase, row.code) && !other.is_ordered();
    row.is_ordered() && record.errors.iter().any(is_same)
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

#[derive(Clone, Debug)]
pub(crate) struct Section {
    /// Title of one to three words. The summary for GitHub selects sections by their titles.
    pub(crate) title: &'static str,
    pub(crate) note: Option<String>,
    pub(crate) body: SectionBody,
}

impl Section {
    /// Returns a section that shows a table. If the table has no rows, returns `None`, so that reports leave it out.
    pub(crate) fn figures(title: &'static str, note: Option<String>, table: Table) -> Option<Self> {
        (!table.is_empty()).then_some(Self { title, note, body: SectionBody::Figures(table) })
    }
}

#[derive(Clone, Debug)]
pub(crate) enum SectionBody {
    Figures(Table),
    Facts(Vec<(&'static str, String)>),
}
