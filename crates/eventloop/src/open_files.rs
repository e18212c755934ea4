//! Raises this process's own `ulimit -n` as far as it may: ten thousand sessions need ten thousand descriptors.
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one, and the hard one if the process may. Returns the limit that now
/// holds.
pub fn raise(wanted: u64) -> u64 {
    let before = getrlimit(Resource::Nofile);
    let hard = before.maximum.unwrap_or(u64::MAX);
    if hard < wanted && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(wanted) }).is_ok() {
        return wanted;
    }
    let soft = wanted.min(hard).max(before.current.unwrap_or(u64::MAX).min(hard));
    match setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: before.maximum }) {
        Ok(()) => soft,
        Err(_) => before.current.unwrap_or(u64::MAX),
    }
}
