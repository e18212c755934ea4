//! Other processes of this host, read from `/proc`. They tell who used the CPU time that the run's
//! parties did not use.
//!
//! All processes are read twice. If a process ended in between, its time is part of its parent's
//! time, provided that the parent has waited for it.
use crate::proc_stat::{self, ProcessStat};
use mailrun_journey::record::HostProcess;
use std::collections::BTreeMap;
use std::fs;

/// Maximum number of names in the result.
const MAX_NAMES: usize = 8;

/// All processes at one time, with their names. The key is the process ID and the start time.
#[derive(Clone, Debug, Default)]
pub struct HostProcesses {
    seen: BTreeMap<(u32, u64), (String, ProcessStat)>,
}

impl HostProcesses {
    /// Reads all processes.
    pub fn start() -> Self {
        let stats = proc_stat::pids().filter_map(|pid| {
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let stat = ProcessStat::parse(&text)?;
            Some(((pid, stat.started), (proc_stat::name(&text)?.to_owned(), stat)))
        });
        Self { seen: stats.collect() }
    }

    /// Returns the processes that have used CPU time since `start`, the busiest first. Leaves out
    /// this process and its descendants.
    pub fn finish(&self) -> Vec<HostProcess> {
        self.used_until(&Self::start(), std::process::id())
    }

    fn used_until(&self, later: &Self, own: u32) -> Vec<HostProcess> {
        let parents: BTreeMap<u32, u32> = later.seen.iter().map(|((pid, _), (_, stat))| (*pid, stat.parent)).collect();
        let mut ended: BTreeMap<u32, u64> = BTreeMap::new();
        let gone = |key: &&(u32, u64)| !later.seen.contains_key(*key);
        let gone_parents: BTreeMap<u32, u32> =
            self.seen.iter().filter(|(key, _)| gone(key)).map(|((pid, _), (_, stat))| (*pid, stat.parent)).collect();
        for (_, (_, stat)) in self.seen.iter().filter(|(key, _)| gone(key)) {
            // The parent may have ended as well. Then the grandparent has the times of both.
            let line = std::iter::successors(Some(stat.parent), |pid| gone_parents.get(pid).copied());
            let heir = line.take(gone_parents.len() + 1).last().unwrap_or(stat.parent);
            *ended.entry(heir).or_default() += ticks(stat);
        }
        let mut by_name: BTreeMap<&str, HostProcess> = BTreeMap::new();
        for (key @ (pid, _), (name, stat)) in &later.seen {
            // Subtract what ended children had used before the first reading. It is part of this
            // process's ticks now, but was not used in between.
            let before =
                self.seen.get(key).map_or(0, |(_, stat)| ticks(stat)) + ended.get(pid).copied().unwrap_or_default();
            let ticks = ticks(stat).saturating_sub(before);
            if ticks == 0 || descends(*pid, own, &parents) {
                continue;
            }
            let row = by_name.entry(name).or_default();
            row.processes += 1;
            row.processor_s += ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
            row.rss_bytes += stat.resident_pages * rustix::param::page_size() as u64;
        }
        let mut rows: Vec<HostProcess> =
            by_name.into_iter().map(|(name, row)| HostProcess { name: name.to_owned(), ..row }).collect();
        rows.sort_by(|one, other| other.processor_s.total_cmp(&one.processor_s));
        rows.truncate(MAX_NAMES);
        rows
    }
}

/// Returns the time that the process and its ended children have used in user and system mode.
fn ticks(stat: &ProcessStat) -> u64 {
    stat.user + stat.sys + stat.children_user + stat.children_sys
}

/// Returns true if the process is `root` or a descendant of `root`.
fn descends(pid: u32, root: u32, parents: &BTreeMap<u32, u32>) -> bool {
    let mut line = std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
    // Limit the number of steps. The processes may change while they are being read, so the parents
    // could form a circle.
    line.by_ref().take(parents.len() + 1).any(|pid| pid == root)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(processes: &[(u32, &str, u32, u64)]) -> HostProcesses {
        let stat = |(pid, name, parent, ticks): &(u32, &str, u32, u64)| {
            let stat = ProcessStat { parent: *parent, user: *ticks, ..ProcessStat::default() };
            ((*pid, u64::from(*pid)), ((*name).to_owned(), stat))
        };
        HostProcesses { seen: processes.iter().map(stat).collect() }
    }

    #[test]
    fn time_is_told_by_name_without_the_runs_own_processes() {
        let before = look(&[(1, "init", 0, 50), (10, "master", 1, 100), (11, "smtpd", 10, 40), (20, "bench", 1, 0)]);
        let later = look(&[
            (1, "init", 0, 50),
            (10, "master", 1, 240),
            (12, "smtpd", 10, 30),
            (13, "smtpd", 10, 20),
            (20, "bench", 1, 70),
            (21, "source", 20, 900),
        ]);
        let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
        let used = before.used_until(&later, 20);
        let rows: Vec<_> =
            used.iter().map(|row| (row.name.as_str(), row.processes, row.processor_s * ticks_per_s)).collect();
        assert_eq!(rows, [("master", 1, 100.0), ("smtpd", 2, 50.0)], "40 of master's were smtpd's before");
    }

    #[test]
    fn time_before_the_run_is_not_told_when_a_whole_family_has_ended() {
        let before = look(&[(5, "bash", 1, 10), (6, "cargo", 5, 100), (7, "rustc", 6, 7_900)]);
        let later = look(&[(5, "bash", 1, 8_210)]);
        let used = before.used_until(&later, 20);
        let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(used.iter().map(|row| row.processor_s * ticks_per_s).collect::<Vec<_>>(), [200.0]);
    }

    #[test]
    fn this_process_is_not_among_the_others_and_a_circle_ends() {
        assert!(HostProcesses::start().seen.keys().any(|(pid, _)| *pid == std::process::id()));
        assert!(descends(3, 1, &BTreeMap::from([(3, 2), (2, 1)])));
        assert!(!descends(3, 1, &BTreeMap::from([(3, 2), (2, 3)])));
    }
}
