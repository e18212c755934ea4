//! Measures how long a disk takes to write and sync a batch. It writes batches like the commit
//! thread, into a segment that is made like a spool's segments.
use crate::Id;
use crate::batch_builder::{BatchBuilder, RecordParts};
use crate::disk::{Disk, DiskFile, RealDisk};
use crate::format::{BATCHES_OFFSET, RecordHeader, RecordKind, checksum};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Envelope of the measured messages. It is about as long as a relay's envelope with one recipient.
const ENVELOPE: [u8; 120] = [b'e'; 120];
/// Seed of the checksums. It need not be random, because nobody reads the measured batches.
const SEED: u32 = 0x6d72_7031;

/// Measures how fast a disk stores batches. They go to a file of their own, which is removed when the probe is dropped.
pub struct DiskProbe {
    disk: RealDisk,
    name: String,
    file: Arc<dyn DiskFile>,
    segment_bytes: u64,
    end: u64,
    synced: u64,
    batch: BatchBuilder,
    next_id: u64,
}

/// Size of a batch, and the time that [`DiskProbe::commit`] took to write and sync it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeCommit {
    /// Number of bytes written, including the padding to whole blocks.
    pub bytes: u64,
    /// Time from the beginning of the write to the end of the sync.
    pub elapsed: Duration,
}

impl DiskProbe {
    /// Makes the segment in an existing directory and fills it with zeros, as the spool does.
    ///
    /// # Errors
    ///
    /// Fails if the directory does not exist, is not writable, or has no room. In that case, no
    /// file is left in the directory.
    pub fn create(directory: &Path, name: &str, segment_bytes: u64) -> io::Result<Self> {
        if !directory.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let disk = RealDisk::new(directory)?;
        let file = disk.create(name)?;
        // Build the `DiskProbe` before the steps that may fail, because its destructor removes the file.
        let probe = Self {
            disk,
            name: name.to_owned(),
            file,
            segment_bytes,
            end: BATCHES_OFFSET,
            synced: 0,
            batch: BatchBuilder::default(),
            next_id: 1,
        };
        probe.file.preallocate(segment_bytes, &|_| ())?;
        probe.disk.sync_directory()?;
        Ok(probe)
    }

    /// Returns the free space for new files in a directory, in bytes.
    ///
    /// # Errors
    ///
    /// Fails if the directory does not exist.
    pub fn available_bytes(directory: &Path) -> io::Result<u64> {
        let system = rustix::fs::statvfs(directory)?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }

    /// Returns the path of the file to which [`Self::commit`] writes. The file is removed when the probe is dropped.
    pub fn path(&self) -> PathBuf {
        self.disk.directory().join(&self.name)
    }

    /// Writes a batch of this many messages with the same body, and syncs it. If the batch does not
    /// fit before the end of the segment, it is written at the beginning.
    ///
    /// # Errors
    ///
    /// Fails if the disk fails, or if the batch is larger than the segment.
    pub fn commit(&mut self, messages: u32, body: &Arc<[u8]>) -> io::Result<ProbeCommit> {
        let body_crc = checksum(body);
        for _ in 0..messages {
            let record = RecordHeader {
                envelope_bytes: ENVELOPE.len() as u32,
                body_bytes: body.len() as u32,
                body_crc,
                ..RecordHeader::bare(RecordKind::Stored, Id(self.next_id))
            };
            self.next_id += 1;
            self.batch.push(&RecordParts { record, envelope: &ENVELOPE, notes: &[], body: Some(body) }, SEED);
        }
        let mut pieces = self.batch.finish(SEED, self.synced);
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if BATCHES_OFFSET + bytes > self.segment_bytes {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if self.end + bytes > self.segment_bytes {
            self.end = BATCHES_OFFSET;
        }
        let start = Instant::now();
        self.file.write_at(&mut pieces, self.end)?;
        self.file.sync_data()?;
        let elapsed = start.elapsed();
        self.batch.clear();
        self.end += bytes;
        self.synced = self.end;
        Ok(ProbeCommit { bytes, elapsed })
    }
}

impl Drop for DiskProbe {
    fn drop(&mut self) {
        // Ignore an error, which means that the directory is gone or no longer writable. Another
        // attempt would fail as well.
        _ = self.disk.remove(&self.name);
    }
}

impl std::fmt::Debug for DiskProbe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskProbe").field("path", &self.path()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_whole_blocks_and_begin_anew_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let mut probe = DiskProbe::create(directory.path(), "probe", 64 << 10).unwrap();
        assert_eq!(probe.path().metadata().unwrap().len(), 64 << 10);
        let body: Arc<[u8]> = vec![b'x'; 1024].into();
        let mut highest = 0;
        for _ in 0..40 {
            assert_eq!(probe.commit(1, &body).unwrap().bytes, 4096);
            highest = highest.max(probe.end);
        }
        assert_eq!(highest, 64 << 10, "the file is used to its end, and not beyond");
        assert_eq!(probe.path().metadata().unwrap().len(), 64 << 10);
        assert_eq!(probe.commit(8, &body).unwrap().bytes, (32_u64 + 8 * (40 + 120 + 1024)).next_multiple_of(4096));
        let large: Arc<[u8]> = vec![b'x'; 64 << 10].into();
        let error = probe.commit(1, &large).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        drop(probe);
        assert_eq!(directory.path().read_dir().unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn a_directory_that_is_none_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing");
        assert_eq!(DiskProbe::create(&missing, "probe", 1 << 16).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!missing.exists());
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(DiskProbe::create(&file, "probe", 1 << 16).unwrap_err().kind(), io::ErrorKind::NotADirectory);
    }
}
