//! Queues with a broker: an inlet at the outbox, an outlet to each of the others, all pipelined; made anew when a
//! connection is lost.
//!
//! ```text
//! supervisor ─┬─ inlet task ──▶ arrivals            (bounded by the credit)
//!             │            ◀── deliveries to accept
//!             └─ outlet task ◀─ messages             (bounded by the window), one for each queue
//!                            ──▶ settled
//! ```
//! What was sent over a connection that is lost and not settled is sent again over the next; what was taken over it and
//! not accepted comes again from the broker. So a message may be there twice, and never not at all.
use super::EndpointError;
use super::ports::{Place, Sent};
use crate::api::{self, Received};
use crate::connection::{Broker, Connection};
use crate::embedded::Message;
use crate::error::Error;
use crate::inlet::{Arrival, Inlet, InletPlan, Ticket};
use crate::outlet::{Disposition, Outlet, OutletPlan, Settling};
use crate::standin::{Key, Step};
use fe2o3_amqp::Sendable;
use fe2o3_amqp_types::messaging::message::__private::{Deserializable, Serializable};
use fe2o3_amqp_types::messaging::{Body, MESSAGE_FORMAT};
use serde_amqp::Value;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

/// Messages that are sent and not settled, for each queue.
const WINDOW: usize = 256;
/// Delay between two attempts to reach a broker that was there before.
const AGAIN: Duration = Duration::from_millis(500);

/// A delivery out of the outbox: over which connection it came, and its ticket there.
#[derive(Debug)]
pub(super) struct RemoteDelivery {
    connection: u64,
    ticket: Ticket,
}

/// A message to a queue.
struct Parcel {
    message: Sendable<Body<Value>>,
    token: (Key, Step),
}

/// Reports of the tasks. The channel is bounded by the inlet's credit and by the outlets' windows.
enum News {
    Arrived(Message, RemoteDelivery),
    Settled((Key, Step), Sent),
}

/// The queues with a broker.
pub(super) struct Remote {
    news: UnboundedReceiver<News>,
    arrived: VecDeque<(Message, RemoteDelivery)>,
    settled: VecDeque<(Key, Step, Sent)>,
    accepted: UnboundedSender<RemoteDelivery>,
    parcels: [UnboundedSender<Parcel>; 3],
    /// Messages that are sent and not settled.
    outstanding: [usize; 3],
    reconnects: Arc<AtomicU64>,
    supervisor: AbortHandle,
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

impl Remote {
    /// Connects, and attaches all links.
    pub(super) async fn open(a: Broker, b: Broker, names: &api::Queues, credit: u32) -> Result<Self, EndpointError> {
        let (tell, news) = unbounded_channel();
        let (accepted, to_accept) = unbounded_channel();
        let lines = [Line::new(), Line::new(), Line::new()];
        let parcels = lines.each_ref().map(|(sender, _)| sender.clone());
        let reconnects = Arc::new(AtomicU64::new(0));
        let event = names.send_event.clone().unwrap_or_else(|| names.reply.clone());
        let brokers = Brokers {
            a,
            b,
            outbox: InletPlan::new(names.outbox.clone(), credit),
            outlets: [&names.reply, &names.inbox, &event].map(|queue| OutletPlan::new(queue, WINDOW as u32 + 1)),
        };
        let links = brokers.attach().await?;
        let work = Work { brokers, tell, to_accept, lines: lines.map(|(_, line)| line), number: 0 };
        let supervisor = tokio::spawn(supervise(work, links, Arc::clone(&reconnects))).abort_handle();
        let (arrived, settled) = (VecDeque::new(), VecDeque::new());
        Ok(Self { news, arrived, settled, accepted, parcels, outstanding: [0; 3], reconnects, supervisor })
    }

    fn note(&mut self, news: News) {
        match news {
            News::Arrived(message, delivery) => self.arrived.push_back((message, delivery)),
            News::Settled((key, step), sent) => {
                if let Some(place) = super::place_of(step) {
                    self.outstanding[place as usize] -= 1;
                }
                self.settled.push_back((key, step, sent));
            }
        }
    }

    fn catch_up(&mut self) {
        while let Ok(news) = self.news.try_recv() {
            self.note(news);
        }
    }

    pub(super) fn take(&mut self) -> Option<(Message, RemoteDelivery)> {
        self.catch_up();
        self.arrived.pop_front()
    }

    pub(super) fn next_settled(&mut self) -> Option<(Key, Step, Sent)> {
        self.catch_up();
        self.settled.pop_front()
    }

    pub(super) fn accept(&mut self, delivery: RemoteDelivery) {
        // The receiver is gone when the process ends.
        let _ = self.accepted.send(delivery);
    }

    pub(super) fn has_room(&self, place: Place) -> bool {
        self.outstanding[place as usize] < WINDOW
    }

    pub(super) fn send(&mut self, place: Place, message: &Message, token: (Key, Step)) -> Sent {
        let octets = message.whole();
        let Ok(Deserializable(message)) = serde_amqp::from_slice::<Deserializable<Received>>(&octets) else {
            return Sent::Refused;
        };
        let message = Sendable { message, message_format: MESSAGE_FORMAT, settled: None };
        match self.parcels[place as usize].send(Parcel { message, token }) {
            Ok(()) => {
                self.outstanding[place as usize] += 1;
                Sent::Taken
            }
            Err(_) => Sent::Refused,
        }
    }

    /// Waits for news.
    pub(super) async fn changed(&mut self) {
        match self.news.recv().await {
            Some(news) => self.note(news),
            // The supervisor ends only with the process.
            None => std::future::pending().await,
        }
    }

    pub(super) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }
}

