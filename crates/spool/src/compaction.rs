//! Makes room by moving the unfinished messages of the oldest segment to the end of the log.
//!
//! Segments are freed in order, so a message that waits for days would keep all later segments in use. Moving messages
//! costs writes, so it is done only if the used segments hold more than twice as many bytes as their unfinished
//! messages, or if the spool has become full. The first condition ensures that at most about half of all written bytes
//! are copies of moved messages.
use crate::batch_builder::RecordParts;
use crate::format::{RecordHeader, RecordKind, join_notes, split_notes};
use crate::index::{FillLevel, MessageLocations};
use crate::log::{FlushMode, Log};
use crate::scan::{BodyMode, Scan, ScanResult, ScannedRecord};
use crate::segment::{RecordLocation, Segment};
use crate::segment_pool::LogWriteError;
use crate::{Error, Id, Options};
use std::io;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct CompactionState {
    scan: Option<(u64, Scan)>,
    /// Set if the rest of the oldest segment cannot be moved, because records are unreadable or
    /// there is no room. Compaction then pauses until the next batch.
    is_stuck: bool,
}

/// Number of bytes after which a step of compaction ends. It is small because new messages have to wait until the step
/// ends.
const SLICE_BYTES: u64 = 4 << 20;
/// Maximum number of batches that one step of compaction reads, even if it finds nothing to move in
/// them.
const SLICE_BATCHES: u32 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompactionProgress {
    More,
    Done,
}

fn is_worthwhile(fill: FillLevel, is_pressed: bool, options: &Options) -> bool {
    let segment = options.segment_bytes;
    let is_sparse = fill.segments > 4 && fill.segment_bytes > 2 * fill.live_bytes + 2 * segment;
    is_sparse || (is_pressed && fill.wasted_bytes >= segment)
}

impl CompactionState {
    /// Does one step of compaction between two batches: frees segments, and moves some messages out
    /// of the oldest segment.
    pub(crate) fn compact(&mut self, log: &mut Log) -> io::Result<CompactionProgress> {
        log.retire()?;
        if !needs_compaction(log) {
            return Ok(CompactionProgress::Done);
        }
        let Some(oldest) = log.index.lock().oldest().map(|(segment, _)| Arc::clone(segment)) else {
            return Ok(CompactionProgress::Done);
        };
        self.is_stuck = false;
        match self.compact_slice(log, &oldest) {
            Ok(()) => {}
            Err(LogWriteError::NoSpace) => self.is_stuck = true,
            Err(LogWriteError::Disk(error)) => return Err(error),
        }
        log.flush(FlushMode::Buffered)?;
        log.retire()?;
        let is_emptied = log.index.lock().oldest().is_none_or(|(segment, _)| !Arc::ptr_eq(segment, &oldest));
        let more = (is_emptied || !self.is_stuck) && needs_compaction(log);
        Ok(if more { CompactionProgress::More } else { CompactionProgress::Done })
    }

    /// Moves unfinished messages out of the oldest segment, and stops once it has moved [`SLICE_BYTES`]. The next call
    /// continues at the offset at which this call ended.
    fn compact_slice(&mut self, log: &mut Log, oldest: &Arc<Segment>) -> Result<(), LogWriteError> {
        let mut scan = match self.scan.take() {
            Some((order, scan)) if order == oldest.position => scan,
            _ => Scan::of_segment(oldest, BodyMode::Skip),
        };
        let mut seen = Vec::new();
        let mut moved = 0;
        for _ in 0..SLICE_BATCHES {
            match scan.next_batch(&mut seen) {
                Ok(ScanResult::Batch) => moved += relocate_all(log, oldest, &seen)?,
                // The scan cannot continue, because the segment ends here or is damaged. `compact_rest` finds the
                // messages after the damage in the index, so it can move them without the scan.
                Ok(ScanResult::Invalid(_)) | Err(_) => return self.compact_rest(log, oldest),
            }
            if moved >= SLICE_BYTES {
                break;
            }
        }
        self.scan = Some((oldest.position, scan));
        Ok(())
    }

