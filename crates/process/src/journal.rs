//! Formats log lines for systemd's journal. The level becomes a prefix as in sd-daemon(3), for
//! example `<4>`. The time is left out because the journal has its own.
use rustix::fs::fstat;
use std::io;

/// Environment variable in which systemd names the journal's stream by device and inode (systemd.exec(5)).
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// Returns true if standard error is connected to the journal.
pub(crate) fn is_stderr() -> bool {
    let Ok(stream) = std::env::var(JOURNAL_STREAM) else { return false };
    fstat(io::stderr()).is_ok_and(|stat| is_stream(&stream, stat.st_dev, stat.st_ino))
}

/// Returns true if `named`, in the form `DEVICE:INODE`, names this device and inode.
fn is_stream(named: &str, device: u64, inode: u64) -> bool {
    let Some((named_device, named_inode)) = named.split_once(':') else { return false };
    named_device.parse() == Ok(device) && named_inode.parse() == Ok(inode)
}

/// Appends `lines` to `out`. Replaces the time and the level of a log line (`TIME LEVEL TEXT`) by the journal's
/// priority, such as `<4>`. Copies any other line unchanged.
pub(crate) fn append_lines(lines: &[u8], out: &mut Vec<u8>) {
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        match split_line(line) {
            Some((priority, text)) => {
                out.extend_from_slice(&[b'<', priority, b'>']);
                out.extend_from_slice(text);
            }
            None => out.extend_from_slice(line),
        }
    }
}

/// Splits a line `TIME LEVEL TEXT` into the syslog priority and the text. Returns `None` for any other line.
fn split_line(line: &[u8]) -> Option<(u8, &[u8])> {
    let time_end = line.iter().position(|byte| *byte == b' ')?;
    let is_time = line[..time_end].first()?.is_ascii_digit() && line[..time_end].ends_with(b"Z");
    let rest = line[time_end..].trim_ascii_start();
    let level_end = rest.iter().position(|byte| *byte == b' ')?;
    let priority = match &rest[..level_end] {
        b"ERROR" => b'3',
        b"WARN" => b'4',
        b"INFO" => b'6',
        b"DEBUG" | b"TRACE" => b'7',
        _ => return None,
    };
    is_time.then_some((priority, &rest[level_end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_become_priorities_and_other_lines_stay() {
        let lines = "2026-11-23T05:00:00.000001Z  WARN mailrun::relay: one\n\
                     2026-11-23T05:00:00.000001Z ERROR mailrun::relay: two\n\
                     mailrun relay: listening on 127.0.0.1:25\n\
                     x INFO y\n\
                     2026-11-23T05:00:00.000001Z";
        let mut out = Vec::new();
        append_lines(lines.as_bytes(), &mut out);
        let expected = "<4>mailrun::relay: one\n<3>mailrun::relay: two\nmailrun relay: listening on 127.0.0.1:25\n\
                        x INFO y\n2026-11-23T05:00:00.000001Z";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn the_stream_is_known_by_device_and_inode() {
        assert!(is_stream("8:1234", 8, 1234));
        for other in ["8:1235", "9:1234", "", "8", ":", "8:1234:1", "a:b"] {
            assert!(!is_stream(other, 8, 1234), "{other}");
        }
    }
}
