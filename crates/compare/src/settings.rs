/// Number of looks at the data for a verdict. Each look spends a part of the permitted risk of a false alarm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookPlan {
    /// The data is examined only once, because the number of rounds was fixed beforehand.
    #[default]
    Only,
    /// One of two looks at the data, which are taken after n and after 2n rounds.
    OneOfTwo,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CompareSettings {
    /// Maximum probability of a false alarm: reporting any difference when there is none.
    pub risk: f64,
    /// Relative difference up to which two figures count as the same: 0.02 for 2 %.
    pub margin: f64,
    /// Minimum number of rounds for a verdict. A comparison of unpaired runs requires `MIN_RUNS` per side instead.
    pub min_rounds: usize,
    /// Number of random sign flips or divisions of runs that are drawn if there are too many to try all.
    pub draws: usize,
    pub seed: u64,
    pub look: LookPlan,
}

impl Default for CompareSettings {
    fn default() -> Self {
        Self { risk: 0.05, margin: 0.02, min_rounds: 20, draws: 20_000, seed: 1, look: LookPlan::Only }
    }
}

/// Share of the total risk that each of two looks may spend. For a total of 5 %, Pocock's level is 2.94 % per look
/// (Pocock: Group sequential methods in the design and analysis of clinical trials, Biometrika 64, 1977, table 1).
const POCOCK_SHARE: f64 = 0.0294 / 0.05;

impl CompareSettings {
    /// Returns the risk of a false alarm that a single look at the data may spend.
    pub(crate) fn level(&self) -> f64 {
        match self.look {
            LookPlan::Only => self.risk,
            LookPlan::OneOfTwo => self.risk * POCOCK_SHARE,
        }
    }

    pub(crate) fn log_margin(&self) -> f64 {
        self.margin.max(0.0).ln_1p()
    }
}
