//! Watches a Maildir: `new`, in which deliveries appear, and `cur`, to which mail programs move them. A directory is
//! listed when its modification time changes.
use super::watcher::{Watcher, read_trace};
use mailrun_mailbox::{Announced, MailboxUrl};
use mailrun_measurement::Phase;
use mailrun_net::{clock, sleep};
use mailrun_process::reason::reason;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const DEFAULT_POLL: Duration = Duration::from_millis(10);
/// Pause before the sink tries again to read a directory that it could not read.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// A directory whose last change is more recent than this is listed again at the next check. Modification times are
/// only as exact as a tick of the kernel, so a second delivery may leave the time unchanged.
const TIME_GRAIN: Duration = Duration::from_millis(100);
/// Maximum number of bytes that are read of a message. Of a longer message, only its beginning is read.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of bytes of a message that are read if only its header is needed.
const HEADER_BYTES: u64 = 64 << 10;
/// Maximum number of messages of a Maildir. Their names are kept in memory, to recognise new messages.
const MAX_MESSAGES: usize = 1 << 20;

/// Watches the directory until the task is dropped. Returns early if the directory cannot be read the first time.
pub(super) async fn watch(watcher: Watcher, url: MailboxUrl) {
    let MailboxUrl::Maildir(directory) = url else { return };
    let interval = watcher.shared.options.poll.unwrap_or(DEFAULT_POLL);
    let mut maildir = Maildir::new(directory);
    let mut is_first = true;
    loop {
        match maildir.look() {
            Ok(new) => {
                watcher.opened(Some(interval));
                if !std::mem::take(&mut is_first) || watcher.shared.options.existing {
                    new.iter().for_each(|path| count(&watcher, path));
                }
            }
            Err(error) => {
                watcher.failed(Phase::Mail, &format!("the directory cannot be read: {}", reason(&error)));
                if is_first {
                    return;
                }
                sleep(RETRY_INTERVAL).await;
            }
        }
        sleep(interval).await;
    }
}

fn count(watcher: &Watcher, path: &Path) {
    let announced = Announced::At(clock::now());
    let is_whole = watcher.shared.options.whole;
    match read(path, is_whole) {
        Ok((bytes, content)) => {
            let result = read_trace(&content, is_whole);
            let id = path.file_name().map(base_name).unwrap_or_default();
            if watcher.count(id.as_bytes(), &result, announced, bytes) && fs::remove_file(path).is_ok() {
                watcher.deleted(1);
            }
        }
        Err(error) => watcher.failed(Phase::Body, &format!("a message cannot be read: {}", reason(&error))),
    }
}

/// Reads a message or its first part. Returns the size of the file, and the content with the line ends of SMTP.
fn read(path: &Path, is_whole: bool) -> io::Result<(u64, Vec<u8>)> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        // Look in `cur` as well, because a mail program may have moved the message there in the meantime.
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::File::open(moved(path)?)?,
        Err(error) => return Err(error),
    };
    let size = file.metadata()?.len();
    let limit = if is_whole { MAX_BYTES } else { HEADER_BYTES };
    let mut content = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, limit), &mut content)?;
    Ok((size, with_crlf(&content)))
}

/// Finds a message that was moved from `new` to `cur`. A mail program appends flags to its name there, so the beginning
/// of the name is compared.
fn moved(path: &Path) -> io::Result<PathBuf> {
    let not_found = || io::Error::from(io::ErrorKind::NotFound);
    let name = path.file_name().map(base_name).ok_or_else(not_found)?;
    let current = path.parent().and_then(Path::parent).ok_or_else(not_found)?.join("cur");
    let mut entries = fs::read_dir(&current)?.filter_map(Result::ok);
    let entry = entries.find(|entry| base_name(&entry.file_name()) == name).ok_or_else(not_found)?;
    Ok(entry.path())
}

