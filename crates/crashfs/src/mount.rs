//! Serves the file system over FUSE from a thread of this process, cuts its power and makes its operations fail.
//!
//! The power is cut at a planned operation, or when the caller asks for it. From then on, operations have no effect and
//! get no answer, as if the machine had stopped. The caller must then kill the process that used the files. Afterwards,
//! [`Disk::restore_power`] drops the unsynced data. This process itself never touches the mount point, because it would
//! then wait for its own answer. Whatever happens, the file system is unmounted when the disk is dropped.
use crate::file_system::{Attributes, FileSystem, ROOT};
use crate::sync_calls::{self, SyncCalls};
use crate::types::{FileKind, Inode, Owner, SpecialFile, error_name};
use fuser::{
    AccessFlags, BackgroundSession, BsdFileFlags, Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use mailrun_lock::{lock, unpoisoned};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// Name of the file system in the first column of /proc/mounts.
pub const FILE_SYSTEM: &str = "mailrun-power-cut";

/// Time for which the kernel may cache attributes and names. It is zero, because a cache would be wrong after a power
/// cut.
const NO_CACHE: Duration = Duration::ZERO;

/// Longest time that an operation remains unanswered after a power cut. Callers kill the process that waits for the
/// answer within milliseconds, so the limit matters only if they fail to do so.
const UNANSWERED_LIMIT: Duration = Duration::from_secs(60);

/// Flag of a write that returns only when its data is durable. `O_SYNC` includes this flag, and the kernel adds it for
/// `RWF_DSYNC`. Its value is the same on x86, ARM and RISC-V (open(2)). rustix's constant has the value of `O_SYNC`
/// instead.
const O_DSYNC: i32 = 0o10000;

/// Interval at which the thread that waits for calls of sync(2) checks whether it should end.
const SYNC_POLL: Duration = Duration::from_millis(50);

/// Failure that the file system can inject into an operation. Some variants concern only spool segments in use. A spool
/// segment is a file in which mailrun's relay stores mail. It is in use once its name and its header are on the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write to a spool segment in use fails and writes nothing.
    Write(Errno),
    /// A write to a spool segment in use writes only a part of the bytes and reports this, as write(2) may.
    ShortWrite,
    /// A sync of a spool segment in use fails. Some of its pages are never written.
    Sync(Errno),
    DirectorySync(Errno),
    /// A write to any file fails once and writes nothing.
    AnyWrite(Errno),
    /// A sync of any file, or a write with `O_DSYNC`, fails once. Some of the file's pages are never written.
    AnySync(Errno),
    /// The creation of a file fails, or an allocation, a write or a sync of an existing file fails. Spool segments in
    /// use are not affected, but segments that are still being created are.
    Making(Errno),
    Read(Errno),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, errno) = match self {
            Self::Write(errno) | Self::AnyWrite(errno) => ("write", errno),
            Self::ShortWrite => return f.pad("short write"),
            Self::Sync(errno) | Self::AnySync(errno) => ("sync", errno),
            Self::DirectorySync(errno) => ("sync of a directory", errno),
            Self::Making(errno) => ("making a file", errno),
            Self::Read(errno) => ("read", errno),
        };
        f.pad(&format!("{what}: {}", error_name(*errno)))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Hit {
    pub fault: Fault,
    pub at: Instant,
}

/// Power cut and fault to inject while processes use the disk. Both are optional. Each has the number of the operation
/// at which it occurs, but the two numbers do not count the same operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Number of the operation at which the power is cut. The count starts at 1, and includes only changes and syncs.
    pub cut_at: Option<u64>,
    /// A fault, and the number of the operation at which it occurs. Only operations that the fault can affect are
    /// counted, from 1.
    pub fault: Option<(Fault, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    Make,
    Write(Inode, u64),
    /// A write that returns only when its data is durable, because of `O_DSYNC`, `O_SYNC` or `RWF_DSYNC`.
    SyncedWrite,
    Allocate(Inode),
    Sync(Inode),
    SyncDirectory,
    Other,
}

