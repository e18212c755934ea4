//! Reads the records of all segments in order, and finds out which messages were lost by damage. Often only later
//! records show this. For example, the number of the next message shows how many numbers were skipped.
use crate::damage::{Cost, Damage, DamageKind};
use crate::format::{BATCHES_OFFSET, BLOCK, OldestUse, RECORD_HEADER_BYTES, RecordKind};
use crate::index::MessageIndex;
use crate::newest::{NewestSegment, NewestState};
use crate::scan::{BodyMode, DamagedRecord, DamagedRegion, Hole, Scan, ScanStep, ScannedRecord};
use crate::segment::{RecordLocation, Segment};
use crate::segment_pool::SegmentPool;
use crate::{Error, Id};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

pub(crate) struct Replay {
    index: MessageIndex,
    pub(crate) damage: Vec<Damage>,
    next_id: u64,
    previous_end: u64,
    cut_bytes: u64,
    /// Segments that may not have been synced completely. Each entry is a segment's position in the log, and the offset
    /// up to which it certainly was synced.
    unproven: Vec<(u64, u64)>,
    /// Number of the newest message found so far. Before a message is found, this is one less than the number of the
    /// first message in the oldest segment.
    last_stored: Option<u64>,
    /// Unreadable gaps in the log that may have held new messages. The number of the next new message will show how
    /// many messages are missing.
    pending: Vec<PendingHole>,
    /// Messages that are not lost, because after the first gap in `pending`, the log contains an intact copy of them or
    /// a mark that they are done.
    settled: HashSet<u64>,
    /// Messages that may be lost in a gap of the log, each with the index of the gap's entry in `damage`.
    missing: HashMap<u64, usize>,
    /// Messages with a damaged body, each with the index of its entry in `damage`.
    bodies: HashMap<u64, usize>,
    /// Messages for which only notes were found. Their own records may be lost.
    orphans: HashSet<u64>,
}

/// A gap in the log, and what is known about the messages that may have been in it.
struct PendingHole {
    damage: usize,
    after: Option<u64>,
    records: Option<u64>,
    max_records: u64,
    record: Option<DamagedRecord>,
    /// Field `next_id` of the first segment after the gap. All new messages in the gap have smaller numbers.
    before: Option<u64>,
}

pub(crate) struct ReplayResult {
    pub(crate) index: MessageIndex,
    pub(crate) damage: Vec<Damage>,
    pub(crate) damaged_bodies: Vec<Id>,
    pub(crate) next_id: u64,
    pub(crate) previous_end: u64,
    pub(crate) cut_bytes: u64,
    pub(crate) unproven: Vec<Id>,
}

impl Replay {
    pub(crate) fn new(damage: Vec<Damage>, next_id: u64) -> Self {
        Self {
            index: MessageIndex::default(),
            damage,
            next_id,
            previous_end: 0,
            cut_bytes: 0,
            unproven: Vec::new(),
            last_stored: None,
            pending: Vec::new(),
            settled: HashSet::new(),
            missing: HashMap::new(),
            bodies: HashMap::new(),
            orphans: HashSet::new(),
        }
    }

    fn add_damage(&mut self, segment: &Segment, range: std::ops::Range<u64>, kind: DamageKind) -> usize {
        self.damage.push(Damage {
            segment: segment.name.clone(),
            offset: range.start,
            bytes: range.end - range.start,
            kind,
            cost: Cost::Nothing,
            messages: Vec::new(),
            unnamed: 0,
            is_known: false,
        });
        if !matches!(kind, DamageKind::TornEnd | DamageKind::UnsyncedEnd) {
            segment.mark_damaged();
        }
        self.damage.len() - 1
    }

    /// Reports damage if a segment's generation is not one higher than the generation `before` of the previous segment.
    /// Equal generations reveal a copied segment, and a larger step reveals missing segments.
    pub(crate) fn check_sequence(&mut self, segment: &Segment, before: u64, is_guess: bool) {
        let number = segment.header.generation;
        if number == before && !is_guess {
            let at = self.add_damage(segment, 0..0, DamageKind::DoubledSegment);
            self.damage[at].cost = Cost::Notes;
        }
        if number > before + 1 {
            let damage = self.add_damage(segment, 0..0, DamageKind::MissingSegment);
            let after = self.last_stored;
            self.pending.push(PendingHole { damage, after, records: None, max_records: 0, record: None, before: None });
        }
    }

