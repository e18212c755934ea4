//! Tests of a full spool. It reports that it is full, recovers by itself and reuses segments, and
//! no message blocks the others.
use crate::model::{assert_genuine, draft, open, small, wait_until};
use mailrun_spool::faulty::FaultyDisk;
use mailrun_spool::{Disk, DiskFile, Durability, Error, Id, Options, Receipt, Spool};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

fn store(spool: &Spool, number: u64, bytes: usize) -> Result<Id, Error> {
    spool.store(draft(number, bytes)).wait().map(|stored| stored.id())
}

/// Waits until a free segment is ready and no disk operation is running.
fn settle(spool: &Spool) {
    settle_at(spool, 2 * (64 << 10));
}

fn settle_at(spool: &Spool, disk_bytes: u64) {
    wait_until(|| spool.stats().disk_bytes == disk_bytes);
}

fn fill(spool: &Spool, bytes: usize) -> Vec<Id> {
    let mut ids = Vec::new();
    loop {
        match store(spool, ids.len() as u64, bytes) {
            Ok(id) => ids.push(id),
            Err(Error::Full) => return ids,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_full_spool_says_so_and_recovers_by_itself() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    for _ in 0..3 {
        let ids = fill(&spool, 10_000);
        assert!(ids.len() > 30, "{}", ids.len());
        assert!(spool.stats().disk_bytes <= small().max_bytes);
        ids.iter().for_each(|id| spool.done(*id));
        wait_until(|| spool.stats().messages == 0);
    }
    assert!(store(&spool, 1, 10_000).is_ok());
    let usage = spool.stats();
    assert!(usage.refused >= 3 && usage.unwritten == 0, "{usage:?}");
}

#[test]
fn a_full_spool_whose_messages_are_spread_recovers_too() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    let ids = fill(&spool, 10_000);
    ids.iter().enumerate().filter(|(at, _)| at % 4 != 0).for_each(|(_, id)| spool.done(*id));
    let more = (0..1000).find(|_| store(&spool, 7, 10_000).is_ok());
    assert!(more.is_some(), "{:?}", spool.stats());
    assert!(spool.stats().moved > 0);
    for id in ids.iter().step_by(4) {
        assert_eq!(spool.read(*id).unwrap().len(), 10_000);
    }
}

/// Fills a spool with messages and notes, and marks all but the first message as done. Then there must be room again.
fn assert_recovers_but_for_one(spool: &Spool) {
    let mut ids = fill(spool, 10_000);
    // Write more notes than the reserve for notes can hold, and then use up all room that is left.
    let note = vec![b'n'; 3000];
    (0..100).for_each(|_| spool.note(ids[1], &note));
    wait_until(|| spool.stats().unwritten > 0);
    ids.extend(fill(spool, 10));
    ids[1..].iter().for_each(|id| spool.done(*id));
    wait_until(|| spool.stats().messages == 1);
    wait_until(|| store(spool, 7, 10_000).is_ok());
    assert_eq!(spool.read(ids[0]).unwrap().len(), 10_000);
    assert!(spool.stats().moved > 0, "{:?}", spool.stats());
}

#[test]
fn one_message_that_waits_does_not_keep_a_full_spool_full() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    assert_recovers_but_for_one(&spool);
    assert!(spool.stats().disk_bytes <= small().max_bytes);
}

#[test]
fn one_message_that_waits_does_not_keep_a_full_disk_full() {
    let disk = FaultyDisk::new();
    disk.limit_capacity(Some(7 * (64 << 10)));
    let (spool, _) = open(&disk, small()).unwrap();
    assert_recovers_but_for_one(&spool);
}

#[test]
fn what_brings_others_to_their_end_is_stored_in_a_full_spool() {
    for durability in [Durability::Sync, Durability::Memory] {
        let (spool, _) = open(&FaultyDisk::new(), Options { durability, ..small() }).unwrap();
        // The messages fill whole blocks, so the spool gains no room by moving them.
        let ids = fill(&spool, 4000);
        let notice = || spool.store_from_reserve(draft(7, 4000)).wait();
        assert!((0..10).all(|_| notice().is_ok()));
        assert!(matches!(store(&spool, 8, 1000), Err(Error::Full)), "it is none the less full");
        // The reserve is limited, so the spool must refuse notices in the end.
        assert!((0..100).any(|_| matches!(notice(), Err(Error::Full))));
        ids.iter().for_each(|id| spool.done(*id));
        wait_until(|| store(&spool, 9, 1000).is_ok());
    }
}

