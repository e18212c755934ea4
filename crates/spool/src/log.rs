//! The log as the commit thread sees it: batches written and synced, segments begun and given up.
use crate::building::{Building, Content};
use crate::format::{BATCH_BYTES, BATCHES_AT, BLOCK, Kind, Record};
use crate::inbox::Taken;
use crate::live::SharedLive;
use crate::message::{Lazy, Numbered};
use crate::segment::{Segment, Spot};
use crate::supply::{Purpose, Shortage, Spare, write_header};
use crate::tender::Tended;
use crate::tidying::Tidying;
use crate::usage::Counters;
use crate::{Durability, Error, Id, Options};
use std::io;
use std::sync::Arc;

pub(crate) struct Log {
    pub(crate) options: Options,
    pub(crate) live: Arc<SharedLive>,
    pub(crate) supply: Arc<Tended>,
    pub(crate) counters: Arc<Counters>,
    /// The segment that is being written; none after opening, since a torn one is never continued.
    current: Option<Current>,
    /// End of the last segment of the former run.
    previous_end: u64,
    next_use: u64,
    next_id: u64,
    building: Building,
    /// Changes that take effect when the batch is written.
    changes: Vec<Change>,
    /// A moved message has not been synced since: its former place still counts.
    has_unsynced_moves: bool,
    /// A message has been rejected for lack of room since there was room.
    pub(crate) is_pressed: bool,
    pub(crate) tidying: Tidying,
}

struct Current {
    segment: Arc<Segment>,
    /// Offset of the next batch.
    end: u64,
    /// Everything before this has been synced; 0 if not even the header has.
    synced: u64,
}

/// Room that each segment keeps for the batch without records with which a log is closed.
const CLOSING_BYTES: u64 = BLOCK;

enum Change {
    Place(Id, Spot),
    Note(Id, Spot),
    Done(Id),
}

/// Tells whether a batch is synced or only written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    Synced,
    Buffered,
}

/// State from which an opened log continues.
pub(crate) struct Resumption {
    pub(crate) previous_end: u64,
    pub(crate) next_use: u64,
    pub(crate) next_id: u64,
}

impl Log {
    pub(crate) fn new(
        options: Options,
        live: Arc<SharedLive>,
        supply: Arc<Tended>,
        counters: Arc<Counters>,
        resumption: &Resumption,
    ) -> Self {
        Self {
            options,
            live,
            supply,
            counters,
            current: None,
            previous_end: resumption.previous_end,
            next_use: resumption.next_use,
            next_id: resumption.next_id,
            building: Building::default(),
            changes: Vec::new(),
            has_unsynced_moves: false,
            is_pressed: false,
            tidying: Tidying::default(),
        }
    }

    /// Writes all that was taken, and syncs it if it has messages or notes that must be durable. An error is the end of
    /// the log; messages that were only rejected are returned with their places.
    pub(crate) fn commit(&mut self, taken: &mut Taken) -> io::Result<Vec<(u32, Error)>> {
        for lazy in taken.lazies.drain(..) {
            self.lazy(lazy)?;
        }
        let mut refused = Vec::new();
        let mut stored = 0;
        let is_awaited = !taken.stores.is_empty() || taken.note_syncs.is_some();
        let flush = if is_awaited { Flush::Synced } else { Flush::Buffered };
        for (place, numbered) in taken.stores.drain(..).enumerate() {
            match self.store(&numbered) {
                Ok(()) => stored += 1,
                Err(Shortage::Room) => refused.push((place as u32, Error::Full)),
                Err(Shortage::Disk(error)) => return Err(error),
            }
        }
        self.is_pressed |= !refused.is_empty();
        self.flush(flush)?;
        self.counters.stored.add(stored);
        self.counters.refused.add(refused.len() as u64);
        Ok(refused)
    }

    fn store(&mut self, numbered: &Numbered) -> Result<(), Shortage> {
        let Numbered { id, body_crc, draft, purpose } = numbered;
        self.next_id = self.next_id.max(id.0 + 1);
        let record = Record {
            received_ns: draft.received_ns,
            envelope_bytes: draft.envelope.len() as u32,
            body_bytes: draft.body.len() as u32,
            body_crc: *body_crc,
            ..Record::bare(Kind::Stored, *id)
        };
        let content = Content { record, envelope: &draft.envelope, notes: &[], body: Some(&draft.body) };
        let spot = self.append(&content, *purpose)?;
        self.changes.push(Change::Place(*id, spot));
        Ok(())
    }

    fn lazy(&mut self, lazy: Lazy) -> io::Result<()> {
        let (record, note) = match &lazy {
            Lazy::Note(id, note) => {
                (Record { envelope_bytes: note.len() as u32, ..Record::bare(Kind::Note, *id) }, &note[..])
            }
            Lazy::Done(id) => (Record::bare(Kind::Done, *id), &[][..]),
        };
        let appended = self.append(&Content { record, envelope: note, notes: &[], body: None }, Purpose::Notes);
        match (lazy, appended) {
            (Lazy::Note(id, _), Ok(spot)) => self.changes.push(Change::Note(id, spot)),
            // It is done even if that could not be written: a restart would find it again, and deliver it twice.
            (Lazy::Done(id), Ok(_)) => self.changes.push(Change::Done(id)),
            (lazy, Err(Shortage::Room)) => {
                self.counters.unwritten.add(1);
                if let Lazy::Done(id) = lazy {
                    self.changes.push(Change::Done(id));
                }
            }
            (_, Err(Shortage::Disk(error))) => return Err(error),
        }
        Ok(())
    }

