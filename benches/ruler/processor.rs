//! How much processor time a process has had, from /proc/PID/stat.

use std::time::Duration;

use anyhow::Context;

/// User and system time of all its threads, to the kernel's tick of 10 ms. It can still be read when the process has
/// ended and nobody has waited for it.
pub(crate) fn processor_time(pid: u32) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, field 2, is in parentheses and may hold spaces; utime and stime are fields 14 and 15.
    let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat has a name in parentheses")?;
    let ticks = |field: usize| -> anyhow::Result<u64> {
        Ok(fields.split_whitespace().nth(field - 3).context("/proc/PID/stat is too short")?.parse()?)
    };
    let ticks = ticks(14)? + ticks(15)?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}
