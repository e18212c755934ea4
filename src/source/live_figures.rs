//! The figures of a run so far, for thresholds that end it.
use journey::record::LatencyMs;
use journey::threshold::{Fate, Figures, Place};
use journey::{Latencies, SourceTally, Stage};
use std::time::Duration;

/// The counts so far.
pub(super) struct LiveFigures<'a> {
    pub(super) tally: &'a SourceTally,
    pub(super) now: Duration,
}

impl Figures for LiveFigures<'_> {
    fn times(&self, of: Place) -> Option<Latencies> {
        Some(match of {
            Place::Stage(Stage::Created) => self.tally.slip.clone(),
            Place::Stage(Stage::Sent) => self.tally.sent_latency.clone(),
            Place::Stage(Stage::Accepted) => self.tally.accepted_latency.clone(),
            Place::Phase(phase) => self.tally.phases.0[phase as usize].clone(),
            Place::Stage(_) | Place::Mades(_) => return None,
        })
    }

    fn summary(&self, of: Place) -> Option<LatencyMs> {
        self.times(of)?.summary()
    }

    fn count(&self, of: Place) -> Option<u64> {
        let tally = self.tally;
        let warm_up = &self.tally.warm_up;
        match of {
            Place::Stage(Stage::Created) => Some(tally.created - warm_up.created),
            Place::Stage(Stage::Sent) => Some(tally.sent - warm_up.sent),
            Place::Stage(Stage::Accepted) => Some(tally.accepted - warm_up.accepted),
            Place::Phase(_) => self.times(of).map(|times| times.count()),
            Place::Stage(_) | Place::Mades(_) => None,
        }
    }

    fn rate_per_s(&self, of: Place) -> Option<f64> {
        let elapsed = self.now.saturating_sub(self.tally.first_created?);
        let count = self.count(of)?;
        (!elapsed.is_zero()).then(|| count as f64 / elapsed.as_secs_f64())
    }

    /// Messages that are finished: one that is under way is not late yet.
    fn created(&self) -> Option<u64> {
        self.count(Place::Stage(Stage::Created)).map(|created| created.saturating_sub(self.tally.open_messages()))
    }

    fn created_units(&self) -> Option<u64> {
        Some(self.tally.recipients_created)
    }

    fn fate(&self, fate: Fate) -> Option<u64> {
        match fate {
            Fate::Rejected => Some(self.tally.recipients_rejected),
            Fate::Failed => Some(self.tally.recipients_failed),
            Fate::Lost | Fate::Duplicates | Fate::Corrupt => None,
        }
    }
}
