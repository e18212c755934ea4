//! What a comparison of MADES benches does.
use crate::scenario::{CompareMode, MadesTool, RoundOrder, SendWindow};
use mailrun_party::live::LiveMode;
use std::path::PathBuf;
use std::time::Duration;

/// A broker that is already running.
#[derive(Clone)]
pub struct CompareBroker {
    pub url: String,
    pub user: String,
    pub password: String,
    /// Certificates to trust, for contestants that verify certificates.
    pub cacert: Option<PathBuf>,
}

impl std::fmt::Debug for CompareBroker {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omit the password, and the URL, which may contain one.
        out.debug_struct("Broker").field("user", &self.user).field("cacert", &self.cacert).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
pub struct CompareOptions {
    pub mode: CompareMode,
    pub messages: u64,
    pub message_bytes: u64,
    /// Programs to compare. Those that are not installed are left out.
    pub tools: Vec<MadesTool>,
    /// Number of runs of each row. The figures are the medians of these runs.
    pub rounds: u32,
    pub order: RoundOrder,
    pub windows: Vec<SendWindow>,
    /// Maximum number of messages under way, if all contestants get the same window.
    pub max_in_transit: u32,
    /// `None` starts the embedded stand-in, and a new one for each run.
    pub broker: Option<CompareBroker>,
    pub prefix: String,
    /// Share of the messages that the stand-in loses.
    pub drop: f64,
    /// A run that takes longer than this fails.
    pub max_time: Duration,
    pub live: LiveMode,
}
