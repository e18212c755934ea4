//! Metrics and their values as logarithms, so that a ratio and its inverse are equally far from 1.
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

/// Why values have no ratio.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{name} is {value} in run {run}: a ratio needs numbers above 0")]
pub struct RatioError {
    pub name: String,
    /// Number of the run or round, from 1.
    pub run: usize,
    pub value: f64,
}

/// Ratios of B to A for a metric, one per round, as logarithms.
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

/// Values of a metric in unpaired runs of A and B, as logarithms.
#[derive(Clone, Debug)]
pub struct RunValues {
    pub(crate) metric: ComparedMetric,
    pub(crate) a: Vec<f64>,
    pub(crate) b: Vec<f64>,
}

impl RunValues {
    /// # Errors
    /// If a value is not a positive number.
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
