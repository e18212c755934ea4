//! State that all workers of a relay share.
use super::census::Census;
use super::config::{Config, Durability};
use super::inquiry::Inquiries;
use super::intake::Intake;
use super::journal::Press;
use super::labour::Labour;
use super::login_limits::LoginGuard;
use super::maildir;
use super::resolver::Resolver;
use crate::log_writer::LogWriter;
use net::{ClientRefusal, Clients};
use spool::{Backlog, Spool};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes for the envelope, if there is room for one message only.
const ENVELOPE_BYTES: u64 = 1 << 20;

/// State that all workers share.
pub(super) struct Setting {
    config: Mutex<Arc<Config>>,
    /// The one that it began with: some keys hold until a restart.
    first: Arc<Config>,
    /// Grows with each configuration.
    edition: AtomicU64,
    pub(super) spool: Spool,
    /// Backlog of a former run, until the workers have queued it.
    backlog: Mutex<Option<Backlog>>,
    pub(super) resolver: Resolver,
    /// They read the spool.
    pub(super) readers: Labour,
    /// They deliver into Maildirs: one on a file system that hangs keeps nothing from being read.
    pub(super) porters: Labour,
    pub(super) mailbox_names: Arc<maildir::Names>,
    pub(super) census: Census,
    /// Memory for mail that comes in.
    pub(super) intake: Arc<Intake>,
    /// Clients that are not of `networks`, and their recent requests.
    pub(super) clients: Arc<Clients>,
    /// Failed logins.
    pub(super) logins: LoginGuard,
    /// Channels to the workers.
    pub(super) inquiries: Inquiries,
    /// Log of deliveries.
    pub(super) press: Press,
    /// Log of everything else.
    pub(super) log: LogWriter,
    /// All listeners take mail.
    is_open: AtomicBool,
    pub(super) seed: u64,
}

impl Setting {
    pub(super) fn new(
        config: Config,
        (spool, backlog): (Spool, Backlog),
        resolver: Resolver,
        (readers, porters): (Labour, Labour),
        (press, log): (Press, LogWriter),
        seed: u64,
    ) -> Self {
        let mailbox_names = Arc::new(maildir::Names::new(&config.hostname));
        let client_limits = config.limits.client.clone();
        let config = Arc::new(config);
        let longest_message = config.limits.message_bytes + ENVELOPE_BYTES;
        let intake = Intake::new(config.limits.incoming_bytes.max(longest_message), longest_message);
        Self {
            config: Mutex::new(Arc::clone(&config)),
            first: config,
            edition: AtomicU64::new(1),
            spool,
            backlog: Mutex::new(Some(backlog)),
            resolver,
            readers,
            porters,
            mailbox_names,
            census: Census::default(),
            intake,
            clients: Arc::new(Clients::new(client_limits).reporting(log_refusal)),
            logins: LoginGuard::new(),
            inquiries: Inquiries::default(),
            press,
            log,
            is_open: AtomicBool::new(false),
            seed,
        }
    }

    /// The configuration in force.
    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&lock(&self.config))
    }

    /// Number of the configuration in force.
    pub(super) fn edition(&self) -> u64 {
        self.edition.load(Ordering::Acquire)
    }

    /// The configuration that it began with.
    pub(super) fn first(&self) -> &Config {
        &self.first
    }

    /// The promise of a 250, in the word of configuration and records.
    pub(super) fn durability(&self) -> &'static str {
        let durability = self.first.spool.durability;
        Durability::ALL.iter().find(|(one, _)| *one == durability).map_or("", |(_, word)| word)
    }

    /// Notes that all listeners take mail.
    pub(super) fn open(&self) {
        self.is_open.store(true, Ordering::Release);
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Reports whether the whole backlog of a former run is in the queues.
    pub(super) fn is_taken_up(&self) -> bool {
        lock(&self.backlog).is_none()
    }

    /// Puts another one into force: workers see it within a tick.
    pub(super) fn reload(&self, config: Config) {
        *lock(&self.config) = Arc::new(config);
        self.edition.fetch_add(1, Ordering::Release);
    }

    /// A part of a former run's backlog, for a worker to queue; empty when none is left.
    pub(super) fn share_of_backlog(&self, most: usize) -> Vec<Result<spool::Left, spool::Error>> {
        let mut backlog = lock(&self.backlog);
        let share: Vec<_> = backlog.iter_mut().flatten().take(most).collect();
        if share.is_empty() {
            *backlog = None;
        }
        share
    }

    /// Reports whether the spool takes nothing any more.
    pub(super) fn has_failed(&self) -> bool {
        self.spool.failure().is_some()
    }
}

/// Logs that a client exceeds a limit: once a minute for each.
fn log_refusal(refusal: &ClientRefusal) {
    let ClientRefusal { client, limit, times } = refusal;
    tracing::warn!("client limit reached: client={client} limit={} refused={times}", limit.name());
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
