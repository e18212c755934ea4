//! Options for the outputs of a source or a sink: result files, the report, and progress for the bench that started it.
use crate::options::values;
use crate::report::results::{ReportArgs, StdoutUse, Strictness, exit_code};
use anyhow::{Result, bail};
use clap::Args;
use mailrun_measurement::RunId;
use mailrun_measurement::record::Record;
use mailrun_net::DialogueFilter;
use mailrun_process::dialogue_output::DialogueOptions;
use mailrun_process::live::LiveMode;
use mailrun_process::output_file::{self, cannot_write, is_standard_output};
use mailrun_process::outputs::{FinishedRun, Outputs};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options for the report and the result files of a source or a sink.
#[derive(Debug, Args)]
#[command(next_help_heading = "Results")]
pub(crate) struct OutputArgs {
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    /// Write run.json, report.md, report.html, latency.hlog and the ledger into DIR.
    #[arg(long, value_name = "DIR", value_parser = values::directory)]
    pub(crate) out: Option<PathBuf>,
    /// Write the (message, recipient) pairs that were accepted (source) or arrived (sink) to FILE.
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    ledger: Option<PathBuf>,
    /// Write an HdrHistogram interval log to FILE.
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    hlog: Option<PathBuf>,
    /// Progress: a line on a terminal, JSON lines on standard output, or nothing.
    #[arg(long, value_enum, value_name = "HOW", default_value = "line", hide = true)]
    live: LiveMode,
    /// Run id, 32 hexadecimal digits.
    #[arg(long, value_name = "HEX", hide = true)]
    pub(crate) run_id: Option<RunId>,
}

impl OutputArgs {
    /// Returns the files that the process must write, and the kind of progress that it prints.
    ///
    /// # Errors
    ///
    /// Returns an error if two outputs want standard output, or if a file cannot be written.
    pub(crate) fn outputs(&self) -> Result<Outputs> {
        let live = self.report.live(self.live);
        self.report.open(live)?;
        let Some(directory) = &self.out else {
            let json = self.report.json_file().map(Path::to_owned);
            return Ok(Outputs { json, ledger: self.ledger.clone(), hlog: self.hlog.clone(), live, http: None });
        };
        fs::create_dir_all(directory).map_err(|error| cannot_write(directory, &error))?;
        let file = |name: &str| Some(directory.join(name));
        Ok(Outputs { json: file("run.json"), ledger: file("ledger"), hlog: file("latency.hlog"), live, http: None })
    }
}

/// Writes the report files to `out`, the directory of `--out`, and shows the report. The report is not shown if a bench
/// reads JSON from the standard output of this process.
pub(crate) fn finish(
    finished: FinishedRun,
    report: &ReportArgs,
    live: LiveMode,
    strictness: Strictness,
    out: Option<&Path>,
) -> Result<ExitCode> {
    let FinishedRun { record, write_error: unwritten } = finished;
    let details = out.map(|directory| write_report(directory, &record)).transpose();
    if live != LiveMode::Json {
        match out {
            Some(_) => report.finish(&record, out)?,
            None => report.show(&record, None)?,
        }
    }
    details?;
    unwritten.map_or_else(|| Ok(exit_code(&record, strictness)), Err)
}

fn write_report(directory: &Path, record: &Record) -> Result<()> {
    let write = |name: &str, text: String| output_file::write(&directory.join(name), text);
    write("report.md", mailrun_report::markdown(record))?;
    write("report.html", mailrun_report::page(record, None))
}

/// If a bench started this process, asks the kernel to terminate it when the bench dies, because nobody would read its
/// report.
pub(crate) fn exit_with_parent(live: LiveMode) {
    if live == LiveMode::Json {
        // Ignore the error. In the worst case, this process outlives a bench that died, and runs until its own limits
        // end it.
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    }
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Dialogue with clients")]
pub(crate) struct DialogueArgs {
    /// Print what clients and server say, with times, on standard output or to FILE. Passwords and messages are not
    /// shown.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", hide_short_help = true,
          help = "Print what clients and server say, on standard output or to FILE")]
    dialogue: Option<PathBuf>,
    /// Print the dialogue only of sessions with this client, sender or recipient, repeatable. A client is 192.0.2.1 or
    /// 192.0.2.0/24. A sender or recipient is ann@a.example, @a.example, ann@ or, for notices, <>.
    #[arg(long, value_name = "PATTERN", hide_short_help = true)]
    dialogue_of: Vec<DialogueFilter>,
}

impl DialogueArgs {
    /// Returns the options of the dialogue, or `None` if the user did not ask for the dialogue.
    ///
    /// # Errors
    /// Returns an error if two outputs want standard output.
    pub(crate) fn options(self, stdout: StdoutUse) -> Result<Option<DialogueOptions>> {
        let file = match self.dialogue {
            Some(file) => file,
            None if self.dialogue_of.is_empty() => return Ok(None),
            None => PathBuf::from("-"),
        };
        match stdout.option() {
            Some(option) if is_standard_output(&file) => {
                bail!("{option} and --dialogue both want standard output; use --dialogue FILE")
            }
            _ => Ok(Some(DialogueOptions { file: absolute(file), filters: self.dialogue_of })),
        }
    }
}

/// Replaces `-` with `/dev/stdout`, so that the code that writes the dialogue needs no case for standard output.
fn absolute(file: PathBuf) -> PathBuf {
    if file == Path::new("-") { PathBuf::from("/dev/stdout") } else { file }
}
