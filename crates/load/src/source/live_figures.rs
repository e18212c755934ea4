//! Figures of a run so far, for thresholds that can end the run.
use mailrun_journey::record::LatencyMs;
use mailrun_journey::threshold::{Fate, MetricSource, MetricValues};
use mailrun_journey::{Latencies, SourceTally, Stage};
use std::time::Duration;

pub(super) struct SourceFigures<'a> {
    pub(super) tally: &'a SourceTally,
    pub(super) now: Duration,
}

impl MetricValues for SourceFigures<'_> {
    fn times(&self, source: MetricSource) -> Option<Latencies> {
        Some(match source {
            MetricSource::Stage(Stage::Created) => self.tally.slip.clone(),
            MetricSource::Stage(Stage::Sent) => self.tally.sent_latency.clone(),
            MetricSource::Stage(Stage::Accepted) => self.tally.accepted_latency.clone(),
            MetricSource::Phase(phase) => self.tally.phases.0[phase as usize].clone(),
            MetricSource::Stage(_) | MetricSource::Mades(_) => return None,
        })
    }

    fn summary(&self, source: MetricSource) -> Option<LatencyMs> {
        self.times(source)?.summary()
    }

    fn count(&self, source: MetricSource) -> Option<u64> {
        let tally = self.tally;
        let warm_up = &self.tally.warm_up;
        match source {
            MetricSource::Stage(Stage::Created) => Some(tally.created - warm_up.created),
            MetricSource::Stage(Stage::Sent) => Some(tally.sent - warm_up.sent),
            MetricSource::Stage(Stage::Accepted) => Some(tally.accepted - warm_up.accepted),
            MetricSource::Phase(_) => self.times(source).map(|times| times.count()),
            MetricSource::Stage(_) | MetricSource::Mades(_) => None,
        }
    }

    fn rate_per_s(&self, source: MetricSource) -> Option<f64> {
        let elapsed = self.now.saturating_sub(self.tally.first_created?);
        let count = self.count(source)?;
        (!elapsed.is_zero()).then(|| count as f64 / elapsed.as_secs_f64())
    }

    /// Counts only finished messages: a message in transit is not late yet.
    fn due(&self) -> Option<u64> {
        self.count(MetricSource::Stage(Stage::Created))
            .map(|created| created.saturating_sub(self.tally.open_messages()))
    }

    fn created_units(&self) -> Option<u64> {
        Some(self.tally.recipients_created)
    }

    fn fate(&self, fate: Fate) -> Option<u64> {
        match fate {
            Fate::Rejected => Some(self.tally.recipients_rejected),
            Fate::Failed => Some(self.tally.recipients_failed),
            Fate::Lost | Fate::NotDelivered | Fate::Duplicates | Fate::Corrupt => None,
        }
    }
}
