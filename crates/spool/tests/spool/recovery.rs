use crate::model::{assert_genuine, draft, open, small};
use mailrun_spool::faulty::FaultyDisk;
use mailrun_spool::{
    Cost, Damage, DamageKind, Disk, Durability, Error, Id, OnDamage, Options, RealDisk, Receipt, Spool,
};
use std::sync::Arc;

/// Returns the disk of a closed spool, and the name of its only segment, which has three batches with one small message
/// each.
fn three_batches() -> (FaultyDisk, String) {
    let disk = FaultyDisk::new();
    store_three(&disk).close();
    let name = segment_of(&disk);
    (disk, name)
}

/// Returns the disk of a spool whose process was killed before it closed the spool, and the name of the only segment.
/// The segment has three batches with one small message each.
fn three_batches_killed() -> (FaultyDisk, String) {
    let disk = FaultyDisk::new();
    let spool = store_three(&disk);
    disk.freeze();
    drop(spool);
    let name = segment_of(&disk);
    (disk.after_kill(), name)
}

fn store_three(disk: &FaultyDisk) -> Spool {
    let (spool, _) = open(disk, small()).unwrap();
    for number in 1..=3 {
        spool.store(draft(number, 300)).wait().unwrap();
    }
    spool
}

#[test]
fn an_id_is_written_into_the_body() {
    let disk = FaultyDisk::new();
    let options = Options { segment_bytes: 1 << 20, max_bytes: 16 << 20, ..Options::default() };
    let memory = Options { durability: Durability::Memory, ..options.clone() };
    for (options, is_kept) in [(options, true), (memory, false)] {
        let (spool, _) = open(&disk, options.clone()).unwrap();
        let mut bodies = Vec::new();
        // The longest bodies are here because the spool computes their checksum from the checksums of two parts.
        for bytes in [8, 16, 17, 300, 5_000, 70_000, 200_000] {
            for at in [0, 1, 150] {
                let mut draft = draft(1, bytes);
                draft.body = vec![b'.'; bytes].into();
                let (receipt, body) = spool.store_with_id(draft, at);
                let id = receipt.wait().unwrap().id();
                let mut expected = vec![b'.'; bytes];
                if let Some(place) = expected.get_mut(at..at + Id::TEXT_BYTES) {
                    place.copy_from_slice(id.to_string().as_bytes());
                }
                assert_eq!(*body, *expected, "{bytes} {at}");
                assert_eq!(spool.fetch(id).unwrap().body, body, "{bytes} {at}");
                bodies.push((id, body));
            }
        }
        spool.close();
        let (spool, _) = open(&disk, options).unwrap();
        assert!(spool.damage().is_empty());
        bodies.iter().filter(|_| is_kept).for_each(|(id, body)| assert_eq!(spool.read(*id).unwrap(), *body));
        spool.close();
    }
}

/// Returns the name of the first segment.
fn segment_of(disk: &FaultyDisk) -> String {
    disk.names().into_iter().find(|name| name.starts_with("segment-")).unwrap()
}

const BATCHES_AT: usize = 8192;
const BLOCK: usize = 4096;
/// Length of a batch with one message of 300 bytes: header, envelope and body, without the padding
/// of the block.
const BATCH: usize = UNPADDED.next_multiple_of(8);
const UNPADDED: usize = 32 + 40 + "draft 1 of 300".len() + 300;

fn with_octets(name: &str, octets: &[u8]) -> FaultyDisk {
    let disk = FaultyDisk::new();
    disk.put(name, octets);
    disk
}

fn refusing() -> Options {
    Options { on_damage: OnDamage::Refuse, ..small() }
}

fn refused(disk: &FaultyDisk) -> Vec<Damage> {
    match open(disk, refusing()) {
        Err(Error::DamageRefused(damage)) => damage.to_vec(),
        other => panic!("{other:?}"),
    }
}

fn numbers_left(disk: &FaultyDisk) -> Result<Vec<u64>, Error> {
    let (spool, backlog) = open(disk, small())?;
    let left: Vec<_> = backlog.map(|left| left.unwrap()).collect();
    left.iter().for_each(|left| assert_genuine(&spool, left));
    Ok(left.iter().map(|left| left.received_ns).collect())
}

