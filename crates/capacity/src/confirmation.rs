/// Shares of the capacity at which it is confirmed. The first two must hold; the last shows the effect of overload.
pub const CONFIRMATION_SHARES: [f64; 3] = [0.8, 1.0, 1.2];

const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfirmationTrial {
    pub share: f64,
    pub rate_per_s: f64,
    pub duration_s: f64,
}

/// The trials of a confirmation, in an order that depends on the seed. Otherwise a server that grows slower over time
/// would always do so at the highest rate.
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
