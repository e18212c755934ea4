//! State of a client's connection, which its driver, its links and its owner share.
//!
//! ```text
//! SenderLink ───── send ────▶ ┌─────────────────┐ ── output ──▶ ┌────────┐
//! ReceiverLink ─── settle ──▶ │ AmqpClientState │               │ driver │ ◀──▶ socket
//!                ◀─ arrived ─ └─────────────────┘ ◀── input ─── └────────┘
//! ```
//! A task that changes `AmqpClientState` wakes the driver, which writes the output. Until the scheduler runs the
//! driver, more frames may gather, and all of them are written with one system call. A task that has to wait stores its
//! waker in the state, so that the driver can wake the task.
use crate::broker::Broker;
use crate::error::{self, ConnectionFailure, Error, OpenAttempt, one_line};
use bytes::{Buf, BytesMut};
use mailrun_amqp::{
    AmqpConnection, ClientLogin, ConnectionEvent, DeliveryOutcome, EncodedMessage, EndError, LinkId, LinkRequest,
    LinkRole, PeerError, Scope, SessionId,
};
use mailrun_lock::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use tokio::sync::{Notify, oneshot};

/// While more output bytes than this wait to be written, sending tasks have to wait. Without this limit, messages that
/// count as sent could stay in the client's memory for a long time before they reach the socket.
const PENDING_OUTPUT_LIMIT: usize = 128 << 10;

#[derive(Debug)]
pub(crate) struct ArrivedMessage {
    pub(crate) delivery: u32,
    /// Set if the sender has already settled the message and expects no answer.
    pub(crate) settled: bool,
    pub(crate) message: EncodedMessage,
}

#[derive(Debug, PartialEq)]
enum LinkPhase {
    Attaching,
    Attached,
    /// The broker or the client ended the link, for this reason.
    Detached(Error),
}

#[derive(Debug)]
struct LinkSlot {
    id: LinkId,
    queue: Arc<str>,
    role: LinkRole,
    phase: LinkPhase,
    is_closing: bool,
    /// Set when the broker has confirmed the end of the link without an error.
    is_closed: bool,
    max_message_bytes: Option<u64>,
    message_limit: u64,
    arrived: VecDeque<ArrivedMessage>,
    /// Maximum number of messages that the broker may send before the client settles the first of them.
    credit_limit: u32,
    unsettled: u32,
    waker: Option<Waker>,
}

impl LinkSlot {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn wait(&mut self, context: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            self.waker = Some(context.waker().clone());
        }
    }
}

pub(crate) struct LinkPlan<'a> {
    pub(crate) name: &'a str,
    pub(crate) role: LinkRole,
    pub(crate) queue: &'a str,
    pub(crate) capabilities: &'a [&'a str],
    pub(crate) max_message_bytes: u64,
    pub(crate) credit: u32,
}

#[derive(Debug)]
pub(crate) struct AmqpClientState {
    amqp: AmqpConnection<SettlementSender>,
    broker: Arc<Broker>,
    links: Vec<LinkSlot>,
    first_bytes: Vec<u8>,
    is_opened: bool,
    is_closing: bool,
    /// Set when the broker has answered the client's close without an error.
    is_close_answered: bool,
    end: Option<Error>,
    driver: Option<Waker>,
}

impl AmqpClientState {
    pub(crate) fn amqp(&mut self) -> &mut AmqpConnection<SettlementSender> {
        &mut self.amqp
    }

    pub(crate) fn is_over(&self) -> bool {
        self.end.is_some()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Registers the driver's waker, which is called when there is something to write.
    pub(crate) fn set_driver(&mut self, context: &Context<'_>) {
        if !self.driver.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            self.driver = Some(context.waker().clone());
        }
    }

    fn wake_driver(&mut self) {
        if let Some(waker) = self.driver.take() {
            waker.wake();
        }
    }

    fn slot(&mut self, id: LinkId) -> Option<&mut LinkSlot> {
        self.links.iter_mut().find(|slot| slot.id == id)
    }

