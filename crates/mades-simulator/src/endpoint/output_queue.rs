use crate::model::EndpointStep;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputQueue {
    Reply,
    Inbox,
    Event,
    /// A's inbox, which gets the acknowledgement documents.
    Documents,
}

impl OutputQueue {
    pub(super) const COUNT: usize = 4;
    pub(super) const ALL: [Self; Self::COUNT] = [Self::Reply, Self::Inbox, Self::Event, Self::Documents];

    /// Returns the queue for the message of a step. `None` if the step sends nothing.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendResult {
    Settled,
    Pending,
    Refused,
    NoRoom,
}
