//! Checks that the directory of the spool belongs to the relay's user alone, and refuses a
//! directory in which other users could change files.
//!
//! Only the owner of the spool's files can read them. Still, a user with write permission for the directory could
//! remove or replace them, and a user with read permission could count them.
use mailrun_process::reason::reason;
use rustix::fd::OwnedFd;
use rustix::fs::{Access, AtFlags, Mode, OFlags, Stat};
use std::io;
use std::path::{Path, PathBuf};

/// Permission bits that let the group or other users change a directory.
const WRITABLE: u32 = 0o022;
/// Permission bits that let the group or other users read or enter a directory.
const READABLE: u32 = 0o055;
/// The sticky bit. In a directory with this mode bit, users cannot rename or remove the files of other users.
const STICKY: u32 = 0o1000;
/// File system types of proc and sysfs (statfs(2)). A new spool in them is refused, because nobody can create a
/// directory there.
const KERNEL_FILE_SYSTEMS: [u64; 2] = [0x9fa0, 0x6265_6572];
const LOCK_FILE: &str = "lock";

/// Checks that the directory belongs to the user of this process, and that no other user can change it. If other users
/// can read the directory, returns a warning and, if the directory is empty or already a spool, changes its mode so
/// that only this user can read it.
///
/// # Errors
/// Fails if the directory cannot be used as a spool. The error tells the operator why, and what to do about it.
pub(super) fn check(directory: &Path) -> Result<Option<String>, String> {
    // Remove a trailing slash from the path. With the slash, `open` would follow a symbolic link.
    let directory: PathBuf = directory.components().collect();
    let path = directory.display();
    let descriptor = open(&directory).map_err(|error| match is_link(&directory) {
        true => {
            format!("{path} is a symbolic link, which other users may change: use the directory that it points to")
        }
        false => format!("{path}: {}", reason(&error)),
    })?;
    let status = rustix::fs::fstat(&descriptor).map_err(|error| format!("{path}: {}", reason(&error.into())))?;
    check_owner(&directory, &status)?;
    check_parent(&directory, &descriptor)?;
    let mode = mode_of(&status);
    if mode & READABLE == 0 {
        return Ok(None);
    }
    if !is_spool_or_empty(&directory) {
        return Ok(Some(format!("other users can read {path} (mode {mode:04o}): chmod 700 {path}")));
    }
    let change = rustix::fs::fchmod(&descriptor, Mode::RWXU);
    change.map_err(|error| format!("cannot change the mode of {path}: {}", reason(&error.into())))?;
    Ok(Some(format!("other users could read {path} (mode {mode:04o}); the mode was changed to 0700")))
}

/// Checks, without creating anything, whether a spool can be at this path: either the directory exists and belongs to
/// this user, or this user can probably create it.
///
/// # Errors
/// Fails if a spool cannot be created or used at this path. The error tells the operator why.
pub fn can_create(directory: &Path) -> Result<(), String> {
    let directory: PathBuf = directory.components().collect();
    let path = directory.display();
    if directory.symlink_metadata().is_ok() {
        return check_existing(&directory);
    }
    let cannot = |reason: &str| Err(format!("{path} cannot be created: {reason}"));
    let named = |place: &'_ Path| if place.as_os_str().is_empty() { PathBuf::from(".") } else { place.to_owned() };
    let ancestor = directory.ancestors().skip(1).map(named).find(|place| place.symlink_metadata().is_ok());
    let Some(ancestor) = ancestor else { return cannot("there is no directory above it") };
    if !ancestor.is_dir() {
        return cannot(&format!("{} is not a directory", ancestor.display()));
    }
    let system = rustix::fs::statfs(&ancestor).map(|system| system.f_type as u64);
    if system.is_ok_and(|system| KERNEL_FILE_SYSTEMS.contains(&system)) {
        return Err(format!("cannot create a directory in {}", ancestor.display()));
    }
    match rustix::fs::access(&ancestor, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Ok(()),
        Err(error) => cannot(&format!("{}: {}", ancestor.display(), reason(&error.into()))),
    }
}

/// Checks for [`can_create`] that a directory that already exists can be used as a spool. If root runs the check, the
/// directory may belong to another user, because that user may run the relay later.
fn check_existing(directory: &Path) -> Result<(), String> {
    let path = directory.display();
    if is_link(directory) {
        return Err(format!("{path} is a symbolic link: use the directory that it points to"));
    }
    let descriptor = open(directory).map_err(|error| format!("{path}: {}", reason(&error)))?;
    let status = rustix::fs::fstat(&descriptor).map_err(|error| format!("{path}: {}", reason(&error.into())))?;
    if !rustix::process::geteuid().is_root() {
        check_owner(directory, &status)?;
    }
    check_parent(directory, &descriptor)
}

