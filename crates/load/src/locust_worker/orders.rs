//! Order of a load, which the link gives to the main thread. The order also tells the link when the
//! load has ended.
use crate::source::LoadControl;
use std::sync::{Arc, Mutex, OnceLock};

#[derive(Clone, Debug)]
pub(super) struct LoadOrder {
    /// Server to send to, if the master has named one.
    pub(super) host: Option<String>,
    pub(super) run_id: Option<String>,
    control: Arc<LoadControl>,
    ended: Arc<OnceLock<()>>,
    failure: Arc<Mutex<Option<String>>>,
}

impl LoadOrder {
    pub(super) fn new(control: LoadControl, host: Option<String>, run_id: Option<String>) -> Self {
        Self { host, run_id, control: Arc::new(control), ended: Arc::default(), failure: Arc::default() }
    }

    pub(super) fn control(&self) -> Arc<LoadControl> {
        Arc::clone(&self.control)
    }

    /// Records that the load has ended. `failure` is the reason, if the load ended by itself.
    pub(super) fn finish(&self, failure: Option<String>) {
        *self.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = failure;
        let _ = self.ended.set(());
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    /// Takes the reason if the load ended by itself.
    pub(super) fn take_failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}
