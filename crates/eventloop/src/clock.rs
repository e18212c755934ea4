//! Reads two clocks. Measurements use CLOCK_MONOTONIC, which all processes of a host share. The wall clock is for times
//! that other hosts see.
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Returns the time on the host's monotonic clock. All processes of a host share this clock, so
/// their times can be compared.
pub fn now() -> Duration {
    read(ClockId::Monotonic)
}

/// Returns the Unix time. It jumps if somebody sets the host's clock, so use [`now`] to measure
/// durations.
pub fn wall() -> Duration {
    read(ClockId::Realtime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