#[test]
fn a_torn_tail_is_cut_wherever_it_is_torn() {
    let (disk, name) = three_batches_killed();
    let octets = disk.octets(&name).unwrap();
    let last = BATCHES_AT + 2 * BLOCK;
    for torn in 0..=BATCH {
        let mut cut = octets.clone();
        cut[last + torn..last + BLOCK].fill(0);
        let is_same = cut == octets;
        let disk = with_octets(&name, &cut);
        assert_eq!(numbers_left(&disk).unwrap(), if is_same { vec![1, 2, 3] } else { vec![1, 2] }, "{torn}");
        // No crash shortens the file, so a shorter file must count as damage. If only padding was cut off, the last
        // message must still be intact.
        let disk = with_octets(&name, &octets[..last + torn]);
        let damage = refused(&disk);
        assert!(damage.iter().all(|damage| damage.cost >= Cost::Unknown), "{torn}: {damage:?}");
        let (_, backlog) = open(&disk, small()).unwrap();
        let sound = backlog.filter(|left| left.as_ref().is_ok_and(|left| !left.is_body_damaged)).count();
        assert_eq!(sound, if torn >= UNPADDED { 3 } else { 2 }, "{torn}");
    }
}

#[test]
fn a_file_that_was_cut_after_zeros_of_a_header_is_damaged() {
    let (disk, name) = three_batches_killed();
    let last = BATCHES_AT + 2 * BLOCK;
    // The header of a batch begins with a checksum of four bytes, any of which may be zero. So up to four zeros at the
    // end of the file may be the beginning of a batch whose rest was cut off.
    for torn in 0..=4 {
        let mut octets = disk.octets(&name).unwrap()[..last + torn].to_vec();
        octets[last..].fill(0);
        let damage = refused(&with_octets(&name, &octets));
        assert!(damage.iter().any(|damage| damage.cost >= Cost::Unknown), "{torn}: {damage:?}");
    }
}

/// The spool must read bytes that a script wrote according to `docs/spool-format.md`,
/// independently of this code. The fuzz targets also start from these bytes.
#[test]
fn what_the_format_says_is_what_is_read() {
    let seed = |name: &str| {
        let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/segment");
        with_octets("segment-00000000", &std::fs::read(seeds.join(name)).unwrap())
    };
    let assert_left = |name: &str, expected: &[(u64, &[u8], &[u8])]| {
        let (spool, backlog) = open(&seed(name), small()).unwrap();
        let left: Vec<_> = backlog.map(|left| left.unwrap()).collect();
        assert_eq!(left.len(), expected.len());
        for (left, (id, note, body)) in left.iter().zip(expected) {
            assert_eq!((left.id.0, &left.envelope[..], &left.notes[..]), (*id, &b"env"[..], &[note.to_vec()][..]));
            assert_eq!(*spool.read(left.id).unwrap(), **body);
        }
    };
    assert_left("header_only", &[]);
    assert_left("torn", &[(1, b"tried", b"Hello\r\n")]);
    assert_left("two_batches", &[(2, b"note", &[b'x'; 50])]);
}

#[test]
fn after_a_cut_the_log_goes_on_and_the_torn_rest_never_counts() {
    let (disk, name) = three_batches_killed();
    let mut octets = disk.octets(&name).unwrap();
    octets[BATCHES_AT + 2 * BLOCK + 100] ^= 1;
    let disk = with_octets(&name, &octets);
    let (spool, backlog) = open(&disk, small()).unwrap();
    assert_eq!(backlog.len(), 2);
    assert_eq!(spool.stats().cut_bytes, BATCH as u64);
    spool.store(draft(4, 300)).wait().unwrap();
    spool.close();
    // Flip the same bit again, which repairs the batch that recovery has cut off. Its message must not come back.
    let mut octets = disk.octets(&name).unwrap();
    octets[BATCHES_AT + 2 * BLOCK + 100] ^= 1;
    disk.put(&name, &octets);
    assert_eq!(numbers_left(&disk).unwrap(), [1, 2, 4]);
}

