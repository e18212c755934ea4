//! Encodes and decodes the bytes of a spool: headers of segments, batches and records.
//! `docs/spool-format.md` shows the layout.
//!
//! All numbers are little-endian. Decoders accept any input, and reject bytes that are not in this
//! format.
use crate::Id;
use std::hash::{BuildHasher, RandomState};

/// Alignment of batches in bytes. It ensures that no write touches a block that an earlier sync
/// made durable.
pub(crate) const BLOCK: u64 = 4096;
/// Offset in a segment's file at which the batches begin. The two blocks before it are for the segment's header. Each
/// new header goes to the block that does not hold the last one, so a torn write leaves the last header intact.
pub(crate) const BATCHES_OFFSET: u64 = 2 * BLOCK;
pub(crate) const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"mrspool\0";
/// Highest valid value of a counter, which no spool reaches. A header with a higher value is
/// rejected, because the next number could overflow.
const MAX_COUNTER: u64 = u64::MAX >> 1;

pub(crate) const HEADER_BYTES: usize = 96;
pub(crate) const BATCH_HEADER_BYTES: usize = 32;
pub(crate) const RECORD_HEADER_BYTES: usize = 40;
/// Space in bytes reserved in each segment for the empty batch that marks a clean close.
pub(crate) const CLOSING_BATCH_BYTES: u64 = BLOCK;
/// Bytes that a segment with a single record needs besides the record, for headers and the closing batch.
pub(crate) const SEGMENT_OVERHEAD_BYTES: u64 = BATCHES_OFFSET + BATCH_HEADER_BYTES as u64 + CLOSING_BATCH_BYTES;
const CRC_OFFSET: usize = HEADER_BYTES - 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentHeaderState {
    Free,
    Used,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) state: SegmentHeaderState,
    /// Number of times that this file's header has been replaced by a new header. Even revisions are in the first of
    /// the two header blocks, and odd revisions in the second.
    pub(crate) revision: u64,
    /// Sequence number of the segment in the log. A segment gets the next number whenever it stops being free and
    /// begins to hold batches. A free segment keeps its last number.
    pub(crate) generation: u64,
    /// Secret random number that is part of the checksum seed. Without it, somebody could send a
    /// message whose bytes look like a record.
    pub(crate) salt: u64,
    /// Number that the next new message would have got when this header was written. All smaller numbers had already
    /// been given to messages.
    pub(crate) next_id: u64,
    /// Offset in the previous segment's file at which its batches end, or 0 if not all of these batches were synced. A
    /// crash cannot explain damage before this offset.
    pub(crate) previous_end: u64,
    /// Length of the file in bytes. It never changes, so a file of another length was changed by
    /// somebody else.
    pub(crate) file_bytes: u64,
    /// The oldest segment that was still needed when this header was written. A restart expects to find this segment
    /// and all segments after it in the log. Later headers and the file `newest` may prove that some of them were
    /// freed.
    pub(crate) oldest: OldestUse,
    /// Random number of the spool, which no other spool has. It shows whether a segment belongs to
    /// another spool.
    pub(crate) spool: u64,
    /// Set if the messages in this segment were synced before they were answered 250.
    pub(crate) is_synced: bool,
}

/// Identifies the oldest segment that is still needed, because it may hold unfinished messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OldestUse {
    pub(crate) generation: u64,
    /// Lower bound of the message numbers in the segment, or 0 if unknown. Only messages that compaction moved there
    /// may have lower numbers.
    pub(crate) first_id: u64,
}

/// Values for the header that is written when the log begins to use a free segment. [`SegmentHeader::begin`] derives
/// the other fields from the last header of the same file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewUse {
    pub(crate) generation: u64,
    pub(crate) next_id: u64,
    pub(crate) previous_end: u64,
    pub(crate) oldest: OldestUse,
    pub(crate) is_synced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderSlot {
    Valid(SegmentHeader),
    Newer(u32),
    Blank,
    Illegible,
}

impl SegmentHeader {
    pub(crate) fn offset(&self) -> u64 {
        self.revision % 2 * BLOCK
    }

