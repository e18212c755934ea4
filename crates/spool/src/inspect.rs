//! Reads a spool in the same way as opening it would, but changes nothing.
use crate::disk::ReadOnlyDisk;
use crate::index::SharedIndex;
use crate::load::load;
use crate::{Backlog, Damage, Error, Id, format, quarantine};
use std::path::Path;
use std::sync::Arc;

/// Content of a spool, as opening the spool would find it.
///
/// As long as this value lives, no relay can open the spool. A relay that tries reports at once that another process
/// has the spool open.
pub struct Inspection {
    /// All segments in the order of the log, followed by the files that hold no messages.
    pub segments: Vec<SegmentInfo>,
    /// All damage that was found, in no particular order.
    pub damage: Vec<Damage>,
    /// Number of bytes that a crash has torn at the end of the log. If the spool syncs its log, no message in these
    /// bytes was answered 250.
    pub cut_bytes: u64,
    index: Arc<SharedIndex>,
    damaged_bodies: Vec<Id>,
    _lock: Box<dyn Send + Sync>,
}

/// A file of a spool, as the inspection found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Name of this segment's file in the spool's directory.
    pub name: String,
    /// State of the file, according to its header.
    pub state: SegmentState,
    /// Present length of the file in bytes.
    pub bytes: u64,
    /// Number of messages in the file that are not done.
    pub messages: u64,
}

/// State of a file of a spool, as its header and its batches show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// The segment belongs to the log, so it may hold messages that are not done.
    Used {
        /// Consecutive number that the segment got when the log began to use it.
        generation: u64,
        /// Offset in bytes at which the batches end.
        end: u64,
    },
    /// The segment holds no messages, and is ready for use.
    Free,
    /// The process ended while it was making this file. The file holds nothing.
    Unfinished,
    /// The file cannot be read as a segment, so opening the spool moves it to the quarantine.
    Illegible,
}

/// A message that is not done, with its envelope, notes and content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedMessage {
    /// Number of the message, which users see as 16 hexadecimal digits.
    pub id: Id,
    /// Time at which the message was received, in nanoseconds of Unix time.
    pub received_ns: u64,
    /// The bytes that were stored as [`NewMessage::envelope`](crate::NewMessage::envelope).
    pub envelope: Vec<u8>,
    /// Notes that [`Spool::note`](crate::Spool::note) has added to the message, from the oldest on.
    pub notes: Vec<Vec<u8>>,
    /// Content of the message, which may be damaged.
    pub body: InspectedBody,
}

/// Content of a message, and whether it is intact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InspectedBody {
    /// The content is undamaged, as its checksum shows.
    Sound(Arc<[u8]>),
    /// The content does not match its checksum. Parts that cannot be read are replaced by zeros.
    Damaged(Arc<[u8]>),
}

/// Reads a whole spool without changing it. This takes as long as opening the spool.
///
/// # Errors
/// Returns [`Error::Locked`] if a relay has the spool open, [`Error::NewerVersion`] if a later
/// version of mailrun has written it, and [`Error::Disk`] if it cannot be read.
pub fn inspect(directory: &Path) -> Result<Inspection, Error> {
    let disk = ReadOnlyDisk::new(directory)?;
    // Hold the lock as long as the result lives, because callers read messages from the files
    // later.
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
    /// Returns true if no damage requires an administrator to act (see [`Damage::is_alarming`]).
    pub fn is_sound(&self) -> bool {
        !self.damage.iter().any(Damage::is_alarming)
    }

    /// Returns all messages that are not done, in the order of the log. A message is read from the
    /// disk when the iterator reaches it.
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

/// Iterator over the messages of an [`Inspection`] that are not done, from
/// [`Inspection::messages`].
pub struct InspectedMessages<'a> {
    inspection: &'a Inspection,
    backlog: Backlog,
}

impl InspectedMessages<'_> {
    /// Returns the maximum number of messages that the iterator will still return.
    pub fn len(&self) -> usize {
        self.backlog.len()
    }

    /// Returns true if the iterator has reached its end.
    pub fn is_empty(&self) -> bool {
        self.backlog.is_empty()
    }
}

impl Iterator for InspectedMessages<'_> {
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
