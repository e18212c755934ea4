//! Locks that the other threads can still use after a thread has panicked while it held one of
//! them.
//!
//! A session that panics ends alone, so its panic must not spread to every thread that locks the
//! same data later. If the panic came in the middle of a change, these threads find only a part of
//! it. So code that holds a lock should do everything that can panic before its first change.
use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// Locks data, also after a panic of a thread that held the lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Returns the guard of a reader, a writer or a wait, also after a panic of a thread that held the
/// lock.
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
