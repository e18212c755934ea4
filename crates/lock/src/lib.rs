//! Functions for locks that other threads can still use after a thread has panicked while it held the lock.
//!
//! A panic must end only the session in which it happens, and not every thread that locks the same data later. These
//! threads may find the data half changed, so code that holds a lock should do everything that can panic before its
//! first change.
use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// Locks a mutex like [`Mutex::lock`], but succeeds even if a thread has panicked while it held the
/// lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Returns the guard in a result of `RwLock::read`, `RwLock::write` or `Condvar::wait`, even if a
/// thread has panicked while it held the lock.
pub fn unpoisoned<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::RwLock;

    #[test]
    fn data_can_be_used_after_a_panic() {
        let (mutex, shared) = (Mutex::new(1), RwLock::new(1));
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _guards = (mutex.lock(), shared.write());
                panic!("while it holds both");
            });
            holder.join()
        });
        assert!(panicked.is_err() && mutex.is_poisoned() && shared.is_poisoned());
        *lock(&mutex) += 1;
        assert_eq!((*lock(&mutex), *unpoisoned(shared.read())), (2, 1));
    }
}
