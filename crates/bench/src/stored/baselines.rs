//! A baseline is a set of copies of run records, stored under a name. Users can commit the directory of the baselines
//! to a repository.
//!
//! ```text
//! mailrun-baselines/NAME/20261123T043000Z-bench/run.json
//! ```
use super::reading::{StoredRun, read_runs, run_file_stem};
use anyhow::{Result, bail};
use mailrun_process::output_file::cannot_write;
use mailrun_process::reason::reason;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const MAX_NAME_CHARACTERS: usize = 64;
const RECORD_FILE: &str = "run.json";

/// Name of a baseline, in letters, digits, `-`, `_` and `.`, so that every file system accepts it as the name of a
/// directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BaselineName(String);

impl FromStr for BaselineName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let is_name = (1..=MAX_NAME_CHARACTERS).contains(&text.len())
            && text.chars().all(is_letter)
            && !text.starts_with(['.', '-']);
        if is_name {
            return Ok(Self(text.to_owned()));
        }
        Err(format!(
            "a name has at most {MAX_NAME_CHARACTERS} letters, digits, -, _ and ., and begins with a letter, a digit or _"
        ))
    }
}

impl fmt::Display for BaselineName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Whether `save` may replace an existing baseline of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingBaseline {
    /// Keep the existing baseline, and fail because its name is taken.
    Keep,
    Replace,
}

#[derive(Clone, Debug)]
pub struct BaselineDirectory {
    path: PathBuf,
}

impl BaselineDirectory {
    /// The directory need not exist yet, because `save` creates it.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub fn path_of(&self, name: &BaselineName) -> PathBuf {
        self.path.join(&name.0)
    }

    /// Copies the records of runs into a new baseline. The baseline appears as a whole or not at
    /// all.
    ///
    /// # Errors
    /// Returns an error if a baseline of that name exists and must be kept, or if a file cannot be
    /// written.
    pub fn save(&self, name: &BaselineName, runs: &[StoredRun], existing: ExistingBaseline) -> Result<PathBuf> {
        let path = self.path_of(name);
        if existing == ExistingBaseline::Keep && path.symlink_metadata().is_ok() {
            bail!("{} is there already: --replace puts the new one in its place", path.display());
        }
        fs::create_dir_all(&self.path).map_err(|error| cannot_write(&self.path, &error))?;
        // A baseline's name cannot begin with a dot, so this temporary directory is not taken for a baseline.
        let new = self.path.join(format!(".{name}.{}", std::process::id()));
        let result = write_runs(&new, runs).and_then(|()| {
            if path.symlink_metadata().is_ok() {
                self.remove(name)?;
            }
            fs::rename(&new, &path).map_err(|error| cannot_write(&path, &error))
        });
        if result.is_err() {
            // Ignore an error of this clean-up, because the first error explains more.
            let _ = remove_runs(&new);
        }
        result.map(|()| path)
    }

    /// Returns the names of the baselines, sorted. The list is empty if the directory does not exist.
    pub fn names(&self) -> Result<Vec<BaselineName>> {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => bail!("cannot read {}: {}", self.path.display(), reason(&error)),
        };
        let directories = entries.flatten().filter(|entry| entry.path().is_dir());
        let mut names: Vec<BaselineName> =
            directories.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        names.sort();
        Ok(names)
    }

    /// Reads the runs of a baseline. If a run cannot be read, the list has an error in its place.
    ///
    /// # Errors
    /// Returns an error if the baseline does not exist.
    pub fn read(&self, name: &BaselineName) -> Result<Vec<Result<StoredRun>>> {
        let path = self.path_of(name);
        if path.is_dir() {
            return Ok(read_runs(&path));
        }
        let names: Vec<String> = self.names()?.iter().map(ToString::to_string).collect();
        match names.as_slice() {
            [] => bail!("{} has no baselines: mailrun baseline save {name} makes one", self.path.display()),
            names => bail!("{} has no baseline {name}; it has {}", self.path.display(), names.join(", ")),
        }
    }

    /// Deletes the directory of a baseline, with its copies of run records.
    ///
    /// # Errors
    /// Returns an error and deletes nothing if the baseline does not exist, is a link, or contains
    /// files that `save` does not write.
    pub fn remove(&self, name: &BaselineName) -> Result<()> {
        let path = self.path_of(name);
        if !path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            self.read(name)?;
            bail!("{} is a link: nothing was removed", path.display());
        }
        remove_runs(&path)
    }
}

fn write_runs(directory: &Path, runs: &[StoredRun]) -> Result<()> {
    let mut names = BTreeSet::new();
    for run in runs {
        let stem = run_file_stem(&run.record);
        let numbered = (2..).map(|number| format!("{stem}-{number}"));
        let free = std::iter::once(stem.clone()).chain(numbered).find(|name| !names.contains(name));
        let name = free.unwrap_or(stem);
        let place = directory.join(&name);
        names.insert(name);
        fs::create_dir_all(&place).map_err(|error| cannot_write(&place, &error))?;
        let file = place.join(RECORD_FILE);
        fs::copy(&run.file, &file).map_err(|error| cannot_write(&file, &error))?;
    }
    Ok(())
}

