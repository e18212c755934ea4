//! Estimates the error of this host's clock with `chronyc -c -n tracking`. This needs a chronyd
//! that is running and has synchronised the clock.
//!
//! The upper bound of the error follows chrony's manual (chronyc, tracking): it is the offset of the system time that
//! is still to be corrected, plus the root dispersion, plus half of the root delay. The bound holds only if the clocks
//! of the root time servers are right.
use mailrun_lock::lock;
use rustix::io::{Errno, ioctl_fionbio};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit for `chronyc`. It answers within milliseconds if chronyd runs, and gives up by itself
/// after 3 s if nothing answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which an answer of `chronyc` is reused, because many clients may ask at once.
const KEEP_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum number of bytes that are read from `chronyc`. A real answer has about 150.
const MAX_ANSWER_BYTES: usize = 4096;
const FIELDS: usize = 14;
/// Reference ID of a clock that is synchronised only with itself (127.127.1.1, `local` in chrony.conf). chrony compares
/// such a clock with no other clock, so its estimate of the error is useless.
const LOCAL_REFERENCE: &str = "7F7F0101";
/// Maximum credible estimate of the clock's error, in seconds: eleven days. A larger estimate is ignored.
const MAX_ERROR_S: f64 = 1e6;

/// Returns the largest possible error of this host's clock. Returns `None` if chrony is not
/// installed, has not synchronised the clock, or does not answer in time.
#[must_use]
pub fn clock_error() -> Option<Duration> {
    // Run only one `chronyc` at a time and keep its answer for a while, because many clients of a sink may ask at the
    // same time.
    static LAST: Mutex<Option<(Instant, Option<Duration>)>> = Mutex::new(None);
    let mut last = lock(&LAST);
    if let Some((_, error)) = last.filter(|(at, _)| at.elapsed() < KEEP_TIMEOUT) {
        return error;
    }
    let mut command = Command::new("chronyc");
    command.args(["-c", "-n", "tracking"]);
    let error = clock_error_by(&mut command, ANSWER_TIMEOUT);
    *last = Some((Instant::now(), error));
    error
}

fn clock_error_by(command: &mut Command, limit: Duration) -> Option<Duration> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let status = await_end(&mut child, limit);
    let answer = child.stdout.take().and_then(read_available)?;
    if !status?.success() {
        return None;
    }
    parse_tracking(std::str::from_utf8(&answer).ok()?)
}

