//! Metrics of a comparison, and their values as logarithms: a ratio and its inverse are equally far from 1.
use thiserror::Error;

/// The direction in which a metric gets better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gain {
    /// More is better: a rate.
    Higher,
    /// Less is better: a latency, processor time.
    Lower,
}

/// A metric by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedMetric {
    /// Name, as the report shows it.
    pub name: String,
    /// The direction in which it gets better.
    pub gain: Gain,
}

/// Reason why values have no ratio.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{name} is {value} in run {run}: a ratio needs numbers above 0")]
pub struct RatioError {
    /// Name of the metric.
    pub name: String,
    /// Place of the run or the round, from 1.
    pub run: usize,
    /// The value.
    pub value: f64,
}

/// Ratios of B to A of a metric, one a round, as logarithms.
#[derive(Clone, Debug)]
pub struct RoundRatios {
    pub(crate) metric: ComparedMetric,
    pub(crate) logs: Vec<f64>,
}

impl RoundRatios {
    /// Takes the values of A and B of each round.
    ///
    /// # Errors
    /// If a value is not a number above 0.
    pub fn new(metric: ComparedMetric, pairs: &[(f64, f64)]) -> Result<Self, RatioError> {
        let ratio =
            |(place, (a, b)): (usize, &(f64, f64))| Ok(logarithm(&metric, place, *b)? - logarithm(&metric, place, *a)?);
        let logs = pairs.iter().enumerate().map(ratio).collect::<Result<_, _>>()?;
        Ok(Self { metric, logs })
    }
}

/// Values of a metric in runs of A and of B that belong to no rounds, as logarithms.
#[derive(Clone, Debug)]
pub struct RunValues {
    pub(crate) metric: ComparedMetric,
    pub(crate) a: Vec<f64>,
    pub(crate) b: Vec<f64>,
}

impl RunValues {
    /// Takes the values of the runs of A and of those of B.
    ///
    /// # Errors
    /// If a value is not a number above 0.
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
