//! `--keep-awake`: an option of every command that measures.
use anyhow::Result;
use clap::Args;
use mailrun_party::keep_awake::{AwakeProcessors, KeepAwakeMode, keep_awake};

/// The sleep of this host's processors.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(super) struct KeepAwakeArg {
    /// Keep the processors of this host from sleeping during the run, by /dev/cpu_dma_latency (root): with few sessions, most of
    /// a round trip is the waking of processors.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", hide_short_help = true)]
    keep_awake: KeepAwakeMode,
}

impl KeepAwakeArg {
    /// Keeps the processors awake until the returned value is dropped. With `auto`, it does so only
    /// if `is_usual` is set.
    ///
    /// # Errors
    ///
    /// If `on` was given, but this host cannot keep its processors awake.
    pub(super) fn begin(self, is_usual: bool) -> Result<AwakeProcessors> {
        keep_awake(self.keep_awake, is_usual)
    }
}
