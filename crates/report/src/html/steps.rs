//! Draws consecutive steps as bars: the phases of an SMTP session, and the steps of a message over MADES. Also contains
//! two parts for MADES runs: the lost connections, and a comparison of the figures of the simulator and the bench.
use super::plot;
use super::tables::{self, BarColumn, PagePart, PageRuns};
use crate::figures::{Section, SectionBody};
use crate::{mades, stages};
use mailrun_measurement::record::{Mades, Record};

pub(super) fn waterfall(runs: PageRuns<'_>) -> Option<PagePart> {
    let own = runs.record.mades.as_ref()?;
    let (section, other) = both(runs, |own| mades::waterfall(own).map(without_characters))?;
    let means: Vec<f64> = own.hops.iter().map(|hop| hop.latency_ms.map_or(0.0, |times| times.mean.max(0.0))).collect();
    let bars = BarColumn { title: "mean, after the steps before it", cells: steps(&means, "accepted") };
    Some(PagePart { id: "steps", title: "Steps", body: tables::section(&section, other.as_ref(), Some(&bars)) })
}

/// Removes the column in which the text report draws bars with characters, because the page draws bars as images.
fn without_characters(section: Section) -> Section {
    let body = match section.body {
        SectionBody::Figures(table) => SectionBody::Figures(table.without("time")),
        facts @ SectionBody::Facts(_) => facts,
    };
    Section { body, ..section }
}

pub(super) fn outages(runs: PageRuns<'_>) -> Option<PagePart> {
    let (section, _) = both(runs, mades::outages)?;
    Some(PagePart { id: "outages", title: "Lost connections", body: tables::section(&section, None, None) })
}

pub(super) fn truth(runs: PageRuns<'_>) -> Option<PagePart> {
    let counts = both(runs, mades::truth_counts);
    let times = both(runs, mades::truth_times);
    let body: String = [counts, times].iter().flatten().map(|(own, _)| tables::section(own, None, None)).collect();
    (!body.is_empty()).then_some(PagePart { id: "truth", title: "Truth", body })
}

fn both(runs: PageRuns<'_>, find: fn(&Mades) -> Option<Section>) -> Option<(Section, Option<Section>)> {
    runs.both(|record| record.mades.as_ref().and_then(find))
}

pub(super) fn phases(runs: PageRuns<'_>) -> Option<PagePart> {
    let (own, other) = runs.both(stages::phases)?;
    let bars = BarColumn { title: "mean duration, in sequence", cells: phase_bars(runs.record) };
    let body = format!(
        "{}<p class=\"note\">connect, banner, ehlo, tls and auth are once per connection; the others once per message or \
         recipient.</p>",
        tables::section(&own, other.as_ref(), Some(&bars))
    );
    Some(PagePart { id: "phases", title: "Phases", body })
}

fn phase_bars(record: &Record) -> Vec<String> {
    let means: Vec<f64> = record.phases.iter().map(|row| row.latency_ms.mean.max(0.0)).collect();
    steps(&means, "accepted")
}

/// Draws each length as a bar whose width is its share of the sum. Each bar begins where the previous one ends.
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
