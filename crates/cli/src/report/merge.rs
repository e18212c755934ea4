//! `mailrun merge`: joins the parts of a load that several machines sent, and reports them as one run.
use crate::options::values;
use crate::report::results::{ReportArgs, Strictness};
use crate::source;
use anyhow::Result;
use clap::Args;
use mailrun_bench::MergeOptions;
use mailrun_measurement::record::Arrival;
use mailrun_measurement::threshold::Threshold;
use mailrun_process::live::LiveMode;
use std::path::PathBuf;
use std::process::ExitCode;

/// Merges the parts of a load that several machines sent, and judges them together
///
/// Each part was sent by mailrun bench or mailrun source with --shard. Histograms are added bucket by bucket, and the
/// ledgers of all parts are compared with the sinks' ledgers. Missing, late and repeated parts are named; parts of
/// different plans are refused. The thresholds given to the parts apply to the merged run.
///
/// Writes run.json, report.md and report.html, as mailrun bench does, with the same exit status.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MergeArgs {
    /// Directories (--out) of the parts of one run, in any order.
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// Sink at which the mail arrived, repeatable: the HTTP address of a running sink, or the directory (--out) of a
    /// sink that has ended. The ledgers of all sinks are joined.
    #[arg(long, value_name = "http://HOST:PORT|DIR")]
    sink: Vec<String>,
    /// Additional condition that the merged run must meet, repeatable.
    #[arg(long = "threshold", value_name = "EXPRESSION", value_parser = source::threshold, help_heading = "Verdict")]
    thresholds: Vec<Threshold>,
    /// Exit with status 3 if the verdict is INVALID or INCONCLUSIVE, even without a threshold or a rate.
    #[arg(long, help_heading = "Verdict")]
    strict: bool,
    #[command(flatten)]
    report: ReportArgs,
    /// Write the results into DIR instead of a new directory in mailrun-results.
    #[arg(long, value_name = "DIR", value_parser = values::directory, help_heading = "Results")]
    out: Option<PathBuf>,
    /// Name of the run in reports [default: the parts' name].
    #[arg(long, value_name = "NAME", help_heading = "Results")]
    label: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  mailrun merge part-0 part-1 part-2
  mailrun merge parts/* --sink http://10.0.0.9:8025 --out whole
  mailrun merge parts/* --sink sink-a --sink sink-b --threshold 'delivered.p99 < 1s'";

impl MergeArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.report.open(LiveMode::Off)?;
        let outcome = mailrun_bench::merge(&MergeOptions {
            directories: self.directories,
            sinks: self.sink,
            out: self.out,
            name: self.label,
            thresholds: self.thresholds,
        })?;
        let record = &outcome.record;
        let is_open = record.workload.arrival != Arrival::Closed;
        let strictness = Strictness::of(self.strict || !record.thresholds.is_empty() || is_open);
        self.report.finish(record, Some(&outcome.directory))?;
        let status = super::results::exit_code(record, strictness);
        outcome.unwritten.map_or(Ok(status), Err)
    }
}
