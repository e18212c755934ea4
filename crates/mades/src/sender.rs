//! A queue that messages go to: many under way at a time, bounded by a window.
use crate::broker::Broker;
use crate::coalescing::StreamStats;
use crate::error::{self, Error};
use crate::link;
use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::SendError;
use fe2o3_amqp::link::delivery::DeliveryFut;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::{Sendable, Sender};
use fe2o3_amqp_types::messaging::{Outcome, SerializableBody, Source, Target, TerminusDurability};
use fe2o3_amqp_types::primitives::Array;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// Frames that wait between us and the engine. Few: a message that is handed over is on its way to the socket, and not
/// in a queue of ours (the default of fe2o3-amqp is 65,535).
const BUFFERED_FRAMES: usize = 32;

/// Options of a sender link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderOptions {
    /// The queue.
    pub queue: String,
    /// Number of messages that may be unsettled at a time.
    pub window: u32,
}

impl SenderOptions {
    /// Options for that queue with that window.
    pub fn new(queue: impl Into<String>, window: u32) -> Self {
        Self { queue: queue.into(), window }
    }
}

/// A queue that messages go to.
#[derive(Debug)]
pub struct SenderLink {
    sender: Sender,
    broker: Arc<Broker>,
    stats: StreamStats,
    queue: Arc<str>,
    window: Arc<Semaphore>,
    session_failure: Arc<SessionFailure>,
    /// Has the session, which ends with us.
    _session_task: AbortOnDrop,
}

/// The end of a session, reported to all that wait for a settlement over it: fe2o3-amqp 0.18.4 notifies only those
/// whose sender has been dropped, and the others wait for ever.
#[derive(Debug, Default)]
struct SessionFailure {
    error: OnceLock<Error>,
    notify: Arc<Notify>,
}

impl SessionFailure {
    async fn watch(self: Arc<Self>, mut session: SessionHandle<()>) {
        let why = match session.on_end().await {
            Err(fe2o3_amqp::session::Error::RemoteEndedWithError(error)) => {
                Error::Closed { why: error::describe(&error) }
            }
            _ => Error::Lost { why: "the connection or the session ended before the message was settled".to_owned() },
        };
        let _ = self.error.set(why);
        self.notify.notify_waiters();
    }

    fn notified(&self) -> OwnedNotified {
        Arc::clone(&self.notify).notified_owned()
    }
}

