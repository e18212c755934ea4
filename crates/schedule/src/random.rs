//! Random choices. Each is a function of the seed, its purpose and the number of the message. The
//! same seed therefore gives the same mail, whichever session sends a message and in whatever
//! order.
pub use mailrun_measurement::seeded::{SeededRng, scale};

/// Purpose of a random choice. Each purpose has its own random numbers. For example, the size of
/// message 7 tells nothing about its recipients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomStream {
    /// Which message of a set is sent, or how long the message is.
    Message = 1,
    /// Number of recipients.
    Recipients,
    /// Number of messages on the connection that the message opens.
    Reuse,
    /// Pause of the session after the message.
    Think,
    /// Address of the sender.
    Sender,
    /// Addresses of the recipients.
    Recipient,
    /// Text of a generated message.
    Words,
    /// Envelope ID, with which the server names the message in a notification (DSN, RFC 3461).
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
