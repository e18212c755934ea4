//! Classification of the files in a spool's directory by their headers: in use, free, or with a lost header.
//!
//! A header is written to two places alternately. A place that is neither legible nor zeros is damaged, and so is one
//! with zeros where something must have been written. For a use whose header was lost, the first batch gives the seed.
use crate::disk::{DiskFile, read_twice};
use crate::format::{BATCH_BYTES, BATCHES_AT, BLOCK, Batch, HEADER_BYTES, Header, Kind, Place, State};
use crate::scan::{Bodies, Found, Scan, read_what_can_be};
use crate::{Error, Id};
use std::io;
use std::sync::Arc;

/// No segment is longer: the largest record has 4 GiB and the length of two notes.
const MOST_SEGMENT_BYTES: u64 = 8 << 30;

/// A file of the spool that has been examined.
pub(crate) struct Look {
    pub(crate) name: String,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) bytes: u64,
    pub(crate) role: Role,
    /// Offsets of the places of its header that are damaged.
    pub(crate) bad_places: Vec<u64>,
}

/// Roles of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Used(Header),
    /// A use whose header is damaged: its number, if the damaged header still has it, and its seed.
    Headless {
        use_number: Option<u64>,
        seed: u32,
        first_id: Option<Id>,
    },
    Free(Header),
    /// A file that was being made when the power failed.
    Unfinished,
    /// Something other than a segment, or a segment of which neither header nor first batch is legible.
    Illegible,
}

/// Content of the two places of a header.
struct Places {
    /// The newest header; one flipped bit in it has been corrected.
    newest: Option<Header>,
    bad: Vec<u64>,
    /// Use and seed, as far as damaged places still have them.
    hints: Vec<(u64, u32)>,
}

/// Examines a file.
pub(crate) fn look_at(name: &str, file: Arc<dyn DiskFile>) -> Result<Look, Error> {
    let bytes = file.bytes()?.min(MOST_SEGMENT_BYTES);
    let places = read_places(name, &*file)?;
    let first = first_batch(&file, bytes)?;
    let role = match role_of(&places, first, is_blank(&*file)?) {
        Role::Free(header) if has_later_batch(&places, header.next_id, &file, bytes)? => Role::Illegible,
        Role::Unfinished if has_later_batch(&places, 0, &file, bytes)? => Role::Illegible,
        role => role,
    };
    Ok(Look { name: name.to_owned(), file, bytes, role, bad_places: places.bad })
}

fn read_places(name: &str, file: &dyn DiskFile) -> Result<Places, Error> {
    let mut places = Places { newest: None, bad: Vec::new(), hints: Vec::new() };
    let mut blank = Vec::new();
    let mut failures = Vec::new();
    for at in [0, BLOCK] {
        let mut bytes = [0; HEADER_BYTES];
        if let Err(error) = read_twice(file, &mut bytes, at) {
            failures.push(error);
            places.bad.push(at);
            continue;
        }
        let legible = match Place::read(&bytes) {
            Place::Header(header) => Some(header),
            Place::Blank => {
                blank.push(at);
                continue;
            }
            place => {
                let corrected = Header::corrected(&bytes);
                if let (Place::Newer(version), None) = (place, corrected) {
                    return Err(Error::Newer { file: name.to_owned(), version });
                }
                places.bad.push(at);
                places.hints.extend(Header::illegible_use(&bytes));
                corrected
            }
        };
        let Some(header) = legible.filter(|header| header.at() == at) else {
            if !places.bad.contains(&at) {
                places.bad.push(at);
            }
            continue;
        };
        places.newest = places.newest.filter(|other| other.turn > header.turn).or(Some(header));
    }
    if failures.len() == 2 {
        // This is no bad place but a bad disk: its content may be sound.
        return Err(Error::from(failures.swap_remove(0)));
    }
    // The first header goes to the first place, and each of the others has been written before.
    let must_be_there = |at: u64| places.newest.is_some_and(|newest| at == 0 || newest.turn >= 2);
    places.bad.extend(blank.into_iter().filter(|at| must_be_there(*at)).collect::<Vec<_>>());
    Ok(places)
}

/// The first batch of a segment, whatever its seed.
#[derive(Clone, Copy)]
struct FirstBatch {
    seed: u32,
    first_id: Option<Id>,
    last_id: Option<Id>,
    has_moved: bool,
}

