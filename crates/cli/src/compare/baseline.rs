//! `mailrun baseline`: keeps run records under a name, so that later runs can be compared with them.
use crate::compare::run_sides::{BASELINES, baseline_side};
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use mailrun_bench::RESULTS_DIRECTORY;
use mailrun_bench::stored::{BaselineDirectory, BaselineName, ExistingBaseline, StoredRun, newest_run, read_runs};
use mailrun_compare::{difference, figures, middle, side_facts};
use mailrun_measurement::record::{Ending, Outcome, Record};
use mailrun_process::terminal::CharacterSet;
use mailrun_text::numbers::{counted, figure};
use mailrun_text::printable::printable;
use mailrun_text::table::{Align, Table, right};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const WIDTH: usize = 100;
/// Minimum number of runs on each side of a comparison for which the comparison gives a verdict.
const VERDICT_RUNS: usize = 5;

/// Keeps the records of runs under a name, so that later runs can be compared with them
///
/// A baseline is a directory of run.json files, without the traces of messages; it can be committed to a repository.
/// The records name the host and the command line.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, disable_help_subcommand = true)]
pub(crate) struct BaselineArgs {
    #[command(subcommand)]
    what: BaselineCommand,
    /// Parent directory of all baselines.
    #[arg(long, value_name = "DIR", default_value = BASELINES, global = true)]
    dir: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  mailrun baseline save main before/*
  mailrun compare after/* --baseline main --fail-on-regression 5%
  mailrun baseline list
  mailrun baseline show main
  mailrun baseline remove main

Exit status: 0 done; 2 it could not be done, and nothing was changed.";

#[derive(Debug, Subcommand)]
enum BaselineCommand {
    /// Saves the records of runs as a baseline
    ///
    /// Without RUN, the newest run in mailrun-results is saved. All runs must have the same load and the same host. A
    /// run that did not pass is refused.
    #[command(after_help = "\
Examples:
  mailrun baseline save main before/*
  mailrun baseline save main after --replace
  mailrun baseline save nightly mailrun-results/* --dir tests/baselines")]
    Save(SaveBaselineArgs),
    /// Lists the baselines
    #[command(after_help = "\
Example:
  mailrun baseline list --dir tests/baselines")]
    List,
    /// Shows a baseline: host, load, versions and figures
    #[command(after_help = "\
Example:
  mailrun baseline show main")]
    Show {
        /// Name under which the baseline was saved.
        #[arg(value_name = "NAME")]
        name: BaselineName,
    },
    /// Removes a baseline
    #[command(after_help = "\
Example:
  mailrun baseline remove main")]
    Remove {
        /// Name under which the baseline was saved.
        #[arg(value_name = "NAME")]
        name: BaselineName,
    },
}

#[derive(Debug, Args)]
struct SaveBaselineArgs {
    /// Name of the baseline: letters, digits, -, _ and '.'.
    #[arg(value_name = "NAME")]
    name: BaselineName,
    /// Runs to save: run directories, run.json files, or directories of runs.
    #[arg(value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Replace an existing baseline of that name.
    #[arg(long)]
    replace: bool,
    /// Also save runs that failed, were INVALID, INCONCLUSIVE or interrupted.
    #[arg(long)]
    allow_failed: bool,
}

impl BaselineArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let baselines = BaselineDirectory::new(&self.dir);
        let text = match &self.what {
            BaselineCommand::Save(typed) => typed.save(&baselines, &self.dir)?,
            BaselineCommand::List => list(&baselines)?,
            BaselineCommand::Show { name } => show(name, &sound_runs(&baselines, name)?),
            BaselineCommand::Remove { name } => {
                baselines.remove(name)?;
                format!("removed {}\n", printable(&baselines.path_of(name).to_string_lossy()))
            }
        };
        crate::report::messages::say(&CharacterSet::of_environment().encode(&text))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl SaveBaselineArgs {
    fn save(&self, baselines: &BaselineDirectory, directory: &Path) -> Result<String> {
        let paths = match self.runs.as_slice() {
            [] => vec![newest_run(Path::new(RESULTS_DIRECTORY))?],
            paths => paths.to_vec(),
        };
        if paths.iter().any(|path| path == Path::new("-")) {
            bail!("a baseline is copied from files: name the run directory, or its run.json");
        }
        let runs = paths.iter().flat_map(|path| read_runs(path)).collect::<Result<Vec<StoredRun>>>()?;
        self.check(&runs)?;
        let existing = if self.replace { ExistingBaseline::Replace } else { ExistingBaseline::Keep };
        let path = baselines.save(&self.name, &runs, existing)?;
        let mut text = format!("saved {}\n\n{}", printable(&path.to_string_lossy()), show(&self.name, &runs));
        let suffix = match directory == Path::new(BASELINES) {
            true => String::new(),
            false => format!(" --baseline-dir {}", printable(&directory.to_string_lossy())),
        };
        let _ = writeln!(text, "compare with it: mailrun compare RUN… --baseline {}{suffix}", self.name);
        Ok(text)
    }

    /// Refuses runs that cannot form a baseline: failed runs, the same run twice, or runs that differ in load or host.
    fn check(&self, runs: &[StoredRun]) -> Result<()> {
        let Some((first, rest)) = runs.split_first() else { bail!("there is no run to save") };
        for (place, run) in runs.iter().enumerate() {
            if let Some(reason) = defect(&run.record).filter(|_| !self.allow_failed) {
                bail!("{} {reason}: nothing was saved; --allow-failed saves it all the same", printable(&run.name));
            }
            let is_same =
                |other: &&StoredRun| !run.record.run_id.is_empty() && other.record.run_id == run.record.run_id;
            if let Some(other) = runs[..place].iter().find(is_same) {
                bail!("{} is the same run as {}: name each once", printable(&run.name), printable(&other.name));
            }
        }
        for run in rest {
            if let Some((what, left, right)) = difference(&first.record, &run.record) {
                bail!(
                    "the {what} of {} is {}, that of {} is {}: a baseline is of one load and one host",
                    printable(&first.name),
                    printable(&left),
                    printable(&run.name),
                    printable(&right)
                );
            }
        }
        Ok(())
    }
}

/// Returns the reason why a run is saved only with `--allow-failed`, or `None` if it is saved without this option. Even
/// a run that passed has such a reason if later comparisons would not count it.
fn defect(record: &Record) -> Option<String> {
    let failed = match record.verdict.outcome {
        _ if record.ending == Some(Ending::Interrupted) => Some("was interrupted"),
        Some(Outcome::Pass) | None => None,
        Some(Outcome::Fail) => Some("failed"),
        Some(Outcome::Invalid) => Some("was INVALID"),
        Some(Outcome::Inconclusive) => Some("was INCONCLUSIVE"),
    };
    let uncounted =
        || mailrun_compare::defect(record).map(|reason| format!("would not count ({})", reason.trim_end_matches('.')));
    failed.map(str::to_owned).or_else(uncounted)
}

/// Reads all runs of a baseline, and fails if any of them cannot be read.
fn sound_runs(baselines: &BaselineDirectory, name: &BaselineName) -> Result<Vec<StoredRun>> {
    baselines.read(name)?.into_iter().collect()
}

fn list(baselines: &BaselineDirectory) -> Result<String> {
    let names = baselines.names()?;
    if names.is_empty() {
        return Ok("no baselines: mailrun baseline save NAME RUN… makes one\n".to_owned());
    }
    let columns = [("baseline", Align::Left), right("runs"), ("measured", Align::Left), ("processor", Align::Left)];
    let mut table = Table::new(columns);
    for name in names {
        let side = baseline_side(baselines, &name)?;
        let records = || side.runs.iter().map(|(_, record)| record);
        let damaged = match side.unreadable.len() {
            0 => String::new(),
            damaged => format!(" and {damaged} damaged"),
        };
        let first = records().map(|record| record.started_at.as_str()).min().unwrap_or_default();
        let processor = records().next().map_or("", |record| record.host.cpu_model.as_str());
        let runs = format!("{}{damaged}", side.runs.len());
        table.row(vec![name.to_string(), runs, first.to_owned(), processor.to_owned()]);
    }
    Ok(table.terminal(WIDTH) + "\n")
}

fn show(name: &BaselineName, runs: &[StoredRun]) -> String {
    let records: Vec<&Record> = runs.iter().map(|run| &run.record).collect();
    let mut text = format!("baseline {name}: {}\n", counted(runs.len() as u64, "run"));
    for (fact, value) in side_facts(&records) {
        let _ = writeln!(text, "  {fact:<9} {}", printable(&value));
    }
    let all: Vec<_> = records.iter().map(|record| figures(record)).collect();
    let mut table = Table::new([("metric", Align::Left), right("median")]);
    for metric in all.first().into_iter().flatten().map(|figure| &figure.metric) {
        let of_run = |run: &Vec<mailrun_compare::RunFigure>| {
            run.iter().find(|figure| figure.metric == *metric).map(|figure| figure.value)
        };
        let values: Vec<f64> = all.iter().filter_map(of_run).collect();
        table.row(vec![metric.name.clone(), figure(middle(&values))]);
    }
    let _ = write!(text, "\n{}\n\n", table.terminal(WIDTH));
    if runs.len() < VERDICT_RUNS {
        let _ = writeln!(text, "A verdict takes {VERDICT_RUNS} runs a side: this has {}.", runs.len());
    }
    text
}
