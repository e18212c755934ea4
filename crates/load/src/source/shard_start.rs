//! One source's share of a load that several sources send, and the wait until the time at which all of them begin.
use anyhow::{Result, bail, ensure};
use jiff::Timestamp;
use mailrun_measurement::record::{OfferedStage, Workload};
use mailrun_net::clock;
use mailrun_process::interrupt::{Interrupt, Interrupted, StopRequest};
use mailrun_schedule::shard::{PlanHash, Shard};
use std::time::Duration;

/// Interval at which a waiting source checks for signals and reads the wall clock again, because
/// the clock may be set during the wait.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The source refuses to wait for a start (`--start-at`) that is further ahead than this, because such a time is
/// probably a mistake.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone, Debug)]
pub struct SourceShard {
    pub part: Shard,
    pub start_at: Timestamp,
    pub plan: PlanHash,
    /// Number of messages that all sources send together, or `None` if a time limit ends the run.
    pub(super) messages: Option<u64>,
    pub(super) sessions: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ShardStart {
    /// Time on the monotonic clock at which this source actually began.
    pub(super) began: Duration,
    pub(super) late: Duration,
}

impl ShardStart {
    pub(super) fn planned(self) -> Duration {
        self.began.saturating_sub(self.late)
    }
}

impl SourceShard {
    pub fn new(part: Shard, start_at: Timestamp, plan: PlanHash) -> Self {
        Self { part, start_at, plan, messages: None, sessions: 0 }
    }

    /// Waits for the start time that all sources share. If that time has passed, returns at once.
    ///
    /// # Errors
    ///
    /// Fails if the user ends the wait, or if the start is more than a day ahead.
    pub(super) fn wait(&self, interrupt: &Interrupt) -> Result<ShardStart> {
        loop {
            let now = clock::now();
            let left = self.start_at.duration_since(Timestamp::now());
            let Ok(left) = Duration::try_from(left) else {
                return Ok(ShardStart { began: now, late: left.unsigned_abs() });
            };
            ensure!(left <= MAX_WAIT, "--start-at {} is more than a day ahead: check the date", self.start_at);
            if interrupt.requested() != StopRequest::Nothing {
                bail!(Interrupted::BEFORE_LOAD);
            }
            std::thread::sleep(left.min(POLL_INTERVAL));
            if left <= POLL_INTERVAL {
                return Ok(ShardStart { began: now + left, late: Duration::ZERO });
            }
        }
    }

    /// Returns the workload of all sources together, for the run record. `own` is the workload of this source.
    pub(super) fn whole_workload(&self, own: &Workload) -> Workload {
        let count = f64::from(self.part.count());
        let whole = |stage: &OfferedStage| OfferedStage {
            from_per_s: stage.from_per_s * count,
            to_per_s: stage.to_per_s * count,
            ..stage.clone()
        };
        Workload {
            messages: self.messages,
            sessions: self.sessions,
            rate_per_s: own.rate_per_s.map(|rate| rate * count),
            stages: own.stages.iter().map(whole).collect(),
            ..own.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(start_at: Timestamp) -> SourceShard {
        SourceShard::new(Shard::new(1, 3).unwrap(), start_at, PlanHash::of(["plan"]))
    }

    #[test]
    fn a_part_begins_at_its_time_and_says_if_it_is_late() {
        let interrupt = Interrupt::watch().unwrap();
        // Try up to 50 times, because a busy host may delay a single start.
        let is_in_time = (0..50).any(|_| {
            let soon = shard(Timestamp::now() + Duration::from_millis(120)).wait(&interrupt).unwrap();
            assert!(clock::now() >= soon.began, "it does not begin before its time");
            soon.late.is_zero()
        });
        assert!(is_in_time);
        let late = shard(Timestamp::now() - Duration::from_secs(5)).wait(&interrupt).unwrap();
        assert!(late.late >= Duration::from_secs(5));
        let error = shard(Timestamp::now() + Duration::from_secs(90_000)).wait(&interrupt).unwrap_err();
        assert!(error.to_string().contains("more than a day ahead"), "{error}");
    }

    #[test]
    fn the_whole_workload_is_that_of_all_parts() {
        let stage = OfferedStage { name: None, length_s: 10.0, from_per_s: 5.0, to_per_s: 10.0 };
        let own = Workload {
            messages: Some(3),
            sessions: 2,
            rate_per_s: Some(10.0),
            stages: vec![stage],
            ..Workload::default()
        };
        let mut shard = shard(Timestamp::now());
        shard.messages = Some(8);
        shard.sessions = 6;
        let whole = shard.whole_workload(&own);
        assert_eq!((whole.messages, whole.sessions, whole.rate_per_s), (Some(8), 6, Some(30.0)));
        assert_eq!(
            (whole.stages[0].from_per_s, whole.stages[0].to_per_s, whole.stages[0].length_s),
            (15.0, 30.0, 10.0)
        );
    }
}
