//! Raises the limit of open files (`ulimit -n`) of this process, because ten thousand sessions need
//! ten thousand descriptors.
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to `wanted`, or as far as the process is permitted to. Returns
/// the limit that now holds.
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
