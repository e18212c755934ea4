//! Unfinished messages that a spool held when it was opened.
use crate::compaction::notes_of;
use crate::index::SharedIndex;
use crate::{Error, Id, RecoveredMessage};
use std::sync::Arc;

/// Messages that were not done when the spool was opened, in the order of the log. The iterator
/// keeps 8 bytes per message. It reads a message from the disk only when the message is asked for,
/// and skips messages that are done by then.
pub struct Backlog {
    index: Arc<SharedIndex>,
    ids: std::vec::IntoIter<Id>,
    /// Messages whose body is damaged, in ascending order, so that each can be found by binary
    /// search.
    damaged_bodies: Vec<Id>,
}

impl Backlog {
    pub(crate) fn new(index: Arc<SharedIndex>, damaged_bodies: &[Id]) -> Self {
        let ids = index.lock().in_log_order().into_iter();
        Self { index, ids, damaged_bodies: damaged_bodies.to_vec() }
    }

    pub(crate) fn empty() -> Self {
        Self { index: Arc::default(), ids: Vec::new().into_iter(), damaged_bodies: Vec::new() }
    }

    /// Returns the maximum number of messages that the iterator will still return. The iterator may return fewer
    /// messages, because it skips messages that are done in the meantime.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns true if the iterator has reached its end. Even after false, the iterator may return no further message,
    /// because it skips messages that are done in the meantime.
    pub fn is_empty(&self) -> bool {
        self.ids.len() == 0
    }

    fn read(&self, id: Id) -> Result<RecoveredMessage, Error> {
        self.index.read(id, |locations| {
            let segment = &locations.segment;
            let location = locations.record;
            let head = segment.read_metadata(location)?.ok_or_else(|| segment.damage_error(location.offset()))?;
            Ok(RecoveredMessage {
                id,
                received_ns: head.record.received_ns,
                envelope: head.envelope().to_vec(),
                notes: notes_of(locations, &head)?,
                body_bytes: u64::from(head.record.body_bytes),
                is_body_damaged: self.damaged_bodies.binary_search(&id).is_ok(),
            })
        })
    }
}

impl Iterator for Backlog {
    type Item = Result<RecoveredMessage, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let id = self.ids.next()?;
            match self.read(id) {
                Err(Error::Unknown(_)) => {}
                outcome => return Some(outcome),
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.ids.len()))
    }
}

impl std::fmt::Debug for Backlog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backlog").field("len", &self.len()).finish_non_exhaustive()
    }
}
