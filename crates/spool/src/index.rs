//! Remembers where the log contains each unfinished message and its notes. For each segment, it counts the messages and
//! their bytes, so that an empty segment can be freed.
use crate::format::OldestUse;
use crate::segment::{RecordLocation, Segment};
use crate::{Error, Id};
use mailrun_lock::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Default)]
pub(crate) struct MessageIndex {
    messages: HashMap<u64, IndexEntry, foldhash::fast::FixedState>,
    segments: VecDeque<SegmentUsage>,
    bytes: u64,
}

/// Locations of an unfinished message and of its notes. An entry takes 24 bytes, and the message's id as its key takes
/// 8 more.
struct IndexEntry {
    location: RecordLocation,
    /// Locations of the notes. The vector is boxed to keep the entry small, because most messages have no notes.
    #[expect(clippy::box_collection, reason = "a third of a vector's size, for every message")]
    notes: Option<Box<Vec<RecordLocation>>>,
}

struct SegmentUsage {
    segment: Arc<Segment>,
    messages: u32,
    bytes: u64,
}

#[derive(Clone)]
pub(crate) struct MessageLocations {
    pub(crate) segment: Arc<Segment>,
    pub(crate) record: RecordLocation,
    pub(crate) notes: Vec<(Arc<Segment>, RecordLocation)>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FillLevel {
    pub(crate) messages: u64,
    pub(crate) live_bytes: u64,
    pub(crate) segments: u64,
    pub(crate) segment_bytes: u64,
    /// Bytes that no unfinished message occupies, in all segments except the newest. Compaction can
    /// recover them.
    pub(crate) wasted_bytes: u64,
}

impl MessageIndex {
    pub(crate) fn push_segment(&mut self, segment: Arc<Segment>) {
        debug_assert!(self.newest().is_none_or(|newest| newest.wrapping_add(1) == segment.position));
        self.segments.push_back(SegmentUsage { segment, messages: 0, bytes: 0 });
    }

    fn newest(&self) -> Option<u64> {
        self.segments.back().map(|tenant| tenant.segment.position)
    }

    /// Returns the oldest segment, and its number of messages that are not done. Returns `None` if
    /// the oldest segment is also the newest, which cannot be freed.
    pub(crate) fn oldest(&self) -> Option<(&Arc<Segment>, u32)> {
        let is_alone = self.segments.len() < 2;
        self.segments.front().filter(|_| !is_alone).map(|tenant| (&tenant.segment, tenant.messages))
    }

    /// Returns the generation of the oldest segment in use, and a lower bound of that segment's message numbers.
    pub(crate) fn oldest_use(&self) -> Option<OldestUse> {
        let header = &self.segments.front()?.segment.header;
        Some(OldestUse { generation: header.generation, first_id: header.first_id() })
    }

    pub(crate) fn pop_oldest(&mut self) -> Option<Arc<Segment>> {
        let tenant = self.segments.pop_front()?;
        debug_assert_eq!((tenant.messages, tenant.bytes), (0, 0));
        Some(tenant.segment)
    }

    fn segment_usage(&mut self, order: u64) -> Option<&mut SegmentUsage> {
        let oldest = self.segments.front()?.segment.position;
        self.segments.get_mut(order.checked_sub(oldest)? as usize)
    }

    fn segment(&self, order: u64) -> Option<&Arc<Segment>> {
        let oldest = self.segments.front()?.segment.position;
        self.segments.get(order.checked_sub(oldest)? as usize).map(|tenant| &tenant.segment)
    }

    /// Remembers the location of a new message, or the new location of a moved message. The record of a moved message
    /// includes all of its notes, so the index forgets the notes' former locations.
    pub(crate) fn insert(&mut self, id: Id, location: RecordLocation) {
        if let Some(former) = self.messages.insert(id.0, IndexEntry { location, notes: None }) {
            self.subtract(former.location);
        }
        self.bytes += location.bytes();
        if let Some(tenant) = self.segment_usage(location.position) {
            tenant.messages += 1;
            tenant.bytes += location.bytes();
        }
    }

    /// Remembers the location of a note. Ignores the note if its message is done, because nobody needs it any more.
    pub(crate) fn add_note(&mut self, id: Id, location: RecordLocation) {
        if let Some(entry) = self.messages.get_mut(&id.0) {
            entry.notes.get_or_insert_default().push(location);
        }
    }

