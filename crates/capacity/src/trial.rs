//! A trial: what is asked for, and what came of it.

/// Growth of the backlog, as a share of the rate, from which a trial is bad: the queue hides what the server cannot do.
pub const BACKLOG_GROWTH_LIMIT: f64 = 0.01;
/// Samples of the backlog that a growth is derived from at least.
const MIN_SAMPLES: usize = 3;

/// The load of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrialLoad {
    /// Closed loop: each session sends when it is free. The trial is the warm-up too, and judges nothing.
    FlatOut,
    /// Open loop at that many messages per second.
    RatePerS(f64),
}

/// A trial that the search asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchTrial {
    /// The load.
    pub load: TrialLoad,
    /// Time for which it is offered.
    pub duration_s: f64,
}

/// The limit of a trial that says nothing about the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoidCause {
    /// The generator of the load.
    Generator,
    /// The sink that takes the mail at last.
    Sink,
    /// The host: processor time was stolen, descriptors or ports ran out.
    Host,
}

/// Outcome of a trial.
#[derive(Clone, Debug, PartialEq)]
pub enum TrialOutcome {
    /// The server was measured.
    Measured(TrialFigures),
    /// Generator, sink or host was the limit.
    Void {
        /// The limit.
        cause: VoidCause,
        /// Rate that got through nevertheless.
        delivered_per_s: f64,
        /// Time that the trial took, waits included.
        spent_s: f64,
    },
    /// Mail was lost or came changed: that is no matter of rates, and ends the search.
    MailLost,
    /// The user stopped the search.
    Stopped,
}

/// Figures of a trial.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialFigures {
    /// Share of the messages due that were late, rejected or missing, for each goal in the order of the goals.
    pub loss_ratios: Vec<f64>,
    /// Messages per second that got through while load was offered.
    pub delivered_per_s: f64,
    /// Growth of what was accepted and not yet delivered, in messages per second; `None` if nobody saw it.
    pub backlog_growth_per_s: Option<f64>,
    /// Reports whether all was delivered soon after the load ended.
    pub is_drained: bool,
    /// Time that the trial took, waits included.
    pub spent_s: f64,
}

impl TrialFigures {
    /// Makes figures of a trial without a backlog.
    pub fn new(loss_ratios: Vec<f64>, delivered_per_s: f64) -> Self {
        Self { loss_ratios, delivered_per_s, backlog_growth_per_s: None, is_drained: true, spent_s: 0.0 }
    }

    /// Share of that goal; what is no number is all, and what is missing too.
    pub(crate) fn loss_ratio(&self, goal: usize) -> f64 {
        let ratio = self.loss_ratios.get(goal).copied().filter(|ratio| !ratio.is_nan());
        ratio.map_or(1.0, |ratio| ratio.clamp(0.0, 1.0))
    }

    /// Reports whether the queue behind the server grew, or did not empty.
    pub fn is_backlogged(&self, rate_per_s: f64) -> bool {
        let is_growing = |growth: f64| growth.is_nan() || growth > rate_per_s * BACKLOG_GROWTH_LIMIT;
        !self.is_drained || self.backlog_growth_per_s.is_some_and(is_growing)
    }
}

/// The backlog at a moment of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BacklogSample {
    /// Seconds since the load began.
    pub at_s: f64,
    /// Messages accepted and not yet delivered.
    pub messages: f64,
}

/// Returns the growth of the backlog in messages per second: the slope of a straight line through the samples of the
/// second half of the load. `None` if there are fewer than three.
pub fn backlog_growth(samples: &[BacklogSample], offered_s: f64) -> Option<f64> {
    let is_meant =
        |sample: &&BacklogSample| (offered_s / 2.0..=offered_s).contains(&sample.at_s) && sample.messages.is_finite();
    let late: Vec<&BacklogSample> = samples.iter().filter(is_meant).collect();
    if late.len() < MIN_SAMPLES {
        return None;
    }
    let count = late.len() as f64;
    let mean_at = late.iter().map(|sample| sample.at_s).sum::<f64>() / count;
    let mean_messages = late.iter().map(|sample| sample.messages).sum::<f64>() / count;
    let spread: f64 = late.iter().map(|sample| (sample.at_s - mean_at).powi(2)).sum();
    let common: f64 = late.iter().map(|sample| (sample.at_s - mean_at) * (sample.messages - mean_messages)).sum();
    (spread > 0.0).then(|| common / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_growth_is_that_of_the_second_half() {
        let sample = |at: u32, messages: f64| BacklogSample { at_s: f64::from(at) * 0.25, messages };
        let grows: Vec<_> = (0..=20).map(|at| sample(at, f64::from(at.max(8)) * 25.0)).collect();
        let growth = backlog_growth(&grows, 5.0).unwrap();
        assert!((growth - 100.0).abs() < 1e-6, "{growth}");
        // A wave of the beginning has passed.
        let falls: Vec<_> = (0..=20).map(|at| sample(at, if at < 10 { 1_000.0 } else { 3.0 })).collect();
        assert_eq!(backlog_growth(&falls, 5.0), Some(0.0));
        assert_eq!(backlog_growth(&grows[..12], 5.0), None, "too few samples");
        let alike: Vec<_> = (0..5).map(|_| sample(16, 1.0)).collect();
        assert_eq!(backlog_growth(&alike, 5.0), None, "all at one moment");
    }

    #[test]
    fn a_backlog_counts_from_one_percent_on() {
        let figures = |growth, is_drained| TrialFigures {
            backlog_growth_per_s: growth,
            is_drained,
            ..TrialFigures::new(vec![0.0], 1_000.0)
        };
        for (growth, is_drained, expected) in [
            (None, true, false),
            (Some(9.9), true, false),
            (Some(-500.0), true, false),
            (Some(10.1), true, true),
            (Some(f64::NAN), true, true),
            (None, false, true),
        ] {
            assert_eq!(figures(growth, is_drained).is_backlogged(1_000.0), expected, "{growth:?} {is_drained}");
        }
    }

    #[test]
    fn a_ratio_that_is_none_is_all() {
        let figures = TrialFigures::new(vec![f64::NAN, -3.0, 7.0, 0.25], 1.0);
        let read: Vec<f64> = (0..5).map(|goal| figures.loss_ratio(goal)).collect();
        assert_eq!(read, [1.0, 0.0, 1.0, 0.25, 1.0]);
    }
}
