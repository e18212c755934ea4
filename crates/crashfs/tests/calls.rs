//! Repeating a log of calls must rebuild the files exactly, even after power cuts. Reading a damaged log must fail with
//! an error that says what is wrong.
#![allow(clippy::unwrap_used)] // The lint exempts `#[test]` functions but not the functions that they call

use mailrun_crashfs::{Disk, FileSystem, Loss, Owner, Profile, ROOT, SpecialFile, StoredCalls, Survivors, obstacle};
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rustix::io::Errno;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

const CAPACITY: u64 = 1 << 20;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn clock() -> Duration {
    Duration::from_secs(7)
}

/// Returns a file system that logs its calls. The log may have at most `limit` bytes.
fn logged(limit: usize) -> FileSystem {
    let mut files = FileSystem::new(CAPACITY);
    files.record_calls(limit, clock);
    files
}

/// Ends the log of a file system, writes the log to its two files, and reads it back.
fn stored(files: &mut FileSystem, place: &Path) -> StoredCalls {
    let calls = files.take_calls().unwrap().calls().unwrap();
    let (lines, data) = (place.join("calls.jsonl"), place.join("calls.data"));
    let stored = StoredCalls { capacity: CAPACITY, calls };
    stored.write(&lines, &data).unwrap();
    let back = StoredCalls::read(&lines, &data).unwrap();
    assert_eq!(back, stored);
    back
}

/// Makes the call that `what` selects, and ignores whether it succeeds. Before the call, sets the clock to `seconds`.
fn act(files: &mut FileSystem, rng: &mut StdRng, (what, one, other, seconds): (u8, usize, usize, u64)) {
    files.set_time(UNIX_EPOCH + Duration::from_secs(seconds));
    let (name, to) = (NAMES[one % 4], NAMES[other % 4]);
    let below = files.look_up(ROOT, "below").map_or(ROOT, |below| below.inode);
    let place = if one % 3 == 0 { below } else { ROOT };
    let inode = files.look_up(place, name).map(|found| found.inode);
    match what % 22 {
        0 => drop(files.create(place, name, 0o600)),
        1 => drop(files.make_directory(ROOT, "below", 0o700)),
        2 => drop(files.make_special(place, name, 0o600, SpecialFile::Fifo)),
        3 => drop(files.remove(place, name)),
        4 => drop(files.rename((place, name), (below, to))),
        5 => drop(inode.and_then(|inode| files.link(inode, below, to))),
        6 => drop(inode.and_then(|inode| files.set_length(inode, other as u64 * 100))),
        7 => drop(inode.and_then(|inode| files.sync(inode))),
        8 => drop(files.sync_directory(place)),
        9 => files.sync_all(),
        10 => {
            files.turn_off();
            files.cut(rng);
        }
        11 => drop(inode.and_then(|inode| files.open(inode))),
        12 => inode.into_iter().for_each(|inode| files.close(inode)),
        13 => drop(inode.and_then(|inode| files.set_owner(inode, Owner { user: 7, group: 8 }))),
        14 => drop(inode.and_then(|inode| files.set_modified(inode, UNIX_EPOCH - Duration::from_secs(3)))),
        15 => drop(inode.and_then(|inode| files.fail_sync(inode, Errno::IO, rng))),
        _ => drop(inode.and_then(|inode| files.write(inode, one as u64 * 90, &vec![other as u8 % 4; 700]))),
    }
}

proptest! {
    #[test]
    fn what_is_done_again_leaves_the_same_files(
        acts in prop::collection::vec((0u8..22, 0usize..12, 0usize..12, 0u64..90), 1..60),
        profile in 0usize..4,
        seed: u64,
    ) {
        let mut files = logged(usize::MAX);
        files.set_profile(Profile::ALL[profile]);
        let mut rng = StdRng::seed_from_u64(seed);
        acts.into_iter().for_each(|one| act(&mut files, &mut rng, one));
        // The log stores the time only together with a call. The last `act` may have set the time without a successful
        // call, so end with a call.
        files.turn_off();
        let place = tempfile::tempdir().unwrap();
        let log = stored(&mut files, place.path());
        let again = log.replay(|_, _| true).unwrap();
        prop_assert_eq!(format!("{again:?}"), format!("{files:?}"));
    }

    #[test]
    fn a_log_of_any_bytes_is_read_or_refused(lines in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..2000) {
        let place = tempfile::tempdir().unwrap();
        let mut files = logged(usize::MAX);
        let mut rng = StdRng::seed_from_u64(1);
        (0..40).for_each(|n| act(&mut files, &mut rng, (n, n as usize, 3, 1)));
        stored(&mut files, place.path());
        let (path, data) = (place.path().join("calls.jsonl"), place.path().join("calls.data"));
        let mut text = fs::read(&path).unwrap();
        // Cut off at least the bracket at the end, so that the log cannot be valid.
        text.truncate(cut.min(text.len() - 2));
        text.extend(lines);
        fs::write(&path, text).unwrap();
        prop_assert!(StoredCalls::read(&path, &data).is_err());
    }
}

