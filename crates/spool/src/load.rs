//! Reads a whole spool without changing it: the segments in order, the unfinished messages and the
//! damage. Opening and inspecting a spool both start here, so both find the same damage.
use crate::damage::{Cost, Damage, DamageKind};
use crate::disk::{Disk, with_name};
use crate::format::{HEADER_BYTES, OldestUse, SegmentHeader, SegmentHeaderState};
use crate::header::{ExaminedFile, FileRole, examine};
use crate::index::MessageIndex;
use crate::log::ResumePoint;
use crate::newest::{self, NewestSegment, NewestState};
use crate::replay::Replay;
use crate::segment::Segment;
use crate::segment_pool::{FreeSegment, SegmentPool};
use crate::{Error, Id};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::sync::Arc;

pub(crate) struct LoadedSpool {
    pub(crate) index: MessageIndex,
    /// Segments in use from the oldest to the newest, each with the offset at which its last batch ends.
    pub(crate) used: Vec<(Arc<Segment>, u64)>,
    pub(crate) free_segments: Vec<FreeSegment>,
    /// Names of segment files that hold no messages and will be removed, such as a file whose creation a crash
    /// interrupted.
    pub(crate) unfinished: Vec<String>,
    pub(crate) illegible: Vec<(String, Arc<dyn crate::DiskFile>)>,
    pub(crate) resume_point: ResumePoint,
    pub(crate) damage: Vec<Damage>,
    pub(crate) damaged_bodies: Vec<Id>,
    /// Readable messages that may not be on the disk, because nothing proves that an earlier
    /// process synced them.
    pub(crate) unproven: Vec<Id>,
    pub(crate) cut_bytes: u64,
    pub(crate) next_file: u64,
    pub(crate) newest: Option<NewestSegment>,
    /// The oldest segment that is still needed according to all headers and the file `newest`. If this segment is
    /// missing, the spool is damaged.
    oldest: OldestUse,
    pub(crate) spool: u64,
}

/// A used segment whose position in the log is not known yet.
struct SegmentCandidate {
    segment: Segment,
    headerless: Option<HeaderlessUse>,
    /// Set if one of the segment's two header blocks is damaged. The lost header may have marked
    /// the segment as free.
    may_be_free: bool,
}

#[derive(Clone, Copy)]
struct HeaderlessUse {
    generation: Option<u64>,
    first_id: Option<Id>,
}

pub(crate) fn load(disk: &dyn Disk) -> Result<LoadedSpool, Error> {
    let mut reading = LoadedSpool {
        index: MessageIndex::default(),
        used: Vec::new(),
        free_segments: Vec::new(),
        unfinished: Vec::new(),
        illegible: Vec::new(),
        resume_point: ResumePoint { previous_end: 0, next_generation: 1, next_id: 1 },
        damage: Vec::new(),
        damaged_bodies: Vec::new(),
        unproven: Vec::new(),
        cut_bytes: 0,
        next_file: 0,
        newest: newest::read(disk),
        oldest: OldestUse::default(),
        spool: 0,
    };
    let mut files = Vec::new();
    for name in disk.list()? {
        let Some(number) = SegmentPool::file_number(&name) else { continue };
        // Count all files, even unreadable ones, so that no new segment gets the name of an
        // existing file.
        reading.next_file = reading.next_file.max(number + 1);
        let examined = disk.open(&name).map_err(Error::from).and_then(|file| examine(&name, file));
        files.push(examined.map_err(|error| match error {
            Error::Disk(error) => with_name(&name)(io::Error::new(error.kind(), error)).into(),
            error => error,
        })?);
    }
    reading.spool = spool_of(&files, reading.newest.as_ref());
    // Ignore the file `newest` if it belongs to another spool, because it does not describe these
    // segments.
    reading.newest = reading.newest.filter(|newest| newest.spool == reading.spool);
    reading.oldest = reading.newest.map_or(OldestUse::default(), |newest| newest.oldest);
    let candidates: Vec<_> = files.into_iter().filter_map(|file| reading.classify(file)).collect();
    let row = reading.order_segments(candidates);
    reading.replay_segments(row)?;
    Ok(reading)
}

