use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Inode number of a file or directory. Numbers are never reused, so the kernel cannot mistake a
/// new file for one that it remembers.
pub type Inode = u64;

/// Real file system that a simulated disk imitates. It determines which unsynced changes can survive a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Any subset of the unsynced changes may survive, because POSIX promises nothing about them.
    #[default]
    Strict,
    /// Like ext4 with its default options: data=ordered, delayed allocation, auto_da_alloc.
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

    /// Returns the age at which a creation, removal or renaming of a file is durable without a sync, or `None` with
    /// `Strict`. The age is the interval at which the file system commits its journal or transaction, plus one second.
    pub(crate) fn commits_after(self) -> Option<Duration> {
        match self {
            Self::Strict => None,
            Self::Ext4 => Some(Duration::from_secs(6)),
            Self::Xfs | Self::Btrfs => Some(Duration::from_secs(31)),
        }
    }

    /// Returns true if the sync of a file also makes all earlier changes of names durable, in all directories.
    pub(crate) fn syncs_all_names(self) -> bool {
        matches!(self, Self::Ext4 | Self::Xfs)
    }
}

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

/// A FIFO or a Unix-domain socket. The kernel handles its content, and the file system stores only
/// its name and its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpecialFile {
    Fifo,
    Socket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    Regular,
    Directory,
    Special(SpecialFile),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub user: u32,
    pub group: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survivors {
    /// The name changes that survive. Each is given by its position in the list of unsynced name changes, in ascending
    /// order.
    pub names: Vec<usize>,
    /// For each file with unsynced data, the part of this data that survives the power cut. A file that is not listed
    /// loses all of its unsynced data.
    pub files: Vec<(Inode, SurvivingData)>,
}

/// The part of a file's unsynced data that survives a power cut, or that a failing sync has
/// written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurvivingData {
    pub(crate) length: usize,
    pub(crate) sectors: Vec<SurvivingSector>,
}

/// A sector whose unsynced content has reached the media, wholly or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SurvivingSector {
    pub(crate) number: usize,
    /// Index of the content that reached the media, in the list of all contents that the sector has had since the last
    /// sync, oldest first.
    pub(crate) version: usize,
    /// If a torn write left zeros at the sector's end, the offset at which they begin. `None` for a whole sector.
    pub(crate) torn_at: Option<usize>,
}