#[test]
fn a_full_disk_is_a_full_spool() {
    let disk = FaultyDisk::new();
    disk.limit_capacity(Some(330_000));
    let (spool, _) = open(&disk, small()).unwrap();
    let ids = fill(&spool, 10_000);
    assert!(!ids.is_empty());
    // The disk has room for five segments. New messages may use only three, because the last two are reserved.
    let usage = spool.stats();
    assert!(usage.segments == 3 && usage.disk_bytes <= 5 * (64 << 10), "{usage:?}");
    disk.limit_capacity(None);
    assert!(store(&spool, 1, 10_000).is_ok());
    drop(spool);
    let (_, backlog) = open(&disk, small()).unwrap();
    assert_eq!(backlog.len(), ids.len() + 1);
}

#[test]
fn a_disk_that_is_smaller_than_segments_are_is_used_all_the_same() {
    let disk = FaultyDisk::new();
    disk.limit_capacity(Some(4 << 20));
    for _ in 0..3 {
        let (spool, backlog) = open(&disk, Options::default()).unwrap();
        backlog.for_each(|left| spool.done(left.unwrap().id));
        wait_until(|| store(&spool, 0, 100_000).is_ok());
        let ids = fill(&spool, 100_000);
        assert!(ids.len() > 10, "{}", ids.len());
        ids.iter().for_each(|id| spool.done(*id));
        wait_until(|| spool.stats().messages <= 1);
        wait_until(|| store(&spool, 1, 100_000).is_ok());
    }
}

#[test]
fn a_spool_that_is_opened_with_less_room_than_it_uses_empties_itself() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    fill(&spool, 10_000);
    drop(spool);
    let (spool, backlog) = open(&disk, Options { max_bytes: 4 * (64 << 10), ..small() }).unwrap();
    assert!(matches!(store(&spool, 1, 100), Err(Error::Full)));
    backlog.for_each(|left| spool.done(left.unwrap().id));
    wait_until(|| spool.stats().messages == 0);
    assert!(store(&spool, 1, 100).is_ok());
    assert!(spool.stats().disk_bytes <= 4 * (64 << 10), "{:?}", spool.stats());
}

#[test]
fn segments_are_used_again() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    for number in 0..300 {
        let id = store(&spool, number, 10_000).unwrap();
        spool.done(id);
    }
    let usage = spool.stats();
    assert!(usage.disk_bytes <= 4 * (64 << 10), "{usage:?}");
    assert!(disk.names().len() <= 4, "{:?}", disk.names());
    drop(spool);
    let (_, backlog) = open(&disk, small()).unwrap();
    assert!(backlog.len() <= 1, "{}", backlog.len());
}

#[test]
fn one_message_that_waits_holds_up_no_segment_and_keeps_its_notes() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    let waits = store(&spool, 1, 12_345).unwrap();
    let mut others = VecDeque::new();
    for number in 2..400 {
        if number % 50 == 0 {
            spool.note(waits, format!("try {number}").as_bytes());
        }
        others.push_back(store(&spool, number, 10_000).unwrap());
        if others.len() > 3 {
            spool.done(others.pop_front().unwrap());
        }
    }
    let usage = spool.stats();
    assert!(usage.moved > 0 && usage.moved < 100 && usage.segments < 8, "{usage:?}");
    assert_eq!(spool.read(waits).unwrap().len(), 12_345);
    drop(spool);
    let (spool, backlog) = open(&disk, small()).unwrap();
    let left: Vec<_> = backlog.map(|left| left.unwrap()).collect();
    let message = left.iter().find(|left| left.id == waits).unwrap();
    assert_genuine(&spool, message);
    let tries: Vec<_> = (1..8).map(|at| format!("try {}", at * 50).into_bytes()).collect();
    assert_eq!(message.notes, tries);
}

