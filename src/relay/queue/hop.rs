//! The queue's state of a next hop: its entries, its couriers, and whether it can be reached.
use std::sync::Arc;

use super::entries::List;
use super::entry::{Index, NONE, STATES, State};
use crate::relay::envelope::Refusal;

/// A next hop, by its number. Numbers are small and dense: a number may be used again once the queue reports the hop as
/// idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct HopKey(pub(crate) u32);

/// Rate at which the number of couriers grows with the backlog. By KumoMTA's curve, `limit · (1 − e^(−0.023 ·
/// backlog))`: one for a single message, half of the limit at 30 waiting, all but one in twenty at 130.
const GROWTH: f64 = 0.023;

/// State of a hop.
pub(super) struct Hop {
    pub(super) ready: List,
    pub(super) all: List,
    /// Number of entries in each state.
    pub(super) counts: [u32; STATES],
    /// Couriers that are connected or about to be.
    pub(super) couriers: u32,
    /// Its own limit of couriers; `None` for the limit of all hops.
    pub(super) most: Option<u32>,
    /// Couriers that found nothing to do.
    pub(super) idle: u32,
    /// Couriers that were idle, and have been called.
    pub(super) called: u32,
    /// Couriers that were idle, and have been dismissed.
    pub(super) dismissed: u32,
    /// Couriers that say QUIT, and are gone once the peer has closed the connection.
    pub(super) parting: u32,
    /// Messages that one of them takes at a time.
    pub(super) batch: u32,
    /// Messages taken since a courier was opened.
    pub(super) served: u32,
    /// Failures to reach it, in succession.
    pub(super) failures: u32,
    /// A courier has asked for messages since this was last cleared: it is connected.
    pub(super) is_asked: bool,
    /// Times in succession that a message came back unsent.
    pub(super) fruitless: u32,
    /// No courier is opened before.
    pub(super) shut_until_ms: u64,
    /// The reason for it.
    pub(super) shut_by: Option<Arc<Refusal>>,
    /// Its last reply, or the reason why there was none.
    pub(super) refusal: Option<Arc<Refusal>>,
    /// Letters in memory that are for this hop.
    pub(super) letter_bytes: u64,
    /// The first ready entry that has not been checked yet for whether its letter must be read.
    pub(super) ahead: Index,
    /// Letters that are being read.
    pub(super) asked: u32,
    pub(super) listed: Listed,
}

/// The lists of hops that it is in.
#[derive(Clone, Copy, Default)]
pub(super) struct Listed {
    pub(super) waking: bool,
    pub(super) starving: bool,
    pub(super) growing: bool,
    pub(super) resting: bool,
    pub(super) reading: bool,
}

impl Hop {
    pub(super) fn new() -> Self {
        Self {
            ready: List::EMPTY,
            all: List::EMPTY,
            counts: [0; STATES],
            couriers: 0,
            most: None,
            idle: 0,
            called: 0,
            dismissed: 0,
            parting: 0,
            batch: 1,
            served: 0,
            failures: 0,
            is_asked: false,
            fruitless: 0,
            shut_until_ms: 0,
            shut_by: None,
            refusal: None,
            letter_bytes: 0,
            ahead: NONE,
            asked: 0,
            listed: Listed::default(),
        }
    }

    pub(super) fn count(&self, state: State) -> u32 {
        self.counts[state as usize]
    }

    /// Number of couriers that its backlog is worth.
    fn wanted(&self, limit: u32) -> u32 {
        let backlog = f64::from(self.count(State::Ready)) + f64::from(self.count(State::InFlight));
        let backlog = backlog / f64::from(self.batch);
        let wanted = f64::from(limit) * (1.0 - (-GROWTH * backlog).exp());
        (wanted.ceil() as u32).clamp(1, limit)
    }

    /// Reports whether one more courier should be opened: something waits, no courier is free, and the hop is not
    /// avoided. After a failure to reach it, one courier tries first.
    pub(super) fn wants_another(&self, limit: u32, now_ms: u64) -> bool {
        let limit = self.most.unwrap_or(limit);
        let is_possible = !self.ready.is_empty() && self.idle == 0 && self.shut_until_ms <= now_ms;
        let most = if self.failures > 0 { 1 } else { limit };
        let serving = self.couriers - self.parting;
        // The curve is checked last: it is the only costly condition here.
        is_possible && self.couriers < limit && serving < most && serving < self.wanted(limit)
    }

    /// Shares the text of a refusal with the last entry that got the same one.
    pub(super) fn shared(&mut self, refusal: Refusal) -> Arc<Refusal> {
        match &self.refusal {
            Some(last) if **last == refusal => last.clone(),
            _ => {
                let refusal = Arc::new(refusal);
                self.refusal = Some(refusal.clone());
                refusal
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn couriers_grow_with_the_backlog_up_to_the_limit() {
        let mut hop = Hop::new();
        let rows = [(1, 1), (2, 1), (3, 2), (10, 5), (30, 10), (100, 18), (200, 20), (1_000_000, 20)];
        for (backlog, wanted) in rows {
            hop.counts[State::Ready as usize] = backlog;
            assert_eq!(hop.wanted(20), wanted, "{backlog} waiting");
        }
        assert_eq!(hop.wanted(1), 1);
    }
}
