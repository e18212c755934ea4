//! The public interface of an open spool. Opening and reading use the disk in the caller's thread.
//! Messages to store and notes are queued for the commit thread.
use crate::commit_queue::CommitQueue;
use crate::disk::Disk;
use crate::index::SharedIndex;
use crate::log::Log;
use crate::memory::MemoryBackend;
use crate::message::{DeferredRecord, Reserve};
use crate::preallocator::SharedSegmentPool;
use crate::recovery::recover;
use crate::segment_pool::fit_to_disk;
use crate::stats::SpoolCounters;
use crate::{
    Backlog, Damage, Durability, Error, Id, NewMessage, NotesReceipt, Options, Receipt, SpoolStats, StoredEnvelope,
    commit, format,
};
use mailrun_lock::lock;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

/// A handle to a log of messages that survives a power failure. All clones of the handle refer to
/// the same spool, which is closed when the last clone is dropped.
#[derive(Clone)]
pub struct Spool {
    backend: Arc<Backend>,
    options: Options,
}

/// Number of notes that the spool had failed to write before a caller added its own notes. If the number has grown
/// since then, a note is missing, so the receipt of [`Spool::sync_notes`] fails.
#[derive(Clone, Copy, Debug)]
pub struct NotesMark(u64);

enum Backend {
    Log(LogBackend),
    Memory(MemoryBackend),
}

struct LogBackend {
    commit_queue: Arc<CommitQueue>,
    index: Arc<SharedIndex>,
    segment_pool: Arc<SharedSegmentPool>,
    counters: Arc<SpoolCounters>,
    damage: Vec<Damage>,
    lost_messages: u64,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Spool {
    /// Opens the spool on this disk, or creates it, and returns the unfinished messages. Opening
    /// reads and checks all segments in use, so it takes as long as reading them. Depending on
    /// [`Options::on_damage`], damaged parts are left out and reported by [`Spool::damage`], or the
    /// spool is not opened.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<(Self, Backlog), Error> {
        let options = options.fitted();
        let fitted = options.clone();
        let (keeper, backlog) = if options.durability == Durability::Memory {
            (Backend::Memory(MemoryBackend::new(&options)), Backlog::empty())
        } else {
            let (retention, backlog) = LogBackend::open(&disk, options)?;
            (Backend::Log(retention), backlog)
        };
        Ok((Self { backend: Arc::new(keeper), options: fitted }, backlog))
    }

    /// Stores a message with the next batch, together with all messages that arrive while the batch before it is
    /// synced. This function does not wait for the disk. The receipt resolves when the message is as durable as the
    /// options promise.
    pub fn store(&self, draft: NewMessage) -> Receipt {
        self.store_for(draft, Reserve::Messages, None).0
    }

    /// Stores a message whose body contains its id: the id as text replaces [`Id::TEXT_BYTES`] bytes at the offset
    /// `id_at`. Returns the receipt, and the body with the id. If the caller holds another reference to the body,
    /// writing the id requires a copy of the body.
    pub fn store_with_id(&self, draft: NewMessage, id_at: usize) -> (Receipt, Arc<[u8]>) {
        self.store_for(draft, Reserve::Messages, Some(id_at))
    }

    /// Stores a message that must be stored before another message can be marked as done, for example the notice to the
    /// sender of an undeliverable message. If there is no room for new messages, this message may use the space that is
    /// reserved for notes. Without this space, a spool full of undeliverable messages could not store their notices,
    /// and would stay full.
    pub fn store_from_reserve(&self, draft: NewMessage) -> Receipt {
        self.store_for(draft, Reserve::Notes, None).0
    }

    fn store_for(&self, draft: NewMessage, reserve: Reserve, id_at: Option<usize>) -> (Receipt, Arc<[u8]>) {
        let sizes = [
            (draft.body.len(), self.options.max_message_bytes),
            (draft.envelope.len(), Options::MAX_ENVELOPE_BYTES),
            (draft.envelope.len() + draft.body.len(), self.options.max_stored_bytes_for(reserve)),
        ];
        let too_large = sizes.into_iter().map(|(bytes, most)| (bytes as u64, most)).find(|(bytes, most)| bytes > most);
        if let Some((bytes, most)) = too_large {
            return (Receipt::resolved(Err(Error::TooLarge { bytes, most })), draft.body);
        }
        match &*self.backend {
            Backend::Log(retention) => retention.commit_queue.store(draft, reserve, id_at),
            Backend::Memory(memory) => memory.store(draft, reserve, id_at),
        }
    }

