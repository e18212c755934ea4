//! Serves one AMQP connection of the simulator's own broker, without a socket or a clock. The session puts incoming
//! messages into the queues, and takes out messages for the consumers of the connection.
use super::queues::{ConsumerId, EnqueuedMessage, MAX_NAME_BYTES, MemoryQueues, QueueIndex, TakeResult};
use bytes::{Buf, BytesMut};
use mailrun_amqp::{
    AmqpConnection, ConnectionError, ConnectionEvent, DeliveryOutcome, LinkId, LinkRole, ListenerAuth, OutputBuffer,
};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;

const MAX_CREDIT: usize = 1000;
/// While more bytes than this wait to be written, the session takes no messages from the queues, because consumers on
/// other connections may get these messages sooner.
const OUTPUT_LIMIT: usize = 512 << 10;

struct ProducerLink {
    queue: QueueIndex,
    /// Length in bytes of the last message of this producer. When credit is granted, the next
    /// messages are expected to have this length.
    last_bytes: usize,
}

struct ConsumerLink {
    link: LinkId,
    queue: QueueIndex,
    id: ConsumerId,
    /// Set while the queue counts this consumer as waiting, so that other consumers leave messages to it.
    wants_messages: bool,
}

impl ConsumerLink {
    fn set_idle(&mut self, queues: &MemoryQueues) {
        if std::mem::take(&mut self.wants_messages) {
            queues.set_idle(self.queue, self.id);
        }
    }
}

/// A connection above the maximum number of connections is `Refused`: the session closes it with an error as soon as it
/// is open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Granted,
    Refused,
}

pub(super) struct BrokerSession {
    admission: Admission,
    connection: AmqpConnection<EnqueuedMessage>,
    queues: MemoryQueues,
    notify: Arc<Notify>,
    producers: HashMap<LinkId, ProducerLink>,
    consumers: Vec<ConsumerLink>,
    /// Messages that go back to their queues, in the order in which they were sent.
    returned: Vec<(EnqueuedMessage, DeliveryOutcome)>,
}

impl BrokerSession {
    pub(super) fn new(
        queues: MemoryQueues,
        mechanisms: ListenerAuth,
        container: &str,
        max_message_bytes: u64,
        admission: Admission,
    ) -> Self {
        Self {
            admission,
            connection: AmqpConnection::server(mechanisms, container, max_message_bytes),
            queues,
            notify: Arc::default(),
            producers: HashMap::new(),
            consumers: Vec::new(),
            returned: Vec::new(),
        }
    }

    pub(super) fn notify(&self) -> Arc<Notify> {
        Arc::clone(&self.notify)
    }

    pub(super) fn output(&mut self) -> &mut OutputBuffer {
        self.connection.output()
    }

    pub(super) fn connection(&mut self) -> &mut AmqpConnection<EnqueuedMessage> {
        &mut self.connection
    }

    pub(super) fn process(&mut self, input: &mut BytesMut) -> Result<(), ConnectionError> {
        if self.admission == Admission::Refused {
            return self.refuse(input);
        }
        let done = self.process_events(input);
        if done.is_err() || self.connection.is_closed() {
            // Remove the consumers of the ended connection. Otherwise the queue would keep messages for them.
            self.stop_consuming();
        }
        done
    }

    /// Closes the connection with an error once it is open, because the peer cannot read the error earlier.
    fn refuse(&mut self, input: &mut BytesMut) -> Result<(), ConnectionError> {
        while self.connection.next_event(input)?.is_some() {}
        if self.connection.is_open() {
            self.connection.write_close(Some(("amqp:resource-limit-exceeded", "too many connections")));
        }
        Ok(())
    }

    fn process_events(&mut self, input: &mut BytesMut) -> Result<(), ConnectionError> {
        self.read_events(input)?;
        self.send_queued();
        // A message that was sent as settled frees its room in the queue only when its `Settled` event is handled. So
        // handle these events before granting producers credit for the free room.
        self.read_events(input)?;
        self.grant_credit();
        self.connection.write_dispositions();
        Ok(())
    }

    fn read_events(&mut self, input: &mut BytesMut) -> Result<(), ConnectionError> {
        let result = loop {
            match self.connection.next_event(input) {
                Ok(Some(event)) => self.handle_event(event),
                Ok(None) => break Ok(()),
                Err(fault) => break Err(fault),
            }
        };
        self.requeue_returned();
        result
    }

