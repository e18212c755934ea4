//! Current and peak memory of a process, from /proc/PID/status.

use std::path::PathBuf;

#[derive(Clone, Copy, Default)]
pub(crate) struct Resident {
    pub(crate) now: u64,
    /// Peak memory in bytes (VmHWM). Unlike `ru_maxrss`, VmHWM starts at zero when the program is executed, and so does
    /// not include the memory of the parent from which the process was forked.
    pub(crate) peak: u64,
}

impl Resident {
    /// Reads the memory of a process. Returns `None` if the process has ended.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let bytes = |name: &str| -> Option<u64> {
            let value = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(value.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
        };
        Some(Self { now: bytes("VmRSS")?, peak: bytes("VmHWM")? })
    }
}

/// Returns the number of open descriptors of a process: its sessions and about a dozen others.
pub(crate) fn open_descriptors(pid: u32) -> usize {
    // A worker thread may have its own table of descriptors (`mailrun_net::FdTable::Private`). Only the thread's own
    // directory under `task` shows this table. So count the descriptors of each thread, and return the highest count.
    let Ok(threads) = std::fs::read_dir(PathBuf::from(format!("/proc/{pid}/task"))) else { return 0 };
    let open = |thread: PathBuf| std::fs::read_dir(thread.join("fd")).map_or(0, Iterator::count);
    threads.flatten().map(|thread| open(thread.path())).max().unwrap_or(0)
}
