//! State that all sessions of a run share.
use crate::timing::Timing;
use mailrun_net::{ClientTls, Outbox};
use std::cell::RefCell;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Maximum number of bytes per read. Replies are short.
const READ_BYTES: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct SharedState {
    /// Lets one session connect at a time, in the order in which they asked, as in the original.
    /// Many connections at once would overflow the server's listen queue. The kernel's back-off,
    /// which takes seconds, would then spoil the measurement.
    pub(crate) connect_semaphore: Semaphore,
    /// Read buffer. A session uses it only during its turn.
    pub(crate) input: RefCell<Vec<u8>>,
    /// Write buffer. A session uses it only during its turn.
    pub(crate) outbox: RefCell<Outbox>,
    pub(crate) timing: Timing,
    pub(crate) timeout: Duration,
    pub(crate) tls: Option<ClientTls>,
}

impl SharedState {
    /// Creates the state and starts the clock of the run.
    pub(crate) fn new(timeout: Duration, tls: Option<ClientTls>) -> Self {
        Self {
            connect_semaphore: Semaphore::new(1),
            input: RefCell::new(vec![0; READ_BYTES]),
            outbox: RefCell::default(),
            timing: Timing::begin(),
            timeout,
            tls,
        }
    }
}
