//! Options of an audit: the faults to cause, the load of each round, and the number of rounds.
use super::fault::AuditFault;
use crate::recipe::Recipe;
use mailrun_crashfs::Profile;
use mailrun_measurement::threshold::Threshold;
use mailrun_process::live::LiveMode;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct AuditOptions {
    pub recipe: Recipe,
    /// Faults that the audit causes, each in a round of its own. After the last fault, the audit begins again with the
    /// first.
    pub faults: Vec<AuditFault>,
    /// File systems that the audit's in-memory disk imitates when the power is cut. If the list is empty, the power is
    /// cut on ext4 and XFS each time, and on each of the other file systems every fifth time.
    pub file_systems: Vec<Profile>,
    pub length: AuditLength,
    /// Seed of the random moments at which the faults occur. The same seed gives the same moments again.
    pub seed: u64,
    /// Number of messages that the source sends in a round with a full load. The other rounds send a single message.
    pub messages: u64,
    /// If no mail arrives for this long, the round stops waiting for more. This limit matters if
    /// the server cannot tell whether its queue is empty, or if it does not empty its queue.
    pub lost_after: Duration,
    pub thresholds: Vec<Threshold>,
    /// Directory in which the audit writes its results. `None` creates a new directory under `mailrun-results/`.
    pub out: Option<PathBuf>,
    pub live: LiveMode,
    /// Command line that the user typed, for the record.
    pub command: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditLength {
    /// The audit ends after this number of rounds of each kind of fault.
    Rounds(u32),
    /// After this time, the audit still completes the running round and then ends.
    Time(Duration),
}
