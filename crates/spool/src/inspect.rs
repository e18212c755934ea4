//! A spool looked at from outside: read as opening it would, and nothing changed.
use crate::disk::ReadOnlyDisk;
use crate::live::SharedLive;
use crate::reading::read;
use crate::{Backlog, Damage, Error, Id, format, quarantine};
use std::path::Path;
use std::sync::Arc;

/// What a spool holds, as opening it would find it.
///
/// While this lives, no relay opens the spool: it waits for nothing, and says that another process has it.
pub struct Inspection {
    /// All segments, in the order of the log; those that are free or hold nothing after them.
    pub segments: Vec<Segment>,
    /// All damage, in no particular order.
    pub damage: Vec<Damage>,
    /// How many bytes a crash has torn at the end of the log: nobody was answered for them.
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
    /// What it is.
    pub state: SegmentState,
    /// Its length.
    pub bytes: u64,
    /// How many messages in it are not done.
    pub messages: u64,
}

/// What a file of a spool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// It holds batches.
    Used {
        /// The number of this use.
        use_number: u64,
        /// Where its batches end.
        end: u64,
    },
    /// Nothing in it counts.
    Free,
    /// It was being made when the process ended, and holds nothing.
    Unfinished,
    /// Nothing can be made of it.
    Illegible,
}

/// A message that is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its number.
    pub id: Id,
    /// When it was received, in nanoseconds of Unix time.
    pub received_ns: u64,
    /// Whatever was to be known of it besides its content.
    pub envelope: Vec<u8>,
    /// What has been noted of it since, oldest first.
    pub notes: Vec<Vec<u8>>,
    /// Its content.
    pub body: Body,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// As it was written.
    Sound(Arc<[u8]>),
    /// Not as it was written: zeros stand where it cannot be read.
    Damaged(Arc<[u8]>),
}

/// Reads a spool, and changes nothing. Reads all there is, as opening it does.
///
/// # Errors
/// [`Error::Held`] where a relay has it open; [`Error::Newer`] where a later version has written it; [`Error::Disk`] where
/// it cannot be read.
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
    /// Whether nothing is damaged that costs anything.
    pub fn is_sound(&self) -> bool {
        !self.damage.iter().any(Damage::is_alarming)
    }

    /// All messages that are not done, in the order of the log; each is read when it is asked for.
    pub fn messages(&self) -> Messages<'_> {
        let backlog = Backlog::new(Arc::clone(&self.live), &self.damaged_bodies);
        Messages { inspection: self, backlog }
    }

    fn body(&self, id: Id) -> Result<Body, Error> {
        self.live.read(id, |whereabouts| {
            let (segment, spot) = (&whereabouts.segment, whereabouts.spot);
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
    /// How many are still to come.
    pub fn len(&self) -> usize {
        self.backlog.len()
    }

    /// Whether none is still to come.
    pub fn is_empty(&self) -> bool {
        self.backlog.is_empty()
    }
}

impl Iterator for Messages<'_> {
    /// A message, or why it can be read no more.
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
