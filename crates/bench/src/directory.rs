//! The run directory: `mailrun-results/<UTC time>-<name>/`, or the directory that `--out` names.
//!
//! ```text
//! run.json  report.md  report.html                         the run
//! source.json  source.hlog  source.stdout  source.stderr   each party's own
//! relay.spool/                                             mail of the relay, until accounted for
//! ```
//!
//! A scenario or a search has its report in such a directory, and each of its runs in a subdirectory.
use super::engine::{COMPARISON_FILE, run_directories};
use anyhow::{Context, Result};
use jiff::Timestamp;
use mailrun_measurement::record::{Outcome, Record, Role};
use mailrun_process::output_file;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Directory in which each run without `--out` creates its own directory.
pub const RESULTS_DIRECTORY: &str = "mailrun-results";

/// Kinds of files that a process writes into the run directory. They are deleted before a run, so that files of an
/// older run cannot be mistaken for files of this run.
const PARTY_FILES: [&str; 5] = ["json", "ledger", "hlog", "stdout", "stderr"];

/// Files that a round of an audit leaves if it has lost mail: the list of losses, and the log of the calls to the file
/// system with the data of these calls.
pub(super) const LOSSES: &str = "losses.json";
pub(super) const CALLS: &str = "calls.jsonl";
pub(super) const CALLS_DATA: &str = "calls.data";

/// Result files of a run, a comparison, a scenario or a search. They are deleted before the next run.
const RESULT_FILES: [&str; 12] = [
    "run.json",
    "report.md",
    "report.html",
    LOSSES,
    CALLS,
    CALLS_DATA,
    COMPARISON_FILE,
    "table.txt",
    "memory.tsv",
    "capacity.json",
    "capacity.txt",
    "capacity.html",
];

/// Who chose the directory's name. After a failed run, mailrun deletes only a directory that it named itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectoryOrigin {
    User,
    Generated,
}

#[derive(Clone, Debug)]
pub(super) struct PartyFiles {
    pub(super) record: PathBuf,
    pub(super) ledger: PathBuf,
    pub(super) intervals: PathBuf,
}

impl PartyFiles {
    /// Returns the path to which the bench's own sink writes its certificate, beside the files of
    /// the processes.
    pub(super) fn certificate(&self) -> String {
        self.record.with_file_name("sink-certificate.pem").to_string_lossy().into_owned()
    }
}

#[derive(Debug)]
pub(super) struct RunDirectory {
    path: PathBuf,
    origin: DirectoryOrigin,
}

impl RunDirectory {
    /// Creates the directory of a run. In a directory that already exists, deletes the results of an older run, so that
    /// they cannot be taken for results of this run if it fails.
    pub(super) fn create(out: Option<&Path>, name: &str, started_at: Timestamp) -> Result<Self> {
        match out {
            Some(path) => Self::create_named(path),
            None => Self::create_unnamed(Path::new(RESULTS_DIRECTORY), &std::env::temp_dir(), name, started_at),
        }
    }

    fn create_named(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).with_context(|| format!("cannot create the run directory {}", path.display()))?;
        let directory = Self { path: absolute(path)?, origin: DirectoryOrigin::User };
        // Delete the runs of an older comparison, because they would count as runs of the new comparison.
        for run in run_directories(&directory.path).iter().filter(|run| run.join("run.json").exists()) {
            remove_tree(run)?;
        }
        for name in RESULT_FILES {
            remove(&directory.path.join(name))?;
        }
        for role in [Role::Source, Role::Relay, Role::Sink] {
            for kind in PARTY_FILES {
                remove(&directory.file(role, kind))?;
            }
        }
        // Delete the spool of an older run, because the relay would deliver the mail in it during this run.
        remove_tree(&directory.spool())?;
        Ok(directory)
    }

    /// Creates a directory with a generated name in `results` or, if that is not writable, in `temporary`. A run that
    /// was asked only for its verdict or for `--json -` can thus run anywhere.
    fn create_unnamed(results: &Path, temporary: &Path, name: &str, started_at: Timestamp) -> Result<Self> {
        match Self::create_timestamped(results, name, started_at) {
            Err(error) if is_forbidden(&error) => {
                let name = format!("mailrun-{}", as_file_name(name));
                let Ok(directory) = Self::create_timestamped(temporary, &name, started_at) else { return Err(error) };
                mailrun_process::tell!("mailrun: {error:#}. The results go to {}", directory.path.display());
                Ok(directory)
            }
            created => created,
        }
    }

    fn create_timestamped(results: &Path, name: &str, started_at: Timestamp) -> Result<Self> {
        fs::create_dir_all(results)
            .with_context(|| format!("cannot create {}; use --out to name another directory", results.display()))?;
        let stem = format!("{}-{}", started_at.strftime("%Y%m%dT%H%M%SZ"), as_file_name(name));
        for number in 1.. {
            let path = results.join(if number == 1 { stem.clone() } else { format!("{stem}-{number}") });
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path: absolute(&path)?, origin: DirectoryOrigin::Generated }),
                // Another run has started in the same second, so try the next number.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error).with_context(|| format!("cannot create {}", path.display())),
            }
        }
        unreachable!("numbers do not end")
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn party_files(&self, role: Role) -> PartyFiles {
        let file = |kind: &str| self.file(role, kind);
        PartyFiles { record: file("json"), ledger: file("ledger"), intervals: file("hlog") }
    }

    /// Returns the path of a process's file, such as `source.stderr`.
    pub(super) fn file(&self, role: Role, kind: &str) -> PathBuf {
        self.path.join(format!("{}.{kind}", role.name()))
    }

    pub(super) fn spool(&self) -> PathBuf {
        self.file(Role::Relay, "spool")
    }

    /// Writes the run's record and reports. Deletes the processes' ledgers if every message is
    /// accounted for. Otherwise keeps the ledgers, because they tell which messages are missing.
    /// The relay's spool is also kept if messages may still be in it.
    pub(super) fn save(&mut self, record: &Record) -> Result<()> {
        let json = record.to_json().context("the record cannot be written as JSON")?;
        self.write("run.json", &format!("{json}\n"))?;
        self.write("report.md", &mailrun_report::markdown(record))?;
        self.write("report.html", &mailrun_report::page(record, None))?;
        if record.verdict.closed {
            for role in [Role::Source, Role::Sink] {
                remove(&self.file(role, "ledger"))?;
            }
        }
        let is_well = record.verdict.closed || record.verdict.outcome == Some(Outcome::Pass);
        if is_well && record.ledger.queued.unwrap_or_default() == 0 {
            self.remove_spool()?;
        }
        Ok(())
    }

    pub(super) fn remove_spool(&self) -> Result<()> {
        remove_tree(&self.spool())
    }

    /// Deletes what is left of a run that failed before it had a result. A directory that the user
    /// named is kept, except for the relay's spool in it.
    pub(super) fn discard(&self) {
        if self.origin == DirectoryOrigin::Generated {
            // Ignore the error. The user is about to see why the run failed, and this matters more than a leftover
            // directory.
            let _ = fs::remove_dir_all(&self.path);
        }
        let _ = remove_tree(&self.spool());
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<()> {
        output_file::write(&self.path.join(name), text)
    }
}