    /// Reports missing segments at the start of the log. `segment` is the oldest one that was
    /// found, and `oldest` the oldest that must exist.
    pub(crate) fn check_oldest(&mut self, segment: &Segment, oldest: OldestUse) {
        // Generation 0 means that neither a header nor the file `newest` says which segments must exist.
        if oldest.generation > 0 && segment.header.generation > oldest.generation {
            let damage = self.add_damage(segment, 0..0, DamageKind::MissingSegment);
            let after = oldest.first_id.checked_sub(1);
            self.pending.push(PendingHole { damage, after, records: None, max_records: 0, record: None, before: None });
        }
    }

    /// Reads the records of a segment, and returns the offset at which its batches end. `claimed_end` is the offset
    /// that the next segment or the file `newest` states for this end, or 0 if neither states it.
    pub(crate) fn replay_segment(&mut self, segment: &Arc<Segment>, claimed_end: u64) -> Result<u64, Error> {
        self.index.push_segment(Arc::clone(segment));
        if self.last_stored.is_none() && segment.header.next_id > 0 {
            // The spool begins a segment for a message to which it has just given the number `next_id - 1`. The last
            // message of the earlier segments therefore has the number `next_id - 2`.
            self.last_stored = Some(segment.header.next_id.saturating_sub(2));
        }
        let bound = Some(segment.header.next_id).filter(|next_id| *next_id > 0);
        self.pending.iter_mut().for_each(|pending| pending.before = pending.before.or(bound));
        let mut scan = Scan::of_segment(segment, BodyMode::Check);
        let mut seen = Vec::new();
        // `cut` is the offset of the part that a crash has torn, if any. If intact records follow the torn part, `cut`
        // is 0, which stands for an unknown end of the segment.
        let mut cut = None;
        loop {
            match scan.next_part(&mut seen, claimed_end)? {
                ScanStep::Batch => {
                    // An intact batch follows the torn part. The header of the next segment will state where this
                    // segment ends, but no offset would be right: if it were before this batch, the next start would
                    // ignore the batch; if it were after the batch, the next start would report the torn part as
                    // damage. So let the header state 0, for an unknown end.
                    cut = cut.map(|_| 0);
                    for one in &seen {
                        self.apply(segment, one);
                    }
                }
                ScanStep::Region(region) => {
                    let begin = region.range.start;
                    if !region.was_promised {
                        cut = Some(if cut.is_none() && seen.is_empty() { begin } else { 0 });
                    }
                    self.region(segment, &region, &seen);
                }
                ScanStep::End => break,
            }
        }
        let is_shortened = |damage: &Damage| damage.kind == DamageKind::Shortened && damage.segment == segment.name;
        if segment.file_bytes < segment.bytes && !self.damage.iter().any(is_shortened) {
            self.add_damage(segment, segment.file_bytes..segment.bytes, DamageKind::Shortened);
        }
        self.previous_end = cut.unwrap_or(scan.offset());
        self.unproven.extend(scan.unproven_from(claimed_end).map(|from| (segment.position, from)));
        Ok(scan.offset())
    }

    fn region(&mut self, segment: &Segment, region: &DamagedRegion, seen: &[ScannedRecord]) {
        let begin = region.range.start;
        let is_nothing = seen.is_empty() && region.holes.is_empty();
        if !region.was_promised && is_nothing {
            return;
        }
        let kind = match region.was_promised {
            true if region.range.end > segment.file_bytes => DamageKind::Shortened,
            true => DamageKind::Records,
            false if segment.header.is_synced => DamageKind::TornEnd,
            false => DamageKind::UnsyncedEnd,
        };
        let damage = self.add_damage(segment, region.damage_offset.max(begin)..region.range.end, kind);
        let lost: u64 = region.holes.iter().map(|hole| hole.range.end - hole.range.start).sum();
        if !region.was_promised {
            self.cut_bytes += region.batch.filter(|_| seen.is_empty()).map_or(lost, |batch| batch.bytes);
        }
        // If the damaged region is a single batch, the batch header states how many records there were. Subtract the
        // records that can still be read, which leaves the number of lost records.
        let whole = region.batch.filter(|batch| begin + batch.bytes.next_multiple_of(BLOCK) >= region.range.end);
        let stated = whole.map(|batch| u64::from(batch.records).saturating_sub(seen.len() as u64));
        let mut holes = region.holes.iter().peekable();
        for at in 0..=seen.len() {
            while let Some(hole) = holes.next_if(|hole| hole.after == at) {
                self.hole(damage, hole, stated);
            }
            if let Some(one) = seen.get(at) {
                self.apply(segment, one);
            }
        }
    }

