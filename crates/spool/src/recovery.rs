//! What a directory holds when a spool is opened: its segments in order, what in them still counts, where to go on.
use crate::disk::{Disk, DiskFile};
use crate::faulty::FaultyDisk;
use crate::format::{
    BATCH_BYTES, BATCHES_AT, BLOCK, BODY_CRC_AT, Batch, HEADER_BYTES, Header, Kind, Place, RECORD_BYTES, Record, State,
    checksum, seal,
};
use crate::live::{Live, SharedLive};
use crate::log::Resumption;
use crate::scan::{Bodies, Found, Scan, Seen};
use crate::segment::{Segment, Spot};
use crate::supply::{Spare, Supply};
use crate::{Backlog, Error, Options};
use std::io;
use std::sync::Arc;

pub(crate) struct Recovered {
    pub(crate) live: Live,
    pub(crate) supply: Supply,
    pub(crate) resumption: Resumption,
    pub(crate) cut_bytes: u64,
}

/// What a file turns out to be.
enum Kept {
    Used(Segment),
    Free(Spare),
    /// A file that was being made when the power failed.
    Nothing,
}

/// Reads the whole spool. Nothing is changed but what makes it whole: files that were never finished are removed.
pub(crate) fn recover(disk: &Arc<dyn Disk>, options: &Options) -> Result<Recovered, Error> {
    let mut supply = Supply {
        disk: Arc::clone(disk),
        segment_bytes: options.segment_bytes,
        most_bytes: options.most_bytes,
        spares: Vec::new(),
        used_bytes: 0,
        next_file: 0,
        is_making: false,
        has_failed: false,
        is_closed: false,
    };
    let (mut used, mut unfinished) = (Vec::new(), Vec::new());
    // What a process left that was killed may be in the page cache only. From here on it is built upon, so that first
    // it has to be there for good: names, and (below) headers and batches.
    disk.sync_directory()?;
    for name in disk.list()? {
        let Some(number) = file_number(&name) else { continue };
        supply.next_file = supply.next_file.max(number + 1);
        match look_at(&name, disk.open(&name)?)? {
            Kept::Used(segment) => {
                segment.file.sync_data()?;
                used.push(segment);
            }
            Kept::Free(spare) => {
                spare.file.sync_data()?;
                supply.spares.push(spare);
            }
            Kept::Nothing => unfinished.push(name),
        }
    }
    used.sort_by_key(|segment| segment.header.use_number);
    supply.used_bytes = used.iter().map(|segment| segment.bytes).sum();
    let mut resumption = beginning(&supply.spares, &used);
    let (live, cut_bytes) = read_all(used, &mut resumption)?;
    unfinished.iter().try_for_each(|name| disk.remove(name))?;
    supply.drop_odd_ones()?;
    Ok(Recovered { live, supply, resumption, cut_bytes })
}

/// The number in a segment's name; other files are none of ours.
fn file_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(Supply::PREFIX)?;
    let is_ours = digits.len() >= 8 && digits.len() < 16 && digits.bytes().all(|c| c.is_ascii_hexdigit());
    is_ours.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

fn look_at(name: &str, file: Arc<dyn DiskFile>) -> Result<Kept, Error> {
    let bytes = file.bytes()?;
    let mut newest: Option<Header> = None;
    for at in [0, BLOCK] {
        match read_place(&*file, at)? {
            Place::Newer(version) => return Err(Error::Newer { file: name.to_owned(), version }),
            Place::Header(header) if header.at() == at => {
                newest = newest.filter(|other| other.turn > header.turn).or(Some(header));
            }
            _ => {}
        }
    }
    let name = name.to_owned();
    match newest {
        Some(_) if bytes > MOST_SEGMENT_BYTES => Err(Error::Damaged { file: name, offset: MOST_SEGMENT_BYTES }),
        Some(header) if header.state == State::Free => Ok(Kept::Free(Spare { name, file, header, bytes })),
        Some(header) => Ok(Kept::Used(Segment { name, file, header, bytes })),
        None if is_blank(&*file)? => Ok(Kept::Nothing),
        None => Err(Error::Damaged { file: name, offset: 0 }),
    }
}

