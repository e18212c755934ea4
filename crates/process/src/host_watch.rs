//! Watches the host while load is offered: which programs have nothing to do with the run, how much
//! CPU time they use, and how long the run's own programs wait for a processor.
//!
//! The watch runs on a thread of its own. This thread reads all processes at the beginning and at
//! the end, and now and then in between. Four times per second it reads only how long the threads
//! of the run have waited, because these threads are few.
use crate::host_processes::HostProcesses;
use crate::host_sampler::HostSampler;
use crate::server_processes::{ServerProcesses, listening_at};
use mailrun_measurement::record::{ForeignLoad, HostProcess, Surroundings, WaitRow};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::id;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval at which to read how long the threads of the run have waited for a processor.
const WINDOW: Duration = Duration::from_millis(250);
/// Maximum number of rows in the record's table of waiting times. When there are more, each pair of adjacent rows is
/// merged into one row that covers twice the time.
const MAX_WINDOWS: usize = 256;
/// Number of `WINDOW`s after which the watch first searches the host for new processes of the run. The interval doubles
/// after each search, because a server starts most of its processes at the beginning of the load.
const FIRST_SEARCH: u32 = 2;

/// The processes whose waits for a processor are measured. Mail passes through them, so their waits delay it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parties {
    /// The process that calls [`HostWatch::start`], if it is a source.
    ThisProcess,
    /// The child processes of the caller, if it is a bench, which starts the programs of a run as child processes.
    Children,
}

#[derive(Debug)]
pub struct HostWatch {
    stop: Sender<()>,
    thread: Option<JoinHandle<HostLoad>>,
}

#[derive(Clone, Debug, Default)]
pub struct HostLoad {
    around: Surroundings,
    foreign: Option<ForeignLoad>,
    processes: Vec<HostProcess>,
}

impl HostWatch {
    /// Starts a thread that watches until the load ends. `servers` are the addresses of the server under test and of
    /// other processes through which the mail passes. Their processes are looked up before this function returns, so
    /// that the search, which takes some milliseconds, does not disturb the load.
    pub fn start(parties: Parties, servers: &[String]) -> Self {
        let (stop, stopped) = channel();
        let mut observer = Observer::new(parties, servers);
        let watch = move || {
            let mut until = Instant::now() + WINDOW;
            while stopped.recv_timeout(until.saturating_duration_since(Instant::now()))
                == Err(RecvTimeoutError::Timeout)
            {
                observer.look();
                until = (until + WINDOW).max(Instant::now());
            }
            observer.finish()
        };
        // Ignore an error, because the run can go on without this thread. Its record then lacks the host's figures.
        let thread = std::thread::Builder::new().name("host watch".to_owned()).spawn(watch).ok();
        Self { stop, thread }
    }

    /// Ends the observation of the host, so that work after the load is not counted. Returns without waiting for the
    /// watching thread to end.
    pub fn load_ended(&self) {
        // Ignore the error, because the thread may have ended already.
        let _ = self.stop.send(());
    }

