//! Runs the source, the relay and the sink as child processes: starts them, reads their events, measures them and stops
//! them.
//!
//! ```text
//!            ┌ stdout ─→ a thread: each line to source.stdout, each event to the bench
//! Process ───┤ stderr ─→ source.stderr; its last line says why it could not run
//!            └ /proc/PID every 250 ms, and once more when it has ended and is not yet waited for
//! ```
//!
//! Each child leads a process group of its own, so that Ctrl-C at the terminal reaches only the bench. The bench then
//! stops the source before the relay, and the relay before the sink. When a `PartyProcess` is dropped, its process is
//! killed, together with everything that a relay has started. On a host without control groups, a daemon that has left
//! the relay's tree of processes may survive.
use super::directory::RunDirectory;
use super::plan::{BenchOptions, BenchTarget};
use super::recipe::leftovers;
use super::usage::{ControlGroup, MemoryCurve, tree};
use anyhow::{Context, Result, anyhow, bail};
use mailrun_dashboard::PartyLoad;
use mailrun_dashboard::live_figures::party_load;
use mailrun_measurement::record::{Death, Role};
use mailrun_measurement::trace::RunId;
use mailrun_process::cpus::CpuList;
use mailrun_process::host_sampler;
use mailrun_process::interrupt::{Interrupt, Interrupted, StopRequest};
use mailrun_process::live::LiveEvent;
use mailrun_process::outputs;
use mailrun_process::party_options::{OPTIONS_FROM_STDIN, PartyOptions};
use mailrun_process::process_usage::{self, ProcessUsage};
use mailrun_process::server_cores;
use mailrun_process::usage_sampler::UsageSampler;
use mailrun_text::numbers::count;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tempfile::TempPath;

/// Minimum interval between two samples of a process's usage.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// Sampling may take at most 1/100 of the run's time. A sample of a tree of hundreds of processes takes milliseconds,
/// so such a tree is sampled at longer intervals.
const SAMPLING_SHARE: u32 = 100;

/// Time limit for the other processes of a server to exit after its first process has exited.
const DESCENDANTS_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for reading the rest of a process's output after the process has exited. The pipe holds at most 64 KiB,
/// so the limit is reached only if a process that the bench could not kill keeps the pipe open.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of leftover processes that an error names.
const MAX_LEFT_BEHIND: usize = 10;

/// Beginning of the message that Rust's standard library writes before it aborts a process that cannot allocate memory.
const ALLOCATION_FAILED: &str = "memory allocation of ";

/// Beginning of the error message about a server whose command exited but left processes running. An audit that finds
/// this text fails without a verdict on the server. The mistake is in the recipe, whose command must keep the server in
/// the foreground.
pub(super) const BECAME_DAEMON: &str = "became a daemon";

/// Environment variable from which the sink reads the password for the mailboxes that it watches.
const MAILBOX_PASSWORD: &str = "MAILRUN_MAILBOX_PASSWORD";

/// Exit status with which a program reports that SIGTERM ended it: 128 + 15.
const SIGTERM_EXIT_CODE: i32 = 143;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessScope {
    /// The bench measures only the process that it started.
    Process,
    /// The bench measures and kills a whole tree of processes: the process that it started and all its descendants.
    Tree,
}

/// Says who moves a process out of the terminal's process group, so that Ctrl-C does not reach the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupLeader {
    /// The bench makes the process the leader of a new process group.
    Bench,
    /// The process itself calls setsid(2). That call fails for the leader of a process group, so the bench must not
    /// make the process a leader.
    Party,
}

