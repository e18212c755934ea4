//! The queues of the simulator, in this process or at a broker.
use super::remote::{BrokerDelivery, BrokerQueues, EndpointError, OutputQueue, SendResult};
use crate::embedded::{self, DeliveryOutcome, EncodedMessage, MemoryQueues, QueueIndex};
use crate::model::{EndpointStep, MessageKey};
use mailrun_mades::api;
use std::sync::Arc;
use tokio::sync::Notify;

#[derive(Debug)]
pub(super) enum TakenDelivery {
    Embedded(embedded::EnqueuedMessage),
    Broker(BrokerDelivery),
}

pub(super) enum EndpointQueues {
    Embedded(EmbeddedQueues),
    Broker(BrokerQueues),
}

impl EndpointQueues {
    /// Returns true if `take` would return a message.
    pub(super) fn has_message(&mut self) -> bool {
        match self {
            Self::Embedded(_) => self.waiting() > 0,
            Self::Broker(remote) => remote.has_message(),
        }
    }

    pub(super) fn take(&mut self) -> Option<(EncodedMessage, TakenDelivery)> {
        match self {
            Self::Embedded(local) => {
                let queued = local.queues.take(local.outbox)?;
                Some((queued.message.clone(), TakenDelivery::Embedded(queued)))
            }
            Self::Broker(remote) => remote.take().map(|(message, delivery)| (message, TakenDelivery::Broker(delivery))),
        }
    }

    pub(super) fn accept(&mut self, delivery: TakenDelivery) {
        match (self, delivery) {
            (Self::Embedded(local), TakenDelivery::Embedded(queued)) => {
                local.queues.settle(queued, DeliveryOutcome::Accepted)
            }
            (Self::Broker(remote), TakenDelivery::Broker(delivery)) => remote.accept(delivery),
            (Self::Embedded(_), TakenDelivery::Broker(_)) | (Self::Broker(_), TakenDelivery::Embedded(_)) => {}
        }
    }

    pub(super) fn has_room(&mut self, queue: OutputQueue) -> bool {
        match self {
            Self::Embedded(local) => local.has_room(queue),
            Self::Broker(remote) => remote.has_room(queue),
        }
    }

    pub(super) fn send(
        &mut self,
        queue: OutputQueue,
        message: EncodedMessage,
        token: (MessageKey, EndpointStep),
        confirm_id: Option<u64>,
    ) -> SendResult {
        match self {
            Self::Embedded(local) => match local.queues.put(local.output(queue), message, confirm_id) {
                Ok(()) => SendResult::Settled,
                Err(_) => SendResult::NoRoom,
            },
            Self::Broker(remote) => remote.send(queue, message, token),
        }
    }

    /// Returns the next sent message that the broker has accepted or rejected. Always `None` for queues in this
    /// process, for which `send` returns the result at once.
    pub(super) fn next_settled(&mut self) -> Option<(MessageKey, EndpointStep, SendResult)> {
        match self {
            Self::Embedded(_) => None,
            Self::Broker(remote) => remote.next_settled(),
        }
    }

    /// Returns the next message that B's application has accepted or rejected. Always `None` for a broker, because
    /// brokers do not report what a consumer does with a message.
    pub(super) fn next_consumed(&mut self) -> Option<(u64, DeliveryOutcome)> {
        match self {
            Self::Embedded(local) => local.queues.next_consumed(),
            Self::Broker(_) => None,
        }
    }

    /// Waits until `take`, `next_settled`, `next_consumed` or `has_room` may return something new.
    pub(super) async fn changed(&mut self) {
        match self {
            Self::Embedded(local) => local.notify.notified().await,
            Self::Broker(remote) => remote.changed().await,
        }
    }

    /// Returns the number of messages in the outbox, or 0 for an outbox at a broker, where the number is unknown.
    pub(super) fn waiting(&self) -> u64 {
        match self {
            Self::Embedded(local) => local.queues.counts(local.outbox).waiting as u64,
            Self::Broker(_) => 0,
        }
    }

    /// Returns the error that ended the links to a broker for good, if there was one.
    pub(super) fn take_failure(&mut self) -> Option<mailrun_mades::Error> {
        match self {
            Self::Embedded(_) => None,
            Self::Broker(remote) => remote.take_failure(),
        }
    }

    pub(super) fn reconnects(&self) -> u64 {
        match self {
            Self::Embedded(_) => 0,
            Self::Broker(remote) => remote.reconnects(),
        }
    }
}

pub(super) struct EmbeddedQueues {
    queues: MemoryQueues,
    outbox: QueueIndex,
    outputs: [QueueIndex; OutputQueue::COUNT],
    notify: Arc<Notify>,
}

impl EmbeddedQueues {
    pub(super) fn open(queues: MemoryQueues, names: &api::EndpointQueueNames) -> Result<Self, EndpointError> {
        let named = |name: &str| {
            queues.get_or_create(name).ok_or_else(|| EndpointError::Plan(format!("{name:?} is not a valid queue name")))
        };
        let event = names.send_event.as_deref().unwrap_or(&names.reply);
        // The queues must be in the order of `OutputQueue`. `Inbox` and `Documents` are the same queue, because A and B
        // share an inbox here: B receives messages from it, and A acknowledgement documents.
        let outputs = [named(&names.reply)?, named(&names.inbox)?, named(event)?, named(&names.inbox)?];
        let outbox = named(&names.outbox)?;
        let notify = Arc::new(Notify::new());
        if outputs.contains(&outbox) {
            return Err(EndpointError::Plan("the outbox must differ from the other queues".to_owned()));
        }
        queues.reserve(outbox, Arc::clone(&notify));
        queues.notify_consumed(Arc::clone(&notify));
        Ok(Self { queues, outbox, outputs, notify })
    }

    fn output(&self, place: OutputQueue) -> QueueIndex {
        self.outputs[place as usize]
    }

    fn has_room(&self, queue: OutputQueue) -> bool {
        self.queues.has_room_or_notify(self.output(queue), &self.notify)
    }
}
