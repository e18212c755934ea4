//! Chance: a function of the seed, of what it is for and of the message's number, so that a seed gives the same faults
//! in whatever order messages come.

/// What is left to chance. Each has draws of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Error = 1,
    NoReply,
    Loss,
    Failure,
    Duplicate,
    Corruption,
    Reordering,
    Accept,
    Network,
    Acknowledge,
    Receive,
    Again,
    Lateness,
}

/// Draws for one purpose and one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chance(u64);

/// 2^64 over the golden ratio: multiples of it lie far apart.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Chance {
    /// The draws of the message with that number.
    pub(super) fn new(seed: u64, purpose: Purpose, number: u64) -> Self {
        Self(mix(mix(seed.wrapping_add((purpose as u64).wrapping_mul(GOLDEN))) ^ number))
    }

    /// The next draw: 64 even bits (the generator SplitMix64).
    pub(super) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// The next draw, above 0 and up to 1.
    pub(super) fn unit(&mut self) -> f64 {
        ((self.draw() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Whether what has that probability happens.
    pub(super) fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() <= probability
    }
}

/// A number for a text: for messages that have none.
pub(super) fn number_of(text: &[u8]) -> u64 {
    text.iter().fold(GOLDEN, |number, octet| mix(number ^ u64::from(*octet)))
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
    fn a_probability_is_kept() {
        let happened = |probability| {
            (0..100_000).filter(|number| Chance::new(1, Purpose::Loss, *number).happens(probability)).count()
        };
        assert_eq!((happened(0.0), happened(1.0)), (0, 100_000));
        let tenth = happened(0.1);
        assert!((9_600..10_400).contains(&tenth), "{tenth}");
    }

    #[test]
    fn purposes_and_seeds_have_draws_of_their_own() {
        let draw = |seed, purpose| Chance::new(seed, purpose, 7).draw();
        assert_ne!(draw(1, Purpose::Loss), draw(1, Purpose::Error));
        assert_ne!(draw(1, Purpose::Loss), draw(2, Purpose::Loss));
        assert_ne!(number_of(b"a"), number_of(b"b"));
    }
}
