//! `mailrun report`: runs that were stored, in any format.
use super::exports::{self, export_format};
use super::results::{self, write_all};
use anyhow::{Result, anyhow, bail};
use clap::{Args, ValueEnum};
use journey::record::{FORMAT, Record};
use party::outputs::cannot_write;
use party::reason::reason;
use report::ReportLength;
use report::exports::ExportFormat;
use report::printable::printable;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Renders stored runs again: as a page, a report, or in a format of other programs
///
/// Reads records of every version since 0.1. Nothing is sent, and the verdict is not decided again: exit status 0 if the
/// runs could be read and the files written, else 2.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct StoredRunsArgs {
    /// Runs: a run directory, a run.json, or - for standard input.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// html, md, text, short, json, csv, csv:TABLE, junit, prometheus, openmetrics, hlog, github, action-benchmark-bigger
    /// or action-benchmark-smaller. Tables: series (default), stages, phases, errors, thresholds, ledger, slowest, domains,
    /// usage, events.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", value_parser = export_format)]
    format: ExportFormat,
    /// Draw the curves and figures of another run beside, with --format html.
    #[arg(long, value_name = "RUN")]
    against: Option<PathBuf>,
    /// The description of a run that is to be published: version, host, command, results. short: in five lines.
    #[arg(long, value_enum, value_name = "short", num_args = 0..=1, require_equals = true, default_missing_value = "full",
          hide_possible_values = true, conflicts_with_all = ["format", "against"])]
    share: Option<ShareLength>,
    /// File to write; - is standard output. In a directory, each run gets a file of its own.
    #[arg(short, long, value_name = "FILE|DIR|-")]
    out: Option<PathBuf>,
}

/// Length of a description.
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
  mailrun report results --share
  mailrun source 127.0.0.1:2525 --json - --report none | mailrun report - --share short";

/// The longest record that is read: one of a run of a day has a fifth of that.
const MAX_RECORD_BYTES: u64 = 256 << 20;
/// The most characters of a mistake in a file that are shown.
const MAX_MISTAKE_CHARACTERS: usize = 200;
/// The most names of directories that a message has.
const MAX_NAMES: usize = 3;

impl StoredRunsArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let format = self.export_format();
        self.check(format)?;
        let records = self.runs.iter().map(|path| read_run(path)).collect::<Result<Vec<_>>>()?;
        let baseline = self.against.as_deref().map(read_run).transpose()?;
        let render = |records: &[Record]| match (&baseline, records.first()) {
            (Some(_), Some(record)) => report::page(record, baseline.as_ref()),
            _ => format.render(records),
        };
        match &self.out {
            Some(directory) if is_directory(directory) => write_each(directory, format, &records, &render)?,
            Some(path) if !results::is_standard_output(path) => write(path, &render(&records))?,
            Some(_) => write_all(&mut io::stdout().lock(), &render(&records))?,
            None => print(format, &records, &render)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn export_format(&self) -> ExportFormat {
        match self.share {
            Some(ShareLength::Full) => ExportFormat::Share,
            Some(ShareLength::Short) => ExportFormat::ShareShort,
            None => self.format,
        }
    }

    /// Refuses what has no effect, or cannot be.
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
        if inputs.filter(|path| results::is_standard_output(path)).count() > 1 {
            bail!("standard input has one run: name - once");
        }
        Ok(())
    }
}

/// Reports whether a path names a directory: it is one, or it ends with a slash.
fn is_directory(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// Writes a file of its own for each run: `TIME-NAME.html`.
fn write_each(
    directory: &Path,
    format: ExportFormat,
    records: &[Record],
    render: &impl Fn(&[Record]) -> String,
) -> Result<()> {
    fs::create_dir_all(directory).map_err(|error| cannot_write(directory, &error))?;
    let mut names = BTreeSet::new();
    for record in records {
        let stem = file_stem(record);
        let numbered = (2..).map(|number| format!("{stem}-{number}"));
        let free = std::iter::once(stem.clone()).chain(numbered).find(|name| !names.contains(name));
        let name = free.unwrap_or(stem);
        let path = directory.join(format!("{name}.{}", format.file_extension()));
        names.insert(name);
        write(&path, &render(std::slice::from_ref(record)))?;
        super::say(&format!("{}\n", printable(&path.to_string_lossy())));
    }
    Ok(())
}

/// `20261121T030012Z-bench`, like the run's directory; whatever could lead elsewhere is left out.
fn file_stem(record: &Record) -> String {
    let time: String = record.started_at.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    let letter = |c: char| if c.is_alphanumeric() || "-_".contains(c) { c } else { '-' };
    let name: String = record.name.chars().take(64).map(letter).collect();
    format!("{time}-{name}")
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| cannot_write(path, &error))
}

/// Prints the runs; in Actions the summary goes to the file for it.
fn print(format: ExportFormat, records: &[Record], render: &impl Fn(&[Record]) -> String) -> Result<()> {
    let mut out = io::stdout().lock();
    match format {
        ExportFormat::Text => write_all(&mut out, &on_terminal(records, ReportLength::Full)),
        ExportFormat::Short => write_all(&mut out, &on_terminal(records, ReportLength::Short)),
        ExportFormat::Github => {
            let annotations: String = records.iter().map(report::exports::annotations).collect();
            write_all(&mut out, &annotations)?;
            match exports::step_summary() {
                Some(path) => exports::append(&path, &render(records)),
                None => write_all(&mut out, &render(records)),
            }
        }
        _ => write_all(&mut out, &render(records)),
    }
}

