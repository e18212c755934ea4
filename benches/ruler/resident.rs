//! How much memory a process has and has had at most, from /proc/PID/status.

use std::path::PathBuf;

/// Resident memory in bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Resident {
    /// VmRSS.
    pub(crate) now: u64,
    /// VmHWM: unlike `ru_maxrss` it begins at nought with the program, not with whoever started it.
    pub(crate) peak: u64,
}

impl Resident {
    /// `None` once the process has ended.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let bytes = |name: &str| -> Option<u64> {
            let value = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(value.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
        };
        Some(Self { now: bytes("VmRSS")?, peak: bytes("VmHWM")? })
    }
}

/// How many descriptors a process has open: its sessions and a dozen others.
pub(crate) fn open_descriptors(pid: u32) -> usize {
    // A worker may have a table of its own (`mailrun_net::Files`), which only its thread's directory shows.
    let Ok(threads) = std::fs::read_dir(PathBuf::from(format!("/proc/{pid}/task"))) else { return 0 };
    let open = |thread: PathBuf| std::fs::read_dir(thread.join("fd")).map_or(0, Iterator::count);
    threads.flatten().map(|thread| open(thread.path())).max().unwrap_or(0)
}
