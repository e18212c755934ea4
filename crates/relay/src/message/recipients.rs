//! Recipients of a message, grouped by next hop.
use crate::routing::NextHop;

/// Recipients of a message at one next hop.
pub(crate) struct RecipientGroup {
    /// The next hop itself: its number may be another's by the time that the message is stored.
    pub(crate) next_hop: NextHop,
    /// Recipients by their numbers in the envelope.
    pub(crate) recipients: Vec<u16>,
}
