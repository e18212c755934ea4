//! Content of the `cacert` files of routes. A separate thread rereads changed files, because a
//! worker would be blocked for as long as the file system takes.
use crate::config;
use crate::fault_log::LOG_TARGET;
use crate::routing::{CaFile, Router};
use mailrun_lock::lock;
use mailrun_net::FileStamp;
use mailrun_process::reason::reason;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Debug, Default)]
pub(crate) struct CaFiles(Mutex<HashMap<PathBuf, CaContent>>);

#[derive(Debug)]
struct CaContent {
    /// Identity and times of the file when `check` last read it. `None` before the first `check`.
    stamp: Option<FileStamp>,
    pem: Arc<[u8]>,
}

impl CaContent {
    fn of(file: &CaFile) -> Self {
        Self { stamp: None, pem: file.pem.as_slice().into() }
    }
}

impl CaFiles {
    /// Takes over the contents that were read with a configuration, and forgets the files of the
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
        let stamps: Vec<_> = self.lock().iter().map(|(path, content)| (path.clone(), content.stamp)).collect();
        for (path, stamp) in stamps {
            let current = FileStamp::of(&path);
            if stamp == Some(current) {
                continue;
            }
            let new_pem = mailrun_net::check_regular(&path).and_then(|()| config::read(&path));
            if let Err(error) = &new_pem {
                tracing::warn!(target: LOG_TARGET, "cannot read {}: {}; the certificates read before stay in use", path.display(), reason(error));
            }
            if let Some(content) = self.lock().get_mut(&path) {
                content.stamp = Some(current);
                if let Some(pem) = new_pem.ok().filter(|pem| **pem != *content.pem) {
                    content.pem = pem.into();
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, CaContent>> {
        lock(&self.0)
    }
}
