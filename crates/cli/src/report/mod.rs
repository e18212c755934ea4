pub(crate) mod exports;
pub(crate) mod merge;
pub(crate) mod messages;
pub(crate) mod results;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use exports::export_format;
use mailrun_bench::TextReport;
use mailrun_bench::stored::{StoredReport, read_report, read_run, run_file_stem};
use mailrun_measurement::record::Record;
use mailrun_process::output_file::{self, cannot_write, is_standard_output};
use mailrun_report::ReportLength;
use mailrun_report::exports::ExportFormat;
use mailrun_text::printable::printable;
use results::write_all;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Renders stored runs or a stored comparison as a page, a report, or a file for other programs
///
/// Reads records of every version since 0.1. Sends no mail, and does not decide the verdict again. The exit status is 0
/// if the runs could be read and the files written, otherwise 2.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StoredRunsArgs {
    /// Run directories, run.json files, or - for standard input. For a comparison: its directory, or the file that
    /// --json wrote.
    #[arg(value_name = "RUN", required_unless_present = "schema")]
    runs: Vec<PathBuf>,
    /// Output format: html, md, text, short, hist, json, csv, junit, prometheus, openmetrics, hlog or github. Other
    /// formats are csv:TABLE, action-benchmark-bigger and action-benchmark-smaller. TABLE is series (default), stages,
    /// phases, errors, thresholds, ledger, slowest, missing, domains, usage or events.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", value_parser = export_format)]
    format: ExportFormat,
    /// Draw the curves and figures of another run beside those of this run, with --format html.
    #[arg(long, value_name = "RUN")]
    against: Option<PathBuf>,
    /// Print a description of the run for publication: version, host, command and results. With short, the description
    /// has five lines.
    #[arg(long, value_enum, value_name = "short", num_args = 0..=1, require_equals = true, default_missing_value = "full",
          hide_possible_values = true, conflicts_with_all = ["format", "against"])]
    share: Option<ShareLength>,
    /// File to write, or - for standard output. In a directory, each run gets a file of its own.
    #[arg(short, long, value_name = "FILE|DIR|-")]
    out: Option<PathBuf>,
    /// Print the JSON schema of run.json, with the meaning of each field.
    #[arg(long, exclusive = true)]
    schema: bool,
}

/// What the paths on the command line contain: any number of stored runs, or one stored comparison.
enum StoredReports {
    Runs(Vec<Record>),
    Comparison(Box<TextReport>),
}

/// Length of the description of a run that `--share` prints for publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ShareLength {
    /// All items
    Full,
    /// Five lines
    Short,
}

