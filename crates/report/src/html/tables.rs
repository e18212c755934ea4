//! Tables and lists of facts in HTML. If there is a baseline, each number has its ratio to the baseline's number beside
//! it.
//!
//! Each table scrolls in its own box, so the page itself never has to scroll sideways.
use super::escape::{escaped, isolated};
use super::value;
use crate::figures::{Section, SectionBody};
use mailrun_measurement::record::Record;
use mailrun_text::table::{Align, ColumnCells, Table};

/// A column that the page inserts after the first column of a table. Each of its cells is a drawing, such as a bar.
pub(super) struct BarColumn {
    pub(super) title: &'static str,
    pub(super) cells: Vec<String>,
}

pub(super) fn section(own: &Section, baseline: Option<&Section>, bars: Option<&BarColumn>) -> String {
    let body = match &own.body {
        SectionBody::Figures(own_table) => {
            let other = baseline.and_then(|section| match &section.body {
                SectionBody::Figures(table) => Some(table),
                SectionBody::Facts(_) => None,
            });
            table(own.title, own_table, other, bars)
        }
        SectionBody::Facts(facts) => fact_list(facts),
    };
    let note = own.note.as_ref().map_or_else(String::new, |note| format!("<p class=\"note\">{}</p>", escaped(note)));
    format!("{body}{note}")
}

pub(super) fn folded(summary: &str, body: &str) -> String {
    format!("<details><summary>{}</summary>{body}</details>", escaped(summary))
}

fn fact_list(facts: &[(&'static str, String)]) -> String {
    let row = |(name, fact): &(&str, String)| format!("<dt>{}</dt><dd>{}</dd>", escaped(name), isolated(fact));
    format!("<dl>{}</dl>", facts.iter().map(row).collect::<String>())
}

/// Returns a table in HTML. Screen readers read out `caption` as its name.
pub(super) fn table(caption: &str, own: &Table, baseline: Option<&Table>, bars: Option<&BarColumn>) -> String {
    let columns = own.column_cells();
    let others = baseline.map(Table::column_cells);
    let rows = columns.first().map_or(0, |column| column.cells.len());
    let lines: String = (0..rows).map(|row| line(&columns, others.as_deref(), bars, row)).collect();
    format!(
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{} (table)\"><table><thead><tr>{}</tr></thead>\
         <tbody>{lines}</tbody></table></div>",
        escaped(caption),
        head(&columns, bars)
    )
}

fn head(columns: &[ColumnCells], bars: Option<&BarColumn>) -> String {
    let mut cells = String::new();
    for (at, column) in columns.iter().enumerate() {
        let title = if column.title.is_empty() { "result" } else { &column.title };
        cells.push_str(&format!("<th scope=\"col\"{}>{}</th>", class(column.align), escaped(title)));
        if let Some(bars) = bars.filter(|_| at == 0) {
            cells.push_str(&format!("<th scope=\"col\" class=\"bars\">{}</th>", bars.title));
        }
    }
    cells
}

fn line(columns: &[ColumnCells], others: Option<&[ColumnCells]>, bars: Option<&BarColumn>, row: usize) -> String {
    let same = others.and_then(|others| same_row(columns, others, row));
    let mut cells = String::new();
    for (at, column) in columns.iter().enumerate() {
        let element = if at == 0 { "th scope=\"row\"" } else { "td" };
        let end = if at == 0 { "th" } else { "td" };
        let other = same.zip(others).and_then(|(row, others)| value_at(others, &column.title, row));
        let text = cell(column, row, other);
        cells.push_str(&format!("<{element}{}>{text}</{end}>", class(column.align)));
        if let Some(bars) = bars.filter(|_| at == 0) {
            let drawn = bars.cells.get(row).map_or("", String::as_str);
            cells.push_str(&format!("<td class=\"bars\">{drawn}</td>"));
        }
    }
    format!("<tr>{cells}</tr>")
}

fn cell(column: &ColumnCells, row: usize, baseline: Option<f64>) -> String {
    let Some((text, number)) = column.cells.get(row) else { return String::new() };
    let text = without_branch(text);
    match number {
        Some(number) => value::compared(*number, text, baseline),
        None if column.align == Align::Right => escaped(text),
        None => isolated(text),
    }
}

/// Finds the row in the baseline's table that has the same name as this row of the run's table. The name consists of
/// all columns before the first number, because one column may not suffice: an error is identified by phase and code.
fn same_row(columns: &[ColumnCells], others: &[ColumnCells], row: usize) -> Option<usize> {
    let has_number = |column: &ColumnCells| column.cells.iter().any(|(_, number)| number.is_some());
    let is_name = |(own, other): &(&ColumnCells, &ColumnCells)| {
        own.title == other.title && !has_number(own) && !has_number(other)
    };
    let names: Vec<_> = columns.iter().zip(others).take_while(is_name).collect();
    let name =
        |column: &ColumnCells, row: usize| column.cells.get(row).map(|(text, _)| without_branch(text).to_owned());
    let rows = names.first()?.1.cells.len();
    (0..rows).find(|place| names.iter().all(|(own, other)| name(own, row) == name(other, *place)))
}

/// Removes `├ ` and `└ ` in front of a name. These characters draw a tree in the text report.
fn without_branch(name: &str) -> &str {
    name.strip_prefix("├ ").or_else(|| name.strip_prefix("└ ")).unwrap_or(name)
}

fn value_at(others: &[ColumnCells], title: &str, row: usize) -> Option<f64> {
    others.iter().find(|column| column.title == title)?.cells.get(row)?.1
}

fn class(align: Align) -> &'static str {
    match align {
        Align::Right => " class=\"n\"",
        Align::Wrapped => " class=\"w\"",
        Align::Left => "",
    }
}

#[derive(Clone, Copy)]
pub(super) struct PageRuns<'a> {
    pub(super) record: &'a Record,
    pub(super) baseline: Option<&'a Record>,
}

