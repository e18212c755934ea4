//! First-in, first-out queues in memory, which clients find by address. Each queue limits its messages and bytes.
//!
//! A message stays in its queue until a consumer has accepted or rejected it. Messages that a consumer holds without
//! an answer count towards the limits, because they may come back. When a queue is full, its producers get no more
//! credit, and a message that arrives all the same is released.
//!
//! The consumers of a queue take turns. While another consumer waits for a message, each consumer
//! gets only its share, and a returned message goes to another consumer first. Otherwise a consumer
//! that returns a foreign message would get the same message again and again.
use bytes::{Buf, Bytes};
use mailrun_amqp::{DeliveryOutcome, EncodedMessage, Reader, Writer};
use mailrun_lock::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use tokio::sync::Notify;

/// Maximum number of queues. Without a limit, a peer could create any number of queues, because naming a queue creates
/// it.
const MAX_QUEUES: usize = 256;
pub(super) const MAX_NAME_BYTES: usize = 255;

/// Maximum number of messages that a consumer gets in a turn while other consumers wait. Turns of a single message
/// would be the fairest, but each turn costs a task switch. Turns therefore become that short only when few messages
/// wait.
const MAX_SHARE: usize = 64;

/// Limit of the bytes in all queues together, as a multiple of the limit of one queue. Without it, a peer could use up
/// the memory by creating many queues.
const TOTAL_BYTES_FACTOR: usize = 4;

