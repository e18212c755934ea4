//! Random choices: a function of the seed, the purpose and the message's number. So a seed gives the same mail
//! whichever session sends it, and in any order.
pub use mailrun_journey::seeded::{SeededRng, scale};

/// Purpose of a random choice. Each has draws of its own: the size of message 7 says nothing about its recipients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomStream {
    /// Choice of a message from a set, or its length.
    Message = 1,
    /// Number of recipients.
    Recipients,
    /// Number of messages on the connection that the message opens.
    Reuse,
    /// Pause of the session after the message.
    Think,
    /// The sender's address.
    Sender,
    /// The recipients' addresses.
    Recipient,
    /// Text of a generated message.
    Words,
    /// Envelope id by which the server names the message in a notification.
    EnvelopeId,
}

impl From<RandomStream> for u64 {
    fn from(purpose: RandomStream) -> Self {
        purpose as Self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_have_draws_of_their_own() {
        let draw = |purpose| SeededRng::new(1, purpose, 7).next_u64();
        assert_eq!(draw(RandomStream::Message), 0xcc48_a0e2_d1c7_7be6, "a seed goes on meaning what it meant");
        assert_ne!(draw(RandomStream::Message), draw(RandomStream::Recipients));
    }
}
