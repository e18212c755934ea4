//! Collects records into a batch, which is written with one system call. Small parts are copied
//! into one buffer, and large bodies are passed to the call without a copy.
use crate::format::{BATCH_HEADER_BYTES, BLOCK, BatchHeader, RecordHeader};
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

/// Bodies up to this length in bytes are copied into the buffer, because a copy is cheaper than
/// passing another buffer to the system call.
const MAX_COPIED_BYTES: usize = 4096;

pub(crate) struct BatchBuilder {
    bytes: Vec<u8>,
    /// Offset up to which `bytes` has been added to `pieces`. The bytes after this offset are added as one piece when a
    /// large body or the end of the batch follows.
    covered_end: usize,
    pieces: Vec<BatchPiece>,
    length: u64,
    records: u32,
}

enum BatchPiece {
    Own(Range<usize>),
    Body(Arc<[u8]>),
}

pub(crate) struct RecordParts<'a> {
    pub(crate) record: RecordHeader,
    pub(crate) envelope: &'a [u8],
    pub(crate) notes: &'a [u8],
    pub(crate) body: Option<&'a Arc<[u8]>>,
}

impl Default for BatchBuilder {
    fn default() -> Self {
        let bytes = vec![0; BATCH_HEADER_BYTES];
        Self { bytes, covered_end: 0, pieces: Vec::new(), length: BATCH_HEADER_BYTES as u64, records: 0 }
    }
}

impl BatchBuilder {
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records == 0
    }

    pub(crate) fn push(&mut self, content: &RecordParts<'_>, seed: u32) -> u64 {
        let at = self.length;
        content.record.encode(content.envelope, content.notes, seed, &mut self.bytes);
        match content.body {
            Some(body) if body.len() > MAX_COPIED_BYTES => {
                self.piece();
                self.pieces.push(BatchPiece::Body(Arc::clone(body)));
            }
            Some(body) => self.bytes.extend_from_slice(body),
            None => {}
        }
        let padding = content.record.bytes() - content.record.metadata_bytes() - u64::from(content.record.body_bytes);
        self.bytes.resize(self.bytes.len() + padding as usize, 0);
        self.length += content.record.bytes();
        self.records += 1;
        at
    }

    fn piece(&mut self) {
        if self.covered_end < self.bytes.len() {
            self.pieces.push(BatchPiece::Own(self.covered_end..self.bytes.len()));
            self.covered_end = self.bytes.len();
        }
    }

    /// Pads the batch to whole blocks, so that no later write touches a block of this batch.
    /// Returns the pieces, which are written with one call.
    pub(crate) fn finish(&mut self, seed: u32, synced: u64) -> Vec<IoSlice<'_>> {
        let batch = BatchHeader { records: self.records, bytes: self.length, synced };
        self.bytes[..BATCH_HEADER_BYTES].copy_from_slice(&batch.encode(seed));
        let padding = self.length.next_multiple_of(BLOCK) - self.length;
        self.bytes.resize(self.bytes.len() + padding as usize, 0);
        self.piece();
        let slice_of = |piece| match piece {
            &BatchPiece::Own(Range { start, end }) => IoSlice::new(&self.bytes[start..end]),
            BatchPiece::Body(body) => IoSlice::new(body),
        };
        self.pieces.iter().map(slice_of).collect()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.resize(BATCH_HEADER_BYTES, 0);
        self.pieces.clear();
        (self.covered_end, self.length, self.records) = (0, BATCH_HEADER_BYTES as u64, 0);
        self.bytes.shrink_to(MAX_KEPT_BYTES);
    }
}

/// Capacity in bytes above which the buffer is shrunk after a batch, so that a burst does not
/// occupy memory forever.
const MAX_KEPT_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Id;
    use crate::format::{RECORD_HEADER_BYTES, RecordKind, checksum};

    fn joined(pieces: &[IoSlice<'_>]) -> Vec<u8> {
        pieces.iter().flat_map(|piece| piece.to_vec()).collect()
    }

    #[test]
    fn large_bodies_are_not_copied() {
        let large: Arc<[u8]> = vec![7; 10_001].into();
        let small: Arc<[u8]> = vec![8; 10].into();
        let mut building = BatchBuilder::default();
        for body in [&small, &large, &small] {
            let record =
                RecordHeader { body_bytes: body.len() as u32, ..RecordHeader::bare(RecordKind::Stored, Id(1)) };
            building.push(&RecordParts { record, envelope: b"", notes: b"", body: Some(body) }, 3);
        }
        let length = building.length();
        assert_eq!(length, 32 + 3 * RECORD_HEADER_BYTES as u64 + 2 * 16 + 10_008);
        let pieces = building.finish(3, 0);
        assert_eq!(pieces.len(), 3);
        assert!(std::ptr::eq(&raw const pieces[1][0], &raw const large[0]));
        let all = joined(&pieces);
        assert_eq!(all.len() as u64, length.next_multiple_of(BLOCK));
        assert_eq!(
            BatchHeader::decode(&all, 3, 8192, 1 << 20).map(|batch| (batch.records, batch.bytes)),
            Some((3, length))
        );
        let body_at = 32 + 2 * RECORD_HEADER_BYTES + 16;
        assert_eq!(checksum(&all[body_at..body_at + large.len()]), checksum(&large));
        building.clear();
        assert!(building.is_empty() && joined(&building.finish(0, 0)).len() == 4096);
    }
}
