//! Delivers into a Maildir, with one file per message. Readers see either a complete file or none,
//! and the file survives a power failure.
//!
//! ```text
//! tmp/NAME written, synced ──rename, never over another──▶ new/NAME, directory synced ──▶ delivered
//! ```
//! Lines end in LF, as in every Maildir that Postfix, Exim or qmail writes, because readers and scripts treat the file
//! as local text. Signatures stay valid, because verifiers compute them over CRLF. (The dump of `mailrun sink` keeps
//! CRLF, because it documents the bytes on the wire.) The file begins with `Return-Path` (RFC 5321 §4.4) and
//! `Delivered-To`.
//!
//! All functions block, so they must be called on a thread that may wait for a disk.
use mailrun_lock::lock;
use mailrun_process::reason::reason;
use mailrun_smtp::reply::EnhancedStatusCode;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

const WRITE_BUFFER_BYTES: usize = 64 << 10;
/// Maximum number of file names to try. A name contains the name of this host, so another delivery can have used it
/// only if two hosts have the same name.
const MAX_NAME_ATTEMPTS: u32 = 8;

#[derive(Clone, Copy, Debug)]
pub(crate) struct MaildirMessage<'a> {
    pub(crate) sender: &'a [u8],
    pub(crate) recipient: &'a [u8],
    /// Header and text as received, with CRLF and without dot-stuffing.
    pub(crate) body: &'a [u8],
}

/// Maximum number of Maildirs in `durable_roots`, the set of Maildirs whose directories are known to be synced. A full
/// set is cleared, and the directories of each Maildir are then synced again at its next delivery.
const MAX_DURABLE_ROOTS: usize = 50_000;

/// Generates file names that no other delivery uses, in any process on any host
/// (<https://cr.yp.to/proto/maildir.html>). There must be only one instance per process.
#[derive(Debug)]
pub(crate) struct MaildirNames {
    pid: u32,
    host: String,
    serial: AtomicU64,
    durable_roots: Mutex<HashSet<PathBuf>>,
}

impl MaildirNames {
    pub(crate) fn new(host: &str) -> Self {
        let fit = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
        let host = host.chars().map(fit).take(64).collect();
        Self { pid: std::process::id(), host, serial: AtomicU64::new(0), durable_roots: Mutex::default() }
    }

    fn durable_roots(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        lock(&self.durable_roots)
    }

    /// Ensures that the Maildir's directories survive a power failure, even if another program
    /// created them.
    fn make_durable(&self, root: &Path) -> io::Result<()> {
        if self.durable_roots().contains(root) {
            return Ok(());
        }
        mailrun_spool::sync_ancestors(&root.join("new"))?;
        let mut durable = self.durable_roots();
        if durable.len() >= MAX_DURABLE_ROOTS {
            durable.clear();
        }
        durable.insert(root.to_owned());
        Ok(())
    }

    /// Returns a file name that no earlier call has returned. `now` is the time since the Unix epoch.
    fn next(&self, now: Duration) -> String {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        format!("{}.M{:06}P{}Q{serial}.{}", now.as_secs(), now.subsec_micros(), self.pid, self.host)
    }
}

/// Delivers into the Maildir `root`, which is created if necessary. Returns the path of the new file. `now` is the time
/// since the Unix epoch. A caller that builds `root` from an address must ensure that the address cannot lead to a path
/// outside of the intended directory.
///
/// # Errors
/// Returns a [`MaildirError`] if it is not certain that the message was delivered. The caller must then try again, even
/// though this can deliver the message twice.
pub(crate) fn deliver(
    root: &Path,
    names: &MaildirNames,
    now: Duration,
    message: &MaildirMessage<'_>,
) -> Result<PathBuf, MaildirError> {
    let failed = |source| MaildirError::new(root, source);
    let (file, draft) = with_unique_name(root, names, now, |name| create_draft(root, name)).map_err(failed)?;
    let move_to_new = |name: &str| {
        names.make_durable(root)?;
        publish(root, name, &draft)
    };
    let delivered = write(file, message).and_then(|()| with_unique_name(root, names, now, move_to_new));
    if delivered.is_err() {
        // Ignore a failed removal, because Maildir readers delete files in `tmp` after 36 hours anyway.
        let _ = fs::remove_file(&draft);
    }
    delivered.map_err(failed)
}