struct State {
    files: FileSystem,
    chance: StdRng,
    plan: Plan,
    operations: u64,
    faultable: u64,
    hit: Option<Hit>,
    /// A write that has failed once and must fail again if it is repeated. The kernel divides long writes, and if the
    /// second part fails, it reports only the success of the first part. The process then writes the second part again.
    failed_write: Option<(Operation, Fault)>,
    /// Set between a simulated power cut and `restore_power`. Operations then have no effect and get no answer.
    is_off: bool,
    /// Set when unanswered operations may end with an error, because the processes that wait for them have been killed.
    is_released: bool,
    clean_at: Instant,
    unsupported: BTreeSet<&'static str>,
    /// Contents of the open directories, by file handle. A process that renames or removes files while it lists them
    /// must still see all other files, so all calls of readdir(2) are answered from the list of the first call.
    listings: HashMap<u64, Vec<(String, Attributes)>>,
    /// Number of directories opened so far. The directory opened last has this number as its file handle.
    opened_directories: u64,
}

#[derive(Clone)]
struct Shared(Arc<(Mutex<State>, Condvar)>);

/// Thread that makes all files of the simulated disk durable after each sync(2) of a process. It ends when this value
/// is dropped.
struct SyncWatch {
    calls: Arc<Mutex<SyncCalls>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for SyncWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// A mounted file system, which is unmounted when this value is dropped.
pub struct Disk {
    shared: Shared,
    session: Option<BackgroundSession>,
    /// Watches for sync(2) and syncfs(2), which the kernel does not report to a FUSE file system. `None` until
    /// [`Self::heed_sync_calls`] is called.
    sync_calls: Option<SyncWatch>,
    path: PathBuf,
    /// Directory of the mount point, which is removed on drop. `None` if the caller chose the mount point.
    _place: Option<TempDir>,
}

impl Disk {
    /// Mounts an empty file system with `capacity` bytes in a directory of its own. The random numbers that `seed`
    /// generates decide which unsynced data survives cuts and failed syncs.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses to mount the file system, for example because this process is not root.
    pub fn mount(capacity: u64, seed: u64) -> io::Result<Self> {
        let place = tempfile::tempdir()?;
        let mut disk = Self::mount_at(place.path(), capacity, seed)?;
        disk._place = Some(place);
        Ok(disk)
    }

    /// Mounts an empty file system on an existing directory.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses to mount the file system, for example because this process is not root.
    pub fn mount_at(path: &Path, capacity: u64, seed: u64) -> io::Result<Self> {
        let state = State {
            files: FileSystem::new(capacity),
            chance: StdRng::seed_from_u64(seed),
            plan: Plan::default(),
            operations: 0,
            faultable: 0,
            hit: None,
            failed_write: None,
            is_off: false,
            is_released: false,
            clean_at: Instant::now(),
            unsupported: BTreeSet::new(),
            listings: HashMap::new(),
            opened_directories: 0,
        };
        let shared = Shared(Arc::new((Mutex::new(state), Condvar::new())));
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(FILE_SYSTEM.to_owned()),
            MountOption::NoAtime,
            // The processes of a server run as several users, so let the kernel check each user's permissions.
            MountOption::DefaultPermissions,
        ];
        config.acl = fuser::SessionACL::All;
        let session = fuser::spawn_mount(Served(shared.clone()), path, &config)?;
        Ok(Self { shared, session: Some(session), sync_calls: None, path: path.to_owned(), _place: None })
    }

