//! Errors of a spool, named by who is to blame.
use crate::{Damage, Id};
use std::io;
use std::sync::Arc;

/// Why the spool did not do what it was asked. Cheap to clone, because a whole batch may fail for one reason.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// There is no room for this message until other messages are done. An SMTP server should answer 452.
    #[error("the spool is full")]
    Full,
    /// A write or a sync failed, so the content of the disk is unknown, and the spool accepts nothing more. An SMTP
    /// server should answer 451. A restart recovers what is on the disk.
    #[error("the spool's disk failed; no mail is accepted until a restart: {0}")]
    Poisoned(Arc<str>),
    /// Synced bytes do not read as they were written.
    #[error("{file} is damaged at offset {offset}")]
    Damaged {
        /// Its name in the spool's directory.
        file: String,
        /// The first byte that is wrong.
        offset: u64,
    },
    /// The spool is damaged, but should be opened only if it is sound ([`OnDamage::Refuse`](crate::OnDamage::Refuse)).
    #[error("the spool is damaged, and damage is not permitted; nothing was changed: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    DamageRefused(Arc<[Damage]>),
    /// A copy of damaged bytes could not be kept. Nothing was removed.
    #[error("cannot copy damaged bytes to {file}, so the spool is not opened: {error}")]
    QuarantineFailed {
        /// The file in the spool's directory.
        file: String,
        /// The reason.
        error: Arc<io::Error>,
    },
    /// A later version of mailrun has written this segment.
    #[error("{file} was written by a later version of mailrun (spool format {version}): open it with that one")]
    NewerVersion {
        /// Its name in the spool's directory.
        file: String,
        /// The version that its header states.
        version: u32,
    },
    /// Another process has this spool open.
    #[error("another process has this spool open")]
    Locked,
    /// The message or its envelope is larger than the options allow, even in an empty spool.
    #[error("{bytes} bytes are more than the limit of {most} per message")]
    TooLarge {
        /// Size of the message or envelope.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// The spool was closed.
    #[error("the spool has been closed")]
    Closed,
    /// There is no such message: it is done, or never existed.
    #[error("there is no message {0}")]
    Unknown(Id),
    /// The disk could not be read, or its directory could not be used.
    #[error("the spool's disk: {0}")]
    Disk(Arc<io::Error>),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Disk(Arc::new(error))
    }
}

impl Error {
    pub(crate) fn of_lock(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::WouldBlock { Self::Locked } else { error.into() }
    }

    pub(crate) fn poisoned(cause: &io::Error) -> Self {
        Self::Poisoned(cause.to_string().into())
    }
}
