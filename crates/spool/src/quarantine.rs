//! The directory `quarantine` beside the segments: copies of all bytes that were damaged when the spool was opened.
use crate::disk::{Disk, DiskFile};
use crate::format::BLOCK;
use crate::load::LoadedSpool;
use crate::scan::read_lossy;
use crate::{Damage, DamageKind, Error};
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Number of bytes copied at a time.
const COPY_CHUNK_BYTES: u64 = 1 << 20;

/// The name of a damage's copy: the segment's name, the seed of its use, the offset, and the kind of damage.
fn copy_name(damage: &Damage, reading: &LoadedSpool) -> String {
    if let (DamageKind::Body, [id]) = (damage.kind, &damage.messages[..]) {
        // A body keeps its number when it is moved.
        return format!("quarantine/message-{id}");
    }
    let used = reading.used.iter().find(|(segment, _)| segment.name == damage.segment);
    let seed = used.map_or(0, |(segment, _)| segment.seed);
    let what = match damage.kind {
        DamageKind::Header => "header",
        DamageKind::MissingSegment => "missing",
        DamageKind::DoubledSegment => "doubled",
        DamageKind::Records => "records",
        DamageKind::Body => "body",
        DamageKind::TornEnd => "torn",
    };
    format!("quarantine/{}-{seed:08x}-{}-{what}", damage.segment, damage.offset)
}

fn damaged_file(disk: &dyn Disk, damage: &Damage, reading: &LoadedSpool) -> io::Result<Arc<dyn DiskFile>> {
    let used = reading.used.iter().find(|(segment, _)| segment.name == damage.segment);
    let illegible = reading.illegible.iter().find(|(name, _)| *name == damage.segment);
    let known = used.map(|(segment, _)| &segment.file).or(illegible.map(|(_, file)| file));
    known.map_or_else(|| disk.open(&damage.segment), |file| Ok(Arc::clone(file)))
}

/// Marks the damage that already has a copy.
pub(crate) fn mark_known(disk: &dyn Disk, reading: &mut LoadedSpool) {
    let known: Vec<bool> =
        reading.damage.iter().map(|damage| is_copied(disk, damage, reading).unwrap_or(false)).collect();
    for (damage, is_known) in reading.damage.iter_mut().zip(known) {
        damage.is_known = is_known;
    }
}

fn is_copied(disk: &dyn Disk, damage: &Damage, reading: &LoadedSpool) -> io::Result<bool> {
    let copy = disk.open(&copy_name(damage, reading))?;
    if damage.kind == DamageKind::Body && copy.bytes()? > 0 {
        return Ok(true);
    }
    let file = damaged_file(disk, damage, reading)?;
    if copy.bytes()? != end_of(damage, &*file)? - damage.offset.min(file.bytes()?) {
        return Ok(false);
    }
    let mut one = Vec::new();
    let mut other = Vec::new();
    for (at, length) in parts(damage, &*file)? {
        one.resize(length, 0);
        other.resize(length, 0);
        read_lossy(&*file, &mut one, at)?;
        copy.read_at(&mut other, at - damage.offset)?;
        if one != other {
            return Ok(false);
        }
    }
    Ok(true)
}

fn end_of(damage: &Damage, file: &dyn DiskFile) -> io::Result<u64> {
    Ok((damage.offset + damage.bytes).min(file.bytes()?))
}

/// Returns offsets and lengths of the parts in which it is read.
fn parts(damage: &Damage, file: &dyn DiskFile) -> io::Result<impl Iterator<Item = (u64, usize)> + use<>> {
    let end = end_of(damage, file)?;
    let parts = (damage.offset..end).step_by(COPY_CHUNK_BYTES as usize);
    Ok(parts.map(move |at| (at, (end - at).min(COPY_CHUNK_BYTES) as usize)))
}

/// Copies the damaged bytes, and returns when the copies are durable. A torn end is copied if there is room; nothing is
/// done about other damage without a copy.
pub(crate) fn copy_damage(disk: &dyn Disk, reading: &LoadedSpool) -> Result<(), Error> {
    let mut is_any = false;
    for damage in reading.damage.iter().filter(|damage| !damage.is_known) {
        match copy_one(disk, damage, reading) {
            Ok(()) => is_any = true,
            Err(_) if damage.kind == DamageKind::TornEnd => _ = disk.remove(&copy_name(damage, reading)),
            Err(error) => {
                let file = copy_name(damage, reading);
                return Err(Error::QuarantineFailed { file, error: Arc::new(error) });
            }
        }
    }
    if is_any {
        disk.sync_directory()?;
    }
    Ok(())
}

fn copy_one(disk: &dyn Disk, damage: &Damage, reading: &LoadedSpool) -> io::Result<()> {
    let file = damaged_file(disk, damage, reading)?;
    let copy = disk.create(&copy_name(damage, reading))?;
    let mut bytes = vec![0; BLOCK as usize];
    for (at, length) in parts(damage, &*file)? {
        bytes.resize(length, 0);
        read_lossy(&*file, &mut bytes, at)?;
        copy.write_at(&mut [IoSlice::new(&bytes)], at - damage.offset)?;
    }
    copy.sync_data()
}
