//! Parties, workload and host; thresholds and stages: the parts that are the same tables as in the other reports.
use super::runs::{PagePart, PageRuns};
use super::tables;
use crate::section::Section;
use crate::{encryption, fates, mades, parties, relay, server, stages, workload};
use mailrun_journey::record::Record;

/// The thresholds: expression, value, limit, margin and result.
pub(super) fn thresholds(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "thresholds", "Thresholds", fates::thresholds)
}

/// Number of messages at each stage, and rates.
pub(super) fn stage_counts(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "stages", "Stages", |record| match &record.mades {
        Some(own) => mades::stages(own),
        None => stages::reached(record),
    })
}

/// TLS handshakes.
pub(super) fn handshakes(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "tls", "TLS", encryption::handshakes)
}

/// The server under test.
pub(super) fn server(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "server", "Server", server::under_test)
}

/// The relay between source and sink.
pub(super) fn between(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "relay", "Relay", relay::between)
}

/// Costs of each process.
pub(super) fn processes(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "processes", "Processes", parties::costs)
}

/// The load that was offered.
pub(super) fn offered(runs: PageRuns<'_>) -> Option<PagePart> {
    part(runs, "workload", "Workload", |record| match &record.mades {
        Some(own) => mades::offered(record, own),
        None => workload::offered(record),
    })
}

/// Host, version and command.
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