    /// Returns the state of a link, or the reason why the link or the connection has ended.
    fn attached(&mut self, id: LinkId) -> Result<&mut LinkSlot, Error> {
        if let Some(end) = &self.end {
            return Err(end.clone());
        }
        let lost = || Error::Lost { why: "the link has ended".to_owned() };
        let slot = self.links.iter_mut().find(|slot| slot.id == id).ok_or_else(lost)?;
        match &slot.phase {
            LinkPhase::Detached(error) => Err(error.clone()),
            LinkPhase::Attaching | LinkPhase::Attached => Ok(slot),
        }
    }

    /// Keeps the first bytes that the peer sent, because they show which protocol the peer speaks.
    pub(crate) fn keep_first_bytes(&mut self, bytes: &[u8]) {
        let missing = 8usize.saturating_sub(self.first_bytes.len());
        self.first_bytes.extend_from_slice(&bytes[..bytes.len().min(missing)]);
    }

    /// Writes the frames that are due into the output buffer. Flow frames return unused credit to a broker that has
    /// asked for it, and disposition frames settle received messages.
    pub(crate) fn prepare_output(&mut self) {
        // If the peer has asked to drain a link, return the remaining credit. Every task that waited for credit has run
        // since the peer asked, so no task needs the remaining credit.
        for slot in self.links.iter().filter(|slot| slot.role == LinkRole::Sender) {
            self.amqp.complete_drain(slot.id);
        }
        self.amqp.write_dispositions();
    }

    pub(crate) fn wake_senders(&mut self) {
        if self.amqp.output().remaining() <= PENDING_OUTPUT_LIMIT {
            self.links.iter_mut().filter(|slot| slot.role == LinkRole::Sender).for_each(LinkSlot::wake);
        }
    }
}

#[derive(Debug)]
pub(crate) struct SharedClient {
    state: Mutex<AmqpClientState>,
    /// Notified when the connection opens and when it ends.
    changed: Notify,
}

