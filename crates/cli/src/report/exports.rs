use anyhow::{Result, bail};
use mailrun_measurement::record::Record;
use mailrun_process::output_file;
use mailrun_process::output_file::cannot_write;
use mailrun_report::exports::{CsvTable, ExportFormat, annotations};
use mailrun_text::words::is_misspelling;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportTarget {
    format: ExportFormat,
    path: PathBuf,
}

/// Parses a format such as `junit` or `csv:stages`.
pub(crate) fn export_format(text: &str) -> Result<ExportFormat, String> {
    if let Some(format) = ExportFormat::named(text) {
        return Ok(format);
    }
    let tables: Vec<&str> = CsvTable::ALL.iter().map(|table| table.name()).collect();
    if text.starts_with("csv:") {
        return Err(format!("unknown table; the tables are {}", tables.join(", ")));
    }
    let names = ExportFormat::NAMED.map(ExportFormat::name);
    match names.iter().find(|name| is_misspelling(text, name)) {
        Some(name) => Err(format!("unknown format; did you mean {name}?")),
        None => Err(format!("unknown format; the formats are {}", names.join(", "))),
    }
}

pub(crate) fn export_target(text: &str) -> Result<ExportTarget, String> {
    let Some((format, path)) = text.split_once('=') else {
        return Err("must be FORMAT=FILE, such as junit=mailrun.xml".to_owned());
    };
    match path {
        "" => Err(format!("{format}= needs a file")),
        "-" => Err("writes files; for standard output use mailrun report".to_owned()),
        path => Ok(ExportTarget { format: export_format(format)?, path: path.into() }),
    }
}

/// Checks before the run starts that the files can be written.
///
/// # Errors
///
/// Returns an error if a file cannot be written, or if two exports name the same file.
pub(crate) fn open(targets: &[ExportTarget]) -> Result<()> {
    let mut paths = BTreeSet::new();
    for ExportTarget { path, .. } in targets {
        if !paths.insert(path) {
            bail!("--export: {} is named twice", path.display());
        }
        output_file::check(path)?;
    }
    Ok(())
}

/// Writes the run to the file of each `--export`. If one file fails, the others are still written.
///
/// # Errors
///
/// Returns the error of the first file that could not be written.
pub(crate) fn write(targets: &[ExportTarget], record: &Record) -> Result<()> {
    let mut first = Ok(());
    for ExportTarget { format, path } in targets {
        let text = format.render(std::slice::from_ref(record));
        first = first.and(output_file::write(path, text));
    }
    first
}

/// Returns the path in the environment variable `GITHUB_STEP_SUMMARY`. In GitHub Actions, a program appends its summary
/// to this file. Returns `None` outside of GitHub Actions.
pub(crate) fn step_summary() -> Option<PathBuf> {
    std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()).map(PathBuf::from)
}

pub(crate) fn append(path: &Path, text: &str) -> Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| cannot_write(path, &error))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnnotationOutput {
    /// Annotations go to standard output, above the report.
    Stdout,
    /// Annotations are left out, because standard output must contain nothing but the run record.
    Nowhere,
}

/// In GitHub Actions, appends the report of a judged run to the step summary, and prints annotations. An error while
/// doing so does not fail the run.
pub(crate) fn tell_actions(record: &Record, output: AnnotationOutput) {
    let is_in_actions = std::env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true");
    if !is_in_actions || record.verdict.outcome.is_none() {
        return;
    }
    if let Some(Err(error)) =
        step_summary().map(|path| append(&path, &ExportFormat::Github.render(std::slice::from_ref(record))))
    {
        mailrun_process::tell!("mailrun: the step's summary is incomplete: {error:#}");
    }
    if output == AnnotationOutput::Stdout {
        let _ = io::stdout().lock().write_all(annotations(record).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_and_files_are_read() {
        let target = |format, path: &str| Ok(ExportTarget { format, path: path.into() });
        for (text, read) in [
            ("junit=a=b.xml", target(ExportFormat::Junit, "a=b.xml")),
            ("csv:stages=s.csv", target(ExportFormat::Csv(CsvTable::Stages), "s.csv")),
            ("junit", Err("must be FORMAT=FILE, such as junit=mailrun.xml".to_owned())),
            ("junit=", Err("junit= needs a file".to_owned())),
            ("md=-", Err("writes files; for standard output use mailrun report".to_owned())),
            ("juint=x", Err("unknown format; did you mean junit?".to_owned())),
        ] {
            assert_eq!(export_target(text), read, "{text}");
        }
        let known = export_format("pdf").unwrap_err();
        assert!(known.starts_with("unknown format; the formats are html, md, text,"), "{known}");
        assert!(export_format("csv:x").unwrap_err().contains("series, stages, phases"));
    }
}
