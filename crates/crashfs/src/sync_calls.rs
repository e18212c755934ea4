//! Notices calls of sync(2) and syncfs(2), which the kernel does not report to a FUSE file system. A tracing instance
//! in the kernel records these calls when they return. It records the calls of the thread that called
//! [`SyncCalls::watch`] and of its descendants. In a PID namespace, it records the calls of all processes of the host.
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

const USUAL_PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Prefix of the name of a tracing instance. The process ID of its owner follows, so that instances of killed programs
/// can be recognised and removed.
const PREFIX: &str = "mailrun-";
const BUFFER_KIB: &str = "64";

/// The mounted tracefs file system. If `find` had to mount it, it is unmounted when this value is dropped.
struct Tracefs {
    path: PathBuf,
    own: Option<TempDir>,
}

impl Tracefs {
    fn find() -> io::Result<Self> {
        let usual = USUAL_PLACES.map(PathBuf::from).into_iter().find(|path| path.join("instances").is_dir());
        if let Some(path) = usual {
            return Ok(Self { path, own: None });
        }
        let own = tempfile::tempdir()?;
        mount("tracefs", own.path(), "tracefs", MountFlags::empty(), None)?;
        Ok(Self { path: own.path().to_owned(), own: Some(own) })
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        self.own.iter().for_each(|own| _ = unmount(own.path(), UnmountFlags::DETACH));
    }
}

struct Instance {
    path: PathBuf,
    _tracefs: Tracefs,
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

pub(crate) struct SyncCalls {
    // Declare `pipe` before `instance`, because fields are dropped in the order of their declaration, and the kernel
    // removes a tracing instance only after its pipe is closed.
    pipe: File,
    instance: Instance,
}

impl SyncCalls {
    /// Begins to watch for sync(2) and syncfs(2) of processes that the calling thread and its descendants start from
    /// now on.
    pub(crate) fn watch() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tracefs = Tracefs::find()?;
        let instances = tracefs.path.join("instances");
        remove_dead(&instances);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = instances.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&path)?;
        let instance = Instance { path, _tracefs: tracefs };
        // Trace the calling thread as well as its descendants, because its own syncfs(2) shows whether tracing works.
        let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
        for (file, value) in [
            ("buffer_size_kb", BUFFER_KIB),
            ("buffer_percent", "0"),
            ("options/event-fork", "1"),
            ("set_event_pid", &thread),
            ("events/syscalls/sys_exit_sync/enable", "1"),
            ("events/syscalls/sys_exit_syncfs/enable", "1"),
        ] {
            fs::write(instance.path.join(file), value)?;
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let pipe = File::from(rustix::fs::open(instance.path.join("trace_pipe"), flags, Mode::empty())?);
        let mut calls = Self { pipe, instance };
        if !calls.sees_own_call()? {
            // In a PID namespace, this thread's number belongs to a different thread of the host. tracefs then traces
            // the wrong thread, so trace all processes of the host instead.
            fs::write(calls.instance.path.join("set_event_pid"), "\n")?;
            if !calls.sees_own_call()? {
                return Err(io::Error::other("its tracing shows no call of syncfs(2)"));
            }
        }
        Ok(calls)
    }

    /// Returns another handle of the trace pipe, so that a thread can wait for sync(2) calls without a lock.
    pub(crate) fn pipe(&self) -> io::Result<File> {
        self.pipe.try_clone()
    }

    /// Tests the tracing: syncs a file system that has no disk (/proc), and returns true if the trace shows this call.
    fn sees_own_call(&mut self) -> io::Result<bool> {
        rustix::fs::syncfs(File::open("/proc/self/stat")?)?;
        Ok(self.take())
    }

    /// Returns true if a sync(2) or syncfs(2) has returned since the last call of this function. Also returns true if
    /// the kernel lost trace records, because a lost record may have been of such a call.
    pub(crate) fn take(&mut self) -> bool {
        let mut text = String::new();
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = self.pipe.read(&mut buffer) {
            text.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
        text.lines().any(|line| line.ends_with("-> 0x0") || line.contains("LOST"))
    }
}

pub(crate) fn wait(pipe: &File, limit: Duration) {
    let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: i64::from(limit.subsec_nanos()) };
    match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(_) => std::thread::sleep(Duration::from_millis(1)),
    }
}

/// Removes the tracing instances that killed programs have left behind.
fn remove_dead(instances: &Path) {
    let names = fs::read_dir(instances).into_iter().flatten().flatten();
    for path in names.map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir(&path);
        }
    }
}
