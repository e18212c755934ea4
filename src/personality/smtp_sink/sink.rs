//! State that all sessions share: settings, counters, one buffer for reads and one for writes, and the end.
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

/// Largest number of bytes per read.
const READ_BYTES: usize = 64 * 1024;
/// The kernel copies twice as fast to the start of a page (`net::worker` has the figures).
const PAGE_BYTES: usize = 4096;
/// A buffer that has grown beyond this is not kept.
const KEPT_BYTES: usize = 256 * 1024;

/// End of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The wanted number of QUITs or messages was reached.
    Done,
    /// An error, with its text.
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
    /// Recognised messages, with `--trace`.
    pub(super) register: Option<RefCell<Register>>,
    room: RefCell<Room>,
    out: RefCell<Vec<u8>>,
    sessions: Cell<usize>,
    /// Clients that have sent a message and wait, because of `-W .`, for the reply.
    expectant: Cell<usize>,
    end: RefCell<Option<End>>,
    /// Waker of the task that accepts.
    door_waker: RefCell<Option<Waker>>,
}

impl Sink {
    pub(super) fn new(settings: Settings, zone: TimeZone) -> Self {
        let settings = Rc::new(settings);
        // Without dumps the original does not seed, and draws the same numbers in each run.
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

    /// Lends the read buffer.
    pub(super) fn lend_room<T>(&self, turn: impl FnOnce(&mut [u8]) -> T) -> T {
        turn(self.room.borrow_mut().octets())
    }

    /// Takes the write buffer; a session that has to wait keeps it, and the next session creates a new one.
    pub(super) fn take_out(&self) -> Vec<u8> {
        self.out.take()
    }

    /// Puts back a buffer that is still to be written.
    pub(super) fn hold(&self, out: Vec<u8>) {
        *self.out.borrow_mut() = out;
    }

    /// Puts back a buffer that has been written.
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

    /// Records that a session has ended.
    pub(super) fn leave(&self) {
        self.sessions.set(self.sessions.get() - 1);
        if self.counters.borrow().has_quits() {
            self.end(End::Done);
        } else {
            self.wake_door();
        }
    }

    /// Marks a client as waiting for the reply to its message, until the returned value is dropped.
    pub(super) fn expect_verdict(self: &Rc<Self>) -> Expectant {
        self.expectant.set(self.expectant.get() + 1);
        Expectant(Rc::clone(self))
    }

    pub(super) fn owes_verdicts(&self) -> bool {
        self.expectant.get() > 0
    }

    /// Reports whether `-M` is reached, so that no more messages are wanted.
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

    /// Prints the reports that were asked for.
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

    /// Stores the waker of the accepting task, which is woken when a session ends, or the run.
    pub(super) fn remember(&self, context: &Context<'_>) {
        self.door_waker.borrow_mut().get_or_insert_with(|| context.waker().clone());
    }

    pub(super) fn wake_door(&self) {
        if let Some(waker) = &*self.door_waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// Counts a client that waits for the reply to its message.
#[derive(Debug)]
pub(super) struct Expectant(Rc<Sink>);

impl Drop for Expectant {
    fn drop(&mut self) {
        self.0.expectant.set(self.0.expectant.get() - 1);
    }
}

/// Buffer for reads, at the start of a page.
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
