//! Queue in which messages wait while the commit thread writes earlier ones. The thread then
//! commits all waiting messages together.
use crate::message::{DeferredRecord, NumberedMessage, Reserve};
use crate::receipt::{BatchOutcome, BatchStatus, NotesReceipt};
use crate::{Error, Id, NewMessage, Receipt, format};
use mailrun_lock::{lock, unpoisoned};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Maximum time that a note on the progress of a message waits to be written. If a new message arrives earlier, the
/// commit thread writes both in the same batch.
pub(crate) const NOTE_DELAY: Duration = Duration::from_secs(1);
/// If this many notes and marks of done messages are waiting, the commit thread writes them at once, so that they do
/// not fill the memory.
const MAX_DEFERRED_RECORDS: usize = 16_384;
/// If a body contains its message's id, and at most this many bytes follow the id, the checksum of the whole body is
/// computed while the queue is locked, because the id is known only then. This takes a few microseconds, no longer than
/// `combined_checksum`, which joins the checksums of the body's two parts if more bytes follow the id.
const MAX_LOCKED_CHECKSUM_BYTES: usize = 64 << 10;

pub(crate) struct CommitQueue {
    state: Mutex<CommitQueueState>,
    work_added: Condvar,
}

struct CommitQueueState {
    stores: Vec<NumberedMessage>,
    deferred_records: Vec<DeferredRecord>,
    deferred_since: Option<Instant>,
    batch_status: Arc<BatchStatus>,
    note_syncs: Option<NoteSyncs>,
    next_id: u64,
    is_waiting: bool,
    is_closing: bool,
    stopped: Option<Error>,
}

/// Callers that wait until all notes added so far are durable. The next batch contains these notes, so all of these
/// callers get its result.
#[derive(Default)]
pub(crate) struct NoteSyncs {
    status: Arc<BatchStatus>,
    requests: u32,
}

impl NoteSyncs {
    pub(crate) fn resolve(&self, outcome: BatchOutcome) {
        self.status.resolve(outcome);
    }
}

#[derive(Default)]
pub(crate) struct CommitBatch {
    pub(crate) stores: Vec<NumberedMessage>,
    pub(crate) deferred_records: Vec<DeferredRecord>,
    pub(crate) status: Arc<BatchStatus>,
    pub(crate) note_syncs: Option<NoteSyncs>,
    pub(crate) is_last: bool,
}

impl CommitBatch {
    pub(crate) fn is_empty(&self) -> bool {
        self.stores.is_empty() && self.deferred_records.is_empty() && self.note_syncs.is_none()
    }

    pub(crate) fn resolve(&mut self, outcome: Result<Vec<(u32, Error)>, Error>) {
        let (of_notes, of_messages) = match outcome {
            Ok(refused) => (BatchOutcome::StoredExcept(Vec::new()), BatchOutcome::StoredExcept(refused)),
            Err(error) => (BatchOutcome::Failed(error.clone()), BatchOutcome::Failed(error)),
        };
        if let Some(syncs) = self.note_syncs.take() {
            syncs.resolve(of_notes);
        }
        self.status.resolve(of_messages);
    }
}

impl Drop for CommitBatch {
    /// Fails the requests of the batch if the commit thread panicked before it resolved them, so
    /// that their callers do not wait forever.
    fn drop(&mut self) {
        self.resolve(Err(Error::Poisoned("the commit thread failed".into())));
    }
}

/// Tells [`CommitQueue::take`] what to do if nothing must be committed: wait, or return at once so
/// that the commit thread can continue compaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenIdle {
    Compact,
    Wait,
}

