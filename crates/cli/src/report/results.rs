//! `--report`, `--json`, `--quiet` and `--color`, and the code that shows the report at the end of a run.
use crate::options::keep_awake::KeepAwakeArg;
use crate::report::exports::{self, AnnotationOutput, ExportTarget, export_target};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use mailrun_bench::TextReport;
use mailrun_measurement::record::{Cause, Ending, Outcome, Record};
use mailrun_process::interrupt::INTERRUPTED_STATUS;
use mailrun_process::live::LiveMode;
use mailrun_process::output_file::{self, is_standard_output};
use mailrun_process::outputs::Outputs;
use mailrun_process::reason::reason;
use mailrun_process::terminal::{self, CharacterSet, Color};
use mailrun_report::{ReportLength, TextStyle};
use mailrun_text::printable::printable;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options for the progress of a command, and for the report at its end.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Results")]
struct DisplayArgs {
    /// Report at the end: short (fits a terminal of 80×24), full (all tables) or none (exit status and errors only)
    /// [default: short].
    #[arg(long, value_enum, value_name = "WHICH", hide_possible_values = true, hide_short_help = true)]
    report: Option<ReportKind>,
    /// Print the verdict alone
    ///
    /// At the end of the run, one line with the verdict is printed. Progress and a report are shown only if --progress
    /// or --report asks for them.
    #[arg(short, long)]
    quiet: bool,
    /// How to show progress on standard error. With auto, a run of over 2 s shows a dashboard on a terminal of at least
    /// 80×24. Otherwise, auto shows a line.
    #[arg(long, value_enum, value_name = "HOW", default_value = "auto", hide_short_help = true)]
    progress: ProgressKind,
    /// Print all tables, like --report full. With source -m 1, print the dialogue with the server
    #[arg(short, long, conflicts_with_all = ["report", "quiet"])]
    verbose: bool,
    /// Use of colours; auto uses them on a terminal, unless NO_COLOR is set or TERM is dumb.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", hide_short_help = true)]
    color: Color,
}

impl DisplayArgs {
    fn live(&self) -> LiveMode {
        if self.quiet && self.progress == ProgressKind::Auto { LiveMode::Off } else { self.progress.into() }
    }

    /// Returns how much of the report is shown, from one line (`Verdict`) to all tables (`Full`). Returns `None` if no
    /// report is shown.
    fn extent(&self) -> Option<ReportLength> {
        let kind = if self.verbose { Some(ReportKind::Full) } else { self.report };
        match kind {
            Some(ReportKind::Short) => Some(ReportLength::Short),
            Some(ReportKind::Full) => Some(ReportLength::Full),
            Some(ReportKind::None) => None,
            None if self.quiet => Some(ReportLength::Verdict),
            None => Some(ReportLength::Short),
        }
    }
}

/// Options for the report at the end of a run, and for files with the same figures (`--json` and `--export`).
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Results")]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    display: DisplayArgs,
    /// Write the run record to FILE
    ///
    /// The format of the record is mailrun-run/1. With -, the record goes to standard output, and the report to
    /// standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the run in another format, repeatable: html=report.html, junit=mailrun.xml, csv=series.csv,
    /// csv:stages=FILE, prometheus=FILE, openmetrics=FILE, hlog=FILE, github=FILE, action-benchmark-bigger=FILE,
    /// md=FILE, share=FILE. The formats are the same as in mailrun report.
    #[arg(long = "export", value_name = "FORMAT=FILE", value_parser = export_target, hide_short_help = true)]
    exports: Vec<ExportTarget>,
}

/// Whether standard output has text for the user or JSON for a program. With JSON, all other text must go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StdoutUse {
    Text,
    /// JSON lines with the progress, because a bench gave `--live json`.
    Events,
    /// The run record as JSON, because the user gave `--json -`.
    Record,
}

impl StdoutUse {
    /// Determines from the options what goes to standard output.
    ///
    /// # Errors
    ///
    /// Returns an error if both the progress (`--live json`) and the record (`--json -`) would go to standard output.
    pub(crate) fn of(live: LiveMode, json: Option<&Path>) -> Result<Self> {
        match (live, json.is_some_and(is_standard_output)) {
            (LiveMode::Json, true) => {
                bail!("--json - and --live json both want standard output: write the record to a file, --json FILE")
            }
            (LiveMode::Json, false) => Ok(Self::Events),
            (_, true) => Ok(Self::Record),
            (_, false) => Ok(Self::Text),
        }
    }

