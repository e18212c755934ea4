//! `--shard` and `--start-at`: the part of a load that this machine sends, when several machines send the load
//! together.
use anyhow::{Result, bail};
use clap::Args;
use jiff::Timestamp;
use mailrun_load::source::{PlanHash, Shard, SourceShard};
use mailrun_measurement::RunId;
use std::time::Duration;

/// If the wait for the start of a load is at least this long, the user is told when the load begins. A shorter wait is
/// hardly noticed.
const MIN_ANNOUNCED_WAIT: Duration = Duration::from_secs(2);

/// Options for one part of a load that several machines send.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Load from several machines")]
pub(crate) struct ShardArgs {
    /// Send one part of the load: I/N, where I counts from 0, as JOB_COMPLETION_INDEX and SLURM_PROCID do
    ///
    /// --messages, --rate, --stage and --sessions describe the whole load, which the N machines divide among them.
    /// After the run, mailrun merge joins the results of all parts, and judges the thresholds. See docs/cluster.md.
    #[arg(long, value_name = "I/N", value_parser = shard, requires = "start_at", hide_short_help = true,
          conflicts_with = "abort_on")]
    shard: Option<Shard>,
    /// Time at which all parts begin, in RFC 3339: 2026-11-23T12:00:00Z. A part that is late begins at once.
    #[arg(long, value_name = "TIME", value_parser = timestamp, requires = "shard", hide_short_help = true)]
    start_at: Option<Timestamp>,
}

/// The load that all machines send together. Each machine sends only its part.
pub(crate) struct WholeLoad {
    /// Options that decide which messages are sent, when, and to whom. They must be the same on all machines.
    pub(crate) words: Vec<String>,
    pub(crate) messages: Option<u64>,
    pub(crate) sessions: u32,
    pub(crate) has_trace: bool,
}

fn shard(text: &str) -> Result<Shard, String> {
    text.parse()
}

fn timestamp(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| format!("{text:?} is not a time in RFC 3339; use something like 2026-11-23T12:00:00Z"))
}

impl ShardArgs {
    pub(crate) fn is_part(&self) -> bool {
        self.shard.is_some()
    }

    /// Returns this machine's part of the load, or `None` if this machine sends the whole load.
    ///
    /// # Errors
    ///
    /// Returns an error if the load cannot be divided, for example because it has fewer messages than parts. Also fails
    /// if messages have no trace header, because the results of the parts could then not be joined.
    pub(crate) fn part(&self, load: WholeLoad) -> Result<Option<SourceShard>> {
        let Some((part, start_at)) = self.shard.zip(self.start_at) else { return Ok(None) };
        part.check_totals(load.messages, load.sessions).map_err(anyhow::Error::msg)?;
        if !load.has_trace {
            bail!("--no-trace cannot be used with --shard: without the trace header the parts cannot be joined");
        }
        let count = format!("--shard=/{}", part.count());
        let plan = PlanHash::of(load.words.iter().chain([&count]).map(String::as_str));
        Ok(Some(SourceShard::new(part, start_at, plan)))
    }

    /// Tells the user when the load will begin, if the wait is long enough to be noticed.
    pub(crate) fn announce(&self) {
        let Some(start_at) = self.start_at else { return };
        let left = Duration::try_from(start_at.duration_since(Timestamp::now())).unwrap_or_default();
        if left >= MIN_ANNOUNCED_WAIT {
            mailrun_process::tell!("The load begins at {start_at}, in {} s.", left.as_secs());
        }
    }
}

/// Returns the id of the whole run. All parts compute the same id, because it depends only on the plan and the start
/// time.
pub(crate) fn run_id(part: &SourceShard) -> RunId {
    part.plan.run_id(&part.start_at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_with_its_zone_and_nothing_else_is() {
        assert_eq!(timestamp("2026-11-23T12:00:00Z"), timestamp("2026-11-23T13:00:00+01:00"));
        for text in ["", "12:00", "2026-11-23", "tomorrow", "1795435200"] {
            assert!(timestamp(text).is_err(), "{text}");
        }
    }
}
