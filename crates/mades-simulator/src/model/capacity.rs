//! Limits the throughput of one part of a message's route: the messages per second, the bytes per second, and the
//! number of workers, each of which processes one message at a time.
use super::quantity::PlanTime;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

const MAX_WORKERS: u32 = 10_000;

/// Throughput limits of one part of a message's route, such as the network. By default, there are no limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Capacity {
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "super::quantity::rate")]
    pub rate_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "super::quantity::byte_rate")]
    pub bytes_per_s: Option<f64>,
    /// Maximum number of messages that are processed at the same time, or `None` for no limit.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "super::quantity::some_count")]
    pub workers: Option<u32>,
    /// Time that a worker needs for a message, for example to sign and encrypt it.
    #[serde(skip_serializing_if = "super::quantity::is_default")]
    pub work: PlanTime,
}

impl Capacity {
    pub(super) fn check(&self, name: &str) -> Result<(), String> {
        for rate in [self.rate_per_s, self.bytes_per_s].into_iter().flatten() {
            if !(1e-6..=1e15).contains(&rate) {
                return Err(format!("{name}: {rate} per second is not a valid rate"));
            }
        }
        match self.workers {
            Some(0) => Err(format!("{name}: at least one worker is required")),
            Some(workers) if workers > MAX_WORKERS => {
                Err(format!("{name}: at most {MAX_WORKERS} workers are possible"))
            }
            None if self.work.0 > Duration::ZERO => Err(format!("{name}: work requires workers; add their number")),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct CapacityLimiter {
    interval: Duration,
    s_per_byte: f64,
    work_time: Duration,
    workers_free_at: BinaryHeap<Reverse<Duration>>,
    /// Time at which all earlier messages will have passed the rate limits. A message that comes sooner waits until
    /// then.
    free_at: Duration,
}

impl CapacityLimiter {
    pub(super) fn new(capacity: &Capacity) -> Self {
        let workers = capacity.workers.unwrap_or(0);
        Self {
            interval: capacity.rate_per_s.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(1.0 / rate)),
            s_per_byte: capacity.bytes_per_s.map_or(0.0, |rate| 1.0 / rate),
            work_time: capacity.work.0,
            workers_free_at: (0..workers).map(|_| Reverse(Duration::ZERO)).collect(),
            free_at: Duration::ZERO,
        }
    }

    /// Returns the time at which a message that arrives now will have passed all limits. `slowness` is the factor by
    /// which processing takes longer, for example 10 at the beginning of a slow start. If a time lies within an outage,
    /// `resume` must return the end of this outage, and otherwise the time itself.
    pub(super) fn admit(
        &mut self,
        now: Duration,
        bytes: usize,
        slowness: f64,
        resume: impl Fn(Duration) -> Duration,
    ) -> Duration {
        let mut at = now;
        if let Some(Reverse(free)) = self.workers_free_at.pop() {
            at = resume(at.max(free) + self.work_time.mul_f64(slowness));
            self.workers_free_at.push(Reverse(at));
        }
        let duration = self.interval + Duration::from_secs_f64(bytes as f64 * self.s_per_byte);
        if duration > Duration::ZERO {
            at = resume(at.max(self.free_at) + duration.mul_f64(slowness));
            self.free_at = at;
        }
        resume(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn passed(capacity: &Capacity, arrivals: &[u64]) -> Vec<u128> {
        let mut limiter = CapacityLimiter::new(capacity);
        arrivals.iter().map(|at| limiter.admit(ms(*at), 1000, 1.0, |at| at).as_millis()).collect()
    }

    #[test]
    fn a_hop_lets_through_what_it_can() {
        let rate = Capacity { rate_per_s: Some(100.0), ..Capacity::default() };
        assert_eq!(passed(&rate, &[0, 0, 0, 100]), [10, 20, 30, 110]);
        let bytes = Capacity { bytes_per_s: Some(50_000.0), ..Capacity::default() };
        assert_eq!(passed(&bytes, &[0, 0]), [20, 40]);
        let work = PlanTime(ms(30));
        let workers = Capacity { workers: Some(2), work, ..Capacity::default() };
        assert_eq!(passed(&workers, &[0, 0, 0, 0, 100]), [30, 30, 60, 60, 130]);
        assert_eq!(passed(&Capacity::default(), &[5, 5]), [5, 5]);
    }

    #[test]
    fn what_comes_through_while_it_is_down_waits_and_then_keeps_its_pace() {
        let mut limiter = CapacityLimiter::new(&Capacity { rate_per_s: Some(100.0), ..Capacity::default() });
        let resume = |at: Duration| if at > ms(15) && at < ms(500) { ms(500) } else { at };
        let through = [0, 0, 0, 0].map(|at| limiter.admit(ms(at), 0, 1.0, resume).as_millis());
        assert_eq!(through, [10, 500, 510, 520]);
    }
}
