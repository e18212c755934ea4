//! A sink that watches mailboxes instead of listening. Each mailbox has a task on a common thread. New messages are
//! counted in the same way as by a sink that listens.
//!
//! ```text
//! options ─ Watchers ─ a thread ┬ server_mailbox: a connection with IMAP or POP3, made again when it breaks
//!                               ├ maildir: a directory
//!                               └ watcher: what both do with messages
//! ```
mod maildir;
mod options;
mod server_mailbox;
#[cfg(test)]
mod stand_in;
mod watcher;

use super::Rulebook;
use super::active_rules::ActiveRules;
use super::arrivals::{Arrival, ArrivalFinder};
use super::worker_state::{SinkContext, SinkWorkerState, TallyTransfer};
use anyhow::{Context, Result, anyhow, bail};
use mailrun_mailbox::MailboxUrl;
use mailrun_measurement::RunId;
use mailrun_net::{ClientTls, Endpoint, SessionResumption, TlsSetupError, Trust, WorkerOptions, clock, sleep, worker};
use mailrun_process::interrupt::Interrupted;
use mailrun_smtp::server::Protocol;
pub use options::{MailboxOptions, MailboxTls, ProbeMail, WatchedMailbox};
use server_mailbox::ServerMailbox;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
pub(super) use watcher::WatchCounts;
use watcher::{WatchShared, Watcher};

/// Interval at which the thread hands its counts to the collector and checks whether it should end.
const TICK: Duration = Duration::from_millis(250);
/// At its end, the sink waits at most this long for the mail servers to delete the messages that it counted last.
const DELETION_TIMEOUT: Duration = Duration::from_secs(2);
const READ_BYTES: usize = 64 << 10;

