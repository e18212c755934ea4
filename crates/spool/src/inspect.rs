//! Reads a spool from outside as opening it would, but changes nothing.
use crate::disk::ReadOnlyDisk;
use crate::index::SharedIndex;
use crate::load::load;
use crate::{Backlog, Damage, Error, Id, format, quarantine};
use std::path::Path;
use std::sync::Arc;

/// The content of a spool, as opening it would find it.
///
/// While this lives, no relay can open the spool: it does not wait, and reports that another process has it.
pub struct Inspection {
    /// All segments, in the order of the log; after them those that are free or hold nothing.
    pub segments: Vec<SegmentInfo>,
    /// All damage, in no particular order.
    pub damage: Vec<Damage>,
    /// Number of bytes that a crash has torn at the end of the log: no message in them was answered 250.
    pub cut_bytes: u64,
    index: Arc<SharedIndex>,
    damaged_bodies: Vec<Id>,
    _lock: Box<dyn Send + Sync>,
}

/// A file of a spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its name in the directory.
    pub name: String,
    /// Its state.
    pub state: SegmentState,
    /// Its length.
    pub bytes: u64,
    /// Number of messages in it that are not done.
    pub messages: u64,
}

/// States of a file of a spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// It holds batches.
    Used {
        /// The number of this use.
        generation: u64,
        /// End of its batches.
        end: u64,
    },
    /// Nothing in it is live.
    Free,
    /// The process ended while this file was being made. It holds nothing.
    Unfinished,
    /// It cannot be read at all.
    Illegible,
}

/// A message that is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedMessage {
    /// Its number.
    pub id: Id,
    /// Time at which it was received, in nanoseconds of Unix time.
    pub received_ns: u64,
    /// Everything stored of it besides its content.
    pub envelope: Vec<u8>,
    /// Its notes, oldest first.
    pub notes: Vec<Vec<u8>>,
    /// Its content.
    pub body: InspectedBody,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InspectedBody {
    /// As it was written.
    Sound(Arc<[u8]>),
    /// Not as it was written: the parts that cannot be read are zeros.
    Damaged(Arc<[u8]>),
}

/// Reads a spool without changing it. It reads everything, as opening does.
///
/// # Errors
/// [`Error::Locked`] if a relay has it open; [`Error::NewerVersion`] if a later version has written it; [`Error::Disk`] if it
/// cannot be read.
pub fn inspect(directory: &Path) -> Result<Inspection, Error> {
    let disk = ReadOnlyDisk::new(directory)?;
    let lock = disk.lock_shared().map_err(Error::of_lock)?;
    let mut reading = load(&disk)?;
    quarantine::mark_known(&disk, &mut reading);
    let count_in = |order| reading.index.message_count(order);
    let used = reading.used.iter().map(|(segment, end)| SegmentInfo {
        name: segment.name.clone(),
        state: SegmentState::Used { generation: segment.header.generation, end: *end },
        bytes: segment.bytes,
        messages: count_in(segment.position),
    });
    let mut segments: Vec<SegmentInfo> = used.collect();
    let other = |name: &str, state, bytes| SegmentInfo { name: name.to_owned(), state, bytes, messages: 0 };
    segments.extend(reading.free_segments.iter().map(|spare| other(&spare.name, SegmentState::Free, spare.bytes)));
    for name in &reading.unfinished {
        segments.push(other(name, SegmentState::Unfinished, crate::Disk::open(&disk, name)?.bytes()?));
    }
    for (name, file) in &reading.illegible {
        segments.push(other(name, SegmentState::Illegible, file.bytes()?));
    }
    Ok(Inspection {
        segments,
        damage: reading.damage,
        cut_bytes: reading.cut_bytes,
        index: Arc::new(SharedIndex::new(reading.index)),
        damaged_bodies: reading.damaged_bodies,
        _lock: lock,
    })
}

impl Inspection {
    /// Reports whether no damage requires an administrator to act; see [`Damage::is_alarming`].
    pub fn is_sound(&self) -> bool {
        !self.damage.iter().any(Damage::is_alarming)
    }

    /// Returns all messages that are not done, in the order of the log; each is read when it is asked for.
    pub fn messages(&self) -> InspectedMessages<'_> {
        let backlog = Backlog::new(Arc::clone(&self.index), &self.damaged_bodies);
        InspectedMessages { inspection: self, backlog }
    }

    fn body(&self, id: Id) -> Result<InspectedBody, Error> {
        self.index.read(id, |locations| {
            let segment = &locations.segment;
            let location = locations.record;
            let head = segment.read_metadata(location)?.ok_or_else(|| segment.damage_error(location.offset()))?;
            let body = segment.read_body_lossy(location, &head.record);
            let is_sound = format::checksum(&body) == head.record.body_crc;
            Ok(if is_sound { InspectedBody::Sound(body) } else { InspectedBody::Damaged(body) })
        })
    }
}

/// The messages of an [`Inspection`].
pub struct InspectedMessages<'a> {
    inspection: &'a Inspection,
    backlog: Backlog,
}

impl InspectedMessages<'_> {
    /// Number of messages still to come.
    pub fn len(&self) -> usize {
        self.backlog.len()
    }

    /// Reports whether no message is still to come.
    pub fn is_empty(&self) -> bool {
        self.backlog.is_empty()
    }
}

impl Iterator for InspectedMessages<'_> {
    /// A message, or the reason why it cannot be read any more.
    type Item = Result<InspectedMessage, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let left = match self.backlog.next()? {
            Ok(left) => left,
            Err(error) => return Some(Err(error)),
        };
        let body = self.inspection.body(left.id);
        Some(body.map(|body| InspectedMessage {
            id: left.id,
            received_ns: left.received_ns,
            envelope: left.envelope,
            notes: left.notes,
            body,
        }))
    }
}

impl std::fmt::Debug for Inspection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { segments, damage, cut_bytes, .. } = self;
        let mut all = f.debug_struct("Inspection");
        all.field("segments", segments).field("damage", damage).field("cut_bytes", cut_bytes);
        all.finish_non_exhaustive()
    }
}
