//! Chance: a function of the seed, of what it is for and of the message's number, so that a seed gives the same mail
//! whichever session sends it, and in whatever order.

/// What is left to chance. Each has draws of its own: the size of message 7 says nothing about its recipients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Which message of a set, or how long it is.
    Mail = 1,
    /// How many recipients.
    Recipients,
    /// How many messages the connection carries that the message opens.
    Reuse,
    /// How long the session rests after it.
    Think,
    /// The sender's address.
    Sender,
    /// The recipients' addresses.
    Recipient,
    /// What a generated message says.
    Words,
    /// What the server is to call the message in a notification.
    EnvelopeId,
}

/// Draws for one purpose and one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chance(u64);

/// 2^64 over the golden ratio: multiples of it lie far apart.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Chance {
    /// The draws of the message with that number.
    pub(crate) fn new(seed: u64, purpose: Purpose, number: u64) -> Self {
        Self(mix(mix(seed.wrapping_add((purpose as u64).wrapping_mul(GOLDEN))) ^ number))
    }

    /// The next draw: 64 even bits (the generator SplitMix64).
    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// The next draw, from 0 to below `count`.
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        part_of(self.draw(), count)
    }
}

/// 64 even bits as a number from 0 to below `count`.
pub(crate) fn part_of(draw: u64, count: u64) -> u64 {
    ((u128::from(draw) * u128::from(count)) >> 64) as u64
}

/// Every bit of the result depends on every bit of the number.
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_and_another_seed_purpose_or_number_something_else() {
        let draw = |seed, purpose, number| Chance::new(seed, purpose, number).draw();
        assert_eq!(draw(1, Purpose::Mail, 7), draw(1, Purpose::Mail, 7));
        for (seed, purpose, number) in [(2, Purpose::Mail, 7), (1, Purpose::Reuse, 7), (1, Purpose::Mail, 8)] {
            assert_ne!(draw(1, Purpose::Mail, 7), draw(seed, purpose, number));
        }
    }

    #[test]
    fn draws_of_consecutive_numbers_are_even() {
        let mut counts = [0_u32; 10];
        (0..100_000).for_each(|number| counts[Chance::new(1, Purpose::Mail, number).below(10) as usize] += 1);
        // Of 100,000 in ten classes each has 10,000 with a deviation of 95.
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_part_is_below_the_count() {
        for count in [1, 2, 3, 1_000, u64::MAX] {
            assert_eq!((part_of(0, count), part_of(u64::MAX, count)), (0, count - 1));
        }
    }
}
