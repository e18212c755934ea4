use std::sync::atomic::{AtomicU64, Ordering};

/// How full a spool is, and how much work it has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolStats {
    /// Number of messages that are stored and not done yet.
    pub messages: u64,
    /// Bytes of the log that unfinished messages occupy.
    pub bytes: u64,
    /// Number of segments that are in use, without free segments.
    pub segments: u64,
    /// Bytes that all files take on the disk, including free segments.
    pub disk_bytes: u64,
    /// Number of batches that were written since the spool was opened.
    pub commits: u64,
    /// Number of syncs of batches since the spool was opened.
    pub syncs: u64,
    /// Number of messages that were stored since the spool was opened, not counting rejected ones.
    pub stored: u64,
    /// Number of messages rejected because there was no room.
    pub refused: u64,
    /// Number of times that a message was moved to the end of the log, usually so that its old
    /// segment can be freed.
    pub moved: u64,
    /// Number of notes and marks of done messages that were not written, because there was no room
    /// or the note exceeded [`Options::MAX_ENVELOPE_BYTES`](crate::Options::MAX_ENVELOPE_BYTES).
    pub unwritten: u64,
    /// Bytes at the end of the log that were cut off when the spool was opened, because a crash had
    /// torn them.
    pub cut_bytes: u64,
    /// Number of damaged places, found when the spool was opened, for which
    /// [`Damage::is_alarming`](crate::Damage::is_alarming) returns true. Damage that loses nothing does not count, for
    /// example a torn end of the log whose messages had not been answered 250.
    pub damaged: u64,
    /// Number of messages that may be lost because of the damage in `damaged`, as far as known.
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
