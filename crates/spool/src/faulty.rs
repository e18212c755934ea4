//! A disk in memory that behaves as badly as a disk can. It can crash at any operation, tear and
//! reorder unsynced writes, become full, and fail syncs. It is meant for tests, including the tests
//! of other crates.
use crate::disk::{Disk, DiskFile};
use crate::newest;
use mailrun_lock::{lock, unpoisoned};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Size of a sector in bytes. After a crash, an unsynced sector has its old or its new content. A sector whose old
/// content was all zeros may also be torn, so that it has only a part of the new content.
const SECTOR_BYTES: usize = 512;

/// A simulated disk in memory, whose faults a test chooses. All clones refer to the same disk.
#[derive(Clone, Default)]
pub struct FaultyDisk(Arc<FaultyDiskShared>);

#[derive(Default)]
struct FaultyDiskShared {
    state: Mutex<FaultyDiskState>,
    released: Condvar,
}

#[derive(Default)]
struct FaultyDiskState {
    files: BTreeMap<String, usize>,
    /// Files that the directory contained when it was last synced. A power failure may undo later changes.
    durable_files: BTreeMap<String, usize>,
    contents: Vec<FileContent>,
    operations: u64,
    syncs: u64,
    writes: Vec<WriteSize>,
    freeze_at_operation: Option<u64>,
    freeze_at_sync: Option<u64>,
    fail_sync: Option<u64>,
    /// The operation that should fail, as a number counted from 0, and its error code (`errno`).
    fail_operation: Option<(u64, i32)>,
    failed: Option<FailedOperation>,
    /// Parts of files that cannot be read, each with the index of the file in `contents`.
    unreadable: Vec<(usize, Range<usize>)>,
    reads: u64,
    read_bytes: u64,
    /// Number of reads of which one fails. For example, if the number is 3, every third read of the disk fails.
    fail_one_read_of: Option<u64>,
    is_frozen: bool,
    capacity: Option<u64>,
    holds_syncs: bool,
    ignores_syncs: bool,
    is_locked: bool,
}

/// Part of the spool that an operation was changing when [`FaultyDisk::fail_operation`] made it fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedOperation {
    /// The spool was making a new segment. The file has never held more than its first header.
    NewSegment,
    /// The spool was changing a file that holds, or has held, batches of the log.
    Log,
    /// The spool was changing its directory, for example by creating or removing a file.
    Directory,
}

enum OperationOutcome {
    Done,
    Freeze,
    Fail(io::Error),
}

/// Size of one write to the disk, as [`FaultyDisk::writes`] lists it for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteSize {
    /// Total length of all buffers in bytes.
    pub bytes: u64,
    /// Number of buffers that the write joined. A large body is not copied, but has its own buffer.
    pub pieces: usize,
}

#[derive(Clone, Default)]
struct FileContent {
    current: Vec<u8>,
    durable: Vec<u8>,
    dirty: Vec<Range<usize>>,
}

struct DiskRng(u64);

impl DiskRng {
    fn below(&mut self, sides: u64) -> u64 {
        // Use splitmix64, which is simple and gives the same faults for the same seed.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }
}

impl FaultyDisk {
    /// Creates an empty disk without faults. The methods of this type add faults later.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, FaultyDiskState> {
        lock(&self.0.state)
    }

    /// Returns the number of operations so far that changed the disk or requested a sync.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Returns the number of syncs so far, of files and of the directory.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// Returns the number of bytes that were read so far, from all files.
    pub fn read_bytes(&self) -> u64 {
        self.state().read_bytes
    }

    /// Returns the sizes of all writes so far, in the order in which they arrived.
    pub fn writes(&self) -> Vec<WriteSize> {
        self.state().writes.clone()
    }

    /// Freezes the disk at the operation with this number, counted from 0 since the disk was created. As in a crash,
    /// this operation is partly done, and all later operations fail.
    pub fn freeze_at_operation(&self, operation: u64) {
        self.state().freeze_at_operation = Some(operation);
    }

    /// Freezes the disk at the sync with this number, counted from 0 since the disk was created. This sync and all
    /// later operations fail.
    pub fn freeze_at_sync(&self, sync: u64) {
        self.state().freeze_at_sync = Some(sync);
    }

    /// Freezes the disk at once, so that all later operations fail.
    pub fn freeze(&self) {
        self.state().is_frozen = true;
        self.0.released.notify_all();
    }

    /// Makes the sync with this number fail, counted from 0. As on Linux, the next sync succeeds, but does not write
    /// the data of the failed sync.
    pub fn fail_sync(&self, sync: u64) {
        self.state().fail_sync = Some(sync);
    }

