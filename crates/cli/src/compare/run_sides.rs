//! Reads the stored runs of both sides for `mailrun compare`. The user names them by their paths, or as a baseline.
use anyhow::Result;
use mailrun_bench::stored::{BaselineDirectory, BaselineName, StoredRun, read_runs};
use mailrun_compare::RunSide;
use mailrun_text::printable::printable;
use std::path::{Path, PathBuf};

pub(crate) const BASELINES: &str = "mailrun-baselines";

/// Reads all runs at or below these paths as one side of a comparison. An unreadable run does not fail the comparison:
/// its error is kept with the side and shown later.
pub(crate) fn side(name: &str, paths: &[PathBuf]) -> RunSide {
    let read = paths.iter().flat_map(|path| read_runs(path));
    let title = common_directory(paths);
    let mut side = RunSide { name: name.to_owned(), title, ..RunSide::default() };
    for run in read {
        push(&mut side, run);
    }
    side
}

fn push(side: &mut RunSide, run: Result<StoredRun>) {
    match run {
        Ok(run) => side.runs.push((run.name, run.record)),
        Err(error) => side.unreadable.push(printable(&format!("{error:#}")).into_owned()),
    }
}

/// Returns the title of a side: the longest directory that contains all paths, or the only path. Returns an empty
/// string if the paths have no directory in common.
fn common_directory(paths: &[PathBuf]) -> String {
    let Some((first, rest)) = paths.split_first() else { return String::new() };
    let mut common: &Path = first;
    while !rest.iter().all(|path| path.starts_with(common)) {
        let Some(parent) = common.parent() else { return String::new() };
        common = parent;
    }
    common.display().to_string()
}

pub(crate) fn baseline_side(baselines: &BaselineDirectory, name: &BaselineName) -> Result<RunSide> {
    let title = format!("baseline {name}");
    let mut side = RunSide { name: title.clone(), title, ..RunSide::default() };
    for run in baselines.read(name)? {
        push(&mut side, run);
    }
    Ok(side)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_named_by_what_its_runs_have_in_common() {
        let common = |paths: &[&str]| common_directory(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(common(&["before/1", "before/2"]), "before");
        assert_eq!([common(&["before"]), common(&["a/1", "b/1"]), common(&[])], ["before", "", ""]);
        assert_eq!(common(&["/x/before1/1", "/x/before2/1"]), "/x");
    }
}
