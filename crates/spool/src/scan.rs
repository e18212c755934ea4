//! Reads the batches of a segment. Intact batches are read as a whole, and damaged batches record
//! by record.
use crate::Id;
use crate::disk::{DiskFile, read_with_retry};
use crate::format::{
    BATCH_HEADER_BYTES, BATCHES_OFFSET, BLOCK, BatchHeader, RECORD_HEADER_BYTES, RecordHeader, RecordKind, checksum,
};
use crate::segment::Segment;
use std::io;
use std::ops::Range;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScannedRecord {
    pub(crate) kind: RecordKind,
    pub(crate) id: Id,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    /// Set if the body does not match its checksum. It is always false if bodies are skipped.
    pub(crate) is_body_damaged: bool,
}

/// Tells whether a scan compares bodies with their checksums, or does not read them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyMode {
    Check,
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanResult {
    Batch,
    /// There is no intact batch at the scan's offset. The value is the offset at which the damage begins.
    Invalid(u64),
}

#[derive(Debug)]
pub(crate) enum ScanStep {
    /// The batch is intact, although the bodies of some of its messages may be damaged.
    Batch,
    /// A part of the segment is damaged. The caller gets the records in it that are intact.
    Region(DamagedRegion),
    End,
}

/// A part of a segment in which batches are damaged. Some of their records may be intact.
#[derive(Debug)]
pub(crate) struct DamagedRegion {
    /// Offsets from a damaged batch to the next readable batch, or to the end of the log if no readable batch follows.
    pub(crate) range: Range<u64>,
    pub(crate) damage_offset: u64,
    /// Set if the whole region is known to have been synced (or written, with `durability = "write"`), so that a crash
    /// cannot explain the damage.
    pub(crate) was_promised: bool,
    pub(crate) batch: Option<BatchHeader>,
    /// Gaps between intact records, which may have held other records.
    pub(crate) holes: Vec<Hole>,
}

#[derive(Debug)]
pub(crate) struct Hole {
    pub(crate) range: Range<u64>,
    /// Number of intact records in the region that precede this gap.
    pub(crate) after: usize,
    /// The damaged record that fills the whole gap, as its header describes it. `None` if the gap cannot be read as one
    /// record with a plausible length.
    pub(crate) record: Option<DamagedRecord>,
}

/// Kind of a damaged record, guessed from its other fields because the field for the kind may be damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DamagedRecord {
    /// A message, because a field is set that only messages use, for example the length of the body.
    Message(Id),
    /// A note about a message, or a mark that a message is done, because no field is set that only messages use.
    Mark,
}

impl DamagedRecord {
    /// Decodes the fixed part of a damaged record. Ignores the kind, which may be damaged as well.
    /// Also returns the length of the whole record in bytes.
    fn read(bytes: &[u8]) -> Option<(Self, u64)> {
        let mut bytes: [u8; RECORD_HEADER_BYTES] = *bytes.first_chunk()?;
        bytes[KIND_OFFSET] = RecordKind::Moved as u8;
        let record = RecordHeader::decode(&bytes)?;
        let is_message = record.received_ns > 0 || record.notes_bytes > 0 || record.body_bytes > 0;
        let damaged = if is_message { Self::Message(record.id) } else { Self::Mark };
        Some((damaged, record.bytes()))
    }
}

const KIND_OFFSET: usize = 4;

/// Reads the batches of a segment in order. Ignores old batches from before the segment was reused.
pub(crate) struct Scan {
    window: ReadWindow,
    seed: u32,
    segment_bytes: u64,
    /// Offset at which the file ends. It is less than `segment_bytes` only if somebody shortened the
    /// file, because no crash does that. The missing part reads as zeros.
    file_bytes: u64,
    /// Set if messages in this segment were synced before they were answered 250.
    is_synced: bool,
    bodies: BodyMode,
    at: u64,
    is_closed: bool,
    /// Offset before which everything had been synced, as stated in the headers of the batches read so far.
    synced: u64,
    /// Offset before which everything had been synced, according to batches that the scan has not reached yet. If the
    /// scan finds damage, `is_stated_promised` reads the headers of these batches in advance.
    later_synced: u64,
    /// Offset up to which the segment was searched for later batches. No part is searched twice.
    searched_to: u64,
    /// Bytes of records that the scan may still check in damaged parts. Long records beyond this limit are skipped.
    salvage_budget: u64,
}

