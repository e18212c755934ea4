//! The highest rate that is sustained, found in a few steps: up or down from an estimate until one rate held and a higher
//! one did not, then between these two.

/// Factor of a step where no limit is known on that side.
const STEP_FACTOR: f64 = 1.25;
/// Precision of the search: steps of a few seconds allow no better.
const PRECISION: f64 = 1.05;

/// A search on its way.
#[derive(Clone, Debug)]
pub(super) struct Search {
    estimate: f64,
    /// The highest that held.
    held: Option<f64>,
    /// The lowest above it that did not.
    failed: Option<f64>,
    steps_left: u32,
}

impl Search {
    pub(super) fn new(estimate: f64, steps: u32) -> Self {
        Self { estimate, held: None, failed: None, steps_left: steps }
    }

    /// The rate to try next; `None` if it is known well enough, or has taken enough steps.
    pub(super) fn next(&self) -> Option<f64> {
        if self.steps_left == 0 {
            return None;
        }
        match (self.held, self.failed) {
            (None, None) => Some(self.estimate),
            (Some(held), None) => Some(held * STEP_FACTOR),
            (None, Some(failed)) => Some(failed / STEP_FACTOR),
            (Some(held), Some(failed)) if failed / held <= PRECISION => None,
            (Some(held), Some(failed)) => Some((held * failed).sqrt()),
        }
    }

    /// Records the result of a rate.
    pub(super) fn record(&mut self, rate_per_s: f64, is_sustained: bool) {
        self.steps_left = self.steps_left.saturating_sub(1);
        if is_sustained {
            self.held = Some(self.held.map_or(rate_per_s, |held| held.max(rate_per_s)));
        } else {
            self.failed = Some(self.failed.map_or(rate_per_s, |failed| failed.min(rate_per_s)));
        }
    }

    /// The highest that was sustained; `None` if none was.
    pub(super) fn found(&self) -> Option<f64> {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn search(limit: f64, estimate: f64, steps: u32) -> (Option<f64>, u32) {
        let mut search = Search::new(estimate, steps);
        let mut taken = 0;
        while let Some(rate) = search.next() {
            search.record(rate, rate <= limit);
            taken += 1;
        }
        (search.found(), taken)
    }

    #[test]
    fn a_good_estimate_needs_few_steps() {
        let (found, steps) = search(10_000.0, 10_000.0, 20);
        assert!(found.is_some_and(|found| (9_500.0..=10_000.0).contains(&found)), "{found:?}");
        assert!(steps <= 6, "{steps}");
        assert_eq!(search(1.0, 1_000.0, 4), (None, 4), "it gives up");
    }

    proptest! {
        /// Wherever the limit is, what is found held, and is as near as was promised if there were steps enough.
        #[test]
        fn what_is_found_held_and_is_near(limit in 10.0..100_000.0_f64, off in 0.2..4.0_f64) {
            let (found, steps) = search(limit, limit * off, 40);
            let found = found.expect("forty steps are enough");
            prop_assert!(found <= limit && limit / found <= PRECISION, "{found} of {limit} in {steps} steps");
            prop_assert!(steps <= 16);
        }
    }
}
