//! Chance: a function of the seed, of what it is for and of the message's number, so that a seed gives the same mail
//! whichever session sends it, and in whatever order.
pub(crate) use journey::chance::{Chance, part_of};

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

impl From<Purpose> for u64 {
    fn from(purpose: Purpose) -> Self {
        purpose as Self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_have_draws_of_their_own() {
        let draw = |purpose| Chance::new(1, purpose, 7).draw();
        assert_eq!(draw(Purpose::Mail), 0xcc48_a0e2_d1c7_7be6, "a seed goes on meaning what it meant");
        assert_ne!(draw(Purpose::Mail), draw(Purpose::Recipients));
    }
}
