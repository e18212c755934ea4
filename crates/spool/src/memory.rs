//! The spool that keeps nothing: drafts in memory until they are done, for runs that measure the cost of durability.
use crate::supply::Purpose;
use crate::{Draft, Error, Id, Options, Receipt, Usage};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

pub(crate) struct Memory {
    kept: Mutex<Kept>,
    most_bytes: u64,
    /// Part of it that only notices may use.
    kept_back: u64,
}

struct Kept {
    drafts: HashMap<Id, Draft>,
    usage: Usage,
    next_id: u64,
    is_closed: bool,
}

impl Memory {
    pub(crate) fn new(options: &Options) -> Self {
        // The numbers that a former run has used are not known; those of a later time are unused.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let next_id = u64::try_from(now.as_nanos()).unwrap_or(1);
        let kept = Kept { drafts: HashMap::new(), usage: Usage::default(), next_id, is_closed: false };
        Self { kept: Mutex::new(kept), most_bytes: options.most_bytes, kept_back: options.segment_bytes }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("nothing panics while it holds what is kept")
    }

    pub(crate) fn store(&self, draft: Draft, purpose: Purpose) -> Receipt {
        let mut kept = self.kept();
        if kept.is_closed {
            return Receipt::known(Err(Error::Closed));
        }
        let bytes = draft.body.len() as u64;
        let kept_back = if purpose == Purpose::Messages { self.kept_back } else { 0 };
        if kept.usage.bytes + bytes + kept_back > self.most_bytes {
            kept.usage.refused += 1;
            return Receipt::known(Err(Error::Full));
        }
        let id = Id(kept.next_id);
        kept.next_id += 1;
        kept.usage.bytes += bytes;
        kept.usage.stored += 1;
        kept.drafts.insert(id, draft);
        Receipt::known(Ok(id))
    }

    pub(crate) fn done(&self, id: Id) {
        let mut kept = self.kept();
        if let Some(draft) = kept.drafts.remove(&id) {
            kept.usage.bytes -= draft.body.len() as u64;
        }
    }

    pub(crate) fn fetch(&self, id: Id) -> Result<Draft, Error> {
        self.kept().drafts.get(&id).cloned().ok_or(Error::Unknown(id))
    }

    pub(crate) fn usage(&self) -> Usage {
        let kept = self.kept();
        Usage { messages: kept.drafts.len() as u64, ..kept.usage }
    }

    pub(crate) fn close(&self) {
        self.kept().is_closed = true;
    }
}
