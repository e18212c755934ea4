//! A server's certificate in files, which are read again when they change.
use crate::tls_setup::{Certificate, ClientTls, ServerTls, SessionResumption, TlsSetupError, Trust, roots_from};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Interval at which a server checks whether its certificate or key files have changed. A changed file is read only
/// after it has been unchanged for this long, because certificate and key cannot be replaced in a single step.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Files for a server's side of TLS, all in PEM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM file with the certificate and the certificates of its issuers.
    pub certificate: PathBuf,
    /// File with the private key of the certificate.
    pub key: PathBuf,
    /// File with the authorities that sign client certificates, or `None` if clients need no certificate.
    pub client_roots: Option<PathBuf>,
    /// Tells whether clients may resume earlier sessions.
    pub resumption: SessionResumption,
}

/// Error for files from which no TLS settings can be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsFilesError {
    /// The file cannot be read, for example because it does not exist or is not a regular file.
    #[error("cannot read {}: {why}", path.display())]
    Unreadable {
        /// Path of the file that cannot be read.
        path: PathBuf,
        /// Says why the file cannot be read, for example that permission is denied.
        why: io::Error,
    },
    /// The file can be read, but does not contain a usable certificate or key.
    #[error("{}: {why}", path.display())]
    Invalid {
        /// Path of the file whose content is wrong.
        path: PathBuf,
        /// Says what is wrong with the content, for example that there is no key.
        why: TlsSetupError,
    },
    /// The certificate and the key cannot be used together, for example because the key belongs to another certificate.
    #[error("{} and {} cannot be used: {why}", certificate.display(), key.display())]
    Unusable {
        /// File with the certificate chain that does not go with the key.
        certificate: PathBuf,
        /// File with the private key that cannot be used with the certificate.
        key: PathBuf,
        /// Says why the certificate and the key cannot be used together.
        why: TlsSetupError,
    },
}

impl TlsFiles {
    /// Reads the files, and makes the TLS settings of a server from them.
    ///
    /// # Errors
    /// Returns a [`TlsFilesError`] if a file cannot be read or used.
    pub fn load(&self) -> Result<ServerTls, TlsFilesError> {
        let certificate = Certificate::read(&self.certificate, &self.key)?;
        let roots = self.client_roots.as_deref().map(read_roots).transpose()?;
        let unusable =
            |why| TlsFilesError::Unusable { certificate: self.certificate.clone(), key: self.key.clone(), why };
        ServerTls::new(certificate, roots.as_deref(), self.resumption).map_err(unusable)
    }

    fn stamps(&self) -> [FileStamp; 3] {
        let roots = self.client_roots.as_deref().map_or(FileStamp::default(), FileStamp::of);
        [FileStamp::of(&self.certificate), FileStamp::of(&self.key), roots]
    }
}

impl Certificate {
    /// Reads the PEM files of a certificate chain and its key.
    ///
    /// # Errors
    /// Returns a [`TlsFilesError`] that names the faulty file.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, TlsFilesError> {
        Self::from_pem(&read(chain)?, &read(key)?).map_err(|why| {
            let path = if matches!(why, TlsSetupError::NoKey) { key } else { chain };
            TlsFilesError::Invalid { path: path.to_owned(), why }
        })
    }
}

impl Trust {
    /// Reads a PEM file of trusted certificates for [`Trust::Roots`].
    ///
    /// # Errors
    /// Returns a [`TlsFilesError`] if the file cannot be read, or contains no usable certificate.
    pub fn read(path: &Path) -> Result<Self, TlsFilesError> {
        let trust = Self::Roots(read(path)?);
        ClientTls::new("localhost", &trust, None, SessionResumption::Off)
            .map_err(|why| TlsFilesError::Invalid { path: path.to_owned(), why })?;
        Ok(trust)
    }
}