/// The thread that watches all mailboxes. It ends when this value is dropped.
pub(super) struct Watchers {
    name: String,
    counts: Arc<WatchCounts>,
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Watchers {
    /// Starts to watch, and waits until all mailboxes are open. Mail that arrives after that is counted.
    ///
    /// # Errors
    ///
    /// Fails if a mailbox cannot be opened. The watching thread has then ended, so that it holds no descriptors.
    pub(super) fn start(
        options: MailboxOptions,
        context: &Arc<SinkContext>,
        full: Sender<TallyTransfer>,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let count = options.mailboxes.len();
        let servers = servers(&options)?;
        let counts = Arc::new(WatchCounts::new(count as u64, options.whole));
        let stops = Arc::new(AtomicBool::new(false));
        let first = options.mailboxes.first().map(|mailbox| mailbox.url.to_string()).unwrap_or_default();
        let name = if count > 1 { format!("{count} mailboxes from {first} on") } else { first };
        let (opened_tx, opened) = channel();
        let (context, shared_counts, stop) = (Arc::clone(context), Arc::clone(&counts), Arc::clone(&stops));
        let work = move |_| async move {
            let state = Rc::new(SinkWorkerState::new(context, full));
            state.context.first_connection.get_or_init(clock::now);
            let shared = Rc::new(WatchShared {
                state: Rc::clone(&state),
                counts: shared_counts,
                room: RefCell::new(vec![0; READ_BYTES]),
                undeleted: Cell::new(0),
                starting: Cell::new(0),
                opened: opened_tx,
                options,
            });
            for (place, mailbox) in shared.options.mailboxes.iter().enumerate() {
                let watched = Watcher::new(&shared, mailbox);
                match servers.get(place).cloned().flatten() {
                    Some((endpoint, tls)) => {
                        let mailbox = ServerMailbox::new(watched, mailbox, endpoint, tls);
                        worker::spawn_local(mailbox.run());
                    }
                    None => worker::spawn_local(maildir::watch(watched, mailbox.url.clone())),
                }
            }
            while !stop.load(Ordering::Relaxed) {
                sleep(TICK).await;
                state.send_tally();
            }
            // Give the mail servers some time to delete the messages that were counted last.
            let limit = clock::now() + DELETION_TIMEOUT;
            while shared.undeleted.get() > 0 && clock::now() < limit {
                sleep(Duration::from_millis(10)).await;
            }
            state.send_last_tally();
        };
        let thread = worker::spawn("mailboxes", WorkerOptions::default(), work).context("cannot start a thread")?;
        // Create `Watchers` before waiting. If a mailbox cannot be opened, `Watchers` is dropped, which ends the
        // thread. Otherwise, each retry of a probe would leave a thread with open file descriptors behind.
        let watchers = Self { name, counts, stops, thread: Some(thread) };
        await_opened(&opened, count, is_interrupted)?;
        Ok(watchers)
    }

    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    pub(super) fn counts(&self) -> Arc<WatchCounts> {
        Arc::clone(&self.counts)
    }

    /// Stops watching. Returns once the last counts have been sent to the collector.
    pub(super) fn stop(self) {
        drop(self);
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        // Ignore a panic of the thread: the panic hook has reported it, and the collector has the counts so far.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Watches mailboxes for a probe, and reports each arriving message of the probe's run.
pub(crate) struct MailboxWatch {
    watchers: Watchers,
    tallies: Receiver<TallyTransfer>,
    run: RunId,
    finder: ArrivalFinder,
}

impl MailboxWatch {
    /// Starts to watch, and waits until all mailboxes are open.
    ///
    /// # Errors
    ///
    /// Fails if a mailbox cannot be opened. The error comes with the messages that were found in other mailboxes. The
    /// caller must not ignore these messages, because a later watch does not report them again.
    pub(crate) fn start(
        options: MailboxOptions,
        run: RunId,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<Self, (anyhow::Error, Vec<Arrival>)> {
        let rules = ActiveRules::new(Rulebook::default(), 0);
        let context = Arc::new(SinkContext::new(rules, None, None, None, Some(run), Protocol::Smtp));
        let (full, tallies) = channel();
        let mut finder = ArrivalFinder::default();
        match Watchers::start(options, &context, full, is_interrupted) {
            Ok(watchers) => Ok(Self { watchers, tallies, run, finder }),
            Err(error) => Err((error, last_arrivals(&tallies, &mut finder, run))),
        }
    }

    /// Waits for the next counts of the thread, which come four times per second, and returns the new messages in them.
    /// Returns `None` if the thread has ended.
    pub(crate) fn next(&mut self) -> Option<Vec<Arrival>> {
        let mut transfer = self.tallies.recv().ok()?;
        let arrivals = self.finder.of_worker(&transfer.tally, self.run);
        transfer.tally.clear();
        transfer.give_back();
        Some(arrivals)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.watchers.counts.closed() == 0
    }

    /// Stops watching, and returns the messages that were found last. The caller must not ignore them, because a later
    /// watch does not report them again.
    #[must_use]
    pub(crate) fn stop(mut self) -> Vec<Arrival> {
        self.watchers.stop();
        last_arrivals(&self.tallies, &mut self.finder, self.run)
    }
}

fn last_arrivals(tallies: &Receiver<TallyTransfer>, finder: &mut ArrivalFinder, run: RunId) -> Vec<Arrival> {
    tallies.try_iter().flat_map(|transfer| finder.of_worker(&transfer.tally, run)).collect()
}

/// Waits until all mailboxes are open. Fails if a mailbox cannot be opened, or if the user stops the sink.
fn await_opened(opened: &Receiver<Result<(), String>>, count: usize, is_interrupted: &dyn Fn() -> bool) -> Result<()> {
    let mut left = count;
    while left > 0 {
        match opened.recv_timeout(Duration::from_millis(50)) {
            Ok(Ok(())) => left -= 1,
            Ok(Err(reason)) => bail!(reason),
            Err(RecvTimeoutError::Timeout) if is_interrupted() => {
                return Err(Interrupted::BEFORE_LOAD.into());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("the thread that watches mailboxes has ended"),
        }
    }
    Ok(())
}

type Server = (Endpoint, Option<ClientTls>);

/// Returns the server of each mailbox with its TLS settings, or `None` for a Maildir. All mailboxes of a host share the
/// TLS settings.
fn servers(options: &MailboxOptions) -> Result<Vec<Option<Server>>> {
    let mut settings: HashMap<&str, ClientTls> = HashMap::new();
    let mut servers = Vec::new();
    for WatchedMailbox { url, server, .. } in &options.mailboxes {
        let (MailboxUrl::Server { scheme, host, .. }, Some(endpoint)) = (url, server) else {
            servers.push(None);
            continue;
        };
        let uses_tls = scheme.is_implicit_tls() || scheme.starts_tls();
        if uses_tls && !settings.contains_key(host.as_str()) {
            settings.insert(host, client_tls(&options.tls, host)?);
        }
        let tls = settings.get(host.as_str()).filter(|_| uses_tls).cloned();
        servers.push(Some((endpoint.clone(), tls)));
    }
    Ok(servers)
}

fn client_tls(options: &MailboxTls, host: &str) -> Result<ClientTls> {
    let trust = match (&options.ca, options.insecure) {
        (_, true) => Trust::Anybody,
        (Some(path), false) => Trust::read(path)?,
        (None, false) => Trust::System,
    };
    ClientTls::new(host, &trust, None, SessionResumption::On).map_err(|error| match error {
        TlsSetupError::NoSystemRoots => anyhow!("--mailbox: {error}; {}", server_mailbox::REMEDIES.without_roots()),
        error => anyhow!("--mailbox: {error}"),
    })
}
