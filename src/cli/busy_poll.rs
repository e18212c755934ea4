//! `--busy-poll`: an option of every command that serves sessions.
use clap::Args;
use mailrun_net::BusyPoll;

/// Busy polling of the workers.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct BusyPollArg {
    /// Look for events for TIME before a worker sleeps, 50us or 1ms: replies come sooner with few sessions, and a processor is
    /// busy. With auto, up to 100us if it finds events and the CPU is otherwise idle [default: off].
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    busy_poll: Option<BusyPoll>,
}

impl BusyPollArg {
    pub(super) fn value(self) -> BusyPoll {
        self.busy_poll.unwrap_or_default()
    }

    /// The option for another command, if it was given.
    pub(super) fn word(self) -> Option<String> {
        self.busy_poll.map(|mode| format!("--busy-poll={mode}"))
    }
}