fn open(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(directory, flags, Mode::empty())?)
}

fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink())
}

fn mode_of(status: &Stat) -> u32 {
    status.st_mode & 0o7777
}

/// Checks that the directory belongs to the user of this process, and that no other user can change it.
fn check_owner(directory: &Path, status: &Stat) -> Result<(), String> {
    let path = directory.display();
    let owner = status.st_uid;
    let user = rustix::process::geteuid().as_raw();
    if owner != user {
        return Err(format!("{path} belongs to another user (uid {owner}, not {user}): chown it, or run as that user"));
    }
    let mode = mode_of(status);
    if mode & WRITABLE != 0 {
        return Err(format!("{path} is writable for other users (mode {mode:04o}): chmod 700 {path}"));
    }
    Ok(())
}

/// Refuses a directory if its parent is writable for everyone and has no sticky bit, because any user could rename the
/// directory and put another one in its place.
fn check_parent(directory: &Path, descriptor: &OwnedFd) -> Result<(), String> {
    let parent = rustix::fs::statat(descriptor, "..", AtFlags::SYMLINK_NOFOLLOW);
    let mode = mode_of(&parent.map_err(|error| format!("{}: {}", directory.display(), reason(&error.into())))?);
    if mode & 0o002 != 0 && mode & STICKY == 0 {
        let path = directory.display();
        return Err(format!(
            "any user can replace it: the parent directory of {path} is writable for everyone (mode {mode:04o}); chmod \
             o-w or chmod +t the parent directory"
        ));
    }
    Ok(())
}

/// Returns true if the directory is empty or contains a file of a spool. A single known file suffices, because the
/// other files of the spool may have been deleted.
fn is_spool_or_empty(directory: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    let mut names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).peekable();
    names.peek().is_none() || names.any(|name| name == LOCK_FILE || name.starts_with("segment-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_can_be_made_is_seen_and_not_made() {
        let place = tempfile::tempdir().unwrap();
        let spool = place.path().join("a/b/spool");
        assert_eq!(can_create(&spool), Ok(()));
        assert!(!place.path().join("a").exists());
        assert_eq!(can_create(place.path()), Ok(()));
        assert_eq!(can_create(Path::new("spool-that-is-not-there")), Ok(()));
        let file = place.path().join("file");
        fs::write(&file, "").unwrap();
        for (path, reason) in [
            (file.clone(), "Not a directory"),
            (file.join("spool"), "is not a directory"),
            ("/proc/nope".into(), "cannot create a directory in /proc"),
            ("/sys/kernel/nope".into(), "cannot create a directory in /sys/kernel"),
        ] {
            let error = can_create(&path).unwrap_err();
            assert!(error.contains(reason), "{}: {error}", path.display());
        }
    }

    #[test]
    fn only_a_directory_of_our_own_will_do() {
        let place = tempfile::tempdir().unwrap();
        let spool = place.path().join("spool");
        let is = |mode| fs::set_permissions(&spool, Permissions::from_mode(mode)).unwrap();
        assert!(check(&spool).unwrap_err().contains("No such file"));
        fs::create_dir(&spool).unwrap();
        is(0o700);
        assert_eq!(check(&spool), Ok(None));
        // If other users can read a spool or an empty directory, the check changes the mode to 0700. If they can read a
        // directory that contains only other files, the check only warns.
        is(0o750);
        assert!(check(&spool).unwrap().unwrap().contains("(mode 0750); the mode was changed"));
        assert_eq!(check(&spool), Ok(None));
        fs::write(spool.join("letter"), "").unwrap();
        is(0o705);
        assert!(check(&spool).unwrap().unwrap().contains("other users can read"));
        for name in [LOCK_FILE, "segment-00000000"] {
            fs::write(spool.join(name), "").unwrap();
            is(0o705);
            assert!(check(&spool).unwrap().unwrap().contains("the mode was changed"), "{name}");
            fs::remove_file(spool.join(name)).unwrap();
        }
        for mode in [0o720, 0o702, 0o777, 0o1777] {
            is(mode);
            assert!(check(&spool).unwrap_err().contains("is writable for other users"), "{mode:o}");
        }
        is(0o700);
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&spool, &link).unwrap();
        for link in [link.clone(), link.join("")] {
            assert!(check(&link).unwrap_err().contains("is a symbolic link"), "{}", link.display());
        }
        assert!(check(&spool.join("letter")).unwrap_err().contains("Not a directory"));
    }
}
