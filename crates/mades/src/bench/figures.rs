//! Figures of a run in progress. Thresholds that can end the run are checked against them.
use super::stages::MessageStage;
use super::tracker::MessageTracker;
use mailrun_journey::Latencies;
use mailrun_journey::record::LatencyMs;
use mailrun_journey::threshold::{Fate, MetricSource, MetricValues};
use std::time::Duration;

pub(super) struct MadesLiveFigures<'a> {
    pub(super) tracker: &'a MessageTracker,
    pub(super) now: Duration,
}

impl MadesLiveFigures<'_> {
    fn stage(&self, of: MetricSource) -> Option<MessageStage> {
        let path = self.tracker.path();
        let stage = match of {
            MetricSource::Stage(mailrun_journey::Stage::Created) => MessageStage::Created,
            MetricSource::Stage(mailrun_journey::Stage::Sent) => MessageStage::Sent,
            MetricSource::Stage(mailrun_journey::Stage::Accepted) => MessageStage::Settled,
            MetricSource::Stage(mailrun_journey::Stage::Delivered) => path.mode.arrival(),
            MetricSource::Stage(mailrun_journey::Stage::Notified) => path.last(),
            MetricSource::Mades(name) => return path.stages().iter().copied().find(|stage| stage.name() == name),
            MetricSource::Stage(_) | MetricSource::Phase(_) => return None,
        };
        Some(stage)
    }
}

impl MetricValues for MadesLiveFigures<'_> {
    fn times(&self, of: MetricSource) -> Option<Latencies> {
        Some(self.tracker.waterfall.latency(self.stage(of)?).clone())
    }

    fn summary(&self, of: MetricSource) -> Option<LatencyMs> {
        self.tracker.waterfall.latency(self.stage(of)?).summary()
    }

    fn count(&self, of: MetricSource) -> Option<u64> {
        Some(self.tracker.waterfall.count(self.stage(of)?))
    }

    fn rate_per_s(&self, of: MetricSource) -> Option<f64> {
        let elapsed = self.now.saturating_sub(self.tracker.waterfall.began()?);
        let count = self.count(of)?;
        (!elapsed.is_zero()).then(|| count as f64 / elapsed.as_secs_f64())
    }

    /// Returns the number of finished messages. Messages in flight do not count as late yet.
    fn due(&self) -> Option<u64> {
        Some(self.tracker.created().saturating_sub(self.tracker.in_transit() as u64))
    }

    fn created_units(&self) -> Option<u64> {
        Some(self.tracker.created())
    }

    fn fate(&self, fate: Fate) -> Option<u64> {
        // This visits every message, but only for a threshold on a fate, and four times per second.
        fate.count(&self.tracker.final_ledger().ledger)
    }
}
