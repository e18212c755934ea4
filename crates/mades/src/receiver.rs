//! A queue that messages come from: deliveries as they come, dispositions by the range.
use crate::api::{DecodedMessage, Oddity};
use crate::broker::Broker;
use crate::coalescing::StreamStats;
use crate::error::{self, Error};
use crate::link;
use fe2o3_amqp::Receiver;
use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::link::{CreditMode, IllegalLinkStateError, RecvError};
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp_types::definitions;
use fe2o3_amqp_types::messaging::{Body, Modified, Source, TerminusDurability};
use fe2o3_amqp_types::primitives::Array;
use serde_amqp::Value;
use std::sync::Arc;

/// Frames that wait between the connection and the session: they have all been given credit.
const BUFFERED_FRAMES: usize = 4096;
/// Limit of acceptances that one disposition reports.
const ACCEPT_BATCH_LIMIT: usize = 256;
/// The largest message that is taken by default.
const MAX_MESSAGE_BYTES: u64 = 64 * 1024 * 1024;

/// Options of a receiver link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverOptions {
    /// The queue.
    pub queue: String,
    /// Number of messages that the broker may send ahead. They are kept in memory until they are settled: credit
    /// times the size of a message is what a receiver link may cost.
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
pub struct DeliveryHandle(DeliveryInfo);

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
        self.message.header.as_ref().is_some_and(|header| header.delivery_count > 0)
    }
}

/// A message as it came, decodable or not.
#[derive(Debug)]
pub enum IncomingDelivery {
    /// A message.
    Delivery(Box<Delivery>),
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
    receiver: Receiver,
    queue: Arc<str>,
    broker: Arc<Broker>,
    stats: StreamStats,
    accepted: Vec<DeliveryInfo>,
    accept_batch: usize,
    /// Ends with us.
    _session: SessionHandle<()>,
}

impl ReceiverLink {
    pub(crate) async fn attach(
        connection: &mut ConnectionHandle<()>,
        options: &ReceiverOptions,
        name: String,
        (broker, stats): (Arc<Broker>, StreamStats),
    ) -> Result<Self, Error> {
        if options.credit == 0 {
            return Err(Error::Misuse("a credit of 0 permits no messages: use 1 or more".to_owned()));
        }
        let mut session = link::session(connection, BUFFERED_FRAMES).await?;
        let source = Source::builder()
            .address(options.queue.as_str())
            .durable(TerminusDurability::UnsettledState)
            .capabilities(Array(link::capabilities()))
            .build();
        let receiver = Receiver::builder()
            .name(name.as_str())
            .source(source)
            .max_message_size(options.max_message_bytes)
            .credit_mode(CreditMode::Auto(options.credit))
            // What a broker writes into its answer is its own affair.
            .verify_incoming_source(false)
            .verify_incoming_target(false)
            .attach(&mut session)
            .await
            .map_err(|error| error::of_receiver_attach(&options.queue, &error))?;
        stats.register_link(&name, &options.queue, receiver.max_message_size());
        Ok(Self {
            receiver,
            queue: options.queue.as_str().into(),
            broker,
            stats,
            accepted: Vec::new(),
            accept_batch: (options.credit as usize / 4).clamp(1, ACCEPT_BATCH_LIMIT),
            _session: session,
        })
    }

    /// The queue.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Waits for the next arrival. Before it waits, it reports to the broker what was accepted.
    ///
    /// Cancel-safe: nothing that came is lost. There is no time limit; that is the caller's.
    ///
    /// # Errors
    /// If the link or the connection has ended, or the peer has broken the protocol: then the connection ends at once,
    /// whatever the peer answers. A message that cannot be decoded is no error.
    pub async fn next(&mut self) -> Result<IncomingDelivery, Error> {
        if !self.accepted.is_empty() {
            if let Some(delivery) = self.try_next().await {
                return delivery;
            }
            self.settle().await?;
        }
        let delivery = self.receiver.recv::<Body<Value>>().await;
        self.read_delivery(delivery)
    }

    /// The next arrival, if one is there already.
    pub async fn try_next(&mut self) -> Option<Result<IncomingDelivery, Error>> {
        let delivery = tokio::select! {
            biased;
            arrival = self.receiver.recv::<Body<Value>>() => arrival,
            () = std::future::ready(()) => return None,
        };
        Some(self.read_delivery(delivery))
    }

