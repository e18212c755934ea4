//! Reads all of a spool, and changes nothing: its segments in order, the records that still count, the damage.
//!
//! Opening a spool and inspecting one both begin here, so that they agree.
use crate::damage::{Cost, Damage, DamageKind};
use crate::disk::Disk;
use crate::format::{HEADER_BYTES, Header, State};
use crate::header::{Look, Role, look_at};
use crate::live::Live;
use crate::log::Resumption;
use crate::replay::Replay;
use crate::segment::Segment;
use crate::supply::{Spare, Supply};
use crate::{Error, Id};
use std::sync::Arc;

/// The content of a directory.
pub(crate) struct Reading {
    pub(crate) live: Live,
    /// Segments in use, oldest first, with the end of the batches of each.
    pub(crate) used: Vec<(Arc<Segment>, u64)>,
    pub(crate) spares: Vec<Spare>,
    /// Files that hold nothing.
    pub(crate) unfinished: Vec<String>,
    /// Files that cannot be read at all.
    pub(crate) illegible: Vec<(String, Arc<dyn crate::DiskFile>)>,
    pub(crate) resumption: Resumption,
    pub(crate) damage: Vec<Damage>,
    pub(crate) damaged_bodies: Vec<Id>,
    /// Messages that may be missing on the media, although they can be read: nothing proves that a sync of them
    /// succeeded.
    pub(crate) unproven: Vec<Id>,
    /// Bytes of a torn end.
    pub(crate) cut_bytes: u64,
    /// The number in the next file's name.
    pub(crate) next_file: u64,
}

/// A segment in use, before the whole row is known.
struct Candidate {
    segment: Segment,
    /// Only the first batch tells something about it.
    headless: Option<Headless>,
    /// The other place of its header is damaged, and may have marked it as free.
    may_be_free: bool,
}

#[derive(Clone, Copy)]
struct Headless {
    use_number: Option<u64>,
    first_id: Option<Id>,
}

/// Reads the directory.
pub(crate) fn read(disk: &dyn Disk) -> Result<Reading, Error> {
    let mut reading = Reading {
        live: Live::default(),
        used: Vec::new(),
        spares: Vec::new(),
        unfinished: Vec::new(),
        illegible: Vec::new(),
        resumption: Resumption { previous_end: 0, next_use: 1, next_id: 1 },
        damage: Vec::new(),
        damaged_bodies: Vec::new(),
        unproven: Vec::new(),
        cut_bytes: 0,
        next_file: 0,
    };
    let mut candidates = Vec::new();
    for name in disk.list()? {
        let Some(number) = file_number(&name) else { continue };
        reading.next_file = reading.next_file.max(number + 1);
        let look = look_at(&name, disk.open(&name)?)?;
        candidates.extend(reading.sort_in(look));
    }
    let row = reading.row(candidates);
    reading.read_row(row)?;
    Ok(reading)
}

/// Returns the number in a segment's name; other files do not belong to the spool.
fn file_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(Supply::PREFIX)?;
    let is_ours = digits.len() >= 8 && digits.len() < 16 && digits.bytes().all(|c| c.is_ascii_hexdigit());
    is_ours.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

fn header_damage(segment: &str, offset: u64, bytes: u64, cost: Cost) -> Damage {
    Damage {
        segment: segment.to_owned(),
        offset,
        bytes,
        kind: DamageKind::Header,
        cost,
        messages: Vec::new(),
        unnamed: 0,
        is_known: false,
    }
}

impl Reading {
    /// Drops free segments that have holes, as a copy may: a write could find no space in them.
    pub(crate) fn drop_sparse_spares(&mut self) {
        let is_sparse = |spare: &mut Spare| !spare.file.is_allocated().unwrap_or(true);
        self.unfinished.extend(self.spares.extract_if(.., is_sparse).map(|spare| spare.name));
    }

    /// Adds a file to the lists; a segment in use is returned.
    fn sort_in(&mut self, look: Look) -> Option<Candidate> {
        let Look { name, file, bytes, role, bad_places } = look;
        for at in &bad_places {
            // The use that it was the header of is found nevertheless, or else has damage of its own.
            self.damage.push(header_damage(&name, *at, HEADER_BYTES as u64, Cost::Nothing));
        }
        if let Role::Used(header) | Role::Free(header) = role {
            self.resumption.next_use = self.resumption.next_use.max(header.use_number.saturating_add(1));
            self.resumption.next_id = self.resumption.next_id.max(header.next_id);
        }
        match role {
            Role::Used(header) => {
                let segment = Segment::new(name, file, header, bytes);
                let may_be_free = !bad_places.is_empty();
                return Some(Candidate { segment, headless: None, may_be_free });
            }
            Role::Headless { use_number, seed, first_id } => {
                if bad_places.is_empty() {
                    // The header never reached the disk: a crash can cause that, or the disk.
                    self.damage.push(header_damage(&name, 0, HEADER_BYTES as u64, Cost::Nothing));
                }
                let header =
                    Header { state: State::Used, turn: 0, use_number: 0, salt: 0, next_id: 0, previous_end: 0 };
                let segment = Segment { seed, ..Segment::new(name, file, header, bytes) };
                segment.mark_damaged();
                return Some(Candidate {
                    segment,
                    headless: Some(Headless { use_number, first_id }),
                    may_be_free: false,
                });
            }
            // A file with a bad header is not used again.
            Role::Free(_) if !bad_places.is_empty() => self.unfinished.push(name),
            Role::Free(header) => self.spares.push(Spare { name, file, header, bytes }),
            Role::Unfinished => self.unfinished.push(name),
            Role::Illegible => {
                self.damage.push(header_damage(&name, 0, bytes, Cost::Unknown));
                self.illegible.push((name, file));
            }
        }
        None
    }

