//! Facts about the host of a run, for the run's record. Without them, nobody could tell whether the
//! figures of two runs are comparable.
use crate::cpus;
use crate::keep_awake;
use mailrun_measurement::record::{Host, HostDisk};
use std::fs;
use std::path::{Path, PathBuf};

const UNKNOWN: &str = "unknown";

/// Collects facts about this host. If the process has a `directory` for its mail or its results,
/// the facts include the disk under it.
pub fn facts(directory: Option<&Path>) -> Host {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    Host {
        os: os_name(&text("/etc/os-release")),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        cpu_model: cpu_model(&text("/proc/cpuinfo")),
        cores: u32::try_from(cpus::host_cores()).unwrap_or(u32::MAX),
        memory_bytes: memory_bytes(&text("/proc/meminfo")),
        disk: directory.and_then(disk_under),
        keep_awake: keep_awake::state(),
    }
}

/// Returns the file system that contains a directory and, if known, the disk under it.
pub fn disk_under(directory: &Path) -> Option<HostDisk> {
    let path = directory.canonicalize().ok()?;
    let mount = mount_of(&fs::read_to_string("/proc/self/mountinfo").ok()?, &path)?;
    let device = Path::new(&mount.source).canonicalize().ok().filter(|path| path.starts_with("/dev"));
    let disk = device.as_deref().and_then(sysfs_disk);
    let fact = |name: &str| {
        let text = fs::read_to_string(disk.as_ref()?.join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    Some(HostDisk {
        file_system: mount.file_system,
        device: device.map(|path| path.to_string_lossy().into_owned()),
        model: fact("device/model"),
        rotational: fact("queue/rotational")
            .and_then(|flag| rotational(&flag, &fs::read_to_string("/proc/cpuinfo").unwrap_or_default())),
    })
}

/// Tells whether a disk rotates, from the flag `rotational` of its queue in sysfs. In a virtual machine, a flag of 1
/// counts as unknown, because there the kernel also sets it for every disk of unknown kind.
fn rotational(flag: &str, cpuinfo: &str) -> Option<bool> {
    let flags = cpuinfo.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == "flags");
    let is_virtual = flags.is_some_and(|(_, flags)| flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"));
    match flag {
        "0" => Some(false),
        "1" if !is_virtual => Some(true),
        _ => None,
    }
}

/// Type and source of a mounted file system, from a line of mountinfo (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
struct MountedFileSystem {
    file_system: String,
    source: String,
}

/// Returns the mount that contains a path, which is the one whose mount point is the longest prefix of the path. If
/// several file systems are mounted there, the last one counts, because it hides the others.
fn mount_of(mountinfo: &str, path: &Path) -> Option<MountedFileSystem> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let point = PathBuf::from(unescaped(mount.split(' ').nth(4)?));
        let mut fields = source.split(' ');
        let file_system = fields.next()?.to_owned();
        Some((point, MountedFileSystem { file_system, source: unescaped(fields.next()?) }))
    });
    let above = mounts.filter(|(point, _)| path.starts_with(point));
    above.max_by_key(|(point, _)| point.components().count()).map(|(_, mount)| mount)
}

/// Decodes a field of mountinfo, in which white space and backslashes are octal codes such as `\\040`.
fn unescaped(field: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.into_iter().fold(field.to_owned(), |text, (code, letter)| text.replace(code, letter))
}

/// Returns the sysfs directory of a disk or, for a partition, of the disk that contains it.
fn sysfs_disk(device: &Path) -> Option<PathBuf> {
    let block = Path::new("/sys/class/block").join(device.file_name()?).canonicalize().ok()?;
    if block.join("partition").exists() { block.parent().map(Path::to_owned) } else { Some(block) }
}

/// Reads the operating system's name (`PRETTY_NAME`) from os-release(5). The value may be quoted.
fn os_name(os_release: &str) -> String {
    let name = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    known_or_unknown(name.map(|name| name.trim_matches(['"', '\''])))
}

/// Reads the CPU model from `/proc/cpuinfo`. On x86, the field `model name` holds it. ARM rarely has this field and
/// names the model in `Model` or `Hardware` instead.
fn cpu_model(cpuinfo: &str) -> String {
    let value =
        |wanted: &str| cpuinfo.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == wanted);
    let entry = ["model name", "Model", "Hardware"].into_iter().find_map(value);
    known_or_unknown(entry.map(|(_, model)| model))
}

fn memory_bytes(meminfo: &str) -> u64 {
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    kib.and_then(|text| text.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

fn known_or_unknown(name: Option<&str>) -> String {
    name.map(str::trim).filter(|name| !name.is_empty()).unwrap_or(UNKNOWN).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_release_is_read_with_and_without_quotes() {
        assert_eq!(
            os_name("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            "Debian GNU/Linux 12 (bookworm)"
        );
        assert_eq!(os_name("PRETTY_NAME=Alpine\n"), "Alpine");
        assert_eq!(os_name(""), UNKNOWN);
    }

    #[test]
    fn cpuinfo_and_meminfo_are_read() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: AMD EPYC\n"), "AMD EPYC");
        assert_eq!(cpu_model("processor\t: 0\n"), UNKNOWN);
        assert_eq!(memory_bytes("MemTotal:       24567890 kB\n"), 24_567_890 << 10);
        assert_eq!(memory_bytes(""), 0);
    }

    #[test]
    fn a_virtual_machine_does_not_tell_whether_its_disk_rotates() {
        let [real, virtual_machine] = ["flags\t\t: fpu sse", "flags\t\t: fpu hypervisor sse"];
        assert_eq!([rotational("1", real), rotational("1", virtual_machine)], [Some(true), None]);
        assert_eq!([rotational("0", real), rotational("0", virtual_machine)], [Some(false); 2]);
        assert_eq!(rotational("", real), None);
    }

    #[test]
    fn a_path_lies_on_the_nearest_mount_above_it() {
        let mountinfo = "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
            30 22 0:25 / /tmp rw - tmpfs tmpfs rw\n\
            31 22 254:17 /x /srv/my\\040mail rw,relatime shared:9 master:2 - xfs /dev/vdb1 rw\n\
            32 22 0:26 / /tmp rw - ramfs none rw\n\
            damaged\n";
        for (path, file_system, source) in [
            ("/home/a", "ext4", "/dev/vda1"),
            ("/tmp/x/y", "ramfs", "none"),
            ("/tmpx", "ext4", "/dev/vda1"),
            ("/srv/my mail/spool", "xfs", "/dev/vdb1"),
        ] {
            let mount = mount_of(mountinfo, Path::new(path)).unwrap();
            assert_eq!((mount.file_system.as_str(), mount.source.as_str()), (file_system, source), "{path}");
        }
        assert_eq!(mount_of("", Path::new("/")), None);
    }

    #[test]
    fn this_host_has_a_file_system() {
        let disk = disk_under(&std::env::temp_dir()).unwrap();
        assert!(!disk.file_system.is_empty(), "{disk:?}");
        assert_eq!(disk_under(Path::new("/nowhere/at/all")), None);
    }

    #[test]
    fn this_host_has_cores_and_memory() {
        let host = facts(None);
        assert!(host.cores >= 1 && host.memory_bytes > 0 && !host.kernel.is_empty(), "{host:?}");
        assert_eq!(host.disk, None);
        assert_eq!(facts(Some(&std::env::temp_dir())).disk, disk_under(&std::env::temp_dir()));
    }
}