impl SharedClient {
    pub(crate) fn new(broker: Arc<Broker>, login: ClientLogin) -> Arc<Self> {
        let amqp = AmqpConnection::client(login, broker.connection_options());
        let state = AmqpClientState {
            amqp,
            broker,
            links: Vec::new(),
            first_bytes: Vec::new(),
            is_opened: false,
            is_closing: false,
            is_close_answered: false,
            end: None,
            driver: None,
        };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, AmqpClientState> {
        // Use the state even if the lock is poisoned, because no code can panic in the middle of a change to the state.
        lock(&self.state)
    }

    pub(crate) fn process(&self, state: &mut AmqpClientState, input: &mut BytesMut) {
        while state.end.is_none() {
            match state.amqp.next_event(input) {
                Ok(Some(event)) => self.handle(state, event),
                Ok(None) => return,
                Err(error) => self.end(state, &ConnectionFailure::Protocol(error)),
            }
        }
    }

    fn handle(&self, state: &mut AmqpClientState, event: ConnectionEvent<SettlementSender>) {
        match event {
            ConnectionEvent::Opened => {
                state.is_opened = true;
                self.changed.notify_waiters();
            }
            ConnectionEvent::Attached { link, max_message_bytes, .. } => attached(state, link, max_message_bytes),
            ConnectionEvent::MessageReceived { link, delivery, message, settled } => {
                if let Some(slot) = state.slot(link) {
                    slot.unsettled += 1;
                    slot.arrived.push_back(ArrivedMessage { delivery, settled, message });
                    slot.wake();
                }
            }
            ConnectionEvent::Settled { sent, outcome, error } => {
                // Ignore an error, because the sending task may no longer wait for the outcome.
                let _ = sent.send(Ok(Disposition::of(outcome, error.as_deref())));
            }
            ConnectionEvent::CreditChanged => state.wake_senders(),
            ConnectionEvent::Drained { .. } | ConnectionEvent::Ended { .. } => {}
            ConnectionEvent::Detached { link, unsettled, scope, error } => {
                let failure = match state.slot(link) {
                    Some(slot) => detached(slot, scope, error.as_ref()),
                    None => Error::Lost { why: "the link has ended".to_owned() },
                };
                unsettled.into_iter().for_each(|sent| drop(sent.send(Err(failure.clone()))));
            }
            ConnectionEvent::Closed { error } => {
                state.is_close_answered = state.is_closing && error.is_none();
                self.end(state, &ConnectionFailure::ClosedByPeer(error));
            }
        }
    }

    /// Ends the connection and all its links. If the connection was never open, the error says why connecting failed.
    pub(crate) fn end(&self, state: &mut AmqpClientState, failure: &ConnectionFailure) {
        let error = if state.is_opened { error::of_connection(failure) } else { state.error_of_open(failure) };
        self.end_with(state, error);
    }

    fn end_with(&self, state: &mut AmqpClientState, error: Error) {
        if state.end.is_some() {
            return;
        }
        let unsettled = state.amqp.take_unsettled();
        unsettled.into_iter().for_each(|sent| drop(sent.send(Err(error.clone()))));
        state.end = Some(error);
        state.links.iter_mut().for_each(LinkSlot::wake);
        self.changed.notify_waiters();
    }

    /// Ends the connection because its driver is gone. Otherwise the tasks of its links would wait forever.
    pub(crate) fn abandon(&self) {
        let mut state = self.state();
        self.end_with(&mut state, Error::Lost { why: "it is not driven any more".to_owned() });
    }

    /// Waits until the connection has been opened. When this returns, the connection may already have ended again.
    pub(crate) async fn opened(&self) -> Result<(), Error> {
        self.until(|state| match &state.end {
            _ if state.is_opened => Some(Ok(())),
            end => end.clone().map(Err),
        })
        .await
    }

    pub(crate) async fn ended(&self) -> Error {
        self.until(|state| state.end.clone()).await
    }

    async fn until<T>(&self, condition: impl Fn(&AmqpClientState) -> Option<T>) -> T {
        loop {
            let mut notified = std::pin::pin!(self.changed.notified());
            notified.as_mut().enable();
            if let Some(result) = condition(&self.state()) {
                return result;
            }
            notified.await;
        }
    }

    /// Ends a connection that did not open in time. Returns `error`, unless the first bytes of the
    /// peer show that it speaks another protocol.
    pub(crate) fn time_out_open(&self, error: Error) -> Error {
        let mut state = self.state();
        let error = error::of_first_bytes(&state.broker.url.address(), &state.first_bytes).unwrap_or(error);
        state.amqp.time_out_handshake();
        self.end_with(&mut state, error.clone());
        state.wake_driver();
        error
    }

    /// Asks the broker to end the connection. If the connection has already ended, returns the reason as an error.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let mut state = self.state();
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        state.is_closing = true;
        state.amqp.close(None);
        if state.amqp.is_closed() {
            // The broker has not sent its AMQP header yet, so do not wait for an answer to the close.
            self.end_with(&mut state, Error::Lost { why: "it was closed".to_owned() });
        }
        state.wake_driver();
        Ok(())
    }

    pub(crate) fn is_close_answered(&self) -> bool {
        self.state().is_close_answered
    }

    /// Asks the broker for a link in a session of its own. In a shared session, one link could use up the session's
    /// window, and the other links would have to wait.
    pub(crate) fn attach(&self, plan: &LinkPlan<'_>) -> Result<(SessionId, LinkId), Error> {
        let mut state = self.state();
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        let session = state.amqp.begin_session().map_err(error::of_session)?;
        let request = LinkRequest {
            name: plan.name,
            role: plan.role,
            address: plan.queue,
            capabilities: plan.capabilities,
            settled: false,
            max_message_bytes: plan.max_message_bytes,
        };
        let Some(id) = state.amqp.attach_link(session, &request) else {
            state.amqp.end_session(session);
            return Err(Error::Misuse(format!("the name of the queue {} is too long", plan.queue)));
        };
        state.links.push(LinkSlot {
            id,
            queue: plan.queue.into(),
            role: plan.role,
            phase: LinkPhase::Attaching,
            is_closing: false,
            is_closed: false,
            max_message_bytes: None,
            message_limit: plan.max_message_bytes,
            arrived: VecDeque::new(),
            credit_limit: plan.credit,
            unsettled: 0,
            waker: None,
        });
        state.wake_driver();
        Ok((session, id))
    }

