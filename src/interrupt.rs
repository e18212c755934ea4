//! SIGINT and SIGTERM as a number to look at: the first asks for an end with a report, the second for
//! an end. SIGHUP as a wish to have files read again, for those who watch for it.
use anyhow::{Context, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What the user has asked for so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asked {
    /// To go on.
    Nothing,
    /// To stop and report.
    Stop,
    /// To stop.
    StopNow,
}

/// Counts the signals that arrive from its making on.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    count: Arc<AtomicU32>,
    is_termination: Arc<AtomicBool>,
}

impl Interrupt {
    /// Starts watching, for the rest of the process's life.
    pub(crate) fn watch() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
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
            _ => Asked::StopNow,
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
        count.fetch_add(1, Ordering::Relaxed);
    }
}
