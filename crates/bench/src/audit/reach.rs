//! Proves that a fault has ended every part of a server: nothing listens on its port, none of its processes is left,
//! and no process uses its directory. A process may survive the fault, for example in a container that a service
//! outside has started. Such a process would keep mail that a real crash loses.
use crate::recipe::{Places, leftovers};
use mailrun_process::proc_stat;
use mailrun_text::words::listed;
use std::collections::HashMap;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time that the server's processes have to disappear after the fault. A process that is still there counts as a
/// survivor.
const LIMIT: Duration = Duration::from_secs(2);
/// Maximum number of processes that the report names if several survive a fault.
const MAX_NAMED: usize = 3;

/// Describes what is left of the server after a fault, or returns `None` if nothing is left.
pub(super) fn survivor(places: &Places) -> Option<String> {
    let limit = Instant::now() + LIMIT;
    loop {
        let survivor = look(places)?;
        if Instant::now() > limit {
            return Some(survivor);
        }
        sleep(Duration::from_millis(20));
    }
}

fn look(places: &Places) -> Option<String> {
    let left = leftovers::processes_in(&places.directory);
    let mut names: Vec<String> = left.iter().map(|process| format!("{} ({})", process.name, process.pid)).collect();
    names.truncate(MAX_NAMED);
    if !names.is_empty() {
        return Some(format!("the fault did not end {}", listed(&names)));
    }
    if TcpStream::connect_timeout(&places.listen, LIMIT).is_ok() {
        return Some(format!("a process that the fault did not reach still listens on {}", places.listen));
    }
    let users = users_of(&[&places.directory, &places.state]);
    let verb = if users.len() == 1 { "uses" } else { "use" };
    (!users.is_empty()).then(|| {
        format!(
            "{}, which the fault did not reach, {verb} the server's directory",
            listed(&users[..users.len().min(MAX_NAMED)])
        )
    })
}

/// Returns the names and IDs of the processes that use one of `directories`: their working directory, root directory,
/// program or an open file is in it. This process itself is left out.
fn users_of(directories: &[&Path]) -> Vec<String> {
    let own = std::process::id();
    let mut mounts = MountTables::default();
    let absolute = directories.iter().filter_map(|directory| std::path::absolute(directory).ok());
    let places: Vec<Place> = absolute.filter_map(|directory| mounts.of(own)?.place(&directory)).collect();
    let mut uses = |pid: u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let links = ["cwd", "root", "exe"].map(|name| PathBuf::from(format!("/proc/{pid}/{name}")));
        let targets = links.into_iter().chain(descriptors.map(|entry| entry.path()));
        let mut paths = targets.filter_map(|link| fs::read_link(link).ok()).filter(|path| path.is_absolute());
        let table = mounts.of(pid);
        paths.any(|path| {
            let used = table.and_then(|table| table.place(&path));
            used.is_some_and(|used| places.iter().any(|place| place.contains(&used)))
        })
    };
    let name = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
    let users = proc_stat::pids().filter(|pid| *pid != own && uses(*pid));
    users.map(|pid| format!("{} ({pid})", name(pid))).collect()
}

/// A file or directory, identified by its device and its path on the device. Both are the same in every mount
/// namespace, unlike the path that a process sees.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    device: String,
    path: PathBuf,
}

impl Place {
    fn contains(&self, other: &Self) -> bool {
        self.device == other.device && other.path.starts_with(&self.path)
    }
}

/// Mounts that a process sees, as `/proc/PID/mountinfo` lists them (proc_pid_mountinfo(5)).
struct MountTable(Vec<Mount>);

struct Mount {
    device: String,
    /// Directory of the file system that is mounted at `point`: `/`, or a subdirectory if this is a bind mount.
    root: PathBuf,
    point: PathBuf,
}

impl MountTable {
    fn parse(text: &str) -> Self {
        let mount = |line: &str| {
            let mut fields = line.split(' ').skip(2);
            let mut next = || fields.next().map(|field| field.replace("\\040", " "));
            Some(Mount { device: next()?, root: next()?.into(), point: next()?.into() })
        };
        Self(text.lines().filter_map(mount).collect())
    }

    fn place(&self, path: &Path) -> Option<Place> {
        // If several mounts are on one directory, only the last one is visible. `max_by_key` finds it, because it
        // returns the last of several maxima.
        let mounts = self.0.iter().filter(|mount| path.starts_with(&mount.point));
        let mount = mounts.max_by_key(|mount| mount.point.components().count())?;
        let path = mount.root.join(path.strip_prefix(&mount.point).ok()?);
        Some(Place { device: mount.device.clone(), path })
    }
}

#[derive(Default)]
struct MountTables(HashMap<PathBuf, MountTable>);

impl MountTables {
    /// Returns the mounts that a process sees, or `None` if the process is gone.
    fn of(&mut self, pid: u32) -> Option<&MountTable> {
        let namespace = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()?;
        let own = fs::read_link("/proc/self/ns/mnt").ok()?;
        // If the process is in our mount namespace, read our own list of mounts. The list of a process in a chroot
        // lacks the mounts outside the chroot, but the paths that `/proc` shows us begin at our own root.
        let whose = if namespace == own { "self".to_owned() } else { pid.to_string() };
        let table = || fs::read_to_string(format!("/proc/{whose}/mountinfo")).unwrap_or_default();
        Some(self.0.entry(namespace).or_insert_with(|| MountTable::parse(&table())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_file_is_the_same_in_each_mount_namespace() {
        let host = MountTable::parse(
            "21 1 254:0 / / rw - ext4 /dev/vda rw\n40 21 0:50 / /srv/my\\040run/state rw - fuse mailrun rw\n",
        );
        let container = MountTable::parse(
            "90 1 0:60 / / rw - overlay overlay rw\n91 90 254:0 /srv/my\\040run /data rw - ext4 /dev/vda rw\n92 91 0:50 / \
             /data/state rw - fuse mailrun rw\n",
        );
        let place = |table: &MountTable, path: &str| table.place(Path::new(path)).unwrap();
        let directory = place(&host, "/srv/my run");
        let state = place(&host, "/srv/my run/state");
        assert_eq!(state, Place { device: "0:50".to_owned(), path: "/".into() });
        for (path, in_directory, in_state) in [
            ("/data/log", true, false),
            ("/data", true, false),
            ("/data/state/spool/1", false, true),
            ("/etc/passwd", false, false),
            ("/srv/my run/log", false, false),
        ] {
            let used = place(&container, path);
            assert_eq!((directory.contains(&used), state.contains(&used)), (in_directory, in_state), "{path}");
        }
    }

    #[test]
    fn a_process_that_works_in_a_directory_or_has_a_file_open_uses_it() {
        let place = tempfile::tempdir().unwrap();
        assert!(users_of(&[place.path()]).is_empty());
        fs::write(place.path().join("file"), "x").unwrap();
        for script in ["cd \"$1\"; echo ready; read x", "exec 3<\"$1/file\"; echo ready; read x"] {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script, "sh"]).arg(place.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut shell = command.spawn().unwrap();
            let mut ready = [0; 6];
            std::io::Read::read_exact(&mut shell.stdout.take().unwrap(), &mut ready).unwrap();
            assert_eq!(users_of(&[place.path()]), [format!("sh ({})", shell.id())]);
            drop(shell.stdin.take());
            shell.wait().unwrap();
        }
    }
}
