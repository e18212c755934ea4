use anyhow::{Context, Result, ensure};
use mailrun_text::numbers::memory;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Unit of `st_blocks` (stat(2)), whatever the block size of the file system is.
const BLOCK_BYTES: u64 = 512;

/// Disk space of the relay's directory at the start and at the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskUsage {
    /// Bytes on disk when the relay already listened but had not yet received any mail.
    pub(crate) at_start: u64,
    /// Bytes on disk at the end of the run, after the last delivery.
    pub(crate) at_end: u64,
}

/// Returns the disk space that the files below a directory use. Files that disappear in the
/// meantime count as 0.
pub(crate) fn used_bytes(directory: &Path) -> u64 {
    let mut sum = 0;
    let mut open = vec![directory.to_owned()];
    while let Some(place) = open.pop() {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            // `entry.metadata` does not follow symbolic links, so a link cannot lead out of the
            // directory.
            let Ok(metadata) = entry.metadata() else { continue };
            sum += metadata.blocks() * BLOCK_BYTES;
            if metadata.is_dir() {
                open.push(entry.path());
            }
        }
    }
    sum
}

/// Returns the bytes that an unprivileged user may still write below a directory.
pub(crate) fn free_bytes(directory: &Path) -> Result<u64> {
    let room = rustix::fs::statvfs(directory);
    let room = room.with_context(|| format!("cannot find the free space of {}", directory.display()))?;
    Ok(room.f_bavail * room.f_frsize)
}

/// If fewer than `needed_bytes` are free below a directory, returns an error that suggests what to do.
pub(crate) fn ensure_free(directory: &Path, needed_bytes: u64) -> Result<()> {
    let free_bytes = free_bytes(directory)?;
    ensure!(
        needed_bytes <= free_bytes,
        "it needs up to {} of disk in {}, but {} are free: use fewer --messages, a smaller --message-size, or another \
         directory (--out)",
        memory(needed_bytes),
        directory.display(),
        memory(free_bytes)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_below_is_counted_and_links_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let deep = place.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("x"), vec![b'x'; 100_000]).unwrap();
        let one = used_bytes(place.path());
        assert!((100_000..200_000).contains(&one), "{one}");
        std::os::unix::fs::symlink("/", place.path().join("all")).unwrap();
        assert!(used_bytes(place.path()) < 200_000);
        assert_eq!(used_bytes(&place.path().join("nowhere")), 0);
    }

    #[test]
    fn what_does_not_fit_is_said_before_anything_is_written() {
        let place = tempfile::tempdir().unwrap();
        assert!(ensure_free(place.path(), 1).is_ok());
        let error = ensure_free(place.path(), 1 << 60).unwrap_err().to_string();
        assert!(error.starts_with("it needs up to 1,048,576 TiB of disk in"), "{error}");
        assert!(error.contains("are free") && error.contains("--out"), "{error}");
    }
}