    /// Moves the remaining unfinished messages of the oldest segment to the end of the log. The scan for messages stops
    /// at damage, but the index still knows the messages behind the damage. If a message cannot be moved, its segment
    /// stays in use until a restart, which reports the message as damaged.
    fn compact_rest(&mut self, log: &mut Log, oldest: &Arc<Segment>) -> Result<(), LogWriteError> {
        self.is_stuck = true;
        log.flush(FlushMode::Buffered).map_err(LogWriteError::Disk)?;
        let ids = {
            let index = log.index.lock();
            let is_empty = index.oldest().is_none_or(|(_, messages)| messages == 0);
            if is_empty { Vec::new() } else { index.messages_in(oldest) }
        };
        for id in ids {
            let locations = log.index.lock().locate(id);
            if let Some(locations) = locations {
                relocate_one(log, &locations)?;
            }
        }
        Ok(())
    }
}

/// Writes the messages again at the end of the log, as far as there is room, and syncs them. The
/// caller must do this before it frees any segment, because the only readable copy of a message may
/// be in an old segment.
pub(crate) fn rewrite(log: &mut Log, messages: Vec<Id>) -> io::Result<()> {
    for id in messages {
        let Some(locations) = log.index.lock().locate(id) else { continue };
        match relocate_one(log, &locations) {
            Ok(()) => {}
            Err(LogWriteError::NoSpace) => break,
            Err(LogWriteError::Disk(error)) => return Err(error),
        }
    }
    log.flush(FlushMode::Synced)
}

fn needs_compaction(log: &Log) -> bool {
    let fill = log.index.lock().fill_level();
    is_worthwhile(fill, log.is_under_pressure, &log.options)
}

fn relocate_all(log: &mut Log, segment: &Arc<Segment>, seen: &[ScannedRecord]) -> Result<u64, LogWriteError> {
    let mut moved = 0;
    for one in seen.iter().filter(|one| matches!(one.kind, RecordKind::Stored | RecordKind::Moved)) {
        let location = RecordLocation::new(segment.position, one.at, one.bytes);
        let locations = {
            let index = log.index.lock();
            index.is_at(one.id, location).then(|| index.locate(one.id)).flatten()
        };
        if let Some(locations) = locations {
            relocate_one(log, &locations)?;
            moved += one.bytes;
        }
    }
    Ok(moved)
}

fn relocate_one(log: &mut Log, locations: &MessageLocations) -> Result<(), LogWriteError> {
    let MessageLocations { segment, record: spot, .. } = locations;
    // Leave an unreadable message where it is. Its segment then stays in use.
    let Ok(Some(head)) = segment.read_metadata(*spot) else { return Ok(()) };
    let Ok(mut notes) = notes_of(locations, &head) else { return Ok(()) };
    // If the message has more notes than fit into one record (`MAX_ENVELOPE_BYTES`), drop the oldest notes.
    while notes.iter().map(|note| note.len() as u64 + 4).sum::<u64>() > Options::MAX_ENVELOPE_BYTES {
        notes.remove(0);
    }
    let notes = join_notes(&notes);
    // The moved record keeps the checksum of the body, so that damage to the body can still be
    // detected.
    let body = segment.read_body_lossy(*spot, &head.record);
    let record = RecordHeader { kind: RecordKind::Moved, notes_bytes: notes.len() as u32, ..head.record };
    log.relocate(&RecordParts { record, envelope: head.envelope(), notes: &notes, body: Some(&body) })
}

/// Returns all notes of a message, from the oldest on. The first notes are in the message's own
/// record, and later notes in records of their own.
pub(crate) fn notes_of(
    locations: &MessageLocations,
    head: &crate::segment::RecordMetadata,
) -> Result<Vec<Vec<u8>>, Error> {
    let mut notes =
        split_notes(head.notes()).ok_or_else(|| locations.segment.damage_error(locations.record.offset()))?;
    for (segment, spot) in &locations.notes {
        let head = segment.read_metadata(*spot)?.ok_or_else(|| segment.damage_error(spot.offset()))?;
        notes.push(head.envelope().to_vec());
    }
    Ok(notes)
}
