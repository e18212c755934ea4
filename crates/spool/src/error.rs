//! What can go wrong with a spool, named by whom to blame.
use crate::{Damage, Id};
use std::io;
use std::sync::Arc;

/// Why the spool did not do what it was asked. Cheap to clone: a whole batch may fail of one cause.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// There is no room for this message now; there will be when others are done. An SMTP server answers 452.
    #[error("the spool is full")]
    Full,
    /// Writing or a sync failed, so nobody knows what the disk holds: nothing is taken any more. An SMTP server answers
    /// 451; a restart recovers what is there.
    #[error("the spool's disk failed; no mail is accepted until a restart: {0}")]
    Poisoned(Arc<str>),
    /// What was once synced does not read as it was written. The file and the offset say where.
    #[error("{file} is damaged at offset {offset}")]
    Damaged {
        /// Its name in the spool's directory.
        file: String,
        /// The first octet that does not make sense.
        offset: u64,
    },
    /// The spool is damaged, and was to be opened only if it is not ([`OnDamage::Refuse`](crate::OnDamage::Refuse)).
    #[error("the spool is damaged, and damage is not permitted; nothing was changed: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    DamageRefused(Arc<[Damage]>),
    /// A copy of damaged bytes could not be kept. Nothing was removed.
    #[error("cannot copy damaged bytes to {file}, so the spool is not opened: {error}")]
    NotKept {
        /// The file in the spool's directory.
        file: String,
        /// Why not.
        error: Arc<io::Error>,
    },
    /// A later mailrun has written this segment.
    #[error("{file} was written by a later version of mailrun (spool format {version}): open it with that one")]
    Newer {
        /// Its name in the spool's directory.
        file: String,
        /// The version that its header states.
        version: u32,
    },
    /// Another process has this spool open.
    #[error("another process has this spool open")]
    Held,
    /// The message, or its envelope, is larger than the options allow, whatever room there is.
    #[error("{bytes} bytes are more than the limit of {most} per message")]
    TooLarge {
        /// What was to be stored.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// The spool has been closed.
    #[error("the spool has been closed")]
    Closed,
    /// There is no such message: it is done, or never was.
    #[error("there is no message {0}")]
    Unknown(Id),
    /// The disk could not be read or its directory not be used.
    #[error("the spool's disk: {0}")]
    Disk(Arc<io::Error>),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Disk(Arc::new(error))
    }
}

impl Error {
    pub(crate) fn poisoned(cause: &io::Error) -> Self {
        Self::Poisoned(cause.to_string().into())
    }
}
