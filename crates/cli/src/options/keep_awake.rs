//! `--keep-awake`, which keeps processors from sleeping during a measurement. Commands such as `bench`, `source`,
//! `sink` and `relay` have this option.
use anyhow::Result;
use clap::Args;
use mailrun_load::source::Distribution;
use mailrun_measurement::record::{Arrival, Workload};
use mailrun_process::keep_awake::{AwakeProcessors, KeepAwakeMode, keep_awake};

/// Maximum numbers of sessions in a closed loop for which `auto` keeps the processors awake. With so few sessions,
/// processors would sleep between replies. The first number applies if sessions reuse connections, the second if each
/// message gets a connection of its own. docs/decisions/0024-processors-are-kept-awake.md has the measurements.
const MAX_SLEEPY_SESSIONS: [u32; 2] = [4, 30];

/// Whether the processors of this host may sleep during a run.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct KeepAwakeArg {
    /// Keep the processors of this host from sleeping during the run. With few sessions, most of a round trip is spent
    /// on waking processors. This option needs write access to /dev/cpu_dma_latency (root).
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", hide_short_help = true)]
    keep_awake: KeepAwakeMode,
}

impl KeepAwakeArg {
    /// Keeps the processors awake during a load, until the returned value is dropped. `auto` does so only if no server
    /// under test runs on this host (`is_usual`), and only for an open loop, or for a closed loop with few sessions.
    /// More sessions keep the processors busy anyway, and a processor that waits without sleeping takes power and time
    /// from others. `reuse` is the number of messages per connection, or `None` for no limit.
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

    /// Keeps the processors awake until the returned value is dropped. With `auto`, the caller decides: the processors
    /// are kept awake only if `is_usual` is true.
    ///
    /// # Errors
    ///
    /// Returns an error if the user asked for `on`, but this host cannot keep its processors awake.
    pub(crate) fn begin(self, is_usual: bool) -> Result<AwakeProcessors> {
        keep_awake(self.keep_awake, is_usual)
    }
}
