//! Whatever operations come before a power cut, synced data must survive it. In the place of unsynced data, there must
//! be either the old data or data that was written.
#![allow(clippy::unwrap_used)] // The lint exempts `#[test]` functions but not the functions that they call

use mailrun_crashfs::{FileSystem, Inode, Profile, ROOT, SECTOR};
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rustix::io::Errno;
use std::time::{Duration, UNIX_EPOCH};

/// An operation on the only file of the test.
#[derive(Clone, Debug)]
enum Act {
    Write { at: usize, bytes: Vec<u8> },
    Resize(usize),
    Sync,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let write =
        (0usize..5000, prop::collection::vec(1u8..=255, 1..2000)).prop_map(|(at, bytes)| Act::Write { at, bytes });
    prop::collection::vec(
        prop_oneof![4 => write, 1 => (0usize..6000).prop_map(Act::Resize), 1 => Just(Act::Sync)],
        0..12,
    )
}

/// Returns a file system with one empty file, whose name is durable.
fn with_file(name: &str) -> (FileSystem, Inode) {
    let mut files = FileSystem::new(1 << 20);
    let inode = files.create(ROOT, name, 0o600).unwrap().inode;
    files.sync_directory(ROOT).unwrap();
    (files, inode)
}

fn contents(files: &mut FileSystem, name: &str) -> Result<Vec<u8>, Errno> {
    let inode = files.look_up(ROOT, name)?.inode;
    files.read(inode, 0, usize::MAX >> 1).map(<[u8]>::to_vec)
}

