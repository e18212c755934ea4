//! One side of the endpoint pair: a connection with the bench's links, kept open as long as the run lasts.
//!
//! ```text
//! outbox   outlet → outbox   inlet ← outbox.reply   inlet ← send.event
//! inbox    inlet ← inbox     (mode amqp: outlet → inbox as well)
//! ```
use super::account::Queue;
use super::alarm::Alarm;
use super::books::{Books, OutageEnd};
use super::options::{Leftovers, MadesOptions};
use super::receiver::{purge, receive};
use super::sender::send;
use super::stages::Mode;
use super::troubles::Trouble;
use ::mades::{Broker, Connection, Error, Inlet, InletPlan, Outlet, OutletPlan};
use net::clock;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Pause after a failed connection before the next attempt: the first and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The bench's part on one side.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) name: &'static str,
    broker: Broker,
    outlet: Option<OutletPlan>,
    pub(super) inlets: Vec<(Queue, InletPlan)>,
}

/// A connection with its links.
pub(super) struct Links {
    connection: Connection,
    outlet: Option<Outlet>,
    inlets: Vec<(Queue, Inlet)>,
}

/// The sides of a run.
pub(super) fn sides(options: &MadesOptions) -> Vec<Side> {
    let queues = &options.queues;
    let inlet = |queue, name: &str| (queue, InletPlan::new(name, options.credit));
    let outlet = |name: &str| Some(OutletPlan::new(name, options.window));
    let inbox = |outlet| Side {
        name: "inbox",
        broker: options.inbox.clone(),
        outlet,
        inlets: vec![inlet(Queue::Inbox, &queues.inbox)],
    };
    let mut replies = vec![inlet(Queue::Reply, &queues.reply)];
    if matches!(options.mode, Mode::Endpoint | Mode::Tracing) {
        replies.extend(queues.send_event.as_deref().map(|name| inlet(Queue::Event, name)));
    }
    let outbox =
        Side { name: "outbox", broker: options.outbox.clone(), outlet: outlet(&queues.outbox), inlets: replies };
    match options.mode {
        Mode::Endpoint | Mode::Toolbox => vec![outbox, inbox(None)],
        Mode::Tracing => vec![outbox],
        // The broker alone: into the queue and out of it.
        Mode::Amqp => vec![inbox(outlet(&queues.inbox))],
    }
}

impl Side {
    /// Connects, and attaches to the queues.
    ///
    /// # Errors
    /// Any failure to do so.
    pub(super) async fn open(&self) -> Result<Links, Error> {
        let mut connection = Connection::open(&self.broker).await?;
        let mut inlets = Vec::new();
        for (queue, plan) in &self.inlets {
            inlets.push((*queue, connection.inlet(plan).await?));
        }
        let outlet = match &self.outlet {
            Some(plan) => Some(connection.outlet(plan).await?),
            None => None,
        };
        Ok(Links { connection, outlet, inlets })
    }

    /// Removes all messages from its queues; returns their number.
    ///
    /// # Errors
    /// If the connection ends.
    pub(super) async fn purge(&self) -> Result<u64, Error> {
        let mut connection = Connection::open(&self.broker).await?;
        let mut count = 0;
        for (_, plan) in &self.inlets {
            count += purge(connection.inlet(plan).await?).await?;
        }
        let _ = connection.close().await;
        Ok(count)
    }
}

/// Opens all sides; purges the queues if asked to. Returns the number of messages removed.
///
/// # Errors
/// Any failure to do so.
pub(super) async fn open_all(sides: Vec<Side>, leftovers: Leftovers) -> Result<(Vec<(Side, Links)>, u64), Error> {
    let mut purged = 0;
    if leftovers == Leftovers::Purged {
        for side in &sides {
            purged += side.purge().await?;
        }
    }
    let mut open = Vec::new();
    for side in sides {
        let links = side.open().await?;
        open.push((side, links));
    }
    Ok((open, purged))
}

/// Keeps a side at work until the run is over: a lost connection is established again.
pub(super) async fn keep(side: Side, mut links: Links, books: Rc<Books>, alarm: Rc<Alarm>) {
    let mut pause = Duration::ZERO;
    loop {
        let begun = clock::now();
        let Err(why) = work(links, &books, &alarm).await else { return };
        let lost = clock::now();
        note_loss(&side, &books, &why);
        // A peer that accepts connections and ends them at once is tried ever less often, like one that accepts none.
        if lost - begun >= LONGEST_PAUSE {
            pause = Duration::ZERO;
        }
        let again = match why {
            // The message would come again, and end the link again.
            Error::Oversized { .. } => {
                give_up(&side, &books, &why);
                None
            }
            _ => reopen(&side, &books, &mut pause).await,
        };
        match again {
            Some(again) => links = again,
            None => {
                books.note_outage(side.name, lost, clock::now(), OutageEnd::Never, &why.to_string());
                return;
            }
        }
        books.note_outage(side.name, lost, clock::now(), OutageEnd::Reconnected, &why.to_string());
        books.room.notify_one();
    }
}

/// Sends and receives until the run is over, or a link ends.
async fn work(links: Links, books: &Rc<Books>, alarm: &Rc<Alarm>) -> Result<(), Error> {
    let Links { mut connection, outlet, inlets } = links;
    let mut tasks = JoinSet::new();
    if let Some(outlet) = outlet {
        tasks.spawn_local(send(Rc::clone(books), outlet, Rc::clone(alarm)));
    }
    for (queue, inlet) in inlets {
        tasks.spawn_local(receive(Rc::clone(books), queue, inlet));
    }
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                None => break,
                Some(Ok(result)) => result?,
                Some(Err(_)) => return Err(Error::PeerMisbehaved { why: "a task of mailrun failed".to_owned() }),
            },
            why = connection.lost() => return if books.is_over() { Ok(()) } else { Err(why) },
        }
    }
    // Nothing can be lost any more.
    let _ = connection.close().await;
    Ok(())
}

fn note_loss(side: &Side, books: &Books, why: &Error) {
    books.trouble(Trouble::Connection, "", &format!("{}: {why}", side.name));
    let queues: Vec<Queue> = side.inlets.iter().map(|(queue, _)| *queue).collect();
    let mut account = books.account.borrow_mut();
    account.cut(&queues);
    if side.outlet.is_some() {
        account.unsettle(books.in_hand.get());
    }
}

fn give_up(side: &Side, books: &Books, why: &Error) {
    books.trouble(Trouble::Connection, "given up", &format!("{}: {why}", side.name));
    // A message sent from now on cannot arrive, or would not be seen.
    books.pace.borrow_mut().stop(clock::now());
    books.is_given_up.set(true);
}

/// Reconnects, with growing pauses; `None` if the run is over, or the time for reconnecting is.
async fn reopen(side: &Side, books: &Books, pause: &mut Duration) -> Option<Links> {
    let until = clock::now() + books.options.reconnect;
    while !books.is_over() {
        let trying = async {
            tokio::time::sleep(*pause).await;
            side.open().await
        };
        let tried = tokio::select! {
            tried = trying => tried,
            () = books.ended() => return None,
        };
        *pause = (*pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        match tried {
            Ok(links) => return Some(links),
            Err(why) if clock::now() >= until => {
                give_up(side, books, &why);
                return None;
            }
            Err(_) => {}
        }
    }
    None
}
