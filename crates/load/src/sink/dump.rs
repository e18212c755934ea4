//! Stores messages as they arrived: the bytes from the wire without dot-stuffing, with line ends
//! CRLF, and with nothing added.
//!
//! | place | format |
//! |---|---|
//! | a directory | a file each, `SECONDS-PID-NUMBER.eml` |
//! | a Maildir | a file each, from `tmp` to `new` |
//! | one file | each message after a line of JSON with its length: `{"bytes":N,…}` LF, N bytes, LF |
//!
//! The single file for all messages is not an mbox, because an mbox ends lines in LF and quotes `From ` in the text, so
//! the received bytes could not be restored. The length of each message is written before the message, because any
//! separator, such as the one that smtp-sink writes for `-D`, might also occur in a message.
//!
//! A message that cannot be stored is refused. Messages are written without fsync. As in smtp-sink,
//! the other sessions of the worker wait during a write.
use anyhow::{Context, Result};
use mailrun_lock::lock;
use serde::Serialize;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum number of bytes of a message that a session holds in memory. Messages up to this size
/// are written in one piece when they are complete.
const MAX_BUFFERED_BYTES: usize = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DumpTarget {
    Directory(PathBuf),
    Maildir(PathBuf),
    File(PathBuf),
}

impl DumpTarget {
    pub fn path(&self) -> &Path {
        match self {
            Self::Directory(path) | Self::Maildir(path) | Self::File(path) => path,
        }
    }
}

#[derive(Debug)]
pub(super) struct MessageDump {
    target: DumpTarget,
    /// Prefix of all file names, which is unique for this process.
    prefix: String,
    suffix: String,
    serial: AtomicU64,
    file: Option<Mutex<File>>,
}

impl MessageDump {
    /// Creates the missing directories, and opens or creates the file if all messages go to a single file. The sink
    /// calls this before any mail arrives, so that the user sees an error early.
    pub(super) fn open(target: DumpTarget) -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let pid = std::process::id();
        let mut file = None;
        let (prefix, suffix) = match &target {
            DumpTarget::Directory(path) => {
                create_directory(path)?;
                (format!("{now}-{pid}-"), ".eml".to_owned())
            }
            DumpTarget::Maildir(path) => {
                ["tmp", "new", "cur"].iter().try_for_each(|part| create_directory(&path.join(part)))?;
                (format!("{now}.P{pid}Q"), format!(".{}", host_name()))
            }
            DumpTarget::File(path) => {
                if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
                    create_directory(directory)?;
                }
                let opened = OpenOptions::new().create(true).append(true).mode(FILE_MODE).open(path);
                file = Some(Mutex::new(opened.with_context(|| format!("cannot write {}", path.display()))?));
                (format!(".dump-{now}-{pid}-"), ".part".to_owned())
            }
        };
        Ok(Self { target, prefix, suffix, serial: AtomicU64::new(0), file })
    }

    /// Returns the path at which a new message is written, and the path to which it is moved when it is complete. If
    /// all messages go to a single file, both are the path of a temporary file, whose content is then copied to the
    /// single file.
    fn names(&self) -> (PathBuf, PathBuf) {
        let number = self.serial.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{number:08}{}", self.prefix, self.suffix);
        match &self.target {
            DumpTarget::Directory(path) => (path.join(format!(".{name}.part")), path.join(name)),
            DumpTarget::Maildir(path) => (path.join("tmp").join(&name), path.join("new").join(name)),
            DumpTarget::File(path) => (path.with_file_name(&name), path.with_file_name(name)),
        }
    }

    /// Appends a message to `file`, which contains all messages ([`DumpTarget::File`]). If that fails, the file is
    /// truncated to its former length, so that it contains only complete messages.
    fn append(&self, file: &Mutex<File>, draft: &mut MessageWriter) -> io::Result<()> {
        let mut file = lock(file);
        let before = file.metadata()?.len();
        let outcome = draft.append_to(&mut file);
        if outcome.is_err() {
            // Ignore the error: a device such as /dev/null cannot be truncated and need not be.
            let _ = file.set_len(before);
        }
        outcome
    }
}