/// Calls `act` with a new file name, and again with another name if a file of that name exists, up to
/// `MAX_NAME_ATTEMPTS` times. Creates the Maildir if it is missing.
fn with_unique_name<T>(
    root: &Path,
    names: &MaildirNames,
    now: Duration,
    act: impl Fn(&str) -> io::Result<T>,
) -> io::Result<T> {
    for _ in 1..MAX_NAME_ATTEMPTS {
        match act(&names.next(now)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                names.durable_roots().remove(root);
                create(root)?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other,
        }
    }
    act(&names.next(now))
}

fn create_draft(root: &Path, name: &str) -> io::Result<(File, PathBuf)> {
    let path = root.join("tmp").join(name);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    Ok((file, path))
}

/// Creates the Maildir with access for its owner only.
pub(crate) fn create(root: &Path) -> io::Result<()> {
    ["tmp", "new", "cur"]
        .iter()
        .try_for_each(|part| DirBuilder::new().recursive(true).mode(0o700).create(root.join(part)))
}

fn write(file: File, message: &MaildirMessage<'_>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(WRITE_BUFFER_BYTES, file);
    out.write_all(&header_fields(message))?;
    write_lines(message.body, &mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_data()
}

fn header_fields(message: &MaildirMessage<'_>) -> Vec<u8> {
    // Replace control characters although the SMTP grammar excludes them, so that a line break in an address can never
    // begin another header field.
    let fit =
        |address: &[u8]| address.iter().map(|octet| if octet.is_ascii_control() { b'?' } else { *octet }).collect();
    let sender: Vec<u8> = fit(message.sender);
    let recipient: Vec<u8> = fit(message.recipient);
    [b"Return-Path: <".as_slice(), &sender, b">\nDelivered-To: ", &recipient, b"\n"].concat()
}

/// Writes a message with LF instead of CRLF, and ends the last line if necessary.
fn write_lines(message: &[u8], out: &mut impl Write) -> io::Result<()> {
    let mut rest = message;
    while let Some(end) = memchr::memchr(b'\n', rest) {
        let line = &rest[..end];
        out.write_all(line.strip_suffix(b"\r").unwrap_or(line))?;
        out.write_all(b"\n")?;
        rest = &rest[end + 1..];
    }
    if rest.is_empty() { Ok(()) } else { out.write_all(rest).and_then(|()| out.write_all(b"\n")) }
}

/// Moves a complete file from `tmp` to `new`, where readers see it.
fn publish(root: &Path, name: &str, draft: &Path) -> io::Result<PathBuf> {
    let new = root.join("new");
    let path = new.join(name);
    match renameat_with(CWD, draft, CWD, &path, RenameFlags::NOREPLACE) {
        // Without support for NOREPLACE, use a hard link, which also fails if the new name exists.
        Err(Errno::INVAL | Errno::NOSYS) => link(draft, &path)?,
        other => other?,
    }
    sync_directory(&new)?;
    Ok(path)
}

/// Renames a file without replacing an existing one: creates a hard link, and removes the old name.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to)?;
    fs::remove_file(from)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

/// Reason why a message could not be delivered into a Maildir. It is never the sender's fault, so
/// the message is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MaildirError {
    #[error("{}: {}; free space on this disk", .path.display(), reason(.source))]
    Full { path: PathBuf, source: io::Error },
    #[error("{}: {}; the owner of the mailbox must delete mail or needs a larger quota", .path.display(), reason(.source))]
    Quota { path: PathBuf, source: io::Error },
    /// The process may not write into the Maildir, or the path is not a Maildir.
    #[error("{}: {}; it must be a directory that mailrun can write to", .path.display(), reason(.source))]
    Denied { path: PathBuf, source: io::Error },
    #[error("{}: {}", .path.display(), reason(.source))]
    Disk { path: PathBuf, source: io::Error },
}

impl MaildirError {
    fn new(path: &Path, source: io::Error) -> Self {
        use io::ErrorKind as Kind;
        let path = path.to_owned();
        match source.kind() {
            Kind::StorageFull => Self::Full { path, source },
            Kind::QuotaExceeded | Kind::FileTooLarge => Self::Quota { path, source },
            Kind::PermissionDenied
            | Kind::ReadOnlyFilesystem
            | Kind::NotADirectory
            | Kind::NotFound
            | Kind::AlreadyExists
            | Kind::InvalidFilename => Self::Denied { path, source },
            _ => Self::Disk { path, source },
        }
    }

