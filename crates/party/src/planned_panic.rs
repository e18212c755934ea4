//! A panic at a named place, if a test asks for one: this shows the consequences of a defect in the program that users
//! have. Builds without debug assertions, and so every release, do not contain it.

/// Panics, once in the life of the process, if the environment's `MAILRUN_PLANNED_PANIC` names that place.
#[cfg(debug_assertions)]
pub fn planned_panic(place: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    static ASKED: OnceLock<Option<String>> = OnceLock::new();
    static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
    let asked = ASKED.get_or_init(|| std::env::var("MAILRUN_PLANNED_PANIC").ok());
    if asked.as_deref() == Some(place) && !HAS_PANICKED.swap(true, Ordering::Relaxed) {
        panic!("a test asked for this panic in {place}");
    }
}

/// Does nothing.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn planned_panic(_place: &str) {}
