//! State that all sessions of a run share.
use super::semaphore::ConnectSemaphore;
use super::session_group::SessionGroup;
use crate::timing::Timing;
use mailrun_net::{ClientTls, Outbox};
use std::cell::RefCell;
use std::time::Duration;

/// Largest number of bytes per read: replies are short.
const READ_BYTES: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct SharedState {
    pub(crate) connect_semaphore: ConnectSemaphore,
    /// Buffer for reads, for one turn.
    pub(crate) input: RefCell<Vec<u8>>,
    /// Buffer for the writes of one turn.
    pub(crate) outbox: RefCell<Outbox>,
    pub(crate) timing: Timing,
    pub(crate) sessions: SessionGroup,
    pub(crate) timeout: Duration,
    pub(crate) tls: Option<ClientTls>,
}

impl SharedState {
    /// Creates the state, from which on the run is timed.
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
