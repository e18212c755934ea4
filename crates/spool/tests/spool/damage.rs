//! Tests damage to a bit, a sector, a header or a file while the spool is closed. No intact record
//! may be lost, and each loss must be reported.
use crate::model::{assert_genuine, draft, open, small, wait_until};
use mailrun_spool::faulty::FaultyDisk;
use mailrun_spool::{Cost, DamageKind, Durability, Id, NewMessage, Options};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;

struct Base {
    files: BTreeMap<String, Vec<u8>>,
    /// Messages that are not done, as they were stored.
    waiting: BTreeMap<Id, NewMessage>,
    next_id: u64,
    /// Content of the file `newest`, which these tests never damage.
    newest: Vec<u8>,
}

/// Returns a spool of several segments with messages, notes and done messages, in small and large batches.
fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| make(false))
}

fn base_with_moves() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| make(true))
}

/// Makes a spool of one segment with four messages and a note. One of the messages is done.
fn small_base() -> Base {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    let mut waiting = BTreeMap::new();
    let together = [draft(1, 40), draft(2, 300)].map(|draft| (spool.store(draft.clone()), draft));
    let alone = [draft(3, 10), draft(4, 60)].into_iter().map(|draft| (spool.store(draft.clone()), draft));
    for (receipt, draft) in together.into_iter().chain(alone) {
        waiting.insert(receipt.wait().unwrap().id(), draft);
    }
    let last = *waiting.keys().next_back().unwrap();
    let done = *waiting.keys().nth(1).unwrap();
    spool.note(last, b"a note");
    spool.done(done);
    waiting.remove(&done);
    spool.sync_notes(spool.notes_mark()).wait().unwrap();
    spool.close();
    Base::of(&disk, waiting, last)
}

fn make(moves: bool) -> Base {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    let mut waiting = BTreeMap::new();
    let mut number = 0;
    for round in 0..if moves { 24 } else { 8 } {
        let drafts: Vec<NewMessage> = (0..1 + round % 5)
            .map(|at| {
                number += 1;
                draft(number, [60, 700, 5000, 9000, 300][(round + at) % 5])
            })
            .collect();
        let receipts: Vec<_> = drafts.iter().map(|draft| spool.store(draft.clone())).collect();
        for (draft, receipt) in drafts.into_iter().zip(receipts) {
            waiting.insert(receipt.wait().unwrap().id(), draft);
        }
        for id in waiting.keys().copied().filter(|id| id.0 % 4 == 1).collect::<Vec<_>>() {
            spool.note(id, format!("note of round {round}").as_bytes());
        }
        let share = if moves { 3 } else { 5 };
        for id in
            waiting.keys().copied().filter(|id| moves && id.0 % share != 0 || id.0 % share == 1).collect::<Vec<_>>()
        {
            if waiting.len() > 4 {
                spool.done(id);
                waiting.remove(&id);
            }
        }
    }
    spool.sync_notes(spool.notes_mark()).wait().unwrap();
    let usage = spool.stats();
    let last = spool.store(draft(9999, 10)).wait().unwrap().id();
    waiting.insert(last, draft(9999, 10));
    assert!(usage.segments >= 2 && (usage.moved > 0) == moves, "{usage:?}");
    spool.close();
    Base::of(&disk, waiting, last)
}

/// Makes a spool in which a reused segment holds only moved messages.
fn base_with_moved_segment() -> Base {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    let mut waiting = BTreeMap::new();
    let mut store = |number, bytes| {
        let id = spool.store(draft(number, bytes)).wait().unwrap().id();
        waiting.insert(id, draft(number, bytes));
        id
    };
    let kept: Vec<Id> = (0..20).map(|number| store(number, 6000)).collect();
    let mut number = 1000;
    // Go on until each kept message was moved twice on average. By then, the spool has reused segments.
    while spool.stats().moved < 2 * kept.len() as u64 {
        number += 1;
        spool.done(store(number, 40_000));
    }
    let last = store(number + 1, 10);
    spool.done(kept[3]);
    waiting.retain(|id, _| kept.contains(id) && *id != kept[3] || *id == last);
    spool.sync_notes(spool.notes_mark()).wait().unwrap();
    spool.close();
    Base::of(&disk, waiting, last)
}