    /// Waits for the broker's answer to the attach, and returns the size in bytes of the largest message that the
    /// broker accepts. Succeeds even after the link has ended, as long as messages that arrived over it are unread.
    pub(crate) fn poll_attached(&self, id: LinkId, context: &Context<'_>) -> Poll<Result<Option<u64>, Error>> {
        let mut state = self.state();
        let is_attached = |slot: &&mut LinkSlot| slot.phase == LinkPhase::Attached || !slot.arrived.is_empty();
        if let Some(slot) = state.slot(id).filter(is_attached) {
            return Poll::Ready(Ok(slot.max_message_bytes));
        }
        match state.attached(id) {
            Err(error) => Poll::Ready(Err(error)),
            Ok(slot) => {
                slot.wait(context);
                Poll::Pending
            }
        }
    }

    pub(crate) fn poll_detached(&self, id: LinkId, context: &Context<'_>) -> Poll<Error> {
        match self.state().attached(id) {
            Err(error) => Poll::Ready(error),
            Ok(slot) => {
                slot.wait(context);
                Poll::Pending
            }
        }
    }

    pub(crate) fn detach(&self, id: LinkId) {
        let mut state = self.state();
        if let Some(slot) = state.slot(id) {
            slot.is_closing = true;
        }
        state.amqp.detach_link(id);
        state.wake_driver();
    }

    /// Returns true if a link ended only because the client asked the broker to end it, which is no error.
    pub(crate) fn is_detached_as_asked(&self, id: LinkId) -> bool {
        self.state().slot(id).is_some_and(|slot| slot.is_closed)
    }

    pub(crate) fn forget(&self, session: SessionId, id: LinkId) {
        let mut state = self.state();
        state.links.retain(|slot| slot.id != id);
        if state.end.is_none() {
            state.amqp.end_session(session);
            state.wake_driver();
        }
    }

