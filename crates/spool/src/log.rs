//! The log as the commit thread uses it: writes and syncs batches, and begins and frees segments.
use crate::batch_builder::{BatchBuilder, RecordParts};
use crate::commit_queue::CommitBatch;
use crate::format::{
    BATCHES_OFFSET, BLOCK, CLOSING_BATCH_BYTES, NewUse, OldestUse, RecordHeader, RecordKind, SEGMENT_OVERHEAD_BYTES,
    SegmentHeader,
};
use crate::index::SharedIndex;
use crate::message::{DeferredRecord, NumberedMessage, Reserve};
use crate::newest::{NewestSegment, NewestState};
use crate::preallocator::SharedSegmentPool;
use crate::segment::{RecordLocation, Segment};
use crate::segment_pool::{FreeSegment, LogWriteError, SegmentPool, write_header};
use crate::stats::SpoolCounters;
use crate::{Durability, Error, Id, Options};
use std::io;
use std::sync::Arc;

pub(crate) struct Log {
    pub(crate) options: Options,
    pub(crate) index: Arc<SharedIndex>,
    pub(crate) segment_pool: Arc<SharedSegmentPool>,
    pub(crate) counters: Arc<SpoolCounters>,
    /// The segment that is being written. `None` after opening, because the last segment of an
    /// earlier run is never continued.
    current: Option<CurrentSegment>,
    /// Offset at which the last batch of the previous run ends. The header of the first new segment records it.
    previous_end: u64,
    next_generation: u64,
    next_id: u64,
    batch: BatchBuilder,
    /// Changes to apply to the index after the batch is written. If they were applied earlier, readers would look for
    /// records that are not in the file yet.
    changes: Vec<IndexChange>,
    /// Set while the new copy of a moved message is not synced. Until the sync, the old copy is
    /// still needed.
    has_unsynced_moves: bool,
    /// Set when a message is rejected because the spool is full. Cleared when a segment is freed.
    pub(crate) is_under_pressure: bool,
}

struct CurrentSegment {
    segment: Arc<Segment>,
    end: u64,
    /// Offset before which everything has been synced, or 0 if even the header has not been synced.
    synced: u64,
}

enum IndexChange {
    Insert(Id, RecordLocation),
    AddNote(Id, RecordLocation),
    Remove(Id),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushMode {
    Synced,
    Buffered,
}

pub(crate) struct ResumePoint {
    pub(crate) previous_end: u64,
    pub(crate) next_generation: u64,
    pub(crate) next_id: u64,
}

impl Log {
    pub(crate) fn new(
        options: Options,
        index: Arc<SharedIndex>,
        segment_pool: Arc<SharedSegmentPool>,
        counters: Arc<SpoolCounters>,
        resume_point: &ResumePoint,
    ) -> Self {
        Self {
            options,
            index,
            segment_pool,
            counters,
            current: None,
            previous_end: resume_point.previous_end,
            next_generation: resume_point.next_generation,
            next_id: resume_point.next_id,
            batch: BatchBuilder::default(),
            changes: Vec::new(),
            has_unsynced_moves: false,
            is_under_pressure: false,
        }
    }

    /// Writes a batch, and syncs it if it contains messages, or notes that must be durable. Returns
    /// the rejected messages, each with its position in the batch and the reason. After an error,
    /// the log must not be used any more, because the content of the disk is unknown.
    pub(crate) fn commit(&mut self, batch: &mut CommitBatch) -> io::Result<Vec<(u32, Error)>> {
        for record in batch.deferred_records.drain(..) {
            self.append_deferred(record)?;
        }
        let mut rejections = Vec::new();
        let mut stored_count = 0;
        let is_awaited = !batch.stores.is_empty() || batch.note_syncs.is_some();
        let flush = if is_awaited { FlushMode::Synced } else { FlushMode::Buffered };
        for (place, numbered) in batch.stores.drain(..).enumerate() {
            match self.store(&numbered) {
                Ok(()) => stored_count += 1,
                Err(LogWriteError::NoSpace) => rejections.push((place as u32, Error::Full)),
                Err(LogWriteError::Disk(error)) => return Err(error),
            }
        }
        self.is_under_pressure |= !rejections.is_empty();
        self.flush(flush)?;
        self.counters.stored.add(stored_count);
        self.counters.refused.add(rejections.len() as u64);
        Ok(rejections)
    }

