//! One direction of a connection in virtual time. Blocks are cut anywhere and arrive late, but in
//! order.
use mailrun_smtp::checks::SplitMix64;
use std::collections::VecDeque;
use std::time::Duration;

pub(crate) struct SimulatedLink {
    blocks: VecDeque<(Duration, Vec<u8>)>,
    rng: SplitMix64,
    latest: Duration,
    /// Number of bytes that the link still carries before it breaks.
    left: u64,
    pub(crate) carried: u64,
}

impl SimulatedLink {
    /// Creates a link whose cuts and delays follow from `seed`. The link breaks after `breaks_after`
    /// bytes.
    pub(crate) fn new(seed: u64, breaks_after: u64) -> Self {
        let blocks = VecDeque::new();
        Self { blocks, rng: SplitMix64(seed), latest: Duration::ZERO, left: breaks_after, carried: 0 }
    }

    /// Sends all of `bytes`, or as many as the link carries before it breaks, and empties `bytes`.
    pub(crate) fn send(&mut self, bytes: &mut Vec<u8>, now: Duration) {
        let carried = (bytes.len() as u64).min(self.left);
        self.left -= carried;
        self.carried += carried;
        bytes.truncate(carried as usize);
        let whole = self.rng.once_in(3);
        let blocks = if whole && !bytes.is_empty() { vec![bytes.as_slice()] } else { self.rng.cut(bytes) };
        for block in blocks {
            let delay = Duration::from_micros(self.rng.below(500));
            self.latest = self.latest.max(now + delay);
            self.blocks.push_back((self.latest, block.to_vec()));
        }
        bytes.clear();
    }

    pub(crate) fn due(&self) -> Option<Duration> {
        self.blocks.front().map(|(at, _)| *at)
    }

    /// Returns the next block if it has arrived by the time `now`.
    pub(crate) fn arrived(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.due()? > now {
            return None;
        }
        self.blocks.pop_front().map(|(_, block)| block)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.left == 0
    }
}