    /// Returns the reply code and enhanced status code (RFC 3463) that a server would send for this error.
    pub(crate) fn code(&self) -> (u16, EnhancedStatusCode) {
        match self {
            Self::Full { .. } => (452, EnhancedStatusCode(4, 3, 1)),
            Self::Quota { .. } => (452, EnhancedStatusCode(4, 2, 2)),
            Self::Denied { .. } => (451, EnhancedStatusCode(4, 3, 5)),
            Self::Disk { .. } => (451, EnhancedStatusCode(4, 3, 0)),
        }
    }

    /// Returns true if all further attempts fail until an operator acts, for example because the
    /// relay may not write into the Maildir.
    pub(crate) fn needs_operator(&self) -> bool {
        matches!(self, Self::Denied { .. } | Self::Disk { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    const NOW: Duration = Duration::from_micros(1_795_253_400_000_042);

    fn test_message(message: &[u8]) -> MaildirMessage<'_> {
        MaildirMessage { sender: b"a@b", recipient: b"c@d", body: message }
    }

    fn files(path: &Path) -> Vec<PathBuf> {
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn a_message_comes_into_new_and_the_maildir_is_made() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("deep/er");
        let names = MaildirNames::new("relay/example:1");
        let path = deliver(&root, &names, NOW, &test_message(b"Subject: x\r\n\r\n.dot\r\nlast")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"Return-Path: <a@b>\nDelivered-To: c@d\nSubject: x\n\n.dot\nlast\n");
        let name = format!("1795253400.M000042P{}Q2.relay_example_1", std::process::id());
        assert_eq!(path, root.join("new").join(name));
        assert!(files(&root.join("tmp")).is_empty() && files(&root.join("cur")).is_empty());
        for (path, mode) in [(root.as_path(), 0o700), (&root.join("cur"), 0o700), (&path, 0o600)] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
        }
    }

    #[test]
    fn messages_have_files_of_their_own_at_any_time_and_from_any_thread() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        let names = MaildirNames::new("x");
        std::thread::scope(|scope| {
            (0..4).for_each(|thread| {
                let names = &names;
                let text = format!("{thread}\r\n");
                scope.spawn(move || {
                    (0..20).for_each(|_| drop(deliver(root, names, NOW, &test_message(text.as_bytes())).unwrap()));
                });
            });
        });
        let kept = files(&root.join("new"));
        assert_eq!(kept.len(), 80);
        let of_thread =
            |digit: &str| kept.iter().filter(|path| fs::read_to_string(path).unwrap().ends_with(digit)).count();
        assert_eq!(["0\n", "1\n", "2\n", "3\n"].map(of_thread), [20; 4]);
    }