    /// Returns the segments in use in their order, including those without a header.
    fn row(&mut self, candidates: Vec<Candidate>) -> Vec<Candidate> {
        let (headless, mut row): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|candidate| candidate.headless.is_some());
        row.sort_by_key(|candidate| candidate.segment.header.use_number);
        for mut candidate in headless {
            let Some(known) = candidate.headless else { continue };
            let at = place_in(&row, known);
            let before = at.checked_sub(1).map(|before| row[before].segment.header.use_number);
            let after = row.get(at).map(|after| after.segment.header.use_number);
            let guess = match (before, after) {
                (_, None) => self.resumption.next_use,
                (Some(before), Some(_)) => before + 1,
                (None, Some(after)) => after.saturating_sub(1),
            };
            candidate.segment.header.use_number = known.use_number.unwrap_or(guess);
            self.resumption.next_use =
                self.resumption.next_use.max(candidate.segment.header.use_number.saturating_add(1));
            row.insert(at, candidate);
        }
        self.without_freed(row)
    }

    /// Leaves out a segment that was apparently given up: the oldest one, if its other header is damaged and those
    /// after it are gone.
    fn without_freed(&mut self, mut row: Vec<Candidate>) -> Vec<Candidate> {
        let is_gap = |row: &[Candidate]| {
            let [first, second, ..] = row else { return false };
            first.may_be_free && second.segment.header.use_number > first.segment.header.use_number + 1
        };
        while is_gap(&row) {
            let Candidate { segment, .. } = row.remove(0);
            self.damage.push(header_damage(&segment.name, 0, segment.bytes, Cost::Unknown));
            self.illegible.push((segment.name, segment.file));
        }
        row
    }

    /// Goes through all segments, oldest first.
    fn read_row(&mut self, row: Vec<Candidate>) -> Result<(), Error> {
        self.resumption.next_use = self.resumption.next_use.max(row.len() as u64 + 1);
        let first_order = self.resumption.next_use - row.len() as u64;
        let mut replay = Replay::new(std::mem::take(&mut self.damage), self.resumption.next_id);
        let mut before: Option<(u64, bool)> = None;
        let mut row = row.into_iter().zip(first_order..).peekable();
        while let Some((Candidate { mut segment, headless, .. }, order)) = row.next() {
            segment.order = order;
            if replay.damage.iter().any(|damage| damage.segment == segment.name) {
                segment.mark_damaged();
            }
            let use_number = segment.header.use_number;
            let is_headless = headless.is_some();
            let segment = Arc::new(segment);
            if let Some((before, was_headless)) = before {
                replay.check_row(&segment, before, was_headless || is_headless);
            }
            let next = row.peek().map(|(next, _)| &next.segment.header);
            let claimed_end = next.filter(|next| next.use_number == use_number + 1).map_or(0, |next| next.previous_end);
            let end = replay.segment(&segment, claimed_end)?;
            self.used.push((segment, end));
            before = Some((use_number, is_headless));
        }
        let done = replay.finish();
        self.resumption.next_id = done.next_id;
        self.resumption.previous_end = done.previous_end;
        self.live = done.live;
        self.damage = done.damage;
        self.damaged_bodies = done.damaged_bodies;
        self.unproven = done.unproven;
        self.cut_bytes = done.cut_bytes;
        Ok(())
    }
}

/// Returns the place in the row where a use without a header belongs: by its number, or by that of its first message,
/// which those before it had not given when they began, and those after it had.
fn place_in(row: &[Candidate], known: Headless) -> usize {
    let is_before = |candidate: &Candidate| {
        let header = &candidate.segment.header;
        match (known.use_number, known.first_id) {
            (Some(number), _) => header.use_number <= number,
            (None, Some(id)) => header.next_id <= id.0,
            (None, None) => true,
        }
    };
    if known.use_number.is_none() && known.first_id.is_none() {
        // Only notes and moved messages: its place is where one is missing, or at the end.
        let numbers: Vec<u64> = row.iter().map(|candidate| candidate.segment.header.use_number).collect();
        return numbers.windows(2).position(|two| two[1] == two[0] + 2).map_or(row.len(), |at| at + 1);
    }
    row.iter().take_while(|candidate| is_before(candidate)).count()
}