fn with_crlf(content: &[u8]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(content.len() + content.len() / 32);
    for line in content.split_inclusive(|octet| *octet == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(text) => {
                lines.extend_from_slice(text.strip_suffix(b"\r").unwrap_or(text));
                lines.extend_from_slice(b"\r\n");
            }
            None => lines.extend_from_slice(line),
        }
    }
    lines
}

/// Returns the unique part of a file name, which does not change when flags do.
fn base_name(name: &OsStr) -> OsString {
    let bytes = name.as_bytes();
    let end = bytes.iter().position(|octet| *octet == b':').unwrap_or(bytes.len());
    OsString::from_vec(bytes[..end].to_vec())
}

/// The directories `new` and `cur` with the times of their last listings, and the names of known messages.
struct Maildir {
    directories: [(PathBuf, Option<SystemTime>); 2],
    known: HashSet<OsString>,
}

impl Maildir {
    fn new(directory: PathBuf) -> Self {
        let part = |name| (directory.join(name), None);
        Self { directories: [part("new"), part("cur")], known: HashSet::new() }
    }

    /// Returns the messages that have appeared since the last call that succeeded. The first call returns all messages.
    fn look(&mut self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut times = self.directories.each_ref().map(|(_, listed)| *listed);
        for ((directory, _), listed) in self.directories.iter().zip(&mut times) {
            let changed = fs::metadata(directory)?.modified()?;
            if *listed == Some(changed) {
                continue;
            }
            let is_recent = SystemTime::now().duration_since(changed).map_or(true, |age| age < TIME_GRAIN);
            *listed = (!is_recent).then_some(changed);
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                let name = entry.file_name();
                if !name.as_bytes().starts_with(b".") && !self.known.contains(&base_name(&name)) {
                    found.push(entry);
                }
                if self.known.len() + found.len() > MAX_MESSAGES {
                    return Err(io::Error::other(format!("the directory has more than {MAX_MESSAGES} messages")));
                }
            }
        }
        // Note times and names only after all reads, so that a call after an error finds the same messages again.
        self.directories.iter_mut().zip(times).for_each(|((_, listed), time)| *listed = time);
        let is_new = |entry: &DirEntry| self.known.insert(base_name(&entry.file_name()));
        Ok(found.into_iter().filter(is_new).map(|entry| entry.path()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_new_once_wherever_it_is() {
        let root = tempfile::tempdir().unwrap();
        for part in ["new", "cur", "tmp"] {
            fs::create_dir(root.path().join(part)).unwrap();
        }
        fs::write(root.path().join("new/1.before"), "old").unwrap();
        let mut maildir = Maildir::new(root.path().to_owned());
        let mut names = || -> Vec<String> {
            let mut names: Vec<String> = maildir
                .look()
                .unwrap()
                .iter()
                .map(|path| path.strip_prefix(root.path()).unwrap().display().to_string())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["new/1.before"]);
        fs::write(root.path().join("new/2.a"), "x").unwrap();
        fs::write(root.path().join("tmp/3.b"), "x").unwrap();
        fs::write(root.path().join("cur/4.c:2,S"), "x").unwrap();
        assert_eq!(names(), ["cur/4.c:2,S", "new/2.a"]);
        fs::rename(root.path().join("new/2.a"), root.path().join("cur/2.a:2,S")).unwrap();
        assert_eq!(names(), [""; 0], "reading is no delivery");
        fs::write(root.path().join("new/5.d"), "x").unwrap();
        fs::rename(root.path().join("cur"), root.path().join("away")).unwrap();
        assert!(maildir.look().is_err());
        fs::rename(root.path().join("away"), root.path().join("cur")).unwrap();
        assert_eq!(maildir.look().unwrap(), [root.path().join("new/5.d")], "an error forgets no message");
        let (bytes, content) = read(&root.path().join("new/2.a"), false).unwrap();
        assert_eq!((bytes, content), (1, b"x".to_vec()), "it was moved between listing and reading");
    }

    #[test]
    fn lines_have_the_ends_of_smtp() {
        assert_eq!(with_crlf(b"a\nb\r\n\nc"), b"a\r\nb\r\n\r\nc");
    }
}
