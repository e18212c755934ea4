//! Watches a Maildir: `new`, in which deliveries appear, and `cur`, to which mail programs move them. A directory is
//! listed again only if its modification time has changed.
use super::watcher::{Watcher, read_trace};
use mailrun_mailbox::{Announced, MailboxUrl};
use mailrun_measurement::Phase;
use mailrun_net::{clock, sleep};
use mailrun_process::reason::reason;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const DEFAULT_POLL: Duration = Duration::from_millis(10);
/// Pause before the sink tries again to read a directory that it could not read.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after a message could not be read or deleted. Meanwhile, other messages are counted as usual.
const MESSAGE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// If a directory has changed more recently than this, the next check lists it again. Modification times are only as
/// exact as a tick of the kernel, so a second delivery within the tick would not change the time.
const TIME_GRAIN: Duration = Duration::from_millis(100);
/// Maximum number of bytes that are read of a message. The rest of a longer message is ignored.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of bytes of a message that are read if only its header is needed.
const HEADER_BYTES: u64 = 64 << 10;
/// Maximum number of messages in each of the directories `new` and `cur`. The sink keeps all names in memory, to
/// recognise new messages.
const MAX_MESSAGES: usize = 1 << 20;

/// Watches the directory until the task is dropped. Returns early if the directory cannot be read the first time.
pub(super) async fn watch(watcher: Watcher, url: MailboxUrl) {
    let MailboxUrl::Maildir(directory) = url else { return };
    let interval = watcher.shared.options.poll.unwrap_or(DEFAULT_POLL);
    let mut maildir = Maildir::new(directory);
    let mut is_first = true;
    loop {
        match maildir.look(clock::now()) {
            Ok(messages) => {
                watcher.opened(Some(interval));
                if !std::mem::take(&mut is_first) || watcher.shared.options.existing {
                    for mut message in messages {
                        if !handle(&watcher, &mut message) {
                            maildir.try_again(message, clock::now());
                        }
                    }
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

/// Counts a message, and deletes it if the user wants that. Returns false if the caller should try again later, because
/// the message exists but cannot be read or deleted.
fn handle(watcher: &Watcher, message: &mut Message) -> bool {
    let path = &message.path;
    if !message.is_counted {
        let announced = Announced::At(*message.found_at.get_or_insert_with(clock::now));
        let is_whole = watcher.shared.options.whole;
        let (bytes, content) = match read(path, is_whole) {
            Ok(content) => content,
            Err(error) => {
                watcher.complain(Phase::Body, &format!("a message cannot be read: {}", reason(&error)));
                return error.kind() == io::ErrorKind::NotFound;
            }
        };
        let id = path.file_name().map(base_name).unwrap_or_default();
        if !watcher.count(id.as_bytes(), &read_trace(&content, is_whole), announced, bytes) {
            return true;
        }
        message.is_counted = true;
    }
    match with_file(path, |path| fs::remove_file(path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            watcher.complain(Phase::Reply, &format!("a message cannot be deleted: {}", reason(&error)));
            false
        }
        // If the file does not exist, somebody else has deleted the message. Count it as deleted even then.
        _ => {
            watcher.deleted(1);
            true
        }
    }
}

/// Reads a message, or only its first `HEADER_BYTES` bytes if the body is not needed. Returns the size of the file, and
/// the content with line ends converted to CRLF.
fn read(path: &Path, is_whole: bool) -> io::Result<(u64, Vec<u8>)> {
    let file = with_file(path, |path| fs::File::open(path))?;
    let size = file.metadata()?.len();
    let limit = if is_whole { MAX_BYTES } else { HEADER_BYTES };
    let mut content = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, limit), &mut content)?;
    Ok((size, with_crlf(&content)))
}

/// Calls `operation`, for example to open or delete a message, with `path`. If there is no such file, tries again in
/// `cur`, because a mail program may have moved the message there.
fn with_file<T>(path: &Path, operation: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    match operation(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => operation(&moved(path)?),
        result => result,
    }
}

/// Finds a message that was moved from `new` to `cur`. Mail programs append flags to the name there, so only the part
/// before the flags is compared.
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

#[derive(Debug)]
struct Message {
    path: PathBuf,
    /// Time of the first attempt to read the message.
    found_at: Option<Duration>,
    /// Set once the message has been counted. It then only has to be deleted.
    is_counted: bool,
}

struct Directory {
    path: PathBuf,
    /// Modification time at the last listing. `None` if the directory must be listed again in any case, because it was
    /// not listed before or had changed less than [`TIME_GRAIN`] before the listing.
    listed_at: Option<SystemTime>,
    listings: u64,
}

/// Where a message was last seen: the directory (0 for `new`, 1 for `cur`), and the number of the listing of this
/// directory.
#[derive(Clone, Copy)]
struct Sighting {
    directory: usize,
    listing: u64,
}

/// The directories `new` and `cur` of a Maildir, and the messages that were found in them.
struct Maildir {
    directories: [Directory; 2],
    known: HashMap<OsString, Sighting>,
    /// Messages that could not be read or deleted.
    unfinished: Vec<Message>,
    /// Time at which the sink tries again to read or delete the unfinished messages.
    try_at: Duration,
}

impl Maildir {
    fn new(directory: PathBuf) -> Self {
        let part = |name| Directory { path: directory.join(name), listed_at: None, listings: 0 };
        let directories = [part("new"), part("cur")];
        Self { directories, known: HashMap::new(), unfinished: Vec::new(), try_at: Duration::ZERO }
    }

    /// Returns the messages that have appeared since the last call that succeeded. From the time `try_at` on, also
    /// returns the messages that could not be read or deleted before. The first call returns all messages.
    fn look(&mut self, now: Duration) -> io::Result<Vec<Message>> {
        let mut listings = Vec::new();
        for Directory { path, listed_at, .. } in &self.directories {
            let changed = fs::metadata(path)?.modified()?;
            if *listed_at == Some(changed) {
                listings.push(None);
                continue;
            }
            let is_recent = SystemTime::now().duration_since(changed).map_or(true, |age| age < TIME_GRAIN);
            let mut names = Vec::new();
            for entry in fs::read_dir(path)? {
                let name = entry?.file_name();
                if !name.as_bytes().starts_with(b".") {
                    names.push(name);
                }
                if names.len() > MAX_MESSAGES {
                    return Err(io::Error::other(format!("the directory has more than {MAX_MESSAGES} messages")));
                }
            }
            listings.push(Some(((!is_recent).then_some(changed), names)));
        }
        // Mark messages as known only after both directories were listed. If listing `cur` fails, the next call must
        // still return the messages that were found in `new`.
        let has_changed = listings.iter().any(Option::is_some);
        let mut messages = Vec::new();
        for (place, (directory, listing)) in self.directories.iter_mut().zip(listings).enumerate() {
            let Some((listed_at, names)) = listing else { continue };
            directory.listed_at = listed_at;
            directory.listings += 1;
            let seen = Sighting { directory: place, listing: directory.listings };
            for name in names {
                if self.known.insert(base_name(&name), seen).is_none() {
                    messages.push(Message { path: directory.path.join(name), found_at: None, is_counted: false });
                }
            }
        }
        if has_changed {
            self.forget();
        }
        if now >= self.try_at {
            messages.append(&mut self.unfinished);
        }
        Ok(messages)
    }

    /// Forgets the names of messages that are gone, to limit memory. A message counts as gone only if two listings in a
    /// row lack it, because a listing can miss a file that is renamed at the same time.
    fn forget(&mut self) {
        let oldest = self.directories.each_ref().map(|directory| directory.listings.saturating_sub(1));
        self.known.retain(|_, seen| oldest.get(seen.directory).is_some_and(|oldest| seen.listing >= *oldest));
    }

    /// Keeps a message that could not be read or deleted, so that a later [`Maildir::look`] returns it again.
    fn try_again(&mut self, message: Message, now: Duration) {
        if self.unfinished.is_empty() {
            self.try_at = now + MESSAGE_RETRY_INTERVAL;
        }
        self.unfinished.push(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_maildir() -> (tempfile::TempDir, Maildir) {
        let root = tempfile::tempdir().unwrap();
        for part in ["new", "cur", "tmp"] {
            fs::create_dir(root.path().join(part)).unwrap();
        }
        let maildir = Maildir::new(root.path().to_owned());
        (root, maildir)
    }

    /// Returns the sorted paths of the messages that are new at `now`, relative to the Maildir.
    fn names(maildir: &mut Maildir, root: &Path, now: Duration) -> Vec<String> {
        let messages = maildir.look(now).unwrap();
        let name = |message: &Message| message.path.strip_prefix(root).unwrap().display().to_string();
        let mut names: Vec<String> = messages.iter().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn a_message_is_new_once_wherever_it_is() {
        let (root, mut maildir) = new_maildir();
        let root = root.path();
        let now = Duration::ZERO;
        fs::write(root.join("new/1.before"), "old").unwrap();
        assert_eq!(names(&mut maildir, root, now), ["new/1.before"]);
        fs::write(root.join("new/2.a"), "x").unwrap();
        fs::write(root.join("tmp/3.b"), "x").unwrap();
        fs::write(root.join("cur/4.c:2,S"), "x").unwrap();
        assert_eq!(names(&mut maildir, root, now), ["cur/4.c:2,S", "new/2.a"]);
        fs::rename(root.join("new/2.a"), root.join("cur/2.a:2,S")).unwrap();
        assert_eq!(names(&mut maildir, root, now), [""; 0], "reading is no delivery");
        fs::write(root.join("new/5.d"), "x").unwrap();
        fs::rename(root.join("cur"), root.join("away")).unwrap();
        assert!(maildir.look(now).is_err());
        fs::rename(root.join("away"), root.join("cur")).unwrap();
        assert_eq!(names(&mut maildir, root, now), ["new/5.d"], "an error forgets no message");
        let (bytes, content) = read(&root.join("new/2.a"), false).unwrap();
        assert_eq!((bytes, content), (1, b"x".to_vec()), "it was moved between listing and reading");
        // A listing can miss a file that a mail program renames at the same time, for example to change its flags.
        fs::rename(root.join("cur/4.c:2,S"), root.join("tmp/4.c:2,S")).unwrap();
        assert_eq!(names(&mut maildir, root, now), [""; 0]);
        fs::rename(root.join("tmp/4.c:2,S"), root.join("cur/4.c:2,RS")).unwrap();
        assert_eq!(names(&mut maildir, root, now), [""; 0], "a message that one listing missed is not new");
    }

    #[test]
    fn messages_that_a_reader_removes_are_forgotten() {
        let (root, mut maildir) = new_maildir();
        let root = root.path();
        for number in 0..20 {
            let delivered = root.join(format!("new/{number}.a"));
            let read = root.join(format!("cur/{number}.a:2,S"));
            fs::write(&delivered, "x").unwrap();
            assert_eq!(names(&mut maildir, root, Duration::ZERO), [format!("new/{number}.a")]);
            fs::rename(&delivered, &read).unwrap();
            assert_eq!(names(&mut maildir, root, Duration::ZERO), [""; 0]);
            fs::remove_file(&read).unwrap();
        }
        // `known` keeps the last two listings of two directories. In this test, a listing has at most one name.
        assert!(maildir.known.len() <= 4, "{} names", maildir.known.len());
    }

    #[test]
    fn a_message_that_cannot_be_read_comes_again_after_a_pause() {
        let (root, mut maildir) = new_maildir();
        let root = root.path();
        let start = Duration::from_secs(1000);
        fs::write(root.join("new/1.a"), "x").unwrap();
        fs::write(root.join("new/2.b"), "x").unwrap();
        for message in maildir.look(start).unwrap() {
            maildir.try_again(message, start);
        }
        fs::write(root.join("new/3.c"), "x").unwrap();
        let later = start + MESSAGE_RETRY_INTERVAL;
        assert_eq!(names(&mut maildir, root, later - Duration::from_millis(1)), ["new/3.c"]);
        assert_eq!(names(&mut maildir, root, later), ["new/1.a", "new/2.b"]);
        assert_eq!(names(&mut maildir, root, later), [""; 0]);
    }

    #[test]
    fn lines_have_the_ends_of_smtp() {
        assert_eq!(with_crlf(b"a\nb\r\n\nc"), b"a\r\nb\r\n\r\nc");
    }
}
