//! Starts the program's own processes for tests. They listen on free ports, and are killed at the latest when the test
//! ends.
pub(crate) use crate::skipped::skip;
use mailrun_measurement::record::{LedgerRow, Outcome, Record, StageRow};
use mailrun_measurement::{Phase, Stage};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, kill_process_group, prlimit};
use serde_json::Value;
use std::fmt::Debug;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Maximum length of a wait, long enough for a slow machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);

/// Number of attempts at a measurement, because a busy machine may spoil several in a row.
const LOOKS: u32 = 12;

pub(crate) const MAILRUN: &str = env!("CARGO_BIN_EXE_mailrun");

/// Calls `look` until it returns a value. Fails after [`LIMIT`].
pub(crate) fn wait_until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_within(LIMIT, what, look)
}

pub(crate) fn wait_within<T>(longest: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(began.elapsed() < longest, "waited {longest:?} for {what}");
        // Call `look` less often as time passes, because it may start a process or read a large file.
        thread::sleep((began.elapsed() / 20).clamp(Duration::from_millis(5), Duration::from_millis(100)));
    }
}

/// Repeats a measurement until its result is right, because a busy or stalled machine can spoil single measurements.
/// Fails after [`LOOKS`] attempts.
pub(crate) fn undisturbed<T: Debug>(mut look: impl FnMut() -> T, is_right: impl Fn(&T) -> bool) -> T {
    let mut seen = look();
    for _ in 1..LOOKS {
        if is_right(&seen) {
            break;
        }
        seen = look();
    }
    assert!(is_right(&seen), "not once in {LOOKS} looks, the last: {seen:?}");
    seen
}

/// A child process whose output goes to files. It is killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    place: TempDir,
}

