//! Files that a round with losses leaves in its directory. `losses.json` lists the missing messages. If the fault was a
//! power cut, `calls.jsonl` and `calls.data` contain the server's file system calls during the round.
use crate::directory::{CALLS, CALLS_DATA, LOSSES};
use crate::recipe::StoredRecipe;
use anyhow::{Context, Result, bail};
use mailrun_crashfs::{CallLog, StoredCalls};
use mailrun_measurement::record::AuditLoss;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

const FORMAT: &str = "mailrun-losses/1";
/// Size limit for `losses.json`, in bytes. A loss takes some hundred bytes, and a round lists at most a thousand.
const MAX_BYTES: u64 = 4 << 20;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RoundLosses {
    pub(super) format: String,
    /// Name of the fault, with the file system if the fault cuts the power, for example `power-cut on ext4`.
    pub(super) fault: String,
    /// ID by which `mailrun audit explain` recognizes the round's messages in the server's files. The trace header of
    /// each message contains this ID.
    pub(super) run_id: String,
    /// Time at which the load began, on the monotonic clock.
    pub(super) origin_ns: u64,
    /// Number of messages that the source sent. They are numbered from 0.
    pub(super) sent: u64,
    pub(super) losses: Vec<AuditLoss>,
    pub(super) log: LogState,
    /// Recipe, which describes how to start the server, so that `mailrun audit explain` can start the server again.
    pub(super) recipe: Option<StoredRecipe>,
}

/// Tells whether the calls to the file system were logged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LogState {
    Kept,
    /// The log was abandoned for this reason, for example because it needed too much memory.
    Lost(String),
    /// The calls were not logged, because the round's fault does not cut the power.
    #[default]
    None,
}

impl LogState {
    /// Writes the logged calls to the round's directory. `capacity` is the size of the disk in bytes.
    pub(super) fn write(log: Option<CallLog>, capacity: u64, place: &Path) -> Result<Self> {
        let Some(log) = log else { return Ok(Self::None) };
        let stored = match log.calls() {
            Ok(calls) => StoredCalls { capacity, calls },
            Err(reason) => return Ok(Self::Lost(reason.to_string())),
        };
        let path = place.join(CALLS);
        stored.write(&path, &place.join(CALLS_DATA)).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self::Kept)
    }
}

impl Default for RoundLosses {
    fn default() -> Self {
        Self {
            format: FORMAT.to_owned(),
            fault: String::new(),
            run_id: String::new(),
            origin_ns: 0,
            sent: 0,
            losses: Vec::new(),
            log: LogState::None,
            recipe: None,
        }
    }
}

impl RoundLosses {
    pub(super) fn write(&self, place: &Path) -> Result<()> {
        let path = place.join(LOSSES);
        fs::write(&path, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads `losses.json` from a round's directory. Returns `None` if there is no such file, because the round lost
    /// nothing.
    pub(super) fn read(place: &Path) -> Result<Option<Self>> {
        let path = place.join(LOSSES);
        if !path.exists() {
            return Ok(None);
        }
        let cannot = || format!("cannot read {}", path.display());
        if fs::metadata(&path).with_context(cannot)?.len() > MAX_BYTES {
            bail!("{}: it is too large to be the losses of a round", path.display());
        }
        let text = fs::read(&path).with_context(cannot)?;
        let losses: Self = serde_json::from_slice(&text).with_context(cannot)?;
        if losses.format != FORMAT {
            bail!("{}: its format is {:?}, and not {FORMAT}", path.display(), losses.format);
        }
        Ok(Some(losses))
    }

    pub(super) fn calls(&self, place: &Path) -> Result<StoredCalls> {
        let path = place.join(CALLS);
        StoredCalls::read(&path, &place.join(CALLS_DATA)).with_context(|| format!("cannot read {}", path.display()))
    }
}