/// Deletes a baseline's directory. If it contains anything but run records, deletes nothing and returns an error.
fn remove_runs(directory: &Path) -> Result<()> {
    let cannot =
        |path: &Path, error: &std::io::Error| anyhow::anyhow!("cannot remove {}: {}", path.display(), reason(error));
    let entries = |path: &Path| -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(path).map_err(|error| cannot(path, &error))?;
        entries.map(|entry| entry.map(|entry| entry.path()).map_err(|error| cannot(path, &error))).collect()
    };
    let runs = entries(directory)?;
    for run in &runs {
        let is_directory = run.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
        let other_file = match is_directory {
            true => entries(run)?.into_iter().find(|file| !file.ends_with(RECORD_FILE)),
            false => Some(run.clone()),
        };
        if let Some(other_file) = other_file {
            bail!("{} is no part of a baseline: nothing was removed", other_file.display());
        }
    }
    for run in &runs {
        for file in entries(run)? {
            fs::remove_file(&file).map_err(|error| cannot(&file, &error))?;
        }
        fs::remove_dir(run).map_err(|error| cannot(run, &error))?;
    }
    fs::remove_dir(directory).map_err(|error| cannot(directory, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> BaselineName {
        text.parse().unwrap()
    }

    fn stored(place: &Path, count: usize) -> Vec<StoredRun> {
        (0..count)
            .map(|number| {
                let directory = place.join(format!("results/{number}"));
                fs::create_dir_all(&directory).unwrap();
                let mut record = mailrun_report::sample::held();
                record.run_id = number.to_string();
                fs::write(directory.join("run.json"), record.to_json().unwrap()).unwrap();
                fs::write(directory.join("source.ledger"), "traces").unwrap();
                read_runs(&directory).remove(0).unwrap()
            })
            .collect()
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        for bad in ["", ".", "..", "../x", "a/b", "-x", ".hidden", "a b", "ä", "a\0", "a\n", &"x".repeat(65)] {
            assert!(bad.parse::<BaselineName>().is_err(), "{bad:?}");
        }
        assert_eq!(name("main-1.2_x").to_string(), "main-1.2_x");
    }

    #[test]
    fn records_are_copied_byte_for_byte_and_nothing_else_is() {
        let place = tempfile::tempdir().unwrap();
        let runs = stored(place.path(), 3);
        let baselines = BaselineDirectory::new(&place.path().join("kept"));
        let path = baselines.save(&name("main"), &runs, ExistingBaseline::Keep).unwrap();
        let read = baselines.read(&name("main")).unwrap();
        assert_eq!(read.len(), 3);
        for (kept, run) in read.iter().zip(&runs) {
            assert_eq!(fs::read(&kept.as_ref().unwrap().file).unwrap(), fs::read(&run.file).unwrap());
        }
        assert!(!path.join("20261121T030012Z-quick/source.ledger").exists());
        assert_eq!(baselines.names().unwrap(), [name("main")]);
        let error = baselines.read(&name("other")).unwrap_err().to_string();
        assert!(error.ends_with("has no baseline other; it has main"), "{error}");
    }

    #[test]
    fn a_baseline_is_replaced_only_when_told_and_as_a_whole() {
        let place = tempfile::tempdir().unwrap();
        let runs = stored(place.path(), 3);
        let baselines = BaselineDirectory::new(place.path());
        baselines.save(&name("main"), &runs, ExistingBaseline::Keep).unwrap();
        let error = baselines.save(&name("main"), &runs[..1], ExistingBaseline::Keep).unwrap_err().to_string();
        assert!(error.contains("main is there already: --replace"), "{error}");
        let missing = StoredRun { file: place.path().join("gone.json"), ..runs[0].clone() };
        assert!(baselines.save(&name("main"), &[missing], ExistingBaseline::Replace).is_err());
        assert_eq!(baselines.read(&name("main")).unwrap().len(), 3, "the old one stays");
        baselines.save(&name("main"), &runs[..1], ExistingBaseline::Replace).unwrap();
        assert_eq!(baselines.read(&name("main")).unwrap().len(), 1);
        let hidden = fs::read_dir(place.path())
            .unwrap()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with('.'));
        assert_eq!(hidden.count(), 0);
    }

    #[test]
    fn only_baselines_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let runs = stored(place.path(), 2);
        let baselines = BaselineDirectory::new(place.path());
        baselines.save(&name("main"), &runs, ExistingBaseline::Keep).unwrap();
        let error = baselines.remove(&name("results")).unwrap_err().to_string();
        assert!(error.contains("source.ledger is no part of a baseline: nothing was removed"), "{error}");
        assert!(place.path().join("results/0/run.json").exists());
        std::os::unix::fs::symlink(place.path().join("main"), place.path().join("link")).unwrap();
        assert!(baselines.remove(&name("link")).is_err() && baselines.read(&name("main")).unwrap().len() == 2);
        baselines.remove(&name("main")).unwrap();
        assert!(!place.path().join("main").exists());
        assert!(baselines.remove(&name("main")).unwrap_err().to_string().contains("has no baseline main"));
    }
}
