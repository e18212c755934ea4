//! Bytes that the disk under a directory has written, as the device itself counts
//! (`/sys/dev/block/MAJOR:MINOR/stat`).
//!
//! A relay's `write_bytes` is what the kernel charged its processes with, and that can be far from what was written: a
//! file system with large folios charges a whole folio for each piece of it that is written, and a journal's commits are
//! charged to no process. The device counts all that reached it, but for every process on the host.
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The device's own unit, whatever its sectors are.
const SECTOR_BYTES: u64 = 512;
/// Index of the field "sectors written" in the line (Documentation/block/stat.rst).
const SECTORS_WRITTEN: usize = 6;

/// A disk as it stood when it was looked at.
#[derive(Clone, Debug)]
pub(crate) struct DiskCounter {
    counters: PathBuf,
    sectors: u64,
}

impl DiskCounter {
    /// The one under that directory; `None` where there is no single device, as in memory or on a network.
    pub(crate) fn under(directory: &Path) -> Option<Self> {
        let device = directory.metadata().ok()?.dev();
        let major = rustix::fs::major(device);
        let minor = rustix::fs::minor(device);
        let counters = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
        let sectors = sectors_written(&counters)?;
        Some(Self { counters, sectors })
    }

    /// Bytes that it wrote since.
    pub(crate) fn written_since(&self) -> Option<u64> {
        Some(sectors_written(&self.counters)?.checked_sub(self.sectors)? * SECTOR_BYTES)
    }
}

fn sectors_written(counters: &Path) -> Option<u64> {
    fs::read_to_string(counters).ok()?.split_ascii_whitespace().nth(SECTORS_WRITTEN)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    #[test]
    fn what_is_synced_is_seen() {
        let place = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        // Some file systems have no device of their own.
        let Some(disk) = DiskCounter::under(place.path()) else { return };
        let mut file = File::create(place.path().join("x")).unwrap();
        // Not zeroes: those a disk may merely note.
        let block: Vec<u8> =
            (0..1_u32 << 20).map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        file.write_all(&block).and_then(|()| file.sync_all()).unwrap();
        assert!(disk.written_since().is_some_and(|bytes| bytes >= 1 << 20), "{disk:?}");
    }

    #[test]
    fn memory_is_no_disk() {
        assert!(DiskCounter::under(Path::new("/proc")).is_none());
    }
}
