//! Errors that a spool returns. Each variant asks for a different reaction of the caller.
use crate::{Damage, Id};
use std::io;
use std::sync::Arc;

/// Reason why the spool did not fulfil a request. Errors are cheap to clone, because all messages
/// of a failed batch get the same error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The spool has no room for this message until other messages are done. An SMTP server should
    /// answer 452.
    #[error("the spool is full")]
    Full,
    /// A write or a sync failed. The content of the disk is unknown, so the spool accepts nothing
    /// more, and an SMTP server should answer 451. A restart recovers everything that is on the
    /// disk.
    #[error("the spool's disk failed; no mail is accepted until a restart: {0}")]
    Poisoned(Arc<str>),
    /// Bytes that had been synced are missing, or differ from what was written.
    #[error("{file} is damaged at offset {offset}")]
    Damaged {
        /// Name of the damaged file, without the spool's directory.
        file: String,
        /// Offset of the first wrong byte in the file.
        offset: u64,
    },
    /// The spool is damaged, and the options forbid opening a damaged spool
    /// ([`OnDamage::Refuse`](crate::OnDamage::Refuse)).
    #[error("the spool is damaged, and damage is not permitted; nothing was changed: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    DamageRefused(Arc<[Damage]>),
    /// The spool could not copy damaged bytes to the quarantine. No file was removed.
    #[error("cannot copy damaged bytes to {file}, so the spool is not opened: {error}")]
    QuarantineFailed {
        /// Path that the copy should have got, relative to the spool's directory.
        file: String,
        /// Error that the file system reported.
        error: Arc<io::Error>,
    },
    /// A later version of mailrun has written this file.
    #[error("{file} was written by a later version of mailrun (spool format {version}): open it with that one")]
    NewerVersion {
        /// Name of the file in the spool's directory.
        file: String,
        /// Format version in the file's header.
        version: u32,
    },
    /// Another process has this spool open, for example a relay or an inspection.
    #[error("another process has this spool open")]
    Locked,
    /// The message or its envelope exceeds the limit of the options, or is too large for a spool of
    /// this size. Even an empty spool would not accept it.
    #[error("{bytes} bytes are more than the limit of {most} per message")]
    TooLarge {
        /// Size of the message or envelope in bytes.
        bytes: u64,
        /// Limit that `bytes` exceeds: the maximum size of a message or envelope in bytes.
        most: u64,
    },
    /// The spool was closed, so it accepts nothing more.
    #[error("the spool has been closed")]
    Closed,
    /// There is no message with this id, for example because the message is done.
    #[error("there is no message {0}")]
    Unknown(Id),
    /// The disk could not be read, or the directory could not be used.
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
        Self::Poisoned(cause_text(cause).into())
    }
}

/// Returns an error as text for an administrator. If a file exceeded the host's limit of file sizes, the text says how
/// to raise the limit.
pub(crate) fn cause_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::FileTooLarge => format!("{error}; raise the limit of file sizes (ulimit -f)"),
        _ => error.to_string(),
    }
}