    /// Adds a note to a message, such as the recipients that are done or the time of the next try.
    /// The note is written with the next batch, or after about a second. A note alone causes no
    /// sync, so a crash may lose the last notes. The caller may then repeat work, but never skips it.
    ///
    /// A note larger than [`Options::MAX_ENVELOPE_BYTES`] is ignored. If the notes of a message
    /// exceed this size in total, the oldest are dropped when the message is moved in the log.
    pub fn note(&self, id: Id, note: &[u8]) {
        let Backend::Log(retention) = &*self.backend else { return };
        if note.len() as u64 > Options::MAX_ENVELOPE_BYTES {
            return retention.counters.unwritten.add(1);
        }
        retention.commit_queue.add_deferred(DeferredRecord::Note(id, note.into()));
    }

    /// Marks a message as done, so that its space can be freed. The spool writes this mark within about a second and
    /// without a sync, so a crash may lose the mark. The next start then finds the message again.
    pub fn done(&self, id: Id) {
        match &*self.backend {
            Backend::Log(retention) => retention.commit_queue.add_deferred(DeferredRecord::Done(id)),
            Backend::Memory(memory) => memory.done(id),
        }
    }

    /// Returns the number of notes that could not be written so far. The receipt of a later [`Spool::sync_notes`] fails
    /// if this number has grown. The caller must call this before it adds its notes, because the receipt does not
    /// report notes that were lost before this call.
    pub fn notes_mark(&self) -> NotesMark {
        match &*self.backend {
            Backend::Log(retention) => NotesMark(retention.counters.unwritten.value()),
            Backend::Memory(_) => NotesMark(0),
        }
    }

    /// Asks the commit thread to write all waiting notes, and the waiting records of done messages. When the receipt
    /// resolves, they are as durable as the options promise for a message. The receipt fails with [`Error::Full`] if
    /// any of them was lost after `mark` was taken, for lack of room or because a note was too large.
    pub fn sync_notes(&self, mark: NotesMark) -> NotesReceipt {
        match &*self.backend {
            Backend::Log(retention) => {
                retention.commit_queue.sync_notes().fail_if_unwritten(&retention.counters, mark.0)
            }
            Backend::Memory(_) => NotesReceipt::resolved(Ok(())),
        }
    }

    /// Reads the body of an unfinished message. Blocks while the disk is read. Returns [`Error::Damaged`] if the body
    /// does not match its checksum, and [`Error::Unknown`] if the message was already marked as done.
    pub fn read(&self, id: Id) -> Result<Arc<[u8]>, Error> {
        self.fetch(id).map(|draft| draft.body)
    }

    /// Reads the time of receipt, the envelope and the body of an unfinished message. Fails like [`Self::read`]. Blocks
    /// while the disk is read.
    pub fn fetch(&self, id: Id) -> Result<NewMessage, Error> {
        match &*self.backend {
            Backend::Log(retention) => retention.fetch(id),
            Backend::Memory(memory) => memory.fetch(id),
        }
    }

    /// Reads only the envelope and the time of receipt of an unfinished message. The envelope has a checksum of its
    /// own, so it can be read even if the body is damaged. Blocks while the disk is read.
    pub fn fetch_envelope(&self, id: Id) -> Result<StoredEnvelope, Error> {
        match &*self.backend {
            Backend::Log(retention) => retention.fetch_envelope(id),
            Backend::Memory(memory) => memory
                .fetch(id)
                .map(|NewMessage { received_ns, envelope, .. }| StoredEnvelope { received_ns, envelope }),
        }
    }

    /// Returns [`Error::Poisoned`] if a disk error has stopped the spool, which then accepts nothing
    /// more. This also reveals errors that no receipt reports, such as a failed write of notes.
    pub fn failure(&self) -> Option<Error> {
        match &*self.backend {
            Backend::Log(retention) => retention.commit_queue.failure(),
            Backend::Memory(_) => None,
        }
    }

    /// Returns the damage that was found when the spool was opened, in no particular order.
    pub fn damage(&self) -> &[Damage] {
        match &*self.backend {
            Backend::Log(retention) => &retention.damage,
            Backend::Memory(_) => &[],
        }
    }

    /// Returns the spool's fill level, and counters of its work since it was opened.
    pub fn stats(&self) -> SpoolStats {
        match &*self.backend {
            Backend::Log(retention) => retention.stats(),
            Backend::Memory(memory) => memory.stats(),
        }
    }

