//! Processor time of a process, from /proc/PID/stat.

use std::time::Duration;

use anyhow::Context;

/// Returns the user and system time of all threads. The kernel counts it in ticks of 10 ms. The time can still be read
/// after the process has ended, until its parent waits for it.
pub(crate) fn processor_time(pid: u32) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Field 2 is the program's name in parentheses. The name may contain spaces, so split the fields only after it.
    // Fields 14 and 15 are utime and stime.
    let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat has a name in parentheses")?;
    let ticks = |field: usize| -> anyhow::Result<u64> {
        Ok(fields.split_whitespace().nth(field - 3).context("/proc/PID/stat is too short")?.parse()?)
    };
    let ticks = ticks(14)? + ticks(15)?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}