    /// Makes everything durable whenever a process calls sync(2) or syncfs(2). This works only for processes that the
    /// calling thread or its descendants start from now on. A syncfs(2) of another file system counts as well, because
    /// the kernel does not report for which file system it was called.
    ///
    /// # Errors
    ///
    /// Fails if tracefs cannot be mounted or does not report these calls.
    pub fn heed_sync_calls(&mut self) -> io::Result<()> {
        let calls = SyncCalls::watch()?;
        let pipe = calls.pipe()?;
        let (calls, is_over) = (Arc::new(Mutex::new(calls)), Arc::new(AtomicBool::new(false)));
        let (shared, of_thread, is_thread_over) = (self.shared.clone(), calls.clone(), is_over.clone());
        let heed = move || {
            while !is_thread_over.load(Ordering::Relaxed) {
                sync_calls::wait(&pipe, SYNC_POLL);
                shared.heed_sync_calls(&of_thread);
            }
        };
        let thread = thread::Builder::new().name("sync calls".to_owned()).spawn(heed)?;
        self.sync_calls = Some(SyncWatch { calls, is_over, thread: Some(thread) });
        Ok(())
    }

    /// Returns the mount point, which only other processes may use. This process serves the file system, so it would
    /// wait for its own answers.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the planned power cut and fault, forgets the last fault, and begins to count operations again.
    pub fn plan(&self, plan: Plan) {
        let mut state = self.shared.lock();
        state.plan = plan;
        state.operations = 0;
        state.faultable = 0;
        state.hit = None;
        state.failed_write = None;
        state.is_released = false;
    }

    /// Returns the fault that has occurred, or `None` if the planned fault has not occurred yet.
    pub fn hit(&self) -> Option<Hit> {
        self.shared.lock().hit
    }

    /// Returns how many times processes have changed or synced files or directories since the last call of
    /// [`Disk::plan`].
    pub fn operations(&self) -> u64 {
        self.shared.lock().operations
    }

    pub fn wait_for_cut(&self, time: Duration) -> bool {
        let state = self.shared.lock();
        let result = self.shared.0.1.wait_timeout_while(state, time, |state| !state.is_off);
        unpoisoned(result).0.is_off
    }

    /// Cuts the power immediately. Data that an earlier sync(2) made durable survives, even if the watching thread has
    /// not noticed that call.
    pub fn cut_now(&self) {
        self.shared.lock().turn_off();
        self.shared.0.1.notify_all();
        self.sync_calls.iter().for_each(|watch| self.shared.heed_sync_calls(&watch.calls));
    }

    /// Fails the operations that a power cut left unanswered. The caller must have killed the processes that wait for
    /// an answer. Even a killed process cannot exit before its operation is answered.
    pub fn release(&self) {
        self.shared.lock().is_released = true;
        self.shared.0.1.notify_all();
    }

    /// Discards the data that was unsynced when the power was cut, and answers operations again.
    pub fn restore_power(&self) {
        let mut state = self.shared.lock();
        let State { files, chance, .. } = &mut *state;
        files.cut(chance);
        state.is_off = false;
        state.is_released = false;
        state.plan = Plan::default();
        state.clean_at = Instant::now();
    }

    /// Returns the latest time at which a power cut is known to lose no data: the time of the mount, of
    /// `restore_power`, or of a sync of a file that left no unsynced data in any file.
    pub fn clean_at(&self) -> Instant {
        self.shared.lock().clean_at
    }