    /// Returns the seed of the segment's checksums. It changes whenever a free segment is used again, so that old
    /// records in the file are not mistaken for new records.
    pub(crate) fn seed(&self) -> u32 {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[8..].copy_from_slice(&self.salt.to_le_bytes());
        checksum(&bytes)
    }

    pub(crate) fn unused(spool: u64, file_bytes: u64) -> Self {
        Self {
            state: SegmentHeaderState::Free,
            revision: 0,
            generation: 0,
            salt: 0,
            next_id: 0,
            previous_end: 0,
            file_bytes,
            oldest: OldestUse::default(),
            spool,
            is_synced: false,
        }
    }

    pub(crate) fn begin(self, new: &NewUse) -> Self {
        let NewUse { generation, next_id, previous_end, oldest, is_synced } = *new;
        let state = SegmentHeaderState::Used;
        let revision = self.revision + 1;
        let mut next = Self { state, revision, generation, salt: 0, next_id, previous_end, oldest, is_synced, ..self };
        loop {
            // Choose a new seed. With the old seed, records that are left in the file from its earlier use would look
            // valid.
            next.salt = RandomState::new().hash_one((generation, next.salt));
            if next.seed() != self.seed() {
                return next;
            }
        }
    }

    /// Returns the header that marks the segment as free. `oldest` is the oldest segment that is then still needed.
    pub(crate) fn end(self, next_id: u64, oldest: OldestUse) -> Self {
        let revision = self.revision + 1;
        Self { state: SegmentHeaderState::Free, revision, next_id, previous_end: 0, oldest, ..self }
    }

    /// Returns a lower bound of the message numbers in this segment, or 0 if unknown. Only messages that compaction
    /// moved here may have lower numbers.
    pub(crate) fn first_id(&self) -> u64 {
        // The spool begins a segment for a message to which it has just given the number `next_id - 1`, so this message
        // is the segment's first.
        self.next_id.saturating_sub(1)
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let state: u32 = if self.state == SegmentHeaderState::Free { 1 } else { 2 };
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&state.to_le_bytes());
        let OldestUse { generation: oldest, first_id } = self.oldest;
        let numbers = [self.revision, self.generation, self.salt, self.next_id, self.previous_end];
        let numbers = numbers.into_iter().chain([self.file_bytes, oldest, first_id, self.spool]);
        for (at, number) in numbers.enumerate() {
            bytes[16 + 8 * at..24 + 8 * at].copy_from_slice(&number.to_le_bytes());
        }
        let durability: u32 = if self.is_synced { 1 } else { 2 };
        bytes[88..CRC_OFFSET].copy_from_slice(&durability.to_le_bytes());
        Self::seal(&mut bytes);
        bytes
    }

    pub(crate) fn seal(bytes: &mut [u8; HEADER_BYTES]) {
        let crc = checksum(&bytes[..CRC_OFFSET]);
        bytes[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
    }
}

impl HeaderSlot {
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        if bytes[..8] != MAGIC {
            return if *bytes == [0; HEADER_BYTES] { Self::Blank } else { Self::Illegible };
        }
        // Read the version before the checksum, because later versions may have the checksum
        // elsewhere.
        let version = u32_at(bytes, 8);
        if version > VERSION {
            return Self::Newer(version);
        }
        let state = match u32_at(bytes, 12) {
            1 => SegmentHeaderState::Free,
            2 => SegmentHeaderState::Used,
            _ => return Self::Illegible,
        };
        let is_synced = match u32_at(bytes, 88) {
            1 => true,
            2 => false,
            _ => return Self::Illegible,
        };
        if version != VERSION || u32_at(bytes, CRC_OFFSET) != checksum(&bytes[..CRC_OFFSET]) {
            return Self::Illegible;
        }
        let header = SegmentHeader {
            state,
            revision: u64_at(bytes, 16),
            generation: u64_at(bytes, 24),
            salt: u64_at(bytes, 32),
            next_id: u64_at(bytes, 40),
            previous_end: u64_at(bytes, 48),
            file_bytes: u64_at(bytes, 56),
            oldest: OldestUse { generation: u64_at(bytes, 64), first_id: u64_at(bytes, 72) },
            spool: u64_at(bytes, 80),
            is_synced,
        };
        let OldestUse { generation: oldest, first_id } = header.oldest;
        let counters = [header.revision, header.generation, header.next_id, header.file_bytes, oldest, first_id];
        let is_countable = counters.into_iter().all(|n| n <= MAX_COUNTER);
        if is_countable { Self::Valid(header) } else { Self::Illegible }
    }
}

