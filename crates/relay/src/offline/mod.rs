//! Commands for a spool that no relay has open. `check`, `salvage` and `export` never change the spool. `leftover`
//! opens it for writing, as a relay does.
//!
//! | module | what it does |
//! |---|---|
//! | `check` | reports the contents of a spool and its damage |
//! | `content` | reads a message in the spool with the relay's notes about it |
//! | `export` | writes two files for each message: the content and the envelope |
//! | `leftover` | finds the units of a run that are still in the queue |
//! | `output` | creates an output directory that appears whole or not at all |
//! | `salvage` | copies readable messages into a Maildir or a new spool |
pub mod check;
mod content;
pub mod export;
pub mod leftover;
mod output;
pub mod salvage;

use anyhow::{Result, anyhow};
pub use content::LeftOut;
use content::{SpooledMessage, UnreadableMessage};
use mailrun_spool::{Error, Inspection};
use std::path::{Path, PathBuf};

pub struct OfflineSpool {
    directory: PathBuf,
    inspection: Inspection,
}

impl OfflineSpool {
    /// Reads a whole spool without changing it.
    ///
    /// # Errors
    /// Fails if a relay has the spool open, if a later version has written it, or if it cannot be
    /// read.
    pub fn open(directory: &Path) -> Result<Self> {
        let cannot = |reason: &str| anyhow!("cannot read the spool {}: {reason}", directory.display());
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

    /// Counts the damaged places where messages, or notes about their progress, may have been lost.
    fn damage_count(&self) -> u64 {
        self.inspection.damage.iter().filter(|damage| damage.is_alarming()).count() as u64
    }

    /// Returns all unfinished messages, in the order in which the spool's log contains them.
    fn messages(&self) -> impl Iterator<Item = Result<SpooledMessage, UnreadableMessage>> {
        self.inspection.messages().map(|read| match read {
            Ok(message) => SpooledMessage::new(message),
            Err(error) => Err(UnreadableMessage { id: None, body: None, why: error.to_string() }),
        })
    }
}