impl Base {
    fn of(disk: &FaultyDisk, waiting: BTreeMap<Id, NewMessage>, last: Id) -> Self {
        let files = disk.names().into_iter().map(|name| (name.clone(), disk.octets(&name).unwrap())).collect();
        Self { files, waiting, next_id: last.0 + 1, newest: disk.octets("newest").unwrap() }
    }

    /// Returns the disk after `change` was applied to one of its files.
    fn disk(&self, file: &str, change: impl FnOnce(&mut Vec<u8>)) -> FaultyDisk {
        let disk = FaultyDisk::new();
        for (name, octets) in self.files.iter().filter(|(name, _)| *name != file) {
            disk.put(name, octets);
        }
        let mut octets = self.files[file].clone();
        change(&mut octets);
        disk.put(file, &octets);
        disk.put("newest", &self.newest);
        disk
    }

    /// Returns the waiting messages that have a record in that part of a file, even one that is obsolete because the
    /// message was moved.
    fn touched(&self, file: &str, range: &Range<usize>) -> Vec<Id> {
        let octets = &self.files[file];
        let reaches = |draft: &NewMessage| {
            let positions = memchr_all(octets, &draft.envelope);
            positions.into_iter().any(|at| {
                // The record of a moved message may have notes between envelope and body. Allow 4096 bytes for them.
                let end = at + draft.envelope.len() + 4096 + draft.body.len();
                at - 40 < range.end && range.start < end
            })
        };
        self.waiting.iter().filter(|(_, draft)| reaches(draft)).map(|(id, _)| *id).collect()
    }

    /// Opens a damaged disk. All untouched messages must be there. The spool must name each missing message, or report
    /// damage of unknown cost if the spool cannot know the message's number.
    fn check(&self, disk: &FaultyDisk, touched: &[Id], has_moves: bool, what: &str) {
        let (spool, backlog) = open(disk, small()).unwrap();
        let left: BTreeMap<Id, _> = backlog.map(|left| left.unwrap()).map(|left| (left.id, left)).collect();
        let damage = spool.damage().to_vec();
        let named = |id: &Id| damage.iter().any(|damage| damage.messages.contains(id));
        let is_untold = damage.iter().any(|damage| damage.cost >= Cost::Unknown);
        for id in self.waiting.keys() {
            match left.get(id) {
                Some(left) if !left.is_body_damaged => assert_genuine(&spool, left),
                _ => {
                    assert!(touched.contains(id), "{what}: {id} is sound and lost; {damage:?}");
                    // The spool finds the number of a lost message from its neighbours in the log. It cannot do so if
                    // compaction moved the message, or if no message follows.
                    let has_no_place = has_moves || id.0 + 1 == self.next_id;
                    assert!(named(id) || has_no_place && is_untold, "{what}: {id} is lost in silence; {damage:?}");
                }
            }
        }
        for damage in &damage {
            let is_live = |id: &Id| left.get(id).is_some_and(|left| !left.is_body_damaged);
            assert!(!damage.messages.iter().any(is_live), "{what}: what is there is called lost: {damage:?}");
        }
        let next = spool.store(draft(1, 1)).wait().unwrap().id();
        assert!(next.0 >= self.next_id, "{what}: {next} was given before");
        spool.close();
        // The second start must not report the quarantined damage as new. It must not lose more messages either.
        let (again, backlog) = open(&disk.after_kill(), small()).unwrap();
        assert!(again.damage().iter().all(|damage| damage.is_known || !damage.is_alarming()), "{:?}", again.damage());
        assert_eq!(backlog.len(), left.len() + 1, "{what}");
    }
}