    /// Returns the unsupported operations, such as `symlink`, that processes have requested since the last call of this
    /// method. Shared mappings (mmap(2)) are never in the result, because Linux before 6.6 refuses them without asking
    /// this file system.
    pub fn take_unsupported(&self) -> BTreeSet<&'static str> {
        std::mem::take(&mut self.shared.lock().unsupported)
    }

    /// Starts a log of the calls, each with its time on the monotonic clock. If the log would exceed `limit` bytes, the
    /// whole log is discarded.
    pub fn record_calls(&self, limit: usize) {
        let clock = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            Duration::try_from(now).unwrap_or_default()
        };
        self.shared.lock().files.record_calls(limit, clock);
    }

    /// Lets `look` inspect or change the files directly in memory, without an operation of a process. A [`Plan`]
    /// therefore does not count what `look` does.
    pub fn with_files<T>(&self, look: impl FnOnce(&mut FileSystem, &mut StdRng) -> T) -> T {
        let State { files, chance, .. } = &mut *self.shared.lock();
        look(files, chance)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.cut_now();
        self.release();
        // Detach the file system, so that it is unmounted immediately even if a process hangs in an operation. That
        // process then gets an error instead of an answer.
        if let Err(error) = rustix::mount::unmount(&self.path, UnmountFlags::DETACH) {
            eprintln!("cannot unmount {}: {error}", self.path.display());
        }
        let Some(session) = self.session.take() else { return };
        let limit = Instant::now() + Duration::from_secs(5);
        while !session.guard.is_finished() && Instant::now() < limit {
            thread::sleep(Duration::from_millis(1));
        }
        if session.guard.is_finished() {
            _ = session.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0.0)
    }

    fn heed_sync_calls(&self, calls: &Mutex<SyncCalls>) {
        if lock(calls).take() {
            self.lock().files.sync_all();
        }
    }

    /// Leaves an operation unanswered until [`Disk::release`] is called, but at most for `UNANSWERED_LIMIT`. Then the
    /// operation fails with EIO.
    fn stop(&self, state: MutexGuard<'_, State>) -> Errno {
        let wait = self.0.1.wait_timeout_while(state, UNANSWERED_LIMIT, |state| state.is_off && !state.is_released);
        drop(wait);
        Errno::IO
    }

    /// Performs an operation that does not change the files, such as a read. Such operations are not counted, so the
    /// planned power cut never happens in one of them.
    fn look<T>(
        &self,
        operation: Operation,
        look: impl FnOnce(&mut FileSystem) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut state = self.lock();
        if state.is_off {
            return Err(self.stop(state));
        }
        match state.fault_of(operation) {
            Some(Fault::Read(errno)) => Err(errno),
            _ => look(&mut state.files),
        }
    }

    /// Performs an operation that changes files or names, or makes changes durable. Counts the operation, and cuts the
    /// power if the plan says so for an operation with this number.
    fn change<T>(
        &self,
        operation: Operation,
        change: impl FnOnce(&mut FileSystem, Option<Fault>, &mut StdRng) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut state = self.lock();
        if state.is_off {
            return Err(self.stop(state));
        }
        state.operations += 1;
        state.files.set_time(SystemTime::now());
        let fault = state.fault_of(operation);
        let is_cut = state.plan.cut_at == Some(state.operations);
        // If the power fails during an operation other than a write, decide at random whether the disk has already
        // carried out the operation.
        let is_done = !is_cut || matches!(operation, Operation::Write(..)) || state.chance.random();
        let State { files, chance, .. } = &mut *state;
        let changed = if is_done { change(files, fault, chance) } else { Err(Errno::IO) };
        if is_cut {
            state.turn_off();
            self.0.1.notify_all();
            return Err(self.stop(state));
        }
        if matches!(operation, Operation::Sync(_)) && changed.is_ok() && state.files.is_clean() {
            state.clean_at = Instant::now();
        }
        changed
    }
}

impl Shared {
    /// Refuses an unsupported operation with the error that a Linux file system without this operation would report.
    fn refuse(&self, operation: &'static str, error: Errno) -> fuser::Errno {
        self.lock().unsupported.insert(operation);
        errno(error)
    }
}

impl State {
    fn turn_off(&mut self) {
        if !self.is_off {
            // Set the time first, because it decides which old changes the kernel would have written to the disk.
            self.files.set_time(SystemTime::now());
            self.files.turn_off();
        }
        self.is_off = true;
    }

    fn fault_of(&mut self, operation: Operation) -> Option<Fault> {
        if let Some((_, fault)) = self.failed_write.filter(|(failed, _)| *failed == operation) {
            return Some(fault);
        }
        let (fault, turn) = self.plan.fault.filter(|(fault, _)| self.can_have(operation, *fault))?;
        self.faultable += 1;
        if self.faultable != turn {
            return None;
        }
        self.hit = Some(Hit { fault, at: Instant::now() });
        if matches!(fault, Fault::Write(_)) {
            self.failed_write = Some((operation, fault));
        }
        Some(fault)
    }