/// No segment is made longer: the largest record has 4 GiB and two notes' worth.
const MOST_SEGMENT_BYTES: u64 = 8 << 30;

fn read_place(file: &dyn DiskFile, at: u64) -> io::Result<Place> {
    let mut bytes = [0; HEADER_BYTES];
    let read = file.read_at(&mut bytes, at)?;
    Ok(if read == HEADER_BYTES { Place::read(&bytes) } else { Place::Illegible })
}

/// Whether nothing was ever written where batches begin. A file's first header is synced before any batch is written,
/// so a file without a header and with a batch is damaged; one without either was just being made.
fn is_blank(file: &dyn DiskFile) -> io::Result<bool> {
    let mut block = [0; BLOCK as usize];
    let read = file.read_at(&mut block, BATCHES_AT)?;
    Ok(block[..read].iter().all(|octet| *octet == 0))
}

/// The numbers to go on with, as far as headers tell.
fn beginning(spares: &[Spare], used: &[Segment]) -> Resumption {
    let headers = spares.iter().map(|spare| spare.header).chain(used.iter().map(|segment| segment.header));
    let (mut next_use, mut next_id) = (1, 1);
    for header in headers {
        next_use = next_use.max(header.use_number.saturating_add(1));
        next_id = next_id.max(header.next_id);
    }
    Resumption { previous_end: 0, next_use, next_id }
}

/// Goes through all segments, oldest first.
fn read_all(used: Vec<Segment>, resumption: &mut Resumption) -> Result<(Live, u64), Error> {
    let (mut live, mut cut_bytes) = (Live::default(), 0);
    let mut segments = used.into_iter().peekable();
    while let Some(segment) = segments.next() {
        let segment = Arc::new(segment);
        let use_number = segment.header.use_number;
        let next = segments.peek();
        // Segments are given up oldest first, so that a row without the one between has lost it.
        if let Some(next) = next.filter(|next| Some(next.header.use_number) != use_number.checked_add(1)) {
            return Err(next.damaged(0));
        }
        let claimed_end = next.map_or(0, |next| next.header.previous_end);
        live.begin(Arc::clone(&segment));
        let (end, cut) = read_segment(&segment, claimed_end, &mut live, resumption)?;
        cut_bytes += cut;
        if next.is_none() {
            resumption.previous_end = end;
        }
    }
    Ok((live, cut_bytes))
}

/// Reads a segment up to `claimed_end`, which the next one states, or to where it ends by itself (0). Returns where
/// that is, and how much of a torn batch is left behind it.
fn read_segment(
    segment: &Arc<Segment>,
    claimed_end: u64,
    live: &mut Live,
    resumption: &mut Resumption,
) -> Result<(u64, u64), Error> {
    let mut scan = Scan::new(Arc::clone(&segment.file), segment.header.seed(), segment.bytes, Bodies::Checked);
    let mut seen = Vec::new();
    loop {
        if scan.at() == claimed_end {
            return Ok((claimed_end, 0));
        }
        let begin = scan.at();
        match scan.next(&mut seen)? {
            Found::Batch => apply(&seen, segment.header.use_number, live, resumption),
            Found::Nothing(at) if claimed_end > begin || scan.is_vouched_for()? => return Err(segment.damaged(at)),
            Found::Nothing(_) => return Ok((begin, scan.torn_bytes()?)),
        }
    }
}

fn apply(seen: &[Seen], use_number: u64, live: &mut Live, resumption: &mut Resumption) {
    for one in seen {
        let spot = Spot::new(use_number, one.at, one.bytes);
        resumption.next_id = resumption.next_id.max(one.id.0.saturating_add(1));
        match one.kind {
            Kind::Stored | Kind::Moved => live.place(one.id, spot),
            Kind::Note => live.note(one.id, spot),
            Kind::Done => live.done(one.id),
        }
    }
}

