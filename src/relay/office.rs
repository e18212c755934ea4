//! A worker's office: its queue, and the state that reception and couriers share. Everything here runs on one thread.
//!
//! ```text
//! reception ─ accept ─▶ queue ─ calls ─▶ couriers ─ outcome ─▶ queue ─ effects ─▶ spool: notes, notices, done
//! ```
use super::config::Config;
use super::courier;
use super::defect::{CourierInHand, InHand, Work, after_panic};
use super::envelope::{Fact, Fate, encode_note};
use super::hops::Hops;
use super::journal::Journal;
use super::letter::Letter;
use super::login;
use super::queue::{Arrival, Before, Call, Closing, Courier, Effects, HopKey, Kind};
use super::queue::{MessageId, Notice, Options, Outcome, Queue, Recipients, Taken};
use super::received;
use super::routing::Hop;
use super::setting::Setting;
use super::telling;
use crate::relay::envelope::Envelope;
use net::{Desk, clock};
use spool::{Draft, Id, Stored, StoredEnvelope};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// A worker's office.
pub(super) struct Office {
    pub(super) setting: Arc<Setting>,
    config: RefCell<Arc<Config>>,
    edition: Cell<u64>,
    pub(super) queue: RefCell<Queue<Letter>>,
    pub(super) hops: RefCell<Hops>,
    /// Couriers' buffers; those of the sessions are the server's.
    pub(super) desk: Desk,
    /// Couriers that wait, by hop.
    waiting: RefCell<HashMap<HopKey, VecDeque<(Place, Waker)>>>,
    /// Couriers that are out.
    couriers: Cell<u32>,
    /// Notices that wait until fewer are being written.
    untold: RefCell<VecDeque<(MessageId, Notice)>>,
    tellers: Cell<u32>,
    /// More was due than could be done in one turn, and a task is doing the rest.
    is_behind: Cell<bool>,
    is_closing: Cell<bool>,
    /// Unix time at the zero of [`clock::now`].
    origin: Duration,
    pub(super) dates: RefCell<received::Clock>,
    /// Log of deliveries.
    pub(super) journal: Journal,
    /// Number that seeds are made from.
    departures: Cell<u64>,
}

/// Notices that are written at a time. Each holds its message in memory for as long as the spool is full.
const TELLERS: u32 = 32;

/// State of a courier.
#[derive(Clone, Debug, Default)]
pub(super) struct Place(Rc<Cell<Whereabouts>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Whereabouts {
    /// Busy.
    #[default]
    Away,
    /// On the list of couriers that wait.
    Listed,
    /// It has to close.
    Dismissed,
}

impl Place {
    /// Cancels the wait; its entry in the list becomes stale.
    pub(super) fn leave(&mut self) {
        if self.0.get() == Whereabouts::Listed {
            self.0.set(Whereabouts::Away);
            *self = Self::default();
        }
    }

    pub(super) fn is_dismissed(&self) -> bool {
        self.0.get() == Whereabouts::Dismissed
    }
}

/// Tells whether more is due.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    More,
    Nothing,
}

/// The part of a message that could be read from the spool.
pub(super) enum Fetched {
    Whole(Letter),
    /// The message with an empty body, and why that could not be read.
    EnvelopeOnly(Letter, String),
    /// The reason.
    Nothing(String),
}

/// Recipients of a message at one hop.
pub(super) struct Errand {
    /// The hop itself: its number may be another hop's by the time that the message is stored.
    pub(super) hop: Hop,
    /// Recipients by their numbers in the envelope.
    pub(super) recipients: Vec<u16>,
}

impl Office {
    pub(super) fn open(setting: Arc<Setting>) -> Rc<Self> {
        let (config, edition) = (setting.config(), setting.edition());
        let origin = clock::wall().saturating_sub(clock::now());
        let workers = offices(&config);
        let share = |all: u32| all.div_ceil(workers).max(1);
        let options = Options {
            schedule: config.retry.clone(),
            reconnect: config.retry.backoff.of_hops(),
            hop_couriers: share(config.delivery.per_destination),
            couriers: share(config.delivery.overall),
            letter_bytes: config.spool.memory_bytes / u64::from(workers),
            seed: setting.seed,
            origin_unix: origin,
        };
        Rc::new(Self {
            config: RefCell::new(config),
            edition: Cell::new(edition),
            journal: Journal::new(setting.press.clone()),
            setting,
            queue: RefCell::new(Queue::new(options)),
            hops: RefCell::default(),
            desk: Desk::default(),
            waiting: RefCell::default(),
            couriers: Cell::new(0),
            untold: RefCell::default(),
            tellers: Cell::new(0),
            is_behind: Cell::new(false),
            is_closing: Cell::new(false),
            origin,
            dates: RefCell::new(received::Clock::new()),
            departures: Cell::new(0),
        })
    }