    fn can_have(&self, operation: Operation, fault: Fault) -> bool {
        // A segment of the spool is in use only once its header is durable. A durable name is not enough, because a
        // sync of the directory for another file makes the name durable as well. Exclude the spool's file `newest`,
        // because it is not a segment, and the spool accepts mail even if this file cannot be written.
        let is_used = |inode| {
            self.files.is_durably_named(inode)
                && self.files.has_durable_header(inode)
                && !self.files.is_durably_called(inode, "newest")
        };
        match (fault, operation) {
            (Fault::Write(_) | Fault::ShortWrite, Operation::Write(inode, _)) => is_used(inode),
            (Fault::Sync(_), Operation::Sync(inode)) => is_used(inode),
            (Fault::Making(_), Operation::Write(inode, _) | Operation::Allocate(inode) | Operation::Sync(inode)) => {
                !is_used(inode)
            }
            (Fault::AnyWrite(_), Operation::Write(..) | Operation::SyncedWrite)
            | (Fault::AnySync(_), Operation::Sync(_) | Operation::SyncedWrite)
            | (Fault::Making(_), Operation::Make)
            | (Fault::DirectorySync(_), Operation::SyncDirectory)
            | (Fault::Read(_), Operation::Read) => true,
            _ => false,
        }
    }
}

struct Served(Shared);

fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

fn text(name: &OsStr) -> &str {
    name.to_str().unwrap_or("�")
}

