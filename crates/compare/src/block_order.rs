//! The order of runs. Each block has all contestants in one order and then in reverse, so that a drifting host favours
//! nobody (for two: ABBA BAAB …).
use mailrun_journey::seeded::SeededRng;

/// Distinguishes these random numbers from others of the same seed.
const PURPOSE: u64 = 0x726f_756e;
const BLOCK: usize = 2;

/// A round, in which each contestant runs once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundPlan {
    /// Indexes of the contestants, in running order.
    pub order: Vec<usize>,
    /// Set for the first block, which does not count.
    pub is_warm_up: bool,
}

/// The order of a comparison's rounds. An invalid round is repeated in the same order.
#[derive(Clone, Debug)]
pub struct BlockOrder {
    contestants: usize,
    wanted: usize,
    seed: u64,
    done: usize,
    repeated: usize,
    /// More invalid rounds end the comparison.
    max_repeated: usize,
}

impl BlockOrder {
    /// Plans `wanted` counted rounds of so many contestants.
    pub fn new(contestants: usize, wanted: usize, seed: u64) -> Self {
        Self { contestants, wanted, seed, done: 0, repeated: 0, max_repeated: wanted.max(BLOCK) }
    }

    /// The next round, or `None` if all are done or too many were invalid.
    pub fn next_round(&self) -> Option<RoundPlan> {
        let is_over = self.done >= self.wanted + BLOCK || self.repeated > self.max_repeated;
        (!is_over).then(|| RoundPlan { order: self.order(), is_warm_up: self.done < BLOCK })
    }

    pub fn finish_round(&mut self, is_valid: bool) {
        if is_valid {
            self.done += 1;
        } else {
            self.repeated += 1;
        }
    }

    pub fn counted(&self) -> usize {
        self.done.saturating_sub(BLOCK)
    }

    pub fn repeated(&self) -> usize {
        self.repeated
    }

    fn order(&self) -> Vec<usize> {
        let block = self.done / BLOCK;
        let mut order: Vec<usize> = (0..self.contestants).collect();
        if self.contestants > 2 {
            let mut random = SeededRng::new(self.seed, PURPOSE, block as u64);
            for place in (1..order.len()).rev() {
                order.swap(place, random.below(place as u64 + 1) as usize);
            }
        } else if block % 2 == 1 {
            order.reverse();
        }
        if self.done % BLOCK == 1 {
            order.reverse();
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_contestants_run_abba_baab() {
        let mut rounds = BlockOrder::new(2, 4, 1);
        let mut shown = String::new();
        while let Some(round) = rounds.next_round() {
            shown.extend(round.order.iter().map(|place| ['A', 'B'][*place]));
            shown.push(if round.is_warm_up { 'w' } else { ' ' });
            rounds.finish_round(true);
        }
        assert_eq!(shown, "ABwBAwBA AB AB BA ");
        assert_eq!(rounds.counted(), 4);
    }

    #[test]
    fn an_invalid_round_is_repeated_in_the_same_order_and_not_for_ever() {
        let mut rounds = BlockOrder::new(3, 4, 1);
        let first = rounds.next_round().unwrap();
        rounds.finish_round(false);
        assert_eq!(rounds.next_round().unwrap(), first);
        rounds.finish_round(true);
        let second = rounds.next_round().unwrap();
        assert_eq!(second.order, first.order.iter().rev().copied().collect::<Vec<_>>());
        for _ in 0..4 {
            rounds.finish_round(false);
        }
        assert_eq!((rounds.next_round(), rounds.repeated(), rounds.counted()), (None, 5, 0));
    }
}