/// Returns the random number of the spool to which most files belong, or a new number for a new spool. If two spools
/// have the same number of files, chooses the spool to which the file `newest` belongs.
fn spool_of(files: &[ExaminedFile], newest: Option<&NewestSegment>) -> u64 {
    let mut votes: HashMap<u64, usize> = HashMap::new();
    for spool in files.iter().filter_map(ExaminedFile::spool).chain(newest.map(|newest| newest.spool)) {
        *votes.entry(spool).or_default() += 1;
    }
    let recorded = newest.map(|newest| newest.spool);
    let most = votes.into_iter().max_by_key(|(spool, votes)| (*votes, recorded == Some(*spool), *spool));
    most.map_or_else(|| RandomState::new().hash_one(0), |(spool, _)| spool)
}

fn header_damage(segment: &str, offset: u64, bytes: u64, cost: Cost) -> Damage {
    file_damage(segment, offset..offset + bytes, DamageKind::Header, cost)
}

fn file_damage(segment: &str, range: Range<u64>, kind: DamageKind, cost: Cost) -> Damage {
    Damage {
        segment: segment.to_owned(),
        offset: range.start,
        bytes: range.end - range.start,
        kind,
        cost,
        messages: Vec::new(),
        unnamed: 0,
        is_known: false,
    }
}

impl LoadedSpool {
    fn is_foreign(&self, name: &str) -> bool {
        self.damage.iter().any(|damage| damage.kind == DamageKind::Foreign && damage.segment == name)
    }

    /// Returns the new content of the file `newest`, and true if it must be written at once. Otherwise it is enough to
    /// write it with the next new segment.
    pub(crate) fn newest_record(&self) -> (NewestSegment, bool) {
        let ResumePoint { next_generation, next_id, .. } = self.resume_point;
        let oldest =
            self.used.first().map_or(OldestUse { generation: next_generation, first_id: next_id }, |(first, _)| {
                OldestUse { generation: first.header.generation, first_id: first.header.first_id() }
            });
        let (newest, is_new) = match (self.newest, self.used.last()) {
            (Some(lost), _) if lost.generation >= next_generation => {
                // Record in the file `newest` that the segment is lost, so that later starts do not
                // report the loss again.
                (NewestSegment { state: NewestState::Lost, next_id, ..lost }, lost.state != NewestState::Lost)
            }
            (Some(newest), _) => (newest, false),
            (None, Some((last, _))) => {
                let file_number = SegmentPool::file_number(&last.name).unwrap_or_default();
                (NewestSegment::open(&last.header, file_number, next_id, oldest), false)
            }
            (None, None) => {
                let header = SegmentHeader::unused(self.spool, 0);
                (NewestSegment::open(&header, 0, next_id, oldest), false)
            }
        };
        // The latest header says which older segments were freed. It may be in an unfinished or illegible file. The
        // spool removes such files next, so it must first write to the file `newest` which segments were freed.
        let loses_proof = !(self.unfinished.is_empty() && self.illegible.is_empty());
        (NewestSegment { oldest, ..newest }, is_new || loses_proof)
    }

    /// Drops free segments whose files are sparse, for example in a copied directory. A write into
    /// a hole could fail for lack of disk space.
    pub(crate) fn drop_sparse_segments(&mut self) {
        let is_sparse = |spare: &mut FreeSegment| !spare.file.is_allocated().unwrap_or(true);
        self.unfinished.extend(self.free_segments.extract_if(.., is_sparse).map(|spare| spare.name));
    }

