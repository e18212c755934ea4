//! Fuzz check that opens arbitrary bytes as a segment file of a spool. The spool must open or refuse the file without a
//! panic, and must give the same result each time.
use crate::disk::Disk;
use crate::faulty::FaultyDisk;
use crate::format::{
    BATCH_HEADER_BYTES, BATCHES_OFFSET, BLOCK, BatchHeader, HEADER_BYTES, HeaderSlot, RECORD_HEADER_BYTES,
    RecordHeader, SegmentHeader, checksum, seal,
};
use crate::index::SharedIndex;
use crate::recovery::recover;
use crate::{Backlog, Error, Options};
use std::sync::Arc;

const BODY_CRC_OFFSET: usize = 36;

pub fn check(data: &[u8]) {
    // Try the bytes as they are, and also with correct checksums. With wrong checksums, most of the bytes would never
    // be parsed.
    for octets in [data.to_vec(), with_checksums(data)] {
        let first = try_octets(&octets);
        let again = try_octets(&octets);
        assert_eq!(format!("{first:?}"), format!("{again:?}"));
    }
}

/// Opens a spool whose only segment file contains `octets`, and returns the number of its unfinished messages.
fn try_octets(octets: &[u8]) -> Result<u64, Error> {
    let disk = FaultyDisk::new();
    disk.put("segment-00000000", octets);
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let recovered = recover(&disk, &Options::default().fitted())?;
    let index = Arc::new(SharedIndex::new(recovered.index));
    Backlog::new(Arc::clone(&index), &recovered.damaged_bodies).try_fold(0, |messages, left| left.map(|_| messages + 1))
}

/// Corrects all checksums that can be found in the bytes, so that the fuzzer also tests the code that runs after the
/// checks.
fn with_checksums(octets: &[u8]) -> Vec<u8> {
    let mut octets = octets.to_vec();
    let Some(header) = octets.first_chunk_mut::<HEADER_BYTES>() else { return octets };
    SegmentHeader::seal(header);
    let HeaderSlot::Valid(header) = HeaderSlot::decode(header) else { return octets };
    let mut at = BATCHES_OFFSET as usize;
    let length = octets.len() as u64;
    while let Some(batch) = octets.get_mut(at..).filter(|rest| rest.len() >= BATCH_HEADER_BYTES) {
        seal(&mut batch[..BATCH_HEADER_BYTES], header.seed());
        let Some(read) = BatchHeader::decode(batch, header.seed(), at as u64, length) else { return octets };
        let mut rest = batch.get_mut(BATCH_HEADER_BYTES..(read.bytes as usize).min(batch.len())).unwrap_or_default();
        while let Some(record) = RecordHeader::decode(rest).filter(|record| record.bytes() <= rest.len() as u64) {
            let (head, body) = rest.split_at_mut(record.metadata_bytes() as usize);
            let body_crc = checksum(&body[..record.body_bytes as usize]);
            head[BODY_CRC_OFFSET..RECORD_HEADER_BYTES].copy_from_slice(&body_crc.to_le_bytes());
            seal(head, header.seed());
            rest = &mut rest[record.bytes() as usize..];
        }
        at = (at + read.bytes as usize).next_multiple_of(BLOCK as usize);
    }
    octets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NewMessage, Spool};
    use proptest::prelude::*;

    /// Returns a segment with four messages and a note on each of them. One of the messages is done.
    fn octets() -> Vec<u8> {
        let disk = FaultyDisk::new();
        let options = Options { segment_bytes: 1 << 16, ..Options::default() };
        let (spool, _) = Spool::open(Arc::new(disk.clone()), options).unwrap();
        for bytes in [0, 10, 300, 5000] {
            let draft = NewMessage { received_ns: 1, envelope: vec![b'e'; 9], body: vec![b'b'; bytes].into() };
            let id = spool.store(draft).wait().unwrap().id();
            spool.note(id, b"a note");
            if bytes == 10 {
                spool.done(id);
            }
        }
        spool.close();
        disk.octets("segment-00000000").unwrap()
    }

    #[test]
    fn what_is_whole_has_its_checksums_already() {
        let octets = octets();
        assert_eq!(try_octets(&octets).unwrap(), 3);
        // Compare only the length, because the checksums may differ. `with_checksums` takes the checksum seed from the
        // first header block, but `octets` were written with the seed of the newer header in the second block.
        assert_eq!(with_checksums(&octets).len(), octets.len());
    }

    proptest! {
        #[test]
        fn any_octets_are_opened_or_refused(
            changes in
                prop::collection::vec((prop_oneof![0usize..96, 4096usize..4192, 8192usize..30_000], any::<u8>()), 0..8),
            length in 0usize..40_000,
            whole: bool,
        ) {
            let mut octets = octets();
            // Copy the current header to the first block, because `with_checksums` takes the seed for the batches from
            // there. Set the copy's revision to 2, because a header in the first block must have an even revision.
            octets.copy_within(4096..4192, 0);
            octets[16] = 2;
            changes.into_iter().for_each(|(at, octet)| octets[at] = octet);
            if !whole {
                octets.truncate(length);
            }
            check(&octets);
        }
    }
}
