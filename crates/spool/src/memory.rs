//! A spool that keeps messages only in memory until they are done. It serves to measure the cost of
//! durability.
use super::message::Reserve;
use crate::{Error, Id, NewMessage, Options, Receipt, SpoolStats};
use mailrun_lock::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

pub(crate) struct MemoryBackend {
    state: Mutex<MemoryState>,
    max_bytes: u64,
    /// Bytes of the capacity that only notices to senders may use. An undeliverable message is removed only after its
    /// notice is stored, so without this reserve, a spool full of such messages would stay full.
    reserved_bytes: u64,
}

struct MemoryState {
    drafts: HashMap<Id, NewMessage>,
    stats: SpoolStats,
    next_id: u64,
    is_closed: bool,
}

impl MemoryBackend {
    pub(crate) fn new(options: &Options) -> Self {
        // Ids of earlier runs must not be used again, but this backend does not know them. So begin with the current
        // time in nanoseconds, which is higher than all earlier ids.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let next_id = u64::try_from(now.as_nanos()).unwrap_or(1);
        let state = MemoryState { drafts: HashMap::new(), stats: SpoolStats::default(), next_id, is_closed: false };
        Self { state: Mutex::new(state), max_bytes: options.max_bytes, reserved_bytes: options.segment_bytes }
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        lock(&self.state)
    }

    pub(crate) fn store(&self, mut draft: NewMessage, reserve: Reserve, id_at: Option<usize>) -> (Receipt, Arc<[u8]>) {
        let mut state = self.state();
        if state.is_closed {
            return (Receipt::resolved(Err(Error::Closed)), draft.body);
        }
        let bytes = draft.body.len() as u64;
        let kept_back = if reserve == Reserve::Messages { self.reserved_bytes } else { 0 };
        if state.stats.bytes + bytes + kept_back > self.max_bytes {
            state.stats.refused += 1;
            return (Receipt::resolved(Err(Error::Full)), draft.body);
        }
        let id = Id(state.next_id);
        state.next_id += 1;
        state.stats.bytes += bytes;
        state.stats.stored += 1;
        if let Some(at) = id_at {
            id.write_in(&mut draft.body, at);
        }
        let body = Arc::clone(&draft.body);
        state.drafts.insert(id, draft);
        (Receipt::resolved(Ok(id)), body)
    }

    pub(crate) fn done(&self, id: Id) {
        let mut state = self.state();
        if let Some(draft) = state.drafts.remove(&id) {
            state.stats.bytes -= draft.body.len() as u64;
        }
    }

    pub(crate) fn fetch(&self, id: Id) -> Result<NewMessage, Error> {
        self.state().drafts.get(&id).cloned().ok_or(Error::Unknown(id))
    }

    pub(crate) fn stats(&self) -> SpoolStats {
        let state = self.state();
        SpoolStats { messages: state.drafts.len() as u64, ..state.stats }
    }

    pub(crate) fn close(&self) {
        self.state().is_closed = true;
    }
}
