//! State that all sessions of a run share.
use super::semaphore::ConnectSemaphore;
use super::session_group::SessionGroup;
use crate::timing::Timing;
use mailrun_net::{ClientTls, Outbox};
use std::cell::RefCell;
use std::time::Duration;

/// Maximum number of bytes per read. Replies are short.
const READ_BYTES: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct SharedState {
    pub(crate) connect_semaphore: ConnectSemaphore,
    /// Read buffer. A session uses it only during its turn.
    pub(crate) input: RefCell<Vec<u8>>,
    /// Write buffer. A session uses it only during its turn.
    pub(crate) outbox: RefCell<Outbox>,
    pub(crate) timing: Timing,
    pub(crate) sessions: SessionGroup,
    pub(crate) timeout: Duration,
    pub(crate) tls: Option<ClientTls>,
}

impl SharedState {
    /// Creates the state and starts the clock of the run.
    pub(crate) fn new(timeout: Duration, tls: Option<ClientTls>) -> Self {
        Self {
            connect_semaphore: ConnectSemaphore::default(),
            input: RefCell::new(vec![0; READ_BYTES]),
            outbox: RefCell::default(),
            timing: Timing::begin(),
            sessions: SessionGroup::default(),
            timeout,
            tls,
        }
    }
}
