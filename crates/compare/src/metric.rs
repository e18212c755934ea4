//! Metrics of a run, such as its rate. Their values are compared as logarithms, because a doubled and a halved value
//! are then equally far from an unchanged value.
use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gain {
    /// More is better, for example for a rate.
    Higher,
    /// Less is better, for example for a latency or processor time.
    Lower,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedMetric {
    pub name: String,
    pub gain: Gain,
}

impl ComparedMetric {
    /// Returns true if one side of a comparison lacks this metric. `values` are the values of the side's runs, or
    /// `None` if a run has no value. An infinite time or a rate of 0 is treated like a missing value, because it has no
    /// ratio to other values. Both are the worst possible results: if only judged runs lack a metric, this counts as a
    /// regression.
    pub(crate) fn is_lacking_in(&self, values: Option<&[f64]>) -> bool {
        let is_bad = |value: &f64| !value.is_finite() || (self.gain == Gain::Higher && *value <= 0.0);
        values.is_none_or(|values| values.iter().any(is_bad))
    }
}

/// Error for a value that cannot be part of a ratio, because it is not a finite number above 0.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{name} is {value} in run {run}: a ratio needs numbers above 0")]
pub struct RatioError {
    pub name: String,
    /// Number of the run or round that has this value, counted from 1.
    pub run: usize,
    pub value: f64,
}

/// For each round that both contestants ran, the ratio of B's value of a metric to the value of A, the reference.
/// `logs` has the logarithms of these ratios.
#[derive(Clone, Debug)]
pub struct RoundRatios {
    pub(crate) metric: ComparedMetric,
    pub(crate) logs: Vec<f64>,
}

impl RoundRatios {
    /// Computes the ratios from the values of A and B in each round.
    ///
    /// # Errors
    /// Fails if a value is not a number above 0, because it then has no logarithm.
    pub fn new(metric: ComparedMetric, pairs: &[(f64, f64)]) -> Result<Self, RatioError> {
        let ratio =
            |(place, (a, b)): (usize, &(f64, f64))| Ok(logarithm(&metric, place, *b)? - logarithm(&metric, place, *a)?);
        let logs = pairs.iter().enumerate().map(ratio).collect::<Result<_, _>>()?;
        Ok(Self { metric, logs })
    }
}

/// Logarithms of a metric's values in the runs of A, the reference, and in the runs of B. The runs are not paired.
#[derive(Clone, Debug)]
pub struct RunValues {
    pub(crate) metric: ComparedMetric,
    pub(crate) a: Vec<f64>,
    pub(crate) b: Vec<f64>,
}

impl RunValues {
    /// # Errors
    /// Fails if a value is not a number above 0, because it then has no logarithm.
    pub fn new(metric: ComparedMetric, a: &[f64], b: &[f64]) -> Result<Self, RatioError> {
        let logs = |values: &[f64]| {
            values.iter().enumerate().map(|(place, value)| logarithm(&metric, place, *value)).collect::<Result<_, _>>()
        };
        Ok(Self { a: logs(a)?, b: logs(b)?, metric })
    }
}

fn logarithm(metric: &ComparedMetric, place: usize, value: f64) -> Result<f64, RatioError> {
    if value.is_finite() && value > 0.0 {
        return Ok(value.ln());
    }
    Err(RatioError { name: metric.name.clone(), run: place + 1, value })
}
