//! A segment in use, and single records read from it.
use crate::Error;
use crate::disk::{DiskFile, read_twice};
use crate::format::{Header, RECORD_BYTES, Record};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A segment's file and the header of its present use.
pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) header: Header,
    /// The length of the file.
    pub(crate) bytes: u64,
    /// Seed that the checksums of this use are combined with; the header's, unless the header was lost.
    pub(crate) seed: u32,
    /// Its place in the row of segments in use, which has no gap: the use number, unless the row had a gap when the
    /// spool was opened.
    pub(crate) order: u64,
    /// Something in it was damaged when the spool was opened. It is removed, not used again, when it is given up.
    pub(crate) is_damaged: AtomicBool,
}

/// Place of a record. It is small, since every message that is not done has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot {
    /// The segment's place in the row.
    pub(crate) order: u64,
    eighths: u32,
    length_eighths: u32,
}

impl Spot {
    pub(crate) fn new(order: u64, at: u64, bytes: u64) -> Self {
        let eighth = |bytes: u64| u32::try_from(bytes / 8).expect("a segment has less than 32 GiB");
        Self { order, eighths: eighth(at), length_eighths: eighth(bytes) }
    }

    pub(crate) fn at(self) -> u64 {
        u64::from(self.eighths) * 8
    }

    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.length_eighths) * 8
    }
}

/// A record read without its body.
pub(crate) struct Head {
    pub(crate) record: Record,
    bytes: Vec<u8>,
}

impl Head {
    pub(crate) fn envelope(&self) -> &[u8] {
        &self.bytes[RECORD_BYTES..RECORD_BYTES + self.record.envelope_bytes as usize]
    }

    /// The notes of a moved message, joined.
    pub(crate) fn notes(&self) -> &[u8] {
        &self.bytes[RECORD_BYTES + self.record.envelope_bytes as usize..]
    }
}

/// Bytes of the first read of a record: enough for most heads.
const GLANCE: u64 = 1024;

impl Segment {
    /// Creates a segment as its header states it.
    pub(crate) fn new(name: String, file: Arc<dyn DiskFile>, header: Header, bytes: u64) -> Self {
        let seed = header.seed();
        let order = header.use_number;
        Self { name, file, header, bytes, seed, order, is_damaged: AtomicBool::new(false) }
    }

    /// Marks the segment as damaged.
    pub(crate) fn mark_damaged(&self) {
        self.is_damaged.store(true, Ordering::Relaxed);
    }

    pub(crate) fn damaged(&self, offset: u64) -> Error {
        Error::Damaged { file: self.name.clone(), offset }
    }

    /// Reads the record at that spot up to its body; `None` if there is none.
    pub(crate) fn head(&self, spot: Spot) -> io::Result<Option<Head>> {
        let mut bytes = vec![0; spot.bytes().min(GLANCE) as usize];
        let read = read_twice(&*self.file, &mut bytes, spot.at())?;
        let Some(record) = Record::read(&bytes[..read]).filter(|record| record.bytes() == spot.bytes()) else {
            return Ok(None);
        };
        let length = record.head_bytes() as usize;
        let known = read;
        bytes.truncate(known);
        bytes.resize(length, 0);
        if length > known && read_twice(&*self.file, &mut bytes[known..], spot.at() + known as u64)? < length - known {
            return Ok(None);
        }
        Ok(Record::is_intact(&bytes, self.seed).then_some(Head { record, bytes }))
    }

    /// Reads the body of that record as far as possible, with zeros for the rest: for a message that is moved; its old
    /// checksum is kept and reveals the damage.
    pub(crate) fn readable_body(&self, spot: Spot, record: &Record) -> Arc<[u8]> {
        match self.body(spot, record) {
            Ok(Some(body)) => body,
            _ => std::iter::repeat_n(0, record.body_bytes as usize).collect(),
        }
    }

    /// Reads the body of that record, without a check; `None` if the file ends before.
    pub(crate) fn body(&self, spot: Spot, record: &Record) -> io::Result<Option<Arc<[u8]>>> {
        // Collected from an iterator of known length, it is allocated once, at its final place.
        let mut body: Arc<[u8]> = std::iter::repeat_n(0, record.body_bytes as usize).collect();
        let buffer = Arc::get_mut(&mut body).expect("nobody else has it yet");
        let read = read_twice(&*self.file, buffer, spot.at() + record.head_bytes())?;
        Ok((read == body.len()).then_some(body))
    }
}
