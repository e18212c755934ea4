//! Messages that may be redelivered without a fault: those that were taken just before a connection was cut, when the
//! broker may not have received the acknowledgement.
//!
//! A broker that restarts must deliver them again. They are told from duplicates by remembering the last messages taken
//! from each queue, up to a fixed number.
use std::collections::{HashSet, VecDeque};

/// More than any credit, and more than a broker's unsynced acknowledgements.
const REMEMBERED: usize = 16_384;

/// Messages taken lately from a queue.
#[derive(Debug, Default)]
pub(super) struct Taken {
    latest: VecDeque<u64>,
    /// Messages taken before the connection was cut, and not seen again since.
    doubtful: HashSet<u64>,
}

impl Taken {
    /// Records that a message is taken; `mark` identifies it within the queue.
    pub(super) fn take(&mut self, mark: u64) {
        if self.latest.len() == REMEMBERED {
            self.latest.pop_front();
        }
        self.latest.push_back(mark);
    }

    /// Records that the connection was cut.
    pub(super) fn cut(&mut self) {
        self.doubtful = self.latest.iter().copied().collect();
    }

    /// Reports whether a repeated message is a redelivery after a cut. Each message may be redelivered once.
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
