//! One side of the endpoint pair: the bench's connection to the broker of that side, with its links. The bench keeps
//! the connection open for the whole run.
//!
//! ```text
//! outbox   sender → outbox    receiver ← outbox.reply   receiver ← send.event
//! inbox    receiver ← inbox   (mode amqp: sender → inbox as well)
//! ```
//! The bench sends its acknowledgements over a separate sender to the outbox of the receiving endpoint. If the outboxes
//! of the two endpoints are at different brokers, the bench reads replies and events at both brokers. It then also
//! reads the inbox at the sender's broker, because all acknowledgements arrive there.
use super::acknowledgement_sender::acknowledge;
use super::options::{AcknowledgementOptions, MadesOptions};
use super::receiver::{purge, receive};
use super::run_state::{MadesRunState, OutageEnd};
use super::sender::send;
use super::stages::{MadesMode, MessageFlags};
use super::timer_fd::TimerFd;
use super::tracker::ReceiveQueue;
use super::troubles::TroubleKind;
use mailrun_mades::{Broker, Connection, Error, ReceiverLink, ReceiverOptions, SenderLink, SenderOptions};
use mailrun_net::clock;
use mailrun_process::interrupt::{Interrupt, StopRequest};
use mailrun_process::start_wait::StartWait;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Pause before the second attempt to restore a lost connection. The first attempt is made at once. The pause doubles
/// after each further attempt, up to `MAX_RECONNECT_DELAY`.
const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(50);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// Time limit for purging a queue, which is enough for a few million messages. Without a limit, a sender that keeps
/// filling the queue could delay the run forever.
const PURGE_TIMEOUT: Duration = Duration::from_secs(600);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(12);

#[derive(Clone, Debug)]
pub(super) struct BrokerSide {
    pub(super) name: &'static str,
    broker: Broker,
    sender: Option<SenderOptions>,
    acknowledger: Option<SenderOptions>,
    pub(super) receivers: Vec<(ReceiveQueue, ReceiverOptions)>,
}

pub(super) struct OpenLinks {
    connection: Connection,
    sender: Option<SenderLink>,
    acknowledger: Option<SenderLink>,
    receivers: Vec<(ReceiveQueue, ReceiverLink)>,
}

pub(super) fn sides(options: &MadesOptions) -> Vec<BrokerSide> {
    let queues = &options.queues;
    let receiver = |queue, name: &str| (queue, ReceiverOptions::new(name, options.credit));
    let sender = |name: &str| Some(SenderOptions::new(name, options.window));
    let incoming = || vec![receiver(ReceiveQueue::Inbox, &queues.inbox)];
    let inbox = |sender| BrokerSide {
        name: "inbox",
        broker: options.inbox.clone(),
        sender,
        acknowledger: None,
        receivers: incoming(),
    };
    let answers = || {
        let has_events = matches!(options.mode, MadesMode::Endpoint | MadesMode::Tracing);
        let events = queues.send_event.as_deref().filter(|_| has_events);
        let events = events.map(|name| receiver(ReceiveQueue::Event, name));
        std::iter::once(receiver(ReceiveQueue::Reply, &queues.reply)).chain(events).collect::<Vec<_>>()
    };
    let outbox = BrokerSide {
        name: "outbox",
        broker: options.outbox.clone(),
        sender: sender(&queues.outbox),
        acknowledger: None,
        receivers: answers(),
    };
    let acknowledger = options.acknowledgement_outbox().and_then(sender);
    let is_far = options.acknowledgement.as_ref().is_some_and(AcknowledgementOptions::are_far);
    match options.mode {
        MadesMode::Endpoint | MadesMode::Toolbox if is_far => {
            let near = BrokerSide { receivers: [outbox.receivers, incoming()].concat(), ..outbox };
            // The bench sends acknowledgements over the far endpoint's broker, so it must also read the answers to
            // them there.
            let far = if acknowledger.is_some() { [incoming(), answers()].concat() } else { incoming() };
            vec![near, BrokerSide { acknowledger, receivers: far, ..inbox(None) }]
        }
        MadesMode::Endpoint | MadesMode::Toolbox => vec![BrokerSide { acknowledger, ..outbox }, inbox(None)],
        MadesMode::Tracing => vec![outbox],
        // In mode `amqp`, there is no endpoint, so the bench sends to a queue and receives from the same queue.
        MadesMode::Amqp => vec![BrokerSide { acknowledger, ..inbox(sender(&queues.inbox)) }],
    }
}

