//! The stand-in at work: takes messages out of the outbox, asks the model what becomes of them and when, and does it, on
//! queues of our own or on a broker.
//!
//! ```text
//! outbox ──take──▶ letters ──▶ standin::Model ──steps──▶ letters ──send──▶ reply, inbox, send.event
//!    ▲                              ▲                                          │
//!    └────────── accept ────────────┴───────────────── settled ────────────────┘
//! ```
//! A delivery out of the outbox is accepted when its reply is settled. Messages that a queue has no room for wait with
//! the model, which takes no more when it holds as many as it may.
mod letters;
mod ports;
mod remote;

use crate::api;
use crate::connection::Broker;
use crate::embedded::{Message, Queues};
use crate::error::Error;
use crate::standin::{Key, Mode, Model, Plan, ReceivedOn, Reply, Step, Totals};
use letters::Letter;
#[doc(hidden)]
pub use letters::try_letter;
use ports::{Local, Place, Port, Sent, Taken};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

/// Messages that are dealt with before connections get their turn.
const TURN: usize = 256;
/// Interval in which the watcher is called and the record flushed.
const TICK: Duration = Duration::from_millis(250);

/// The place of the queues.
#[derive(Debug)]
pub enum Backend {
    /// Queues in this process.
    Embedded(Queues),
    /// Queues with brokers: A's and B's, which may be the same.
    Brokers {
        /// Has outbox, reply and events.
        a: Box<Broker>,
        /// Has the inbox.
        b: Box<Broker>,
    },
}

/// Options of a stand-in.
pub struct Setup {
    /// Plan that it follows.
    pub plan: Plan,
    /// The names of A's queues and of B's inbox.
    pub names: api::Queues,
    /// The place of the queues.
    pub backend: Backend,
    /// Time since the host's monotonic clock began: the record's times are comparable with other processes'.
    pub clock: fn() -> Duration,
    /// Writer that gets a line for each message; without it memory is constant.
    pub truth: Option<Box<dyn Write + Send>>,
}

/// Reason why a stand-in cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The plan is wrong.
    #[error("{0}")]
    Plan(String),
    /// The broker cannot be used.
    #[error(transparent)]
    Broker(#[from] Error),
    /// The record cannot be written.
    #[error("cannot write the log of messages: {0}")]
    Truth(#[from] io::Error),
}

/// State of the run, for the watcher.
#[derive(Debug)]
pub struct Sight<'a> {
    /// Counts so far.
    pub totals: &'a Totals,
    /// Messages on their way.
    pub stored: usize,
    /// Times that the connection to a broker was lost and made anew.
    pub reconnects: u64,
}

