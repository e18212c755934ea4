//! A link that receives messages from a queue. The caller settles messages one by one, and the
//! client combines consecutive settlements in one disposition frame.
use crate::api::DecodedMessage;
use crate::broker::Broker;
use crate::client_state::{ArrivedMessage, LinkPlan, SettlementSender, SharedClient};
use crate::error::{Error, one_line};
use crate::link::{CAPABILITIES, ClientLink};
use mailrun_amqp::{AmqpConnection, DeliveryOutcome, EncodedMessage, LinkId, LinkRole};
use std::sync::Arc;

const MAX_MESSAGE_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverOptions {
    pub queue: String,
    /// Number of messages that the broker may send before the client settles the first of them. Messages stay in memory
    /// until they are settled, so a link can use as much memory as this number times the size of a message. With
    /// RabbitMQ 3, a link can use twice as much memory, because RabbitMQ 3 does not count messages in transit.
    pub credit: u32,
    pub max_message_bytes: u64,
}

impl ReceiverOptions {
    pub fn new(queue: impl Into<String>, credit: u32) -> Self {
        Self { queue: queue.into(), credit, max_message_bytes: MAX_MESSAGE_BYTES }
    }
}

/// Settles one delivery, and can be used only once. If a client never uses the handle, the broker reserves the message
/// for this client until the link ends, and then gives it to another consumer. A client can therefore put aside a
/// message that it does not want. If the client released the message instead, the broker would deliver it again at
/// once.
#[derive(Debug)]
pub struct DeliveryHandle {
    delivery: u32,
    /// Set if the sender has already settled the message and expects no answer.
    is_settled: bool,
}

#[derive(Debug)]
pub struct Delivery {
    pub handle: DeliveryHandle,
    pub message: DecodedMessage,
}

#[derive(Debug)]
pub enum IncomingDelivery {
    Delivery(Delivery),
    Undecodable { handle: DeliveryHandle, why: String },
}

#[derive(Debug)]
pub struct EncodedDelivery {
    pub handle: DeliveryHandle,
    pub message: EncodedMessage,
}

#[derive(Debug)]
pub struct ReceiverLink {
    link: ClientLink,
    queue: String,
}

impl ReceiverLink {
    pub(crate) async fn attach(
        client: Arc<SharedClient>,
        broker: Arc<Broker>,
        options: &ReceiverOptions,
        name: &str,
    ) -> Result<Self, Error> {
        if options.credit == 0 {
            return Err(Error::Misuse("a credit of 0 permits no messages: use 1 or more".to_owned()));
        }
        let plan = LinkPlan {
            name,
            role: LinkRole::Receiver,
            queue: &options.queue,
            capabilities: &CAPABILITIES,
            max_message_bytes: options.max_message_bytes,
            credit: options.credit,
        };
        let (link, _) = ClientLink::attach(client, broker, &plan).await?;
        Ok(Self { link, queue: options.queue.clone() })
    }

    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Waits for the next message.
    ///
    /// The future is cancel-safe: dropping it loses no message. It has no time limit of its own, so
    /// the caller must set one.
    ///
    /// # Errors
    /// Fails if the link or the connection has ended, for example because the peer violated the protocol. A message
    /// that cannot be decoded is no error: it is returned as [`IncomingDelivery::Undecodable`].
    pub async fn next(&mut self) -> Result<IncomingDelivery, Error> {
        Ok(decode(self.next_encoded().await?))
    }

    /// Does the same as [`next`](Self::next), but leaves the decoding to the caller, who may decode less strictly.
    ///
    /// # Errors
    /// Fails in the same cases as [`next`](Self::next).
    pub async fn next_encoded(&mut self) -> Result<EncodedDelivery, Error> {
        let link = &self.link;
        std::future::poll_fn(|context| link.client.poll_arrived(link.id, context)).await.map(encoded)
    }

    /// Returns the next message without waiting, or `None` if no message has arrived yet.
    pub fn try_next(&mut self) -> Option<Result<IncomingDelivery, Error>> {
        Some(self.link.client.take_arrived(self.link.id)?.map(encoded).map(decode))
    }

    /// Accepts a message, so that the broker can remove it from the queue. The settlement is written when the scheduler
    /// next runs the connection's driver, together with other settlements.
    ///
    /// # Errors
    /// Fails if the link or the connection has ended.
    pub fn accept(&mut self, handle: DeliveryHandle) -> Result<(), Error> {
        self.settle(handle, DeliveryOutcome::Accepted)
    }

    /// Returns messages to the queue without counting a failed delivery. Any consumer may get them, including this one.
    ///
    /// # Errors
    /// Fails if the link or the connection has ended.
    pub fn release(&mut self, handles: impl IntoIterator<Item = DeliveryHandle>) -> Result<(), Error> {
        handles.into_iter().try_for_each(|handle| self.settle(handle, DeliveryOutcome::Released))
    }

    /// Rejects a message for good, so that a broker with a dead-letter queue moves the message there.
    ///
    /// # Errors
    /// Fails if the link or the connection has ended.
    pub fn reject(&mut self, handle: DeliveryHandle, condition: &str, description: &str) -> Result<(), Error> {
        self.settle_with(handle, |amqp, id, delivery| amqp.reject(id, delivery, condition, description))
    }

    /// Returns a message to the queue because the caller could not process it, and makes the broker count a failed
    /// delivery.
    ///
    /// # Errors
    /// Fails if the link or the connection has ended.
    pub fn modify(&mut self, handle: DeliveryHandle) -> Result<(), Error> {
        self.settle(handle, DeliveryOutcome::Modified { failed: true })
    }

    fn settle(&mut self, handle: DeliveryHandle, outcome: DeliveryOutcome) -> Result<(), Error> {
        self.settle_with(handle, |amqp, id, delivery| amqp.settle(id, delivery, outcome))
    }

    fn settle_with(
        &mut self,
        handle: DeliveryHandle,
        settle: impl FnOnce(&mut AmqpConnection<SettlementSender>, LinkId, u32),
    ) -> Result<(), Error> {
        let id = self.link.id;
        self.link.client.settle(id, |amqp| {
            if !handle.is_settled {
                settle(amqp, id, handle.delivery);
            }
        })
    }

    /// Ends the link, so that the broker takes back the messages that are not settled. Waits for the broker's answer
    /// for at most 5 s, or for [`Broker::step_timeout`] if that is shorter.
    ///
    /// # Errors
    /// Fails if the broker does not answer, or if it has already ended the link.
    pub async fn close(self) -> Result<(), Error> {
        self.link.close().await
    }
}

fn encoded(arrived: ArrivedMessage) -> EncodedDelivery {
    let handle = DeliveryHandle { delivery: arrived.delivery, is_settled: arrived.settled };
    EncodedDelivery { handle, message: arrived.message }
}

fn decode(EncodedDelivery { handle, message }: EncodedDelivery) -> IncomingDelivery {
    match DecodedMessage::decode(&message) {
        Ok(message) => IncomingDelivery::Delivery(Delivery { handle, message }),
        Err(error) => IncomingDelivery::Undecodable { handle, why: one_line(&error.to_string()) },
    }
}
