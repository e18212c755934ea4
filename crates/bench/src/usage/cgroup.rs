//! A control group of version 2 (cgroups(7)), which counts the CPU time of a server with several
//! processes. `/proc` loses that of processes which nobody waits for, such as Exim's deliveries.
use std::fs;
use std::path::{Path, PathBuf};

/// Prefix of the names of all groups that mailrun makes. The ID of the first process follows.
const PREFIX: &str = "mailrun-";

/// A group of processes. Dropping it removes it, if its processes have ended.
#[derive(Debug)]
pub(crate) struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Moves a process that has just been started into a group of its own. Whatever it starts will
    /// belong to the group, too. Returns `None` if this host has no such groups, or this user may
    /// not make one.
    pub(crate) fn around(pid: u32) -> Option<Self> {
        let parent =
            own_group(&fs::read_to_string("/proc/self/mounts").ok()?, &fs::read_to_string("/proc/self/cgroup").ok()?)?;
        remove_unused(&parent);
        // A group below that of this process has no controllers, so it changes nothing for the
        // server.
        let path = parent.join(format!("{PREFIX}{pid}"));
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        fs::write(group.0.join("cgroup.procs"), pid.to_string()).ok()?;
        Some(group)
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
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // If a process is left, the next run removes the group.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Finds the directory of this process's group.
fn own_group(mounts: &str, groups: &str) -> Option<PathBuf> {
    let mount = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&"cgroup2"))?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount[1]).join(group))
}

/// Removes groups that a mailrun has left because it was killed: those whose first process is gone.
/// The kernel keeps a group that has other processes.
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

    #[test]
    fn the_group_of_this_process_is_below_the_mount_of_version_2() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = own_group(mounts, "1:cpu:/a\n0::/user.slice/b\n");
        assert_eq!(found.as_deref(), Some(Path::new("/sys/fs/cgroup/unified/user.slice/b")));
        assert_eq!(own_group("proc /proc proc rw 0 0\n", "0::/\n"), None);
    }
}