    fn hole(&mut self, damage: usize, hole: &Hole, records: Option<u64>) {
        let most_records = (hole.range.end - hole.range.start).div_ceil(RECORD_HEADER_BYTES as u64);
        let after = self.last_stored;
        let records = records.or(hole.record.map(|_| 1));
        self.pending.push(PendingHole {
            damage,
            after,
            records,
            max_records: most_records,
            record: hole.record,
            before: None,
        });
    }

    fn apply(&mut self, segment: &Segment, one: &ScannedRecord) {
        let location = RecordLocation::new(segment.position, one.at, one.bytes);
        self.next_id = self.next_id.max(one.id.0.saturating_add(1));
        match one.kind {
            RecordKind::Stored | RecordKind::Moved => {
                if one.kind == RecordKind::Stored {
                    self.resolve_pending(one.id);
                }
                self.mark_settled(one.id);
                self.index.insert(one.id, location);
                if one.is_body_damaged {
                    let damage = self.add_damage(segment, one.at..one.at + one.bytes, DamageKind::Body);
                    self.bodies.insert(one.id.0, damage);
                }
            }
            RecordKind::Note => {
                if !self.index.contains(one.id) {
                    self.orphans.insert(one.id.0);
                }
                self.index.add_note(one.id, location);
            }
            RecordKind::Done => {
                self.mark_settled(one.id);
                self.index.remove(one.id);
            }
        }
    }

    /// Removes a message from the possible losses, because it is done or an intact record of it was
    /// found.
    fn mark_settled(&mut self, id: Id) {
        // In an undamaged spool, these collections are all empty. Skip empty collections, because hashing the id of
        // each message takes time.
        if !self.orphans.is_empty() {
            self.orphans.remove(&id.0);
        }
        if !self.bodies.is_empty() {
            self.bodies.remove(&id.0);
        }
        if !self.missing.is_empty() {
            self.missing.remove(&id.0);
        }
        if !self.pending.is_empty() {
            self.settled.insert(id.0);
        }
    }

    /// Handles a new message, whose number is the highest so far. If numbers are skipped between the previous new
    /// message and this one, the messages with these numbers were in the unreadable gaps between the two.
    fn resolve_pending(&mut self, id: Id) {
        for pending in std::mem::take(&mut self.pending) {
            self.resolve(&pending, Some(id.0));
        }
        self.settled.clear();
        self.last_stored = Some(id.0);
    }

    /// Decides which messages are lost because their records were in an unreadable gap of the log. `next` is the number
    /// of the first new message after the gap.
    fn resolve(&mut self, pending: &PendingHole, next: Option<u64>) {
        let next = next.or(pending.before);
        let before_next = next.unwrap_or_else(|| {
            // No new message follows the gap, so no message number shows how many messages the gap contained. If the
            // number of lost records is known, assume the worst: each record was a new message.
            pending.after.unwrap_or_default().saturating_add(1 + pending.records.unwrap_or(0))
        });
        let first = pending.after.map_or(before_next, |after| after + 1);
        let gap = before_next.saturating_sub(first);
        let is_explained = gap > 0 && pending.records.is_some_and(|records| records <= gap);
        let is_in_row = |id: Id| pending.after.is_none_or(|after| id.0 > after) && next.is_none_or(|next| id.0 < next);
        let mut cost = Cost::Nothing;
        match pending.record {
            Some(DamagedRecord::Message(id)) if is_in_row(id) => self.mark_missing(pending.damage, id.0..id.0 + 1),
            Some(DamagedRecord::Message(id)) => {
                // The message number in the damaged record does not lie between the numbers before and after the gap.
                // Either compaction had moved an older message here, or the number itself is damaged.
                if id.0 < self.next_id {
                    self.mark_missing(pending.damage, id.0..id.0 + 1);
                }
                self.mark_missing(pending.damage, first..before_next);
                cost = if is_explained || id.0 < self.next_id { Cost::Nothing } else { Cost::Unknown };
            }
            _ if is_explained => self.mark_missing(pending.damage, first..before_next),
            Some(DamagedRecord::Mark) => cost = Cost::Notes,
            None => {
                self.mark_missing(pending.damage, first..before_next);
                cost = Cost::Unknown;
            }
        }
        let damage = &mut self.damage[pending.damage];
        damage.cost = damage.cost.max(cost);
        if next.is_none() && pending.before.is_none() {
            // New messages must not get the numbers of lost messages. These numbers are unknown, so skip one number for
            // each record that may have been in the gap.
            let lost_records = pending.max_records.min(self.next_id);
            self.next_id = self.next_id.saturating_add(lost_records);
        }
    }

