//! The file `newest` contains the number of the newest segment, and the offset at which the log was closed. For every
//! older segment, the header of the next segment shows that the older one exists and where it ends. No segment follows
//! the newest one, so the file `newest` has this information about it.
//!
//! The file also names the oldest segment that is still needed, so that a restart does not report older ones as
//! missing. The header of a freed segment also proves that the segment was freed, but is lost when the segment's file
//! is removed. The spool therefore updates `newest` before it removes the file.
//!
//! The spool accepts mail even if `newest` cannot be read, or cannot be written when a new segment is begun. Without
//! the file, the spool only fails to notice a loss of the newest segment or of its end. A new segment is recorded here
//! only after its first sync. If it were recorded earlier, a power failure could undo the segment but not the record.
//! Records are written to two places alternately, so a torn write leaves the last record intact.
use crate::disk::{Disk, DiskFile, read_with_retry};
use crate::format::{OldestUse, SegmentHeader, checksum};
use std::io::{self, ErrorKind, IoSlice};
use std::sync::Arc;

pub(crate) const NAME: &str = "newest";
const MAGIC: &[u8; 8] = b"mrnewest";
const VERSION: u32 = 3;
/// Distance in bytes between the two places to which records are written alternately. The places are in different
/// sectors, because a crash may tear the sector that is being written.
const SECTOR_BYTES: u64 = 512;
const RECORD_BYTES: usize = 92;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewestSegment {
    pub(crate) state: NewestState,
    pub(crate) generation: u64,
    pub(crate) file_number: u64,
    /// Lower bound of the message numbers in the segment. Only messages that compaction moved there may have lower
    /// numbers.
    pub(crate) first_id: u64,
    /// Number that the next new message would have got when this record was written. All smaller numbers had already
    /// been given to messages.
    pub(crate) next_id: u64,
    /// Offset of the batch that closed the log, or 0 if the log is open. Everything before the
    /// offset had been synced.
    pub(crate) closed_at: u64,
    /// The oldest segment that was still needed when this record was written. All older ones had been freed.
    pub(crate) oldest: OldestUse,
    pub(crate) spool: u64,
}