/// Limits that apply to each queue alone. In addition, all queues together hold at most four times `bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Number of messages, including messages that consumers hold unsettled.
    pub messages: usize,
    pub bytes: usize,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { messages: 100_000, bytes: 256 << 20 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueIndex(usize);

#[derive(Debug)]
pub struct EnqueuedMessage {
    pub message: EncodedMessage,
    /// Number by which the producer learns that a consumer has accepted or rejected this message. `None` if the
    /// producer does not want to know.
    pub confirm_id: Option<u64>,
    queue: QueueIndex,
    /// The consumer that holds the message. If the consumer has returned the message, the field still names this
    /// consumer, so that other consumers get the message first.
    holder: Option<ConsumerId>,
}

impl EnqueuedMessage {
    pub fn queue(&self) -> QueueIndex {
        self.queue
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConsumerId(u64);

#[derive(Debug)]
pub(super) enum TakeResult {
    /// The next message, which the consumer must settle later.
    Message(EnqueuedMessage),
    Empty,
    /// Other consumers get messages first. The consumer is notified when it may ask again.
    OthersFirst,
}

#[derive(Debug)]
struct QueueConsumer {
    id: ConsumerId,
    notify: Arc<Notify>,
    /// Set if the consumer wants a message and will ask for it when it is notified.
    wants_message: bool,
    /// Number of messages that the consumer got in the current round. A round ends when all waiting consumers have had
    /// their share of messages.
    served: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    pub waiting: usize,
    pub held: usize,
    pub bytes: usize,
    pub put: u64,
    pub accepted: u64,
    pub returned: u64,
    /// Number of messages that a consumer rejected, so that they were discarded.
    pub rejected: u64,
    pub refused: u64,
}

#[derive(Debug, Default)]
struct MemoryQueue {
    name: String,
    waiting: VecDeque<EnqueuedMessage>,
    counts: QueueCounts,
    /// The owner of a reserved queue, or `None` if the queue is not reserved. Other consumers may attach to a reserved
    /// queue, but only its owner gets messages.
    owner: Option<Arc<Notify>>,
    consumers: Vec<QueueConsumer>,
    last_served: Option<ConsumerId>,
    /// Producers that wait for room. The references are weak, because a producer's connection may end while it waits.
    waiting_producers: Vec<Weak<Notify>>,
}

#[derive(Debug)]
struct State {
    limits: QueueLimits,
    queues: Vec<MemoryQueue>,
    bytes: usize,
    by_name: HashMap<String, QueueIndex>,
    /// Number of consumers that have ever attached. The count becomes the id of a new consumer.
    consumers: u64,
    /// The `confirm_id` of each accepted or rejected message, until `next_consumed` returns it.
    consumed: VecDeque<(u64, DeliveryOutcome)>,
    consumed_notify: Option<Arc<Notify>>,
}

/// The queues of the simulator's own broker, which keeps all messages in memory. All clones share the same queues.
#[derive(Clone, Debug)]
pub struct MemoryQueues {
    state: Arc<Mutex<State>>,
}

impl MemoryQueues {
    pub fn new(limits: QueueLimits) -> Self {
        let queues = Vec::new();
        let by_name = HashMap::new();
        let consumed = VecDeque::new();
        let state = State { limits, queues, bytes: 0, by_name, consumers: 0, consumed, consumed_notify: None };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Use the state even if a thread has panicked while it held the lock, because no change can be left half done.
        // At worst, one change is missing and a count is wrong by one.
        lock(&self.state)
    }

    /// Returns the queue with this name, and creates the queue if necessary. `None` if the name is
    /// invalid or if there are too many queues.
    pub fn get_or_create(&self, name: &str) -> Option<QueueIndex> {
        let mut state = self.state();
        if let Some(id) = state.by_name.get(name) {
            return Some(*id);
        }
        if name.is_empty() || name.len() > MAX_NAME_BYTES || state.queues.len() >= MAX_QUEUES {
            return None;
        }
        let id = QueueIndex(state.queues.len());
        state.queues.push(MemoryQueue { name: name.to_owned(), ..MemoryQueue::default() });
        state.by_name.insert(name.to_owned(), id);
        Some(id)
    }

    /// Reserves a queue for the caller, so that other consumers that attach to it get nothing.
    pub fn reserve(&self, id: QueueIndex, notify: Arc<Notify>) {
        let queue = &mut self.state().queues[id.0];
        queue.owner = Some(notify);
        queue.consumers.clear();
    }

    pub fn notify_consumed(&self, notify: Arc<Notify>) {
        self.state().consumed_notify = Some(notify);
    }

    /// Returns the next message that a consumer has accepted or rejected: its `confirm_id` and the outcome. Each
    /// message is returned once, in the order of the outcomes. Returns `None` if there is no further outcome yet.
    pub fn next_consumed(&self) -> Option<(u64, DeliveryOutcome)> {
        self.state().consumed.pop_front()
    }

    /// Adds a consumer, which is notified whenever the queue may have a message for it.
    pub(super) fn subscribe(&self, id: QueueIndex, notify: Arc<Notify>) -> ConsumerId {
        let mut state = self.state();
        state.consumers += 1;
        let consumer = ConsumerId(state.consumers);
        let queue = &mut state.queues[id.0];
        if queue.owner.is_none() {
            queue.consumers.push(QueueConsumer { id: consumer, notify, wants_message: false, served: 0 });
        }
        consumer
    }

    pub(super) fn unsubscribe(&self, id: QueueIndex, consumer: ConsumerId) {
        let queue = &mut self.state().queues[id.0];
        queue.consumers.retain(|other| other.id != consumer);
        queue.notify_wanting(None);
    }

    /// Marks a consumer that can take no message now, because it lacks credit or room. Other consumers then do not wait
    /// until this consumer has had its turn.
    pub(super) fn set_idle(&self, id: QueueIndex, consumer: ConsumerId) {
        let queue = &mut self.state().queues[id.0];
        queue.consumers.iter_mut().filter(|other| other.id == consumer).for_each(|idle| idle.wants_message = false);
        queue.notify_wanting(None);
    }

    /// Adds a message to a queue. If the queue has no room for the message, returns the message as the error.
    pub fn put(&self, id: QueueIndex, message: EncodedMessage, confirm_id: Option<u64>) -> Result<(), EncodedMessage> {
        let mut guard = self.state();
        let state = &mut *guard;
        let queue = &mut state.queues[id.0];
        if queue.room(state.limits, state.bytes) == (0, 0) {
            queue.counts.refused += 1;
            return Err(message);
        }
        queue.counts.put += 1;
        queue.counts.waiting += 1;
        queue.counts.bytes += message.bytes();
        state.bytes += message.bytes();
        queue.waiting.push_back(EnqueuedMessage { message, confirm_id, queue: id, holder: None });
        queue.notify_all();
        Ok(())
    }

    /// Returns how many more messages and bytes the queue can take. If nothing fits, `notify` wakes the caller once
    /// there is room.
    pub(super) fn room(&self, id: QueueIndex, notify: &Arc<Notify>) -> (usize, usize) {
        let mut guard = self.state();
        let state = &mut *guard;
        let queue = &mut state.queues[id.0];
        let room = queue.room(state.limits, state.bytes);
        if room == (0, 0) {
            queue.add_waiting_producer(Arc::downgrade(notify));
        }
        room
    }

    /// Returns true if the queue has room for a message. Otherwise, `notify` wakes the caller once there is room.
    pub fn has_room_or_notify(&self, id: QueueIndex, notify: &Arc<Notify>) -> bool {
        self.room(id, notify) != (0, 0)
    }

    /// Takes the first message for the owner of a reserved queue, who must settle it later.
    pub fn take(&self, id: QueueIndex) -> Option<EnqueuedMessage> {
        self.state().queues[id.0].take()
    }

    /// Takes the first message for an attached consumer, if it is this consumer's turn. The
    /// consumer must have room for the message.
    pub(super) fn take_for_consumer(&self, id: QueueIndex, consumer: ConsumerId) -> TakeResult {
        self.state().queues[id.0].next_for(consumer)
    }

    pub fn settle(&self, queued: EnqueuedMessage, outcome: DeliveryOutcome) {
        let mut guard = self.state();
        let state = &mut *guard;
        let queue = &mut state.queues[queued.queue.0];
        queue.counts.held -= 1;
        let before = queue.counts.bytes;
        match outcome {
            DeliveryOutcome::Accepted | DeliveryOutcome::Rejected => {
                queue.counts.bytes -= queued.message.bytes();
                if let Some(confirm_id) = queued.confirm_id {
                    state.consumed.push_back((confirm_id, outcome));
                    state.consumed_notify.iter().for_each(|notify| notify.notify_one());
                }
                match outcome {
                    DeliveryOutcome::Accepted => queue.counts.accepted += 1,
                    _ => queue.counts.rejected += 1,
                }
            }
            DeliveryOutcome::Released => queue.requeue(queued),
            DeliveryOutcome::Modified { failed: false } => queue.requeue(queued),
            DeliveryOutcome::Modified { failed: true } => {
                queue.counts.bytes -= queued.message.bytes();
                let queued = redelivered(queued);
                queue.counts.bytes += queued.message.bytes();
                queue.requeue(queued);
            }
        }
        state.bytes = state.bytes - before + queue.counts.bytes;
        let limits = state.limits;
        let bytes = state.bytes;
        // Notify the producers of every queue, because all queues share the limit of bytes.
        state.queues.iter_mut().for_each(|queue| queue.notify_if_room(limits, bytes));
    }

    pub fn counts(&self, id: QueueIndex) -> QueueCounts {
        self.state().queues[id.0].counts
    }

    pub fn names(&self) -> Vec<String> {
        self.state().queues.iter().map(|queue| queue.name.clone()).collect()
    }
}

impl MemoryQueue {
    /// Returns how many more messages and bytes this queue can take. `all_bytes` is the size of all messages in all
    /// queues, for which there is a common limit. If any limit is reached, both numbers are 0, because no message fits.
    fn room(&self, limits: QueueLimits, all_bytes: usize) -> (usize, usize) {
        let messages = limits.messages.saturating_sub(self.counts.waiting + self.counts.held);
        let of_all = limits.bytes.saturating_mul(TOTAL_BYTES_FACTOR).saturating_sub(all_bytes);
        let bytes = limits.bytes.saturating_sub(self.counts.bytes).min(of_all);
        if messages == 0 || bytes == 0 { (0, 0) } else { (messages, bytes) }
    }

    fn add_waiting_producer(&mut self, producer: Weak<Notify>) {
        if !self.waiting_producers.iter().any(|other| other.ptr_eq(&producer)) {
            // Remove disconnected producers. Otherwise the list would grow forever while the queue stays full.
            self.waiting_producers.retain(|other| other.strong_count() > 0);
            self.waiting_producers.push(producer);
        }
    }

    fn take(&mut self) -> Option<EnqueuedMessage> {
        let queued = self.waiting.pop_front()?;
        self.counts.waiting -= 1;
        self.counts.held += 1;
        Some(queued)
    }

    /// Returns the next message, or `OthersFirst` if other consumers must get messages first. To prevent a deadlock, a
    /// consumer waits only for other consumers that want a message, and these consumers are notified.
    fn next_for(&mut self, id: ConsumerId) -> TakeResult {
        let Some(at) = self.consumers.iter().position(|consumer| consumer.id == id) else { return TakeResult::Empty };
        self.consumers[at].wants_message = true;
        let Some(first) = self.waiting.front() else { return TakeResult::Empty };
        let gave_it_back = first.holder;
        let share = (self.waiting.len() / (2 * self.consumers.len())).clamp(1, MAX_SHARE);
        let had_its_share = self.consumers[at].served >= share;
        // Do not wait for the consumer that returned the first message, because it would return the message again.
        let others = self.consumers.iter().filter(|other| other.wants_message && other.id != id);
        let mut others = others.filter(|other| gave_it_back != Some(other.id)).peekable();
        let is_contested = others.peek().is_some();
        let is_new_round = had_its_share && others.all(|other| other.served >= share);
        if is_new_round {
            self.consumers.iter_mut().for_each(|consumer| consumer.served = 0);
        }
        // The consumer that ended the last round must not begin the next one, because it would get two shares in a row.
        let goes_on = !had_its_share || is_new_round && self.last_served != Some(id);
        if is_contested && (gave_it_back == Some(id) || !goes_on) {
            self.notify_wanting(Some(id));
            return TakeResult::OthersFirst;
        }
        self.last_served = Some(id);
        self.consumers[at].wants_message = false;
        self.consumers[at].served += 1;
        let queued = self.take().map(|message| EnqueuedMessage { holder: Some(id), ..message });
        queued.map_or(TakeResult::Empty, TakeResult::Message)
    }

    fn requeue(&mut self, queued: EnqueuedMessage) {
        self.counts.returned += 1;
        self.counts.waiting += 1;
        self.waiting.push_front(queued);
        self.notify_all();
    }

    fn notify_all(&self) {
        self.owner.iter().for_each(|notify| notify.notify_one());
        self.consumers.iter().for_each(|consumer| consumer.notify.notify_one());
    }

    /// If the queue is not empty, notifies all consumers that want a message, except the consumer `but`.
    fn notify_wanting(&self, but: Option<ConsumerId>) {
        if !self.waiting.is_empty() {
            let hungry = self.consumers.iter().filter(|consumer| consumer.wants_message && Some(consumer.id) != but);
            hungry.for_each(|consumer| consumer.notify.notify_one());
        }
    }

    /// Notifies waiting producers when a quarter of the room is free. Notifying them for every
    /// message would be expensive.
    fn notify_if_room(&mut self, limits: QueueLimits, all_bytes: usize) {
        if self.waiting_producers.is_empty() {
            return;
        }
        let (messages, bytes) = self.room(limits, all_bytes);
        if messages > limits.messages / 4 && bytes > limits.bytes / 4 {
            let producers = self.waiting_producers.drain(..).filter_map(|producer| producer.upgrade());
            producers.for_each(|notify| notify.notify_one());
        }
    }
}

/// Adds one failed delivery to the `delivery-count` in the message's header (AMQP 1.0 §3.2.1).
fn redelivered(mut queued: EnqueuedMessage) -> EnqueuedMessage {
    let whole = queued.message.whole();
    let mut reader = Reader::new(&whole);
    let header = reader.value().ok().filter(|section| section.descriptor() == Some(0x70));
    let rest = header.map_or(whole.len(), |_| reader.rest().len());
    let mut octets = Vec::with_capacity(24);
    Writer::new(&mut octets).described_list(0x70, |fields| {
        let mut old = header.and_then(|header| header.as_list());
        for _ in 0..4 {
            // Copy the fields durable, priority, ttl and first-acquirer, because only delivery-count changes.
            match old.as_mut().and_then(|old| old.element().ok().flatten()) {
                Some(field) => fields.raw(field.octets()),
                None => fields.null(),
            }
        }
        let attempts = old.and_then(|mut old| old.number().ok().flatten()).unwrap_or(0);
        fields.uint(u32::try_from(attempts).unwrap_or(u32::MAX).saturating_add(1));
    });
    let mut body: Bytes = whole.clone();
    body.advance(whole.len() - rest);
    let mut message = EncodedMessage::from(octets);
    message.push(body);
    queued.message = message;
    queued
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queues(messages: usize, bytes: usize) -> (MemoryQueues, QueueIndex) {
        let queues = MemoryQueues::new(QueueLimits { messages, bytes });
        let id = queues.get_or_create("q").unwrap();
        (queues, id)
    }

    fn message(text: &str) -> EncodedMessage {
        EncodedMessage::from(text.as_bytes().to_vec())
    }

    fn text(queued: &EnqueuedMessage) -> String {
        String::from_utf8(queued.message.whole().to_vec()).unwrap()
    }

    fn take_message(queues: &MemoryQueues, id: QueueIndex, consumer: ConsumerId) -> Option<EnqueuedMessage> {
        match queues.take_for_consumer(id, consumer) {
            TakeResult::Message(message) => Some(message),
            TakeResult::Empty | TakeResult::OthersFirst => None,
        }
    }

    #[test]
    fn first_in_is_first_out_and_what_comes_back_is_first_again() {
        let (queues, id) = queues(10, 1000);
        for name in ["a", "b", "c"] {
            queues.put(id, message(name), None).unwrap();
        }
        let first = queues.take(id).unwrap();
        assert_eq!((text(&first).as_str(), queues.counts(id).held), ("a", 1));
        queues.settle(first, DeliveryOutcome::Released);
        assert_eq!(queues.take(id).map(|queued| text(&queued)).as_deref(), Some("a"));
        let second = queues.take(id).unwrap();
        queues.settle(second, DeliveryOutcome::Rejected);
        let counts = queues.counts(id);
        assert_eq!((counts.waiting, counts.held, counts.bytes), (1, 1, 2));
        assert_eq!((counts.put, counts.returned, counts.rejected, counts.accepted), (3, 1, 1, 0));
    }

    #[test]
    fn a_full_queue_takes_nothing_until_something_was_settled() {
        let (queues, id) = queues(2, 1000);
        queues.put(id, message("a"), None).unwrap();
        queues.put(id, message("b"), None).unwrap();
        assert_eq!(queues.put(id, message("c"), None), Err(message("c")));
        let notify = Arc::new(Notify::new());
        let held = queues.take(id).unwrap();
        assert_eq!(queues.room(id, &notify), (0, 0), "what is held still takes its room");
        // Producers that disconnect while they wait for room must not stay in the list and use up memory.
        (0..1_000).for_each(|_| assert_eq!(queues.room(id, &Arc::new(Notify::new())), (0, 0)));
        assert!(queues.state().queues[id.0].waiting_producers.len() <= 2);
        queues.settle(held, DeliveryOutcome::Accepted);
        assert_eq!(queues.room(id, &notify), (1, 999));
        assert_eq!(queues.counts(id).refused, 1);
    }

    #[tokio::test]
    async fn who_waits_for_room_or_a_message_is_told() {
        let (queues, id) = queues(1, 1000);
        let (consumer, producer, publisher) = <(Arc<Notify>, Arc<Notify>, Arc<Notify>)>::default();
        let asking = queues.subscribe(id, Arc::clone(&consumer));
        queues.notify_consumed(Arc::clone(&publisher));
        queues.put(id, message("a"), Some(7)).unwrap();
        consumer.notified().await;
        assert_eq!(queues.room(id, &producer), (0, 0));
        let queued = take_message(&queues, id, asking).unwrap();
        queues.settle(queued, DeliveryOutcome::Accepted);
        producer.notified().await;
        publisher.notified().await;
        assert_eq!((queues.next_consumed(), queues.next_consumed()), (Some((7, DeliveryOutcome::Accepted)), None));
        queues.put(id, message("b"), Some(8)).unwrap();
        for outcome in [DeliveryOutcome::Released, DeliveryOutcome::Rejected] {
            assert_eq!(queues.next_consumed(), None, "a message that comes back is not consumed");
            let queued = take_message(&queues, id, asking).unwrap();
            queues.settle(queued, outcome);
        }
        publisher.notified().await;
        assert_eq!((queues.next_consumed(), queues.next_consumed()), (Some((8, DeliveryOutcome::Rejected)), None));
    }

    #[tokio::test]
    async fn all_queues_together_are_bounded_and_who_waits_is_told_whichever_frees_it() {
        let (queues, first) = queues(100, 1000);
        let ids: Vec<QueueIndex> = (0..6).map(|number| queues.get_or_create(&format!("q{number}")).unwrap()).collect();
        for id in &ids[..TOTAL_BYTES_FACTOR] {
            queues.put(*id, EncodedMessage::from(vec![0; 1000]), None).unwrap();
        }
        let notify = Arc::<Notify>::default();
        assert_eq!(queues.room(first, &notify), (0, 0), "empty as it is");
        assert!(queues.put(first, message("a"), None).is_err());
        let queued = queues.take(ids[0]).unwrap();
        queues.settle(queued, DeliveryOutcome::Accepted);
        notify.notified().await;
        assert_eq!(queues.room(first, &notify), (100, 1000));
    }

    #[test]
    fn a_reserved_queue_is_for_one_alone() {
        let (queues, id) = queues(10, 1000);
        queues.reserve(id, Arc::default());
        queues.put(id, message("a"), None).unwrap();
        let unowned = queues.subscribe(id, Arc::default());
        assert!(take_message(&queues, id, unowned).is_none());
        assert!(queues.take(id).is_some());
    }

    /// Makes an empty queue at which this many consumers wait for messages. Also returns the consumers with their
    /// notifiers.
    fn contested(consumers: usize) -> (MemoryQueues, QueueIndex, Vec<(ConsumerId, Arc<Notify>)>) {
        let (queues, id) = queues(1000, 100_000);
        let notify: Vec<Arc<Notify>> = (0..consumers).map(|_| Arc::default()).collect();
        let subscribed = notify.into_iter().map(|notify| (queues.subscribe(id, Arc::clone(&notify)), notify));
        let consumers: Vec<_> = subscribed.collect();
        assert!(consumers.iter().all(|(consumer, _)| take_message(&queues, id, *consumer).is_none()));
        (queues, id, consumers)
    }

    fn fill(queues: &MemoryQueues, id: QueueIndex, messages: usize) {
        (0..messages).for_each(|number| queues.put(id, message(&number.to_string()), None).unwrap());
    }

    /// Lets each notified consumer take messages until the queue gives it no more, and repeats this until no consumer
    /// is notified. `each` must settle the messages. Returns how many messages each consumer got.
    fn messages_taken(
        queues: &MemoryQueues,
        id: QueueIndex,
        consumers: &[(ConsumerId, Arc<Notify>)],
        mut each: impl FnMut(usize, EnqueuedMessage),
    ) -> Vec<usize> {
        let mut helpings = vec![0; consumers.len()];
        let mut any = true;
        while std::mem::take(&mut any) {
            for (number, (consumer, notify)) in consumers.iter().enumerate() {
                // `enable` returns true if the queue has notified the consumer since the last call.
                if !std::pin::pin!(notify.notified()).enable() {
                    continue;
                }
                any = true;
                while let Some(queued) = take_message(queues, id, *consumer) {
                    helpings[number] += 1;
                    each(number, queued);
                }
            }
        }
        helpings
    }

    #[test]
    fn who_waits_for_messages_gets_as_many_as_the_others() {
        for (messages, consumers) in [(400, 2), (400, 3), (7, 2), (1000, 5)] {
            let (queues, id, all) = contested(consumers);
            fill(&queues, id, messages);
            let helpings =
                messages_taken(&queues, id, &all, |_, message| queues.settle(message, DeliveryOutcome::Accepted));
            assert_eq!(helpings.iter().sum::<usize>(), messages);
            let smallest = helpings.iter().min().unwrap();
            let largest = helpings.iter().max().unwrap();
            assert!(largest - smallest <= MAX_SHARE.min(messages / 2), "{helpings:?}");
        }
    }

    #[test]
    fn messages_that_come_one_by_one_go_to_each_in_turn() {
        let (queues, id, all) = contested(3);
        let mut order = Vec::new();
        for _ in 0..9 {
            fill(&queues, id, 1);
            messages_taken(&queues, id, &all, |who, message| {
                order.push(who);
                queues.settle(message, DeliveryOutcome::Accepted);
            });
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn what_one_gives_back_the_other_gets() {
        let (queues, id, all) = contested(2);
        fill(&queues, id, 400);
        let mut released = 0;
        let helpings = messages_taken(&queues, id, &all, |who, message| {
            released += usize::from(who == 0);
            assert!(released < 400, "it gets again and again what it gave back");
            queues.settle(message, if who == 0 { DeliveryOutcome::Released } else { DeliveryOutcome::Accepted });
        });
        assert_eq!((helpings[1], queues.counts(id).waiting), (400, 0));
    }

    #[test]
    fn nobody_waits_for_one_that_can_take_nothing_or_has_gone() {
        let (queues, id, all) = contested(2);
        let first = all[0].0;
        let second = all[1].0;
        fill(&queues, id, 2);
        let queued = take_message(&queues, id, first).unwrap();
        assert!(matches!(queues.take_for_consumer(id, first), TakeResult::OthersFirst));
        queues.set_idle(id, second);
        assert!(std::pin::pin!(all[0].1.notified()).enable(), "it is told");
        // A consumer that has returned a message must get it again only if no other consumer wants it.
        queues.settle(queued, DeliveryOutcome::Released);
        assert_eq!([1, 2].map(|_| take_message(&queues, id, first).is_some()), [true, true]);
        assert!(take_message(&queues, id, second).is_none());
        fill(&queues, id, 1);
        assert!(matches!(queues.take_for_consumer(id, first), TakeResult::OthersFirst));
        queues.unsubscribe(id, second);
        assert!(take_message(&queues, id, first).is_some());
    }

    proptest! {
        /// Each consumer takes as many messages as it has credit for, and then waits until it is notified. No message
        /// may be left in the queue because two consumers wait for each other, or because a consumer that would take
        /// the message is not notified.
        #[test]
        fn no_message_is_left_while_somebody_would_take_it(
            steps in proptest::collection::vec((0usize..4, 0usize..5, 0usize..6), 0..100),
        ) {
            let (queues, id, all) = contested(4);
            let mut held: Vec<EnqueuedMessage> = Vec::new();
            for (who, credit, back) in steps {
                fill(&queues, id, back);
                let consumer = all[who].0;
                let got: Vec<EnqueuedMessage> = (0..credit).map_while(|_| take_message(&queues, id, consumer)).collect();
                let still_asks = got.len() < credit;
                held.extend(got);
                if !still_asks {
                    queues.set_idle(id, consumer);
                }
                for queued in held.drain(..back.min(held.len())) {
                    let own = queued.holder == Some(consumer);
                    queues.settle(queued, if own { DeliveryOutcome::Released } else { DeliveryOutcome::Accepted });
                }
            }
            // Notify all consumers, as if each had granted new credit. They must then take all waiting messages.
            all.iter().for_each(|(_, notify)| notify.notify_one());
            let waiting = queues.counts(id).waiting;
            let helpings = messages_taken(&queues, id, &all, |_, message| queues.settle(message, DeliveryOutcome::Accepted));
            prop_assert_eq!((helpings.iter().sum::<usize>(), queues.counts(id).waiting), (waiting, 0));
            fill(&queues, id, 50);
            let helpings = messages_taken(&queues, id, &all, |_, message| queues.settle(message, DeliveryOutcome::Accepted));
            prop_assert_eq!((helpings.iter().sum::<usize>(), queues.counts(id).waiting), (50, 0));
        }
    }

    #[test]
    fn a_failed_attempt_is_in_the_header() {
        let attempts = |octets: &[u8]| {
            let section = Reader::new(octets).value().unwrap();
            let mut fields = section.as_list().unwrap();
            let durable = fields.boolean().unwrap();
            fields.skip(3).unwrap();
            (section.descriptor(), durable, fields.number().unwrap())
        };
        let mut with_header = Vec::new();
        Writer::new(&mut with_header).described_list(0x70, |fields| fields.boolean(true));
        let mut body = Vec::new();
        Writer::new(&mut body).described_binary(0x75, b"text");
        with_header.extend_from_slice(&body);
        for (octets, durable) in [(&with_header, true), (&body, false)] {
            let (queues, id) = queues(10, 1000);
            queues.put(id, EncodedMessage::from(octets.clone()), None).unwrap();
            for attempt in 1..=2 {
                let queued = queues.take(id).unwrap();
                queues.settle(queued, DeliveryOutcome::Modified { failed: true });
                let queued = queues.take(id).unwrap();
                let whole = queued.message.whole();
                assert_eq!(attempts(&whole), (Some(0x70), durable, Some(attempt)));
                assert!(whole.ends_with(&body));
                queues.settle(queued, DeliveryOutcome::Modified { failed: false });
            }
        }
    }

    #[test]
    fn names_and_their_number_are_bounded() {
        let (queues, id) = queues(10, 1000);
        assert_eq!(
            (queues.get_or_create("q"), queues.get_or_create(""), queues.get_or_create(&"x".repeat(256))),
            (Some(id), None, None)
        );
        let made = (0..1000).filter(|number| queues.get_or_create(&format!("queue {number}")).is_some()).count();
        assert_eq!((made, queues.names().len()), (MAX_QUEUES - 1, MAX_QUEUES));
    }
}