    pub fn finish(mut self) -> HostLoad {
        self.load_ended();
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl HostLoad {
    pub fn fill(self, around: &mut Surroundings) {
        around.load_processor_s = self.around.processor_s;
        around.used_share = self.around.used_share;
        around.processes = self.processes;
        around.foreign = self.foreign;
    }
}

#[derive(Debug)]
struct Observer {
    parties: Parties,
    servers: Vec<ServerProcesses>,
    sampler: HostSampler,
    first: HostProcesses,
    /// Processes that belong to the run or to the server, including those that have ended.
    kin: BTreeSet<u32>,
    run_queue: RunQueue,
    windows: Windows,
    until_search: u32,
    search_interval: u32,
}

impl Observer {
    fn new(parties: Parties, servers: &[String]) -> Self {
        let mut observer = Self {
            parties,
            servers: servers.iter().map(|server| listening_at(server)).collect(),
            sampler: HostSampler::default(),
            first: HostProcesses::start(),
            kin: BTreeSet::new(),
            run_queue: RunQueue::default(),
            windows: Windows::new(),
            until_search: FIRST_SEARCH,
            search_interval: FIRST_SEARCH,
        };
        observer.search(&observer.first.clone());
        observer.run_queue.sample();
        observer.sampler = HostSampler::start();
        observer
    }

    fn look(&mut self) {
        self.until_search -= 1;
        if self.until_search == 0 {
            self.search(&HostProcesses::start());
            self.search_interval = self.search_interval.saturating_mul(2);
            self.until_search = self.search_interval;
        }
        let row = self.run_queue.sample();
        self.windows.add(row);
    }

    /// Finds the processes of the run and of the server, so that none of them counts as unrelated to the run.
    fn search(&mut self, all: &HostProcesses) {
        // The sink or relay of this run looks like a mailrun process of another run. Count all mailrun processes as
        // related to this run, so that its sink and relay never count as foreign load.
        let own = all.family(&all.namesakes(id()));
        let servers: BTreeSet<u32> = self.server_roots().collect();
        let server = all.family(&servers);
        let parties = match self.parties {
            Parties::ThisProcess => vec![BTreeSet::from([id()])],
            Parties::Children => all.children(id()).iter().map(|child| all.family(&BTreeSet::from([*child]))).collect(),
        };
        let mut known = BTreeSet::new();
        let mut groups = Vec::new();
        for party in parties.into_iter().chain([server.clone()]) {
            let new: Vec<u32> = party.into_iter().filter(|pid| known.insert(*pid)).collect();
            groups.push(new.into_iter().map(|pid| (pid, all.name(pid).unwrap_or_default().to_owned())).collect());
        }
        self.run_queue.groups = groups;
        self.kin.extend(own);
        self.kin.extend(server);
    }

    fn server_roots(&self) -> impl Iterator<Item = u32> {
        self.servers.iter().flat_map(|server| match server {
            ServerProcesses::Here(pids) => pids.iter().copied().collect(),
            ServerProcesses::Elsewhere | ServerProcesses::Unknown(_) => Vec::new(),
        })
    }

    fn finish(mut self) -> HostLoad {
        let row = self.run_queue.sample();
        self.windows.add(row);
        let around = self.sampler.finish();
        let last = HostProcesses::start();
        self.search(&last);
        let unknown = self.servers.iter().find_map(|server| match server {
            ServerProcesses::Unknown(reason) => Some(*reason),
            ServerProcesses::Here(_) | ServerProcesses::Elsewhere => None,
        });
        let groups = ControlGroups::of(self.server_roots());
        let namespace = network_namespace(&id().to_string());
        let is_foreign = |pid: u32| {
            unknown.is_none()
                && !self.kin.contains(&pid)
                && !groups.contain(pid)
                // A process in another network namespace counts as related to the run. It may be the server, for
                // example in a container behind a forwarded port.
                && network_namespace(&pid.to_string()).is_none_or(|other| Some(other) == namespace)
        };
        let used = self.first.used_until(&last, id(), is_foreign);
        let all_s = around.processor_s.filter(|all_s| *all_s > 0.0 && unknown.is_none());
        let (window_s, waits) = self.windows.finish();
        let foreign = ForeignLoad {
            share: all_s.map(|all_s| (used.foreign_s / all_s).min(1.0)),
            unknown: unknown.unwrap_or_default().to_owned(),
            server_elsewhere: self.servers.first() == Some(&ServerProcesses::Elsewhere),
            window_s,
            waits,
        };
        HostLoad { around, foreign: Some(foreign), processes: used.rows }
    }
}

fn network_namespace(process: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

/// Control groups that contain processes of the server but not this process. Every process in such a group counts as
/// part of the server.
#[derive(Debug)]
struct ControlGroups(Vec<String>);

impl ControlGroups {
    /// Returns the control groups of these processes. Leaves out groups that also contain this process, because such a
    /// group does not belong to the server alone.
    fn of(processes: impl Iterator<Item = u32>) -> Self {
        let own = control_group("self").unwrap_or_default();
        let groups = processes.filter_map(|pid| control_group(&pid.to_string()));
        Self(groups.filter(|group| !is_within(&own, group)).collect())
    }

    fn contain(&self, pid: u32) -> bool {
        !self.0.is_empty()
            && control_group(&pid.to_string()).is_some_and(|group| self.0.iter().any(|of| is_within(&group, of)))
    }
}

fn is_within(group: &str, outer: &str) -> bool {
    let outer = outer.trim_end_matches('/');
    group.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Reads the control group in which the service manager puts a process (cgroups(7)).
fn control_group(process: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    parse_control_group(&text).map(str::to_owned)
}

fn parse_control_group(text: &str) -> Option<&str> {
    let path = |prefix: &str| text.lines().find_map(|line| line.split_once(prefix).map(|(_, path)| path));
    path(":name=systemd:").or_else(|| path("0::"))
}

/// Reads how long threads waited for a processor.
#[derive(Debug, Default)]
struct RunQueue {
    /// IDs and names of the processes of each program of the run. The last group has the processes of the server.
    groups: Vec<Vec<(u32, String)>>,
    /// Nanoseconds that each thread, by process and thread ID, had waited from its start to the last reading.
    last: BTreeMap<(u32, u32), u64>,
}

impl RunQueue {
    /// Returns how long threads of the run have waited for a processor since the last call. For each program name, only
    /// the longest wait counts, because a message passes through only one thread of one process of that name. A thread
    /// that the last call did not see counts from the next call on, because its wait is a difference between two
    /// readings.
    fn sample(&mut self) -> WaitRow {
        let before = std::mem::take(&mut self.last);
        let mut row = WaitRow::default();
        for group in &self.groups {
            let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
            for (pid, name) in group {
                for (thread, waited_ns) in thread_waits(*pid) {
                    self.last.insert((*pid, thread), waited_ns);
                    let Some(earlier) = before.get(&(*pid, thread)) else { continue };
                    let longest = by_name.entry(name).or_default();
                    *longest = waited_ns.saturating_sub(*earlier).max(*longest);
                }
            }
            row.waited_ms += by_name.into_values().map(|waited_ns| waited_ns as f64 / 1e6).sum::<f64>();
        }
        row
    }
}

/// Returns for each thread of a process how many nanoseconds it has waited for a processor in all.
fn thread_waits(pid: u32) -> Vec<(u32, u64)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let waits = threads.filter_map(|entry| {
        let thread = entry.file_name().to_str()?.parse().ok()?;
        Some((thread, parse_schedstat(&fs::read_to_string(entry.path().join("schedstat")).ok()?)?))
    });
    waits.collect()
}

/// Parses `/proc/PID/task/TID/schedstat`: the time on a processor, the time of waiting for one, and
/// the number of time slices. Returns the time of waiting, in nanoseconds.
fn parse_schedstat(text: &str) -> Option<u64> {
    let fields: Option<Vec<u64>> = text.split_ascii_whitespace().map(|field| field.parse().ok()).collect();
    match fields?[..] {
        [_, waited_ns, _] => Some(waited_ns),
        _ => None,
    }
}

/// How long threads of the run waited for a processor, in rows that each cover the same length of time. The number of
/// rows is limited, so each row covers more time if the load lasts longer.
#[derive(Debug)]
struct Windows {
    rows: Vec<WaitRow>,
    /// Number of readings that are summed up in each row. It doubles whenever there are more than `MAX_WINDOWS` rows.
    width: usize,
    pending: Vec<WaitRow>,
}

impl Windows {
    fn new() -> Self {
        Self { rows: Vec::new(), width: 1, pending: Vec::new() }
    }

    /// Adds the reading that the caller has taken at the end of a `WINDOW`.
    fn add(&mut self, row: WaitRow) {
        // If the watching thread was delayed, this reading covers more than one `WINDOW`. The record shows it as a
        // single `WINDOW`, so limit the waits to this length.
        let waited_ms = row.waited_ms.min(WINDOW.as_secs_f64() * 1e3);
        self.pending.push(WaitRow { waited_ms: (waited_ms * 1e3).round() / 1e3 });
        if self.pending.len() >= self.width {
            let row = joined(&self.pending);
            self.rows.push(row);
            self.pending.clear();
        }
        if self.rows.len() > MAX_WINDOWS {
            self.width *= 2;
            self.rows = self.rows.chunks(2).map(joined).collect();
        }
    }

    /// Returns the length of a row in seconds, and the rows.
    fn finish(mut self) -> (f64, Vec<WaitRow>) {
        if !self.pending.is_empty() {
            self.rows.push(joined(&self.pending));
        }
        (WINDOW.as_secs_f64() * self.width as f64, self.rows)
    }
}

fn joined(rows: &[WaitRow]) -> WaitRow {
    WaitRow { waited_ms: rows.iter().map(|row| row.waited_ms).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc_stat::ProcessStat;
    use std::net::TcpListener;
    use std::process::Command;

    /// A process with a busy loop that does not descend from this process, so that its CPU time must count as unrelated
    /// to the run.
    struct Stranger(u32);

    impl Stranger {
        fn start() -> Self {
            let script = "setsid sh -c 'echo $$; exec >&- 2>&-; while :; do :; done' &";
            let output = Command::new("sh").args(["-c", script]).output().unwrap();
            let stranger = Self(String::from_utf8(output.stdout).unwrap().trim().parse().unwrap());
            while ProcessStat::of(stranger.0).unwrap().parent == id() {}
            stranger
        }
    }

    impl Drop for Stranger {
        fn drop(&mut self) {
            let _ = Command::new("kill").args(["-9", &self.0.to_string()]).status();
        }
    }

    fn await_ticks(pid: u32, ticks: u64) {
        let used = || ProcessStat::of(pid).map_or(0, |stat| stat.user + stat.sys);
        let before = used();
        while used() < before + ticks {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_stranger_is_foreign_and_a_server_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap().to_string();
        let stranger = Stranger::start();
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let watch = HostWatch::start(Parties::ThisProcess, &[server]);
        await_ticks(stranger.0, 50);
        await_ticks(child.id(), 1);
        watch.load_ended();
        let mut around = Surroundings::default();
        watch.finish().fill(&mut around);
        let mut child = child;
        child.kill().unwrap();
        child.wait().unwrap();
        let foreign = around.foreign.clone().unwrap();
        let row = around.processes.iter().find(|row| row.name == "sh" && row.foreign).unwrap();
        assert!(row.processor_s >= 0.5, "{around:?}");
        let share = foreign.share.unwrap();
        assert!(share >= 0.9 * row.processor_s / around.load_processor_s.unwrap() && share <= 1.0, "{around:?}");
        assert!(foreign.unknown.is_empty() && !foreign.server_elsewhere && !foreign.waits.is_empty(), "{foreign:?}");
        assert!(foreign.waits.iter().all(|row| (0.0..=250.0).contains(&row.waited_ms)), "{foreign:?}");
        drop(stranger);
    }

    #[test]
    fn without_the_servers_process_nobody_is_foreign() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap().to_string();
        drop(listener);
        let stranger = Stranger::start();
        let watch = HostWatch::start(Parties::ThisProcess, &[server]);
        await_ticks(stranger.0, 20);
        let load = watch.finish();
        let foreign = load.foreign.unwrap();
        assert_eq!(foreign.share, None);
        assert!(
            foreign.unknown.contains("nothing listens") && load.processes.iter().all(|row| !row.foreign),
            "{foreign:?}"
        );
        // Now name the busy loop as the server under test. The watch must then count it as related to the run.
        let mut observer = Observer::new(Parties::ThisProcess, &[]);
        observer.servers = vec![ServerProcesses::Here(BTreeSet::from([stranger.0]))];
        await_ticks(stranger.0, 20);
        let load = observer.finish();
        assert!(load.processes.iter().any(|row| row.name == "sh" && !row.foreign), "{load:?}");
    }

    #[test]
    fn the_kernel_tells_waits_of_threads() {
        let waited_ns = || thread_waits(id()).iter().map(|(_, waited_ns)| waited_ns).sum::<u64>();
        let before = waited_ns();
        assert!(before > 0, "schedstat has the threads of this process");
        while waited_ns() <= before {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(parse_schedstat("519644 2716556 2\n"), Some(2_716_556));
        for nonsense in ["", "1", "1 2", "1 x 3", "-1 2 3", "1 99999999999999999999999 3"] {
            assert_eq!(parse_schedstat(nonsense), None, "{nonsense}");
        }
        assert!(thread_waits(1 << 23).is_empty());
    }

    #[test]
    fn rows_are_limited_and_keep_their_sum() {
        let mut windows = Windows::new();
        for _ in 0..MAX_WINDOWS * 5 + 3 {
            windows.add(WaitRow { waited_ms: 2.0 });
        }
        let (length_s, rows) = windows.finish();
        let sum: f64 = rows.iter().map(|row| row.waited_ms).sum();
        assert!(rows.len() <= MAX_WINDOWS + 1 && length_s == 2.0, "{} {length_s}", rows.len());
        assert_eq!(sum, 2.0 * (MAX_WINDOWS * 5 + 3) as f64);
        let mut late = Windows::new();
        late.add(WaitRow { waited_ms: 900.0 });
        assert_eq!(late.rows[0].waited_ms, 250.0);
    }

    #[test]
    fn a_control_group_is_the_servers_if_this_process_is_outside() {
        let text = "4:memory:/a\n1:name=systemd:/system.slice/postfix.service\n0::/\n";
        assert_eq!(parse_control_group(text), Some("/system.slice/postfix.service"));
        assert_eq!((parse_control_group("0::/x\n"), parse_control_group("")), (Some("/x"), None));
        assert!(is_within("/a/b", "/a") && is_within("/a", "/a") && is_within("/a", "/"));
        assert!(!is_within("/ab", "/a") && !is_within("/a", "/a/b"));
    }
}
