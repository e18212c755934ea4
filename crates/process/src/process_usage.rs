//! Resources that a process has used, read from `/proc`: CPU time, peak memory, and bytes written
//! to storage.
//!
//! The figures of mailrun's processes and of a tested server are comparable, because the kernel measures both. For this
//! process itself, the total CPU time comes from a clock of the kernel, which is more exact than `/proc`. [`of`] can
//! also read a child that has ended, as long as its parent has not waited for it. The CPU time of the child is then
//! final.
use crate::proc_stat::{ProcessStat, field};
use mailrun_measurement::record::Party;
use rustix::time::{ClockId, clock_gettime};
use std::fs;

/// Resources that a process has used since its start. Memory and written bytes are `None` if the process has ended or
/// the kernel does not show them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessUsage {
    pub user_s: f64,
    pub sys_s: f64,
    pub rss_bytes: Option<u64>,
    pub max_rss_bytes: Option<u64>,
    /// Bytes that the process caused to be written to storage.
    pub write_bytes: Option<u64>,
}

impl ProcessUsage {
    /// Copies CPU times, peak memory and written bytes into `party`, the row of a process in the run record. Keeps the
    /// row's peak memory and written bytes if they are larger.
    pub fn fill(&self, party: &mut Party) {
        party.user_s = Some(self.user_s);
        party.sys_s = Some(self.sys_s);
        party.max_rss_bytes = party.max_rss_bytes.max(self.max_rss_bytes);
        party.write_bytes = party.write_bytes.max(self.write_bytes);
    }

    /// Adds the resources of `other`, a process that ran after this one. The peak memory is the
    /// larger of the two peaks, and the current memory is `other`'s.
    pub fn plus(self, other: Self) -> Self {
        Self {
            user_s: self.user_s + other.user_s,
            sys_s: self.sys_s + other.sys_s,
            rss_bytes: other.rss_bytes,
            max_rss_bytes: self.max_rss_bytes.max(other.max_rss_bytes),
            write_bytes: self.write_bytes.zip(other.write_bytes).map(|(one, other)| one + other),
        }
    }

    /// Returns the resources that were used since `earlier`, a reading of the same process. The
    /// peak memory still counts from the start of the process.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user_s: (self.user_s - earlier.user_s).max(0.0),
            sys_s: (self.sys_s - earlier.sys_s).max(0.0),
            write_bytes: self.write_bytes.zip(earlier.write_bytes).map(|(all, before)| all.saturating_sub(before)),
            ..self
        }
    }

    /// Merges this reading of a process's usage with a later reading. All figures come from `later`, except that the
    /// larger peak memory and written bytes are kept, because a process that has ended no longer shows them.
    pub fn followed_by(self, later: Self) -> Self {
        Self {
            max_rss_bytes: later.max_rss_bytes.max(self.max_rss_bytes),
            write_bytes: later.write_bytes.max(self.write_bytes),
            ..later
        }
    }
}

pub fn own() -> ProcessUsage {
    let used = read("self").unwrap_or_default();
    let exact = clock_gettime(ClockId::ProcessCPUTime);
    let exact_s = exact.tv_sec as f64 + exact.tv_nsec as f64 / 1e9;
    // /proc counts user and system time in hundredths of a second. This is too coarse for a run of 50 ms. The kernel's
    // CPU clock is exact, but counts both together. So split its time in the ratio that /proc shows.
    let user_share = match used.user_s + used.sys_s {
        total if total > 0.0 => used.user_s / total,
        _ => 1.0,
    };
    ProcessUsage { user_s: exact_s * user_share, sys_s: exact_s * (1.0 - user_share), ..used }
}

/// CPU time and memory that this process has used so far. Taking a sample is cheaper than calling [`own`], because it
/// reads fewer files.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct OwnSample {
    /// CPU time in user mode and in the kernel, in seconds.
    pub(crate) used_s: f64,
    pub(crate) rss_bytes: Option<u64>,
}

/// Samples this process by reading a clock and one short file.
pub(crate) fn own_sample() -> OwnSample {
    let exact = clock_gettime(ClockId::ProcessCPUTime);
    let rss_bytes = fs::read_to_string("/proc/self/statm").ok().and_then(|text| resident_bytes(&text));
    OwnSample { used_s: exact.tv_sec as f64 + exact.tv_nsec as f64 / 1e9, rss_bytes }
}