    fn read_delivery(
        &self,
        arrival: Result<fe2o3_amqp::Delivery<Body<Value>>, RecvError>,
    ) -> Result<IncomingDelivery, Error> {
        match arrival {
            Ok(delivery) => {
                let (info, message) = delivery.into_parts();
                Ok(IncomingDelivery::Delivery(Box::new(Delivery { handle: DeliveryHandle(info), message })))
            }
            Err(RecvError::MessageDecode(error)) => Ok(IncomingDelivery::Undecodable {
                handle: DeliveryHandle(error.info),
                oddity: Oddity::Undecodable,
                why: error::one_line(&error.source.to_string()),
            }),
            Err(error) => Err(self.stats.peer_error_or(error::of_receive(&self.queue, &error))),
        }
    }

    /// Takes responsibility for a message. The broker learns of it when some have gathered, or before we wait for
    /// more, or by [`settle`](Self::settle).
    ///
    /// # Errors
    /// If the link or the connection has come to its end.
    pub async fn accept(&mut self, handle: DeliveryHandle) -> Result<(), Error> {
        self.accepted.push(handle.0);
        if self.accepted.len() < self.accept_batch {
            return Ok(());
        }
        self.settle().await
    }

    /// Reports to the broker what was accepted.
    ///
    /// # Errors
    /// If the link or the connection has come to its end.
    pub async fn settle(&mut self) -> Result<(), Error> {
        if self.accepted.is_empty() {
            return Ok(());
        }
        // Reported again if this future is dropped half way: the broker ignores what it has already.
        let result = self.with_timeout(self.receiver.accept_all(self.accepted.iter().cloned())).await;
        self.accepted.clear();
        result
    }

    /// Gives messages back to the queue, for any consumer, ourselves included.
    ///
    /// # Errors
    /// If the link or the connection has come to its end.
    pub async fn release(&mut self, handles: impl IntoIterator<Item = DeliveryHandle>) -> Result<(), Error> {
        let infos = handles.into_iter().map(|handle| handle.0);
        self.with_timeout(self.receiver.release_all(infos)).await
    }

    /// Refuses a message for good: a broker puts it into its dead-letter queue.
    ///
    /// # Errors
    /// If the link or the connection has come to its end.
    pub async fn reject(&mut self, handle: DeliveryHandle, condition: &str, description: &str) -> Result<(), Error> {
        let condition = definitions::ErrorCondition::Custom(condition.into());
        let error = definitions::Error::new(condition, description.to_owned(), None);
        self.with_timeout(self.receiver.reject(handle.0, error)).await
    }

    /// Gives a message back as one that failed here.
    ///
    /// # Errors
    /// If the link or the connection has come to its end.
    pub async fn modify(&mut self, handle: DeliveryHandle, modified: Modified) -> Result<(), Error> {
        self.with_timeout(self.receiver.modify(handle.0, modified)).await
    }

    /// Sends a disposition to the broker, within the time limit of a step.
    async fn with_timeout(
        &self,
        disposition: impl Future<Output = Result<(), IllegalLinkStateError>>,
    ) -> Result<(), Error> {
        let result = tokio::time::timeout(self.broker.step_timeout, disposition).await;
        let result = result.map_err(|_| self.broker.timed_out("settling messages"))?;
        result.map_err(|error| self.stats.peer_error_or(error::of_disposition(&error)))
    }

    /// Ends the link, within 5 s and the time limit of a step: reports what was accepted; the broker takes back what is
    /// held.
    ///
    /// # Errors
    /// If the broker does not answer, or has ended the link before.
    pub async fn close(mut self) -> Result<(), Error> {
        let queue = Arc::clone(&self.queue);
        let stats = self.stats.clone();
        let limit = self.broker.close_timeout();
        let close = async {
            self.settle().await?;
            error::of_close(&queue, self.receiver.close().await)
        };
        match tokio::time::timeout(limit, close).await {
            Ok(closed) => closed.map_err(|error| stats.peer_error_or(error)),
            Err(_) => Err(Error::Lost { why: "the broker does not answer close".to_owned() }),
        }
    }
}
