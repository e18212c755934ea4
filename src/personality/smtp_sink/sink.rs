//! What all sessions share: settings, counters, one buffer to read into and one to write from, and the end.
use super::counters::Counters;
use super::dice::Dice;
use super::dump::{Archive, DiskError};
use super::options::Settings;
use super::register::Register;
use super::syslog::Syslog;
use crate::personality::voice::Voice;
use jiff::tz::TimeZone;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

/// What one read may bring.
const READ_BYTES: usize = 64 * 1024;
/// The kernel's copy is twice as fast to the start of a page (`net::worker` has the figures).
const PAGE_BYTES: usize = 4096;
/// A buffer that once grew beyond this is not kept.
const KEPT_BYTES: usize = 256 * 1024;

/// How the run ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// As many QUITs or messages as were wanted.
    Done,
    /// With these last words.
    Broken(String),
}

/// The sink.
#[derive(Debug)]
pub(super) struct Sink {
    pub(super) settings: Rc<Settings>,
    pub(super) voice: Voice,
    pub(super) syslog: Syslog,
    pub(super) dice: Dice,
    pub(super) archive: Option<Rc<Archive>>,
    pub(super) counters: RefCell<Counters>,
    /// With `--trace`.
    pub(super) register: Option<RefCell<Register>>,
    room: RefCell<Room>,
    out: RefCell<Vec<u8>>,
    sessions: Cell<usize>,
    /// Clients that have sent a message and wait, because of `-W .`, to hear what became of it.
    expectant: Cell<usize>,
    end: RefCell<Option<End>>,
    /// Of the task that accepts.
    door_waker: RefCell<Option<Waker>>,
}

impl Sink {
    pub(super) fn new(settings: Settings, zone: TimeZone) -> Self {
        let settings = Rc::new(settings);
        // Without dumps the original seeds nothing, and rolls the same numbers in each run.
        let seed = if settings.keeping.is_some() { net::clock::wall().as_secs() as u32 } else { 1 };
        let archive = settings.keeping.is_some().then(|| Rc::new(Archive::new(Rc::clone(&settings), zone.clone())));
        Self {
            voice: Voice::new(&settings.called),
            syslog: Syslog::new(&settings.called, zone),
            dice: Dice::new(seed),
            archive,
            counters: RefCell::new(Counters::new(&settings)),
            register: settings.extras.traces.then(RefCell::default),
            room: RefCell::default(),
            out: RefCell::default(),
            sessions: Cell::default(),
            expectant: Cell::default(),
            end: RefCell::default(),
            door_waker: RefCell::default(),
            settings,
        }
    }

    /// Lends the buffer that reads go to.
    pub(super) fn lend_room<T>(&self, turn: impl FnOnce(&mut [u8]) -> T) -> T {
        turn(self.room.borrow_mut().octets())
    }

    /// Takes the buffer that replies are written from; a session that has to wait keeps it, and the next one begins a
    /// new one.
    pub(super) fn take_out(&self) -> Vec<u8> {
        self.out.take()
    }

    /// Puts back what is still to be written.
    pub(super) fn hold(&self, out: Vec<u8>) {
        *self.out.borrow_mut() = out;
    }

    /// Puts back what has been written.
    pub(super) fn give_back(&self, mut out: Vec<u8>) {
        if out.capacity() <= KEPT_BYTES {
            out.clear();
            *self.out.borrow_mut() = out;
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.sessions.get() >= self.settings.most_sessions
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sessions.get() == 0
    }

    pub(super) fn enter(&self) {
        self.sessions.set(self.sessions.get() + 1);
    }

    /// A session has ended.
    pub(super) fn leave(&self) {
        self.sessions.set(self.sessions.get() - 1);
        if self.counters.borrow().has_quits() {
            self.end(End::Done);
        } else {
            self.wake_door();
        }
    }

    /// A client waits for a verdict, until what is returned is dropped.
    pub(super) fn expect_verdict(self: &Rc<Self>) -> Expectant {
        self.expectant.set(self.expectant.get() + 1);
        Expectant(Rc::clone(self))
    }

    pub(super) fn owes_verdicts(&self) -> bool {
        self.expectant.get() > 0
    }

    /// No more messages are wanted: `-M` is reached.
    pub(super) fn has_enough(&self) -> bool {
        self.counters.borrow().has_messages()
    }

    /// Ends the run; the first end counts.
    pub(super) fn end(&self, end: End) {
        self.end.borrow_mut().get_or_insert(end);
        self.wake_door();
    }

    pub(super) fn break_off(&self, error: &DiskError) {
        self.end(End::Broken(error.to_string()));
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Says what was asked for at the end.
    pub(super) fn conclude(&self) {
        let register = self.register.as_ref().map(RefCell::borrow);
        if self.settings.extras.reports {
            let times = register.as_ref().and_then(|register| register.latencies());
            self.voice.say(self.counters.borrow().report(times));
        }
        if let Some(register) = register {
            self.voice.say(register.summary());
        }
    }

    pub(super) fn ending(&self) -> Option<End> {
        self.end.borrow().clone()
    }

    /// The task that accepts is woken when a session ends, or the run.
    pub(super) fn remember(&self, context: &Context<'_>) {
        self.door_waker.borrow_mut().get_or_insert_with(|| context.waker().clone());
    }

    pub(super) fn wake_door(&self) {
        if let Some(waker) = &*self.door_waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// Counts a client that waits for a verdict.
#[derive(Debug)]
pub(super) struct Expectant(Rc<Sink>);

impl Drop for Expectant {
    fn drop(&mut self) {
        self.0.expectant.set(self.0.expectant.get() - 1);
    }
}

/// Where reads go, at the start of a page.
#[derive(Debug)]
struct Room {
    memory: Vec<u8>,
    start: usize,
}

impl Default for Room {
    fn default() -> Self {
        let memory = vec![0; READ_BYTES + PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        Self { memory, start }
    }
}

impl Room {
    fn octets(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + READ_BYTES]
    }
}
