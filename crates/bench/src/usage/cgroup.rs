//! A control group of version 2 (cgroups(7)), which counts the CPU time of a server with several processes. `/proc`
//! loses the time of processes that nobody waits for, such as Exim's deliveries. The group also includes daemons that
//! no longer descend from the server's first process.
use super::tree;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

/// Prefix in the names of mailrun's control groups. The rest of the name is the ID of the group's first process.
const PREFIX: &str = "mailrun-";

/// Directory of a control group. Dropping this value removes the group from the system, unless a process of the group
/// is still running.
#[derive(Debug)]
pub(crate) struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Moves a server that has just been started into a group of its own. Every process that it starts will belong to
    /// the group as well. Returns `None` if this host has no control groups of version 2, or if this user may not
    /// create one.
    pub(crate) fn around(server: &Child) -> Option<Self> {
        let parent =
            own_group(&fs::read_to_string("/proc/self/mounts").ok()?, &fs::read_to_string("/proc/self/cgroup").ok()?)?;
        remove_unused(&parent);
        // Create the group inside the group of this process, and enable no controllers, so that the group does not
        // limit the server.
        let group = Self(parent.join(format!("{PREFIX}{}", server.id())));
        fs::create_dir(&group.0).ok()?;
        // Stop the server while it is moved into the group, which takes milliseconds. Otherwise, it could start a
        // process that stays outside the group. Processes that it has already started are moved as well.
        let pid = Pid::from_child(server);
        let _ = kill_process(pid, Signal::STOP);
        let is_inside = group.take(server.id());
        for descendant in tree::members(server.id()).into_iter().skip(1) {
            group.take(descendant.pid);
        }
        let _ = kill_process(pid, Signal::CONT);
        is_inside.then_some(group)
    }

    fn take(&self, pid: u32) -> bool {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).is_ok()
    }

    /// Returns the CPU time in user mode and in the kernel that all processes of the group have
    /// used so far, in seconds.
    pub(crate) fn cpu_s(&self) -> Option<(f64, f64)> {
        let stat = fs::read_to_string(self.0.join("cpu.stat")).ok()?;
        let seconds = |name: &str| {
            let number = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            Some(number.parse::<u64>().ok()? as f64 / 1e6)
        };
        Some((seconds("user_usec")?, seconds("system_usec")?))
    }

    /// Returns the IDs of the running processes of the group.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let pids = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        // Skip 0, which stands for a process that is not visible in this PID namespace.
        pids.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect()
    }

    pub(crate) fn kill(&self) {
        // `cgroup.kill`, which exists since Linux 5.14, also kills a process that is just being started.
        if fs::write(self.0.join("cgroup.kill"), "1").is_err() {
            for pid in self.processes().into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Ignore the error, which means that a process still runs in the group. `remove_unused` removes such a group
        // later.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Finds the directory of the control group to which this process belongs. `mounts` and `groups` are the contents of
/// `/proc/self/mounts` and of `/proc/self/cgroup`.
fn own_group(mounts: &str, groups: &str) -> Option<PathBuf> {
    let mount = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&"cgroup2"))?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount[1]).join(group))
}

/// Removes control groups that an earlier mailrun left behind because it was killed. These are the groups whose first
/// process is gone. The kernel refuses to remove a group that still has other processes.
fn remove_unused(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    /// If this user cannot create a control group on this host, the test checks nothing. `tests/all/recipes.rs` reports
    /// such a host.
    #[test]
    fn a_child_that_a_server_started_before_it_was_moved_is_in_the_group() {
        let mut server = Command::new("sh");
        let mut server = server.args(["-c", "sleep 60 & echo $!; wait"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut child = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut child).unwrap();
        let group = ControlGroup::around(&server);
        let members = group.as_ref().map(ControlGroup::processes);
        let child: u32 = child.trim().parse().unwrap();
        kill_process(Pid::from_raw(child as i32).unwrap(), Signal::KILL).unwrap();
        server.wait().unwrap();
        assert!(members.is_none_or(|members| members.contains(&child)));
    }

    #[test]
    fn the_group_of_this_process_is_below_the_mount_of_version_2() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = own_group(mounts, "1:cpu:/a\n0::/user.slice/b\n");
        assert_eq!(found.as_deref(), Some(Path::new("/sys/fs/cgroup/unified/user.slice/b")));
        assert_eq!(own_group("proc /proc proc rw 0 0\n", "0::/\n"), None);
    }
}
