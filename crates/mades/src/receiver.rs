//! A queue that messages come from: deliveries as they come, dispositions by the range.
use crate::api::{DecodedMessage, Oddity};
use crate::broker::Broker;
use crate::client_state::{ArrivedMessage, LinkPlan, SharedClient};
use crate::disposition::SettlementSender;
use crate::error::{Error, one_line};
use crate::link::{CAPABILITIES, ClientLink};
use mailrun_amqp::{AmqpConnection, DeliveryOutcome, LinkId, LinkRole};
use std::sync::Arc;

/// The largest message that is taken by default.
const MAX_MESSAGE_BYTES: u64 = 64 * 1024 * 1024;

/// Options of a receiver link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverOptions {
    /// The queue.
    pub queue: String,
    /// Number of messages that the broker may send ahead. They are kept in memory until they are settled: credit
    /// times the size of a message is what a receiver link may cost; twice that at RabbitMQ 3, which does not count those on
    /// their way.
    pub credit: u32,
    /// The largest message that is taken.
    pub max_message_bytes: u64,
}

impl ReceiverOptions {
    /// Options for that queue with that credit.
    pub fn new(queue: impl Into<String>, credit: u32) -> Self {
        Self { queue: queue.into(), credit, max_message_bytes: MAX_MESSAGE_BYTES }
    }
}

/// Settles a delivery: it is given back once, with a verdict. If it is never given back, the broker keeps the message
/// for us until the link ends, and then gives it to another consumer: that is how to hold on to a message that is not
/// ours. If it were released at once, the broker would send it again at once.
#[derive(Debug)]
pub struct DeliveryHandle {
    delivery: u32,
    /// Its sender expects no answer.
    is_settled: bool,
}

/// A message that came.
#[derive(Debug)]
pub struct Delivery {
    /// Handle that settles it.
    pub handle: DeliveryHandle,
    /// The message.
    pub message: DecodedMessage,
}

impl Delivery {
    /// Reports whether the broker has tried to deliver it before (AMQP 1.0 part 3 §3.2.1, delivery-count).
    pub fn is_redelivered(&self) -> bool {
        self.message.header().is_some_and(|header| header.delivery_count > 0)
    }
}

/// A message as it came, decodable or not.
#[derive(Debug)]
pub enum IncomingDelivery {
    /// A message.
    Delivery(Delivery),
    /// A message whose sections cannot be decoded.
    Undecodable {
        /// Handle that settles it.
        handle: DeliveryHandle,
        /// [`Oddity::Undecodable`].
        oddity: Oddity,
        /// Description of the defect.
        why: String,
    },
}

/// A queue that messages come from.
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

    /// The queue.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Waits for the next arrival.
    ///
    /// Cancel-safe: nothing that came is lost. There is no time limit; that is the caller's.
    ///
    /// # Errors
    /// If the link or the connection has ended, or the peer has broken the protocol: then the connection ends at once,
    /// whatever the peer answers. A message that cannot be decoded is no error.
    pub async fn next(&mut self) -> Result<IncomingDelivery, Error> {
        let link = &self.link;
        let arrived = std::future::poll_fn(|context| link.client.poll_arrived(link.id, context)).await?;
        Ok(decode(arrived))
    }

    /// The next arrival, if one is there already.
    pub fn try_next(&mut self) -> Option<Result<IncomingDelivery, Error>> {
        Some(self.link.client.take_arrived(self.link.id)?.map(decode))
    }

    /// Takes responsibility for a message. The broker learns of it in this pass of the scheduler, together with others.
    ///
    /// # Errors
    /// If the link or the connection has come to its end.
    pub fn accept(&mut self, handle: DeliveryHandle) -> Result<(), Error> {
        self.settle(handle, DeliveryOutcome::Accepted)
    }

    /// Gives messages back to the queue, for any consumer, ourselves included.
    ///
    /// # Errors
    /// If the link or the connection has come to its end.
    pub fn release(&mut self, handles: impl IntoIterator<Item = DeliveryHandle>) -> Result<(), Error> {
        handles.into_iter().try_for_each(|handle| self.settle(handle, DeliveryOutcome::Released))
    }

    /// Refuses a message for good: a broker puts it into its dead-letter queue.
    ///
    /// # Errors
    /// If the link or the connection has come to its end.
    pub fn reject(&mut self, handle: DeliveryHandle, condition: &str, description: &str) -> Result<(), Error> {
        self.settle_with(handle, |amqp, id, delivery| amqp.reject(id, delivery, condition, description))
    }

    /// Gives a message back as one that failed here.
    ///
    /// # Errors
    /// If the link or the connection has come to its end.
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

    /// Ends the link, within 5 s and the time limit of a step; the broker takes back what is held.
    ///
    /// # Errors
    /// If the broker does not answer, or has ended the link before.
    pub async fn close(self) -> Result<(), Error> {
        self.link.close().await
    }
}

fn decode(arrived: ArrivedMessage) -> IncomingDelivery {
    let handle = DeliveryHandle { delivery: arrived.delivery, is_settled: arrived.settled };
    match DecodedMessage::decode(&arrived.message) {
        Ok(message) => IncomingDelivery::Delivery(Delivery { handle, message }),
        Err(error) => {
            IncomingDelivery::Undecodable { handle, oddity: Oddity::Undecodable, why: one_line(&error.to_string()) }
        }
    }
}
