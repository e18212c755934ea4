//! The spool as others have it: a handle to store, note, read and close.
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

/// A log of messages that survives power loss. A handle: clones are of the same spool, which is closed with the last.
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
    /// Opens the spool that is in that directory, or begins one, and says what is still to be done. Reads all that is
    /// there and checks it, which takes as long as reading the segments in use does. What is damaged is left out and named
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

    /// Stores a message with the next batch: with all that gathers while the last one is synced. Never blocks on the
    /// disk; the receipt resolves when the message is as durable as the mode promises.
    pub fn store(&self, draft: Draft) -> Receipt {
        self.store_for(draft, Purpose::Messages)
    }

    /// Stores a message by which others come to their end, a notice to their sender for one: where new ones are refused
    /// for want of room, it may use what is kept back for notes. Without that, a spool that is full of messages whose
    /// senders have to be told would stay so.
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

    /// Notes something of a message: what has been done for some of its recipients, when to try again. It is written
    /// with the next batch or after at most about a second, and never synced by itself: after a crash the last notes may
    /// be missing, so that something is done twice, never not at all. A note above [`Options::MOST_ENVELOPE_BYTES`] is
    /// not taken, and of a message's notes the oldest are forgotten where together they exceed that.
    pub fn note(&self, id: Id, note: &[u8]) {
        let Keeper::Log(keeping) = &*self.keeper else { return };
        if note.len() as u64 > Options::MOST_ENVELOPE_BYTES {
            return keeping.counters.unwritten.add(1);
        }
        keeping.inbox.add(Lazy::Note(id, note.into()));
    }

    /// Nothing is left to be done of a message. Written as notes are.
    pub fn done(&self, id: Id) {
        match &*self.keeper {
            Keeper::Log(keeping) => keeping.inbox.add(Lazy::Done(id)),
            Keeper::Memory(memory) => memory.done(id),
        }
    }

    /// The point from which a later [`Spool::sync_notes`] answers for notes: to be taken before the first of them.
    pub fn notes_mark(&self) -> NotesMark {
        match &*self.keeper {
            Keeper::Log(keeping) => NotesMark(keeping.counters.unwritten.value()),
            Keeper::Memory(_) => NotesMark(0),
        }
    }

    /// Makes durable, at once, everything that has been noted so far and all that is done: as durable as the mode
    /// promises of a message that is stored. Fails with [`Error::Full`] if a note was left out for want of room since
    /// `mark`, whoever's it was.
    pub fn sync_notes(&self, mark: NotesMark) -> NotesReceipt {
        match &*self.keeper {
            Keeper::Log(keeping) => keeping.inbox.sync_notes().unless_unwritten(&keeping.counters, mark.0),
            Keeper::Memory(_) => NotesReceipt::known(Ok(())),
        }
    }

    /// The body of a message that is stored and not done, from the disk, checked. Blocks while it is read.
    pub fn read(&self, id: Id) -> Result<Arc<[u8]>, Error> {
        self.fetch(id).map(|draft| draft.body)
    }

    /// All of a message that is stored and not done, as it was handed in. Blocks like [`Spool::read`].
    pub fn fetch(&self, id: Id) -> Result<Draft, Error> {
        match &*self.keeper {
            Keeper::Log(keeping) => keeping.fetch(id),
            Keeper::Memory(memory) => memory.fetch(id),
        }
    }

    /// The envelope alone of a message that is stored and not done, checked by its own checksum: it can be read where
    /// the body is damaged. Blocks like [`Spool::read`].
    pub fn fetch_envelope(&self, id: Id) -> Result<StoredEnvelope, Error> {
        match &*self.keeper {
            Keeper::Log(keeping) => keeping.fetch_envelope(id),
            Keeper::Memory(memory) => {
                memory.fetch(id).map(|Draft { received_ns, envelope, .. }| StoredEnvelope { received_ns, envelope })
            }
        }
    }

    /// Why it takes nothing any more ([`Error::Poisoned`]): also where nobody waited for what failed.
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

    /// How full it is and what it has done.
    pub fn usage(&self) -> Usage {
        match &*self.keeper {
            Keeper::Log(keeping) => keeping.usage(),
            Keeper::Memory(memory) => memory.usage(),
        }
    }

    /// Stores what is being stored, writes what is lazy, syncs, and lets go of the directory. Whatever other handles ask
    /// for afterwards is refused.
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
            let (supply, lock) = (Arc::clone(&supply), Arc::clone(&lock));
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
            let (segment, spot) = (&whereabouts.segment, whereabouts.spot);
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
            let (segment, spot) = (&whereabouts.segment, whereabouts.spot);
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
            // They end by themselves, also if one panicked: then its guard has told everybody.
            _ = thread.join();
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.close();
    }
}
