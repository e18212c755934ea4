use crate::model::{draft, open, small, wait_until};
use mailrun_spool::faulty::FaultyDisk;
use mailrun_spool::{DiskProbe, Error, RealDisk, Spool, inspect};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

fn open_at(directory: &Path) -> Result<Spool, Error> {
    Spool::open(Arc::new(RealDisk::new(directory).unwrap()), small()).map(|(spool, _)| spool)
}

fn assert_locked(directory: &Path) {
    assert!(matches!(open_at(directory), Err(Error::Locked)));
    assert!(matches!(inspect(directory), Err(Error::Locked)));
}

fn store(spool: &Spool, bytes: usize) -> Result<(), Error> {
    spool.store(draft(1, bytes)).wait().map(drop)
}

/// Stores a message in the first segment, and waits until the spool has made another segment in advance. Afterwards, no
/// file is being created.
fn settle(spool: &Spool) {
    store(spool, 10).unwrap();
    wait_until(|| spool.stats().disk_bytes >= 2 * small().segment_bytes);
}

#[test]
fn two_programs_do_not_share_a_spool() {
    let directory = tempfile::tempdir().unwrap();
    let spool = open_at(directory.path()).unwrap();
    assert_locked(directory.path());
    let other = spool.clone();
    spool.close();
    assert!(matches!(other.store(draft(1, 1)).wait(), Err(Error::Closed)));
    open_at(directory.path()).unwrap();
}

#[test]
fn the_same_disk_is_not_opened_twice() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::new(directory.path()).unwrap());
    let _spool = Spool::open(disk.clone(), small()).unwrap();
    assert!(matches!(Spool::open(disk, small()), Err(Error::Locked)));
}

#[test]
fn a_deleted_lock_file_lets_nobody_in() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("spool");
    let spool = open_at(&directory).unwrap();
    fs::remove_file(directory.join("lock")).unwrap();
    assert_locked(&directory);
    let link = place.path().join("link");
    std::os::unix::fs::symlink(&directory, &link).unwrap();
    assert_locked(&link);
    let moved = place.path().join("moved");
    fs::rename(&directory, &moved).unwrap();
    assert_locked(&moved);
    store(&spool, 10).unwrap();
    spool.close();
    fs::remove_file(moved.join("lock")).unwrap_or_default();
    let inspection = inspect(&moved).unwrap();
    assert_eq!(inspection.messages().len(), 1);
    assert!(matches!(open_at(&moved), Err(Error::Locked)), "a relay waits for an inspection, with or without the file");
    assert!(inspect(&moved).is_ok(), "two inspections do not disturb each other");
    drop(inspection);
    open_at(&moved).unwrap();
}

/// Older versions lock only the file `lock` and not the directory, and other hosts on a network file system see only
/// locks of files. So the file's lock alone must exclude other processes.
#[test]
fn a_process_that_locks_only_the_file_is_excluded_as_well() {
    let place = tempfile::tempdir().unwrap();
    let spool = open_at(place.path()).unwrap();
    let file = File::open(place.path().join("lock")).unwrap();
    assert!(flock(&file, FlockOperation::NonBlockingLockExclusive).is_err());
    spool.close();
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_locked(place.path());
    flock(&file, FlockOperation::Unlock).unwrap();
    open_at(place.path()).unwrap();
}

#[test]
fn a_spool_whose_directory_was_replaced_leaves_the_new_one_alone() {
    let place = tempfile::tempdir().unwrap();
    let [directory, moved] = ["spool", "moved"].map(|name| place.path().join(name));
    let old = open_at(&directory).unwrap();
    settle(&old);
    fs::rename(&directory, &moved).unwrap();
    let new = open_at(&directory).unwrap();
    settle(&new);
    let files = |path: &Path| {
        let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = files(&directory);
    // Let the old spool create and remove segments, which must not change the files of the new spool.
    for _ in 0..4 {
        let stored = old.store(draft(1, 100_000)).wait().unwrap();
        old.done(stored.id());
    }
    old.close();
    assert_eq!(files(&directory), before);
    assert!(files(&moved).len() >= 3, "{:?}", files(&moved));
    new.close();
}

#[test]
fn a_spool_whose_directory_was_deleted_accepts_nothing() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("spool");
    let spool = open_at(&directory).unwrap();
    settle(&spool);
    fs::remove_dir_all(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    assert!(matches!(store(&spool, 100_000), Err(Error::Poisoned(_))));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}

/// Asserts that a spool refuses mail with the right reason after another process has created a file
/// with the name of the next segment.
fn assert_foreign(outcome: Result<(), Error>, name: &str) {
    let Err(error @ Error::Poisoned(_)) = outcome else { panic!("{outcome:?}") };
    let text = error.to_string();
    assert!(text.contains(&format!("{name} already exists")) && text.contains("another process"), "{text}");
}

#[test]
fn a_segment_that_is_needed_now_overwrites_no_file() {
    let place = tempfile::tempdir().unwrap();
    let spool = open_at(place.path()).unwrap();
    settle(&spool);
    let path = place.path().join("segment-00000002");
    fs::write(&path, "of another relay").unwrap();
    assert_foreign(store(&spool, 100_000), "segment-00000002");
    assert_foreign(store(&spool, 10), "segment-00000002");
    assert!(matches!(spool.failure(), Some(Error::Poisoned(_))));
    spool.close();
    assert_eq!(fs::read_to_string(&path).unwrap(), "of another relay");
}

#[test]
fn a_segment_that_is_made_ahead_overwrites_no_file() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    settle(&spool);
    disk.put("segment-00000002", b"of another relay");
    // The spool still has a free segment, so it accepts some messages. When it tries to make another segment, it finds
    // the foreign file and must refuse messages.
    let outcome = (0..10_000).map(|_| store(&spool, 20_000)).find(Result::is_err).unwrap();
    assert_foreign(outcome, "segment-00000002");
    assert!(spool.stats().segments <= 2, "{:?}", spool.stats());
    spool.close();
    assert_eq!(disk.octets("segment-00000002").as_deref(), Some(&b"of another relay"[..]));
}

#[test]
fn a_probe_overwrites_no_file() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("probe");
    fs::write(&path, "mine").unwrap();
    assert_eq!(DiskProbe::create(place.path(), "probe", 1 << 16).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn a_copy_in_the_quarantine_is_not_replaced_by_another() {
    let disk = FaultyDisk::new();
    let damaged = |octet: u8| vec![octet; 70_000];
    for octets in [damaged(1), damaged(2), damaged(1)] {
        disk.put("segment-00000000", &octets);
        drop(open(&disk, small()).unwrap());
    }
    let copies = || {
        let names =
            disk.names().into_iter().filter(|name| name.starts_with("quarantine/") && name.contains("-0-header"));
        names.map(|name| (disk.octets(&name).unwrap(), name)).collect::<Vec<_>>()
    };
    let before = copies();
    assert_eq!(before.iter().map(|(octets, _)| octets).collect::<Vec<_>>(), [&damaged(1), &damaged(2)]);
    disk.put(&before[1].1, &[damaged(2)[..10_000].to_vec(), vec![0; 1000]].concat());
    disk.put("segment-00000000", &damaged(2));
    drop(open(&disk, small()).unwrap());
    assert_eq!(copies(), before);
}