/// Mode of new files, so that only the owner may read mail.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Creates a directory if it does not exist. An existing directory keeps its mode, because somebody
/// else chose it.
fn create_directory(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(path)
        .with_context(|| format!("cannot create {}", path.display()))
}

/// Returns the host name for the file names of a Maildir. Characters that such a name must not
/// contain, for example `/` and `:`, are replaced.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '_' }).collect()
}

#[derive(Debug)]
pub(super) struct MessageWriter {
    envelope: DumpEnvelope,
    /// Bytes that were received but are not in a file yet, at most [`MAX_BUFFERED_BYTES`].
    buffer: Vec<u8>,
    bytes: u64,
    file: Option<DumpFile>,
    error: Option<io::Error>,
}

/// Length, client, HELO name, sender and recipients of a message. If all messages are stored in a single file, these
/// values precede each message as a line of JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct DumpEnvelope {
    bytes: u64,
    pub(super) client: String,
    pub(super) hello: String,
    pub(super) sender: String,
    pub(super) recipients: Vec<String>,
}

#[derive(Debug)]
struct DumpFile {
    file: File,
    /// Path of the file while it is unfinished, or `None` once it has its final name.
    path: Option<PathBuf>,
    final_path: PathBuf,
}

impl MessageWriter {
    pub(super) fn new(envelope: DumpEnvelope) -> Self {
        Self { envelope, buffer: Vec::new(), bytes: 0, file: None, error: None }
    }

    pub(super) fn envelope(&mut self) -> &mut DumpEnvelope {
        &mut self.envelope
    }

    /// Writes the next part of the message. An error is kept until `store` reports it.
    pub(super) fn write(&mut self, dump: &MessageDump, block: &[u8]) {
        self.bytes += block.len() as u64;
        if self.error.is_some() {
            return;
        }
        if self.buffer.len() + block.len() <= MAX_BUFFERED_BYTES {
            self.buffer.extend_from_slice(block);
        } else if let Err(error) = self.flush_with(dump, block) {
            self.buffer = Vec::new();
            self.error = Some(error);
        }
    }

    /// Writes the buffered bytes and then the block. The file is created if this is the message's
    /// first write.
    fn flush_with(&mut self, dump: &MessageDump, block: &[u8]) -> io::Result<()> {
        let spill = match &mut self.file {
            Some(spill) => spill,
            none => none.insert(DumpFile::create(dump)?),
        };
        spill.file.write_all(&self.buffer)?;
        self.buffer.clear();
        spill.file.write_all(block)
    }

    /// Completes the message and moves it to its final place. Fails if any write of the message has
    /// failed.
    pub(super) fn store(mut self, dump: &MessageDump) -> io::Result<()> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        match &dump.file {
            Some(file) => dump.append(file, &mut self),
            None => {
                self.flush_with(dump, &[])?;
                self.file.take().map_or(Ok(()), DumpFile::publish)
            }
        }
    }

    fn append_to(&mut self, file: &mut File) -> io::Result<()> {
        self.envelope.bytes = self.bytes;
        let mut head = serde_json::to_vec(&self.envelope)?;
        head.push(b'\n');
        if let Some(spill) = &mut self.file {
            file.write_all(&head)?;
            spill.file.rewind()?;
            io::copy(&mut Read::by_ref(&mut spill.file).take(self.bytes), file)?;
            head.clear();
        }
        head.append(&mut self.buffer);
        head.push(b'\n');
        file.write_all(&head)
    }
}

impl DumpFile {
    fn create(dump: &MessageDump) -> io::Result<Self> {
        let (path, name) = dump.names();
        let file = OpenOptions::new().create_new(true).read(true).write(true).mode(FILE_MODE).open(&path)?;
        let spill = Self { file, path: Some(path), final_path: name };
        Ok(spill)
    }

