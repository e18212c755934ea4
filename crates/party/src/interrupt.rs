//! SIGINT and SIGTERM as a number: the first asks for an end with a report, the second for an immediate report of what
//! is known, the third for an end without one. SIGHUP as a request to read files again, for those who watch for it.
use crate::reason::reason;
use anyhow::{Context, Result, anyhow};
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The user's requests so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopRequest {
    /// Continue.
    Nothing,
    /// Stop and report.
    Stop,
    /// Wait for nothing and report what is known.
    StopNow,
    /// Stop without a report.
    Quit,
}

/// Interval at which a task that waits for a signal looks for it.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time after the third signal for the rest of the process, and for processes that it started, to end by themselves.
const QUIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Descriptors of a runtime that watches for signals, at most.
const RUNTIME_DESCRIPTORS: usize = 8;

/// Signals that ask for an end: SIGINT and SIGTERM.
const USER_SIGNALS: [i32; 2] = [2, 15];

/// Time between a process's end by a signal and the count of the same signal here, at most.
const SHARED_SIGNAL_TIMEOUT: Duration = Duration::from_millis(500);

/// Interval of looking for it.
const SHARED_SIGNAL_POLL: Duration = Duration::from_millis(5);

/// The exit status of an interrupted command: 128 + SIGINT.
pub const INTERRUPTED_STATUS: u8 = 130;

/// Error of a command that the user ended before there was anything to report, or without a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted(pub(crate) &'static str);

impl Interrupted {
    /// The end came before there was anything to report.
    pub const BEFORE_LOAD: Self = Self("interrupted before the first message");
    /// The end came before there was a report.
    pub const BEFORE_REPORT: Self = Self("interrupted before the report");
    /// The end came with the third signal.
    pub const WITHOUT_REPORT: Self = Self("interrupted three times: ended without a report");
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Counts the signals that arrive after its creation.
#[derive(Clone, Debug)]
pub struct Interrupt {
    count: Arc<AtomicU32>,
    is_termination: Arc<AtomicBool>,
}

impl Interrupt {
    /// Starts watching, for the rest of the process's life.
    pub fn watch() -> Result<Self> {
        check_descriptors()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot watch for signals")?;
        let count = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&count);
        let is_termination = Arc::new(AtomicBool::new(false));
        let terminated = Arc::clone(&is_termination);
        let (interrupts, terminations) = {
            let _context = runtime.enter();
            let listen = |kind| signal(kind).context("cannot watch for signals");
            (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?)
        };
        // This thread sleeps in epoll; it ends with the process.
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || runtime.block_on(count_signals(interrupts, terminations, &counter, &terminated)))
            .context("cannot start a thread")?;
        Ok(Self { count, is_termination })
    }

    /// The user's request so far.
    pub fn requested(&self) -> StopRequest {
        match self.count.load(Ordering::Relaxed) {
            0 => StopRequest::Nothing,
            1 => StopRequest::Stop,
            2 => StopRequest::StopNow,
            _ => StopRequest::Quit,
        }
    }

    /// Reports whether the user's request ended a process that shares this one's terminal or control group: a signal for
    /// all of them ends one that does not take signals yet. This process may learn of it a moment later.
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

    /// Waits until the user has asked for that, or more.
    pub async fn wait_for(&self, least: StopRequest) {
        while self.requested() < least {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Reports whether SIGTERM has asked for it.
    pub fn is_termination(&self) -> bool {
        self.is_termination.load(Ordering::Relaxed)
    }
}

/// Makes sure that a runtime finds the descriptors that it needs: tokio panics without those of its signals.
fn check_descriptors() -> Result<()> {
    let opened: io::Result<Vec<_>> = (0..RUNTIME_DESCRIPTORS / 2).map(|_| UnixStream::pair()).collect();
    opened.map(drop).map_err(|error| anyhow!("cannot watch for signals: {}. Raise `ulimit -n`.", reason(&error)))
}

/// Notes SIGHUPs that arrive after its creation.
#[derive(Clone, Debug)]
pub struct SighupWatch(Arc<AtomicBool>);

impl SighupWatch {
    /// Starts watching, for the rest of the process's life: SIGHUP no longer ends the process.
    pub fn watch() -> Result<Self> {
        check_descriptors()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.context("cannot watch for signals")?;
        let mut hangups = {
            let _context = runtime.enter();
            signal(SignalKind::hangup()).context("cannot watch for signals")?
        };
        let watched = Self(Arc::default());
        let came = Arc::clone(&watched.0);
        let heed = async move {
            while hangups.recv().await.is_some() {
                came.store(true, Ordering::Relaxed);
            }
        };
        let thread = std::thread::Builder::new().name("hangups".to_owned()).spawn(move || runtime.block_on(heed));
        thread.context("cannot start a thread")?;
        Ok(watched)
    }

    /// Reports whether one came since the last call.
    pub fn take_received(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

async fn count_signals(mut interrupts: Signal, mut terminations: Signal, count: &AtomicU32, terminated: &AtomicBool) {
    loop {
        tokio::select! {
            _ = interrupts.recv() => {}
            _ = terminations.recv() => terminated.store(true, Ordering::Relaxed),
        }
        let number = count.fetch_add(1, Ordering::Relaxed) + 1;
        if number >= 2 {
            // Whoever asks twice has seen enough of a dashboard.
            crate::alternate_screen::leave();
        }
        if number == 3 {
            tokio::time::sleep(QUIT_TIMEOUT).await;
            crate::tell!("mailrun: {}", Interrupted::WITHOUT_REPORT);
            std::process::exit(INTERRUPTED_STATUS.into());
        }
    }
}