    /// Makes the operation with this number fail with the given error code. Operations are counted from 0 since the
    /// disk was created. A failed write is partly done. Later operations succeed, but no later sync writes the data of
    /// a failed sync.
    pub fn fail_operation(&self, operation: u64, errno: i32) {
        self.state().fail_operation = Some((operation, errno));
    }

    /// Tells where the operation chosen with [`Self::fail_operation`] failed. Returns `None` if it was not reached yet.
    pub fn failed(&self) -> Option<FailedOperation> {
        self.state().failed
    }

    /// Makes all reads of a part of a file fail, like unreadable sectors.
    pub fn fail_reads(&self, name: &str, range: Range<usize>) {
        let mut state = self.state();
        let file = state.files[name];
        state.unreadable.push((file, range));
    }

    /// Makes one of every `reads` reads fail. `reads` must be at least 2, so that a retry succeeds.
    pub fn fail_one_read_of(&self, reads: u64) {
        self.state().fail_one_read_of = Some(reads);
    }

    /// Makes all writes so far durable, as a kernel does after some time even without a sync.
    pub fn write_back(&self) {
        self.state().contents.iter_mut().for_each(FileContent::sync);
    }

    /// Makes syncs of files report success without doing anything. A test can use such a disk to
    /// show that it would notice a missing sync.
    pub fn ignore_syncs(&self) {
        self.state().ignores_syncs = true;
    }

    /// Limits the capacity of the disk to this many bytes. `None` removes the limit.
    pub fn limit_capacity(&self, capacity: Option<u64>) {
        self.state().capacity = capacity;
    }

    /// Makes all syncs wait until [`Self::release_syncs`], so new messages gather in one batch.
    pub fn hold_syncs(&self) {
        self.state().holds_syncs = true;
    }

    /// Ends [`Self::hold_syncs`], and lets all waiting syncs continue.
    pub fn release_syncs(&self) {
        self.state().holds_syncs = false;
        self.0.released.notify_all();
    }

    /// Returns the disk as it is after the process was killed. All writes are there, because the
    /// host is still running.
    pub fn after_kill(&self) -> Self {
        let state = self.state();
        let contents = state.contents.clone();
        let fresh = FaultyDiskState {
            files: state.files.clone(),
            durable_files: state.durable_files.clone(),
            contents,
            ..FaultyDiskState::default()
        };
        Self::with_state(fresh)
    }

    /// Returns the disk as it may be after a power failure. `seed` selects which unsynced writes
    /// have survived.
    pub fn after_power_loss(&self, seed: u64) -> Self {
        let mut dice = DiskRng(seed);
        let state = self.state();
        let mut files = state.durable_files.clone();
        for (name, file) in state.files.iter().filter(|(name, _)| !state.durable_files.contains_key(*name)) {
            if dice.below(2) == 0 {
                files.insert(name.clone(), *file);
            }
        }
        files.retain(|name, _| state.files.contains_key(name) || dice.below(2) == 0);
        let contents = state.contents.iter().map(|content| content.after_power_loss(&mut dice)).collect();
        Self::with_state(FaultyDiskState {
            durable_files: files.clone(),
            files,
            contents,
            ..FaultyDiskState::default()
        })
    }

    fn with_state(state: FaultyDiskState) -> Self {
        Self(Arc::new(FaultyDiskShared { state: Mutex::new(state), released: Condvar::new() }))
    }

    /// Returns the names of all files. The file `newest` is omitted, because its loss costs no message.
    pub fn names(&self) -> Vec<String> {
        self.state().files.keys().filter(|name| *name != newest::NAME).cloned().collect()
    }

    /// Returns the content of a file, or `None` if there is no such file.
    pub fn octets(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        state.files.get(name).map(|file| state.contents[*file].current.clone())
    }

    /// Stores a file as if it had been written and synced. An existing file of that name is
    /// replaced.
    pub fn put(&self, name: &str, octets: &[u8]) {
        let mut state = self.state();
        let content = FileContent { current: octets.to_vec(), durable: octets.to_vec(), dirty: Vec::new() };
        state.contents.push(content);
        let file = state.contents.len() - 1;
        state.files.insert(name.to_owned(), file);
        state.durable_files.insert(name.to_owned(), file);
    }
}

impl FileContent {
    fn write(&mut self, bytes: &[u8], at: usize) {
        if bytes.is_empty() {
            return;
        }
        let end = at + bytes.len();
        if self.current.len() < end {
            self.current.resize(end, 0);
        }
        self.current[at..end].copy_from_slice(bytes);
        self.dirty.push(at..end);
    }

