//! Random numbers that depend only on a seed, a purpose and an item's number, for example the number of a message. The
//! same seed therefore gives the same load, in whatever order the messages are created.

/// Random values for one purpose and one item, for example the recipients of message 17. The generator is SplitMix64,
/// which starts in a different state for each pair of purpose and item.
#[derive(Clone, Copy, Debug)]
pub struct SeededRng(u64);

/// 2^64 divided by the golden ratio. SplitMix64 adds this number to its state after each draw, because the multiples of
/// this number are far apart (mod 2^64).
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl SeededRng {
    /// Creates the generator for one item, such as a message. `number` is the item's number. Generators for other
    /// purposes, such as the size or the recipients of the same message, give independent values.
    #[inline]
    pub fn new(seed: u64, purpose: impl Into<u64>, number: u64) -> Self {
        Self(mix(mix(seed.wrapping_add(purpose.into().wrapping_mul(GOLDEN_GAMMA))) ^ number))
    }

    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let draw = splitmix64(self.0);
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        draw
    }

    #[inline]
    pub fn below(&mut self, count: u64) -> u64 {
        scale(self.next_u64(), count)
    }

    /// Returns the next random number, above 0 and at most 1. It is never 0, so that its logarithm is finite.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    #[inline]
    pub fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() <= probability
    }
}

/// Returns the number that SplitMix64 draws in this state (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, 2014).
#[inline]
pub fn splitmix64(state: u64) -> u64 {
    mix(state.wrapping_add(GOLDEN_GAMMA))
}

/// Maps 64 uniform bits to a number that is at least 0 and below `count`.
#[inline]
pub fn scale(draw: u64, count: u64) -> u64 {
    ((u128::from(draw) * u128::from(count)) >> 64) as u64
}

/// Derives a number from a text, for random values of items that have a name instead of a number.
pub fn hash_text(text: &[u8]) -> u64 {
    text.iter().fold(GOLDEN_GAMMA, |number, octet| mix(number ^ u64::from(*octet)))
}

/// Mixes the bits of a number, so that every bit of the result depends on every bit of the number.
#[inline]
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_stay_what_they_are() {
        // The first number is the output of SplitMix64 for the seed 0. The other numbers must never change, because
        // recorded seeds must reproduce their loads.
        assert_eq!(SeededRng(0).next_u64(), 0xe220_a839_7b1d_cdaf);
        let draws = |seed, purpose: u64, number| {
            let mut rng = SeededRng::new(seed, purpose, number);
            [rng.next_u64(), rng.next_u64(), rng.next_u64()]
        };
        assert_eq!(draws(1, 1, 7), [0xcc48_a0e2_d1c7_7be6, 0x828f_1fde_795e_05d8, 0x56d1_3021_8c21_b41e]);
        assert_eq!(draws(42, 8, 1_000_000), [0x99b3_3154_ee4b_a909, 0x6af7_c034_ef1e_b580, 0xd853_3893_4cdc_ebb3]);
        assert_eq!(hash_text(b"id-17"), 0xf891_1d91_c2c3_a129);
    }

    #[test]
    fn a_seed_gives_the_same_and_another_seed_purpose_or_number_something_else() {
        let draw = |seed, purpose: u64, number| SeededRng::new(seed, purpose, number).next_u64();
        assert_eq!(draw(1, 1, 7), draw(1, 1, 7));
        for (seed, purpose, number) in [(2, 1, 7), (1, 3, 7), (1, 1, 8)] {
            assert_ne!(draw(1, 1, 7), draw(seed, purpose, number));
        }
        assert_ne!(hash_text(b"a"), hash_text(b"b"));
    }

    #[test]
    fn draws_of_consecutive_numbers_are_even() {
        let mut counts = [0_u32; 10];
        (0..100_000).for_each(|number| counts[SeededRng::new(1, 1_u64, number).below(10) as usize] += 1);
        // On average, each of the ten classes gets 10,000 of the 100,000 draws, with a standard deviation of
        // √(100,000 × 0.1 × 0.9) = 95. The limits are five deviations away, so fair draws hardly ever exceed them.
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_probability_is_kept() {
        let count =
            |probability| (0..100_000).filter(|number| SeededRng::new(1, 3_u64, *number).happens(probability)).count();
        assert_eq!((count(0.0), count(1.0)), (0, 100_000));
        let tenth = count(0.1);
        assert!((9_600..10_400).contains(&tenth), "{tenth}");
    }

    #[test]
    fn a_part_is_below_the_count() {
        for count in [1, 2, 3, 1_000, u64::MAX] {
            assert_eq!((scale(0, count), scale(u64::MAX, count)), (0, count - 1));
        }
    }
}
