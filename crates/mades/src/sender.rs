//! A link that sends messages to a queue. A window limits the number of unsettled messages.
use crate::api::AmqpMessage;
use crate::broker::Broker;
use crate::client_state::{Disposition, LinkPlan, SettlementSender, SharedClient};
use crate::error::Error;
use crate::link::{CAPABILITIES, ClientLink};
use mailrun_amqp::{AmqpConnection, EncodedMessage, LinkId, LinkRole};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderOptions {
    pub queue: String,
    /// Maximum number of unsettled messages: sent messages whose outcome the broker has not reported yet.
    pub window: u32,
}

impl SenderOptions {
    pub fn new(queue: impl Into<String>, window: u32) -> Self {
        Self { queue: queue.into(), window }
    }
}

#[derive(Debug)]
pub struct SenderLink {
    link: ClientLink,
    queue: String,
    window: Arc<Semaphore>,
    max_message_bytes: Option<u64>,
}

impl SenderLink {
    pub(crate) async fn attach(
        client: Arc<SharedClient>,
        broker: Arc<Broker>,
        options: &SenderOptions,
        name: &str,
    ) -> Result<Self, Error> {
        if options.window == 0 {
            return Err(Error::Misuse("a window of 0 permits no messages: use 1 or more".to_owned()));
        }
        let plan = LinkPlan {
            name,
            role: LinkRole::Sender,
            queue: &options.queue,
            capabilities: &CAPABILITIES,
            max_message_bytes: 0,
            credit: 0,
        };
        let (link, max_message_bytes) = ClientLink::attach(client, broker, &plan).await?;
        let window = Arc::new(Semaphore::new(options.window as usize));
        Ok(Self { link, queue: options.queue.clone(), window, max_message_bytes })
    }

    /// Waits for room in the window, for credit from the broker and for room in the output buffer, and then sends a
    /// message. The message is written after this call, when the scheduler next runs the connection's driver. The
    /// returned future resolves to the outcome of the message.
    ///
    /// The call is cancel-safe: if its future is dropped while it waits, nothing is sent. It has no time limit of its
    /// own, so the caller must set one.
    ///
    /// # Errors
    /// Fails if the message exceeds the limit of the queue, or if the link or the connection has ended.
    pub async fn send(&mut self, message: &AmqpMessage) -> Result<DispositionFuture, Error> {
        self.send_with(message.bytes(), |amqp, id, sender| {
            amqp.send_parts(id, &message.sections, message.payload.clone(), sender);
        })
        .await
    }

    /// Sends a message that the caller has already encoded.
    ///
    /// # Errors
    /// Fails in the same cases as [`send`](Self::send).
    pub async fn send_encoded(&mut self, message: &EncodedMessage) -> Result<DispositionFuture, Error> {
        self.send_with(message.bytes(), |amqp, id, sender| amqp.send(id, message.clone(), sender)).await
    }

    async fn send_with(
        &mut self,
        bytes: usize,
        send: impl Fn(&mut AmqpConnection<SettlementSender>, LinkId, SettlementSender),
    ) -> Result<DispositionFuture, Error> {
        if let Some(limit) = self.max_message_bytes.filter(|limit| bytes as u64 > *limit) {
            return Err(Error::TooLarge { queue: self.queue.clone(), size: bytes as u64, limit });
        }
        let permit = Arc::clone(&self.window).acquire_owned().await.expect("nobody closes this semaphore");
        let id = self.link.id;
        let client = &self.link.client;
        let settlement =
            std::future::poll_fn(|context| client.poll_send(id, context, |amqp, sender| send(amqp, id, sender)));
        Ok(DispositionFuture { settlement: settlement.await?, _permit: permit })
    }

    /// Returns true if the broker has granted credit for another message (AMQP 1.0 part 2 §2.6.7).
    pub fn has_credit(&self) -> bool {
        self.link.client.has_credit(self.link.id)
    }

    pub fn available_window(&self) -> usize {
        self.window.available_permits()
    }

    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Returns the size in bytes of the largest message that the broker accepts, or `None` if the broker announces no
    /// limit.
    pub fn max_message_bytes(&self) -> Option<u64> {
        self.max_message_bytes
    }

    /// Waits until the broker ends the link, and returns the reason. In this way, a caller that has nothing to send can
    /// notice the end of the link.
    pub async fn closed(&mut self) -> Error {
        self.link.detached().await
    }

    /// Ends the link, so that the futures of unsettled messages return an error. Waits for the broker's answer for at
    /// most 5 s, or for [`Broker::step_timeout`] if that is shorter.
    ///
    /// # Errors
    /// Fails if the broker does not answer, or if it has already ended the link.
    pub async fn close(self) -> Result<(), Error> {
        self.link.close().await
    }
}

/// Resolves when the broker has reported the outcome of a message. Dropping the future frees the message's place in the
/// window, which is useful after a time-out.
#[derive(Debug)]
pub struct DispositionFuture {
    settlement: oneshot::Receiver<Result<Disposition, Error>>,
    _permit: OwnedSemaphorePermit,
}

impl Future for DispositionFuture {
    type Output = Result<Disposition, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let lost = || Error::Lost { why: "the connection ended before the message was settled".to_owned() };
        Pin::new(&mut self.settlement).poll(context).map(|settled| settled.unwrap_or_else(|_| Err(lost())))
    }
}