#[test]
fn a_bad_middle_is_refused_with_file_and_offset() {
    let (disk, name) = three_batches();
    let octets = disk.octets(&name).unwrap();
    let batch = BATCHES_AT + BLOCK;
    for at in 0..BATCH {
        let mut bad = octets.clone();
        bad[batch + at] ^= 0x10;
        let disk = with_octets(&name, &bad);
        // Damage to a batch's header or to the padding costs no message.
        if !(32..UNPADDED).contains(&at) {
            assert_eq!(open(&disk, refusing()).unwrap().1.len(), 3, "{at}");
            continue;
        }
        let damage = refused(&disk);
        assert_eq!(damage.len(), 1, "{damage:?}");
        assert_eq!((&damage[0].segment, damage[0].offset), (&name, batch as u64 + 32), "{at}");
        assert_eq!((damage[0].cost, damage[0].messages[0].0), (Cost::Messages, 2), "{at}: {damage:?}");
    }
    // A batch that never reached the disk, although its sync succeeded, is read as zeros.
    let mut bad = octets.clone();
    bad[batch..batch + BLOCK].fill(0);
    let damage = refused(&with_octets(&name, &bad));
    assert_eq!((damage[0].offset, damage[0].bytes, damage[0].messages[0].0), (12_288, 4096, 2), "{damage:?}");
}

#[test]
fn a_segment_that_ends_before_the_next_one_begins_is_damaged() {
    let (disk, name) = three_batches();
    let (spool, _) = open(&disk, small()).unwrap();
    spool.store(draft(4, 300)).wait().unwrap();
    spool.close();
    let mut octets = disk.octets(&name).unwrap();
    octets[BATCHES_AT + 2 * BLOCK + 50] ^= 1; // This is the last batch of its segment, but not of the log
    disk.put(&name, &octets);
    let damage = refused(&disk);
    assert_eq!((&damage[0].segment, damage[0].offset, damage[0].messages[0].0), (&name, 16_416, 3), "{damage:?}");
}

#[test]
fn a_segment_that_is_missing_is_noticed() {
    let disk = FaultyDisk::new();
    for number in 1..=3 {
        let (spool, _) = open(&disk, small()).unwrap();
        spool.store(draft(number, 300)).wait().unwrap();
        spool.close();
    }
    let is_used = |name: &String| {
        let octets = disk.octets(name).unwrap();
        [0, BLOCK].into_iter().max_by_key(|at| octets[at + 16]).map(|at| octets[at + 12]) == Some(2)
    };
    let names: Vec<String> = disk.names().into_iter().filter(is_used).collect();
    assert_eq!(names.len(), 3);
    let less = FaultyDisk::new();
    for name in [&names[0], &names[2]] {
        less.put(name, &disk.octets(name).unwrap());
    }
    let damage = refused(&less);
    assert_eq!((damage[0].kind, damage[0].messages[0].0), (DamageKind::MissingSegment, 2), "{damage:?}");
    assert_eq!(numbers_left(&less).unwrap(), [1, 3]);
}

/// Makes a spool of three segments with one message each, and deletes the newest segment. Returns the disk, and the
/// name of the deleted segment.
fn without_newest(is_closed: bool) -> (FaultyDisk, String) {
    let disk = FaultyDisk::new();
    for number in 1..=3 {
        let (spool, _) = open(&disk, small()).unwrap();
        spool.store(draft(number, 300)).wait().unwrap();
        if number == 3 && !is_closed {
            let killed = disk.after_kill();
            drop(spool);
            return without_last(killed);
        }
        spool.close();
    }
    without_last(disk)
}

fn without_last(disk: FaultyDisk) -> (FaultyDisk, String) {
    // A segment has two headers. The newer header has the number of the segment's current use.
    let use_number = |name: &String| {
        let octets = disk.octets(name).unwrap();
        let at = [0, BLOCK].into_iter().max_by_key(|at| octets[at + 16]).unwrap();
        octets[at + 24]
    };
    let name = disk.names().into_iter().filter(|name| name.starts_with("segment-")).max_by_key(use_number).unwrap();
    disk.remove(&name).unwrap();
    (disk, name)
}

#[test]
fn a_newest_segment_that_is_missing_is_noticed_once() {
    for is_closed in [true, false] {
        let (disk, name) = without_newest(is_closed);
        let damage = refused(&disk);
        assert_eq!(
            (&damage[0].segment, damage[0].kind, damage[0].cost),
            (&name, DamageKind::MissingNewest, Cost::Messages)
        );
        assert_eq!((damage.len(), damage[0].messages.iter().map(|id| id.0).collect::<Vec<_>>()), (1, vec![3]));
        let (spool, backlog) = open(&disk, small()).unwrap();
        assert_eq!((spool.damage().len(), spool.stats().lost_messages, backlog.len()), (1, 1, 2));
        spool.close();
        // The loss was reported and cannot be undone, so the spool must open and accept mail as usual. A new message
        // must not get the number of a lost message.
        let (spool, backlog) = open(&disk, refusing()).unwrap();
        assert_eq!((spool.damage().len(), backlog.len()), (0, 2));
        assert!(spool.store(draft(4, 300)).wait().unwrap().id().0 > 3);
        spool.close();
        let (spool, backlog) = open(&disk, refusing()).unwrap();
        assert_eq!((spool.damage().len(), backlog.len()), (0, 3));
        // Lose the newest segment once more. The spool must report this new loss.
        spool.close();
        let (disk, _) = without_last(disk);
        assert_eq!(refused(&disk)[0].kind, DamageKind::MissingNewest);
    }
}

