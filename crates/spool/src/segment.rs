//! A segment in use, and single records read from it.
use crate::Error;
use crate::disk::{DiskFile, read_with_retry};
use crate::format::{RECORD_HEADER_BYTES, RecordHeader, SegmentHeader};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A segment's file and the header of its present use.
pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) header: SegmentHeader,
    /// The length of the file.
    pub(crate) bytes: u64,
    /// Seed that the checksums of this use are combined with; the header's, unless the header was lost.
    pub(crate) seed: u32,
    /// Its place in the row of segments in use, which has no gap: the use number, unless the row had a gap when the
    /// spool was opened.
    pub(crate) position: u64,
    /// Something in it was damaged when the spool was opened. It is removed, not used again, when it is given up.
    pub(crate) is_damaged: AtomicBool,
}

/// Place of a record. It is small, since every message that is not done has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordLocation {
    /// The segment's place in the row.
    pub(crate) position: u64,
    offset_words: u32,
    length_words: u32,
}

impl RecordLocation {
    pub(crate) fn new(order: u64, at: u64, bytes: u64) -> Self {
        let eighth = |bytes: u64| u32::try_from(bytes / 8).expect("a segment has less than 32 GiB");
        Self { position: order, offset_words: eighth(at), length_words: eighth(bytes) }
    }

    pub(crate) fn offset(self) -> u64 {
        u64::from(self.offset_words) * 8
    }

    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.length_words) * 8
    }
}

/// A record read without its body.
pub(crate) struct RecordMetadata {
    pub(crate) record: RecordHeader,
    bytes: Vec<u8>,
}

impl RecordMetadata {
    pub(crate) fn envelope(&self) -> &[u8] {
        &self.bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + self.record.envelope_bytes as usize]
    }

    /// The notes of a moved message, joined.
    pub(crate) fn notes(&self) -> &[u8] {
        &self.bytes[RECORD_HEADER_BYTES + self.record.envelope_bytes as usize..]
    }
}

/// Bytes of the first read of a record: enough for most heads.
const METADATA_READ_BYTES: u64 = 1024;

impl Segment {
    /// Creates a segment as its header states it.
    pub(crate) fn new(name: String, file: Arc<dyn DiskFile>, header: SegmentHeader, bytes: u64) -> Self {
        let seed = header.seed();
        let order = header.generation;
        Self { name, file, header, bytes, seed, position: order, is_damaged: AtomicBool::new(false) }
    }

    /// Marks the segment as damaged.
    pub(crate) fn mark_damaged(&self) {
        self.is_damaged.store(true, Ordering::Relaxed);
    }

    pub(crate) fn damage_error(&self, offset: u64) -> Error {
        Error::Damaged { file: self.name.clone(), offset }
    }

    /// Reads the record at that spot up to its body; `None` if there is none.
    pub(crate) fn read_metadata(&self, location: RecordLocation) -> io::Result<Option<RecordMetadata>> {
        let mut bytes = vec![0; location.bytes().min(METADATA_READ_BYTES) as usize];
        let read = read_with_retry(&*self.file, &mut bytes, location.offset())?;
        let Some(record) = RecordHeader::decode(&bytes[..read]).filter(|record| record.bytes() == location.bytes())
        else {
            return Ok(None);
        };
        let length = record.metadata_bytes() as usize;
        let known = read;
        bytes.truncate(known);
        bytes.resize(length, 0);
        if length > known
            && read_with_retry(&*self.file, &mut bytes[known..], location.offset() + known as u64)? < length - known
        {
            return Ok(None);
        }
        Ok(RecordHeader::is_intact(&bytes, self.seed).then_some(RecordMetadata { record, bytes }))
    }

    /// Reads the body of that record as far as possible, with zeros for the rest: for a message that is moved; its old
    /// checksum is kept and reveals the damage.
    pub(crate) fn read_body_lossy(&self, location: RecordLocation, record: &RecordHeader) -> Arc<[u8]> {
        match self.read_body(location, record) {
            Ok(Some(body)) => body,
            _ => std::iter::repeat_n(0, record.body_bytes as usize).collect(),
        }
    }

    /// Reads the body of that record, without a check; `None` if the file ends before.
    pub(crate) fn read_body(&self, location: RecordLocation, record: &RecordHeader) -> io::Result<Option<Arc<[u8]>>> {
        // Collected from an iterator of known length, it is allocated once, at its final place.
        let mut body: Arc<[u8]> = std::iter::repeat_n(0, record.body_bytes as usize).collect();
        let buffer = Arc::get_mut(&mut body).expect("nobody else has it yet");
        let read = read_with_retry(&*self.file, buffer, location.offset() + record.metadata_bytes())?;
        Ok((read == body.len()).then_some(body))
    }
}