/// The scan for messages to move ends at the damage. The spool must move the messages behind it nevertheless, because
/// the index knows them.
#[test]
fn damage_before_a_message_that_waits_holds_up_no_segment() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    spool.done(store(&spool, 1, 10_000).unwrap());
    let waits = store(&spool, 2, 12_345).unwrap();
    let name = disk.names().into_iter().find(|name| disk.octets(name).unwrap().len() > 20_000).unwrap();
    disk.fail_reads(&name, 0..10_000);
    let mut others = VecDeque::new();
    for number in 3..200 {
        others.push_back(store(&spool, number, 10_000).unwrap());
        if others.len() > 3 {
            spool.done(others.pop_front().unwrap());
        }
    }
    let usage = spool.stats();
    assert!(usage.moved > 0 && usage.segments < 8, "{usage:?}");
    assert_eq!(spool.read(waits).unwrap().len(), 12_345);
}

#[test]
fn a_large_message_has_a_segment_of_its_own_or_is_refused() {
    let disk = FaultyDisk::new();
    let options = Options { max_message_bytes: 300_000, ..small() };
    let (spool, _) = open(&disk, options).unwrap();
    let id = store(&spool, 1, 300_000).unwrap();
    assert_eq!(spool.read(id).unwrap().len(), 300_000);
    let refused = store(&spool, 2, 300_001);
    assert!(matches!(refused, Err(Error::TooLarge { bytes: 300_001, most: 300_000 })));
    spool.done(id);
    store(&spool, 3, 100).unwrap();
    wait_until(|| spool.stats().disk_bytes <= 3 * (64 << 10));
}

#[test]
fn an_empty_spool_takes_a_message_of_maximum_size_again_and_again() {
    for durability in [Durability::Sync, Durability::Memory] {
        let options = Options { durability, ..small() };
        let envelope_bytes = draft(0, 100_000).envelope.len();
        let most = options.max_stored_bytes() as usize - envelope_bytes;
        let (spool, _) = open(&FaultyDisk::new(), options).unwrap();
        for number in 0..5 {
            let id = store(&spool, number, most).unwrap();
            spool.done(id);
            wait_until(|| spool.stats().messages == 0);
        }
        let refused = store(&spool, 6, most + 1);
        assert!(matches!(refused, Err(Error::TooLarge { .. })), "{durability:?}: {refused:?}");
    }
}

#[test]
fn what_gathers_while_a_sync_runs_is_one_write_and_one_sync() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    store(&spool, 0, 100).unwrap();
    settle(&spool);
    disk.hold_syncs();
    let writes_before = disk.writes().len();
    let first = spool.store(draft(1, 100));
    wait_until(|| disk.writes().len() > writes_before);
    let gathered: Vec<Receipt> = (2..50).map(|number| spool.store(draft(number, 100))).collect();
    let writes = disk.writes().len();
    let syncs = disk.syncs();
    disk.release_syncs();
    first.wait().unwrap();
    gathered.into_iter().for_each(|receipt| assert!(receipt.wait().is_ok()));
    assert_eq!((disk.writes().len() - writes, disk.syncs() - syncs), (1, 2));
}

#[test]
fn a_failed_sync_poisons_for_good() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    let id = store(&spool, 0, 100).unwrap();
    settle(&spool);
    disk.fail_sync(disk.syncs());
    assert!(matches!(store(&spool, 1, 100), Err(Error::Poisoned(_))));
    assert!(matches!(store(&spool, 2, 100), Err(Error::Poisoned(_))), "though the next sync would succeed");
    assert_eq!(spool.read(id).unwrap().len(), 100);
    drop(spool);
    let (_, backlog) = open(&disk.after_power_loss(1), small()).unwrap();
    assert_eq!(backlog.map(|left| left.unwrap().id).collect::<Vec<_>>()[0], id);
}

/// A disk that panics when a batch is written.
struct PanickingDisk(FaultyDisk);

struct PanickingFile(Arc<dyn DiskFile>);

impl Disk for PanickingDisk {
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        self.0.lock()
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.0.create(name)
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(PanickingFile(self.0.open(name)?)))
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }
    fn sync_directory(&self) -> io::Result<()> {
        self.0.sync_directory()
    }
}