impl NewestSegment {
    /// Returns the record to write to the file `newest` while the log is open. `header` belongs to the newest segment.
    pub(crate) fn open(header: &SegmentHeader, file_number: u64, next_id: u64, oldest: OldestUse) -> Self {
        let SegmentHeader { generation, spool, .. } = *header;
        let first_id = header.first_id();
        Self { state: NewestState::Open, generation, file_number, first_id, next_id, closed_at: 0, oldest, spool }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewestState {
    /// The log was open when this record was written, so more messages may have been stored later.
    Open = 1,
    /// The log was closed after the last message, so nothing follows [`NewestSegment::closed_at`].
    Closed = 2,
    /// The segment was missing when the spool was opened, and this has been reported.
    Lost = 3,
}

pub(crate) struct NewestFile {
    disk: Arc<dyn Disk>,
    file: Option<Arc<dyn DiskFile>>,
    revision: u64,
    /// Generation of the oldest segment still needed, according to the last record that this process has synced. 0 if
    /// this process has not synced any record yet.
    recorded_oldest: u64,
}

impl NewestFile {
    pub(crate) fn new(disk: &Arc<dyn Disk>) -> Self {
        let revision = read_file(&**disk).map_or(0, |(revision, _)| revision);
        // Do not take `recorded_oldest` from the file `newest`. A killed process may have left this value only in the
        // page cache, so a power failure could still destroy it. If the spool had already removed a segment because of
        // the value, a restart would report the segment as missing.
        Self { disk: Arc::clone(disk), file: None, revision, recorded_oldest: 0 }
    }

    /// Returns true if a record that this process has synced proves that the segment `generation` was freed.
    pub(crate) fn proves_release(&self, generation: u64) -> bool {
        generation < self.recorded_oldest
    }

    /// Writes a record to the sector that does not hold the last record, and syncs it.
    pub(crate) fn record(&mut self, newest: &NewestSegment) -> io::Result<()> {
        let (file, is_new) = match &self.file {
            Some(file) => (Arc::clone(file), false),
            None => match self.disk.open(NAME) {
                Err(error) if error.kind() == ErrorKind::NotFound => (self.disk.create(NAME)?, true),
                opened => (opened?, false),
            },
        };
        // The file has two places for records. Write to the place that does not have the last good record. If the write
        // fails, `self.revision` stays the same, so the next attempt writes to this place again.
        let revision = self.revision + 1;
        file.write_at(&mut [IoSlice::new(&encode(revision, newest))], revision % 2 * SECTOR_BYTES)?;
        file.sync_data()?;
        self.revision = revision;
        if is_new {
            self.disk.sync_directory()?;
        }
        self.file = Some(file);
        self.recorded_oldest = newest.oldest.generation;
        Ok(())
    }
}

pub(crate) fn read(disk: &dyn Disk) -> Option<NewestSegment> {
    read_file(disk).map(|(_, newest)| newest)
}

fn read_file(disk: &dyn Disk) -> Option<(u64, NewestSegment)> {
    let file = disk.open(NAME).ok()?;
    let slot = |at| {
        let mut bytes = [0; RECORD_BYTES];
        read_with_retry(&*file, &mut bytes, at).ok()?;
        decode(&bytes)
    };
    [0, SECTOR_BYTES].into_iter().filter_map(slot).max_by_key(|(revision, _)| *revision)
}

fn encode(revision: u64, newest: &NewestSegment) -> [u8; RECORD_BYTES] {
    let NewestSegment { state, generation, file_number, first_id, next_id, closed_at, oldest, spool } = *newest;
    let mut bytes = [0; RECORD_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(state as u32).to_le_bytes());
    let numbers = [revision, generation, file_number, first_id, next_id, closed_at];
    let numbers = numbers.into_iter().chain([oldest.generation, oldest.first_id, spool]);
    for (at, number) in numbers.enumerate() {
        bytes[16 + 8 * at..24 + 8 * at].copy_from_slice(&number.to_le_bytes());
    }
    let crc = checksum(&bytes[..RECORD_BYTES - 4]);
    bytes[RECORD_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<(u64, NewestSegment)> {
    let any_number = |at: usize| bytes[at..].first_chunk().copied().map(u64::from_le_bytes);
    let number = |at: usize| any_number(at).filter(|n| *n <= u64::MAX >> 1);
    let is_whole = bytes[RECORD_BYTES - 4..] == checksum(&bytes[..RECORD_BYTES - 4]).to_le_bytes();
    if !is_whole || bytes[..8] != *MAGIC || bytes[8..12] != VERSION.to_le_bytes() {
        return None;
    }
    let state = match bytes[12..16] {
        [1, 0, 0, 0] => NewestState::Open,
        [2, 0, 0, 0] => NewestState::Closed,
        [3, 0, 0, 0] => NewestState::Lost,
        _ => return None,
    };
    let newest = NewestSegment {
        state,
        generation: number(24)?,
        file_number: number(32)?,
        first_id: number(40)?,
        next_id: number(48)?,
        closed_at: number(56)?,
        oldest: OldestUse { generation: number(64)?, first_id: number(72)? },
        spool: any_number(80)?,
    };
    Some((number(16)?, newest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faulty::FaultyDisk;

    #[test]
    fn a_release_is_proven_only_by_what_this_process_has_synced() {
        let disk: Arc<dyn Disk> = Arc::new(FaultyDisk::new());
        let header = SegmentHeader::unused(1, 1 << 16);
        let newest = NewestSegment::open(&header, 0, 9, OldestUse { generation: 5, first_id: 8 });
        let mut file = NewestFile::new(&disk);
        file.record(&newest).unwrap();
        assert!(file.proves_release(4) && !file.proves_release(5));
        let mut after_restart = NewestFile::new(&disk);
        assert_eq!(read(&*disk), Some(newest));
        assert!(!after_restart.proves_release(4), "a killed process may have left it in the page cache only");
        after_restart.record(&newest).unwrap();
        assert!(after_restart.proves_release(4));
    }
}
