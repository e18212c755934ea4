//! Words of the file system that the log of its calls has as well.
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Number of a file or directory. Numbers are never reused, so the kernel cannot confuse files that it remembers.
pub type Inode = u64;

/// Which unsynced changes outlive a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Any subset of the unsynced changes may survive, because POSIX promises nothing about them.
    #[default]
    Strict,
    /// As with ext4 and its defaults: data=ordered, delayed allocation, auto_da_alloc.
    Ext4,
    Xfs,
    Btrfs,
}

impl Profile {
    pub const ALL: [Self; 4] = [Self::Ext4, Self::Xfs, Self::Btrfs, Self::Strict];

    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Time after which changes of names are durable without a sync: the interval in which the journal or the transaction
    /// is written, and a second more.
    pub(crate) fn commits_after(self) -> Option<Duration> {
        match self {
            Self::Strict => None,
            Self::Ext4 => Some(Duration::from_secs(6)),
            Self::Xfs | Self::Btrfs => Some(Duration::from_secs(31)),
        }
    }

    /// Returns true if the sync of a file also makes all earlier changes of names durable.
    pub(crate) fn syncs_all_names(self) -> bool {
        matches!(self, Self::Ext4 | Self::Xfs)
    }
}

/// Name of an error that operations are made to fail with.
pub(crate) fn error_name(error: Errno) -> &'static str {
    match error {
        Errno::IO => "EIO",
        Errno::NOSPC => "ENOSPC",
        Errno::DQUOT => "EDQUOT",
        Errno::ROFS => "EROFS",
        Errno::FBIG => "EFBIG",
        _ => "another error",
    }
}

/// A file without content of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpecialFile {
    /// A named pipe.
    Fifo,
    /// A Unix-domain socket.
    Socket,
}

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// Has content.
    Regular,
    /// Contains names.
    Directory,
    /// Has neither.
    Special(SpecialFile),
}

/// The user and the group of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Number of the user.
    pub user: u32,
    /// Number of the group.
    pub group: u32,
}

/// What a power cut leaves of the changes that are not durable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survivors {
    /// Positions of the changes of names that survive among all of them, oldest first.
    pub names: Vec<usize>,
    /// What survives of a file's data. Other files are as the media had them for certain.
    pub files: Vec<(Inode, SurvivingData)>,
}

/// What a power cut or a sync that fails leaves of the data of a file that is not durable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurvivingData {
    pub(crate) length: usize,
    pub(crate) sectors: Vec<SurvivingSector>,
}

/// A sector that the media has as somebody wrote it since the last sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SurvivingSector {
    pub(crate) number: usize,
    /// Position among what was written since the last sync.
    pub(crate) version: usize,
    /// The rest of the sector from this byte on is zeros.
    pub(crate) torn_at: Option<usize>,
}