impl Scan {
    pub(crate) fn new(file: Arc<dyn DiskFile>, seed: u32, segment_bytes: u64, bodies: BodyMode) -> Self {
        let ahead = segment_bytes.min(READ_AHEAD_BYTES);
        let window = ReadWindow { file, segment_bytes, from: 0, buffer: Vec::new(), filled: 0, ahead };
        Self {
            window,
            seed,
            segment_bytes,
            file_bytes: segment_bytes,
            is_synced: true,
            bodies,
            at: BATCHES_OFFSET,
            is_closed: false,
            synced: 0,
            later_synced: 0,
            searched_to: 0,
            salvage_budget: SALVAGE_LIMIT,
        }
    }

    pub(crate) fn of_segment(segment: &Segment, bodies: BodyMode) -> Self {
        let scan = Self::new(Arc::clone(&segment.file), segment.seed, segment.bytes, bodies);
        Self { file_bytes: segment.file_bytes, is_synced: segment.header.is_synced, ..scan }
    }

    /// Creates a scan to read a single batch, at the offset `at`. The scan skips bodies, and does not read ahead.
    pub(crate) fn of_batch(file: Arc<dyn DiskFile>, seed: u32, segment_bytes: u64, at: u64) -> Self {
        let mut scan = Self { at, ..Self::new(file, seed, segment_bytes, BodyMode::Skip) };
        scan.window.ahead = BLOCK;
        scan
    }

    pub(crate) fn offset(&self) -> u64 {
        self.at
    }

    /// Returns the offset up to which this segment is known to have been synced, or `None` if all of its batches are.
    /// `claimed_end` is the offset at which the batches end, according to the next segment or the file `newest`. An end
    /// is recorded there only after everything before it was synced.
    pub(crate) fn unproven_from(&self, claimed_end: u64) -> Option<u64> {
        let is_proven = self.is_closed || (claimed_end > 0 && claimed_end == self.at);
        (!is_proven).then_some(self.synced)
    }

    /// Reads one batch, and replaces the contents of `seen` with the records of the batch. If the result is
    /// [`ScanResult::Invalid`], `seen` contains the records before the damage. A damaged body does not make a batch
    /// invalid.
    pub(crate) fn next_batch(&mut self, seen: &mut Vec<ScannedRecord>) -> io::Result<ScanResult> {
        seen.clear();
        let Some(batch) = self.batch(self.at)? else { return Ok(ScanResult::Invalid(self.at)) };
        let end = self.at + batch.bytes;
        let mut at = self.at + BATCH_HEADER_BYTES as u64;
        for _ in 0..batch.records {
            let Some(record) = self.record(at, end)? else { return Ok(ScanResult::Invalid(at)) };
            at += record.bytes;
            seen.push(record);
        }
        if at != end {
            return Ok(ScanResult::Invalid(at));
        }
        self.is_closed = batch.records == 0 && batch.synced == self.at;
        self.synced = self.synced.max(batch.synced);
        self.at = end.next_multiple_of(BLOCK);
        Ok(ScanResult::Batch)
    }

    /// Reads the next batch or damaged region. Afterwards `seen` contains the intact records of this batch or region.
    /// `claimed_end` is the offset at which the batches end, according to the next segment or the file `newest`, or 0
    /// if unknown.
    pub(crate) fn next_part(&mut self, seen: &mut Vec<ScannedRecord>, claimed_end: u64) -> io::Result<ScanStep> {
        seen.clear();
        let begin = self.at;
        if (claimed_end > 0 && begin >= claimed_end) || self.is_closed {
            return Ok(ScanStep::End);
        }
        match self.next_batch(seen)? {
            ScanResult::Invalid(bad_at) => self.pass_region(bad_at, seen, claimed_end),
            ScanResult::Batch if seen.iter().any(|one| one.is_body_damaged) => {
                self.pass_bodies(begin, seen, claimed_end)
            }
            ScanResult::Batch => Ok(ScanStep::Batch),
        }
    }

    /// Handles a batch with damaged bodies, which extends from `begin` to the scan's offset. If a crash may have torn
    /// the batch, drops the messages with damaged bodies, because no client got a 250 for a torn batch.
    fn pass_bodies(&mut self, begin: u64, seen: &mut Vec<ScannedRecord>, claimed_end: u64) -> io::Result<ScanStep> {
        let is_cut_off = seen.iter().any(|one| one.is_body_damaged && one.at + one.bytes > self.file_bytes);
        if claimed_end > begin || is_cut_off || self.is_stated_promised(begin)? {
            return Ok(ScanStep::Batch);
        }
        seen.retain(|one| !one.is_body_damaged);
        let batch = self.batch(begin)?;
        let end = self.at;
        let holes = self.holes(begin, batch.map_or(end, |batch| begin + batch.bytes), seen)?;
        let damage_offset = holes.first().map_or(begin, |hole| hole.range.start);
        Ok(ScanStep::Region(DamagedRegion { range: begin..end, damage_offset, was_promised: false, batch, holes }))
    }