#[test]
fn a_damaged_log_says_what_is_wrong() {
    let place = tempfile::tempdir().unwrap();
    let (path, data) = (place.path().join("calls.jsonl"), place.path().join("calls.data"));
    let mut files = logged(usize::MAX);
    let inode = files.create(ROOT, "a", 0o600).unwrap().inode;
    files.write(inode, 0, b"mail").unwrap();
    stored(&mut files, place.path());
    let lines = fs::read_to_string(&path).unwrap();
    for (text, bytes, said) in [
        ("".to_owned(), "mail", "cut off in line 1"),
        ("{}\n".to_owned(), "mail", "not a log of calls"),
        (lines.replace("calls/1", "calls/9"), "mail", "its format is \"mailrun-calls/9\""),
        (lines.replace("1048576", "1048576000000"), "mail", "more than"),
        (lines.replace("{\"end\":2}\n", ""), "mail", "cut off in line 4"),
        (lines.replace("\"end\":2", "\"end\":3"), "mail", "should have 3 calls and has 2"),
        (lines.replace("write", "shred"), "mail", "line 3"),
        (lines.clone(), "mai", "line 3: the data of this write is missing"),
        (lines.replace("\"bytes\":4", "\"bytes\":99999999999999"), "mail", "the data of this write is missing"),
    ] {
        fs::write(&path, &text).unwrap();
        fs::write(&data, bytes).unwrap();
        let error = StoredCalls::read(&path, &data).unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
    // Each of these logs can be read, but its second call is impossible, so the replay must fail.
    for (from, to) in [
        ("\"inode\":2,\"at\":0", "\"inode\":9,\"at\":0"),
        ("\"at\":0,", "\"at\":18446744073709551615,"),
        ("\"bytes\":4", "\"bytes\":999999999999999999,\"are_zeros\":true"),
    ] {
        assert!(lines.contains(from), "{lines}");
        fs::write(&path, lines.replace(from, to)).unwrap();
        fs::write(&data, "mail").unwrap();
        let error = StoredCalls::read(&path, &data).unwrap().replay(|_, _| true).unwrap_err().to_string();
        assert!(error.contains("call 2 of the log cannot be repeated"), "{error}");
    }
}

#[test]
fn a_log_that_would_be_too_long_or_inexact_is_given_up_and_says_so() {
    let mut files = logged(10_000);
    let inode = files.create(ROOT, "a", 0o600).unwrap().inode;
    files.write(inode, 0, &[1; 9_900]).unwrap();
    assert_eq!(files.take_calls().unwrap().calls(), Err(Loss::TooLong));
    assert!(files.take_calls().is_none());
    files.record_calls(10_000, clock);
    files.flip_bit(inode, 1, &mut StdRng::seed_from_u64(1)).unwrap();
    assert_eq!(files.take_calls().unwrap().calls(), Err(Loss::FlippedBit));
}

#[test]
fn a_cut_leaves_what_it_is_told_to() {
    let mut files = FileSystem::new(CAPACITY);
    for name in ["a", "b"] {
        let inode = files.create(ROOT, name, 0o600).unwrap().inode;
        files.write(inode, 0, name.as_bytes()).unwrap();
    }
    let all = files.all_unsynced();
    let names = |survivors: &Survivors| {
        let mut files = FileSystem::new(CAPACITY);
        for name in ["a", "b"] {
            let inode = files.create(ROOT, name, 0o600).unwrap().inode;
            files.write(inode, 0, name.as_bytes()).unwrap();
        }
        files.cut_to(survivors);
        let found = files.list(ROOT).unwrap();
        found.into_iter().map(|(name, found)| format!("{name} {}", found.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(names(&all), ["a 1", "b 1"]);
    assert_eq!(names(&Survivors { names: vec![1], ..all.clone() }), ["b 1"]);
    assert_eq!(names(&Survivors { files: all.files[1..].to_vec(), ..all.clone() }), ["a 0", "b 1"]);
    assert!(names(&Survivors::default()).is_empty());
}

#[test]
fn what_a_process_did_over_fuse_can_be_done_again() {
    if let Some(reason) = obstacle() {
        return eprintln!("skipped: {reason}");
    }
    let disk = Disk::mount(CAPACITY, 1).unwrap();
    disk.record_calls(CAPACITY as usize);
    disk.with_files(|files, _| files.set_profile(Profile::Xfs));
    for round in 0..2 {
        let script = "cd \"$1\" && mkdir -p d && echo one > d/t$2 && sync d/t$2 && mv d/t$2 d/a$2 && ln d/a$2 b$2 && \
                      echo two >> b$2 && chmod 640 b$2 && mkfifo f$2 && echo gone > g && rm g && truncate -s 5000 d/a$2";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(disk.path()).arg(round.to_string());
        assert!(shell.status().unwrap().success());
        disk.cut_now();
        disk.release();
        disk.restore_power();
    }
    let place = tempfile::tempdir().unwrap();
    let (log, files) = disk.with_files(|files, _| (stored(files, place.path()), format!("{files:?}")));
    assert_eq!(format!("{:?}", log.replay(|_, _| true).unwrap()), files);
    assert!(log.calls.iter().all(|call| call.at() > Duration::ZERO));
    let [first, .., last] = &log.calls[..] else { panic!("there are calls") };
    assert!(first.at() < last.at());
}
