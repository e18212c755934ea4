//! A trial: what is asked for, and what came of it.

/// Growth of the backlog, as a share of the rate, from which a trial is bad: the queue hides what the server cannot do.
pub const BACKLOG_GROWTH_LIMIT: f64 = 0.01;
/// Samples of the backlog that a growth is derived from at least.
const MIN_SAMPLES: usize = 3;
/// Samples that the growth is derived from where the second half of the load has fewer.
const USUAL_SAMPLES: usize = 4;

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

/// Returns the growth of the backlog in messages per second, from the samples of the second half of the load, or the last
/// four if that half has fewer: of the slopes between each two of them the one that a third of them do not reach. So a queue
/// that grows all the time shows in its whole steepness, and a stall that only one of the samples has seen does not, not even
/// in the last one of three. `None` if there are fewer than three.
pub fn backlog_growth(samples: &[BacklogSample], offered_s: f64) -> Option<f64> {
    let meant = |from_s: f64| {
        let is_meant =
            move |sample: &&BacklogSample| (from_s..=offered_s).contains(&sample.at_s) && sample.messages.is_finite();
        samples.iter().filter(is_meant).collect::<Vec<_>>()
    };
    let whole = meant(0.0);
    let mut late = meant(offered_s / 2.0);
    if late.len() < USUAL_SAMPLES {
        late = whole[whole.len().saturating_sub(USUAL_SAMPLES)..].to_vec();
    }
    if late.len() < MIN_SAMPLES {
        return None;
    }
    let mut slopes = Vec::new();
    for (at, one) in late.iter().enumerate() {
        let later = late[at + 1..].iter().filter(|other| other.at_s > one.at_s);
        slopes.extend(later.map(|other| (other.messages - one.messages) / (other.at_s - one.at_s)));
    }
    slopes.sort_by(f64::total_cmp);
    slopes.get(slopes.len().checked_sub(1)? / 3).copied()
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
        assert_eq!(backlog_growth(&grows[..2], 5.0), None, "too few samples");
        let alike: Vec<_> = (0..5).map(|_| sample(16, 1.0)).collect();
        assert_eq!(backlog_growth(&alike, 5.0), None, "all at one moment");
    }

    /// Name, length of the load in s, rows, and true if the backlog grew.
    type RecordedTrial = (&'static str, f64, &'static [(f64, f64)], bool);

    /// Trials through our relay on a host that was busy with builds, as (middle of a row in s, median time in ms).
    const RECORDED: [RecordedTrial; 7] = [
        (
            "10 s, a stall in the second half",
            10.0,
            &[
                (0.5, 39.6),
                (1.5, 26.4),
                (2.5, 8.4),
                (3.5, 8.8),
                (4.5, 7.2),
                (5.5, 67.8),
                (6.5, 8.5),
                (7.5, 10.3),
                (8.5, 9.1),
                (9.5, 9.8),
                (10.0, 2.2),
            ],
            false,
        ),
        (
            "10 s, a stall near the end",
            10.0,
            &[
                (0.3, 40.2),
                (1.2, 127.1),
                (2.2, 192.9),
                (3.2, 13.4),
                (4.2, 58.0),
                (5.2, 78.9),
                (6.2, 34.9),
                (7.2, 46.2),
                (8.2, 251.7),
                (9.2, 126.0),
                (9.9, 62.8),
            ],
            false,
        ),
        (
            "5 s, a stall in the last second",
            5.0,
            &[(0.5, 8.0), (1.5, 9.0), (2.5, 8.5), (3.5, 9.1), (4.5, 151.0)],
            false,
        ),
        ("2 s, slow at first", 2.0, &[(0.3, 139.2), (1.1, 67.6), (1.8, 11.2)], false),
        ("2 s, slow all the time", 2.0, &[(0.3, 208.9), (1.1, 215.5), (1.9, 161.5)], false),
        ("2 s, overloaded", 2.0, &[(0.4, 50.2), (1.3, 73.6), (1.9, 118.6)], true),
        (
            "5 s, overloaded by a tenth",
            5.0,
            &[(0.5, 48.0), (1.5, 151.0), (2.5, 245.0), (3.5, 356.0), (4.5, 448.0)],
            true,
        ),
    ];

    #[test]
    fn a_stall_is_no_growth_and_overload_is() {
        for (name, offered_s, rows, grows) in RECORDED {
            let rate = 5_907.0;
            let sample = |(at_s, ms): &(f64, f64)| BacklogSample { at_s: *at_s, messages: ms / 1e3 * rate };
            let samples: Vec<BacklogSample> = rows.iter().map(sample).collect();
            let growth = backlog_growth(&samples, offered_s);
            let figures = TrialFigures { backlog_growth_per_s: growth, ..TrialFigures::new(vec![0.0], rate) };
            assert_eq!(figures.is_backlogged(rate), grows, "{name}: {growth:?}");
        }
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