#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit status. `None` if a signal ended the process.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Process {
    pub(crate) fn start(program: &str, words: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), program, words)
    }

    /// Starts a program with its standard error redirected to `stderr`.
    pub(crate) fn start_saying(program: &str, words: &[&str], stderr: Stdio) -> Self {
        Self::spawn(tempfile::tempdir().unwrap(), program, words, stderr)
    }

    fn start_in(place: TempDir, program: &str, words: &[&str]) -> Self {
        let stderr = File::create(place.path().join("stderr")).unwrap();
        Self::spawn(place, program, words, stderr.into())
    }

    fn spawn(place: TempDir, program: &str, words: &[&str], stderr: Stdio) -> Self {
        let child = Command::new(program)
            .args(words)
            .current_dir(place.path())
            .env_remove("MAILRUN_ALLOW_PUBLIC")
            .env_remove("GITHUB_ACTIONS")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(File::create(place.path().join("stdout")).unwrap())
            .stderr(stderr)
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        Self { child, place }
    }

    pub(crate) fn said(&self) -> String {
        self.file("stdout")
    }

    pub(crate) fn complained(&self) -> String {
        self.file("stderr")
    }

    fn file(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.place.path().join(name)).unwrap_or_default()).into_owned()
    }

    pub(crate) fn threads(&self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok()).collect()
    }

    /// Number of open descriptors. Threads may have separate tables, so this is the number in the
    /// fullest table.
    pub(crate) fn descriptors(&self) -> usize {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let open = |task: fs::DirEntry| fs::read_dir(task.path().join("fd")).map_or(0, Iterator::count);
        tasks.map(open).max().unwrap_or_default()
    }

    /// Limits the number of descriptors from now on. Open descriptors stay open. Returns the former limit.
    pub(crate) fn limit_descriptors(&self, most: u64) -> u64 {
        let limits = fs::read_to_string(format!("/proc/{}/limits", self.child.id())).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let limit = Rlimit { current: Some(most), maximum: Some(numbers(line)[1]) };
        prlimit(Some(self.pid()), Resource::Nofile, limit).unwrap().current.unwrap()
    }

    pub(crate) fn terminate(&self) {
        kill_process(self.pid(), Signal::TERM).unwrap();
    }

    /// Stops the process until `resume`.
    pub(crate) fn suspend(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
    }

    pub(crate) fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    /// Sends SIGHUP, at which a server reads its configuration again.
    pub(crate) fn hang_up(&self) {
        kill_process(self.pid(), Signal::HUP).unwrap();
    }

    /// Sends SIGINT to the process group, as Ctrl-C on a terminal does.
    pub(crate) fn interrupt_group(&self) {
        kill_process_group(self.pid(), Signal::INT).unwrap();
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills with SIGKILL the child whose first argument is `word`.
    pub(crate) fn kill_child(&self, word: &str) {
        self.signal_child(word, Signal::KILL);
    }

    pub(crate) fn signal_child(&self, word: &str, signal: Signal) {
        let parent = format!("PPid:\t{}", self.child.id());
        let is_meant = |pid: &str| {
            let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
            file("status").lines().any(|line| line == parent) && file("cmdline").split('\0').nth(1) == Some(word)
        };
        let names = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let pid = names.filter(|name| name.parse::<i32>().is_ok()).find(|pid| is_meant(pid));
        let pid = pid.unwrap_or_else(|| panic!("no child {word}")).parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Bit mask of the signals that were sent to the process and not yet handled.
    pub(crate) fn pending_signals(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        pending.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap())
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Largest resident memory of the process so far (`VmHWM`).
    pub(crate) fn peak_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        numbers(line)[0] << 10
    }

    pub(crate) fn finish(self) -> Ended {
        self.finish_within(LIMIT)
    }

    pub(crate) fn finish_within(mut self, longest: Duration) -> Ended {
        let limit = Instant::now() + longest;
        // Check the limit in the closure, and not by `wait_within`, so that the error includes the process's output.
        let status = wait_within(2 * longest, "a process to end", || {
            let status = self.child.try_wait().unwrap();
            let is_late = status.is_none() && Instant::now() >= limit;
            assert!(!is_late, "waited {longest:?} for a process to end: {}{}", self.said(), self.file("stderr"));
            status
        });
        Ended { code: status.code(), out: self.said(), err: self.file("stderr") }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ignore errors, because the process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn run(program: &str, words: &[&str]) -> Ended {
    Process::start(program, words).finish()
}

pub(crate) fn mailrun(words: &[&str]) -> Ended {
    run(MAILRUN, words)
}

#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) process: Process,
    pub(crate) smtp: SocketAddr,
    http: String,
    json: PathBuf,
}

/// Counts of all mail that a sink took, including mail of other runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Took {
    pub(crate) messages: u64,
    pub(crate) recipients: u64,
    pub(crate) bytes: u64,
    pub(crate) connections: u64,
}

impl Sink {
    /// Starts a sink on a port that no other test gets, because a source may still send to the port after the sink has
    /// ended.
    pub(crate) fn start(words: &[&str]) -> Self {
        Self::start_at(&format!("127.0.0.1:{}", low_port()), words)
    }

    pub(crate) fn start_at(listen: &str, words: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let json = place.path().join("sink.json");
        let own = ["sink", "--listen", listen, "--http", "127.0.0.1:0", "--live", "json", "--json"];
        let words = [own.as_slice(), &[json.to_str().unwrap()], words].concat();
        let process = Process::start_in(place, MAILRUN, &words);
        let listening: Value = wait_until("the sink to listen", || {
            let said = process.said();
            said.lines().next().filter(|_| said.contains('\n')).map(|line| serde_json::from_str(line).unwrap())
        });
        let smtp = listening["smtp"][0].as_str().unwrap().parse().unwrap();
        let http = format!("http://{}", listening["http"].as_str().unwrap());
        Self { process, smtp, http, json }
    }

    /// Address to which clients send mail, as HOST:PORT.
    pub(crate) fn address(&self) -> String {
        self.smtp.to_string()
    }

    /// URL of the sink's HTTP server, which answers questions about its status.
    pub(crate) fn url(&self) -> &str {
        &self.http
    }

