//! Queue in which messages gather while the commit thread writes: messages that come together are committed together.
use crate::message::{Lazy, Numbered};
use crate::receipt::{NotesReceipt, Outcome, Ticket};
use crate::supply::Purpose;
use crate::{Draft, Error, Id, Receipt, format};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Longest time that notes wait for a batch to go with.
pub(crate) const LAZINESS: Duration = Duration::from_secs(1);
/// With so many notes the wait ends: memory is bounded.
const MOST_LAZY: usize = 16_384;

pub(crate) struct Inbox {
    state: Mutex<State>,
    bell: Condvar,
}

struct State {
    stores: Vec<Numbered>,
    lazies: Vec<Lazy>,
    /// Time at which the oldest of `lazies` came.
    lazy_since: Option<Instant>,
    ticket: Arc<Ticket>,
    /// Receipts that wait until all notes so far are durable.
    note_syncs: Option<NoteSyncs>,
    next_id: u64,
    /// The commit thread waits for a wake-up.
    is_asleep: bool,
    is_closing: bool,
    /// Reason why nothing is accepted any more.
    stopped: Option<Error>,
}

/// The requests to make notes durable that go with one batch.
#[derive(Default)]
pub(crate) struct NoteSyncs {
    ticket: Arc<Ticket>,
    requests: u32,
}

impl NoteSyncs {
    /// Resolves all requests.
    pub(crate) fn settle(&self, outcome: Outcome) {
        self.ticket.settle(outcome);
    }
}

/// Messages and notes that the commit thread takes at once. The emptied vectors are given back and used again.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) stores: Vec<Numbered>,
    pub(crate) lazies: Vec<Lazy>,
    pub(crate) ticket: Arc<Ticket>,
    pub(crate) note_syncs: Option<NoteSyncs>,
    /// Nothing comes after this.
    pub(crate) is_last: bool,
}

impl Taken {
    /// Reports whether there is nothing to write or sync.
    pub(crate) fn is_empty(&self) -> bool {
        self.stores.is_empty() && self.lazies.is_empty() && self.note_syncs.is_none()
    }

    /// Resolves the receipts of all messages and notes in it.
    pub(crate) fn settle(&mut self, outcome: Result<Vec<(u32, Error)>, Error>) {
        let (of_notes, of_messages) = match outcome {
            Ok(refused) => (Outcome::StoredBut(Vec::new()), Outcome::StoredBut(refused)),
            Err(error) => (Outcome::Failed(error.clone()), Outcome::Failed(error)),
        };
        if let Some(syncs) = self.note_syncs.take() {
            syncs.settle(of_notes);
        }
        self.ticket.settle(of_messages);
    }
}

impl Drop for Taken {
    /// Ends all waits for a batch in which the commit thread panicked.
    fn drop(&mut self) {
        self.settle(Err(Error::Poisoned("the commit thread failed".into())));
    }
}

/// Activity of the commit thread when nothing has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meanwhile {
    Chores,
    Nothing,
}

