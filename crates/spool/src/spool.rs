//! The spool's public handle: store, note, read and close.
use crate::disk::Disk;
use crate::inbox::Inbox;
use crate::live::SharedLive;
use crate::log::Log;
use crate::memory::Memory;
use crate::message::Lazy;
use crate::recovery::recover;
use crate::supply::{Purpose, fitted_to};
use crate::tender::Tended;
use crate::usage::Counters;
use crate::{
    Backlog, Damage, Draft, Durability, Error, Id, NotesReceipt, Options, Receipt, StoredEnvelope, Usage, commit,
    format,
};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// A log of messages that survives a power failure. It is a handle: clones refer to the same spool, which is closed
/// with the last.
#[derive(Clone)]
pub struct Spool {
    keeper: Arc<Keeper>,
    most_message_bytes: u64,
}

/// A point in the row of notes.
#[derive(Clone, Copy, Debug)]
pub struct NotesMark(u64);

enum Keeper {
    Log(Keeping),
    Memory(Memory),
}

struct Keeping {
    inbox: Arc<Inbox>,
    live: Arc<SharedLive>,
    supply: Arc<Tended>,
    counters: Arc<Counters>,
    damage: Vec<Damage>,
    lost_messages: u64,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Spool {
    /// Opens the spool in that directory, or begins one, and returns the unfinished messages. It reads and checks
    /// everything, which takes as long as reading the segments in use does. Damage is left out and reported
    /// ([`Spool::damage`]), or the reason not to open it ([`Options::on_damage`]).
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<(Self, Backlog), Error> {
        let options = options.fitted();
        let most_message_bytes = options.most_message_bytes;
        let (keeper, backlog) = if options.durability == Durability::Memory {
            (Keeper::Memory(Memory::new(&options)), Backlog::empty())
        } else {
            let (keeping, backlog) = Keeping::open(&disk, options)?;
            (Keeper::Log(keeping), backlog)
        };
        Ok((Self { keeper: Arc::new(keeper), most_message_bytes }, backlog))
    }

    /// Stores a message with the next batch: together with all that gathers while the last one is synced. It never
    /// blocks on the disk; the receipt resolves when the message is as durable as the mode promises.
    pub fn store(&self, draft: Draft) -> Receipt {
        self.store_for(draft, Purpose::Messages)
    }

    /// Stores a message that lets others end, for example a notice to their sender: if new ones are rejected for lack
    /// of room, it may use the reserve for notes. Otherwise a spool that is full of messages whose senders must be
    /// notified would stay full.
    pub fn store_from_reserve(&self, draft: Draft) -> Receipt {
        self.store_for(draft, Purpose::Notes)
    }

    fn store_for(&self, draft: Draft, purpose: Purpose) -> Receipt {
        let too_large = |bytes: usize, most: u64| (bytes as u64 > most).then_some((bytes as u64, most));
        let checked = too_large(draft.body.len(), self.most_message_bytes)
            .or_else(|| too_large(draft.envelope.len(), Options::MOST_ENVELOPE_BYTES));
        if let Some((bytes, most)) = checked {
            return Receipt::known(Err(Error::TooLarge { bytes, most }));
        }
        match &*self.keeper {
            Keeper::Log(keeping) => keeping.inbox.store(draft, purpose),
            Keeper::Memory(memory) => memory.store(draft, purpose),
        }
    }

    /// Adds a note to a message: the recipients that are done, the time of the next try. It is written with the next
    /// batch or after at most about a second, and never synced by itself: after a crash the last notes may be missing,
    /// so that work is repeated, but never left out. A note above [`Options::MOST_ENVELOPE_BYTES`] is not taken, and
    /// the oldest notes of a message are dropped if together they exceed that.
    pub fn note(&self, id: Id, note: &[u8]) {
        let Keeper::Log(keeping) = &*self.keeper else { return };
        if note.len() as u64 > Options::MOST_ENVELOPE_BYTES {
            return keeping.counters.unwritten.add(1);
        }
        keeping.inbox.add(Lazy::Note(id, note.into()));
    }

    /// Marks a message as done. Written as notes are.
    pub fn done(&self, id: Id) {
        match &*self.keeper {
            Keeper::Log(keeping) => keeping.inbox.add(Lazy::Done(id)),
            Keeper::Memory(memory) => memory.done(id),
        }
    }

    /// Returns the point from which a later [`Spool::sync_notes`] answers for notes: to be taken before the first of
    /// them.
    pub fn notes_mark(&self) -> NotesMark {
        match &*self.keeper {
            Keeper::Log(keeping) => NotesMark(keeping.counters.unwritten.value()),
            Keeper::Memory(_) => NotesMark(0),
        }
    }

    /// Makes durable, at once, all notes so far and all marks of done messages: as durable as the mode promises for a
    /// stored message. Fails with [`Error::Full`] if any note was left out for lack of room since `mark`.
    pub fn sync_notes(&self, mark: NotesMark) -> NotesReceipt {
        match &*self.keeper {
            Keeper::Log(keeping) => keeping.inbox.sync_notes().unless_unwritten(&keeping.counters, mark.0),
            Keeper::Memory(_) => NotesReceipt::known(Ok(())),
        }
    }

    /// Reads the body of a message that is stored and not done from the disk, and checks it. Blocks while it reads.
    pub fn read(&self, id: Id) -> Result<Arc<[u8]>, Error> {
        self.fetch(id).map(|draft| draft.body)
    }

    /// Reads all of a message that is stored and not done, as it was handed in. Blocks like [`Spool::read`].
    pub fn fetch(&self, id: Id) -> Result<Draft, Error> {
        match &*self.keeper {
            Keeper::Log(keeping) => keeping.fetch(id),
            Keeper::Memory(memory) => memory.fetch(id),
        }
    }

    /// Reads only the envelope of a message that is stored and not done, checked by its own checksum: it can be read
    /// even if the body is damaged. Blocks like [`Spool::read`].
    pub fn fetch_envelope(&self, id: Id) -> Result<StoredEnvelope, Error> {
        match &*self.keeper {
            Keeper::Log(keeping) => keeping.fetch_envelope(id),
            Keeper::Memory(memory) => {
                memory.fetch(id).map(|Draft { received_ns, envelope, .. }| StoredEnvelope { received_ns, envelope })
            }
        }
    }

    /// The reason why it accepts nothing any more ([`Error::Poisoned`]), even if no caller waited for what failed.
    pub fn failure(&self) -> Option<Error> {
        match &*self.keeper {
            Keeper::Log(keeping) => keeping.inbox.failure(),
            Keeper::Memory(_) => None,
        }
    }

    /// The damage that was found when it was opened, in no particular order.
    pub fn damage(&self) -> &[Damage] {
        match &*self.keeper {
            Keeper::Log(keeping) => &keeping.damage,
            Keeper::Memory(_) => &[],
        }
    }

    /// Fill level, and counters of its work.
    pub fn usage(&self) -> Usage {
        match &*self.keeper {
            Keeper::Log(keeping) => keeping.usage(),
            Keeper::Memory(memory) => memory.usage(),
        }
    }

    /// Stores the gathered messages, writes the waiting notes, syncs, and releases the directory. Later requests of
    /// other handles are rejected.
    pub fn close(self) {
        match &*self.keeper {
            Keeper::Log(keeping) => keeping.close(),
            Keeper::Memory(memory) => memory.close(),
        }
    }
}

impl std::fmt::Debug for Spool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spool").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

impl Keeping {
    fn open(disk: &Arc<dyn Disk>, options: Options) -> Result<(Self, Backlog), Error> {
        let lock: Arc<dyn Send + Sync> = disk.lock().map(Arc::from).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Error::Held,
            _ => Error::from(error),
        })?;
        let options = fitted_to(&**disk, options)?;
        let mut recovered = recover(disk, &options)?;
        recovered.supply.prepare();
        let live = Arc::new(SharedLive::new(recovered.live));
        let supply = Arc::new(Tended::new(recovered.supply));
        let counters = Arc::new(Counters::default());
        counters.cut_bytes.add(recovered.cut_bytes);
        let inbox = Arc::new(Inbox::new(recovered.resumption.next_id));
        let backlog = Backlog::new(Arc::clone(&live), &recovered.damaged_bodies);
        let damage = recovered.damage;
        let alarming = damage.iter().filter(|one| one.is_alarming());
        let lost_messages = alarming.map(|one| one.messages.len() as u64 + one.unnamed).sum();
        let unproven = recovered.unproven;
        let log =
            Log::new(options, Arc::clone(&live), Arc::clone(&supply), Arc::clone(&counters), &recovered.resumption);
        let tender = Builder::new().name("spool-tender".to_owned()).spawn({
            let supply = Arc::clone(&supply);
            let lock = Arc::clone(&lock);
            move || {
                supply.tend();
                drop(lock);
            }
        })?;
        let committer = Builder::new().name("spool".to_owned()).spawn({
            let inbox = Arc::clone(&inbox);
            move || {
                commit::run(&inbox, log, unproven);
                drop(lock);
            }
        });
        let committer = committer.inspect_err(|_| supply.close())?;
        Ok((
            Self { inbox, live, supply, counters, damage, lost_messages, threads: Mutex::new(vec![tender, committer]) },
            backlog,
        ))
    }

    fn fetch(&self, id: Id) -> Result<Draft, Error> {
        self.live.read(id, |whereabouts| {
            let segment = &whereabouts.segment;
            let spot = whereabouts.spot;
            let damaged = || segment.damaged(spot.at());
            let head = segment.head(spot)?.ok_or_else(damaged)?;
            let body = segment.body(spot, &head.record)?.ok_or_else(damaged)?;
            if head.record.id != id || format::checksum(&body) != head.record.body_crc {
                return Err(damaged());
            }
            Ok(Draft { received_ns: head.record.received_ns, envelope: head.envelope().to_vec(), body })
        })
    }

    fn fetch_envelope(&self, id: Id) -> Result<StoredEnvelope, Error> {
        self.live.read(id, |whereabouts| {
            let segment = &whereabouts.segment;
            let spot = whereabouts.spot;
            let head = segment.head(spot)?.filter(|head| head.record.id == id);
            let head = head.ok_or_else(|| segment.damaged(spot.at()))?;
            Ok(StoredEnvelope { received_ns: head.record.received_ns, envelope: head.envelope().to_vec() })
        })
    }

    fn usage(&self) -> Usage {
        let fill = self.live.lock().fill();
        let disk_bytes = self.supply.lock().bytes();
        Usage {
            messages: fill.messages,
            bytes: fill.live_bytes,
            segments: fill.segments,
            disk_bytes,
            damaged: self.damage.iter().filter(|one| one.is_alarming()).count() as u64,
            lost_messages: self.lost_messages,
            ..self.counters.usage()
        }
    }

    fn close(&self) {
        self.inbox.close();
        self.supply.close();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // The threads end by themselves, even if one panicked: then its guard has resolved all waits.
            _ = thread.join();
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.close();
    }
}
