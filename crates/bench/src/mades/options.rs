use mailrun_measurement::record::{Mades, Workload};
use mailrun_measurement::threshold::Threshold;
use mailrun_process::live::LiveMode;
use mailrun_process::party_options::PartyOptions;
use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct MadesBenchOptions {
    pub name: String,
    /// Run directory, or `None` for a new one under `mailrun-results/`.
    pub out: Option<PathBuf>,
    pub target: MadesTarget,
    /// Plan in TOML that tells the simulated endpoint how to behave and which faults to inject.
    pub plan: String,
    /// Faults that the plan injects, as the report describes them.
    pub faults: Vec<String>,
    /// Options for the simulated endpoint, in addition to the options that the bench sets itself.
    pub endpoint_options: PartyOptions,
    /// Options for `mailrun mades`, except for its target and its output files.
    pub bench_options: PartyOptions,
    /// Description of the load. It is used only if `mailrun mades` dies before it has written a record, because the
    /// bench then makes the record itself.
    pub workload: Workload,
    /// Fields that only records of MADES runs have. Like `workload`, they are used only for a record that the bench
    /// makes itself.
    pub mades: Mades,
    pub thresholds: Vec<Threshold>,
    pub live: LiveMode,
    pub title: Option<String>,
    pub command: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MadesTarget {
    /// A simulated endpoint pair, which the bench starts.
    StandIn,
    Running {
        /// URL of the endpoint's broker, without a password.
        url: String,
        /// Options for `mailrun mades` that name the endpoint's brokers and queues.
        options: PartyOptions,
    },
}

impl std::fmt::Display for MadesTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::StandIn => "stand-in",
            Self::Running { url, .. } => url,
        })
    }
}
