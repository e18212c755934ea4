//! Measures the costs of a child process exactly: the CPU time and the peak memory that the kernel
//! reports to `wait4`, and the time from its start to its end.
//!
//! The peak memory comes from `wait4` or from `/proc/PID/status`. `wait4` already counts before `exec`, when the child
//! still has the memory of this process, so `wait4` never reports less memory than this process uses. If the child uses
//! less, its peak is the highest value in `/proc/PID/status`, which is read each time the bench waits for the child.
use anyhow::{Context, Result, anyhow, bail, ensure};
use mailrun_process::live::LiveEvent;
use mailrun_process::proc_stat::{self, ProcessStat};
use mailrun_process::process_usage;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, pidfd_open, waitid,
};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use wait4::Wait4;

/// Limits of the interval between two samples of a child's memory. Within these limits, the interval is a tenth of the
/// child's age, so that even a short run is sampled, and a long run is not disturbed.
const SAMPLE_INTERVAL_LIMITS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];
/// Number of bytes at the end of a child's standard error that are searched for the reason of a failure.
const MAX_STDERR_BYTES: u64 = 4096;
/// Time limits for a child to stop its own processes after a first and after a second SIGTERM. After the first SIGTERM,
/// the child still waits for its messages to arrive. After the second, it stops without waiting.
const OWN_PROCESSES_TIMEOUTS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(20)];

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Costs {
    pub(crate) user_s: f64,
    pub(crate) sys_s: f64,
    pub(crate) elapsed_s: f64,
    pub(crate) max_rss_bytes: Option<u64>,
    /// Sum of minor and major page faults.
    pub(crate) faults: Option<u64>,
    /// Sum of the bytes that were read from storage and written to storage.
    pub(crate) storage_bytes: Option<u64>,
}

impl Costs {
    pub(crate) fn cpu_s(&self) -> f64 {
        self.user_s + self.sys_s
    }
}

/// A child process in a process group of its own, so that Ctrl-C at the terminal does not reach it.
/// The child is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct TimedChild {
    child: Child,
    pidfd: OwnedFd,
    started_at: Instant,
    /// Peak memory of this process when the child started, which `wait4` counts for the child as well, because the
    /// child begins as a copy. Only a higher value from `wait4` is the child's own peak.
    min_peak_bytes: u64,
    sampled_peak_bytes: Option<u64>,
    stderr: File,
    /// Set if the child has processes outside its group, which only the child itself can stop.
    has_own_processes: bool,
    is_reaped: bool,
}