/// Reports whether a file with a damaged header, and without a first batch, has batches of a use that the header does
/// not mention. A message could have caused that too, so an administrator has to examine that file.
fn has_later_batch(places: &Places, next_id: u64, file: &Arc<dyn DiskFile>, segment_bytes: u64) -> io::Result<bool> {
    if places.bad.is_empty() {
        return Ok(false);
    }
    let mut block = vec![0; BLOCK as usize];
    for at in (BATCHES_AT..segment_bytes).step_by(BLOCK as usize) {
        let read = read_what_can_be(&**file, &mut block, at)?;
        let Some(seed) = Batch::seed_of(&block[..read]) else { continue };
        if Batch::read(&block[..read], seed, at, segment_bytes).is_none() {
            continue;
        }
        let mut seen = Vec::new();
        Scan::starting(Arc::clone(file), seed, segment_bytes, at).next(&mut seen)?;
        if seen.iter().any(|one| one.kind == Kind::Stored && one.id.0 >= next_id) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads the first batch of a segment by the seed that its own checksum gives. It counts only if the checksum of a record
/// agrees.
fn first_batch(file: &Arc<dyn DiskFile>, segment_bytes: u64) -> io::Result<Option<FirstBatch>> {
    let mut bytes = [0; BATCH_BYTES];
    if read_what_can_be(&**file, &mut bytes, BATCHES_AT)? < BATCH_BYTES {
        return Ok(None);
    }
    let Some(seed) = Batch::seed_of(&bytes) else { return Ok(None) };
    if Batch::read(&bytes, seed, BATCHES_AT, segment_bytes).is_none() {
        return Ok(None);
    }
    let mut scan = Scan::new(Arc::clone(file), seed, segment_bytes, Bodies::Skipped);
    let mut seen = Vec::new();
    // Several batches are read: the first may hold only notes.
    let mut first = None;
    for _ in 0..MOST_PROBED {
        let found = scan.next(&mut seen)?;
        for one in &seen {
            let batch = first.get_or_insert(FirstBatch { seed, first_id: None, last_id: None, has_moved: false });
            batch.has_moved |= one.kind == Kind::Moved;
            if one.kind == Kind::Stored {
                batch.first_id = batch.first_id.or(Some(one.id));
                batch.last_id = Some(one.id);
            }
        }
        if found != Found::Batch || first.is_some_and(|batch: FirstBatch| batch.first_id.is_some()) {
            break;
        }
    }
    Ok(first)
}

/// Number of batches that are searched for a message's number.
const MOST_PROBED: u32 = 4096;

fn role_of(places: &Places, first: Option<FirstBatch>, is_blank: bool) -> Role {
    let headless = |first: FirstBatch| {
        let hint = places.hints.iter().find(|(_, seed)| *seed == first.seed);
        Role::Headless { use_number: hint.map(|(number, _)| *number), seed: first.seed, first_id: first.first_id }
    };
    match (places.newest, first) {
        (Some(header), _) if header.state == State::Used => Role::Used(header),
        (Some(header), Some(first)) if first.seed != header.seed() && is_later(places, &header, first) => {
            headless(first)
        }
        (Some(header), _) => Role::Free(header),
        (None, Some(first)) => headless(first),
        (None, None) if is_blank => Role::Unfinished,
        (None, None) => Role::Illegible,
    }
}

/// Reports whether that first batch belongs to a use after the free header, and not to one long before: a use whose
/// header never reached the disk, or was lost.
fn is_later(places: &Places, free: &Header, first: FirstBatch) -> bool {
    let is_new = first.last_id.is_some_and(|id| id.0 >= free.next_id);
    let is_hinted = places.hints.iter().any(|(_, seed)| *seed == first.seed);
    is_new || is_hinted || (!places.bad.is_empty() && first.first_id.is_none() && first.has_moved)
}

/// Reports whether nothing was ever written where batches begin. A file's first header is synced before any batch is
/// written, so a file without a header and with a batch is damaged; one without either was just being made.
fn is_blank(file: &dyn DiskFile) -> io::Result<bool> {
    let mut block = [0; BLOCK as usize];
    let read = read_what_can_be(file, &mut block, BATCHES_AT)?;
    Ok(block[..read].iter().all(|byte| *byte == 0))
}