const EXAMPLES: &str = "\
Examples:
  mailrun report results
  mailrun report results --format html -o report.html
  mailrun report results --format html --against yesterday -o report.html
  mailrun report mailrun-results/* --format csv:stages -o stages.csv
  mailrun report results/run.json --format junit -o mailrun.xml
  mailrun report results --format prometheus -o /var/lib/node_exporter/mailrun.prom
  mailrun report results --format hist
  mailrun report table.json            of bench smtp-source-table --json table.json
  mailrun report results --share
  mailrun source 127.0.0.1:2525 --json - --report none | mailrun report - --share short";

impl StoredRunsArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.schema {
            write_all(&mut io::stdout().lock(), &mailrun_measurement::record::schema())?;
            return Ok(ExitCode::SUCCESS);
        }
        let format = self.export_format();
        self.check(format)?;
        let records = match self.read()? {
            StoredReports::Runs(records) => records,
            StoredReports::Comparison(sheet) => {
                self.show_comparison(&sheet, format)?;
                return Ok(ExitCode::SUCCESS);
            }
        };
        let baseline = self.against.as_deref().map(read_run).transpose()?;
        let render = |records: &[Record]| match (&baseline, records.first()) {
            (Some(_), Some(record)) => mailrun_report::page(record, baseline.as_ref()),
            _ => format.render(records),
        };
        match &self.out {
            Some(directory) if is_directory(directory) => write_each(directory, format, &records, &render)?,
            Some(path) if !is_standard_output(path) => {
                output_file::check(path)?;
                output_file::write(path, render(&records))?;
            }
            Some(_) => write_all(&mut io::stdout().lock(), &render(&records))?,
            None => print(format, &records, &render)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Reads the stored runs, or the stored comparison, that the command line names. Fails if a comparison is not the
    /// only path on the command line.
    fn read(&self) -> Result<StoredReports> {
        let mut records = Vec::new();
        for path in &self.runs {
            match read_report(path)? {
                StoredReport::Run(record) => records.push(*record),
                StoredReport::Comparison(sheet) if self.runs.len() == 1 => return Ok(StoredReports::Comparison(sheet)),
                StoredReport::Comparison(_) => {
                    bail!("{} is of a comparison: name it alone", printable(&path.to_string_lossy()))
                }
            }
        }
        Ok(StoredReports::Runs(records))
    }

    fn show_comparison(&self, sheet: &TextReport, format: ExportFormat) -> Result<()> {
        let file = self.out.as_deref().filter(|path| !is_standard_output(path));
        let text = |length| match file {
            Some(_) => results::comparison_for_file(sheet, length),
            None => results::comparison_for_stdout(sheet, length),
        };
        let text = match format {
            _ if self.against.is_some() => bail!("--against requires a run, and this is a comparison"),
            ExportFormat::Text => text(ReportLength::Full),
            ExportFormat::Short => text(ReportLength::Short),
            ExportFormat::Markdown => sheet.markdown(),
            ExportFormat::Json => sheet.to_json()?,
            _ => bail!("a comparison has no format {}, but text, short, md and json", format.name()),
        };
        match file {
            Some(path) => {
                output_file::check(path)?;
                output_file::write(path, text)
            }
            None => write_all(&mut io::stdout().lock(), &text),
        }
    }

    fn export_format(&self) -> ExportFormat {
        match self.share {
            Some(ShareLength::Full) => ExportFormat::Share,
            Some(ShareLength::Short) => ExportFormat::ShareShort,
            None => self.format,
        }
    }

    /// Refuses options that have no effect or exclude each other, such as `--against` without `--format html`.
    fn check(&self, format: ExportFormat) -> Result<()> {
        if self.against.is_some() && format != ExportFormat::Html {
            bail!("--against requires --format html");
        }
        if format == ExportFormat::Html && self.out.is_none() && io::stdout().is_terminal() {
            bail!("a page is for a browser: name a file, -o report.html");
        }
        let has_directory = self.out.as_deref().is_some_and(is_directory);
        if self.runs.len() > 1 && !format.takes_several_runs() && !has_directory {
            bail!("a file of format {} has one run: name one, or a directory for all of them, -o DIR/", format.name());
        }
        let inputs = self.runs.iter().chain(&self.against);
        if inputs.filter(|path| path.as_os_str() == "-").count() > 1 {
            bail!("standard input has one run: name - once");
        }
        Ok(())
    }
}

/// Returns true if the path is a directory, or ends with a slash because it is to become a directory.
fn is_directory(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// Writes each run to a file of its own, for example `TIME-NAME.html`.
fn write_each(
    directory: &Path,
    format: ExportFormat,
    records: &[Record],
    render: &impl Fn(&[Record]) -> String,
) -> Result<()> {
    fs::create_dir_all(directory).map_err(|error| cannot_write(directory, &error))?;
    let mut names = BTreeSet::new();
    for record in records {
        let stem = run_file_stem(record);
        let numbered = (2..).map(|number| format!("{stem}-{number}"));
        let free = std::iter::once(stem.clone()).chain(numbered).find(|name| !names.contains(name));
        let name = free.unwrap_or(stem);
        let path = directory.join(format!("{name}.{}", format.file_extension()));
        names.insert(name);
        output_file::write(&path, render(std::slice::from_ref(record)))?;
        crate::report::messages::say(&format!("{}\n", printable(&path.to_string_lossy())))?;
    }
    Ok(())
}

/// Prints the runs on standard output. With `--format github`, prints the annotations, and appends the summary to the
/// file that `GITHUB_STEP_SUMMARY` names. Without this variable, the summary is printed as well.
fn print(format: ExportFormat, records: &[Record], render: &impl Fn(&[Record]) -> String) -> Result<()> {
    let mut out = io::stdout().lock();
    match format {
        ExportFormat::Text => write_all(&mut out, &reports_on_terminal(records, ReportLength::Full)),
        ExportFormat::Short => write_all(&mut out, &reports_on_terminal(records, ReportLength::Short)),
        ExportFormat::Hist => write_all(&mut out, &on_terminal(records, results::histograms_for_stdout)),
        ExportFormat::Github => {
            let annotations: String = records.iter().map(mailrun_report::exports::annotations).collect();
            write_all(&mut out, &annotations)?;
            match exports::step_summary() {
                Some(path) => exports::append(&path, &render(records)),
                None => write_all(&mut out, &render(records)),
            }
        }
        _ => write_all(&mut out, &render(records)),
    }
}

fn reports_on_terminal(records: &[Record], length: ReportLength) -> String {
    on_terminal(records, |record| results::text_for_stdout(record, length))
}

fn on_terminal(records: &[Record], text: impl Fn(&Record) -> String) -> String {
    records.iter().map(text).collect::<Vec<_>>().join("\n")
}
