//! The queues, by address: in memory, bounded in messages and octets, first in first out.
//!
//! A message is in a queue until it is settled: what a consumer holds unsettled counts as long as it may come back. When
//! a queue is full its producers get no more credit; what arrives although they had none is released, and stays theirs.
use super::frame::Outcome;
use super::octets::{Reader, Writer};
use super::rope::Message;
use bytes::{Buf, Bytes};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Queues at a time: their names come from peers.
const MOST_QUEUES: usize = 256;
/// The longest name of a queue.
const LONGEST_NAME: usize = 255;

/// All queues together hold as many octets as so many full ones: their names come from peers.
const FULL_QUEUES: usize = 4;

/// How much a queue holds; all of them hold no more than four times its octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Messages, those included that consumers hold unsettled.
    pub messages: usize,
    /// Octets of them.
    pub bytes: usize,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { messages: 100_000, bytes: 256 << 20 }
    }
}

/// Which queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId(usize);

/// A message in a queue.
#[derive(Debug)]
pub struct Letter {
    /// The message, encoded.
    pub message: Message,
    /// What the one who put it there wants to hear when a consumer has accepted it.
    pub notice: Option<u64>,
    queue: QueueId,
}

impl Letter {
    /// Which queue it is in.
    pub fn queue(&self) -> QueueId {
        self.queue
    }
}

/// What a queue holds and has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Messages that wait.
    pub waiting: usize,
    /// Messages that consumers hold unsettled.
    pub held: usize,
    /// Octets of both.
    pub bytes: usize,
    /// Messages put in.
    pub put: u64,
    /// Messages accepted by consumers.
    pub accepted: u64,
    /// Messages that came back.
    pub returned: u64,
    /// Messages that a consumer rejected: they are gone.
    pub rejected: u64,
    /// Messages that were refused because it was full.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Queue {
    name: String,
    waiting: VecDeque<Letter>,
    counts: QueueCounts,
    /// Whose it is alone: other consumers are attached and get nothing.
    reserved: bool,
    /// Who is told that there is something.
    consumers: Vec<Arc<Notify>>,
    /// Who is told that there is room again.
    starved: Vec<Arc<Notify>>,
}

#[derive(Debug)]
struct State {
    limits: QueueLimits,
    queues: Vec<Queue>,
    /// Octets in all of them.
    bytes: usize,
    by_name: HashMap<String, QueueId>,
    /// Notices of messages that were accepted, and who is told.
    consumed: VecDeque<u64>,
    publisher: Option<Arc<Notify>>,
}

/// All queues. Clones are the same queues.
#[derive(Clone, Debug)]
pub struct Queues {
    state: Arc<Mutex<State>>,
}

