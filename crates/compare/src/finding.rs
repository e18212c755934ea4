//! The findings of a comparison, and the settings that decide the verdict. For each metric, there is a finding with the
//! difference, its confidence interval and a verdict.
use crate::metric::{ComparedMetric, Gain};
use crate::signed_rank::normal_quantile;
pub use mailrun_report::comparison::MetricVerdict;

/// How often the data is examined for a verdict. Each examination, or look, may raise a false alarm, so two looks share
/// the risk.
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

#[derive(Clone, Debug, PartialEq)]
pub struct MetricFinding {
    pub metric: ComparedMetric,
    /// Estimated ratio of the values of B to the values of A, the reference.
    pub ratio: f64,
    /// Confidence interval of the ratio, or `None` if there are too few rounds for one.
    pub interval: Option<(f64, f64)>,
    /// Adjusted p-value: the probability that chance alone would make some metric of the comparison differ as clearly
    /// as this metric does.
    pub adjusted_p: f64,
    /// Number of rounds or, for unpaired runs, the number of runs on the side that has fewer.
    pub rounds: usize,
    pub verdict: MetricVerdict,
    /// Set if the whole interval is beyond the margin, so that the difference is not only real but also large enough to
    /// matter.
    pub is_beyond_margin: bool,
}

/// Numbers from which `MetricFinding::new` derives the verdict. `middle` is the logarithm of the estimated ratio of B
/// to A, and `interval` is the confidence interval of this logarithm.
pub(crate) struct LogEstimate {
    pub(crate) middle: f64,
    pub(crate) interval: Option<(f64, f64)>,
    pub(crate) adjusted_p: f64,
    pub(crate) rounds: usize,
    pub(crate) min_rounds: usize,
    pub(crate) metrics: usize,
}

/// 80 % quantile of the standard normal distribution. `more_rounds` uses it to suggest a number of rounds that is
/// enough with a probability of 80 %, if the estimated difference is right.
const ENOUGH_QUANTILE: f64 = 0.842;
/// Maximum total number of rounds, including the rounds already run, that `more_rounds` suggests.
const MAX_TOTAL_ROUNDS: usize = 10_000;

impl MetricFinding {
    pub(crate) fn new(metric: ComparedMetric, estimate: &LogEstimate, settings: &CompareSettings) -> Self {
        let margin = settings.log_margin();
        let beyond = |(lower, upper): (f64, f64)| lower > margin || upper < -margin;
        Self {
            verdict: verdict(metric.gain, estimate, settings),
            metric,
            ratio: estimate.middle.exp(),
            interval: estimate.interval.map(|(lower, upper)| (lower.exp(), upper.exp())),
            adjusted_p: estimate.adjusted_p,
            rounds: estimate.rounds,
            is_beyond_margin: estimate.interval.is_some_and(beyond),
        }
    }

    pub fn is_better(&self) -> bool {
        self.verdict == MetricVerdict::Better
    }

    /// Returns true if the verdict is `Worse` and B is estimated to be worse by at least `limit` (0.05 for 5 %).
    pub fn is_regression(&self, limit: f64) -> bool {
        let worse = match self.metric.gain {
            Gain::Higher => 1.0 / self.ratio,
            Gain::Lower => self.ratio,
        };
        self.verdict == MetricVerdict::Worse && worse >= 1.0 + limit
    }

    /// Returns true if B may be worse than A by at least `limit`, because the interval reaches that far or there are
    /// too few rounds.
    pub(crate) fn may_be_regression(&self, limit: f64) -> bool {
        match (self.verdict, self.interval) {
            (MetricVerdict::TooFew, _) | (_, None) => true,
            (_, Some((lower, upper))) => match self.metric.gain {
                Gain::Higher => 1.0 / lower >= 1.0 + limit,
                Gain::Lower => upper >= 1.0 + limit,
            },
        }
    }
}

fn verdict(gain: Gain, estimate: &LogEstimate, settings: &CompareSettings) -> MetricVerdict {
    let (Some((lower, upper)), true) = (estimate.interval, estimate.rounds >= estimate.min_rounds) else {
        return MetricVerdict::TooFew;
    };
    let margin = settings.log_margin();
    if estimate.adjusted_p <= settings.level() && (lower > 0.0 || upper < 0.0) {
        return if (lower > 0.0) == (gain == Gain::Higher) { MetricVerdict::Better } else { MetricVerdict::Worse };
    }
    if lower > -margin && upper < margin {
        return MetricVerdict::Same;
    }
    MetricVerdict::Undecided { more_rounds: more_rounds(estimate, (lower, upper), settings) }
}

/// Estimates how many more rounds a verdict needs. A verdict is possible when the difference is significant even after
/// adjusting for the number of metrics, or when the interval lies within the margin. The estimate assumes that the
/// width of the interval is inversely proportional to the square root of the number of rounds.
fn more_rounds(estimate: &LogEstimate, (lower, upper): (f64, f64), settings: &CompareSettings) -> usize {
    let quantile = |risk: f64| normal_quantile(1.0 - risk / 2.0);
    let alone = quantile(settings.level());
    let together = quantile(settings.level() / estimate.metrics.max(1) as f64);
    let spread = (upper - lower) / 2.0 / alone;
    let size = estimate.middle.abs();
    let rounds = |quantile: f64, distance: f64| {
        estimate.rounds as f64 * ((quantile + ENOUGH_QUANTILE) * spread / distance.max(f64::EPSILON)).powi(2)
    };
    let needed = rounds(together, size).min(rounds(alone, settings.log_margin() - size));
    (needed.min(MAX_TOTAL_ROUNDS as f64).ceil() as usize).saturating_sub(estimate.rounds).max(2)
}
