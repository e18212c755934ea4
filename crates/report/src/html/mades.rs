//! Parts that only the page of a MADES run has: the steps between stages, the lost connections, and
//! the counts of the stand-in.
use super::phases::steps;
use super::runs::{PagePart, PageRuns};
use super::tables::{self, BarColumn};
use crate::mades;
use crate::section::{Section, SectionBody};
use mailrun_measurement::record::Mades;

pub(super) fn waterfall(runs: PageRuns<'_>) -> Option<PagePart> {
    let own = runs.record.mades.as_ref()?;
    let (section, other) = both(runs, |own| mades::waterfall(own).map(without_characters))?;
    let means: Vec<f64> = own.hops.iter().map(|hop| hop.latency_ms.map_or(0.0, |times| times.mean.max(0.0))).collect();
    let bars = BarColumn { title: "mean, after the steps before it", cells: steps(&means, "accepted") };
    Some(PagePart { id: "steps", title: "Steps", body: tables::section(&section, other.as_ref(), Some(&bars)) })
}

/// Removes the column with a drawing in characters, which the bars of the page replace.
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
