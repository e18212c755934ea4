//! Resources used by a relay with several processes, including the resources of child processes that
//! have already ended.
//!
//! ```text
//! master ──┬─ smtpd      utime + stime of each process that lives
//!          ├─ cleanup  + cutime + cstime of each: what its children used that have ended and were waited for
//!          └─ …        = the processor time of the tree
//! ```
//!
//! The kernel reports the time of each living process in whole hundredths of a second. With 500 processes, the sum can
//! be seconds too low. Therefore the exact figure of the scheduler (`/proc/PID/task/TID/schedstat`) is used if it is
//! larger. The times of ended children (cutime and cstime) do not have this error, because the kernel sums them in
//! nanoseconds before it rounds the sum. The written bytes of ended children are included too: when a parent waits for
//! a child, the kernel adds the child's bytes to those of the parent (`task_io_accounting_add`).
//!
//! A child that ends during a sample may be counted twice or not at all. The bench therefore takes the final sample
//! when the relay is idle. Processes that have left the tree, such as daemons whose parent has ended, are not counted,
//! nor are processes that nobody waited for. A `ControlGroup` counts their CPU time.
use mailrun_process::proc_stat::{self, ProcessStat, field};
use mailrun_process::process_usage::ProcessUsage;
use std::collections::HashMap;
use std::fs;

/// Returns `root` and all its descendants, or an empty list if `root` is gone.
pub(crate) fn members(root: u32) -> Vec<ProcessStat> {
    let all: Vec<ProcessStat> = proc_stat::pids().filter_map(ProcessStat::of).collect();
    subtree(root, &all)
}

pub(crate) fn children(parent: u32) -> Vec<u32> {
    members(parent).into_iter().filter(|member| member.parent == parent).map(|member| member.pid).collect()
}

/// Returns the CPU time, memory and written bytes of `root` and all its descendants, or `None` if `root` is gone.
pub(crate) fn usage(root: u32) -> Option<ProcessUsage> {
    let members = members(root);
    if members.is_empty() {
        return None;
    }
    let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
    let mut total = ProcessUsage { write_bytes: Some(0), ..ProcessUsage::default() };
    let mut held = TreeMemory::default();
    // Count zombies as well, which are processes that have ended but were not waited for. The kernel still shows their
    // final figures.
    for member in &members {
        let (user_s, sys_s) = processor_s(member, ticks_per_s);
        total.user_s += user_s + member.children_user as f64 / ticks_per_s;
        total.sys_s += sys_s + member.children_sys as f64 / ticks_per_s;
        // If mailrun may not read the `io` file of one process, the sum of written bytes is unknown.
        let written_bytes = read(member.pid, "io").and_then(|text| field(&text, "write_bytes:"));
        total.write_bytes = total.write_bytes.zip(written_bytes).map(|(all, one)| all + one);
        held.add(member.pid);
    }
    (total.rss_bytes, total.max_rss_bytes) = (held.resident(), held.peak());
    Some(total)
}

/// Memory of a tree of processes at one moment. It is the private memory of all processes, plus the largest file-mapped
/// memory of a single process. The file-mapped memory is not summed, because most processes map the same program and
/// libraries. The peak of this sum is unknown, because the kernel records peaks only for single processes.
#[derive(Clone, Copy, Debug, Default)]
struct TreeMemory {
    own: u64,
    mapped: u64,
    /// Highest peak of the resident memory of any single process (VmHWM).
    peak: u64,
}

impl TreeMemory {
    fn add(&mut self, pid: u32) {
        let Some(status) = read(pid, "status") else { return };
        let kib = |name| field(&status, name).unwrap_or_default() << 10;
        self.own += kib("RssAnon:");
        self.peak = self.peak.max(kib("VmHWM:"));
        self.mapped = self.mapped.max(kib("RssFile:") + kib("RssShmem:"));
    }

    fn resident(self) -> Option<u64> {
        Some(self.own + self.mapped).filter(|bytes| *bytes > 0)
    }

    fn peak(self) -> Option<u64> {
        self.resident().max(Some(self.peak).filter(|bytes| *bytes > 0))
    }
}

/// Returns the user and system time that a living process has used itself, without its children.
fn processor_s(member: &ProcessStat, ticks_per_s: f64) -> (f64, f64) {
    let user_s = member.user as f64 / ticks_per_s;
    let sys_s = member.sys as f64 / ticks_per_s;
    let exact_s = scheduled_s(member.pid);
    match user_s + sys_s {
        told_s if exact_s <= told_s => (user_s, sys_s),
        // Until a process has used a whole tick, its user and system time are both 0, and only the scheduler knows the
        // sum. Count the sum as system time, because a server spends most of its time in the kernel.
        0.0 => (0.0, exact_s),
        told_s => (exact_s * user_s / told_s, exact_s * sys_s / told_s),
    }
}