#[derive(Clone, Debug)]
pub(super) struct PartyCommand {
    pub(super) role: Role,
    pub(super) name: &'static str,
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    /// Options that the process reads from standard input. `None` if the program is not mailrun itself.
    pub(super) options: Option<PartyOptions>,
    pub(super) environment: Vec<(OsString, OsString)>,
    /// Directory of the server, if the bench starts it from a recipe (a file that describes how to run a server). The
    /// bench needs this directory to find all processes of the server.
    pub(super) recipe_directory: Option<PathBuf>,
    /// Symbolic link with a short path to the directory of a recipe's server. Dropping the last copy of this `Arc`
    /// deletes the link, so a copy must exist while the server runs.
    pub(super) short_link: Option<Arc<TempPath>>,
    pub(super) scope: ProcessScope,
    pub(super) group_leader: GroupLeader,
    /// Number of processors that the process may use, or `None` for all of them.
    pub(super) cores: Option<u32>,
    /// Numbers of the processors that the process may use. `None` means all of them, or that the process chooses its
    /// processors itself.
    pub(super) cpus: Option<CpuList>,
    pub(super) stdout: PathBuf,
    pub(super) stderr: PathBuf,
}

impl PartyCommand {
    /// Makes the command for the bench's own sink. The sink listens at a free port or, for a relay that is already
    /// running, at the address to which this relay forwards.
    pub(super) fn sink(program: &Path, options: &BenchOptions, run: RunId, directory: &RunDirectory) -> Self {
        Self::sink_at(program, options, run, directory, options.sink_listen())
    }

    /// Makes the command for a sink that listens at `listen`. If the sink watches mailboxes, it does not listen, but
    /// connects to the mailbox server at this address.
    pub(super) fn sink_at(
        program: &Path,
        options: &BenchOptions,
        run: RunId,
        directory: &RunDirectory,
        listen: &str,
    ) -> Self {
        let arguments = options.sink_arguments(run, &directory.party_files(Role::Sink), listen);
        let cores = options.server_cores.filter(|_| options.target == BenchTarget::OwnSink);
        let password =
            options.mailboxes().map(|mailboxes| (MAILBOX_PASSWORD.into(), mailboxes.password.clone().into()));
        Self {
            cores,
            options: Some(arguments),
            environment: password.into_iter().collect(),
            ..Self::new(program, directory, Role::Sink, vec!["sink".to_owned()])
        }
    }

    pub(super) fn source(
        program: &Path,
        options: &BenchOptions,
        run: RunId,
        directory: &RunDirectory,
        target: &str,
    ) -> Self {
        let arguments = options.source_arguments(run, &directory.party_files(Role::Source), target);
        Self { options: Some(arguments), ..Self::new(program, directory, Role::Source, vec!["source".to_owned()]) }
    }

    /// Makes the command for a process whose name differs from the name of its role. For example, `mailrun mades` has
    /// the role of the source. The output goes to files that begin with `name`.
    pub(super) fn named(
        name: &'static str,
        command: &str,
        options: PartyOptions,
        program: &Path,
        directory: &RunDirectory,
        role: Role,
    ) -> Self {
        let file = |kind: &str| directory.path().join(format!("{name}.{kind}"));
        let [stdout, stderr] = ["stdout", "stderr"].map(file);
        let party = Self::new(program, directory, role, vec![command.to_owned()]);
        Self { name, stdout, stderr, options: Some(options), ..party }
    }

    /// Makes the command for a relay, which is measured and killed together with every process that it starts.
    pub(super) fn relay(program: &Path, arguments: Vec<String>, directory: &RunDirectory) -> Self {
        Self { scope: ProcessScope::Tree, ..Self::new(program, directory, Role::Relay, arguments) }
    }

