//! Counts the signals SIGINT and SIGTERM. The first signal asks to stop with a report, the second to report immediately
//! what is known, and the third to stop without a report. SIGHUP, for example from a terminal that was closed, asks to
//! stop with a report as well. A process that watches SIGHUP with `SighupWatch` reads its files again instead.
use crate::reason::reason;
use anyhow::{Context, Result, anyhow};
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What this process has to do because of the signals that have arrived so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopRequest {
    /// No signal has arrived, so the run continues.
    Nothing,
    /// The first signal: stop the load, and report the results.
    Stop,
    /// The second signal: report what is known, without waiting for anything.
    StopNow,
    /// The third signal: exit without a report.
    Quit,
}

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time between the third signal and the exit that it forces. In this time, the process and its child processes can
/// still end by themselves.
const QUIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of file descriptors that a tokio runtime needs to watch for signals.
const RUNTIME_DESCRIPTORS: usize = 8;

/// Numbers of the signals by which a user ends a process: SIGHUP, SIGINT and SIGTERM.
const USER_SIGNALS: [i32; 3] = [1, 2, 15];

/// Maximum time for which this process waits for a signal that has already ended a related process, such as a child.
/// Ctrl-C at a terminal signals several processes, and may reach this process last.
const SHARED_SIGNAL_TIMEOUT: Duration = Duration::from_millis(500);

const SHARED_SIGNAL_POLL: Duration = Duration::from_millis(5);

/// The exit status of an interrupted command: 128 + SIGINT.
pub const INTERRUPTED_STATUS: u8 = 130;

/// Error of a command that the user has stopped before it could print a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted(pub(crate) &'static str);

impl Interrupted {
    pub const BEFORE_LOAD: Self = Self("interrupted before the first message");
    pub const BEFORE_REPORT: Self = Self("interrupted before the report");
    pub const WITHOUT_REPORT: Self = Self("interrupted three times: ended without a report");
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Counts the signals that ask this process to stop. Signals from before the creation of this value do not count.
#[derive(Clone, Copy, Debug)]
pub struct Interrupt {
    watch: &'static SignalWatch,
    signals_before: u32,
    terminations_before: u32,
}

/// Counts of the signals that the watching thread has received since it started.
#[derive(Debug, Default)]
struct SignalWatch {
    signals: AtomicU32,
    /// How many of the `signals` were SIGTERM or SIGHUP.
    terminations: AtomicU32,
}

/// The running watches of this process. The first counts SIGINT and SIGTERM, and the second counts SIGHUP as well. All
/// runs in the process share them, because the thread of a watch cannot be ended.
static WATCHES: Mutex<[Option<&SignalWatch>; 2]> = Mutex::new([None; 2]);

impl Interrupt {
    /// Starts to watch for SIGINT, SIGTERM and SIGHUP, until the process ends. If the process was started with SIGHUP
    /// ignored, for example by nohup, SIGHUP stays ignored.
    pub fn watch() -> Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self::watch_signals(!ignores_hangup(&status))
    }

    /// Starts to watch for SIGINT and SIGTERM, but not for SIGHUP, at which the caller reads its files again
    /// ([`SighupWatch`]).
    pub fn watch_without_hangup() -> Result<Self> {
        Self::watch_signals(false)
    }

    fn watch_signals(has_hangup: bool) -> Result<Self> {
        let mut watches = mailrun_lock::lock(&WATCHES);
        let place = &mut watches[usize::from(has_hangup)];
        let watch = match *place {
            Some(watch) => watch,
            None => place.insert(start_watch(has_hangup)?),
        };
        let [signals_before, terminations_before] =
            [&watch.signals, &watch.terminations].map(|count| count.load(Ordering::Relaxed));
        Ok(Self { watch, signals_before, terminations_before })
    }

    /// Returns what this process has to do because of the signals so far. Each further signal asks for a faster end, up
    /// to [`StopRequest::Quit`].
    pub fn requested(&self) -> StopRequest {
        match self.watch.signals.load(Ordering::Relaxed) - self.signals_before {
            0 => StopRequest::Nothing,
            1 => StopRequest::Stop,
            2 => StopRequest::StopNow,
            _ => StopRequest::Quit,
        }
    }

    /// Returns true if another process with the exit status `status` was ended by a user's signal that has also reached
    /// this process. This happens if both processes share a terminal or a control group, and the other process does not
    /// handle signals yet. Waits up to 500 ms, because the signal may reach this process a moment later.
    pub fn has_ended(&self, status: ExitStatus) -> bool {
        if !status.signal().is_some_and(|signal| USER_SIGNALS.contains(&signal)) {
            return false;
        }
        let limit = Instant::now() + SHARED_SIGNAL_TIMEOUT;
        while self.requested() == StopRequest::Nothing && Instant::now() < limit {
            std::thread::sleep(SHARED_SIGNAL_POLL);
        }
        self.requested() != StopRequest::Nothing
    }

