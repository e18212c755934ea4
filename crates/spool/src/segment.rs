//! Reads single records of a segment in use.
use crate::Error;
use crate::disk::{DiskFile, read_with_retry};
use crate::format::{RECORD_HEADER_BYTES, RecordHeader, SegmentHeader};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) header: SegmentHeader,
    /// Length of the file when it was created.
    pub(crate) bytes: u64,
    /// Present length of the file. It is less than `bytes` if somebody shortened the file, which is
    /// damage.
    pub(crate) file_bytes: u64,
    /// Seed of all checksums in this segment. It comes from the header, or from the first batch if
    /// the header was lost.
    pub(crate) seed: u32,
    /// Number of the segment in the order of the log. These numbers have no gaps, so the number differs from the
    /// generation in the header if a segment was missing when the spool was opened.
    pub(crate) position: u64,
    /// Set if part of the segment was damaged when the spool was opened. Such a segment is later
    /// removed instead of reused.
    pub(crate) is_damaged: AtomicBool,
}

/// Segment, offset and length of a record. The type is small because the index keeps one for each unfinished message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordLocation {
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

pub(crate) struct RecordMetadata {
    pub(crate) record: RecordHeader,
    bytes: Vec<u8>,
}

impl RecordMetadata {
    pub(crate) fn envelope(&self) -> &[u8] {
        &self.bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + self.record.envelope_bytes as usize]
    }

    /// Returns the notes that the record of a moved message contains, one after the other. Other records contain none.
    pub(crate) fn notes(&self) -> &[u8] {
        &self.bytes[RECORD_HEADER_BYTES + self.record.envelope_bytes as usize..]
    }
}

/// Number of bytes that the first read of a record fetches. For most records, they include the envelope and notes, so
/// no second read is needed.
const METADATA_READ_BYTES: u64 = 1024;

impl Segment {
    pub(crate) fn new(name: String, file: Arc<dyn DiskFile>, header: SegmentHeader, bytes: u64) -> Self {
        let seed = header.seed();
        let order = header.generation;
        let is_damaged = AtomicBool::new(false);
        Self { name, file, header, bytes, file_bytes: bytes, seed, position: order, is_damaged }
    }

    pub(crate) fn mark_damaged(&self) {
        self.is_damaged.store(true, Ordering::Relaxed);
    }

    /// Returns true if the segment's header was lost, so that `seed` was computed from the first batch instead.
    pub(crate) fn has_lost_header(&self) -> bool {
        self.seed != self.header.seed()
    }

    pub(crate) fn damage_error(&self, offset: u64) -> Error {
        Error::Damaged { file: self.name.clone(), offset }
    }

    /// Reads the record at `location`, without its body. Returns `None` if there is no intact record with the length
    /// that `location` states.
    pub(crate) fn read_metadata(&self, location: RecordLocation) -> io::Result<Option<RecordMetadata>> {
        let mut bytes = vec![0; location.bytes().min(METADATA_READ_BYTES) as usize];
        let count = read_with_retry(&*self.file, &mut bytes, location.offset())?;
        let Some(record) = RecordHeader::decode(&bytes[..count]).filter(|record| record.bytes() == location.bytes())
        else {
            return Ok(None);
        };
        let length = record.metadata_bytes() as usize;
        let known = count;
        bytes.truncate(known);
        bytes.resize(length, 0);
        if length > known
            && read_with_retry(&*self.file, &mut bytes[known..], location.offset() + known as u64)? < length - known
        {
            return Ok(None);
        }
        Ok(RecordHeader::is_intact(&bytes, self.seed).then_some(RecordMetadata { record, bytes }))
    }

    /// Reads the body of a message that is being moved or inspected. An unreadable body is replaced
    /// by zeros. The record keeps the old checksum, which reveals that the body is damaged.
    pub(crate) fn read_body_lossy(&self, location: RecordLocation, record: &RecordHeader) -> Arc<[u8]> {
        match self.read_body(location, record) {
            Ok(Some(body)) => body,
            _ => std::iter::repeat_n(0, record.body_bytes as usize).collect(),
        }
    }

    /// Reads the record's body without checking it. Returns `None` if the file ends earlier.
    pub(crate) fn read_body(&self, location: RecordLocation, record: &RecordHeader) -> io::Result<Option<Arc<[u8]>>> {
        // The iterator's length is known, so `collect` allocates the body only once, directly in the `Arc`.
        let mut body: Arc<[u8]> = std::iter::repeat_n(0, record.body_bytes as usize).collect();
        let buffer = Arc::get_mut(&mut body).expect("nobody else has it yet");
        let read_bytes = read_with_retry(&*self.file, buffer, location.offset() + record.metadata_bytes())?;
        Ok((read_bytes == body.len()).then_some(body))
    }
}
