//! Inspection of a spool from outside: read as opening it would, without a change.
use crate::disk::ReadOnlyDisk;
use crate::live::SharedLive;
use crate::reading::read;
use crate::{Backlog, Damage, Error, Id, format, quarantine};
use std::path::Path;
use std::sync::Arc;

/// The content of a spool, as opening it would find it.
///
/// While this lives, no relay can open the spool: it does not wait, and reports that another process has it.
pub struct Inspection {
    /// All segments, in the order of the log; after them those that are free or hold nothing.
    pub segments: Vec<Segment>,
    /// All damage, in no particular order.
    pub damage: Vec<Damage>,
    /// Number of bytes that a crash has torn at the end of the log: no message in them was answered 250.
    pub cut_bytes: u64,
    live: Arc<SharedLive>,
    damaged_bodies: Vec<Id>,
    _lock: Box<dyn Send + Sync>,
}

/// A file of a spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
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
        use_number: u64,
        /// End of its batches.
        end: u64,
    },
    /// Nothing in it counts.
    Free,
    /// It was being made when the process ended, and holds nothing.
    Unfinished,
    /// It cannot be read at all.
    Illegible,
}

/// A message that is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its number.
    pub id: Id,
    /// Time at which it was received, in nanoseconds of Unix time.
    pub received_ns: u64,
    /// Everything stored of it besides its content.
    pub envelope: Vec<u8>,
    /// Its notes, oldest first.
    pub notes: Vec<Vec<u8>>,
    /// Its content.
    pub body: Body,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// As it was written.
    Sound(Arc<[u8]>),
    /// Not as it was written: the parts that cannot be read are zeros.
    Damaged(Arc<[u8]>),
}

/// Reads a spool without changing it. It reads everything, as opening does.
///
/// # Errors
/// [`Error::Held`] if a relay has it open; [`Error::Newer`] if a later version has written it; [`Error::Disk`] if it
/// cannot be read.
pub fn inspect(directory: &Path) -> Result<Inspection, Error> {
    let disk = ReadOnlyDisk::new(directory);
    let lock = disk.lock_shared()?;
    let mut reading = read(&disk)?;
    quarantine::compare(&disk, &mut reading);
    let count_in = |order| reading.live.count_in(order);
    let used = reading.used.iter().map(|(segment, end)| Segment {
        name: segment.name.clone(),
        state: SegmentState::Used { use_number: segment.header.use_number, end: *end },
        bytes: segment.bytes,
        messages: count_in(segment.order),
    });
    let mut segments: Vec<Segment> = used.collect();
    let other = |name: &str, state, bytes| Segment { name: name.to_owned(), state, bytes, messages: 0 };
    segments.extend(reading.spares.iter().map(|spare| other(&spare.name, SegmentState::Free, spare.bytes)));
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
        live: Arc::new(SharedLive::new(reading.live)),
        damaged_bodies: reading.damaged_bodies,
        _lock: lock,
    })
}

impl Inspection {
    /// Reports whether no damage costs anything.
    pub fn is_sound(&self) -> bool {
        !self.damage.iter().any(Damage::is_alarming)
    }

    /// Returns all messages that are not done, in the order of the log; each is read when it is asked for.
    pub fn messages(&self) -> Messages<'_> {
        let backlog = Backlog::new(Arc::clone(&self.live), &self.damaged_bodies);
        Messages { inspection: self, backlog }
    }

    fn body(&self, id: Id) -> Result<Body, Error> {
        self.live.read(id, |whereabouts| {
            let segment = &whereabouts.segment;
            let spot = whereabouts.spot;
            let head = segment.head(spot)?.ok_or_else(|| segment.damaged(spot.at()))?;
            let body = segment.readable_body(spot, &head.record);
            let is_sound = format::checksum(&body) == head.record.body_crc;
            Ok(if is_sound { Body::Sound(body) } else { Body::Damaged(body) })
        })
    }
}

/// The messages of an [`Inspection`].
pub struct Messages<'a> {
    inspection: &'a Inspection,
    backlog: Backlog,
}

impl Messages<'_> {
    /// Number of messages still to come.
    pub fn len(&self) -> usize {
        self.backlog.len()
    }

    /// Reports whether no message is still to come.
    pub fn is_empty(&self) -> bool {
        self.backlog.is_empty()
    }
}

impl Iterator for Messages<'_> {
    /// A message, or the reason why it cannot be read any more.
    type Item = Result<Message, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let left = match self.backlog.next()? {
            Ok(left) => left,
            Err(error) => return Some(Err(error)),
        };
        let body = self.inspection.body(left.id);
        Some(body.map(|body| Message {
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
