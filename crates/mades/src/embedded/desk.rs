//! A connection at the queues: what its links bring is put in, what they may have is taken out. No socket, no clock.
use super::conversation::{Conversation, Event, Fault, LinkId};
use super::frame::{Outcome, Role};
use super::queues::{ConsumerId, Helping, Letter, QueueId, Queues};
use super::rope::Rope;
use super::sasl::Mechanisms;
use bytes::{Buf, BytesMut};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// Messages that a producer may send ahead.
const MOST_CREDIT: usize = 1000;
/// Bytes waiting to be written from which on no message is taken out of a queue: another consumer might get it
/// sooner.
const ENOUGH_TO_WRITE: usize = 512 << 10;

struct Producer {
    queue: QueueId,
    /// Length of its last message: an estimate of the bytes that one credit stands for.
    last_bytes: usize,
}

struct Consumer {
    link: LinkId,
    queue: QueueId,
    id: ConsumerId,
    /// Set if it has asked for messages since it last rested: others may wait for it.
    asks: bool,
}

impl Consumer {
    /// Marks it as unable to take messages now.
    fn rest(&mut self, queues: &Queues) {
        if std::mem::take(&mut self.asks) {
            queues.rest(self.queue, self.id);
        }
    }
}

/// One connection's dealings.
pub(super) struct Desk {
    conversation: Conversation<Letter>,
    queues: Queues,
    told: Arc<Notify>,
    producers: HashMap<LinkId, Producer>,
    consumers: Vec<Consumer>,
    /// Messages that come back, in the order in which they were sent.
    returning: Vec<(Letter, Outcome)>,
}

impl Desk {
    pub(super) fn new(queues: Queues, mechanisms: Mechanisms, container: &str, most_bytes: u64) -> Self {
        Self {
            conversation: Conversation::new(mechanisms, container, most_bytes),
            queues,
            told: Arc::default(),
            producers: HashMap::new(),
            consumers: Vec::new(),
            returning: Vec::new(),
        }
    }

    /// Notified when there may be something to do.
    pub(super) fn told(&self) -> Arc<Notify> {
        Arc::clone(&self.told)
    }

    /// Output buffer.
    pub(super) fn out(&mut self) -> &mut Rope {
        self.conversation.out()
    }

    pub(super) fn conversation(&mut self) -> &mut Conversation<Letter> {
        &mut self.conversation
    }

    /// Does all there is to do: with what was read, and with what is in the queues.
    pub(super) fn turn(&mut self, input: &mut BytesMut) -> Result<(), Fault> {
        let done = self.work(input);
        if done.is_err() || self.conversation.is_closed() {
            // No consumer may wait for one whose connection is closing.
            self.stop_consuming();
        }
        done
    }

    fn work(&mut self, input: &mut BytesMut) -> Result<(), Fault> {
        self.hear(input)?;
        self.take_out();
        // What was sent settled is settled.
        self.hear(input)?;
        self.let_send();
        self.conversation.say_settled();
        Ok(())
    }

    fn hear(&mut self, input: &mut BytesMut) -> Result<(), Fault> {
        let heard = loop {
            match self.conversation.next_event(input) {
                Ok(Some(event)) => self.act(event),
                Ok(None) => break Ok(()),
                Err(fault) => break Err(fault),
            }
        };
        self.give_back();
        heard
    }

    fn act(&mut self, event: Event<Letter>) {
        match event {
            Event::Attached { link, peer, address } => self.attach(link, peer, &address),
            Event::Arrived { link, delivery, message, settled } => {
                let Some(producer) = self.producers.get_mut(&link) else { return };
                producer.last_bytes = message.bytes();
                let put = self.queues.put(producer.queue, message, None);
                if !settled {
                    let outcome = if put.is_ok() { Outcome::Accepted } else { Outcome::Released };
                    self.conversation.settle(link, delivery, outcome);
                }
            }
            Event::Settled { sent, outcome } => match outcome {
                Outcome::Accepted | Outcome::Rejected => self.queues.settle(sent, outcome),
                Outcome::Released | Outcome::Modified { .. } => self.returning.push((sent, outcome)),
            },
            Event::Detached { link, unsettled } => {
                let failed = Outcome::Modified { failed: true };
                self.returning.extend(unsettled.into_iter().map(|letter| (letter, failed)));
                self.leave(link);
            }
            Event::Flowed | Event::Closed => {}
        }
    }

    /// The last that was sent goes back first, so that the first is first again.
    fn give_back(&mut self) {
        while let Some((letter, outcome)) = self.returning.pop() {
            self.queues.settle(letter, outcome);
        }
    }

    fn attach(&mut self, link: LinkId, peer: Role, address: &str) {
        let Some(queue) = self.queues.named(address) else {
            let why = "too many queues, or not a valid queue name";
            return self.conversation.refuse(link, "amqp:resource-limit-exceeded", why);
        };
        self.conversation.accept(link);
        match peer {
            Role::Sender => {
                self.producers.insert(link, Producer { queue, last_bytes: 0 });
            }
            Role::Receiver => {
                let id = self.queues.subscribe(queue, self.told());
                self.consumers.push(Consumer { link, queue, id, asks: false });
            }
        }
    }

    fn leave(&mut self, link: LinkId) {
        self.producers.remove(&link);
        if let Some(at) = self.consumers.iter().position(|consumer| consumer.link == link) {
            let gone = self.consumers.swap_remove(at);
            self.queues.unsubscribe(gone.queue, gone.id);
        }
    }

    fn stop_consuming(&mut self) {
        for gone in self.consumers.drain(..) {
            self.queues.unsubscribe(gone.queue, gone.id);
        }
    }

    /// Takes out what may be sent, a message for each link in turn.
    fn take_out(&mut self) {
        let mut more = true;
        while more && self.conversation.out().remaining() < ENOUGH_TO_WRITE {
            more = false;
            for consumer in &mut self.consumers {
                if !self.conversation.may_send(consumer.link) {
                    consumer.rest(&self.queues);
                    continue;
                }
                consumer.asks = true;
                match self.queues.take_for_consumer(consumer.queue, consumer.id) {
                    Helping::Letter(letter) => {
                        self.conversation.send(consumer.link, letter.message.clone(), letter);
                        more = true;
                    }
                    Helping::Nothing => self.conversation.drained(consumer.link),
                    Helping::OthersFirst => {}
                }
            }
        }
        if more {
            // There is enough to write: they come again when it is written.
            self.consumers.iter_mut().for_each(|consumer| consumer.rest(&self.queues));
        }
    }

    /// Gives producers credit for as much as finds room, when half of the last is used up.
    fn let_send(&mut self) {
        for (link, producer) in &self.producers {
            let credit = self.conversation.credit(*link) as usize;
            if credit > MOST_CREDIT / 2 {
                continue;
            }
            let (messages, bytes) = self.queues.room(producer.queue, &self.told);
            let by_bytes = bytes / producer.last_bytes.max(1);
            let wanted = messages.min(by_bytes.max(usize::from(bytes > 0))).min(MOST_CREDIT);
            if wanted > credit && wanted >= credit * 2 {
                self.conversation.grant(*link, wanted as u32);
            }
        }
    }

    /// Puts back what was sent and not settled: the connection is no more.
    pub(super) fn close(mut self) {
        self.stop_consuming();
        let unsettled = self.conversation.into_unsettled();
        for letter in unsettled.into_iter().rev() {
            self.queues.settle(letter, Outcome::Modified { failed: true });
        }
    }
}
