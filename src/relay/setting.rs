//! What all workers of a relay share.
use super::census::Census;
use super::config::Config;
use super::labour::Labour;
use super::maildir;
use super::resolver::Resolver;
use spool::{Backlog, Spool};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What all workers share.
pub(super) struct Setting {
    config: Mutex<Arc<Config>>,
    /// Grows with each configuration.
    edition: AtomicU64,
    pub(super) spool: Spool,
    /// What a former run has left, until the workers have taken it up.
    backlog: Mutex<Option<Backlog>>,
    pub(super) resolver: Resolver,
    pub(super) labour: Labour,
    pub(super) mailbox_names: Arc<maildir::Names>,
    pub(super) census: Census,
    /// The spool takes nothing any more: only a restart helps.
    has_failed: AtomicBool,
    pub(super) seed: u64,
}

impl Setting {
    pub(super) fn new(
        config: Config,
        (spool, backlog): (Spool, Backlog),
        resolver: Resolver,
        labour: Labour,
        seed: u64,
    ) -> Self {
        let mailbox_names = Arc::new(maildir::Names::new(&config.hostname));
        Self {
            config: Mutex::new(Arc::new(config)),
            edition: AtomicU64::new(1),
            spool,
            backlog: Mutex::new(Some(backlog)),
            resolver,
            labour,
            mailbox_names,
            census: Census::default(),
            has_failed: AtomicBool::new(false),
            seed,
        }
    }

    /// The configuration in force.
    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&lock(&self.config))
    }

    /// Which one that is.
    pub(super) fn edition(&self) -> u64 {
        self.edition.load(Ordering::Acquire)
    }

    /// Puts another one into force: workers see it within a tick.
    pub(super) fn reload(&self, config: Config) {
        *lock(&self.config) = Arc::new(config);
        self.edition.fetch_add(1, Ordering::Release);
    }

    /// Some of what a former run has left, for a worker to take up; empty when all is.
    pub(super) fn share_of_backlog(&self, most: usize) -> Vec<Result<spool::Left, spool::Error>> {
        let mut backlog = lock(&self.backlog);
        let share: Vec<_> = backlog.iter_mut().flatten().take(most).collect();
        if share.is_empty() {
            *backlog = None;
        }
        share
    }

    /// Notes that the spool is of no more use.
    pub(super) fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
