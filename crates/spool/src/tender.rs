//! The thread that keeps a free segment ready, so that the commit thread need not wait while one is filled with zeros.
use crate::supply::{Purpose, Spare, Supply};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// Upper bound of a pause: a disk that stalls must not delay the segment further.
const LONGEST_REST: Duration = Duration::from_millis(50);

/// The supply, and the wake-up of the thread that fills it.
pub(crate) struct Tended {
    supply: Mutex<Supply>,
    bell: Condvar,
    /// Someone waits for the segment that is being made: the commit thread, or the caller that closes the spool.
    is_awaited: AtomicBool,
}

impl Tended {
    pub(crate) fn new(supply: Supply) -> Self {
        Self { supply: Mutex::new(supply), bell: Condvar::new(), is_awaited: AtomicBool::new(false) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Supply> {
        self.supply.lock().expect("nothing panics while it holds the supply")
    }

    /// Takes a segment of exactly that size: one that is ready, or about to be, or else made now. Only one thread makes
    /// segments at a time, so that the limit of the spool holds.
    pub(crate) fn take(&self, bytes: u64, purpose: Purpose) -> Result<Spare, crate::supply::Shortage> {
        let mut supply = self.lock();
        while supply.is_making && supply.spares.iter().all(|spare| spare.bytes != bytes) {
            self.is_awaited.store(true, Ordering::Relaxed);
            supply = self.wait(supply);
        }
        self.is_awaited.store(false, Ordering::Relaxed);
        let taken = supply.take(bytes, purpose);
        drop(supply);
        self.bell.notify_all();
        taken
    }

    fn wait<'a>(&self, supply: MutexGuard<'a, Supply>) -> MutexGuard<'a, Supply> {
        self.bell.wait(supply).expect("nothing panics while it holds the supply")
    }

    /// Ends the thread.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.is_awaited.store(true, Ordering::Relaxed);
        self.bell.notify_all();
    }

    /// Leaves the disk to the commit thread for as long as it was kept busy, because senders wait for that thread's
    /// syncs; but not if that thread waits for the segment itself.
    fn rest(&self, busy: Duration) {
        if !self.is_awaited.load(Ordering::Relaxed) {
            thread::sleep(busy.min(LONGEST_REST));
        }
    }

    /// Makes a segment whenever none is ready and there is room for one, until the supply is closed.
    pub(crate) fn tend(self: &Arc<Self>) {
        let mut supply = self.lock();
        loop {
            while !supply.is_closed && !supply.wants_spare() {
                supply = self.wait(supply);
            }
            if supply.is_closed {
                return;
            }
            supply.is_making = true;
            let disk = Arc::clone(&supply.disk);
            let name = supply.next_name();
            let bytes = supply.segment_bytes;
            drop(supply);
            let made: io::Result<Spare> = Supply::make_file(&*disk, &name, bytes, &|busy| self.rest(busy));
            supply = self.lock();
            supply.is_making = false;
            supply.keep(made);
            self.bell.notify_all();
        }
    }
}
