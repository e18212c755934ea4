//! `mailrun compare`: compares contestants in live rounds, or stored runs with other stored runs or with a baseline.
pub(crate) mod baseline;
pub(crate) mod live;
pub(crate) mod output;
pub(crate) mod run_sides;

use anyhow::{Result, bail};
use clap::Args;
use live::CompareLiveArgs;
use mailrun_bench::stored::{BaselineDirectory, BaselineName};
use mailrun_compare::compare_stored;
use output::CompareOutputArgs;
use run_sides::{BASELINES, baseline_side, side};
use std::path::PathBuf;
use std::process::ExitCode;

/// Compares contestants in rounds, or stored runs, and tells which figures are better, worse or the same, by how much
///
/// With --contestant: each contestant sends the same number of messages to one sink, in many short rounds, and the
/// others are compared with the first. With 20 rounds or more, a permutation test gives each metric a verdict (signed
/// ranks, sign flips, max-T). With RUN and --against or --baseline, stored runs are compared.
///
/// The runs of both sides must have the same load and host. Runs with another load or host are refused, and the
/// remaining runs are compared. With five runs or more on each side, there is a verdict, with a 5 % risk of a false
/// alarm for all metrics together (rank tests by permutation, max-T). Runs that lost mail or were invalid do not count.
/// The sides were measured at different times, so a change of the host in between looks like a difference between the
/// servers.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompareArgs {
    /// Runs to compare: run directories, run.json files, or directories of runs.
    #[arg(value_name = "RUN", required_unless_present_any = ["contestants", "is_self"])]
    runs: Vec<PathBuf>,
    /// Runs to compare RUN with.
    #[arg(long, value_name = "RUN", num_args = 1.., conflicts_with = "baseline",
          required_unless_present_any = ["baseline", "contestants", "is_self"])]
    against: Vec<PathBuf>,
    /// Baseline to compare RUN with, made by mailrun baseline save.
    #[arg(long, value_name = "NAME")]
    baseline: Option<BaselineName>,
    /// Parent directory of all baselines.
    #[arg(long, value_name = "DIR", default_value = BASELINES, requires = "baseline")]
    baseline_dir: PathBuf,
    #[command(flatten)]
    live: CompareLiveArgs,
    #[command(flatten)]
    output: CompareOutputArgs,
}

const EXAMPLES: &str = "\
Contestants, each with --contestant, in single quotation marks:
  'smtp-source=smtp-source -d -s {sessions} -m {messages} -l {size} {host}:{port}'
  'go=go-smtp-source -d -s {sessions} -m {messages} -l {size} {host}:{port}'
  'swaks=sh -c \"for i in $(seq {messages}); do swaks --server {host} \\
    --port {port} --to to@example.com --silent 3; done\"'
  'mine=mailrun source {host}:{port} -m {messages} -s {sessions} --reuse'
  postal sends until it is stopped: name a script that stops it in time.

Examples:
  mailrun compare --contestant a=127.0.0.1:2525 --contestant b=127.0.0.1:2526
  mailrun compare --self --rounds 20
  mailrun compare after/* --against before/*
  mailrun compare after --against before --fail-on-regression 5%
  mailrun compare after --baseline main --fail-on-regression 5%
  mailrun compare after --against before --html compared.html
  mailrun compare after/* --against before/* --json - | jq .metrics

Exit status:
  0  compared; with --fail-on-regression nothing is proven to be that much worse
  1  a figure is worse by the share of --fail-on-regression, or with it: a run
     lost, duplicated or corrupted mail, failed or rejected mail as none of the
     others did, or lacks a metric that all of them have
  2  a run could not be read, is named twice, or is of another load or host: a
     line for each on standard error; the others were compared. Likewise a
     contestant that could not be run
  3  with --fail-on-regression a regression can neither be shown nor ruled out,
     with --strict a figure is undecided
130  interrupted; what is known is printed";

impl CompareArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.output.check()?;
        if self.live.is_wanted() {
            return self.live.run(&self.output);
        }
        self.live.check_unused()?;
        let judged = side("RUN", &self.runs);
        let reference = match &self.baseline {
            Some(name) => baseline_side(&BaselineDirectory::new(&self.baseline_dir), name)?,
            None => side("--against", &self.against),
        };
        let comparison = compare_stored(&judged, &reference, self.output.margin)?;
        if comparison.runs == 0 && self.output.fail_on_regression.is_none() {
            bail!("no run of RUN can be used: {}", comparison.left_out.runs.join("; "));
        }
        let page = comparison.page(self.output.fail_on_regression);
        self.output.finish(page, &comparison)
    }
}
