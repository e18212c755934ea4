//! Causes a panic at a named place if a test asks for it. Such a test shows what a bug in the
//! program would do to users. Builds without debug assertions, such as releases, do not contain the
//! panic.

/// Panics if the environment variable `MAILRUN_PLANNED_PANIC` names this place, but at most once in a process.
#[cfg(debug_assertions)]
pub fn planned_panic(place: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    static ASKED: OnceLock<Option<String>> = OnceLock::new();
    static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
    let panic_place = ASKED.get_or_init(|| std::env::var("MAILRUN_PLANNED_PANIC").ok());
    if panic_place.as_deref() == Some(place) && !HAS_PANICKED.swap(true, Ordering::Relaxed) {
        panic!("a test asked for this panic in {place}");
    }
}

/// Does nothing, because this build has no debug assertions.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn planned_panic(_place: &str) {}
