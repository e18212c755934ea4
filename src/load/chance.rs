//! Random choices: a function of the seed, the purpose and the message's number. So a seed gives the same mail
//! whichever session sends it, and in any order.
pub(crate) use journey::chance::{Chance, part_of};

/// Purpose of a random choice. Each has draws of its own: the size of message 7 says nothing about its recipients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Choice of a message from a set, or its length.
    Mail = 1,
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