impl Queues {
    /// None yet; each gets those limits.
    pub fn new(limits: QueueLimits) -> Self {
        let (queues, by_name, consumed) = (Vec::new(), HashMap::new(), VecDeque::new());
        Self { state: Arc::new(Mutex::new(State { limits, queues, bytes: 0, by_name, consumed, publisher: None })) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panicked under the lock was between two whole changes: counts may be off by one, nothing else.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of that name; made if there is none. None if the name is no name or there are too many queues.
    pub fn named(&self, name: &str) -> Option<QueueId> {
        let mut state = self.state();
        if let Some(id) = state.by_name.get(name) {
            return Some(*id);
        }
        if name.is_empty() || name.len() > LONGEST_NAME || state.queues.len() >= MOST_QUEUES {
            return None;
        }
        let id = QueueId(state.queues.len());
        state.queues.push(Queue { name: name.to_owned(), ..Queue::default() });
        state.by_name.insert(name.to_owned(), id);
        Some(id)
    }

    /// Keeps a queue for the caller: whoever else attaches to it as a consumer waits in vain.
    pub fn reserve(&self, id: QueueId, told: Arc<Notify>) {
        let queue = &mut self.state().queues[id.0];
        queue.reserved = true;
        queue.consumers = vec![told];
    }

    /// Whom to tell that messages with a notice were accepted.
    pub fn tell_of_consumption(&self, told: Arc<Notify>) {
        self.state().publisher = Some(told);
    }

    /// The next notice of a message that was accepted.
    pub fn next_consumed(&self) -> Option<u64> {
        self.state().consumed.pop_front()
    }

    /// Tells from now on, once for each time, that there may be something in the queue.
    pub(super) fn subscribe(&self, id: QueueId, told: Arc<Notify>) {
        let queue = &mut self.state().queues[id.0];
        if !queue.reserved {
            queue.consumers.push(told);
        }
    }

    /// Ends one subscription.
    pub(super) fn unsubscribe(&self, id: QueueId, told: &Arc<Notify>) {
        let queue = &mut self.state().queues[id.0];
        if !queue.reserved
            && let Some(at) = queue.consumers.iter().position(|other| Arc::ptr_eq(other, told))
        {
            queue.consumers.swap_remove(at);
        }
    }

    /// Puts a message in; gives it back if there is no room for it.
    pub fn put(&self, id: QueueId, message: Message, notice: Option<u64>) -> Result<(), Message> {
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
        queue.waiting.push_back(Letter { message, notice, queue: id });
        queue.consumers.iter().for_each(|told| told.notify_one());
        Ok(())
    }

    /// Messages, and octets, that still find room; if there is none, the caller is told when there is.
    pub(super) fn room(&self, id: QueueId, told: &Arc<Notify>) -> (usize, usize) {
        let mut guard = self.state();
        let state = &mut *guard;
        let queue = &mut state.queues[id.0];
        let room = queue.room(state.limits, state.bytes);
        if room == (0, 0) && !queue.starved.iter().any(|other| Arc::ptr_eq(other, told)) {
            queue.starved.push(Arc::clone(told));
        }
        room
    }

    /// Whether a message would find room; if not, the caller is told when it would.
    pub fn has_room_or_tell(&self, id: QueueId, told: &Arc<Notify>) -> bool {
        self.room(id, told) != (0, 0)
    }

    /// Takes the first message out, for the one who reserved the queue. It is held until it is settled.
    pub fn take(&self, id: QueueId) -> Option<Letter> {
        self.state().queues[id.0].take()
    }

    /// Takes the first message out, for a consumer that attached.
    pub(super) fn take_for_consumer(&self, id: QueueId) -> Option<Letter> {
        let queue = &mut self.state().queues[id.0];
        if queue.reserved { None } else { queue.take() }
    }

    /// Ends the time that a consumer holds a message.
    pub fn settle(&self, letter: Letter, outcome: Outcome) {
        let mut guard = self.state();
        let state = &mut *guard;
        let queue = &mut state.queues[letter.queue.0];
        queue.counts.held -= 1;
        let before = queue.counts.bytes;
        match outcome {
            Outcome::Accepted | Outcome::Rejected => {
                queue.counts.bytes -= letter.message.bytes();
                if let Some(notice) = letter.notice.filter(|_| outcome == Outcome::Accepted) {
                    state.consumed.push_back(notice);
                    state.publisher.iter().for_each(|told| told.notify_one());
                }
                match outcome {
                    Outcome::Accepted => queue.counts.accepted += 1,
                    _ => queue.counts.rejected += 1,
                }
            }
            Outcome::Released => queue.give_back(letter),
            Outcome::Modified { failed: false } => queue.give_back(letter),
            Outcome::Modified { failed: true } => {
                queue.counts.bytes -= letter.message.bytes();
                let letter = redelivered(letter);
                queue.counts.bytes += letter.message.bytes();
                queue.give_back(letter);
            }
        }
        state.bytes = state.bytes - before + queue.counts.bytes;
        let (limits, bytes) = (state.limits, state.bytes);
        state.queues.iter_mut().for_each(|queue| queue.tell_if_room(limits, bytes));
    }

    /// What a queue holds and has seen.
    pub fn counts(&self, id: QueueId) -> QueueCounts {
        self.state().queues[id.0].counts
    }

    /// The names of all queues.
    pub fn names(&self) -> Vec<String> {
        self.state().queues.iter().map(|queue| queue.name.clone()).collect()
    }
}

impl Queue {
    /// Messages and octets that still find room, where all queues hold so many octets: both or none.
    fn room(&self, limits: QueueLimits, all_bytes: usize) -> (usize, usize) {
        let messages = limits.messages.saturating_sub(self.counts.waiting + self.counts.held);
        let of_all = limits.bytes.saturating_mul(FULL_QUEUES).saturating_sub(all_bytes);
        let bytes = limits.bytes.saturating_sub(self.counts.bytes).min(of_all);
        if messages == 0 || bytes == 0 { (0, 0) } else { (messages, bytes) }
    }

    fn take(&mut self) -> Option<Letter> {
        let letter = self.waiting.pop_front()?;
        self.counts.waiting -= 1;
        self.counts.held += 1;
        Some(letter)
    }

    fn give_back(&mut self, letter: Letter) {
        self.counts.returned += 1;
        self.counts.waiting += 1;
        self.waiting.push_front(letter);
        self.consumers.iter().for_each(|told| told.notify_one());
    }

    /// Those who wait for room are told when a quarter of it is there: not at every message.
    fn tell_if_room(&mut self, limits: QueueLimits, all_bytes: usize) {
        if self.starved.is_empty() {
            return;
        }
        let (messages, bytes) = self.room(limits, all_bytes);
        if messages > limits.messages / 4 && bytes > limits.bytes / 4 {
            self.starved.drain(..).for_each(|told| told.notify_one());
        }
    }
}

/// The same message, with one more failed attempt in its header (AMQP 1.0 §3.2.1).
fn redelivered(mut letter: Letter) -> Letter {
    let whole = letter.message.whole();
    let mut reader = Reader::new(&whole);
    let header = reader.value().ok().filter(|section| section.descriptor() == Some(0x70));
    let rest = header.map_or(whole.len(), |_| reader.rest().len());
    let mut octets = Vec::with_capacity(24);
    Writer::new(&mut octets).described_list(0x70, |fields| {
        let mut old = header.and_then(|header| header.as_list());
        for _ in 0..4 {
            // durable, priority, ttl, first-acquirer: as they were
            match old.as_mut().and_then(|old| old.element().ok().flatten()) {
                Some(field) => fields.copied(field.octets()),
                None => fields.null(),
            }
        }
        let attempts = old.and_then(|mut old| old.number().ok().flatten()).unwrap_or(0);
        fields.uint(u32::try_from(attempts).unwrap_or(u32::MAX).saturating_add(1));
    });
    let mut body: Bytes = whole.clone();
    body.advance(whole.len() - rest);
    let mut message = Message::from(octets);
    message.push(body);
    letter.message = message;
    letter
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(messages: usize, bytes: usize) -> (Queues, QueueId) {
        let queues = Queues::new(QueueLimits { messages, bytes });
        let id = queues.named("q").unwrap();
        (queues, id)
    }

    fn message(text: &str) -> Message {
        Message::from(text.as_bytes().to_vec())
    }

    fn text(letter: &Letter) -> String {
        String::from_utf8(letter.message.whole().to_vec()).unwrap()
    }

    #[test]
    fn first_in_is_first_out_and_what_comes_back_is_first_again() {
        let (queues, id) = queues(10, 1000);
        for name in ["a", "b", "c"] {
            queues.put(id, message(name), None).unwrap();
        }
        let first = queues.take(id).unwrap();
        assert_eq!((text(&first).as_str(), queues.counts(id).held), ("a", 1));
        queues.settle(first, Outcome::Released);
        assert_eq!(queues.take(id).map(|letter| text(&letter)).as_deref(), Some("a"));
        let second = queues.take(id).unwrap();
        queues.settle(second, Outcome::Rejected);
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
        let told = Arc::new(Notify::new());
        let held = queues.take(id).unwrap();
        assert_eq!(queues.room(id, &told), (0, 0), "what is held still takes its room");
        queues.settle(held, Outcome::Accepted);
        assert_eq!(queues.room(id, &told), (1, 999));
        assert_eq!(queues.counts(id).refused, 1);
    }

    #[tokio::test]
    async fn who_waits_for_room_or_a_message_is_told() {
        let (queues, id) = queues(1, 1000);
        let (consumer, producer, publisher) = <(Arc<Notify>, Arc<Notify>, Arc<Notify>)>::default();
        queues.subscribe(id, Arc::clone(&consumer));
        queues.tell_of_consumption(Arc::clone(&publisher));
        queues.put(id, message("a"), Some(7)).unwrap();
        consumer.notified().await;
        assert_eq!(queues.room(id, &producer), (0, 0));
        let letter = queues.take_for_consumer(id).unwrap();
        queues.settle(letter, Outcome::Accepted);
        producer.notified().await;
        publisher.notified().await;
        assert_eq!((queues.next_consumed(), queues.next_consumed()), (Some(7), None));
    }

    #[tokio::test]
    async fn all_queues_together_are_bounded_and_who_waits_is_told_whichever_frees_it() {
        let (queues, first) = queues(100, 1000);
        let ids: Vec<QueueId> = (0..6).map(|number| queues.named(&format!("q{number}")).unwrap()).collect();
        for id in &ids[..FULL_QUEUES] {
            queues.put(*id, Message::from(vec![0; 1000]), None).unwrap();
        }
        let told = Arc::<Notify>::default();
        assert_eq!(queues.room(first, &told), (0, 0), "empty as it is");
        assert!(queues.put(first, message("a"), None).is_err());
        let letter = queues.take(ids[0]).unwrap();
        queues.settle(letter, Outcome::Accepted);
        told.notified().await;
        assert_eq!(queues.room(first, &told), (100, 1000));
    }

    #[test]
    fn a_reserved_queue_is_for_one_alone() {
        let (queues, id) = queues(10, 1000);
        queues.reserve(id, Arc::default());
        queues.put(id, message("a"), None).unwrap();
        assert!(queues.take_for_consumer(id).is_none());
        assert!(queues.take(id).is_some());
    }

    #[test]
    fn a_failed_attempt_is_in_the_header() {
        let attempts = |octets: &[u8]| {
            let section = Reader::new(octets).value().unwrap();
            let mut fields = section.as_list().unwrap();
            let durable = fields.truth().unwrap();
            fields.skip(3).unwrap();
            (section.descriptor(), durable, fields.number().unwrap())
        };
        let mut with_header = Vec::new();
        Writer::new(&mut with_header).described_list(0x70, |fields| fields.truth(true));
        let mut body = Vec::new();
        Writer::new(&mut body).described_binary(0x75, b"text");
        with_header.extend_from_slice(&body);
        for (octets, durable) in [(&with_header, true), (&body, false)] {
            let (queues, id) = queues(10, 1000);
            queues.put(id, Message::from(octets.clone()), None).unwrap();
            for attempt in 1..=2 {
                let letter = queues.take(id).unwrap();
                queues.settle(letter, Outcome::Modified { failed: true });
                let letter = queues.take(id).unwrap();
                let whole = letter.message.whole();
                assert_eq!(attempts(&whole), (Some(0x70), durable, Some(attempt)));
                assert!(whole.ends_with(&body));
                queues.settle(letter, Outcome::Modified { failed: false });
            }
        }
    }

    #[test]
    fn names_and_their_number_are_bounded() {
        let (queues, id) = queues(10, 1000);
        assert_eq!((queues.named("q"), queues.named(""), queues.named(&"x".repeat(256))), (Some(id), None, None));
        let made = (0..1000).filter(|number| queues.named(&format!("queue {number}")).is_some()).count();
        assert_eq!((made, queues.names().len()), (MOST_QUEUES - 1, MOST_QUEUES));
    }
}
