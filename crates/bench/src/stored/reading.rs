//! Reads the records of earlier runs (`run.json`). If a record cannot be read, the error says in one line what is wrong
//! with it.
use crate::engine::{COMPARISON_FILE, COMPARISON_FORMAT, TextReport, run_directories};
use anyhow::{Result, anyhow, bail};
use mailrun_measurement::record::{FORMAT, Record};
use mailrun_process::reason::reason;
use mailrun_text::printable::printable;
use serde::Deserialize;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Maximum size of a `run.json` that is read. The file of a run that takes a day has about a fifth of this size.
const MAX_RECORD_BYTES: u64 = 256 << 20;
/// Error messages quote at most this number of characters of a parse error or of a text from a file.
const MAX_MISTAKE_CHARACTERS: usize = 200;
const MAX_NAMES: usize = 3;

#[derive(Clone, Debug)]
pub struct StoredRun {
    pub file: PathBuf,
    /// Path of the run's directory or file. Error messages and reports identify the run by it.
    pub name: String,
    pub record: Record,
}

/// Reads the run at `path`, or all runs directly below `path` if it is a directory without a run.json. If a run cannot
/// be read, the list has an error in its place.
pub fn read_runs(path: &Path) -> Vec<Result<StoredRun>> {
    let is_directory_of_runs = path.is_dir() && !path.join("run.json").exists();
    let below = if is_directory_of_runs { runs_below(path) } else { Vec::new() };
    let paths = if below.is_empty() { vec![path.to_owned()] } else { below };
    let read = |path: PathBuf| {
        let file = if path.is_dir() { path.join("run.json") } else { path.clone() };
        Ok(StoredRun { record: read_run(&path)?, name: path.display().to_string(), file })
    };
    paths.into_iter().map(read).collect()
}

/// Returns the newest run in a directory of results. The names of results begin with the time, so the last name in
/// alphabetical order is the newest.
///
/// # Errors
/// Returns an error if there is no run or if the newest result consists of several runs.
pub fn newest_run(results: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(results).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_result = |path: &PathBuf| path.join("run.json").exists() || !runs_below(path).is_empty();
    let newest = entries.filter(is_result).max();
    let newest = newest.ok_or_else(|| anyhow!("{} has no run: name one", results.display()))?;
    if !newest.join("run.json").exists() {
        bail!("the newest results, {}, are of several runs: name those that you mean", newest.display());
    }
    Ok(newest)
}

/// Returns a file name for a run, for example `20261121T030012Z-bench`. Removes or replaces characters such as `/` and
/// `.`, so that the name cannot be a path to another directory.
pub fn run_file_stem(record: &Record) -> String {
    let time: String = record.started_at.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    let letter = |c: char| if c.is_alphanumeric() || "-_".contains(c) { c } else { '-' };
    let name: String = record.name.chars().take(64).map(letter).collect();
    format!("{time}-{name}")
}

/// Reads the record of a run from `path`, which is the run's directory, its `run.json`, or `-` for standard input.
///
/// # Errors
/// Returns an error if there is no record or if this version cannot read the record's format.
pub fn read_run(path: &Path) -> Result<Record> {
    let file = if path.is_dir() { record_in(path)? } else { path.to_owned() };
    read_file(&file, record_of)
}

#[derive(Clone, Debug)]
pub enum StoredReport {
    Run(Box<Record>),
    Comparison(Box<TextReport>),
}

/// Reads the record of a run or of a comparison. `path` may be anything that [`read_run`] accepts, or the directory of
/// a comparison.
///
/// # Errors
/// Returns an error if there is no record or if this version cannot read the record's format.
pub fn read_report(path: &Path) -> Result<StoredReport> {
    let is_comparison = !path.join("run.json").exists() && path.join(COMPARISON_FILE).exists();
    let file = match path.is_dir() {
        true if is_comparison => path.join(COMPARISON_FILE),
        true => record_in(path)?,
        false => path.to_owned(),
    };
    read_file(&file, |json| {
        let is_comparison = serde_json::from_slice(json).is_ok_and(|head: RecordHead| head.format == COMPARISON_FORMAT);
        if !is_comparison {
            return Ok(StoredReport::Run(Box::new(record_of(json)?)));
        }
        let report =
            TextReport::from_json(json).map_err(|error| format!("is damaged: {}", shown(&error.to_string())))?;
        Ok(StoredReport::Comparison(Box::new(report)))
    })
}

/// Reads a file and parses it with `parse`. Messages show the file's name and then the text of the error that `parse`
/// returns, so this text must begin with a verb, as in "is damaged".
fn read_file<T>(file: &Path, parse: impl Fn(&[u8]) -> Result<T, String>) -> Result<T> {
    let file_name = if is_standard_input(file) { "standard input".to_owned() } else { file.display().to_string() };
    let json = read_bytes(file).map_err(|error| anyhow!("cannot read {file_name}: {}", reason(&error)))?;
    if json.len() as u64 > MAX_RECORD_BYTES {
        bail!("{file_name} has more than 256 MiB: that is no run record");
    }
    parse(&json).map_err(|mistake| anyhow!("{file_name} {mistake}"))
}

fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut json = Vec::new();
    let limit = MAX_RECORD_BYTES + 1;
    if is_standard_input(path) {
        io::stdin().lock().take(limit).read_to_end(&mut json)?;
    } else {
        File::open(path)?.take(limit).read_to_end(&mut json)?;
    }
    Ok(json)
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// Returns the path of `run.json` in a run's directory. If only its subdirectories have such a file, the error names
/// some of these subdirectories.
fn record_in(directory: &Path) -> Result<PathBuf> {
    let file = directory.join("run.json");
    if file.exists() {
        return Ok(file);
    }
    let below = runs_below(directory);
    if below.is_empty() {
        bail!("{} has no run.json: name a run directory, or the file", directory.display());
    }
    let names: Vec<String> = below.iter().take(MAX_NAMES).map(|path| path.display().to_string()).collect();
    bail!(
        "{} has no run.json, but {} runs below it: name them, {} …",
        directory.display(),
        below.len(),
        names.join(" ")
    )
}

/// Returns the run directories directly below a directory, sorted by name. In the directory of a comparison, these are
/// only the runs that its record lists, because an earlier comparison may have left others there.
fn runs_below(directory: &Path) -> Vec<PathBuf> {
    let mut below = run_directories(directory);
    if below.is_empty() {
        below = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    }
    below.retain(|path| path.join("run.json").exists());
    below.sort();
    below.dedup();
    below
}

/// The keys that show whether a file is a run record, and which version of mailrun wrote the file.
#[derive(Deserialize)]
struct RecordHead {
    #[serde(default)]
    format: String,
    #[serde(default)]
    version: String,
}

/// Shortens a text from a file for an error message, and escapes hidden characters.
fn shown(text: &str) -> String {
    printable(&text.chars().take(MAX_MISTAKE_CHARACTERS).collect::<String>()).into_owned()
}

/// Parses a run record. The text of an error begins with a verb, as in "is damaged", because messages show it after
/// the file's name.
fn record_of(json: &[u8]) -> Result<Record, String> {
    let head: RecordHead = serde_json::from_slice(json)
        .map_err(|error| format!("is no run record of mailrun: {}", shown(&error.to_string())))?;
    if head.format == COMPARISON_FORMAT {
        return Err("is of a comparison of several runs, and not of one run: mailrun report shows it".to_owned());
    }
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
            ("{\"format\": \"mailrun-comparison/1\"}", "is of a comparison of several runs"),
            ("{\"format\": \"mailrun-run/1\"}", "is damaged, or of a newer mailrun"),
        ] {
            let mistake = record_of(json.as_bytes()).unwrap_err();
            assert!(mistake.starts_with(words), "{json}: {mistake}");
            assert_eq!(mistake.lines().count(), 1);
        }
    }

    #[test]
    fn a_run_is_named_like_its_directory() {
        let mut record = mailrun_report::sample::held();
        assert_eq!(run_file_stem(&record), "20261121T030012Z-quick");
        record.started_at = "../../x".to_owned();
        record.name = "../a/b".to_owned();
        assert_eq!(run_file_stem(&record), "x----a-b");
    }

    #[test]
    fn a_directory_of_runs_stands_for_its_runs_and_a_damaged_one_for_itself() {
        let place = tempfile::tempdir().unwrap();
        let json = mailrun_report::sample::held().to_json().unwrap();
        for (name, text) in [("b", json.as_str()), ("a", "{"), ("c", &json[..json.len() / 2])] {
            fs::create_dir(place.path().join(name)).unwrap();
            fs::write(place.path().join(name).join("run.json"), text).unwrap();
        }
        fs::create_dir(place.path().join("d")).unwrap();
        let read = read_runs(place.path());
        assert_eq!(read.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, false]);
        let run = read[1].as_ref().unwrap();
        assert!(run.file.ends_with("b/run.json") && run.name.ends_with("/b"), "{run:?}");
        assert!(read[2].as_ref().unwrap_err().to_string().contains("c/run.json is "));
        assert_eq!(read_runs(&place.path().join("d")).len(), 1, "that there is none is said");
        assert_eq!(read_runs(&place.path().join("b/run.json")).len(), 1);
        let comparison = TextReport::of_targets("x", Vec::new(), Vec::new(), Vec::new(), "1 run");
        let comparison = comparison.with_run_directories(vec!["b".to_owned(), "d".to_owned()]);
        fs::write(place.path().join(COMPARISON_FILE), comparison.to_json().unwrap()).unwrap();
        let names = |run: Result<StoredRun>| run.map(|run| run.name).unwrap_or_default();
        let read: Vec<String> = read_runs(place.path()).into_iter().map(names).collect();
        assert_eq!(read, [place.path().join("b").display().to_string()], "the others are of an earlier comparison");
    }

    #[test]
    fn the_newest_run_is_the_last_by_name() {
        let place = tempfile::tempdir().unwrap();
        assert!(newest_run(place.path()).unwrap_err().to_string().ends_with("has no run: name one"));
        for name in ["20261121T030012Z-a", "20261122T030012Z-a", "20261123T030012Z-empty"] {
            fs::create_dir(place.path().join(name)).unwrap();
        }
        for name in ["20261121T030012Z-a", "20261122T030012Z-a"] {
            fs::write(place.path().join(name).join("run.json"), "{}").unwrap();
        }
        assert!(newest_run(place.path()).unwrap().ends_with("20261122T030012Z-a"));
        fs::create_dir_all(place.path().join("20261124T030012Z-relay-400/one")).unwrap();
        fs::write(place.path().join("20261124T030012Z-relay-400/one/run.json"), "{}").unwrap();
        assert!(newest_run(place.path()).unwrap_err().to_string().contains("are of several runs"));
    }
}