    /// Sends a message, once the link has credit for it and the output buffer has room for it.
    pub(crate) fn poll_send(
        &self,
        id: LinkId,
        context: &Context<'_>,
        send: impl FnOnce(&mut AmqpConnection<SettlementSender>, SettlementSender),
    ) -> Poll<Result<oneshot::Receiver<Result<Disposition, Error>>, Error>> {
        let mut state = self.state();
        let has_room = state.amqp.may_send(id) && state.amqp.output().remaining() <= PENDING_OUTPUT_LIMIT;
        let slot = match state.attached(id) {
            Ok(slot) => slot,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if !has_room {
            slot.wait(context);
            return Poll::Pending;
        }
        let (sender, receiver) = oneshot::channel();
        send(&mut state.amqp, sender);
        state.wake_driver();
        Poll::Ready(Ok(receiver))
    }

    pub(crate) fn has_credit(&self, id: LinkId) -> bool {
        self.state().amqp.may_send(id)
    }

    pub(crate) fn poll_arrived(&self, id: LinkId, context: &Context<'_>) -> Poll<Result<ArrivedMessage, Error>> {
        let mut state = self.state();
        if let Some(arrived) = state.slot(id).and_then(|slot| slot.arrived.pop_front()) {
            return Poll::Ready(Ok(arrived));
        }
        match state.attached(id) {
            Err(error) => Poll::Ready(Err(error)),
            Ok(slot) => {
                slot.wait(context);
                Poll::Pending
            }
        }
    }

    pub(crate) fn take_arrived(&self, id: LinkId) -> Option<Result<ArrivedMessage, Error>> {
        let mut state = self.state();
        if let Some(arrived) = state.slot(id).and_then(|slot| slot.arrived.pop_front()) {
            return Some(Ok(arrived));
        }
        state.attached(id).err().map(Err)
    }

    /// Settles a message, unless the sender expects no answer, and gives the broker credit for another message.
    pub(crate) fn settle(
        &self,
        id: LinkId,
        settle: impl FnOnce(&mut AmqpConnection<SettlementSender>),
    ) -> Result<(), Error> {
        let mut state = self.state();
        let slot = state.attached(id)?;
        slot.unsettled = slot.unsettled.saturating_sub(1);
        settle(&mut state.amqp);
        grant_credit(&mut state, id);
        state.wake_driver();
        Ok(())
    }

    pub(crate) fn check(&self, id: LinkId) -> Result<(), Error> {
        self.state().attached(id).map(drop)
    }
}

impl AmqpClientState {
    fn error_of_open(&self, failure: &ConnectionFailure) -> Error {
        let attempt = OpenAttempt {
            address: &self.broker.url.address(),
            user: self.broker.who(),
            mechanism: self.broker.mechanism().name(),
            first_bytes: &self.first_bytes,
        };
        error::of_open(&attempt, failure)
    }
}

fn attached(state: &mut AmqpClientState, id: LinkId, max_message_bytes: Option<u64>) {
    if let Some(slot) = state.slot(id) {
        slot.phase = LinkPhase::Attached;
        slot.max_message_bytes = max_message_bytes.filter(|limit| *limit > 0);
        slot.wake();
    }
    grant_credit(state, id);
}

/// Renews the broker's credit when half of it is used up, so that not every message costs a flow frame.
fn grant_credit(state: &mut AmqpClientState, id: LinkId) {
    let Some(slot) = state.slot(id).filter(|slot| slot.role == LinkRole::Receiver) else { return };
    let wanted = slot.credit_limit.saturating_sub(slot.unsettled);
    let half = slot.credit_limit.div_ceil(2);
    let credit = state.amqp.credit(id);
    if wanted > credit && (credit == 0 || wanted - credit >= half) {
        state.amqp.grant(id, wanted);
    }
}

fn detached(slot: &mut LinkSlot, scope: Scope, error: Option<&EndError>) -> Error {
    let error = match (&slot.phase, error) {
        (LinkPhase::Detached(first), _) => first.clone(),
        (_, Some(EndError::Violation(violation))) => {
            error::of_violation(&slot.queue, slot.message_limit, scope, violation)
        }
        (_, Some(EndError::Peer(error))) => error::of_detach(&slot.queue, scope, error),
        (LinkPhase::Attaching, None) => error::of_refusal(&slot.queue),
        (LinkPhase::Attached, None) if slot.is_closing => {
            slot.is_closed = true;
            Error::Lost { why: "the link has ended".to_owned() }
        }
        (LinkPhase::Attached, None) => {
            Error::Detached { queue: slot.queue.to_string(), scope, why: "no reason was given".to_owned() }
        }
    };
    slot.phase = LinkPhase::Detached(error.clone());
    slot.wake();
    error
}

pub(crate) type SettlementSender = oneshot::Sender<Result<Disposition, Error>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The broker has taken responsibility for the message.
    Accepted,
    /// The broker will never accept the message.
    Rejected {
        /// The broker's error condition, such as `amqp:resource-limit-exceeded`, or empty if the broker gave none.
        condition: String,
        description: String,
    },
    /// The broker has not processed the message, so it can be sent again (AMQP 1.0 part 3 §3.4.4).
    Released,
    /// The broker has not accepted the message. `has_failed` is set if this counts as a failed delivery (§3.4.5).
    Modified { has_failed: bool },
}

impl Disposition {
    pub(crate) fn of(outcome: DeliveryOutcome, error: Option<&PeerError>) -> Self {
        match outcome {
            DeliveryOutcome::Accepted => Self::Accepted,
            DeliveryOutcome::Rejected => Self::Rejected {
                condition: error.map(|error| one_line(&error.condition)).unwrap_or_default(),
                description: error.map(|error| one_line(&error.description)).unwrap_or_default(),
            },
            DeliveryOutcome::Released => Self::Released,
            DeliveryOutcome::Modified { failed } => Self::Modified { has_failed: failed },
        }
    }
}
