//! `mailrun disk` measures the spool's own writes, compares them with the required rate, and leaves nothing in the
//! directory.
use crate::party::{Ended, MAILRUN, Process, mailrun, wait_until};
use crate::relay::Mount;
use serde_json::Value;
use std::fs;
use std::path::Path;

fn disk(directory: &Path, words: &[&str]) -> Ended {
    mailrun(&[&["disk", directory.to_str().unwrap()], words].concat())
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn each_size_is_measured_in_each_group_and_nothing_is_left() {
    let place = tempfile::tempdir().unwrap();
    let ended = disk(place.path(), &["--duration", "300ms", "--message-size", "16k", "--json"]);
    assert!(ended.code == Some(0) && ended.err.is_empty() && is_empty(place.path()), "{ended:?}");
    let result: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&result["format"], &result["outcome"]), (&"mailrun-disk/1".into(), &Value::Null), "{result}");
    let rows = result["rows"].as_array().unwrap();
    let cells: Vec<_> = rows.iter().map(|row| (row["message_bytes"].as_u64(), row["group"].as_u64())).collect();
    let sizes = [1024, 4096, 16_384, 65_536];
    let expected: Vec<_> =
        sizes.into_iter().flat_map(|size| [1, 8, 64].map(|group| (Some(size), Some(group)))).collect();
    assert_eq!(cells, expected);
    for row in rows {
        let figure = |name: &str| row[name].as_f64().unwrap();
        assert!(figure("syncs") >= 1.0 && figure("p50_ms") > 0.0, "{row}");
        assert!(figure("p50_ms") <= figure("p99_ms") && figure("p99_ms") <= figure("max_ms"), "{row}");
        let least = figure("messages_per_s") * figure("message_bytes");
        assert!(figure("bytes_per_s") >= least, "whole blocks, heads included: {row}");
    }
    assert_eq!(result["reachable"]["message_bytes"], 16_384, "{result}");
}

#[test]
fn the_required_rate_decides() {
    let place = tempfile::tempdir().unwrap();
    let text = disk(place.path(), &["-d", "100ms", "--rate", "1/s"]);
    // The verdict is INVALID if the directory for temporary files is in memory, where a sync proves nothing.
    let is_durable = !text.out.contains("proves nothing");
    let verdict = text.out.lines().last().unwrap();
    assert_eq!(text.code, Some(if is_durable { 0 } else { 3 }), "{text:?}");
    assert!(verdict.starts_with(if is_durable { "PASS" } else { "INVALID" }), "{text:?}");
    assert!(text.out.lines().any(|line| line.starts_with("64 KiB       64")), "{text:?}");
    let failed = disk(place.path(), &["-d", "100ms", "--rate", "10M/s", "--quiet"]);
    assert_eq!((failed.code, failed.out.lines().count()), (Some(if is_durable { 1 } else { 3 }), 1), "{failed:?}");
}

#[test]
fn memory_proves_nothing_and_little_room_is_named() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("disk");
    let Some(_mount) = Mount::new(directory.to_str().unwrap(), "size=20m") else { return };
    let ended = disk(&directory, &["-d", "100ms", "--rate", "1/s", "--json"]);
    let result: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((ended.code, &result["outcome"], &result["durable"]), (Some(3), &"invalid".into(), &false.into()));
    assert!(result["warnings"][0].as_str().unwrap().contains("proves nothing"), "{result}");
    assert!(disk(&directory, &["-d", "100ms"]).out.ends_with("No verdict: these figures are those of memory.\n"));
    fs::write(directory.join("fill"), vec![0; 10 << 20]).unwrap();
    let full = disk(&directory, &[]);
    assert!(full.code == Some(2) && full.err.contains("has no room for a measurement"), "{full:?}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is left but what was there");
}

#[test]
fn a_directory_that_cannot_be_written_to_is_named_in_one_line() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    let sealed = place.path().join("sealed");
    let _mount = Mount::new(sealed.to_str().unwrap(), "size=40m,ro");
    for (path, words) in [
        (place.path().join("missing"), "does not exist"),
        (file, "is not a directory"),
        (sealed, "is on a read-only file system"),
    ] {
        if words.contains("read-only") && _mount.is_none() {
            continue;
        }
        let ended = disk(&path, &["--json"]);
        assert!(ended.code == Some(2) && ended.out.is_empty() && ended.err.lines().count() == 1, "{ended:?}");
        assert!(ended.err.contains(words) && ended.err.contains(path.to_str().unwrap()), "{ended:?}");
    }
}

#[test]
fn ctrl_c_prints_what_was_measured_and_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let running = Process::start(MAILRUN, &["disk", place.path().to_str().unwrap(), "--duration", "1h", "-l", "1k"]);
    wait_until("the measurement", || {
        let found = fs::read_dir(place.path()).unwrap().flatten().next()?;
        (found.metadata().ok()?.len() == 32 << 20).then_some(())
    });
    // Wait for a progress line, which is printed every five seconds, so that there is a figure to report.
    wait_until("progress", || running.complained().contains("syncs/s").then_some(()));
    running.interrupt_group();
    let ended = running.finish();
    assert!(ended.code == Some(130) && is_empty(place.path()), "{ended:?}");
    assert!(ended.out.lines().last().unwrap().starts_with("Interrupted: as far as it was measured"), "{ended:?}");
}
