//! What the source knows at the end, as a run record.
use super::{SPARE_FILES, Setting};
use crate::live::Progress;
use crate::{party, surroundings};
use journey::account::{self, Between, Books};
use journey::record::{Record, Role, Surroundings, WarmUp};
use journey::{RunId, Series, SourceTally, Stage};

/// The record of this party.
pub(super) fn record(
    setting: &Setting,
    run: RunId,
    started_at: jiff::Timestamp,
    tally: &SourceTally,
    series: &Series,
    around: Surroundings,
) -> Record {
    let options = &setting.options;
    let workload = options.workload(&setting.about);
    let mut record = party::blank_record(Some(run), &options.name, started_at, workload);
    record.origin_ns = series.origin_ns();
    record.series = series.rows();
    let since = if options.offer.is_some() { Stage::Scheduled } else { Stage::Created };
    record.stages = tally.stages("source", since);
    record.duration_s = record.stages.iter().map(|row| row.duration_s).fold(0.0, f64::max);
    record.phases = tally.phase_rows();
    record.tls = tally.handshakes.rows("source");
    record.lag_ms = tally.lag.summary();
    record.warm_up = options.warm_up.map(|length| WarmUp {
        length_s: length.as_secs_f64(),
        created: tally.warm_up.created,
        accepted: tally.warm_up.accepted,
    });
    record.errors = tally.errors.rows();
    let needed = u64::from(options.sessions) + SPARE_FILES;
    record.exhausted = tally.shortages.rows("source", |resource| surroundings::extent(resource, needed));
    record.pauses = tally.pauses("source");
    record.surroundings = Some(around);
    record.parties = vec![party::own_party(Role::Source, "source", options.workers, Vec::new())];
    record.ledger = account::settle(Books {
        recipients_created: tally.recipients_created,
        accepted: &tally.accepted_units,
        arrivals: None,
        open: tally.recipients_created.saturating_sub(tally.recipients_accepted + tally.recipients_rejected),
        overflow: tally.overflow,
    });
    record.verdict = account::conclude(&record, Between::Server);
    record
}

/// The line a terminal shows meanwhile.
pub(super) fn live_line(progress: &Progress) -> String {
    format!(
        "{:.0} s  {} accepted, {:.0} msg/s  p50 {:.2} ms  p99 {:.2} ms  {} errors",
        progress.elapsed_s,
        progress.accepted,
        progress.accepted as f64 / progress.elapsed_s.max(0.001),
        progress.p50_ms,
        progress.p99_ms,
        progress.errors
    )
}
