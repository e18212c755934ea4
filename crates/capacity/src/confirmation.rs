//! The confirmation of a capacity: longer trials below, at and above it.

/// Shares of the capacity that are confirmed: the first two have to hold, the last shows what overload does.
pub const CONFIRMATION_SHARES: [f64; 3] = [0.8, 1.0, 1.2];

/// Orders of the three trials.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// A trial of the confirmation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfirmationTrial {
    /// Share of the capacity.
    pub share: f64,
    /// Messages per second.
    pub rate_per_s: f64,
    /// Time for which they are offered.
    pub duration_s: f64,
}

/// Returns the trials of a confirmation in an order that follows from the seed: so a server that grows slower with time
/// does not always do so at the highest rate.
pub fn confirmation_trials(capacity_per_s: f64, duration_s: f64, seed: u64) -> [ConfirmationTrial; 3] {
    // The finalizer of MurmurHash3: neighbouring seeds give unrelated orders.
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
