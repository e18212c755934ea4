//! Classifies the files in a spool's directory by their headers: in use, free, or with a lost
//! header.
//!
//! A header is written to two blocks alternately. A block is damaged if it holds neither a header
//! nor zeros, or if it holds zeros although a header must have been written. If a segment in use
//! has lost its header, its checksum seed is computed from its first batch.
use crate::disk::{DiskFile, read_with_retry};
use crate::format::{
    BATCH_HEADER_BYTES, BATCHES_OFFSET, BLOCK, BatchHeader, HEADER_BYTES, HeaderSlot, RecordKind, SegmentHeader,
    SegmentHeaderState,
};
use crate::scan::{BodyMode, Scan, ScanResult, read_lossy};
use crate::{Error, Id};
use std::io;
use std::sync::Arc;

/// Maximum size of a segment in bytes. Even the segment for the longest message, with a body of
/// almost 4 GiB, is smaller.
const MAX_SEGMENT_BYTES: u64 = 8 << 30;

pub(crate) struct ExaminedFile {
    pub(crate) name: String,
    pub(crate) file: Arc<dyn DiskFile>,
    /// Length in bytes that the file had when it was made, according to its header. Without a header, this is the
    /// present length.
    pub(crate) bytes: u64,
    pub(crate) file_bytes: u64,
    pub(crate) role: FileRole,
    /// The newest header that can be read. If the latest header was lost, this is an older header, but its field
    /// `oldest` still proves that earlier segments were freed.
    pub(crate) header: Option<SegmentHeader>,
    pub(crate) bad_slots: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileRole {
    Used(SegmentHeader),
    /// A used segment whose header is damaged. Its generation is known only if the damaged header still shows it. Its
    /// checksum seed, which normally follows from the header, is computed from the first batch.
    Headerless {
        generation: Option<u64>,
        seed: u32,
        first_id: Option<Id>,
    },
    Free(SegmentHeader),
    /// An empty file, because the power failed while the segment was being made.
    Unfinished,
    /// A file that is no segment, or a segment whose header and first batch are both unreadable.
    Illegible,
}

struct HeaderSlots {
    /// The newest header, after repair of a single flipped bit.
    newest: Option<SegmentHeader>,
    bad: Vec<u64>,
    /// The segment's generation and checksum seed, as each damaged header still shows them. They may be wrong.
    hints: Vec<(u64, u32)>,
}

pub(crate) fn examine(name: &str, file: Arc<dyn DiskFile>) -> Result<ExaminedFile, Error> {
    let file_bytes = file.bytes()?.min(MAX_SEGMENT_BYTES);
    let places = read_slots(name, &*file)?;
    let first = first_batch(&file, file_bytes)?;
    let role = match role_of(&places, first, is_blank(&*file)?) {
        FileRole::Free(header) if has_later_batch(&places, header.next_id, &file, file_bytes)? => FileRole::Illegible,
        FileRole::Unfinished if has_later_batch(&places, 0, &file, file_bytes)? => FileRole::Illegible,
        role => role,
    };
    let bytes = match role {
        FileRole::Used(header) | FileRole::Free(header) => header.file_bytes.min(MAX_SEGMENT_BYTES),
        _ => file_bytes,
    };
    let (name, header) = (name.to_owned(), places.newest);
    Ok(ExaminedFile { name, file, bytes, file_bytes, role, header, bad_slots: places.bad })
}

impl ExaminedFile {
    pub(crate) fn spool(&self) -> Option<u64> {
        self.header.map(|header| header.spool)
    }
}

fn read_slots(name: &str, file: &dyn DiskFile) -> Result<HeaderSlots, Error> {
    let mut places = HeaderSlots { newest: None, bad: Vec::new(), hints: Vec::new() };
    let mut blank = Vec::new();
    let mut failures = Vec::new();
    for at in [0, BLOCK] {
        let mut bytes = [0; HEADER_BYTES];
        if let Err(error) = read_with_retry(file, &mut bytes, at) {
            failures.push(error);
            places.bad.push(at);
            continue;
        }
        let legible = match HeaderSlot::decode(&bytes) {
            HeaderSlot::Valid(header) => Some(header),
            HeaderSlot::Blank => {
                blank.push(at);
                continue;
            }
            place => {
                let corrected = SegmentHeader::corrected(&bytes);
                if let (HeaderSlot::Newer(version), None) = (place, corrected) {
                    return Err(Error::NewerVersion { file: name.to_owned(), version });
                }
                places.bad.push(at);
                places.hints.extend(SegmentHeader::generation_hint(&bytes));
                corrected
            }
        };
        let Some(header) = legible.filter(|header| header.offset() == at) else {
            if !places.bad.contains(&at) {
                places.bad.push(at);
            }
            continue;
        };
        places.newest = places.newest.filter(|other| other.revision > header.revision).or(Some(header));
    }
    if failures.len() == 2 {
        // If the disk cannot be read, return an error instead of reporting damage, because the data may be intact.
        return Err(Error::from(failures.swap_remove(0)));
    }
    // A file gets its first header (`revision` 0) in the first block, so a blank first block is always damage. It gets
    // its second header (`revision` 1) in the second block. A blank second block is therefore damage if the newest
    // header has `revision` 2 or higher.
    let must_be_there = |at: u64| places.newest.is_some_and(|newest| at == 0 || newest.revision >= 2);
    places.bad.extend(blank.into_iter().filter(|at| must_be_there(*at)).collect::<Vec<_>>());
    Ok(places)
}

/// The first batch of a segment. It reveals the segment's checksum seed even if the header is lost.
#[derive(Clone, Copy)]
struct FirstBatch {
    seed: u32,
    first_id: Option<Id>,
    last_id: Option<Id>,
    has_moved: bool,
}

/// Returns true if a segment may look free or unfinished only because its newest header is damaged. In this case, the
/// segment contains a batch with a message that is newer than the readable header. Because a sender can imitate a batch
/// in the body of a message, the spool does not trust the batch, and moves the segment to the quarantine.
fn has_later_batch(
    places: &HeaderSlots,
    next_id: u64,
    file: &Arc<dyn DiskFile>,
    segment_bytes: u64,
) -> io::Result<bool> {
    if places.bad.is_empty() {
        return Ok(false);
    }
    let mut block = vec![0; BLOCK as usize];
    for at in (BATCHES_OFFSET..segment_bytes).step_by(BLOCK as usize) {
        let read_bytes = read_lossy(&**file, &mut block, at)?;
        let Some(seed) = BatchHeader::seed_of(&block[..read_bytes]) else { continue };
        if BatchHeader::decode(&block[..read_bytes], seed, at, segment_bytes).is_none() {
            continue;
        }
        let mut seen = Vec::new();
        Scan::of_batch(Arc::clone(file), seed, segment_bytes, at).next_batch(&mut seen)?;
        if seen.iter().any(|one| one.kind == RecordKind::Stored && one.id.0 >= next_id) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads the first batch of a segment, and computes the segment's checksum seed from the batch header. Because any
/// bytes yield a seed, the batch counts only if a record's checksum confirms the seed.
fn first_batch(file: &Arc<dyn DiskFile>, segment_bytes: u64) -> io::Result<Option<FirstBatch>> {
    let mut bytes = [0; BATCH_HEADER_BYTES];
    if read_lossy(&**file, &mut bytes, BATCHES_OFFSET)? < BATCH_HEADER_BYTES {
        return Ok(None);
    }
    let Some(seed) = BatchHeader::seed_of(&bytes) else { return Ok(None) };
    if BatchHeader::decode(&bytes, seed, BATCHES_OFFSET, segment_bytes).is_none() {
        return Ok(None);
    }
    let mut scan = Scan::new(Arc::clone(file), seed, segment_bytes, BodyMode::Skip);
    let mut seen = Vec::new();
    // The first batches may contain only notes about older messages, so read batches until one has a new message.
    let mut first = None;
    for _ in 0..MAX_PROBED_BATCHES {
        let result = scan.next_batch(&mut seen)?;
        for one in &seen {
            let batch = first.get_or_insert(FirstBatch { seed, first_id: None, last_id: None, has_moved: false });
            batch.has_moved |= one.kind == RecordKind::Moved;
            if one.kind == RecordKind::Stored {
                batch.first_id = batch.first_id.or(Some(one.id));
                batch.last_id = Some(one.id);
            }
        }
        if result != ScanResult::Batch || first.is_some_and(|batch: FirstBatch| batch.first_id.is_some()) {
            break;
        }
    }
    Ok(first)
}

/// Maximum number of batches that are searched for a segment's first new message, so that the search always ends soon.
const MAX_PROBED_BATCHES: u32 = 4096;

fn role_of(places: &HeaderSlots, first: Option<FirstBatch>, is_blank: bool) -> FileRole {
    let headless = |first: FirstBatch| {
        let hint = places.hints.iter().find(|(_, seed)| *seed == first.seed);
        FileRole::Headerless { generation: hint.map(|(number, _)| *number), seed: first.seed, first_id: first.first_id }
    };
    match (places.newest, first) {
        (Some(header), _) if header.state == SegmentHeaderState::Used => FileRole::Used(header),
        (Some(header), Some(first)) if first.seed != header.seed() && is_later(places, &header, first) => {
            headless(first)
        }
        (Some(header), _) => FileRole::Free(header),
        (None, Some(first)) => headless(first),
        (None, None) if is_blank => FileRole::Unfinished,
        (None, None) => FileRole::Illegible,
    }
}

/// Returns true if the first batch was written after the header that marks the segment as free. The segment is then in
/// use, but the header that says so was lost. Returns false if the batch is left over from an earlier use.
fn is_later(places: &HeaderSlots, free: &SegmentHeader, first: FirstBatch) -> bool {
    let is_new = first.last_id.is_some_and(|id| id.0 >= free.next_id);
    let is_hinted = places.hints.iter().any(|(_, seed)| *seed == first.seed);
    // Before its first header (revision 0), a file contains only zeros. So any batch was written after this header.
    let is_first_use = free.revision == 0;
    is_first_use || is_new || is_hinted || (!places.bad.is_empty() && first.first_id.is_none() && first.has_moved)
}

/// Returns true if the file has no batch, because the block for the first batch is still zero. A file without batch and
/// header was still being made. A file with a batch but no header is damaged, because the first header is synced before
/// any batch is written.
fn is_blank(file: &dyn DiskFile) -> io::Result<bool> {
    let mut block = [0; BLOCK as usize];
    let read_bytes = read_lossy(file, &mut block, BATCHES_OFFSET)?;
    Ok(block[..read_bytes].iter().all(|byte| *byte == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_use_that_lost_its_header_is_found_by_its_moved_messages() {
        let moved = FirstBatch { seed: 7, first_id: None, last_id: None, has_moved: true };
        let role = |revision| {
            let header = SegmentHeader { revision, ..SegmentHeader::unused(1, 1 << 16) };
            role_of(&HeaderSlots { newest: Some(header), bad: Vec::new(), hints: Vec::new() }, Some(moved), false)
        };
        assert_eq!(role(0), FileRole::Headerless { generation: None, seed: 7, first_id: None });
        assert!(matches!(role(2), FileRole::Free(_)), "the batch may be of an older use");
    }
}
