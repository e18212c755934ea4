//! The findings of a comparison: of each metric its size, its interval, and a verdict of three.
use crate::metric::{ComparedMetric, Gain};
use crate::settings::CompareSettings;

/// The verdict on a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricVerdict {
    /// B is better than A.
    Better,
    /// B is worse than A.
    Worse,
    /// Both are the same within the margin.
    Same,
    /// It is not known. About so many more rounds would decide it.
    Undecided {
        /// Rounds to add, an estimate from the interval's width.
        more_rounds: usize,
    },
    /// There were too few rounds for a verdict.
    TooFew,
}

/// The finding of a comparison about a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricFinding {
    /// The metric.
    pub metric: ComparedMetric,
    /// B divided by A: the estimate.
    pub ratio: f64,
    /// The interval of the ratio; `None` if there were too few rounds for one.
    pub interval: Option<(f64, f64)>,
    /// The probability of a difference as clear as this in any of the metrics, if there is none in truth.
    pub adjusted_p: f64,
    /// Rounds, or runs of the side that has fewer.
    pub rounds: usize,
    /// The verdict.
    pub verdict: MetricVerdict,
    /// Set if the whole interval is beyond the margin.
    pub is_beyond_margin: bool,
}

/// Logarithms that a finding is made of.
pub(crate) struct LogEstimate {
    pub(crate) middle: f64,
    pub(crate) interval: Option<(f64, f64)>,
    pub(crate) adjusted_p: f64,
    pub(crate) rounds: usize,
    /// Fewer have no verdict.
    pub(crate) min_rounds: usize,
}

/// No estimate asks for more.
const MAX_MORE_ROUNDS: usize = 10_000;

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

    /// Reports whether B is better than A.
    pub fn is_better(&self) -> bool {
        self.verdict == MetricVerdict::Better
    }

    /// Reports whether B is worse than A by `limit` or more, 0.05 for 5 %: the estimate is, and the whole interval is on
    /// the worse side.
    pub fn is_regression(&self, limit: f64) -> bool {
        let worse = match self.metric.gain {
            Gain::Higher => 1.0 / self.ratio,
            Gain::Lower => self.ratio,
        };
        self.verdict == MetricVerdict::Worse && worse >= 1.0 + limit
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
    MetricVerdict::Undecided { more_rounds: more_rounds(estimate, (lower, upper), margin) }
}

/// The rounds to add until the interval, which narrows with the root of their number, leaves 0 or stays in the margin.
fn more_rounds(estimate: &LogEstimate, (lower, upper): (f64, f64), margin: f64) -> usize {
    let half = (upper - lower) / 2.0;
    let size = estimate.middle.abs();
    let needed = size.max(margin - size).max(f64::EPSILON);
    let rounds = estimate.rounds as f64 * (half / needed).powi(2);
    ((rounds.min(MAX_MORE_ROUNDS as f64) as usize).saturating_sub(estimate.rounds)).max(2)
}
