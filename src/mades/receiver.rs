//! Receiving: takes messages of this run out of a queue, and leaves the others.
//!
//! Messages of other applications are held and released later: a broker that got one back at once would send it again
//! at once (docs/decisions/0008-what-is-not-ours.md).
//!
//! ```text
//! not ours ─→ held ─── HOLD over ──────────────────→ released, for its own reader
//!                └──── half of the credit is held ─→ released, ten times a second at most
//!                        and for PATIENCE nothing of this run came ─→ the run stops: the queue is in other use
//! ```
use super::account::Queue;
use super::arrivals::{self, Decision, Stranger};
use super::books::Books;
use super::troubles::Trouble;
use ::mades::{Arrival, Error, Inlet, Ticket};
use net::clock;
use std::rc::Rc;
use std::time::Duration;

/// Interval at which events of unknown messages are tried again.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// Messages that are handled in one go before other work.
const TURN: usize = 256;
/// Time for which a message of another application is held.
const HOLD: Duration = Duration::from_secs(5);
/// Least time between two releases of everything that takes up credit: this bounds the cost of messages that come again
/// at once.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for which a queue may be full of other applications' messages, with none of this run, before the run stops.
const PATIENCE: Duration = Duration::from_secs(5);

/// Receives until the run is over.
///
/// # Errors
/// If the link ends.
pub(super) async fn receive(books: Rc<Books>, queue: Queue, inlet: Inlet) -> Result<(), Error> {
    let mut taker = Taker::new(books, queue, inlet);
    loop {
        let ended = taker.books.ended();
        let given_back = taker.held_since.map_or(Duration::ZERO, |since| (since + HOLD).saturating_sub(clock::now()));
        let arrival = tokio::select! {
            arrival = taker.inlet.next() => arrival?,
            () = ended => break,
            () = tokio::time::sleep(ASK_AGAIN), if !taker.strangers.is_empty() => {
                taker.ask_again().await?;
                continue;
            }
            () = tokio::time::sleep(given_back), if taker.held_since.is_some() => {
                taker.give_back().await?;
                continue;
            }
        };
        taker.take(arrival).await?;
        for _ in 0..TURN {
            let Some(arrival) = taker.inlet.next_at_once().await else { break };
            taker.take(arrival?).await?;
        }
        taker.ask_again().await?;
    }
    // Errors of the link are in the account already.
    let _ = taker.give_back().await;
    let _ = taker.inlet.close().await;
    Ok(())
}

struct Taker {
    books: Rc<Books>,
    queue: Queue,
    inlet: Inlet,
    /// Messages of other applications that are held.
    foreign: Vec<Ticket>,
    /// Events whose message is not known yet.
    strangers: Vec<(Ticket, Stranger)>,
    /// Time since which the first message in either list has been held.
    held_since: Option<Duration>,
    given_back: Duration,
    /// Time at which a message of this run last came; at first the beginning.
    own_came: Duration,
    is_blocked: bool,
}

impl Taker {
    fn new(books: Rc<Books>, queue: Queue, inlet: Inlet) -> Self {
        let own_came = clock::now();
        let foreign = Vec::new();
        let strangers = Vec::new();
        let given_back = Duration::ZERO;
        Self { books, queue, inlet, foreign, strangers, held_since: None, given_back, own_came, is_blocked: false }
    }

    async fn take(&mut self, arrival: Arrival) -> Result<(), Error> {
        let now = clock::now();
        match arrival {
            Arrival::Delivery(delivery) => match arrivals::judge(&self.books, self.queue, &delivery.message, now) {
                Decision::Take => {
                    self.own_came = now;
                    return self.inlet.accept(delivery.ticket).await;
                }
                Decision::Leave => self.foreign.push(delivery.ticket),
                Decision::Ask(stranger) => self.strangers.push((delivery.ticket, stranger)),
            },
            // Its owner cannot be determined.
            Arrival::Undecodable { ticket, oddity, why } => {
                self.books.trouble(Trouble::Odd, &oddity.to_string(), &why);
                self.books.count_foreign(self.queue);
                self.foreign.push(ticket);
            }
        }
        self.held_since.get_or_insert(now);
        self.make_room().await
    }

    /// Releases the held messages before they take all of the credit.
    async fn make_room(&mut self) -> Result<(), Error> {
        if self.foreign.len() + self.strangers.len() < (self.books.options.credit as usize / 2).max(1) {
            return Ok(());
        }
        let now = clock::now();
        if now.saturating_sub(self.own_came) >= PATIENCE && !std::mem::replace(&mut self.is_blocked, true) {
            let text = format!(
                "{} contains too many messages of other senders: use other queues, or --purge",
                self.inlet.queue()
            );
            self.books.trouble(Trouble::Blocked, "", &text);
            // A message sent from now on would not be seen again.
            self.books.pace.borrow_mut().stop(now);
        }
        tokio::select! {
            () = tokio::time::sleep((self.given_back + PAUSE).saturating_sub(now)) => {}
            () = self.books.ended() => {}
        }
        self.give_back().await
    }

    /// Releases all that is held.
    async fn give_back(&mut self) -> Result<(), Error> {
        self.given_back = clock::now();
        self.held_since = None;
        // Their message is still unknown: they are not ours.
        self.strangers.iter().for_each(|_| self.books.count_foreign(self.queue));
        let strangers = self.strangers.drain(..).map(|(ticket, _)| ticket);
        self.inlet.release(self.foreign.drain(..).chain(strangers)).await
    }

    /// Tries again to find the messages of held events.
    async fn ask_again(&mut self) -> Result<(), Error> {
        let mut at = 0;
        while at < self.strangers.len() {
            if arrivals::recognise(&self.books, &self.strangers[at].1) {
                let (ticket, _) = self.strangers.swap_remove(at);
                self.inlet.accept(ticket).await?;
            } else {
                at += 1;
            }
        }
        Ok(())
    }
}

/// Removes all messages from a queue, also those of other applications; returns their number.
///
/// # Errors
/// If the link ends.
pub(super) async fn purge(mut inlet: Inlet) -> Result<u64, Error> {
    let mut count = 0;
    while let Ok(arrival) = tokio::time::timeout(SILENCE, inlet.next()).await {
        let ticket = match arrival? {
            Arrival::Delivery(delivery) => delivery.ticket,
            Arrival::Undecodable { ticket, .. } => ticket,
        };
        inlet.accept(ticket).await?;
        count += 1;
    }
    inlet.settle().await?;
    // The broker knows which messages were taken: an error of closing changes nothing.
    let _ = inlet.close().await;
    Ok(count)
}

/// A queue from which nothing has come for this time is empty.
const SILENCE: Duration = Duration::from_millis(500);
