//! The figures of a run so far, for thresholds that end it.
use super::account::Account;
use super::stages::Stage;
use journey::Latencies;
use journey::record::LatencyMs;
use journey::threshold::{Fate, Figures, Place};
use std::time::Duration;

/// The figures so far.
pub(super) struct LiveFigures<'a> {
    pub(super) account: &'a Account,
    pub(super) now: Duration,
}

impl LiveFigures<'_> {
    /// The stage of the run that a threshold names.
    fn stage(&self, of: Place) -> Option<Stage> {
        let mode = self.account.mode();
        let stage = match of {
            Place::Stage(journey::Stage::Created) => Stage::Created,
            Place::Stage(journey::Stage::Sent) => Stage::Sent,
            Place::Stage(journey::Stage::Accepted) => Stage::Settled,
            Place::Stage(journey::Stage::Delivered) => mode.arrival(),
            Place::Stage(journey::Stage::Notified) => mode.last(),
            Place::Mades(name) => return mode.path().iter().copied().find(|stage| stage.name() == name),
            Place::Stage(_) | Place::Phase(_) => return None,
        };
        Some(stage)
    }
}

impl Figures for LiveFigures<'_> {
    fn times(&self, of: Place) -> Option<Latencies> {
        Some(self.account.waterfall.latency(self.stage(of)?).clone())
    }

    fn summary(&self, of: Place) -> Option<LatencyMs> {
        self.account.waterfall.latency(self.stage(of)?).summary()
    }

    fn count(&self, of: Place) -> Option<u64> {
        Some(self.account.waterfall.count(self.stage(of)?))
    }

    fn rate_per_s(&self, of: Place) -> Option<f64> {
        let elapsed = self.now.saturating_sub(self.account.waterfall.began()?);
        let count = self.count(of)?;
        (!elapsed.is_zero()).then(|| count as f64 / elapsed.as_secs_f64())
    }

    /// Messages that are finished: one that is under way is not late yet.
    fn created(&self) -> Option<u64> {
        Some(self.account.created().saturating_sub(self.account.in_transit() as u64))
    }

    fn created_units(&self) -> Option<u64> {
        Some(self.account.created())
    }

    fn fate(&self, fate: Fate) -> Option<u64> {
        // Looks at every message: only a threshold on a fate needs it, four times per second.
        fate.count(&self.account.balance().ledger)
    }
}
