/// A trial is bad if the backlog grows by more than this share of the rate. Messages in a growing queue are not late
/// yet, so latency alone would not show that the server cannot keep up.
pub const BACKLOG_GROWTH_LIMIT: f64 = 0.01;
const MIN_SAMPLES: usize = 3;
/// `backlog_growth` uses the backlog samples of the second half of the load. If that half has fewer samples than this
/// number, the function uses the last samples of the whole load instead, up to this number.
const USUAL_SAMPLES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrialLoad {
    /// Closed loop, in which each session sends its next message as soon as it can. This trial is also the warm-up, and
    /// does not judge the server.
    FlatOut,
    /// Open loop, with this number of messages per second.
    RatePerS(f64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchTrial {
    pub load: TrialLoad,
    pub duration_s: f64,
}

/// Reason why a trial is void: something other than the server was the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoidCause {
    Generator,
    /// The sink, to which the server passes the mail on.
    Sink,
    /// The host, if other programs or the hypervisor took its processors, or if its file descriptors or ports ran out.
    Host,
}

#[derive(Clone, Debug, PartialEq)]
pub enum TrialOutcome {
    Measured(TrialFigures),
    /// The generator, the sink or the host was the bottleneck, so the trial says nothing about the server.
    Void {
        cause: VoidCause,
        /// Messages per second that arrived although something other than the server slowed the trial down.
        delivered_per_s: f64,
        spent_s: f64,
    },
    /// Mail was lost or changed. A server must not do this at any rate, so the search ends.
    MailLost,
    Stopped,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TrialFigures {
    /// For each goal, the share of the due messages that were late, rejected or missing.
    pub loss_ratios: Vec<f64>,
    /// Messages per second that arrived while load was offered.
    pub delivered_per_s: f64,
    /// Growth of the backlog in messages per second, or `None` if nobody observed the backlog. The backlog consists of
    /// the messages that are due but not delivered yet.
    pub backlog_growth_per_s: Option<f64>,
    /// Set if all mail was delivered within a time limit after the load ended (in the bench, at most 5 s).
    pub is_drained: bool,
    /// Duration of the trial in seconds, including the wait for the last deliveries.
    pub spent_s: f64,
}

impl TrialFigures {
    /// Makes the figures of a trial in which nobody observed the server's backlog. Only the loss ratios then decide
    /// whether the trial is good.
    pub fn new(loss_ratios: Vec<f64>, delivered_per_s: f64) -> Self {
        Self { loss_ratios, delivered_per_s, backlog_growth_per_s: None, is_drained: true, spent_s: 0.0 }
    }

    /// Returns the share of messages that count as lost for the goal with this index. If the share is missing or NaN,
    /// all messages count as lost (1.0).
    pub(crate) fn loss_ratio(&self, goal: usize) -> f64 {
        let ratio = self.loss_ratios.get(goal).copied().filter(|ratio| !ratio.is_nan());
        ratio.map_or(1.0, |ratio| ratio.clamp(0.0, 1.0))
    }

    /// Returns true if the server's queue grew during the load, or was not empty soon after the load ended.
    pub fn is_backlogged(&self, rate_per_s: f64) -> bool {
        let is_growing = |growth: f64| growth.is_nan() || growth > rate_per_s * BACKLOG_GROWTH_LIMIT;
        !self.is_drained || self.backlog_growth_per_s.is_some_and(is_growing)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BacklogSample {
    pub at_s: f64,
    /// Number of messages that were due but not delivered yet.
    pub messages: f64,
}

/// Computes the growth of the backlog in messages per second, or returns `None` with fewer than three samples. It uses
/// the samples of the second half of the load, or the last four samples if that half has fewer. It sorts the slopes
/// between all pairs of samples, and returns the slope one third of the way up this list. A steadily growing queue
/// therefore shows its full slope, but a stall in a single sample has no effect, even if it is the last of three
/// samples.
pub fn backlog_growth(samples: &[BacklogSample], offered_s: f64) -> Option<f64> {
    let samples_from = |from_s: f64| {
        let is_meant =
            move |sample: &&BacklogSample| (from_s..=offered_s).contains(&sample.at_s) && sample.messages.is_finite();
        samples.iter().filter(is_meant).collect::<Vec<_>>()
    };
    let whole = samples_from(0.0);
    let mut late = samples_from(offered_s / 2.0);
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

/// Loads of the three confirmation trials, as shares of the capacity that the search found. At the first two loads, the
/// server must meet the goals. The last load shows the effect of an overload.
pub const CONFIRMATION_SHARES: [f64; 3] = [0.8, 1.0, 1.2];

const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfirmationTrial {
    pub share: f64,
    pub rate_per_s: f64,
    pub duration_s: f64,
}

/// Returns the three confirmation trials in an order that depends on the seed. In a fixed order, a server that becomes
/// slower over time would always be slowest at the same rate.
pub fn confirmation_trials(capacity_per_s: f64, duration_s: f64, seed: u64) -> [ConfirmationTrial; 3] {
    // Mix the seed with part of MurmurHash3's finalizer, so that neighbouring seeds give unrelated orders.
    let mut mixed = seed ^ (seed >> 33);
    mixed = mixed.wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^= mixed >> 33;
    let order = ORDERS[(mixed % ORDERS.len() as u64) as usize];
    order.map(|at| {
        let share = CONFIRMATION_SHARES[at];
        ConfirmationTrial { share, rate_per_s: capacity_per_s * share, duration_s }
    })
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
        // A backlog that existed at the beginning and then drained does not count as growth.
        let falls: Vec<_> = (0..=20).map(|at| sample(at, if at < 10 { 1_000.0 } else { 3.0 })).collect();
        assert_eq!(backlog_growth(&falls, 5.0), Some(0.0));
        assert_eq!(backlog_growth(&grows[..2], 5.0), None, "too few samples");
        let alike: Vec<_> = (0..5).map(|_| sample(16, 1.0)).collect();
        assert_eq!(backlog_growth(&alike, 5.0), None, "all at one moment");
    }

    /// A recorded trial: its name, the duration of its load in seconds, its intervals, and whether its backlog must
    /// count as growing.
    type RecordedTrial = (&'static str, f64, &'static [(f64, f64)], bool);

    /// Recorded trials of mailrun's relay on a host that was busy with builds. Each pair of numbers is one interval of
    /// a trial: the middle of the interval in seconds, and the median latency in milliseconds.
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

    #[test]
    fn all_three_shares_come_in_each_order() {
        let mut orders = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let trials = confirmation_trials(1_000.0, 60.0, seed);
            assert_eq!(trials, confirmation_trials(1_000.0, 60.0, seed), "the seed decides");
            let mut rates = trials.map(|trial| trial.rate_per_s as u64);
            orders.insert(rates);
            rates.sort_unstable();
            assert_eq!(rates, [800, 1_000, 1_200]);
        }
        assert_eq!(orders.len(), 6);
    }
}
