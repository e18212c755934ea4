//! Parts of the HTML page that show the same tables as the text reports: parties, workload, host, thresholds and
//! stages.
use super::slowest::SHOWN_MESSAGES;
use super::tables;
use super::tables::{PagePart, PageRuns};
use crate::figures::Section;
use crate::{audit, fates, mades, parties, relay, server, stages, workload};
use mailrun_measurement::record::Record;
use mailrun_text::numbers::counted;

/// Shows the thresholds as tables. The thresholds that did not pass come first, and those that passed are collapsed.
pub(super) fn thresholds(runs: PageRuns<'_>) -> Option<PagePart> {
    let of = |passed| runs.both(|record| fates::thresholds_by_result(record, passed));
    let table = |(own, other): (Section, Option<Section>)| tables::section(&own, other.as_ref(), None);
    let missed = of(false).map_or_else(String::new, table);
    let all = runs.record.thresholds.len();
    let passed = runs.record.thresholds.iter().filter(|row| row.passed).count();
    let passed = of(true).map_or_else(String::new, |section| {
        tables::folded(&format!("{passed} of {} passed", counted(all as u64, "threshold")), &table(section))
    });
    (all > 0).then(|| PagePart { id: "thresholds", title: "Thresholds", body: missed + &passed })
}

pub(super) fn stage_counts(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "stages", "Stages", stages::reached)
}

pub(super) fn load_stages(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "load-stages", "Stages of the load", stages::of_load)
}

pub(super) fn handshakes(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "tls", "TLS", parties::handshakes)
}

pub(super) fn server(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "server", "Server", server::under_test)
}

pub(super) fn audit_faults(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "audit", "Audit", audit::faults)
}

/// Shows the messages that the server accepted in an audit but that did not arrive. Ten of them are visible, and the
/// others are collapsed.
pub(super) fn audit_losses(runs: PageRuns<'_>) -> Option<PagePart> {
    let losses = &runs.record.audit.as_ref()?.losses;
    let (shown, others) = losses.split_at(losses.len().min(SHOWN_MESSAGES));
    let table = |section: Section| tables::section(&section, None, None);
    let more = audit::losses_in(others)
        .map_or_else(String::new, |section| tables::folded(&format!("{} more", others.len()), &table(section)));
    let body = table(audit::losses_in(shown)?) + &more;
    Some(PagePart { id: "audit-missing", title: "Missing mail", body })
}

pub(super) fn between(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "relay", "Relay", relay::between)
}

pub(super) fn processes(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "processes", "Processes", parties::costs)
}

pub(super) fn offered(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "workload", "Workload", |record| match &record.mades {
        Some(own) => mades::offered(record, own),
        None => workload::offered(record),
    })
}

pub(super) fn host(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "host", "Host and command", workload::surroundings)
}

fn part(
    runs: PageRuns<'_>,
    id: &'static str,
    title: &'static str,
    find: impl Fn(&Record) -> Option<Section>,
) -> Option<PagePart> {
    let (own, other) = runs.both(find)?;
    Some(PagePart { id, title, body: tables::section(&own, other.as_ref(), None) })
}
