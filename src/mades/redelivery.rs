//! Which messages may come again through no fault of anybody: those that were taken just before a connection was cut,
//! when the broker may not have heard that they were.
//!
//! A broker that restarts gives them out again, as it must. They are told from duplicates by remembering the last that
//! were taken from each queue; there are as many as fit, and no more.
use std::collections::{HashSet, VecDeque};

/// More than any credit, and than a broker's unsynced acknowledgements.
const REMEMBERED: usize = 16_384;

/// What was taken from a queue of late.
#[derive(Debug, Default)]
pub(super) struct Taken {
    latest: VecDeque<u64>,
    /// Taken before the connection was cut, and not seen again since.
    doubtful: HashSet<u64>,
}

impl Taken {
    /// A message is taken; `mark` tells it from all others of the queue.
    pub(super) fn take(&mut self, mark: u64) {
        if self.latest.len() == REMEMBERED {
            self.latest.pop_front();
        }
        self.latest.push_back(mark);
    }

    /// The connection was cut.
    pub(super) fn cut(&mut self) {
        self.doubtful = self.latest.iter().copied().collect();
    }

    /// Whether a message that has come before comes again because of that. It may do so once.
    pub(super) fn is_redelivery(&mut self, mark: u64) -> bool {
        self.doubtful.remove(&mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_taken_before_a_cut_may_come_again_and_once() {
        let mut taken = Taken::default();
        taken.take(1);
        assert!(!taken.is_redelivery(1), "nothing was cut");
        taken.cut();
        taken.take(2);
        assert!(!taken.is_redelivery(2) && taken.is_redelivery(1) && !taken.is_redelivery(1));
        taken.cut();
        assert!(taken.is_redelivery(2) && taken.is_redelivery(1), "a second cut puts both in doubt");
    }

    #[test]
    fn it_remembers_the_latest() {
        let mut taken = Taken::default();
        (0..100_000).for_each(|mark| taken.take(mark));
        taken.cut();
        assert!(taken.is_redelivery(99_999) && !taken.is_redelivery(1));
        assert_eq!(taken.latest.len(), REMEMBERED);
    }
}
