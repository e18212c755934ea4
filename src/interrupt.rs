//! SIGINT and SIGTERM as a number to look at: the first asks for an end with a report, the second for a report of what is
//! known at once, the third for an end without one. SIGHUP as a wish to have files read again, for those who watch for it.
use anyhow::{Context, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What the user has asked for so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asked {
    /// To go on.
    Nothing,
    /// To stop and report.
    Stop,
    /// To wait for nothing and report what is known.
    StopNow,
    /// To stop without a report.
    Quit,
}

/// Between two looks of a task that waits for a signal.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// After the third signal, how long the rest of the process has to end by itself, and what it started with it.
const QUIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The exit status of an interrupted command: 128 + SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// The user ended what had nothing to report yet, or wanted no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted(pub(crate) &'static str);

impl Interrupted {
    /// Before there was anything to report.
    pub(crate) const BEFORE_LOAD: Self = Self("interrupted before the first message");
    /// After the third signal.
    pub(crate) const WITHOUT_REPORT: Self = Self("interrupted three times: ended without a report");
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Counts the signals that arrive from its making on.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    count: Arc<AtomicU32>,
    is_termination: Arc<AtomicBool>,
}

impl Interrupt {
    /// Starts watching, for the rest of the process's life.
    pub(crate) fn watch() -> Result<Self> {
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
        // A thread that sleeps in epoll; it ends with the process.
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || runtime.block_on(count_signals(interrupts, terminations, &counter, &terminated)))
            .context("cannot start a thread")?;
        Ok(Self { count, is_termination })
    }

    /// What has been asked for.
    pub(crate) fn asked(&self) -> Asked {
        match self.count.load(Ordering::Relaxed) {
            0 => Asked::Nothing,
            1 => Asked::Stop,
            2 => Asked::StopNow,
            _ => Asked::Quit,
        }
    }

    /// Waits until the user has asked for that, or more.
    pub(crate) async fn asked_for(&self, least: Asked) {
        while self.asked() < least {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Whether SIGTERM has asked for it.
    pub(crate) fn is_termination(&self) -> bool {
        self.is_termination.load(Ordering::Relaxed)
    }
}

/// SIGHUPs that arrive from its making on.
#[derive(Clone, Debug)]
pub(crate) struct Hangups(Arc<AtomicBool>);

impl Hangups {
    /// Starts watching, for the rest of the process's life: it no longer ends by them.
    pub(crate) fn watch() -> Result<Self> {
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

    /// Whether one came since this was asked last.
    pub(crate) fn came(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

async fn count_signals(mut interrupts: Signal, mut terminations: Signal, count: &AtomicU32, terminated: &AtomicBool) {
    loop {
        tokio::select! {
            _ = interrupts.recv() => {}
            _ = terminations.recv() => terminated.store(true, Ordering::Relaxed),
        }
        if count.fetch_add(1, Ordering::Relaxed) + 1 == 3 {
            tokio::time::sleep(QUIT_TIMEOUT).await;
            tell!("mailrun: {}", Interrupted::WITHOUT_REPORT);
            std::process::exit(INTERRUPTED.into());
        }
    }
}
