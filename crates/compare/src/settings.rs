/// The look at the data from which a verdict is taken. Each look spends a part of the risk of a false alarm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookPlan {
    /// The number of rounds was fixed beforehand.
    #[default]
    Only,
    /// One of two looks, at n and at 2n rounds.
    OneOfTwo,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CompareSettings {
    /// Maximum probability of a false alarm: reporting any difference when there is none.
    pub risk: f64,
    /// Ratio up to which two figures count as the same: 0.02 for 2 %.
    pub margin: f64,
    /// With fewer rounds, or runs per side, there is no verdict.
    pub min_rounds: usize,
    /// Number of random sign flips or divisions, if there are too many to try all.
    pub draws: usize,
    pub seed: u64,
    pub look: LookPlan,
}

impl Default for CompareSettings {
    fn default() -> Self {
        Self { risk: 0.05, margin: 0.02, min_rounds: 20, draws: 20_000, seed: 1, look: LookPlan::Only }
    }
}

/// Pocock's level of each of two looks with a total risk of 5 %, as a share of that risk (Pocock: Group sequential
/// methods in the design and analysis of clinical trials, Biometrika 64, 1977, table 1).
const POCOCK_SHARE: f64 = 0.0294 / 0.05;

impl CompareSettings {
    /// The risk that this look may spend.
    pub(crate) fn level(&self) -> f64 {
        match self.look {
            LookPlan::Only => self.risk,
            LookPlan::OneOfTwo => self.risk * POCOCK_SHARE,
        }
    }

    /// The margin as a log-ratio.
    pub(crate) fn log_margin(&self) -> f64 {
        self.margin.max(0.0).ln_1p()
    }
}
