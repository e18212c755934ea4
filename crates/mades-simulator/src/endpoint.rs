//! Runs a simulated pair of endpoints, A and B. This module takes messages from A's outbox, asks the model which steps
//! each message needs and when, and carries out these steps. The queues are in this process or at a broker.
//!
//! ```text
//! outbox ──take──▶ messages ──▶ Simulator ──steps──▶ messages ──send──▶ reply, inbox, send.event,
//!    ▲                              ▲                                   A's inbox
//!    └────────── accept ────────────┴────────────── settled ──────────────┘
//! ```
//! An ECP endpoint accepts a message from the outbox after the broker has accepted the reply. An EDX toolbox first
//! accepts the message, and then passes it on. Messages for a full queue wait in memory. When the messages in memory
//! reach the plan's limit, the simulator takes no more messages from the outbox.
mod messages;
mod queues;
mod remote;

use crate::embedded::{DeliveryOutcome, EncodedMessage, MemoryQueues};
use crate::model::{
    EndpointMode, EndpointStep, MessageKey, ReceivedOn, ReplyKind, SimulationTotals, Simulator, SimulatorPlan,
};
use futures_util::future::LocalBoxFuture;
use mailrun_mades::{Broker, ReceiverOptions, api};
use messages::OutboxMessage;
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub use messages::fuzz_outbox_message;
use queues::{EmbeddedQueues, EndpointQueues, TakenDelivery};
pub use remote::EndpointError;
use remote::{OutputQueue, SendResult};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};
use uuid::Uuid;

/// Maximum number of messages and steps, such as replies, that are processed before other tasks get a turn.
const TURN_LIMIT: usize = 256;
/// Interval at which the simulator reports its totals to the caller's closure `watch`, and flushes the message log.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub enum QueueBackend {
    Embedded(MemoryQueues),
    /// Queues at the brokers of the sending endpoint A and the receiving endpoint B, which may use the same broker.
    Brokers {
        /// Broker of the outbox, the replies and the events.
        a: Box<Broker>,
        /// Broker of the inbox, at which B's application receives messages.
        b: Box<Broker>,
    },
}

pub struct EndpointOptions {
    pub plan: SimulatorPlan,
    pub names: api::EndpointQueueNames,
    pub backend: QueueBackend,
    /// Returns the time of the host's monotonic clock, so that the times in the message log are
    /// comparable with the times of other processes.
    pub clock: fn() -> Duration,
    /// Output that gets one line for each message. If this is `None`, the simulator keeps no records of messages, so
    /// its memory use is constant.
    pub message_log: Option<Box<dyn Write + Send>>,
}

#[derive(Debug)]
pub struct EndpointSnapshot<'a> {
    pub totals: &'a SimulationTotals,
    pub stored: usize,
    pub reconnects: u64,
}

/// Runs the simulator until the future `stop` completes. Calls `ready` when the simulator begins to read the outbox,
/// and `watch` four times per second and at the end.
///
/// # Errors
/// Fails if the plan is invalid, if a broker cannot be reached at the start, if a link ends with an error that
/// reconnecting cannot cure, or if the message log cannot be written.
pub fn run<'a>(
    options: EndpointOptions,
    stop: LocalBoxFuture<'a, ()>,
    ready: &'a dyn Fn(),
    watch: &'a mut dyn FnMut(&EndpointSnapshot<'_>),
) -> LocalBoxFuture<'a, Result<SimulationTotals, EndpointError>> {
    Box::pin(run_until(options, stop, ready, watch))
}

