//! Queues for output messages, and results of a message that was sent to one.
use crate::simulator::EndpointStep;

/// Destination of an output message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputQueue {
    Reply,
    Inbox,
    Event,
    /// A's inbox, for acknowledgement documents.
    Documents,
}

impl OutputQueue {
    pub(super) const COUNT: usize = 4;
    pub(super) const ALL: [Self; Self::COUNT] = [Self::Reply, Self::Inbox, Self::Event, Self::Documents];

    /// The queue for what a step sends; `None` if it sends nothing.
    pub(super) fn of_step(step: EndpointStep) -> Option<Self> {
        match step {
            EndpointStep::Accept | EndpointStep::Acknowledge { .. } => None,
            EndpointStep::Reply(_) => Some(Self::Reply),
            EndpointStep::Inbox { .. } => Some(Self::Inbox),
            EndpointStep::Event(_) => Some(Self::Event),
            EndpointStep::Document { .. } => Some(Self::Documents),
        }
    }
}

/// Result of a message that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendResult {
    /// It is in the queue for good.
    Settled,
    /// The result comes later.
    Pending,
    /// The queue will not have it.
    Refused,
    /// There is no room now.
    NoRoom,
}
