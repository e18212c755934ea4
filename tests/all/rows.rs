//! Runs tables of inputs and expected results, several rows at a time.
use crate::party::Ended;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const THREADS: usize = 4;

/// Runs a test on each row, several rows at a time.
pub(crate) fn each<T: Sync>(rows: &[T], test: impl Fn(&T) + Sync) {
    all_hold(rows, |row| {
        test(row);
        None
    });
}

/// Checks all rows. `check` describes the mistake in a row, or returns `None` if the row is right.
pub(crate) fn all_hold<T: Sync>(rows: &[T], check: impl Fn(&T) -> Option<String> + Sync) {
    all_hold_by(THREADS, rows, check);
}

/// Checks all rows, `threads` of them at a time. `check` describes the mistake in a row, or returns `None` if the row
/// is right.
pub(crate) fn all_hold_by<T: Sync>(threads: usize, rows: &[T], check: impl Fn(&T) -> Option<String> + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut wrong = Vec::new();
        while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            wrong.extend(check(row));
        }
        wrong
    };
    let wrong: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

/// Reports whether a command ended before its run, with one line on standard error that contains all these words.
pub(crate) fn is_refusal<'a>(ended: &Ended, words: impl IntoIterator<Item = &'a str>) -> bool {
    let is_line = ended.err.starts_with("mailrun: ") && ended.err.lines().count() == 1;
    let is_plain = ["os error", "mailrun: :", "secret@"].iter().all(|odd| !ended.err.contains(odd));
    let has_words = words.into_iter().all(|words| ended.err.contains(words));
    ended.code == Some(2) && ended.out.is_empty() && is_line && is_plain && has_words
}
