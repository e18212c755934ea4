//! Divides the limits of the configuration between the workers. Each worker has a queue of its own and cannot see the
//! other queues, so each gets a fixed share of every limit.
use super::blocking_pool::BlockingPool;
use super::counters::RelayCounters;
use super::delivery::ca_files::CaFiles;
use super::delivery::destinations::Destinations;
use super::delivery::maildir::MaildirNames;
use super::delivery::resolver::Resolver;
use super::delivery_log::DeliveryLog;
use crate::config::{Config, RefusedGreeting};
use crate::descriptors::GrantedLimits;
use crate::qmgr::Options;
use mailrun_net::WorkerBuffers;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// Number of workers in this process, and the limits that are divided among them. A reload changes neither the number
/// of workers nor the limit on file descriptors, so these values are computed once, at the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerShares {
    pub(crate) workers_per_listener: usize,
    /// Number of workers of all listeners together, among which the limits are divided.
    worker_count: u32,
    /// Limits of the configuration, or lower limits if the process is allowed too few file descriptors.
    pub(crate) granted: GrantedLimits,
}

impl WorkerShares {
    pub(crate) fn new(config: &Config, granted: GrantedLimits) -> Self {
        let workers_per_listener = config.workers_per_listener();
        let listeners = config.listeners().count().max(1);
        let worker_count = u32::try_from(workers_per_listener * listeners).unwrap_or(u32::MAX);
        Self { workers_per_listener, worker_count, granted }
    }

    /// Returns one worker's share of a limit, rounded up, so that each worker gets at least one.
    pub(crate) fn share(&self, limit: u32) -> u32 {
        limit.div_ceil(self.worker_count).max(1)
    }

    pub(crate) fn queue_options(&self, config: &Config, seed: u64, origin_unix: Duration) -> Options {
        Options {
            schedule: config.retry.clone(),
            reconnect: config.retry.backoff.for_destinations(),
            destination_concurrency_limit: self.share(config.delivery.per_destination),
            concurrency_limit: self.share(self.granted.deliveries),
            message_bytes: config.spool.memory_bytes / u64::from(self.worker_count),
            seed,
            origin_unix,
        }
    }
}

impl Config {
    pub(crate) fn workers_per_listener(&self) -> usize {
        self.workers.unwrap_or_else(mailrun_net::worker::default_count).max(1)
    }
}

pub(crate) struct DeliverySink {
    pub(crate) counters: Arc<RelayCounters>,
    pub(crate) log: DeliveryLog,
}

pub(crate) struct DeliveryResources {
    pub(crate) destinations: RefCell<Destinations>,
    /// Buffers of the worker's outgoing connections. Incoming sessions use other buffers, which belong to the server.
    pub(crate) buffers: WorkerBuffers,
    pub(crate) resolver: Resolver,
    pub(crate) ca_files: Arc<CaFiles>,
    pub(crate) maildir_pool: BlockingPool,
    pub(crate) converter_pool: BlockingPool,
    pub(crate) maildir_names: Arc<MaildirNames>,
    pub(crate) greeting_5xx: RefusedGreeting,
    pub(crate) has_own_name: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workers_of_all_listeners_share_the_limits() {
        let text = "listen = [\"127.0.0.1:2525\", \"127.0.0.1:2526\"]\nworkers = 3\n[spool]\ndirectory = \"spool\"\n\
                    max_memory = \"60M\"\n[delivery]\nper_destination = 20\noverall = 3\n";
        let config = Config::read_text(text);
        let shares = WorkerShares::new(&config, GrantedLimits { sessions: 10, deliveries: 3 });
        let options = shares.queue_options(&config, 7, Duration::ZERO);
        assert_eq!((options.destination_concurrency_limit, options.concurrency_limit), (4, 1));
        assert_eq!(options.message_bytes, 10 << 20);
        assert_eq!([1, 6, 7].map(|limit| shares.share(limit)), [1, 1, 2]);
    }
}