#[test]
fn a_newest_segment_that_was_emptied_is_missing() {
    let (disk, name) = without_newest(true);
    disk.put(&name, b"");
    assert_eq!(refused(&disk)[0].kind, DamageKind::MissingNewest);
}

#[test]
fn a_spool_without_a_record_of_its_newest_segment_is_opened_as_before() {
    for newest in [None, Some(&b""[..]), Some(b"mrnewest, but no more of it")] {
        let (disk, _) = without_newest(true);
        disk.remove("newest").unwrap();
        if let Some(octets) = newest {
            disk.put("newest", octets);
        }
        let (spool, backlog) = open(&disk, refusing()).unwrap();
        assert_eq!((spool.damage().len(), backlog.len()), (0, 2));
    }
}

#[test]
fn the_record_of_the_newest_segment_costs_no_sync_a_message() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    spool.store(draft(1, 300)).wait().unwrap();
    // The spool also makes the next segment now, which takes syncs. They delay no message and must not count below, so
    // wait until the segment is made.
    while spool.stats().disk_bytes < 2 * (64 << 10) {
        std::thread::yield_now();
    }
    let before = disk.syncs();
    for number in 2..=10 {
        spool.store(draft(number, 300)).wait().unwrap();
    }
    assert_eq!(disk.syncs() - before, 9, "one for each message");
}

#[test]
fn a_lost_header_is_noticed_where_there_are_batches() {
    let (disk, name) = three_batches();
    let mut octets = disk.octets(&name).unwrap();
    octets[..BATCHES_AT].fill(0);
    let disk = with_octets(&name, &octets);
    let (spool, backlog) = open(&disk, small()).unwrap();
    assert_eq!(backlog.len(), 3);
    let damage = &spool.damage()[0];
    assert_eq!((&damage.segment, damage.offset, damage.kind), (&name, 0, DamageKind::Header));
    assert!(spool.store(draft(4, 10)).wait().unwrap().id().0 > 3);
}

#[test]
fn a_later_version_is_refused_by_name() {
    let (disk, name) = three_batches();
    let mut octets = disk.octets(&name).unwrap();
    let place = [0, BLOCK].into_iter().find(|at| octets[at + 12] == 2).unwrap();
    octets[place + 8] = 2;
    let refused = numbers_left(&with_octets(&name, &octets));
    assert!(matches!(refused, Err(Error::NewerVersion { file, version: 2 }) if file == name));
}

#[test]
fn files_that_were_being_made_are_made_anew_and_others_left_alone() {
    for octets in [&[][..], &[0; 100], &[0; BATCHES_AT + 10]] {
        let (disk, _) = three_batches();
        disk.put("segment-00000007", octets);
        disk.put("notes.txt", b"mine");
        disk.put("segment-", b"mine");
        assert_eq!(numbers_left(&disk).unwrap(), [1, 2, 3]);
        assert!(!disk.names().contains(&"segment-00000007".to_owned()));
        assert_eq!(disk.octets("notes.txt").as_deref(), Some(&b"mine"[..]));
        assert_eq!(disk.octets("segment-").as_deref(), Some(&b"mine"[..]));
    }
}

#[test]
fn a_directory_of_a_file_system_keeps_what_a_disk_in_memory_keeps() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a/spool");
    for durability in [Durability::Sync, Durability::Write] {
        let options = Options { durability, ..small() };
        let (spool, _) = Spool::open(Arc::new(RealDisk::new(&path).unwrap()), options.clone()).unwrap();
        let receipts: Vec<Receipt> = (1..20).map(|number| spool.store(draft(number, 5000))).collect();
        let ids: Vec<_> = receipts.into_iter().map(|receipt| receipt.wait().unwrap().id()).collect();
        ids[..17].iter().for_each(|id| spool.done(*id));
        spool.note(ids[18], b"tried once");
        drop(spool);
        let (spool, backlog) = Spool::open(Arc::new(RealDisk::new(&path).unwrap()), options).unwrap();
        let left: Vec<_> = backlog.map(|left| left.unwrap()).collect();
        left.iter().for_each(|left| assert_genuine(&spool, left));
        assert_eq!(
            left.iter().map(|left| (left.id, left.notes.len())).collect::<Vec<_>>(),
            [(ids[17], 0), (ids[18], 1)]
        );
        left.iter().for_each(|left| spool.done(left.id));
        spool.close();
    }
}

