//! Distinguishes redeliveries from duplicates. A broker may deliver a message again without fault if the connection was
//! cut before it got the acknowledgement, and it must do so after a restart.
//!
//! The last messages from each queue are remembered, up to a fixed number.
use std::collections::{HashSet, VecDeque};

/// More than any credit, and more than a broker's unsynced acknowledgements.
const REMEMBERED_LIMIT: usize = 16_384;

#[derive(Debug, Default)]
pub(super) struct RecentDeliveries {
    latest: VecDeque<u64>,
    /// Messages accepted before the connection was cut, and not seen again since.
    redeliverable: HashSet<u64>,
}

impl RecentDeliveries {
    /// Records an accepted message. `mark` identifies it within the queue.
    pub(super) fn record(&mut self, mark: u64) {
        if self.latest.len() == REMEMBERED_LIMIT {
            self.latest.pop_front();
        }
        self.latest.push_back(mark);
    }

    pub(super) fn connection_lost(&mut self) {
        self.redeliverable = self.latest.iter().copied().collect();
    }

    /// Reports whether a repeated message is a redelivery after a cut. Each message may be redelivered once.
    pub(super) fn is_redelivery(&mut self, mark: u64) -> bool {
        self.redeliverable.remove(&mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_taken_before_a_cut_may_come_again_and_once() {
        let mut taken = RecentDeliveries::default();
        taken.record(1);
        assert!(!taken.is_redelivery(1), "nothing was cut");
        taken.connection_lost();
        taken.record(2);
        assert!(!taken.is_redelivery(2) && taken.is_redelivery(1) && !taken.is_redelivery(1));
        taken.connection_lost();
        assert!(taken.is_redelivery(2) && taken.is_redelivery(1), "a second cut puts both in doubt");
    }

    #[test]
    fn it_remembers_the_latest() {
        let mut taken = RecentDeliveries::default();
        (0..100_000).for_each(|mark| taken.record(mark));
        taken.connection_lost();
        assert!(taken.is_redelivery(99_999) && !taken.is_redelivery(1));
        assert_eq!(taken.latest.len(), REMEMBERED_LIMIT);
    }
}