/// Waits until a process has ended. Kills it and returns `None` if it takes longer than `limit`.
fn await_end(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let began = Instant::now();
    while began.elapsed() < limit {
        if let Some(status) = child.try_wait().ok()? {
            return Some(status);
        }
        sleep(POLL_INTERVAL);
    }
    // Ignore errors, because the process may have ended by itself just now.
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// Reads the output of a process that has ended. Does not wait for more, because a child that the process left behind
/// may keep the pipe open.
fn read_available(pipe: ChildStdout) -> Option<Vec<u8>> {
    ioctl_fionbio(&pipe, true).ok()?;
    let mut answer = vec![0; MAX_ANSWER_BYTES];
    let mut length = 0;
    while length < answer.len() {
        match rustix::io::read(&pipe, &mut answer[length..]) {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(read) => length += read,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    answer.truncate(length);
    Some(answer)
}

/// Reads the upper bound of the clock's error from a report of `chronyc -c tracking`. Returns
/// `None` if the clock is not synchronised or if the text is not such a report.
///
/// The fields of the report are: reference, its name, stratum, reference time, system time offset, last offset, RMS
/// offset, frequency, residual frequency, skew, root delay, root dispersion, update interval, leap status. Times are in
/// seconds. The bound is the sum of the system time offset, half of the root delay, and the root dispersion.
#[must_use]
pub fn parse_tracking(report: &str) -> Option<Duration> {
    let mut lines = report.lines();
    let fields: Vec<&str> = lines.next()?.split(',').collect();
    if fields.len() != FIELDS || lines.next().is_some() {
        return None;
    }
    let is_synchronised = matches!(fields[13], "Normal" | "Insert second" | "Delete second");
    let stratum: u8 = fields[2].parse().ok()?;
    if !is_synchronised || stratum == 0 || fields[0] == LOCAL_REFERENCE {
        return None;
    }
    let offset_s = seconds(fields[4])?;
    let delay_s = seconds(fields[10]).filter(|delay| *delay >= 0.0)?;
    let dispersion_s = seconds(fields[11]).filter(|dispersion| *dispersion >= 0.0)?;
    let error_s = offset_s.abs() + delay_s / 2.0 + dispersion_s;
    (error_s <= MAX_ERROR_S).then(|| Duration::from_secs_f64(error_s))
}

fn seconds(field: &str) -> Option<f64> {
    field.parse().ok().filter(|seconds: &f64| seconds.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATIENT: Duration = Duration::from_secs(60);
    const HASTY: Duration = Duration::from_millis(50);
    const TRACKING: &str = "A29FC87B,162.159.200.123,4,1606314371.187842770,-0.000007573,-0.000015325,0.000042432,-12.345,\
        -0.012,0.345,0.012000000,0.001234567,64.5,Normal\n";

    #[test]
    fn the_bound_is_offset_half_the_root_delay_and_the_root_dispersion() {
        assert_eq!(parse_tracking(TRACKING), Some(Duration::from_nanos(7_573 + 6_000_000 + 1_234_567)));
    }

    #[test]
    fn a_clock_that_is_not_synchronised_has_no_bound() {
        let changed = |from: &str, to: &str| parse_tracking(&TRACKING.replace(from, to));
        assert!(changed("Normal", "Insert second").is_some());
        for (from, to) in [
            ("Normal", "Not synchronised"),
            ("Normal", ""),
            ("A29FC87B", LOCAL_REFERENCE),
            (",4,", ",0,"),
            (",4,", ",-1,"),
            ("0.012000000", "-0.012"),
            ("0.001234567", "NaN"),
            ("-0.000007573", "inf"),
            ("-0.000007573", "1e300"),
            (",64.5", ""),
            ("Normal\n", "Normal\nNormal\n"),
        ] {
            assert_eq!(changed(from, to), None, "{from:?} as {to:?}");
        }
        for garbage in ["", "\n", "506 Cannot talk to daemon\n", ",,,,,,,,,,,,,", "<html>"] {
            assert_eq!(parse_tracking(garbage), None, "{garbage:?}");
        }
    }

    #[test]
    fn a_program_that_fails_hangs_or_writes_without_end_gives_no_bound() {
        let ask = |script: &str, limit| clock_error_by(Command::new("sh").args(["-c", script]), limit);
        let good = format!("printf '%s' '{TRACKING}'");
        assert!(ask(&good, PATIENT).is_some());
        assert!(
            ask(&format!("{good}; sleep 5 &"), PATIENT).is_some(),
            "a process that it left behind is not waited for"
        );
        assert_eq!(ask(&format!("{good}; exit 1"), PATIENT), None, "it failed");
        assert_eq!(ask("exit 0", PATIENT), None, "it says nothing");
        assert_eq!(ask("exec sleep 60", HASTY), None, "it hangs");
        assert_eq!(ask("exec cat /dev/zero", HASTY), None, "it writes without an end");
        assert_eq!(clock_error_by(&mut Command::new("/nonexistent/chronyc"), PATIENT), None);
    }

    proptest! {
        #[test]
        fn a_bound_is_never_below_any_of_its_parts(
            offset in -1.0_f64..1.0, delay in 0.0_f64..2.0, dispersion in 0.0_f64..2.0, stratum in 1_u8..16,
        ) {
            let line = format!("C0A80001,192.168.0.1,{stratum},1.5,{offset:.9},0,0,0,0,0,{delay:.9},{dispersion:.9},64.0,Normal\n");
            assert!(parse_tracking(&line).is_some());
            crate::checks::chrony_tracking::check(line.as_bytes());
        }
    }
}