    pub(crate) fn ask(&self, path: &str) -> Value {
        let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
        let text = agent.get(format!("{}{path}", self.http)).call().unwrap().body_mut().read_to_string().unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Ends the sink with SIGTERM, and returns its record.
    pub(crate) fn stop(self) -> Record {
        self.process.terminate();
        self.end()
    }

    /// Waits until the sink ends by itself, and returns its record.
    pub(crate) fn end(self) -> Record {
        let Self { process, json, .. } = self;
        // Read the record first: its directory is deleted with the process.
        wait_until("the sink to say that it is done", || process.said().contains("\"done\"").then_some(()));
        let record = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
        let ended = process.finish();
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        record
    }

    pub(crate) fn took(self) -> Took {
        took(&self.stop())
    }
}

/// Counts of all mail that a sink took, parsed from the sentence in its record that begins with "In all".
pub(crate) fn took(record: &Record) -> Took {
    let sentence = record.verdict.reasons.iter().find(|reason| reason.starts_with("In all ")).unwrap();
    let numbers = numbers(&sentence.replace(',', ""));
    Took { messages: numbers[0], recipients: numbers[1], bytes: numbers[2], connections: numbers[3] }
}

pub(crate) fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

pub(crate) struct SourceRun {
    pub(crate) ended: Ended,
    pub(crate) record: Record,
}

pub(crate) fn source(to: &str, words: &[&str]) -> SourceRun {
    let place = tempfile::tempdir().unwrap();
    let json = place.path().join("source.json");
    // The test servers count connections, so the source must not open one for a preflight.
    let own = ["source", "--no-preflight", to, "--json", json.to_str().unwrap()];
    let ended = mailrun(&[&own, words].concat());
    let text = fs::read_to_string(json).unwrap_or_else(|_| panic!("no record: {ended:?}"));
    SourceRun { ended, record: serde_json::from_str(&text).unwrap() }
}

pub(crate) struct Bench {
    pub(crate) process: Process,
    out: TempDir,
}

#[derive(Debug)]
pub(crate) struct BenchRun {
    pub(crate) ended: Ended,
    out: TempDir,
}

impl Bench {
    /// Starts a bench whose source sends directly to the sink, unless `words` name a server or a relay.
    pub(crate) fn start(words: &[&str]) -> Self {
        let has_server = words.first().is_some_and(|word| !word.starts_with('-'));
        let more: &[&str] = match has_server {
            true => &["--no-preflight"],
            false if words.contains(&"--relay") => &[],
            false => &["--relay", "none"],
        };
        Self::start_as_typed(&[more, words].concat())
    }

    /// Starts the bench with exactly these words, without further arguments.
    pub(crate) fn start_as_typed(words: &[&str]) -> Self {
        Self::start_within("", words)
    }

    /// Starts the bench with an environment variable, given as `NAME=value`. An empty `variable` sets none.
    fn start_within(variable: &str, words: &[&str]) -> Self {
        let out = tempfile::tempdir().unwrap();
        // The relay may run as another user and needs access to this directory.
        fs::set_permissions(out.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let variable = Some(variable).filter(|variable| !variable.is_empty());
        let own = [MAILRUN, "bench", "--out", out.path().to_str().unwrap()];
        let words: Vec<&str> = variable.into_iter().chain(own).chain(words.iter().copied()).collect();
        Self { process: Process::start("env", &words), out }
    }

    /// Current content of a file in the run directory.
    pub(crate) fn file(&self, name: &str) -> String {
        fs::read_to_string(self.out.path().join(name)).unwrap_or_default()
    }

    pub(crate) fn await_accepted(&self) {
        wait_until("messages to be accepted", || {
            let said = self.file("source.stdout");
            let mut events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            events.find(|event| event["accepted"].as_u64().is_some_and(|accepted| accepted > 0))
        });
    }

    pub(crate) fn finish(self) -> BenchRun {
        BenchRun { ended: self.process.finish(), out: self.out }
    }
}

pub(crate) fn bench(words: &[&str]) -> BenchRun {
    Bench::start(words).finish()
}

/// Runs a bench from source to sink with an environment variable, given as `NAME=value`.
pub(crate) fn bench_within(variable: &str, words: &[&str]) -> BenchRun {
    Bench::start_within(variable, &[&["--relay", "none"], words].concat()).finish()
}

pub(crate) fn bench_as_typed(words: &[&str]) -> BenchRun {
    Bench::start_as_typed(words).finish()
}

impl BenchRun {
    pub(crate) fn path(&self) -> &Path {
        self.out.path()
    }