impl SegmentHeader {
    /// Tries to repair a header in which a single bit has changed. Flips each bit in turn until the CRC is right.
    pub(crate) fn corrected(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        (0..HEADER_BYTES * 8).find_map(|bit| {
            let mut flipped = *bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            match HeaderSlot::decode(&flipped) {
                HeaderSlot::Valid(header) => Some(header),
                _ => None,
            }
        })
    }

    /// Returns the segment's generation and checksum seed as an invalid header shows them. Both may be wrong, but help
    /// to read a segment that has lost its header.
    pub(crate) fn generation_hint(bytes: &[u8; HEADER_BYTES]) -> Option<(u64, u32)> {
        let use_number = u64_at(bytes, 24);
        let salt = u64_at(bytes, 32);
        let header = Self { generation: use_number, salt, ..Self::unused(0, 0) };
        (use_number <= MAX_COUNTER).then(|| (use_number, header.seed()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) records: u32,
    /// Length of the batch in bytes, including this header but not the padding of the last block.
    pub(crate) bytes: u64,
    /// The segment was synced up to this offset when this batch was written, so a crash cannot explain damage before
    /// the offset.
    pub(crate) synced: u64,
}

impl BatchHeader {
    pub(crate) fn encode(&self, seed: u32) -> [u8; BATCH_HEADER_BYTES] {
        let mut bytes = [0; BATCH_HEADER_BYTES];
        bytes[4] = BATCH_KIND;
        bytes[8..12].copy_from_slice(&self.records.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.synced.to_le_bytes());
        seal(&mut bytes, seed);
        bytes
    }

    /// Returns the checksum seed with which `bytes` would be a valid batch header. Almost any bytes have such a seed,
    /// so another checksum has to confirm it.
    pub(crate) fn seed_of(bytes: &[u8]) -> Option<u32> {
        let bytes: &[u8; BATCH_HEADER_BYTES] = bytes.first_chunk()?;
        (bytes[4] == BATCH_KIND).then(|| u32_at(bytes, 0) ^ checksum(&bytes[4..]))
    }

    /// Decodes the batch header at the offset `at`. Returns `None` if the checksum is wrong, or if
    /// the batch would not fit into a segment of `segment_bytes`.
    pub(crate) fn decode(bytes: &[u8], seed: u32, at: u64, segment_bytes: u64) -> Option<Self> {
        let bytes: &[u8; BATCH_HEADER_BYTES] = bytes.first_chunk()?;
        if bytes[4] != BATCH_KIND || u32_at(bytes, 0) != checksum(&bytes[4..]) ^ seed {
            return None;
        }
        let batch = Self { records: u32_at(bytes, 8), bytes: u64_at(bytes, 16), synced: u64_at(bytes, 24) };
        let fits = batch.bytes >= BATCH_HEADER_BYTES as u64 && batch.bytes <= segment_bytes.saturating_sub(at);
        (fits && batch.synced <= at).then_some(batch)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Stored = 1,
    /// A message that was moved here from an older segment, with all of its notes.
    Moved = 2,
    /// A note about a message whose own record is in the same segment or in an older one.
    Note = 3,
    /// A mark that a message is done. A restart reads it, and then does not recover the message.
    Done = 4,
}

const BATCH_KIND: u8 = b'B';

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    pub(crate) id: Id,
    pub(crate) received_ns: u64,
    /// Length of the envelope in bytes. In a note's record, this is the length of the note.
    pub(crate) envelope_bytes: u32,
    /// Length in bytes of all notes of a moved message, including the length field before each
    /// note.
    pub(crate) notes_bytes: u32,
    pub(crate) body_bytes: u32,
    pub(crate) body_crc: u32,
}

impl RecordHeader {
    /// Returns the header of a record without envelope, notes and body. The record that marks a message as done
    /// consists only of such a header.
    pub(crate) fn bare(kind: RecordKind, id: Id) -> Self {
        Self { kind, id, received_ns: 0, envelope_bytes: 0, notes_bytes: 0, body_bytes: 0, body_crc: 0 }
    }

    /// Returns the number of bytes before the body. The record's own checksum covers them, and
    /// `body_crc` covers the body.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        RECORD_HEADER_BYTES as u64 + u64::from(self.envelope_bytes) + u64::from(self.notes_bytes)
    }

    /// Returns the total length in bytes, with padding, because records start at multiples of 8.
    pub(crate) fn bytes(&self) -> u64 {
        (self.metadata_bytes() + u64::from(self.body_bytes)).next_multiple_of(8)
    }

    pub(crate) fn encode(&self, envelope: &[u8], notes: &[u8], seed: u32, out: &mut Vec<u8>) {
        let from = out.len();
        out.extend_from_slice(&[0, 0, 0, 0, self.kind as u8, 0, 0, 0]);
        out.extend_from_slice(&self.id.0.to_le_bytes());
        out.extend_from_slice(&self.received_ns.to_le_bytes());
        for number in [self.envelope_bytes, self.notes_bytes, self.body_bytes, self.body_crc] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(envelope);
        out.extend_from_slice(notes);
        seal(&mut out[from..], seed);
    }

    /// Decodes the fixed part of a record without checking its checksum.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RECORD_HEADER_BYTES] = bytes.first_chunk()?;
        let kind = match bytes[4] {
            1 => RecordKind::Stored,
            2 => RecordKind::Moved,
            3 => RecordKind::Note,
            4 => RecordKind::Done,
            _ => return None,
        };
        let id = Some(Id(u64_at(bytes, 8))).filter(|id| id.0 <= MAX_COUNTER)?;
        Some(Self {
            kind,
            id,
            received_ns: u64_at(bytes, 16),
            envelope_bytes: u32_at(bytes, 24),
            notes_bytes: u32_at(bytes, 28),
            body_bytes: u32_at(bytes, 32),
            body_crc: u32_at(bytes, 36),
        })
    }