impl Base {
    /// Opens a disk with an unreadable part. All messages outside that part must be there.
    fn assert_sound_are_left(&self, disk: &FaultyDisk, touched: &[Id]) {
        let (spool, backlog) = open(disk, small()).unwrap();
        let left = backlog.map(|left| left.unwrap()).filter(|left| !left.is_body_damaged);
        let left: Vec<Id> = left.map(|left| left.id).collect();
        for id in self.waiting.keys().filter(|id| !left.contains(id)) {
            assert!(touched.contains(id), "{id} is sound and lost: {:?}", spool.damage());
        }
    }
}

fn memchr_all(octets: &[u8], wanted: &[u8]) -> Vec<usize> {
    octets.windows(wanted.len()).enumerate().filter(|(_, window)| window == &wanted).map(|(at, _)| at).collect()
}

/// Chooses a file, and an offset in a sector of it that holds data. Returns the file's name and the offset.
fn place(base: &Base, file: prop::sample::Index, at: prop::sample::Index, near: usize) -> (String, usize) {
    let names: Vec<&String> = base.files.keys().collect();
    let name = names[file.index(names.len())].clone();
    let octets = &base.files[&name];
    let used = used_sectors(octets);
    let sector = if used.is_empty() { 0 } else { used[at.index(used.len())] };
    (name, sector + near % 512)
}

#[test]
fn a_flipped_bit_in_any_byte_of_a_small_spool_loses_nothing_that_is_sound() {
    let base = small_base();
    for (name, octets) in &base.files {
        let end = octets.iter().rposition(|octet| *octet != 0).map_or(0, |last| last + 1);
        for at in (8192..end).filter(|at| octets[*at..].iter().take(8).any(|octet| *octet != 0)) {
            let disk = base.disk(name, |octets| octets[at] ^= 1 << (at % 8));
            base.check(&disk, &base.touched(name, &(at..at + 1)), false, &format!("{at} in {name}"));
        }
    }
}

