//! Processes of this host, read from `/proc`, to find out which programs used the CPU time that the
//! run itself did not use.
//!
//! `HostWatch` reads all processes at the start and at the end of the load, and compares their CPU times. A process
//! that ends in between is counted as well, because the kernel adds the CPU time of an ended child to that of its
//! parent when the parent waits for the child.
use crate::proc_stat::{self, ProcessStat};
use mailrun_measurement::record::HostProcess;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Maximum number of program names in the result. The names with the most CPU time are kept.
const MAX_NAMES: usize = 8;

/// A snapshot of all processes with their names. The key is the process ID together with the start
/// time, because the kernel reuses process IDs.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostProcesses {
    seen: BTreeMap<(u32, u64), (String, ProcessStat)>,
}

impl HostProcesses {
    pub(crate) fn start() -> Self {
        let stats = proc_stat::pids().filter_map(|pid| {
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let stat = ProcessStat::parse(&text)?;
            Some(((pid, stat.started), (proc_stat::name(&text)?.to_owned(), stat)))
        });
        Self { seen: stats.collect() }
    }

    /// Returns the CPU time that each program has used between this snapshot and `later`, the busiest program first.
    /// Leaves out the process `own` and its descendants. `is_foreign` must return true for processes that have nothing
    /// to do with the run. The result also has the total CPU time of these foreign processes.
    pub(crate) fn used_until(&self, later: &Self, own: u32, is_foreign: impl Fn(u32) -> bool) -> UsedByOthers {
        let parents: BTreeMap<u32, u32> = later.seen.iter().map(|((pid, _), (_, stat))| (*pid, stat.parent)).collect();
        let mut ended: BTreeMap<u32, u64> = BTreeMap::new();
        let gone = |key: &&(u32, u64)| !later.seen.contains_key(*key);
        let gone_parents: BTreeMap<u32, u32> =
            self.seen.iter().filter(|(key, _)| gone(key)).map(|((pid, _), (_, stat))| (*pid, stat.parent)).collect();
        for (_, (_, stat)) in self.seen.iter().filter(|(key, _)| gone(key)) {
            // The kernel adds the CPU time of an ended process to its parent. If the parent ends too, the time passes
            // to the parent's parent. So find the nearest ancestor that is still running.
            let line = std::iter::successors(Some(stat.parent), |pid| gone_parents.get(pid).copied());
            let heir = line.take(gone_parents.len() + 1).last().unwrap_or(stat.parent);
            *ended.entry(heir).or_default() += ticks(stat);
        }
        let mut by_name: BTreeMap<(&str, bool), HostProcess> = BTreeMap::new();
        for (key @ (pid, _), (name, stat)) in &later.seen {
            // The ticks of this process include all CPU time of its ended children. Subtract what the process and these
            // children had used before the first reading.
            let before =
                self.seen.get(key).map_or(0, |(_, stat)| ticks(stat)) + ended.get(pid).copied().unwrap_or_default();
            let ticks = ticks(stat).saturating_sub(before);
            if ticks == 0 || descends(*pid, own, &parents) {
                continue;
            }
            let is_foreign = !is_of_system(*pid, name, stat) && is_foreign(*pid);
            let row = by_name.entry((name, is_foreign)).or_default();
            row.processes += 1;
            row.processor_s += ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
            row.rss_bytes += stat.resident_pages * rustix::param::page_size() as u64;
        }
        let named =
            |((name, foreign), row): ((&str, bool), HostProcess)| HostProcess { name: name.to_owned(), foreign, ..row };
        let mut rows: Vec<HostProcess> = by_name.into_iter().map(named).collect();
        let foreign_s = rows.iter().filter(|row| row.foreign).map(|row| row.processor_s).sum();
        rows.sort_by(|one, other| other.processor_s.total_cmp(&one.processor_s));
        rows.truncate(MAX_NAMES);
        UsedByOthers { rows, foreign_s }
    }

    /// Returns `roots` and all processes that they have started. If the parent of a process has ended, the process is
    /// still found if the leader of its process group or session is one of the returned processes.
    pub(crate) fn family(&self, roots: &BTreeSet<u32>) -> BTreeSet<u32> {
        let stats: BTreeMap<u32, &ProcessStat> = self.seen.iter().map(|((pid, _), (_, stat))| (*pid, stat)).collect();
        let mut members: BTreeSet<u32> = roots.iter().copied().filter(|pid| stats.contains_key(pid)).collect();
        // A process group or session keeps the ID of its leader after the leader has ended. If a root is in such a
        // group or session, all processes of this group or session belong to the family.
        let led = roots.iter().filter_map(|pid| stats.get(pid)).flat_map(|stat| [stat.group, stat.session]);
        let leaders: BTreeSet<u32> = led.filter(|leader| *leader > 0 && !stats.contains_key(leader)).collect();
        loop {
            let is_kin = |stat: &ProcessStat| {
                [stat.parent, stat.group, stat.session].iter().any(|pid| members.contains(pid))
                    || [stat.group, stat.session].iter().any(|pid| leaders.contains(pid))
            };
            let more = stats.iter().filter(|(pid, stat)| !members.contains(pid) && is_kin(stat));
            let more: Vec<u32> = more.map(|(pid, _)| *pid).collect();
            if more.is_empty() {
                return members;
            }
            members.extend(more);
        }
    }