    /// Returns true if `head` matches its checksum. `head` is the record from the first byte up to
    /// the body.
    pub(crate) fn is_intact(head: &[u8], seed: u32) -> bool {
        head.len() >= RECORD_HEADER_BYTES && u32_at(head, 0) == checksum(&head[4..]) ^ seed
    }
}

/// Joins notes into one byte string for the record of a moved message. Each note follows its length, which takes 4
/// bytes.
pub(crate) fn join_notes(notes: &[Vec<u8>]) -> Vec<u8> {
    let mut joined = Vec::with_capacity(notes.iter().map(|note| note.len() + 4).sum());
    for note in notes {
        joined.extend_from_slice(&(note.len() as u32).to_le_bytes());
        joined.extend_from_slice(note);
    }
    joined
}

/// Splits notes that were joined by [`join_notes`]. Returns `None` if a length does not fit.
pub(crate) fn split_notes(mut joined: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut notes = Vec::new();
    while !joined.is_empty() {
        let (length, rest) = joined.split_first_chunk::<4>()?;
        let (note, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        notes.push(note.to_vec());
        joined = rest;
    }
    Some(notes)
}

/// Computes the CRC-32C (CRC-32/ISCSI), which all checksums of a spool use.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Returns the checksum of two adjacent pieces from the checksums of the pieces, without reading
/// their bytes again.
pub(crate) fn combined_checksum(first: u32, second: u32, second_bytes: usize) -> u32 {
    crc_fast::checksum_combine(crc_fast::CrcAlgorithm::Crc32Iscsi, first.into(), second.into(), second_bytes as u64)
        as u32
}

pub(crate) fn seal(bytes: &mut [u8], seed: u32) {
    let crc = checksum(&bytes[4..]) ^ seed;
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("offsets are of fixed parts, whose length is checked"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("offsets are of fixed parts, whose length is checked"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> SegmentHeader {
        SegmentHeader { revision: 4, generation: 3, salt: 77, next_id: 9, ..SegmentHeader::unused(5, 1 << 16) }
    }

    #[test]
    fn a_use_has_a_seed_of_its_own() {
        let oldest = OldestUse { generation: 2, first_id: 7 };
        let new = NewUse { generation: 4, next_id: 12, previous_end: 8192, oldest, is_synced: true };
        let begun = header().begin(&new);
        assert_eq!(
            (begun.state, begun.revision, begun.generation, begun.previous_end, begun.oldest),
            (SegmentHeaderState::Used, 5, 4, 8192, oldest)
        );
        assert_eq!((begun.file_bytes, begun.spool), (1 << 16, 5), "they are the file's, and not the use's");
        assert_ne!(begun.seed(), header().seed());
        assert_ne!(begun.offset(), header().offset());
        let after = OldestUse { generation: 5, first_id: 15 };
        let ended = SegmentHeader { revision: 6, next_id: 20, previous_end: 0, oldest: after, ..begun };
        assert_eq!(begun.end(20, after), SegmentHeader { state: SegmentHeaderState::Free, ..ended });
        assert_eq!(HeaderSlot::decode(&begun.encode()), HeaderSlot::Valid(begun));
    }

    #[test]
    fn any_changed_octet_makes_a_header_illegible_or_newer() {
        let good = header().encode();
        assert_eq!(HeaderSlot::decode(&good), HeaderSlot::Valid(header()));
        for at in 0..HEADER_BYTES {
            let mut bad = good;
            bad[at] ^= 0x55;
            assert_ne!(HeaderSlot::decode(&bad), HeaderSlot::Valid(header()));
            assert_eq!(matches!(HeaderSlot::decode(&bad), HeaderSlot::Newer(_)), (8..12).contains(&at), "{at}");
        }
    }

    proptest! {
        #[test]
        fn batches_are_read_as_written(records: u32, bytes in 32u64..5000, seed: u32, at in 0usize..32, flip in 1u8..) {
            let batch = BatchHeader { records, bytes, synced: 8192 };
            let mut written = batch.encode(seed);
            prop_assert_eq!(BatchHeader::decode(&written, seed, 8192, 8192 + bytes), Some(batch));
            prop_assert_eq!(BatchHeader::decode(&written, seed, 8192, 8191 + bytes), None);
            prop_assert_eq!(BatchHeader::decode(&written, seed, 4096, 1 << 20), None);
            prop_assert_eq!(BatchHeader::decode(&written, seed ^ 1, 8192, 1 << 20), None);
            written[at] ^= flip;
            prop_assert_eq!(BatchHeader::decode(&written, seed, 8192, 1 << 20), None);
        }

        #[test]
        fn records_are_read_as_written(
            id in 0..=MAX_COUNTER,
            received_ns: u64,
            body_bytes: u32,
            envelope: Vec<u8>,
            notes: Vec<Vec<u8>>,
            seed: u32,
            at: prop::sample::Index,
        ) {
            let joined = join_notes(&notes);
            prop_assert_eq!(split_notes(&joined), Some(notes));
            let record = RecordHeader {
                kind: RecordKind::Moved, id: Id(id), received_ns, body_bytes, body_crc: 5,
                envelope_bytes: envelope.len() as u32, notes_bytes: joined.len() as u32,
            };
            let mut written = Vec::new();
            record.encode(&envelope, &joined, seed, &mut written);
            prop_assert_eq!(written.len() as u64, record.metadata_bytes());
            prop_assert_eq!(RecordHeader::decode(&written), Some(record));
            prop_assert!(RecordHeader::is_intact(&written, seed) && !RecordHeader::is_intact(&written, !seed));
            let at = at.index(written.len());
            written[at] ^= 1;
            prop_assert!(!RecordHeader::is_intact(&written, seed));
        }

        #[test]
        fn no_octets_make_a_reader_panic(bytes: Vec<u8>, seed: u32) {
            _ = split_notes(&bytes);
            _ = RecordHeader::decode(&bytes);
            _ = RecordHeader::is_intact(&bytes, seed);
            _ = BatchHeader::decode(&bytes, seed, 8192, 1 << 20);
        }
    }
}