#[test]
fn sectors_of_a_small_spool_that_are_lost_or_cannot_be_read_lose_nothing_that_is_sound() {
    let base = small_base();
    for (name, octets) in &base.files {
        for at in used_sectors(octets) {
            for sectors in 1..9 {
                let end = octets.len().min(at + sectors * 512);
                for filling in [0, 0xFF] {
                    let disk = base.disk(name, |octets| octets[at..end].fill(filling));
                    base.check(&disk, &base.touched(name, &(at..end)), false, &format!("{at}..{end} of {name}"));
                }
            }
        }
        for at in (0..octets.len()).step_by(4096) {
            let disk = base.disk(name, |_| ());
            disk.fail_reads(name, at..at + 4096);
            base.assert_sound_are_left(&disk, &base.touched(name, &(at..at + 4096)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "slow: make test-slow PART=damage"]
    fn one_flipped_bit_loses_nothing_that_is_sound(
        file: prop::sample::Index, at: prop::sample::Index, near: usize, bit in 0u8..8, moves: bool,
    ) {
        let base = if moves { base_with_moves() } else { base() };
        let (name, at) = place(base, file, at, near);
        let disk = base.disk(&name, |octets| octets[at] ^= 1 << bit);
        let touched = base.touched(&name, &(at..at + 1));
        base.check(&disk, &touched, moves, &format!("bit {bit} of {at} in {name}"));
    }

    #[test]
    #[ignore = "slow: make test-slow PART=damage"]
    fn one_lost_sector_loses_nothing_that_is_sound(
        file: prop::sample::Index, at: prop::sample::Index, filling in 0u8..3, sectors in 1usize..9, moves: bool,
    ) {
        let base = if moves { base_with_moves() } else { base() };
        let (name, at) = place(base, file, at, 0);
        let end = base.files[&name].len().min(at + sectors * 512);
        let disk = base.disk(&name, |octets| match filling {
            0 => octets[at..end].fill(0),
            1 => octets[at..end].fill(0xFF),
            // Tear the sectors: overwrite half of each sector with other bytes.
            _ => (at..end).step_by(512).for_each(|sector| octets.copy_within(256..512, sector + 256)),
        });
        let touched = base.touched(&name, &(at..end));
        base.check(&disk, &touched, moves, &format!("{at}..{end} filled by {filling} in {name}"));
    }

    #[test]
    #[ignore = "slow: make test-slow PART=damage"]
    fn a_sector_that_cannot_be_read_loses_nothing_that_is_sound(
        file: prop::sample::Index, at: prop::sample::Index, moves: bool,
    ) {
        let base = if moves { base_with_moves() } else { base() };
        let (name, at) = place(base, file, at, 0);
        let disk = base.disk(&name, |_| ());
        // Let the whole block fail, because a disk reports read errors for whole blocks.
        let at = at / 4096 * 4096;
        disk.fail_reads(&name, at..at + 4096);
        let touched = base.touched(&name, &(at..at + 4096));
        base.assert_sound_are_left(&disk, &touched);
    }
}

#[test]
fn a_flipped_bit_in_any_header_loses_nothing() {
    let base = base();
    for name in base.files.keys() {
        for bit in (0..96 * 8).flat_map(|bit| [bit, bit + 4096 * 8]) {
            let disk = base.disk(name, |octets| octets[bit / 8] ^= 1 << (bit % 8));
            let (spool, backlog) = open(&disk, small()).unwrap();
            assert_eq!(backlog.len(), base.waiting.len(), "bit {bit} of {name}");
            let is_blank = base.files[name][bit / 8 / 4096 * 4096..][..96] == [0; 96];
            let damage = spool.damage();
            assert!(
                is_blank || damage.iter().any(|one| one.kind == DamageKind::Header),
                "bit {bit} of {name}: {damage:?}"
            );
            assert!(spool.store(draft(1, 1)).wait().unwrap().id().0 >= base.next_id);
        }
    }
}

#[test]
fn the_headers_of_any_segment_may_be_lost() {
    for base in [base(), base_with_moves(), &base_with_moved_segment()] {
        for name in base.files.keys() {
            for (from, to) in [(0, 4096), (4096, 8192), (0, 8192)] {
                for filling in [0, 0xFF] {
                    let disk = base.disk(name, |octets| octets[from..to].fill(filling));
                    base.check(&disk, &[], false, &format!("{from}..{to} of {name} filled with {filling}"));
                }
            }
        }
    }
}

#[test]
fn a_lost_file_costs_what_was_in_it_and_no_more() {
    let base = base();
    for lost in base.files.keys() {
        let disk = FaultyDisk::new();
        base.files.iter().filter(|(name, _)| *name != lost).for_each(|(name, octets)| disk.put(name, octets));
        let touched = base.touched(lost, &(0..usize::MAX));
        let (spool, backlog) = open(&disk, small()).unwrap();
        let left: Vec<Id> = backlog.map(|left| left.unwrap().id).collect();
        for id in base.waiting.keys().filter(|id| !left.contains(id)) {
            assert!(touched.contains(id), "{id} was elsewhere");
        }
        drop(spool);
    }
}

#[test]
fn damage_of_what_is_done_is_no_alarm() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    let ids: Vec<Id> = (1..=3).map(|number| spool.store(draft(number, 300)).wait().unwrap().id()).collect();
    spool.done(ids[1]);
    spool.close();
    let octets = disk.octets("segment-00000000").unwrap();
    // Damage each byte at the beginning of the record in turn, and then some bytes of the body.
    for at in (0..80).chain((80..360).step_by(7)) {
        let mut octets = octets.clone();
        octets[8192 + 4096 + 32 + at] ^= 4;
        disk.put("segment-00000000", &octets);
        let options = Options { on_damage: mailrun_spool::OnDamage::Refuse, ..small() };
        let (spool, backlog) = open(&disk.after_kill(), options).unwrap();
        assert_eq!(backlog.len(), 2);
        assert!(spool.damage().iter().all(|damage| damage.cost == Cost::Nothing), "{at}: {:?}", spool.damage());
    }
}

#[test]
fn what_is_damaged_is_kept_aside_until_somebody_removes_it() {
    let base = base();
    let name = base.files.keys().next().unwrap();
    let disk = base.disk(name, |octets| octets[8192 + 40..8192 + 80].fill(0xAA));
    let (spool, _) = open(&disk, small()).unwrap();
    let damage = &spool.damage()[0];
    let copies: Vec<String> = disk.names().into_iter().filter(|name| name.starts_with("quarantine/")).collect();
    assert_eq!(copies.len(), 1);
    let copy = disk.octets(&copies[0]).unwrap();
    assert_eq!(copy.len() as u64, damage.bytes);
    assert_eq!(copy[..8], disk.octets(name).unwrap()[damage.offset as usize..][..8]);
}

#[test]
fn a_segment_is_not_read_again_for_each_damaged_batch() {
    const SEGMENT_BYTES: u64 = 8 << 20;
    for durability in [Durability::Sync, Durability::Write] {
        let options = || Options { segment_bytes: SEGMENT_BYTES, max_bytes: 4 * SEGMENT_BYTES, durability, ..small() };
        let disk = FaultyDisk::new();
        let (spool, _) = open(&disk, options()).unwrap();
        for number in 0..200 {
            spool.store(draft(number, 300)).wait().unwrap();
        }
        let disk = disk.after_kill();
        let mut octets = disk.octets("segment-00000000").unwrap();
        for (number, at) in memchr_all(&octets, b"draft ").into_iter().step_by(2).enumerate() {
            // Damage the envelope of every second message, and the body of each message in between.
            octets[at + [1, 40][number % 2]] ^= 4;
        }
        disk.put("segment-00000000", &octets);
        let before = disk.read_bytes();
        let (spool, _) = open(&disk, options()).unwrap();
        assert!(spool.damage().len() >= 100, "{}", spool.damage().len());
        let read = disk.read_bytes() - before;
        assert!(read < 10 * SEGMENT_BYTES, "{durability:?}: {read} bytes were read");
    }
}

#[test]
fn a_free_segment_with_a_damaged_header_is_not_read_again_for_each_batch() {
    const SEGMENT_BYTES: u64 = 2 << 20;
    let options = || Options { segment_bytes: SEGMENT_BYTES, max_bytes: 8 * SEGMENT_BYTES, ..small() };
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, options()).unwrap();
    for number in 0..600 {
        spool.done(spool.store(draft(number, 300)).wait().unwrap().id());
    }
    spool.close();
    for name in disk.names().into_iter().filter(|name| name.starts_with("segment-")) {
        let mut octets = disk.octets(&name).unwrap();
        octets[4096..4192].fill(0xAA);
        disk.put(&name, &octets);
    }
    let disk = disk.after_kill();
    let (_spool, _) = open(&disk, options()).unwrap();
    assert!(disk.read_bytes() < 20 * SEGMENT_BYTES, "{} bytes were read", disk.read_bytes());
}

/// Returns the offsets of a file's sectors that are not all zeros.
fn used_sectors(octets: &[u8]) -> Vec<usize> {
    (0..octets.len()).step_by(512).filter(|at| octets[*at..*at + 512] != [0; 512]).collect()
}

#[test]
#[ignore = "slow: make test-slow PART=damage"]
fn damage_of_several_batches_is_not_explained_by_the_first_ones_header() {
    let base = base_with_moves();
    for (name, octets) in &base.files {
        for at in used_sectors(octets) {
            for sectors in [7, 8] {
                let end = octets.len().min(at + sectors * 512);
                let disk = base.disk(name, |octets| octets[at..end].fill(0xFF));
                base.check(&disk, &base.touched(name, &(at..end)), true, &format!("{at}..{end} of {name}"));
            }
        }
    }
}

#[test]
fn the_lost_end_of_a_closed_log_is_no_torn_end() {
    for (base, has_moves) in [(base(), false), (base_with_moves(), true)] {
        let last = Id(base.next_id - 1);
        let is_newest = |name: &&String| base.touched(name, &(0..usize::MAX)).contains(&last);
        let name = base.files.keys().find(is_newest).unwrap();
        for at in used_sectors(&base.files[name]).into_iter().rev().filter(|at| *at >= 8192).take(20) {
            let disk = base.disk(name, |octets| octets[at..].fill(0));
            let (spool, backlog) = open(&disk.after_kill(), small()).unwrap();
            let is_alarming = spool.damage().iter().any(|damage| damage.is_alarming());
            let sound = backlog.filter(|left| left.as_ref().is_ok_and(|left| !left.is_body_damaged)).count();
            assert!(is_alarming || sound == base.waiting.len(), "{at}.. of {name}: {:?}", spool.damage());
            let touched = base.touched(name, &(at..usize::MAX));
            base.check(&disk, &touched, has_moves, &format!("{at}.. of {name}"));
        }
    }
}

/// The files of a spool with five segments in use, and the ids of its messages. The spool gave a receipt for each of
/// them.
struct FiveSegments {
    files: BTreeMap<String, Vec<u8>>,
    /// Segments in use, from the oldest to the newest.
    used: Vec<String>,
    answered: Vec<Id>,
}

impl FiveSegments {
    fn new(is_closed: bool) -> Self {
        let disk = FaultyDisk::new();
        let (spool, _) = open(&disk, small()).unwrap();
        let mut answered = Vec::new();
        let mut number = 0;
        let mut store = || {
            number += 1;
            spool.store(draft(number, [60, 700, 5000, 9000, 300][number as usize % 5])).wait().unwrap().id()
        };
        // First use and free some segments, so that the oldest segment in use is not the first one of the spool.
        let mut done = Vec::new();
        while spool.stats().segments < 4 {
            done.push(store());
        }
        done.into_iter().for_each(|id| spool.done(id));
        spool.sync_notes(spool.notes_mark()).wait().unwrap();
        wait_until(|| spool.stats().segments == 1);
        while spool.stats().segments < 5 || answered.len() % 7 != 0 {
            answered.push(store());
        }
        assert_eq!(spool.stats().segments, 5);
        let disk = if is_closed {
            spool.close();
            disk
        } else {
            let killed = disk.after_kill();
            drop(spool);
            killed
        };
        let names = disk.names().into_iter().chain(["newest".to_owned()]);
        let files: BTreeMap<_, _> = names.map(|name| (name.clone(), disk.octets(&name).unwrap())).collect();
        let header = |octets: &[u8]| {
            let at = [0, 4096].into_iter().max_by_key(|at| octets[at + 16..at + 24].to_vec()).unwrap();
            (octets[at + 12] == 2, octets[at + 24])
        };
        let segments = files.iter().filter(|(name, _)| name.starts_with("segment-"));
        let mut used: Vec<(u8, String)> =
            segments.filter(|(_, octets)| header(octets).0).map(|(name, o)| (header(o).1, name.clone())).collect();
        used.sort();
        assert_eq!(used.len(), 5, "{used:?}");
        Self { files, used: used.into_iter().map(|(_, name)| name).collect(), answered }
    }

    /// Returns a disk with the spool's files, some of them changed: each change names a file and gives its new content,
    /// or `None` to leave the file out.
    fn with(&self, changes: &[(&str, Option<&[u8]>)]) -> FaultyDisk {
        let disk = FaultyDisk::new();
        for (name, octets) in &self.files {
            match changes.iter().find(|(changed, _)| changed == name) {
                None => disk.put(name, octets),
                Some((_, Some(octets))) => disk.put(name, octets),
                Some((_, None)) => {}
            }
        }
        disk
    }

    /// Opens a damaged disk. Returns true if messages are missing. The spool must report them by id, or report damage
    /// of unknown cost.
    fn loses_and_says_so(&self, disk: &FaultyDisk, what: &str) -> bool {
        let refusing = Options { on_damage: mailrun_spool::OnDamage::Refuse, ..small() };
        let is_refused = matches!(open(&disk.after_kill(), refusing), Err(mailrun_spool::Error::DamageRefused(_)));
        let (spool, backlog) = open(disk, small()).unwrap();
        let left: Vec<_> = backlog.map(|left| left.unwrap()).filter(|left| !left.is_body_damaged).collect();
        left.iter().for_each(|left| assert_genuine(&spool, left));
        let lost: Vec<Id> =
            self.answered.iter().copied().filter(|id| !left.iter().any(|left| left.id == *id)).collect();
        let damage = spool.damage();
        let is_alarming = damage.iter().any(|damage| damage.is_alarming());
        assert_eq!((is_refused, spool.stats().damaged > 0), (is_alarming, is_alarming), "{what}: {damage:?}");
        let is_unknown = damage.iter().any(|damage| damage.cost >= Cost::Unknown);
        let is_named = |id: &Id| damage.iter().any(|damage| damage.messages.contains(id));
        assert!(lost.iter().all(|id| is_alarming && (is_unknown || is_named(id))), "{what}: {lost:?} of {damage:?}");
        let next = spool.store(draft(1, 1)).wait().unwrap().id();
        assert!(self.answered.iter().all(|id| *id < next), "{what}: {next} was given before");
        spool.close();
        let (again, backlog) = open(&disk.after_kill(), small()).unwrap();
        assert!(again.damage().iter().all(|one| one.is_known || !one.is_alarming()), "{what}: {:?}", again.damage());
        assert_eq!(backlog.filter(|left| !left.as_ref().unwrap().is_body_damaged).count(), left.len() + 1, "{what}");
        !lost.is_empty()
    }
}

#[test]
fn a_segment_that_is_missing_empty_shortened_or_foreign_is_damage_whichever_it_is() {
    let stranger = FiveSegments::new(true);
    for is_closed in [true, false] {
        let five = FiveSegments::new(is_closed);
        assert!(!five.loses_and_says_so(&five.with(&[]), "nothing is damaged"));
        for (number, name) in five.used.iter().enumerate() {
            let octets = &five.files[name];
            let foreign = &stranger.files[&stranger.used[number]];
            let half = 8192 + (octets.len() - 8192) / 8192 * 4096;
            for (what, content) in [
                ("deleted", None),
                ("empty", Some(&[][..])),
                ("one header long", Some(&octets[..4096])),
                ("two headers long", Some(&octets[..8192])),
                ("half", Some(&octets[..half])),
                ("of another spool", Some(&foreign[..])),
            ] {
                let what = format!("segment {number} is {what}, closed: {is_closed}");
                // If the log ends in the first half of the newest segment, cutting this segment in half loses no
                // message.
                let has_loss = five.loses_and_says_so(&five.with(&[(name, content)]), &what);
                assert!(has_loss || number == 4 && what.contains("half"), "{what}");
            }
        }
        let [first, second] = [0, 4].map(|at| five.used[at].as_str());
        let exchanged = [(first, Some(&five.files[second][..])), (second, Some(&five.files[first][..]))];
        assert!(!five.loses_and_says_so(&five.with(&exchanged), "two segments have each other's names"));
        let all: Vec<_> = five.used.iter().map(|name| (name.as_str(), None)).collect();
        assert!(five.loses_and_says_so(&five.with(&all), "all are deleted"));
        assert!(five.loses_and_says_so(&five.with(&all[2..]), "the three newest are deleted"));
        assert!(five.loses_and_says_so(&five.with(&all[..3]), "the three oldest are deleted"));
    }
}

#[test]
#[ignore = "slow: make test-slow PART=damage"]
fn no_answered_message_is_lost_without_a_word() {
    let stranger = FiveSegments::new(true);
    let seed = std::env::var("MAILRUN_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut random = seed;
    let mut below = |limit: usize| {
        // This is the random number generator of Knuth's MMIX.
        random = u64::wrapping_add(u64::wrapping_mul(random, 6_364_136_223_846_793_005), 1_442_695_040_888_963_407);
        (random >> 33) as usize % limit
    };
    let (mut trials, mut losses, mut harmless) = (0, 0, Vec::new());
    for is_closed in [true, false] {
        let five = FiveSegments::new(is_closed);
        for (number, name) in five.used.iter().enumerate() {
            let octets = &five.files[name];
            let end = octets.iter().rposition(|octet| *octet != 0).unwrap() + 1;
            let mut changes = vec![("deleted".to_owned(), five.with(&[(name, None)]))];
            // About half of these cuts must hit the part of the segment that has batches, so most random offsets are
            // below `end * 2`. Some offsets are multiples of 4096, because batches begin there.
            let cuts = [0, below(8192), below(octets.len())].into_iter();
            let cuts = cuts.chain(
                (0..17).map(|at| if at % 3 == 0 { below(end) & !4095 } else { below(octets.len().min(end * 2)) }),
            );
            for at in cuts {
                changes.push((format!("cut at {at} of {end}"), five.with(&[(name, Some(&octets[..at]))])));
            }
            for (other, of) in five.used.iter().zip(&stranger.used) {
                let both = [(name.as_str(), Some(&five.files[other][..])), (other.as_str(), Some(&octets[..]))];
                changes.push((format!("exchanged with {other}"), five.with(&both)));
                let foreign = Some(&stranger.files[of][..]);
                changes.push((format!("replaced by {of} of another spool"), five.with(&[(name, foreign)])));
                changes.push((format!("replaced by {other}"), five.with(&[(name, Some(&five.files[other][..]))])));
            }
            for (what, disk) in changes {
                let what = format!("seed {seed}, closed: {is_closed}, segment {number} is {what}");
                trials += 1;
                match five.loses_and_says_so(&disk, &what) {
                    true => losses += 1,
                    false => harmless.push(what),
                }
            }
        }
    }
    eprintln!("{trials} trials, {losses} with losses that were reported; nothing was lost in these:");
    harmless.iter().for_each(|what| eprintln!("  {what}"));
    // Most trials must lose something. A cut loses nothing if it is in the unused end of a segment.
    assert!(losses > trials / 2);
}

/// Without syncs, each batch proves that the batch before it was answered 250, and the last batch may have been
/// answered as well. So the spool must not say of any damaged batch that it was not answered.
#[test]
fn without_syncs_nothing_is_said_not_to_have_been_answered() {
    let options = || Options { durability: Durability::Write, ..small() };
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, options()).unwrap();
    let ids: Vec<Id> = (0..6).map(|number| spool.store(draft(number, 3000)).wait().unwrap().id()).collect();
    let disk = disk.after_kill();
    let name = disk.names().into_iter().find(|name| name.starts_with("segment-")).unwrap();
    let octets = disk.octets(&name).unwrap();
    for (number, at) in memchr_all(&octets, b"draft ").into_iter().enumerate() {
        let mut octets = octets.clone();
        // The first sector of a batch has the batch's header. Without its header, the spool would not find the last
        // batch (`number` 5) at all, so damage the second sector of this batch.
        let sector = at / 512 * 512 + if number == 5 { 512 } else { 0 };
        octets[sector..sector + 512].fill(0);
        disk.put(&name, &octets);
        let (spool, backlog) = open(&disk.after_kill(), options()).unwrap();
        let damage = spool.damage();
        assert_eq!(backlog.filter(|left| !left.as_ref().unwrap().is_body_damaged).count(), 5, "{damage:?}");
        let alarming: Vec<_> = damage.iter().filter(|damage| damage.is_alarming()).collect();
        assert!(alarming.len() == 1 && alarming[0].messages == [ids[number]], "{number} {damage:?}");
        assert!(!damage.iter().any(|damage| damage.to_string().contains("not been answered")), "{damage:?}");
        let kind = if number == 5 { DamageKind::UnsyncedEnd } else { DamageKind::Records };
        assert_eq!(alarming[0].kind, kind);
    }
}