    #[test]
    fn a_name_that_is_taken_is_not_written_over() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        // Each new `MaildirNames` begins with the same name, so the later deliveries find this name taken. In practice,
        // this can happen if two hosts have the same name, or after a restart within a microsecond.
        let first = deliver(root, &MaildirNames::new("x"), NOW, &test_message(b"first\r\n")).unwrap();
        fs::rename(&first, root.join("new").join(MaildirNames::new("x").next(NOW))).unwrap();
        fs::write(root.join("tmp").join(MaildirNames::new("x").next(NOW)), b"").unwrap();
        let second = deliver(root, &MaildirNames::new("x"), NOW, &test_message(b"second\r\n")).unwrap();
        let third = deliver(root, &MaildirNames::new("x"), NOW, &test_message(b"third\r\n")).unwrap();
        assert_ne!(second, third);
        let mut kept: Vec<String> =
            files(&root.join("new")).iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        kept.sort();
        let ends = ["first\n", "second\n", "third\n"];
        assert!(kept.len() == 3 && kept.iter().zip(ends).all(|(text, end)| text.ends_with(end)), "{kept:?}");
    }

    #[test]
    fn names_that_are_all_taken_end_the_search() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        let names = MaildirNames::new("x");
        let all_taken = |_: &str| Err::<(), _>(io::ErrorKind::AlreadyExists.into());
        assert_eq!(with_unique_name(root, &names, NOW, all_taken).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(names.next(NOW).ends_with(&format!("Q{MAX_NAME_ATTEMPTS}.x")));
    }

    #[test]
    fn a_link_is_never_over_another_file() {
        let place = tempfile::tempdir().unwrap();
        let [from, to, other] = ["a", "b", "c"].map(|name| place.path().join(name));
        fs::write(&from, b"x").unwrap();
        fs::write(&other, b"y").unwrap();
        assert_eq!(link(&from, &other).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        link(&from, &to).unwrap();
        let read = |path: &Path| fs::read(path).unwrap();
        assert_eq!((from.exists(), read(&to), read(&other)), (false, b"x".to_vec(), b"y".to_vec()));
    }

    #[test]
    fn a_failure_says_whose_it_is_and_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, b"").unwrap();
        let failure = deliver(&file, &MaildirNames::new("x"), NOW, &test_message(b"")).unwrap_err();
        assert!(failure.needs_operator() && failure.code() == (451, EnhancedStatusCode(4, 3, 5)), "{failure:?}");
        assert!(
            failure.to_string().starts_with(&format!("{}: Not a directory; it must be", file.display())),
            "{failure}"
        );
        // The delivery must fail, because `new` is a file here, and must remove its draft from `tmp`.
        let root = place.path().join("half");
        fs::create_dir_all(root.join("tmp")).unwrap();
        fs::write(root.join("new"), b"").unwrap();
        assert!(matches!(
            deliver(&root, &MaildirNames::new("x"), NOW, &test_message(b"text")),
            Err(MaildirError::Denied { .. })
        ));
        assert!(files(&root.join("tmp")).is_empty());
        // Remove the file `new`, as an operator would do. The next delivery must then create the directory `new`.
        fs::remove_file(root.join("new")).unwrap();
        assert!(deliver(&root, &MaildirNames::new("x"), NOW, &test_message(b"text")).is_ok());
    }

    #[test]
    fn a_table_of_error_codes() {
        let rows = [
            (Errno::NOSPC, (452, EnhancedStatusCode(4, 3, 1)), false),
            (Errno::DQUOT, (452, EnhancedStatusCode(4, 2, 2)), false),
            (Errno::FBIG, (452, EnhancedStatusCode(4, 2, 2)), false),
            (Errno::ACCESS, (451, EnhancedStatusCode(4, 3, 5)), true),
            (Errno::PERM, (451, EnhancedStatusCode(4, 3, 5)), true),
            (Errno::ROFS, (451, EnhancedStatusCode(4, 3, 5)), true),
            (Errno::NOTDIR, (451, EnhancedStatusCode(4, 3, 5)), true),
            (Errno::NAMETOOLONG, (451, EnhancedStatusCode(4, 3, 5)), true),
            (Errno::IO, (451, EnhancedStatusCode(4, 3, 0)), true),
        ];
        for (errno, code, loud) in rows {
            let failure = MaildirError::new(Path::new("/box"), errno.into());
            assert_eq!((failure.code(), failure.needs_operator()), (code, loud), "{failure}");
            assert!(
                failure.to_string().starts_with("/box: ") && !failure.to_string().contains("os error"),
                "{failure}"
            );
        }
    }

    #[test]
    fn a_full_disk_is_told_from_the_writing() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let failure = MaildirError::new(Path::new("/box"), write(full, &test_message(b"x")).unwrap_err());
        assert!(matches!(failure, MaildirError::Full { .. }), "{failure}");
    }

    #[test]
    fn control_characters_cannot_add_a_field() {
        let forged = MaildirMessage { sender: b"a\nX: y", recipient: b"c\r\n\r\nz", body: b"" };
        assert_eq!(header_fields(&forged), b"Return-Path: <a?X: y>\nDelivered-To: c????z\n");
    }

    proptest! {
        #[test]
        fn only_line_ends_change(lines in proptest::collection::vec("[ -~]{0,80}", 0..20)) {
            let message: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
            let mut out = Vec::new();
            write_lines(message.as_bytes(), &mut out).unwrap();
            prop_assert_eq!(String::from_utf8(out).unwrap(), message.replace("\r\n", "\n"));
        }

        #[test]
        fn any_octets_but_those_of_line_ends_are_kept(message in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut out = Vec::new();
            write_lines(&message, &mut out).unwrap();
            let without = |octets: &[u8]| octets.iter().copied().filter(|o| !b"\r\n".contains(o)).collect::<Vec<_>>();
            prop_assert_eq!(without(&out), without(&message));
            prop_assert!(out.is_empty() || out.ends_with(b"\n"));
        }
    }
}