    fn store(&mut self, numbered: &NumberedMessage) -> Result<(), LogWriteError> {
        let NumberedMessage { id, body_crc, message: draft, reserve: purpose } = numbered;
        self.next_id = self.next_id.max(id.0 + 1);
        let record = RecordHeader {
            received_ns: draft.received_ns,
            envelope_bytes: draft.envelope.len() as u32,
            body_bytes: draft.body.len() as u32,
            body_crc: *body_crc,
            ..RecordHeader::bare(RecordKind::Stored, *id)
        };
        let content = RecordParts { record, envelope: &draft.envelope, notes: &[], body: Some(&draft.body) };
        let location = self.append(&content, *purpose)?;
        self.changes.push(IndexChange::Insert(*id, location));
        Ok(())
    }

    fn append_deferred(&mut self, lazy: DeferredRecord) -> io::Result<()> {
        let (record, note) = match &lazy {
            DeferredRecord::Note(id, note) => (
                RecordHeader { envelope_bytes: note.len() as u32, ..RecordHeader::bare(RecordKind::Note, *id) },
                &note[..],
            ),
            DeferredRecord::Done(id) => (RecordHeader::bare(RecordKind::Done, *id), &[][..]),
        };
        let appended = self.append(&RecordParts { record, envelope: note, notes: &[], body: None }, Reserve::Notes);
        match (lazy, appended) {
            (DeferredRecord::Note(id, _), Ok(spot)) => self.changes.push(IndexChange::AddNote(id, spot)),
            // A full log may have no room for the record that the message is done. Remove the message from the index
            // even then, so that its segment can be freed. If the relay restarts before that, it delivers the message
            // again.
            (DeferredRecord::Done(id), Ok(_)) => self.changes.push(IndexChange::Remove(id)),
            (lazy, Err(LogWriteError::NoSpace)) => {
                self.counters.unwritten.add(1);
                if let DeferredRecord::Done(id) = lazy {
                    self.changes.push(IndexChange::Remove(id));
                }
            }
            (_, Err(LogWriteError::Disk(error))) => return Err(error),
        }
        Ok(())
    }

    pub(crate) fn relocate(&mut self, content: &RecordParts<'_>) -> Result<(), LogWriteError> {
        let location = self.append(content, Reserve::Moves)?;
        self.changes.push(IndexChange::Insert(content.record.id, location));
        self.has_unsynced_moves = true;
        self.counters.moved.add(1);
        Ok(())
    }

    /// Adds a record to the batch. If the segment has no room for the record, the batch is written
    /// first, and a new segment is begun if necessary.
    fn append(&mut self, content: &RecordParts<'_>, reserve: Reserve) -> Result<RecordLocation, LogWriteError> {
        let bytes = content.record.bytes();
        self.segment_pool.lock().check(reserve)?;
        if self.free_bytes() < bytes {
            // Sync this segment before a new segment is begun, because later syncs cover only the new segment's file.
            self.flush(FlushMode::Synced).map_err(LogWriteError::Disk)?;
            if self.free_bytes() < bytes {
                let wanted = (SEGMENT_OVERHEAD_BYTES + bytes).next_multiple_of(BLOCK);
                self.begin_segment(wanted.max(self.options.segment_bytes), reserve)?;
            }
        }
        let current = self.current.as_ref().expect("there is room in it");
        let at = current.end + self.batch.push(content, current.segment.seed);
        Ok(RecordLocation::new(current.segment.position, at, bytes))
    }

    /// Returns the number of bytes by which the current batch can still grow. This is 0 if no
    /// segment has been begun.
    fn free_bytes(&self) -> u64 {
        let Some(current) = &self.current else { return 0 };
        current.segment.bytes.saturating_sub(CLOSING_BATCH_BYTES + current.end + self.batch.length())
    }

    fn begin_segment(&mut self, bytes: u64, reserve: Reserve) -> Result<(), LogWriteError> {
        if self.has_unsynced_moves {
            // The current segment contains moved messages. Sync them now, because later syncs cover only the new
            // segment's file, and the old copies may only be freed when the new copies are durable.
            self.sync().map_err(LogWriteError::Disk)?;
        }
        let previous_end = match &self.current {
            None => self.previous_end,
            Some(current) if current.synced == current.end => current.end,
            Some(_) => 0,
        };
        let spare = self.segment_pool.take(bytes, reserve)?;
        self.begin_in(spare, previous_end).map_err(LogWriteError::Disk)
    }

