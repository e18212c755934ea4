//! Makes the record of a MADES bench that died without leaving one, from its options, its last
//! progress, and the way it ended.
use super::options::MadesBenchOptions;
use crate::gather;
use mailrun_measurement::Stage;
use mailrun_measurement::judge;
use mailrun_measurement::reason::Reason;
use mailrun_measurement::record::{Cause, Death, LedgerRow, Mades, Record, Verdict, Workload};
use mailrun_measurement::threshold::evaluate_all;
use mailrun_process::live::LiveProgress;
use mailrun_process::outputs;
use mailrun_text::numbers::count;

/// Makes the record. `progress` is the last that the MADES bench reported, and `url` is that of the
/// broker.
pub(super) fn record(
    options: &MadesBenchOptions,
    url: &str,
    started_at: jiff::Timestamp,
    progress: &LiveProgress,
    death: Death,
) -> Record {
    let url = url.to_owned();
    let workload = Workload { target: url.clone(), ..options.workload.clone() };
    let mut record = outputs::new_record(None, &options.name, started_at, workload, None);
    record.ledger =
        LedgerRow { accepted: Some(progress.accepted), delivered: Some(progress.delivered), ..LedgerRow::default() };
    let arrival = if options.mades.mode == "tracing" { Stage::TracingEvent } else { Stage::Inbox };
    let counts = [
        (Stage::Created, progress.created),
        (Stage::Sent, progress.sent),
        (Stage::Settled, progress.accepted),
        (arrival, progress.delivered),
    ];
    gather::fill_from_progress(&mut record, "mades", &counts, progress.elapsed_s);
    record.parties[0].died = Some(death.clone());
    record.mades = Some(Mades { outbox_url: url.clone(), inbox_url: url, ..options.mades.clone() });
    record.thresholds = evaluate_all(&record, &options.thresholds, None);
    let figures = format!(
        "The bench last reported at {:.1} s: {} created, {} settled, {} delivered.",
        progress.elapsed_s,
        count(progress.created),
        count(progress.accepted),
        count(progress.delivered)
    );
    let reasons = vec![judge::death_reason("bench", &death), Reason::new(Cause::Remark, figures)];
    record.verdict = Verdict { closed: false, valid: false, ..judge::decide(reasons, "") };
    record
}
