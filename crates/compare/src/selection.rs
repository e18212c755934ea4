//! Selects the runs that can be compared: runs of the same load on the same host, each only once. A run with another
//! load or host, or a run that was named before, is refused with a line that says why.
use crate::run_figures::{NamedRun, RunTrait, difference, traits};
use anyhow::{Result, bail};
use mailrun_text::printable::printable;
use serde::{Serialize, Serializer};

const MAX_REASONS: usize = 3;

#[derive(Clone, Debug, Default)]
pub struct RunSide {
    /// Name of this side of the comparison in messages, for example an option or the name of a baseline.
    pub name: String,
    /// Title of this side on the comparison's page. If it is empty, the page shows a default title.
    pub title: String,
    pub runs: Vec<NamedRun>,
    pub unreadable: Vec<String>,
}

/// Remarks about runs for reports and errors, for example why a run was refused. Each side has its own lines, because
/// an error about one side shows only the lines of that side. In JSON, the lines of both sides are one list.
#[derive(Clone, Debug, Default)]
pub struct SideLines {
    pub against: Vec<String>,
    pub runs: Vec<String>,
}

impl SideLines {
    /// Returns the lines about the reference runs, then the lines about the judged runs.
    pub fn iter(&self) -> impl Iterator<Item = &String> {
        self.against.iter().chain(&self.runs)
    }

    fn push(&mut self, is_reference: bool, line: String) {
        let side = if is_reference { &mut self.against } else { &mut self.runs };
        side.push(line);
    }
}

impl Serialize for SideLines {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// The comparable runs of both sides, and a line for each refused run.
#[derive(Debug, Default)]
pub(super) struct ComparableRuns<'a> {
    pub(super) runs: Vec<&'a NamedRun>,
    pub(super) reference: Vec<&'a NamedRun>,
    pub(super) refused: Vec<String>,
}

/// A load and a host, with the number of runs that each side of the comparison has for them.
struct LoadGroup {
    traits: Vec<RunTrait>,
    first: usize,
    of_reference: usize,
    of_runs: usize,
}

/// Selects runs with the same load and host. If there are several loads or hosts, `commonest` chooses one combination.
///
/// # Errors
/// Fails if a side has no usable run, or if the two sides have no load and host in common.
pub(super) fn choose<'a>(judged: &'a RunSide, reference: &'a RunSide) -> Result<ComparableRuns<'a>> {
    let mut unusable = SideLines { against: reference.unreadable.clone(), runs: judged.unreadable.clone() };
    let mut unique: Vec<(&NamedRun, bool)> = Vec::new();
    let of_reference = reference.runs.iter().map(|run| (run, true));
    for (run, is_reference) in of_reference.chain(judged.runs.iter().map(|run| (run, false))) {
        match unique.iter().find(|(other, _)| is_one_run(other, run)) {
            Some((other, _)) => {
                let line = format!("{} is the same run as {}", printable(&run.0), printable(&other.0));
                unusable.push(is_reference, line);
            }
            None => unique.push((run, is_reference)),
        }
    }
    for (side, is_reference, lines) in [(reference, true, &unusable.against), (judged, false, &unusable.runs)] {
        if !unique.iter().any(|(_, is_of_reference)| *is_of_reference == is_reference) {
            bail!("no run of {} can be used: {}", side.name, reasons(lines));
        }
    }
    let first = unique[commonest(&unique)].0;
    let mut chosen = ComparableRuns::default();
    let mut unlike = SideLines::default();
    for (run, is_reference) in unique.iter().copied() {
        match difference(&first.1, &run.1) {
            Some((what, first_value, value)) => {
                let line = format!(
                    "the {what} of {} is {}, that of {} is {}: runs of different loads or hosts cannot be compared",
                    printable(&run.0),
                    printable(&value),
                    printable(&first.0),
                    printable(&first_value)
                );
                unlike.push(is_reference, line);
            }
            None if is_reference => chosen.reference.push(run),
            None => chosen.runs.push(run),
        }
    }
    if chosen.reference.is_empty() || chosen.runs.is_empty() {
        let lines = if chosen.reference.is_empty() { &unlike.against } else { &unlike.runs };
        bail!("no run of {} is like one of {}: {}", judged.name, reference.name, reasons(lines));
    }
    let refused = unusable.iter().chain(unlike.iter()).cloned().collect();
    Ok(ComparableRuns { refused, ..chosen })
}

/// Returns true if two records are of the same run. An old record may have no id, and then counts as a run of its own.
fn is_one_run(left: &NamedRun, right: &NamedRun) -> bool {
    !left.1.run_id.is_empty() && left.1.run_id == right.1.run_id
}

/// Chooses a combination of load and host, and returns the index of the first run with it. For each combination, counts
/// the runs on the side that has fewer of them, because a comparison is only as good as its smaller side. Chooses the
/// combination with the highest count. If several combinations have this count, the total number of runs decides.
fn commonest(runs: &[(&NamedRun, bool)]) -> usize {
    let mut groups: Vec<LoadGroup> = Vec::new();
    for (place, (run, is_reference)) in runs.iter().enumerate() {
        let traits = traits(&run.1);
        let at = groups.iter().position(|group| group.traits == traits).unwrap_or_else(|| {
            groups.push(LoadGroup { traits, first: place, of_reference: 0, of_runs: 0 });
            groups.len() - 1
        });
        groups[at].of_reference += usize::from(*is_reference);
        groups[at].of_runs += usize::from(!is_reference);
    }
    let rank = |group: &&LoadGroup| (group.of_reference.min(group.of_runs), group.of_reference + group.of_runs);
    // `max_by_key` returns the last of several equal groups, so iterate from the end to get the first.
    groups.iter().rev().max_by_key(rank).map_or(0, |group| group.first)
}

/// Joins the first few reasons into one line, and adds how many more there are.
pub(super) fn reasons(all: &[String]) -> String {
    let shown = all.iter().take(MAX_REASONS).map(String::as_str).collect::<Vec<_>>().join("; ");
    match all.len().saturating_sub(MAX_REASONS) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}
