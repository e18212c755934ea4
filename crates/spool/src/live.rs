//! Index of the messages that are not done: the places of each message and its notes, and the live bytes of each
//! segment.
use crate::segment::{Segment, Spot};
use crate::{Error, Id};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// Messages that are not done, and the segments in use, oldest first, in a row without a gap.
#[derive(Default)]
pub(crate) struct Live {
    messages: HashMap<u64, Entry, foldhash::fast::FixedState>,
    segments: VecDeque<Tenant>,
    bytes: u64,
}

/// A message: 24 bytes, and 8 for its number.
struct Entry {
    spot: Spot,
    /// Places of its notes; most messages have none.
    #[expect(clippy::box_collection, reason = "a third of a vector's size, for every message")]
    notes: Option<Box<Vec<Spot>>>,
}

struct Tenant {
    segment: Arc<Segment>,
    messages: u32,
    bytes: u64,
}

/// Places of a message and its notes, and their segment.
#[derive(Clone)]
pub(crate) struct Whereabouts {
    pub(crate) segment: Arc<Segment>,
    pub(crate) spot: Spot,
    pub(crate) notes: Vec<(Arc<Segment>, Spot)>,
}

/// Fill level of the segments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fill {
    pub(crate) messages: u64,
    pub(crate) live_bytes: u64,
    pub(crate) segments: u64,
    pub(crate) segment_bytes: u64,
    /// Bytes in all segments but the newest that do not count any more.
    pub(crate) wasted_bytes: u64,
}

impl Live {
    /// Adds a new segment.
    pub(crate) fn begin(&mut self, segment: Arc<Segment>) {
        debug_assert!(self.newest().is_none_or(|newest| newest.wrapping_add(1) == segment.order));
        self.segments.push_back(Tenant { segment, messages: 0, bytes: 0 });
    }

    fn newest(&self) -> Option<u64> {
        self.segments.back().map(|tenant| tenant.segment.order)
    }

    /// Returns the oldest segment, unless it is also the newest, and the number of messages in it that are not done.
    pub(crate) fn oldest(&self) -> Option<(&Arc<Segment>, u32)> {
        let is_alone = self.segments.len() < 2;
        self.segments.front().filter(|_| !is_alone).map(|tenant| (&tenant.segment, tenant.messages))
    }

    /// Removes the oldest segment.
    pub(crate) fn pop_oldest(&mut self) -> Option<Arc<Segment>> {
        let tenant = self.segments.pop_front()?;
        debug_assert_eq!((tenant.messages, tenant.bytes), (0, 0));
        Some(tenant.segment)
    }

    fn tenant(&mut self, order: u64) -> Option<&mut Tenant> {
        let oldest = self.segments.front()?.segment.order;
        self.segments.get_mut(order.checked_sub(oldest)? as usize)
    }

    fn segment(&self, order: u64) -> Option<&Arc<Segment>> {
        let oldest = self.segments.front()?.segment.order;
        self.segments.get(order.checked_sub(oldest)? as usize).map(|tenant| &tenant.segment)
    }

    /// Sets the place of a message, and forgets its former one. Its notes are in the same record.
    pub(crate) fn place(&mut self, id: Id, spot: Spot) {
        if let Some(former) = self.messages.insert(id.0, Entry { spot, notes: None }) {
            self.leave(former.spot);
        }
        self.bytes += spot.bytes();
        if let Some(tenant) = self.tenant(spot.order) {
            tenant.messages += 1;
            tenant.bytes += spot.bytes();
        }
    }

    /// Adds the place of a note. Notes of messages that are done are forgotten.
    pub(crate) fn note(&mut self, id: Id, spot: Spot) {
        if let Some(entry) = self.messages.get_mut(&id.0) {
            entry.notes.get_or_insert_default().push(spot);
        }
    }

    /// Removes a message that is done.
    pub(crate) fn done(&mut self, id: Id) {
        if let Some(entry) = self.messages.remove(&id.0) {
            self.leave(entry.spot);
        }
    }

