//! The thread that keeps a free segment ready, so that the commit thread does not have to wait
//! until a new segment is filled with zeros.
use super::message::Reserve;
use crate::segment_pool::{FreeSegment, SegmentPool};
use mailrun_lock::{lock, unpoisoned};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;
use std::{io, thread};

/// Maximum pause between two writes of zeros to a new segment. A pause lasts as long as the write before it, so without
/// this limit, a write that stalls for a second would be followed by a pause of a second.
const MAX_WRITE_DELAY: Duration = Duration::from_millis(50);

pub(crate) struct SharedSegmentPool {
    pool: Mutex<SegmentPool>,
    changed: Condvar,
    /// Set if another thread waits until the preallocator has made a segment: the commit thread, which needs the
    /// segment, or the caller that closes the spool. The preallocator then does not pause.
    is_awaited: AtomicBool,
}

impl SharedSegmentPool {
    pub(crate) fn new(pool: SegmentPool) -> Self {
        Self { pool: Mutex::new(pool), changed: Condvar::new(), is_awaited: AtomicBool::new(false) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, SegmentPool> {
        lock(&self.pool)
    }

    /// Takes a free segment of exactly `bytes` bytes from the pool. If no such segment is ready or being made, makes
    /// one now. Only one thread makes segments at a time, so that the spool stays within its limit.
    pub(crate) fn take(&self, bytes: u64, reserve: Reserve) -> Result<FreeSegment, crate::segment_pool::LogWriteError> {
        let mut pool = self.lock();
        while pool.is_preallocating && pool.free_segments.iter().all(|spare| spare.bytes != bytes) {
            self.is_awaited.store(true, Ordering::Relaxed);
            pool = self.wait(pool);
        }
        self.is_awaited.store(false, Ordering::Relaxed);
        let segment = pool.take(bytes, reserve);
        drop(pool);
        self.changed.notify_all();
        segment
    }

    fn wait<'a>(&self, pool: MutexGuard<'a, SegmentPool>) -> MutexGuard<'a, SegmentPool> {
        unpoisoned(self.changed.wait(pool))
    }

    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.is_awaited.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Pauses the preallocation for as long as the last write kept the disk busy. Meanwhile the commit thread can do
    /// the syncs for which senders wait. Does not pause if the commit thread itself waits for the new segment, or if
    /// the spool is being closed.
    fn throttle(&self, busy: Duration) {
        if !self.is_awaited.load(Ordering::Relaxed) {
            thread::sleep(busy.min(MAX_WRITE_DELAY));
        }
    }

    /// Makes a segment whenever no free segment is left and there is room for one. Returns when the spool is closed.
    pub(crate) fn run(self: &Arc<Self>) {
        let mut pool = self.lock();
        loop {
            while !pool.is_closed && !pool.needs_segment() {
                pool = self.wait(pool);
            }
            if pool.is_closed {
                return;
            }
            pool.is_preallocating = true;
            let disk = Arc::clone(&pool.disk);
            let name = pool.next_name();
            let header = pool.unused_header(pool.segment_bytes);
            drop(pool);
            let segment: io::Result<FreeSegment> =
                SegmentPool::make_file(&*disk, &name, header, &|busy| self.throttle(busy));
            pool = self.lock();
            pool.is_preallocating = false;
            pool.put(segment);
            self.changed.notify_all();
        }
    }
}