    /// Renames the file to its final name, so that readers see only complete messages.
    fn publish(mut self) -> io::Result<()> {
        if let Some(path) = &self.path {
            fs::rename(path, &self.final_path)?;
            self.path = None;
        }
        Ok(())
    }
}

impl Drop for DumpFile {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Ignore the error, because somebody may have deleted the file or its directory.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at % 251) as u8).collect()
    }

    fn draft(dump: &MessageDump, message: &[u8]) -> MessageWriter {
        let recipients = vec!["c@d".to_owned()];
        let mut draft =
            MessageWriter::new(DumpEnvelope { client: "127.0.0.1:1".into(), recipients, ..DumpEnvelope::default() });
        message.chunks(50_000).for_each(|block| draft.write(dump, block));
        draft
    }

    const SIZES: [usize; 6] = [0, 1, MAX_BUFFERED_BYTES, MAX_BUFFERED_BYTES + 1, 200_000, 3];

    #[test]
    fn a_file_each_holds_the_octets_and_nothing_else() {
        for maildir in [false, true] {
            let place = tempfile::tempdir().unwrap();
            let root = place.path().join("deep/er");
            let target = if maildir { DumpTarget::Maildir(root.clone()) } else { DumpTarget::Directory(root.clone()) };
            let dump = MessageDump::open(target).unwrap();
            SIZES.iter().for_each(|size| draft(&dump, &message(*size)).store(&dump).unwrap());
            drop(draft(&dump, &message(100_000)));
            let directory = if maildir { root.join("new") } else { root.clone() };
            let mut paths: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
            paths.sort();
            let kept: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
            assert_eq!(kept, SIZES.map(message), "in order, and nothing of the one that was given up");
            assert!(!maildir || fs::read_dir(root.join("tmp")).unwrap().next().is_none());
        }
    }

    #[test]
    fn one_file_is_read_back_by_its_lengths() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("new/all");
        for _ in 0..2 {
            let dump = MessageDump::open(DumpTarget::File(path.clone())).unwrap();
            SIZES.iter().for_each(|size| draft(&dump, &message(*size)).store(&dump).unwrap());
            drop(draft(&dump, &message(100_000)));
        }
        let all = fs::read(&path).unwrap();
        let mut rest = all.as_slice();
        let mut kept = Vec::new();
        while !rest.is_empty() {
            let end = rest.iter().position(|octet| *octet == b'\n').unwrap();
            let head: serde_json::Value = serde_json::from_slice(&rest[..end]).unwrap();
            assert_eq!((&head["client"], &head["recipients"][0]), (&"127.0.0.1:1".into(), &"c@d".into()));
            let bytes = head["bytes"].as_u64().unwrap() as usize;
            kept.push(rest[end + 1..end + 1 + bytes].to_vec());
            assert_eq!(rest[end + 1 + bytes], b'\n');
            rest = &rest[end + 2 + bytes..];
        }
        assert_eq!(kept, [SIZES.map(message), SIZES.map(message)].concat());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no other file is left");
    }

    #[test]
    fn what_cannot_be_kept_is_an_error_and_leaves_nothing() {
        let full = MessageDump::open(DumpTarget::File("/dev/full".into())).unwrap();
        assert_eq!(draft(&full, b"x").store(&full).unwrap_err().kind(), io::ErrorKind::StorageFull);
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("gone");
        let dump = MessageDump::open(DumpTarget::Directory(root.clone())).unwrap();
        let begun = draft(&dump, &message(100_000));
        fs::remove_dir_all(&root).unwrap();
        for draft in [begun, draft(&dump, b"x"), draft(&dump, &message(100_000))] {
            assert_eq!(draft.store(&dump).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        assert!(MessageDump::open(DumpTarget::Directory("/dev/null/x".into())).is_err());
    }
}