    fn pass_region(
        &mut self,
        damage_offset: u64,
        seen: &mut Vec<ScannedRecord>,
        claimed_end: u64,
    ) -> io::Result<ScanStep> {
        seen.clear();
        let begin = self.at;
        let batch = self.batch(begin)?;
        let is_claimed = claimed_end > begin;
        let last = if is_claimed { claimed_end.min(self.segment_bytes) } else { self.segment_bytes };
        let (next, is_blank) = self.next_header(begin, last)?;
        let to = next.unwrap_or(last).max(begin);
        if !is_blank {
            self.salvage(begin + BATCH_HEADER_BYTES as u64, to, seen)?;
        }
        let stated_end = batch.map_or(begin, |batch| begin + batch.bytes);
        let seen_end = seen.last().map_or(begin, |one| one.at + one.bytes);
        // Assume that the log ends after the readable part, unless a later batch or segment shows that it is longer.
        let is_end = next.is_none() && !is_claimed;
        // If the header of the batch is damaged, assume that the batch filled the rest of the segment. In a shortened
        // file, the missing part then counts as damage and not as the end of the log.
        let seen_to = if batch.is_none() && !is_blank { self.segment_bytes } else { stated_end.max(seen_end) };
        // A batch header begins with a checksum, in which any byte may be zero. A few zeros at the end of the file may
        // therefore be the beginning of a header. Only a whole header of zeros proves that the log had ended.
        let is_cut_off = is_end && begin < last && seen_to.max(begin + BATCH_HEADER_BYTES as u64) > self.file_bytes;
        let is_last = is_end && !is_cut_off;
        let end = if is_last { stated_end.max(seen_end).next_multiple_of(BLOCK).min(to) } else { to };
        if end == begin {
            return Ok(ScanStep::End);
        }
        self.at = end;
        let is_stated = batch.is_some() && stated_end.next_multiple_of(BLOCK) == end;
        let was_promised = is_claimed || is_cut_off || self.is_stated_promised(begin)?;
        if !was_promised {
            // A crash tore this batch before any client got a 250 for it, so drop the messages with damaged bodies.
            seen.retain(|one| !one.is_body_damaged);
        }
        let holes = self.holes(begin, if is_stated { stated_end } else { end }, seen)?;
        Ok(ScanStep::Region(DamagedRegion { range: begin..end, damage_offset, was_promised, batch, holes }))
    }

    /// Searches for the next readable batch after the damaged batch at `begin`, up to the offset `last`. Also returns
    /// whether there are only zeros before the next batch.
    fn next_header(&mut self, begin: u64, last: u64) -> io::Result<(Option<u64>, bool)> {
        let mut is_blank = self.is_blank(begin)?;
        for at in (begin + BLOCK..last.min(self.file_end())).step_by(BLOCK as usize) {
            if self.batch(at)?.is_some() {
                return Ok((Some(at), is_blank));
            }
            is_blank = is_blank && self.is_blank(at)?;
        }
        self.searched_to = self.searched_to.max(last);
        Ok((None, is_blank))
    }

    /// Returns true if the block at `at` consists of zeros, or lies after the end of the segment.
    fn is_blank(&mut self, at: u64) -> io::Result<bool> {
        let length = BLOCK.min(self.segment_bytes.saturating_sub(at));
        Ok(self.window.bytes(at, length)?.is_none_or(|bytes| *bytes == ZEROS[..bytes.len()]))
    }

    /// Returns the end of the file's last block. In a shortened file, it lies before the end of the
    /// segment.
    fn file_end(&self) -> u64 {
        self.file_bytes.next_multiple_of(BLOCK).min(self.segment_bytes)
    }

    /// Returns true if a later batch shows that the bytes at `begin` had been synced. In a segment without syncs, any
    /// later batch shows that clients may rely on the bytes, because the messages of a batch are answered 250 before
    /// the next batch is written. The search continues where the last call ended, so it reads no part of the segment
    /// twice.
    fn is_stated_promised(&mut self, begin: u64) -> io::Result<bool> {
        self.searched_to = self.searched_to.max(begin + BLOCK);
        while self.later_synced <= begin && self.searched_to < self.file_end() {
            let at = self.searched_to;
            let promised = self.batch(at)?.map_or(0, |batch| if self.is_synced { batch.synced } else { at });
            self.later_synced = self.later_synced.max(promised);
            self.searched_to += BLOCK;
        }
        Ok(self.later_synced > begin)
    }

