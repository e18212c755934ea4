//! Opens a spool's directory: repairs the log, and copies damaged bytes to the quarantine.
use crate::damage::Damage;
use crate::disk::Disk;
use crate::index::MessageIndex;
use crate::load::{LoadedSpool, load};
use crate::log::ResumePoint;
use crate::newest::NewestFile;
use crate::segment_pool::SegmentPool;
use crate::{Durability, Error, Id, OnDamage, Options, quarantine};
use std::sync::Arc;

pub(crate) struct RecoveredState {
    pub(crate) index: MessageIndex,
    pub(crate) segment_pool: SegmentPool,
    pub(crate) resume_point: ResumePoint,
    pub(crate) cut_bytes: u64,
    pub(crate) damage: Vec<Damage>,
    pub(crate) damaged_bodies: Vec<Id>,
    pub(crate) unproven: Vec<Id>,
}

/// Reads the whole spool, and repairs it. Changes only what the repair requires: copies damaged
/// bytes, and removes files that cannot be used.
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
    // Write messages again if nothing proves that they were synced. If a sync of an earlier process failed, Linux has
    // marked the pages as clean, so the syncs above succeed although the data is not on the disk.
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

/// Syncs all file names, headers and batches that were read. A killed process may have left them only in the page
/// cache, where a power failure would destroy them.
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
