/// How often the data is examined for a verdict. Each look may raise a false alarm, so they share the risk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookPlan {
    /// The data is examined only once, because the number of rounds was fixed beforehand.
    #[default]
    Only,
    /// The data is examined twice, after n and after 2n rounds, and this verdict comes from one of these looks.
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
    /// Number of random permutations (sign flips, or divisions of runs) that a test draws if it cannot try all of them.
    pub draws: usize,
    pub seed: u64,
    pub look: LookPlan,
}

impl Default for CompareSettings {
    fn default() -> Self {
        Self { risk: 0.05, margin: 0.02, min_rounds: 20, draws: 20_000, seed: 1, look: LookPlan::Only }
    }
}

/// If the data is examined twice, each look gets this share of the total risk of a false alarm. For a total of 5 %,
/// Pocock's level is 2.94 % per look (Pocock: Group sequential methods in the design and analysis of clinical trials,
/// Biometrika 64, 1977, table 1).
const POCOCK_SHARE: f64 = 0.0294 / 0.05;

impl CompareSettings {
    /// Returns the maximum probability of a false alarm for one look at the data. Two looks share `risk`.
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
