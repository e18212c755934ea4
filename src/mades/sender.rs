//! Sending: waits until a message is due and there is room for it, hands it over, and meanwhile reads the broker's
//! answers to earlier ones.
use super::alarm::Alarm;
use super::books::Books;
use super::pace::Next;
use ::mades::api::{Outgoing, Payload, Template, payload};
use ::mades::{Disposition, Error, Outlet, Settling};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use net::clock;
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{error::Elapsed, timeout};

/// Payloads that are kept for reuse.
const SPARE_PAYLOADS: usize = 16;

/// Sends until there is no more to send and all transfers are settled, or the run is over.
///
/// # Errors
/// If the link ends.
pub(super) async fn send(books: Rc<Books>, mut outlet: Outlet, alarm: Rc<Alarm>) -> Result<(), Error> {
    let mut press = Press::new(&books);
    let mut transfers = Transfers { books: Rc::clone(&books), under_way: FuturesUnordered::new() };
    loop {
        let claimed = transfers.meanwhile(claim(&books, &outlet, &alarm)).await;
        let Some(sequence) = claimed else { break };
        let message = press.print(&books, sequence);
        let Some(settling) = transfers.meanwhile(hand_over(&books, &mut outlet, message, sequence)).await? else {
            // The broker gives no credit for it: the account gives up on it as well.
            books.in_hand.set(None);
            continue;
        };
        let now = clock::now();
        books.in_hand.set(None);
        books.account.borrow_mut().sent(sequence, now);
        transfers.under_way.push(transfer(sequence, settling, books.options.timeout));
    }
    transfers.meanwhile(books.ended()).await;
    // Errors of the link are in the account already.
    let _ = outlet.close().await;
    Ok(())
}

/// Hands a message over; `None` if the broker gives no credit before the message's time-out, or the run is over.
async fn hand_over(
    books: &Books,
    outlet: &mut Outlet,
    message: &::mades::Sendable<Payload>,
    sequence: u64,
) -> Result<Option<Settling>, Error> {
    let until = books.account.borrow().given_up_at(sequence);
    tokio::select! {
        biased;
        settling = outlet.offer(message) => settling.map(Some),
        () = tokio::time::sleep(until.saturating_sub(clock::now())) => Ok(None),
        () = books.ended() => Ok(None),
    }
}

/// The number of the next message, as soon as it is due and there is room for it; `None` if there is no more to send.
async fn claim(books: &Books, outlet: &Outlet, alarm: &Alarm) -> Option<u64> {
    if let Some(sequence) = books.in_hand.get() {
        // It was in hand when the connection was lost; by now it may have been given up.
        if books.account.borrow().is_open(sequence) {
            return Some(sequence);
        }
        books.in_hand.set(None);
    }
    let mut was_early = false;
    let mut has_waited = false;
    loop {
        let now = clock::now();
        let next = books.pace.borrow().next(now);
        let has_room = outlet.room() > 0 && books.account.borrow().has_room();
        match next {
            Next::Nothing => return None,
            Next::Create(since) if has_room => {
                books.waited_for_room.set(books.waited_for_room.get() + u64::from(has_waited));
                return Some(create(books, since, now, was_early));
            }
            Next::Wait(due) if has_room => {
                was_early = true;
                tokio::select! {
                    () = alarm.until(due) => {}
                    () = books.room.notified() => {}
                }
            }
            Next::Create(_) | Next::Wait(_) => {
                was_early = false;
                has_waited = has_waited || matches!(next, Next::Create(_));
                books.room.notified().await;
            }
        }
    }
}

fn create(books: &Books, since: Duration, now: Duration, was_early: bool) -> u64 {
    // A sender that waited for the time and still woke late caused the lag itself.
    if was_early {
        books.lag.borrow_mut().record(now.saturating_sub(since));
    }
    books.pace.borrow_mut().advance();
    let sequence = books.account.borrow_mut().create(since, now);
    books.in_hand.set(Some(sequence));
    sequence
}

/// Renders messages from a template, and reuses payloads that nothing holds any more.
struct Press {
    template: Template,
    spare: VecDeque<Payload>,
}

impl Press {
    fn new(books: &Books) -> Self {
        let options = &books.options;
        let outgoing = Outgoing {
            is_durable: options.is_durable,
            priority: options.priority,
            is_tracing: options.mode == super::Mode::Tracing,
            sender_application: options.sender_application.clone(),
            ..Outgoing::new(&options.receiver, &options.message_type)
        };
        Self { template: outgoing.template(books.uuid(), payload(Vec::new())), spare: VecDeque::new() }
    }

    fn print(&mut self, books: &Books, sequence: u64) -> &::mades::Sendable<Payload> {
        let since = books.account.borrow().since(sequence);
        let mut body = self.spare.pop_front().unwrap_or_else(|| payload(Vec::new()));
        match Arc::get_mut(&mut body) {
            Some(data) => {
                let mut octets = std::mem::take(&mut data.0).into_vec();
                books.payloads.render(sequence, since, &mut octets);
                data.0 = octets.into();
            }
            None => {
                let mut octets = Vec::new();
                books.payloads.render(sequence, since, &mut octets);
                body = payload(octets);
            }
        }
        if self.spare.len() < SPARE_PAYLOADS {
            self.spare.push_back(Arc::clone(&body));
        }
        let created_at_ms = clock::wall().as_millis() as i64;
        self.template.fill_with(books.options.first_number + sequence, created_at_ms, body)
    }
}

/// The result of a transfer.
type Settled = (u64, Result<Result<Disposition, Error>, Elapsed>);

/// Waits for the broker's answer, up to the message's time-out, and then gives up its place in the window.
async fn transfer(sequence: u64, settling: Settling, limit: Duration) -> Settled {
    (sequence, timeout(limit, settling).await)
}

/// Transfers that the broker has not answered yet.
struct Transfers<F> {
    books: Rc<Books>,
    under_way: FuturesUnordered<F>,
}

impl<F: Future<Output = Settled>> Transfers<F> {
    /// Runs another future, and reads the broker's answers meanwhile.
    async fn meanwhile<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = pin!(other);
        loop {
            tokio::select! {
                biased;
                Some(settled) = self.under_way.next(), if !self.under_way.is_empty() => note(&self.books, settled),
                done = &mut other => return done,
            }
        }
    }
}

fn note(books: &Books, (sequence, settled): Settled) {
    let now = clock::now();
    let mut account = books.account.borrow_mut();
    match settled {
        Ok(Ok(Disposition::Accepted)) => account.settled(sequence, now),
        Ok(Ok(Disposition::Rejected { condition, description })) => {
            account.returned(sequence, now, &condition, &description);
        }
        Ok(Ok(Disposition::Released)) => account.returned(sequence, now, "released", "the broker rejects it for now"),
        Ok(Ok(Disposition::Modified { .. })) => {
            account.returned(sequence, now, "modified", "the broker rejects it");
        }
        // The account gives up on it by itself, or the side gives up on all of them.
        Err(_) | Ok(Err(_)) => {}
    }
    drop(account);
    books.hear(now);
}
