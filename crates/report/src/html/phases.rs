//! Draws the phases of a dialogue in sequence, with their mean durations.
use super::plot;
use super::runs::{PagePart, PageRuns};
use super::tables::{self, BarColumn};
use crate::stages;
use mailrun_measurement::record::Record;

/// Returns the phases with their bars. `None` if the source timed no phases.
pub(super) fn part(runs: PageRuns<'_>) -> Option<PagePart> {
    let (own, other) = runs.both(stages::phases)?;
    let bars = BarColumn { title: "mean duration, in sequence", cells: waterfall(runs.record) };
    let body = format!(
        "{}<p class=\"note\">connect, banner, ehlo, tls and auth are once per connection; the others once per message or \
         recipient.</p>",
        tables::section(&own, other.as_ref(), Some(&bars))
    );
    Some(PagePart { id: "phases", title: "Phases", body })
}

/// Returns one bar for each phase. A bar begins where the bar of the previous phase ends.
fn waterfall(record: &Record) -> Vec<String> {
    let means: Vec<f64> = record.phases.iter().map(|row| row.latency_ms.mean.max(0.0)).collect();
    steps(&means, "accepted")
}

/// Returns bars in a row, whose lengths are shares of the sum of `lengths`.
pub(super) fn steps(lengths: &[f64], colour: &str) -> Vec<String> {
    let whole: f64 = lengths.iter().sum();
    let whole = if whole > 0.0 { whole } else { 1.0 };
    let mut before = 0.0;
    let mut drawn = Vec::with_capacity(lengths.len());
    for length in lengths {
        let end = before + length / whole;
        drawn.push(plot::bars(&plot::bar(before, end, colour)));
        before = end;
    }
    drawn
}