    pub(crate) fn remove(&mut self, id: Id) {
        if let Some(entry) = self.messages.remove(&id.0) {
            self.subtract(entry.location);
        }
    }

    fn subtract(&mut self, location: RecordLocation) {
        self.bytes -= location.bytes();
        if let Some(tenant) = self.segment_usage(location.position) {
            tenant.messages -= 1;
            tenant.bytes -= location.bytes();
        }
    }

    pub(crate) fn contains(&self, id: Id) -> bool {
        self.messages.contains_key(&id.0)
    }

    /// Returns true if the message is stored exactly at `location`. Returns false if it was moved
    /// or is done.
    pub(crate) fn is_at(&self, id: Id, location: RecordLocation) -> bool {
        self.messages.get(&id.0).is_some_and(|entry| entry.location == location)
    }

    pub(crate) fn locate(&self, id: Id) -> Option<MessageLocations> {
        let entry = self.messages.get(&id.0)?;
        let segment_of = |location: &RecordLocation| Some((Arc::clone(self.segment(location.position)?), *location));
        let notes = entry.notes.iter().flat_map(|notes| notes.iter()).map(segment_of).collect::<Option<_>>()?;
        Some(MessageLocations {
            segment: Arc::clone(self.segment(entry.location.position)?),
            record: entry.location,
            notes,
        })
    }

    pub(crate) fn message_count(&self, order: u64) -> u64 {
        let tenant = self.segments.iter().find(|tenant| tenant.segment.position == order);
        tenant.map_or(0, |tenant| u64::from(tenant.messages))
    }

    /// Returns the messages in one segment. This searches all messages, so it is slow.
    pub(crate) fn messages_in(&self, segment: &Segment) -> Vec<Id> {
        let is_there = |entry: &IndexEntry| entry.location.position == segment.position;
        self.messages.iter().filter(|(_, entry)| is_there(entry)).map(|(id, _)| Id(*id)).collect()
    }

    /// Returns the messages whose records may not have been synced. Each pair in `tails` is a segment's position in the
    /// log, and the offset in this segment after which no sync is proven.
    pub(crate) fn messages_after(&self, tails: &[(u64, u64)]) -> Vec<Id> {
        let is_there = |location: RecordLocation| {
            tails.iter().any(|(order, from)| location.position == *order && location.offset() >= *from)
        };
        self.messages.iter().filter(|(_, entry)| is_there(entry.location)).map(|(id, _)| Id(*id)).collect()
    }

    pub(crate) fn in_log_order(&self) -> Vec<Id> {
        let mut all: Vec<(RecordLocation, u64)> =
            self.messages.iter().map(|(id, entry)| (entry.location, *id)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, id)| Id(id)).collect()
    }

    pub(crate) fn fill_level(&self) -> FillLevel {
        let older = self.segments.iter().rev().skip(1);
        FillLevel {
            wasted_bytes: older.map(|tenant| tenant.segment.bytes - tenant.bytes).sum(),
            messages: self.messages.len() as u64,
            live_bytes: self.bytes,
            segments: self.segments.len() as u64,
            segment_bytes: self.segments.iter().map(|tenant| tenant.segment.bytes).sum(),
        }
    }
}

#[derive(Default)]
pub(crate) struct SharedIndex(Mutex<MessageIndex>);

impl SharedIndex {
    pub(crate) fn new(index: MessageIndex) -> Self {
        Self(Mutex::new(index))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, MessageIndex> {
        lock(&self.0)
    }

    /// Looks up where a message and its notes are stored, and calls `read` with these locations. Meanwhile the message
    /// may be moved, and its segment reused. Wrong bytes therefore count as damage only if the message is still at the
    /// same location. Otherwise `read` is called again with the new location.
    pub(crate) fn read<T>(
        &self,
        id: Id,
        mut read: impl FnMut(&MessageLocations) -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            let Some(locations) = self.lock().locate(id) else { return Err(Error::Unknown(id)) };
            match read(&locations) {
                Err(Error::Damaged { .. }) if !self.lock().is_at(id, locations.record) => {}
                outcome => return outcome,
            }
        }
    }
}
