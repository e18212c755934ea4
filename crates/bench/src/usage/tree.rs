//! Resources used by a relay of several processes: by all that it has started, those included that have ended.
//!
//! ```text
//! master ──┬─ smtpd      utime + stime of each process that lives
//!          ├─ cleanup  + cutime + cstime of each: what its children used that have ended and were waited for
//!          └─ …        = the processor time of the tree
//! ```
//!
//! The kernel keeps cutime and cstime in nanoseconds and tells them in hundredths of a second; what a living process used
//! it tells in whole hundredths too, and of 500 processes that is seconds too little. So the exact figure of the
//! scheduler is taken where it is larger (`/proc/PID/task/TID/schedstat`). Bytes written are kept by the kernel as
//! processor time is: those of children that were waited for are in the parent's (`task_io_accounting_add`).
//!
//! A child that ends while the tree is looked at may be counted twice or not at all, so the look that counts is
//! taken when the tree rests. What has left the tree (a daemon that was disowned) is not seen.
use mailrun_party::process_usage::ProcessUsage;
use std::collections::HashMap;
use std::fs;

/// A process, as `/proc/PID/stat` describes it. Times are in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pub(crate) pid: u32,
    parent: u32,
    user: u64,
    sys: u64,
    children_user: u64,
    children_sys: u64,
}

/// `root` and all that descends from it; empty if it is gone.
pub(crate) fn members(root: u32) -> Vec<ProcessStat> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let all: Vec<ProcessStat> = pids.filter_map(|pid| stat(pid, &read(pid, "stat")?)).collect();
    subtree(root, &all)
}

/// The children of a process.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    members(parent).into_iter().filter(|member| member.parent == parent).map(|member| member.pid).collect()
}

/// Resources that the tree has used until now; `None` if its root is gone.
pub(crate) fn usage(root: u32) -> Option<ProcessUsage> {
    let members = members(root);
    if members.is_empty() {
        return None;
    }
    let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
    let mut total = ProcessUsage { write_bytes: Some(0), ..ProcessUsage::default() };
    let mut held = TreeMemory::default();
    for member in &members {
        let (user_s, sys_s) = processor_s(member, ticks_per_s);
        total.user_s += user_s + member.children_user as f64 / ticks_per_s;
        total.sys_s += sys_s + member.children_sys as f64 / ticks_per_s;
        // An ended process that waits to be reaped has its final figures; without permission to read them they are
        // unknown.
        let written = read(member.pid, "io").and_then(|text| field(&text, "write_bytes:"));
        total.write_bytes = total.write_bytes.zip(written).map(|(all, one)| all + one);
        held.add(member.pid);
    }
    (total.rss_bytes, total.max_rss_bytes) = (held.resident(), held.peak());
    Some(total)
}

/// Memory of a tree: what each process has for itself, and the largest share that one maps from files, which is mostly
/// the same program and libraries in all of them. That is of this moment; of a single process the kernel knows the peak.
#[derive(Clone, Copy, Debug, Default)]
struct TreeMemory {
    own: u64,
    mapped: u64,
    /// The most that one process ever held.
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

/// User and system time of a living process itself.
fn processor_s(member: &ProcessStat, ticks_per_s: f64) -> (f64, f64) {
    let user_s = member.user as f64 / ticks_per_s;
    let sys_s = member.sys as f64 / ticks_per_s;
    let exact_s = scheduled_s(member.pid);
    match user_s + sys_s {
        told_s if exact_s <= told_s => (user_s, sys_s),
        // No whole tick of either: the scheduler does not split, and a server's time is the kernel's more than its own.
        0.0 => (0.0, exact_s),
        told_s => (exact_s * user_s / told_s, exact_s * sys_s / told_s),
    }
}

/// Processor time of all threads that live, to the nanosecond; 0 if the kernel does not report it.
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
    for member in all {
        of_parent.entry(member.parent).or_default().push(*member);
    }
    let mut found: Vec<ProcessStat> = all.iter().filter(|member| member.pid == root).copied().collect();
    let mut next = 0;
    while next < found.len() {
        // Taken out: a list of processes that was read while they changed might go round in a circle.
        found.extend(of_parent.remove(&found[next].pid).unwrap_or_default());
        next += 1;
    }
    found
}

fn read(pid: u32, file: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/{file}")).ok()
}

/// Fields 4 and 14 to 17 of `/proc/PID/stat`, proc(5). The command's name, field 2, may hold spaces and brackets.
fn stat(pid: u32, text: &str) -> Option<ProcessStat> {
    let (_, after_name) = text.rsplit_once(')')?;
    let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(ProcessStat {
        pid,
        parent: u32::try_from(number(4)?).ok()?,
        user: number(14)?,
        sys: number(15)?,
        children_user: number(16)?,
        children_sys: number(17)?,
    })
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace().next()?.parse().ok()
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
        assert_eq!(pids(&subtree(1, &circle)), [1, 2, 1], "it ends");
    }

    #[test]
    fn fields_are_counted_after_the_name() {
        let text = "42 (a) b (c)) S 7 42 42 0 -1 4194304 100 0 0 0 77 33 5 6 20 0 1 0 1000 0 0";
        let expected = ProcessStat { pid: 42, parent: 7, user: 77, sys: 33, children_user: 5, children_sys: 6 };
        assert_eq!(stat(42, text), Some(expected));
        assert_eq!(stat(42, "nonsense"), None);
    }

    /// A shell in the foreground, killed with its children when dropped.
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
        // The shell itself does nothing: its time is that of a child that has ended before it sleeps.
        let shell = TestShell::run(&format!("({BUSY}); sleep 600; :"));
        let seen = shell.cpu_s_when(|seen| seen.user_s + seen.sys_s >= 0.05 && children(shell.0.id()).len() == 1);
        let own = mailrun_party::process_usage::of(shell.0.id()).expect("it lives");
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
