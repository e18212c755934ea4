//! Receives the messages of this run from a queue, and leaves all other messages there.
//!
//! Messages of other applications are held for a while and then released. They are not released at once, because a
//! broker immediately delivers a released message again (docs/decisions/0008-what-is-not-ours.md).
//!
//! ```text
//! not ours ─→ held ─┬─ HOLD_TIMEOUT has passed ───→ released, for its own reader
//!                   └─ half of the credit is held ─→ released, at most ten times a second
//!                      and nothing of this run came for BLOCKED_TIMEOUT
//!                                                  ─→ the run is given up: the queue is in other use
//! ```
use super::arrivals::{self, Ownership, UnmatchedEvent};
use super::run_state::MadesRunState;
use super::tracker::ReceiveQueue;
use super::troubles::TroubleKind;
use mailrun_mades::{DeliveryHandle, Error, IncomingDelivery, ReceiverLink};
use mailrun_net::clock;
use std::rc::Rc;
use std::time::Duration;

/// If an event names an unknown id, the receiver looks for the event's message again at this interval, because the
/// bench may have learned the id by then.
const MATCH_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Number of messages that are handled before other tasks get a turn.
const BATCH_LIMIT: usize = 256;
const HOLD_TIMEOUT: Duration = Duration::from_secs(5);
/// When messages of other applications take up half of the credit, the receiver releases them, but at most once in this
/// interval. The interval limits the cost, because the broker delivers released messages again at once.
const RELEASE_INTERVAL: Duration = Duration::from_millis(100);
/// If messages of other applications take up half of the credit, and no message of this run has arrived for this time,
/// the run is given up.
const BLOCKED_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn receive(
    run_state: Rc<MadesRunState>,
    queue: ReceiveQueue,
    link: ReceiverLink,
) -> Result<(), Error> {
    let mut receiver = QueueReceiver::new(run_state, queue, link);
    loop {
        let ended = receiver.run_state.ended();
        let until_release =
            receiver.held_since.map_or(Duration::ZERO, |since| (since + HOLD_TIMEOUT).saturating_sub(clock::now()));
        let arrival = tokio::select! {
            arrival = receiver.link.next() => arrival?,
            () = ended => break,
            () = tokio::time::sleep(MATCH_RETRY_INTERVAL), if !receiver.unmatched.is_empty() => {
                receiver.retry_unmatched()?;
                continue;
            }
            () = tokio::time::sleep(until_release), if receiver.held_since.is_some() => {
                receiver.release_held()?;
                continue;
            }
        };
        receiver.handle(arrival).await?;
        for _ in 0..BATCH_LIMIT {
            let Some(arrival) = receiver.link.try_next() else { break };
            receiver.handle(arrival?).await?;
        }
        receiver.retry_unmatched()?;
    }
    // Ignore an error of the link here, because the tracker has already recorded it.
    let _ = receiver.release_held();
    let _ = receiver.link.close().await;
    Ok(())
}

struct QueueReceiver {
    run_state: Rc<MadesRunState>,
    queue: ReceiveQueue,
    link: ReceiverLink,
    foreign: Vec<DeliveryHandle>,
    unmatched: Vec<(DeliveryHandle, UnmatchedEvent)>,
    /// Time at which the receiver began to hold messages that do not belong to this run (`foreign`) or whose owner is
    /// not known yet (`unmatched`). `None` after it has released them.
    held_since: Option<Duration>,
    last_release: Duration,
    /// Time at which a message of this run last arrived, or the start if none has arrived yet.
    last_own_arrival: Duration,
    is_blocked: bool,
}

impl QueueReceiver {
    fn new(run_state: Rc<MadesRunState>, queue: ReceiveQueue, link: ReceiverLink) -> Self {
        let last_own_arrival = clock::now();
        let foreign = Vec::new();
        let unmatched = Vec::new();
        let last_release = Duration::ZERO;
        Self {
            run_state,
            queue,
            link,
            foreign,
            unmatched,
            held_since: None,
            last_release,
            last_own_arrival,
            is_blocked: false,
        }
    }

    async fn handle(&mut self, arrival: IncomingDelivery) -> Result<(), Error> {
        let now = clock::now();
        match arrival {
            IncomingDelivery::Delivery(delivery) => {
                match arrivals::classify(&self.run_state, self.queue, &delivery.message, now) {
                    Ownership::Own => {
                        self.last_own_arrival = now;
                        return self.link.accept(delivery.handle);
                    }
                    Ownership::Foreign => self.foreign.push(delivery.handle),
                    Ownership::Unknown(unmatched) => self.unmatched.push((delivery.handle, unmatched)),
                }
            }
            // Nobody knows who sent an undecodable message, so release it later, like a message of another run.
            IncomingDelivery::Undecodable { handle: entry, why } => {
                self.run_state.record_trouble(TroubleKind::Odd, "the message cannot be decoded", &why);
                self.run_state.count_foreign(self.queue);
                self.foreign.push(entry);
            }
        }
        self.held_since.get_or_insert(now);
        self.make_room().await
    }

