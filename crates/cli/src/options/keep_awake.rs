//! `--keep-awake`, an option of every command that measures.
use anyhow::Result;
use clap::Args;
use mailrun_load::source::Distribution;
use mailrun_measurement::record::{Arrival, Workload};
use mailrun_process::keep_awake::{AwakeProcessors, KeepAwakeMode, keep_awake};

/// Maximum number of sessions with which a closed loop leaves the processors time to sleep. The first number is for
/// sessions that reuse their connections, the second for sessions that open one for each message.
/// docs/decisions/0024-processors-are-kept-awake.md has the measurements.
const MAX_SLEEPY_SESSIONS: [u32; 2] = [4, 30];

/// Whether the processors of this host may sleep during a run.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct KeepAwakeArg {
    /// Keep the processors of this host from sleeping during the run, by /dev/cpu_dma_latency (root): with few sessions, most of
    /// a round trip is the waking of processors.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", hide_short_help = true)]
    keep_awake: KeepAwakeMode,
}

impl KeepAwakeArg {
    /// Keeps the processors awake during a load, until the returned value is dropped. If the user chose `auto`, this
    /// happens only if `is_usual` is set and the load lets processors sleep, as an open loop or a closed loop with few
    /// sessions does. More sessions keep the processors awake anyway, and a processor that waits without sleeping takes
    /// power and time from the others. `reuse` is the number of messages per connection, or `None` for no limit.
    ///
    /// # Errors
    ///
    /// Returns an error if the user asked for `on`, but this host cannot keep its processors awake.
    pub(crate) fn begin_load(
        self,
        is_usual: bool,
        load: &Workload,
        reuse: Option<&Distribution>,
    ) -> Result<AwakeProcessors> {
        let [reused, connection_each] = MAX_SLEEPY_SESSIONS;
        let is_connection_each = reuse.is_some_and(|messages| messages.max() == 1);
        let limit = if is_connection_each { connection_each } else { reused };
        let is_sleepy = load.arrival != Arrival::Closed || load.sessions <= limit;
        self.begin(is_usual && is_sleepy)
    }

    /// Keeps the processors awake until the returned value is dropped. If the user chose `auto`, `is_usual` decides
    /// whether they are kept awake.
    ///
    /// # Errors
    ///
    /// Returns an error if the user asked for `on`, but this host cannot keep its processors awake.
    pub(crate) fn begin(self, is_usual: bool) -> Result<AwakeProcessors> {
        keep_awake(self.keep_awake, is_usual)
    }
}