    fn new(program: &Path, directory: &RunDirectory, role: Role, arguments: Vec<String>) -> Self {
        Self {
            role,
            name: role.name(),
            program: program.to_owned(),
            arguments,
            options: None,
            environment: Vec::new(),
            recipe_directory: None,
            short_link: None,
            scope: ProcessScope::Process,
            group_leader: GroupLeader::Bench,
            cores: None,
            cpus: None,
            stdout: directory.file(role, "stdout"),
            stderr: directory.file(role, "stderr"),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct PartyObservation {
    pub(super) role: Role,
    pub(super) command: Vec<String>,
    pub(super) usage: ProcessUsage,
    pub(super) memory: MemoryCurve,
    pub(super) usage_by_second: UsageSampler,
}

impl PartyObservation {
    /// Adds the observations of an earlier process with the same role, for example of a relay before its restart.
    pub(super) fn merge_previous(self, former: Option<Self>) -> Self {
        let Some(former) = former else { return self };
        Self {
            usage: former.usage.plus(self.usage),
            memory: former.memory.then(self.memory),
            usage_by_second: former.usage_by_second.then(self.usage_by_second),
            ..self
        }
    }
}

#[derive(Debug)]
pub(super) struct PartyProcess {
    pub(super) role: Role,
    pub(super) name: &'static str,
    command: Vec<String>,
    child: Child,
    /// Channel without messages. It is disconnected when the thread that reads the process's output ends, so `reap` can
    /// wait for that.
    output_end: Receiver<()>,
    stderr: PathBuf,
    scope: ProcessScope,
    group: Option<ControlGroup>,
    usage: ProcessUsage,
    /// Usage of a relay that serves several runs, measured at the start of the current run. It is subtracted from
    /// `usage`, so that only the current run counts.
    usage_before: Option<ProcessUsage>,
    memory: MemoryCurve,
    usage_by_second: UsageSampler,
    sampled_at: Instant,
    sample_interval: Duration,
    /// Set when the measured work is done, so that the CPU time of the shutdown is not counted.
    sampling_stopped: bool,
    ended: Option<ExitStatus>,
    recipe_directory: Option<PathBuf>,
    _short_link: Option<Arc<TempPath>>,
    interrupt: Interrupt,
    /// Names of processes that a recipe's server left running when it exited.
    left_behind: Vec<String>,
    /// Names of the processes in the party's control group that were still running when the party's first process
    /// exited. They are no fault if the bench had asked the party to stop, because the bench does not wait for them.
    survivors: Vec<String>,
    /// The kernel's count of out-of-memory kills on this host, read when this party started. If the number has grown
    /// when the party is killed, lack of memory counts as the cause.
    out_of_memory_kills: Option<u64>,
}

impl PartyProcess {
    pub(super) fn start(party: PartyCommand, events: Sender<(Role, LiveEvent)>, interrupt: &Interrupt) -> Result<Self> {
        let name = party.name;
        let create = |path: &Path| File::create(path).with_context(|| format!("cannot write {}", path.display()));
        let transcript = create(&party.stdout)?;
        let mut command = Command::new(&party.program);
        command.args(&party.arguments).args(party.options.as_ref().map(|_| OPTIONS_FROM_STDIN).into_iter().flatten());
        command.envs(party.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(if party.options.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(create(&party.stderr)?);
        if party.group_leader == GroupLeader::Bench {
            command.process_group(0);
        }
        let program = party.program.to_string_lossy().into_owned();
        let words = party.options.as_ref().map(PartyOptions::words).unwrap_or_default();
        let result = match (&party.cpus, party.cores) {
            (Some(cpus), _) => server_cores::spawn_within(&mut command, cpus),
            (None, Some(count)) => server_cores::spawn_on(&mut command, count),
            (None, None) => command.spawn(),
        };
        let mut child = result.with_context(|| format!("cannot start the {name} ({program})"))?;
        if party.recipe_directory.is_none() {
            leftovers::add_other(child.id());
        }
        let group = (party.scope == ProcessScope::Tree).then(|| ControlGroup::around(&child)).flatten();
        if let Some((mut stdin, options)) = child.stdin.take().zip(party.options.as_ref()) {
            // Ignore a write error, because a process that cannot read all of its options reports this and exits.
            let _ = stdin.write_all(options.to_json().as_bytes());
        }
        let stdout = child.stdout.take().expect("it was piped");
        let role = party.role;
        let (reading, output_end) = channel();
        let read = move || {
            read_events(BufReader::new(stdout), transcript, role, &events);
            drop(reading);
        };
        std::thread::Builder::new().name(format!("{name} stdout")).spawn(read).context("cannot start a thread")?;
        Ok(Self {
            role,
            name,
            command: std::iter::once(program).chain(party.arguments).chain(words).collect(),
            child,
            output_end,
            stderr: party.stderr,
            scope: party.scope,
            group,
            usage: ProcessUsage::default(),
            usage_before: None,
            memory: MemoryCurve::default(),
            usage_by_second: UsageSampler::default(),
            sampled_at: Instant::now(),
            sample_interval: SAMPLE_INTERVAL,
            sampling_stopped: false,
            ended: None,
            recipe_directory: party.recipe_directory,
            _short_link: party.short_link,
            interrupt: *interrupt,
            left_behind: Vec::new(),
            survivors: Vec::new(),
            out_of_memory_kills: host_sampler::out_of_memory_kills(),
        })
    }

    /// Samples the process's usage at intervals, and reports whether the process has exited. The last sample is taken
    /// after the exit but before the process is reaped. Until it is reaped, `/proc` still has the figures of the
    /// process, and no other process can get its ID.
    pub(super) fn poll(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_some() {
            return Ok(self.ended);
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let has_ended = waitid(WaitId::Pid(self.pid()), options).context("cannot wait for a party")?.is_some();
        if !self.sampling_stopped && (has_ended || self.sampled_at.elapsed() >= self.sample_interval) {
            self.sample();
        }
        if has_ended {
            self.left_behind = self.await_descendants();
            self.survivors = self.group_members();
            self.ended = Some(self.reap().context("cannot wait for a party")?);
        }
        Ok(self.ended)
    }

    /// Waits for a limited time until the other processes of a recipe's server have exited as well. Returns the names
    /// of processes that are still running. The user's second signal ends the wait, so that the bench can kill these
    /// processes before a third signal ends the bench itself.
    fn await_descendants(&self) -> Vec<String> {
        let Some(directory) = &self.recipe_directory else { return Vec::new() };
        let limit = Instant::now() + DESCENDANTS_TIMEOUT;
        loop {
            let processes = leftovers::processes_in(directory);
            let is_over = Instant::now() > limit || self.interrupt.requested() >= StopRequest::StopNow;
            if processes.is_empty() || is_over {
                return processes.into_iter().map(|process| process_name(&process.name, process.pid)).collect();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the names of all processes in the control group except the process that the bench itself started.
    fn group_members(&self) -> Vec<String> {
        let pids = self.group.as_ref().map(ControlGroup::processes).unwrap_or_default();
        let others = pids.into_iter().filter(|pid| *pid != self.child.id());
        let named = |pid| Some(process_name(&fs::read_to_string(format!("/proc/{pid}/comm")).ok()?, pid));
        others.filter_map(named).collect()
    }

    /// Returns an error that names the processes that the party left running, or `None` if there were none. The bench
    /// has killed these processes.
    pub(super) fn left_behind(&self) -> Option<anyhow::Error> {
        let names = Some(&self.left_behind).filter(|names| !names.is_empty())?;
        Some(anyhow!("the {} ended and left processes behind: {}", self.name, first_names(names)))
    }

    pub(super) fn sample(&mut self) -> ProcessUsage {
        self.sampled_at = Instant::now();
        let pid = self.child.id();
        let usage = match self.scope {
            ProcessScope::Process => process_usage::of(pid),
            ProcessScope::Tree => tree::usage(pid),
        };
        let cpu_s = self.group.as_ref().and_then(ControlGroup::cpu_s);
        let usage = usage.map(|usage| match cpu_s {
            Some((user_s, sys_s)) => ProcessUsage { user_s, sys_s, ..usage },
            None => usage,
        });
        if let Some(usage) = usage {
            self.usage = self.usage.followed_by(usage);
            self.memory.add(usage.rss_bytes);
            self.usage_by_second.add(outputs::record_time(), usage.user_s + usage.sys_s, usage.rss_bytes);
        }
        self.sample_interval = SAMPLE_INTERVAL.max(self.sampled_at.elapsed() * SAMPLING_SHARE);
        self.usage
    }

    /// Begins to count the process's CPU time and other usage for a run. Earlier usage does not count for this run.
    pub(super) fn begin_run(&mut self) {
        self.memory = MemoryCurve::default();
        self.usage_by_second = UsageSampler::default();
        self.sampling_stopped = false;
        self.usage_before = Some(self.sample());
    }

    /// Ends the sampling of the process's usage. The caller does this when the measured work is done, so that the CPU
    /// time of the shutdown is not counted.
    pub(super) fn stop_sampling(&mut self) {
        self.sampling_stopped = true;
    }

    /// Returns true until `poll` or `kill` has found that the process has exited.
    pub(super) fn is_running(&self) -> bool {
        self.ended.is_none()
    }

    /// Asks the process to write its files and exit.
    pub(super) fn terminate(&self) {
        if self.ended.is_none() {
            // Ignore an error, because the process may have exited meanwhile. No other process can have its ID yet,
            // because nobody has waited for it.
            let _ = kill_process(self.pid(), Signal::TERM);
        }
    }

    /// Sends SIGTERM to the children of the process, but not to the process itself. This stops strace, which exits when
    /// the program that it traces has exited.
    pub(super) fn terminate_children(&self) {
        if self.ended.is_none() {
            for pid in tree::children(self.child.id()).into_iter().filter_map(as_pid) {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
    }

    /// Returns an error if the process could not do its work or was killed by a signal. With the statuses 1, 3 and 130,
    /// the process only reports its own verdict on the run. These are no errors, because the bench reaches a verdict
    /// itself.
    pub(super) fn check_exit(&self, status: ExitStatus) -> Result<()> {
        let name = self.name;
        match status.code() {
            Some(0 | 1 | 3 | 130) => Ok(()),
            Some(code) => {
                let line = self.last_stderr_line(&format!("it exited with {code}"));
                // Add no prefix to an error of the source, because its text already names the server.
                let prefix = if name == "source" { String::new() } else { format!("the {name} could not run: ") };
                bail!("{prefix}{line}")
            }
            None => bail!("the {name} died ({status}): {}", self.last_stderr_line("no output")),
        }
    }

    /// Makes the error for a process that exited before it was ready. If the user's signal ended the process, the error
    /// is `Interrupted`.
    pub(super) fn start_error(&self, status: ExitStatus, interrupt: &Interrupt) -> anyhow::Error {
        if interrupt.has_ended(status) {
            return Interrupted::BEFORE_LOAD.into();
        }
        if let Some(daemon) = self.daemon(status) {
            return anyhow!("the {} {daemon}", self.name);
        }
        let error = || anyhow!("the {} ended before it listened: {}", self.name, self.last_stderr_line("no output"));
        self.check_exit(status).err().unwrap_or_else(error)
    }

    /// Returns an error text if the command exited successfully but left processes running, that is, if the server
    /// became a daemon.
    fn daemon(&self, status: ExitStatus) -> Option<String> {
        let names = if self.left_behind.is_empty() { &self.survivors } else { &self.left_behind };
        let is_daemon = status.success() && !names.is_empty();
        is_daemon.then(|| {
            format!(
                "{BECAME_DAEMON}: its command ended and left {} behind; the command must stay in the foreground",
                first_names(names)
            )
        })
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        if self.ended.is_none() {
            self.ended = Some(self.reap().context("cannot wait for a party")?);
        }
        Ok(())
    }

    /// Describes the death of the process, which is an exit that nobody asked for. `at_s` counts from the beginning of
    /// the load.
    pub(super) fn death(&self, status: ExitStatus, at_s: f64) -> Death {
        let said = self.last_stderr_line("");
        let is_killed = status.signal() == Some(Signal::KILL.as_raw());
        let out_of_memory = said.starts_with(ALLOCATION_FAILED)
            || is_killed && host_sampler::out_of_memory_kills() > self.out_of_memory_kills;
        let how = self.daemon(status).map_or_else(|| describe_exit(status), |daemon| format!("it {daemon}"));
        Death { at_s, how, said, out_of_memory }
    }

    /// Returns the line of standard error that best explains why the process exited: a line about a failed allocation,
    /// or else the last line. Returns `otherwise` if there is neither.
    pub(super) fn last_stderr_line(&self, otherwise: &str) -> String {
        let output = fs::read(&self.stderr).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        // The line about a failed allocation need not be the last one, because Rust may write notes on backtraces after
        // it.
        if let Some(line) = output.lines().find(|line| line.starts_with(ALLOCATION_FAILED)) {
            return line.to_owned();
        }
        // Skip the line that says where a process listens or which mailboxes it watches, because it is no error
        // message.
        let is_start = |line: &str| line.contains(": listening on ") || line.starts_with("mailrun sink: watching ");
        let is_telling = |line: &&str| !line.is_empty() && !is_start(line);
        let line = output.lines().rev().map(str::trim).find(is_telling);
        match line {
            Some(line) => line.strip_prefix("mailrun: ").unwrap_or(line).to_owned(),
            // If the disk is full, assume that this stopped the process and also kept it from writing an error message.
            None if is_full(&self.stderr) => format!("No space left on device: {}", self.stderr.display()),
            None => otherwise.to_owned(),
        }
    }

    pub(super) fn load(&self) -> Option<PartyLoad> {
        party_load(self.name, &self.usage_by_second)
    }

    pub(super) fn observation(&self) -> PartyObservation {
        PartyObservation {
            role: self.role,
            command: self.command.clone(),
            usage: self.usage_before.map_or(self.usage, |before| self.usage.since(before)),
            memory: self.memory.clone(),
            usage_by_second: self.usage_by_second.clone(),
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Kills the process, if it still runs, and all processes that belong to it. Then gets the exit status of the
    /// process, and waits until the rest of its output has been read.
    fn reap(&mut self) -> std::io::Result<ExitStatus> {
        // Kill surviving children as well, because they would keep the output pipe open. The signals cannot hit a
        // foreign process, because the kernel reuses the IDs of the process and its group only after the wait below.
        if self.scope == ProcessScope::Tree {
            // Kill each process of the tree separately, because some may have left the process group that is killed
            // next.
            for pid in tree::members(self.child.id()).into_iter().filter_map(|member| as_pid(member.pid)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = kill_process(self.pid(), Signal::KILL);
        if let Some(directory) = &self.recipe_directory {
            leftovers::kill_in(directory);
        }
        // Kill the control group as well, because it may still contain daemons, which have left the process tree and
        // the process group.
        self.group.iter().for_each(ControlGroup::kill);
        let status = self.child.wait()?;
        leftovers::remove_other(self.child.id());
        // Limit the wait for the end of the output, because a daemon that could not be killed would keep the pipe open
        // forever.
        let end = self.output_end.recv_timeout(OUTPUT_TIMEOUT);
        if end == Err(RecvTimeoutError::Timeout) && self.survivors.is_empty() {
            self.survivors.push("a process with the same output".to_owned());
        }
        Ok(status)
    }
}

impl Drop for PartyProcess {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.reap();
        }
    }
}

/// Reports whether an exit status shows that a relay exited because the bench had asked it to stop. A program other
/// than mailrun may die of SIGTERM, or exit with status 143 after it, as shells and Java do. Postfix's master(8) kills
/// itself with SIGALRM if it has not stopped after 5 s.
pub(super) fn has_stopped(status: ExitStatus) -> bool {
    let is_by = |signal: Signal| status.signal() == Some(signal.as_raw());
    is_by(Signal::TERM) || is_by(Signal::ALARM) || status.code() == Some(SIGTERM_EXIT_CODE)
}

/// Describes an exit, such as `signal 9 (SIGKILL)` or `exit status 2`.
pub(super) fn describe_exit(status: ExitStatus) -> String {
    status.to_string().replacen(": ", " ", 1)
}

fn is_full(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|filesystem| filesystem.f_bavail == 0)
}

/// Formats the name and the ID of a process for a message, for example `exim4 (4711)`.
fn process_name(command: &str, pid: u32) -> String {
    format!("{} ({pid})", command.trim())
}

/// Lists processes for a message. Names only the first few of them, because a server that starts a process for each
/// message may leave a thousand processes behind.
fn first_names(names: &[String]) -> String {
    let more = match names.len().saturating_sub(MAX_LEFT_BEHIND) {
        0 => String::new(),
        more => format!(" and {} more", count(more as u64)),
    };
    format!("{}{more}", names[..names.len().min(MAX_LEFT_BEHIND)].join(", "))
}

fn as_pid(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

/// Reads the output of the process line by line until the process closes it. Writes each line to the transcript, and
/// sends each event in it to the bench.
fn read_events(stdout: impl BufRead, mut transcript: File, role: Role, events: &Sender<(Role, LiveEvent)>) {
    for line in stdout.split(b'\n').map_while(Result::ok) {
        // Ignore a failed write, because a full disk must not stop the run. If the disk is still full at the end, the
        // bench reports that it cannot write the record.
        let _ = transcript.write_all(&line).and_then(|()| transcript.write_all(b"\n"));
        if let Some(event) = LiveEvent::from_line(&String::from_utf8_lossy(&line)) {
            // Ignore an error, because a bench that no longer listens is already stopping the process.
            let _ = events.send((role, event));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    struct ScriptedParty {
        process: PartyProcess,
        events: Receiver<(Role, LiveEvent)>,
        place: TempDir,
    }

    fn shell(script: &str) -> ScriptedParty {
        shell_on(script, None)
    }

    fn shell_on(script: &str, cores: Option<u32>) -> ScriptedParty {
        let place = tempfile::tempdir().expect("a directory");
        let party = PartyCommand {
            role: Role::Sink,
            name: "sink",
            program: "/bin/sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            options: None,
            environment: Vec::new(),
            recipe_directory: None,
            short_link: None,
            scope: ProcessScope::Process,
            group_leader: GroupLeader::Bench,
            cores,
            cpus: None,
            stdout: place.path().join("sink.stdout"),
            stderr: place.path().join("sink.stderr"),
        };
        let (sender, events) = channel();
        let interrupt = Interrupt::watch().expect("watched");
        ScriptedParty { process: PartyProcess::start(party, sender, &interrupt).expect("started"), events, place }
    }

    fn wait(process: &mut PartyProcess) -> ExitStatus {
        let limit = Instant::now() + Duration::from_secs(20);
        while Instant::now() < limit {
            if let Some(status) = process.poll().expect("polled") {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it did not end in time");
    }

    #[test]
    fn it_runs_on_as_many_processors_as_it_is_given() {
        let mut shell = shell_on("grep Cpus_allowed_list /proc/self/status", Some(1));
        let status = wait(&mut shell.process);
        assert!(shell.process.check_exit(status).is_ok());
        let kept = fs::read_to_string(shell.place.path().join("sink.stdout")).expect("kept");
        let list = kept.strip_prefix("Cpus_allowed_list:").expect("the list").trim();
        assert!(list.parse::<u32>().is_ok(), "{kept}");
    }

    #[test]
    fn its_lines_become_events_and_are_kept() {
        let mut shell = shell(r#"echo '{"event":"done"}'; echo chatter"#);
        let status = wait(&mut shell.process);
        assert!(shell.process.check_exit(status).is_ok());
        assert_eq!(shell.events.try_iter().collect::<Vec<_>>(), [(Role::Sink, LiveEvent::Done)]);
        let kept = fs::read_to_string(shell.place.path().join("sink.stdout")).expect("kept");
        assert_eq!(kept, "{\"event\":\"done\"}\nchatter\n");
    }

    #[test]
    fn a_daemon_that_keeps_its_output_open_does_not_hold_up_the_bench() {
        // The bench kills the process group of this sink, but in this test the daemon must survive. So wait until the
        // daemon has left the group for a session of its own (field 6 of its stat file).
        let script = "setsid sleep 600 & until [ \"$(cut -d' ' -f6 /proc/$!/stat)\" = $! ]; do :; done; echo $!";
        let mut shell = shell(script);
        let status = wait(&mut shell.process);
        let pid = fs::read_to_string(shell.place.path().join("sink.stdout")).expect("kept");
        let daemon = as_pid(pid.trim().parse().expect("its ID"));
        kill_process(daemon.expect("not 0"), Signal::KILL).expect("it runs");
        let how = shell.process.death(status, 1.0).how;
        assert!(how.starts_with("it became a daemon: ") && how.contains(" a process with the same output "), "{how}");
    }

    #[test]
    fn its_last_words_explain_its_failure() {
        let mut shell = shell("echo warning >&2; echo 'mailrun: cannot listen on 127.0.0.1:1' >&2; exit 2");
        let status = wait(&mut shell.process);
        let error = shell.process.check_exit(status).expect_err("it failed");
        assert_eq!(error.to_string(), "the sink could not run: cannot listen on 127.0.0.1:1");
    }

    #[test]
    fn a_party_killed_by_a_stranger_is_said_to_have_died() {
        let mut shell = shell("kill -9 $$");
        let status = wait(&mut shell.process);
        let error = shell.process.check_exit(status).expect_err("it died").to_string();
        assert!(error.starts_with("the sink died (signal: 9"), "{error}");
    }

    #[test]
    fn a_party_without_memory_is_no_party_that_was_killed() {
        let script = "echo 'memory allocation of 24 bytes failed' >&2; echo 'note: run with `RUST_BACKTRACE=1`' >&2";
        let mut shell = shell(&format!("{script}; kill -6 $$"));
        let status = wait(&mut shell.process);
        let death = shell.process.death(status, 1.0);
        assert_eq!((death.said.as_str(), death.out_of_memory), ("memory allocation of 24 bytes failed", true));
        shell.process.out_of_memory_kills = Some(0);
        let killed = ExitStatus::from_raw(9);
        fs::write(&shell.process.stderr, "").expect("written");
        let has_killed = host_sampler::out_of_memory_kills() > Some(0);
        assert_eq!(shell.process.death(killed, 1.0).out_of_memory, has_killed);
        shell.process.out_of_memory_kills = None;
        assert!(!shell.process.death(status, 1.0).out_of_memory, "another signal");
    }

    #[test]
    fn its_processor_time_is_complete_though_it_has_ended() {
        // `poll` must read the CPU time after the process has exited and before it is reaped. An earlier value would be
        // incomplete.
        let mut shell = shell("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done");
        wait(&mut shell.process);
        let usage = shell.process.observation().usage;
        assert!(usage.user_s + usage.sys_s > 0.0, "{usage:?}");
    }

    #[test]
    fn a_process_out_of_scope_is_killed() {
        let shell = shell("sleep 600 & wait");
        let pid = shell.process.child.id();
        drop(shell.process);
        assert!(process_usage::of(pid).is_none());
    }

    #[test]
    fn it_is_asked_before_it_is_killed() {
        let script = r#"trap 'echo "{\"event\":\"done\"}"; exit 0' TERM
            echo '{"event":"listening","smtp":[],"http":null}'
            while :; do sleep 0.05; done"#;
        let mut shell = shell(script);
        let listening = shell.events.recv_timeout(Duration::from_secs(20)).expect("it listens");
        assert!(matches!(listening, (Role::Sink, LiveEvent::Listening { .. })));
        shell.process.terminate();
        let status = wait(&mut shell.process);
        assert_eq!(status.code(), Some(0));
        assert_eq!(shell.events.try_iter().last(), Some((Role::Sink, LiveEvent::Done)));
    }
}
