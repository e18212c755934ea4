//! Content of the `cacert` files of routes. A separate thread rereads changed files, because a slow file system would
//! block a worker and all its sessions.
use crate::config;
use crate::fault_log::LOG_TARGET;
use crate::routing::{CaFile, Router};
use mailrun_lock::lock;
use mailrun_net::FileStamp;
use mailrun_process::reason::reason;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Debug, Default)]
pub(crate) struct CaFiles(Mutex<HashMap<PathBuf, CaContent>>);

#[derive(Debug)]
struct CaContent {
    /// Identity and times of the file when `check` last read it successfully. `None` if `check` has not done so yet.
    stamp: Option<FileStamp>,
    /// Identity and times of the file when it was last reported as unreadable. As long as these stay the same, the file
    /// is not reported again.
    reported: Option<FileStamp>,
    pem: Arc<[u8]>,
}

impl CaContent {
    fn of(file: &CaFile) -> Self {
        Self { stamp: None, reported: None, pem: file.pem.as_slice().into() }
    }
}

impl CaFiles {
    /// Stores the CA files that were read with a new configuration, and forgets the files of the
    /// previous configuration.
    pub(crate) fn replace(&self, router: &Router) {
        let files = router.securities().filter_map(|security| security.ca_file.as_ref());
        *self.lock() = files.map(|file| (file.path.clone(), CaContent::of(file))).collect();
    }

    /// Returns the content of a CA file. This is the same `Arc` until the content changes, so
    /// callers can compare pointers to notice a change.
    pub(crate) fn content(&self, file: &CaFile) -> Arc<[u8]> {
        let mut contents = self.lock();
        let content = contents.entry(file.path.clone()).or_insert_with(|| CaContent::of(file));
        Arc::clone(&content.pem)
    }

    /// Rereads the files that have changed. Blocks for as long as the file system takes.
    pub(crate) fn check(&self) {
        for (path, error) in self.reread(|path| mailrun_net::check_regular(path).and_then(|()| config::read(path))) {
            tracing::warn!(target: LOG_TARGET, "cannot read {}: {}; the certificates read before stay in use", path.display(), reason(&error));
        }
    }

    /// Rereads the files that have changed, and returns the errors that were not returned before.
    fn reread(&self, read: impl Fn(&Path) -> io::Result<Vec<u8>>) -> Vec<(PathBuf, io::Error)> {
        let mut errors = Vec::new();
        let stamps: Vec<_> = self.lock().iter().map(|(path, content)| (path.clone(), content.stamp)).collect();
        for (path, stamp) in stamps {
            let current = FileStamp::of(&path);
            if stamp == Some(current) {
                continue;
            }
            let new_pem = read(&path);
            let mut contents = self.lock();
            let Some(content) = contents.get_mut(&path) else { continue };
            match new_pem {
                Ok(pem) => {
                    (content.stamp, content.reported) = (Some(current), None);
                    if *pem != *content.pem {
                        content.pem = pem.into();
                    }
                }
                // The error may be temporary, such as a lack of descriptors. Keep the file's old stamp, so that the
                // next check reads the file again.
                Err(error) => {
                    if content.reported.replace(current) != Some(current) {
                        errors.push((path, error));
                    }
                }
            }
        }
        errors
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, CaContent>> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_at_present_is_reported_once_and_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.pem");
        std::fs::write(&path, "new").unwrap();
        let file = CaFile { path, pem: b"old".to_vec() };
        let files = CaFiles::default();
        assert_eq!(*files.content(&file), *b"old");
        let too_many = |_: &Path| Err(io::Error::from(rustix::io::Errno::MFILE));
        assert_eq!([0; 2].map(|_| files.reread(too_many).len()), [1, 0]);
        assert_eq!(*files.content(&file), *b"old");
        assert!(files.reread(|path| std::fs::read(path)).is_empty());
        assert_eq!(*files.content(&file), *b"new");
        // The file has not changed, so `reread` must not call `too_many`, which always returns an error.
        assert!(files.reread(too_many).is_empty());
    }
}
