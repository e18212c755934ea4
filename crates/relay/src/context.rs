use crate::blocking_pool::BlockingPool;
use crate::config::{Config, DurabilityLevel};
use crate::counters::RelayCounters;
use crate::delivery::ca_files::CaFiles;
use crate::delivery::maildir;
use crate::delivery::resolver::Resolver;
use crate::delivery_log::DeliveryLogWriter;
use crate::fault_log::{FaultLog, LOG_TARGET, UnreachableDestinations};
use crate::smtpd::login_limits::LoginGuard;
use crate::smtpd::memory_budget::MemoryBudget;
use crate::worker_share::WorkerShares;
use mailrun_lock::lock;
use mailrun_net::{ClientRefusal, Clients, Endpoint, clock};
use mailrun_process::log_writer::LogWriter;
use mailrun_spool::{Backlog, Spool};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Memory for the envelope of a message, in bytes. The memory budget for incoming mail is at least the sum of this and
/// the maximum size of a message. Otherwise, the largest permitted message could never be received.
const MAX_ENVELOPE_BYTES: u64 = 1 << 20;

pub(super) struct RelayContext {
    config: Mutex<Arc<Config>>,
    /// Configuration with which the relay has started. Settings that a reload cannot change are read from it.
    initial_config: Arc<Config>,
    pub(super) shares: WorkerShares,
    /// Number that each reload increments. A worker that sees a new number reads the new configuration. As long as the
    /// number is the same, the worker need not lock `config`.
    config_version: AtomicU64,
    pub(super) spool: Spool,
    /// Messages that a former run left in the spool, until the workers have queued them all.
    backlog: Mutex<Option<Backlog>>,
    pub(super) resolver: Resolver,
    pub(super) ca_files: Arc<CaFiles>,
    pub(super) spool_pool: BlockingPool,
    /// Threads that deliver into Maildirs. They are separate from `spool_pool`, so that a hanging file system does not
    /// block reads of the spool.
    pub(super) maildir_pool: BlockingPool,
    pub(super) converter_pool: BlockingPool,
    pub(super) maildir_names: Arc<maildir::MaildirNames>,
    pub(super) counters: Arc<RelayCounters>,
    pub(super) memory_budget: Arc<MemoryBudget>,
    /// Counts the connections and commands of clients outside of the configured `networks`, because limits apply to
    /// these clients.
    pub(super) clients: Arc<Clients>,
    pub(super) login_guard: LoginGuard,
    /// Limits how often faults that affect many messages or clients are logged.
    pub(super) fault_log: FaultLog,
    pub(super) unreachable: UnreachableDestinations,
    pub(super) delivery_log_writer: DeliveryLogWriter,
    pub(super) log: LogWriter,
    /// Set when all listeners accept mail. Until then, `/ready` answers 503.
    is_listening: AtomicBool,
    pub(super) seed: u64,
}

impl RelayContext {
    pub(super) fn new(
        config: Config,
        shares: WorkerShares,
        (spool, backlog): (Spool, Backlog),
        resolver: Resolver,
        (spool_pool, maildir_pool, converter_pool): (BlockingPool, BlockingPool, BlockingPool),
        (delivery_log_writer, log): (DeliveryLogWriter, LogWriter),
        seed: u64,
    ) -> Self {
        let maildir_names = Arc::new(maildir::MaildirNames::new(&config.hostname));
        let client_limits = config.limits.client.clone();
        let config = Arc::new(config);
        let longest_message = config.limits.message_bytes + MAX_ENVELOPE_BYTES;
        let memory_budget = MemoryBudget::new(config.limits.incoming_bytes.max(longest_message), longest_message);
        let ca_files = Arc::new(CaFiles::default());
        read_trusted(&config, &ca_files);
        Self {
            config: Mutex::new(Arc::clone(&config)),
            initial_config: config,
            shares,
            config_version: AtomicU64::new(1),
            spool,
            backlog: Mutex::new(Some(backlog)),
            resolver,
            ca_files,
            spool_pool,
            maildir_pool,
            converter_pool,
            maildir_names,
            counters: Arc::default(),
            memory_budget,
            clients: Arc::new(Clients::new(client_limits).on_refusal(log_refusal)),
            login_guard: LoginGuard::new(),
            fault_log: FaultLog::default(),
            unreachable: UnreachableDestinations::default(),
            delivery_log_writer,
            log,
            is_listening: AtomicBool::new(false),
            seed,
        }
    }

    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&lock(&self.config))
    }

    pub(super) fn config_version(&self) -> u64 {
        self.config_version.load(Ordering::Acquire)
    }

    pub(super) fn initial_config(&self) -> &Config {
        &self.initial_config
    }

    pub(super) fn durability(&self) -> &'static str {
        let durability = self.initial_config.spool.durability;
        DurabilityLevel::ALL.iter().find(|(one, _)| *one == durability).map_or("", |(_, word)| word)
    }

    pub(super) fn set_listening(&self, listeners: Vec<Endpoint>) {
        self.resolver.own_addresses().set_bound(listeners);
        self.is_listening.store(true, Ordering::Release);
    }

    pub(super) fn is_listening(&self) -> bool {
        self.is_listening.load(Ordering::Acquire)
    }

    pub(super) fn is_backlog_queued(&self) -> bool {
        lock(&self.backlog).is_none()
    }

    /// Puts a new configuration in force. Each worker adopts the configuration at its next tick.
    pub(super) fn reload(&self, config: Config) {
        read_trusted(&config, &self.ca_files);
        *lock(&self.config) = Arc::new(config);
        self.config_version.fetch_add(1, Ordering::Release);
    }

    /// Returns up to `limit` messages that a former run left in the spool, for a worker to queue.
    /// An empty vector means that no message is left.
    pub(super) fn take_backlog(
        &self,
        limit: usize,
    ) -> Vec<Result<mailrun_spool::RecoveredMessage, mailrun_spool::Error>> {
        let mut backlog = lock(&self.backlog);
        let share: Vec<_> = backlog.iter_mut().flatten().take(limit).collect();
        if share.is_empty() {
            *backlog = None;
        }
        share
    }

    /// For each kind of fault, logs at most once a minute how many further faults were counted instead of logged.
    pub(super) fn log_fault_summaries(&self) {
        for (fault, count) in self.fault_log.summaries(clock::now()) {
            tracing::warn!(target: LOG_TARGET, "{count} more {}", fault.text());
        }
    }

    /// Returns true if the spool has failed and therefore accepts no messages until the relay is restarted.
    pub(super) fn has_failed(&self) -> bool {
        self.spool.failure().is_some()
    }
}

/// Loads into memory the CA certificates that the routes trust, so that no worker has to read a file.
fn read_trusted(config: &Config, ca_files: &CaFiles) {
    ca_files.replace(&config.router);
    if config.router.securities().any(|security| security.is_verified() && security.ca_file.is_none()) {
        mailrun_net::load_system_roots();
    }
}

/// Logs that a client exceeded a limit. [`Clients`] calls this at most once a minute for each client.
fn log_refusal(refusal: &ClientRefusal) {
    let ClientRefusal { client, limit, times } = refusal;
    tracing::warn!(target: LOG_TARGET, "client limit reached: client={client} limit={} refused={times}", limit.name());
}