impl<'a> PageRuns<'a> {
    /// Calls `find` for the run and for the baseline, and returns both results. Returns `None` if `find` returns `None`
    /// for the run.
    pub(super) fn both<T>(self, find: impl Fn(&'a Record) -> Option<T>) -> Option<(T, Option<T>)> {
        find(self.record).map(|own| (own, self.baseline.and_then(find)))
    }
}

pub(super) struct PagePart {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) body: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_text::table::Cell;

    #[test]
    fn rows_are_compared_by_name_and_columns_by_title() {
        let rows = |names: [&str; 2], times: [f64; 2]| {
            let mut table = Table::new([("stage", Align::Left), ("p99", Align::Right)]);
            for (name, ms) in names.into_iter().zip(times) {
                table.row(vec![Cell::from(name), Cell::Millis(ms)]);
            }
            table
        };
        let text = table("t", &rows(["a", "b"], [2.0, 3.0]), Some(&rows(["b", "c"], [1.5, 9.0])), None);
        assert!(text.contains("<data value=\"3\">3.000</data> <small class=\"ratio\">2.00×</small>"), "{text}");
        assert!(text.contains("<data value=\"2\">2.000</data></td>"), "{text}");
        assert!(text.contains("<th scope=\"row\"><bdi>a</bdi></th>"), "{text}");
        let errors = |counts: [u64; 2]| {
            let mut table = Table::new([("phase", Align::Left), ("code", Align::Right), ("count", Align::Right)]);
            for (code, count) in ["450", "550"].into_iter().zip(counts) {
                table.row(vec![Cell::from("rcpt"), Cell::from(code), Cell::Count(count)]);
            }
            table
        };
        let text = table("t", &errors([10, 30]), Some(&errors([20, 60])), None);
        assert_eq!(text.matches("0.50×").count(), 2, "each error has the ratio to the same error: {text}");
        assert_eq!(text.matches("class=\"ratio\"").count(), 2, "a reply code has no ratio: {text}");
    }
}
