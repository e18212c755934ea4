//! The stages of a run so far, for thresholds that can end the run.
use mailrun_measurement::threshold::{MetricSource, RunningStage};
use mailrun_measurement::{SourceTally, Stage};
use std::time::Duration;

pub(super) fn stage(tally: &SourceTally, now: Duration, of: MetricSource) -> Option<RunningStage> {
    let warm_up = &tally.warm_up;
    let (count, times) = match of {
        MetricSource::Stage(Stage::Created) => (tally.created - warm_up.created, &tally.slip),
        MetricSource::Stage(Stage::Sent) => (tally.sent - warm_up.sent, &tally.sent_latency),
        MetricSource::Stage(Stage::Accepted) => (tally.accepted - warm_up.accepted, &tally.accepted_latency),
        MetricSource::Phase(phase) => {
            let times = &tally.phases.0[phase as usize];
            (times.count(), times)
        }
        MetricSource::Stage(_) => return None,
    };
    let elapsed_s = now.saturating_sub(tally.first_created.unwrap_or(now)).as_secs_f64();
    let rate_per_s = (elapsed_s > 0.0).then(|| count as f64 / elapsed_s);
    Some(RunningStage { count, rate_per_s, times: Some(times.clone()), summary: None })
}
