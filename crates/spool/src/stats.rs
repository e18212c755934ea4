//! Fill level of a spool, and counters of its work.
use std::sync::atomic::{AtomicU64, Ordering};

/// Fill level of a spool, and counters of its work since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolStats {
    /// Messages that are not done.
    pub messages: u64,
    /// Bytes that they take in the log.
    pub bytes: u64,
    /// Segments in use.
    pub segments: u64,
    /// Bytes that all files take on the disk, free segments included.
    pub disk_bytes: u64,
    /// Batches written.
    pub commits: u64,
    /// Syncs of batches.
    pub syncs: u64,
    /// Messages stored.
    pub stored: u64,
    /// Messages rejected because there was no room.
    pub refused: u64,
    /// Messages moved to make room.
    pub moved: u64,
    /// Notes that could not be written for lack of room.
    pub unwritten: u64,
    /// Bytes at the end of the log that were cut off when the spool was opened, because a crash had torn them.
    pub cut_bytes: u64,
    /// Damaged places that were found when the spool was opened and cost something, except torn ends.
    pub damaged: u64,
    /// Messages lost by these, as far as that is known.
    pub lost_messages: u64,
}

#[derive(Debug, Default)]
pub(crate) struct RelaxedCounter(AtomicU64);

impl RelaxedCounter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct SpoolCounters {
    pub(crate) commits: RelaxedCounter,
    pub(crate) syncs: RelaxedCounter,
    pub(crate) stored: RelaxedCounter,
    pub(crate) refused: RelaxedCounter,
    pub(crate) moved: RelaxedCounter,
    pub(crate) unwritten: RelaxedCounter,
    pub(crate) cut_bytes: RelaxedCounter,
}

impl SpoolCounters {
    pub(crate) fn stats(&self) -> SpoolStats {
        SpoolStats {
            commits: self.commits.value(),
            syncs: self.syncs.value(),
            stored: self.stored.value(),
            refused: self.refused.value(),
            moved: self.moved.value(),
            unwritten: self.unwritten.value(),
            cut_bytes: self.cut_bytes.value(),
            ..SpoolStats::default()
        }
    }
}
