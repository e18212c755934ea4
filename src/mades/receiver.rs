//! Receiving: takes what is of this run out of a queue, and leaves what is not.
//!
//! Somebody else's messages are held, and given back at the end: a broker that got one back at once would send it again at
//! once. Where they are so many that they stand in the way they are given back earlier, in the hope of somebody else.
use super::account::Queue;
use super::arrivals::{self, Decision, Stranger};
use super::books::Books;
use super::troubles::Trouble;
use ::mades::{Arrival, Error, Inlet, Ticket};
use net::clock;
use std::rc::Rc;
use std::time::Duration;

/// How often it is looked whether an event's message is known by now.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// Messages that are handled before anything else is looked at.
const TURN: usize = 256;

/// Receives until the run is over.
///
/// # Errors
/// If the link comes to its end.
pub(super) async fn receive(books: Rc<Books>, queue: Queue, inlet: Inlet) -> Result<(), Error> {
    let mut taker = Taker { books, queue, inlet, foreign: Vec::new(), strangers: Vec::new(), taken_since: 0 };
    loop {
        let ended = taker.books.ended();
        let arrival = tokio::select! {
            arrival = taker.inlet.next() => arrival?,
            () = ended => break,
            () = tokio::time::sleep(ASK_AGAIN), if !taker.strangers.is_empty() => {
                taker.ask_again().await?;
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
    // Tells of what was taken; what is held goes back to the queue with the link.
    let _ = taker.inlet.close().await;
    Ok(())
}

struct Taker {
    books: Rc<Books>,
    queue: Queue,
    inlet: Inlet,
    /// Somebody else's messages, held.
    foreign: Vec<Ticket>,
    /// Events of which it is not known whose they are.
    strangers: Vec<(Ticket, Stranger)>,
    /// Messages of this run since somebody else's were last given back.
    taken_since: u64,
}

impl Taker {
    async fn take(&mut self, arrival: Arrival) -> Result<(), Error> {
        let now = clock::now();
        match arrival {
            Arrival::Delivery(delivery) => match arrivals::judge(&self.books, self.queue, &delivery.message, now) {
                Decision::Take => {
                    self.taken_since += 1;
                    return self.inlet.accept(delivery.ticket).await;
                }
                Decision::Leave => self.foreign.push(delivery.ticket),
                Decision::Ask(stranger) => self.strangers.push((delivery.ticket, stranger)),
            },
            // Whose it is cannot be told.
            Arrival::Undecodable { ticket, oddity, why } => {
                self.books.trouble(Trouble::Odd, &oddity.to_string(), &why);
                self.books.count_foreign(self.queue);
                self.foreign.push(ticket);
            }
        }
        self.make_room().await
    }

    /// Gives back what is held before it takes all of the credit.
    async fn make_room(&mut self) -> Result<(), Error> {
        if self.foreign.len() + self.strangers.len() < (self.books.options.credit as usize / 2).max(1) {
            return Ok(());
        }
        if self.taken_since == 0 {
            let text = format!(
                "{} holds so many messages of somebody else's that none of this run come through: use other queues, or \
                 --purge",
                self.inlet.queue()
            );
            self.books.trouble(Trouble::Blocked, "", &text);
            // What is sent now would not be seen again.
            self.books.pace.borrow_mut().stop();
        }
        self.taken_since = 0;
        let strangers = self.strangers.drain(..).map(|(ticket, _)| ticket);
        self.inlet.release(self.foreign.drain(..).chain(strangers)).await
    }

    /// Looks whether somebody has told by now whose events they are.
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

/// Takes out of a queue all that is there, whosever it is; how many there were.
///
/// # Errors
/// If the link comes to its end.
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
    inlet.close().await?;
    Ok(count)
}

/// A queue from which nothing has come for so long is empty.
const SILENCE: Duration = Duration::from_millis(500);