impl BrokerSide {
    pub(super) async fn open(&self) -> Result<OpenLinks, Error> {
        self.open_on(Connection::open(&self.broker).await?).await
    }

    async fn open_on(&self, mut connection: Connection) -> Result<OpenLinks, Error> {
        let mut receivers = Vec::new();
        for (queue, plan) in &self.receivers {
            receivers.push((*queue, connection.attach_receiver(plan).await?));
        }
        let sender = match &self.sender {
            Some(plan) => Some(connection.attach_sender(plan).await?),
            None => None,
        };
        let acknowledger = match &self.acknowledger {
            Some(plan) => Some(connection.attach_sender(plan).await?),
            None => None,
        };
        Ok(OpenLinks { connection, sender, acknowledger, receivers })
    }

    /// Connects to a broker that may have been started together with the bench, and therefore may refuse connections at
    /// first.
    ///
    /// # Errors
    /// Fails if the broker still refuses connections when `wait` is over. Any other error is returned at once.
    async fn first_connection(&self, wait: StartWait) -> Result<Connection, Error> {
        loop {
            let opened = Connection::open(&self.broker).await;
            match (&opened, wait.next_pause()) {
                (Err(Error::Refused { .. }), Some(pause)) => tokio::time::sleep(pause).await,
                _ => return opened,
            }
        }
    }

    /// Removes all messages from the queues of this side. Returns the number of removed messages.
    ///
    /// # Errors
    /// Fails if the connection ends, or if other programs keep filling a queue.
    async fn purge(&self, wait: StartWait) -> Result<u64, Error> {
        let mut connection = self.first_connection(wait).await?;
        let mut count = 0;
        for (_, plan) in &self.receivers {
            count += purge(connection.attach_receiver(plan).await?, PURGE_TIMEOUT).await?;
        }
        let _ = connection.close().await;
        Ok(count)
    }
}

pub(super) async fn purge_all(sides: &[BrokerSide], wait: StartWait) -> Result<u64, Error> {
    let mut purged = 0;
    for side in sides {
        purged += side.purge(wait).await?;
    }
    Ok(purged)
}

pub(super) async fn open_all(sides: Vec<BrokerSide>, wait: StartWait) -> Result<Vec<(BrokerSide, OpenLinks)>, Error> {
    let mut open = Vec::new();
    for side in sides {
        let links = side.open_on(side.first_connection(wait).await?).await?;
        open.push((side, links));
    }
    Ok(open)
}

/// Runs one side of the endpoint pair until the run is over, and restores its connection whenever it is lost.
pub(super) async fn maintain(side: BrokerSide, mut links: OpenLinks, run_state: Rc<MadesRunState>, timer: Rc<TimerFd>) {
    let mut pause = Duration::ZERO;
    run_state.record_broker(side.name, links.connection.peer_product());
    loop {
        let start = clock::now();
        let Err(error) = run_links(links, &run_state, &timer).await else { return };
        let lost_at = clock::now();
        record_loss(&side, &run_state, &error);
        // Reset the pause only after a connection that lasted. If a broker accepts connections but ends each of them at
        // once, the pauses must grow as if the broker had refused the connections.
        if lost_at - start >= MAX_RECONNECT_DELAY {
            pause = Duration::ZERO;
        }
        let new_links = match error {
            // Do not reconnect, because the same error would end the new links: the broker would, for example, deliver
            // an oversized message again.
            _ if error.is_permanent() => {
                give_up(&side, &run_state, &error);
                None
            }
            _ => reconnect(&side, &run_state, &mut pause).await,
        };
        match new_links {
            Some(new_links) => links = new_links,
            None => {
                run_state.record_outage(side.name, lost_at, clock::now(), OutageEnd::Never, &error.to_string());
                return;
            }
        }
        let reconnected_at = clock::now();
        run_state.record_outage(side.name, lost_at, reconnected_at, OutageEnd::Reconnected, &error.to_string());
        // Count the endpoint's silence from now, because it could not answer over the lost connection.
        run_state.tracker.borrow_mut().restart_silence(reconnected_at);
        run_state.room_notify.notify_one();
    }
}

