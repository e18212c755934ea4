//! The commit thread of a spool, which makes messages durable in batches. It writes and syncs the queued messages,
//! reports the result to the callers that wait for it, and frees segments without unfinished messages.
use crate::commit_queue::{CommitBatch, CommitQueue, WhenIdle};
use crate::compaction::{CompactionProgress, CompactionState, rewrite};
use crate::log::Log;
use crate::{Error, Id};
use std::io;
use std::sync::Arc;

/// Runs until the spool is closed or its disk fails. First writes the `unproven` messages again, because an earlier
/// process wrote them but may have failed to sync them.
pub(crate) fn run(queue: &Arc<CommitQueue>, mut log: Log, unproven: Vec<Id>) {
    let _guard = CommitGuard(Arc::clone(queue));
    if let Err(error) = rewrite(&mut log, unproven).and_then(|()| run_until_closed(queue, &mut log)) {
        queue.stop(Error::poisoned(&error));
    }
}

fn run_until_closed(queue: &CommitQueue, log: &mut Log) -> io::Result<()> {
    let mut batch = CommitBatch::default();
    let mut compaction = CompactionState::default();
    let mut when_idle = WhenIdle::Compact;
    loop {
        queue.take(&mut batch, when_idle);
        if !batch.is_empty() {
            match log.commit(&mut batch) {
                Ok(refused) => batch.resolve(Ok(refused)),
                Err(error) => {
                    batch.resolve(Err(Error::poisoned(&error)));
                    return Err(error);
                }
            }
        }
        if batch.is_last {
            return log.close();
        }
        when_idle = match compaction.compact(log)? {
            CompactionProgress::More => WhenIdle::Compact,
            CompactionProgress::Done => WhenIdle::Wait,
        };
    }
}

/// Wakes all waiting callers when the commit thread exits, even if it panics. Otherwise they would
/// wait forever. Callers whose requests the thread had already taken are woken when the
/// `CommitBatch` is dropped.
struct CommitGuard(Arc<CommitQueue>);

impl Drop for CommitGuard {
    fn drop(&mut self) {
        let reason =
            if std::thread::panicking() { Error::Poisoned("the commit thread failed".into()) } else { Error::Closed };
        self.0.end(reason);
    }
}