/// Returns the CPU time of all living threads of a process in seconds, exact to the nanosecond. Returns 0 if the kernel
/// does not report it.
fn scheduled_s(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_thread = |path: std::path::PathBuf| {
        let text = fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    threads.filter_map(|thread| of_thread(thread.path())).sum::<u64>() as f64 / 1e9
}

fn subtree(root: u32, all: &[ProcessStat]) -> Vec<ProcessStat> {
    let mut of_parent: HashMap<u32, Vec<ProcessStat>> = HashMap::new();
    for member in all.iter().filter(|member| member.pid != root) {
        of_parent.entry(member.parent).or_default().push(*member);
    }
    let mut processes: Vec<ProcessStat> = all.iter().filter(|member| member.pid == root).copied().collect();
    let mut next = 0;
    while next < processes.len() {
        // Processes can change while `/proc` is being read, so a process may seem to be its own ancestor. Remove
        // children from the map when they are added to the list, so that the loop ends even then.
        processes.extend(of_parent.remove(&processes[next].pid).unwrap_or_default());
        next += 1;
    }
    processes
}

fn read(pid: u32, file: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/{file}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    fn member(pid: u32, parent: u32) -> ProcessStat {
        ProcessStat { pid, parent, ..ProcessStat::default() }
    }

    fn pids(members: &[ProcessStat]) -> Vec<u32> {
        members.iter().map(|member| member.pid).collect()
    }

    #[test]
    fn a_tree_is_the_root_and_all_below_and_nobody_else() {
        let all = [member(1, 0), member(10, 1), member(11, 10), member(12, 11), member(20, 1), member(13, 10)];
        assert_eq!(pids(&subtree(10, &all)), [10, 11, 13, 12]);
        assert!(subtree(99, &all).is_empty());
        let circle = [member(1, 2), member(2, 1)];
        assert_eq!(pids(&subtree(1, &circle)), [1, 2]);
    }

    struct TestShell(Child);

    impl TestShell {
        fn run(script: &str) -> Self {
            let child = Command::new("/bin/sh").args(["-c", script]).stdout(Stdio::null()).spawn();
            Self(child.expect("started"))
        }

        fn cpu_s_when(&self, is_it: impl Fn(&ProcessUsage) -> bool) -> ProcessUsage {
            let limit = Instant::now() + Duration::from_secs(30);
            loop {
                let seen = usage(self.0.id()).expect("it lives");
                if is_it(&seen) {
                    return seen;
                }
                assert!(Instant::now() < limit, "{seen:?}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    impl Drop for TestShell {
        fn drop(&mut self) {
            for member in members(self.0.id()) {
                let pid = rustix::process::Pid::from_raw(member.pid as i32).expect("not 0");
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            let _ = self.0.wait();
        }
    }

    const BUSY: &str = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";

    #[test]
    fn what_children_used_that_have_ended_is_counted() {
        // The shell's child runs a busy loop and ends before `sleep` starts. The shell itself uses hardly any CPU time,
        // so the sum is near 0 unless it includes children that have ended.
        let shell = TestShell::run(&format!("({BUSY}); sleep 600; :"));
        let seen = shell.cpu_s_when(|seen| seen.user_s + seen.sys_s >= 0.05 && children(shell.0.id()).len() == 1);
        let own = mailrun_process::process_usage::of(shell.0.id()).expect("it lives");
        assert!(own.user_s + own.sys_s < seen.user_s + seen.sys_s, "{own:?} {seen:?}");
    }

    #[test]
    fn what_living_children_use_is_counted_and_so_is_their_memory() {
        let shell = TestShell::run(&format!("({BUSY}; sleep 600) & ({BUSY}; sleep 600) & wait"));
        let seen = shell.cpu_s_when(|seen| seen.user_s + seen.sys_s >= 0.1);
        assert!(seen.rss_bytes.is_some_and(|bytes| bytes > 100_000), "{seen:?}");
        assert!(seen.max_rss_bytes >= seen.rss_bytes, "{seen:?}");
        assert!(members(shell.0.id()).len() >= 3);
    }

    #[test]
    fn nobody_is_no_tree() {
        assert_eq!(usage(1 << 23), None);
    }
}