async fn run_links(links: OpenLinks, run_state: &Rc<MadesRunState>, timer: &Rc<TimerFd>) -> Result<(), Error> {
    let OpenLinks { mut connection, sender, acknowledger, receivers } = links;
    let mut tasks = JoinSet::new();
    if let Some(sender) = sender {
        tasks.spawn_local(send(Rc::clone(run_state), sender, Rc::clone(timer)));
    }
    if let Some(acknowledger) = acknowledger {
        tasks.spawn_local(acknowledge(Rc::clone(run_state), acknowledger));
    }
    for (queue, receiver) in receivers {
        tasks.spawn_local(receive(Rc::clone(run_state), queue, receiver));
    }
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                None => break,
                Some(Ok(result)) => result?,
                Some(Err(_)) => return Err(Error::Lost { why: "a task of mailrun failed".to_owned() }),
            },
            error = connection.closed() => return if run_state.is_over() { Ok(()) } else { Err(error) },
        }
    }
    // Ignore an error while closing, because all tasks of the links have already ended.
    let _ = connection.close().await;
    Ok(())
}

fn record_loss(side: &BrokerSide, run_state: &MadesRunState, error: &Error) {
    run_state.record_trouble(TroubleKind::Connection, "", &format!("{}: {error}", side.name));
    let queues: Vec<ReceiveQueue> = side.receivers.iter().map(|(queue, _)| *queue).collect();
    let mut tracker = run_state.tracker.borrow_mut();
    tracker.connection_lost(&queues);
    if side.sender.is_some() {
        tracker.forget_unsettled(run_state.unsent.get());
    }
    if let Some(acknowledgements) = run_state.acknowledgements.as_ref().filter(|_| side.acknowledger.is_some()) {
        for sequence in acknowledgements.take_unsettled() {
            tracker.add_document_fact(sequence, MessageFlags::DOCUMENT_IN_DOUBT);
        }
    }
}

fn give_up(side: &BrokerSide, run_state: &MadesRunState, error: &Error) {
    // Give up the run, because without this connection, the bench cannot send messages or cannot see them arrive.
    run_state.give_up(TroubleKind::Connection, &format!("{}: {error}", side.name));
}

/// Reconnects with growing pauses, or returns `None` if the run or the time for reconnecting is over.
async fn reconnect(side: &BrokerSide, run_state: &MadesRunState, pause: &mut Duration) -> Option<OpenLinks> {
    let until = clock::now() + run_state.options.reconnect;
    while !run_state.is_over() {
        let attempt = async {
            tokio::time::sleep(*pause).await;
            side.open().await
        };
        let result = tokio::select! {
            result = attempt => result,
            () = run_state.ended() => return None,
        };
        *pause = (*pause * 2).clamp(MIN_RECONNECT_DELAY, MAX_RECONNECT_DELAY);
        match result {
            Ok(links) => return Some(links),
            Err(error) if clock::now() >= until => {
                give_up(side, run_state, &error);
                return None;
            }
            Err(_) => {}
        }
    }
    None
}

/// The tasks that keep the sides of a run connected, until `stop` ends them.
pub(super) struct RunSides(JoinSet<()>);

impl RunSides {
    pub(super) fn start(
        open: Vec<(BrokerSide, OpenLinks)>,
        run_state: &Rc<MadesRunState>,
        timer: &Rc<TimerFd>,
    ) -> Self {
        let mut tasks = JoinSet::new();
        for (side, links) in open {
            tasks.spawn_local(maintain(side, links, Rc::clone(run_state), Rc::clone(timer)));
        }
        Self(tasks)
    }

    /// Ends the run and closes the links, so that the brokers learn which messages were accepted. Stops waiting for the
    /// brokers after `CLOSE_TIMEOUT`, or when the user asks to stop at once.
    pub(super) async fn stop(mut self, run_state: &MadesRunState, interrupt: &Interrupt) {
        run_state.end();
        tokio::select! {
            () = async { while self.0.join_next().await.is_some() {} } => {}
            () = tokio::time::sleep(CLOSE_TIMEOUT) => {}
            () = interrupt.wait_for(StopRequest::StopNow) => {}
        }
    }
}