/// Returns the resident memory in bytes from the text of `/proc/PID/statm`. Its second number is the resident memory in
/// pages (proc(5)).
fn resident_bytes(statm: &str) -> Option<u64> {
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

/// Returns the resources that another process has used so far. Returns `None` if the process is
/// gone.
pub fn of(pid: u32) -> Option<ProcessUsage> {
    read(&pid.to_string())
}

fn read(process: &str) -> Option<ProcessUsage> {
    let file = |name: &str| fs::read_to_string(format!("/proc/{process}/{name}"));
    let stat = ProcessStat::parse(&file("stat").ok()?)?;
    let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
    let status = file("status").unwrap_or_default();
    let memory = |name| field(&status, name).map(|kib| kib << 10);
    Some(ProcessUsage {
        user_s: stat.user as f64 / ticks_per_s,
        sys_s: stat.sys as f64 / ticks_per_s,
        rss_bytes: memory("VmRSS:"),
        max_rss_bytes: memory("VmHWM:"),
        write_bytes: file("io").ok().and_then(|text| field(&text, "write_bytes:")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_in_own_usage() {
        let before = own();
        let mut sum = 0_u64;
        while own().user_s + own().sys_s <= before.user_s + before.sys_s {
            sum = sum.wrapping_add(std::hint::black_box(1));
        }
        let after = own();
        assert!(after.user_s + after.sys_s > before.user_s + before.sys_s, "{before:?} {after:?} {sum}");
        assert!(after.max_rss_bytes.is_some_and(|bytes| bytes > 100_000), "{after:?}");
    }

    #[test]
    fn a_sample_of_this_process_agrees_with_its_usage() {
        let sample = own_sample();
        let usage = own();
        assert!(sample.used_s > 0.0 && sample.used_s <= usage.user_s + usage.sys_s, "{sample:?} {usage:?}");
        assert!(sample.rss_bytes.is_some_and(|bytes| bytes > 100_000), "{sample:?}");
        for nonsense in ["", "5", "5 x", "5 -1", &format!("5 {}", u64::MAX)] {
            assert_eq!(resident_bytes(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn nobody_uses_nothing() {
        // No process has this ID, because Linux assigns none above 2^22 (PID_MAX_LIMIT).
        assert_eq!(of(1 << 23), None);
    }

    #[test]
    fn an_earlier_look_keeps_what_a_later_one_cannot_see() {
        let early = ProcessUsage { user_s: 1.0, max_rss_bytes: Some(7), ..ProcessUsage::default() };
        let late = ProcessUsage { user_s: 2.0, ..ProcessUsage::default() };
        assert_eq!(
            early.followed_by(late),
            ProcessUsage { user_s: 2.0, max_rss_bytes: Some(7), ..ProcessUsage::default() }
        );
    }

    #[test]
    fn what_was_used_before_is_another_runs() {
        let early = ProcessUsage { user_s: 1.0, write_bytes: Some(3), ..ProcessUsage::default() };
        let late =
            ProcessUsage { user_s: 1.5, sys_s: 2.0, max_rss_bytes: Some(9), write_bytes: Some(7), rss_bytes: None };
        let between = ProcessUsage { user_s: 0.5, write_bytes: Some(4), ..late };
        assert_eq!(late.since(early), between);
    }

    #[test]
    fn one_after_the_other_has_the_work_of_both_and_the_peak_of_one() {
        let one = ProcessUsage { user_s: 1.0, max_rss_bytes: Some(7), write_bytes: Some(3), ..ProcessUsage::default() };
        let other =
            ProcessUsage { user_s: 2.0, max_rss_bytes: Some(5), write_bytes: Some(4), ..ProcessUsage::default() };
        let both =
            ProcessUsage { user_s: 3.0, max_rss_bytes: Some(7), write_bytes: Some(7), ..ProcessUsage::default() };
        assert_eq!(one.plus(other), both);
        assert!(own().rss_bytes.is_some_and(|bytes| bytes > 100_000));
    }
}