    fn mark_missing(&mut self, damage: usize, ids: std::ops::Range<u64>) {
        self.damage[damage].unnamed += ids.end.saturating_sub(ids.start).saturating_sub(Damage::MAX_NAMED as u64);
        let wanted = ids.filter(|id| !self.settled.contains(id) && !self.index.contains(Id(*id)));
        for id in wanted.take(Damage::MAX_NAMED) {
            self.missing.entry(id).or_insert(damage);
        }
    }

    /// Reports the loss of the newest segment, and of segments directly before it that are lost as
    /// well.
    pub(crate) fn lose_newest(&mut self, lost: &NewestSegment, oldest: OldestUse) {
        let NewestSegment { state, file_number, next_id, .. } = *lost;
        if state != NewestState::Lost {
            let segment = SegmentPool::file_name(file_number);
            let kind = DamageKind::MissingNewest;
            let (messages, cost) = (Vec::new(), Cost::Unknown);
            self.damage.push(Damage {
                segment,
                offset: 0,
                bytes: 0,
                kind,
                cost,
                messages,
                unnamed: 0,
                is_known: false,
            });
            // If all segments are missing, the loss begins with the first message of the oldest segment that must
            // exist.
            let first_missing = match (self.last_stored, oldest.first_id) {
                (Some(last), _) => last + 1,
                (None, 0) => lost.first_id,
                (None, first_id) => first_id,
            };
            self.mark_missing(self.damage.len() - 1, first_missing.min(lost.first_id)..next_id);
        }
        self.next_id = self.next_id.max(next_id);
        if state == NewestState::Open {
            // New messages must not get the numbers of lost messages, but the highest lost number is unknown. So double
            // `next_id`: this skips as many numbers as were used before, and the lost segment hardly used more.
            self.next_id = self.next_id.saturating_mul(2);
        }
    }

    pub(crate) fn finish(mut self) -> ReplayResult {
        for pending in std::mem::take(&mut self.pending) {
            self.resolve(&pending, None);
        }
        let mut damaged_bodies: Vec<Id> = self.bodies.keys().map(|id| Id(*id)).collect();
        damaged_bodies.sort_unstable();
        for (id, damage) in self.missing.drain().chain(self.bodies.drain()) {
            self.damage[damage].messages.push(Id(id));
        }
        // Compaction may have moved a message before it was lost. Its loss then leaves no gap between the message
        // numbers, but notes of the message may be left. So also report messages of which only notes were found.
        if let Some(damage) = self.damage.iter_mut().find(|damage| damage.cost == Cost::Unknown) {
            damage.messages.extend(self.orphans.drain().map(Id));
        }
        for damage in &mut self.damage {
            damage.messages.sort_unstable();
            damage.messages.dedup();
            damage.unnamed += damage.messages.len().saturating_sub(Damage::MAX_NAMED) as u64;
            damage.messages.truncate(Damage::MAX_NAMED);
            if !damage.messages.is_empty() {
                damage.cost = Cost::Messages;
            }
        }
        let previous_end = if self.previous_end == 0 { 0 } else { self.previous_end.max(BATCHES_OFFSET) };
        ReplayResult {
            unproven: self.index.messages_after(&self.unproven),
            index: self.index,
            damage: self.damage,
            damaged_bodies,
            next_id: self.next_id,
            previous_end,
            cut_bytes: self.cut_bytes,
        }
    }
}