    fn begin_in(&mut self, spare: FreeSegment, previous_end: u64) -> io::Result<()> {
        let (generation, next_id) = (self.next_generation, self.next_id);
        let first = OldestUse { generation, first_id: next_id.saturating_sub(1) };
        let oldest = self.index.lock().oldest_use().unwrap_or(first);
        let is_synced = self.options.durability == Durability::Sync;
        let header = spare.header.begin(&NewUse { generation, next_id, previous_end, oldest, is_synced });
        write_header(&*spare.file, &header)?;
        let segment = Arc::new(Segment::new(spare.name, spare.file, header, spare.bytes));
        self.next_generation += 1;
        self.index.lock().push_segment(Arc::clone(&segment));
        self.current = Some(CurrentSegment { segment, end: BATCHES_OFFSET, synced: 0 });
        if self.options.durability == Durability::Write {
            // Sync the header, although `durability = "write"` does not require syncs of batches. If a crash lost the
            // header, a restart would report the segment as missing.
            self.sync()?;
        }
        Ok(())
    }

    /// Writes the collected records as one batch. Syncs the batch if `flush` asks for a sync and
    /// the durability option requires one.
    pub(crate) fn flush(&mut self, flush: FlushMode) -> io::Result<()> {
        if let Some(current) = self.current.as_mut().filter(|_| !self.batch.is_empty()) {
            let mut pieces = self.batch.finish(current.segment.seed, current.synced);
            current.segment.file.write_at(&mut pieces, current.end)?;
            current.end += self.batch.length().next_multiple_of(BLOCK);
            self.batch.clear();
            self.counters.commits.add(1);
        }
        if flush == FlushMode::Synced && self.options.durability == Durability::Sync {
            self.sync()?;
        }
        self.apply_changes();
        Ok(())
    }

    /// Syncs the current segment if it has unsynced bytes, whether or not `durability` asks for it.
    fn sync(&mut self) -> io::Result<()> {
        if let Some(current) = self.current.as_mut().filter(|current| current.synced < current.end) {
            current.segment.file.sync_data()?;
            let is_new = current.synced == 0;
            current.synced = current.end;
            self.has_unsynced_moves = false;
            self.counters.syncs.add(1);
            if is_new {
                self.record_newest(NewestState::Open);
            }
        }
        Ok(())
    }

    /// Records in the file `newest` which segment is in use. Ignores errors, because the spool needs this file only to
    /// notice that segments are missing.
    fn record_newest(&mut self, state: NewestState) {
        let Some(current) = &self.current else { return };
        let header: &SegmentHeader = &current.segment.header;
        let Some(file_number) = SegmentPool::file_number(&current.segment.name) else { return };
        let oldest = self.index.lock().oldest_use().unwrap_or(header.oldest);
        let closed_at = if state == NewestState::Closed { current.end } else { 0 };
        let newest = NewestSegment::open(header, file_number, self.next_id, oldest);
        let mut pool = self.segment_pool.lock();
        pool.newest = NewestSegment { state, closed_at, ..newest };
        _ = pool.record_newest();
    }

    fn apply_changes(&mut self) {
        if self.changes.is_empty() {
            return;
        }
        let mut index = self.index.lock();
        for change in self.changes.drain(..) {
            match change {
                IndexChange::Insert(id, spot) => index.insert(id, spot),
                IndexChange::AddNote(id, spot) => index.add_note(id, spot),
                IndexChange::Remove(id) => index.remove(id),
            }
        }
    }

    /// Frees segments from the oldest on, up to the first with an unfinished message. This loses no
    /// note of an unfinished message, because a note is never in an older segment than its message.
    pub(crate) fn retire(&mut self) -> io::Result<()> {
        while self.index.lock().oldest().is_some_and(|(_, messages)| messages == 0) {
            // The freed segment may hold the old copies of moved messages, so sync the new copies
            // first.
            let is_header_synced = self.current.as_ref().is_none_or(|current| current.synced > 0);
            if self.has_unsynced_moves || !is_header_synced {
                self.sync()?;
            }
            let mut index = self.index.lock();
            let Some(segment) = index.pop_oldest() else { break };
            let oldest = index.oldest_use().unwrap_or(segment.header.oldest);
            drop(index);
            let next_id = self.next_id;
            self.segment_pool.lock().retire(&segment, next_id, oldest)?;
            self.is_under_pressure = false;
        }
        Ok(())
    }

    /// Writes and syncs the collected records, and marks the end of the log with an empty batch. The empty batch proves
    /// that no crash interrupted a write, so a restart does not mistake later damage for a torn write.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        self.flush(FlushMode::Synced)?;
        self.sync()?;
        let Some(current) = self.current.as_mut() else { return Ok(()) };
        let mut pieces = self.batch.finish(current.segment.seed, current.end);
        current.segment.file.write_at(&mut pieces, current.end)?;
        current.segment.file.sync_data()?;
        self.record_newest(NewestState::Closed);
        Ok(())
    }
}