    pub(crate) fn file(&self, name: &str) -> String {
        let path = self.out.path().join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}: {:?}", path.display(), self.ended))
    }

    pub(crate) fn file_bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.out.path().join(name)).unwrap_or_default()
    }

    pub(crate) fn record(&self) -> Record {
        serde_json::from_str(&self.file("run.json")).unwrap()
    }

    /// Asserts the exit status, and returns the record.
    pub(crate) fn record_of(&self, code: i32) -> Record {
        let record = self.record();
        assert!(ended_so(self.ended.code, code, &record), "{:?} {}{}", self.ended.code, self.ended.out, self.ended.err);
        record
    }
}

/// The known fates of a ledger: created, delivered, lost, duplicates, corrupt.
pub(crate) fn fates(ledger: &LedgerRow) -> [u64; 5] {
    [ledger.created, ledger.delivered, ledger.lost, ledger.duplicates, ledger.corrupt].map(Option::unwrap)
}

/// Reports whether a run ended with the status `expected`. If that is 0, a run that is INVALID counts as well, because
/// on a busy machine the generator may be the bottleneck.
pub(crate) fn ended_so(code: Option<i32>, expected: i32, record: &Record) -> bool {
    let is_invalid = record.verdict.outcome == Some(Outcome::Invalid);
    code == Some(expected) || (expected == 0 && code == Some(3) && is_invalid)
}

/// Reports whether a run is valid, or invalid only because the hypervisor took processor time.
pub(crate) fn may_be_believed(record: &Record) -> bool {
    record.verdict.valid || record.verdict.reasons.iter().any(|reason| reason.contains("(steal)"))
}

pub(crate) fn stage(record: &Record, name: Stage) -> &StageRow {
    record.stage(name).unwrap_or_else(|| panic!("no stage {name:?}"))
}

pub(crate) fn accepted(record: &Record) -> u64 {
    stage(record, Stage::Accepted).count
}

pub(crate) fn errors(record: &Record, phase: Phase, code: u16) -> u64 {
    record.errors.iter().filter(|row| (row.phase, row.code) == (phase, code)).map(|row| row.count).sum()
}

/// A port below the kernel's ephemeral range (32768 and up), so that no outgoing connection takes it, and below the
/// range from which `bench` takes its relays' ports. A locked file reserves it for this test's process, even while
/// nothing listens there.
pub(crate) fn low_port() -> u16 {
    static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let directory = std::env::temp_dir().join("mailrun-test-ports");
    fs::create_dir_all(&directory).unwrap();
    let first = std::process::id().wrapping_mul(101) % 10_000;
    for port in (0..10_000).map(|next| 10_000 + ((first + next) % 10_000) as u16) {
        let file = File::create(directory.join(port.to_string())).unwrap();
        if file.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            HELD.lock().unwrap().push(file);
            return port;
        }
    }
    panic!("no port from 10000 to 19999 is free");
}

/// The path of a program. If it is not installed, returns `None` and adds it to the skipped programs that `make test`
/// lists.
pub(crate) fn peer(program: &str) -> Option<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = path.split(':').chain(["/usr/sbin", "/sbin"]).map(|directory| Path::new(directory).join(program));
    let found = found.into_iter().find(|path| path.is_file());
    if found.is_none() {
        skip(program, "it is not installed");
    }
    found.map(|path| path.to_str().unwrap().to_owned())
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
