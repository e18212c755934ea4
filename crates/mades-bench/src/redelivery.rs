//! Decides whether a message that arrives again is a redelivery or a duplicate. If a connection is cut before the
//! broker gets the acknowledgement of a message, the broker may deliver the message again. After a restart, the broker
//! even has to deliver the message again. Such a redelivery is no fault, but any other repetition is a duplicate.
use std::collections::{HashSet, VecDeque};

/// Number of messages that are remembered for each queue. It exceeds any credit, and also the number of
/// acknowledgements that a broker can lose in a crash because they are not yet synced to disk.
const REMEMBERED_LIMIT: usize = 16_384;

#[derive(Debug, Default)]
pub(super) struct RecentDeliveries {
    latest: VecDeque<u64>,
    /// Messages that were accepted before the connection was cut and have not been seen again since.
    redeliverable: HashSet<u64>,
}

impl RecentDeliveries {
    /// Remembers an accepted message by the number `mark`, which is unique within the queue.
    pub(super) fn record(&mut self, mark: u64) {
        if self.latest.len() == REMEMBERED_LIMIT {
            self.latest.pop_front();
        }
        self.latest.push_back(mark);
    }

    pub(super) fn connection_lost(&mut self) {
        self.redeliverable = self.latest.iter().copied().collect();
    }

    /// Returns true if a repeated message was first accepted before the connection was cut, so that the broker may have
    /// delivered it again. Returns true only once for each message and cut.
    pub(super) fn is_redelivery(&mut self, mark: u64) -> bool {
        self.redeliverable.remove(&mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_taken_before_a_cut_may_come_again_and_once() {
        let mut deliveries = RecentDeliveries::default();
        deliveries.record(1);
        assert!(!deliveries.is_redelivery(1), "nothing was cut");
        deliveries.connection_lost();
        deliveries.record(2);
        assert!(!deliveries.is_redelivery(2) && deliveries.is_redelivery(1) && !deliveries.is_redelivery(1));
        deliveries.connection_lost();
        assert!(deliveries.is_redelivery(2) && deliveries.is_redelivery(1), "a second cut puts both in doubt");
    }

    #[test]
    fn it_remembers_the_latest() {
        let mut deliveries = RecentDeliveries::default();
        (0..100_000).for_each(|mark| deliveries.record(mark));
        deliveries.connection_lost();
        assert!(deliveries.is_redelivery(99_999) && !deliveries.is_redelivery(1));
        assert_eq!(deliveries.latest.len(), REMEMBERED_LIMIT);
    }
}