impl CommitQueue {
    pub(crate) fn new(next_id: u64) -> Self {
        let state = CommitQueueState {
            stores: Vec::new(),
            deferred_records: Vec::new(),
            deferred_since: None,
            batch_status: Arc::default(),
            note_syncs: None,
            next_id,
            is_waiting: false,
            is_closing: false,
            stopped: None,
        };
        Self { state: Mutex::new(state), work_added: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, CommitQueueState> {
        lock(&self.state)
    }

    /// Adds a message to the next batch. If `id_at` is given, writes the message's id into the body
    /// at that offset. Returns the body as it is stored.
    pub(crate) fn store(&self, mut draft: NewMessage, reserve: Reserve, id_at: Option<usize>) -> (Receipt, Arc<[u8]>) {
        // Compute the checksum of the bytes after the id here and not in the commit thread, because there are many
        // callers but only one commit thread. If only a few bytes follow the id, compute the checksum of the whole body
        // later, under the lock. This is faster than combining two checksums.
        let tail_at = id_at.map_or(0, |at| (at + Id::TEXT_BYTES).min(draft.body.len()));
        let tail_bytes = draft.body.len() - tail_at;
        let tail_crc =
            (tail_at == 0 || tail_bytes > MAX_LOCKED_CHECKSUM_BYTES).then(|| format::checksum(&draft.body[tail_at..]));
        let mut state = self.state();
        if let Some(error) = &state.stopped {
            return (Receipt::resolved(Err(error.clone())), draft.body);
        }
        let id = Id(state.next_id);
        state.next_id += 1;
        if let Some(at) = id_at {
            id.write_in(&mut draft.body, at);
        }
        let body_crc = match tail_crc {
            None => format::checksum(&draft.body),
            Some(tail_crc) if tail_at == 0 => tail_crc,
            Some(tail_crc) => format::combined_checksum(format::checksum(&draft.body[..tail_at]), tail_crc, tail_bytes),
        };
        let body = Arc::clone(&draft.body);
        let place = state.stores.len() as u32;
        state.stores.push(NumberedMessage { id, body_crc, message: draft, reserve });
        let receipt = Receipt::of_batch(Arc::clone(&state.batch_status), place, id);
        self.wake_committer(state);
        (receipt, body)
    }

    /// Adds a note, or the fact that a message is done, to the next batch. The commit thread writes
    /// it at the latest after [`NOTE_DELAY`]. Does nothing if the spool has stopped.
    pub(crate) fn add_deferred(&self, record: DeferredRecord) {
        let mut state = self.state();
        if state.stopped.is_some() {
            return;
        }
        state.deferred_records.push(record);
        let is_first = state.deferred_records.len() == 1;
        if is_first {
            state.deferred_since = Some(Instant::now());
        }
        if is_first || state.deferred_records.len() == MAX_DEFERRED_RECORDS {
            self.wake_committer(state);
        }
    }

    /// Makes the commit thread write all notes added so far without waiting for [`NOTE_DELAY`]. The
    /// receipt is resolved when the notes are durable.
    pub(crate) fn sync_notes(&self) -> NotesReceipt {
        let mut state = self.state();
        if let Some(error) = &state.stopped {
            return NotesReceipt::resolved(Err(error.clone()));
        }
        let syncs = state.note_syncs.get_or_insert_default();
        let place = syncs.requests;
        syncs.requests += 1;
        let receipt = NotesReceipt::of_batch(Arc::clone(&syncs.status), place);
        self.wake_committer(state);
        receipt
    }

    fn wake_committer(&self, mut state: MutexGuard<'_, CommitQueueState>) {
        // Clear `is_waiting` already here, and not only when the commit thread wakes up. Otherwise, each request until
        // then would wake the thread again.
        if mem::take(&mut state.is_waiting) {
            drop(state);
            self.work_added.notify_one();
        }
    }

    /// Returns the error that stopped the spool, such as a failed write. Returns `None` if there was no error, even
    /// after the spool was closed.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.state().stopped.clone().filter(|error| matches!(error, Error::Poisoned(_)))
    }

    /// Closes the queue for new requests. The commit thread still commits messages that are already in the queue.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closing = true;
        state.stopped.get_or_insert(Error::Closed);
        self.wake_committer(state);
    }

    /// Rejects all requests from now on with `error`, and fails the queued messages with the same error.
    pub(crate) fn stop(&self, error: Error) {
        let mut state = self.state();
        state.stopped = Some(error.clone());
        let batch_status = mem::take(&mut state.batch_status);
        let note_syncs = state.note_syncs.take();
        let dropped = (mem::take(&mut state.stores), mem::take(&mut state.deferred_records));
        drop(state);
        drop(dropped);
        if let Some(syncs) = note_syncs {
            syncs.resolve(BatchOutcome::Failed(error.clone()));
        }
        batch_status.resolve(BatchOutcome::Failed(error));
    }

    /// Fails all waiting requests because the commit thread has exited. Does nothing if the thread exited because of a
    /// disk error, because [`Self::stop`] has then already failed the requests.
    pub(crate) fn end(&self, reason: Error) {
        let stop_reason = self.state().stopped.clone();
        match stop_reason {
            Some(Error::Poisoned(_)) => {}
            _ => self.stop(reason),
        }
    }

    /// Moves everything from the queue into `batch`, which must be empty, as soon as something must be committed. Until
    /// then, `WhenIdle::Wait` blocks. `WhenIdle::Compact` returns at once and leaves `batch` empty.
    pub(crate) fn take(&self, batch: &mut CommitBatch, meanwhile: WhenIdle) {
        let mut state = self.state();
        loop {
            let timeout = state.max_wait();
            if timeout == Some(Duration::ZERO) {
                break;
            }
            if meanwhile == WhenIdle::Compact {
                return;
            }
            state.is_waiting = true;
            state = match timeout {
                None => unpoisoned(self.work_added.wait(state)),
                Some(time) => unpoisoned(self.work_added.wait_timeout(state, time)).0,
            };
            state.is_waiting = false;
        }
        mem::swap(&mut batch.stores, &mut state.stores);
        mem::swap(&mut batch.deferred_records, &mut state.deferred_records);
        state.deferred_since = None;
        batch.is_last = state.is_closing;
        batch.status = mem::take(&mut state.batch_status);
        batch.note_syncs = state.note_syncs.take();
    }
}

impl CommitQueueState {
    /// Returns the longest time that the queued records may still wait. This is zero if they must be committed at once,
    /// for example because a caller waits for them, and `None` if there are no records.
    fn max_wait(&self) -> Option<Duration> {
        let is_awaited = !self.stores.is_empty() || self.note_syncs.is_some();
        if is_awaited || self.is_closing || self.deferred_records.len() >= MAX_DEFERRED_RECORDS {
            return Some(Duration::ZERO);
        }
        self.deferred_since.map(|since| NOTE_DELAY.saturating_sub(since.elapsed()))
    }
}
