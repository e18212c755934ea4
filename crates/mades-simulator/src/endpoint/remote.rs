//! Connects the simulator to a broker, with a receiver for the outbox and a sender for each other queue. No link waits
//! for the settlement of one message before it handles the next. Lost connections are opened again.
//!
//! ```text
//! supervisor ─┬─ receiver task ──▶ arrivals               (bounded by the credit)
//!             │                ◀── deliveries to accept
//!             └─ sender task ◀── messages                 (bounded by the window), one for each queue
//!                            ──▶ settled
//! ```
//! Sent messages that the broker had not confirmed when the connection was lost are sent again over the next
//! connection. The broker redelivers received messages that the simulator had not accepted. A message may therefore
//! appear twice, but no message is lost. An error that reconnecting cannot cure ends the endpoint.
use crate::embedded::EncodedMessage;
use crate::model::{EndpointStep, MessageKey};
use mailrun_mades::{
    Broker, Connection, DeliveryHandle, Disposition, DispositionFuture, EncodedDelivery, Error, ReceiverLink,
    ReceiverOptions, SenderLink, SenderOptions, api,
};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Maximum number of messages that are sent to a queue and that the broker has neither accepted nor rejected yet.
const SEND_WINDOW: usize = 256;
/// Delay between two attempts to reach a broker that was reachable before.
const RECONNECT_DELAY: Duration = Duration::from_millis(500);
/// Delay before a message that the broker has released is sent again. Without the delay, a broker that releases all
/// messages, for example because its disk is full, would get them again and again without a pause.
const RESEND_DELAY: Duration = Duration::from_millis(100);

/// Identifies a message from the outbox that is not accepted yet. `handle` is valid only on the connection whose number
/// is `connection`.
#[derive(Debug)]
pub(super) struct BrokerDelivery {
    connection: u64,
    handle: DeliveryHandle,
}

struct PendingSend {
    message: EncodedMessage,
    token: (MessageKey, EndpointStep),
}

/// What the tasks that receive and send report to the endpoint. The channel for these reports needs no limit, because
/// the receiver's credit and the senders' windows limit the number of reports.
enum LinkReport {
    Received(EncodedMessage, BrokerDelivery),
    Settled((MessageKey, EndpointStep), SendResult),
    /// The connection was lost, so the broker will redeliver all messages that were not accepted.
    Disconnected,
    /// The links ended with an error that reconnecting cannot cure.
    Failed(Error),
}

pub(super) struct BrokerQueues {
    reports: UnboundedReceiver<LinkReport>,
    received: VecDeque<(EncodedMessage, BrokerDelivery)>,
    settled: VecDeque<(MessageKey, EndpointStep, SendResult)>,
    accepted: UnboundedSender<BrokerDelivery>,
    outbound: [UnboundedSender<PendingSend>; OutputQueue::COUNT],
    outstanding: [usize; OutputQueue::COUNT],
    reconnects: Arc<AtomicU64>,
    failure: Option<Error>,
    supervisor: AbortHandle,
}

impl Drop for BrokerQueues {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

impl BrokerQueues {
    pub(super) async fn open(
        a: Broker,
        b: Broker,
        names: &api::EndpointQueueNames,
        outbox: ReceiverOptions,
        has_documents: bool,
    ) -> Result<Self, EndpointError> {
        let (report_tx, reports) = unbounded_channel();
        let (accepted, to_accept) = unbounded_channel();
        let queues: [_; OutputQueue::COUNT] = std::array::from_fn(|_| SendQueue::new());
        let parcels = queues.each_ref().map(|(sender, _)| sender.clone());
        let reconnects = Arc::new(AtomicU64::new(0));
        let event = names.send_event.clone().unwrap_or_else(|| names.reply.clone());
        let brokers = BrokerLinks {
            a,
            b,
            outbox,
            senders: [&names.reply, &names.inbox, &event]
                .map(|queue| SenderOptions::new(queue, SEND_WINDOW as u32 + 1)),
            documents: has_documents.then(|| SenderOptions::new(&names.inbox, SEND_WINDOW as u32 + 1)),
        };
        let links = brokers.attach().await?;
        let state = SupervisorState { brokers, report_tx, to_accept, queues: queues.map(|(_, line)| line), number: 0 };
        let supervisor = tokio::spawn(supervise(state, links, Arc::clone(&reconnects))).abort_handle();
        let arrived = VecDeque::new();
        let settled = VecDeque::new();
        Ok(Self {
            reports,
            received: arrived,
            settled,
            accepted,
            outbound: parcels,
            outstanding: [0; OutputQueue::COUNT],
            reconnects,
            failure: None,
            supervisor,
        })
    }

