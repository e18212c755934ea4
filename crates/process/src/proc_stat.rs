//! Reads what the kernel shows about processes in `/proc` (proc(5)).
use std::fs;

/// A process as `/proc/PID/stat` describes it. Times are in clock ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessStat {
    pub pid: u32,
    /// State of the process as a letter, such as `R` for running. `Z` or `X` means that the process has ended.
    pub state: char,
    pub parent: u32,
    /// ID of the process group, which is the PID of the group's leader. Likewise, `session` is the PID of the session's
    /// leader.
    pub group: u32,
    pub session: u32,
    /// Sum of minor and major page faults.
    pub faults: u64,
    pub user: u64,
    pub sys: u64,
    /// User CPU time of ended children for which the process has waited.
    pub children_user: u64,
    pub children_sys: u64,
    /// Time from the boot to the start of the process. It distinguishes the process from a later process with the same
    /// PID.
    pub started: u64,
    pub resident_pages: u64,
}

impl ProcessStat {
    /// Parses fields 1, 3 to 6, 10, 12, 14 to 17, 22 and 24 of `/proc/PID/stat`. The command's name, field 2, may
    /// contain spaces and parentheses, so the fields are counted after its last parenthesis.
    pub fn parse(text: &str) -> Option<Self> {
        let (before, after) = text.rsplit_once(')')?;
        let mut fields = after.split_ascii_whitespace();
        let state = fields.next()?.parse().ok()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let session = fields.next()?.parse().ok()?;
        let mut after_skipping = |count: usize| fields.nth(count)?.parse().ok();
        Some(Self {
            pid: before.split_once(' ')?.0.parse().ok()?,
            state,
            parent,
            group,
            session,
            faults: after_skipping(3)? + after_skipping(1)?,
            user: after_skipping(1)?,
            sys: after_skipping(0)?,
            children_user: after_skipping(0)?,
            children_sys: after_skipping(0)?,
            started: after_skipping(4)?,
            resident_pages: after_skipping(1)?,
        })
    }

    /// Reads `/proc/PID/stat` of a process. Returns `None` if the process is gone.
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }
}

/// Returns the command's name, field 2 of `/proc/PID/stat`.
pub(crate) fn name(stat: &str) -> Option<&str> {
    Some(stat.rsplit_once(')')?.0.split_once('(')?.1)
}

/// Returns how many bytes the process `pid` caused to be read from storage, and how many it caused to be written there.
/// Returns `None` if the kernel does not show these numbers.
pub fn storage_bytes(pid: u32) -> Option<(u64, u64)> {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    Some((field(&io, "read_bytes:")?, field(&io, "write_bytes:")?))
}

pub fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the number in the line that starts with `name`, for example with `VmRSS:` in `/proc/PID/status`.
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_after_the_name() {
        let text = "42 (a) b (c)) S 7 42 42 0 -1 4194304 100 0 3 0 77 33 5 6 20 0 1 0 1000 9999 55 0";
        let expected = ProcessStat {
            pid: 42,
            state: 'S',
            parent: 7,
            group: 42,
            session: 42,
            faults: 103,
            user: 77,
            sys: 33,
            children_user: 5,
            children_sys: 6,
            started: 1000,
            resident_pages: 55,
        };
        assert_eq!((ProcessStat::parse(text), name(text)), (Some(expected), Some("a) b (c)")));
        for text in ["", "nonsense", "42 (a", "42 a) S 7", "42 (a) S 7 42 42 0 -1 4194304 100 0 0 0 77"] {
            assert_eq!(ProcessStat::parse(text), None, "{text}");
        }
    }

    #[test]
    fn fields_are_found_by_name() {
        let text = "VmPeak:\t 9 kB\nVmHWM:\t  1234 kB\n";
        assert_eq!(field(text, "VmHWM:"), Some(1234));
        assert_eq!(field(text, "VmSwap:"), None);
    }
}