/// What a segment would be taken for, whatever its octets, and how many messages it would hold: for fuzzing.
#[doc(hidden)]
pub fn try_octets(octets: &[u8]) -> Result<u64, Error> {
    let disk = FaultyDisk::new();
    disk.put("segment-00000000", octets);
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let recovered = recover(&disk, &Options::default().fitted())?;
    let live = Arc::new(SharedLive::new(recovered.live));
    Backlog::new(Arc::clone(&live)).try_fold(0, |messages, left| left.map(|_| messages + 1))
}

/// Those octets, with all checksums that stand where one would be made right: for fuzzing, to get behind them.
#[doc(hidden)]
pub fn with_checksums(octets: &[u8]) -> Vec<u8> {
    let mut octets = octets.to_vec();
    let Some(header) = octets.first_chunk_mut::<HEADER_BYTES>() else { return octets };
    Header::seal(header);
    let Place::Header(header) = Place::read(header) else { return octets };
    let (mut at, length) = (BATCHES_AT as usize, octets.len() as u64);
    while let Some(batch) = octets.get_mut(at..).filter(|rest| rest.len() >= BATCH_BYTES) {
        seal(&mut batch[..BATCH_BYTES], header.seed());
        let Some(read) = Batch::read(batch, header.seed(), at as u64, length) else { return octets };
        let mut rest = batch.get_mut(BATCH_BYTES..(read.bytes as usize).min(batch.len())).unwrap_or_default();
        while let Some(record) = Record::read(rest).filter(|record| record.bytes() <= rest.len() as u64) {
            let (head, body) = rest.split_at_mut(record.head_bytes() as usize);
            let body_crc = checksum(&body[..record.body_bytes as usize]);
            head[BODY_CRC_AT..RECORD_BYTES].copy_from_slice(&body_crc.to_le_bytes());
            seal(head, header.seed());
            rest = &mut rest[record.bytes() as usize..];
        }
        at = (at + read.bytes as usize).next_multiple_of(BLOCK as usize);
    }
    octets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Draft, Spool};
    use proptest::prelude::*;

    /// A segment with messages, notes and one that is done.
    fn octets() -> Vec<u8> {
        let disk = FaultyDisk::new();
        let options = Options { segment_bytes: 1 << 16, ..Options::default() };
        let (spool, _) = Spool::open(Arc::new(disk.clone()), options).unwrap();
        for bytes in [0, 10, 300, 5000] {
            let draft = Draft { received_ns: 1, envelope: vec![b'e'; 9], body: vec![b'b'; bytes].into() };
            let id = spool.store(draft).wait().unwrap().id();
            spool.note(id, b"a note");
            if bytes == 10 {
                spool.done(id);
            }
        }
        spool.close();
        disk.octets("segment-00000000").unwrap()
    }

    #[test]
    fn what_is_whole_has_its_checksums_already() {
        let octets = octets();
        assert_eq!(try_octets(&octets).unwrap(), 3);
        // The free header that a new segment has is in the first place, and the batches' seed in the second.
        assert_eq!(with_checksums(&octets).len(), octets.len());
    }

    proptest! {
        #[test]
        fn any_octets_are_opened_or_refused(
            changes in
                prop::collection::vec((prop_oneof![0usize..64, 4096usize..4160, 8192usize..30_000], any::<u8>()), 0..8),
            length in 0usize..40_000,
            whole: bool,
        ) {
            let mut octets = octets();
            // The header in use where the checksums are made right by.
            octets.copy_within(4096..4160, 0);
            octets[16] = 2;
            changes.into_iter().for_each(|(at, octet)| octets[at] = octet);
            if !whole {
                octets.truncate(length);
            }
            _ = try_octets(&octets);
            _ = try_octets(&with_checksums(&octets));
        }
    }
}