    /// The hop's number. One that has a limit of its own keeps it.
    pub(super) fn key(&self, hop: &Hop) -> HopKey {
        let (key, is_new) = self.hops.borrow_mut().key(hop);
        if let Some(most) = hop.connections().filter(|_| is_new) {
            self.queue.borrow_mut().limit(key, most.div_ceil(offices(&self.config.borrow())));
        }
        key
    }

    /// The configuration in force.
    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.borrow())
    }

    /// The time since the Unix epoch at that moment of [`clock::now`].
    pub(super) fn unix(&self, now: Duration) -> Duration {
        self.origin + now
    }

    /// Returns another number each time, as a seed.
    pub(super) fn seed(&self) -> u64 {
        self.departures.set(self.departures.get() + 1);
        self.setting.seed.wrapping_add(self.departures.get())
    }

    /// Takes up a message that is in the spool: the receipt proves it.
    pub(super) fn accept(self: &Rc<Self>, stored: &Stored, letter: &Letter, errands: Vec<Errand>) {
        let kind = if letter.envelope.sender.is_empty() { Kind::Notice } else { Kind::Mail };
        let now = clock::now();
        for Errand { hop, recipients } in errands {
            let arrival = Arrival {
                id: MessageId(stored.id().0),
                hop: self.key(&hop),
                recipients: Recipients::new(&recipients),
                letter: Some(letter.clone()),
                letter_bytes: letter.memory_bytes(),
                received_unix_s: letter.received.as_secs(),
                kind,
                before: Before::default(),
            };
            self.queue.borrow_mut().put(arrival, now);
        }
        self.attend();
    }

    /// Carries out the queue's calls; runs after each event of the queue.
    pub(super) fn attend(self: &Rc<Self>) {
        // Entries left when the relay stops stay in the spool.
        while !self.is_closing() {
            let call = self.queue.borrow_mut().wants_courier(clock::now());
            match call {
                Some(Call::Open(courier)) => self.send_out(courier),
                Some(Call::Wake(hop)) => self.call(hop, Whereabouts::Away),
                Some(Call::Dismiss(hop)) => self.call(hop, Whereabouts::Dismissed),
                None => break,
            }
        }
        let mut ids = Vec::new();
        self.queue.borrow_mut().wants_letters(&mut ids);
        for id in ids {
            let office = Rc::clone(self);
            net::worker::spawn_local(async move { office.fetch_for_queue(id).await });
        }
    }

    fn send_out(self: &Rc<Self>, courier: Courier) {
        self.couriers.set(self.couriers.get() + 1);
        let courier = CourierInHand::new(self, courier);
        net::worker::spawn_local(courier::run(Rc::clone(self), courier));
    }

    /// Wakes one of a hop's couriers that wait.
    fn call(&self, hop: HopKey, to: Whereabouts) {
        let mut waiting = self.waiting.borrow_mut();
        let Some(list) = waiting.get_mut(&hop) else { return };
        while let Some((place, waker)) = list.pop_front() {
            if place.0.get() == Whereabouts::Listed {
                place.0.set(to);
                waker.wake();
                return;
            }
        }
    }

    /// The next message for a courier; without one it waits to be called.
    pub(super) fn take(
        self: &Rc<Self>,
        courier: &mut Courier,
        place: &mut Place,
        waker: &Waker,
        now: Duration,
    ) -> Work {
        place.leave();
        let taken = self.queue.borrow_mut().take(courier, now);
        match taken {
            Taken::Message(assignment) => Work::Message(InHand::new(self, assignment)),
            Taken::Leave => Work::Leave,
            Taken::Wait => {
                self.list(courier.hop, place, waker);
                Work::Wait
            }
        }
    }

    /// Lists a courier that waits.
    fn list(&self, hop: HopKey, place: &mut Place, waker: &Waker) {
        *place = Place::default();
        place.0.set(Whereabouts::Listed);
        let mut waiting = self.waiting.borrow_mut();
        let list = waiting.entry(hop).or_default();
        // A courier that left by itself was never called, and its entry would stay there for ever.
        while list.front().is_some_and(|(place, _)| place.0.get() != Whereabouts::Listed) {
            list.pop_front();
        }
        list.push_back((place.clone(), waker.clone()));
    }

    /// An assignment comes back.
    pub(super) fn outcome(self: &Rc<Self>, assignment: InHand, outcome: Outcome) {
        if Journal::is_kept() {
            let hop = self.hops.borrow().name(assignment.hop);
            self.journal.record(hop, &assignment, &outcome, self.unix(clock::now()));
        }
        let letter = (outcome != Outcome::Delivered).then(|| assignment.letter.clone());
        let effects = self.queue.borrow_mut().outcome(assignment.release(), outcome, clock::now());
        self.carry_out(effects, letter);
        self.attend();
    }

    /// A courier is back.
    pub(super) fn closed(self: &Rc<Self>, courier: CourierInHand, closing: Closing) {
        self.couriers.set(self.couriers.get() - 1);
        if let Closing::Unreachable(refusal) = &closing {
            self.setting.census.unreachable.add(1);
            let hop = self.hops.borrow().name(courier.hop);
            tracing::warn!(%hop, reason = %refusal.text, "cannot be reached");
        }
        self.queue.borrow_mut().closed(courier.release(), closing, clock::now());
        self.attend();
    }

    /// Does all that is due by now.
    pub(super) fn tick(self: &Rc<Self>) {
        if self.edition.get() != self.setting.edition() {
            self.edition.set(self.setting.edition());
            *self.config.borrow_mut() = self.setting.config();
        }
        self.journal.hand_over();
        login::log_summaries(&self.setting);
        self.forget_hops();
        if self.do_due() == Due::More && !self.is_behind.replace(true) {
            let office = Rc::clone(self);
            net::worker::spawn_local(async move {
                // Sessions have their turns in between.
                while office.do_due() == Due::More {
                    net::sleep(Duration::ZERO).await;
                }
                office.is_behind.set(false);
            });
        }
    }

    /// Does a part of what is due.
    fn do_due(self: &Rc<Self>) -> Due {
        let (now, mut all) = (clock::now(), Vec::new());
        self.queue.borrow_mut().tick(now, &mut all);
        all.drain(..).for_each(|effects| self.carry_out(effects, None));
        self.attend();
        let deadline = self.queue.borrow().deadline();
        if deadline.is_some_and(|deadline| deadline <= now) { Due::More } else { Due::Nothing }
    }

    /// Forgets hops that nothing is left to remember of; their numbers are given anew.
    fn forget_hops(&self) {
        let (mut queue, now) = (self.queue.borrow_mut(), clock::now());
        let forgotten = self.hops.borrow_mut().forget(|key| queue.is_idle(key, now));
        for key in forgotten {
            queue.forget_hop(key);
            self.waiting.borrow_mut().remove(&key);
        }
    }

    /// Carries out effects: notes, notices, the end.
    pub(super) fn carry_out(self: &Rc<Self>, effects: Effects, letter: Option<Letter>) {
        let Effects { id, facts, notice, done } = effects;
        self.count(&facts);
        self.note(Id(id.0), &facts);
        if let Some(notice) = notice {
            self.tell(id, notice, letter);
        }
        if done {
            self.setting.spool.done(Id(id.0));
        }
    }

    fn count(&self, facts: &[Fact]) {
        for fact in facts {
            match fact {
                Fact::Deferred { recipients, .. } => self.setting.census.deferred.add(recipients.len() as u64),
                Fact::Settled { recipients, fate: Fate::Expired(_) } => {
                    self.setting.census.expired.add(recipients.len() as u64);
                }
                _ => {}
            }
        }
    }

    fn note(&self, id: Id, facts: &[Fact]) {
        if facts.is_empty() {
            return;
        }
        match encode_note(facts) {
            Ok(note) => self.setting.spool.note(id, &note),
            Err(error) => {
                tracing::error!(%id, %error, "the delivery state could not be stored: some mail may be delivered twice")
            }
        }
    }

    /// Notifies the sender, in a task of its own. If many notices are due, the message is read again when its turn
    /// comes.
    pub(super) fn tell(self: &Rc<Self>, id: MessageId, notice: Notice, letter: Option<Letter>) {
        if self.tellers.get() >= TELLERS {
            return self.untold.borrow_mut().push_back((id, notice));
        }
        let (office, teller) = (Rc::clone(self), Teller::new(self));
        net::worker::spawn_local(async move {
            telling::tell(&office, id, notice, letter).await;
            while let Some((id, notice)) = office.next_untold() {
                telling::tell(&office, id, notice, None).await;
            }
            drop(teller);
        });
    }

    fn next_untold(&self) -> Option<(MessageId, Notice)> {
        self.untold.borrow_mut().pop_front()
    }

    async fn fetch_for_queue(self: Rc<Self>, id: MessageId) {
        match self.fetch(id).await {
            Fetched::Whole(letter) => self.queue.borrow_mut().loaded(id, &letter),
            Fetched::EnvelopeOnly(_, error) => {
                self.hold_unreadable(id, &error, "its sender is notified when it expires")
            }
            Fetched::Nothing(error) => self.hold_unreadable(id, &error, "its envelope cannot be read either"),
        }
        self.attend();
    }

    fn hold_unreadable(self: &Rc<Self>, id: MessageId, error: &str, then: &str) {
        tracing::error!(%id, %error, "a message cannot be read from the spool and is held; {then}");
        let effects = self.queue.borrow_mut().unreadable(id, clock::now());
        if let Some(effects) = effects {
            self.carry_out(effects, None);
        }
    }

    /// A message from the spool.
    pub(super) async fn fetch(&self, id: MessageId) -> Fetched {
        let spool = self.setting.spool.clone();
        let id = Id(id.0);
        let read = move || {
            spool.fetch(id).map_err(|error| {
                let envelope = spool.fetch_envelope(id);
                (error, envelope)
            })
        };
        let (draft, damage) = match self.setting.readers.done(read).await {
            Some(Ok(draft)) => (draft, None),
            Some(Err((error, Ok(StoredEnvelope { received_ns, envelope })))) => {
                (Draft { received_ns, envelope, body: Arc::default() }, Some(error))
            }
            Some(Err((error, Err(_)))) => return Fetched::Nothing(error.to_string()),
            None => return Fetched::Nothing("the thread that read it failed".to_owned()),
        };
        let envelope = match Envelope::decode(&draft.envelope) {
            Ok(envelope) => Arc::new(envelope),
            Err(error) => return Fetched::Nothing(error.to_string()),
        };
        let letter = Letter { envelope, body: draft.body, received: Duration::from_nanos(draft.received_ns) };
        match damage {
            None => Fetched::Whole(letter),
            Some(error) => Fetched::EnvelopeOnly(letter, error.to_string()),
        }
    }

    /// No courier takes anything new.
    pub(super) fn close(&self) {
        self.is_closing.set(true);
        let mut waiting = self.waiting.borrow_mut();
        for (place, waker) in waiting.drain().flat_map(|(_, list)| list) {
            if place.0.get() == Whereabouts::Listed {
                place.0.set(Whereabouts::Dismissed);
                waker.wake();
            }
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.get()
    }

    /// Couriers that are out.
    pub(super) fn couriers(&self) -> u32 {
        self.couriers.get()
    }
}

/// One of the tasks that write notices.
struct Teller(Rc<Office>);

impl Teller {
    fn new(office: &Rc<Office>) -> Self {
        office.tellers.set(office.tellers.get() + 1);
        Self(Rc::clone(office))
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.0.tellers.set(self.0.tellers.get() - 1);
        // However one notice ended its task, the others that wait have their turn.
        after_panic(&self.0, |office| {
            if let Some((id, notice)) = office.next_untold() {
                office.tell(id, notice, None);
            }
        });
    }
}

/// Number of offices that share the limits: each listener has its own workers.
fn offices(config: &Config) -> u32 {
    let workers = config.workers.unwrap_or_else(net::worker::default_count).max(1);
    let listeners = config.listeners().count().max(1);
    u32::try_from(workers * listeners).unwrap_or(u32::MAX)
}
