//! The table of errors by phase, code and text. Each row also has the first and the last second in which the error
//! occurred, and a recipient for which the reader can search the server's log.
use super::tables;
use super::tables::{PagePart, PageRuns};
use crate::figures::{Section, errors_once};
use crate::mades;
use mailrun_measurement::record::{ErrorRow, Record};
use mailrun_text::numbers::fixed;
use mailrun_text::table::{Align, Cell, Table, right};

const MAX_KINDS: usize = 200;

pub(super) fn part(runs: PageRuns<'_>) -> Option<PagePart> {
    let (own, other) = runs.both(|record| match &record.mades {
        Some(mades) => mades::troubles(record, mades),
        None => section(record),
    })?;
    Some(PagePart { id: "errors", title: "Errors", body: tables::section(&own, other.as_ref(), None) })
}

fn section(record: &Record) -> Option<Section> {
    let mut table = Table::new([
        ("phase", Align::Left),
        right("code"),
        right("count"),
        right("first s"),
        right("last s"),
        ("first text", Align::Wrapped),
        ("sample recipient", Align::Wrapped),
    ])
    .hide_zero(&["sample recipient"]);
    for row in errors_once(record).take(MAX_KINDS) {
        table.row(cells(row));
    }
    let note = match errors_once(record).count().saturating_sub(MAX_KINDS) {
        0 => crate::fates::when(record),
        more => Some(format!("{more} more kinds in run.json")),
    };
    Section::figures("Errors", note, table)
}

fn cells(row: &ErrorRow) -> Vec<Cell> {
    let time = |at: Option<f64>| at.map_or_else(|| Cell::from("–"), |at| Cell::Number(at, fixed(at, 1)));
    // Make this cell a text and not a number. Beside a number, the page would show the ratio to the baseline, which
    // makes no sense for a reply code.
    let code = if row.code == 0 { "–".to_owned() } else { row.code.to_string() };
    let sample = row.sample.as_deref().unwrap_or_default();
    vec![
        Cell::from(row.phase.name()),
        Cell::from(code),
        Cell::Count(row.count),
        time(row.first_s),
        time(row.last_s),
        Cell::from(row.text.as_str()),
        Cell::from(sample),
    ]
}
