//! Counts the system calls of a relay with strace(1). Strace slows the relay down, so the calls are
//! counted in separate short runs.
//!
//! The bench makes two such runs, one with a single message and one with many. The difference between their counts is
//! the cost of the additional messages, without the cost of starting and stopping the relay.
use crate::directory::RunDirectory;
use crate::parties::{PartyCommand, ProcessScope};
use anyhow::{Context, Result};
use mailrun_measurement::record::Role;
use std::fs;
use std::path::{Path, PathBuf};

/// System calls that wait until data is on disk.
const SYNCS: [&str; 6] = ["fsync", "fdatasync", "msync", "sync", "syncfs", "sync_file_range"];

/// Number of system calls that a relay made in one run. `syncs` counts only the calls that wait until data is on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SyscallCounts {
    pub(crate) all: u64,
    pub(crate) syncs: u64,
}

pub(crate) fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|place| place.join("strace")).find(|path| path.is_file())
}

/// Makes the command that runs the relay under strace, which writes its counts to `relay.strace` in `directory`.
pub(super) fn wrap_command(command: PartyCommand, strace: &Path, directory: &RunDirectory) -> PartyCommand {
    let words = ["-f", "-c", "-o"].map(str::to_owned).into_iter();
    let words =
        words.chain([&counts_file(directory), &command.program].map(|path| path.to_string_lossy().into_owned()));
    let arguments = words.chain(command.arguments).collect();
    PartyCommand { program: strace.to_owned(), arguments, scope: ProcessScope::Tree, ..command }
}

fn counts_file(directory: &RunDirectory) -> PathBuf {
    directory.file(Role::Relay, "strace")
}

/// Reads the system call counts of a run from the directory of the run.
///
/// # Errors
/// Returns an error if strace has written no file, or has counted nothing.
pub(crate) fn read(run: &Path) -> Result<SyscallCounts> {
    let path = run.join("relay.strace");
    let text = fs::read_to_string(&path).with_context(|| format!("strace wrote no {}", path.display()))?;
    let calls = parse(&text);
    anyhow::ensure!(calls.all > 0, "strace has counted nothing: see {}", path.display());
    Ok(calls)
}

/// Parses the table that `strace -c` writes: `% time, seconds, usecs/call, calls, [errors], syscall`.
pub(crate) fn parse(text: &str) -> SyscallCounts {
    let mut calls = SyscallCounts::default();
    for line in text.lines() {
        let cells: Vec<&str> = line.split_ascii_whitespace().collect();
        let Some(number) = cells.get(3).and_then(|cell| cell.parse::<u64>().ok()) else { continue };
        let Some(name) = cells.last().filter(|_| cells.len() >= 5 && cells[0].parse::<f64>().is_ok()) else { continue };
        match *name {
            // Add up the rows instead of using strace's own sum, which may lack calls that were still under way.
            "total" => {}
            name => {
                calls.all += number;
                calls.syncs += if SYNCS.contains(&name) { number } else { 0 };
            }
        }
    }
    calls
}

/// Computes the system calls and the syncs per message. `one` was counted in a run with one message, and `many` in a
/// run with `messages`. The difference between both is the cost of the additional messages.
pub(crate) fn per_message(one: SyscallCounts, many: SyscallCounts, messages: u64) -> (f64, f64) {
    let more = messages.saturating_sub(1).max(1) as f64;
    (many.all.saturating_sub(one.all) as f64 / more, many.syncs.saturating_sub(one.syncs) as f64 / more)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.012345          12      1000           write
 30.00    0.001234           1       500        20 openat
 10.00    0.001000         100        10           fdatasync
  0.00    0.000000           0         2           fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.014579           9      1512        20 total
";

    #[test]
    fn calls_are_summed_and_syncs_are_told() {
        assert_eq!(parse(TABLE), SyscallCounts { all: 1512, syncs: 12 });
        assert_eq!(parse("strace: Process 1 attached\n"), SyscallCounts::default());
    }

    #[test]
    fn starting_and_stopping_is_no_message() {
        let one = SyscallCounts { all: 1000, syncs: 3 };
        let many = SyscallCounts { all: 2000, syncs: 53 };
        assert_eq!(per_message(one, many, 101), (10.0, 0.5));
        assert_eq!(per_message(one, one, 1), (0.0, 0.0));
    }
}
