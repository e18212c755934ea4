//! Worker threads of the load. Each thread runs its share of the sessions in its own event loop, and counts the results
//! in its own tally.
use super::context::SourceContext;
use super::session_loop;
use super::worker_state::{SourceWorkerArgs, SourceWorkerState};
use crate::tally_exchange::TallyTransfer;
use anyhow::{Context as _, Result, bail};
use mailrun_measurement::SourceTally;
use mailrun_net::{FdTable, WorkerBuffers, WorkerOptions, clock};
use mailrun_process::reason::reason;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;

/// Interval at which a worker compares the number of its sessions with the number that it should have.
const CONTROL_INTERVAL: Duration = Duration::from_millis(20);

pub(super) struct SourceWorkers {
    /// Receives the tallies of all workers, each with the counts since the previous tally. The
    /// channel closes when the last worker has ended.
    pub(super) tallies: Receiver<TallyTransfer<SourceTally>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl SourceWorkers {
    /// Waits for the worker threads to end. Each thread ends soon after it has sent its last tally.
    pub(super) fn join(self) {
        for thread in self.threads {
            // Ignore the error, because a thread that panicked has already reported this on standard error.
            let _ = thread.join();
        }
    }
}

/// Waits for the planned start of the load, starts the worker threads, and waits until each has its event loop.
///
/// # Errors
///
/// Fails if a worker cannot start, usually because file descriptors have run out. Workers that are
/// already running are not stopped: they end with the process.
pub(super) fn start(setting: &Arc<SourceContext>) -> Result<SourceWorkers> {
    let worker_options = WorkerOptions { fd_table: FdTable::Private, busy_poll: setting.options.busy_poll };
    let workers = setting.options.workers;
    let (full, tallies) = channel();
    // Start the threads only when the load begins, because they send messages at once.
    std::thread::sleep(setting.began.saturating_sub(clock::now()));
    let started = (0..workers)
        .map(|number| {
            let (begun, begins) = channel();
            let post = SourceWorkerArgs { number, workers, context: Arc::clone(setting), tally_tx: full.clone() };
            let work = move |buffers| async move {
                // Tell the starting thread that this event loop runs. Ignore an error, because that thread may have
                // given up.
                let _ = begun.send(());
                run(post, buffers).await;
            };
            let thread = mailrun_net::worker::spawn(&format!("load-{number}"), worker_options, work);
            Ok((thread.context("cannot start a thread")?, begins))
        })
        .collect::<Result<Vec<_>>>()?;
    let threads = started.into_iter().map(|(thread, begins)| wait_until_started(thread, &begins));
    let threads = threads.collect::<Result<Vec<_>>>()?;
    Ok(SourceWorkers { tallies, threads })
}

/// Waits until the thread of a worker has created its event loop. If the thread could not create it, returns the error
/// of the thread.
fn wait_until_started(thread: JoinHandle<io::Result<()>>, begins: &Receiver<()>) -> Result<JoinHandle<io::Result<()>>> {
    if begins.recv().is_ok() {
        return Ok(thread);
    }
    match thread.join() {
        Ok(Err(error)) => {
            bail!("a worker could not start: {}. Raise `ulimit -n`, or use fewer --workers.", reason(&error))
        }
        _ => bail!("a worker could not start"),
    }
}

async fn run(arguments: SourceWorkerArgs, buffers: WorkerBuffers) {
    let recorder = Rc::new(SourceWorkerState::new(arguments));
    // Each session holds a clone of the sender, so `recv` returns once all sessions have ended.
    let (presence, mut everybody) = mpsc::channel::<()>(1);
    tokio::select! {
        _ = everybody.recv() => {}
        () = keep_sessions(&recorder, &buffers, presence) => {}
        () = recorder.tick() => {}
        () = recorder.wake_on_schedule() => {}
        () = recorder.measure_wake_ups() => {}
    }
    recorder.send_replies();
    recorder.send_last_tally();
}

/// Starts all sessions at once. If a controller, such as a Locust master, changes the number of users, starts more
/// sessions, or wakes surplus sessions so that they end.
async fn keep_sessions(recorder: &Rc<SourceWorkerState>, buffers: &WorkerBuffers, presence: mpsc::Sender<()>) {
    let context = recorder.context();
    loop {
        for _ in 0..recorder.missing_sessions() {
            let setting = Arc::clone(context);
            let recorder = Rc::clone(recorder);
            let buffers = buffers.clone();
            let presence = presence.clone();
            mailrun_net::worker::spawn_local(async move {
                session_loop::run(setting, recorder, buffers).await;
                drop(presence);
            });
        }
        if context.options.control.is_none() || context.plan.is_over(clock::now()) {
            break;
        }
        mailrun_net::sleep(CONTROL_INTERVAL).await;
        recorder.wake_surplus();
    }
    drop(presence);
    std::future::pending().await
}