fn on_terminal(records: &[Record], length: ReportLength) -> String {
    let texts: Vec<String> = records.iter().map(|record| results::text_for_stdout(record, length)).collect();
    texts.join("\n")
}

/// Reads the record of a run.
///
/// # Errors
/// If there is none, or it is not one that this version reads.
pub(super) fn read_run(path: &Path) -> Result<Record> {
    let file = if path.is_dir() { record_in(path)? } else { path.to_owned() };
    let shown =
        if results::is_standard_output(&file) { "standard input".to_owned() } else { file.display().to_string() };
    let json = read_bytes(&file).map_err(|error| anyhow!("cannot read {shown}: {}", reason(&error)))?;
    if json.len() as u64 > MAX_RECORD_BYTES {
        bail!("{shown} has more than 256 MiB: that is no run record");
    }
    record_of(&json).map_err(|mistake| anyhow!("{shown} {mistake}"))
}

fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut json = Vec::new();
    let most = MAX_RECORD_BYTES + 1;
    if results::is_standard_output(path) {
        io::stdin().lock().take(most).read_to_end(&mut json)?;
    } else {
        File::open(path)?.take(most).read_to_end(&mut json)?;
    }
    Ok(json)
}

/// The record in a run directory.
fn record_in(directory: &Path) -> Result<PathBuf> {
    let file = directory.join("run.json");
    if file.exists() {
        return Ok(file);
    }
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut below: Vec<String> = entries
        .filter(|entry| entry.path().join("run.json").exists())
        .map(|entry| entry.path().display().to_string())
        .collect();
    below.sort();
    if below.is_empty() {
        bail!("{} has no run.json: name a run directory, or the file", directory.display());
    }
    let names = below.iter().take(MAX_NAMES).map(String::as_str).collect::<Vec<_>>().join(" ");
    bail!("{} has no run.json, but {} runs below it: name them, {names} …", directory.display(), below.len());
}

/// The keys by which a record is recognised.
#[derive(Deserialize)]
struct RecordHead {
    #[serde(default)]
    format: String,
    #[serde(default)]
    version: String,
}

/// The record, or what is wrong with the file.
fn record_of(json: &[u8]) -> Result<Record, String> {
    let shown = |text: &str| printable(&text.chars().take(MAX_MISTAKE_CHARACTERS).collect::<String>()).into_owned();
    let head: RecordHead = serde_json::from_slice(json)
        .map_err(|error| format!("is no run record of mailrun: {}", shown(&error.to_string())))?;
    if head.format != FORMAT {
        let known = FORMAT.trim_end_matches(|letter: char| letter.is_ascii_digit());
        return Err(match head.format.strip_prefix(known) {
            Some(_) => format!(
                "has the format {}, of mailrun {}; this version reads {FORMAT}: use a newer mailrun",
                shown(&head.format),
                shown(&head.version)
            ),
            None => format!("is no run record of mailrun: it has no \"format\": \"{FORMAT}\""),
        });
    }
    Record::from_json(json).map_err(|error| {
        let mistake = shown(&error.to_string());
        format!("is damaged, or of a newer mailrun (it was written by {}): {mistake}", shown(&head.version))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_and_newer_files_are_told_apart() {
        for (json, words) in [
            ("", "is no run record of mailrun: EOF"),
            ("[1]", "is no run record of mailrun: invalid type"),
            ("{\"format\": 7}", "is no run record of mailrun: invalid type"),
            ("{\"format\": \"k6\"}", "is no run record of mailrun: it has no \"format\": \"mailrun-run/1\""),
            ("{\"format\": \"mailrun-run/2\", \"version\": \"9.1\"}", "has the format mailrun-run/2, of mailrun 9.1"),
            ("{\"format\": \"mailrun-run/1\"}", "is damaged, or of a newer mailrun"),
        ] {
            let mistake = record_of(json.as_bytes()).unwrap_err();
            assert!(mistake.starts_with(words), "{json}: {mistake}");
            assert_eq!(mistake.lines().count(), 1);
        }
    }

    #[test]
    fn a_run_is_named_like_its_directory() {
        let mut record = report::sample::held();
        assert_eq!(file_stem(&record), "20261121T030012Z-quick");
        record.started_at = "../../x".to_owned();
        record.name = "../a/b".to_owned();
        assert_eq!(file_stem(&record), "x----a-b");
    }

    #[test]
    fn a_record_of_an_old_version_is_read() {
        let mut value = serde_json::to_value(report::sample::held()).unwrap();
        for key in [
            "offered_s",
            "tls",
            "lag_ms",
            "surroundings",
            "exhausted",
            "pauses",
            "warm_up",
            "mades",
            "usage",
            "events",
            "slowest",
            "domains",
            "stalls",
            "ending",
        ] {
            value.as_object_mut().unwrap().remove(key);
        }
        value["host"].as_object_mut().unwrap().remove("disk");
        for key in ["outcome", "why", "causes"] {
            value["verdict"].as_object_mut().unwrap().remove(key);
        }
        for row in value["series"].as_array_mut().unwrap() {
            for key in ["created", "p95_ms", "p999_ms", "max_ms"] {
                row.as_object_mut().unwrap().remove(key);
            }
        }
        let record = record_of(value.to_string().as_bytes()).unwrap();
        for format in ExportFormat::NAMED {
            assert!(!format.render(std::slice::from_ref(&record)).is_empty(), "{format:?}");
        }
    }
}
