//! The queues as the stand-in uses them, whether they are here or with a broker.
use super::EndpointError;
use super::remote::{Remote, RemoteDelivery};
use crate::api;
use crate::embedded::{self, Message, Outcome, QueueId, Queues};
use crate::standin::{Key, Step};
use std::sync::Arc;
use tokio::sync::Notify;

/// Destination of an output message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Reply,
    Inbox,
    Event,
}

impl Place {
    pub(super) const ALL: [Self; 3] = [Self::Reply, Self::Inbox, Self::Event];
}

/// Result of a message that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is in the queue for good.
    Settled,
    /// The result comes later.
    Taken,
    /// The queue will not have it.
    Refused,
    /// There is no room now.
    NoRoom,
}

/// A delivery that was taken out of the outbox.
#[derive(Debug)]
pub(super) enum Taken {
    Here(embedded::Letter),
    There(RemoteDelivery),
}

/// The queues.
pub(super) enum Port {
    Local(Local),
    Remote(Remote),
}

impl Port {
    /// The next message out of the outbox.
    pub(super) fn take(&mut self) -> Option<(Message, Taken)> {
        match self {
            Self::Local(local) => {
                let letter = local.queues.take(local.outbox)?;
                Some((letter.message.clone(), Taken::Here(letter)))
            }
            Self::Remote(remote) => remote.take().map(|(message, delivery)| (message, Taken::There(delivery))),
        }
    }

    pub(super) fn accept(&mut self, taken: Taken) {
        match (self, taken) {
            (Self::Local(local), Taken::Here(letter)) => local.queues.settle(letter, Outcome::Accepted),
            (Self::Remote(remote), Taken::There(delivery)) => remote.accept(delivery),
            (Self::Local(_), Taken::There(_)) | (Self::Remote(_), Taken::Here(_)) => {}
        }
    }

    pub(super) fn has_room(&mut self, place: Place) -> bool {
        match self {
            Self::Local(local) => local.has_room(place),
            Self::Remote(remote) => remote.has_room(place),
        }
    }

    pub(super) fn send(&mut self, place: Place, message: Message, token: (Key, Step), notice: Option<u64>) -> Sent {
        match self {
            Self::Local(local) => match local.queues.put(local.place(place), message, notice) {
                Ok(()) => Sent::Settled,
                Err(_) => Sent::NoRoom,
            },
            Self::Remote(remote) => remote.send(place, &message, token),
        }
    }

    /// The next message that was sent and is now settled.
    pub(super) fn next_settled(&mut self) -> Option<(Key, Step, Sent)> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => remote.next_settled(),
        }
    }

    /// The next message that B's application has accepted.
    pub(super) fn next_consumed(&mut self) -> Option<u64> {
        match self {
            Self::Local(local) => local.queues.next_consumed(),
            Self::Remote(_) => None,
        }
    }

    /// Waits until any of these may have something new.
    pub(super) async fn changed(&mut self) {
        match self {
            Self::Local(local) => local.told.notified().await,
            Self::Remote(remote) => remote.changed().await,
        }
    }

    pub(super) fn reconnects(&self) -> u64 {
        match self {
            Self::Local(_) => 0,
            Self::Remote(remote) => remote.reconnects(),
        }
    }
}

/// Queues of our own.
pub(super) struct Local {
    queues: Queues,
    outbox: QueueId,
    places: [QueueId; 3],
    told: Arc<Notify>,
}

impl Local {
    pub(super) fn open(queues: Queues, names: &api::Queues) -> Result<Self, EndpointError> {
        let named = |name: &str| {
            queues.named(name).ok_or_else(|| EndpointError::Plan(format!("{name:?} is not a valid queue name")))
        };
        let event = names.send_event.as_deref().unwrap_or(&names.reply);
        let places = [named(&names.reply)?, named(&names.inbox)?, named(event)?];
        let (outbox, told) = (named(&names.outbox)?, Arc::new(Notify::new()));
        if places.contains(&outbox) {
            return Err(EndpointError::Plan("the outbox must differ from the other queues".to_owned()));
        }
        queues.reserve(outbox, Arc::clone(&told));
        queues.tell_of_consumption(Arc::clone(&told));
        Ok(Self { queues, outbox, places, told })
    }

    fn place(&self, place: Place) -> QueueId {
        self.places[place as usize]
    }

    fn has_room(&self, place: Place) -> bool {
        self.queues.has_room_or_tell(self.place(place), &self.told)
    }
}