    /// Releases the held messages before they use up the credit. Without credit, the broker would send nothing more.
    async fn make_room(&mut self) -> Result<(), Error> {
        if self.foreign.len() + self.unmatched.len() < (self.run_state.options.credit as usize / 2).max(1) {
            return Ok(());
        }
        let now = clock::now();
        if now.saturating_sub(self.last_own_arrival) >= BLOCKED_TIMEOUT
            && !std::mem::replace(&mut self.is_blocked, true)
        {
            let text = format!(
                "{} contains too many messages of other senders: use other queues, or --purge",
                self.link.queue()
            );
            self.run_state.give_up(TroubleKind::Blocked, &text);
        }
        tokio::select! {
            () = tokio::time::sleep((self.last_release + RELEASE_INTERVAL).saturating_sub(now)) => {}
            () = self.run_state.ended() => {}
        }
        self.release_held()
    }

    fn release_held(&mut self) -> Result<(), Error> {
        self.last_release = clock::now();
        self.held_since = None;
        // No message of this run matches these events so far, so count them as events of other runs.
        self.unmatched.iter().for_each(|_| self.run_state.count_foreign(self.queue));
        let unmatched = self.unmatched.drain(..).map(|(entry, _)| entry);
        self.link.release(self.foreign.drain(..).chain(unmatched))
    }

    fn retry_unmatched(&mut self) -> Result<(), Error> {
        let mut at = 0;
        while at < self.unmatched.len() {
            if arrivals::match_event(&self.run_state, &self.unmatched[at].1) {
                let (entry, _) = self.unmatched.swap_remove(at);
                self.link.accept(entry)?;
            } else {
                at += 1;
            }
        }
        Ok(())
    }
}

/// Removes all messages from a queue, including messages of other applications. Returns the number of removed messages.
///
/// # Errors
/// Fails if the link ends, or if messages still arrive after `limit`.
pub(super) async fn purge(mut link: ReceiverLink, limit: Duration) -> Result<u64, Error> {
    let began = clock::now();
    let mut count = 0;
    while let Ok(arrival) = tokio::time::timeout(EMPTY_QUEUE_TIMEOUT, link.next()).await {
        let entry = match arrival? {
            IncomingDelivery::Delivery(delivery) => delivery.handle,
            IncomingDelivery::Undecodable { handle: entry, .. } => entry,
        };
        link.accept(entry)?;
        count += 1;
        if clock::now().saturating_sub(began) >= limit {
            return Err(Error::NeverEmpty { queue: link.queue().to_owned(), removed: count, after: limit });
        }
    }
    // Ignore an error while closing, because all messages that arrived have already been accepted.
    let _ = link.close().await;
    Ok(count)
}

/// A queue counts as empty if no message arrives for this time.
const EMPTY_QUEUE_TIMEOUT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_mades::{Broker, Connection, ReceiverOptions};
    use mailrun_mades_simulator::embedded::{
        self, EncodedMessage, ListenOptions, ListenerAuth, MemoryQueues, QueueLimits,
    };

    #[test]
    fn a_queue_that_others_fill_is_not_purged_forever() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let purge_both = async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("amqp://{}", listener.local_addr().unwrap()).parse().unwrap();
            let queues = MemoryQueues::new(QueueLimits::default());
            let options = ListenOptions::new(ListenerAuth::Any);
            tokio::spawn(embedded::serve(listener, queues.clone(), options, Default::default()));
            let [quiet, filled] = ["quiet", "filled"].map(|name| queues.get_or_create(name).unwrap());
            let message = || EncodedMessage::from(vec![0, 0x53, 0x75, 0xa0, 1, 7]);
            queues.put(quiet, message(), None).unwrap();
            tokio::spawn(async move {
                while queues.put(filled, message(), None).is_ok() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
            let mut connection = Connection::open(&Broker::new(url, "test")).await.unwrap();
            let mut links = Vec::new();
            for name in ["quiet", "filled"] {
                links.push(connection.attach_receiver(&ReceiverOptions::new(name, 10)).await.unwrap());
            }
            let filled = purge(links.pop().unwrap(), Duration::from_millis(200)).await;
            (purge(links.pop().unwrap(), Duration::from_secs(60)).await, filled)
        };
        let limited = async { tokio::time::timeout(Duration::from_secs(30), purge_both).await.expect("it ends") };
        let (quiet, filled) = runtime.block_on(limited);
        assert_eq!(quiet, Ok(1));
        let error = filled.unwrap_err().to_string();
        assert!(error.starts_with("filled is not empty after 0.2 s, in which "), "{error}");
    }
}