    /// Returns the process `of`, and all other processes that have the same name.
    pub(crate) fn namesakes(&self, of: u32) -> BTreeSet<u32> {
        let name = self.name(of);
        let same = self.seen.iter().filter(|(_, (other, _))| Some(other.as_str()) == name);
        same.map(|((pid, _), _)| *pid).chain([of]).collect()
    }

    pub(crate) fn children(&self, of: u32) -> BTreeSet<u32> {
        self.seen.iter().filter(|(_, (_, stat))| stat.parent == of).map(|((pid, _), _)| *pid).collect()
    }

    pub(crate) fn name(&self, of: u32) -> Option<&str> {
        self.seen.range((of, 0)..=(of, u64::MAX)).next_back().map(|(_, (name, _))| name.as_str())
    }
}

/// CPU time of all processes except this one and its descendants. Includes the server under test unless this process
/// has started it.
#[derive(Clone, Debug, Default)]
pub(crate) struct UsedByOthers {
    pub(crate) rows: Vec<HostProcess>,
    /// CPU time, in seconds, of all processes unrelated to the run, including those that `rows` leaves out because it
    /// is full.
    pub(crate) foreign_s: f64,
}

/// Returns true for kernel threads and for the processes that adopt orphans (PID 1 and systemd). Their time may include
/// work for the server, so it must not count as unrelated to the run.
fn is_of_system(pid: u32, name: &str, stat: &ProcessStat) -> bool {
    const KTHREADD: u32 = 2;
    pid <= KTHREADD || stat.parent == KTHREADD || name == "systemd"
}

/// Returns the CPU time of the process and of its ended children, in clock ticks.
fn ticks(stat: &ProcessStat) -> u64 {
    stat.user + stat.sys + stat.children_user + stat.children_sys
}

fn descends(pid: u32, root: u32, parents: &BTreeMap<u32, u32>) -> bool {
    let mut line = std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
    // Limit the number of steps. Processes may change while they are read, so `parents` could contain a cycle.
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
        let used = before.used_until(&later, 20, |pid| pid >= 12);
        let rows: Vec<_> =
            used.rows.iter().map(|row| (row.name.as_str(), row.processes, row.processor_s * ticks_per_s)).collect();
        assert_eq!(rows, [("master", 1, 100.0), ("smtpd", 2, 50.0)], "40 of master's were smtpd's before");
        assert_eq!(used.rows.iter().map(|row| row.foreign).collect::<Vec<_>>(), [false, true]);
        assert_eq!(used.foreign_s * ticks_per_s, 50.0);
    }

    #[test]
    fn time_before_the_run_is_not_told_when_a_whole_family_has_ended() {
        let before = look(&[(5, "bash", 1, 10), (6, "cargo", 5, 100), (7, "rustc", 6, 7_900)]);
        let later = look(&[(5, "bash", 1, 8_210)]);
        let used = before.used_until(&later, 20, |_| true).rows;
        let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(used.iter().map(|row| row.processor_s * ticks_per_s).collect::<Vec<_>>(), [200.0]);
    }

    #[test]
    fn a_family_has_descendants_and_orphans_of_its_groups_and_sessions() {
        let process = |pid: u32, parent: u32, group: u32, session: u32| {
            let stat = ProcessStat { parent, group, session, ..ProcessStat::default() };
            ((pid, 0), ("x".to_owned(), stat))
        };
        let processes = HostProcesses {
            seen: BTreeMap::from([
                process(1, 0, 1, 1),
                process(5, 1, 5, 5),
                // Process 5 is a shell that has started job 10. A child (11) and an orphan (12) are in the job's
                // process group, and must count as part of job 10.
                process(10, 5, 10, 5),
                process(11, 10, 10, 5),
                process(12, 1, 10, 5),
                // Process 20 is another job of shell 5, and must not count as part of job 10.
                process(20, 5, 20, 5),
                // Process 30 is a daemon, with a child (31) in another process group and an orphan (32) in its session.
                process(30, 1, 30, 30),
                process(31, 30, 31, 30),
                process(32, 1, 32, 30),
                // The leader of this session, 40, has ended. Processes 41 and 42 must still count as one family.
                process(41, 1, 40, 40),
                process(42, 1, 40, 40),
            ]),
        };
        for (root, expected) in [
            (10, &[10, 11, 12][..]),
            (20, &[20]),
            (30, &[30, 31, 32]),
            (41, &[41, 42]),
            (5, &[5, 10, 11, 12, 20]),
            (99, &[]),
        ] {
            let family = processes.family(&BTreeSet::from([root]));
            assert_eq!(family.into_iter().collect::<Vec<_>>(), expected, "{root}");
        }
        assert_eq!((processes.children(30), processes.name(30)), (BTreeSet::from([31]), Some("x")));
    }

    #[test]
    fn this_process_is_not_among_the_others_and_a_circle_ends() {
        assert!(HostProcesses::start().seen.keys().any(|(pid, _)| *pid == std::process::id()));
        assert!(descends(3, 1, &BTreeMap::from([(3, 2), (2, 1)])));
        assert!(!descends(3, 1, &BTreeMap::from([(3, 2), (2, 3)])));
    }
}