/// A task that ends with its owner.
#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl SenderLink {
    pub(crate) async fn attach(
        connection: &mut ConnectionHandle<()>,
        options: &SenderOptions,
        name: String,
        (broker, stats): (Arc<Broker>, StreamStats),
    ) -> Result<Self, Error> {
        if options.window == 0 {
            return Err(Error::Misuse("a window of 0 permits no messages: use 1 or more".to_owned()));
        }
        let mut session = link::session(connection, BUFFERED_FRAMES).await?;
        let target = Target::builder()
            .address(options.queue.as_str())
            .durable(TerminusDurability::UnsettledState)
            .capabilities(Array(link::capabilities()))
            .build();
        let source = Source::builder().address(name.as_str()).durable(TerminusDurability::UnsettledState).build();
        let sender = Sender::builder()
            .name(name.as_str())
            .source(source)
            .target(target)
            // What a broker writes into its answer is its own affair.
            .verify_incoming_source(false)
            .verify_incoming_target(false)
            .attach(&mut session)
            .await
            .map_err(|error| error::of_sender_attach(&options.queue, &error))?;
        stats.register_link(&name, &options.queue, None);
        let session_failure = Arc::<SessionFailure>::default();
        let _session_task = AbortOnDrop(tokio::spawn(Arc::clone(&session_failure).watch(session)).abort_handle());
        let window = Arc::new(Semaphore::new(options.window as usize));
        Ok(Self { sender, broker, stats, queue: options.queue.as_str().into(), window, session_failure, _session_task })
    }

    /// Hands a message over: waits for room in the window, for credit of the broker and for room in the socket. When
    /// this returns, the message is on its way to the socket in this pass of the scheduler; its fate comes by the
    /// future.
    ///
    /// Cancel-safe: dropped while it waits, nothing is sent. There is no time limit; that is the caller's.
    ///
    /// # Errors
    /// If the message is larger than the queue takes, or the link or the connection has come to its end.
    pub async fn send<B: SerializableBody>(&mut self, message: &Sendable<B>) -> Result<DispositionFuture, Error> {
        let permit = Arc::clone(&self.window).acquire_owned().await.expect("nobody closes this semaphore");
        self.stats.writable().await;
        let delivery = self.sender.send_batchable_ref(message).await;
        let delivery = delivery.map_err(|error| self.stats.peer_error_or(error::of_send(&self.queue, &error)))?;
        let session_failure = Arc::clone(&self.session_failure);
        let queue = Arc::clone(&self.queue);
        Ok(DispositionFuture {
            delivery,
            notified: Box::pin(session_failure.notified()),
            session_failure,
            queue,
            _permit: permit,
        })
    }

    /// Number of further messages that the window has room for.
    pub fn available_window(&self) -> usize {
        self.window.available_permits()
    }

    /// The queue.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// The largest message that the broker accepts, if it announces one.
    pub fn max_message_bytes(&self) -> Option<u64> {
        self.sender.max_message_size()
    }

    /// Waits until the broker ends the link, and returns the reason: for a run that has nothing to send and still has
    /// to notice.
    pub async fn closed(&mut self) -> Error {
        let ended = self.sender.on_detach().await;
        self.stats.peer_error_or(error::of_detach(&self.queue, &ended))
    }

    /// Ends the link, within 5 s and the time limit of a step. Unsettled messages stay unsettled; their futures
    /// return an error.
    ///
    /// # Errors
    /// If the broker does not answer, or has ended the link before.
    pub async fn close(self) -> Result<(), Error> {
        match tokio::time::timeout(self.broker.close_timeout(), self.sender.close()).await {
            Ok(closed) => error::of_close(&self.queue, closed).map_err(|error| self.stats.peer_error_or(error)),
            Err(_) => Err(Error::Lost { why: "the broker does not answer close".to_owned() }),
        }
    }
}

/// Outcome of a message, as the broker reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The broker has taken responsibility for it.
    Accepted,
    /// It will never take it.
    Rejected {
        /// The condition, such as `amqp:resource-limit-exceeded`; empty if none was given.
        condition: String,
        /// Description in text.
        description: String,
    },
    /// It does not take it now.
    Released,
    /// It does not take it as it is.
    Modified {
        /// It counts as a failed attempt.
        has_failed: bool,
        /// It is not to come here again.
        is_undeliverable_here: bool,
    },
}

impl Disposition {
    fn of(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Accepted(_) => Self::Accepted,
            Outcome::Rejected(rejected) => {
                let condition = rejected.error.as_ref().map(error::condition).unwrap_or_default();
                let description = rejected.error.and_then(|error| error.description).unwrap_or_default();
                Self::Rejected { condition, description: error::one_line(&description) }
            }
            Outcome::Released(_) => Self::Released,
            Outcome::Modified(modified) => Self::Modified {
                has_failed: modified.delivery_failed.unwrap_or(false),
                is_undeliverable_here: modified.undeliverable_here.unwrap_or(false),
            },
        }
    }
}

/// A message that is under way: resolves when the broker has reported its outcome. Dropped, it frees its place in the
/// window, which is what a time-out does.
pub struct DispositionFuture {
    delivery: DeliveryFut<Result<Outcome, SendError>>,
    notified: Pin<Box<OwnedNotified>>,
    session_failure: Arc<SessionFailure>,
    queue: Arc<str>,
    _permit: OwnedSemaphorePermit,
}

impl Future for DispositionFuture {
    type Output = Result<Disposition, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(outcome) = Pin::new(&mut self.delivery).poll(context) {
            return Poll::Ready(outcome.map(Disposition::of).map_err(|error| error::of_send(&self.queue, &error)));
        }
        if self.session_failure.error.get().is_none() {
            ready!(self.notified.as_mut().poll(context));
        }
        let why = self.session_failure.error.get().cloned();
        Poll::Ready(Err(why.expect("those who wait are told when the reason is set")))
    }
}

impl std::fmt::Debug for DispositionFuture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settling").field("queue", &self.queue).finish_non_exhaustive()
    }
}
