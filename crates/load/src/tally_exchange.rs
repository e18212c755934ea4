//! Passes the counts of a worker to the collector. Two tallies circulate: the worker counts in one of them while the
//! collector adds the other to its sums and clears it. If the collector falls behind, for example because its terminal
//! is stopped with Ctrl-S, the worker goes on counting in its current tally. A slow collector therefore costs no
//! memory, because there is never a third tally.
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};

const TALLIES: usize = 2;

pub(crate) struct TallySender<T> {
    collector: Sender<TallyTransfer<T>>,
    empty_tx: SyncSender<Box<T>>,
    empty_rx: Receiver<Box<T>>,
}

pub(crate) struct TallyTransfer<T> {
    pub(crate) tally: Box<T>,
    worker: SyncSender<Box<T>>,
}

impl<T> TallySender<T> {
    /// Creates the sending side, through which a worker passes its tallies to `collector`. `second` is an empty tally,
    /// in which the worker counts while the collector has the first one.
    pub(crate) fn new(collector: Sender<TallyTransfer<T>>, second: Box<T>) -> Self {
        let (empty_tx, empty_rx) = sync_channel(TALLIES);
        // This cannot fail, because the channel is empty and its receiver exists.
        let _ = empty_tx.try_send(second);
        Self { collector, empty_tx, empty_rx }
    }

    /// Returns the spare tally, or `None` while the collector still has it. A worker that gets the spare tally should
    /// send its current tally and go on counting in the spare tally.
    pub(crate) fn take_empty(&self) -> Option<Box<T>> {
        self.empty_rx.try_recv().ok()
    }

    pub(crate) fn send(&self, tally: Box<T>) {
        // Ignore the error, because nobody needs the tally if the collector has ended.
        let _ = self.collector.send(TallyTransfer { tally, worker: self.empty_tx.clone() });
    }
}

impl<T> TallyTransfer<T> {
    /// Gives the worker its tally back for the next counts. The caller must clear the tally first, because the worker
    /// only adds to the values in it.
    pub(crate) fn give_back(self) {
        // Ignore the error, because a worker that has ended counts nothing more and needs no tally.
        let _ = self.worker.try_send(self.tally);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn only_two_tallies_circulate() {
        let (collector, tallies) = channel();
        let worker = TallySender::new(collector, Box::new(2));
        assert_eq!(worker.take_empty().as_deref(), Some(&2));
        worker.send(Box::new(1));
        assert_eq!(worker.take_empty(), None, "the collector has the other tally");
        tallies.recv().unwrap().give_back();
        assert_eq!(worker.take_empty().as_deref(), Some(&1));
    }
}
