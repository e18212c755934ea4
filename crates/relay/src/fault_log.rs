//! Limits the number of log lines about faults that affect many messages, clients or connections. The first fault of
//! each kind is logged. Further faults of this kind are only counted, and their number is logged once a minute.
use mailrun_lock::lock;
use mailrun_net::recent::RecentMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of unreachable destinations that are remembered. If there are more, some are forgotten, and their
/// next failure is logged as if it were the first.
const MAX_UNREACHABLE: usize = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommonFault {
    Store,
    StoreForAlias,
    Accept,
    Handshake,
    ProxyHeader,
}

impl CommonFault {
    const ALL: [Self; 5] = [Self::Store, Self::StoreForAlias, Self::Accept, Self::Handshake, Self::ProxyHeader];

    /// Returns the text that follows the number of faults in a log line, as in `12 more clients could not be accepted`.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Store => "messages could not be stored",
            Self::StoreForAlias => "messages for the members of an alias could not be stored",
            Self::Accept => "clients could not be accepted",
            Self::Handshake => "TLS handshakes with clients failed",
            Self::ProxyHeader => "connections without a PROXY header were closed",
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct FaultLog([Mutex<FaultCount>; CommonFault::ALL.len()]);

#[derive(Debug, Default)]
struct FaultCount {
    /// Time at which the last line about this kind of fault was logged. `None` at first and after a minute without
    /// faults, so that the next fault is logged at once.
    logged: Option<Duration>,
    others: u64,
}

impl FaultLog {
    /// Counts a fault, and returns true if the caller must log it.
    pub(crate) fn is_first(&self, fault: CommonFault, now: Duration) -> bool {
        let mut count = lock(&self.0[fault as usize]);
        let is_first = count.logged.is_none();
        if is_first {
            count.logged = Some(now);
        } else {
            count.others += 1;
        }
        is_first
    }

    /// Returns the kinds of faults for which a summary must be logged now, each with the number of faults since its
    /// last log line. A summary is due one minute after that line, if there were further faults.
    pub(crate) fn summaries(&self, now: Duration) -> Vec<(CommonFault, u64)> {
        let due = |fault: CommonFault| {
            let mut count = lock(&self.0[fault as usize]);
            if now.saturating_sub(count.logged?) < LOG_INTERVAL {
                return None;
            }
            let others = std::mem::take(&mut count.others);
            count.logged = (others > 0).then_some(now);
            (others > 0).then_some((fault, others))
        };
        CommonFault::ALL.into_iter().filter_map(due).collect()
    }
}

/// Destinations that could not be reached at the last attempt, each with the number of its failed attempts in a row.
pub(crate) struct UnreachableDestinations {
    attempts: Mutex<RecentMap<Arc<str>, u64>>,
    is_any: AtomicBool,
}

impl Default for UnreachableDestinations {
    fn default() -> Self {
        Self { attempts: Mutex::new(RecentMap::new(MAX_UNREACHABLE)), is_any: AtomicBool::new(false) }
    }
}

impl UnreachableDestinations {
    /// Counts a failed attempt to connect to a destination, and returns true if it is the first in a row.
    pub(crate) fn add(&self, destination: &Arc<str>) -> bool {
        let mut all = lock(&self.attempts);
        self.is_any.store(true, Ordering::Relaxed);
        let attempts = all.get_or_insert_with(Arc::clone(destination), || 0);
        *attempts += 1;
        *attempts == 1
    }

    /// Forgets the failed attempts of a destination, because it was reached. Returns the number of these attempts, or
    /// `None` if there were none.
    pub(crate) fn remove(&self, destination: impl FnOnce() -> Arc<str>) -> Option<u64> {
        if !self.is_any.load(Ordering::Relaxed) {
            return None;
        }
        let mut all = lock(&self.attempts);
        let attempts = all.remove(&destination());
        self.is_any.store(!all.is_empty(), Ordering::Relaxed);
        attempts
    }
}

/// The `target` field of all `tracing` events that the relay logs. It is fixed, so that log filters still match when a
/// module moves.
pub(crate) const LOG_TARGET: &str = "mailrun::relay";

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_fault_is_logged_and_the_others_are_counted_once_a_minute() {
        let log = FaultLog::default();
        let faults = |now| (0..1000).filter(|_| log.is_first(CommonFault::Store, now)).count();
        assert_eq!(faults(SECOND), 1);
        assert!(log.is_first(CommonFault::Accept, SECOND), "each kind has its own line");
        assert!(log.summaries(SECOND * 60).is_empty());
        assert_eq!(log.summaries(SECOND * 61), [(CommonFault::Store, 999)]);
        assert!(log.summaries(SECOND * 61).is_empty());
        assert_eq!(faults(SECOND * 70), 0);
        assert_eq!(log.summaries(SECOND * 121), [(CommonFault::Store, 1000)]);
        // There was no fault in the last minute, so the next fault counts as the first and must be logged at once.
        assert!(log.summaries(SECOND * 181).is_empty());
        assert_eq!(faults(SECOND * 182), 1);
    }

    #[test]
    fn a_destination_is_named_once_until_it_is_reached() {
        let unreachable = UnreachableDestinations::default();
        let [a, b]: [Arc<str>; 2] = ["a".into(), "b".into()];
        assert_eq!(unreachable.remove(|| a.clone()), None);
        assert_eq!([1, 2, 3].map(|_| unreachable.add(&a)), [true, false, false]);
        assert!(unreachable.add(&b));
        assert_eq!(unreachable.remove(|| a.clone()), Some(3));
        assert_eq!(unreachable.remove(|| a.clone()), None);
        assert_eq!((unreachable.add(&a), unreachable.add(&b)), (true, false));
    }
}