impl TimedChild {
    /// Starts the child, whose standard error goes to a temporary file. Its standard output goes where `command` says.
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let stderr = tempfile::tempfile().context("cannot create a temporary file")?;
        command.stdin(Stdio::null()).stderr(stderr.try_clone()?).process_group(0);
        let program = command.get_program().to_string_lossy().into_owned();
        let started_at = Instant::now();
        let child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        let end = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let end = end.context("cannot observe a process").inspect_err(|_| kill(&child))?;
        let floor_bytes = process_usage::own().max_rss_bytes.unwrap_or_default();
        let mut timed = Self {
            child,
            pidfd: end,
            started_at,
            min_peak_bytes: floor_bytes,
            sampled_peak_bytes: None,
            stderr,
            has_own_processes: false,
            is_reaped: false,
        };
        timed.sample_memory();
        Ok(timed)
    }

    /// Makes `kill_group` and `drop` send SIGTERM first, and give the child time to stop processes that it has started
    /// in other groups. `mailrun bench` starts its source, server and sink in this way.
    pub(crate) fn with_own_processes(mut self) -> Self {
        self.has_own_processes = true;
        self
    }

    /// Waits up to 10 ms for the child to exit. Returns true if the child has exited.
    pub(crate) fn poll_exit(&mut self) -> Result<bool> {
        let [min, max] = SAMPLE_INTERVAL_LIMITS;
        let wait = (self.age() / 10).clamp(min, max);
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&timeout)) {
            // Treat a timeout and an interrupting signal alike, because the bench handles signals elsewhere.
            Ok(0) | Err(rustix::io::Errno::INTR) => {
                self.sample_memory();
                Ok(false)
            }
            Ok(_) => Ok(true),
            Err(error) => Err(error).context("cannot wait for a process"),
        }
    }

    /// Starts one of our own programs, which writes its events into the file `output`, and waits until the program is
    /// ready. `look` gets each event, and must return `Some` for the event that reports that the program is ready.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started, exits first, or is not ready within
    /// `limit`.
    pub(crate) fn start_reporting<T>(
        mut command: Command,
        output: &Path,
        name: &str,
        limit: Duration,
        look: impl Fn(LiveEvent) -> Option<T>,
    ) -> Result<(Self, T)> {
        let file = File::create(output).with_context(|| format!("cannot write {}", output.display()))?;
        command.args(["--live", "json"]).stdout(file);
        let mut process = Self::start(command)?;
        let sign = process.await_ready(name, limit, || {
            let text = fs::read_to_string(output).unwrap_or_default();
            text.lines().filter_map(LiveEvent::from_line).find_map(&look)
        })?;
        Ok((process, sign))
    }

    /// Waits until `look` finds a sign that the child is ready.
    ///
    /// # Errors
    /// Returns an error if the child exits first, or is not ready within `limit`.
    pub(crate) fn await_ready<T>(
        &mut self,
        name: &str,
        limit: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        loop {
            let has_ended = self.poll_exit()?;
            if let Some(sign) = look().filter(|_| !has_ended) {
                return Ok(sign);
            }
            if has_ended {
                bail!("{name} ended before it was ready: {}", self.last_words());
            }
            ensure!(self.age() < limit, "{name} was not ready within {} s", limit.as_secs());
        }
    }

    /// Returns an error if the child has exited. The error quotes the last line of its standard error.
    pub(crate) fn ensure_running(&mut self, name: &str) -> Result<()> {
        if self.poll_exit()? {
            bail!("{name} ended during the run: {}", self.last_words());
        }
        Ok(())
    }

    pub(crate) fn exit_error(&mut self, status: ExitStatus) -> anyhow::Error {
        anyhow!("it ended with {status}: {}", self.last_words())
    }

    pub(crate) fn kill_group(&mut self) {
        if self.is_reaped {
            return;
        }
        if self.has_own_processes {
            for limit in OWN_PROCESSES_TIMEOUTS {
                if self.await_exit(Duration::ZERO) {
                    break;
                }
                // Signal the whole group, because strace does not pass SIGTERM on to the bench.
                let _ = kill_process_group(Pid::from_child(&self.child), Signal::TERM);
                self.await_exit(limit);
            }
        }
        kill(&self.child);
    }

    fn await_exit(&mut self, limit: Duration) -> bool {
        let began = Instant::now();
        loop {
            match self.poll_exit() {
                Ok(false) if began.elapsed() < limit => {}
                ended => return ended.unwrap_or(false),
            }
        }
    }

    pub(crate) fn stderr_bytes(&self) -> u64 {
        self.stderr.metadata().map_or(0, |metadata| metadata.len())
    }

    pub(crate) fn age(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// Asks the child to exit with SIGTERM. When the child has exited or `limit` has passed, kills its whole process
    /// group. Returns the exit status, and the child's CPU time, memory and other costs.
    pub(crate) fn stop(mut self, limit: Duration) -> Result<(ExitStatus, Costs)> {
        // The process ID still belongs to the child, because nobody has waited for it yet.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        self.await_exit(limit);
        kill(&self.child);
        self.reap()
    }

    /// Waits until the child has exited. Returns its exit status and its costs, such as CPU time and peak memory.
    pub(crate) fn reap(&mut self) -> Result<(ExitStatus, Costs)> {
        // Wait without reaping the child, because `/proc` shows its page faults and bytes only until it is reaped.
        let _ = waitid(WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let faults = ProcessStat::of(self.child.id()).map(|stat| stat.faults);
        let storage_bytes = proc_stat::storage_bytes(self.child.id()).map(|(read, written)| read + written);
        let result = self.child.wait4().context("cannot wait for a process");
        let elapsed_s = self.started_at.elapsed().as_secs_f64();
        // Set `is_reaped` even if `wait4` failed. Otherwise, `drop` would kill the child's process group, whose ID may
        // belong to other processes by then.
        self.is_reaped = true;
        let exit = result?;
        let peak_bytes = exit.rusage.maxrss;
        Ok((
            exit.status,
            Costs {
                user_s: exit.rusage.utime.as_secs_f64(),
                sys_s: exit.rusage.stime.as_secs_f64(),
                elapsed_s,
                max_rss_bytes: if peak_bytes > self.min_peak_bytes {
                    Some(peak_bytes)
                } else {
                    self.sampled_peak_bytes
                },
                faults,
                storage_bytes,
            },
        ))
    }

    /// Returns the last line of the child's standard error, which usually explains a failure.
    fn last_words(&mut self) -> String {
        self.last_stderr_line().unwrap_or_else(|| "no output".to_owned())
    }

    fn last_stderr_line(&mut self) -> Option<String> {
        let length = self.stderr.metadata().ok()?.len();
        self.stderr.seek(SeekFrom::Start(length.saturating_sub(MAX_STDERR_BYTES))).ok()?;
        let mut text = Vec::new();
        Read::by_ref(&mut self.stderr).take(MAX_STDERR_BYTES).read_to_end(&mut text).ok()?;
        let text = String::from_utf8_lossy(&text);
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
    }

    fn sample_memory(&mut self) {
        let peak_bytes = process_usage::of(self.child.id()).and_then(|usage| usage.max_rss_bytes);
        self.sampled_peak_bytes = self.sampled_peak_bytes.max(peak_bytes);
    }
}

/// Kills the process group of a child that has not been waited for.
fn kill(child: &Child) {
    // Ignore the error, because the child may have exited by itself.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
}

impl Drop for TimedChild {
    fn drop(&mut self) {
        if !self.is_reaped {
            self.kill_group();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> TimedChild {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdout(Stdio::null());
        TimedChild::start(command).unwrap()
    }

    fn wait(timed: &mut TimedChild) -> (ExitStatus, Costs) {
        while !timed.poll_exit().unwrap() {
            assert!(timed.age() < Duration::from_secs(60));
        }
        timed.reap().unwrap()
    }

    #[test]
    fn work_and_waiting_are_told_apart() {
        let mut busy = shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done");
        let (status, costs) = wait(&mut busy);
        assert!(status.success() && costs.cpu_s() > 0.0 && costs.elapsed_s >= costs.cpu_s() * 0.9, "{costs:?}");
        assert!(costs.faults.is_some_and(|faults| faults > 10) && costs.storage_bytes.is_some(), "{costs:?}");
        let mut idle = shell("sleep 0.5");
        let (_, costs) = wait(&mut idle);
        assert!(costs.elapsed_s >= 0.5 && costs.cpu_s() < 0.25, "{costs:?}");
    }

    #[test]
    fn peak_memory_is_the_childs_own() {
        // A small shell needs less than 20 MiB, but this test's process needs more. A peak above 20 MiB would therefore
        // include the memory of the test's process. The string that awk makes must raise awk's peak to at least 64 MiB.
        let (_, small) = wait(&mut shell("sleep 0.1"));
        let small = small.max_rss_bytes.unwrap();
        assert!((100_000..20 << 20).contains(&small), "{small}");
        let (_, large) =
            wait(&mut shell("exec awk 'BEGIN { x = \"xxxxxxxx\"; while (length(x) < 67108864) x = x x }'"));
        assert!(large.max_rss_bytes.unwrap() >= 64 << 20, "{large:?}");
    }

    #[test]
    fn what_does_not_stop_is_killed() {
        let timed = shell("trap '' TERM; while :; do sleep 0.01; done");
        let (status, costs) = timed.stop(Duration::from_millis(100)).unwrap();
        assert!(!status.success() && costs.elapsed_s < 30.0, "{status} {costs:?}");
    }

    #[test]
    fn out_of_scope_it_is_gone() {
        let timed = shell("sleep 600 & wait");
        let pid = timed.child.id();
        drop(timed);
        assert!(process_usage::of(pid).is_none());
    }

    #[test]
    fn one_with_own_processes_can_stop_them() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("pid");
        let script = format!(
            "setsid sleep 600 & p=$!; trap 'kill $p; exit' TERM; echo $p >{0}.new; mv {0}.new {0}; wait",
            file.display()
        );
        let mut timed = shell(&script).with_own_processes();
        let pid = timed.await_ready("it", Duration::from_secs(60), || fs::read_to_string(&file).ok()).unwrap();
        drop(timed);
        let until = Instant::now() + Duration::from_secs(20);
        while process_usage::of(pid.trim().parse().unwrap()).is_some() {
            assert!(Instant::now() < until, "the process runs on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn one_that_ends_is_not_ready_and_says_why() {
        let mut timed = shell("echo why >&2; exit 3");
        let error = timed.await_ready("it", Duration::from_secs(60), || None::<()>).unwrap_err().to_string();
        assert_eq!(error, "it ended before it was ready: why");
        assert_eq!(timed.ensure_running("it").unwrap_err().to_string(), "it ended during the run: why");
        let mut timed = shell("sleep 600");
        assert_eq!(timed.await_ready("it", Duration::from_secs(60), || Some(7)).unwrap(), 7);
        let error = timed.await_ready("it", Duration::from_secs(0), || None::<()>).unwrap_err().to_string();
        assert_eq!(error, "it was not ready within 0 s");
    }

    #[test]
    fn its_last_words_are_kept() {
        let mut timed = shell("echo one >&2; echo two >&2; echo >&2; exit 3");
        let (status, _) = wait(&mut timed);
        assert_eq!((status.code(), timed.last_stderr_line().as_deref()), (Some(3), Some("two")));
        let mut timed = shell("exit 0");
        wait(&mut timed);
        assert_eq!(timed.last_stderr_line(), None);
    }
}