impl Inbox {
    pub(crate) fn new(next_id: u64) -> Self {
        let state = State {
            stores: Vec::new(),
            lazies: Vec::new(),
            lazy_since: None,
            ticket: Arc::default(),
            note_syncs: None,
            next_id,
            is_asleep: false,
            is_closing: false,
            stopped: None,
        };
        Self { state: Mutex::new(state), bell: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the inbox")
    }

    /// Adds a message to the next batch.
    pub(crate) fn store(&self, draft: Draft, purpose: Purpose) -> Receipt {
        // Computed in the caller's thread: there are many of these, and one commit thread.
        let body_crc = format::checksum(&draft.body);
        let mut state = self.state();
        if let Some(error) = &state.stopped {
            return Receipt::known(Err(error.clone()));
        }
        let id = Id(state.next_id);
        state.next_id += 1;
        let place = state.stores.len() as u32;
        state.stores.push(Numbered { id, body_crc, draft, purpose });
        let receipt = Receipt::of_batch(Arc::clone(&state.ticket), place, id);
        self.ring(state);
        receipt
    }

    /// Adds a note to some later batch.
    pub(crate) fn add(&self, lazy: Lazy) {
        let mut state = self.state();
        if state.stopped.is_some() {
            return;
        }
        state.lazies.push(lazy);
        let is_first = state.lazies.len() == 1;
        if is_first {
            state.lazy_since = Some(Instant::now());
        }
        if is_first || state.lazies.len() == MOST_LAZY {
            self.ring(state);
        }
    }

    /// Requests a sync of all notes that have come so far.
    pub(crate) fn sync_notes(&self) -> NotesReceipt {
        let mut state = self.state();
        if let Some(error) = &state.stopped {
            return NotesReceipt::known(Err(error.clone()));
        }
        let syncs = state.note_syncs.get_or_insert_default();
        let place = syncs.requests;
        syncs.requests += 1;
        let receipt = NotesReceipt::of_batch(Arc::clone(&syncs.ticket), place);
        self.ring(state);
        receipt
    }

    fn ring(&self, mut state: MutexGuard<'_, State>) {
        // The first to wake it clears this, so that nobody wakes it twice.
        if mem::take(&mut state.is_asleep) {
            drop(state);
            self.bell.notify_one();
        }
    }

    /// The reason why nothing is accepted any more, if something has failed.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.state().stopped.clone().filter(|error| matches!(error, Error::Poisoned(_)))
    }

    /// Lets the gathered messages be committed, and accepts no more.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closing = true;
        state.stopped.get_or_insert(Error::Closed);
        self.ring(state);
    }

    /// Rejects everything from now on, including the gathered messages.
    pub(crate) fn stop(&self, error: Error) {
        let mut state = self.state();
        state.stopped = Some(error.clone());
        let ticket = mem::take(&mut state.ticket);
        let note_syncs = state.note_syncs.take();
        let dropped = (mem::take(&mut state.stores), mem::take(&mut state.lazies));
        drop(state);
        drop(dropped);
        if let Some(syncs) = note_syncs {
            syncs.settle(Outcome::Failed(error.clone()));
        }
        ticket.settle(Outcome::Failed(error));
    }

    /// Ends all remaining waits, because the commit thread is gone.
    pub(crate) fn end(&self, reason: Error) {
        let known = self.state.lock().map(|state| state.stopped.clone()).unwrap_or_default();
        match known {
            Some(Error::Poisoned(_)) => {}
            _ => self.stop(reason),
        }
    }

    /// Fills `taken`, which is empty, with all that has come, and waits until there is something.
    pub(crate) fn take(&self, taken: &mut Taken, meanwhile: Meanwhile) {
        let mut state = self.state();
        loop {
            let patience = state.patience();
            if patience == Some(Duration::ZERO) {
                break;
            }
            if meanwhile == Meanwhile::Chores {
                return;
            }
            state.is_asleep = true;
            state = match patience {
                None => self.bell.wait(state).expect("nothing panics while it holds the inbox"),
                Some(time) => self.bell.wait_timeout(state, time).expect("nothing panics while it holds the inbox").0,
            };
            state.is_asleep = false;
        }
        mem::swap(&mut taken.stores, &mut state.stores);
        mem::swap(&mut taken.lazies, &mut state.lazies);
        state.lazy_since = None;
        taken.is_last = state.is_closing;
        taken.ticket = mem::take(&mut state.ticket);
        taken.note_syncs = state.note_syncs.take();
    }
}

impl State {
    /// Time that the gathered messages and notes may wait: zero if there are messages.
    fn patience(&self) -> Option<Duration> {
        let is_awaited = !self.stores.is_empty() || self.note_syncs.is_some();
        if is_awaited || self.is_closing || self.lazies.len() >= MOST_LAZY {
            return Some(Duration::ZERO);
        }
        self.lazy_since.map(|since| LAZINESS.saturating_sub(since.elapsed()))
    }
}