    fn record(&mut self, report: LinkReport) {
        match report {
            LinkReport::Received(message, delivery) => self.received.push_back((message, delivery)),
            LinkReport::Settled((key, step), sent) => {
                if let Some(queue) = OutputQueue::of_step(step) {
                    self.outstanding[queue as usize] -= 1;
                }
                self.settled.push_back((key, step, sent));
            }
            // Discard the messages that nobody has taken yet, because the broker delivers them again after the
            // reconnection.
            LinkReport::Disconnected => self.received.clear(),
            LinkReport::Failed(error) => self.failure = Some(error),
        }
    }

    fn drain_reports(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            self.record(report);
        }
    }

    pub(super) fn has_message(&mut self) -> bool {
        self.drain_reports();
        !self.received.is_empty()
    }

    pub(super) fn take(&mut self) -> Option<(EncodedMessage, BrokerDelivery)> {
        self.drain_reports();
        self.received.pop_front()
    }

    pub(super) fn next_settled(&mut self) -> Option<(MessageKey, EndpointStep, SendResult)> {
        self.drain_reports();
        self.settled.pop_front()
    }

    pub(super) fn take_failure(&mut self) -> Option<Error> {
        self.drain_reports();
        self.failure.take()
    }

    pub(super) fn accept(&mut self, delivery: BrokerDelivery) {
        // Ignore an error. It means that the supervisor has ended, and `take_failure` returns the reason.
        let _ = self.accepted.send(delivery);
    }

    pub(super) fn has_room(&self, queue: OutputQueue) -> bool {
        self.outstanding[queue as usize] < SEND_WINDOW
    }

    pub(super) fn send(
        &mut self,
        queue: OutputQueue,
        message: EncodedMessage,
        token: (MessageKey, EndpointStep),
    ) -> SendResult {
        match self.outbound[queue as usize].send(PendingSend { message, token }) {
            Ok(()) => {
                self.outstanding[queue as usize] += 1;
                SendResult::Pending
            }
            Err(_) => SendResult::Refused,
        }
    }

    pub(super) async fn changed(&mut self) {
        match self.reports.recv().await {
            Some(report) => self.record(report),
            // Wait forever, because the supervisor has ended and sends no reports. `take_failure` returns why it ended.
            None => std::future::pending().await,
        }
    }

    pub(super) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }
}

struct BrokerLinks {
    a: Broker,
    b: Broker,
    outbox: ReceiverOptions,
    senders: [SenderOptions; 3],
    /// Options of the link for acknowledgement documents to A's inbox, or `None` if the plan wants no such documents.
    documents: Option<SenderOptions>,
}

struct AttachedLinks {
    receiver: ReceiverLink,
    senders: [SenderLink; 3],
    documents: Option<SenderLink>,
    _connections: [Connection; 2],
}

impl BrokerLinks {
    async fn attach(&self) -> Result<AttachedLinks, Error> {
        let mut a = Connection::open(&self.a).await?;
        let mut b = Connection::open(&self.b).await?;
        let reply = a.attach_sender(&self.senders[OutputQueue::Reply as usize]).await?;
        let inbox = b.attach_sender(&self.senders[OutputQueue::Inbox as usize]).await?;
        let event = a.attach_sender(&self.senders[OutputQueue::Event as usize]).await?;
        let documents = match &self.documents {
            Some(plan) => Some(a.attach_sender(plan).await?),
            None => None,
        };
        // Attach the receiver last: messages arrive as soon as it is attached, and answering them needs the senders.
        let receiver = a.attach_receiver(&self.outbox).await?;
        Ok(AttachedLinks { receiver, senders: [reply, inbox, event], documents, _connections: [a, b] })
    }
}