fn chance(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

proptest! {
    #[test]
    fn each_sector_is_as_it_was_when_synced_or_as_it_has_been_since(acts in acts(), seed: u64) {
        let (mut files, inode) = with_file("a");
        // `past` has the content of the file after each act since the last sync, beginning with the synced content.
        let mut past = vec![Vec::new()];
        let mut now = Vec::new();
        for act in acts {
            match act {
                Act::Write { at, bytes } => {
                    files.write(inode, at as u64, &bytes).unwrap();
                    now.resize(now.len().max(at + bytes.len()), 0);
                    now[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                Act::Resize(length) => {
                    files.set_length(inode, length as u64).unwrap();
                    now.resize(length, 0);
                }
                Act::Sync => {
                    files.sync(inode).unwrap();
                    past.clear();
                }
            }
            prop_assert_eq!(files.read(inode, 0, 1 << 20).unwrap(), &now[..]);
            past.push(now.clone());
        }
        files.cut(&mut chance(seed));
        let left = contents(&mut files, "a").unwrap();
        prop_assert!(past.iter().any(|file| file.len() == left.len()), "a length that it never had");
        for (number, sector) in left.chunks(SECTOR).enumerate() {
            let at = |file: &Vec<u8>, byte: usize| file.get(number * SECTOR + byte).copied().unwrap_or(0);
            let is_whole = |file: &Vec<u8>| (0..sector.len()).all(|byte| sector[byte] == at(file, byte));
            // A power cut may tear a sector (write only its beginning) only if the sector had only zeros at the last
            // sync. The sector then begins like one of the contents in `past`, and ends with zeros.
            let end = sector.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let is_begun = |file: &Vec<u8>| (0..end).all(|byte| sector[byte] == at(file, byte));
            let was_zeros = (0..SECTOR).all(|byte| at(&past[0], byte) == 0);
            prop_assert!(past.iter().any(is_whole) || (was_zeros && past.iter().any(is_begun)), "sector {}", number);
        }
    }

    #[test]
    fn what_was_synced_is_there_however_often_the_power_is_cut(bytes in prop::collection::vec(any::<u8>(), 1..3000), seed: u64) {
        let (mut files, inode) = with_file("a");
        files.write(inode, 700, &bytes).unwrap();
        files.sync(inode).unwrap();
        for cut in 0..3 {
            files.cut(&mut chance(seed ^ cut));
            prop_assert_eq!(&contents(&mut files, "a").unwrap()[700..], &bytes[..]);
        }
    }

    #[test]
    fn a_rename_is_done_as_a_whole_or_not_at_all(seed: u64, is_synced: bool) {
        let (mut files, old) = with_file("a");
        let new = files.create(ROOT, "b", 0o600).unwrap().inode;
        files.sync_directory(ROOT).unwrap();
        for (inode, bytes) in [(old, b"old"), (new, b"new")] {
            files.write(inode, 0, bytes).unwrap();
            files.sync(inode).unwrap();
        }
        files.rename((ROOT, "b"), (ROOT, "a")).unwrap();
        if is_synced {
            files.sync_directory(ROOT).unwrap();
        }
        files.cut(&mut chance(seed));
        let a = contents(&mut files, "a").unwrap();
        let b = contents(&mut files, "b");
        prop_assert!(a == b"new" && b == Err(Errno::NOENT) || !is_synced && a == b"old" && b.as_deref() == Ok(b"new"));
    }
}

/// Returns true if `is_so` returns true for some seeds and false for others. The seed decides what a power cut leaves.
fn depends_on_chance(is_so: impl Fn(u64) -> bool) -> bool {
    let so = (0..200).filter(|seed| is_so(*seed)).count();
    (1..200).contains(&so)
}

#[test]
fn what_was_not_synced_may_be_lost_and_may_be_there() {
    assert!(depends_on_chance(|seed| {
        let (mut files, inode) = with_file("a");
        files.write(inode, 0, b"written").unwrap();
        files.cut(&mut chance(seed));
        contents(&mut files, "a").unwrap() == b"written"
    }));
}

#[test]
fn a_later_write_may_be_there_without_an_earlier_one() {
    assert!(depends_on_chance(|seed| {
        let (mut files, inode) = with_file("a");
        files.write(inode, 0, &[1; SECTOR]).unwrap();
        files.write(inode, SECTOR as u64, &[2; SECTOR]).unwrap();
        files.cut(&mut chance(seed));
        contents(&mut files, "a").unwrap() == [[0; SECTOR], [2; SECTOR]].concat()
    }));
}

#[test]
fn a_name_is_durable_only_when_its_directory_is_synced() {
    assert!(depends_on_chance(|seed| {
        let mut files = FileSystem::new(1 << 20);
        let inode = files.create(ROOT, "a", 0o600).unwrap().inode;
        files.write(inode, 0, b"x").unwrap();
        files.sync(inode).unwrap();
        files.cut(&mut chance(seed));
        contents(&mut files, "a").is_ok()
    }));
}

#[test]
fn a_file_that_was_removed_may_come_back_until_its_directory_is_synced() {
    let is_back = |seed, is_synced| {
        let (mut files, _) = with_file("a");
        files.remove(ROOT, "a").unwrap();
        if is_synced {
            files.sync_directory(ROOT).unwrap();
        }
        files.cut(&mut chance(seed));
        contents(&mut files, "a").is_ok()
    };
    assert!(depends_on_chance(|seed| is_back(seed, false)));
    assert!((0..200).all(|seed| !is_back(seed, true)));
}

#[test]
fn a_directory_comes_back_with_what_is_below_it_or_not_at_all() {
    assert!(depends_on_chance(|seed| {
        let mut files = FileSystem::new(1 << 20);
        let below = files.make_directory(ROOT, "spool", 0o700).unwrap().inode;
        files.create(below, "a", 0o600).unwrap();
        files.sync_directory(below).unwrap();
        files.cut(&mut chance(seed));
        let Ok(directory) = files.look_up(ROOT, "spool") else { return false };
        assert!(files.look_up(directory.inode, "a").is_ok());
        true
    }));
}

#[test]
fn a_directory_replaces_only_an_empty_one() {
    let mut files = FileSystem::new(1 << 20);
    let [empty, full, other] =
        ["empty", "full", "other"].map(|name| files.make_directory(ROOT, name, 0o700).unwrap().inode);
    files.create(full, "mail", 0o600).unwrap();
    assert_eq!(files.rename((ROOT, "other"), (ROOT, "full")), Err(Errno::NOTEMPTY));
    assert_eq!(files.look_up(ROOT, "other").unwrap().inode, other, "a failed rename changes nothing");
    assert_eq!(files.look_up(ROOT, "full").unwrap().inode, full);
    files.rename((ROOT, "full"), (ROOT, "empty")).unwrap();
    assert_eq!(files.look_up(ROOT, "empty").unwrap().inode, full);
    assert_ne!(empty, full);
}

/// File system for tests that rename a file from the directory `from` to the directory `to`. Both directories are
/// durable.
struct Renamed {
    files: FileSystem,
    from: Inode,
    to: Inode,
    inode: Inode,
}

impl Renamed {
    /// Makes two durable directories, and in the first of them a file `x`, which is not durable yet.
    fn new(profile: Profile, names: [&str; 2]) -> Self {
        let mut files = FileSystem::new(1 << 20);
        let [from, to] = names.map(|name| files.make_directory(ROOT, name, 0o700).unwrap().inode);
        files.sync_all();
        files.set_profile(profile);
        let inode = files.create(from, "x", 0o600).unwrap().inode;
        files.write(inode, 0, b"mail").unwrap();
        Self { files, from, to, inode }
    }
}

#[test]
fn a_rename_leaves_the_names_that_its_file_system_leaves() {
    use Profile::{Btrfs, Ext4, Strict, Xfs};
    type Calls = fn(&mut Renamed);
    fn renamed(of: &mut Renamed) {
        of.files.rename((of.from, "x"), (of.to, "x")).unwrap();
    }
    fn from_durable(of: &mut Renamed) {
        of.files.sync(of.inode).unwrap();
        of.files.sync_directory(of.from).unwrap();
        renamed(of);
    }
    let nothing_synced: Calls = from_durable;
    let new_synced: Calls = |of| {
        from_durable(of);
        of.files.sync_directory(of.to).unwrap();
    };
    let old_synced: Calls = |of| {
        from_durable(of);
        of.files.sync_directory(of.from).unwrap();
    };
    let both_synced: Calls = |of| {
        from_durable(of);
        of.files.sync_directory(of.to).unwrap();
        of.files.sync_directory(of.from).unwrap();
    };
    let file_synced: Calls = |of| {
        from_durable(of);
        of.files.sync(of.inode).unwrap();
    };
    // A server that delivers into a Maildir makes these calls. It never syncs the directory in which it made the file.
    let made_and_new_synced: Calls = |of| {
        of.files.sync(of.inode).unwrap();
        renamed(of);
        of.files.sync_directory(of.to).unwrap();
    };
    let only_new_synced: Calls = |of| {
        renamed(of);
        of.files.sync_directory(of.to).unwrap();
    };
    let renamed_twice: Calls = |of| {
        renamed(of);
        of.files.rename((of.to, "x"), (of.to, "y")).unwrap();
        of.files.rename((of.to, "y"), (of.to, "x")).unwrap();
        of.files.sync_directory(of.to).unwrap();
    };
    let linked_and_removed: Calls = |of| {
        of.files.sync(of.inode).unwrap();
        of.files.sync_directory(of.from).unwrap();
        of.files.link(of.inode, of.to, "x").unwrap();
        of.files.remove(of.from, "x").unwrap();
        of.files.sync_directory(of.to).unwrap();
    };
    let (old_or_new, new) = (&["new", "old"][..], &["new"][..]);
    let (any, new_stays, old_goes) = (&["both", "new", "none", "old"][..], &["both", "new"][..], &["new", "none"][..]);
    // Each row ends with the names that the file may have after a power cut: on ext4, on XFS, on btrfs, and on a file
    // system that promises only what POSIX says.
    for (situation, calls, allowed) in [
        ("nothing is synced after it", nothing_synced, [old_or_new, old_or_new, old_or_new, any]),
        ("the new directory is synced", new_synced, [new, new, new, new_stays]),
        ("the old directory is synced", old_synced, [new, new, new, old_goes]),
        ("both directories are synced", both_synced, [new, new, new, new]),
        ("the file is synced", file_synced, [new, new, new, any]),
        ("only file and new directory are ever synced", made_and_new_synced, [new, new, new, new_stays]),
        ("only the new directory is ever synced", only_new_synced, [new, new, new, new_stays]),
        ("it is renamed again", renamed_twice, [new, new, new, new_stays]),
        ("link and unlink instead", linked_and_removed, [new, new, new_stays, new_stays]),
    ] {
        // The order of the directories' names must not matter.
        for (from, to) in [("d", "e"), ("e", "d")] {
            for (profile, allowed) in [Ext4, Xfs, Btrfs, Strict].into_iter().zip(allowed) {
                let left = |seed| {
                    let mut of = Renamed::new(profile, [from, to]);
                    calls(&mut of);
                    of.files.cut(&mut chance(seed));
                    let [old, new] = [from, to].map(|name| {
                        let directory = of.files.look_up(ROOT, name).unwrap().inode;
                        of.files.look_up(directory, "x").ok()
                    });
                    match (old, new) {
                        (Some(old), Some(new)) => {
                            assert_eq!((old.inode, old.names), (new.inode, 2), "it is one file");
                            "both"
                        }
                        (Some(_), None) => "old",
                        (None, Some(_)) => "new",
                        (None, None) => "none",
                    }
                };
                let found: std::collections::BTreeSet<_> = (0..400).map(left).collect();
                assert_eq!(found.into_iter().collect::<Vec<_>>(), allowed, "{situation}, {from} to {to}, {profile:?}");
            }
        }
    }
}

#[test]
fn each_profile_keeps_what_its_file_system_keeps() {
    use Profile::{Btrfs, Ext4, Strict, Xfs};
    type Calls = fn(&mut FileSystem);
    fn made(files: &mut FileSystem, name: &str, bytes: &[u8]) -> Inode {
        let inode = files.create(ROOT, name, 0o600).unwrap().inode;
        files.write(inode, 0, bytes).unwrap();
        inode
    }
    fn synced(files: &mut FileSystem, name: &str, bytes: &[u8]) -> Inode {
        let inode = made(files, name, bytes);
        files.sync(inode).unwrap();
        inode
    }
    let synced_and_renamed: Calls = |files| {
        synced(files, "t", b"new");
        files.rename((ROOT, "t"), (ROOT, "a")).unwrap();
    };
    let replaced_unsynced: Calls = |files| {
        synced(files, "a", b"old");
        files.sync_directory(ROOT).unwrap();
        made(files, "t", b"new");
        files.rename((ROOT, "t"), (ROOT, "a")).unwrap();
    };
    let by_another_sync: Calls = |files| {
        let a = made(files, "a", b"new");
        synced(files, "b", b"other");
        files.close(a);
    };
    let old_names: Calls = |files| {
        synced(files, "t", b"new");
        files.rename((ROOT, "t"), (ROOT, "a")).unwrap();
        files.set_time(UNIX_EPOCH + Duration::from_secs(10));
    };
    let old_data: Calls = |files| {
        made(files, "a", b"new");
        files.sync_directory(ROOT).unwrap();
        files.set_time(UNIX_EPOCH + Duration::from_secs(40));
    };
    let half: Calls = |files| {
        let a = synced(files, "a", b"");
        files.sync_directory(ROOT).unwrap();
        (0..4).for_each(|part| files.write(a, part * 1000, &[b'x'; 1000]).unwrap());
    };
    // Each row ends with what may be under the name `a` after a power cut: nothing, an empty file, the old file, the
    // whole new file, or a part of the new file.
    let all = ["none", "empty", "old", "new", "part"];
    for (situation, calls, profile, allowed) in [
        ("a name after a sync of its file", synced_and_renamed as Calls, Ext4, &["none", "new"][..]),
        ("the same", synced_and_renamed, Xfs, &["none", "new"]),
        ("the same", synced_and_renamed, Btrfs, &["none", "new"]),
        ("the same", synced_and_renamed, Strict, &["none", "new"]),
        ("a file replaced by one that was not synced", replaced_unsynced, Ext4, &["old", "new"]),
        ("the same", replaced_unsynced, Xfs, &["old", "empty", "new"]),
        ("a name after the sync of another file", by_another_sync, Ext4, &["empty", "new"]),
        ("the same", by_another_sync, Xfs, &["empty", "new"]),
        ("the same", by_another_sync, Btrfs, &["none", "empty", "new"]),
        ("a rename of ten seconds ago", old_names, Ext4, &["new"]),
        ("the same", old_names, Xfs, &["none", "new"]),
        ("the same", old_names, Btrfs, &["none", "new"]),
        ("data of forty seconds ago", old_data, Ext4, &["new"]),
        ("the same", old_data, Btrfs, &["new"]),
        ("the same", old_data, Strict, &["empty", "new", "part"]),
        ("four appended pieces", half, Ext4, &["empty", "new"]),
        ("the same", half, Btrfs, &["empty", "new"]),
        ("the same", half, Strict, &["empty", "new", "part"]),
    ] {
        let seen = |seed| {
            let mut files = FileSystem::new(1 << 20);
            files.set_profile(profile);
            files.set_time(UNIX_EPOCH);
            calls(&mut files);
            files.cut(&mut chance(seed));
            match contents(&mut files, "a").as_deref() {
                Err(_) => "none",
                Ok(b"") => "empty",
                Ok(b"old") => "old",
                Ok(b"new") => "new",
                Ok(bytes) if bytes == [b'x'; 4000] => "new",
                Ok(_) => "part",
            }
        };
        let found: std::collections::BTreeSet<_> = (0..500).map(seen).collect();
        let expected: std::collections::BTreeSet<_> = all.into_iter().filter(|state| allowed.contains(state)).collect();
        assert_eq!(found, expected, "{situation} on {profile:?}");
    }
}

#[test]
fn after_a_sync_that_failed_the_next_one_writes_nothing_of_it() {
    assert!(depends_on_chance(|seed| {
        let (mut files, inode) = with_file("a");
        files.set_length(inode, 8 * SECTOR as u64).unwrap();
        files.sync(inode).unwrap();
        files.write(inode, 0, &[7; SECTOR]).unwrap();
        files.fail_sync(inode, Errno::IO, &mut chance(seed)).unwrap();
        assert_eq!(files.is_dropped(inode, 0..SECTOR), !files.is_durable(inode, 0..SECTOR));
        assert_eq!(files.read(inode, 0, SECTOR).unwrap(), [7; SECTOR], "processes see it");
        files.sync(inode).unwrap();
        files.cut(&mut chance(seed));
        contents(&mut files, "a").unwrap()[..SECTOR] == [7; SECTOR]
    }));
}

#[test]
fn a_full_disk_takes_no_more_and_what_is_removed_makes_room() {
    let (mut files, inode) = with_file("a");
    assert_eq!(files.set_length(inode, 2 << 20), Err(Errno::NOSPC));
    files.set_length(inode, 1 << 20).unwrap();
    let other = files.create(ROOT, "b", 0o600).unwrap().inode;
    assert_eq!(files.write(other, 0, b"x"), Err(Errno::NOSPC));
    files.remove(ROOT, "a").unwrap();
    files.write(other, 0, b"x").unwrap();
}

#[test]
fn a_bit_that_flips_is_seen_and_stays() {
    let (mut files, inode) = with_file("a");
    files.write(inode, 0, &[0; 100]).unwrap();
    files.sync(inode).unwrap();
    files.flip_bit(inode, 50, &mut chance(1)).unwrap();
    files.cut(&mut chance(2));
    let left = contents(&mut files, "a").unwrap();
    assert_eq!(left.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    assert_ne!(left[50], 0);
}

#[test]
fn a_file_with_two_names_keeps_its_content_under_each_name_that_is_durable() {
    let (mut files, inode) = with_file("a");
    files.write(inode, 0, b"x").unwrap();
    files.link(inode, ROOT, "b").unwrap();
    assert_eq!(files.attributes(inode).unwrap().names, 2);
    files.sync(inode).unwrap();
    files.sync_directory(ROOT).unwrap();
    files.cut(&mut chance(1));
    let [a, b] = ["a", "b"].map(|name| files.look_up(ROOT, name).unwrap());
    assert_eq!((a.inode, a.names), (b.inode, 2), "still one file");
    files.remove(ROOT, "a").unwrap();
    assert_eq!(contents(&mut files, "b").unwrap(), b"x");
    assert_eq!(files.link(b.inode, ROOT, "b").unwrap_err(), Errno::EXIST);
    assert!(depends_on_chance(|seed| {
        let (mut files, inode) = with_file("a");
        files.link(inode, ROOT, "b").unwrap();
        files.cut(&mut chance(seed));
        assert!(contents(&mut files, "a").is_ok(), "the first name stays");
        contents(&mut files, "b").is_ok()
    }));
}