    pub async fn wait_for(&self, min_request: StopRequest) {
        while self.requested() < min_request {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns true if SIGTERM or SIGHUP has arrived since this value was created.
    pub fn is_termination(&self) -> bool {
        self.watch.terminations.load(Ordering::Relaxed) > self.terminations_before
    }
}

fn start_watch(has_hangup: bool) -> Result<&'static SignalWatch> {
    check_descriptors()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot watch for signals")?;
    let signals = {
        let _context = runtime.enter();
        let listen = |kind| signal(kind).context("cannot watch for signals");
        WatchedSignals {
            interrupts: listen(SignalKind::interrupt())?,
            terminations: listen(SignalKind::terminate())?,
            hangups: has_hangup.then(|| listen(SignalKind::hangup())).transpose()?,
        }
    };
    let watch: &SignalWatch = Box::leak(Box::default());
    // Do not join this thread, because it runs until the process ends.
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || runtime.block_on(count_signals(signals, watch)))
        .context("cannot start a thread")?;
    Ok(watch)
}

struct WatchedSignals {
    interrupts: Signal,
    terminations: Signal,
    hangups: Option<Signal>,
}

/// Reports whether a process ignores SIGHUP, according to its `/proc/PID/status` (proc(5)).
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

/// Checks that enough file descriptors are free for a runtime. Without the descriptors for its
/// signals, tokio would panic.
fn check_descriptors() -> Result<()> {
    let sockets: io::Result<Vec<_>> = (0..RUNTIME_DESCRIPTORS / 2).map(|_| UnixStream::pair()).collect();
    sockets.map(drop).map_err(|error| anyhow!("cannot watch for signals: {}. Raise `ulimit -n`.", reason(&error)))
}

/// Records the arrival of SIGHUP, for a process that then reads its files again.
#[derive(Clone, Debug)]
pub struct SighupWatch(Arc<AtomicBool>);

impl SighupWatch {
    /// Starts to watch for SIGHUP until the process ends. From now on SIGHUP does not end the process.
    pub fn watch() -> Result<Self> {
        check_descriptors()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.context("cannot watch for signals")?;
        let mut hangups = {
            let _context = runtime.enter();
            signal(SignalKind::hangup()).context("cannot watch for signals")?
        };
        let watched = Self(Arc::default());
        let received = Arc::clone(&watched.0);
        let heed = async move {
            while hangups.recv().await.is_some() {
                received.store(true, Ordering::Relaxed);
            }
        };
        let thread = std::thread::Builder::new().name("hangups".to_owned()).spawn(move || runtime.block_on(heed));
        thread.context("cannot start a thread")?;
        Ok(watched)
    }

    /// Returns true if SIGHUP has arrived since the last call.
    pub fn take_received(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

async fn count_signals(signals: WatchedSignals, watch: &SignalWatch) {
    let WatchedSignals { mut interrupts, mut terminations, mut hangups } = signals;
    loop {
        let hangup = async {
            match &mut hangups {
                Some(hangups) => hangups.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupts.recv() => {}
            _ = terminations.recv() => {
                watch.terminations.fetch_add(1, Ordering::Relaxed);
            }
            _ = hangup => {
                watch.terminations.fetch_add(1, Ordering::Relaxed);
                // Closing a terminal may send SIGHUP twice, from the shell and from the kernel. A second counted signal
                // would cut the report short, so count SIGHUP only if no signal came before.
                watch.signals.fetch_max(1, Ordering::Relaxed);
                continue;
            }
        }
        let number = watch.signals.fetch_add(1, Ordering::Relaxed) + 1;
        if number >= 2 {
            // Leave the dashboard, because a user who interrupts twice wants the terminal back.
            crate::alternate_screen::leave();
        }
        if number == 3 {
            tokio::time::sleep(QUIT_TIMEOUT).await;
            crate::tell!("mailrun: {}", Interrupted::WITHOUT_REPORT);
            std::process::exit(INTERRUPTED_STATUS.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_thread_for_signals() {
        // Counting threads is reliable here, because each test runs in a process of its own.
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        let interrupts: Vec<Interrupt> = (0..5).map(|_| Interrupt::watch_without_hangup().unwrap()).collect();
        assert_eq!(threads(), before + 1);
        assert!(interrupts.iter().all(|interrupt| interrupt.requested() == StopRequest::Nothing));
    }

    #[test]
    fn nohup_is_recognized_by_the_ignored_signals() {
        for (status, expected) in [
            ("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n", true),
            ("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n", false),
            ("", false),
        ] {
            assert_eq!(ignores_hangup(status), expected, "{status}");
        }
    }
}