/// State that outlives a connection, so that no message is lost when the connection is cut.
struct SupervisorState {
    brokers: BrokerLinks,
    report_tx: UnboundedSender<LinkReport>,
    to_accept: UnboundedReceiver<BrokerDelivery>,
    queues: [SendQueue; OutputQueue::COUNT],
    number: u64,
}

struct SendQueue {
    messages: UnboundedReceiver<PendingSend>,
    unsettled: VecDeque<PendingSend>,
    /// Messages that wait to be sent again, because the broker released them or the connection was lost.
    released: VecDeque<PendingSend>,
}

impl SendQueue {
    fn new() -> (UnboundedSender<PendingSend>, Self) {
        let (sender, parcels) = unbounded_channel();
        (sender, Self { messages: parcels, unsettled: VecDeque::new(), released: VecDeque::new() })
    }
}

async fn supervise(mut state: SupervisorState, links: AttachedLinks, reconnects: Arc<AtomicU64>) {
    let mut attached = Ok(links);
    loop {
        let ended = match attached {
            Ok(links) => {
                state.number += 1;
                let ended = state.run_links(links).await;
                let _ = state.report_tx.send(LinkReport::Disconnected);
                ended
            }
            Err(error) => Err(error),
        };
        // Ignore a temporary error, because the next attempt shows whether the broker is reachable.
        if let Err(error) = ended
            && error.is_permanent()
        {
            let _ = state.report_tx.send(LinkReport::Failed(error));
            return;
        }
        tokio::time::sleep(RECONNECT_DELAY).await;
        attached = state.brokers.attach().await;
        reconnects.fetch_add(u64::from(attached.is_ok()), Ordering::Relaxed);
    }
}

impl SupervisorState {
    async fn run_links(&mut self, mut links: AttachedLinks) -> Result<(), Error> {
        let Self { report_tx, to_accept, queues, number, .. } = self;
        let [reply, inbox, event] = &mut links.senders;
        let [to_reply, to_inbox, to_event, to_documents] = queues;
        let documents = links.documents.as_mut();
        let send_documents = async {
            match documents {
                Some(link) => send_all(link, to_documents, report_tx).await,
                None => std::future::pending().await,
            }
        };
        tokio::try_join!(
            receive(&mut links.receiver, to_accept, report_tx, *number),
            send_all(reply, to_reply, report_tx),
            send_all(inbox, to_inbox, report_tx),
            send_all(event, to_event, report_tx),
            send_documents,
        )?;
        Ok(())
    }
}

/// Receives messages from the outbox, and accepts each message after it has been processed.
async fn receive(
    receiver: &mut ReceiverLink,
    to_accept: &mut UnboundedReceiver<BrokerDelivery>,
    report_tx: &UnboundedSender<LinkReport>,
    connection: u64,
) -> Result<(), Error> {
    loop {
        tokio::select! {
            biased;
            accepted = to_accept.recv() => {
                let Some(delivery) = accepted else { return std::future::pending().await };
                // Skip a delivery of a lost connection, because the broker delivers its message again.
                if delivery.connection == connection {
                    receiver.accept(delivery.handle)?;
                }
            }
            // Do not decode the message here, so that an invalid message gets the same error reply as an invalid
            // message from a queue in memory.
            arrival = receiver.next_encoded() => {
                let EncodedDelivery { handle, message } = arrival?;
                let _ = report_tx.send(LinkReport::Received(message, BrokerDelivery { connection, handle }));
            }
        }
    }
}