/// Does the work of [`run`], which boxes the future of this function. The future is therefore compiled only once, in
/// this crate, and not in each crate that calls `run`.
async fn run_until(
    options: EndpointOptions,
    mut stop: LocalBoxFuture<'_, ()>,
    ready: &dyn Fn(),
    watch: &mut dyn FnMut(&EndpointSnapshot<'_>),
) -> Result<SimulationTotals, EndpointError> {
    let mut endpoint = EndpointRunner::open(options).await?;
    ready();
    let mut tick = tokio::time::interval(WATCH_INTERVAL);
    loop {
        let wait = endpoint.turn()?;
        if let Some(error) = endpoint.queues.take_failure() {
            endpoint.finish()?;
            return Err(error.into());
        }
        tokio::select! {
            biased;
            () = &mut stop => break,
            _ = tick.tick() => {
                endpoint.flush()?;
                watch(&endpoint.snapshot());
            }
            () = endpoint.wait(wait) => {}
        }
    }
    endpoint.finish()?;
    watch(&endpoint.snapshot());
    let waiting = endpoint.queues.waiting();
    Ok(SimulationTotals { waiting, ..endpoint.simulator.totals().clone() })
}

struct PendingMessage {
    message: OutboxMessage,
    /// The delivery from the outbox, or `None` once the simulator has accepted it.
    delivery: Option<TakenDelivery>,
}

struct EndpointRunner {
    simulator: Simulator<PendingMessage>,
    queues: EndpointQueues,
    clock: fn() -> Duration,
    waiting: [VecDeque<(MessageKey, EndpointStep)>; OutputQueue::COUNT],
    last_id: u128,
    message_log: Option<io::BufWriter<Box<dyn Write + Send>>>,
}

enum EndpointWait {
    /// Do not wait, because there is more to do, but first let other tasks run.
    Yield,
    /// Wait for an event, at most until this time. `None` means no time limit.
    Until(Option<Duration>),
}

impl EndpointRunner {
    async fn open(options: EndpointOptions) -> Result<Self, EndpointError> {
        options.plan.check().map_err(EndpointError::Plan)?;
        let queues = match options.backend {
            QueueBackend::Embedded(queues) => EndpointQueues::Embedded(EmbeddedQueues::open(queues, &options.names)?),
            QueueBackend::Brokers { .. } if options.plan.received_on == ReceivedOn::Consume => {
                let text = "received-on consume requires --embedded: a broker does not report when the receiver took a \
                           message";
                return Err(EndpointError::Plan(text.to_owned()));
            }
            QueueBackend::Brokers { a, b } => {
                let outbox = ReceiverOptions {
                    max_message_bytes: options.plan.max_message_bytes(),
                    ..ReceiverOptions::new(options.names.outbox.clone(), options.plan.credit)
                };
                let has_documents = options.plan.acknowledgement_documents;
                let opening = remote::BrokerQueues::open(*a, *b, &options.names, outbox, has_documents);
                EndpointQueues::Broker(opening.await?)
            }
        };
        Ok(Self {
            simulator: Simulator::new(options.plan, options.message_log.is_some()),
            queues,
            clock: options.clock,
            waiting: Default::default(),
            last_id: rand::random(),
            message_log: options.message_log.map(|to| io::BufWriter::with_capacity(256 << 10, to)),
        })
    }

    fn snapshot(&self) -> EndpointSnapshot<'_> {
        EndpointSnapshot {
            totals: self.simulator.totals(),
            stored: self.simulator.stored(),
            reconnects: self.queues.reconnects(),
        }
    }

    fn turn(&mut self) -> Result<EndpointWait, EndpointError> {
        let taken_count = self.take();
        self.note_progress();
        let done = self.run_steps();
        self.write_records()?;
        if taken_count + done >= TURN_LIMIT {
            return Ok(EndpointWait::Yield);
        }
        Ok(EndpointWait::Until(self.simulator.deadline((self.clock)())))
    }

    async fn wait(&mut self, pause: EndpointWait) {
        match pause {
            EndpointWait::Yield => tokio::task::yield_now().await,
            EndpointWait::Until(None) => self.queues.changed().await,
            EndpointWait::Until(Some(deadline)) => {
                let rest = deadline.saturating_sub((self.clock)());
                // If the deadline has passed, give other tasks a turn instead of sleeping.
                if rest.is_zero() {
                    return tokio::task::yield_now().await;
                }
                // It does not matter why the wait ended, because the next turn runs due steps and takes new messages.
                let _ = tokio::time::timeout(rest, self.queues.changed()).await;
            }
        }
    }

    fn take(&mut self) -> usize {
        let mut count = 0;
        if self.queues.has_message() {
            self.simulator.start_at_first_message((self.clock)());
        }
        while count < TURN_LIMIT && self.simulator.has_capacity((self.clock)()) {
            let Some((message, delivery)) = self.queues.take() else { break };
            let id = self.next_id();
            let outbox_message = OutboxMessage::read(message, id);
            let consumed = outbox_message.consumed(self.simulator.plan());
            self.simulator.consume(
                consumed,
                PendingMessage { message: outbox_message, delivery: Some(delivery) },
                (self.clock)(),
            );
            count += 1;
        }
        count
    }

    /// Returns a UUID in the form of version 4. It is unique, because the simulator starts at a random number and
    /// counts up.
    fn next_id(&mut self) -> Uuid {
        self.last_id = self.last_id.wrapping_add(1);
        uuid::Builder::from_random_bytes(self.last_id.to_be_bytes()).into_uuid()
    }

    /// Tells the model which sent messages the broker has accepted or rejected, and which messages from the inbox B's
    /// application has accepted or rejected.
    fn note_progress(&mut self) {
        while let Some((key, step, sent)) = self.queues.next_settled() {
            let now = (self.clock)();
            match sent {
                SendResult::Refused => self.simulator.step_failed(key, step, now),
                _ => self.simulator.step_done(key, step, now),
            }
        }
        while let Some((number, outcome)) = self.queues.next_consumed() {
            let key = MessageKey::from_number(number);
            match outcome {
                DeliveryOutcome::Rejected => self.simulator.rejected_by_receiver(key),
                _ => self.simulator.taken_by_receiver(key, (self.clock)()),
            }
        }
    }

    /// Performs first the steps that waited for room in a queue, and then the steps that are due.
    fn run_steps(&mut self) -> usize {
        let mut count = 0;
        for place in OutputQueue::ALL {
            while self.queues.has_room(place) {
                let Some((key, step)) = self.waiting[place as usize].pop_front() else { break };
                self.send(place, key, step);
                count += 1;
            }
        }
        while count < TURN_LIMIT {
            let Some((key, step)) = self.simulator.next_step((self.clock)()) else { break };
            count += 1;
            match OutputQueue::of_step(step) {
                None => match step {
                    EndpointStep::Acknowledge { rejects } => self.acknowledge(key, rejects),
                    _ => self.accept(key),
                },
                // A message must not overtake messages that wait for room in the same queue.
                Some(place) if self.queues.has_room(place) && self.waiting[place as usize].is_empty() => {
                    self.send(place, key, step);
                }
                Some(place) => self.waiting[place as usize].push_back((key, step)),
            }
        }
        count
    }

    fn accept(&mut self, key: MessageKey) {
        // Take the delivery first, because `step_done` makes the model forget the message after its last step.
        if let Some(delivery) = self.simulator.content_mut(key).and_then(|content| content.delivery.take()) {
            self.queues.accept(delivery);
        }
        self.simulator.step_done(key, EndpointStep::Accept, (self.clock)());
    }

    /// Writes the document with which the application at endpoint B acknowledges a message. An acknowledgement document
    /// itself gets no acknowledgement.
    fn acknowledge(&mut self, key: MessageKey, rejects: bool) {
        let now = (self.clock)();
        let id = self.next_id();
        let Some(content) = self.simulator.content(key) else { return };
        let plan = self.simulator.plan();
        match content.message.acknowledgement(id, rejects, plan, unix_time_ms()) {
            Some(message) => {
                let bytes = message.payload_bytes();
                self.simulator.acknowledge(key, rejects, bytes, PendingMessage { message, delivery: None }, now);
            }
            None => self.simulator.step_done(key, EndpointStep::Acknowledge { rejects }, now),
        }
    }

    fn send(&mut self, place: OutputQueue, key: MessageKey, step: EndpointStep) {
        let Some(message) = self.message(key, step) else { return };
        let confirm_id = match step {
            EndpointStep::Inbox { copy: 0, .. } if self.simulator.plan().received_on == ReceivedOn::Consume => {
                Some(key.to_number())
            }
            _ => None,
        };
        match self.queues.send(place, message, (key, step), confirm_id) {
            SendResult::Settled => self.simulator.step_done(key, step, (self.clock)()),
            SendResult::Pending => {}
            SendResult::Refused => self.simulator.step_failed(key, step, (self.clock)()),
            SendResult::NoRoom => self.waiting[place as usize].push_front((key, step)),
        }
    }

    fn message(&self, key: MessageKey, step: EndpointStep) -> Option<EncodedMessage> {
        let plan = self.simulator.plan();
        let outbox_message = &self.simulator.content(key)?.message;
        let at_ms = unix_time_ms();
        Some(match (step, plan.mode) {
            (EndpointStep::Reply(ReplyKind::Refused(refusal)), EndpointMode::Toolbox) => {
                outbox_message.status(Some(refusal), true, plan, at_ms)
            }
            (EndpointStep::Reply(ReplyKind::Refused(refusal)), _) => outbox_message.reply_refused(refusal, plan, at_ms),
            (EndpointStep::Reply(ReplyKind::Accepted), _) => outbox_message.reply_accepted(at_ms),
            (EndpointStep::Reply(ReplyKind::Received), _) => outbox_message.status(None, false, plan, at_ms),
            (EndpointStep::Reply(ReplyKind::Failed), _) => outbox_message.status(None, true, plan, at_ms),
            (EndpointStep::Inbox { changed, .. }, _) => outbox_message.inbox(changed, plan, at_ms),
            (EndpointStep::Event(kind), _) => outbox_message.event(kind, plan, at_ms),
            (EndpointStep::Document { .. }, _) => outbox_message.inbox(None, plan, at_ms),
            (EndpointStep::Accept | EndpointStep::Acknowledge { .. }, _) => return None,
        })
    }

    fn write_records(&mut self) -> io::Result<()> {
        let Some(log) = &mut self.message_log else { return Ok(()) };
        while let Some(record) = self.simulator.next_record() {
            writeln!(log, "{}", record.to_line())?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.message_log.as_mut().map_or(Ok(()), Write::flush)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.note_progress();
        self.write_records()?;
        let Some(log) = &mut self.message_log else { return Ok(()) };
        for record in self.simulator.unfinished() {
            writeln!(log, "{}", record.to_line())?;
        }
        writeln!(log, "{}", self.simulator.totals().to_line())?;
        log.flush()
    }
}

fn unix_time_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
