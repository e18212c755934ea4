//! The table of results: contestants, rates, costs and verdicts.

use mailrun_text::table::{Align, Table, right};

use crate::spread::Spread;

/// A rate of at least this value is in octets per second, because no contestant makes that many handshakes per second.
/// The table shows such a rate in GB.
const LARGE_RATE: f64 = 1e7;

pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) contestant: String,
    pub(crate) rate: Option<Spread>,
    pub(crate) client_us: Option<f64>,
    pub(crate) server_us: Option<f64>,
    pub(crate) targets: Vec<Target>,
}

/// A ratio that the table shows, and the minimum that it must reach. Without a minimum, it is shown but not judged.
pub(crate) struct Target {
    pub(crate) words: &'static str,
    pub(crate) ratio: Option<Spread>,
    pub(crate) least: Option<f64>,
}

impl Target {
    fn is_missed(&self) -> bool {
        matches!((self.ratio, self.least), (Some(ratio), Some(least)) if ratio.median < least)
    }

    fn text(&self) -> String {
        let Some(ratio) = self.ratio else { return format!("{}: not measured", self.words) };
        format!("{}: {:.2} ({:.2}–{:.2})", self.words, ratio.median, ratio.least, ratio.most)
    }

    fn verdict(&self) -> String {
        let (Some(ratio), Some(least)) = (self.ratio, self.least) else { return "–".to_owned() };
        let word = if self.is_missed() { "FAIL" } else { "PASS" };
        let unsure = if (ratio.least..ratio.most).contains(&least) { ", within the spread" } else { "" };
        format!("{word} ≥ {least:.2}{unsure}")
    }
}

impl Row {
    /// Returns a line for each target that this row misses, with the measured ratio.
    pub(crate) fn missed(&self) -> impl Iterator<Item = String> {
        let missed = self.targets.iter().filter(|target| target.is_missed());
        missed.map(|target| format!("{}, {}: {}", self.case, self.contestant, target.text()))
    }
}

/// Builds the table. A row with several ratios becomes several lines, one for each ratio.
pub(crate) fn table(rows: &[Row]) -> Table {
    let left = |title| (title, Align::Left);
    let figures = ["per second (min–max)", "µs client", "µs server"].map(right);
    let columns = [left("case"), left("contestant")].into_iter().chain(figures).chain([left("ratio"), left("verdict")]);
    let mut table = Table::new(columns);
    let mut case = "";
    for row in rows {
        let title = if row.case == case { "" } else { &row.case };
        case = &row.case;
        let mut targets = row.targets.iter().map(|target| [target.text(), target.verdict()]);
        let first = [
            title.to_owned(),
            row.contestant.clone(),
            row.rate.map_or_else(String::new, rate),
            microseconds(row.client_us),
            microseconds(row.server_us),
        ];
        table.row(first.into_iter().chain(targets.next().unwrap_or_default()).collect());
        targets.for_each(|target| table.row([const { String::new() }; 5].into_iter().chain(target).collect()));
    }
    table
}

fn rate(rate: Spread) -> String {
    if rate.most < LARGE_RATE {
        return format!("{:.0} ({:.0}–{:.0})", rate.median, rate.least, rate.most);
    }
    format!("{:.2} ({:.2}–{:.2}) GB", rate.median / 1e9, rate.least / 1e9, rate.most / 1e9)
}

fn microseconds(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or_else(|| "–".to_owned(), |value| format!("{value:.0}"))
}
