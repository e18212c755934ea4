//! The interface of a disk, and an implementation that uses a directory of a file system.
use rustix::fs::{AtFlags, Dir, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A directory that holds the files of one spool. Tests replace the real directory by a disk that
/// fails.
pub trait Disk: Send + Sync {
    /// Locks the directory against all other processes for as long as the returned value lives.
    /// Returns `WouldBlock` if another process has the lock.
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>>;
    /// Returns the names of all files in the directory, in any order. Files that do not belong to
    /// the spool may be among them.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates an empty file. Returns `AlreadyExists` if there is a file with that name, which
    /// stays unchanged. A name may contain one slash. The directory before the slash is created if
    /// needed.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens an existing file for reading and writing. Returns `NotFound` if there is no such file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Removes a file from the directory. Until [`Disk::sync_directory`] returns, a power failure
    /// may bring the file back.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes earlier creations and removals of files durable, and returns when they would survive a
    /// power failure.
    fn sync_directory(&self) -> io::Result<()>;
    /// Returns the free space for new files in bytes, or `u64::MAX` if it is unknown.
    fn available_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

/// An open file of a [`Disk`], which can be read and written at any offset.
pub trait DiskFile: Send + Sync {
    /// Returns the present length of the file in bytes. It may differ from the length at creation
    /// if somebody changed the file.
    fn bytes(&self) -> io::Result<u64>;
    /// Reads until `buffer` is full or the file ends. Returns the number of bytes read.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;
    /// Writes all pieces one after the other, from the offset `at` on.
    fn write_at(&self, pieces: &mut [IoSlice<'_>], at: u64) -> io::Result<()>;
    /// Extends an empty file to `bytes` bytes and fills it with zeros. A later write then allocates
    /// no blocks, and syncing it needs no commit of the file system's journal.
    ///
    /// Implementations write the zeros in portions. After each portion, they call `throttle` with the time that the
    /// portion took, so that the caller can pause and leave the disk to others for a while.
    fn preallocate(&self, bytes: u64, throttle: &dyn Fn(Duration)) -> io::Result<()>;
    /// Returns true if blocks are allocated for the whole file. A copied file may have holes, and a
    /// write into a hole may fail for lack of space.
    fn is_allocated(&self) -> io::Result<bool> {
        Ok(true)
    }
    /// Makes everything written so far durable, and returns when it would survive a power failure.
    fn sync_data(&self) -> io::Result<()>;
}

/// Reads from a file, and tries once more after an error, so that a single failed read loses no
/// message.
pub(crate) fn read_with_retry(file: &dyn DiskFile, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    file.read_at(buffer, at).or_else(|_| file.read_at(buffer, at))
}

/// Adds the name of the file to an error, because errors of the system do not mention it.
pub(crate) fn with_name(name: &str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{name}: {error}"))
}

/// A [`Disk`] that keeps its files in a directory of a real file system. If the directory is renamed, this value still
/// refers to it, and not to a new directory at the old path.
#[derive(Debug)]
pub struct RealDisk {
    directory: PathBuf,
    opened: File,
    /// Set if files were created in the quarantine directory since the last sync. That directory
    /// then has to be synced separately.
    has_quarantined: AtomicBool,
}

impl RealDisk {
    /// Opens the directory, or creates it. A new directory is accessible only to its owner, because
    /// it will hold other people's mail.
    pub fn new(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = directory.into();
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        sync_ancestors(&directory)?;
        let opened = File::open(&directory)?;
        Ok(Self { directory, opened, has_quarantined: AtomicBool::new(false) })
    }

    /// Returns the path with which the directory was opened. It is wrong if the directory was
    /// renamed since then.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Opens a file for reading and writing. Refuses a symbolic link in place of the file.
    fn file(&self, name: &str, options: OFlags) -> io::Result<File> {
        open_at(&self.opened, name, OFlags::RDWR | OFlags::NOFOLLOW | options)
    }
}

impl Disk for RealDisk {
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        let directory = lock_directory(&self.opened, FlockOperation::NonBlockingLockExclusive)?;
        let file = self.file(LOCK, OFlags::CREATE)?;
        flock(&file, LOCK, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new((directory, file)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        file_names(&self.opened)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        if let Some((directory, _)) = name.split_once('/') {
            match rustix::fs::mkdirat(&self.opened, directory, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => self.has_quarantined.store(true, Ordering::Relaxed),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Arc::new(self.file(name, OFlags::CREATE | OFlags::EXCL)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(self.file(name, OFlags::empty())?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.opened, name, AtFlags::empty())?)
    }

    fn sync_directory(&self) -> io::Result<()> {
        if self.has_quarantined.swap(false, Ordering::Relaxed) {
            open_at(&self.opened, QUARANTINE, OFlags::DIRECTORY)?.sync_all()?;
        }
        self.opened.sync_all()
    }

    fn available_bytes(&self) -> io::Result<u64> {
        let system = rustix::fs::fstatvfs(&self.opened)?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }
}

pub(crate) struct ReadOnlyDisk {
    opened: File,
}

impl ReadOnlyDisk {
    pub(crate) fn new(directory: &Path) -> io::Result<Self> {
        Ok(Self { opened: File::open(directory)? })
    }

    /// Prevents other processes from opening the spool for writing. Several readers can hold this lock at the same
    /// time.
    pub(crate) fn lock_shared(&self) -> io::Result<Box<dyn Send + Sync>> {
        let directory = lock_directory(&self.opened, FlockOperation::NonBlockingLockShared)?;
        match open_at(&self.opened, LOCK, OFlags::empty()) {
            Ok(file) => {
                flock(&file, LOCK, FlockOperation::NonBlockingLockShared)?;
                Ok(Box::new((directory, file)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Box::new(directory)),
            Err(error) => Err(error),
        }
    }
}

/// Locks the directory itself. A lock file would not suffice, because somebody who cleans up may delete it. Another
/// process would then create and lock a new file.
///
/// Callers must also lock the file [`LOCK`]. Earlier versions lock only the file, and a network file system such as NFS
/// shows other hosts the locks of files but not the locks of directories.
fn lock_directory(directory: &File, operation: FlockOperation) -> io::Result<File> {
    // Open the directory again for each lock. A lock belongs to an open file, so two locks on the same open file would
    // not exclude each other.
    let file = open_at(directory, ".", OFlags::DIRECTORY)?;
    flock(&file, "the directory", operation)?;
    Ok(file)
}

fn flock(file: &File, name: &str, operation: FlockOperation) -> io::Result<()> {
    rustix::fs::flock(file, operation).map_err(|error| match error {
        Errno::WOULDBLOCK => error.into(),
        _ => {
            let error = io::Error::from(error);
            let text =
                format!("cannot lock {name}: {error}; a spool needs a file system with flock, preferably a local one");
            io::Error::new(error.kind(), text)
        }
    })
}

fn open_at(directory: &File, name: &str, options: OFlags) -> io::Result<File> {
    let open = || rustix::fs::openat(directory, name, options | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    Ok(retry_on_intr(open)?.into())
}

fn read_only<T>() -> io::Result<T> {
    Err(ErrorKind::ReadOnlyFilesystem.into())
}

impl Disk for ReadOnlyDisk {
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        read_only()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        file_names(&self.opened)
    }

    fn create(&self, _name: &str) -> io::Result<Arc<dyn DiskFile>> {
        read_only()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        // Without `NONBLOCK`, opening a FIFO that has the name of a segment would block forever.
        Ok(Arc::new(open_at(&self.opened, name, OFlags::NONBLOCK)?))
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        read_only()
    }

    fn sync_directory(&self) -> io::Result<()> {
        read_only()
    }
}

/// Makes the names of the directory and of all directories above it durable, so that they survive a
/// power failure. Each process must call this before it relies on the directory, because an earlier
/// process may have created the directory and failed before the sync.
pub fn sync_ancestors(directory: &Path) -> io::Result<()> {
    for above in directory.canonicalize()?.ancestors().skip(1) {
        match File::open(above).and_then(|opened| opened.sync_all()) {
            // Ignore a directory that this user may not read, and a read-only file system. This user cannot have
            // created anything there that needs a sync.
            Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {}
            // Ignore the error of a file system that cannot sync directories, because it does not need such a sync.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {}
            synced => synced?,
        }
    }
    Ok(())
}

fn file_names(directory: &File) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        names.extend(entry?.file_name().to_str().ok().filter(|name| !matches!(*name, "." | "..")).map(str::to_owned));
    }
    Ok(names)
}

impl DiskFile for File {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match FileExt::read_at(self, &mut buffer[filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, mut pieces: &mut [IoSlice<'_>], mut at: u64) -> io::Result<()> {
        IoSlice::advance_slices(&mut pieces, 0); // drops empty pieces at the front
        while !pieces.is_empty() {
            match rustix::io::pwritev(self, &pieces[..pieces.len().min(MAX_IOVECS)], at) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    at += written as u64;
                    IoSlice::advance_slices(&mut pieces, written);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn preallocate(&self, bytes: u64, throttle: &dyn Fn(Duration)) -> io::Result<()> {
        match rustix::fs::fallocate(self, FallocateFlags::empty(), 0, bytes) {
            // If the file system cannot allocate space in advance, the zeros written below reserve the space.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        let zeros = vec![0; ZERO_CHUNK_BYTES];
        let mut at = 0;
        while at < bytes {
            let start = Instant::now();
            let length = (bytes - at).min(ZERO_CHUNK_BYTES as u64);
            self.write_all_at(&zeros[..length as usize], at)?;
            at += length;
            // Sync each portion separately, because a single large sync would delay the syncs of other files.
            self.sync_data()?;
            throttle(start.elapsed());
        }
        self.sync_all()
    }

    fn is_allocated(&self) -> io::Result<bool> {
        let data = self.metadata()?;
        Ok(data.blocks().saturating_mul(512) >= data.len())
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }
}

/// Name of the file that a process keeps locked while it uses the spool. The process also locks the directory, but
/// earlier versions lock only the file.
const LOCK: &str = "lock";
/// Subdirectory for copies of damaged bytes. A [`Disk`] addresses a file in it as
/// `quarantine/NAME`.
const QUARANTINE: &str = "quarantine";
/// Maximum number of buffers that Linux accepts in one `pwritev` call (IOV_MAX).
const MAX_IOVECS: usize = 1024;
/// Number of zeros that `preallocate` writes before each sync. Disks write them in some
/// milliseconds, so a concurrent sync of the log waits no longer than that.
const ZERO_CHUNK_BYTES: usize = 1 << 20;
