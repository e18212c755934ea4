//! When the spool is opened, copies all damaged bytes to its subdirectory `quarantine`, so that an administrator can
//! examine them later.
use crate::disk::{Disk, DiskFile};
use crate::format::BLOCK;
use crate::load::LoadedSpool;
use crate::scan::read_lossy;
use crate::{Damage, DamageKind, Error};
use std::io::{self, IoSlice};
use std::sync::Arc;

const COPY_CHUNK_BYTES: u64 = 1 << 20;

/// Returns the path to which damaged bytes are copied, relative to the spool's directory. The file's name consists of
/// the segment's name, its checksum seed, the offset, and the kind of damage. Only the copy of a message's damaged body
/// is named after the message.
fn copy_name(damage: &Damage, reading: &LoadedSpool) -> String {
    if let (DamageKind::Body, [id]) = (damage.kind, &damage.messages[..]) {
        // Name the copy after the message and not after its offset, because the offset changes when
        // compaction moves the message.
        return format!("quarantine/message-{id}");
    }
    let used_segment = reading.used.iter().find(|(segment, _)| segment.name == damage.segment);
    let seed = used_segment.map_or(0, |(segment, _)| segment.seed);
    let what = match damage.kind {
        DamageKind::Header => "header",
        DamageKind::MissingSegment | DamageKind::MissingNewest => "missing",
        DamageKind::DoubledSegment => "doubled",
        DamageKind::Records => "records",
        DamageKind::Body => "body",
        DamageKind::Shortened => "shortened",
        DamageKind::Foreign => "foreign",
        DamageKind::TornEnd | DamageKind::UnsyncedEnd => "torn",
    };
    format!("quarantine/{}-{seed:08x}-{}-{what}", damage.segment, damage.offset)
}

fn damaged_file(disk: &dyn Disk, damage: &Damage, reading: &LoadedSpool) -> io::Result<Arc<dyn DiskFile>> {
    let used_segment = reading.used.iter().find(|(segment, _)| segment.name == damage.segment);
    let illegible = reading.illegible.iter().find(|(name, _)| *name == damage.segment);
    let file = used_segment.map(|(segment, _)| &segment.file).or(illegible.map(|(_, file)| file));
    file.map_or_else(|| disk.open(&damage.segment), |file| Ok(Arc::clone(file)))
}

/// Marks damage as known if an earlier start has left a complete copy of it in the quarantine, so
/// that it is not reported as new.
pub(crate) fn mark_known(disk: &dyn Disk, reading: &mut LoadedSpool) {
    let is_copied = |damage| find_copy(disk, damage, reading).is_ok_and(|(_, state)| state == CopyState::Whole);
    let known: Vec<bool> = reading.damage.iter().map(is_copied).collect();
    for (damage, is_known) in reading.damage.iter_mut().zip(known) {
        damage.is_known = is_known;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CopyState {
    Missing,
    /// The copy is incomplete, because a crash interrupted the copying.
    Partial,
    Whole,
    /// The quarantine has a copy with this name, but of other damage. This can happen because a new segment may get the
    /// name of a lost or removed one.
    Foreign,
}

/// Finds the copy of damaged bytes, and returns its name and state. If a copy of other bytes already has this name,
/// appends a number to the name.
fn find_copy(disk: &dyn Disk, damage: &Damage, reading: &LoadedSpool) -> io::Result<(String, CopyState)> {
    let file = damaged_file(disk, damage, reading)?;
    let first = copy_name(damage, reading);
    let mut name = first.clone();
    let mut number = 1;
    loop {
        let state = match disk.open(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => CopyState::Missing,
            copy => compare_copy(damage, &*file, &*copy?)?,
        };
        if state != CopyState::Foreign {
            return Ok((name, state));
        }
        number += 1;
        name = format!("{first}-{number}");
    }
}

fn compare_copy(damage: &Damage, file: &dyn DiskFile, copy: &dyn DiskFile) -> io::Result<CopyState> {
    let bytes = copy.bytes()?;
    if damage.kind == DamageKind::Body && bytes > 0 {
        return Ok(CopyState::Whole);
    }
    let expected = end_of(damage, file)? - damage.offset.min(file.bytes()?);
    // Accept a copy that contains more than the damaged bytes. An earlier start may have found the whole segment
    // unreadable and copied all of it under the same name, even if only the header is damaged now.
    let mut is_equal = bytes >= expected;
    let mut is_part = bytes <= expected;
    let mut one = Vec::new();
    let mut other = Vec::new();
    for (at, length) in parts(damage, file)? {
        one.resize(length, 0);
        other.resize(length, 0);
        read_lossy(file, &mut one, at)?;
        let read_bytes = read_lossy(copy, &mut other, at - damage.offset)?;
        is_equal &= one == other;
        // Accept zeros in a partial copy: a crash may have interrupted the copying before these
        // bytes were synced.
        is_part &= other[..read_bytes].iter().zip(&one).all(|(copied, octet)| *copied == 0 || copied == octet);
    }
    Ok(match (is_equal, is_part) {
        (true, _) => CopyState::Whole,
        (false, true) => CopyState::Partial,
        (false, false) => CopyState::Foreign,
    })
}

fn end_of(damage: &Damage, file: &dyn DiskFile) -> io::Result<u64> {
    Ok((damage.offset + damage.bytes).min(file.bytes()?))
}

/// Splits the damage into parts of at most [`COPY_CHUNK_BYTES`], so that a whole segment need not
/// fit into memory. Returns the offset and length of each part.
fn parts(damage: &Damage, file: &dyn DiskFile) -> io::Result<impl Iterator<Item = (u64, usize)> + use<>> {
    let end = end_of(damage, file)?;
    let parts = (damage.offset..end).step_by(COPY_CHUNK_BYTES as usize);
    Ok(parts.map(move |at| (at, (end - at).min(COPY_CHUNK_BYTES) as usize)))
}

/// Copies the damaged bytes, and returns when the copies are durable. Fails if damage cannot be copied, so that the
/// spool is not changed before its damaged bytes are safe. The torn end of the log that a crash leaves behind is an
/// exception: if it cannot be copied, the spool is opened nevertheless.
pub(crate) fn copy_damage(disk: &dyn Disk, reading: &LoadedSpool) -> Result<(), Error> {
    let mut is_any = false;
    // Skip a missing file, because it has no bytes to copy.
    let has_bytes = |damage: &&Damage| damage.kind != DamageKind::MissingNewest;
    for damage in reading.damage.iter().filter(|damage| !damage.is_known).filter(has_bytes) {
        match copy_one(disk, damage, reading) {
            Ok(()) => is_any = true,
            Err(_) if matches!(damage.kind, DamageKind::TornEnd | DamageKind::UnsyncedEnd) => {}
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
    let (name, state) = find_copy(disk, damage, reading)?;
    if state == CopyState::Partial {
        disk.remove(&name)?;
    }
    let file = damaged_file(disk, damage, reading)?;
    let copy = disk.create(&name)?;
    let result = write_copy(damage, &*file, &*copy);
    if result.is_err() {
        _ = disk.remove(&name);
    }
    result
}

fn write_copy(damage: &Damage, file: &dyn DiskFile, copy: &dyn DiskFile) -> io::Result<()> {
    let mut bytes = vec![0; BLOCK as usize];
    for (at, length) in parts(damage, file)? {
        bytes.resize(length, 0);
        read_lossy(file, &mut bytes, at)?;
        copy.write_at(&mut [IoSlice::new(&bytes)], at - damage.offset)?;
    }
    copy.sync_data()
}
