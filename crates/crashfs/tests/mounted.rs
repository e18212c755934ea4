//! Each way in which a process can make its data durable must also work over FUSE. A separate process writes,
//! because the test's process must not touch the file system that it serves.
#![allow(clippy::unwrap_used)] // The lint exempts `#[test]` functions but not the functions that they call

use mailrun_crashfs::{Disk, Profile, obstacle, sync_calls_obstacle};
use std::process::Command;

/// Script that writes `text` to the file `argv[1]`, and makes it durable in the way that `argv[2]` names.
const WRITER: &str = r#"
import ctypes, mmap, os, sys
path, way = sys.argv[1:]
text = b"x" * 3000
libc = ctypes.CDLL(None)
flags = {"O_DSYNC": os.O_DSYNC, "O_SYNC": os.O_SYNC}.get(way, 0)
file = os.open(path, os.O_RDWR | os.O_CREAT | flags)
if way == "msync":
    os.truncate(file, len(text))
    with mmap.mmap(file, len(text)) as pages:
        pages[:] = text
        pages.flush()
elif way == "RWF_DSYNC":
    os.pwritev(file, [text], 0, os.RWF_DSYNC)
else:
    os.write(file, text)
if way == "fsync": os.fsync(file)
if way == "fdatasync": os.fdatasync(file)
if way == "sync": os.sync()
if way == "syncfs": libc.syncfs(file)
if way == "sync by a daemon":
    if os.fork() == 0:
        os.setsid()
        os.execve("/bin/sync", ["sync"], {})
    os.wait()
if way == "link":
    os.link(path, path + "2")
    os.fsync(file)
    os.unlink(path)
    os.rename(path + "2", path)
    os.fsync(os.open(os.path.dirname(path), os.O_RDONLY))
"#;

/// Writes `files` files, and cuts the power right after each of them. Returns the number of files that survive.
fn survivors(way: &str, files: usize) -> usize {
    let mut disk = Disk::mount(1 << 24, 1).unwrap();
    disk.heed_sync_calls().unwrap();
    disk.with_files(|files, _| files.set_profile(Profile::Ext4));
    let mut kept = 0;
    for number in 0..files {
        let name = format!("{number}");
        let path = disk.path().join(&name);
        let mut writer = Command::new("python3");
        let status = writer.args(["-c", WRITER, path.to_str().unwrap(), way]).status().unwrap();
        assert!(status.success(), "{way}");
        disk.cut_now();
        disk.release();
        disk.restore_power();
        let text = disk.with_files(|files, _| {
            let inode = files.look_up(mailrun_crashfs::ROOT, &name).ok()?.inode;
            Some(files.read(inode, 0, 1 << 20).unwrap().to_vec())
        });
        kept += usize::from(text.is_some_and(|text| text == [b'x'; 3000]));
    }
    kept
}

#[test]
fn what_a_process_synced_in_any_way_survives_a_power_cut() {
    if let Some(reason) = obstacle().or_else(sync_calls_obstacle) {
        return eprintln!("skipped: {reason}");
    }
    let ways =
        ["fsync", "fdatasync", "O_DSYNC", "O_SYNC", "RWF_DSYNC", "sync", "syncfs", "sync by a daemon", "msync", "link"];
    for way in ways {
        assert_eq!(survivors(way, 2), 2, "{way}");
    }
    assert!(survivors("nothing", 6) < 6, "data that nobody synced may be lost");
}

/// Script that moves each file to another directory while it lists the files, as Postfix's queue manager does when it
/// starts. Then it lists an open directory, makes a file in this directory, and lists it again. The script prints the
/// number of files that the first listing left out, and the lengths of the other two listings.
const MOVER: &str = r#"
import os, sys
old, new = [os.path.join(sys.argv[1], name) for name in ("old", "new")]
os.mkdir(old)
os.mkdir(new)
for number in range(3000):
    open(os.path.join(old, str(number)), "w").close()
with os.scandir(old) as entries:
    for entry in entries:
        os.rename(entry.path, os.path.join(new, entry.name))
left = len(os.listdir(old))
directory = os.open(new, os.O_RDONLY)
before = len(os.listdir(directory))
open(os.path.join(new, "another"), "w").close()
print(left, before, len(os.listdir(directory)))
"#;

#[test]
fn a_listing_leaves_out_no_file_while_others_are_renamed() {
    if let Some(reason) = obstacle() {
        return eprintln!("skipped: {reason}");
    }
    let disk = Disk::mount(1 << 24, 1).unwrap();
    let output = Command::new("python3").args(["-c", MOVER, disk.path().to_str().unwrap()]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.trim(), "0 3000 3001", "{output:?}");
}