#[test]
fn numbers_are_never_used_again() {
    let disk = FaultyDisk::new();
    let mut last = 0;
    for round in 0..6 {
        let (spool, backlog) = open(&disk, small()).unwrap();
        assert!(backlog.is_empty());
        // A message of 200,000 bytes gets an oversized segment, whose file the spool removes when the message is done.
        // Even then, no other message may get the number of this message.
        let bytes = if round % 2 == 0 { 200_000 } else { 100 };
        let id = spool.store(draft(1, bytes)).wait().unwrap().id();
        assert!(id.0 > last, "{id}");
        last = id.0;
        spool.done(id);
        spool.close();
        drop(open(&disk, small()).unwrap());
    }
}

fn files_in(directory: &std::path::Path) -> Vec<(String, Vec<u8>)> {
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap_or_default())
    };
    let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(read).collect();
    files.sort();
    files
}

#[test]
fn inspection_finds_what_opening_finds_and_changes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let disk = || Arc::new(RealDisk::new(place.path()).unwrap());
    let (spool, _) = Spool::open(disk(), small()).unwrap();
    assert!(matches!(mailrun_spool::inspect(place.path()), Err(Error::Locked)));
    let id = |number| spool.store(draft(number, 300)).wait().unwrap().id();
    let ids = [id(1), id(2), id(3)];
    spool.note(ids[0], b"tried");
    spool.done(ids[2]);
    spool.close();
    let path = place.path().join("segment-00000000");
    let mut octets = std::fs::read(&path).unwrap();
    octets[BATCHES_AT + BLOCK + 200] ^= 1; // In the body of the second message
    octets[BATCHES_AT + 2 * BLOCK + 50] ^= 1; // In the record header of the third message, which is done
    std::fs::write(&path, octets).unwrap();
    let before = files_in(place.path());
    let inspection = mailrun_spool::inspect(place.path()).unwrap();
    assert!(matches!(Spool::open(disk(), small()), Err(Error::Locked)), "it is kept as it is while it is looked at");
    let messages: Vec<_> = inspection.messages().map(|message| message.unwrap()).collect();
    let seen: Vec<_> = messages
        .iter()
        .map(|m| (m.id, m.notes.len(), matches!(m.body, mailrun_spool::InspectedBody::Sound(_))))
        .collect();
    assert_eq!(seen, [(ids[0], 1, true), (ids[1], 0, false)]);
    assert_eq!(messages[0].envelope, b"draft 1 of 300");
    let damage = inspection.damage.clone();
    let losses: Vec<_> = damage.iter().map(|one| (one.kind, one.cost, one.messages.clone())).collect();
    let expected = [(DamageKind::Body, Cost::Messages, vec![ids[1]]), (DamageKind::Records, Cost::Nothing, Vec::new())];
    assert_eq!(losses, expected);
    assert!(!inspection.is_sound());
    assert_eq!(inspection.segments[0].messages, 2);
    assert_eq!(before, files_in(place.path()));
    drop(inspection);
    let (spool, backlog) = Spool::open(disk(), small()).unwrap();
    assert_eq!(spool.damage(), damage);
    let left: Vec<_> = backlog.map(|left| left.unwrap()).map(|left| (left.id, left.is_body_damaged)).collect();
    assert_eq!(left, [(ids[0], false), (ids[1], true)]);
    assert_eq!(files_in(&place.path().join("quarantine")).len(), 2);
    spool.close();
    // Quarantined damage must not be reported twice.
    let inspection = mailrun_spool::inspect(place.path()).unwrap();
    assert!(inspection.damage.iter().all(|one| one.is_known), "{:?}", inspection.damage);
    drop(inspection);
    let options = Options { on_damage: OnDamage::Refuse, ..small() };
    assert_eq!(Spool::open(disk(), options).unwrap().1.len(), 2);
}