fn attributes(metadata: Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(metadata.inode),
        size: metadata.bytes,
        blocks: metadata.bytes.div_ceil(512),
        atime: metadata.times.modified,
        mtime: metadata.times.modified,
        ctime: metadata.times.changed,
        crtime: UNIX_EPOCH,
        kind: kind(metadata),
        perm: metadata.permissions,
        nlink: metadata.names,
        uid: metadata.owner.user,
        gid: metadata.owner.group,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn kind(metadata: Attributes) -> FileType {
    match metadata.kind {
        FileKind::Directory => FileType::Directory,
        FileKind::Regular => FileType::RegularFile,
        FileKind::Special(SpecialFile::Fifo) => FileType::NamedPipe,
        FileKind::Special(SpecialFile::Socket) => FileType::Socket,
    }
}

fn permissions(mode: u32, umask: u32) -> u16 {
    (mode & !umask & 0o7777) as u16
}

fn owned(files: &mut FileSystem, made: Attributes, request: &Request) -> Result<Attributes, Errno> {
    files.set_owner(made.inode, Owner { user: request.uid(), group: request.gid() })?;
    files.attributes(made.inode)
}

fn answer(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_entry(reply: ReplyEntry, result: Result<Attributes, Errno>) {
    match result {
        Ok(metadata) => reply.entry(&NO_CACHE, &attributes(metadata), Generation(0)),
        Err(error) => reply.error(errno(error)),
    }
}

fn answer_attributes(reply: ReplyAttr, result: Result<Attributes, Errno>) {
    match result {
        Ok(metadata) => reply.attr(&NO_CACHE, &attributes(metadata)),
        Err(error) => reply.error(errno(error)),
    }
}

impl Filesystem for Served {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Ask the kernel to allow shared mappings of files with direct I/O, because SQLite's WAL needs them. At
        // msync(2) and fsync(2), the kernel first writes the changed pages of the mapping to this file system, and then
        // asks for the sync. Ignore an error: Linux before 6.6 lacks this capability, and only such mappings then fail.
        let _ = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer_entry(reply, self.0.look(Operation::Other, |files| files.look_up(parent.0, text(name))));
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        answer_attributes(reply, self.0.look(Operation::Other, |files| files.attributes(inode.0)));
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changed = self.0.change(Operation::Allocate(inode.0), |files, fault, _| {
            if let Some(Fault::Making(errno)) = fault {
                return Err(errno);
            }
            mode.map_or(Ok(()), |mode| files.set_permissions(inode.0, permissions(mode, 0)))?;
            if user.or(group).is_some() {
                let old = files.attributes(inode.0)?.owner;
                let owner = Owner { user: user.unwrap_or(old.user), group: group.unwrap_or(old.group) };
                files.set_owner(inode.0, owner)?;
            }
            size.map_or(Ok(()), |bytes| files.set_length(inode.0, bytes))?;
            let modified = modified.map(|time| match time {
                TimeOrNow::SpecificTime(time) => time,
                TimeOrNow::Now => SystemTime::now(),
            });
            modified.map_or(Ok(()), |time| files.set_modified(inode.0, time))?;
            files.attributes(inode.0)
        });
        answer_attributes(reply, changed);
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.ok();
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let made = self.0.change(Operation::Other, |files, _, _| {
            let made = files.make_directory(parent.0, text(name), permissions(mode, umask))?;
            owned(files, made, request)
        });
        answer_entry(reply, made);
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let kind = match rustix::fs::FileType::from_raw_mode(mode) {
            rustix::fs::FileType::Fifo => Some(SpecialFile::Fifo),
            rustix::fs::FileType::Socket => Some(SpecialFile::Socket),
            rustix::fs::FileType::RegularFile => None,
            _ => return reply.error(self.0.refuse("mknod of a device", Errno::PERM)),
        };
        let made = self.0.change(Operation::Make, |files, fault, _| {
            let (name, permissions) = (text(name), permissions(mode, umask));
            let made = match (fault, kind) {
                (Some(Fault::Making(errno)), _) => return Err(errno),
                (_, None) => files.create(parent.0, name, permissions)?,
                (_, Some(special)) => files.make_special(parent.0, name, permissions, special)?,
            };
            owned(files, made, request)
        });
        answer_entry(reply, made);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let made = self.0.change(Operation::Make, |files, fault, _| {
            if let Some(Fault::Making(errno)) = fault {
                return Err(errno);
            }
            let made = files.create(parent.0, text(name), permissions(mode, umask))?;
            files.open(made.inode)?;
            owned(files, made, request)
        });
        match made {
            Ok(made) => {
                let flags = FopenFlags::FOPEN_DIRECT_IO;
                reply.created(&NO_CACHE, &attributes(made), Generation(0), FileHandle(0), flags);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.0.look(Operation::Other, |files| files.open(inode.0)) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn release(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.0.lock().files.close(inode.0);
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        at: u64,
        bytes: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.look(Operation::Read, |files| files.read(inode.0, at, bytes as usize).map(<[u8]>::to_vec)) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        at: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let is_synced = flags.0 & O_DSYNC != 0;
        let operation = if is_synced { Operation::SyncedWrite } else { Operation::Write(inode.0, at) };
        let written = self.0.change(operation, |files, fault, rng| {
            let length = match fault {
                Some(Fault::Write(errno) | Fault::AnyWrite(errno) | Fault::Making(errno)) => return Err(errno),
                Some(Fault::AnySync(errno)) => {
                    files.write(inode.0, at, data)?;
                    files.fail_sync(inode.0, errno, rng)?;
                    return Err(errno);
                }
                // The fault is `ShortWrite`, because all other faults that a write can have are handled above.
                Some(_) => rng.random_range(1..data.len().max(2)),
                None => data.len(),
            };
            files.write(inode.0, at, &data[..length])?;
            if is_synced {
                files.sync(inode.0)?;
            }
            Ok(length)
        });
        match written {
            Ok(length) => reply.written(length as u32),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn fallocate(&self, _: &Request, inode: INodeNo, _: FileHandle, at: u64, bytes: u64, mode: i32, reply: ReplyEmpty) {
        if mode != 0 {
            return reply.error(self.0.refuse("fallocate with flags", Errno::OPNOTSUPP));
        }
        let allocated = self.0.change(Operation::Allocate(inode.0), |files, fault, _| match fault {
            Some(Fault::Making(errno)) => Err(errno),
            _ => files.allocate(inode.0, at + bytes),
        });
        answer(reply, allocated);
    }

    fn fsync(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let synced = self.0.change(Operation::Sync(inode.0), |files, fault, rng| match fault {
            Some(Fault::Sync(errno) | Fault::AnySync(errno) | Fault::Making(errno)) => {
                files.fail_sync(inode.0, errno, rng)?;
                Err(errno)
            }
            _ => files.sync(inode.0),
        });
        answer(reply, synced);
    }

    fn fsyncdir(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let synced = self.0.change(Operation::SyncDirectory, |files, fault, _| match fault {
            Some(Fault::DirectorySync(errno)) => Err(errno),
            _ => files.sync_directory(inode.0),
        });
        answer(reply, synced);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.0.change(Operation::Other, |files, _, _| files.remove(parent.0, text(name))));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.0.change(Operation::Other, |files, _, _| files.remove(parent.0, text(name))));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return reply.error(self.0.refuse("rename with flags", Errno::INVAL));
        }
        let from = (parent.0, text(name));
        let to = (new_parent.0, text(new_name));
        let renamed = self.0.change(Operation::Other, |files, _, _| {
            if flags.contains(RenameFlags::RENAME_NOREPLACE) && files.look_up(to.0, to.1).is_ok() {
                return Err(Errno::EXIST);
            }
            files.rename(from, to)
        });
        answer(reply, renamed);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let mut state = self.0.lock();
        state.opened_directories += 1;
        reply.opened(FileHandle(state.opened_directories), FopenFlags::empty());
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.0.lock().listings.remove(&handle.0);
        reply.ok();
    }

    fn readdir(&self, _: &Request, inode: INodeNo, handle: FileHandle, from: u64, mut reply: ReplyDirectory) {
        // At offset 0, read the names anew, because a process that calls rewinddir(3) must see the current directory.
        let is_first = from == 0;
        match self.0.look(Operation::Other, |files| is_first.then(|| files.list(inode.0)).transpose()) {
            Ok(names) => {
                let mut state = self.0.lock();
                if let Some(names) = names {
                    state.listings.insert(handle.0, names);
                }
                let own = [".", ".."].map(|name| (name, inode, FileType::Directory));
                let listed = state.listings.get(&handle.0).into_iter().flatten();
                let others = listed.map(|(name, of)| (name.as_str(), INodeNo(of.inode), kind(*of)));
                for (at, (name, inode, kind)) in own.into_iter().chain(others).enumerate().skip(from as usize) {
                    if reply.add(inode, at as u64 + 1, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn link(&self, _: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let linked = self.0.change(Operation::Other, |files, _, _| files.link(inode.0, parent.0, text(name)));
        answer_entry(reply, linked);
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(self.0.refuse("symlink", Errno::PERM));
    }

    fn setxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: &[u8], _: i32, _: u32, reply: ReplyEmpty) {
        reply.error(self.0.refuse("setxattr", Errno::OPNOTSUPP));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let (used, capacity) = self.0.lock().files.used_and_capacity();
        let free = capacity.saturating_sub(used) / 4096;
        reply.statfs(capacity / 4096, free, free, 1 << 20, 1 << 20, 4096, 255, 4096);
    }
}

/// Returns the reason why this process cannot mount a file system, or `None` if it can.
pub fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("mounting a file system needs root".to_owned());
    }
    if !PathBuf::from("/dev/fuse").exists() {
        return Some("there is no /dev/fuse".to_owned());
    }
    Disk::mount(1 << 20, ROOT).err().map(|error| format!("no file system can be mounted: {error}"))
}

/// Returns the reason why [`Disk::heed_sync_calls`] cannot work on this host, or `None` if it can.
pub fn sync_calls_obstacle() -> Option<String> {
    let error = SyncCalls::watch().err()?;
    Some(format!(
        "a server that calls sync(2) would be accused wrongly, because the kernel does not report it: {error}"
    ))
}