impl DiskFile for PanickingFile {
    fn bytes(&self) -> io::Result<u64> {
        self.0.bytes()
    }
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.0.read_at(buffer, at)
    }
    fn write_at(&self, pieces: &mut [IoSlice<'_>], at: u64) -> io::Result<()> {
        assert!(at < 8192, "this disk does not take batches");
        self.0.write_at(pieces, at)
    }
    fn preallocate(&self, bytes: u64, rest: &dyn Fn(Duration)) -> io::Result<()> {
        self.0.preallocate(bytes, rest)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[test]
fn nobody_waits_for_a_commit_thread_that_has_panicked() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    settle_at(&spool, 64 << 10);
    drop(spool);
    let (spool, _) = Spool::open(Arc::new(PanickingDisk(disk)), small()).unwrap();
    assert!(matches!(store(&spool, 1, 100), Err(Error::Poisoned(_))));
    wait_until(|| matches!(store(&spool, 2, 100), Err(Error::Poisoned(_))));
}

#[test]
fn notes_are_written_within_about_a_second_when_nothing_else_is() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    let id = store(&spool, 0, 100).unwrap();
    settle(&spool);
    let syncs = disk.syncs();
    let commits = spool.stats().commits;
    spool.note(id, b"seen");
    wait_until(|| spool.stats().commits > commits);
    assert_eq!(disk.syncs(), syncs, "not synced by itself");
    let (_, mut backlog) = open(&disk.after_kill(), small()).unwrap();
    assert_eq!(backlog.next().unwrap().unwrap().notes, [b"seen"]);
}

#[test]
fn in_memory_nothing_is_written() {
    let disk = FaultyDisk::new();
    let options = Options { durability: Durability::Memory, ..small() };
    let (spool, backlog) = open(&disk, options).unwrap();
    assert!(backlog.is_empty());
    let ids = fill(&spool, 10_000);
    assert_eq!(spool.read(ids[3]).unwrap().len(), 10_000);
    spool.done(ids[3]);
    assert!(matches!(spool.read(ids[3]), Err(Error::Unknown(_))));
    assert!(store(&spool, 1, 10_000).is_ok());
    assert_eq!(spool.stats().messages, ids.len() as u64);
    assert_eq!((disk.operations(), disk.names().len()), (0, 0));
}

#[test]
fn notes_are_durable_when_that_is_asked_for() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    let ids: Vec<Id> = (0..3).map(|number| store(&spool, number, 100).unwrap()).collect();
    let mark = spool.notes_mark();
    spool.note(ids[0], b"held");
    spool.done(ids[1]);
    spool.sync_notes(mark).wait().unwrap();
    // `sync_notes` must also sync notes that the spool has already written but not yet synced. So wait until the spool
    // has written this note.
    spool.note(ids[2], b"held too");
    let commits = spool.stats().commits;
    wait_until(|| spool.stats().commits > commits);
    let both = [spool.sync_notes(mark), spool.sync_notes(mark)];
    both.into_iter().for_each(|receipt| receipt.wait().unwrap());
    for seed in 0..20 {
        let (_, backlog) = open(&disk.after_power_loss(seed), small()).unwrap();
        let left: Vec<_> = backlog.map(|left| left.unwrap()).map(|left| (left.id, left.notes)).collect();
        assert_eq!(left, [(ids[0], vec![b"held".to_vec()]), (ids[2], vec![b"held too".to_vec()])]);
    }
    disk.fail_sync(disk.syncs());
    spool.note(ids[0], b"released");
    assert!(matches!(spool.sync_notes(mark).wait(), Err(Error::Poisoned(_))));
    assert!(matches!(spool.sync_notes(mark).wait(), Err(Error::Poisoned(_))));
}

#[test]
fn a_note_that_has_no_room_is_not_called_durable() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    let ids = fill(&spool, 10_000);
    let note = vec![b'n'; 3000];
    let mark = spool.notes_mark();
    (0..100).for_each(|_| spool.note(ids[1], &note));
    assert!(matches!(spool.sync_notes(mark).wait(), Err(Error::Full)));
    spool.sync_notes(spool.notes_mark()).wait().unwrap();
}