/// Sends waiting messages, and reports their settlements in the order of sending. Messages that the
/// broker releases are sent again later. A message above the broker's limit counts as refused.
async fn send_all(
    sender: &mut SenderLink,
    queue: &mut SendQueue,
    report_tx: &UnboundedSender<LinkReport>,
) -> Result<(), Error> {
    let mut in_flight: VecDeque<DispositionFuture> = VecDeque::new();
    let mut resend_at = Instant::now();
    // First, send the messages again that were unsettled when the last connection was lost. Take them from `released`
    // one by one, so that the rest is still there if this connection breaks as well.
    queue.unsettled.append(&mut queue.released);
    std::mem::swap(&mut queue.unsettled, &mut queue.released);
    while let Some(pending) = queue.released.pop_front() {
        send_one(sender, pending, &mut queue.unsettled, &mut in_flight, report_tx).await?;
    }
    loop {
        let first = in_flight.front_mut();
        tokio::select! {
            biased;
            settled = async { first.expect("there is one").await }, if !queue.unsettled.is_empty() => {
                // After an error, the message stays unsettled, so that it is sent again over the next connection.
                let settled = settled?;
                in_flight.pop_front();
                let pending = queue.unsettled.pop_front().expect("each has its settling");
                match settled {
                    Disposition::Accepted => drop(report_tx.send(LinkReport::Settled(pending.token, SendResult::Settled))),
                    Disposition::Rejected { .. } => drop(report_tx.send(LinkReport::Settled(pending.token, SendResult::Refused))),
                    // The broker does not accept the message now, so it is sent again later.
                    Disposition::Released | Disposition::Modified { .. } => {
                        if queue.released.is_empty() {
                            resend_at = Instant::now() + RESEND_DELAY;
                        }
                        queue.released.push_back(pending);
                    }
                }
            }
            () = tokio::time::sleep_until(resend_at), if !queue.released.is_empty() => {
                while let Some(pending) = queue.released.pop_front() {
                    send_one(sender, pending, &mut queue.unsettled, &mut in_flight, report_tx).await?;
                }
            }
            transfer = queue.messages.recv(), if queue.unsettled.len() + queue.released.len() < SEND_WINDOW => {
                let Some(pending) = transfer else { return std::future::pending().await };
                send_one(sender, pending, &mut queue.unsettled, &mut in_flight, report_tx).await?;
            }
            lost = sender.closed() => return Err(lost),
        }
    }
}