/// Reads the PEM file of the authorities that sign client certificates, and checks that rustls accepts them.
///
/// # Errors
/// Returns a [`TlsFilesError`] if the file cannot be read, or if rustls rejects a certificate in it.
pub fn read_roots(path: &Path) -> Result<Vec<u8>, TlsFilesError> {
    let pem = read(path)?;
    roots_from(&pem).map_err(|why| TlsFilesError::Invalid { path: path.to_owned(), why })?;
    Ok(pem)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsFilesError> {
    std::fs::read(path).map_err(|why| TlsFilesError::Unreadable { path: path.to_owned(), why })
}

/// Checks that a path is a regular file. A FIFO or a device is refused, because a thread might read it forever.
///
/// # Errors
/// Fails if the path cannot be examined, or is not a regular file.
pub fn check_regular(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path)?.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Identity, size and times of a file. If the file changes, at least one of them changes. A change is thus noticed
/// without reading the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStamp(Option<[i128; 5]>);

impl FileStamp {
    /// Returns the file's current identity, size and times. Follows symbolic links.
    pub fn of(path: &Path) -> Self {
        let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Self(std::fs::metadata(path).ok().map(|data| {
            let modified = nanos(data.mtime(), data.mtime_nsec());
            let changed = nanos(data.ctime(), data.ctime_nsec());
            [data.dev().into(), data.ino().into(), data.size().into(), modified, changed]
        }))
    }
}

/// Watches the TLS files of a server, such as its certificate and key, and renews its TLS settings when they change.
/// Existing sessions keep their settings.
#[derive(Debug)]
pub struct TlsWatch {
    files: TlsFiles,
    setup: ServerTls,
    /// Identity and times of the files when they were last read.
    read: [FileStamp; 3],
    /// Identity and times of the TLS files at the last check, if the files have changed since they were read.
    changing: Option<[FileStamp; 3]>,
    next_check: Duration,
    /// Identity and times of the TLS files when the watch last returned an error because a file could not be read. The
    /// watch tries again, because the reason may be temporary, but reports the same files only once.
    unreadable: Option<[FileStamp; 3]>,
}

impl TlsWatch {
    /// Watches the files from which `setup` was made. The watch has no thread of its own, so the caller must call
    /// [`TlsWatch::check`] regularly.
    pub fn new(files: TlsFiles, setup: ServerTls) -> Self {
        let read = files.stamps();
        Self { files, setup, read, changing: None, next_check: Duration::ZERO, unreadable: None }
    }

    /// Checks the files, at most once a second. If they have changed, and have then stayed the same for two checks in a
    /// row, reads them and returns the result. If the files cannot be used, the server keeps its settings, and the
    /// error is returned once.
    pub fn check(&mut self, now: Duration) -> Option<Result<(), TlsFilesError>> {
        if now < self.next_check {
            return None;
        }
        self.next_check = now + CHECK_INTERVAL;
        let stamps = self.files.stamps();
        if stamps == self.read {
            self.changing = None;
            return None;
        }
        if self.changing.replace(stamps) != Some(stamps) {
            return None;
        }
        let outcome = self.reload();
        if !matches!(outcome, Err(TlsFilesError::Unreadable { .. })) {
            self.unreadable = None;
            return Some(outcome);
        }
        let before = self.read;
        // Forget the stamps of the files, so that the next check reads the files even if they have not changed.
        self.read = [FileStamp::default(); 3];
        self.changing = Some(stamps);
        (self.unreadable.replace(before) != Some(before)).then_some(outcome)
    }

    /// Reads the files now, without waiting until they have been unchanged for a while.
    ///
    /// # Errors
    /// Returns a [`TlsFilesError`] if a file cannot be read or used. The server then keeps its
    /// settings.
    pub fn reload(&mut self) -> Result<(), TlsFilesError> {
        // Record the stamps of the files before reading them, so that the next check notices a change during the read.
        self.read = self.files.stamps();
        self.changing = None;
        let files = &self.files;
        for path in [&files.certificate, &files.key].into_iter().chain(&files.client_roots) {
            check_regular(path).map_err(|why| TlsFilesError::Unreadable { path: path.clone(), why })?;
        }
        self.files.load().map(|renewed| self.setup.renew(&renewed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::server::ServerConfig;
    use std::fs;
    use std::sync::Arc;

    struct WatchedFiles {
        directory: tempfile::TempDir,
        files: TlsFiles,
        now: Duration,
    }

    impl WatchedFiles {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = |name: &str| directory.path().join(name);
            let certificate = path("certificate.pem");
            let key = path("key.pem");
            let files = TlsFiles { certificate, key, client_roots: None, resumption: SessionResumption::On };
            let place = Self { directory, files, now: Duration::ZERO };
            place.renew();
            place
        }

        fn renew(&self) {
            let made = Certificate::self_signed(&["localhost"]).unwrap();
            fs::write(&self.files.certificate, made.to_pem()).unwrap();
            fs::write(&self.files.key, made.key_to_pem()).unwrap();
        }

        fn seconds(&mut self, watch: &mut TlsWatch) -> Vec<Result<(), String>> {
            let mut results = Vec::new();
            for _ in 0..40 {
                self.now += CHECK_INTERVAL / 10;
                results.extend(watch.check(self.now).map(|outcome| outcome.map_err(|error| error.to_string())));
            }
            results
        }
    }

    fn in_force(setup: &ServerTls) -> Arc<ServerConfig> {
        setup.config()
    }

    #[test]
    fn a_new_certificate_is_in_force_for_every_clone() {
        let mut place = WatchedFiles::new();
        let setup = place.files.load().unwrap();
        let server = setup.clone();
        let mut watch = TlsWatch::new(place.files.clone(), setup);
        let old = in_force(&server);
        assert!(place.seconds(&mut watch).is_empty());
        place.renew();
        assert_eq!(place.seconds(&mut watch), [Ok(())]);
        assert!(!Arc::ptr_eq(&old, &in_force(&server)));
    }

    #[test]
    fn what_cannot_be_used_is_said_once_and_the_old_one_stays() {
        let mut place = WatchedFiles::new();
        let setup = place.files.load().unwrap();
        let mut watch = TlsWatch::new(place.files.clone(), setup.clone());
        let old = in_force(&setup);
        let other = Certificate::self_signed(&["localhost"]).unwrap();
        // The test writes a key that does not match the certificate, then a file without a key, and then removes the
        // file. Each of these errors must be reported once.
        fs::write(&place.files.key, other.key_to_pem()).unwrap();
        let results = place.seconds(&mut watch);
        assert!(matches!(&results[..], [Err(error)] if error.contains("cannot be used")), "{results:?}");
        fs::write(&place.files.key, "garbage").unwrap();
        let results = place.seconds(&mut watch);
        let named = format!("{}: no private key in PEM form", place.files.key.display());
        assert_eq!(results, [Err(named)]);
        fs::remove_file(&place.files.key).unwrap();
        let results = place.seconds(&mut watch);
        assert!(matches!(&results[..], [Err(error)] if error.starts_with("cannot read ")), "{results:?}");
        assert!(Arc::ptr_eq(&old, &in_force(&setup)));
        place.renew();
        assert_eq!(place.seconds(&mut watch), [Ok(())]);
        assert!(!Arc::ptr_eq(&old, &in_force(&setup)));
    }

    #[test]
    fn the_file_at_fault_is_named() {
        let place = WatchedFiles::new();
        let TlsFiles { certificate, key, .. } = place.files.clone();
        let empty = place.files.key.with_file_name("empty");
        fs::write(&empty, "").unwrap();
        let directory = empty.parent().unwrap();
        let is_named = |result: Result<(), TlsFilesError>, path: &Path, reason: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(&path.display().to_string()) && error.contains(reason), "{error}");
        };
        for (chain, other, at_fault, reason) in [
            (empty.as_path(), key.as_path(), empty.as_path(), "empty: no certificate in PEM form"),
            (&certificate, &empty, &empty, "empty: no private key in PEM form"),
            (&key, &key, &key, "no certificate in PEM form"),
            (&certificate, &certificate, &certificate, "no private key in PEM form"),
            (directory, &key, directory, "cannot read"),
            (&certificate, directory, directory, "cannot read"),
        ] {
            is_named(Certificate::read(chain, other).map(drop), at_fault, reason);
        }
        for (path, reason) in [(empty.as_path(), ": no certificate in PEM form"), (directory, "cannot read")] {
            is_named(Trust::read(path).map(drop), path, reason);
            let files = TlsFiles { client_roots: Some(path.to_owned()), ..place.files.clone() };
            is_named(files.load().map(drop), path, reason);
        }
        let whole = fs::read_to_string(&certificate).unwrap();
        fs::write(&empty, format!("\u{feff}{}", whole.replace('\n', "\r\n"))).unwrap();
        Trust::read(&empty).unwrap();
        let damaged = whole.replace("-----END", "-----ENT");
        fs::write(&empty, [damaged, whole].concat()).unwrap();
        is_named(Trust::read(&empty).map(drop), &empty, "cannot be read");
        fs::write(&empty, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        is_named(Trust::read(&empty).map(drop), &empty, "empty: ");
        is_named(read_roots(&empty).map(drop), &empty, "empty: ");
    }

    #[test]
    fn files_in_the_midst_of_a_change_are_left_to_settle() {
        let mut place = WatchedFiles::new();
        let setup = place.files.load().unwrap();
        let mut watch = TlsWatch::new(place.files.clone(), setup);
        let other = Certificate::self_signed(&["localhost"]).unwrap();
        fs::write(&place.files.certificate, other.to_pem()).unwrap();
        assert!(watch.check(CHECK_INTERVAL).is_none());
        fs::write(&place.files.key, other.key_to_pem()).unwrap();
        assert!(watch.check(CHECK_INTERVAL * 2).is_none(), "the key has changed since");
        assert!(watch.check(CHECK_INTERVAL * 3).is_some_and(|outcome| outcome.is_ok()));
        place.now = CHECK_INTERVAL * 3;
        assert!(place.seconds(&mut watch).is_empty());
    }

    #[test]
    fn a_symbolic_link_that_leads_elsewhere_is_a_change() {
        let place = WatchedFiles::new();
        let link = place.directory.path().join("link");
        std::os::unix::fs::symlink(&place.files.key, &link).unwrap();
        let before = FileStamp::of(&link);
        assert_eq!(FileStamp::of(&link), before);
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&place.files.certificate, &link).unwrap();
        assert_ne!(FileStamp::of(&link), before);
        assert_eq!(FileStamp::of(Path::new("/nowhere/at/all")), FileStamp::default());
    }
}