/// Returns true if a directory could not be created because of permissions or a read-only file
/// system.
fn is_forbidden(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind.is_some_and(|kind| matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot find the path of {}", path.display()))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Converts a run's name to a part of a path. Every character that could lead to another directory
/// becomes a dash.
fn as_file_name(name: &str) -> String {
    let letter = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let safe: String = name.chars().take(64).map(letter).collect();
    safe.trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::TextReport;

    fn noon() -> Timestamp {
        "2026-11-21T12:00:00Z".parse().expect("a time")
    }

    #[test]
    fn a_directory_is_named_by_time_and_name() {
        let results = tempfile::tempdir().expect("a directory");
        let first = RunDirectory::create_timestamped(results.path(), "quick", noon()).expect("made");
        assert!(first.path().ends_with("20261121T120000Z-quick"), "{first:?}");
        let second = RunDirectory::create_timestamped(results.path(), "quick", noon()).expect("made");
        assert!(second.path().ends_with("20261121T120000Z-quick-2"), "{second:?}");
        second.discard();
        assert!(!second.path().exists() && first.path().exists());
    }

    #[test]
    fn results_that_must_not_be_where_they_usually_are_go_to_the_temporary_directory() {
        let temporary = tempfile::tempdir().expect("a directory");
        let results = Path::new("/sys/mailrun-results"); // Even root cannot create this directory.
        let made = RunDirectory::create_unnamed(results, temporary.path(), "quick", noon()).expect("made");
        assert_eq!(made.path(), temporary.path().join("20261121T120000Z-mailrun-quick"));
        let error = RunDirectory::create_unnamed(results, Path::new("/sys"), "quick", noon()).expect_err("nowhere");
        assert!(error.to_string().contains("/sys/mailrun-results; use --out"), "{error}");
        let missing = Path::new("/dev/null/x");
        assert!(
            RunDirectory::create_unnamed(missing, temporary.path(), "quick", noon()).is_err(),
            "a mistake, no right"
        );
    }

    #[test]
    fn a_name_cannot_lead_elsewhere() {
        assert_eq!(as_file_name("../../etc/x y"), "-..-etc-x-y");
        assert_eq!(as_file_name(".."), "");
        assert_eq!(as_file_name(&"a".repeat(500)).len(), 64);
    }

    #[test]
    fn a_named_directory_loses_only_an_older_result() {
        let above = tempfile::tempdir().expect("a directory");
        let place = above.path().join("out");
        let old = ["round-1-none/run.json", "relay.spool/queue", "source.json", "relay.stderr"];
        let kept = ["mine.txt", "mine/run.json", "listed/mine.txt", "../run.json"];
        for name in RESULT_FILES.iter().chain(&old).chain(&kept) {
            fs::create_dir_all(place.join(name).parent().expect("out")).expect("made");
            fs::write(place.join(name), "old").expect("written");
        }
        let comparison = TextReport::of_targets("x", Vec::new(), Vec::new(), Vec::new(), "1 run");
        let listed = ["round-1-none", "listed", "..", "mine/../mine", ""].map(str::to_owned);
        let json = comparison.with_run_directories(listed.to_vec()).to_json().expect("JSON");
        fs::write(place.join(COMPARISON_FILE), json).expect("written");
        let directory = RunDirectory::create_named(&place).expect("made");
        assert!(!directory.spool().exists(), "a relay begins with nothing");
        for name in RESULT_FILES.iter().chain(&old) {
            assert!(!place.join(name).exists(), "{name}");
        }
        directory.discard();
        for name in kept {
            assert!(place.join(name).exists(), "{name}");
        }
    }
}
