//! Error of this host's clock, by chrony's estimate: `chronyc -c -n tracking`, where chronyd runs and has synchronised it.
//!
//! The bound is that of chrony's manual (chronyc, tracking): the offset of the system time that is still to be corrected, the
//! root dispersion, and half of the root delay. It holds if the servers at the root are right.
use rustix::io::{Errno, ioctl_fionbio};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Limit for the time of `chronyc`; it answers within milliseconds if chronyd runs, and gives up after 3 s if nothing answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Age of an answer up to which it is given again.
const KEEP_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of looking whether `chronyc` has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes of the longest answer that is read; a real one has some 150.
const MAX_ANSWER_BYTES: usize = 4096;
/// Fields of the report.
const FIELDS: usize = 14;
/// Reference of a clock that is synchronised with itself alone (127.127.1.1, `local` in chrony.conf): its bound is of no use.
const LOCAL_REFERENCE: &str = "7F7F0101";
/// Above that, an estimate is none.
const MAX_ERROR_S: f64 = 1e6;

/// The most by which this host's clock is wrong; `None` without chrony, if it is not synchronised, or does not answer in time.
#[must_use]
pub fn clock_error() -> Option<Duration> {
    // However many ask a sink, it runs one process at a time, and those that waited for it get the same answer.
    static LAST: Mutex<Option<(Instant, Option<Duration>)>> = Mutex::new(None);
    let mut last = LAST.lock().ok()?;
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

/// Waits for the end of a process; one that takes too long is killed.
fn await_end(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let began = Instant::now();
    while began.elapsed() < limit {
        if let Some(status) = child.try_wait().ok()? {
            return Some(status);
        }
        sleep(POLL_INTERVAL);
    }
    // It may have ended by itself just now.
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// The output of a process that has ended; one that it left behind, and that goes on writing, is not waited for.
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

/// The bound in a report of `chronyc -c tracking`; `None` if the clock is not synchronised, or it is no such report.
///
/// The fields are: reference, its name, stratum, reference time, **system time offset**, last offset, RMS offset, frequency,
/// residual frequency, skew, **root delay**, **root dispersion**, update interval, leap status. Times are in seconds.
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
