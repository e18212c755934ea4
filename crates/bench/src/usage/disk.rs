//! Counts the bytes that the disk under a directory has written, as the kernel reports them for its block device
//! (`/sys/dev/block/MAJOR:MINOR/stat`).
//!
//! The `write_bytes` of a relay's processes can differ a lot from the bytes that the disk wrote. A file system with
//! large folios charges a whole folio for each piece that is written, and the commits of a journal are charged to no
//! process. The device's counter includes everything that was written to the disk, but also the writes of all other
//! processes on the host.
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Size of a sector in the kernel's counters, whatever the device's real sector size is.
const SECTOR_BYTES: u64 = 512;
/// Index of the field "sectors written" in the `stat` file (Documentation/block/stat.rst).
const SECTORS_WRITTEN: usize = 6;

/// Counts the bytes that a disk has written since the counter was created.
#[derive(Clone, Debug)]
pub(crate) struct DiskCounter {
    counters: PathBuf,
    sectors: u64,
}

impl DiskCounter {
    /// Starts to count the bytes that are written to the disk under a directory. Returns `None` if the directory is on
    /// tmpfs, on a network file system or on anything else that is not a single block device.
    pub(crate) fn under(directory: &Path) -> Option<Self> {
        let device = directory.metadata().ok()?.dev();
        let major = rustix::fs::major(device);
        let minor = rustix::fs::minor(device);
        let counters = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
        let sectors = sectors_written(&counters)?;
        Some(Self { counters, sectors })
    }

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
        // Skip the test on a file system without a block device, such as tmpfs.
        let Some(disk) = DiskCounter::under(place.path()) else { return };
        let mut file = File::create(place.path().join("x")).unwrap();
        // Do not write zeros, because a disk may only note that a range is zero and write nothing.
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