    fn leave(&mut self, spot: Spot) {
        self.bytes -= spot.bytes();
        if let Some(tenant) = self.tenant(spot.order) {
            tenant.messages -= 1;
            tenant.bytes -= spot.bytes();
        }
    }

    /// Reports whether that message is known, and not done.
    pub(crate) fn has(&self, id: Id) -> bool {
        self.messages.contains_key(&id.0)
    }

    /// Reports whether that message is stored exactly there.
    pub(crate) fn is_at(&self, id: Id, spot: Spot) -> bool {
        self.messages.get(&id.0).is_some_and(|entry| entry.spot == spot)
    }

    pub(crate) fn whereabouts(&self, id: Id) -> Option<Whereabouts> {
        let entry = self.messages.get(&id.0)?;
        let segment_of = |spot: &Spot| Some((Arc::clone(self.segment(spot.order)?), *spot));
        let notes = entry.notes.iter().flat_map(|notes| notes.iter()).map(segment_of).collect::<Option<_>>()?;
        Some(Whereabouts { segment: Arc::clone(self.segment(entry.spot.order)?), spot: entry.spot, notes })
    }

    /// Number of messages in that segment that are not done.
    pub(crate) fn count_in(&self, order: u64) -> u64 {
        let found = self.segments.iter().find(|tenant| tenant.segment.order == order);
        found.map_or(0, |tenant| u64::from(tenant.messages))
    }

    /// Returns the messages in that segment. Goes through all messages.
    pub(crate) fn in_segment(&self, segment: &Segment) -> Vec<Id> {
        let is_there = |entry: &Entry| entry.spot.order == segment.order;
        self.messages.iter().filter(|(_, entry)| is_there(entry)).map(|(id, _)| Id(*id)).collect()
    }

    /// Returns the messages in any of those segments (given by their place in the row) from that offset on.
    pub(crate) fn behind(&self, tails: &[(u64, u64)]) -> Vec<Id> {
        let is_there = |spot: Spot| tails.iter().any(|(order, from)| spot.order == *order && spot.at() >= *from);
        self.messages.iter().filter(|(_, entry)| is_there(entry.spot)).map(|(id, _)| Id(*id)).collect()
    }

    /// Returns all messages, in the order of the log.
    pub(crate) fn in_log_order(&self) -> Vec<Id> {
        let mut all: Vec<(Spot, u64)> = self.messages.iter().map(|(id, entry)| (entry.spot, *id)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, id)| Id(id)).collect()
    }

    pub(crate) fn fill(&self) -> Fill {
        let older = self.segments.iter().rev().skip(1);
        Fill {
            wasted_bytes: older.map(|tenant| tenant.segment.bytes - tenant.bytes).sum(),
            messages: self.messages.len() as u64,
            live_bytes: self.bytes,
            segments: self.segments.len() as u64,
            segment_bytes: self.segments.iter().map(|tenant| tenant.segment.bytes).sum(),
        }
    }
}

/// The index that the commit thread writes and readers look up.
#[derive(Default)]
pub(crate) struct SharedLive(Mutex<Live>);

impl SharedLive {
    pub(crate) fn new(live: Live) -> Self {
        Self(Mutex::new(live))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Live> {
        self.0.lock().expect("nothing panics while it holds the index")
    }

    /// Reads a part of a message. During `read`, the message may have been moved and its segment used anew: wrong bytes
    /// are damage only if the message is still stored there.
    pub(crate) fn read<T>(&self, id: Id, mut read: impl FnMut(&Whereabouts) -> Result<T, Error>) -> Result<T, Error> {
        loop {
            let Some(whereabouts) = self.lock().whereabouts(id) else { return Err(Error::Unknown(id)) };
            match read(&whereabouts) {
                Err(Error::Damaged { .. }) if !self.lock().is_at(id, whereabouts.spot) => {}
                outcome => return outcome,
            }
        }
    }
}
