//! Shows what became of all messages, as bars and as a table. Two further tables show the messages to each recipient
//! domain, and the recipients that the server rewrote or added.
use super::plot;
use super::tables::{self, BarColumn, PagePart, PageRuns};
use crate::fates;
use mailrun_measurement::record::{DomainRow, Record};
use mailrun_text::numbers::known;
use mailrun_text::table::{Align, Cell, Table, right};

const MAX_DOMAINS: usize = 100;

pub(super) fn part(runs: PageRuns<'_>) -> Option<PagePart> {
    let (own, other) = runs.both(fates::ledger)?;
    let bars = BarColumn { title: "share of what was created", cells: fate_bars(runs.record) };
    let body = tables::section(&own, other.as_ref(), Some(&bars));
    Some(PagePart { id: "ledger", title: "Ledger", body })
}

/// Returns a bar for each row of the ledger. The first bar has the full width and shows all created messages. Each
/// further bar begins where the previous one ends, so that the reader sees how the fates add up to all messages.
fn fate_bars(record: &Record) -> Vec<String> {
    let Some(created) = record.ledger.created.filter(|created| *created > 0) else { return Vec::new() };
    let mut drawn = vec![plot::bars(&plot::bar(0.0, 1.0, "created"))];
    let mut before = 0.0;
    for (name, number) in fates::fates(record) {
        let end = before + number as f64 / created as f64;
        drawn.push(plot::bars(&plot::bar(before, end, colour(name))));
        before = end;
    }
    drawn
}

fn colour(fate: &str) -> &'static str {
    match fate {
        "delivered" => "delivered",
        "accepted" | "in flight" => "accepted",
        "queued" => "queued",
        _ => "failed",
    }
}

pub(super) fn rewrites(runs: PageRuns<'_>) -> Option<PagePart> {
    let (own, other) = runs.both(fates::rewrites)?;
    let body = tables::section(&own, other.as_ref(), None);
    Some(PagePart { id: "rewrites", title: "Rewritten and copied", body })
}

pub(super) fn domains(runs: PageRuns<'_>) -> Option<PagePart> {
    let (own, other) = runs.both(domain_table)?;
    let more = match runs.record.domains.len().saturating_sub(MAX_DOMAINS) {
        0 => String::new(),
        more => format!("<p class=\"note\">{more} more in run.json.</p>"),
    };
    let body = format!("{}{more}", tables::table("Ledger by domain", &own, other.as_ref(), None));
    Some(PagePart { id: "domains", title: "Ledger by domain", body })
}

fn domain_table(record: &Record) -> Option<Table> {
    let mut table = Table::new([
        ("recipient domain", Align::Left),
        right("created"),
        right("accepted"),
        right("rejected"),
        right("failed"),
        right("in doubt"),
        right("delivered"),
        right("duplicates"),
    ])
    .hide_zero(&["in doubt", "duplicates"]);
    for row in record.domains.iter().take(MAX_DOMAINS) {
        table.row(cells(row));
    }
    (!table.is_empty()).then_some(table)
}

fn cells(row: &DomainRow) -> Vec<Cell> {
    let maybe = |number: Option<u64>| number.map_or_else(|| Cell::from(known(None)), Cell::Count);
    let name = if row.domain.is_empty() { "all others" } else { row.domain.as_str() };
    let counts = [row.created, row.accepted, row.rejected, row.failed, row.in_doubt].map(Cell::Count);
    std::iter::once(Cell::from(name)).chain(counts).chain([row.delivered, row.duplicates].map(maybe)).collect()
}
