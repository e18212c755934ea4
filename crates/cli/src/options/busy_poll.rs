//! `--busy-poll`: an option of every command that serves sessions.
use crate::options::values;
use clap::Args;
use mailrun_net::BusyPoll;

/// The threads of a source or sink: what a bench tells each of its parties.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ThreadArgs {
    /// Worker threads [default: half of the processors].
    #[arg(long, value_name = "N", value_parser = values::workers)]
    pub(crate) workers: Option<usize>,
    #[command(flatten)]
    pub(crate) busy_poll: BusyPollArg,
}

/// Busy polling of the workers.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct BusyPollArg {
    /// Look for events for TIME before a worker sleeps, 50us or 1ms: replies come sooner with few sessions, and a processor is
    /// busy. For hosts without --keep-awake [default: off].
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    busy_poll: Option<BusyPoll>,
}

impl BusyPollArg {
    pub(crate) fn value(self) -> BusyPoll {
        self.busy_poll.unwrap_or_default()
    }
}