    /// Sorts a file by its state, and reports damage to its header. If the file is a segment in use, returns it.
    /// Otherwise adds the file to the list of free, unfinished or unreadable files.
    fn classify(&mut self, look: ExaminedFile) -> Option<SegmentCandidate> {
        let is_foreign = look.spool().is_some_and(|spool| spool != self.spool);
        let ExaminedFile { name, file, bytes, file_bytes, role, header, bad_slots: bad_places } = look;
        if is_foreign {
            let cost = if matches!(role, FileRole::Free(_)) { Cost::Nothing } else { Cost::Unknown };
            self.damage.push(file_damage(&name, 0..file_bytes, DamageKind::Foreign, cost));
            self.illegible.push((name, file));
            return None;
        }
        for at in &bad_places {
            // Report no lost messages for a damaged header, because the batches after it can often be read without it.
            // If they cannot, the whole segment is reported as damaged.
            self.damage.push(header_damage(&name, *at, HEADER_BYTES as u64, Cost::Nothing));
        }
        if let Some(header) = header {
            self.resume_point.next_generation =
                self.resume_point.next_generation.max(header.generation.saturating_add(1));
            self.resume_point.next_id = self.resume_point.next_id.max(header.next_id);
            self.expect(header.oldest);
        }
        match role {
            FileRole::Used(header) => {
                let segment = Segment { file_bytes, ..Segment::new(name, file, header, bytes) };
                let may_be_free = !bad_places.is_empty();
                return Some(SegmentCandidate { segment, headerless: None, may_be_free });
            }
            FileRole::Headerless { generation: use_number, seed, first_id } => {
                if bad_places.is_empty() {
                    // The header blocks are intact but older than the batches, so the last header
                    // never reached the disk: the host crashed, or the disk lost the write.
                    self.damage.push(header_damage(&name, 0, HEADER_BYTES as u64, Cost::Nothing));
                }
                let header = SegmentHeader {
                    state: SegmentHeaderState::Used,
                    revision: header.map_or(0, |header| header.revision),
                    ..SegmentHeader::unused(self.spool, bytes)
                };
                let segment = Segment { seed, ..Segment::new(name, file, header, bytes) };
                segment.mark_damaged();
                return Some(SegmentCandidate {
                    segment,
                    headerless: Some(HeaderlessUse { generation: use_number, first_id }),
                    may_be_free: false,
                });
            }
            // Remove a free file with a damaged header, because it must not be used again.
            FileRole::Free(_) if !bad_places.is_empty() => self.unfinished.push(name),
            FileRole::Free(_) if file_bytes < bytes => {
                self.damage.push(file_damage(&name, file_bytes..bytes, DamageKind::Shortened, Cost::Nothing));
                self.unfinished.push(name);
            }
            FileRole::Free(header) => self.free_segments.push(FreeSegment { name, file, header, bytes }),
            FileRole::Unfinished => self.unfinished.push(name),
            FileRole::Illegible => {
                self.damage.push(header_damage(&name, 0, bytes, Cost::Unknown));
                self.illegible.push((name, file));
            }
        }
        None
    }

    /// Updates `self.oldest` with the oldest segment that was still needed when a header was written. Keeps the highest
    /// generation, because segments are freed in order, so the header that was written last names the highest.
    fn expect(&mut self, oldest: OldestUse) {
        if oldest.generation > self.oldest.generation {
            self.oldest = oldest;
        }
    }

