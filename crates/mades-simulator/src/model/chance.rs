//! Makes random decisions. Each decision depends only on the seed, its purpose and the number of
//! the message. A seed therefore yields the same faults, in whatever order the messages arrive.
pub(super) use mailrun_measurement::seeded::{SeededRng, hash_text};

/// Random decisions of the simulator. Each of them uses a separate sequence of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RandomDecision {
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
    Document,
    DocumentRejection,
}

impl From<RandomDecision> for u64 {
    fn from(purpose: RandomDecision) -> Self {
        purpose as Self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_have_draws_of_their_own() {
        let draw = |purpose| SeededRng::new(1, purpose, 7).next_u64();
        assert_eq!(draw(RandomDecision::Error), 0xcc48_a0e2_d1c7_7be6, "a seed goes on meaning what it meant");
        assert_ne!(draw(RandomDecision::Error), draw(RandomDecision::NoReply));
    }
}
