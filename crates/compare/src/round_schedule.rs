//! The rounds of a comparison: how many there are, and in which order the contestants run in each round.
use mailrun_measurement::seeded::SeededRng;

/// Number that goes into the seed, so that the random orders are independent of other random numbers in the comparison.
const PURPOSE: u64 = 0x726f_756e;
const BLOCK: usize = 2;

/// Way in which the order of the contestants changes from round to round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundTurning {
    /// Each block has two rounds, the second in the reverse order of the first, so that a host that becomes slower or
    /// faster favours nobody. For example, two contestants run ABBA BAAB …. With three or more contestants, the first
    /// round of each block has a random order. The first block warms up the host and does not count.
    Blocks { seed: u64 },
    /// The list of contestants consists of groups of `size` neighbours, which are compared with each other. Every
    /// second round runs each group in reverse order.
    Groups { size: usize },
    /// Every round runs the contestants in the order of the list.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundPlan {
    /// Indexes of the contestants, in running order.
    pub order: Vec<usize>,
    pub is_warm_up: bool,
}

/// Plans the rounds of a comparison one by one. An invalid round is repeated with its contestants in the same order.
#[derive(Clone, Debug)]
pub struct RoundSchedule {
    contestants: usize,
    wanted: usize,
    turning: RoundTurning,
    done: usize,
    repeated: usize,
    /// Maximum number of invalid rounds, each of which is repeated. One more invalid round ends the comparison.
    max_repeated: usize,
}

impl RoundSchedule {
    /// Plans `wanted` rounds whose figures count, preceded by the rounds of the warm-up.
    pub fn new(contestants: usize, wanted: usize, turning: RoundTurning) -> Self {
        Self { contestants, wanted, turning, done: 0, repeated: 0, max_repeated: wanted.max(BLOCK) }
    }

    /// Returns the next round, or `None` if all rounds are done or too many were invalid.
    pub fn next_round(&self) -> Option<RoundPlan> {
        let is_over = self.done >= self.wanted + self.warm_up() || self.repeated > self.max_repeated;
        (!is_over).then(|| RoundPlan { order: self.order(), is_warm_up: self.done < self.warm_up() })
    }

    pub fn finish_round(&mut self, is_valid: bool) {
        if is_valid {
            self.done += 1;
        } else {
            self.repeated += 1;
        }
    }

    pub fn wanted(&self) -> usize {
        self.wanted
    }

    pub fn counted(&self) -> usize {
        self.done.saturating_sub(self.warm_up())
    }

    pub fn repeated(&self) -> usize {
        self.repeated
    }

    fn warm_up(&self) -> usize {
        if matches!(self.turning, RoundTurning::Blocks { .. }) { BLOCK } else { 0 }
    }

    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.contestants).collect();
        match self.turning {
            RoundTurning::Blocks { seed } => {
                let block = self.done / BLOCK;
                // Three or more contestants run in a new random order in each block of two rounds. Two contestants have
                // only two orders, so successive blocks use them in turn.
                if self.contestants > 2 {
                    let mut random = SeededRng::new(seed, PURPOSE, block as u64);
                    for place in (1..order.len()).rev() {
                        order.swap(place, random.below(place as u64 + 1) as usize);
                    }
                } else if block % 2 == 1 {
                    order.reverse();
                }
                if self.done % BLOCK == 1 {
                    order.reverse();
                }
            }
            RoundTurning::Groups { size } if self.done % 2 == 1 => {
                order.chunks_mut(size.max(1)).for_each(<[usize]>::reverse);
            }
            RoundTurning::Groups { .. } | RoundTurning::None => {}
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_contestants_run_abba_baab() {
        let mut rounds = RoundSchedule::new(2, 4, RoundTurning::Blocks { seed: 1 });
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
        let mut rounds = RoundSchedule::new(3, 4, RoundTurning::Blocks { seed: 1 });
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

    #[test]
    fn the_compared_are_turned_in_every_other_round() {
        let orders = |contestants, rounds, turning| {
            let mut schedule = RoundSchedule::new(contestants, rounds, turning);
            let mut orders = Vec::new();
            while let Some(round) = schedule.next_round() {
                assert!(!round.is_warm_up, "every round counts");
                orders.extend(round.order);
                schedule.finish_round(true);
            }
            assert_eq!(schedule.counted(), rounds);
            orders
        };
        let pairs = RoundTurning::Groups { size: 2 };
        assert_eq!(orders(4, 1, pairs), [0, 1, 2, 3]);
        assert_eq!(orders(4, 2, pairs), [0, 1, 2, 3, 1, 0, 3, 2]);
        assert_eq!(orders(2, 3, pairs), [0, 1, 1, 0, 0, 1]);
        assert!(orders(0, 3, RoundTurning::Groups { size: 0 }).is_empty());
        assert_eq!(orders(2, 3, RoundTurning::None), [0, 1, 0, 1, 0, 1]);
    }
}