    /// Returns the option that makes standard output JSON, so that an error message can name it. Returns `None` if
    /// standard output is text.
    pub(crate) fn option(self) -> Option<&'static str> {
        match self {
            Self::Text => None,
            Self::Events => Some("--live json"),
            Self::Record => Some("--json -"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportKind {
    /// A report of at most 24 lines
    Short,
    /// All tables
    Full,
    /// No report
    None,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressKind {
    /// The dashboard in runs of over 2 s on a terminal of at least 80×24, otherwise one line
    #[default]
    Auto,
    /// The dashboard, wherever it can be drawn
    Dashboard,
    /// One line that is updated; without a terminal, a new line every five seconds
    Line,
    /// No progress at all
    None,
}

impl From<ProgressKind> for LiveMode {
    fn from(typed: ProgressKind) -> Self {
        match typed {
            ProgressKind::Auto => Self::Auto,
            ProgressKind::Dashboard => Self::Dashboard,
            ProgressKind::Line => Self::Line,
            ProgressKind::None => Self::Off,
        }
    }
}

impl ReportArgs {
    /// Decides how the command shows its progress. If a bench asks for JSON or for no output with the hidden option
    /// `--live`, the command obeys. Otherwise, `--progress` and `--quiet` decide.
    pub(crate) fn live(&self, mode: LiveMode) -> LiveMode {
        match mode {
            LiveMode::Json | LiveMode::Off => mode,
            _ => self.display.live(),
        }
    }

    /// Returns the file for the run record. Returns `None` if the record is not written, or if it goes to standard
    /// output.
    pub(crate) fn json_file(&self) -> Option<&Path> {
        self.json.as_deref().filter(|path| !is_standard_output(path))
    }

    pub(crate) fn has_json_on_stdout(&self) -> bool {
        self.json.as_deref().is_some_and(is_standard_output)
    }

    /// Checks before the run starts that the record and the exports can be written.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be written, or if two outputs want standard output.
    pub(crate) fn open(&self, live: LiveMode) -> Result<()> {
        self.stdout_use(live)?;
        exports::open(&self.exports)?;
        Outputs { json: self.json_file().map(Path::to_owned), ..Outputs::default() }.check_writable()
    }

    /// Shows the report, and writes the record to its file. The file is written even if the report could not be shown.
    pub(crate) fn finish(&self, record: &Record, details: Option<&Path>) -> Result<()> {
        let shown = self.show(record, details);
        if let Some(path) = self.json_file() {
            output_file::write(path, json(record)?)?;
        }
        shown
    }

    /// Returns true if the dialogue with the server must be shown, because the user gave `--verbose` and standard
    /// output is not needed for JSON. Then also reduces the report to the verdict. Called only if the source sends a
    /// single message.
    pub(crate) fn begin_dialogue(&mut self) -> bool {
        if !self.display.verbose || self.has_json_on_stdout() {
            return false;
        }
        self.display.verbose = false;
        self.display.quiet = true;
        true
    }

    /// Shows the report, prints the record if it goes to standard output, and writes the exports.
    ///
    /// # Errors
    ///
    /// Returns an error if standard output or a file cannot be written. If the reader closes the pipe, this is not an
    /// error.
    pub(crate) fn show(&self, record: &Record, details: Option<&Path>) -> Result<()> {
        let is_stdout_taken = self.has_json_on_stdout();
        let annotations = if is_stdout_taken { AnnotationOutput::Nowhere } else { AnnotationOutput::Stdout };
        // Print annotations before the report, because the verdict must be the last line of the output.
        exports::tell_actions(record, annotations);
        let written = exports::write(&self.exports, record);
        self.print(record, details).and(written)
    }

    fn print(&self, record: &Record, details: Option<&Path>) -> Result<()> {
        if !self.has_json_on_stdout() {
            let mut out = io::stdout().lock();
            let reader = OutputFormat::of(&out, self.display.color);
            return write_all(&mut out, &self.text(record, details, reader));
        }
        let mut errors = io::stderr().lock();
        let reader = OutputFormat::of(&errors, self.display.color);
        // Ignore the error, because the record must be printed even if standard error cannot be written.
        let _ = write_all(&mut errors, &self.text(record, details, reader));
        write_all(&mut io::stdout().lock(), &json(record)?)
    }

    fn text(&self, record: &Record, details: Option<&Path>, reader: OutputFormat) -> String {
        let Some(extent) = self.display.extent() else { return String::new() };
        let details = details.map(|directory| printable(&relative_path(&directory.join("report.md"))).into_owned());
        reader.letters.encode(&mailrun_report::render(record, extent, reader.width, reader.ink, details.as_deref()))
    }

    /// Returns what goes to standard output. Fails if both the progress as JSON and the run record would go there.
    pub(crate) fn stdout_use(&self, live: LiveMode) -> Result<StdoutUse> {
        StdoutUse::of(live, self.json.as_deref())
    }
}

/// Options for the output of a scenario that compares several runs in tables.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Results")]
pub(crate) struct TableReportArgs {
    #[command(flatten)]
    display: DisplayArgs,
    #[command(flatten)]
    pub(crate) keep_awake: KeepAwakeArg,
    /// Write the tables and the figures of each run as JSON; - is standard output. mailrun report can show this file
    /// again.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    json: Option<PathBuf>,
}

impl TableReportArgs {
    pub(crate) fn live(&self) -> LiveMode {
        self.display.live()
    }

    /// Checks before the first run that the record can be written.
    pub(crate) fn open(&self) -> Result<()> {
        self.json.iter().filter(|path| !is_standard_output(path)).try_for_each(|path| output_file::check(path))
    }

    /// Shows the tables on standard output, or on standard error if the record goes to standard output. The record is
    /// written even if the tables could not be shown.
    ///
    /// # Errors
    ///
    /// Returns an error if an output cannot be written. If the reader closes the pipe, this is not an error.
    pub(crate) fn show(&self, sheet: &TextReport) -> Result<()> {
        match &self.json {
            None => self.print(sheet, &mut io::stdout().lock()),
            Some(path) if is_standard_output(path) => {
                // Ignore the error, because the record must be printed even if standard error cannot be written.
                let _ = self.print(sheet, &mut io::stderr().lock());
                write_all(&mut io::stdout().lock(), &sheet.to_json()?)
            }
            Some(path) => {
                let printed = self.print(sheet, &mut io::stdout().lock());
                output_file::write(path, sheet.to_json()?).and(printed)
            }
        }
    }

    fn print(&self, sheet: &TextReport, out: &mut (impl Write + AsFd + IsTerminal)) -> Result<()> {
        let Some(extent) = self.display.extent() else { return Ok(()) };
        let reader = OutputFormat::of(out, self.display.color);
        let text = sheet.render(terminal::width(&*out), extent, reader.ink);
        write_all(out, &reader.letters.encode(&text))
    }
}

/// Formats the report of a stored comparison. A full report begins with the figures of each run.
fn comparison_text(sheet: &TextReport, length: ReportLength, width: Option<usize>, ink: TextStyle) -> String {
    let runs = sheet.runs(width.unwrap_or(usize::MAX)).filter(|_| length == ReportLength::Full);
    let runs = runs.map(|runs| format!("{runs}\n\n")).unwrap_or_default();
    runs + &sheet.render(width, length, ink)
}

pub(crate) fn comparison_for_file(sheet: &TextReport, length: ReportLength) -> String {
    comparison_text(sheet, length, None, TextStyle::Plain)
}

pub(crate) fn comparison_for_stdout(sheet: &TextReport, length: ReportLength) -> String {
    let out = io::stdout();
    let reader = OutputFormat::of(&out, Color::Auto);
    reader.letters.encode(&comparison_text(sheet, length, terminal::width(&out), reader.ink))
}

pub(crate) fn text_for_stdout(record: &Record, length: ReportLength) -> String {
    let reader = OutputFormat::of(&io::stdout(), Color::Auto);
    reader.letters.encode(&mailrun_report::render(record, length, reader.width, reader.ink, None))
}

pub(crate) fn histograms_for_stdout(record: &Record) -> String {
    let reader = OutputFormat::of(&io::stdout(), Color::Auto);
    reader.letters.encode(&mailrun_report::histograms(record, reader.width))
}

/// Width in columns of a report that goes to a file or a pipe, which have no terminal width.
const PLAIN_WIDTH: usize = 100;

/// Width, colours and character set of an output stream. They depend on its terminal and the environment.
#[derive(Clone, Copy, Debug)]
struct OutputFormat {
    width: usize,
    ink: TextStyle,
    letters: CharacterSet,
}

impl OutputFormat {
    fn of(stream: &(impl AsFd + IsTerminal), color: Color) -> Self {
        let is_terminal = stream.is_terminal();
        Self {
            width: terminal::width(stream).unwrap_or(PLAIN_WIDTH),
            ink: if color.is_enabled(is_terminal) { TextStyle::Colour } else { TextStyle::Plain },
            letters: CharacterSet::of_environment(),
        }
    }
}

fn json(record: &Record) -> Result<String> {
    Ok(record.to_json().context("a record is always JSON")? + "\n")
}

pub(crate) fn write_all(out: &mut impl Write, text: &str) -> Result<()> {
    stdout_written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Returns an error if standard output could not be written. A reader that closes the pipe, as `head` does, causes no
/// error, because it has read enough. Must not be used for other outputs, because the error text names standard output.
pub(crate) fn stdout_written(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            bail!("cannot write standard output: {}", reason(&error))
        }
        _ => Ok(()),
    }
}

/// Returns the path relative to the current directory, or the unchanged path if the file is not below this directory.
fn relative_path(path: &Path) -> String {
    let directory = std::env::current_dir().ok();
    let short = directory.as_deref().and_then(|directory| path.strip_prefix(directory).ok());
    short.unwrap_or(path).to_string_lossy().into_owned()
}

/// Whether a run whose verdict is INVALID or INCONCLUSIVE counts as a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// An INVALID or INCONCLUSIVE run succeeds, because the user gave no threshold, no rate and no `--strict`.
    Lenient,
    /// An INVALID or INCONCLUSIVE run fails, because the user gave a threshold, a rate or `--strict`.
    Strict,
}

impl Strictness {
    pub(crate) fn of(is_strict: bool) -> Self {
        if is_strict { Self::Strict } else { Self::Lenient }
    }
}

/// Returns the exit status for a run record. Even with `Lenient`, a run does not succeed if its mail was not delivered,
/// if it has no figures, or if it lacked a resource that it needed to send all of its mail.
pub(crate) fn exit_code(record: &Record, strictness: Strictness) -> ExitCode {
    let has_failed = record.ledger.failed > Some(0) || record.ledger.in_doubt > Some(0);
    let is_short = has_failed || record.parties.iter().any(|party| party.died.is_some());
    let is_never_success = record.verdict.causes.iter().any(|cause| match cause {
        Cause::NotDelivered | Cause::NothingTimed => true,
        Cause::Exhausted => is_short,
        _ => false,
    });
    let strictness = if is_never_success { Strictness::Strict } else { strictness };
    exit_status(record.verdict.outcome, record.ending == Some(Ending::Interrupted), strictness)
}

/// Returns the exit status for an outcome: 0 for PASS, 1 for FAIL, and 3 for INVALID or INCONCLUSIVE, which give 0 with
/// `Lenient`. An interrupted run has a status of its own, whatever its outcome.
pub(crate) fn exit_status(outcome: Option<Outcome>, is_interrupted: bool, strictness: Strictness) -> ExitCode {
    match outcome {
        _ if is_interrupted => ExitCode::from(INTERRUPTED_STATUS),
        Some(Outcome::Pass) | None => ExitCode::SUCCESS,
        Some(Outcome::Fail) => ExitCode::from(1),
        Some(Outcome::Invalid | Outcome::Inconclusive) if strictness == Strictness::Lenient => ExitCode::SUCCESS,
        Some(Outcome::Invalid | Outcome::Inconclusive) => ExitCode::from(3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct ReportTestCli {
        #[command(flatten)]
        typed: ReportArgs,
    }

    fn parse(words: &str) -> ReportArgs {
        ReportTestCli::try_parse_from(["mailrun"].into_iter().chain(words.split_whitespace())).unwrap().typed
    }

    #[test]
    fn quiet_ends_the_line_and_not_the_json() {
        assert_eq!(parse("").live(LiveMode::Line), LiveMode::Auto);
        assert_eq!(parse("").live(LiveMode::Off), LiveMode::Off);
        for (how, live) in [("dashboard", LiveMode::Dashboard), ("line", LiveMode::Line), ("none", LiveMode::Off)] {
            let typed = parse(&format!("--progress {how}"));
            assert_eq!(typed.live(LiveMode::Line), live);
            assert_eq!(typed.live(LiveMode::Json), LiveMode::Json, "a program reads it");
        }
        assert_eq!(parse("--quiet").live(LiveMode::Line), LiveMode::Off);
        assert_eq!(parse("--quiet").live(LiveMode::Json), LiveMode::Json);
    }

    #[test]
    fn what_is_typed_is_shown() {
        for (words, extent) in [
            ("", Some(ReportLength::Short)),
            ("--report full", Some(ReportLength::Full)),
            ("--report none", None),
            ("-q", Some(ReportLength::Verdict)),
            ("-v", Some(ReportLength::Full)),
            ("--quiet --report full", Some(ReportLength::Full)),
            ("--quiet --report none", None),
        ] {
            let typed = parse(words);
            assert_eq!(typed.display.extent(), extent, "{words}");
        }
    }

    #[test]
    fn a_dash_is_standard_output() {
        assert_eq!(parse("--json a.json").json_file(), Some(Path::new("a.json")));
        let both = parse("--json -");
        assert!(both.json_file().is_none() && both.has_json_on_stdout());
        assert!(both.stdout_use(LiveMode::Json).is_err());
        assert_eq!(both.stdout_use(LiveMode::Line).unwrap(), StdoutUse::Record);
        assert_eq!(parse("").stdout_use(LiveMode::Json).unwrap(), StdoutUse::Events);
        assert!(parse("--json /dev/stdout").has_json_on_stdout());
        assert_eq!(parse("").json_file(), None);
    }
}