    /// Sorts the used segments into the order of the log. Segments without a header are inserted at
    /// the position that their content suggests.
    fn order_segments(&mut self, candidates: Vec<SegmentCandidate>) -> Vec<SegmentCandidate> {
        let (headless, mut row): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|candidate| candidate.headerless.is_some());
        row.sort_by_key(|candidate| candidate.segment.header.generation);
        for mut candidate in headless {
            let Some(known) = candidate.headerless else { continue };
            let at = insert_position(&row, known, self.oldest);
            let before = at.checked_sub(1).map(|before| row[before].segment.header.generation);
            let after = row.get(at).map(|after| after.segment.header.generation);
            let guess = match (before, after) {
                (_, None) => self.resume_point.next_generation,
                (Some(before), Some(_)) => before + 1,
                (None, Some(after)) => after.saturating_sub(1),
            };
            candidate.segment.header.generation = known.generation.unwrap_or(guess);
            // The segment's durability setting was lost with its header. This setting rarely changes, so take the
            // setting of a neighboring segment.
            let neighbor = row.get(at).or(row.get(at.wrapping_sub(1)));
            candidate.segment.header.is_synced = neighbor.is_none_or(|neighbor| neighbor.segment.header.is_synced);
            self.resume_point.next_generation =
                self.resume_point.next_generation.max(candidate.segment.header.generation.saturating_add(1));
            row.insert(at, candidate);
        }
        self.without_freed(row)
    }

    /// Removes the oldest segment from the row if one of its two header blocks is damaged and the segment after it is
    /// missing. The damaged block probably marked the oldest segment as free, so its messages must not be delivered
    /// again.
    fn without_freed(&mut self, mut row: Vec<SegmentCandidate>) -> Vec<SegmentCandidate> {
        let is_gap = |row: &[SegmentCandidate]| {
            let [first, second, ..] = row else { return false };
            first.may_be_free && second.segment.header.generation > first.segment.header.generation + 1
        };
        while is_gap(&row) {
            let SegmentCandidate { segment, .. } = row.remove(0);
            self.damage.push(header_damage(&segment.name, 0, segment.bytes, Cost::Unknown));
            self.illegible.push((segment.name, segment.file));
        }
        row
    }

    fn replay_segments(&mut self, row: Vec<SegmentCandidate>) -> Result<(), Error> {
        let newest = self.newest;
        // If the newest segment seems to be missing, an illegible file may be this segment. The illegible file has been
        // reported already, so do not also report a missing segment.
        let is_illegible = self.illegible.iter().any(|(name, _)| !self.is_foreign(name));
        let is_missing =
            |newest: &NewestSegment| newest.generation >= self.resume_point.next_generation && !is_illegible;
        let lost = newest.filter(is_missing);
        self.resume_point.next_generation = self.resume_point.next_generation.max(row.len() as u64 + 1);
        let first_order = self.resume_point.next_generation - row.len() as u64;
        let mut replay = Replay::new(std::mem::take(&mut self.damage), self.resume_point.next_id);
        let mut before: Option<(u64, bool)> = None;
        let mut row = row.into_iter().zip(first_order..).peekable();
        while let Some((SegmentCandidate { mut segment, headerless: headless, .. }, order)) = row.next() {
            segment.position = order;
            if replay.damage.iter().any(|damage| damage.segment == segment.name) {
                segment.mark_damaged();
            }
            let use_number = segment.header.generation;
            let is_headless = headless.is_some();
            let segment = Arc::new(segment);
            match before {
                None => replay.check_oldest(&segment, self.oldest),
                Some((before, was_headless)) => replay.check_sequence(&segment, before, was_headless || is_headless),
            }
            let next = row.peek().map(|(next, _)| &next.segment.header);
            let claimed_end = match next {
                Some(next) if next.generation == use_number + 1 => next.previous_end,
                None => newest.filter(|newest| newest.generation == use_number).map_or(0, |newest| newest.closed_at),
                Some(_) => 0,
            };
            let end = replay.replay_segment(&segment, claimed_end)?;
            self.used.push((segment, end));
            before = Some((use_number, is_headless));
        }
        if let Some(lost) = lost {
            replay.lose_newest(&lost, self.oldest);
        }
        let done = replay.finish();
        self.resume_point.next_id = done.next_id;
        self.resume_point.previous_end = done.previous_end;
        self.index = done.index;
        self.damage = done.damage;
        self.damaged_bodies = done.damaged_bodies;
        self.unproven = done.unproven;
        self.cut_bytes = done.cut_bytes;
        Ok(())
    }
}

/// Returns the position in the log of a segment that lost its header. If its generation is unknown, compares the number
/// of its first message with the other segments, because later segments begin with higher message numbers.
fn insert_position(row: &[SegmentCandidate], known: HeaderlessUse, oldest: OldestUse) -> usize {
    let is_before = |candidate: &SegmentCandidate| {
        let header = &candidate.segment.header;
        match (known.generation, known.first_id) {
            (Some(number), _) => header.generation <= number,
            (None, Some(id)) => header.next_id <= id.0,
            (None, None) => true,
        }
    };
    if known.generation.is_none() && known.first_id.is_none() {
        // Nothing in this segment shows its position in the log, so fill a gap with it. If the oldest segment is
        // missing, put this segment first. Otherwise, put it where a single segment is missing between two others. If
        // there is no gap, put it last.
        let is_oldest_missing = |first: &SegmentCandidate| first.segment.header.generation > oldest.generation;
        if oldest.generation > 0 && row.first().is_some_and(is_oldest_missing) {
            return 0;
        }
        let numbers: Vec<u64> = row.iter().map(|candidate| candidate.segment.header.generation).collect();
        return numbers.windows(2).position(|two| two[1] == two[0] + 2).map_or(row.len(), |at| at + 1);
    }
    row.iter().take_while(|candidate| is_before(candidate)).count()
}
