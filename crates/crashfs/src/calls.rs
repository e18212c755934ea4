//! A log in memory of the system calls that changed files or names, or made such changes durable.
use crate::types::{FileKind, Inode, Owner, Profile, SurvivingData, Survivors};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Size in bytes of a logged call, not counting its data and names, which are on the heap.
const CALL_BYTES: usize = size_of::<LoggedCall>();

/// An event in the log: a call on a file or directory, a change of the profile, or a power cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// All later calls see a disk that behaves like the file system of this profile.
    Profile { profile: Profile },
    /// A file or directory was created with creat(2), mkdir(2) or mknod(2).
    Make { directory: Inode, name: String, permissions: u16, kind: FileKind, inode: Inode },
    /// A file was opened with open(2).
    Open { inode: Inode },
    /// The last copy of a descriptor was closed with close(2).
    Close { inode: Inode },
    /// Bytes were written with write(2).
    Write {
        inode: Inode,
        at: u64,
        bytes: usize,
        /// Set if all bytes are zeros, which some servers write in advance. To save memory, `data` is then empty.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        are_zeros: bool,
        #[serde(skip)]
        data: Vec<u8>,
    },
    /// The length was changed with ftruncate(2) or fallocate(2).
    SetLength { inode: Inode, bytes: u64 },
    /// The permissions were changed with chmod(2).
    SetPermissions { inode: Inode, permissions: u16 },
    /// The user or the group was changed with chown(2).
    SetOwner { inode: Inode, owner: Owner },
    /// The time of the last modification was set with utimes(2).
    SetModified { inode: Inode, time: LogTime },
    /// A file was synced with fsync(2) or fdatasync(2), or by a write with `O_DSYNC`.
    Sync { inode: Inode },
    /// A sync of a file was made to fail. Of the file's data, only `written` reached the media, and
    /// no later sync writes the rest.
    FailedSync { inode: Inode, error: String, written: SurvivingData },
    /// A directory was synced with fsync(2), so that changes of the names in it are durable.
    SyncDirectory { inode: Inode },
    /// Everything was synced with sync(2) or syncfs(2).
    SyncAll,
    /// A file got another name with link(2).
    Link { inode: Inode, directory: Inode, name: String },
    /// A name was removed with unlink(2) or rmdir(2).
    Remove { directory: Inode, name: String },
    /// A file or directory was renamed with rename(2).
    Rename { from: (Inode, String), to: (Inode, String) },
    /// The power went off. The next `Cut` in the log says which unsynced changes survived.
    PowerOff,
    /// The power came back. Of the unsynced changes, only `survivors` are left.
    Cut { survivors: Survivors },
}

impl Call {
    /// Returns a [`Call::Write`], without its data if all bytes are zeros.
    pub(crate) fn write(inode: Inode, at: u64, bytes: &[u8]) -> Self {
        let are_zeros = bytes.iter().all(|byte| *byte == 0);
        let data = if are_zeros { Vec::new() } else { bytes.to_vec() };
        Self::Write { inode, at, bytes: bytes.len(), are_zeros, data }
    }

    /// Returns how many bytes a logged call occupies on the heap, so that the log can enforce its limit.
    fn heap_bytes(&self) -> usize {
        match self {
            Self::Write { data, .. } => data.len(),
            Self::Make { name, .. } | Self::Link { name, .. } | Self::Remove { name, .. } => name.len(),
            Self::Rename { from, to } => from.1.len() + to.1.len(),
            _ => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LogTime {
    /// Nanoseconds since 1970. A time outside the range of the type becomes the nearest time within it.
    ns: i64,
}

impl LogTime {
    pub fn system_time(self) -> SystemTime {
        let ns = Duration::from_nanos(self.ns.unsigned_abs());
        if self.ns < 0 { UNIX_EPOCH - ns } else { UNIX_EPOCH + ns }
    }
}

impl From<SystemTime> for LogTime {
    fn from(time: SystemTime) -> Self {
        let ns = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let after = time.duration_since(UNIX_EPOCH).map(ns);
        Self { ns: after.unwrap_or_else(|before| -ns(before.duration())) }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggedCall {
    /// Time of the call on the monotonic clock, in nanoseconds.
    #[serde(rename = "at")]
    at_ns: u64,
    /// Time of the call on the wall clock. It determines the time stamps of files and the age of unsynced changes.
    time: LogTime,
    pub call: Call,
}

impl LoggedCall {
    pub fn at(&self) -> Duration {
        Duration::from_nanos(self.at_ns)
    }

    pub fn time(&self) -> SystemTime {
        self.time.system_time()
    }
}

/// Reason why a [`CallLog`] has discarded the file system calls that it had recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// The recorded calls would have needed more memory than the log may use.
    TooLong,
    /// A test flipped a bit on the disk. No variant of [`Call`] describes this, so a replay could not repeat it.
    FlippedBit,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::TooLong => "the server wrote more than the log may hold",
            Self::FlippedBit => "a bit was flipped, which the log cannot repeat",
        })
    }
}

/// All calls to the simulated disk that were logged so far. If the log has discarded them, `lost` is the reason.
#[derive(Clone, Debug)]
pub struct CallLog {
    calls: Vec<LoggedCall>,
    bytes: usize,
    limit: usize,
    clock: fn() -> Duration,
    lost: Option<Loss>,
}

impl CallLog {
    pub(crate) fn new(limit: usize, clock: fn() -> Duration) -> Self {
        Self { calls: Vec::new(), bytes: 0, limit, clock, lost: None }
    }

    /// Logs a call. If the log has no room for the call, it discards all calls, because the files cannot be rebuilt
    /// from only some of the calls.
    pub(crate) fn push(&mut self, time: SystemTime, call: impl FnOnce() -> Call) {
        if self.lost.is_some() {
            return;
        }
        let at_ns = u64::try_from((self.clock)().as_nanos()).unwrap_or(u64::MAX);
        let logged = LoggedCall { at_ns, time: time.into(), call: call() };
        self.bytes += CALL_BYTES + logged.call.heap_bytes();
        if self.bytes > self.limit {
            return self.give_up(Loss::TooLong);
        }
        self.calls.push(logged);
    }

    pub(crate) fn give_up(&mut self, reason: Loss) {
        self.lost.get_or_insert(reason);
        self.calls = Vec::new();
    }

    /// Returns the calls from the oldest on, or the reason why they were discarded.
    pub fn calls(self) -> Result<Vec<LoggedCall>, Loss> {
        self.lost.map_or(Ok(self.calls), Err)
    }
}
