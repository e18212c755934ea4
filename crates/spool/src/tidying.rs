//! Making room: the messages that still count in the oldest segment are moved to the end of the log.
//!
//! Segments are given up in order, so one message that waits for days would hold up all after it. Moving it costs
//! writes, so it is done only if the segments in use hold more than twice the bytes that count. Then at most about half
//! of the written bytes are moved messages.
use crate::building::Content;
use crate::format::{Kind, Record, join_notes, split_notes};
use crate::live::{Fill, Whereabouts};
use crate::log::{Flush, Log};
use crate::scan::{Bodies, Found, Scan, Seen};
use crate::segment::{Segment, Spot};
use crate::supply::Shortage;
use crate::{Error, Id, Options};
use std::io;
use std::sync::Arc;

/// Progress in the oldest segment.
#[derive(Default)]
pub(crate) struct Tidying {
    at: Option<(u64, Scan)>,
    /// Records could not be read or found no room; tried again after a change.
    is_stuck: bool,
}

/// Bytes that are moved at a time, so that messages that come meanwhile do not wait long.
const SLICE_BYTES: u64 = 4 << 20;
/// Batches that are passed at a time.
const SLICE_BATCHES: u32 = 256;

/// Tells whether there is more to do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    Nothing,
}

/// Reports whether the oldest segment is worth emptying.
fn is_worth_it(fill: Fill, is_pressed: bool, options: &Options) -> bool {
    let segment = options.segment_bytes;
    let is_sparse = fill.segments > 4 && fill.segment_bytes > 2 * fill.live_bytes + 2 * segment;
    is_sparse || (is_pressed && fill.wasted_bytes >= segment)
}

impl Log {
    /// Works between batches: gives up segments, and makes part of the progress to the next one.
    pub(crate) fn tidy(&mut self) -> io::Result<Progress> {
        self.retire()?;
        if !self.has_to_tidy() {
            return Ok(Progress::Nothing);
        }
        let Some(oldest) = self.live.lock().oldest().map(|(segment, _)| Arc::clone(segment)) else {
            return Ok(Progress::Nothing);
        };
        self.tidying.is_stuck = false;
        match self.empty_some(&oldest) {
            Ok(()) => {}
            Err(Shortage::Room) => self.tidying.is_stuck = true,
            Err(Shortage::Disk(error)) => return Err(error),
        }
        self.flush(Flush::Buffered)?;
        self.retire()?;
        let is_emptied = self.live.lock().oldest().is_none_or(|(segment, _)| !Arc::ptr_eq(segment, &oldest));
        let more = (is_emptied || !self.tidying.is_stuck) && self.has_to_tidy();
        Ok(if more { Progress::More } else { Progress::Nothing })
    }

    /// Writes those messages again at the end of the log and syncs them, as far as there is room. Older copies of them
    /// are still in the spool: no segment may be released before this.
    pub(crate) fn write_anew(&mut self, messages: Vec<Id>) -> io::Result<()> {
        for id in messages {
            let Some(whereabouts) = self.live.lock().whereabouts(id) else { continue };
            match self.relocate_one(&whereabouts) {
                Ok(()) => {}
                Err(Shortage::Room) => break,
                Err(Shortage::Disk(error)) => return Err(error),
            }
        }
        self.flush(Flush::Synced)
    }

    fn has_to_tidy(&self) -> bool {
        let fill = self.live.lock().fill();
        is_worth_it(fill, self.is_pressed, &self.options)
    }

    /// Moves some of the messages that count in that segment.
    fn empty_some(&mut self, oldest: &Arc<Segment>) -> Result<(), Shortage> {
        let mut scan = match self.tidying.at.take() {
            Some((order, scan)) if order == oldest.order => scan,
            _ => Scan::new(Arc::clone(&oldest.file), oldest.seed, oldest.bytes, Bodies::Skipped),
        };
        let mut seen = Vec::new();
        let mut moved = 0;
        for _ in 0..SLICE_BATCHES {
            match scan.next(&mut seen) {
                Ok(Found::Batch) => moved += self.relocate_all(oldest, &seen)?,
                // The end, or damage.
                Ok(Found::Nothing(_)) | Err(_) => return self.empty_the_rest(oldest),
            }
            if moved >= SLICE_BYTES {
                break;
            }
        }
        self.tidying.at = Some((oldest.order, scan));
        Ok(())
    }

    fn relocate_all(&mut self, segment: &Arc<Segment>, seen: &[Seen]) -> Result<u64, Shortage> {
        let mut moved = 0;
        for one in seen.iter().filter(|one| matches!(one.kind, Kind::Stored | Kind::Moved)) {
            let spot = Spot::new(segment.order, one.at, one.bytes);
            let whereabouts = {
                let live = self.live.lock();
                live.is_at(one.id, spot).then(|| live.whereabouts(one.id)).flatten()
            };
            if let Some(whereabouts) = whereabouts {
                self.relocate_one(&whereabouts)?;
                moved += one.bytes;
            }
        }
        Ok(moved)
    }

    /// Moves the messages that the scan did not reach because it ended at damage. A message that cannot be moved keeps
    /// the segment until a restart, which reads it as damage.
    fn empty_the_rest(&mut self, oldest: &Arc<Segment>) -> Result<(), Shortage> {
        self.tidying.is_stuck = true;
        self.flush(Flush::Buffered).map_err(Shortage::Disk)?;
        let ids = {
            let live = self.live.lock();
            let is_empty = live.oldest().is_none_or(|(_, messages)| messages == 0);
            if is_empty { Vec::new() } else { live.in_segment(oldest) }
        };
        for id in ids {
            let whereabouts = self.live.lock().whereabouts(id);
            if let Some(whereabouts) = whereabouts {
                self.relocate_one(&whereabouts)?;
            }
        }
        Ok(())
    }

    fn relocate_one(&mut self, whereabouts: &Whereabouts) -> Result<(), Shortage> {
        let Whereabouts { segment, spot, .. } = whereabouts;
        // A message that cannot be read stays, and so does its segment.
        let Ok(Some(head)) = segment.head(*spot) else { return Ok(()) };
        let Ok(mut notes) = notes_of(whereabouts, &head) else { return Ok(()) };
        while notes.iter().map(|note| note.len() as u64 + 4).sum::<u64>() > Options::MOST_ENVELOPE_BYTES {
            notes.remove(0);
        }
        let notes = join_notes(&notes);
        // It keeps its checksum: a damaged body remains recognizable.
        let body = segment.readable_body(*spot, &head.record);
        let record = Record { kind: Kind::Moved, notes_bytes: notes.len() as u32, ..head.record };
        self.relocate(&Content { record, envelope: head.envelope(), notes: &notes, body: Some(&body) })
    }
}

/// Returns all notes of a message whose head has been read: those that it carries, and those that follow.
pub(crate) fn notes_of(whereabouts: &Whereabouts, head: &crate::segment::Head) -> Result<Vec<Vec<u8>>, Error> {
    let mut notes = split_notes(head.notes()).ok_or_else(|| whereabouts.segment.damaged(whereabouts.spot.at()))?;
    for (segment, spot) in &whereabouts.notes {
        let head = segment.head(*spot)?.ok_or_else(|| segment.damaged(spot.at()))?;
        notes.push(head.envelope().to_vec());
    }
    Ok(notes)
}
