//! `mailrun bench SCENARIO`: the published tables, run anew on this machine.
use super::mades_bench::MadesBenchArgs;
use super::mades_compare::MadesCompareArgs;
use super::no_thresholds::NoThresholdArgs;
use super::relays::{BacklogArgs, LatencyArgs, RELAY_64K, RELAY_400, RelayComparisonArgs, SoakArgs};
use super::results::TableReportArgs;
use super::sink::SinkFaultArgs;
use super::{Strictness, values};
use crate::bench::tables::{self, Conclusion, DeliveryCheck, TableOptions, TextReport};
use anyhow::Result;
use clap::{Args, Subcommand};
use std::process::ExitCode;
use std::time::Duration;

/// Descriptors that are not sessions.
const SPARE_FILES: u64 = 64;

#[derive(Debug, Subcommand)]
pub(super) enum Scenario {
    SmtpSourceTable(TableArgs),
    SmtpSourceCheck(CheckArgs),
    /// Measures relays with messages of 400 bytes, like the published benchmark
    #[command(name = "relay-400")]
    Relay400(RelayComparisonArgs),
    /// Measures relays with messages of 64 KiB, like the published benchmark
    #[command(name = "relay-64k")]
    Relay64k(RelayComparisonArgs),
    RelayLatency(LatencyArgs),
    RelayBacklog(BacklogArgs),
    RelaySoak(SoakArgs),
    Mades(Box<MadesBenchArgs>),
    MadesCompare(Box<MadesCompareArgs>),
}

/// Measures smtp-source, go-smtp-source and `mailrun smtp-source` side by side
///
/// Prints the table of go-smtp-source's README: each installed source, at each number of sessions, with and without -d
/// (many messages per connection), against Postfix's smtp-sink and against `mailrun sink`. CPU time, memory and time
/// are those of the source; the ratios are to smtp-source in the same round. Ctrl-C ends the run and prints the table
/// so far. Exit status 1 if a run failed, hung or lost mail.
#[derive(Debug, Args)]
#[command(after_help = TABLE_EXAMPLES)]
pub(super) struct TableArgs {
    /// Messages per run.
    #[arg(short, long, visible_short_alias = 'n', value_name = "N", default_value = "10000", value_parser = values::scenario_messages)]
    messages: u64,
    #[command(flatten)]
    runs: TableRunArgs,
}

/// Checks that each source delivers every message to every recipient, once and unchanged
///
/// Does what go-smtp-source's bench_check.sh does, and more: counts messages and recipients in the sink's dump, and
/// checks that each delivery is there once, with the text that was sent. Exit status 1 if anything is not OK, 130
/// if the run was interrupted.
#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(super) struct CheckArgs {
    /// Messages per run.
    #[arg(short, long, visible_short_alias = 'n', value_name = "N", default_value = "1000", value_parser = values::scenario_messages)]
    messages: u64,
    /// Recipients per message, a comma-separated list of numbers to run.
    #[arg(long, value_name = "N,N", default_value = "1,3", value_delimiter = ',', value_parser = values::recipient_count)]
    recipients: Vec<u32>,
    #[command(flatten)]
    runs: TableRunArgs,
    #[command(flatten)]
    faults: SinkFaultArgs,
}

const TABLE_EXAMPLES: &str = "\
Examples:
  mailrun bench smtp-source-table                            some minutes
  mailrun bench smtp-source-table --sessions 1,100 --messages 1000 --rounds 3";

const CHECK_EXAMPLES: &str = "\
Examples:
  mailrun bench smtp-source-check
  mailrun bench smtp-source-check --sessions 10 --recipients 1,3,50
  mailrun bench smtp-source-check --drop 1%                  the check finds what is missing";

#[derive(Debug, Args)]
struct TableRunArgs {
    /// Parallel sessions, a comma-separated list of numbers to run.
    #[arg(short, long, visible_short_alias = 'c', value_name = "N,N", default_value = "1,100,1000", value_delimiter = ',', value_parser = values::sessions)]
    sessions: Vec<u32>,
    /// Runs per row; the table shows medians.
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::rounds)]
    rounds: u32,
    /// Time limit of a run; a run that exceeds it is killed and reported.
    #[arg(long, value_name = "TIME", default_value = "3m", value_parser = values::some_duration)]
    max_time: Duration,
    #[command(flatten)]
    no_thresholds: NoThresholdArgs,
    #[command(flatten)]
    tables: TableReportArgs,
}

impl Scenario {
    pub(super) fn run(self) -> Result<ExitCode> {
        let tables = self.tables();
        let sheet = match self {
            Self::SmtpSourceTable(typed) => {
                typed.runs.run_table(typed.messages, vec![1], DeliveryCheck::None, Vec::new())
            }
            Self::SmtpSourceCheck(typed) => {
                let faults = typed.faults.arguments();
                typed.runs.run_table(typed.messages, typed.recipients, DeliveryCheck::EveryDelivery, faults)
            }
            Self::Relay400(typed) => typed.run(RELAY_400),
            Self::Relay64k(typed) => typed.run(RELAY_64K),
            Self::RelayLatency(typed) => typed.run(),
            Self::RelayBacklog(typed) => typed.run(),
            Self::RelaySoak(typed) => typed.run(),
            Self::Mades(typed) => return typed.run(),
            Self::MadesCompare(typed) => typed.run(),
        }?;
        tables.show(&sheet)?;
        let Conclusion { outcome, is_strict, is_interrupted, .. } = sheet.conclusion;
        Ok(super::exit_status(Some(outcome), is_interrupted, Strictness::of(is_strict)))
    }

    /// The choice of how its tables are shown.
    fn tables(&self) -> TableReportArgs {
        let typed = match self {
            Self::SmtpSourceTable(typed) => &typed.runs.tables,
            Self::SmtpSourceCheck(typed) => &typed.runs.tables,
            Self::Relay400(typed) | Self::Relay64k(typed) => &typed.tables,
            Self::RelayLatency(typed) => &typed.tables,
            Self::RelayBacklog(typed) => &typed.tables,
            Self::RelaySoak(typed) => &typed.tables,
            Self::MadesCompare(typed) => &typed.tables,
            // A single run, with a report of its own.
            Self::Mades(_) => return TableReportArgs::default(),
        };
        typed.clone()
    }
}

impl TableRunArgs {
    fn run_table(
        self,
        messages: u64,
        recipients: Vec<u32>,
        proof: DeliveryCheck,
        sink_options: Vec<String>,
    ) -> Result<TextReport> {
        // All parties inherit it. Each would raise its own limit, and some only as they go along.
        let most = self.sessions.iter().copied().max().unwrap_or_default();
        net::open_files::raise(u64::from(most) + SPARE_FILES);
        let live = self.tables.live();
        let Self { sessions, rounds, max_time: limit, .. } = self;
        tables::run(&TableOptions { messages, rounds, sessions, recipients, check: proof, limit, sink_options, live })
    }
}
