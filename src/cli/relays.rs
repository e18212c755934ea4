//! Which relay stands between source and sink, and the published contest of several: what was typed, to what it means.
use super::values;
use crate::bench::relays::{self, ContestOptions, Contestant, Durability};
use crate::bench::tables::Sheet;
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

/// Descriptors that are not sessions.
const SPARE_FILES: u64 = 256;

/// The relay of a run.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Relay")]
pub(super) struct RelayTyped {
    /// What stands between: mailrun (also mailrun:write, mailrun:memory, for less durability), postfix (a private one; as
    /// root), none, or a command with {to}, {listen} and {spool} in it, as 'mta -l {listen} -n {to} -q {spool}'
    /// [default: mailrun].
    #[arg(long, value_name = "WHICH")]
    relay: Option<Contestant>,
    /// No relay: the source sends to the sink.
    #[arg(long, conflicts_with = "relay")]
    no_relay: bool,
    /// A relay that is running already, takes mail here, and hands on to --sink-listen.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["relay", "no_relay"], requires = "sink_listen")]
    relay_address: Option<String>,
    /// Where the bench's own sink listens for what that relay hands on.
    #[arg(long, value_name = "HOST:PORT", requires = "relay_address")]
    sink_listen: Option<String>,
}

impl RelayTyped {
    /// The one that was asked for; `None` if nothing was said.
    pub(super) fn asked(&self) -> Option<Contestant> {
        let running = self.relay_address.clone().zip(self.sink_listen.clone());
        let running = running.map(|(address, sink)| Contestant::Running { address, sink });
        running.or_else(|| self.relay.clone()).or(self.no_relay.then_some(Contestant::None))
    }
}

/// What stands between where nothing was said.
pub(super) fn usual() -> Contestant {
    Contestant::Mailrun(Durability::Sync)
}

/// Times a relay as the published benchmark does: MESSAGES over 250 sessions to 5 domains, a new connection each
///
/// How long until all are accepted, how long until all are delivered, and what the relay used for it: processor time of
/// all its processes, bytes written, memory. The far end is always mailrun's own sink, and the account of every message
/// must close. Several relays take turns. Ctrl-C ends it with the table of what was run. Exit status 1 if a run failed
/// or a message was lost.
#[derive(Debug, Args)]
pub(super) struct ContestTyped {
    /// Messages of each run [default: 20000 of 400 octets, 4000 of 64 KiB].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    messages: Option<u64>,
    /// As many as were published: 500,000.
    #[arg(long, conflicts_with = "messages")]
    full: bool,
    /// Parallel sessions.
    #[arg(long, value_name = "N", default_value = "250", value_parser = values::sessions)]
    sessions: u32,
    /// Runs of each relay.
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Several, in turns: mailrun,postfix. Ratios are to Postfix, or to the last.
    #[arg(long, value_name = "WHICH,WHICH", value_delimiter = ',', conflicts_with_all = ["relay", "no_relay", "relay_address"])]
    compare: Vec<Contestant>,
    /// Count system calls too, in short runs of their own under strace.
    #[arg(long)]
    syscalls: bool,
    /// Where all files go, in place of a new directory below mailrun-results. The relays keep their mail there.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    relay: RelayTyped,
}

/// A published shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// As a source has it.
    pub(super) size: &'static str,
    /// Messages that even Postfix delivers in a minute.
    pub(super) messages: u64,
}

/// Messages that were published.
const PUBLISHED: u64 = 500_000;
pub(super) const RELAY_400: Shape = Shape { name: "relay-400", size: "400", messages: 20_000 };
pub(super) const RELAY_64K: Shape = Shape { name: "relay-64k", size: "64k", messages: 4_000 };

impl ContestTyped {
    pub(super) fn run(self, shape: Shape) -> Result<Sheet> {
        let contestants = self.contestants();
        // All parties inherit it: a relay has two connections a message, or a process.
        net::open_files::raise(2 * u64::from(self.sessions) + SPARE_FILES);
        relays::run(&ContestOptions {
            name: shape.name.to_owned(),
            contestants,
            messages: self.messages.unwrap_or(if self.full { PUBLISHED } else { shape.messages }),
            sessions: self.sessions,
            size: shape.size,
            rounds: self.rounds,
            counts_calls: self.syscalls,
            out: self.out,
            command: std::env::args().collect(),
        })
    }

    fn contestants(&self) -> Vec<Contestant> {
        if self.compare.is_empty() { vec![self.relay.asked().unwrap_or_else(usual)] } else { self.compare.clone() }
    }
}
