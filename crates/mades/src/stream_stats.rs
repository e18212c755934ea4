use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts the traffic of a connection. Clones refer to the same counts.
#[derive(Clone, Debug, Default)]
pub struct StreamStats(Arc<StreamCounters>);

#[derive(Debug, Default)]
struct StreamCounters {
    written_bytes: AtomicU64,
    writes: AtomicU64,
    read_bytes: AtomicU64,
    reads: AtomicU64,
}

impl StreamStats {
    pub fn written_bytes(&self) -> u64 {
        self.0.written_bytes.load(Relaxed)
    }

    pub fn writes(&self) -> u64 {
        self.0.writes.load(Relaxed)
    }

    pub fn read_bytes(&self) -> u64 {
        self.0.read_bytes.load(Relaxed)
    }

    pub fn reads(&self) -> u64 {
        self.0.reads.load(Relaxed)
    }

    pub(crate) fn count_write(&self, bytes: usize) {
        self.0.writes.fetch_add(1, Relaxed);
        self.0.written_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn count_read(&self, bytes: usize) {
        self.0.reads.fetch_add(1, Relaxed);
        self.0.read_bytes.fetch_add(bytes as u64, Relaxed);
    }
}