/// The brokers that have the queues, and the links to attach there.
struct Brokers {
    a: Broker,
    b: Broker,
    outbox: InletPlan,
    /// Outlets by place.
    outlets: [OutletPlan; 3],
}

/// The links, and the connections that they are on.
struct Links {
    inlet: Inlet,
    outlets: [Outlet; 3],
    _connections: [Connection; 2],
}

impl Brokers {
    async fn attach(&self) -> Result<Links, Error> {
        let mut a = Connection::open(&self.a).await?;
        let mut b = Connection::open(&self.b).await?;
        let reply = a.outlet(&self.outlets[Place::Reply as usize]).await?;
        let inbox = b.outlet(&self.outlets[Place::Inbox as usize]).await?;
        let event = a.outlet(&self.outlets[Place::Event as usize]).await?;
        // Last, so that nothing comes that could not go on.
        let inlet = a.inlet(&self.outbox).await?;
        Ok(Links { inlet, outlets: [reply, inbox, event], _connections: [a, b] })
    }
}

/// State that survives a connection.
struct Work {
    brokers: Brokers,
    tell: UnboundedSender<News>,
    to_accept: UnboundedReceiver<RemoteDelivery>,
    lines: [Line; 3],
    /// Number of the connection.
    number: u64,
}

/// Messages to one queue.
struct Line {
    parcels: UnboundedReceiver<Parcel>,
    /// Sent and not settled, in order.
    unsettled: VecDeque<Parcel>,
}

impl Line {
    fn new() -> (UnboundedSender<Parcel>, Self) {
        let (sender, parcels) = unbounded_channel();
        (sender, Self { parcels, unsettled: VecDeque::new() })
    }
}

/// Works over one connection after the other.
async fn supervise(mut work: Work, links: Links, reconnects: Arc<AtomicU64>) {
    let mut links = Some(links);
    loop {
        if let Some(links) = links.take() {
            work.number += 1;
            // The reason does not matter here: the next attempt shows whether the broker is there.
            let _ = work.over(links).await;
        }
        tokio::time::sleep(AGAIN).await;
        links = work.brokers.attach().await.ok();
        reconnects.fetch_add(u64::from(links.is_some()), Ordering::Relaxed);
    }
}

impl Work {
    /// Works until a link is lost.
    async fn over(&mut self, mut links: Links) -> Result<(), Error> {
        let Self { tell, to_accept, lines, number, .. } = self;
        let [reply, inbox, event] = &mut links.outlets;
        let [to_reply, to_inbox, to_event] = lines;
        tokio::try_join!(
            bring(&mut links.inlet, to_accept, tell, *number),
            post(reply, to_reply, tell),
            post(inbox, to_inbox, tell),
            post(event, to_event, tell),
        )?;
        Ok(())
    }
}

/// Brings what is in the outbox, and accepts what is done with.
async fn bring(
    inlet: &mut Inlet,
    to_accept: &mut UnboundedReceiver<RemoteDelivery>,
    tell: &UnboundedSender<News>,
    connection: u64,
) -> Result<(), Error> {
    loop {
        tokio::select! {
            biased;
            accepted = to_accept.recv() => {
                let Some(delivery) = accepted else { return std::future::pending().await };
                // A ticket of a connection that is lost is worth nothing: its delivery comes again.
                if delivery.connection == connection {
                    inlet.accept(delivery.ticket).await?;
                }
            }
            arrival = inlet.next() => match arrival? {
                Arrival::Delivery(delivery) => match serde_amqp::to_vec(&Serializable(&delivery.message)) {
                    Ok(octets) => {
                        let delivery = RemoteDelivery { connection, ticket: delivery.ticket };
                        let _ = tell.send(News::Arrived(octets.into(), delivery));
                    }
                    Err(_) => inlet.reject(delivery.ticket, "amqp:decode-error", "cannot be decoded").await?,
                },
                Arrival::Undecodable { ticket, why, .. } => inlet.reject(ticket, "amqp:decode-error", &why).await?,
            },
        }
    }
}

/// Sends the messages that are ready, and reports what is settled, in the order in which it was sent.
async fn post(outlet: &mut Outlet, line: &mut Line, tell: &UnboundedSender<News>) -> Result<(), Error> {
    let mut settlings: VecDeque<Settling> = VecDeque::new();
    for parcel in &line.unsettled {
        settlings.push_back(outlet.offer(&parcel.message).await?);
    }
    loop {
        let first = settlings.front_mut();
        tokio::select! {
            biased;
            settled = async { first.expect("there is one").await }, if !line.unsettled.is_empty() => {
                // On an error it stays unsettled, and is sent again over the next connection.
                let settled = settled?;
                settlings.pop_front();
                let parcel = line.unsettled.pop_front().expect("each has its settling");
                match settled {
                    Disposition::Accepted => drop(tell.send(News::Settled(parcel.token, Sent::Settled))),
                    Disposition::Rejected { .. } => drop(tell.send(News::Settled(parcel.token, Sent::Refused))),
                    // Not now: again.
                    Disposition::Released | Disposition::Modified { .. } => {
                        line.unsettled.push_back(parcel);
                        let parcel = line.unsettled.back().expect("it was just put there");
                        settlings.push_back(outlet.offer(&parcel.message).await?);
                    }
                }
            }
            parcel = line.parcels.recv(), if line.unsettled.len() < WINDOW => {
                let Some(parcel) = parcel else { return std::future::pending().await };
                // It is unsettled from before it is offered: when the connection is lost meanwhile, it is sent again.
                line.unsettled.push_back(parcel);
                let parcel = line.unsettled.back().expect("it was just put there");
                settlings.push_back(outlet.offer(&parcel.message).await?);
            }
            lost = outlet.lost() => return Err(lost),
        }
    }
}
