//! Random numbers for `-W command:delay:odds`. The generator returns the numbers of glibc's rand(3), so that the same
//! command line leads to the same delays as with Postfix's smtp-sink.
use std::cell::RefCell;
use std::collections::VecDeque;

const DEGREE: usize = 31;
const SEPARATION: usize = 3;
/// Number of values that glibc discards after seeding.
const DISCARDED_NUMBERS: usize = 310;

/// Additive feedback generator of glibc. Each number is the sum of the numbers 3 and 31 places before it. The generator
/// returns the sum without its lowest bit.
#[derive(Debug)]
pub(super) struct GlibcRng(RefCell<VecDeque<u32>>);

impl GlibcRng {
    /// Seed 1 gives the numbers that a C program gets if it does not call srand(3).
    pub(super) fn new(seed: u32) -> Self {
        let mut word = i64::from(seed.max(1) as i32);
        let mut words = VecDeque::from([word as u32]);
        for _ in 1..DEGREE {
            // Fill the table with Park and Miller's generator, and make a negative result positive, as glibc does.
            word = word * 16807 % 2_147_483_647;
            word += if word < 0 { 2_147_483_647 } else { 0 };
            words.push_back(word as u32);
        }
        // glibc first adds up the fourth and the first number of the table, so rotate the table to begin with the
        // fourth number.
        words.rotate_left(SEPARATION);
        let rng = Self(RefCell::new(words));
        for _ in 0..DISCARDED_NUMBERS {
            rng.next();
        }
        rng
    }

    /// Returns the next number of rand(3), from 0 to 2³¹ − 1.
    fn next(&self) -> u32 {
        let mut words = self.0.borrow_mut();
        let far = words.pop_front().unwrap_or_default();
        let sum = far.wrapping_add(words[DEGREE - 1 - SEPARATION]);
        words.push_back(sum);
        sum >> 1
    }

    pub(super) fn percent(&self) -> u32 {
        ((u64::from(self.next()) * 100) >> 31) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_an_unseeded_c_program() {
        let rng = GlibcRng::new(1);
        let numbers: Vec<u32> = (0..6).map(|_| rng.next()).collect();
        assert_eq!(numbers, [1_804_289_383, 846_930_886, 1_681_692_777, 1_714_636_915, 1_957_747_793, 424_238_335]);
    }

    #[test]
    fn the_dice_is_fair_enough() {
        let rng = GlibcRng::new(77);
        let mut seen = [0; 100];
        (0..100_000).for_each(|_| seen[rng.percent() as usize] += 1);
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
    }
}