    /// Stores the queued messages, writes the waiting notes, syncs, unlocks the directory, and then
    /// returns. Afterwards, other handles can no longer store messages or add notes.
    pub fn close(self) {
        match &*self.backend {
            Backend::Log(retention) => retention.close(),
            Backend::Memory(memory) => memory.close(),
        }
    }
}

impl std::fmt::Debug for Spool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spool").field("usage", &self.stats()).finish_non_exhaustive()
    }
}

impl LogBackend {
    fn open(disk: &Arc<dyn Disk>, options: Options) -> Result<(Self, Backlog), Error> {
        let lock: Arc<dyn Send + Sync> = disk.lock().map(Arc::from).map_err(Error::of_lock)?;
        let options = fit_to_disk(&**disk, options)?;
        let mut recovered = recover(disk, &options)?;
        recovered.segment_pool.prepare()?;
        let index = Arc::new(SharedIndex::new(recovered.index));
        let segment_pool = Arc::new(SharedSegmentPool::new(recovered.segment_pool));
        let counters = Arc::new(SpoolCounters::default());
        counters.cut_bytes.add(recovered.cut_bytes);
        let commit_queue = Arc::new(CommitQueue::new(recovered.resume_point.next_id));
        let backlog = Backlog::new(Arc::clone(&index), &recovered.damaged_bodies);
        let damage = recovered.damage;
        let alarming = damage.iter().filter(|one| one.is_alarming());
        let lost_messages = alarming.map(|one| one.messages.len() as u64 + one.unnamed).sum();
        let unproven = recovered.unproven;
        let log = Log::new(
            options,
            Arc::clone(&index),
            Arc::clone(&segment_pool),
            Arc::clone(&counters),
            &recovered.resume_point,
        );
        // Each thread holds the lock until it exits, so that no other process opens the spool while
        // one of them may still write.
        let preallocator = Builder::new().name("spool-tender".to_owned()).spawn({
            let segment_pool = Arc::clone(&segment_pool);
            let lock = Arc::clone(&lock);
            move || {
                segment_pool.run();
                drop(lock);
            }
        })?;
        let committer = Builder::new().name("spool".to_owned()).spawn({
            let commit_queue = Arc::clone(&commit_queue);
            move || {
                commit::run(&commit_queue, log, unproven);
                drop(lock);
            }
        });
        let committer = committer.inspect_err(|_| segment_pool.close())?;
        Ok((
            Self {
                commit_queue,
                index,
                segment_pool,
                counters,
                damage,
                lost_messages,
                threads: Mutex::new(vec![preallocator, committer]),
            },
            backlog,
        ))
    }

    fn fetch(&self, id: Id) -> Result<NewMessage, Error> {
        self.index.read(id, |locations| {
            let segment = &locations.segment;
            let location = locations.record;
            let damaged = || segment.damage_error(location.offset());
            let head = segment.read_metadata(location)?.ok_or_else(damaged)?;
            let body = segment.read_body(location, &head.record)?.ok_or_else(damaged)?;
            if head.record.id != id || format::checksum(&body) != head.record.body_crc {
                return Err(damaged());
            }
            Ok(NewMessage { received_ns: head.record.received_ns, envelope: head.envelope().to_vec(), body })
        })
    }

    fn fetch_envelope(&self, id: Id) -> Result<StoredEnvelope, Error> {
        self.index.read(id, |locations| {
            let segment = &locations.segment;
            let location = locations.record;
            let head = segment.read_metadata(location)?.filter(|head| head.record.id == id);
            let head = head.ok_or_else(|| segment.damage_error(location.offset()))?;
            Ok(StoredEnvelope { received_ns: head.record.received_ns, envelope: head.envelope().to_vec() })
        })
    }

    fn stats(&self) -> SpoolStats {
        let fill = self.index.lock().fill_level();
        let disk_bytes = self.segment_pool.lock().bytes();
        SpoolStats {
            messages: fill.messages,
            bytes: fill.live_bytes,
            segments: fill.segments,
            disk_bytes,
            damaged: self.damage.iter().filter(|one| one.is_alarming()).count() as u64,
            lost_messages: self.lost_messages,
            ..self.counters.stats()
        }
    }

    fn close(&self) {
        self.commit_queue.close();
        self.segment_pool.close();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // Ignore a panic of the thread, because its guard has already woken all waiting callers.
            _ = thread.join();
        }
    }
}

impl Drop for LogBackend {
    fn drop(&mut self) {
        self.close();
    }
}
