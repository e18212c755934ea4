//! Opens a spool's directory: repairs the log, and copies damaged bytes to the quarantine.
use crate::damage::Damage;
use crate::disk::Disk;
use crate::faulty::FaultyDisk;
use crate::format::{
    BATCH_HEADER_BYTES, BATCHES_OFFSET, BLOCK, BODY_CRC_OFFSET, BatchHeader, HEADER_BYTES, HeaderSlot,
    RECORD_HEADER_BYTES, RecordHeader, SegmentHeader, checksum, seal,
};
use crate::index::{MessageIndex, SharedIndex};
use crate::load::{LoadedSpool, load};
use crate::log::ResumePoint;
use crate::newest::NewestFile;
use crate::segment_pool::SegmentPool;
use crate::{Backlog, Durability, Error, Id, OnDamage, Options, quarantine};
use std::sync::Arc;

pub(crate) struct RecoveredState {
    pub(crate) index: MessageIndex,
    pub(crate) segment_pool: SegmentPool,
    pub(crate) resume_point: ResumePoint,
    pub(crate) cut_bytes: u64,
    pub(crate) damage: Vec<Damage>,
    /// Messages whose envelope is intact but whose body is damaged.
    pub(crate) damaged_bodies: Vec<Id>,
    /// Messages that must be written again, because nothing proves that their sync succeeded.
    pub(crate) unproven: Vec<Id>,
}

/// Reads the whole spool. Changes only what the repair requires: copies damaged bytes, and removes
/// unfinished files.
pub(crate) fn recover(disk: &Arc<dyn Disk>, options: &Options) -> Result<RecoveredState, Error> {
    let mut reading = load(&**disk)?;
    quarantine::mark_known(&**disk, &mut reading);
    let is_refused = |damage: &&Damage| damage.is_alarming() && !damage.is_known;
    if options.on_damage == OnDamage::Refuse && reading.damage.iter().any(|damage| is_refused(&damage)) {
        return Err(Error::DamageRefused(reading.damage.iter().filter(is_refused).cloned().collect()));
    }
    sync(&**disk, &reading)?;
    quarantine::copy_damage(&**disk, &reading)?;
    reading.drop_sparse_segments();
    // If a sync failed in an earlier process, Linux has marked the pages as clean. They are then
    // read from the cache, and the syncs above succeed, although the media lacks the data.
    // Therefore all messages without a proven sync are written again.
    let unproven =
        if options.durability == Durability::Sync { std::mem::take(&mut reading.unproven) } else { Vec::new() };
    if !unproven.is_empty() {
        reading.resume_point.previous_end = 0;
    }
    let (newest, must_record) = reading.newest_record();
    let LoadedSpool {
        index: live,
        used,
        free_segments: spares,
        unfinished,
        illegible,
        resume_point: resumption,
        damage,
        damaged_bodies,
        cut_bytes,
        next_file,
        spool,
        ..
    } = reading;
    let mut segment_pool = SegmentPool {
        disk: Arc::clone(disk),
        spool,
        newest,
        newest_file: NewestFile::new(disk),
        segment_bytes: options.segment_bytes,
        max_bytes: options.max_bytes,
        free_segments: spares,
        used_bytes: used.iter().map(|(segment, _)| segment.bytes).sum(),
        next_file,
        is_preallocating: false,
        has_failed: false,
        foreign_file: None,
        is_closed: false,
    };
    if must_record {
        segment_pool.record_newest()?;
    }
    unfinished.iter().try_for_each(|name| disk.remove(name))?;
    illegible.iter().try_for_each(|(name, _)| disk.remove(name))?;
    segment_pool.remove_odd_sizes()?;
    Ok(RecoveredState {
        index: live,
        segment_pool,
        resume_point: resumption,
        cut_bytes,
        damage,
        damaged_bodies,
        unproven,
    })
}

/// Makes everything durable that was read: names, headers and batches. Writes of a killed process
/// may exist only in the page cache, but from here on the spool relies on them.
fn sync(disk: &dyn Disk, reading: &LoadedSpool) -> Result<(), Error> {
    disk.sync_directory()?;
    for (segment, _) in &reading.used {
        segment.file.sync_data()?;
    }
    for spare in &reading.free_segments {
        spare.file.sync_data()?;
    }
    Ok(())
}

/// For fuzzing. Reads any bytes as a segment, and returns the number of messages in it.
#[doc(hidden)]
pub(crate) fn try_octets(octets: &[u8]) -> Result<u64, Error> {
    let disk = FaultyDisk::new();
    disk.put("segment-00000000", octets);
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let recovered = recover(&disk, &Options::default().fitted())?;
    let index = Arc::new(SharedIndex::new(recovered.index));
    Backlog::new(Arc::clone(&index), &recovered.damaged_bodies).try_fold(0, |messages, left| left.map(|_| messages + 1))
}

/// For fuzzing. Corrects all checksums that can be found in the bytes, so that the fuzzer reaches
/// the code behind the checks.
#[doc(hidden)]
pub(crate) fn with_checksums(octets: &[u8]) -> Vec<u8> {
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

    /// Returns a segment with messages, notes, and one message that is done.
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
        // The first block has the header of the free segment, and the second block the header with
        // the seed of the batches.
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
            // Make the header with the right seed the one in use.
            octets.copy_within(4096..4192, 0);
            octets[16] = 2;
            changes.into_iter().for_each(|(at, octet)| octets[at] = octet);
            if !whole {
                octets.truncate(length);
            }
            crate::checks::segment::check(&octets);
        }
    }
}
