//! Goes through the batches of a segment, and tells where they end and whether they end too early.
use crate::Id;
use crate::disk::DiskFile;
use crate::format::{BATCH_BYTES, BATCHES_AT, BLOCK, Batch, Kind, RECORD_BYTES, Record, checksum};
use std::io;
use std::sync::Arc;

/// A record that has been passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) kind: Kind,
    pub(crate) id: Id,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// Whether bodies are read and checked, or passed over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bodies {
    Checked,
    Skipped,
}

/// What stands at the scan's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Batch,
    /// No whole batch; the offset is where it goes wrong.
    Nothing(u64),
}

/// A way through one use of a segment.
pub(crate) struct Scan {
    window: Window,
    seed: u32,
    segment_bytes: u64,
    bodies: Bodies,
    at: u64,
}

impl Scan {
    pub(crate) fn new(file: Arc<dyn DiskFile>, seed: u32, segment_bytes: u64, bodies: Bodies) -> Self {
        let window = Window { file, from: 0, buffer: Vec::new(), filled: 0, ahead: segment_bytes.min(AHEAD) };
        Self { window, seed, segment_bytes, bodies, at: BATCHES_AT }
    }

    /// Where the next batch begins, or would.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Passes one batch; `seen` is what it holds, if it is whole.
    pub(crate) fn next(&mut self, seen: &mut Vec<Seen>) -> io::Result<Found> {
        seen.clear();
        let Some(batch) = self.batch(self.at)? else { return Ok(Found::Nothing(self.at)) };
        let end = self.at + batch.bytes;
        let mut at = self.at + BATCH_BYTES as u64;
        for _ in 0..batch.records {
            let Some(record) = self.record(at, end)? else { return Ok(Found::Nothing(at)) };
            seen.push(Seen { kind: record.kind, id: record.id, at, bytes: record.bytes() });
            at += record.bytes();
        }
        if at != end {
            return Ok(Found::Nothing(at));
        }
        self.at = end.next_multiple_of(BLOCK);
        Ok(Found::Batch)
    }

    /// How much of a torn batch stands at the scan's offset: 0, if what is there is no batch's beginning.
    pub(crate) fn torn_bytes(&mut self) -> io::Result<u64> {
        Ok(self.batch(self.at)?.map_or(0, |batch| batch.bytes))
    }

    fn batch(&mut self, at: u64) -> io::Result<Option<Batch>> {
        let (seed, segment_bytes) = (self.seed, self.segment_bytes);
        let bytes = self.window.bytes(at, BATCH_BYTES as u64)?;
        Ok(bytes.and_then(|bytes| Batch::read(bytes, seed, at, segment_bytes)))
    }

    /// The whole and unspoiled record at `at`, before `end`.
    fn record(&mut self, at: u64, end: u64) -> io::Result<Option<Record>> {
        let Some(bytes) = self.window.bytes(at, RECORD_BYTES as u64)? else { return Ok(None) };
        let Some(record) = Record::read(bytes).filter(|record| record.bytes() <= end - at.min(end)) else {
            return Ok(None);
        };
        let seed = self.seed;
        let head = self.window.bytes(at, record.head_bytes())?;
        if !head.is_some_and(|head| Record::is_intact(head, seed)) {
            return Ok(None);
        }
        if self.bodies == Bodies::Skipped {
            return Ok(Some(record));
        }
        let body_at = at + record.head_bytes();
        let crc = self.window.checksum(body_at, u64::from(record.body_bytes))?;
        Ok((crc == Some(record.body_crc)).then_some(record))
    }

    /// Whether a later batch of this use says that what stands at the scan's offset had been synced: then it is not the
    /// torn end of the log.
    pub(crate) fn is_vouched_for(&mut self) -> io::Result<bool> {
        let mut at = self.at + BLOCK;
        while at < self.segment_bytes {
            if self.batch(at)?.is_some_and(|batch| batch.synced > self.at) {
                return Ok(true);
            }
            at += BLOCK;
        }
        Ok(false)
    }
}

/// So much of a file is read at once.
const AHEAD: u64 = 1 << 20;

/// A part of a file that is read ahead.
struct Window {
    file: Arc<dyn DiskFile>,
    from: u64,
    buffer: Vec<u8>,
    filled: usize,
    ahead: u64,
}

impl Window {
    /// Those octets; nothing, if the file ends before.
    fn bytes(&mut self, at: u64, length: u64) -> io::Result<Option<&[u8]>> {
        if at < self.from || at + length > self.from + self.filled as u64 {
            self.fill(at, length.max(self.ahead) as usize)?;
        }
        let from = (at - self.from) as usize;
        Ok(self.buffer[..self.filled].get(from..from + length as usize))
    }

    fn fill(&mut self, at: u64, length: usize) -> io::Result<()> {
        if self.buffer.len() < length {
            self.buffer = vec![0; length];
        }
        (self.from, self.filled) = (at, 0);
        self.filled = self.file.read_at(&mut self.buffer[..length], at)?;
        Ok(())
    }

    /// Their checksum.
    fn checksum(&mut self, mut at: u64, length: u64) -> io::Result<Option<u32>> {
        if length <= AHEAD {
            return Ok(self.bytes(at, length)?.map(checksum));
        }
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        let end = at + length;
        while at < end {
            let part = (end - at).min(AHEAD);
            let Some(bytes) = self.bytes(at, part)? else { return Ok(None) };
            digest.update(bytes);
            at += part;
        }
        Ok(Some(digest.finalize() as u32))
    }
}