/// Sends a message and counts it as unsettled, or reports it as refused if it exceeds the broker's limit. A refused
/// message is not sent again, because every connection would refuse it.
async fn send_one(
    sender: &mut SenderLink,
    pending: PendingSend,
    unsettled: &mut VecDeque<PendingSend>,
    in_flight: &mut VecDeque<DispositionFuture>,
    report_tx: &UnboundedSender<LinkReport>,
) -> Result<(), Error> {
    // Count the message as unsettled before sending it, so that it is sent again if the connection is lost meanwhile.
    unsettled.push_back(pending);
    let pending = unsettled.back().expect("it was just put there");
    match sender.send_encoded(&pending.message).await {
        Ok(settling) => in_flight.push_back(settling),
        Err(Error::TooLarge { .. }) => {
            let refused = unsettled.pop_back().expect("it was just put there");
            let _ = report_tx.send(LinkReport::Settled(refused.token, SendResult::Refused));
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputQueue {
    Reply,
    Inbox,
    Event,
    /// A's inbox, into which B's application sends acknowledgement documents.
    Documents,
}

impl OutputQueue {
    pub(super) const COUNT: usize = 4;
    pub(super) const ALL: [Self; Self::COUNT] = [Self::Reply, Self::Inbox, Self::Event, Self::Documents];

    /// Returns the queue to which a step of the simulation sends a message, or `None` if the step sends no message.
    pub(super) fn of_step(step: EndpointStep) -> Option<Self> {
        match step {
            EndpointStep::Accept | EndpointStep::Acknowledge { .. } => None,
            EndpointStep::Reply(_) => Some(Self::Reply),
            EndpointStep::Inbox { .. } => Some(Self::Inbox),
            EndpointStep::Event(_) => Some(Self::Event),
            EndpointStep::Document { .. } => Some(Self::Documents),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendResult {
    Settled,
    Pending,
    Refused,
    NoRoom,
}

#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    #[error("{0}")]
    Plan(String),
    #[error(transparent)]
    Broker(#[from] Error),
    #[error("cannot write the log of messages: {0}")]
    MessageLog(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::{self, ListenOptions, ListenerAuth, MemoryQueues, QueueLimits};
    use crate::model::ReplyKind;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::Notify;

    fn message() -> EncodedMessage {
        vec![0, 0x53, 0x75, 0xa0, 1, 7].into()
    }

    async fn broker(limits: QueueLimits, options: ListenOptions) -> (Broker, MemoryQueues) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("amqp://{}", listener.local_addr().unwrap()).parse().unwrap();
        let queues = MemoryQueues::new(limits);
        tokio::spawn(embedded::serve(listener, queues.clone(), options, Default::default()));
        (Broker::new(url, "test"), queues)
    }

    async fn open(broker: &Broker, max_message_bytes: u64) -> BrokerQueues {
        let names = api::EndpointQueueNames::default();
        let outbox = ReceiverOptions { max_message_bytes, ..ReceiverOptions::new(names.outbox.clone(), 100) };
        BrokerQueues::open(broker.clone(), broker.clone(), &names, outbox, false).await.unwrap()
    }

    fn outbox(queues: &MemoryQueues) -> embedded::QueueIndex {
        queues.get_or_create(&api::EndpointQueueNames::default().outbox).unwrap()
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), test).await.expect("it ends") });
    }

    async fn next_settled(queues: &mut BrokerQueues) -> SendResult {
        loop {
            match queues.next_settled() {
                Some((_, _, sent)) => return sent,
                None => queues.changed().await,
            }
        }
    }

    async fn next_taken(queues: &mut BrokerQueues) -> EncodedMessage {
        loop {
            match queues.take() {
                Some((message, _)) => return message,
                None => queues.changed().await,
            }
        }
    }

    #[test]
    fn a_message_above_the_limit_of_a_broker_is_refused_and_the_link_stays() {
        run(async {
            let options = ListenOptions { max_message_bytes: 1_000, ..ListenOptions::new(ListenerAuth::Any) };
            let (broker, _) = broker(QueueLimits::default(), options).await;
            let mut queues = open(&broker, 1 << 20).await;
            let token = (MessageKey::from_number(1), EndpointStep::Reply(ReplyKind::Accepted));
            for (message, expected) in [(vec![0; 2_000].into(), SendResult::Refused), (message(), SendResult::Settled)]
            {
                assert_eq!(queues.send(OutputQueue::Reply, message, token), SendResult::Pending);
                assert_eq!(next_settled(&mut queues).await, expected);
            }
            assert_eq!((queues.reconnects(), queues.outstanding), (0, [0; OutputQueue::COUNT]));
        });
    }

    #[test]
    fn a_message_above_the_limit_of_the_endpoint_ends_the_endpoint() {
        run(async {
            let (broker, broker_queues) = broker(QueueLimits::default(), ListenOptions::new(ListenerAuth::Any)).await;
            broker_queues.put(outbox(&broker_queues), vec![0; 2_000].into(), None).unwrap();
            let mut queues = open(&broker, 1_000).await;
            let failure = loop {
                match queues.take_failure() {
                    Some(failure) => break failure,
                    None => queues.changed().await,
                }
            };
            assert!(matches!(failure, Error::Oversized { limit: 1_000, .. }), "{failure}");
        });
    }

    #[test]
    fn a_message_that_cannot_be_decoded_is_passed_on_as_with_queues_in_this_process() {
        run(async {
            let (broker, broker_queues) = broker(QueueLimits::default(), ListenOptions::new(ListenerAuth::Any)).await;
            let text = |descriptor: u8, text: &str| {
                let mut octets = Vec::new();
                embedded::Writer::new(&mut octets).described_string(descriptor, text);
                octets
            };
            let all = [
                message().whole().to_vec(),
                text(0x77, "no data"),
                // The next two messages are invalid. In the first, the application properties are a string and not a
                // map. In the second, they come after the body.
                text(0x74, "no map"),
                [&message().whole()[..], &text(0x74, "late")].concat(),
                b"no AMQP".to_vec(),
            ];
            for octets in &all {
                broker_queues.put(outbox(&broker_queues), octets.clone().into(), None).unwrap();
            }
            let mut queues = open(&broker, 1 << 20).await;
            for octets in &all {
                assert_eq!(next_taken(&mut queues).await.whole(), octets);
            }
        });
    }

    /// Forwards connections to the broker at `address`. Notifying `cut` ends them, as a network failure would.
    async fn pass_on(listener: TcpListener, address: String, cut: Arc<Notify>) {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = TcpStream::connect(&address).await.unwrap();
            let cut = Arc::clone(&cut);
            tokio::spawn(async move {
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    () = cut.notified() => {}
                }
            });
        }
    }

    #[test]
    fn messages_of_a_lost_connection_are_not_taken_besides_their_redelivery() {
        run(async {
            let (broker, broker_queues) = broker(QueueLimits::default(), ListenOptions::new(ListenerAuth::Any)).await;
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("amqp://{}", listener.local_addr().unwrap()).parse().unwrap();
            let cut = Arc::<Notify>::default();
            tokio::spawn(pass_on(listener, broker.url.address(), Arc::clone(&cut)));
            let put = |number: u8| {
                let octets = vec![0, 0x53, 0x75, 0xa0, 1, number];
                broker_queues.put(outbox(&broker_queues), octets.into(), None).unwrap();
            };
            put(1);
            let mut queues = open(&Broker::new(url, "test"), 1 << 20).await;
            while queues.received.is_empty() {
                queues.changed().await;
            }
            for reconnects in 1..=2 {
                cut.notify_waiters();
                while queues.reconnects() < reconnects {
                    let _ = tokio::time::timeout(Duration::from_millis(10), queues.changed()).await;
                }
            }
            put(2);
            let mut taken = Vec::new();
            while taken.last() != Some(&2) {
                // Compare only the payload, which is the last byte, because the header of a redelivered message is
                // different.
                taken.extend(next_taken(&mut queues).await.whole().last());
            }
            assert_eq!(taken, [1, 2]);
        });
    }

    #[test]
    fn what_a_broker_releases_is_sent_again_but_not_at_once() {
        run(async {
            let limits = QueueLimits { messages: 1000, bytes: message().bytes() };
            let (broker, queues) = broker(limits, ListenOptions::new(ListenerAuth::Any)).await;
            let mut connection = Connection::open(&broker).await.unwrap();
            let mut sender = connection.attach_sender(&SenderOptions::new("q", 10)).await.unwrap();
            let id = queues.get_or_create("q").unwrap();
            // The first message fills the queue. The sender still has credit and sends another message. The broker
            // releases this message, because the queue is full.
            let first = sender.send_encoded(&message()).await.unwrap();
            assert_eq!(first.await, Ok(Disposition::Accepted));
            let (messages, mut queue) = SendQueue::new();
            let token = (MessageKey::from_number(1), EndpointStep::Reply(ReplyKind::Accepted));
            messages.send(PendingSend { message: message(), token }).ok().unwrap();
            let (report_tx, mut reports) = unbounded_channel();
            let began = Instant::now();
            tokio::spawn(async move { send_all(&mut sender, &mut queue, &report_tx).await });
            while queues.counts(id).refused < 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(began.elapsed() >= 2 * RESEND_DELAY, "{:?}", began.elapsed());
            let filler = queues.take(id).unwrap();
            queues.settle(filler, mailrun_amqp::DeliveryOutcome::Accepted);
            let report = reports.recv().await;
            assert!(matches!(report, Some(LinkReport::Settled(_, SendResult::Settled))), "it arrives in the end");
        });
    }
}
