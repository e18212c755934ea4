//! Handles that all delivery agents of a worker share: counters, the log, and resources.
use crate::blocking_pool::BlockingPool;
use crate::config::RefusedGreeting;
use crate::counters::RelayCounters;
use crate::delivery::ca_files::CaFiles;
use crate::delivery::destinations::Destinations;
use crate::delivery::maildir::MaildirNames;
use crate::delivery::resolver::Resolver;
use crate::delivery_log::DeliveryLog;
use mailrun_net::WorkerBuffers;
use std::cell::RefCell;
use std::sync::Arc;

pub(crate) struct DeliverySink {
    pub(crate) counters: Arc<RelayCounters>,
    pub(crate) log: DeliveryLog,
}

pub(crate) struct DeliveryResources {
    pub(crate) destinations: RefCell<Destinations>,
    /// Buffers of outgoing connections. The server owns the buffers of incoming sessions.
    pub(crate) buffers: WorkerBuffers,
    pub(crate) resolver: Resolver,
    pub(crate) ca_files: Arc<CaFiles>,
    pub(crate) maildir_pool: BlockingPool,
    pub(crate) converter_pool: BlockingPool,
    pub(crate) maildir_names: Arc<MaildirNames>,
    pub(crate) greeting_5xx: RefusedGreeting,
    pub(crate) has_own_name: bool,
}