    fn handle_event(&mut self, event: ConnectionEvent<EnqueuedMessage>) {
        match event {
            ConnectionEvent::Attached { link, peer, address, .. } => self.attach(link, peer, &address),
            ConnectionEvent::MessageReceived { link, delivery, message, settled } => {
                let Some(producer) = self.producers.get_mut(&link) else { return };
                producer.last_bytes = message.bytes();
                let result = self.queues.put(producer.queue, message, None);
                if !settled {
                    let outcome = if result.is_ok() { DeliveryOutcome::Accepted } else { DeliveryOutcome::Released };
                    self.connection.settle(link, delivery, outcome);
                }
            }
            ConnectionEvent::Settled { sent, outcome, .. } => match outcome {
                DeliveryOutcome::Accepted | DeliveryOutcome::Rejected => self.queues.settle(sent, outcome),
                DeliveryOutcome::Released | DeliveryOutcome::Modified { .. } => self.returned.push((sent, outcome)),
            },
            ConnectionEvent::Detached { link, unsettled, .. } => {
                let failed = DeliveryOutcome::Modified { failed: true };
                self.returned.extend(unsettled.into_iter().map(|queued| (queued, failed)));
                self.detach(link);
            }
            ConnectionEvent::Opened
            | ConnectionEvent::CreditChanged
            | ConnectionEvent::Drained { .. }
            | ConnectionEvent::Ended { .. }
            | ConnectionEvent::Closed { .. } => {}
        }
    }

    /// Gives the returned messages back to their queues, the last message first, so that they are at the front of their
    /// queues in the old order.
    fn requeue_returned(&mut self) {
        while let Some((queued, outcome)) = self.returned.pop() {
            self.queues.settle(queued, outcome);
        }
    }

    fn attach(&mut self, link: LinkId, peer: LinkRole, address: &str) {
        let Some(queue) = self.queues.get_or_create(address) else {
            let (condition, reason) = if address.len() > MAX_NAME_BYTES {
                ("amqp:invalid-field", "the name of the queue is too long")
            } else {
                ("amqp:resource-limit-exceeded", "too many queues")
            };
            return self.connection.refuse(link, condition, reason);
        };
        self.connection.accept(link);
        match peer {
            LinkRole::Sender => {
                self.producers.insert(link, ProducerLink { queue, last_bytes: 0 });
            }
            LinkRole::Receiver => {
                let id = self.queues.subscribe(queue, self.notify());
                self.consumers.push(ConsumerLink { link, queue, id, wants_messages: false });
            }
        }
    }

    fn detach(&mut self, link: LinkId) {
        self.producers.remove(&link);
        if let Some(at) = self.consumers.iter().position(|consumer| consumer.link == link) {
            let consumer = self.consumers.swap_remove(at);
            self.queues.unsubscribe(consumer.queue, consumer.id);
        }
    }

    fn stop_consuming(&mut self) {
        for consumer in self.consumers.drain(..) {
            self.queues.unsubscribe(consumer.queue, consumer.id);
        }
    }

    /// Sends messages from the queues over all links that have credit, one message for each link in turn.
    fn send_queued(&mut self) {
        let mut more = true;
        while more && self.connection.output().remaining() < OUTPUT_LIMIT {
            more = false;
            for consumer in &mut self.consumers {
                if !self.connection.may_send(consumer.link) {
                    consumer.set_idle(&self.queues);
                    // If the peer has asked to drain the link and no message waits, return its unused credit.
                    if self.connection.is_draining(consumer.link) && self.queues.counts(consumer.queue).waiting == 0 {
                        self.connection.complete_drain(consumer.link);
                    }
                    continue;
                }
                consumer.wants_messages = true;
                match self.queues.take_for_consumer(consumer.queue, consumer.id) {
                    TakeResult::Message(queued) => {
                        self.connection.send(consumer.link, queued.message.clone(), queued);
                        more = true;
                    }
                    TakeResult::Empty => self.connection.complete_drain(consumer.link),
                    TakeResult::OthersFirst => {}
                }
            }
        }
        if more {
            // While the output is full, mark the consumers as idle, so that the queue does not keep messages for them.
            self.consumers.iter_mut().for_each(|consumer| consumer.set_idle(&self.queues));
        }
    }

    /// When half of a producer's credit is used up, renews the credit as far as the queue has room.
    fn grant_credit(&mut self) {
        for (link, producer) in &self.producers {
            let credit = self.connection.credit(*link) as usize;
            if credit > MAX_CREDIT / 2 {
                continue;
            }
            let (messages, bytes) = self.queues.room(producer.queue, &self.notify);
            let by_bytes = bytes / producer.last_bytes.max(1);
            let wanted = messages.min(by_bytes.max(usize::from(bytes > 0))).min(MAX_CREDIT);
            if wanted > credit && wanted >= credit * 2 {
                self.connection.grant(*link, wanted as u32);
            }
        }
    }

    /// Returns all unsettled messages to the queues, because the connection is gone.
    pub(super) fn close(mut self) {
        self.stop_consuming();
        let unsettled = self.connection.take_unsettled();
        for queued in unsettled.into_iter().rev() {
            self.queues.settle(queued, DeliveryOutcome::Modified { failed: true });
        }
    }
}
