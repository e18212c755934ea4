//! Figures of a run in progress. Thresholds that can end the run are checked against them.
use super::tracker::MessageTracker;
use mailrun_journey::threshold::{MetricSource, RunningFigures, RunningStage};
use std::time::Duration;

/// Calls `use_figures` with the figures of the run so far.
pub(super) fn with_figures<T>(
    tracker: &MessageTracker,
    now: Duration,
    use_figures: impl FnOnce(&RunningFigures<'_>) -> T,
) -> T {
    use_figures(&RunningFigures {
        stages: &|of| stage(tracker, now, of),
        // Messages in flight do not count as late yet.
        finished: tracker.created().saturating_sub(tracker.in_transit() as u64),
        created_units: tracker.created(),
        ledger: &|| tracker.final_ledger().ledger,
    })
}

fn stage(tracker: &MessageTracker, now: Duration, of: MetricSource) -> Option<RunningStage> {
    let MetricSource::Stage(of) = of else { return None };
    let stage = tracker.path().find(of)?;
    let waterfall = &tracker.waterfall;
    let count = waterfall.count(stage);
    let elapsed_s = now.saturating_sub(waterfall.began().unwrap_or(now)).as_secs_f64();
    let rate_per_s = (elapsed_s > 0.0).then(|| count as f64 / elapsed_s);
    Some(RunningStage { count, rate_per_s, times: Some(waterfall.latency(stage).clone()), summary: None })
}