    /// Looks for an intact record at each offset at which a record may begin, and appends the records found to `seen`.
    fn salvage(&mut self, from: u64, to: u64, seen: &mut Vec<ScannedRecord>) -> io::Result<()> {
        let mut at = from;
        while at + RECORD_HEADER_BYTES as u64 <= to && at < self.file_bytes {
            let part = (to - at).min(BLOCK - at % BLOCK);
            let Some(bytes) = self.window.bytes(at, part)? else { return Ok(()) };
            let plausible = if *bytes == ZEROS[..bytes.len()] { None } else { first_plausible(bytes) };
            let Some(skipped) = plausible else {
                at += part;
                continue;
            };
            at += skipped;
            match self.sound_record(at, to)? {
                Some(record) => {
                    at += record.bytes;
                    seen.push(record);
                }
                None => at += 8,
            }
        }
        Ok(())
    }

    /// Returns the record at `at` if it is intact. Long records are read only while `salvage_budget` lasts, because
    /// damaged bytes may claim any length.
    fn sound_record(&mut self, at: u64, to: u64) -> io::Result<Option<ScannedRecord>> {
        let head = match self.window.bytes(at, RECORD_HEADER_BYTES as u64)?.and_then(RecordHeader::decode) {
            Some(record) if record.bytes() <= to - at => record.metadata_bytes(),
            _ => return Ok(None),
        };
        if head > BLOCK && self.salvage_budget < head {
            return Ok(None);
        }
        self.salvage_budget = self.salvage_budget.saturating_sub(head);
        self.record(at, to)
    }

    /// Returns the gaps around the intact records in `seen`, up to the offset `end`. Records in these gaps are lost.
    /// Zeros that only pad a batch to a whole block do not count as a gap.
    fn holes(&mut self, begin: u64, end: u64, seen: &[ScannedRecord]) -> io::Result<Vec<Hole>> {
        let mut holes = Vec::new();
        let mut at = begin + BATCH_HEADER_BYTES as u64;
        let ends = seen.iter().map(|one| (one.at, one.at + one.bytes)).chain([(end, end)]);
        for (after, (next, next_end)) in ends.enumerate() {
            // A batch never begins with padding, so any bytes before the first intact record are a lost record.
            let is_first = at == begin + BATCH_HEADER_BYTES as u64;
            if at < next && (is_first || !self.is_padding(at, next)?) {
                self.divide(at..next, after, &mut holes)?;
            }
            at = next_end.max(at);
        }
        Ok(holes)
    }

    /// Splits a gap into single damaged records, as far as their length fields look right. The missing end of a
    /// shortened file remains one gap, because it has no length fields to read.
    fn divide(&mut self, range: Range<u64>, after: usize, holes: &mut Vec<Hole>) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            if at >= self.file_bytes {
                holes.push(Hole { range: at..range.end, after, record: None });
                break;
            }
            let record = self.window.bytes(at, RECORD_HEADER_BYTES as u64)?.and_then(DamagedRecord::read);
            let record = record.filter(|(_, bytes)| at + bytes <= range.end);
            let end = record.map_or(range.end, |(_, bytes)| at + bytes);
            holes.push(Hole { range: at..end, after, record: record.map(|(record, _)| record) });
            at = end;
        }
        Ok(())
    }

    /// Returns true if the range held no record, but only the zeros that fill a batch's last block, perhaps followed by
    /// the header of the next batch.
    fn is_padding(&mut self, from: u64, to: u64) -> io::Result<bool> {
        let block_end = from.next_multiple_of(BLOCK);
        if to < block_end || to > block_end + BATCH_HEADER_BYTES as u64 {
            return Ok(false);
        }
        let bytes = self.window.bytes(from, block_end - from)?;
        Ok(bytes.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0)))
    }

    fn batch(&mut self, at: u64) -> io::Result<Option<BatchHeader>> {
        let seed = self.seed;
        let segment_bytes = self.segment_bytes;
        let bytes = self.window.bytes(at, BATCH_HEADER_BYTES as u64)?;
        Ok(bytes.and_then(|bytes| BatchHeader::decode(bytes, seed, at, segment_bytes)))
    }

    /// Returns the record at `at` if it ends before `end`, and its header, envelope and notes are intact. A damaged
    /// body is only noted in `is_body_damaged`.
    fn record(&mut self, at: u64, end: u64) -> io::Result<Option<ScannedRecord>> {
        let Some(bytes) = self.window.bytes(at, RECORD_HEADER_BYTES as u64)? else { return Ok(None) };
        let Some(record) = RecordHeader::decode(bytes).filter(|record| record.bytes() <= end - at.min(end)) else {
            return Ok(None);
        };
        let seed = self.seed;
        let head = self.window.bytes(at, record.metadata_bytes())?;
        if !head.is_some_and(|head| RecordHeader::is_intact(head, seed)) {
            return Ok(None);
        }
        let is_body_damaged = self.bodies == BodyMode::Check && {
            let body_at = at + record.metadata_bytes();
            self.window.checksum(body_at, u64::from(record.body_bytes))? != Some(record.body_crc)
        };
        Ok(Some(ScannedRecord { kind: record.kind, id: record.id, at, bytes: record.bytes(), is_body_damaged }))
    }
}

const ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// Number of bytes that a scan may read to check records in the damaged parts of a segment. After that, it skips long
/// records, because damaged length fields could make it read the same bytes again and again.
const SALVAGE_LIMIT: u64 = 1 << 30;

/// Returns the first offset in `bytes` at which a record may begin: a multiple of 8, with the number of a record kind
/// and three zeros in the bytes 4 to 7 from there.
fn first_plausible(bytes: &[u8]) -> Option<u64> {
    let words = bytes.chunks_exact(8);
    let is_plausible = |word: &[u8]| matches!(word[4..], [1..=4, 0, 0, 0]);
    words.map(is_plausible).position(|is| is).map(|at| at as u64 * 8)
}

const READ_AHEAD_BYTES: u64 = 1 << 20;

/// A part of a file that has been read ahead. The missing part of a shortened file reads as zeros.
struct ReadWindow {
    file: Arc<dyn DiskFile>,
    segment_bytes: u64,
    from: u64,
    buffer: Vec<u8>,
    filled: usize,
    ahead: u64,
}

impl ReadWindow {
    /// Returns `length` bytes at `at`, or `None` if the segment ends earlier.
    fn bytes(&mut self, at: u64, length: u64) -> io::Result<Option<&[u8]>> {
        if at < self.from || at + length > self.from + self.filled as u64 {
            self.fill(at, length.max(self.ahead) as usize)?;
        }
        let from = (at - self.from) as usize;
        Ok(self.buffer[..self.filled].get(from..from + length as usize))
    }

    fn fill(&mut self, at: u64, length: usize) -> io::Result<()> {
        if self.buffer.len() < length {
            self.buffer = vec![0; length];
        }
        (self.from, self.filled) = (at, 0);
        let read_bytes = read_lossy(&*self.file, &mut self.buffer[..length], at)?;
        let length = length.min(self.segment_bytes.saturating_sub(at) as usize);
        if read_bytes < length {
            self.buffer[read_bytes..length].fill(0);
        }
        self.filled = length;
        Ok(())
    }

    fn checksum(&mut self, mut at: u64, length: u64) -> io::Result<Option<u32>> {
        if length <= READ_AHEAD_BYTES {
            return Ok(self.bytes(at, length)?.map(checksum));
        }
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        let end = at + length;
        while at < end {
            let part = (end - at).min(READ_AHEAD_BYTES);
            let Some(bytes) = self.bytes(at, part)? else { return Ok(None) };
            digest.update(bytes);
            at += part;
        }
        Ok(Some(digest.finalize() as u32))
    }
}

/// Reads as much as possible, and fills unreadable blocks with zeros, which the checksums of the records reveal.
/// Returns the number of bytes in `buffer` that are set, including these zeros.
pub(crate) fn read_lossy(file: &dyn DiskFile, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    if let Ok(read) = file.read_at(buffer, at) {
        return Ok(read);
    }
    let length = file.bytes()?.saturating_sub(at).min(buffer.len() as u64) as usize;
    let mut from = 0;
    while from < length {
        // Read block by block, so that an unreadable block does not hide readable bytes of the next block.
        let to = (from + (BLOCK - (at + from as u64) % BLOCK) as usize).min(length);
        let part = &mut buffer[from..to];
        if read_with_retry(file, part, at + from as u64).is_err() {
            part.fill(0);
        }
        from = to;
    }
    Ok(length)
}