/// Works until `stop`; `watch` is called four times a second, and once at the end. `ready` is called when the outbox is
/// attended to.
///
/// # Errors
/// If the plan is wrong, the broker cannot be reached at the start, or the record cannot be written.
pub async fn run(
    setup: Setup,
    stop: impl Future<Output = ()>,
    ready: impl FnOnce(),
    mut watch: impl FnMut(&Sight<'_>),
) -> Result<Totals, EndpointError> {
    let mut endpoint = Endpoint::open(setup).await?;
    ready();
    let mut stop = std::pin::pin!(stop);
    let mut tick = tokio::time::interval(TICK);
    loop {
        let pause = endpoint.turn()?;
        tokio::select! {
            biased;
            () = &mut stop => break,
            _ = tick.tick() => {
                endpoint.flush()?;
                watch(&endpoint.sight());
            }
            () = endpoint.pause(pause) => {}
        }
    }
    endpoint.finish()?;
    watch(&endpoint.sight());
    Ok(endpoint.model.totals().clone())
}

/// A message on its way.
struct Content {
    letter: Letter,
    /// Its delivery out of the outbox, until that is accepted.
    taken: Option<Taken>,
}

struct Endpoint {
    model: Model<Content>,
    port: Port,
    clock: fn() -> Duration,
    /// Steps whose queue has no room, by place.
    waiting: [VecDeque<(Key, Step)>; 3],
    /// Number from which ids are made.
    ids: u128,
    truth: Option<io::BufWriter<Box<dyn Write + Send>>>,
}

/// The events to wait for after a turn.
enum Pause {
    /// There is more to do: only other tasks get a turn.
    Turn,
    /// Waits until an event, or until that time.
    Until(Option<Duration>),
}

impl Endpoint {
    async fn open(setup: Setup) -> Result<Self, EndpointError> {
        setup.plan.check().map_err(EndpointError::Plan)?;
        let port = match setup.backend {
            Backend::Embedded(queues) => Port::Local(Local::open(queues, &setup.names)?),
            Backend::Brokers { .. } if setup.plan.received_on == ReceivedOn::Consume => {
                let why = "received-on consume requires --embedded: a broker does not report when the receiver took a \
                           message";
                return Err(EndpointError::Plan(why.to_owned()));
            }
            Backend::Brokers { a, b } => {
                Port::Remote(remote::Remote::open(*a, *b, &setup.names, setup.plan.credit).await?)
            }
        };
        let began = (setup.clock)();
        Ok(Self {
            model: Model::new(setup.plan, began, setup.truth.is_some()),
            port,
            clock: setup.clock,
            waiting: Default::default(),
            ids: rand::random(),
            truth: setup.truth.map(|to| io::BufWriter::with_capacity(256 << 10, to)),
        })
    }

    fn sight(&self) -> Sight<'_> {
        Sight { totals: self.model.totals(), stored: self.model.stored(), reconnects: self.port.reconnects() }
    }

    /// Does what there is to do now.
    fn turn(&mut self) -> Result<Pause, EndpointError> {
        let taken = self.take();
        self.hear();
        let done = self.work();
        self.write_stories()?;
        if taken + done >= TURN {
            return Ok(Pause::Turn);
        }
        Ok(Pause::Until(self.model.deadline((self.clock)())))
    }

    async fn pause(&mut self, pause: Pause) {
        match pause {
            Pause::Turn => tokio::task::yield_now().await,
            Pause::Until(None) => self.port.changed().await,
            Pause::Until(Some(deadline)) => {
                let rest = deadline.saturating_sub((self.clock)());
                // Nothing to wait for: it may not be worth while to let others go first, but it is fair.
                if rest.is_zero() {
                    return tokio::task::yield_now().await;
                }
                // At its end or when something comes, whichever is first.
                let _ = tokio::time::timeout(rest, self.port.changed()).await;
            }
        }
    }

    /// Takes messages out of the outbox, as many as the model wants.
    fn take(&mut self) -> usize {
        let mut count = 0;
        while count < TURN && self.model.wants((self.clock)()) {
            let Some((message, taken)) = self.port.take() else { break };
            // Version 4 as to its form; unique because the first was random.
            self.ids = self.ids.wrapping_add(1);
            let id = uuid::Builder::from_random_bytes(self.ids.to_be_bytes()).into_uuid();
            let letter = Letter::read(message, id);
            let consumed = letter.consumed(self.model.plan());
            self.model.consume(consumed, Content { letter, taken: Some(taken) }, (self.clock)());
            count += 1;
        }
        count
    }

    /// Hears what was settled, and what B's application has taken.
    fn hear(&mut self) {
        while let Some((key, step, sent)) = self.port.next_settled() {
            let now = (self.clock)();
            match sent {
                Sent::Refused => self.model.gave_up(key, step, now),
                _ => self.model.done(key, step, now),
            }
        }
        while let Some(number) = self.port.next_consumed() {
            self.model.taken_by_receiver(Key::from_number(number), (self.clock)());
        }
    }

    /// Does what is due, and what found no room before.
    fn work(&mut self) -> usize {
        let mut count = 0;
        for place in Place::ALL {
            while self.port.has_room(place) {
                let Some((key, step)) = self.waiting[place as usize].pop_front() else { break };
                self.send(place, key, step);
                count += 1;
            }
        }
        while count < TURN {
            let Some((key, step)) = self.model.next_step((self.clock)()) else { break };
            count += 1;
            match place_of(step) {
                None => self.accept(key),
                Some(place) if self.port.has_room(place) && self.waiting[place as usize].is_empty() => {
                    self.send(place, key, step);
                }
                Some(place) => self.waiting[place as usize].push_back((key, step)),
            }
        }
        count
    }

    fn accept(&mut self, key: Key) {
        // Nothing is left to look up of a message that was finished with its acceptance: the port is asked first.
        if let Some(taken) = self.model.content_mut(key).and_then(|content| content.taken.take()) {
            self.port.accept(taken);
        }
    }

    fn send(&mut self, place: Place, key: Key, step: Step) {
        let Some(message) = self.message(key, step) else { return };
        let notice = match step {
            Step::Inbox { copy: 0, .. } if self.model.plan().received_on == ReceivedOn::Consume => {
                Some(key.to_number())
            }
            _ => None,
        };
        match self.port.send(place, message, (key, step), notice) {
            Sent::Settled => self.model.done(key, step, (self.clock)()),
            Sent::Taken => {}
            Sent::Refused => self.model.gave_up(key, step, (self.clock)()),
            Sent::NoRoom => self.waiting[place as usize].push_front((key, step)),
        }
    }

    fn message(&self, key: Key, step: Step) -> Option<Message> {
        let (plan, letter) = (self.model.plan(), &self.model.content(key)?.letter);
        let at_ms = wall_ms();
        Some(match (step, plan.mode) {
            (Step::Reply(Reply::Refused(refusal)), Mode::Toolbox) => letter.status(Some(refusal), true, plan, at_ms),
            (Step::Reply(Reply::Refused(refusal)), _) => letter.reply_refused(refusal, plan, at_ms),
            (Step::Reply(Reply::Accepted), _) => letter.reply_accepted(at_ms),
            (Step::Reply(Reply::Received), _) => letter.status(None, false, plan, at_ms),
            (Step::Reply(Reply::Failed), _) => letter.status(None, true, plan, at_ms),
            (Step::Inbox { changed, .. }, _) => letter.inbox(changed, plan, at_ms),
            (Step::Event(happened), _) => letter.event(happened, plan, at_ms),
            (Step::Accept, _) => return None,
        })
    }

    fn write_stories(&mut self) -> io::Result<()> {
        let Some(truth) = &mut self.truth else { return Ok(()) };
        while let Some(story) = self.model.next_story() {
            writeln!(truth, "{}", story.to_line())?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.truth.as_mut().map_or(Ok(()), Write::flush)
    }

    /// Writes the stories of what is on its way, and the totals.
    fn finish(&mut self) -> io::Result<()> {
        self.hear();
        self.write_stories()?;
        let Some(truth) = &mut self.truth else { return Ok(()) };
        for story in self.model.unfinished() {
            writeln!(truth, "{}", story.to_line())?;
        }
        writeln!(truth, "{}", self.model.totals().to_line())?;
        truth.flush()
    }
}

fn place_of(step: Step) -> Option<Place> {
    match step {
        Step::Accept => None,
        Step::Reply(_) => Some(Place::Reply),
        Step::Inbox { .. } => Some(Place::Inbox),
        Step::Event(_) => Some(Place::Event),
    }
}

fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
