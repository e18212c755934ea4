//! The figures of a run that is going on, for thresholds that end it.
use super::account::Account;
use super::stages::Stage;
use journey::Latencies;
use journey::record::LatencyMs;
use journey::threshold::{Fate, Figures, Place};
use std::time::Duration;

/// What is known so far.
pub(super) struct LiveFigures<'a> {
    pub(super) account: &'a Account,
    pub(super) now: Duration,
}

impl LiveFigures<'_> {
    /// The stage of the run that a threshold speaks of.
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

    /// Those that have come to an end: one that is under way is not late yet.
    fn created(&self) -> Option<u64> {
        Some(self.account.created().saturating_sub(self.account.in_transit() as u64))
    }

    fn created_units(&self) -> Option<u64> {
        Some(self.account.created())
    }

    fn fate(&self, fate: Fate) -> Option<u64> {
        // Looks at every message: only a threshold of a fate asks for it, four times a second.
        fate.count(&self.account.balance().ledger)
    }
}