    /// Moves a message to this log's end, with its notes.
    pub(crate) fn relocate(&mut self, content: &Content<'_>) -> Result<(), Shortage> {
        let spot = self.append(content, Purpose::Moves)?;
        self.changes.push(Change::Place(content.record.id, spot));
        self.has_unsynced_moves = true;
        self.counters.moved.add(1);
        Ok(())
    }

    /// Adds a record to the batch. If the segment has no room for it, the batch is completed first.
    fn append(&mut self, content: &Content<'_>, purpose: Purpose) -> Result<Spot, Shortage> {
        let bytes = content.record.bytes();
        if !self.supply.lock().permits(0, purpose) {
            // A segment that was begun with reserved room is not for every purpose either.
            return Err(Shortage::Room);
        }
        if self.room() < bytes {
            self.flush(Flush::Synced).map_err(Shortage::Disk)?;
            if self.room() < bytes {
                let wanted = (BATCHES_AT + BATCH_BYTES as u64 + bytes + CLOSING_BYTES).next_multiple_of(BLOCK);
                self.begin(wanted.max(self.options.segment_bytes), purpose)?;
            }
        }
        let current = self.current.as_ref().expect("there is room in it");
        let at = current.end + self.building.push(content, current.segment.seed);
        Ok(Spot::new(current.segment.order, at, bytes))
    }

    /// Number of bytes of records that the batch can still take.
    fn room(&self) -> u64 {
        let Some(current) = &self.current else { return 0 };
        current.segment.bytes.saturating_sub(CLOSING_BYTES + current.end + self.building.length())
    }

    /// Begins the next segment.
    fn begin(&mut self, bytes: u64, purpose: Purpose) -> Result<(), Shortage> {
        if self.has_unsynced_moves {
            // The sources of moved messages are given up when the segment in use is synced, and this one will not be
            // that any more.
            self.sync().map_err(Shortage::Disk)?;
        }
        let previous_end = match &self.current {
            None => self.previous_end,
            Some(current) if current.synced == current.end => current.end,
            Some(_) => 0,
        };
        let spare = self.supply.take(bytes, purpose)?;
        self.begin_in(spare, previous_end).map_err(Shortage::Disk)
    }

    fn begin_in(&mut self, spare: Spare, previous_end: u64) -> io::Result<()> {
        let header = spare.header.begin(self.next_use, self.next_id, previous_end);
        write_header(&*spare.file, &header)?;
        let segment = Arc::new(Segment::new(spare.name, spare.file, header, spare.bytes));
        self.next_use += 1;
        self.live.lock().begin(Arc::clone(&segment));
        self.current = Some(Current { segment, end: BATCHES_AT, synced: 0 });
        if self.options.durability == Durability::Write {
            // Its batches may be lost with the host, but a segment must not be missing from the row.
            self.sync()?;
        }
        Ok(())
    }

    /// Writes the batch, and syncs it if that is requested and promised.
    pub(crate) fn flush(&mut self, flush: Flush) -> io::Result<()> {
        if let Some(current) = self.current.as_mut().filter(|_| !self.building.is_empty()) {
            let mut pieces = self.building.finish(current.segment.seed, current.synced);
            current.segment.file.write_at(&mut pieces, current.end)?;
            current.end += self.building.length().next_multiple_of(BLOCK);
            self.building.clear();
            self.counters.commits.add(1);
        }
        if flush == Flush::Synced && self.options.durability == Durability::Sync {
            self.sync()?;
        }
        self.apply_changes();
        Ok(())
    }

    /// Syncs the current segment, whatever the mode, if there is anything to be synced.
    fn sync(&mut self) -> io::Result<()> {
        if let Some(current) = self.current.as_mut().filter(|current| current.synced < current.end) {
            current.segment.file.sync_data()?;
            current.synced = current.end;
            self.has_unsynced_moves = false;
            self.counters.syncs.add(1);
        }
        Ok(())
    }

    /// Lets readers find what has been written.
    fn apply_changes(&mut self) {
        if self.changes.is_empty() {
            return;
        }
        let mut live = self.live.lock();
        for change in self.changes.drain(..) {
            match change {
                Change::Place(id, spot) => live.place(id, spot),
                Change::Note(id, spot) => live.note(id, spot),
                Change::Done(id) => live.done(id),
            }
        }
    }

    /// Gives up the oldest segments in which nothing is left. It goes in order, oldest first: notes in a segment are
    /// about messages in it or in older ones, so nothing that counts is given up with it.
    pub(crate) fn retire(&mut self) -> io::Result<()> {
        while self.live.lock().oldest().is_some_and(|(_, messages)| messages == 0) {
            let is_header_synced = self.current.as_ref().is_none_or(|current| current.synced > 0);
            if self.has_unsynced_moves || !is_header_synced {
                self.sync()?;
            }
            let Some(segment) = self.live.lock().pop_oldest() else { break };
            let next_id = self.next_id;
            self.supply.lock().retire(&segment, next_id)?;
            self.is_pressed = false;
        }
        Ok(())
    }

    /// Writes and syncs the rest, and marks behind it that nothing comes after: so that later damage is not mistaken
    /// for the torn end of a crash.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        self.flush(Flush::Synced)?;
        self.sync()?;
        let Some(current) = self.current.as_mut() else { return Ok(()) };
        let mut pieces = self.building.finish(current.segment.seed, current.end);
        current.segment.file.write_at(&mut pieces, current.end)?;
        current.segment.file.sync_data()
    }
}
