//! What a sink is told to do wrong, so that the ruler can be tested: all of it answered 250.
//!
//! Chance is a function of the seed and the message's number, so the same seed does the same to the same messages,
//! in whatever order they come.
use std::time::Duration;

/// Faults, none by default. Probabilities are from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Faults {
    /// Answered 250 and forgotten.
    pub(crate) drop: f64,
    /// Counted twice.
    pub(crate) duplicate: f64,
    /// A byte of the body changed before it is looked at.
    pub(crate) corrupt: f64,
    /// Before each answer to the final dot.
    pub(crate) delay: Duration,
    /// A time in which no final dot is answered.
    pub(crate) stall: Option<Stall>,
    pub(crate) seed: u64,
}

/// A window of silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    /// Since the first connection.
    pub(crate) at: Duration,
    /// How long.
    pub(crate) length: Duration,
}

/// What is to happen to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Treatment {
    Keep,
    Drop,
    Duplicate,
}

impl Faults {
    /// What happens to the message of that number.
    pub(super) fn treatment(&self, number: u64) -> Treatment {
        if self.drop > 0.0 && self.chance(1, number) < self.drop {
            Treatment::Drop
        } else if self.duplicate > 0.0 && self.chance(2, number) < self.duplicate {
            Treatment::Duplicate
        } else {
            Treatment::Keep
        }
    }

    /// Whether the message that a worker reads as its `number`th is changed.
    pub(super) fn corrupts(&self, number: u64) -> bool {
        self.corrupt > 0.0 && self.chance(3, number) < self.corrupt
    }

    /// How long the answer is held back, `since` the first connection.
    pub(super) fn hold(&self, since: Duration) -> Duration {
        let stalled = self.stall.filter(|stall| (stall.at..stall.at + stall.length).contains(&since));
        self.delay.max(stalled.map_or(Duration::ZERO, |stall| stall.at + stall.length - since))
    }

    /// In the words of the options, for the record.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (option, probability) in [("drop", self.drop), ("duplicate", self.duplicate), ("corrupt", self.corrupt)] {
            if probability > 0.0 {
                words.push(format!("--{option} {probability}"));
            }
        }
        if !self.delay.is_zero() {
            words.push(format!("--delay {:?}", self.delay));
        }
        if let Some(stall) = self.stall {
            words.push(format!("--stall {:?},{:?}", stall.at, stall.length));
        }
        words
    }

    /// A number from 0 to 1 that depends on nothing but the seed, the kind of fault and the message.
    fn chance(&self, kind: u64, number: u64) -> f64 {
        let mixed = mix(mix(self.seed ^ kind.rotate_left(32)) ^ number);
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// SplitMix64's output function (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_are_as_told_and_repeat_with_the_seed() {
        let faults = Faults { drop: 0.001, duplicate: 0.01, corrupt: 0.1, seed: 1, ..Faults::default() };
        let count = |treatment| (0..200_000).filter(|number| faults.treatment(*number) == treatment).count();
        assert!((150..250).contains(&count(Treatment::Drop)), "{}", count(Treatment::Drop));
        assert!((1800..2200).contains(&count(Treatment::Duplicate)));
        let corrupted = (0..200_000).filter(|number| faults.corrupts(*number)).count();
        assert!((19_000..21_000).contains(&corrupted));
        let other = Faults { seed: 2, ..faults.clone() };
        assert!((0..10_000).any(|number| faults.treatment(number) != other.treatment(number)));
        assert!((0..1000).all(|number| Faults::default().treatment(number) == Treatment::Keep));
        assert!((0..1000).all(|number| Faults { drop: 1.0, ..faults.clone() }.treatment(number) == Treatment::Drop));
    }

    #[test]
    fn a_stall_holds_what_falls_into_it_until_its_end() {
        let second = Duration::from_secs(1);
        let faults =
            Faults { delay: second / 10, stall: Some(Stall { at: second * 2, length: second }), ..Faults::default() };
        assert_eq!(faults.hold(second), second / 10);
        assert_eq!(faults.hold(second * 5 / 2), second / 2);
        assert_eq!(faults.hold(second * 3), second / 10);
    }
}