    fn sync(&mut self) {
        self.durable.resize(self.current.len(), 0);
        for range in std::mem::take(&mut self.dirty) {
            self.durable[range.clone()].copy_from_slice(&self.current[range]);
        }
    }

    fn after_power_loss(&self, dice: &mut DiskRng) -> Self {
        let mut octets = self.durable.clone();
        // A power loss is one of four cases: all unsynced sectors survive, none survives, some
        // survive, or some survive and a few of them are torn.
        let mood = dice.below(4);
        let sectors: BTreeSet<usize> =
            self.dirty.iter().flat_map(|range| range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES)).collect();
        for sector in sectors {
            let from = sector * SECTOR_BYTES;
            let new =
                &self.current[from.min(self.current.len())..((sector + 1) * SECTOR_BYTES).min(self.current.len())];
            let (takes, tears) = match mood {
                0 => (true, false),
                1 => (false, false),
                2 => (dice.below(2) == 0, false),
                _ => (dice.below(2) == 0, dice.below(8) == 0),
            };
            if takes && octets.len() < from + new.len() {
                octets.resize(from + new.len(), 0);
            }
            // Tear only a sector whose old content is all zeros. For all other sectors, the spool relies on disks to
            // overwrite a sector as a whole or not at all.
            let is_fresh = octets.get(from..from + new.len()).is_some_and(|old| *old == [0; SECTOR_BYTES][..old.len()]);
            let length = if tears && is_fresh { dice.below(new.len() as u64 + 1) as usize } else { new.len() };
            if takes {
                octets[from..from + length].copy_from_slice(&new[..length]);
            }
        }
        Self { current: octets.clone(), durable: octets, dirty: Vec::new() }
    }
}

fn frozen() -> io::Error {
    io::Error::other("the disk is frozen")
}

impl FaultyDiskState {
    /// Counts an operation, and decides whether it succeeds, fails or freezes the disk. If the
    /// operation fails, `about` tells which part of the spool it concerned.
    fn count_operation(&mut self, about: impl FnOnce(&Self) -> FailedOperation) -> io::Result<OperationOutcome> {
        if self.is_frozen {
            return Err(frozen());
        }
        let number = self.operations;
        self.operations += 1;
        self.is_frozen = self.freeze_at_operation == Some(number);
        if let Some((_, errno)) = self.fail_operation.filter(|(operation, _)| *operation == number) {
            self.failed = Some(about(self));
            return Ok(OperationOutcome::Fail(io::Error::from_raw_os_error(errno)));
        }
        Ok(if self.is_frozen { OperationOutcome::Freeze } else { OperationOutcome::Done })
    }

    /// Tells whether a file is a segment that is still being made, or holds batches. In a segment
    /// that is still being made, everything after the first block is zero.
    fn target_of(&self, content: usize) -> FailedOperation {
        let used = self.contents[content].current.get(4096..).unwrap_or_default();
        let is_new = used.iter().all(|byte| *byte == 0);
        if is_new { FailedOperation::NewSegment } else { FailedOperation::Log }
    }

    /// Counts an operation on the directory. Fails if a test has made this operation fail, or has frozen the disk. The
    /// caller must then skip the operation.
    fn count_directory_operation(&mut self) -> io::Result<()> {
        match self.count_operation(|_| FailedOperation::Directory)? {
            OperationOutcome::Done => Ok(()),
            OperationOutcome::Freeze => Err(frozen()),
            OperationOutcome::Fail(error) => Err(error),
        }
    }

    /// Counts a sync, and returns `Ok(None)` if it succeeds. Returns `Ok(Some)` with the error if only this sync fails,
    /// and `Err` if the disk is frozen, so that later operations fail, too.
    fn count_sync(&mut self, about: impl FnOnce(&Self) -> FailedOperation) -> io::Result<Option<io::Error>> {
        let run = self.count_operation(about)?;
        let number = self.syncs;
        self.syncs += 1;
        match run {
            OperationOutcome::Freeze => Err(frozen()),
            OperationOutcome::Fail(error) => Ok(Some(error)),
            OperationOutcome::Done if self.freeze_at_sync == Some(number) => {
                self.is_frozen = true;
                Err(frozen())
            }
            OperationOutcome::Done => Ok((self.fail_sync == Some(number)).then(|| io::Error::other("the sync failed"))),
        }
    }

