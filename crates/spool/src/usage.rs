//! How full a spool is and what it has done.
use std::sync::atomic::{AtomicU64, Ordering};

/// How full a spool is and what it has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Messages that are not done.
    pub messages: u64,
    /// What they take in the log.
    pub bytes: u64,
    /// Segments in use.
    pub segments: u64,
    /// What all files take on the disk, free segments included.
    pub disk_bytes: u64,
    /// Batches written.
    pub commits: u64,
    /// Syncs of batches.
    pub syncs: u64,
    /// Messages stored.
    pub stored: u64,
    /// Messages refused because there was no room.
    pub refused: u64,
    /// Messages moved to make room.
    pub moved: u64,
    /// Notes that could not be written for want of room.
    pub unwritten: u64,
    /// Bytes at the end of the log that were cut off when the spool was opened, because a crash had torn them.
    pub cut_bytes: u64,
    /// Damaged places that were found when the spool was opened and cost something, but for torn ends.
    pub damaged: u64,
    /// Messages that these cost, as far as that can be told.
    pub lost_messages: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commits: Counter,
    pub(crate) syncs: Counter,
    pub(crate) stored: Counter,
    pub(crate) refused: Counter,
    pub(crate) moved: Counter,
    pub(crate) unwritten: Counter,
    pub(crate) cut_bytes: Counter,
}

impl Counters {
    /// What has been done, without how full it is.
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            commits: self.commits.value(),
            syncs: self.syncs.value(),
            stored: self.stored.value(),
            refused: self.refused.value(),
            moved: self.moved.value(),
            unwritten: self.unwritten.value(),
            cut_bytes: self.cut_bytes.value(),
            ..Usage::default()
        }
    }
}
