//! A spool that no relay has open: checks, salvages and exports it, and never changes it.
//!
//! | module | what it does |
//! |---|---|
//! | `check` | contents of a spool, and its damage |
//! | `content` | a message in the spool, with the relay's notes about it |
//! | `export` | a file of the message and one of its envelope, for each message |
//! | `output` | a directory that is there whole or not at all |
//! | `salvage` | salvages readable messages into a Maildir or a new spool |
pub mod check;
mod content;
pub mod export;
pub mod leftover;
mod output;
pub mod salvage;

use anyhow::{Result, anyhow};
pub use content::LeftOut;
use content::{SpooledMessage, UnreadableMessage};
use mailrun_spool::{Error, Inspection, SegmentInfo, SegmentState};
use std::path::{Path, PathBuf};

/// The length of a segment is a multiple of this (docs/spool-format.md).
const BLOCK_BYTES: u64 = 4096;

pub struct OfflineSpool {
    directory: PathBuf,
    inspection: Inspection,
}

impl OfflineSpool {
    /// Reads a whole spool.
    ///
    /// # Errors
    /// If a relay has it open, a later version has written it, or it cannot be read.
    pub fn open(directory: &Path) -> Result<Self> {
        let cannot = |why: &str| anyhow!("cannot read the spool {}: {why}", directory.display());
        if !directory.is_dir() {
            return Err(cannot("no such directory"));
        }
        match mailrun_spool::inspect(directory) {
            Ok(inspection) => Ok(Self { directory: directory.to_owned(), inspection }),
            Err(Error::Locked) => Err(cannot(
                "a relay is using it; stop the relay first, or list its queue with: mailrun queue list --spool DIR",
            )),
            Err(error) => Err(cannot(&error.to_string())),
        }
    }

    /// Number of damaged places that cost something.
    fn damage_count(&self) -> u64 {
        let alarming = self.inspection.damage.iter().filter(|damage| damage.is_alarming()).count();
        (alarming + self.truncated_segments().count()) as u64
    }

    /// Truncated segments. No crash causes this, because segments are allocated in whole blocks before they are used.
    fn truncated_segments(&self) -> impl Iterator<Item = &SegmentInfo> {
        let used = self.inspection.segments.iter().filter(|segment| matches!(segment.state, SegmentState::Used { .. }));
        used.filter(|segment| segment.bytes % BLOCK_BYTES != 0)
    }

    /// All unfinished messages, in the order of the log.
    fn messages(&self) -> impl Iterator<Item = Result<SpooledMessage, UnreadableMessage>> {
        self.inspection.messages().map(|read| match read {
            Ok(message) => SpooledMessage::new(message),
            Err(error) => Err(UnreadableMessage { id: None, body: None, why: error.to_string() }),
        })
    }
}