    fn check_capacity(&self, file: usize, end: u64) -> io::Result<()> {
        let others = self.files.values().filter(|other| **other != file);
        let others: u64 = others.map(|other| self.contents[*other].current.len() as u64).sum();
        match self.capacity {
            Some(capacity) if others + end.max(self.contents[file].current.len() as u64) > capacity => {
                Err(ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }
}

struct FaultyFile {
    disk: FaultyDisk,
    content: usize,
}

struct DiskLock(FaultyDisk);

impl Drop for DiskLock {
    fn drop(&mut self) {
        self.0.state().is_locked = false;
    }
}

impl Disk for FaultyDisk {
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        let mut state = self.state();
        if state.is_locked {
            return Err(ErrorKind::WouldBlock.into());
        }
        state.is_locked = true;
        Ok(Box::new(DiskLock(self.clone())))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state().files.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        state.count_directory_operation()?;
        if state.files.contains_key(name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        state.contents.push(FileContent::default());
        let content = state.contents.len() - 1;
        state.files.insert(name.to_owned(), content);
        Ok(Arc::new(FaultyFile { disk: self.clone(), content }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let content = *self.state().files.get(name).ok_or(ErrorKind::NotFound)?;
        Ok(Arc::new(FaultyFile { disk: self.clone(), content }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.count_directory_operation()?;
        state.files.remove(name).map(|_| ()).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.state();
        if let Some(error) = state.count_sync(|_| FailedOperation::Directory)? {
            return Err(error);
        }
        state.durable_files = state.files.clone();
        Ok(())
    }

    fn available_bytes(&self) -> io::Result<u64> {
        let state = self.state();
        let used: u64 = state.files.values().map(|file| state.contents[*file].current.len() as u64).sum();
        Ok(state.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(used)))
    }
}

impl DiskFile for FaultyFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.disk.state().contents[self.content].current.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let mut state = self.disk.state();
        state.reads += 1;
        let fails_now = state.fail_one_read_of.is_some_and(|of| state.reads.is_multiple_of(of));
        let range = at as usize..at as usize + buffer.len();
        let is_bad = |(content, bad): &(usize, Range<usize>)| {
            *content == self.content && bad.start < range.end && range.start < bad.end
        };
        if fails_now || state.unreadable.iter().any(is_bad) {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
        let seen = &state.contents[self.content].current;
        let from = seen.len().min(at as usize);
        let length = buffer.len().min(seen.len() - from);
        buffer[..length].copy_from_slice(&seen[from..from + length]);
        state.read_bytes += length as u64;
        Ok(length)
    }

    fn write_at(&self, pieces: &mut [IoSlice<'_>], at: u64) -> io::Result<()> {
        let bytes = pieces.iter().map(|piece| &**piece).collect::<Vec<&[u8]>>().concat();
        let mut state = self.disk.state();
        let run = state.count_operation(|state| state.target_of(self.content))?;
        state.check_capacity(self.content, at + bytes.len() as u64)?;
        state.writes.push(WriteSize { bytes: bytes.len() as u64, pieces: pieces.len() });
        let part = DiskRng(at).below(bytes.len() as u64 + 1) as usize;
        let (length, outcome) = match run {
            OperationOutcome::Done => (bytes.len(), Ok(())),
            OperationOutcome::Freeze => (part, Err(frozen())),
            OperationOutcome::Fail(error) => (part, Err(error)),
        };
        state.contents[self.content].write(&bytes[..length], at as usize);
        outcome
    }

    fn preallocate(&self, bytes: u64, _rest: &dyn Fn(Duration)) -> io::Result<()> {
        let mut state = self.disk.state();
        let run = state.count_operation(|_| FailedOperation::NewSegment)?;
        state.check_capacity(self.content, bytes)?;
        let (length, outcome) = match run {
            OperationOutcome::Done => (bytes, Ok(())),
            OperationOutcome::Freeze => (bytes / 2, Err(frozen())),
            OperationOutcome::Fail(error) => (bytes / 2, Err(error)),
        };
        let content = &mut state.contents[self.content];
        content.current.resize(length as usize, 0);
        outcome?;
        content.sync();
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        while state.holds_syncs && !state.is_frozen {
            state = unpoisoned(self.disk.0.released.wait(state));
        }
        let failure = state.count_sync(|state| state.target_of(self.content))?;
        if state.ignores_syncs {
            return Ok(());
        }
        let content = &mut state.contents[self.content];
        if let Some(error) = failure {
            // As on Linux, a failed sync marks the pages as clean and reports the error only once.
            content.dirty.clear();
            return Err(error);
        }
        content.sync();
        Ok(())
    }
}

impl std::fmt::Debug for FaultyDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyDisk").field("operations", &self.operations()).finish_non_exhaustive()
    }
}
